//! Pre-training on graphs without their labels, and trainings that begin with it, from the command line.

use std::fs;
use std::path::Path;

use serde_json::Value;
use support::cli::{Workplace, loss_columns};
use support::stops::kill_when;

use super::graph_sources::water;

/// Writes a tree of a stem and two branches. Steps have the length and turns the angle of their branch, so that the way to a point tells where
/// the next one is.
fn write_tree(path: &Path, steps: [f64; 3], turn: f64) {
    let mut text = String::new();
    let mut id = 0;
    let mut branch = |parent: i64, at: [f64; 2], mut angle: f64, step: f64, points: usize| {
        let (mut parent, mut at) = (parent, at);
        for _ in 0..points {
            id += 1;
            text += &format!("{id} 3 {:.4} {:.4} 0 1 {parent}\n", at[0], at[1]);
            parent = id;
            angle += turn;
            at = [at[0] + step * angle.cos(), at[1] + step * angle.sin()];
        }
        (parent, at)
    };
    let (end, at) = branch(-1, [0.0; 2], 0.3, steps[0], 8);
    branch(end, at, 1.5, steps[1], 8);
    branch(end, [at[0], at[1] + 0.5], -1.5, steps[2], 8);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn workplace() -> Workplace {
    let place = Workplace::new();
    for (class, turn) in [("straight", 0.0), ("winding", 0.5)] {
        for tree in 0..15usize {
            let steps = [0, 1, 2].map(|branch| [1.0, 2.5, 5.0][(tree + branch) % 3]);
            write_tree(&place.path().join(format!("trees/{class}/{tree}.swc")), steps, turn);
        }
    }
    place
}

const SMALL: [&str; 12] =
    ["--data", "trees", "--device", "cpu", "--threads", "1", "--hidden", "16", "--layers", "2", "--cutoff", "8"];

/// Arguments of a pre-training into the folder `run`.
fn pretraining<'a>(objective: &'a str, epochs: &'a str, run: &'a str) -> Vec<&'a str> {
    let rest = ["pretrain", "--preset", "sgmp,teacher", "--objective", objective, "--max-epochs", epochs];
    [&rest[..], &["--run-dir", run, "--lr", "0.003", "--dropout", "0"], &SMALL].concat()
}

/// Metrics of the only run and of its baseline in the evaluation of a run.
fn evaluated(place: &Workplace, run: &str) -> (String, Value, Value) {
    let told = place.success(&["evaluate", run, "--data", "trees", "--output", "evaluated", "--resamples", "20"]);
    let text = fs::read_to_string(place.path().join("evaluated/graph_metrics.json")).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    (told, found["models"][0]["metrics"].clone(), found["models"][0]["baseline"].clone())
}

fn value(metrics: &Value, name: &str) -> f64 {
    let all = metrics.as_array().unwrap();
    all.iter().find(|metric| metric["name"] == name).unwrap_or_else(|| panic!("{name} in {metrics}"))["value"]
        .as_f64()
        .unwrap()
}

