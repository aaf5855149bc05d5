//! Gradient checkpointing (Chen et al. 2016): activations are dropped after the forward and recomputed in the backward.

use std::ffi::CStr;

use tch::{TchError, Tensor};

use super::autocast::AutocastState;
use super::autograd::{self, Forward, Function, Gradients};
use super::grad::detached_leaves;

/// Runs `body` on `inputs` and saves none of its activations, only its outputs.
///
/// `parameters` are the leaves that `body` uses besides its inputs, through its own handles; they receive gradients
/// like inputs. `body` must compute the same result again: draw random numbers by counter, not from torch's generator,
/// and change no state (it would update the running statistics of a batch norm twice).
pub fn checkpoint<B>(body: B, inputs: &[&Tensor], parameters: &[&Tensor]) -> Result<Vec<Tensor>, TchError>
where
    B: Fn(&[Tensor]) -> Result<Vec<Tensor>, TchError> + Send + 'static,
{
    let function = Checkpoint { body, num_inputs: inputs.len(), autocast: AutocastState::current()? };
    let all: Vec<&Tensor> = inputs.iter().chain(parameters).copied().collect();
    autograd::apply(function, &all)
}

struct Checkpoint<B> {
    body: B,
    num_inputs: usize,
    autocast: AutocastState,
}

impl<B> Function for Checkpoint<B>
where
    B: Fn(&[Tensor]) -> Result<Vec<Tensor>, TchError> + Send + 'static,
{
    const NAME: &'static CStr = c"checkpoint";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let own: Vec<Tensor> = inputs[..self.num_inputs].iter().map(|input| input.shallow_clone()).collect();
        let outputs = (self.body)(&own)?;
        Ok(Forward::saving_inputs(outputs, inputs, recorded))
    }

    /// Frees recomputed activations and output gradients as the backward passes them.
    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        let (inputs, parameters) = saved.split_at(self.num_inputs);
        let leaves = detached_leaves(&inputs.iter().collect::<Vec<_>>())?;
        let outputs = {
            let _mixed_precision = self.autocast.enter()?;
            tch::with_grad(|| (self.body)(&leaves))?
        };
        // Outputs without a gradient, or that depend on nothing requiring one, are not roots.
        let roots: Vec<(Tensor, Tensor)> = outputs
            .into_iter()
            .zip(gradients)
            .filter_map(|(output, gradient)| Some((output, gradient?)))
            .filter(|(output, _)| output.requires_grad())
            .collect();
        let mut results: Vec<Option<Tensor>> = needed.iter().map(|_| None).collect();
        let asked: Vec<usize> = (0..needed.len()).filter(|&index| needed[index]).collect();
        if roots.is_empty() || asked.is_empty() {
            return Ok(results);
        }
        let all: Vec<&Tensor> = leaves.iter().chain(parameters).collect();
        let wanted: Vec<&Tensor> = asked.iter().map(|&index| all[index]).collect();
        for (index, gradient) in asked.into_iter().zip(autograd::gradients_consuming(roots, &wanted)?) {
            results[index] = gradient;
        }
        Ok(results)
    }
}
