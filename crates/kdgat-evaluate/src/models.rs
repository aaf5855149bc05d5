//! Trained models on disk: the runs of a dataset and its registered teachers.

use std::fs;
use std::path::{Path, PathBuf};

use kdgat_base::files;
use serde_json::Value;
use tch::Device;

use super::EvaluateError;
use super::held_out::TrainedSplit;
use kdgat_config::run_settings::{self, Setting};
use kdgat_distill::frozen::{self, TEACHER_WEIGHTS};
use kdgat_distill::registry::{Registered, Registry};
use kdgat_graph::{ForeignIds, Validation, Vocabulary};
use kdgat_nn::weights::StateDict;
use kdgat_nn::{Architecture, DatasetIdentity, ModelDescription, ModelError, weights};
use kdgat_train::checkpoint;
use kdgat_train::fit::BEST;
use kdgat_train::memory::{Meter, is_out_of_memory, retry_on_oom};
use kdgat_train::run_name::RunName;

const SUMMARY: &str = "summary.json";
const CONFIG: &str = "config.json";
/// Name endings of tensors that are statistics rather than weights, which the parameter count skips.
const STATISTICS: [&str; 3] = ["running_mean", "running_var", "num_batches_tracked"];

/// A trained model on disk.
#[derive(Debug)]
pub struct TrainedModel {
    /// Name of the run with its number (`gat_student_normal_kd/3`), or of the teacher (`gat_teacher (sim/gat)`).
    pub name: String,
    /// Name without the number: the same for runs of one stage, model and size.
    pub group: String,
    /// The run's folder, or the teacher's.
    pub folder: PathBuf,
    /// Path of the weight file.
    pub path: PathBuf,
    /// Size of that file, in bytes.
    pub file_bytes: u64,
    /// Architecture, features and vocabulary, as stored with the weights.
    pub description: ModelDescription,
    /// Weights on the CPU.
    pub state: StateDict,
    /// Content digest of the weights.
    pub weights_digest: String,
    /// True if it was trained with a teacher.
    pub distilled: bool,
    /// Seed of its training, if known.
    pub seed: Option<u64>,
    /// Training settings that affect the losses, without the seed; the digest of the weights if they are unknown.
    pub settings: Vec<Setting>,
    /// Frames from one window to the next in its training data, if known.
    pub stride: Option<usize>,
    /// Windowing and split of its training data, if known.
    pub split: Option<TrainedSplit>,
    /// True if its training data had synthetic attacks.
    pub synthetic_attacks: bool,
}

impl TrainedModel {
    /// Reads a run from its folder or its weight file.
    ///
    /// # Errors
    /// Names what the path holds and what was expected.
    pub fn read(path: &Path) -> Result<Self, EvaluateError> {
        retry_on_oom(Meter::new(Device::Cpu), || Self::read_once(path))
    }

    fn read_once(path: &Path) -> Result<Self, EvaluateError> {
        let file = frozen::weight_file(path)?;
        if file.ends_with(TEACHER_WEIGHTS) { Self::from_teacher(&file) } else { Self::from_checkpoint(&file) }
    }

    fn from_checkpoint(path: &Path) -> Result<Self, EvaluateError> {
        let (state, description): (StateDict, ModelDescription) = checkpoint::read(path)?;
        Self::new(path, state, description, &Value::Null)
    }

