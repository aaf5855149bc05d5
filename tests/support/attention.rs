//! Graphs for the attention tests, and comparisons of tensors.
#![allow(dead_code)] // A bench and the unit tests of kdgat-nn use this file, too, each only some items.

use kdgat_graph::Adjacency;
use kdgat_torch::philox::philox;
use tch::{Kind, Tensor};

/// Builds the adjacency of `(source, target)` pairs, with exactly one self-loop per node.
pub fn adjacency(nodes: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Adjacency {
    let mut pairs: Vec<(usize, usize)> = edges.into_iter().map(|(source, target)| (target, source)).collect();
    pairs.extend((0..nodes).map(|node| (node, node)));
    pairs.sort_unstable();
    pairs.dedup();
    let pointers = |keys: &[usize]| {
        let counts = (0..=nodes).map(|node| keys.partition_point(|&key| key < node) as i32);
        Tensor::from_slice(&counts.collect::<Vec<_>>())
    };
    let indices =
        |values: Vec<usize>| Tensor::from_slice(&values.into_iter().map(|value| value as i32).collect::<Vec<_>>());
    let (targets, sources): (Vec<usize>, Vec<usize>) = pairs.into_iter().unzip();
    let mut transposed: Vec<usize> = (0..sources.len()).collect();
    transposed.sort_by_key(|&edge| (sources[edge], targets[edge]));
    let by_source: Vec<usize> = transposed.iter().map(|&edge| sources[edge]).collect();
    Adjacency {
        row_pointers: pointers(&targets),
        column_pointers: pointers(&by_source),
        sources: indices(sources),
        targets: indices(targets),
        transposed: indices(transposed),
        components: Default::default(),
    }
}

/// Batch of `graphs` graphs with `nodes` nodes each, and `edges` random edges each besides self-loops.
pub fn batch(graphs: usize, nodes: usize, edges: usize, seed: u64) -> Adjacency {
    let mut pairs = Vec::new();
    for graph in 0..graphs {
        for edge in 0..edges {
            let words = philox(seed, (graph * edges + edge) as u64);
            let [source, target] = [words[0], words[1]].map(|word| graph * nodes + word as usize % nodes);
            pairs.push((source, target));
        }
    }
    adjacency(graphs * nodes, pairs)
}

/// Standard normal values, independent of torch's generator.
pub fn normal(size: &[i64], seed: u64, kind: Kind) -> Tensor {
    let count: i64 = size.iter().product();
    let values: Vec<f64> = (0..count as u64)
        .map(|index| {
            let words = philox(seed, index).map(|word| (f64::from(word) + 0.5) / 4_294_967_296.0);
            (-2.0 * words[0].ln()).sqrt() * (std::f64::consts::TAU * words[1]).cos()
        })
        .collect();
    Tensor::from_slice(&values).reshape(size).to_kind(kind)
}

/// Largest difference, relative to the largest magnitude of the two, or to 1 if that is smaller.
///
/// Inputs have magnitude 1. Gradients of scores are differences of numbers of that size, and zero for a node
/// without neighbours, where only rounding remains.
pub fn relative_difference(left: &Tensor, right: &Tensor) -> f64 {
    assert_eq!(left.size(), right.size());
    if left.numel() == 0 {
        return 0.0;
    }
    let (left, right) = (left.to_kind(Kind::Double), right.to_kind(Kind::Double));
    let scale = left.abs().max().maximum(&right.abs().max()).double_value(&[]).max(1.0);
    (left - right).abs().max().double_value(&[]) / scale
}
