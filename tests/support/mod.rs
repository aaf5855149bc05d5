//! What several test files share: reference values and how they are compared.
#![allow(dead_code)] // each test file uses its own part

pub mod cli;
pub mod comparison;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kdgat::graph::Batch;
use kdgat::graph::edge_list::EdgeListFile;
use serde_json::Value;
use tch::{Kind, Tensor};

/// IDs of the vocabulary that the reference values were computed with.
pub const PARITY_VOCABULARY: i64 = 40;

/// A file of reference values. They are part of the repository: without one the test fails.
pub fn parity_file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parity").join(name);
    assert!(path.is_file(), "{} is missing; `git checkout -- tests/data` brings it back", path.display());
    path
}

/// The tensors of a reference file.
pub fn parity_tensors(name: &str) -> BTreeMap<String, Tensor> {
    let path = parity_file(&format!("{name}.safetensors"));
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

/// The reference scalars.
pub fn parity_scalars() -> Value {
    serde_json::from_slice(&std::fs::read(parity_file("parity.json")).unwrap()).unwrap()
}

/// A reference batch.
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

/// Fails unless a scalar is within `tolerance` of its reference, relatively.
pub fn assert_scalar(what: &str, found: f64, expected: &Value, tolerance: f64) {
    let expected = expected.as_f64().unwrap_or_else(|| panic!("{what}: no reference value"));
    let difference = (found - expected).abs();
    assert!(difference <= tolerance * expected.abs().max(1e-12), "{what}: {found} instead of {expected}");
}

/// The value of a scalar tensor.
pub fn value(tensor: &Tensor) -> f64 {
    tensor.double_value(&[])
}
