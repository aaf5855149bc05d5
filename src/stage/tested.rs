//! `kdgat evaluate` on graphs and on the nodes of one large graph: every run is scored on the test set of its own division.

use std::path::PathBuf;

use serde_json::json;

use super::graph_results::{write_growth, write_results};
use super::recorded_division::recorded_split;
use super::recorded_runs::{Subject, recorded_runs};
use super::tested_autoencoders::Reconstructions;
use super::tested_graphs::TestGraphs;
use super::tested_nodes::TestNodes;
use super::tested_pretraining::PretextAnswers;
use super::tested_rows::{ModelRows, TestedRows};
use super::{EvaluateOptions, StageError};
use crate::config::{Config, DataKind};
use crate::evaluate::TrainedModel;
use crate::evaluate::graph_runs::RunResult;
use crate::evaluate::graphs::{Metric, Tested, baseline};
use crate::evaluate::molecules::DrawnGraph;
use crate::graph::Schema;

/// The items that runs of one dataset are tested on.
pub trait TestSet: Sized {
    /// The division of a run, as the run recorded it.
    type Recorded;
    /// A division into sets.
    type Split;

    /// The unit that is divided, in the plural.
    const UNIT: &'static str;
    /// The preset of a teacher.
    const PRESET: &'static str;

    /// The dataset's name.
    fn dataset(&self) -> &str;

    /// The task and its targets, the same for all runs.
    fn schema<'r>(&'r self, recorded: &'r Self::Recorded) -> &'r Schema;

    /// The columns that identify a row of `--predictions`. Reads the names of the items, which a store does not keep.
    ///
    /// # Errors
    /// A source that cannot be read.
    fn identify(&mut self) -> Result<Vec<&'static str>, StageError>;

    /// The records of a run; `None` for weights without the configuration of a run.
    ///
    /// # Errors
    /// A configuration that is damaged, or of another kind of data.
    fn records_of(&mut self, model: &TrainedModel) -> Result<Option<Self::Recorded>, StageError>;

    /// The division of a run.
    ///
    /// # Errors
    /// A model of another kind, or one that was trained on other data than there are now.
    fn split_of(&self, model: &TrainedModel, recorded: &Self::Recorded) -> Result<Self::Split, StageError>;

    /// Scores a model on its test set. `seed` draws the resamples of intervals.
    ///
    /// # Errors
    /// Weights or data that cannot be read, or too little memory.
    fn score(
        &mut self,
        model: &TrainedModel,
        recorded: &Self::Recorded,
        split: &Self::Split,
    ) -> Result<Scored, StageError>;
}

/// The measurements of a model on its test set.
pub enum Measured {
    /// Predictions of targets.
    Predicted {
        tested: Tested,
        /// The cells that identify each row of `tested`.
        places: Vec<Vec<String>>,
        /// Targets of the training items, `[items, number of targets]`, for the simplest prediction.
        known: Vec<Vec<f64>>,
    },
    /// Errors of an autoencoder.
    Reconstructed(Reconstructions),
    /// Answers of a pre-trained network.
    Answered(PretextAnswers),
}

/// The measurements of a model, and the facts beside them.
pub struct Scored {
    pub measured: Measured,
    /// Metrics besides those of the task, and those of chance for the same.
    pub more: Vec<Metric>,
    pub more_of_chance: Vec<Metric>,
    /// Metrics of a linear model and of label propagation, where there are such.
    pub linear: Vec<Metric>,
    pub propagated: Vec<Metric>,
    /// Test graphs to draw.
    pub drawn: Vec<DrawnGraph>,
    /// Training and validation items.
    pub seen: usize,
    /// Test items.
    pub count: usize,
    pub test_digest: String,
    /// The fold, or the rule of the division.
    pub fold: String,
}

