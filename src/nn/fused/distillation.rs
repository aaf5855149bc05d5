//! What a VGAE learns from its teacher, with its task's loss, in one pass forward and next to nothing backward:
//! `α·(w_z·mean|P·z + b − μ|² + w_x·mean|x̂ − x̂'|²) + (1 − α)·task`.
//!
//! The projected latent is never stored: a block's rows are projected, compared with the teacher's and, while they lie
//! in the core's cache, multiplied back into the gradients of z, P and b. The backward hands those on, scaled where the
//! loss was.

use std::ffi::CStr;

use tch::{TchError, Tensor};

use super::linear;
use super::projection::Projection;
use super::{Blocks, by_blocks, empty, expect_elements, like, math, shape};
use crate::torch::autograd::{self, Forward, Function};
use crate::torch::parallel::Parts;
use crate::torch::rows::Rows;
use crate::torch::simd::{Instructions, Kernel, dispatch};
use crate::torch::view;

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
        let reconstruction_sum = squared_distance(reconstruction, &self.targets.reconstruction)?;
        let (latent_sum, mut saved) = match projection {
            [weight, bias] => {
                let factor = recorded.then(|| self.assumed_factor() as f32);
                projected_distance([latent, weight, bias], &self.targets.latent, factor)?
            }
            _ => (squared_distance(latent, &self.targets.latent)?, vec![latent.shallow_clone()]),
        };
        let Weights { alpha, latent: of_latent, reconstruction: of_reconstruction } = self.weights;
        let latent_mean = latent_sum / self.targets.latent.numel().max(1) as f64;
        let reconstruction_mean = reconstruction_sum / reconstruction.numel().max(1) as f64;
        let kd = of_latent * latent_mean + of_reconstruction * reconstruction_mean;
        let total = alpha * kd + (1.0 - alpha) * task.f_double_value(&[])?;
        let scalars = [total, kd, latent_mean, reconstruction_mean];
        let outputs = scalars.map(|value| Tensor::from(value as f32)).into();
        saved.push(reconstruction.shallow_clone());
        Ok(Forward { outputs, saved: if recorded { saved } else { Vec::new() } })
    }

    fn backward(
        &self,
        saved: &[Tensor],
        gradients: &[Option<Tensor>],
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let scalar = |index: usize| gradients[index].as_ref().map_or(Ok(0.0), |gradient| gradient.f_double_value(&[]));
        let of_total = scalar(0)?;
        let of_kd = scalar(1)? + self.weights.alpha * of_total;
        let of_latent = of_squares(scalar(2)? + of_kd * self.weights.latent, &self.targets.latent);
        let of_reconstruction =
            of_squares(scalar(3)? + of_kd * self.weights.reconstruction, &self.targets.reconstruction);
        let task = Tensor::from(((1.0 - self.weights.alpha) * of_total) as f32);
        Ok(match saved {
            [latent, weight, bias, reconstruction] => {
                let assumed = self.assumed_factor();
                let scaled = |gradient: &Tensor| match of_latent == assumed {
                    true => Ok(gradient.shallow_clone()),
                    false => gradient.f_mul_scalar(of_latent / assumed),
                };
                vec![
                    Some(scaled(latent)?),
                    Some(difference(reconstruction, &self.targets.reconstruction, of_reconstruction)?),
                    Some(task),
                    Some(scaled(weight)?),
                    Some(scaled(bias)?),
                ]
            }
            [latent, reconstruction] => vec![
                Some(difference(latent, &self.targets.latent, of_latent)?),
                Some(difference(reconstruction, &self.targets.reconstruction, of_reconstruction)?),
                Some(task),
            ],
            _ => {
                return Err(TchError::Shape(format!(
                    "{} tensors kept of a distillation instead of 2 or 4",
                    saved.len()
                )));
            }
        })
    }
}

impl Distillation {
    /// What the latent's gradients are multiplied by when the total alone is trained on, and not scaled: they are kept that
    /// way. Never zero.
    fn assumed_factor(&self) -> f64 {
        let weight = self.weights.alpha * self.weights.latent;
        of_squares(if weight == 0.0 { 1.0 } else { weight }, &self.targets.latent)
    }
}

/// [`expect_elements`] of rows that need not lie in a tensor.
fn expect_values(name: &str, rows: &Rows, expected: usize) -> Result<(), TchError> {
    match rows {
        Rows::Whole(tensor) => expect_elements(name, tensor, expected),
        Rows::Apart(_) if rows.numel() == expected => Ok(()),
        Rows::Apart(_) => {
            Err(TchError::Shape(format!("{name} has {} values, {expected} elements are expected", rows.numel())))
        }
    }
}

/// What the differences from `target` are multiplied by, for a gradient by the mean of their squares.
fn of_squares(of_mean: f64, target: &Rows) -> f64 {
    2.0 * of_mean / target.numel().max(1) as f64
}

