//! Loaders and sizes of the batches of a training on graphs of a store, CAN windows or others.

use std::sync::Arc;

use super::StageError;
use super::epochs::{Epochs, Graphs};
use super::graph_peak::{Forecaster, Question};
use super::run::{Prepared, Run};
use super::setup::Data;
use super::sizing::Sizing;
use super::together::{self, ShareSizes};
use super::training;
use crate::config;
use crate::distill::objective::Student;
use crate::graph::{ForeignCounts, Level};
use crate::memory;
use crate::memory::limits::host_limit;
use crate::nn::{Architecture, BatchNeeds, GnnConfig};
use crate::train::fit::FitOptions;
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
    let (training_loader, validation_loader) =
        training::loaders(config, &data.store, &vocabulary, needs, data.device, views);
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
    let sizing = Sizing {
        config,
        data,
        architecture: &architecture,
        teachers: &run.teachers,
        directory: &run.directory,
        decided: run.decided,
        loader: &training_loader,
        console: &mut run.console,
    };
    let mut recomputes = sizing.settle(student, trainable, plan, &mut options)?;
    if let Some(processes) = processes.as_ref().filter(|_| run.decided.is_none()) {
        let agreed = together::agree(processes, ShareSizes { graphs: plan.graphs.batch_graphs, recomputes })?;
        plan.graphs.batch_graphs = (agreed.graphs * size).min(whole);
        recomputes = agreed.recomputes;
        student.set_checkpointing(recomputes);
    }
    let expected_peak_bytes = match &architecture {
        // A curriculum chooses the graphs of an epoch while it trains; targets of nodes are cached by node.
        Architecture::Graph(architecture)
            if architecture.level == Level::Graph && !config::has_graph_curriculum(config) && processes.is_none() =>
        {
            expected_peak(run, data, architecture, student, &plan.graphs, &options)?
        }
        _ => None,
    };
    let training_loader = if options.records_steps { training_loader.padding() } else { training_loader };
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

/// Predicts the peak of a training on graphs, and prints it. `None` on a GPU, or if there is no memory to measure steps.
fn expected_peak(
    run: &mut Run,
    data: &Data,
    architecture: &GnnConfig,
    student: &impl Student,
    graphs: &Graphs,
    options: &FitOptions,
) -> Result<Option<u64>, StageError> {
    if data.device.is_cuda() {
        return Ok(None);
    }
    let (teacher, link) = (run.teachers.first(), student.teacher());
    let question = Question::of_training(run.config, data, architecture, teacher, link, graphs, options);
    let expected = match Forecaster::measure(question) {
        Ok(forecaster) => forecaster.expected(&forecaster.settings()),
        Err(error) if memory::is_out_of_memory(&error) => {
            run.console.note(&format!("memory: the peak cannot be predicted: {error}"));
            None
        }
        Err(error) => return Err(error),
    };
    let Some(expected) = expected else { return Ok(None) };
    run.console.line(&expected.line(options.max_epochs));
    let limit = host_limit(run.config.memory.memory_limit.map(|size| size.0));
    run.console.plan_memory(MemoryPlan { limit_bytes: limit.bytes, expected_bytes: expected.bytes() });
    Ok(Some(expected.bytes()))
}
