//! The result of an evaluation as `metrics.json`, `metrics.csv`, and tables for a terminal.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::bootstrap::{Bootstrap, Interval};
use super::gone::GoneRow;
use super::judge::NOT_CALIBRATED;
use super::metrics::{Confusion, METRICS, Values};
use super::operator::{OPERATOR_COLUMNS, OperatorFigures};
use super::speed::Speed;
use super::teacher_worth::{self, TeacherWorth};
use super::text_table::{LINE_WIDTH, Table};
use kdgat_config::run_settings::{Setting, describe, distinguishing};
use kdgat_graph::FeatureSet;

/// An evaluation.
#[derive(Debug, Clone)]
pub struct Report {
    /// Name of the dataset.
    pub dataset: String,
    /// Digest of the store.
    pub data_digest: String,
    /// Frames per window.
    pub window: usize,
    /// Frames from the start of one window to the start of the next.
    pub stride: usize,
    /// Settings of the confidence intervals.
    pub bootstrap: Bootstrap,
    /// The models, and pairs of them, in the order of the tables.
    pub models: Vec<ModelReport>,
    /// Students with their teacher compared with the same students alone.
    pub teachers: Vec<TeacherWorth>,
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
    /// Features that it reads; `None` if it reads none itself.
    pub features: Option<FeatureSet>,
    /// Name of the size, as in `student`; of the first model for a pair.
    pub size: String,
    /// True if it, or one of a pair, was trained with a teacher.
    pub distilled: bool,
    /// Seed of the training, if known; of the first model for a pair.
    pub seed: Option<u64>,
    /// Weight files, one per model.
    pub paths: Vec<PathBuf>,
    /// Content digests of the weights, one per model.
    pub weights_digests: Vec<String>,
    /// Number of parameters, summed over a pair.
    pub parameters: usize,
    /// Size of the weight files, in bytes.
    pub file_bytes: u64,
    /// Scoring speed, if measured; for a pair, of both models one after the other.
    pub speed: Option<Speed>,
    /// ROC AUC on the validation graphs; NaN for a pair of models, or unless both labels occur.
    pub validation_roc_auc: f64,
    /// Metrics by folder, file, calibration and threshold.
    pub rows: Vec<Row>,
    /// Windows that are called attacks because IDs are gone.
    pub gone: Vec<GoneRow>,
}

/// Metrics of one folder or file at one threshold.
#[derive(Debug, Clone)]
pub struct Row {
    /// Name of the test folder.
    pub folder: String,
    /// File, or `None` for the whole folder.
    pub file: Option<String>,
    /// `none`, or the traffic that calibrated the scores.
    pub calibration: String,
    /// Rule of the threshold, as in `fpr:0.001`.
    pub threshold_method: String,
    /// The threshold, if the whole row has the same one.
    pub threshold: Option<f64>,
    /// Number of graphs tested.
    pub graphs: u64,
    /// Number of those with an attack.
    pub attacks: u64,
    /// Number of graphs by label and decision.
    pub confusion: Confusion,
    /// Metrics, in the order of [`METRICS`].
    pub values: Values,
    /// Confidence intervals of the metrics, in the same order.
    pub intervals: [Interval; METRICS.len()],
    /// False alarms per hour, attack episodes found, and delays.
    pub operator: OperatorFigures,
}

