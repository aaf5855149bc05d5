//! A linear layer with few columns, `x Wᵀ + b`.
//!
//! A block's rows are multiplied while they are in a core's cache; the backward reads them once for the gradients with
//! respect to x, W and b together. A row of the result depends on that row alone, and the order of every sum depends on
//! the shape alone.

use std::ffi::CStr;
use std::ops::Range;

use kdgat_torch::autocast;
use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::product::{Left, Product, Start};
use kdgat_torch::simd::rows::Matrix;
use kdgat_torch::simd::transpose::transposed;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{Device, TchError, Tensor};

use super::{Blocks, by_blocks, empty, expect_elements, like, shape};
use crate::attention::Backend;

/// Maximum number of elements of a weight for which this is faster: a larger one does not stay in a core's cache and is
/// better partitioned as libraries for large matrices do (measured: faster up to 147,456 elements, slower from a
/// million on).
const ELEMENTS: usize = 262_144;

/// Rows multiplied at once: a block's gradients and these rows stay in the core's fastest cache.
pub(super) const ROWS: usize = 64;

/// Minimum number of rows whose gradients with respect to W and b are summed in one share.
const ROWS_OF_A_SHARE: usize = 256;

/// Minimum ratio of a share's rows of x and of the result's gradient to the elements of the share: all shares together
/// take little memory compared to those.
const ROWS_TIMES_SHARE: usize = 4;

/// True if a weight is small enough for [`linear`].
pub fn is_small(weight: &Tensor) -> bool {
    weight.numel() <= ELEMENTS
}

/// True if [`linear`] supports this product: f32 on the CPU, a small weight, and no mixed precision.
pub fn applies(kernel: Backend, x: &Tensor, weight: &Tensor) -> Result<bool, TchError> {
    let suits = x.dim() == 2 && is_small(weight) && super::applies(kernel, &[x, weight]);
    Ok(suits && !autocast::is_in_force(Device::Cpu)?)
}

/// Applies the layer: `[rows, input]` → `[rows, output]`, for a weight `[output, input]` and an optional bias
/// `[output]`.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
    let ([_, inputs], [outputs, of_weight]) = (shape("x", x)?, shape("weight", weight)?);
    if inputs != of_weight {
        return Err(TchError::Shape(format!("x has {inputs} columns, the weight is for {of_weight}")));
    }
    let mut tensors = vec![x.f_contiguous()?, weight.f_contiguous()?];
    if let Some(bias) = bias {
        expect_elements("bias", bias, outputs)?;
        tensors.push(bias.f_contiguous()?);
    }
    let mut results = autograd::apply(LinearLayer, &tensors.iter().collect::<Vec<_>>())?;
    Ok(results.pop().unwrap_or_default())
}

/// x Wᵀ + b of contiguous tensors, without recording.
pub(super) fn applied(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
    let [outputs, columns] = shape("weight", weight)?;
    let bias = bias.map(|bias| view::read::<f32>("bias", bias)).transpose()?;
    let weight = transposed(view::read("weight", weight)?, columns);
    rows_times(x, Matrix::new(&weight, outputs), bias.map_or(Start::Zero, Start::Row))
}

/// The product of the rows of x, `[rows, inner]`, with a matrix `[inner, columns]`: `[rows, columns]`.
pub(super) fn rows_times(x: &Tensor, right: Matrix<f32>, start: Start) -> Result<Tensor, TchError> {
    let [rows, inner] = shape("x", x)?;
    let (x, width) = (view::read::<f32>("x", x)?, right.width());
    let blocks = Blocks::new(rows, inner + width, ROWS);
    by_blocks("result", empty(&[rows as i64, width as i64])?, blocks, width, |block, result| {
        let left = Left::rows(&x[blocks.elements(block, inner)], [blocks.rows(block).len(), inner]);
        Product { left, right, start }.write(result);
    })
}

struct LinearLayer;

impl Function for LinearLayer {
    const NAME: &'static CStr = c"linear layer of few columns";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let result = applied(inputs[0], inputs[1], inputs.get(2).copied())?;
        let saved = if recorded { vec![inputs[0].shallow_clone(), inputs[1].shallow_clone()] } else { Vec::new() };
        Ok(Forward { outputs: vec![result], saved })
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        let (Some(gradient), [x, weight]) = (&gradients[0], &saved[..]) else {
            return Ok(needed.iter().map(|_| None).collect());
        };
        let [rows, columns] = shape("x", x)?;
        let [outputs, _] = shape("weight", weight)?;
        let gradient = gradient.f_contiguous()?;
        expect_elements("gradient of the result", &gradient, rows * outputs)?;
        let blocks = Blocks::new(rows, columns + outputs, rows_of_a_share([columns, outputs]));
        let of_parameters = needed[1..].contains(&true);
        let share = if of_parameters { share_elements([columns, outputs]) } else { 0 };
        let mut of_x = needed[0].then(|| like(x)).transpose()?;
        let mut shares = empty(&[(blocks.count() * share) as i64])?;
        {
            let sides = Sides {
                x: view::read("x", x)?,
                weight: view::read("weight", weight)?,
                gradient: view::read("gradient of the result", &gradient)?,
                columns,
                outputs,
            };
            let of_x = of_x.as_mut().map(|of_x| view::write::<f32>("gradient of x", of_x)).transpose()?;
            let parts_of_x = of_x.map(|of_x| Parts::new(of_x, blocks.bounds(columns)));
            let share_bounds = (0..=blocks.count()).map(|block| block * share);
            let share_parts = Parts::new(view::write::<f32>("shares of the gradient", &mut shares)?, share_bounds);
            blocks.for_each(|block| {
                let of_x = parts_of_x.as_ref().map(|parts| parts.take(block));
                let share = of_parameters.then(|| share_parts.take(block));
                sides.block(blocks.rows(block), of_x, share);
            });
        }
        let mut results = vec![of_x];
        if of_parameters {
            let shares = view::read("shares of the gradient", &shares)?;
            results.extend(sums(shares, [columns, outputs], 1.0)?.map(Some));
        }
        results.resize_with(needed.len(), || None);
        Ok(results)
    }
}

