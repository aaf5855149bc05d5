//! The task loss of a VGAE, all parts in one pass over its outputs, without an array of logits besides them.
//!
//! - reconstruction: mean of (x̂ − x)²;
//! - ID: mean over nodes of `log Σ exp(logits) − logits[id]`;
//! - successors: binary cross entropy against the multi-hot set, mean of `softplus(logit)` less the ones' logits;
//! - KL: −½ · mean of `1 + log σ² − μ² − σ²`.
//!
//! `Σ softplus(x) = Σ max(x, 0) + Σ log(1 + exp(−|x|))`, and a sum of logarithms is the logarithm of a product: one
//! logarithm for some hundred elements.

use std::ffi::CStr;

use tch::{TchError, Tensor};

use super::math::{self, LANES};
use super::{Blocks, empty, expect_elements, expect_ids, like, shape};
use crate::torch::autograd::{self, Forward, Function};
use crate::torch::parallel::Parts;
use crate::torch::simd::{Instructions, Kernel, dispatch};
use crate::torch::view;

/// What the loss compares the outputs with.
pub struct Target {
    /// `[num_nodes, features]`
    pub continuous: Tensor,
    /// `[num_nodes]`, i64.
    pub id_index: Tensor,
    /// i64, ascending: positions of the ones of the multi-hot successor target.
    pub successors: Tensor,
}

/// The outputs of a VGAE that the loss reads; rows are nodes.
pub struct Outputs<'a> {
    pub reconstruction: &'a Tensor,
    pub id_logits: &'a Tensor,
    pub successor_logits: &'a Tensor,
    pub mean: &'a Tensor,
    pub log_variance: &'a Tensor,
}

/// Reconstruction, ID, successors, KL, and their sum by `weights`: scalars.
pub fn task_loss(outputs: &Outputs, target: Target, weights: [f64; 4]) -> Result<[Tensor; 5], TchError> {
    let inputs = [
        outputs.reconstruction.f_contiguous()?,
        outputs.id_logits.f_contiguous()?,
        outputs.successor_logits.f_contiguous()?,
        outputs.mean.f_contiguous()?,
        outputs.log_variance.f_contiguous()?,
    ];
    let scalars = autograd::apply(TaskLoss { target, weights }, &inputs.each_ref())?;
    let found = scalars.len();
    scalars.try_into().map_err(|_| TchError::Shape(format!("{found} parts of a loss instead of 5")))
}

struct TaskLoss {
    target: Target,
    weights: [f64; 4],
}

/// Sizes of the inputs.
struct Sizes {
    nodes: usize,
    features: usize,
    ids: usize,
    successors: usize,
    latent: usize,
}

impl Sizes {
    fn of(inputs: &[&Tensor], target: &Target) -> Result<Self, TchError> {
        let [nodes, features] = shape("reconstruction", inputs[0])?;
        let [_, ids] = shape("ID logits", inputs[1])?;
        let [_, successors] = shape("successor logits", inputs[2])?;
        let [_, latent] = shape("mean", inputs[3])?;
        expect_elements("continuous features", &target.continuous, nodes * features)?;
        expect_elements("ID indices", &target.id_index, nodes)?;
        expect_elements("ID logits", inputs[1], nodes * ids)?;
        expect_elements("successor logits", inputs[2], nodes * successors)?;
        expect_elements("mean", inputs[3], nodes * latent)?;
        expect_elements("log variance", inputs[4], nodes * latent)?;
        Ok(Self { nodes, features, ids, successors, latent })
    }

    fn blocks(&self) -> Blocks {
        Blocks::new(self.nodes, self.features + self.ids + self.successors + 2 * self.latent, 1)
    }
}

/// Inputs and targets as slices.
struct Slices<'a> {
    sizes: Sizes,
    blocks: Blocks,
    inputs: [&'a [f32]; 5],
    continuous: &'a [f32],
    id_index: &'a [i64],
    ones: &'a [i64],
}

