//! Models: graph attention layers, VGAEs, the GAT classifier, graph networks, the Q-network, and loading and saving of weights.
//!
//! A model is built from a [`TensorSource`]: fresh parameters for training, or given tensors (a checkpoint, or a
//! teacher's weights, on any device). Its tensors have the same names as in the corresponding PyTorch layers.

#![warn(missing_docs)]

pub mod attention;
pub mod blocks;
pub mod class_loss;
pub mod conv;
pub mod convolution;
pub mod description;
pub mod error;
pub mod fused;
pub mod gat;
pub mod gat_conv;
pub mod gatv2_conv;
pub mod gnn;
pub mod gnn_config;
pub mod gnn_layer;
pub mod graph_pooling;
pub mod graph_vgae;
pub mod graph_vgae_config;
mod graph_vgae_losses;
pub mod id_hash;
pub mod irreps;
pub mod layers;
pub mod masked;
pub mod node_gnn;
pub mod node_gnn_config;
pub mod node_input;
pub mod node_layer;
pub mod non_edges;
mod normed_activation;
pub mod parameters;
pub mod pretraining;
pub mod q_network;
mod recompute;
mod segments;
pub mod sgmp;
pub mod shared_rows;
pub mod shared_statistics;
pub mod space;
pub mod target_scale;
#[cfg(test)]
mod test_graphs;
pub mod vgae;
mod vgae_layers;
mod vgae_losses;
pub mod virtual_node;
pub mod weights;

pub use blocks::Block;
pub use class_loss::ClassLoss;
pub use conv::{Conv, EdgeInput};
pub use description::{Architecture, BatchNeeds, DatasetIdentity, ModelDescription};
pub use error::ModelError;
pub use gat::{Gat, GatConfig};
pub use gat_conv::GatConv;
pub use gatv2_conv::GatV2Conv;
pub use gnn::Gnn;
pub use gnn_config::{GnnConfig, GnnKind};
pub use graph_pooling::Pooling;
pub use graph_vgae::{GraphVgae, GraphVgaeConfig, GraphVgaeOutput};
pub use id_hash::IdHash;
pub use node_gnn::NodeGnn;
pub use node_gnn_config::{NodeGnnConfig, NodeGnnKind};
pub use node_input::InputConfig;
pub use node_layer::{LayerEdges, LayerInput, NodeLayer};
pub use non_edges::Draw;
pub use parameters::{FreshParameters, GivenTensors, Scope, TensorSource};
pub use pretraining::{Pretext, Pretraining, PretrainingConfig};
pub use q_network::{QNetwork, QNetworkConfig};
pub use space::{RadialBasis, SpaceConfig};
pub use target_scale::TargetScale;
pub use vgae::{Vgae, VgaeConfig, VgaeOutput};
