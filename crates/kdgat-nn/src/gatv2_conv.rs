//! A GATv2 layer with or without edge features (Brody et al. 2022), equivalent to PyTorch Geometric's `GATv2Conv`.

use kdgat_graph::{Adjacency, EDGE_FEATURES};
use tch::Tensor;

use super::ModelError;
use super::attention::{self, Attended, AttentionDropout, AttentionOptions, Backend};
use super::gat_conv::{NEGATIVE_SLOPE, mean_of_heads};
use super::layers::{Linear, matmul_transposed};
use super::parameters::{Init, Scope};

/// A layer `out_i = bias + Σ_j α_ij s_j`, with `s = W_l x + b_l`, `t = W_r x + b_r` and `α_ij = softmax_j(att ·
/// leaky_relu(s_j + t_i + W_e e_ij))` per head.
#[derive(Debug)]
pub struct GatV2Conv {
    /// Maps a node's input to s, its values as a source.
    source: Linear,
    /// Maps a node's input to t, its values as a target.
    target: Linear,
    /// `[heads * channels, EDGE_FEATURES]`; `None` for a layer that reads no edge features.
    edge_weight: Option<Tensor>,
    /// `[1, heads, channels]`
    attention: Tensor,
    /// `[heads * channels]`; `[channels]` if heads are averaged.
    bias: Tensor,
    /// True if the heads are averaged instead of concatenated.
    averaged: bool,
}

impl GatV2Conv {
    /// Another handle to the same layer.
    pub fn shallow_clone(&self) -> Self {
        Self {
            source: self.source.shallow_clone(),
            target: self.target.shallow_clone(),
            edge_weight: self.edge_weight.as_ref().map(Tensor::shallow_clone),
            attention: self.attention.shallow_clone(),
            bias: self.bias.shallow_clone(),
            averaged: self.averaged,
        }
    }

    /// The trainable tensors.
    pub fn parameters(&self) -> Vec<&Tensor> {
        let linear = self.source.parameters().into_iter().chain(self.target.parameters());
        linear.chain(&self.edge_weight).chain([&self.attention, &self.bias]).collect()
    }

    /// Creates a layer from `input` to `heads * channels` columns, heads concatenated.
    pub fn new(scope: Scope, input: i64, channels: i64, heads: i64) -> Result<Self, ModelError> {
        Self::with_edges(scope, input, [heads, channels], Some(EDGE_FEATURES as i64), false)
    }

    /// Creates a layer without edge features: to `heads * channels` columns, or to `channels`, the mean of the heads, if
    /// `averaged`.
    pub fn without_edges(
        scope: Scope,
        input: i64,
        channels: i64,
        heads: i64,
        averaged: bool,
    ) -> Result<Self, ModelError> {
        Self::with_edges(scope, input, [heads, channels], None, averaged)
    }

    fn with_edges(
        mut scope: Scope,
        input: i64,
        [heads, channels]: [i64; 2],
        edge_features: Option<i64>,
        averaged: bool,
    ) -> Result<Self, ModelError> {
        let row = heads * channels;
        // The optimiser's state in a checkpoint follows this order.
        let source = Linear::with_init(scope.sub("lin_l"), input, row, Init::Glorot)?;
        let target = Linear::with_init(scope.sub("lin_r"), input, row, Init::Glorot)?;
        let edge_weight = match edge_features {
            None => None,
            Some(features) => Some(scope.sub("lin_edge").parameter("weight", &[row, features], Init::Glorot)?),
        };
        Ok(Self {
            source,
            target,
            edge_weight,
            attention: scope.parameter("att", &[1, heads, channels], Init::Glorot)?,
            bias: scope.parameter("bias", &[if averaged { channels } else { row }], Init::Constant(0.0))?,
            averaged,
        })
    }

    /// The maps to the values of sources and of targets.
    pub fn linear_maps(&self) -> [&Linear; 2] {
        [&self.source, &self.target]
    }

    /// Applies the layer: `x`, `[num_nodes, input]`, and edge attributes, `[num_edges, EDGE_FEATURES]` in the order of
    /// the adjacency → `[num_nodes, heads * channels]`.
    pub fn forward(
        &self,
        x: &Tensor,
        edge_attributes: &Tensor,
        adjacency: &Adjacency,
        kernel: Backend,
    ) -> Result<Tensor, ModelError> {
        Ok(self.attend(x, edge_attributes, adjacency, kernel, false)?.output)
    }

    /// Like [`GatV2Conv::forward`], with the attention weights of the edges if `return_weights` is set.
    pub fn attend(
        &self,
        x: &Tensor,
        edge_attributes: &Tensor,
        adjacency: &Adjacency,
        kernel: Backend,
        return_weights: bool,
    ) -> Result<Attended, ModelError> {
        let [source, target] = [self.source.forward(x, kernel)?, self.target.forward(x, kernel)?];
        let edge_term = match &self.edge_weight {
            None => None,
            Some(weight) => {
                let edge_attributes = edge_attributes.f_to_kind(weight.f_kind()?)?;
                Some(matmul_transposed(&edge_attributes, weight, kernel)?)
            }
        };
        let options = AttentionOptions { return_weights, ..AttentionOptions::default() };
        self.attend_values([&source, &target], edge_term.as_ref(), adjacency, kernel, &options)
    }

    /// The layer without edge features and with dropout of attention weights, for the outputs of the
    /// [linear maps](GatV2Conv::linear_maps): `[num_sources, heads * channels]` and `[num_targets, heads * channels]`.
    pub fn forward_values(
        &self,
        values: [&Tensor; 2],
        adjacency: &Adjacency,
        kernel: Backend,
        dropout: Option<AttentionDropout>,
    ) -> Result<Tensor, ModelError> {
        let options = AttentionOptions { dropout, ..AttentionOptions::default() };
        Ok(self.attend_values(values, None, adjacency, kernel, &options)?.output)
    }

    fn attend_values(
        &self,
        [source, target]: [&Tensor; 2],
        edge_term: Option<&Tensor>,
        adjacency: &Adjacency,
        kernel: Backend,
        options: &AttentionOptions,
    ) -> Result<Attended, ModelError> {
        let options = AttentionOptions { negative_slope: NEGATIVE_SLOPE, ..options.clone() };
        let bias = (!self.averaged).then_some(&self.bias);
        let vector = &self.attention;
        let mut attended =
            attention::gatv2_attention(kernel, source, target, edge_term, vector, bias, adjacency, &options)?;
        if self.averaged {
            attended.output = mean_of_heads(&attended.output, vector.size()[1])?.f_add(&self.bias)?;
        }
        Ok(attended)
    }
}