/// Scores models on a dataset of graphs or on one large graph. Returns the tables and the folder of the results.
///
/// # Errors
/// Data or models that cannot be read, or that do not belong together.
pub fn evaluate_tested(config: &Config, options: &EvaluateOptions) -> Result<(String, PathBuf), StageError> {
    match config.data_kind {
        DataKind::OneGraph => evaluate(TestNodes::open(config)?, config, options),
        DataKind::Graphs | DataKind::Windows => evaluate(TestGraphs::open(config)?, config, options),
    }
}

fn evaluate<T: TestSet>(
    mut set: T,
    config: &Config,
    options: &EvaluateOptions,
) -> Result<(String, PathBuf), StageError> {
    let dataset = set.dataset().to_owned();
    let subject = Subject { dataset: &dataset, unit: T::UNIT, preset: T::PRESET };
    let runs = recorded_runs(config, options, &subject, |model| set.records_of(model))?;
    // There is at least one run.
    let schema = set.schema(&runs[0].1).clone();
    let mut predictions = match &options.predictions {
        Some(path) => Some(TestedRows::create(path, &set.identify()?, &schema)?),
        None => None,
    };
    // All are checked before the first one is scored.
    let splits = runs.iter().map(|(model, recorded)| set.split_of(model, recorded)).collect::<Result<Vec<_>, _>>()?;
    let (mut evaluated, mut grown) = (Vec::new(), Vec::new());
    for ((model, recorded), split) in runs.iter().zip(&splits) {
        eprintln!("scoring with {}", model.name);
        let mut scored = set.score(model, recorded, split)?;
        match (&mut predictions, &mut scored.measured) {
            (Some(predictions), Measured::Predicted { tested, places, .. }) => {
                let places = std::mem::take(places);
                predictions.add(ModelRows { model: &model.name, fold: &scored.fold, places, tested })?;
            }
            (Some(_), Measured::Reconstructed(_)) => {
                eprintln!("{} is an autoencoder: it has no predictions to write", model.name);
            }
            (Some(_), Measured::Answered(_)) => {
                eprintln!("{} is pre-trained: it has no predictions to write", model.name);
            }
            (None, _) => {}
        }
        if let Measured::Answered(answers) = &mut scored.measured
            && let Some(tree) = answers.grown.take()
        {
            grown.push(json!({ "model": model.name, "tree": tree }));
        }
        let saw_tests = recorded_split(&model.path)?.is_some_and(|split| split.saw_tests);
        let scored = result(model, &schema, scored, (options.resamples, config.training.seed));
        evaluated.push(RunResult { saw_tests, ..scored });
    }
    predictions.map(TestedRows::finish).transpose()?;
    let folder = options.output.clone().unwrap_or_else(|| config.output.runs_dir.join(&dataset).join("evaluation"));
    let text = write_results(&folder, &subject, schema.task, &evaluated)?;
    write_growth(&folder, &subject, schema.space.as_ref().and_then(|space| space.length_unit.as_deref()), grown)?;
    Ok((text, folder))
}

/// The metrics of a run, beside those of the simplest predictions.
fn result(model: &TrainedModel, schema: &Schema, scored: Scored, (resamples, seed): (u64, u64)) -> RunResult {
    let Scored { measured, more, more_of_chance, linear, propagated, drawn, seen, count, test_digest, fold } = scored;
    let [mut metrics, mut of_simplest] = match measured {
        Measured::Predicted { tested, known, .. } => {
            let simplest = baseline(schema, &known, &tested.targets);
            [tested.metrics(schema, resamples, seed), simplest.metrics(schema, 0, seed)]
        }
        Measured::Reconstructed(errors) => errors.metrics(resamples, seed),
        Measured::Answered(answers) => answers.metrics(resamples, seed),
    };
    metrics.extend(more);
    of_simplest.extend(more_of_chance);
    RunResult {
        model: model.name.clone(),
        group: model.group.clone(),
        distilled: model.distilled,
        parameters: model.num_parameters(),
        seed: model.seed,
        saw_tests: false,
        seen_graphs: seen,
        test_graphs: count,
        settings: model.settings.iter().cloned().collect(),
        metrics,
        baseline: of_simplest,
        linear,
        propagated,
        drawn,
        test_digest,
        fold,
    }
}
