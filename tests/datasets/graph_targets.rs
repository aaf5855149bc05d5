//! `kdgat teachers cache` for datasets of graphs: a training reads what it has computed, as a whole or in parts.

use std::collections::BTreeMap;
use std::fs;

use kdgat::graph::Task;
use support::cli::{Workplace, loss_columns};

use super::graph_curriculum::write_shapes;

/// Sum of a column of `steps.csv`.
fn column_sum(place: &Workplace, run: &str, name: &str) -> f64 {
    let mut reader = csv::Reader::from_path(place.path().join(run).join("steps.csv")).unwrap();
    let rows = reader.deserialize::<BTreeMap<String, String>>();
    rows.map(|row| row.unwrap()[name].parse::<f64>().unwrap()).sum()
}

/// Bytes of the only file of targets in a folder.
fn only_bytes(place: &Workplace, folder: &str) -> Vec<u8> {
    let files: Vec<_> = fs::read_dir(place.path().join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    fs::read(&files[0]).unwrap()
}

const COMMON: [&str; 8] = ["--data", "shapes", "--device", "cpu", "--batch-size", "16", "--threads", "1"];

/// A network and an autoencoder, whose teachers return outputs, a hidden layer and latents.
#[test]
fn targets_are_computed_ahead_whole_and_in_parts() {
    let place = Workplace::new();
    write_shapes(&place.path().join("shapes"), 120, Task::Classification);
    let hints = ["--kd-hint-weight", "0.1"];
    for (command, model) in [("train", "gin"), ("autoencoder", "vgae")] {
        let [teacher, student] = ["teacher", "student"].map(|size| format!("{model},{size}"));
        place.success(&[&[command, "--preset", &teacher, "--max-epochs", "2"], &COMMON[..]].concat());
        let student = [&["--preset", &student], &COMMON[..], &hints].concat();
        let run = |words: &[&str], more: &[&str]| place.success(&[words, &student, more].concat());
        let whole = format!("{model}-whole");
        let said = run(&["teachers", "cache"], &["--teacher-cache-dir", &whole]);
        assert!(said.contains("complete: targets of 96 of 96 graphs"), "{said}");
        let parts = format!("{model}-parts");
        run(&["teachers", "cache"], &["--teacher-cache-dir", &parts, "--part", "2/3"]);
        let said = run(&["teachers", "cache"], &["--teacher-cache-dir", &parts, "--parts", "3"]);
        assert!(said.contains("3 parts, 1 of them done"), "{said}");
        assert!(only_bytes(&place, &parts) == only_bytes(&place, &whole), "{model}: parts change the bytes");

        // The same losses from targets on disk and from targets that the training computes.
        let epochs = ["--max-epochs", "2", "--log-every-n-steps", "1"];
        let [ahead, live] = ["ahead", "live"].map(|name| format!("{model}-{name}"));
        let cached = ["--teacher-cache", "disk", "--teacher-cache-dir", &whole, "--run-dir", &ahead];
        run(&[command], &[&epochs[..], &cached].concat());
        assert_eq!(column_sum(&place, &ahead, "cache_miss_rows"), 0.0);
        assert!(column_sum(&place, &ahead, "cache_hit_rows") > 0.0);
        run(&[command], &[&epochs[..], &["--run-dir", &live]].concat());
        let [ahead, live] = [ahead, live].map(|run| loss_columns(&place.path().join(run)));
        assert_eq!(ahead, live);
    }
}

#[test]
fn what_has_no_targets_to_compute_is_refused() {
    let place = Workplace::new();
    write_shapes(&place.path().join("shapes"), 40, Task::Classification);
    let refused = |more: &[&str], text: &str| {
        let said = place.refused(&[&["teachers", "cache"], &COMMON[..], more].concat());
        assert!(said.contains(text), "{more:?}: {said} lacks {text}");
    };
    refused(&["--preset", "gin,student"], "train --preset gin,teacher --data shapes");
    refused(&["--preset", "vgae,student"], "autoencoder --preset vgae,teacher --data shapes");
    refused(&["--preset", "gin,student", "--fold", "99"], "fold");
    refused(&["--preset", "gin,student", "--kd-views", "2"], "none are displaced");
    refused(
        &["--preset", "gin,student", "--kd-displacement", "0.1", "--kd-views", "2"],
        "only networks that read positions",
    );
    refused(&["--preset", "appnp,student"], "appnp");
    refused(&["--preset", "gin,student", "--teacher-cache", "ram"], "--teacher-cache disk");
}
