//! Training on the nodes of one large graph, through the command line: a teacher with neighbours, a student without, evaluation, resuming,
//! and input that is refused.

use std::fs;
use std::path::Path;
use std::time::Instant;

use kdgat::random;
use serde_json::Value;
use support::cli::{Workplace, loss_columns, said};
use support::stops::KillLoop;

const NODES: u64 = 240;
const CLASSES: u64 = 3;

/// A graph as tables: edges mostly within classes, and features that say little about the class.
fn write_tables(folder: &Path) {
    let draw = |purpose: u64, index: u64| random::to_unit(random::mix(random::mix(purpose) ^ index));
    let mut nodes = String::from("node_id,y");
    (0..8).for_each(|feature| nodes += &format!(",x_{feature}"));
    nodes += "\n";
    for node in 0..NODES {
        nodes += &format!("n{node},class{}", node % CLASSES);
        for feature in 0..8 {
            let shift = if feature == node % CLASSES { 0.35 } else { 0.0 };
            nodes += &format!(",{:.3}", draw(1, node * 8 + feature) + shift);
        }
        nodes += "\n";
    }
    let mut edges = String::from("source,target\n");
    for edge in 0..4 * NODES {
        let node = edge % NODES;
        let within = draw(2, edge) < 0.85;
        let step = (draw(3, edge) * (NODES / CLASSES) as f64) as u64 * CLASSES + if within { 0 } else { 1 + edge % 2 };
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

const COMMON: [&str; 8] =
    ["--data", "net", "--labels-per-class", "8", "--validation-per-class", "15", "--threads", "1"];

fn train(place: &Workplace, arguments: &[&str]) -> String {
    place.success(&[&["train"], &COMMON[..], arguments].concat())
}

fn refused(place: &Workplace, arguments: &[&str], text: &str) {
    let said = place.refused(&[&["train"], &COMMON[..], arguments].concat());
    assert!(said.contains(text), "{arguments:?}: {said}");
}

fn accuracy(metrics: &Value, group: &str) -> f64 {
    let groups = metrics["groups"].as_array().unwrap();
    let found = groups.iter().find(|found| found["group"] == group).unwrap_or_else(|| panic!("{group}: {groups:?}"));
    found["metrics"]["accuracy"]["mean"].as_f64().unwrap()
}

#[test]
fn a_student_without_neighbours_learns_from_a_teacher_with_them() {
    let place = place();
    let first = train(&place, &["--preset", "sage,teacher"]);
    assert!(first.contains("built the store of net: 240 nodes"), "{first}");
    assert!(first.contains("registered as the teacher of net"), "{first}");
    let distilled = train(&place, &["--preset", "mlp,student", "--offload-teacher"]);
    assert!(distilled.contains("240 training nodes (24 with labels)"), "{distilled}");
    // The teacher computes all nodes once; every later target comes from the cache.
    assert!(distilled.contains("1 visits"), "{distilled}");
    train(&place, &["--preset", "mlp,student", "--use-kd", "false"]);
    let table = place.success(&["evaluate", "--data", "net"]);
    assert!(table.contains("label propagation"), "{table}");
    let text = fs::read(place.path().join("runs/net/evaluation/graph_metrics.json")).unwrap();
    let metrics: Value = serde_json::from_slice(&text).unwrap();
    let [teacher, taught, alone] =
        ["sage_teacher_train", "mlp_student_train_kd", "mlp_student_train"].map(|group| accuracy(&metrics, group));
    assert!(teacher > alone + 0.05 && taught > alone + 0.03, "teacher {teacher}, taught {taught}, alone {alone}");
    assert!(metrics["baseline"]["accuracy"]["mean"].as_f64().unwrap() < 0.4);
    let checked = place.success(&["data", "check", "--data", "net"]);
    assert!(checked.contains("classes   3 (nodes of each: 80, 80, 80)"), "{checked}");
}

/// The place of the teacher's weights and the cache of its outputs change no number.
#[test]
fn residency_and_cache_change_no_loss() {
    let place = place();
    train(&place, &["--preset", "gat,teacher", "--max-epochs", "5", "--output-heads", "2"]);
    let student = ["--preset", "mlp,student", "--max-epochs", "4", "--run-dir"];
    let variants: [&[&str]; 4] = [
        &["resident"],
        &["forward", "--offload-teacher"],
        &["layer", "--teacher-residency", "layer", "--teacher-layer-slots", "1"],
        &["uncached", "--offload-teacher", "--use-teacher-cache", "false"],
    ];
    for variant in variants {
        train(&place, &[&student, variant].concat());
        assert_eq!(
            loss_columns(&place.path().join(variant[0])),
            loss_columns(&place.path().join("resident")),
            "{variant:?}"
        );
    }
}

/// Several teachers, shares of classes and smoothing change the targets; the place of the weights and the cache change nothing.
#[test]
fn targets_of_several_teachers_are_averaged_corrected_and_smoothed() {
    let place = place();
    train(&place, &["--preset", "gat,teacher", "--max-epochs", "5", "--run-dir", "gat"]);
    let other = ["--preset", "appnp,teacher", "--position-columns", "6", "--max-epochs", "5", "--run-dir", "appnp"];
    train(&place, &[&other[..], &["--seed", "7", "--split-seed", "42"]].concat());
    let student = ["--preset", "mlp,student", "--max-epochs", "4", "--teacher-path", "gat"];
    let losses = |name: &str, arguments: &[&str]| {
        train(&place, &[&student, arguments, &["--run-dir", name]].concat());
        loss_columns(&place.path().join(name))
    };
    let both = ["--more-teachers", "appnp"];
    let smoothed = ["--more-teachers", "appnp", "--kd-smoothing-steps", "5", "--kd-smoothing-teleport", "0.2"];
    let variants: [&[&str]; 4] = [
        &["--offload-teacher"],
        &["--teacher-residency", "layer", "--teacher-layer-slots", "1"],
        &["--offload-teacher", "--use-teacher-cache", "false"],
        &["--teacher-cache", "disk"],
    ];
    let expected = losses("resident", &smoothed);
    for (index, variant) in variants.iter().enumerate() {
        assert_eq!(losses(&format!("variant-{index}"), &[&smoothed[..], variant].concat()), expected, "{variant:?}");
    }
    let shares = losses("gat-shares", &["--kd-class-shares"]);
    let less =
        [losses("both", &both), losses("gat-smoothed", &smoothed[2..]), losses("gat-alone", &[]), shares.clone()];
    for (index, other) in less.iter().enumerate() {
        assert!(*other != expected && less[..index].iter().all(|before| before != other), "number {index}");
    }
    let steeper = losses("teleport", &[&smoothed[..4], &["--kd-smoothing-teleport", "0.5"]].concat());
    assert_ne!(steeper, expected);

    // Computed before the training.
    let before = [&student[..2], &student[4..], &smoothed, &["--teacher-cache-dir", "before"]].concat();
    let said = place.success(&[&["teachers", "cache"], &COMMON[..], &before].concat());
    assert!(said.contains("complete: targets of 240 nodes") || said.contains("240 computed now"), "{said}");
    let cached = ["--teacher-cache", "disk", "--teacher-cache-dir", "before"];
    assert_eq!(losses("cached", &[&smoothed[..], &cached].concat()), expected);
    let offloaded = ["--kd-class-shares", "--offload-teacher", "--use-teacher-cache", "false"];
    assert_eq!(losses("gat-shares-offloaded", &offloaded), shares);
    assert_eq!(losses("gat-shares-cached", &[&["--kd-class-shares"], &cached[..]].concat()), shares);
    assert_eq!(losses("gat-shares-again", &[&["--kd-class-shares"], &cached[..]].concat()), shares);

    refused(&place, &[&student[..], &["--more-teachers", "nowhere"]].concat(), "nowhere");
    train(&place, &["--preset", "sage,teacher", "--max-epochs", "2", "--seed", "7", "--run-dir", "elsewhere"]);
    refused(&place, &[&student[..], &["--more-teachers", "elsewhere"]].concat(), "or name one with --more-teachers");
    refused(&place, &[&student[..], &["--kd-smoothing-teleport", "0.2"]].concat(), "the targets are not smoothed");
    let sampled = ["--kd-smoothing-steps", "3", "--teacher-fanouts", "5,5"];
    refused(&place, &[&student[..], &sampled].concat(), "targets from sampled neighbours are those of one teacher");
    let sampled = ["--kd-class-shares", "--teacher-fanouts", "5,5"];
    refused(&place, &[&student[..], &sampled].concat(), "targets from sampled neighbours are those of one teacher");
    for change in [&["--kd-smoothing-steps", "3"][..], &["--kd-class-shares"]] {
        let alone = [&["--preset", "mlp,student", "--use-kd", "false"], change].concat();
        refused(&place, &alone, "nothing is distilled while use_kd is false");
    }
}

/// Consistency reads nodes without labels, and its masks depend on the seed, the step and the view alone.
#[test]
fn consistency_draws_the_outputs_under_several_masks_together() {
    let place = place();
    let epochs = ["--preset", "appnp,teacher", "--max-epochs", "6", "--run-dir"];
    let consistent = |name: &str, arguments: &[&str]| {
        train(&place, &[&epochs[..], &[name, "--consistency-weight", "1"], arguments].concat());
        loss_columns(&place.path().join(name))
    };
    let said = train(&place, &[&epochs[..], &["alone"]].concat());
    assert!(said.contains("24 training nodes (24 with labels)"), "{said}");
    let alone = loss_columns(&place.path().join("alone"));
    let two = consistent("two", &[]);
    let header = fs::read_to_string(place.path().join("two/metrics.csv")).unwrap();
    assert!(header.lines().next().unwrap().contains("consistency_loss"), "{header}");
    let text = fs::read_to_string(place.path().join("two/log.txt")).unwrap();
    assert!(text.contains("240 training nodes (24 with labels)"), "{text}");
    assert_eq!(consistent("again", &[]), two);
    let others = [
        alone,
        consistent("three", &["--consistency-views", "3"]),
        consistent("warm", &["--consistency-temperature", "0.9"]),
        consistent("sampled", &["--fanouts", "3,3,2,2,2,2,2,2,2,2", "--batch-size", "100"]),
    ];
    others.iter().for_each(|other| assert_ne!(*other, two));
    // A student may have it beside its teacher's targets.
    let student = ["--preset", "mlp,student", "--max-epochs", "3", "--teacher-path", "two"];
    train(&place, &[&student[..], &["--consistency-weight", "1", "--run-dir", "student"]].concat());

    let none = ["--preset", "mlp,student", "--dropout", "0", "--use-kd", "false", "--consistency-weight", "1"];
    refused(&place, &none, "there is no dropout");
    refused(&place, &["--preset", "sage,teacher", "--consistency-views", "3"], "there is no consistency loss");
}

/// The weight of the distillation moves to its last value by epoch.
#[test]
fn the_weight_of_the_distillation_changes_by_epoch() {
    let place = place();
    train(&place, &["--preset", "sage,teacher", "--max-epochs", "5"]);
    let student = ["--preset", "mlp,student", "--max-epochs", "4", "--kd-alpha", "0.8", "--dropout", "0", "--run-dir"];
    let losses = |name: &str, arguments: &[&str]| {
        train(&place, &[&student[..], &[name], arguments].concat());
        loss_columns(&place.path().join(name))
    };
    let constant = losses("constant", &[]);
    assert_eq!(losses("same", &["--kd-alpha-end", "0.8"]), constant);
    let falling = losses("falling", &["--kd-alpha-end", "0.2"]);
    assert_ne!(falling, constant);
    // Each epoch's loss is the mixture of its parts, which are logged: that of training moves, that of validation stays.
    let weights = |run: &str, prefix: &str, total: &str| -> Vec<f64> {
        let text = fs::read_to_string(place.path().join(run).join("metrics.csv")).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let header = reader.headers().unwrap().clone();
        let at = |name: &str| header.iter().position(|found| found == name).unwrap();
        let columns = [at(total), at(&format!("{prefix}task_loss")), at(&format!("{prefix}kd_loss"))];
        let weight = |row: csv::StringRecord| {
            let [total, task, kd] = columns.map(|column| row[column].parse::<f64>().unwrap());
            (total - task) / (kd - task)
        };
        reader.records().map(|row| weight(row.unwrap())).collect()
    };
    let close = |found: &[f64], expected: [f64; 4]| {
        assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-3), "{found:?}");
    };
    close(&weights("falling", "", "train_loss"), [0.8, 0.6, 0.4, 0.2]);
    close(&weights("falling", "val_", "val_loss"), [0.2; 4]);
    close(&weights("constant", "val_", "val_loss"), [0.8; 4]);
    let rising = ["--kd-alpha", "0", "--kd-alpha-end", "0.6"];
    losses("rising", &rising);
    close(&weights("rising", "", "train_loss"), [0.0, 0.2, 0.4, 0.6]);
    refused(&place, &["--preset", "mlp,student", "--kd-alpha", "0", "--kd-alpha-end", "0"], "ignore its outputs");
    refused(&place, &["--preset", "mlp,student", "--use-kd", "false", "--kd-alpha-end", "0"], "use_kd is false");
}

