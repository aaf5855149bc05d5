//! What must be known to use a model's weights: saved with them in every checkpoint and registered teacher.

use kdgat_graph::{EdgeScaling, ForeignIds, Vocabulary};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{GatConfig, InputConfig, ModelError, VgaeConfig};

/// Columns of a layer or an embedding, heads, and layers at most: what the command line takes, too.
const MOST_COLUMNS: i64 = 1_000_000;
const MOST_HEADS: i64 = 1024;
pub(super) const MOST_LAYERS: usize = 1024;
/// Rows of an embedding at most: one for each ID of 29 bits, and UNKNOWN.
const MOST_IDS: i64 = (1 << 29) + 1;

/// Checks sizes of an architecture, which may come from a file, by the names of their fields.
pub(super) fn expect_sizes(sizes: &[(&'static str, i64)]) -> Result<(), ModelError> {
    for &(field, value) in sizes {
        let (most, expected) = match field {
            "heads" => (MOST_HEADS, "must be at most 1024"),
            "layers" | "fc_layers" => (MOST_LAYERS as i64, "must be at most 1024"),
            "vocabulary_size" => (MOST_IDS, "must be at most 536870913, the number of CAN IDs and UNKNOWN"),
            _ => (MOST_COLUMNS, "must be at most 1000000"),
        };
        let problem = if value < 1 { Some("must be at least 1") } else { (value > most).then_some(expected) };
        if let Some(expected) = problem {
            return Err(ModelError::Architecture { field, found: value.to_string(), expected });
        }
    }
    Ok(())
}

/// Checks what models of both kinds have.
pub(super) fn expect_common(
    dropout: f64,
    edge_scaling: Option<&EdgeScaling>,
    input: &InputConfig,
) -> Result<(), ModelError> {
    if !(0.0..1.0).contains(&dropout) {
        let expected = "must be at least 0 and below 1";
        return Err(ModelError::Architecture { field: "dropout", found: dropout.to_string(), expected });
    }
    if let Some(found) = edge_scaling.and_then(EdgeScaling::problem) {
        let expected = "means that are numbers, and deviations above 0";
        return Err(ModelError::Architecture { field: "edge_scaling", found, expected });
    }
    input.check()
}

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

    /// Checks that a model can be built from it: to be called before anything is computed from its sizes.
    ///
    /// # Errors
    /// Names the first field that does not fit.
    pub fn check(&self) -> Result<(), ModelError> {
        match self {
            Self::Vgae(config) => config.check(),
            Self::Gat(config) => config.check(),
        }
    }

    /// IDs of the vocabulary that it is built for, UNKNOWN included.
    pub fn vocabulary_size(&self) -> i64 {
        match self {
            Self::Vgae(config) => config.vocabulary_size,
            Self::Gat(config) => config.vocabulary_size,
        }
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
