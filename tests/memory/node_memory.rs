//! Memory of trainings on one large graph, through the command line: where features are read from changes no loss, limits are kept or
//! refused before the training, and plans need no data.

use std::fs;
use std::path::{Path, PathBuf};

use kdgat::random;
use support::cli::{Workplace, loss_columns};

const NODES: u64 = 2400;
const CLASSES: u64 = 3;
const COLUMNS: u64 = 24;

/// A graph as tables: edges mostly within classes, some nodes with many.
fn write_tables(folder: &Path) {
    let draw = |purpose: u64, index: u64| random::to_unit(random::mix(random::mix(purpose) ^ index));
    let mut nodes = String::from("node_id,y");
    (0..COLUMNS).for_each(|feature| nodes += &format!(",x_{feature}"));
    nodes += "\n";
    for node in 0..NODES {
        nodes += &format!("n{node},class{}", node % CLASSES);
        for feature in 0..COLUMNS {
            let shift = if feature == node % CLASSES { 0.35 } else { 0.0 };
            nodes += &format!(",{:.3}", draw(1, node * COLUMNS + feature) + shift);
        }
        nodes += "\n";
    }
    let mut edges = String::from("source,target\n");
    for edge in 0..6 * NODES {
        let node = edge % NODES;
        let spread = draw(3, edge).powi(2);
        let step =
            (spread * (NODES / CLASSES) as f64) as u64 * CLASSES + if draw(2, edge) < 0.85 { 0 } else { 1 + edge % 2 };
        edges += &format!("n{node},n{}\n", (node + step) % NODES);
    }
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("kdgat-graphs.toml"), "task = \"node-class\"\n").unwrap();
    fs::write(folder.join("nodes.csv"), nodes).unwrap();
    fs::write(folder.join("edges.csv"), edges).unwrap();
}

fn place() -> Workplace {
    let place = Workplace::new();
    write_tables(&place.path().join("net"));
    place
}

const SAMPLED: [&str; 14] = [
    "train",
    "--data",
    "net",
    "--preset",
    "sage,teacher",
    "--labels-per-class",
    "200",
    "--validation-per-class",
    "30",
    "--fanouts",
    "5,3",
    "--max-epochs",
    "3",
    "--resume=false",
];

fn train(place: &Workplace, arguments: &[&str]) -> String {
    place.success(&[&SAMPLED[..], arguments].concat())
}

/// `peak_memory_bytes` of each epoch.
fn peaks(run: &Path) -> Vec<u64> {
    let mut reader = csv::Reader::from_path(run.join("metrics.csv")).unwrap();
    let at = reader.headers().unwrap().iter().position(|name| name == "peak_memory_bytes").unwrap();
    reader.records().map(|row| row.unwrap()[at].parse().unwrap()).collect()
}

