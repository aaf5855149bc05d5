//! The loss of a VGAE: its task, and distillation from a teacher where there is one.

use tch::Tensor;

use super::{TEACHER_COLUMNS, absent, announce, teacher_status, teacher_values};
use crate::distill::losses::{self, Projection, VgaeWeights};
use crate::distill::{StepReport, TargetName, Teacher};
use crate::graph::Batch;
use crate::nn::vgae::{Mode, task_loss};
use crate::nn::{Vgae, VgaeOutput};
use crate::train::objective::{Losses, Objective, ObjectiveError};

/// A VGAE that is trained, perhaps by a teacher.
pub struct VgaeObjective {
    pub model: Vgae,
    pub distillation: Option<VgaeDistillation>,
}

/// The teacher and how much it counts.
pub struct VgaeDistillation {
    pub teacher: Teacher,
    pub projection: Projection,
    pub weights: VgaeWeights,
    /// Batches that one visit of the teacher serves.
    pub burst: usize,
    /// What the teacher did up to the last row of the log.
    pub last_report: StepReport,
}

impl VgaeObjective {
    fn loss(&mut self, batch: &Batch, mode: Mode) -> Result<Losses, ObjectiveError> {
        // The teacher's answer comes first: while it is waited for, no activation of the student exists.
        let targets = self.distillation.as_mut().map(|distillation| distillation.teacher.targets()).transpose()?;
        let output = self.model.forward(batch, mode)?;
        let task = task_loss(&output, batch)?;
        let (total, kd) = match (&self.distillation, targets) {
            (Some(distillation), Some(targets)) => {
                let target = |name| targets.get(name).ok_or_else(|| format!("the teacher gives no {name}"));
                let (latent, reconstruction) = (target(TargetName::Latent)?, target(TargetName::Reconstruction)?);
                distil(distillation, &output, &task.total, latent, reconstruction)?
            }
            _ => (task.total.shallow_clone(), [absent(&task.total), absent(&task.total), absent(&task.total)]),
        };
        let mut parts = vec![task.total];
        parts.extend(kd);
        parts.extend([task.reconstruction, task.id, task.successors, task.kl]);
        Ok(Losses { total, parts })
    }
}

/// The total loss, and the distillation with its two parts.
fn distil(
    distillation: &VgaeDistillation,
    output: &VgaeOutput,
    task: &Tensor,
    teacher_latent: &Tensor,
    teacher_reconstruction: &Tensor,
) -> Result<(Tensor, [Tensor; 3]), ObjectiveError> {
    let projected = distillation.projection.forward(&output.latent)?;
    let weights = distillation.weights;
    let kd = losses::vgae(&projected, &output.reconstruction, teacher_latent, teacher_reconstruction, weights)?;
    let total = losses::total(&kd.total, task, weights.alpha)?;
    Ok((total, [kd.total, kd.latent, kd.reconstruction]))
}

impl Objective for VgaeObjective {
    fn parts(&self) -> &'static [&'static str] {
        &["task_loss", "kd_loss", "latent_kd", "recon_kd", "reconstruction", "id", "successors", "kl"]
    }

    fn burst(&self) -> usize {
        self.distillation.as_ref().map_or(1, |distillation| distillation.burst)
    }

    fn announce(&mut self, batches: &[Batch]) -> Result<(), ObjectiveError> {
        announce(self.distillation.as_ref().map(|distillation| &distillation.teacher), batches);
        Ok(())
    }

    fn training_loss(&mut self, batch: &Batch) -> Result<Losses, ObjectiveError> {
        self.loss(batch, Mode::Training)
    }

    fn validation_loss(&mut self, batch: &Batch) -> Result<Losses, ObjectiveError> {
        self.loss(batch, Mode::Evaluation)
    }

    fn step_columns(&self) -> &'static [&'static str] {
        if self.distillation.is_some() { TEACHER_COLUMNS } else { &[] }
    }

    fn step_values(&mut self) -> Vec<String> {
        match &mut self.distillation {
            Some(distillation) => {
                distillation.last_report = distillation.teacher.report();
                teacher_values(&distillation.last_report)
            }
            None => Vec::new(),
        }
    }

    fn status(&self) -> String {
        self.distillation.as_ref().map(|distillation| teacher_status(&distillation.last_report)).unwrap_or_default()
    }
}
