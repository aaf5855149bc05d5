//! The loss of a graph network: its task, and distillation of a teacher's outputs if there is a teacher.

use tch::{Kind, Reduction, Tensor};

use super::{Student, TeacherLink, absent, target};
use crate::hints::Hints;
use crate::losses::{self, EmbeddingLoss, LogitLoss};
use crate::{TargetName, TargetRows};
use kdgat_graph::{Batch, Task};
use kdgat_nn::layers::Mode;
use kdgat_nn::target_scale;
use kdgat_nn::{Gnn, ModelError, TargetScale};
use kdgat_torch::autocast::widened;
use kdgat_train::objective::{Backward, Losses, Objective, ObjectiveError, Part, TargetSource};
use kdgat_train::options::Monitor;

/// A graph network in training, with or without a teacher.
pub struct GraphObjective {
    /// The student.
    pub model: Gnn,
    /// The task: classification or regression.
    pub task: Task,
    /// The connection to the teacher.
    pub teacher: TeacherLink,
    /// The distillation loss; `None` without a teacher.
    pub distillation: Option<GraphDistillation>,
}

/// The distillation loss of a graph network and its weight.
#[derive(Debug)]
pub struct GraphDistillation {
    /// The comparison of logits; for regression the distance of standardised values is used.
    pub loss: LogitLoss,
    /// α: share of the distillation in the total loss.
    pub alpha: f64,
    /// Scales of the teacher's outputs, for regression.
    pub teacher_scales: Vec<TargetScale>,
    /// The loss of a hidden layer, if hints are used.
    pub hints: Option<Hints>,
    /// The loss of the embedding and its weight within the distillation, if the teacher's outputs have one.
    pub embedding: Option<(EmbeddingLoss, f64)>,
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

/// Names of all parts that a loss of any task may have.
pub const ALL_PARTS: &[&str] = &[
    "task_loss",
    "kd_loss",
    "accuracy",
    "label_accuracy",
    "mean_absolute_error",
    "teacher_agreement",
    "teacher_distance",
    "hint_kd",
    "embedding_kd",
];

impl GraphObjective {
    fn loss(&mut self, batch: &Batch, part: &Part, mode: Mode) -> Result<Losses, ObjectiveError> {
        let pooled = self.model.embed(batch, mode)?;
        let outputs = widened(&self.model.classify(&pooled, mode)?)?;
        let truth = self.truth(batch)?;
        let task = self.task_loss(&outputs, batch, &truth)?;
        self.teacher.read()?;
        let targets = self.teacher.rows_of(part)?;
        let figure = self.figure(&outputs, batch, &truth)?;
        let (Some(distillation), Some(targets)) = (&self.distillation, targets) else {
            let total = task.shallow_clone();
            let (kd, agreement) = (absent(&task), absent(&task));
            return Ok(Losses { total, parts: vec![task, kd, figure, agreement] });
        };
        let Taught { kd, agreement, extra } = self.taught(distillation, &targets, [&pooled, &outputs], batch)?;
        let total = losses::total(&kd, &task, distillation.alpha)?;
        let agreement = agreement.unwrap_or_else(|| absent(&task));
        let mut parts = vec![task, kd, figure, agreement];
        parts.extend(extra);
        Ok(Losses { total, parts })
    }

    /// The distillation loss: of the outputs, plus the weighted distances of hidden layers and of embeddings, whichever the teacher has.
    fn taught(
        &self,
        distillation: &GraphDistillation,
        targets: &TargetRows,
        [pooled, outputs]: [&Tensor; 2],
        batch: &Batch,
    ) -> Result<Taught, ObjectiveError> {
        let (mut kd, mut agreement, mut extra) = (None, None, None);
        if let Some(taught) = targets.get(TargetName::Logits) {
            let taught = self.on_own_scale(&taught.gathered()?, &distillation.teacher_scales, batch)?;
            agreement = Some(self.agreement(outputs, &taught)?);
            kd = Some(self.kd_loss(distillation, outputs, &taught, batch)?);
        }
        let mut add = |term: Tensor| -> Result<(), ObjectiveError> {
            kd = Some(match kd.take() {
                Some(kd) => kd.f_add(&term)?,
                None => term,
            });
            Ok(())
        };
        if let Some(hints) = &distillation.hints {
            let hidden = target(targets, TargetName::HiddenGraphs)?.gathered()?;
            let hint = hints.compare(pooled, &hidden, None)?;
            add(hint.weighted()?)?;
            extra = Some(hint.distance);
        }
        if let Some((loss, weight)) = distillation.embedding {
            let taught = target(targets, TargetName::Embedding)?.gathered()?;
            let own = self.model.embedding(pooled)?.ok_or("the student has no embedding")?;
            let distance = loss.of(&own, &taught)?;
            add(distance.f_mul_scalar(weight)?)?;
            extra = Some(distance);
        }
        Ok(Taught { kd: kd.ok_or("the teacher returns nothing")?, agreement, extra })
    }

