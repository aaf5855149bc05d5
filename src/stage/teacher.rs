//! From the configuration to a teacher at work: found or given, started on its thread, registered after training.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tch::Device;

use super::{Outcome, StageError};
use crate::config::{Config, Residency as ResidencyChoice};
use crate::distill::frozen::{self, TeacherVocabulary};
use crate::distill::registry::{self, CardFacts, Registry};
use crate::distill::{Residency, Teacher, TeacherOptions, Weights};
use crate::graph::{Store, Vocabulary};
use crate::nn::attention::AttentionKernel;
use crate::nn::{Architecture, DatasetIdentity};

/// A teacher that is not at work yet.
#[derive(Debug)]
pub struct FoundTeacher {
    pub architecture: Architecture,
    pub weights: Weights,
    pub vocabulary: TeacherVocabulary,
}

/// The teacher that is configured: by path, or the one registered for the dataset.
pub fn find(
    config: &Config,
    dataset: &DatasetIdentity,
    model: &str,
    student: &Vocabulary,
) -> Result<FoundTeacher, StageError> {
    let found = match &config.distillation.teacher_path {
        Some(path) => registry::load(path)?,
        None => {
            let data = config.data.data.as_ref().map(|path| format!(" --data {}", path.display())).unwrap_or_default();
            let stage = if model == "vgae" { "autoencoder" } else { "normal" };
            let command = format!("kdgat {stage} --preset {model},teacher{data}");
            Registry::new(&config.distillation.teachers_dir).find(&dataset.name, model, &command)?
        }
    };
    let vocabulary = TeacherVocabulary::new(found.config.vocabulary, student);
    Ok(FoundTeacher { architecture: found.architecture, weights: found.weights, vocabulary })
}

/// Starts the teacher's thread.
pub fn start(
    config: &Config,
    found: FoundTeacher,
    _store: &Arc<Store>,
    kernel: AttentionKernel,
    device: Device,
) -> Result<Teacher, StageError> {
    let model = frozen::model(found.architecture, found.vocabulary, kernel);
    let mut options = TeacherOptions::new(device);
    options.residency = match config.distillation.residency() {
        ResidencyChoice::Resident => Residency::Resident,
        ResidencyChoice::Forward => Residency::Forward,
        ResidencyChoice::Layer => Residency::Layer,
        ResidencyChoice::Auto => Residency::Auto,
    };
    options.layer_slots = config.distillation.teacher_layer_slots;
    Ok(Teacher::start(model, found.weights, options)?)
}

/// Makes the model that a run has trained the teacher of its dataset. Returns its folder.
pub fn register(config: &Config, best: &Path, outcome: &Outcome) -> Result<PathBuf, StageError> {
    let data = match &config.data.data {
        Some(path) => format!(" --data {}", path.display()),
        None => String::new(),
    };
    let stage = if config.model.model.as_str() == "vgae" { "autoencoder" } else { "normal" };
    let metrics = outcome.best.as_ref().and_then(|best| best["parts"].as_object());
    let number = |(name, value): (&String, &serde_json::Value)| Some((name.clone(), value.as_f64()?));
    let facts = CardFacts {
        command: format!("kdgat {stage} --preset {},{}{data}", config.model.model.as_str(), config.model.size),
        epochs: outcome.epochs,
        num_parameters: outcome.num_parameters,
        seed: config.training.seed,
        metrics: metrics.into_iter().flatten().filter_map(number).collect(),
    };
    Ok(Registry::new(&config.distillation.teachers_dir).register(best, &facts)?)
}
