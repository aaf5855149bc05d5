//! Trains a classifier of the nodes of one large graph: a teacher alone, or a student that learns from a teacher's outputs for all visible
//! nodes.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tch::Device;

use super::StageError;
use super::node_data;
use super::node_features::{self, ChosenRows, SampledBatches};
use super::node_plan::whole_forward_bytes;
use super::node_sizing::{Fitted, NodeSizing, planned_bytes};
use super::node_targets::NodeTargets;
use super::node_teacher;
use super::outcome::Outcome;
use super::run::{Prepared, Run};
use super::teacher::{FoundTeacher, TeacherUse};
use super::training;
use crate::config::{AggregatorChoice, Config, Convolution, ModelKind, NodeValidation, NormChoice, Stage};
use crate::distill::objective::{Consistency, IGNORED_LABEL, NodeDistillation, NodeObjective};
use crate::graph::{Loader, Shuffle, Vocabulary};
use crate::memory::limits::host_limit;
use crate::memory::{Meter, retry_on_oom};
use crate::nn::node_gnn_config::{Aggregator, Norm};
use crate::nn::{Architecture, FreshParameters, NodeGnn, NodeGnnConfig, NodeGnnKind, Scope};
use crate::nodes::{
    BatchOptions, Clusters, Fanout, NodeBatches, NodeGraph, NodeSplit, Reach, cluster_batches, partition,
    with_positions,
};
use crate::random::{self, Purpose};
use crate::torch::allocator::{self, Buffers, Phase};
use crate::train::fit::BatchPlan;
use crate::train::trainable::Trainable;

const STAGE: Stage = Stage::Train;

