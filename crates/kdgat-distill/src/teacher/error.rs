//! Errors of a teacher.

use std::path::PathBuf;

use kdgat_base::{exit, files};
use kdgat_train::memory::is_out_of_memory;
use kdgat_train::objective::ObjectiveError;
use kdgat_train::processes::ProcessError;
use tch::TchError;

use crate::accelerator::AcceleratorError;
use crate::cache::{CacheError, GateError};
use crate::model::ModelError;
use crate::weights::WeightsError;

/// An error of a teacher.
#[derive(Debug, thiserror::Error)]
pub enum TeacherError {
    /// A layer reads a weight that the file does not have.
    #[error(
        "the teacher's weights have no tensor '{tensor}', which its layer '{layer}' reads; config.json and weights belong to \
         different models: register the teacher again"
    )]
    MissingTensor {
        /// Name of the tensor.
        tensor: String,
        /// Name of the layer.
        layer: String,
    },
    /// A weight is NaN or infinite.
    #[error(
        "the teacher's weights{weights} have {found} in tensor '{tensor}', expected finite numbers: its training diverged; train the \
         teacher again, or name another one with --teacher-path"
    )]
    NotFinite {
        /// A blank and the path of the weights; empty if they are from no file.
        weights: String,
        /// Name of the tensor.
        tensor: String,
        /// The first such element and its indices, as text.
        found: String,
    },
    /// The model has no layers.
    #[error("the teacher has no layers")]
    NoLayers,
    /// The thread could not be started.
    #[error("cannot start the teacher's thread")]
    Spawn(#[source] std::io::Error),
    /// The device failed.
    #[error("the teacher's device failed")]
    Device {
        /// The device's error.
        source: AcceleratorError,
    },
    /// libtorch failed, for example out of memory.
    #[error("the teacher failed in libtorch")]
    Torch(#[from] TchError),
    /// The forward failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The weight file cannot be read any more.
    #[error("cannot load the teacher's weights {} into memory", path.display())]
    Unreadable {
        /// The weight file.
        path: PathBuf,
        /// The cause.
        source: WeightsError,
    },
    /// The weight file was changed while it was loaded.
    #[error(
        "the teacher's weights {} changed while they were loaded: the file holds weights with digest {found}, \
         expected {expected}; start again",
        path.display()
    )]
    Changed {
        /// The weight file.
        path: PathBuf,
        /// Digest of the file's current content.
        found: String,
        /// Digest of its content before.
        expected: String,
    },
    /// The weights must be read again, and the file is missing or different.
    #[error(
        "the teacher's weights must be read again because cached targets are damaged, but {}: {reason}; restore the file, or name \
         one with the same weights with --teacher-path, and resume with --resume",
        path.display()
    )]
    Reload {
        /// The weight file.
        path: PathBuf,
        /// The problem with the file.
        reason: String,
        /// The error of reading the file, if it could not be read.
        source: Option<Box<WeightsError>>,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The teacher's outputs cannot be cached.
    #[error(transparent)]
    NotCacheable(#[from] GateError),
    /// The targets exceed the memory budget of the cache.
    #[error(
        "{size}, but memory allows {budget}; use --teacher-cache disk, --teacher-cache-precision f16 or --teacher-cache off, or \
         allow more memory"
    )]
    CacheTooLarge {
        /// Size of the targets, as text.
        size: String,
        /// The memory budget, as text.
        budget: String,
    },
    /// A cache on disk needs a file.
    #[error("cannot cache the teacher's targets on disk without a file; name a folder with --teacher-cache-dir")]
    NoCachePath,
    /// The forward panicked.
    #[error("the teacher's forward panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// More targets were requested than batches submitted.
    #[error("targets were requested, but every submitted batch has been answered; submit the next burst first")]
    NothingSubmitted,
    /// The thread ended with an earlier error.
    #[error("the teacher stopped earlier: {cause}")]
    Stopped {
        /// The earlier error.
        cause: String,
    },
    /// The weights are needed but were released when the cache was complete.
    #[error("the teacher's weights were released when its cache was complete and have not been read again")]
    Parked,
    /// Another process of the training has ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The thread was stopped while it worked.
    #[error("the teacher was stopped")]
    Interrupted,
}

impl TeacherError {
    /// True if the user can fix the cause: a damaged or foreign file, or settings that do not fit the teacher.
    pub fn is_input(&self) -> bool {
        match self {
            Self::MissingTensor { .. } | Self::NotFinite { .. } | Self::NotCacheable(_) | Self::NoCachePath => true,
            Self::Cache(CacheError::Io { source, .. }) => files::is_about_the_path(source),
            Self::Cache(error) => matches!(error, CacheError::Mismatch { .. } | CacheError::Damaged { .. }),
            Self::Reload { .. } | Self::Changed { .. } => true,
            Self::Unreadable { source, .. } => !is_out_of_memory(source),
            _ => false,
        }
    }

    /// The exit code that belongs to the error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::CacheTooLarge { .. } | Self::Model(ModelError::Memory(_)) => exit::OUT_OF_MEMORY,
            Self::Process(error) => error.exit_code(),
            error if error.is_input() => exit::INPUT,
            _ => exit::FAILURE,
        }
    }
}

impl From<TeacherError> for ObjectiveError {
    fn from(error: TeacherError) -> Self {
        let exit_code = error.exit_code();
        Self::new(error, exit_code)
    }
}

#[cfg(test)]
mod tests {
    use kdgat_train::fit::FitError;

    use super::*;

    #[test]
    fn a_failed_step_tells_whether_the_teachers_files_caused_it() {
        let too_large = TeacherError::CacheTooLarge { size: "2 GiB".into(), budget: "1 GiB".into() };
        assert_eq!(FitError::Objective(too_large.into()).exit_code(), exit::OUT_OF_MEMORY);
        let pathless = FitError::Objective(TeacherError::NoCachePath.into());
        assert!(pathless.is_input() && pathless.exit_code() == exit::INPUT);
        let failed = FitError::Objective(TeacherError::Torch(TchError::Torch("CUDA error".into())).into());
        assert!(!failed.is_input() && failed.exit_code() == exit::FAILURE);
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
