//! Graph attention on one block of nodes, forward and backward, without an array of edges × channels.
//!
//! For target i, source j and head h: `raw = s_j + t_i`, `attention = softmax over j of leaky_relu(raw)`,
//! `out_i = Σ_j attention_ij · values_j + bias`. Where `raw` was negative is kept as the sign of the
//! (never negative) attention weight: that is all the backward needs of the scores.

use std::ops::Range;

use super::dropout::AttentionDropout;
use super::element::{Element, Real};
use super::gatv2::Pairs;
use super::layout::Edges;
use super::softmax::{SavedWeights, largest_subtracted, normalize, softmax_backward};
use super::tiles::{add_scaled, for_each_tile, store, tile, tile_mut};
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
    pub(super) fn columns(self, head: usize) -> Range<usize> {
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
                self.source_scores[position] = T::dot_real::<I>(values, &self.attention_source[columns.clone()]);
                self.target_scores[position] = T::dot_real::<I>(values, &self.attention_target[columns]);
                position += 1;
            }
        }
    }
}

/// What attention weights are made of.
#[derive(Clone, Copy)]
pub(super) enum Logits<'a, T: Element> {
    /// Of scores by node, `[.., heads]` each, that begin at `first_node`.
    Scores { first_node: usize, source: &'a [T::Real], target: &'a [T::Real] },
    /// Of the values of source and target together: GATv2.
    Pairs(Pairs<'a, T>),
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
    pub(super) logits: Logits<'a, T>,
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
        match self.logits {
            Logits::Scores { first_node, source, target } => self.shifted_logits::<I>(first_node, source, target),
            Logits::Pairs(pairs) => {
                pairs.shifted_logits::<I>(&self.edges, &self.nodes, self.weights);
                // These keep no sign.
                self.raw.fill(T::Real::ONE);
            }
        }
        T::Real::exp_in_place::<I>(self.weights);
        let first_edge = self.edges.incoming_of(&self.nodes).start;
        normalize::<I, T::Real>(&self.edges, &self.nodes, self.shape.heads, self.weights);
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
    fn shifted_logits<I: Instructions>(
        &mut self,
        first_node: usize,
        source_scores: &[T::Real],
        target_scores: &[T::Real],
    ) {
        let heads = self.shape.heads;
        let first_edge = self.edges.incoming_of(&self.nodes).start;
        for node in self.nodes.clone() {
            let edges = self.edges.incoming(node);
            let range = (edges.start - first_edge) * heads..(edges.end - first_edge) * heads;
            let (raw, logits) = (&mut self.raw[range.clone()], &mut self.weights[range]);
            let sources = self.edges.sources(edges);
            for_each_tile!(0, heads, |head| shifted_logits_of::<I, T::Real>(
                head,
                heads,
                sources,
                first_node,
                source_scores,
                &target_scores[(node - first_node) * heads..][..heads],
                self.negative_slope,
                raw,
                logits,
            ));
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

/// The logits of one target, for `WIDTH` heads from `head`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn shifted_logits_of<I: Instructions, R: Real, const WIDTH: usize>(
    head: usize,
    heads: usize,
    sources: &[i32],
    first_node: usize,
    source_scores: &[R],
    target_scores: &[R],
    negative_slope: R,
    raw: &mut [R],
    logits: &mut [R],
) {
    let target = *tile::<R, WIDTH>(target_scores, head);
    for (edge, &source) in sources.iter().enumerate() {
        let source = tile::<R, WIDTH>(source_scores, (source as usize - first_node) * heads + head);
        let raw = tile_mut::<R, WIDTH>(raw, edge * heads + head);
        let logits = tile_mut::<R, WIDTH>(logits, edge * heads + head);
        for lane in 0..WIDTH {
            raw[lane] = source[lane] + target[lane];
            logits[lane] = if raw[lane] > R::ZERO { raw[lane] } else { raw[lane] * negative_slope };
        }
    }
    largest_subtracted::<R, WIDTH>(head, heads, sources.len(), logits);
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
                    raw_gradients[edge * heads + head] = T::dot::<I>(&gradient[columns.clone()], &values[columns]);
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
        let (mut rows, mut weights) = (Vec::new(), Vec::new());
        for node in self.nodes.clone() {
            let outgoing = self.edges.outgoing(node);
            let position = node - self.nodes.start;
            let source_gradients = &mut self.source_gradients[position * heads..][..heads];
            for_each_tile!(0, heads, |head| sum_by_source::<I, T::Real>(
                head,
                outgoing,
                self.first_edge,
                self.raw_gradients,
                source_gradients,
            ));
            rows.clear();
            for &edge in outgoing {
                rows.push(self.edges.target(edge as usize) * row);
            }
            let values = &self.values[node * row..(node + 1) * row];
            let value_gradients = &mut self.value_gradients[position * row..][..row];
            for (head, &source) in source_gradients.iter().enumerate() {
                weights.clear();
                for &edge in outgoing {
                    weights.push(self.weights.applied(edge as usize * heads + head));
                }
                let column_of = Column {
                    rows: &rows,
                    weights: &weights,
                    gradient: self.gradient,
                    source,
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

/// Sums the gradients of raw scores over the edges of one source, for `WIDTH` heads from `head`.
#[inline(always)]
fn sum_by_source<I: Instructions, R: Real, const WIDTH: usize>(
    head: usize,
    outgoing: &[i32],
    first_edge: usize,
    raw_gradients: &[R],
    sums: &mut [R],
) {
    let heads = sums.len();
    let mut sum = [R::ZERO; WIDTH];
    for &edge in outgoing {
        add_scaled::<I, R, WIDTH>(&mut sum, R::ONE, tile(raw_gradients, (edge as usize - first_edge) * heads + head));
    }
    *tile_mut(sums, head) = sum;
}

/// One source and head on the way back.
struct Column<'a, T: Element> {
    /// Where the gradient's row of each edge's target begins.
    rows: &'a [usize],
    /// The weight of each edge.
    weights: &'a [T::Real],
    gradient: &'a [T],
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
    for (&row, &weight) in node.rows.iter().zip(node.weights) {
        add_scaled::<I, T, WIDTH>(&mut sums, weight, tile(node.gradient, row + column));
    }
    store::<T, WIDTH>(tile_mut(value_gradients, column), &sums);
}
