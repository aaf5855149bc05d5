//! A network in space: outputs of graphs or nodes, and forces.

use kdgat_graph::{Batch, Level, Space};
use kdgat_torch::autocast::widened;
use kdgat_torch::autograd;
use tch::{Kind, TchError, Tensor};

use super::config::SpaceConfig;
use super::dense::{Dense, activated, of_mode};
use super::messages::pulled;
use super::painn::{Features, PaiNN};
use super::pairs::{Pairs, vectors};
use super::schnet::SchNet;
use crate::attention::Backend;
use crate::fused::smooth_activation::Smooth;
use crate::gnn::node_input;
use crate::graph_pooling::Pooling;
use crate::irreps::IrrepsNetwork;
use crate::layers::Mode;
use crate::parameters::{Init, Scope};
use crate::{GnnConfig, GnnKind, ModelError, segments};

/// SchNet, PaiNN or a network of representations with a head.
#[derive(Debug)]
pub struct SpaceNetwork {
    config: GnnConfig,
    space: SpaceConfig,
    kernel: Backend,
    embedding: Tensor,
    features: Option<Dense>,
    representation: Representation,
    head: [Dense; 2],
}

#[derive(Debug)]
enum Representation {
    SchNet(SchNet),
    PaiNN(PaiNN),
    Irreps(IrrepsNetwork),
}

/// The answer of a network in space for a batch.
#[derive(Debug)]
pub struct SpaceAnswer {
    /// `[num_graphs or num_nodes, outputs]`: logits, or standardised values.
    pub outputs: Tensor,
    /// `[num_nodes, hidden]`: rows of the nodes, which the head reads; of a network of representations their invariants.
    pub nodes: Tensor,
    /// `[num_nodes, 3, hidden]`: vectors of the nodes; PaiNN alone has them.
    pub vectors: Option<Tensor>,
    /// `[num_nodes, 3]`: forces on the scale of the outputs, if the network gives forces.
    pub forces: Option<Tensor>,
}

impl SpaceNetwork {
    /// Builds the network from the tensors of `scope`.
    pub fn new(scope: &mut Scope, config: &GnnConfig, kernel: Backend) -> Result<Self, ModelError> {
        config.check()?;
        let Some(space) = config.space.clone() else {
            let (found, expected) = ("none".to_owned(), "the cutoff and the radial basis of schnet, painn or irreps");
            return Err(ModelError::Architecture { field: "space", found, expected });
        };
        let (layers, columns) = (config.layers, config.hidden);
        let mut representation = scope.sub("representation");
        let embedded = space.irreps.as_ref().map_or(columns, |irreps| irreps.irreps.num_scalars() as i64);
        let embedding = representation.sub("embedding").parameter("weight", &[space.kinds, embedded], Init::Normal)?;
        let features = match space.features {
            true => {
                Some(Dense::without_bias(representation.sub("features"), [config.node_features, embedded], kernel)?)
            }
            false => None,
        };
        let built = match (config.kind, &space.irreps) {
            (GnnKind::PaiNN, _) => {
                Representation::PaiNN(PaiNN::new(&mut representation, &space, [layers, columns], kernel)?)
            }
            (_, Some(irreps)) => {
                Representation::Irreps(IrrepsNetwork::new(&mut representation, &space, irreps, layers, kernel)?)
            }
            (_, None) => Representation::SchNet(SchNet::new(&mut representation, &space, [layers, columns], kernel)?),
        };
        let mut output = scope.sub("output_modules");
        let mut output = output.sub(0);
        let mut net = output.sub("outnet");
        let inner = (columns / 2).max(config.outputs);
        let head = [
            Dense::new(net.sub(0), [columns, inner], kernel)?,
            Dense::new(net.sub(1), [inner, config.outputs], kernel)?,
        ];
        Ok(Self { config: config.clone(), space, kernel, embedding, features, representation: built, head })
    }

    /// Outputs and, if the network gives them, forces. In training the forces can be differentiated; in evaluation nothing is recorded for
    /// the parameters, whether gradients are on or off.
    ///
    /// # Errors
    /// A batch without positions, and those of libtorch.
    pub fn forward(&self, batch: &Batch, mode: Mode) -> Result<SpaceAnswer, ModelError> {
        let space = batch.space.as_ref().ok_or(ModelError::NoPositions)?;
        let pairs = Pairs::of(space)?;
        let vectors = vectors(space, &pairs)?;
        if !self.space.forces {
            let Rows { nodes, vectors, by_node } = self.rows((batch, space), &vectors, &pairs, mode)?;
            return Ok(SpaceAnswer { outputs: self.pooled(by_node, batch)?, nodes, vectors, forces: None });
        }
        tch::with_grad(|| self.with_forces(batch, space, (vectors, &pairs), mode))
    }

