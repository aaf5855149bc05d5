//! Results of runs of `kdgat train`: their means over folds and seeds, and what a teacher adds to a student.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::graphs::Metric;
use kdgat_train::run_settings::{Setting, describe, distinguishing, is_learned_from, is_of_teacher};

/// A run and its metrics on the test graphs of its fold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Name of the run with its number.
    pub model: String,
    /// Name of the run without the number.
    pub group: String,
    /// True if it was trained with a teacher.
    pub distilled: bool,
    /// Number of trained parameters.
    pub parameters: usize,
    /// Division that its test graphs come from: `fold 0 of 10`.
    pub fold: String,
    /// Seed of its training.
    pub seed: Option<u64>,
    /// Number of graphs that it saw in training or validation.
    pub seen_graphs: usize,
    /// Number of test graphs.
    pub test_graphs: usize,
    /// Digest of the test nodes of one large graph, whose division depends on the seed; empty for many graphs.
    pub test_digest: String,
    /// Settings that influence its losses, without the seed.
    pub settings: serde_json::Map<String, Value>,
    /// Metrics, the most important first.
    pub metrics: Vec<Metric>,
    /// The same metrics for always predicting the most frequent class, or the mean.
    pub baseline: Vec<Metric>,
    /// The same metrics for a model that is linear in the sums of node features; empty if there is none.
    pub linear: Vec<Metric>,
    /// The same metrics for label propagation; empty for many graphs.
    pub propagated: Vec<Metric>,
}

impl RunResult {
    /// A metric; `None` if it has none of this name.
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// Value of a metric; NaN if it has none of this name.
    pub fn value(&self, metric: &str) -> f64 {
        value(&self.metrics, metric)
    }

    fn settings_without(&self, is_left_out: impl Fn(&str) -> bool) -> Vec<Setting> {
        let kept = self.settings.iter().filter(|(name, _)| !is_left_out(name));
        kept.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

fn value(metrics: &[Metric], name: &str) -> f64 {
    metrics.iter().find(|metric| metric.name == name).map_or(f64::NAN, |metric| metric.value)
}

/// Names of the metrics of these runs, the most important first. Not every run has all of them.
pub fn metric_names(runs: &[RunResult]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for metric in runs.iter().flat_map(|run| &run.metrics) {
        if !names.contains(&metric.name.as_str()) {
            names.push(&metric.name);
        }
    }
    names
}

/// True if a smaller value of this metric is better.
pub fn lower_is_better(metric: &str) -> bool {
    metric.ends_with(" MAE") || metric.ends_with(" RMSE") || metric.ends_with(" rank")
}

/// Mean and standard deviation of some values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mean {
    /// NaN without a finite value.
    pub mean: f64,
    /// Standard deviation of a sample; NaN for fewer than two values.
    pub deviation: f64,
    /// Number of finite values.
    pub count: usize,
}

impl Mean {
    /// Mean of the finite values.
    pub fn of(values: &[f64]) -> Self {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let count = finite.len();
        let mean = finite.iter().sum::<f64>() / count as f64;
        let squares: f64 = finite.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { f64::NAN };
        Self { mean, deviation, count }
    }

    /// Formats `0.7345 ± 0.0298`, without the deviation for a single value.
    pub fn text(&self) -> String {
        match self.count {
            0 => "–".to_owned(),
            1 => format!("{:.4}", self.mean),
            _ => format!("{:.4} ± {:.4}", self.mean, self.deviation),
        }
    }
}

/// Runs of one kind that differ only by fold, seed, or the teacher of their fold.
#[derive(Debug, Clone)]
pub struct Group<'a> {
    /// Name of the runs without their numbers, with the settings in which groups of that name differ.
    pub name: String,
    /// The runs, at least one.
    pub runs: Vec<&'a RunResult>,
}

impl Group<'_> {
    /// Mean of a metric over the runs.
    pub fn mean(&self, metric: &str) -> Mean {
        Mean::of(&self.runs.iter().map(|run| run.value(metric)).collect::<Vec<_>>())
    }

    /// Number of different folds.
    pub fn folds(&self) -> usize {
        self.runs.iter().map(|run| run.fold.as_str()).collect::<BTreeSet<_>>().len()
    }
}

