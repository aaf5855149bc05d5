//! Export of trained networks as ONNX models, for runtimes without kdgat: [`classifier`] of CAN windows, [`graph_network`],
//! [`node_network`].

#![warn(missing_docs)]

mod builder;
mod classifier;
mod graph_network;
mod message;
mod node_network;
mod operators;
#[cfg(test)]
mod test_models;

use tch::TchError;

pub use classifier::classifier;
pub use graph_network::graph_network;
pub use node_network::node_network;

/// Reason that a model cannot be exported to ONNX.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// The model hashes IDs, and ONNX lacks its hash function.
    #[error("a model that hashes IDs (id_encoding = \"hash\") cannot be written as ONNX; train one with a vocabulary")]
    Hashed,
    /// The model reads positions.
    #[error(
        "a network of positions ({0}) cannot be written as ONNX; its safetensors file has the names of the published code"
    )]
    InSpace(&'static str),
    /// A tensor of the architecture is missing.
    #[error("the model has no tensor {0}")]
    Missing(String),
    /// An error of libtorch while reading a tensor.
    #[error(transparent)]
    Torch(#[from] TchError),
}
