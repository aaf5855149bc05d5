//! Errors of processes that train together.

use kdgat_base::exit;
use tch::TchError;

/// Any error of processes that train together.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// Environment variables that contradict each other, or of which some are missing.
    #[error("{0}")]
    Variables(String),
    /// The processes did not come together.
    #[error("{0}")]
    Meeting(String),
    /// A process that trains something else, is another program, or does not know the token.
    #[error("{0}")]
    Refused(String),
    /// Another process failed, ended, or is silent.
    #[error("{0}")]
    Lost(String),
    /// A tensor that cannot be sent.
    #[error(transparent)]
    Torch(#[from] TchError),
}

impl ProcessError {
    /// The exit code that belongs to the error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Variables(_) | Self::Refused(_) => exit::INPUT,
            Self::Meeting(_) | Self::Lost(_) | Self::Torch(_) => exit::FAILURE,
        }
    }
}
