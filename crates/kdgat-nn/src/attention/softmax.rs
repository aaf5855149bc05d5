//! Softmax over the edges of one target, forward and backward, for several heads at a time.

use std::ops::Range;

use kdgat_torch::simd::Instructions;

use super::element::Real;
use super::layout::Edges;
use super::tiles::{for_each_tile, tile, tile_mut};

/// Subtracts the largest logit of `edges` edges, for each of `WIDTH` heads from `head`.
#[inline(always)]
pub(super) fn largest_subtracted<R: Real, const WIDTH: usize>(
    head: usize,
    heads: usize,
    edges: usize,
    logits: &mut [R],
) {
    let mut largest = [R::NEGATIVE_INFINITY; WIDTH];
    for edge in 0..edges {
        let logits = tile::<R, WIDTH>(logits, edge * heads + head);
        for lane in 0..WIDTH {
            largest[lane] = if logits[lane] > largest[lane] { logits[lane] } else { largest[lane] };
        }
    }
    for edge in 0..edges {
        let logits = tile_mut::<R, WIDTH>(logits, edge * heads + head);
        for lane in 0..WIDTH {
            logits[lane] = logits[lane] - largest[lane];
        }
    }
}

/// Normalises the weights of each target and head to sum to one (with PyTorch Geometric's 1e-16 in the divisor).
#[inline(always)]
pub(super) fn normalize<I: Instructions, R: Real>(
    edges: &Edges<'_>,
    nodes: &Range<usize>,
    heads: usize,
    weights: &mut [R],
) {
    let first_edge = edges.incoming_of(nodes).start;
    for node in nodes.clone() {
        let incoming = edges.incoming(node);
        let weights = &mut weights[(incoming.start - first_edge) * heads..(incoming.end - first_edge) * heads];
        if heads == 1 {
            one_divided_by_sum(weights);
            continue;
        }
        for_each_tile!(0, heads, |head| divided_by_sum::<I, R>(head, heads, incoming.len(), weights));
    }
}

#[inline(always)]
fn divided_by_sum<I: Instructions, R: Real, const WIDTH: usize>(
    head: usize,
    heads: usize,
    edges: usize,
    weights: &mut [R],
) {
    let mut scale = [R::from_f64(1e-16); WIDTH];
    for edge in 0..edges {
        let weights = tile::<R, WIDTH>(weights, edge * heads + head);
        for lane in 0..WIDTH {
            scale[lane] += weights[lane];
        }
    }
    for scale in &mut scale {
        *scale = R::ONE / *scale;
    }
    for edge in 0..edges {
        let weights = tile_mut::<R, WIDTH>(weights, edge * heads + head);
        for lane in 0..WIDTH {
            weights[lane] = weights[lane] * scale[lane];
        }
    }
}

/// [`divided_by_sum`] for a single head, whose weights are contiguous.
#[inline(always)]
fn one_divided_by_sum<R: Real>(weights: &mut [R]) {
    let mut sum = R::from_f64(1e-16);
    for &weight in weights.iter() {
        sum += weight;
    }
    let scale = R::ONE / sum;
    for weight in weights {
        *weight = *weight * scale;
    }
}

/// The attention weights of a forward that its backward reads.
#[derive(Clone, Copy)]
pub(super) struct SavedWeights<'a, R> {
    /// Weights before dropout, with signs as described in [`super::kernels`]; `[all edges, heads]`.
    pub(super) signed: &'a [R],
    /// Weights after dropout, `[all edges, heads]`; `None` without dropout.
    pub(super) dropped: Option<&'a [R]>,
    /// Dropout's factor of weights that are not dropped.
    pub(super) kept_scale: R,
}

