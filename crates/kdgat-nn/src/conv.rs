//! An attention layer of either kind, and its edge input.

use kdgat_graph::padding::Mask;
use kdgat_graph::{Adjacency, Batch, EdgeScaling};
use tch::Tensor;

use super::attention::Backend;
use super::parameters::Scope;
use super::{GatConv, GatV2Conv, ModelError};

/// The edges of a batch as a model's layers read them.
#[derive(Debug)]
pub struct EdgeInput<'a> {
    /// Incoming and outgoing edges of each node.
    pub adjacency: &'a Adjacency,
    /// Scaled edge features, `[num_edges, EDGE_FEATURES]`; only for GATv2.
    pub attributes: Option<Tensor>,
    /// Mask of the real nodes if the batch is padded.
    pub real_nodes: Option<&'a Mask>,
}

impl<'a> EdgeInput<'a> {
    /// Prepares the edges for a model with this scaling of edge features; without a scaling, the model reads none.
    ///
    /// # Errors
    /// If the model reads edge features and the batch has none.
    pub fn new(batch: &'a Batch, scaling: Option<&EdgeScaling>) -> Result<Self, ModelError> {
        let attributes = match (scaling, &batch.edge_attributes) {
            (None, _) => None,
            (Some(scaling), Some(attributes)) => Some(scaling.apply(attributes)?),
            (Some(_), None) => return Err(ModelError::NoEdgeFeatures),
        };
        let real_nodes = batch.real.as_ref().map(|real| &real.nodes);
        Ok(Self { adjacency: &batch.adjacency, attributes, real_nodes })
    }
}

/// An attention layer: GATv2 if the model reads edge features, otherwise GAT.
#[derive(Debug)]
pub enum Conv {
    /// GAT, without edge features.
    Gat(GatConv),
    /// GATv2, with edge features.
    GatV2(GatV2Conv),
}

impl Conv {
    /// Creates a layer from `input` to `heads * channels` columns, heads concatenated.
    pub fn new(
        scope: Scope,
        (input, channels, heads): (i64, i64, i64),
        edge_features: bool,
    ) -> Result<Self, ModelError> {
        Ok(match edge_features {
            false => Self::Gat(GatConv::new(scope, input, channels, heads)?),
            true => Self::GatV2(GatV2Conv::new(scope, input, channels, heads)?),
        })
    }

    /// Creates a layer of `output` columns: with `heads` heads if they divide `output`, otherwise with one.
    pub fn dividing(
        scope: Scope,
        (input, output, heads): (i64, i64, i64),
        edge_features: bool,
    ) -> Result<Self, ModelError> {
        let heads = if output % heads == 0 { heads } else { 1 };
        Self::new(scope, (input, output / heads, heads), edge_features)
    }

    /// Applies the layer: `[num_nodes, input]` → `[num_nodes, heads * channels]`.
    pub fn forward(&self, x: &Tensor, edges: &EdgeInput, kernel: Backend) -> Result<Tensor, ModelError> {
        match self {
            Self::Gat(conv) => conv.forward(x, edges.adjacency, kernel),
            Self::GatV2(conv) => {
                let attributes = edges.attributes.as_ref().ok_or(ModelError::NoEdgeFeatures)?;
                conv.forward(x, attributes, edges.adjacency, kernel)
            }
        }
    }

    /// Attention weights of the edges, `[num_edges, heads]` in the order of the adjacency.
    pub fn attention_weights(&self, x: &Tensor, edges: &EdgeInput, kernel: Backend) -> Result<Tensor, ModelError> {
        let attended = match self {
            Self::Gat(conv) => conv.attend(x, edges.adjacency, kernel, true)?,
            Self::GatV2(conv) => {
                let attributes = edges.attributes.as_ref().ok_or(ModelError::NoEdgeFeatures)?;
                conv.attend(x, attributes, edges.adjacency, kernel, true)?
            }
        };
        // Every implementation returns them on request; the fallback has no columns.
        Ok(attended.weights.unwrap_or_else(|| Tensor::zeros([edges.adjacency.num_edges(), 0], (x.kind(), x.device()))))
    }

    /// Another handle to the same layer.
    pub fn shallow_clone(&self) -> Self {
        match self {
            Self::Gat(conv) => Self::Gat(conv.shallow_clone()),
            Self::GatV2(conv) => Self::GatV2(conv.shallow_clone()),
        }
    }

    /// The trainable tensors.
    pub fn parameters(&self) -> Vec<&Tensor> {
        match self {
            Self::Gat(conv) => conv.parameters(),
            Self::GatV2(conv) => conv.parameters(),
        }
    }
}
