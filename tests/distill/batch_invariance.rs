//! In evaluation mode a graph gets bitwise equal results in any batch. This guarantees that a cached target equals a live one,
//! and that a stream of windows gets the same scores as a file.

use kdgat::graph::Batch;
use kdgat::graph::edge_list::EdgeListFile;
use kdgat::nn::attention::Backend;
use kdgat::nn::layers::Mode;
use kdgat::nn::{FreshParameters, Gat, GatConfig, Scope, Vgae, VgaeConfig, vgae};
use support::parity::{PARITY_VOCABULARY, parity_file};
use tch::{Device, Tensor};

/// Every graph in a batch of its own, all graphs in order, and all in reverse.
fn batches() -> (Vec<Batch>, Batch, Batch) {
    tch::set_num_threads(1);
    let file = EdgeListFile::open(&parity_file("batch.safetensors")).unwrap();
    let batch = |graphs: &[usize]| file.batch(graphs, PARITY_VOCABULARY).unwrap();
    let order: Vec<usize> = (0..file.num_graphs()).collect();
    let reverse: Vec<usize> = order.iter().rev().copied().collect();
    (order.iter().map(|&graph| batch(&[graph])).collect(), batch(&order), batch(&reverse))
}

/// Rows of graph `graph` in a tensor with one row per node or per graph.
fn rows(tensor: &Tensor, batch: &Batch, graph: usize) -> Tensor {
    if tensor.size()[0] == batch.num_graphs() as i64 {
        return tensor.narrow(0, graph as i64, 1);
    }
    let start = batch.node_pointers.int64_value(&[graph as i64]);
    let end = batch.node_pointers.int64_value(&[graph as i64 + 1]);
    tensor.narrow(0, start, end - start)
}

fn check(what: &str, answer: impl Fn(&Batch) -> Vec<Tensor>) {
    let (alone, together, reversed) = batches();
    let (in_order, in_reverse) = (answer(&together), answer(&reversed));
    for (graph, batch) in alone.iter().enumerate() {
        let mirrored = alone.len() - 1 - graph;
        for (index, single) in answer(batch).iter().enumerate() {
            let place = format!("{what}: output {index} of graph {graph}");
            assert!(rows(&in_order[index], &together, graph) == *single, "{place} differs alone and in a batch");
            assert!(rows(&in_reverse[index], &reversed, mirrored) == *single, "{place} differs by its place");
        }
    }
}

#[test]
fn a_vgae_answers_the_same_in_any_batch() {
    for (hidden, latent, heads) in [(vec![24, 12, 8], 8, 4), (vec![80, 40, 16], 16, 1), (vec![480, 240, 48], 48, 4)] {
        let config = VgaeConfig {
            hidden,
            latent,
            heads,
            embedding: 8,
            vocabulary_size: PARITY_VOCABULARY,
            dropout: 0.1,
            edge_scaling: None,
            input: Default::default(),
        };
        let mut fresh = FreshParameters::new(3, Device::Cpu);
        let model = Vgae::new(Scope::root(&mut fresh), &config, Backend::Auto).unwrap();
        check(&format!("{config:?}"), |batch| {
            let output = tch::no_grad(|| model.forward(batch, Mode::Evaluation)).unwrap();
            let difficulty = tch::no_grad(|| vgae::difficulty(&output, batch)).unwrap();
            vec![output.latent, output.reconstruction, output.id_logits, difficulty.total]
        });
    }
}

#[test]
fn a_gat_answers_the_same_in_any_batch() {
    for (hidden, layers, heads, fc_layers) in [(24, 2, 4, 3), (48, 3, 8, 2)] {
        let vocabulary_size = PARITY_VOCABULARY;
        let config = GatConfig {
            hidden,
            layers,
            heads,
            embedding: 8,
            fc_layers,
            vocabulary_size,
            dropout: 0.1,
            edge_scaling: None,
            input: Default::default(),
        };
        let mut fresh = FreshParameters::new(3, Device::Cpu);
        let model = Gat::new(Scope::root(&mut fresh), &config, Backend::Auto).unwrap();
        check(&format!("{config:?}"), |batch| vec![tch::no_grad(|| model.forward(batch, Mode::Evaluation)).unwrap()]);
    }
}
