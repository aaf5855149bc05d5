//! The loss of a VGAE, all parts and their gradients in one pass over its outputs, without an array of logits besides them.
//!
//! - reconstruction: mean of (x̂ − x)²;
//! - ID: mean over nodes of `log Σ exp(logits) − logits[id]`;
//! - successors: binary cross entropy against the multi-hot set, mean of `softplus(logit)` less the ones' logits;
//! - KL: −½ · mean of `1 + log σ² − μ² − σ²`;
//! - with a teacher, `α·(w_z·mean|P·z + b − μ'|² + w_x·mean|x̂ − x̂'|²) + (1 − α)·task`, where the latents are compared elsewhere
//!   (see [`super::distillation`]).
//!
//! The gradients are taken while the outputs lie in the core's cache, out of the loss's own exponentials. They are those of the
//! loss that is trained on, not scaled: a backward that asks for these hands them on, any other repeats the pass.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function};
use kdgat_torch::rows::Rows;
use tch::{TchError, Tensor};

use super::distillation::{Taught, Weights};
use super::{Blocks, empty, expect_elements, expect_ids, shape};
use pass::ByMeans;
use rows::Slices;

mod pass;
mod rows;

pub(super) use pass::softmax_rows;

/// What the loss compares the outputs with.
pub struct Target {
    /// `[num_nodes, features]`
    pub continuous: Tensor,
    /// `[num_nodes]`, i64.
    pub id_index: Tensor,
    /// i64, ascending: positions of the ones of the multi-hot successor target.
    pub successors: Tensor,
}

/// The outputs of a VGAE that the loss reads; rows are nodes.
pub struct Outputs<'a> {
    pub reconstruction: &'a Tensor,
    pub id_logits: &'a Tensor,
    pub successor_logits: &'a Tensor,
    pub mean: &'a Tensor,
    pub log_variance: &'a Tensor,
}

impl Outputs<'_> {
    fn contiguous(&self) -> Result<[Tensor; OUTPUTS], TchError> {
        let Self { reconstruction, id_logits, successor_logits, mean, log_variance } = self;
        Ok([
            reconstruction.f_contiguous()?,
            id_logits.f_contiguous()?,
            successor_logits.f_contiguous()?,
            mean.f_contiguous()?,
            log_variance.f_contiguous()?,
        ])
    }
}

/// Tensors of [`Outputs`].
const OUTPUTS: usize = 5;

/// Scalars: reconstruction, ID, successors, KL, and their sum by weights.
const TASK_SCALARS: usize = 5;

/// Scalars: the total, KD, and its parts for latent and reconstruction.
const KD_SCALARS: usize = 4;

/// Reconstruction, ID, successors, KL, and their sum by `weights`: scalars.
pub fn task_loss(outputs: &Outputs, target: Target, weights: [f64; 4]) -> Result<[Tensor; TASK_SCALARS], TchError> {
    let loss = Loss { target, weights, distillation: None };
    exactly(autograd::apply(loss, &outputs.contiguous()?.each_ref())?)
}

/// As [`task_loss`], and the total with distillation, the weighted sum of the two distances, and the distances of latent and
/// reconstruction.
pub fn distilled_loss(
    outputs: &Outputs,
    target: Target,
    weights: [f64; 4],
    taught: &Taught,
) -> Result<([Tensor; TASK_SCALARS], [Tensor; KD_SCALARS]), TchError> {
    let distillation = Distillation { reconstruction: taught.reconstruction.contiguous()?, weights: taught.weights };
    let outputs = outputs.contiguous()?;
    let inputs: Vec<&Tensor> = outputs.iter().chain([&taught.latent]).collect();
    let mut of_task = autograd::apply(Loss { target, weights, distillation: Some(distillation) }, &inputs)?;
    let of_kd = of_task.split_off(TASK_SCALARS.min(of_task.len()));
    Ok((exactly(of_task)?, exactly(of_kd)?))
}

fn exactly<const COUNT: usize>(scalars: Vec<Tensor>) -> Result<[Tensor; COUNT], TchError> {
    let found = scalars.len();
    scalars.try_into().map_err(|_| TchError::Shape(format!("{found} parts of a loss instead of {COUNT}")))
}

struct Loss {
    target: Target,
    weights: [f64; 4],
    distillation: Option<Distillation>,
}

struct Distillation {
    reconstruction: Rows,
    weights: Weights,
}

