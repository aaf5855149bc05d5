//! Graph networks for graphs of any kind: GIN (Xu et al. 2019), with edge features GIN-E (Hu et al. 2020), GCN (Kipf & Welling 2017),
//! GraphSAGE with the mean aggregator (Hamilton et al. 2017), GAT, and an MLP on node features and degrees, which sends no messages.
//!
//! Node features → layers, each with batch norm, ReLU and dropout → [pooling](super::Pooling) of each graph's nodes of every layer's output,
//! concatenated → head of two linear layers → one number for each class or target; with `embedding_columns`, a linear layer also maps the
//! pooled rows to an embedding of the graph. The layers and the names of their tensors are those of
//! PyTorch Geometric's `GINConv` and `GINEConv` with an `MLP`, `GCNConv`, `SAGEConv` and `GATConv`.

use kdgat_graph::{Adjacency, Batch};
use tch::{Kind, Tensor};

use super::attention::Backend;
use super::fused::edge_messages::edge_message_sum;
use super::fused::neighbours::neighbour_sum;
use super::gnn_config::{GnnConfig, GnnKind};
use super::graph_pooling::GraphPool;
use super::layers::{BatchNorm, Linear, Mode, matmul_transposed, relu_dropout};
use super::parameters::{Init, Scope};
use super::{GatConv, ModelError};

/// A graph network.
#[derive(Debug)]
pub struct Gnn {
    config: GnnConfig,
    kernel: Backend,
    layers: Vec<GnnLayer>,
    head: GnnHead,
    embedding: Option<Linear>,
}

impl Gnn {
    /// Builds the model from the tensors of `scope`.
    pub fn new(mut scope: Scope, config: &GnnConfig, kernel: Backend) -> Result<Self, ModelError> {
        config.check()?;
        let layers =
            (0..config.layers).map(|index| GnnLayer::new(&mut scope, config, index)).collect::<Result<_, _>>()?;
        let head = GnnHead::new(&mut scope, config)?;
        let embedding = match config.embedding_columns {
            0 => None,
            columns => Some(Linear::new(scope.sub("embedding"), config.pooled_columns(), columns)?),
        };
        Ok(Self { config: config.clone(), kernel, layers, head, embedding })
    }

    /// The model's architecture.
    pub fn config(&self) -> &GnnConfig {
        &self.config
    }

    /// Pooled rows of each graph, `[num_graphs, width * layers]`.
    pub fn embed(&self, batch: &Batch, mode: Mode) -> Result<Tensor, ModelError> {
        let mut x = node_input(&self.config, batch)?;
        let mut pooled = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            x = layer.forward(&x, batch, &self.config, self.kernel, mode)?;
            pooled.push(layer.pool(&x, batch, self.kernel)?);
        }
        Ok(Tensor::f_cat(&pooled, 1)?)
    }

    /// Outputs for pooled rows: `[num_graphs, width * layers]` → `[num_graphs, outputs]`.
    pub fn classify(&self, pooled: &Tensor, mode: Mode) -> Result<Tensor, ModelError> {
        self.head.forward(pooled, self.config.dropout, self.kernel, mode)
    }

    /// Embeddings for pooled rows, `[num_graphs, embedding_columns]`; `None` for a model without embedding.
    pub fn embedding(&self, pooled: &Tensor) -> Result<Option<Tensor>, ModelError> {
        self.embedding.as_ref().map(|layer| layer.forward(pooled, self.kernel)).transpose()
    }

    /// Outputs of each graph, `[num_graphs, outputs]`: logits, or standardised values.
    pub fn forward(&self, batch: &Batch, mode: Mode) -> Result<Tensor, ModelError> {
        self.classify(&self.embed(batch, mode)?, mode)
    }
}

