//! The layers of a VGAE, built from its architecture.

use kdgat_graph::FeatureSet;
use tch::Tensor;

use super::attention::Backend;
use super::layers::{BatchNorm, Linear, Mode, sigmoid};
use super::parameters::Scope;
use super::vgae::VgaeConfig;
use super::{Conv, EdgeInput, ModelError};

/// Number of heads of the decoder's hidden layers, if it divides the width.
const DECODER_HEADS: i64 = 4;

/// A hidden layer: attention, batch norm, ReLU, dropout.
#[derive(Debug)]
pub struct HiddenLayer {
    pub(super) conv: Conv,
    pub(super) norm: BatchNorm,
}

impl HiddenLayer {
    /// Builds layer `index` of the encoder.
    pub fn encoder(scope: &mut Scope, config: &VgaeConfig, index: usize) -> Result<Self, ModelError> {
        let widths = config.encoder_widths();
        let (input, heads) = match index {
            0 => (config.input.columns(config.embedding), config.heads),
            _ => (widths[index - 1], 1),
        };
        let shape = (input, widths[index], heads);
        let conv = Conv::dividing(scope.sub("encoder_layers").sub(index), shape, config.edge_scaling.is_some())?;
        Ok(Self { conv, norm: BatchNorm::new(scope.sub("encoder_bns").sub(index), widths[index])? })
    }

    /// Builds hidden layer `index` of the decoder.
    pub fn decoder(scope: &mut Scope, config: &VgaeConfig, index: usize) -> Result<Self, ModelError> {
        let widths = config.decoder_widths();
        let input = if index == 0 { config.latent } else { widths[index - 1] };
        let shape = (input, widths[index], DECODER_HEADS);
        let conv = Conv::dividing(scope.sub("decoder_layers").sub(index), shape, config.edge_scaling.is_some())?;
        Ok(Self { conv, norm: BatchNorm::new(scope.sub("decoder_bns").sub(index), widths[index])? })
    }

    /// Applies the layer: `[num_nodes, input]` → `[num_nodes, width]`.
    pub fn forward(
        &self,
        x: &Tensor,
        edges: &EdgeInput,
        kernel: Backend,
        dropout: f64,
        mode: Mode,
    ) -> Result<Tensor, ModelError> {
        let x = self.conv.forward(x, edges, kernel)?;
        self.norm.forward(&x, edges.real_nodes, dropout, kernel, mode)
    }
}

/// Builds the linear layer for μ.
pub fn mean_layer(scope: &mut Scope, config: &VgaeConfig) -> Result<Linear, ModelError> {
    Linear::new(scope.sub("z_mean"), last_width(config), config.latent)
}

pub(super) fn log_variance_layer(scope: &mut Scope, config: &VgaeConfig) -> Result<Linear, ModelError> {
    Linear::new(scope.sub("z_logvar"), last_width(config), config.latent)
}

/// Builds the attention layer that outputs the continuous features.
pub fn output_layer(scope: &mut Scope, config: &VgaeConfig) -> Result<Conv, ModelError> {
    let widths = config.decoder_widths();
    let input = widths.last().copied().unwrap_or(config.latent);
    let shape = (input, config.input.node_features(), 1);
    Conv::new(scope.sub("decoder_layers").sub(widths.len()), shape, config.edge_scaling.is_some())
}

/// Converts the output layer's values to continuous features: those of the window set are between 0 and 1, standardised
/// ones are unbounded.
pub fn reconstruction(values: Tensor, config: &VgaeConfig, kernel: Backend, mode: Mode) -> Result<Tensor, ModelError> {
    match config.input.features() {
        FeatureSet::Window => sigmoid(&values, kernel, mode),
        FeatureSet::Rich | FeatureSet::Profile | FeatureSet::Columns { .. } => Ok(values),
    }
}

/// Width of the encoder's last hidden layer.
pub fn last_width(config: &VgaeConfig) -> i64 {
    // `VgaeConfig::check` refuses an encoder without layers; a width of 0 would fail as well.
    config.encoder_widths().last().copied().unwrap_or(0)
}
