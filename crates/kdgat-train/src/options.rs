//! Options of the epoch loop.

use std::sync::Arc;
use std::time::Duration;

use tch::{Device, Kind};

use super::metrics::EpochMetrics;
use super::optimizer::AdamOptions;
use super::processes::Processes;
use super::schedule::Schedule;

/// The quantity of the validation set that chooses the best epoch and ends the training early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Monitor {
    /// The loss.
    Loss,
    /// A part of the loss that is a metric.
    Part {
        /// Its position among the objective's parts.
        index: usize,
        /// True for a metric such as accuracy, false for one such as a mean error.
        highest_is_best: bool,
    },
}

/// Weight of the loss in the score of a metric: it decides between epochs of the same metric.
const TIE_WEIGHT: f64 = 1e-9;

impl Monitor {
    /// The score of an epoch, the lowest of which is the best; `None` if the loss judges.
    pub fn score(self, metrics: &EpochMetrics) -> Option<f64> {
        let Self::Part { index, highest_is_best } = self else { return None };
        let (.., value) = metrics.parts.get(index)?;
        Some(if highest_is_best { -value } else { *value } + TIE_WEIGHT * metrics.val_loss)
    }
}

/// Settings of the loop.
#[derive(Debug, Clone)]
pub struct FitOptions {
    /// Maximum number of epochs.
    pub max_epochs: u64,
    /// Epochs without improvement before early stopping.
    pub patience: u64,
    /// The quantity that has to improve.
    pub monitor: Monitor,
    /// Initial learning rate.
    pub lr: f64,
    /// Learning rate schedule.
    pub schedule: Schedule,
    /// Settings of the optimiser.
    pub adam: AdamOptions,
    /// Batches per optimiser step (gradient accumulation).
    pub accumulate_grad_batches: u64,
    /// Batches between two rows of `steps.csv` and two reads of the loss.
    pub log_every_n_steps: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Device of the model.
    pub device: Device,
    /// Digest of configuration and data.
    pub identity: String,
    /// Initial number of graphs that go through the model at a time; `None`: whole batches.
    pub micro_batch_graphs: Option<usize>,
    /// Type of mixed precision; `None`: f32.
    pub precision: Option<Kind>,
    /// True if the fused kernels leave libtorch no operation on all nodes or edges, so that the loops may use threads of
    /// their own.
    pub uses_own_threads: bool,
    /// True if steps are captured as CUDA graphs and replayed.
    pub records_steps: bool,
    /// Batches between two releases of a GPU's cached memory; 0 never releases.
    pub clear_cache_every_n: u64,
    /// Also write the logs as JSON lines.
    pub json_lines: bool,
    /// Also write the logs as TensorBoard event files.
    pub tensorboard: bool,
    /// Time between two rows of `memory.csv`.
    pub memory_sample_interval: Duration,
    /// The processes that train together; `None` if this one trains alone.
    pub processes: Option<Arc<Processes>>,
}

impl FitOptions {
    /// Plain training in f32 on `device`: a constant learning rate, no early stopping, logs in CSV only.
    pub fn new(max_epochs: u64, lr: f64, device: Device) -> Self {
        Self {
            max_epochs,
            patience: max_epochs,
            monitor: Monitor::Loss,
            lr,
            schedule: Schedule::Constant,
            adam: AdamOptions { gradient_clip: 1.0, ..AdamOptions::PLAIN },
            accumulate_grad_batches: 1,
            log_every_n_steps: 10,
            seed: 1,
            device,
            identity: String::new(),
            micro_batch_graphs: None,
            precision: None,
            uses_own_threads: false,
            records_steps: false,
            clear_cache_every_n: 0,
            json_lines: false,
            tensorboard: false,
            memory_sample_interval: Duration::from_secs(1),
            processes: None,
        }
    }
}
