//! Windows of frames as graphs: features, vocabulary, the mapped store, and batches.

pub mod batch;

pub use batch::{Adjacency, Batch};

/// Continuous node features (the ID's vocabulary index is not one of them).
pub const NODE_FEATURES: usize = 10;
/// Features of an edge.
pub const EDGE_FEATURES: usize = 11;