impl<'a> Slices<'a> {
    fn new(inputs: &[&'a Tensor], target: &'a Target) -> Result<Self, TchError> {
        let sizes = Sizes::of(inputs, target)?;
        let read = |index: usize| view::read::<f32>("an output of the model", inputs[index]);
        let slices = Self {
            blocks: sizes.blocks(),
            inputs: [read(0)?, read(1)?, read(2)?, read(3)?, read(4)?],
            continuous: view::read("continuous features", &target.continuous)?,
            id_index: view::read("ID indices", &target.id_index)?,
            ones: view::read("successors", &target.successors)?,
            sizes,
        };
        expect_ids(slices.id_index, slices.sizes.ids)?;
        let elements = slices.inputs[2].len() as i64;
        if slices.ones.first().is_some_and(|&first| first < 0)
            || slices.ones.last().is_some_and(|&last| last >= elements)
        {
            return Err(TchError::Shape(format!("a successor lies outside the {elements} successor logits")));
        }
        Ok(slices)
    }

    /// Rows of the block in an array of `width` columns.
    fn part<T>(&self, array: &'a [T], width: usize, block: usize) -> &'a [T] {
        &array[self.blocks.elements(block, width)]
    }

    /// The block's ones, and the position of the block's first logit.
    fn ones(&self, block: usize) -> (&'a [i64], usize) {
        let elements = self.blocks.elements(block, self.sizes.successors);
        let start = self.ones.partition_point(|&one| one < elements.start as i64);
        let end = self.ones.partition_point(|&one| one < elements.end as i64);
        (&self.ones[start..end], elements.start)
    }

    fn rows(&self, block: usize) -> Rows<'a> {
        let Sizes { features, ids, successors, latent, .. } = self.sizes;
        let (ones, first_logit) = self.ones(block);
        Rows {
            reconstruction: self.part(self.inputs[0], features, block),
            continuous: self.part(self.continuous, features, block),
            id_logits: self.part(self.inputs[1], ids, block),
            id_index: self.part(self.id_index, 1, block),
            ids,
            successor_logits: self.part(self.inputs[2], successors, block),
            ones,
            first_logit,
            mean: self.part(self.inputs[3], latent, block),
            log_variance: self.part(self.inputs[4], latent, block),
        }
    }

    /// What the four sums are divided by.
    fn counts(&self) -> [f64; 4] {
        [self.inputs[0].len(), self.sizes.nodes, self.inputs[2].len(), self.inputs[3].len()].map(|count| count as f64)
    }
}

/// The nodes of a block.
struct Rows<'a> {
    reconstruction: &'a [f32],
    continuous: &'a [f32],
    id_logits: &'a [f32],
    id_index: &'a [i64],
    ids: usize,
    successor_logits: &'a [f32],
    ones: &'a [i64],
    first_logit: usize,
    mean: &'a [f32],
    log_variance: &'a [f32],
}

