//! The loss of a graph network: its task, and distillation of a teacher's outputs if there is a teacher.
//!
//! Losses are means over rows: over the graphs of a batch or, for targets of nodes, over the nodes that have targets. Distillation
//! compares these nodes only.
//!
//! A network in space that gives forces learns [them](forces), too, and a student may see [displaced] graphs.

mod displaced;
mod forces;

use std::sync::Arc;

use tch::{Device, Kind, Tensor};

pub use forces::ForceWeights;

use super::{Student, TeacherLink, absent, share, target};
use crate::hints::{Hints, VectorHints};
use crate::losses::{self, EmbeddingLoss, LogitLoss};
use crate::{TargetName, TargetRows};
use kdgat_graph::padding::Mask;
use kdgat_graph::{Batch, Level, NodeTargets, Task};
use kdgat_nn::layers::Mode;
use kdgat_nn::space::SpaceAnswer;
use kdgat_nn::target_scale::ScaleTensors;
use kdgat_nn::{Gnn, GnnKind, ModelError, TargetScale, masked};
use kdgat_torch::autocast::widened;
use kdgat_train::objective::{Losses, Objective, ObjectiveError, Part, TargetSource, WholeBatch};
use kdgat_train::options::Monitor;

/// A graph network in training, with or without a teacher.
pub struct GraphObjective {
    /// The student.
    pub model: Gnn,
    /// The task that it learns.
    pub task: Task,
    /// The source of the teacher's targets.
    pub teacher: TeacherLink,
    /// The distillation loss; `None` without a teacher.
    pub distillation: Option<GraphDistillation>,
    /// `[num_graphs + 1]`: number of nodes with targets before each graph of the batch received last; empty if graphs have the targets.
    known_nodes: Arc<Vec<u64>>,
    /// Scales of the student's and of the teacher's values, for regression; made by the first step.
    scales: Option<Scales>,
    /// Weights of energies and forces, for a network that gives forces.
    force_weights: ForceWeights,
    /// Amounts of the batch received last, of all processes.
    whole: WholeBatch,
}

/// A network's answer for a batch.
struct Answer {
    /// Rows that hints compare: those that the head reads.
    hidden: Tensor,
    /// `[rows, outputs]`
    outputs: Tensor,
    /// `[num_nodes, 3, hidden]`: vectors of a PaiNN.
    vectors: Option<Tensor>,
    /// `[num_nodes, 3]`: forces on the scale of the outputs.
    forces: Option<Tensor>,
}

/// Scales of values on the device of the batches.
#[derive(Debug)]
struct Scales {
    own: ScaleTensors,
    /// The teacher's, unless they are the student's.
    teacher: Option<ScaleTensors>,
}

/// The distillation loss of a graph network and its weight.
#[derive(Debug)]
pub struct GraphDistillation {
    /// The comparison of logits; for regression the distance of standardised values is used.
    pub loss: LogitLoss,
    /// Scales of the teacher's outputs, for regression.
    pub teacher_scales: Vec<TargetScale>,
    /// The loss of a hidden layer, if hints are used.
    pub hints: Option<Hints>,
    /// The loss of the vectors of nodes, beside hints, if student and teacher have any.
    pub vectors: Option<VectorHints>,
    /// The loss of the embedding and its weight within the distillation, if the teacher's outputs have one.
    pub embedding: Option<(EmbeddingLoss, f64)>,
}

/// Targets of the rows of a batch.
struct Truth<'a> {
    /// Numbers of the classes, `[rows]`, i64; of other tasks not used.
    labels: Tensor,
    /// `[rows, number of targets]`, on the scale of the outputs.
    values: Tensor,
    /// `[num_nodes, 3]`: forces on the scale of the outputs, for a network that gives them.
    forces: Option<Tensor>,
    /// The rows that are not padding; `None` for a batch without.
    real: Option<&'a Mask>,
}

/// A teacher's outputs of the rows that have targets, on the student's scale.
struct TaughtOutputs {
    /// `[rows, outputs]`
    outputs: Tensor,
    /// `[num_nodes, 3]`, if the teacher gives forces.
    forces: Option<Tensor>,
}

