//! Graph attention composed of torch's operations, in the order of PyTorch Geometric's `GATConv`.
//!
//! The reference for tests of the fused kernels, and the fallback where they do not run.

use kdgat_graph::Adjacency;
use tch::{Kind, TchError, Tensor};

use super::{Attended, AttentionOptions};
use crate::segments;

/// Attention with given scores, for values `[sources, heads, channels]` and scores `[sources, heads]` and `[targets, heads]`.
pub(super) fn attend(
    values: &Tensor,
    source_scores: &Tensor,
    target_scores: &Tensor,
    adjacency: &Adjacency,
    options: &AttentionOptions,
) -> Result<Attended, TchError> {
    let (sources, targets) = (adjacency.sources.f_to_kind(Kind::Int64)?, adjacency.targets.f_to_kind(Kind::Int64)?);
    let raw = source_scores.f_index_select(0, &sources)?.f_add(&target_scores.f_index_select(0, &targets)?)?;
    let logits = leaky_relu(&raw, options.negative_slope)?;
    weighted_sums(values, &logits, [&sources, &targets], adjacency, options)
}

/// GATv2's attention, for values `[sources, heads, channels]` and `[targets, heads, channels]`, edge terms `[edges, heads,
/// channels]`, and the attention vector `[1, heads, channels]`.
pub(super) fn attend_pairs(
    source: &Tensor,
    target: &Tensor,
    edge_term: Option<&Tensor>,
    attention: &Tensor,
    adjacency: &Adjacency,
    options: &AttentionOptions,
) -> Result<Attended, TchError> {
    let (sources, targets) = (adjacency.sources.f_to_kind(Kind::Int64)?, adjacency.targets.f_to_kind(Kind::Int64)?);
    let kind = attention.f_kind()?;
    let wide = |tensor: &Tensor| tensor.f_to_kind(kind);
    let mut sums = wide(target)?.f_index_select(0, &targets)?.f_add(&wide(source)?.f_index_select(0, &sources)?)?;
    if let Some(edge_term) = edge_term {
        sums = sums.f_add(&wide(edge_term)?)?;
    }
    let activated = leaky_relu(&sums, options.negative_slope)?;
    let logits = activated.f_mul(attention)?.f_sum_dim_intlist(-1_i64, false, kind)?;
    weighted_sums(source, &logits, [&sources, &targets], adjacency, options)
}

/// Softmax over each target's edges, dropout, and sums of source values; logits are `[edges, heads]`.
fn weighted_sums(
    values: &Tensor,
    logits: &Tensor,
    [sources, targets]: [&Tensor; 2],
    adjacency: &Adjacency,
    options: &AttentionOptions,
) -> Result<Attended, TchError> {
    let kind = values.f_kind()?;
    let mut weights = softmax(logits, targets, adjacency)?;
    if let Some(dropout) = options.dropout {
        let factors = dropout.factors(logits.size()[0], logits.size()[1])?;
        weights = weights.f_mul(&factors.f_to_kind(weights.f_kind()?)?.f_to_device(weights.device())?)?;
    }
    let messages = values.f_to_kind(weights.f_kind()?)?.f_index_select(0, sources)?.f_mul(&weights.f_unsqueeze(-1)?)?;
    let output = segments::sums(&messages, &adjacency.row_pointers, targets)?.f_to_kind(kind)?;
    let weights = if options.return_weights { Some(weights.f_detach()?) } else { None };
    Ok(Attended { output, weights })
}

/// Leaky ReLU with a slope, which `tch` does not expose.
pub(super) fn leaky_relu(input: &Tensor, negative_slope: f64) -> Result<Tensor, TchError> {
    input.f_where_self(&input.f_gt(0.0)?, &input.f_mul_scalar(negative_slope)?)
}

/// Softmax over each target's edges, as in PyTorch Geometric: subtracts the largest logit without a gradient and adds
/// 1e-16 to the divisor.
fn softmax(logits: &Tensor, targets: &Tensor, adjacency: &Adjacency) -> Result<Tensor, TchError> {
    let (nodes, heads) = (adjacency.row_pointers.numel() as i64 - 1, logits.size()[1]);
    let index = targets.f_unsqueeze(-1)?.f_expand_as(logits)?;
    let options = (logits.f_kind()?, logits.device());
    let lowest = Tensor::f_full([nodes, heads], f64::NEG_INFINITY, options)?;
    let largest = lowest.f_internal_scatter_reduce(0, &index, &logits.f_detach()?, "amax", true)?;
    let exponentials = logits.f_sub(&largest.f_index_select(0, targets)?)?.f_exp()?;
    let sums = segments::sums(&exponentials, &adjacency.row_pointers, targets)?;
    exponentials.f_div(&sums.f_add_scalar(1e-16)?.f_index_select(0, targets)?)
}
