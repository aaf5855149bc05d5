//! The backward kernels of one layer in order, over all blocks and threads; see [`super::passes`] for the forward.

use kdgat_torch::parallel::{Parts, parallel_for};
use kdgat_torch::view;
use tch::{Device, TchError, Tensor};

use super::element::{Element, Real};
use super::kernels::{ColumnGradients, Projection, RowGradients};
use super::passes::{Layer, buffer};
use super::softmax::SavedWeights;

/// Operands of a backward.
pub(super) struct Backward<'a, T: Element> {
    pub(super) layer: Layer<'a, T>,
    /// Gradient of the output, `[targets, heads * channels]`.
    pub(super) gradient: &'a [T],
    pub(super) weights: SavedWeights<'a, T::Real>,
    /// Source and target attention vectors that projected the scores; `None` if the scores were given.
    pub(super) attention: Option<[&'a [T::Real]; 2]>,
}

/// Gradients that a backward computes.
pub(super) struct GradientSlices<'a, T: Element> {
    /// `[sources, heads * channels]`.
    pub(super) values: &'a mut [T],
    /// `[sources, heads]`.
    pub(super) source_scores: &'a mut [T::Real],
    /// `[targets, heads]`.
    pub(super) target_scores: &'a mut [T::Real],
    /// Gradients of the source and target attention vectors, `[2, heads * channels]`; zero if the scores were given.
    pub(super) attention: &'a mut [T::Real],
    /// `[heads * channels]`.
    pub(super) bias: &'a mut [T::Real],
}

impl<T: Element> Backward<'_, T> {
    pub(super) fn run(&self, gradients: GradientSlices<'_, T>) -> Result<(), TchError> {
        let Layer { partition, shape, .. } = &self.layer;
        let (blocks, source_blocks, row) = (partition.num_blocks(), partition.num_source_blocks(), shape.row());
        let mut raw = buffer::<T::Real>(self.layer.edges.num_edges() * shape.heads)?;
        let raw = view::write::<T::Real>("gradients of scores", &mut raw)?;
        let mut attention_sums = zeros::<T::Real>(source_blocks * 2 * row)?;
        let attention_sums = view::write::<T::Real>("sums by block", &mut attention_sums)?;
        let mut bias_sums = zeros::<T::Real>(blocks * row)?;
        let bias_sums = view::write::<T::Real>("sums by block", &mut bias_sums)?;
        self.run_kernels(
            raw,
            attention_sums,
            bias_sums,
            &mut [gradients.source_scores, gradients.target_scores],
            gradients.values,
        );
        sum_blocks(attention_sums, gradients.attention);
        sum_blocks(bias_sums, gradients.bias);
        Ok(())
    }

    fn run_kernels(
        &self,
        raw: &mut [T::Real],
        attention_sums: &mut [T::Real],
        bias_sums: &mut [T::Real],
        [source_scores, target_scores]: &mut [&mut [T::Real]; 2],
        values: &mut [T],
    ) {
        let Layer { partition, shape, .. } = &self.layer;
        let (blocks, source_blocks) = (partition.num_blocks(), partition.num_source_blocks());
        let (row, heads) = (shape.row(), shape.heads);
        let bias_parts = Parts::new(bias_sums, (0..=blocks).map(|block| block * row));
        let attention_parts = Parts::new(attention_sums, (0..=source_blocks).map(|block| block * 2 * row));
        let source_parts = Parts::new(source_scores, self.layer.source_bounds(heads));
        let value_parts = Parts::new(values, self.layer.source_bounds(row));
        if partition.closed {
            let raw_parts = Parts::new(raw, self.layer.edge_bounds());
            let target_parts = Parts::new(target_scores, self.layer.node_bounds(heads));
            parallel_for(blocks, partition.grain, |range| {
                for block in range {
                    let (raw, target) = (raw_parts.take(block), target_parts.take(block));
                    self.rows(block, raw, target, bias_parts.take(block));
                    let first_edge = self.layer.edges_of(&partition.nodes(block)).start;
                    let sums = attention_parts.take(block);
                    self.columns(
                        block,
                        first_edge,
                        raw,
                        target,
                        source_parts.take(block),
                        sums,
                        value_parts.take(block),
                    );
                }
            });
            return;
        }
        let raw_parts = Parts::new(raw, self.layer.edge_bounds());
        let target_parts = Parts::new(target_scores, self.layer.node_bounds(heads));
        parallel_for(blocks, partition.grain, |range| {
            for block in range {
                self.rows(block, raw_parts.take(block), target_parts.take(block), bias_parts.take(block));
            }
        });
        drop((raw_parts, target_parts));
        let targets = self.layer.edges.num_targets();
        parallel_for(source_blocks, partition.grain, |range| {
            for block in range {
                let nodes = partition.sources(block);
                let target = &target_scores[nodes.start.min(targets) * heads..nodes.end.min(targets) * heads];
                let sums = attention_parts.take(block);
                self.columns(block, 0, raw, target, source_parts.take(block), sums, value_parts.take(block));
            }
        });
    }

    fn rows(&self, block: usize, raw: &mut [T::Real], target: &mut [T::Real], bias: &mut [T::Real]) {
        T::dispatch(RowGradients {
            nodes: self.layer.partition.nodes(block),
            shape: self.layer.shape,
            edges: self.layer.edges,
            negative_slope: self.layer.negative_slope,
            values: self.layer.values,
            gradient: self.gradient,
            weights: self.weights,
            raw_gradients: raw,
            target_gradients: target,
            bias_gradient: bias,
        });
    }

    #[allow(clippy::too_many_arguments)]
    fn columns(
        &self,
        block: usize,
        first_edge: usize,
        raw: &[T::Real],
        target: &[T::Real],
        source: &mut [T::Real],
        attention_sums: &mut [T::Real],
        values: &mut [T],
    ) {
        let (source_gradient, target_gradient) = attention_sums.split_at_mut(self.layer.shape.row());
        T::dispatch(ColumnGradients {
            nodes: self.layer.partition.sources(block),
            shape: self.layer.shape,
            edges: self.layer.edges,
            values: self.layer.values,
            gradient: self.gradient,
            weights: self.weights,
            first_edge,
            raw_gradients: raw,
            target_gradients: target,
            source_gradients: source,
            projection: self.attention.map(|[attention_source, attention_target]| Projection {
                attention_source,
                attention_target,
                source_gradient,
                target_gradient,
            }),
            value_gradients: values,
        });
    }
}

/// Adds the blocks' rows in order, whatever the number of threads.
pub(super) fn sum_blocks<R: Real>(by_block: &[R], sums: &mut [R]) {
    sums.fill(R::ZERO);
    for row in by_block.chunks_exact(sums.len().max(1)) {
        for (sum, &value) in sums.iter_mut().zip(row) {
            *sum += value;
        }
    }
}

pub(super) fn zeros<T: Element>(length: usize) -> Result<Tensor, TchError> {
    Tensor::f_zeros([length as i64], (T::KIND, Device::Cpu))
}
