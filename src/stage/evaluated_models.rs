//! The models that `kdgat evaluate` scores on CAN windows, and the stores that they read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{StageError, setup};
use crate::config::{Config, FeatureChoice};
use crate::evaluate::{TrainedModel, models};
use crate::graph::{FeatureSet, Store};

/// The stores of one dataset that models of different features read. All cut it into the same windows and number those of test logs alike:
/// synthetic logs, of which one store may have more than another, come after them.
pub struct ModelStores<'a> {
    config: &'a Config,
    first: Arc<Store>,
    /// All of them, the first one included.
    opened: Vec<(Content, Arc<Store>)>,
}

/// The settings in which the stores differ.
#[derive(Clone, Copy, PartialEq)]
struct Content {
    features: FeatureChoice,
    synthetic_attacks: bool,
}

impl Content {
    /// The content that a model reads: as configured if those are its features, or if it is a model of other data, which is refused later;
    /// else like that of its training.
    fn read_by(model: &TrainedModel, config: &Config) -> Self {
        match setup::feature_choice(features_of(model)) {
            Some(features) if features != config.data.features => {
                Self { features, synthetic_attacks: model.synthetic_attacks }
            }
            _ => Self::configured(config),
        }
    }

    fn configured(config: &Config) -> Self {
        Self { features: config.data.features, synthetic_attacks: config.data.synthetic_attacks }
    }

    fn open(self, config: &Config) -> Result<Arc<Store>, StageError> {
        let mut config = config.clone();
        config.data.features = self.features;
        config.data.synthetic_attacks = self.synthetic_attacks;
        setup::open_store(&config)
    }
}

impl<'a> ModelStores<'a> {
    /// Opens the configured store, or that of the first model if no model reads the configured features.
    fn open(config: &'a Config, models: &[TrainedModel]) -> Result<Self, StageError> {
        let configured = Content::configured(config);
        let read: Vec<Content> = models.iter().map(|model| Content::read_by(model, config)).collect();
        let content = if read.contains(&configured) { configured } else { *read.first().unwrap_or(&configured) };
        let first = content.open(config)?;
        Ok(Self { config, opened: vec![(content, Arc::clone(&first))], first })
    }

    /// The store that was opened first.
    pub fn first(&self) -> &Arc<Store> {
        &self.first
    }

    /// The store with a model's features; opened, and built, if no other model has read it. With other features than are configured, it has
    /// synthetic attacks if the model was trained with them.
    pub fn of(&mut self, model: &TrainedModel) -> Result<Arc<Store>, StageError> {
        let content = Content::read_by(model, self.config);
        if let Some((_, store)) = self.opened.iter().find(|(opened, _)| *opened == content) {
            return Ok(Arc::clone(store));
        }
        let store = content.open(self.config)?;
        self.opened.push((content, Arc::clone(&store)));
        Ok(store)
    }

    /// An opened store with the profile of the car.
    pub fn with_profile(&self) -> Option<&Arc<Store>> {
        self.opened.iter().map(|(_, store)| store).find(|store| store.features().needs_history())
    }
}

fn features_of(model: &TrainedModel) -> FeatureSet {
    model.description.architecture.input().features()
}

/// The models to evaluate, and their stores: the named runs, or all of the dataset.
///
/// # Errors
/// No model, a model that cannot be read, a named one that was trained on windows of another length, or a store that cannot be opened.
pub fn find<'a>(config: &'a Config, named: &[PathBuf]) -> Result<(Vec<TrainedModel>, ModelStores<'a>), StageError> {
    let models = if named.is_empty() { all_that_fit(config)? } else { read_each_once(named)? };
    models.iter().try_for_each(|model| expect_window(config, model))?;
    let stores = ModelStores::open(config, &models)?;
    Ok((models, stores))
}

