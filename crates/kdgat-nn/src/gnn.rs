//! Graph networks for graphs of any kind: GIN (Xu et al. 2019), with edge features GIN-E (Hu et al. 2020), GCN (Kipf & Welling 2017),
//! GraphSAGE with the mean aggregator (Hamilton et al. 2017), GAT, and an MLP on node features and degrees, which sends no messages.
//! SchNet, PaiNN and networks of representations, for nodes with positions, have a body of their own, [`SpaceNetwork`]; so has [SGMP](Sgmp),
//! over paths.
//!
//! Node features → layers, each with batch norm, ReLU and dropout, and optionally a [virtual node](super::virtual_node) →
//! [pooling](super::Pooling) of each graph's nodes of every layer's output, concatenated → head of two linear layers → one number for each
//! class or target. For outputs of nodes, the head reads the concatenated rows of the node itself. With `embedding_columns`, a linear layer also maps the pooled rows to an embedding of the graph, in a
//! network in space the sums or means of its nodes' rows. The layers and the
//! names of their tensors are those of PyTorch Geometric's `GINConv` and `GINEConv` with an `MLP`, `GCNConv`, `SAGEConv` and `GATConv`.

use std::sync::Arc;

use kdgat_graph::{Batch, Level};
use tch::Tensor;

use super::ModelError;
use super::attention::Backend;
use super::blocks::{self, Block, Run, pooled};
use super::gnn_config::{GnnConfig, GnnKind};
use super::gnn_layer::degrees;
pub use super::gnn_layer::{GnnLayer, LayerRows};
use super::layers::{Linear, Mode, relu_dropout};
use super::parameters::Scope;
use super::sgmp::{PathGraph, Sgmp};
use super::space::{SpaceAnswer, SpaceNetwork};

/// A block of a graph network that is not in space: each layer [pooled…, v, x] → [pooled…, pooled, v, x], the first from the batch's
/// features, where v are the rows of virtual nodes, if the model has them, and not after the last layer; its head → [outputs], followed by the
/// rows that it reads if hidden rows are kept. For outputs of nodes, the rows of the nodes take the place of pooled ones. A network in space
/// is one block → [outputs, forces], followed by the rows and vectors of the nodes if hidden rows are kept: forces are gradients through all
/// of it.
#[derive(Debug)]
pub enum GnnBlock {
    /// A layer whose output is pooled.
    Layer(Box<GnnLayer>),
    /// All interactions over paths, which are summed into the same rows.
    Paths(Sgmp),
    /// The head.
    Head(GnnHead),
    /// A whole network in space.
    Space(Box<SpaceNetwork>),
}

/// Number of blocks before the head.
fn body(config: &GnnConfig) -> usize {
    if config.kind == GnnKind::Sgmp { 1 } else { config.layers as usize }
}

impl Block for GnnBlock {
    type Config = GnnConfig;

    fn names(config: &GnnConfig) -> Vec<String> {
        if config.kind.is_in_space() {
            return vec!["network".to_owned()];
        }
        (0..body(config)).map(|index| format!("layer {index}")).chain(["head".to_owned()]).collect()
    }

    fn new(scope: &mut Scope, config: &GnnConfig, index: usize, kernel: Backend) -> Result<Self, ModelError> {
        Ok(match config.kind {
            kind if kind.is_in_space() => Self::Space(Box::new(SpaceNetwork::new(scope, config, kernel)?)),
            _ if index == body(config) => Self::Head(GnnHead::new(scope, config)?),
            GnnKind::Sgmp => Self::Paths(Sgmp::new(scope, config, kernel)?),
            _ => Self::Layer(Box::new(GnnLayer::new(scope, config, index as i64)?)),
        })
    }