/// The first layer's input: node features, `[num_nodes, node_features]`; for an MLP with ln(1 + degree) as a last column.
///
/// # Errors
/// If the batch has another number of node or edge features.
pub fn node_input(config: &GnnConfig, batch: &Batch) -> Result<Tensor, ModelError> {
    let found = batch.continuous.size().get(1).copied().unwrap_or(0);
    if found != config.node_features {
        return Err(ModelError::Architecture {
            field: "node_features",
            found: format!("{} in the model, {found} in the data", config.node_features),
            expected: "the data that the model was trained on, or data with the same columns",
        });
    }
    if config.edge_features > 0 {
        let features = batch.edge_attributes.as_ref().ok_or(ModelError::NoEdgeFeatures)?;
        let found = features.size().get(1).copied().unwrap_or(0);
        if found != config.edge_features {
            return Err(ModelError::Architecture {
                field: "edge_features",
                found: format!("{} in the model, {found} in the data", config.edge_features),
                expected: "the data that the model was trained on, or data with the same columns",
            });
        }
    }
    match config.kind {
        GnnKind::Mlp => {
            let degrees = degrees(&batch.adjacency)?.f_log()?;
            Ok(Tensor::f_cat(&[&batch.continuous, &degrees], 1)?)
        }
        _ => Ok(batch.continuous.shallow_clone()),
    }
}

/// Number of incoming edges of each node, itself included, `[num_nodes, 1]`, f32.
fn degrees(adjacency: &Adjacency) -> Result<Tensor, ModelError> {
    let counts = adjacency.row_pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>)?;
    Ok(counts.f_to_kind(Kind::Float)?.f_unsqueeze(1)?)
}

/// A layer with its normalisation, and the pooling of its output.
#[derive(Debug)]
pub struct GnnLayer {
    conv: GnnConv,
    norm: BatchNorm,
    pool: GraphPool,
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
    Gcn {
        weight: Tensor,
        bias: Tensor,
    },
    Sage {
        neighbours: Linear,
        own: Tensor,
    },
    Gat(GatConv),
    Mlp(Linear),
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
            GnnKind::Gcn => GnnConv::Gcn {
                weight: conv.sub("lin").parameter("weight", &[width, input], Init::Glorot)?,
                bias: conv.parameter("bias", &[width], Init::Constant(0.0))?,
            },
            GnnKind::Sage => GnnConv::Sage {
                neighbours: Linear::new(conv.sub("lin_l"), input, width)?,
                own: conv.sub("lin_r").parameter("weight", &[width, input], Init::Linear { fan_in: input })?,
            },
            GnnKind::Gat => GnnConv::Gat(GatConv::new(conv, input, config.hidden, config.heads)?),
            GnnKind::Mlp => GnnConv::Mlp(Linear::new(conv.sub("lin"), input, width)?),
        };
        let norm = BatchNorm::new(scope.sub("norms").sub(index).sub("module"), width)?;
        Ok(Self { conv, norm, pool: GraphPool::new(scope.sub("pools").sub(index), config.pooling, width)? })
    }

    /// Names of the tensors of layer `index`.
    pub fn tensor_names(config: &GnnConfig, index: i64) -> Vec<String> {
        let norm = |path: &str| {
            ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
                .map(|name| format!("{path}.module.{name}"))
        };
        let conv: &[&str] = match config.kind {
            GnnKind::Gin => &["nn.lins.0.weight", "nn.lins.0.bias", "nn.lins.1.weight", "nn.lins.1.bias"],
            GnnKind::Gcn => &["lin.weight", "bias"],
            GnnKind::Sage => &["lin_l.weight", "lin_l.bias", "lin_r.weight"],
            GnnKind::Gat => GatConv::TENSORS,
            GnnKind::Mlp => &["lin.weight", "lin.bias"],
        };
        let mut names: Vec<String> = conv.iter().map(|name| format!("convs.{index}.{name}")).collect();
        if config.edge_features > 0 {
            names.extend(["weight", "bias"].map(|name| format!("convs.{index}.lin.{name}")));
        }
        if config.kind == GnnKind::Gin {
            names.extend(norm(&format!("convs.{index}.nn.norms.0")));
        }
        names.extend(norm(&format!("norms.{index}")));
        names.extend(GraphPool::tensors(config.pooling).iter().map(|name| format!("pools.{index}.{name}")));
        names
    }

    /// Pools the layer's output: `[num_nodes, width]` → `[num_graphs, width]`.
    pub fn pool(&self, x: &Tensor, batch: &Batch, kernel: Backend) -> Result<Tensor, ModelError> {
        self.pool.forward(x, batch, kernel)
    }

    /// Applies the layer: `[num_nodes, input]` → `[num_nodes, width]`.
    pub fn forward(
        &self,
        x: &Tensor,
        batch: &Batch,
        config: &GnnConfig,
        kernel: Backend,
        mode: Mode,
    ) -> Result<Tensor, ModelError> {
        let real = batch.real.as_ref().map(|real| &real.nodes);
        let y = self.conv.forward(x, batch, kernel, mode)?;
        self.norm.forward(&y, real, config.dropout, kernel, mode)
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
            // Σ_j W x_j / √(d_i d_j) + b over the neighbours and the node itself, d counting both.
            Self::Gcn { weight, bias } => {
                let scale = degrees(adjacency)?.f_rsqrt()?;
                let values = matmul_transposed(x, weight, kernel)?.f_mul(&scale)?;
                neighbour_sum(&values, adjacency, kernel)?.f_mul(&scale)?.f_add(bias)?
            }
            // W_l·mean_j x_j + b + W_r·x_i; a node without neighbours has a mean of 0.
            Self::Sage { neighbours, own } => {
                let counts = degrees(adjacency)?.f_sub_scalar(1.0)?.f_clamp_min(1.0)?;
                let mean = neighbour_sum(x, adjacency, kernel)?.f_sub(x)?.f_div(&counts)?;
                neighbours.forward(&mean, kernel)?.f_add(&matmul_transposed(x, own, kernel)?)?
            }
            Self::Gat(conv) => conv.forward(x, adjacency, kernel)?,
            Self::Mlp(linear) => linear.forward(x, kernel)?,
        })
    }
}

