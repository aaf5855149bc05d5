//! The test graphs of the models of `kdgat train`, and their answers for them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use super::graph_autoencoder::of_classes;
use super::graphs::{other_paths, schema};
use super::recorded_division::recorded_split;
use super::recorded_runs::sections_of;
use super::teacher::data_flag;
use super::tested::{Measured, Scored, TestSet};
use super::tested_autoencoders::Reconstructions;
use super::tested_batches::{given, rows_of_graphs};
use super::tested_pretraining::PretextAnswers;
use super::{StageError, foreign, setup, training};
use crate::config::Config;
use crate::distill::TargetName;
use crate::distill::foreign::ForeignTargets;
use crate::evaluate::graphs::{Metric, Tested};
use crate::evaluate::molecules::{self, DrawnGraph, Rank};
use crate::evaluate::{EvaluateError, TrainedModel, retrieval, tree_descriptors};
use crate::graph::dataset::{self, FoldOptions, GraphSplit};
use crate::graph::{Batch, Level, Schema, Store, StoreError, Task};
use crate::nn::layers::Mode;
use crate::nn::space::SpaceAnswer;
use crate::nn::target_scale;
use crate::nn::{Architecture, Gnn, GnnConfig, ModelError, Scope, weights};

/// Sections of a run's configuration that record its division and its targets.
#[derive(Deserialize)]
struct FrozenSections {
    graphs: FrozenGraphs,
    data: FrozenData,
    distillation: FrozenDistillation,
}

#[derive(Deserialize)]
struct FrozenDistillation {
    targets_file: Option<PathBuf>,
}

/// The records of a run that its evaluation needs.
pub struct Recorded {
    /// Division into sets.
    pub division: FoldOptions,
    /// The file with the outputs of its teacher, if the run names one.
    targets_file: Option<PathBuf>,
}

#[derive(Deserialize)]
struct FrozenGraphs {
    folds_file: Option<PathBuf>,
    folds: usize,
    fold: usize,
}

#[derive(Deserialize)]
struct FrozenData {
    validation_fraction: f64,
}

/// The division that a run was trained with, and its targets; `None` for weights without the configuration of a run.
pub(super) fn records_of(model: &TrainedModel) -> Result<Option<Recorded>, StageError> {
    let sections: Option<FrozenSections> = sections_of(model)?;
    Ok(sections.map(|FrozenSections { graphs, data, distillation }| Recorded {
        division: FoldOptions {
            file: graphs.folds_file,
            folds: graphs.folds,
            fold: graphs.fold,
            validation_fraction: data.validation_fraction,
        },
        targets_file: distillation.targets_file,
    }))
}

/// Targets of graphs, or of the nodes of graphs that have any.
struct Truth {
    /// `[rows, number of targets]`
    targets: Vec<Vec<f64>>,
    /// First row of each graph, followed by the number of rows; only for targets of nodes.
    pointers: Option<Vec<usize>>,
    /// The graph of each row, and its node if nodes have the targets.
    places: Vec<Place>,
}

/// A graph of the store, or one of its nodes.
struct Place {
    graph: u64,
    node: Option<usize>,
}

/// Names of graphs and nodes in the source.
#[derive(Default)]
struct Names {
    graph_ids: Vec<String>,
    /// Identifiers of the nodes of each graph; empty if graphs have the targets.
    node_ids: Vec<Vec<String>>,
}

impl Names {
    /// The cells that identify a row.
    fn cells(&self, place: &Place) -> Vec<String> {
        // The store was built from the same files.
        let graph = self.graph_ids.get(place.graph as usize).cloned().unwrap_or_default();
        let node = |node: usize| self.node_ids.get(place.graph as usize)?.get(node).cloned();
        [graph].into_iter().chain(place.node.map(|number| node(number).unwrap_or_default())).collect()
    }
}

