//! Compares the logs of two runs, epoch by epoch: what a regression test of losses calls.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::StageError;
use crate::config::nearest;
use crate::evaluate::tables::Table;

const METRICS_FILE: &str = "metrics.csv";
const EPOCH: &str = "epoch";
/// Columns that differ between two runs of the same thing.
const MEASURED: [&str; 3] = ["graphs_per_second", "peak_memory_bytes", "seconds"];

/// What is compared, and how closely.
#[derive(Debug, Clone, PartialEq)]
pub struct CompareOptions {
    /// Columns of `metrics.csv`; none: all that both runs have, but times and memory.
    pub metrics: Vec<String>,
    /// Largest difference that counts as equal, relative to the larger magnitude.
    pub tolerance: f64,
}

/// How two runs differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub metrics: Vec<MetricComparison>,
    /// Epochs of the first and of the second run.
    pub epochs: [usize; 2],
    /// Columns that only one of the runs has; they are not compared.
    pub only_in_one: Vec<String>,
    pub tolerance: f64,
}

/// One column of both runs.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricComparison {
    pub name: String,
    /// Rows of epochs that either run has.
    pub rows: Vec<EpochPair>,
    /// The first epoch whose difference is past the tolerance.
    pub first_parted: Option<u64>,
    /// Of all epochs.
    pub largest_difference: f64,
}

/// The values of one epoch; `None` where a run has none.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochPair {
    pub epoch: u64,
    pub values: [Option<f64>; 2],
    /// |a − b| / max(|a|, |b|); infinite when only one run has the value.
    pub difference: f64,
}

/// Reads and compares two runs, each given as its folder or its `metrics.csv`.
///
/// # Errors
/// A log that is missing or damaged, a metric that a run does not have, a tolerance below 0.
pub fn compare(runs: [&Path; 2], options: &CompareOptions) -> Result<Comparison, StageError> {
    if options.tolerance.is_nan() || options.tolerance < 0.0 {
        return Err(StageError::Input(format!("--tolerance {}: must be 0 or more", options.tolerance)));
    }
    let logs = [Log::read(runs[0])?, Log::read(runs[1])?];
    let names = match options.metrics.as_slice() {
        [] => logs[0].comparable().into_iter().filter(|name| logs[1].column(name).is_some()).collect(),
        names => names.to_vec(),
    };
    for (log, name) in logs.iter().flat_map(|log| names.iter().map(move |name| (log, name))) {
        if log.column(name).is_none() {
            let near = nearest(name, log.header.iter().map(String::as_str));
            return Err(StageError::Input(format!(
                "{}: has no column '{name}'; did you mean '{near}'?",
                log.path.display()
            )));
        }
    }
    let mut only_in_one: Vec<String> = Vec::new();
    if options.metrics.is_empty() {
        for (log, other) in [(&logs[0], &logs[1]), (&logs[1], &logs[0])] {
            only_in_one.extend(log.comparable().into_iter().filter(|name| other.column(name).is_none()));
        }
    }
    let metrics = names.iter().map(|name| compare_metric(&logs, name, options.tolerance)).collect();
    let epochs = [logs[0].rows.len(), logs[1].rows.len()];
    Ok(Comparison { metrics, epochs, only_in_one, tolerance: options.tolerance })
}

fn compare_metric(logs: &[Log; 2], name: &str, tolerance: f64) -> MetricComparison {
    let mut epochs: Vec<u64> = logs.iter().flat_map(|log| log.rows.iter().map(|(epoch, _)| *epoch)).collect();
    epochs.sort_unstable();
    epochs.dedup();
    let pair = |epoch: u64| {
        let present = logs.each_ref().map(|log| log.rows.binary_search_by_key(&epoch, |row| row.0).is_ok());
        let values = logs.each_ref().map(|log| log.value(epoch, name));
        let difference = match values {
            [Some(a), Some(b)] => relative_difference(a, b),
            // A column that neither run fills in, such as kd_loss without a teacher.
            [None, None] if present == [true, true] => 0.0,
            _ => f64::INFINITY,
        };
        EpochPair { epoch, values, difference }
    };
    let rows: Vec<EpochPair> = epochs.into_iter().map(pair).collect();
    // A difference that is no number is past any tolerance.
    let parts = |row: &&EpochPair| row.difference > tolerance || row.difference.is_nan();
    let first_parted = rows.iter().find(parts).map(|row| row.epoch);
    let largest_difference = rows.iter().map(|row| row.difference).fold(0.0, larger);
    MetricComparison { name: name.to_owned(), rows, first_parted, largest_difference }
}

