//! Graph attention on one block of nodes, forward and backward, without an array of edges × channels.
//!
//! For target i, source j and head h: `raw = s_j + t_i`, `attention = softmax over j of leaky_relu(raw)`,
//! `out_i = Σ_j attention_ij · values_j + bias`. Where `raw` was negative is kept as the sign of the
//! (never negative) attention weight: that is all the backward needs of the scores.

use std::ops::Range;

use super::dropout::AttentionDropout;
use super::element::{Element, Real};
use super::layout::Edges;
use super::tiles::{add_scaled, dot, for_each_tile, store, tile, tile_mut};
use crate::torch::simd::{Instructions, Kernel};

/// How a row of values is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) heads: usize,
    pub(super) channels: usize,
}

impl Shape {
    /// Elements of a node's row.
    pub(super) fn row(self) -> usize {
        self.heads * self.channels
    }

    /// Columns of `head`.
    #[inline(always)]
    fn columns(self, head: usize) -> Range<usize> {
        head * self.channels..(head + 1) * self.channels
    }
}

/// Per-node scores by scalar products of each head's values with its attention vectors.
pub(super) struct ProjectScores<'a, T: Element> {
    pub(super) nodes: Range<usize>,
    pub(super) shape: Shape,
    pub(super) values: &'a [T],
    pub(super) attention_source: &'a [T::Real],
    pub(super) attention_target: &'a [T::Real],
    /// `[nodes, heads]`.
    pub(super) source_scores: &'a mut [T::Real],
    /// `[nodes, heads]`.
    pub(super) target_scores: &'a mut [T::Real],
}

impl<T: Element> Kernel for ProjectScores<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Instructions>(self) {
        let mut position = 0;
        for node in self.nodes {
            let row = &self.values[node * self.shape.row()..(node + 1) * self.shape.row()];
            for head in 0..self.shape.heads {
                let columns = self.shape.columns(head);
                let values = &row[columns.clone()];
                self.source_scores[position] = dot::<I, T, T::Real>(values, &self.attention_source[columns.clone()]);
                self.target_scores[position] = dot::<I, T, T::Real>(values, &self.attention_target[columns]);
                position += 1;
            }
        }
    }
}

/// Scores to attention weights to weighted sums.
pub(super) struct Attend<'a, T: Element> {
    pub(super) nodes: Range<usize>,
    pub(super) shape: Shape,
    pub(super) edges: Edges<'a>,
    pub(super) negative_slope: T::Real,
    pub(super) dropout: Option<AttentionDropout>,
    pub(super) values: &'a [T],
    pub(super) bias: Option<&'a [T::Real]>,
    /// The node that the scores begin at.
    pub(super) first_node: usize,
    pub(super) source_scores: &'a [T::Real],
    pub(super) target_scores: &'a [T::Real],
    /// `[edges of the nodes, heads]`, overwritten.
    pub(super) raw: &'a mut [T::Real],
    /// `[edges of the nodes, heads]`: the weights that were applied, after dropout.
    pub(super) weights: &'a mut [T::Real],
    /// `[edges of the nodes, heads]`: for the backward, see the file's head.
    pub(super) signed: Option<&'a mut [T::Real]>,
    /// `[nodes, heads * channels]`.
    pub(super) output: &'a mut [T],
}

impl<T: Element> Kernel for Attend<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Instructions>(mut self) {
        self.shifted_logits();
        T::Real::exp_in_place::<I>(self.weights);
        let first_edge = self.edges.incoming_of(&self.nodes).start;
        normalize(&self.edges, &self.nodes, self.shape.heads, self.weights);
        if let Some(signed) = self.signed.take() {
            for ((signed, &weight), &raw) in signed.iter_mut().zip(self.weights.iter()).zip(self.raw.iter()) {
                *signed = if raw > T::Real::ZERO { weight } else { T::Real::ZERO - weight };
            }
        }
        if let Some(dropout) = self.dropout {
            dropout.apply(first_edge * self.shape.heads, self.weights);
        }
        self.weighted_sums::<I>(first_edge);
    }
}

