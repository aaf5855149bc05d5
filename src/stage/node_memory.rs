//! `kdgat memory plan` for one large graph: the memory of a training on its nodes, for a dataset or for sizes alone, and the settings that fit
//! into a limit.

use std::fmt::Write;
use std::sync::Arc;

use tch::Device;

use super::measured::{FreshTraining, Measured, Networks, Queues, weight_bytes};
use super::node_plan::{array_bytes, samples_validation, whole_forward_bytes};
use super::node_sizing::SeedBatches;
use super::nodes::{consistency, node_gnn_config};
use super::planned_batches::PlannedBatches;
use super::sizes::Sizes;
use super::sizing::waiting_batches;
use super::{StageError, assumed, node_data, node_features, setup, training};
use crate::config::{Config, FeaturesFrom};
use crate::graph::{Loader, Task};
use crate::memory::budget::{BATCH_DATA, LOADER_QUEUE, MemoryBudget, Moment, WorstBatches, gibibytes};
use crate::memory::limits::{Limit, PROCESS_BYTES, host_limit};
use crate::nn::{Architecture, NodeGnnConfig};
use crate::nodes::{BatchSize, Degrees, FeatureRows, Features, LayerSize, NodeGraph, NodeSplit, NodeTask};
use crate::torch::allocator;

/// Bytes of features in a measured batch: larger batches are measured smaller, in proportion.
const MEASURED_BYTES: f64 = (24 << 20) as f64;
/// Memory sizes of the table of settings, in GB.
const GIGABYTES: [u64; 6] = [8, 16, 32, 64, 128, 256];

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
    // The limit is one to plan for, and does not stop the measurement.
    allocator::set_limit(Some(host_limit(None).bytes));
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
        queues: Queues { burst, waiting: waiting_batches(config, false) },
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
    let edges = if config.nodes.undirected { edges.saturating_mul(2) } else { edges };
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
    let student = Architecture::Nodes(architecture.clone());
    let networks = Networks { student, teachers: Vec::new(), foreign: None, task: Task::Classification };
    let FreshTraining { mut student, mut trainable } = FreshTraining::new(config, Device::Cpu, &networks)?;
    let options = training::fit_options(config, Device::Cpu);
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
    let (loader, sizes) = (Loader::over(Arc::new(source), 1, 1), Sizes::Alike([1, 0]));
    let queues = Queues { burst: 1, waiting: waiting_batches(config, false) };
    let graphs: Vec<u64> = (0..largest as u64).collect();
    Measured::of(&mut *student, &mut trainable, [&loader, &loader], &sizes, &options).budget(
        &graphs,
        largest,
        Some(largest),
        queues,
    )
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
    let teacher = assumed::node_teacher(config, architecture)?;
    add(budget, "teacher's weights", Moment::Always, weight_bytes(&Architecture::Nodes(teacher.clone()))?);
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

/// Place of features, as the training chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The mapped store.
    Mapped,
    /// The store's file, around the system's cache.
    Direct,
    /// Memory.
    Resident,
    /// The tensors of a batch, which has all of them.
    Batch,
}

impl Place {
    /// Its name among the values of `features_from`.
    fn as_str(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::Direct => "direct",
            Self::Resident => "resident",
            Self::Batch => "in each batch",
        }
    }
}

/// Sizes of a graph.
#[derive(Debug, Clone, Copy)]
struct GraphSize {
    nodes: f64,
    edges: f64,
    columns: f64,
    /// Bytes of a row of features in the store.
    row_bytes: f64,
}