/// Runs `kdgat train` on one large graph.
pub fn train_nodes(config: &Config) -> Result<Outcome, StageError> {
    let data = node_data::open(config)?;
    let split = NodeSplit::of(&data.graph, &node_data::split_options(config, &data.graph))?;
    let visible = node_data::visible_part(&data.graph, &split)?;
    let architecture = node_gnn_config(config, &data.graph)?;
    // What the new model reads; the teacher may have been trained without positions.
    let read = Arc::new(with_positions(&visible, config.nodes.position_columns)?);
    let mut found = node_teacher::find_for_nodes(config, &data, &architecture, &split)?;
    let beyond_labels = found.is_some() || consistency(config).is_some();
    let seeds = Seeds::of(config, &split, visible.num_nodes(), beyond_labels);
    if config.nodes.teacher_fanouts.is_some()
        && let Some(teacher) = found.take()
    {
        let targets = NodeTargets::new(config, &data, &visible, teacher, seeds.with_validation(&split))?;
        found = Some(filled(targets)?);
    }
    let inputs = split_inputs(&split, &data.graph)?;
    let run = Run::open(config, STAGE, data.origin(), found.as_ref().map(FoundTeacher::identity), inputs)?;

    let reach = reach(config, &architecture, &visible)?;
    let mut plan = NodePlan::new(config, &seeds, &split, &reach);
    plan.samples_validation = samples_validation(config, read.num_nodes(), read.num_edges(), read.features.columns());
    let degrees = architecture.needs_source_degrees();
    let batches = |reach, labels| {
        let options = BatchOptions { reach, seed: config.training.seed, degrees };
        NodeBatches::new(Arc::clone(&read), Arc::new(labels), options, &data.source)
    };
    let is_exact = matches!(reach, Reach::None | Reach::Whole { .. });
    let mut training = batches(reach.clone(), labels_of(&visible, &split.training))?;
    let mut validation = match is_exact || plan.samples_validation {
        true => training.with_labels(Arc::new(all_labels(&visible)))?.with_fixed_samples(),
        false => batches(exact_reach(&architecture), all_labels(&visible))?,
    };
    let workers = training::loader_workers(config, false);
    let loader = |batches| Loader::over(Arc::new(batches), workers, config.training.prefetch_batches);

    let (parameters, model) = new_model(config, &architecture, data.device)?;
    let distillation = found
        .is_some()
        .then(|| NodeDistillation { loss: training::logit_loss(config), alpha: training::alpha(config) });
    let teacher = node_teacher::start_for_nodes(config, found, &visible, data.device, plan.teacher_use())?;
    let labelled_share = seeds.labelled_share;
    let mut student = NodeObjective { model, teacher, distillation, consistency: consistency(config), labelled_share };
    let mut trainable = Trainable::new(parameters.into_tensors(), data.device)?;
    let options = run.fit_options(&student);
    let mut notes = vec![format!("split: {}", split.origin)];
    let mut free_bytes = planned_bytes(config, &host_limit(config.memory.memory_limit.map(|size| size.0)));
    let (mut read_rows, mut wanted_buffers) = (None, None);
    if let Reach::Sampled(_) = &reach {
        node_features::prepare_sampling(&read, free_bytes)?;
        let measured = training.with_labels(Arc::new(labels_of(&visible, &split.training)))?;
        let measured = measured.reading(node_features::for_measuring(&read, free_bytes)?);
        let sizing = NodeSizing {
            config,
            device: data.device,
            directory: run.directory(),
            loader: &loader(measured),
            seeds: &seeds.nodes,
            array_bytes: array_bytes(visible.num_nodes(), seeds.nodes.len()) + position_bytes(config, &read),
            validation_bytes: match plan.samples_validation {
                true => 0.0,
                false => whole_forward_bytes(&architecture, visible.num_nodes() as f64),
            },
            validation: if plan.samples_validation { plan.validation.len() } else { 0 },
            wanted: plan.batch_nodes,
            decided: run.decided().map(|decided| decided.batch_graphs),
        };
        let Fitted { batch_nodes, buffers, free_bytes: left, notes: lines } =
            sizing.fit(&mut student, &mut trainable, &options)?;
        node_features::prepare_passes(&read)?;
        (plan.batch_nodes, free_bytes) = (batch_nodes, left);
        wanted_buffers = Some(buffers).filter(|_| data.device == Device::Cpu);
        notes.extend(lines);
        if plan.samples_validation {
            notes.push(
                "validation: sampled neighbours, the same after each epoch (--node-validation exact: the whole graph)"
                    .to_owned(),
            );
        }
    }
    if !matches!(reach, Reach::Whole { .. }) {
        let sampled = match &reach {
            Reach::Sampled(fanouts) => {
                let validation = if plan.samples_validation { plan.validation.as_slice() } else { &[] };
                Some(SampledBatches { seeds: &seeds.nodes, validation, batch_nodes: plan.batch_nodes, fanouts })
            }
            _ => None,
        };
        let ChosenRows { rows, notes: lines } = node_features::choose(config, &read, free_bytes, sampled)?;
        notes.extend(lines);
        if plan.samples_validation {
            node_features::prepare_sampling(&read, free_bytes)?;
        }
        (training, validation) = (training.reading(Arc::clone(&rows)), validation.reading(Arc::clone(&rows)));
        read_rows = Some(rows);
    }
    let buffers = match wanted_buffers {
        Some((count, bytes)) => batch_buffers(count, bytes)?,
        None => None,
    };
    // An exact validation has one batch, which shares the tensors of the whole graph.
    let of_validation = buffers.clone().filter(|_| plan.samples_validation);
    let prepared = Prepared {
        training_loader: loader(training).with_buffers(buffers),
        validation_loader: loader(validation).with_buffers(of_validation),
        options,
        recomputes: false,
        description: run.description(Architecture::Nodes(architecture), Vocabulary::from_ids([])),
        batch_graphs: plan.batch_nodes,
        amounts: amounts(&seeds, &split),
        notes,
        expected_peak_bytes: None,
        closing: Box::new(move || read_rows.iter().filter_map(|rows| node_features::summary(rows)).collect()),
    };
    run.fit(student, trainable, &mut plan, prepared)
}

