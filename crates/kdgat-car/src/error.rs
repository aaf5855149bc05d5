//! Errors of an export to C.

use kdgat_nn::ModelError;

/// An error of an export to C.
#[derive(Debug, thiserror::Error)]
pub enum CarError {
    /// The model cannot be written as C.
    #[error("{0}")]
    Unsupported(String),
    /// A weight is missing or has the wrong shape.
    #[error("tensor {name}: found {found}, expected {expected}; export the run's own weight file")]
    Weight {
        /// Name of the tensor.
        name: String,
        /// Its shape, or that it is missing.
        found: String,
        /// The shape that the architecture needs.
        expected: String,
    },
    /// A compiler or tool failed while an export was measured.
    #[error("--measure: {command}: {problem}; install a C compiler with binutils, or leave --measure out")]
    Tool {
        /// The command.
        command: String,
        /// Its message.
        problem: String,
    },
    /// An error of the model or of libtorch.
    #[error(transparent)]
    Model(#[from] ModelError),
}
