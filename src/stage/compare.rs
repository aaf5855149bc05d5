//! Compares the metrics of two runs, epoch by epoch, for example in a regression test of losses.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::StageError;
use crate::config::nearest;
use crate::evaluate::text_table::Table;

const METRICS_FILE: &str = "metrics.csv";
const EPOCH: &str = "epoch";
/// The column that decides a run's best epoch, whose model is saved: the one with the lowest value.
const VALIDATION_LOSS: &str = "val_loss";
/// Columns that differ even between two identical runs.
const MEASURED: [&str; 3] = ["graphs_per_second", "peak_memory_bytes", "seconds"];

/// Options of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct CompareOptions {
    /// Columns of `metrics.csv` to compare; empty: all that both runs have and at least one fills in, except times and memory.
    pub metrics: Vec<String>,
    /// Largest difference that counts as equal, relative to the larger of the two magnitudes.
    pub tolerance: f64,
}

/// The differences between two runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub metrics: Vec<MetricComparison>,
    /// Number of epochs of the first and of the second run.
    pub epochs: [usize; 2],
    /// The best epoch of each run.
    pub best: [u64; 2],
    /// The first epoch that only one run has, and that run's index (0 or 1).
    pub first_alone: Option<(u64, usize)>,
    /// Columns that only one run has, which are not compared.
    pub only_in_one: Vec<String>,
    pub tolerance: f64,
}

/// The comparison of one column.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricComparison {
    pub name: String,
    /// The epochs that both runs have.
    pub rows: Vec<EpochPair>,
    /// The value of each run at its best epoch.
    pub at_best: [Option<f64>; 2],
    /// The first epoch whose difference exceeds the tolerance.
    pub first_parted: Option<u64>,
    /// Largest difference over the epochs that both runs have.
    pub largest_difference: f64,
}

/// The values of one epoch; `None` if a run has no value.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochPair {
    pub epoch: u64,
    pub values: [Option<f64>; 2],
    /// |a − b| / max(|a|, |b|); infinite if only one run has a value.
    pub difference: f64,
}

/// Reads and compares two runs, each given as its folder or its `metrics.csv`.
///
/// # Errors
/// If a log is missing or damaged, a run lacks a requested metric, or the tolerance is below 0.
pub fn compare(runs: [&Path; 2], options: &CompareOptions) -> Result<Comparison, StageError> {
    if options.tolerance.is_nan() || options.tolerance < 0.0 {
        return Err(StageError::Input(format!("--tolerance {}: must be 0 or more", options.tolerance)));
    }
    let logs = [Log::read(runs[0])?, Log::read(runs[1])?];
    let names = match options.metrics.as_slice() {
        [] => {
            // Columns that both runs leave empty, such as kd_loss without a teacher, are skipped.
            let is_empty =
                |name: &String| logs.iter().all(|log| log.epochs().all(|epoch| log.value(epoch, name).is_none()));
            let mut names = logs[0].comparable();
            names.retain(|name| logs[1].column(name).is_some() && !is_empty(name));
            names
        }
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
    let best = logs.each_ref().map(Log::best_epoch);
    let alone = |run: usize| logs[run].epochs().find(|epoch| !logs[1 - run].has(*epoch)).map(|epoch| (epoch, run));
    let first_alone = [alone(0), alone(1)].into_iter().flatten().min();
    Ok(Comparison { metrics, epochs, best, first_alone, only_in_one, tolerance: options.tolerance })
}

fn compare_metric(logs: &[Log; 2], name: &str, tolerance: f64) -> MetricComparison {
    let pair = |epoch: u64| {
        let values = logs.each_ref().map(|log| log.value(epoch, name));
        let difference = match values {
            [Some(a), Some(b)] => relative_difference(a, b),
            // Empty in both runs, such as kd_loss without a teacher.
            [None, None] => 0.0,
            _ => f64::INFINITY,
        };
        EpochPair { epoch, values, difference }
    };
    let rows: Vec<EpochPair> = logs[0].epochs().filter(|epoch| logs[1].has(*epoch)).map(pair).collect();
    let at_best = logs.each_ref().map(|log| log.value(log.best_epoch(), name));
    // NaN exceeds any tolerance.
    let parts = |row: &&EpochPair| row.difference > tolerance || row.difference.is_nan();
    let first_parted = rows.iter().find(parts).map(|row| row.epoch);
    let largest_difference = rows.iter().map(|row| row.difference).fold(0.0, larger);
    MetricComparison { name: name.to_owned(), rows, at_best, first_parted, largest_difference }
}

/// |a − b| / max(|a|, |b|): 0 for equal values, and for two NaNs.
fn relative_difference(a: f64, b: f64) -> f64 {
    if a == b || a.is_nan() && b.is_nan() {
        return 0.0;
    }
    (a - b).abs() / a.abs().max(b.abs())
}

/// The larger of two numbers; NaN counts as larger than any number.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

impl Comparison {
    /// True if both runs have the same epochs and every metric is within the tolerance in each of them.
    pub fn is_equal(&self) -> bool {
        self.first_alone.is_none() && self.metrics.iter().all(|metric| metric.first_parted.is_none())
    }

    /// The report: with at most three metrics a table of all epochs for each, then the best epochs and a summary.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.metrics.len() <= 3 {
            for metric in &self.metrics {
                text += &metric.table(self.tolerance);
                text.push('\n');
            }
        }
        let best =
            ["first", "second"].into_iter().zip(self.best).map(|(run, epoch)| format!("{run} run, epoch {epoch}"));
        let heads: Vec<String> = ["metric".to_owned()]
            .into_iter()
            .chain(best)
            .chain(["difference", "largest difference", "first differs in epoch"].map(str::to_owned))
            .collect();
        let mut table = Table::new(&heads.iter().map(String::as_str).collect::<Vec<_>>());
        for metric in &self.metrics {
            let between = match metric.at_best {
                [Some(a), Some(b)] => difference(relative_difference(a, b)),
                _ => NOTHING.to_owned(),
            };
            table.row(vec![
                metric.name.clone(),
                shown(metric.at_best[0]),
                shown(metric.at_best[1]),
                between,
                difference(metric.largest_difference),
                metric.first_parted.map_or("never".to_owned(), |epoch| epoch.to_string()),
            ]);
        }
        text += &table.text();
        let [first, second] = self.epochs;
        let shared = self.metrics.first().map_or(0, |metric| metric.rows.len());
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "\nvalues and difference: each run at its best epoch (lowest {VALIDATION_LOSS}; epochs count from 0, as in {METRICS_FILE}); \
             last two columns: over the {shared} epochs that both runs have"
        );
        if !self.only_in_one.is_empty() {
            let _ = writeln!(text, "not compared, because only one run has it: {}", self.only_in_one.join(", "));
        }
        let parted = self.metrics.iter().filter_map(|metric| metric.first_parted.map(|epoch| (epoch, &metric.name)));
        let _ = match (parted.min(), self.first_alone) {
            (Some((epoch, name)), _) => writeln!(
                text,
                "the runs first differ in epoch {epoch} ({name}), by more than the tolerance of {:e}; epochs: {first} and {second}",
                self.tolerance
            ),
            (None, Some((epoch, run))) => writeln!(
                text,
                "the runs first differ in epoch {epoch}, which only the {} run has; epochs: {first} and {second}, equal within {:e} \
                 in the epochs that both have",
                ["first", "second"][run],
                self.tolerance
            ),
            (None, None) => writeln!(text, "equal within {:e} in all {first} epochs", self.tolerance),
        };
        text
    }
}

