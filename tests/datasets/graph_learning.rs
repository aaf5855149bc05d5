//! Learning on datasets of graphs: edge features, a teacher's outputs from a file, batches by nodes and edges, the monitored metric, sweeps.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use support::cli::Workplace;
use support::stops::kill_when;

/// Numbers that look random.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A chain of nodes with equal features, whose bonds have a feature of 0 or 1. The class of a graph says whether more than half of its
/// bonds are ones: only edges tell.
struct Chain {
    bonds: Vec<u64>,
}

fn chains(graphs: usize) -> Vec<Chain> {
    let mut draw = Draw(7);
    let mut chain = || {
        let count = 3 + draw.below(5);
        Chain { bonds: (0..count).map(|_| draw.below(2)).collect() }
    };
    (0..graphs).map(|_| chain()).collect()
}

fn write_chains(folder: &Path, chains: &[Chain]) {
    let mut of_graphs = "graph_id,y,split\n".to_owned();
    let mut nodes = "graph_id,node_id,x_one\n".to_owned();
    let mut edges = "graph_id,source,target,e_kind\n".to_owned();
    for (graph, Chain { bonds }) in chains.iter().enumerate() {
        let class = if 2 * bonds.iter().sum::<u64>() > bonds.len() as u64 { "more" } else { "less" };
        let split = ["train", "train", "train", "validation", "test"][graph % 5];
        of_graphs += &format!("g{graph},{class},{split}\n");
        nodes += &format!("g{graph},0,1\n");
        for (bond, kind) in bonds.iter().enumerate() {
            nodes += &format!("g{graph},{},1\n", bond + 1);
            edges += &format!("g{graph},{bond},{},{kind}\n", bond + 1);
        }
    }
    fs::create_dir_all(folder).unwrap();
    let settings = "directed = false\n".to_owned();
    let files =
        [("graphs.csv", of_graphs), ("nodes.csv", nodes), ("edges.csv", edges), ("kdgat-graphs.toml", settings)];
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
}

/// A workplace with the dataset `chains`.
fn workplace(graphs: usize) -> (Workplace, Vec<Chain>) {
    let place = Workplace::new();
    let chains = chains(graphs);
    write_chains(&place.path().join("chains"), &chains);
    (place, chains)
}

/// Trains a small model; returns what the program says.
fn train(place: &Workplace, preset: &str, epochs: &str, more: &[&str]) -> String {
    place.success(&[&arguments(preset, epochs)[..], more].concat())
}

fn arguments<'a>(preset: &'a str, epochs: &'a str) -> Vec<&'a str> {
    let common =
        ["train", "--data", "chains", "--preset", preset, "--hidden", "16", "--layers", "2", "--max-epochs", epochs];
    [&common[..], &["--device", "cpu", "--threads", "1", "--batch-size", "32", "--lr", "0.01"]].concat()
}

/// Rows of the evaluation's table, by model and metric.
fn evaluated(place: &Workplace) -> HashMap<(String, String), f64> {
    place.success(&["evaluate", "--data", "chains", "--device", "cpu", "--resamples", "0"]);
    let path = place.path().join("runs/chains/evaluation/graph_metrics.csv");
    let rows = csv::Reader::from_path(path).unwrap().into_deserialize::<HashMap<String, String>>();
    let row =
        |row: HashMap<String, String>| ((row["model"].clone(), row["metric"].clone()), row["value"].parse().unwrap());
    rows.map(|found| row(found.unwrap())).collect()
}