/// Model, graph and settings to plan for.
struct NodeQuestion {
    /// Description of the model and of the batches.
    what: String,
    graph: GraphSize,
    degrees: Degrees,
    /// Fan-outs from the seeds outwards; empty without sampling.
    fanouts: Vec<f64>,
    /// Measured on batches of the expected sizes, by the number of seeds, with a full queue of the loader.
    budget: MemoryBudget,
    /// Batches of a full queue, and those announced to the teacher.
    queues: Queues,
    /// Seeds of an epoch.
    seeds: usize,
    /// Seeds of a sampled validation; 0 if it reads the whole graph.
    validation: usize,
    /// Wanted seeds of a batch.
    wanted: usize,
    /// True if a step always takes all wanted seeds.
    is_fixed: bool,
    safety_factor: f64,
    /// The configured place of features; `None`: automatic.
    place: Option<Place>,
    /// The configured number of hot rows.
    hot_rows: Option<usize>,
    /// Files besides the store: name and bytes.
    other_files: Vec<(&'static str, f64)>,
}

/// Settings for a limit.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Settings {
    /// Seeds per batch; `None` if not even one fits.
    batch: Option<usize>,
    place: Place,
    hot_rows: usize,
    /// Expected share of a batch's rows that are hot.
    hot_share: f64,
    /// Peak of tensors and arrays, in bytes.
    peak_bytes: f64,
}

impl NodeQuestion {
    fn worst(&self) -> WorstBatches {
        WorstBatches::uniform(1.0, 0.0, self.seeds.max(1))
    }

    fn feature_bytes(&self) -> f64 {
        self.graph.nodes * self.graph.row_bytes
    }

    fn sampled(&self, seeds: usize) -> BatchSize {
        self.degrees.batch(seeds as f64, &self.fanouts)
    }

    /// The budget of batches of so many seeds. Only batches of sampled neighbours are in buffers: all of a whole graph share its tensors.
    fn budget_of(&self, seeds: usize) -> MemoryBudget {
        if self.fanouts.is_empty() { self.budget.clone() } else { self.batches().budget_of(seeds) }
    }

