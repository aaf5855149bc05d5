//! Parts shared by all training stages, made from the configuration: run folder, loop settings, graphs, loaders.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tch::{Device, Kind};

use super::StageError;
use super::setup::{self, Data};
use crate::config::run_settings::INITIAL_WEIGHTS;
use crate::config::{
    self, AttentionChoice, Config, Convolution, IdEncoding, KdLoss, PoolingChoice, Precision,
    Schedule as ScheduleChoice, Stage,
};
use crate::distill::alpha::Alpha;
use crate::distill::losses::LogitLoss;
use crate::graph::{
    AssembleOptions, Displacement, EdgeScaling, FeatureSet, Loader, LoaderOptions, SpaceOptions, Split, Store,
    UnknownDrop, Vocabulary,
};
use crate::memory;
use crate::nn::attention::Backend;
use crate::nn::{BatchNeeds, DatasetIdentity, IdHash, InputConfig, Pooling};
use crate::torch::device;
use crate::train::fit::FitOptions;
use crate::train::optimizer::{AdamOptions, Share};
use crate::train::options::Monitor;
use crate::train::run_directory::RunDirectory;
use crate::train::schedule::Schedule;

/// Opens the run's folder: a new one, the one given by the user, or the one to resume.
pub fn run_directory(config: &Config, dataset: &str, stage: Stage) -> Result<RunDirectory, StageError> {
    let suffix = if config.distillation.use_kd { "_kd" } else { "" };
    let model = match stage {
        Stage::Fusion => config.fusion.fusion.as_str(),
        _ => config.model.model.as_str(),
    };
    let name = format!("{model}_{}_{}{suffix}", config.model.size, stage.run_name());
    let parent: PathBuf = config.output.runs_dir.join(dataset).join(name);
    Ok(match (&config.output.run_dir, config.output.resume) {
        (Some(path), goes_on) => RunDirectory::at(path, goes_on)?,
        (None, true) => RunDirectory::resume(&parent)?,
        (None, false) => RunDirectory::create(&parent)?,
    })
}

/// The inputs of a run whose losses depend on them.
pub struct RunInputs<'a> {
    pub dataset: &'a DatasetIdentity,
    /// The teacher's digest.
    pub teacher: Option<&'a str>,
    /// The division into sets, if it is not part of the dataset.
    pub split: Option<&'a Value>,
    /// The digest of the initial weights, if they are another model's.
    pub initial_weights: Option<&'a Value>,
}

/// The digest of everything that the losses and the saved model depend on; a run can only be resumed with the same digest.
///
/// Paths are not included, because the contents behind them are: data, teacher and division by their digests.
pub fn identity(config: &Config, stage: Stage, batch_graphs: usize, inputs: &RunInputs) -> String {
    let mut content = json!({
        "stage": stage.command(),
        "data": inputs.dataset.digest,
        "teacher": inputs.teacher,
        "split": inputs.split,
        "batch_graphs": batch_graphs,
        "cuda_graphs": config.training.cuda_graphs == Some(true),
        "fields": config::loss_fields(config, stage),
    });
    if let Some(digest) = inputs.initial_weights {
        content[INITIAL_WEIGHTS] = digest.clone();
    }
    blake3::hash(content.to_string().as_bytes()).to_hex()[..16].to_owned()
}

/// True if training steps are captured as CUDA graphs: as configured, otherwise on a GPU wherever it is possible.
pub fn captures_steps(config: &Config, on_gpu: bool) -> bool {
    config.training.cuda_graphs.unwrap_or_else(|| on_gpu && capture_obstacle(config).is_none())
}

/// The setting of the configuration or of the allocator for which training steps are not captured as CUDA graphs.
pub fn capture_obstacle(config: &Config) -> Option<String> {
    let of_config = config::capture_obstacles(config).next().map(|(problem, _)| problem.to_owned());
    of_config.or_else(|| match device::allocator_settings() {
        Ok(settings) => memory::fatal_in_a_capture(&settings).map(|setting| {
            format!("{setting} in the allocator's settings, with which a shortage of memory would end the process")
        }),
        Err(error) => Some(error.to_string()),
    })
}

