//! ONNX export of a GAT classifier, operator by operator as [`crate::nn::Gat`] computes it in evaluation mode.
//!
//! A batch has the layout of `examples.safetensors`: nodes and edges of all graphs in sequence, each node with a self-loop. Sums
//! over edges and nodes are `ScatterElements`, which adds in the order of its updates.

mod foreign_ids;

use prost::Message;
use tch::{Kind, TchError};

use super::builder::{Builder, Content, Element, Setting, Size, Value};
use crate::graph::node_scaling::MOST_DEVIATIONS;
use crate::graph::{EDGE_FEATURES, ForeignIds};
use crate::nn::GatConfig;
use crate::nn::gat::CLASSES;
use crate::nn::gat_conv::NEGATIVE_SLOPE;
use crate::nn::weights::StateDict;

/// Reason that a model cannot be exported to ONNX.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// The model hashes IDs, and ONNX lacks its hash function.
    #[error("a model that hashes IDs (id_encoding = \"hash\") cannot be written as ONNX; train one with a vocabulary")]
    Hashed,
    /// A tensor of the architecture is missing.
    #[error("the model has no tensor {0}")]
    Missing(String),
    /// An error of libtorch while reading a tensor.
    #[error(transparent)]
    Torch(#[from] TchError),
}

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
        logits = network.builder.apply("Add", &[&logits, &evidence], &[]);
    }
    let sizes = [Size::Any("graphs"), Size::Fixed(CLASSES)];
    let model = network.builder.finish(&logits, "logits", (Element::Float, &sizes), metadata);
    Ok(model.encode_to_vec())
}

const ALONG_ROWS: Setting<'static> = ("axis", Content::Integer(0));
const SLOPE: Setting<'static> = ("alpha", Content::Float(NEGATIVE_SLOPE as f32));

struct Network<'a> {
    config: &'a GatConfig,
    state: &'a StateDict,
    builder: Builder,
    id: Value,
    continuous: Value,
    source: Value,
    target: Value,
    graph: Value,
    edge_attributes: Option<Value>,
    /// Number of nodes, `[1]`.
    num_nodes: Value,
    /// Number of graphs, `[1]`.
    num_graphs: Value,
}

impl<'a> Network<'a> {
    fn new(config: &'a GatConfig, state: &'a StateDict) -> Self {
        let mut builder = Builder::default();
        let (nodes, edges) = (Size::Any("nodes"), Size::Any("edges"));
        let id = builder.input("id", Element::Int64, &[nodes]);
        let features = Size::Fixed(config.input.node_features());
        let continuous = builder.input("continuous", Element::Float, &[nodes, features]);
        let source = builder.input("source", Element::Int64, &[edges]);
        let target = builder.input("target", Element::Int64, &[edges]);
        let graph = builder.input("graph", Element::Int64, &[nodes]);
        let columns = Size::Fixed(EDGE_FEATURES as i64);
        let edge_attributes =
            config.edge_scaling.is_some().then(|| builder.input("edge_attributes", Element::Float, &[edges, columns]));
        let num_nodes = builder.apply("Shape", &[&id], &[]);
        let last = builder.apply("ReduceMax", &[&graph], &[("keepdims", Content::Integer(1))]);
        let one = builder.integers(&[1]);
        let num_graphs = builder.apply("Add", &[&last, &one], &[]);
        Self { config, state, builder, id, continuous, source, target, graph, edge_attributes, num_nodes, num_graphs }
    }

    /// Input of the first layer, `[nodes, embedding + node_features]`.
    fn nodes(&mut self) -> Result<Value, OnnxError> {
        let embedding = self.weight("id_embedding.weight")?;
        let embedded = self.builder.apply("Gather", &[&embedding, &self.id], &[ALONG_ROWS]);
        let continuous = match &self.config.input.node_scaling {
            None => self.continuous.clone(),
            Some(scaling) => {
                let scaled = standardised(
                    &mut self.builder,
                    "node_scaling",
                    &self.continuous,
                    &scaling.mean,
                    &scaling.deviation,
                );
                let most = MOST_DEVIATIONS as f32;
                let ends = [-most, most].map(|end| self.builder.floats(&format!("node_scaling.{end}"), &[], &[end]));
                self.builder.apply("Clip", &[&scaled, &ends[0], &ends[1]], &[])
            }
        };
        Ok(self.builder.apply("Concat", &[&embedded, &continuous], &[("axis", Content::Integer(1))]))
    }