#[test]
fn growth_and_order_of_held_out_trees_are_learned_and_begin_a_training() {
    let place = workplace();
    let said = place.success(&pretraining("gt-ssl", "40", "grown"));
    assert!(said.contains("ordered") && !said.contains("registered as the teacher"), "{said}");
    let (told, model, constant) = evaluated(&place, "grown");
    assert!(!told.contains("(transductive)"), "{told}");
    // Lengths and turns persist along a branch; turns of the two classes are learned more slowly than lengths.
    for (name, share) in [("growth distance EMD", 0.8), ("growth angle EMD", 1.0), ("unrelated hinge", 0.8)] {
        assert!(value(&model, name) < share * value(&constant, name), "{name}: {model} {constant}");
    }
    let said = place.success(&["report", "evaluated"]);
    let page = fs::read_to_string(place.path().join("evaluated/report.html"))
        .unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(page.contains("Growth of a test tree by grown: mean error"), "{said}");
    assert!(value(&model, "order") > 0.9 && value(&constant, "order") == 0.5, "{model}");

    let train = ["train", "--preset", "sgmp,student", "--use-kd", "false", "--max-epochs", "2", "--run-dir", "begun"];
    let begun = [&train[..], &["--init-from", "grown"], &SMALL].concat();
    let said = place.success(&begun);
    // Two layers of the embedding, and twice three encodings and three layers of paths; the head is new.
    assert!(
        said.contains("initial weights: 40 tensors of grown") && said.contains("new: head.lins.0.weight"),
        "{said}"
    );
    let said = place.refused(&[&begun[..], &["--fold", "1", "--run-dir", "other"]].concat());
    assert!(said.contains("may have seen what this run tests on"), "{said}");

    // A pre-trained network is no teacher.
    let taught = ["train", "--preset", "sgmp,student", "--teacher-path", "grown", "--max-epochs", "1"];
    let said = place.refused(&[&taught[..], &SMALL].concat());
    assert!(said.contains("pre-trained alone"), "{said}");
}

#[test]
fn a_killed_pre_training_is_resumed_exactly() {
    let place = workplace();
    for objective in ["masked", "gt-ssl"] {
        let (whole, killed) = (format!("{objective}-whole"), format!("{objective}-killed"));
        place.success(&pretraining(objective, "60", &whole));
        let metrics = place.path().join(&killed).join("metrics.csv");
        let done = || fs::read_to_string(&metrics).map_or(0, |text| text.lines().count());
        let resumed = [&pretraining(objective, "60", &killed)[..], &["--resume"]].concat();
        kill_when(place.command(&resumed), "the end of epoch 3", || done() > 3);
        place.success(&resumed);
        let [one, other] = [&whole, &killed].map(|run| loss_columns(&place.path().join(run)));
        assert_eq!(one, other, "{objective}");
        let best = |run: &str| fs::read(place.path().join(run).join("best.safetensors")).unwrap();
        assert!(best(&whole) == best(&killed), "{objective}: the best model differs");
    }
    let other = [&pretraining("gt-ssl", "60", "masked-killed")[..], &["--resume"]].concat();
    let said = place.refused(&other);
    assert!(said.contains("objective"), "{said}");
}

/// Targets are not read: several of them, and forces, are no obstacle to a network that could learn neither.
#[test]
fn molecules_with_several_targets_are_pre_trained_on() {
    let place = Workplace::new();
    fs::create_dir(place.path().join("water")).unwrap();
    fs::write(place.path().join("water/known.xyz"), water(30)).unwrap();
    fs::write(place.path().join("water/kdgat-graphs.toml"), "targets = [\"dipole\", \"Energy\"]\n").unwrap();
    let common = ["--data", "water", "--device", "cpu", "--threads", "1", "--hidden", "8", "--max-epochs", "1"];
    let said = place.refused(&[&["train", "--preset", "painn,student"][..], &common].concat());
    assert!(said.contains("forces are the gradient of one value"), "{said}");
    let run = ["pretrain", "--preset", "painn,student", "--run-dir", "masked"];
    place.success(&[&run[..], &common].concat());
    let begun =
        ["train", "--preset", "painn,student", "--use-kd", "false", "--force-weight", "0", "--init-from", "masked"];
    let said = place.success(&[&begun[..], &common].concat());
    assert!(said.contains("initial weights:"), "{said}");
}

#[test]
fn pre_training_with_the_test_trees_is_marked() {
    let place = workplace();
    place.success(&[&pretraining("gt-ssl", "1", "seen")[..], &["--transductive"]].concat());
    assert!(evaluated(&place, "seen").0.contains("(transductive)"));
    let begun = ["train", "--preset", "sgmp,teacher", "--max-epochs", "1", "--run-dir", "begun", "--init-from", "seen"];
    let begun = [&begun[..], &SMALL].concat();
    let said = place.refused(&begun);
    assert!(said.contains("itself began with weights that may have seen its test items"), "{said}");
    place.success(&[&begun[..], &["--transductive"]].concat());
    let (told, ..) = evaluated(&place, "begun");
    assert!(told.contains("(transductive): learned from these test graphs without their labels"), "{told}");
}

