//! Trains a GAT classifier on normal graphs and attacks: a teacher alone, or a student that learns from a teacher.
//!
//! `kdgat classifier` trains on every graph in every epoch, `kdgat curriculum` on all attacks and a selection of normal graphs.

use serde_json::Map;

use super::StageError;
use super::curriculum::{self, CurriculumEpochs};
use super::outcome::Outcome;
use super::run::Run;
use super::setup::{self, Data};
use super::teacher::{self, FoundTeacher, TeacherUse};
use super::training::{self, Graphs, StagePlan};
use super::validation;
use crate::config::{Config, Stage, TaskLoss};
use crate::distill::hints::Hints;
use crate::distill::objective::{GatDistillation, GatObjective};
use crate::graph::Split;
use crate::memory::{Meter, retry_on_oom};
use crate::nn::{Architecture, ClassLoss, FreshParameters, Gat, GatConfig, ModelError, Scope};

/// Runs `kdgat classifier`.
pub fn classifier(config: &Config) -> Result<Outcome, StageError> {
    let stage = Stage::Classifier;
    let data = setup::open(config)?;
    let mut graphs = graphs(config, &data)?;
    let found = teacher::find(config, stage, &data)?;
    let run = Run::open(config, stage, data.origin(), found.as_ref().map(FoundTeacher::identity), Map::new())?;
    let usage = graphs.teacher_use();
    train(config, &data, run, found, usage, &mut graphs)
}

/// Runs `kdgat curriculum`.
pub fn curriculum(config: &Config) -> Result<Outcome, StageError> {
    let stage = Stage::Curriculum;
    let data = setup::open(config)?;
    let mut plan = CurriculumEpochs::new(config, &data, graphs(config, &data)?);
    let found = teacher::find(config, stage, &data)?;
    let scorer = curriculum::scorer(config, &data)?;
    let inputs = curriculum::inputs(scorer.as_ref());
    let run = Run::open(config, stage, data.origin(), found.as_ref().map(FoundTeacher::identity), inputs)?;
    if let Some(scorer) = scorer {
        plan.score(config, &data, &scorer, run.directory(), run.resumes())?;
    }
    let usage = plan.graphs().teacher_use_of(plan.typical_epoch_graphs(config.training.max_epochs));
    train(config, &data, run, found, usage, &mut plan)
}

fn train(
    config: &Config,
    data: &Data,
    run: Run,
    found: Option<FoundTeacher>,
    usage: TeacherUse,
    plan: &mut impl StagePlan,
) -> Result<Outcome, StageError> {
    let architecture = gat_config(config, data)?;
    let (parameters, model, task, distillation) = retry_on_oom(Meter::new(data.device), || {
        let mut parameters = FreshParameters::new(config.training.seed, data.device);
        let model = Gat::new(Scope::root(&mut parameters), &architecture, training::attention_kernel(config))?;
        let distillation =
            found.as_ref().map(|found| distillation(config, &found.architecture, &mut parameters, &architecture));
        Ok::<_, StageError>((parameters, model, task_loss(config, data)?, distillation.transpose()?))
    })?;
    let teacher = teacher::start(config, found, data, usage)?;
    let student = GatObjective { model, task, teacher, distillation, labels: None };
    let outcome = run.train(data, student, Architecture::Gat(architecture), parameters, plan)?;
    validation::record_threshold(config, data, &outcome)?;
    Ok(outcome)
}

/// Selects all graphs, normal ones and attacks.
fn graphs(config: &Config, data: &Data) -> Result<Graphs, StageError> {
    let training = data.store.select(Split::Train, None);
    let validation = data.store.select(Split::Validation, None);
    for (attack, what, folder) in
        [(false, "normal graph", "train_01_attack_free"), (true, "graph with an attack", "train_02_with_attacks")]
    {
        if data.store.select(Split::Train, Some(attack)).is_empty() {
            return Err(StageError::Input(format!(
                "dataset {} has no {what} for training; put labelled logs with such graphs into {folder}/, or lower --window",
                data.dataset.name
            )));
        }
    }
    training::expect_validation(&validation, &data.dataset.name)?;
    let batch_graphs = training::batch_graphs(config, training.len());
    let shuffle = training::shuffle(config);
    let budget = training::batch_budget(config, &data.store)?;
    Ok(Graphs { training, validation, batch_graphs, budget, packed: false, seed: config.training.seed, shuffle })
}

/// The configured GAT for this dataset.
pub(super) fn gat_config(config: &Config, data: &Data) -> Result<GatConfig, StageError> {
    let model = &config.model;
    Ok(GatConfig {
        // The configuration check allows exactly one width.
        hidden: model.hidden.first().copied().unwrap_or(0) as i64,
        layers: model.layers as i64,
        heads: model.heads as i64,
        embedding: model.embedding as i64,
        fc_layers: model.fc_layers as i64,
        vocabulary_size: data.store.vocabulary().len() as i64,
        dropout: model.dropout,
        edge_scaling: training::edge_scaling(config, data)?,
        input: training::input(config, data),
    })
}

fn task_loss(config: &Config, data: &Data) -> Result<ClassLoss, StageError> {
    let by_class = |split| [false, true].map(|attack| data.store.select(split, Some(attack)).len());
    Ok(match config.training.task_loss {
        TaskLoss::CrossEntropy => ClassLoss::CrossEntropy,
        TaskLoss::Weighted => ClassLoss::balanced(&by_class(Split::Train), &by_class(Split::Validation), data.device)?,
        TaskLoss::Focal => ClassLoss::Focal { gamma: config.training.focal_gamma },
    })
}

fn distillation(
    config: &Config,
    teacher: &Architecture,
    parameters: &mut FreshParameters,
    student: &GatConfig,
) -> Result<GatDistillation, StageError> {
    let Architecture::Gat(architecture) = teacher else {
        return Err(ModelError::Architecture {
            field: "model",
            found: teacher.model_name().into(),
            expected: "the teacher of a gat is a gat",
        }
        .into());
    };
    let options = &config.distillation;
    let loss = training::logit_loss(config);
    let columns = [student.embedding_columns(), architecture.embedding_columns()];
    let hints = Hints::new(Scope::root(parameters), columns, options.kd_hint_weight)?;
    Ok(GatDistillation { loss, alpha: training::alpha(config), hints })
}