/// Groups the runs, in the order of their first members.
pub fn groups(runs: &[RunResult]) -> Vec<Group<'_>> {
    // Each fold has a teacher and a difficulty model of its own, so they do not tell groups apart.
    let settings = |run: &RunResult| run.settings_without(is_learned_from);
    let mut groups: Vec<Group> = Vec::new();
    for run in runs {
        let is_alike = |group: &&mut Group| {
            group.runs[0].group == run.group
                && group.runs[0].distilled == run.distilled
                && settings(group.runs[0]) == settings(run)
        };
        match groups.iter_mut().find(is_alike) {
            Some(group) => group.runs.push(run),
            None => groups.push(Group { name: run.group.clone(), runs: vec![run] }),
        }
    }
    let name = |group: &Group| {
        let of_name = groups.iter().filter(|other| other.name == group.name);
        let settings_of_name: Vec<Vec<Setting>> = of_name.map(|other| settings(other.runs[0])).collect();
        let alike: Vec<&[Setting]> = settings_of_name.iter().map(Vec::as_slice).collect();
        match describe(&settings(group.runs[0]), &distinguishing(&alike)) {
            differing if differing.is_empty() => group.name.clone(),
            differing => format!("{} ({differing})", group.name),
        }
    };
    let names: Vec<String> = groups.iter().map(name).collect();
    groups.iter_mut().zip(names).for_each(|(group, name)| group.name = name);
    groups
}

/// Mean of a metric of the simplest baseline: every fold counts once.
pub fn baseline(runs: &[RunResult], metric: &str) -> Mean {
    over_folds(runs, |run| value(&run.baseline, metric))
}

/// Mean of a metric of the linear model: every fold counts once.
pub fn linear(runs: &[RunResult], metric: &str) -> Mean {
    over_folds(runs, |run| value(&run.linear, metric))
}

/// Mean of a metric of label propagation: every division counts once.
pub fn propagated(runs: &[RunResult], metric: &str) -> Mean {
    over_folds(runs, |run| value(&run.propagated, metric))
}

fn over_folds(runs: &[RunResult], value: impl Fn(&RunResult) -> f64) -> Mean {
    let of_run = runs.iter().map(|run| ((run.fold.as_str(), run.test_digest.as_str()), value(run)));
    // Not every run of a fold has all metrics.
    let of_fold: BTreeMap<(&str, &str), f64> = of_run.filter(|(_, value)| value.is_finite()).collect();
    Mean::of(&of_fold.into_values().collect::<Vec<_>>())
}

/// Name of the simplest baseline.
pub const BASELINE: &str = "most frequent or mean";
/// Name of the linear model.
pub const LINEAR: &str = "linear in node features";
/// Name of label propagation.
pub const PROPAGATED: &str = "label propagation";

/// The unit of the differences of a comparison: folds, or the seeds of one fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// One difference per fold.
    Folds,
    /// One difference per seed of a single fold.
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

/// Values of a distilled student and of the same student alone, with one seed on one fold.
struct Pair<'a> {
    fold: &'a str,
    distilled: f64,
    alone: f64,
}

