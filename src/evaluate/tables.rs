//! The result of an evaluation as `metrics.json`, `metrics.csv`, and tables for a terminal.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::bootstrap::{Bootstrap, Interval};
use super::metrics::{Confusion, METRICS, Values};
use super::speed::Speed;
use crate::train::run_settings::{Setting, describe, distinguishing};

/// An evaluation.
#[derive(Debug, Clone)]
pub struct Report {
    pub dataset: String,
    pub data_digest: String,
    pub window: usize,
    pub stride: usize,
    pub bootstrap: Bootstrap,
    pub models: Vec<ModelReport>,
}

/// Description and results of one model.
#[derive(Debug, Clone)]
pub struct ModelReport {
    /// `gat_student_normal_kd/3`.
    pub name: String,
    /// Name without the number: the same for runs of one stage, model and size.
    pub group: String,
    /// Training settings; runs of a group with the same settings differ by seed only.
    pub settings: Vec<Setting>,
    /// `gat`, `vgae`, or `gat+vgae`.
    pub kind: String,
    pub size: String,
    pub distilled: bool,
    pub seed: Option<u64>,
    pub paths: Vec<PathBuf>,
    pub weights_digests: Vec<String>,
    pub parameters: usize,
    pub file_bytes: u64,
    pub speed: Option<Speed>,
    /// ROC AUC on the validation graphs; NaN for a pair of models, or unless both labels occur.
    pub validation_roc_auc: f64,
    pub rows: Vec<Row>,
}

/// Metrics of one folder or file at one threshold.
#[derive(Debug, Clone)]
pub struct Row {
    pub folder: String,
    /// File, or `None` for the whole folder.
    pub file: Option<String>,
    /// `none`, or the traffic that calibrated the scores.
    pub calibration: String,
    pub threshold_method: String,
    pub threshold: Option<f64>,
    pub graphs: u64,
    pub attacks: u64,
    pub confusion: Confusion,
    pub values: Values,
    pub intervals: [Interval; METRICS.len()],
}

/// Columns of `metrics.csv` before the metrics.
const CSV_COLUMNS: [&str; 23] = [
    "dataset",
    "model",
    "group",
    "kind",
    "size",
    "distilled",
    "seed",
    "scope",
    "folder",
    "file",
    "calibration",
    "threshold_method",
    "threshold",
    "graphs",
    "attacks",
    "true_positives",
    "false_positives",
    "true_negatives",
    "false_negatives",
    "parameters",
    "file_bytes",
    "ms_per_graph_batch_1",
    "ms_per_graph_batch_512",
];
/// Last column before the metrics.
const FRAMES_PER_SECOND: &str = "frames_per_second";
/// Column after the metrics.
const VALIDATION_ROC_AUC: &str = "validation_roc_auc";

impl Report {
    /// The content of `metrics.json`.
    pub fn json(&self) -> Value {
        json!({
            "format_version": 1,
            "kdgat_version": env!("CARGO_PKG_VERSION"),
            "dataset": self.dataset,
            "data_digest": self.data_digest,
            "window": self.window,
            "stride": self.stride,
            "bootstrap": self.bootstrap,
            "models": self.models.iter().map(ModelReport::json).collect::<Vec<_>>(),
        })
    }

