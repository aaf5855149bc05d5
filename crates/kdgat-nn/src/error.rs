//! Errors of models and their weights.

use std::path::PathBuf;

/// An error of a model or of its weight file.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The weights lack a tensor of the architecture.
    #[error("the weights have no tensor '{name}' (shape {expected:?}); do the weights belong to this architecture?")]
    MissingTensor {
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor in the architecture.
        expected: Vec<i64>,
    },
    /// A tensor's shape differs from the architecture's.
    #[error(
        "tensor '{name}' has shape {found:?}, the architecture expects {expected:?}; \
         compare the configuration beside the weights (hidden, latent, heads, embedding, vocabulary)"
    )]
    TensorShape {
        /// Name of the tensor.
        name: String,
        /// Shape of the given tensor.
        found: Vec<i64>,
        /// Shape of the tensor in the architecture.
        expected: Vec<i64>,
    },
    /// The weights contain a tensor that the architecture does not have.
    #[error("the weights contain {count} tensor(s) that the architecture does not have; the first is '{name}'")]
    UnknownTensor {
        /// Name of the first such tensor.
        name: String,
        /// Number of such tensors.
        count: usize,
    },
    /// A weight is NaN or infinite.
    #[error(
        "tensor '{name}' has {found}, expected finite numbers: its training diverged; train the model again, or name another one"
    )]
    NotFinite {
        /// Name of the tensor.
        name: String,
        /// The first such element and its indices, as text.
        found: String,
    },
    /// The architecture cannot be built as configured.
    #[error("{field} = {found}: {expected}")]
    Architecture {
        /// The invalid field.
        field: &'static str,
        /// Its value.
        found: String,
        /// The requirement on the value.
        expected: &'static str,
    },
    /// A model that reads edge features got a batch without edge features.
    #[error("the model reads edge features, but the batch has none; assemble batches with edge_attributes")]
    NoEdgeFeatures,
    /// A batch of trees has a graph that is none.
    #[error(
        "a graph of {nodes} nodes and {edges} edges is no tree whose edges lead from parents to children and back; use rooted trees, such as \
         folders of SWC files"
    )]
    NoTree {
        /// Number of nodes.
        nodes: usize,
        /// Number of edges without self-loops, each direction counted.
        edges: usize,
    },
    /// A network in space got a batch without positions of nodes.
    #[error("the model reads positions of nodes, but the batch has none; use data whose nodes have positions")]
    NoPositions,
    /// A batch has a different feature set than the model.
    #[error(
        "the model reads the node features of the set '{expected}', the graphs have {found}; use --features {expected}"
    )]
    Features {
        /// Description of the batch's features.
        found: String,
        /// The model's feature set.
        expected: kdgat_graph::FeatureSet,
    },
    /// A weight file cannot be read or written.
    #[error("{path}: {reason}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// Attention could not be computed.
    #[error(transparent)]
    Attention(#[from] super::attention::AttentionError),
    /// libtorch refused an operation.
    #[error(transparent)]
    Torch(#[from] tch::TchError),
}
