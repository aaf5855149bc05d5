//! Graph attention on one block of nodes, forward and backward, without an array of edges × channels.
//!
//! For target i, source j and head h: `raw = s_j + t_i`, `attention = softmax over j of leaky_relu(raw)`, `out_i = Σ_j
//! attention_ij · values_j + bias`. The sign of a saved attention weight (which is never negative itself) records
//! whether `raw` was positive: the backward needs nothing else of the scores.

use std::ops::Range;

use kdgat_torch::simd::rows::{Heads, Initial, Matrix};
use kdgat_torch::simd::{Instructions, Kernel};

use super::dropout::AttentionDropout;
use super::element::{Element, Real};
use super::gatv2::Pairs;
use super::layout::Edges;
use super::softmax::{SavedWeights, largest_subtracted, normalize, softmax_backward};
use super::tiles::{add_scaled, for_each_tile, tile, tile_mut};

/// Division of a row of values into heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) heads: usize,
    pub(super) channels: usize,
}

impl Shape {
    /// Number of elements in a node's row.
    pub(super) fn row(self) -> usize {
        self.heads * self.channels
    }

    fn heads(self) -> Heads {
        Heads::new(self.heads, self.channels)
    }

    /// Columns of `head`.
    #[inline(always)]
    pub(super) fn columns(self, head: usize) -> Range<usize> {
        head * self.channels..(head + 1) * self.channels
    }
}

/// Computes scores per node: scalar products of each head's values with its attention vectors.
pub(super) struct ProjectScores<'a, T: Element> {
    pub(super) nodes: Range<usize>,
    pub(super) shape: Shape,
    pub(super) values: &'a [T],
    pub(super) attention_source: &'a [T::Real],
    pub(super) attention_target: &'a [T::Real],
    /// `[nodes, heads]`.
    pub(super) source_scores: &'a mut [T::Real],
    /// `[targets among the nodes, heads]`.
    pub(super) target_scores: &'a mut [T::Real],
}

impl<T: Element> Kernel for ProjectScores<'_, T> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let mut position = 0;
        for node in self.nodes {
            let row = &self.values[node * self.shape.row()..(node + 1) * self.shape.row()];
            for head in 0..self.shape.heads {
                let columns = self.shape.columns(head);
                let values = &row[columns.clone()];
                self.source_scores[position] = T::dot_real::<I>(values, &self.attention_source[columns.clone()]);
                if let Some(target_score) = self.target_scores.get_mut(position) {
                    *target_score = T::dot_real::<I>(values, &self.attention_target[columns]);
                }
                position += 1;
            }
        }
    }
}

/// Source of the attention logits.
#[derive(Clone, Copy)]
pub(super) enum Logits<'a, T: Element> {
    /// Scores per node, `[.., heads]` each, beginning at `first_node`.
    Scores { first_node: usize, source: &'a [T::Real], target: &'a [T::Real] },
    /// The values of source and target together (GATv2).
    Pairs(Pairs<'a, T>),
}

/// Computes attention weights from scores, and the weighted sums.
pub(super) struct Attend<'a, T: Element> {
    pub(super) nodes: Range<usize>,
    pub(super) shape: Shape,
    pub(super) edges: Edges<'a>,
    pub(super) negative_slope: T::Real,
    pub(super) dropout: Option<AttentionDropout>,
    pub(super) values: &'a [T],
    pub(super) bias: Option<&'a [T::Real]>,
    pub(super) logits: Logits<'a, T>,
    /// Raw scores, `[edges of the nodes, heads]`, overwritten.
    pub(super) raw: &'a mut [T::Real],
    /// Weights as applied, after dropout, `[edges of the nodes, heads]`.
    pub(super) weights: &'a mut [T::Real],
    /// Signed weights for the backward (see above), `[edges of the nodes, heads]`.
    pub(super) signed: Option<&'a mut [T::Real]>,
    /// `[nodes, heads * channels]`.
    pub(super) output: &'a mut [T],
}

