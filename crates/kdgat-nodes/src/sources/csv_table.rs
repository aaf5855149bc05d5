//! A CSV file with named columns, read as a stream, and errors with its lines and columns.

use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use csv::{ReaderBuilder, StringRecord, Trim};
use kdgat_graph::dataset::is_missing;

use super::raw_graph::Mismatch;
use crate::NodesError;
use crate::npz::Placed;

/// An open file after its first line.
pub(super) struct CsvTable {
    path: PathBuf,
    columns: Vec<String>,
    reader: csv::Reader<Box<dyn Read>>,
}

/// A line of a table.
pub(super) struct Row<'a> {
    path: &'a Path,
    columns: &'a [String],
    record: &'a StringRecord,
    /// Number of the line, from 1.
    pub line: u64,
}

impl CsvTable {
    /// Opens a table and reads the names of its columns.
    pub fn open(path: &Path, content: &str) -> Result<Self, NodesError> {
        if !path.is_file() {
            let folder = path.parent().unwrap_or(Path::new(""));
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            return Err(NodesError::invalid(folder, "", format!("no {name}"), format!("a table of {content}")));
        }
        let file = File::open(path).map_err(NodesError::io("open", path))?;
        Self::new(path, Box::new(BufReader::with_capacity(1 << 18, file)))
    }

    /// A table of this content, which was converted from the file `path`.
    pub fn converted(path: &Path, content: Vec<u8>) -> Result<Self, NodesError> {
        Self::new(path, Box::new(Cursor::new(content)))
    }

    fn new(path: &Path, content: Box<dyn Read>) -> Result<Self, NodesError> {
        let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(content);
        let header = reader.headers().cloned().map_err(|error| broken(path, error))?;
        let columns: Vec<String> =
            header.iter().map(|name| name.trim_start_matches('\u{feff}').trim().to_owned()).collect();
        let table = Self { path: path.to_owned(), columns, reader };
        if let Some(at) = (1..table.columns.len()).find(|&at| table.columns[..at].contains(&table.columns[at])) {
            return Err(table.header_error(format!("column '{}' twice", table.columns[at]), "each column once"));
        }
        Ok(table)
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
    pub fn column(&self, name: &str) -> Result<usize, NodesError> {
        let missing = || format!("no column '{name}' among {}", self.columns.join(", "));
        self.find(name).ok_or_else(|| self.header_error(missing(), format!("a column '{name}'")))
    }

    /// Positions of the columns whose names begin with `letter` and an underscore, or are `letter` alone.
    pub fn starting_with(&self, letter: &str) -> Vec<usize> {
        let fits = |name: &str| name.strip_prefix(letter).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
        (0..self.columns.len()).filter(|&column| fits(&self.columns[column])).collect()
    }

    /// An error about the names of the columns.
    pub fn header_error(&self, found: impl Into<String>, expected: impl Into<String>) -> NodesError {
        self.line_error(1, Mismatch::new(found, expected))
    }

    /// An error about the table as a whole.
    pub fn error(&self, mismatch: Mismatch) -> NodesError {
        mismatch.at(&self.path, "")
    }

    /// Name of the file.
    pub fn file_name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// An error about a line.
    pub fn line_error(&self, line: u64, mismatch: Mismatch) -> NodesError {
        mismatch.at(&self.path, format!(", line {line}"))
    }

    /// Calls `each` for every row after the names.
    pub fn each_row(&mut self, mut each: impl FnMut(Row<'_>) -> Result<(), NodesError>) -> Result<(), NodesError> {
        let Self { path, columns, reader } = self;
        let mut record = StringRecord::new();
        while reader.read_record(&mut record).map_err(|error| broken(path, error))? {
            // A record that was read has a position.
            let line = record.position().map_or(0, csv::Position::line);
            each(Row { path, columns, record: &record, line })?;
        }
        Ok(())
    }
}

impl Row<'_> {
    /// The cell of a column, which may be empty.
    pub fn cell(&self, column: usize) -> &str {
        // The reader refuses rows of another length than the names.
        self.record.get(column).unwrap_or_default()
    }

    /// The cell of a column; `None` if it is empty, NaN, or another mark of a missing value.
    pub fn value(&self, column: usize) -> Option<&str> {
        Some(self.cell(column)).filter(|text| !is_missing(text))
    }

    /// The cell of a column that must not be empty.
    pub fn text(&self, column: usize) -> Result<&str, NodesError> {
        match self.cell(column) {
            "" => Err(self.error(column, "an empty field", "a value")),
            text => Ok(text),
        }
    }

    /// The cell of a column as a number.
    pub fn number(&self, column: usize) -> Result<f64, NodesError> {
        let text = self.text(column)?;
        // Rounded once, to the precision of the graph.
        let parsed = text.parse::<f32>().ok().filter(|value| value.is_finite());
        parsed.map(f64::from).ok_or_else(|| self.error(column, &format!("'{text}'"), "a finite number"))
    }

    /// An error about the cell of a column.
    pub fn error(&self, column: usize, found: &str, expected: &str) -> NodesError {
        self.place(Mismatch::new(format!("column '{}' has {found}", self.columns[column]), expected))
    }

    /// An error about the row.
    pub fn place(&self, mismatch: Mismatch) -> NodesError {
        mismatch.at(self.path, format!(", line {}", self.line))
    }
}

fn broken(path: &Path, error: csv::Error) -> NodesError {
    let place = error.position().map_or(String::new(), |position| format!(", line {}", position.line()));
    match error.into_kind() {
        csv::ErrorKind::Io(source) => NodesError::io("read", path)(source),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            NodesError::invalid(path, place, format!("{len} fields"), format!("{expected_len} as in the first line"))
        }
        csv::ErrorKind::Utf8 { err, .. } => {
            NodesError::invalid(path, place, format!("no text ({err})"), "comma-separated values in UTF-8")
        }
        other => NodesError::invalid(path, place, format!("{other:?}"), "comma-separated values in UTF-8"),
    }
}
