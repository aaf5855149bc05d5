//! Errors that end a stage.

use crate::can::CanError;
use crate::car::CarError;
use crate::distill::TeacherError;
use crate::exit;
use crate::files;
use crate::graph::StoreError;
use crate::nn::ModelError;
use crate::nodes::{NodeStoreError, NodesError};
use crate::onnx::OnnxError;
use crate::train::checkpoint::CheckpointError;
use crate::train::fit::FitError;
use crate::train::objective::ObjectiveError;
use crate::train::processes::ProcessError;
use crate::train::run_directory::RunError;

/// An error of a stage, from any module.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error(transparent)]
    Can(#[from] CanError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Nodes(#[from] NodesError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Teacher(#[from] TeacherError),
    #[error(transparent)]
    Registry(#[from] crate::distill::RegistryError),
    #[error(transparent)]
    Weights(#[from] crate::distill::WeightsError),
    #[error(transparent)]
    Curriculum(#[from] crate::curriculum::CurriculumError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Fit(#[from] FitError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Evaluate(#[from] crate::evaluate::EvaluateError),
    #[error(transparent)]
    Fusion(#[from] crate::fusion::FusionError),
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    #[error(transparent)]
    Car(#[from] CarError),
    /// A file or folder cannot be read, written or created.
    #[error(transparent)]
    File(#[from] files::FileError),
    /// libtorch failed, usually because memory ran out.
    #[error(transparent)]
    Torch(#[from] tch::TchError),
    /// The training does not fit into the memory limit, even with one graph at a time.
    #[error("{0}")]
    Memory(String),
    /// A signal stopped it; the same command continues.
    #[error("{0}")]
    Interrupted(String),
    /// The request is impossible with this data or machine.
    #[error("{0}")]
    Input(String),
}

impl StageError {
    /// True if the user can fix the cause: a wrong name, a missing folder, a damaged file.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Fit(error) => error.is_input(),
            Self::Process(error) => error.exit_code() == exit::INPUT,
            Self::Store(error) => error.is_input(),
            Self::Evaluate(error) => error.is_input(),
            Self::Fusion(error) => error.is_input(),
            Self::Curriculum(error) => error.is_input(),
            Self::Teacher(error) => error.is_input(),
            Self::Checkpoint(error) => error.is_input(),
            Self::Run(error) => error.is_input(),
            Self::Nodes(error) => error.is_input(),
            Self::File(error) => error.is_input(),
            Self::Memory(_) | Self::Interrupted(_) => false,
            Self::Torch(_) | Self::Model(ModelError::Torch(_)) | Self::Onnx(OnnxError::Torch(_)) => false,
            Self::Car(CarError::Model(ModelError::Torch(_)) | CarError::Tool { .. }) => false,
            _ => true,
        }
    }

    /// The exit code that belongs to the error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Memory(_) => exit::OUT_OF_MEMORY,
            Self::Interrupted(_) | Self::Nodes(NodesError::Stopped) => exit::INTERRUPTED,
            Self::Fit(error) => error.exit_code(),
            Self::Teacher(error) => error.exit_code(),
            Self::Curriculum(error) => error.exit_code(),
            error if error.is_input() => exit::INPUT,
            _ => exit::FAILURE,
        }
    }
}

impl From<NodeStoreError> for StageError {
    fn from(error: NodeStoreError) -> Self {
        NodesError::from(error).into()
    }
}

impl From<StageError> for ObjectiveError {
    fn from(error: StageError) -> Self {
        let exit_code = error.exit_code();
        Self::new(error, exit_code)
    }
}
