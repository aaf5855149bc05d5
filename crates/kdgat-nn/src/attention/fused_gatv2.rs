//! The fused GATv2 kernels as a differentiable function on tensors.

use std::ffi::CStr;

use half::bf16;
use kdgat_graph::Adjacency;
use kdgat_torch::autograd::{Forward, Function, Gradients};
use kdgat_torch::parallel::{Parts, parallel_for};
use kdgat_torch::view::{self, Storable};
use tch::{Device, Kind, TchError, Tensor};

use super::AttentionOptions;
use super::backward::{sum_blocks, zeros};
use super::element::{Element, Real};
use super::gatv2::{Pairs, SourceGradients, TargetGradients};
use super::kernels::{RowGradients, Shape};
use super::layout::{Edges, Partition};
use super::passes::{ForwardOutputs, Layer, Scores, buffer};
use super::softmax::SavedWeights;

/// The fused layer of GATv2. Inputs: source values `[sources, heads * channels]`, target values `[targets, heads *
/// channels]`, attention vector and bias `[heads * channels]`, and optionally edge terms `[edges, heads * channels]`. All are contiguous on the CPU;
/// attention vector and bias have the computing type.
pub(super) struct FusedGatV2 {
    pub(super) adjacency: Adjacency,
    pub(super) shape: Shape,
    pub(super) options: AttentionOptions,
}

const SOURCE: usize = 0;
const TARGET: usize = 1;
const ATTENTION: usize = 2;
const BIAS: usize = 3;
const EDGE_TERM: usize = 4;

impl Function for FusedGatV2 {
    const NAME: &'static CStr = c"fused graph attention (v2)";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        match inputs[SOURCE].f_kind()? {
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

impl FusedGatV2 {
    fn layer<'a, T: Element>(&'a self, source: &'a Tensor) -> Result<Layer<'a, T>, TchError> {
        let edges = Edges::new(&self.adjacency)?;
        Ok(Layer {
            edges,
            partition: Partition::new(&edges, self.shape.row()),
            shape: self.shape,
            negative_slope: Real::from_f64(self.options.negative_slope),
            dropout: self.options.dropout,
            values: view::read("source values", source)?,
        })
    }

    fn pairs<'a, T: Element>(
        &self,
        source: &'a Tensor,
        target: &'a Tensor,
        attention: &'a Tensor,
        edge_term: Option<&'a Tensor>,
    ) -> Result<Pairs<'a, T>, TchError> {
        Ok(Pairs {
            shape: self.shape,
            negative_slope: Real::from_f64(self.options.negative_slope),
            source: view::read("source values", source)?,
            target: view::read("target values", target)?,
            edge_term: edge_term.map(|edge_term| view::read("edge terms", edge_term)).transpose()?,
            attention: view::read("attention", attention)?,
        })
    }

    fn forward_as<T: Element>(&self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let layer = self.layer::<T>(inputs[SOURCE])?;
        let edge_term = inputs.get(EDGE_TERM).copied();
        let pairs = self.pairs(inputs[SOURCE], inputs[TARGET], inputs[ATTENTION], edge_term)?;
        let per_edge = [self.adjacency.num_edges(), self.shape.heads as i64];
        let real = (T::Real::KIND, Device::Cpu);
        let mut output = Tensor::f_empty(inputs[TARGET].size(), (T::KIND, Device::Cpu))?;
        let mut kept = recorded.then(|| Tensor::f_empty(per_edge, real)).transpose()?;
        let keep_applied = self.options.return_weights || recorded && self.options.dropout.is_some();
        let mut applied = keep_applied.then(|| Tensor::f_empty(per_edge, real)).transpose()?;
        layer.forward(
            Scores::Pairs(pairs),
            Some(view::read("bias", inputs[BIAS])?),
            ForwardOutputs {
                output: view::write("output", &mut output)?,
                signed: kept.as_mut().map(|kept| view::write("weights", kept)).transpose()?,
                weights: applied.as_mut().map(|applied| view::write("weights", applied)).transpose()?,
            },
        )?;
        let mut saved = Vec::new();
        if let Some(kept) = kept {
            saved.extend([SOURCE, TARGET, ATTENTION].map(|index| inputs[index].shallow_clone()));
            saved.push(kept);
            saved.extend(edge_term.map(Tensor::shallow_clone));
            // Last, so that the positions of the others do not depend on it.
            saved.extend(applied.as_ref().filter(|_| self.options.dropout.is_some()).map(Tensor::shallow_clone));
        }
        let applied = applied.filter(|_| self.options.return_weights);
        Ok(Forward { outputs: [Some(output), applied].into_iter().flatten().collect(), saved })
    }

    fn backward_as<T: Element>(
        &self,
        saved: &[Tensor],
        gradient: &Tensor,
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let edge_term = (needed.len() > EDGE_TERM).then(|| &saved[4]);
        let dropped = self.options.dropout.map(|dropout| (&saved[saved.len() - 1], dropout.kept_scale()));
        let gradient = gradient.f_to_kind(T::KIND)?.f_contiguous()?;
        let backward = Backward {
            layer: self.layer::<T>(&saved[SOURCE])?,
            pairs: self.pairs(&saved[SOURCE], &saved[TARGET], &saved[ATTENTION], edge_term)?,
            gradient: view::read("gradient", &gradient)?,
            weights: SavedWeights {
                signed: view::read("weights", &saved[3])?,
                dropped: dropped.map(|(dropped, _)| view::read("weights", dropped)).transpose()?,
                kept_scale: Real::from_f64(dropped.map_or(1.0, |(_, scale)| scale)),
            },
        };
        let like = |tensor: &Tensor| Tensor::f_empty(tensor.size(), (T::KIND, Device::Cpu));
        let vector = || Tensor::f_empty([self.shape.row() as i64], (T::Real::KIND, Device::Cpu));
        let (mut source, mut target) = (like(&saved[SOURCE])?, like(&saved[TARGET])?);
        let (mut attention, mut bias) = (vector()?, vector()?);
        let mut edges = edge_term.filter(|_| needed[EDGE_TERM]).map(like).transpose()?;
        backward.run(GradientSlices {
            source: view::write("gradient of source values", &mut source)?,
            target: view::write("gradient of target values", &mut target)?,
            attention: view::write("gradient of attention", &mut attention)?,
            bias: view::write("gradient of bias", &mut bias)?,
            edges: edges.as_mut().map(|edges| view::write("gradient of edge terms", edges)).transpose()?,
        })?;
        let results = [Some(source), Some(target), Some(attention), Some(bias), edges];
        Ok(results.into_iter().zip(needed).map(|(result, &needed)| result.filter(|_| needed)).collect())
    }
}

