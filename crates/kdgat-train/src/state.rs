//! Position of a run: all state saved beside the weights, so that a resumed run continues exactly.

use serde::{Deserialize, Serialize};

use super::loss_scale::LossScale;
use super::schedule::Progress;
use crate::memory::MicroBatch;

/// The position of a run. Random decisions are functions of it, so no generator state is saved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// The epoch in progress, from 0.
    pub epoch: u64,
    /// Steps of this epoch done so far.
    pub step: u64,
    /// Seconds spent in this epoch's steps so far.
    pub epoch_seconds: f64,
    /// Graphs of this epoch seen so far.
    pub epoch_graphs: u64,
    /// Steps done in all epochs.
    pub total_steps: u64,
    /// Graphs that go through the model at a time.
    pub micro_batch: MicroBatch,
    /// State of the schedule and of early stopping.
    pub progress: Progress,
    /// Loss scale of mixed precision.
    pub loss_scale: LossScale,
    /// Digest of configuration and data: a run can only be resumed with the ones it started with.
    pub identity: String,
}