    fn batches(&self) -> SeedBatches<'_> {
        SeedBatches { budget: &self.budget, queues: self.queues, seeds: self.seeds.max(self.validation) }
    }

    /// The settings that a training chooses within a limit for tensors.
    fn settings(&self, limit_bytes: f64) -> Settings {
        let (worst, wanted) = (self.worst(), self.wanted.min(self.seeds).max(1));
        let target = self.safety_factor * limit_bytes;
        let peak = |seeds: usize| self.budget_of(seeds).peak_bytes(worst.shape(seeds));
        let batch = match self.is_fixed {
            true => Some(wanted).filter(|&seeds| peak(seeds) <= limit_bytes),
            false if self.fanouts.is_empty() => self.budget.largest_batch(&worst, target, wanted),
            false => self.batches().largest(wanted, &worst, target),
        };
        let seeds = batch.unwrap_or(wanted);
        let free = (target - peak(seeds)).max(0.0);
        let bytes = self.feature_bytes();
        let place = self.place.unwrap_or(match bytes {
            bytes if bytes <= node_features::SMALL_BYTES => Place::Mapped,
            bytes if bytes <= free => Place::Resident,
            _ => Place::Direct,
        });
        let index_bytes = self.graph.nodes / 64.0 * 12.0;
        let room = ((free - index_bytes).max(0.0) / self.graph.row_bytes.max(1.0)).min(self.graph.nodes) as usize;
        let hot_rows = match (self.hot_rows, place) {
            _ if self.fanouts.is_empty() => 0,
            (Some(rows), Place::Mapped | Place::Direct) => rows.min(self.graph.nodes as usize),
            (None, Place::Direct) => room,
            _ => 0,
        };
        let hot_share = match hot_rows {
            0 => 0.0,
            rows => self.degrees.hot_share(&self.sampled(seeds), rows as f64),
        };
        let kept = match place {
            Place::Resident => bytes,
            _ if hot_rows > 0 => hot_rows as f64 * self.graph.row_bytes + index_bytes,
            _ => 0.0,
        };
        Settings { batch, place, hot_rows, hot_share, peak_bytes: peak(seeds) + kept }
    }

    /// The plan as text: expected batch, disk, mapped arrays, memory by component, settings, and a table for other sizes of memory.
    fn describe(&self, limit: &Limit) -> String {
        let settings = self.settings(limit.bytes as f64);
        let seeds = settings.batch.unwrap_or(self.wanted.min(self.seeds)).max(1);
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", self.what);
        let sampled = self.sampled(seeds);
        if let Some(first) = sampled.layers.first() {
            let edges: f64 = sampled.layers.iter().map(|layer| layer.edges).sum();
            let _ = writeln!(
                text,
                "a batch of {seeds} nodes is expected to have {:.0} rows of features and {edges:.0} edges",
                first.sources
            );
        }
        self.describe_files(&mut text, settings);
        let _ = writeln!(text, "\n{}", self.budget_of(seeds).table("nodes", seeds, &self.worst()).trim_end());
        let mut row = |name: &str, bytes: f64| {
            let _ = writeln!(text, "{name:<28} {:>47}", gibibytes(bytes));
        };
        match settings.place {
            Place::Resident => row("resident features", self.feature_bytes()),
            _ if settings.hot_rows > 0 => row("hot rows", settings.hot_rows as f64 * self.graph.row_bytes),
            _ => {}
        }
        row("peak of tensors and arrays", settings.peak_bytes);
        row("the program itself, at most", PROCESS_BYTES as f64);
        self.describe_settings(&mut text, settings, limit);
        text
    }

    fn describe_files(&self, text: &mut String, settings: Settings) {
        let GraphSize { nodes, edges, .. } = self.graph;
        let mapped = if settings.place == Place::Mapped { ", mapped" } else { "" };
        let files = [("indptr, mapped".to_owned(), 8.0 * (nodes + 1.0)), ("indices, mapped".to_owned(), 4.0 * edges)];
        let files = files.into_iter().chain([
            (format!("features{mapped}"), self.feature_bytes()),
            ("labels and split, mapped".to_owned(), 5.0 * nodes),
        ]);
        let others = self.other_files.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes));
        let _ = writeln!(
            text,
            "\non disk (the system caches mapped arrays while it has memory, and drops them when it needs it):"
        );
        let mut sum = 0.0;
        for (name, bytes) in files.chain(others) {
            sum += bytes;
            let _ = writeln!(text, "  {name:<42} {:>12}", gibibytes(bytes));
        }
        let _ = writeln!(text, "  {:<42} {:>12}", "sum", gibibytes(sum));
    }

    fn describe_settings(&self, text: &mut String, settings: Settings, limit: &Limit) {
        let bytes = gibibytes(limit.bytes as f64);
        match settings.batch {
            Some(batch) => {
                let hot = match settings.hot_rows {
                    0 => String::new(),
                    rows => format!(" --hot-rows {rows} (about {:.0} % of a batch's rows)", 100.0 * settings.hot_share),
                };
                let place = match settings.place {
                    Place::Batch => String::new(),
                    place => format!(" --features-from {}", place.as_str()),
                };
                let _ = writeln!(
                    text,
                    "\nwithin {bytes} ({}), of which {:.0} % are planned for: --batch-size {batch}{place}{hot}",
                    limit.source,
                    100.0 * self.safety_factor
                );
            }
            None => {
                let _ = writeln!(
                    text,
                    "\ndoes not fit into {bytes} ({}): lower --batch-size, --fanouts, --hidden, --num-workers or --prefetch-batches, or \
                     raise --memory-limit",
                    limit.source
                );
            }
        }
        let _ = writeln!(
            text,
            "\n{:>8} {:>10} {:>14} {:>14} {:>10} {:>12}",
            "memory", "batch", "features", "hot rows", "hot share", "peak"
        );
        for gigabytes in GIGABYTES {
            let settings = self.settings(gigabytes as f64 * 1e9 - PROCESS_BYTES as f64);
            let batch = settings.batch.map_or("none fits".to_owned(), |batch| batch.to_string());
            let _ = writeln!(
                text,
                "{:>8} {batch:>10} {:>14} {:>14} {:>10} {:>12}",
                format!("{gigabytes} GB"),
                settings.place.as_str(),
                settings.hot_rows,
                format!("{:.0} %", 100.0 * settings.hot_share),
                gibibytes(settings.peak_bytes)
            );
        }
    }
}

/// Adds memory that does not depend on the batch, if there is any.
fn add(budget: &mut MemoryBudget, name: &'static str, moment: Moment, bytes: f64) {
    if bytes > 0.0 {
        budget.add(name, moment, bytes);
    }
}
