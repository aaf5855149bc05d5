//! Options of the epoch loop.

use std::time::Duration;

use kdgat_nn::attention::Backend;
use tch::{Device, Kind};

use super::optimizer::AdamOptions;
use super::schedule::Schedule;

/// Settings of the loop.
#[derive(Debug, Clone)]
pub struct FitOptions {
    /// Maximum number of epochs.
    pub max_epochs: u64,
    /// Epochs without improvement of the validation loss before early stopping.
    pub patience: u64,
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
}

impl FitOptions {
    /// Plain training in f32 on `device`: a constant learning rate, no early stopping, logs in CSV only.
    pub fn new(max_epochs: u64, lr: f64, device: Device) -> Self {
        Self {
            max_epochs,
            patience: max_epochs,
            lr,
            schedule: Schedule::Constant,
            adam: AdamOptions { weight_decay: 0.0, gradient_clip: 1.0, offload: false, kernel: Backend::Auto },
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
        }
    }
}
