//! The dataset that a run was trained on: the default for commands that work on runs, and the basis of warnings about other data.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::StageError;
use crate::can::catalogue::{self, SIMULATED};
use crate::distill::frozen;
use crate::evaluate::TrainedModel;
use crate::graph::{Store, dataset};
use crate::nodes::sources::is_node_dataset;
use crate::shell;

/// A run and its training data.
#[derive(Debug, Clone, PartialEq)]
pub struct RunData {
    run: PathBuf,
    /// The run's frozen configuration, if it has one.
    config: Option<PathBuf>,
    source: Source,
}

/// The origin of a run's training data.
#[derive(Debug, Clone, PartialEq)]
enum Source {
    Simulated,
    /// A folder, or the name of a known dataset.
    Named(PathBuf),
    /// Not recorded in the configuration next to the weights.
    Unrecorded,
    /// The dataset's name, saved with the weights; its folder is not recorded.
    Called(String),
}

impl RunData {
    /// Reads the data of runs, weight files and registered teachers. Skips paths without a model: reading the model reports the error.
    pub fn of_all(runs: &[PathBuf]) -> Vec<Self> {
        runs.iter().filter_map(|run| Self::of(run)).collect()
    }

    fn of(run: &Path) -> Option<Self> {
        let file = frozen::weight_file(run).ok()?;
        let path = file.parent().unwrap_or(Path::new("")).join("config.json");
        let found: Value = serde_json::from_slice(&fs::read(&path).unwrap_or_default()).unwrap_or(Value::Null);
        let (frozen, of_teacher) = (found["config"]["data"].get("data"), found["metrics"].get("data"));
        let source = match frozen.or(of_teacher) {
            Some(Value::String(data)) => Source::Named(data.into()),
            Some(Value::Null) => Source::Simulated,
            _ => Source::Unrecorded,
        };
        let config = frozen.is_some().then_some(path);
        Some(Self { run: run.to_owned(), config, source })
    }

    /// Replaces an unrecorded source by the name of the dataset that is saved with the weights.
    fn resolved(&self) -> Result<Self, StageError> {
        let source = match &self.source {
            Source::Unrecorded => match TrainedModel::read(&self.run)?.description.dataset.name {
                name if name == SIMULATED => Source::Simulated,
                name => Source::Called(name),
            },
            source => source.clone(),
        };
        Ok(Self { source, ..self.clone() })
    }

    /// The frozen configuration of the first run that has one.
    pub fn config_of(all: &[Self]) -> Option<PathBuf> {
        all.iter().find_map(|one| one.config.clone())
    }

    /// The dataset that all runs were trained on, as a value for `--data`; none: the simulated dataset.
    ///
    /// # Errors
    /// If they were trained on several datasets, or the dataset's folder is not recorded or missing.
    pub fn common(all: &[Self]) -> Result<Option<PathBuf>, StageError> {
        let all = all.iter().map(Self::resolved).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = all.first() else { return Ok(None) };
        if let Some(other) = all.iter().find(|other| !other.is_of(&first.source)) {
            return Err(StageError::Input(format!(
                "{} was trained on {}, but {} on {}; name the dataset with --data",
                first.run.display(),
                first.text(),
                other.run.display(),
                other.text()
            )));
        }
        let data = match &first.source {
            Source::Simulated | Source::Unrecorded => return Ok(None),
            Source::Named(data) => data.clone(),
            Source::Called(name) => PathBuf::from(name),
        };
        if dataset::is_dataset(&data) || is_node_dataset(&data) {
            return Ok(Some(data));
        }
        match catalogue::open(&data, catalogue::data_folder().as_deref()) {
            Ok(_) => Ok(Some(data)),
            Err(error) => Err(StageError::Input(format!(
                "{} was trained on {}: {error}; name the dataset's folder with --data",
                first.run.display(),
                first.text()
            ))),
        }
    }

    fn is_of(&self, other: &Source) -> bool {
        let folder = |source: &Source| match source {
            Source::Simulated | Source::Unrecorded => None,
            Source::Named(data) => Some(data.canonicalize().unwrap_or_else(|_| data.clone())),
            Source::Called(name) => Some(PathBuf::from(name)),
        };
        folder(&self.source) == folder(other)
    }

    fn text(&self) -> String {
        match &self.source {
            Source::Simulated => format!("the simulated dataset '{SIMULATED}'"),
            Source::Named(data) => shell::quoted_path(data),
            Source::Called(name) => format!("dataset '{name}', whose folder it does not record"),
            Source::Unrecorded => "data that it does not record".to_owned(),
        }
    }
}

/// Warns if a store is not of the dataset that a model was trained on, or has other logs under the same name.
pub fn warn_of_other(model: &TrainedModel, store: &Store) {
    let (own, manifest) = (&model.description.dataset, store.manifest());
    let (name, dataset) = (&model.name, &manifest.dataset);
    if own.name.is_empty() {
        // Trained elsewhere, without a record of its data.
        return;
    }
    if own.name != *dataset {
        tracing::warn!("{name} was trained on dataset '{}' and is used on '{dataset}' here", own.name);
        return;
    }
    let options = &manifest.options;
    let has_synthetic = manifest.files.iter().any(|file| file.synthetic.is_some());
    let is_cut_alike = model.split.is_some_and(|split| {
        (split.window, split.stride) == (options.window, options.stride)
            && (split.validation_fraction, split.validation) == (options.validation_fraction, options.validation)
            && model.synthetic_attacks == has_synthetic
    });
    if is_cut_alike && !own.digest.is_empty() && own.digest != store.digest() {
        tracing::warn!("{name} was trained on dataset '{dataset}' before its logs changed");
    }
}
