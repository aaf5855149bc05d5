//! IDs that fall silent for the rest of a drive, in `kdgat detect` and `kdgat evaluate`.

use kdgat::can::Frame;
use serde_json::Value;
use support::evaluate::{Bench, detections, profile_of, regular_traffic, stderr, stdout};
use support::graph::write_log;

/// A drive in which ID 0x104 is silent from 8 s on, after an attack with it if `attacked`.
fn drive(attacked: bool) -> Vec<Frame> {
    let drive = regular_traffic(30.0, |time, id| id != 0x104 || time < 8.0);
    let forged = |frame: Frame| {
        let attack = attacked && frame.can_id == 0x104 && (6.0..8.0).contains(&frame.timestamp);
        Frame { attack, ..frame }
    };
    drive.into_iter().map(forged).collect()
}

/// A score cannot exceed the threshold, so that only IDs that are gone make alarms.
#[test]
fn detect_names_an_id_that_is_gone_once() {
    let bench = Bench::new();
    let run = bench.gat_with_profile("gat_profile", 1, profile_of(&regular_traffic(60.0, |_, _| true)));
    let run = run.to_str().unwrap();
    write_log(bench.path(), "logs", "free.csv", &drive(false));
    write_log(bench.path(), "logs", "attacked.csv", &drive(true));
    write_log(bench.path(), "logs", "usual.csv", &regular_traffic(30.0, |_, _| true));
    let detect = |log: &str, more: &[&str]| {
        let log = format!("logs/{log}.csv");
        bench.kdgat(&[&["detect", "--model", run, "--threshold", "1", &log], more].concat())
    };
    let found = detect("free", &[]);
    let attacks: Vec<Value> = detections(&found).into_iter().filter(|window| window["label"] == "attack").collect();
    let [window] = &attacks[..] else { panic!("{attacks:?}") };
    let time = window["time"].as_f64().unwrap();
    assert!((12.7..13.3).contains(&time), "{time}: five seconds after its last frame");
    assert_eq!(window["gone"], serde_json::json!(["104"]));
    let culprit = &window["culprits"][0];
    let words = culprit["unusual"][0].as_str().unwrap();
    assert!(culprit["id"] == "104" && words.starts_with("gone for 5."), "{culprit}");
    assert!(words.ends_with(" s, longest silence ever 0.02 s"), "{words}");
    assert!(stderr(&found).contains("by the labels: 1 false alarm"), "{}", stderr(&found));
    // The silence of an attacker is no false alarm.
    let said = stderr(&detect("attacked", &[]));
    assert!(said.contains("by the labels: 1 ID gone that had sent attack frames: found, not a false alarm"), "{said}");
    assert!(said.contains("by the labels: 0 false alarms"), "{said}");
    assert!(detections(&detect("usual", &[])).iter().all(|window| window["label"] == "normal"));

    // One window raises the alarm, whatever the rule says.
    let alarms = detect("free", &["--alarms", "--alarm-after", "5/9", "--cooldown", "1h"]);
    assert_eq!(alarms.status.code(), Some(3), "{}", stderr(&alarms));
    let events = detections(&alarms);
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["alarm", "alarm-end"], "{}", stdout(&alarms));
    assert_eq!((&events[0]["gone"], &events[0]["severity"]), (&serde_json::json!(["104"]), &"medium".into()));
    assert_eq!(events[0]["culprits"][0]["unusual"][0], words);
}

#[test]
fn evaluate_says_how_ids_that_are_gone_count() {
    let bench = Bench::new();
    let run = bench.gat_with_profile("gat_profile", 1, profile_of(&regular_traffic(60.0, |_, _| true)));
    let data = bench.path().join("regular");
    write_log(&data, "train_01_attack_free", "drive.csv", &regular_traffic(40.0, |_, _| true));
    write_log(&data, "test_01_masquerade", "attacked.csv", &drive(true));
    write_log(&data, "test_02_free", "free.csv", &drive(false));
    let arguments = ["evaluate", "--data", "regular", "--features", "profile", "--threshold", "1", "--resamples", "0"];
    let rest = ["--rules", "false", "--output", "judged", run.to_str().unwrap()];
    let output = bench.kdgat(&[&arguments[..], &rest].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let line = |outcome: &str| text.lines().filter(|line| line.starts_with("gone: ") && line.contains(outcome)).count();
    assert_eq!(line("attacked.csv: 104: gone for 5."), 1, "{text}");
    assert_eq!(line("(found, not a false alarm: it had sent attack frames)"), 1, "{text}");
    assert_eq!(line("(a false alarm)"), 1, "{text}");
    let rows = bench.rows("judged/metrics.csv");
    let false_alarms = |folder: &str| {
        let row = rows.iter().find(|row| row["folder"] == folder && row["scope"] == "folder").unwrap();
        row["false_positives"].clone()
    };
    assert_eq!((false_alarms("test_01_masquerade"), false_alarms("test_02_free")), ("0".to_owned(), "1".to_owned()));
    let json: Value =
        serde_json::from_slice(&std::fs::read(bench.path().join("judged/metrics.json")).unwrap()).unwrap();
    let outcomes: Vec<&str> =
        json["models"][0]["gone"].as_array().unwrap().iter().map(|row| row["counts_as"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["aftermath", "false-alarm"]);
}
