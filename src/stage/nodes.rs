//! The nodes of one large graph and a network that classifies them: alone, or as a student that learns from a teacher's outputs for all
//! visible nodes.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tch::Device;

use super::graphs::split_inputs;
use super::measured::Measured;
use super::node_data::{self, NodeData};
use super::node_features::{self, ChosenRows, SampledBatches};
use super::node_plan::{
    NodePlan, Seeds, array_bytes, exact_reach, position_bytes, reach, samples_validation, whole_forward_bytes,
};
use super::node_sizing::{Fitted, NodeSizing};
use super::node_targets::NodeTargets;
use super::node_teacher;
use super::run::{Prepared, Run};
use super::sizes::Sizes;
use super::sizing::planned_bytes;
use super::teacher::FoundTeacher;
use super::together::{self, ShareSizes};
use super::workload::{NewStudent, Opened, TeacherSource, Workload};
use super::{StageError, training};
use crate::config::{AggregatorChoice, Config, Convolution, ModelKind, NormChoice, Stage};
use crate::distill::objective::{Consistency, IGNORED_LABEL, NodeObjective, TeacherLink};
use crate::graph::{Loader, OwnRows, Vocabulary};
use crate::memory::limits::host_limit;
use crate::nn::node_gnn_config::{Aggregator, Norm};
use crate::nn::{Architecture, FreshParameters, NodeGnn, NodeGnnConfig, NodeGnnKind, Scope};
use crate::nodes::{BatchOptions, FeatureRows, NodeBatches, NodeGraph, NodeSplit, Reach, with_positions};
use crate::torch::allocator::{self, Buffers, Phase};
use crate::train::fit::{BatchPlan, FitOptions};
use crate::train::processes::Processes;
use crate::train::trainable::Trainable;

/// A classifier of the nodes of one large graph.
pub struct NodeClassifier<'a> {
    config: &'a Config,
    data: NodeData,
    split: NodeSplit,
    /// The part of the graph that is visible in training.
    visible: Arc<NodeGraph>,
    /// The same, with the positions that the new model reads; a teacher may read others.
    read: Arc<NodeGraph>,
    architecture: NodeGnnConfig,
    seeds: Seeds,
}

impl<'a> NodeClassifier<'a> {
    /// Opens the configured graph and divides its nodes.
    ///
    /// # Errors
    /// A graph that cannot be read, or a model that does not fit it.
    pub fn open(config: &'a Config) -> Result<Self, StageError> {
        let data = node_data::open(config)?;
        let split = NodeSplit::of(&data.graph, &node_data::split_options(config, &data.graph))?;
        let visible = node_data::visible_part(&data.graph, &split)?;
        let architecture = node_gnn_config(config, &data.graph)?;
        let read = Arc::new(with_positions(&visible, config.nodes.position_columns)?);
        let beyond_labels = config.distillation.use_kd || consistency(config).is_some();
        let seeds = Seeds::of(config, &split, visible.num_nodes(), beyond_labels);
        Ok(Self { config, data, split, visible, read, architecture, seeds })
    }

    /// Batches of the part of the graph within `reach` of their seeds.
    fn batches(&self, reach: Reach, labels: Vec<i64>) -> Result<NodeBatches, StageError> {
        let (seed, degrees) = (self.config.training.seed, self.architecture.needs_source_degrees());
        let options = BatchOptions { reach, seed, degrees };
        Ok(NodeBatches::new(Arc::clone(&self.read), Arc::new(labels), options, &self.data.source)?)
    }

    /// Batches for training and for validation.
    fn both_batches(&self, plan: &NodePlan) -> Result<[NodeBatches; 2], StageError> {
        let training = self.batches(plan.reach.clone(), labels_of(&self.visible, &self.split.training))?;
        let is_exact = matches!(plan.reach, Reach::None | Reach::Whole { .. });
        let validation = match is_exact || plan.samples_validation {
            true => training.with_labels(Arc::new(all_labels(&self.visible)))?.with_fixed_samples(),
            false => self.batches(exact_reach(&self.architecture), all_labels(&self.visible))?,
        };
        Ok([training, validation])
    }

    fn loader(&self, batches: NodeBatches) -> Loader {
        let workers = training::loader_workers(self.config, false);
        Loader::over(Arc::new(batches), workers, self.config.training.prefetch_batches)
    }

