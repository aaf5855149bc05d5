//! One large graph as a stage opens it: the graph, the division of its nodes, and the part that is visible in training.

use std::path::PathBuf;
use std::sync::Arc;

use tch::Device;

use super::StageError;
use super::setup::{self, Origin};
use crate::config::{Config, NodeSplitChoice};
use crate::nn::DatasetIdentity;
use crate::nodes::store::open_or_build;
use crate::nodes::{Division, GraphOptions, NodeGraph, NodeSplit, SplitOptions, induced};

/// The graph of a stage.
#[derive(Debug)]
pub struct NodeData {
    pub device: Device,
    pub graph: Arc<NodeGraph>,
    /// The file or folder that the graph comes from.
    pub source: PathBuf,
}

impl NodeData {
    /// The device and the identity of the graph.
    pub fn origin(&self) -> Origin {
        let NodeGraph { name, digest, .. } = &*self.graph;
        Origin { device: self.device, dataset: DatasetIdentity { name: name.clone(), digest: digest.clone() } }
    }
}

/// Sets the number of threads, finds the device, and opens the store of the configured graph; builds it on first use.
///
/// # Errors
/// A graph that cannot be read, or no memory for it.
pub fn open(config: &Config) -> Result<NodeData, StageError> {
    let device = setup::prepare(config)?;
    let Some(source) = &config.data.data else {
        return Err(StageError::Input("one large graph is named with --data; see docs/nodes.md".into()));
    };
    let (graph, notes, built) = open_or_build(source, &graph_options(config), &config.data.stores_dir)?;
    if built {
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
    Ok(NodeData { device, graph: Arc::new(graph), source: source.clone() })
}

/// The configured treatment of a source.
pub fn graph_options(config: &Config) -> GraphOptions {
    let nodes = &config.nodes;
    GraphOptions {
        undirected: nodes.undirected,
        largest_component: nodes.largest_component,
        row_normalized: nodes.row_normalized,
        half: false,
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
