//! Errors that end the epoch loop.

use kdgat_base::exit;
use kdgat_graph::StoreError;
use kdgat_nn::ModelError;
use kdgat_torch::device::DeviceError;

use super::checkpoint::CheckpointError;
use super::logs::LogError;
use super::objective::ObjectiveError;
use super::processes::ProcessError;
use super::run_directory::RunError;

/// Any error that ends the loop early.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An operation of libtorch failed.
    #[error(transparent)]
    Torch(#[from] tch::TchError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A log could not be written or read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The run's folder could not be used.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The graph store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The processes that train together failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The objective or the batch plan failed.
    #[error(transparent)]
    Objective(ObjectiveError),
    /// The run on disk was started with other data or settings.
    #[error(
        "{path}: the run was started with other settings or data (identity {found}, now {expected}); \
         resume with its own config.json, or start a new run",
        path = path.display()
    )]
    OtherIdentity {
        /// The saved state.
        path: std::path::PathBuf,
        /// Digest in the saved state.
        found: String,
        /// Digest of the present configuration and data.
        expected: String,
    },
    /// Not even one graph fits into memory.
    #[error("not even one graph at a time fits into memory: {source}; {}", remedies())]
    OutOfMemory {
        /// The last failure.
        source: Box<FitError>,
    },
    /// A step cannot be captured as a CUDA graph, or its replay gives other results.
    #[error("a step cannot run as a CUDA graph: {reason}; train without --cuda-graphs")]
    Recording {
        /// The failure or difference.
        reason: String,
    },
    /// The loss or the model became NaN or infinite.
    #[error(
        "{what} after step {step} of epoch {epoch}; lower --lr or --gradient-clip, or check the data for NaN and \
         infinity; {state}"
    )]
    NotFinite {
        /// Description of the value that is not finite.
        what: String,
        /// The epoch, from 1.
        epoch: u64,
        /// Steps of the epoch done so far.
        step: u64,
        /// Advice on the saved state.
        state: String,
    },
}

impl FitError {
    /// True if the user's files or settings caused it (exit code 2), false for the machine or the program (exit code 1).
    pub fn is_input(&self) -> bool {
        match self {
            Self::Store(error) => error.is_input(),
            Self::Checkpoint(error) => error.is_input(),
            Self::Run(error) => error.is_input(),
            Self::Log(error) => error.is_input(),
            Self::Objective(error) => error.exit_code() == exit::INPUT,
            Self::Process(error) => error.exit_code() == exit::INPUT,
            Self::OtherIdentity { .. } => true,
            _ => false,
        }
    }

    /// The exit code that belongs to the error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::OutOfMemory { .. } => exit::OUT_OF_MEMORY,
            Self::Objective(error) => error.exit_code(),
            Self::Process(error) => error.exit_code(),
            error if error.is_input() => exit::INPUT,
            _ => exit::FAILURE,
        }
    }
}

impl RunError {
    /// True if the user's files or settings caused it (exit code 2), false for the machine or the program (exit code 1).
    pub fn is_input(&self) -> bool {
        match self {
            Self::File(error) => error.is_input(),
            Self::NothingToResume { .. } | Self::InUse { .. } | Self::Taken { .. } => true,
        }
    }
}

fn remedies() -> &'static str {
    "raise --memory-limit or --gpu-memory-limit, use a smaller model, or see `kdgat memory plan` for what would fit"
}
