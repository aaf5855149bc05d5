//! `kdgat evaluate` on students with and without their teacher.

use serde_json::Value;
use support::evaluate::{Bench, KNOWN, UNKNOWN, stderr};

/// Students with their teacher are compared with the same students alone, seed by seed, on the console, in metrics.json and in the report.
#[test]
fn what_a_teacher_adds_to_its_students() {
    let bench = Bench::new();
    let train = |arguments: &[&str]| {
        let common = ["classifier", "--data", "small", "--device", "cpu", "--threads", "1", "--max-epochs", "1"];
        let output = bench.kdgat(&[&common[..], arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
    };
    train(&["--preset", "gat,teacher", "--hidden", "4", "--heads", "2"]);
    for seed in ["1", "2"] {
        train(&["--preset", "gat,student", "--hidden", "2", "--seed", seed]);
        train(&["--preset", "gat,student", "--hidden", "2", "--seed", seed, "--use-kd", "false"]);
    }
    // Another student has no counterpart without a teacher.
    train(&["--preset", "gat,student", "--hidden", "3"]);
    let text = bench.evaluate(&["--resamples", "50"]);
    let table = text.split("the same students with their teacher and alone, seed by seed").nth(1).expect(&text);
    let students: Vec<&str> = table.lines().filter(|line| line.contains(", 2 seeds, ")).collect();
    assert_eq!(students.len(), 2, "a line for each of two folders: {table}");
    assert!(students.iter().all(|line| line.starts_with("gat_student_normal_kd (hidden [2])")), "{table}");
    let rows = |metric: &str| table.lines().filter(|line| line.trim_start().starts_with(metric)).count();
    assert_eq!([rows("F1 "), rows("ROC AUC "), rows("recall at 1 % FPR ")], [2; 3], "{table}");

    let metrics: Value =
        serde_json::from_slice(&std::fs::read(bench.path().join("runs/small/evaluation/metrics.json")).unwrap())
            .unwrap();
    let teachers = metrics["teachers"].as_array().unwrap();
    assert_eq!(teachers.len(), 6);
    // The difference is that of the models' own rows.
    let mean = |group: &str, folder: &str| {
        let of_group = |model: &&Value| model["group"] == group && [1, 2].map(Value::from).contains(&model["seed"]);
        let row = |model: &Value| {
            let rows = model["results"].as_array().unwrap();
            let row = rows.iter().find(|row| row["folder"] == folder && row["scope"] == "folder").unwrap();
            row["metrics"]["roc_auc"]["value"].as_f64().unwrap()
        };
        let values: Vec<f64> = metrics["models"].as_array().unwrap().iter().filter(of_group).map(row).collect();
        assert_eq!(values.len(), 2, "{group}");
        values.iter().sum::<f64>() / 2.0
    };
    for folder in [KNOWN, UNKNOWN] {
        let of_folder = |worth: &&Value| worth["folder"] == folder && worth["metric"] == "roc_auc";
        let worth = teachers.iter().find(of_folder).unwrap();
        let expected = mean("gat_student_normal_kd", folder) - mean("gat_student_normal", folder);
        assert!((worth["difference"].as_f64().unwrap() - expected).abs() < 1e-12, "{worth}, expected {expected}");
        assert_eq!(worth["seeds"], 2);
    }

    let report = bench.kdgat(&["report", "runs/small/evaluation", "--output", "report.html"]);
    assert!(report.status.success(), "{}", stderr(&report));
    let page = std::fs::read_to_string(bench.path().join("report.html")).unwrap();
    assert!(page.contains("ROC AUC with the teacher better on "), "the report's findings");
}

/// Students of the same settings that learned from different teachers are compared teacher by teacher and over all of them.
#[test]
fn several_teachers_are_compared_together_as_well() {
    let bench = Bench::new();
    let train = |folder: &str, seed: &str, arguments: &[&str]| {
        let run = format!("{folder}/{seed}");
        let common = ["classifier", "--data", "small", "--device", "cpu", "--threads", "1", "--max-epochs", "1"];
        let output =
            bench.kdgat(&[&common[..], &["--hidden", "2", "--seed", seed, "--run-dir", &run], arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
    };
    let student = ["--preset", "gat,student"];
    let alone = [&student[..], &["--use-kd", "false"]].concat();
    for seed in ["1", "2", "11", "12"] {
        train("alone", seed, &alone);
    }
    // Of the second teacher, only one of the students was trained.
    for (folder, teacher, seed) in [("a/first", "11", "1"), ("a/first", "11", "2"), ("b/first", "12", "1")] {
        let teacher = format!("alone/{teacher}");
        train(folder, seed, &[&student[..], &["--teacher-path", &teacher]].concat());
    }
    let models: Vec<String> = ["alone/1", "alone/2", "a/first/1", "a/first/2", "b/first/1"].map(str::to_owned).to_vec();
    let arguments: Vec<&str> = models.iter().map(String::as_str).chain(["--resamples", "50"]).collect();
    let text = bench.evaluate(&arguments);
    let table = text.split("with their teacher and alone, seed by seed").nth(1).expect(&text);
    let lines = |part: &str| table.lines().filter(|line| line.contains(part)).count();
    assert_eq!((lines("first (teacher "), lines("first (2 teachers), 1 seed, ")), (4, 2), "{table}");

    let metrics: Value =
        serde_json::from_slice(&std::fs::read(bench.path().join("runs/small/evaluation/metrics.json")).unwrap())
            .unwrap();
    let teachers = metrics["teachers"].as_array().unwrap();
    assert_eq!(teachers.len(), 18, "three comparisons, two folders, three metrics");
    let roc_auc = |model: &str| {
        let models = metrics["models"].as_array().unwrap();
        let model = models.iter().find(|of| of["paths"].to_string().contains(model)).expect(model);
        let rows = model["results"].as_array().unwrap();
        let row = rows.iter().find(|row| row["folder"] == KNOWN && row["scope"] == "folder").unwrap();
        row["metrics"]["roc_auc"]["value"].as_f64().unwrap()
    };
    let of_both = |worth: &&Value| worth["folder"] == KNOWN && worth["metric"] == "roc_auc" && worth["teachers"] == 2;
    let worth = teachers.iter().find(of_both).unwrap();
    let expected = (roc_auc("a/first/1") + roc_auc("b/first/1")) / 2.0 - roc_auc("alone/1");
    assert!((worth["difference"].as_f64().unwrap() - expected).abs() < 1e-12, "{worth}, expected {expected}");
    assert_eq!(worth["seeds"], 1);
}