impl<T: Element> Attend<'_, T> {
    /// Fills `raw`, and `weights` with logits from which the largest of each target and head is subtracted.
    #[inline(always)]
    fn shifted_logits(&mut self) {
        let heads = self.shape.heads;
        let first_edge = self.edges.incoming_of(&self.nodes).start;
        for node in self.nodes.clone() {
            let edges = self.edges.incoming(node);
            let range = (edges.start - first_edge) * heads..(edges.end - first_edge) * heads;
            let (raw, logits) = (&mut self.raw[range.clone()], &mut self.weights[range]);
            let target = &self.target_scores[(node - self.first_node) * heads..][..heads];
            for (edge, &source) in self.edges.sources(edges).iter().enumerate() {
                let source = &self.source_scores[(source as usize - self.first_node) * heads..][..heads];
                for head in 0..heads {
                    let sum = source[head] + target[head];
                    raw[edge * heads + head] = sum;
                    logits[edge * heads + head] = if sum > T::Real::ZERO { sum } else { sum * self.negative_slope };
                }
            }
            for head in 0..heads {
                let mut largest = T::Real::NEGATIVE_INFINITY;
                for &logit in logits.iter().skip(head).step_by(heads) {
                    largest = if logit > largest { logit } else { largest };
                }
                for logit in logits.iter_mut().skip(head).step_by(heads) {
                    *logit = *logit - largest;
                }
            }
        }
    }

    #[inline(always)]
    fn weighted_sums<I: Instructions>(&mut self, first_edge: usize) {
        let (heads, row) = (self.shape.heads, self.shape.row());
        for node in self.nodes.clone() {
            let edges = self.edges.incoming(node);
            let sources = self.edges.sources(edges.clone());
            let weights = &self.weights[(edges.start - first_edge) * heads..(edges.end - first_edge) * heads];
            let output = &mut self.output[(node - self.nodes.start) * row..][..row];
            for head in 0..heads {
                let columns = self.shape.columns(head);
                for_each_tile!(columns.start, columns.end, |column| weighted_sum::<I, T>(
                    column,
                    row,
                    sources,
                    self.values,
                    weights,
                    heads,
                    head,
                    self.bias,
                    output,
                ));
            }
        }
    }
}

