//! What can be wrong with a teacher on disk.

use std::io;
use std::path::PathBuf;

use crate::distill::weights::WeightsError;
use crate::nn::ModelError;
use crate::train::checkpoint::CheckpointError;

/// An error of the registry.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The dataset has no teacher of this model.
    #[error(
        "the dataset '{dataset}' has no {model} teacher (looked in {folder}); train one with\n    {command}\n\
         or name one with --teacher-path", folder = folder.display()
    )]
    NoTeacher { dataset: String, model: String, folder: PathBuf, command: String },
    /// There is no such weight file.
    #[error("{path}: no such file; --teacher-path names a .safetensors, .pt or .pth file", path = path.display())]
    NoWeights { path: PathBuf },
    /// The weights have no configuration beside them.
    #[error(
        "{weights}: needs its configuration beside it, in {path} ({source}); \
         it holds format_version, model, architecture and vocabulary, see docs/teacher.md",
        weights = weights.display(), path = path.display()
    )]
    NoConfig { path: PathBuf, weights: PathBuf, source: io::Error },
    /// The configuration cannot be read.
    #[error("{path}: {reason}; see docs/teacher.md for its fields", path = path.display())]
    Config { path: PathBuf, reason: String },
    /// The weights are not those that were registered.
    #[error(
        "{path}: the weights have digest {found}, config.json says {expected}: the file was changed or damaged; \
         restore it, or train the teacher again", path = path.display()
    )]
    Digest { path: PathBuf, found: String, expected: String },
    /// The file system refused.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    File { path: PathBuf, action: &'static str, source: io::Error },
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}
