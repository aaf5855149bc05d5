//! A model on disk that will not be trained again: a registered teacher, weights of another program, or a run's best.

use std::path::{Path, PathBuf};

use kdgat_graph::Vocabulary;
use kdgat_nn::weights::StateDict;
use kdgat_nn::{Architecture, ModelDescription};
use kdgat_train::checkpoint;

use super::{TEACHER_WEIGHTS, weight_file};
use crate::Weights;
use crate::registry::{Registered, RegistryError};

/// Everything that is needed to build it.
#[derive(Debug)]
pub struct LoadedModel {
    /// The weight file.
    pub path: PathBuf,
    pub architecture: Architecture,
    /// The IDs that it knows.
    pub vocabulary: Vocabulary,
    pub weights: Weights,
}

impl LoadedModel {
    /// A model by the path of its weights: a registered teacher or weights of PyTorch, with `config.json` beside them, or
    /// the `best.safetensors` of a run, which describes itself; or by the folder that holds either.
    ///
    /// # Errors
    /// If there is no model, its weights are damaged, or they are not those that its `config.json` was written for.
    pub fn open(path: &Path) -> Result<Self, RegistryError> {
        // Where there is none, the registry says what it looked for.
        let Ok(file) = weight_file(path) else { return Self::registered(&Registered::open(path)?) };
        let is_teachers_folder = path.is_dir() && file.ends_with(TEACHER_WEIGHTS);
        if is_teachers_folder || !checkpoint::is_checkpoint(&file) {
            return Self::registered(&Registered::open(&file)?);
        }
        let (tensors, description): (StateDict, ModelDescription) = checkpoint::read(&file)?;
        let weights = Weights::from_tensors(tensors)?.with_source(&file);
        let ModelDescription { architecture, vocabulary, .. } = description;
        super::check_architecture(&architecture, vocabulary.ids().len())
            .map_err(|error| RegistryError::InvalidConfig { path: file.clone(), reason: error.to_string() })?;
        Ok(Self { path: file, architecture, vocabulary, weights })
    }

    /// A registered teacher.
    pub fn registered(teacher: &Registered) -> Result<Self, RegistryError> {
        Ok(Self {
            path: teacher.weights_path.clone(),
            architecture: super::registered_architecture(teacher)?,
            vocabulary: Vocabulary::from_ids(teacher.config.vocabulary.iter().copied()),
            weights: teacher.load()?,
        })
    }
}
