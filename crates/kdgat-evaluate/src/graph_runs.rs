//! Results of runs of `kdgat train`, and their means over folds and seeds.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use super::graph_comparisons::{Comparison, Mismatch, Over, Verdict, comparisons, mismatches};
use super::graphs::Metric;
use super::molecules::DrawnGraph;
use kdgat_config::run_settings::{Setting, describe, distinguishing, is_learned_from};

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
    /// True if it began with weights that may have seen its test graphs (`--transductive`), or learned from them without labels.
    #[serde(default)]
    pub saw_tests: bool,
    /// Number of graphs that it saw in training or validation.
    pub seen_graphs: usize,
    /// Number of test graphs.
    pub test_graphs: usize,
    /// Digest of the test graphs or nodes. On one large graph, it may depend on the seed.
    pub test_digest: String,
    /// Settings that influence its losses, without the seed.
    pub settings: serde_json::Map<String, Value>,
    /// Metrics, the most important first.
    pub metrics: Vec<Metric>,
    /// The same metrics for always predicting the most frequent class, or the mean.
    pub baseline: Vec<Metric>,
    /// The same metrics for a model that is linear in the sums of node features, or in descriptors of trees; empty if there is none.
    pub linear: Vec<Metric>,
    /// The same metrics for label propagation; empty for many graphs.
    pub propagated: Vec<Metric>,
    /// Test graphs to draw with its errors; empty for a model that reads no positions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drawn: Vec<DrawnGraph>,
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

    /// True if another run has the same settings, teacher, test set and seed. A run of unknown settings or seed repeats none.
    fn is_repeated_by(&self, other: &Self) -> bool {
        let identity = |run: &Self| (run.fold.clone(), run.test_digest.clone(), run.seed);
        !self.settings.is_empty()
            && self.seed.is_some()
            && identity(self) == identity(other)
            && self.settings == other.settings
    }

    pub(crate) fn settings_without(&self, is_left_out: impl Fn(&str) -> bool) -> Vec<Setting> {
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
    let errors = [" MAE", " RMSE", " rank", " MSE", " CE", " BCE", " EMD", " hinge"];
    metric == "error" || errors.iter().any(|ending| metric.ends_with(ending))
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
    /// The runs, at least one, without those that repeat another.
    pub runs: Vec<&'a RunResult>,
    /// Runs that repeat one of `runs`, which are no further evidence.
    pub repeats: Vec<Repeat<'a>>,
}

/// A run with the settings, the test set and the seed of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Repeat<'a> {
    /// Name of the run.
    pub model: &'a str,
    /// Name of the run that it repeats.
    pub of: &'a str,
}

impl Repeat<'_> {
    /// Formats `gin/2 repeats gin/1`.
    pub fn text(&self) -> String {
        format!("{} repeats {}", self.model, self.of)
    }
}

impl<'a> Group<'a> {
    fn add(&mut self, run: &'a RunResult) {
        match self.runs.iter().find(|known| known.is_repeated_by(run)) {
            Some(known) => self.repeats.push(Repeat { model: &run.model, of: &known.model }),
            None => self.runs.push(run),
        }
    }

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
            Some(group) => group.add(run),
            None => groups.push(Group { name: run.group.clone(), runs: vec![run], repeats: Vec::new() }),
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
/// Name of the linear model: least squares on the sums of node features, or for classes of rooted trees logistic regression on their descriptors.
pub const LINEAR: &str = "linear in features";
/// Name of label propagation.
pub const PROPAGATED: &str = "label propagation";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_runs::{run, with_setting};
    use super::*;

    #[test]
    fn means_skip_what_is_undefined() {
        assert_eq!(Mean::of(&[1.0, 3.0, f64::NAN]), Mean { mean: 2.0, deviation: 2.0f64.sqrt(), count: 2 });
        assert_eq!(Mean::of(&[0.5]).text(), "0.5000");
        assert_eq!(Mean::of(&[f64::NAN]).text(), "–");
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

    #[test]
    fn repeats_are_named_and_counted_once() {
        let named = |name: &str, run: RunResult| RunResult { model: name.to_owned(), ..run };
        let first = named("a/1", run(false, 0, 1, 0.5));
        let runs = [first.clone(), named("a/2", run(false, 0, 2, 0.7)), named("a/3", run(false, 0, 1, 0.5))];
        let found = groups(&runs);
        assert_eq!((found.len(), found[0].mean("accuracy").text().as_str()), (1, "0.6000 ± 0.1414"));
        assert_eq!(found[0].repeats, [Repeat { model: "a/3", of: "a/1" }]);
        assert_eq!(found[0].repeats[0].text(), "a/3 repeats a/1");
        let is_counted =
            |other: RunResult| groups(&[first.clone(), other]).iter().all(|group| group.repeats.is_empty());
        assert!(is_counted(run(false, 1, 1, 0.5)), "another fold");
        assert!(is_counted(RunResult { test_digest: "other".to_owned(), ..first.clone() }), "another division");
        assert!(is_counted(RunResult { seed: None, ..first.clone() }), "an unknown seed");
        let taught = |teacher: &str| with_setting(run(true, 0, 1, 0.5), "teacher", json!(teacher));
        assert!(groups(&[taught("one"), taught("other")])[0].repeats.is_empty(), "another teacher");
        assert_eq!(groups(&[taught("one"), taught("one")])[0].repeats.len(), 1);
    }
}
