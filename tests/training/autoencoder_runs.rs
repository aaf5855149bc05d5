//! `kdgat autoencoder` from logs to student: the files of a run, and losses that depend only on data, seed and
//! settings, not on offloading, caching, interruption or repetition.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use kdgat::exit;
use rustix::process::Signal;
use support::cli::{COMPARED_LATENTS, SMALL_STUDENT, SMALL_TEACHER, Workplace, loss_columns, said};
use support::starter;
use support::stops::{KillLoop, ended_by, wait_for};

const STUDENT_RUNS: &str = "vgae_student_autoencoder_kd";

fn student<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["autoencoder"], SMALL_STUDENT, COMPARED_LATENTS, more].concat()
}

#[test]
fn a_student_learns_and_its_run_is_complete() {
    let workplace = Workplace::with_teacher();
    let said = workplace.success(&student(&["--max-epochs", "6", "--offload-teacher"]));
    let run = workplace.run_folder(STUDENT_RUNS, 1);
    for file in ["config.json", "metrics.csv", "steps.csv", "memory.csv", "best.safetensors", "summary.json", "log.txt"]
    {
        assert!(run.join(file).metadata().is_ok_and(|metadata| metadata.len() > 0), "no {file} in the run");
    }
    assert!(run.join("last/state.safetensors").exists());
    for word in ["run: runs/small", "kd_loss", "task_loss", "peak memory", "visits"] {
        assert!(said.contains(word), "the last lines do not speak of '{word}':\n{said}");
    }

    let mut reader = csv::Reader::from_path(run.join("metrics.csv")).unwrap();
    let header: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
    for column in
        "epoch, train_loss, val_loss, task_loss, kd_loss, latent_kd, recon_kd, lr, graphs_per_second, peak_memory_bytes"
            .split(", ")
    {
        assert!(header.iter().any(|name| name == column), "metrics.csv has no column {column}");
    }
    let rows: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 6);
    let number = |row: usize, name: &str| rows[row][name].parse::<f64>().unwrap();
    assert!(number(5, "val_loss") < number(0, "val_loss"), "the validation loss does not fall");
    assert!(number(5, "kd_loss") < number(0, "kd_loss"), "the student does not approach the teacher");
    assert!(number(0, "peak_memory_bytes") > 1e5, "no memory was counted");

    let summary: serde_json::Value = serde_json::from_slice(&std::fs::read(run.join("summary.json")).unwrap()).unwrap();
    let teacher_digest = summary["teacher"]["teacher_digest"].as_str().unwrap();
    let (tensors, description) =
        kdgat::train::checkpoint::read::<kdgat::nn::ModelDescription>(&run.join("best.safetensors")).unwrap();
    assert_eq!(description.teacher_digest.as_deref(), Some(teacher_digest));
    assert!(tensors.keys().all(|name| !name.contains("projection")), "the deployed student has the projection");
}

#[test]
fn the_same_seed_gives_the_same_losses_and_another_seed_others() {
    let workplace = Workplace::with_teacher();
    for seed in ["42", "42", "43"] {
        workplace.success(&student(&["--max-epochs", "3", "--seed", seed]));
    }
    assert_same_losses("the same seed", &workplace, 1, 2);
    let losses = |number| loss_columns(&workplace.run_folder(STUDENT_RUNS, number));
    assert!(losses(1) != losses(3), "another seed gives the same losses");
}

