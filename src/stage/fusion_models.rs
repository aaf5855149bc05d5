//! The two models to fuse, given by path or found for the dataset and the size, and their states.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use super::run_data::warn_of_other;
use super::setup::{self, Data};
use super::{StageError, teacher, training};
use crate::config::{Config, ModelKind};
use crate::distill::registry::Registry;
use crate::evaluate::{EvaluateError, Scorer, TrainedModel, models};
use crate::fusion::agent::{AgentDescription, FusedModel};
use crate::fusion::states::StateModels;
use crate::fusion::{FusionError, StateFile, StateKey, state_cache};
use crate::memory::{Meter, retry_on_oom};
use crate::train::fit::BEST;

/// The description of a model. Its weights are freed until states must be computed.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundModel {
    pub name: String,
    pub path: PathBuf,
    /// Digest of everything that the model's outputs depend on.
    pub digest: String,
    pub weights_digest: String,
    pub parameters: usize,
    pub file_bytes: u64,
}

impl FoundModel {
    /// The reference to this model that is saved with an agent.
    pub fn fused(&self) -> FusedModel {
        FusedModel { name: self.name.clone(), path: self.path.clone(), digest: self.digest.clone() }
    }
}

/// The two models to fuse.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    pub vgae: FoundModel,
    pub gat: FoundModel,
}

impl Pair {
    /// The key of the models' states, and the path of their cache file.
    fn place(&self, config: &Config, data: &Data) -> (StateKey, PathBuf) {
        let key = StateKey {
            vgae_digest: self.vgae.digest.clone(),
            gat_digest: self.gat.digest.clone(),
            data_digest: data.dataset.digest.clone(),
            graphs: data.store.num_graphs(),
        };
        let path = state_cache::path(&config.data.stores_dir, &data.dataset.name, &key);
        (key, path)
    }

    /// Reads the states of all graphs from the cache, or computes and caches them.
    pub fn states(&self, config: &Config, data: &Data) -> Result<StateFile, FusionError> {
        let (key, path) = self.place(config, data);
        let scorer = |model: &FoundModel| {
            let trained = TrainedModel::read(&model.path)?;
            if trained.scores_digest() != model.digest {
                return Err(FusionError::Input(format!(
                    "{}: the model has changed (digest {}, expected {})",
                    model.path.display(),
                    trained.scores_digest(),
                    model.digest
                )));
            }
            let kernel = training::attention_kernel(config);
            Ok(retry_on_oom(Meter::new(data.device), || Scorer::new(&trained, data.device, kernel))?)
        };
        state_cache::find_or_compute(&path, &key, &data.store, || {
            StateModels::new(scorer(&self.vgae)?, scorer(&self.gat)?)
        })
    }
}

/// Finds the models named by the configuration; else, for a size `teacher…`, the dataset's registered teachers, and for any other
/// size its newest finished runs of that size.
pub fn find(config: &Config, data: &Data) -> Result<Pair, StageError> {
    let (vgae, gat) = (&config.fusion.fusion_vgae, &config.fusion.fusion_gat);
    Ok(Pair {
        vgae: one(config, data, ModelKind::Vgae, vgae.as_deref())?,
        gat: one(config, data, ModelKind::Gat, gat.as_deref())?,
    })
}

fn one(config: &Config, data: &Data, kind: ModelKind, given: Option<&Path>) -> Result<FoundModel, StageError> {
    let flag = flag_of(kind);
    let path = match given {
        Some(path) => path.to_owned(),
        None => model_of_dataset(config, &data.dataset.name, kind)?,
    };
    let model = TrainedModel::read(&path)?;
    let found = model.description.architecture.model_name();
    if found != kind.as_str() {
        return Err(StageError::Input(format!("{flag} {}: this is a {found}, expected a {kind}", path.display())));
    }
    let features = setup::feature_set(config);
    let reads = model.description.architecture.input().features();
    if reads != features {
        return Err(StageError::Input(format!(
            "{} reads {reads} features, but the store has {features} features; use --features {reads}, or another model with {flag}",
            model.name
        )));
    }
    let (window, trained_on) = (config.data.window, model.description.window);
    if trained_on != window && trained_on != 0 {
        return Err(StageError::Input(format!(
            "{} was trained on windows of {trained_on} frames, but the store has windows of {window}; use --window {trained_on}",
            model.name
        )));
    }
    warn_of_other(&model, &data.store);
    let trained_digest = &model.description.dataset.digest;
    if !trained_digest.is_empty() && *trained_digest != data.dataset.digest {
        eprintln!(
            "warning: {} was trained on another store (digest {trained_digest}, this one has {}): the validation graphs of the fusion \
             may be its training graphs; name models of this store with --fusion-vgae and --fusion-gat",
            model.name, data.dataset.digest
        );
    }
    Ok(FoundModel {
        name: model.name.clone(),
        parameters: model.num_parameters(),
        digest: model.scores_digest(),
        weights_digest: model.weights_digest,
        path: model.path,
        file_bytes: model.file_bytes,
    })
}