    /// The content of `metrics.csv`: a row for each model, folder or file, calibration and threshold.
    pub fn csv(&self) -> Result<Vec<u8>, csv::Error> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let with_ends = |name: &str| [name.to_owned(), format!("{name}_low"), format!("{name}_high")];
        let fixed = CSV_COLUMNS.into_iter().chain([FRAMES_PER_SECOND]).map(str::to_owned);
        let metrics = METRICS.iter().flat_map(|name| with_ends(name));
        writer.write_record(fixed.chain(metrics).chain([VALIDATION_ROC_AUC.to_owned()]))?;
        for model in &self.models {
            for row in &model.rows {
                writer.write_record(self.record(model, row))?;
            }
        }
        writer.into_inner().map_err(|error| error.into_error().into())
    }

    fn record(&self, model: &ModelReport, row: &Row) -> Vec<String> {
        let speed = |value: fn(&Speed) -> f64| model.speed.as_ref().map_or(String::new(), |speed| number(value(speed)));
        let Confusion { true_positives, false_positives, true_negatives, false_negatives } = row.confusion;
        let mut record = vec![
            self.dataset.clone(),
            model.name.clone(),
            model.group.clone(),
            model.kind.clone(),
            model.size.clone(),
            model.distilled.to_string(),
            model.seed.map_or(String::new(), |seed| seed.to_string()),
            if row.file.is_some() { "file" } else { "folder" }.to_owned(),
            row.folder.clone(),
            row.file.clone().unwrap_or_default(),
            row.calibration.clone(),
            row.threshold_method.clone(),
            row.threshold.map_or(String::new(), number),
        ];
        let counts = [row.graphs, row.attacks, true_positives, false_positives, true_negatives, false_negatives];
        record.extend(counts.map(|count| count.to_string()));
        record.extend([model.parameters.to_string(), model.file_bytes.to_string()]);
        record.push(speed(|speed| speed.ms_per_graph_batch_1));
        record.push(speed(|speed| speed.ms_per_graph_batch_512));
        record.push(speed(|speed| speed.frames_per_second));
        for (value, (low, high)) in row.values.iter().zip(&row.intervals) {
            record.extend([number(*value), number(*low), number(*high)]);
        }
        record.push(number(model.validation_roc_auc));
        record
    }

    /// Tables of the models, of each test folder, and of means over runs that differ by seed.
    pub fn text(&self) -> String {
        let mut text = self.table_of_models();
        let mut folders: Vec<&str> = Vec::new();
        for row in self.models.iter().flat_map(|model| &model.rows) {
            if !folders.contains(&row.folder.as_str()) {
                folders.push(&row.folder);
            }
        }
        for folder in &folders {
            text += &self.table_of_folder(folder);
        }
        text += &self.table_of_groups(&folders);
        text
    }

    fn table_of_models(&self) -> String {
        let mut table = Table::new(&[
            "model",
            "parameters",
            "kB",
            "ms/graph (1)",
            "ms/graph (512)",
            "frames/s",
            "validation ROC AUC",
        ]);
        for model in &self.models {
            let speed = |value: fn(&Speed) -> f64, digits: usize| {
                model.speed.as_ref().map_or(String::new(), |speed| format!("{:.digits$}", value(speed)))
            };
            table.row(vec![
                model.name.clone(),
                model.parameters.to_string(),
                format!("{:.0}", model.file_bytes as f64 / 1e3),
                speed(|speed| speed.ms_per_graph_batch_1, 3),
                speed(|speed| speed.ms_per_graph_batch_512, 4),
                speed(|speed| speed.frames_per_second, 0),
                short(model.validation_roc_auc),
            ]);
        }
        format!("{} (windows of {} frames, one every {})\n\n{}", self.dataset, self.window, self.stride, table.text())
    }

    fn table_of_folder(&self, folder: &str) -> String {
        let mut table = Table::new(&[
            "model",
            "calibration",
            "threshold",
            "F1",
            "(95 %)",
            "precision",
            "recall",
            "specificity",
            "bal. acc.",
            "MCC",
            "ROC AUC",
            "PR AUC",
            "@FPR 1 %",
        ]);
        let mut graphs = (0, 0);
        for model in &self.models {
            for row in model.rows.iter().filter(|row| row.folder == folder && row.file.is_none()) {
                graphs = (row.graphs, row.attacks);
                let [_, balanced, precision, recall, f1, specificity, mcc, roc_auc, pr_auc, _, at_1, _] = row.values;
                let (low, high) = row.intervals[4];
                let mut cells =
                    vec![model.name.clone(), row.calibration.clone(), row.threshold_method.clone(), short(f1)];
                cells.push(if low.is_nan() { String::new() } else { format!("{}–{}", short(low), short(high)) });
                let others = [precision, recall, specificity, balanced, mcc, roc_auc, pr_auc, at_1];
                cells.extend(others.map(short));
                table.row(cells);
            }
        }
        let note = if graphs.1 == 0 {
            "; no attack labels, so only specificity (the share without a false alarm) and accuracy are defined"
        } else {
            ""
        };
        format!("\n{folder}: {} graphs, {} with an attack{note}\n\n{}", graphs.0, graphs.1, table.text())
    }

    /// Mean and sample standard deviation over runs that differ by seed only; empty if there are no two such runs.
    fn table_of_groups(&self, folders: &[&str]) -> String {
        let mut table = Table::new(&[
            "models",
            "runs",
            "folder",
            "calibration",
            "threshold",
            "F1",
            "specificity",
            "ROC AUC",
            "PR AUC",
        ]);
        let groups: Vec<(String, Vec<&ModelReport>)> =
            self.groups().into_iter().filter(|(_, runs)| runs.len() > 1).collect();
        for (name, runs) in &groups {
            for folder in folders {
                for like in runs[0].rows.iter().filter(|row| row.folder == *folder && row.file.is_none()) {
                    let same = |row: &&Row| {
                        row.folder == like.folder
                            && row.file.is_none()
                            && row.calibration == like.calibration
                            && row.threshold_method == like.threshold_method
                    };
                    let rows: Vec<&Row> = runs.iter().filter_map(|run| run.rows.iter().find(same)).collect();
                    let spread = |metric: usize| mean_and_spread(rows.iter().map(|row| row.values[metric]).collect());
                    let mut cells = vec![name.clone(), rows.len().to_string(), folder.to_string()];
                    cells.extend([like.calibration.clone(), like.threshold_method.clone()]);
                    cells.extend([spread(4), spread(5), spread(7), spread(8)]);
                    table.row(cells);
                }
            }
        }
        if groups.is_empty() {
            String::new()
        } else {
            format!("\nmean ± standard deviation over runs that differ by seed only\n\n{}", table.text())
        }
    }

    /// Groups of models that differ by seed only, named after their group and the settings in which groups of that name differ.
    fn groups(&self) -> Vec<(String, Vec<&ModelReport>)> {
        let mut groups: Vec<Vec<&ModelReport>> = Vec::new();
        for model in &self.models {
            let alike =
                |group: &&mut Vec<&ModelReport>| group[0].group == model.group && group[0].settings == model.settings;
            match groups.iter_mut().find(alike) {
                Some(group) => group.push(model),
                None => groups.push(vec![model]),
            }
        }
        let name = |group: &Vec<&ModelReport>| {
            let of_name = groups.iter().filter(|other| other[0].group == group[0].group);
            let settings: Vec<&[Setting]> = of_name.map(|other| &other[0].settings[..]).collect();
            match describe(&group[0].settings, &distinguishing(&settings)) {
                differing if differing.is_empty() => group[0].group.clone(),
                differing => format!("{} ({differing})", group[0].group),
            }
        };
        let names: Vec<String> = groups.iter().map(name).collect();
        names.into_iter().zip(groups).collect()
    }
}

