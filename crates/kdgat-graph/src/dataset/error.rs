//! Errors of reading a dataset of graphs: each names the file and the line or row.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// An error of reading a dataset of graphs.
#[derive(Debug, Error)]
pub enum DatasetError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },

    /// A file that the format requires is missing.
    #[error("{} has no {file}: {expected}", root.display())]
    MissingFile {
        /// The dataset.
        root: PathBuf,
        /// Name of the missing file.
        file: String,
        /// The format's requirement.
        expected: &'static str,
    },

    /// A line holds something else than the format requires.
    #[error("{file}, line {line}: {found}, expected {expected}")]
    Line {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: u64,
        /// The text or value found.
        found: String,
        /// The expected text or value.
        expected: String,
    },

    /// A row of a Parquet file holds something else than the format requires.
    #[error("{file}, row {row}: {found}, expected {expected}")]
    Row {
        /// Name of the file.
        file: String,
        /// Row, from 1.
        row: u64,
        /// The text or value found.
        found: String,
        /// The expected text or value.
        expected: String,
    },

    /// A file as a whole is not as the format requires.
    #[error("{file}: {found}, expected {expected}")]
    File {
        /// Name of the file.
        file: String,
        /// The problem.
        found: String,
        /// The requirement.
        expected: String,
    },

    /// The dataset as a whole cannot be used.
    #[error("{}: {detail}", root.display())]
    Unusable {
        /// The dataset.
        root: PathBuf,
        /// The problem and the remedy.
        detail: String,
    },
}

impl DatasetError {
    /// An error at a line.
    pub(super) fn line(file: &str, line: u64, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Origin::line(file, line).error(found, expected)
    }

    /// An error of the operating system.
    pub(super) fn io(path: &std::path::Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        |source| Self::Io { path, source }
    }
}

/// A place in a source file, for errors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin<'a> {
    pub file: &'a str,
    pub place: Place,
}

/// A place within a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// The file as a whole.
    File,
    /// A line, from 1.
    Line(u64),
    /// A row of a Parquet file, from 1.
    Row(u64),
}

impl<'a> Origin<'a> {
    /// A line of a file.
    pub fn line(file: &'a str, line: u64) -> Self {
        Self { file, place: Place::Line(line) }
    }

    /// The line so many lines further down; the same place for anything but a line.
    pub fn lines_below(self, lines: u64) -> Self {
        match self.place {
            Place::Line(line) => Self { place: Place::Line(line + lines), ..self },
            Place::File | Place::Row(_) => self,
        }
    }

    /// The place in words: `nodes.csv, line 7`.
    pub fn text(self) -> String {
        let file = self.file;
        match self.place {
            Place::File => file.to_owned(),
            Place::Line(line) => format!("{file}, line {line}"),
            Place::Row(row) => format!("{file}, row {row}"),
        }
    }

    /// An error at this place.
    pub fn error(self, found: impl Into<String>, expected: impl Into<String>) -> DatasetError {
        let (file, found, expected) = (self.file.to_owned(), found.into(), expected.into());
        match self.place {
            Place::File => DatasetError::File { file, found, expected },
            Place::Line(line) => DatasetError::Line { file, line, found, expected },
            Place::Row(row) => DatasetError::Row { file, row, found, expected },
        }
    }
}
