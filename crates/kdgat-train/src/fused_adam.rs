//! Fused Adam for the CPU: one pass over values, gradients and state.

use tch::{TchError, Tensor};

use kdgat_torch::parallel::{Parts, parallel_for};
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;

/// Elements of a block. Sums are added block by block, so that they do not depend on the number of threads.
const BLOCK: usize = 4096;
/// Blocks that are worth another thread.
const GRAIN: usize = 16;

/// Coefficients of one update.
#[derive(Debug, Clone, Copy)]
pub(super) struct Update {
    /// Factor of the gradients, from clipping.
    pub(super) clip: f32,
    pub(super) weight_decay: f32,
    /// 1 − β₁ and 1 − β₂: weights of the gradient and of its square in the new moments.
    pub(super) share_first: f32,
    pub(super) share_second: f32,
    pub(super) beta_second: f32,
    /// Learning rate divided by the first moment's bias correction.
    pub(super) step: f32,
    /// Square root of the second moment's bias correction.
    pub(super) correction: f32,
    pub(super) epsilon: f32,
}

/// Computes the Euclidean norm of a flat tensor.
pub(super) fn norm(gradients: &Tensor) -> Result<f64, TchError> {
    let gradients = view::read::<f32>("gradients", gradients)?;
    let blocks = gradients.len().div_ceil(BLOCK);
    let mut sums = vec![0.0_f64; blocks];
    let parts = Parts::new(&mut sums, 0..=blocks);
    parallel_for(blocks, GRAIN, |range| {
        for block in range {
            let end = ((block + 1) * BLOCK).min(gradients.len());
            parts.take(block)[0] = dispatch(Squares(&gradients[block * BLOCK..end]));
        }
    });
    drop(parts);
    Ok(sums.iter().sum::<f64>().sqrt())
}

/// Updates values and state, and zeroes the gradients. All tensors are flat and have the same length.
pub(super) fn update([values, gradients, mean, mean_square]: [&mut Tensor; 4], update: Update) -> Result<(), TchError> {
    let length = values.numel();
    let bounds = || (0..=length.div_ceil(BLOCK)).map(|block| (block * BLOCK).min(length));
    let values = Parts::new(view::write::<f32>("values", values)?, bounds());
    let gradients = Parts::new(view::write::<f32>("gradients", gradients)?, bounds());
    let mean = Parts::new(view::write::<f32>("mean", mean)?, bounds());
    let mean_square = Parts::new(view::write::<f32>("mean_square", mean_square)?, bounds());
    parallel_for(length.div_ceil(BLOCK), GRAIN, |range| {
        for block in range {
            dispatch(Apply {
                update,
                values: values.take(block),
                gradients: gradients.take(block),
                mean: mean.take(block),
                mean_square: mean_square.take(block),
            });
        }
    });
    Ok(())
}

/// Moves a running average towards the values by `share` of the distance. Both are flat and have the same length.
pub(super) fn average(average: &mut Tensor, values: &Tensor, share: f32) -> Result<(), TchError> {
    let length = values.numel();
    let bounds = (0..=length.div_ceil(BLOCK)).map(|block| (block * BLOCK).min(length));
    let values = view::read::<f32>("values", values)?;
    let average = Parts::new(view::write::<f32>("average", average)?, bounds);
    parallel_for(length.div_ceil(BLOCK), GRAIN, |range| {
        for block in range {
            let average = average.take(block);
            let values = &values[block * BLOCK..block * BLOCK + average.len()];
            dispatch(Approach { average, values, share });
        }
    });
    Ok(())
}

struct Squares<'a>(&'a [f32]);

impl Kernel<f64> for Squares<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) -> f64 {
        let mut lanes = [0.0_f64; 16];
        let (chunks, rest) = self.0.as_chunks::<16>();
        for chunk in chunks {
            for (lane, &value) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(value) * f64::from(value);
            }
        }
        lanes.iter().sum::<f64>() + rest.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>()
    }
}

struct Apply<'a> {
    update: Update,
    values: &'a mut [f32],
    gradients: &'a mut [f32],
    mean: &'a mut [f32],
    mean_square: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let Update { clip, weight_decay, share_first, share_second, beta_second, step, correction, epsilon } =
            self.update;
        let state = self.mean.iter_mut().zip(self.mean_square);
        for ((value, gradient), (mean, mean_square)) in self.values.iter_mut().zip(self.gradients).zip(state) {
            let slope = *gradient * clip + weight_decay * *value;
            *mean += share_first * (slope - *mean);
            *mean_square = beta_second * *mean_square + share_second * (slope * slope);
            *value -= step * *mean / (mean_square.sqrt() / correction + epsilon);
            *gradient = 0.0;
        }
    }
}

struct Approach<'a> {
    average: &'a mut [f32],
    values: &'a [f32],
    share: f32,
}

impl Kernel for Approach<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (average, value) in self.average.iter_mut().zip(self.values) {
            *average += self.share * (value - *average);
        }
    }
}