/// A teacher's contribution to the loss of a batch; scalars.
struct Taught {
    /// The distillation loss.
    kd: Tensor,
    /// Agreement with the teacher's outputs, if it has any.
    agreement: Option<Tensor>,
    /// The distance of hidden layers or of embeddings, if either is compared.
    extra: Option<Tensor>,
}

/// Position of the task's metric among the parts.
const FIGURE: usize = 2;
/// Names of the parts of a loss; the last only if hidden layers or embeddings are compared.
const OF_CLASSES: [&[&str]; 2] = [
    &["task_loss", "kd_loss", "accuracy", "teacher_agreement", "hint_kd"],
    &["task_loss", "kd_loss", "accuracy", "teacher_agreement", "embedding_kd"],
];
const OF_LABELS: [&[&str]; 2] = [
    &["task_loss", "kd_loss", "label_accuracy", "teacher_agreement", "hint_kd"],
    &["task_loss", "kd_loss", "label_accuracy", "teacher_agreement", "embedding_kd"],
];
const OF_VALUES: [&[&str]; 2] = [
    &["task_loss", "kd_loss", "mean_absolute_error", "teacher_distance", "hint_kd"],
    &["task_loss", "kd_loss", "mean_absolute_error", "teacher_distance", "embedding_kd"],
];
const WITH_FORCES: &[&str] =
    &["task_loss", "kd_loss", "mean_absolute_error", "teacher_distance", "force_error", "hint_kd"];

/// Names of all parts that a loss of any task may have.
pub const ALL_PARTS: &[&str] = &[
    "task_loss",
    "kd_loss",
    "accuracy",
    "label_accuracy",
    "mean_absolute_error",
    "teacher_agreement",
    "teacher_distance",
    "force_error",
    "hint_kd",
    "embedding_kd",
];

impl GraphObjective {
    /// A student in training; `distillation` is the loss that belongs to `teacher`.
    pub fn new(model: Gnn, task: Task, teacher: TeacherLink, distillation: Option<GraphDistillation>) -> Self {
        let force_weights = ForceWeights { energies: 1.0, forces: 1.0 };
        let whole = WholeBatch::default();
        Self { model, task, teacher, distillation, known_nodes: Arc::default(), scales: None, force_weights, whole }
    }

    /// Weighs energies and forces, which a network without forces ignores.
    pub fn with_force_weights(self, force_weights: ForceWeights) -> Self {
        Self { force_weights, ..self }
    }

    /// The network's answer: outputs of the rows that have targets, and what may be compared with a teacher.
    fn answer(&self, batch: &Batch, mode: Mode) -> Result<Answer, ObjectiveError> {
        let Some(answer) = self.model.in_space(batch, mode) else {
            let hidden = self.with_targets(self.model.embed(batch, mode)?, batch)?;
            let outputs = widened(&self.model.classify(&hidden, mode)?)?;
            return Ok(Answer { hidden, outputs, vectors: None, forces: None });
        };
        let SpaceAnswer { outputs, nodes, vectors, forces } = answer?;
        let (hidden, outputs) = (self.with_targets(nodes, batch)?, self.with_targets(outputs, batch)?);
        Ok(Answer { hidden, outputs, vectors, forces })
    }

    /// Number of rows of a part of the batch received last, over which its losses are means.
    fn loss_rows(&self, part: &Part) -> f64 {
        let before = |graph: usize| self.known_nodes.get(graph).map_or(0.0, |&nodes| nodes as f64);
        match self.model.config().level {
            Level::Graph => part.graphs.len() as f64,
            Level::Node => before(part.graphs.end) - before(part.graphs.start),
        }
    }

