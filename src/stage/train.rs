//! Trains a network on graphs of any kind: a teacher alone, or a student that learns from a teacher or from a file with its outputs.

use std::sync::Arc;

use serde_json::{Map, json};
use tch::Device;

use super::StageError;
use super::foreign;
use super::graph_curriculum::{DifficultyModel, GraphCurriculum};
use super::outcome::Outcome;
use super::run::Run;
use super::setup::{self, Data};
use super::teacher::{self, FoundTeacher, TeacherIdentity};
use super::train_nodes::train_nodes;
use super::training::{self, Graphs, StagePlan};
use crate::config::{self, Config, ModelKind, PoolingChoice, Stage, TargetReference};
use crate::distill::TargetName;
use crate::distill::foreign::ForeignTargets;
use crate::distill::hints::Hints;
use crate::distill::objective::{GraphDistillation, GraphObjective, TeacherLink};
use crate::graph::dataset::{FoldOptions, GraphSplit};
use crate::graph::{BatchBudget, GraphSize, Level, Schema, Store, Task};
use crate::memory::{Meter, retry_on_oom};
use crate::nn::{
    Architecture, FreshParameters, Gnn, GnnConfig, GnnKind, InputConfig, ModelError, Scope, TargetScale, target_scale,
};

const STAGE: Stage = Stage::Train;

/// An opened dataset of graphs, and the network to train on it.
pub(super) struct Opened {
    pub data: Data,
    pub split: GraphSplit,
    /// A file with a teacher's outputs.
    pub foreign: Option<Arc<ForeignTargets>>,
    pub architecture: GnnConfig,
}

/// Opens the configured dataset of graphs and divides it.
///
/// # Errors
/// Data that cannot be read, or a model that does not fit them.
pub(super) fn open(config: &Config) -> Result<Opened, StageError> {
    let data = setup::open_graphs(config)?;
    let split = GraphSplit::of(&data.store, &fold_options(config))?;
    let foreign = foreign::find(config, &data)?;
    let architecture = gnn_config(config, &data, &split, foreign.as_deref())?;
    Ok(Opened { data, split, foreign, architecture })
}

/// The batch plan of a training on the graphs of this division.
///
/// # Errors
/// If a graph alone exceeds the limit of nodes and edges per batch.
pub(super) fn batch_plan(config: &Config, store: &Store, split: &GraphSplit) -> Result<Graphs, StageError> {
    Ok(Graphs {
        batch_graphs: training::batch_graphs(config, split.training.len()),
        budget: budget(config, store, split)?,
        packed: true,
        training: split.training.clone(),
        validation: split.validation.clone(),
        seed: config.training.seed,
        shuffle: training::shuffle(config),
    })
}

/// A student with new parameters, and its distillation.
pub(super) struct NewStudent {
    pub parameters: FreshParameters,
    pub model: Gnn,
    pub distillation: Option<GraphDistillation>,
}

impl NewStudent {
    /// Makes a student of a teacher with this architecture, of a file with a teacher's outputs, or of neither.
    pub fn new(
        config: &Config,
        device: Device,
        architecture: &GnnConfig,
        teacher: Option<&Architecture>,
        foreign: Option<&ForeignTargets>,
    ) -> Result<Self, StageError> {
        let mut parameters = FreshParameters::new(config.training.seed, device);
        let model = Gnn::new(Scope::root(&mut parameters), architecture, training::attention_kernel(config))?;
        let distillation = match (teacher, foreign) {
            (Some(teacher), _) => Some(distillation(config, teacher, &mut parameters, architecture)?),
            (None, Some(targets)) => Some(foreign_distillation(config, targets, architecture)),
            (None, None) => None,
        };
        Ok(Self { parameters, model, distillation })
    }
}

/// Runs `kdgat train`.
pub fn train(config: &Config) -> Result<Outcome, StageError> {
    if config::is_one_graph(config) {
        return train_nodes(config);
    }
    let Opened { data, split, foreign, architecture } = open(config)?;
    let (found, identity) = match &foreign {
        Some(targets) => {
            foreign::worth(targets, &data.store, &split.training)?.iter().for_each(|line| eprintln!("{line}"));
            (None, Some(TeacherIdentity { digest: targets.digest().to_owned(), architectures: Vec::new() }))
        }
        None => {
            let found = teacher::find_for_graphs(config, &data, &architecture, &split)?;
            let identity = found.as_ref().map(FoundTeacher::identity);
            (found, identity)
        }
    };
    let mut inputs = Map::new();
    inputs.insert(
        "split".into(),
        json!({
            "origin": split.origin,
            "test_digest": split.test_digest(&data.store)?,
            "graphs": [split.training.len(), split.validation.len(), split.test.len()],
        }),
    );
    let has_curriculum = config::has_graph_curriculum(config);
    let difficulty = match has_curriculum {
        true => DifficultyModel::find(config, &data, &architecture, &split, foreign.as_deref())?,
        false => None,
    };
    if has_curriculum {
        inputs.extend(DifficultyModel::inputs(difficulty.as_ref()));
    }
    let mut run = Run::open(config, STAGE, data.origin(), identity, inputs)?;
    let mut graphs = batch_plan(config, &data.store, &split)?;

    let task = schema(&data.store)?.task;
    let NewStudent { parameters, model, distillation } = retry_on_oom(Meter::new(data.device), || {
        let teacher = found.as_ref().map(|found| &found.architecture);
        NewStudent::new(config, data.device, &architecture, teacher, foreign.as_deref())
    })?;
    let start = |usage| match foreign {
        Some(targets) => Ok(TeacherLink::from_file(targets)),
        None => teacher::start(config, found, &data, usage),
    };
    let architecture = Architecture::Graph(architecture);
    if !has_curriculum {
        let student = GraphObjective::new(model, task, start(graphs.teacher_use())?, distillation);
        return run.train(&data, student, architecture, parameters, &mut graphs);
    }
    let mut plan = GraphCurriculum::new(config, &data, graphs)?;
    let usage = plan.graphs().teacher_use_of(plan.typical_epoch_graphs(config.training.max_epochs));
    let mut student = GraphObjective::new(model, task, start(usage)?, distillation);
    plan.score(config, &data, difficulty, &mut student, parameters.tensors(), &mut run)?;
    run.train(&data, student, architecture, parameters, &mut plan)
}

