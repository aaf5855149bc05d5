//! Registered teachers: `teachers/<dataset>/<model>/{weights.safetensors, config.json, card.md}`.
//!
//! A teacher is registered completely or not at all, is found by dataset and model, and is used only if its weights match the digest
//! in its `config.json`. Weights of other programs (PyTorch, Lightning) are read from any path, with a `config.json` beside them.

mod card;
mod config;
mod place;

use std::fs::File;
use std::path::{Path, PathBuf};

use kdgat_base::files;
use kdgat_base::nearest;
use kdgat_base::shell;

use crate::weights::{Weights, WeightsError};

pub use config::{FORMAT_VERSION, TeacherConfig, TrainedOn};

/// The dataset of the shipped teachers: the simulated one, which needs no path.
const SHIPPED_DATASET: &str = "sim";
const WEIGHTS: &str = "weights.safetensors";
const CONFIG: &str = "config.json";
const CARD: &str = "card.md";

/// The folder of registered teachers.
#[derive(Debug, Clone)]
pub struct Registry {
    root: PathBuf,
}

/// A teacher on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Registered {
    /// Its weights.
    pub weights_path: PathBuf,
    /// Its `config.json`.
    pub config: TeacherConfig,
}

/// An entry of [`Registry::list`]. A broken teacher is listed with its error.
#[derive(Debug)]
pub struct Listed {
    /// The dataset's folder.
    pub dataset: String,
    /// The model's folder.
    pub model: String,
    /// The teacher, or the reason why it cannot be used.
    pub teacher: Result<Registered, RegistryError>,
}

impl Registry {
    /// Opens the registry in `root`, which need not exist yet.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// Finds the teacher of that dataset and model.
    pub fn find(&self, dataset: &str, model: &str) -> Result<Registered, RegistryError> {
        let folder = self.folder(dataset, model)?;
        let open = || match place::find(&folder)? {
            Some(folder) => Registered::open(&folder),
            None => Err(self.no_teacher(dataset, model)),
        };
        // It may be replaced between two checks: then it is complete once the replacing process is done.
        open().or_else(|_| place::wait(&self.root.join(dataset)).map(drop).and_then(|()| open()))
    }

    /// Lists all teachers, by dataset and model.
    pub fn list(&self) -> Result<Vec<Listed>, RegistryError> {
        let mut listed = Vec::new();
        for dataset in folders(&self.root)? {
            for model in folders(&self.root.join(&dataset))? {
                let teacher = self.find(&dataset, &model);
                listed.push(Listed { dataset: dataset.clone(), model, teacher });
            }
        }
        Ok(listed)
    }

    /// Registers a teacher under the dataset and model in its `config`, and fills in the digest.
    ///
    /// The same weights may be registered again; other weights need `replace`.
    pub fn register(
        &self,
        config: &TeacherConfig,
        weights: &Weights,
        replace: bool,
    ) -> Result<Registered, RegistryError> {
        let (dataset, model) = (&config.dataset.name, &config.model);
        let folder = self.folder(dataset, model)?;
        let parent = self.root.join(dataset);
        let _lock = place::lock(&parent)?;
        place::bring_back(&folder)?;
        if folder.exists() && !replace {
            return match Registered::open(&folder) {
                Ok(found)
                    if found.config.weights_digest == weights.digest()
                        && found.config.foreign_ids == config.foreign_ids =>
                {
                    Ok(found)
                }
                _ => Err(RegistryError::AlreadyRegistered { dataset: dataset.clone(), model: model.clone(), folder }),
            };
        }
        let config = TeacherConfig { weights_digest: weights.digest().to_string(), ..config.clone() };
        // Removed on drop unless it was renamed.
        let partial = place::partial(&folder)?;
        write_folder(partial.path(), &config, weights)?;
        place::put(partial.path(), &folder)?;
        Registered::open(&folder)
    }

    /// Checks that a teacher of this dataset could be registered, which is better known before its training. Waits while another
    /// process registers one.
    pub fn check_writable(&self, dataset: &str) -> Result<(), RegistryError> {
        let folder = self.root.join(dataset);
        files::expect_writable(&folder).map_err(file_error(&folder, "write to"))?;
        place::lock(&folder).map(drop)
    }

