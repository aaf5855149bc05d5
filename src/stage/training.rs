//! What training stages share: the run's folder and frozen configuration, the loop's settings, loaders, the end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tch::Device;

use super::StageError;
use super::teacher::TeacherUse;
use crate::config::{self, AttentionChoice, Config, Schedule as ScheduleChoice};
use crate::graph::{AssembleOptions, Loader, LoaderOptions, Store, UnknownDrop, Vocabulary, shuffled_batches};
use crate::nn::DatasetIdentity;
use crate::nn::attention::AttentionKernel;
use crate::train::fit::{BatchPlan, FitOptions, LAST};
use crate::train::optimizer::AdamOptions;
use crate::train::run_directory::RunDirectory;
use crate::train::schedule::Schedule;

/// The folder of the run: a new one, the one that the user named, or the one to go on with.
pub fn run_directory(config: &Config, dataset: &str, stage: &str) -> Result<RunDirectory, StageError> {
    let suffix = if config.distillation.use_kd { "_kd" } else { "" };
    let name = format!("{}_{}_{stage}{suffix}", config.model.model.as_str(), config.model.size);
    let parent: PathBuf = config.output.runs_dir.join(dataset).join(name);
    Ok(match (&config.output.run_dir, config.output.resume) {
        (Some(path), _) => RunDirectory::at(path)?,
        (None, true) => RunDirectory::resume(&parent)?,
        (None, false) => RunDirectory::create(&parent)?,
    })
}

/// Writes the frozen configuration, with what identifies the inputs.
pub fn freeze(run: &RunDirectory, config: &Config, stage: &str, inputs: &Map<String, Value>) -> Result<(), StageError> {
    Ok(run.write_json("config.json", &config::freeze(config, stage, inputs))?)
}

/// Digest of everything that the losses depend on: a run is resumed only with the same.
///
/// Where the teacher lies, how its outputs are cached, and what is written where change no loss.
pub fn identity(config: &Config, stage: &str, batch_graphs: usize, store: &Store, teacher: Option<&str>) -> String {
    let (training, distillation) = (&config.training, &config.distillation);
    let content = json!({
        "stage": stage,
        "data": store.digest(),
        "teacher": teacher,
        "model": config.model,
        "batch_graphs": batch_graphs,
        "training": [training.max_epochs as f64, training.patience as f64, training.lr, training.weight_decay,
            training.lr_step_epochs as f64, training.lr_gamma, training.gradient_clip,
            training.accumulate_grad_batches as f64, training.focal_gamma],
        "seed": training.seed,
        "kinds": [json!(training.schedule), json!(training.precision), json!(training.task_loss), json!(distillation.kd_loss)],
        "distillation": [distillation.kd_temperature, distillation.kd_alpha, distillation.kd_vgae_latent_weight,
            distillation.kd_vgae_recon_weight],
        "curriculum": config.curriculum,
    });
    blake3::hash(content.to_string().as_bytes()).to_hex()[..16].to_owned()
}

/// The settings of the loop.
pub fn fit_options(config: &Config, device: Device, identity: String) -> FitOptions {
    let training = &config.training;
    let schedule = match training.schedule {
        ScheduleChoice::Constant => Schedule::Constant,
        ScheduleChoice::Cosine => Schedule::Cosine { max_epochs: training.max_epochs as u64 },
        ScheduleChoice::Step => {
            Schedule::Step { step_epochs: training.lr_step_epochs as u64, gamma: training.lr_gamma }
        }
        // Lowered well before early stopping would end the run.
        ScheduleChoice::Plateau => {
            Schedule::Plateau { patience_epochs: (training.patience as u64 / 4).max(1), gamma: training.lr_gamma }
        }
    };
    FitOptions {
        max_epochs: training.max_epochs as u64,
        patience: training.patience as u64,
        lr: training.lr,
        schedule,
        adam: AdamOptions { weight_decay: training.weight_decay, gradient_clip: training.gradient_clip },
        accumulate_grad_batches: training.accumulate_grad_batches as u64,
        log_every_n_steps: training.log_every_n_steps as u64,
        seed: training.seed,
        device,
        identity,
        memory_sample_interval: Duration::from_secs_f64(config.memory.memory_sample_seconds),
    }
}

/// Graphs of a batch: no more than configured, and few enough that an epoch keeps its steps.
pub fn batch_graphs(config: &Config, training_graphs: usize) -> usize {
    let training = &config.training;
    if !training.optimize_batch_size {
        return training.batch_size;
    }
    training.batch_size.min(training_graphs / training.min_steps_per_epoch).max(1)
}

/// Loaders of training batches (with random UNKNOWNs) and of validation batches (without).
pub fn loaders(config: &Config, store: &Arc<Store>, vocabulary: &Arc<Vocabulary>) -> (Loader, Loader) {
    let loader = |probability: f64| {
        let unknown_drop =
            (probability > 0.0).then_some(UnknownDrop { probability, seed: config.training.seed, epoch: 0 });
        let assemble = AssembleOptions { vocabulary: Arc::clone(vocabulary), unknown_drop, edge_attributes: false };
        let options = LoaderOptions {
            assemble,
            workers: config.training.num_workers,
            prefetch_batches: config.training.prefetch_batches,
        };
        Loader::start(Arc::clone(store), options)
    };
    (loader(config.model.unknown_drop), loader(0.0))
}

/// Every epoch the same graphs, in another order.
#[derive(Debug)]
pub struct ShuffledEpochs {
    /// Positions in the store.
    pub training: Vec<u64>,
    /// Positions in the store.
    pub validation: Vec<u64>,
    /// Graphs of a batch.
    pub batch_graphs: usize,
    /// Of the run.
    pub seed: u64,
}

impl ShuffledEpochs {
    /// How a run of these epochs asks its teacher.
    pub fn teacher_use(&self, device: Device, kernel: AttentionKernel) -> TeacherUse {
        let batches = |graphs: &[u64]| graphs.len().div_ceil(self.batch_graphs) as u64;
        TeacherUse {
            graphs: self.training.iter().chain(&self.validation).copied().collect(),
            batches_per_epoch: batches(&self.training) + batches(&self.validation),
            device,
            kernel,
        }
    }
}

impl BatchPlan for ShuffledEpochs {
    fn training(&self, epoch: u64) -> Vec<Vec<u64>> {
        shuffled_batches(&self.training, self.batch_graphs, self.seed, epoch)
    }

    fn validation(&self) -> Vec<Vec<u64>> {
        self.validation.chunks(self.batch_graphs).map(<[u64]>::to_vec).collect()
    }
}

/// Whether there is something to go on with.
pub fn can_resume(config: &Config, run: &RunDirectory) -> bool {
    config.output.resume && run.file(LAST).exists()
}

/// What identifies a run's inputs: part of `config.json` and `summary.json`.
pub fn inputs(
    dataset: &DatasetIdentity,
    teacher: Option<&str>,
    batch_graphs: usize,
    identity: &str,
) -> Map<String, Value> {
    let mut inputs = Map::new();
    inputs.insert("dataset".into(), json!(dataset));
    inputs.insert("teacher_digest".into(), json!(teacher));
    inputs.insert("batch_graphs".into(), json!(batch_graphs));
    inputs.insert("identity".into(), json!(identity));
    inputs
}

/// The implementation of attention that is configured.
pub fn attention_kernel(config: &Config) -> AttentionKernel {
    match config.model.attention {
        AttentionChoice::Auto => AttentionKernel::Auto,
        AttentionChoice::Fused => AttentionKernel::Fused,
        AttentionChoice::Composed => AttentionKernel::Composed,
    }
}
