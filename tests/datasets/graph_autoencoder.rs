//! `kdgat autoencoder` on datasets of graphs: a teacher, its student, their evaluation, and what depends on them, as a user runs them.

use std::collections::HashMap;
use std::fs;

use kdgat::graph::Task;
use support::cli::{Workplace, loss_columns};
use support::stops::kill_when;

use super::graph_curriculum::write_shapes;

fn workplace(task: Task) -> Workplace {
    let place = Workplace::new();
    write_shapes(&place.path().join("shapes"), 200, task);
    place
}

fn arguments<'a>(preset: &'a str, epochs: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let common = ["autoencoder", "--data", "shapes", "--preset", preset, "--hidden", "16", "--max-epochs", epochs];
    [&common[..], &["--device", "cpu", "--threads", "1", "--batch-size", "32", "--lr", "0.005"], more].concat()
}

fn train(place: &Workplace, preset: &str, epochs: &str, more: &[&str]) -> String {
    place.success(&arguments(preset, epochs, more))
}

/// Values of a run's evaluation, or of the baseline's, by metric.
fn evaluated(place: &Workplace, run: &str) -> [HashMap<String, f64>; 2] {
    place.success(&["evaluate", run, "--data", "shapes", "--device", "cpu", "--resamples", "50"]);
    let text = fs::read(place.path().join("runs/shapes/evaluation/graph_metrics.json")).unwrap();
    let found: serde_json::Value = serde_json::from_slice(&text).unwrap();
    ["metrics", "baseline"].map(|name| {
        let metrics = found["models"][0][name].as_array().unwrap().iter();
        metrics.map(|one| (one["name"].as_str().unwrap().to_owned(), one["value"].as_f64().unwrap())).collect()
    })
}

#[test]
fn a_teacher_of_some_classes_its_student_and_their_evaluation() {
    let place = workplace(Task::Classification);
    let rings = ["--train-classes", "ring", "--decode-edges"];
    let said = train(&place, "vgae,teacher", "40", &rings);
    assert!(said.contains("60 training and 20 validation graphs"), "{said}");
    assert!(said.contains("registered as the teacher of shapes: teachers/shapes/graph-vgae"), "{said}");
    let hints = ["--kd-hint-weight", "0.1", "--kd-vgae-latent-weight", "0.5", "--encoder", "gcn"];
    let said = train(&place, "vgae,student", "20", &[&rings[..], &["--offload-teacher"], &hints].concat());
    assert!(said.contains("vgae_student_autoencoder_kd"), "{said}");
    let run = "runs/shapes/vgae_student_autoencoder_kd/1";
    // The plan of the same training expects the same peak, and the training has it.
    let flags = arguments("vgae,student", "20", &[&rings[..], &["--offload-teacher"], &hints].concat());
    let plan = place.success(&[&["memory", "plan"], &flags[1..]].concat());
    let peak =
        |text: &str, before: &str| text.split_once(before).unwrap().1.split_whitespace().next().unwrap().to_owned();
    let planned = peak(&plan, "expected peak of tensors");
    assert_eq!(planned, peak(&said, "memory: expected peak"), "{plan}\n{said}");
    let summary = fs::read(place.path().join(run).join("summary.json")).unwrap();
    let measured =
        serde_json::from_slice::<serde_json::Value>(&summary).unwrap()["peak_memory_bytes"].as_f64().unwrap();
    let ratio = planned.parse::<f64>().unwrap() * f64::from(1 << 20) / measured;
    // The whole peak is less than a MiB.
    assert!((0.93..1.1).contains(&ratio), "{ratio}: {plan}\n{said}");
    let metrics = fs::read_to_string(place.path().join(run).join("metrics.csv")).unwrap();
    for part in ["latent_kd", "recon_kd", "reconstruction", "categories", "edges", "kl", "hint_kd"] {
        assert!(metrics.lines().next().unwrap().contains(part), "{metrics}");
    }
    place.success(&["teachers", "verify", "--teachers-dir", "teachers"]);

    let [teacher, baseline] = evaluated(&place, "runs/shapes/vgae_teacher_autoencoder/1");
    for term in ["error", "features MSE", "categories CE"] {
        assert!(teacher[term] < baseline[term], "{term}: {teacher:?} {baseline:?}");
    }
    let sum = teacher["features MSE"] + 0.1 * teacher["categories CE"] + 0.05 * teacher["edges BCE"];
    assert!((teacher["error"] - sum).abs() < 1e-6, "{teacher:?}");
    assert!((baseline["edges BCE"] - 2f64.ln()).abs() < 1e-6, "{baseline:?}");
    assert!(teacher["roc_auc"] > 0.5 && teacher["roc_auc"] <= 1.0, "{teacher:?}");
    let [student, _] = evaluated(&place, run);
    assert!(student["error"] < baseline["error"], "{student:?} {baseline:?}");

    let refused = |more: &[&str], text: &str| {
        let said = place.refused(&arguments("vgae,student", "1", more));
        assert!(said.contains(text), "{more:?}: {said} lacks {text}");
    };
    refused(&[], "was trained on graphs of the classes ring, this run is on all classes");
    refused(&["--train-classes", "rings"], "did you mean ring? Its classes are ring, star");
    refused(&["--hidden", "32,16"], "one hidden width");
    refused(&["--encoder", "gcn", "--edge-features", "true"], "--encoder gin");
    refused(&["--embedding", "4"], "graphs of other kinds than CAN windows");
    refused(&["--teacher-path", "nowhere"], "nowhere");
    fs::write(place.path().join("shapes/graphs.csv"), {
        let text = fs::read_to_string(place.path().join("shapes/graphs.csv")).unwrap();
        text.replacen(",train\n", ",moved\n", 1).replacen(",test\n", ",train\n", 1).replacen(",moved\n", ",test\n", 1)
    })
    .unwrap();
    refused(&rings, "train one with kdgat autoencoder --preset vgae,teacher --data shapes --train-classes ring");
}

