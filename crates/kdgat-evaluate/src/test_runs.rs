//! Runs for the tests.

use serde_json::{Value, json};

use super::graph_runs::RunResult;
use super::graphs::Metric;

pub fn run(distilled: bool, fold: usize, seed: u64, accuracy: f64) -> RunResult {
    let group = if distilled { "gin_student_train_kd" } else { "gin_student_train" };
    let metric = |value| Metric { name: "accuracy".to_owned(), value, interval: None };
    let mut settings = json!({ "model": "gin", "lr": 0.002 });
    if distilled {
        settings["kd_alpha"] = json!(0.5);
        settings["teacher"] = json!(format!("digest of fold {fold}"));
    }
    RunResult {
        model: format!("{group}/{}", fold + 1),
        group: group.to_owned(),
        distilled,
        parameters: 100,
        fold: format!("fold {fold} of 10"),
        seed: Some(seed),
        saw_tests: false,
        seen_graphs: 90,
        test_graphs: 10,
        settings: settings.as_object().unwrap().clone(),
        metrics: vec![metric(accuracy)],
        baseline: vec![metric(0.5 + fold as f64)],
        linear: Vec::new(),
        propagated: Vec::new(),
        drawn: Vec::new(),
        test_digest: String::new(),
    }
}

pub fn with_setting(mut run: RunResult, name: &str, value: Value) -> RunResult {
    run.settings.insert(name.to_owned(), value);
    run
}
