//! Loaders and sizes of the batches of a training on graphs of a store, CAN windows or others.

use std::sync::Arc;

use super::StageError;
use super::cached_targets::CachedTargets;
use super::epochs::{Epochs, Graphs};
use super::expected_captures::GraphSizes;
use super::expected_peak::{Forecaster, Settings};
use super::measured::Measured;
use super::resident;
use super::run::{Prepared, Run};
use super::setup::Data;
use super::sizes::{Counted, Sizes};
use super::sizing::{Sizing, device_limit};
use super::together::{self, ShareSizes};
use super::training;
use crate::config::{self, Config};
use crate::distill::objective::Student;
use crate::graph::{ForeignCounts, Loader};
use crate::memory;
use crate::nn::{Architecture, BatchNeeds};
use crate::train::panel::MemoryPlan;
use crate::train::trainable::Trainable;

/// Decides on the batch size within the memory limit, and makes the loaders.
///
/// # Errors
/// If not even one graph fits, or the configuration asks for what the student cannot do.
pub fn prepare(
    run: &mut Run,
    data: &Data,
    architecture: Architecture,
    student: &mut impl Student,
    trainable: &mut Trainable,
    plan: &mut Epochs,
) -> Result<Prepared, StageError> {
    let config = run.config;
    let vocabulary = Arc::new(data.store.vocabulary().clone());
    let needs = BatchNeeds::of_all([run.needs_of_teachers(), architecture.needs()]);
    let views = config::views(config, run.stage);
    let batch_options = training::batch_options(config, &data.store, &vocabulary, needs, views);
    let resident = resident::loaders(config, &data.store, &plan.graphs, &batch_options, data.device, &mut run.console)?;
    let [training_loader, validation_loader] =
        resident.unwrap_or_else(|| training::loaders(config, &data.store, batch_options, data.device));
    let mut options = run.fit_options(student);
    if let (Some(true), Some(obstacle)) = (config.training.cuda_graphs, student.capture_obstacle()) {
        return Err(StageError::Input(format!("--cuda-graphs: {obstacle}; use --cuda-graphs false")));
    }
    // A process computes and holds its share of each batch.
    let processes = run.processes.clone();
    let (whole, size) = (plan.graphs.batch_graphs, processes.as_ref().map_or(1, |processes| processes.size()));
    if run.decided.is_none() {
        plan.graphs.batch_graphs = whole.div_ceil(size);
    }
    let counted = counted_by(config, run.teachers.iter().chain([&architecture]), data.device.is_cuda());
    let sizes = Sizes::of(&data.store, counted)?;
    let sizing = Sizing {
        config,
        has_teacher: !run.teachers.is_empty(),
        can_checkpoint: architecture.can_checkpoint(),
        directory: &run.directory,
        decided: run.decided,
        console: &mut run.console,
    };
    let loaders = [&training_loader, &validation_loader];
    let before = options.clone();
    let mut recomputes =
        sizing.settle(Measured::of(student, trainable, loaders, &sizes, &before), plan, &mut options)?;
    if let Some(processes) = processes.as_ref().filter(|_| run.decided.is_none()) {
        let agreed = together::agree(processes, ShareSizes { graphs: plan.graphs.batch_graphs, recomputes })?;
        plan.graphs.batch_graphs = (agreed.graphs * size).min(whole);
        recomputes = agreed.recomputes;
        student.set_checkpointing(recomputes);
    }
    // A curriculum chooses the graphs of an epoch while it trains. The steps that measure a training take longer than a short training on a CPU.
    let is_known = !plan.has_curriculum() && (config::trains_on_graphs(config, run.stage) || data.device.is_cuda());
    let expected_peak_bytes = match is_known && processes.is_none() {
        true => {
            // In parts, no steps are captured.
            let captures = options.records_steps && options.micro_batch_graphs.is_none();
            let graph_sizes = captures.then(|| GraphSizes::of(&data.store, &plan.graphs)).transpose()?;
            let training = Measured::of(student, trainable, loaders, &sizes, &options);
            expected_peak(run, training, &plan.graphs, graph_sizes.as_ref(), counted.name())?
        }
        false => None,
    };
    let loaders = [training_loader, validation_loader];
    let [training_loader, validation_loader] =
        if options.records_steps { loaders.map(Loader::padding) } else { loaders };
    // Deviations from a profile include unknown IDs.
    let has_profile = architecture.input().profile.is_some();
    let is_listed = matches!(architecture, Architecture::Gat(_)) && config.model.foreign_ids && !has_profile;
    let Graphs { training, validation, batch_graphs, .. } = &plan.graphs;
    let foreign_ids = is_listed.then(|| ForeignCounts::of(&data.store, validation)).transpose()?;
    let mut description = run.description(architecture, data.store.vocabulary().clone());
    description.foreign_ids = foreign_ids.as_ref().and_then(ForeignCounts::shares);
    Ok(Prepared {
        training_loader,
        validation_loader,
        options,
        recomputes,
        description,
        batch_graphs: *batch_graphs,
        amounts: format!("{} training and {} validation graphs", training.len(), validation.len()),
        notes: foreign_ids.iter().map(ForeignCounts::text).collect(),
        expected_peak_bytes,
        closing: Box::new(Vec::new),
    })
}

/// The quantity that the memory of these networks is counted by besides nodes.
pub fn counted_by<'a>(
    config: &Config,
    networks: impl IntoIterator<Item = &'a Architecture> + Clone,
    on_gpu: bool,
) -> Counted {
    Counted::by(networks, training::computes_fused(config, on_gpu))
}

/// Predicts the peak of a training on graphs, and prints it. `None` if there is no memory to measure steps.
fn expected_peak<'a>(
    run: &mut Run,
    training: Measured<'a>,
    graphs: &'a Graphs,
    captured: Option<&'a GraphSizes>,
    counted: &str,
) -> Result<Option<u64>, StageError> {
    let (config, max_epochs) = (run.config, training.options.max_epochs);
    let views = config::views(config, run.stage);
    let targets = CachedTargets::of(training.student.teacher());
    let settings = Settings::of(config, &training, targets, views.max(1));
    let limit = device_limit(config, training.options.device)?;
    let expected = match Forecaster::measure(config, training, graphs, settings, captured) {
        Ok(forecaster) => forecaster.expected(),
        Err(error) if memory::is_out_of_memory(&error) => {
            run.console.note(&format!("memory: the peak cannot be predicted: {error}"));
            None
        }
        Err(error) => return Err(error),
    };
    let Some(expected) = expected else { return Ok(None) };
    run.console.line(&expected.line(max_epochs, counted));
    run.console.plan_memory(MemoryPlan { limit_bytes: limit.bytes, expected_bytes: expected.bytes() });
    Ok(Some(expected.bytes()))
}
