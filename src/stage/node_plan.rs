//! The plan of a training on the nodes of one graph: its seeds, the batches of each epoch, and the part of the graph that a step reads.

use std::sync::Arc;

use super::StageError;
use super::teacher::TeacherUse;
use crate::config::{Config, NodeValidation};
use crate::graph::Shuffle;
use crate::nn::node_gnn_config::Aggregator;
use crate::nn::{NodeGnnConfig, NodeGnnKind};
use crate::nodes::{Clusters, Fanout, NodeGraph, NodeSplit, Reach, cluster_batches, partition};
use crate::random::{self, Purpose};
use crate::train::fit::BatchPlan;

/// The nodes that a training computes outputs for.
pub(super) struct Seeds {
    /// Ascending, if a teacher has targets for them.
    pub(super) nodes: Vec<u64>,
    /// Share of them that have a label to learn from.
    pub(super) labelled_share: f64,
}

impl Seeds {
    /// The labelled training nodes; with losses that need no label, those of a teacher's outputs or of consistency, all visible nodes or
    /// `kd_nodes_per_label` times as many as have one.
    pub(super) fn of(config: &Config, split: &NodeSplit, num_nodes: usize, beyond_labels: bool) -> Self {
        let labelled = split.training.len();
        let nodes: Vec<u64> = if beyond_labels {
            let visible = split.visible(num_nodes);
            let is_visible = |node: u64| visible.as_ref().is_none_or(|visible| visible[node as usize]);
            let visible = (0..num_nodes as u64).filter(|&node| is_visible(node));
            match config.nodes.kd_nodes_per_label {
                None => visible.collect(),
                Some(per_label) => {
                    let others = (num_nodes - split.hidden.len() - labelled).max(1);
                    let share = ((per_label - 1) * labelled) as f64 / others as f64;
                    let mut is_labelled = vec![false; num_nodes];
                    split.training.iter().for_each(|&node| is_labelled[node as usize] = true);
                    // The same nodes for students with other seeds, which share the cache of targets.
                    let is_drawn = |node: u64| random::unit(0, Purpose::Taught, 0, node) < share;
                    visible.filter(|&node| is_labelled[node as usize] || is_drawn(node)).collect()
                }
            }
        } else {
            split.training.iter().map(|&node| u64::from(node)).collect()
        };
        Self { labelled_share: labelled as f64 / nodes.len().max(1) as f64, nodes }
    }

