//! The test nodes of the models of one large graph, and their answers for them, by exact inference.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tch::Device;

use super::node_data::{self, NodeData};
use super::node_teacher::activation_place;
use super::recorded_runs::sections_of;
use super::tested::{Measured, Scored, TestSet};
use super::tested_batches::given;
use super::{StageError, training};
use crate::config::{Config, NodesConfig};
use crate::distill::frozen::{ActivationPlace, outputs_of_all_nodes};
use crate::evaluate::graphs::{Metric, Tested};
use crate::evaluate::{TrainedModel, expected_accuracy, label_propagation};
use crate::graph::dataset::Target;
use crate::graph::{Level, Schema, Task};
use crate::nn::{Architecture, NodeGnnConfig, weights};
use crate::nodes::sources::node_names;
use crate::nodes::{ActivationRows, GraphOptions, NodeGraph, NodeSplit, SplitOptions, with_positions};

/// Sections of a run's configuration that record its division.
#[derive(Deserialize)]
struct FrozenSections {
    nodes: NodesConfig,
    data: FrozenData,
    training: FrozenTraining,
}

#[derive(Deserialize)]
struct FrozenData {
    validation_fraction: f64,
}

#[derive(Deserialize)]
struct FrozenTraining {
    seed: u64,
}

/// The configuration with a run's own options of the graph and of its division; `None` for weights without the configuration of a run.
pub(super) fn recorded_nodes(config: &Config, model: &TrainedModel) -> Result<Option<Config>, StageError> {
    let sections: Option<FrozenSections> = sections_of(model)?;
    Ok(sections.map(|FrozenSections { nodes, data, training }| {
        let mut config = config.clone();
        config.nodes = nodes;
        config.data.validation_fraction = data.validation_fraction;
        config.training.seed = training.seed;
        config
    }))
}

/// The network of a model.
fn node_network(model: &TrainedModel) -> Result<&NodeGnnConfig, StageError> {
    match &model.description.architecture {
        Architecture::Nodes(architecture) => Ok(architecture),
        other => {
            let (name, kind) = (&model.name, other.model_name());
            Err(StageError::Input(format!("{name} is a {kind}, not a model of the nodes of one graph")))
        }
    }
}

/// Refuses a model that was trained on another graph.
///
/// # Errors
/// Names the model and the ways out.
pub(super) fn expect_graph(model: &TrainedModel, graph: &NodeGraph) -> Result<(), StageError> {
    if model.description.dataset.digest == graph.digest {
        return Ok(());
    }
    Err(StageError::Input(format!(
        "{} was trained on another graph than {} is now: its nodes, edges, features or labels were others; restore the data, train again, or \
         leave the run out by naming the runs to evaluate",
        model.name, graph.name
    )))
}

/// Outputs of a model for all nodes of a graph, computed layer by layer.
///
/// # Errors
/// Weights that do not fit the architecture, or too little memory or disk for the activations.
pub(super) fn outputs_of(
    config: &Config,
    device: Device,
    model: &TrainedModel,
    architecture: &NodeGnnConfig,
    graph: &Arc<NodeGraph>,
) -> Result<ActivationRows, StageError> {
    let mut given = given(model, device)?;
    let place: ActivationPlace = activation_place(config, &config.data.stores_dir)?;
    let kernel = training::attention_kernel(config);
    let read = Arc::new(with_positions(graph, architecture.positions as usize)?);
    let outputs = outputs_of_all_nodes(read, architecture, &mut given, kernel, device, place)
        .map_err(crate::distill::TeacherError::from)?;
    given.check_all_used(|_| false)?;
    Ok(outputs)
}

/// The task as that of many graphs is described.
fn schema(data: &NodeData) -> Schema {
    let classes = data.graph.task.classes;
    let names = data.class_names.clone().filter(|names| names.len() == classes);
    let classes = names.unwrap_or_else(|| (0..classes).map(|class| class.to_string()).collect());
    Schema {
        task: Task::Classification,
        level: Level::Node,
        targets: vec![Target { name: "y".to_owned(), classes }],
        node_features: Vec::new(),
        edge_features: Vec::new(),
        space: None,
    }
}

/// The graph as some runs read it.
struct Opened {
    data: NodeData,
    schema: Schema,
}

