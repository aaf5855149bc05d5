//! The teacher's model: pure functions of weights, a batch and the state between layers.

use std::collections::HashMap;

use tch::{TchError, Tensor};

use kdgat_graph::Batch;

use super::targets::{TargetLayout, TargetName, Targets};

/// A model whose weights never change.
///
/// It holds no tensor: every call receives views of the weights, which it must not hold after it returns. Its outputs must be a
/// function of the weights and the graph alone: evaluation mode (no dropout, running statistics), z = μ, and no influence between
/// the graphs of a batch. It runs without gradients.
pub trait FrozenModel: Send {
    /// The tensors that the model returns for a batch.
    fn target_layout(&self) -> TargetLayout;

    /// The sequential layers and the weights that each reads. Weights that no layer names are never copied to the device.
    fn layers(&self) -> Vec<LayerSpec>;

    /// Runs one layer. `state` is the result of the previous layer (empty for the first); the last layer returns the targets, in
    /// the order of [`FrozenModel::target_layout`].
    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, ModelError>;

    /// Runs all layers and checks the targets.
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

/// A sequential part of a model, the unit of the `layer` residency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSpec {
    /// Name for messages.
    pub name: String,
    /// Names of the weights that the layer reads. A weight that two layers read is listed in both.
    pub tensors: Vec<String>,
}

/// Weights by name, as views into the current copy.
#[derive(Debug, Default)]
pub struct WeightViews {
    views: HashMap<String, Tensor>,
}

impl WeightViews {
    /// Returns the weight called `name`; fails if the layer did not declare it.
    pub fn get(&self, name: &str) -> Result<Tensor, ModelError> {
        let view = self.views.get(name).ok_or_else(|| ModelError::MissingWeight { name: name.to_string() })?;
        Ok(view.shallow_clone())
    }

    /// The weights whose names begin with `prefix`, under their names without it.
    pub(super) fn below(&self, prefix: &str) -> Self {
        let stripped =
            |(name, view): (&String, &Tensor)| Some((name.strip_prefix(prefix)?.to_owned(), view.shallow_clone()));
        Self { views: self.views.iter().filter_map(stripped).collect() }
    }

    pub(super) fn insert(&mut self, name: String, view: Tensor) {
        self.views.insert(name, view);
    }
}

/// An error of a frozen model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A layer reads a weight that it did not declare or that is not among the weights.
    #[error(
        "the teacher has no weight '{name}' in the layer that reads it; its weights belong to another architecture"
    )]
    MissingWeight {
        /// Name of the weight.
        name: String,
    },
    /// The model returned another number of tensors than it declared.
    #[error("the teacher returned {found} target tensors, expected {expected}")]
    TargetCount {
        /// The declared layout, as text.
        expected: String,
        /// Number of tensors returned.
        found: usize,
    },
    /// A tensor has another shape or kind than declared.
    #[error("the teacher's target '{name}' is {found}, expected {expected}")]
    TargetShape {
        /// The target.
        name: TargetName,
        /// Kind and shape of the tensor.
        found: String,
        /// Declared kind and shape.
        expected: String,
    },
    /// libtorch failed, for example out of memory.
    #[error("the teacher's forward failed")]
    Torch(#[from] TchError),
    /// The weights do not fit the architecture, or a layer could not be computed.
    #[error("the teacher's layer failed")]
    Layer(#[from] kdgat_nn::ModelError),
    /// The targets need more memory than there is for them.
    #[error("{0}")]
    Memory(String),
    /// Any other error of a model.
    #[error("{0}")]
    Other(String),
}
