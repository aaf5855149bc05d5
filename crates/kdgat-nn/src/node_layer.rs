//! One layer of a node network, on edges whose targets are the first of its sources: a whole graph, the sampled neighbours of a
//! few nodes, or all neighbours of a block of nodes.

use kdgat_graph::{Adjacency, Neighbourhood, NodeFeatures};
use tch::Tensor;

use super::attention::{AttentionDropout, Backend};
use super::fused::elementwise::{Elementwise, with_dropout};
use super::fused::neighbours::{Start, Weighting, weighted_neighbour_sum};
use super::fused::sparse_linear::SparseInput;
use super::fused::step_seed::{self, LayerId};
use super::layers::{Linear, Mode, composed_dropout, mask_of, matmul_transposed};
use super::node_gnn_config::{Aggregator, NodeGnnConfig, NodeGnnKind};
use super::normed_activation::NormedActivation;
use super::parameters::{Init, Scope};
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

/// Edges that a layer reads.
#[derive(Debug, Clone, Copy)]
pub struct LayerEdges<'a> {
    /// The edges.
    pub adjacency: &'a Adjacency,
    /// `[num_sources]`, f32: number of edges to each source in the whole graph, plus 1; `None`: counted from the edges. See
    /// [`Neighbourhood::source_degrees`].
    pub source_degrees: Option<&'a Tensor>,
}

impl<'a> LayerEdges<'a> {
    /// The edges of layer `index` of a network; `None` for a layer that reads none.
    ///
    /// # Errors
    /// If the neighbourhood has fewer layers of edges than the network.
    pub fn of_layer(
        neighbourhood: &'a Neighbourhood,
        config: &NodeGnnConfig,
        index: i64,
    ) -> Result<Option<Self>, ModelError> {
        let Some(position) = config.edges_of_layer(index) else { return Ok(None) };
        let Some(adjacency) = neighbourhood.layers.get(position) else {
            return Err(ModelError::Architecture {
                field: "layers",
                found: format!("edges of {} layers in the batch", neighbourhood.layers.len()),
                expected: "a batch needs edges for each layer of the model that reads neighbours",
            });
        };
        Ok(Some(Self { adjacency, source_degrees: neighbourhood.source_degrees.get(position) }))
    }
}

/// A layer with its normalisation, activation and dropout.
#[derive(Debug)]
pub struct NodeLayer {
    transform: Transform,
    /// `None` for a layer that gives outputs.
    end: Option<NormedActivation>,
    /// Identifies dropout of the input features.
    input_layer: LayerId,
    /// Identifies dropout of attention weights.
    attention: LayerId,
    /// Columns of the input.
    input_columns: i64,
}

#[derive(Debug)]
enum Transform {
    /// W_l·mean_j x_j + b + W_r·x_i
    Sage {
        neighbours: Linear,
        own: Tensor,
    },
    /// W·(Σ_j x_j + x_i)/(d + 1) + b
    SageGcn {
        weight: Tensor,
        bias: Tensor,
    },
    /// Σ_j W x_j / √(D_i D_j) + b over the neighbours and the node itself.
    Gcn {
        weight: Tensor,
        bias: Tensor,
    },
    Gat(GatConv),
    GatV2(GatV2Conv),
    Linear(Linear),
    /// (1 − α)·Σ_j h_j / √(D_i D_j) + α·h0_i
    Propagation,
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
        let transform = if index >= config.layers {
            Transform::Propagation
        } else {
            match (config.kind, config.aggregator) {
                (NodeGnnKind::Sage, Aggregator::Mean) => Transform::Sage {
                    neighbours: Linear::new(layer.sub("lin_l"), input, output)?,
                    own: layer.sub("lin_r").parameter("weight", &[output, input], Init::Linear { fan_in: input })?,
                },
                (NodeGnnKind::Sage, Aggregator::Gcn) => Transform::SageGcn {
                    weight: layer.sub("lin").parameter("weight", &[output, input], Init::Glorot)?,
                    bias: layer.sub("lin").parameter("bias", &[output], Init::Constant(0.0))?,
                },
                (NodeGnnKind::Gcn, _) => Transform::Gcn {
                    weight: layer.sub("lin").parameter("weight", &[output, input], Init::Glorot)?,
                    bias: layer.parameter("bias", &[output], Init::Constant(0.0))?,
                },
                (NodeGnnKind::Gat, _) if hidden => Transform::Gat(GatConv::new(layer, input, channels, heads)?),
                (NodeGnnKind::Gat, _) => Transform::Gat(GatConv::averaging(layer, input, channels, heads)?),
                (NodeGnnKind::GatV2, _) => {
                    Transform::GatV2(GatV2Conv::without_edges(layer, input, channels, heads, !hidden)?)
                }
                (NodeGnnKind::Appnp | NodeGnnKind::Mlp, _) => Transform::Linear(Linear::new(layer, input, output)?),
            }
        };
        let end = match hidden {
            true => Some(NormedActivation::new(scope.sub("norms").sub(index), output, config.norm, config.activation)?),
            false => None,
        };
        Ok(Self { transform, end, input_layer, attention, input_columns: input })
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
        if let (Transform::Propagation, LayerInput::Propagated { rows, initial }) = (&self.transform, input) {
            return propagate(rows, initial, edges.ok_or_else(no_edges)?, config, kernel);
        }
        let rows = self.rows(input, config, kernel, mode)?;
        let y = self.transform(&rows, edges, config, kernel, mode)?;
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