/// The records of a run: its division, and the options of reading the graph.
pub struct RecordedNodes {
    options: SplitOptions,
    opened: Rc<Opened>,
}

/// The test nodes of the runs on one graph; keeps what several of them need.
pub struct TestNodes<'a> {
    config: &'a Config,
    dataset: String,
    /// The graph, once for all runs with the same options of reading it.
    opened: Vec<(GraphOptions, Rc<Opened>)>,
    /// Names of the nodes in the source, read for `--predictions` alone; `None` if it has none.
    names: Option<Vec<String>>,
    /// True if one of the models is meant for the mixture of classes that the test nodes have, and another for that of the labelled ones:
    /// plain validation accuracy cannot compare these.
    compares_mixtures: bool,
    /// Metrics of label propagation by graph, division and test nodes.
    propagated: BTreeMap<String, Vec<Metric>>,
}

impl<'a> TestNodes<'a> {
    /// Finds the configured graph, which is read with the options of each run.
    ///
    /// # Errors
    /// A source that cannot be opened.
    pub fn open(config: &'a Config) -> Result<Self, StageError> {
        let dataset = node_data::name(config)?;
        let (opened, names, compares_mixtures, propagated) = (Vec::new(), None, false, BTreeMap::new());
        Ok(Self { config, dataset, opened, names, compares_mixtures, propagated })
    }

    /// The graph with the options of a run, which are in `recorded`.
    fn open_as(&mut self, recorded: &Config) -> Result<Rc<Opened>, StageError> {
        let options = node_data::graph_options(recorded);
        if let Some((_, opened)) = self.opened.iter().find(|(of, _)| *of == options) {
            return Ok(Rc::clone(opened));
        }
        let data = node_data::open(recorded)?;
        let opened = Rc::new(Opened { schema: schema(&data), data });
        self.opened.push((options, Rc::clone(&opened)));
        Ok(opened)
    }

    /// The cells that identify the test nodes, the visible ones first.
    fn places(&self, graph: &NodeGraph, split: &NodeSplit) -> Vec<Vec<String>> {
        let cells = |node: u32, hidden: &str| {
            let number = graph.original_number(node);
            // The store was built from the same file.
            let name = self.names.as_ref().map(|names| names.get(number as usize).cloned().unwrap_or_default());
            vec![name.unwrap_or_else(|| number.to_string()), hidden.to_owned()]
        };
        let visible = split.test.iter().map(|&node| cells(node, "0"));
        visible.chain(split.hidden.iter().map(|&node| cells(node, "1"))).collect()
    }
}

