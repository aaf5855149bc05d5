//! The runs that `kdgat evaluate` scores on graphs or nodes, and what each records about its data.

use std::fs;
use std::io;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::evaluated_models::read_each_once;
use super::{EvaluateOptions, StageError};
use crate::config::Config;
use crate::evaluate::{TrainedModel, models};
use crate::files;

/// The subject of an evaluation.
pub struct Subject<'a> {
    pub dataset: &'a str,
    /// The unit that is divided into training and test sets, in the plural.
    pub unit: &'a str,
    /// The preset of a teacher for it.
    pub preset: &'a str,
}

/// Finds the named models, or all of the dataset, each with its records as `records_of` reads them; `None` for weights without any.
///
/// # Errors
/// No finished run (the result has at least one), or a named model without records.
pub fn recorded_runs<R>(
    config: &Config,
    options: &EvaluateOptions,
    subject: &Subject,
    mut records_of: impl FnMut(&TrainedModel) -> Result<Option<R>, StageError>,
) -> Result<Vec<(TrainedModel, R)>, StageError> {
    let Subject { dataset, unit, preset } = subject;
    let found = match options.runs.as_slice() {
        [] => models::all_of_dataset(&config.output.runs_dir, &config.distillation.teachers_dir, dataset)?,
        runs => read_each_once(runs)?,
    };
    let mut runs = Vec::new();
    for model in found {
        match records_of(&model)? {
            Some(recorded) => runs.push((model, recorded)),
            // A registered teacher is the copy of a run, and records no division.
            None if options.runs.is_empty() => {}
            None => {
                return Err(StageError::Input(format!(
                    "{} does not record how its {unit} were divided, so nothing says which are for testing; name the folder of the \
                     run that it comes from",
                    model.name
                )));
            }
        }
    }
    if runs.is_empty() {
        return Err(StageError::Input(format!(
            "no finished run of dataset {dataset} below {}; train one with `kdgat train --preset {preset},teacher`, or name a run's folder",
            config.output.runs_dir.display()
        )));
    }
    Ok(runs)
}

/// The file of a run that records its division: the configuration it started with.
#[derive(Deserialize)]
struct Frozen<S> {
    config: Option<S>,
}

/// Sections of the configuration that a run started with; `None` for weights without the configuration of a run.
///
/// # Errors
/// A file that cannot be read, or that has no such sections.
pub fn sections_of<S: DeserializeOwned>(model: &TrainedModel) -> Result<Option<S>, StageError> {
    let path = model.folder.join("config.json");
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(files::failed("read", &path))?,
    };
    let frozen: Frozen<S> = serde_json::from_slice(&text).map_err(|error| {
        StageError::Input(format!(
            "{}: not the configuration of a run of `kdgat train` on this kind of data ({error}); train it again",
            path.display()
        ))
    })?;
    Ok(frozen.config)
}
