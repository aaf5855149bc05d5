//! The kernels of `attention.cu` as a differentiable function on tensors of a GPU.

mod program;
#[cfg(test)]
mod tests;

use std::ffi::CStr;
use std::sync::Arc;

use tch::{Kind, TchError, Tensor};

pub(super) use program::program;

use super::kernels::Shape;
use super::{Attended, AttentionOptions};
use crate::graph::Adjacency;
use crate::torch::autograd::{self, Forward, Function};
use crate::torch::cuda_program::{Argument, Program};

/// Threads of a warp, which does one node and head.
const WARP: u64 = 32;

/// Inputs: values `[nodes, heads * channels]`, two score or attention tensors, and optionally a bias.
pub(super) struct GpuGat {
    pub(super) program: Arc<Program>,
    pub(super) adjacency: Adjacency,
    pub(super) shape: Shape,
    pub(super) options: AttentionOptions,
    /// Whether the second and third input are attention vectors (`[heads * channels]`) or scores (`[nodes, heads]`).
    pub(super) projected: bool,
}

/// Runs the layer. All inputs are contiguous on the program's device; all but the values have the computing type.
pub(super) fn run(function: GpuGat, inputs: &[&Tensor]) -> Result<Attended, TchError> {
    let return_weights = function.options.return_weights;
    let mut outputs = autograd::apply(function, inputs)?.into_iter();
    let output = outputs.next().unwrap_or_default();
    let weights = if return_weights { outputs.next().map(|weights| weights.detach()) } else { None };
    Ok(Attended { output, weights })
}

impl Function for GpuGat {
    const NAME: &'static CStr = c"fused graph attention on a GPU";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let [values, source, target] = [inputs[0], inputs[1], inputs[2]];
        let real = source.f_kind()?;
        let projected = self.projected.then(|| self.project_scores(values, source, target, real)).transpose()?;
        let [source_scores, target_scores] = projected.as_ref().map_or([source, target], |scores| scores.each_ref());
        let output = values.f_empty_like()?;
        let signed = recorded.then(|| self.per_edge(values, real)).transpose()?;
        let keep_applied = self.options.return_weights || recorded && self.options.dropout.is_some();
        let applied = keep_applied.then(|| self.per_edge(values, real)).transpose()?;
        self.launch(
            "attend",
            &[
                self.nodes()?,
                Argument::Array(&self.adjacency.row_pointers),
                Argument::Array(&self.adjacency.sources),
                Argument::Array(values),
                Argument::Array(source_scores),
                Argument::Array(target_scores),
                array(inputs.get(3).copied()),
                number(real, self.options.negative_slope),
                Argument::Int(i32::from(self.options.dropout.is_some())),
                Argument::UnsignedLong(self.options.dropout.map_or(0, |dropout| dropout.seed)),
                Argument::Unsigned(self.options.dropout.map_or(0, |dropout| dropout.threshold())),
                number(real, self.kept_scale()),
                Argument::Array(&output),
                array(signed.as_ref()),
                array(applied.as_ref()),
            ],
        )?;
        let mut saved = Vec::new();
        if let Some(signed) = signed {
            saved.extend([values.shallow_clone(), signed]);
            if self.projected {
                saved.extend([source.shallow_clone(), target.shallow_clone()]);
            }
            // Last, so that the others' places do not depend on it.
            saved.extend(applied.as_ref().filter(|_| self.options.dropout.is_some()).map(Tensor::shallow_clone));
        }
        let weights = applied.filter(|_| self.options.return_weights);
        Ok(Forward { outputs: [Some(output), weights].into_iter().flatten().collect(), saved })
    }

    fn backward(
        &self,
        saved: &[Tensor],
        gradients: &[Option<Tensor>],
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let Some(gradient) = &gradients[0] else {
            return Ok(needed.iter().map(|_| None).collect());
        };
        let (values, signed) = (&saved[0], &saved[1]);
        let gradient = gradient.f_to_kind(values.f_kind()?)?.f_contiguous()?;
        let applied = self.options.dropout.and_then(|_| saved.last());
        let attention = self.projected.then(|| [&saved[2], &saved[3]]);
        let [source_scores, target_scores, value_gradient] =
            self.gradients(values, &gradient, signed, applied, attention)?;
        let real = signed.f_kind()?;
        let [source, target] = match self.projected {
            true => self.attention_gradients(values, &source_scores, &target_scores)?,
            false => [source_scores, target_scores],
        };
        let bias = match needed.get(3) {
            Some(true) => Some(gradient.f_sum_dim_intlist(0_i64, false, real)?),
            _ => None,
        };
        let results = [Some(value_gradient), Some(source), Some(target), bias].into_iter().zip(needed);
        Ok(results.map(|(result, &needed)| result.filter(|_| needed)).collect())
    }
}

