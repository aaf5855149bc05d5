//! Severity of an attack window: its distance to the threshold on a scale where scores are evenly spread.
//!
//! | the threshold is a number of | distance | medium from | high from |
//! |---|---|--:|--:|
//! | deviations (with a calibration) | deviations − threshold; of a classifier also in nats, and the smaller one counts | 1 | 3 |
//! | probability (classifier) | ln(p/(1−p)) − ln(t/(1−t)), the log odds | 1 | 3 |
//! | difficulty (autoencoder) | ln(score) − ln(threshold) | ln 1.25 | ln 2 |
//! | mean of standardised scores (two models) | score − threshold | 1 | 3 |
//!
//! The spread of a quiet car's scores may be a hundredth of a nat: then many spreads are no certainty, and the nats decide. Where it is many
//! nats, the spreads do.
//!
//! So an alarm of a classifier is high if the odds of an attack are 20 times those at the threshold, and one of an autoencoder if the
//! score is twice the threshold.

use serde::Serialize;

use crate::{AttackAbove, Detection};
use kdgat_evaluate::ScoreKind;

/// ln 1.25 and ln 2.
const DIFFICULTY_LIMITS: Limits = Limits { medium: 0.223_143_551_314_209_76, high: std::f64::consts::LN_2 };
const LIMITS: Limits = Limits { medium: 1.0, high: 3.0 };

/// Grade of an alarm, from the least to the most severe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Little above the threshold.
    #[default]
    Low,
    /// Clearly above the threshold: one spread or 1 nat, for an autoencoder's own score a factor of 1.25.
    Medium,
    /// Far above the threshold: three spreads or 3 nats, for an autoencoder's own score a factor of 2.
    High,
}

impl Severity {
    /// Name in events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// Distances from which an alarm is of medium and of high severity.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Limits {
    medium: f64,
    high: f64,
}

/// Scale on which the distance to the threshold is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeverityScale {
    threshold: AttackAbove,
    kind: Option<ScoreKind>,
    /// Nats of a deviation on the car's own scale, for a calibrated classifier.
    nats: Option<f64>,
}

impl SeverityScale {
    /// Scale of a model with this kind of score, or of two models together (`None`), and this threshold.
    pub fn new(kind: Option<ScoreKind>, threshold: AttackAbove) -> Self {
        Self { threshold, kind, nats: None }
    }

    /// The scale of a classifier calibrated for a car, whose deviations are of this many nats.
    pub fn with_nats(self, nats: Option<f64>) -> Self {
        Self { nats, ..self }
    }

    /// Grades a window that was called an attack. The distance is NaN only for thresholds that no score can exceed; it counts as low. An ID that is
    /// gone is at least of medium severity.
    pub fn grade(&self, detection: &Detection) -> Severity {
        let by_score = self.grade_of_score(detection);
        if detection.gone.is_empty() { by_score } else { by_score.max(Severity::Medium) }
    }

    fn grade_of_score(&self, detection: &Detection) -> Severity {
        let (distance, limits) = match (self.threshold, detection.deviations) {
            (AttackAbove::Deviations(threshold), Some(deviations)) => {
                ((deviations - threshold) * self.nats.map_or(1.0, |nats| nats.min(1.0)), LIMITS)
            }
            (AttackAbove::Score(threshold) | AttackAbove::Deviations(threshold), _) => {
                let distance = self.unbounded(detection.score) - self.unbounded(threshold);
                (distance, if self.kind == Some(ScoreKind::Difficulty) { DIFFICULTY_LIMITS } else { LIMITS })
            }
        };
        match distance {
            _ if distance >= limits.high => Severity::High,
            _ if distance >= limits.medium => Severity::Medium,
            _ => Severity::Low,
        }
    }

    /// The unbounded scale; a threshold outside the range of probabilities counts as its nearest end.
    fn unbounded(&self, score: f64) -> f64 {
        match self.kind {
            Some(kind @ ScoreKind::AttackProbability) => kind.unbounded_of_score(score.clamp(0.0, 1.0)),
            Some(kind @ ScoreKind::Difficulty) => kind.unbounded_of_score(score),
            None => score,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graded(
        kind: impl Into<Option<ScoreKind>>,
        threshold: AttackAbove,
        score: f64,
        deviations: Option<f64>,
    ) -> Severity {
        SeverityScale::new(kind.into(), threshold).grade(&detection(score, deviations))
    }

    fn detection(score: f64, deviations: Option<f64>) -> Detection {
        Detection {
            window: 0,
            first_frame: 0,
            time: 0.0,
            score,
            scores: None,
            label: "attack",
            id: "123".to_owned(),
            contribution: 0.0,
            deviations,
            culprits: Vec::new(),
            gone: Vec::new(),
        }
    }

    #[test]
    fn the_distance_to_the_threshold_decides() {
        use ScoreKind::{AttackProbability, Difficulty};
        use Severity::{High, Low, Medium};
        let of_score = |kind, score| graded(kind, AttackAbove::Score(0.5), score, None);
        // Odds of 2.71 and 2.73, 20 and 20.2.
        assert_eq!(
            [0.7305, 0.7319, 0.9523, 0.9530].map(|score| of_score(AttackProbability, score)),
            [Low, Medium, Medium, High]
        );
        assert_eq!([0.62, 0.63, 0.99, 1.0].map(|score| of_score(Difficulty, score)), [Low, Medium, Medium, High]);
        let by_car = |deviations| graded(Difficulty, AttackAbove::Deviations(3.5), 0.9, Some(deviations));
        assert_eq!([4.4, 4.5, 6.4, 6.5].map(by_car), [Low, Medium, Medium, High]);
        let of_two = |score| graded(None, AttackAbove::Score(3.5), score, None);
        assert_eq!([4.4, 4.5, 6.4, 6.5].map(of_two), [Low, Medium, Medium, High]);
        // On a quiet car, four spreads may be a tenth of a nat.
        let quiet = |nats| {
            let scale =
                SeverityScale::new(Some(AttackProbability), AttackAbove::Deviations(44.0)).with_nats(Some(nats));
            scale.grade(&detection(0.53, Some(48.0)))
        };
        assert_eq!([0.03, 0.3, 0.8, 2.0].map(quiet), [Low, Medium, High, High]);
        // A score decides although the window has deviations, and without a car's scale.
        assert_eq!(graded(Difficulty, AttackAbove::Score(0.5), 0.51, Some(99.0)), Low);
        assert_eq!(graded(Difficulty, AttackAbove::Deviations(0.5), 1.1, None), High);
    }

    #[test]
    fn the_ends_of_the_scale_have_a_grade() {
        use ScoreKind::AttackProbability;
        assert_eq!(graded(AttackProbability, AttackAbove::Score(0.999), 1.0, None), Severity::High);
        for threshold in [0.0, -1.0] {
            assert_eq!(graded(AttackProbability, AttackAbove::Score(threshold), 1e-9, None), Severity::High);
        }
        assert_eq!(graded(AttackProbability, AttackAbove::Score(-1.0), 0.0, None), Severity::Low);
        assert_eq!(graded(ScoreKind::Difficulty, AttackAbove::Score(-1.0), 0.1, None), Severity::High);
    }
}
