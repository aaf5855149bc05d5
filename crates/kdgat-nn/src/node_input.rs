//! Input of a model per node: its embedded ID and its continuous features.

use kdgat_graph::{Batch, CarProfile, FeatureSet, NodeScaling};
use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::ModelError;
use super::attention::Backend;
use super::blocks::Run;
use super::fused::{self, hashed_input, input};
use super::id_hash::{HashEmbedding, IdHash};
use super::parameters::{Init, Scope};

/// Configuration of a model's node input. The default is the window features and an embedding row for each ID of the
/// vocabulary.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputConfig {
    /// Standardisation of node features. If set, the model reads the rich features, otherwise the window features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_scaling: Option<NodeScaling>,
    /// Profile of the training data's car. If set, the model reads the deviations from it, and no IDs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<CarProfile>,
    /// Hash embedding of IDs. If unset, IDs are looked up in the vocabulary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_hash: Option<IdHash>,
}

impl InputConfig {
    /// True for the default configuration, which model descriptions omit.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The feature set that the model reads.
    pub fn features(&self) -> FeatureSet {
        match (&self.profile, &self.node_scaling) {
            (Some(_), _) => FeatureSet::Profile,
            (None, Some(_)) => FeatureSet::Rich,
            (None, None) => FeatureSet::Window,
        }
    }

    /// Number of continuous features per node.
    pub fn node_features(&self) -> i64 {
        self.features().node_features() as i64
    }

    /// Number of columns per node in the first layer's input.
    pub fn columns(&self, embedding: i64) -> i64 {
        embedding + self.node_features()
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        if let Some(found) = self.node_scaling.as_ref().and_then(NodeScaling::problem) {
            let expected = "35 means and 35 deviations above 0";
            return Err(ModelError::Architecture { field: "node_scaling", found, expected });
        }
        if let Some(found) = self.profile.as_ref().and_then(CarProfile::problem) {
            let expected = "a profile learned by kdgat";
            return Err(ModelError::Architecture { field: "profile", found, expected });
        }
        if self.profile.is_some() && self.node_scaling.is_some() {
            let found = "a profile and a node_scaling".to_owned();
            let expected = "only one of them: deviations from a profile are not scaled";
            return Err(ModelError::Architecture { field: "profile", found, expected });
        }
        self.id_hash.as_ref().map_or(Ok(()), IdHash::check)
    }

    /// The batch's continuous features as the model reads and reconstructs them, `[num_nodes, node_features]`.
    ///
    /// # Errors
    /// If the batch has a different feature set.
    pub fn continuous(&self, batch: &Batch) -> Result<Tensor, ModelError> {
        let columns = batch.continuous.size().get(1).copied().unwrap_or(0);
        if columns != self.node_features() {
            let found = FeatureSet::of_width(columns as usize);
            let found =
                found.map_or_else(|| format!("{columns} of no known set"), |set| format!("those of the set '{set}'"));
            return Err(ModelError::Features { found, expected: self.features() });
        }
        match &self.node_scaling {
            None => Ok(batch.continuous.shallow_clone()),
            Some(scaling) => Ok(scaling.apply(&batch.continuous)?),
        }
    }
}

/// The first layer's input: the embedding of each node's ID, and its continuous features.
#[derive(Debug)]
pub enum NodeInput {
    /// Embedding table `[vocabulary_size, columns]`, one row per ID of the vocabulary.
    Vocabulary(Tensor),
    /// Hash embedding of any CAN ID.
    Hash(HashEmbedding),
}

impl NodeInput {
    /// Creates an embedding of `columns` columns: for each of `vocabulary_size` IDs or, if hashed, for any ID.
    pub fn new(
        scope: &mut Scope,
        config: &InputConfig,
        vocabulary_size: i64,
        columns: i64,
    ) -> Result<Self, ModelError> {
        config.check()?;
        Ok(match config.id_hash {
            None => {
                let shape = [vocabulary_size, columns];
                Self::Vocabulary(scope.sub("id_embedding").parameter("weight", &shape, Init::Normal)?)
            }
            Some(shape) => Self::Hash(HashEmbedding::new(scope, shape, columns)?),
        })
    }

    /// The input of a batch's nodes, `[num_nodes, columns + node_features]`.
    ///
    /// # Errors
    /// If the batch has a different feature set.
    pub fn of_batch(&self, config: &InputConfig, run: &Run) -> Result<Tensor, ModelError> {
        self.forward(&run.batch.id_input, &config.continuous(run.batch)?, run.kernel)
    }

    /// Embeds IDs `[num_nodes]` (vocabulary indices, or CAN IDs if hashed) and appends features `[num_nodes,
    /// node_features]`: → `[num_nodes, columns + node_features]`.
    pub fn forward(&self, ids: &Tensor, continuous: &Tensor, kernel: Backend) -> Result<Tensor, ModelError> {
        let embedded = match self {
            Self::Vocabulary(embedding) => {
                if fused::applies(kernel, &[embedding, continuous]) {
                    return Ok(input::embedding_and_features(embedding, ids, continuous)?);
                }
                embedding.f_index_select(0, ids)?
            }
            Self::Hash(hash) => {
                if fused::applies(kernel, &[&hash.buckets, &hash.weights, continuous]) {
                    return Ok(hashed_input::hashed_and_features(hash, ids, continuous)?);
                }
                hash.composed(ids)?
            }
        };
        let continuous = continuous.f_to_kind(embedded.kind())?;
        Ok(Tensor::f_cat(&[embedded, continuous], 1)?)
    }
}
