//! Errors of evaluation and detection.

use std::path::PathBuf;

use kdgat_base::files;
use kdgat_can::CanError;
use kdgat_distill::RegistryError;
use kdgat_distill::frozen::NoModel;
use kdgat_graph::StoreError;
use kdgat_nn::ModelError;
use kdgat_train::checkpoint::CheckpointError;

/// An error of module `evaluate` or `detect`.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// Traffic could not be read.
    #[error(transparent)]
    Can(#[from] CanError),
    /// A graph store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The model or libtorch failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A weight file could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The registry of teachers could not be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] files::FileError),
    /// A file of a run has invalid content.
    #[error("{path}: {reason}", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Description of what is wrong with its content.
        reason: String,
    },
    /// The request cannot be met with this model or data.
    #[error("{0}")]
    Input(String),
}

impl EvaluateError {
    /// True if the user's input is at fault (exit code 2) rather than the machine or the program (exit code 1).
    pub fn is_input(&self) -> bool {
        match self {
            Self::Store(error) => error.is_input(),
            Self::Checkpoint(error) => error.is_input(),
            Self::File(error) => error.is_input(),
            Self::Model(ModelError::Torch(_)) => false,
            _ => true,
        }
    }
}

impl From<tch::TchError> for EvaluateError {
    fn from(error: tch::TchError) -> Self {
        Self::Model(error.into())
    }
}

impl From<NoModel> for EvaluateError {
    fn from(error: NoModel) -> Self {
        Self::Input(error.to_string())
    }
}
