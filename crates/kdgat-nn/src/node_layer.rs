//! One layer of a node network, on edges whose targets are the first of its sources: a whole graph, the sampled neighbours of a
//! few nodes, or all neighbours of a block of nodes.

use kdgat_graph::{Neighbourhood, NodeFeatures};
use tch::Tensor;

use super::attention::{AttentionDropout, Backend};
pub use super::convolution::LayerEdges;
use super::convolution::{Convolution, Rows, first_rows, no_edges};
use super::fused::elementwise::{Elementwise, with_dropout};
use super::fused::neighbours::{Start, Weighting, weighted_neighbour_sum};
use super::fused::sparse_linear::SparseInput;
use super::fused::step_seed::{self, LayerId};
use super::layers::{Linear, Mode, composed_dropout, mask_of};
use super::node_gnn_config::{Aggregator, NodeGnnConfig, NodeGnnKind};
use super::normed_activation::NormedActivation;
use super::parameters::Scope;
use super::{GatConv, GatV2Conv, ModelError, fused};

/// Rows that a layer reads, one for each source of its edges.
#[derive(Debug, Clone, Copy)]
pub enum LayerInput<'a> {
    /// Features of the nodes: the input of the first layer.
    Features(&'a NodeFeatures),
    /// `[num_sources, columns]`: the output of the previous layer.
    Rows(&'a Tensor),
    /// The input of a step of APPNP's propagation.
    Propagated {
        /// `[num_sources, outputs]`: the output of the previous step or, before the first step, of the perceptron.
        rows: &'a Tensor,
        /// `[num_targets or more, outputs]`: the output of the perceptron, of which the rows of the targets are read.
        initial: &'a Tensor,
    },
}

/// A layer with its normalisation, activation and dropout.
#[derive(Debug)]
pub struct NodeLayer {
    /// `None` for a step of propagation, (1 − α)·Σ_j h_j / √(D_i D_j) + α·h0_i.
    convolution: Option<Convolution>,
    /// `None` for a layer that gives outputs.
    end: Option<NormedActivation>,
    /// Identifies dropout of the input features.
    input_layer: LayerId,
    /// Identifies dropout of attention weights.
    attention: LayerId,
    /// Columns of the input.
    input_columns: i64,
}

impl NodeLayer {
    /// Builds layer `index`, of [`NodeGnnConfig::num_layers`].
    ///
    /// # Errors
    /// A tensor that is missing or has another shape.
    pub fn new(scope: &mut Scope, config: &NodeGnnConfig, index: i64) -> Result<Self, ModelError> {
        let (input, output) = (config.input_columns(index), config.output_columns(index));
        let mut layers = scope.sub(if reads_edges(config.kind) { "convs" } else { "lins" });
        let mut layer = layers.sub(index);
        let (input_layer, attention) = (layer.sub("input").layer_id(), layer.sub("attention").layer_id());
        let hidden = config.is_hidden(index);
        let [heads, channels] = match hidden {
            true => [config.heads, config.hidden],
            false => [config.output_heads, output],
        };
        let columns = [input, output];
        let convolution = match (config.kind, config.aggregator) {
            _ if index >= config.layers => None,
            (NodeGnnKind::Sage, Aggregator::Mean) => Some(Convolution::sage(layer, columns)?),
            (NodeGnnKind::Sage, Aggregator::Gcn) => Some(Convolution::sage_gcn(layer, columns)?),
            (NodeGnnKind::Gcn, _) => Some(Convolution::gcn(layer, columns)?),
            (NodeGnnKind::Gat, _) if hidden => Some(Convolution::Gat(GatConv::new(layer, input, channels, heads)?)),
            (NodeGnnKind::Gat, _) => Some(Convolution::Gat(GatConv::averaging(layer, input, channels, heads)?)),
            (NodeGnnKind::GatV2, _) => {
                Some(Convolution::GatV2(GatV2Conv::without_edges(layer, input, channels, heads, !hidden)?))
            }
            (NodeGnnKind::Appnp | NodeGnnKind::Mlp, _) => Some(Convolution::Linear(Linear::new(layer, input, output)?)),
        };
        let end = match hidden {
            true => Some(NormedActivation::new(scope.sub("norms").sub(index), output, config.norm, config.activation)?),
            false => None,
        };
        Ok(Self { convolution, end, input_layer, attention, input_columns: input })
    }

    /// Applies the layer to one row for each source: → `[num_targets, output columns]`, one row for each row of the input if
    /// the layer reads no edges.
    ///
    /// # Errors
    /// An input that is not this layer's: other columns, or no edges for a layer that reads them.
    pub fn forward(
        &self,
        input: LayerInput,
        edges: Option<LayerEdges>,
        config: &NodeGnnConfig,
        kernel: Backend,
        mode: Mode,
    ) -> Result<Tensor, ModelError> {
        let convolution = match (&self.convolution, input) {
            (Some(convolution), _) => convolution,
            (None, LayerInput::Propagated { rows, initial }) => {
                return propagate(rows, initial, edges.ok_or_else(no_edges)?, config, kernel);
            }
            (None, _) => return Err(no_initial_rows()),
        };
        let rows = self.rows(input, config, kernel, mode)?;
        let y = convolution.forward(&rows, edges, self.attention_dropout(config, edges, mode)?, kernel)?;
        let Some(end) = &self.end else { return Ok(y) };
        let y = match config.residual && rows.columns() == y.size()[1] {
            true => y.f_add(&rows.matrix_of_first(y.size()[0], kernel)?)?,
            false => y,
        };
        end.forward(&y, config.dropout, kernel, mode)
    }

    /// Applies layer `index` of a forward over a whole neighbourhood to the outputs of the layer before it, none before the first
    /// layer: the rows and, in APPNP's propagation, the perceptron's output.
    ///
    /// # Errors
    /// Those of [`NodeLayer::forward`], or a neighbourhood with too few layers.
    pub fn advance(
        &self,
        state: Vec<Tensor>,
        index: i64,
        neighbourhood: &Neighbourhood,
        config: &NodeGnnConfig,
        kernel: Backend,
        mode: Mode,
    ) -> Result<Vec<Tensor>, ModelError> {
        let edges = LayerEdges::of_layer(neighbourhood, config, index)?;
        let propagates = index >= config.layers;
        let input = match &state[..] {
            [] => LayerInput::Features(&neighbourhood.features),
            [rows, .., initial] if propagates => LayerInput::Propagated { rows, initial },
            [rows] if propagates => LayerInput::Propagated { rows, initial: rows },
            [rows, ..] => LayerInput::Rows(rows),
        };
        let rows = self.forward(input, edges, config, kernel, mode)?;
        let mut next = vec![rows];
        if propagates && index + 1 < config.num_layers() {
            next.extend(state.into_iter().next_back());
        }
        Ok(next)
    }

    /// The input with its dropout.
    fn rows(&self, input: LayerInput, config: &NodeGnnConfig, kernel: Backend, mode: Mode) -> Result<Rows, ModelError> {
        let rows = match input {
            LayerInput::Rows(rows) | LayerInput::Propagated { rows, .. } => Rows::Matrix(rows.shallow_clone()),
            LayerInput::Features(NodeFeatures::Dense(x)) => {
                Rows::Matrix(input_dropout(x, self.input_layer, config.input_dropout, kernel, mode)?)
            }
            LayerInput::Features(NodeFeatures::Sparse(x)) => {
                Rows::Sparse(SparseInput::new(x, self.input_layer, config.input_dropout, kernel, mode)?)
            }
        };
        if rows.columns() != self.input_columns {
            return Err(ModelError::Architecture {
                field: if matches!(input, LayerInput::Features(_)) { "node_features" } else { "hidden" },
                found: format!("{} in the model, {} in the data", self.input_columns, rows.columns()),
                expected: "the data that the model was trained on, or data with the same columns",
            });
        }
        Ok(rows)
    }

    fn attention_dropout(
        &self,
        config: &NodeGnnConfig,
        edges: Option<LayerEdges>,
        mode: Mode,
    ) -> Result<Option<AttentionDropout>, ModelError> {
        if mode == Mode::Evaluation || config.attention_dropout <= 0.0 {
            return Ok(None);
        }
        let (probability, seed) = (config.attention_dropout, step_seed::of_layer(self.attention)?);
        let heads = if self.end.is_some() { config.heads } else { config.output_heads };
        let edges_before = edges.and_then(|edges| edges.own).map_or(0, |own| own.edges_before);
        Ok(Some(AttentionDropout { probability, seed, first: (edges_before * heads) as usize }))
    }
}

fn no_initial_rows() -> ModelError {
    ModelError::Architecture {
        field: "steps",
        found: "a step of propagation without the perceptron's output".to_owned(),
        expected: "a step of propagation reads its input and the perceptron's output",
    }
}

fn reads_edges(kind: NodeGnnKind) -> bool {
    !matches!(kind, NodeGnnKind::Appnp | NodeGnnKind::Mlp)
}

/// A step of APPNP's propagation: `(1 − α)·Σ_j h_j / √(D_i D_j) + α·h0_i`.
fn propagate(
    rows: &Tensor,
    initial: &Tensor,
    edges: LayerEdges,
    config: &NodeGnnConfig,
    kernel: Backend,
) -> Result<Tensor, ModelError> {
    let LayerEdges { adjacency, source_degrees: degrees, .. } = edges;
    let rows = &edges.of_sources(rows)?;
    let returned = first_rows(initial, adjacency.num_targets())?.f_mul_scalar(config.teleport)?;
    let weighting = Weighting::Symmetric { degrees, factor: 1.0 - config.teleport };
    weighted_neighbour_sum(rows, adjacency, weighting, Start::Rows(&returned), kernel)
}

fn input_dropout(
    x: &Tensor,
    layer: LayerId,
    probability: f64,
    kernel: Backend,
    mode: Mode,
) -> Result<Tensor, ModelError> {
    if fused::applies(kernel, &[x]) {
        return Ok(match mask_of(layer, probability, mode)? {
            None => x.shallow_clone(),
            mask => with_dropout(x, Elementwise::Identity, mask)?,
        });
    }
    composed_dropout(x, probability, mode)
}