#[test]
fn edge_features_are_read_by_gin_and_its_teachers() {
    let (place, _) = workplace(300);
    train(&place, "gin,teacher", "30", &[]);
    train(&place, "gin,student", "15", &["--offload-teacher"]);
    train(&place, "gin,student", "15", &["--use-kd", "false", "--edge-features", "false", "--run-dir", "without"]);
    let found = evaluated(&place);
    let accuracy = |model: &str| found[&(model.to_owned(), "accuracy".to_owned())];
    assert!(accuracy("gin_teacher_train/1") > 0.9, "{found:?}");
    assert!(accuracy("gin_student_train_kd/1") > 0.9, "{found:?}");
    // All nodes look alike to a model that does not read edges.
    let text = place.success(&["evaluate", "without", "--data", "chains", "--device", "cpu", "--resamples", "0"]);
    let line = text.lines().find(|line| line.starts_with("without")).unwrap();
    let value = line.split_whitespace().nth(3).unwrap().parse::<f64>().unwrap();
    assert!(value < 0.8, "{text}");
    let refused = place.refused(&["train", "--data", "chains", "--preset", "mlp,student", "--edge-features", "true"]);
    assert!(refused.contains("only a gin reads edge features"), "{refused}");
}

/// Embeddings of a teacher from elsewhere: the numbers of bonds of either kind, turned into 24 columns.
fn embeddings(chains: &[Chain]) -> Vec<f32> {
    let row = |Chain { bonds }: &Chain| {
        let ones = bonds.iter().sum::<u64>() as f32;
        let zeros = bonds.len() as f32 - ones;
        (0..24).map(move |column| (0.7 * column as f32 * (ones + 0.37 * zeros)).sin())
    };
    chains.iter().flat_map(row).collect()
}

