//! One layer of a graph network: messages, normalisation, and the pooling of its output.

use kdgat_graph::{Batch, Level};
use tch::{Kind, Tensor};

use super::attention::Backend;
use super::convolution::{Convolution, LayerEdges, Rows};
use super::fused::edge_messages::edge_message_sum;
use super::fused::neighbours::neighbour_sum;
use super::gnn_config::{GnnConfig, GnnKind};
use super::graph_pooling::GraphPool;
use super::layers::{BatchNorm, Linear, Mode};
use super::parameters::Scope;
use super::virtual_node::VirtualNode;
use super::{GatConv, ModelError};

/// Input of a layer, which is the output of the one before it.
#[derive(Debug)]
pub struct LayerRows {
    /// `[num_nodes, columns]`: rows of the nodes.
    pub nodes: Tensor,
    /// `[num_graphs, columns]`: rows of the virtual nodes; `None` at the first layer, after the last one, and without virtual nodes.
    pub virtual_nodes: Option<Tensor>,
}

/// A layer with its normalisation, the pooling of its output, and the virtual node if there is one.
#[derive(Debug)]
pub struct GnnLayer {
    conv: GnnConv,
    norm: BatchNorm,
    pool: GraphPool,
    virtual_node: Option<VirtualNode>,
}

#[derive(Debug)]
enum GnnConv {
    Gin {
        /// Maps edge features to the columns of the nodes; `None` without edge features.
        edges: Option<Linear>,
        first: Linear,
        inner_norm: BatchNorm,
        second: Linear,
    },
    Other(Convolution),
}

impl GnnLayer {
    /// Builds layer `index`.
    pub fn new(scope: &mut Scope, config: &GnnConfig, index: i64) -> Result<Self, ModelError> {
        let (input, width) = (config.input_columns(index), config.width());
        let mut convs = scope.sub("convs");
        let mut conv = convs.sub(index);
        let conv = match config.kind {
            GnnKind::Gin => {
                let edges = match config.edge_features {
                    0 => None,
                    features => Some(Linear::new(conv.sub("lin"), features, input)?),
                };
                let mut nn = conv.sub("nn");
                let first = Linear::new(nn.sub("lins").sub(0), input, width)?;
                let inner_norm = BatchNorm::new(nn.sub("norms").sub(0).sub("module"), width)?;
                let second = Linear::new(nn.sub("lins").sub(1), width, width)?;
                GnnConv::Gin { edges, first, inner_norm, second }
            }
            GnnKind::Gcn => GnnConv::Other(Convolution::gcn(conv, [input, width])?),
            GnnKind::Sage => GnnConv::Other(Convolution::sage(conv, [input, width])?),
            GnnKind::Gat => GnnConv::Other(Convolution::Gat(GatConv::new(conv, input, config.hidden, config.heads)?)),
            GnnKind::Mlp => GnnConv::Other(Convolution::Linear(Linear::new(conv.sub("lin"), input, width)?)),
            GnnKind::SchNet | GnnKind::PaiNN | GnnKind::Irreps | GnnKind::Sgmp => {
                let (found, expected) = (config.kind.as_str().to_owned(), "its layers are those of a network in space");
                return Err(ModelError::Architecture { field: "kind", found, expected });
            }
        };
        let norm = BatchNorm::new(scope.sub("norms").sub(index).sub("module"), width)?;
        let pool = GraphPool::new(scope.sub("pools").sub(index), config.pooling, width)?;
        Ok(Self { conv, norm, pool, virtual_node: VirtualNode::new(scope, config, index)? })
    }

    /// The rows of the layer's output, `[num_nodes, width]`, for the head: pooled, `[num_graphs, width]`, or for outputs of nodes the same.
    pub fn readout(
        &self,
        x: &Tensor,
        batch: &Batch,
        config: &GnnConfig,
        kernel: Backend,
    ) -> Result<Tensor, ModelError> {
        match config.level {
            Level::Graph => self.pool.forward(x, batch, kernel),
            Level::Node => Ok(x.shallow_clone()),
        }
    }

    /// Applies the layer to rows of `input` columns; rows of `width` columns come out.
    pub fn forward(
        &self,
        rows: LayerRows,
        batch: &Batch,
        config: &GnnConfig,
        kernel: Backend,
        mode: Mode,
    ) -> Result<LayerRows, ModelError> {
        let real = batch.real.as_ref().map(|real| &real.nodes);
        let LayerRows { nodes: x, virtual_nodes: of_graphs } = rows;
        let x = match &self.virtual_node {
            Some(virtual_node) => virtual_node.read(&x, of_graphs.as_ref(), batch)?,
            None => x,
        };
        let y = self.conv.forward(&x, batch, kernel, mode)?;
        let nodes = self.norm.forward(&y, real, config.dropout, kernel, mode)?;
        let virtual_nodes = match &self.virtual_node {
            Some(virtual_node) => virtual_node.write(&x, of_graphs.as_ref(), batch, config.dropout, kernel, mode)?,
            None => None,
        };
        Ok(LayerRows { nodes, virtual_nodes })
    }
}

impl GnnConv {
    fn forward(&self, x: &Tensor, batch: &Batch, kernel: Backend, mode: Mode) -> Result<Tensor, ModelError> {
        let adjacency = &batch.adjacency;
        Ok(match self {
            // nn((1 + ε)·x_i + Σ_j m_j) with ε = 0, and m_j = x_j or, with edge features, ReLU(x_j + W e_ji + b).
            Self::Gin { edges, first, inner_norm, second } => {
                let real = batch.real.as_ref().map(|real| &real.nodes);
                let sums = match edges {
                    None => neighbour_sum(x, adjacency, kernel)?,
                    Some(edges) => {
                        let features = batch.edge_attributes.as_ref().ok_or(ModelError::NoEdgeFeatures)?;
                        edge_message_sum(x, &edges.forward(features, kernel)?, adjacency, kernel)?
                    }
                };
                let hidden = first.forward(&sums, kernel)?;
                second.forward(&inner_norm.forward(&hidden, real, 0.0, kernel, mode)?, kernel)?
            }
            Self::Other(convolution) => {
                let edges = LayerEdges { adjacency, source_degrees: None, own: None };
                convolution.forward(&Rows::Matrix(x.shallow_clone()), Some(edges), None, kernel)?
            }
        })
    }
}

/// Number of incoming edges of each node, itself included, `[num_nodes, 1]`, f32.
pub(super) fn degrees(batch: &Batch) -> Result<Tensor, ModelError> {
    let counts = batch.adjacency.row_pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>)?;
    let degrees = counts.f_to_kind(Kind::Float)?.f_unsqueeze(1)?;
    // Only a padding node can have no edge: its logarithm or inverse would spread through the batch norm.
    Ok(if batch.real.is_some() { degrees.f_clamp_min(1.0)? } else { degrees })
}
