//! One large graph whose nodes are classified: its sources and store, splits, samplers, and batches of its nodes.
//!
//! A [`NodeGraph`] holds the edges by target, with node features and labels. [`sampler`] draws the neighbourhoods of seed
//! nodes, and [`batches`] makes a [`Batch`](kdgat_graph::Batch) of them.

#![warn(missing_docs)]

pub mod activations;
mod adjacency;
pub mod batches;
pub mod build;
pub mod citations;
mod class_numbers;
pub mod class_shares;
pub mod clusters;
pub mod error;
pub mod exact;
pub mod feature_rows;
pub mod gather;
pub mod hot_rows;
pub mod induced;
mod npz;
pub mod positions;
mod prepare;
pub mod smoothing;
pub mod sources;
pub mod split;
pub mod store;
#[cfg(test)]
mod test_graphs;
pub mod visits;

pub use activations::{ActivationRows, Activations};
pub use batches::{BatchOptions, NodeBatches, Reach};
pub use build::{Build, Event, Progress, Step};
pub use citations::{CitationOptions, simulate_citations};
pub use class_shares::{ClassShares, ShareCorrection};
pub use clusters::{Clusters, cluster_batches, partition};
pub use error::NodesError;
pub use exact::{ExactBlock, ExactBlocks};
pub use feature_rows::{FeatureRows, RowAccess, RowCounts};
pub use hot_rows::HotNodes;
pub use induced::induced;
pub use kdgat_node_store::{
    BatchSize, Degrees, Fanout, Features, FilePlace, LayerSize, NodeGraph, NodeStoreError, NodeTask, SampledLayers,
    Sampler, Section,
};
pub use kdgat_node_store::{block, degrees, node_graph, sampler};
use kdgat_node_store::{node_hash, relabel, sections};
pub use positions::with_positions;
pub use smoothing::{Smoothing, smoothed};
pub use sources::{GraphOptions, SourceNotes};
pub use split::{Division, NodeSplit, SplitOptions};
pub use visits::visit_probabilities;