impl Function for TaskLoss {
    const NAME: &'static CStr = c"fused VGAE loss";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let slices = Slices::new(inputs, &self.target)?;
        let blocks = slices.blocks;
        let mut sums = vec![[0.0_f64; 4]; blocks.count()];
        let parts = Parts::new(&mut sums, 0..=blocks.count());
        // For each node the largest ID logit, and the logarithm of the sum of the exponentials of all less it.
        let mut softmax = empty(&[slices.sizes.nodes as i64, 2])?;
        let softmax_parts = Parts::new(view::write::<f32>("softmax", &mut softmax)?, blocks.bounds(2));
        blocks.for_each(|block| {
            let softmax = softmax_parts.take(block);
            parts.take(block)[0] = dispatch(Sums { rows: slices.rows(block), softmax });
        });
        drop((parts, softmax_parts));
        let mut means = [0.0; 4];
        for of_block in &sums {
            means.iter_mut().zip(of_block).for_each(|(mean, sum)| *mean += sum);
        }
        means.iter_mut().zip(slices.counts()).for_each(|(mean, count)| *mean /= count);
        let total = means.iter().zip(self.weights).map(|(mean, weight)| mean * weight).sum::<f64>();
        let outputs = means.iter().chain([&total]).map(|&value| Tensor::from(value as f32)).collect();
        let mut saved: Vec<Tensor> = Vec::new();
        if recorded {
            saved.extend(inputs.iter().map(|input| input.shallow_clone()));
            saved.push(softmax);
        }
        Ok(Forward { outputs, saved })
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        gradients: Vec<Option<Tensor>>,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let inputs: Vec<&Tensor> = saved[..5].iter().collect();
        let slices = Slices::new(&inputs, &self.target)?;
        let scalar = |index: usize| gradients[index].as_ref().map_or(Ok(0.0), |gradient| gradient.f_double_value(&[]));
        let of_total = scalar(4)?;
        let mut factors = [0.0; 4];
        for (part, (factor, count)) in factors.iter_mut().zip(slices.counts()).enumerate() {
            *factor = ((scalar(part)? + of_total * self.weights[part]) / count) as f32;
        }
        let mut results = inputs.iter().map(|input| like(input)).collect::<Result<Vec<_>, _>>()?;
        let softmax = view::read::<f32>("softmax", &saved[5])?;
        let Sizes { features, ids, successors, latent, .. } = slices.sizes;
        let widths = [features, ids, successors, latent, latent];
        let mut parts = Vec::new();
        for (result, width) in results.iter_mut().zip(widths) {
            parts.push(Parts::new(view::write::<f32>("gradient", result)?, slices.blocks.bounds(width)));
        }
        slices.blocks.for_each(|block| {
            dispatch(Gradients {
                rows: slices.rows(block),
                softmax: slices.part(softmax, 2, block),
                factors,
                reconstruction: parts[0].take(block),
                id: parts[1].take(block),
                successors: parts[2].take(block),
                mean: parts[3].take(block),
                log_variance: parts[4].take(block),
            });
        });
        drop(parts);
        Ok(results.into_iter().map(Some).collect())
    }
}

/// The four sums of a block.
struct Sums<'a> {
    rows: Rows<'a>,
    softmax: &'a mut [f32],
}

impl Kernel for Sums<'_> {
    type Output = [f64; 4];

    #[inline(always)]
    fn run<I: Instructions>(self) -> [f64; 4] {
        let rows = &self.rows;
        let (found, wanted) = (rows.reconstruction, &rows.continuous[..rows.reconstruction.len()]);
        let reconstruction = math::sum(found.len(), |index| {
            let difference = found[index] - wanted[index];
            difference * difference
        });
        let mut exponentials = vec![0.0; rows.id_logits.len()];
        softmax_rows::<I>(rows.id_logits, rows.ids, &mut exponentials, self.softmax);
        let mut id = 0.0;
        for ((node, logits), softmax) in
            rows.id_index.iter().zip(rows.id_logits.chunks_exact(rows.ids)).zip(self.softmax.as_chunks::<2>().0)
        {
            // −log of the softmax at the node's ID.
            id += f64::from(softmax[0] - logits[*node as usize]) + f64::from(softmax[1]);
        }
        let ones: f64 =
            rows.ones.iter().map(|&one| f64::from(rows.successor_logits[one as usize - rows.first_logit])).sum();
        let (mean, log_variance) = (rows.mean, &rows.log_variance[..rows.mean.len()]);
        let kl = math::sum(mean.len(), |index| {
            1.0 + log_variance[index] - mean[index] * mean[index] - math::exp::<I>(log_variance[index])
        });
        [reconstruction, id, softplus_sum::<I>(rows.successor_logits) - ones, -0.5 * kl]
    }
}

