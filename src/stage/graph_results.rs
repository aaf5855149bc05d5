//! The results of an evaluation on graphs or nodes: the printed tables, `graph_metrics.json` and `graph_metrics.csv`.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::StageError;
use super::recorded_runs::Subject;
use crate::evaluate::graph_runs::{
    self, BASELINE, Comparison, Group, LINEAR, Mean, Mismatch, PROPAGATED, Repeat, RunResult,
};
use crate::evaluate::graphs::Metric;
use crate::files;
use crate::graph::Task;

/// Mark of runs that may have seen their test items.
const SAW_TESTS_MARK: &str = " (transductive)";

/// Writes the results of runs to a folder. Returns the tables for the user.
pub(super) fn write_results(
    folder: &Path,
    of: &Subject,
    task: Task,
    evaluated: &[RunResult],
) -> Result<String, StageError> {
    let groups = graph_runs::groups(evaluated);
    let (comparisons, mismatches) = (graph_runs::comparisons(&groups), graph_runs::mismatches(&groups));
    let compared = Compared { groups: &groups, comparisons: &comparisons, mismatches: &mismatches };
    fs::create_dir_all(folder).map_err(files::failed("write", folder))?;
    write_json(folder, of, task, evaluated, &compared)?;
    write_csv(folder, evaluated)?;
    Ok(text(of, evaluated, &compared))
}

/// The runs in groups, and the differences between these.
struct Compared<'a> {
    groups: &'a [Group<'a>],
    comparisons: &'a [Comparison],
    /// Runs that would be compared if they had the same test items.
    mismatches: &'a [Mismatch],
}

impl Compared<'_> {
    fn repeats(&self) -> impl Iterator<Item = &Repeat<'_>> {
        self.groups.iter().flat_map(|group| &group.repeats)
    }
}

/// Line of a printed table.
struct Line {
    name: String,
    parameters: String,
    /// Number of test graphs, or of runs.
    count: String,
    /// One for each metric.
    cells: Vec<String>,
}

fn text(of: &Subject, runs: &[RunResult], compared: &Compared<'_>) -> String {
    let Compared { groups, comparisons, mismatches } = compared;
    let metrics = graph_runs::metric_names(runs);
    let head = |count: &str| Line {
        name: "model".to_owned(),
        parameters: "parameters".to_owned(),
        count: count.to_owned(),
        cells: metrics.iter().map(|name| (*name).to_owned()).collect(),
    };
    let marked = |name: &str, saw_tests: bool| format!("{name}{}", if saw_tests { SAW_TESTS_MARK } else { "" });
    let of_run = |run: &RunResult| Line {
        name: marked(&run.model, run.saw_tests),
        parameters: run.parameters.to_string(),
        count: run.test_graphs.to_string(),
        cells: metrics.iter().map(|metric| run.metric(metric).map_or("–".to_owned(), cell)).collect(),
    };
    let of_group = |group: &Group| Line {
        name: marked(&group.name, group.runs.iter().any(|run| run.saw_tests)),
        parameters: group.runs[0].parameters.to_string(),
        count: group.runs.len().to_string(),
        cells: metrics.iter().map(|metric| group.mean(metric).text()).collect(),
    };
    let baseline = |name: &str, mean: fn(&[RunResult], &str) -> Mean| Line {
        name: name.to_owned(),
        parameters: "0".to_owned(),
        count: String::new(),
        cells: metrics.iter().map(|metric| mean(runs, metric).text()).collect(),
    };
    let has_linear = runs.iter().any(|run| !run.linear.is_empty());
    let linear = has_linear.then(|| baseline(LINEAR, graph_runs::linear));
    let has_propagated = runs.iter().any(|run| !run.propagated.is_empty());
    let propagated = has_propagated.then(|| baseline(PROPAGATED, graph_runs::propagated));
    let baselines = [baseline(BASELINE, graph_runs::baseline)].into_iter().chain(linear).chain(propagated);
    let every: Vec<Line> = [head(of.unit)].into_iter().chain(runs.iter().map(of_run)).collect();
    let means = groups.iter().map(of_group).chain(baselines);
    let means: Vec<Line> = [head("runs")].into_iter().chain(means).collect();
    let width = every.iter().chain(&means).map(|line| line.name.chars().count()).max().unwrap_or(0);
    let mut text = format!("{}\n\n{}", of.dataset, aligned(&every, width));
    text += &format!("\nmeans over runs that differ by fold or seed\n\n{}", aligned(&means, width));
    if runs.iter().any(|run| run.saw_tests) {
        text += &format!(
            "\n{}: learned from these test {} without their labels, or began with weights that may have seen them (--transductive)\n",
            SAW_TESTS_MARK.trim_start(),
            of.unit
        );
    }
    if let Some(first) = compared.repeats().next() {
        let others: String = compared.repeats().skip(1).map(|repeat| format!(", {}", repeat.text())).collect();
        text += &format!("\ncounted once, with equal settings, fold and seed: {}{others}\n", first.text());
    }
    let of_first: Vec<&Comparison> =
        comparisons.iter().filter(|found| metrics.first() == Some(&found.metric.as_str())).collect();
    if !of_first.is_empty() {
        text += &format!("\nstudent with teacher − student alone, on the same test {}\n\n", of.unit);
    }
    for found in of_first {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} − {}: {} {}", found.distilled, found.alone, found.metric, found.text());
    }
    for mismatch in *mismatches {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\nnot compared: {}", mismatch.text(of.unit));
    }
    text
}

