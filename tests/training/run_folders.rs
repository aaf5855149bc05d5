//! Run folders: existing folders, refused resumes, closed outputs, and states that must not be saved.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::SystemTime;

use kdgat::exit;
use kdgat::nn::ModelDescription;
use kdgat::nn::weights::StateDict;
use kdgat::train::checkpoint;
use kdgat::train::state::Position;
use support::cli::{SMALL_STUDENT, SMALL_TEACHER, Workplace, contents, loss_columns, said};
use support::starter;
use support::stops::{send, wait_for};
use tch::Kind;

fn student<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["autoencoder"], SMALL_STUDENT, more].concat()
}

/// Time of the last write of the run's state.
fn last_written(run: &Path) -> Option<SystemTime> {
    std::fs::metadata(run.join("last/state.safetensors")).and_then(|metadata| metadata.modified()).ok()
}

/// Waits until the run's state is newer than `before`, and asks the run to stop.
fn interrupt(child: &Child, run: &Path, before: Option<SystemTime>) {
    wait_for("a checkpoint", || last_written(run) != before);
    send(child, rustix::process::Signal::INT);
}

#[test]
fn a_new_run_is_not_written_over_another() {
    let workplace = Workplace::with_teacher();
    let arguments = student(&["--max-epochs", "1", "--run-dir", "run"]);
    workplace.success(&arguments);
    let before = contents_without_lock(&workplace.path().join("run"));
    let said = workplace.refused(&arguments);
    assert!(said.contains("there is a run already") && said.contains("--resume"), "{said}");
    assert!(contents_without_lock(&workplace.path().join("run")) == before, "the refused run has changed the other");
    // A folder with other files.
    let precious = workplace.path().join("precious");
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("metrics.csv"), "mine").unwrap();
    let said = workplace.refused(&student(&["--max-epochs", "1", "--run-dir", "precious"]));
    assert!(said.contains("metrics.csv"), "{said}");
    assert_eq!(std::fs::read_to_string(precious.join("metrics.csv")).unwrap(), "mine");
}

/// Bytes of the files in a run's folder and in its `last` folder.
fn contents_without_lock(run: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let last = run.join("last");
    let mut files = if last.exists() { contents(&last) } else { Default::default() };
    for entry in std::fs::read_dir(run).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        files.insert(entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap());
    }
    files
}

#[test]
fn a_refused_continuation_names_what_changed_and_touches_nothing() {
    let workplace = Workplace::with_teacher();
    workplace.success(&student(&["--max-epochs", "2", "--run-dir", "run"]));
    let run = workplace.path().join("run");
    std::fs::remove_file(run.join("summary.json")).unwrap();
    let before = contents_without_lock(&run);
    let said = workplace.refused(&student(&["--max-epochs", "2", "--lr", "0.01", "--run-dir", "run", "--resume"]));
    assert!(said.contains("lr (it was 0.002, now 0.01)"), "{said}");
    assert!(contents_without_lock(&run) == before, "a refused continuation has changed the run");
    // Another order of the graphs would give other losses, too.
    let said =
        workplace.refused(&student(&["--max-epochs", "2", "--shuffle-block", "8", "--run-dir", "run", "--resume"]));
    assert!(said.contains("shuffle_block (it was 0, now 8)"), "{said}");
}

#[test]
fn beginning_anew_where_a_continuation_was_asked_for_is_said() {
    let workplace = Workplace::with_teacher();
    let said = workplace.success(&student(&["--max-epochs", "1", "--run-dir", "typo", "--resume"]));
    assert!(said.contains("typo: there is nothing to resume; the run starts from the beginning"), "{said}");
}

#[test]
fn a_training_outlives_those_who_read_its_lines() {
    let workplace = Workplace::with_teacher();
    let arguments = student(&["--max-epochs", "3", "--run-dir", "unread"]);
    let mut child =
        starter::shared(workplace.command(&arguments)).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    drop((child.stderr.take(), child.stdout.take()));
    assert_eq!(child.wait().unwrap().code(), Some(0), "a closed standard error ended the training");
    assert_eq!(loss_columns(&workplace.path().join("unread")).len(), 3);
}

