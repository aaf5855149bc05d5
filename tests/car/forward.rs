//! The forward passes in C compute what the trainer's models compute, for all kinds of models, node by node.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use crate::compiler::can_compile;
use crate::models::{WINDOW, compiled, export, export_with, gat, random_state, rich, traffic, vgae, vocabulary};
use kdgat_car::{Precision, as_exported};
use kdgat_graph::assemble::Assembler;
use kdgat_graph::{AssembleOptions, Batch, Columns, FeatureSet, GraphStream};
use kdgat_nn::attention::Backend;
use kdgat_nn::layers::Mode;
use kdgat_nn::weights::{StateDict, floats};
use kdgat_nn::{Architecture, Gat, GivenTensors, IdHash, InputConfig, Scope, Vgae};
use tch::{Kind, Tensor};

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

/// The traffic's graphs as the trainer's batch for a model.
fn batch_of(columns: &Columns, architecture: &Architecture) -> Batch {
    let mut options = AssembleOptions::new(Arc::new(vocabulary()));
    options.edge_attributes = architecture.reads_edge_features();
    options.hashed_ids = architecture.hashes_ids();
    Assembler::default().assemble_columns(columns, &options).unwrap()
}

/// Lines of numbers that forward.c prints for the graphs in `bytes`.
fn printed(folder: &Path, bytes: Vec<u8>) -> Vec<Vec<f32>> {
    let mut child = compiled(folder, "forward.c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split(' ').map(|value| value.parse().unwrap()).collect()).collect()
}

/// Compares the lines of a model with the trainer's scores.
fn expect_equal(name: &str, lines: &[Vec<f32>], (raw, by_node): &(Vec<f32>, Vec<f32>), is_gat: bool) {
    assert_eq!(lines.len(), raw.len());
    let (mut first, mut largest) = (0, [0.0_f32; 2]);
    for (graph, (line, raw)) in lines.iter().zip(raw).enumerate() {
        let nodes = line.len() - 1;
        let of_trainer = match (is_gat, nodes) {
            // A classifier has nothing to compare a single node with.
            (true, 1) => vec![*raw],
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
    println!("{name}: score differs by {:.1e}, nodes by {:.1e}", largest[0], largest[1]);
}

/// Compares the C code with the trainer's model; both compute with the weights in `precision`.
fn compare(name: &str, architecture: Architecture, precision: Precision) {
    let columns = columns(architecture.input().features());
    let batch = batch_of(&columns, &architecture);
    let state = as_exported(&random_state(&architecture), precision).unwrap();
    let scores = scores(&architecture, &state, &batch);
    let bytes = input(&columns, &batch, architecture.input(), architecture.reads_edge_features());
    let is_gat = matches!(architecture, Architecture::Gat(_));
    let (folder, _) = export(name, architecture, &state, precision, WINDOW);
    expect_equal(name, &printed(folder.path(), bytes), &scores, is_gat);
}

/// Compares a classifier and an autoencoder that were exported together with the trainer's models.
fn compare_pair(name: &str, classifier: Architecture, autoencoder: Architecture, precision: Precision) {
    let columns = columns(classifier.input().features());
    let batch = batch_of(&columns, &classifier);
    let [state, other] =
        [&classifier, &autoencoder].map(|architecture| as_exported(&random_state(architecture), precision).unwrap());
    let expected = [scores(&classifier, &state, &batch), scores(&autoencoder, &other, &batch)];
    let bytes = input(&columns, &batch, classifier.input(), classifier.reads_edge_features());
    let (folder, _) = export_with(name, (classifier, &state), Some((autoencoder, &other)), precision, WINDOW);
    let lines = printed(folder.path(), bytes);
    for (model, is_gat) in [(0, true), (1, false)] {
        let of_model: Vec<Vec<f32>> = lines.iter().skip(model).step_by(2).cloned().collect();
        expect_equal(&format!("{name}, model {model}"), &of_model, &expected[model], is_gat);
    }
}

/// Two models in one folder compute what each computes alone, with one set of intermediate values.
#[test]
fn c_computes_two_models_together() {
    if !can_compile() {
        return;
    }
    let hashed = |probes| InputConfig { id_hash: Some(IdHash { probes, buckets: 17 }), ..InputConfig::default() };
    let window = InputConfig::default;
    for precision in [Precision::F32, Precision::Int8] {
        for (name, classifier, autoencoder) in [
            ("gat and vgae", gat(false, window(), 2), vgae(false, window(), &[20, 12, 9])),
            ("wide vgae", gat(false, window(), 1), vgae(false, window(), &[90, 60, 30])),
            ("gatv2, rich", gat(true, rich(), 3), vgae(true, rich(), &[20, 12, 9])),
            ("hashed", gat(false, hashed(2), 2), vgae(false, hashed(3), &[21])),
        ] {
            compare_pair(&format!("{name}, {precision:?}"), classifier, autoencoder, precision);
        }
    }
}

#[test]
fn c_computes_what_the_trainer_computes() {
    if !can_compile() {
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
