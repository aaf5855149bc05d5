//! The forward passes in C compute what the trainer's models compute, for all kinds of models, node by node.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use kdgat_can::Frame;
use kdgat_car::{CarModel, Precision, Vectors, as_exported};
use kdgat_graph::assemble::Assembler;
use kdgat_graph::{AssembleOptions, Batch, Columns, EdgeScaling, FeatureSet, GraphStream, NodeScaling, Vocabulary};
use kdgat_nn::attention::Backend;
use kdgat_nn::layers::Mode;
use kdgat_nn::weights::{StateDict, floats};
use kdgat_nn::{
    Architecture, DatasetIdentity, FreshParameters, Gat, GatConfig, GivenTensors, IdHash, InputConfig,
    ModelDescription, Scope, Vgae, VgaeConfig,
};
use tch::{Device, Kind, Tensor};

const WINDOW: usize = 40;

/// Frames of `count` windows; the number of IDs grows, from one to as many as there are frames.
fn traffic(count: usize) -> Vec<Frame> {
    let mut state = 7_u64;
    let mut draw = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let frame = |position: usize| {
        let ids = 1 + (position / WINDOW * 9 % 70) as u64;
        let payload = std::array::from_fn(|_| draw(256) as u8);
        let can_id = 0x100 + 3 * draw(ids) as u32;
        Frame { timestamp: 5.0 + position as f64 * 0.000_7, can_id, payload, payload_length: 8, attack: false }
    };
    (0..count * WINDOW + 1).map(frame).collect()
}

/// The graphs of the traffic as the trainer reads them.
fn columns(features: FeatureSet) -> Columns {
    let mut columns = Columns::new(features);
    let mut stream = GraphStream::new(features, WINDOW, WINDOW);
    let each = |mut window: kdgat_graph::graph_stream::ReadyWindow<'_>| {
        window.append_to(0, &mut columns);
        Ok::<(), ()>(())
    };
    stream.push(&traffic(16), each).unwrap();
    columns
}

fn vocabulary() -> Vocabulary {
    Vocabulary::from_ids((0..30).map(|index| 0x100 + 3 * index))
}

/// A model with random weights; batch norm has seen data, so that folding it changes something.
fn random_state(architecture: &Architecture) -> StateDict {
    let mut parameters = FreshParameters::new(11, Device::Cpu);
    match architecture {
        Architecture::Gat(config) => drop(Gat::new(Scope::root(&mut parameters), config, Backend::Auto).unwrap()),
        Architecture::Vgae(config) => drop(Vgae::new(Scope::root(&mut parameters), config, Backend::Auto).unwrap()),
        _ => unreachable!(),
    }
    tch::manual_seed(3);
    let named = parameters.into_tensors().into_iter().map(|named| {
        let tensor = named.tensor.detach();
        let tensor = match () {
            () if named.name.ends_with("running_var") => tensor.rand_like().f_add_scalar(0.2).unwrap(),
            () if tensor.kind() == Kind::Float && (named.name.contains("_bns.") || named.name.ends_with("bias")) => {
                tensor.randn_like().f_mul_scalar(0.3).unwrap() + 0.5
            }
            () => tensor,
        };
        (named.name, tensor)
    });
    named.collect()
}

fn scores(architecture: &Architecture, state: &StateDict, batch: &Batch) -> (Vec<f32>, Vec<f32>) {
    let mut given = GivenTensors::new(
        state.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect::<Vec<_>>(),
    );
    let scope = Scope::root(&mut given);
    tch::no_grad(|| match architecture {
        Architecture::Gat(config) => {
            let model = Gat::new(scope, config, Backend::Auto).unwrap();
            let margin = |pooled: &Tensor| {
                let logits = model.classify(pooled, Mode::Evaluation).unwrap();
                logits.select(1, 1) - logits.select(1, 0)
            };
            let layers = model.layer_outputs(batch, Mode::Evaluation).unwrap();
            let pooled = model.pool(&layers, batch).unwrap();
            let raw = margin(&pooled);
            // The log odds of each graph without each of its nodes.
            let counts =
                batch.node_pointers.diff(1, -1, None::<Tensor>, None::<Tensor>).index_select(0, &batch.graph_of_node);
            let counts = counts.to_kind(Kind::Float).unsqueeze(1);
            let own = pooled.index_select(0, &batch.graph_of_node) * &counts;
            let others = (own - Tensor::cat(&layers, 1)) / (counts - 1.0).clamp_min(1.0);
            let drop = raw.index_select(0, &batch.graph_of_node) - margin(&others);
            (floats(&raw).unwrap(), floats(&drop).unwrap())
        }
        Architecture::Vgae(config) => {
            let model = Vgae::new(scope, config, Backend::Auto).unwrap();
            let errors = model.node_errors(batch).unwrap();
            let raw = model.difficulty_of(&errors, batch).unwrap().total;
            (floats(&raw).unwrap(), floats(&(errors.reconstruction + errors.id * 0.1)).unwrap())
        }
        _ => unreachable!(),
    })
}

