//! A GATv2 layer with edge features (Brody et al. 2022), equivalent to PyTorch Geometric's `GATv2Conv`.

use kdgat_graph::{Adjacency, EDGE_FEATURES};
use tch::Tensor;

use super::ModelError;
use super::attention::{self, Attended, AttentionOptions, Backend};
use super::gat_conv::NEGATIVE_SLOPE;
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
    /// `[heads * channels, EDGE_FEATURES]`
    edge_weight: Tensor,
    /// `[1, heads, channels]`
    attention: Tensor,
    /// `[heads * channels]`
    bias: Tensor,
}

impl GatV2Conv {
    /// Names of the layer's tensors.
    pub const TENSORS: &'static [&'static str] =
        &["lin_l.weight", "lin_l.bias", "lin_r.weight", "lin_r.bias", "lin_edge.weight", "att", "bias"];

    /// Another handle to the same layer.
    pub fn shallow_clone(&self) -> Self {
        Self {
            source: self.source.shallow_clone(),
            target: self.target.shallow_clone(),
            edge_weight: self.edge_weight.shallow_clone(),
            attention: self.attention.shallow_clone(),
            bias: self.bias.shallow_clone(),
        }
    }

    /// The trainable tensors.
    pub fn parameters(&self) -> Vec<&Tensor> {
        let linear = self.source.parameters().into_iter().chain(self.target.parameters());
        linear.chain([&self.edge_weight, &self.attention, &self.bias]).collect()
    }

    /// Creates a layer from `input` to `heads * channels` columns, heads concatenated.
    pub fn new(mut scope: Scope, input: i64, channels: i64, heads: i64) -> Result<Self, ModelError> {
        let output = heads * channels;
        let edge_shape = [output, EDGE_FEATURES as i64];
        Ok(Self {
            source: Linear::with_init(scope.sub("lin_l"), input, output, Init::Glorot)?,
            target: Linear::with_init(scope.sub("lin_r"), input, output, Init::Glorot)?,
            edge_weight: scope.sub("lin_edge").parameter("weight", &edge_shape, Init::Glorot)?,
            attention: scope.parameter("att", &[1, heads, channels], Init::Glorot)?,
            bias: scope.parameter("bias", &[output], Init::Constant(0.0))?,
        })
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
        let edge_attributes = edge_attributes.f_to_kind(self.edge_weight.f_kind()?)?;
        let attended = attention::gatv2_attention(
            kernel,
            &self.source.forward(x, kernel)?,
            &self.target.forward(x, kernel)?,
            Some(&matmul_transposed(&edge_attributes, &self.edge_weight, kernel)?),
            &self.attention,
            Some(&self.bias),
            adjacency,
            &AttentionOptions { negative_slope: NEGATIVE_SLOPE, return_weights, ..AttentionOptions::default() },
        )?;
        Ok(attended)
    }
}