#[test]
fn a_stop_in_the_middle_of_an_accumulation_loses_no_gradients() {
    let workplace = Workplace::with_teacher();
    let average = ["--ema-decay", "0.9"];
    let common = ["--max-epochs", "30", "--accumulate-grad-batches", "4", "--threads", "1"];
    let common = [&common[..], &average, &["--run-dir"]].concat();
    workplace.success(&student(&[&common[..], &["whole"]].concat()));
    let arguments = student(&[&common[..], &["stopped", "--resume"]].concat());
    let (run, mut stops) = (workplace.path().join("stopped"), 0);
    while stops < 4 {
        let before = last_written(&run);
        let child = starter::shared(workplace.command(&arguments)).stderr(Stdio::piped()).spawn().unwrap();
        interrupt(&child, &run, before);
        let output = child.wait_with_output().unwrap();
        if output.status.success() {
            break;
        }
        assert_eq!(output.status.code(), Some(exit::INTERRUPTED.into()), "{}", said(&output));
        stops += 1;
    }
    workplace.success(&arguments);
    assert!(stops > 0, "the run was never stopped");
    assert_eq!(loss_columns(&workplace.path().join("whole")), loss_columns(&run), "after {stops} stops");
}

#[test]
fn the_average_of_the_weights_is_saved_and_leaves_the_training_as_it_is() {
    let workplace = Workplace::with_teacher();
    let common = ["--max-epochs", "3", "--threads", "1", "--ema-decay"];
    let run = |decay: &str| {
        workplace.success(&student(&[&common[..], &[decay, "--run-dir", decay]].concat()));
        let run = workplace.path().join(decay);
        let (last, _): (StateDict, Position) = checkpoint::read(&run.join("last/state.safetensors")).unwrap();
        let (best, _): (StateDict, ModelDescription) = checkpoint::read(&run.join("best.safetensors")).unwrap();
        (last, best)
    };
    let (plain, averaged) = (run("0"), run("0.9"));
    assert!(!plain.0.contains_key("optimizer.average"));
    for (name, tensor) in plain.0.iter().filter(|(name, _)| name.starts_with("model.")) {
        assert_eq!(tensor, &averaged.0[name], "{name}");
    }
    // All three epochs are better than the ones before.
    let weights =
        |best: &StateDict| best.values().map(|tensor| tensor.square().sum(Kind::Double).double_value(&[])).sum::<f64>();
    assert_ne!(weights(&plain.1), weights(&averaged.1));
    let columns = |run: &str| loss_columns(&workplace.path().join(run));
    for (plain, averaged) in columns("0").iter().zip(columns("0.9")) {
        assert_eq!(plain[1], averaged[1], "training losses");
        assert_ne!(plain[2], averaged[2], "validation losses");
    }
}

/// `best` and `last` of a run's summary, without values that vary between repetitions.
fn best_and_last(run: &Path) -> [serde_json::Value; 2] {
    let summary = std::fs::read(run.join("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    ["best", "last"].map(|name| {
        let mut epoch = summary[name].clone();
        for measured in ["graphs_per_second", "peak_memory_bytes"] {
            epoch.as_object_mut().unwrap_or_else(|| panic!("no {name} epoch in {summary}")).remove(measured);
        }
        epoch
    })
}

