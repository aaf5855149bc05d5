//! Digests of the inputs of a sweep's tasks that no task of the sweep makes: logs, registered teachers, weight files.
//!
//! Results belong to an input's content, not to its path: if a log or a registered teacher is replaced, the tasks that depend on it
//! become new tasks. A missing input has no digest; the task that needs it reports the error.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use super::needs::taught_by;
use crate::can::catalogue;
use crate::config::{Config, ModelKind};
use crate::distill::registry::{Registered, Registry};
use crate::graph::dataset;
use crate::stage;
use crate::sweep::plan::{Plan, Task, TaskKind};

/// Adds the digests of their inputs to the digests of all tasks.
///
/// # Errors
/// If a log exists but cannot be read.
pub fn bind(plan: &mut Plan) -> Result<()> {
    let mut contents = Contents::default();
    plan.bind(|task| {
        let mut parts: Vec<String> = contents.of_data(task)?.into_iter().collect();
        parts.extend(contents.of_weights(task));
        Ok((!parts.is_empty()).then(|| parts.join(" ")))
    })
}

/// Like [`bind`], but without the data: for results in a folder that already depends on the data's content, such as a pipeline's.
pub fn bind_weights(plan: &mut Plan) -> Result<()> {
    let mut contents = Contents::default();
    plan.bind(|task| {
        let parts = contents.of_weights(task);
        Ok((!parts.is_empty()).then(|| parts.join(" ")))
    })
}

/// Digests computed so far: tasks share most of their inputs.
#[derive(Default)]
struct Contents {
    /// Names of datasets by path; `None` if there is no dataset.
    names: BTreeMap<PathBuf, Option<String>>,
    /// Digests of datasets, by all settings that determine how they are read (as JSON).
    data: BTreeMap<String, Option<String>>,
    /// Paths of models found for a dataset, by the settings used to find them.
    models: BTreeMap<String, Option<PathBuf>>,
    /// Digests of weights by path.
    weights: BTreeMap<PathBuf, Option<String>>,
}

impl Contents {
    /// The name of the configured dataset, if it exists.
    fn name(&mut self, config: &Config) -> Option<String> {
        let Some(path) = &config.data.data else { return Some(catalogue::SIMULATED.to_owned()) };
        let open = || catalogue::open(path, catalogue::data_folder().as_deref()).ok();
        self.names.entry(path.clone()).or_insert_with(|| Some(open()?.name)).clone()
    }

    /// The digest of the logs or graphs that a task reads.
    fn of_data(&mut self, task: &Task) -> Result<Option<String>> {
        let config = &task.config;
        let key = serde_json::to_string(&(&config.data, task.kind == TaskKind::Train))?;
        if let Some(known) = self.data.get(&key) {
            return Ok(known.clone());
        }
        let digest = match &config.data.data {
            Some(data) if task.kind == TaskKind::Train => {
                dataset::is_dataset(data).then(|| stage::graph_source(config).digest()).transpose()?
            }
            _ if self.name(config).is_some() => stage::data_digest(config)?,
            _ => None,
        };
        self.data.insert(key, digest.clone());
        Ok(digest)
    }

    /// Digests of all weights that a task reads and no other task makes, each with its purpose (`purpose=digest`).
    fn of_weights(&mut self, task: &Task) -> Vec<String> {
        let mut found = Vec::new();
        for (what, path) in self.paths_of_weights(task) {
            let digest = self.weights.entry(path).or_insert_with_key(|path| digest_of(path));
            found.extend(digest.as_ref().map(|digest| format!("{what}={digest}")));
        }
        found
    }

    fn paths_of_weights(&mut self, task: &Task) -> Vec<(&'static str, PathBuf)> {
        let config = &task.config;
        let is_made = |field: &str| task.inputs.iter().any(|input| input.field == field);
        let given = [
            ("teacher_path", &config.distillation.teacher_path),
            ("difficulty_model", &config.curriculum.difficulty_model),
            ("targets_file", &config.distillation.targets_file),
            (FUSED[0].0, &config.fusion.fusion_vgae),
            (FUSED[1].0, &config.fusion.fusion_gat),
        ];
        let given = given.into_iter().filter(|(field, _)| !is_made(field));
        let mut paths: Vec<(&str, PathBuf)> = given.filter_map(|(field, path)| Some((field, path.clone()?))).collect();
        let further = config.distillation.more_teachers.iter().flat_map(|teachers| &teachers.0);
        paths.extend(further.map(|path| ("more_teachers", path.clone())));
        let Some(dataset) = self.name(config) else { return paths };
        let registry = &config.distillation.teachers_dir;
        for model in taught_by(task) {
            // A missing teacher may be registered before it is needed.
            let find = || Some(Registry::new(registry).find(&dataset, model.as_str()).ok()?.weights_path);
            let key = format!("{registry:?} {dataset} {model}");
            paths.extend(self.models.entry(key).or_insert_with(find).clone().map(|path| (model.as_str(), path)));
        }
        if task.kind == TaskKind::Fusion {
            let open =
                FUSED.iter().filter(|(field, _)| !is_made(field) && paths.iter().all(|(known, _)| known != field));
            let mut found = Vec::new();
            for (field, model) in open {
                let find = || stage::model_of_dataset(config, &dataset, *model).ok();
                let key = format!("{registry:?} {dataset} {model} {} {:?}", config.model.size, config.output.runs_dir);
                found.extend(self.models.entry(key).or_insert_with(find).clone().map(|path| (*field, path)));
            }
            paths.extend(found);
        }
        paths
    }
}

/// The fields that name the models to fuse, with the kind of each.
const FUSED: [(&str, ModelKind); 2] = [("fusion_vgae", ModelKind::Vgae), ("fusion_gat", ModelKind::Gat)];

/// The digest of weights and of the description next to them; `None` if they cannot be read. For a teacher, this uses the digest in
/// its `config.json`: weights with another digest are refused when they are loaded.
fn digest_of(path: &Path) -> Option<String> {
    if let Ok(Registered { config, .. }) = Registered::open(path)
        && !config.weights_digest.is_empty()
    {
        let said = json!([config.weights_digest, config.architecture_text(), config.vocabulary, config.foreign_ids]);
        return Some(blake3::hash(said.to_string().as_bytes()).to_hex().to_string());
    }
    let mut hasher = blake3::Hasher::new();
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        // The cache of a teacher in Python.
        let entries = std::fs::read_dir(path).ok()?.collect::<Result<Vec<_>, _>>().ok()?;
        files = entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        files.sort();
    }
    for file in files {
        hasher.update_reader(File::open(file).ok()?).ok()?;
    }
    Some(hasher.finalize().to_hex().to_string())
}
