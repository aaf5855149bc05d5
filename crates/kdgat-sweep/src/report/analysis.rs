//! Analysis of a sweep: groups over seeds, best settings per dataset, effect of each axis, Pareto front, and paired comparisons.

use super::statistics::{Summary, permutation_test, summarize};
use crate::plan::{Direction, Plan, same_value};
use crate::state::Row;

/// Name of the axis of repeats, which are averaged.
const SEED: &str = "seed";
/// Name of the axis of datasets.
const DATA: &str = "data";

/// Test metrics that are shown beside a metric that was not selected on the test folders.
pub const TESTS: [&str; 2] = ["f1", "roc_auc"];

/// Names and values of axes.
type Settings = Vec<(String, String)>;

/// Trials that differ only by seed.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name and value of every axis but the seed.
    pub settings: Settings,
    pub metric: Option<Summary>,
    pub trials: usize,
    pub failed: usize,
    pub seconds: Option<Summary>,
    pub peak_memory_bytes: u64,
    pub parameters: Option<f64>,
    /// Milliseconds per graph at batch size 1, if evaluated.
    pub latency: Option<f64>,
    /// F1 and ROC AUC over the test folders ([`TESTS`]), if evaluated.
    pub tests: [Option<Summary>; TESTS.len()],
    /// Set when the group is on the Pareto front of size, latency and metric.
    pub on_front: bool,
}

impl Group {
    pub fn describe(&self) -> String {
        let texts: Vec<String> = self.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if texts.is_empty() { "all".to_owned() } else { texts.join(" ") }
    }

    fn mean(&self) -> Option<f64> {
        self.metric.map(|metric| metric.mean)
    }
}

/// Effect of an axis: the mean metric of each of its values over all other settings.
#[derive(Clone, Debug)]
pub struct Effect {
    pub axis: String,
    /// Value and summary of the metric, in the order of the sweep.
    pub values: Vec<(String, Summary)>,
    /// Largest mean minus smallest mean.
    pub spread: f64,
}

/// Paired comparison of two settings over all other settings.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub first: String,
    pub second: String,
    /// Difference second − first, one value per pair.
    pub difference: Summary,
    pub p_value: f64,
    /// Number of pairs in which the second is better.
    pub second_better: usize,
}

/// Groups the trials over seeds, in the order of the sweep.
pub fn groups(plan: &Plan, rows: &[Row]) -> Vec<Group> {
    let mut found: Vec<(Settings, Vec<&Row>)> = Vec::new();
    for row in rows {
        let settings = settings(plan, row, |axis| axis != SEED);
        match found.iter_mut().find(|(known, _)| *known == settings) {
            Some((_, rows)) => rows.push(row),
            None => found.push((settings, vec![row])),
        }
    }
    let mut groups: Vec<Group> = found.into_iter().map(|(settings, rows)| group(settings, &rows)).collect();
    let front: Vec<bool> = groups.iter().map(|group| is_on_front(plan.direction, group, &groups)).collect();
    groups.iter_mut().zip(front).for_each(|(group, on_front)| group.on_front = on_front);
    groups
}

fn group(settings: Settings, rows: &[&Row]) -> Group {
    let done: Vec<&&Row> = rows.iter().filter(|row| row.status.is_done()).collect();
    let values = |name: &str| done.iter().filter_map(|row| row.metrics.get(name).copied()).collect::<Vec<f64>>();
    let mean = |name: &str| summarize(&values(name)).map(|summary| summary.mean);
    let metrics: Vec<f64> = done.iter().filter_map(|row| row.metric).collect();
    let seconds: Vec<f64> = done.iter().map(|row| row.seconds).collect();
    Group {
        settings,
        metric: summarize(&metrics),
        trials: rows.len(),
        failed: rows.iter().filter(|row| row.reason.is_some() && !row.status.is_done()).count(),
        seconds: summarize(&seconds),
        peak_memory_bytes: done.iter().map(|row| row.peak_memory_bytes).max().unwrap_or(0),
        parameters: mean("parameters"),
        latency: mean("ms_per_graph_batch_1"),
        tests: TESTS.map(|name| summarize(&values(name))),
        on_front: false,
    }
}

fn settings(plan: &Plan, row: &Row, keeps: impl Fn(&str) -> bool) -> Settings {
    let pairs = plan.axes.iter().zip(&row.trial.labels).filter(|(axis, _)| keeps(axis));
    pairs.map(|(axis, label)| (axis.clone(), label.clone())).collect()
}

