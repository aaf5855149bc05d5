//! All metrics of one set of graphs, from decisions and from the ranking of the scores.

use super::ranking::{RankMetrics, Ranking};

/// Metrics as named in `metrics.csv`: those of a decision, in the order of [`Confusion::metrics`], then those of a ranking.
pub const METRICS: [&str; 12] = [
    "accuracy",
    "balanced_accuracy",
    "precision",
    "recall",
    "f1",
    "specificity",
    "mcc",
    "roc_auc",
    "pr_auc",
    "detection_at_fpr_5",
    "detection_at_fpr_1",
    "detection_at_fpr_0_1",
];

/// Position of F1 in [`METRICS`].
pub const F1: usize = 4;
/// Position of the area under the ROC curve in [`METRICS`].
pub const ROC_AUC: usize = 7;
/// Position of the recall at 1 % FPR in [`METRICS`].
pub const RECALL_AT_FPR_1: usize = 10;

/// Number of metrics computed from a decision.
pub const DECISION_METRICS: usize = 7;

/// Values of [`METRICS`]; NaN where a metric is undefined.
pub type Values = [f64; METRICS.len()];

/// Confusion matrix: number of graphs by label and decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Confusion {
    /// Attacks called attacks.
    pub true_positives: u64,
    /// Normal graphs called attacks.
    pub false_positives: u64,
    /// Normal graphs called normal.
    pub true_negatives: u64,
    /// Attacks called normal.
    pub false_negatives: u64,
}

impl Confusion {
    /// Counts decisions, with graph `g` counted `weights[g]` times.
    pub fn weighted(called: &[bool], labels: &[bool], weights: &[u32]) -> Self {
        let mut counts = [0u64; 4];
        for ((called, attack), weight) in called.iter().zip(labels).zip(weights) {
            counts[usize::from(*called) * 2 + usize::from(*attack)] += u64::from(*weight);
        }
        let [true_negatives, false_negatives, false_positives, true_positives] = counts;
        Self { true_positives, false_positives, true_negatives, false_negatives }
    }

    /// The first [`DECISION_METRICS`] of [`METRICS`].
    ///
    /// F1 is 0 with attacks but no hit, and undefined without attacks. Its availability depends on the data alone, so means over
    /// folders cover the same folders for all models. Precision is also 0 with attacks but no alarm, so that a model that finds
    /// nothing is not dropped from the means; without attacks it is 0 if there are false alarms and undefined otherwise. The Matthews
    /// correlation is 0 when all graphs have one label or one decision, as is usual.
    pub fn metrics(&self) -> [f64; DECISION_METRICS] {
        let [hits, alarms, passed, missed] =
            [self.true_positives, self.false_positives, self.true_negatives, self.false_negatives]
                .map(|count| count as f64);
        let share = |part: f64, whole: f64| if whole == 0.0 { f64::NAN } else { part / whole };
        let (recall, specificity) = (share(hits, hits + missed), share(passed, passed + alarms));
        let product = (hits + alarms) * (hits + missed) * (passed + alarms) * (passed + missed);
        let total = hits + alarms + passed + missed;
        let precision = match hits + alarms {
            0.0 if missed > 0.0 => 0.0,
            called => share(hits, called),
        };
        let f1 = match hits + missed {
            0.0 => f64::NAN,
            attacks => 2.0 * hits / (attacks + hits + alarms),
        };
        let mcc = match product {
            0.0 if total > 0.0 => 0.0,
            product => share(hits * passed - alarms * missed, product.sqrt()),
        };
        [share(hits + passed, total), 0.5 * (recall + specificity), precision, recall, f1, specificity, mcc]
    }
}

/// Graphs called attacks, and the rule that decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Method that chose the threshold: `fpr:0.001`, `youden`, or the number itself.
    pub method: String,
    /// The threshold, if all graphs share one.
    pub threshold: Option<f64>,
    /// For each graph, true if it was called an attack.
    pub called: Vec<bool>,
}

impl Decision {
    /// Calls graphs with a score above `threshold` attacks.
    pub fn above(method: impl Into<String>, threshold: f64, scores: &[f64]) -> Self {
        let called = scores.iter().map(|score| *score > threshold).collect();
        Self { method: method.into(), threshold: Some(threshold), called }
    }
}

