//! `kdgat memory plan` for one large graph: the memory of a training on its nodes, for a dataset or for sizes alone.

use std::sync::Arc;

use tch::Device;

use super::StageError;
use super::node_data;
use super::nodes::{array_bytes, consistency, node_gnn_config, samples_validation};
use super::planned_batches::PlannedBatches;
use super::setup;
use super::sizing::waiting_batches;
use super::training;
use crate::config::{Config, FeaturesFrom};
use crate::distill::objective::{NodeObjective, TeacherLink};
use crate::graph::Loader;
use crate::memory::budget::{BATCH_DATA, LOADER_QUEUE, MemoryBudget, Moment};
use crate::memory::limits::host_limit;
use crate::memory::probe::Probe;
use crate::memory_plan::estimate::weight_bytes;
use crate::memory_plan::node_sizes::{Degrees, LayerSize};
use crate::memory_plan::nodes::{GraphSize, NodeQuestion, Place, add};
use crate::nn::node_gnn_config::Aggregator;
use crate::nn::{Architecture, FreshParameters, NodeGnn, NodeGnnConfig, NodeGnnKind, Scope};
use crate::nodes::{FeatureRows, Features, NodeGraph, NodeSplit, NodeTask};
use crate::train::trainable::Trainable;

/// Bytes of features in a measured batch: larger batches are measured smaller, in proportion.
const MEASURED_BYTES: f64 = (24 << 20) as f64;

/// Sizes of a graph that need not exist.
#[derive(Debug, Clone, Copy)]
pub struct PlannedGraph {
    pub nodes: usize,
    pub edges: usize,
    pub columns: usize,
    pub classes: usize,
    /// Nodes with a label to train on.
    pub labelled: usize,
    /// True for features in half precision.
    pub half: bool,
}

/// A graph to plan for.
struct Planned {
    size: GraphSize,
    degrees: Degrees,
    seeds: usize,
    validation: usize,
    samples_validation: bool,
    architecture: NodeGnnConfig,
}

/// Describes the memory of training on the nodes of the configured graph, or of one with these sizes.
///
/// # Errors
/// A graph that cannot be read, a model that has no layers for nodes, or no memory for a small batch.
pub fn plan_nodes(config: &Config, size: Option<PlannedGraph>) -> Result<String, StageError> {
    let planned = match size {
        Some(size) => of_size(config, size)?,
        None => of_graph(config)?,
    };
    let fanouts: Vec<f64> = config.nodes.fanouts.iter().flatten().map(|&count| count as f64).collect();
    let layers = planned.architecture.message_layers() as usize;
    if !fanouts.is_empty() && fanouts.len() != layers {
        return Err(StageError::Input(format!(
            "--fanouts has {} numbers, but the model has {layers} layers that read neighbours; give one for each",
            fanouts.len()
        )));
    }
    if config.nodes.clusters.is_some() {
        return Err(StageError::Input(
            "a plan is made for --fanouts or for the whole graph, not for --clusters".into(),
        ));
    }
    let is_whole = fanouts.is_empty() && layers > 0;
    let wanted = if is_whole { planned.seeds } else { config.training.batch_size.min(planned.seeds) }.max(1);
    let sizes = match is_whole {
        true => {
            let nodes = planned.size.nodes;
            vec![LayerSize { sources: nodes, targets: nodes, edges: planned.size.edges + nodes }; layers]
        }
        false => planned.degrees.batch(wanted as f64, &fanouts).layers,
    };
    let mut budget = measured(config, &planned.architecture, &sizes, wanted, is_whole)?;
    if is_whole {
        // All batches share the tensors of the whole graph.
        budget.components.retain(|component| component.name != LOADER_QUEUE);
    }
    // A teacher of sampled neighbourhoods has cached all targets before the training.
    let announces = config.distillation.use_kd && config.nodes.teacher_fanouts.is_none() && !is_whole;
    let burst = if announces { config.distillation.teacher_burst } else { 1 };
    let data = budget.components.iter_mut().filter(|component| component.name == BATCH_DATA);
    data.for_each(|component| component.bytes = component.bytes.times(burst as f64));
    let other_files = add_the_rest(config, &planned, &mut budget)?;
    let GraphSize { nodes, edges, columns, row_bytes } = planned.size;
    let what = format!(
        "{} of {} layers, {} columns each, on {nodes:.0} nodes, {edges:.0} edges and {columns:.0} features of {} bytes; {} seeds an epoch",
        planned.architecture.kind.as_str(),
        planned.architecture.layers,
        planned.architecture.width(),
        row_bytes / columns.max(1.0),
        planned.seeds
    );
    let question = NodeQuestion {
        what,
        graph: planned.size,
        degrees: planned.degrees,
        fanouts,
        budget,
        waiting_batches: waiting_batches(config, false),
        burst,
        seeds: planned.seeds,
        validation: if planned.samples_validation { planned.validation } else { 0 },
        wanted,
        is_fixed: is_whole || !config.training.optimize_batch_size,
        safety_factor: config.memory.safety_factor,
        place: match (config.memory.features_from, is_whole) {
            (_, true) => Some(Place::Batch),
            (FeaturesFrom::Auto, _) => None,
            (FeaturesFrom::Mapped, _) => Some(Place::Mapped),
            (FeaturesFrom::Direct, _) => Some(Place::Direct),
            (FeaturesFrom::Resident, _) => Some(Place::Resident),
        },
        hot_rows: config.memory.hot_rows,
        small_bytes: super::node_features::SMALL_BYTES,
        other_files,
    };
    Ok(question.describe(&host_limit(config.memory.memory_limit.map(|size| size.0))))
}