/// |a − b| / max(|a|, |b|): 0 for equal values, also for two that are both no numbers.
fn relative_difference(a: f64, b: f64) -> f64 {
    if a == b || a.is_nan() && b.is_nan() {
        return 0.0;
    }
    (a - b).abs() / a.abs().max(b.abs())
}

/// The larger of two, where what is no number is larger than any.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

impl Comparison {
    /// Whether every metric is within the tolerance in every epoch.
    pub fn is_equal(&self) -> bool {
        self.metrics.iter().all(|metric| metric.first_parted.is_none())
    }

    /// The epochs of each metric side by side when there are few metrics, and a summary.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.metrics.len() <= 3 {
            for metric in &self.metrics {
                text += &metric.table(self.tolerance);
                text.push('\n');
            }
        }
        let mut table =
            Table::new(&["metric", "first run, last", "second run, last", "largest difference", "parts in epoch"]);
        for metric in &self.metrics {
            let last = |run: usize| metric.rows.last().map_or(String::new(), |row| shown(row.values[run]));
            let parted = metric.first_parted.map_or("never".to_owned(), |epoch| epoch.to_string());
            table.row(vec![
                metric.name.clone(),
                last(0),
                last(1),
                format!("{:.3e}", metric.largest_difference),
                parted,
            ]);
        }
        text += &table.text();
        if !self.only_in_one.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "\nnot compared, because only one run has it: {}", self.only_in_one.join(", "));
        }
        let parted = self.metrics.iter().filter_map(|metric| metric.first_parted.map(|epoch| (epoch, &metric.name)));
        let _ = match parted.min() {
            Some((epoch, name)) => writeln!(
                text,
                "\nthe runs part in epoch {epoch} ({name}), past the tolerance of {:e}; epochs: {} and {}",
                self.tolerance, self.epochs[0], self.epochs[1]
            ),
            None => writeln!(text, "\nequal within {:e} in all {} epochs", self.tolerance, self.epochs[0]),
        };
        text
    }
}

impl MetricComparison {
    fn table(&self, tolerance: f64) -> String {
        let mut table = Table::new(&["epoch", &format!("{}, first", self.name), "second", "difference", ""]);
        for row in &self.rows {
            let mark = if row.difference <= tolerance { "" } else { "<" };
            let difference = format!("{:.3e}", row.difference);
            table.row(vec![
                row.epoch.to_string(),
                shown(row.values[0]),
                shown(row.values[1]),
                difference,
                mark.to_owned(),
            ]);
        }
        table.text()
    }
}

fn shown(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

/// A `metrics.csv`.
struct Log {
    path: PathBuf,
    header: Vec<String>,
    /// Epoch and fields, epochs ascending.
    rows: Vec<(u64, Vec<String>)>,
}

impl Log {
    fn read(run: &Path) -> Result<Self, StageError> {
        let path = if run.is_dir() { run.join(METRICS_FILE) } else { run.to_owned() };
        let wrong = |reason: String| StageError::Input(format!("{}: {reason}", path.display()));
        let text = fs::read(&path).map_err(|error| {
            wrong(format!("cannot be read: {error}; name a run's folder, such as runs/sim/vgae_student_autoencoder/1"))
        })?;
        let mut reader = csv::Reader::from_reader(text.as_slice());
        let header: Vec<String> =
            reader.headers().map_err(|error| wrong(error.to_string()))?.iter().map(str::to_owned).collect();
        let Some(epoch) = header.iter().position(|name| name == EPOCH) else {
            return Err(wrong(format!("has no column '{EPOCH}'; it is no log of a run")));
        };
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record.map_err(|error| wrong(error.to_string()))?;
            let number =
                record[epoch].parse::<u64>().map_err(|_| wrong(format!("'{}' is no epoch", &record[epoch])))?;
            for (name, field) in header.iter().zip(&record).filter(|(_, field)| !field.is_empty()) {
                field
                    .parse::<f64>()
                    .map_err(|_| wrong(format!("'{field}' in column {name}, epoch {number}, is no number")))?;
            }
            rows.push((number, record.iter().map(str::to_owned).collect()));
        }
        if rows.is_empty() {
            return Err(wrong("has no epoch yet".to_owned()));
        }
        if !rows.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(wrong("its epochs do not ascend".to_owned()));
        }
        Ok(Self { path, header, rows })
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|column| column == name)
    }

    fn comparable(&self) -> Vec<String> {
        let excluded = |name: &str| name == EPOCH || MEASURED.contains(&name);
        self.header.iter().filter(|name| !excluded(name)).cloned().collect()
    }

    /// `None` when the field is empty or there is no such epoch.
    fn value(&self, epoch: u64, name: &str) -> Option<f64> {
        let row = self.rows.binary_search_by_key(&epoch, |row| row.0).ok()?;
        self.rows[row].1.get(self.column(name)?)?.parse().ok()
    }
}
