//! Linear layers that can be differentiated twice, as forces need it.

use std::f64::consts::LN_2;

use tch::Tensor;

use crate::ModelError;
use crate::attention::Backend;
use crate::fused::smooth_activation::Smooth;
use crate::fused::{self, twice_linear};
use crate::layers::{Mode, with_enough_rows};
use crate::parameters::{Init, Scope};

/// A linear layer, `x Wᵀ + b` or `x Wᵀ`.
#[derive(Debug)]
pub struct Dense {
    kernel: Backend,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Dense {
    /// Creates a layer with a bias.
    pub fn new(scope: Scope, sizes: [i64; 2], kernel: Backend) -> Result<Self, ModelError> {
        Self::with_init(scope, sizes, Init::Glorot, kernel)
    }

    /// Creates a layer with a bias, and weights that begin with `init`.
    pub fn with_init(
        mut scope: Scope,
        [input, output]: [i64; 2],
        init: Init,
        kernel: Backend,
    ) -> Result<Self, ModelError> {
        let weight = scope.parameter("weight", &[output, input], init)?;
        Ok(Self { kernel, weight, bias: Some(scope.parameter("bias", &[output], Init::Constant(0.0))?) })
    }

    /// Creates three layers with biases for a network with activations between them, whose columns are `widths`, and PyTorch's initial weights.
    /// They are numbered as in a `Sequential` with the activations.
    pub fn chain(mut scope: Scope, widths: [i64; 4], kernel: Backend) -> Result<[Self; 3], ModelError> {
        let [input, first, second, output] = widths;
        let mut layer = |index: i64, input: i64, output: i64| {
            Self::with_init(scope.sub(index), [input, output], Init::Linear { fan_in: input }, kernel)
        };
        Ok([layer(0, input, first)?, layer(2, first, second)?, layer(4, second, output)?])
    }

    /// Creates a layer without a bias.
    pub fn without_bias(mut scope: Scope, [input, output]: [i64; 2], kernel: Backend) -> Result<Self, ModelError> {
        Ok(Self { kernel, weight: scope.parameter("weight", &[output, input], Init::Glorot)?, bias: None })
    }

    /// Applies the layer: `[rows, input]` → `[rows, output]`. In evaluation the weights are constants: a backward computes no gradients for
    /// them, and saves nothing for those.
    pub fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor, ModelError> {
        let (weight, bias) = (of_mode(&self.weight, mode), self.bias.as_ref().map(|bias| of_mode(bias, mode)));
        product(x, &weight, bias.as_ref(), self.kernel)
    }

    /// `[output, input]`
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Weight `[output, input]` and bias `[output]`, zeros for a layer without one; constants in evaluation.
    pub fn tensors(&self, mode: Mode) -> Result<[Tensor; 2], ModelError> {
        let bias = match &self.bias {
            Some(bias) => of_mode(bias, mode),
            None => self.weight.f_new_zeros([self.weight.size()[0]], (self.weight.f_kind()?, self.weight.device()))?,
        };
        Ok([of_mode(&self.weight, mode), bias])
    }

    /// Another handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        let bias = self.bias.as_ref().map(Tensor::shallow_clone);
        Self { kernel: self.kernel, weight: self.weight.shallow_clone(), bias }
    }

    /// The layer's parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &Tensor> {
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

/// `x Wᵀ + b`, `[rows, input]` → `[rows, output]`. A row of the result depends on that row of `x` alone, not on the number of rows.
pub fn product(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, kernel: Backend) -> Result<Tensor, ModelError> {
    if fused::linear::applies(kernel, x, weight)? {
        return Ok(twice_linear::linear(x, weight, bias)?);
    }
    with_enough_rows(x, |x| Ok(x.f_linear(weight, bias)?))
}

/// An activation of each element.
pub fn activated(x: &Tensor, activation: Smooth, kernel: Backend) -> Result<Tensor, ModelError> {
    if fused::applies(kernel, &[x]) {
        return Ok(activation.of(x)?);
    }
    Ok(match activation {
        Smooth::ShiftedSoftplus => x.f_softplus()?.f_sub_scalar(LN_2)?,
        Smooth::Silu => x.f_silu()?,
        Smooth::Sigmoid => x.f_sigmoid()?,
    })
}

/// A parameter in training, a constant in evaluation.
pub fn of_mode(parameter: &Tensor, mode: Mode) -> Tensor {
    match mode {
        Mode::Training => parameter.shallow_clone(),
        Mode::Evaluation => parameter.detach(),
    }
}
