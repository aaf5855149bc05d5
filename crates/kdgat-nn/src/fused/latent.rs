//! The latent sampled by a VGAE in training, z = μ + σ·ε (Kingma & Welling 2014), in one pass. ε is a pure function of
//! a seed and an element's position: the same on any number of threads, and in a recomputation.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::parallel::Parts;
use kdgat_torch::philox::LANES;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::{Blocks, by_blocks, empty, expect_elements, like, math, shape};

/// Number of elements whose noise is drawn together.
const GROUP: usize = 4 * LANES;

/// Source of the noise of a batch's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoiseSeed {
    /// Seed of the whole batch.
    pub seed: u64,
    /// Rows of the whole batch before the first one.
    pub rows_before: u64,
}

/// Samples z, given μ and log σ² of the same shape.
pub fn draw(mean: &Tensor, log_variance: &Tensor, noise: NoiseSeed) -> Result<Tensor, TchError> {
    let inputs = [mean.f_contiguous()?, log_variance.f_contiguous()?];
    let [_, columns] = shape("μ", mean)?;
    let draw = Draw { seed: noise.seed, offset: noise.rows_before * columns as u64 };
    autograd::apply_one(draw, &[&inputs[0], &inputs[1]])
}

/// The ε of [`draw`], `[rows, columns]`, for this seed.
pub fn noise(size: [i64; 2], NoiseSeed { seed, rows_before }: NoiseSeed) -> Result<Tensor, TchError> {
    let output = empty(&size)?;
    let blocks = Blocks::new(output.numel(), 1, GROUP);
    let offset = rows_before * size[1].unsigned_abs();
    by_blocks("noise", output, blocks, 1, |block, values| {
        dispatch(Normals { seed, first: offset + blocks.rows(block).start as u64, values });
    })
}

struct Draw {
    seed: u64,
    /// Elements of the whole batch before the first one.
    offset: u64,
}

impl Function for Draw {
    const NAME: &'static CStr = c"fused draw of the latent";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let (mean, log_variance) = (inputs[0], inputs[1]);
        expect_elements("log σ² of the latent", log_variance, mean.numel())?;
        // z − μ; half of it is the derivative with respect to log σ².
        let mut deviation = if recorded { Some(like(mean)?) } else { None };
        let (mu, log_variance) = (view::read::<f32>("μ", mean)?, view::read::<f32>("log σ²", log_variance)?);
        let blocks = Blocks::new(mu.len(), 1, GROUP);
        let slices = deviation.as_mut().map(|tensor| view::write::<f32>("z − μ", tensor)).transpose()?;
        let deviations = slices.map(|slice| Parts::new(slice, blocks.bounds(1)));
        let latent = by_blocks("z", like(mean)?, blocks, 1, |block, latent| {
            let elements = blocks.rows(block);
            let first = self.offset + elements.start as u64;
            dispatch(Normals { seed: self.seed, first, values: &mut *latent });
            let (mu, log_variance) = (&mu[elements.clone()], &log_variance[elements]);
            let deviation = deviations.as_ref().map(|parts| parts.take(block));
            dispatch(Scale { mu, log_variance, latent, deviation });
        })?;
        drop(deviations);
        Ok(Forward { outputs: vec![latent], saved: deviation.into_iter().collect() })
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, _: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None, None]) };
        let gradient = gradient.f_contiguous()?;
        let (of_latent, deviation) =
            (view::read::<f32>("gradient", &gradient)?, view::read::<f32>("z − μ", &saved[0])?);
        let blocks = Blocks::new(deviation.len(), 1, GROUP);
        let of_log_variance = by_blocks("gradient", like(&gradient)?, blocks, 1, |block, result| {
            let elements = blocks.rows(block);
            let (gradient, deviation) = (&of_latent[elements.clone()], &deviation[elements]);
            dispatch(Half { gradient, deviation, result });
        })?;
        Ok(vec![Some(gradient), Some(of_log_variance)])
    }
}

/// Fills `values` with standard normal numbers. They begin at element `first`.
struct Normals<'a> {
    seed: u64,
    first: u64,
    values: &'a mut [f32],
}

impl Kernel for Normals<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let (mut group, within) = (self.first / GROUP as u64, (self.first % GROUP as u64) as usize);
        let mut values = self.values;
        if within > 0 {
            let mut whole = [0.0; GROUP];
            normals::<I>(self.seed, group, &mut whole);
            let (begun, rest) = values.split_at_mut((GROUP - within).min(values.len()));
            begun.copy_from_slice(&whole[within..within + begun.len()]);
            (values, group) = (rest, group + 1);
        }
        let (groups, rest) = values.as_chunks_mut::<GROUP>();
        for values in groups {
            normals::<I>(self.seed, group, values);
            group += 1;
        }
        if !rest.is_empty() {
            let mut whole = [0.0; GROUP];
            normals::<I>(self.seed, group, &mut whole);
            rest.copy_from_slice(&whole[..rest.len()]);
        }
    }
}

/// Converts pairs of uniform numbers to pairs of normal ones (Box & Muller 1958).
#[inline(always)]
fn normals<I: Instructions>(seed: u64, group: u64, values: &mut [f32; GROUP]) {
    /// Resolution of the upper 24 bits: every such number is exact in f32.
    const STEP: f32 = 1.0 / 16_777_216.0;
    let words = I::philox(seed, group * LANES as u64);
    for (pair, words) in values.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().zip(words.as_chunks::<2>().0) {
        let (mut cosines, mut sines) = ([0.0; LANES], [0.0; LANES]);
        for lane in 0..LANES {
            // Above zero, whose logarithm is infinite.
            let uniform = ((words[0][lane] >> 8) + 1) as f32 * STEP;
            let squared = -2.0 * math::ln::<I>(uniform);
            let radius = if squared > 0.0 { squared.sqrt() } else { 0.0 };
            let [cosine, sine] = math::cos_sin_of_turns::<I>((words[1][lane] >> 8) as f32 * STEP);
            cosines[lane] = radius * cosine;
            sines[lane] = radius * sine;
        }
        pair[..LANES].copy_from_slice(&cosines);
        pair[LANES..].copy_from_slice(&sines);
    }
}