impl<T: Element> Kernel for Attend<'_, T> {
    #[inline(always)]
    fn run<I: Instructions>(mut self) {
        match self.logits {
            Logits::Scores { first_node, source, target } => self.shifted_logits::<I>(first_node, source, target),
            Logits::Pairs(pairs) => {
                pairs.shifted_logits::<I>(&self.edges, &self.nodes, self.weights);
                // Logits of pairs need no sign: their leaky ReLU is applied before.
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
    /// Fills `raw`, and fills `weights` with logits minus the largest of each target and head.
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
            if heads == 1 {
                let target = target_scores[node - first_node];
                one_head_logits(sources, first_node, source_scores, target, self.negative_slope, raw, logits);
                continue;
            }
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
        let (heads, row) = (self.shape.heads(), self.shape.row());
        let values = Matrix::new(self.values, row);
        let initial = self.bias.map_or(Initial::Zero, Initial::Row);
        for (node, output) in self.nodes.clone().zip(self.output.chunks_exact_mut(row.max(1))) {
            let edges = self.edges.incoming(node);
            let sources = self.edges.sources(edges.clone());
            let weights =
                &self.weights[(edges.start - first_edge) * heads.count..(edges.end - first_edge) * heads.count];
            T::sum_rows::<I>(output, initial, (values, sources), weights, &heads);
        }
    }
}

/// Logits of one target, for `WIDTH` heads from `head`.
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

/// [`shifted_logits_of`] for a single head, whose values are contiguous.
#[inline(always)]
fn one_head_logits<R: Real>(
    sources: &[i32],
    first_node: usize,
    source_scores: &[R],
    target: R,
    negative_slope: R,
    raw: &mut [R],
    logits: &mut [R],
) {
    let mut largest = R::NEGATIVE_INFINITY;
    for ((&source, raw), logit) in sources.iter().zip(raw).zip(logits.iter_mut()) {
        *raw = source_scores[source as usize - first_node] + target;
        *logit = if *raw > R::ZERO { *raw } else { *raw * negative_slope };
        largest = if *logit > largest { *logit } else { largest };
    }
    for logit in logits {
        *logit = *logit - largest;
    }
}

/// Backward over incoming edges: gradients of the raw scores and of the bias.
pub(super) struct RowGradients<'a, T: Element> {
    pub(super) nodes: Range<usize>,
    pub(super) shape: Shape,
    pub(super) edges: Edges<'a>,
    pub(super) negative_slope: T::Real,
    pub(super) values: &'a [T],
    /// Gradient of the output, `[all targets, heads * channels]`.
    pub(super) gradient: &'a [T],
    pub(super) weights: SavedWeights<'a, T::Real>,
    /// `[edges of the nodes, heads]`.
    pub(super) raw_gradients: &'a mut [T::Real],
    /// `[nodes, heads]`.
    pub(super) target_gradients: &'a mut [T::Real],
    /// Accumulates `[heads * channels]`.
    pub(super) bias_gradient: &'a mut [T::Real],
}

impl<T: Element> Kernel for RowGradients<'_, T> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let (shape, heads, row) = (self.shape.heads(), self.shape.heads, self.shape.row());
        let first_edge = self.edges.incoming_of(&self.nodes).start;
        let values = Matrix::new(self.values, row);
        add_all_rows::<I, T>(&self.nodes, self.gradient, self.bias_gradient);
        for node in self.nodes.clone() {
            let edges = self.edges.incoming(node);
            let gradient = &self.gradient[node * row..(node + 1) * row];
            let raw_gradients =
                &mut self.raw_gradients[(edges.start - first_edge) * heads..(edges.end - first_edge) * heads];
            let sources = self.edges.sources(edges.clone());
            T::row_products::<I>(gradient, (values, sources), &shape, raw_gradients);
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

/// Adds the rows of `nodes` to `sums`.
#[inline(always)]
fn add_all_rows<I: Instructions, T: Element>(nodes: &Range<usize>, rows: &[T], sums: &mut [T::Real]) {
    let (indices, ones) = (indices_of(nodes), vec![T::Real::ONE; nodes.len()]);
    let heads = Heads::new(1, sums.len());
    T::add_rows::<I>(sums, (Matrix::new(rows, heads.channels), &indices), &ones, &heads);
}

/// Nodes as i32 row indices; an adjacency has no more nodes than i32 can count.
fn indices_of(nodes: &Range<usize>) -> Vec<i32> {
    nodes.clone().map(|node| node as i32).collect()
}

/// Attention vectors of projected scores, and the sums of their gradients.
pub(super) struct Projection<'a, R> {
    pub(super) attention_source: &'a [R],
    pub(super) attention_target: &'a [R],
    /// Accumulates `[heads * channels]` each.
    pub(super) source_gradient: &'a mut [R],
    pub(super) target_gradient: &'a mut [R],
}

