//! The logistic function.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function};
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::{Blocks, by_blocks, like, math};

/// Computes `1 / (1 + exp(−x))` of each element, for `x` of any shape; a value does not depend on its position.
pub fn sigmoid(x: &Tensor) -> Result<Tensor, TchError> {
    let mut outputs = autograd::apply(Sigmoid, &[&x.f_contiguous()?])?;
    Ok(outputs.pop().unwrap_or_default())
}

struct Sigmoid;

impl Function for Sigmoid {
    const NAME: &'static CStr = c"fused sigmoid";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let x = view::read::<f32>("x", inputs[0])?;
        let blocks = Blocks::new(x.len(), 1, 1);
        let output = by_blocks("output", like(inputs[0])?, blocks, 1, |block, output| {
            dispatch(Apply { x: &x[blocks.rows(block)], output });
        })?;
        let saved = if recorded { vec![output.shallow_clone()] } else { Vec::new() };
        Ok(Forward { outputs: vec![output], saved })
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        gradients: Vec<Option<Tensor>>,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None]) };
        let gradient = gradient.f_contiguous()?;
        let result = like(&gradient)?;
        let (gradient, output) = (view::read::<f32>("gradient", &gradient)?, view::read::<f32>("output", &saved[0])?);
        let blocks = Blocks::new(output.len(), 1, 1);
        let result = by_blocks("gradient", result, blocks, 1, |block, result| {
            let elements = blocks.rows(block);
            dispatch(Backward { gradient: &gradient[elements.clone()], output: &output[elements], result });
        })?;
        Ok(vec![Some(result)])
    }
}

struct Apply<'a> {
    x: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (output, &x) in self.output.iter_mut().zip(self.x) {
            *output = math::sigmoid::<I>(x);
        }
    }
}

struct Backward<'a> {
    gradient: &'a [f32],
    output: &'a [f32],
    result: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Instructions>(self) {
        for ((result, &gradient), &output) in self.result.iter_mut().zip(self.gradient).zip(self.output) {
            *result = gradient * (1.0 - output) * output;
        }
    }
}
