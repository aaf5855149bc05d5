//! What the epoch loop is told.

use std::time::Duration;

use tch::{Device, Kind};

use super::optimizer::AdamOptions;
use super::schedule::Schedule;

/// Settings of the loop.
#[derive(Debug, Clone)]
pub struct FitOptions {
    /// Epochs at most.
    pub max_epochs: u64,
    /// Epochs without an improvement of the validation loss before stopping.
    pub patience: u64,
    /// Initial learning rate.
    pub lr: f64,
    /// How it changes.
    pub schedule: Schedule,
    /// Of the optimiser.
    pub adam: AdamOptions,
    /// Batches whose gradients make one step.
    pub accumulate_grad_batches: u64,
    /// Batches between two rows of `steps.csv`, and two reads of the loss.
    pub log_every_n_steps: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Where the model computes.
    pub device: Device,
    /// Digest of configuration and data.
    pub identity: String,
    /// Graphs that go through the model at a time at first; `None`: whole batches.
    pub micro_batch_graphs: Option<usize>,
    /// Type of mixed precision; `None` computes in f32.
    pub precision: Option<Kind>,
    /// Whether the fused kernels leave libtorch no operation on all nodes or edges: then the loops may have threads of their own.
    pub uses_own_threads: bool,
    /// Whether steps are recorded as CUDA graphs and replayed.
    pub records_steps: bool,
    /// Batches between two releases of a GPU's kept memory; 0 never releases.
    pub clear_cache_every_n: u64,
    /// Write the logs as JSON lines, too.
    pub json_lines: bool,
    /// Write them as TensorBoard's events, too.
    pub tensorboard: bool,
    /// Time between two rows of `memory.csv`.
    pub memory_sample_interval: Duration,
}
