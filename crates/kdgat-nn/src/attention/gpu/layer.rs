//! Operations shared by GAT and GATv2 on a GPU: from scores to weighted sums, and the backward to the scores.

use std::sync::Arc;

use kdgat_graph::Adjacency;
use kdgat_torch::autograd::Forward;
use kdgat_torch::cuda_program::{Argument, Program};
use tch::{Device, Kind, TchError, Tensor};

use super::super::kernels::Shape;
use super::super::{AttentionError, AttentionOptions, computing_kind, expect};
use super::program::{LayerKind, program};

/// Threads of a warp; one warp processes one node and head.
const WARP: u64 = 32;
/// Slope of a leaky ReLU that changes nothing: GATv2 applies its own before the scores of edges.
pub(super) const NO_SLOPE: f64 = 1.0;

/// One layer's kernels, edges and options.
pub(in crate::attention) struct Layer {
    program: Arc<Program>,
    pub(super) adjacency: Adjacency,
    pub(super) shape: Shape,
    pub(super) options: AttentionOptions,
}

/// Source of the attention weights.
#[derive(Clone, Copy)]
pub(super) enum Scores<'a> {
    /// Scores by source and by target, `[sources, heads]` and `[targets or sources, heads]`; their sum is passed through the leaky ReLU.
    OfNodes([&'a Tensor; 2]),
    /// Scores by edge, `[edges, heads]`, used as they are.
    OfEdges(&'a Tensor),
}

/// Results of a forward that the output and the backward need.
pub(super) struct Attention {
    /// The output, `[targets, heads * channels]`.
    pub(super) output: Tensor,
    /// Weights before dropout with the sign of the score, `[edges, heads]`, if a backward follows.
    pub(super) signed: Option<Tensor>,
    /// Weights after dropout, `[edges, heads]`, if requested or needed by dropout's backward.
    pub(super) applied: Option<Tensor>,
}

/// The weights that a backward reads.
#[derive(Clone, Copy)]
pub(super) struct SavedWeights<'a> {
    pub(super) signed: &'a Tensor,
    /// Weights after dropout; `None` without dropout.
    pub(super) applied: Option<&'a Tensor>,
}

impl Layer {
    /// Prepares the kernels for values of `kind` on `device`; the edges must be there, too.
    pub(in crate::attention) fn new(
        layer: LayerKind,
        device: Device,
        kind: Kind,
        adjacency: &Adjacency,
        shape: Shape,
        options: &AttentionOptions,
    ) -> Result<Self, AttentionError> {
        let (targets, sources, edges) = (adjacency.num_targets(), adjacency.num_sources(), adjacency.num_edges());
        let arrays = [
            ("row pointers", &adjacency.row_pointers, targets + 1),
            ("sources", &adjacency.sources, edges),
            ("targets", &adjacency.targets, edges),
            ("column pointers", &adjacency.column_pointers, sources + 1),
            ("transposed edges", &adjacency.transposed, edges),
        ];
        for (name, array, length) in arrays {
            expect(name, array, &[length])?;
            let found = array.f_kind()?;
            if found != Kind::Int {
                return Err(TchError::Kind(format!("{name} have type {found:?}, expected Int")).into());
            }
        }
        let program = program(layer, device, shape, kind)?;
        Ok(Self { program, adjacency: adjacency.shallow_clone(), shape, options: options.clone() })
    }

    /// Computes weights from scores, and the weighted sums of the values.
    pub(super) fn attend(
        &self,
        values: &Tensor,
        scores: Scores<'_>,
        bias: Option<&Tensor>,
        recorded: bool,
    ) -> Result<Attention, TchError> {
        let ([source, target], of_edges, negative_slope) = match scores {
            Scores::OfNodes(scores) => (scores.map(Argument::Array), Argument::Absent, self.options.negative_slope),
            Scores::OfEdges(scores) => ([Argument::Absent; 2], Argument::Array(scores), NO_SLOPE),
        };
        let real = computing_kind(values)?;
        let dropout = self.options.dropout;
        // Like the values: a row for each node, with heads and channels together or apart.
        let mut size = values.size();
        size[0] = self.adjacency.num_targets();
        let output = Tensor::f_empty(size, (values.f_kind()?, values.device()))?;
        let signed = recorded.then(|| self.per_edge(values)).transpose()?;
        let keep_applied = self.options.return_weights || recorded && dropout.is_some();
        let applied = keep_applied.then(|| self.per_edge(values)).transpose()?;
        self.launch(
            "attend",
            &[
                Argument::Array(&self.adjacency.row_pointers),
                Argument::Array(&self.adjacency.sources),
                Argument::Array(values),
                source,
                target,
                of_edges,
                array(bias),
                number(real, negative_slope),
                Argument::Int(i32::from(dropout.is_some())),
                Argument::UnsignedLong(dropout.map_or(0, |dropout| dropout.seed_of_part())),
                Argument::Unsigned(dropout.map_or(0, |dropout| dropout.threshold())),
                number(real, self.kept_scale()),
                Argument::Array(&output),
                array(signed.as_ref()),
                array(applied.as_ref()),
            ],
        )?;
        Ok(Attention { output, signed, applied })
    }

    /// Assembles the result of a forward: the output, the applied weights if requested, and the saved tensors, if any.
    /// Dropout's weights are saved last, so that the positions of the others do not depend on them.
    pub(super) fn finish(&self, output: Tensor, applied: Option<Tensor>, mut saved: Vec<Tensor>) -> Forward {
        if !saved.is_empty() && self.options.dropout.is_some() {
            saved.extend(applied.as_ref().map(Tensor::shallow_clone));
        }
        let weights = applied.filter(|_| self.options.return_weights);
        Forward { outputs: [Some(output), weights].into_iter().flatten().collect(), saved }
    }

    /// Gradients of the scores of edges before the leaky ReLU, `[edges, heads]`, and their sums by target,
    /// `[targets, heads]`.
    pub(super) fn score_gradients(
        &self,
        values: &Tensor,
        gradient: &Tensor,
        weights: SavedWeights<'_>,
        negative_slope: f64,
    ) -> Result<[Tensor; 2], TchError> {
        let real = computing_kind(values)?;
        let [of_edges, of_targets] = [self.per_edge(values)?, self.per_node(values, self.adjacency.num_targets())?];
        self.launch(
            "attend_backward_targets",
            &[
                Argument::Array(&self.adjacency.row_pointers),
                Argument::Array(&self.adjacency.sources),
                Argument::Array(values),
                Argument::Array(gradient),
                Argument::Array(weights.signed),
                array(weights.applied),
                number(real, negative_slope),
                number(real, self.kept_scale()),
                Argument::Array(&of_edges),
                Argument::Array(&of_targets),
            ],
        )?;
        Ok([of_edges, of_targets])
    }

    /// Runs a kernel with one warp per target and head.
    pub(super) fn launch(&self, kernel: &str, arguments: &[Argument<'_>]) -> Result<(), TchError> {
        self.launch_over(kernel, self.adjacency.num_targets(), arguments)
    }

    /// Runs a kernel with one warp per source and head.
    pub(super) fn launch_over_sources(&self, kernel: &str, arguments: &[Argument<'_>]) -> Result<(), TchError> {
        self.launch_over(kernel, self.adjacency.num_sources(), arguments)
    }

    fn launch_over(&self, kernel: &str, nodes: i64, arguments: &[Argument<'_>]) -> Result<(), TchError> {
        let warps = u64::try_from(nodes).unwrap_or(0) * self.shape.heads as u64;
        self.launch_warps(kernel, nodes, warps, arguments)
    }

    /// Runs a kernel with `warps` warps; its first parameter is the number of nodes.
    pub(super) fn launch_warps(
        &self,
        kernel: &str,
        nodes: i64,
        warps: u64,
        arguments: &[Argument<'_>],
    ) -> Result<(), TchError> {
        let nodes = i32::try_from(nodes)
            .map_err(|_| TchError::Shape(format!("attention supports at most 2^31 nodes, got {nodes}")))?;
        let arguments: Vec<Argument> = std::iter::once(Argument::Int(nodes)).chain(arguments.iter().copied()).collect();
        Ok(self.program.launch(kernel, warps * WARP, &arguments)?)
    }

    /// Uninitialised tensor `[edges, heads]` of the computing type.
    pub(super) fn per_edge(&self, values: &Tensor) -> Result<Tensor, TchError> {
        let size = [self.adjacency.num_edges(), self.shape.heads as i64];
        Tensor::f_empty(size, (computing_kind(values)?, values.device()))
    }

    /// Uninitialised tensor `[nodes, heads]` of the computing type.
    pub(super) fn per_node(&self, values: &Tensor, nodes: i64) -> Result<Tensor, TchError> {
        let size = [nodes, self.shape.heads as i64];
        Tensor::f_empty(size, (computing_kind(values)?, values.device()))
    }

    fn kept_scale(&self) -> f64 {
        self.options.dropout.map_or(1.0, |dropout| dropout.kept_scale())
    }
}

/// An optional tensor as an argument.
pub(super) fn array(tensor: Option<&Tensor>) -> Argument<'_> {
    tensor.map_or(Argument::Absent, Argument::Array)
}

/// A number as an argument of the computing type.
pub(super) fn number(real: Kind, value: f64) -> Argument<'static> {
    if real == Kind::Double { Argument::Double(value) } else { Argument::Float(value as f32) }
}
