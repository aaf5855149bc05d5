//! A trained model on disk: a registered teacher, weights of another program, or a run's best model.

use std::path::{Path, PathBuf};

use kdgat_graph::Vocabulary;
use kdgat_nn::weights::StateDict;
use kdgat_nn::{Architecture, ModelDescription};
use kdgat_train::checkpoint;

use super::{TEACHER_WEIGHTS, weight_file};
use crate::Weights;
use crate::registry::{Registered, RegistryError};

/// A model on disk, with all that is needed to build it.
#[derive(Debug)]
pub struct LoadedModel {
    /// The weight file.
    pub path: PathBuf,
    /// The architecture.
    pub architecture: Architecture,
    /// The CAN IDs that the model knows.
    pub vocabulary: Vocabulary,
    /// The weights, in the system's cache of files until they are packed.
    pub weights: Weights,
}

impl LoadedModel {
    /// Opens a model by the path of its weights, or of the folder that has them. The weights are those of a registered teacher or
    /// of PyTorch, with `config.json` beside them, or the `best.safetensors` of a run, which contains its own description.
    ///
    /// # Errors
    /// Fails if there is no model, its weights are damaged, or they do not match its `config.json`.
    pub fn open(path: &Path) -> Result<Self, RegistryError> {
        // If there is no file, the registry reports what it expected.
        let Ok(file) = weight_file(path) else { return Self::registered(&Registered::open(path)?) };
        let is_teachers_folder = path.is_dir() && file.ends_with(TEACHER_WEIGHTS);
        if is_teachers_folder || !checkpoint::is_checkpoint(&file) {
            return Self::registered(&Registered::open(&file)?);
        }
        let (tensors, description): (StateDict, ModelDescription) = checkpoint::map(&file)?;
        let weights = Weights::from_tensors(tensors)?.with_source(&file);
        let ModelDescription { architecture, vocabulary, .. } = description;
        super::check_architecture(&architecture, vocabulary.ids().len())
            .map_err(|error| RegistryError::InvalidConfig { path: file.clone(), reason: error.to_string() })?;
        Ok(Self { path: file, architecture, vocabulary, weights })
    }

    /// Loads a registered teacher.
    pub fn registered(teacher: &Registered) -> Result<Self, RegistryError> {
        Ok(Self {
            path: teacher.weights_path.clone(),
            architecture: super::registered_architecture(teacher)?,
            vocabulary: Vocabulary::from_ids(teacher.config.vocabulary.iter().copied()),
            weights: teacher.mapped()?,
        })
    }
}
