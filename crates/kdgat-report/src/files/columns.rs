//! CSV files with access by column name.

use std::fs;
use std::path::{Path, PathBuf};

use crate::ReportError;

/// A table, read completely.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    /// Path of the file.
    pub path: PathBuf,
    header: Vec<String>,
    rows: Vec<csv::StringRecord>,
}

impl Columns {
    /// Reads a file; `None` if it does not exist. Skips a truncated last row, which a run may still be writing.
    ///
    /// # Errors
    /// If the file cannot be read, or another row has too few or too many fields.
    pub fn read(path: &Path) -> Result<Option<Self>, ReportError> {
        if !path.exists() {
            return Ok(None);
        }
        let unreadable = |error: csv::Error| ReportError::input(path, format!("is not a CSV table: {error}"));
        let text = fs::read(path).map_err(ReportError::file(path, "read"))?;
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_slice());
        let header: Vec<String> = reader.headers().map_err(unreadable)?.iter().map(str::to_owned).collect();
        let mut rows = reader.records().collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        rows.pop_if(|row| row.len() != header.len() && !text.ends_with(b"\n"));
        if let Some(row) = rows.iter().find(|row| row.len() != header.len()) {
            let found = format!("has {} fields, expected {}", row.len(), header.len());
            return Err(damaged(path, row, &found));
        }
        Ok(Some(Self { path: path.to_owned(), header, rows }))
    }

    /// Checks that each field is a number or empty.
    ///
    /// # Errors
    /// The line of the first field that is neither.
    pub fn check_numbers(&self) -> Result<(), ReportError> {
        for row in &self.rows {
            let is_wrong = |field: &&str| !field.is_empty() && field.parse::<f64>().is_err();
            if let Some((column, field)) = self.names().zip(row).find(|(_, field)| is_wrong(field)) {
                return Err(damaged(&self.path, row, &format!("has '{field}' in column {column}, expected a number")));
            }
        }
        Ok(())
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the names of the columns.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.iter().map(String::as_str)
    }

    /// Returns the texts of a column; empty texts if the file has no such column.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        match self.header.iter().position(|column| column == name) {
            Some(column) => self.rows.iter().map(|row| row.get(column).unwrap_or("")).collect(),
            None => vec![""; self.rows.len()],
        }
    }

    /// Returns the numbers of a column; NaN where a field is empty or not a number.
    pub fn numbers(&self, name: &str) -> Vec<f64> {
        self.texts(name).iter().map(|text| text.parse().unwrap_or(f64::NAN)).collect()
    }

    /// Returns the points (x, y) of two columns where both are finite.
    pub fn points(&self, x: &str, y: &str) -> Vec<(f64, f64)> {
        let points = self.numbers(x).into_iter().zip(self.numbers(y));
        points.filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    }
}

fn damaged(path: &Path, row: &csv::StringRecord, found: &str) -> ReportError {
    let line = row.position().map_or(0, csv::Position::line);
    ReportError::input(path, format!("line {line} {found}; restore the file, or remove that line"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_by_name_without_a_torn_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        assert!(Columns::read(&path).unwrap().is_none());
        std::fs::write(&path, "epoch,loss,kd\n0,0.5,\n1,0.25,0.1\n2,0.1").unwrap();
        let table = Columns::read(&path).unwrap().unwrap();
        assert_eq!(table.len(), 2);
        assert_eq!(table.points("epoch", "loss"), [(0.0, 0.5), (1.0, 0.25)]);
        assert_eq!(table.points("epoch", "kd"), [(1.0, 0.1)]);
        assert!(table.points("epoch", "absent").is_empty());
    }

    #[test]
    fn damage_is_named_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        let said = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let read = Columns::read(&path).and_then(|table| table.unwrap_or_default().check_numbers());
            read.map_or_else(|error| error.to_string(), |()| "whole".to_owned())
        };
        assert_eq!(said("epoch,loss,kd\n0,0.5,\n1,nan,0.1\n"), "whole");
        let text = said("epoch,loss,kd\n0,0.5,\n1,abc,0.1\n2,0.1,0.2\n");
        assert!(text.contains("metrics.csv: line 3 has 'abc' in column loss"), "{text}");
        // Too short: in the middle, and at the end with a line break.
        for text in ["epoch,loss,kd\n0,0.5,\n1,abc\n2,0.1,0.2\n", "epoch,loss,kd\n0,0.5,\n1,0.5\n"] {
            let text = said(text);
            assert!(text.contains("line 3 has 2 fields, expected 3"), "{text}");
        }
    }
}
