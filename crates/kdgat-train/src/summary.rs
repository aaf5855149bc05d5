//! What the epoch loop tells at its end.

use super::metrics::EpochMetrics;
use super::state::Position;

/// Why the loop ended.
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

/// How a run ended.
#[derive(Debug, Clone)]
pub struct FitSummary {
    pub ending: Ending,
    pub position: Position,
    /// The last epoch that was completed, in whichever process.
    pub last: Option<EpochMetrics>,
    /// The best epoch, in whichever process it was completed.
    pub best: Option<EpochMetrics>,
    /// Highest counted memory of all epochs of this process.
    pub peak_memory_bytes: u64,
    /// Times that memory ran out and the work was done all the same.
    pub recoveries: u64,
    /// Share of the loop's training time that it waited for data.
    pub data_wait_share: f64,
    /// Share that it waited for the teacher.
    pub teacher_wait_share: f64,
    /// Share that went into the optimiser.
    pub optimizer_share: f64,
}
