//! The blocks of a VGAE, built from its architecture.

use kdgat_graph::{EdgeScaling, FeatureSet};
use tch::Tensor;

use super::attention::Backend;
use super::blocks::{Block, Run, last, with_mean, with_reconstruction};
use super::layers::{BatchNorm, Linear, Mode, NodeInput, sigmoid};
use super::parameters::Scope;
use super::recompute::{Hidden, recomputed};
use super::vgae::VgaeConfig;
use super::{Conv, ModelError};

/// Number of heads of the decoder's hidden layers, if it divides the width.
const DECODER_HEADS: i64 = 4;

/// A block between the input of a VGAE and its reconstruction: the input → [x]; hidden layers of the encoder [x] → [x]; the mean
/// [x] → [hidden, μ, x], the first two if they are kept; hidden layers of the decoder, and its output → [μ, reconstruction, hidden].
#[derive(Debug)]
pub enum VgaeBlock {
    /// The input of the first layer.
    Input(NodeInput),
    /// Attention, batch norm, ReLU, dropout.
    Hidden(Conv, BatchNorm),
    /// The linear layer for μ.
    Mean(Linear),
    /// The attention layer that outputs the continuous features.
    Output(Conv),
}

impl Block for VgaeBlock {
    type Config = VgaeConfig;

    fn names(config: &VgaeConfig) -> Vec<String> {
        let layers = |part: &str, count: usize| (0..count).map(|index| format!("{part} layer {index}")).collect();
        let encoder: Vec<String> = layers("encoder", config.encoder_widths().len());
        let decoder: Vec<String> = layers("decoder", config.decoder_widths().len());
        let [input, latent, output] = ["input", "latent", "output"].map(|name| vec![name.to_owned()]);
        [input, encoder, latent, decoder, output].concat()
    }

    fn edge_scaling(config: &VgaeConfig) -> Option<&EdgeScaling> {
        config.edge_scaling.as_ref()
    }

    fn new(scope: &mut Scope, config: &VgaeConfig, index: usize, _: Backend) -> Result<Self, ModelError> {
        let (encoder, decoder) = (config.encoder_widths(), config.decoder_widths());
        let Some(index) = index.checked_sub(1) else {
            return Ok(Self::Input(NodeInput::new(scope, &config.input, config.vocabulary_size, config.embedding)?));
        };
        if let Some(&width) = encoder.get(index) {
            let (input, heads) = match index {
                0 => (config.input.columns(config.embedding), config.heads),
                _ => (encoder[index - 1], 1),
            };
            return hidden(scope, config, ("encoder", index), (input, width, heads));
        }
        let Some(index) = index.checked_sub(encoder.len() + 1) else {
            return Ok(Self::Mean(Linear::new(scope.sub("z_mean"), last_width(config), config.latent)?));
        };
        let input = if index == 0 { config.latent } else { decoder[index - 1] };
        match decoder.get(index) {
            Some(&width) => hidden(scope, config, ("decoder", index), (input, width, DECODER_HEADS)),
            None => {
                let shape = (input, config.input.node_features(), 1);
                let scope = &mut scope.sub("decoder_layers");
                Ok(Self::Output(Conv::new(scope.sub(index), shape, config.edge_scaling.is_some())?))
            }
        }
    }

    fn forward(&self, config: &VgaeConfig, mut state: Vec<Tensor>, run: &Run) -> Result<Vec<Tensor>, ModelError> {
        if let Self::Input(input) = self {
            return Ok(vec![input.of_batch(&config.input, run)?]);
        }
        let x = last(&mut state)?;
        match self {
            Self::Input(_) => {}
            Self::Hidden(conv, norm) => {
                let (edges, dropout, kernel) = (run.edges()?, config.dropout, run.kernel);
                state.push(match run.recomputes && run.mode == Mode::Training {
                    true => {
                        let hidden = Hidden { conv, norm: Some(norm), layer: norm.layer_id(), dropout };
                        recomputed(hidden, &x, edges, kernel)?
                    }
                    false => {
                        let x = conv.forward(&x, edges, kernel)?;
                        norm.forward(&x, edges.real_nodes, dropout, kernel, run.mode)?
                    }
                });
            }
            Self::Mean(linear) => {
                let mean = linear.forward(&x, run.kernel)?;
                state = with_mean(state, x, mean, run);
            }
            Self::Output(conv) => {
                let values = conv.forward(&x, run.edges()?, run.kernel)?;
                state = with_reconstruction(state, reconstruction(values, config, run)?, run);
            }
        }
        Ok(state)
    }
}

/// Builds hidden layer `index` of a part, from `input` to `width` columns.
fn hidden(
    scope: &mut Scope,
    config: &VgaeConfig,
    (part, index): (&str, usize),
    (input, width, heads): (i64, i64, i64),
) -> Result<VgaeBlock, ModelError> {
    let (conv, norm) = (format!("{part}_layers"), format!("{part}_bns"));
    let conv = Conv::dividing(scope.sub(conv).sub(index), (input, width, heads), config.edge_scaling.is_some())?;
    Ok(VgaeBlock::Hidden(conv, BatchNorm::new(scope.sub(norm).sub(index), width)?))
}

pub(super) fn log_variance_layer(scope: &mut Scope, config: &VgaeConfig) -> Result<Linear, ModelError> {
    Linear::new(scope.sub("z_logvar"), last_width(config), config.latent)
}

/// Converts the output layer's values to continuous features: those of the window set are between 0 and 1, standardised
/// ones are unbounded.
fn reconstruction(values: Tensor, config: &VgaeConfig, run: &Run) -> Result<Tensor, ModelError> {
    match config.input.features() {
        FeatureSet::Window => sigmoid(&values, run.kernel, run.mode),
        FeatureSet::Rich | FeatureSet::Profile | FeatureSet::Columns { .. } => Ok(values),
    }
}

/// Width of the encoder's last hidden layer.
pub fn last_width(config: &VgaeConfig) -> i64 {
    // `VgaeConfig::check` refuses an encoder without layers; a width of 0 would fail as well.
    config.encoder_widths().last().copied().unwrap_or(0)
}
