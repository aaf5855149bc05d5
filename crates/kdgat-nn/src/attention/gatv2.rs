//! Attention logits of GATv2 (Brody et al. 2022): for source j, target i and head h, `logit = a_h · leaky_relu(source_j
//! + target_i + edge_ij)`, with values `source_j`.
//!
//! Both directions of the backward recompute the inner sums, because storing them would take an array of edges ×
//! channels.

use std::ops::Range;

use kdgat_torch::simd::{Instructions, Kernel};

use super::element::{Element, Real};
use super::kernels::Shape;
use super::layout::Edges;
use super::softmax::largest_subtracted;
use super::tiles::{add_scaled, for_each_tile, store, tile, tile_mut};

/// Operands of the logits.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a, T: Element> {
    pub(super) shape: Shape,
    pub(super) negative_slope: T::Real,
    /// `[sources, heads * channels]`.
    pub(super) source: &'a [T],
    /// `[targets, heads * channels]`.
    pub(super) target: &'a [T],
    /// `[edges, heads * channels]`.
    pub(super) edge_term: Option<&'a [T]>,
    /// `[heads * channels]`.
    pub(super) attention: &'a [T::Real],
}

/// Starts of the rows of one pair.
#[derive(Clone, Copy)]
struct Place {
    source: usize,
    target: usize,
    edge: usize,
}

impl<T: Element> Pairs<'_, T> {
    #[inline(always)]
    fn place(&self, source: usize, target: usize, edge: usize) -> Place {
        let row = self.shape.row();
        Place { source: source * row, target: target * row, edge: edge * row }
    }

    /// The sums of one pair before the leaky ReLU.
    #[inline(always)]
    fn sums<const WIDTH: usize>(&self, place: Place, column: usize) -> [T::Real; WIDTH] {
        let source = tile::<T, WIDTH>(self.source, place.source + column);
        let target = tile::<T, WIDTH>(self.target, place.target + column);
        let mut sums = [T::Real::ZERO; WIDTH];
        for lane in 0..WIDTH {
            sums[lane] = source[lane].widen() + target[lane].widen();
        }
        if let Some(edge_term) = self.edge_term {
            let edge_term = tile::<T, WIDTH>(edge_term, place.edge + column);
            for lane in 0..WIDTH {
                sums[lane] += edge_term[lane].widen();
            }
        }
        sums
    }

    /// Slope of the leaky ReLU at `sum`.
    #[inline(always)]
    fn slope(&self, sum: T::Real) -> T::Real {
        if sum > T::Real::ZERO { T::Real::ONE } else { self.negative_slope }
    }

    /// Logits of all edges into `nodes`, minus the largest of each target and head.
    #[inline(always)]
    pub(super) fn shifted_logits<I: Instructions>(
        &self,
        edges: &Edges<'_>,
        nodes: &Range<usize>,
        logits: &mut [T::Real],
    ) {
        let heads = self.shape.heads;
        let mut activated = vec![T::Real::ZERO; self.shape.row()];
        let first_edge = edges.incoming_of(nodes).start;
        for node in nodes.clone() {
            let incoming = edges.incoming(node);
            let logits = &mut logits[(incoming.start - first_edge) * heads..(incoming.end - first_edge) * heads];
            for (index, &source) in edges.sources(incoming.clone()).iter().enumerate() {
                let place = self.place(source as usize, node, incoming.start + index);
                for_each_tile!(0, activated.len(), |column| activate::<I, T>(self, place, column, &mut activated));
                for head in 0..heads {
                    let columns = self.shape.columns(head);
                    logits[index * heads + head] =
                        T::Real::dot_real::<I>(&activated[columns.clone()], &self.attention[columns]);
                }
            }
            let count = incoming.len();
            for_each_tile!(0, heads, |head| subtract_largest::<I, T::Real>(head, heads, count, logits));
        }
    }
}

#[inline(always)]
fn activate<I: Instructions, T: Element, const WIDTH: usize>(
    pairs: &Pairs<'_, T>,
    place: Place,
    column: usize,
    activated: &mut [T::Real],
) {
    let mut sums = pairs.sums::<WIDTH>(place, column);
    for sum in &mut sums {
        *sum = *sum * pairs.slope(*sum);
    }
    *tile_mut(activated, column) = sums;
}

/// [`largest_subtracted`] with the signature of a function on tiles.
#[inline(always)]
fn subtract_largest<I: Instructions, R: Real, const WIDTH: usize>(
    head: usize,
    heads: usize,
    edges: usize,
    logits: &mut [R],
) {
    largest_subtracted::<R, WIDTH>(head, heads, edges, logits);
}

/// Gradients of the targets' values, the edge terms and the attention vector, from those of the logits.
pub(super) struct TargetGradients<'a, T: Element> {
    pub(super) nodes: Range<usize>,
    pub(super) edges: Edges<'a>,
    pub(super) pairs: Pairs<'a, T>,
    /// `[edges of the nodes, heads]`.
    pub(super) logit_gradients: &'a [T::Real],
    /// `[nodes, heads * channels]`.
    pub(super) target_gradients: &'a mut [T],
    /// `[edges of the nodes, heads * channels]`.
    pub(super) edge_gradients: Option<&'a mut [T]>,
    /// Accumulates `[heads * channels]`.
    pub(super) attention_gradient: &'a mut [T::Real],
}

