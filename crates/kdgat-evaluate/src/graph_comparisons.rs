//! Gains of a student from its teacher: the differences to the same student alone, on the same test graphs or nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::graph_runs::{Group, Mean, RunResult, lower_is_better};
use kdgat_config::run_settings::is_of_teacher;

/// The unit of the differences of a comparison: folds, or the seeds of one fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// One difference per fold.
    Folds,
    /// One difference per seed of a single fold. If seeds draw different divisions of one large graph, one per division.
    Seeds,
}

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The distilled students are better, and the interval of the difference excludes 0.
    Better,
    /// The distilled students are worse, and the interval of the difference excludes 0.
    Worse,
    /// The interval of the difference contains 0.
    NoDifference,
    /// A single difference has no interval.
    Unknown,
}

/// A metric of students with a teacher minus that of the same students alone, on the same test graphs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Group of the distilled students.
    pub distilled: String,
    /// Group of the same students without a teacher.
    pub alone: String,
    /// Name of the metric.
    pub metric: String,
    /// Mean of the distilled students over the compared runs.
    pub mean_distilled: f64,
    /// Mean of the students alone over the compared runs.
    pub mean_alone: f64,
    /// The unit that each difference belongs to.
    pub over: Over,
    /// One difference per fold or seed.
    pub differences: Vec<f64>,
    /// Mean difference.
    pub difference: f64,
    /// Its 95 % confidence interval; `None` for a single difference.
    pub interval: Option<[f64; 2]>,
    /// Conclusion from the interval.
    pub verdict: Verdict,
}

/// The test set of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TestSet<'a> {
    fold: &'a str,
    digest: &'a str,
}

impl<'a> TestSet<'a> {
    fn of(run: &'a RunResult) -> Self {
        Self { fold: &run.fold, digest: &run.test_digest }
    }
}

/// Values of a distilled student and of the same student alone, with one seed on one test set.
struct Pair<'a> {
    tested: TestSet<'a>,
    distilled: f64,
    alone: f64,
}

/// A group of distilled students and the runs that have the same settings and no teacher.
struct Partners<'g, 'a> {
    distilled: &'g Group<'a>,
    /// Name of the first group alone.
    name: &'g str,
    alone: Vec<&'a RunResult>,
}

fn partners<'g, 'a>(groups: &'g [Group<'a>]) -> Vec<Partners<'g, 'a>> {
    let base = |group: &Group| group.runs[0].settings_without(is_of_teacher);
    let of_group = |distilled: &'g Group<'a>| {
        let settings = base(distilled);
        let is_alone = |other: &&Group| !other.runs[0].distilled && base(other) == settings;
        let alone: Vec<&Group> = groups.iter().filter(is_alone).collect();
        // Runs of unknown settings cannot be matched.
        let name = &alone.first().filter(|_| !settings.is_empty())?.name;
        Some(Partners { distilled, name, alone: alone.iter().flat_map(|group| group.runs.iter().copied()).collect() })
    };
    groups.iter().filter(|group| group.runs[0].distilled).filter_map(of_group).collect()
}

/// Compares each group of distilled students with the runs that have the same settings and no teacher, metric by metric. A group
/// without such runs on one of its test sets, with the same seed, has no comparison.
pub fn comparisons(groups: &[Group<'_>]) -> Vec<Comparison> {
    let of_group = |partners: &Partners| {
        let metrics = partners.distilled.runs[0].metrics.iter();
        metrics.filter_map(|metric| compare(partners, &metric.name)).collect::<Vec<_>>()
    };
    partners(groups).iter().flat_map(of_group).collect()
}

/// A distilled student and one alone with the settings, fold and seed of a pair, but other test items: they are not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Name of the distilled student.
    pub distilled: String,
    /// Name of the student alone.
    pub alone: String,
    /// Digests of the test sets of both.
    pub test_digests: [String; 2],
}

impl Mismatch {
    /// Says what differs and what to do. `units` is what the runs are tested on: graphs or nodes.
    pub fn text(&self, units: &str) -> String {
        let Self { distilled, alone, test_digests: [one, other] } = self;
        format!(
            "{distilled} and {alone} have equal settings, fold and seed, but other test {units} ({one}, {other}): train one of them again on the \
             division of the other"
        )
    }
}

