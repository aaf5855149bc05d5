//! Registered teachers: `teachers/<dataset>/<model>/{weights.safetensors, config.json, card.md}`.
//!
//! A dataset has at most one teacher of each model. It is registered as a whole folder, made beside and renamed, so
//! that a half-written one is never found. A teacher may also be given by path: a kdgat safetensors file, or a PyTorch
//! state dict, with its `config.json` beside it.

mod card;
mod error;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::weights::Weights;
use crate::files;
use crate::graph::Vocabulary;
use crate::nn::weights::StateDict;
use crate::nn::{Architecture, DatasetIdentity, ModelDescription, weights};
use crate::train::checkpoint;

pub use card::CardFacts;
pub use error::RegistryError;

const FORMAT_VERSION: u32 = 1;
const WEIGHTS: &str = "weights.safetensors";
const CONFIG: &str = "config.json";
const CARD: &str = "card.md";

/// The content of a teacher's `config.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TeacherConfig {
    pub format_version: u32,
    /// `vgae` or `gat`.
    pub model: String,
    /// The fields of its architecture.
    pub architecture: Value,
    /// The IDs of its vocabulary, ascending; index 0 of the embedding is UNKNOWN, so the first ID is row 1.
    pub vocabulary: Vocabulary,
    /// Digest of the weights, if known: weights with another are refused.
    #[serde(default)]
    pub weights_digest: Option<String>,
    /// What it was trained on, if known.
    #[serde(default)]
    pub dataset: Option<DatasetIdentity>,
    /// Final losses and whatever else was recorded.
    #[serde(default)]
    pub metrics: Value,
    #[serde(default)]
    pub created_by_version: Option<String>,
}

/// A teacher that can be used.
#[derive(Debug)]
pub struct RegisteredTeacher {
    /// The weight file.
    pub path: PathBuf,
    pub config: TeacherConfig,
    pub architecture: Architecture,
    pub weights: Weights,
}

/// The folder of registered teachers.
#[derive(Debug, Clone)]
pub struct Registry {
    root: PathBuf,
}

impl Registry {
    /// The registry in `root`, which need not exist yet.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Where the teacher of a dataset lies.
    pub fn folder(&self, dataset: &str, model: &str) -> PathBuf {
        self.root.join(dataset).join(model)
    }

    /// The teacher of a dataset.
    ///
    /// # Errors
    /// [`RegistryError::NoTeacher`] with `training_command` if there is none; else whatever is wrong with it.
    pub fn find(&self, dataset: &str, model: &str, training_command: &str) -> Result<RegisteredTeacher, RegistryError> {
        let folder = self.folder(dataset, model);
        if !folder.join(CONFIG).exists() {
            let (dataset, model) = (dataset.to_owned(), model.to_owned());
            return Err(RegistryError::NoTeacher { dataset, model, folder, command: training_command.to_owned() });
        }
        load(&folder.join(WEIGHTS))
    }

