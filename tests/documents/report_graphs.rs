//! `kdgat report` on runs of `kdgat train`: tables and charts of a dataset of graphs, and whether a teacher helps its student.

use std::fmt::Write;
use std::fs;
use std::sync::OnceLock;

use crate::pages::{look, report};
use support::stage::Workplace;

const RUNS: &str = "runs/shapes";
const SMALL: [&str; 8] = ["--data", "shapes", "--folds", "4", "--hidden", "8", "--layers", "2"];

/// Rings and stars as tables.
fn write_shapes(place: &Workplace) {
    let (mut graphs, mut nodes, mut edges) =
        ("graph_id,y\n".to_owned(), "graph_id,node_id,x_a\n".to_owned(), "graph_id,source,target\n".to_owned());
    for graph in 0..40 {
        let (count, is_ring) = (4 + graph % 5, graph % 2 == 0);
        let _ = writeln!(graphs, "{graph},{}", if is_ring { "ring" } else { "star" });
        for node in 0..count {
            let _ = writeln!(nodes, "{graph},{node},{}", (3 * node + graph) % 7);
            let other = if is_ring { (node + 1) % count } else { 0 };
            if other != node {
                let _ = writeln!(edges, "{graph},{node},{other}");
            }
        }
    }
    let folder = place.path("shapes");
    fs::create_dir(&folder).unwrap();
    for (name, text) in [("graphs.csv", graphs), ("nodes.csv", nodes), ("edges.csv", edges)] {
        fs::write(folder.join(name), text).unwrap();
    }
    fs::write(folder.join("kdgat-graphs.toml"), "directed = false\n").unwrap();
}

/// A teacher, a student alone and the same student with the teacher on two folds, a student without a counterpart, and their
/// evaluation; trained once for all tests.
fn trained() -> &'static Workplace {
    static TRAINED: OnceLock<Workplace> = OnceLock::new();
    TRAINED.get_or_init(|| {
        let place = Workplace::new();
        write_shapes(&place);
        let train = |fold: &str, preset: &str, more: &[&str]| {
            let arguments = ["train", "--preset", preset, "--fold", fold, "--max-epochs", "3"];
            place.run(&[&arguments[..], &SMALL, more].concat());
        };
        for fold in ["0", "1"] {
            train(fold, "gin,teacher", &[]);
            train(fold, "gin,student", &["--use-kd", "false"]);
            train(fold, "gin,student", &["--offload-teacher"]);
        }
        train("1", "mlp,student", &[]);
        place.run(&["evaluate", "--data", "shapes", "--resamples", "20"]);
        place
    })
}

fn charts(html: &str) -> Vec<&str> {
    html.split("<figure id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn the_report_of_a_dataset_of_graphs_has_its_tables_and_its_verdict() {
    let html = report(trained(), &[RUNS], "all.html");
    let findings = html.split("<ul>").nth(1).and_then(|rest| rest.split("</ul>").next()).unwrap();
    let begin = "<li>gin_student_train_kd on shapes: accuracy ";
    assert!(findings.trim_start().starts_with(begin) && findings.contains(") over 2 folds: "), "{findings}");
    for chart in
        ["graph-scores-shapes", "distillation-shapes", "comparison-shapes-graph-networks", "losses-", "teacher-"]
    {
        assert!(charts(&html).iter().any(|found| found.starts_with(chart)), "no chart {chart}: {:?}", charts(&html));
    }
    for title in ["Test results on shapes", "Student with teacher − student alone", "Runs on their test graphs"] {
        assert!(html.contains(&format!("<h3>{title}</h3>")), "no table {title}");
    }
    for words in ["most frequent or mean", "gin_student_train/2, fold 1 of 4</h2>", ">fold 0 of 4<"] {
        assert!(html.contains(words), "nothing says {words}");
    }
    // Each fold has its own teacher, and is no other kind of run.
    assert!(!html.contains("KD, teacher"), "folds are told apart by their teachers");
    for words in ["false alarm", "attack", "precision\u{2013}recall", "trade-off"] {
        assert!(!html.contains(words), "{words} does not apply");
    }
}

#[test]
fn the_difference_is_the_mean_over_the_folds() {
    let found = trained().json(&format!("{RUNS}/evaluation/graph_metrics.json"));
    let of_group = |group: &str| -> Vec<f64> {
        let models = found["models"].as_array().unwrap().iter().filter(|model| model["group"] == group);
        models.map(|model| model["metrics"][0]["value"].as_f64().unwrap()).collect()
    };
    let (distilled, alone) = (of_group("gin_student_train_kd"), of_group("gin_student_train"));
    assert_eq!((distilled.len(), alone.len()), (2, 2));
    let expected = (distilled.iter().sum::<f64>() - alone.iter().sum::<f64>()) / 2.0;
    let comparisons = found["comparisons"].as_array().unwrap();
    let names: Vec<&str> = comparisons.iter().map(|one| one["metric"].as_str().unwrap()).collect();
    assert_eq!(names, ["accuracy", "macro_f1", "roc_auc"], "the other student has no counterpart");
    assert!((comparisons[0]["difference"].as_f64().unwrap() - expected).abs() < 1e-9, "{}", comparisons[0]);
    let [low, high] = [0, 1].map(|end| comparisons[0]["interval"][end].as_f64().unwrap());
    assert_eq!(comparisons[0]["verdict"] == "no_difference", low <= 0.0 && high >= 0.0);
    assert_eq!((found["groups"].as_array().unwrap().len(), found["models"][0]["seen_graphs"].as_u64()), (4, Some(30)));
}

#[test]
fn a_run_is_shown_alone_and_without_an_evaluation() {
    let run = format!("{RUNS}/gin_student_train_kd/1");
    let html = report(trained(), &[&run], "one.html");
    assert!(
        !html.contains("gin_teacher_train/") && html.contains("Not shown: what a teacher adds to a student on shapes")
    );
    let evaluation = report(trained(), &[&format!("{RUNS}/evaluation")], "evaluation.html");
    assert_eq!(charts(&evaluation), ["graph-scores-shapes", "distillation-shapes"]);
    let place = Workplace::new();
    fs::create_dir(place.path("copied")).unwrap();
    for file in ["metrics.csv", "config.json"] {
        fs::copy(trained().path(&run).join(file), place.path("copied").join(file)).unwrap();
    }
    let html = report(&place, &["copied"], "copied.html");
    assert!(html.contains("test graphs of their folds") && !html.contains("attack"), "how to evaluate is not said");
}

#[test]
fn a_browser_sees_every_chart() {
    let html = report(trained(), &[RUNS], "browser.html");
    for width in [1280, 500] {
        let Some(looked) = look(&trained().path("browser.html"), width) else { return };
        assert!(looked.console.is_empty(), "{:?}", looked.console);
        let seen = looked.found["charts"].as_array().unwrap();
        assert_eq!(seen.len(), charts(&html).len());
        for chart in seen {
            assert!(chart["shapes"].as_f64().unwrap() >= 2.0, "{chart} is empty");
            assert!(chart["cut"].as_array().unwrap().is_empty(), "texts are cut off in {chart}");
        }
        assert!(looked.found["page"].as_f64() <= looked.found["window"].as_f64(), "the page is wider than {width}");
    }
    let Some(looked) = look(&trained().path("browser.html"), 1200) else { return };
    assert_eq!(looked.found["tables"], serde_json::json!([]), "tables are cut off");
}
