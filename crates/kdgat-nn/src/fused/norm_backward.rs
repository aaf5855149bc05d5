//! Backward of batch normalisation with ReLU and dropout: two sums per column, then the gradient with respect to x.

use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::norm::pairs_by_block;
use super::{Blocks, Gate, by_blocks, empty, math, over_rows};

/// Operands of the backward, `[rows, columns]` each.
pub(super) struct Backward<'a, G> {
    pub(super) x: &'a [f32],
    pub(super) gates: &'a [G],
    pub(super) gradient: &'a [f32],
    pub(super) mean: &'a [f32],
    /// Dropout's factor of elements that are not dropped.
    pub(super) scale: f32,
    pub(super) blocks: Blocks,
}

/// The sums of [`Backward::sums`] over the rows of the whole batch, and their number.
#[derive(Clone, Copy)]
pub(super) struct BatchSums<'a> {
    pub(super) sums: &'a [f64],
    pub(super) products: &'a [f64],
    pub(super) count: f64,
}

impl<G: Gate + Sync> Backward<'_, G> {
    /// Per column, with g the gradient before ReLU and dropout: Σ g, and Σ g·(x − mean).
    pub(super) fn sums(&self) -> Result<[Vec<f64>; 2], TchError> {
        let (blocks, columns) = (&self.blocks, self.blocks.columns);
        let by_block = pairs_by_block(blocks, |block, sums, products| {
            let elements = blocks.elements(block, columns);
            dispatch(ColumnSums {
                x: &self.x[elements.clone()],
                gates: &self.gates[elements.clone()],
                gradient: &self.gradient[elements],
                mean: self.mean,
                scale: self.scale,
                sums,
                products,
            });
        })?;
        let by_block = view::read::<f32>("sums by block", &by_block)?;
        let (mut sums, mut products) = (vec![0.0; columns], vec![0.0; columns]);
        for of_block in by_block.chunks_exact((2 * columns).max(1)) {
            let (left, right) = of_block.split_at(columns);
            sums.iter_mut().zip(left).for_each(|(sum, &value)| *sum += f64::from(value));
            products.iter_mut().zip(right).for_each(|(sum, &value)| *sum += f64::from(value));
        }
        Ok([sums, products])
    }

    /// The gradient with respect to x: `weight · inverse · (g − mean of g − (x − mean) · inverse² · mean of g·(x −
    /// mean))`. The two means apply only if the statistics were the batch's.
    pub(super) fn of_x(&self, weight: &[f32], inverse: &[f32], sums: Option<BatchSums>) -> Result<Tensor, TchError> {
        let (blocks, columns) = (&self.blocks, self.blocks.columns);
        let factor: Vec<f32> = weight.iter().zip(inverse).map(|(weight, inverse)| weight * inverse).collect();
        let (mut constant, mut slope) = (vec![0.0; columns], vec![0.0; columns]);
        if let Some(BatchSums { sums, products, count }) = sums {
            for column in 0..columns {
                let inverse = f64::from(inverse[column]);
                constant[column] = (sums[column] / count) as f32;
                slope[column] = (products[column] / count * inverse * inverse) as f32;
            }
        }
        let [mean, factor, constant, slope] = [self.mean, &factor, &constant, &slope].map(over_rows);
        let result = empty(&[blocks.rows as i64, columns as i64])?;
        by_blocks("gradient of x", result, *blocks, columns, |block, result| {
            let elements = blocks.elements(block, columns);
            dispatch(GradientOfX {
                x: &self.x[elements.clone()],
                gates: &self.gates[elements.clone()],
                gradient: &self.gradient[elements],
                mean: &mean,
                factor: &factor,
                constant: &constant,
                slope: &slope,
                scale: self.scale,
                result,
            });
        })
    }
}

struct ColumnSums<'a, G> {
    x: &'a [f32],
    gates: &'a [G],
    gradient: &'a [f32],
    mean: &'a [f32],
    scale: f32,
    sums: &'a mut [f32],
    products: &'a mut [f32],
}

impl<G: Gate> Kernel for ColumnSums<'_, G> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.sums.len();
        self.sums.fill(0.0);
        self.products.fill(0.0);
        if columns == 0 {
            return;
        }
        let rows = self.x.chunks_exact(columns).zip(self.gates.chunks_exact(columns));
        for ((x, gates), gradient) in rows.zip(self.gradient.chunks_exact(columns)) {
            let (mean, sums, products) =
                (&self.mean[..columns], &mut self.sums[..columns], &mut self.products[..columns]);
            let gates = &gates[..columns];
            for column in 0..columns {
                let gradient = if gates[column].is_open() { gradient[column] * self.scale } else { 0.0 };
                sums[column] += gradient;
                products[column] = math::fused::<I>(gradient, x[column] - mean[column], products[column]);
            }
        }
    }
}

struct GradientOfX<'a, G> {
    x: &'a [f32],
    gates: &'a [G],
    gradient: &'a [f32],
    /// One number per column, repeated by [`over_rows`]; also the next three fields.
    mean: &'a [f32],
    factor: &'a [f32],
    constant: &'a [f32],
    slope: &'a [f32],
    scale: f32,
    result: &'a mut [f32],
}

impl<G: Gate> Kernel for GradientOfX<'_, G> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let rows = self.factor.len();
        if rows == 0 {
            return;
        }
        let parts = self.x.chunks(rows).zip(self.gates.chunks(rows));
        let parts = parts.zip(self.gradient.chunks(rows)).zip(self.result.chunks_mut(rows));
        for (((x, gates), gradient), result) in parts {
            let length = result.len();
            let (x, gates, gradient) = (&x[..length], &gates[..length], &gradient[..length]);
            let (mean, factor) = (&self.mean[..length], &self.factor[..length]);
            let (constant, slope) = (&self.constant[..length], &self.slope[..length]);
            for at in 0..length {
                let gradient = if gates[at].is_open() { gradient[at] * self.scale } else { 0.0 };
                let centred = gradient - constant[at];
                let rest = math::fused::<I>(mean[at] - x[at], slope[at], centred);
                result[at] = factor[at] * rest;
            }
        }
    }
}