    /// Attention layer `index` with its ReLU, `[nodes, heads * channels]`.
    fn attention(&mut self, index: i64, x: &Value) -> Result<Value, OnnxError> {
        let (values, scores) = match self.edge_attributes.clone() {
            None => self.scores(index, x)?,
            Some(attributes) => self.pair_scores(index, x, &attributes)?,
        };
        let weights = self.softmax_of_targets(&scores);
        let weights = self.with_axis(&weights, 2);
        let of_edges = self.rows(&values, Edge::Source);
        let messages = self.builder.apply("Mul", &[&of_edges, &weights], &[]);
        let columns = self.config.heads * self.config.hidden;
        let messages = self.reshaped(&messages, &[-1, columns]);
        let target = self.target.clone();
        let nodes = self.num_nodes.clone();
        let sums = self.scattered("add", (&nodes, columns, 0.0), &target, &messages);
        let bias = self.weight(&format!("convs.{index}.bias"))?;
        let sums = self.builder.apply("Add", &[&sums, &bias], &[]);
        Ok(self.builder.apply("Relu", &[&sums], &[]))
    }

    /// Values `[nodes, heads, channels]` and scores `[edges, heads]` of GAT.
    fn scores(&mut self, index: i64, x: &Value) -> Result<(Value, Value), OnnxError> {
        let values = self.linear(x, &format!("convs.{index}.lin"), false)?;
        let values = self.heads(&values);
        let mut of_nodes = |name: &str| -> Result<Value, OnnxError> {
            let vector = self.weight(&format!("convs.{index}.{name}"))?;
            let products = self.builder.apply("Mul", &[&values, &vector], &[]);
            Ok(self.sum_of_channels(&products))
        };
        let (as_source, as_target) = (of_nodes("att_src")?, of_nodes("att_dst")?);
        let (as_source, as_target) = (self.rows(&as_source, Edge::Source), self.rows(&as_target, Edge::Target));
        let sums = self.builder.apply("Add", &[&as_source, &as_target], &[]);
        Ok((values, self.builder.apply("LeakyRelu", &[&sums], &[SLOPE])))
    }

    /// Values `[nodes, heads, channels]` and scores `[edges, heads]` of GATv2 with edge features.
    fn pair_scores(&mut self, index: i64, x: &Value, attributes: &Value) -> Result<(Value, Value), OnnxError> {
        let source = self.linear(x, &format!("convs.{index}.lin_l"), true)?;
        let source = self.heads(&source);
        let target = self.linear(x, &format!("convs.{index}.lin_r"), true)?;
        let target = self.heads(&target);
        let scaled = match &self.config.edge_scaling {
            None => attributes.clone(),
            Some(scaling) => {
                let [mean, deviation] = [scaling.mean, scaling.deviation].map(|row| row.map(|value| value as f32));
                standardised(&mut self.builder, &format!("edge_scaling.{index}"), attributes, &mean, &deviation)
            }
        };
        let edge = self.linear(&scaled, &format!("convs.{index}.lin_edge"), false)?;
        let edge = self.heads(&edge);
        let (of_target, of_source) = (self.rows(&target, Edge::Target), self.rows(&source, Edge::Source));
        let sums = self.builder.apply("Add", &[&of_target, &of_source], &[]);
        let sums = self.builder.apply("Add", &[&sums, &edge], &[]);
        let activated = self.builder.apply("LeakyRelu", &[&sums], &[SLOPE]);
        let vector = self.weight(&format!("convs.{index}.att"))?;
        let products = self.builder.apply("Mul", &[&activated, &vector], &[]);
        Ok((source, self.sum_of_channels(&products)))
    }

