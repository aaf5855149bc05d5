//! Checks that a run can be resumed with a configuration, before anything in its folder changes.

use serde_json::{Map, Value};

use super::StageError;
use super::sizing::Decided;
use super::training::{self, RunInputs};
use crate::config::run_settings::INITIAL_WEIGHTS;
use crate::config::{self, Config, Stage};
use crate::files;
use crate::train::run_directory::RunDirectory;

/// Checks the configuration, and returns the sizes that the run decided when it started.
///
/// # Errors
/// If other settings or data would change the losses; the message names them.
pub fn check(config: &Config, stage: Stage, now: &RunInputs, directory: &RunDirectory) -> Result<Decided, StageError> {
    let frozen = frozen(directory)?;
    let inputs = &frozen["inputs"];
    let number = |name: &str| inputs[name].as_u64();
    let is = |name: &str| inputs[name].as_bool();
    let (Some(batch_graphs), Some(recomputes), Some(captures_steps)) =
        (number("batch_graphs"), is("recomputes"), is("captures_steps"))
    else {
        return Err(StageError::Input(format!(
            "{}: no configuration of a run (its inputs lack batch_graphs, recomputes or captures_steps); start a new run without --resume",
            directory.file("config.json").display()
        )));
    };
    let batch_graphs = batch_graphs as usize;
    let decided = Decided { batch_graphs, recomputes, captures_steps };
    if inputs["identity"] == training::identity(config, stage, batch_graphs, now) {
        return Ok(decided);
    }
    let digests = [
        ("the data", &inputs["dataset"]["digest"], Some(now.dataset.digest.as_str())),
        ("the teacher", &inputs["teacher_digest"], now.teacher),
        ("the initial weights", &inputs[INITIAL_WEIGHTS], now.initial_weights.and_then(|digest| digest.as_str())),
        ("the test set", &inputs["split"]["test_digest"], now.split.and_then(|split| split["test_digest"].as_str())),
    ];
    Err(refusal(directory, &frozen, &config::freeze(config, stage.command(), &Map::new()), &digests, &[]))
}

/// The configuration that the run started with.
///
/// # Errors
/// If the file cannot be read or is damaged.
pub fn frozen(directory: &RunDirectory) -> Result<Value, StageError> {
    let path = directory.file("config.json");
    let text = std::fs::read(&path).map_err(files::failed("read", &path))?;
    serde_json::from_slice(&text).map_err(|error| {
        StageError::Input(format!(
            "{}: not a valid configuration ({error}); start a new run without --resume",
            path.display()
        ))
    })
}

/// The error for a run that cannot be resumed: names the inputs that differ, with digests then and now, and the settings that losses
/// depend on, those in `also` included.
pub fn refusal(
    directory: &RunDirectory,
    frozen: &Value,
    now: &Value,
    digests: &[(&str, &Value, Option<&str>)],
    also: &[&str],
) -> StageError {
    let path = directory.file("config.json");
    let mut reasons = Vec::new();
    for (name, found, now) in digests {
        if found.as_str() != *now {
            reasons.push(format!(
                "{name} (it was {}, now {})",
                found.as_str().unwrap_or("none"),
                now.unwrap_or("none")
            ));
        }
    }
    reasons.extend(differences(&frozen[config::CONFIG_KEY], &now[config::CONFIG_KEY], also));
    StageError::Input(format!(
        "{}: a run cannot be resumed with other settings or data: {} changed; resume it with its own settings (--config {}), or \
         start a new run without --resume",
        directory.path().display(),
        if reasons.is_empty() { "something".to_owned() } else { reasons.join(", ") },
        path.display(),
    ))
}

/// Fields of the second configuration that losses depend on, or that are in `also`, and that differ from the first, with both values.
fn differences(before: &Value, now: &Value, also: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (section, fields) in now.as_object().into_iter().flatten() {
        for (name, value) in fields.as_object().into_iter().flatten() {
            let before = &before[section][name];
            let counts = also.contains(&name.as_str()) || config::field(name).is_none_or(|field| !field.same_losses);
            if before != value && counts {
                let before =
                    if before.is_null() && !value.is_null() { "not set".to_owned() } else { before.to_string() };
                found.push(format!("{name} (it was {before}, now {value})"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_that_differ_are_named_with_both_values() {
        let before = json!({"training": {"lr": 0.1, "seed": 1}, "data": {"window": 100}});
        let now = json!({"data": {"window": 50}, "training": {"lr": 0.2, "seed": 1}});
        assert_eq!(differences(&before, &now, &[]), ["window (it was 100, now 50)", "lr (it was 0.1, now 0.2)"]);
        assert!(differences(&now, &now, &[]).is_empty());
    }
}
