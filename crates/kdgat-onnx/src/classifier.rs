//! ONNX export of a GAT classifier, operator by operator as [`Gat`](kdgat_nn::Gat) computes it in evaluation mode.
//!
//! A batch has the layout of `examples.safetensors`: nodes and edges of all graphs in sequence, each node with a self-loop.

use kdgat_graph::node_scaling::MOST_DEVIATIONS;
use kdgat_graph::{EDGE_FEATURES, ForeignIds, Vocabulary};
use kdgat_nn::GatConfig;
use kdgat_nn::gat::CLASSES;
use kdgat_nn::weights::StateDict;

use super::OnnxError;
use super::builder::{Element, Size, Value};
use super::operators::{ALONG_COLUMNS, Edges, Operators, Places, Reduction};

/// Exports the model as bytes. Inputs: `id` `[nodes]`, `continuous` `[nodes, node_features]`, `source` and `target` `[edges]`,
/// `graph` `[nodes]`, and for GATv2 `edge_attributes` `[edges, EDGE_FEATURES]`. Output: `logits` `[graphs, CLASSES]`; with
/// `foreign_ids`, that of an attack includes the evidence of foreign IDs.
///
/// # Errors
/// Fails if the model hashes IDs or lacks tensors.
pub fn classifier(
    config: &GatConfig,
    foreign_ids: Option<ForeignIds>,
    state: &StateDict,
    metadata: &[(&str, String)],
) -> Result<Vec<u8>, OnnxError> {
    if config.input.id_hash.is_some() {
        return Err(OnnxError::Hashed);
    }
    let mut network = Network::new(config, state);
    let mut x = network.nodes()?;
    let mut layers = Vec::new();
    for index in 0..config.layers {
        x = network.attention(index, &x)?;
        layers.push(x.clone());
    }
    let pooled = network.mean_of_graphs(&layers);
    let mut logits = network.head(pooled)?;
    if let Some(foreign_ids) = foreign_ids {
        let evidence = network.evidence_of_foreign_ids(foreign_ids.evidence() as f32);
        logits = network.operators.apply("Add", &[&logits, &evidence], &[]);
    }
    let sizes = [Size::Any("graphs"), Size::Fixed(CLASSES)];
    network.operators.builder.output(&logits, "logits", Element::Float, &sizes);
    Ok(network.operators.builder.finish(metadata))
}

struct Network<'a> {
    config: &'a GatConfig,
    operators: Operators<'a>,
    id: Value,
    continuous: Value,
    edges: Edges,
    graphs: Places,
    edge_attributes: Option<Value>,
}

impl<'a> Network<'a> {
    fn new(config: &'a GatConfig, state: &'a StateDict) -> Self {
        let mut operators = Operators::new(state);
        let nodes = Size::Any("nodes");
        let id = operators.builder.input("id", Element::Int64, &[nodes]);
        let features = Size::Fixed(config.input.node_features());
        let continuous = operators.builder.input("continuous", Element::Float, &[nodes, features]);
        let edges = operators.edges(&id);
        let graphs = operators.graphs();
        let sizes = [Size::Any("edges"), Size::Fixed(EDGE_FEATURES as i64)];
        let edge_attributes =
            config.edge_scaling.is_some().then(|| operators.builder.input("edge_attributes", Element::Float, &sizes));
        Self { config, operators, id, continuous, edges, graphs, edge_attributes }
    }

    /// Input of the first layer, `[nodes, embedding + node_features]`.
    fn nodes(&mut self) -> Result<Value, OnnxError> {
        let operators = &mut self.operators;
        let embedding = operators.weight("id_embedding.weight")?;
        let embedded = operators.rows(&embedding, &self.id);
        let continuous = match &self.config.input.node_scaling {
            None => self.continuous.clone(),
            Some(scaling) => {
                let (mean, deviation) = (&scaling.mean, &scaling.deviation);
                let scaled = operators.standardised("node_scaling", &self.continuous, mean, deviation);
                let most = MOST_DEVIATIONS as f32;
                let ends = [-most, most].map(|end| operators.builder.number(end));
                operators.apply("Clip", &[&scaled, &ends[0], &ends[1]], &[])
            }
        };
        Ok(operators.apply("Concat", &[&embedded, &continuous], &[ALONG_COLUMNS]))
    }

    /// Attention layer `index` with its ReLU, `[nodes, heads * channels]`.
    fn attention(&mut self, index: i64, x: &Value) -> Result<Value, OnnxError> {
        let (operators, edges) = (&mut self.operators, &self.edges);
        let (layer, heads) = (format!("convs.{index}"), [self.config.heads, self.config.hidden]);
        let (values, scores) = match (&self.edge_attributes, &self.config.edge_scaling) {
            (Some(attributes), Some(scaling)) => {
                let [mean, deviation] = [scaling.mean, scaling.deviation].map(|row| row.map(|value| value as f32));
                let name = format!("edge_scaling.{index}");
                let scaled = operators.standardised(&name, attributes, &mean, &deviation);
                let of_edges = operators.linear(&scaled, &format!("{layer}.lin_edge"), false)?;
                let of_edges = operators.heads(&of_edges, heads);
                operators.gatv2_scores(x, &layer, edges, heads, Some(&of_edges))?
            }
            _ => operators.gat_scores(x, &layer, edges, heads)?,
        };
        let sums = operators.attended(&values, &scores, edges, heads);
        let sums = operators.with_bias(&sums, &format!("{layer}.bias"))?;
        Ok(operators.relu(&sums))
    }