    fn folder(&self, dataset: &str, model: &str) -> Result<PathBuf, RegistryError> {
        for name in [dataset, model] {
            let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
            if !plain {
                return Err(RegistryError::BadName { name: name.to_string() });
            }
        }
        Ok(self.root.join(dataset).join(model))
    }

    fn no_teacher(&self, dataset: &str, model: &str) -> RegistryError {
        let registered = self.list().unwrap_or_default();
        let known: Vec<String> =
            registered.iter().map(|listed| format!("{}/{}", listed.dataset, listed.model)).collect();
        let wanted = format!("{dataset}/{model}");
        let nearest = known
            .iter()
            .max_by(|left, right| strsim::jaro_winkler(left, &wanted).total_cmp(&strsim::jaro_winkler(right, &wanted)));
        let near = nearest.map_or(String::new(), |name| format!(" (the nearest one is {name})"));
        RegistryError::NoTeacher { wanted, root: self.root.clone(), near, command: training_command(dataset, model) }
    }
}

/// The command that trains a teacher of this dataset and of the known model with the nearest name. The simulated dataset needs no
/// path; the path of any other dataset is not known here.
fn training_command(dataset: &str, model: &str) -> String {
    let (stage, model) = match nearest(model, ["vgae", "gat"].into_iter()) {
        "vgae" => ("autoencoder", "vgae"),
        _ => ("curriculum", "gat"),
    };
    let data = match dataset {
        SHIPPED_DATASET => String::new(),
        _ => format!(" --data {}", shell::quoted(&format!("PATH_OF_{}", dataset.to_uppercase()))),
    };
    format!("kdgat {stage} --preset {model},teacher{data}")
}

impl Registered {
    /// Opens a teacher in a folder (`config.json` and `weights.safetensors`), or a weight file with a `config.json` beside it.
    pub fn open(path: &Path) -> Result<Self, RegistryError> {
        let weights_path = if path.is_dir() { path.join(WEIGHTS) } else { path.to_path_buf() };
        if !weights_path.is_file() {
            return Err(RegistryError::NoWeights { path: weights_path });
        }
        let config_path = weights_path.with_file_name(CONFIG);
        if !config_path.is_file() {
            return Err(RegistryError::NoConfig { weights: weights_path, path: config_path });
        }
        Ok(Self { config: TeacherConfig::read(&config_path)?, weights_path })
    }

    /// The error for a `config.json` that no model can be built from.
    pub(crate) fn invalid_config(&self, reason: String) -> RegistryError {
        RegistryError::InvalidConfig { path: self.weights_path.with_file_name(CONFIG), reason }
    }

    /// Loads the weights and checks that they match the digest in `config.json`.
    pub fn load(&self) -> Result<Weights, RegistryError> {
        self.checked(Weights::read(&self.weights_path)?)
    }

    /// Checks the weights like [`Registered::load`] and leaves them in the [system's cache of files](Weights::mapped).
    pub fn mapped(&self) -> Result<Weights, RegistryError> {
        self.checked(Weights::mapped(&self.weights_path)?)
    }

    fn checked(&self, weights: Weights) -> Result<Weights, RegistryError> {
        let expected = &self.config.weights_digest;
        if expected.is_empty() {
            tracing::warn!(
                "{} has no weights_digest: {} is used unchecked (its digest is {})",
                self.weights_path.with_file_name(CONFIG).display(),
                self.weights_path.display(),
                weights.digest()
            );
        } else if expected != weights.digest() {
            return Err(RegistryError::OtherWeights {
                path: self.weights_path.clone(),
                found: weights.digest().to_string(),
                expected: expected.clone(),
            });
        }
        Ok(weights)
    }

    /// Loads the weights and checks that they have the `expected` names and shapes.
    pub fn verify(&self, expected: &[(String, Vec<i64>)]) -> Result<Weights, RegistryError> {
        let weights = self.load()?;
        for (name, shape) in expected {
            let found = weights.get(name).map(tch::Tensor::size);
            if found.as_ref() != Some(shape) {
                return Err(RegistryError::OtherShape {
                    path: self.weights_path.clone(),
                    name: name.clone(),
                    found: found.map_or("missing".to_string(), |found| format!("of shape {found:?}")),
                    expected: shape.clone(),
                });
            }
        }
        Ok(weights)
    }

