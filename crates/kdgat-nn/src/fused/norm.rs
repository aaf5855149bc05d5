//! Batch normalisation (Ioffe & Szegedy 2015), ReLU and dropout.
//!
//! With x̂ = (x − mean) / √(variance + ε) by column, `y = dropout(relu(weight · x̂ + bias))`. The forward reads x twice
//! (statistics, then y) and writes y; the backward reads x, y and the gradient twice (two sums per column, then the
//! gradient with respect to x). Neither x̂ nor a mask is stored. A recomputation for the backward stores one byte per
//! element instead of y.

use std::ffi::CStr;
use std::sync::Arc;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use crate::shared_statistics::{self, Sums};

use super::activation::relu;
use super::dropout::{Dropout, GROUP};
use super::norm_backward::{Backward, BatchSums};
use super::{
    Blocks, Gate, Pass, by_blocks, bytes_like, empty, expect_elements, like, math, note_gates, over_rows,
    rows_of_whole_groups, shape, without_values,
};

/// Added to the variance; PyTorch's default.
pub const EPSILON: f64 = 1e-5;
/// Share of a batch's statistics in the new running statistics; PyTorch's default.
pub const MOMENTUM: f64 = 0.1;

/// Source of mean and variance. Those of a batch are over the rows of all processes that compute parts of it
/// ([`shared_statistics`]).
pub enum Moments<'a> {
    /// The batch, which also updates the running mean and variance if given.
    OfBatch {
        /// Running mean and variance to update, `[columns]` each.
        running: Option<[&'a Tensor; 2]>,
    },
    /// The running mean and variance, `[columns]` each.
    Running([&'a Tensor; 2]),
}

/// Applies normalisation, ReLU and dropout: `[rows, columns]` → the same shape.
pub fn norm_relu_dropout(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    moments: Moments,
    dropout: Option<Dropout>,
    pass: Pass,
) -> Result<Tensor, TchError> {
    let [_, columns] = shape("x", x)?;
    let (running, of_batch) = match moments {
        Moments::OfBatch { running } => (running, true),
        Moments::Running(running) => (Some(running), false),
    };
    let names = ["the running mean", "the running variance"];
    let running_tensors = names.into_iter().zip(running.into_iter().flatten());
    for (name, tensor) in [("weight", weight), ("bias", bias)].into_iter().chain(running_tensors) {
        expect_elements(name, tensor, columns)?;
    }
    let running = running.map(|running| running.map(Tensor::shallow_clone));
    let dropout = dropout.map(|dropout| dropout.of_width(columns));
    let sums = shared_statistics::current().filter(|_| of_batch);
    let function = NormReluDropout { running, of_batch, sums, count: 0.0, dropout, pass };
    autograd::apply_one(function, &[&x.f_contiguous()?, weight, bias])
}

struct NormReluDropout {
    /// Running mean and variance.
    running: Option<[Tensor; 2]>,
    of_batch: bool,
    /// Adds statistics up over the processes that compute parts of the batch.
    sums: Option<Arc<dyn Sums>>,
    /// Rows of the batch, in all processes.
    count: f64,
    dropout: Option<Dropout>,
    pass: Pass,
}

impl Function for NormReluDropout {
    const NAME: &'static CStr = c"fused batch norm, ReLU and dropout";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let [rows, columns] = shape("x", inputs[0])?;
        let x = view::read::<f32>("x", inputs[0])?;
        let blocks = Blocks::new(rows, columns, rows_of_whole_groups(columns, GROUP));
        let [mean, variance] = match &self.running {
            Some([mean, variance]) if !self.of_batch || (rows == 0 && self.sums.is_none()) => {
                [widened(mean)?, widened(variance)?]
            }
            None if rows == 0 && self.sums.is_none() => [vec![0.0; columns], vec![1.0; columns]],
            _ => self.batch_statistics(x, &blocks)?,
        };
        let deviation = variance.iter().map(|variance| 1.0 / (variance + EPSILON).sqrt());
        let inverse: Vec<f32> = deviation.map(|inverse| inverse as f32).collect();
        let weight = view::read::<f32>("weight", inputs[1])?;
        let bias = view::read::<f32>("bias", inputs[2])?;
        let scale: Vec<f32> = weight.iter().zip(&inverse).map(|(weight, inverse)| weight * inverse).collect();
        let shift = bias.iter().zip(&mean).zip(&scale);
        let shift: Vec<f32> =
            shift.map(|((&bias, mean), &scale)| (f64::from(bias) - mean * f64::from(scale)) as f32).collect();

        let (row_group, scale, shift) = (rows_of_whole_groups(columns, GROUP), over_rows(&scale), over_rows(&shift));
        let apply = |block: usize, output: &mut [f32]| {
            let elements = blocks.elements(block, columns);
            let first = elements.start;
            let (scale, shift) = (&scale[..], &shift[..]);
            let mask_group = row_group * columns;
            dispatch(Apply { x: &x[elements], scale, shift, dropout: self.dropout, first, mask_group, output });
        };
        let (output, gates) = match self.pass {
            Pass::Forward => {
                let output = by_blocks("output", like(inputs[0])?, blocks, columns, apply)?;
                let gates = output.shallow_clone();
                (output, gates)
            }
            Pass::Again => {
                let gates = by_blocks("gates", bytes_like(inputs[0])?, blocks, columns, |block, gates| {
                    let mut output = vec![0.0; gates.len()];
                    apply(block, &mut output);
                    note_gates(&output, gates);
                })?;
                (without_values(&inputs[0].size())?, gates)
            }
        };
        let saved = match recorded {
            true => {
                let mut statistics = empty(&[2, columns as i64])?;
                let (means, inverses) = view::write::<f32>("statistics", &mut statistics)?.split_at_mut(columns);
                means.iter_mut().zip(&mean).for_each(|(saved, &mean)| *saved = mean as f32);
                inverses.copy_from_slice(&inverse);
                vec![inputs[0].shallow_clone(), gates, inputs[1].shallow_clone(), statistics]
            }
            false => Vec::new(),
        };
        Ok(Forward { outputs: vec![output], saved })
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        match (&gradients[0], self.pass) {
            (None, _) => Ok(vec![None, None, None]),
            (Some(gradient), Pass::Forward) => self.gradients::<f32>(&saved, gradient, needed),
            (Some(gradient), Pass::Again) => self.gradients::<u8>(&saved, gradient, needed),
        }
    }
}

impl NormReluDropout {
    /// Gradients with respect to x, weight and bias.
    fn gradients<G: Gate + Sync>(
        &self,
        saved: &[Tensor],
        gradient: &Tensor,
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let gradient = gradient.f_contiguous()?;
        let [rows, columns] = shape("x", &saved[0])?;
        let (statistics, blocks) = (view::read::<f32>("statistics", &saved[3])?, Blocks::new(rows, columns, 1));
        let (mean, inverse) = statistics.split_at(columns);
        let backward = Backward {
            x: view::read("x", &saved[0])?,
            gates: view::read::<G>("gates", &saved[1])?,
            gradient: view::read("gradient", &gradient)?,
            mean,
            scale: self.dropout.map_or(1.0, Dropout::scale),
            blocks,
        };
        let [sums, products] = backward.sums()?;
        let weight = view::read::<f32>("weight", &saved[2])?;
        let of_all = match &self.sums {
            Some(of_processes) => {
                let mut both = [sums.as_slice(), &products].concat();
                of_processes.add_up(&mut both)?;
                let products = both.split_off(columns);
                Some([both, products])
            }
            None => None,
        };
        let [of_batch_sums, of_batch_products] = match &of_all {
            Some([sums, products]) => [sums, products],
            None => [&sums, &products],
        };
        let of_batch =
            self.of_batch.then_some(BatchSums { sums: of_batch_sums, products: of_batch_products, count: self.count });
        let x = needed[0].then(|| backward.of_x(weight, inverse, of_batch));
        let mut of_weight = empty(&[columns as i64])?;
        for ((target, product), &inverse) in
            view::write::<f32>("gradient of the weight", &mut of_weight)?.iter_mut().zip(&products).zip(inverse)
        {
            *target = (product * f64::from(inverse)) as f32;
        }
        let of_bias: Vec<f32> = sums.iter().map(|&sum| sum as f32).collect();
        Ok(vec![x.transpose()?, Some(of_weight), Some(Tensor::f_from_slice(&of_bias)?)])
    }

    /// Mean and biased variance of each column; updates the running statistics.
    fn batch_statistics(&mut self, x: &[f32], blocks: &Blocks) -> Result<[Vec<f64>; 2], TchError> {
        let (columns, count) = (blocks.columns, blocks.rows as f64);
        let by_block = pairs_by_block(blocks, |block, mean, squares| {
            dispatch(ColumnStatistics { x: &x[blocks.elements(block, columns)], mean, squares });
        })?;
        let by_block = view::read::<f32>("statistics by block", &by_block)?;
        let (mut mean, mut variance) = (vec![0.0; columns], vec![0.0; columns]);
        let rows_of = |block: usize| blocks.rows(block).len() as f64;
        for (block, statistics) in by_block.chunks_exact((2 * columns).max(1)).enumerate() {
            for (mean, &of_block) in mean.iter_mut().zip(statistics) {
                *mean += f64::from(of_block) * (rows_of(block) / count);
            }
        }
        // Chan, Golub & LeVeque 1983: squares about each block's mean, and that mean's distance from the overall mean.
        for (block, statistics) in by_block.chunks_exact((2 * columns).max(1)).enumerate() {
            let (means, squares) = statistics.split_at(columns);
            for column in 0..columns {
                let distance = f64::from(means[column]) - mean[column];
                variance[column] += f64::from(squares[column]) + rows_of(block) * distance * distance;
            }
        }
        let count = match &self.sums {
            Some(sums) => add_up(sums, count, &mut mean, &mut variance)?,
            None => count,
        };
        self.count = count;
        // A single row has no variance; the running statistics then do not change.
        if let Some([running_mean, running_variance]) = self.running.as_mut().filter(|_| count > 1.0) {
            let unbiased = 1.0 / (count - 1.0);
            move_towards(running_mean, mean.iter().copied())?;
            move_towards(running_variance, variance.iter().map(|squares| squares * unbiased))?;
        }
        variance.iter_mut().for_each(|squares| *squares /= count);
        Ok([mean, variance])
    }
}

/// Replaces mean and sum of squared distances from it, by column, by those of the rows of all processes. Returns their number.
fn add_up(sums: &Arc<dyn Sums>, count: f64, mean: &mut [f64], squares: &mut [f64]) -> Result<f64, TchError> {
    let columns = mean.len();
    let mut numbers = vec![count];
    numbers.extend(mean.iter().map(|mean| count * mean));
    numbers.extend(mean.iter().zip(&*squares).map(|(mean, squares)| squares + count * mean * mean));
    sums.add_up(&mut numbers)?;
    let count = numbers[0];
    for column in 0..columns {
        mean[column] = numbers[1 + column] / count.max(1.0);
        squares[column] = (numbers[1 + columns + column] - count * mean[column] * mean[column]).max(0.0);
    }
    Ok(count)
}

/// A tensor `[blocks, 2, columns]`: two numbers per column of each block, computed by `write`.
pub(super) fn pairs_by_block(
    blocks: &Blocks,
    write: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) -> Result<Tensor, TchError> {
    let columns = blocks.columns;
    let mut pairs = empty(&[blocks.count() as i64, 2, columns as i64])?;
    let bounds = (0..=blocks.count()).map(|block| block * 2 * columns);
    let parts = Parts::new(view::write::<f32>("sums by block", &mut pairs)?, bounds);
    blocks.for_each(|block| {
        let (left, right) = parts.take(block).split_at_mut(columns);
        write(block, left, right);
    });
    drop(parts);
    Ok(pairs)
}

fn widened(tensor: &Tensor) -> Result<Vec<f64>, TchError> {
    Ok(view::read::<f32>("running statistics", tensor)?.iter().map(|&value| f64::from(value)).collect())
}

fn move_towards(running: &mut Tensor, batch: impl Iterator<Item = f64>) -> Result<(), TchError> {
    for (running, value) in view::write::<f32>("running statistics", running)?.iter_mut().zip(batch) {
        *running = ((1.0 - MOMENTUM) * f64::from(*running) + MOMENTUM * value) as f32;
    }
    Ok(())
}

/// Mean of each column, and sum of the squared distances from it.
struct ColumnStatistics<'a> {
    x: &'a [f32],
    mean: &'a mut [f32],
    squares: &'a mut [f32],
}

