//! ONNX export of a network for graphs, operator by operator as [`Gnn`](kdgat_nn::Gnn) computes it in evaluation mode.

use kdgat_graph::Level;
use kdgat_nn::Pooling;
use kdgat_nn::gnn_config::{GnnConfig, GnnKind};
use kdgat_nn::target_scale::TargetScale;
use kdgat_nn::weights::StateDict;

use super::OnnxError;
use super::builder::{Element, Size, Value};
use super::operators::{ALONG_COLUMNS, Edges, Operators, Places, Reduction};

/// Exports the model as bytes.
///
/// Inputs: `features` `[nodes, node_features]`; `source` and `target` `[edges]`, without edges from a node to itself; `graph` `[nodes]`; for
/// GIN-E `edge_features` `[edges, edge_features]`. Outputs: `logits` `[graphs, outputs]` or, for regression, `values` in the units of the
/// targets, f64; for a model with an embedding also `embedding` `[graphs, embedding_columns]`. A model for targets of nodes has outputs of
/// each node, and the input `graph` only if it has virtual nodes.
///
/// # Errors
/// A missing tensor, or those of libtorch.
pub fn graph_network(config: &GnnConfig, state: &StateDict, metadata: &[(&str, String)]) -> Result<Vec<u8>, OnnxError> {
    let mut network = Network::new(config, state);
    let pooled = network.embed()?;
    let hidden = network.operators.linear(&pooled, "head.lins.0", true)?;
    let hidden = network.operators.relu(&hidden);
    let outputs = network.operators.linear(&hidden, "head.lins.1", true)?;
    let sizes = [Size::Any(config.level.units()), Size::Fixed(config.outputs)];
    if config.target_scales.is_empty() {
        network.operators.builder.output(&outputs, "logits", Element::Float, &sizes);
    } else {
        let values = network.in_units(&outputs);
        network.operators.builder.output(&values, "values", Element::Double, &sizes);
    }
    if config.embedding_columns > 0 {
        let embedding = network.operators.linear(&pooled, "embedding", true)?;
        let sizes = [Size::Any("graphs"), Size::Fixed(config.embedding_columns)];
        network.operators.builder.output(&embedding, "embedding", Element::Float, &sizes);
    }
    Ok(network.operators.builder.finish(metadata))
}

struct Network<'a> {
    config: &'a GnnConfig,
    operators: Operators<'a>,
    features: Value,
    edges: Edges,
    /// `None` if nothing is summed over graphs.
    graphs: Option<Places>,
    edge_features: Option<Value>,
}

impl<'a> Network<'a> {
    fn new(config: &'a GnnConfig, state: &'a StateDict) -> Self {
        let mut operators = Operators::new(state);
        let sizes = [Size::Any("nodes"), Size::Fixed(config.node_features)];
        let features = operators.builder.input("features", Element::Float, &sizes);
        let edges = operators.edges(&features);
        let graphs = (config.level == Level::Graph || config.virtual_node).then(|| operators.graphs());
        let sizes = [Size::Any("edges"), Size::Fixed(config.edge_features)];
        let edge_features =
            (config.edge_features > 0).then(|| operators.builder.input("edge_features", Element::Float, &sizes));
        Self { config, operators, features, edges, graphs, edge_features }
    }

    /// Pooled rows of all layers, `[graphs, width * layers]`.
    fn embed(&mut self) -> Result<Value, OnnxError> {
        let mut x = self.features.clone();
        let mut virtual_nodes = None;
        let mut pooled = Vec::new();
        for index in 0..self.config.layers {
            if let (true, Some(graphs)) = (self.config.virtual_node, self.graphs.clone()) {
                (x, virtual_nodes) = self.with_virtual_nodes(index, &x, virtual_nodes, &graphs)?;
            }
            x = self.layer(index, &x)?;
            pooled.push(match self.graphs.clone() {
                Some(graphs) if self.config.level == Level::Graph => self.pool(index, &x, &graphs)?,
                _ => x.clone(),
            });
        }
        let pooled: Vec<&Value> = pooled.iter().collect();
        Ok(self.operators.apply("Concat", &pooled, &[ALONG_COLUMNS]))
    }

