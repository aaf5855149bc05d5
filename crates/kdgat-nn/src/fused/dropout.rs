//! Dropout masks as pure functions of a seed and an element's position; any thread can draw any part at any time.

use kdgat_torch::simd::Instructions;

/// Number of elements whose mask is drawn together; ranges of elements that begin at a multiple of it are drawn fastest.
pub(super) const GROUP: usize = 8 * LANES;
const LANES: usize = kdgat_torch::philox::LANES;

/// Sets elements to zero with a probability and scales the others, so that the mean is preserved.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    /// An element is dropped if its 16 random bits are below this.
    threshold: u32,
    scale: f32,
    seed: u64,
    /// Rows of the whole batch before the first one.
    rows_before: u64,
    /// Elements before the first one, once the number of columns is known.
    offset: u64,
}

impl Dropout {
    /// Rounds `probability` to the nearest multiple of 2⁻¹⁶ (0.1 becomes 0.10001) and derives the scale from the
    /// result; `None` for zero.
    pub fn new(probability: f64, seed: u64) -> Option<Self> {
        let threshold = (probability * 65_536.0).round().clamp(0.0, 65_535.0);
        let scale = (1.0 / (1.0 - threshold / 65_536.0)) as f32;
        let (threshold, rows_before, offset) = (threshold as u32, 0, 0);
        (threshold > 0).then_some(Self { threshold, scale, seed, rows_before, offset })
    }

    /// The mask of rows that follow this many others of the whole batch.
    pub fn after_rows(self, rows_before: u64) -> Self {
        Self { rows_before, ..self }
    }

    /// The mask of rows with this many columns.
    pub(super) fn of_width(self, columns: usize) -> Self {
        Self { offset: self.rows_before * columns as u64, ..self }
    }

    /// Factor of elements that are not dropped.
    pub(super) fn scale(self) -> f32 {
        self.scale
    }

    /// Writes the factors (zero or the scale) of the elements from `first` on.
    #[inline(always)]
    pub(super) fn factors<I: Instructions>(self, first: usize, factors: &mut [f32]) {
        let first = first as u64 + self.offset;
        let (mut group, within) = (first / GROUP as u64, (first % GROUP as u64) as usize);
        let mut factors = factors;
        if within > 0 {
            let mut whole = [0.0; GROUP];
            self.group::<I>(group, &mut whole);
            let (begun, rest) = factors.split_at_mut((GROUP - within).min(factors.len()));
            begun.copy_from_slice(&whole[within..within + begun.len()]);
            (factors, group) = (rest, group + 1);
        }
        let (groups, rest) = factors.as_chunks_mut::<GROUP>();
        for factors in groups {
            self.group::<I>(group, factors);
            group += 1;
        }
        if !rest.is_empty() {
            let mut whole = [0.0; GROUP];
            self.group::<I>(group, &mut whole);
            rest.copy_from_slice(&whole[..rest.len()]);
        }
    }

    #[inline(always)]
    fn group<I: Instructions>(self, group: u64, factors: &mut [f32; GROUP]) {
        let words = I::philox(self.seed, group * LANES as u64);
        let (halves, _) = factors.as_chunks_mut::<LANES>();
        for (position, half) in halves.iter_mut().enumerate() {
            I::choose(&words[position / 2], position % 2 == 1, self.threshold, self.scale, half);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_torch::simd::{Kernel, dispatch};

    fn factors(probability: f64, seed: u64, first: usize, length: usize) -> Vec<f32> {
        struct Factors<'a>(Dropout, usize, &'a mut [f32]);

        impl Kernel for Factors<'_> {
            #[inline(always)]
            fn run<I: Instructions>(self) {
                self.0.factors::<I>(self.1, self.2);
            }
        }

        let mut factors = vec![f32::NAN; length];
        dispatch(Factors(Dropout::new(probability, seed).unwrap(), first, &mut factors));
        factors
    }

    #[test]
    fn masks_have_their_probability_and_keep_the_mean() {
        for probability in [0.1, 0.5, 0.9] {
            let factors = factors(probability, 5, 0, 1_000_000);
            let dropped = factors.iter().filter(|&&factor| factor == 0.0).count() as f64 / 1e6;
            // Three standard errors, and the rounding of the probability.
            let allowed = 3.0 * (probability * (1.0 - probability) / 1e6).sqrt() + 1e-5;
            assert!((dropped - probability).abs() < allowed, "{dropped} dropped instead of {probability}");
            let mean = factors.iter().map(|&factor| f64::from(factor)).sum::<f64>() / 1e6;
            assert!((mean - 1.0).abs() < 4.0 * allowed / (1.0 - probability), "mean factor {mean}");
        }
    }

    #[test]
    fn neighbours_rows_and_seeds_are_independent() {
        let both = |left: &[f32], right: &[f32]| {
            let pairs = left.iter().zip(right).filter(|(left, right)| **left == 0.0 && **right == 0.0);
            pairs.count() as f64 / left.len().min(right.len()) as f64
        };
        let mask = factors(0.5, 1, 0, 400_000);
        for distance in [1, 16, 32, 80, 128, 2048] {
            let share = both(&mask, &mask[distance..]);
            assert!((share - 0.25).abs() < 0.003, "elements {distance} apart fall together: {share}");
        }
        let share = both(&mask, &factors(0.5, 2, 0, 400_000));
        assert!((share - 0.25).abs() < 0.003, "masks of two seeds fall together: {share}");
    }

    #[test]
    fn a_part_has_the_mask_of_the_whole() {
        let whole = factors(0.3, 9, 0, 5 * GROUP + 17);
        assert_eq!(whole[2 * GROUP..], factors(0.3, 9, 2 * GROUP, 3 * GROUP + 17));
        assert_eq!(whole[..40], factors(0.3, 9, 0, 40));
        for first in [1, 40, GROUP - 1, GROUP + 3] {
            assert_eq!(whole[first..], factors(0.3, 9, first, whole.len() - first));
            assert_eq!(whole[first..first + 9], factors(0.3, 9, first, 9));
        }
        assert!(Dropout::new(0.0, 1).is_none());
    }
}
