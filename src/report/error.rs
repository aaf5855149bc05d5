//! What can go wrong with a report.

use std::io;
use std::path::{Path, PathBuf};

use super::chart::DrawError;
use crate::files;
use crate::sweep::SweepError;

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Nothing that a report could show.
    #[error("{path}: {reason}", path = path.display())]
    Input { path: PathBuf, reason: String },
    /// The file system refused.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    File { path: PathBuf, action: &'static str, source: io::Error },
    /// A chart could not be drawn.
    #[error("a chart cannot be drawn: {0}")]
    Draw(String),
    /// A picture could not be made.
    #[error("{path}: {reason}", path = path.display())]
    Picture { path: PathBuf, reason: String },
    /// A sweep could not be read.
    #[error(transparent)]
    Sweep(#[from] SweepError),
}

impl ReportError {
    /// Whether the user can mend it by another input.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Input { .. } => true,
            Self::File { source, .. } => files::is_about_the_path(source),
            Self::Sweep(error) => error.is_input(),
            _ => false,
        }
    }

    /// What is wrong with what lies at `path`.
    pub fn input(path: &Path, reason: impl Into<String>) -> Self {
        Self::Input { path: path.to_owned(), reason: reason.into() }
    }

    /// For `map_err` of a file system's error.
    pub fn file(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, action, source }
    }
}

impl From<DrawError> for ReportError {
    fn from(error: DrawError) -> Self {
        Self::Draw(error.to_string())
    }
}