impl Kernel for ColumnStatistics<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.mean.len();
        if columns == 0 {
            return;
        }
        self.mean.fill(0.0);
        self.squares.fill(0.0);
        for rows in self.x.chunks(4 * columns) {
            add_rows(rows, self.mean, |_, value| value);
        }
        let share = 1.0 / (self.x.len() / columns) as f32;
        self.mean.iter_mut().for_each(|mean| *mean *= share);
        for rows in self.x.chunks(4 * columns) {
            let mean = &*self.mean;
            add_rows(rows, self.squares, |column, value| {
                let distance = value - mean[column];
                distance * distance
            });
        }
    }
}

/// Adds `term` of up to four rows to the sums per column: four at a time, so that the sums are stored less often.
#[inline(always)]
fn add_rows(rows: &[f32], sums: &mut [f32], term: impl Fn(usize, f32) -> f32) {
    let columns = sums.len();
    if rows.len() == 4 * columns {
        let (first, rest) = rows.split_at(columns);
        let (second, rest) = rest.split_at(columns);
        let (third, fourth) = rest.split_at(columns);
        let fourth = &fourth[..columns];
        for column in 0..columns {
            let left = term(column, first[column]) + term(column, second[column]);
            let right = term(column, third[column]) + term(column, fourth[column]);
            sums[column] += left + right;
        }
        return;
    }
    for row in rows.chunks_exact(columns) {
        for column in 0..columns {
            sums[column] += term(column, row[column]);
        }
    }
}

