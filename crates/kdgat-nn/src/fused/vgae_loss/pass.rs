//! The pass over the nodes: sums of the loss's terms, and gradients.
//!
//! `Σ softplus(x) = Σ max(x, 0) + Σ log(1 + exp(−|x|))`, and a sum of logarithms is the logarithm of a product: one
//! logarithm for several hundred elements.

use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::super::math::{self, LANES};
use super::rows::{Rows, Slices};
use super::{OUTPUTS, empty};

/// Gradients of the trained loss with respect to the means that it consists of.
pub(super) struct ByMeans {
    /// Reconstruction, ID, successors and KL.
    pub(super) task: [f64; 4],
    /// The distance of the latent from the teacher's.
    pub(super) latent: f64,
    /// The distance of the reconstruction from the teacher's.
    pub(super) taught: f64,
}

/// Factors of the gradients with respect to the elements.
#[derive(Clone, Copy)]
struct Factors {
    task: [f32; 4],
    /// Factor of the differences from the teacher's reconstruction.
    taught: f32,
}

impl Factors {
    fn new(by_means: &ByMeans, counts: [f64; 4]) -> Self {
        let task = std::array::from_fn(|part| (by_means.task[part] / counts[part]) as f32);
        Self { task, taught: (2.0 * by_means.taught / counts[0].max(1.0)) as f32 }
    }
}

/// Sums over the nodes: reconstruction, ID, successors, KL, and the squared distance of the reconstruction from the
/// teacher's. If requested, also the gradients with respect to the outputs.
pub(super) fn run(
    slices: &Slices,
    by_means: &ByMeans,
    with_gradients: bool,
) -> Result<([f64; 5], Vec<Tensor>), TchError> {
    let factors = Factors::new(by_means, slices.counts());
    let (blocks, widths) = (slices.blocks, slices.widths());
    let mut gradients = Vec::new();
    if with_gradients {
        for width in widths {
            gradients.push(empty(&[blocks.rows as i64, width as i64])?);
        }
    }
    let mut sums = vec![[0.0; 5]; blocks.count()];
    {
        let sum_parts = Parts::new(&mut sums, 0..=blocks.count());
        let parts = gradients.iter_mut().zip(widths);
        let parts = parts.map(|(tensor, width)| Ok(Parts::new(view::write("gradient", tensor)?, blocks.bounds(width))));
        let parts = parts.collect::<Result<Vec<Parts<f32>>, TchError>>()?;
        blocks.for_each(|block| {
            let mut unwanted = Vec::new();
            let room = match &parts[..] {
                [a, b, c, d, e] => [a, b, c, d, e].map(|part| part.take(block)),
                _ => rooms(&mut unwanted, widths.map(|width| blocks.elements(block, width).len())),
            };
            sum_parts.take(block)[0] = of_block(slices, block, factors, room);
        });
    }
    let mut total = [0.0; 5];
    for of_block in &sums {
        total.iter_mut().zip(of_block).for_each(|(total, sum)| *total += sum);
    }
    Ok((total, gradients))
}

/// Slices of these lengths in `memory`.
fn rooms(memory: &mut Vec<f32>, lengths: [usize; OUTPUTS]) -> [&mut [f32]; OUTPUTS] {
    memory.resize(lengths.iter().sum(), 0.0);
    let mut rest = &mut memory[..];
    lengths.map(|length| {
        let (room, others) = std::mem::take(&mut rest).split_at_mut(length);
        rest = others;
        room
    })
}

/// The sums of a block. Writes its gradients to `gradients`.
fn of_block(slices: &Slices, block: usize, factors: Factors, gradients: [&mut [f32]; OUTPUTS]) -> [f64; 5] {
    let [reconstruction, id, successors, mean, log_variance] = gradients;
    let of_taught = match &slices.taught {
        Some(taught) => taught.direct(slices.blocks.rows(block), &mut *reconstruction, factors.taught),
        None => {
            reconstruction.fill(0.0);
            0.0
        }
    };
    let rows = slices.rows(block);
    let pass = Pass { rows, factors: factors.task, reconstruction, id, successors, mean, log_variance };
    let [reconstruction, id, successors, kl] = dispatch(pass);
    [reconstruction, id, successors, kl, of_taught]
}

/// Computes the four sums of a block and writes its gradients; that of the reconstruction is added to the current
/// contents.
struct Pass<'a> {
    rows: Rows<'a>,
    factors: [f32; 4],
    reconstruction: &'a mut [f32],
    id: &'a mut [f32],
    successors: &'a mut [f32],
    mean: &'a mut [f32],
    log_variance: &'a mut [f32],
}

impl Kernel<[f64; 4]> for Pass<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) -> [f64; 4] {
        let Self { rows, factors: [of_reconstruction, of_id, of_successors, of_kl], .. } = self;
        [
            reconstruction(&rows, of_reconstruction, self.reconstruction),
            id::<I>(&rows, of_id, self.id),
            successors::<I>(&rows, of_successors, self.successors),
            kl::<I>(&rows, of_kl, self.mean, self.log_variance),
        ]
    }
}

#[inline(always)]
fn reconstruction(rows: &Rows, factor: f32, gradient: &mut [f32]) -> f64 {
    let (found, wanted) = (rows.reconstruction, &rows.continuous[..rows.reconstruction.len()]);
    for (gradient, (&found, &wanted)) in gradient.iter_mut().zip(found.iter().zip(wanted)) {
        *gradient += 2.0 * factor * (found - wanted);
    }
    math::sum(found.len(), |index| {
        let difference = found[index] - wanted[index];
        difference * difference
    })
}

