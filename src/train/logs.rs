//! A run's CSV logs: one row at a time, and cut back to a checkpoint when a run is resumed.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::files;

/// An error of a log, with its path.
#[derive(Debug, thiserror::Error)]
#[error("{path}: cannot {action}: {source}", path = path.display())]
pub struct LogError {
    path: PathBuf,
    action: &'static str,
    source: csv::Error,
}

impl LogError {
    /// What could not be done with the log at `path`.
    pub fn new(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self { path: path.to_owned(), action, source: source.into() }
    }
}

/// A CSV file with a fixed header whose first columns are numbers that grow from row to row.
#[derive(Debug)]
pub struct CsvLog {
    path: PathBuf,
    writer: csv::Writer<File>,
    columns: usize,
}

impl CsvLog {
    /// Starts a new log, replacing one that is there.
    pub fn create(path: &Path, header: &[&str]) -> Result<Self, LogError> {
        Self::rewrite(path, header, &[])
    }

    /// Goes on with a log, keeping only the rows that `keep` accepts (by the fields of a row). A last row without its end,
    /// as a killed process leaves it, is dropped.
    pub fn resume(path: &Path, header: &[&str], keep: impl Fn(&csv::StringRecord) -> bool) -> Result<Self, LogError> {
        if !path.exists() {
            return Self::create(path, header);
        }
        let error = |source| LogError { path: path.to_owned(), action: "read", source };
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_path(path).map_err(error)?;
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record.map_err(error)?;
            if record.len() == header.len() && keep(&record) {
                rows.push(record);
            }
        }
        Self::rewrite(path, header, &rows)
    }

    /// Adds a row and hands it to the operating system.
    pub fn write<S: AsRef<str>>(&mut self, row: &[S]) -> Result<(), LogError> {
        debug_assert_eq!(row.len(), self.columns, "a row of {} has the wrong number of fields", self.path.display());
        let fields = row.iter().map(AsRef::as_ref);
        let written = self.writer.write_record(fields).and_then(|()| Ok(self.writer.flush()?));
        written.map_err(|source| LogError { path: self.path.clone(), action: "write", source })
    }

    fn rewrite(path: &Path, header: &[&str], rows: &[csv::StringRecord]) -> Result<Self, LogError> {
        let error = |source| LogError { path: path.to_owned(), action: "write", source };
        files::write_atomically_with(path, |file| {
            let mut writer = csv::Writer::from_writer(file);
            writer.write_record(header).map_err(io::Error::other)?;
            for row in rows {
                writer.write_record(row).map_err(io::Error::other)?;
            }
            writer.flush()
        })
        .map_err(|source| error(source.into()))?;
        let file = OpenOptions::new().append(true).open(path).map_err(|source| error(source.into()))?;
        Ok(Self { path: path.to_owned(), writer: csv::Writer::from_writer(file), columns: header.len() })
    }
}

/// A number as logs write it: shortest digits that read back as the same value; nothing for one that is not known.
pub fn number(value: f64) -> String {
    if value.is_nan() { String::new() } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resuming_cuts_back_and_drops_a_torn_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        let mut log = CsvLog::create(&path, &["epoch", "loss"]).unwrap();
        for epoch in 0..4 {
            log.write(&[epoch.to_string(), "0.5".into()]).unwrap();
        }
        drop(log);
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push('4');
        std::fs::write(&path, text).unwrap();
        let before = |epoch: u64| move |row: &csv::StringRecord| row[0].parse::<u64>().is_ok_and(|found| found < epoch);
        let mut log = CsvLog::resume(&path, &["epoch", "loss"], before(2)).unwrap();
        log.write(&["2", "0.25"]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "epoch,loss\n0,0.5\n1,0.5\n2,0.25\n");
    }
}