/// The test graphs of a dataset's runs; keeps what several of them need.
pub struct TestGraphs<'a> {
    config: &'a Config,
    store: Arc<Store>,
    schema: Schema,
    device: Device,
    /// Read for `--predictions` alone.
    names: Option<Names>,
    /// Metrics of the linear model of each division.
    linear: Vec<(FoldOptions, Vec<Metric>)>,
    /// Files with a teacher's outputs.
    taught: BTreeMap<PathBuf, ForeignTargets>,
}

impl<'a> TestGraphs<'a> {
    /// Opens the configured dataset of graphs.
    ///
    /// # Errors
    /// Data that cannot be read.
    pub fn open(config: &'a Config) -> Result<Self, StageError> {
        setup::use_threads(config.training.threads);
        let device = setup::device(config.training.device)?;
        let store = setup::open_graph_store(config)?;
        let schema = schema(&store)?.clone();
        Ok(Self { config, store, schema, device, names: None, linear: Vec::new(), taught: BTreeMap::new() })
    }
}

/// The graph network of a model.
fn graph_network<'a>(model: &'a TrainedModel, dataset: &str) -> Result<&'a GnnConfig, StageError> {
    match &model.description.architecture {
        Architecture::Graph(architecture) => Ok(architecture),
        _ => Err(StageError::Input(format!("{} is a model of CAN windows, not of {dataset}", model.name))),
    }
}

impl TestSet for TestGraphs<'_> {
    type Recorded = Recorded;
    type Split = GraphSplit;

    const UNIT: &'static str = "graphs";
    const PRESET: &'static str = "gin";

    fn dataset(&self) -> &str {
        &self.store.manifest().dataset
    }

    fn schema<'r>(&'r self, _: &'r Recorded) -> &'r Schema {
        &self.schema
    }

    fn identify(&mut self) -> Result<Vec<&'static str>, StageError> {
        let set = setup::graph_source(self.config).read().map_err(StoreError::from)?;
        let dataset::GraphSet { graph_ids, node_ids, .. } = set;
        self.names = Some(Names { graph_ids, node_ids });
        Ok(if self.schema.level.is_graph() { vec!["graph"] } else { vec!["graph", "node"] })
    }

    fn records_of(&mut self, model: &TrainedModel) -> Result<Option<Recorded>, StageError> {
        records_of(model)
    }

    fn split_of(&self, model: &TrainedModel, recorded: &Recorded) -> Result<GraphSplit, StageError> {
        let dataset = &self.store.manifest().dataset;
        if !matches!(model.description.architecture, Architecture::GraphVgae(_) | Architecture::Pretraining(_)) {
            let architecture = graph_network(model, dataset)?;
            if architecture.level != self.schema.level {
                let [own, found] = [self.schema.level, architecture.level].map(Level::units);
                return Err(StageError::Input(format!(
                    "{} predicts {found}, {dataset} has targets of {own}",
                    model.name
                )));
            }
        }
        if let Architecture::Graph(network) = &model.description.architecture
            && let Some(differs) = other_paths(network, &self.schema)
        {
            return Err(StageError::Input(format!(
                "{} {differs}; restore the tables, train it again with `kdgat train{}`, or leave it out by naming the runs to evaluate",
                model.name,
                data_flag(self.config),
            )));
        }
        let split = GraphSplit::of(&self.store, &recorded.division)?;
        if split.test.is_empty() {
            return Err(StageError::Input(format!("{}: no graph is left for testing ({})", model.name, split.origin)));
        }
        self.expect_same_graphs(model, &split)?;
        Ok(split)
    }

    fn score(&mut self, model: &TrainedModel, recorded: &Recorded, split: &GraphSplit) -> Result<Scored, StageError> {
        let kernel = training::attention_kernel(self.config);
        if let Architecture::GraphVgae(architecture) = &model.description.architecture {
            let split = of_classes(&self.store, split, &architecture.classes)?;
            let errors = Reconstructions::new(model, architecture, &self.store, &split, self.device, kernel)?;
            return scored(&self.store, &split, Measured::Reconstructed(errors));
        }
        if let Architecture::Pretraining(architecture) = &model.description.architecture {
            let answers = PretextAnswers::new(model, architecture, &self.store, split, self.device, kernel)?;
            return scored(&self.store, split, Measured::Answered(answers));
        }
        let architecture = graph_network(model, &self.store.manifest().dataset)?;
        let mut given = given(model, self.device)?;
        let network = Gnn::new(Scope::root(&mut given), architecture, kernel)?;
        given.check_all_used(|_| false)?;
        let found = answers(&network, &self.schema, &self.store, &split.test, self.device)?;
        let Truth { targets, pointers, places } = self.truth(&split.test)?;
        let drawn = match architecture.space.is_some()
            && self.schema.task == Task::Regression
            && self.schema.level.is_graph()
        {
            true => self.drawn(&split.test, &found, &targets)?,
            false => Vec::new(),
        };
        let mut more = force_metrics(&found.force_errors);
        let mut more_of_chance = match more.is_empty() {
            true => Vec::new(),
            false => {
                force_metrics(&split.test.iter().map(|&graph| self.store.graph(graph).space.forces).collect::<Vec<_>>())
            }
        };
        let Answers { outputs, embedding, .. } = found;
        if let Some(embedding) = embedding
            && let Some(taught) = self.taught_embedding(model, recorded, &split.test, embedding.size()[1])?
        {
            let ranks = retrieval::ranks(&embedding, &taught)?;
            more.extend(retrieval::metrics(&ranks));
            more_of_chance.extend(retrieval::chance(ranks.len()));
        }
        let predicted = Measured::Predicted {
            tested: Tested { outputs, targets, pointers },
            places: self.names.iter().flat_map(|names| places.iter().map(|place| names.cells(place))).collect(),
            known: self.truth(&split.training)?.targets,
        };
        let linear = self.linear_metrics(&recorded.division, split)?;
        Ok(Scored { more, more_of_chance, linear, drawn, ..scored(&self.store, split, predicted)? })
    }
}