    /// The distillation loss: of the outputs, plus the weighted distances of hidden layers and of embeddings, whichever the teacher has.
    fn taught(
        &self,
        distillation: &GraphDistillation,
        (targets, taught): (&TargetRows, Option<&TaughtOutputs>),
        answer: &Answer,
        (batch, truth, part): (&Batch, &Truth, &Part),
    ) -> Result<Taught, ObjectiveError> {
        let (mut kd, mut agreement, mut extra) = (None, None, None);
        let config = self.model.config();
        let hidden = match config.hidden_level() {
            Level::Graph => TargetName::HiddenGraphs,
            Level::Node => TargetName::HiddenNodes,
        };
        let Answer { hidden: pooled, outputs, .. } = answer;
        if let Some(taught) = taught {
            agreement = Some(self.agreement(outputs, &taught.outputs, truth.real)?);
            let of_outputs = self.kd_loss(distillation, outputs, &taught.outputs, truth)?;
            kd = Some(self.with_forces(of_outputs, [answer.forces.as_ref(), taught.forces.as_ref()], part)?);
        }
        let mut add = |term: Tensor| -> Result<(), ObjectiveError> {
            kd = Some(match kd.take() {
                Some(kd) => kd.f_add(&term)?,
                None => term,
            });
            Ok(())
        };
        if let Some(hints) = &distillation.hints {
            let hidden = self.with_targets(target(targets, hidden)?.gathered()?, batch)?;
            // Rows of nodes among losses that are weighted by graphs, or by nodes with targets.
            let factor = if config.hidden_level() == config.level { 1.0 } else { self.relative_nodes(part) };
            let mut hint = hints.compare(pooled, &hidden, truth.real)?.times(factor)?;
            if let (Some(hints), Some(own)) = (&distillation.vectors, &answer.vectors) {
                let vectors = hints.compare(own, &target(targets, TargetName::Vectors)?.gathered()?)?;
                hint = hint.with(vectors.times(self.relative_nodes(part))?)?;
            }
            add(hint.weighted()?)?;
            extra = Some(hint.distance);
        }
        if let Some((loss, weight)) = distillation.embedding {
            let taught = target(targets, TargetName::Embedding)?.gathered()?;
            let own = self.model.embedding(pooled, batch)?.ok_or("the student has no embedding")?;
            let distance = loss.of(&own, &taught)?;
            add(distance.f_mul_scalar(weight)?)?;
            extra = Some(distance);
        }
        Ok(Taught { kd: kd.ok_or("the teacher returns nothing")?, agreement, extra })
    }

    /// The teacher's outputs of a batch, if it has any.
    fn taught_outputs(&self, targets: &TargetRows, batch: &Batch) -> Result<Option<TaughtOutputs>, ObjectiveError> {
        let logits = match self.model.config().level {
            Level::Graph => TargetName::Logits,
            Level::Node => TargetName::NodeLogits,
        };
        let Some(outputs) = targets.get(logits) else { return Ok(None) };
        let outputs = self.with_targets(outputs.gathered()?, batch)?;
        let forces = targets.get(TargetName::Forces).map(|rows| self.taught_forces(rows.gathered()?)).transpose()?;
        Ok(Some(TaughtOutputs { outputs: self.on_own_scale(outputs, batch)?, forces }))
    }

    /// The rows that have targets: all graphs, or some of the nodes.
    fn with_targets(&self, rows: Tensor, batch: &Batch) -> Result<Tensor, ObjectiveError> {
        match self.model.config().level {
            Level::Graph => Ok(rows),
            Level::Node => Ok(rows.f_index_select(0, &node_targets(batch)?.nodes)?),
        }
    }

    /// Targets on the scale of the outputs, `[rows, number of targets]`.
    fn truth(&self, batch: &Batch) -> Result<Tensor, ObjectiveError> {
        let targets = match self.model.config().level {
            Level::Graph => batch.targets.as_ref().ok_or("the batch has no targets")?,
            Level::Node => &node_targets(batch)?.values,
        };
        match &self.scales {
            Some(scales) => Ok(scales.own.standardised(targets, batch)?),
            None => Ok(targets.shallow_clone()),
        }
    }

    /// Numbers of the classes, `[rows]`, i64.
    fn labels(&self, batch: &Batch) -> Result<Tensor, ObjectiveError> {
        match self.model.config().level {
            Level::Graph => Ok(batch.labels.shallow_clone()),
            Level::Node => Ok(node_targets(batch)?.values.f_select(1, 0)?.f_to_kind(Kind::Int64)?),
        }
    }

    /// Copies the scales to the device before the first step: a step that is captured as a CUDA graph cannot.
    fn prepare_scales(&mut self, device: Device) -> Result<(), ModelError> {
        let own = &self.model.config().target_scales;
        if self.scales.is_some() || own.is_empty() {
            return Ok(());
        }
        let others = self.distillation.as_ref().map(|distillation| &distillation.teacher_scales);
        let teacher = others.filter(|scales| *scales != own).map(|scales| ScaleTensors::new(scales, device));
        self.scales = Some(Scales { own: ScaleTensors::new(own, device)?, teacher: teacher.transpose()? });
        Ok(())
    }

