//! Fused attention on a GPU: the kernels of `shared.cu`, `gat.cu` and `gatv2.cu` as differentiable functions on tensors.

mod gat;
mod gatv2;
mod layer;
mod program;
#[cfg(test)]
mod tests;

use tch::{TchError, Tensor};

pub(super) use gat::GpuGat;
pub(super) use gatv2::GpuGatV2;
pub(super) use layer::Layer;

use super::Attended;
use crate::torch::autograd::{self, Function};

/// Runs a layer, which returns weights if it was asked to. All inputs are contiguous on the program's device.
pub(super) fn run<F: Function>(function: F, return_weights: bool, inputs: &[&Tensor]) -> Result<Attended, TchError> {
    let mut outputs = autograd::apply(function, inputs)?.into_iter();
    let output = outputs.next().unwrap_or_default();
    let weights = if return_weights { outputs.next().map(|weights| weights.detach()) } else { None };
    Ok(Attended { output, weights })
}