fn batch_nodes(run: &Path) -> u64 {
    let text = fs::read(run.join("config.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&text).unwrap()["inputs"]["batch_graphs"].as_u64().unwrap()
}

#[test]
fn the_place_of_features_changes_no_loss() {
    let place = place();
    let batches = ["--batch-size", "64", "--node-validation", "sampled", "--run-dir"];
    let said = train(&place, &[&batches[..], &["usual"]].concat());
    assert!(said.contains("validation: sampled neighbours"), "{said}");
    let usual = loss_columns(&place.path().join("usual"));
    let mut run = 0;
    for access in ["mapped", "direct", "resident"] {
        for hot in ["none", "0", "300"] {
            for threads in ["1", "2"] {
                if access == "resident" && hot != "none" {
                    continue;
                }
                run += 1;
                let name = format!("run{run}");
                let place_of = ["--features-from", access, "--num-workers", threads, "--threads", threads];
                let hot_rows: &[&str] = if hot == "none" { &[] } else { &["--hot-rows", hot] };
                let said = train(&place, &[&batches[..], &[&name], &place_of, hot_rows].concat());
                assert_eq!(
                    loss_columns(&place.path().join(&name)),
                    usual,
                    "{access}, {hot} hot rows, {threads} threads"
                );
                match (access, hot) {
                    ("direct", "0") => assert!(said.contains("0.0 % of them from the 0 hot rows"), "{said}"),
                    ("direct" | "mapped", "300") => assert!(said.contains("the 300 most read rows"), "{said}"),
                    ("resident", _) => assert!(said.contains("kept in memory: as configured"), "{said}"),
                    _ => {}
                }
                let log = fs::read_to_string(place.path().join(&name).join("log.txt")).unwrap();
                assert_eq!(log.contains("rows read,"), access == "direct" || hot == "300", "{log}");
            }
        }
    }
}

#[test]
fn mlps_and_clusters_read_features_from_every_place() {
    let place = place();
    let of_clusters = ["--preset", "gcn,teacher", "--clusters", "12", "--clusters-per-batch", "3"];
    let of_nodes = ["--preset", "mlp,student", "--use-kd", "false", "--batch-size", "100"];
    for (kind, arguments) in [("clusters", &of_clusters[..]), ("nodes", &of_nodes)] {
        let losses = |access: &str| {
            let name = format!("{kind}-{access}");
            let common = ["train", "--data", "net", "--max-epochs", "2", "--features-from", access, "--run-dir", &name];
            place.success(&[&common[..], arguments].concat());
            loss_columns(&place.path().join(&name))
        };
        let mapped = losses("mapped");
        assert!(mapped == losses("direct") && mapped == losses("resident"), "{kind}");
    }
}

/// A limit of three quarters of what the batches take: they become smaller, the peak stays below. A resumed run keeps its batches.
#[test]
fn a_limit_is_kept_by_smaller_batches_or_refused() {
    let place = place();
    let wide = ["--node-validation", "sampled", "--hidden", "256", "--batch-size", "600"];
    train(&place, &[&wide[..], &["--run-dir", "free"]].concat());
    let needed = *peaks(&place.path().join("free")).iter().max().unwrap();
    let limit = (needed * 3 / 4).to_string();
    let limited = ["--memory-limit", &limit, "--run-dir", "limited"];
    let said = train(&place, &[&wide[..], &limited].concat());
    let run = place.path().join("limited");
    assert!(batch_nodes(&run) < 600 && batch_nodes(&place.path().join("free")) == 600, "{said}");
    assert!(peaks(&run).iter().all(|&peak| peak <= limit.parse().unwrap()), "{:?} and {limit}", peaks(&run));
    assert!(said.contains(&format!("--optimize-batch-size false --batch-size {}", batch_nodes(&run))), "{said}");

    let fixed = ["--optimize-batch-size", "false", "--memory-limit", "6MiB", "--run-dir", "refused"];
    let said = place.out_of_memory(&[&SAMPLED[..], &wide, &fixed].concat());
    for text in ["of 600 nodes", "the limit is 6.0 MiB", "lower --batch-size to", "activations"] {
        assert!(said.contains(text) || said.contains("not even a small batch"), "{text}: {said}");
    }
    let said = place.out_of_memory(&[&SAMPLED[..], &wide, &["--memory-limit", "300kB"]].concat());
    assert!(said.contains("memory"), "{said}");
}

#[test]
fn flags_that_would_be_ignored_are_refused() {
    let place = place();
    let whole = ["train", "--data", "net", "--preset", "sage,teacher"];
    for (arguments, text) in [
        (&["--features-from", "direct"][..], "each step reads the whole graph from memory"),
        (&["--hot-rows", "5"], "it belongs to sampled neighbours"),
        (&["--node-validation", "sampled"], "it belongs to sampled neighbours"),
        (&["--fanouts", "5,3", "--features-from", "resident", "--hot-rows", "5"], "all features are in memory"),
    ] {
        let said = place.refused(&[&whole[..], arguments].concat());
        assert!(said.contains(text), "{arguments:?}: {said}");
    }
}

fn store(place: &Workplace) -> PathBuf {
    let mut found = fs::read_dir(place.path().join("stores")).unwrap().map(|entry| entry.unwrap().path());
    found.find(|path| path.extension().is_some_and(|ending| ending == "kdgat-nodes")).unwrap()
}

#[test]
fn a_store_that_was_cut_off_is_named() {
    let place = place();
    train(&place, &["--features-from", "direct", "--run-dir", "whole"]);
    let path = store(&place);
    let bytes = fs::metadata(&path).unwrap().len();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes - 8192).unwrap();
    let said = place.refused(&[&SAMPLED[..], &["--features-from", "direct", "--run-dir", "cut"]].concat());
    assert!(said.contains("kdgat-nodes is damaged") && said.contains("bytes of arrays"), "{said}");
}

/// The plan of a stored graph against the measured peak of its training, and a plan without any data.
#[test]
fn a_plan_predicts_the_peak_and_needs_no_data() {
    let place = place();
    let arguments = ["--node-validation", "sampled", "--hidden", "64", "--batch-size", "200"];
    train(&place, &[&arguments[..], &["--run-dir", "run"]].concat());
    let peak = *peaks(&place.path().join("run")).iter().max().unwrap() as f64 / f64::from(1 << 20);
    let of_training = |flag: &&&str| !["train", "--max-epochs", "3", "--resume=false"].contains(*flag);
    let planned: Vec<&str> = SAMPLED.iter().filter(of_training).copied().collect();
    let said = place.success(&[&["memory", "plan"], &planned[..], &arguments].concat());
    let line = said.lines().find(|line| line.starts_with("peak of tensors and arrays")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let expected: f64 = words[words.len() - 2].parse().unwrap();
    // The plan also counts arrays that are no tensors (labels and seeds: 48 kB here).
    assert!((0.97..1.05).contains(&(expected / peak)), "{expected} and {peak} MiB:\n{said}");

    let papers =
        ["--nodes", "111059956", "--edges", "1615685872", "--columns", "128", "--half", "--labelled", "1207179"];
    let model = ["--preset", "sage,teacher", "--fanouts", "5,3", "--hidden", "16", "--batch-size", "256"];
    let said = place.success(&[&["memory", "plan"], &papers[..], &model, &["--memory-limit", "16GB"]].concat());
    for text in ["--features-from direct --hot-rows", "26.48 GiB", "\n   64 GB", "arrays by node"] {
        assert!(said.contains(text), "{text}: {said}");
    }
    let said = place.refused(&["memory", "plan", "--preset", "sage,teacher", "--nodes", "100"]);
    assert!(said.contains("--columns (one large graph)"), "{said}");
}