/// Makes the weights of each target and head sum to one (with PyTorch Geometric's 1e-16 in the divisor).
#[inline(always)]
pub(super) fn normalize<R: Real>(edges: &Edges<'_>, nodes: &Range<usize>, heads: usize, weights: &mut [R]) {
    let first_edge = edges.incoming_of(nodes).start;
    for node in nodes.clone() {
        let incoming = edges.incoming(node);
        let weights = &mut weights[(incoming.start - first_edge) * heads..(incoming.end - first_edge) * heads];
        for head in 0..heads {
            let mut sum = R::ZERO;
            for &weight in weights.iter().skip(head).step_by(heads) {
                sum += weight;
            }
            let scale = R::ONE / (sum + R::from_f64(1e-16));
            for weight in weights.iter_mut().skip(head).step_by(heads) {
                *weight = *weight * scale;
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn weighted_sum<I: Instructions, T: Element, const WIDTH: usize>(
    column: usize,
    row: usize,
    sources: &[i32],
    values: &[T],
    weights: &[T::Real],
    heads: usize,
    head: usize,
    bias: Option<&[T::Real]>,
    output: &mut [T],
) {
    let mut sums = bias.map_or([T::Real::ZERO; WIDTH], |bias| *tile::<_, WIDTH>(bias, column));
    for (edge, &source) in sources.iter().enumerate() {
        add_scaled::<I, T, WIDTH>(
            &mut sums,
            weights[edge * heads + head],
            tile(values, source as usize * row + column),
        );
    }
    store::<T, WIDTH>(tile_mut(output, column), &sums);
}

/// The attention weights of a forward, as its backward reads them.
#[derive(Clone, Copy)]
pub(super) struct SavedWeights<'a, R> {
    /// `[all edges, heads]`, before dropout, signed as the file's head says.
    pub(super) signed: &'a [R],
    /// `[all edges, heads]`, after dropout; absent where there was none.
    pub(super) dropped: Option<&'a [R]>,
    /// What dropout multiplied the kept ones by.
    pub(super) kept_scale: R,
}

impl<R: Real> SavedWeights<'_, R> {
    /// The weight that values were multiplied by.
    #[inline(always)]
    fn applied(&self, position: usize) -> R {
        match self.dropped {
            Some(dropped) => dropped[position],
            None => self.signed[position].absolute(),
        }
    }

    /// Derivative of the applied weight by the weight before dropout (where that is zero it does not matter).
    #[inline(always)]
    fn dropout_factor(&self, position: usize) -> R {
        match self.dropped {
            Some(dropped) if dropped[position] > R::ZERO => self.kept_scale,
            Some(_) => R::ZERO,
            None => R::ONE,
        }
    }
}

/// Backward over incoming edges: gradients of the raw scores and of the bias.
pub(super) struct RowGradients<'a, T: Element> {
    pub(super) nodes: Range<usize>,
    pub(super) shape: Shape,
    pub(super) edges: Edges<'a>,
    pub(super) negative_slope: T::Real,
    pub(super) values: &'a [T],
    /// Of the output, `[all nodes, heads * channels]`.
    pub(super) gradient: &'a [T],
    pub(super) weights: SavedWeights<'a, T::Real>,
    /// `[edges of the nodes, heads]`.
    pub(super) raw_gradients: &'a mut [T::Real],
    /// `[nodes, heads]`.
    pub(super) target_gradients: &'a mut [T::Real],
    /// `[heads * channels]`, added to.
    pub(super) bias_gradient: &'a mut [T::Real],
}

impl<T: Element> Kernel for RowGradients<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Instructions>(self) {
        let (heads, row) = (self.shape.heads, self.shape.row());
        let first_edge = self.edges.incoming_of(&self.nodes).start;
        for node in self.nodes.clone() {
            let edges = self.edges.incoming(node);
            let gradient = &self.gradient[node * row..(node + 1) * row];
            for_each_tile!(0, row, |column| add_row::<I, T>(column, gradient, self.bias_gradient));
            let raw_gradients =
                &mut self.raw_gradients[(edges.start - first_edge) * heads..(edges.end - first_edge) * heads];
            for (edge, &source) in self.edges.sources(edges.clone()).iter().enumerate() {
                let values = &self.values[source as usize * row..][..row];
                for head in 0..heads {
                    let columns = self.shape.columns(head);
                    raw_gradients[edge * heads + head] = dot::<I, T, T>(&gradient[columns.clone()], &values[columns]);
                }
            }
            let target_gradients = &mut self.target_gradients[(node - self.nodes.start) * heads..][..heads];
            softmax_backward::<I, T::Real>(
                &self.weights,
                edges.start * heads,
                self.negative_slope,
                raw_gradients,
                target_gradients,
            );
        }
    }
}

#[inline(always)]
fn add_row<I: Instructions, T: Element, const WIDTH: usize>(column: usize, row: &[T], sums: &mut [T::Real]) {
    add_scaled::<I, T, WIDTH>(tile_mut(sums, column), T::Real::ONE, tile(row, column));
}

/// From gradients of one target's applied weights to those of its raw scores, in place, and their sums by head.
///
/// `first` is the position of the target's first weight among all.
#[inline(always)]
pub(super) fn softmax_backward<I: Instructions, R: Real>(
    saved: &SavedWeights<'_, R>,
    first: usize,
    negative_slope: R,
    gradients: &mut [R],
    sums: &mut [R],
) {
    let heads = sums.len();
    let signed = &saved.signed[first..first + gradients.len()];
    if saved.dropped.is_some() {
        for (position, gradient) in gradients.iter_mut().enumerate() {
            *gradient = *gradient * saved.dropout_factor(first + position);
        }
    }
    for (head, sum) in sums.iter_mut().enumerate() {
        let mut mean = R::ZERO;
        for (gradient, weight) in gradients.iter().zip(signed).skip(head).step_by(heads) {
            mean = weight.absolute().mul_add::<I>(*gradient, mean);
        }
        *sum = R::ZERO;
        for (gradient, weight) in gradients.iter_mut().zip(signed).skip(head).step_by(heads) {
            let slope = if weight.is_sign_negative() { negative_slope } else { R::ONE };
            *gradient = weight.absolute() * (*gradient - mean) * slope;
            *sum += *gradient;
        }
    }
}