/// Operands of the gradients of a linear layer.
struct Sides<'a> {
    /// `[rows, columns]`
    x: &'a [f32],
    /// `[outputs, columns]`
    weight: &'a [f32],
    /// Gradient of the result, `[rows, outputs]`.
    gradient: &'a [f32],
    columns: usize,
    outputs: usize,
}

impl Sides<'_> {
    /// Gradients with respect to the rows `block`, and a share of those with respect to weight and bias, concatenated.
    fn block(&self, block: Range<usize>, mut of_x: Option<&mut [f32]>, mut share: Option<&mut [f32]>) {
        let Self { columns, outputs, .. } = *self;
        if let Some(share) = &mut share {
            share.fill(0.0);
        }
        for first in block.clone().step_by(ROWS) {
            let rows = first..(first + ROWS).min(block.end);
            let gradient = &self.gradient[rows.start * outputs..rows.end * outputs];
            if let Some(of_x) = &mut of_x {
                let left = Left::rows(gradient, [rows.len(), outputs]);
                let result = &mut of_x[(rows.start - block.start) * columns..(rows.end - block.start) * columns];
                Product { left, right: Matrix::new(self.weight, columns), start: Start::Zero }.write(result);
            }
            if let Some(share) = &mut share {
                let x = &self.x[rows.start * columns..rows.end * columns];
                add_share(x, gradient, [rows.len(), columns, outputs], share);
            }
        }
    }
}

/// Number of rows whose gradients with respect to weight and bias are summed in one share; depends on the layer's shape
/// alone.
pub(super) fn rows_of_a_share([columns, outputs]: [usize; 2]) -> usize {
    let rows = (ROWS_TIMES_SHARE * share_elements([columns, outputs])).div_ceil((columns + outputs).max(1));
    rows.max(ROWS_OF_A_SHARE).next_multiple_of(ROWS)
}

/// Number of elements in a share of the gradients with respect to weight and bias.
pub(super) fn share_elements([columns, outputs]: [usize; 2]) -> usize {
    (columns + 1) * outputs
}

/// Adds the gradients with respect to weight `[outputs, columns]` and bias `[outputs]`, concatenated, to a share: those
/// of up to [`ROWS`] rows of x `[rows, columns]` and of the gradient of the result `[rows, outputs]`.
pub(super) fn add_share(x: &[f32], gradient: &[f32], [rows, columns, outputs]: [usize; 3], share: &mut [f32]) {
    let (of_weight, of_bias) = share.split_at_mut(columns * outputs);
    let left = Left::transposed(gradient, [rows, outputs]);
    Product { left, right: Matrix::new(x, columns), start: Start::Kept }.write(of_weight);
    // A product with ones sums the columns.
    let left = Left::rows(&[1.0; ROWS], [1, rows]);
    Product { left, right: Matrix::new(gradient, outputs), start: Start::Kept }.write(of_bias);
}

/// The gradients with respect to weight and bias: the sums of all shares, times `factor`.
pub(super) fn sums(shares: &[f32], [columns, outputs]: [usize; 2], factor: f32) -> Result<[Tensor; 2], TchError> {
    let (mut of_weight, mut of_bias) = (empty(&[outputs as i64, columns as i64])?, empty(&[outputs as i64])?);
    let mut sums = vec![0.0_f64; share_elements([columns, outputs])];
    dispatch(AddUp { shares, sums: &mut sums });
    let (weight, bias) = sums.split_at(columns * outputs);
    for (to, from) in [(&mut of_weight, weight), (&mut of_bias, bias)] {
        view::write::<f32>("gradient", to)?.iter_mut().zip(from).for_each(|(to, &from)| *to = from as f32 * factor);
    }
    Ok([of_weight, of_bias])
}

/// Sums all shares, each of as many elements as `sums`.
struct AddUp<'a> {
    shares: &'a [f32],
    sums: &'a mut [f64],
}

impl Kernel for AddUp<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for share in self.shares.chunks_exact(self.sums.len().max(1)) {
            for (sum, &value) in self.sums.iter_mut().zip(share) {
                *sum += f64::from(value);
            }
        }
    }
}