#[test]
fn a_hidden_layer_is_distilled_wherever_the_teacher_is() {
    let workplace = Workplace::with_teacher();
    let ways: [&[&str]; 4] = [
        &["--teacher-cache", "off"],
        &["--teacher-residency", "layer", "--teacher-cache", "off"],
        // Cached in another file than the targets of a run without hints.
        &["--offload-teacher", "--teacher-cache", "disk"],
        &["--offload-teacher", "--teacher-cache", "ram"],
    ];
    workplace.success(&student(&["--max-epochs", "1", "--teacher-cache", "disk"]));
    for (number, way) in ways.into_iter().enumerate() {
        workplace.success(&student(&[&["--max-epochs", "3", "--kd-hint-weight", "2"], way].concat()));
        if number > 0 {
            assert_same_losses(&format!("{way:?}"), &workplace, 2, number as u64 + 2);
        }
    }
    let run = workplace.run_folder(STUDENT_RUNS, 2);
    let mut reader = csv::Reader::from_path(run.join("metrics.csv")).unwrap();
    for row in reader.deserialize::<BTreeMap<String, String>>().map(Result::unwrap) {
        let number = |name: &str| row[name].parse::<f64>().unwrap();
        let expected = 0.5 * number("latent_kd") + number("recon_kd") + 2.0 * number("hint_kd");
        assert!((number("kd_loss") - expected).abs() < 1e-5 * expected, "{row:?}");
        assert!(number("hint_kd") > 0.0, "{row:?}");
    }
    let (tensors, _) =
        kdgat::train::checkpoint::read::<kdgat::nn::ModelDescription>(&run.join("best.safetensors")).unwrap();
    assert!(tensors.keys().all(|name| !name.contains("hint")), "the deployed student has the hint's map");
}

/// Without a weight, latents are neither compared nor cached.
#[test]
fn the_preset_distils_the_reconstruction_alone_wherever_the_teacher_is() {
    let workplace = Workplace::with_teacher();
    let train = |settings: &[&str], way: &[&str]| {
        workplace.success(&[&["autoencoder", "--max-epochs", "3"], SMALL_STUDENT, settings, way].concat());
    };
    let cached_bytes = || {
        let caches = std::fs::read_dir(workplace.path().join("stores/targets")).into_iter().flatten();
        let files = caches.map(|entry| entry.unwrap().metadata().unwrap()).filter(std::fs::Metadata::is_file);
        files.map(|file| file.len()).sum::<u64>()
    };
    let ways: [&[&str]; 5] = [
        &["--teacher-residency", "resident", "--teacher-cache", "off"],
        &["--offload-teacher", "--teacher-cache", "off"],
        &["--teacher-residency", "layer", "--teacher-cache", "off"],
        &["--offload-teacher", "--teacher-cache", "ram"],
        &["--offload-teacher", "--teacher-cache", "disk"],
    ];
    for (number, way) in ways.into_iter().enumerate() {
        train(&[], way);
        if number > 0 {
            assert_same_losses(&format!("{way:?}"), &workplace, 1, number as u64 + 1);
        }
    }
    let run = workplace.run_folder(STUDENT_RUNS, 1);
    let mut reader = csv::Reader::from_path(run.join("metrics.csv")).unwrap();
    for row in reader.deserialize::<BTreeMap<String, String>>().map(Result::unwrap) {
        assert_eq!((&row["latent_kd"], &row["val_latent_kd"]), (&String::new(), &String::new()), "{row:?}");
        assert_eq!((&row["kd_loss"], &row["val_kd_loss"]), (&row["recon_kd"], &row["val_recon_kd"]), "{row:?}");
    }
    let without = cached_bytes();
    train(COMPARED_LATENTS, &["--offload-teacher", "--teacher-cache", "disk"]);
    let with = cached_bytes() - without;
    // 10 values of a node are reconstructed; the teacher's latent has 8.
    assert!(without > 0 && with * 10 > without * 17 && with < without * 2, "{without} bytes, with latents {with}");
}

#[test]
fn where_the_teacher_is_changes_no_loss() {
    let workplace = Workplace::with_teacher();
    let ways: [&[&str]; 8] = [
        &["--teacher-residency", "resident", "--teacher-cache", "off"],
        &["--offload-teacher", "--teacher-cache", "off"],
        &["--offload-teacher", "--teacher-cache", "off", "--teacher-burst", "1"],
        &["--teacher-residency", "layer", "--teacher-cache", "off"],
        &["--teacher-residency", "auto", "--teacher-cache", "ram"],
        &["--offload-teacher", "--teacher-cache", "ram"],
        &["--offload-teacher", "--teacher-cache", "disk"],
        // The cache of the previous run is complete now.
        &["--offload-teacher", "--teacher-cache", "disk"],
    ];
    for way in ways {
        workplace.success(&student(&[&["--max-epochs", "3"], way].concat()));
    }
    for (number, way) in (1..).zip(&ways) {
        // Bitwise equal, cached or not: see batch_invariance.rs.
        assert_same_losses(&format!("{way:?}"), &workplace, 1, number);
    }
}

