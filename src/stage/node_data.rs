//! One large graph as a stage opens it: the graph, the division of its nodes, and the part that is visible in training.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tch::Device;

use super::StageError;
use super::setup::{self, Origin};
use crate::config::{Config, NodeSplitChoice};
use crate::interrupt;
use crate::nn::DatasetIdentity;
use crate::nodes::build::DEFAULT_MEMORY;
use crate::nodes::store::OpenStore;
use crate::nodes::{
    self, Build, CitationOptions, Division, Event, GraphOptions, NodeGraph, NodeSplit, Progress, SplitOptions, induced,
    store,
};

/// Time between two lines of progress.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The graph of a stage.
#[derive(Debug)]
pub struct NodeData {
    pub device: Device,
    pub graph: Arc<NodeGraph>,
    /// Names of the classes, if the source names them.
    pub class_names: Option<Vec<String>>,
    /// The file or folder that the graph comes from.
    pub source: PathBuf,
}

impl NodeData {
    /// The device and the identity of the graph.
    pub fn origin(&self) -> Origin {
        let NodeGraph { name, digest, .. } = &*self.graph;
        let dataset = DatasetIdentity { name: name.clone(), digest: digest.clone() };
        Origin { device: self.device, dataset, counts_nodes: true }
    }
}

/// Sets the number of threads, finds the device, and opens the store of the configured graph; builds it on first use.
///
/// # Errors
/// A graph that cannot be read, or no memory for it.
pub fn open(config: &Config) -> Result<NodeData, StageError> {
    let device = setup::prepare(config)?;
    let source = source(config)?;
    let OpenStore { graph, notes, .. } = open_store(config, source)?;
    Ok(NodeData { device, graph: Arc::new(graph), class_names: notes.class_names, source: source.to_owned() })
}

/// Name of the configured graph, without opening it unless it is a store.
///
/// # Errors
/// No graph, or a store that cannot be read.
pub fn name(config: &Config) -> Result<String, StageError> {
    Ok(nodes::sources::dataset_name(source(config)?)?)
}

/// The file or folder of the configured graph.
///
/// # Errors
/// If none is configured.
pub fn source(config: &Config) -> Result<&Path, StageError> {
    let missing = || StageError::Input("one large graph is named with --data; see docs/nodes.md".into());
    config.data.data.as_deref().ok_or_else(missing)
}

/// Builds the store of the configured graph unless it exists; returns its path as well.
///
/// # Errors
/// A graph that cannot be read, too little space, or a signal that stops the build.
pub fn build_node_store(config: &Config) -> Result<(NodeGraph, PathBuf), StageError> {
    let source = config.data.data.clone().unwrap_or_default();
    let OpenStore { graph, path, .. } = open_store(config, &source)?;
    Ok((graph, path))
}

/// Generates a graph of citations.
///
/// # Errors
/// Options that do not fit together, a file of that name, too little space, or a signal that stops the build.
pub fn simulate_citations(config: &Config, options: &CitationOptions, path: &Path) -> Result<NodeGraph, StageError> {
    let lines = BuildLines::default();
    nodes::simulate_citations(options, path, &limits(config, &lines))?;
    lines.finish(path);
    Ok(store::open(path)?)
}

fn limits<'a>(config: &Config, lines: &'a BuildLines) -> Build<'a> {
    let threads = match config.training.threads {
        0 => std::thread::available_parallelism().map_or(1, |count| count.get()),
        threads => threads,
    };
    Build { memory: config.memory.memory_limit.map_or(DEFAULT_MEMORY, |size| size.0), threads, progress: lines }
}