    /// The input of layer `index` with the rows of the virtual nodes, and their rows for the next layer, which the last one does not have:
    /// see [`virtual_node`](kdgat_nn::virtual_node).
    fn with_virtual_nodes(
        &mut self,
        index: i64,
        x: &Value,
        rows: Option<Value>,
        graphs: &Places,
    ) -> Result<(Value, Option<Value>), OnnxError> {
        let operators = &mut self.operators;
        // At the first layer one row for all graphs, which both sums repeat.
        let (rows, of_nodes) = match rows {
            Some(rows) => (rows.clone(), operators.rows(&rows, &graphs.index)),
            None => {
                let row = operators.weight("virtualnode_embedding.weight")?;
                (row.clone(), row)
            }
        };
        let x = operators.apply("Add", &[x, &of_nodes], &[]);
        if index + 1 == self.config.layers {
            return Ok((x, None));
        }
        let path = |place: i64| format!("mlp_virtualnode_list.{index}.{place}");
        let sums = operators.scattered(Reduction::Sum, graphs, self.config.input_columns(index), &x);
        let mut next = operators.apply("Add", &[&sums, &rows], &[]);
        for (linear, norm) in [(0, 1), (3, 4)] {
            next = operators.linear(&next, &path(linear), true)?;
            next = operators.batch_norm(&next, &path(norm))?;
            next = operators.relu(&next);
        }
        Ok((x, Some(next)))
    }

    /// Layer `index` with its normalisation and ReLU: `[nodes, input]` → `[nodes, width]`.
    fn layer(&mut self, index: i64, x: &Value) -> Result<Value, OnnxError> {
        let path = format!("convs.{index}");
        let (input, width) = (self.config.input_columns(index), self.config.width());
        let (operators, edges) = (&mut self.operators, &self.edges);
        let y = match self.config.kind {
            GnnKind::Gin => self.isomorphism(&path, x, input)?,
            GnnKind::Gcn => {
                let values = operators.linear(x, &format!("{path}.lin"), false)?;
                let sums = operators.symmetric_sums(&values, edges, width);
                operators.with_bias(&sums, &format!("{path}.bias"))?
            }
            GnnKind::Sage => operators.sage(x, &path, edges, input)?,
            GnnKind::Gat => {
                let heads = [self.config.heads, self.config.hidden];
                let edges = operators.with_loops(edges);
                let (values, scores) = operators.gat_scores(x, &path, &edges, heads)?;
                let sums = operators.attended(&values, &scores, &edges, heads);
                operators.with_bias(&sums, &format!("{path}.bias"))?
            }
            GnnKind::Mlp => {
                let x = if index == 0 { self.with_log_degrees(x) } else { x.clone() };
                self.operators.linear(&x, &format!("{path}.lin"), true)?
            }
            kind @ (GnnKind::SchNet | GnnKind::PaiNN | GnnKind::Irreps | GnnKind::Sgmp) => {
                return Err(OnnxError::InSpace(kind.as_str()));
            }
        };
        let normed = self.operators.batch_norm(&y, &format!("norms.{index}.module"))?;
        Ok(self.operators.relu(&normed))
    }

    /// nn(x_i + Σ_j m_j), with m_j = x_j or, with edge features, ReLU(x_j + W e_ji + b).
    fn isomorphism(&mut self, path: &str, x: &Value, input: i64) -> Result<Value, OnnxError> {
        let (operators, edges) = (&mut self.operators, &self.edges);
        let sums = match &self.edge_features {
            None => operators.neighbour_sums(x, edges, input),
            Some(features) => {
                let of_edges = operators.linear(features, &format!("{path}.lin"), true)?;
                let of_sources = operators.rows(x, &edges.source);
                let messages = operators.apply("Add", &[&of_sources, &of_edges], &[]);
                let messages = operators.relu(&messages);
                operators.scattered(Reduction::Sum, &edges.target, input, &messages)
            }
        };
        let sums = operators.apply("Add", &[x, &sums], &[]);
        let hidden = operators.linear(&sums, &format!("{path}.nn.lins.0"), true)?;
        let hidden = operators.batch_norm(&hidden, &format!("{path}.nn.norms.0.module"))?;
        let hidden = operators.relu(&hidden);
        operators.linear(&hidden, &format!("{path}.nn.lins.1"), true)
    }

    /// The features with ln(1 + degree) as a last column.
    fn with_log_degrees(&mut self, x: &Value) -> Value {
        let degrees = self.operators.degrees(&self.edges);
        let logarithms = self.operators.apply("Log", &[&degrees], &[]);
        self.operators.apply("Concat", &[x, &logarithms], &[ALONG_COLUMNS])
    }

