//! Pooling of the nodes of a graph to one row: sum, mean, maximum, or attention (Li et al. 2016).

use kdgat_graph::Batch;
use kdgat_torch::autocast::widened;
use serde::{Deserialize, Serialize};
use tch::{TchError, Tensor};

use super::ModelError;
use super::attention::Backend;
use super::layers::{Linear, pool_layers};
use super::parameters::Scope;
use super::segments;

/// Pooling of the nodes of a graph to one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The maximum of each column.
    Max,
    /// Their mean weighted by softmax(w·x + b) over the graph's nodes, PyTorch Geometric's `AttentionalAggregation`; in a network in space a
    /// network of two layers takes the place of w·x + b.
    Attention,
}

/// A pooling with its parameters.
#[derive(Debug)]
pub struct GraphPool {
    pooling: Pooling,
    /// Maps a node's row to its weight's logarithm; only for attention.
    gate: Option<Linear>,
}

impl GraphPool {
    /// Builds the pooling of rows with `columns` columns.
    pub fn new(mut scope: Scope, pooling: Pooling, columns: i64) -> Result<Self, ModelError> {
        let gate = match pooling {
            Pooling::Attention => Some(Linear::new(scope.sub("gate_nn"), columns, 1)?),
            _ => None,
        };
        Ok(Self { pooling, gate })
    }

    /// Rows of each graph from its nodes, `[num_nodes, columns]` → `[num_graphs, columns]`. `x` is the output of a ReLU, so that 0 is the
    /// maximum of no nodes.
    pub fn forward(&self, x: &Tensor, batch: &Batch, kernel: Backend) -> Result<Tensor, ModelError> {
        match (self.pooling, &self.gate) {
            (Pooling::Attention, Some(gate)) => attention(x, &gate.forward(x, kernel)?, batch),
            (Pooling::Max, _) => Ok(maxima(x, batch)?),
            (Pooling::Sum, _) => {
                let counts = batch.node_pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>)?;
                let means = pool_layers(&[x], batch, kernel)?;
                Ok(means.f_mul(&counts.f_to_kind(means.f_kind()?)?.f_unsqueeze(1)?)?)
            }
            (Pooling::Mean | Pooling::Attention, _) => pool_layers(&[x], batch, kernel),
        }
    }
}

/// Maxima of each graph's nodes, and 0: `[num_nodes, columns]` → `[num_graphs, columns]`.
fn maxima(x: &Tensor, batch: &Batch) -> Result<Tensor, TchError> {
    // The pointers are valid by construction; validating them would synchronise with the device.
    let (axis, unchecked, of_no_nodes) = (0, true, 0.0);
    let pointers = Some(&batch.node_pointers);
    Tensor::f_segment_reduce(x, "max", None, None, pointers, axis, unchecked, of_no_nodes)
}

/// Σ_i softmax(gate)_i·x_i over each graph's nodes: rows `[num_nodes, columns]` and gates `[num_nodes, 1]` → `[num_graphs, columns]`.
pub(crate) fn attention(x: &Tensor, gates: &Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
    let (kind, x, gates) = (x.f_kind()?, &widened(x)?, widened(gates)?);
    let of_graph = |rows: &Tensor| rows.f_index_select(0, &batch.graph_of_node);
    let sums = |rows: &Tensor| segments::sums(rows, &batch.node_pointers, &batch.graph_of_node);
    // Subtracting a graph's largest gate changes no weight; the maximum of a graph without nodes is used by no node.
    let (axis, unchecked, of_no_nodes) = (0, true, f64::NEG_INFINITY);
    let pointers = Some(&batch.node_pointers);
    let largest = Tensor::f_segment_reduce(&gates.detach(), "max", None, None, pointers, axis, unchecked, of_no_nodes)?;
    let weights = gates.f_sub(&of_graph(&largest)?)?.f_exp()?;
    let weights = weights.f_div(&of_graph(&sums(&weights)?)?)?;
    Ok(sums(&x.f_mul(&weights)?)?.f_to_kind(kind)?)
}
