//! A full or read-only disk gives an error that names the file, and no partial file is used as complete
//! afterwards.

use std::process::{Command, Stdio};

use support::cli::{SMALL_STUDENT, Workplace, said, small_dataset};

fn student<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["autoencoder"], SMALL_STUDENT, &["--max-epochs", "2"], more].concat()
}

/// Runs the program with a file size limit of `kibibytes`, beyond which writes fail as on a full disk.
#[cfg(unix)]
fn with_file_limit(workplace: &Workplace, kibibytes: u64, arguments: &[&str]) -> (bool, String) {
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", kibibytes * 2);
    let output = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_kdgat")])
        .args(arguments)
        .current_dir(workplace.path())
        .env("KDGAT_DATA", small_dataset())
        .env("KDGAT_THREADS", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output.status.success(), said(&output))
}

#[test]
#[cfg(unix)]
fn a_full_disk_while_training_is_named_and_the_run_goes_on_later() {
    let workplace = Workplace::with_teacher();
    // Enough for the logs, not enough for a checkpoint.
    let (success, text) = with_file_limit(&workplace, 8, &student(&["--run-dir", "run"]));
    assert!(!success && text.contains("safetensors"), "{text}");
    assert!(!workplace.path().join("run/summary.json").exists());
    assert!(!workplace.path().join("run/last/state.safetensors").exists(), "a partial checkpoint was left");
    workplace.success(&student(&["--run-dir", "run", "--resume"]));
}

#[test]
#[cfg(unix)]
fn a_full_disk_while_a_store_is_built_is_named_and_the_next_build_is_whole() {
    let workplace = Workplace::new();
    let (success, text) = with_file_limit(&workplace, 64, &["data", "build"]);
    assert!(!success && text.contains("stores"), "{text}");
    let said = workplace.success(&["data", "info"]);
    assert!(said.contains("16 files"), "{said}");
}

#[test]
#[cfg(target_os = "linux")]
fn folders_that_cannot_be_written_are_named() {
    let workplace = Workplace::with_teacher();
    // Nobody can create a folder there, not even root.
    for (flag, folder) in [("--runs-dir", "/proc/runs"), ("--stores-dir", "/proc/stores")] {
        let text = workplace.refused(&student(&[flag, folder]));
        assert!(text.contains(folder), "{flag}: {text}");
    }
    // A file is in the place of a folder.
    std::fs::write(workplace.path().join("afile"), "").unwrap();
    let text = workplace.refused(&student(&["--teacher-cache", "disk", "--teacher-cache-dir", "afile"]));
    assert!(text.contains("targets afile; name another folder with --teacher-cache-dir"), "{text}");
}

/// Every command exits with code 2.
#[test]
#[cfg(target_os = "linux")]
fn outputs_that_cannot_be_written_are_wrong_input() {
    let workplace = Workplace::with_teacher();
    workplace.success(&student(&["--run-dir", "run"]));
    let data = small_dataset().to_string_lossy();
    for arguments in [
        &["evaluate", "run", "--resamples", "0", "--output", "/proc/kdgat"][..],
        &["report", "run", "--output", "/proc/kdgat/report.html"],
        &["export", "run", "--output", "/proc/kdgat"],
        &["pipeline", "--data", &data, "--output", "/proc/kdgat"],
        &["data", "simulate", "/proc/kdgat"],
    ] {
        let text = workplace.refused(arguments);
        assert!(!text.contains("scoring with"), "noticed after the work alone: {text}");
        // A simulated dataset is first written next to its destination.
        let named = if arguments[1] == "simulate" { "/proc" } else { "/proc/kdgat" };
        assert!(text.contains(named), "{arguments:?}: {text}");
    }
}
