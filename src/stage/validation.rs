//! A model's scores on the validation windows of its dataset, and the threshold chosen on them, which is recorded beside its weights.

use std::sync::Arc;

use super::outcome::Outcome;
use super::setup::Data;
use super::{StageError, training};
use crate::can::synthetic;
use crate::config::{Config, EvaluationConfig, Threshold};
use crate::evaluate::held_out::held_out;
use crate::evaluate::records::{self, RecordedThreshold, ValidationScores};
use crate::evaluate::{EvaluateError, Scorer, TrainedModel, threshold};
use crate::graph::{AssembleOptions, Split, Store, Validation};
use crate::memory::{Meter, retry_on_oom};
use crate::train::fit::Ending;

/// A model's scores on the validation graphs of a store.
pub struct Validated {
    /// Raw score of each validation graph.
    pub raw: Vec<f32>,
    /// For each validation graph, true if it contains an attack.
    pub labels: Vec<bool>,
    /// For each validation graph, true if the model was not trained on any of its frames.
    pub held_out: Vec<bool>,
    /// The threshold, chosen on the held-out graphs unless one was recorded before.
    pub recorded: RecordedThreshold,
}

/// Records the threshold of a model that has just been trained, so that `kdgat detect` can use it without an evaluation.
///
/// # Errors
/// If the model cannot be read again or scored. A threshold that cannot be chosen is only a warning: the training has succeeded.
pub fn record_threshold(config: &Config, data: &Data, outcome: &Outcome) -> Result<(), StageError> {
    if outcome.ending == Ending::Interrupted {
        return Ok(());
    }
    let model = TrainedModel::read(&outcome.run)?;
    let kernel = training::attention_kernel(config);
    let scorer = retry_on_oom(Meter::new(data.device), || Scorer::new(&model, data.device, kernel))?;
    match choose_threshold(&model, &scorer, &data.store, EvaluationConfig::default().threshold) {
        Err(StageError::Evaluate(EvaluateError::Input(reason)) | StageError::Input(reason)) => {
            tracing::warn!("{reason}");
            Ok(())
        }
        chosen => chosen.map(drop),
    }
}

/// Scores the validation graphs, finds or chooses the threshold, and records it.
///
/// # Errors
/// If a graph cannot be read, no validation graph is held out, or validation lacks what the method needs.
pub fn choose_threshold(
    model: &TrainedModel,
    scorer: &Scorer,
    store: &Arc<Store>,
    method: Threshold,
) -> Result<Validated, StageError> {
    let graphs = validation_graphs(store);
    let raw = scorer.score_store(store, &graphs)?;
    let labels = graphs.iter().map(|&graph| store.try_graph(graph).map(|view| view.attack));
    let labels = labels.collect::<Result<Vec<bool>, _>>()?;
    let held_out = held_out_of(model, store, &graphs)?;
    let trained = held_out.iter().filter(|held_out| !**held_out).count();
    let (held_out_raw, held_out_labels) = (only(&held_out, &raw), only(&held_out, &labels));
    let on_this_data = ValidationScores {
        kind: scorer.kind(),
        raw: &held_out_raw,
        labels: &held_out_labels,
        dataset: &store.manifest().dataset,
        data_digest: store.digest(),
    };
    let found = records::find(model, method, store.digest())?;
    if trained > 0 {
        warn_of_trained(model, store, trained, graphs.len(), found.is_some());
    }
    let mut recorded = match found {
        Some(recorded) => recorded,
        None if held_out_raw.is_empty() && !raw.is_empty() => return Err(no_window_is_held_out(model)),
        None => RecordedThreshold::choose(method, model, &on_this_data)?,
    };
    if scorer.features().needs_history() && recorded.short_profile.is_none() && recorded.data_digest == store.digest() {
        let seen: Vec<u64> = only(&held_out, &graphs);
        let least = short_threshold(scorer, store, &seen, &held_out_labels, method)?;
        recorded.short_profile = Some(least.max(recorded.value));
    }
    // Recorded thresholds, too: the last entry is the one used last.
    match records::record(model, &recorded) {
        // The results of a read-only run are just as valid.
        Err(error @ EvaluateError::File(_)) => tracing::warn!("{error}; continuing without recording it"),
        recorded => recorded?,
    }
    Ok(Validated { raw, labels, held_out, recorded })
}