impl TestSet for TestNodes<'_> {
    type Recorded = RecordedNodes;
    type Split = NodeSplit;

    const UNIT: &'static str = "nodes";
    const PRESET: &'static str = "sage";

    fn dataset(&self) -> &str {
        &self.dataset
    }

    // No option of reading changes the classes.
    fn schema<'r>(&'r self, recorded: &'r RecordedNodes) -> &'r Schema {
        &recorded.opened.schema
    }

    fn identify(&mut self) -> Result<Vec<&'static str>, StageError> {
        self.names = node_names(node_data::source(self.config)?)?;
        Ok(vec!["node", "hidden"])
    }

    fn records_of(&mut self, model: &TrainedModel) -> Result<Option<RecordedNodes>, StageError> {
        let Some(recorded) = recorded_nodes(self.config, model)? else { return Ok(None) };
        let corrects_shares =
            |(name, value): &(String, Value)| name == "kd_class_shares" && value.as_bool() == Some(true);
        self.compares_mixtures |= model.settings.iter().any(corrects_shares);
        let opened = self.open_as(&recorded)?;
        Ok(Some(RecordedNodes { options: node_data::split_options(&recorded, &opened.data.graph), opened }))
    }

    fn split_of(&self, model: &TrainedModel, recorded: &RecordedNodes) -> Result<NodeSplit, StageError> {
        node_network(model)?;
        let graph = &recorded.opened.data.graph;
        expect_graph(model, graph)?;
        Ok(NodeSplit::of(graph, &recorded.options)?)
    }

    fn score(
        &mut self,
        model: &TrainedModel,
        recorded: &RecordedNodes,
        split: &NodeSplit,
    ) -> Result<Scored, StageError> {
        let architecture = node_network(model)?;
        let (graph, device) = (&recorded.opened.data.graph, recorded.opened.data.device);
        let visible = node_data::visible_part(graph, split)?;
        let seen = outputs_of(self.config, device, model, architecture, &visible)?;
        let mut outputs = probabilities(&seen, &split.test)?;
        if !split.hidden.is_empty() {
            // Hidden nodes appear now, with their edges.
            outputs
                .extend(probabilities(&outputs_of(self.config, device, model, architecture, graph)?, &split.hidden)?);
        }
        let test: Vec<u32> = split.test.iter().chain(&split.hidden).copied().collect();
        let truth = |nodes: &[u32]| nodes.iter().map(|&node| vec![f64::from(graph.labels[node as usize])]).collect();
        let tested = Tested { outputs, targets: truth(&test), pointers: None };
        let mut more = Vec::new();
        if !split.hidden.is_empty() {
            more.extend(by_visibility(&tested, split.test.len()));
        }
        if self.compares_mixtures {
            let known = probabilities(&seen, &split.validation)?;
            let labels: Vec<usize> =
                split.validation.iter().map(|&node| graph.labels[node as usize] as usize).collect();
            // No label of a test node is read.
            let value = expected_accuracy(&known, &labels, &tested.outputs[..split.test.len()]);
            more.push(Metric { name: "accuracy_from_validation".to_owned(), value, interval: None });
        }
        let test_digest = split.test_digest(graph)?;
        Ok(Scored {
            more,
            more_of_chance: Vec::new(),
            linear: Vec::new(),
            propagated: self.propagated_metrics(&recorded.opened, &test_digest, split, &visible, &tested.targets),
            drawn: Vec::new(),
            seen: split.training.len() + split.validation.len(),
            count: test.len(),
            test_digest,
            fold: split.division.clone(),
            measured: Measured::Predicted { places: self.places(graph, split), known: truth(&split.training), tested },
        })
    }
}

impl TestNodes<'_> {
    /// Metrics of label propagation from the training nodes over the visible edges. A hidden node is alone, so every class is as likely.
    fn propagated_metrics(
        &mut self,
        of: &Opened,
        test_digest: &str,
        split: &NodeSplit,
        visible: &NodeGraph,
        targets: &[Vec<f64>],
    ) -> Vec<Metric> {
        let key = format!("{} {test_digest} {}", of.data.graph.digest, split.origin);
        let (schema, seed) = (&of.schema, self.config.training.seed);
        let metrics = self.propagated.entry(key).or_insert_with(|| {
            let scores = label_propagation::propagated(visible, &split.training);
            let classes = visible.task.classes;
            let row = |&node: &u32| {
                scores[node as usize * classes..][..classes].iter().map(|&score| f64::from(score)).collect()
            };
            let outputs = split.test.iter().chain(&split.hidden).map(row).collect();
            Tested { outputs, targets: targets.to_vec(), pointers: None }.metrics(schema, 0, seed)
        });
        metrics.clone()
    }
}

/// Class probabilities of some nodes.
fn probabilities(outputs: &ActivationRows, nodes: &[u32]) -> Result<Vec<Vec<f64>>, StageError> {
    let rows = outputs.gather(nodes)?.f_softmax(-1, tch::Kind::Double)?;
    let values: Vec<f32> = weights::floats(&rows)?;
    let row = |row: &[f32]| row.iter().map(|&value| f64::from(value)).collect();
    Ok(values.chunks_exact(outputs.columns().max(1)).map(row).collect())
}

/// Accuracy on the test nodes that were visible in training, the first `visible`, and on those that were hidden.
fn by_visibility(tested: &Tested, visible: usize) -> [Metric; 2] {
    let accuracy = |name: &str, from: usize, to: usize| {
        let rows = |of: &[Vec<f64>]| of[from..to].to_vec();
        let part = Tested { outputs: rows(&tested.outputs), targets: rows(&tested.targets), pointers: None };
        Metric { name: name.to_owned(), value: part.accuracy(), interval: None }
    };
    [accuracy("accuracy_visible", 0, visible), accuracy("accuracy_hidden", visible, tested.targets.len())]
}