    fn forward(&self, config: &GnnConfig, mut state: Vec<Tensor>, run: &Run) -> Result<Vec<Tensor>, ModelError> {
        let Run { batch, kernel, mode, .. } = *run;
        match self {
            Self::Layer(layer) => {
                let rows = match state.pop() {
                    None => LayerRows { nodes: node_input(config, batch)?, virtual_nodes: None },
                    Some(nodes) => {
                        LayerRows { nodes, virtual_nodes: if config.virtual_node { state.pop() } else { None } }
                    }
                };
                let LayerRows { nodes, virtual_nodes } = layer.forward(rows, batch, config, kernel, mode)?;
                state.push(layer.readout(&nodes, batch, config, kernel)?);
                state.extend(virtual_nodes);
                state.push(nodes);
            }
            Self::Paths(network) => {
                let rows = network.embed(&node_input(config, batch)?, batch)?;
                state.extend([rows.shallow_clone(), rows]);
            }
            Self::Head(head) => {
                let pooled = pooled(state)?;
                let outputs = head.forward(&pooled, config.dropout, kernel, mode)?;
                state = if run.keeps_hidden { vec![outputs, pooled] } else { vec![outputs] };
            }
            Self::Space(network) => {
                let SpaceAnswer { outputs, nodes, vectors, forces } = network.forward(batch, mode)?;
                state.push(outputs);
                state.extend(forces);
                if run.keeps_hidden {
                    state.push(nodes);
                    state.extend(vectors.map(|rows| rows.f_reshape([-1, 3 * config.hidden])).transpose()?);
                }
            }
        }
        Ok(state)
    }
}

/// A graph network.
#[derive(Debug)]
pub struct Gnn {
    config: GnnConfig,
    kernel: Backend,
    /// All blocks but the head.
    body: Vec<GnnBlock>,
    /// `None` for a network in space.
    head: Option<GnnHead>,
    embedding: Option<Linear>,
}

impl Gnn {
    /// Builds the model from the tensors of `scope`.
    pub fn new(mut scope: Scope, config: &GnnConfig, kernel: Backend) -> Result<Self, ModelError> {
        config.check()?;
        let (body, head) = match config.kind.is_in_space() {
            true => (blocks::build(&mut scope, config, 0..1, kernel)?, None),
            false => {
                let body = blocks::build(&mut scope, config, 0..body(config), kernel)?;
                (body, Some(GnnHead::new(&mut scope, config)?))
            }
        };
        let embedding = match config.embedding_columns {
            0 => None,
            columns => Some(Linear::new(scope.sub("embedding"), config.pooled_columns(), columns)?),
        };
        Ok(Self { config: config.clone(), kernel, body, head, embedding })
    }

    /// The model's architecture.
    pub fn config(&self) -> &GnnConfig {
        &self.config
    }

    /// The outputs, rows and forces of a network in space; `None` for other kinds.
    pub fn in_space(&self, batch: &Batch, mode: Mode) -> Option<Result<SpaceAnswer, ModelError>> {
        match &self.body[..] {
            [GnnBlock::Space(network)] => Some(network.forward(batch, mode)),
            _ => None,
        }
    }

    /// Rows that the head reads: pooled rows of each graph, `[num_graphs, width * layers]`, or for outputs of nodes those of each node,
    /// `[num_nodes, width * layers]`.
    ///
    /// # Errors
    /// A network in space, which has no such rows, and errors of libtorch.
    pub fn embed(&self, batch: &Batch, mode: Mode) -> Result<Tensor, ModelError> {
        self.head()?;
        let run = Run::new(batch, None, self.kernel, mode);
        pooled(blocks::through(&self.body, &self.config, Vec::new(), &run)?)
    }

    /// Outputs for rows of [`Gnn::embed`], all or some: `[rows, width * layers]` → `[rows, outputs]`.
    pub fn classify(&self, pooled: &Tensor, mode: Mode) -> Result<Tensor, ModelError> {
        self.head()?.forward(pooled, self.config.dropout, self.kernel, mode)
    }

    fn head(&self) -> Result<&GnnHead, ModelError> {
        self.head.as_ref().ok_or_else(|| ModelError::Architecture {
            field: "kind",
            found: self.config.kind.as_str().to_owned(),
            expected: "a network in space has no pooled rows; its nodes' rows come with its outputs",
        })
    }

    /// Embeddings for pooled rows, or in a network in space for the rows of nodes, `[num_graphs, embedding_columns]`; `None` for a model without
    /// embedding.
    pub fn embedding(&self, rows: &Tensor, batch: &Batch) -> Result<Option<Tensor>, ModelError> {
        let Some(layer) = &self.embedding else { return Ok(None) };
        let pooled = match &self.body[..] {
            [GnnBlock::Space(network)] => network.pooled(rows, rows, batch, Mode::Training)?,
            _ => rows.shallow_clone(),
        };
        Ok(Some(layer.forward(&pooled, self.kernel)?))
    }

