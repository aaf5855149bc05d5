//! The fused kernels as a differentiable function on tensors.

use std::ffi::CStr;

use half::bf16;
use kdgat_graph::Adjacency;
use kdgat_torch::autograd::{Forward, Function, Gradients};
use kdgat_torch::view::{self, Storable};
use tch::{Device, Kind, TchError, Tensor};

use super::AttentionOptions;
use super::backward::{Backward, GradientSlices};
use super::element::{Element, Real};
use super::kernels::Shape;
use super::layout::{Edges, Partition};
use super::passes::{ForwardOutputs, Layer, Scores};
use super::softmax::SavedWeights;

/// The fused layer of GAT. Inputs: values `[sources, heads * channels]`, two score or attention tensors, and optionally a
/// bias. All are contiguous on the CPU; all but the values have the computing type.
pub(super) struct FusedGat {
    pub(super) adjacency: Adjacency,
    pub(super) shape: Shape,
    pub(super) options: AttentionOptions,
    /// True if the second and third inputs are attention vectors (`[heads * channels]`), false for scores
    /// (`[sources, heads]` and `[targets, heads]`).
    pub(super) projected: bool,
}

impl Function for FusedGat {
    const NAME: &'static CStr = c"fused graph attention";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        match inputs[0].f_kind()? {
            Kind::Double => self.forward_as::<f64>(inputs, recorded),
            Kind::BFloat16 => self.forward_as::<bf16>(inputs, recorded),
            _ => self.forward_as::<f32>(inputs, recorded),
        }
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else {
            return Ok(needed.iter().map(|_| None).collect());
        };
        match saved[0].f_kind()? {
            Kind::Double => self.backward_as::<f64>(&saved, gradient, needed),
            Kind::BFloat16 => self.backward_as::<bf16>(&saved, gradient, needed),
            _ => self.backward_as::<f32>(&saved, gradient, needed),
        }
    }
}

impl FusedGat {
    fn layer<'a, T: Element>(&'a self, values: &'a Tensor) -> Result<Layer<'a, T>, TchError> {
        let edges = Edges::new(&self.adjacency)?;
        Ok(Layer {
            edges,
            partition: Partition::new(&edges, self.shape.row()),
            shape: self.shape,
            negative_slope: Real::from_f64(self.options.negative_slope),
            dropout: self.options.dropout,
            values: view::read("values", values)?,
        })
    }

    fn per_edge(&self) -> [i64; 2] {
        [self.adjacency.num_edges(), self.shape.heads as i64]
    }

    fn forward_as<T: Element>(&self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let layer = self.layer::<T>(inputs[0])?;
        let (source, target) = (view::read("source scores", inputs[1])?, view::read("target scores", inputs[2])?);
        let scores = match self.projected {
            true => Scores::Projected { attention_source: source, attention_target: target },
            false => Scores::Given { source, target },
        };
        let bias = inputs.get(3).map(|bias| view::read("bias", bias)).transpose()?;
        let real = (T::Real::KIND, Device::Cpu);
        // Like the values: a row for each node, with heads and channels together or apart.
        let mut of_targets = inputs[0].size();
        of_targets[0] = layer.edges.num_targets() as i64;
        let mut output = Tensor::f_empty(of_targets, (T::KIND, Device::Cpu))?;
        let mut signed = recorded.then(|| Tensor::f_empty(self.per_edge(), real)).transpose()?;
        let keep_weights = self.options.return_weights || recorded && self.options.dropout.is_some();
        let mut weights = keep_weights.then(|| Tensor::f_empty(self.per_edge(), real)).transpose()?;
        layer.forward(
            scores,
            bias,
            ForwardOutputs {
                output: view::write("output", &mut output)?,
                signed: signed.as_mut().map(|signed| view::write("weights", signed)).transpose()?,
                weights: weights.as_mut().map(|weights| view::write("weights", weights)).transpose()?,
            },
        )?;
        let mut saved = Vec::new();
        if let Some(signed) = signed {
            saved.extend([inputs[0].shallow_clone(), signed]);
            if self.projected {
                saved.extend([inputs[1].shallow_clone(), inputs[2].shallow_clone()]);
            }
            // Last, so that the positions of the others do not depend on it.
            saved.extend(weights.as_ref().filter(|_| self.options.dropout.is_some()).map(Tensor::shallow_clone));
        }
        let weights = weights.filter(|_| self.options.return_weights);
        Ok(Forward { outputs: [Some(output), weights].into_iter().flatten().collect(), saved })
    }

    fn backward_as<T: Element>(
        &self,
        saved: &[Tensor],
        gradient: &Tensor,
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let layer = self.layer::<T>(&saved[0])?;
        let (sources, targets) = (layer.edges.num_sources() as i64, layer.edges.num_targets() as i64);
        let (heads, row) = (self.shape.heads as i64, self.shape.row() as i64);
        let gradient = gradient.f_to_kind(T::KIND)?.f_contiguous()?;
        let attention = match self.projected {
            true => Some([view::read("attention", &saved[2])?, view::read("attention", &saved[3])?]),
            false => None,
        };
        let dropped = self.options.dropout.map(|dropout| (&saved[saved.len() - 1], dropout.kept_scale()));
        let weights = SavedWeights {
            signed: view::read("weights", &saved[1])?,
            dropped: dropped.map(|(dropped, _)| view::read("weights", dropped)).transpose()?,
            kept_scale: Real::from_f64(dropped.map_or(1.0, |(_, scale)| scale)),
        };
        let real = (T::Real::KIND, Device::Cpu);
        let mut values = Tensor::f_empty(saved[0].size(), (T::KIND, Device::Cpu))?;
        let mut source_scores = Tensor::f_empty([sources, heads], real)?;
        let mut target_scores = Tensor::f_empty([targets, heads], real)?;
        let mut vectors = Tensor::f_empty([2, row], real)?;
        let mut bias = Tensor::f_empty([row], real)?;
        Backward { layer, gradient: view::read("gradient", &gradient)?, weights, attention }.run(GradientSlices {
            values: view::write("gradient of values", &mut values)?,
            source_scores: view::write("gradient of scores", &mut source_scores)?,
            target_scores: view::write("gradient of scores", &mut target_scores)?,
            attention: view::write("gradient of attention", &mut vectors)?,
            bias: view::write("gradient of bias", &mut bias)?,
        })?;
        let [source, target] = match self.projected {
            true => [vectors.f_get(0)?, vectors.f_get(1)?],
            false => [source_scores, target_scores],
        };
        let results = [values, source, target, bias].into_iter().zip(needed);
        Ok(results.map(|(result, &needed)| needed.then_some(result)).collect())
    }
}
