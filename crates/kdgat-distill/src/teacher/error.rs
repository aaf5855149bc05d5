//! Why there is no teacher, or none any more.

use std::path::PathBuf;

use kdgat_base::files;
use kdgat_train::memory::is_out_of_memory;
use kdgat_train::objective::ObjectiveError;
use tch::TchError;

use crate::accelerator::AcceleratorError;
use crate::cache::{CacheError, GateError};
use crate::model::ModelError;
use crate::weights::WeightsError;

/// Why there are no targets.
#[derive(Debug, thiserror::Error)]
pub enum TeacherError {
    /// A layer reads a weight that the file does not hold.
    #[error(
        "the teacher's weights have no tensor '{tensor}', which its layer '{layer}' reads; config.json and weights are of \
         different models: register the teacher again"
    )]
    MissingTensor {
        /// Name of the tensor.
        tensor: String,
        /// Name of the layer.
        layer: String,
    },
    /// A model without layers.
    #[error("the teacher has no layers")]
    NoLayers,
    /// The thread could not be started.
    #[error("cannot start the teacher's thread")]
    Spawn(#[source] std::io::Error),
    /// The device did not do as told.
    #[error("the teacher's device failed")]
    Device {
        /// What it said.
        source: AcceleratorError,
    },
    /// libtorch failed, for instance for want of memory.
    #[error("the teacher failed in libtorch")]
    Torch(#[from] TchError),
    /// The forward failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The file of the weights could be read once, and not again.
    #[error("the teacher's weights {} cannot be brought to their place in memory", path.display())]
    Unreadable {
        /// Their file.
        path: PathBuf,
        /// Why it could not be read.
        source: WeightsError,
    },
    /// The file of the weights was written to while they were loaded.
    #[error(
        "the teacher's weights {} changed while they were loaded: the file holds weights with digest {found}, \
         expected {expected}; start again",
        path.display()
    )]
    Changed {
        /// Their file.
        path: PathBuf,
        /// The digest of what it holds now.
        found: String,
        /// The digest of what it held before.
        expected: String,
    },
    /// The weights have to be read again and are no longer there, or no longer the same.
    #[error(
        "the teacher's weights have to be read again, because targets in their cache are damaged, but {}: {reason}; put the \
         weights back, or name a file that holds them with --teacher-path, and go on with --resume",
        path.display()
    )]
    Reload {
        /// Their file.
        path: PathBuf,
        /// What was found.
        reason: String,
        /// Why the file could not be read.
        source: Option<Box<WeightsError>>,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The teacher's outputs may not be cached.
    #[error(transparent)]
    NotCacheable(#[from] GateError),
    /// Targets do not fit the memory that they were to be kept in.
    #[error(
        "{size}, but memory allows {budget}; use --teacher-cache disk, or f16, or allow more memory, or --teacher-cache off"
    )]
    CacheTooLarge {
        /// What they take, in words.
        size: String,
        /// What is allowed, in words.
        budget: String,
    },
    /// A cache on disk without a place.
    #[error("the teacher's targets are to be kept on disk, but no file was named for them")]
    NoCachePath,
    /// The forward panicked.
    #[error("the teacher's forward panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// More targets were asked for than batches were submitted.
    #[error("targets were asked for, but every submitted batch has been answered; submit the next burst first")]
    NothingSubmitted,
    /// The thread ended earlier.
    #[error("the teacher stopped earlier: {cause}")]
    Stopped {
        /// Why.
        cause: String,
    },
    /// Weights were asked for that were given up when the cache was complete.
    #[error("the teacher's weights were let go for good and have not been read again")]
    Parked,
    /// The thread was told to stop while it worked.
    #[error("the teacher was told to stop")]
    Interrupted,
}

impl TeacherError {
    /// Whether the user can mend it: a damaged or foreign file, settings that do not fit the teacher or the memory.
    pub fn is_input(&self) -> bool {
        match self {
            Self::MissingTensor { .. } | Self::NotCacheable(_) | Self::CacheTooLarge { .. } | Self::NoCachePath => true,
            Self::Cache(CacheError::Io { source, .. }) => files::is_about_the_path(source),
            Self::Cache(error) => matches!(error, CacheError::Mismatch { .. } | CacheError::Damaged { .. }),
            Self::Reload { .. } | Self::Changed { .. } => true,
            Self::Unreadable { source, .. } => !is_out_of_memory(source),
            _ => false,
        }
    }
}

impl From<TeacherError> for ObjectiveError {
    fn from(error: TeacherError) -> Self {
        let is_input = error.is_input();
        Self::new(error, is_input)
    }
}

#[cfg(test)]
mod tests {
    use kdgat_train::fit::FitError;

    use super::*;

    #[test]
    fn a_failed_step_tells_whether_the_teachers_files_caused_it() {
        let too_large = TeacherError::CacheTooLarge { size: "2 GiB".into(), budget: "1 GiB".into() };
        assert!(FitError::Objective(too_large.into()).is_input());
        let failed = TeacherError::Torch(TchError::Torch("CUDA error".into()));
        assert!(!FitError::Objective(failed.into()).is_input());
    }

    #[test]
    fn what_the_user_can_mend_is_told_from_what_failed() {
        let path = PathBuf::from("targets.cache");
        let foreign = CacheError::Mismatch { path: path.clone(), differences: Vec::new() };
        assert!(TeacherError::Cache(foreign).is_input());
        let io = |kind: std::io::ErrorKind| {
            TeacherError::Cache(CacheError::Io { path: path.clone(), action: "write", source: kind.into() })
        };
        let full = io(std::io::ErrorKind::StorageFull);
        assert!(!full.is_input() && !full.to_string().contains("--teacher-cache-dir"), "{full}");
        let no_folder = io(std::io::ErrorKind::NotADirectory);
        assert!(no_folder.is_input() && no_folder.to_string().contains("--teacher-cache-dir"), "{no_folder}");
        assert!(!TeacherError::Torch(TchError::Torch("out of memory".into())).is_input());
    }
}