/// Every kind of network learns to predict hidden features of graphs that have positions and a category of nodes.
#[test]
fn masked_features_are_predicted_by_every_network() {
    let place = Workplace::new();
    let folder = place.path().join("trees");
    fs::create_dir(&folder).unwrap();
    let (mut graphs, mut nodes, mut edges) =
        ("graph_id,y\n".to_owned(), "graph_id,node_id,x_load,c_kind,pos_x,pos_y,pos_z\n".to_owned(), String::new());
    edges += "graph_id,source,target\n";
    for graph in 0..40 {
        graphs += &format!("{graph},{}\n", if graph % 2 == 0 { "even" } else { "odd" });
        for node in 0..6 {
            // Neighbours tell a node's features: kinds alternate, and loads are those of the graph.
            let kind = if node % 2 == 0 { "a" } else { "b" };
            nodes += &format!("{graph},n{node},{},{kind},{}.5,{},{}\n", graph % 5, node, node % 2, graph % 3);
            edges += &format!("{graph},n{node},n{}\n", (node + 1) % 6);
        }
    }
    fs::write(folder.join("graphs.csv"), graphs).unwrap();
    fs::write(folder.join("nodes.csv"), nodes).unwrap();
    fs::write(folder.join("edges.csv"), edges).unwrap();
    fs::write(folder.join("kdgat-graphs.toml"), "directed = false\n").unwrap();
    let common =
        ["--data", "trees", "--device", "cpu", "--threads", "1", "--hidden", "8", "--lr", "0.01", "--dropout", "0"];
    for model in ["gin", "gcn", "sage", "gat", "mlp", "schnet", "painn", "irreps", "sgmp"] {
        let preset = format!("{model},student");
        let epochs = if model == "gin" { "100" } else { "2" };
        // Networks in space have no dropout, and representations say how wide they are.
        let common = match model {
            "schnet" | "painn" => common[..10].to_vec(),
            "irreps" => [&common[..6], &["--irreps", "6x0e + 3x1o", "--lr", "0.01"]].concat(),
            _ => common.to_vec(),
        };
        let run = ["pretrain", "--preset", &preset, "--run-dir", model, "--max-epochs", epochs, "--mask-share", "0.3"];
        // Batch norm over a single graph would hide what its nodes have in common.
        let batches = ["--optimize-batch-size", "false", "--batch-size", "8"];
        place.success(&[&run[..], &common, &batches].concat());
    }
    let (_, model, constant) = evaluated(&place, "gin");
    for name in ["features MSE", "categories CE"] {
        assert!(value(&model, name) < 0.5 * value(&constant, name), "{name}: {model} {constant}");
    }
    let said = place.refused(&["pretrain", "--preset", "gin,student", "--objective", "gt-ssl", "--data", "trees"]);
    assert!(said.contains("a gin does not read") && said.contains("--preset sgmp,teacher"), "{said}");
    let said = place.refused(&["pretrain", "--preset", "sgmp,student", "--objective", "gt-ssl", "--data", "trees"]);
    assert!(said.contains("needs rooted trees"), "{said}");
    let said = place.refused(&["pretrain", "--preset", "gin,student", "--data", "trees", "--kd-alpha", "0.5"]);
    assert!(said.contains("pre-training has no teacher"), "{said}");
    let said = place.refused(&["train", "--preset", "gin,student", "--data", "trees", "--objective", "masked"]);
    assert!(said.contains("only `kdgat pretrain` reads it"), "{said}");
}