fn assert_same_losses(what: &str, workplace: &Workplace, expected: u64, found: u64) {
    let (expected, found) = (workplace.run_folder(STUDENT_RUNS, expected), workplace.run_folder(STUDENT_RUNS, found));
    assert_equal_losses(what, &expected, &found);
}

/// Fails at the first epoch whose losses differ, and prints only these.
fn assert_equal_losses(what: &str, expected: &Path, found: &Path) {
    let (expected, found) = (loss_columns(expected), loss_columns(found));
    for (epoch, (expected, found)) in expected.iter().zip(&found).enumerate() {
        assert_eq!(found, expected, "{what}: epoch {epoch}");
    }
    assert_eq!(found.len(), expected.len(), "{what}: epochs");
}

#[test]
fn a_killed_run_goes_on_to_the_same_losses() {
    let workplace = Workplace::with_teacher();
    let epochs = ["--max-epochs", "25", "--run-dir", "whole"];
    let start = Instant::now();
    workplace.success(&student(&epochs));
    let whole_time = start.elapsed();

    let interrupted = ["--max-epochs", "25", "--run-dir", "killed", "--resume"];
    let kills = KillLoop { whole: whole_time, first_share: 0.02, growth: 0.03, takes_children: None };
    let kills = kills.run(|| workplace.command(&student(&interrupted)));
    assert!(kills >= 2, "the run was killed {kills} times only");
    let killed = workplace.path().join("killed");
    assert_equal_losses(&format!("after {kills} kills"), &workplace.path().join("whole"), &killed);
    let read = |run: &Path| std::fs::read(run.join("best.safetensors")).unwrap();
    assert!(read(&killed) == read(&workplace.path().join("whole")), "the best model differs after {kills} kills");
}

#[test]
#[cfg(unix)]
fn ctrl_c_saves_and_the_run_goes_on_in_the_middle_of_an_epoch() {
    let workplace = Workplace::with_teacher();
    workplace.success(&student(&["--max-epochs", "40", "--run-dir", "whole"]));
    let arguments = student(&["--max-epochs", "40", "--run-dir", "stopped", "--resume"]);
    let child = starter::shared(workplace.command(&arguments)).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let last = workplace.path().join("stopped/last/state.safetensors");
    wait_for("a checkpoint", || last.exists());
    let output = ended_by(child, Signal::INT);
    assert_eq!(
        output.status.code(),
        Some(exit::INTERRUPTED.into()),
        "an interrupted run is not done:\n{}",
        said(&output)
    );
    assert!(said(&output).contains("--resume"), "{}", said(&output));
    assert!(!workplace.path().join("stopped/summary.json").exists());
    workplace.success(&arguments);
    assert_equal_losses("after Ctrl-C", &workplace.path().join("whole"), &workplace.path().join("stopped"));
}

