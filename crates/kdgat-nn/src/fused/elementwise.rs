//! Activations with dropout, and their derivatives from the output alone: ELU (Clevert et al. 2016), the logistic function and the identity as
//! passes of their own, ReLU for passes that contain it.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::activation::of_rows;
use super::activation::relu;
use super::dropout::{Dropout, GROUP};
use super::{Blocks, by_blocks, like, math};

/// A function of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elementwise {
    /// z
    Identity,
    /// max(z, 0)
    Relu,
    /// z if it is positive, otherwise eᶻ − 1.
    Elu,
    /// 1 / (1 + e⁻ᶻ)
    Sigmoid,
}

impl Elementwise {
    #[inline(always)]
    pub(super) fn of<I: Instructions>(self, z: f32) -> f32 {
        match self {
            Self::Identity => z,
            Self::Relu => relu(z),
            Self::Elu => {
                let negative = exp_minus_one::<I>(z);
                if z < 0.0 { negative } else { z }
            }
            Self::Sigmoid => math::sigmoid::<I>(z),
        }
    }

    /// Gradient of z, from the one of dropout after this function and the [output](after_dropout). `scale` is dropout's factor of elements
    /// that are not dropped.
    #[inline(always)]
    pub(super) fn gradient(self, gradient: f32, output: f32, scale: f32) -> f32 {
        let kept = match self {
            Self::Identity => gradient * scale,
            Self::Relu => gradient * if output > 0.0 { scale } else { 0.0 },
            // scale · eᶻ, with output = scale · (eᶻ − 1).
            Self::Elu => {
                let negative = output + scale;
                gradient * if output > 0.0 { scale } else { negative }
            }
            Self::Sigmoid => gradient * (1.0 - output / scale) * output,
        };
        if output.to_bits() == DROPPED { 0.0 } else { kept }
    }
}

/// Bits of −0, the output of dropped elements: the backward needs no mask. The output of others is never −0.
const DROPPED: u32 = 1 << 31;

/// Multiplies by dropout's factor, zero or its scale.
#[inline(always)]
pub(super) fn after_dropout(value: f32, factor: f32) -> f32 {
    if factor == 0.0 { -0.0 } else { value * factor + 0.0 }
}

/// eᶻ − 1 for z below 0, without cancellation near 0; close to −1 below -87.
#[inline(always)]
fn exp_minus_one<I: Instructions>(z: f32) -> f32 {
    // The series near 0; its error is below 2e-8 of the value there.
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0] {
        series = math::fused::<I>(series, z, coefficient);
    }
    let far = math::exp::<I>(z) - 1.0;
    if z > -0.35 { series * z } else { far }
}

/// Computes `dropout(function(x))` for `x` of any shape.
pub fn with_dropout(x: &Tensor, function: Elementwise, dropout: Option<Dropout>) -> Result<Tensor, TchError> {
    let dropout = of_rows(dropout, x);
    autograd::apply_one(WithDropout { function, dropout }, &[&x.f_contiguous()?])
}

struct WithDropout {
    function: Elementwise,
    dropout: Option<Dropout>,
}

impl Function for WithDropout {
    const NAME: &'static CStr = c"fused activation and dropout";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let x = view::read::<f32>("x", inputs[0])?;
        let blocks = Blocks::new(x.len(), 1, GROUP);
        let output = by_blocks("output", like(inputs[0])?, blocks, 1, |block, output| {
            let elements = blocks.rows(block);
            let first = elements.start;
            dispatch(Apply { x: &x[elements], function: self.function, dropout: self.dropout, first, output });
        })?;
        Ok(Forward::saving_output(output, recorded))
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, _: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None]) };
        let gradient = gradient.f_contiguous()?;
        let result = like(&gradient)?;
        let (gradient, output) = (view::read::<f32>("gradient", &gradient)?, view::read::<f32>("output", &saved[0])?);
        let (function, scale) = (self.function, self.dropout.map_or(1.0, Dropout::scale));
        let blocks = Blocks::new(output.len(), 1, GROUP);
        let result = by_blocks("gradient of x", result, blocks, 1, |block, result| {
            let elements = blocks.rows(block);
            let (gradient, output) = (&gradient[elements.clone()], &output[elements]);
            dispatch(Backward { gradient, output, function, scale, result });
        })?;
        Ok(vec![Some(result)])
    }
}

struct Apply<'a> {
    x: &'a [f32],
    function: Elementwise,
    dropout: Option<Dropout>,
    /// Position of the first element in the whole tensor.
    first: usize,
    output: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        match self.dropout {
            None => {
                for (output, &x) in self.output.iter_mut().zip(self.x) {
                    *output = self.function.of::<I>(x) + 0.0;
                }
            }
            Some(dropout) => {
                for (part, (output, x)) in self.output.chunks_mut(GROUP).zip(self.x.chunks(GROUP)).enumerate() {
                    dropout.factors::<I>(self.first + part * GROUP, output);
                    for (output, &x) in output.iter_mut().zip(x) {
                        *output = after_dropout(self.function.of::<I>(x), *output);
                    }
                }
            }
        }
    }
}

struct Backward<'a> {
    gradient: &'a [f32],
    output: &'a [f32],
    function: Elementwise,
    scale: f32,
    result: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for ((result, &gradient), &output) in self.result.iter_mut().zip(self.gradient).zip(self.output) {
            *result = self.function.gradient(gradient, output, self.scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_graphs::{numbers, relative_difference};
    use tch::Kind;

    #[test]
    fn elu_and_its_gradient_are_torchs() {
        let values = numbers(&[40, 37], 3) * numbers(&[40, 1], 4) * 100.0;
        let near = Tensor::from_slice(&[0.0f32, -0.0, -1e-8, 1e-8, -0.35, -0.3501, -100.0]);
        let values = Tensor::cat(&[values.flatten(0, 1), near], 0);
        let [ours, torchs] = [true, false].map(|fused| {
            let x = values.copy().set_requires_grad(true);
            let y = if fused { with_dropout(&x, Elementwise::Elu, None).unwrap() } else { x.elu() };
            (&y * numbers(&y.size(), 5)).sum(Kind::Float).backward();
            [y.detach(), x.grad()]
        });
        assert!(relative_difference(&ours[1], &torchs[1]) < 1e-6);
        let error = (&ours[0] - &torchs[0]).abs() / (torchs[0].abs() + 1e-30);
        assert!(error.max().double_value(&[]) < 1e-6, "relative to each value");
    }

    #[test]
    fn dropped_elements_have_no_gradient_and_others_the_scale() {
        let dropout = Dropout::new(0.4, 7).unwrap();
        let (ones, zeros) =
            (Tensor::ones([50_000], tch::kind::FLOAT_CPU), Tensor::zeros([50_000], tch::kind::FLOAT_CPU));
        let mask = with_dropout(&ones, Elementwise::Identity, Some(dropout)).unwrap();
        for (function, x, slope) in [
            (Elementwise::Identity, &zeros, 1.0),
            (Elementwise::Elu, &zeros, 1.0),
            (Elementwise::Elu, &-&ones, (-1.0f64).exp()),
            (Elementwise::Elu, &ones, 1.0),
        ] {
            let x = x.copy().set_requires_grad(true);
            let y = with_dropout(&x, function, Some(dropout)).unwrap();
            y.sum(Kind::Float).backward();
            assert!(relative_difference(&x.grad(), &(&mask * slope)) < 1e-6, "{function:?}");
            let plain = with_dropout(&x.detach(), function, None).unwrap();
            assert!(relative_difference(&y.detach(), &(&plain * &mask)) < 1e-6, "{function:?}");
        }
    }
}
