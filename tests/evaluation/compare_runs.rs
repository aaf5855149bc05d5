//! `kdgat compare`: exit codes, and the first difference of two runs.

use std::path::Path;
use std::process::{Command, Output};

use support::starter;

const HEADER: &str = "epoch,train_loss,val_loss,kd_loss,lr,graphs_per_second,seconds\n";

fn write(folder: &Path, run: &str, rows: &[&str]) {
    std::fs::create_dir_all(folder.join(run)).unwrap();
    std::fs::write(folder.join(run).join("metrics.csv"), HEADER.to_owned() + &rows.join("\n") + "\n").unwrap();
}

fn compare(folder: &Path, arguments: &[&str]) -> Output {
    starter::output(Command::new(support::program::kdgat()).current_dir(folder).arg("compare").args(arguments))
}

#[test]
fn runs_are_equal_or_part_in_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "a", &["0,1.5,1.25,0.5,0.001,900,1", "1,1.0,1.125,0.25,0.001,950,1", "2,0.9,1.0,0.2,0.001,950,1"]);
    write(
        folder,
        "b",
        &["0,1.5,1.25,0.5,0.001,800,2", "1,1.0000005,1.125,0.25,0.001,800,2", "2,0.9,1.0,0.21,0.001,1,2"],
    );
    write(folder, "short", &["0,1.5,1.25,0.5,0.001,900,1"]);
    write(folder, "alone", &["0,1.5,1.25,,0.001,900,1", "1,1.0,1.125,,0.001,950,1", "2,0.9,1.0,,0.001,950,1"]);
    for (arguments, code, message) in [
        // Times and memory are compared only on request.
        (vec!["a", "a"], 0, "equal within 1e-6 in all 3 epochs"),
        (vec!["a", "b"], 1, "the runs first differ in epoch 2 (kd_loss)"),
        (vec!["a", "b", "--tolerance", "1e-7"], 1, "the runs first differ in epoch 1 (train_loss)"),
        (vec!["a", "b", "--metric", "train_loss,val_loss"], 0, "equal"),
        (vec!["a/metrics.csv", "b", "--metric", "kd_loss", "--tolerance", "0.05"], 0, "4.762e-2"),
        (vec!["a", "b", "--metric", "seconds"], 1, "epoch 0 (seconds)"),
        (vec!["a", "short"], 1, "the runs first differ in epoch 1"),
        (vec!["alone", "alone"], 0, "equal"),
        (vec!["a", "alone"], 1, "epoch 0 (kd_loss)"),
    ] {
        let output = compare(folder, &arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
    }
}

#[test]
fn runs_of_different_length_are_compared_best_against_best() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // The best epoch is 1 in the first run, and 3 in the second.
    write(folder, "short", &["0,1.5,1.25,,0.001,900,1", "1,1.0,0.5,,0.001,950,1", "2,0.9,0.75,,0.001,950,1"]);
    let long = ["0,1.5,1.25,,0.001,900,1", "1,1.0,0.5,,0.001,9,1", "2,0.9,0.75,,0.001,9,1", "3,0.8,0.4,,0.001,9,1"];
    write(folder, "long", &long);
    for (arguments, owner) in [(["short", "long"], "second"), (["long", "short"], "first")] {
        let output = compare(folder, &arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("kd_loss")), "neither run has a value: {text}");
        assert!(!text.contains("inf") && !text.contains("one value only"), "{text}");
        assert!(text.contains(&format!("the runs first differ in epoch 3, which only the {owner} run has")), "{text}");
        let row = text.lines().find(|line| line.starts_with("val_loss")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        let mut best = ["0.5", "0.4"];
        if owner == "first" {
            best.reverse();
        }
        assert_eq!(cells[1..], [best[0], best[1], "2.000e-1", "0.000e0", "never"], "{text}");
    }
    // A few metrics are shown epoch by epoch, over the epochs that both runs have.
    let text = compare(folder, &["short", "long", "--metric", "val_loss"]).stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(
        text.contains("epochs count from 0")
            && text.contains("first run, epoch 1")
            && text.contains("second run, epoch 3"),
        "{text}"
    );
    assert!(!text.lines().any(|line| line.starts_with("3 ")), "{text}");
}

#[test]
fn bad_input_ends_with_two() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "a", &["0,1.5,1.25,0.5,0.001,900,1"]);
    write(folder, "torn", &["0,1.5,1.25,0.5,0.001,900,1", "1,1.5"]);
    write(folder, "text", &["0,low,1.25,0.5,0.001,900,1"]);
    write(folder, "empty", &[]);
    std::fs::write(folder.join("other.csv"), "x,y\n1,2\n").unwrap();
    for (arguments, message) in [
        (vec!["a", "nowhere"], "nowhere"),
        (vec!["a", "a", "--metric", "kd_los"], "did you mean 'kd_loss'?"),
        (vec!["a", "a", "--tolerance", "-1"], "must be 0 or more"),
        (vec!["a", "a", "--tolerance", "nan"], "must be 0 or more"),
        (vec!["a", "torn"], "torn"),
        (vec!["a", "text"], "'low' in column train_loss, epoch 0"),
        (vec!["a", "empty"], "no epoch yet"),
        (vec!["a", "other.csv"], "no column 'epoch'"),
        (vec!["a"], "RUN"),
    ] {
        let output = compare(folder, &arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
    }
}
