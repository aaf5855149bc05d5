//! Errors of difficulty scoring.

use std::io;
use std::path::PathBuf;

use kdgat_base::{exit, files};
use kdgat_graph::StoreError;
use kdgat_nn::ModelError;
use kdgat_torch::device::DeviceError;
use kdgat_train::checkpoint::CheckpointError;
use kdgat_train::objective::ObjectiveError;

/// An error while scoring graphs or storing scores.
#[derive(Debug, thiserror::Error)]
pub enum CurriculumError {
    /// The scoring model is not a VGAE.
    #[error("difficulty needs a vgae, but the model in {path} is a {found}; name a vgae with --difficulty-model",
        path = path.display())]
    NoVgae {
        /// The scoring model.
        path: PathBuf,
        /// Name of its architecture.
        found: &'static str,
    },
    /// A score is infinite or NaN.
    #[error(
        "the difficulty of graph {graph} is {value}; the scoring model's weights are damaged or diverged; use another"
    )]
    NotFinite {
        /// Position of the graph in the store.
        graph: u64,
        /// Its difficulty: NaN or infinite.
        value: f32,
    },
    /// Ctrl-C or a termination signal.
    #[error("interrupted while scoring difficulty ({done} of {total} graphs done)")]
    Interrupted {
        /// Number of graphs scored.
        done: usize,
        /// Number of graphs to score.
        total: usize,
    },
    /// A file of scores cannot be written.
    #[error("{path}: cannot write the scores: {source}", path = path.display())]
    Write {
        /// The file of scores.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A graph store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The scoring model or libtorch failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The teacher whose losses are the difficulty failed.
    #[error(transparent)]
    Teacher(#[from] ObjectiveError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A checkpoint or a file of scores could not be read or written.
    #[error(transparent)]
    File(#[from] CheckpointError),
}

impl CurriculumError {
    /// True if the user's input is at fault.
    pub fn is_input(&self) -> bool {
        match self {
            Self::NoVgae { .. } | Self::NotFinite { .. } => true,
            Self::Store(error) => error.is_input(),
            Self::Model(ModelError::Torch(_)) => false,
            Self::Model(_) => true,
            Self::Teacher(error) => error.exit_code() == exit::INPUT,
            Self::File(error) => error.is_input(),
            Self::Write { source, .. } => files::is_about_the_path(source),
            Self::Interrupted { .. } | Self::Device(_) => false,
        }
    }

    /// The exit code that belongs to the error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted { .. } => exit::INTERRUPTED,
            Self::Teacher(error) => error.exit_code(),
            error if error.is_input() => exit::INPUT,
            _ => exit::FAILURE,
        }
    }
}

impl From<tch::TchError> for CurriculumError {
    fn from(error: tch::TchError) -> Self {
        ModelError::from(error).into()
    }
}

impl From<CurriculumError> for ObjectiveError {
    fn from(error: CurriculumError) -> Self {
        let exit_code = error.exit_code();
        Self::new(error, exit_code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_train::fit::FitError;

    #[test]
    fn a_failed_epoch_tells_whether_the_scoring_model_caused_it() {
        let no_vgae = CurriculumError::NoVgae { path: "model".into(), found: "gat" };
        assert!(FitError::Objective(no_vgae.into()).is_input());
        let interrupted = CurriculumError::Interrupted { done: 1, total: 2 };
        assert_eq!(FitError::Objective(interrupted.into()).exit_code(), exit::INTERRUPTED);
    }
}
