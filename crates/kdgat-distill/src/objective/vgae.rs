//! The loss of a VGAE: its task, and distillation from a teacher if there is one.

use tch::Tensor;

use super::{Student, TeacherLink, absent, parts, target};
use crate::hints::{Hint, Hints};
use crate::losses::VgaeWeights;
use crate::vgae_terms::{LatentComparison, Projection, VgaeKd, VgaeTaught};
use crate::{TargetName, TargetRows};
use kdgat_graph::Batch;
use kdgat_nn::attention::Backend;
use kdgat_nn::vgae::{Mode, VgaeLoss, task_loss};
use kdgat_nn::{ModelError, Vgae, VgaeOutput};
use kdgat_torch::rows::Rows;
use kdgat_train::objective::{Backward, Losses, Objective, ObjectiveError, Part, TargetSource};

/// Names of the parts of the loss; the last only if hints are used.
pub const WITH_HINT: &[&str] =
    &["task_loss", "kd_loss", "latent_kd", "recon_kd", "reconstruction", "id", "successors", "kl", "hint_kd"];

/// A VGAE in training, with or without a teacher.
pub struct VgaeObjective {
    /// The student.
    pub model: Vgae,
    /// The connection to the teacher.
    pub teacher: TeacherLink,
    /// The distillation loss; `None` without a teacher.
    pub distillation: Option<VgaeDistillation>,
}

/// The distillation loss of a VGAE and its weights.
#[derive(Debug)]
pub struct VgaeDistillation {
    /// The map from the student's latent to the teacher's columns; `None` if latents are not compared.
    pub projection: Option<Projection>,
    /// w_z: weight of the distance between latents.
    pub latent_weight: f64,
    /// w_x: weight of the distance between reconstructions.
    pub reconstruction_weight: f64,
    /// Conversion of node features from the teacher's scale to the student's, if they differ.
    pub translation: Option<Translation>,
    /// The loss of a hidden layer, if hints are used.
    pub hints: Option<Hints>,
}

impl VgaeDistillation {
    pub(super) fn weights(&self, alpha: f64) -> VgaeWeights {
        VgaeWeights { alpha, latent: self.latent_weight, reconstruction: self.reconstruction_weight }
    }
}

/// Converts the reconstruction of a teacher that was trained on other data to the student's units.
#[derive(Debug)]
pub struct Translation {
    factor: Tensor,
    offset: Tensor,
}

impl Translation {
    /// Creates the conversion `x * factor + offset`; both have one value per feature.
    pub fn new([factor, offset]: [Vec<f32>; 2]) -> Self {
        Self { factor: Tensor::from_slice(&factor), offset: Tensor::from_slice(&offset) }
    }

    pub(super) fn apply(&self, reconstruction: &Tensor) -> Result<Tensor, tch::TchError> {
        let like = |row: &Tensor| row.f_to_device(reconstruction.device())?.f_to_kind(reconstruction.f_kind()?);
        reconstruction.f_mul(&like(&self.factor)?)?.f_add(&like(&self.offset)?)
    }
}

impl VgaeObjective {
    fn losses(&mut self, batch: &Batch, part: &Part, mode: Mode, backward: Backward) -> Result<Losses, ObjectiveError> {
        let Self { model, teacher, distillation } = self;
        let latent = model.latent(batch, mode)?;
        let targets = teacher.targets_of(part)?;
        let z = latent.latent.shallow_clone();
        let decode = || model.decode(batch, mode, latent);
        let (total, distilled, hint, task) = match (distillation, targets) {
            (Some(distillation), Some(targets)) => {
                let student = (&z, model.kernel());
                let taught = (&*distillation, distillation.weights(teacher.alpha(mode)));
                let (losses, hint, task) = distil(taught, student, (&targets, batch), decode, backward)?;
                let latent = losses.latent.unwrap_or_else(|| absent(&losses.total));
                (losses.total, [losses.kd, latent, losses.reconstruction], hint, task)
            }
            _ => {
                let task = task_loss(&decode()?, batch)?;
                backward(&task.total)?;
                let none = || absent(&task.total);
                (task.total.shallow_clone(), [none(), none(), none()], None, task)
            }
        };
        let mut parts = vec![task.total];
        parts.extend(distilled);
        parts.extend([task.reconstruction, task.id, task.successors, task.kl]);
        parts.extend(hint);
        Ok(Losses { total, parts })
    }
}

