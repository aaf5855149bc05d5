//! The end of a node network's hidden layers: normalisation, activation and dropout.

use tch::{Kind, Tensor};

use super::ModelError;
use super::attention::Backend;
use super::fused;
use super::fused::elementwise::{Elementwise, with_dropout};
use super::fused::layer_norm::layer_norm;
use super::fused::norm::{EPSILON, MOMENTUM};
use super::fused::step_seed::LayerId;
use super::layers::{BatchNorm, Mode, composed_dropout, mask_of, relu_dropout};
use super::node_gnn_config::{Activation, Norm};
use super::parameters::{Init, Scope};
use super::shared_statistics::{self, NormTensors, norm_of_all};

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
    /// Followed by ReLU.
    Batch(BatchNorm),
    /// Batch norm without an activation.
    PlainBatch(PlainBatchNorm),
    Layer {
        weight: Tensor,
        bias: Tensor,
    },
}

impl NormedActivation {
    /// Creates a normalisation of `columns` columns at `norms.N`.
    pub fn new(mut scope: Scope, columns: i64, norm: Norm, activation: Activation) -> Result<Self, ModelError> {
        let layer = scope.layer_id();
        let norm = match (norm, activation) {
            (Norm::None, _) => NodeNorm::None,
            (Norm::Batch, Activation::Relu) => NodeNorm::Batch(BatchNorm::new(scope.sub("module"), columns)?),
            (Norm::Batch, Activation::Elu) => NodeNorm::PlainBatch(PlainBatchNorm::new(scope.sub("module"), columns)?),
            (Norm::Layer, _) => NodeNorm::Layer {
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
            NodeNorm::Batch(norm) => norm.forward(x, None, dropout, kernel, mode),
            NodeNorm::PlainBatch(norm) => self.activate(&norm.forward(x, mode)?, dropout, kernel, mode),
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

/// Batch normalisation (Ioffe & Szegedy 2015) by torch's operation, for activations other than ReLU.
#[derive(Debug)]
struct PlainBatchNorm {
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    batches_seen: Tensor,
}

impl PlainBatchNorm {
    fn new(mut scope: Scope, columns: i64) -> Result<Self, ModelError> {
        Ok(Self {
            weight: scope.parameter("weight", &[columns], Init::Constant(1.0))?,
            bias: scope.parameter("bias", &[columns], Init::Constant(0.0))?,
            running_mean: scope.buffer("running_mean", &[columns], Kind::Float, Init::Constant(0.0))?,
            running_variance: scope.buffer("running_var", &[columns], Kind::Float, Init::Constant(1.0))?,
            batches_seen: scope.buffer("num_batches_tracked", &[], Kind::Int64, Init::Constant(0.0))?,
        })
    }

    fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor, ModelError> {
        if mode == Mode::Evaluation {
            // A product and a sum: an element's value does not depend on its position in the batch.
            let scale = self.running_variance.f_add_scalar(EPSILON)?.f_rsqrt()?.f_mul(&self.weight)?;
            let shift = self.bias.f_sub(&self.running_mean.f_mul(&scale)?)?;
            return Ok(x.f_mul(&scale)?.f_add(&shift)?);
        }
        let _ = tch::no_grad(|| self.batches_seen.shallow_clone().f_add_scalar_(1))?;
        // The running variance is the unbiased one, which a single row does not have.
        let running = Some([&self.running_mean, &self.running_variance]);
        if let Some(sums) = shared_statistics::current() {
            return norm_of_all(x, NormTensors { affine: [&self.weight, &self.bias], running }, &sums);
        }
        let running = running.filter(|_| x.size()[0] > 1);
        let (training, cudnn_enabled) = (true, true);
        Ok(x.f_batch_norm(
            Some(&self.weight),
            Some(&self.bias),
            running.map(|[mean, _]| mean),
            running.map(|[_, variance]| variance),
            training,
            MOMENTUM,
            EPSILON,
            cudnn_enabled,
        )?)
    }
}
