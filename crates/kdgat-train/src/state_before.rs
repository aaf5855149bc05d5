//! State before a step, which an attempt that fails, or a capture, leaves behind changed: running statistics and gradients.

use kdgat_nn::parameters::Role;
use kdgat_torch::allocator::{self, Phase};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::error::FitError;
use super::step::StepOptions;
use super::trainable::Trainable;
use crate::memory::{Meter, retry_on_oom};

/// Copies of what a step changes besides the weights.
pub(super) struct StateBefore {
    meter: Meter,
    /// Running statistics.
    buffers: Vec<Tensor>,
    /// `None` if the gradients were zero.
    gradients: Option<Tensor>,
}

impl StateBefore {
    /// Copies the running statistics.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(trainable: &Trainable, meter: Meter) -> Result<Self, FitError> {
        let _phase = allocator::enter_phase(Phase::Parameters);
        let copies = buffers_of(trainable).map(|buffer| buffer.f_detach_copy());
        Ok(Self { meter, buffers: copies.collect::<Result<_, TchError>>()?, gradients: None })
    }

    /// Copies the state before a step with these options.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn note(&mut self, trainable: &Trainable, options: StepOptions) -> Result<(), FitError> {
        retry_on_oom(self.meter, || {
            for (copy, buffer) in self.buffers.iter_mut().zip(buffers_of(trainable)) {
                view::copy_values(copy, buffer)?;
            }
            Ok::<_, FitError>(())
        })?;
        self.gradients = match options.accumulates {
            true => {
                let _phase = allocator::enter_phase(Phase::Gradients);
                Some(retry_on_oom(self.meter, || Ok::<_, FitError>(trainable.gradients.f_detach_copy()?))?)
            }
            false => None,
        };
        Ok(())
    }

    /// Puts running statistics and gradients back.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn put_back(&self, trainable: &mut Trainable, options: StepOptions) -> Result<(), FitError> {
        retry_on_oom(self.meter, || {
            self.restore_buffers(trainable)?;
            match &self.gradients {
                Some(gradients) if options.accumulates => {
                    tch::no_grad(|| trainable.gradients.f_copy_(gradients))?;
                }
                _ => trainable.zero_gradients()?,
            }
            Ok(())
        })
    }

    /// Puts the running statistics back.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn restore_buffers(&self, trainable: &Trainable) -> Result<(), TchError> {
        for (copy, buffer) in self.buffers.iter().zip(buffers_of(trainable)) {
            view::copy_values(&mut buffer.shallow_clone(), copy)?;
        }
        Ok(())
    }
}

/// Running statistics.
pub(super) fn buffers_of(trainable: &Trainable) -> impl Iterator<Item = &Tensor> {
    trainable.tensors().iter().filter(|named| named.role == Role::Buffer).map(|named| &named.tensor)
}
