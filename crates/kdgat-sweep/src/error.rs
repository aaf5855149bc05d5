//! Errors of sweeps.

use std::io;
use std::path::{Path, PathBuf};

use kdgat_base::files;
use kdgat_config::ConfigError;

/// Error of a sweep. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] files::FileError),
    /// The sweep file is not valid TOML, or has an unknown key.
    #[error("{file}:{line}: {message}")]
    Syntax {
        /// Name of the file: its path, or `built-in` with the path in the repository.
        file: String,
        /// Line of the error, from 1.
        line: usize,
        /// Message of the TOML parser.
        message: String,
    },
    /// The sweep file has invalid values.
    #[error("{}", all_of(file, problems))]
    Invalid {
        /// Name of the file.
        file: String,
        /// One message per invalid value; never empty.
        problems: Vec<String>,
    },
    /// The settings of one combination are invalid or contradict each other.
    #[error("{file}: step `{step}` with {combination}: {source}")]
    Settings {
        /// Name of the sweep file.
        file: String,
        /// Step with these settings.
        step: String,
        /// Values of the axes that apply to the step: `kd_alpha=0.5 seed=42`.
        combination: String,
        /// Reason for the rejection.
        source: ConfigError,
    },
    /// A file in the sweep's folder is damaged.
    #[error("{path}: {found}; {remedy}", path = path.display(), remedy = remedy(path))]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// Description of the damage.
        found: String,
    },
    /// There is neither a file nor a shipped sweep of that name.
    #[error("no sweep file `{name}`; the nearest shipped sweep is `{nearest}` (available: {known})")]
    Unknown {
        /// Path or name that the user gave.
        name: String,
        /// Shipped sweep with the most similar name.
        nearest: String,
        /// Names of all shipped sweeps, separated by commas.
        known: String,
    },
    /// Other processes work on a different version of the sweep.
    #[error(
        "{folder}: other processes work on this sweep with another version of its file, its data or its teachers; wait for them, stop \
         them with `kdgat sweep cancel {folder}`, or choose another folder with --output",
        folder = folder.display()
    )]
    OtherPlan {
        /// The sweep's folder.
        folder: PathBuf,
    },
    /// The folder has no sweep.
    #[error("{folder}: no sweep has been started there; start one with `kdgat sweep FILE`", folder = folder.display())]
    NoSweep {
        /// The folder without a plan.
        folder: PathBuf,
    },
    /// The request cannot be carried out; the message says why.
    #[error("{0}")]
    Usage(String),
    /// A command of the batch system, or a request to it, failed.
    #[error("`{command}` failed: {said}")]
    Batch {
        /// The command with its arguments, or the request's method and path.
        command: String,
        /// Error message of the command, or of the request.
        said: String,
    },
    /// The jobs of a task keep ending without a result.
    #[error("{task}: its last {jobs} jobs ended without a result; see the log of {last} (`ray job logs {last}`)")]
    Lost {
        /// Step and settings of the task.
        task: String,
        /// Number of its last jobs, none of which has written a result.
        jobs: u32,
        /// Name of the last job, for `ray job logs`.
        last: String,
    },
}

impl SweepError {
    /// Returns a closure for `map_err` that adds the path and the attempted action ("read", "write").
    pub fn file<'a>(path: &'a Path, action: &'static str) -> impl Fn(io::Error) -> SweepError + 'a {
        move |source| files::failed(action, path)(source).into()
    }

    /// True if another command line or sweep file can fix the error (exit code 2).
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::File(_) | Self::Batch { .. } | Self::Lost { .. })
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
