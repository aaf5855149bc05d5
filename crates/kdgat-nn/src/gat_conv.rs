//! A graph attention layer (Veličković et al. 2018), equivalent to PyTorch Geometric's `GATConv`.

use kdgat_graph::Adjacency;
use tch::Tensor;

use super::attention::{self, Attended, AttentionDropout, AttentionOptions, Backend};
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
    /// `[heads * channels]`; `[channels]` if heads are averaged.
    bias: Tensor,
    /// True if the heads are averaged instead of concatenated.
    averaged: bool,
}

impl GatConv {
    /// Creates a layer from `input` to `heads * channels` columns, heads concatenated.
    pub fn new(scope: Scope, input: i64, channels: i64, heads: i64) -> Result<Self, ModelError> {
        Self::with_heads(scope, input, [heads, channels], false)
    }

    /// Creates a layer from `input` to `channels` columns, the mean of `heads` heads.
    pub fn averaging(scope: Scope, input: i64, channels: i64, heads: i64) -> Result<Self, ModelError> {
        Self::with_heads(scope, input, [heads, channels], true)
    }

    fn with_heads(
        mut scope: Scope,
        input: i64,
        [heads, channels]: [i64; 2],
        averaged: bool,
    ) -> Result<Self, ModelError> {
        let output = if averaged { channels } else { heads * channels };
        Ok(Self {
            weight: scope.sub("lin").parameter("weight", &[heads * channels, input], Init::Glorot)?,
            attention_source: scope.parameter("att_src", &[1, heads, channels], Init::Glorot)?,
            attention_target: scope.parameter("att_dst", &[1, heads, channels], Init::Glorot)?,
            bias: scope.parameter("bias", &[output], Init::Constant(0.0))?,
            averaged,
        })
    }

    /// Another handle to the same layer.
    pub fn shallow_clone(&self) -> Self {
        Self {
            weight: self.weight.shallow_clone(),
            attention_source: self.attention_source.shallow_clone(),
            attention_target: self.attention_target.shallow_clone(),
            bias: self.bias.shallow_clone(),
            averaged: self.averaged,
        }
    }

    /// The trainable tensors.
    pub fn parameters(&self) -> Vec<&Tensor> {
        vec![&self.weight, &self.attention_source, &self.attention_target, &self.bias]
    }

    /// The linear map before attention, `[heads * channels, input]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Applies the layer: `[num_sources, input]` → `[num_targets, heads * channels]`.
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
        let options = AttentionOptions { return_weights, ..AttentionOptions::default() };
        self.attend_values(&values, adjacency, kernel, &options)
    }

    /// Like [`GatConv::forward`] with dropout of attention weights, for the output of the [linear map](GatConv::weight),
    /// `[num_sources, heads * channels]`.
    pub fn forward_values(
        &self,
        values: &Tensor,
        adjacency: &Adjacency,
        kernel: Backend,
        dropout: Option<AttentionDropout>,
    ) -> Result<Tensor, ModelError> {
        let options = AttentionOptions { dropout, ..AttentionOptions::default() };
        Ok(self.attend_values(values, adjacency, kernel, &options)?.output)
    }

    fn attend_values(
        &self,
        values: &Tensor,
        adjacency: &Adjacency,
        kernel: Backend,
        options: &AttentionOptions,
    ) -> Result<Attended, ModelError> {
        let options = AttentionOptions { negative_slope: NEGATIVE_SLOPE, ..options.clone() };
        let (source, target) = (&self.attention_source, &self.attention_target);
        if !self.averaged {
            let bias = Some(&self.bias);
            return Ok(attention::gat_conv(kernel, values, source, target, bias, adjacency, &options)?);
        }
        let mut attended = attention::gat_conv(kernel, values, source, target, None, adjacency, &options)?;
        attended.output = mean_of_heads(&attended.output, source.size()[1])?.f_add(&self.bias)?;
        Ok(attended)
    }
}

