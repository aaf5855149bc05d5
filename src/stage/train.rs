//! Trains a network on graphs of any kind: a teacher alone, or a student that learns from a teacher.

use serde_json::{Map, json};

use super::StageError;
use super::outcome::Outcome;
use super::run::Run;
use super::setup::{self, Data};
use super::teacher;
use super::training::{self, Graphs};
use crate::config::{Config, ModelKind, PoolingChoice, Stage};
use crate::distill::hints::Hints;
use crate::distill::objective::{GraphDistillation, GraphObjective};
use crate::graph::dataset::{FoldOptions, GraphSplit};
use crate::graph::{Schema, Store, Task};
use crate::memory::{Meter, retry_on_oom};
use crate::nn::{
    Architecture, FreshParameters, Gnn, GnnConfig, GnnKind, InputConfig, ModelError, Pooling, Scope, TargetScale,
};

const STAGE: Stage = Stage::Train;

/// Runs `kdgat train`.
pub fn train(config: &Config) -> Result<Outcome, StageError> {
    let data = setup::open_graphs(config)?;
    let split = GraphSplit::of(&data.store, &fold_options(config))?;
    let architecture = gnn_config(config, &data, &split)?;
    let found = teacher::find_for_graphs(config, &data, &architecture, &split)?;
    let mut inputs = Map::new();
    inputs.insert(
        "split".into(),
        json!({
            "origin": split.origin,
        "test_digest": split.test_digest(),
            "graphs": [split.training.len(), split.validation.len(), split.test.len()],
        }),
    );
    let run = Run::open(config, STAGE, &data, found.as_ref(), inputs)?;
    let mut graphs = Graphs {
        batch_graphs: training::batch_graphs(config, split.training.len()),
        node_budget: training::node_budget(config, &data.store)?,
        training: split.training,
        validation: split.validation,
        seed: config.training.seed,
        shuffle: training::shuffle(config),
    };

    let task = schema(&data.store)?.task;
    let (parameters, model, distillation) = retry_on_oom(Meter::new(data.device), || {
        let mut parameters = FreshParameters::new(config.training.seed, data.device);
        let model = Gnn::new(Scope::root(&mut parameters), &architecture, training::attention_kernel(config))?;
        let distillation =
            found.as_ref().map(|found| distillation(config, &found.architecture, &mut parameters, &architecture));
        Ok::<_, StageError>((parameters, model, distillation.transpose()?))
    })?;
    let teacher = teacher::start(config, found, &data, graphs.teacher_use())?;
    let student = GraphObjective { model, task, teacher, distillation };
    run.train(student, Architecture::Graph(architecture), parameters, &mut graphs)
}

/// The configured division of the graphs.
fn fold_options(config: &Config) -> FoldOptions {
    FoldOptions {
        file: config.graphs.folds_file.clone(),
        folds: config.graphs.folds,
        fold: config.graphs.fold,
        validation_fraction: config.data.validation_fraction,
    }
}

/// The schema of a store of graphs.
pub fn schema(store: &Store) -> Result<&Schema, StageError> {
    let missing =
        || StageError::Input(format!("{} is a store of CAN windows, not of other graphs", store.path().display()));
    store.schema().ok_or_else(missing)
}

fn gnn_config(config: &Config, data: &Data, split: &GraphSplit) -> Result<GnnConfig, StageError> {
    let (model, schema) = (&config.model, schema(&data.store)?);
    let kind = match model.model {
        ModelKind::Gcn => GnnKind::Gcn,
        ModelKind::Sage => GnnKind::Sage,
        ModelKind::Gat => GnnKind::Gat,
        ModelKind::Mlp => GnnKind::Mlp,
        // The configuration check allows no other model.
        ModelKind::Gin | ModelKind::Vgae | ModelKind::Dqn => GnnKind::Gin,
    };
    Ok(GnnConfig {
        kind,
        node_features: schema.node_columns() as i64,
        hidden: model.hidden.first().copied().unwrap_or(0) as i64,
        layers: model.layers as i64,
        heads: if kind == GnnKind::Gat { model.heads as i64 } else { 1 },
        outputs: match schema.task {
            Task::Classification => schema.targets[0].classes.len() as i64,
            Task::MultiLabel | Task::Regression => schema.targets.len() as i64,
        },
        pooling: match config.graphs.pooling {
            PoolingChoice::Sum => Pooling::Sum,
            PoolingChoice::Mean => Pooling::Mean,
        },
        dropout: model.dropout,
        target_scales: match schema.task {
            Task::Regression => target_scales(&data.store, &split.training, schema.targets.len())?,
            Task::Classification | Task::MultiLabel => Vec::new(),
        },
        input: InputConfig::default(),
    })
}

/// Mean and standard deviation of each target over the training graphs.
fn target_scales(store: &Store, graphs: &[u64], targets: usize) -> Result<Vec<TargetScale>, StageError> {
    let mut scales = Vec::with_capacity(targets);
    for target in 0..targets {
        let values = graphs.iter().map(|&graph| Ok(f64::from(store.try_graph(graph)?.targets_of_graph[target])));
        let values = values.collect::<Result<Vec<f64>, StageError>>()?;
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        scales.push(TargetScale { mean, deviation: if variance > 0.0 { variance.sqrt() } else { 1.0 } });
    }
    Ok(scales)
}

fn distillation(
    config: &Config,
    teacher: &Architecture,
    parameters: &mut FreshParameters,
    student: &GnnConfig,
) -> Result<GraphDistillation, StageError> {
    let Architecture::Graph(architecture) = teacher else {
        return Err(ModelError::Architecture {
            field: "model",
            found: teacher.model_name().into(),
            expected: "the teacher of a graph network is a graph network",
        }
        .into());
    };
    let options = &config.distillation;
    let loss = training::logit_loss(config);
    let columns = [student.embedding_columns(), architecture.embedding_columns()];
    let hints = Hints::new(Scope::root(parameters), columns, options.kd_hint_weight)?;
    let teacher_scales = architecture.target_scales.clone();
    Ok(GraphDistillation { loss, alpha: options.kd_alpha, teacher_scales, hints })
}