/// The configured graph. Its features are not read.
fn of_graph(config: &Config) -> Result<Planned, StageError> {
    let data = node_data::open(config)?;
    let graph = &data.graph;
    let split = NodeSplit::of(graph, &node_data::split_options(config, graph))?;
    let row_bytes = FeatureRows::mapped(&graph.features).row_bytes();
    let columns = graph.features.columns();
    let seeds = num_seeds(config, graph.num_nodes() - split.hidden.len(), split.training.len());
    Ok(Planned {
        size: GraphSize {
            nodes: graph.num_nodes() as f64,
            edges: graph.num_edges() as f64,
            columns: columns as f64,
            // Sparse rows are mapped; their size differs.
            row_bytes: row_bytes.unwrap_or(columns * size_of::<f32>()) as f64,
        },
        degrees: Degrees::of_rows(&graph.row_pointers, config.nodes.undirected),
        seeds,
        validation: split.validation.len(),
        samples_validation: samples_validation(config, graph.num_nodes(), graph.num_edges(), columns),
        architecture: node_gnn_config(config, graph)?,
    })
}

/// A graph of these sizes, with assumed degrees.
fn of_size(config: &Config, size: PlannedGraph) -> Result<Planned, StageError> {
    setup::prepare(config)?;
    let PlannedGraph { nodes, edges, columns, classes, labelled, half } = size;
    // Undirected edges are stored in both directions.
    let edges = if config.nodes.undirected { 2 * edges } else { edges };
    let shape = NodeGraph {
        features: Features::Dense { columns, values: Vec::new().into() },
        task: NodeTask { classes },
        ..NodeGraph::ring(3, 0, classes)
    };
    Ok(Planned {
        size: GraphSize {
            nodes: nodes as f64,
            edges: edges as f64,
            columns: columns as f64,
            row_bytes: (columns * if half { 2 } else { 4 }) as f64,
        },
        degrees: Degrees::assumed(nodes as f64, edges as f64, config.nodes.undirected),
        seeds: num_seeds(config, nodes, labelled.min(nodes)).max(1),
        validation: labelled.min(nodes) / 4,
        samples_validation: samples_validation(config, nodes, edges, columns),
        architecture: node_gnn_config(config, &shape)?,
    })
}

/// Nodes that a training computes outputs for, of so many that are visible and have a label to train on.
fn num_seeds(config: &Config, visible: usize, labelled: usize) -> usize {
    let beyond_labels = config.distillation.use_kd || consistency(config).is_some();
    match (beyond_labels, config.nodes.kd_nodes_per_label) {
        (true, None) => visible,
        (true, Some(per_label)) => (per_label * labelled).min(visible),
        (false, _) => labelled,
    }
}

