//! Laws of the metrics, on random scores with many ties.

use kdgat::evaluate::metrics::{Confusion, Decision, Sample};
use kdgat::evaluate::operator::{Cut, JudgedWindow, OperatorFigures};
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

/// A file's windows with uneven durations, now and then a gap or a step back in time, and how they are cut.
fn watched() -> impl Strategy<Value = (Cut, Vec<JudgedWindow>)> {
    let step = prop_oneof![20 => 0.01f64..0.6, 1 => 3.0f64..9000.0, 1 => -20.0f64..0.0];
    let windows =
        prop::collection::vec((step, prop::bool::weighted(0.3), any::<bool>(), prop::bool::weighted(0.9)), 0..260);
    let cut = (1usize..200, 1usize..200).prop_map(|(window, stride)| Cut { window, stride });
    (cut, windows).prop_map(|(cut, windows)| {
        let mut start = 1e6;
        let window = |(step, attack, alarm, counted): (f64, bool, bool, bool)| {
            start += step;
            JudgedWindow { start, attack, alarm: alarm && counted, counted }
        };
        (cut, windows.into_iter().map(window).collect())
    })
}

fn figures((cut, windows): &(Cut, Vec<JudgedWindow>)) -> OperatorFigures {
    OperatorFigures::of(*cut, windows.iter().copied())
}

proptest! {
    /// Episodes found are at most the episodes, which are at most the attack windows; counts are those of the windows.
    #[test]
    fn operator_figures_have_their_bounds(watched in watched()) {
        let found = figures(&watched);
        let count = |of: fn(&JudgedWindow) -> bool| watched.1.iter().filter(|window| window.counted && of(window)).count() as u64;
        prop_assert_eq!(found.false_alarms, count(|window| window.alarm && !window.attack));
        prop_assert_eq!(found.alarms, count(|window| window.alarm));
        prop_assert!(found.episodes_found() <= found.episodes && found.episodes <= count(|window| window.attack));
        prop_assert!(found.episodes_found() <= count(|window| window.attack && window.alarm));
        prop_assert!(found.alarm_episodes <= found.alarms && (found.alarm_episodes > 0) == (found.alarms > 0));
        prop_assert!((found.episodes > 0) == (count(|window| window.attack) > 0));
        prop_assert!((found.episodes_found() > 0) == (count(|window| window.attack && window.alarm) > 0));
        prop_assert!(0.0 <= found.seconds_without_attack && found.seconds_without_attack <= found.seconds + 1e-6);
        let [median, largest] = [found.median_delay_seconds(), found.largest_delay_seconds()];
        prop_assert!(found.delays_seconds.iter().all(|delay| *delay >= -1e-9));
        prop_assert!(median.is_nan() && largest.is_nan() || median <= largest);
    }

    /// One more alarm in a window with an attack never finds less, and never finds an episode later.
    #[test]
    fn an_alarm_in_an_attack_never_finds_less(watched in watched(), place in any::<prop::sample::Index>()) {
        let before = figures(&watched);
        let (cut, mut windows) = watched;
        let attacks: Vec<usize> = (0..windows.len()).filter(|&at| windows[at].attack && windows[at].counted).collect();
        prop_assume!(!attacks.is_empty());
        windows[attacks[place.index(attacks.len())]].alarm = true;
        let after = figures(&(cut, windows));
        prop_assert!(after.episodes_found() >= before.episodes_found());
        prop_assert_eq!((after.episodes, after.false_alarms), (before.episodes, before.false_alarms));
        if after.episodes_found() == before.episodes_found() {
            let sum = |of: &OperatorFigures| of.delays_seconds.iter().sum::<f64>();
            prop_assert!(sum(&after) <= sum(&before) + 1e-6);
        }
    }

    /// One more false alarm changes neither hours nor episodes of attacks.
    #[test]
    fn a_false_alarm_is_one_more(watched in watched(), place in any::<prop::sample::Index>()) {
        let quiet = |window: &JudgedWindow| window.counted && !window.attack && !window.alarm;
        let places: Vec<usize> = (0..watched.1.len()).filter(|&at| quiet(&watched.1[at])).collect();
        prop_assume!(!places.is_empty());
        let before = figures(&watched);
        let (cut, mut windows) = watched;
        windows[places[place.index(places.len())]].alarm = true;
        let after = figures(&(cut, windows));
        prop_assert_eq!(after.false_alarms, before.false_alarms + 1);
        prop_assert_eq!(after.delays_seconds, before.delays_seconds);
        prop_assert_eq!(
            (after.seconds, after.seconds_without_attack, after.episodes),
            (before.seconds, before.seconds_without_attack, before.episodes)
        );
    }

    /// Without gaps and steps back, the hours are the time from the first start to the last, and the last window.
    #[test]
    fn traffic_without_gaps_is_counted_whole(steps in prop::collection::vec(0.01f64..0.9, 2..300), stride in 1usize..200) {
        let mut start = 0.0;
        let window = |step: &f64| {
            start += step;
            JudgedWindow { start, attack: false, alarm: false, counted: true }
        };
        let windows: Vec<JudgedWindow> = steps.iter().map(window).collect();
        let between = windows[windows.len() - 1].start - windows[0].start;
        let found = OperatorFigures::of(Cut { window: 100, stride }, windows);
        let last = found.seconds - between;
        prop_assert!((0.01 - 1e-9..0.9 + 1e-9).contains(&last), "the last window takes {last} s");
    }

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
