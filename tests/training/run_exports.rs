//! Output for other programs: JSON lines and TensorBoard events beside the CSV files, and exported models that
//! PyTorch can read without kdgat.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kdgat::can::Frame;
use serde_json::Value;
use support::graph::write_log;
use support::python::python_with;
use support::stage::Workplace;

const SMALL: [&str; 12] = [
    "classifier",
    "--preset",
    "gat,teacher",
    "--hidden",
    "8",
    "--layers",
    "2",
    "--heads",
    "2",
    "--max-epochs",
    "2",
    "--log-every-n-steps=2",
];
const RUN: &str = "runs/tiny/gat_teacher_normal/1";

/// Rows of a CSV file and of its JSON lines.
fn rows(place: &Workplace, name: &str) -> (Vec<Vec<String>>, Vec<Value>) {
    let mut reader = csv::Reader::from_path(place.path(RUN).join(format!("{name}.csv"))).unwrap();
    let rows = reader.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect();
    let lines = fs::read_to_string(place.path(RUN).join(format!("{name}.jsonl"))).unwrap();
    (rows, lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn logs_are_mirrored_where_that_is_asked_for() {
    let place = Workplace::new();
    place.run(&[&SMALL[..], &["--tensorboard", "--json-lines"]].concat());
    for name in ["metrics", "steps"] {
        let (rows, lines) = rows(&place, name);
        assert!(rows.len() >= 2 && rows.len() == lines.len(), "{name}: {} rows, {} lines", rows.len(), lines.len());
        for (row, line) in rows.iter().zip(&lines) {
            let fields = line.as_object().unwrap();
            assert_eq!(fields.len(), row.len(), "{name}");
            for (field, value) in row.iter().zip(fields.values()) {
                match value {
                    Value::Null => assert_eq!(field, ""),
                    Value::Number(number) => assert_eq!(number.as_f64(), field.parse().ok(), "{name}"),
                    other => assert_eq!(other.as_str(), Some(field.as_str())),
                }
            }
        }
    }
    let events = |run: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(place.path(run)).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents.")).collect()
    };
    let [file] = events(RUN).try_into().unwrap();
    let content = fs::read(file).unwrap();
    for tag in ["epoch/val_loss", "step/train_loss"] {
        assert!(content.windows(tag.len()).any(|part| part == tag.as_bytes()), "no {tag} in the events");
    }
    place.run(&SMALL);
    let second = RUN.replace("/1", "/2");
    assert!(events(&second).is_empty() && !place.path(&second).join("metrics.jsonl").exists());
}

#[test]
fn an_exported_classifier_answers_the_same_in_pytorch() {
    let place = Workplace::new();
    place.run(&SMALL);
    let said = place.run(&["export", RUN, "--output", "exported", "--examples", "200"]);
    assert!(said.contains("model.safetensors, config.json, examples.safetensors in exported"), "{said}");
    let config = place.json("exported/config.json");
    assert_eq!((&config["format"], &config["model"]), (&"kdgat model".into(), &"gat".into()));
    assert_eq!(config["architecture"]["vocabulary_size"], config["vocabulary"].as_array().unwrap().len() + 1);
    assert!(said.contains("examples: 200 test graphs\n"), "{said}");
    // kdgat can read the exported model, too.
    place.run(&["evaluate", "exported/model.safetensors", "--resamples", "0", "--output", "again"]);

    // The environment of benches/peer has PyTorch.
    let Some(python) = python_with("torch", "peer", "scripts/test --all installs it") else { return };
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/read_student.py");
    let output = Command::new(python)
        .arg(reader)
        .args([place.path("exported"), place.path("exported/examples.safetensors")])
        .output()
        .unwrap();
    let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{complaint}");
    assert_eq!(said.lines().count(), 201, "a line for each graph, and one for the difference");
    let difference: f64 = said.lines().last().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(difference < 1e-5, "{}", said.lines().last().unwrap());
}

/// Runs `model.onnx` on the examples of a folder, once as they are and once without the last graph, with other numbers of
/// nodes, edges and graphs; prints the largest difference.
const COMPARE_ONNX: &str = r#"
import sys, onnx, onnxruntime, numpy as np
from safetensors.numpy import load_file
onnx.checker.check_model(onnx.load(sys.argv[1] + "/model.onnx"), full_check=True)
session = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx", providers=["CPUExecutionProvider"])
names = [value.name for value in session.get_inputs()]
examples = load_file(sys.argv[1] + "/examples.safetensors")
nodes = examples["graph"] < examples["graph"].max()
edges = nodes[examples["target"]]
fewer = {name: examples[name][edges if name in ("source", "target", "edge_attributes") else nodes] for name in names}
for inputs in ({name: examples[name] for name in names}, fewer):
    found = session.run(["logits"], inputs)[0]
    expected = examples["logits"][:len(found)]
    print(len(found), np.abs(found - expected).max() if found.shape == expected.shape else "shape")
"#;

#[test]
fn an_exported_classifier_answers_the_same_in_onnx_runtime() {
    let python = python_with("onnxruntime, onnx, safetensors", "onnx", "scripts/test --all installs it");
    let plain: &[&str] = &[];
    let rich = &["--features", "rich", "--conv", "gatv2"][..];
    for settings in [plain, rich] {
        let place = Workplace::new();
        place.run(&[&SMALL[..], settings].concat());
        let arguments = ["export", RUN, "--output", "exported", "--examples", "50", "--onnx"];
        let features = &settings[..settings.len().min(2)];
        let said = place.run(&[&arguments[..], features].concat());
        assert!(said.contains("model.onnx"), "{said}");
        let Some(python) = &python else { continue };
        let output = Command::new(python).args(["-c", COMPARE_ONNX]).arg(place.path("exported")).output().unwrap();
        let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{settings:?}: {complaint}");
        let lines: Vec<(&str, &str)> = said.lines().map(|line| line.split_once(' ').unwrap()).collect();
        assert_eq!(lines.iter().map(|line| line.0).collect::<Vec<_>>(), ["50", "49"], "{settings:?}");
        for (_, difference) in lines {
            assert!(difference.parse::<f64>().unwrap() < 1e-5, "{settings:?}: differs by {difference}");
        }
    }
}

#[test]
fn an_exported_autoencoder_has_its_examples_and_says_what_reads_it() {
    let place = Workplace::new();
    place.run(&[
        "autoencoder",
        "--preset",
        "vgae,student",
        "--use-kd",
        "false",
        "--hidden",
        "8,4",
        "--max-epochs",
        "1",
    ]);
    let run = "runs/tiny/vgae_student_autoencoder/1";
    place.run(&["export", run, "--examples", "3"]);
    let exported = place.path(run).join("export");
    let bytes = fs::read(exported.join("examples.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("difficulty").unwrap().shape(), [3]);
    let nodes = tensors.tensor("id").unwrap().shape()[0];
    assert_eq!(tensors.tensor("continuous").unwrap().shape(), [nodes, 10]);
    let said = place.run(&["export", run, "--examples", "999999"]);
    assert!(said.contains("all that the dataset has (999999 were requested)"), "{said}");
    let refusal = place.refused(&["export", run, "--onnx", "--output", "onnx"]);
    assert!(refusal.contains("an autoencoder cannot be exported as ONNX"), "{refusal}");
    assert!(!place.path("onnx").exists(), "something was written before the refusal");
    let refusal =
        place.refused(&["export", run, "--examples", "3", "--window", "50", "--stride", "50", "--output", "other"]);
    assert!(refusal.contains("the store has windows of 50; use --window"), "{refusal}");
    assert!(!place.path("other").exists(), "something was written before the refusal");
    let refusal = place.refused(&["export", "absent"]);
    assert!(refusal.contains("absent"), "{refusal}");
}

/// Weights beside the examples of other weights would mislead every reader.
#[test]
fn an_export_is_not_mixed_with_another() {
    let place = Workplace::new();
    place.run(&SMALL);
    place.run(&[&SMALL[..], &["--seed", "7"]].concat());
    place.run(&["export", RUN, "--output", "exported", "--onnx"]);
    let before = fs::read(place.path("exported/model.safetensors")).unwrap();
    let refusal = place.refused(&["export", &RUN.replace("/1", "/2"), "--output", "exported"]);
    assert!(refusal.contains("exported/config.json: belongs to other weights"), "{refusal}");
    assert_eq!(fs::read(place.path("exported/model.safetensors")).unwrap(), before);
    // The same weights are exported again, and their optional files stay.
    place.run(&["export", RUN, "--output", "exported"]);
    assert!(place.path("exported/model.onnx").exists());
    // The same weights with another list of known IDs give other results.
    place.run(&[&SMALL[..], &["--foreign-ids", "false", "--run-dir", "alone"]].concat());
    let refusal = place.refused(&["export", "alone", "--output", "exported"]);
    assert!(refusal.contains("belongs to the same weights with another list of known IDs"), "{refusal}");
    // The `config.json` of a run is not that of an export.
    let config = fs::read(place.path(RUN).join("config.json")).unwrap();
    let refusal = place.refused(&["export", RUN, "--output", RUN]);
    assert!(refusal.contains("does not belong to an export and would be overwritten"), "{refusal}");
    assert_eq!(fs::read(place.path(RUN).join("config.json")).unwrap(), config);
}

/// `tiny` with another test log before the others, whose windows show that the frame after a window does not belong to it.
fn with_edge_windows(place: &Workplace, known: [u32; 2], foreign: u32) -> PathBuf {
    let data = place.path("edges");
    for entry in fs::read_dir(support::stage::dataset()).unwrap().map(Result::unwrap) {
        let folder = data.join(entry.file_name());
        if entry.path().is_dir() && entry.file_name().to_string_lossy().starts_with("train") {
            fs::create_dir_all(&folder).unwrap();
            for log in fs::read_dir(entry.path()).unwrap().map(Result::unwrap) {
                fs::copy(log.path(), folder.join(log.file_name())).unwrap();
            }
        }
    }
    // Foreign frames, window by window: only the frame after it; its first frame; its last ten; all of them; its first frame.
    let is_foreign = |position: usize| position == 100 || (290..=400).contains(&position);
    let frame = |position: usize| Frame {
        timestamp: position as f64 * 0.001,
        can_id: if is_foreign(position) { foreign } else { known[position % 2] },
        payload: [0; 8],
        payload_length: 8,
        attack: false,
    };
    let frames: Vec<Frame> = (0..501).map(frame).collect();
    write_log(&data, "test_00_edges", "edges.csv", &frames);
    data
}

/// Prints the logits of the examples and, with `model.onnx`, those of onnxruntime.
const ONNX_LOGITS: &str = r#"
import sys, onnxruntime
from safetensors.numpy import load_file
session = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx", providers=["CPUExecutionProvider"])
examples = load_file(sys.argv[1] + "/examples.safetensors")
found = session.run(["logits"], {value.name: examples[value.name] for value in session.get_inputs()})[0]
for row in found: print(row[1])
"#;

/// The list of known IDs counts the frames of the window, without the frame that its last edge leads to.
#[test]
fn an_id_of_the_next_window_is_none_of_this_one() {
    let onnx = python_with("onnxruntime, onnx, safetensors", "onnx", "scripts/test --all installs it");
    let torch = python_with("torch", "peer", "scripts/test --all installs it");
    for features in ["window", "rich"] {
        let place = Workplace::new();
        for (list, folder) in [("true", "listed"), ("false", "alone")] {
            let run = format!("run-{list}");
            place.run(&[&SMALL[..], &["--features", features, "--foreign-ids", list, "--run-dir", &run]].concat());
            if list == "true" {
                place.run(&["export", &run, "--output", "vocabulary"]);
                let ids = place.json("vocabulary/config.json")["vocabulary"].clone();
                let id = |index: usize| ids[index].as_u64().unwrap() as u32;
                with_edge_windows(&place, [id(0), id(1)], 0x7f3);
                assert!(!ids.as_array().unwrap().contains(&0x7f3.into()));
            }
            let export = ["export", &run, "--data", "edges", "--output", folder, "--examples", "5", "--onnx"];
            place.run(&[&export[..], &["--features", features]].concat());
        }
        let evidence = place.json("listed/config.json")["foreign_id_evidence"].as_f64().unwrap() as f32;
        assert!(evidence > 1.0, "{evidence}");
        let attack = |folder: &str| -> Vec<f32> {
            let bytes = fs::read(place.path(folder).join("examples.safetensors")).unwrap();
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let logits = tensors.tensor("logits").unwrap().data().chunks_exact(8);
            logits.map(|row| f32::from_le_bytes(row[4..].try_into().unwrap())).collect()
        };
        let (listed, alone) = (attack("listed"), attack("alone"));
        let added: Vec<bool> = listed.iter().zip(&alone).map(|(listed, alone)| *listed == alone + evidence).collect();
        assert_eq!(added, [false, true, true, true, true], "{features}: {listed:?} {alone:?}");
        assert_eq!(listed[0], alone[0]);
        if let Some(python) = &onnx {
            let output = Command::new(python).args(["-c", ONNX_LOGITS]).arg(place.path("listed")).output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let found: Vec<f32> = said.lines().map(|line| line.parse().unwrap()).collect();
            assert_eq!(found.len(), 5, "{}", String::from_utf8_lossy(&output.stderr));
            assert!(
                found.iter().zip(&listed).all(|(found, listed)| (found - listed).abs() < 1e-4),
                "{found:?} {listed:?}"
            );
        }
        if let (Some(python), "window") = (&torch, features) {
            let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/read_student.py");
            let folder = place.path("listed");
            let output =
                Command::new(python).args([reader, folder.clone(), folder.join("examples.safetensors")]).output();
            let said = String::from_utf8(output.unwrap().stdout).unwrap();
            let difference: f64 = said.lines().last().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
            assert!(difference < 1e-4, "{said}");
        }
    }
}
