//! Errors of reports.

use std::io;
use std::path::{Path, PathBuf};

use super::chart::DrawError;
use kdgat_base::files;
use kdgat_sweep::SweepError;

/// Error of a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A path has nothing to report on, or a damaged file.
    #[error("{path}: {reason}", path = path.display())]
    Input {
        /// The path or file.
        path: PathBuf,
        /// Description of what is wrong with it.
        reason: String,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] files::FileError),
    /// A chart could not be drawn.
    #[error("cannot draw a chart: {0}")]
    Draw(String),
    /// A figure could not be converted to PNG.
    #[error("{path}: {reason}", path = path.display())]
    Picture {
        /// The PNG file.
        path: PathBuf,
        /// Description of the failure.
        reason: String,
    },
    /// A sweep could not be read.
    #[error(transparent)]
    Sweep(#[from] SweepError),
}

impl ReportError {
    /// True if another input can fix the error (exit code 2).
    pub fn is_input(&self) -> bool {
        match self {
            Self::Input { .. } => true,
            Self::File(error) => error.is_input(),
            Self::Sweep(error) => error.is_input(),
            _ => false,
        }
    }

    /// Creates an error about the content of `path`.
    pub fn input(path: &Path, reason: impl Into<String>) -> Self {
        Self::Input { path: path.to_owned(), reason: reason.into() }
    }

    /// Returns a closure for `map_err` that adds the path and the attempted action ("read", "write").
    pub fn file(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| files::failed(action, path)(source).into()
    }
}

impl From<DrawError> for ReportError {
    fn from(error: DrawError) -> Self {
        Self::Draw(error.to_string())
    }
}