impl<T: Element> Kernel for TargetGradients<'_, T> {
    #[inline(always)]
    fn run<I: Instructions>(mut self) {
        let shape = self.pairs.shape;
        let first_edge = self.edges.incoming_of(&self.nodes).start;
        for node in self.nodes.clone() {
            for head in 0..shape.heads {
                let columns = shape.columns(head);
                for_each_tile!(columns.start, columns.end, |column| target_gradient::<I, T>(
                    node, head, first_edge, column, &mut self,
                ));
            }
        }
    }
}

#[inline(always)]
fn target_gradient<I: Instructions, T: Element, const WIDTH: usize>(
    node: usize,
    head: usize,
    first_edge: usize,
    column: usize,
    work: &mut TargetGradients<'_, T>,
) {
    let (heads, row) = (work.pairs.shape.heads, work.pairs.shape.row());
    let incoming = work.edges.incoming(node);
    let attention = tile::<T::Real, WIDTH>(work.pairs.attention, column);
    let mut of_target = [T::Real::ZERO; WIDTH];
    let mut of_attention = *tile::<T::Real, WIDTH>(work.attention_gradient, column);
    for (edge, &source) in incoming.clone().zip(work.edges.sources(incoming)) {
        let sums = work.pairs.sums::<WIDTH>(work.pairs.place(source as usize, node, edge), column);
        let logit_gradient = work.logit_gradients[(edge - first_edge) * heads + head];
        let mut gradient = [T::Real::ZERO; WIDTH];
        for lane in 0..WIDTH {
            let slope = work.pairs.slope(sums[lane]);
            gradient[lane] = logit_gradient * attention[lane] * slope;
            of_target[lane] += gradient[lane];
            of_attention[lane] = (sums[lane] * slope).mul_add::<I>(logit_gradient, of_attention[lane]);
        }
        if let Some(edge_gradients) = &mut work.edge_gradients {
            store::<T, WIDTH>(tile_mut(edge_gradients, (edge - first_edge) * row + column), &gradient);
        }
    }
    *tile_mut(work.attention_gradient, column) = of_attention;
    store::<T, WIDTH>(tile_mut(work.target_gradients, (node - work.nodes.start) * row + column), &of_target);
}

/// Gradients of the sources' values, through the weighted sum and through the logits.
pub(super) struct SourceGradients<'a, T: Element> {
    pub(super) nodes: Range<usize>,
    pub(super) edges: Edges<'a>,
    pub(super) pairs: Pairs<'a, T>,
    /// Gradient of the output, `[all targets, heads * channels]`.
    pub(super) gradient: &'a [T],
    /// Weights as applied, `[all edges, heads]`.
    pub(super) weights: &'a [T::Real],
    /// The first edge of `logit_gradients`.
    pub(super) first_edge: usize,
    pub(super) logit_gradients: &'a [T::Real],
    /// `[nodes, heads * channels]`.
    pub(super) source_gradients: &'a mut [T],
}

impl<T: Element> Kernel for SourceGradients<'_, T> {
    #[inline(always)]
    fn run<I: Instructions>(mut self) {
        let shape = self.pairs.shape;
        for node in self.nodes.clone() {
            for head in 0..shape.heads {
                let columns = shape.columns(head);
                for_each_tile!(columns.start, columns.end, |column| source_gradient::<I, T>(
                    node, head, column, &mut self,
                ));
            }
        }
    }
}

#[inline(always)]
fn source_gradient<I: Instructions, T: Element, const WIDTH: usize>(
    node: usize,
    head: usize,
    column: usize,
    work: &mut SourceGradients<'_, T>,
) {
    let (heads, row) = (work.pairs.shape.heads, work.pairs.shape.row());
    let attention = tile::<T::Real, WIDTH>(work.pairs.attention, column);
    let mut gradient = [T::Real::ZERO; WIDTH];
    for &edge in work.edges.outgoing(node) {
        let edge = edge as usize;
        let target = work.edges.targets()[edge] as usize;
        add_scaled::<I, T, WIDTH>(
            &mut gradient,
            work.weights[edge * heads + head],
            tile(work.gradient, target * row + column),
        );
        let sums = work.pairs.sums::<WIDTH>(work.pairs.place(node, target, edge), column);
        let logit_gradient = work.logit_gradients[(edge - work.first_edge) * heads + head];
        for lane in 0..WIDTH {
            let factor = attention[lane] * work.pairs.slope(sums[lane]);
            gradient[lane] = factor.mul_add::<I>(logit_gradient, gradient[lane]);
        }
    }
    store::<T, WIDTH>(tile_mut(work.source_gradients, (node - work.nodes.start) * row + column), &gradient);
}
