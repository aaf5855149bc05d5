//! How far a VGAE's latent is from its teacher's, in one pass, and what that counts in a loss:
//! `α·(w_z·mean|P·z + b − μ|² + w_x·mean|x̂ − x̂'|²) + (1 − α)·task`. The rest is the loss's own pass (see [`super::vgae_loss`]).
//!
//! The pass over latents is three matrix products. It needs nothing but z, and its result is wanted when the student's
//! decoders are done: the threads of their loops do it where they would wait for the next one.
//!
//! The projected latent is never stored: a block's rows are projected, compared with the teacher's and, while they lie
//! in the core's cache, multiplied back into the gradients of z, P and b (see [`super::distances`]). The backward hands
//! those on, scaled where the loss was.

use tch::{TchError, Tensor};

use super::distances::Latents;
use crate::torch::autograd;
use crate::torch::rows::Rows;

/// What the teacher gave, rows are nodes; f32 on the CPU, tensors contiguous. Kept rows are read where they lie.
pub struct Targets {
    /// μ, `[num_nodes, teacher_latent]`
    pub latent: Rows,
    /// `[num_nodes, features]`
    pub reconstruction: Rows,
}

/// Weights of the parts.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// α
    pub alpha: f64,
    /// w_z
    pub latent: f64,
    /// w_x
    pub reconstruction: f64,
}

/// How far a student's latent is from its teacher's, and in which directions.
pub struct LatentDistance {
    /// z, then weight and bias of the projection if there is one.
    inputs: Vec<Tensor>,
    /// Of the squared differences.
    sum: f64,
    /// Half its gradients by the inputs, times [`Self::kept_factor`], where they are wanted.
    gradients: Vec<Tensor>,
    targets: Targets,
    weights: Weights,
}

/// What gradients are multiplied by.
pub(super) struct Factors {
    /// Those of the task's loss.
    pub(super) task: f64,
    /// The differences of latents.
    pub(super) latent: f64,
    /// The differences of reconstructions.
    pub(super) reconstruction: f64,
}

impl LatentDistance {
    /// Of z, `[num_nodes, latent]`, with weight `[teacher_latent, latent]` and bias `[teacher_latent]` of the projection;
    /// without one the latents have the same columns. `rest` runs on this thread, and meanwhile the threads of its loops
    /// compute this where they would wait.
    pub fn beside<R>(
        latent: &Tensor,
        projection: Option<[&Tensor; 2]>,
        targets: Targets,
        weights: Weights,
        rest: impl FnOnce() -> R,
    ) -> Result<(R, Self), TchError> {
        let inputs = [latent].into_iter().chain(projection.into_iter().flatten());
        let inputs = inputs.map(Tensor::f_contiguous).collect::<Result<Vec<_>, _>>()?;
        let recorded = autograd::is_recorded(&inputs.iter().collect::<Vec<_>>())?;
        let mut distance = Self { inputs, sum: 0.0, gradients: Vec::new(), targets, weights };
        let latents = Latents::new(&distance.inputs, &distance.targets.latent, distance.kept_factor())?;
        let (rest, sum, gradients) = latents.distance(recorded, rest)?;
        (distance.sum, distance.gradients) = (sum, gradients);
        Ok((rest, distance))
    }

    /// x̂' of the teacher.
    pub(super) fn reconstruction(&self) -> &Rows {
        &self.targets.reconstruction
    }

    /// z, then weight and bias of the projection if there is one.
    pub(super) fn take_inputs(&mut self) -> Vec<Tensor> {
        std::mem::take(&mut self.inputs)
    }

    /// The kept gradients by the inputs; none where they are not wanted.
    pub(super) fn take_gradients(&mut self) -> Vec<Tensor> {
        std::mem::take(&mut self.gradients)
    }

    /// The total, the weighted sum of the distances, and those of latent and reconstruction, for a task's loss and the sum of the
    /// squared differences of reconstructions.
    pub(super) fn scalars(&self, task: f64, of_reconstruction: f64) -> [f64; 4] {
        let Self { targets, weights, .. } = self;
        let latent = self.sum / targets.latent.numel().max(1) as f64;
        let reconstruction = of_reconstruction / targets.reconstruction.numel().max(1) as f64;
        let kd = weights.latent * latent + weights.reconstruction * reconstruction;
        [weights.alpha * kd + (1.0 - weights.alpha) * task, kd, latent, reconstruction]
    }

    /// For gradients by these scalars.
    pub(super) fn factors(&self, [of_total, of_kd, of_latent, of_reconstruction]: [f64; 4]) -> Factors {
        let Weights { alpha, latent, reconstruction } = self.weights;
        let of_kd = of_kd + alpha * of_total;
        Factors {
            task: (1.0 - alpha) * of_total,
            latent: of_squares(of_latent + of_kd * latent, &self.targets.latent),
            reconstruction: of_squares(of_reconstruction + of_kd * reconstruction, &self.targets.reconstruction),
        }
    }

    /// What the kept gradients have been multiplied by: the factor when the total alone is trained on, and not scaled. Never zero.
    fn kept_factor(&self) -> f64 {
        let weight = self.weights.alpha * self.weights.latent;
        of_squares(if weight == 0.0 { 1.0 } else { weight }, &self.targets.latent)
    }

    /// A kept gradient, multiplied by `factor` instead.
    pub(super) fn scaled(&self, gradient: Tensor, factor: f64) -> Result<Tensor, TchError> {
        let kept = self.kept_factor();
        if factor == kept { Ok(gradient) } else { gradient.f_mul_scalar(factor / kept) }
    }
}

/// What the differences from `target` are multiplied by, for a gradient by the mean of their squares.
fn of_squares(of_mean: f64, target: &Rows) -> f64 {
    2.0 * of_mean / target.numel().max(1) as f64
}
