//! The outputs of a teacher from elsewhere, in a file: found by the configuration or beside the dataset.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::StageError;
use super::graphs::schema;
use super::setup::{Data, graph_source};
use crate::config::{Config, EmbeddingLossChoice};
use crate::distill::TargetName;
use crate::distill::foreign::{ExpectedGraphs, ForeignTargets, GraphNames};
use crate::distill::losses::EmbeddingLoss;
use crate::evaluate::graphs::{Metric, Tested, baseline};
use crate::graph::dataset::{self, Source, TARGETS};
use crate::graph::{Level, Schema, Store, Task};

/// Opens the file with a teacher's outputs that a student learns from; `None` without distillation, or if there is no such file.
///
/// # Errors
/// A file that cannot be read or does not fit the dataset.
pub fn find(config: &Config, data: &Data) -> Result<Option<Arc<ForeignTargets>>, StageError> {
    let settings = &config.distillation;
    if !settings.use_kd || settings.teacher_path.is_some() {
        return Ok(None);
    }
    let Some(source) = &config.data.data else { return Ok(None) };
    let path = path_for(settings.targets_file.as_deref(), source);
    if let (Some(path), Level::Node) = (&path, schema(&data.store)?.level) {
        return Err(StageError::Input(format!(
            "{}: a file with a teacher's outputs has a row for each graph, and the targets are of nodes; name a teacher's weights with \
             --teacher-path, or remove the file",
            path.display()
        )));
    }
    path.map(|path| open(&path, graph_source(config), &data.store).map(Arc::new)).transpose()
}

/// The configured file, or the one in the dataset's folder if there is one.
pub fn path_for(configured: Option<&Path>, source: &Path) -> Option<PathBuf> {
    let beside = source.join(TARGETS);
    configured.map(Path::to_owned).or_else(|| beside.is_file().then_some(beside))
}

/// Opens a file with a teacher's outputs for the graphs of `store`, which was built from `source`.
///
/// # Errors
/// A file that cannot be read or does not fit the dataset.
pub fn open(path: &Path, source: Source<'_>, store: &Store) -> Result<ForeignTargets, StageError> {
    let schema = schema(store)?;
    let ids = || {
        let names = |set: dataset::GraphSet| GraphNames { graphs: set.graph_ids, left_out: set.without_targets };
        source.read().map(names).map_err(|error| error.to_string())
    };
    let graphs = ExpectedGraphs {
        ids: &ids,
        count: store.num_graphs() as usize,
        outputs: &output_names(schema),
        are_values: schema.task == Task::Regression,
    };
    ForeignTargets::open(path, graphs).map_err(|error| StageError::Input(error.to_string()))
}

/// Names of the outputs of a model for this schema: classes, labels or values.
pub fn output_names(schema: &Schema) -> Vec<String> {
    match schema.task {
        Task::Classification => schema.targets[0].classes.clone(),
        Task::MultiLabel | Task::Regression => schema.targets.iter().map(|target| target.name.clone()).collect(),
    }
}

/// Describes how good a teacher's outputs are on the training graphs, beside chance: rows or columns in another order than the dataset's
/// are no better. Empty if the file has embeddings alone.
///
/// # Errors
/// A graph that cannot be read.
pub fn worth(targets: &ForeignTargets, store: &Store, training: &[u64]) -> Result<Vec<String>, StageError> {
    let (schema, Some(columns)) = (schema(store)?, targets.columns(TargetName::Logits)) else { return Ok(Vec::new()) };
    let rows = targets.rows(TargetName::Logits, training);
    let outputs: Vec<Vec<f64>> =
        rows.chunks_exact(columns.max(1)).map(|row| row.iter().map(|&value| f64::from(value)).collect()).collect();
    let mut known = Vec::with_capacity(training.len());
    for &graph in training {
        known.push(store.try_graph(graph)?.exact_targets().collect::<Vec<f64>>());
    }
    let file = targets.path().display();
    let mut lines = Vec::new();
    if let Some(found) = probabilities(schema.task, &outputs) {
        lines.push(format!("warning: the logits of {file} {found}"));
    }
    let graphs = training.len();
    let simplest = baseline(schema, &known, &known).metrics(schema, 0, 0);
    let own = Tested { outputs, targets: known, pointers: None }.metrics(schema, 0, 0);
    // Of classes and labels the first metric, which the order of the outputs decides.
    let is_shown = |metric: &Metric| schema.task != Task::Regression || metric.name.ends_with(" MAE");
    let shown = own.iter().zip(&simplest).filter(|(own, _)| is_shown(own));
    for (own, simplest) in shown.take(if schema.task == Task::Regression { own.len() } else { 1 }) {
        let (name, value, by_chance) = (&own.name, own.value, simplest.value);
        let chance = chance(schema.task);
        lines.push(format!("teacher's {name} on {graphs} training graphs: {value:.4}; {chance}: {by_chance:.4}"));
        if !is_better(schema.task, value, by_chance, graphs) {
            lines.push(format!(
                "warning: {file} is no better than {chance} on the training graphs; are its rows those of the dataset's graphs, and its \
                 columns in the order of {}?",
                first_names(&output_names(schema))
            ));
        }
    }
    Ok(lines)
}

/// True if a metric of a teacher is better than chance, by more than noise on this number of graphs.
fn is_better(task: Task, value: f64, by_chance: f64, graphs: usize) -> bool {
    let graphs = graphs as f64;
    match task {
        // Two standard errors of a share.
        Task::Classification => value > by_chance + 2.0 * (by_chance * (1.0 - by_chance) / graphs).sqrt(),
        // Two standard errors of the ROC AUC of unrelated scores, if half of the graphs have the label.
        Task::MultiLabel => value > by_chance + 2.0 * (1.0 / (3.0 * graphs)).sqrt(),
        // Unrelated values are worse than their mean.
        Task::Regression => value < by_chance,
    }
}

/// Up to four names.
fn first_names(names: &[String]) -> String {
    let shown = names.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > 4 { shown + ", …" } else { shown }
}

/// The simplest prediction of a task, as a phrase.
fn chance(task: Task) -> &'static str {
    match task {
        Task::Classification => "the most frequent class",
        Task::MultiLabel => "chance",
        Task::Regression => "the mean",
    }
}

/// Describes outputs that look like probabilities, and what to write instead; `None` for any others.
fn probabilities(task: Task, outputs: &[Vec<f64>]) -> Option<&'static str> {
    if task == Task::Regression || !outputs.iter().flatten().all(|value| (0.0..=1.0).contains(value)) {
        return None;
    }
    if task == Task::MultiLabel {
        return Some("all lie between 0 and 1, as probabilities p do; write ln(p / (1 - p)) instead");
    }
    let is_distribution = |row: &Vec<f64>| (row.iter().sum::<f64>() - 1.0).abs() < 0.01;
    let found = "lie between 0 and 1 and sum to 1, as probabilities do; write their logarithms instead";
    outputs.iter().all(is_distribution).then_some(found)
}

/// The configured loss of embeddings, and its weight within the distillation.
pub fn embedding_loss(config: &Config) -> (EmbeddingLoss, f64) {
    let settings = &config.distillation;
    let loss = match settings.kd_embedding_loss {
        EmbeddingLossChoice::Cosine => EmbeddingLoss::Cosine,
        EmbeddingLossChoice::Mse => EmbeddingLoss::Distance,
        EmbeddingLossChoice::Contrastive => {
            EmbeddingLoss::Contrastive { temperature: settings.kd_embedding_temperature }
        }
        EmbeddingLossChoice::Relational => EmbeddingLoss::Relational,
    };
    (loss, settings.kd_embedding_weight)
}