fn write_targets(path: &Path, tensors: &[(&str, Vec<usize>, &[f32])]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(.., values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        ((*name).to_owned(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

#[test]
fn a_student_learns_the_embeddings_of_a_teacher_from_elsewhere() {
    let (place, chains) = workplace(300);
    let values = embeddings(&chains);
    let path = place.path().join("chains/targets.safetensors");
    write_targets(&path, &[("embedding", vec![300, 24], &values)]);
    let text = train(&place, "gin,student", "40", &["--kd-embedding-loss", "contrastive", "--kd-alpha", "0.9"]);
    assert!(
        text.contains("the teacher's outputs come from chains/targets.safetensors: embedding [graphs, 24]"),
        "{text}"
    );
    let header = fs::read_to_string(place.path().join("runs/chains/gin_student_train_kd/1/metrics.csv")).unwrap();
    assert!(header.lines().next().unwrap().contains("embedding_kd"), "{header}");
    for loss in ["cosine", "mse", "relational"] {
        train(&place, "gin,student", "2", &["--kd-embedding-loss", loss]);
    }
    let found = evaluated(&place);
    let of = |model: &str, metric: &str| found[&(model.to_owned(), metric.to_owned())];
    let model = "gin_student_train_kd/1";
    // Graphs with the same bonds share an embedding, so that the first place is shared. By chance, 10 of 60 rows would be among the first
    // ten, and the median rank 30.5.
    assert!(of(model, "embedding top-10") > 0.4 && of(model, "embedding median rank") < 12.0, "{found:?}");
    assert!(of(model, "embedding cosine") > 0.1 && of(model, "accuracy") > 0.8, "{found:?}");

    // The student, too, can be a teacher, by its weights.
    let taught = ["--teacher-path", "runs/chains/gin_student_train_kd/1", "--offload-teacher"];
    train(&place, "mlp,student", "1", &taught);

    // Without the file there is nothing to compare the embeddings with, and the other metrics remain.
    fs::remove_file(&path).unwrap();
    let text =
        place.success(&["evaluate", "runs/chains/gin_student_train_kd/1", "--data", "chains", "--device", "cpu"]);
    assert!(text.contains("retrieval is not scored") && text.contains("accuracy"), "{text}");
}

#[test]
fn outputs_of_a_teacher_from_elsewhere_are_distilled_and_resumed() {
    let (place, chains) = workplace(120);
    let logit = |Chain { bonds }: &Chain| {
        let ones = bonds.iter().sum::<u64>() as f32;
        let margin = 4.0 * (2.0 * ones - bonds.len() as f32);
        // Classes are in the order of their names: less, more.
        [-margin / 2.0, margin / 2.0]
    };
    let mut csv = "graph_id,logit_less,logit_more\n".to_owned();
    for (graph, chain) in chains.iter().enumerate() {
        let [less, more] = logit(chain);
        csv += &format!("g{graph},{less},{more}\n");
    }
    fs::write(place.path().join("outputs.csv"), &csv).unwrap();
    let with_file = ["--targets-file", "outputs.csv", "--kd-alpha", "0.9", "--schedule", "constant"];
    train(&place, "gin,student", "8", &[&with_file[..], &["--run-dir", "whole"]].concat());
    train(&place, "gin,student", "4", &[&with_file[..], &["--run-dir", "half"]].concat());
    let config = fs::read_to_string(place.path().join("whole/config.json")).unwrap();
    assert!(config.contains("outputs.csv"), "{config}");
    let losses = |folder: &str| -> Vec<String> {
        let text = fs::read_to_string(place.path().join(folder).join("metrics.csv")).unwrap();
        text.lines().map(|line| line.split(',').take(6).collect::<Vec<_>>().join(",")).collect()
    };
    let (whole, half) = (losses("whole"), losses("half"));
    assert_eq!(whole[..half.len()], half, "the same settings give the same losses");
    let agreement = whole.last().unwrap().split(',').nth(5).unwrap().to_owned();
    assert!(!agreement.is_empty(), "{whole:?}");

    // What a teacher that computes would read is refused beside a file.
    let refused = |more: &[&str], text: &str| {
        let common = ["train", "--data", "chains", "--preset", "gin,student", "--targets-file", "outputs.csv"];
        let said = place.refused(&[&common[..], more].concat());
        assert!(said.contains(text), "{said} lacks {text}");
    };
    refused(&["--offload-teacher"], "no teacher computes");
    refused(&["--kd-embedding-temperature", "0.2"], "only the contrastive loss has a temperature");
    refused(&["--use-kd", "false"], "nothing is distilled");
    fs::write(place.path().join("outputs.csv"), csv.replacen("g3,", "gx,", 1)).unwrap();
    refused(&[], "outputs.csv: line 5: 'gx'; expected a graph of the dataset");
    let values = [0.0; 240];
    write_targets(&place.path().join("chains/targets.safetensors"), &[("logits", vec![119, 2], &values[..238])]);
    let said = place.refused(&["train", "--data", "chains", "--preset", "gin,student"]);
    assert!(said.contains("shape [119, 2]; expected 120 rows"), "{said}");
}

#[test]
fn a_virtual_node_is_trained_distilled_and_resumed() {
    let (place, _) = workplace(120);
    let steady = ["--schedule", "constant", "--optimize-batch-size", "false"];
    let with = [&steady[..], &["--virtual-node", "true"]].concat();
    train(&place, "gin,teacher", "3", &with);
    let losses = |folder: &str| -> Vec<String> {
        let text = fs::read_to_string(place.path().join(folder).join("metrics.csv")).unwrap();
        text.lines().map(|line| line.split(',').take(6).collect::<Vec<_>>().join(",")).collect()
    };
    let taught = [&with[..], &["--teacher-residency", "layer", "--run-dir"]].concat();
    train(&place, "gcn,student", "12", &[&taught[..], &["whole"]].concat());
    // The run is killed after its second epoch, if it is not faster than that is noticed.
    let student = [&arguments("gcn,student", "12")[..], &taught, &["killed", "--resume"]].concat();
    let epochs = || fs::read_to_string(place.path().join("killed/metrics.csv")).map_or(0, |text| text.lines().count());
    kill_when(place.command(&student), "a second epoch", || epochs() >= 3);
    place.success(&student);
    assert_eq!(losses("whole"), losses("killed"));
    train(
        &place,
        "gcn,student",
        "12",
        &[&steady[..], &["--teacher-residency", "layer", "--run-dir", "plain"]].concat(),
    );
    assert_ne!(losses("whole"), losses("plain"), "the flag changes the student");
    let text = place.success(&["evaluate", "whole", "--data", "chains", "--device", "cpu", "--resamples", "0"]);
    assert!(text.contains("accuracy"), "{text}");
    let config = fs::read_to_string(place.path().join("whole/config.json")).unwrap();
    assert!(config.contains("\"virtual_node\": true"), "{config}");

    let refused = |arguments: &[&str], reason: &str| {
        let said = place.refused(&[&["train", "--data", "chains"], arguments].concat());
        assert!(said.contains(reason), "{said}");
    };
    refused(&["--preset", "mlp,student", "--virtual-node", "true"], "an mlp sends no messages");
    fs::write(place.path().join("virtual.toml"), "[graphs]\nvirtual_node = true\n").unwrap();
    refused(&["--preset", "mlp,student", "--config", "virtual.toml", "--use-kd", "false"], "must be false for an mlp");
}

#[test]
fn batches_are_limited_by_nodes_and_edges() {
    let (place, _) = workplace(120);
    let limited = ["--batch-nodes", "60", "--batch-edges", "100", "--log-every-n-steps", "1"];
    train(&place, "gin,teacher", "2", &[&limited[..], &["--run-dir", "limited"]].concat());
    let rows = csv::Reader::from_path(place.path().join("limited/steps.csv")).unwrap();
    let rows: Vec<HashMap<String, String>> = rows.into_deserialize().map(Result::unwrap).collect();
    let number = |row: &HashMap<String, String>, name: &str| row[name].parse::<u64>().unwrap();
    let graphs: u64 = rows.iter().filter(|row| row["epoch"] == "0").map(|row| number(row, "graphs")).sum();
    assert_eq!(graphs, 72, "every training graph once");
    // Logged edges include a self-loop for each node.
    let fits = |row: &HashMap<String, String>| {
        let nodes = number(row, "nodes");
        nodes <= 60 && number(row, "edges") - nodes <= 100
    };
    assert!(rows.iter().all(fits), "{rows:?}");
    let said = place.refused(
        &[&["train", "--data", "chains", "--preset", "gin,teacher", "--batch-edges", "9"][..], &["--device", "cpu"]]
            .concat(),
    );
    assert!(said.contains("has 8 nodes and 14 edges, more than the 9 edges allowed for a batch"), "{said}");
}

/// MiB after a text, as in `expected peak 12.5 MiB`.
fn mebibytes_after(said: &str, text: &str) -> f64 {
    let after = said.split_once(text).unwrap_or_else(|| panic!("no '{text}' in {said}")).1;
    let mut words = after.split_whitespace();
    let number = words.next().unwrap().parse().unwrap();
    assert!(words.next().unwrap().starts_with("MiB"), "{said}");
    number
}

/// The plan and the training expect the same peak, and the training measures it, for a teacher, its student, and a student alone.
#[test]
fn the_peak_is_predicted() {
    let (place, _) = workplace(400);
    // One batch waits in the loader's queue, or none if steps are fast: activations are far larger.
    let shape =
        ["--layers", "3", "--batch-size", "32", "--max-epochs", "3", "--prefetch-batches", "1", "--num-workers", "1"];
    let machine = ["--data", "chains", "--device", "cpu", "--threads", "1"];
    for (name, model) in [
        ("teacher", &["--preset", "gin,teacher", "--hidden", "96"][..]),
        ("student", &["--preset", "gin,student", "--hidden", "64", "--offload-teacher", "--teacher-burst", "2"]),
        // Frozen layers have neither gradients nor optimiser states, and nothing is kept for their backward.
        (
            "frozen",
            &["--preset", "gin,teacher", "--hidden", "96", "--size", "other", "--init-from", "teacher", "--freeze"],
        ),
        ("hints", &["--preset", "sage,student", "--hidden", "64", "--use-kd", "--kd-hint-weight", "0.1"]),
        ("alone", &["--preset", "mlp,student", "--hidden", "64", "--use-kd", "false", "--batch-nodes", "150"]),
    ] {
        let settings = [model, &shape, &machine].concat();
        let plan = place.success(&[&["memory", "plan"][..], &settings].concat());
        let planned = mebibytes_after(&plan, "expected peak of tensors");
        let said = place.success(&[&["train", "--run-dir", name][..], &settings].concat());
        assert_eq!(mebibytes_after(&said, "memory: expected peak"), planned, "{name}: {plan}\n{said}");
        let summary = fs::read_to_string(place.path().join(name).join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
        let bytes = |field: &str| summary[field].as_f64().unwrap();
        let ratio = bytes("expected_peak_memory_bytes") / bytes("peak_memory_bytes");
        assert!((0.97..1.05).contains(&ratio), "{name}: {ratio}\n{plan}\n{said}");
        let most = mebibytes_after(&plan, "batches of 32 graphs");
        assert!(most >= planned, "{name}: the bound is below the expectation: {plan}");
    }
    let without = place.success(
        &[
            &["memory", "plan", "--data", "chains", "--preset", "gat,student"][..],
            &["--teachers-dir", "none", "--use-kd"],
        ]
        .concat(),
    );
    assert!(without.contains("that of the presets: none is registered"), "{without}");
    let size = ["memory", "plan", "--preset", "gin,student", "--graphs", "1000000", "--nodes", "20", "--edges", "60"];
    let said = place.success(&[&size[..], &["--memory-limit", "8GiB"]].concat());
    assert!(said.contains("within this memory: --batch-size 128") && said.contains("teacher's weights"), "{said}");
}

#[test]
fn a_run_may_monitor_the_metric_of_its_task() {
    let (place, _) = workplace(120);
    let text = train(&place, "gin,teacher", "12", &["--monitor", "metric", "--run-dir", "monitored"]);
    assert!(text.contains("best epoch"), "{text}");
    let rows = csv::Reader::from_path(place.path().join("monitored/metrics.csv")).unwrap();
    let rows: Vec<HashMap<String, String>> = rows.into_deserialize().map(Result::unwrap).collect();
    let value = |row: &HashMap<String, String>, name: &str| row[name].parse::<f64>().unwrap();
    let best = rows
        .iter()
        .max_by(|one, other| {
            let by_metric = value(one, "val_accuracy").total_cmp(&value(other, "val_accuracy"));
            by_metric.then(value(other, "val_loss").total_cmp(&value(one, "val_loss")))
        })
        .unwrap();
    let summary = fs::read_to_string(place.path().join("monitored/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["best_epoch"].as_u64().unwrap(), best["epoch"].parse::<u64>().unwrap() + 1, "{rows:?}");
}

#[test]
fn a_sweep_trains_teachers_and_students_of_graphs() {
    let (place, _) = workplace(60);
    let step = |name: &str, preset: &str, more: &str| {
        format!(
            "[[step]]\nname = \"{name}\"\ncommand = \"train\"\npreset = \"{preset}\"\n\
             set = {{ data = \"chains\", hidden = [8], layers = 2, max_epochs = 2, threads = 1, device = \"cpu\" }}\n{more}\n"
        )
    };
    let file = format!(
        "metric = \"val_accuracy\"\ndirection = \"maximize\"\n{}{}[[axis]]\nfield = \"seed\"\nvalues = [1, 2]\n",
        step("teacher", "gin,teacher", ""),
        step("student", "gin,student", "from = { teacher_path = \"teacher\" }"),
    );
    fs::write(place.path().join("graphs.toml"), &file).unwrap();
    place.success(&["sweep", "graphs.toml"]);
    let rows = csv::Reader::from_path(place.path().join("sweeps/graphs/sweep.csv")).unwrap();
    let rows: Vec<HashMap<String, String>> = rows.into_deserialize().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row["state"] == "done" && row["metric"].parse::<f64>().is_ok()), "{rows:?}");
    // Other graphs are other tasks: their results are not reused.
    let tasks = || -> Vec<String> {
        let said = place.success(&["sweep", "graphs.toml", "--dry-run"]);
        let words = said.split_whitespace();
        words.filter(|word| word.starts_with("teacher-") || word.starts_with("student-")).map(str::to_owned).collect()
    };
    let before = tasks();
    let graphs = place.path().join("chains/graphs.csv");
    let text = fs::read_to_string(&graphs).unwrap();
    fs::write(&graphs, text.replacen("more", "less", 1)).unwrap();
    let after = tasks();
    assert_eq!((before.len(), after.len()), (4, 4), "{before:?} {after:?}");
    assert!(after.iter().all(|task| !before.contains(task)), "{before:?} {after:?}");
    let evaluated = file + "[[step]]\nname = \"evaluate\"\ncommand = \"evaluate\"\nfrom = { runs = \"student\" }\n";
    fs::write(place.path().join("evaluated.toml"), evaluated).unwrap();
    let said = place.refused(&["sweep", "evaluated.toml"]);
    assert!(said.contains("a sweep compares such runs by their validation"), "{said}");
    fs::write(place.path().join("nowhere.toml"), step("teacher", "gin,teacher", "").replace("chains", "nowhere"))
        .unwrap();
    let said = place.refused(&["sweep", "nowhere.toml"]);
    assert!(said.contains("step `teacher`: data = \"nowhere\": there is no such folder or file"), "{said}");
}

/// Chains whose nodes have a feature of 0 or 1. A node's class says whether its two neighbours agree, `y_sum` and `y_own` are the sum of the
/// neighbours' features and a label of the node itself; the nodes at the ends have no targets.
fn write_node_targets(folder: &Path, graphs: u64, task: &str, columns: &[&str]) {
    let mut draw = Draw(11);
    let mut of_graphs = "graph_id,split\n".to_owned();
    let mut nodes = format!("graph_id,node_id,x_a,{}\n", columns.join(","));
    let mut edges = "graph_id,source,target\n".to_owned();
    for graph in 0..graphs {
        let values: Vec<u64> = (0..5 + draw.below(6)).map(|_| draw.below(2)).collect();
        let split = ["train", "train", "train", "validation", "test"][graph as usize % 5];
        of_graphs += &format!("g{graph},{split}\n");
        for (node, value) in values.iter().enumerate() {
            let inner = node > 0 && node + 1 < values.len();
            let (before, after) = (values[node.saturating_sub(1)], values[(node + 1).min(values.len() - 1)]);
            let of = |column: &&str| match (inner, *column) {
                (false, _) => String::new(),
                (true, "y") => if before == after { "same" } else { "other" }.to_owned(),
                (true, "y_sum") => (100 * (before + after)).to_string(),
                (true, "y_both") => (before * after).to_string(),
                (true, _) => value.to_string(),
            };
            let cells: Vec<String> = columns.iter().map(of).collect();
            nodes += &format!("g{graph},n{node},{value},{}\n", cells.join(","));
            if node > 0 {
                edges += &format!("g{graph},n{},n{node}\n", node - 1);
            }
        }
    }
    fs::create_dir_all(folder).unwrap();
    let settings = format!("directed = false\ntask = \"{task}\"\n");
    for (name, text) in
        [("graphs.csv", of_graphs), ("nodes.csv", nodes), ("edges.csv", edges), ("kdgat-graphs.toml", settings)]
    {
        fs::write(folder.join(name), text).unwrap();
    }
}

/// Value of a run's metric on the nodes of the test graphs of `chains`.
fn metric(place: &Workplace, run: &str, metric: &str) -> f64 {
    place.success(&["evaluate", run, "--data", "chains", "--device", "cpu", "--resamples", "20"]);
    let path = place.path().join("runs/chains/evaluation/graph_metrics.csv");
    let rows = csv::Reader::from_path(path).unwrap().into_deserialize::<HashMap<String, String>>();
    let rows: Vec<_> = rows.map(Result::unwrap).collect();
    let row = rows.iter().find(|row| row["metric"] == metric).unwrap_or_else(|| panic!("no {metric} in {rows:?}"));
    row["value"].parse().unwrap()
}

fn assert_metric(place: &Workplace, run: &str, name: &str, range: std::ops::Range<f64>) {
    let found = metric(place, run, name);
    assert!(range.contains(&found), "{run}: {name} {found}, expected {range:?}");
}

#[test]
fn nodes_are_classified_by_a_teacher_and_its_student() {
    let place = Workplace::new();
    write_node_targets(&place.path().join("chains"), 300, "node-classification", &["y"]);
    let text = place.success(&["data", "check", "--data", "chains"]);
    assert!(text.contains("300 graphs, node-classification") && text.contains("2 classes (other:"), "{text}");
    assert!(text.contains("targets        of "), "{text}");
    // A sage tells a node from its neighbours.
    train(&place, "sage,teacher", "25", &["--run-dir", "teacher"]);
    let taught = ["--offload-teacher", "--kd-hint-weight", "0.1", "--kd-alpha", "0.9", "--run-dir", "student"];
    let text = train(&place, "sage,student", "25", &taught);
    assert!(text.contains("of targets cached"), "{text}");
    train(&place, "mlp,student", "5", &["--use-kd", "false", "--run-dir", "mlp"]);
    train(&place, "gat,student", "3", &["--use-kd", "false", "--run-dir", "gat", "--virtual-node", "true"]);
    assert_metric(&place, "teacher", "accuracy", 0.95..1.01);
    assert_metric(&place, "student", "accuracy", 0.95..1.01);
    // The class of a node does not depend on the node itself.
    assert_metric(&place, "mlp", "accuracy", 0.3..0.7);
    assert_metric(&place, "gat", "accuracy", 0.3..1.01);

    let refused = |arguments: &[&str], reason: &str| {
        let said = place.refused(&[&["train", "--data", "chains", "--preset", "gin,student"], arguments].concat());
        assert!(said.contains(reason), "{said} lacks {reason}");
    };
    refused(&["--pooling", "mean", "--use-kd", "false"], "pooling would be ignored");
    let curriculum = ["--curriculum-start-share", "0.5", "--use-kd", "false"];
    refused(&curriculum, "a curriculum chooses graphs by a loss of theirs, and the targets are of nodes");
    fs::write(place.path().join("outputs.csv"), "graph_id,logit_a,logit_b\n").unwrap();
    refused(&["--targets-file", "outputs.csv"], "has a row for each graph, and the targets are of nodes");
    // A teacher of graphs is no teacher of nodes.
    let (graphs, nodes) = (place.path().join("chains/graphs.csv"), place.path().join("chains/nodes.csv"));
    let of_graphs = fs::read_to_string(&graphs).unwrap().replace("graph_id,split", "graph_id,split,y");
    let rows = of_graphs.lines().enumerate();
    let rows = rows.map(|(row, line)| if row == 0 { line.to_owned() } else { format!("{line},{}", row % 2) });
    fs::write(&graphs, rows.collect::<Vec<_>>().join("\n")).unwrap();
    fs::write(place.path().join("chains/kdgat-graphs.toml"), "directed = false\n").unwrap();
    assert!(fs::read_to_string(&nodes).unwrap().contains("y"));
    refused(&["--teacher-path", "teacher"], "2 outputs of nodes, the data");
    let said = place.refused(&["evaluate", "student", "--data", "chains"]);
    assert!(said.contains("predicts nodes") && said.contains("targets of graphs"), "{said}");
}

#[test]
fn labels_and_values_of_nodes_are_learned() {
    let place = Workplace::new();
    let folder = place.path().join("chains");
    write_node_targets(&folder, 300, "node-regression", &["y_sum", "y_own"]);
    train(&place, "sage,teacher", "30", &["--run-dir", "values"]);
    train(&place, "sage,student", "30", &["--offload-teacher", "--run-dir", "taught"]);
    // The sum is 0, 100 or 200, with a standard deviation of 71.
    assert_metric(&place, "values", "y_sum MAE", 0.0..20.0);
    assert_metric(&place, "values", "y_own R2", 0.9..1.01);
    assert_metric(&place, "taught", "y_sum R2", 0.8..1.01);
    write_node_targets(&folder, 300, "node-multi-label", &["y_both", "y_own"]);
    train(&place, "sage,teacher", "20", &["--run-dir", "labels"]);
    train(&place, "sage,student", "20", &["--offload-teacher", "--run-dir", "labels_taught"]);
    assert_metric(&place, "labels", "mean_roc_auc", 0.95..1.01);
    assert_metric(&place, "labels_taught", "mean_roc_auc", 0.95..1.01);
}
