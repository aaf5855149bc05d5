//! Models with rich features and with hashed IDs, from training to detection, as a user runs them.

use kdgat::graph::FeatureSet;
use kdgat::nn::attention::Backend;
use kdgat::nn::node_input::InputConfig;
use kdgat::nn::parameters::Role;
use kdgat::nn::{FreshParameters, IdHash, Scope, Vgae, VgaeConfig};
use support::stage::{Workplace, dataset};
use support::starter;
use tch::Device;

const QUICK: [&str; 4] = ["--max-epochs", "2", "--lr", "0.003"];
const SMALL_VGAE: [&str; 4] = ["--hidden", "16,8", "--latent", "8"];
const SMALL_GAT: [&str; 6] = ["--hidden", "8", "--layers", "2", "--heads", "2"];
const RICH: [&str; 2] = ["--features", "rich"];
const HASH: [&str; 6] = ["--id-encoding", "hash", "--id-buckets", "24", "--id-probes", "3"];

fn all<'a>(parts: &[&[&'a str]]) -> Vec<&'a str> {
    parts.concat()
}

#[test]
fn a_vgae_of_rich_features_and_hashed_ids_learns_teaches_and_detects() {
    let place = Workplace::new();
    let teacher = ["autoencoder", "--preset", "vgae,teacher", "--conv", "gatv2"];
    place.run(&all(&[&teacher, &SMALL_VGAE, &QUICK, &RICH, &HASH]));
    let losses = place.metric("runs/tiny/vgae_teacher_autoencoder/1", "train_loss");
    assert!(losses[1] < losses[0] && losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    let registered = place.json("teachers/tiny/vgae/config.json");
    assert_eq!(registered["architecture"]["input"]["node_scaling"]["mean"].as_array().unwrap().len(), 35);

    // A student with the other feature set is refused; one with the same set trains, with the other ID encoding.
    let student = ["autoencoder", "--preset", "vgae,student", "--hidden", "8", "--latent", "4"];
    let refusal = place.refused(&all(&[&student, &QUICK]));
    assert!(refusal.contains("reads rich features, the student window features"), "{refusal}");
    place.run(&all(&[&student, &QUICK, &RICH]));
    let run = "runs/tiny/vgae_student_autoencoder_kd/1";
    assert!(place.metric(run, "recon_kd").iter().all(|loss| loss.is_finite() && *loss > 0.0));
    let described = place.description(run);
    assert_eq!(described.architecture.input().features(), FeatureSet::Rich);
    assert!(!described.architecture.hashes_ids());

    evaluated_together(&place, run);
    for (run, kind) in [(run, "student"), ("runs/tiny/vgae_teacher_autoencoder/1", "teacher")] {
        scores_agree(&place, run, kind);
    }
}

/// Asserts that models of different features are evaluated in one call, each as alone, and one of longer windows only if its length is asked for.
fn evaluated_together(place: &Workplace, of_rich: &str) {
    let student = ["autoencoder", "--preset", "vgae,student", "--use-kd", "false", "--hidden", "8", "--latent", "4"];
    place.run(&all(&[&student, &QUICK, &["--run-dir", "runs/tiny/plain/1"]]));
    place.run(&all(&[&student, &QUICK, &["--window", "50", "--run-dir", "runs/tiny/short/1"]]));
    let evaluate = ["evaluate", "--resamples", "0", "--rules", "false", "--predictions", "judged.csv"];
    let judged = |more: &[&str]| {
        let output = starter::output(&mut place.command(&all(&[&evaluate, more])));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (text, said) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{said}");
        let mut reader = csv::Reader::from_path(place.path("judged.csv")).unwrap();
        let rows: Vec<Vec<String>> =
            reader.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect();
        (text, said, rows)
    };
    let (text, said, together) = judged(&[]);
    assert!(said.contains("left out: short/1 was trained on windows of 50 frames; --window 50 evaluates it"), "{said}");
    let line = |model: &str| text.lines().find(|line| line.starts_with(model)).unwrap_or_else(|| panic!("{text}"));
    assert!(line("vgae_student_autoencoder_kd/1").contains(" rich "), "{text}");
    assert!(line("plain/1").contains(" window "), "{text}");
    for (run, name) in [(of_rich, "vgae_student_autoencoder_kd/1"), ("runs/tiny/plain/1", "plain/1")] {
        let (text, _, alone) = judged(&[run]);
        assert!(!text.contains("features"), "{text}");
        assert!(!alone.is_empty());
        let same: Vec<_> = together.iter().filter(|row| row[0] == name).cloned().collect();
        assert!(same == alone, "{name}: other rows together than alone");
    }
    let refusal = place.refused(&["evaluate", "runs/tiny/plain/1", "runs/tiny/short/1"]);
    assert!(refusal.contains("short/1 was trained on windows of 50 frames"), "{refusal}");
    std::fs::remove_dir_all(place.path("runs/tiny/short")).unwrap();
}

/// Asserts that `detect` gives the scores of the evaluation.
fn scores_agree(place: &Workplace, run: &str, kind: &str) {
    let predictions = format!("{kind}.csv");
    let alone = ["--rules", "false"];
    place.run(&[&["evaluate", run, "--resamples", "0", "--predictions", &predictions], &alone[..]].concat());
    let mut reader = csv::Reader::from_path(place.path(&predictions)).unwrap();
    let rows: Vec<std::collections::HashMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    let (folder, file) = (&rows[0]["folder"], &rows[0]["file"]);
    let log = dataset().join(folder).join(file);
    let mut detect = std::process::Command::new(env!("CARGO_BIN_EXE_kdgat"));
    detect.current_dir(place.path("")).args(["detect", "--model", run]).arg(&log);
    let output = starter::output(&mut detect);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let of_log: Vec<_> = rows.iter().filter(|row| &row["file"] == file && &row["folder"] == folder).collect();
    assert_eq!(lines.lines().count(), of_log.len());
    for (line, row) in lines.lines().zip(of_log) {
        let detection: serde_json::Value = serde_json::from_str(line).unwrap();
        let (score, expected) = (detection["score"].as_f64().unwrap(), row["score"].parse::<f64>().unwrap());
        assert!((score - expected).abs() <= 1e-6 * expected, "{kind}: {expected} expected, {line}");
    }
    let benign = dataset().join("train_01_attack_free");
    let benign = std::fs::read_dir(benign).unwrap().next().unwrap().unwrap().path();
    let mut calibrate = std::process::Command::new(env!("CARGO_BIN_EXE_kdgat"));
    calibrate
        .current_dir(place.path(""))
        .args(["calibrate", "--model", run, "--least-seconds", "1", "--benign"])
        .arg(&benign);
    let output = starter::output(&mut calibrate);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_gat_of_rich_features_learns_by_a_curriculum_of_its_set() {
    let place = Workplace::new();
    let vgae = ["autoencoder", "--preset", "vgae,teacher", "--max-epochs", "1"];
    let student = all(&[&["curriculum", "--preset", "gat,student", "--use-kd", "false"], &SMALL_GAT, &QUICK]);
    place.run(&all(&[&vgae, &SMALL_VGAE]));
    let refusal = place.refused(&all(&[&student, &RICH]));
    assert!(refusal.contains("reads window features, but the data has rich features"), "{refusal}");
    place.run(&all(&[&vgae, &SMALL_VGAE, &RICH]));
    place.run(&all(&[&student, &RICH, &HASH, &["--unknown-drop", "0.2"]]));
    // A student with another encoding than its teacher, which hashes IDs.
    let teacher = ["classifier", "--preset", "gat,teacher"];
    place.run(&all(&[&teacher, &SMALL_GAT, &QUICK, &RICH, &HASH]));
    place.run(&all(&[&["classifier", "--preset", "gat,student"], &QUICK, &RICH, &["--offload-teacher"]]));
    let losses = place.metric("runs/tiny/gat_student_normal_kd/1", "kd_loss");
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
}

#[test]
fn fused_and_composed_passes_train_alike() {
    let place = Workplace::new();
    let losses = ["fused", "composed"].map(|attention| {
        let run = format!("run-{attention}");
        let stage = ["autoencoder", "--preset", "vgae,student", "--use-kd", "false", "--max-epochs", "1"];
        let more = ["--attention", attention, "--run-dir", &run, "--dropout", "0"];
        place.run(&all(&[&stage, &SMALL_VGAE, &RICH, &HASH, &more]));
        place.metric(&run, "train_loss")[0]
    });
    assert!((losses[0] - losses[1]).abs() < 1e-4 * losses[0], "{losses:?}");
}

#[test]
fn hashing_is_refused_where_it_is_not_asked_for_and_takes_what_it_says() {
    let place = Workplace::new();
    let stage = ["autoencoder", "--preset", "vgae,student", "--use-kd", "false"];
    let refusal = place.refused(&all(&[&stage, &["--id-buckets", "10"]]));
    assert!(refusal.contains("--id-encoding hash"), "{refusal}");
    let config = |input| VgaeConfig {
        hidden: vec![16, 8],
        latent: 8,
        heads: 1,
        embedding: 4,
        vocabulary_size: 50,
        dropout: 0.1,
        edge_scaling: None,
        input,
    };
    let parameters = |input| {
        let mut fresh = FreshParameters::new(1, Device::Cpu);
        Vgae::new(Scope::root(&mut fresh), &config(input), Backend::Auto).unwrap();
        let tensors = fresh.tensors().iter().filter(|named| named.role == Role::Parameter);
        tensors.map(|named| named.tensor.numel() as f64).sum::<f64>()
    };
    let hashed = InputConfig { id_hash: Some(IdHash { probes: 2, buckets: 30 }), ..InputConfig::default() };
    // A table of 30 × 4 and weights of 120 × 2, instead of a table of 50 × 4.
    assert_eq!(parameters(hashed) - parameters(InputConfig::default()), (120 + 240 - 200) as f64);
}

#[test]
fn a_budget_of_nodes_makes_more_steps() {
    let place = Workplace::new();
    let stage = ["autoencoder", "--preset", "vgae,student", "--use-kd", "false", "--max-epochs", "1"];
    let fixed = ["--batch-size", "64", "--log-every-n-steps", "1"];
    let steps = ["none", "600"].map(|nodes| {
        let run = format!("run-{nodes}");
        place.run(&all(&[&stage, &SMALL_VGAE, &fixed, &["--batch-nodes", nodes, "--run-dir", &run]]));
        let text = std::fs::read_to_string(place.path(&run).join("steps.csv")).unwrap();
        text.lines().count() - 1
    });
    assert!(steps[1] > 2 * steps[0], "{steps:?}");
}