/// Measures training steps on batches of the planned sizes.
fn measured(
    config: &Config,
    architecture: &NodeGnnConfig,
    layers: &[LayerSize],
    seeds: usize,
    is_square: bool,
) -> Result<MemoryBudget, StageError> {
    let device = Device::Cpu;
    let mut parameters = FreshParameters::new(config.training.seed, device);
    let model = NodeGnn::new(Scope::root(&mut parameters), architecture, training::attention_kernel(config))?;
    let distillation = config.distillation.use_kd.then(|| training::logit_loss(config));
    let teacher = TeacherLink::none();
    let consistency = consistency(config);
    let mut student = NodeObjective { model, teacher, distillation, consistency, labelled_share: 1.0 };
    let mut trainable = Trainable::new(parameters.into_tensors(), device)?;
    let options = training::fit_options(config, device);
    let columns = architecture.node_features;
    let rows = layers.first().map_or(seeds as f64, |layer| layer.sources);
    let edges: f64 = layers.iter().map(|layer| layer.edges).sum();
    let full = 4.0 * (rows * (columns + architecture.width() * architecture.layers) as f64 + 3.0 * edges);
    // At least so many that rounding does not count.
    let largest = ((seeds as f64 * MEASURED_BYTES / full.max(1.0)) as usize).clamp(8.min(seeds), seeds);
    let source = PlannedBatches {
        seeds,
        layers: layers.to_vec(),
        is_square,
        columns,
        degrees: architecture.needs_source_degrees(),
    };
    let graphs: Vec<u64> = (0..largest as u64).collect();
    let probe = Probe {
        objective: &mut student,
        trainable: &mut trainable,
        loader: &Loader::over(Arc::new(source), 1, 1),
        graphs: &graphs,
        size_of: &|_| (1, 0),
        cap: largest,
        waiting_batches: waiting_batches(config, false),
        adam: options.adam,
        precision: options.precision,
        device,
    };
    Ok(probe.measure_up_to(largest)?)
}

/// Peak bytes of a forward over all nodes, beside their features: a layer's input, the narrower of input and output between its sum over
/// neighbours and its linear map, whichever is first, and its output; attention has its values instead. A node's own map is one more
/// output.
pub(super) fn whole_forward_bytes(architecture: &NodeGnnConfig, nodes: f64) -> f64 {
    let columns = (0..architecture.num_layers()).map(|layer| {
        let (input, output) = (architecture.input_columns(layer), architecture.output_columns(layer));
        let between = if architecture.kind.has_attention() { output } else { input.min(output) };
        let own = match (architecture.kind, architecture.aggregator) {
            (NodeGnnKind::Sage, Aggregator::Mean) => output,
            _ => 0,
        };
        if layer == 0 { between + output + own } else { input + between + output + own }
    });
    4.0 * nodes * columns.max().unwrap_or(0) as f64
}

/// Adds what a measured step does not have: arrays by node, validation, buffers, teacher. Returns files besides the store.
fn add_the_rest(
    config: &Config,
    planned: &Planned,
    budget: &mut MemoryBudget,
) -> Result<Vec<(&'static str, f64)>, StageError> {
    let GraphSize { nodes, edges, columns, .. } = planned.size;
    let architecture = &planned.architecture;
    let sampled = config.nodes.fanouts.is_some();
    add(budget, "arrays by node", Moment::Always, array_bytes(nodes as usize, planned.seeds));
    if sampled && !planned.samples_validation {
        // The whole graph as tensors, from the start.
        let tensors = 4.0 * (nodes * columns + 3.0 * (edges + nodes) + 2.0 * nodes);
        add(budget, "whole graph for validation", Moment::Always, tensors);
        add(budget, "validation", Moment::Visit, whole_forward_bytes(architecture, nodes));
    }
    if !config.distillation.use_kd {
        return Ok(Vec::new());
    }
    let teacher = super::memory_plan::assumed_node_teacher(config, architecture)?;
    let (weights, buffers) = weight_bytes(&Architecture::Nodes(teacher.clone()))?;
    add(budget, "teacher's weights", Moment::Always, weights + buffers);
    let widest = (0..teacher.num_layers()).map(|layer| teacher.output_columns(layer)).max().unwrap_or(0) as f64;
    let limit = host_limit(config.memory.memory_limit.map(|size| size.0)).bytes as f64;
    // Sampled targets are computed before the training, without outputs of all nodes.
    let of_layer = if config.nodes.teacher_fanouts.is_some() { 0.0 } else { 4.0 * nodes * widest };
    let in_memory = of_layer <= limit / 4.0;
    if in_memory {
        add(budget, "teacher's outputs of a layer", Moment::Visit, 2.0 * of_layer);
    }
    let targets = (planned.seeds + planned.validation) as f64 * 4.0 * architecture.outputs as f64;
    let activations =
        if in_memory { Vec::new() } else { vec![("teacher's outputs of two layers, at first", 2.0 * of_layer)] };
    Ok(activations.into_iter().chain([("targets, with --teacher-cache disk", targets)]).collect())
}
