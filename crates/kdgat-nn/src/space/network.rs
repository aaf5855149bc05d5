//! A network in space: outputs of graphs or nodes, and forces.

use kdgat_graph::{Batch, Level, Space};
use kdgat_torch::autocast::widened;
use kdgat_torch::autograd;
use tch::{Kind, TchError, Tensor};

use super::config::SpaceConfig;
use super::dense::{Dense, activated, of_mode};
use super::messages::pulled;
use super::painn::{Features, PaiNN};
use super::pairs::{Pairs, lengths, vectors};
use super::schnet::SchNet;
use crate::attention::Backend;
use crate::fused::smooth_activation::Smooth;
use crate::gnn::{edge_input, node_input};
use crate::graph_pooling::{Pooling, attention};
use crate::irreps::{Bonds, IrrepsNetwork, NodesInSpace};
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
    /// The logarithm of a node's weight from its row, for attention pooling.
    gate: Option<[Dense; 2]>,
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
            (_, Some(irreps)) => Representation::Irreps(IrrepsNetwork::new(
                &mut representation,
                &space,
                irreps,
                [layers, config.edge_features],
                kernel,
            )?),
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
        let mut pooling = scope.sub("pooling");
        let gate = match config.pooling {
            Pooling::Attention => Some([
                Dense::new(pooling.sub(0), [columns, inner], kernel)?,
                Dense::new(pooling.sub(1), [inner, 1], kernel)?,
            ]),
            _ => None,
        };
        Ok(Self { config: config.clone(), space, kernel, embedding, features, representation: built, head, gate })
    }

    /// Outputs and, if the network gives them, forces. In training the forces can be differentiated; in evaluation nothing is recorded for
    /// the parameters, whether gradients are on or off.
    ///
    /// # Errors
    /// A batch without positions, and those of libtorch.
    pub fn forward(&self, batch: &Batch, mode: Mode) -> Result<SpaceAnswer, ModelError> {
        let space = batch.space.as_ref().ok_or(ModelError::NoPositions)?;
        let pairs = Pairs::of(space)?;
        if !self.space.forces {
            let vectors = vectors(space, &space.positions, &pairs)?;
            let Rows { nodes, vectors, by_node } =
                self.rows((batch, space, &space.positions), &vectors, &pairs, mode)?;
            let outputs = self.outputs(by_node, &nodes, batch, mode)?;
            return Ok(SpaceAnswer { outputs, nodes, vectors, forces: None });
        }
        tch::with_grad(|| self.with_forces(batch, space, &pairs, mode))
    }

    /// The forces are sums over lines: the derivative by the vector of a line pulls one end and pushes the other. With bonds, the energy is
    /// differentiated by the positions themselves.
    fn with_forces(&self, batch: &Batch, space: &Space, pairs: &Pairs, mode: Mode) -> Result<SpaceAnswer, ModelError> {
        let has_bonds = self.config.has_bonds();
        let variable = |values: Tensor| values.detach().f_set_requires_grad(true);
        let (positions, by_line, variable) = match has_bonds {
            true => {
                let positions = variable(space.positions.shallow_clone())?;
                (positions.shallow_clone(), vectors(space, &positions, pairs)?, positions)
            }
            false => {
                let by_line = variable(vectors(space, &space.positions, pairs)?)?;
                (space.positions.shallow_clone(), by_line.shallow_clone(), by_line)
            }
        };
        let Rows { nodes, vectors, by_node } = self.rows((batch, space, &positions), &by_line, pairs, mode)?;
        // The sum over all graphs: none depends on the positions of another one.
        let sum = match self.config.pooling {
            Pooling::Mean => by_node.f_mul(&shares(batch)?)?.f_sum(Kind::Float)?,
            Pooling::Attention => self.pooled(&by_node, &nodes, batch, mode)?.f_sum(Kind::Float)?,
            _ => by_node.f_sum(Kind::Float)?,
        };
        let gradients = match mode {
            Mode::Training => autograd::recorded_gradients(&[&sum], &[&variable])?,
            Mode::Evaluation => autograd::gradients(&[&sum], &[None], &[&variable], false)?,
        };
        let gradient = gradients.into_iter().flatten().next();
        let gradient = gradient.map_or_else(|| variable.detach().f_zeros_like(), Ok)?;
        let forces = if has_bonds { gradient.f_neg()? } else { pulled(&gradient, pairs)? };
        let outputs = self.outputs(by_node, &nodes, batch, mode)?;
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

    /// Bonds of the batch, with their features, for a network that reads them.
    fn bonds(&self, batch: &Batch, positions: &Tensor) -> Result<Option<(Bonds, Option<Tensor>)>, ModelError> {
        let Some(config) = self.space.irreps.as_ref().and_then(|irreps| irreps.bonds.as_ref()) else { return Ok(None) };
        let bonds = Bonds::of(batch, positions, config.paths.then_some(&config.listed))?;
        let features = edge_input(&self.config, batch)?;
        let features = features.map(|features| features.f_index_select(0, &bonds.edges)).transpose()?;
        Ok(Some((bonds, features)))
    }

    /// Rows of the nodes, from the vectors of the lines, `[num_lines, 3]`.
    fn rows(
        &self,
        (batch, space, positions): (&Batch, &Space, &Tensor),
        vectors: &Tensor,
        pairs: &Pairs,
        mode: Mode,
    ) -> Result<Rows, ModelError> {
        let (padding_index, scale_by_frequency, sparse) = (-1, false, false);
        let table = of_mode(&self.embedding, mode);
        let x = Tensor::f_embedding(&table, &space.kinds, padding_index, scale_by_frequency, sparse)?;
        let x = match &self.features {
            Some(map) => x.f_add(&map.forward(&node_input(&self.config, batch)?, mode)?)?,
            None => x,
        };
        let Features { scalars, vectors } = match &self.representation {
            Representation::SchNet(network) => {
                let scalars = network.forward(&self.space, (x, &lengths(vectors)?), pairs, mode)?;
                Features { scalars, vectors: None }
            }
            Representation::PaiNN(network) => {
                let distances = lengths(vectors)?;
                let directions = vectors.f_div(&distances)?;
                network.forward(&self.space, (x, &distances, &directions), pairs, mode)?
            }
            Representation::Irreps(network) => {
                let bonds = self.bonds(batch, positions)?;
                let nodes = NodesInSpace { scalars: x, vectors, pairs, bonds };
                Features { scalars: network.forward(&self.space, nodes, mode)?, vectors: None }
            }
        };
        let [first, second] = &self.head;
        let by_node = second.forward(&activated(&first.forward(&scalars, mode)?, Smooth::Silu, self.kernel)?, mode)?;
        Ok(Rows { by_node: widened(&by_node)?, nodes: scalars, vectors })
    }

    /// Outputs of graphs from those of their nodes; outputs of nodes as they are.
    fn outputs(&self, by_node: Tensor, nodes: &Tensor, batch: &Batch, mode: Mode) -> Result<Tensor, ModelError> {
        match self.config.level {
            Level::Node => Ok(by_node),
            Level::Graph => self.pooled(&by_node, nodes, batch, mode),
        }
    }

    /// Sums or means of each graph's nodes, `[num_nodes, columns]` → `[num_graphs, columns]`; with attention, means weighted by the rows that
    /// the head reads, `nodes`.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn pooled(&self, values: &Tensor, nodes: &Tensor, batch: &Batch, mode: Mode) -> Result<Tensor, ModelError> {
        let sums = |values: &Tensor| segments::sums(values, &batch.node_pointers, &batch.graph_of_node);
        match (self.config.pooling, &self.gate) {
            (_, Some([first, second])) => {
                let hidden = activated(&first.forward(nodes, mode)?, Smooth::Silu, self.kernel)?;
                attention(values, &second.forward(&hidden, mode)?, batch)
            }
            (Pooling::Mean, None) => Ok(sums(&values.f_mul(&shares(batch)?)?)?),
            (_, None) => Ok(sums(values)?),
        }
    }
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
