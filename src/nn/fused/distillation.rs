//! What a VGAE learns from its teacher, with its task's loss, in two passes forward and next to nothing backward:
//! `α·(w_z·mean|P·z + b − μ|² + w_x·mean|x̂ − x̂'|²) + (1 − α)·task`.
//!
//! The pass over latents is most of it, three matrix products. It needs nothing but z, and its result is wanted when the student's
//! decoders and the task's loss are done: the threads of their loops do it where they would wait for the next one.
//!
//! The projected latent is never stored: a block's rows are projected, compared with the teacher's and, while they lie
//! in the core's cache, multiplied back into the gradients of z, P and b (see [`super::distances`]). The backward hands
//! those on, scaled where the loss was.

use std::ffi::CStr;

use tch::{TchError, Tensor};

use super::Blocks;
use super::distances::{self, Latents};
use crate::torch::autograd::{self, Forward, Function};
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

/// The loss and its parts, scalars.
pub struct Distilled {
    /// What is trained on.
    pub total: Tensor,
    /// The weighted sum of the two distances.
    pub kd: Tensor,
    /// Mean squared distance of the latents.
    pub latent: Tensor,
    /// Mean squared distance of the reconstructions.
    pub reconstruction: Tensor,
}

/// How far a student's latent is from its teacher's, and in which directions.
pub struct LatentDistance {
    /// z, then weight and bias of the projection if there is one.
    inputs: Vec<Tensor>,
    /// Of the squared differences.
    sum: f64,
    /// Half its gradients by the inputs, times their factor, where they are wanted.
    gradients: Vec<Tensor>,
    /// What the sums are taken over.
    blocks: Blocks,
    targets: Targets,
    weights: Weights,
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
        let [factor, _] = weights.assumed_factors(&targets);
        let latents = Latents::new(&inputs, &targets, factor)?;
        let blocks = latents.blocks();
        let (rest, sum, gradients) = latents.distance(recorded, rest)?;
        Ok((rest, Self { inputs, sum, gradients, blocks, targets, weights }))
    }

    /// The loss of a student that has these latents, this reconstruction, `[num_nodes, features]`, and this loss of its task, a
    /// scalar.
    pub fn distil(mut self, reconstruction: &Tensor, task: &Tensor) -> Result<Distilled, TchError> {
        let (reconstruction, of_latents) = (reconstruction.f_contiguous()?, std::mem::take(&mut self.inputs));
        let mut inputs = vec![&reconstruction, task];
        inputs.extend(&of_latents);
        let outputs = autograd::apply(Distillation(self), &inputs)?;
        let found = outputs.len();
        let outputs: Result<[Tensor; 4], _> = outputs.try_into();
        let [total, kd, latent, reconstruction] =
            outputs.map_err(|_| TchError::Shape(format!("{found} parts of a loss instead of 4")))?;
        Ok(Distilled { total, kd, latent, reconstruction })
    }
}

struct Distillation(LatentDistance);

impl Function for Distillation {
    const NAME: &'static CStr = c"fused distillation";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let [reconstruction, task, ..] = inputs else {
            return Err(TchError::Shape(format!("{} inputs of a distillation instead of 3 or 5", inputs.len())));
        };
        let LatentDistance { sum, gradients, blocks, targets, weights, .. } = &mut self.0;
        let [_, factor] = weights.assumed_factors(targets);
        let (of_reconstruction, gradient) =
            distances::of_reconstruction(reconstruction, &targets.reconstruction, *blocks, factor, recorded)?;
        let latent_mean = *sum / targets.latent.numel().max(1) as f64;
        let reconstruction_mean = of_reconstruction / targets.reconstruction.numel().max(1) as f64;
        let kd = weights.latent * latent_mean + weights.reconstruction * reconstruction_mean;
        let total = weights.alpha * kd + (1.0 - weights.alpha) * task.f_double_value(&[])?;
        let scalars = [total, kd, latent_mean, reconstruction_mean];
        let saved = gradient.into_iter().chain(std::mem::take(gradients)).collect();
        Ok(Forward { outputs: scalars.map(|value| Tensor::from(value as f32)).into(), saved })
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        gradients: Vec<Option<Tensor>>,
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let [reconstruction, of_latents @ ..] = &saved[..] else {
            return Err(TchError::Shape("no gradients were kept of a distillation".to_owned()));
        };
        let scalar = |index: usize| gradients[index].as_ref().map_or(Ok(0.0), |gradient| gradient.f_double_value(&[]));
        let of_total = scalar(0)?;
        let LatentDistance { targets, weights, .. } = &self.0;
        let of_kd = scalar(1)? + weights.alpha * of_total;
        let of_latent = of_squares(scalar(2)? + of_kd * weights.latent, &targets.latent);
        let of_reconstruction = of_squares(scalar(3)? + of_kd * weights.reconstruction, &targets.reconstruction);
        let task = Tensor::from(((1.0 - weights.alpha) * of_total) as f32);
        let assumed = weights.assumed_factors(targets);
        let scaled = |gradient: &Tensor, factor: f64, assumed: f64| match factor == assumed {
            true => Ok(gradient.shallow_clone()),
            false => gradient.f_mul_scalar(factor / assumed),
        };
        let mut results = vec![Some(scaled(reconstruction, of_reconstruction, assumed[1])?), Some(task)];
        for gradient in of_latents {
            results.push(Some(scaled(gradient, of_latent, assumed[0])?));
        }
        // Of latents that are not trained there are no gradients.
        results.resize_with(needed.len(), || None);
        Ok(results)
    }
}

impl Weights {
    /// What the gradients by latent and reconstruction are multiplied by when the total alone is trained on, and not
    /// scaled: they are kept that way. Never zero.
    fn assumed_factors(&self, targets: &Targets) -> [f64; 2] {
        let Self { alpha, latent, reconstruction } = *self;
        [(latent, &targets.latent), (reconstruction, &targets.reconstruction)].map(|(weight, target)| {
            let weight = alpha * weight;
            of_squares(if weight == 0.0 { 1.0 } else { weight }, target)
        })
    }
}

/// What the differences from `target` are multiplied by, for a gradient by the mean of their squares.
fn of_squares(of_mean: f64, target: &Rows) -> f64 {
    2.0 * of_mean / target.numel().max(1) as f64
}
