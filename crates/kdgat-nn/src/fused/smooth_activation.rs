//! Smooth activations that can be differentiated twice, as forces need it: one pass for each derivative.
//!
//! The derivative of f⁽ᵏ⁾(x)·g₁ … gₖ by a factor has the incoming gradient in its place, the one by x has it as one more factor of f⁽ᵏ⁺¹⁾(x).

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::{Blocks, by_blocks, expect_elements, like, math};

/// An activation with continuous derivatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Smooth {
    /// ln(1 + eˣ) − ln 2.
    ShiftedSoftplus,
    /// x / (1 + e⁻ˣ).
    Silu,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
}

impl Smooth {
    /// f(x) of each element of `x`, f32 on the CPU, of any shape.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn of(self, x: &Tensor) -> Result<Tensor, TchError> {
        derivative(self, &[x])
    }

    /// f(x), f'(x) and f''(x); what the caller does not use is not computed.
    #[inline(always)]
    pub(super) fn at<I: Instructions>(self, x: f32) -> [f32; 3] {
        let small = math::exp::<I>(-x.abs());
        let sigmoid = (if x < 0.0 { small } else { 1.0 }) / (1.0 + small);
        let spread = sigmoid * (1.0 - sigmoid);
        match self {
            Self::ShiftedSoftplus => {
                let positive = if x > 0.0 { x } else { 0.0 };
                [positive + (math::ln::<I>(1.0 + small) - std::f32::consts::LN_2), sigmoid, spread]
            }
            Self::Sigmoid => [sigmoid, spread, spread * (1.0 - 2.0 * sigmoid)],
            Self::Silu => [x * sigmoid, sigmoid + x * spread, spread * (2.0 + x * (1.0 - 2.0 * sigmoid))],
        }
    }
}

/// f⁽ᵏ⁾(x) times the product of k factors; `inputs` are x and the factors.
fn derivative(activation: Smooth, inputs: &[&Tensor]) -> Result<Tensor, TchError> {
    let inputs = inputs.iter().map(|tensor| tensor.f_contiguous()).collect::<Result<Vec<_>, _>>()?;
    autograd::apply_one(Derivative(activation), &inputs.iter().collect::<Vec<_>>())
}

struct Derivative(Smooth);

impl Function for Derivative {
    const NAME: &'static CStr = c"smooth activation";
    const TWICE: bool = true;

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let x = inputs[0];
        let mut values = Vec::with_capacity(inputs.len());
        for tensor in inputs {
            expect_elements("a factor of an activation", tensor, x.numel())?;
            values.push(view::read::<f32>("an activation", tensor)?);
        }
        let blocks = Blocks::new(x.numel(), 1, 1);
        let output = by_blocks("an activation", like(x)?, blocks, 1, |block, output: &mut [f32]| {
            let elements = blocks.rows(block);
            let of = |input: usize| &values[input][elements.clone()];
            match values.len() {
                1 => dispatch(Pass { activation: self.0, x: of(0), factors: [], output }),
                2 => dispatch(Pass { activation: self.0, x: of(0), factors: [of(1)], output }),
                _ => dispatch(Pass { activation: self.0, x: of(0), factors: [of(1), of(2)], output }),
            }
        })?;
        Ok(Forward::saving_inputs(vec![output], inputs, recorded))
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(needed.iter().map(|_| None).collect()) };
        let of_input = |(input, &is_needed): (usize, &bool)| {
            is_needed.then(|| {
                let mut inputs: Vec<&Tensor> = saved.iter().collect();
                match input {
                    0 if saved.len() > 2 => {
                        return Err(TchError::Kind("the third derivative of an activation is not computed".to_owned()));
                    }
                    0 => inputs.push(gradient),
                    factor => inputs[factor] = gradient,
                }
                derivative(self.0, &inputs)
            })
        };
        needed.iter().enumerate().map(of_input).map(Option::transpose).collect()
    }
}

/// The derivative of as many orders as there are factors, times these.
struct Pass<'a, const ORDER: usize> {
    activation: Smooth,
    x: &'a [f32],
    factors: [&'a [f32]; ORDER],
    output: &'a mut [f32],
}

impl<const ORDER: usize> Kernel for Pass<'_, ORDER> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let Self { activation, x, factors, output } = self;
        let length = output.len();
        let (x, factors) = (&x[..length], factors.map(|factor| &factor[..length]));
        // The choice of the activation outside of the loop, which the compiler turns into vectors.
        match activation {
            Smooth::ShiftedSoftplus => pass::<I, ORDER>(Smooth::ShiftedSoftplus, x, factors, output),
            Smooth::Silu => pass::<I, ORDER>(Smooth::Silu, x, factors, output),
            Smooth::Sigmoid => pass::<I, ORDER>(Smooth::Sigmoid, x, factors, output),
        }
    }
}

#[inline(always)]
fn pass<I: Instructions, const ORDER: usize>(
    activation: Smooth,
    x: &[f32],
    factors: [&[f32]; ORDER],
    output: &mut [f32],
) {
    for at in 0..output.len() {
        let mut value = activation.at::<I>(x[at])[ORDER];
        for factor in factors {
            value *= factor[at];
        }
        output[at] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    /// Values and the first two derivatives are those of torch's operations, also far from 0.
    #[test]
    fn values_and_derivatives_are_those_of_torch() {
        let x = Tensor::cat(
            &[
                Tensor::linspace(-30.0, 30.0, 997, (Kind::Float, Device::Cpu)),
                Tensor::from_slice(&[-95.0f32, 95.0, 0.0]),
            ],
            0,
        );
        let weights = Tensor::randn([1000], (Kind::Float, Device::Cpu));
        for activation in [Smooth::ShiftedSoftplus, Smooth::Silu, Smooth::Sigmoid] {
            let composed = |x: &Tensor| match activation {
                Smooth::ShiftedSoftplus => x.softplus() - std::f64::consts::LN_2,
                Smooth::Silu => x.silu(),
                Smooth::Sigmoid => x.sigmoid(),
            };
            let of = |function: &dyn Fn(&Tensor) -> Tensor| {
                let x = x.copy().set_requires_grad(true);
                let values = function(&x);
                let weighted = (&values * &weights).sum(Kind::Float);
                let slopes = autograd::recorded_gradients(&[&weighted], &[&x]).unwrap().remove(0).unwrap();
                slopes.square().sum(Kind::Float).backward();
                [values.detach(), slopes.detach(), x.grad()]
            };
            let (found, expected) = (of(&|x| activation.of(x).unwrap()), of(&composed));
            for (order, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let error = (found - expected).abs().max().double_value(&[]);
                assert!(error < 3e-6, "{activation:?}, derivative {order}: {error}");
            }
        }
    }
}
