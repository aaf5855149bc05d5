//! The loss of a classifier: its task, and distillation of a teacher's logits where there is one.

use tch::{Kind, Tensor};

use super::{Student, TeacherLink, absent, target};
use crate::distill::TargetName;
use crate::distill::hints::Hints;
use crate::distill::losses::{self, LogitLoss};
use crate::graph::Batch;
use crate::graph::padding::Mask;
use crate::nn::vgae::Mode;
use crate::nn::{ClassLoss, Gat, ModelError, masked};
use crate::train::objective::{Backward, Losses, Objective, ObjectiveError, Part};
use crate::train::timeline::Span;

/// A classifier that is trained, perhaps by a teacher.
pub struct GatObjective {
    pub model: Gat,
    pub task: ClassLoss,
    pub teacher: TeacherLink,
    /// Set where there is a teacher.
    pub distillation: Option<GatDistillation>,
    /// Labels of the batch at hand, of which losses may be asked part by part.
    pub labels: Option<Tensor>,
}

/// How the teacher's logits are compared with the student's, and how much they count.
#[derive(Debug)]
pub struct GatDistillation {
    pub loss: LogitLoss,
    /// α: share of the distillation in the total loss.
    pub alpha: f64,
    /// Where a hidden layer is distilled, too.
    pub hints: Option<Hints>,
}

/// Parts of the loss; the last only where there are hints.
pub const WITH_HINT: &[&str] = &[
    "task_loss",
    "kd_loss",
    "accuracy",
    "false_positive_share",
    "false_negative_share",
    "teacher_agreement",
    "hint_kd",
];

impl GatObjective {
    fn loss(&mut self, batch: &Batch, part: &Part, mode: Mode) -> Result<Losses, ObjectiveError> {
        let pooled = self.model.embed(batch, mode)?;
        let logits = self.model.classify(&pooled, mode)?;
        let real = batch.real.as_ref().map(|real| &real.graphs);
        let task = match (mode, real) {
            (Mode::Training, Some(_)) => self.task.of(&logits, &batch.labels, real)?,
            (Mode::Training, None) => self.task.of_part(&logits, &batch.labels, self.labels.as_ref())?,
            (Mode::Evaluation, _) => self.task.of_validation(&logits, &batch.labels)?,
        };
        self.teacher.read()?;
        let targets = self.teacher.targets(part)?;
        let called = logits.f_argmax(-1, false)?;
        let (total, kd, agreement, hint) = match (&self.distillation, targets) {
            (Some(distillation), Some(targets)) => {
                let taught = target(&targets, TargetName::Logits)?.gathered()?;
                let kd = distillation.loss.of(&logits, &taught, &batch.labels, real)?;
                let total = losses::total(&kd, &task, distillation.alpha)?;
                let agreement = share_equal(&called, &taught.f_argmax(-1, false)?, real)?;
                match &distillation.hints {
                    None => (total, kd, agreement, None),
                    Some(hints) => {
                        let hidden = target(&targets, TargetName::HiddenGraphs)?.gathered()?;
                        let hint = hints.distance(&pooled, &hidden, real)?;
                        let hinted = hints.add_to(hint, [&kd, &total], distillation.alpha)?;
                        (hinted.total, hinted.kd, agreement, Some(hinted.hint))
                    }
                }
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
}

fn share_equal(left: &Tensor, right: &Tensor, real: Option<&Mask>) -> Result<Tensor, ModelError> {
    share(&left.f_eq_tensor(right)?, real)
}

/// Share of the ones.
fn share(flags: &Tensor, real: Option<&Mask>) -> Result<Tensor, ModelError> {
    Ok(masked::mean_of_rows(&flags.f_to_kind(Kind::Float)?, real)?)
}

impl Objective for GatObjective {
    fn parts(&self) -> &'static [&'static str] {
        match self.distillation.as_ref().and_then(|distillation| distillation.hints.as_ref()) {
            Some(_) => WITH_HINT,
            None => WITH_HINT.split_last().map_or(&[], |(_, parts)| parts),
        }
    }

    fn burst(&self) -> usize {
        self.teacher.burst()
    }

    fn start_epoch(&mut self) {
        self.teacher.start_epoch();
    }

    fn announce(&mut self, batches: &[Batch]) -> Result<(), ObjectiveError> {
        self.teacher.announce(batches);
        Ok(())
    }

    fn receive(&mut self, batch: &Batch) -> Result<(), ObjectiveError> {
        self.labels = Some(batch.labels.shallow_clone());
        Ok(self.teacher.receive()?)
    }

    fn forget(&mut self) {
        self.teacher.forget();
    }

    fn targets(&mut self) -> Result<Vec<Tensor>, ObjectiveError> {
        Ok(self.teacher.gathered()?)
    }

    fn replace_targets(&mut self, targets: &[Tensor]) {
        self.teacher.replace(targets);
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

    fn step_columns(&self) -> &'static [&'static str] {
        self.teacher.step_columns()
    }

    fn step_values(&mut self) -> Vec<String> {
        self.teacher.step_values()
    }

    fn record_spans(&mut self, on: bool) {
        self.teacher.record_spans(on);
    }

    fn take_spans(&mut self) -> Vec<Span> {
        self.teacher.take_spans()
    }

    fn status(&self) -> String {
        self.teacher.status()
    }
}

impl Student for GatObjective {
    fn teacher(&self) -> &TeacherLink {
        &self.teacher
    }

    fn set_checkpointing(&mut self, on: bool) {
        self.model.set_checkpointing(on);
    }

    fn into_teacher(self) -> TeacherLink {
        self.teacher
    }
}