/// The head: two linear layers with ReLU and dropout between them.
#[derive(Debug)]
pub struct GnnHead {
    first: Linear,
    activation: super::fused::step_seed::LayerId,
    second: Linear,
}

impl GnnHead {
    /// Names of its tensors, and of those of the embedding.
    pub fn tensor_names(config: &GnnConfig) -> Vec<String> {
        let mut names = vec!["head.lins.0.weight", "head.lins.0.bias", "head.lins.1.weight", "head.lins.1.bias"];
        if config.embedding_columns > 0 {
            names.extend(["embedding.weight", "embedding.bias"]);
        }
        names.into_iter().map(str::to_owned).collect()
    }

    /// Builds the head.
    pub fn new(scope: &mut Scope, config: &GnnConfig) -> Result<Self, ModelError> {
        let mut head = scope.sub("head");
        let mut lins = head.sub("lins");
        let first = Linear::new(lins.sub(0), config.pooled_columns(), config.width())?;
        let second = lins.sub(1);
        let activation = second.layer_id();
        Ok(Self { first, activation, second: Linear::new(second, config.width(), config.outputs)? })
    }

    /// Applies the head: `[num_graphs, width * layers]` → `[num_graphs, outputs]`.
    pub fn forward(&self, pooled: &Tensor, dropout: f64, kernel: Backend, mode: Mode) -> Result<Tensor, ModelError> {
        let hidden = self.first.forward(pooled, kernel)?;
        let hidden = relu_dropout(&hidden, self.activation, dropout, kernel, mode)?;
        self.second.forward(&hidden, kernel)
    }
}

#[cfg(test)]
mod tests {
    use kdgat_graph::columns::Columns;
    use kdgat_graph::{AssembleOptions, FeatureSet, Vocabulary, assemble::Assembler};
    use std::sync::Arc;
    use tch::Device;

    use super::super::parameters::FreshParameters;
    use super::super::{InputConfig, Pooling};
    use super::*;

