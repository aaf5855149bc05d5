//! Damaged files and files of another kind: every command names them, exits with code 2, and gives fitting advice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use support::cli::{SMALL_STUDENT, Workplace, only_store};
use support::stops::{end_of, wait_for_in};

fn student<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["autoencoder"], SMALL_STUDENT, &["--max-epochs", "2"], more].concat()
}

/// The shards of the workplace's only store.
fn shards(workplace: &Workplace) -> Vec<PathBuf> {
    let entries = fs::read_dir(only_store(&workplace.path().join("stores"))).unwrap();
    let mut shards: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    shards.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    shards.sort();
    shards
}

/// Changes the bytes of one tensor of a safetensors file.
fn damage(path: &Path, tensor: &str, change: impl Fn(&mut [u8])) {
    let mut bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let offset = |at: usize| 8 + length + header[tensor]["data_offsets"][at].as_u64().unwrap() as usize;
    change(&mut bytes[offset(0)..offset(1)]);
    fs::write(path, bytes).unwrap();
}

#[test]
fn pointers_that_leave_their_shard_are_named_by_every_command() {
    let workplace = Workplace::with_teacher();
    let shard = &shards(&workplace)[0];
    let whole = fs::read(shard).unwrap();
    let classifier = ["--preset", "gat,student", "--use-kd", "false", "--max-epochs", "1"];
    // Moves the second pointer far past the end of the shard.
    for (tensor, byte) in [("node_ptr", 15), ("edge_ptr", 11)] {
        fs::write(shard, &whole).unwrap();
        damage(shard, tensor, |bytes| bytes[byte] ^= 0x10);
        for command in [
            student(&[]),
            [&["classifier"], &classifier[..]].concat(),
            [&["curriculum"], &classifier[..]].concat(),
            [&["teachers", "cache"], SMALL_STUDENT].concat(),
            [&["memory", "plan"], SMALL_STUDENT].concat(),
            vec!["evaluate", "teachers/small/vgae"],
            vec!["data", "info"],
        ] {
            let said = workplace.refused(&command);
            assert!(said.contains("shard-00000") && said.contains(tensor), "{command:?}: {said}");
            assert!(said.contains("delete the folder") && !said.contains("panicked"), "{command:?}: {said}");
        }
    }
}

#[test]
fn edges_between_no_nodes_are_named_with_their_shard() {
    let workplace = Workplace::with_teacher();
    for shard in shards(&workplace) {
        // Flips a bit in the high byte of every source: no graph has that many nodes.
        damage(&shard, "edge_source", |bytes| bytes.iter_mut().skip(1).step_by(2).for_each(|byte| *byte ^= 0x40));
    }
    let said = workplace.refused(&student(&["--run-dir", "run"]));
    assert!(said.contains("an edge comes from node") && said.contains("shard-"), "{said}");
    assert!(said.contains("delete the folder") && said.contains("kdgat data build"), "{said}");
}

#[test]
fn a_changed_feature_is_found_by_verifying() {
    let workplace = Workplace::with_teacher();
    let said = workplace.success(&["data", "info", "--verify"]);
    assert!(said.contains("all checksums match") && said.contains("IDs in the vocabulary"), "{said}");
    damage(&shards(&workplace)[0], "node_features", |bytes| bytes[2] ^= 1);
    workplace.success(&["data", "info"]);
    let said = workplace.refused(&["data", "info", "--verify"]);
    assert!(said.contains("shard-00000") && said.contains("checksum"), "{said}");
}

#[test]
fn advice_about_weights_fits_what_is_wrong_with_them() {
    let workplace = Workplace::with_teacher();
    workplace.success(&student(&["--run-dir", "run"]));
    let run = workplace.path().join("run");
    let advice = |arguments: &[&str], words: &[&str]| {
        let said = workplace.refused(arguments);
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {words:?} are not all in: {said}");
        assert!(!said.contains("delete it") && !said.contains("another checkpoint"), "{arguments:?}: {said}");
    };
    fs::write(run.join("frames.log"), "").unwrap();
    let detect = |model| ["detect", "--model", model, "run/frames.log"];
    advice(&detect("run/metrics.csv"), &["run/metrics.csv: is not a checkpoint of kdgat", "name a vgae or gat"]);
    advice(&detect("run/last/state.safetensors"), &["is the state of a training run; name a vgae or gat"]);
    for (name, words) in [
        ("best.safetensors", ["damaged", "train it again"]),
        ("last/state.safetensors", ["damaged", "start the run again, without --resume"]),
    ] {
        let path = run.join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        match name {
            "best.safetensors" => advice(&detect("run"), &words),
            _ => advice(&student(&["--run-dir", "run", "--resume"]), &words),
        }
        fs::write(&path, bytes).unwrap();
    }
}