/// The graphs in the format of forward.c.
fn input(columns: &Columns, batch: &Batch, input: &InputConfig, edges: bool) -> Vec<u8> {
    let continuous = floats(&input.continuous(batch).unwrap()).unwrap();
    let width = input.node_features() as usize;
    let indices = Vec::<i64>::try_from(&batch.id_index).unwrap();
    let mut bytes = Vec::new();
    let mut first = 0;
    for graph in 0..columns.num_graphs() {
        let view = columns.graph(graph);
        let nodes = first..first + view.num_nodes();
        bytes.extend((view.num_nodes() as u16).to_le_bytes());
        bytes.extend((view.num_edges() as u16).to_le_bytes());
        bytes.extend(view.can_ids.iter().flat_map(|id| id.to_le_bytes()));
        bytes.extend(indices[nodes.clone()].iter().flat_map(|&index| (index as u16).to_le_bytes()));
        bytes.extend(continuous[nodes.start * width..nodes.end * width].iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(view.sources.iter().flat_map(|node| node.to_le_bytes()));
        let targets = (0..view.num_nodes()).flat_map(|node| {
            let row = view.row_pointers[node]..view.row_pointers[node + 1];
            row.map(move |_| node as u16)
        });
        bytes.extend(targets.flat_map(|node| node.to_le_bytes()));
        if edges {
            bytes.extend(view.edge_features.iter().flat_map(|value| value.to_le_bytes()));
        }
        first = nodes.end;
    }
    bytes
}

fn compiled(folder: &Path) -> Command {
    let sources = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_network = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        ["input", "linear", "attention", "gat", "vgae", "tables"].iter().any(|part| name == format!("kdgat_{part}.c"))
    };
    let program = folder.join("forward");
    let output = Command::new("cc")
        .args(["-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-I"])
        .arg(folder)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forward.c"))
        .args(sources.filter(is_network))
        .arg("-o")
        .arg(&program)
        .arg("-lm")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Command::new(program)
}

