//! The package `kdgat` of Python: the teacher around any PyTorch module, its cache and its losses. Runs `python/tests`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tch::{Kind, Tensor};

use crate::pages::{NORMAL, trained};
use kdgat::distill::TargetName;
use kdgat::distill::foreign::{ExpectedGraphs, ForeignTargets, GraphNames};
use kdgat::distill::losses::{LogitLoss, relational};
use support::process::is_soak;
use support::python::python_with;
use support::stage::dataset;
use support::starter;

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

/// Python with PyTorch, which finds the package and its tests.
fn python() -> Option<Command> {
    let python = python_with("torch, numpy", "peer", "scripts/test --all installs it")?;
    let mut command = Command::new(python);
    let path = std::env::join_paths([package(), package().join("tests")]).unwrap();
    command.env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1").env_remove("SOAK_TESTS");
    // Threads that wait for each other beside another test program cost more than they compute.
    command.env("OMP_NUM_THREADS", "1");
    if is_soak() {
        command.env("SOAK_TESTS", "yes");
    }
    Some(command)
}

/// Runs the tests of a file of `python/tests`. What they skip is said.
fn run(module: &str, variables: &[(&str, &Path)]) {
    let Some(mut command) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    command.args(["-W", "ignore::DeprecationWarning", "-m", "unittest", "-v", module]).current_dir(&folder);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{module}: {said}");
    assert!(said.contains("\nOK") && !said.contains("Ran 0 tests"), "{module}: {said}");
    for line in said.lines() {
        if let Some((test, reason)) = line.split_once(" ... skipped ") {
            println!("skipped: {}: {}", test.split(' ').next().unwrap_or(test), reason.trim_matches('\''));
        }
    }
}

/// Rows of logits that look random, `[rows, classes]`.
fn logits(rows: i64, classes: i64, salt: u64) -> Tensor {
    let value = |index: i64| ((index as f64 + 1.0) * (salt as f64 + 0.7)).sin() * 3.0;
    let values: Vec<f64> = (0..rows * classes).map(value).collect();
    Tensor::from_slice(&values).view([rows, classes])
}

fn values(rows: &Tensor) -> Vec<Vec<f64>> {
    rows.to_kind(Kind::Double).try_into().unwrap()
}