    /// Reads a registered teacher; one trained elsewhere is described by `config.json` beside it.
    fn from_teacher(path: &Path) -> Result<Self, EvaluateError> {
        match checkpoint::read::<ModelDescription>(path) {
            Ok((state, description)) => return Self::new(path, state, description, &Value::Null),
            Err(error) if is_out_of_memory(&error) => return Err(error.into()),
            Err(_) => {}
        }
        let found = Registered::open(path)?;
        let weights = found.load()?;
        let architecture = frozen::registered_architecture(&found)?;
        let config = found.config;
        let metric = |name: &str| config.metrics.get(name).cloned().unwrap_or_default();
        let description = ModelDescription {
            architecture,
            vocabulary: Vocabulary::from_ids(config.vocabulary.iter().copied()),
            foreign_ids: config.foreign_ids,
            dataset: DatasetIdentity { name: config.dataset.name.clone(), digest: config.dataset.digest.clone() },
            window: metric("window").as_u64().unwrap_or(0) as usize,
            size: metric("size").as_str().unwrap_or("teacher").to_owned(),
            epoch: metric("best_epoch").as_u64().unwrap_or(1).saturating_sub(1),
            val_loss: metric("val_loss").as_f64(),
            teacher_digest: None,
            created_by_version: config.created_by_version.clone(),
        };
        let state = weights.iter().map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone())).collect();
        let cut = ["stride", "validation_fraction", "validation", "synthetic_attacks"]
            .map(|name| (name.to_owned(), metric(name)));
        let cut = Value::Object(cut.into_iter().collect());
        Self::new(path, state, description, &cut)
    }

    /// `cut`: stride, validation and synthetic attacks of the training data, used if there is no frozen configuration.
    fn new(path: &Path, state: StateDict, description: ModelDescription, cut: &Value) -> Result<Self, EvaluateError> {
        if let Some(reason) = description.foreign_ids.and_then(|counted| counted.problem()) {
            return Err(EvaluateError::Content { path: path.to_owned(), reason });
        }
        weights::expect_finite(state.iter().map(|(name, tensor)| (name.as_str(), tensor))).map_err(
            |error| match error {
                ModelError::NotFinite { .. } => {
                    EvaluateError::Content { path: path.to_owned(), reason: error.to_string() }
                }
                other => other.into(),
            },
        )?;
        let file_error = files::failed("read the size", path);
        let file_bytes = fs::metadata(path).map_err(file_error)?.len();
        let folder = path.parent().unwrap_or(Path::new("."));
        let config = frozen_config(folder);
        let distilled =
            config["config"]["distillation"]["use_kd"].as_bool().unwrap_or(description.teacher_digest.is_some());
        let (group, name) = names(folder, &description.architecture);
        let data = if config["config"]["data"].is_object() { &config["config"]["data"] } else { cut };
        let stride = data["stride"].as_u64().filter(|stride| *stride > 0).map(|stride| stride as usize);
        let fraction = data["validation_fraction"].as_f64();
        let rule = data["validation"].as_str().and_then(Validation::parse);
        let known = stride.zip(fraction).zip(rule).filter(|_| description.window > 1);
        let split = known.map(|((stride, validation_fraction), validation)| {
            let window = description.window;
            TrainedSplit { window, stride, validation_fraction, validation }
        });
        let weights_digest = weights::digest(state.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
        Ok(Self {
            name,
            group,
            folder: folder.to_owned(),
            path: path.to_owned(),
            file_bytes,
            description,
            state,
            distilled,
            seed: config["config"]["training"]["seed"].as_u64(),
            settings: run_settings::of_run(&config, folder.join(SUMMARY).exists(), &weights_digest),
            weights_digest,
            stride,
            split,
            synthetic_attacks: data["synthetic_attacks"].as_bool().unwrap_or(false),
        })
    }

    /// Digest of everything its scores depend on: the weights and the foreign-ID shares.
    pub fn scores_digest(&self) -> String {
        let Some(ForeignIds { of_attacks, of_normals }) = self.description.foreign_ids else {
            return self.weights_digest.clone();
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.weights_digest.as_bytes());
        hasher.update(&of_attacks.to_le_bytes());
        hasher.update(&of_normals.to_le_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// Frames in a window of its graphs.
    ///
    /// # Errors
    /// Fails if a model trained elsewhere does not state its window.
    pub fn window(&self) -> Result<usize, EvaluateError> {
        match self.description.window {
            0 | 1 => Err(EvaluateError::Input(format!(
                "{}: does not say how many frames its windows have; add \"metrics\": {{\"window\": 100}} to its config.json",
                self.path.display()
            ))),
            window => Ok(window),
        }
    }

    /// Number of trained parameters.
    pub fn num_parameters(&self) -> usize {
        let is_weight = |name: &str| !STATISTICS.iter().any(|statistic| name.ends_with(statistic));
        self.state.iter().filter(|(name, _)| is_weight(name)).map(|(_, tensor)| tensor.numel()).sum()
    }
}

/// The frozen configuration beside a model; null if there is none (a teacher's `config.json` has other fields).
fn frozen_config(folder: &Path) -> Value {
    let text = fs::read(folder.join(CONFIG)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or(Value::Null)
}

/// Group and name of the model in a folder.
fn names(folder: &Path, architecture: &Architecture) -> (String, String) {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let part = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (own, parent) = (part(&folder), folder.parent().map(part).unwrap_or_default());
    if folder.join(TEACHER_WEIGHTS).exists() {
        let name = format!("{}_teacher", architecture.model_name());
        return (name.clone(), format!("{name} ({parent}/{own})"));
    }
    let RunName { group, name } = RunName::of(&folder);
    (group, name)
}

/// Command that trains fusion agents, as named in frozen configurations.
const FUSION: &str = "fusion";

/// Folders of all finished model runs of a dataset, by name and number.
pub fn finished_runs(runs_dir: &Path, dataset: &str) -> Result<Vec<PathBuf>, EvaluateError> {
    let mut runs = finished(runs_dir, dataset)?;
    runs.retain(|run| frozen_config(run)["command"] != FUSION);
    Ok(runs)
}

/// Folders of all finished fusion-agent runs of a dataset.
pub fn finished_agents(runs_dir: &Path, dataset: &str) -> Result<Vec<PathBuf>, EvaluateError> {
    let mut runs = finished(runs_dir, dataset)?;
    runs.retain(|run| frozen_config(run)["command"] == FUSION);
    Ok(runs)
}

fn finished(runs_dir: &Path, dataset: &str) -> Result<Vec<PathBuf>, EvaluateError> {
    let mut runs = Vec::new();
    for group in subfolders(&runs_dir.join(dataset))? {
        let numbered = |path: PathBuf| Some((path.file_name()?.to_str()?.parse::<u64>().ok()?, path));
        let mut of_group: Vec<_> = subfolders(&group)?.into_iter().filter_map(numbered).collect();
        of_group.sort();
        let finished = |path: &PathBuf| path.join(SUMMARY).exists() && path.join(BEST).exists();
        runs.extend(of_group.into_iter().map(|(_, path)| path).filter(finished));
    }
    Ok(runs)
}

/// All models of a dataset: its finished runs, and the registered teachers that are not among them.
pub fn all_of_dataset(runs_dir: &Path, teachers_dir: &Path, dataset: &str) -> Result<Vec<TrainedModel>, EvaluateError> {
    let runs = finished_runs(runs_dir, dataset)?;
    let mut models = runs.iter().map(|path| TrainedModel::read(path)).collect::<Result<Vec<_>, _>>()?;
    let registry = Registry::new(teachers_dir);
    for listed in registry.list()?.into_iter().filter(|listed| listed.dataset == dataset) {
        let teacher = TrainedModel::read(&listed.teacher?.weights_path)?;
        if models.iter().all(|model| model.scores_digest() != teacher.scores_digest()) {
            models.push(teacher);
        }
    }
    Ok(models)
}

fn subfolders(parent: &Path) -> Result<Vec<PathBuf>, EvaluateError> {
    if !parent.exists() {
        return Ok(Vec::new());
    }
    let error = files::failed("list", parent);
    let mut folders = Vec::new();
    for entry in fs::read_dir(parent).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}
