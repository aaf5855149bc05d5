//! ReLU and dropout.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::dropout::{Dropout, GROUP};
use super::{Blocks, Gate, Pass, by_blocks, bytes_like, like, note_gates, without_values};

/// Computes `dropout(relu(x))` for `x` of any shape.
pub fn relu_dropout(x: &Tensor, dropout: Option<Dropout>, pass: Pass) -> Result<Tensor, TchError> {
    let dropout = of_rows(dropout, x);
    autograd::apply_one(ReluDropout { dropout, pass }, &[&x.f_contiguous()?])
}

/// The mask for rows as wide as those of `x`.
pub(super) fn of_rows(dropout: Option<Dropout>, x: &Tensor) -> Option<Dropout> {
    dropout.map(|dropout| dropout.of_width(x.numel() / (x.size().first().copied().unwrap_or(1).max(1) as usize)))
}

struct ReluDropout {
    dropout: Option<Dropout>,
    pass: Pass,
}

impl Function for ReluDropout {
    const NAME: &'static CStr = c"fused ReLU and dropout";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let x = view::read::<f32>("x", inputs[0])?;
        let blocks = Blocks::new(x.len(), 1, GROUP);
        let activate = |block: usize, output: &mut [f32]| {
            let elements = blocks.rows(block);
            let first = elements.start;
            dispatch(Activate { x: &x[elements], dropout: self.dropout, first, output });
        };
        if self.pass == Pass::Again {
            let gates = by_blocks("gates", bytes_like(inputs[0])?, blocks, 1, |block, gates| {
                let mut output = vec![0.0; gates.len()];
                activate(block, &mut output);
                note_gates(&output, gates);
            })?;
            return Ok(Forward { outputs: vec![without_values(&inputs[0].size())?], saved: vec![gates] });
        }
        let output = by_blocks("activations", like(inputs[0])?, blocks, 1, activate)?;
        // The output is positive if the input was positive and not dropped; the backward needs no more.
        Ok(Forward::saving_output(output, recorded))
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, _: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None]) };
        Ok(vec![Some(match self.pass {
            Pass::Forward => self.gradient::<f32>(gradient, &saved[0])?,
            Pass::Again => self.gradient::<u8>(gradient, &saved[0])?,
        })])
    }
}

impl ReluDropout {
    fn gradient<G: Gate + Sync>(&self, gradient: &Tensor, gates: &Tensor) -> Result<Tensor, TchError> {
        let gradient = gradient.f_contiguous()?;
        let result = like(&gradient)?;
        let (gradient, gates) = (view::read::<f32>("gradient", &gradient)?, view::read::<G>("gates", gates)?);
        let scale = self.dropout.map_or(1.0, Dropout::scale);
        let blocks = Blocks::new(gates.len(), 1, GROUP);
        by_blocks("gradient", result, blocks, 1, |block, result| {
            let elements = blocks.rows(block);
            dispatch(Backward { gradient: &gradient[elements.clone()], gates: &gates[elements], scale, result });
        })
    }
}

struct Activate<'a> {
    x: &'a [f32],
    dropout: Option<Dropout>,
    /// Position of the first element in the whole tensor.
    first: usize,
    output: &'a mut [f32],
}

impl Kernel for Activate<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        match self.dropout {
            None => {
                for (output, &x) in self.output.iter_mut().zip(self.x) {
                    *output = relu(x);
                }
            }
            Some(dropout) => {
                // Several groups at a time: a part of a batch may begin within one, which is then drawn twice.
                const DRAWN: usize = 8 * GROUP;
                for (part, (output, x)) in self.output.chunks_mut(DRAWN).zip(self.x.chunks(DRAWN)).enumerate() {
                    dropout.factors::<I>(self.first + part * DRAWN, output);
                    for (output, &x) in output.iter_mut().zip(x) {
                        *output *= relu(x);
                    }
                }
            }
        }
    }
}

/// ReLU of one number; preserves NaN, as torch does.
#[inline(always)]
pub(super) fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

struct Backward<'a, G> {
    gradient: &'a [f32],
    gates: &'a [G],
    scale: f32,
    result: &'a mut [f32],
}

impl<G: Gate> Kernel for Backward<'_, G> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for ((result, &gradient), &gate) in self.result.iter_mut().zip(self.gradient).zip(self.gates) {
            *result = if gate.is_open() { gradient * self.scale } else { 0.0 };
        }
    }
}
