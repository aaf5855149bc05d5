//! Description of a model, saved with its weights in every checkpoint and registered teacher.

use kdgat_graph::{EdgeScaling, ForeignIds, SpaceOptions, Vocabulary};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    GatConfig, GnnConfig, GraphVgaeConfig, InputConfig, ModelError, NodeGnnConfig, PretrainingConfig, VgaeConfig,
};

/// Maximum number of columns of a layer or an embedding. The limits of heads and layers follow. All equal those of the
/// command line.
const MOST_COLUMNS: i64 = 1_000_000;
const MOST_HEADS: i64 = 1024;
pub(super) const MOST_LAYERS: usize = 1024;
/// Maximum number of rows of an embedding: one per 29-bit ID, and UNKNOWN.
const MOST_IDS: i64 = (1 << 29) + 1;

/// Checks sizes of an architecture, which may come from a file, against the limits of their fields.
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

/// Checks the fields that both kinds of models have.
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
        let expected = "must have numbers as means, and deviations above 0";
        return Err(ModelError::Architecture { field: "edge_scaling", found, expected });
    }
    input.check()
}

/// Architecture of a model of either kind. Fields with a default may be left out of a `config.json` that is written by hand, for
/// weights of another program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", content = "architecture", rename_all = "lowercase")]
pub enum Architecture {
    /// A graph autoencoder.
    Vgae(VgaeConfig),
    /// A GAT classifier.
    Gat(GatConfig),
    /// A network for graphs of any kind.
    Graph(GnnConfig),
    /// A network that classifies the nodes of one large graph.
    Nodes(NodeGnnConfig),
    /// A variational autoencoder of graphs of any kind.
    #[serde(rename = "graph-vgae")]
    GraphVgae(GraphVgaeConfig),
    /// A graph network in pre-training.
    Pretraining(PretrainingConfig),
}

impl Architecture {
    /// True if the network can recompute activations in the backward pass (gradient checkpointing).
    pub fn can_checkpoint(&self) -> bool {
        matches!(self, Self::Vgae(_) | Self::Gat(_))
    }

