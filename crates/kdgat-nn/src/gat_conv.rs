//! A graph attention layer (Veličković et al. 2018), equivalent to PyTorch Geometric's `GATConv`.

use kdgat_graph::Adjacency;
use tch::Tensor;

use super::attention::{self, Attended, AttentionOptions, Backend};
use super::parameters::{Init, Scope};
use super::{ModelError, layers};

/// Negative slope of the leaky ReLU on attention scores.
pub const NEGATIVE_SLOPE: f64 = 0.2;

/// A layer `out_i = bias + Σ_j α_ij W x_j`, with `α_ij = softmax_j(leaky_relu(a_source·W x_j + a_target·W x_i))` per
/// head.
#[derive(Debug)]
pub struct GatConv {
    /// `[heads * channels, input]`
    weight: Tensor,
    /// `[1, heads, channels]`
    attention_source: Tensor,
    /// `[1, heads, channels]`
    attention_target: Tensor,
    /// `[heads * channels]`
    bias: Tensor,
}

impl GatConv {
    /// Names of the layer's tensors.
    pub const TENSORS: &'static [&'static str] = &["lin.weight", "att_src", "att_dst", "bias"];

    /// Creates a layer from `input` to `heads * channels` columns, heads concatenated.
    pub fn new(mut scope: Scope, input: i64, channels: i64, heads: i64) -> Result<Self, ModelError> {
        Ok(Self {
            weight: scope.sub("lin").parameter("weight", &[heads * channels, input], Init::Glorot)?,
            attention_source: scope.parameter("att_src", &[1, heads, channels], Init::Glorot)?,
            attention_target: scope.parameter("att_dst", &[1, heads, channels], Init::Glorot)?,
            bias: scope.parameter("bias", &[heads * channels], Init::Constant(0.0))?,
        })
    }

    /// Another handle to the same layer.
    pub fn shallow_clone(&self) -> Self {
        Self {
            weight: self.weight.shallow_clone(),
            attention_source: self.attention_source.shallow_clone(),
            attention_target: self.attention_target.shallow_clone(),
            bias: self.bias.shallow_clone(),
        }
    }

    /// The trainable tensors.
    pub fn parameters(&self) -> Vec<&Tensor> {
        vec![&self.weight, &self.attention_source, &self.attention_target, &self.bias]
    }

    /// Applies the layer: `[num_nodes, input]` → `[num_nodes, heads * channels]`.
    pub fn forward(&self, x: &Tensor, adjacency: &Adjacency, kernel: Backend) -> Result<Tensor, ModelError> {
        Ok(self.attend(x, adjacency, kernel, false)?.output)
    }

    /// Like [`GatConv::forward`], with the attention weights of the edges if `return_weights` is set.
    pub fn attend(
        &self,
        x: &Tensor,
        adjacency: &Adjacency,
        kernel: Backend,
        return_weights: bool,
    ) -> Result<Attended, ModelError> {
        let values = layers::matmul_transposed(x, &self.weight, kernel)?;
        let attended = attention::gat_conv(
            kernel,
            &values,
            &self.attention_source,
            &self.attention_target,
            Some(&self.bias),
            adjacency,
            &AttentionOptions { negative_slope: NEGATIVE_SLOPE, return_weights, ..AttentionOptions::default() },
        )?;
        Ok(attended)
    }
}