/// True if no other group of the same dataset dominates this one, that is, is no worse in metric, parameters and latency and
/// better in at least one.
fn is_on_front(direction: Direction, group: &Group, groups: &[Group]) -> bool {
    let smaller = |a: Option<f64>, b: Option<f64>| matches!((a, b), (Some(a), Some(b)) if a < b);
    let Some(metric) = group.mean() else { return false };
    let dominates = |other: &Group| {
        let Some(value) = other.mean() else { return false };
        let worse = direction.prefers(metric, value)
            || smaller(group.parameters, other.parameters)
            || smaller(group.latency, other.latency);
        let better = direction.prefers(value, metric)
            || smaller(other.parameters, group.parameters)
            || smaller(other.latency, group.latency);
        better && !worse
    };
    // Datasets are not compared with each other.
    let dataset = |group: &Group| group.settings.iter().find(|(axis, _)| axis == DATA).cloned();
    !groups.iter().filter(|other| dataset(other) == dataset(group)).any(dominates)
}

/// Returns the best group of each dataset, or of all groups if datasets do not vary.
pub fn best<'a>(plan: &Plan, groups: &'a [Group]) -> Vec<(String, &'a Group)> {
    let mut found: Vec<(String, &Group)> = Vec::new();
    for group in groups {
        let Some(mean) = group.mean() else { continue };
        let dataset = group.settings.iter().find(|(axis, _)| axis == DATA).map_or("all", |(_, value)| value);
        match found.iter_mut().find(|(known, _)| known == dataset) {
            Some((_, best)) => {
                if best.mean().is_none_or(|value| plan.direction.prefers(mean, value)) {
                    *best = group;
                }
            }
            None => found.push((dataset.to_owned(), group)),
        }
    }
    found
}

/// Computes the effect of each axis that varies, largest first.
pub fn effects(plan: &Plan, rows: &[Row]) -> Vec<Effect> {
    let mut effects = Vec::new();
    for (at, axis) in plan.axes.iter().enumerate() {
        let mut values: Vec<(String, Vec<f64>)> = Vec::new();
        for row in rows.iter().filter(|row| row.status.is_done()) {
            let (Some(metric), Some(label)) = (row.metric, row.trial.labels.get(at)) else { continue };
            match values.iter_mut().find(|(known, _)| known == label) {
                Some((_, metrics)) => metrics.push(metric),
                None => values.push((label.clone(), vec![metric])),
            }
        }
        let values: Vec<(String, Summary)> =
            values.into_iter().filter_map(|(label, metrics)| Some((label, summarize(&metrics)?))).collect();
        if values.len() > 1 {
            let means = values.iter().map(|(_, summary)| summary.mean);
            let spread = means.clone().fold(f64::NEG_INFINITY, f64::max) - means.fold(f64::INFINITY, f64::min);
            effects.push(Effect { axis: axis.clone(), values, spread });
        }
    }
    effects.sort_by(|a, b| b.spread.total_cmp(&a.spread));
    effects
}

/// Compares two settings by the pairs of finished trials that differ in nothing else. `first` and `second` are `AXIS=VALUE`
/// with two values of one axis.
///
/// # Errors
/// A message if a setting is unknown, both are the same or of different axes, or no such pair exists.
pub fn compare(plan: &Plan, rows: &[Row], first: &str, second: &str) -> Result<Comparison, String> {
    let (one, other) = (condition(plan, rows, first)?, condition(plan, rows, second)?);
    if one.0 != other.0 {
        return Err(format!(
            "`{first}` and `{second}` are values of two axes; give two values of one axis, such as `{first}` and another {}",
            one.0
        ));
    }
    if one.1 == other.1 {
        return Err(format!("`{first}` is given twice; compare it with another value of {}", one.0));
    }
    let rest = |row: &Row| settings(plan, row, |axis| axis != one.0);
    let chosen = |(axis, value): &(String, String)| {
        let at = plan.axes.iter().position(|known| known == axis);
        let matches =
            move |row: &&Row| at.is_some_and(|at| row.trial.labels.get(at) == Some(value)) && row.status.is_done();
        rows.iter().filter(matches).collect::<Vec<&Row>>()
    };
    let mut differences = Vec::new();
    for a in chosen(&one) {
        let Some(b) = chosen(&other).into_iter().find(|b| rest(b) == rest(a)) else { continue };
        differences.extend(b.metric.zip(a.metric).map(|(b, a)| b - a));
    }
    let (Some(difference), Some(p_value)) = (summarize(&differences), permutation_test(&differences)) else {
        return Err(format!("no pair of finished trials differs in {first} and {second} only"));
    };
    let second_better = differences.iter().filter(|&&difference| plan.direction.prefers(difference, 0.0)).count();
    Ok(Comparison { first: first.to_owned(), second: second.to_owned(), difference, p_value, second_better })
}