/// The settings of the training loop. Steps are not captured as CUDA graphs.
pub fn fit_options(config: &Config, device: Device) -> FitOptions {
    let training = &config.training;
    let schedule = match training.schedule {
        ScheduleChoice::Constant => Schedule::Constant,
        ScheduleChoice::Cosine => Schedule::Cosine { max_epochs: training.max_epochs as u64 },
        ScheduleChoice::Step => {
            Schedule::Step { step_epochs: training.lr_step_epochs as u64, gamma: training.lr_gamma }
        }
        // A quarter of the patience, so that the rate falls well before early stopping ends the run.
        ScheduleChoice::Plateau => {
            Schedule::Plateau { patience_epochs: (training.patience as u64 / 4).max(1), gamma: training.lr_gamma }
        }
    };
    FitOptions {
        max_epochs: training.max_epochs as u64,
        patience: training.patience as u64,
        monitor: Monitor::Loss,
        lr: training.lr,
        schedule,
        adam: AdamOptions {
            weight_decay: training.weight_decay,
            gradient_clip: training.gradient_clip,
            offload: config.memory.offload_optimizer,
            kernel: attention_kernel(config),
            share: Share::WHOLE,
            ema_decay: training.ema_decay,
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
        uses_own_threads: uses_own_threads(config),
        records_steps: false,
        clear_cache_every_n: config.memory.clear_cache_every_n as u64,
        json_lines: config.output.json_lines,
        tensorboard: config.output.tensorboard,
        memory_sample_interval: Duration::from_secs_f64(config.memory.memory_sample_seconds),
        processes: None,
    }
}

/// True if no libtorch operation runs on all nodes or edges of a batch. GATv2 and rich features use libtorch operations to scale
/// edges and nodes, and so do the distillation of hidden layers and networks in space.
fn uses_own_threads(config: &Config) -> bool {
    config.model.conv == Convolution::Gat
        && !config.model.model.is_in_space()
        && setup::feature_set(config) != FeatureSet::Rich
        && config.distillation.kd_hint_weight == 0.0
}

/// Refuses an empty validation set: without it there is no best epoch, and no model would be saved.
pub fn expect_validation(validation: &[u64], dataset: &str) -> Result<(), StageError> {
    if !validation.is_empty() {
        return Ok(());
    }
    Err(StageError::Input(format!(
        "dataset {dataset} has no validation graph, which is needed to choose the best epoch; raise --validation-fraction, lower \
         --window, or train on longer logs"
    )))
}

/// Graphs per batch: at most the configured number, and few enough for the minimum number of steps per epoch.
pub fn batch_graphs(config: &Config, training_graphs: usize) -> usize {
    let training = &config.training;
    if !training.optimize_batch_size {
        return training.batch_size;
    }
    training.batch_size.min(training_graphs / training.min_steps_per_epoch).max(1)
}

/// Options of training batches (with random UNKNOWN IDs and displacements) and of validation batches (without).
pub fn batch_options(
    config: &Config,
    store: &Store,
    vocabulary: &Arc<Vocabulary>,
    needs: BatchNeeds,
    views: u64,
) -> [AssembleOptions; 2] {
    let seed = if views > 0 { config::VIEWS_SEED } else { config.training.seed };
    let displacement = config::displacement(config, Stage::Train);
    let displacement = displacement.map(|deviation| Displacement { deviation, seed, epoch: 0, views: views.max(1) });
    let options = |probability: f64, displacement: Option<Displacement>| AssembleOptions {
        vocabulary: Arc::clone(vocabulary),
        unknown_drop: (probability > 0.0).then_some(UnknownDrop { probability, seed, epoch: 0, views }),
        edge_attributes: needs.edge_features,
        hashed_ids: config.model.id_encoding == IdEncoding::Hash,
        profile: store.profile().cloned(),
        short_profiles: false,
        space: needs.space.map(|space| SpaceOptions { displacement, ..space }),
    };
    [options(config.model.unknown_drop, displacement), options(0.0, None)]
}

/// Starts the loaders of batches with these options, which are made on the host.
pub fn loaders(config: &Config, store: &Arc<Store>, options: [AssembleOptions; 2], device: Device) -> [Loader; 2] {
    options.map(|assemble| {
        let workers = loader_workers(config, device.is_cuda());
        let options = LoaderOptions { assemble, workers, prefetch_batches: config.training.prefetch_batches };
        Loader::for_epochs(Arc::clone(store), options)
    })
}

/// Threads that assemble batches: as configured, otherwise one, which leaves a CPU its cores for the steps; graphs for a GPU get a quarter of
/// the cores, at most four.
pub fn loader_workers(config: &Config, graphs_for_gpu: bool) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, |count| count.get());
    config.training.num_workers.unwrap_or_else(|| if graphs_for_gpu { (cores() / 4).clamp(1, 4) } else { 1 })
}

