//! The loss of a classifier: its task, and distillation of a teacher's logits if there is a teacher.

use tch::Tensor;

use super::{Student, TeacherLink, absent, parts, share, target};
use crate::TargetName;
use crate::hints::Hints;
use crate::losses::LogitLoss;
use kdgat_graph::Batch;
use kdgat_graph::padding::Mask;
use kdgat_nn::vgae::Mode;
use kdgat_nn::{ClassLoss, Gat, ModelError};
use kdgat_train::objective::{Losses, Objective, ObjectiveError, Part, TargetSource, WholeBatch};

/// A classifier in training, with or without a teacher.
pub struct GatObjective {
    /// The student.
    pub model: Gat,
    /// The classification loss.
    pub task: ClassLoss,
    /// The connection to the teacher.
    pub teacher: TeacherLink,
    /// The distillation loss; `None` without a teacher.
    pub distillation: Option<GatDistillation>,
    /// Labels of the whole current batch, `[num_graphs]`; losses may be computed part by part.
    pub labels: Option<Tensor>,
    /// Mean weight of the labels of the whole batch, if this process has a share of it.
    pub mean_label_weight: Option<f64>,
}

/// The distillation loss of a classifier and its weight.
#[derive(Debug)]
pub struct GatDistillation {
    /// The comparison of the student's logits with the teacher's.
    pub loss: LogitLoss,
    /// The loss of a hidden layer, if hints are used.
    pub hints: Option<Hints>,
}

/// Names of the parts of the loss; the last only if hints are used.
pub const WITH_HINT: &[&str] = &[
    "task_loss",
    "kd_loss",
    "accuracy",
    "false_positive_share",
    "false_negative_share",
    "teacher_agreement",
    "hint_kd",
];

fn share_equal(left: &Tensor, right: &Tensor, real: Option<&Mask>) -> Result<Tensor, ModelError> {
    share(&left.f_eq_tensor(right)?, real)
}

impl Objective for GatObjective {
    fn parts(&self) -> &'static [&'static str] {
        parts(WITH_HINT, self.distillation.as_ref().is_some_and(|distillation| distillation.hints.is_some()))
    }

    fn source(&self) -> &dyn TargetSource {
        &self.teacher
    }

    fn source_mut(&mut self) -> &mut dyn TargetSource {
        &mut self.teacher
    }

    fn start_batch(&mut self, batch: &Batch) {
        self.labels = Some(batch.labels.shallow_clone());
    }

    fn loss(&mut self, batch: &Batch, part: &Part, mode: Mode) -> Result<Losses, ObjectiveError> {
        let pooled = self.model.embed(batch, mode)?;
        let logits = self.model.classify(&pooled, mode)?;
        let real = batch.real.as_ref().map(|real| &real.graphs);
        let task = match (mode, real) {
            (Mode::Training, Some(_)) => self.task.of(&logits, &batch.labels, real)?,
            (Mode::Training, None) => match self.mean_label_weight {
                Some(mean) => self.task.of_share(&logits, &batch.labels, mean)?,
                None => self.task.of_part(&logits, &batch.labels, self.labels.as_ref())?,
            },
            (Mode::Evaluation, _) => self.task.of_validation(&logits, &batch.labels, real)?,
        };
        let targets = self.teacher.targets_of(part)?;
        let called = logits.f_argmax(-1, false)?;
        let (total, kd, agreement, hint) = match (&self.distillation, targets) {
            (Some(distillation), Some(targets)) => {
                let taught = target(&targets, TargetName::Logits)?.gathered()?;
                let mut kd = distillation.loss.of(&logits, &taught, &batch.labels, real)?;
                let mut distance = None;
                if let Some(hints) = &distillation.hints {
                    let hidden = target(&targets, TargetName::HiddenGraphs)?.gathered()?;
                    let hint = hints.compare(&pooled, &hidden, real)?;
                    kd = kd.f_add(&hint.weighted()?)?;
                    distance = Some(hint.distance);
                }
                let total = self.teacher.total(&kd, &task, mode)?;
                let agreement = share_equal(&called, &taught.f_argmax(-1, false)?, real)?;
                (total, kd, agreement, distance)
            }
            _ => (task.shallow_clone(), absent(&task), absent(&task), None),
        };
        let accuracy = share_equal(&called, &batch.labels, real)?;
        // Called 1 and labelled 0, or the reverse: the difference is 1 or -1.
        let difference = called.f_sub(&batch.labels)?;
        let (false_positives, false_negatives) =
            (share(&difference.f_gt(0)?, real)?, share(&difference.f_lt(0)?, real)?);
        let mut parts = vec![task, kd, accuracy, false_positives, false_negatives, agreement];
        parts.extend(hint);
        Ok(Losses { total, parts })
    }

    fn rows(&self, part: &Part) -> f64 {
        // All losses are means over graphs.
        part.graphs.len() as f64
    }

    fn label_weight(&self, batch: &Batch) -> Result<f64, ObjectiveError> {
        Ok(self.task.weight_of(&batch.labels)?)
    }

    fn set_whole_batch(&mut self, whole: WholeBatch) {
        self.mean_label_weight = Some(whole.label_weight);
    }
}

impl Student for GatObjective {
    fn teacher(&self) -> &TeacherLink {
        &self.teacher
    }

    fn teacher_mut(&mut self) -> &mut TeacherLink {
        &mut self.teacher
    }

    fn set_checkpointing(&mut self, on: bool) {
        self.model.set_checkpointing(on);
    }
}