struct Backward<'a, T: Element> {
    layer: Layer<'a, T>,
    pairs: Pairs<'a, T>,
    /// Gradient of the output, `[targets, heads * channels]`.
    gradient: &'a [T],
    weights: SavedWeights<'a, T::Real>,
}

struct GradientSlices<'a, T: Element> {
    source: &'a mut [T],
    target: &'a mut [T],
    attention: &'a mut [T::Real],
    bias: &'a mut [T::Real],
    edges: Option<&'a mut [T]>,
}

impl<T: Element> Backward<'_, T> {
    fn run(&self, gradients: GradientSlices<'_, T>) -> Result<(), TchError> {
        let Layer { partition, shape, edges, .. } = &self.layer;
        let (blocks, row, heads) = (partition.num_blocks(), shape.row(), shape.heads);
        let mut logits = buffer::<T::Real>(edges.num_edges() * heads)?;
        let logits = view::write::<T::Real>("gradients of logits", &mut logits)?;
        let mut sums = [zeros::<T::Real>(blocks * row)?, zeros::<T::Real>(blocks * row)?];
        let [attention_sums, bias_sums] = &mut sums;
        let attention_sums = view::write::<T::Real>("sums by block", attention_sums)?;
        let bias_sums = view::write::<T::Real>("sums by block", bias_sums)?;
        {
            let logit_parts = Parts::new(logits, self.layer.edge_bounds());
            let attention_parts = Parts::new(attention_sums, (0..=blocks).map(|block| block * row));
            let bias_parts = Parts::new(bias_sums, (0..=blocks).map(|block| block * row));
            let target_parts = Parts::new(gradients.target, self.layer.node_bounds(row));
            let edge_bounds = self.layer.edge_bounds().map(|bound| bound * shape.channels);
            let edge_parts = gradients.edges.map(|edges| Parts::new(edges, edge_bounds));
            parallel_for(blocks, partition.grain, |range| {
                let mut unused = Vec::new();
                for block in range {
                    let logits = logit_parts.take(block);
                    self.logits(block, logits, &mut unused, bias_parts.take(block));
                    T::dispatch(TargetGradients {
                        nodes: partition.nodes(block),
                        edges: *edges,
                        pairs: self.pairs,
                        logit_gradients: logits,
                        target_gradients: target_parts.take(block),
                        edge_gradients: edge_parts.as_ref().map(|parts| parts.take(block)),
                        attention_gradient: attention_parts.take(block),
                    });
                }
            });
        }
        // The gradients of the sources read what other blocks have written, unless blocks are closed. With a term per
        // edge to read, a second pass over all blocks costs little more.
        let source_parts = Parts::new(gradients.source, self.layer.source_bounds(row));
        parallel_for(partition.num_source_blocks(), partition.grain, |range| {
            for block in range {
                T::dispatch(SourceGradients {
                    nodes: partition.sources(block),
                    edges: *edges,
                    pairs: self.pairs,
                    gradient: self.gradient,
                    weights: self.weights.dropped.unwrap_or(self.weights.signed),
                    first_edge: 0,
                    logit_gradients: logits,
                    source_gradients: source_parts.take(block),
                });
            }
        });
        sum_blocks(attention_sums, gradients.attention);
        sum_blocks(bias_sums, gradients.bias);
        Ok(())
    }

    /// Gradients of a block's logits, and its share of the bias's gradient.
    fn logits(&self, block: usize, logits: &mut [T::Real], unused: &mut Vec<T::Real>, bias: &mut [T::Real]) {
        let nodes = self.layer.partition.nodes(block);
        unused.resize(nodes.len() * self.layer.shape.heads, T::Real::ZERO);
        T::dispatch(RowGradients {
            nodes,
            shape: self.layer.shape,
            edges: self.layer.edges,
            // All saved weights are positive: the leaky ReLU is applied before the logits.
            negative_slope: T::Real::ONE,
            values: self.layer.values,
            gradient: self.gradient,
            weights: self.weights,
            raw_gradients: logits,
            target_gradients: unused,
            bias_gradient: bias,
        });
    }
}