    /// Means over each graph's nodes, `[graphs, columns of all layers]`.
    fn mean_of_graphs(&mut self, layers: &[Value]) -> Value {
        let layers: Vec<&Value> = layers.iter().collect();
        let all = self.operators.apply("Concat", &layers, &[ALONG_COLUMNS]);
        self.operators.means(&all, &self.graphs, self.config.embedding_columns())
    }

    /// The fully connected head.
    fn head(&mut self, mut x: Value) -> Result<Value, OnnxError> {
        for layer in 0..self.config.fc_layers {
            if layer > 0 {
                x = self.operators.relu(&x);
            }
            // The module also numbers the ReLU and the dropout between two linear layers.
            x = self.operators.linear(&x, &format!("fc_layers.{}", 3 * layer), true)?;
        }
        Ok(x)
    }
}

/// Evidence of the list of known IDs: see [`foreign_ids`](kdgat_graph::foreign_ids).
impl Network<'_> {
    /// Evidence to add to the logits, `[graphs, CLASSES]`: `evidence` for the attack class of graphs with an unknown ID, else 0.
    fn evidence_of_foreign_ids(&mut self, evidence: f32) -> Value {
        let sends = self.sending_nodes();
        let operators = &mut self.operators;
        let unknown = operators.builder.integers(&[i64::from(Vocabulary::UNKNOWN)]);
        let is_foreign = operators.apply("Equal", &[&self.id, &unknown], &[]);
        let is_foreign = as_column(operators, &is_foreign);
        let counts = operators.apply("Mul", &[&is_foreign, &sends], &[]);
        let of_classes = operators.builder.floats("foreign_ids.evidence", &[1, CLASSES], &[0.0, evidence]);
        let of_nodes = operators.apply("Mul", &[&counts, &of_classes], &[]);
        operators.scattered(Reduction::Max(0.0), &self.graphs, CLASSES, &of_nodes)
    }

    /// Mask of the nodes with a frame in the window, `[nodes, 1]`: 1, or 0 for an ID that only the last edge leads to. A sending node
    /// has an edge to another node, or the window ends with consecutive frames of it; then the feature `shows_last_sender` is
    /// above 0, while it is 0 for a node without a frame.
    fn sending_nodes(&mut self) -> Value {
        let operators = &mut self.operators;
        let Places { index: target, count } = &self.edges.target;
        let is_loop = operators.apply("Equal", &[&self.edges.source, target], &[]);
        let leads_on = operators.apply("Not", &[&is_loop], &[]);
        let leads_on = as_column(operators, &leads_on);
        let sources = Places { index: self.edges.source.clone(), count: count.clone() };
        let leads_on = operators.scattered(Reduction::Max(0.0), &sources, 1, &leads_on);
        let column = operators.builder.integers(&[self.config.input.features().shows_last_sender() as i64]);
        let feature = operators.apply("Gather", &[&self.continuous, &column], &[ALONG_COLUMNS]);
        let none = operators.builder.number(0.0);
        let is_there = operators.apply("Greater", &[&feature, &none], &[]);
        let is_there = operators.cast(&is_there, Element::Float);
        operators.apply("Max", &[&leads_on, &is_there], &[])
    }
}

/// 1 where it is so and else 0, `[nodes, 1]`.
fn as_column(operators: &mut Operators<'_>, is_so: &Value) -> Value {
    let numbers = operators.cast(is_so, Element::Float);
    operators.with_axis(&numbers, 1)
}

#[cfg(test)]
mod tests {
    use kdgat_graph::{EdgeScaling, FeatureSet, NodeScaling};
    use kdgat_nn::Gat;
    use kdgat_nn::attention::Backend;
    use kdgat_nn::id_hash::IdHash;

    use super::*;
    use crate::test_models::{expect_complete, state_of};

    fn config() -> GatConfig {
        GatConfig {
            hidden: 3,
            layers: 2,
            heads: 2,
            embedding: 4,
            fc_layers: 2,
            vocabulary_size: 5,
            dropout: 0.1,
            edge_scaling: None,
            input: Default::default(),
        }
    }

    fn state(config: &GatConfig) -> StateDict {
        state_of(|scope| Gat::new(scope, config, Backend::Auto).map(drop))
    }

    #[test]
    fn every_value_is_defined_before_its_use() {
        let mut rich = config();
        rich.edge_scaling = Some(EdgeScaling { mean: [0.5; EDGE_FEATURES], deviation: [2.0; EDGE_FEATURES] });
        rich.input.node_scaling = Some(NodeScaling::identity(FeatureSet::Rich));
        let counted = ForeignIds { of_attacks: 0.5, of_normals: 0.01 };
        let inputs = ["id", "continuous", "source", "target", "graph", "edge_attributes"];
        for (config, foreign_ids, inputs) in
            [(config(), None, &inputs[..5]), (config(), Some(counted), &inputs[..5]), (rich, None, &inputs[..])]
        {
            let state = state(&config);
            let bytes = classifier(&config, foreign_ids, &state, &[("key", "value".to_owned())]).unwrap();
            expect_complete(&bytes, &state, inputs, &["logits"]);
        }
    }

    #[test]
    fn unsupported_models_are_refused() {
        let mut hashed = config();
        let complete = state(&hashed);
        hashed.input.id_hash = Some(IdHash { probes: 2, buckets: 8 });
        assert!(matches!(classifier(&hashed, None, &complete, &[]), Err(OnnxError::Hashed)));
        let error = classifier(&config(), None, &StateDict::new(), &[]).unwrap_err();
        assert_eq!(error.to_string(), "the model has no tensor id_embedding.weight");
    }
}
