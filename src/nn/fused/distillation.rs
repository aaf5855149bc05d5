//! What a VGAE learns from its teacher, with its task's loss, in one pass forward and next to nothing backward:
//! `α·(w_z·mean|P·z + b − μ|² + w_x·mean|x̂ − x̂'|²) + (1 − α)·task`.
//!
//! The projected latent is never stored: a block's rows are projected, compared with the teacher's and, while they lie
//! in the core's cache, multiplied back into the gradients of z, P and b (see [`super::distances`]). The backward hands
//! those on, scaled where the loss was.

use std::ffi::CStr;

use tch::{TchError, Tensor};

use super::distances::Outputs;
use crate::torch::autograd::{self, Forward, Function};
use crate::torch::rows::Rows;

/// What the teacher gave, rows are nodes; f32 on the CPU, tensors contiguous. Kept rows are read where they lie.
pub struct Targets {
    /// μ, `[num_nodes, teacher_latent]`
    pub latent: Rows,
    /// `[num_nodes, features]`
    pub reconstruction: Rows,
}

/// The student's side of the comparison.
pub struct Student<'a> {
    /// z, `[num_nodes, latent]`
    pub latent: &'a Tensor,
    /// Weight `[teacher_latent, latent]` and bias `[teacher_latent]` of the projection; without one the latents have
    /// the same columns.
    pub projection: Option<[&'a Tensor; 2]>,
    /// `[num_nodes, features]`
    pub reconstruction: &'a Tensor,
    /// The task's loss, a scalar.
    pub task: &'a Tensor,
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

/// The loss of a student that learns from `targets`.
pub fn distil(student: &Student, targets: Targets, weights: Weights) -> Result<Distilled, TchError> {
    let mut inputs = vec![student.latent.f_contiguous()?, student.reconstruction.f_contiguous()?];
    inputs.push(student.task.shallow_clone());
    for tensor in student.projection.iter().flatten() {
        inputs.push(tensor.f_contiguous()?);
    }
    let outputs = autograd::apply(Distillation { targets, weights }, &inputs.iter().collect::<Vec<_>>())?;
    let found = outputs.len();
    let outputs: Result<[Tensor; 4], _> = outputs.try_into();
    let [total, kd, latent, reconstruction] =
        outputs.map_err(|_| TchError::Shape(format!("{found} parts of a loss instead of 4")))?;
    Ok(Distilled { total, kd, latent, reconstruction })
}

struct Distillation {
    targets: Targets,
    weights: Weights,
}

impl Function for Distillation {
    const NAME: &'static CStr = c"fused distillation";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let [latent, reconstruction, task, projection @ ..] = inputs else {
            return Err(TchError::Shape(format!("{} inputs of a distillation instead of 3 or 5", inputs.len())));
        };
        let outputs = Outputs::new([latent, reconstruction], projection, &self.targets, self.assumed_factors())?;
        let (sums, saved) = outputs.distances(recorded)?;
        let Weights { alpha, latent: of_latent, reconstruction: of_reconstruction } = self.weights;
        let latent_mean = sums[0] / self.targets.latent.numel().max(1) as f64;
        let reconstruction_mean = sums[1] / self.targets.reconstruction.numel().max(1) as f64;
        let kd = of_latent * latent_mean + of_reconstruction * reconstruction_mean;
        let total = alpha * kd + (1.0 - alpha) * task.f_double_value(&[])?;
        let scalars = [total, kd, latent_mean, reconstruction_mean];
        Ok(Forward { outputs: scalars.map(|value| Tensor::from(value as f32)).into(), saved })
    }

    fn backward(
        &self,
        saved: &[Tensor],
        gradients: &[Option<Tensor>],
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let [latent, reconstruction, parameters @ ..] = saved else {
            return Err(TchError::Shape(format!("{} gradients kept of a distillation, not 2 or 4", saved.len())));
        };
        let scalar = |index: usize| gradients[index].as_ref().map_or(Ok(0.0), |gradient| gradient.f_double_value(&[]));
        let of_total = scalar(0)?;
        let of_kd = scalar(1)? + self.weights.alpha * of_total;
        let of_latent = of_squares(scalar(2)? + of_kd * self.weights.latent, &self.targets.latent);
        let of_reconstruction =
            of_squares(scalar(3)? + of_kd * self.weights.reconstruction, &self.targets.reconstruction);
        let task = Tensor::from(((1.0 - self.weights.alpha) * of_total) as f32);
        let assumed = self.assumed_factors();
        let scaled = |gradient: &Tensor, factor: f64, assumed: f64| match factor == assumed {
            true => Ok(gradient.shallow_clone()),
            false => gradient.f_mul_scalar(factor / assumed),
        };
        let mut results = vec![
            Some(scaled(latent, of_latent, assumed[0])?),
            Some(scaled(reconstruction, of_reconstruction, assumed[1])?),
            Some(task),
        ];
        for parameter in parameters {
            results.push(Some(scaled(parameter, of_latent, assumed[0])?));
        }
        Ok(results)
    }
}

impl Distillation {
    /// What the gradients by latent and reconstruction are multiplied by when the total alone is trained on, and not
    /// scaled: they are kept that way. Never zero.
    fn assumed_factors(&self) -> [f64; 2] {
        let Weights { alpha, latent, reconstruction } = self.weights;
        [(latent, &self.targets.latent), (reconstruction, &self.targets.reconstruction)].map(|(weight, target)| {
            let weight = alpha * weight;
            of_squares(if weight == 0.0 { 1.0 } else { weight }, target)
        })
    }
}

/// What the differences from `target` are multiplied by, for a gradient by the mean of their squares.
fn of_squares(of_mean: f64, target: &Rows) -> f64 {
    2.0 * of_mean / target.numel().max(1) as f64
}