#[test]
fn a_registered_teacher_names_the_command_that_trained_it() {
    let workplace = Workplace::with_teacher();
    let command = |workplace: &Workplace| {
        let config = std::fs::read(workplace.path().join("teachers/small/vgae/config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        config["metrics"]["command"].as_str().unwrap().to_owned()
    };
    let words = SMALL_TEACHER.join(" ");
    assert_eq!(command(&workplace), format!("kdgat autoencoder {words} --max-epochs 3"));
    workplace.success(&[&["autoencoder"], SMALL_TEACHER, &["--max-epochs=1", "--run-dir", "it's a run"]].concat());
    assert_eq!(command(&workplace), format!(r"kdgat autoencoder {words} --max-epochs=1 --run-dir 'it'\''s a run'"));
    assert!(workplace.success(&["teachers", "list"]).contains("--max-epochs=1"));
}

#[test]
fn the_line_of_an_epoch_has_its_own_validation() {
    let workplace = Workplace::with_teacher();
    workplace.success(&student(&["--max-epochs", "3", "--run-dir", "run"]));
    let log = std::fs::read_to_string(workplace.path().join("run/log.txt")).unwrap();
    let line = |epoch: &str| log.lines().find(|line| line.starts_with(epoch)).unwrap_or_else(|| panic!("{log}"));
    assert!(line("epoch   1/3").contains("teacher resident, "), "{log}");
    for epoch in ["epoch   2/3", "epoch   3/3"] {
        assert!(line(epoch).contains("teacher cached, 100 % of targets cached"), "{log}");
    }
}

#[test]
fn a_run_is_replayed_from_its_frozen_configuration() {
    let workplace = Workplace::with_teacher();
    workplace.success(&student(&["--max-epochs", "2", "--lr", "0.004"]));
    let config = workplace.run_folder(STUDENT_RUNS, 1).join("config.json");
    workplace.success(&["autoencoder", "--config", config.to_str().unwrap()]);
    assert_same_losses("replayed", &workplace, 1, 2);
}

#[test]
fn a_run_is_not_resumed_with_other_settings() {
    let workplace = Workplace::with_teacher();
    workplace.success(&student(&["--max-epochs", "2", "--run-dir", "run"]));
    std::fs::remove_file(workplace.path().join("run/summary.json")).unwrap();
    let said = workplace.refused(&student(&["--max-epochs", "2", "--lr", "0.01", "--run-dir", "run", "--resume"]));
    assert!(said.contains("other settings"), "{said}");
}

#[test]
fn without_a_teacher_the_command_that_trains_one_is_named() {
    let workplace = Workplace::new();
    let said = workplace.refused(&student(&["--max-epochs", "1"]));
    assert!(said.contains("kdgat autoencoder --preset vgae,teacher --data"), "{said}");
}

#[test]
fn a_teacher_that_does_not_fit_is_named() {
    let workplace = Workplace::with_teacher();
    let config = workplace.path().join("teachers/small/vgae/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"latent\": 8", "\"latent\": 9")).unwrap();
    let output = workplace.run(&student(&["--max-epochs", "1"]));
    assert!(!output.status.success());
    assert!(said(&output).contains("encoder_layers.2"), "{}", said(&output));

    // Replace the registered weights by others.
    std::fs::write(&config, text).unwrap();
    let weights = workplace.path().join("teachers/small/vgae/weights.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let said = workplace.refused(&student(&["--max-epochs", "1"]));
    assert!(said.contains("weights.safetensors") && said.contains("digest"), "{said}");
}

#[test]
fn a_damaged_checkpoint_is_named() {
    let workplace = Workplace::with_teacher();
    workplace.success(&student(&["--max-epochs", "2", "--run-dir", "run"]));
    let last = workplace.path().join("run/last/state.safetensors");
    let bytes = std::fs::read(&last).unwrap();
    std::fs::write(&last, &bytes[..bytes.len() - 5]).unwrap();
    let said = workplace.refused(&student(&["--max-epochs", "2", "--run-dir", "run", "--resume"]));
    assert!(said.contains("state.safetensors"), "{said}");
}

#[test]
fn a_teacher_of_pytorch_serves_a_student() {
    let state = support::parity::parity_file("vgae_student_state.pt");
    let workplace = Workplace::with_teacher();
    let folder = workplace.path().join("given");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(state, folder.join("weights.pt")).unwrap();
    let ids: Vec<u32> = (1..40).collect();
    let config = serde_json::json!({
        "format_version": 1,
        "model": "vgae",
        "architecture": { "hidden": [80, 40, 16], "latent": 16, "heads": 1, "embedding": 4 },
        "vocabulary": ids,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    workplace.success(&student(&["--max-epochs", "1", "--teacher-path", "given/weights.pt"]));
}

#[test]
fn a_teacher_is_trained_alone_and_registered() {
    let workplace = Workplace::with_teacher();
    let said = workplace.success(&["teachers", "verify"]);
    assert!(said.contains("small/vgae: undamaged"), "{said}");
    let said = workplace.refused(&["teachers", "verify", "--teachers-dir", "elsewhere"]);
    assert!(said.contains("no teacher is registered in elsewhere"), "{said}");
    let said = workplace.success(&["teachers", "show", "small/vgae"]);
    assert!(said.contains("kdgat autoencoder --preset vgae,teacher"), "{said}");
    let said = workplace.refused(&["teachers", "show", "small/vgea"]);
    assert!(said.contains("the nearest one is small/vgae") && said.contains("--preset vgae,teacher"), "{said}");
}