fn aligned(lines: &[Line], width: usize) -> String {
    let mut text = String::new();
    for Line { name, parameters, count, cells } in lines {
        // Writing to a String cannot fail.
        let _ = write!(text, "{name:<width$}  {parameters:>10}  {count:>6}");
        for cell in cells {
            let _ = write!(text, "  {cell:>22}");
        }
        text.push('\n');
    }
    text
}

fn cell(metric: &Metric) -> String {
    match metric.interval {
        Some([low, high]) => format!("{:.4} ({low:.3}–{high:.3})", metric.value),
        None => format!("{:.4}", metric.value),
    }
}

fn write_json(
    folder: &Path,
    of: &Subject,
    task: Task,
    runs: &[RunResult],
    compared: &Compared<'_>,
) -> Result<(), StageError> {
    let metrics = graph_runs::metric_names(runs);
    let means = |of: &dyn Fn(&str) -> Mean| -> Value {
        metrics.iter().map(|metric| ((*metric).to_owned(), json!(of(metric)))).collect()
    };
    let of_group = |group: &Group| {
        json!({
            "group": group.name,
            "distilled": group.runs[0].distilled,
            "parameters": group.runs[0].parameters,
            "runs": group.runs.len(),
            "folds": group.folds(),
            "metrics": means(&|metric| group.mean(metric)),
        })
    };
    let content = json!({
        "format_version": 1,
        "dataset": of.dataset,
        "units": of.unit,
        "task": task,
        "models": runs,
        "groups": compared.groups.iter().map(of_group).collect::<Vec<_>>(),
        "baseline": means(&|metric| graph_runs::baseline(runs, metric)),
        "linear": means(&|metric| graph_runs::linear(runs, metric)),
        "propagated": means(&|metric| graph_runs::propagated(runs, metric)),
        "comparisons": compared.comparisons,
        "repeats": compared.repeats().collect::<Vec<_>>(),
        "mismatches": compared.mismatches,
    });
    let path = folder.join("graph_metrics.json");
    let text = serde_json::to_vec_pretty(&content).map_err(|problem| files::failed("write", &path)(problem.into()))?;
    save(&path, &text)
}

/// The file of predicted and real growth of a test tree.
const GROWTH: &str = "growth.json";

/// Writes the growth of a test tree by each model that predicts it; removes that of an earlier evaluation if there is none.
pub(super) fn write_growth(
    folder: &Path,
    of: &Subject,
    length_unit: Option<&str>,
    models: Vec<Value>,
) -> Result<(), StageError> {
    let path = folder.join(GROWTH);
    if models.is_empty() {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(files::failed("remove", &path)(error).into()),
            _ => Ok(()),
        };
    }
    let content = json!({ "format_version": 1, "dataset": of.dataset, "length_unit": length_unit, "models": models });
    save(&path, &serde_json::to_vec(&content).map_err(|problem| files::failed("write", &path)(problem.into()))?)
}

fn write_csv(folder: &Path, runs: &[RunResult]) -> Result<(), StageError> {
    let path = folder.join("graph_metrics.csv");
    let mut csv = csv::Writer::from_writer(Vec::new());
    let mut row = |cells: &[String]| csv.write_record(cells).map_err(io::Error::other);
    row(&["model", "group", "fold", "seed", "graphs", "metric", "value", "low", "high"].map(str::to_owned))
        .map_err(files::failed("write", &path))?;
    for run in runs {
        for metric in &run.metrics {
            let end = |at: usize| metric.interval.map_or(String::new(), |interval| interval[at].to_string());
            let seed = run.seed.map_or(String::new(), |seed| seed.to_string());
            let cells = [run.model.clone(), run.group.clone(), run.fold.clone(), seed, run.test_graphs.to_string()];
            let values = [metric.name.clone(), metric.value.to_string(), end(0), end(1)];
            row(&cells.into_iter().chain(values).collect::<Vec<_>>()).map_err(files::failed("write", &path))?;
        }
    }
    let text = csv.into_inner().map_err(|error| files::failed("write", &path)(io::Error::other(error.to_string())))?;
    save(&path, &text)
}

fn save(path: &Path, content: &[u8]) -> Result<(), StageError> {
    Ok(files::write_atomically(path, content).map_err(files::failed("write", path))?)
}
