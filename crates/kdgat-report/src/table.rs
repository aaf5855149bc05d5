//! Tables of a report for runs, evaluations and sweeps.

use std::path::PathBuf;

use super::figures::{bytes, folder_words};
use super::files::{Evaluation, GraphEvaluation, Operator, Run, fold_words, units};
use kdgat_evaluate::graph_runs::{self, BASELINE, Comparison, Group, LINEAR, Mean, Over, Repeat, RunResult};
use kdgat_sweep::report::Table as SweepTable;

/// A table that readers can sort.
#[derive(Debug, Clone, Default)]
pub struct Table {
    pub title: String,
    /// Explanation above the table; may be empty.
    pub note: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
    pub sources: Vec<PathBuf>,
}

/// A cell: its text, and its sort key if it is a number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cell {
    pub text: String,
    pub number: Option<f64>,
}

impl Table {
    /// Removes the columns that no row fills.
    fn without_empty_columns(mut self) -> Self {
        let is_filled: Vec<bool> = (0..self.header.len())
            .map(|column| self.rows.iter().any(|row| row.get(column).is_some_and(|cell| !cell.text.is_empty())))
            .collect();
        let keep = |column: usize| is_filled.get(column).copied().unwrap_or(true);
        let mut column = 0..;
        self.header.retain(|_| column.next().is_some_and(keep));
        for row in &mut self.rows {
            let mut column = 0..;
            row.retain(|_| column.next().is_some_and(keep));
        }
        self
    }
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    /// Creates a cell for a number with this many decimals; empty if the number is unknown or not finite.
    pub fn number(value: Option<f64>, decimals: usize) -> Self {
        match value.filter(|value| value.is_finite()) {
            Some(value) => Self { text: format!("{value:.decimals$}"), number: Some(value) },
            None => Self::default(),
        }
    }

    fn bytes(value: Option<f64>) -> Self {
        value.map_or_else(Self::default, |value| Self { text: bytes(value), number: Some(value) })
    }
}

