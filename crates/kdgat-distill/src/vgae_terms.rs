//! The terms of a distilled VGAE's loss: composed of torch's operations, or by the fused passes of kdgat-nn, which compare the
//! latents on other threads while this one decodes and takes gradients.

use kdgat_graph::Batch;
use kdgat_graph::padding::Mask;
use kdgat_nn::attention::Backend;
use kdgat_nn::fused;
use kdgat_nn::fused::distillation::{self, Taught};
use kdgat_nn::layers::Linear;
use kdgat_nn::parameters::Scope;
use kdgat_nn::vgae::{VgaeLoss, distilled_loss, is_one_pass, task_loss};
use kdgat_nn::{ModelError, VgaeOutput, masked};
use kdgat_torch::autocast::widened;
use kdgat_torch::rows::Rows;
use tch::{TchError, Tensor};

use super::hints::Hint;
use super::losses::{VgaeWeights, total};

/// P: maps the student's latent to the teacher's columns; the identity when they agree.
#[derive(Debug)]
pub struct Projection(Option<Linear>);

impl Projection {
    /// Creates a learned linear map if the sizes differ. It is trained with the student but is not part of it.
    pub fn new(mut scope: Scope, student_latent: i64, teacher_latent: i64) -> Result<Self, ModelError> {
        if student_latent == teacher_latent {
            return Ok(Self(None));
        }
        Linear::new(scope.sub("projection"), student_latent, teacher_latent).map(|linear| Self(Some(linear)))
    }

    /// Weight `[teacher_latent, student_latent]` and bias `[teacher_latent]`; none for the identity.
    pub fn parameters(&self) -> Option<[&Tensor; 2]> {
        self.0.as_ref().map(Linear::parameters)
    }

    /// Maps `[num_nodes, student_latent]` to `[num_nodes, teacher_latent]`.
    pub fn forward(&self, latent: &Tensor, kernel: Backend) -> Result<Tensor, ModelError> {
        match &self.0 {
            Some(linear) => linear.forward(latent, kernel),
            None => Ok(latent.shallow_clone()),
        }
    }
}

/// Terms of the loss of a distilled VGAE, scalars.
#[derive(Debug)]
pub struct VgaeTerms {
    /// The task loss and its parts.
    pub task: VgaeLoss,
    /// MSE(P·z_student, μ_teacher), if latents are compared. Its value is 0 while a fused comparison runs.
    pub latent: Option<Tensor>,
    /// MSE(x̂_student, x̂_teacher).
    pub reconstruction: Tensor,
    /// The total with the gradients of the fused pass, if that computed the terms.
    fused_total: Option<Tensor>,
}

/// The loss of a distilled VGAE, scalars.
#[derive(Debug)]
pub struct VgaeKd {
    /// MSE(P·z_student, μ_teacher), if latents are compared.
    pub latent: Option<Tensor>,
    /// MSE(x̂_student, x̂_teacher)
    pub reconstruction: Tensor,
    /// The weighted sum of both, and of the hint.
    pub kd: Tensor,
    /// α·KD + (1−α)·task
    pub total: Tensor,
}

impl VgaeKd {
    /// Combines the distances of latents and of reconstructions, the hint and the task loss.
    pub fn new(
        latent: Option<&Tensor>,
        reconstruction: &Tensor,
        task: &Tensor,
        weights: VgaeWeights,
        hint: Option<&Hint>,
    ) -> Result<Self, TchError> {
        let mut kd = weights.kd(latent, reconstruction)?;
        if let Some(hint) = hint {
            kd = kd.f_add(&hint.weighted()?)?;
        }
        let total = total(&kd, task, weights.alpha)?;
        Ok(Self {
            latent: latent.map(Tensor::shallow_clone),
            reconstruction: reconstruction.shallow_clone(),
            kd,
            total,
        })
    }
}

impl VgaeTerms {
    /// Combines the terms into the loss.
    pub fn losses(&self, weights: VgaeWeights, hint: Option<&Hint>) -> Result<VgaeKd, TchError> {
        VgaeKd::new(self.latent.as_ref(), &self.reconstruction, &self.task.total, weights, hint)
    }

    /// Returns the total to take gradients of. The gradients are right while a fused comparison runs, the value is not.
    pub fn training_loss(&self, weights: VgaeWeights, hint: Option<&Hint>) -> Result<Tensor, TchError> {
        match (&self.fused_total, hint) {
            (Some(total), None) => Ok(total.shallow_clone()),
            // The fused pass does not know the hint, which is a term of KD.
            (Some(total), Some(hint)) => total.f_add(&hint.weighted()?.f_mul_scalar(weights.alpha)?),
            (None, _) => Ok(self.losses(weights, hint)?.total),
        }
    }
}