fn open_store(config: &Config, source: &Path) -> Result<OpenStore, StageError> {
    let lines = BuildLines::default();
    let (options, limits) = (graph_options(config), limits(config, &lines));
    let store = store::open_or_build_with(source, &options, &config.data.stores_dir, &limits)?;
    if store.built {
        let OpenStore { graph, notes, path, .. } = &store;
        lines.finish(path);
        eprintln!(
            "built the store of {}: {} nodes, {} edges, {} features, {} classes",
            graph.name,
            graph.num_nodes(),
            graph.num_edges(),
            graph.features.columns(),
            graph.task.classes
        );
        notes.lines().iter().for_each(|line| eprintln!("note: {line}"));
    }
    Ok(store)
}

/// Prints the progress of a build as plain lines.
#[derive(Debug)]
struct BuildLines {
    start: Instant,
    /// True if the build is large enough to announce itself.
    announced: AtomicBool,
    last_line: Mutex<Instant>,
}

impl Default for BuildLines {
    fn default() -> Self {
        let start = Instant::now();
        Self { start, announced: AtomicBool::new(false), last_line: Mutex::new(start) }
    }
}

impl BuildLines {
    fn finish(&self, path: &Path) {
        if !self.announced.load(Ordering::Relaxed) {
            return;
        }
        let bytes = path.metadata().map_or(0, |metadata| metadata.len());
        eprintln!(
            "built in {:.1} s ({:.1} MB): {}",
            self.start.elapsed().as_secs_f64(),
            bytes as f64 / 1e6,
            path.display()
        );
    }
}

impl Progress for BuildLines {
    fn report(&self, event: &Event<'_>) {
        match event {
            Event::Waiting { folder } => {
                eprintln!("waiting for another process that is building this store ({})", folder.display());
            }
            Event::Started { nodes, edges, needed, free } => {
                self.announced.store(true, Ordering::Relaxed);
                eprintln!(
                    "building the store of {nodes} nodes and {edges} edges: {:.1} GB of disk, {:.1} GB are free",
                    *needed as f64 / 1e9,
                    *free as f64 / 1e9
                );
            }
            Event::Resuming { step } => eprintln!("resuming an interrupted build ({})", step.words().0),
            Event::Advanced { step, done, total } => {
                // No thread panics while it has the lock.
                let mut last = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
                if last.elapsed() >= LINE_INTERVAL {
                    *last = Instant::now();
                    let ((doing, units), share) = (step.words(), 100.0 * *done as f64 / (*total).max(1) as f64);
                    eprintln!("{doing}: {done} of {total} {units} ({share:.0} %)");
                }
            }
        }
    }

    fn stop_requested(&self) -> bool {
        interrupt::requested()
    }
}

/// The configured treatment of a source.
pub fn graph_options(config: &Config) -> GraphOptions {
    let nodes = &config.nodes;
    GraphOptions {
        undirected: nodes.undirected,
        largest_component: nodes.largest_component,
        row_normalized: nodes.row_normalized,
        half: nodes.half_features,
    }
}

/// The configured division of a graph's nodes, as a run with this seed has it.
pub fn split_options(config: &Config, graph: &NodeGraph) -> SplitOptions {
    let nodes = &config.nodes;
    let per_class = Division::PerClass { training: nodes.labels_per_class, validation: nodes.validation_per_class };
    let division = match nodes.node_split {
        NodeSplitChoice::Auto if graph.given_split.is_some() => Division::Given,
        NodeSplitChoice::Given => Division::Given,
        NodeSplitChoice::Auto | NodeSplitChoice::PerClass => per_class,
        NodeSplitChoice::Random => {
            Division::Random { training: nodes.training_fraction, validation: config.data.validation_fraction }
        }
    };
    SplitOptions { division, hidden: nodes.hidden_fraction, seed: nodes.split_seed.unwrap_or(config.training.seed) }
}

/// The part of a graph that is visible in training: the graph itself, or without the edges of hidden nodes. Nodes keep their numbers.
pub fn visible_part(graph: &Arc<NodeGraph>, split: &NodeSplit) -> Result<Arc<NodeGraph>, StageError> {
    Ok(match split.visible(graph.num_nodes()) {
        None => Arc::clone(graph),
        Some(visible) => Arc::new(induced(graph, &visible)?),
    })
}
