//! Row logs of a run: `metrics.csv` and `steps.csv`, and their copies for other programs.

use super::event_file::EventFile;
use super::fit::{FitOptions, METRICS};
use super::logs::{CsvLog, LogError};
use super::metrics::{metrics_header, steps_header};
use super::objective::Objective;
use super::run_directory::RunDirectory;

/// Open row logs of a run.
#[derive(Debug)]
pub struct RunLogs {
    metrics: CsvLog,
    steps: CsvLog,
    events: Option<EventFile>,
}

impl RunLogs {
    /// Opens the logs. A resumed run drops all rows from its position (epoch, step) on. `plan_columns` follow the columns of
    /// `metrics.csv` that all runs have.
    pub fn start(
        run: &RunDirectory,
        objective: &dyn Objective,
        plan_columns: &[&str],
        (epoch, step): (u64, u64),
        options: &FitOptions,
    ) -> Result<Self, LogError> {
        let mut columns = metrics_header(objective.parts());
        columns.extend(plan_columns.iter().map(|&column| column.to_owned()));
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let number_at = |row: &csv::StringRecord, column: usize| row[column].parse::<u64>().unwrap_or(u64::MAX);
        let mut metrics = CsvLog::resume(&run.file(METRICS), &columns, |row| number_at(row, 0) < epoch)?;
        let mut steps = CsvLog::resume(&run.file("steps.csv"), &steps_header(objective), |row| {
            (number_at(row, 0), number_at(row, 1)) < (epoch, step)
        })?;
        if options.json_lines {
            metrics.mirror_as_json_lines(&run.file("metrics.jsonl"))?;
            steps.mirror_as_json_lines(&run.file("steps.jsonl"))?;
        }
        let events = options.tensorboard.then(|| EventFile::create(run.path())).transpose();
        let events = events.map_err(|source| LogError::new(run.path(), "create an event file", source))?;
        Ok(Self { metrics, steps, events })
    }

    /// Adds the row of an epoch.
    pub fn epoch<S: AsRef<str>>(&mut self, row: &[S], epoch: u64) -> Result<(), LogError> {
        self.metrics.write(row)?;
        mirror(&mut self.events, "epoch", self.metrics.columns(), row, epoch)
    }

    /// Flushes all rows to the disk. The copies are not synced: a resumed run recreates them from the CSV files.
    pub fn sync(&self) -> Result<(), LogError> {
        self.metrics.sync()?;
        self.steps.sync()
    }

    /// Adds the row of a step; `step` counts from the beginning of the run.
    pub fn step<S: AsRef<str>>(&mut self, row: &[S], step: u64) -> Result<(), LogError> {
        self.steps.write(row)?;
        mirror(&mut self.events, "step", self.steps.columns(), row, step)
    }
}

fn mirror<S: AsRef<str>>(
    events: &mut Option<EventFile>,
    prefix: &str,
    columns: &[String],
    row: &[S],
    step: u64,
) -> Result<(), LogError> {
    let Some(events) = events else { return Ok(()) };
    events.row(prefix, columns, row, step).map_err(|source| LogError::new(events.path(), "write", source))
}