/// The outputs of a VGAE's teacher that its student is compared with.
#[derive(Debug, Clone, Copy)]
pub struct VgaeTaught<'a> {
    /// P and the teacher's μ `[num_nodes, teacher_latent]`, if latents are compared.
    pub latent: Option<(&'a Projection, &'a Rows)>,
    /// The teacher's reconstruction `[num_nodes, NODE_FEATURES]`.
    pub reconstruction: &'a Rows,
}

/// Computes the loss of a distilled VGAE: its task, and its projected z and its reconstruction compared with the teacher's.
pub fn vgae(
    output: &VgaeOutput,
    batch: &Batch,
    taught: VgaeTaught,
    weights: VgaeWeights,
) -> Result<(VgaeLoss, VgaeKd), ModelError> {
    let latent = (&output.latent, output.kernel);
    let is_whole = batch.real.is_none();
    let ((), comparison) = LatentComparison::beside(latent, (taught, is_whole), weights, |_| ())?;
    let terms = comparison.terms(output, batch)?;
    let losses = VgaeKd { total: terms.training_loss(weights, None)?, ..terms.losses(weights, None)? };
    Ok((terms.task, losses))
}

/// Comparison of a student's latent with its teacher's, which needs no decoder output.
pub struct LatentComparison<'a> {
    taught: VgaeTaught<'a>,
    /// The fused pass, if one computes the comparison.
    fused: Option<Taught>,
}

impl<'a> LatentComparison<'a> {
    /// Compares z on the other threads while `rest` runs on this one, which may compute the [`Self::terms`] and take gradients.
    /// `is_whole`: the batch has no padding; a padded one is compared without fusion, by [`Self::terms`].
    pub fn beside<R>(
        (latent, kernel): (&Tensor, Backend),
        (taught, is_whole): (VgaeTaught<'a>, bool),
        weights: VgaeWeights,
        rest: impl FnOnce(&Self) -> R,
    ) -> Result<(R, Self), ModelError> {
        let mut tensors = vec![latent];
        for rows in taught.latent.map(|(_, rows)| rows).into_iter().chain([taught.reconstruction]) {
            // Scattered rows are f32 on the host.
            if let Rows::Whole(tensor) = rows {
                tensors.push(tensor);
            }
        }
        let mut comparison = Self { taught, fused: None };
        if !is_whole || !fused::applies(kernel, &tensors) {
            return Ok((rest(&comparison), comparison));
        }
        let (reconstruction, derivatives) = (taught.reconstruction.contiguous()?, weights.derivatives());
        let Some((projection, rows)) = taught.latent else {
            comparison.fused = Some(Taught { latent: Tensor::from(0.0_f32), reconstruction, derivatives });
            return Ok((rest(&comparison), comparison));
        };
        let targets = distillation::Targets { latent: rows.contiguous()?, reconstruction };
        let (rest, fused) = distillation::beside(latent, projection.parameters(), targets, derivatives, |fused| {
            comparison.fused = Some(fused.shallow_clone()?);
            Ok::<_, TchError>(rest(&comparison))
        })?;
        comparison.fused = Some(fused);
        Ok((rest?, comparison))
    }

    /// Computes the terms of the loss from the decoded output.
    pub fn terms(&self, output: &VgaeOutput, batch: &Batch) -> Result<VgaeTerms, ModelError> {
        if let Some(fused) = self.fused.as_ref().filter(|_| is_one_pass(output, batch)) {
            let (task, [total, reconstruction]) = distilled_loss(output, batch, fused)?;
            let latent = self.taught.latent.map(|_| fused.latent.shallow_clone());
            return Ok(VgaeTerms { task, latent, reconstruction, fused_total: Some(total) });
        }
        let real = batch.real.as_ref().map(|real| &real.nodes);
        let task = task_loss(output, batch)?;
        let distance = |(projection, rows)| match &self.fused {
            Some(fused) => Ok(fused.latent.shallow_clone()),
            None => latent_distance(projection, &output.latent, rows, real),
        };
        let latent = self.taught.latent.map(distance).transpose()?;
        let wanted = widened(&self.taught.reconstruction.gathered()?)?;
        let reconstruction = masked::squared_distance(&widened(&output.reconstruction)?, &wanted, real)?;
        Ok(VgaeTerms { task, latent, reconstruction, fused_total: None })
    }
}

/// MSE(P·z, μ), mean over the nodes that are not padding.
pub(super) fn latent_distance(
    projection: &Projection,
    latent: &Tensor,
    mean: &Rows,
    real: Option<&Mask>,
) -> Result<Tensor, ModelError> {
    let projected = widened(&projection.forward(latent, Backend::Composed)?)?;
    Ok(masked::squared_distance(&projected, &widened(&mean.gathered()?)?, real)?)
}
