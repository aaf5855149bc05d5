//! The rules that `kdgat evaluate` judges beside the models of a small dataset.

use std::path::PathBuf;

use support::evaluate::{Bench, stderr};

/// Rules are judged beside models of any features, unless they are left out.
#[test]
fn rules_stand_beside_all_models() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let judge = |more: &[&str]| {
        let arguments = ["evaluate", "--data", "small", "--device", "cpu", "--resamples", "0", "--output", "judged"];
        let output = bench.kdgat(&[&arguments[..], &[run.to_str().unwrap()], more].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, stderr(&output))
    };
    let rules = || bench.rows("judged/metrics.csv").into_iter().filter(|row| row["kind"] == "rule").count();
    let (code, text, said) = judge(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        text.starts_with("best model against best rule") && text.contains("--preset gat,student,profile"),
        "{text}"
    );
    assert!(rules() >= 7, "{} rows", rules());
    let of_other_cars =
        "Cars that no model was trained on: test_02_unknown_vehicle_known_attack. With --calibrate-seconds";
    assert!(text.contains(of_other_cars), "{text}");
    let (_, text, _) = judge(&["--rules", "false", "--calibrate-seconds", "1"]);
    assert!(!text.contains("rule") && rules() == 0, "{text}");
    assert!(!text.contains("Cars that no model"), "{text}");
    let (code, text, said) = judge(&["--rules", "false", "--threshold", "0.5"]);
    assert!(code == Some(0) && !text.contains("Cars that no model"), "a calibration is refused with it: {text}{said}");

    // Their store cannot be built: a warning, or an error if the rules were asked for.
    let stores: Vec<_> =
        std::fs::read_dir(bench.path().join("stores")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let is_profile = |path: &&PathBuf| {
        std::fs::read_to_string(path.join("store.json")).is_ok_and(|text| text.contains("\"profile\""))
    };
    let of_profile = stores.iter().find(is_profile).unwrap();
    let damaged = |more: &[&str]| {
        std::fs::remove_dir_all(of_profile).unwrap();
        std::fs::write(of_profile, "not a folder").unwrap();
        judge(more)
    };
    let (code, text, said) = damaged(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("warning: no rule is judged beside the models: "), "{said}");
    assert!(!text.contains("rule"), "{text}");
    let (code, _, said) = damaged(&["--rules"]);
    assert!(code != Some(0) && said.contains("error: "), "{said}");
}

/// Rules see the same test windows beside a store with synthetic logs, of which theirs has more.
#[test]
fn synthetic_attacks_change_no_order_of_a_rule() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let judged = |more: &[&str]| -> Vec<(String, String, String, String)> {
        let arguments = ["--resamples", "0", "--output", "judged", run.to_str().unwrap()];
        bench.evaluate(&[&arguments[..], more].concat());
        let rules = bench.rows("judged/metrics.csv").into_iter().filter(|row| row["kind"] == "rule");
        let key = |row: &std::collections::HashMap<String, String>, name: &str| row[name].clone();
        rules.map(|row| (key(&row, "model"), key(&row, "folder"), key(&row, "file"), key(&row, "roc_auc"))).collect()
    };
    let plain = judged(&[]);
    assert!(plain.iter().any(|(.., roc_auc)| roc_auc.parse::<f64>().is_ok_and(|value| value > 0.5)), "{plain:?}");
    assert_eq!(judged(&["--synthetic-attacks"]), plain);
}