struct Apply<'a> {
    x: &'a [f32],
    /// One number per column, repeated by [`over_rows`].
    scale: &'a [f32],
    shift: &'a [f32],
    dropout: Option<Dropout>,
    /// Position of the first element in the whole tensor.
    first: usize,
    /// Number of elements in the rows that make up a whole number of mask groups.
    mask_group: usize,
    output: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let rows = self.scale.len();
        if rows == 0 {
            return;
        }
        // A few rows at a time: their mask is drawn into the output and multiplied while it is in the nearest cache.
        let step = self.mask_group * (2048 / self.mask_group).max(1);
        let mut first = self.first;
        for (output, x) in self.output.chunks_mut(step).zip(self.x.chunks(step)) {
            if let Some(dropout) = self.dropout {
                dropout.factors::<I>(first, output);
            }
            for (output, x) in output.chunks_mut(rows).zip(x.chunks(rows)) {
                let length = output.len();
                let (x, scale, shift) = (&x[..length], &self.scale[..length], &self.shift[..length]);
                match self.dropout {
                    Some(_) => {
                        for at in 0..length {
                            output[at] *= relu(math::fused::<I>(x[at], scale[at], shift[at]));
                        }
                    }
                    None => {
                        for at in 0..length {
                            output[at] = relu(math::fused::<I>(x[at], scale[at], shift[at]));
                        }
                    }
                }
            }
            first += step;
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::shared_statistics::tests::expect_same_as_whole;

    #[test]
    fn norms_of_parts_are_those_of_the_whole() {
        for (columns, at) in [(7, 20), (16, 1), (32, 33)] {
            for pass in [Pass::Forward, Pass::Again] {
                let results = |x: &Tensor, gradient: &Tensor| {
                    let leaf = |tensor: Tensor| tensor.set_requires_grad(true);
                    let ones = Tensor::ones([columns], (Kind::Float, Device::Cpu));
                    let (x, weight, bias) = (leaf(x.copy()), leaf(&ones * 1.3), leaf(&ones * 0.2));
                    let [mean, variance] = [ones.zeros_like(), ones.copy()];
                    // The mask of the whole: the second part has the rows from `at` on.
                    let is_second = shared_statistics::current().is_some() && x.size()[0] == 50 - at;
                    let before = if is_second { at as u64 } else { 0 };
                    let mask = Dropout::new(0.3, 5).map(|mask| mask.after_rows(before));
                    let moments = Moments::OfBatch { running: Some([&mean, &variance]) };
                    let output = norm_relu_dropout(&x, &weight, &bias, moments, mask, pass).unwrap();
                    autograd::backward_from(&[&output], &[Some(gradient)], false).unwrap();
                    let output = if pass == Pass::Forward { output.detach() } else { x.zeros_like() };
                    vec![output, x.grad(), weight.grad(), bias.grad(), mean, variance]
                };
                expect_same_as_whole(results, columns, at);
            }
        }
    }
}