    /// Targets on the scale of the outputs, `[num_graphs, number of targets]`.
    fn truth(&self, batch: &Batch) -> Result<Tensor, ObjectiveError> {
        let targets = batch.targets.as_ref().ok_or("the batch has no targets")?;
        let scales = &self.model.config().target_scales;
        if scales.is_empty() {
            return Ok(targets.shallow_clone());
        }
        Ok(target_scale::standardised(targets, scales, batch)?)
    }

    /// The teacher's standardised values on the student's scale.
    fn on_own_scale(&self, taught: &Tensor, scales: &[TargetScale], batch: &Batch) -> Result<Tensor, ModelError> {
        let own = &self.model.config().target_scales;
        if self.task != Task::Regression || own == scales {
            return Ok(taught.shallow_clone());
        }
        Ok(target_scale::standardised(&target_scale::in_units(taught, scales, batch)?, own, batch)?)
    }

    /// Cross entropy, binary cross entropy of each label, or mean squared error of standardised values.
    fn task_loss(&self, outputs: &Tensor, batch: &Batch, truth: &Tensor) -> Result<Tensor, ModelError> {
        Ok(match self.task {
            Task::Classification => {
                let (ignored_label, smoothing) = (-100, 0.0);
                outputs.f_cross_entropy_loss(
                    &batch.labels,
                    None::<&Tensor>,
                    Reduction::Mean,
                    ignored_label,
                    smoothing,
                )?
            }
            Task::MultiLabel => {
                outputs.f_binary_cross_entropy_with_logits(truth, None::<&Tensor>, None::<&Tensor>, Reduction::Mean)?
            }
            Task::Regression => outputs.f_mse_loss(truth, Reduction::Mean)?,
        })
    }

    fn kd_loss(
        &self,
        distillation: &GraphDistillation,
        outputs: &Tensor,
        taught: &Tensor,
        batch: &Batch,
    ) -> Result<Tensor, ModelError> {
        Ok(match self.task {
            Task::Classification => distillation.loss.of(outputs, taught, &batch.labels, None)?,
            // Each label is a distribution over two values.
            Task::MultiLabel => outputs.f_binary_cross_entropy_with_logits(
                &taught.f_sigmoid()?,
                None::<&Tensor>,
                None::<&Tensor>,
                Reduction::Mean,
            )?,
            Task::Regression => losses::logit_distance(outputs, taught, None)?,
        })
    }

    /// The reported figure: accuracy, share of right labels, or mean absolute error in the units of the targets, over all targets.
    fn figure(&self, outputs: &Tensor, batch: &Batch, truth: &Tensor) -> Result<Tensor, ModelError> {
        match self.task {
            Task::Classification => share(&outputs.f_argmax(-1, false)?.f_eq_tensor(&batch.labels)?),
            Task::MultiLabel => share(&outputs.f_gt(0.0)?.f_eq_tensor(&truth.f_gt(0.5)?)?),
            Task::Regression => {
                let scales = self.model.config().target_scales.iter().map(|scale| scale.deviation as f32);
                let units = Tensor::f_from_slice(&scales.collect::<Vec<_>>())?.f_to_device(outputs.device())?;
                Ok(outputs.f_sub(truth)?.f_abs()?.f_mul(&units)?.f_mean(Kind::Float)?)
            }
        }
    }

    fn agreement(&self, outputs: &Tensor, taught: &Tensor) -> Result<Tensor, ModelError> {
        match self.task {
            Task::Classification => share(&outputs.f_argmax(-1, false)?.f_eq_tensor(&taught.f_argmax(-1, false)?)?),
            Task::MultiLabel => share(&outputs.f_gt(0.0)?.f_eq_tensor(&taught.f_gt(0.0)?)?),
            Task::Regression => Ok(outputs.f_sub(taught)?.f_abs()?.f_mean(Kind::Float)?),
        }
    }
}

fn share(flags: &Tensor) -> Result<Tensor, ModelError> {
    Ok(flags.f_to_kind(Kind::Float)?.f_mean(Kind::Float)?)
}

impl Objective for GraphObjective {
    fn parts(&self) -> &'static [&'static str] {
        let names = match self.task {
            Task::Classification => OF_CLASSES,
            Task::MultiLabel => OF_LABELS,
            Task::Regression => OF_VALUES,
        };
        let [with_hint, with_embedding] = names;
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

    fn training_loss(&mut self, batch: &Batch, part: &Part, backward: Backward) -> Result<Losses, ObjectiveError> {
        let losses = self.loss(batch, part, Mode::Training)?;
        backward(&losses.total)?;
        Ok(losses)
    }

    fn validation_loss(&mut self, batch: &Batch, part: &Part) -> Result<Losses, ObjectiveError> {
        self.loss(batch, part, Mode::Evaluation)
    }

    fn share(&self, part: &Part, whole: &Part) -> f64 {
        // All losses are means over graphs.
        part.graphs.len() as f64 / whole.graphs.len().max(1) as f64
    }
}

impl Student for GraphObjective {
    fn teacher(&self) -> &TeacherLink {
        &self.teacher
    }

    /// Activations are always stored: recomputing them is not implemented for these layers.
    fn set_checkpointing(&mut self, _: bool) {}

    fn into_teacher(self) -> TeacherLink {
        self.teacher
    }
}