    /// The layer without its end.
    fn transform(
        &self,
        rows: &Rows,
        edges: Option<LayerEdges>,
        config: &NodeGnnConfig,
        kernel: Backend,
        mode: Mode,
    ) -> Result<Tensor, ModelError> {
        let needed = || edges.ok_or_else(no_edges);
        match &self.transform {
            Transform::Sage { neighbours, own } => {
                let (adjacency, [weight, bias]) = (needed()?.adjacency, neighbours.parameters());
                let own = rows.linear_of_first(adjacency.num_targets(), own, Some(bias), kernel)?;
                let start = Start::Rows(&own);
                match rows.to_sum_first(weight) {
                    None => {
                        let values = rows.linear(weight, None, kernel)?;
                        weighted_neighbour_sum(&values, adjacency, Weighting::Mean, start, kernel)
                    }
                    Some(x) => {
                        let mean = weighted_neighbour_sum(x, adjacency, Weighting::Mean, Start::Zero, kernel)?;
                        Ok(matmul_transposed(&mean, weight, kernel)?.f_add(&own)?)
                    }
                }
            }
            Transform::SageGcn { weight, bias } => {
                sum_of_maps(rows, [weight, bias], needed()?.adjacency, Weighting::MeanWithOwn, kernel)
            }
            Transform::Gcn { weight, bias } => {
                let LayerEdges { adjacency, source_degrees: degrees } = needed()?;
                let weighting = Weighting::Symmetric { degrees, factor: 1.0 };
                sum_of_maps(rows, [weight, bias], adjacency, weighting, kernel)
            }
            Transform::Gat(conv) => {
                let values = rows.linear(conv.weight(), None, kernel)?;
                conv.forward_values(&values, needed()?.adjacency, kernel, self.attention_dropout(config, mode)?)
            }
            Transform::GatV2(conv) => {
                let adjacency = needed()?.adjacency;
                let [source, target] = conv.linear_maps().map(Linear::parameters);
                let source = rows.linear(source[0], Some(source[1]), kernel)?;
                let target = rows.linear_of_first(adjacency.num_targets(), target[0], Some(target[1]), kernel)?;
                conv.forward_values([&source, &target], adjacency, kernel, self.attention_dropout(config, mode)?)
            }
            Transform::Linear(linear) => {
                let [weight, bias] = linear.parameters();
                rows.linear(weight, Some(bias), kernel)
            }
            Transform::Propagation => Err(ModelError::Architecture {
                field: "steps",
                found: "a step of propagation without the perceptron's output".to_owned(),
                expected: "a step of propagation reads its input and the perceptron's output",
            }),
        }
    }

    fn attention_dropout(&self, config: &NodeGnnConfig, mode: Mode) -> Result<Option<AttentionDropout>, ModelError> {
        if mode == Mode::Evaluation || config.attention_dropout <= 0.0 {
            return Ok(None);
        }
        let (probability, seed) = (config.attention_dropout, step_seed::of_layer(self.attention)?);
        Ok(Some(AttentionDropout { probability, seed }))
    }
}

fn reads_edges(kind: NodeGnnKind) -> bool {
    !matches!(kind, NodeGnnKind::Appnp | NodeGnnKind::Mlp)
}