/// Computes the losses of a distilled student. If latents are compared, z is compared with the teacher's while it is decoded and
/// gradients are taken.
/// Returns the loss, the hint's distance and the task loss.
fn distil(
    (distillation, weights): (&VgaeDistillation, VgaeWeights),
    latent: (&Tensor, Backend),
    (targets, batch): (&TargetRows, &Batch),
    decode: impl FnOnce() -> Result<VgaeOutput, ModelError>,
    backward: Backward,
) -> Result<(VgaeKd, Option<Tensor>, VgaeLoss), ObjectiveError> {
    let VgaeDistillation { projection, translation, hints, .. } = distillation;
    let reconstruction = target(targets, TargetName::Reconstruction)?;
    let mean = |projection| Ok::<_, ObjectiveError>((projection, target(targets, TargetName::Latent)?));
    let translate =
        |translation: &Translation| Ok::<_, ObjectiveError>(translation.apply(&reconstruction.gathered()?)?.into());
    let translated: Option<Rows> = translation.as_ref().map(translate).transpose()?;
    let taught = VgaeTaught {
        latent: projection.as_ref().map(mean).transpose()?,
        reconstruction: translated.as_ref().unwrap_or(reconstruction),
    };
    let (terms, _) = LatentComparison::beside(latent, (taught, batch.real.is_none()), weights, |comparison| {
        let output = decode()?;
        let terms = comparison.terms(&output, batch)?;
        let hint = hints.as_ref().map(|hints| compare_hidden(hints, &output, (targets, batch))).transpose()?;
        // The backward pass frees the student's outputs as it proceeds.
        drop(output);
        backward(&terms.training_loss(weights, hint.as_ref())?)?;
        Ok::<_, ObjectiveError>((terms, hint))
    })?;
    let (terms, hint) = terms?;
    let losses = tch::no_grad(|| terms.losses(weights, hint.as_ref()))?;
    Ok((losses, hint.map(|hint| hint.distance), terms.task))
}

fn compare_hidden(
    hints: &Hints,
    output: &VgaeOutput,
    (targets, batch): (&TargetRows, &Batch),
) -> Result<Hint, ObjectiveError> {
    let hidden =
        output.hidden.as_ref().ok_or("a hidden layer is distilled, but the student's model does not return one")?;
    let real = batch.real.as_ref().map(|real| &real.nodes);
    Ok(hints.compare(hidden, &target(targets, TargetName::HiddenNodes)?.gathered()?, real)?)
}

impl Objective for VgaeObjective {
    fn parts(&self) -> &'static [&'static str] {
        parts(WITH_HINT, self.distillation.as_ref().is_some_and(|distillation| distillation.hints.is_some()))
    }

    fn source(&self) -> &dyn TargetSource {
        &self.teacher
    }

    fn source_mut(&mut self) -> &mut dyn TargetSource {
        &mut self.teacher
    }

    fn loss(&mut self, batch: &Batch, part: &Part, mode: Mode) -> Result<Losses, ObjectiveError> {
        self.losses(batch, part, mode, &mut |_| Ok(()))
    }

    /// The backward pass goes on while the loss is computed.
    fn training_loss(&mut self, batch: &Batch, part: &Part, backward: Backward) -> Result<Losses, ObjectiveError> {
        self.losses(batch, part, Mode::Training, backward)
    }

    fn rows(&self, part: &Part) -> f64 {
        // All losses are means over nodes.
        (part.nodes.end - part.nodes.start) as f64
    }
}

impl Student for VgaeObjective {
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
