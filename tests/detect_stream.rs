//! `kdgat detect`: the scores of an evaluation, from a stream.

mod evaluate_support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use evaluate_support::{Bench, KNOWN, UNKNOWN, candump, frames_of, stderr, stdout};
use serde_json::Value;

fn feed(mut command: Command, text: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let text = text.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&text));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

fn detections(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn model(run: &Path) -> String {
    run.strip_prefix(run.ancestors().nth(4).unwrap()).unwrap().display().to_string()
}

/// A replay through `candump` gives the scores and decisions of the evaluation of the same file.
#[test]
fn a_replay_has_the_scores_of_the_evaluation() {
    let bench = Bench::new();
    for run in [bench.gat("gat_student_normal", 1, 1), bench.vgae("vgae_student_autoencoder", 1, 1)] {
        bench.evaluate(&[
            "--threads",
            "1",
            "--resamples",
            "0",
            run.to_str().unwrap(),
            "--predictions",
            "predictions.csv",
        ]);
        let log = bench.log(KNOWN, "fuzzing.csv");
        let predicted: Vec<HashMap<String, String>> =
            bench.rows("predictions.csv").into_iter().filter(|row| row["file"] == "fuzzing.csv").collect();
        let replay = candump(&frames_of(&log));
        let live = feed(bench.command(&["detect", "--model", &model(&run), "-"]), replay.as_bytes());
        let file = bench.kdgat(&["detect", "--model", &model(&run), log.to_str().unwrap()]);
        assert_eq!(live.stdout, file.stdout, "a stream and a file of the same frames");
        let detected = detections(&live);
        assert_eq!(detected.len(), predicted.len());
        for (detected, predicted) in detected.iter().zip(&predicted) {
            let (score, expected) = (detected["score"].as_f64().unwrap(), predicted["score"].parse::<f64>().unwrap());
            assert_eq!(score, expected, "window {}", detected["window"]);
            assert_eq!(detected["label"] == "attack", predicted["predicted"] == "1");
            assert_eq!(detected["first_frame"].to_string(), predicted["first_frame"]);
            assert!(u32::from_str_radix(detected["id"].as_str().unwrap(), 16).is_ok());
        }
        println!("{}: {}", model(&run), stderr(&live).trim());
    }
}

#[test]
fn garbage_is_counted_and_passed_over() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let frames = &frames_of(&bench.log(KNOWN, "fuzzing.csv"))[..1001];
    let clean = candump(frames);
    let mut dirty = b"candump: no such interface\n\xff\xfe\x00\n".to_vec();
    for (index, line) in clean.lines().enumerate() {
        dirty.extend_from_slice(line.as_bytes());
        dirty.push(b'\n');
        if index % 100 == 7 && index < 1000 {
            dirty.extend_from_slice(b"(1.0) can0 XYZ#00\n\ngarbage\n");
        }
    }
    let detect = || bench.command(&["detect", "--model", &model(&run), "--threshold", "0.5", "-"]);
    let (clean, dirty) = (feed(detect(), clean.as_bytes()), feed(detect(), &dirty));
    assert_eq!(stdout(&clean), stdout(&dirty));
    assert_eq!(detections(&clean).len(), 10);
    let text = stderr(&dirty);
    assert!(text.contains("10 lines left out: ID is not hexadecimal"), "{text}");
    assert!(text.contains("1001 frames"), "{text}");
}

/// Each window is printed when the frame after it has come, not when the stream ends.
#[test]
fn a_live_stream_is_answered_at_once() {
    let bench = Bench::new();
    let run = bench.vgae("vgae_student_autoencoder", 1, 1);
    let text = candump(&frames_of(&bench.log(KNOWN, "spoofing.csv")));
    let lines: Vec<&str> = text.lines().collect();
    let mut command = bench.command(&["detect", "--model", &model(&run), "--threshold", "1", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    for window in 0..3 {
        let from = if window == 0 { 0 } else { 100 * window + 1 };
        for line in &lines[from..=100 * (window + 1)] {
            writeln!(input, "{line}").unwrap();
        }
        let mut answer = String::new();
        output.read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["window"], window);
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_calibration_sets_the_threshold_for_another_car() {
    let bench = Bench::new();
    let run = bench.vgae("vgae_student_autoencoder", 1, 1);
    let log = bench.log(UNKNOWN, "other.csv");
    let with_attacks = bench.kdgat(&["calibrate", "--model", &model(&run), "--benign", log.to_str().unwrap()]);
    assert_eq!(with_attacks.status.code(), Some(2));
    assert!(stderr(&with_attacks).contains("labelled as attacks"), "{}", stderr(&with_attacks));
    let uncalibrated = bench.kdgat(&["detect", "--model", &model(&run), log.to_str().unwrap()]);
    assert_eq!(uncalibrated.status.code(), Some(2));
    assert!(stderr(&uncalibrated).contains("no threshold is recorded"), "{}", stderr(&uncalibrated));

    let benign = bench.path().join("benign.log");
    let frames = frames_of(&log);
    std::fs::write(&benign, candump(&frames[..4001])).unwrap();
    let arguments = ["calibrate", "--model", &model(&run), "--benign", "benign.log", "--threshold", "fpr:0.1"];
    let made = bench.kdgat(&arguments);
    assert!(
        made.status.success() && stdout(&made).contains("40 attack-free windows"),
        "{}{}",
        stdout(&made),
        stderr(&made)
    );
    let file: Value = serde_json::from_slice(&std::fs::read(run.join("calibration.json")).unwrap()).unwrap();
    let output = bench.kdgat(&["detect", "--model", &model(&run), "benign.log"]);
    let detected = detections(&output);
    // The threshold is for windows that the calibration has not seen; those that it has are nearer to what is usual.
    let called = detected.iter().filter(|window| window["label"] == "attack").count();
    assert!(called <= 4, "{called} of 40 windows, one in ten is allowed");
    for window in &detected {
        let (deviations, threshold) = (window["deviations"].as_f64().unwrap(), file["threshold"].as_f64().unwrap());
        assert_eq!(window["label"] == "attack", deviations > threshold, "{window}");
    }
    let by_score = bench.kdgat(&["detect", "--model", &model(&run), "--threshold", "0", "benign.log"]);
    assert!(detections(&by_score).iter().all(|window| window["label"] == "attack"), "--threshold is a score");
    assert_eq!(file["windows"], 40);

    let other = bench.vgae("vgae_student_autoencoder", 2, 2);
    let path = run.join("calibration.json");
    let wrong =
        bench.kdgat(&["detect", "--model", &model(&other), "--calibration", path.to_str().unwrap(), "benign.log"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("was made for weights"), "{}", stderr(&wrong));
    let few = bench.path().join("few.log");
    std::fs::write(&few, candump(&frames[..301])).unwrap();
    let few = bench.kdgat(&["calibrate", "--model", &model(&run), "--benign", "few.log"]);
    assert_eq!(few.status.code(), Some(2));
    assert!(stderr(&few).contains("3 attack-free windows are too few"), "{}", stderr(&few));
}
