//! How far a task is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::results::Results;

/// Written by whoever holds the task's claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskState {
    pub status: Status,
    /// Times that it was started.
    pub attempts: u32,
    /// Times that it failed for another reason than memory.
    pub failures: u32,
    /// Changes of the memory ladder in force.
    pub rung: u32,
    /// Times that a cluster gave it more memory.
    pub growths: u32,
    /// Graphs of a batch when memory ran out: what the ladder halves.
    pub batch_graphs: Option<u64>,
    /// Over all attempts.
    pub seconds: f64,
    pub peak_memory_bytes: u64,
    pub epochs: u64,
    /// Folder of the results, below the task's.
    pub run: Option<String>,
    /// By name, in the best epoch; all of them finite.
    pub metrics: BTreeMap<String, f64>,
    /// Why it failed, or was stopped.
    pub reason: Option<String>,
    /// Who works on it, or did last.
    pub worker: Option<Worker>,
}

impl TaskState {
    /// Takes over what a run has come to. JSON has no number for a metric that is not finite, and nobody could compare it.
    pub fn take(&mut self, found: Results) {
        self.metrics = found.metrics.into_iter().filter(|(_, value)| value.is_finite()).collect();
        self.epochs = found.epochs;
        // A run that went on without its sweep knows of more than the sweep does.
        self.seconds = self.seconds.max(found.seconds);
        self.peak_memory_bytes = self.peak_memory_bytes.max(found.peak_memory_bytes);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not begun, or interrupted: it goes on from its checkpoint.
    #[default]
    Waiting,
    Running,
    /// As [`SweepFolder::seen`](super::SweepFolder::seen) has it, never in a file: `running` by its state, and nobody works on it.
    Interrupted,
    Done,
    /// Ended early because it promised little; counts as done.
    Stopped,
    Failed,
    /// Something that it needs has failed.
    Blocked,
}

impl Status {
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

    /// Whether others may use what came of it.
    pub fn is_done(self) -> bool {
        matches!(self, Self::Done | Self::Stopped)
    }

    /// Whether nothing more happens to it by itself.
    pub fn is_settled(self) -> bool {
        self.is_done() || self == Self::Failed
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    pub process: u32,
    pub host: String,
}

impl Worker {
    /// This process.
    pub fn this() -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { process: std::process::id(), host: name }
    }
}
