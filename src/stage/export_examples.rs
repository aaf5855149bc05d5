//! Examples of an export: inputs of a model from its test set, with its outputs, for testing a program that reads the export.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::evaluated_models::expect_fit;
use super::run_data::warn_of_other;
use super::tested_nodes::{self, outputs_of};
use super::{StageError, node_data, setup, tested_graphs, training};
use crate::config::Config;
use crate::evaluate::{Scorer, TrainedModel};
use crate::graph::dataset::GraphSplit;
use crate::graph::{AssembleOptions, Batch, NodeFeatures, Split, Vocabulary, assemble};
use crate::memory::budget::gibibytes;
use crate::nn::layers::Mode;
use crate::nn::weights::StateDict;
use crate::nn::{Architecture, GivenTensors, Gnn, GnnConfig, NodeGnnConfig, Scope, target_scale};
use crate::nodes::gather::features_of;
use crate::nodes::{NodeGraph, NodeSplit, with_positions};

/// Largest size of the features and edges of one graph that are written as an example.
const MOST_GRAPH_BYTES: usize = 1 << 30;

/// Tensors of the examples.
pub struct Examples {
    /// Inputs under the names of the ONNX model's, and outputs.
    pub tensors: StateDict,
    /// Number of graphs or nodes with an output.
    pub count: usize,
    /// Name of one of them.
    pub unit: &'static str,
}

/// The first `count` test graphs or nodes, fewer if there are not as many.
///
/// # Errors
/// Data that does not fit the model, or without anything to test on.
pub fn examples(config: &Config, model: &TrainedModel, count: usize) -> Result<Examples, StageError> {
    match &model.description.architecture {
        Architecture::Gat(_) | Architecture::Vgae(_) => of_windows(config, model, count),
        Architecture::Graph(architecture) => of_graphs(config, model, architecture, count),
        Architecture::Nodes(architecture) => of_nodes(config, model, architecture, count),
        Architecture::GraphVgae(_) | Architecture::Pretraining(_) => Err(StageError::Input(format!(
            "{}: examples of autoencoders of graphs and of pre-trained networks are not written; leave out --examples",
            model.name
        ))),
    }
}

fn none_to_test(dataset: &str, unit: &str) -> StageError {
    StageError::Input(format!("dataset {dataset} has no test {unit} to write as an example"))
}

/// CAN windows, with logits (gat) or difficulties (vgae).
fn of_windows(config: &Config, model: &TrainedModel, count: usize) -> Result<Examples, StageError> {
    expect_fit(config, model)?;
    let store = setup::open_store(config)?;
    warn_of_other(model, &store);
    let graphs: Vec<u64> = store.select(Split::Test, None).into_iter().take(count).collect();
    if graphs.is_empty() {
        return Err(none_to_test(&store.manifest().dataset, "graph"));
    }
    let scorer = Scorer::new(model, Device::Cpu, training::attention_kernel(config))?;
    let batch = assemble(&store, &graphs, &scorer.assemble_options())?;
    let name = if matches!(model.description.architecture, Architecture::Vgae(_)) { "difficulty" } else { "logits" };
    let mut tensors = StateDict::from([
        ("id".to_owned(), batch.id_input.shallow_clone()),
        ("continuous".to_owned(), batch.continuous.shallow_clone()),
        ("source".to_owned(), batch.adjacency.sources.f_to_kind(Kind::Int64)?),
        ("target".to_owned(), batch.adjacency.targets.f_to_kind(Kind::Int64)?),
        ("graph".to_owned(), batch.graph_of_node.shallow_clone()),
        ("label".to_owned(), batch.labels.shallow_clone()),
        (name.to_owned(), scorer.answers(&batch)?),
    ]);
    if let Some(attributes) = &batch.edge_attributes {
        tensors.insert("edge_attributes".to_owned(), attributes.shallow_clone());
    }
    Ok(Examples { tensors, count: graphs.len(), unit: "graph" })
}

/// Graphs of any kind, with logits or values in the units of the targets, and embeddings if the model has them.
fn of_graphs(
    config: &Config,
    model: &TrainedModel,
    architecture: &GnnConfig,
    count: usize,
) -> Result<Examples, StageError> {
    let store = setup::open_graph_store(config)?;
    let dataset = &store.manifest().dataset;
    let Some(recorded) = tested_graphs::records_of(model)? else {
        return Err(no_run(model, "--examples writes graphs that the run did not see, and needs its division"));
    };
    let split = GraphSplit::of(&store, &recorded.division)?;
    let graphs: Vec<u64> = split.test.into_iter().take(count).collect();
    if graphs.is_empty() {
        return Err(none_to_test(dataset, "graph"));
    }
    let mut options = AssembleOptions::new(Arc::new(Vocabulary::from_ids([])));
    options.edge_attributes = architecture.edge_features > 0;
    let batch = assemble(&store, &graphs, &options)?;
    let mut given = GivenTensors::new(model.state.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())));
    let network = Gnn::new(Scope::root(&mut given), architecture, training::attention_kernel(config))?;
    given.check_all_used(|_| false)?;
    let mut tensors = graph_inputs(&batch)?;
    tch::no_grad(|| -> Result<(), StageError> {
        let pooled = network.embed(&batch, Mode::Evaluation)?;
        let outputs = network.classify(&pooled, Mode::Evaluation)?;
        if architecture.target_scales.is_empty() {
            tensors.insert("logits".to_owned(), outputs);
        } else {
            let values = target_scale::in_units(&outputs, &architecture.target_scales, &batch)?;
            tensors.insert("values".to_owned(), values);
        }
        if let Some(embedding) = network.embedding(&pooled, &batch)? {
            tensors.insert("embedding".to_owned(), embedding);
        }
        Ok(())
    })?;
    Ok(Examples { tensors, count: graphs.len(), unit: "graph" })
}

