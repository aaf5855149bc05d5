//! Targets of the nodes of a batch, for datasets of graphs whose nodes are classified or given values.

use std::sync::Arc;

use tch::Tensor;

/// The nodes of a batch that have targets, and these targets.
#[derive(Debug)]
pub struct NodeTargets {
    /// `[known]`, i64: numbers of the nodes within the batch, ascending.
    pub nodes: Tensor,
    /// `[known, number of targets]`, f32: number of the class, labels, or values.
    pub values: Tensor,
    /// `[num_graphs + 1]`: rows of graph `g` are `pointers[g]..pointers[g + 1]`. On the host: it weighs parts of a batch.
    pub pointers: Arc<Vec<u64>>,
}

impl NodeTargets {
    pub(super) fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self { nodes: tensor(&self.nodes)?, values: tensor(&self.values)?, pointers: Arc::clone(&self.pointers) })
    }
}