/// Names of the floating-point tensors of a safetensors file, ascending.
fn float_tensors(path: &Path) -> Vec<String> {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    header.iter().filter(|(_, tensor)| tensor["dtype"] == "F32").map(|(name, _)| name.clone()).collect()
}

/// A training that diverged has written them.
#[test]
fn weights_that_are_not_finite_are_named_with_their_tensor_before_anything_is_computed() {
    let workplace = Workplace::with_teacher();
    let folder = workplace.path().join("teachers/small/vgae");
    let (weights, config) = (folder.join("weights.safetensors"), folder.join("config.json"));
    // As from another program, whose weights have no digest.
    let mut described: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    described["weights_digest"] = "".into();
    fs::write(&config, described.to_string()).unwrap();
    fs::write(workplace.path().join("frames.log"), "").unwrap();
    let whole = fs::read(&weights).unwrap();
    let tensors = float_tensors(&weights);
    let last = tensors.last().unwrap();
    for (tensor, value, said_of_it) in [(&tensors[0], f32::NAN, "NaN"), (last, f32::INFINITY, "inf")] {
        fs::write(&weights, &whole).unwrap();
        damage(&weights, tensor, |bytes| bytes[..4].copy_from_slice(&value.to_le_bytes()));
        for command in [
            student(&[]),
            [&["teachers", "cache"], SMALL_STUDENT].concat(),
            vec!["teachers", "verify"],
            vec!["evaluate", "teachers/small/vgae"],
            vec!["detect", "teachers/small/vgae", "frames.log"],
            vec!["export", "teachers/small/vgae"],
        ] {
            let said = workplace.refused(&command);
            assert!(said.contains(&format!("{said_of_it} at [0")), "{command:?}: {said}");
            assert!(said.contains(tensor.as_str()) && said.contains("vgae"), "{command:?}: {said}");
            assert!(!said.contains("epoch   1"), "{command:?}: {said}");
        }
    }
}

/// Anyone may have written the file that describes a teacher.
#[test]
fn a_teacher_that_cannot_be_built_is_named_with_its_field_by_every_command() {
    let workplace = Workplace::with_teacher();
    let path = workplace.path().join("teachers/small/vgae/config.json");
    let sound: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (pointer, value, said_of_it) in [
        ("/architecture/heads", serde_json::json!(0), "heads = 0: must be at least 1"),
        ("/architecture/hidden", serde_json::json!([24, 1_i64 << 62]), "hidden = 4611686018427387904: must be at most"),
        ("/architecture/vocabulary_size", serde_json::json!(2), "vocabulary_size = 2, but the vocabulary has"),
        (
            "/vocabulary",
            serde_json::json!([7, 5]),
            "its vocabulary has 7 before 5; expected CAN IDs in ascending order",
        ),
    ] {
        let mut changed = sound.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        fs::write(&path, changed.to_string()).unwrap();
        for command in [
            student(&[]),
            [&["teachers", "cache"], SMALL_STUDENT].concat(),
            vec!["teachers", "verify"],
            vec!["evaluate", "teachers/small/vgae"],
            [&["memory", "plan", "--graphs", "100", "--nodes", "9", "--edges", "9"], SMALL_STUDENT].concat(),
        ] {
            let mut command = command;
            if command[0] == "memory" {
                command.extend(["--teacher-path", "teachers/small/vgae"]);
            }
            let said = workplace.refused(&command);
            assert!(said.contains("config.json") && said.contains(said_of_it), "{command:?}: {said}");
            assert!(!said.contains("panicked"), "{command:?}: {said}");
        }
    }
}

/// The system kills a process that reads a mapped page beyond the end of a truncated file.
#[test]
fn a_store_cut_short_during_a_training_is_said() {
    let workplace = Workplace::with_teacher();
    let command = student(&["--use-kd", "false", "--max-epochs", "10000", "--patience", "10000", "--run-dir", "run"]);
    let mut command = workplace.command(&command);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let log = workplace.path().join("run/metrics.csv");
    let epochs = || fs::read_to_string(&log).unwrap_or_default().lines().count();
    assert!(wait_for_in(&mut child, "a second epoch", || epochs() >= 3));
    for shard in shards(&workplace) {
        fs::OpenOptions::new().write(true).open(shard).unwrap().set_len(4096).unwrap();
    }
    let ended = end_of(child);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("a graph store, was truncated") && said.contains("data info --verify"), "{said}");
}