/// Backward over outgoing edges: gradients of the values, of the source scores and of the attention vectors.
pub(super) struct ColumnGradients<'a, T: Element> {
    pub(super) nodes: Range<usize>,
    pub(super) shape: Shape,
    pub(super) edges: Edges<'a>,
    pub(super) values: &'a [T],
    /// Gradient of the output, `[all targets, heads * channels]`.
    pub(super) gradient: &'a [T],
    pub(super) weights: SavedWeights<'a, T::Real>,
    /// The first edge of `raw_gradients`.
    pub(super) first_edge: usize,
    pub(super) raw_gradients: &'a [T::Real],
    /// `[targets among the nodes, heads]`.
    pub(super) target_gradients: &'a [T::Real],
    /// `[nodes, heads]`.
    pub(super) source_gradients: &'a mut [T::Real],
    pub(super) projection: Option<Projection<'a, T::Real>>,
    /// `[nodes, heads * channels]`.
    pub(super) value_gradients: &'a mut [T],
}

impl<T: Element> Kernel for ColumnGradients<'_, T> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let (heads, row) = (self.shape.heads, self.shape.row());
        // Targets and weights of all edges out of these nodes, by source.
        let outgoing = self.edges.outgoing_of(&self.nodes);
        let targets: Vec<i32> = outgoing.iter().map(|&edge| self.edges.targets()[edge as usize]).collect();
        let mut weights = vec![T::Real::ZERO; outgoing.len() * heads];
        self.weights.applied(outgoing, heads, &mut weights);
        let (gradient, shape) = (Matrix::new(self.gradient, row), self.shape.heads());
        // Gradients of the target scores of a source that is no target.
        let none = vec![T::Real::ZERO; heads];
        let mut first = 0;
        for (position, (node, value_gradients)) in
            self.nodes.clone().zip(self.value_gradients.chunks_exact_mut(row.max(1))).enumerate()
        {
            let edges = first..first + self.edges.outgoing(node).len();
            first = edges.end;
            let source_gradients = &mut self.source_gradients[position * heads..][..heads];
            for_each_tile!(0, heads, |head| sum_by_source::<I, T::Real>(
                head,
                &outgoing[edges.clone()],
                self.first_edge,
                self.raw_gradients,
                source_gradients,
            ));
            let initial = self.projection.as_ref().map_or(Initial::Zero, |projection| {
                let target_gradients =
                    self.target_gradients.get(position * heads..(position + 1) * heads).unwrap_or(&none);
                let vectors = [projection.attention_source, projection.attention_target];
                Initial::Pair(vectors, [source_gradients, target_gradients])
            });
            let (targets, weights) = (&targets[edges.clone()], &weights[edges.start * heads..edges.end * heads]);
            T::sum_rows::<I>(value_gradients, initial, (gradient, targets), weights, &shape);
        }
        if let Some(projection) = self.projection {
            let (indices, values) = (indices_of(&self.nodes), Matrix::new(self.values, row));
            let (of_source, of_target) = (projection.source_gradient, projection.target_gradient);
            T::add_rows::<I>(of_source, (values, &indices), self.source_gradients, &shape);
            let targets = &indices[..self.target_gradients.len() / heads.max(1)];
            T::add_rows::<I>(of_target, (values, targets), self.target_gradients, &shape);
        }
    }
}

/// Sums the gradients of the raw scores over the edges of one source, for `WIDTH` heads from `head`.
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