    /// The teacher's card: `card.md`, or one made from `config.json`.
    pub fn card(&self) -> Result<String, RegistryError> {
        match std::fs::read_to_string(self.weights_path.with_file_name(CARD)) {
            Ok(card) => Ok(card),
            Err(_) => Ok(card::card(&self.config, &self.load()?)),
        }
    }
}

/// Names of the folders in `parent` that are not hidden, ascending.
fn folders(parent: &Path) -> Result<Vec<String>, RegistryError> {
    if !parent.exists() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(parent).map_err(file_error(parent, "list"))? {
        let entry = entry.map_err(file_error(parent, "list"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn write_folder(partial: &Path, config: &TeacherConfig, weights: &Weights) -> Result<(), RegistryError> {
    weights.write_safetensors(&partial.join(WEIGHTS))?;
    let json = serde_json::to_string_pretty(config)
        .map_err(|error| RegistryError::InvalidConfig { path: partial.join(CONFIG), reason: error.to_string() })?;
    for (name, text) in [(CONFIG, json), (CARD, card::card(config, weights))] {
        let path = partial.join(name);
        std::fs::write(&path, text).map_err(file_error(&path, "write"))?;
        sync(&path)?;
    }
    sync(partial)
}

fn sync(path: &Path) -> Result<(), RegistryError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(file_error(path, "sync"))
}

fn file_error(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> RegistryError {
    let path = path.to_path_buf();
    move |source| RegistryError::File { path, action, source }
}

/// An error of finding, reading or registering a teacher.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The architecture cannot be built.
    #[error(transparent)]
    Model(#[from] kdgat_nn::ModelError),
    /// A run's checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] kdgat_train::checkpoint::CheckpointError),
    /// There is no such teacher.
    #[error("no teacher {wanted} in {}{near}; train one with: {command}", root.display())]
    NoTeacher {
        /// `<dataset>/<model>`.
        wanted: String,
        /// The registry's folder.
        root: PathBuf,
        /// The nearest registered teacher, as text in parentheses; empty if there is none.
        near: String,
        /// The command that trains it.
        command: String,
    },
    /// Another teacher is registered under that name.
    #[error(
        "{} holds another teacher for {dataset}/{model}; register with --replace to replace it",
        folder.display()
    )]
    AlreadyRegistered {
        /// The dataset.
        dataset: String,
        /// The model.
        model: String,
        /// The folder of the registered teacher.
        folder: PathBuf,
    },
    /// A name that cannot be a folder's name.
    #[error(
        "'{name}' cannot name a dataset or model; expected a folder's name, without slashes and without a dot at the start"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// The weights are missing.
    #[error("the weights {} do not exist; name a weight file, or a run's or teacher's folder that holds one", path.display())]
    NoWeights {
        /// The expected path.
        path: PathBuf,
    },
    /// There is no `config.json` beside the weights.
    #[error(
        "{} has no description; expected {} with format_version, model, architecture and vocabulary",
        weights.display(),
        path.display()
    )]
    NoConfig {
        /// The weights.
        weights: PathBuf,
        /// The expected path.
        path: PathBuf,
    },
    /// The `config.json` cannot be used.
    #[error("{} cannot be used: {reason}", path.display())]
    InvalidConfig {
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// The weights are not those that were registered.
    #[error(
        "{} holds weights with digest {found}, its config.json was written for {expected}; the file was changed or \
         damaged: register the teacher again",
        path.display()
    )]
    OtherWeights {
        /// The weights.
        path: PathBuf,
        /// Digest of the weights.
        found: String,
        /// Digest in `config.json`.
        expected: String,
    },
    /// A weight does not fit the architecture.
    #[error(
        "{}: '{name}' is {found}, the architecture in config.json needs {expected:?}; weights and config.json belong to \
         different models",
        path.display()
    )]
    OtherShape {
        /// The weights.
        path: PathBuf,
        /// Name of the weight.
        name: String,
        /// Its shape, as text, or `missing`.
        found: String,
        /// The shape in the architecture.
        expected: Vec<i64>,
    },
    /// The weights cannot be read or written.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A file or folder operation failed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The attempted action, a verb.
        action: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}