    /// Measures batches of sampled neighbours, and sets the number of seeds per batch that fits.
    fn fit_samples(
        &self,
        run: &Run,
        student: &mut NodeObjective,
        trainable: &mut Trainable,
        options: &FitOptions,
        (plan, batches): (&mut NodePlan, &NodeBatches),
    ) -> Result<Fitted, StageError> {
        let free_bytes = self.free_bytes();
        node_features::prepare_sampling(&self.read, free_bytes)?;
        let measured = batches.with_labels(Arc::new(labels_of(&self.visible, &self.split.training)))?;
        let measured = measured.reading(node_features::for_measuring(&self.read, free_bytes)?);
        let num_nodes = self.visible.num_nodes();
        let sizing = NodeSizing {
            config: self.config,
            directory: run.directory(),
            seeds: &self.seeds.nodes,
            array_bytes: array_bytes(num_nodes, self.seeds.nodes.len()) + position_bytes(self.config, &self.read),
            validation_bytes: match plan.samples_validation {
                true => 0.0,
                false => whole_forward_bytes(&self.architecture, num_nodes as f64),
            },
            validation: plan.sampled_validation().len(),
            wanted: plan.batch_nodes,
            decided: run.decided.map(|decided| decided.batch_graphs),
        };
        let (loader, sizes) = (self.loader(measured), Sizes::Alike([1, 0]));
        let fitted = sizing.fit(Measured::of(student, trainable, [&loader, &loader], &sizes, options))?;
        node_features::prepare_passes(&self.read)?;
        plan.batch_nodes = fitted.batch_nodes;
        Ok(fitted)
    }

    /// Chooses the place that batches read features from; `None` if each batch reads all of them.
    fn choose_rows(&self, plan: &NodePlan, free_bytes: f64) -> Result<Option<ChosenRows>, StageError> {
        if matches!(plan.reach, Reach::Whole { .. }) {
            return Ok(None);
        }
        let (seeds, validation, batch_nodes) = (&self.seeds.nodes, plan.sampled_validation(), plan.batch_nodes);
        let sampled = plan.fanouts().map(|fanouts| SampledBatches { seeds, validation, batch_nodes, fanouts });
        let chosen = node_features::choose(self.config, &self.read, free_bytes, sampled)?;
        if plan.samples_validation {
            node_features::prepare_sampling(&self.read, free_bytes)?;
        }
        Ok(Some(chosen))
    }

    /// Host memory to plan for, in bytes.
    fn free_bytes(&self) -> f64 {
        planned_bytes(self.config, Device::Cpu, &host_limit(self.config.memory.memory_limit.map(|size| size.0)))
    }
}

/// Validation batches of sampled neighbours, for the user.
const SAMPLED_VALIDATION: &str =
    "validation: sampled neighbours, the same after each epoch (--node-validation exact: the whole graph)";

impl<'a> Workload<'a> for NodeClassifier<'a> {
    type Student = NodeObjective;
    type Plan = NodePlan;

    fn architecture(&self) -> Architecture {
        Architecture::Nodes(self.architecture.clone())
    }

    fn opened(&self) -> Opened<'a> {
        Opened { config: self.config, stage: Stage::Train, origin: self.data.origin() }
    }

    /// With sampled neighbours for the teacher, all its targets are computed first, if the cache does not have them.
    fn find_teacher(&mut self) -> Result<TeacherSource, StageError> {
        let found = node_teacher::find_for_nodes(self.config, &self.data, &self.architecture, &self.split)?;
        let Some(found) = found else { return Ok(TeacherSource::None) };
        if self.config.nodes.teacher_fanouts.is_none() {
            return Ok(TeacherSource::network(Some(found)));
        }
        let nodes = self.seeds.with_validation(&self.split);
        let targets = NodeTargets::new(self.config, &self.data, &self.visible, found, nodes)?;
        Ok(TeacherSource::network(Some(filled(targets)?)))
    }

    fn inputs(&mut self) -> Result<Map<String, Value>, StageError> {
        let NodeSplit { training, validation, test, hidden, origin, .. } = &self.split;
        let sizes = json!([training.len(), validation.len(), test.len(), hidden.len()]);
        Ok(split_inputs(origin, &self.split.test_digest(&self.data.graph)?, ("nodes", sizes)))
    }

    fn plan(&mut self) -> Result<NodePlan, StageError> {
        let (config, read) = (self.config, &self.read);
        let mut plan =
            NodePlan::new(config, &self.seeds, &self.split, reach(config, &self.architecture, &self.visible)?);
        plan.samples_validation =
            samples_validation(config, read.num_nodes(), read.num_edges(), read.features.columns());
        Ok(plan)
    }

    fn new_student(&self, teacher: Option<&Architecture>) -> Result<NewStudent<NodeObjective>, StageError> {
        let mut new = new_student(self.config, self.data.device, &self.architecture, teacher.is_some())?;
        new.student.labelled_share = self.seeds.labelled_share;
        let nodes = &self.config.nodes;
        new.student.reads_whole =
            self.architecture.message_layers() > 0 && nodes.fanouts.is_none() && nodes.clusters.is_none();
        Ok(new)
    }

    fn start_teacher(&self, teacher: TeacherSource, plan: &NodePlan) -> Result<TeacherLink, StageError> {
        let (found, device) = (teacher.into_network(), self.data.device);
        node_teacher::start_for_nodes(self.config, found, &self.visible, device, plan.teacher_use())
    }

    fn prepare(
        &self,
        run: &mut Run,
        student: &mut NodeObjective,
        trainable: &mut Trainable,
        plan: &mut NodePlan,
    ) -> Result<Prepared, StageError> {
        if let (Some(processes), Reach::Whole { own, .. }) = (&run.processes, &mut plan.reach) {
            *own = Some(own_rows(&self.read, processes)?);
            expect_nodes_for_all(plan, processes)?;
        }
        let [mut training, mut validation] = self.both_batches(plan)?;
        let options = run.fit_options(student);
        let mut notes = vec![format!("split: {}", self.split.origin)];
        let (mut free_bytes, mut wanted_buffers) = (self.free_bytes(), None);
        if plan.fanouts().is_some() {
            // A process computes and holds its share of each batch.
            let processes = run.processes.clone();
            let (whole, size) = (plan.batch_nodes, processes.as_ref().map_or(1, |processes| processes.size()));
            if run.decided.is_none() {
                plan.batch_nodes = whole.div_ceil(size);
            }
            let fitted = self.fit_samples(run, student, trainable, &options, (plan, &training))?;
            if let Some(processes) = processes.as_ref().filter(|_| run.decided.is_none()) {
                let agreed = together::agree(processes, ShareSizes { graphs: plan.batch_nodes, recomputes: false })?;
                plan.batch_nodes = (agreed.graphs * size).min(whole);
            }
            free_bytes = fitted.free_bytes;
            wanted_buffers = Some(fitted.buffers).filter(|_| !self.data.device.is_cuda());
            notes.extend(fitted.notes);
            notes.extend(plan.samples_validation.then(|| SAMPLED_VALIDATION.to_owned()));
        }
        let mut read_rows: Option<Arc<FeatureRows>> = None;
        if let Some(ChosenRows { rows, notes: lines }) = self.choose_rows(plan, free_bytes)? {
            notes.extend(lines);
            (training, validation) = (training.reading(Arc::clone(&rows)), validation.reading(Arc::clone(&rows)));
            read_rows = Some(rows);
        }
        let buffers = wanted_buffers.map(|(count, bytes)| batch_buffers(count, bytes)).transpose()?.flatten();
        // An exact validation has one batch, which shares the tensors of the whole graph.
        let of_validation = buffers.clone().filter(|_| plan.samples_validation);
        Ok(Prepared {
            training_loader: self.loader(training).with_buffers(buffers),
            validation_loader: self.loader(validation).with_buffers(of_validation),
            options,
            recomputes: false,
            description: run.description(self.architecture(), Vocabulary::from_ids([])),
            batch_graphs: plan.batch_nodes,
            amounts: amounts(&self.seeds, &self.split),
            notes,
            expected_peak_bytes: None,
            closing: Box::new(move || read_rows.iter().filter_map(|rows| node_features::summary(rows)).collect()),
        })
    }
}

