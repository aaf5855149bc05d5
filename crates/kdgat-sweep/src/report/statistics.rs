//! Means, standard deviations, and a distribution-free paired test.

use kdgat_base::random::{self, Purpose};

/// Maximum pairs for the exact test; with more, the signs are flipped at random.
const EXACT_PAIRS: usize = 16;
const RANDOM_FLIPS: u64 = 100_000;

/// Summary of several values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub count: usize,
    pub mean: f64,
    /// Sample standard deviation; `None` for a single value.
    pub deviation: Option<f64>,
}

/// Computes the mean and deviation; `None` without values.
pub fn summarize(values: &[f64]) -> Option<Summary> {
    if values.is_empty() {
        return None;
    }
    let count = values.len();
    let mean = values.iter().sum::<f64>() / count as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (count > 1).then(|| (squares / (count - 1) as f64).sqrt());
    Some(Summary { count, mean, deviation })
}

/// Computes the two-sided p-value of a paired permutation test (Fisher 1935): the fraction of all ways to swap the members of
/// pairs in which the mean difference is at least as far from 0. With n pairs it is at least 2/2^n. `None` without pairs.
pub fn permutation_test(differences: &[f64]) -> Option<f64> {
    let pairs = differences.len();
    if pairs == 0 {
        return None;
    }
    let observed = differences.iter().sum::<f64>().abs();
    // Tolerance: sums of the same numbers in another order may differ in the last digits.
    let reaches = |sum: f64| sum.abs() >= observed * (1.0 - 1e-12);
    let flipped = |bit: &dyn Fn(usize) -> bool| -> f64 {
        differences.iter().enumerate().map(|(pair, value)| if bit(pair) { -value } else { *value }).sum()
    };
    if pairs <= EXACT_PAIRS {
        let ways = 1u64 << pairs;
        let as_far = (0..ways).filter(|way| reaches(flipped(&|pair| way >> pair & 1 == 1))).count();
        return Some(as_far as f64 / ways as f64);
    }
    let flips = |way: u64| flipped(&|pair| random::bits(0, Purpose::Sweep, way, pair as u64) & 1 == 1);
    let as_far = (0..RANDOM_FLIPS).filter(|&way| reaches(flips(way))).count();
    Some((as_far as f64 + 1.0) / (RANDOM_FLIPS as f64 + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation() {
        let found = summarize(&[1.0, 2.0, 4.0]).unwrap();
        assert!((found.mean - 7.0 / 3.0).abs() < 1e-15);
        assert!((found.deviation.unwrap() - (7.0f64 / 3.0).sqrt()).abs() < 1e-15);
        assert_eq!(summarize(&[3.0]).unwrap().deviation, None);
        assert_eq!(summarize(&[]), None);
    }

    #[test]
    fn the_test_counts_swaps() {
        // All of one sign: only this assignment and its mirror image are as far from 0.
        assert_eq!(permutation_test(&[1.0, 2.0, 3.0]), Some(0.25));
        assert_eq!(permutation_test(&[1.0, -1.0]), Some(1.0));
        assert_eq!(permutation_test(&[]), None);
        // 1 + 2 - 0.5: ±(1, 2, ∓0.5) are as far from 0.
        assert_eq!(permutation_test(&[1.0, 2.0, -0.5]), Some(0.5));
        let many = [0.5; 20];
        assert!(permutation_test(&many).unwrap() < 1e-4);
        let balanced: Vec<f64> = (0..20).map(|at| if at % 2 == 0 { 1.0 } else { -1.0 }).collect();
        assert!(permutation_test(&balanced).unwrap() > 0.9);
    }
}