impl Distillation {
    /// The total, the weighted sum of the distances, and those of latent and reconstruction.
    fn scalars(&self, task: f64, latent: f64, of_reconstruction: f64) -> [f64; KD_SCALARS] {
        let Weights { alpha, latent: of_latent, reconstruction: of_mean } = self.weights;
        let reconstruction = of_reconstruction / self.values();
        let kd = of_latent * latent + of_mean * reconstruction;
        [alpha * kd + (1.0 - alpha) * task, kd, latent, reconstruction]
    }

    /// For gradients by these scalars, those by the task's loss, and by the distances of latent and reconstruction.
    fn gradients(&self, [of_total, of_kd, of_latent, of_reconstruction]: [f64; KD_SCALARS]) -> [f64; 3] {
        let Weights { alpha, latent, reconstruction } = self.weights;
        let of_kd = of_kd + alpha * of_total;
        [(1.0 - alpha) * of_total, of_latent + of_kd * latent, of_reconstruction + of_kd * reconstruction]
    }

    /// Values of the reconstruction.
    fn values(&self) -> f64 {
        self.reconstruction.numel().max(1) as f64
    }
}

impl Loss {
    fn slices<'a>(&'a self, inputs: &'a [Tensor]) -> Result<Slices<'a>, TchError> {
        Slices::new(inputs, &self.target, self.distillation.as_ref().map(|taught| &taught.reconstruction))
    }

    /// The gradients by the scalars where one loss alone is trained on, and not scaled.
    fn trained_on(&self) -> Vec<f64> {
        let mut gradients = vec![0.0; TASK_SCALARS];
        if self.distillation.is_some() {
            gradients.extend([1.0, 0.0, 0.0, 0.0]);
        } else {
            gradients[TASK_SCALARS - 1] = 1.0;
        }
        gradients
    }

    /// For gradients by the scalars, those by the means they are made of.
    fn by_means(&self, gradients: &[f64]) -> ByMeans {
        let (of_task, of_kd) = gradients.split_at(TASK_SCALARS);
        let (mut task, mut latent, mut taught) = (of_task[TASK_SCALARS - 1], 0.0, 0.0);
        if let (Some(distillation), &[total, kd, of_latent, of_reconstruction]) = (&self.distillation, of_kd) {
            let of_total;
            [of_total, latent, taught] = distillation.gradients([total, kd, of_latent, of_reconstruction]);
            task += of_total;
        }
        ByMeans { task: std::array::from_fn(|part| of_task[part] + task * self.weights[part]), latent, taught }
    }
}

impl Function for Loss {
    const NAME: &'static CStr = c"fused VGAE loss";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let mut saved: Vec<Tensor> = inputs.iter().take(OUTPUTS).map(|input| input.shallow_clone()).collect();
        let slices = self.slices(&saved)?;
        let counts = slices.counts();
        let (sums, gradients) = pass::run(&slices, &self.by_means(&self.trained_on()), recorded)?;
        let [parts @ .., of_taught] = sums;
        let means: [f64; 4] = std::array::from_fn(|part| parts[part] / counts[part]);
        let task = means.iter().zip(self.weights).map(|(mean, weight)| mean * weight).sum::<f64>();
        let mut scalars = means.to_vec();
        scalars.push(task);
        if recorded {
            saved.extend(gradients);
        } else {
            saved.clear();
        }
        if let (Some(distillation), [.., latent]) = (&self.distillation, inputs) {
            scalars.extend(distillation.scalars(task, latent.f_double_value(&[])?, of_taught));
        }
        Ok(Forward { outputs: scalars.into_iter().map(|value| Tensor::from(value as f32)).collect(), saved })
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        gradients: Vec<Option<Tensor>>,
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let value = |gradient: &Option<Tensor>| gradient.as_ref().map_or(Ok(0.0), |scalar| scalar.f_double_value(&[]));
        let wanted = gradients.iter().map(value).collect::<Result<Vec<f64>, _>>()?;
        let mut saved = saved.into_iter();
        let outputs: Vec<Tensor> = saved.by_ref().take(OUTPUTS).collect();
        let mut results: Vec<Tensor> = saved.by_ref().take(OUTPUTS).collect();
        let by_means = self.by_means(&wanted);
        if wanted != self.trained_on() {
            (_, results) = pass::run(&self.slices(&outputs)?, &by_means, true)?;
        }
        let mut results: Vec<_> = results.into_iter().map(Some).collect();
        if needed.len() > OUTPUTS {
            results.push(Some(Tensor::from(by_means.latent as f32)));
        }
        Ok(results)
    }
}