    /// A path of three nodes, a star of four, and a node without edges; features are 0, 1, 2…
    fn batch() -> Batch {
        let mut columns = Columns::new(FeatureSet::Columns { nodes: 2, edges: 3, targets: 1 });
        let graphs: [(u32, &[(u16, u16)]); 3] =
            [(3, &[(0, 1), (1, 0), (1, 2), (2, 1)]), (4, &[(0, 1), (1, 0), (0, 2), (2, 0), (0, 3), (3, 0)]), (1, &[])];
        let mut feature = 0.0;
        for (nodes, edges) in graphs {
            let mut edges = edges.to_vec();
            edges.sort_by_key(|&(source, target)| (target, source));
            columns.can_ids.extend(0..nodes);
            columns.attack_free.extend((0..nodes).map(|_| 1));
            for _ in 0..2 * nodes {
                columns.node_features.push(feature);
                feature += 0.5;
            }
            let mut rows = vec![0u16; nodes as usize + 1];
            for &(source, target) in &edges {
                columns.sources.push(source);
                columns.targets.push(target);
                columns.edge_features.extend([f32::from(source) - 1.5, f32::from(target) * -0.5, feature.sin()]);
                rows[target as usize + 1] += 1;
            }
            (1..rows.len()).for_each(|node| rows[node] += rows[node - 1]);
            columns.row_pointers.extend(rows);
            columns.graph_targets.push(1.0);
            columns.finish_graph(false, 0, 0, 0.0);
        }
        let mut options = AssembleOptions::new(Arc::new(Vocabulary::from_ids([])));
        options.edge_attributes = true;
        Assembler::default().assemble_columns(&columns, &options).unwrap()
    }

    fn config(kind: GnnKind, edge_features: i64) -> GnnConfig {
        // Each pooling is that of a kind.
        let pooling = match kind {
            GnnKind::Gin => Pooling::Sum,
            GnnKind::Gcn => Pooling::Mean,
            GnnKind::Sage => Pooling::Max,
            GnnKind::Gat | GnnKind::Mlp => Pooling::Attention,
        };
        GnnConfig {
            kind,
            node_features: 2,
            edge_features,
            hidden: 6,
            layers: 2,
            heads: if kind == GnnKind::Gat { 2 } else { 1 },
            outputs: 3,
            embedding_columns: 5,
            pooling,
            dropout: 0.0,
            target_scales: Vec::new(),
            input: InputConfig::default(),
        }
    }

    /// All kinds, with the number of edge features that they read.
    const KINDS: [(GnnKind, i64); 6] = [
        (GnnKind::Gin, 0),
        (GnnKind::Gin, 3),
        (GnnKind::Gcn, 0),
        (GnnKind::Sage, 0),
        (GnnKind::Gat, 0),
        (GnnKind::Mlp, 0),
    ];

    #[test]
    fn labels_and_targets_reach_the_batch() {
        let batch = batch();
        assert_eq!(Vec::<i64>::try_from(&batch.labels).unwrap(), [1, 1, 1]);
        assert_eq!(batch.targets.unwrap().size(), [3, 1]);
    }

    #[test]
    fn a_sum_over_neighbours_includes_the_node() {
        let batch = batch();
        let x = &batch.continuous;
        for kernel in [Backend::Fused, Backend::Composed] {
            let sums = neighbour_sum(x, &batch.adjacency, kernel).unwrap();
            let first = |tensor: &Tensor, node: i64| tensor.double_value(&[node, 0]);
            assert_eq!(first(&sums, 1), first(x, 0) + first(x, 1) + first(x, 2));
            assert_eq!(first(&sums, 3), (3..7).map(|node| first(x, node)).sum::<f64>());
            assert_eq!(first(&sums, 7), first(x, 7));
        }
    }

    #[test]
    fn messages_of_edges_are_added_to_the_node() {
        let batch = batch();
        let x = &batch.continuous;
        let edges = Tensor::full([batch.adjacency.num_edges(), 2], -1.0, (Kind::Float, Device::Cpu));
        for kernel in [Backend::Fused, Backend::Composed] {
            let sums = edge_message_sum(x, &edges, &batch.adjacency, kernel).unwrap();
            let first = |tensor: &Tensor, node: i64| tensor.double_value(&[node, 0]);
            let message = |node: i64| (first(x, node) - 1.0).max(0.0);
            assert_eq!(first(&sums, 1), first(x, 1) + message(0) + message(2));
            assert_eq!(first(&sums, 7), first(x, 7), "its self-loop is no message");
        }
    }