/// Makes a network with its loss, that of a teacher's outputs included if there is one. All seeds count as labelled.
///
/// # Errors
/// Too little memory.
pub(super) fn new_student(
    config: &Config,
    device: Device,
    architecture: &NodeGnnConfig,
    has_teacher: bool,
) -> Result<NewStudent<NodeObjective>, StageError> {
    let mut parameters = FreshParameters::new(config.training.seed, device);
    let model = NodeGnn::new(Scope::root(&mut parameters), architecture, training::attention_kernel(config))?;
    let distillation = has_teacher.then(|| training::logit_loss(config));
    let (teacher, consistency) = (TeacherLink::none(), consistency(config));
    let (labelled_share, reads_whole) = (1.0, false);
    let student = NodeObjective { model, teacher, distillation, consistency, labelled_share, reads_whole };
    Ok(NewStudent { parameters, student })
}

/// The nodes whose rows this process computes in steps over the whole graph.
fn own_rows(graph: &NodeGraph, processes: &Processes) -> Result<OwnRows, StageError> {
    OwnRows::of(&graph.row_pointers, (processes.rank(), processes.size())).ok_or_else(|| {
        let (nodes, size) = (graph.num_nodes(), processes.size());
        StageError::Input(format!("{size} processes: a graph of {nodes} nodes cannot be divided among them; use fewer"))
    })
}

/// Checks that every batch has a seed for each process, as all compute each step.
fn expect_nodes_for_all(plan: &NodePlan, processes: &Processes) -> Result<(), StageError> {
    let size = processes.size();
    let batches = [plan.training(0), plan.validation()].concat();
    // Without validation nodes, nobody computes their batch.
    let smallest = batches.iter().map(Vec::len).filter(|&nodes| nodes > 0).min();
    match smallest.filter(|&nodes| nodes < size) {
        Some(smallest) => Err(StageError::Input(format!(
            "{size} processes: a batch of {smallest} training or validation nodes cannot be divided among them; use fewer"
        ))),
        None => Ok(()),
    }
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
    if !targets.files().is_complete()? && targets.fill(None)?.interrupted {
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
        ModelKind::Gin
        | ModelKind::Vgae
        | ModelKind::Dqn
        | ModelKind::SchNet
        | ModelKind::PaiNN
        | ModelKind::Irreps
        | ModelKind::Sgmp => {
            return Err(StageError::Input(format!(
                "{} does not classify the nodes of one graph; use --preset sage,teacher, gcn,teacher, gat,teacher, appnp,teacher or \
                 mlp,student",
                model.model.with_article()
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
