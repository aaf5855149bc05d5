//! What the teacher thread needs of a model: pure functions of weights, batch and the state between layers.

use std::collections::HashMap;

use tch::{TchError, Tensor};

use kdgat_graph::Batch;

use super::targets::{TargetLayout, TargetName, Targets};

/// A model that is never trained again.
///
/// It holds no tensor: the weights come with every call, as views into wherever they lie at that moment, and must not
/// be kept beyond it. Its outputs must be a function of weights and graph alone: evaluation mode (no dropout, running
/// statistics), z = μ, and no influence of one graph of a batch on another. It runs without gradients.
pub trait FrozenModel: Send {
    /// Which tensors it gives for a batch.
    fn target_layout(&self) -> TargetLayout;

    /// Its sequential parts and the weights that each reads. Weights that no layer names are never loaded.
    fn layers(&self) -> Vec<LayerSpec>;

    /// Runs one layer. `state` is what the layer before returned (empty for the first one); the last layer returns
    /// the targets, in the order of [`FrozenModel::target_layout`].
    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, ModelError>;

    /// Runs all layers.
    fn forward(&self, weights: &WeightViews, batch: &Batch) -> Result<Targets, ModelError> {
        let mut state = LayerState::new();
        for layer in 0..self.layers().len() {
            state = self.forward_layer(layer, weights, batch, state)?;
        }
        self.target_layout().check(state, batch)
    }
}

/// Tensors that one layer passes to the next.
pub type LayerState = Vec<Tensor>;

/// A sequential part of a model, the unit of layer residency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSpec {
    /// For messages.
    pub name: String,
    /// Names of the weights that it reads. A weight that two layers read is named by both.
    pub tensors: Vec<String>,
}

/// Weights by name, where they lie now.
#[derive(Debug, Default)]
pub struct WeightViews {
    views: HashMap<String, Tensor>,
}

impl WeightViews {
    /// The weight of that name; an error if the layer did not declare it.
    pub fn get(&self, name: &str) -> Result<Tensor, ModelError> {
        let view = self.views.get(name).ok_or_else(|| ModelError::MissingWeight { name: name.to_string() })?;
        Ok(view.shallow_clone())
    }

    pub(super) fn insert(&mut self, name: String, view: Tensor) {
        self.views.insert(name, view);
    }
}

/// Why a frozen model gave no targets.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A layer read a weight that it did not declare, or that the weights do not hold.
    #[error("the teacher has no weight '{name}' in the layer that reads it; its weights are of another architecture")]
    MissingWeight {
        /// Name of the weight.
        name: String,
    },
    /// The number of tensors is not the declared one.
    #[error("the teacher gave {found} target tensors, expected {expected}")]
    TargetCount {
        /// The layout in words.
        expected: String,
        /// Tensors that came.
        found: usize,
    },
    /// A tensor is not as declared.
    #[error("the teacher's target '{name}' is {found}, expected {expected}")]
    TargetShape {
        /// Which target.
        name: TargetName,
        /// Kind and size that came.
        found: String,
        /// Kind and size that were declared.
        expected: String,
    },
    /// libtorch failed, for instance for want of memory.
    #[error("the teacher's forward failed")]
    Torch(#[from] TchError),
    /// The weights do not fit the architecture, or a layer could not be computed.
    #[error("the teacher's layer failed")]
    Layer(#[from] kdgat_nn::ModelError),
    /// Anything else that a model wants to say.
    #[error("{0}")]
    Other(String),
}