    /// All registered teachers as (dataset, model), in order of name.
    pub fn list(&self) -> Result<Vec<(String, String)>, RegistryError> {
        let mut found = Vec::new();
        for dataset in folders(&self.root)? {
            for model in folders(&self.root.join(&dataset))? {
                if self.folder(&dataset, &model).join(CONFIG).exists() {
                    found.push((dataset.clone(), model));
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// The text of a teacher's card.
    pub fn card(&self, dataset: &str, model: &str) -> Result<String, RegistryError> {
        let path = self.folder(dataset, model).join(CARD);
        fs::read_to_string(&path).map_err(|source| RegistryError::File { path, action: "read", source })
    }

    /// Makes the trained model in `checkpoint` the teacher of its dataset, in place of the one before.
    ///
    /// Returns its folder.
    pub fn register(&self, checkpoint: &Path, facts: &CardFacts) -> Result<PathBuf, RegistryError> {
        let (tensors, description): (StateDict, ModelDescription) = checkpoint::read(checkpoint)?;
        let weights = Weights::from_tensors(tensors)?;
        let config = TeacherConfig::new(&description, &weights);
        let folder = self.folder(&description.dataset.name, &config.model);
        let text = serde_json::to_vec_pretty(&config).map_err(std::io::Error::other);
        let write = |partial: &Path| {
            fs::copy(checkpoint, partial.join(WEIGHTS))?;
            files::write_atomically(&partial.join(CONFIG), &text?)?;
            files::write_atomically(&partial.join(CARD), card::render(&description, &weights, facts).as_bytes())
        };
        replace_folder(&folder, write).map_err(|source| RegistryError::File {
            path: folder.clone(),
            action: "register the teacher in",
            source,
        })?;
        Ok(folder)
    }
}

/// A model by the path of its weights: a registered teacher or weights of PyTorch, with `config.json` beside them, or
/// the `best.safetensors` of a run, which describes itself.
pub fn load(path: &Path) -> Result<RegisteredTeacher, RegistryError> {
    let config = match read_config(path) {
        Ok(config) => config,
        Err(error @ (RegistryError::NoConfig { .. } | RegistryError::Config { .. })) => {
            return load_checkpoint(path).ok_or(error)?;
        }
        Err(error) => return Err(error),
    };
    let mut architecture = config.architecture.clone();
    if let Some(fields) = architecture.as_object_mut() {
        // A configuration written by hand names the widths; what can be counted need not be repeated.
        fields.entry("vocabulary_size").or_insert(json!(config.vocabulary.len()));
        fields.entry("dropout").or_insert(json!(0.0));
    }
    let architecture = Architecture::from_json(&config.model, &architecture)?;
    let weights = Weights::from_tensors(weights::read(path)?)?.with_source(path);
    if let Some(expected) = &config.weights_digest
        && expected != weights.digest()
    {
        let (path, found) = (path.to_owned(), weights.digest().to_owned());
        return Err(RegistryError::Digest { path, found, expected: expected.clone() });
    }
    Ok(RegisteredTeacher { path: path.to_owned(), config, architecture, weights })
}

/// `None` if the file is no checkpoint of kdgat.
fn load_checkpoint(path: &Path) -> Option<Result<RegisteredTeacher, RegistryError>> {
    if !checkpoint::is_checkpoint(path) {
        return None;
    }
    let load = || {
        let (tensors, description): (StateDict, ModelDescription) = checkpoint::read(path)?;
        let weights = Weights::from_tensors(tensors)?.with_source(path);
        let architecture = description.architecture.clone();
        let config = TeacherConfig::new(&description, &weights);
        Ok(RegisteredTeacher { path: path.to_owned(), config, architecture, weights })
    };
    Some(load())
}

impl TeacherConfig {
    fn new(description: &ModelDescription, weights: &Weights) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            model: description.architecture.model_name().to_owned(),
            architecture: description.architecture.to_json(),
            vocabulary: description.vocabulary.clone(),
            weights_digest: Some(weights.digest().to_owned()),
            dataset: Some(description.dataset.clone()),
            metrics: json!({ "epoch": description.epoch, "val_loss": description.val_loss, "size": description.size }),
            created_by_version: Some(description.created_by_version.clone()),
        }
    }
}

fn read_config(weights: &Path) -> Result<TeacherConfig, RegistryError> {
    if !weights.exists() {
        return Err(RegistryError::NoWeights { path: weights.to_owned() });
    }
    let path = weights.with_file_name(CONFIG);
    let text = fs::read_to_string(&path).map_err(|source| RegistryError::NoConfig {
        path: path.clone(),
        weights: weights.to_owned(),
        source,
    })?;
    let unreadable = |reason: String| RegistryError::Config { path: path.clone(), reason };
    let json: Value = serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
    match json["format_version"].as_u64() {
        Some(version) if version == u64::from(FORMAT_VERSION) => {}
        found => return Err(unreadable(format!("format_version is {found:?}, this program reads {FORMAT_VERSION}"))),
    }
    serde_json::from_value(json).map_err(|error| unreadable(error.to_string()))
}

/// Puts a folder that `write` fills in the place of `target`, as a whole.
fn replace_folder(target: &Path, write: impl FnOnce(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    let parent = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent)?;
    let partial = tempfile::Builder::new().prefix(".partial-").tempdir_in(parent)?;
    write(partial.path())?;
    let old = parent.join(format!(".old-{}", std::process::id()));
    if target.exists() {
        fs::rename(target, &old)?;
    }
    fs::rename(partial.path(), target)?;
    files::sync_parent(target)?;
    if old.exists() {
        fs::remove_dir_all(&old)?;
    }
    Ok(())
}

fn folders(parent: &Path) -> Result<Vec<String>, RegistryError> {
    let error = |source| RegistryError::File { path: parent.to_owned(), action: "list", source };
    if !parent.exists() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(parent).map_err(error)? {
        let entry = entry.map_err(error)?;
        if let (true, Ok(name)) = (entry.path().is_dir(), entry.file_name().into_string())
            && !name.starts_with('.')
        {
            names.push(name);
        }
    }
    Ok(names)
}
