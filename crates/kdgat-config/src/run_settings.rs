//! Settings of a run that influence its losses.

use std::path::Path;

use serde_json::Value;

use super::check::Stage;
use super::data_kind::DataKind;
use super::fields::Config;
use super::layer::{field, fields};
use super::rules::DISTILS;

/// Setting with the digest of a student's teacher, or of all its teachers together.
pub const TEACHER: &str = "teacher";

/// Digests in `inputs` of the models that a run learned from, with their names as settings.
const LEARNED_FROM: [(&str, &str); 3] =
    [("teacher_digest", TEACHER), ("difficulty_model_digest", "difficulty_model"), (INITIAL_WEIGHTS, INITIAL_WEIGHTS)];
/// Key among the inputs of a run, and setting, of the digest of the weights that it began with.
pub const INITIAL_WEIGHTS: &str = "initial_weights";
/// Key among the inputs of a run, and setting, of the kind of model whose weights it began with.
pub const BEGINS_WITH: &str = "begins_with";
/// Key in the `split` among the inputs of a run, and setting: true for a run that may have seen its test items.
pub const SAW_TESTS: &str = "saw_tests";
/// Field that says whether there is a teacher, as its digest does.
const USE_KD: &str = "use_kd";
/// Setting with the number of teachers, if there are several: their weights are part of the teacher's digest.
const TEACHERS: &str = "kd_teachers";
/// Setting with the name and digest of a run's data.
const DATA: &str = "data";
/// Field of the data on which that digest does not depend.
const SYNTHETIC: &str = "synthetic_attacks";
/// Characters of a digest that identify it.
const DIGEST_CHARACTERS: usize = 12;

/// A setting's name and value.
pub type Setting = (String, Value);

/// Reads the settings of a run's `config.json` that influence its losses, and identities of its data and teacher: runs with equal
/// settings differ at most by their seed, or by the fold that they test on.
pub fn settings(recorded: &Value) -> Vec<Setting> {
    let mut found = of_fields(recorded).unwrap_or_default();
    let inputs = &recorded["inputs"];
    let dataset = &inputs["dataset"];
    if let (Some(name), Some(digest)) = (dataset["name"].as_str(), dataset["digest"].as_str()) {
        found.push((DATA.to_owned(), Value::from(format!("{name} {}", short(digest)))));
    }
    found.extend(inputs[BEGINS_WITH].as_str().map(|kind| (BEGINS_WITH.to_owned(), Value::from(kind))));
    if inputs["split"][SAW_TESTS] == true {
        found.push((SAW_TESTS.to_owned(), Value::Bool(true)));
    }
    for (input, name) in LEARNED_FROM {
        found.extend(inputs[input].as_str().map(|digest| (name.to_owned(), Value::from(short(digest)))));
    }
    found
}

/// The fields that the run's stage read and its losses depend on; `None` if the file has no configuration of this version.
fn of_fields(recorded: &Value) -> Option<Vec<Setting>> {
    let stage = Stage::of_command(recorded["command"].as_str()?)?;
    let mut config: Config = serde_json::from_value(recorded.get("config")?.clone()).ok()?;
    let split = &recorded["inputs"]["split"];
    config.data_kind = match stage {
        _ if split["nodes"].is_array() => DataKind::OneGraph,
        _ if split["graphs"].is_array() || stage == Stage::Train => DataKind::Graphs,
        _ => DataKind::Windows,
    };
    // Digests say more than these two.
    let has_a_digest = |name: &str| name == USE_KD || is_learned_from(name);
    let counts = |field: &&super::Field| !field.same_losses && !field.repeats && !has_a_digest(field.name);
    let read = fields().filter(counts).filter(|field| field.unread(&config, stage).is_none());
    let value = |field: &super::Field| {
        let recorded = recorded["config"][field.section.name].get(field.name).cloned();
        recorded.unwrap_or_else(|| Value::from((field.show)(&config)))
    };
    let mut found: Vec<Setting> = read.map(|field| (field.name.to_owned(), value(field))).collect();
    found.push(("batch_size".to_owned(), config.training.batch_size.into()));
    if stage == Stage::Train && !found.iter().any(|(name, _)| name == "curriculum") {
        found.push(("curriculum".to_owned(), "none".into()));
    }
    let file = config.graphs.folds_file.as_deref().and_then(Path::file_name);
    found.extend(file.map(|name| ("folds_file".to_owned(), Value::from(name.to_string_lossy()))));
    let more = config.distillation.more_teachers.as_ref().filter(|_| config.distillation.use_kd);
    found.extend(more.map(|paths| (TEACHERS.to_owned(), (1 + paths.0.len()).into())));
    Some(found)
}

fn short(digest: &str) -> &str {
    digest.get(..DIGEST_CHARACTERS).unwrap_or(digest)
}

/// Returns [`settings`] and whether the run is finished: a stopped run is no repetition of a finished one. If `config` has no
/// configuration of a run, the weights stand for it: a model whose settings are unknown is no repetition of another.
pub fn of_run(config: &Value, finished: bool, weights_digest: &str) -> Vec<Setting> {
    let mut found = settings(config);
    match found.is_empty() {
        true => found.push(("weights".to_owned(), Value::from(short(weights_digest)))),
        false => found.push(("finished".to_owned(), Value::Bool(finished))),
    }
    found
}

/// True for the settings that a distilled student has beyond those of the same student alone: the fields of distillation, and the digests
/// of the models that it learned from.
pub fn is_of_teacher(name: &str) -> bool {
    let distils = || field(name).is_some_and(|field| field.rules.iter().any(|rule| std::ptr::eq(*rule, &DISTILS)));
    name == TEACHERS || is_learned_from(name) || distils()
}

/// True for the digests of the models that a run learned from.
pub fn is_learned_from(name: &str) -> bool {
    LEARNED_FROM.iter().any(|(_, setting)| name == *setting)
}

/// Names of the settings that differ between `runs`, without the data if it was only cut differently.
pub fn distinguishing(runs: &[&[Setting]]) -> Vec<String> {
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let differs = |(name, value): &&Setting| {
        others.iter().any(|run| run.iter().find(|(other, _)| other == name).is_none_or(|(_, other)| other != value))
    };
    let mut names: Vec<String> = first.iter().filter(differs).map(|(name, _)| name.clone()).collect();
    let cuts =
        |name: &str| ![DATA, SYNTHETIC].contains(&name) && field(name).is_some_and(|field| field.section.name == DATA);
    if names.iter().any(|name| cuts(name)) {
        names.retain(|name| name != DATA);
    }
    names
}

/// Formats the named settings, for example `lr 0.02, task_loss focal`.
pub fn describe(settings: &[Setting], names: &[String]) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let named = settings.iter().filter(|(name, _)| names.contains(name));
    named.map(|(name, value)| format!("{name} {}", text(value))).collect::<Vec<_>>().join(", ")
}
