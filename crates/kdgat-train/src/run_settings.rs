//! Settings of a run that influence its losses.

use std::path::Path;

use serde_json::Value;

/// Fields of `[training]` that do not influence the result, and the seed.
const BESIDE_THE_POINT: [&str; 7] =
    ["seed", "threads", "num_workers", "prefetch_batches", "device", "log_every_n_steps", "shuffle_buffer"];

/// Setting with the digest of a student's teacher, or of all its teachers together.
pub const TEACHER: &str = "teacher";

/// Digests in `inputs` of the models that a run learned from, with their names as settings.
const LEARNED_FROM: [(&str, &str); 2] = [("teacher_digest", TEACHER), ("difficulty_model_digest", "difficulty_model")];
/// Beginning of the settings that only a distilled student has.
const KD: &str = "kd_";
/// Field with the paths of further teachers, of which the number is a setting: their weights are part of the teacher's digest.
const MORE_TEACHERS: &str = "more_teachers";
/// Setting with the name and digest of a run's data.
const DATA: &str = "data";
/// Settings on which that digest depends.
const CUT: [&str; 6] = ["window", "stride", "features", "validation_fraction", "keep_duplicates", "validation"];
/// Further settings of the data.
const SYNTHETIC: &str = "synthetic_attacks";
/// Characters of a digest that identify it.
const DIGEST_CHARACTERS: usize = 12;

/// A setting's name and value.
pub type Setting = (String, Value);

/// Reads the settings of a run's `config.json` that influence its losses, and identities of its data and teacher: runs with equal
/// settings differ at most by their seed.
pub fn settings(config: &Value) -> Vec<Setting> {
    let sections = &config["config"];
    let mut found = Vec::new();
    let mut add = |section: &str, counts: &dyn Fn(&str) -> bool| {
        let fields = sections[section].as_object().into_iter().flatten();
        found.extend(fields.filter(|(name, _)| counts(name)).map(|(name, value)| (name.clone(), value.clone())));
    };
    add("data", &|name| CUT.contains(&name) || name == SYNTHETIC);
    add("model", &|name| name != "attention");
    add("training", &|name| !BESIDE_THE_POINT.contains(&name));
    if sections["distillation"]["use_kd"] == true {
        add("distillation", &|name| name.starts_with(KD));
    }
    if config["command"] == "curriculum" {
        add("curriculum", &|name| !matches!(name, "difficulty_chunk" | "difficulty_model"));
    }
    if config["inputs"]["split"]["nodes"].is_array() {
        // Each seed divides the nodes of one large graph anew; such runs repeat each other.
        add("nodes", &|name| name != "split_seed");
    } else if config["command"] == "train" || config["inputs"]["split"]["graphs"].is_array() {
        // Runs on the folds of one division repeat each other.
        add("graphs", &|name| !matches!(name, "fold" | "folds_file"));
        found.extend(of_graph_curriculum(sections));
        let file = sections["graphs"]["folds_file"].as_str().and_then(|file| Path::new(file).file_name());
        found.extend(file.map(|name| ("folds_file".to_owned(), Value::from(name.to_string_lossy()))));
    }
    let more = sections["distillation"][MORE_TEACHERS].as_str();
    found.extend(more.map(|paths| ("kd_teachers".to_owned(), (2 + paths.matches(',').count()).into())));
    let inputs = &config["inputs"];
    let dataset = &inputs["dataset"];
    if let (Some(name), Some(digest)) = (dataset["name"].as_str(), dataset["digest"].as_str()) {
        found.push((DATA.to_owned(), Value::from(format!("{name} {}", short(digest)))));
    }
    for (input, name) in LEARNED_FROM {
        found.extend(inputs[input].as_str().map(|digest| (name.to_owned(), Value::from(short(digest)))));
    }
    found
}

