//! Hidden layers whose activations are recomputed in the backward pass instead of stored (gradient checkpointing).
//!
//! Attention, batch norm, ReLU and dropout are recomputed: the dropout mask is a function of step, layer and position,
//! so it is the same again. torch's own dropout stays outside, since its generator would draw a different mask. Outputs
//! equal those of training without checkpointing, bit for bit. Only the forward updates running statistics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kdgat_graph::padding::Mask;
use kdgat_torch::checkpoint::checkpoint;
use tch::{TchError, Tensor};

use super::ModelError;
use super::attention::Backend;
use super::conv::{Conv, EdgeInput};
use super::fused::Pass;
use super::fused::step_seed::LayerId;
use super::layers::{BatchNorm, Mode, composed_dropout, mask_of, masked_relu};
use super::shared_statistics;

/// A hidden layer in training: attention, optional batch norm, ReLU, and dropout with `layer`'s mask.
#[derive(Clone, Copy, Debug)]
pub struct Hidden<'a> {
    /// The attention layer.
    pub conv: &'a Conv,
    /// Batch norm after the attention.
    pub norm: Option<&'a BatchNorm>,
    /// The layer whose dropout mask is used.
    pub layer: LayerId,
    /// Dropout probability.
    pub dropout: f64,
}

/// Applies the layer: `[num_nodes, input]` → `[num_nodes, width]`. Stores only `x` for the backward.
pub fn recomputed(hidden: Hidden, x: &Tensor, edges: &EdgeInput, kernel: Backend) -> Result<Tensor, ModelError> {
    let Hidden { conv, norm, layer, dropout } = hidden;
    // The backward may run on another thread, which has no step seed: the mask is drawn here.
    let mask = mask_of(layer, dropout, Mode::Training)?;
    let is_masked = Arc::new(AtomicBool::new(false));
    let was_masked = Arc::clone(&is_masked);
    let parameters: Vec<&Tensor> =
        conv.parameters().into_iter().chain(norm.into_iter().flat_map(BatchNorm::parameters)).collect();
    let (own_conv, own_norm) = (conv.shallow_clone(), norm.map(BatchNorm::shallow_clone));
    let adjacency = edges.adjacency.shallow_clone();
    let attributes = edges.attributes.as_ref().map(Tensor::shallow_clone);
    let real_nodes = edges.real_nodes.map(Mask::shallow_clone);
    let sums = shared_statistics::current();
    let is_forward = AtomicBool::new(true);
    let layer = move |inputs: &[Tensor]| -> Result<Tensor, ModelError> {
        let attributes = attributes.as_ref().map(Tensor::shallow_clone);
        let edges = EdgeInput { adjacency: &adjacency, attributes, real_nodes: real_nodes.as_ref() };
        let x = own_conv.forward(&inputs[0], &edges, kernel)?;
        let pass = if is_forward.swap(false, Ordering::Relaxed) { Pass::Forward } else { Pass::Again };
        // The recomputation may run on another thread.
        let sums = sums.clone();
        let (active, masked) = match &own_norm {
            Some(norm) => {
                shared_statistics::with(sums, || norm.active_of_batch(&x, edges.real_nodes, pass, kernel, mask))?
            }
            None => masked_relu(&x, pass, kernel, mask)?,
        };
        is_masked.store(masked, Ordering::Relaxed);
        Ok(active)
    };
    let active = made_again(layer, &[x], &parameters)?;
    match was_masked.load(Ordering::Relaxed) {
        true => Ok(active),
        false => composed_dropout(&active, dropout, Mode::Training),
    }
}

/// The output of `body`, whose activations are dropped and made again in the backward ([`checkpoint`]).
///
/// # Errors
/// Those of `body` and of libtorch.
pub(crate) fn made_again(
    body: impl Fn(&[Tensor]) -> Result<Tensor, ModelError> + Send + 'static,
    inputs: &[&Tensor],
    parameters: &[&Tensor],
) -> Result<Tensor, ModelError> {
    // Converts errors to text, by which the caller recognises out of memory.
    let body = move |inputs: &[Tensor]| match body(inputs) {
        Ok(output) => Ok(vec![output]),
        Err(ModelError::Torch(error)) => Err(error),
        Err(error) => Err(TchError::Torch(error.to_string())),
    };
    Ok(checkpoint(body, inputs, parameters)?.pop().unwrap_or_default())
}
