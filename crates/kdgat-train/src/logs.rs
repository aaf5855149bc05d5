//! CSV logs of a run: appended row by row, and truncated to the checkpoint when a run is resumed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kdgat_base::files;

/// Error of a log, with its path.
#[derive(Debug, thiserror::Error)]
#[error("{path}: cannot {action}: {source}", path = path.display())]
pub struct LogError {
    path: PathBuf,
    action: &'static str,
    source: csv::Error,
}

impl LogError {
    /// An error for the log at `path`; `action` completes "cannot …".
    pub fn new(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self { path: path.to_owned(), action, source: source.into() }
    }

    /// True if the given path caused it, false for the disk.
    pub fn is_input(&self) -> bool {
        matches!(self.source.kind(), csv::ErrorKind::Io(error) if files::is_about_the_path(error))
    }
}

/// A CSV file with a fixed header, whose first columns are numbers that increase from row to row.
#[derive(Debug)]
pub struct CsvLog {
    path: PathBuf,
    writer: csv::Writer<File>,
    columns: Vec<String>,
    /// Copy of the log as JSON lines.
    json_lines: Option<File>,
}

impl CsvLog {
    /// Creates a log, replacing an existing one.
    pub fn create(path: &Path, header: &[&str]) -> Result<Self, LogError> {
        Self::rewrite(path, header, &[])
    }

    /// Resumes a log with only the rows that `keep` accepts, by their fields. Drops an incomplete last row, as a killed process
    /// leaves it. Creates the log if it does not exist.
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

    /// Appends a row and passes it to the operating system.
    pub fn write<S: AsRef<str>>(&mut self, row: &[S]) -> Result<(), LogError> {
        debug_assert_eq!(
            row.len(),
            self.columns.len(),
            "a row of {} has the wrong number of fields",
            self.path.display()
        );
        let fields = row.iter().map(AsRef::as_ref);
        let written = self.writer.write_record(fields).and_then(|()| Ok(self.writer.flush()?));
        written.map_err(|source| LogError { path: self.path.clone(), action: "write", source })?;
        if let Some(file) = &mut self.json_lines {
            let line = json_line(&self.columns, row.iter().map(AsRef::as_ref));
            file.write_all(line.as_bytes()).map_err(|source| LogError::new(&self.path, "write JSON lines", source))?;
        }
        Ok(())
    }

    /// Flushes the rows to the disk.
    pub fn sync(&self) -> Result<(), LogError> {
        self.writer.get_ref().sync_data().map_err(|source| LogError::new(&self.path, "sync", source))
    }

    /// Names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Also writes the log as JSON lines: the present rows and all later ones.
    pub fn mirror_as_json_lines(&mut self, path: &Path) -> Result<(), LogError> {
        let error = |source| LogError { path: self.path.clone(), action: "read", source };
        let mut lines = String::new();
        for record in csv::Reader::from_path(&self.path).map_err(error)?.records() {
            lines += &json_line(&self.columns, record.map_err(error)?.iter());
        }
        let error = |source| LogError::new(path, "write", source);
        files::write_atomically(path, lines.as_bytes()).map_err(error)?;
        self.json_lines = Some(OpenOptions::new().append(true).open(path).map_err(error)?);
        Ok(())
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
        let columns = header.iter().map(|&column| column.to_owned()).collect();
        Ok(Self { path: path.to_owned(), writer: csv::Writer::from_writer(file), columns, json_lines: None })
    }
}

/// Formats a row as a JSON object: numbers as written, null for an empty field, otherwise text.
fn json_line<'a>(columns: &[String], row: impl Iterator<Item = &'a str>) -> String {
    let value = |field: &str| match serde_json::from_str(field) {
        Ok(number @ serde_json::Value::Number(_)) => number,
        _ if field.is_empty() => serde_json::Value::Null,
        _ => field.into(),
    };
    let object: serde_json::Map<_, _> = columns.iter().cloned().zip(row.map(value)).collect();
    format!("{}\n", serde_json::Value::Object(object))
}

/// Formats a number for logs: the shortest digits that read back as the same value; empty for NaN.
pub fn number(value: f64) -> String {
    if value.is_nan() { String::new() } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resuming_truncates_and_drops_an_incomplete_row() {
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

    #[test]
    fn json_lines_have_the_earlier_rows_and_the_new_ones() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = CsvLog::create(&folder.path().join("steps.csv"), &["step", "loss", "mode"]).unwrap();
        log.write(&["0", "0.1", "cached"]).unwrap();
        let lines = folder.path().join("steps.jsonl");
        std::fs::write(&lines, "what was there\n").unwrap();
        log.mirror_as_json_lines(&lines).unwrap();
        log.write(&["1", "", "a \"quoted\" one"]).unwrap();
        let text = std::fs::read_to_string(&lines).unwrap();
        let rows: Vec<&str> = text.lines().collect();
        let second = r#"{"step":1,"loss":null,"mode":"a \"quoted\" one"}"#;
        assert_eq!(rows, [r#"{"step":0,"loss":0.1,"mode":"cached"}"#, second]);
    }
}
