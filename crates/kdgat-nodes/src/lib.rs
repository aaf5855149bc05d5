//! One large graph whose nodes are classified: its sources and store, splits, samplers, and batches of its nodes.
//!
//! A [`NodeGraph`] holds the edges by target, with node features and labels. [`sampler`] draws the neighbourhoods of seed
//! nodes, and [`batches`] makes a [`Batch`](kdgat_graph::Batch) of them.

#![warn(missing_docs)]

pub mod activations;
pub mod batches;
pub mod block;
pub mod build;
pub mod citations;
mod class_numbers;
pub mod class_shares;
pub mod clusters;
pub mod degrees;
pub mod error;
pub mod exact;
pub mod feature_rows;
pub mod gather;
pub mod hot_rows;
pub mod induced;
pub mod node_graph;
mod node_hash;
mod npz;
mod pick;
pub mod positions;
mod prepare;
mod relabel;
pub mod sampler;
mod sections;
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
pub use degrees::{BatchSize, Degrees, LayerSize};
pub use error::NodesError;
pub use exact::{ExactBlock, ExactBlocks};
pub use feature_rows::{FeatureRows, RowAccess, RowCounts};
pub use hot_rows::HotNodes;
pub use induced::induced;
pub use node_graph::{Features, FilePlace, NodeGraph, NodeTask, Section};
pub use positions::with_positions;
pub use sampler::{Fanout, SampledLayers, Sampler};
pub use smoothing::{Smoothing, smoothed};
pub use sources::{GraphOptions, SourceNotes};
pub use split::{Division, NodeSplit, SplitOptions};
pub use visits::visit_probabilities;
