//! ONNX export of a network for the nodes of a graph, operator by operator as [`NodeGnn`](kdgat_nn::NodeGnn) computes it in evaluation mode.

use kdgat_nn::fused::norm::EPSILON;
use kdgat_nn::node_gnn_config::{Activation, Aggregator, NodeGnnConfig, NodeGnnKind, Norm};
use kdgat_nn::weights::StateDict;

use super::OnnxError;
use super::builder::{Content, Element, Size, Value};
use super::operators::{Edges, Operators};

/// Exports the model as bytes.
///
/// Inputs: `features` `[nodes, node_features]` and, for a model that reads neighbours, `source` and `target` `[edges]`, without edges from a
/// node to itself. A node reads the sources of the edges that lead to it. Output: `logits` `[nodes, outputs]`, exact for the nodes whose
/// edges and those of their neighbours, as many steps away as the model reads, are all there.
///
/// # Errors
/// A missing tensor, or those of libtorch.
pub fn node_network(
    config: &NodeGnnConfig,
    state: &StateDict,
    metadata: &[(&str, String)],
) -> Result<Vec<u8>, OnnxError> {
    let mut network = Network::new(config, state);
    let mut x = network.features.clone();
    for index in 0..config.layers {
        x = network.layer(index, &x)?;
    }
    if config.kind == NodeGnnKind::Appnp {
        x = network.propagated(&x)?;
    }
    let sizes = [Size::Any("nodes"), Size::Fixed(config.outputs)];
    network.operators.builder.output(&x, "logits", Element::Float, &sizes);
    Ok(network.operators.builder.finish(metadata))
}

struct Network<'a> {
    config: &'a NodeGnnConfig,
    operators: Operators<'a>,
    features: Value,
    /// `None` for a model that reads no neighbours.
    edges: Option<Edges>,
}

impl<'a> Network<'a> {
    fn new(config: &'a NodeGnnConfig, state: &'a StateDict) -> Self {
        let mut operators = Operators::new(state);
        let sizes = [Size::Any("nodes"), Size::Fixed(config.node_features)];
        let features = operators.builder.input("features", Element::Float, &sizes);
        let edges = (config.message_layers() > 0).then(|| operators.edges(&features));
        Self { config, operators, features, edges }
    }

    /// Layer `index`: `[nodes, input]` → `[nodes, output]`.
    fn layer(&mut self, index: i64, x: &Value) -> Result<Value, OnnxError> {
        let y = match &self.edges {
            Some(edges) if self.config.kind != NodeGnnKind::Appnp => {
                let edges = edges.clone();
                self.message_layer(index, x, &edges)?
            }
            _ => self.operators.linear(x, &format!("lins.{index}"), true)?,
        };
        if index + 1 >= self.config.layers {
            return Ok(y);
        }
        let y = match self.config.residual && self.config.input_columns(index) == self.config.output_columns(index) {
            true => self.operators.apply("Add", &[&y, x], &[]),
            false => y,
        };
        let normed = self.norm(index, &y)?;
        Ok(match self.config.activation {
            Activation::Relu => self.operators.relu(&normed),
            Activation::Elu => self.operators.apply("Elu", &[&normed], &[("alpha", Content::Float(1.0))]),
        })
    }

    /// A layer that reads neighbours, without its end.
    fn message_layer(&mut self, index: i64, x: &Value, edges: &Edges) -> Result<Value, OnnxError> {
        let path = format!("convs.{index}");
        let (input, output) = (self.config.input_columns(index), self.config.output_columns(index));
        let operators = &mut self.operators;
        match (self.config.kind, self.config.aggregator) {
            (NodeGnnKind::Sage, Aggregator::Mean) => operators.sage(x, &path, edges, input),
            (NodeGnnKind::Sage, Aggregator::Gcn) => {
                let values = operators.linear(x, &format!("{path}.lin"), false)?;
                let sums = operators.neighbour_sums(&values, edges, output);
                let sums = operators.apply("Add", &[&sums, &values], &[]);
                let degrees = operators.degrees(edges);
                let means = operators.apply("Div", &[&sums, &degrees], &[]);
                operators.with_bias(&means, &format!("{path}.lin.bias"))
            }
            (NodeGnnKind::Gat | NodeGnnKind::GatV2, _) => self.attention(index, x, edges),
            (NodeGnnKind::Gcn | NodeGnnKind::Appnp | NodeGnnKind::Mlp, _) => {
                let values = operators.linear(x, &format!("{path}.lin"), false)?;
                let sums = operators.symmetric_sums(&values, edges, output);
                operators.with_bias(&sums, &format!("{path}.bias"))
            }
        }
    }

