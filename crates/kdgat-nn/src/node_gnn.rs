//! Networks that classify the nodes of one large graph: GraphSAGE (Hamilton et al. 2017) with the mean and gcn aggregators, GCN
//! (Kipf & Welling 2017), GAT (Veličković et al. 2018), GATv2 (Brody et al. 2022), APPNP (Gasteiger et al. 2019), and an MLP.
//!
//! Node features → layers, each but the last with normalisation, activation and dropout → one number for each class. The layers
//! and the names of their tensors are those of PyTorch Geometric's `SAGEConv`, `GCNConv`, `GATConv`, `GATv2Conv`, `APPNP` and
//! `MLP`; GraphSAGE's gcn aggregator is that of DGL's `SAGEConv`. See [`NodeLayer`] for the computation of one layer at a time.

use kdgat_graph::{Batch, Neighbourhood};
use tch::Tensor;

use super::ModelError;
use super::attention::Backend;
use super::fused::step_seed;
use super::layers::Mode;
use super::node_gnn_config::NodeGnnConfig;
use super::node_layer::NodeLayer;
use super::parameters::Scope;
use super::shared_rows;

/// A network that classifies nodes.
#[derive(Debug)]
pub struct NodeGnn {
    config: NodeGnnConfig,
    kernel: Backend,
    layers: Vec<NodeLayer>,
}

impl NodeGnn {
    /// Builds the model from the tensors of `scope`.
    ///
    /// # Errors
    /// An invalid architecture, or a tensor that is missing or has another shape.
    pub fn new(mut scope: Scope, config: &NodeGnnConfig, kernel: Backend) -> Result<Self, ModelError> {
        config.check()?;
        let layer = |index| NodeLayer::new(&mut scope, config, index);
        let layers = (0..config.num_layers()).map(layer).collect::<Result<_, _>>()?;
        Ok(Self { config: config.clone(), kernel, layers })
    }

    /// The model's architecture.
    pub fn config(&self) -> &NodeGnnConfig {
        &self.config
    }

    /// Logits of each seed of a batch, `[num_seeds, outputs]`.
    ///
    /// # Errors
    /// A batch without a neighbourhood, or with other features or layers than the model.
    pub fn forward(&self, batch: &Batch, mode: Mode) -> Result<Tensor, ModelError> {
        let neighbourhood = neighbourhood(batch)?;
        match neighbourhood.own {
            None => rows_of_seeds(&self.rows(neighbourhood, mode)?, neighbourhood),
            Some(own) => {
                let rows = step_seed::with_nodes_before(own.first as u64, || self.rows(neighbourhood, mode))?;
                rows_of_seeds(&shared_rows::in_order(&rows, own)?, neighbourhood)
            }
        }
    }

    /// The rows of the last layer.
    fn rows(&self, neighbourhood: &Neighbourhood, mode: Mode) -> Result<Tensor, ModelError> {
        let mut state = Vec::new();
        for (index, layer) in (0..).zip(&self.layers) {
            state = layer.advance(state, index, neighbourhood, &self.config, self.kernel, mode)?;
        }
        // There is at least one layer, whose state begins with its rows.
        Ok(state.swap_remove(0))
    }
}

/// The features and edges around the seeds of a batch.
///
/// # Errors
/// If the batch is one of whole graphs.
pub fn neighbourhood(batch: &Batch) -> Result<&Neighbourhood, ModelError> {
    batch.neighbourhood.as_deref().ok_or(ModelError::Architecture {
        field: "model",
        found: "a network for nodes, and a batch of graphs".to_owned(),
        expected: "a model of nodes reads batches of the nodes of one graph",
    })
}