/// Columns of `metrics.csv` before the metrics.
const CSV_COLUMNS: [&str; 24] = [
    "dataset",
    "model",
    "group",
    "kind",
    "features",
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
/// Column after the metrics; [`OPERATOR_COLUMNS`] follow.
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
            "teachers": self.teachers,
        })
    }

    /// The content of `metrics.csv`: a row for each model, folder or file, calibration and threshold.
    pub fn csv(&self) -> Result<Vec<u8>, csv::Error> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let with_ends = |name: &str| [name.to_owned(), format!("{name}_low"), format!("{name}_high")];
        let fixed = CSV_COLUMNS.into_iter().chain([FRAMES_PER_SECOND]).map(str::to_owned);
        let metrics = METRICS.iter().flat_map(|name| with_ends(name));
        let later = std::iter::once(VALIDATION_ROC_AUC).chain(OPERATOR_COLUMNS).map(str::to_owned);
        writer.write_record(fixed.chain(metrics).chain(later))?;
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
            model.features.map_or(String::new(), |features| features.to_string()),
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
        record.extend(row.operator.values().map(number));
        record
    }

    /// Tables of the models, of each test folder, of means over runs that differ by seed, and of what teachers are worth.
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
        text += &teacher_worth::text(&self.teachers);
        text
    }

    /// The different features that the models read.
    pub fn feature_sets(&self) -> Vec<FeatureSet> {
        let mut sets = Vec::new();
        for features in self.models.iter().filter_map(|model| model.features) {
            if !sets.contains(&features) {
                sets.push(features);
            }
        }
        sets
    }

    fn table_of_models(&self) -> String {
        let heads = ["parameters", "kB", "ms/graph (1)", "ms/graph (512)", "frames/s", "validation ROC AUC"];
        let mixed = self.feature_sets().len() > 1;
        let mut table =
            Table::new(&["model"].into_iter().chain(mixed.then_some("features")).chain(heads).collect::<Vec<_>>());
        for model in &self.models {
            let speed = |value: fn(&Speed) -> f64, digits: usize| {
                model.speed.as_ref().map_or(String::new(), |speed| format!("{:.digits$}", value(speed)))
            };
            let mut cells = vec![model.name.clone()];
            cells.extend(mixed.then(|| model.features.map_or("-".to_owned(), |features| features.to_string())));
            cells.extend([model.parameters.to_string(), format!("{:.0}", model.file_bytes as f64 / 1e3)]);
            cells.push(speed(|speed| speed.ms_per_graph_batch_1, 3));
            cells.push(speed(|speed| speed.ms_per_graph_batch_512, 4));
            cells.push(speed(|speed| speed.frames_per_second, 0));
            cells.push(short(model.validation_roc_auc));
            table.row(cells);
        }
        format!(
            "{} (windows of {} frames, one every {})\n\n{}",
            self.dataset,
            self.window,
            self.stride,
            table.text_within(LINE_WIDTH)
        )
    }

    fn table_of_folder(&self, folder: &str) -> String {
        let of_folder = |row: &&Row| row.folder == folder && row.file.is_none();
        let rows: Vec<(&ModelReport, &Row)> = self
            .models
            .iter()
            .flat_map(|model| model.rows.iter().filter(of_folder).map(move |row| (model, row)))
            .collect();
        let has_calibrated = rows.iter().any(|(_, row)| row.calibration != NOT_CALIBRATED);
        let heads = ["threshold", "F1", "(95 %)", "false alarms/h", "episodes", "until found"];
        let heads = heads.into_iter().chain(["recall", "ROC AUC", "PR AUC"]);
        let mut table = Table::new(
            &["model"].into_iter().chain(has_calibrated.then_some("calibration")).chain(heads).collect::<Vec<_>>(),
        );
        for (model, row) in &rows {
            let [_, _, _, recall, f1, _, _, roc_auc, pr_auc, ..] = row.values;
            let (low, high) = row.intervals[4];
            let mut cells = vec![model.name.clone()];
            cells.extend(has_calibrated.then(|| row.calibration.clone()));
            cells.extend([row.threshold_method.clone(), short(f1)]);
            cells.push(if low.is_nan() { String::new() } else { format!("{}–{}", short(low), short(high)) });
            cells.extend([false_alarms(row), row.operator.found(), row.operator.delay()]);
            cells.extend([recall, roc_auc, pr_auc].map(short));
            table.row(cells);
        }
        format!("\n{}\n\n{}{}", heading(folder, &rows), table.text_within(LINE_WIDTH), self.gone_ids(folder))
    }

    /// A line for each window of a folder from which on IDs are gone, with the number of the models that say so.
    fn gone_ids(&self, folder: &str) -> String {
        let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
        for model in &self.models {
            for row in model.gone.iter().filter(|row| row.folder == folder) {
                let calibrated = if row.calibration == NOT_CALIBRATED { "" } else { ", calibrated" };
                let line = format!("gone{calibrated}: {}", row.text());
                match lines.iter_mut().find(|(known, _)| *known == line) {
                    Some((_, models)) => models.push(&model.name),
                    None => lines.push((line, vec![&model.name])),
                }
            }
        }
        let text = |(line, models): (String, Vec<&str>)| match models[..] {
            [one] => format!("{line}: {one}\n"),
            _ => format!("{line}: {} models\n", models.len()),
        };
        lines.into_iter().map(text).collect()
    }

    /// Mean and sample standard deviation over runs that differ by seed only; empty if there are no two such runs.
    fn table_of_groups(&self, folders: &[&str]) -> String {
        let heads = ["models", "calibration", "threshold", "F1", "false alarms/h", "episodes", "ROC AUC", "PR AUC"];
        let mut table = Table::new(&heads);
        let groups: Vec<(String, Vec<usize>)> =
            groups(&self.models).into_iter().filter(|(_, runs)| runs.len() > 1).collect();
        for (name, runs) in &groups {
            let runs: Vec<&ModelReport> = runs.iter().map(|&run| &self.models[run]).collect();
            for folder in folders {
                for like in runs[0].rows.iter().filter(|row| row.folder == *folder && row.file.is_none()) {
                    let same = |row: &&Row| {
                        row.folder == like.folder
                            && row.file.is_none()
                            && row.calibration == like.calibration
                            && row.threshold_method == like.threshold_method
                            && row.graphs == like.graphs
                    };
                    let rows: Vec<&Row> = runs.iter().filter_map(|run| run.rows.iter().find(same)).collect();
                    let spread =
                        |metric: usize| mean_and_spread(rows.iter().map(|row| row.values[metric]).collect(), 4);
                    let alarms = rows.iter().map(|row| row.operator.false_alarms_per_hour()).collect();
                    let mut cells = vec![format!("{name}, {} runs, {folder}", rows.len())];
                    cells.extend([like.calibration.clone(), like.threshold_method.clone()]);
                    cells.extend([spread(4), mean_and_spread(alarms, 1), mean_found(&rows), spread(7), spread(8)]);
                    table.row(cells);
                }
            }
        }
        if groups.is_empty() {
            String::new()
        } else {
            format!(
                "\nmean ± standard deviation over runs that differ by seed only\n\n{}",
                table.text_within(LINE_WIDTH)
            )
        }
    }
}

