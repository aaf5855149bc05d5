//! A VGAE of graphs as teacher: μ if latents are compared, the reconstruction from it, and, if hints are used, the encoder's last layer.

use kdgat_graph::Batch;
use kdgat_nn::Scope;
use kdgat_nn::attention::Backend;
use kdgat_nn::gnn::{GnnLayer, LayerRows};
use kdgat_nn::graph_vgae::{self, GraphVgaeConfig};
use kdgat_nn::layers::Mode;

use super::{Asked, Views, linear_tensors, state_at};
use crate::model::{FrozenModel, LayerSpec, LayerState, ModelError, WeightViews};
use crate::targets::{TargetLayout, TargetName};

/// A VGAE of graphs whose weights never change.
///
/// Layers: each layer of the encoder [x] → [x], the first from the batch's features; latent [x] → [μ, x]; decoder [μ, x] → [μ, reconstruction, x],
/// without μ or x if it is not asked for.
#[derive(Debug)]
pub struct FrozenGraphVgae {
    config: GraphVgaeConfig,
    kernel: Backend,
    asked: Asked,
}

impl FrozenGraphVgae {
    /// Creates a teacher of this architecture.
    pub fn new(config: GraphVgaeConfig, kernel: Backend, asked: Asked) -> Self {
        Self { config, kernel, asked }
    }

    fn run(
        &self,
        layer: i64,
        views: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, kdgat_nn::ModelError> {
        let mut source = Views(views);
        let mut scope = Scope::root(&mut source);
        let Self { config, kernel, asked } = self;
        if layer < config.encoder.layers {
            let nodes = match layer {
                0 => graph_vgae::features(config, batch)?,
                _ => state_at(&state, 0)?,
            };
            let rows = LayerRows { nodes, virtual_nodes: None };
            let layer = GnnLayer::new(&mut scope, &config.encoder, layer)?;
            return Ok(vec![layer.forward(rows, batch, &config.encoder, *kernel, Mode::Evaluation)?.nodes]);
        }
        if layer == config.encoder.layers {
            let hidden = state_at(&state, 0)?;
            let mean = graph_vgae::mean_layer(&mut scope, config)?.forward(&hidden, *kernel)?;
            return Ok(vec![mean, hidden]);
        }
        let mean = state_at(&state, 0)?;
        let decoder = graph_vgae::decoder(&mut scope, config)?;
        let decoded = decoder.forward(&mean, 0.0, *kernel, Mode::Evaluation)?;
        let mut after = if asked.latent { vec![mean] } else { Vec::new() };
        after.push(graph_vgae::reconstruction(&decoded, config)?);
        if asked.hidden {
            after.push(state_at(&state, 1)?);
        }
        Ok(after)
    }
}

impl FrozenModel for FrozenGraphVgae {
    fn target_layout(&self) -> TargetLayout {
        let config = &self.config;
        let latent = self.asked.latent.then_some(config.latent() as usize);
        let layout = TargetLayout::vgae(latent, config.encoder.node_features as usize);
        match self.asked.hidden {
            true => layout.with_hidden(TargetName::HiddenNodes, config.encoder.width() as usize),
            false => layout,
        }
    }

    fn layers(&self) -> Vec<LayerSpec> {
        let layer = |index| LayerSpec {
            name: format!("layer {index}"),
            tensors: GnnLayer::tensor_names(&self.config.encoder, index),
        };
        let mut layers: Vec<LayerSpec> = (0..self.config.encoder.layers).map(layer).collect();
        layers.push(LayerSpec { name: "latent".to_owned(), tensors: linear_tensors("z_mean") });
        layers.push(LayerSpec { name: "decoder".to_owned(), tensors: graph_vgae::decoder_tensors() });
        layers
    }

    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, ModelError> {
        self.run(layer as i64, weights, batch, state).map_err(ModelError::from)
    }
}