/// Converts ε in `latent` to μ + σ·ε, and stores σ·ε.
struct Scale<'a> {
    mu: &'a [f32],
    log_variance: &'a [f32],
    latent: &'a mut [f32],
    deviation: Option<&'a mut [f32]>,
}

impl Kernel for Scale<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let inputs = self.mu.iter().zip(self.log_variance);
        match self.deviation {
            Some(deviations) => {
                for ((latent, deviation), (&mu, &log_variance)) in self.latent.iter_mut().zip(deviations).zip(inputs) {
                    *deviation = math::exp::<I>(0.5 * log_variance) * *latent;
                    *latent = mu + *deviation;
                }
            }
            None => {
                for (latent, (&mu, &log_variance)) in self.latent.iter_mut().zip(inputs) {
                    *latent = mu + math::exp::<I>(0.5 * log_variance) * *latent;
                }
            }
        }
    }
}

struct Half<'a> {
    gradient: &'a [f32],
    deviation: &'a [f32],
    result: &'a mut [f32],
}

impl Kernel for Half<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for ((result, &gradient), &deviation) in self.result.iter_mut().zip(self.gradient).zip(self.deviation) {
            *result = 0.5 * gradient * deviation;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_torch::simd::{Level, dispatch_at};

    fn normal(seed: u64, first: usize, length: usize) -> Vec<f32> {
        let mut values = vec![f32::NAN; length];
        dispatch(Normals { seed, first: first as u64, values: &mut values });
        values
    }

    #[test]
    fn a_part_has_the_noise_of_the_whole() {
        let whole = normal(3, 0, 5 * GROUP + 17);
        for first in [1, GROUP - 1, GROUP, 2 * GROUP + 5] {
            assert_eq!(normal(3, first, whole.len() - first), whole[first..]);
            assert_eq!(normal(3, first, 3), whole[first..first + 3]);
        }
        let rows = |rows: i64, rows_before| noise([rows, 5], NoiseSeed { seed: 9, rows_before }).unwrap();
        assert!(rows(40, 0).narrow(0, 13, 27) == rows(27, 13));
    }

    /// Standard normal distribution function, by Abramowitz & Stegun 26.2.17 (error below 7.5e-8).
    fn below(x: f64) -> f64 {
        let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
        let coefficients = [0.319_381_53, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
        let sum = coefficients.iter().rev().fold(0.0, |sum, coefficient| (sum + coefficient) * t);
        let tail = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt() * sum;
        if x > 0.0 { 1.0 - tail } else { tail }
    }

    #[test]
    fn noise_is_standard_normal() {
        let mut values = normal(3, 0, 1_000_000);
        let mean = |power: i32| values.iter().map(|&value| f64::from(value).powi(power)).sum::<f64>() / 1e6;
        // Four standard errors of each moment.
        for (power, expected, deviation) in
            [(1, 0.0, 1.0), (2, 1.0, 2_f64.sqrt()), (3, 0.0, 15_f64.sqrt()), (4, 3.0, 9.8)]
        {
            let found = mean(power);
            assert!((found - expected).abs() < 4e-3 * deviation, "moment {power}: {found} instead of {expected}");
        }
        values.sort_unstable_by(f32::total_cmp);
        let apart = |(index, &value): (usize, &f32)| (below(f64::from(value)) - index as f64 / 1e6).abs();
        let apart = values.iter().enumerate().map(apart).fold(0.0, f64::max);
        // Kolmogorov's distance; exceeded once in ten thousand draws.
        assert!(apart < 2.2e-3, "the distributions are {apart} apart");
        assert!(values[0] < -4.4 && values[999_999] > 4.4, "{} to {}", values[0], values[999_999]);
    }

    #[test]
    fn neighbours_and_seeds_are_independent() {
        let values = normal(5, 0, 400_000);
        let correlation = |left: &[f32], right: &[f32]| {
            let sum: f64 = left.iter().zip(right).map(|(&left, &right)| f64::from(left) * f64::from(right)).sum();
            sum / left.len().min(right.len()) as f64
        };
        for distance in [1, LANES, 2 * LANES, GROUP, 1024] {
            let found = correlation(&values, &values[distance..]);
            assert!(found.abs() < 0.008, "elements {distance} apart: correlation {found}");
        }
        let found = correlation(&values, &normal(6, 0, 400_000));
        assert!(found.abs() < 0.008, "two seeds: correlation {found}");
        assert_eq!(
            values[2 * GROUP..5 * GROUP + 9],
            normal(5, 2 * GROUP, 3 * GROUP + 9),
            "a part differs from the whole"
        );
    }

    #[test]
    fn every_level_draws_the_same_to_rounding() {
        let mut wide = vec![0.0; 10_000];
        dispatch(Normals { seed: 8, first: 0, values: &mut wide });
        for level in Level::available() {
            let mut values = vec![0.0; 10_000];
            dispatch_at(level, Normals { seed: 8, first: 0, values: &mut values });
            let apart = values.iter().zip(&wide).map(|(left, right)| (left - right).abs()).fold(0.0, f32::max);
            assert!(apart < 3e-6, "{level:?} differs by {apart}");
        }
    }
}
