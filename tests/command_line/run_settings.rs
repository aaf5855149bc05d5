//! Settings of runs: those that tell runs apart in tables, and those by which runs only repeat each other.

use kdgat::config::run_settings::{Setting, describe, distinguishing, of_run, settings};
use serde_json::{Value, json};

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
    let config = |curriculum: Value| settings(&json!({ "command": "train", "config": { "curriculum": curriculum } }));
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
    let sized = config(json!({ "curriculum": "easiest", "curriculum_start_share": 0.5, "difficulty_source": "size" }));
    assert_eq!(told(&with(0.5, 1), &sized), "difficulty_source size");
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
        let config =
            json!({ "nodes": { "hidden_fraction": 0.0 }, "distillation": { "use_kd": true, "more_teachers": paths } });
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