fn no_edges() -> ModelError {
    ModelError::Architecture {
        field: "kind",
        found: "a layer that reads neighbours, and a batch without edges".to_owned(),
        expected: "make the batch with the edges of its nodes",
    }
}

/// A step of APPNP's propagation: `(1 − α)·Σ_j h_j / √(D_i D_j) + α·h0_i`.
fn propagate(
    rows: &Tensor,
    initial: &Tensor,
    edges: LayerEdges,
    config: &NodeGnnConfig,
    kernel: Backend,
) -> Result<Tensor, ModelError> {
    let LayerEdges { adjacency, source_degrees: degrees } = edges;
    let returned = first_rows(initial, adjacency.num_targets())?.f_mul_scalar(config.teleport)?;
    let weighting = Weighting::Symmetric { degrees, factor: 1.0 - config.teleport };
    weighted_neighbour_sum(rows, adjacency, weighting, Start::Rows(&returned), kernel)
}

/// `W·Σ_j w_ij x_j + b`.
fn sum_of_maps(
    rows: &Rows,
    [weight, bias]: [&Tensor; 2],
    adjacency: &Adjacency,
    weighting: Weighting,
    kernel: Backend,
) -> Result<Tensor, ModelError> {
    match rows.to_sum_first(weight) {
        None => {
            let values = rows.linear(weight, None, kernel)?;
            weighted_neighbour_sum(&values, adjacency, weighting, Start::Row(bias), kernel)
        }
        Some(x) => {
            let sums = weighted_neighbour_sum(x, adjacency, weighting, Start::Zero, kernel)?;
            linear(&sums, weight, Some(bias), kernel)
        }
    }
}

/// The first rows of a matrix.
fn first_rows(x: &Tensor, count: i64) -> Result<Tensor, ModelError> {
    Ok(if x.size()[0] == count { x.shallow_clone() } else { x.f_narrow(0, 0, count)? })
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

/// The input of a layer, with its dropout.
enum Rows {
    Matrix(Tensor),
    Sparse(SparseInput),
}

impl Rows {
    fn count(&self) -> i64 {
        match self {
            Self::Matrix(x) => x.size()[0],
            Self::Sparse(x) => x.num_rows(),
        }
    }

    fn columns(&self) -> i64 {
        match self {
            Self::Matrix(x) => x.size().get(1).copied().unwrap_or(0),
            Self::Sparse(x) => x.columns(),
        }
    }

    /// The rows if their sums over neighbours come before the map by `weight`, `[output, input]`; `None` if the map comes first.
    /// Both give the same, and sums of fewer columns take less time; the choice depends on the widths alone, so that a node's
    /// output is the same in every batch.
    fn to_sum_first(&self, weight: &Tensor) -> Option<&Tensor> {
        match self {
            Self::Matrix(x) => Some(x).filter(|x| x.size()[1] <= weight.size()[0]),
            Self::Sparse(_) => None,
        }
    }

    /// Applies a linear map: → `[rows, output]`, for a weight `[output, input]` and an optional bias `[output]`.
    fn linear(&self, weight: &Tensor, bias: Option<&Tensor>, kernel: Backend) -> Result<Tensor, ModelError> {
        self.linear_of_first(self.count(), weight, bias, kernel)
    }

    /// Applies a linear map to the first `count` rows.
    fn linear_of_first(
        &self,
        count: i64,
        weight: &Tensor,
        bias: Option<&Tensor>,
        kernel: Backend,
    ) -> Result<Tensor, ModelError> {
        match self {
            Self::Sparse(x) => x.linear(count, weight, bias, kernel),
            Self::Matrix(x) => linear(&first_rows(x, count)?, weight, bias, kernel),
        }
    }

    /// The first `count` rows as a matrix.
    fn matrix_of_first(&self, count: i64, kernel: Backend) -> Result<Tensor, ModelError> {
        match self {
            Self::Matrix(x) => first_rows(x, count),
            Self::Sparse(x) => x.linear(count, &Tensor::f_eye(x.columns(), x.options())?, None, kernel),
        }
    }
}

fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, kernel: Backend) -> Result<Tensor, ModelError> {
    if fused::linear::applies(kernel, x, weight)? {
        return Ok(fused::linear::linear(x, weight, bias)?);
    }
    let product = matmul_transposed(x, weight, kernel)?;
    Ok(match bias {
        None => product,
        Some(bias) => product.f_add(bias)?,
    })
}
