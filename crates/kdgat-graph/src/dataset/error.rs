//! Errors of reading a dataset of graphs: each names the file and the line.

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
        Self::Line { file: file.to_owned(), line, found: found.into(), expected: expected.into() }
    }

    /// An error of the operating system.
    pub(super) fn io(path: &std::path::Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        |source| Self::Io { path, source }
    }
}