    /// Softmax of `scores` `[edges, heads]` over the edges of each target.
    fn softmax_of_targets(&mut self, scores: &Value) -> Value {
        let (target, nodes, heads) = (self.target.clone(), self.num_nodes.clone(), self.config.heads);
        let highest = self.scattered("max", (&nodes, heads, f32::MIN), &target, scores);
        let highest = self.rows(&highest, Edge::Target);
        let below = self.builder.apply("Sub", &[scores, &highest], &[]);
        let exponentials = self.builder.apply("Exp", &[&below], &[]);
        let sums = self.scattered("add", (&nodes, heads, 0.0), &target, &exponentials);
        let sums = self.rows(&sums, Edge::Target);
        self.builder.apply("Div", &[&exponentials, &sums], &[])
    }

    /// Means over each graph's nodes, `[graphs, columns of all layers]`.
    fn mean_of_graphs(&mut self, layers: &[Value]) -> Value {
        let layers: Vec<&Value> = layers.iter().collect();
        let all = self.builder.apply("Concat", &layers, &[("axis", Content::Integer(1))]);
        let one = self.builder.integers(&[1]);
        let (graph, graphs) = (self.graph.clone(), self.num_graphs.clone());
        let sums = self.scattered("add", (&graphs, self.config.embedding_columns(), 0.0), &graph, &all);
        let shape = self.builder.apply("Concat", &[&self.num_nodes, &one], &[ALONG_ROWS]);
        let ones = self.builder.apply("ConstantOfShape", &[&shape], &[("value", Content::Scalar(1.0))]);
        let counts = self.scattered("add", (&graphs, 1, 0.0), &graph, &ones);
        self.builder.apply("Div", &[&sums, &counts], &[])
    }

    /// The fully connected head.
    fn head(&mut self, mut x: Value) -> Result<Value, OnnxError> {
        for layer in 0..self.config.fc_layers {
            if layer > 0 {
                x = self.builder.apply("Relu", &[&x], &[]);
            }
            // The module also numbers the ReLU and the dropout between two linear layers.
            x = self.linear(&x, &format!("fc_layers.{}", 3 * layer), true)?;
        }
        Ok(x)
    }

    /// Linear layer x Wᵀ, plus b if it has a bias.
    fn linear(&mut self, x: &Value, layer: &str, has_bias: bool) -> Result<Value, OnnxError> {
        let mut inputs = vec![x.clone(), self.weight(&format!("{layer}.weight"))?];
        if has_bias {
            inputs.push(self.weight(&format!("{layer}.bias"))?);
        }
        let inputs: Vec<&Value> = inputs.iter().collect();
        Ok(self.builder.apply("Gemm", &inputs, &[("transB", Content::Integer(1))]))
    }

    /// Rows of the edges' sources or targets.
    fn rows(&mut self, of_nodes: &Value, end: Edge) -> Value {
        let index = match end {
            Edge::Source => &self.source,
            Edge::Target => &self.target,
        };
        self.builder.apply("Gather", &[of_nodes, index], &[ALONG_ROWS])
    }

    /// Scatters the rows of `updates` `[_, columns]` to `places` in a tensor `[rows, columns]` filled with `initial`, combining them
    /// with `reduction`.
    fn scattered(
        &mut self,
        reduction: &str,
        (rows, columns, initial): (&Value, i64, f32),
        places: &Value,
        updates: &Value,
    ) -> Value {
        let columns = self.builder.integers(&[columns]);
        let shape = self.builder.apply("Concat", &[rows, &columns], &[ALONG_ROWS]);
        let data = self.builder.apply("ConstantOfShape", &[&shape], &[("value", Content::Scalar(initial))]);
        let places = self.with_axis(places, 1);
        let shape = self.builder.apply("Shape", &[updates], &[]);
        let places = self.builder.apply("Expand", &[&places, &shape], &[]);
        let settings = [ALONG_ROWS, ("reduction", Content::Text(reduction))];
        self.builder.apply("ScatterElements", &[&data, &places, updates], &settings)
    }

    fn heads(&mut self, x: &Value) -> Value {
        self.reshaped(x, &[-1, self.config.heads, self.config.hidden])
    }

