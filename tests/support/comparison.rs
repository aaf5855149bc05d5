//! Comparison of two implementations of the same computation.

use kdgat::graph::Batch;
use kdgat::nn::attention::Backend;
use kdgat::torch::draw;
use tch::{Kind, Tensor};

/// The fused passes, and the composition of torch's operations.
pub const KERNELS: [Backend; 2] = [Backend::Fused, Backend::Composed];

/// Standard normal numbers, determined by `seed`.
pub fn normal(size: &[i64], seed: i64) -> Tensor {
    draw::normal(size, Kind::Float, seed as u64).unwrap()
}

/// Fails unless the largest difference is at most `tolerance` of the largest value.
pub fn assert_same(what: &str, found: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_same_beside(what, found, expected, 0.0, tolerance);
}

/// Same as [`assert_same`], but differences are relative to at least `least`.
pub fn assert_same_beside(what: &str, found: &Tensor, expected: &Tensor, least: f64, tolerance: f64) {
    assert_eq!(found.size(), expected.size(), "{what}: shape");
    if expected.numel() == 0 {
        return;
    }
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let scale = expected.abs().max().double_value(&[]).max(least).max(1e-6);
    let difference = (found - expected).abs().max().double_value(&[]);
    assert!(difference <= tolerance * scale, "{what} differs by {difference:e}, it is judged beside {scale:e}");
}

/// Same as [`assert_same`], for named tensors.
pub fn assert_all_same(found: &[(String, Tensor)], expected: &[(String, Tensor)]) {
    assert_eq!(found.len(), expected.len());
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        assert_same(name, found, expected, 1e-5);
    }
}

/// Output, and gradients of the loss `Σ output · weights` at the named leaves.
pub fn results(output: &Tensor, leaves: &[(&str, &Tensor)]) -> Vec<(String, Tensor)> {
    (output * normal(&output.size(), 99)).sum(Kind::Float).backward();
    let gradients = leaves.iter().map(|(name, leaf)| (format!("gradient of {name}"), leaf.grad()));
    [("output".to_owned(), output.detach())].into_iter().chain(gradients).collect()
}

/// The tensors of a batch, named.
fn tensors_of(batch: &Batch) -> Vec<(&'static str, Tensor)> {
    let adjacency = &batch.adjacency;
    let masks = batch.real.iter().flat_map(|real| {
        [("real nodes", &real.nodes.rows), ("number of nodes", &real.nodes.count), ("real graphs", &real.graphs.rows)]
    });
    [
        ("id_index", &batch.id_index),
        ("id_input", &batch.id_input),
        ("continuous", &batch.continuous),
        ("row_pointers", &adjacency.row_pointers),
        ("sources", &adjacency.sources),
        ("targets", &adjacency.targets),
        ("column_pointers", &adjacency.column_pointers),
        ("transposed", &adjacency.transposed),
        ("successors", &batch.successors),
        ("node_pointers", &batch.node_pointers),
        ("graph_of_node", &batch.graph_of_node),
        ("labels", &batch.labels),
    ]
    .into_iter()
    .chain(batch.edge_attributes.iter().map(|tensor| ("edge_attributes", tensor)))
    .chain(batch.targets.iter().map(|tensor| ("targets of graphs", tensor)))
    .chain(masks)
    .map(|(name, tensor)| (name, tensor.shallow_clone()))
    .collect()
}

/// Fails unless two batches are equal, bit by bit.
#[track_caller]
pub fn assert_same_batch(found: &Batch, expected: &Batch) {
    assert_eq!((&found.graph_index, &found.can_ids), (&expected.graph_index, &expected.can_ids));
    assert_eq!(found.vocabulary_size, expected.vocabulary_size);
    let (found, expected) = (tensors_of(found), tensors_of(expected));
    assert_eq!(found.len(), expected.len());
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        assert_eq!((found.size(), found.kind()), (expected.size(), expected.kind()), "{name}");
        assert!(found.equal(expected), "{name}: {found} instead of {expected}");
    }
}
