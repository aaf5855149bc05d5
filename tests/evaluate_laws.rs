//! Laws of the metrics, on random scores with many ties.

use kdgat::evaluate::metrics::{Confusion, Decision, Sample};
use kdgat::evaluate::ranking::{FALSE_POSITIVE_RATES, Ranking};
use kdgat::evaluate::threshold;
use proptest::prelude::*;

/// Scores with few distinct values, each with a label.
fn scored() -> impl Strategy<Value = Vec<(f64, bool)>> {
    prop::collection::vec((0u8..12, any::<bool>()), 2..120)
        .prop_map(|pairs| pairs.into_iter().map(|(score, attack)| (f64::from(score) / 8.0 - 0.5, attack)).collect())
}

fn split(pairs: &[(f64, bool)]) -> (Vec<f64>, Vec<bool>) {
    pairs.iter().copied().unzip()
}

fn of_class(pairs: &[(f64, bool)], attack: bool) -> Vec<f64> {
    pairs.iter().filter(|pair| pair.1 == attack).map(|pair| pair.0).collect()
}

proptest! {
    /// ROC AUC is the share of (attack, normal) pairs in the right order; ties count half.
    #[test]
    fn roc_auc_is_its_pairwise_definition(pairs in scored()) {
        let (scores, labels) = split(&pairs);
        let (attacks, normals) = (of_class(&pairs, true), of_class(&pairs, false));
        let found = Ranking::new(&scores, &labels).metrics().roc_auc;
        if attacks.is_empty() || normals.is_empty() {
            prop_assert!(found.is_nan());
        } else {
            let won = |attack: f64, normal: f64| if attack > normal { 1.0 } else if attack == normal { 0.5 } else { 0.0 };
            let sum: f64 = attacks.iter().flat_map(|a| normals.iter().map(move |n| won(*a, *n))).sum();
            prop_assert!((found - sum / (attacks.len() * normals.len()) as f64).abs() < 1e-12);
        }
    }

    /// Average precision and detection rates equal those computed threshold by threshold.
    #[test]
    fn curves_are_what_every_threshold_gives(pairs in scored()) {
        let (scores, labels) = split(&pairs);
        let (attacks, normals) = (of_class(&pairs, true), of_class(&pairs, false));
        prop_assume!(!attacks.is_empty() && !normals.is_empty());
        let mut thresholds = scores.clone();
        thresholds.sort_by(|a, b| b.total_cmp(a));
        thresholds.dedup();
        let (mut average_precision, mut recall_before, mut detected) = (0.0, 0.0, [0.0f64; 3]);
        for threshold in thresholds {
            let count = |of: &[f64]| of.iter().filter(|score| **score >= threshold).count() as f64;
            let (hits, alarms) = (count(&attacks), count(&normals));
            let recall = hits / attacks.len() as f64;
            average_precision += (recall - recall_before) * hits / (hits + alarms);
            recall_before = recall;
            for (best, rate) in detected.iter_mut().zip(FALSE_POSITIVE_RATES) {
                if alarms / normals.len() as f64 <= rate {
                    *best = best.max(recall);
                }
            }
        }
        let found = Ranking::new(&scores, &labels).metrics();
        prop_assert!((found.pr_auc - average_precision).abs() < 1e-12);
        prop_assert_eq!(found.detection, detected);
        prop_assert!(found.detection[0] >= found.detection[1] && found.detection[1] >= found.detection[2]);
    }

    /// F1 lies between precision and recall, at most at their mean; all shares lie in [0, 1], MCC in [-1, 1].
    #[test]
    fn decisions_have_their_bounds(hits in 0u64..500, alarms in 0u64..500, passed in 0u64..500, missed in 0u64..500) {
        let confusion = Confusion {
            true_positives: hits, false_positives: alarms, true_negatives: passed, false_negatives: missed,
        };
        let [accuracy, balanced, precision, recall, f1, specificity, mcc] = confusion.metrics();
        for share in [accuracy, balanced, precision, recall, f1, specificity] {
            prop_assert!(share.is_nan() || (0.0..=1.0).contains(&share), "{share}");
        }
        prop_assert!(mcc.is_nan() || (-1.0 - 1e-12..=1.0 + 1e-12).contains(&mcc), "{mcc}");
        if !precision.is_nan() && !recall.is_nan() {
            prop_assert!(f1 >= precision.min(recall) - 1e-12 && f1 <= 0.5 * (precision + recall) + 1e-12);
            if precision + recall > 0.0 {
                prop_assert!((f1 - 2.0 * precision * recall / (precision + recall)).abs() < 1e-12);
            }
        }
    }

    /// A threshold for a false-positive rate meets it, and the next lower score would not.
    #[test]
    fn a_false_positive_rate_is_kept_and_used(pairs in scored(), rate in 0.001f64..0.5) {
        let normals = of_class(&pairs, false);
        prop_assume!(!normals.is_empty());
        let threshold = threshold::at_false_positive_rate(normals.clone(), rate).unwrap();
        let above = |threshold: f64| normals.iter().filter(|score| **score > threshold).count() as f64;
        prop_assert!(above(threshold) <= rate * normals.len() as f64);
        let lower = normals.iter().copied().filter(|score| *score < threshold - 1e-9).fold(f64::NEG_INFINITY, f64::max);
        if lower.is_finite() {
            prop_assert!(above(lower) > rate * normals.len() as f64);
        }
    }

    /// Ranking metrics do not change under an increasing function of the scores.
    #[test]
    fn ranking_depends_on_the_order_alone(pairs in scored()) {
        let (scores, labels) = split(&pairs);
        let raised: Vec<f64> = scores.iter().map(|score| (3.0 * score).exp()).collect();
        let (before, after) = (Ranking::new(&scores, &labels).metrics(), Ranking::new(&raised, &labels).metrics());
        prop_assert!(before == after || before.roc_auc.is_nan() && after.roc_auc.is_nan());
    }

    /// A weight counts as that many graphs, for decisions and for rankings.
    #[test]
    fn a_weight_is_a_number_of_copies(pairs in scored(), seed in any::<u64>()) {
        let weights: Vec<u32> = (0..pairs.len() as u64).map(|i| (kdgat::random::mix(seed ^ i) % 4) as u32).collect();
        let repeated: Vec<(f64, bool)> = pairs.iter().zip(&weights)
            .flat_map(|(pair, weight)| std::iter::repeat_n(*pair, *weight as usize)).collect();
        let (scores, labels) = split(&pairs);
        let (more_scores, more_labels) = split(&repeated);
        let decisions = [Decision::above("0.3", 0.3, &scores)];
        let more_decisions = [Decision::above("0.3", 0.3, &more_scores)];
        let weighted = Sample::new(&scores, &labels, &decisions).weighted(&weights);
        let copied = Sample::new(&more_scores, &more_labels, &more_decisions).metrics();
        for (a, b) in weighted[0].iter().zip(&copied[0]) {
            prop_assert!((a - b).abs() < 1e-12 || a.is_nan() && b.is_nan(), "{a} {b}");
        }
    }
}
