//! The mapped store of one large graph, and its neighbour sampler: what readers of the data need without libtorch.
//!
//! [`store::open`] maps a [`NodeGraph`], and a [`Sampler`] draws the neighbourhoods of its nodes as [`Block`]s.

#![warn(missing_docs)]

pub mod block;
pub mod degrees;
pub mod error;
pub mod node_graph;
pub mod node_hash;
mod pick;
pub mod provenance;
pub mod relabel;
pub mod sampler;
pub mod sections;
pub mod store;
#[cfg(test)]
mod test_graphs;

pub use block::{Block, TooManyEdges};
pub use degrees::{BatchSize, Degrees, LayerSize};
pub use error::NodeStoreError;
pub use node_graph::{Features, FilePlace, NodeGraph, NodeTask, Section};
pub use provenance::{GraphOptions, Provenance, SourceNotes};
pub use sampler::{Fanout, SampledLayers, Sampler};