/// The models of the dataset that were trained on windows of the configured length; says which others there are.
fn all_that_fit(config: &Config) -> Result<Vec<TrainedModel>, StageError> {
    let (runs_dir, dataset) = (&config.output.runs_dir, setup::recorded_dataset(config)?.name);
    let models = models::all_of_dataset(runs_dir, &config.distillation.teachers_dir, &dataset)?;
    let (models, others): (Vec<_>, Vec<_>) = models.into_iter().partition(|model| fits_window(config, model));
    for other in &others {
        let window = other.description.window;
        eprintln!("left out: {} was trained on windows of {window} frames; --window {window} evaluates it", other.name);
    }
    if models.is_empty() {
        return Err(StageError::Input(format!(
            "no finished run of dataset {dataset} below {}; train one with `kdgat autoencoder --preset vgae,student`, \
             or name a run's folder",
            runs_dir.display()
        )));
    }
    Ok(models)
}

/// Reads the models at these paths, each only once: a run's folder and its weight file are the same model.
pub fn read_each_once(runs: &[PathBuf]) -> Result<Vec<TrainedModel>, StageError> {
    let mut seen = Vec::new();
    let mut models = Vec::new();
    for run in runs {
        let model = TrainedModel::read(run)?;
        let file = model.path.canonicalize().unwrap_or_else(|_| model.path.clone());
        if seen.contains(&file) {
            eprintln!("{}: {} is already in the list; it is evaluated once", run.display(), model.name);
            continue;
        }
        seen.push(file);
        models.push(model);
    }
    name_apart(&mut models);
    Ok(models)
}

/// Gives models with the same name, such as runs 1 of two datasets, the ends of their paths in which they differ as names.
fn name_apart(models: &mut [TrainedModel]) {
    let names: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
    let folder = |model: &TrainedModel| model.folder.canonicalize().unwrap_or_else(|_| model.folder.clone());
    let folders: Vec<PathBuf> = models.iter().map(folder).collect();
    for (model, name) in names.iter().enumerate() {
        let alike: Vec<&Path> =
            (0..names.len()).filter(|&other| names[other] == *name).map(|other| folders[other].as_path()).collect();
        if alike.len() > 1 {
            models[model].name = telling_end(&folders[model], &alike);
        }
    }
}

/// The shortest end of a path, of at least two parts, that no other of `paths` has.
fn telling_end(path: &Path, paths: &[&Path]) -> String {
    fn end(path: &Path, parts: usize) -> Vec<&std::ffi::OsStr> {
        path.iter().rev().take(parts).collect()
    }
    let is_telling = |parts: &usize| paths.iter().filter(|other| end(other, *parts) == end(path, *parts)).count() == 1;
    let parts = (2..=path.iter().count()).find(is_telling).unwrap_or(2);
    end(path, parts).into_iter().rev().collect::<PathBuf>().display().to_string()
}

fn fits_window(config: &Config, model: &TrainedModel) -> bool {
    // 0: a model trained elsewhere may not record its window.
    [0, config.data.window].contains(&model.description.window)
}

/// Refuses a model of windows of another length than the store's.
fn expect_window(config: &Config, model: &TrainedModel) -> Result<(), StageError> {
    if fits_window(config, model) {
        return Ok(());
    }
    let (window, found) = (config.data.window, model.description.window);
    Err(StageError::Input(format!(
        "{} was trained on windows of {found} frames, but the store has windows of {window}; use --window {found}",
        model.name
    )))
}

/// Refuses a model whose features or window length differ from the store's.
pub fn expect_fit(config: &Config, model: &TrainedModel) -> Result<(), StageError> {
    let (features, found) = (setup::feature_set(config), features_of(model));
    if found != features {
        return Err(StageError::Input(format!(
            "{} reads {found} features, but the store has {features} features; use --features {found}, or name a run that reads \
             {features} features",
            model.name
        )));
    }
    expect_window(config, model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_one_name_are_told_apart_by_their_paths() {
        let paths = ["/w/runs/golf/gat_student_normal/1", "/w/runs/polo/gat_student_normal/1", "/v/runs/polo/gat/1"];
        let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
        let names: Vec<String> = paths.iter().map(|path| telling_end(path, &paths)).collect();
        assert_eq!(names, ["golf/gat_student_normal/1", "polo/gat_student_normal/1", "gat/1"]);
        assert_eq!(telling_end(Path::new("/a/run"), &[Path::new("/a/run")]), "a/run");
    }
}
