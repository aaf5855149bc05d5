//! The arrays of a graph as bytes, in the order of a store, and the digest of a graph's contents.

use crate::node_graph::{Features, NodeGraph};

#[cfg(target_endian = "big")]
compile_error!("arrays are little-endian and read in place");

/// An array of a graph.
pub struct Array<'a> {
    /// Name in a store.
    pub name: &'static str,
    /// Type of its elements.
    pub dtype: &'static str,
    /// Its elements.
    pub bytes: &'a [u8],
}

/// The arrays of a graph, in the order of a store.
pub fn arrays(graph: &NodeGraph) -> Vec<Array<'_>> {
    let array = |name, dtype, bytes| Array { name, dtype, bytes };
    let mut arrays = vec![
        array("indptr", "u64", bytemuck::cast_slice(&graph.row_pointers)),
        array("indices", "u32", bytemuck::cast_slice(&graph.sources)),
    ];
    match &graph.features {
        Features::Dense { values, .. } => arrays.push(array("features", "f32", bytemuck::cast_slice(values))),
        Features::Half { values, .. } => arrays.push(array("features", "f16", bytemuck::cast_slice(values))),
        Features::Sparse { row_pointers, column_index, values, .. } => arrays.extend([
            array("feature_indptr", "u64", bytemuck::cast_slice(row_pointers)),
            array("feature_indices", "u32", bytemuck::cast_slice(column_index)),
            array("feature_values", "f32", bytemuck::cast_slice(values)),
        ]),
    }
    arrays.push(array("labels", "i32", bytemuck::cast_slice(&graph.labels)));
    if let Some(split) = &graph.given_split {
        arrays.push(array("split", "u8", split));
    }
    arrays.push(array("node_hashes", "u64", bytemuck::cast_slice(&graph.node_hashes)));
    if let Some(original) = &graph.original {
        arrays.push(array("original", "u64", bytemuck::cast_slice(original)));
    }
    arrays
}

/// Digest of the contents of a graph, without its name: 64 hexadecimal digits of BLAKE3.
pub fn content_digest(graph: &NodeGraph) -> String {
    let mut hash = ContentHash::new(graph.task.classes, graph.features.columns());
    for Array { name, dtype, bytes } in arrays(graph) {
        hash.begin(name, dtype, bytes.len() as u64);
        hash.update(bytes);
    }
    hash.finish()
}

/// Computes the digest of a graph from its arrays in the order of a store.
pub struct ContentHash(blake3::Hasher);

impl ContentHash {
    /// Begins with the sizes that no array has.
    pub fn new(classes: usize, columns: usize) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("kdgat node graph 1, {classes} classes, {columns} features").as_bytes());
        Self(hash)
    }

    /// Begins an array of that many bytes.
    pub fn begin(&mut self, name: &str, dtype: &str, bytes: u64) {
        self.0.update(format!(", {name} {dtype} {bytes}: ").as_bytes());
    }

    /// Adds bytes of the array.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// 64 hexadecimal digits.
    pub fn finish(self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}
