//! A CSV file of the tabular format: named columns, and errors with file and line.

use std::path::Path;

use csv::{ReaderBuilder, StringRecord, Trim};

use super::error::DatasetError;
use super::source_files::SourceFiles;

/// A file with a header.
pub(super) struct CsvTable {
    file: String,
    columns: Vec<String>,
    bytes: Vec<u8>,
}

/// A row and its line.
pub(super) struct Row<'a> {
    table: &'a CsvTable,
    /// Line of the row in its file, from 1.
    pub line: u64,
    record: &'a StringRecord,
}

impl CsvTable {
    /// Reads a file; `None` if there is no such file.
    pub fn read(files: &SourceFiles, file: &str) -> Result<Option<Self>, DatasetError> {
        let Some(bytes) = files.read(file)? else { return Ok(None) };
        let header = reader(&bytes).headers().cloned();
        let header = header.map_err(|error| broken(file, &error))?;
        let columns: Vec<String> = header.iter().map(|name| name.trim_start_matches('\u{feff}').to_owned()).collect();
        if let Some(at) = (1..columns.len()).find(|&at| columns[..at].contains(&columns[at])) {
            return Err(DatasetError::line(file, 1, format!("column '{}' twice", columns[at]), "each column once"));
        }
        Ok(Some(Self { file: file.to_owned(), columns, bytes }))
    }

    /// Reads a file that the format requires.
    pub fn required(files: &SourceFiles, file: &'static str, expected: &'static str) -> Result<Self, DatasetError> {
        let root: &Path = files.root();
        let missing = || DatasetError::MissingFile { root: root.to_owned(), file: file.to_owned(), expected };
        Self::read(files, file)?.ok_or_else(missing)
    }

    /// Names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Position of a column, if there is one of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// Position of a column that must exist.
    pub fn column(&self, name: &str) -> Result<usize, DatasetError> {
        let found = || format!("no column '{name}' among {}", self.columns.join(", "));
        self.find(name).ok_or_else(|| DatasetError::line(&self.file, 1, found(), format!("a column '{name}'")))
    }

    /// Columns whose names begin with `prefix`, or are `alone`: positions, in the order of the file.
    pub fn starting_with(&self, prefix: &str, alone: Option<&str>) -> Vec<usize> {
        let fits = |name: &String| name.starts_with(prefix) || alone == Some(name.as_str());
        self.columns.iter().enumerate().filter(|(_, name)| fits(name)).map(|(at, _)| at).collect()
    }

    /// Calls `each` for every row.
    pub fn each_row(&self, mut each: impl FnMut(Row<'_>) -> Result<(), DatasetError>) -> Result<(), DatasetError> {
        let mut reader = reader(&self.bytes);
        let mut record = StringRecord::new();
        while reader.read_record(&mut record).map_err(|error| broken(&self.file, &error))? {
            let line = record.position().map_or(0, csv::Position::line);
            each(Row { table: self, line, record: &record })?;
        }
        Ok(())
    }
}

impl Row<'_> {
    /// The cell of a column; an error if it is empty.
    pub fn text(&self, column: usize) -> Result<&str, DatasetError> {
        match self.record.get(column) {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(self.error(column, "an empty field", "a value")),
        }
    }

    /// The cell of a column as a finite number.
    pub fn number(&self, column: usize) -> Result<f32, DatasetError> {
        let text = self.text(column)?;
        match text.parse::<f32>() {
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err(self.error(column, &format!("'{text}'"), "a finite number")),
        }
    }

    /// An error about the cell of a column.
    pub fn error(&self, column: usize, found: &str, expected: &str) -> DatasetError {
        let found = format!("column '{}' has {found}", self.table.columns[column]);
        DatasetError::line(&self.table.file, self.line, found, expected)
    }
}

fn reader(bytes: &[u8]) -> csv::Reader<&[u8]> {
    ReaderBuilder::new().trim(Trim::All).from_reader(bytes)
}

fn broken(file: &str, error: &csv::Error) -> DatasetError {
    let line = error.position().map_or(1, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            DatasetError::line(file, line, format!("{len} fields"), format!("{expected_len} as in the header"))
        }
        _ => DatasetError::line(file, line, error.to_string(), "comma-separated values in UTF-8"),
    }
}