#[test]
fn a_dataset_without_classes_has_no_anomalies() {
    let place = workplace(Task::Regression);
    train(&place, "vgae,teacher", "2", &["--encoder", "gat", "--heads", "2"]);
    let [teacher, baseline] = evaluated(&place, "runs/shapes/vgae_teacher_autoencoder/1");
    let mut names: Vec<&String> = teacher.keys().collect();
    names.sort();
    assert_eq!(names, ["categories CE", "error", "features MSE"]);
    assert_eq!(teacher.len(), baseline.len());
    let said = place.refused(&arguments("vgae,teacher", "1", &["--train-classes", "ring"]));
    assert!(said.contains("--train-classes: the graphs of shapes have no classes"), "{said}");
}

#[test]
fn a_killed_student_with_an_offloaded_teacher_goes_on_to_the_same_losses() {
    let place = workplace(Task::Classification);
    train(&place, "vgae,teacher", "3", &["--decode-edges"]);
    let rest =
        ["--decode-edges", "--offload-teacher", "--dropout", "0.1", "--schedule", "constant", "--patience", "100"];
    let more = |run: &'static str| [&rest[..], &["--run-dir", run]].concat();
    train(&place, "vgae,student", "40", &more("whole"));
    for epochs in [1, 4, 9] {
        let command = arguments("vgae,student", "40", &more("killed"));
        let path = place.path().join("killed/metrics.csv");
        let done = || fs::read_to_string(&path).map_or(0, |text| text.lines().count());
        let command = place.command(&[&command[..], &["--resume"]].concat());
        kill_when(command, &format!("the end of epoch {epochs}"), || done() > epochs);
    }
    train(&place, "vgae,student", "40", &[&more("killed")[..], &["--resume"]].concat());
    let [whole, killed] = ["whole", "killed"].map(|run| loss_columns(&place.path().join(run)));
    assert_eq!(whole, killed);
    let read = |run: &str| fs::read(place.path().join(run).join("best.safetensors")).unwrap();
    assert!(read("whole") == read("killed"), "the best model differs");
}

#[test]
fn the_error_of_an_autoencoder_is_the_difficulty_of_a_curriculum() {
    let place = workplace(Task::Classification);
    train(&place, "vgae,teacher", "5", &[]);
    let curriculum = ["--curriculum", "easiest", "--curriculum-start-share", "0.3"];
    let model = ["--difficulty-model", "teachers/shapes/graph-vgae"];
    let classify = ["train", "--data", "shapes", "--preset", "gin,teacher", "--max-epochs", "3", "--device", "cpu"];
    let said = place.success(&[&classify[..], &curriculum, &model].concat());
    assert!(said.contains("the reconstruction error of teachers/shapes/graph-vgae"), "{said}");
    let table = fs::read_to_string(place.path().join("runs/shapes/gin_teacher_train/1/metrics.csv")).unwrap();
    let mut rows = csv::Reader::from_reader(table.as_bytes());
    let rows: Vec<HashMap<String, String>> = rows.deserialize().map(Result::unwrap).collect();
    let difficulty = |row: &HashMap<String, String>| row["curriculum_difficulty"].parse::<f64>().unwrap();
    assert!(difficulty(&rows[0]) < difficulty(&rows[2]), "the easiest come first: {table}");
    // The other way round, a classifier is no teacher of an autoencoder.
    let wrong = ["--teacher-path", "teachers/shapes/graph"];
    let said = place.refused(&arguments("vgae,student", "1", &wrong));
    assert!(said.contains("is a graph, and no autoencoder of graphs"), "{said}");
}

#[test]
fn a_memory_limit_is_kept_or_answered_with_what_to_do() {
    let place = workplace(Task::Classification);
    let wide = ["--hidden", "512", "--optimize-batch-size", "false", "--batch-size", "120", "--decode-edges"];
    let limited = |limit: &'static str| [&wide[..], &["--memory-limit", limit]].concat();
    let said = place.out_of_memory(&arguments("vgae,teacher", "1", &limited("20MB")));
    assert!(said.contains("--memory-limit"), "{said}");
    let said = train(&place, "vgae,teacher", "2", &limited("90MB"));
    assert!(said.contains("graphs go through the model"), "{said}");
    let summary = fs::read(place.path().join("runs/shapes/vgae_teacher_autoencoder/2/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    let peak = summary["peak_memory_bytes"].as_u64().unwrap();
    assert!(peak <= 90_000_000, "{peak}");
}
