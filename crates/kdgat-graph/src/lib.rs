//! Windows of frames as graphs: features, vocabulary, the memory-mapped store, and batches.
//!
//! [`window`] and [`features`] turn frames into [`columns`], which [`store`] writes as shards and memory-maps;
//! [`assemble`] concatenates graphs of a store into a [`Batch`], and [`loader`] prefetches batches.

#![warn(missing_docs)]

pub mod assemble;
pub mod batch;
pub mod batch_budget;
pub mod columns;
pub mod dataset;
mod deviation_cache;
mod displacement;
pub mod division;
pub mod edge_list;
pub mod edge_scaling;
pub mod error;
pub mod feature_set;
pub mod features;
pub mod foreign_ids;
mod gaussians;
pub mod graph_stream;
pub mod history;
pub mod loader;
pub mod moments;
pub mod neighbourhood;
pub mod node_scaling;
pub mod padding;
pub mod path_list;
pub mod paths;
pub mod profile;
pub mod resident;
pub mod rich;
pub mod shuffle;
pub mod space;
pub mod split;
pub mod store;
mod sub_batch;
pub mod vocabulary;
pub mod window;

pub use assemble::{AssembleOptions, UnknownDrop, any_id, assemble};
pub use batch::{Adjacency, Batch, NodeTargets};
pub use batch_budget::{BatchBudget, GraphSize, graph_sizes};
pub use columns::{Columns, FramesView, GraphView, NodeFrame, SpaceView};
pub use dataset::{DatasetError, Level, Schema, SpaceSchema, Task};
pub use displacement::Displacement;
pub use division::Validation;
pub use edge_scaling::EdgeScaling;
pub use error::StoreError;
pub use feature_set::{FeatureSet, RICH_NODE_FEATURES, SpaceColumns};
pub use foreign_ids::{ForeignCounts, ForeignIds};
pub use gaussians::Gaussians;
pub use graph_stream::GraphStream;
pub use loader::{BatchMaker, BatchSource, Loader, LoaderOptions, shuffled_batches};
pub use neighbourhood::{Neighbourhood, NodeFeatures, OwnRows, SparseRows};
pub use node_scaling::NodeScaling;
pub use path_list::{OfPaths, PathKind, PathList, PathView};
pub use profile::{CarProfile, Culprit, ProfileLearner};
pub use resident::{Gatherer, ResidentGraphs};
pub use shuffle::Shuffle;
pub use space::{ListedPaths, PairCount, PairCounter, Space, SpaceOptions};
pub use split::Split;
pub use store::{BuildOptions, Event, Progress, Share, StageTimes, Store, build_part, merge, open_or_build};
pub use vocabulary::Vocabulary;

/// Continuous node features of the window set, without the ID's vocabulary index.
pub const NODE_FEATURES: usize = 10;
/// Edge features, the same number in all sets.
pub const EDGE_FEATURES: usize = 11;