/// Cross entropy: −log of the softmax at each node's ID. The gradient is the softmax, minus one at the ID.
#[inline(always)]
fn id<I: Instructions>(rows: &Rows, factor: f32, gradient: &mut [f32]) -> f64 {
    let mut softmax = vec![0.0; 2 * rows.id_index.len()];
    softmax_rows::<I>(rows.id_logits, rows.ids, gradient, &mut softmax);
    let (softmax, mut sum) = (softmax.as_chunks::<2>().0, 0.0);
    let nodes = rows.id_logits.chunks_exact(rows.ids).zip(gradient.chunks_exact_mut(rows.ids));
    for (((logits, gradient), &id), [largest, logarithm]) in nodes.zip(rows.id_index).zip(softmax) {
        sum += f64::from(largest - logits[id as usize]) + f64::from(*logarithm);
        let factor_of_row = factor * math::exp::<I>(-logarithm);
        for gradient in gradient.iter_mut() {
            *gradient *= factor_of_row;
        }
        gradient[id as usize] -= factor;
    }
    sum
}

/// For each row, the largest logit and the logarithm of the sum of the exponentials, `[rows, 2]`; the largest logit is
/// subtracted before. Writes the exponentials, `[rows, ids]`.
#[inline(always)]
pub(in super::super) fn softmax_rows<I: Instructions>(
    logits: &[f32],
    ids: usize,
    exponentials: &mut [f32],
    softmax: &mut [f32],
) {
    let exponentials = &mut exponentials[..logits.len()];
    let rows = logits.chunks_exact(ids).zip(exponentials.chunks_exact_mut(ids));
    for ((logits, exponentials), softmax) in rows.zip(softmax.as_chunks_mut::<2>().0) {
        softmax[0] = math::largest(logits);
        for (exponential, &logit) in exponentials.iter_mut().zip(logits) {
            *exponential = logit - softmax[0];
        }
    }
    // All rows in one loop, so that no vector is partially filled.
    for value in exponentials.iter_mut() {
        *value = math::exp::<I>(*value);
    }
    for (exponentials, softmax) in exponentials.chunks_exact(ids).zip(softmax.as_chunks_mut::<2>().0) {
        softmax[1] = math::sum(ids, |index| exponentials[index]).ln() as f32;
    }
}

/// Σ softplus(logit) minus the logits at the ones. The gradient is the logistic function, minus one at the ones.
#[inline(always)]
fn successors<I: Instructions>(rows: &Rows, factor: f32, gradient: &mut [f32]) -> f64 {
    let logits = rows.successor_logits;
    let positive = math::sum(logits.len(), |index| if logits[index] > 0.0 { logits[index] } else { 0.0 });
    let mut logarithms = 0.0;
    for (logits, gradient) in logits.chunks(FACTORS * LANES).zip(gradient.chunks_mut(FACTORS * LANES)) {
        logarithms += softplus::<I>(logits, factor, gradient);
    }
    let mut of_ones = 0.0;
    for &one in rows.ones {
        let place = one as usize - rows.first_logit;
        of_ones += f64::from(logits[place]);
        gradient[place] -= factor;
    }
    positive + logarithms - of_ones
}

/// Maximum number of factors, each up to 2, in one product.
const FACTORS: usize = 60;

/// Σ log(1 + exp(−|logit|)) of some logits, and the gradients of their softplus.
#[inline(always)]
fn softplus<I: Instructions>(logits: &[f32], factor: f32, gradient: &mut [f32]) -> f64 {
    // Products of (1 + exp(−|x|)), minus 1: keeps the precision of small exponentials.
    let mut products = [0.0_f32; LANES];
    let ((chunks, rest), (places, last)) = (logits.as_chunks::<LANES>(), gradient.as_chunks_mut::<LANES>());
    for (chunk, place) in chunks.iter().zip(places) {
        for ((product, &logit), gradient) in products.iter_mut().zip(chunk).zip(place) {
            *gradient = factor * logistic::<I>(logit, product);
        }
    }
    for ((product, &logit), gradient) in products.iter_mut().zip(rest).zip(last) {
        *gradient = factor * logistic::<I>(logit, product);
    }
    let halves = products.chunks_exact(LANES / 2).map(|half| {
        let product =
            half.iter().map(|&product| f64::from(product)).fold(0.0, |left, right| left * right + left + right);
        product.ln_1p()
    });
    halves.sum()
}

/// The logistic function of a logit; multiplies its 1 + exp(−|x|) into `product`.
#[inline(always)]
fn logistic<I: Instructions>(logit: f32, product: &mut f32) -> f32 {
    let small = math::exp::<I>(-logit.abs());
    *product = math::fused::<I>(*product, small, *product + small);
    let numerator = if logit < 0.0 { small } else { 1.0 };
    numerator / (1.0 + small)
}

#[inline(always)]
fn kl<I: Instructions>(rows: &Rows, factor: f32, of_mean: &mut [f32], of_log_variance: &mut [f32]) -> f64 {
    let (mean, log_variance) = (rows.mean, &rows.log_variance[..rows.mean.len()]);
    let of_log_variance = &mut of_log_variance[..mean.len()];
    for (variance, &log_variance) in of_log_variance.iter_mut().zip(log_variance) {
        *variance = math::exp::<I>(log_variance);
    }
    let variance = &*of_log_variance;
    let sum = math::sum(mean.len(), |index| 1.0 + log_variance[index] - mean[index] * mean[index] - variance[index]);
    for (gradient, &mean) in of_mean.iter_mut().zip(mean) {
        *gradient = mean * factor;
    }
    for gradient in of_log_variance {
        *gradient = 0.5 * factor * (*gradient - 1.0);
    }
    -0.5 * sum
}
