//! Adam (Kingma & Ba 2015) with coupled weight decay, on the flat parameters, and gradient clipping.

use tch::Tensor;

use super::trainable::Trainable;
use crate::nn::ModelError;
use crate::torch::allocator::{self, Phase};

const BETA_FIRST: f64 = 0.9;
const BETA_SECOND: f64 = 0.999;
const EPSILON: f64 = 1e-8;

/// Adam's settings that do not change during a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamOptions {
    /// L2 penalty, added to the gradient as PyTorch's `Adam` does.
    pub weight_decay: f64,
    /// Largest norm of the gradient; 0 leaves it as it is.
    pub gradient_clip: f64,
}

/// Adam's state: two flat tensors of the parameters' length.
#[derive(Debug)]
pub struct Adam {
    options: AdamOptions,
    steps: i64,
    mean: Tensor,
    mean_square: Tensor,
}

impl Adam {
    /// A fresh state for `trainable`.
    pub fn new(trainable: &Trainable, options: AdamOptions) -> Result<Self, ModelError> {
        let _phase = allocator::enter_phase(Phase::Optimizer);
        let (mean, mean_square) = (trainable.values.f_zeros_like()?, trainable.values.f_zeros_like()?);
        Ok(Self { options, steps: 0, mean, mean_square })
    }

    /// One update with learning rate `lr`, after which the gradients are zero. Waits for nothing.
    ///
    /// Returns the gradient's norm before clipping, a scalar tensor.
    pub fn step(&mut self, trainable: &mut Trainable, lr: f64) -> Result<Tensor, ModelError> {
        let _phase = allocator::enter_phase(Phase::Optimizer);
        tch::no_grad(|| self.step_without_graph(trainable, lr))
    }

    fn step_without_graph(&mut self, trainable: &mut Trainable, lr: f64) -> Result<Tensor, ModelError> {
        let gradients = &mut trainable.gradients;
        let norm = gradients.f_norm()?;
        if self.options.gradient_clip > 0.0 {
            // PyTorch's clip_grad_norm_: factor clip / (norm + 1e-6), at most 1; computed on the device.
            let factor = norm.f_add_scalar(1e-6)?.f_reciprocal()?.f_mul_scalar(self.options.gradient_clip)?;
            let _ = gradients.f_mul_(&factor.f_clamp_max(1.0)?)?;
        }
        if self.options.weight_decay > 0.0 {
            let _ = gradients.f_add_(&trainable.values.f_mul_scalar(self.options.weight_decay)?)?;
        }
        self.steps += 1;
        let _ = self.mean.f_lerp_(gradients, 1.0 - BETA_FIRST)?;
        let _ = self.mean_square.f_mul_scalar_(BETA_SECOND)?;
        let _ = self.mean_square.f_add_(&gradients.f_square()?.f_mul_scalar(1.0 - BETA_SECOND)?)?;
        let correction_first = 1.0 - BETA_FIRST.powi(self.steps as i32);
        let correction_second = 1.0 - BETA_SECOND.powi(self.steps as i32);
        let denominator = self.mean_square.f_sqrt()?.f_div_scalar(correction_second.sqrt())?.f_add_scalar(EPSILON)?;
        let update = self.mean.f_div(&denominator)?.f_mul_scalar(-lr / correction_first)?;
        let _ = trainable.values.f_add_(&update)?;
        let _ = gradients.f_zero_()?;
        Ok(norm)
    }

    /// What a checkpoint holds of the optimiser.
    pub fn state(&self) -> Result<[(&'static str, Tensor); 3], ModelError> {
        let steps = Tensor::from_slice(&[self.steps]);
        Ok([("mean", self.mean.f_detach_copy()?), ("mean_square", self.mean_square.f_detach_copy()?), ("steps", steps)])
    }

    /// Puts back what [`Self::state`] gave.
    pub fn load(&mut self, find: impl Fn(&str) -> Result<Tensor, ModelError>) -> Result<(), ModelError> {
        let _ = self.mean.f_copy_(&find("mean")?)?;
        let _ = self.mean_square.f_copy_(&find("mean_square")?)?;
        self.steps = i64::try_from(find("steps")?.f_flatten(0, -1)?)?;
        Ok(())
    }

    /// Bytes of the state.
    pub fn bytes(&self) -> u64 {
        2 * 4 * self.mean.numel() as u64
    }
}
