//! The end of a node network's hidden layers: normalisation, activation and dropout.

use tch::Tensor;

use super::ModelError;
use super::attention::Backend;
use super::fused;
use super::fused::elementwise::{Elementwise, with_dropout};
use super::fused::layer_norm::layer_norm;
use super::fused::norm::EPSILON;
use super::fused::step_seed::LayerId;
use super::layers::{BatchNorm, Mode, composed_dropout, mask_of, relu_dropout};
use super::node_gnn_config::{Activation, Norm};
use super::parameters::{Init, Scope};

/// A normalisation with the activation and dropout after it.
#[derive(Debug)]
pub struct NormedActivation {
    norm: NodeNorm,
    activation: Activation,
    layer: LayerId,
}

#[derive(Debug)]
enum NodeNorm {
    None,
    Batch(BatchNorm),
    Layer { weight: Tensor, bias: Tensor },
}

impl NormedActivation {
    /// Creates a normalisation of `columns` columns at `norms.N`.
    pub fn new(mut scope: Scope, columns: i64, norm: Norm, activation: Activation) -> Result<Self, ModelError> {
        let layer = scope.layer_id();
        let norm = match norm {
            Norm::None => NodeNorm::None,
            Norm::Batch => NodeNorm::Batch(BatchNorm::new(scope.sub("module"), columns)?),
            Norm::Layer => NodeNorm::Layer {
                weight: scope.parameter("weight", &[columns], Init::Constant(1.0))?,
                bias: scope.parameter("bias", &[columns], Init::Constant(0.0))?,
            },
        };
        Ok(Self { norm, activation, layer })
    }

    /// Applies normalisation, activation and dropout: `[rows, columns]` → the same shape.
    pub fn forward(&self, x: &Tensor, dropout: f64, kernel: Backend, mode: Mode) -> Result<Tensor, ModelError> {
        match &self.norm {
            NodeNorm::None => self.activate(x, dropout, kernel, mode),
            NodeNorm::Batch(norm) if self.activation == Activation::Relu => {
                norm.forward(x, None, dropout, kernel, mode)
            }
            NodeNorm::Batch(norm) => self.activate(&norm.normalised(x, mode)?, dropout, kernel, mode),
            NodeNorm::Layer { weight, bias } => {
                if fused::applies(kernel, &[x, weight, bias]) {
                    let mask = mask_of(self.layer, dropout, mode)?;
                    return Ok(layer_norm(x, weight, bias, self.activation.into(), mask)?);
                }
                let columns = x.size()[1];
                let normal = x.f_layer_norm([columns].as_slice(), Some(weight), Some(bias), EPSILON, true)?;
                self.activate(&normal, dropout, kernel, mode)
            }
        }
    }

    fn activate(&self, x: &Tensor, dropout: f64, kernel: Backend, mode: Mode) -> Result<Tensor, ModelError> {
        match self.activation {
            Activation::Relu => relu_dropout(x, self.layer, dropout, kernel, mode),
            Activation::Elu if fused::applies(kernel, &[x]) => {
                Ok(with_dropout(x, Elementwise::Elu, mask_of(self.layer, dropout, mode)?)?)
            }
            Activation::Elu => composed_dropout(&x.f_elu()?, dropout, mode),
        }
    }
}

impl From<Activation> for Elementwise {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Relu => Self::Relu,
            Activation::Elu => Self::Elu,
        }
    }
}