    fn reshaped(&mut self, x: &Value, sizes: &[i64]) -> Value {
        let sizes = self.builder.integers(sizes);
        self.builder.apply("Reshape", &[x, &sizes], &[])
    }

    fn with_axis(&mut self, x: &Value, axis: i64) -> Value {
        let axes = self.builder.integers(&[axis]);
        self.builder.apply("Unsqueeze", &[x, &axes], &[])
    }

    fn sum_of_channels(&mut self, x: &Value) -> Value {
        let axes = self.builder.integers(&[2]);
        self.builder.apply("ReduceSum", &[x, &axes], &[("keepdims", Content::Integer(0))])
    }

    fn weight(&mut self, name: &str) -> Result<Value, OnnxError> {
        let tensor = self.state.get(name).ok_or_else(|| OnnxError::Missing(name.to_owned()))?;
        let flat =
            tensor.f_detach()?.f_to_kind(Kind::Float)?.f_to_device(tch::Device::Cpu)?.f_contiguous()?.f_view([-1])?;
        let values: Vec<f32> = Vec::try_from(&flat)?;
        Ok(self.builder.floats(name, &tensor.size(), &values))
    }
}

#[derive(Clone, Copy)]
enum Edge {
    Source,
    Target,
}

/// Standardises each column: (x − mean) / deviation.
fn standardised(builder: &mut Builder, name: &str, x: &Value, mean: &[f32], deviation: &[f32]) -> Value {
    let mean = builder.floats(&format!("{name}.mean"), &[mean.len() as i64], mean);
    let deviation = builder.floats(&format!("{name}.deviation"), &[deviation.len() as i64], deviation);
    let centred = builder.apply("Sub", &[x, &mean], &[]);
    builder.apply("Div", &[&centred, &deviation], &[])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tch::Device;

    use super::*;
    use crate::graph::{EdgeScaling, FeatureSet, NodeScaling};
    use crate::nn::attention::Backend;
    use crate::nn::id_hash::IdHash;
    use crate::nn::{FreshParameters, Gat, Scope};
    use crate::onnx::message::Model;

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
        let mut parameters = FreshParameters::new(1, Device::Cpu);
        Gat::new(Scope::root(&mut parameters), config, Backend::Auto).unwrap();
        parameters.into_tensors().into_iter().map(|named| (named.name, named.tensor)).collect()
    }

    /// Every operator input is a graph input, a constant, or an earlier output; every name is defined once.
    #[test]
    fn every_value_is_defined_before_its_use() {
        let mut rich = config();
        rich.edge_scaling = Some(EdgeScaling { mean: [0.5; EDGE_FEATURES], deviation: [2.0; EDGE_FEATURES] });
        rich.input.node_scaling = Some(NodeScaling::identity(FeatureSet::Rich));
        let counted = ForeignIds { of_attacks: 0.5, of_normals: 0.01 };
        for (config, foreign_ids, inputs) in [(config(), None, 5), (config(), Some(counted), 5), (rich, None, 6)] {
            let state = state(&config);
            let bytes = classifier(&config, foreign_ids, &state, &[("key", "value".to_owned())]).unwrap();
            let model = Model::decode(bytes.as_slice()).unwrap();
            let graph = model.graph.unwrap();
            assert_eq!(graph.inputs.len(), inputs);
            let given = graph.inputs.iter().map(|input| &input.name);
            let given = given.chain(graph.initializers.iter().map(|constant| &constant.name));
            let given: Vec<String> = given.map(|name| name.clone().unwrap()).collect();
            let mut known: BTreeSet<String> = given.iter().cloned().collect();
            assert_eq!(known.len(), given.len(), "a name twice in {given:?}");
            for node in &graph.nodes {
                for input in &node.inputs {
                    assert!(known.contains(input), "{:?} reads {input}", node.name);
                }
                assert!(node.outputs.iter().all(|output| known.insert(output.clone())), "{:?}", node.outputs);
            }
            assert!(known.contains("logits") && graph.outputs.len() == 1);
            for name in state.keys() {
                assert!(known.contains(name), "{name} is not used");
            }
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