/// Samples depend on the seed, the epoch, the hop and the node alone.
#[test]
fn samples_do_not_depend_on_the_number_of_workers() {
    let place = place();
    let sampled = ["--preset", "sage,teacher", "--fanouts", "3,2", "--batch-size", "7", "--max-epochs", "4"];
    let run = |name: &str, workers: &str| {
        train(&place, &[&sampled[..], &["--run-dir", name, "--num-workers", workers]].concat());
        loss_columns(&place.path().join(name))
    };
    assert_eq!(run("one", "1"), run("three", "3"));
    let clusters = ["--preset", "gcn,teacher", "--clusters", "6", "--clusters-per-batch", "2", "--max-epochs", "3"];
    let run = |name: &str| {
        train(&place, &[&clusters[..], &["--run-dir", name]].concat());
        loss_columns(&place.path().join(name))
    };
    assert_eq!(run("first"), run("second"));
}

/// A random division depends on the number of labelled nodes and the seed alone: rows in another order put nodes that a teacher was trained on
/// into the test set. Options of reading change no node.
#[test]
fn a_teacher_of_data_that_changed_is_refused_and_one_of_other_options_is_not() {
    let place = place();
    let random = ["train", "--data", "net", "--threads", "1", "--max-epochs", "1", "--node-split", "random"];
    let with = |arguments: &[&'static str]| [&random[..], arguments].concat();
    let student = |options: &[&'static str]| {
        with(&[&["--preset", "mlp,student", "--largest-component", "false"], options].concat())
    };
    place.success(&with(&["--preset", "sage,teacher", "--largest-component", "false"]));
    for options in [&["--row-normalized", "true"][..], &["--half-features", "true"], &["--undirected", "false"], &[]] {
        place.success(&student(options));
    }
    let path = place.path().join("net/nodes.csv");
    let sound = fs::read_to_string(&path).unwrap();
    let mut rows: Vec<&str> = sound.lines().collect();
    rows[1..].reverse();
    fs::write(&path, rows.join("\n") + "\n").unwrap();
    let said = place.refused(&student(&[]));
    assert!(said.contains("was trained on other data with the same division of the nodes"), "{said}");
    assert!(
        said.contains("train one with kdgat train --preset sage,teacher --data net --largest-component false"),
        "{said}"
    );
    // The same rows with other labels.
    fs::write(&path, sound.replace("class1", "moved").replace("class2", "class1").replace("moved", "class2")).unwrap();
    let said = place.refused(&student(&[]));
    assert!(said.contains("the identifiers, targets or rows of the test nodes were others"), "{said}");
    fs::write(&path, &sound).unwrap();
    place.success(&student(&[]));
}

#[test]
fn predictions_name_nodes_and_options_of_windows_are_refused() {
    let place = place();
    let quick = ["--preset", "mlp,student", "--use-kd", "false", "--max-epochs", "2", "--hidden-fraction", "0.2"];
    train(&place, &[&quick[..], &["--run-dir", "one"]].concat());
    place.success(&["evaluate", "one", "--data", "net", "--resamples", "0", "--predictions", "rows.csv"]);
    let rows: Vec<std::collections::HashMap<String, String>> =
        csv::Reader::from_path(place.path().join("rows.csv")).unwrap().deserialize().map(Result::unwrap).collect();
    assert_eq!((rows.len(), rows.iter().filter(|row| row["hidden"] == "1").count()), (171, 34));
    let nodes = fs::read_to_string(place.path().join("net/nodes.csv")).unwrap();
    for row in &rows {
        assert!(nodes.contains(&format!("\n{},{},", row["node"], row["target"])), "{row:?}");
        let of_class = |class: &str| row[&format!("probability_{class}")].parse::<f64>().unwrap();
        let classes = ["class0", "class1", "class2"];
        assert!((classes.iter().map(|class| of_class(class)).sum::<f64>() - 1.0).abs() < 1e-6, "{row:?}");
        assert!(classes.iter().all(|class| of_class(class) <= of_class(&row["predicted"])), "{row:?}");
    }
    let right = rows.iter().filter(|row| row["target"] == row["predicted"]).count() as f64 / 171.0;
    let text = fs::read(place.path().join("runs/net/evaluation/graph_metrics.json")).unwrap();
    let metrics: Value = serde_json::from_slice(&text).unwrap();
    assert!((metrics["models"][0]["metrics"][0]["value"].as_f64().unwrap() - right).abs() < 1e-9);
    for ignored in
        [&["--calibrate-seconds", "5"][..], &["--calibrate-from", "a/b.csv"], &["--rules"], &["--threshold", "youden"]]
    {
        let said = place.refused(&[&["evaluate", "one", "--data", "net"], ignored].concat());
        assert!(said.contains(ignored[0]) && said.contains("would be ignored"), "{said}");
    }
}

/// Each run is scored on the graph as its training read it, without options, also if the dataset has a name of its own.
#[test]
fn an_evaluation_reads_the_graph_with_the_options_of_each_run() {
    let place = place();
    fs::write(place.path().join("net/kdgat-graphs.toml"), "task = \"node-class\"\nname = \"friends\"\n").unwrap();
    let quick = ["--preset", "mlp,student", "--use-kd", "false", "--max-epochs", "2"];
    let read = [
        &[][..],
        &["--undirected", "false", "--row-normalized"],
        &["--largest-component", "false"],
        &["--half-features"],
    ];
    for options in read {
        train(&place, &[&quick[..], options].concat());
    }
    place.success(&["evaluate", "--data", "net", "--resamples", "0", "--predictions", "rows.csv"]);
    let text = fs::read(place.path().join("runs/friends/evaluation/graph_metrics.json")).unwrap();
    let metrics: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(metrics["models"].as_array().unwrap().len(), read.len());
    let rows = fs::read_to_string(place.path().join("rows.csv")).unwrap();
    assert_eq!(rows.lines().count(), 1 + 4 * 171, "each run has the same test nodes");
    for option in ["--undirected", "--largest-component", "--row-normalized", "--half-features"] {
        let said = place.refused(&["evaluate", "--data", "net", option, "true"]);
        assert!(said.contains(&format!("{option} would be ignored")), "{said}");
    }
}

/// Runs of two split seeds have equal settings, but other test nodes.
#[test]
fn students_on_other_test_nodes_are_not_compared() {
    let place = place();
    let quick = ["--max-epochs", "2", "--split-seed", "3"];
    train(&place, &[&["--preset", "sage,teacher"], &quick[..]].concat());
    train(&place, &[&["--preset", "mlp,student", "--run-dir", "taught"], &quick[..]].concat());
    train(&place, &["--preset", "mlp,student", "--use-kd", "false", "--run-dir", "alone", "--max-epochs", "2"]);
    let said = place.success(&["evaluate", "taught", "alone", "--data", "net", "--resamples", "0"]);
    assert!(
        said.contains("not compared: taught and alone have equal settings, fold and seed, but other test nodes"),
        "{said}"
    );
    assert!(!said.contains("student with teacher − student alone"), "{said}");
}

#[test]
fn hidden_nodes_appear_in_the_evaluation() {
    let place = place();
    let hidden = ["--hidden-fraction", "0.2"];
    let said = train(&place, &[&["--preset", "appnp,teacher", "--max-epochs", "20"], &hidden[..]].concat());
    assert!(said.contains("34 hidden"), "a fifth of 171 test nodes: {said}");
    let distilled = train(&place, &[&["--preset", "mlp,student", "--offload-teacher"], &hidden[..]].concat());
    assert!(distilled.contains("206 training nodes"), "{distilled}");
    refused(&place, &["--preset", "mlp,student"], "was trained on another division of the nodes");
    let table = place.success(&["evaluate", "--data", "net"]);
    assert!(table.contains("accuracy_visible") && table.contains("accuracy_hidden"), "{table}");
    assert!(!table.contains("accuracy_from_validation"), "{table}");
    train(&place, &[&["--preset", "mlp,student", "--kd-class-shares"], &hidden[..]].concat());
    let table = place.success(&["evaluate", "--data", "net"]);
    assert!(table.contains("accuracy_from_validation") && table.contains("kd_class_shares"), "{table}");
}

/// Two communities whose features say nothing: only positions tell a network without neighbours where a node is.
#[test]
fn positions_tell_a_student_without_neighbours_where_a_node_is() {
    let place = place();
    let student = ["--preset", "mlp,student", "--use-kd", "false", "--position-columns", "32"];
    let said = train(&place, &student);
    train(&place, &["--preset", "mlp,student", "--use-kd", "false"]);
    // Positions make another model, which the evaluation keeps apart.
    let table = place.success(&["evaluate", "--data", "net"]);
    assert!(table.contains("mlp_student_train (position_columns 32)"), "{table}");
    let text = fs::read(place.path().join("runs/net/evaluation/graph_metrics.json")).unwrap();
    let metrics: Value = serde_json::from_slice(&text).unwrap();
    let [with, without] = ["mlp_student_train (position_columns 32)", "mlp_student_train (position_columns 0)"]
        .map(|group| accuracy(&metrics, group));
    assert!(with > without + 0.1, "with {with}, without {without}; {said}");
    // A teacher without positions, hidden nodes, and a teacher with them.
    let hidden = ["--hidden-fraction", "0.2"];
    train(&place, &[&["--preset", "sage,teacher"], &hidden[..]].concat());
    let taught = ["--preset", "mlp,student", "--offload-teacher", "--position-columns", "8"];
    train(&place, &[&taught[..], &hidden].concat());
    let positioned = ["--preset", "gcn,teacher", "--position-columns", "5", "--max-epochs", "5"];
    train(&place, &[&positioned[..], &hidden].concat());
    let narrow = ["--preset", "mlp,student", "--offload-teacher", "--run-dir", "narrow"];
    train(&place, &[&narrow[..], &hidden].concat());
    let table = place.success(&["evaluate", "--data", "net"]);
    assert!(table.contains("accuracy_hidden"), "{table}");
}

#[test]
fn a_killed_run_resumes_to_the_same_losses() {
    let place = place();
    train(&place, &["--preset", "sage,teacher", "--max-epochs", "10"]);
    let student = |folder: &'static str| {
        let arguments =
            ["--preset", "mlp,student", "--offload-teacher", "--batch-size", "32", "--max-epochs", "60", "--patience"];
        [&["train"], &COMMON[..], &arguments, &["60", "--run-dir", folder, "--resume"]].concat()
    };
    let start = Instant::now();
    place.success(&student("whole"));
    let whole_time = start.elapsed();
    let kills = KillLoop { whole: whole_time, first_share: 0.3, growth: 0.07, takes_children: None };
    let kills = kills.run(|| place.command(&student("killed")));
    assert!(kills >= 1, "the run was never killed");
    assert_eq!(loss_columns(&place.path().join("killed")), loss_columns(&place.path().join("whole")));
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    let place = place();
    refused(&place, &["--preset", "gin,teacher"], "a gin does not classify the nodes of one graph");
    refused(
        &place,
        &["--preset", "sage,teacher", "--fanouts", "5"],
        "--fanouts has 1 numbers, but the model has 2 layers",
    );
    refused(&place, &["--preset", "mlp,student", "--use-kd", "false", "--fanouts", "5"], "an mlp reads no neighbours");
    refused(&place, &["--preset", "sage,teacher", "--fold", "1"], "the data is one large graph");
    let given = place.refused(&["train", "--data", "net", "--preset", "sage,teacher", "--node-split", "given"]);
    assert!(given.contains("has no split of its own"), "{given}");
    let command = "kdgat train --preset sage,teacher --data net --labels-per-class 8 --validation-per-class 15";
    refused(&place, &["--preset", "mlp,student"], command);
    refused(&place, &["--preset", "mlp,student", "--kd-loss", "dkd"], "kd_loss = \"dkd\" needs the class of each node");
    train(&place, &["--preset", "sage,teacher", "--max-epochs", "2", "--seed", "7"]);
    refused(&place, &["--preset", "mlp,student"], "was trained on another division of the nodes");
    let many_graphs = place.refused(&["autoencoder", "--preset", "vgae,student", "--data", "net"]);
    assert!(many_graphs.contains("one large graph; train on it with `kdgat train`"), "{many_graphs}");

    let nodes = place.path().join("net/nodes.csv");
    let sound = fs::read_to_string(&nodes).unwrap();
    fs::write(&nodes, sound.replacen("n5,class2,", "n5,class2,nan", 1)).unwrap();
    let output = place.run(&["train", "--data", "net", "--preset", "sage,teacher"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("nodes.csv, line 7"), "{}", said(&output));
}

/// A damaged store is named, and not used.
#[test]
fn a_damaged_store_is_named() {
    let place = place();
    train(&place, &["--preset", "sage,teacher", "--max-epochs", "2"]);
    let store = fs::read_dir(place.path().join("stores")).unwrap().map(|entry| entry.unwrap().path());
    let store = store.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "kdgat-nodes")).unwrap();
    let mut bytes = fs::read(&store).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&store, bytes).unwrap();
    refused(&place, &["--preset", "sage,teacher", "--max-epochs", "2"], "is damaged");
}