/// The configured limit of nodes and edges per batch.
///
/// # Errors
/// If a graph alone exceeds it.
fn budget(config: &Config, store: &Store, split: &GraphSplit) -> Result<Option<BatchBudget>, StageError> {
    let Some(budget) = training::batch_budget(config, store)? else { return Ok(None) };
    let graphs = [split.training.as_slice(), &split.validation].concat();
    let Some((graph, GraphSize { nodes, edges })) = budget.too_large(&graphs) else { return Ok(Some(budget)) };
    Err(StageError::Input(format!(
        "graph {graph} (counted from 0) has {nodes} nodes and {edges} edges, more than the {} allowed for a batch; raise --batch-nodes to at \
         least {nodes} and --batch-edges to at least {edges}, or remove the graph",
        budget.describe()
    )))
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

fn gnn_config(
    config: &Config,
    data: &Data,
    split: &GraphSplit,
    foreign: Option<&ForeignTargets>,
) -> Result<GnnConfig, StageError> {
    let (model, schema) = (&config.model, schema(&data.store)?);
    if schema.level == Level::Node && config.graphs.pooling != PoolingChoice::Sum {
        return Err(StageError::Input(
            "pooling would be ignored: the targets are of nodes, whose own rows the head reads; drop --pooling".into(),
        ));
    }
    if schema.level == Level::Node && config::has_graph_curriculum(config) {
        return Err(StageError::Input(
            "a curriculum chooses graphs by a loss of theirs, and the targets are of nodes; drop --curriculum-start-share".into(),
        ));
    }
    let kind = match model.model {
        ModelKind::Gcn => GnnKind::Gcn,
        ModelKind::Sage => GnnKind::Sage,
        ModelKind::Gat => GnnKind::Gat,
        ModelKind::Mlp => GnnKind::Mlp,
        ModelKind::Appnp => {
            return Err(StageError::Input(
                "appnp classifies the nodes of one large graph, and the data are many graphs; use --preset gin,teacher or another model".into(),
            ));
        }
        // The configuration check allows no other model.
        ModelKind::Gin | ModelKind::Vgae | ModelKind::Dqn => GnnKind::Gin,
    };
    Ok(GnnConfig {
        kind,
        node_features: schema.node_columns() as i64,
        edge_features: match kind {
            GnnKind::Gin if config.graphs.edge_features => schema.edge_columns() as i64,
            _ => 0,
        },
        hidden: model.hidden.first().copied().unwrap_or(0) as i64,
        layers: model.layers as i64,
        heads: if kind == GnnKind::Gat { model.heads as i64 } else { 1 },
        outputs: foreign::output_names(schema).len() as i64,
        embedding_columns: foreign.and_then(|targets| targets.columns(TargetName::Embedding)).unwrap_or(0) as i64,
        level: schema.level,
        pooling: training::pooling(config),
        virtual_node: config.graphs.virtual_node,
        dropout: model.dropout,
        target_scales: match (schema.task, config.graphs.target_reference) {
            (Task::Regression, _) if schema.level == Level::Node => {
                target_scale::of_nodes(&data.store, &split.training)?
            }
            (Task::Regression, TargetReference::Linear) => {
                target_scale::with_linear_part(&data.store, &split.training)?
            }
            (Task::Regression, TargetReference::Mean) => target_scale::of_mean(&data.store, &split.training)?,
            (Task::Classification | Task::MultiLabel, _) => Vec::new(),
        },
        input: InputConfig::default(),
    })
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
    let columns = [student.pooled_columns(), architecture.pooled_columns()];
    let hints = Hints::new(Scope::root(parameters), columns, options.kd_hint_weight)?;
    let teacher_scales = architecture.target_scales.clone();
    Ok(GraphDistillation { loss, alpha: training::alpha(config), teacher_scales, hints, embedding: None })
}

/// Distillation of the outputs in a file. Its values are in the units of the targets.
fn foreign_distillation(config: &Config, targets: &ForeignTargets, student: &GnnConfig) -> GraphDistillation {
    GraphDistillation {
        loss: training::logit_loss(config),
        alpha: training::alpha(config),
        teacher_scales: vec![TargetScale::of_units(); student.target_scales.len()],
        hints: None,
        embedding: targets.columns(TargetName::Embedding).map(|_| foreign::embedding_loss(config)),
    }
}