    /// The seeds and the validation nodes, ascending.
    pub(super) fn with_validation(&self, split: &NodeSplit) -> Vec<u64> {
        let mut nodes = self.nodes.clone();
        nodes.extend(split.validation.iter().map(|&node| u64::from(node)));
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// The batches of a training on nodes.
pub struct NodePlan {
    pub(super) training: Vec<u64>,
    pub(super) validation: Vec<u64>,
    /// Seeds per batch.
    pub(super) batch_nodes: usize,
    /// True if validation reads sampled neighbours, in batches like training.
    pub(super) samples_validation: bool,
    pub(super) reach: Reach,
    clusters: Option<ClusterPlan>,
    seed: u64,
}

/// Batches of whole clusters.
struct ClusterPlan {
    clusters: Arc<Clusters>,
    per_batch: usize,
}

impl NodePlan {
    pub(super) fn new(config: &Config, seeds: &Seeds, split: &NodeSplit, reach: Reach) -> Self {
        let clusters = match &reach {
            Reach::Clusters { clusters, .. } => {
                Some(ClusterPlan { clusters: Arc::clone(clusters), per_batch: config.nodes.clusters_per_batch })
            }
            _ => None,
        };
        // If each step reads the whole graph, all seeds share one step.
        let cap = if matches!(reach, Reach::Whole { .. }) { usize::MAX } else { config.training.batch_size };
        Self {
            batch_nodes: cap.clamp(1, seeds.nodes.len().max(1)),
            samples_validation: false,
            training: seeds.nodes.clone(),
            validation: split.validation.iter().map(|&node| u64::from(node)).collect(),
            clusters,
            reach,
            seed: config.training.seed,
        }
    }

    /// Validation nodes whose neighbours are sampled; none if validation reads the whole graph.
    pub(super) fn sampled_validation(&self) -> &[u64] {
        if self.samples_validation { &self.validation } else { &[] }
    }

    /// The fan-outs of sampled neighbours, if batches have them.
    pub(super) fn fanouts(&self) -> Option<&[Fanout]> {
        match &self.reach {
            Reach::Sampled(fanouts) => Some(fanouts),
            _ => None,
        }
    }

    pub(super) fn teacher_use(&self) -> TeacherUse {
        let mut graphs = [self.training.as_slice(), &self.validation].concat();
        graphs.sort_unstable();
        graphs.dedup();
        TeacherUse { graphs, num_viewed: 0, batches_per_epoch: (self.training(0).len() + 1) as u64 }
    }
}

impl BatchPlan for NodePlan {
    fn training(&self, epoch: u64) -> Vec<Vec<u64>> {
        match &self.clusters {
            Some(ClusterPlan { clusters, per_batch }) => {
                cluster_batches(clusters.of_nodes(), *per_batch, self.seed, epoch, &self.training)
            }
            // The order within one batch of all seeds would change nothing but rounding.
            None if self.batch_nodes >= self.training.len() => vec![self.training.clone()],
            None => Shuffle::FULL.batches(&self.training, self.batch_nodes, self.seed, epoch),
        }
    }

    fn validation(&self) -> Vec<Vec<u64>> {
        match self.samples_validation {
            true => self.validation.chunks(self.batch_nodes).map(<[u64]>::to_vec).collect(),
            false => vec![self.validation.clone()],
        }
    }
}

/// Passes of the streaming partitioner.
const PARTITION_PASSES: usize = 10;

/// The part of the graph that each training step reads.
pub(super) fn reach(config: &Config, architecture: &NodeGnnConfig, graph: &NodeGraph) -> Result<Reach, StageError> {
    let nodes = &config.nodes;
    let layers = architecture.message_layers() as usize;
    if layers == 0 && (nodes.fanouts.is_some() || nodes.clusters.is_some()) {
        return Err(StageError::Input("an mlp reads no neighbours: drop --fanouts and --clusters".into()));
    }
    match (&nodes.fanouts, nodes.clusters) {
        (Some(_), Some(_)) => Err(StageError::Input("use either --fanouts or --clusters".into())),
        (Some(fanouts), None) if fanouts.len() != layers => Err(StageError::Input(format!(
            "--fanouts has {} numbers, but the model has {layers} layers that read neighbours; give one for each",
            fanouts.len()
        ))),
        (Some(fanouts), None) => {
            let most = |&count: &usize| Fanout::AtMost(u32::try_from(count).unwrap_or(u32::MAX));
            Ok(Reach::Sampled(fanouts.iter().map(most).collect()))
        }
        (None, Some(parts)) => {
            let found = partition(graph, parts, PARTITION_PASSES, config.training.seed)?;
            Ok(Reach::Clusters { clusters: Arc::new(Clusters::new(found)), layers })
        }
        (None, None) => Ok(exact_reach(architecture)),
    }
}

/// Features and edges up to this size are validated on as a whole.
const WHOLE_VALIDATION_BYTES: usize = 1 << 30;

/// True if validation reads sampled neighbours. It depends on the graph and the configuration alone, not on the machine's memory, because
/// the choice of the best epoch does.
pub(super) fn samples_validation(config: &Config, num_nodes: usize, num_edges: usize, columns: usize) -> bool {
    let whole = num_nodes * columns * size_of::<f32>() + num_edges * 16;
    config.nodes.fanouts.is_some()
        && match config.nodes.node_validation {
            NodeValidation::Exact => false,
            NodeValidation::Sampled => true,
            NodeValidation::Auto => whole > WHOLE_VALIDATION_BYTES,
        }
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

/// Bytes of arrays that are no tensors: labels of all nodes for training and for validation, the seeds, and the batches of an epoch.
pub(super) fn array_bytes(num_nodes: usize, num_seeds: usize) -> f64 {
    (2 * size_of::<i64>() * num_nodes + 3 * size_of::<u64>() * num_seeds) as f64
}

/// Bytes of features in memory because positions were added to them, `graph` being the graph with them.
pub(super) fn position_bytes(config: &Config, graph: &NodeGraph) -> f64 {
    match config.nodes.position_columns {
        0 => 0.0,
        _ => graph.features.bytes() as f64,
    }
}

/// All that the model reads: the whole graph, or the nodes alone.
pub(super) fn exact_reach(architecture: &NodeGnnConfig) -> Reach {
    match architecture.message_layers() {
        0 => Reach::None,
        layers => Reach::Whole { layers: layers as usize, own: None },
    }
}
