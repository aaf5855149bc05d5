//! From the configuration to a teacher at work: found or given, started on its thread, registered after training.

use std::path::{Path, PathBuf};

use super::objective::TeacherLink;
use super::setup::Data;
use super::{Outcome, StageError, training};
use crate::config::{CachePrecision, Config, Residency as ResidencyChoice, Stage, TeacherCache};
use crate::distill::frozen::{self, TeacherVocabulary};
use crate::distill::registry::{self, CardFacts, RegisteredTeacher, Registry};
use crate::distill::{CacheMode, CacheOptions, Precision, Residency, StoreShape, Teacher, TeacherOptions, Weights};
use crate::graph::Store;
use crate::memory;
use crate::nn::Architecture;

/// Targets are kept in memory while they take at most this part of what is free.
const CACHE_SHARE_OF_FREE_MEMORY: u64 = 4;

/// A teacher that is not at work yet.
#[derive(Debug)]
pub struct FoundTeacher {
    pub architecture: Architecture,
    pub weights: Weights,
    pub vocabulary: TeacherVocabulary,
    /// Digest of the IDs that the teacher knows.
    pub vocabulary_digest: String,
}

/// The teacher that is configured, if any: by path, or the one registered for the dataset.
pub fn find(config: &Config, stage: Stage, data: &Data) -> Result<Option<FoundTeacher>, StageError> {
    if !config.distillation.use_kd {
        return Ok(None);
    }
    let model = stage.model().as_str();
    let found = match &config.distillation.teacher_path {
        Some(path) => registry::load(path)?,
        None => registered(config, &data.dataset.name, model)?,
    };
    let ids = found.config.vocabulary.ids().iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    let vocabulary_digest = blake3::hash(&ids).to_hex()[..16].to_owned();
    let vocabulary = TeacherVocabulary::new(found.config.vocabulary, data.store.vocabulary());
    Ok(Some(FoundTeacher { architecture: found.architecture, weights: found.weights, vocabulary, vocabulary_digest }))
}

/// The registered teacher of a dataset; the error for a missing one names the command that trains it.
pub fn registered(config: &Config, dataset: &str, model: &str) -> Result<RegisteredTeacher, StageError> {
    let stage = if model == "vgae" { Stage::Autoencoder } else { Stage::Normal };
    let command = format!("kdgat {} --preset {model},teacher{}", stage.as_str(), data_flag(config));
    Ok(Registry::new(&config.distillation.teachers_dir).find(dataset, model, &command)?)
}

fn data_flag(config: &Config) -> String {
    config.data.data.as_ref().map(|path| format!(" --data {}", path.display())).unwrap_or_default()
}

/// How a run will ask its teacher.
#[derive(Debug)]
pub struct TeacherUse {
    /// Positions in the store of every graph that will be asked for.
    pub graphs: Vec<u64>,
    /// Training and validation batches of an epoch.
    pub batches_per_epoch: u64,
}

/// Starts the teacher's thread, if there is a teacher.
pub fn start(
    config: &Config,
    found: Option<FoundTeacher>,
    data: &Data,
    usage: TeacherUse,
) -> Result<TeacherLink, StageError> {
    let settings = &config.distillation;
    let Some(found) = found else { return Ok(TeacherLink::new(None, settings.teacher_burst)) };
    let store = &data.store;
    let options = TeacherOptions {
        residency: match settings.residency() {
            ResidencyChoice::Resident => Residency::Resident,
            ResidencyChoice::Forward => Residency::Forward,
            ResidencyChoice::Layer => Residency::Layer,
            ResidencyChoice::Auto => Residency::Auto,
        },
        layer_slots: settings.teacher_layer_slots,
        cache: cache_options(config, &found, store),
        burst: settings.teacher_burst,
        batches_per_epoch: usage.batches_per_epoch,
        epochs: config.training.max_epochs as u64,
        ..TeacherOptions::new(data.device)
    };
    let shape = StoreShape {
        dataset_digest: store.digest().to_owned(),
        node_counts: (0..store.num_graphs()).map(|graph| store.graph(graph).can_ids.len() as u32).collect(),
        used: Some(usage.graphs),
    };
    let model = frozen::model(found.architecture, found.vocabulary, training::attention_kernel(config));
    let teacher = Teacher::start(model, found.weights, &options, &shape)?;
    Ok(TeacherLink::new(Some(teacher), settings.teacher_burst))
}

fn cache_options(config: &Config, found: &FoundTeacher, store: &Store) -> CacheOptions {
    let settings = &config.distillation;
    let digest = &found.weights.digest()[..12];
    let precision = match settings.teacher_cache_precision {
        CachePrecision::F32 => Precision::F32,
        CachePrecision::F16 => Precision::F16,
    };
    let name =
        format!("{}-{digest}-{}-{}.targets", store.manifest().dataset, &store.digest()[..12], precision.as_str());
    let mode = match settings.cache() {
        TeacherCache::Auto => CacheMode::Auto,
        TeacherCache::Off => CacheMode::Off,
        TeacherCache::Ram => CacheMode::Ram,
        TeacherCache::Disk => CacheMode::Disk,
    };
    CacheOptions {
        mode,
        precision,
        path: Some(settings.teacher_cache_dir.join(name)),
        ram_budget_bytes: memory::available_bytes() / CACHE_SHARE_OF_FREE_MEMORY,
        architecture: found.architecture.to_json().to_string(),
        features: format!("vocabulary {}", found.vocabulary_digest),
    }
}

/// Makes the model that a run has trained the teacher of its dataset. Returns its folder.
pub fn register(config: &Config, stage: Stage, best: &Path, outcome: &Outcome) -> Result<PathBuf, StageError> {
    let model = &config.model;
    let metrics = outcome.best.as_ref().and_then(|best| best["parts"].as_object());
    let number = |(name, value): (&String, &serde_json::Value)| Some((name.clone(), value.as_f64()?));
    let facts = CardFacts {
        command: format!("kdgat {} --preset {},{}{}", stage.as_str(), model.model, model.size, data_flag(config)),
        epochs: outcome.epochs,
        num_parameters: outcome.num_parameters,
        seed: config.training.seed,
        metrics: metrics.into_iter().flatten().filter_map(number).collect(),
    };
    Ok(Registry::new(&config.distillation.teachers_dir).register(best, &facts)?)
}