#[test]
fn losses_in_python_are_those_of_the_program() {
    let mut cases = Vec::new();
    for (salt, (rows, classes, temperature)) in (1u64..).zip([(5, 2, 1.0), (7, 3, 4.0), (4, 11, 2.5)]) {
        let (student, teacher) = (logits(rows, classes, salt), logits(rows, classes, salt + 9));
        let labels: Vec<i64> = (0..rows).map(|row| row % classes).collect();
        let truth = Tensor::from_slice(&labels);
        let losses = [
            ("kl", LogitLoss::SoftLabels { temperature }),
            ("dkd", LogitLoss::Decoupled { temperature }),
            ("mse", LogitLoss::Distance),
        ];
        let mut found = losses
            .map(|(name, loss)| (name, loss.of(&student, &teacher, &truth, None).unwrap().double_value(&[])))
            .to_vec();
        // Embeddings are in single precision.
        let [one, other] = [&student, &teacher].map(|rows| rows.to_kind(Kind::Float));
        found.push(("relational", relational(&one, &other).unwrap().double_value(&[])));
        for (loss, value) in found {
            cases.push(json!({
                "loss": loss, "value": value, "temperature": temperature, "labels": labels,
                "student": values(&student), "teacher": values(&teacher),
            }));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("losses.json");
    std::fs::write(&path, serde_json::to_string(&cases).unwrap()).unwrap();
    run("test_losses", &[("KDGAT_PROGRAM_LOSSES", &path)]);
}

#[test]
fn the_cache_survives_kills_and_a_full_disk() {
    run("test_store", &[]);
}

#[test]
fn a_teacher_changes_no_loss() {
    run("test_teacher", &[]);
}

#[test]
fn errors_and_interrupts_arrive_in_the_loop() {
    run("test_behaviour", &[]);
}

#[test]
fn weights_come_and_go_in_order() {
    run("test_residency", &[]);
}

#[test]
fn stores_and_cached_targets_are_read() {
    run("test_data", &[]);
}

#[test]
fn snippets_of_the_page_and_examples_run() {
    run("test_documents", &[]);
}

#[test]
fn tables_of_networks_in_space_are_made_from_their_runs() {
    run("test_report_space", &[]);
}

/// Runs, commands and detectors of the program, on a classifier of the report's tests.
#[test]
fn the_program_answers_in_python() {
    let place = trained();
    let programs = tempfile::tempdir().unwrap();
    let variable = starter::put_into(programs.path());
    let others = std::env::var_os("PATH").unwrap_or_default();
    let folders = [programs.path().to_owned()].into_iter().chain(std::env::split_paths(&others));
    let path = PathBuf::from(std::env::join_paths(folders).unwrap());
    let mut variables: Vec<(&str, &Path)> = vec![("PATH", &path)];
    variables.extend(variable.as_ref().map(|(name, socket)| (*name, socket.as_path())));
    run("test_program_data", &variables);
    let attacked = std::fs::read_dir(dataset().join("test_01_known_attack")).unwrap();
    let log = attacked.map(|log| log.unwrap().path()).min().unwrap();
    let folder = place.path("");
    variables.extend([("FOLDER", folder.as_path()), ("RUN", Path::new(NORMAL)), ("LOG", log.as_path())]);
    run("test_program", &variables);
}

/// The package starts the program in environments whose PyTorch is slow to import, or missing.
#[test]
fn the_package_is_imported_without_pytorch() {
    let code = "import sys, kdgat; print('torch' in sys.modules, 'Teacher' in kdgat.__all__)";
    let output = Command::new("python3").args(["-S", "-c", code]).env("PYTHONPATH", package()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "False True", "{output:?}");
}

/// Fills a cache with the rows of five graphs, by position or by name, whose logits are `[3 n, 3 n + 1, 3 n + 2]` of the n-th.
const FILL: &str = r#"
import sys, torch, kdgat
by_name, precision = sys.argv[2] == "names", sys.argv[3]
rows = torch.arange(15.0).view(5, 3)
order = torch.tensor([3, 0, 4, 1, 2])
ids = [f"graph {number}" for number in order.tolist()] if by_name else order
with kdgat.Teacher(torch.nn.Identity(), outputs=lambda x: {"logits": x, "embedding": 2 * x[:, :2]}, call=lambda module, batch: module(batch["x"]), ids="id", cache=sys.argv[1], precision=precision) as teacher:
    list(teacher.distill([{"x": rows[order][at:at + 2], "id": ids[at:at + 2]} for at in (0, 2, 4)]))
"#;

/// The program reads what Python has written: `--targets-file FOLDER`.
#[test]
fn the_program_reads_the_cache_of_python() {
    for (ids, precision) in [("positions", "f32"), ("names", "f16")] {
        let Some(mut python) = python() else { return };
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("targets");
        let output = python.args(["-c", FILL]).arg(&cache).args([ids, precision]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let names =
            || Ok(GraphNames { graphs: (0..5).map(|graph| format!("graph {graph}")).collect(), left_out: Vec::new() });
        let outputs = ["a", "b", "c"].map(str::to_owned);
        let graphs = ExpectedGraphs { ids: &names, count: 5, outputs: &outputs, are_values: false };
        let targets = ForeignTargets::open(&cache, graphs).unwrap();
        assert_eq!(targets.describe(), "logits [graphs, 3] + embedding [graphs, 2]");
        assert_eq!(targets.rows(TargetName::Logits, &[4, 0]), [12.0, 13.0, 14.0, 0.0, 1.0, 2.0]);
        assert_eq!(targets.rows(TargetName::Embedding, &[2]), [12.0, 14.0]);
        let more = ExpectedGraphs { count: 6, ..graphs };
        let error = ForeignTargets::open(&cache, more).unwrap_err().to_string();
        assert!(error.contains("graph 5 has no whole record; 5 of 6 graphs have one"), "{error}");
        // By position, a record beyond the last graph means that others were numbered; names say themselves which graphs they are of.
        let left_out = ForeignTargets::open(&cache, ExpectedGraphs { count: 4, ..graphs });
        match ids {
            "positions" => assert!(left_out.unwrap_err().to_string().contains("it has a record of position 4")),
            _ => assert_eq!(left_out.unwrap().rows(TargetName::Logits, &[3]), [9.0, 10.0, 11.0]),
        }
        let fewer = ExpectedGraphs { outputs: &outputs[..2], ..graphs };
        assert!(ForeignTargets::open(&cache, fewer).unwrap_err().to_string().contains("3 logits a graph; expected 2"));
    }
}
