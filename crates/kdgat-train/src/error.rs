//! Why the epoch loop ended early.

use kdgat_base::files;
use kdgat_graph::StoreError;
use kdgat_nn::ModelError;
use kdgat_torch::device::DeviceError;

use super::checkpoint::CheckpointError;
use super::logs::LogError;
use super::objective::ObjectiveError;
use super::run_directory::RunError;

/// Anything that can end the loop early.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Torch(#[from] tch::TchError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Objective(ObjectiveError),
    /// The run on disk was made from other data or settings.
    #[error(
        "{path}: the run was started with other settings or data (identity {found}, now {expected}); \
         resume with its own config.json, or start a new run",
        path = path.display()
    )]
    OtherIdentity { path: std::path::PathBuf, found: String, expected: String },
    /// Not one graph fits into the memory that there is.
    #[error("not even one graph at a time fits into memory: {source}; {}", remedies())]
    OutOfMemory { source: Box<FitError> },
    /// What `cuda_graphs` asks for cannot be done, or not rightly.
    #[error("a step could not be recorded and replayed as a CUDA graph: {reason}; train without --cuda-graphs")]
    Recording { reason: String },
    /// The loss or the model became infinite or not a number.
    #[error(
        "{what} after step {step} of epoch {epoch}; lower --lr or --gradient-clip, or check the data for NaN and \
         infinity; {state}"
    )]
    NotFinite { what: String, epoch: u64, step: u64, state: String },
}

impl FitError {
    /// Whether what the user gave is to blame (exit code 2) and not the machine or the program (exit code 1).
    pub fn is_input(&self) -> bool {
        match self {
            Self::Store(error) => error.is_input(),
            Self::Checkpoint(error) => error.is_input(),
            Self::Run(error) => error.is_input(),
            Self::Log(error) => error.is_input(),
            Self::Objective(error) => error.is_input(),
            Self::OtherIdentity { .. } => true,
            _ => false,
        }
    }
}

impl RunError {
    /// As [`FitError::is_input`].
    pub fn is_input(&self) -> bool {
        match self {
            Self::File { source, .. } => files::is_about_the_path(source),
            Self::NothingToResume { .. } | Self::InUse { .. } | Self::Taken { .. } => true,
        }
    }
}

fn remedies() -> &'static str {
    "raise --memory-limit or --gpu-memory-limit, use a smaller model, or see `kdgat memory plan` for what would fit"
}
