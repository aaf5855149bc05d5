//! What can go wrong with a model and its weights.

use std::path::PathBuf;

/// An error of a model or of the file that its weights come from.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A tensor of the architecture is not among the given weights.
    #[error("the weights have no tensor '{name}' (shape {expected:?}); do the weights belong to this architecture?")]
    MissingTensor { name: String, expected: Vec<i64> },
    /// A tensor has another shape than the architecture asks for.
    #[error(
        "tensor '{name}' has shape {found:?}, the architecture asks for {expected:?}; \
         compare the configuration beside the weights (hidden, latent, heads, embedding, vocabulary)"
    )]
    TensorShape { name: String, found: Vec<i64>, expected: Vec<i64> },
    /// The weights hold a tensor that the architecture does not know.
    #[error("the weights hold {count} tensor(s) that the architecture does not have, the first is '{name}'")]
    UnknownTensor { name: String, count: usize },
    /// The architecture cannot be built as configured.
    #[error("{field} = {found}: {expected}")]
    Architecture { field: &'static str, found: String, expected: &'static str },
    /// A GATv2 model was given a batch that was assembled without edge features.
    #[error("the model reads edge features and the batch has none; assemble batches with edge_attributes")]
    NoEdgeFeatures,
    /// A batch has the features of another set.
    #[error(
        "the model reads the node features of the set '{expected}', the graphs have {found}; use --features {expected}"
    )]
    Features { found: String, expected: kdgat_graph::FeatureSet },
    /// A weight file cannot be read or written.
    #[error("{path}: {reason}", path = path.display())]
    File { path: PathBuf, reason: String },
    /// Attention could not be computed.
    #[error(transparent)]
    Attention(#[from] super::attention::AttentionError),
    /// libtorch refused an operation.
    #[error(transparent)]
    Torch(#[from] tch::TchError),
}
