//! A VGAE as teacher: μ if latents are compared, the reconstruction from it, and, if hints are used, the hidden layer before μ. Decoders
//! that no target needs are never loaded.

use kdgat_graph::Batch;
use kdgat_nn::attention::Backend;
use kdgat_nn::layers::NodeInput;
use kdgat_nn::vgae::{self, HiddenLayer, Mode, VgaeConfig};
use kdgat_nn::{EdgeInput, Scope};

use super::{Asked, NodeIndices, TeacherVocabulary, Views, conv_tensors, linear_tensors, norm_tensors, state_at};
use crate::model::{FrozenModel, LayerSpec, LayerState, ModelError, WeightViews};
use crate::targets::{TargetLayout, TargetName};

/// A sequential part of the model. If hints are used, the states from the latent on end with the hidden layer.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// → [x]
    Input,
    /// [x] → [x]
    Encoder(usize),
    /// [x] → [μ, μ]
    Latent,
    /// [μ, x] → [μ, x]
    Decoder(usize),
    /// [μ, x] → [μ, reconstruction], or the reconstruction alone
    Output,
}

/// A VGAE whose weights never change.
#[derive(Debug)]
pub struct FrozenVgae {
    config: VgaeConfig,
    indices: NodeIndices,
    kernel: Backend,
    asked: Asked,
    parts: Vec<Part>,
}

impl FrozenVgae {
    /// Creates a teacher of this architecture.
    pub fn new(config: VgaeConfig, vocabulary: TeacherVocabulary, kernel: Backend, asked: Asked) -> Self {
        let mut parts = vec![Part::Input];
        parts.extend((0..config.encoder_widths().len()).map(Part::Encoder));
        parts.push(Part::Latent);
        parts.extend((0..config.decoder_widths().len()).map(Part::Decoder));
        parts.push(Part::Output);
        Self { config, indices: NodeIndices::new(vocabulary, asked), kernel, asked, parts }
    }

    fn run(
        &self,
        part: Part,
        views: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, kdgat_nn::ModelError> {
        let mut source = Views(views);
        let mut scope = Scope::root(&mut source);
        let at = |position| state_at(&state, position);
        let edges = EdgeInput::new(batch, self.config.edge_scaling.as_ref())?;
        let hidden = |layer: HiddenLayer, x| layer.forward(&x, &edges, self.kernel, 0.0, Mode::Evaluation);
        let mut after = match part {
            Part::Input => {
                let VgaeConfig { input: config, vocabulary_size, embedding, .. } = &self.config;
                let input = NodeInput::new(&mut scope, config, *vocabulary_size, *embedding)?;
                vec![input.forward(&self.indices.of(batch)?, &config.continuous(batch)?, self.kernel)?]
            }
            Part::Encoder(index) => vec![hidden(HiddenLayer::encoder(&mut scope, &self.config, index)?, at(0)?)?],
            Part::Latent => {
                let hidden = at(0)?;
                let mean = vgae::mean_layer(&mut scope, &self.config)?.forward(&hidden, self.kernel)?;
                let mut after = vec![mean.shallow_clone(), mean];
                after.extend(self.asked.hidden.then_some(hidden));
                after
            }
            Part::Decoder(index) => {
                vec![at(0)?, hidden(HiddenLayer::decoder(&mut scope, &self.config, index)?, at(1)?)?]
            }
            Part::Output => {
                let output = vgae::output_layer(&mut scope, &self.config)?;
                let values = output.forward(&at(1)?, &edges, self.kernel)?;
                let mut after = if self.asked.latent { vec![at(0)?] } else { Vec::new() };
                after.push(vgae::reconstruction(values, &self.config, self.kernel, Mode::Evaluation)?);
                after
            }
        };
        after.extend(state.into_iter().skip(2));
        Ok(after)
    }
}

impl FrozenModel for FrozenVgae {
    fn target_layout(&self) -> TargetLayout {
        let latent = self.asked.latent.then_some(self.config.latent as usize);
        let layout = TargetLayout::vgae(latent, self.config.input.features().node_features());
        if !self.asked.hidden {
            return layout;
        }
        layout.with_hidden(TargetName::HiddenNodes, vgae::last_width(&self.config) as usize)
    }

    fn layers(&self) -> Vec<LayerSpec> {
        let conv = |path: String| conv_tensors(&path, self.config.edge_scaling.is_some());
        let spec = |part: &Part| match part {
            Part::Input => ("input".to_owned(), super::input_tensors(&self.config.input)),
            Part::Encoder(index) => {
                let mut tensors = conv(format!("encoder_layers.{index}"));
                tensors.extend(norm_tensors(&format!("encoder_bns.{index}")));
                (format!("encoder layer {index}"), tensors)
            }
            Part::Latent => ("latent".to_owned(), linear_tensors("z_mean")),
            Part::Decoder(index) => {
                let mut tensors = conv(format!("decoder_layers.{index}"));
                tensors.extend(norm_tensors(&format!("decoder_bns.{index}")));
                (format!("decoder layer {index}"), tensors)
            }
            Part::Output => {
                ("output".to_owned(), conv(format!("decoder_layers.{}", self.config.decoder_widths().len())))
            }
        };
        self.parts.iter().map(spec).map(|(name, tensors)| LayerSpec { name, tensors }).collect()
    }

    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, ModelError> {
        self.run(self.parts[layer], weights, batch, state).map_err(ModelError::from)
    }
}