/// The measurements of a model with the facts about its division.
fn scored(store: &Store, split: &GraphSplit, measured: Measured) -> Result<Scored, StageError> {
    Ok(Scored {
        measured,
        more: Vec::new(),
        more_of_chance: Vec::new(),
        linear: Vec::new(),
        propagated: Vec::new(),
        drawn: Vec::new(),
        seen: split.training.len() + split.validation.len(),
        count: split.test.len(),
        test_digest: split.test_digest(store)?,
        fold: split.origin.clone(),
    })
}

impl TestGraphs<'_> {
    /// Refuses a model that was trained on other graphs: today's test graphs may be among them.
    fn expect_same_graphs(&self, model: &TrainedModel, split: &GraphSplit) -> Result<(), StageError> {
        let found = split.test_digest(&self.store)?;
        let recorded = recorded_split(&model.path)?;
        let differs = match &recorded {
            Some(recorded) if recorded.test_digest != found => format!(
                "its test graphs ({}, digest {}) are not those of this division now (digest {found}), so that it may have been trained on these",
                recorded.origin, recorded.test_digest
            ),
            _ if model.description.dataset.digest != self.store.digest() => {
                "its test graphs are the same, but others, their edges or the options of reading have changed"
                    .to_owned()
            }
            _ => return Ok(()),
        };
        let command = match model.description.architecture {
            Architecture::GraphVgae(_) => "autoencoder",
            Architecture::Pretraining(_) => "pretrain",
            _ => "train",
        };
        Err(StageError::Input(format!(
            "{} was trained on other graphs than {} has now: {differs}; restore the data, train it again with `kdgat {command}{}`, or leave it out \
             by naming the runs to evaluate",
            model.name,
            self.store.manifest().dataset,
            data_flag(self.config),
        )))
    }

    fn truth(&self, graphs: &[u64]) -> Result<Truth, StageError> {
        let mut targets = Vec::with_capacity(graphs.len());
        let (mut pointers, mut places) = (vec![0], Vec::new());
        for &graph in graphs {
            let view = self.store.try_graph(graph)?;
            match self.schema.level {
                Level::Graph => {
                    targets.push(view.exact_targets().collect());
                    places.push(Place { graph, node: None });
                }
                Level::Node => {
                    for (node, values) in view.node_targets() {
                        targets.push(values.iter().map(|&value| f64::from(value)).collect());
                        places.push(Place { graph, node: Some(node) });
                    }
                }
            }
            pointers.push(targets.len());
        }
        Ok(Truth { targets, pointers: (self.schema.level == Level::Node).then_some(pointers), places })
    }

    /// The test graphs with the largest error and with the one in the middle.
    fn drawn(&self, graphs: &[u64], found: &Answers, targets: &[Vec<f64>]) -> Result<Vec<DrawnGraph>, StageError> {
        let (mut errors, mut nodes) = (Vec::with_capacity(graphs.len()), Vec::with_capacity(graphs.len()));
        let value_error = |at: usize| found.outputs[at][0] - targets[at][0];
        for (at, &graph) in graphs.iter().enumerate() {
            let forces = &found.force_errors[at];
            errors.push(match forces.is_empty() {
                true => value_error(at).abs(),
                false => forces.iter().map(|&error| f64::from(error).powi(2)).sum::<f64>() / forces.len() as f64,
            });
            nodes.push(self.store.try_graph(graph)?.num_nodes());
        }
        let Some(space) = &self.schema.space else { return Ok(Vec::new()) };
        let draw = |(rank, at): (Rank, usize)| {
            let view = self.store.try_graph(graphs[at])?;
            let length = |error: &[f32]| error.iter().map(|value| value * value).sum::<f32>().sqrt();
            let drawn = DrawnGraph {
                rank,
                graph: graphs[at],
                kinds: view.space.kinds.iter().map(|&kind| space.kinds.name(kind)).collect(),
                positions: view.space.positions.as_chunks::<3>().0.to_vec(),
                bonds: Vec::new(),
                force_errors: found.force_errors[at].chunks_exact(3).map(length).collect(),
                error: value_error(at),
                target: self.schema.targets[0].name.clone(),
                energy_unit: space.energy_unit.clone(),
                length_unit: space.length_unit.clone(),
            };
            Ok(drawn.with_bonds())
        };
        molecules::ranked(&errors, &nodes).into_iter().map(draw).collect()
    }

    /// Metrics on the test graphs of a model that is linear in the sums of node features, for values, or in descriptors, for the classes of
    /// rooted trees; none for other tasks, or if there are too few training graphs.
    fn linear_metrics(&mut self, division: &FoldOptions, split: &GraphSplit) -> Result<Vec<Metric>, StageError> {
        if let Some((_, metrics)) = self.linear.iter().find(|(known, _)| known == division) {
            return Ok(metrics.clone());
        }
        let metrics = match self.schema.task {
            Task::Regression if self.schema.level.is_graph() => self.linear_model(split)?,
            Task::Classification => {
                tree_descriptors::classify(&self.store, &self.schema, &split.training, &split.test)?
            }
            _ => None,
        };
        let metrics =
            metrics.map_or_else(Vec::new, |tested| tested.metrics(&self.schema, 0, self.config.training.seed));
        self.linear.push((division.clone(), metrics.clone()));
        Ok(metrics)
    }

    fn linear_model(&self, split: &GraphSplit) -> Result<Option<Tested>, StageError> {
        let scales = target_scale::with_linear_part(&self.store, &split.training)?;
        if scales.iter().any(|scale| scale.weights.is_empty()) {
            return Ok(None);
        }
        let (mut outputs, mut targets) = (Vec::new(), Vec::new());
        for &graph in &split.test {
            let (summed, values) = target_scale::summed_features(&self.store, graph)?;
            outputs.push(scales.iter().map(|scale| scale.linear_prediction(&summed)).collect());
            targets.push(values);
        }
        Ok(Some(Tested { outputs, targets, pointers: None }))
    }

    /// The teacher's embeddings of these graphs, `[num_graphs, columns]`; `None` if the file with them is no longer there.
    fn taught_embedding(
        &mut self,
        model: &TrainedModel,
        recorded: &Recorded,
        graphs: &[u64],
        columns: i64,
    ) -> Result<Option<Tensor>, StageError> {
        let Some(source) = &self.config.data.data else { return Ok(None) };
        let path = foreign::path_for(recorded.targets_file.as_deref(), source).filter(|path| path.is_file());
        let Some(path) = path else {
            let missing = "the file with its teacher's embeddings is not there, so retrieval is not scored";
            tracing::warn!("{}: {missing}", model.name);
            return Ok(None);
        };
        let targets = match self.taught.entry(path) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let opened = foreign::open(place.key(), setup::graph_source(self.config), &self.store)?;
                place.insert(opened)
            }
        };
        let path = targets.path().display();
        if model.description.teacher_digest.as_deref() != Some(targets.digest()) {
            tracing::warn!("{}: {path} has changed since the model was trained with it", model.name);
        }
        let found = targets.columns(TargetName::Embedding).unwrap_or(0) as i64;
        if found != columns {
            return Err(StageError::Input(format!(
                "{}: {path} has an embedding of {found} columns, the model predicts {columns}; train it again",
                model.name,
            )));
        }
        let rows = Tensor::f_from_slice(&targets.rows(TargetName::Embedding, graphs))?;
        Ok(Some(rows.f_view([graphs.len() as i64, columns])?))
    }
}

