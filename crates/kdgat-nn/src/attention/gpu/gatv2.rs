//! GATv2 on a GPU.

use std::ffi::CStr;

use kdgat_torch::autograd::{Forward, Function, Gradients};
use kdgat_torch::cuda_program::Argument;
use tch::{TchError, Tensor};

use super::super::computing_kind;
use super::layer::{Attention, Layer, NO_SLOPE, SavedWeights, Scores, array, number};

const SOURCE: usize = 0;
const TARGET: usize = 1;
const VECTOR: usize = 2;
const BIAS: usize = 3;
const EDGE_TERM: usize = 4;

/// The fused layer of GATv2 on a GPU. Inputs: source values `[sources, heads * channels]`, target values
/// `[targets, heads * channels]`, attention vector and bias `[heads * channels]` of the computing type, and optionally edge terms `[edges, heads * channels]`.
pub(in crate::attention) struct GpuGatV2 {
    pub(in crate::attention) layer: Layer,
}

/// Operands of the scores.
#[derive(Clone, Copy)]
struct Pairs<'a> {
    source: &'a Tensor,
    target: &'a Tensor,
    vector: &'a Tensor,
    edge_term: Option<&'a Tensor>,
}

impl Function for GpuGatV2 {
    const NAME: &'static CStr = c"fused graph attention (v2) on a GPU";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let edge_term = inputs.get(EDGE_TERM).copied();
        let pairs = Pairs { source: inputs[SOURCE], target: inputs[TARGET], vector: inputs[VECTOR], edge_term };
        let scores = self.scores(pairs)?;
        let Attention { output, signed, applied } =
            self.layer.attend(pairs.source, Scores::OfEdges(&scores), Some(inputs[BIAS]), recorded)?;
        let mut saved = Vec::new();
        if let Some(signed) = signed {
            saved.extend([SOURCE, TARGET, VECTOR].map(|index| inputs[index].shallow_clone()));
            saved.push(signed);
            saved.extend(edge_term.map(Tensor::shallow_clone));
        }
        Ok(self.layer.finish(output, applied, saved))
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else {
            return Ok(needed.iter().map(|_| None).collect());
        };
        let edge_term = (needed.len() > EDGE_TERM).then(|| &saved[4]);
        let pairs = Pairs { source: &saved[SOURCE], target: &saved[TARGET], vector: &saved[VECTOR], edge_term };
        let applied = self.layer.options.dropout.and_then(|_| saved.last());
        let weights = SavedWeights { signed: &saved[3], applied };
        let gradient = gradient.f_to_kind(pairs.source.f_kind()?)?.f_contiguous()?;
        let [of_scores, _] = self.layer.score_gradients(pairs.source, &gradient, weights, NO_SLOPE)?;
        let with_edges = needed.get(EDGE_TERM) == Some(&true);
        let [target, vector, edges] = self.target_gradients(pairs, &of_scores, with_edges)?;
        let source = self.source_gradients(pairs, &gradient, weights, &of_scores)?;
        let bias = match needed.get(BIAS) {
            Some(true) => Some(gradient.f_sum_dim_intlist(0_i64, false, computing_kind(pairs.source)?)?),
            _ => None,
        };
        let results = [Some(source), target, vector, bias, edges].into_iter().zip(needed);
        Ok(results.map(|(result, &needed)| result.filter(|_| needed)).collect())
    }
}

impl GpuGatV2 {
    /// Scores by edge, `[edges, heads]`.
    fn scores(&self, pairs: Pairs<'_>) -> Result<Tensor, TchError> {
        let scores = self.layer.per_edge(pairs.source)?;
        let mut arguments = self.by_target(pairs)?;
        arguments.push(Argument::Array(&scores));
        self.layer.launch("score_pairs", &arguments)?;
        Ok(scores)
    }

    /// Gradients of the target values, the attention vector and, if requested, the edge terms.
    fn target_gradients(
        &self,
        pairs: Pairs<'_>,
        of_scores: &Tensor,
        with_edges: bool,
    ) -> Result<[Option<Tensor>; 3], TchError> {
        let real = computing_kind(pairs.source)?;
        let target = pairs.target.f_empty_like()?;
        let edges = pairs.edge_term.filter(|_| with_edges).map(Tensor::f_empty_like).transpose()?;
        // One row per target, added up below.
        let vector_parts = Tensor::f_empty(target.size(), (real, target.device()))?;
        let mut arguments = self.by_target(pairs)?;
        arguments.extend([Argument::Array(of_scores), Argument::Array(&target), array(edges.as_ref())]);
        arguments.push(Argument::Array(&vector_parts));
        self.layer.launch("pairs_backward_targets", &arguments)?;
        let vector = vector_parts.f_sum_dim_intlist(0_i64, false, real)?;
        Ok([Some(target), Some(vector), edges])
    }

    fn source_gradients(
        &self,
        pairs: Pairs<'_>,
        gradient: &Tensor,
        weights: SavedWeights<'_>,
        of_scores: &Tensor,
    ) -> Result<Tensor, TchError> {
        let source = pairs.source.f_empty_like()?;
        let adjacency = &self.layer.adjacency;
        let mut arguments =
            [&adjacency.column_pointers, &adjacency.transposed, &adjacency.targets].map(Argument::Array).to_vec();
        arguments.extend(self.of_pairs(pairs)?);
        arguments.extend([Argument::Array(gradient), Argument::Array(weights.signed), array(weights.applied)]);
        arguments.extend([Argument::Array(of_scores), Argument::Array(&source)]);
        self.layer.launch_over_sources("pairs_backward_sources", &arguments)?;
        Ok(source)
    }

    /// The first arguments of kernels that walk over incoming edges.
    fn by_target<'a>(&'a self, pairs: Pairs<'a>) -> Result<Vec<Argument<'a>>, TchError> {
        let adjacency = &self.layer.adjacency;
        let mut arguments = [&adjacency.row_pointers, &adjacency.sources].map(Argument::Array).to_vec();
        arguments.extend(self.of_pairs(pairs)?);
        Ok(arguments)
    }

    fn of_pairs<'a>(&self, pairs: Pairs<'a>) -> Result<[Argument<'a>; 5], TchError> {
        let slope = number(computing_kind(pairs.source)?, self.layer.options.negative_slope);
        let [source, target, vector] = [pairs.source, pairs.target, pairs.vector].map(Argument::Array);
        Ok([source, target, array(pairs.edge_term), vector, slope])
    }
}
