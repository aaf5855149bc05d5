//! Convolutions of graphs and of nodes, on edges whose targets are the first of its sources: GraphSAGE with the mean and gcn aggregators, GCN,
//! GAT, GATv2, and a linear map, which sends no messages.

use kdgat_graph::{Adjacency, Neighbourhood, OwnRows};
use tch::Tensor;

use super::attention::{AttentionDropout, Backend};
use super::fused::neighbours::{Start, Weighting, weighted_neighbour_sum};
use super::fused::sparse_linear::SparseInput;
use super::layers::{Linear, matmul_transposed};
use super::node_gnn_config::NodeGnnConfig;
use super::parameters::{Init, Scope};
use super::{GatConv, GatV2Conv, ModelError, fused, shared_rows};

/// Edges that a layer reads.
#[derive(Debug, Clone, Copy)]
pub struct LayerEdges<'a> {
    /// The edges.
    pub adjacency: &'a Adjacency,
    /// `[num_sources]`, f32: number of edges to each source in the whole graph, plus 1; `None`: counted from the edges. See
    /// [`Neighbourhood::source_degrees`].
    pub source_degrees: Option<&'a Tensor>,
    /// See [`Neighbourhood::own`].
    pub own: Option<OwnRows>,
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
        let source_degrees = neighbourhood.source_degrees.get(position);
        Ok(Some(Self { adjacency, source_degrees, own: neighbourhood.own }))
    }

    /// The rows of all sources, of which several processes have some each.
    pub(super) fn of_sources(&self, rows: &Tensor) -> Result<Tensor, ModelError> {
        match self.own {
            None => Ok(rows.shallow_clone()),
            Some(own) => shared_rows::own_first(rows, own),
        }
    }
}

/// A convolution without normalisation and activation.
#[derive(Debug)]
pub enum Convolution {
    /// W_l·mean_j x_j + b + W_r·x_i; a node without neighbours has a mean of 0.
    Sage {
        /// W_l and b.
        neighbours: Linear,
        /// W_r, `[output, input]`.
        own: Tensor,
    },
    /// W·(Σ_j x_j + x_i)/(d + 1) + b
    SageGcn {
        /// W, `[output, input]`.
        weight: Tensor,
        /// b, `[output]`.
        bias: Tensor,
    },
    /// Σ_j W x_j / √(D_i D_j) + b over the neighbours and the node itself, D counting both.
    Gcn {
        /// W, `[output, input]`.
        weight: Tensor,
        /// b, `[output]`.
        bias: Tensor,
    },
    /// Attention.
    Gat(GatConv),
    /// Attention of source and target together.
    GatV2(GatV2Conv),
    /// W·x_i + b
    Linear(Linear),
}

impl Convolution {
    /// A GraphSAGE with the mean aggregator from `input` to `output` columns.
    pub fn sage(mut scope: Scope, [input, output]: [i64; 2]) -> Result<Self, ModelError> {
        Ok(Self::Sage {
            neighbours: Linear::new(scope.sub("lin_l"), input, output)?,
            own: scope.sub("lin_r").parameter("weight", &[output, input], Init::Linear { fan_in: input })?,
        })
    }

    /// A GraphSAGE with the gcn aggregator from `input` to `output` columns.
    pub fn sage_gcn(mut scope: Scope, [input, output]: [i64; 2]) -> Result<Self, ModelError> {
        let mut scope = scope.sub("lin");
        Ok(Self::SageGcn {
            weight: scope.parameter("weight", &[output, input], Init::Glorot)?,
            bias: scope.parameter("bias", &[output], Init::Constant(0.0))?,
        })
    }

    /// A GCN from `input` to `output` columns.
    pub fn gcn(mut scope: Scope, [input, output]: [i64; 2]) -> Result<Self, ModelError> {
        Ok(Self::Gcn {
            weight: scope.sub("lin").parameter("weight", &[output, input], Init::Glorot)?,
            bias: scope.parameter("bias", &[output], Init::Constant(0.0))?,
        })
    }

