//! Errors of an export.

use tch::TchError;

/// Reason that a model cannot be exported to ONNX.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// The model hashes IDs, and ONNX lacks its hash function.
    #[error("a model that hashes IDs (id_encoding = \"hash\") cannot be written as ONNX; train one with a vocabulary")]
    Hashed,
    /// A tensor of the architecture is missing.
    #[error("the model has no tensor {0}")]
    Missing(String),
    /// An error of libtorch while reading a tensor.
    #[error(transparent)]
    Torch(#[from] TchError),
}