/// Buffers for the batches of sampled neighbours, each with room for tensors of this many bytes. `None` if there is less memory than when
/// the run was planned: then each batch gets memory of its own, as far as there is some.
fn batch_buffers(count: usize, bytes: f64) -> Result<Option<Arc<Buffers>>, StageError> {
    let _phase = allocator::enter_phase(Phase::Data);
    match Buffers::new(count, bytes.ceil() as usize + Buffers::OVERHEAD_BYTES) {
        Ok(buffers) => Ok(Some(Arc::new(buffers))),
        Err(error) if allocator::is_out_of_memory(&error) => {
            tracing::warn!("no memory for {count} buffers of batches: {error}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The teacher with all its targets in the cache, computed if they are not there.
fn filled(targets: NodeTargets) -> Result<FoundTeacher, StageError> {
    if !targets.is_complete()? && targets.fill(None)?.interrupted {
        let text = "interrupted while the teacher's targets were computed; run the same command again to continue";
        return Err(StageError::Interrupted(text.to_owned()));
    }
    Ok(targets.into_found())
}

/// The consistency loss, if it has a weight.
pub(super) fn consistency(config: &Config) -> Option<Consistency> {
    let nodes = &config.nodes;
    let (weight, views, temperature) =
        (nodes.consistency_weight, nodes.consistency_views, nodes.consistency_temperature);
    (weight > 0.0).then_some(Consistency { weight, views, temperature })
}

/// The division into sets, for the run's file of inputs.
fn split_inputs(split: &NodeSplit, graph: &NodeGraph) -> Result<Map<String, Value>, StageError> {
    let sizes = [split.training.len(), split.validation.len(), split.test.len(), split.hidden.len()];
    let entry = json!({ "origin": split.origin, "test_digest": split.test_digest(graph)?, "nodes": sizes });
    Ok(Map::from_iter([("split".to_owned(), entry)]))
}

/// A model with initial weights.
fn new_model(
    config: &Config,
    architecture: &NodeGnnConfig,
    device: Device,
) -> Result<(FreshParameters, NodeGnn), StageError> {
    retry_on_oom(Meter::new(device), || {
        let mut parameters = FreshParameters::new(config.training.seed, device);
        let model = NodeGnn::new(Scope::root(&mut parameters), architecture, training::attention_kernel(config))?;
        Ok((parameters, model))
    })
}

/// The line on the sizes of the sets.
fn amounts(seeds: &Seeds, split: &NodeSplit) -> String {
    let hidden = if split.hidden.is_empty() { String::new() } else { format!(", {} hidden", split.hidden.len()) };
    format!(
        "{} training nodes ({} with labels), {} validation and {} test nodes{hidden}",
        seeds.nodes.len(),
        split.training.len(),
        split.validation.len(),
        split.test.len()
    )
}

/// The nodes that a training computes outputs for.
pub(super) struct Seeds {
    /// Ascending, if a teacher has targets for them.
    nodes: Vec<u64>,
    /// Share of them that have a label to learn from.
    labelled_share: f64,
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
struct NodePlan {
    training: Vec<u64>,
    validation: Vec<u64>,
    /// Seeds per batch.
    batch_nodes: usize,
    /// True if validation reads sampled neighbours, in batches like training.
    samples_validation: bool,
    clusters: Option<ClusterPlan>,
    seed: u64,
}

/// Batches of whole clusters.
struct ClusterPlan {
    clusters: Arc<Clusters>,
    per_batch: usize,
}

impl NodePlan {
    fn new(config: &Config, seeds: &Seeds, split: &NodeSplit, reach: &Reach) -> Self {
        let clusters = match reach {
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
            seed: config.training.seed,
        }
    }

    fn teacher_use(&self) -> TeacherUse {
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
fn reach(config: &Config, architecture: &NodeGnnConfig, graph: &NodeGraph) -> Result<Reach, StageError> {
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

/// Bytes of arrays that are no tensors: labels of all nodes for training and for validation, the seeds, and the batches of an epoch.
pub(super) fn array_bytes(num_nodes: usize, num_seeds: usize) -> f64 {
    (2 * size_of::<i64>() * num_nodes + 3 * size_of::<u64>() * num_seeds) as f64
}

/// Bytes of features in memory because positions were added to them, `graph` being the graph with them.
fn position_bytes(config: &Config, graph: &NodeGraph) -> f64 {
    match config.nodes.position_columns {
        0 => 0.0,
        _ => graph.features.bytes() as f64,
    }
}

/// All that the model reads: the whole graph, or the nodes alone.
fn exact_reach(architecture: &NodeGnnConfig) -> Reach {
    match architecture.message_layers() {
        0 => Reach::None,
        layers => Reach::Whole { layers: layers as usize },
    }
}

/// Labels of `nodes`; those of all others are ignored.
pub(super) fn labels_of(graph: &NodeGraph, nodes: &[u32]) -> Vec<i64> {
    let mut labels = vec![IGNORED_LABEL; graph.num_nodes()];
    nodes.iter().for_each(|&node| labels[node as usize] = i64::from(graph.labels[node as usize]));
    labels
}

/// Labels of all nodes that have one.
fn all_labels(graph: &NodeGraph) -> Vec<i64> {
    graph.labels.iter().map(|&label| if label < 0 { IGNORED_LABEL } else { i64::from(label) }).collect()
}

/// The architecture of a new model.
pub(super) fn node_gnn_config(config: &Config, graph: &NodeGraph) -> Result<NodeGnnConfig, StageError> {
    let (model, nodes) = (&config.model, &config.nodes);
    let kind = match model.model {
        ModelKind::Sage => NodeGnnKind::Sage,
        ModelKind::Gcn => NodeGnnKind::Gcn,
        ModelKind::Gat if model.conv == Convolution::GatV2 => NodeGnnKind::GatV2,
        ModelKind::Gat => NodeGnnKind::Gat,
        ModelKind::Appnp => NodeGnnKind::Appnp,
        ModelKind::Mlp => NodeGnnKind::Mlp,
        ModelKind::Gin | ModelKind::Vgae | ModelKind::Dqn => {
            return Err(StageError::Input(format!(
                "a {} does not classify the nodes of one graph; use --preset sage,teacher, gcn,teacher, gat,teacher, appnp,teacher or \
                 mlp,student",
                model.model
            )));
        }
    };
    let sizes = [
        (graph.features.columns() + nodes.position_columns) as i64,
        model.hidden.first().copied().unwrap_or(0) as i64,
        model.layers as i64,
        graph.task.classes as i64,
    ];
    let usual = NodeGnnConfig::new(kind, sizes);
    let of_attention = |value, other| if kind.has_attention() { value } else { other };
    let (teleport, steps) = match kind {
        NodeGnnKind::Appnp => (nodes.teleport, nodes.propagation_steps as i64),
        _ => (usual.teleport, usual.steps),
    };
    Ok(NodeGnnConfig {
        positions: nodes.position_columns as i64,
        aggregator: match nodes.aggregator {
            AggregatorChoice::Gcn if kind == NodeGnnKind::Sage => Aggregator::Gcn,
            _ => Aggregator::Mean,
        },
        heads: of_attention(model.heads as i64, 1),
        output_heads: of_attention(nodes.output_heads as i64, 1),
        attention_dropout: if kind.has_attention() { nodes.attention_dropout } else { 0.0 },
        norm: match nodes.norm {
            NormChoice::None => Norm::None,
            NormChoice::Batch => Norm::Batch,
            NormChoice::Layer => Norm::Layer,
        },
        residual: nodes.residual,
        dropout: model.dropout,
        input_dropout: nodes.input_dropout,
        teleport,
        steps,
        ..usual
    })
}
