//! Errors of training a fusion agent.

use std::path::PathBuf;

use kdgat_base::files;
use kdgat_evaluate::EvaluateError;
use kdgat_graph::StoreError;
use kdgat_nn::ModelError;
use kdgat_train::checkpoint::CheckpointError;
use kdgat_train::logs::LogError;
use kdgat_train::run_directory::RunError;

/// An error of module `fusion`.
#[derive(Debug, thiserror::Error)]
pub enum FusionError {
    /// A fused model could not be read or used.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// A network or libtorch failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A graph store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A log could not be written or read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The run's folder could not be used.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A file-system operation failed.
    #[error(transparent)]
    File(#[from] files::FileError),
    /// A file of states is corrupt or incomplete.
    #[error("{path}: {reason}; delete it to recompute the states", path = path.display())]
    Damaged {
        /// The file of states.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// The computation of the states was interrupted; finished chunks stay on disk.
    #[error("interrupted with the states of {done} of {total} graphs; run the same command again to continue")]
    Interrupted {
        /// Number of graphs whose states are on disk.
        done: u64,
        /// Number of graphs of the file.
        total: u64,
    },
    /// The run on disk was made from other data or settings.
    #[error(
        "{path}: the run was started with other settings, models or data (identity {found}, now {expected}); \
         resume with its own config.json, or start a new run",
        path = path.display()
    )]
    OtherIdentity {
        /// The saved state.
        path: PathBuf,
        /// Digest in the saved state.
        found: String,
        /// Digest of the present settings, models and data.
        expected: String,
    },
    /// The loss became infinite or not a number.
    #[error("the loss is {loss} in epoch {epoch}; lower --lr, or check the states of the graphs for NaN and infinity")]
    NotFinite {
        /// The loss: NaN or infinite.
        loss: f64,
        /// The epoch, as the log counts it.
        epoch: u64,
    },
    /// The request cannot be met with this data.
    #[error("{0}")]
    Input(String),
}

impl FusionError {
    /// True if the user's input is at fault (exit code 2) rather than the machine or the program (exit code 1).
    pub fn is_input(&self) -> bool {
        match self {
            Self::Evaluate(error) => error.is_input(),
            Self::Store(error) => error.is_input(),
            Self::Checkpoint(error) => error.is_input(),
            Self::Run(error) => error.is_input(),
            Self::Log(error) => error.is_input(),
            Self::File(error) => error.is_input(),
            Self::Damaged { .. } | Self::Input(_) | Self::OtherIdentity { .. } => true,
            Self::Model(_) | Self::Interrupted { .. } | Self::NotFinite { .. } => false,
        }
    }
}

impl From<tch::TchError> for FusionError {
    fn from(error: tch::TchError) -> Self {
        Self::Model(error.into())
    }
}
