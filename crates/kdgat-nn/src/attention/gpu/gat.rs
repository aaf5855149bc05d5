//! GAT on a GPU.

use std::ffi::CStr;

use kdgat_torch::autograd::{Forward, Function, Gradients};
use kdgat_torch::cuda_program::Argument;
use tch::{TchError, Tensor};

use super::layer::{Attention, Layer, SavedWeights, Scores, array};
use super::program::NODES_OF_PART;

/// The fused layer of GAT on a GPU. Inputs: values `[sources, heads * channels]`, two score or attention tensors of the
/// computing type, and optionally a bias.
pub(in crate::attention) struct GpuGat {
    pub(in crate::attention) layer: Layer,
    /// True if the second and third inputs are attention vectors (`[heads * channels]`), false for scores
    /// (`[sources, heads]` and `[targets, heads]`).
    pub(in crate::attention) projected: bool,
}

impl Function for GpuGat {
    const NAME: &'static CStr = c"fused graph attention on a GPU";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let [values, source, target] = [inputs[0], inputs[1], inputs[2]];
        let projected = self.projected.then(|| self.project_scores(values, source, target)).transpose()?;
        let scores = projected.as_ref().map_or([source, target], |scores| scores.each_ref());
        let Attention { output, signed, applied } =
            self.layer.attend(values, Scores::OfNodes(scores), inputs.get(3).copied(), recorded)?;
        let mut saved = Vec::new();
        if let Some(signed) = signed {
            saved.extend([values.shallow_clone(), signed]);
            if self.projected {
                saved.extend([source.shallow_clone(), target.shallow_clone()]);
            }
        }
        Ok(self.layer.finish(output, applied, saved))
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else {
            return Ok(needed.iter().map(|_| None).collect());
        };
        let (values, signed) = (&saved[0], &saved[1]);
        let gradient = gradient.f_to_kind(values.f_kind()?)?.f_contiguous()?;
        let applied = self.layer.options.dropout.and_then(|_| saved.last());
        let vectors = self.projected.then(|| [&saved[2], &saved[3]]);
        let weights = SavedWeights { signed, applied };
        let [source_scores, target_scores, value_gradient] = self.gradients(values, &gradient, weights, vectors)?;
        let [source, target] = match self.projected {
            true => self.vector_gradients(values, &source_scores, &target_scores)?,
            false => [source_scores, target_scores],
        };
        let bias = match needed.get(3) {
            Some(true) => Some(gradient.f_sum_dim_intlist(0_i64, false, signed.f_kind()?)?),
            _ => None,
        };
        let results = [Some(value_gradient), Some(source), Some(target), bias].into_iter().zip(needed);
        Ok(results.map(|(result, &needed)| result.filter(|_| needed)).collect())
    }
}

impl GpuGat {
    /// Scores by source and by target, `[sources, heads]` each.
    fn project_scores(&self, values: &Tensor, source: &Tensor, target: &Tensor) -> Result<[Tensor; 2], TchError> {
        let sources = self.layer.adjacency.num_sources();
        let scores = [self.layer.per_node(values, sources)?, self.layer.per_node(values, sources)?];
        let arrays = [values, source, target, &scores[0], &scores[1]];
        self.layer.launch_over_sources("project_scores", &arrays.map(Argument::Array))?;
        Ok(scores)
    }

    /// Gradients of the scores by source and by target, and of the values; `vectors` are the attention vectors if the scores
    /// were projected: the scores by target are then those of all sources, with zeros for sources that are no targets.
    fn gradients(
        &self,
        values: &Tensor,
        gradient: &Tensor,
        weights: SavedWeights<'_>,
        vectors: Option<[&Tensor; 2]>,
    ) -> Result<[Tensor; 3], TchError> {
        let negative_slope = self.layer.options.negative_slope;
        let [raw, mut target] = self.layer.score_gradients(values, gradient, weights, negative_slope)?;
        let adjacency = &self.layer.adjacency;
        let others = adjacency.num_sources() - adjacency.num_targets();
        if vectors.is_some() && others > 0 {
            target = target.f_constant_pad_nd([0, 0, 0, others].as_slice())?;
        }
        let (source, value_gradient) = (self.layer.per_node(values, adjacency.num_sources())?, values.f_empty_like()?);
        self.layer.launch_over_sources(
            "attend_backward_sources",
            &[
                Argument::Array(&adjacency.column_pointers),
                Argument::Array(&adjacency.transposed),
                Argument::Array(&adjacency.targets),
                Argument::Array(gradient),
                Argument::Array(weights.signed),
                array(weights.applied),
                Argument::Array(&raw),
                Argument::Array(&target),
                array(vectors.map(|[source, _]| source)),
                array(vectors.map(|[_, target]| target)),
                Argument::Array(&source),
                Argument::Array(&value_gradient),
            ],
        )?;
        Ok([source, target, value_gradient])
    }

    /// Gradients of the two attention vectors, `[heads * channels]` each. Does not use torch's matrix product, which
    /// may be set to round to 19 bits (TF32).
    fn vector_gradients(&self, values: &Tensor, source: &Tensor, target: &Tensor) -> Result<[Tensor; 2], TchError> {
        let nodes = self.layer.adjacency.num_sources();
        let count = u64::try_from(nodes).unwrap_or(0).div_ceil(NODES_OF_PART);
        let real = source.f_kind()?;
        let parts = Tensor::f_empty([count as i64, 2, self.layer.shape.row() as i64], (real, values.device()))?;
        let warps = count * self.layer.shape.heads as u64;
        let arrays = [values, source, target, &parts].map(Argument::Array);
        self.layer.launch_warps("add_up_vector_gradients", nodes, warps, &arrays)?;
        let gradients = parts.f_sum_dim_intlist(0_i64, false, real)?;
        Ok([gradients.f_get(0)?, gradients.f_get(1)?])
    }
}
