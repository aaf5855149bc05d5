//! Networks for graphs and for nodes as ONNX: onnxruntime gives kdgat's outputs on the examples of an export.

use std::fs;
use std::path::Path;
use std::process::Command;

use kdgat::random;
use support::cli::Workplace;
use support::python::python_with;
use support::starter;

/// Runs `model.onnx` on the examples of a folder; prints each output with its rows and the largest difference, relative to 1 + its size.
const COMPARE: &str = r#"
import sys, onnx, onnxruntime, numpy as np
from safetensors.numpy import load_file
onnx.checker.check_model(onnx.load(sys.argv[1] + "/model.onnx"), full_check=True)
session = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx", providers=["CPUExecutionProvider"])
examples = load_file(sys.argv[1] + "/examples.safetensors")
names = [value.name for value in session.get_outputs()]
found = session.run(names, {value.name: examples[value.name] for value in session.get_inputs()})
for name, rows in zip(names, found):
    rows = rows[examples["node"]] if "node" in examples else rows
    expected = examples[name]
    same = rows.shape == expected.shape and rows.dtype == expected.dtype
    print(name, len(rows), (np.abs(rows - expected) / (1 + np.abs(expected))).max() if same else "other shape or type")
"#;

fn draw(purpose: u64, index: u64) -> f64 {
    random::to_unit(random::mix(random::mix(purpose) ^ index))
}

/// Graphs of a few nodes with a feature, a kind and edges with a feature; `y` is a value or a class.
fn write_graphs(folder: &Path, is_class: bool) {
    let mut graphs = "graph_id,y,split\n".to_owned();
    let mut nodes = "graph_id,node_id,x_a,c_kind\n".to_owned();
    let mut edges = "graph_id,source,target,e_w\n".to_owned();
    for graph in 0..60u64 {
        let count = 1 + graph % 7;
        let split = ["train", "train", "train", "validation", "test"][graph as usize % 5];
        let y = match is_class {
            true => ["few", "many"][usize::from(count > 3)].to_owned(),
            false => format!("{:.3}", 1000.0 * count as f64 + draw(1, graph)),
        };
        graphs += &format!("g{graph},{y},{split}\n");
        for node in 0..count {
            nodes += &format!("g{graph},n{node},{:.3},{}\n", draw(2, graph * 10 + node), ["C", "N"][node as usize % 2]);
            if node > 0 {
                edges += &format!("g{graph},n{},n{node},{:.3}\n", node / 2, draw(3, graph * 10 + node));
            }
        }
    }
    fs::create_dir_all(folder).unwrap();
    for (name, text) in [("graphs.csv", graphs), ("nodes.csv", nodes), ("edges.csv", edges)] {
        fs::write(folder.join(name), text).unwrap();
    }
    fs::write(folder.join("kdgat-graphs.toml"), "directed = false\n").unwrap();
}

/// One graph of three classes.
fn write_nodes(folder: &Path) {
    const NODES: u64 = 150;
    let mut nodes = String::from("node_id,y,x_0,x_1,x_2,x_3\n");
    for node in 0..NODES {
        let features: Vec<String> = (0..4).map(|feature| format!("{:.3}", draw(4, node * 4 + feature))).collect();
        nodes += &format!("n{node},class{},{}\n", node % 3, features.join(","));
    }
    let mut edges = String::from("source,target\n");
    for edge in 0..3 * NODES {
        edges += &format!("n{},n{}\n", edge % NODES, (draw(5, edge) * NODES as f64) as u64);
    }
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("kdgat-graphs.toml"), "task = \"node-class\"\n").unwrap();
    fs::write(folder.join("nodes.csv"), nodes).unwrap();
    fs::write(folder.join("edges.csv"), edges).unwrap();
}

/// Exports a run and compares its outputs with those of onnxruntime, if that is installed.
fn expect_equal(place: &Workplace, run: &str, unit: &str, outputs: &[(&str, usize)]) {
    let out = format!("{run}/out");
    let command = ["export", run, "--output", &out, "--onnx", "--examples", "9"];
    // The dataset is that of the run.
    let output = starter::output(place.command(&command).env_remove("KDGAT_DATA"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("model.safetensors, config.json, model.onnx, examples.safetensors in"), "{said}");
    assert!(said.contains(&format!("examples: 9 test {unit}s\n")), "{said}");
    let python = python_with("onnxruntime, onnx, safetensors", "onnx", "scripts/test --all installs it");
    let Some(python) = python else { return };
    let output = Command::new(python).args(["-c", COMPARE]).arg(place.path().join(run).join("out")).output().unwrap();
    let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{run}: {complaint}");
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.splitn(3, ' ').collect()).collect();
    let found: Vec<(&str, usize)> = lines.iter().map(|line| (line[0], line[1].parse().unwrap())).collect();
    assert_eq!(found, outputs, "{run}");
    for line in lines {
        let difference: f64 = line[2].parse().unwrap_or_else(|_| panic!("{run}: {}", line[2]));
        assert!(difference < 1e-5, "{run}: {} differs by {difference}", line[0]);
    }
}

