//! A GAT classifier as teacher: its logits, and the pooled outputs of its layers if hints are used.

use kdgat_graph::Batch;
use kdgat_nn::attention::Backend;
use kdgat_nn::gat::{self, CLASSES, GatConfig};
use kdgat_nn::layers::{Mode, NodeInput, pool_layers};
use kdgat_nn::{EdgeInput, Scope};

use super::{Asked, NodeIndices, TeacherVocabulary, Views, conv_tensors, linear_tensors, state_at};
use crate::model::{FrozenModel, LayerSpec, LayerState, ModelError, WeightViews};
use crate::targets::{TargetLayout, TargetName};
use tch::Tensor;

/// A GAT whose weights never change.
///
/// Layers: input → [x]; each attention layer [pooled…, x] → [pooled…, pooled, x]; head → [logits], followed by the pooled outputs
/// if hints are used.
#[derive(Debug)]
pub struct FrozenGat {
    config: GatConfig,
    indices: NodeIndices,
    kernel: Backend,
    asked: Asked,
}

impl FrozenGat {
    /// Creates a teacher of this architecture.
    pub fn new(config: GatConfig, vocabulary: TeacherVocabulary, kernel: Backend, asked: Asked) -> Self {
        Self { config, indices: NodeIndices::new(vocabulary, asked), kernel, asked }
    }

    fn run(
        &self,
        layer: usize,
        views: &WeightViews,
        batch: &Batch,
        mut state: LayerState,
    ) -> Result<LayerState, kdgat_nn::ModelError> {
        let mut source = Views(views);
        let mut scope = Scope::root(&mut source);
        if layer == 0 {
            let GatConfig { input: config, vocabulary_size, embedding, .. } = &self.config;
            let input = NodeInput::new(&mut scope, config, *vocabulary_size, *embedding)?;
            return Ok(vec![input.forward(&self.indices.of(batch)?, &config.continuous(batch)?, self.kernel)?]);
        }
        // The last tensor is the node embedding, those before it are pooled outputs.
        let x = state_at(&state, state.len().saturating_sub(1))?;
        state.pop();
        let index = layer as i64 - 1;
        if index < self.config.layers {
            let conv = gat::conv_layer(&mut scope, &self.config, index)?;
            let edges = EdgeInput::new(batch, self.config.edge_scaling.as_ref())?;
            let x = conv.forward(&x, &edges, self.kernel)?.f_relu()?;
            state.push(pool_layers(&[&x], batch, self.kernel)?);
            state.push(x);
            return Ok(state);
        }
        let head = gat::head(&mut scope, &self.config)?;
        let pooled = Tensor::f_cat(&state, 1)?;
        let logits = head.forward(&pooled, 0.0, self.kernel, Mode::Evaluation)?;
        Ok(if self.asked.hidden { vec![logits, pooled] } else { vec![logits] })
    }
}

impl FrozenModel for FrozenGat {
    fn target_layout(&self) -> TargetLayout {
        let layout = TargetLayout::classifier(CLASSES as usize);
        if !self.asked.hidden {
            return layout;
        }
        layout.with_hidden(TargetName::HiddenGraphs, self.config.embedding_columns() as usize)
    }

    fn layers(&self) -> Vec<LayerSpec> {
        let mut layers =
            vec![LayerSpec { name: "input".to_owned(), tensors: super::input_tensors(&self.config.input) }];
        layers.extend((0..self.config.layers).map(|index| LayerSpec {
            name: format!("attention layer {index}"),
            tensors: conv_tensors(&format!("convs.{index}"), self.config.edge_scaling.is_some()),
        }));
        let tensors = (0..self.config.fc_layers).flat_map(|index| linear_tensors(&format!("fc_layers.{}", 3 * index)));
        layers.push(LayerSpec { name: "head".to_owned(), tensors: tensors.collect() });
        layers
    }

    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, ModelError> {
        self.run(layer, weights, batch, state).map_err(ModelError::from)
    }
}