/// The inputs of a network for graphs: edges from a node to itself, which the network adds where its formula has them, are left out.
fn graph_inputs(batch: &Batch) -> Result<StateDict, StageError> {
    let (sources, targets) = (&batch.adjacency.sources, &batch.adjacency.targets);
    let leads_on = sources.f_ne_tensor(targets)?.f_nonzero()?.f_view([-1])?;
    let edges = |rows: &Tensor| rows.f_index_select(0, &leads_on);
    let mut inputs = StateDict::from([
        ("features".to_owned(), batch.continuous.shallow_clone()),
        ("source".to_owned(), edges(sources)?.f_to_kind(Kind::Int64)?),
        ("target".to_owned(), edges(targets)?.f_to_kind(Kind::Int64)?),
        ("graph".to_owned(), batch.graph_of_node.shallow_clone()),
    ]);
    if let Some(features) = &batch.edge_attributes {
        inputs.insert("edge_features".to_owned(), edges(features)?);
    }
    Ok(inputs)
}

/// Nodes of one graph: their features or, for a model that reads neighbours, the whole graph, and logits of the nodes `node`.
fn of_nodes(
    config: &Config,
    model: &TrainedModel,
    architecture: &NodeGnnConfig,
    count: usize,
) -> Result<Examples, StageError> {
    let Some(recorded) = tested_nodes::recorded_nodes(config, model)? else {
        return Err(no_run(model, "--examples writes test nodes of the run, and needs its division"));
    };
    let data = node_data::open(&recorded)?;
    tested_nodes::expect_graph(model, &data.graph)?;
    let split = NodeSplit::of(&data.graph, &node_data::split_options(&recorded, &data.graph))?;
    let test: Vec<u32> = split.test.iter().copied().take(count).collect();
    if test.is_empty() {
        return Err(none_to_test(&data.graph.name, "node"));
    }
    let outputs = outputs_of(config, Device::Cpu, model, architecture, &data.graph)?;
    let graph = with_positions(&data.graph, architecture.positions as usize)?;
    let mut tensors = StateDict::from([("logits".to_owned(), outputs.gather(&test)?)]);
    if architecture.message_layers() == 0 {
        tensors.insert("features".to_owned(), dense_features(&graph, &test)?);
    } else {
        tensors.extend(whole_graph(&graph)?);
        let nodes: Vec<i64> = test.iter().map(|&node| i64::from(node)).collect();
        tensors.insert("node".to_owned(), Tensor::f_from_slice(&nodes)?);
    }
    Ok(Examples { tensors, count: test.len(), unit: "node" })
}

/// Features and edges of a graph.
fn whole_graph(graph: &NodeGraph) -> Result<StateDict, StageError> {
    let bytes = graph.num_nodes() * graph.features.columns() * size_of::<f32>() + graph.num_edges() * 16;
    if bytes > MOST_GRAPH_BYTES {
        return Err(StageError::Input(format!(
            "a model that reads neighbours needs all of {} in an example, and that is {}, above {}; export it without --examples",
            graph.name,
            gibibytes(bytes as f64),
            gibibytes(MOST_GRAPH_BYTES as f64)
        )));
    }
    let nodes: Vec<u32> = (0..graph.num_nodes() as u32).collect();
    let (mut sources, mut targets) = (Vec::new(), Vec::new());
    for &node in &nodes {
        sources.extend(graph.neighbours(node).iter().map(|&neighbour| i64::from(neighbour)));
        targets.resize(sources.len(), i64::from(node));
    }
    Ok(StateDict::from([
        ("features".to_owned(), dense_features(graph, &nodes)?),
        ("source".to_owned(), Tensor::f_from_slice(&sources)?),
        ("target".to_owned(), Tensor::f_from_slice(&targets)?),
    ]))
}

/// Features of some nodes, `[nodes, columns]`.
fn dense_features(graph: &NodeGraph, nodes: &[u32]) -> Result<Tensor, StageError> {
    Ok(match features_of(&graph.features, nodes)? {
        NodeFeatures::Dense(rows) => rows,
        NodeFeatures::Sparse(rows) => rows.to_dense()?,
    })
}

fn no_run(model: &TrainedModel, because: &str) -> StageError {
    StageError::Input(format!("{} is not the folder of a run; {because}", model.name))
}
