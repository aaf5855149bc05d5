//! The division into sets that a model was trained with, as its run recorded it: a model of another division may have been trained on what this
//! run tests on or holds out.

use std::io;
use std::path::Path;

use super::StageError;
use super::teacher::ModelRole;
use crate::config::run_settings::SAW_TESTS;
use crate::config::{self, Config};
use crate::files;
use crate::graph::Validation;

/// The flags of the fields that decide on a graph's nodes and their division, where they do not have their defaults.
pub(super) fn division_flags(config: &Config) -> String {
    let usual = Config::default();
    let dividing = config::fields().filter(|field| field.divides);
    let flags = dividing.map(|field| (field.flag(), (field.show)(config), (field.show)(&usual)));
    flags.filter(|(_, value, usual)| value != usual).map(|(flag, value, _)| format!(" {flag} {value}")).collect()
}

/// A division of graphs or nodes as a run records it.
pub(super) struct RecordedSplit {
    /// Digest of the test set: of identifiers, targets and source rows.
    pub test_digest: String,
    /// Description of the division.
    pub origin: String,
    /// True if the run began with weights that may have seen the test set.
    pub saw_tests: bool,
}

impl RecordedSplit {
    /// The division of a run that begins with random weights.
    pub(super) fn new(test_digest: String, origin: String) -> Self {
        Self { test_digest, origin, saw_tests: false }
    }
}

/// Refuses a model that was trained on another division of the graphs or nodes (`of`) than this run's, or on other data.
pub(super) fn expect_same_division(
    model: &Path,
    role: &ModelRole,
    of: &str,
    own: &RecordedSplit,
    command: &str,
) -> Result<(), StageError> {
    let differs = |found: &RecordedSplit| found.saw_tests || found.test_digest != own.test_digest;
    let Some(found) = recorded_split(model)?.filter(differs) else { return Ok(()) };
    let (path, test_digest) = (model.display(), &own.test_digest);
    let RecordedSplit { test_digest: found_digest, origin: found_origin, saw_tests } = &found;
    if *saw_tests {
        return Err(StageError::Input(format!(
            "the {} {path} began with weights that may have seen the test {of} (--transductive); train one without them with {command}, or \
             name one with {}",
            role.name, role.flag
        )));
    }
    let differs = match *found_origin == own.origin {
        true => format!(
            "other data with the same division of the {of} ({found_origin}): the identifiers, targets or rows of the test {of} were others \
             (digest {found_digest}; this run: {test_digest})"
        ),
        false => format!(
            "another division of the {of} ({found_origin}, test {of} {found_digest}; this run: {}, {test_digest})",
            own.origin
        ),
    };
    Err(StageError::Input(format!(
        "the {} {path} was trained on {differs}, so that it may have been trained on {of} that this run tests on; train one with {command}, \
         or name one with {}",
        role.name, role.flag
    )))
}

/// The division that a model was trained with, from the `config.json` beside its weights; `None` if it records none.
pub(super) fn recorded_split(weights: &Path) -> Result<Option<RecordedSplit>, StageError> {
    let Some(config) = recorded_config(weights)? else { return Ok(None) };
    let in_section = |name: &str| config.get(name).and_then(|section| section.get("split"));
    let split = in_section("inputs").or_else(|| in_section("metrics"));
    let text = |name: &str| split.and_then(|split| split.get(name)?.as_str()).map(str::to_owned);
    let saw_tests = split.and_then(|split| split.get(SAW_TESTS)?.as_bool()).unwrap_or(false);
    let named = text("test_digest").zip(text("origin"));
    Ok(named.map(|(test_digest, origin)| RecordedSplit { test_digest, origin, saw_tests }))
}

/// The `config.json` beside a model's weights, if there is one.
fn recorded_config(weights: &Path) -> Result<Option<serde_json::Value>, StageError> {
    let path = weights.with_file_name("config.json");
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(files::failed("read", &path))?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        StageError::Input(format!(
            "{}: damaged ({error}), so nothing says which graphs the teacher beside it was not trained on; train it again",
            path.display()
        ))
    })
}

/// Rule and fraction of a CAN model's validation data, from the `config.json` beside its weights; `None` if it records none.
pub(super) fn recorded_validation(weights: &Path) -> Result<Option<(Validation, f64)>, StageError> {
    let Some(config) = recorded_config(weights)? else { return Ok(None) };
    let frozen = config.get("config").and_then(|config| config.get("data"));
    let Some(data) = frozen.or_else(|| config.get("metrics")) else { return Ok(None) };
    let rule = data.get("validation").and_then(|rule| rule.as_str()).and_then(Validation::parse);
    Ok(rule.zip(data.get("validation_fraction").and_then(|fraction| fraction.as_f64())))
}
