//! Harm of a calibration: attack-free windows of its own traffic that are called attacks with it, and would not be without it.
//!
//! A car that a model knows already is judged best by the profile of all its training drives. A calibration on less traffic may have a relation
//! that holds by accident, or bytes that had no time to vary. What it costs on other traffic cannot be known; on the traffic that it was made from it
//! can.

use super::calibration::Calibration;
use super::car;
use super::ensemble::mean;
use super::scores::{Profiled, Scorer};
use super::threshold::is_chance;
use super::{Ensemble, EvaluateError, records};
use kdgat_config::Threshold;
use kdgat_graph::{CarProfile, Columns};

/// Attack-free windows that are called attacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FalseWindows {
    /// Number of the windows.
    pub windows: usize,
    /// Those called attacks with the calibration.
    pub with: usize,
    /// The same, each window judged by the profile of the other parts of the traffic.
    pub by_others: usize,
    /// Those called attacks without a calibration.
    pub without: usize,
}

impl FalseWindows {
    /// Counts the windows of the calibration traffic; `None` if no threshold of the models for this false-positive rate is recorded. `by_others` has the windows as
    /// each model sees them with the profile of the other parts.
    ///
    /// # Errors
    /// Fails if the recorded thresholds cannot be read, and on errors of libtorch.
    pub fn count(
        models: &Ensemble,
        scorers: &[Scorer],
        windows: &Columns,
        by_others: &[Vec<Profiled>],
        calibration: &Calibration,
        rate: f64,
    ) -> Result<Option<Self>, EvaluateError> {
        let Some(recorded) = Recorded::of(models, rate)? else { return Ok(None) };
        let scored = |profile: &dyn Fn(usize, &Scorer) -> Option<CarProfile>| {
            let of_model = |(number, scorer): (usize, &Scorer)| {
                let profile = profile(number, scorer).unwrap_or_default();
                car::score_windows(scorer, windows, profile)
            };
            scorers.iter().enumerate().map(of_model).collect::<Result<Vec<_>, EvaluateError>>()
        };
        let without = scored(&|_, scorer| scorer.assemble_options().profile)?;
        let with = scored(&|number, _| calibration.cars().get(number).and_then(|car| car.profile()).cloned())?;
        let kinds: Vec<_> = scorers.iter().map(Scorer::kind).collect();
        let is_attack_without = |window: usize| {
            let score = match recorded.scales.as_slice() {
                [] => kinds[0].score(without[0][window].raw),
                scales => {
                    let of_model =
                        |number: usize| scales[number].standardise(kinds[number], without[number][window].raw);
                    mean((0..kinds.len()).map(of_model))
                }
            };
            score > recorded.value
        };
        let is_attack_with = |seen: &[Vec<Profiled>], window: usize| {
            let cars = calibration.cars();
            mean(cars.iter().zip(seen).map(|(car, seen)| car.deviations(&seen[window]))) > calibration.threshold
        };
        let all = windows.num_graphs();
        Ok(Some(Self {
            windows: all,
            with: (0..all).filter(|&window| is_attack_with(&with, window)).count(),
            by_others: (0..all).filter(|&window| is_attack_with(by_others, window)).count(),
            without: (0..all).filter(|&window| is_attack_without(window)).count(),
        }))
    }

    /// True if the calibration calls more of these windows attacks than the models do without it; of windows that its profile has not seen, more than
    /// may be chance at this false-positive rate.
    pub fn is_harm(&self, rate: f64) -> bool {
        let share = self.without as f64 / self.windows.max(1) as f64;
        self.with > self.without
            || self.by_others > self.without && !is_chance(self.by_others, self.windows, rate.max(share))
    }

    /// The counts in words.
    pub fn describe(&self) -> String {
        let Self { windows, with, by_others, without } = self;
        format!(
            "of these {windows} attack-free windows, {with} are called attacks with this calibration ({by_others} if each fifth is judged by the \
             others) and {without} without any"
        )
    }
}

/// The recorded threshold of one model, or of two with their scales.
struct Recorded {
    value: f64,
    scales: Vec<super::Scale>,
}

impl Recorded {
    fn of(models: &Ensemble, rate: f64) -> Result<Option<Self>, EvaluateError> {
        let rule = Threshold::FalsePositiveRate(rate);
        if models.partner().is_some() {
            let found = models.recorded_by(rule)?;
            return Ok(found.map(|recorded| Self { value: recorded.value, scales: recorded.scales }));
        }
        let found = records::recorded_by(models.first(), rule)?;
        Ok(found.first().map(|recorded| Self { value: recorded.value, scales: Vec::new() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_false_windows_than_without_are_harm() {
        let found = |with, by_others, without| FalseWindows { windows: 1000, with, by_others, without };
        assert!(!found(0, 0, 0).is_harm(0.001) && !found(500, 500, 500).is_harm(0.001));
        assert!(found(1, 0, 0).is_harm(0.001), "these windows were seen");
        assert!(!found(0, 4, 0).is_harm(0.001), "four of 1000 may be chance");
        assert!(found(0, 20, 0).is_harm(0.001));
        assert!(!found(3, 30, 900).is_harm(0.001), "another car");
    }
}
