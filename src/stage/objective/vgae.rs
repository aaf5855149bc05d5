//! The loss of a VGAE: its task, and distillation from a teacher where there is one.

use tch::{TchError, Tensor};

use super::{Student, TeacherLink, absent, target};
use crate::distill::hints::Hints;
use crate::distill::losses::{LatentComparison, Projection, VgaeKd, VgaeWeights};
use crate::distill::{TargetName, TargetRows};
use crate::graph::Batch;
use crate::nn::attention::Backend;
use crate::nn::vgae::{Mode, VgaeLoss, task_loss};
use crate::nn::{ModelError, Vgae, VgaeOutput};
use crate::torch::rows::Rows;
use crate::train::objective::{Backward, Losses, Objective, ObjectiveError, Part};
use crate::train::timeline::Span;

/// Parts of the loss; the last only where there are hints.
pub const WITH_HINT: &[&str] =
    &["task_loss", "kd_loss", "latent_kd", "recon_kd", "reconstruction", "id", "successors", "kl", "hint_kd"];

/// A VGAE that is trained, perhaps by a teacher.
pub struct VgaeObjective {
    pub model: Vgae,
    pub teacher: TeacherLink,
    /// Set where there is a teacher.
    pub distillation: Option<VgaeDistillation>,
}

/// How the teacher's targets are compared with the student's, and how much they count.
#[derive(Debug)]
pub struct VgaeDistillation {
    pub projection: Projection,
    pub weights: VgaeWeights,
    /// From the teacher's scale of node features to the student's, where they differ.
    pub translation: Option<Translation>,
    /// Where a hidden layer is distilled, too.
    pub hints: Option<Hints>,
}

/// What a teacher that was trained on other data reconstructs, in the student's units.
#[derive(Debug)]
pub struct Translation {
    factor: Tensor,
    offset: Tensor,
}

impl Translation {
    /// `x * factor + offset`, by feature.
    pub fn new([factor, offset]: [Vec<f32>; 2]) -> Self {
        Self { factor: Tensor::from_slice(&factor), offset: Tensor::from_slice(&offset) }
    }

    fn apply(&self, reconstruction: &Tensor) -> Result<Tensor, tch::TchError> {
        let like = |row: &Tensor| row.f_to_device(reconstruction.device())?.f_to_kind(reconstruction.f_kind()?);
        reconstruction.f_mul(&like(&self.factor)?)?.f_add(&like(&self.offset)?)
    }
}

impl VgaeObjective {
    fn loss(&mut self, batch: &Batch, part: &Part, mode: Mode, backward: Backward) -> Result<Losses, ObjectiveError> {
        let Self { model, teacher, distillation } = self;
        let latent = model.latent(batch, mode)?;
        teacher.read()?;
        let targets = teacher.targets(part)?;
        let z = latent.latent.shallow_clone();
        let decode = || model.decode(batch, mode, latent);
        let (Distilled { total, outputs, hint }, task) = match (distillation, targets) {
            (Some(distillation), Some(targets)) => {
                distil(distillation, (&z, model.kernel()), (&targets, batch), decode, backward)?
            }
            _ => {
                let task = task_loss(&decode()?, batch)?;
                backward(&task.total)?;
                let none = || absent(&task.total);
                let total = task.total.shallow_clone();
                (Distilled { total, outputs: [none(), none(), none()], hint: None }, task)
            }
        };
        let mut parts = vec![task.total];
        parts.extend(outputs);
        parts.extend([task.reconstruction, task.id, task.successors, task.kl]);
        parts.extend(hint);
        Ok(Losses { total, parts })
    }
}

/// The total loss and its distillation.
struct Distilled {
    total: Tensor,
    /// The distillation, and its parts for the latent and the reconstruction.
    outputs: [Tensor; 3],
    hint: Option<Tensor>,
}

/// The losses of a student whose z is compared with the teacher's while it is decoded, and gradients are taken.
fn distil(
    distillation: &VgaeDistillation,
    latent: (&Tensor, Backend),
    (targets, batch): (&TargetRows, &Batch),
    decode: impl FnOnce() -> Result<VgaeOutput, ModelError>,
    backward: Backward,
) -> Result<(Distilled, VgaeLoss), ObjectiveError> {
    let (mean, reconstruction) = (target(targets, TargetName::Latent)?, target(targets, TargetName::Reconstruction)?);
    let translation = distillation.translation.as_ref();
    let translated = translation.map(|translation| Ok(Rows::Whole(translation.apply(&reconstruction.gathered()?)?)));
    let translated = translated.transpose().map_err(|error: TchError| ModelError::from(error))?;
    let taught = [mean, translated.as_ref().unwrap_or(reconstruction)];
    let VgaeDistillation { projection, weights, hints, .. } = distillation;
    let taught = (taught, batch.real.is_none());
    let (losses, comparison) = LatentComparison::beside(projection, latent, taught, *weights, |comparison| {
        let output = decode()?;
        let (task, losses) = comparison.losses(&output, batch)?;
        let losses = with_hint(hints.as_ref(), losses, &output, (targets, batch), weights.alpha)?;
        // Here the student's outputs go: the backward frees as it passes.
        drop(output);
        backward(&losses.total)?;
        Ok::<_, ObjectiveError>((losses, task))
    })?;
    let (mut losses, task) = losses?;
    if let Some(lacking) = comparison.lacking()? {
        let [kd, latent, _] = &mut losses.outputs;
        for (scalar, lacking) in [&mut losses.total, kd, latent].into_iter().zip(lacking) {
            *scalar = Tensor::from((scalar.f_double_value(&[])? + lacking) as f32);
        }
    }
    Ok((losses, task))
}

/// The losses with that of a hidden layer, where one is distilled, too.
fn with_hint(
    hints: Option<&Hints>,
    VgaeKd { total, kd, latent, reconstruction }: VgaeKd,
    output: &VgaeOutput,
    (targets, batch): (&TargetRows, &Batch),
    alpha: f64,
) -> Result<Distilled, ObjectiveError> {
    let Some(hints) = hints else {
        return Ok(Distilled { total, outputs: [kd, latent, reconstruction], hint: None });
    };
    let hidden =
        output.hidden.as_ref().ok_or("a hidden layer is to be distilled, and the student's model keeps none")?;
    let real = batch.real.as_ref().map(|real| &real.nodes);
    let hint = hints.distance(hidden, &target(targets, TargetName::HiddenNodes)?.gathered()?, real)?;
    let hinted = hints.add_to(hint, [&kd, &total], alpha)?;
    let outputs = [hinted.kd, latent, reconstruction];
    Ok(Distilled { total: hinted.total, outputs, hint: Some(hinted.hint) })
}

impl Objective for VgaeObjective {
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

    fn receive(&mut self, _batch: &Batch) -> Result<(), ObjectiveError> {
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
        self.loss(batch, part, Mode::Training, backward)
    }

    fn validation_loss(&mut self, batch: &Batch, part: &Part) -> Result<Losses, ObjectiveError> {
        self.loss(batch, part, Mode::Evaluation, &mut |_| Ok(()))
    }

    fn share(&self, part: &Part, whole: &Part) -> f64 {
        // All losses are means over nodes.
        (part.nodes.end - part.nodes.start) as f64 / (whole.nodes.end - whole.nodes.start).max(1) as f64
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

impl Student for VgaeObjective {
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
