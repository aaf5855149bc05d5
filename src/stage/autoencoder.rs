//! Trains a VGAE on attack-free graphs: a teacher alone, or a student that learns from a teacher.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use tch::Device;

use super::objective::{VgaeDistillation, VgaeObjective};
use super::outcome::Outcome;
use super::teacher::{self, FoundTeacher};
use super::training::{self, ShuffledEpochs};
use super::{StageError, setup};
use crate::config::Config;
use crate::distill::losses::{Projection, VgaeWeights};
use crate::graph::{Split, Store};
use crate::nn::{
    Architecture, DatasetIdentity, FreshParameters, ModelDescription, ModelError, Scope, Vgae, VgaeConfig,
};
use crate::train::checkpoint;
use crate::train::console::Console;
use crate::train::fit::{BEST, Ending, Fit, fit};
use crate::train::state::Position;
use crate::train::trainable::Trainable;

const STAGE: &str = "autoencoder";
/// Name of the tensors that are trained with the student but are not part of it.
const PROJECTION: &str = "projection.";

/// `kdgat autoencoder`.
pub fn autoencoder(config: &Config) -> Result<Outcome, StageError> {
    // Data.
    setup::use_threads(config.training.threads);
    let device = setup::device(config.training.device)?;
    let store = setup::open_store(config)?;
    let dataset = DatasetIdentity { name: store.manifest().dataset.clone(), digest: store.digest().to_owned() };
    let plan = graphs(config, &store)?;

    // Teacher.
    let found = match config.distillation.use_kd {
        true => Some(teacher::find(config, &dataset, "vgae", store.vocabulary())?),
        false => None,
    };

    // Run.
    let teacher_digest = found.as_ref().map(|found| found.weights.digest().to_owned());
    let identity = training::identity(config, STAGE, plan.batch_graphs, &store, teacher_digest.as_deref());
    let run = training::run_directory(config, &dataset.name, STAGE)?;
    let mut console = Console::new(Some(&run.file("log.txt"))).map_err(|source| StageError::File {
        path: run.file("log.txt"),
        action: "write",
        source,
    })?;
    let inputs = training::inputs(&dataset, teacher_digest.as_deref(), plan.batch_graphs, &identity);
    let resumes = training::can_resume(config, &run);
    if !resumes {
        training::freeze(&run, config, STAGE, &inputs)?;
    }

    // Student.
    let architecture = vgae_config(config, &store);
    let mut parameters = FreshParameters::new(config.training.seed, device);
    let kernel = training::attention_kernel(config);
    let model = Vgae::new(Scope::root(&mut parameters), &architecture, kernel)?;
    let distillation = match found {
        Some(found) => Some(distillation(config, found, &mut parameters, &architecture, &store, &plan, device)?),
        None => None,
    };
    let mut trainable = Trainable::new(parameters.into_tensors(), device)?;
    console.line(&describe(config, &trainable, &plan, &store, distillation.as_ref()));

    // Fit.
    let vocabulary = Arc::new(store.vocabulary().clone());
    let (training_loader, validation_loader) = training::loaders(config, &store, &vocabulary);
    let mut objective = VgaeObjective { model, distillation };
    let best_path = run.file(BEST);
    let description = |position: &Position| ModelDescription {
        architecture: Architecture::Vgae(architecture.clone()),
        vocabulary: store.vocabulary().clone(),
        dataset: dataset.clone(),
        window: config.data.window,
        size: config.model.size.clone(),
        epoch: position.progress.best_epoch,
        val_loss: position.progress.best_loss,
        teacher_digest: teacher_digest.clone(),
        created_by_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut save_best = |trainable: &Trainable, position: &Position| {
        let deployed: BTreeMap<_, _> =
            trainable.state_dict()?.into_iter().filter(|(name, _)| !name.starts_with(PROJECTION)).collect();
        checkpoint::write(&best_path, &deployed, &description(position))
    };
    let options = training::fit_options(config, device, identity);
    let summary = fit(
        Fit {
            objective: &mut objective,
            trainable: &mut trainable,
            training_loader: &training_loader,
            validation_loader: &validation_loader,
            plan: &plan,
            run: &run,
            console: &mut console,
            save_best: &mut save_best,
        },
        &options,
        resumes,
    )?;

    // Save.
    let teacher_summary = objective.distillation.map(|distillation| distillation.teacher.finish()).transpose()?;
    let num_parameters = trainable.count_parameters(|name| !name.starts_with(PROJECTION));
    let digest = trainable.digest(|name| !name.starts_with(PROJECTION))?;
    let outcome = Outcome::new(run.path().to_owned(), &summary, num_parameters, digest, teacher_summary, inputs);
    console.finish();
    if summary.ending != Ending::Interrupted {
        run.write_json("summary.json", &outcome)?;
        if config.model.size.starts_with("teacher") && !config.distillation.use_kd {
            let registered = teacher::register(config, &best_path, &outcome)?;
            console.line(&format!("registered as the teacher of {}: {}", dataset.name, registered.display()));
        }
    }
    outcome.print(&mut console, &summary);
    Ok(outcome)
}

/// Attack-free graphs alone, so that what the model cannot reconstruct is unusual.
fn graphs(config: &Config, store: &Store) -> Result<ShuffledEpochs, StageError> {
    let training = store.select(Split::Train, Some(false));
    let validation = store.select(Split::Validation, Some(false));
    if training.is_empty() {
        let name = &store.manifest().dataset;
        return Err(StageError::Input(format!(
            "dataset {name} has no attack-free graph for training; \
             put attack-free logs into train_01_attack_free/, or lower --window"
        )));
    }
    let batch_graphs = training::batch_graphs(config, training.len());
    Ok(ShuffledEpochs { training, validation, batch_graphs, seed: config.training.seed })
}

fn vgae_config(config: &Config, store: &Store) -> VgaeConfig {
    let model = &config.model;
    VgaeConfig {
        hidden: model.hidden.iter().map(|&width| width as i64).collect(),
        latent: model.latent as i64,
        heads: model.heads as i64,
        embedding: model.embedding as i64,
        vocabulary_size: store.vocabulary().len() as i64,
        dropout: model.dropout,
    }
}

/// Starts the teacher's thread and makes the projection to its latent.
fn distillation(
    config: &Config,
    found: FoundTeacher,
    parameters: &mut FreshParameters,
    student: &VgaeConfig,
    store: &Store,
    plan: &ShuffledEpochs,
    device: Device,
) -> Result<VgaeDistillation, StageError> {
    let Architecture::Vgae(architecture) = &found.architecture else {
        return Err(ModelError::Architecture {
            field: "model",
            found: found.architecture.model_name().into(),
            expected: "the teacher of a vgae is a vgae",
        }
        .into());
    };
    let projection = Projection::new(Scope::root(parameters), student.latent, architecture.latent)?;
    let options = &config.distillation;
    let weights = VgaeWeights {
        alpha: options.kd_alpha,
        latent: options.kd_vgae_latent_weight,
        reconstruction: options.kd_vgae_recon_weight,
    };
    let usage = plan.teacher_use(device, training::attention_kernel(config));
    let teacher = teacher::start(config, found, store, usage)?;
    Ok(VgaeDistillation { teacher, projection, weights, burst: options.teacher_burst, last_report: Default::default() })
}

fn describe(
    config: &Config,
    trainable: &Trainable,
    plan: &ShuffledEpochs,
    store: &Store,
    distillation: Option<&VgaeDistillation>,
) -> String {
    let parameters = trainable.count_parameters(|name| !name.starts_with(PROJECTION));
    let learned = json!(config.distillation.residency());
    let teacher = distillation.map_or(String::new(), |distillation| {
        let digest = &distillation.teacher.digest()[..12];
        format!("; teacher {digest}, residency {}", learned.as_str().unwrap_or_default())
    });
    format!(
        "vgae {}: {parameters} parameters, {} training and {} validation graphs of {}, batches of {}{teacher}",
        config.model.size,
        plan.training.len(),
        plan.validation.len(),
        store.manifest().dataset,
        plan.batch_graphs,
    )
}
