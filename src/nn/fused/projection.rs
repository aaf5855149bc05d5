//! A small linear layer applied to a block of rows, compared with given rows, and multiplied back, all while the block
//! lies in the core's cache.

use super::linear::{self, ROWS};
use crate::torch::simd::product::{Left, Product, Start};
use crate::torch::simd::rows::Matrix;
use crate::torch::simd::transpose::transposed;
use crate::torch::simd::{Instructions, Kernel, dispatch};

/// The layer, and what its gradients by the rows are to be multiplied by.
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
    /// A weight `[outputs, inputs]` and a bias `[outputs]`.
    pub(super) fn new(weight: &[f32], bias: &'a [f32], inputs: usize, factor: f32) -> Self {
        let back = weight.iter().map(|value| value * factor).collect();
        Self { inputs, outputs: bias.len(), transposed: transposed(weight, inputs), bias, back }
    }

    /// The squared distance of a block's projected rows, `[targets, inputs]`, from their targets, a row of `outputs` each
    /// wherever it lies. Where there is room for them, half its gradients: by the rows, times the factor, and by weight
    /// and bias, as [`linear::add_share`] leaves them.
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
            let elements = chunk * ROWS * inputs..(chunk * ROWS + targets.len()) * inputs;
            let rows = &rows[elements.clone()];
            let differences = &mut room[..targets.len() * outputs];
            let left = Left::rows(rows, [targets.len(), inputs]);
            let (right, start) = (Matrix::new(&self.transposed, outputs), Start::Row(self.bias));
            Product { left, right, start }.write(differences);
            sum += dispatch(Subtract { targets, columns: outputs, values: differences });
            if let Some((of_rows, share)) = &mut gradients {
                let left = Left::rows(differences, [targets.len(), outputs]);
                let right = Matrix::new(&self.back, inputs);
                Product { left, right, start: Start::Zero }.write(&mut of_rows[elements]);
                linear::add_share(rows, differences, [targets.len(), inputs, outputs], share);
            }
        }
        sum
    }
}

/// Takes rows off the rows of `values`; the sum of the squares of what is left.
struct Subtract<'a> {
    /// Of `columns` each.
    targets: &'a [&'a [f32]],
    columns: usize,
    values: &'a mut [f32],
}

impl Kernel for Subtract<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<I: Instructions>(self) -> f64 {
        let mut sum = 0.0;
        for (&target, values) in self.targets.iter().zip(self.values.chunks_exact_mut(self.columns.max(1))) {
            for (value, target) in values.iter_mut().zip(target) {
                *value -= target;
            }
            sum += f64::from(I::dot(values, values));
        }
        sum
    }
}