    /// The teacher's standardised values on the student's scale.
    fn on_own_scale(&self, taught: Tensor, batch: &Batch) -> Result<Tensor, ModelError> {
        match &self.scales {
            Some(Scales { own, teacher: Some(teacher) }) => {
                Ok(own.standardised(&teacher.in_units(&taught, batch)?, batch)?)
            }
            _ => Ok(taught),
        }
    }

    /// Cross entropy, binary cross entropy of each label, or mean squared error of standardised values.
    fn task_loss(&self, outputs: &Tensor, truth: &Truth) -> Result<Tensor, ModelError> {
        let Truth { labels, values, real, .. } = truth;
        Ok(match self.task {
            Task::Classification => masked::cross_entropy(outputs, labels, *real)?,
            Task::MultiLabel => masked::binary_cross_entropy(outputs, values, *real)?,
            Task::Regression => masked::squared_distance(outputs, values, *real)?,
        })
    }

    fn kd_loss(
        &self,
        distillation: &GraphDistillation,
        outputs: &Tensor,
        taught: &Tensor,
        truth: &Truth,
    ) -> Result<Tensor, ModelError> {
        Ok(match self.task {
            Task::Classification => distillation.loss.of(outputs, taught, &truth.labels, truth.real)?,
            // Each label is a distribution over two values.
            Task::MultiLabel => masked::binary_cross_entropy(outputs, &taught.f_sigmoid()?, truth.real)?,
            Task::Regression => losses::logit_distance(outputs, taught, truth.real)?,
        })
    }

    /// The reported figure: accuracy, share of right labels, or mean absolute error in the units of the targets, over all targets.
    fn figure(&self, outputs: &Tensor, truth: &Truth) -> Result<Tensor, ModelError> {
        let Truth { labels, values, real, .. } = truth;
        match self.task {
            Task::Classification => share(&outputs.f_argmax(-1, false)?.f_eq_tensor(labels)?, *real),
            Task::MultiLabel => share_of_all(&outputs.f_gt(0.0)?.f_eq_tensor(&values.f_gt(0.5)?)?, *real),
            Task::Regression => {
                let errors = outputs.f_sub(values)?.f_abs()?;
                let errors = match &self.scales {
                    Some(scales) => errors.f_mul(&scales.own.deviations().f_to_kind(Kind::Float)?)?,
                    None => errors,
                };
                Ok(masked::mean(&errors, *real)?)
            }
        }
    }

    fn agreement(&self, outputs: &Tensor, taught: &Tensor, real: Option<&Mask>) -> Result<Tensor, ModelError> {
        match self.task {
            Task::Classification => {
                share(&outputs.f_argmax(-1, false)?.f_eq_tensor(&taught.f_argmax(-1, false)?)?, real)
            }
            Task::MultiLabel => share_of_all(&outputs.f_gt(0.0)?.f_eq_tensor(&taught.f_gt(0.0)?)?, real),
            Task::Regression => Ok(masked::mean(&outputs.f_sub(taught)?.f_abs()?, real)?),
        }
    }
}

/// The targets of the nodes of a batch.
fn node_targets(batch: &Batch) -> Result<&NodeTargets, ObjectiveError> {
    Ok(batch.node_targets.as_ref().ok_or("the batch has no targets of nodes")?)
}

/// Share of ones in `flags`, `[rows, columns]`, over the rows that are not padding.
fn share_of_all(flags: &Tensor, real: Option<&Mask>) -> Result<Tensor, ModelError> {
    Ok(masked::mean(&flags.f_to_kind(Kind::Float)?, real)?)
}