/// The node input of a new model: feature scaling and hashing of IDs.
pub fn input(config: &Config, data: &Data) -> InputConfig {
    let scaling = data.store.manifest().scaling.as_ref();
    InputConfig {
        node_scaling: scaling.map(|scaling| scaling.nodes.clone()),
        profile: data.store.profile().cloned(),
        id_hash: id_hash(config),
    }
}

/// The hashing of IDs in a new model; `None` with a vocabulary.
pub fn id_hash(config: &Config) -> Option<IdHash> {
    let model = &config.model;
    let hash = IdHash { probes: model.id_probes as i64, buckets: model.id_buckets as i64 };
    (model.id_encoding == IdEncoding::Hash).then_some(hash)
}

/// The scaling of edge features in a new model; `None` if it does not read them.
pub fn edge_scaling(config: &Config, data: &Data) -> Result<Option<EdgeScaling>, StageError> {
    Ok(match config.model.conv {
        Convolution::Gat => None,
        Convolution::GatV2 => {
            if let Some(scaling) = &data.store.manifest().scaling {
                return Ok(Some(scaling.edges.clone()));
            }
            let attack_free = data.store.select(Split::Train, Some(false));
            Some(EdgeScaling::of(&data.store, &attack_free)?)
        }
    })
}

/// The configured share of the distillation in the loss.
pub fn alpha(config: &Config) -> Alpha {
    let first = config.distillation.kd_alpha;
    Alpha::annealed(first, config.distillation.kd_alpha_end.unwrap_or(first))
}

/// The configured comparison of the student's logits with the teacher's.
pub fn logit_loss(config: &Config) -> LogitLoss {
    let temperature = config.distillation.kd_temperature;
    match config.distillation.kd_loss {
        KdLoss::Kl => LogitLoss::SoftLabels { temperature },
        KdLoss::Dkd => LogitLoss::Decoupled { temperature },
        KdLoss::Mse => LogitLoss::Distance,
    }
}

/// True if training steps use the fused kernels.
pub fn computes_fused(config: &Config, on_gpu: bool) -> bool {
    !on_gpu && config.model.attention != AttentionChoice::Composed && config.training.precision == Precision::Single
}

/// The configured pooling of nodes.
pub fn pooling(config: &Config) -> Pooling {
    match config.graphs.pooling {
        PoolingChoice::Sum => Pooling::Sum,
        PoolingChoice::Mean => Pooling::Mean,
        PoolingChoice::Max => Pooling::Max,
        PoolingChoice::Attention => Pooling::Attention,
    }
}

/// The configured implementation of attention.
pub fn attention_kernel(config: &Config) -> Backend {
    match config.model.attention {
        AttentionChoice::Auto => Backend::Auto,
        AttentionChoice::Fused => Backend::Fused,
        AttentionChoice::Composed => Backend::Composed,
    }
}
