//! The layers of a VGAE, as its architecture asks for them.

use kdgat_graph::FeatureSet;
use tch::Tensor;

use super::attention::Backend;
use super::layers::{BatchNorm, Linear, Mode, sigmoid};
use super::parameters::Scope;
use super::vgae::VgaeConfig;
use super::{Conv, EdgeInput, ModelError};

/// Heads of the decoder's hidden layers, where the width divides.
const DECODER_HEADS: i64 = 4;

/// Attention, batch norm, ReLU, dropout.
#[derive(Debug)]
pub struct HiddenLayer {
    pub(super) conv: Conv,
    pub(super) norm: BatchNorm,
}

impl HiddenLayer {
    /// Layer `index` of the encoder.
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

    /// Hidden layer `index` of the decoder.
    pub fn decoder(scope: &mut Scope, config: &VgaeConfig, index: usize) -> Result<Self, ModelError> {
        let widths = config.decoder_widths();
        let input = if index == 0 { config.latent } else { widths[index - 1] };
        let shape = (input, widths[index], DECODER_HEADS);
        let conv = Conv::dividing(scope.sub("decoder_layers").sub(index), shape, config.edge_scaling.is_some())?;
        Ok(Self { conv, norm: BatchNorm::new(scope.sub("decoder_bns").sub(index), widths[index])? })
    }

    /// `[num_nodes, input]` → `[num_nodes, width]`.
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

/// The linear layer to μ.
pub fn mean_layer(scope: &mut Scope, config: &VgaeConfig) -> Result<Linear, ModelError> {
    Linear::new(scope.sub("z_mean"), last_width(config), config.latent)
}

pub(super) fn log_variance_layer(scope: &mut Scope, config: &VgaeConfig) -> Result<Linear, ModelError> {
    Linear::new(scope.sub("z_logvar"), last_width(config), config.latent)
}

/// The attention layer to the continuous features.
pub fn output_layer(scope: &mut Scope, config: &VgaeConfig) -> Result<Conv, ModelError> {
    let widths = config.decoder_widths();
    let input = widths.last().copied().unwrap_or(config.latent);
    let shape = (input, config.input.node_features(), 1);
    Conv::new(scope.sub("decoder_layers").sub(widths.len()), shape, config.edge_scaling.is_some())
}

/// The continuous features from what the last layer gives: those of the window set lie between 0 and 1, standardised ones
/// have no bounds.
pub fn reconstruction(values: Tensor, config: &VgaeConfig, kernel: Backend, mode: Mode) -> Result<Tensor, ModelError> {
    match config.input.features() {
        FeatureSet::Window => sigmoid(&values, kernel, mode),
        FeatureSet::Rich => Ok(values),
    }
}

/// Columns of the encoder's last hidden layer.
pub fn last_width(config: &VgaeConfig) -> i64 {
    // `VgaeConfig::check` refuses an encoder without layers; a width of 0 could build nothing either.
    config.encoder_widths().last().copied().unwrap_or(0)
}