/// A model's answers for some graphs.
struct Answers {
    /// Probabilities, or values in the units of the targets, `[rows, outputs]`, of each graph or of each node with targets.
    outputs: Vec<Vec<f64>>,
    /// `[num_graphs, embedding_columns]`, in host memory; `None` for a model without embedding.
    embedding: Option<Tensor>,
    /// Errors of the components of the forces of each graph, in the units of the data; empty for a model without forces.
    force_errors: Vec<Vec<f32>>,
}

/// Mean absolute error and root mean squared error of the components of forces, from those of each graph; none without forces. The errors of
/// forces of 0, the simplest prediction, are the forces themselves.
fn force_metrics(errors: &[impl AsRef<[f32]>]) -> Vec<Metric> {
    let errors = || errors.iter().flat_map(|errors| errors.as_ref()).map(|&error| f64::from(error));
    let metric = |name: &str, value: f64| Metric { name: name.to_owned(), value, interval: None };
    match errors().count() {
        0 => Vec::new(),
        count => vec![
            metric("forces MAE", errors().map(f64::abs).sum::<f64>() / count as f64),
            metric("forces RMSE", (errors().map(|error| error * error).sum::<f64>() / count as f64).sqrt()),
        ],
    }
}

fn answers(
    network: &Gnn,
    schema: &Schema,
    store: &Arc<Store>,
    graphs: &[u64],
    device: Device,
) -> Result<Answers, StageError> {
    let needs = Architecture::Graph(network.config().clone()).needs();
    let all: Vec<RowAnswer> =
        rows_of_graphs(store, graphs, needs, device, &mut |batch| answers_of_batch(network, schema.task, batch))?;
    let embeddings: Vec<&Tensor> = all.iter().filter_map(|row| row.embedding.as_ref()).collect();
    let embedding = if embeddings.is_empty() { None } else { Some(Tensor::f_stack(&embeddings, 0)?) };
    let (outputs, force_errors) = all.into_iter().map(|row| (row.outputs, row.force_errors)).unzip();
    Ok(Answers { outputs, embedding, force_errors })
}