/// Groups of models that differ by seed only, as positions, named after their group and the settings in which groups of that name differ.
pub fn groups(models: &[ModelReport]) -> Vec<(String, Vec<usize>)> {
    groups_by(models, |_| true)
}

/// The same groups if only the settings whose names `counts` accepts tell models apart.
pub fn groups_by(models: &[ModelReport], counts: impl Fn(&str) -> bool) -> Vec<(String, Vec<usize>)> {
    let settings: Vec<Vec<Setting>> =
        models.iter().map(|model| model.settings.iter().filter(|(name, _)| counts(name)).cloned().collect()).collect();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (position, model) in models.iter().enumerate() {
        let alike = |group: &&mut Vec<usize>| {
            let first = group[0];
            models[first].group == model.group && settings[first] == settings[position]
        };
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(position),
            None => groups.push(vec![position]),
        }
    }
    let name = |group: &Vec<usize>| {
        let first = group[0];
        let of_name = groups.iter().map(|other| other[0]).filter(|&other| models[other].group == models[first].group);
        let of_name: Vec<&[Setting]> = of_name.map(|other| &settings[other][..]).collect();
        match describe(&settings[first], &distinguishing(&of_name)) {
            differing if differing.is_empty() => models[first].group.clone(),
            differing => format!("{} ({differing})", models[first].group),
        }
    };
    let names: Vec<String> = groups.iter().map(name).collect();
    names.into_iter().zip(groups).collect()
}