    /// Name of the model: `vgae`, `gat`, `graph`, `nodes`, `graph-vgae` or `pretraining`.
    pub fn model_name(&self) -> &'static str {
        match self {
            Self::Vgae(_) => "vgae",
            Self::Gat(_) => "gat",
            Self::Graph(_) => "graph",
            Self::Nodes(_) => "nodes",
            Self::GraphVgae(_) => "graph-vgae",
            Self::Pretraining(_) => "pretraining",
        }
    }

    /// True if the model's layers read edge features, which the batch must then contain.
    pub fn reads_edge_features(&self) -> bool {
        match self {
            Self::Vgae(config) => config.edge_scaling.is_some(),
            Self::Gat(config) => config.edge_scaling.is_some(),
            Self::Graph(config) => config.edge_features > 0,
            Self::Nodes(_) => false,
            Self::GraphVgae(config) => config.encoder.edge_features > 0,
            Self::Pretraining(config) => config.network.edge_features > 0,
        }
    }

    /// Parts that a batch must have for the model.
    pub fn needs(&self) -> BatchNeeds {
        let network = match self {
            Self::Graph(config) => Some(config),
            Self::Pretraining(config) => Some(&config.network),
            _ => None,
        };
        let space = match network {
            Some(config) => {
                // Paths and bonds follow the data's edges.
                let pairs = config.space.as_ref().map(|space| space.reads_pairs().then_some(space.cutoff));
                let cutoff = pairs.or(config.paths.as_ref().map(|_| None));
                let paths = config.bonds().is_some_and(|bonds| !bonds.listed.is_none());
                cutoff.map(|cutoff| SpaceOptions { cutoff, paths, ..SpaceOptions::POSITIONS })
            }
            _ => None,
        };
        BatchNeeds { edge_features: self.reads_edge_features(), space }
    }

    /// The model's node input.
    pub fn input(&self) -> &InputConfig {
        match self {
            Self::Vgae(config) => &config.input,
            Self::Gat(config) => &config.input,
            Self::Graph(config) => &config.input,
            Self::Nodes(config) => &config.input,
            Self::GraphVgae(config) => &config.encoder.input,
            Self::Pretraining(config) => &config.network.input,
        }
    }

    /// True if the model hashes CAN IDs, which the batch must then contain as its ID input.
    pub fn hashes_ids(&self) -> bool {
        self.input().id_hash.is_some()
    }

    /// Checks that a model can be built from the architecture. Call it before computing anything from its sizes.
    ///
    /// # Errors
    /// Names the first invalid field.
    pub fn check(&self) -> Result<(), ModelError> {
        match self {
            Self::Vgae(config) => config.check(),
            Self::Gat(config) => config.check(),
            Self::Graph(config) => config.check(),
            Self::Nodes(config) => config.check(),
            Self::GraphVgae(config) => config.check(),
            Self::Pretraining(config) => config.check(),
        }
    }

    /// Number of IDs in the model's vocabulary, UNKNOWN included.
    pub fn vocabulary_size(&self) -> i64 {
        match self {
            Self::Vgae(config) => config.vocabulary_size,
            Self::Gat(config) => config.vocabulary_size,
            // Their graphs have no IDs; UNKNOWN alone.
            Self::Graph(_) | Self::Nodes(_) | Self::GraphVgae(_) | Self::Pretraining(_) => 1,
        }
    }

    /// Parses the name of the model and the fields of its configuration, as stored for registered teachers.
    pub fn from_json(model: &str, fields: &Value) -> Result<Self, ModelError> {
        let json = serde_json::json!({ "model": model, "architecture": fields });
        serde_json::from_value(json).map_err(|error| ModelError::Architecture {
            field: "architecture",
            found: format!("{error}"),
            expected: "model is 'vgae' (hidden, latent, heads, embedding, vocabulary_size, dropout), \
                       'gat' (hidden, layers, heads, embedding, fc_layers, vocabulary_size, dropout), \
                       'graph' (kind, node_features, hidden, layers, heads, outputs, pooling, dropout), \
                       'nodes' (kind, node_features, hidden, layers, heads, outputs, activation, dropout), \
                       'graph-vgae' (encoder, which has the fields of 'graph', and scaling), \
                       or 'pretraining' (network, which has the fields of 'graph', pretext and scaling)",
        })
    }

    /// The fields of the configuration.
    pub fn to_json(&self) -> Value {
        let fields = match self {
            Self::Vgae(config) => serde_json::to_value(config),
            Self::Gat(config) => serde_json::to_value(config),
            Self::Graph(config) => serde_json::to_value(config),
            Self::Nodes(config) => serde_json::to_value(config),
            Self::GraphVgae(config) => serde_json::to_value(config),
            Self::Pretraining(config) => serde_json::to_value(config),
        };
        // Numbers and lists of numbers always convert to JSON.
        fields.unwrap_or(Value::Null)
    }
}

/// Parts of a batch that only some models read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BatchNeeds {
    /// Features of edges.
    pub edge_features: bool,
    /// Positions of nodes, and pairs of near nodes.
    pub space: Option<SpaceOptions>,
}

impl BatchNeeds {
    /// The needs of several models of one batch. Pairs reach as far as the largest cutoff: a network with a smaller one gives messages
    /// beyond it no weight.
    pub fn of_all(models: impl IntoIterator<Item = Self>) -> Self {
        let farther = |one: SpaceOptions, other: SpaceOptions| SpaceOptions {
            paths: one.paths || other.paths,
            ..if other.cutoff > one.cutoff { other } else { one }
        };
        models.into_iter().fold(Self::default(), |one, other| Self {
            edge_features: one.edge_features || other.edge_features,
            space: one.space.into_iter().chain(other.space).reduce(farther),
        })
    }
}

/// Identity of the dataset that a model was trained on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetIdentity {
    /// Name of the dataset.
    pub name: String,
    /// Content digest of its graphs.
    pub digest: String,
}

/// Everything about a trained model except its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelDescription {
    /// Kind and sizes of the model.
    #[serde(flatten)]
    pub architecture: Architecture,
    /// IDs of the model's vocabulary.
    pub vocabulary: Vocabulary,
    /// Statistics of foreign IDs, for a classifier that uses them as extra evidence: how often windows contain one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_ids: Option<ForeignIds>,
    /// The training dataset.
    pub dataset: DatasetIdentity,
    /// Number of frames per window.
    pub window: usize,
    /// Name of the model's size, such as `student`.
    pub size: String,
    /// Epoch of the weights, counted from 0.
    pub epoch: u64,
    /// Validation loss at that epoch, if known.
    pub val_loss: Option<f64>,
    /// Digest of the teacher's weights, if the model was distilled.
    pub teacher_digest: Option<String>,
    /// Version of the program that trained the model.
    pub created_by_version: String,
}
