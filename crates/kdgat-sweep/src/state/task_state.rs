//! State of a task.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::results::Results;

/// State of a task, written by the process that holds its claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskState {
    /// Status. A file never has [`Status::Interrupted`] or [`Status::Blocked`], which follow from locks and from other tasks.
    pub status: Status,
    /// Number of starts.
    pub attempts: u32,
    /// Number of failures other than out of memory.
    pub failures: u32,
    /// Rung of the memory ladder: the number of its changes that apply.
    pub rung: u32,
    /// Number of times that a cluster gave it more memory.
    pub growths: u32,
    /// Graphs per batch when memory ran out, which the ladder halves.
    pub batch_graphs: Option<u64>,
    /// Run time over all attempts, in seconds.
    pub seconds: f64,
    /// Highest counted memory of all attempts, in bytes.
    pub peak_memory_bytes: u64,
    /// Epochs that the run has finished; 0 for a task that trains nothing.
    pub epochs: u64,
    /// Name of the run's folder, below the task's.
    pub run: Option<String>,
    /// Metrics by name, in the best epoch; finite values only.
    pub metrics: BTreeMap<String, f64>,
    /// Reason for its failure, early stop or next attempt.
    pub reason: Option<String>,
    /// Process that works on it, or did last.
    pub worker: Option<Worker>,
}

impl TaskState {
    /// Copies the results of a run. Drops metrics that are not finite: JSON cannot represent them, and they cannot be compared.
    pub(crate) fn take(&mut self, found: Results) {
        self.metrics = found.metrics.into_iter().filter(|(_, value)| value.is_finite()).collect();
        self.epochs = found.epochs;
        // A run that continued after its sweep was killed has recorded more than the sweep.
        self.seconds = self.seconds.max(found.seconds);
        self.peak_memory_bytes = self.peak_memory_bytes.max(found.peak_memory_bytes);
    }
}

/// Status of a task or a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not started, or interrupted: it will resume from its checkpoint.
    #[default]
    Waiting,
    /// A process works on it, or did when it was killed.
    Running,
    /// Recorded as running, but no process works on it. Only from [`SweepFolder::seen`](super::SweepFolder::seen), never in a file.
    Interrupted,
    /// Finished, with its results.
    Done,
    /// Ended by early stopping; counts as done.
    Stopped,
    /// Failed, and not retried without the user's request.
    Failed,
    /// A task that it needs has failed.
    Blocked,
}

impl Status {
    /// Returns the word for it in `sweep.csv` and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Interrupted => "interrupted",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Blocked => "blocked",
        }
    }

    /// True if other tasks may use its results.
    pub fn is_done(self) -> bool {
        matches!(self, Self::Done | Self::Stopped)
    }

    /// True if it will not be run again without the user's request.
    pub fn is_settled(self) -> bool {
        self.is_done() || self == Self::Failed
    }
}

/// Process that works on a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// ID of the sweep's process, not of the command that it started.
    pub process: u32,
    /// Host name of its machine.
    pub host: String,
}

impl Worker {
    /// Returns the current process.
    pub(crate) fn this() -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { process: std::process::id(), host: name }
    }
}