    /// The fused passes give the composed ones' outputs and gradients.
    #[test]
    fn fused_and_composed_agree() {
        let batch = batch();
        for (kind, edge_features) in KINDS {
            let of = |kernel: Backend| {
                let mut parameters = FreshParameters::new(5, Device::Cpu);
                let model = Gnn::new(Scope::root(&mut parameters), &config(kind, edge_features), kernel).unwrap();
                let pooled = model.embed(&batch, Mode::Training).unwrap();
                let outputs = model.classify(&pooled, Mode::Training).unwrap();
                let embedding = model.embedding(&pooled).unwrap().unwrap();
                (outputs.square().sum(Kind::Float) + embedding.square().sum(Kind::Float)).backward();
                let tensors = parameters.into_tensors();
                let gradients: Vec<Tensor> = tensors
                    .iter()
                    .filter(|named| named.tensor.requires_grad())
                    .map(|named| named.tensor.grad())
                    .collect();
                (outputs.detach(), gradients)
            };
            let ((fused, fused_gradients), (composed, composed_gradients)) =
                (of(Backend::Fused), of(Backend::Composed));
            assert!(fused.allclose(&composed, 1e-4, 1e-5, false), "{kind:?}: {fused} {composed}");
            for (fused, composed) in fused_gradients.iter().zip(&composed_gradients) {
                assert!(fused.allclose(composed, 1e-3, 1e-3, false), "{kind:?}: {fused} {composed}");
            }
        }
    }

    /// In evaluation, a graph's output does not depend on the graphs beside it.
    #[test]
    fn a_graph_has_the_same_output_in_every_batch() {
        let batch = batch();
        for (kind, edge_features) in KINDS {
            let mut parameters = FreshParameters::new(5, Device::Cpu);
            let model = Gnn::new(Scope::root(&mut parameters), &config(kind, edge_features), Backend::Auto).unwrap();
            let together = tch::no_grad(|| model.forward(&batch, Mode::Evaluation).unwrap());
            for graph in 0..3 {
                let alone = batch.select_graphs(&[graph]).unwrap();
                let alone = tch::no_grad(|| model.forward(&alone, Mode::Evaluation).unwrap());
                assert!(alone.get(0).equal(&together.get(graph as i64)), "{kind:?}, graph {graph}: {alone} {together}");
            }
        }
    }

    #[test]
    fn every_tensor_is_named_by_its_layer() {
        for (kind, edge_features) in KINDS {
            let config = config(kind, edge_features);
            let mut parameters = FreshParameters::new(1, Device::Cpu);
            Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
            let mut found: Vec<String> = parameters.into_tensors().into_iter().map(|named| named.name).collect();
            let layers = (0..config.layers).flat_map(|index| GnnLayer::tensor_names(&config, index));
            let mut expected: Vec<String> = layers.chain(GnnHead::tensor_names(&config)).collect();
            found.sort();
            expected.sort();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn other_columns_are_refused() {
        let mut parameters = FreshParameters::new(1, Device::Cpu);
        let config = GnnConfig { node_features: 5, ..config(GnnKind::Gin, 0) };
        let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
        let error = model.forward(&batch(), Mode::Evaluation).unwrap_err().to_string();
        assert!(error.contains("5 in the model, 2 in the data"), "{error}");
        let without_edges = Batch { edge_attributes: None, ..batch() };
        let config = super::tests::config(GnnKind::Gin, 3);
        let mut parameters = FreshParameters::new(1, Device::Cpu);
        let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
        let error = model.forward(&without_edges, Mode::Evaluation).unwrap_err().to_string();
        assert!(error.contains("the batch has none"), "{error}");
        let config = super::tests::config(GnnKind::Sage, 3);
        let error = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap_err().to_string();
        assert!(error.contains("edge_features"), "{error}");
    }
}