/// For each row its largest logit, and the logarithm of the sum of the exponentials of all less it.
#[inline(always)]
pub(super) fn softmax_rows<I: Instructions>(logits: &[f32], ids: usize, scratch: &mut [f32], softmax: &mut [f32]) {
    let scratch = &mut scratch[..logits.len()];
    let rows = logits.chunks_exact(ids).zip(scratch.chunks_exact_mut(ids));
    for ((logits, scratch), softmax) in rows.zip(softmax.as_chunks_mut::<2>().0) {
        softmax[0] = math::largest(logits);
        for (scratch, &logit) in scratch.iter_mut().zip(logits) {
            *scratch = logit - softmax[0];
        }
    }
    // All rows in one go: no vector is left half empty.
    for value in scratch.iter_mut() {
        *value = math::exp::<I>(*value);
    }
    for (scratch, softmax) in scratch.chunks_exact(ids).zip(softmax.as_chunks_mut::<2>().0) {
        softmax[1] = math::sum(ids, |index| scratch[index]).ln() as f32;
    }
}

/// Σ log(1 + exp(x)).
#[inline(always)]
fn softplus_sum<I: Instructions>(logits: &[f32]) -> f64 {
    /// Factors of up to 2 that a product takes.
    const FACTORS: usize = 60;
    let positive = math::sum(logits.len(), |index| if logits[index] > 0.0 { logits[index] } else { 0.0 });
    let mut logarithms = 0.0;
    for part in logits.chunks(FACTORS * LANES) {
        // Products of (1 + exp(−|x|)), less 1: nothing is lost where the exponential is small.
        let mut products = [0.0_f32; LANES];
        let (chunks, rest) = part.as_chunks::<LANES>();
        for chunk in chunks {
            for (product, &logit) in products.iter_mut().zip(chunk) {
                let small = math::exp::<I>(-logit.abs());
                *product = math::fused::<I>(*product, small, *product + small);
            }
        }
        for (product, &logit) in products.iter_mut().zip(rest) {
            let small = math::exp::<I>(-logit.abs());
            *product = math::fused::<I>(*product, small, *product + small);
        }
        for half in products.chunks_exact(LANES / 2) {
            let product =
                half.iter().map(|&product| f64::from(product)).fold(0.0, |left, right| left * right + left + right);
            logarithms += product.ln_1p();
        }
    }
    positive + logarithms
}

/// Gradients of a block: each part's by its outputs, times its factor.
struct Gradients<'a> {
    rows: Rows<'a>,
    softmax: &'a [f32],
    factors: [f32; 4],
    reconstruction: &'a mut [f32],
    id: &'a mut [f32],
    successors: &'a mut [f32],
    mean: &'a mut [f32],
    log_variance: &'a mut [f32],
}

impl Kernel for Gradients<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Instructions>(self) {
        let rows = &self.rows;
        let [of_reconstruction, of_id, of_successors, of_kl] = self.factors;
        let pairs = rows.reconstruction.iter().zip(rows.continuous);
        for (result, (&found, &wanted)) in self.reconstruction.iter_mut().zip(pairs) {
            *result = 2.0 * of_reconstruction * (found - wanted);
        }
        let softmax = self.softmax.as_chunks::<2>().0;
        for ((result, logits), [largest, logarithm]) in
            self.id.chunks_exact_mut(rows.ids).zip(rows.id_logits.chunks_exact(rows.ids)).zip(softmax)
        {
            for (result, &logit) in result.iter_mut().zip(logits) {
                *result = logit - largest - logarithm;
            }
        }
        for result in self.id.iter_mut() {
            *result = math::exp::<I>(*result) * of_id;
        }
        for (result, &id) in self.id.chunks_exact_mut(rows.ids).zip(rows.id_index) {
            result[id as usize] -= of_id;
        }
        for (result, &logit) in self.successors.iter_mut().zip(rows.successor_logits) {
            *result = math::sigmoid::<I>(logit) * of_successors;
        }
        for &one in rows.ones {
            self.successors[one as usize - rows.first_logit] -= of_successors;
        }
        for (result, &mean) in self.mean.iter_mut().zip(rows.mean) {
            *result = mean * of_kl;
        }
        for (result, &log_variance) in self.log_variance.iter_mut().zip(rows.log_variance) {
            *result = 0.5 * of_kl * (math::exp::<I>(log_variance) - 1.0);
        }
    }
}