/// Compares each group of distilled students with the runs that have the same settings and no teacher, metric by metric. A group
/// without such runs on one of its folds, with the same seed, has no comparison.
pub fn comparisons(groups: &[Group<'_>]) -> Vec<Comparison> {
    let base = |group: &Group| group.runs[0].settings_without(is_of_teacher);
    let mut found = Vec::new();
    for group in groups.iter().filter(|group| group.runs[0].distilled) {
        let settings = base(group);
        let is_alone = |other: &&Group| !other.runs[0].distilled && base(other) == settings;
        let alone: Vec<&Group> = groups.iter().filter(is_alone).collect();
        // Runs of unknown settings cannot be matched.
        let Some(first) = alone.first().filter(|_| !settings.is_empty()) else { continue };
        let runs: Vec<&RunResult> = alone.iter().flat_map(|group| group.runs.iter().copied()).collect();
        for metric in &group.runs[0].metrics {
            found.extend(compare(group, &first.name, &runs, &metric.name));
        }
    }
    found
}

fn compare(group: &Group<'_>, alone: &str, runs: &[&RunResult], metric: &str) -> Option<Comparison> {
    let pairs = pairs(&group.runs, runs, metric);
    let mut of_fold: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    pairs.iter().for_each(|pair| of_fold.entry(pair.fold).or_default().push(pair.distilled - pair.alone));
    // Seeds of one fold share their test graphs: they are no further evidence beside other folds.
    let (over, differences) = match of_fold.len() {
        0 => return None,
        1 => (Over::Seeds, of_fold.into_values().flatten().collect::<Vec<_>>()),
        _ => (Over::Folds, of_fold.values().map(|values| Mean::of(values).mean).collect()),
    };
    let overlap = match over {
        Over::Folds => group.runs.iter().map(|run| run.test_graphs as f64 / run.seen_graphs.max(1) as f64).sum::<f64>(),
        Over::Seeds => 0.0,
    };
    let interval = interval(&differences, overlap / group.runs.len() as f64);
    let mean = |value: fn(&Pair) -> f64| Mean::of(&pairs.iter().map(value).collect::<Vec<_>>()).mean;
    Some(Comparison {
        distilled: group.name.clone(),
        alone: alone.to_owned(),
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

/// Pairs of the same fold and seed in which the metric is defined; runs that repeat both are averaged.
fn pairs<'a>(distilled: &[&'a RunResult], alone: &[&'a RunResult], metric: &str) -> Vec<Pair<'a>> {
    let mut values: BTreeMap<(&str, Option<u64>), [Vec<f64>; 2]> = BTreeMap::new();
    for (side, runs) in [distilled, alone].into_iter().enumerate() {
        for run in runs {
            values.entry((run.fold.as_str(), run.seed)).or_default()[side].push(run.value(metric));
        }
    }
    let pair = |((fold, _), [distilled, alone]): ((&'a str, _), [Vec<f64>; 2])| {
        let (distilled, alone) = (Mean::of(&distilled).mean, Mean::of(&alone).mean);
        (distilled.is_finite() && alone.is_finite()).then_some(Pair { fold, distilled, alone })
    };
    values.into_iter().filter_map(pair).collect()
}

/// 95 % interval of the mean difference from Student's t. `overlap` is the number of test graphs for each graph seen in training:
/// the training sets of folds overlap, so the variance of the mean is (1/n + overlap) s² (Nadeau & Bengio 2003) instead of s²/n.
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

    use super::*;

    fn run(distilled: bool, fold: usize, seed: u64, accuracy: f64) -> RunResult {
        let group = if distilled { "gin_student_train_kd" } else { "gin_student_train" };
        let metric = |value| Metric { name: "accuracy".to_owned(), value, interval: None };
        let mut settings = json!({ "model": "gin", "lr": 0.002 });
        if distilled {
            settings["kd_alpha"] = json!(0.5);
            settings["teacher"] = json!(format!("digest of fold {fold}"));
        }
        RunResult {
            model: format!("{group}/{}", fold + 1),
            group: group.to_owned(),
            distilled,
            parameters: 100,
            fold: format!("fold {fold} of 10"),
            seed: Some(seed),
            seen_graphs: 90,
            test_graphs: 10,
            settings: settings.as_object().unwrap().clone(),
            metrics: vec![metric(accuracy)],
            baseline: vec![metric(0.5 + fold as f64)],
            linear: Vec::new(),
            propagated: Vec::new(),
            test_digest: String::new(),
        }
    }

    fn with_setting(mut run: RunResult, name: &str, value: Value) -> RunResult {
        run.settings.insert(name.to_owned(), value);
        run
    }

    fn only(runs: &[RunResult]) -> Comparison {
        let mut found = comparisons(&groups(runs));
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn means_skip_what_is_undefined() {
        assert_eq!(Mean::of(&[1.0, 3.0, f64::NAN]), Mean { mean: 2.0, deviation: 2.0f64.sqrt(), count: 2 });
        assert_eq!(Mean::of(&[0.5]).text(), "0.5000");
        assert_eq!(Mean::of(&[f64::NAN]).text(), "–");
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

    #[test]
    fn groups_differ_by_settings_and_not_by_fold_seed_or_the_teacher_of_the_fold() {
        let wide = |fold| with_setting(run(false, fold, 1, 0.8), "hidden", json!([64]));
        let narrow = |fold, seed| with_setting(run(false, fold, seed, 0.6), "hidden", json!([32]));
        let runs = [narrow(0, 1), wide(0), narrow(1, 2), run(true, 0, 1, 0.7), run(true, 1, 1, 0.9)];
        let found = groups(&runs);
        let names: Vec<(&str, usize)> = found.iter().map(|group| (group.name.as_str(), group.runs.len())).collect();
        let expected = [
            ("gin_student_train (hidden [32])", 2),
            ("gin_student_train (hidden [64])", 1),
            ("gin_student_train_kd", 2),
        ];
        assert_eq!(names, expected);
        assert_eq!((found[0].folds(), found[2].mean("accuracy").text().as_str()), (2, "0.8000 ± 0.1414"));
        assert_eq!(baseline(&runs, "accuracy"), Mean::of(&[0.5, 1.5]), "a fold counts once");
        let mut runs = runs.to_vec();
        runs[4].baseline.clear();
        assert_eq!(baseline(&runs, "accuracy"), Mean::of(&[0.5, 1.5]), "another run of the fold has the metric");
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
