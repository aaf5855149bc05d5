//! `kdgat pipeline` on a small dataset: planned, killed and resumed, skipped if nothing has changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::cli::Workplace;
use support::stops::KillLoop;

/// Networks and trainings small enough for a test.
const SMALL: &[&str] = &[
    "vgae-teacher.hidden=24,12,8",
    "vgae-teacher.latent=8",
    "vgae-teacher.embedding=4",
    "vgae-student.hidden=8,8,4",
    "vgae-student.latent=4",
    "vgae-student.embedding=2",
    "gat-teacher.hidden=12",
    "gat-teacher.heads=2",
    "gat-student.hidden=8",
    "gat-student.heads=2",
    "fusion-teacher.hidden=32,32",
    "fusion-student.hidden=16",
    "max_epochs=6",
    "threads=1",
];

fn pipeline(more: &[&'static str]) -> Vec<&'static str> {
    let changes = SMALL.iter().flat_map(|change| ["--set", *change]);
    ["pipeline"].into_iter().chain(changes).chain(more.iter().copied()).collect()
}

/// The only folder in `parent`.
fn only_folder(parent: &Path) -> PathBuf {
    let entries: Vec<PathBuf> = std::fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].clone()
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Weight digest of every training step, and F1 of all rows of the evaluation and of the fusions.
fn results(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder.join("tasks")).unwrap() {
        let task = entry.unwrap().path();
        let name = task.file_name().unwrap().to_string_lossy().into_owned();
        let run = task.join("run");
        if run.join("summary.json").exists() {
            found.insert(name.clone(), json(&run.join("summary.json"))["weights_digest"].to_string());
        }
        for (file, models) in [("metrics.json", "/models"), ("fusion.json", "/evaluation/models")] {
            if !run.join(file).exists() {
                continue;
            }
            for model in json(&run.join(file)).pointer(models).unwrap().as_array().unwrap() {
                let rows = model["results"].as_array().unwrap().iter();
                let f1: Vec<String> = rows.map(|row| row["metrics"]["f1"].to_string()).collect();
                // The run's folder has the name of its task.
                found.insert(format!("{name} {} {}", model["kind"], model["weights_digests"]), f1.join(" "));
            }
        }
    }
    found
}

#[test]
fn a_pipeline_is_planned_killed_continued_and_skipped() {
    let workplace = Workplace::new();
    // The plan writes nothing.
    let planned = workplace.success(&pipeline(&["--dry-run"]));
    for step in
        ["vgae-teacher", "vgae-student", "gat-teacher", "gat-student", "fusion-teacher", "fusion-student", "evaluate"]
    {
        assert!(planned.lines().any(|line| line.contains("to do") && line.contains(step)), "{step}: {planned}");
    }
    assert!(planned.contains("known once the graph store is built"), "{planned}");
    assert!(planned.contains(", 1 threads and "), "{planned}");
    let planned = workplace.success(&pipeline(&["--threads", "2", "--dry-run"]));
    assert!(planned.contains(", 2 threads and "), "{planned}");
    assert!(!workplace.path().join("pipelines").exists() && !workplace.path().join("stores").exists());

    // An uninterrupted run.
    let start = Instant::now();
    let said = workplace.success(&pipeline(&["--output", "whole"]));
    let whole_time = start.elapsed();
    assert!(said.contains("fusion-student: Learned fusion") && said.contains("evaluate: "), "{said}");
    let page = std::fs::read_to_string(only_folder(&workplace.path().join("whole")).join("report.html")).unwrap();
    for words in ["vgae-teacher", "gat-student", "fusion-student", "ROC"] {
        assert!(page.contains(words), "the report says nothing of {words}");
    }
    let whole = results(&only_folder(&workplace.path().join("whole")));
    assert_eq!(whole.keys().filter(|name| !name.contains(' ')).count(), 6, "{whole:?}");

    // Killed repeatedly, together with its child processes.
    let kills = KillLoop { whole: whole_time, first_share: 0.02, growth: 0.03, takes_children: Some(|_| true) };
    let kills = kills.run(|| workplace.command(&pipeline(&["--output", "killed"])));
    assert!(kills >= 3, "killed {kills} times only");
    assert_eq!(results(&only_folder(&workplace.path().join("killed"))), whole, "after {kills} kills");

    // Again: nothing to do, in little time.
    let start = Instant::now();
    let said = workplace.success(&pipeline(&["--output", "whole"]));
    assert!(said.contains(" 0 to do") && !said.contains("started "), "{said}");
    assert!(start.elapsed() < whole_time.min(Duration::from_secs(10)));

    // With another setting of one step, that step and the steps that depend on it run again; the others do not.
    let said = workplace.success(&pipeline(&["--output", "whole", "--set", "gat-student.lr=0.002"]));
    let started = |step: &str| said.lines().any(|line| line.starts_with("started ") && line.contains(step));
    assert!(started("gat-student") && started("fusion-student") && started("evaluate"), "{said}");
    assert!(!started("vgae-") && !started("gat-teacher") && !started("fusion-teacher"), "{said}");
    // The results of both settings remain; the report shows the current ones, and the others on request.
    let folder = only_folder(&workplace.path().join("whole"));
    let students = std::fs::read_dir(folder.join("tasks")).unwrap().map(|task| task.unwrap().file_name());
    let students: Vec<String> = students.filter_map(|name| name.into_string().ok()).collect();
    let students: Vec<&String> = students.iter().filter(|name| name.starts_with("gat-student-")).collect();
    assert_eq!(students.len(), 2);
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    let (shown, earlier): (Vec<&String>, Vec<&String>) = students.into_iter().partition(|name| page.contains(*name));
    assert_eq!((shown.len(), earlier.len()), (1, 1));
    let earlier = folder.join("tasks").join(earlier[0]);
    workplace.success(&["report", earlier.to_str().unwrap()]);

    // With other data everything runs again.
    let other = workplace.path().join("small");
    support::cli::copy_folder(support::cli::small_dataset(), &other);
    let log = std::fs::read_dir(other.join("train_01_attack_free")).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(log).unwrap();
    let planned = workplace.success(&pipeline(&["--data", "small", "--output", "whole", "--dry-run"]));
    assert!(!planned.contains("done") && planned.contains("to do"), "{planned}");
}

/// Presets of a pipeline that choose the features do so for its evaluation, too: the models and the evaluation read one store.
#[test]
fn a_pipeline_of_the_profile_set_runs() {
    let workplace = Workplace::new();
    let arguments = pipeline(&["--preset", "profile", "--set", "max_epochs=2"]);
    let planned = workplace.success(&[&arguments[..], &["--dry-run"]].concat());
    assert_eq!(planned.lines().filter(|line| line.contains("kdgat data build")).count(), 1, "{planned}");
    let said = workplace.success(&arguments);
    assert!(said.contains("fusion-student: Learned fusion") && said.contains("evaluate: "), "{said}");
    let folder = only_folder(&workplace.path().join("pipelines"));
    let evaluation = std::fs::read_dir(folder.join("tasks")).unwrap().map(|entry| entry.unwrap().path());
    let evaluation = evaluation.into_iter().find(|path| path.to_string_lossy().contains("/evaluate-")).unwrap();
    let models = json(&evaluation.join("run/metrics.json"))["models"].as_array().unwrap().len();
    assert!(models >= 4, "{models} models are evaluated");

    // The targets that were cached are those that the students read.
    for student in ["vgae-student", "gat-student"] {
        let tasks = std::fs::read_dir(folder.join("tasks")).unwrap().map(|entry| entry.unwrap().path());
        let task = tasks.into_iter().find(|path| path.to_string_lossy().contains(&format!("/{student}-"))).unwrap();
        let summary = json(&task.join("run/summary.json"));
        assert_eq!(summary["teacher"]["total"]["cache_miss_rows"], 0, "{student}: {}", summary["teacher"]);
    }
}
