//! Result of the epoch loop.

use super::metrics::EpochMetrics;
use super::state::Position;

/// Reason why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All epochs are done.
    MaxEpochs,
    /// The validation loss had not improved for `patience` epochs.
    EarlyStopping,
    /// Ctrl-C or a termination signal; the run can be resumed.
    Interrupted,
}

/// Summary of a run.
#[derive(Debug, Clone)]
pub struct FitSummary {
    /// Reason why the loop ended.
    pub ending: Ending,
    /// Position at the end.
    pub position: Position,
    /// The last completed epoch, possibly by an earlier process of the run.
    pub last: Option<EpochMetrics>,
    /// The best epoch, possibly completed by an earlier process of the run.
    pub best: Option<EpochMetrics>,
    /// Highest counted memory in all epochs of this process, in bytes.
    pub peak_memory_bytes: u64,
    /// Number of out-of-memory failures that were recovered from.
    pub recoveries: u64,
    /// Fraction of the training time spent waiting for data.
    pub data_wait_share: f64,
    /// Fraction spent waiting for the teacher.
    pub teacher_wait_share: f64,
    /// Fraction spent in the optimiser.
    pub optimizer_share: f64,
    /// Bytes of the optimiser's states in this process.
    pub optimizer_bytes: u64,
}
