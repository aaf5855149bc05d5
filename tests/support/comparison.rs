//! Comparison of two implementations of the same computation.

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
