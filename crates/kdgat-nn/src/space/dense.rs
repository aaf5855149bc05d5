//! Linear layers that can be differentiated twice, as forces need it.

use tch::Tensor;

use crate::ModelError;
use crate::layers::{Mode, with_enough_rows};
use crate::parameters::{Init, Scope};

/// A linear layer, `x Wᵀ + b` or `x Wᵀ`, of torch's operations.
#[derive(Debug)]
pub struct Dense {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Dense {
    /// Creates a layer with a bias.
    pub fn new(scope: Scope, input: i64, output: i64) -> Result<Self, ModelError> {
        Self::with_init(scope, [input, output], Init::Glorot)
    }

    /// Creates a layer with a bias, and weights that begin with `init`.
    pub fn with_init(mut scope: Scope, [input, output]: [i64; 2], init: Init) -> Result<Self, ModelError> {
        let weight = scope.parameter("weight", &[output, input], init)?;
        Ok(Self { weight, bias: Some(scope.parameter("bias", &[output], Init::Constant(0.0))?) })
    }

    /// Creates a layer without a bias.
    pub fn without_bias(mut scope: Scope, input: i64, output: i64) -> Result<Self, ModelError> {
        Ok(Self { weight: scope.parameter("weight", &[output, input], Init::Glorot)?, bias: None })
    }

    /// Applies the layer: `[rows, input]` → `[rows, output]`. In evaluation the weights are constants: a backward computes no gradients for
    /// them, and saves nothing for those.
    pub fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor, ModelError> {
        let (weight, bias) = (of_mode(&self.weight, mode), self.bias.as_ref().map(|bias| of_mode(bias, mode)));
        with_enough_rows(x, |x| Ok(x.f_linear(&weight, bias.as_ref())?))
    }

    /// Another handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        Self { weight: self.weight.shallow_clone(), bias: self.bias.as_ref().map(Tensor::shallow_clone) }
    }

    /// The layer's tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [Some(&self.weight), self.bias.as_ref()].into_iter().flatten()
    }

    /// `[output, input + 1]`: the weights with the bias as a last column; the weights alone for a layer without a bias.
    pub fn with_bias_column(&self, mode: Mode) -> Result<Tensor, ModelError> {
        let weight = of_mode(&self.weight, mode);
        Ok(match &self.bias {
            Some(bias) => Tensor::f_cat(&[weight, of_mode(bias, mode).f_unsqueeze(1)?], 1)?,
            None => weight,
        })
    }
}

/// A parameter in training, a constant in evaluation.
pub fn of_mode(parameter: &Tensor, mode: Mode) -> Tensor {
    match mode {
        Mode::Training => parameter.shallow_clone(),
        Mode::Evaluation => parameter.detach(),
    }
}
