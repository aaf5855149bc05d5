//! A small linear layer that is applied to a block of rows, compared with given rows, and multiplied back, all while
//! the block is in the core's cache.

use kdgat_torch::parallel::join_loop;
use kdgat_torch::simd::product::{Left, Product, Start};
use kdgat_torch::simd::rows::Matrix;
use kdgat_torch::simd::transpose::transposed;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};

use super::linear::{self, ROWS};

/// The layer, and the factor of its gradients with respect to the rows.
pub(super) struct Projection<'a> {
    inputs: usize,
    outputs: usize,
    /// `[inputs, outputs]`
    transposed: Vec<f32>,
    /// `[outputs]`
    bias: &'a [f32],
    /// The weight times the factor, `[outputs, inputs]`.
    back: Vec<f32>,
}

impl<'a> Projection<'a> {
    /// Wraps a weight `[outputs, inputs]` and a bias `[outputs]`.
    pub(super) fn new(weight: &[f32], bias: &'a [f32], inputs: usize, factor: f32) -> Self {
        let back = weight.iter().map(|value| value * factor).collect();
        Self { inputs, outputs: bias.len(), transposed: transposed(weight, inputs), bias, back }
    }

    /// The squared distance of a block's projected rows, `[targets, inputs]`, from their targets, slices of `outputs`
    /// values each. Writes half its gradients if `gradients` is given: with respect to the rows, times the factor, and
    /// with respect to weight and bias in the layout of [`linear::add_share`].
    pub(super) fn distance(
        &self,
        rows: &[f32],
        targets: &[&[f32]],
        mut gradients: Option<(&mut [f32], &mut [f32])>,
    ) -> f64 {
        let Self { inputs, outputs, .. } = *self;
        let mut room = vec![0.0; ROWS.min(targets.len()) * outputs];
        let mut sum = 0.0;
        for (chunk, targets) in targets.chunks(ROWS).enumerate() {
            let (first, count) = (chunk * ROWS, targets.len());
            let elements = first * inputs..(first + count) * inputs;
            let rows = &rows[elements.clone()];
            let differences = &mut room[..count * outputs];
            let left = Left::rows(rows, [count, inputs]);
            let (right, start) = (Matrix::new(&self.transposed, outputs), Start::Less(self.bias, targets));
            Product { left, right, start }.write(differences);
            sum += dispatch(SumOfSquares(differences));
            // Joins pending loops, so that a thread that runs this between loops does not delay the next loop by a
            // whole block.
            join_loop();
            if let Some((of_rows, share)) = &mut gradients {
                let left = Left::rows(differences, [count, outputs]);
                let right = Matrix::new(&self.back, inputs);
                Product { left, right, start: Start::Zero }.write(&mut of_rows[elements]);
                join_loop();
                linear::add_share(rows, differences, [count, inputs, outputs], share);
            }
            join_loop();
        }
        sum
    }
}

/// Sums the squares of the values.
pub(super) struct SumOfSquares<'a>(pub(super) &'a [f32]);

impl Kernel<f64> for SumOfSquares<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) -> f64 {
        // In chunks, so that no f32 sum has many terms.
        self.0.chunks(512).map(|values| f64::from(I::dot(values, values))).sum()
    }
}
