//! The loss of a VGAE: all terms and their gradients in one pass over its outputs, without further arrays of the
//! logits' size.
//!
//! - reconstruction: mean of (x̂ − x)²;
//! - ID: mean over nodes of `log Σ exp(logits) − logits[id]`;
//! - successors: binary cross entropy against the multi-hot set, mean of `softplus(logit)` minus the logits at the ones;
//! - KL: −½ · mean of `1 + log σ² − μ² − σ²`;
//! - with a teacher, the distance of the reconstructions, `mean|x̂ − x̂'|²`, and the training loss: a weighted sum of
//!   the task loss, that distance, and the distance of the latents, which [`super::distillation`] computes. The caller
//!   chooses the weights.
//!
//! The gradients are computed while the outputs are in the core's cache, from the same exponentials as the loss. They
//! are those of the training loss without scaling: a backward that asks for exactly these passes them on, any other
//! repeats the pass.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::rows::Rows;
use tch::{TchError, Tensor};

use super::distillation::{Derivatives, Taught};
use super::{Blocks, empty, expect_elements, expect_ids, shape};
use pass::ByMeans;
use rows::Slices;

mod pass;
mod rows;

pub(super) use pass::softmax_rows;

/// Targets of the loss.
pub struct Target {
    /// Continuous features, `[num_nodes, features]`.
    pub continuous: Tensor,
    /// ID index of each node, `[num_nodes]`, i64.
    pub id_index: Tensor,
    /// Positions of the ones in the flattened multi-hot successor target, i64, ascending.
    pub successors: Tensor,
}

/// Outputs of a VGAE that the loss reads; rows are nodes.
pub struct Outputs<'a> {
    /// Reconstructed continuous features, `[num_nodes, features]`.
    pub reconstruction: &'a Tensor,
    /// Logits of each node's ID, `[num_nodes, ids]`.
    pub id_logits: &'a Tensor,
    /// Logits of the successors' IDs, `[num_nodes, successors]`.
    pub successor_logits: &'a Tensor,
    /// μ, `[num_nodes, latent]`.
    pub mean: &'a Tensor,
    /// log σ², `[num_nodes, latent]`.
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

/// Number of tensors in [`Outputs`].
const OUTPUTS: usize = 5;

/// Number of scalars: reconstruction, ID, successors, KL, and their weighted sum.
const TASK_SCALARS: usize = 5;

/// Number of scalars: the training loss, and the distance of the reconstructions.
const KD_SCALARS: usize = 2;

/// Computes reconstruction, ID, successors, KL, and their sum weighted by `weights`, all scalars.
pub fn task_loss(outputs: &Outputs, target: Target, weights: [f64; 4]) -> Result<[Tensor; TASK_SCALARS], TchError> {
    let loss = Loss { target, weights, distillation: None };
    exactly(autograd::apply(loss, &outputs.contiguous()?.each_ref())?)
}

/// Computes [`task_loss`], the training loss and the distance of the reconstructions. The value of the training loss
/// lacks the distance of the latents while that is being computed; its gradients are correct at any time.
pub fn distilled_loss(
    outputs: &Outputs,
    target: Target,
    weights: [f64; 4],
    taught: &Taught,
) -> Result<([Tensor; TASK_SCALARS], [Tensor; KD_SCALARS]), TchError> {
    let distillation =
        Distillation { reconstruction: taught.reconstruction.contiguous()?, derivatives: taught.derivatives };
    let outputs = outputs.contiguous()?;
    let inputs: Vec<&Tensor> = outputs.iter().chain([&taught.latent]).collect();
    let mut of_task = autograd::apply(Loss { target, weights, distillation: Some(distillation) }, &inputs)?;
    let of_kd = of_task.split_off(TASK_SCALARS.min(of_task.len()));
    Ok((exactly(of_task)?, exactly(of_kd)?))
}

fn exactly<const COUNT: usize>(scalars: Vec<Tensor>) -> Result<[Tensor; COUNT], TchError> {
    let found = scalars.len();
    scalars.try_into().map_err(|_| TchError::Shape(format!("a loss has {found} terms instead of {COUNT}")))
}

struct Loss {
    target: Target,
    weights: [f64; 4],
    distillation: Option<Distillation>,
}

struct Distillation {
    reconstruction: Rows,
    derivatives: Derivatives,
}

impl Distillation {
    /// The training loss and the distance of the reconstructions, from the task loss, the distance of the latents, and
    /// the sum of the squared differences of the reconstructions.
    fn scalars(&self, task: f64, latent: f64, squares: f64) -> [f64; KD_SCALARS] {
        let by = self.derivatives;
        let reconstruction = squares / self.values();
        [by.task * task + by.latent * latent + by.reconstruction * reconstruction, reconstruction]
    }

    /// Converts gradients with respect to these scalars to gradients with respect to the task loss and the distances of
    /// latents and reconstructions.
    fn gradients(&self, [of_total, of_reconstruction]: [f64; KD_SCALARS]) -> [f64; 3] {
        let by = self.derivatives;
        [by.task * of_total, by.latent * of_total, of_reconstruction + by.reconstruction * of_total]
    }

    /// Number of values in the reconstruction.
    fn values(&self) -> f64 {
        self.reconstruction.numel().max(1) as f64
    }
}

impl Loss {
    fn slices<'a>(&'a self, inputs: &'a [Tensor]) -> Result<Slices<'a>, TchError> {
        Slices::new(inputs, &self.target, self.distillation.as_ref().map(|taught| &taught.reconstruction))
    }

    /// The gradients with respect to the scalars if one loss alone is trained on, without scaling.
    fn trained_on(&self) -> Vec<f64> {
        let mut gradients = vec![0.0; TASK_SCALARS];
        if self.distillation.is_some() {
            gradients.extend([1.0, 0.0]);
        } else {
            gradients[TASK_SCALARS - 1] = 1.0;
        }
        gradients
    }

    /// Converts gradients with respect to the scalars to gradients with respect to the means that they consist of.
    fn by_means(&self, gradients: &[f64]) -> ByMeans {
        let (of_task, of_kd) = gradients.split_at(TASK_SCALARS);
        let (mut task, mut latent, mut taught) = (of_task[TASK_SCALARS - 1], 0.0, 0.0);
        if let (Some(distillation), &[total, reconstruction]) = (&self.distillation, of_kd) {
            let of_task;
            [of_task, latent, taught] = distillation.gradients([total, reconstruction]);
            task += of_task;
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

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
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
