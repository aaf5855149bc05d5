//! Virtual node (Gilmer et al. 2017), defined as in the baselines of the Open Graph Benchmark (Hu et al. 2020): a row for each graph that
//! all nodes of the graph read and write.
//!
//! Before each layer, the row v of a graph is added to the input of each of its nodes, h_i ← h_i + v. At the first layer v is a learned
//! vector, 0 at initialisation. After each layer but the last, v ← MLP(Σ_i h_i + v), where h_i are the inputs of the layer with v. The MLP
//! is linear to twice the width, batch norm, ReLU, linear to the width, batch norm, ReLU, dropout. Tensors have the names of that code.

use kdgat_graph::Batch;
use kdgat_graph::padding::Mask;
use tch::Tensor;

use super::ModelError;
use super::attention::Backend;
use super::gnn_config::GnnConfig;
use super::graph_pooling::{GraphPool, Pooling};
use super::layers::{BatchNorm, Linear, Mode};
use super::parameters::{Init, Scope};

/// The virtual node at one layer: its first row, and the MLP that makes its next one.
#[derive(Debug)]
pub struct VirtualNode {
    /// `[1, input]`: the row of every graph at the first layer; `None` at other layers.
    embedding: Option<Tensor>,
    /// `None` at the last layer.
    update: Option<Update>,
}

#[derive(Debug)]
struct Update {
    pool: GraphPool,
    first: Linear,
    inner_norm: BatchNorm,
    second: Linear,
    norm: BatchNorm,
}

impl VirtualNode {
    /// Builds the virtual node at layer `index`; `None` for a model without one.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape.
    pub fn new(scope: &mut Scope, config: &GnnConfig, index: i64) -> Result<Option<Self>, ModelError> {
        if !config.virtual_node {
            return Ok(None);
        }
        let (input, width) = (config.input_columns(index), config.width());
        let embedding = match index {
            0 => Some(scope.sub("virtualnode_embedding").parameter("weight", &[1, input], Init::Constant(0.0))?),
            _ => None,
        };
        let update = match index + 1 < config.layers {
            true => Some(Update::new(scope.sub("mlp_virtualnode_list").sub(index), input, width)?),
            false => None,
        };
        Ok(Some(Self { embedding, update }))
    }

    /// Adds the row of each graph to the rows of its nodes: `[num_nodes, input]` and, after the first layer, `[num_graphs, input]` →
    /// `[num_nodes, input]`.
    ///
    /// # Errors
    /// Rows of graphs that are missing after the first layer.
    pub fn read(&self, x: &Tensor, rows: Option<&Tensor>, batch: &Batch) -> Result<Tensor, ModelError> {
        Ok(match (&self.embedding, rows) {
            (Some(embedding), _) => x.f_add(embedding)?,
            (None, Some(rows)) => x.f_add(&rows.f_index_select(0, &batch.graph_of_node)?)?,
            (None, None) => return Err(no_rows()),
        })
    }

    /// The rows of the graphs for the next layer, `[num_graphs, width]`, from the layer's input after [`VirtualNode::read`] and the rows
    /// added there; `None` at the last layer.
    ///
    /// # Errors
    /// Rows of graphs that are missing after the first layer.
    pub fn write(
        &self,
        x: &Tensor,
        rows: Option<&Tensor>,
        batch: &Batch,
        dropout: f64,
        kernel: Backend,
        mode: Mode,
    ) -> Result<Option<Tensor>, ModelError> {
        let Some(update) = &self.update else { return Ok(None) };
        let sums = update.pool.forward(x, batch, kernel)?;
        let sums = sums.f_add(self.embedding.as_ref().or(rows).ok_or_else(no_rows)?)?;
        let real = batch.real.as_ref().map(|real| &real.graphs);
        Ok(Some(update.forward(&sums, real, dropout, kernel, mode)?))
    }
}

impl Update {
    fn new(mut scope: Scope, input: i64, width: i64) -> Result<Self, ModelError> {
        Ok(Self {
            pool: GraphPool::new(scope.sub("pool"), Pooling::Sum, input)?,
            first: Linear::new(scope.sub(0), input, 2 * width)?,
            inner_norm: BatchNorm::new(scope.sub(1), 2 * width)?.of_graphs(),
            second: Linear::new(scope.sub(3), 2 * width, width)?,
            norm: BatchNorm::new(scope.sub(4), width)?.of_graphs(),
        })
    }

    /// `[num_graphs, input]` → `[num_graphs, width]`.
    fn forward(
        &self,
        sums: &Tensor,
        real: Option<&Mask>,
        dropout: f64,
        kernel: Backend,
        mode: Mode,
    ) -> Result<Tensor, ModelError> {
        let hidden = self.inner_norm.forward(&self.first.forward(sums, kernel)?, real, 0.0, kernel, mode)?;
        self.norm.forward(&self.second.forward(&hidden, kernel)?, real, dropout, kernel, mode)
    }
}

fn no_rows() -> ModelError {
    ModelError::Architecture {
        field: "virtual_node",
        found: "no row of the graphs from the previous layer".to_owned(),
        expected: "layers must run in order, each with the state of the previous one",
    }
}
