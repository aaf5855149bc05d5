//! From the configuration to what training stages share: the run's folder, the loop's settings, graphs, loaders.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tch::{Device, Kind};

use super::StageError;
use super::setup::Data;
use super::teacher::TeacherUse;
use crate::config::{AttentionChoice, Config, Convolution, Precision, Schedule as ScheduleChoice, Stage};
use crate::graph::{
    AssembleOptions, EdgeScaling, Loader, LoaderOptions, Shuffle, Split, Store, UnknownDrop, Vocabulary,
};
use crate::nn::attention::AttentionKernel;
use crate::train::fit::{BatchPlan, FitOptions};
use crate::train::optimizer::AdamOptions;
use crate::train::run_directory::RunDirectory;
use crate::train::schedule::Schedule;

/// The folder of the run: a new one, the one that the user named, or the one to go on with.
pub fn run_directory(config: &Config, dataset: &str, stage: Stage) -> Result<RunDirectory, StageError> {
    let suffix = if config.distillation.use_kd { "_kd" } else { "" };
    let name = format!("{}_{}_{}{suffix}", config.model.model, config.model.size, stage.as_str());
    let parent: PathBuf = config.output.runs_dir.join(dataset).join(name);
    Ok(match (&config.output.run_dir, config.output.resume) {
        (Some(path), _) => RunDirectory::at(path)?,
        (None, true) => RunDirectory::resume(&parent)?,
        (None, false) => RunDirectory::create(&parent)?,
    })
}

/// Digest of everything that the losses depend on: a run is resumed only with the same.
///
/// Where the teacher lies, how its outputs are cached, and what is written where change no loss.
pub fn identity(config: &Config, stage: Stage, batch_graphs: usize, data: &Data, teacher: Option<&str>) -> String {
    let (training, distillation) = (&config.training, &config.distillation);
    let content = json!({
        "stage": stage.as_str(),
        "data": data.dataset.digest,
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
pub fn fit_options(config: &Config, device: Device) -> FitOptions {
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
        adam: AdamOptions {
            weight_decay: training.weight_decay,
            gradient_clip: training.gradient_clip,
            offload: config.memory.offload_optimizer,
            kernel: attention_kernel(config),
        },
        accumulate_grad_batches: training.accumulate_grad_batches as u64,
        log_every_n_steps: training.log_every_n_steps as u64,
        seed: training.seed,
        device,
        identity: String::new(),
        micro_batch_graphs: None,
        precision: match training.precision {
            Precision::Single => None,
            Precision::Half => Some(Kind::Half),
            Precision::BrainFloat => Some(Kind::BFloat16),
        },
        clear_cache_every_n: config.memory.clear_cache_every_n as u64,
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
pub fn loaders(
    config: &Config,
    store: &Arc<Store>,
    vocabulary: &Arc<Vocabulary>,
    edge_attributes: bool,
) -> (Loader, Loader) {
    let loader = |probability: f64| {
        let unknown_drop =
            (probability > 0.0).then_some(UnknownDrop { probability, seed: config.training.seed, epoch: 0 });
        let assemble = AssembleOptions { vocabulary: Arc::clone(vocabulary), unknown_drop, edge_attributes };
        let options = LoaderOptions {
            assemble,
            workers: config.training.num_workers,
            prefetch_batches: config.training.prefetch_batches,
        };
        Loader::start(Arc::clone(store), options)
    };
    (loader(config.model.unknown_drop), loader(0.0))
}

/// The graphs of a run, as positions in the store. As a plan: every epoch all of them, in another order.
#[derive(Debug, Clone)]
pub struct Graphs {
    pub training: Vec<u64>,
    pub validation: Vec<u64>,
    /// Graphs of a batch.
    pub batch_graphs: usize,
    /// Of the run.
    pub seed: u64,
    pub shuffle: Shuffle,
}

/// How the configuration has graphs shuffled.
pub fn shuffle(config: &Config) -> Shuffle {
    let training = &config.training;
    Shuffle { block_graphs: training.shuffle_block, buffer_graphs: training.shuffle_buffer }
}

impl Graphs {
    /// How a run that sees all of them in every epoch asks its teacher.
    pub fn teacher_use(&self) -> TeacherUse {
        self.teacher_use_of(self.training.len())
    }

    /// As [`Graphs::teacher_use`], with `epoch_graphs` of the training graphs in an epoch.
    pub fn teacher_use_of(&self, epoch_graphs: usize) -> TeacherUse {
        let batches = |graphs: usize| graphs.div_ceil(self.batch_graphs) as u64;
        TeacherUse {
            graphs: self.training.iter().chain(&self.validation).copied().collect(),
            batches_per_epoch: batches(epoch_graphs) + batches(self.validation.len()),
        }
    }

    /// The validation graphs in order.
    pub fn validation_batches(&self) -> Vec<Vec<u64>> {
        self.validation.chunks(self.batch_graphs).map(<[u64]>::to_vec).collect()
    }
}

/// The batches of a run, with the graphs that they are made of.
pub trait StagePlan: BatchPlan {
    /// All graphs that any epoch may see.
    fn graphs(&self) -> &Graphs;

    /// Sets the graphs of a batch.
    fn set_batch_graphs(&mut self, batch_graphs: usize);
}

impl StagePlan for Graphs {
    fn graphs(&self) -> &Graphs {
        self
    }

    fn set_batch_graphs(&mut self, batch_graphs: usize) {
        self.batch_graphs = batch_graphs;
    }
}

impl BatchPlan for Graphs {
    fn training(&self, epoch: u64) -> Vec<Vec<u64>> {
        self.shuffle.batches(&self.training, self.batch_graphs, self.seed, epoch)
    }

    fn validation(&self) -> Vec<Vec<u64>> {
        self.validation_batches()
    }
}

/// How a new model scales edge features; `None` if it does not read them.
pub fn edge_scaling(config: &Config, data: &Data) -> Result<Option<EdgeScaling>, StageError> {
    Ok(match config.model.conv {
        Convolution::Gat => None,
        Convolution::GatV2 => {
            let attack_free = data.store.select(Split::Train, Some(false));
            Some(EdgeScaling::of(&data.store, &attack_free)?)
        }
    })
}

/// Whether steps run through the fused passes.
pub fn computes_fused(config: &Config, on_gpu: bool) -> bool {
    !on_gpu && config.model.attention != AttentionChoice::Composed && config.training.precision == Precision::Single
}

/// The implementation of attention that is configured.
pub fn attention_kernel(config: &Config) -> AttentionKernel {
    match config.model.attention {
        AttentionChoice::Auto => AttentionKernel::Auto,
        AttentionChoice::Fused => AttentionKernel::Fused,
        AttentionChoice::Composed => AttentionKernel::Composed,
    }
}