/// The seeds' rows of the last layer's output, `[num_seeds, columns]`.
///
/// # Errors
/// Those of libtorch.
pub fn rows_of_seeds(output: &Tensor, neighbourhood: &Neighbourhood) -> Result<Tensor, ModelError> {
    Ok(match &neighbourhood.seeds {
        None => output.shallow_clone(),
        Some(seeds) => output.f_index_select(0, seeds)?,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::ops::Range;
    use std::sync::Arc;

    use kdgat_graph::{Adjacency, NodeFeatures, OwnRows, SparseRows};
    use tch::{Device, Kind};

    use super::super::FreshParameters;
    use super::super::node_gnn_config::{Activation, Aggregator, NodeGnnKind, Norm};
    use super::super::parameters::NamedTensor;
    use super::super::shared_statistics::{self, tests::OverThreads};
    use super::*;
    use crate::test_graphs::{adjacency, degrees, edges_into, numbers, random_edges, relative_difference};

    const NODES: usize = 60;
    const FEATURES: i64 = 20;

    fn graph() -> Adjacency {
        // The last node has no neighbours.
        adjacency([NODES, NODES], random_edges([NODES - 1, NODES - 1], 200, 3))
    }

    /// Features of which about a third are not zero.
    fn features() -> Tensor {
        let x = numbers(&[NODES as i64, FEATURES], 4);
        &x * numbers(&[NODES as i64, FEATURES], 5).gt(0.3).to_kind(Kind::Float)
    }

    fn sparse(x: &Tensor) -> SparseRows {
        let [rows, columns] = [x.size()[0], x.size()[1]];
        let (mut pointers, mut index, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in 0..rows {
            for column in 0..columns {
                let value = x.double_value(&[row, column]) as f32;
                if value != 0.0 {
                    index.push(column as i32);
                    values.push(value);
                }
            }
            pointers.push(index.len() as i32);
        }
        SparseRows::new(columns as usize, &pointers, &index, &values).unwrap()
    }

    fn rows_of(x: &Tensor, nodes: &[usize]) -> Tensor {
        let nodes: Vec<i64> = nodes.iter().map(|&node| node as i64).collect();
        x.index_select(0, &Tensor::from_slice(&nodes))
    }

    fn batch(neighbourhood: Neighbourhood, seeds: &[usize]) -> Batch {
        let nodes = seeds.iter().map(|&node| node as u64).collect();
        Batch::of_seeds(nodes, &vec![0; seeds.len()], neighbourhood).unwrap()
    }

    const SEEDS: [usize; 6] = [5, 3, 59, 20, 41, 0];

    /// The seeds in the whole graph.
    fn whole(config: &NodeGnnConfig, is_sparse: bool) -> Batch {
        let x = features();
        let features = if is_sparse { NodeFeatures::Sparse(sparse(&x)) } else { NodeFeatures::Dense(x) };
        let graph = graph();
        let layers = (0..config.message_layers()).map(|_| graph.shallow_clone()).collect();
        let seeds = Some(Tensor::from_slice(&SEEDS.map(|node| node as i64)));
        batch(Neighbourhood { features, layers, source_degrees: Vec::new(), seeds, own: None }, &SEEDS)
    }

    /// The seeds with all neighbours that their outputs depend on, and no more.
    fn blocks(config: &NodeGnnConfig, is_sparse: bool) -> Batch {
        let (graph, mut nodes) = (graph(), SEEDS.to_vec());
        let (mut layers, mut source_degrees) = (Vec::new(), Vec::new());
        for _ in 0..config.message_layers() {
            let (layer, sources) = edges_into(&graph, &nodes);
            layers.insert(0, layer);
            source_degrees.insert(0, rows_of(&degrees(&graph), &sources));
            nodes = sources;
        }
        let x = rows_of(&features(), &nodes);
        let features = if is_sparse { NodeFeatures::Sparse(sparse(&x)) } else { NodeFeatures::Dense(x) };
        batch(Neighbourhood { features, layers, source_degrees, seeds: None, own: None }, &SEEDS)
    }

    /// All kinds, with norms, residuals and activations, and widths on both sides of the features'.
    fn configs() -> Vec<NodeGnnConfig> {
        let of = |kind, hidden, layers| NodeGnnConfig::new(kind, [FEATURES, hidden, layers, 4]);
        let attention = |kind| NodeGnnConfig { heads: 3, output_heads: 2, ..of(kind, 4, 3) };
        vec![
            of(NodeGnnKind::Sage, 24, 3),
            NodeGnnConfig { norm: Norm::Batch, residual: true, ..of(NodeGnnKind::Sage, 20, 3) },
            NodeGnnConfig { aggregator: Aggregator::Gcn, norm: Norm::Layer, ..of(NodeGnnKind::Sage, 8, 2) },
            NodeGnnConfig { norm: Norm::Layer, activation: Activation::Elu, ..of(NodeGnnKind::Gcn, 8, 2) },
            of(NodeGnnKind::Gcn, 32, 1),
            attention(NodeGnnKind::Gat),
            NodeGnnConfig { norm: Norm::Batch, residual: true, ..attention(NodeGnnKind::Gat) },
            attention(NodeGnnKind::GatV2),
            NodeGnnConfig { norm: Norm::Layer, residual: true, ..attention(NodeGnnKind::GatV2) },
            NodeGnnConfig { teleport: 0.3, steps: 3, ..of(NodeGnnKind::Appnp, 8, 2) },
            NodeGnnConfig { norm: Norm::Batch, residual: true, ..of(NodeGnnKind::Mlp, 16, 4) },
        ]
    }

    fn network(config: &NodeGnnConfig, kernel: Backend) -> (NodeGnn, Vec<NamedTensor>) {
        let mut parameters = FreshParameters::new(5, Device::Cpu);
        let model = NodeGnn::new(Scope::root(&mut parameters), config, kernel).unwrap();
        (model, parameters.into_tensors())
    }

    /// Outputs of a step and the gradients of all parameters.
    fn step(config: &NodeGnnConfig, batch: &Batch, kernel: Backend, mode: Mode) -> Vec<(String, Tensor)> {
        let (model, tensors) = network(config, kernel);
        let outputs = model.forward(batch, mode).unwrap();
        (&outputs * numbers(&outputs.size(), 8)).sum(Kind::Float).backward();
        let trained = tensors.into_iter().filter(|named| named.tensor.requires_grad());
        let gradients = trained.map(|named| (named.name, named.tensor.grad()));
        [("outputs".to_owned(), outputs.detach())].into_iter().chain(gradients).collect()
    }

    /// The seeds at `positions` for a process with these nodes of the whole graph.
    fn own_part(config: &NodeGnnConfig, is_sparse: bool, own: OwnRows, positions: Range<usize>) -> Batch {
        let graph = graph();
        let [pointers, sources] = [&graph.row_pointers, &graph.sources].map(integers);
        let nodes: Vec<usize> = (own.first as usize..(own.first + own.count) as usize).collect();
        // In the order of the whole graph, which positions of attention's masks have.
        let edges = pointers[nodes[0]]..pointers[nodes[0] + nodes.len()];
        let rows: Vec<usize> = sources[edges.clone()].iter().map(|&node| own.row_of(node as i64) as usize).collect();
        let targets = nodes.iter().flat_map(|&node| vec![node - nodes[0]; pointers[node + 1] - pointers[node]]);
        let targets: Vec<usize> = targets.collect();
        let mut transposed: Vec<usize> = (0..rows.len()).collect();
        transposed.sort_by_key(|&edge| (rows[edge], targets[edge]));
        let ends = (0..=NODES).map(|row| rows.iter().filter(|&&other| other < row).count()).collect();
        let index =
            |values: Vec<usize>| Tensor::from_slice(&values.into_iter().map(|value| value as i32).collect::<Vec<_>>());
        let part = Adjacency {
            row_pointers: index(
                pointers[nodes[0]..=nodes[0] + nodes.len()].iter().map(|end| end - edges.start).collect(),
            ),
            sources: index(rows),
            targets: index(targets),
            column_pointers: index(ends),
            transposed: index(transposed),
            components: Default::default(),
        };
        let layers: Vec<_> = (0..config.message_layers()).map(|_| part.shallow_clone()).collect();
        let mut order: Vec<usize> = (0..NODES).collect();
        order.sort_by_key(|&node| own.row_of(node as i64));
        let source_degrees = layers.iter().map(|_| rows_of(&degrees(&graph), &order)).collect();
        let x = rows_of(&features(), &nodes);
        let features = if is_sparse { NodeFeatures::Sparse(sparse(&x)) } else { NodeFeatures::Dense(x) };
        let seeds = &SEEDS[positions];
        let rows = Some(Tensor::from_slice(&seeds.iter().map(|&node| node as i64).collect::<Vec<_>>()));
        batch(Neighbourhood { features, layers, source_degrees, seeds: rows, own: Some(own) }, seeds)
    }

    /// With batch norm, all kinds of dropout, and fewer seeds in the last process.
    #[test]
    fn processes_with_parts_of_the_graph_have_the_outputs_and_gradients_of_the_whole() {
        let ends = graph().row_pointers.iter::<i64>().unwrap().collect::<Vec<_>>();
        // Edges without self-loops, as a store has them.
        let pointers: Vec<u64> = ends.iter().enumerate().map(|(node, &end)| end as u64 - node as u64).collect();
        let shares = [0..3, 3..5, 5..6];
        let weights = numbers(&[SEEDS.len() as i64, 4], 8);
        let step = |config: &NodeGnnConfig, batch: &Batch, weights: &Tensor| {
            step_seed::set(11);
            let (model, tensors) = network(config, Backend::Fused);
            let outputs = model.forward(batch, Mode::Training).unwrap();
            (&outputs * weights).sum(Kind::Float).backward();
            let trained = tensors.into_iter().filter(|named| named.tensor.requires_grad());
            let gradients = trained.map(|named| (named.name, named.tensor.grad())).collect::<Vec<_>>();
            (outputs.detach(), gradients)
        };
        for config in configs().into_iter().filter(|config| config.message_layers() > 0) {
            let attention_dropout = if config.kind.has_attention() { 0.3 } else { 0.0 };
            let config = NodeGnnConfig { dropout: 0.4, input_dropout: 0.2, attention_dropout, ..config };
            for is_sparse in [false, true] {
                let (outputs, gradients) = step(&config, &whole(&config, is_sparse), &weights);
                let sums = OverThreads::sums_of(shares.len());
                let parts: Vec<_> = std::thread::scope(|scope| {
                    let of = |(rank, share): (usize, &Range<usize>)| {
                        let (config, step, sums, share) = (&config, &step, &sums, share.clone());
                        let own = OwnRows::of(&pointers, (rank, shares.len())).unwrap();
                        let weights = weights.narrow(0, share.start as i64, share.len() as i64).copy();
                        scope.spawn(move || {
                            let batch = own_part(config, is_sparse, own, share);
                            shared_statistics::with(Some(Arc::clone(sums)), || step(config, &batch, &weights))
                        })
                    };
                    let threads: Vec<_> = shares.iter().enumerate().map(of).collect();
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
                });
                let found = Tensor::cat(&parts.iter().map(|(outputs, _)| outputs).collect::<Vec<_>>(), 0);
                let sum = |index: usize| parts.iter().map(|(_, gradients)| &gradients[index].1).sum::<Tensor>();
                let summed = gradients.iter().enumerate().map(|(index, (name, _))| (name.clone(), sum(index)));
                let what = format!("{config:?}, sparse {is_sparse}");
                assert_close(&what, &[("outputs".to_owned(), found)], &[("outputs".to_owned(), outputs)]);
                assert_close(&what, &summed.collect::<Vec<_>>(), &gradients);
            }
        }
    }

    fn assert_close(what: &str, found: &[(String, Tensor)], expected: &[(String, Tensor)]) {
        for ((name, found), (_, expected)) in found.iter().zip(expected) {
            let difference = relative_difference(found, expected);
            assert!(difference < 1e-5, "{what}: {name} differs by {difference:e}");
        }
    }

    #[test]
    fn fused_and_composed_agree_on_dense_and_sparse_features() {
        for config in configs() {
            for mode in [Mode::Training, Mode::Evaluation] {
                for of in [whole, blocks] {
                    let expected = step(&config, &of(&config, false), Backend::Composed, mode);
                    for (kernel, is_sparse) in
                        [(Backend::Fused, false), (Backend::Fused, true), (Backend::Composed, true)]
                    {
                        let found = step(&config, &of(&config, is_sparse), kernel, mode);
                        assert_close(
                            &format!("{config:?}, {mode:?}, {kernel:?}, sparse {is_sparse}"),
                            &found,
                            &expected,
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_neighbourhood_has_the_outputs_and_gradients_of_the_whole_graph() {
        for config in configs() {
            // Batch norm in training has the statistics of other nodes there.
            let [part, whole] = [blocks(&config, true), whole(&config, true)]
                .map(|batch| step(&config, &batch, Backend::Fused, Mode::Evaluation));
            assert_close(&format!("{config:?}"), &part, &whole);
        }
    }

    /// With all kinds of dropout: their masks are functions of the step.
    #[test]
    fn numbers_of_threads_change_no_bit() {
        let threads = tch::get_num_threads();
        for config in configs() {
            // torch's batch norm, for other activations than ReLU, adds in an order that depends on the threads.
            if config.norm == Norm::Batch && config.activation == Activation::Elu {
                continue;
            }
            let attention_dropout = if config.kind.has_attention() { 0.3 } else { 0.0 };
            let config = NodeGnnConfig { dropout: 0.4, input_dropout: 0.2, attention_dropout, ..config };
            for is_sparse in [true, false] {
                let found = [1, 2, 4].map(|count| {
                    tch::set_num_threads(count);
                    step_seed::set(11);
                    step(&config, &whole(&config, is_sparse), Backend::Fused, Mode::Training)
                });
                for other in &found[1..] {
                    for ((name, one), (_, other)) in found[0].iter().zip(other) {
                        assert!(one.equal(other), "{config:?}: {name}");
                    }
                }
                step_seed::set(12);
                let other_step = step(&config, &whole(&config, is_sparse), Backend::Fused, Mode::Training);
                assert!(config.layers == 1 || !found[0][0].1.equal(&other_step[0].1), "{config:?}");
            }
        }
        tch::set_num_threads(threads);
    }

    /// Dropout keeps the mean of a linear network's outputs, on every path.
    #[test]
    fn dropout_keeps_the_mean() {
        let config = NodeGnnConfig { input_dropout: 0.5, ..NodeGnnConfig::new(NodeGnnKind::Mlp, [FEATURES, 1, 1, 4]) };
        for kernel in [Backend::Fused, Backend::Composed] {
            for is_sparse in [true, false] {
                let (model, _) = network(&config, kernel);
                let batch = whole(&config, is_sparse);
                let _guard = tch::no_grad_guard();
                let expected = model.forward(&batch, Mode::Evaluation).unwrap();
                let mut sum = expected.zeros_like();
                for seed in 0..2000 {
                    step_seed::set(seed);
                    sum += model.forward(&batch, Mode::Training).unwrap();
                }
                let difference = relative_difference(&(sum / 2000.0), &expected);
                assert!(difference < 0.1, "{kernel:?}, sparse {is_sparse}: {difference}");
            }
        }
    }

    #[test]
    fn other_batches_are_refused() {
        let config = NodeGnnConfig::new(NodeGnnKind::Gcn, [FEATURES, 8, 2, 4]);
        let refused = |config: &NodeGnnConfig, batch: Batch| {
            network(config, Backend::Auto).0.forward(&batch, Mode::Evaluation).unwrap_err().to_string()
        };
        let other = NodeGnnConfig { node_features: 21, ..config.clone() };
        for is_sparse in [true, false] {
            assert!(refused(&other, whole(&config, is_sparse)).contains("21 in the model, 20 in the data"));
        }
        let deeper = NodeGnnConfig { layers: 3, ..config.clone() };
        assert!(refused(&deeper, whole(&config, true)).contains("edges of 2 layers in the batch"));
        let mut without_degrees = blocks(&config, true);
        if let Some(neighbourhood) = &mut without_degrees.neighbourhood {
            neighbourhood.source_degrees.clear();
        }
        assert!(refused(&config, without_degrees).contains("source_degrees"));
        let of_graphs = Batch { neighbourhood: None, ..whole(&config, true) };
        assert!(refused(&config, of_graphs).contains("a batch of graphs"));
    }

    fn integers(tensor: &Tensor) -> Vec<usize> {
        Vec::<i64>::try_from(&tensor.flatten(0, -1)).unwrap().into_iter().map(|value| value as usize).collect()
    }

    fn edges_of(tensor: &Tensor) -> Vec<(usize, usize)> {
        integers(&tensor.get(0)).into_iter().zip(integers(&tensor.get(1))).collect()
    }

    /// The reference's networks on its whole graph and on its sampled block, computed by PyTorch Geometric; see
    /// `tests/data/README.md`.
    #[test]
    fn networks_equal_pytorch_geometric() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/parity/node_models.safetensors");
        let reference: HashMap<String, Tensor> = Tensor::read_safetensors(path).unwrap().into_iter().collect();
        let (x, nodes) = (&reference["x"], integers(&reference["block_nodes"]));
        let count = x.size()[0] as usize;
        let graph = adjacency([count, count], edges_of(&reference["edge_index"]));
        let targets = integers(&reference["block_targets"]);
        let block = |layer: usize| {
            let sources = if layer == 0 { nodes.len() } else { targets[layer - 1] };
            adjacency([sources, targets[layer]], edges_of(&reference[&format!("block_edges.{layer}")]))
        };
        for (name, config) in reference_configs() {
            for (part, mode) in
                [("evaluation", Mode::Evaluation), ("block", Mode::Evaluation), ("training", Mode::Training)]
            {
                let Some(expected) = reference.get(&format!("{name}.{part}")) else {
                    assert!(part == "block" && (config.needs_source_degrees() || config.message_layers() == 0));
                    continue;
                };
                for (kernel, is_sparse) in [(Backend::Fused, true), (Backend::Fused, false), (Backend::Composed, false)]
                {
                    let (x, layers) = match part {
                        "block" => (rows_of(x, &nodes), (0..config.layers as usize).map(block).collect()),
                        _ => (x.copy(), (0..config.message_layers()).map(|_| graph.shallow_clone()).collect()),
                    };
                    let features = if is_sparse { NodeFeatures::Sparse(sparse(&x)) } else { NodeFeatures::Dense(x) };
                    let neighbourhood =
                        Neighbourhood { features, layers, source_degrees: Vec::new(), seeds: None, own: None };
                    let seeds: Vec<usize> = (0..expected.size()[0] as usize).collect();
                    let (model, mut tensors) = network(&config, kernel);
                    let prefix = format!("{name}.state.");
                    let known = reference.keys().filter(|key| key.starts_with(&prefix)).count();
                    assert_eq!(tensors.len(), known, "{name} has other tensors than the reference");
                    for named in &mut tensors {
                        tch::no_grad(|| named.tensor.copy_(&reference[&format!("{prefix}{}", named.name)]));
                    }
                    let outputs = model.forward(&batch(neighbourhood, &seeds), mode).unwrap();
                    let what = format!("{name}, {part}, {kernel:?}, sparse {is_sparse}");
                    let difference = relative_difference(&outputs.detach(), expected);
                    assert!(difference < 1e-5, "{what}: {difference:e}");
                    outputs.square().mean(Kind::Float).backward();
                    for named in tensors.iter().filter(|named| named.tensor.requires_grad()) {
                        let expected = &reference[&format!("{name}.{part}_gradient.{}", named.name)];
                        let difference = relative_difference(&named.tensor.grad(), expected);
                        assert!(difference < 1e-5, "{what}, {}: {difference:e}", named.name);
                    }
                }
            }
        }
    }

    fn reference_configs() -> Vec<(&'static str, NodeGnnConfig)> {
        let of = |kind: NodeGnnKind, norm, residual| {
            let heads = if kind.has_attention() { 2 } else { 1 };
            let config = NodeGnnConfig::new(kind, [12, 8, 3, 4]);
            NodeGnnConfig { norm, residual, heads, output_heads: heads, ..config }
        };
        vec![
            ("sage", of(NodeGnnKind::Sage, Norm::Batch, false)),
            ("sage_residual", of(NodeGnnKind::Sage, Norm::Layer, true)),
            ("sage_gcn", NodeGnnConfig { aggregator: Aggregator::Gcn, ..of(NodeGnnKind::Sage, Norm::None, false) }),
            ("gcn", of(NodeGnnKind::Gcn, Norm::Layer, false)),
            ("gat", of(NodeGnnKind::Gat, Norm::None, false)),
            ("gat_residual", of(NodeGnnKind::Gat, Norm::Batch, true)),
            ("gatv2", of(NodeGnnKind::GatV2, Norm::Layer, false)),
            ("appnp", NodeGnnConfig { teleport: 0.2, steps: 3, ..of(NodeGnnKind::Appnp, Norm::None, false) }),
            ("mlp", of(NodeGnnKind::Mlp, Norm::Batch, true)),
        ]
    }
}
