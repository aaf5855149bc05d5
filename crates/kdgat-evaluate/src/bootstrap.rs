//! Bootstrap confidence intervals (Efron 1979): resamples the graphs with replacement and takes the central 95 % of each
//! metric's resampled values as its interval.
//!
//! A draw is a pure function of (seed, resample, position), so intervals are the same on every machine and for any number of
//! threads. A resample is one weight per graph over scores that are sorted once: no resample sorts or copies them again.

use rayon::prelude::*;

use super::metrics::{METRICS, Sample, Values};
use kdgat_base::random::{self, Purpose};

/// Settings of the bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Bootstrap {
    /// Number of resamples; 0 computes no intervals.
    pub resamples: u64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { resamples: 1000, seed: 42 }
    }
}

/// Units of a resample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drawn {
    /// Single graphs.
    Graphs = 0,
    /// Runs that differ by seed.
    Seeds = 1,
    /// Stretches of neighbouring graphs.
    Stretches = 2,
    /// Teachers of the same students.
    Teachers = 3,
}

/// Ends of a 95 % interval; NaN where the metric is undefined.
pub type Interval = (f64, f64);

/// Limit on resamples. More would not change a displayed digit, and each holds some 100 bytes until all are computed.
pub const MOST_RESAMPLES: u64 = 1_000_000;

/// Share cut off at either end: 2.5 %.
const TAIL: f64 = 0.025;

impl Bootstrap {
    /// Intervals of all metrics for each decision of a sample. Resamples in which a metric is undefined (for example, without an
    /// attack) do not count for that metric.
    pub fn intervals(&self, sample: &Sample<'_>, decisions: usize) -> Vec<[Interval; METRICS.len()]> {
        let unknown = [(f64::NAN, f64::NAN); METRICS.len()];
        if sample.is_empty() || self.resamples == 0 {
            return vec![unknown; decisions];
        }
        let resample = |weights: &mut Vec<u32>, resample: u64| {
            self.draw(resample, Drawn::Graphs, sample.len(), weights);
            sample.weighted(weights)
        };
        let metrics: Vec<Vec<Values>> = (0..self.resamples).into_par_iter().map_init(Vec::new, resample).collect();
        let interval = |decision: usize, metric: usize| {
            let values = metrics.iter().map(|resample| resample[decision][metric]).filter(|value| !value.is_nan());
            middle(values.collect())
        };
        (0..decisions).map(|decision| std::array::from_fn(|metric| interval(decision, metric))).collect()
    }

    /// Counts how often each of `count` units occurs in a resample of `count` draws; writes `weights`. Draws of different units are
    /// independent.
    pub(crate) fn draw(&self, resample: u64, drawn: Drawn, count: usize, weights: &mut Vec<u32>) {
        weights.clear();
        weights.resize(count, 0);
        let key = random::bits(self.seed, Purpose::Bootstrap, resample, drawn as u64);
        for position in 0..count as u64 {
            // The high 64 bits of the product are uniform over 0..count up to one part in 2^64 / count.
            let drawn = (u128::from(random::mix(key ^ position)) * count as u128) >> 64;
            weights[drawn as usize] += 1;
        }
    }
}

/// The central 95 % of values; NaN without values.
pub(crate) fn middle(mut values: Vec<f64>) -> Interval {
    if values.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    values.sort_unstable_by(f64::total_cmp);
    (quantile(&values, TAIL), quantile(&values, 1.0 - TAIL))
}

/// Quantile of ascending values, linearly interpolated between neighbours; NaN without values.
pub fn quantile(ascending: &[f64], share: f64) -> f64 {
    let Some(last) = ascending.len().checked_sub(1) else { return f64::NAN };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    ascending[below] + (place - below as f64) * (ascending[above] - ascending[below])
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::metrics::Decision;

    fn scores(count: u64, attacks_every: u64) -> (Vec<f64>, Vec<bool>) {
        let labels: Vec<bool> = (0..count).map(|index| index % attacks_every == 0).collect();
        let unit = |index: u64| random::unit(3, Purpose::Step, 0, index);
        let score = |index: u64| if labels[index as usize] { 0.5 + 0.8 * unit(index) } else { 0.9 * unit(index) };
        ((0..count).map(score).collect(), labels)
    }

    /// The interval of a share p of n draws is p ± 1.96 √(p (1 − p) / n) to first order.
    #[test]
    fn an_interval_is_as_wide_as_the_binomial_says() {
        let (scores, labels) = scores(4000, 4);
        let decisions = [Decision::above("0.6", 0.6, &scores)];
        let sample = Sample::new(&scores, &labels, &decisions);
        let accuracy = sample.metrics()[0][0];
        let (low, high) = Bootstrap::default().intervals(&sample, 1)[0][0];
        let half_width = 1.96 * (accuracy * (1.0 - accuracy) / 4000.0).sqrt();
        assert!(low < accuracy && accuracy < high);
        assert!(((high - low) / (2.0 * half_width) - 1.0).abs() < 0.1, "{low} to {high}, half width {half_width}");
    }

    #[test]
    fn intervals_are_the_same_again_and_differ_by_seed() {
        let (scores, labels) = scores(500, 5);
        let decisions = [Decision::above("0.6", 0.6, &scores)];
        let sample = Sample::new(&scores, &labels, &decisions);
        let intervals = |seed| Bootstrap { resamples: 200, seed }.intervals(&sample, 1);
        assert_eq!(intervals(1), intervals(1));
        assert_ne!(intervals(1), intervals(2));
    }

    #[test]
    fn a_thousand_resamples_of_ten_thousand_scores_take_less_than_two_seconds() {
        let (scores, labels) = scores(10_000, 10);
        let decisions = [Decision::above("0.6", 0.6, &scores), Decision::above("0.5", 0.5, &scores)];
        let sample = Sample::new(&scores, &labels, &decisions);
        let start = Instant::now();
        let intervals = Bootstrap::default().intervals(&sample, 2);
        let seconds = start.elapsed().as_secs_f64();
        println!("1000 resamples of 10,000 scores, 12 metrics, 2 thresholds: {seconds:.3} s");
        assert!(seconds < 2.0 && intervals[1][7].0 > 0.5, "{seconds} s");
    }

    #[test]
    fn without_attacks_there_is_no_interval_of_recall() {
        let (scores, labels) = (vec![0.1, 0.2, 0.3], vec![false; 3]);
        let decisions = [Decision::above("0.25", 0.25, &scores)];
        let intervals = Bootstrap::default().intervals(&Sample::new(&scores, &labels, &decisions), 1);
        assert!(intervals[0][3].0.is_nan() && !intervals[0][5].0.is_nan());
    }
}