fn flag_of(kind: ModelKind) -> &'static str {
    if kind == ModelKind::Vgae { "--fusion-vgae" } else { "--fusion-gat" }
}

/// The default model to fuse: for a size `teacher…` the registered teacher, else the newest finished run of that size.
pub fn model_of_dataset(config: &Config, dataset: &str, kind: ModelKind) -> Result<PathBuf, StageError> {
    let flag = flag_of(kind);
    let size = &config.model.size;
    if size.starts_with("teacher")
        && let Ok(registered) = Registry::new(&config.distillation.teachers_dir).find(dataset, kind.as_str())
    {
        return Ok(registered.weights_path);
    }
    if let Some(run) = newest(&models::finished_runs(&config.output.runs_dir, dataset)?, kind.as_str(), size) {
        return Ok(run);
    }
    let command = if kind == ModelKind::Vgae { "autoencoder" } else { "classifier" };
    let data = teacher::data_flag(config);
    Err(StageError::Input(format!(
        "no finished {kind} of size {size} for dataset {dataset} below {}; train one with `kdgat {command} --preset \
         {kind},{size}{data}`, or name one with {flag}",
        config.output.runs_dir.display()
    )))
}

/// The run of this model and size that finished last.
fn newest(runs: &[PathBuf], model: &str, size: &str) -> Option<PathBuf> {
    let fits = |run: &&PathBuf| {
        let config = frozen(run);
        config["config"]["model"]["model"] == model && config["config"]["model"]["size"] == size
    };
    let finished = |run: &Path| {
        run.join("summary.json").metadata().and_then(|summary| summary.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    runs.iter().filter(fits).max_by_key(|run| finished(run)).cloned()
}

fn frozen(run: &Path) -> Value {
    let text = std::fs::read(run.join("config.json")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or(Value::Null)
}

/// The dataset's newest finished agent of size teacher.
pub fn newest_teacher(config: &Config, dataset: &str) -> Result<PathBuf, StageError> {
    let runs = models::finished_agents(&config.output.runs_dir, dataset)?;
    newest(&runs, ModelKind::Dqn.as_str(), "teacher").map(|run| run.join(BEST)).ok_or_else(|| {
        let data = teacher::data_flag(config);
        StageError::Input(format!(
            "no finished fusion agent of size teacher for dataset {dataset} below {}; train one with `kdgat fusion --preset \
             dqn,teacher{data}`, name one with --teacher-path, or use --use-kd false",
            config.output.runs_dir.display()
        ))
    })
}

/// The models that an agent was trained with. They need not exist any more if their states are cached.
pub fn teacher_pair(config: &Config, data: &Data, agent: &AgentDescription) -> Result<Pair, StageError> {
    let pair = Pair { vgae: remembered(&agent.vgae), gat: remembered(&agent.gat) };
    if agent.window != config.data.window {
        return Err(StageError::Input(format!(
            "the teacher of the fusion was trained on windows of {} frames, but the store has windows of {}",
            agent.window, config.data.window
        )));
    }
    let missing = [&pair.vgae, &pair.gat].into_iter().find(|model| !model.path.exists());
    if let Some(model) = missing {
        let (_, path) = pair.place(config, data);
        if !path.exists() {
            let text = format!(
                "the teacher of the fusion needs states of {} ({}), which no longer exists, and they are not cached ({}); \
                 train the teacher again, or use --use-kd false",
                model.name,
                model.path.display(),
                path.display()
            );
            return Err(EvaluateError::Input(text).into());
        }
    }
    Ok(pair)
}

fn remembered(model: &FusedModel) -> FoundModel {
    let FusedModel { name, path, digest } = model.clone();
    FoundModel { name, path, digest, weights_digest: String::new(), parameters: 0, file_bytes: 0 }
}