    /// Applies the convolution to one row for each source: → `[num_targets, output]`, one row for each row of the input for a linear map.
    ///
    /// # Errors
    /// No edges for a convolution that reads them, and errors of libtorch.
    pub fn forward(
        &self,
        rows: &Rows,
        edges: Option<LayerEdges>,
        dropout: Option<AttentionDropout>,
        kernel: Backend,
    ) -> Result<Tensor, ModelError> {
        let needed = || edges.ok_or_else(no_edges);
        match self {
            Self::Sage { neighbours, own } => {
                let (edges, [weight, bias]) = (needed()?, neighbours.parameters());
                let adjacency = edges.adjacency;
                let own = rows.linear_of_first(adjacency.num_targets(), own, Some(bias), kernel)?;
                match rows.to_sum_first(weight) {
                    None => {
                        let values = edges.of_sources(&rows.linear(weight, None, kernel)?)?;
                        weighted_neighbour_sum(&values, adjacency, Weighting::Mean, Start::Rows(&own), kernel)
                    }
                    Some(x) => {
                        let x = edges.of_sources(x)?;
                        let mean = weighted_neighbour_sum(&x, adjacency, Weighting::Mean, Start::Zero, kernel)?;
                        Ok(matmul_transposed(&mean, weight, kernel)?.f_add(&own)?)
                    }
                }
            }
            Self::SageGcn { weight, bias } => {
                sum_of_maps(rows, [weight, bias], needed()?, Weighting::MeanWithOwn, kernel)
            }
            Self::Gcn { weight, bias } => {
                let edges = needed()?;
                let weighting = Weighting::Symmetric { degrees: edges.source_degrees, factor: 1.0 };
                sum_of_maps(rows, [weight, bias], edges, weighting, kernel)
            }
            Self::Gat(conv) => {
                let edges = needed()?;
                let values = edges.of_sources(&rows.linear(conv.weight(), None, kernel)?)?;
                conv.forward_values(&values, edges.adjacency, kernel, dropout)
            }
            Self::GatV2(conv) => {
                let edges = needed()?;
                let adjacency = edges.adjacency;
                let [source, target] = conv.linear_maps().map(Linear::parameters);
                let source = edges.of_sources(&rows.linear(source[0], Some(source[1]), kernel)?)?;
                let target = rows.linear_of_first(adjacency.num_targets(), target[0], Some(target[1]), kernel)?;
                conv.forward_values([&source, &target], adjacency, kernel, dropout)
            }
            Self::Linear(linear) => {
                let [weight, bias] = linear.parameters();
                rows.linear(weight, Some(bias), kernel)
            }
        }
    }
}

pub(super) fn no_edges() -> ModelError {
    ModelError::Architecture {
        field: "kind",
        found: "a layer that reads neighbours, and a batch without edges".to_owned(),
        expected: "make the batch with the edges of its nodes",
    }
}

/// `W·Σ_j w_ij x_j + b`.
fn sum_of_maps(
    rows: &Rows,
    [weight, bias]: [&Tensor; 2],
    edges: LayerEdges,
    weighting: Weighting,
    kernel: Backend,
) -> Result<Tensor, ModelError> {
    let adjacency = edges.adjacency;
    match rows.to_sum_first(weight) {
        None => {
            let values = edges.of_sources(&rows.linear(weight, None, kernel)?)?;
            weighted_neighbour_sum(&values, adjacency, weighting, Start::Row(bias), kernel)
        }
        Some(x) => {
            let x = edges.of_sources(x)?;
            let sums = weighted_neighbour_sum(&x, adjacency, weighting, Start::Zero, kernel)?;
            linear(&sums, weight, Some(bias), kernel)
        }
    }
}

/// The first rows of a matrix.
pub(super) fn first_rows(x: &Tensor, count: i64) -> Result<Tensor, ModelError> {
    Ok(if x.size()[0] == count { x.shallow_clone() } else { x.f_narrow(0, 0, count)? })
}

/// The input of a layer, with its dropout.
#[derive(Debug)]
pub enum Rows {
    /// `[num_rows, columns]`
    Matrix(Tensor),
    /// Mostly zeros.
    Sparse(SparseInput),
}

impl Rows {
    fn count(&self) -> i64 {
        match self {
            Self::Matrix(x) => x.size()[0],
            Self::Sparse(x) => x.num_rows(),
        }
    }

    pub(super) fn columns(&self) -> i64 {
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
    pub(super) fn matrix_of_first(&self, count: i64, kernel: Backend) -> Result<Tensor, ModelError> {
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