#[test]
fn networks_for_graphs_answer_the_same_in_onnx_runtime() {
    let place = Workplace::new();
    write_graphs(&place.path().join("values"), false);
    write_graphs(&place.path().join("classes"), true);
    let small = ["--hidden", "6", "--layers", "2", "--max-epochs", "2", "--threads", "1", "--use-kd", "false"];
    for (run, data, preset, more) in [
        ("gin", "values", "gin,student", &["--pooling", "sum"][..]),
        ("gin-no-edges", "classes", "gin,student", &["--edge-features", "false", "--pooling", "attention"]),
        ("gcn", "values", "gcn,student", &["--pooling", "mean", "--target-reference", "mean"]),
        ("sage", "classes", "sage,student", &["--pooling", "max"]),
        ("gat", "values", "gat,student", &["--heads", "2", "--pooling", "attention"]),
        ("mlp", "classes", "mlp,student", &["--pooling", "sum"]),
        ("gin-virtual", "values", "gin,student", &["--virtual-node", "true", "--layers", "3"]),
        ("sage-virtual", "classes", "sage,student", &["--virtual-node", "true"]),
    ] {
        place.success(&[&["train", "--data", data, "--preset", preset, "--run-dir", run], &small[..], more].concat());
        let output = if data == "values" { "values" } else { "logits" };
        expect_equal(&place, run, "graph", &[(output, 9)]);
    }
}

/// The tables with targets of nodes instead of graphs: a class, or a value of some nodes.
fn write_node_targets(folder: &Path, is_class: bool) {
    write_graphs(folder, is_class);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let graphs: String = read("graphs.csv")
        .lines()
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            format!("{},{}\n", cells[0], cells[2])
        })
        .collect();
    let target = |row: usize| match (is_class, row % 3) {
        (true, _) => format!("class{}", row % 2),
        (false, 1) if row > 40 => String::new(),
        (false, _) => format!("{:.2}", 10.0 + draw(6, row as u64)),
    };
    let nodes: String = read("nodes.csv")
        .lines()
        .enumerate()
        .map(|(row, line)| match row {
            0 => format!("{line},y\n"),
            row => format!("{line},{}\n", if line.contains(",n0,") { target(0) } else { target(row) }),
        })
        .collect();
    fs::write(folder.join("graphs.csv"), graphs).unwrap();
    fs::write(folder.join("nodes.csv"), nodes).unwrap();
}

#[test]
fn networks_for_nodes_of_many_graphs_answer_the_same_in_onnx_runtime() {
    let place = Workplace::new();
    write_node_targets(&place.path().join("values"), false);
    write_node_targets(&place.path().join("classes"), true);
    let small = ["--hidden", "6", "--layers", "2", "--max-epochs", "2", "--threads", "1", "--use-kd", "false"];
    for (run, data, preset, more) in
        [("gin", "values", "gin,student", &["--virtual-node", "true"][..]), ("sage", "classes", "sage,student", &[])]
    {
        place.success(&[&["train", "--data", data, "--preset", preset, "--run-dir", run], &small[..], more].concat());
        // The first nine test graphs have 36 nodes.
        let output = if data == "values" { "values" } else { "logits" };
        expect_equal(&place, run, "graph", &[(output, 36)]);
    }
}

#[test]
fn networks_for_nodes_answer_the_same_in_onnx_runtime() {
    let place = Workplace::new();
    write_nodes(&place.path().join("net"));
    let small = ["--labels-per-class", "8", "--validation-per-class", "8", "--max-epochs", "3", "--threads", "1"];
    let layers = ["--hidden", "6", "--layers", "3", "--use-kd", "false"];
    for (run, preset, more) in [
        ("mlp", "mlp,student", &["--norm", "layer", "--residual", "--position-columns", "3"][..]),
        ("sage", "sage,student", &["--aggregator", "mean", "--norm", "batch"]),
        ("sage-gcn", "sage,student", &["--aggregator", "gcn"]),
        ("gcn", "gcn,student", &["--norm", "layer"]),
        ("gat", "gat,student", &["--heads", "2", "--output-heads", "2"]),
        ("gatv2", "gat,student", &["--conv", "gatv2", "--heads", "2", "--norm", "batch"]),
        ("appnp", "appnp,teacher", &["--propagation-steps", "4"]),
    ] {
        let train = ["train", "--data", "net", "--preset", preset, "--run-dir", run];
        place.success(&[&train[..], &small, &layers, more].concat());
        expect_equal(&place, run, "node", &[("logits", 9)]);
    }
}