impl GpuGat {
    /// Gradients of the scores by source and by target, `[nodes, heads]`, and of the values.
    fn gradients(
        &self,
        values: &Tensor,
        gradient: &Tensor,
        signed: &Tensor,
        applied: Option<&Tensor>,
        attention: Option<[&Tensor; 2]>,
    ) -> Result<[Tensor; 3], TchError> {
        let real = signed.f_kind()?;
        let raw = signed.f_empty_like()?;
        let [source, target] = [self.per_node(values, real)?, self.per_node(values, real)?];
        let value_gradient = values.f_empty_like()?;
        self.launch(
            "attend_backward_targets",
            &[
                self.nodes()?,
                Argument::Array(&self.adjacency.row_pointers),
                Argument::Array(&self.adjacency.sources),
                Argument::Array(values),
                Argument::Array(gradient),
                Argument::Array(signed),
                array(applied),
                number(real, self.options.negative_slope),
                number(real, self.kept_scale()),
                Argument::Array(&raw),
                Argument::Array(&target),
            ],
        )?;
        self.launch(
            "attend_backward_sources",
            &[
                self.nodes()?,
                Argument::Array(&self.adjacency.column_pointers),
                Argument::Array(&self.adjacency.transposed),
                Argument::Array(&self.adjacency.targets),
                Argument::Array(gradient),
                Argument::Array(signed),
                array(applied),
                Argument::Array(&raw),
                Argument::Array(&target),
                array(attention.map(|[source, _]| source)),
                array(attention.map(|[_, target]| target)),
                Argument::Array(&source),
                Argument::Array(&value_gradient),
            ],
        )?;
        Ok([source, target, value_gradient])
    }

    /// Scores by source and by target, `[nodes, heads]` each.
    fn project_scores(
        &self,
        values: &Tensor,
        attention_source: &Tensor,
        attention_target: &Tensor,
        real: Kind,
    ) -> Result<[Tensor; 2], TchError> {
        let scores = [self.per_node(values, real)?, self.per_node(values, real)?];
        self.launch(
            "project_scores",
            &[
                self.nodes()?,
                Argument::Array(values),
                Argument::Array(attention_source),
                Argument::Array(attention_target),
                Argument::Array(&scores[0]),
                Argument::Array(&scores[1]),
            ],
        )?;
        Ok(scores)
    }

    /// Gradients of the two attention vectors, `[heads * channels]` each: sums over nodes, which are matrix products.
    fn attention_gradients(&self, values: &Tensor, source: &Tensor, target: &Tensor) -> Result<[Tensor; 2], TchError> {
        let (heads, channels) = (self.shape.heads as i64, self.shape.channels as i64);
        // [heads, 2, nodes] times [heads, nodes, channels]
        let scores = Tensor::f_stack(&[source, target], 0)?.f_permute([2, 0, 1])?;
        let values = values.f_to_kind(scores.f_kind()?)?.f_reshape([-1, heads, channels])?.f_transpose(0, 1)?;
        let gradients = scores.f_bmm(&values)?.f_transpose(0, 1)?.f_reshape([2, heads * channels])?;
        Ok([gradients.f_get(0)?, gradients.f_get(1)?])
    }

    fn launch(&self, kernel: &str, arguments: &[Argument<'_>]) -> Result<(), TchError> {
        let nodes = u64::try_from(super::num_nodes(&self.adjacency)).unwrap_or(0);
        Ok(self.program.launch(kernel, nodes * self.shape.heads as u64 * WARP, arguments)?)
    }

    fn nodes(&self) -> Result<Argument<'static>, TchError> {
        let nodes = super::num_nodes(&self.adjacency);
        let nodes = i32::try_from(nodes)
            .map_err(|_| TchError::Shape(format!("attention takes at most 2^31 nodes at once, there are {nodes}")))?;
        Ok(Argument::Int(nodes))
    }

    fn per_edge(&self, values: &Tensor, real: Kind) -> Result<Tensor, TchError> {
        Tensor::f_empty([self.adjacency.num_edges(), self.shape.heads as i64], (real, values.device()))
    }

    fn per_node(&self, values: &Tensor, real: Kind) -> Result<Tensor, TchError> {
        Tensor::f_empty([super::num_nodes(&self.adjacency), self.shape.heads as i64], (real, values.device()))
    }

    fn kept_scale(&self) -> f64 {
        self.options.dropout.map_or(1.0, |dropout| dropout.kept_scale())
    }
}

fn array(tensor: Option<&Tensor>) -> Argument<'_> {
    tensor.map_or(Argument::Absent, Argument::Array)
}

/// A number of the computing type.
fn number(real: Kind, value: f64) -> Argument<'static> {
    if real == Kind::Double { Argument::Double(value) } else { Argument::Float(value as f32) }
}