    /// The forces are sums over lines: the derivative by the vector of a line pulls one end and pushes the other.
    fn with_forces(
        &self,
        batch: &Batch,
        space: &Space,
        (vectors, pairs): (Tensor, &Pairs),
        mode: Mode,
    ) -> Result<SpaceAnswer, ModelError> {
        let by_position = vectors.detach().f_set_requires_grad(true)?;
        let Rows { nodes, vectors, by_node } = self.rows((batch, space), &by_position, pairs, mode)?;
        // The sum over all graphs: none depends on the positions of another one.
        let sum = match self.config.pooling {
            Pooling::Mean => by_node.f_mul(&shares(batch)?)?.f_sum(Kind::Float)?,
            _ => by_node.f_sum(Kind::Float)?,
        };
        let gradients = match mode {
            Mode::Training => autograd::recorded_gradients(&[&sum], &[&by_position])?,
            Mode::Evaluation => autograd::gradients(&[&sum], &[None], &[&by_position], false)?,
        };
        let gradient = gradients.into_iter().flatten().next();
        let gradient = gradient.map_or_else(|| by_position.detach().f_zeros_like(), Ok)?;
        let forces = pulled(&gradient, pairs)?;
        let outputs = self.pooled(by_node, batch)?;
        Ok(match mode {
            Mode::Training => SpaceAnswer { outputs, nodes, vectors, forces: Some(forces) },
            Mode::Evaluation => SpaceAnswer {
                outputs: outputs.detach(),
                nodes: nodes.detach(),
                vectors: vectors.map(|vectors| vectors.detach()),
                forces: Some(forces.detach()),
            },
        })
    }

    /// Rows of the nodes, from the vectors of the lines, `[num_lines, 3]`.
    fn rows(
        &self,
        (batch, space): (&Batch, &Space),
        vectors: &Tensor,
        pairs: &Pairs,
        mode: Mode,
    ) -> Result<Rows, ModelError> {
        let squares = vectors.f_square()?.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Float)?;
        let distances = squares.f_sqrt()?;
        let (padding_index, scale_by_frequency, sparse) = (-1, false, false);
        let table = of_mode(&self.embedding, mode);
        let x = Tensor::f_embedding(&table, &space.kinds, padding_index, scale_by_frequency, sparse)?;
        let x = match &self.features {
            Some(map) => x.f_add(&map.forward(&node_input(&self.config, batch)?, mode)?)?,
            None => x,
        };
        let Features { scalars, vectors } = match &self.representation {
            Representation::SchNet(network) => {
                let scalars = network.forward(&self.space, (x, &distances), pairs, mode)?;
                Features { scalars, vectors: None }
            }
            Representation::PaiNN(network) => {
                let directions = vectors.f_div(&distances)?;
                network.forward(&self.space, (x, &distances, &directions), pairs, mode)?
            }
            Representation::Irreps(network) => {
                let directions = vectors.f_div(&distances)?;
                let of_lines = (x, &distances, &directions);
                Features { scalars: network.forward(&self.space, of_lines, pairs, mode)?, vectors: None }
            }
        };
        let [first, second] = &self.head;
        let by_node = second.forward(&activated(&first.forward(&scalars, mode)?, Smooth::Silu, self.kernel)?, mode)?;
        Ok(Rows { by_node: widened(&by_node)?, nodes: scalars, vectors })
    }

    /// Outputs of graphs from those of their nodes; outputs of nodes as they are.
    fn pooled(&self, by_node: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        match self.config.level {
            Level::Node => Ok(by_node),
            Level::Graph => pooled(&by_node, self.config.pooling, batch),
        }
    }
}

/// Sums, or means, of the rows of each graph's nodes: `[num_nodes, columns]` → `[num_graphs, columns]`.
///
/// # Errors
/// Those of libtorch.
pub fn pooled(by_node: &Tensor, pooling: Pooling, batch: &Batch) -> Result<Tensor, ModelError> {
    let shared = match pooling {
        Pooling::Mean => by_node.f_mul(&shares(batch)?)?,
        _ => by_node.shallow_clone(),
    };
    Ok(segments::sums(&shared, &batch.node_pointers, &batch.graph_of_node)?)
}

/// Rows of the nodes.
struct Rows {
    nodes: Tensor,
    vectors: Option<Tensor>,
    /// `[num_nodes, outputs]`: the head's values.
    by_node: Tensor,
}

/// One over the number of nodes of each node's graph, `[num_nodes, 1]`, f32.
fn shares(batch: &Batch) -> Result<Tensor, TchError> {
    let counts = batch.node_pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>)?.f_to_kind(Kind::Float)?;
    counts.f_index_select(0, &batch.graph_of_node)?.f_reciprocal()?.f_unsqueeze(1)
}
