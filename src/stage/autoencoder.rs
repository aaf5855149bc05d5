//! Trains a VGAE on attack-free graphs: a teacher alone, or a student that learns from a teacher.

use serde_json::Map;

use super::StageError;
use super::outcome::Outcome;
use super::run::Run;
use super::setup::{self, Data};
use super::teacher::{self, FoundTeacher};
use super::training::{self, Graphs};
use super::validation;
use crate::config::{Config, Stage};
use crate::distill::hints::Hints;
use crate::distill::losses::Projection;
use crate::distill::objective::{Translation, VgaeDistillation, VgaeObjective};
use crate::graph::Split;
use crate::memory::{Meter, retry_on_oom};
use crate::nn::{Architecture, FreshParameters, ModelError, Scope, Vgae, VgaeConfig, vgae};

const STAGE: Stage = Stage::Autoencoder;

/// Runs `kdgat autoencoder`.
pub fn autoencoder(config: &Config) -> Result<Outcome, StageError> {
    let data = setup::open(config)?;
    let mut graphs = graphs(config, &data)?;
    let found = teacher::find(config, STAGE, &data)?;
    let run = Run::open(config, STAGE, data.origin(), found.as_ref().map(FoundTeacher::identity), Map::new())?;

    let architecture = vgae_config(config, &data)?;
    let (parameters, model, distillation) = retry_on_oom(Meter::new(data.device), || {
        let mut parameters = FreshParameters::new(config.training.seed, data.device);
        let mut model = Vgae::new(Scope::root(&mut parameters), &architecture, training::attention_kernel(config))?;
        let distillation = found.as_ref().map(|found| distillation(config, found, &mut parameters, &architecture));
        let distillation = distillation.transpose()?;
        if distillation.as_ref().is_some_and(|distillation| distillation.hints.is_some()) {
            model.keep_hidden();
        }
        Ok::<_, StageError>((parameters, model, distillation))
    })?;
    let teacher = teacher::start(config, found, &data, graphs.teacher_use())?;
    let student = VgaeObjective { model, teacher, distillation };
    let outcome = run.train(&data, student, Architecture::Vgae(architecture), parameters, &mut graphs)?;
    validation::record_threshold(config, &data, &outcome)?;
    Ok(outcome)
}

/// Selects the attack-free graphs: a model trained on them alone reconstructs unusual graphs badly.
fn graphs(config: &Config, data: &Data) -> Result<Graphs, StageError> {
    let training = data.store.select(Split::Train, Some(false));
    let validation = data.store.select(Split::Validation, Some(false));
    if training.is_empty() {
        let left_out = data.store.manifest().duplicates.num_dropped();
        if left_out > 0 {
            return Err(StageError::Input(format!(
                "dataset {} has no attack-free graph for training: {left_out} training graphs are left out, because they are \
                 also in validation or a test; add training logs of other drives, or keep these graphs with --keep-duplicates",
                data.dataset.name
            )));
        }
        return Err(StageError::Input(format!(
            "dataset {} has no attack-free graph for training; \
             put attack-free logs into train_01_attack_free/, or lower --window",
            data.dataset.name
        )));
    }
    training::expect_validation(&validation, &data.dataset.name)?;
    let batch_graphs = training::batch_graphs(config, training.len());
    let shuffle = training::shuffle(config);
    let budget = training::batch_budget(config, &data.store)?;
    Ok(Graphs { training, validation, batch_graphs, budget, packed: false, seed: config.training.seed, shuffle })
}

/// The configured VGAE for this dataset.
pub(super) fn vgae_config(config: &Config, data: &Data) -> Result<VgaeConfig, StageError> {
    let model = &config.model;
    Ok(VgaeConfig {
        hidden: model.hidden.iter().map(|&width| width as i64).collect(),
        latent: model.latent as i64,
        heads: model.heads as i64,
        embedding: model.embedding as i64,
        vocabulary_size: data.store.vocabulary().len() as i64,
        dropout: model.dropout,
        edge_scaling: training::edge_scaling(config, data)?,
        input: training::input(config, data),
    })
}

/// Builds the distillation loss: its weights, and the projection to the teacher's latent space if latents are compared.
fn distillation(
    config: &Config,
    found: &FoundTeacher,
    parameters: &mut FreshParameters,
    student: &VgaeConfig,
) -> Result<VgaeDistillation, StageError> {
    let Architecture::Vgae(architecture) = &found.architecture else {
        return Err(ModelError::Architecture {
            field: "model",
            found: found.architecture.model_name().into(),
            expected: "the teacher of a vgae is a vgae",
        }
        .into());
    };
    let options = &config.distillation;
    let [from, to] = [student.latent, architecture.latent];
    let projection = found.asked.latent.then(|| Projection::new(Scope::root(parameters), from, to)).transpose()?;
    let scales = student.input.node_scaling.as_ref().zip(architecture.input.node_scaling.as_ref());
    let translation = scales.and_then(|(student, teacher)| teacher.translation(student));
    let columns = [vgae::last_width(student), vgae::last_width(architecture)];
    let hints = Hints::new(Scope::root(parameters), columns, options.kd_hint_weight)?;
    Ok(VgaeDistillation {
        projection,
        alpha: training::alpha(config),
        latent_weight: options.kd_vgae_latent_weight,
        reconstruction_weight: options.kd_vgae_recon_weight,
        translation: translation.map(Translation::new),
        hints,
    })
}