/// Parses `AXIS=VALUE` into an axis and the label of its value.
fn condition(plan: &Plan, rows: &[Row], text: &str) -> Result<(String, String), String> {
    let (axis, value) = text.split_once('=').ok_or_else(|| format!("`{text}`: expected AXIS=VALUE"))?;
    let Some(at) = plan.axes.iter().position(|known| known == axis) else {
        let near = kdgat_config::nearest(axis, plan.axes.iter().map(String::as_str));
        return Err(format!("`{text}`: there is no axis `{axis}`; the nearest is `{near}`"));
    };
    let labels = rows.iter().filter_map(|row| row.trial.labels.get(at)).map(String::as_str);
    match labels.clone().find(|label| same_value(plan.field(at), label, value)) {
        Some(label) => Ok((axis.to_owned(), label.to_owned())),
        None => Err(format!(
            "`{text}`: axis `{axis}` has no such value; the nearest is `{}`",
            kdgat_config::nearest(value, labels)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Surroundings, SweepFile, expand};
    use crate::state::Status;

    /// Two sizes, two learning rates, three seeds; metric = loss of the size + rate + 0.01 · seed.
    fn example() -> (Plan, Vec<Row>) {
        let text = "metric = \"val_loss\"\nseeds = [1, 2, 3]\n[[step]]\nname = \"student\"\ncommand = \"autoencoder\"\n\
                    preset = \"vgae,student\"\nset = { use_kd = false }\n[[axis]]\nname = \"size\"\ncases = [\n\
                    { label = \"small\", latent = 4 }, { label = \"large\", latent = 8 }]\n[[axis]]\nfield = \"lr\"\n\
                    values = [0.1, 0.2]\n";
        let folder = tempfile::tempdir().unwrap();
        let surroundings = Surroundings { working_folder: folder.path().to_owned(), variables: Vec::new() };
        let plan = expand(&SweepFile::parse("test", text).unwrap(), "test", "test", &surroundings).unwrap();
        let row = |trial: &crate::plan::Trial| {
            let (size, rate, seed) = (&trial.labels[0], &trial.labels[1], trial.labels[2].parse::<f64>().unwrap());
            let metric = if size == "small" { 1.0 } else { 0.5 } + rate.parse::<f64>().unwrap() + 0.01 * seed;
            let parameters = if size == "small" { 100.0 } else { 200.0 };
            Row {
                trial: trial.clone(),
                status: Status::Done,
                metric: Some(metric),
                metrics: [("parameters".to_owned(), parameters)].into(),
                attempts: 1,
                rung: 0,
                seconds: 2.0,
                peak_memory_bytes: 10,
                epochs: 5,
                run: None,
                reason: None,
            }
        };
        let rows = plan.trials.iter().map(row).collect();
        (plan, rows)
    }

    #[test]
    fn groups_best_effects_and_front() {
        let (plan, rows) = example();
        let groups = groups(&plan, &rows);
        assert_eq!(groups.len(), 4);
        let first = groups[0].metric.unwrap();
        assert_eq!(first.count, 3);
        assert!((first.mean - 1.12).abs() < 1e-12 && (first.deviation.unwrap() - 0.01).abs() < 1e-12, "{first:?}");
        assert_eq!(best(&plan, &groups)[0].1.describe(), "size=large lr=0.1");
        let front: Vec<String> = groups.iter().filter(|group| group.on_front).map(Group::describe).collect();
        assert_eq!(front, ["size=small lr=0.1", "size=large lr=0.1"]);
        let effects = effects(&plan, &rows);
        let order: Vec<&str> = effects.iter().map(|effect| effect.axis.as_str()).collect();
        assert_eq!(order, ["size", "lr", "seed"]);
        assert!((effects[0].spread - 0.5).abs() < 1e-12 && (effects[1].spread - 0.1).abs() < 1e-12);
    }

    #[test]
    fn pairs_differ_in_one_thing() {
        let (plan, rows) = example();
        let found = compare(&plan, &rows, "lr=0.1", "lr=0.2").unwrap();
        assert_eq!(found.difference.count, 6);
        assert!((found.difference.mean - 0.1).abs() < 1e-12);
        assert_eq!((found.second_better, found.p_value), (0, 2.0 / 64.0));
        let written_otherwise = compare(&plan, &rows, "lr=1e-1", "lr=0.20").unwrap();
        assert_eq!((written_otherwise.difference, written_otherwise.first.as_str()), (found.difference, "lr=1e-1"));
        assert!(compare(&plan, &rows, "lr=0.1", "lr=1e-1").unwrap_err().contains("given twice"));
        assert_eq!(compare(&plan, &rows, "seed=1", "seed=2").unwrap().difference.count, 4);
        assert!(compare(&plan, &rows, "lr=0.1", "lr=0.3").unwrap_err().contains("nearest"));
        assert!(compare(&plan, &rows, "rl=0.1", "lr=0.2").unwrap_err().contains("`lr`"));
        assert!(compare(&plan, &rows, "lr=0.1", "lr=0.1").unwrap_err().contains("given twice"));
        assert!(compare(&plan, &rows, "lr=0.1", "size=small").unwrap_err().contains("values of two axes"));
        assert!(compare(&plan, &rows[..1], "lr=0.1", "lr=0.1").is_err(), "compared with itself");
        assert!(compare(&plan, &rows, "lr", "lr=0.2").unwrap_err().contains("AXIS=VALUE"));
    }
}