impl Objective for GraphObjective {
    fn parts(&self) -> &'static [&'static str] {
        let names = match self.task {
            Task::Classification => OF_CLASSES,
            Task::MultiLabel => OF_LABELS,
            Task::Regression => OF_VALUES,
        };
        let [with_hint, with_embedding] = match self.model.config().gives_forces() {
            true => [WITH_FORCES, WITH_FORCES],
            false => names,
        };
        match &self.distillation {
            Some(GraphDistillation { embedding: Some(_), .. }) => with_embedding,
            Some(GraphDistillation { hints: Some(_), .. }) => with_hint,
            _ => with_hint.split_last().map_or(&[], |(_, parts)| parts),
        }
    }

    fn metric(&self) -> Option<Monitor> {
        Some(Monitor::Part { index: FIGURE, highest_is_best: self.task != Task::Regression })
    }

    fn source(&self) -> &dyn TargetSource {
        &self.teacher
    }

    fn source_mut(&mut self) -> &mut dyn TargetSource {
        &mut self.teacher
    }

    fn loss(&mut self, batch: &Batch, part: &Part, mode: Mode) -> Result<Losses, ObjectiveError> {
        self.prepare_scales(batch.continuous.device())?;
        let answer = self.answer(batch, mode)?;
        let real = batch.real.as_ref().map(|real| &real.graphs);
        let (labels, values) = (self.labels(batch)?, self.truth(batch)?);
        let targets = self.teacher.targets_of(part)?;
        let taught = targets.as_ref().map(|targets| self.taught_outputs(targets, batch)).transpose()?.flatten();
        let truth = Truth { labels, values, forces: self.true_forces(batch)?, real };
        let truth = self.with_displaced(truth, taught.as_ref(), batch)?;
        let task = self.task_loss(&answer.outputs, &truth)?;
        let task = self.with_forces(task, [answer.forces.as_ref(), truth.forces.as_ref()], part)?;
        let figure = self.figure(&answer.outputs, &truth)?;
        let forces = answer.forces.as_ref().zip(truth.forces.as_ref());
        let of_forces = forces.map(|(forces, truth)| self.force_error(forces, truth, part)).transpose()?;
        let (Some(distillation), Some(targets)) = (&self.distillation, targets) else {
            let total = task.shallow_clone();
            let (kd, agreement) = (absent(&task), absent(&task));
            return Ok(Losses { total, parts: [task, kd, figure, agreement].into_iter().chain(of_forces).collect() });
        };
        let of_teacher = (&targets, taught.as_ref());
        let Taught { kd, agreement, extra } = self.taught(distillation, of_teacher, &answer, (batch, &truth, part))?;
        let total = self.teacher.total(&kd, &task, mode)?;
        let agreement = agreement.unwrap_or_else(|| absent(&task));
        let mut parts = vec![task, kd, figure, agreement];
        parts.extend(of_forces);
        parts.extend(extra);
        Ok(Losses { total, parts })
    }

    fn start_batch(&mut self, batch: &Batch) {
        self.known_nodes = batch.node_targets.as_ref().map(|targets| Arc::clone(&targets.pointers)).unwrap_or_default();
        let rows = self.loss_rows(&Part::whole(batch));
        self.whole = WholeBatch { nodes: batch.num_nodes() as f64, rows, label_weight: 0.0 };
    }

    fn rows(&self, part: &Part) -> f64 {
        self.loss_rows(part)
    }

    fn set_whole_batch(&mut self, whole: WholeBatch) {
        self.whole = whole;
    }

    fn division_obstacle(&self) -> Option<&'static str> {
        let (loss, _) = self.distillation.as_ref()?.embedding?;
        match loss {
            EmbeddingLoss::Cosine | EmbeddingLoss::Distance => None,
            EmbeddingLoss::Contrastive { .. } | EmbeddingLoss::Relational => {
                Some("this loss of embeddings compares the graphs of a batch in pairs (use the distance or the cosine)")
            }
        }
    }

    fn weight(&self, batch: &Batch) -> f64 {
        self.loss_rows(&Part::whole(batch))
    }
}

impl Student for GraphObjective {
    fn teacher(&self) -> &TeacherLink {
        &self.teacher
    }

    fn teacher_mut(&mut self) -> &mut TeacherLink {
        &mut self.teacher
    }