    /// An attention layer: heads of hidden layers are concatenated, those of the last layer averaged.
    fn attention(&mut self, index: i64, x: &Value, edges: &Edges) -> Result<Value, OnnxError> {
        let path = format!("convs.{index}");
        let is_last = index + 1 == self.config.layers;
        let heads = match is_last {
            true => [self.config.output_heads, self.config.outputs],
            false => [self.config.heads, self.config.hidden],
        };
        let operators = &mut self.operators;
        let edges = operators.with_loops(edges);
        let (values, scores) = match self.config.kind {
            NodeGnnKind::GatV2 => operators.gatv2_scores(x, &path, &edges, heads, None)?,
            _ => operators.gat_scores(x, &path, &edges, heads)?,
        };
        let mut sums = operators.attended(&values, &scores, &edges, heads);
        if is_last {
            let by_head = operators.heads(&sums, heads);
            let sum = operators.sums_along(&by_head, 1);
            let count = operators.builder.number(heads[0] as f32);
            sums = operators.apply("Div", &[&sum, &count], &[]);
        }
        operators.with_bias(&sums, &format!("{path}.bias"))
    }

    /// Normalisation after hidden layer `index`.
    fn norm(&mut self, index: i64, x: &Value) -> Result<Value, OnnxError> {
        let operators = &mut self.operators;
        match self.config.norm {
            Norm::None => Ok(x.clone()),
            Norm::Batch => operators.batch_norm(x, &format!("norms.{index}.module")),
            Norm::Layer => {
                let weight = operators.weight(&format!("norms.{index}.weight"))?;
                let bias = operators.weight(&format!("norms.{index}.bias"))?;
                let settings = [("axis", Content::Integer(-1)), ("epsilon", Content::Float(EPSILON as f32))];
                Ok(operators.apply("LayerNormalization", &[x, &weight, &bias], &settings))
            }
        }
    }

    /// APPNP's steps, each `(1 − α)·Σ_j h_j / √(D_i D_j) + α·h0_i`.
    fn propagated(&mut self, initial: &Value) -> Result<Value, OnnxError> {
        let Some(edges) = self.edges.clone() else { return Ok(initial.clone()) };
        let operators = &mut self.operators;
        let [teleport, rest] =
            [self.config.teleport, 1.0 - self.config.teleport].map(|share| operators.builder.number(share as f32));
        let returned = operators.apply("Mul", &[initial, &teleport], &[]);
        let mut x = initial.clone();
        for _ in 0..self.config.steps {
            let sums = operators.symmetric_sums(&x, &edges, self.config.outputs);
            let sums = operators.apply("Mul", &[&sums, &rest], &[]);
            x = operators.apply("Add", &[&sums, &returned], &[]);
        }
        Ok(x)
    }
}

#[cfg(test)]
mod tests {
    use kdgat_nn::NodeGnn;
    use kdgat_nn::attention::Backend;

    use super::*;
    use crate::test_models::{expect_complete, state_of};

    #[test]
    fn every_value_is_defined_before_its_use() {
        let of = |kind| NodeGnnConfig::new(kind, [6, 6, 3, 4]);
        let attention = |kind| NodeGnnConfig { heads: 2, output_heads: 3, norm: Norm::Batch, ..of(kind) };
        for config in [
            NodeGnnConfig { norm: Norm::Layer, residual: true, ..of(NodeGnnKind::Mlp) },
            NodeGnnConfig { norm: Norm::Batch, ..of(NodeGnnKind::Sage) },
            NodeGnnConfig { aggregator: Aggregator::Gcn, ..of(NodeGnnKind::Sage) },
            of(NodeGnnKind::Gcn),
            attention(NodeGnnKind::Gat),
            attention(NodeGnnKind::GatV2),
            NodeGnnConfig { steps: 2, ..of(NodeGnnKind::Appnp) },
        ] {
            let state = state_of(|scope| NodeGnn::new(scope, &config, Backend::Auto).map(drop));
            let bytes = node_network(&config, &state, &[]).unwrap();
            let inputs: &[&str] = match config.kind {
                NodeGnnKind::Mlp => &["features"],
                _ => &["features", "source", "target"],
            };
            expect_complete(&bytes, &state, inputs, &["logits"]);
        }
    }
}