/// Mean over heads: `[rows, heads * channels]` → `[rows, channels]`.
pub(super) fn mean_of_heads(values: &Tensor, heads: i64) -> Result<Tensor, ModelError> {
    if heads == 1 {
        return Ok(values.shallow_clone());
    }
    let by_head = values.f_reshape([values.size()[0], heads, values.size()[1] / heads])?;
    Ok(by_head.f_mean_dim([1_i64].as_slice(), false, values.f_kind()?)?)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::attention::AttentionDropout;
    use crate::test_graphs::{adjacency, first_targets, numbers, random_edges, relative_difference};
    use crate::{FreshParameters, GatV2Conv};

    /// Outputs of the first `targets` nodes, and gradients with respect to x and all parameters.
    fn results(
        graph: &Adjacency,
        targets: i64,
        kernel: Backend,
        layer: impl Fn(Scope) -> Box<dyn Fn(&Tensor, &Adjacency, Backend) -> Tensor>,
    ) -> Vec<Tensor> {
        let mut parameters = FreshParameters::new(3, Device::Cpu);
        let layer = layer(Scope::root(&mut parameters));
        let x = numbers(&[graph.num_sources(), 10], 1).set_requires_grad(true);
        let y = layer(&x, graph, kernel);
        assert_eq!(y.size()[0], graph.num_targets());
        let y = y.narrow(0, 0, targets);
        (&y * numbers(&y.size(), 2)).sum(Kind::Float).backward();
        let gradients = parameters.into_tensors().into_iter().map(|named| named.tensor.grad());
        [y.detach(), x.grad()].into_iter().chain(gradients).collect()
    }

    type Layer = dyn Fn(&Tensor, &Adjacency, Backend) -> Tensor;

    fn gat(averaged: bool, dropout: Option<AttentionDropout>, scope: Scope) -> Box<Layer> {
        let conv = match averaged {
            false => GatConv::new(scope, 10, 6, 3).unwrap(),
            true => GatConv::averaging(scope, 10, 6, 3).unwrap(),
        };
        Box::new(move |x, graph, kernel| {
            let values = layers::matmul_transposed(x, conv.weight(), kernel).unwrap();
            conv.forward_values(&values, graph, kernel, dropout).unwrap()
        })
    }

    fn gatv2(averaged: bool, dropout: Option<AttentionDropout>, scope: Scope) -> Box<Layer> {
        let conv = GatV2Conv::without_edges(scope, 10, 6, 3, averaged).unwrap();
        Box::new(move |x, graph, kernel| {
            let [source, target] = conv.linear_maps();
            let target = target.forward(&x.narrow(0, 0, graph.num_targets()), kernel).unwrap();
            conv.forward_values([&source.forward(x, kernel).unwrap(), &target], graph, kernel, dropout).unwrap()
        })
    }

    /// A graph that is one component, and one of several, whose blocks the fused kernels process one by one.
    fn graphs() -> [Adjacency; 2] {
        let parts = (0..150)
            .flat_map(|part| random_edges([8, 8], 12, part).into_iter().map(move |(from, to)| (from, to, part)));
        let parts = parts.map(|(from, to, part)| (8 * part as usize + from, 8 * part as usize + to));
        [adjacency([200, 200], random_edges([200, 200], 900, 5)), adjacency([1200, 1200], parts)]
    }

    #[test]
    fn sources_that_are_no_targets_change_no_output_and_no_gradient() {
        for whole in graphs() {
            let part = first_targets(&whole, 90);
            for layer in [gat, gatv2] {
                for averaged in [false, true] {
                    let of = |graph, kernel| results(graph, 90, kernel, |scope| layer(averaged, None, scope));
                    let expected = of(&whole, Backend::Composed);
                    for (graph, kernel) in
                        [(&part, Backend::Fused), (&part, Backend::Composed), (&whole, Backend::Fused)]
                    {
                        for (number, (found, expected)) in of(graph, kernel).iter().zip(&expected).enumerate() {
                            let difference = relative_difference(found, expected);
                            assert!(
                                difference < 1e-5,
                                "{kernel:?}, averaged {averaged}: {number} differs by {difference:e}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn dropped_weights_and_threads_are_the_same_everywhere() {
        let graph = first_targets(&graphs()[0], 90);
        let dropout = Some(AttentionDropout { probability: 0.4, seed: 8, first: 0 });
        let threads = tch::get_num_threads();
        for layer in [gat, gatv2] {
            let of = |kernel| results(&graph, 90, kernel, |scope| layer(false, dropout, scope));
            let expected = of(Backend::Composed);
            let found = [1, 2, 4].map(|count| {
                tch::set_num_threads(count);
                of(Backend::Fused)
            });
            tch::set_num_threads(threads);
            for (one, (other, expected)) in found[0].iter().zip(found[1].iter().zip(&expected)) {
                assert!(one.equal(other) && relative_difference(one, expected) < 1e-5);
            }
            assert!(found[0].iter().zip(&found[2]).all(|(one, other)| one.equal(other)));
        }
    }
}
