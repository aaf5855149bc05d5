//! Reference values, and comparisons with them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kdgat::graph::Batch;
use kdgat::graph::edge_list::EdgeListFile;
use serde_json::Value;
use tch::{Kind, Tensor};

use crate::program::repository;

/// Vocabulary size of the reference values.
pub const PARITY_VOCABULARY: i64 = 40;

/// Path of a file of reference values. It is part of the repository; if it is missing, the test fails.
pub fn parity_file(name: &str) -> PathBuf {
    let path = repository().join("tests/data/parity").join(name);
    assert!(path.is_file(), "{} is missing; `git checkout -- tests/data` brings it back", path.display());
    path
}

/// Tensors of a reference file.
pub fn parity_tensors(name: &str) -> BTreeMap<String, Tensor> {
    let path = parity_file(&format!("{name}.safetensors"));
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

/// Reference scalars.
pub fn parity_scalars() -> Value {
    serde_json::from_slice(&std::fs::read(parity_file("parity.json")).unwrap()).unwrap()
}

/// Reference batch.
pub fn parity_batch(name: &str) -> Batch {
    let path = parity_file(&format!("{name}.safetensors"));
    let file = EdgeListFile::open(&path).unwrap();
    let graphs: Vec<usize> = (0..file.num_graphs()).collect();
    file.batch(&graphs, PARITY_VOCABULARY).unwrap()
}

/// Fails unless the largest difference is at most `tolerance` of the largest reference value.
pub fn assert_close(what: &str, found: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(found.size(), expected.size(), "{what}: shape");
    if expected.numel() == 0 {
        return;
    }
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let scale = expected.abs().max().double_value(&[]).max(1e-12);
    let difference = (found - expected).abs().max().double_value(&[]);
    assert!(difference <= tolerance * scale, "{what}: differs by {difference:e}, its largest value is {scale:e}");
}

/// Fails unless a scalar is within a relative `tolerance` of its reference.
pub fn assert_scalar(what: &str, found: f64, expected: &Value, tolerance: f64) {
    let expected = expected.as_f64().unwrap_or_else(|| panic!("{what}: no reference value"));
    let difference = (found - expected).abs();
    assert!(difference <= tolerance * expected.abs().max(1e-12), "{what}: {found} instead of {expected}");
}

/// Value of a scalar tensor.
pub fn value(tensor: &Tensor) -> f64 {
    tensor.double_value(&[])
}