/// Compares the C code with the trainer's model; both compute with the weights in `precision`.
fn compare(name: &str, architecture: Architecture, precision: Precision) {
    let features = architecture.input().features();
    let columns = columns(features);
    let mut options = AssembleOptions::new(Arc::new(vocabulary()));
    options.edge_attributes = architecture.reads_edge_features();
    options.hashed_ids = architecture.hashes_ids();
    let batch = Assembler::default().assemble_columns(&columns, &options).unwrap();
    let state = as_exported(&random_state(&architecture), precision).unwrap();
    let (raw, by_node) = scores(&architecture, &state, &batch);

    let description = ModelDescription {
        architecture,
        vocabulary: vocabulary(),
        foreign_ids: None,
        dataset: DatasetIdentity { name: "random".to_owned(), digest: String::new() },
        window: WINDOW,
        size: "student".to_owned(),
        epoch: 0,
        val_loss: None,
        teacher_digest: None,
        created_by_version: "0.0.0".to_owned(),
    };
    let model = CarModel {
        name: name.to_owned(),
        description: &description,
        state: &state,
        weights_digest: "0123456789abcdef".to_owned(),
        stride: WINDOW,
        precision,
        threshold: 0.5,
        threshold_method: "given".to_owned(),
        least_score: None,
        calibration_rate: 0.001,
    };
    let written = kdgat_car::write(&model, &Vectors::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for file in &written.files {
        let path = folder.path().join(&file.name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &file.contents).unwrap();
    }
    let bytes =
        input(&columns, &batch, description.architecture.input(), description.architecture.reads_edge_features());
    let mut child = compiled(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<f32>> =
        text.lines().map(|line| line.split(' ').map(|value| value.parse().unwrap()).collect()).collect();
    assert_eq!(lines.len(), raw.len());
    let (mut first, mut largest) = (0, [0.0_f32; 2]);
    for (graph, (line, raw)) in lines.iter().zip(&raw).enumerate() {
        let nodes = line.len() - 1;
        let of_trainer = match (&description.architecture, nodes) {
            // A classifier has nothing to compare a single node with.
            (Architecture::Gat(_), 1) => vec![*raw],
            _ => by_node[first..first + nodes].to_vec(),
        };
        first += nodes;
        let difference = |found: f32, expected: f32| (found - expected).abs() / expected.abs().max(1.0);
        largest[0] = largest[0].max(difference(line[0], *raw));
        assert!(difference(line[0], *raw) < 1e-5, "{name}, graph {graph}: {} instead of {raw}", line[0]);
        for (found, expected) in line[1..].iter().zip(&of_trainer) {
            largest[1] = largest[1].max(difference(*found, *expected));
            assert!(difference(*found, *expected) < 3e-5, "{name}, graph {graph}: node {found} instead of {expected}");
        }
    }
    assert_eq!(first, by_node.len());
    println!(
        "{name}: score differs by {:.1e}, nodes by {:.1e}; {} bytes",
        largest[0], largest[1], written.weight_bytes
    );
}

fn gat(edges: bool, input: InputConfig, layers: i64) -> Architecture {
    Architecture::Gat(GatConfig {
        hidden: 11,
        layers,
        heads: 3,
        embedding: 5,
        fc_layers: 3,
        vocabulary_size: vocabulary().len() as i64,
        dropout: 0.1,
        edge_scaling: edges.then(scaling),
        input,
    })
}

fn vgae(edges: bool, input: InputConfig, hidden: &[i64]) -> Architecture {
    Architecture::Vgae(VgaeConfig {
        hidden: hidden.to_vec(),
        latent: 9,
        heads: 2,
        embedding: 3,
        vocabulary_size: vocabulary().len() as i64,
        dropout: 0.1,
        edge_scaling: edges.then(scaling),
        input,
    })
}

fn scaling() -> EdgeScaling {
    let value = |from: f64| std::array::from_fn(|feature| from + 0.3 * feature as f64);
    EdgeScaling { mean: value(-0.2), deviation: value(0.5) }
}

fn rich() -> InputConfig {
    let scaling = NodeScaling { mean: vec![0.1; 35], deviation: vec![1.7; 35] };
    InputConfig { node_scaling: Some(scaling), ..InputConfig::default() }
}

#[test]
fn c_computes_what_the_trainer_computes() {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: there is no C compiler `cc`");
        return;
    }
    let hashed = InputConfig { id_hash: Some(IdHash { probes: 2, buckets: 17 }), ..InputConfig::default() };
    for precision in [Precision::F32, Precision::Int8] {
        for (name, architecture) in [
            ("gat", gat(false, InputConfig::default(), 2)),
            ("gat of one layer", gat(false, InputConfig::default(), 1)),
            ("gat of four layers, rich", gat(false, rich(), 4)),
            ("gat, hashed", gat(false, hashed.clone(), 2)),
            ("gatv2", gat(true, InputConfig::default(), 2)),
            ("gatv2, rich, hashed", gat(true, InputConfig { id_hash: hashed.id_hash, ..rich() }, 3)),
            ("vgae", vgae(false, InputConfig::default(), &[20, 12, 9])),
            ("vgae of one layer", vgae(false, InputConfig::default(), &[21])),
            ("vgae, rich", vgae(false, rich(), &[20, 10, 7, 8])),
            ("vgae of gatv2", vgae(true, InputConfig::default(), &[20, 12, 9])),
        ] {
            compare(&format!("{name}, {precision:?}"), architecture, precision);
        }
    }
}