fn header(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Builds the table of runs, one row each.
pub fn of_runs(runs: &[Run]) -> Table {
    let row = |run: &Run| {
        let summary = |name: &str| run.summary[name].as_f64();
        let teacher = &run.summary["teacher"]["total"];
        let ending = match run.summary["ending"].as_str() {
            Some("max_epochs") => "all epochs",
            Some("early_stopping") => "stopped early",
            Some(other) => other,
            None => "not finished",
        };
        vec![
            Cell::text(&run.name),
            Cell::text(run.what()),
            Cell::text(run.dataset()),
            Cell::text(run.fold().unwrap_or_default()),
            Cell::text(ending),
            Cell::number(Some(run.metrics.len() as f64), 0),
            Cell::number(run.best().map(|best| best.0), 0),
            Cell::number(run.best().map(|best| best.1), 5),
            Cell::number(run.at_best("val_task_loss"), 5),
            Cell::number(run.at_best("val_accuracy"), 4),
            Cell::number(summary("num_parameters"), 0),
            Cell::number(run.at_best("graphs_per_second"), 0),
            Cell::bytes(summary("peak_memory_bytes")),
            Cell::number(teacher["student_wait_ms"].as_f64().map(|wait| wait / 1e3), 1),
        ]
    };
    let units = units(runs);
    let table = Table {
        title: "Runs".to_owned(),
        note: format!("Losses on the validation {units} in the best epoch, whose weights were saved."),
        header: header(&[
            "run",
            "kind",
            "dataset",
            "fold",
            "ended",
            "epochs",
            "best epoch",
            "loss",
            "task loss",
            "accuracy",
            "parameters",
            &format!("{units}/s"),
            "peak memory",
            "wait for teacher (s)",
        ]),
        rows: runs.iter().map(row).collect(),
        sources: runs.iter().map(|run| run.metrics.path.clone()).collect(),
    };
    table.without_empty_columns()
}

/// Builds the table of an evaluation, one row per model, test folder and threshold.
pub fn of_evaluation(evaluation: &Evaluation) -> Table {
    let mut rows = Vec::new();
    for model in &evaluation.models {
        for judged in model.results.iter().filter(|judged| judged.file.is_none()) {
            let metric = |name: &str| Cell::number(Some(judged.metric(name)[0]), 4);
            let [_, low, high] = judged.metric("f1");
            let interval = match low.is_finite() && high.is_finite() {
                true => Cell { text: format!("{low:.4}\u{2013}{high:.4}"), number: Some(low) },
                false => Cell::default(),
            };
            let calibration = if judged.calibration == "none" { "" } else { &judged.calibration };
            rows.push(vec![
                Cell::text(&model.model),
                Cell::text(folder_words(&judged.folder)),
                Cell::text(format!("{} {calibration}", judged.threshold_method).trim()),
                metric("f1"),
                interval,
                Cell::number(judged.operator.false_alarms_per_hour, 1),
                episodes(&judged.operator),
                Cell::number(judged.operator.median_delay_seconds, 2),
                Cell::number(judged.operator.largest_delay_seconds, 2),
                metric("precision"),
                metric("recall"),
                metric("specificity"),
                metric("mcc"),
                metric("roc_auc"),
                metric("pr_auc"),
                metric("detection_at_fpr_1"),
                Cell::number(Some(model.parameters), 0),
                Cell::number(model.speed.as_ref().map(|speed| speed.ms_per_graph_batch_1), 3),
            ]);
        }
    }
    Table {
        title: format!("Test results on {}", evaluation.dataset),
        note: "With 95 % bootstrap intervals if resamples were requested; thresholds come from validation data. False alarms are per \
               hour of driving without an attack; the delays are from the start of an attack episode to the end of the first window \
               that finds it."
            .to_owned(),
        header: header(&[
            "model",
            "test",
            "threshold",
            "F1",
            "95 %",
            "false alarms per hour",
            "episodes found",
            "median delay (s)",
            "largest delay (s)",
            "precision",
            "recall",
            "specificity",
            "MCC",
            "ROC AUC",
            "PR AUC",
            "recall at 1 % FPR",
            "parameters",
            "ms per graph",
        ]),
        rows,
        sources: vec![evaluation.folder.join("metrics.json")],
    }
}

/// Builds the tables of an evaluation on a dataset of graphs: means of each kind of run, what a teacher adds, and all runs.
pub fn of_graphs(evaluation: &GraphEvaluation) -> Vec<Table> {
    let groups = graph_runs::groups(&evaluation.runs);
    let comparisons = graph_runs::comparisons(&groups);
    let tables = [of_graph_means(evaluation, &groups), of_comparisons(&comparisons), of_graph_runs(evaluation)];
    let sources = vec![evaluation.path()];
    tables.into_iter().map(|table| Table { sources: sources.clone(), ..table }).collect()
}

fn of_graph_means(evaluation: &GraphEvaluation, groups: &[Group<'_>]) -> Table {
    let metrics = graph_runs::metric_names(&evaluation.runs);
    let count = |count: usize| Cell::number(Some(count as f64), 0);
    let cell = |mean: Mean| match mean.count {
        0 => Cell::default(),
        _ => Cell { text: mean.text(), number: Some(mean.mean) },
    };
    let row = |group: &Group| {
        let first = vec![
            Cell::text(&group.name),
            count(group.runs[0].parameters),
            count(group.runs.len()),
            count(group.folds()),
        ];
        first.into_iter().chain(metrics.iter().map(|metric| cell(group.mean(metric)))).collect()
    };
    let baseline = |name: &str, mean: fn(&[RunResult], &str) -> Mean| -> Vec<Cell> {
        let cells = metrics.iter().map(|metric| cell(mean(&evaluation.runs, metric)));
        [Cell::text(name), count(0), Cell::default(), Cell::default()].into_iter().chain(cells).collect()
    };
    let units = &evaluation.units;
    let more = match units == "graphs" {
        true => {
            "; for values also least squares on the sums of each graph's node features, for classes of rooted trees logistic regression on \
             descriptors"
        }
        false => "",
    };
    let has_linear = evaluation.runs.iter().any(|run| !run.linear.is_empty());
    let linear = has_linear.then(|| baseline(LINEAR, graph_runs::linear));
    let baselines = [baseline(BASELINE, graph_runs::baseline)].into_iter().chain(linear);
    let repeats: Vec<String> = groups.iter().flat_map(|group| &group.repeats).map(Repeat::text).collect();
    let repeats = match repeats.is_empty() {
        true => String::new(),
        false => format!(" Counted once, with equal settings, fold and seed: {}.", repeats.join(", ")),
    };
    Table {
        title: format!("Test results on {}", evaluation.dataset),
        note: format!(
            "Mean \u{b1} standard deviation over runs that differ by fold or seed, each on the test {units} of its own fold. Baselines: \
             always the most frequent class, or the mean, of the training {units}{more}.{repeats}"
        ),
        header: [&header(&["model", "parameters", "runs", "folds"])[..], &header(&metrics)].concat(),
        rows: groups.iter().map(row).chain(baselines).collect(),
        sources: Vec::new(),
    }
}

fn of_comparisons(comparisons: &[Comparison]) -> Table {
    let row = |found: &Comparison| {
        let interval = match found.interval {
            Some([low, high]) => Cell { text: format!("{low:+.4} to {high:+.4}"), number: Some(low) },
            None => Cell::default(),
        };
        let over = match found.over {
            Over::Folds => "folds",
            Over::Seeds => "seeds",
        };
        vec![
            Cell::text(&found.distilled),
            Cell::text(&found.alone),
            Cell::text(&found.metric),
            Cell::number(Some(found.mean_distilled), 4),
            Cell::number(Some(found.mean_alone), 4),
            Cell { text: format!("{:+.4}", found.difference), number: Some(found.difference) },
            interval,
            Cell::text(format!("{} {over}", found.differences.len())),
            Cell::text(found.verdict.words()),
        ]
    };
    Table {
        title: "Student with teacher \u{2212} student alone".to_owned(),
        note: "Over runs with the same settings and seed on the same folds. The interval is Student's t with the variance of Nadeau and \
               Bengio (2003), because the training sets of folds overlap, and those of divisions of one large graph that seeds draw; for a single \
               division, it is over seeds."
            .to_owned(),
        header: header(&[
            "with teacher",
            "alone",
            "metric",
            "with teacher (mean)",
            "alone (mean)",
            "difference",
            "95 %",
            "over",
            "result",
        ]),
        rows: comparisons.iter().map(row).collect(),
        sources: Vec::new(),
    }
}

fn of_graph_runs(evaluation: &GraphEvaluation) -> Table {
    let metrics = graph_runs::metric_names(&evaluation.runs);
    let first_interval = |run: &RunResult| match run.metrics.first().and_then(|metric| metric.interval) {
        Some([low, high]) => Cell { text: format!("{low:.4}\u{2013}{high:.4}"), number: Some(low) },
        None => Cell::default(),
    };
    let row = |run: &RunResult| {
        let mut cells = vec![
            Cell::text(&run.model),
            Cell::text(fold_words(&run.fold)),
            Cell::number(run.seed.map(|seed| seed as f64), 0),
            Cell::number(Some(run.test_graphs as f64), 0),
        ];
        cells.extend(metrics.iter().map(|metric| Cell::number(Some(run.value(metric)), 4)));
        cells.insert(5.min(cells.len()), first_interval(run));
        cells
    };
    let units = &evaluation.units;
    let mut names = header(&["model", "fold", "seed", &format!("test {units}")]);
    names.extend(header(&metrics));
    names.insert(5.min(names.len()), "95 %".to_owned());
    Table {
        title: format!("Runs on their test {units}"),
        note: format!("The first metric has a 95 % interval from resampled {units} if resamples were requested."),
        header: names,
        rows: evaluation.runs.iter().map(row).collect(),
        sources: Vec::new(),
    }
}

/// Formats `3 of 4`, sorted by the share.
fn episodes(operator: &Operator) -> Cell {
    match (operator.episodes_found, operator.episodes) {
        (Some(found), Some(all)) if all > 0 => {
            Cell { text: format!("{found} of {all}"), number: Some(found as f64 / all as f64) }
        }
        _ => Cell::default(),
    }
}

/// Converts a table of a sweep's report.
pub fn of_sweep(table: SweepTable, source: PathBuf) -> Table {
    let cell = |text: String| {
        // "0.93 ± 0.01" is sorted by its first number.
        let number = text.split(' ').next().and_then(|first| first.parse().ok());
        Cell { text, number }
    };
    Table {
        title: table.title,
        note: table.note,
        header: table.header,
        rows: table.rows.into_iter().map(|row| row.into_iter().map(cell).collect()).collect(),
        sources: vec![source],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row_of(operator: serde_json::Value) -> Vec<Cell> {
        let mut judged = json!({
            "folder": "test_01_known_attack", "file": null, "calibration": "first 10 s", "threshold_method": "fpr:0.001",
            "graphs": 100, "attacks": 50, "metrics": {},
            "confusion": {"true_positives": 1, "false_positives": 1, "true_negatives": 1, "false_negatives": 1},
        });
        judged.as_object_mut().unwrap().extend(operator.as_object().unwrap().clone());
        let model = json!({
            "model": "gat_student_normal/1", "kind": "gat", "size": "student", "distilled": false, "parameters": 10.0,
            "file_bytes": 10.0, "results": [judged],
        });
        let models = vec![serde_json::from_value(model).unwrap()];
        let evaluation = Evaluation {
            folder: "evaluation".into(),
            dataset: "tiny".to_owned(),
            models,
            teachers: Vec::new(),
            curves: None,
            windows: Vec::new(),
        };
        of_evaluation(&evaluation).rows.remove(0)
    }

    #[test]
    fn the_operator_figures_are_beside_f1_and_may_be_missing() {
        let row = row_of(json!({
            "false_alarms_per_hour": 240.04, "hours_without_attack": 0.5, "episodes": 4, "episodes_found": 3,
            "median_delay_seconds": 0.125, "largest_delay_seconds": null,
        }));
        let texts: Vec<&str> = row.iter().map(|cell| cell.text.as_str()).collect();
        assert_eq!(texts[..3], ["gat_student_normal/1", "known attack", "fpr:0.001 first 10 s"]);
        assert_eq!(texts[5..9], ["240.0", "3 of 4", "0.12", ""]);
        assert_eq!(row[6].number, Some(0.75));
        // Undefined, as without attacks.
        assert!(row_of(json!({}))[5..9].iter().all(|cell| *cell == Cell::default()));
    }
}