/// Graphs that are evaluated together, sorted once for any number of resamples.
#[derive(Debug)]
pub struct Sample<'a> {
    labels: &'a [bool],
    decisions: &'a [Decision],
    ranking: Ranking,
}

impl<'a> Sample<'a> {
    /// Graphs with their scores, labels and decisions.
    ///
    /// # Panics
    /// Panics if their lengths differ.
    pub fn new(scores: &[f64], labels: &'a [bool], decisions: &'a [Decision]) -> Self {
        for decision in decisions {
            assert_eq!(decision.called.len(), labels.len(), "a decision for each graph");
        }
        Self { labels, decisions, ranking: Ranking::new(scores, labels) }
    }

    /// Number of graphs.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// True if there are no graphs.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Metrics of each decision, with each graph counted once.
    pub fn metrics(&self) -> Vec<Values> {
        self.weighted(&vec![1; self.len()])
    }

    /// Metrics of each decision, with graph `g` counted `weights[g]` times.
    pub fn weighted(&self, weights: &[u32]) -> Vec<Values> {
        let RankMetrics { roc_auc, pr_auc, detection: [at_5, at_1, at_0_1] } = self.ranking.weighted(weights);
        let of_decision = |decision: &Decision| {
            let [accuracy, balanced, precision, recall, f1, specificity, mcc] =
                Confusion::weighted(&decision.called, self.labels, weights).metrics();
            [accuracy, balanced, precision, recall, f1, specificity, mcc, roc_auc, pr_auc, at_5, at_1, at_0_1]
        };
        self.decisions.iter().map(of_decision).collect()
    }

    /// Confusion matrix of each decision.
    pub fn confusions(&self) -> Vec<Confusion> {
        let once = vec![1; self.len()];
        self.decisions.iter().map(|decision| Confusion::weighted(&decision.called, self.labels, &once)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_a_confusion() {
        // 90 hits, 10 missed, 30 false alarms, 870 passed.
        let confusion = Confusion { true_positives: 90, false_negatives: 10, false_positives: 30, true_negatives: 870 };
        let [accuracy, balanced, precision, recall, f1, specificity, mcc] = confusion.metrics();
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found} != {expected}");
        close(accuracy, 0.96);
        close(balanced, 0.5 * (0.9 + 870.0 / 900.0));
        close(precision, 0.75);
        close(recall, 0.9);
        close(f1, 180.0 / 220.0);
        close(specificity, 870.0 / 900.0);
        close(mcc, (90.0 * 870.0 - 30.0 * 10.0) / (120.0f64 * 100.0 * 900.0 * 880.0).sqrt());
    }

    #[test]
    fn what_is_not_defined_is_no_number() {
        let all_normal = Confusion { true_negatives: 5, ..Confusion::default() };
        let [accuracy, balanced, precision, recall, f1, specificity, mcc] = all_normal.metrics();
        assert_eq!((accuracy, specificity, mcc), (1.0, 1.0, 0.0));
        assert!(balanced.is_nan() && precision.is_nan() && recall.is_nan() && f1.is_nan());
        let missed = Confusion { false_negatives: 3, true_negatives: 5, ..Confusion::default() };
        assert_eq!(missed.metrics()[2], 0.0, "precision of a model that finds nothing");
        assert_eq!(missed.metrics()[4], 0.0, "F1 of a model that finds nothing");
        let alarms = Confusion { false_positives: 3, true_negatives: 5, ..Confusion::default() };
        assert!(alarms.metrics()[4].is_nan(), "F1 without attacks, with alarms as without");
        assert_eq!(alarms.metrics()[2], 0.0, "all are false alarms");
        let attacks_alone = Confusion { true_positives: 2, false_negatives: 1, ..Confusion::default() };
        let [_, balanced, precision, recall, _, specificity, mcc] = attacks_alone.metrics();
        assert_eq!((precision, recall, mcc), (1.0, 2.0 / 3.0, 0.0));
        assert!(specificity.is_nan() && balanced.is_nan());
        assert!(Confusion::default().metrics()[0].is_nan());
    }
}
