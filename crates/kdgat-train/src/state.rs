//! Where a run is: everything that is saved beside the weights, so that it can go on as if nothing had happened.

use serde::{Deserialize, Serialize};

use super::loss_scale::LossScale;
use super::schedule::Progress;
use crate::memory::MicroBatch;

/// The position of a run. Random decisions are functions of it, so it stands for the random state too.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// The epoch in progress, from 0.
    pub epoch: u64,
    /// Steps of it that are done.
    pub step: u64,
    /// Seconds spent in this epoch's steps so far.
    pub epoch_seconds: f64,
    /// Graphs of this epoch seen so far.
    pub epoch_graphs: u64,
    /// Steps of all epochs that are done.
    #[serde(default)]
    pub total_steps: u64,
    /// Graphs that go through the model at a time.
    #[serde(default)]
    pub micro_batch: MicroBatch,
    /// Validation losses seen, learning rate reductions.
    pub progress: Progress,
    /// Factor of the loss in half precision.
    #[serde(default)]
    pub loss_scale: LossScale,
    /// Digest of configuration and data: a run goes on only with what it began with.
    pub identity: String,
}
