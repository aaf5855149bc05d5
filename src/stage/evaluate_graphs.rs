//! Scores models of `kdgat train` on the test graphs of their own folds.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::recorded_runs::{Subject, recorded_runs, sections_of};
use super::train::schema;
use super::{EvaluateOptions, StageError, foreign, setup, training};
use crate::config::Config;
use crate::distill::TargetName;
use crate::distill::foreign::ForeignTargets;
use crate::evaluate::graph_runs::{self, BASELINE, Comparison, Group, LINEAR, Mean, PROPAGATED, RunResult};
use crate::evaluate::graphs::{Metric, Tested, baseline};
use crate::evaluate::{EvaluateError, TrainedModel, retrieval};
use crate::files;
use crate::graph::dataset::{FoldOptions, GraphSplit};
use crate::graph::{AssembleOptions, Batch, Level, Loader, LoaderOptions, Schema, Store, Task, Vocabulary};
use crate::memory::{Meter, by_halves};
use crate::nn::layers::Mode;
use crate::nn::target_scale;
use crate::nn::{Architecture, GivenTensors, Gnn, ModelError, Scope, weights};

/// Graphs per batch.
const BATCH_GRAPHS: usize = 512;

/// Runs `kdgat evaluate` on a dataset of graphs. Returns the tables and the folder of the results.
pub fn evaluate_graphs(config: &Config, options: &EvaluateOptions) -> Result<(String, PathBuf), StageError> {
    setup::use_threads(config.training.threads);
    let device = setup::device(config.training.device)?;
    let store = setup::open_graph_store(config)?;
    let dataset = store.manifest().dataset.clone();
    let subject = Subject { dataset: &dataset, unit: "graphs", preset: "gin" };
    let runs = recorded_runs(config, options, &subject, records_of)?;
    let schema = schema(&store)?.clone();
    let mut scorer = Scorer { config, options, store, schema, device, linear: Vec::new(), taught: BTreeMap::new() };
    let mut evaluated = Vec::new();
    for (model, recorded) in &runs {
        eprintln!("scoring with {}", model.name);
        evaluated.push(scorer.score(model, recorded)?);
    }
    let folder = options.output.clone().unwrap_or_else(|| config.output.runs_dir.join(&dataset).join("evaluation"));
    let text = write_results(&folder, &subject, scorer.schema.task, &evaluated)?;
    Ok((text, folder))
}

/// Writes the results of runs to a folder. Returns the tables for the user.
pub(super) fn write_results(
    folder: &Path,
    of: &Subject,
    task: Task,
    evaluated: &[RunResult],
) -> Result<String, StageError> {
    let groups = graph_runs::groups(evaluated);
    let comparisons = graph_runs::comparisons(&groups);
    fs::create_dir_all(folder).map_err(file_error(folder))?;
    write_json(folder, of.dataset, task, evaluated, &groups, &comparisons)?;
    write_csv(folder, evaluated)?;
    Ok(text(of, evaluated, &groups, &comparisons))
}

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
pub(super) struct Recorded {
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
}

/// Scores runs on one dataset; keeps what several of them need.
struct Scorer<'a> {
    config: &'a Config,
    options: &'a EvaluateOptions,
    store: Arc<Store>,
    schema: Schema,
    device: Device,
    /// Metrics of the linear model of each division.
    linear: Vec<(FoldOptions, Vec<Metric>)>,
    /// Files with a teacher's outputs.
    taught: BTreeMap<PathBuf, ForeignTargets>,
}