impl ModelReport {
    fn json(&self) -> Value {
        json!({
            "model": self.name,
            "group": self.group,
            "kind": self.kind,
            "features": self.features.map(|features| features.to_string()),
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
            "gone": self.gone,
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
        let operator = &self.operator;
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
            "false_alarms_per_hour": operator.false_alarms_per_hour(),
            "hours_without_attack": operator.hours_without_attack(),
            "episodes": operator.episodes,
            "episodes_found": operator.episodes_found(),
            "median_delay_seconds": operator.median_delay_seconds(),
            "largest_delay_seconds": operator.largest_delay_seconds(),
            "false_alarms_per_hour_at_most": operator.false_alarms_per_hour_at_most(),
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

fn rate(value: f64) -> String {
    if value.is_nan() { "-".to_owned() } else { format!("{value:.1}") }
}

/// False alarms an hour; of traffic without an attack also how many they are at most.
fn false_alarms(row: &Row) -> String {
    let found = rate(row.operator.false_alarms_per_hour());
    match row.attacks {
        0 => format!("{found} (at most {})", rate(row.operator.false_alarms_per_hour_at_most())),
        _ => found,
    }
}

/// Folder with its numbers of graphs. Calibrated rows may have fewer, because not each file can be calibrated.
fn heading(folder: &str, rows: &[(&ModelReport, &Row)]) -> String {
    let mut text = folder.to_owned();
    let mut counts: Vec<(u64, u64)> = Vec::new();
    for (_, row) in rows {
        let (graphs, attacks) = (row.graphs, row.attacks);
        if counts.contains(&(graphs, attacks)) {
            continue;
        }
        let of_calibrated = if counts.is_empty() { ": " } else { "; calibrated: " };
        text += &format!("{of_calibrated}{graphs} graphs, {attacks} with an attack");
        counts.push((graphs, attacks));
    }
    if counts.iter().all(|(_, attacks)| *attacks == 0) {
        text += "; no attack labels, so only false alarms, specificity and accuracy are defined";
    }
    text
}

/// Mean number of the episodes found, of how many; `-` without an episode.
fn mean_found(rows: &[&Row]) -> String {
    let episodes = rows.iter().map(|row| row.operator.episodes).max().unwrap_or(0);
    let found: u64 = rows.iter().map(|row| row.operator.episodes_found()).sum();
    match episodes {
        0 => "-".to_owned(),
        _ => format!("{:.1} of {episodes}", found as f64 / rows.len() as f64),
    }
}

fn mean_and_spread(mut values: Vec<f64>, digits: usize) -> String {
    values.retain(|value| !value.is_nan());
    let count = values.len() as f64;
    if values.len() < 2 {
        return values.first().map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    }
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    format!("{mean:.digits$} ± {:.digits$}", variance.sqrt())
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
            operator: OperatorFigures::default(),
        };
        ModelReport {
            name: format!("gat_student_normal/{number}"),
            group: "gat_student_normal".to_owned(),
            settings: vec![("max_epochs".to_owned(), json!(max_epochs))],
            features: None,
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
            gone: Vec::new(),
            rows: vec![row],
        }
    }

    fn report(models: Vec<ModelReport>) -> Report {
        let (bootstrap, dataset) = (Bootstrap { resamples: 0, seed: 1 }, "tiny".to_owned());
        Report {
            dataset,
            data_digest: String::new(),
            window: 100,
            stride: 100,
            bootstrap,
            models,
            teachers: Vec::new(),
        }
    }

    #[test]
    fn means_are_over_runs_of_the_same_settings() {
        let text = report(vec![model(1, 2, 0.1), model(2, 6, 0.8), model(3, 6, 0.9)]).text();
        let means = text.split("mean ± standard deviation over runs that differ by seed only").nth(1).unwrap();
        assert!(means.contains("gat_student_normal (max_epochs 6)") && means.contains("0.8500 ± 0.0707"), "{means}");
        assert!(!means.contains("max_epochs 2"), "a single run has no mean: {means}");
    }

    /// Rows of a folder before and after calibration have means of their own.
    #[test]
    fn means_do_not_mix_calibrations() {
        let both = |number: u64, raw: f64, calibrated: f64| {
            let (mut of, other) = (model(number, 6, raw), model(number, 6, calibrated));
            let first_10_s = "first 10 s".to_owned();
            of.rows.extend(other.rows.into_iter().map(|row| Row { calibration: first_10_s.clone(), ..row }));
            of
        };
        let text = report(vec![both(1, 0.2, 0.8), both(2, 0.4, 0.9)]).text();
        let means: Vec<&str> = text.lines().filter(|line| line.contains('±')).skip(1).collect();
        assert_eq!(means.len(), 2, "{text}");
        assert!(means[0].contains("none") && means[0].contains("0.3000 ± 0.1414"), "{text}");
        assert!(means[1].contains("first 10 s") && means[1].contains("0.8500 ± 0.0707"), "{text}");
    }

    #[test]
    fn tables_fit_a_terminal() {
        let mut long = model(1, 6, 0.8);
        long.name = "gat_student_curriculum_kd/12 + vgae_student_autoencoder_kd/12".to_owned();
        let row = &mut long.rows[0];
        row.folder = "test_02_unknown_vehicle_known_attack".to_owned();
        (row.calibration, row.threshold_method) = ("first 10 s".to_owned(), "fpr:0.001".to_owned());
        (row.values, row.intervals) = ([0.5; METRICS.len()], [(0.25, 0.75); METRICS.len()]);
        row.operator = OperatorFigures {
            seconds: 3600.0,
            seconds_without_attack: 1800.0,
            false_alarms: 36_000,
            episodes: 1200,
            delays_seconds: vec![12.5; 1000],
            ..OperatorFigures::default()
        };
        let raw = Row { calibration: "none".to_owned(), graphs: 12, ..long.rows[0].clone() };
        long.rows.insert(0, raw);
        let text = report(vec![long]).table_of_folder("test_02_unknown_vehicle_known_attack");
        assert!(text.lines().all(|line| line.chars().count() <= LINE_WIDTH), "{text}");
        let heading = "test_02_unknown_vehicle_known_attack: 12 graphs, 5 with an attack; calibrated: 10 graphs, 5 with an attack";
        assert!(text.contains(heading), "{text}");
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("fpr:0.001")).collect();
        let cells: Vec<&str> = rows[1].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells[..4], ["first 10 s", "fpr:0.001", "0.5000", "0.2500–0.7500"]);
        assert_eq!(cells[4..7], ["72000.0", "1000 of 1200", "12.50 s"]);
        // Short names stay in their rows, and calibrations have no column where there are none.
        let text = report(vec![model(1, 6, 0.8), model(2, 6, 0.9)]).table_of_folder("test_01");
        assert!(text.lines().any(|line| line.starts_with("gat_student_normal/2") && line.contains("0.9000")), "{text}");
        assert!(!text.contains("calibration"), "{text}");
    }

    #[test]
    fn the_operator_figures_are_the_last_columns() {
        let mut one = model(1, 6, 0.8);
        one.rows[0].operator = OperatorFigures {
            seconds_without_attack: 1800.0,
            false_alarms: 3,
            episodes: 2,
            delays_seconds: vec![0.25],
            ..OperatorFigures::default()
        };
        let report = report(vec![one]);
        let csv = String::from_utf8(report.csv().unwrap()).unwrap();
        let lines: Vec<&str> = csv.lines().collect();
        assert!(lines[0].ends_with(&format!("validation_roc_auc,{}", OPERATOR_COLUMNS.join(","))), "{csv}");
        assert!(lines[1].ends_with(",6,0.5,2,1,0.25,0.25"), "{csv}");
        let row = &report.json()["models"][0]["results"][0];
        assert_eq!((&row["episodes"], &row["episodes_found"]), (&json!(2), &json!(1)));
        assert_eq!((&row["false_alarms_per_hour"], &row["largest_delay_seconds"]), (&json!(6.0), &json!(0.25)));
    }
}
