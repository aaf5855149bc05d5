//! Errors of sweeps.

use std::io;
use std::path::{Path, PathBuf};

use kdgat_config::ConfigError;

/// Error of a sweep. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A file operation failed.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    File { path: PathBuf, action: &'static str, source: io::Error },
    /// The sweep file is not valid TOML, or has an unknown key.
    #[error("{file}:{line}: {message}")]
    Syntax { file: String, line: usize, message: String },
    /// The sweep file has invalid values.
    #[error("{}", all_of(file, problems))]
    Invalid { file: String, problems: Vec<String> },
    /// The settings of one combination are invalid or contradict each other.
    #[error("{file}: step `{step}` with {combination}: {source}")]
    Settings { file: String, step: String, combination: String, source: ConfigError },
    /// A file in the sweep's folder is damaged.
    #[error("{path}: {found}; {remedy}", path = path.display(), remedy = remedy(path))]
    Damaged { path: PathBuf, found: String },
    /// There is neither a file nor a shipped sweep of that name.
    #[error("no sweep file `{name}`; the nearest shipped sweep is `{nearest}` (available: {known})")]
    Unknown { name: String, nearest: String, known: String },
    /// Other processes work on a different version of the sweep.
    #[error(
        "{folder}: other processes work on this sweep with another version of its file, its data or its teachers; wait for them, stop \
         them with `kdgat sweep cancel {folder}`, or choose another folder with --output",
        folder = folder.display()
    )]
    OtherPlan { folder: PathBuf },
    /// The folder has no sweep.
    #[error("{folder}: no sweep has been started there; start one with `kdgat sweep FILE`", folder = folder.display())]
    NoSweep { folder: PathBuf },
    /// The request cannot be carried out; the message says why.
    #[error("{0}")]
    Usage(String),
    /// A command of the batch system, or a request to it, failed.
    #[error("`{command}` failed: {said}")]
    Batch { command: String, said: String },
    /// The jobs of a task keep ending without a result.
    #[error("{task}: its last {jobs} jobs ended without a result; see the log of {last} (`ray job logs {last}`)")]
    Lost { task: String, jobs: u32, last: String },
}

impl SweepError {
    /// Returns a closure for `map_err` that adds the path and the attempted action ("read", "write").
    pub fn file<'a>(path: &'a Path, action: &'static str) -> impl Fn(io::Error) -> SweepError + 'a {
        move |source| SweepError::File { path: path.to_owned(), action, source }
    }

    /// True if another command line or sweep file can fix the error (exit code 2).
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::File { .. } | Self::Batch { .. } | Self::Lost { .. })
    }
}

/// Returns the advice for repairing a damaged file.
fn remedy(path: &Path) -> &'static str {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("plan.json") => {
            "remove it once no process works on the sweep, and start the sweep again with its file: this writes the plan again and \
             keeps finished tasks"
        }
        Some("state.json") => "remove the file; its task is then run again",
        // The task counts as done while its state says so, even if its results are damaged.
        _ => "remove the folder of its task (below `tasks/`); the task is then run again",
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