    /// Pools the output of layer `index`: `[nodes, width]` → `[graphs, width]`.
    fn pool(&mut self, index: i64, x: &Value, graphs: &Places) -> Result<Value, OnnxError> {
        let (operators, width) = (&mut self.operators, self.config.width());
        Ok(match self.config.pooling {
            Pooling::Sum => operators.scattered(Reduction::Sum, graphs, width, x),
            Pooling::Mean => operators.means(x, graphs, width),
            // The rows are outputs of a ReLU.
            Pooling::Max => operators.scattered(Reduction::Max(0.0), graphs, width, x),
            Pooling::Attention => {
                let gates = operators.linear(x, &format!("pools.{index}.gate_nn"), true)?;
                let weights = operators.softmax(&gates, graphs, 1);
                let weighted = operators.apply("Mul", &[x, &weights], &[]);
                operators.scattered(Reduction::Sum, graphs, width, &weighted)
            }
        })
    }

    /// Values in the units of the targets, f64: see [`in_units`](kdgat_nn::target_scale::in_units).
    fn in_units(&mut self, outputs: &Value) -> Value {
        let (operators, scales) = (&mut self.operators, &self.config.target_scales);
        let count = scales.len() as i64;
        let row = |value: fn(&TargetScale) -> f64| scales.iter().map(value).collect::<Vec<_>>();
        let deviation = operators.builder.wide(&[count], &row(|scale| scale.deviation));
        let mean = operators.builder.wide(&[count], &row(|scale| scale.mean));
        let outputs = operators.cast(outputs, Element::Double);
        let values = operators.apply("Mul", &[&outputs, &deviation], &[]);
        let values = operators.apply("Add", &[&values, &mean], &[]);
        let Some(graphs) = self.graphs.as_ref().filter(|_| scales.iter().any(|scale| !scale.weights.is_empty())) else {
            return values;
        };
        // Node feature by target.
        let weight =
            |feature: usize| scales.iter().map(move |scale| scale.weights.get(feature).copied().unwrap_or(0.0));
        let weights: Vec<f64> = (0..self.config.node_features as usize).flat_map(weight).collect();
        let weights = operators.builder.wide(&[self.config.node_features, count], &weights);
        let features = operators.cast(&self.features, Element::Double);
        let of_nodes = operators.apply("MatMul", &[&features, &weights], &[]);
        let linear = operators.wide_sums(graphs, count, &of_nodes);
        operators.apply("Add", &[&values, &linear], &[])
    }
}

#[cfg(test)]
mod tests {
    use kdgat_nn::Gnn;
    use kdgat_nn::attention::Backend;

    use super::*;
    use crate::test_models::{expect_complete, state_of};

    #[test]
    fn every_value_is_defined_before_its_use() {
        let kinds = [GnnKind::Gin, GnnKind::Gcn, GnnKind::Sage, GnnKind::Gat, GnnKind::Mlp];
        let poolings = [Pooling::Sum, Pooling::Mean, Pooling::Max, Pooling::Attention];
        for (position, pooling) in poolings.into_iter().enumerate() {
            for kind in kinds {
                let edge_features = if kind == GnnKind::Gin { position as i64 } else { 0 };
                let scale = TargetScale { mean: 1.0, deviation: 2.0, weights: vec![0.5, -1.0] };
                let config = GnnConfig {
                    edge_features,
                    heads: if kind == GnnKind::Gat { 2 } else { 1 },
                    embedding_columns: if position > 1 { 5 } else { 0 },
                    pooling,
                    virtual_node: position % 2 == 1 && kind != GnnKind::Mlp,
                    target_scales: if position > 0 { vec![scale, TargetScale::of_units()] } else { Vec::new() },
                    ..GnnConfig::new(kind, [2, 6, 2, 2])
                };
                let state = state_of(|scope| Gnn::new(scope, &config, Backend::Auto).map(drop));
                let bytes = graph_network(&config, &state, &[]).unwrap();
                let inputs = ["features", "source", "target", "graph", "edge_features"];
                let outputs = [if position > 0 { "values" } else { "logits" }, "embedding"];
                let inputs = &inputs[..if edge_features > 0 { 5 } else { 4 }];
                expect_complete(&bytes, &state, inputs, &outputs[..if position > 1 { 2 } else { 1 }]);
                let target_scales = config.target_scales.iter().map(|_| TargetScale::of_units()).collect();
                let (level, pooling) = (Level::Node, Pooling::Sum);
                let config =
                    GnnConfig { level, pooling, embedding_columns: 0, edge_features: 0, target_scales, ..config };
                let state = state_of(|scope| Gnn::new(scope, &config, Backend::Auto).map(drop));
                let bytes = graph_network(&config, &state, &[]).unwrap();
                let inputs = &["features", "source", "target", "graph"][..if config.virtual_node { 4 } else { 3 }];
                expect_complete(&bytes, &state, inputs, &outputs[..1]);
            }
        }
    }
}