impl Scorer<'_> {
    fn score(&mut self, model: &TrainedModel, recorded: &Recorded) -> Result<RunResult, StageError> {
        let Architecture::Graph(architecture) = &model.description.architecture else {
            return Err(StageError::Input(format!(
                "{} is a model of CAN windows, not of {}",
                model.name,
                self.store.manifest().dataset
            )));
        };
        if architecture.level != self.schema.level {
            let [own, found] = [self.schema.level, architecture.level].map(Level::units);
            let dataset = &self.store.manifest().dataset;
            return Err(StageError::Input(format!("{} predicts {found}, {dataset} has targets of {own}", model.name)));
        }
        if model.description.dataset.digest != self.store.digest() {
            let dataset = &self.store.manifest().dataset;
            tracing::warn!("{} was trained on other graphs than {dataset} has now", model.name);
        }
        let split = GraphSplit::of(&self.store, &recorded.division)?;
        if split.test.is_empty() {
            return Err(StageError::Input(format!("{}: no graph is left for testing ({})", model.name, split.origin)));
        }
        let on_device = |(name, tensor): (&String, &Tensor)| Ok((name.clone(), tensor.f_to_device(self.device)?));
        let tensors = model.state.iter().map(on_device).collect::<Result<Vec<_>, ModelError>>()?;
        let mut given = GivenTensors::new(tensors);
        let network = Gnn::new(Scope::root(&mut given), architecture, training::attention_kernel(self.config))?;
        given.check_all_used(|_| false)?;
        let Answers { outputs, embedding } = answers(&network, &self.schema, &self.store, &split.test, self.device)?;
        let Truth { targets, pointers } = self.truth(&split.test)?;
        let tested = Tested { outputs, targets, pointers };
        let simplest = baseline(&self.schema, &self.truth(&split.training)?.targets, &tested.targets);
        let seed = self.config.training.seed;
        let mut metrics = tested.metrics(&self.schema, self.options.resamples, seed);
        let mut of_simplest = simplest.metrics(&self.schema, 0, seed);
        if let Some(embedding) = embedding
            && let Some(taught) = self.taught_embedding(model, recorded, &split.test, embedding.size()[1])?
        {
            let ranks = retrieval::ranks(&embedding, &taught)?;
            metrics.extend(retrieval::metrics(&ranks));
            of_simplest.extend(retrieval::chance(ranks.len()));
        }
        Ok(RunResult {
            model: model.name.clone(),
            group: model.group.clone(),
            distilled: model.distilled,
            parameters: model.num_parameters(),
            seed: model.seed,
            seen_graphs: split.training.len() + split.validation.len(),
            test_graphs: split.test.len(),
            settings: model.settings.iter().cloned().collect(),
            metrics,
            baseline: of_simplest,
            linear: self.linear_metrics(&recorded.division, &split)?,
            propagated: Vec::new(),
            test_digest: String::new(),
            fold: split.origin,
        })
    }

    fn truth(&self, graphs: &[u64]) -> Result<Truth, StageError> {
        let row = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<f64>>();
        let mut targets = Vec::with_capacity(graphs.len());
        let mut pointers = vec![0];
        for &graph in graphs {
            let view = self.store.try_graph(graph)?;
            match self.schema.level {
                Level::Graph => targets.push(row(view.targets_of_graph)),
                Level::Node => targets.extend(view.node_targets().map(|(_, values)| row(values))),
            }
            pointers.push(targets.len());
        }
        Ok(Truth { targets, pointers: (self.schema.level == Level::Node).then_some(pointers) })
    }

    /// Metrics on the test graphs of a model that is linear in the sums of node features, for values; none for other tasks, or if there are
    /// too few training graphs.
    fn linear_metrics(&mut self, division: &FoldOptions, split: &GraphSplit) -> Result<Vec<Metric>, StageError> {
        if let Some((_, metrics)) = self.linear.iter().find(|(known, _)| known == division) {
            return Ok(metrics.clone());
        }
        let metrics = match self.schema.task {
            Task::Regression if self.schema.level.is_graph() => self.linear_model(split)?,
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
                let opened = foreign::open(place.key(), source, &self.store)?;
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
}

fn answers(
    network: &Gnn,
    schema: &Schema,
    store: &Arc<Store>,
    graphs: &[u64],
    device: Device,
) -> Result<Answers, StageError> {
    let mut assemble = AssembleOptions::new(Arc::new(Vocabulary::from_ids([])));
    assemble.edge_attributes = network.config().edge_features > 0;
    let loader = Loader::start(Arc::clone(store), LoaderOptions { assemble, workers: 1, prefetch_batches: 2 });
    let batches = graphs.chunks(BATCH_GRAPHS).map(<[u64]>::to_vec).collect();
    let mut all: Vec<RowAnswer> = Vec::with_capacity(graphs.len());
    for batch in loader.epoch(batches, 0) {
        let rows = by_halves(Meter::new(device), &batch?, &mut |batch| {
            tch::no_grad(|| answers_of_batch(network, schema.task, &batch.to_device(device)?))
        })?;
        all.extend(rows);
    }
    let embeddings: Vec<&Tensor> = all.iter().filter_map(|row| row.embedding.as_ref()).collect();
    let embedding = if embeddings.is_empty() { None } else { Some(Tensor::f_stack(&embeddings, 0)?) };
    Ok(Answers { outputs: all.into_iter().map(|row| row.outputs).collect(), embedding })
}

/// A model's answer for a graph, or for a node with targets.
struct RowAnswer {
    /// Probabilities, or values in the units of the targets.
    outputs: Vec<f64>,
    /// `[embedding_columns]`
    embedding: Option<Tensor>,
}

fn answers_of_batch(network: &Gnn, task: Task, batch: &Batch) -> Result<Vec<RowAnswer>, EvaluateError> {
    let mut pooled = network.embed(batch, Mode::Evaluation)?;
    if let Some(targets) = &batch.node_targets {
        pooled = pooled.f_index_select(0, &targets.nodes)?;
    }
    let outputs = network.classify(&pooled, Mode::Evaluation)?.f_to_kind(Kind::Double)?;
    let outputs = match task {
        Task::Classification => outputs.f_softmax(-1, Kind::Double)?,
        Task::MultiLabel => outputs.f_sigmoid()?,
        Task::Regression => target_scale::in_units(&outputs, &network.config().target_scales, batch)?,
    };
    let embedding = network.embedding(&pooled)?.map(|rows| rows.f_to_device(Device::Cpu)).transpose()?;
    let columns = outputs.size()[1].max(1) as usize;
    let values: Vec<f32> = weights::floats(&outputs)?;
    let answer = |(graph, row): (i64, &[f32])| {
        let embedding = embedding.as_ref().map(|rows| rows.f_get(graph)).transpose()?;
        Ok(RowAnswer { outputs: row.iter().map(|&value| f64::from(value)).collect(), embedding })
    };
    (0..).zip(values.chunks_exact(columns)).map(answer).collect()
}

/// Line of a printed table.
struct Line {
    name: String,
    parameters: String,
    /// Number of test graphs, or of runs.
    count: String,
    /// One for each metric.
    cells: Vec<String>,
}

fn text(of: &Subject, runs: &[RunResult], groups: &[Group<'_>], comparisons: &[Comparison]) -> String {
    let metrics = graph_runs::metric_names(runs);
    let head = |count: &str| Line {
        name: "model".to_owned(),
        parameters: "parameters".to_owned(),
        count: count.to_owned(),
        cells: metrics.iter().map(|name| (*name).to_owned()).collect(),
    };
    let of_run = |run: &RunResult| Line {
        name: run.model.clone(),
        parameters: run.parameters.to_string(),
        count: run.test_graphs.to_string(),
        cells: metrics.iter().map(|metric| run.metric(metric).map_or("–".to_owned(), cell)).collect(),
    };
    let of_group = |group: &Group| Line {
        name: group.name.clone(),
        parameters: group.runs[0].parameters.to_string(),
        count: group.runs.len().to_string(),
        cells: metrics.iter().map(|metric| group.mean(metric).text()).collect(),
    };
    let baseline = |name: &str, mean: fn(&[RunResult], &str) -> Mean| Line {
        name: name.to_owned(),
        parameters: "0".to_owned(),
        count: String::new(),
        cells: metrics.iter().map(|metric| mean(runs, metric).text()).collect(),
    };
    let has_linear = runs.iter().any(|run| !run.linear.is_empty());
    let linear = has_linear.then(|| baseline(LINEAR, graph_runs::linear));
    let has_propagated = runs.iter().any(|run| !run.propagated.is_empty());
    let propagated = has_propagated.then(|| baseline(PROPAGATED, graph_runs::propagated));
    let baselines = [baseline(BASELINE, graph_runs::baseline)].into_iter().chain(linear).chain(propagated);
    let every: Vec<Line> = [head(of.unit)].into_iter().chain(runs.iter().map(of_run)).collect();
    let means = groups.iter().map(of_group).chain(baselines);
    let means: Vec<Line> = [head("runs")].into_iter().chain(means).collect();
    let width = every.iter().chain(&means).map(|line| line.name.chars().count()).max().unwrap_or(0);
    let mut text = format!("{}\n\n{}", of.dataset, aligned(&every, width));
    text += &format!("\nmeans over runs that differ by fold or seed\n\n{}", aligned(&means, width));
    let of_first: Vec<&Comparison> =
        comparisons.iter().filter(|found| metrics.first() == Some(&found.metric.as_str())).collect();
    if !of_first.is_empty() {
        text += &format!("\nstudent with teacher − student alone, on the same test {}\n\n", of.unit);
    }
    for found in of_first {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} − {}: {} {}", found.distilled, found.alone, found.metric, found.text());
    }
    text
}

fn aligned(lines: &[Line], width: usize) -> String {
    let mut text = String::new();
    for Line { name, parameters, count, cells } in lines {
        // Writing to a String cannot fail.
        let _ = write!(text, "{name:<width$}  {parameters:>10}  {count:>6}");
        for cell in cells {
            let _ = write!(text, "  {cell:>22}");
        }
        text.push('\n');
    }
    text
}

fn cell(metric: &Metric) -> String {
    match metric.interval {
        Some([low, high]) => format!("{:.4} ({low:.3}–{high:.3})", metric.value),
        None => format!("{:.4}", metric.value),
    }
}

fn write_json(
    folder: &Path,
    dataset: &str,
    task: Task,
    runs: &[RunResult],
    groups: &[Group<'_>],
    comparisons: &[Comparison],
) -> Result<(), StageError> {
    let metrics = graph_runs::metric_names(runs);
    let means = |of: &dyn Fn(&str) -> Mean| -> Value {
        metrics.iter().map(|metric| ((*metric).to_owned(), json!(of(metric)))).collect()
    };
    let of_group = |group: &Group| {
        json!({
            "group": group.name,
            "distilled": group.runs[0].distilled,
            "parameters": group.runs[0].parameters,
            "runs": group.runs.len(),
            "folds": group.folds(),
            "metrics": means(&|metric| group.mean(metric)),
        })
    };
    let content = json!({
        "format_version": 1,
        "dataset": dataset,
        "task": task,
        "models": runs,
        "groups": groups.iter().map(of_group).collect::<Vec<_>>(),
        "baseline": means(&|metric| graph_runs::baseline(runs, metric)),
        "linear": means(&|metric| graph_runs::linear(runs, metric)),
        "propagated": means(&|metric| graph_runs::propagated(runs, metric)),
        "comparisons": comparisons,
    });
    let path = folder.join("graph_metrics.json");
    let text = serde_json::to_vec_pretty(&content).map_err(|problem| file_error(&path)(problem.into()))?;
    save(&path, &text)
}

fn write_csv(folder: &Path, runs: &[RunResult]) -> Result<(), StageError> {
    let path = folder.join("graph_metrics.csv");
    let mut csv = csv::Writer::from_writer(Vec::new());
    let mut row = |cells: &[String]| csv.write_record(cells).map_err(io::Error::other);
    row(&["model", "group", "fold", "seed", "graphs", "metric", "value", "low", "high"].map(str::to_owned))
        .map_err(file_error(&path))?;
    for run in runs {
        for metric in &run.metrics {
            let end = |at: usize| metric.interval.map_or(String::new(), |interval| interval[at].to_string());
            let seed = run.seed.map_or(String::new(), |seed| seed.to_string());
            let cells = [run.model.clone(), run.group.clone(), run.fold.clone(), seed, run.test_graphs.to_string()];
            let values = [metric.name.clone(), metric.value.to_string(), end(0), end(1)];
            row(&cells.into_iter().chain(values).collect::<Vec<_>>()).map_err(file_error(&path))?;
        }
    }
    let text = csv.into_inner().map_err(|failed| file_error(&path)(io::Error::other(failed.to_string())))?;
    save(&path, &text)
}

fn save(path: &Path, content: &[u8]) -> Result<(), StageError> {
    files::write_atomically(path, content).map_err(file_error(path))
}

fn file_error(path: &Path) -> impl Fn(io::Error) -> StageError {
    let path = path.to_owned();
    move |source| StageError::File { path: path.clone(), action: "write", source }
}