/// The settings of a curriculum on a dataset of graphs, if there is one.
fn of_graph_curriculum(sections: &Value) -> Vec<Setting> {
    let fields = &sections["curriculum"];
    let kind = &fields["curriculum"];
    if !fields["curriculum_start_share"].is_number() || kind == "none" {
        return vec![("curriculum".to_owned(), "none".into())];
    }
    let mut names = vec!["curriculum", "curriculum_start_share", "curriculum_epochs"];
    if kind == "difficulty" {
        names.push("difficulty_percentile");
    }
    if kind != "random" {
        names.push("difficulty_cache_update");
    }
    let mut found: Vec<Setting> = names.into_iter().map(|name| (name.to_owned(), fields[name].clone())).collect();
    if kind != "random" {
        let of = match fields["difficulty_source"].as_str() {
            Some(source @ ("student" | "size")) => source,
            _ if fields["difficulty_model"].is_string() => "model",
            _ if sections["distillation"]["use_kd"] == true => "teacher",
            _ => "student",
        };
        found.push(("difficulty".to_owned(), of.into()));
    }
    found
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
    name.starts_with(KD) || is_learned_from(name)
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
    if names.iter().any(|name| CUT.contains(&name.as_str())) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn seeds_and_paths_are_not_settings() {
        let config = |seed: u64, lr: f64, alpha: f64, use_kd: bool| {
            json!({ "command": "classifier", "config": {
                "training": { "seed": seed, "threads": seed, "lr": lr },
                "distillation": { "use_kd": use_kd, "kd_alpha": alpha, "teachers_dir": seed.to_string() },
                "curriculum": { "curriculum_end_ratio": seed },
            }})
        };
        assert_eq!(settings(&config(1, 0.1, 0.5, true)), settings(&config(2, 0.1, 0.5, true)));
        assert_eq!(settings(&config(1, 0.1, 0.5, false)), settings(&config(1, 0.1, 0.7, false)));
        let [left, right] = [0.5, 0.7].map(|alpha| settings(&config(1, alpha / 5.0, alpha, true)));
        let names = distinguishing(&[&left, &right]);
        assert_eq!(describe(&right, &names), "lr 0.13999999999999999, kd_alpha 0.7");
        let [stopped, whole] = [false, true].map(|finished| of_run(&config(1, 0.1, 0.5, true), finished, ""));
        assert_eq!(describe(&stopped, &distinguishing(&[&stopped, &whole])), "finished false");
        let unknown = |digest: &str| of_run(&Value::Null, true, digest);
        assert_eq!(unknown("0123456789abcdef"), unknown("0123456789ab"));
        assert_ne!(unknown("0123456789abcdef"), unknown("1123456789abcdef"));
    }

    #[test]
    fn folds_are_repetitions_and_other_pooling_is_not() {
        let config = |fold: u64, pooling: &str| {
            settings(
                &json!({ "command": "train", "config": { "graphs": { "folds": 10, "fold": fold, "pooling": pooling } } }),
            )
        };
        let one = config(0, "sum");
        assert_eq!(one, config(1, "sum"));
        let other = config(0, "mean");
        assert_eq!(describe(&other, &distinguishing(&[&one, &other])), "pooling mean");
    }

    #[test]
    fn a_curriculum_of_graphs_is_a_setting() {
        let config =
            |curriculum: Value| settings(&json!({ "command": "train", "config": { "curriculum": curriculum } }));
        // All runs have the field `curriculum`, which means nothing without a share.
        let without = config(json!({ "curriculum": "difficulty", "curriculum_end_ratio": 10.0 }));
        assert_eq!(without, config(json!({ "curriculum": "difficulty", "curriculum_start_share": null })));
        let with = |share: f64, chunk: u64| {
            config(json!({
                "curriculum": "easiest", "curriculum_end_ratio": 10.0, "curriculum_start_share": share, "difficulty_chunk": chunk
            }))
        };
        assert_eq!(with(0.5, 1), with(0.5, 2));
        let told = |one: &[Setting], other: &[Setting]| describe(other, &distinguishing(&[one, other]));
        assert_eq!(told(&without, &with(0.5, 1)), "curriculum easiest");
        assert_eq!(told(&with(0.2, 1), &with(0.5, 1)), "curriculum_start_share 0.5");
        let sized =
            config(json!({ "curriculum": "easiest", "curriculum_start_share": 0.5, "difficulty_source": "size" }));
        assert_eq!(told(&with(0.5, 1), &sized), "difficulty size");
    }

    #[test]
    fn divisions_of_nodes_are_repetitions_and_other_hidden_shares_are_not() {
        let config = |split_seed: u64, hidden: f64| {
            let nodes = json!({ "split_seed": split_seed, "hidden_fraction": hidden });
            settings(
                &json!({ "command": "train", "config": { "nodes": nodes }, "inputs": { "split": { "nodes": [1, 1, 1, 0] } } }),
            )
        };
        let one = config(0, 0.0);
        assert_eq!(one, config(1, 0.0));
        let other = config(0, 0.2);
        assert_eq!(describe(&other, &distinguishing(&[&one, &other])), "hidden_fraction 0.2");
        // The number of further teachers is a setting, not their paths.
        let taught = |paths: &str| {
            let config = json!({ "nodes": { "hidden_fraction": 0.0 }, "distillation": { "use_kd": true, "more_teachers": paths } });
            settings(&json!({ "command": "train", "config": config, "inputs": { "split": { "nodes": [1, 1, 1, 0] } } }))
        };
        assert_eq!(taught("runs/a,runs/b"), taught("runs/c,runs/d"));
        let (two, three) = (taught("runs/a"), taught("runs/a,runs/b"));
        assert_eq!(describe(&three, &distinguishing(&[&two, &three])), "kd_teachers 3");
    }

    /// Runs of other data, or with another teacher, are not repetitions.
    #[test]
    fn data_and_teacher_are_settings() {
        let config = |seed: u64, stride: u64, [data, teacher, scorer]: [&str; 3]| {
            let inputs = json!({
                "dataset": { "name": "sim", "digest": format!("{data}23456789abcdef") },
                "teacher_digest": format!("{teacher}23456789abcdef"),
                "difficulty_model_digest": format!("{scorer}23456789abcdef"),
                "batch_graphs": seed,
            });
            let data = json!({ "stride": stride, "stores_dir": seed.to_string() });
            settings(&json!({ "command": "curriculum", "config": { "data": data }, "inputs": inputs }))
        };
        let one = config(1, 100, ["a", "b", "c"]);
        assert_eq!(one, config(2, 100, ["a", "b", "c"]));
        let told = |other: Vec<Setting>| describe(&other, &distinguishing(&[&one, &other]));
        assert_eq!(told(config(1, 100, ["d", "b", "c"])), "data sim d23456789abc");
        assert_eq!(told(config(1, 100, ["a", "d", "c"])), "teacher d23456789abc");
        assert_eq!(told(config(1, 100, ["a", "b", "d"])), "difficulty_model d23456789abc");
        assert_eq!(told(config(1, 50, ["d", "b", "c"])), "stride 50", "another stride has another digest");
    }
}
