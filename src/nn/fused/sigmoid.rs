//! The logistic function.

use std::ffi::CStr;

use tch::{TchError, Tensor};

use super::{Blocks, like, math};
use crate::torch::autograd::{self, Forward, Function};
use crate::torch::parallel::Parts;
use crate::torch::simd::{Instructions, Kernel, dispatch};
use crate::torch::view;

/// `1 / (1 + exp(−x))` of each element; its value does not depend on its place.
pub fn sigmoid(x: &Tensor) -> Result<Tensor, TchError> {
    let mut outputs = autograd::apply(Sigmoid, &[&x.f_contiguous()?])?;
    Ok(outputs.pop().unwrap_or_default())
}

struct Sigmoid;

impl Function for Sigmoid {
    const NAME: &'static CStr = c"fused sigmoid";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let mut output = like(inputs[0])?;
        let x = view::read::<f32>("x", inputs[0])?;
        let blocks = Blocks::new(x.len(), 1, 1);
        let parts = Parts::new(view::write::<f32>("output", &mut output)?, blocks.bounds(1));
        blocks.for_each(|block| dispatch(Apply { x: &x[blocks.rows(block)], output: parts.take(block) }));
        drop(parts);
        let saved = if recorded { vec![output.shallow_clone()] } else { Vec::new() };
        Ok(Forward { outputs: vec![output], saved })
    }

    fn backward(
        &self,
        saved: &[Tensor],
        gradients: &[Option<Tensor>],
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None]) };
        let gradient = gradient.f_contiguous()?;
        let mut result = like(&gradient)?;
        let (gradient, output) = (view::read::<f32>("gradient", &gradient)?, view::read::<f32>("output", &saved[0])?);
        let blocks = Blocks::new(output.len(), 1, 1);
        let parts = Parts::new(view::write::<f32>("gradient", &mut result)?, blocks.bounds(1));
        blocks.for_each(|block| {
            let elements = blocks.rows(block);
            let (gradient, output) = (&gradient[elements.clone()], &output[elements]);
            dispatch(Backward { gradient, output, result: parts.take(block) });
        });
        drop(parts);
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