/// Finds the distilled students that have no partner on their test set although one has their fold and seed.
pub fn mismatches(groups: &[Group<'_>]) -> Vec<Mismatch> {
    let mut found = Vec::new();
    for Partners { distilled, alone, .. } in partners(groups) {
        for run in &distilled.runs {
            let like: Vec<&&RunResult> =
                alone.iter().filter(|other| other.fold == run.fold && other.seed == run.seed).collect();
            if let Some(other) = like.first().filter(|_| like.iter().all(|other| other.test_digest != run.test_digest))
            {
                found.push(Mismatch {
                    distilled: run.model.clone(),
                    alone: other.model.clone(),
                    test_digests: [run.test_digest.clone(), other.test_digest.clone()],
                });
            }
        }
    }
    found
}

fn compare(partners: &Partners<'_, '_>, metric: &str) -> Option<Comparison> {
    let Partners { distilled: group, name, alone } = partners;
    let pairs = pairs(&group.runs, alone, metric);
    let mut of_set: BTreeMap<TestSet<'_>, Vec<f64>> = BTreeMap::new();
    pairs.iter().for_each(|pair| of_set.entry(pair.tested).or_default().push(pair.distilled - pair.alone));
    let folds: BTreeSet<&str> = of_set.keys().map(|tested| tested.fold).collect();
    let over = if folds.len() > 1 { Over::Folds } else { Over::Seeds };
    // Seeds that share their test items are no further evidence beside other test sets.
    let differences: Vec<f64> = match of_set.len() {
        0 => return None,
        1 => of_set.values().flatten().copied().collect(),
        _ => of_set.values().map(|values| Mean::of(values).mean).collect(),
    };
    let interval = interval(&differences, if of_set.len() > 1 { overlap(&group.runs) } else { 0.0 });
    let mean = |value: fn(&Pair) -> f64| Mean::of(&pairs.iter().map(value).collect::<Vec<_>>()).mean;
    Some(Comparison {
        distilled: group.name.clone(),
        alone: (*name).to_owned(),
        metric: metric.to_owned(),
        mean_distilled: mean(|pair| pair.distilled),
        mean_alone: mean(|pair| pair.alone),
        over,
        difference: Mean::of(&differences).mean,
        differences,
        interval,
        verdict: verdict(interval, lower_is_better(metric)),
    })
}

/// Test items for each item seen in training, as a mean over runs.
fn overlap(runs: &[&RunResult]) -> f64 {
    let of_run = |run: &&RunResult| run.test_graphs as f64 / run.seen_graphs.max(1) as f64;
    runs.iter().map(of_run).sum::<f64>() / runs.len() as f64
}

/// Pairs of the same test set and seed in which the metric is defined; students of several teachers with both are averaged.
fn pairs<'a>(distilled: &[&'a RunResult], alone: &[&'a RunResult], metric: &str) -> Vec<Pair<'a>> {
    let mut values: BTreeMap<(TestSet<'a>, Option<u64>), [Vec<f64>; 2]> = BTreeMap::new();
    for (side, runs) in [distilled, alone].into_iter().enumerate() {
        for run in runs {
            values.entry((TestSet::of(run), run.seed)).or_default()[side].push(run.value(metric));
        }
    }
    let pair = |((tested, _), [distilled, alone]): ((TestSet<'a>, _), [Vec<f64>; 2])| {
        let (distilled, alone) = (Mean::of(&distilled).mean, Mean::of(&alone).mean);
        (distilled.is_finite() && alone.is_finite()).then_some(Pair { tested, distilled, alone })
    };
    values.into_iter().filter_map(pair).collect()
}

/// 95 % interval of the mean difference from Student's t. `overlap` is the number of test graphs for each graph seen in training:
/// the training sets of folds, or of divisions that seeds draw, overlap, so the variance of the mean is (1/n + overlap) s² (Nadeau &
/// Bengio 2003) instead of s²/n.
fn interval(differences: &[f64], overlap: f64) -> Option<[f64; 2]> {
    let Mean { mean, deviation, count } = Mean::of(differences);
    let half = t_quantile(count.checked_sub(1).filter(|degrees| *degrees > 0)?)
        * deviation
        * (1.0 / count as f64 + overlap).sqrt();
    Some([mean - half, mean + half])
}

/// 97.5 % quantile of Student's t distribution.
fn t_quantile(degrees: usize) -> f64 {
    match degrees {
        0 => f64::NAN,
        1 => 12.7062,
        2 => 4.3027,
        3 => 3.1824,
        4 => 2.7764,
        // Expansion in 1/degrees (Abramowitz & Stegun, 26.7.5): right to 0.0003 from 5 on.
        _ => {
            let inverse = 1.0 / degrees as f64;
            1.959_964 + inverse * (2.372_271 + inverse * (2.822_499 + inverse * (2.555_850 + inverse * 1.589_534)))
        }
    }
}

/// Conclusion from the 95 % interval of a difference.
pub(crate) fn verdict(interval: Option<[f64; 2]>, lower_is_better: bool) -> Verdict {
    match interval {
        None => Verdict::Unknown,
        Some([low, high]) if low <= 0.0 && high >= 0.0 => Verdict::NoDifference,
        Some([low, _]) if (low > 0.0) != lower_is_better => Verdict::Better,
        Some(_) => Verdict::Worse,
    }
}

impl Comparison {
    /// Formats `+0.0123 (95 %: -0.0161 to +0.0407) over 10 folds: no difference seen`.
    pub fn text(&self) -> String {
        let over = match self.over {
            Over::Folds => "folds",
            Over::Seeds => "seeds",
        };
        match self.interval {
            Some([low, high]) => format!(
                "{:+.4} (95 %: {low:+.4} to {high:+.4}) over {} {over}: {}",
                self.difference,
                self.differences.len(),
                self.verdict.words()
            ),
            None => format!("{:+.4} on one fold: {}", self.difference, self.verdict.words()),
        }
    }
}

impl Verdict {
    /// The result in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Better => "better with the teacher",
            Self::Worse => "worse with the teacher",
            Self::NoDifference => "no difference seen",
            Self::Unknown => "an interval needs several folds or seeds",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::graph_runs::groups;
    use super::super::test_runs::{run, with_setting};
    use super::*;

    fn only(runs: &[RunResult]) -> Comparison {
        let mut found = comparisons(&groups(runs));
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    /// Values of a table of Student's t distribution.
    #[test]
    fn quantiles_of_student_are_those_of_tables() {
        let known = [
            (1, 12.7062),
            (2, 4.3027),
            (3, 3.1824),
            (4, 2.7764),
            (5, 2.5706),
            (9, 2.2622),
            (29, 2.0452),
            (1000, 1.9623),
        ];
        for (degrees, expected) in known {
            assert!((t_quantile(degrees) - expected).abs() < 4e-4, "{degrees}: {}", t_quantile(degrees));
        }
    }

    /// By hand: differences 0.1, 0.2 and 0.3 have the mean 0.2 and the deviation 0.1. With 10 test graphs for 90 others, the half
    /// width is 4.3027 · 0.1 · √(1/3 + 1/9).
    #[test]
    fn differences_are_paired_by_fold() {
        let gains = [0.1, 0.2, 0.3];
        let of_fold = |fold: usize| {
            let alone = 0.3 * fold as f64;
            [run(false, fold, 1, alone), run(true, fold, 1, alone + gains[fold])]
        };
        let mut runs: Vec<RunResult> = (0..3).flat_map(of_fold).collect();
        // Without a partner on its fold, or with its seed.
        runs.extend([run(true, 3, 1, 0.0), run(false, 0, 2, 0.0)]);
        let found = only(&runs);
        let half = 4.3027 * 0.1 * (1.0f64 / 3.0 + 1.0 / 9.0).sqrt();
        let [low, high] = found.interval.unwrap();
        assert!((found.difference - 0.2).abs() < 1e-9 && (found.mean_alone - 0.3).abs() < 1e-9, "{found:?}");
        assert!((low - (0.2 - half)).abs() < 1e-9 && (high - (0.2 + half)).abs() < 1e-9, "{found:?}");
        assert_eq!((found.over, found.differences.len(), found.verdict), (Over::Folds, 3, Verdict::NoDifference));
        assert_eq!(found.text(), "+0.2000 (95 %: -0.0868 to +0.4868) over 3 folds: no difference seen");
    }

    #[test]
    fn seeds_of_one_fold_count_only_without_other_folds() {
        let pair = |fold, seed, gain| [run(false, fold, seed, 0.5), run(true, fold, seed, 0.5 + gain)];
        let seeds = [pair(0, 1, 0.1), pair(0, 2, 0.2)].concat();
        let found = only(&seeds);
        assert_eq!((found.over, found.differences.len()), (Over::Seeds, 2));
        let folds = [seeds, pair(1, 1, 0.45).to_vec()].concat();
        let found = only(&folds);
        assert_eq!((found.over, found.differences.len()), (Over::Folds, 2));
        assert!((found.difference - 0.3).abs() < 1e-9, "the mean of fold 0 counts once: {found:?}");
        let found = only(&pair(0, 1, 0.1));
        assert_eq!((found.interval, found.verdict), (None, Verdict::Unknown));
        assert_eq!(found.text(), "+0.1000 on one fold: an interval needs several folds or seeds");
    }

    /// The nodes of one large graph, which each seed divides anew: 30 nodes tested, 90 seen. By hand: 4.3027 · 0.1 · √(1/3 + 30/90).
    #[test]
    fn divisions_that_seeds_draw_overlap_like_folds() {
        let with_digest = |run: RunResult, digest: &str| RunResult {
            test_digest: digest.to_owned(),
            fold: "60 % training and 15 % validation nodes".to_owned(),
            test_graphs: 30,
            ..run
        };
        let pair = |seed: u64, gain: f64, digest: &str| {
            [run(false, 0, seed, 0.5), run(true, 0, seed, 0.5 + gain)].map(|run| with_digest(run, digest))
        };
        let half_of = |runs: &[RunResult]| {
            let found = only(runs);
            let [low, high] = found.interval.unwrap();
            assert!((found.difference - 0.2).abs() < 1e-9 && found.over == Over::Seeds && found.differences.len() == 3);
            assert!(((low + high) / 2.0 - 0.2).abs() < 1e-9);
            (high - low) / 2.0
        };
        let drawn = half_of(&[pair(1, 0.1, "a"), pair(2, 0.2, "b"), pair(3, 0.3, "c")].concat());
        assert!((drawn - 4.3027 * 0.1 * (1.0f64 / 3.0 + 30.0 / 90.0).sqrt()).abs() < 1e-9, "{drawn}");
        let same = half_of(&[pair(1, 0.1, "a"), pair(2, 0.2, "a"), pair(3, 0.3, "a")].concat());
        assert!((same - 4.3027 * 0.1 * (1.0f64 / 3.0).sqrt()).abs() < 1e-9, "the same training set: {same}");
        let mixed = [pair(1, 0.1, "a"), pair(2, 0.3, "a"), pair(1, 0.2, "b"), pair(1, 0.2, "c")].concat();
        assert!(half_of(&mixed).abs() < 1e-9, "seeds of one division count once");
    }

    #[test]
    fn runs_on_other_test_items_are_no_pair() {
        let with_digest = |digest: &str, run: RunResult| RunResult { test_digest: digest.to_owned(), ..run };
        let runs = [with_digest("a", run(false, 0, 1, 0.5)), with_digest("b", run(true, 0, 1, 0.9))];
        assert!(comparisons(&groups(&runs)).is_empty());
        let found = mismatches(&groups(&runs));
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].text("nodes"),
            format!(
                "gin_student_train_kd/1 and gin_student_train/1 have equal settings, fold and seed, but other test nodes (b, a): train one of them again \
             on the division of the other"
            )
        );
        let with_partner = [&runs[..], &[with_digest("b", run(false, 0, 1, 0.6))]].concat();
        assert!(mismatches(&groups(&with_partner)).is_empty());
        assert!((only(&with_partner).difference - 0.3).abs() < 1e-9);
        assert!(mismatches(&groups(&[run(false, 0, 1, 0.5), run(true, 1, 1, 0.5)])).is_empty(), "another fold");
    }

    #[test]
    fn the_sign_that_is_better_depends_on_the_metric() {
        let intervals = [Some([0.1, 0.2]), Some([-0.2, -0.1]), Some([-0.1, 0.1]), None];
        let higher = [Verdict::Better, Verdict::Worse, Verdict::NoDifference, Verdict::Unknown];
        assert_eq!(intervals.map(|interval| verdict(interval, false)), higher);
        let lower = [Verdict::Worse, Verdict::Better, Verdict::NoDifference, Verdict::Unknown];
        assert_eq!(intervals.map(|interval| verdict(interval, true)), lower);
        assert!(lower_is_better("y MAE") && lower_is_better("y RMSE") && !lower_is_better("y R2"));
    }

    #[test]
    fn other_settings_are_not_compared() {
        let other = with_setting(run(true, 0, 1, 0.9), "lr", json!(0.01));
        assert!(comparisons(&groups(&[run(false, 0, 1, 0.5), other])).is_empty());
        let unknown = |distilled| RunResult { settings: serde_json::Map::new(), ..run(distilled, 0, 1, 0.5) };
        assert!(comparisons(&groups(&[unknown(false), unknown(true)])).is_empty());
    }
}
