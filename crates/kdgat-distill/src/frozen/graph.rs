//! A graph network as teacher: its outputs for each graph, and the pooled outputs of its layers if hints are used.

use kdgat_graph::Batch;
use kdgat_nn::GnnConfig;
use kdgat_nn::Scope;
use kdgat_nn::attention::Backend;
use kdgat_nn::gnn::{GnnHead, GnnLayer, node_input};
use kdgat_nn::layers::Mode;
use tch::Tensor;

use super::{Asked, Views, state_at};
use crate::model::{FrozenModel, LayerSpec, LayerState, ModelError, WeightViews};
use crate::targets::{TargetLayout, TargetName};

/// A graph network whose weights never change.
///
/// Layers: each layer [pooled…, x] → [pooled…, pooled, x], the first from the batch's features; head → [outputs], followed by the pooled
/// outputs if hints are used.
#[derive(Debug)]
pub struct FrozenGraph {
    config: GnnConfig,
    kernel: Backend,
    asked: Asked,
}

impl FrozenGraph {
    /// Creates a teacher of this architecture.
    pub fn new(config: GnnConfig, kernel: Backend, asked: Asked) -> Self {
        Self { config, kernel, asked }
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
        let (config, kernel) = (&self.config, self.kernel);
        if (layer as i64) < config.layers {
            let x = match state.len() {
                0 => node_input(config, batch)?,
                // The last tensor is the node embedding, those before it are pooled outputs.
                count => {
                    let x = state_at(&state, count - 1)?;
                    state.pop();
                    x
                }
            };
            let layer = GnnLayer::new(&mut scope, config, layer as i64)?;
            let x = layer.forward(&x, batch, config, kernel, Mode::Evaluation)?;
            state.push(layer.pool(&x, batch, kernel)?);
            state.push(x);
            return Ok(state);
        }
        state.pop();
        let pooled = Tensor::f_cat(&state, 1)?;
        let head = GnnHead::new(&mut scope, config)?;
        let outputs = head.forward(&pooled, 0.0, kernel, Mode::Evaluation)?;
        Ok(match self.asked {
            Asked::Outputs => vec![outputs],
            Asked::OutputsAndHints => vec![outputs, pooled],
        })
    }
}

impl FrozenModel for FrozenGraph {
    fn target_layout(&self) -> TargetLayout {
        let layout = TargetLayout::classifier(self.config.outputs as usize);
        match self.asked {
            Asked::Outputs => layout,
            Asked::OutputsAndHints => {
                layout.with_hidden(TargetName::HiddenGraphs, self.config.pooled_columns() as usize)
            }
        }
    }

    fn layers(&self) -> Vec<LayerSpec> {
        let layer =
            |index| LayerSpec { name: format!("layer {index}"), tensors: GnnLayer::tensor_names(&self.config, index) };
        let mut layers: Vec<LayerSpec> = (0..self.config.layers).map(layer).collect();
        layers.push(LayerSpec { name: "head".to_owned(), tensors: GnnHead::tensor_names(&self.config) });
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