/// The validation graphs that thresholds are chosen on: all recorded traffic, and the windows of synthetic logs that have an attack. What
/// those logs have between their attacks is a copy of recorded traffic.
pub fn validation_graphs(store: &Store) -> Vec<u64> {
    let mut graphs = store.select(Split::Validation, None);
    let copies: Vec<u64> = store.select_folder(synthetic::FOLDER, Split::Validation, Some(false));
    graphs.retain(|graph| copies.binary_search(graph).is_err());
    graphs
}

/// The threshold for validation windows that are seen with the profile of ten seconds of their log.
fn short_threshold(
    scorer: &Scorer,
    store: &Arc<Store>,
    graphs: &[u64],
    labels: &[bool],
    method: Threshold,
) -> Result<f64, StageError> {
    let assemble = AssembleOptions { short_profiles: true, ..scorer.assemble_options() };
    let raw = scorer.each_assembled(store, graphs, assemble, |batch| scorer.raw_scores(batch))?;
    let scores: Vec<f64> = raw.into_iter().map(|raw| scorer.kind().score(raw)).collect();
    threshold::choose(method, &scores, labels).map_err(StageError::Input)
}

/// For each validation graph: true if the model was not trained on any of its frames. Warns if that cannot be known.
fn held_out_of(model: &TrainedModel, store: &Store, graphs: &[u64]) -> Result<Vec<bool>, StageError> {
    if let Some(held_out) = held_out(model, store, graphs)? {
        return Ok(held_out);
    }
    tracing::warn!(
        "{} was trained on {}, too, with another split that it does not record: validation windows here ({}) may be among its \
         training windows, and the threshold chosen on them too low",
        model.name,
        model.description.dataset.name,
        cut_of(store)
    );
    Ok(vec![true; graphs.len()])
}

/// Says that the model was trained on frames of some validation windows, and what these are left out of: the choice of its threshold, or, if
/// that was recorded before, the figures of validation.
fn warn_of_trained(model: &TrainedModel, store: &Store, trained: usize, total: usize, has_threshold: bool) {
    let Some(own) = model.split else { return };
    let own = cut_flags(own.stride, own.validation_fraction, own.validation);
    let without = match has_threshold {
        true => "its validation figures are computed without them; its threshold is the recorded one",
        false => "its threshold is chosen without them",
    };
    tracing::warn!(
        "{} was trained ({own}) on frames of {trained} of the {total} validation windows ({}); {without}",
        model.name,
        cut_of(store)
    );
}

/// Flags that cut a store's dataset as it is.
fn cut_of(store: &Store) -> String {
    let options = &store.manifest().options;
    cut_flags(options.stride, options.validation_fraction, options.validation)
}

/// Flags that cut a dataset in this way.
fn cut_flags(stride: usize, validation_fraction: f64, validation: Validation) -> String {
    let rule = if validation.is_blocks() { String::new() } else { format!(" --validation {}", validation.name()) };
    format!("--stride {stride} --validation-fraction {validation_fraction}{rule}")
}

fn no_window_is_held_out(model: &TrainedModel) -> StageError {
    let own = model.split.map_or(String::new(), |split| {
        format!(" {}", cut_flags(split.stride, split.validation_fraction, split.validation))
    });
    StageError::Input(format!(
        "no threshold for {}: it was trained on frames of all validation windows; evaluate it once with{own}; the threshold \
         recorded then is used with any other stride",
        model.name
    ))
}

/// The values of the held-out graphs.
pub fn only<T: Copy>(held_out: &[bool], values: &[T]) -> Vec<T> {
    values.iter().zip(held_out).filter(|(_, held_out)| **held_out).map(|(value, _)| *value).collect()
}