/// The attention vectors, where the scores were projected from the values, and their gradients' sums.
pub(super) struct Projection<'a, R> {
    pub(super) attention_source: &'a [R],
    pub(super) attention_target: &'a [R],
    /// `[heads * channels]` each, added to.
    pub(super) source_gradient: &'a mut [R],
    pub(super) target_gradient: &'a mut [R],
}

/// Backward over outgoing edges: gradients of the values, of the source scores and of the attention vectors.
pub(super) struct ColumnGradients<'a, T: Element> {
    pub(super) nodes: Range<usize>,
    pub(super) shape: Shape,
    pub(super) edges: Edges<'a>,
    pub(super) values: &'a [T],
    /// Of the output, `[all nodes, heads * channels]`.
    pub(super) gradient: &'a [T],
    pub(super) weights: SavedWeights<'a, T::Real>,
    /// The edge that `raw_gradients` begins at.
    pub(super) first_edge: usize,
    pub(super) raw_gradients: &'a [T::Real],
    /// `[nodes, heads]`.
    pub(super) target_gradients: &'a [T::Real],
    /// `[nodes, heads]`.
    pub(super) source_gradients: &'a mut [T::Real],
    pub(super) projection: Option<Projection<'a, T::Real>>,
    /// `[nodes, heads * channels]`.
    pub(super) value_gradients: &'a mut [T],
}

impl<T: Element> Kernel for ColumnGradients<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Instructions>(mut self) {
        let (heads, row) = (self.shape.heads, self.shape.row());
        for node in self.nodes.clone() {
            let outgoing = self.edges.outgoing(node);
            let position = node - self.nodes.start;
            let source_gradients = &mut self.source_gradients[position * heads..][..heads];
            source_gradients.fill(T::Real::ZERO);
            for &edge in outgoing {
                let raw_gradients = &self.raw_gradients[(edge as usize - self.first_edge) * heads..][..heads];
                for (sum, &gradient) in source_gradients.iter_mut().zip(raw_gradients) {
                    *sum += gradient;
                }
            }
            let values = &self.values[node * row..(node + 1) * row];
            let value_gradients = &mut self.value_gradients[position * row..][..row];
            for head in 0..heads {
                let column_of = Column {
                    edges: &self.edges,
                    outgoing,
                    gradient: self.gradient,
                    weights: &self.weights,
                    row,
                    heads,
                    head,
                    source: source_gradients[head],
                    target: self.target_gradients[position * heads + head],
                };
                let columns = self.shape.columns(head);
                for_each_tile!(columns.start, columns.end, |column| value_gradient::<I, T>(
                    column,
                    &column_of,
                    values,
                    &mut self.projection,
                    value_gradients,
                ));
            }
        }
    }
}

/// One source and head on the way back.
struct Column<'a, T: Element> {
    edges: &'a Edges<'a>,
    outgoing: &'a [i32],
    gradient: &'a [T],
    weights: &'a SavedWeights<'a, T::Real>,
    row: usize,
    heads: usize,
    head: usize,
    /// Gradient of the node's source score.
    source: T::Real,
    /// Gradient of the node's target score.
    target: T::Real,
}

#[inline(always)]
fn value_gradient<I: Instructions, T: Element, const WIDTH: usize>(
    column: usize,
    node: &Column<'_, T>,
    values: &[T],
    projection: &mut Option<Projection<'_, T::Real>>,
    value_gradients: &mut [T],
) {
    let mut sums = [T::Real::ZERO; WIDTH];
    if let Some(projection) = projection {
        add_scaled::<I, T::Real, WIDTH>(&mut sums, node.source, tile(projection.attention_source, column));
        add_scaled::<I, T::Real, WIDTH>(&mut sums, node.target, tile(projection.attention_target, column));
        let values = tile::<T, WIDTH>(values, column);
        add_scaled::<I, T, WIDTH>(tile_mut(projection.source_gradient, column), node.source, values);
        add_scaled::<I, T, WIDTH>(tile_mut(projection.target_gradient, column), node.target, values);
    }
    for &edge in node.outgoing {
        let edge = edge as usize;
        let weight = node.weights.applied(edge * node.heads + node.head);
        let gradient = tile::<T, WIDTH>(node.gradient, node.edges.target(edge) * node.row + column);
        add_scaled::<I, T, WIDTH>(&mut sums, weight, gradient);
    }
    store::<T, WIDTH>(tile_mut(value_gradients, column), &sums);
}
