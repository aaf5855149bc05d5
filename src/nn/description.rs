//! What must be known to use a model's weights: saved with them in every checkpoint and registered teacher.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{GatConfig, InputConfig, ModelError, VgaeConfig};
use crate::graph::{ForeignIds, Vocabulary};

/// The architecture of a model of either kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", content = "architecture", rename_all = "lowercase")]
pub enum Architecture {
    /// A graph autoencoder.
    Vgae(VgaeConfig),
    /// A classifier.
    Gat(GatConfig),
}

impl Architecture {
    /// `vgae` or `gat`.
    pub fn model_name(&self) -> &'static str {
        match self {
            Self::Vgae(_) => "vgae",
            Self::Gat(_) => "gat",
        }
    }

    /// Whether its layers read edge features, which a batch then has to carry.
    pub fn reads_edge_features(&self) -> bool {
        match self {
            Self::Vgae(config) => config.edge_scaling.is_some(),
            Self::Gat(config) => config.edge_scaling.is_some(),
        }
    }

    /// How it reads nodes.
    pub fn input(&self) -> &InputConfig {
        match self {
            Self::Vgae(config) => &config.input,
            Self::Gat(config) => &config.input,
        }
    }

    /// Whether it hashes CAN IDs, which a batch then has to carry as its input.
    pub fn hashes_ids(&self) -> bool {
        self.input().id_hash.is_some()
    }

    /// From the name of the model and the fields of its configuration, as registered teachers store them.
    pub fn from_json(model: &str, fields: &Value) -> Result<Self, ModelError> {
        let json = serde_json::json!({ "model": model, "architecture": fields });
        serde_json::from_value(json).map_err(|error| ModelError::Architecture {
            field: "architecture",
            found: format!("{error}"),
            expected: "model is 'vgae' (hidden, latent, heads, embedding, vocabulary_size, dropout) \
                       or 'gat' (hidden, layers, heads, embedding, fc_layers, vocabulary_size, dropout)",
        })
    }

    /// The fields of its configuration.
    pub fn to_json(&self) -> Value {
        let fields = match self {
            Self::Vgae(config) => serde_json::to_value(config),
            Self::Gat(config) => serde_json::to_value(config),
        };
        // Numbers and lists of numbers: nothing that JSON could refuse.
        fields.unwrap_or(Value::Null)
    }
}

/// The data that a model was trained on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetIdentity {
    /// Its name.
    pub name: String,
    /// Content digest of its graphs.
    pub digest: String,
}

/// Everything about a trained model but its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelDescription {
    /// Kind and widths.
    #[serde(flatten)]
    pub architecture: Architecture,
    /// The IDs of its vocabulary.
    pub vocabulary: Vocabulary,
    /// Of a classifier that foreign IDs speak beside: how often windows have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_ids: Option<ForeignIds>,
    /// What it was trained on.
    pub dataset: DatasetIdentity,
    /// Frames in a window of its graphs.
    pub window: usize,
    /// Name of its size, such as `student`.
    pub size: String,
    /// Epoch that the weights are from, and its validation loss.
    pub epoch: u64,
    pub val_loss: Option<f64>,
    /// Digest of the weights of the teacher it learned from.
    pub teacher_digest: Option<String>,
    /// Version of the program that trained it.
    pub created_by_version: String,
}
