//! Distillation losses.
//!
//! total = α·KD + (1−α)·task. A teacher's outputs carry no gradient.

use tch::{Reduction, Tensor};

use crate::nn::ModelError;
use crate::nn::layers::Linear;
use crate::nn::parameters::Scope;

/// Weights of the distillation of a VGAE.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VgaeWeights {
    /// α: share of the distillation in the total loss.
    pub alpha: f64,
    /// Weight of the distance between latents.
    pub latent: f64,
    /// Weight of the distance between reconstructions.
    pub reconstruction: f64,
}

/// Distillation of a VGAE and its parts, each a scalar.
#[derive(Debug)]
pub struct VgaeKd {
    /// MSE(P·z_student, μ_teacher)
    pub latent: Tensor,
    /// MSE(x̂_student, x̂_teacher)
    pub reconstruction: Tensor,
    /// The weighted sum of both.
    pub total: Tensor,
}

/// P: maps the student's latent to the teacher's columns; the identity when they agree.
#[derive(Debug)]
pub struct Projection(Option<Linear>);

impl Projection {
    /// A learned linear map where the sizes differ. It is trained with the student but is not part of it.
    pub fn new(mut scope: Scope, student_latent: i64, teacher_latent: i64) -> Result<Self, ModelError> {
        if student_latent == teacher_latent {
            return Ok(Self(None));
        }
        Linear::new(scope.sub("projection"), student_latent, teacher_latent).map(|linear| Self(Some(linear)))
    }

    /// `[num_nodes, student_latent]` → `[num_nodes, teacher_latent]`.
    pub fn forward(&self, latent: &Tensor) -> Result<Tensor, ModelError> {
        match &self.0 {
            Some(linear) => linear.forward(latent),
            None => Ok(latent.shallow_clone()),
        }
    }
}

/// Distillation of a VGAE: the student's projected z towards the teacher's μ, and its reconstruction towards the teacher's.
pub fn vgae(
    projected_latent: &Tensor,
    reconstruction: &Tensor,
    teacher_latent: &Tensor,
    teacher_reconstruction: &Tensor,
    weights: VgaeWeights,
) -> Result<VgaeKd, ModelError> {
    let latent = projected_latent.f_mse_loss(teacher_latent, Reduction::Mean)?;
    let reconstruction = reconstruction.f_mse_loss(teacher_reconstruction, Reduction::Mean)?;
    let total = latent.f_mul_scalar(weights.latent)?.f_add(&reconstruction.f_mul_scalar(weights.reconstruction)?)?;
    Ok(VgaeKd { latent, reconstruction, total })
}

/// α·KD + (1−α)·task.
pub fn total(kd: &Tensor, task: &Tensor, alpha: f64) -> Result<Tensor, ModelError> {
    Ok(kd.f_mul_scalar(alpha)?.f_add(&task.f_mul_scalar(1.0 - alpha)?)?)
}

/// Soft-label distillation (Hinton et al. 2015): T²·KL(softmax(teacher/T) ‖ softmax(student/T)), mean over graphs.
/// Logits are `[num_graphs, classes]`.
pub fn soft_labels(student: &Tensor, teacher: &Tensor, temperature: f64) -> Result<Tensor, ModelError> {
    let kind = student.kind();
    let student = student.f_div_scalar(temperature)?.f_log_softmax(-1, kind)?;
    let teacher = teacher.f_div_scalar(temperature)?.f_log_softmax(-1, kind)?;
    let log_target = true;
    let graphs = student.size()[0].max(1) as f64;
    let divergence = student.f_kl_div(&teacher, Reduction::Sum, log_target)?;
    Ok(divergence.f_mul_scalar(temperature * temperature / graphs)?)
}