/// A model's answer for a graph, or for a node with targets.
struct RowAnswer {
    /// Probabilities, or values in the units of the targets.
    outputs: Vec<f64>,
    /// `[embedding_columns]`
    embedding: Option<Tensor>,
    /// Errors of the components of the forces on a graph's nodes; empty for a model without forces.
    force_errors: Vec<f32>,
}

/// The answers of a network in space. Its forces need gradients by positions, none by weights.
fn answers_in_space(
    network: &Gnn,
    task: Task,
    batch: &Batch,
    answer: SpaceAnswer,
) -> Result<Vec<RowAnswer>, EvaluateError> {
    let scales = &network.config().target_scales;
    let outputs = match &batch.node_targets {
        Some(targets) => answer.outputs.f_index_select(0, &targets.nodes)?,
        None => answer.outputs,
    };
    let mut rows = row_answers(&in_task_units(network, task, batch, &outputs)?)?;
    add_embeddings(&mut rows, network.embedding(&answer.nodes, batch)?)?;
    let truth = batch.space.as_ref().and_then(|space| space.forces.as_ref());
    if let (Some(forces), Some(truth)) = (answer.forces, truth) {
        let scale = scales.first().map_or(1.0, |scale| scale.deviation);
        let errors: Vec<f32> = weights::floats(&forces.f_mul_scalar(scale)?.f_sub(truth)?)?;
        let pointers: Vec<i64> = Vec::try_from(&batch.node_pointers).map_err(ModelError::from)?;
        for (row, nodes) in rows.iter_mut().zip(pointers.windows(2)) {
            row.force_errors = errors[3 * nodes[0] as usize..3 * nodes[1] as usize].to_vec();
        }
    }
    Ok(rows)
}

