//! The body of the network: embedding, interactions, pooling.

use std::sync::Arc;

use kdgat_graph::paths::Neighbours;
use kdgat_graph::{Batch, Level};
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use super::geometry::{Bases, Vector};
use super::interaction::Interaction;
use super::sums::PathGraph;
use crate::attention::Backend;
use crate::graph_pooling::GraphPool;
use crate::layers::Linear;
use crate::parameters::Scope;
use crate::{GnnConfig, ModelError};

/// Expansion of lengths and angles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathConfig {
    /// Largest distance that Gaussians are centred at, in the unit of the positions.
    pub cutoff: f64,
    /// Number of Gaussians of a distance, of an angle and of a torsion, at least 2 each.
    pub gaussians: [usize; 3],
}

impl PathConfig {
    /// The Gaussians of the published code.
    pub const GAUSSIANS: [usize; 3] = [50, 6, 12];

    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let refuse = |field, found: String, expected| Err(ModelError::Architecture { field, found, expected });
        if !(self.cutoff.is_finite() && self.cutoff > 0.0) {
            return refuse("cutoff", self.cutoff.to_string(), "must be a distance above 0");
        }
        if !self.gaussians.iter().all(|count| (2..=1000).contains(count)) {
            return refuse("gaussians", format!("{:?}", self.gaussians), "must be from 2 to 1000 each");
        }
        Ok(())
    }
}

/// SGMP without its head.
#[derive(Debug)]
pub struct Sgmp {
    bases: Bases,
    level: Level,
    kernel: Backend,
    embedding: [Linear; 2],
    interactions: Vec<Interaction>,
    pool: GraphPool,
}

impl Sgmp {
    /// Builds the body from the tensors of `scope`.
    pub fn new(scope: &mut Scope, config: &GnnConfig, kernel: Backend) -> Result<Self, ModelError> {
        let Some(paths) = &config.paths else {
            let (found, expected) = ("none".to_owned(), "the cutoff and the Gaussians of an sgmp");
            return Err(ModelError::Architecture { field: "paths", found, expected });
        };
        let bases = Bases::new(paths.cutoff, paths.gaussians);
        let mut embedding = scope.sub("embedding");
        let embedding = [
            Linear::new(embedding.sub(0), config.node_features, config.hidden)?,
            Linear::new(embedding.sub(2), config.hidden, config.hidden)?,
        ];
        let mut interactions = scope.sub("interactions");
        let interactions = (0..config.layers)
            .map(|layer| Interaction::new(interactions.sub(layer), config.hidden, &bases))
            .collect::<Result<_, _>>()?;
        let pool = GraphPool::new(scope.sub("pool"), config.pooling, config.hidden)?;
        Ok(Self { bases, level: config.level, kernel, embedding, interactions, pool })
    }

    /// Rows that the head reads: the pooled embeddings of each graph, `[num_graphs, hidden]`, or for outputs of nodes those of each node,
    /// `[num_nodes, hidden]`. `features`: `[num_nodes, node_features]`.
    ///
    /// # Errors
    /// A batch without positions, and those of libtorch.
    pub fn embed(&self, features: &Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        let nodes = self.nodes(features, &Arc::new(path_graph(batch)?))?;
        match self.level {
            Level::Node => Ok(nodes),
            Level::Graph => self.pool.forward(&nodes, batch, self.kernel),
        }
    }

    /// Embeddings of the nodes by these paths, `[num_nodes, hidden]`.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn nodes(&self, features: &Tensor, graph: &Arc<PathGraph>) -> Result<Tensor, ModelError> {
        let [first, second] = &self.embedding;
        let mut x = second.forward(&first.forward(features, self.kernel)?.f_relu()?, self.kernel)?;
        for interaction in &self.interactions {
            x = x.f_add(&interaction.forward(&x, graph, self.bases, self.kernel)?)?;
        }
        Ok(x)
    }
}

/// The paths of a batch.
fn path_graph(batch: &Batch) -> Result<PathGraph, ModelError> {
    let (neighbours, _) = neighbours_of(batch)?;
    Ok(PathGraph::new(neighbours, positions(batch)?))
}

/// The neighbours of a batch's nodes; and where each graph's nodes begin, with the end of the last one's.
pub(crate) fn neighbours_of(batch: &Batch) -> Result<(Neighbours, Vec<usize>), ModelError> {
    let indices = |tensor: &Tensor| Ok::<_, ModelError>(Vec::<i32>::try_from(&host(tensor)?)?);
    let neighbours =
        Neighbours::of_incoming(&indices(&batch.adjacency.row_pointers)?, &indices(&batch.adjacency.sources)?);
    let graphs: Vec<i64> = Vec::try_from(&host(&batch.node_pointers)?)?;
    // Pointers are never negative.
    Ok((neighbours, graphs.into_iter().map(|pointer| pointer as usize).collect()))
}

/// The positions of a batch's nodes.
pub(crate) fn positions(batch: &Batch) -> Result<Vec<Vector>, ModelError> {
    let space = batch.space.as_ref().ok_or(ModelError::NoPositions)?;
    let positions: Vec<f32> = Vec::try_from(&host(&space.positions)?.f_reshape([-1i64].as_slice())?)?;
    Ok(positions.as_chunks::<3>().0.iter().map(|position| position.map(f64::from)).collect())
}

fn host(tensor: &Tensor) -> Result<Tensor, ModelError> {
    Ok(tensor.f_to_device(Device::Cpu)?)
}