#[test]
fn the_best_epoch_is_told_by_whoever_goes_on_behind_it() {
    let workplace = Workplace::new();
    // At this learning rate losses fluctuate and stop falling long before early stopping. At ten times the rate, most
    // seeds end with a NaN loss.
    let teacher = |more: &[&str]| {
        let common =
            ["--max-epochs", "500", "--patience", "25", "--lr", "0.3", "--schedule", "constant", "--threads", "1"];
        let words = [&["autoencoder"], SMALL_TEACHER, &common, more].concat();
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let registered = || {
        let config = std::fs::read(workplace.path().join("teachers/small/vgae/config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        config["metrics"].as_object_mut().unwrap().remove("command");
        config["metrics"].clone()
    };
    workplace.success(&teacher(&["--run-dir", "whole"]));
    let (whole, stopped) = (workplace.path().join("whole"), workplace.path().join("stopped"));
    let expected = (best_and_last(&whole), registered());
    let best = expected.0[0]["epoch"].as_u64().unwrap();
    let arguments = teacher(&["--run-dir", "stopped", "--resume"]);
    let child = starter::shared(workplace.command(&arguments)).stderr(Stdio::piped()).spawn().unwrap();
    let epochs = || if stopped.join("metrics.csv").exists() { loss_columns(&stopped).len() as u64 } else { 0 };
    wait_for("an epoch after the best one", || epochs() > best + 1);
    interrupt(&child, &stopped, None);
    assert_eq!(
        child.wait_with_output().unwrap().status.code(),
        Some(exit::INTERRUPTED.into()),
        "the run was not stopped"
    );
    let said = workplace.success(&arguments);
    assert_eq!((best_and_last(&stopped), registered()), expected);
    assert!(said.contains(&format!("in epoch {}\n  losses (training, validation): ", best + 1)), "{said}");
    // Nothing is left to train.
    std::fs::remove_file(stopped.join("summary.json")).unwrap();
    workplace.success(&arguments);
    assert_eq!((best_and_last(&stopped), registered()), expected);
}

#[test]
fn a_run_in_parts_of_batches_goes_on_in_the_same_parts() {
    let workplace = Workplace::with_teacher();
    let size = ["--batch-size", "64", "--optimize-batch-size", "false", "--threads", "1", "--max-epochs", "12"];
    let limit = ["--memory-limit", "4000kB", "--gradient-checkpointing", "false"];
    let common = [&size[..], &limit[..], &["--use-kd", "false", "--run-dir"]].concat();
    let whole = workplace.success(&student(&[&common[..], &["whole"]].concat()));
    assert!(whole.contains("graphs at a time"), "the limit lets whole batches in:\n{whole}");
    let arguments = student(&[&common[..], &["stopped", "--resume"]].concat());
    let child = starter::shared(workplace.command(&arguments)).stderr(Stdio::piped()).spawn().unwrap();
    interrupt(&child, &workplace.path().join("stopped"), None);
    child.wait_with_output().unwrap();
    workplace.success(&arguments);
    let (whole, stopped) = (workplace.path().join("whole"), workplace.path().join("stopped"));
    assert_eq!(loss_columns(&whole), loss_columns(&stopped));
}

#[test]
fn patience_is_the_number_of_epochs_without_a_better_one() {
    let workplace = Workplace::with_teacher();
    // Such large steps that the loss soon rises.
    let arguments = ["--max-epochs", "60", "--patience", "3", "--lr", "0.3", "--run-dir", "run"];
    workplace.success(&student(&arguments));
    let losses: Vec<f64> = {
        let mut reader = csv::Reader::from_path(workplace.path().join("run/metrics.csv")).unwrap();
        let column = reader.headers().unwrap().iter().position(|name| name == "val_loss").unwrap();
        reader.records().map(|row| row.unwrap()[column].parse().unwrap()).collect()
    };
    let best = (0..losses.len()).reduce(|best, epoch| if losses[epoch] < losses[best] { epoch } else { best }).unwrap();
    assert!(losses.len() < 60, "the loss never rose for long: {losses:?}");
    assert_eq!(losses.len() - 1 - best, 3, "{losses:?}");
}

#[test]
fn without_validation_graphs_nothing_is_trained() {
    let workplace = Workplace::with_teacher();
    for stage in [&["autoencoder"][..], &["classifier", "--preset", "gat,student", "--use-kd", "false"]] {
        let arguments = [stage, &["--validation-fraction", "0.001", "--use-kd", "false", "--run-dir", "none"]].concat();
        let said = workplace.refused(&arguments);
        assert!(said.contains("no validation graph") && said.contains("--validation-fraction"), "{said}");
    }
    assert!(!workplace.path().join("none").exists());
}

#[test]
fn a_state_that_is_no_number_is_never_written_over_a_good_one() {
    let workplace = Workplace::with_teacher();
    let run = workplace.path().join("run");
    let outcome = |lr: &str, name: &str| {
        let arguments =
            ["--max-epochs", "4", "--lr", lr, "--gradient-clip", "0", "--use-kd", "false", "--run-dir", name];
        workplace.run(&student(&arguments))
    };
    let output = outcome("1e30", "run");
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("not finite") || text.contains("the training loss is"), "{text}");
    assert!(text.contains("there is nothing to resume") != run.join("last/state.safetensors").exists(), "{text}");
    let log = std::fs::read_to_string(run.join("log.txt")).unwrap();
    assert!(log.contains("error: "), "the log does not say why the run ended:\n{log}");
    if let Ok((tensors, _)) = checkpoint::read::<Position>(&run.join("last/state.safetensors")) {
        for (name, tensor) in tensors {
            assert!(tensor.isfinite().all().int64_value(&[]) == 1, "{name} of the saved state is not finite");
        }
    }
}

#[test]
fn warnings_are_seen_and_kept() {
    let workplace = Workplace::with_teacher();
    let cached = ["--max-epochs", "1", "--teacher-cache", "disk", "--run-dir"];
    workplace.success(&student(&[&cached[..], &["first"]].concat()));
    let folder = workplace.path().join("stores/targets");
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.extension().is_some_and(|extension| extension == "targets")).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    bytes[last] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let said = workplace.success(&student(&[&cached[..], &["second"]].concat()));
    assert!(said.contains("warning: ") && said.contains("its checksum is wrong"), "{said}");
    let log = std::fs::read_to_string(workplace.path().join("second/log.txt")).unwrap();
    assert!(log.contains("its checksum is wrong"), "{log}");
}

#[test]
fn targets_that_were_computed_ahead_are_read_into_memory() {
    let workplace = Workplace::with_teacher();
    workplace.success(&[&["teachers", "cache"], SMALL_STUDENT].concat());
    let said = workplace.success(&student(&["--max-epochs", "2", "--run-dir", "run"]));
    assert!(said.contains("cached in memory") && said.contains("graphs read from"), "{said}");
    let summary = std::fs::read(workplace.path().join("run/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    assert_eq!(summary["teacher"]["total"]["cache_miss_rows"], 0, "the teacher has run all the same");
    workplace.success(&student(&["--max-epochs", "2", "--teacher-cache", "ram", "--run-dir", "computed"]));
    assert_eq!(loss_columns(&workplace.path().join("run")), loss_columns(&workplace.path().join("computed")));
}

#[test]
fn where_a_teacher_could_not_be_registered_none_is_trained() {
    let workplace = Workplace::new();
    let file = workplace.path().join("file");
    std::fs::write(&file, "no folder").unwrap();
    let arguments = ["autoencoder", "--preset", "vgae,teacher", "--max-epochs", "1", "--teachers-dir", "file/teachers"];
    let said = workplace.refused(&arguments);
    assert!(said.contains("file/teachers"), "{said}");
    assert!(!said.contains("epoch "), "it was trained before that was noticed:\n{said}");
}

/// A folder with a summary is completely finished, including the registration of its teacher.
#[test]
fn a_teacher_that_could_not_be_registered_leaves_its_run_unfinished() {
    let workplace = Workplace::new();
    let (run, place) = (workplace.path().join("run"), workplace.path().join("teachers/small/vgae"));
    // No folder can be created at a dangling link.
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("nowhere", &place).unwrap();
    let arguments = [&["autoencoder"], SMALL_TEACHER, &["--max-epochs", "1", "--run-dir", "run"]].concat();
    let output = workplace.run(&arguments);
    assert!(!output.status.success() && said(&output).contains("teachers/small/vgae"), "{}", said(&output));
    assert!(run.join("best.safetensors").exists() && !run.join("summary.json").exists());
    std::fs::remove_file(&place).unwrap();
    workplace.success(&[&arguments[..], &["--resume"]].concat());
    assert!(place.join("weights.safetensors").exists() && run.join("summary.json").exists());
}

/// The state counts the rows of the logs, so it is written only after these are on disk.
#[test]
fn a_log_that_does_not_get_to_the_disk_leaves_the_state_as_it_was() {
    for log in ["metrics.csv", "steps.csv"] {
        let workplace = Workplace::with_teacher();
        let run = workplace.path().join("run");
        let arguments = student(&["--max-epochs", "2000", "--patience", "2000", "--run-dir", "run", "--resume"]);
        let child = starter::shared(workplace.command(&arguments)).stderr(Stdio::piped()).spawn().unwrap();
        interrupt(&child, &run, None);
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(exit::INTERRUPTED.into()));
        let state = std::fs::read(run.join("last/state.safetensors")).unwrap();
        // A device accepts rows but cannot be synced.
        std::fs::remove_file(run.join(log)).unwrap();
        std::os::unix::fs::symlink("/dev/null", run.join(log)).unwrap();
        let output = workplace.run(&arguments);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(&format!("{log}: cannot sync")), "{}", said(&output));
        assert!(std::fs::read(run.join("last/state.safetensors")).unwrap() == state, "the state counts lost rows");
    }
}