/// Answers without an embedding, one for each row of `[rows, outputs]`.
fn row_answers(outputs: &Tensor) -> Result<Vec<RowAnswer>, EvaluateError> {
    let columns = outputs.size()[1].max(1) as usize;
    let values = outputs.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?.f_flatten(0, -1)?;
    let values: Vec<f64> = Vec::try_from(&values).map_err(ModelError::from)?;
    let answer = |row: &[f64]| RowAnswer { outputs: row.to_vec(), embedding: None, force_errors: Vec::new() };
    Ok(values.chunks_exact(columns).map(answer).collect())
}

fn answers_of_batch(network: &Gnn, task: Task, batch: &Batch) -> Result<Vec<RowAnswer>, EvaluateError> {
    if let Some(answer) = network.in_space(batch, Mode::Evaluation) {
        return answers_in_space(network, task, batch, answer?);
    }
    let mut pooled = network.embed(batch, Mode::Evaluation)?;
    if let Some(targets) = &batch.node_targets {
        pooled = pooled.f_index_select(0, &targets.nodes)?;
    }
    let outputs = network.classify(&pooled, Mode::Evaluation)?;
    let mut rows = row_answers(&in_task_units(network, task, batch, &outputs)?)?;
    add_embeddings(&mut rows, network.embedding(&pooled, batch)?)?;
    Ok(rows)
}

/// Gives each graph its row of the embeddings, `[num_graphs, embedding_columns]`, if there are any.
fn add_embeddings(rows: &mut [RowAnswer], embeddings: Option<Tensor>) -> Result<(), EvaluateError> {
    let Some(embeddings) = embeddings.map(|rows| rows.f_to_device(Device::Cpu)).transpose()? else { return Ok(()) };
    for (row, graph) in rows.iter_mut().zip(0..) {
        row.embedding = Some(embeddings.f_get(graph)?);
    }
    Ok(())
}

/// Probabilities, or values in the units of the targets, from a network's outputs, `[rows, outputs]`, f64.
fn in_task_units(network: &Gnn, task: Task, batch: &Batch, outputs: &Tensor) -> Result<Tensor, EvaluateError> {
    let outputs = outputs.f_to_kind(Kind::Double)?;
    Ok(match task {
        Task::Classification => outputs.f_softmax(-1, Kind::Double)?,
        Task::MultiLabel => outputs.f_sigmoid()?,
        Task::Regression => target_scale::in_units(&outputs, &network.config().target_scales, batch)?,
    })
}
