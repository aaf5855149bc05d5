//! Adam (Kingma & Ba 2015) with coupled weight decay, on the flat parameters, and gradient clipping.

use kdgat_nn::ModelError;
use kdgat_nn::attention::Backend;
use kdgat_torch::allocator::{self, Phase};
use tch::{Device, Kind, Tensor};

use super::fused_adam::{self, Update};
use super::trainable::Trainable;
use crate::memory::{Meter, retry_on_oom};

const BETA_FIRST: f64 = 0.9;
const BETA_SECOND: f64 = 0.999;
const EPSILON: f64 = 1e-8;

/// Settings of Adam that stay constant during a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamOptions {
    /// L2 penalty, added to the gradient as PyTorch's `Adam` does.
    pub weight_decay: f64,
    /// Maximum norm of the gradient; 0 disables clipping.
    pub gradient_clip: f64,
    /// Keep the state in host memory and compute the update there.
    pub offload: bool,
    /// `Composed` uses torch's operations; other backends use one fused pass in Rust on the CPU.
    pub kernel: Backend,
}

/// Adam's state: two flat tensors `[num_parameters]` and the step count.
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
        let home = if options.offload { Device::Cpu } else { trainable.values.device() };
        let zeros = || Tensor::f_zeros([trainable.num_parameters()], (Kind::Float, home));
        let (mean, mean_square) = (zeros()?, zeros()?);
        Ok(Self { options, steps: 0, mean, mean_square })
    }

    /// Makes one update with learning rate `lr`, then zeroes the gradients. Does not synchronise with the device unless the
    /// state is in host memory. Repeatable if it ran out of memory: nothing has changed then.
    ///
    /// Returns the gradient norm before clipping, a scalar tensor.
    pub fn step(&mut self, trainable: &mut Trainable, lr: f64) -> Result<Tensor, ModelError> {
        let _phase = allocator::enter_phase(Phase::Optimizer);
        if self.options.kernel != Backend::Composed && trainable.values.device() == Device::Cpu {
            return self.fused_step(trainable, lr);
        }
        let norm = tch::no_grad(|| self.step_without_graph(trainable, lr))?;
        retry_on_oom(Meter::new(trainable.values.device()), || Ok::<_, ModelError>(trainable.zero_gradients()?))?;
        Ok(norm)
    }

    fn fused_step(&mut self, trainable: &mut Trainable, lr: f64) -> Result<Tensor, ModelError> {
        let norm = fused_adam::norm(&trainable.gradients)?;
        let norm_tensor = Tensor::f_from_slice(&[norm as f32])?.f_reshape([] as [i64; 0])?;
        let clip = match self.options.gradient_clip > 0.0 {
            // Like PyTorch's clip_grad_norm_; a NaN norm stays NaN.
            true if self.options.gradient_clip / (norm + 1e-6) >= 1.0 => 1.0,
            true => self.options.gradient_clip / (norm + 1e-6),
            false => 1.0,
        };
        let steps = (self.steps + 1) as i32;
        let update = Update {
            clip: clip as f32,
            weight_decay: self.options.weight_decay as f32,
            share_first: (1.0 - BETA_FIRST) as f32,
            share_second: (1.0 - BETA_SECOND) as f32,
            beta_second: BETA_SECOND as f32,
            step: (lr / (1.0 - BETA_FIRST.powi(steps))) as f32,
            correction: (1.0 - BETA_SECOND.powi(steps)).sqrt() as f32,
            epsilon: EPSILON as f32,
        };
        let Trainable { values, gradients, .. } = trainable;
        fused_adam::update([values, gradients, &mut self.mean, &mut self.mean_square], update)?;
        self.steps += 1;
        Ok(norm_tensor)
    }

    /// Everything that can fail comes before the first change, so that a step that ran out of memory can be repeated.
    fn step_without_graph(&mut self, trainable: &mut Trainable, lr: f64) -> Result<Tensor, ModelError> {
        let norm = trainable.gradients.f_norm()?;
        let home = self.mean.device();
        let mut gradients = trainable.gradients.f_to_device(home)?;
        let values = trainable.values.f_detach()?.f_to_device(home)?;
        if self.options.gradient_clip > 0.0 {
            // Like PyTorch's clip_grad_norm_: factor clip / (norm + 1e-6), at most 1; computed on the device.
            let factor = norm.f_add_scalar(1e-6)?.f_reciprocal()?.f_mul_scalar(self.options.gradient_clip)?;
            gradients = gradients.f_mul(&factor.f_clamp_max(1.0)?.f_to_device(home)?)?;
        }
        if self.options.weight_decay > 0.0 {
            gradients = gradients.f_add(&values.f_mul_scalar(self.options.weight_decay)?)?;
        }
        let steps = self.steps + 1;
        let mean = self.mean.f_lerp(&gradients, 1.0 - BETA_FIRST)?;
        let square = gradients.f_square()?.f_mul_scalar(1.0 - BETA_SECOND)?;
        drop(gradients);
        let mean_square = self.mean_square.f_mul_scalar(BETA_SECOND)?.f_add(&square)?;
        drop(square);
        let correction_first = 1.0 - BETA_FIRST.powi(steps as i32);
        let correction_second = 1.0 - BETA_SECOND.powi(steps as i32);
        let denominator = mean_square.f_sqrt()?.f_div_scalar(correction_second.sqrt())?.f_add_scalar(EPSILON)?;
        let update = mean.f_div(&denominator)?.f_mul_scalar(-lr / correction_first)?;
        drop(denominator);
        let values = values.f_add(&update)?;
        trainable.values.f_copy_(&values)?;
        (self.mean, self.mean_square, self.steps) = (mean, mean_square, steps);
        Ok(norm)
    }

    /// State to save in a checkpoint, by name.
    pub fn state(&self) -> Result<[(&'static str, Tensor); 3], ModelError> {
        let steps = Tensor::from_slice(&[self.steps]);
        Ok([("mean", self.mean.f_detach_copy()?), ("mean_square", self.mean_square.f_detach_copy()?), ("steps", steps)])
    }

    /// Restores the state that [`Self::state`] returned.
    pub fn load(&mut self, find: impl Fn(&str) -> Result<Tensor, ModelError>) -> Result<(), ModelError> {
        self.mean.f_copy_(&find("mean")?)?;
        self.mean_square.f_copy_(&find("mean_square")?)?;
        self.steps = i64::try_from(find("steps")?.f_flatten(0, -1)?)?;
        Ok(())
    }

    /// Size of the state in bytes.
    pub fn bytes(&self) -> u64 {
        2 * 4 * self.mean.numel() as u64
    }
}
