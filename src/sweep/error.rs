//! What can be wrong with a sweep.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::ConfigError;

/// An error of a sweep; each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The file system refused.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    File { path: PathBuf, action: &'static str, source: io::Error },
    /// The sweep file is no TOML, or holds what no sweep has.
    #[error("{file}:{line}: {message}")]
    Syntax { file: String, line: usize, message: String },
    /// The sweep file cannot be meant.
    #[error("{}", all_of(file, problems))]
    Invalid { file: String, problems: Vec<String> },
    /// The settings of one combination do not fit each other.
    #[error("{file}: step `{step}` with {combination}: {source}")]
    Settings { file: String, step: String, combination: String, source: ConfigError },
    /// A file of the sweep's folder is not what was written.
    #[error("{path}: {found}; {remedy}", path = path.display(), remedy = remedy(path))]
    Damaged { path: PathBuf, found: String },
    /// No such file, and no shipped sweep of that name.
    #[error("no sweep file `{name}`; the nearest shipped sweep is `{nearest}` (there are: {known})")]
    Unknown { name: String, nearest: String, known: String },
    /// Other processes work on another version of the sweep.
    #[error(
        "{folder}: other processes work on this sweep with another version of its file, its data or its teachers; wait for them, stop \
         them with `kdgat sweep cancel {folder}`, or name another folder with --output",
        folder = folder.display()
    )]
    OtherPlan { folder: PathBuf },
    /// Nothing there to report on.
    #[error("{folder}: no sweep has been started there; start one with `kdgat sweep FILE`", folder = folder.display())]
    NoSweep { folder: PathBuf },
    /// What was asked for cannot be done here.
    #[error("{0}")]
    Usage(String),
    /// A program of the batch system failed.
    #[error("`{command}` failed: {said}")]
    Batch { command: String, said: String },
    /// A task's jobs end again and again without having done anything.
    #[error("{task}: its last {jobs} jobs ended without a result; see the log of {last} (`ray job logs {last}`)")]
    Lost { task: String, jobs: u32, last: String },
}

impl SweepError {
    /// For `map_err`: the path and what was tried.
    pub fn file<'a>(path: &'a Path, action: &'static str) -> impl Fn(io::Error) -> SweepError + 'a {
        move |source| SweepError::File { path: path.to_owned(), action, source }
    }

    /// Whether the user can mend it by another command line or file.
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::File { .. } | Self::Batch { .. } | Self::Lost { .. })
    }
}

/// What makes a damaged file whole again.
fn remedy(path: &Path) -> &'static str {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("plan.json") => {
            "remove it once no process works on the sweep, and start that again with its file: that writes the plan anew and \
             keeps what is done"
        }
        Some("state.json") => "remove the file, its task is then done again",
        // The task is done as its state says, whatever becomes of its results.
        _ => "remove the folder of its task (below `tasks/`), the task is then done again",
    }
}

fn all_of(file: &str, problems: &[String]) -> String {
    match problems {
        [problem] => format!("{file}: {problem}"),
        _ => {
            let lines: String = problems.iter().map(|problem| format!("\n  - {problem}")).collect();
            format!("{file}: {} problems:{lines}", problems.len())
        }
    }
}