    fn capture_obstacle(&self) -> Option<&'static str> {
        let config = self.model.config();
        match config.level {
            _ if config.kind.is_in_space() => Some("the number of pairs differs from batch to batch"),
            _ if config.kind == GnnKind::Sgmp => Some("the number of paths differs from batch to batch"),
            Level::Node => Some("the number of nodes with targets differs from batch to batch"),
            Level::Graph if config.embedding_columns > 0 => Some("losses of embeddings compare all rows of a batch"),
            Level::Graph => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use kdgat_graph::assemble::Assembler;
    use kdgat_graph::columns::Columns;
    use kdgat_graph::{AssembleOptions, FeatureSet, Vocabulary};
    use kdgat_nn::attention::Backend;
    use kdgat_nn::{FreshParameters, GnnConfig, Scope};
    use tch::Device;

    use super::*;

    /// Graphs of one, two and three nodes without edges; only some nodes have targets.
    fn batch() -> Batch {
        let mut columns = Columns::new(FeatureSet::Columns {
            nodes: 1,
            edges: 0,
            targets: 0,
            node_targets: 1,
            exact_targets: false,
            wide_edges: false,
            space: Default::default(),
        });
        let none = f32::NAN;
        for targets in [&[1.0][..], &[none, 0.0], &[1.0, 2.0, none]] {
            let nodes = targets.len();
            columns.can_ids.extend(0..nodes as u32);
            columns.attack_free.extend((0..nodes).map(|_| 1));
            columns.node_features.extend((0..nodes).map(|node| 0.5 * node as f32 - targets.len() as f32));
            columns.row_pointers.extend(vec![0; nodes + 1]);
            columns.node_targets.extend_from_slice(targets);
            columns.finish_graph(false, 0, 0, 0.0);
        }
        let options = AssembleOptions::new(Arc::new(Vocabulary::from_ids([])));
        Assembler::default().assemble_columns(&columns, &options).unwrap()
    }

    /// The loss is the mean over the nodes with targets, and those of the parts of a batch add up to it.
    #[test]
    fn losses_of_nodes_are_means_over_those_with_targets() {
        let batch = batch();
        for (task, outputs) in [(Task::Classification, 3), (Task::MultiLabel, 1), (Task::Regression, 1)] {
            let config = GnnConfig {
                level: Level::Node,
                virtual_node: true,
                target_scales: match task {
                    Task::Regression => vec![TargetScale { mean: 1.0, deviation: 2.0, weights: Vec::new() }],
                    _ => Vec::new(),
                },
                ..GnnConfig::new(GnnKind::Gin, [1, 4, 2, outputs])
            };
            let mut parameters = FreshParameters::new(1, Device::Cpu);
            let model = Gnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
            let rows = tch::no_grad(|| model.forward(&batch, Mode::Evaluation).unwrap());
            let mut objective = GraphObjective::new(model, task, TeacherLink::none(), None);
            objective.start_batch(&batch);
            let whole = Part::whole(&batch);
            let loss = |objective: &mut GraphObjective, batch: &Batch, part: &Part| {
                let losses = tch::no_grad(|| objective.validation_loss(batch, part)).unwrap();
                [losses.total, losses.parts[FIGURE].shallow_clone()].map(|value| value.double_value(&[]))
            };
            let [total, figure] = loss(&mut objective, &batch, &whole);
            assert_eq!(objective.weight(&batch), 4.0);
            // Nodes 0, 2, 3 and 4 have targets 1, 0, 1 and 2.
            if task == Task::Regression {
                let errors = [(0, 1.0), (2, 0.0), (3, 1.0), (4, 2.0)]
                    .map(|(node, target)| rows.double_value(&[node, 0]) - (target - 1.0) / 2.0);
                let expected = errors.iter().map(|error| error * error).sum::<f64>() / 4.0;
                assert!((total - expected).abs() < 1e-6, "{total}, expected {expected}");
                let expected = errors.iter().map(|error| 2.0 * error.abs()).sum::<f64>() / 4.0;
                assert!((figure - expected).abs() < 1e-6, "{figure}, expected {expected}");
            }
            let mut sums = [0.0; 2];
            for graphs in [0..1, 1..3] {
                let positions: Vec<usize> = graphs.clone().collect();
                let part = Part { nodes: if graphs.start == 0 { 0..1 } else { 1..6 }, graphs };
                let share = objective.share(&part, &whole);
                let of_part = loss(&mut objective, &batch.select_graphs(&positions).unwrap(), &part);
                sums.iter_mut().zip(of_part).for_each(|(sum, value)| *sum += share * value);
            }
            assert!((sums[0] - total).abs() < 1e-6 && (sums[1] - figure).abs() < 1e-6, "{task:?}: {sums:?} {total}");
        }
    }
}