/// Σ (found − wanted)².
fn squared_distance(found: &Tensor, wanted: &Rows) -> Result<f64, TchError> {
    expect_values("a teacher's target", wanted, found.numel())?;
    let (found, wanted) = (view::read::<f32>("an output of the student", found)?, wanted.read("a target")?);
    let blocks = Blocks::new(found.len(), 1, 1);
    let mut sums = vec![0.0; blocks.count()];
    let parts = Parts::new(&mut sums, 0..=blocks.count());
    blocks.for_each(|block| {
        let elements = blocks.rows(block);
        parts.take(block)[0] =
            wanted.with(elements.clone(), |wanted| dispatch(Squares { found: &found[elements], wanted }));
    });
    drop(parts);
    Ok(sums.iter().sum())
}

/// `factor · (found − wanted)`.
fn difference(found: &Tensor, wanted: &Rows, factor: f64) -> Result<Tensor, TchError> {
    let result = like(found)?;
    let (found, wanted) = (view::read::<f32>("an output of the student", found)?, wanted.read("a target")?);
    let blocks = Blocks::new(found.len(), 1, 1);
    by_blocks("gradient", result, blocks, 1, |block, result| {
        let elements = blocks.rows(block);
        let (found, factor) = (&found[elements.clone()], factor as f32);
        wanted.with(elements, |wanted| dispatch(Difference { found, wanted, factor, result }));
    })
}

/// Σ (P·z + b − μ)² and, where there is a factor for them, half its gradients by z, P and b, times that factor.
fn projected_distance(
    [latent, weight, bias]: [&Tensor; 3],
    target: &Rows,
    factor: Option<f32>,
) -> Result<(f64, Vec<Tensor>), TchError> {
    let [nodes, inputs] = shape("latent", latent)?;
    let [outputs, _] = shape("weight of the projection", weight)?;
    expect_elements("weight of the projection", weight, inputs * outputs)?;
    expect_elements("bias of the projection", bias, outputs)?;
    expect_values("the teacher's latent", target, nodes * outputs)?;
    let (z, mu) = (view::read::<f32>("latent", latent)?, target.read("the teacher's latent")?);
    let (weight, bias) = (view::read("weight", weight)?, view::read("bias", bias)?);
    let projection = Projection::new(weight, bias, inputs, factor.unwrap_or(1.0));
    let blocks = Blocks::new(nodes, inputs + outputs, linear::rows_of_a_share([inputs, outputs]));
    let (mut sums, mut of_latent) = (vec![0.0; blocks.count()], factor.map(|_| like(latent)).transpose()?);
    // A block's own gradients of P and b, one after the other: added up in the blocks' order.
    let share = if factor.is_some() { linear::share_elements([inputs, outputs]) } else { 0 };
    let mut shares = empty(&[(blocks.count() * share) as i64])?;
    {
        let sum_parts = Parts::new(&mut sums, 0..=blocks.count());
        let bounds = (0..=blocks.count()).map(|block| block * share);
        let share_parts = Parts::new(view::write::<f32>("shares of the gradient", &mut shares)?, bounds);
        let slices = of_latent.as_mut().map(|tensor| view::write::<f32>("gradient", tensor)).transpose()?;
        let latent_parts = slices.map(|slice| Parts::new(slice, blocks.bounds(inputs)));
        blocks.for_each(|block| {
            let gradients = latent_parts.as_ref().map(|parts| (parts.take(block), share_parts.take(block)));
            let gradients = gradients.map(|(of_latent, share)| {
                share.fill(0.0);
                (of_latent, share)
            });
            let rows = &z[blocks.elements(block, inputs)];
            let targets = mu.rows(blocks.rows(block), outputs);
            sum_parts.take(block)[0] = projection.distance(rows, &targets, gradients);
        });
    }
    let sum = sums.iter().sum();
    let (Some(of_latent), Some(factor)) = (of_latent, factor) else { return Ok((sum, Vec::new())) };
    let shares = view::read("shares of the gradient", &shares)?;
    let [of_weight, of_bias] = linear::sums(shares, [inputs, outputs], factor)?;
    Ok((sum, vec![of_latent, of_weight, of_bias]))
}

struct Squares<'a> {
    found: &'a [f32],
    wanted: &'a [f32],
}

impl Kernel for Squares<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<I: Instructions>(self) -> f64 {
        let (found, wanted) = (self.found, &self.wanted[..self.found.len()]);
        math::sum(found.len(), |index| {
            let difference = found[index] - wanted[index];
            difference * difference
        })
    }
}

struct Difference<'a> {
    found: &'a [f32],
    wanted: &'a [f32],
    factor: f32,
    result: &'a mut [f32],
}

impl Kernel for Difference<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (result, (&found, &wanted)) in self.result.iter_mut().zip(self.found.iter().zip(self.wanted)) {
            *result = self.factor * (found - wanted);
        }
    }
}