impl MetricComparison {
    fn table(&self, tolerance: f64) -> String {
        let mut table = Table::new(&["epoch", &format!("{}, first", self.name), "second", "difference", ""]);
        for row in &self.rows {
            let mark = if row.difference <= tolerance { "" } else { "<" };
            let cells = [shown(row.values[0]), shown(row.values[1]), difference(row.difference), mark.to_owned()];
            table.row([vec![row.epoch.to_string()], cells.to_vec()].concat());
        }
        table.text()
    }
}

/// Placeholder for a missing value.
const NOTHING: &str = "-";

fn shown(value: Option<f64>) -> String {
    value.map_or(NOTHING.to_owned(), |value| value.to_string())
}

fn difference(value: f64) -> String {
    if value.is_infinite() { "one value only".to_owned() } else { format!("{value:.3e}") }
}

/// A parsed `metrics.csv`.
struct Log {
    path: PathBuf,
    header: Vec<String>,
    /// Epoch number and fields of each row, in ascending order of epochs.
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
            return Err(wrong(format!("has no column '{EPOCH}'; it is not the metrics.csv of a run")));
        };
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record.map_err(|error| wrong(error.to_string()))?;
            let number = record[epoch]
                .parse::<u64>()
                .map_err(|_| wrong(format!("'{}' is not an epoch number", &record[epoch])))?;
            for (name, field) in header.iter().zip(&record).filter(|(_, field)| !field.is_empty()) {
                field
                    .parse::<f64>()
                    .map_err(|_| wrong(format!("'{field}' in column {name}, epoch {number}, is not a number")))?;
            }
            rows.push((number, record.iter().map(str::to_owned).collect()));
        }
        if rows.is_empty() {
            return Err(wrong("has no epoch yet".to_owned()));
        }
        if !rows.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(wrong("its epochs are not in ascending order".to_owned()));
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

    fn epochs(&self) -> impl Iterator<Item = u64> {
        self.rows.iter().map(|(epoch, _)| *epoch)
    }

    fn has(&self, epoch: u64) -> bool {
        self.rows.binary_search_by_key(&epoch, |row| row.0).is_ok()
    }

    /// The epoch with the lowest validation loss (the first of equal ones); the last epoch if the log has no validation loss.
    fn best_epoch(&self) -> u64 {
        let losses = self.epochs().filter_map(|epoch| Some((epoch, self.value(epoch, VALIDATION_LOSS)?)));
        let best = losses.filter(|(_, loss)| !loss.is_nan()).min_by(|a, b| a.1.total_cmp(&b.1));
        // `read` refuses a log without rows.
        best.map(|(epoch, _)| epoch).or_else(|| self.epochs().last()).unwrap_or(0)
    }

    /// The value of a column in an epoch; `None` if the field is empty or there is no such epoch.
    fn value(&self, epoch: u64, name: &str) -> Option<f64> {
        let row = self.rows.binary_search_by_key(&epoch, |row| row.0).ok()?;
        self.rows[row].1.get(self.column(name)?)?.parse().ok()
    }
}
