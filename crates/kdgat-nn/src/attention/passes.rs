//! The forward kernels of one layer in order, over all blocks and threads.
//!
//! If no edge leaves its block (batches of small graphs), a block goes through all kernels while it is in a core's
//! cache; otherwise each kernel finishes on all blocks before the next begins. The results are the same.

use std::ops::Range;

use kdgat_torch::parallel::{Parts, parallel_for};
use kdgat_torch::view;
use tch::{Device, TchError, Tensor};

use super::dropout::AttentionDropout;
use super::element::{Element, Real};
use super::gatv2::Pairs;
use super::kernels::{Attend, Logits, ProjectScores, Shape};
use super::layout::{Edges, Partition};

/// Data shared by a layer's passes.
pub(super) struct Layer<'a, T: Element> {
    pub(super) edges: Edges<'a>,
    pub(super) partition: Partition,
    pub(super) shape: Shape,
    pub(super) negative_slope: T::Real,
    pub(super) dropout: Option<AttentionDropout>,
    pub(super) values: &'a [T],
}

/// Source of the scores.
#[derive(Clone, Copy)]
pub(super) enum Scores<'a, T: Element> {
    /// Given scores, `[sources, heads]` and `[targets, heads]`.
    Given { source: &'a [T::Real], target: &'a [T::Real] },
    /// Scalar products of the values with these vectors, `[heads * channels]` each.
    Projected { attention_source: &'a [T::Real], attention_target: &'a [T::Real] },
    /// Computed from source and target together, for each edge (GATv2).
    Pairs(Pairs<'a, T>),
}

/// Buffers that a forward fills.
pub(super) struct ForwardOutputs<'a, T: Element> {
    pub(super) output: &'a mut [T],
    /// Weights with the sign of their score, for the backward, `[edges, heads]`.
    pub(super) signed: Option<&'a mut [T::Real]>,
    /// Weights as applied, `[edges, heads]`.
    pub(super) weights: Option<&'a mut [T::Real]>,
}

impl<T: Element> Layer<'_, T> {
    pub(super) fn edges_of(&self, nodes: &Range<usize>) -> Range<usize> {
        self.edges.incoming_of(nodes)
    }

    /// Bounds of the blocks in an array of `width` elements per target.
    pub(super) fn node_bounds(&self, width: usize) -> impl Iterator<Item = usize> + '_ {
        self.partition.bounds.iter().map(move |&bound| bound * width)
    }

    /// Bounds of the blocks of sources in an array of `width` elements per source.
    pub(super) fn source_bounds(&self, width: usize) -> impl Iterator<Item = usize> + '_ {
        self.partition.source_bounds.iter().map(move |&bound| bound * width)
    }

    /// Bounds of the blocks in an array `[edges, heads]`.
    pub(super) fn edge_bounds(&self) -> impl Iterator<Item = usize> + '_ {
        self.partition.bounds.iter().map(|&bound| self.edges_of(&(0..bound)).end * self.shape.heads)
    }

    pub(super) fn forward(
        &self,
        scores: Scores<'_, T>,
        bias: Option<&[T::Real]>,
        outputs: ForwardOutputs<'_, T>,
    ) -> Result<(), TchError> {
        match scores {
            Scores::Projected { attention_source, attention_target } if !self.partition.closed => {
                let (heads, targets) = (self.shape.heads, self.edges.num_targets());
                let mut source = buffer::<T::Real>(self.edges.num_sources() * heads)?;
                let mut target = buffer::<T::Real>(targets * heads)?;
                let (source, target) = (view::write("scores", &mut source)?, view::write("scores", &mut target)?);
                let source_parts = Parts::new(source, self.source_bounds(heads));
                let target_parts =
                    Parts::new(target, self.source_bounds(heads).map(|bound| bound.min(targets * heads)));
                parallel_for(self.partition.num_source_blocks(), self.partition.grain, |blocks| {
                    for block in blocks {
                        self.project(
                            block,
                            attention_source,
                            attention_target,
                            source_parts.take(block),
                            target_parts.take(block),
                        );
                    }
                });
                drop((source_parts, target_parts));
                self.attend(Scores::Given { source, target }, bias, outputs);
            }
            _ => self.attend(scores, bias, outputs),
        }
        Ok(())
    }

    fn project(
        &self,
        block: usize,
        attention_source: &[T::Real],
        attention_target: &[T::Real],
        source_scores: &mut [T::Real],
        target_scores: &mut [T::Real],
    ) {
        let nodes = self.partition.sources(block);
        let (shape, values) = (self.shape, self.values);
        T::dispatch(ProjectScores {
            nodes,
            shape,
            values,
            attention_source,
            attention_target,
            source_scores,
            target_scores,
        });
    }

    /// The forward of each block; projects the scores here only if blocks are closed.
    fn attend(&self, scores: Scores<'_, T>, bias: Option<&[T::Real]>, outputs: ForwardOutputs<'_, T>) {
        let heads = self.shape.heads;
        let output = Parts::new(outputs.output, self.node_bounds(self.shape.row()));
        let signed = outputs.signed.map(|signed| Parts::new(signed, self.edge_bounds()));
        let kept_weights = outputs.weights.map(|weights| Parts::new(weights, self.edge_bounds()));
        parallel_for(self.partition.num_blocks(), self.partition.grain, |blocks| {
            let [mut raw, mut weights, mut source, mut target] = [const { Vec::new() }; 4];
            for block in blocks {
                let nodes = self.partition.nodes(block);
                let length = self.edges_of(&nodes).len() * heads;
                raw.resize(length.max(raw.len()), T::Real::ZERO);
                let weights = match &kept_weights {
                    Some(parts) => parts.take(block),
                    None => {
                        weights.resize(length.max(weights.len()), T::Real::ZERO);
                        &mut weights[..length]
                    }
                };
                let logits = match scores {
                    Scores::Given { source, target } => Logits::Scores { first_node: 0, source, target },
                    Scores::Pairs(pairs) => Logits::Pairs(pairs),
                    Scores::Projected { attention_source, attention_target } => {
                        source.resize(nodes.len() * heads, T::Real::ZERO);
                        target.resize(nodes.len() * heads, T::Real::ZERO);
                        self.project(block, attention_source, attention_target, &mut source, &mut target);
                        Logits::Scores { first_node: nodes.start, source: &source, target: &target }
                    }
                };
                T::dispatch(Attend {
                    nodes,
                    shape: self.shape,
                    edges: self.edges,
                    negative_slope: self.negative_slope,
                    dropout: self.dropout,
                    values: self.values,
                    bias,
                    logits,
                    raw: &mut raw[..length],
                    weights,
                    signed: signed.as_ref().map(|parts| parts.take(block)),
                    output: output.take(block),
                });
            }
        });
    }
}

/// An uninitialised buffer from torch's allocator, so that it is counted and its memory reused.
pub(super) fn buffer<T: Element>(length: usize) -> Result<Tensor, TchError> {
    Tensor::f_empty([length as i64], (T::KIND, Device::Cpu))
}
