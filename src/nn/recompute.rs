//! Layers whose activations are computed again in the backward pass instead of being kept (gradient checkpointing).
//!
//! Recomputed are attention, batch norm and ReLU. Dropout stays outside, so that its mask is drawn once and in the same
//! order as without: outputs are the same to the bit. Running statistics move in the forward alone.

use std::sync::atomic::{AtomicBool, Ordering};

use tch::{TchError, Tensor};

use super::ModelError;
use super::attention::AttentionKernel;
use super::conv::{Conv, EdgeInput};
use super::layers::{BatchNorm, Statistics, relu};
use crate::torch::checkpoint::checkpoint;

/// ReLU of an attention layer, normalised before if there is a norm: `[num_nodes, input]` → `[num_nodes, width]`.
pub fn relu_conv(
    conv: &Conv,
    norm: Option<&BatchNorm>,
    x: &Tensor,
    edges: &EdgeInput,
    kernel: AttentionKernel,
) -> Result<Tensor, ModelError> {
    let parameters: Vec<&Tensor> =
        conv.parameters().into_iter().chain(norm.into_iter().flat_map(BatchNorm::parameters)).collect();
    let (own_conv, own_norm) = (conv.shallow_clone(), norm.map(BatchNorm::shallow_clone));
    let adjacency = edges.adjacency.shallow_clone();
    let attributes = edges.attributes.as_ref().map(Tensor::shallow_clone);
    let is_forward = AtomicBool::new(true);
    let layer = move |inputs: &[Tensor]| -> Result<Tensor, ModelError> {
        let attributes = attributes.as_ref().map(Tensor::shallow_clone);
        let x = own_conv.forward(&inputs[0], &EdgeInput { adjacency: &adjacency, attributes }, kernel)?;
        let statistics = if is_forward.swap(false, Ordering::Relaxed) { Statistics::Updated } else { Statistics::Left };
        match &own_norm {
            Some(norm) => norm.active_of_batch(&x, statistics, kernel),
            None => relu(&x, kernel),
        }
    };
    // The text is what tells running out of memory from other errors.
    let body = move |inputs: &[Tensor]| match layer(inputs) {
        Ok(output) => Ok(vec![output]),
        Err(ModelError::Torch(error)) => Err(error),
        Err(error) => Err(TchError::Torch(error.to_string())),
    };
    Ok(checkpoint(body, &[x], &parameters)?.swap_remove(0))
}