impl<R: Real> SavedWeights<'_, R> {
    /// Writes the applied weights of the given edges, for all their heads.
    #[inline(always)]
    pub(super) fn applied(&self, edges: &[i32], heads: usize, weights: &mut [R]) {
        if heads == 1 {
            for (weight, &edge) in weights.iter_mut().zip(edges) {
                *weight =
                    self.dropped.map_or_else(|| self.signed[edge as usize].absolute(), |kept| kept[edge as usize]);
            }
            return;
        }
        for (weights, &edge) in weights.chunks_exact_mut(heads.max(1)).zip(edges) {
            let of_edge = edge as usize * heads..(edge as usize + 1) * heads;
            match self.dropped {
                Some(dropped) => weights.copy_from_slice(&dropped[of_edge]),
                None => {
                    for (weight, signed) in weights.iter_mut().zip(&self.signed[of_edge]) {
                        *weight = signed.absolute();
                    }
                }
            }
        }
    }

    /// Derivative of the applied weight with respect to the weight before dropout (irrelevant if that is zero).
    #[inline(always)]
    fn dropout_factor(&self, position: usize) -> R {
        match self.dropped {
            Some(dropped) if dropped[position] > R::ZERO => self.kept_scale,
            Some(_) => R::ZERO,
            None => R::ONE,
        }
    }
}

/// Converts gradients of one target's applied weights to those of its raw scores, in place, and sums them by head.
///
/// `first` is the position of the target's first weight in the whole array.
#[inline(always)]
pub(super) fn softmax_backward<I: Instructions, R: Real>(
    saved: &SavedWeights<'_, R>,
    first: usize,
    negative_slope: R,
    gradients: &mut [R],
    sums: &mut [R],
) {
    let signed = &saved.signed[first..first + gradients.len()];
    if saved.dropped.is_some() {
        for (position, gradient) in gradients.iter_mut().enumerate() {
            *gradient = *gradient * saved.dropout_factor(first + position);
        }
    }
    if let [sum] = sums {
        *sum = backward_of_one_head::<I, R>(negative_slope, signed, gradients);
        return;
    }
    for_each_tile!(0, sums.len(), |head| backward_of_heads::<I, R>(head, negative_slope, signed, gradients, sums));
}

/// Computes `a · (g − Σ a·g) · slope` with the weights a and their gradients g.
#[inline(always)]
fn backward_of_heads<I: Instructions, R: Real, const WIDTH: usize>(
    head: usize,
    negative_slope: R,
    signed: &[R],
    gradients: &mut [R],
    sums: &mut [R],
) {
    let heads = sums.len();
    let mut mean = [R::ZERO; WIDTH];
    let mut position = head;
    while position < signed.len() {
        let (signed, gradients) = (tile::<R, WIDTH>(signed, position), tile::<R, WIDTH>(gradients, position));
        for lane in 0..WIDTH {
            mean[lane] = signed[lane].absolute().mul_add::<I>(gradients[lane], mean[lane]);
        }
        position += heads;
    }
    let mut sum = [R::ZERO; WIDTH];
    let mut position = head;
    while position < signed.len() {
        let (signed, gradients) = (tile::<R, WIDTH>(signed, position), tile_mut::<R, WIDTH>(gradients, position));
        for lane in 0..WIDTH {
            let slope = if signed[lane].is_sign_negative() { negative_slope } else { R::ONE };
            gradients[lane] = signed[lane].absolute() * (gradients[lane] - mean[lane]) * slope;
            sum[lane] += gradients[lane];
        }
        position += heads;
    }
    *tile_mut(sums, head) = sum;
}

/// [`backward_of_heads`] for a single head; returns the sum.
#[inline(always)]
fn backward_of_one_head<I: Instructions, R: Real>(negative_slope: R, signed: &[R], gradients: &mut [R]) -> R {
    let mut mean = R::ZERO;
    for (signed, &gradient) in signed.iter().zip(gradients.iter()) {
        mean = signed.absolute().mul_add::<I>(gradient, mean);
    }
    let mut sum = R::ZERO;
    for (signed, gradient) in signed.iter().zip(gradients) {
        let slope = if signed.is_sign_negative() { negative_slope } else { R::ONE };
        *gradient = signed.absolute() * (*gradient - mean) * slope;
        sum += *gradient;
    }
    sum
}