    /// Outputs of each node, `[num_nodes, outputs]`, of an SGMP with outputs of nodes, along other paths than those of a batch's edges.
    /// `features`: `[num_nodes, node_features]`.
    ///
    /// # Errors
    /// A network that reads no paths or has outputs of graphs, and those of libtorch.
    pub fn forward_along(&self, features: &Tensor, paths: &Arc<PathGraph>, mode: Mode) -> Result<Tensor, ModelError> {
        match (&self.body[..], self.config.level) {
            ([GnnBlock::Paths(network)], Level::Node) => self.classify(&network.nodes(features, paths)?, mode),
            (_, level) => Err(ModelError::Architecture {
                field: "kind",
                found: format!("{} with outputs of {}", self.config.kind.as_str(), level.units()),
                expected: "an sgmp with outputs of nodes, which alone reads paths",
            }),
        }
    }

    /// Outputs of each graph or node, `[num_graphs or num_nodes, outputs]`: logits, or standardised values.
    pub fn forward(&self, batch: &Batch, mode: Mode) -> Result<Tensor, ModelError> {
        match self.in_space(batch, mode) {
            Some(answer) => Ok(answer?.outputs),
            None => self.classify(&self.embed(batch, mode)?, mode),
        }
    }
}

/// Features of the batch's edges, self-loops included, `[num_edges, edge_features]`, if the network reads them.
///
/// # Errors
/// If the batch has another number of edge features.
pub fn edge_input<'a>(config: &GnnConfig, batch: &'a Batch) -> Result<Option<&'a Tensor>, ModelError> {
    if config.edge_features == 0 {
        return Ok(None);
    }
    let features = batch.edge_attributes.as_ref().ok_or(ModelError::NoEdgeFeatures)?;
    let found = features.size().get(1).copied().unwrap_or(0);
    match found == config.edge_features {
        true => Ok(Some(features)),
        false => Err(ModelError::Architecture {
            field: "edge_features",
            found: format!("{} in the model, {found} in the data", config.edge_features),
            expected: "the data that the model was trained on, or data with the same columns",
        }),
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
    edge_input(config, batch)?;
    match config.kind {
        GnnKind::Mlp => {
            let degrees = degrees(batch)?.f_log()?;
            Ok(Tensor::f_cat(&[&batch.continuous, &degrees], 1)?)
        }
        _ => Ok(batch.continuous.shallow_clone()),
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
    /// Builds the head.
    pub fn new(scope: &mut Scope, config: &GnnConfig) -> Result<Self, ModelError> {
        let mut head = scope.sub("head");
        let mut lins = head.sub("lins");
        let first = Linear::new(lins.sub(0), config.pooled_columns(), config.width())?;
        let second = lins.sub(1);
        let activation = match config.level {
            Level::Graph => second.layer_id().of_graphs(),
            Level::Node => second.layer_id().of_targets(),
        };
        Ok(Self { first, activation, second: Linear::new(second, config.width(), config.outputs)? })
    }

    /// Applies the head: `[rows, width * layers]` → `[rows, outputs]`.
    pub fn forward(&self, pooled: &Tensor, dropout: f64, kernel: Backend, mode: Mode) -> Result<Tensor, ModelError> {
        let hidden = self.first.forward(pooled, kernel)?;
        let hidden = relu_dropout(&hidden, self.activation, dropout, kernel, mode)?;
        self.second.forward(&hidden, kernel)
    }
}

#[cfg(test)]
mod tests {
    use kdgat_graph::columns::Columns;
    use kdgat_graph::{AssembleOptions, FeatureSet, Level, Vocabulary, assemble::Assembler};
    use std::sync::Arc;
    use tch::{Device, Kind};

    use super::super::Pooling;
    use super::super::fused::edge_messages::edge_message_sum;
    use super::super::fused::neighbours::neighbour_sum;
    use super::super::parameters::FreshParameters;
    use super::*;

    /// A path of three nodes, a star of four, and a node without edges; features are 0, 1, 2…
    fn batch() -> Batch {
        let mut columns = Columns::new(FeatureSet::Columns {
            nodes: 2,
            edges: 3,
            targets: 1,
            node_targets: 0,
            exact_targets: false,
            wide_edges: false,
            space: Default::default(),
        });
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

    fn config(kind: GnnKind, edge_features: i64, virtual_node: bool) -> GnnConfig {
        // Each pooling is that of a kind.
        let pooling = match kind {
            GnnKind::Gin => Pooling::Sum,
            GnnKind::Gcn => Pooling::Mean,
            GnnKind::Sage => Pooling::Max,
            _ => Pooling::Attention,
        };
        GnnConfig {
            edge_features,
            heads: if kind == GnnKind::Gat { 2 } else { 1 },
            embedding_columns: 5,
            pooling,
            virtual_node,
            ..GnnConfig::new(kind, [2, 6, 2, 3])
        }
    }

    /// All kinds, with the number of edge features that they read, and with virtual nodes where a kind can have them.
    fn configs() -> Vec<GnnConfig> {
        let kinds = [
            (GnnKind::Gin, 0),
            (GnnKind::Gin, 3),
            (GnnKind::Gcn, 0),
            (GnnKind::Sage, 0),
            (GnnKind::Gat, 0),
            (GnnKind::Mlp, 0),
        ];
        let of = |(kind, edge_features)| {
            let of_graphs = [false, true].map(|virtual_node| config(kind, edge_features, virtual_node));
            let [_, of_nodes] = of_graphs.clone();
            let of_nodes = GnnConfig { level: Level::Node, embedding_columns: 0, pooling: Pooling::Sum, ..of_nodes };
            [&of_graphs[..], &[of_nodes]].concat()
        };
        let all = kinds.into_iter().flat_map(of);
        all.filter(|config| !config.virtual_node || config.kind != GnnKind::Mlp).collect()
    }

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
        for config in configs() {
            let of = |kernel: Backend| {
                let mut parameters = FreshParameters::new(5, Device::Cpu);
                let model = Gnn::new(Scope::root(&mut parameters), &config, kernel).unwrap();
                let pooled = model.embed(&batch, Mode::Training).unwrap();
                let outputs = model.classify(&pooled, Mode::Training).unwrap();
                let mut loss = outputs.square().sum(Kind::Float);
                if let Some(embedding) = model.embedding(&pooled, &batch).unwrap() {
                    loss += embedding.square().sum(Kind::Float);
                }
                loss.backward();
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
            assert!(fused.allclose(&composed, 1e-4, 1e-5, false), "{config:?}: {fused} {composed}");
            for (fused, composed) in fused_gradients.iter().zip(&composed_gradients) {
                assert!(fused.allclose(composed, 1e-3, 1e-3, false), "{config:?}: {fused} {composed}");
            }
        }
    }

    /// In evaluation, a graph's output does not depend on the graphs beside it.
    #[test]
    fn a_graph_has_the_same_output_in_every_batch() {
        let batch = batch();
        for config in configs() {
            let mut parameters = FreshParameters::new(5, Device::Cpu);
            let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
            let together = tch::no_grad(|| model.forward(&batch, Mode::Evaluation).unwrap());
            for graph in 0..3 {
                let alone = batch.select_graphs(&[graph]).unwrap();
                let alone = tch::no_grad(|| model.forward(&alone, Mode::Evaluation).unwrap());
                let rows = match config.level {
                    Level::Graph => graph as i64..graph as i64 + 1,
                    Level::Node => [0, 3, 7, 8][graph]..[0, 3, 7, 8][graph + 1],
                };
                let expected = together.slice(0, rows.start, rows.end, 1);
                assert!(alone.equal(&expected), "{config:?}, graph {graph}: {alone} {together}");
            }
        }
    }

    #[test]
    fn other_columns_are_refused() {
        let mut parameters = FreshParameters::new(1, Device::Cpu);
        let config = GnnConfig { node_features: 5, ..config(GnnKind::Gin, 0, false) };
        let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
        let error = model.forward(&batch(), Mode::Evaluation).unwrap_err().to_string();
        assert!(error.contains("5 in the model, 2 in the data"), "{error}");
        let without_edges = Batch { edge_attributes: None, ..batch() };
        let config = super::tests::config(GnnKind::Gin, 3, false);
        let mut parameters = FreshParameters::new(1, Device::Cpu);
        let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
        let error = model.forward(&without_edges, Mode::Evaluation).unwrap_err().to_string();
        assert!(error.contains("the batch has none"), "{error}");
        let config = super::tests::config(GnnKind::Sage, 3, false);
        let error = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap_err().to_string();
        assert!(error.contains("edge_features"), "{error}");
        let config = super::tests::config(GnnKind::Mlp, 0, true);
        let error = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap_err().to_string();
        assert!(error.starts_with("virtual_node = true"), "{error}");
    }
}