impl ModelReport {
    fn json(&self) -> Value {
        json!({
            "model": self.name,
            "group": self.group,
            "kind": self.kind,
            "size": self.size,
            "distilled": self.distilled,
            "seed": self.seed,
            "paths": self.paths,
            "weights_digests": self.weights_digests,
            "parameters": self.parameters,
            "file_bytes": self.file_bytes,
            "speed": self.speed,
            "validation_roc_auc": self.validation_roc_auc,
            "results": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }
}

impl Row {
    fn json(&self) -> Value {
        let metric = |(name, (value, (low, high))): (&&str, (&f64, &Interval))| {
            ((*name).to_owned(), json!({ "value": value, "low": low, "high": high }))
        };
        let metrics: Map<String, Value> =
            METRICS.iter().zip(self.values.iter().zip(&self.intervals)).map(metric).collect();
        json!({
            "scope": if self.file.is_some() { "file" } else { "folder" },
            "folder": self.folder,
            "file": self.file,
            "calibration": self.calibration,
            "threshold_method": self.threshold_method,
            "threshold": self.threshold,
            "graphs": self.graphs,
            "attacks": self.attacks,
            "confusion": self.confusion,
            "metrics": metrics,
        })
    }
}

/// Formats a number for a CSV file, with digits that read back as the same value; empty if NaN.
pub fn number(value: f64) -> String {
    if value.is_nan() { String::new() } else { value.to_string() }
}

fn short(value: f64) -> String {
    if value.is_nan() { "-".to_owned() } else { format!("{value:.4}") }
}

fn mean_and_spread(mut values: Vec<f64>) -> String {
    values.retain(|value| !value.is_nan());
    let count = values.len() as f64;
    if values.len() < 2 {
        return values.first().map_or("-".to_owned(), |value| short(*value));
    }
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    format!("{mean:.4} ± {:.4}", variance.sqrt())
}

/// A table with aligned columns: the first flush left, the others flush right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these heads.
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The lines.
    pub fn text(&self) -> String {
        let columns = self.rows[0].len();
        let cell_width = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
        let width = |column| self.rows.iter().map(|row| cell_width(row, column)).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            for (index, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                // Writing to a String cannot fail.
                let _ = if index == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
            }
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn model(number: u64, max_epochs: u64, f1: f64) -> ModelReport {
        let mut values = [f64::NAN; METRICS.len()];
        values[4] = f1;
        let row = Row {
            folder: "test_01".to_owned(),
            file: None,
            calibration: "none".to_owned(),
            threshold_method: "0.5".to_owned(),
            threshold: Some(0.5),
            graphs: 10,
            attacks: 5,
            confusion: Confusion::default(),
            values,
            intervals: [(f64::NAN, f64::NAN); METRICS.len()],
        };
        ModelReport {
            name: format!("gat_student_normal/{number}"),
            group: "gat_student_normal".to_owned(),
            settings: vec![("max_epochs".to_owned(), json!(max_epochs))],
            kind: "gat".to_owned(),
            size: "student".to_owned(),
            distilled: false,
            seed: Some(number),
            paths: Vec::new(),
            weights_digests: Vec::new(),
            parameters: 1,
            file_bytes: 1,
            speed: None,
            validation_roc_auc: f64::NAN,
            rows: vec![row],
        }
    }

    #[test]
    fn means_are_over_runs_of_the_same_settings() {
        let models = vec![model(1, 2, 0.1), model(2, 6, 0.8), model(3, 6, 0.9)];
        let (bootstrap, dataset) = (Bootstrap { resamples: 0, seed: 1 }, "tiny".to_owned());
        let report = Report { dataset, data_digest: String::new(), window: 100, stride: 100, bootstrap, models };
        let text = report.text();
        let means = text.split("mean ± standard deviation over runs that differ by seed only").nth(1).unwrap();
        assert!(means.contains("gat_student_normal (max_epochs 6)") && means.contains("0.8500 ± 0.0707"), "{means}");
        assert!(!means.contains("max_epochs 2"), "a single run has no mean: {means}");
    }
}
