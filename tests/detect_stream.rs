//! `kdgat detect` gives the scores of an evaluation from a stream.

mod evaluate_support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use evaluate_support::{Bench, KNOWN, UNKNOWN, candump, frames_of, stderr, stdout};
use serde_json::Value;

fn fed(mut command: Command, text: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let text = text.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&text));
    let output = child.wait_with_output().unwrap();
    // The program may refuse a stream before its end.
    let written = writer.join().unwrap();
    assert!(written.is_ok() || !output.status.success(), "{written:?}");
    output
}

fn feed(command: Command, text: &[u8]) -> Output {
    let output = fed(command, text);
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

fn detections(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn model(run: &Path) -> String {
    run.strip_prefix(run.ancestors().nth(4).unwrap()).unwrap().display().to_string()
}

/// A replay in `candump` format gives the scores and decisions of the evaluation of the same file.
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

/// A classifier and an autoencoder together give the scores and decisions of the evaluation's mean of both, named in any order.
#[test]
fn two_models_together_have_the_scores_of_the_evaluation() {
    let bench = Bench::new();
    let (gat, vgae) = (bench.gat("gat_student_normal", 1, 1), bench.vgae("vgae_student_autoencoder", 1, 1));
    let log = bench.log(KNOWN, "fuzzing.csv");
    let detect = |models: &[&Path], arguments: &[&str]| {
        let models: Vec<String> = models.iter().flat_map(|run| ["--model".to_owned(), model(run)]).collect();
        let models: Vec<&str> = models.iter().map(String::as_str).collect();
        bench.kdgat(&[&["detect", log.to_str().unwrap()], &models[..], arguments].concat())
    };
    let refused = |output: &Output, message: &str| {
        assert_eq!(output.status.code(), Some(2), "{}", stderr(output));
        assert!(stderr(output).contains(message), "{}", stderr(output));
    };
    let command = format!("kdgat evaluate {} {}", model(&gat), model(&vgae));
    refused(&detect(&[&gat, &vgae], &[]), &format!("mean of two scores has no default threshold; run `{command}`"));
    refused(
        &detect(&[&vgae, &gat], &["--threshold", "2.5"]),
        &format!(
            "the usual scores of gat_student_normal/1 are not recorded, so two models cannot be compared; `{command}`"
        ),
    );

    let (gat_path, vgae_path) = (gat.to_str().unwrap(), vgae.to_str().unwrap());
    let evaluate = ["--threads", "1", "--resamples", "0", gat_path, vgae_path, "--predictions", "predictions.csv"];
    bench.evaluate(&evaluate);
    let rows = bench.rows("predictions.csv");
    let predicted = |name: &str| -> Vec<&HashMap<String, String>> {
        rows.iter().filter(|row| row["file"] == "fuzzing.csv" && row["model"] == name).collect()
    };
    let [of_gat, of_vgae] = ["gat_student_normal/1", "vgae_student_autoencoder/1"].map(predicted);
    let of_both = predicted("gat_student_normal/1 + vgae_student_autoencoder/1");
    let output = detect(&[&gat, &vgae], &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = "attacks: means of both models' standardised scores above ";
    assert!(stderr(&output).contains(said) && stderr(&output).contains("(fpr:0.001, recorded on small)"));
    assert_eq!(detect(&[&vgae, &gat], &[]).stdout, output.stdout);
    let detected = detections(&output);
    assert_eq!((detected.len(), of_both.len()), (59, 59));
    let score = |row: &HashMap<String, String>| row["score"].parse::<f64>().unwrap();
    for (window, detected) in detected.iter().enumerate() {
        assert_eq!(detected["score"], score(of_both[window]), "window {window}");
        assert_eq!(detected["label"] == "attack", of_both[window]["predicted"] == "1", "window {window}");
        assert_eq!(detected["scores"]["gat"], score(of_gat[window]), "window {window}");
        assert_eq!(detected["scores"]["vgae"], score(of_vgae[window]), "window {window}");
        assert!(u32::from_str_radix(detected["id"].as_str().unwrap(), 16).is_ok());
    }
    // The ID is named by one of the two.
    let alone = [&gat, &vgae].map(|run| detections(&detect(&[run], &["--threshold", "0.5"])));
    assert!(detected.iter().enumerate().all(|(window, both)| {
        alone
            .iter()
            .any(|alone| (&alone[window]["id"], &alone[window]["contribution"]) == (&both["id"], &both["contribution"]))
    }));

    // Rules and numbers apply to the mean.
    refused(&detect(&[&gat, &vgae], &["--threshold", "youden"]), "(recorded: fpr:0.001); `kdgat evaluate");
    bench.evaluate(&["--resamples", "0", "--threshold", "youden", gat_path, vgae_path]);
    let by_rule = detect(&[&gat, &vgae], &["--threshold", "youden"]);
    assert!(stderr(&by_rule).contains("(youden, recorded on small)"), "{}", stderr(&by_rule));
    let by_number = detections(&detect(&[&gat, &vgae], &["--threshold", "-0.25"]));
    assert!(
        by_number.iter().all(|window| (window["label"] == "attack") == (window["score"].as_f64().unwrap() > -0.25))
    );
    assert_eq!(detect(&[&gat, &vgae], &[]).stdout, output.stdout, "the rule of the default decides");

    // Alarms with both.
    let alarms = detect(&[&gat, &vgae], &["--alarms", "--threshold", "-99"]);
    assert_eq!(alarms.status.code(), Some(3), "{}", stderr(&alarms));
    assert_eq!(detections(&alarms)[0]["severity"], "high");

    // Only what an evaluation would judge together.
    let other = bench.gat("gat_student_normal", 2, 2);
    refused(&detect(&[&gat, &other], &[]), "expected a gat and a vgae, got a gat and a gat");
    refused(&detect(&[&gat, &vgae, &other], &[]), "--model is given 3 times");
    refused(
        &detect(&[&other, &vgae], &["--threshold", "fpr:0.001"]),
        "no such threshold is recorded for gat_student_normal/2 + vgae_student_autoencoder/1; `kdgat evaluate",
    );
}

/// Both models calibrated together on another car have the deviations of the evaluation that calibrates on the same seconds.
#[test]
fn two_models_are_calibrated_together() {
    let bench = Bench::new();
    let (gat, vgae) = (bench.gat("gat_student_normal", 1, 1), bench.vgae("vgae_student_autoencoder", 1, 1));
    let log = bench.log(UNKNOWN, "other.csv");
    let (gat_path, vgae_path) = (gat.to_str().unwrap(), vgae.to_str().unwrap());
    bench.evaluate(&[
        "--threads",
        "1",
        "--resamples",
        "0",
        "--calibrate-seconds",
        "1",
        "--predictions",
        "predictions.csv",
        gat_path,
        vgae_path,
    ]);
    // The windows of the first second.
    std::fs::write(bench.path().join("benign.log"), candump(&frames_of(&log)[..2001])).unwrap();
    let (one, other) = (model(&gat), model(&vgae));
    let both = ["--model", one.as_str(), "--model", other.as_str()];
    let calibrate = ["calibrate", "--threads", "1", "--benign", "benign.log", "--least-seconds", "0.5"];
    let made = bench.kdgat(&[&calibrate[..], &both, &["--name", "car"]].concat());
    assert!(made.status.success(), "{}", stderr(&made));
    let said = "gat_student_normal/1 + vgae_student_autoencoder/1: attacks are scores more than";
    assert!(stdout(&made).contains(said), "{}", stdout(&made));
    let detect = |models: &[&str], calibration: &str| {
        bench.kdgat(&[&["detect", log.to_str().unwrap(), "--calibration", calibration], models].concat())
    };
    let output = detect(&both, "car");
    let detected = detections(&output);
    let rows = bench.rows("predictions.csv");
    let calibrated = rows.iter().filter(|row| row["model"].contains(" + ") && row["calibration"] == "first 1 s");
    let mut compared = 0;
    for row in calibrated {
        let window = &detected[row["graph"].parse::<usize>().unwrap()];
        assert_eq!(window["deviations"], row["score"].parse::<f64>().unwrap(), "{row:?}");
        assert_eq!(window["label"] == "attack", row["predicted"] == "1", "{row:?}");
        compared += 1;
    }
    assert!(compared > 50, "{compared} windows, {}", detected.len());

    // A calibration is for the models that it was made with.
    let refused = |output: &Output, message: &str| {
        assert_eq!(output.status.code(), Some(2), "{}", stderr(output));
        assert!(stderr(output).contains(message), "{}", stderr(output));
    };
    refused(
        &detect(&both[..2], "car"),
        "was made for a classifier and an autoencoder together; give both with --model",
    );
    let alone = bench.kdgat(&[&calibrate[..], &both[..2], &["--name", "alone"]].concat());
    assert!(alone.status.success(), "{}", stderr(&alone));
    refused(
        &detect(&both, "alone"),
        "was made for one model alone; `kdgat calibrate` with two --model makes one for both",
    );
    let second = model(&bench.vgae("vgae_student_autoencoder", 2, 2));
    refused(&detect(&["--model", &one, "--model", &second], "car"), "was made together with weights");
}

/// The alarms are compared with labels where the log has some: in a file, in a stream, in any order of the columns.
#[test]
fn labels_are_compared_where_the_log_has_some() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let log = bench.log(KNOWN, "fuzzing.csv");
    let labelled = std::fs::read_to_string(&log).unwrap();
    let summary = |text: &str| {
        let live =
            feed(bench.command(&["detect", "--model", &model(&run), "--threshold", "0.5", "-"]), text.as_bytes());
        std::fs::write(bench.path().join("drive.csv"), text).unwrap();
        let file = bench.kdgat(&["detect", "--model", &model(&run), "--threshold", "0.5", "drive.csv"]);
        let lines = [&live, &file].map(|output| {
            let text = stderr(output);
            let lines = text.lines().filter(|line| line.contains(" windows, ") || line.starts_with("by the labels"));
            // The time for each window is measured.
            lines.map(|line| line.split(" of traffic)").next().unwrap().to_owned()).collect::<Vec<String>>()
        });
        assert_eq!(lines[0], lines[1], "a stream and a file of the same frames");
        lines[0].clone()
    };
    // Two rows of an order of their own, and none with an attack column.
    let columns = |order: &[usize]| -> String {
        let row = |line: &str| {
            let fields: Vec<&str> = line.split(',').collect();
            order.iter().map(|&column| fields[column]).collect::<Vec<_>>().join(",") + "\n"
        };
        labelled.lines().map(row).collect()
    };
    let expected = summary(&labelled);
    assert_eq!(expected.len(), 2, "{expected:?}");
    assert!(expected[0].starts_with("59 windows, ") && expected[0].contains(" an hour, in 2.9 s"), "{expected:?}");
    assert!(
        expected[1].starts_with("by the labels: ") && expected[1].contains(" of 1 attack episode "),
        "{expected:?}"
    );
    assert_eq!(summary(&columns(&[3, 2, 1, 0])), expected);
    assert_eq!(summary(&columns(&[0, 1, 2])), expected[..1], "without labels nothing is right or wrong");
    assert_eq!(summary(&candump(&frames_of(&log))), expected[..1]);
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
    assert!(text.contains("10 lines skipped: ID is not hexadecimal"), "{text}");
    assert!(text.contains("1001 frames"), "{text}");
}

/// Each window is printed when the frame after it has arrived, not when the stream ends.
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
    let arguments = [
        "calibrate",
        "--threads",
        "1",
        "--model",
        &model(&run),
        "--benign",
        "benign.log",
        "--threshold",
        "fpr:0.1",
        "--least-seconds",
        "1",
    ];
    let made = bench.kdgat(&arguments);
    assert!(
        made.status.success() && stdout(&made).contains("40 attack-free windows (2.0 s)"),
        "{}{}",
        stdout(&made),
        stderr(&made)
    );
    let path = run.join("calibrations/benign.json");
    let file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let output = bench.kdgat(&["detect", "--model", &model(&run), "--calibration", "benign", "benign.log"]);
    let detected = detections(&output);
    // The threshold is set for windows outside the calibration; the calibration's own windows are more usual.
    let called = detected.iter().filter(|window| window["label"] == "attack").count();
    assert!(called <= 4, "{called} of 40 windows, one in ten is allowed");
    for window in &detected {
        let (deviations, threshold) = (window["deviations"].as_f64().unwrap(), file["threshold"].as_f64().unwrap());
        assert_eq!(window["label"] == "attack", deviations > threshold, "{window}");
    }
    let by_score = ["detect", "--model", &model(&run), "--threshold", "0", "--calibration", "benign", "benign.log"];
    let by_score = bench.kdgat(&by_score);
    assert!(detections(&by_score).iter().all(|window| window["label"] == "attack"), "--threshold is a score");
    assert_eq!(file["windows"], 40);

    let other = bench.vgae("vgae_student_autoencoder", 2, 2);
    let wrong =
        bench.kdgat(&["detect", "--model", &model(&other), "--calibration", path.to_str().unwrap(), "benign.log"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("was made for weights"), "{}", stderr(&wrong));
    let few = bench.path().join("few.log");
    std::fs::write(&few, candump(&frames[..301])).unwrap();
    let few = bench.kdgat(&["calibrate", "--model", &model(&run), "--benign", "few.log", "--least-seconds", "0"]);
    assert_eq!(few.status.code(), Some(2));
    assert!(stderr(&few).contains("3 attack-free windows are too few"), "{}", stderr(&few));
}

/// Sends a signal and waits for the process to exit without a second signal.
fn ended_by(mut child: Child, signal: rustix::process::Signal) -> Output {
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it is still waiting for a line");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// `systemctl stop` of a service whose bus is silent.
#[test]
fn one_signal_ends_a_silent_stream_in_order() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let text = candump(&frames_of(&bench.log(KNOWN, "spoofing.csv"))[..250]);
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut command = bench.command(&["detect", "--model", &model(&run), "--threshold", "0.5", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        for _ in 0..2 {
            output.read_line(&mut String::new()).unwrap();
        }
        let ended = ended_by(child, signal);
        let said = stderr(&ended);
        assert_eq!(ended.status.code(), Some(0), "{said}");
        assert!(said.contains("stopping after the frames that have come"), "{said}");
        assert!(said.contains("2 windows"), "{said}");
        drop(input);
    }
}

#[test]
fn one_signal_ends_a_pipe_that_nobody_writes_into() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let pipe = bench.path().join("can0");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let arguments = ["detect", "--model", &model(&run), "--threshold", "0.5", "can0"];
    let child = bench.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Opening the pipe waits for the reader, which handles signals by then.
    let writer = std::fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    let ended = ended_by(child, rustix::process::Signal::TERM);
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    drop(writer);

    // Frames written to the pipe give the same output as a file.
    let text = candump(&frames_of(&bench.log(KNOWN, "spoofing.csv"))[..301]);
    let child = bench.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::fs::write(&pipe, &text).unwrap();
    let live = child.wait_with_output().unwrap();
    assert!(live.status.success(), "{}", stderr(&live));
    assert_eq!(detections(&live).len(), 3);
}

#[test]
fn a_calibration_on_a_bus_ends_with_what_has_come() {
    let bench = Bench::new();
    let run = bench.vgae("vgae_student_autoencoder", 1, 1);
    let pipe = bench.path().join("can0");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let arguments =
        ["calibrate", "--model", &model(&run), "--benign", "can0", "--threshold", "fpr:0.1", "--least-seconds", "0.5"];
    let child = bench.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut bus = std::fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    bus.write_all(candump(&frames_of(&bench.log(UNKNOWN, "other.csv"))[..2001]).as_bytes()).unwrap();
    while rustix::io::ioctl_fionread(&bus).unwrap() > 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    let ended = ended_by(child, rustix::process::Signal::INT);
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    assert!(
        stdout(&ended).contains("attack-free windows") && run.join("calibrations/can0.json").exists(),
        "{}",
        stdout(&ended)
    );
    drop(bus);
}

#[test]
fn compressed_streams_are_read_as_compressed_files_are() {
    let bench = Bench::new();
    let run = bench.vgae("vgae_student_autoencoder", 1, 1);
    let text = candump(&frames_of(&bench.log(KNOWN, "fuzzing.csv")));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let detect = || bench.command(&["detect", "--model", &model(&run), "--threshold", "0.5", "-"]);
    let plain = feed(detect(), text.as_bytes());
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    for compressed in [&gzip, &zstd] {
        assert_eq!(feed(detect(), compressed).stdout, plain.stdout);
    }
    let truncated = fed(detect(), &gzip[..gzip.len() / 2]);
    assert_eq!(truncated.status.code(), Some(2));
    assert!(stderr(&truncated).contains("damaged or truncated gzip data"), "{}", stderr(&truncated));
    let arguments = ["calibrate", "--model", &model(&run), "--benign", "-", "--least-seconds", "1"];
    feed(bench.command(&[&arguments[..], &["--output", "car.json"]].concat()), &gzip);
    let nameless = fed(bench.command(&arguments), &gzip);
    assert_eq!(nameless.status.code(), Some(2));
    assert!(stderr(&nameless).contains("the calibration has no name; give one with --name"), "{}", stderr(&nameless));
}

#[test]
fn a_log_of_which_nothing_can_be_read_is_an_error() {
    let bench = Bench::new();
    let name_of_run = model(&bench.gat("gat_student_normal", 1, 1));
    let text = candump(&frames_of(&bench.log(KNOWN, "fuzzing.csv"))[..300]);
    let headless = "timestamp,arbitration_id,foo\n".to_owned() + &"1.0,7DF,bar\n".repeat(300);
    std::fs::write(bench.path().join("drive.log"), &text).unwrap();
    std::fs::write(bench.path().join("foo.csv"), &headless).unwrap();
    let csv: &[&str] = &["--format", "can-train-and-test"];
    let ascii: &[&str] = &["--format", "candump-ascii"];
    for (format, name, content, message) in [
        (ascii, "drive.log", &text, "drop --format to detect the format"),
        (csv, "foo.csv", &headless, "the header needs a column data_field (or data, payload)"),
        (&[], "foo.csv", &headless, "lacks a column data_field (or data, payload)"),
    ] {
        for file in ["-", name] {
            let arguments = [&["detect", "--model", &name_of_run, "--threshold", "0.5", file], format].concat();
            let output = fed(bench.command(&arguments), content.as_bytes());
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
            assert!(stderr(&output).contains(message), "{arguments:?}: {}", stderr(&output));
            assert!(output.stdout.is_empty(), "{arguments:?}");
        }
    }
    let empty = fed(bench.command(&["detect", "--model", &name_of_run, "--threshold", "0.5", "-"]), b"");
    assert_eq!(empty.status.code(), Some(2));
    assert!(stderr(&empty).contains("standard input: the stream ended before its first line"), "{}", stderr(&empty));
}

/// A bus may be silent or carry only error frames during the whole recording.
#[test]
fn headers_and_error_frames_alone_are_no_error_from_a_file_or_a_stream() {
    let bench = Bench::new();
    let name_of_run = model(&bench.gat("gat_student_normal", 1, 1));
    let errors = "(1.0) can0 20000004#0000000000000000\n".repeat(3);
    for (name, content, message) in [
        ("header.csv", "timestamp,arbitration_id,data_field,attack\n", "0 windows"),
        ("errors.log", &errors, "3 CAN error frames skipped"),
    ] {
        std::fs::write(bench.path().join(name), content).unwrap();
        for file in ["-", name] {
            let arguments = ["detect", "--model", &name_of_run, "--threshold", "0.5", file];
            let output = feed(bench.command(&arguments), content.as_bytes());
            assert!(stderr(&output).contains(message), "{arguments:?}: {}", stderr(&output));
        }
    }
}

/// A calibration has the name of its car, is never overwritten by accident, and is used only on request.
#[test]
fn calibrations_are_named_and_used_when_asked_for() {
    let bench = Bench::new();
    let run = bench.vgae("vgae_student_autoencoder", 1, 1);
    let frames = frames_of(&bench.log(UNKNOWN, "other.csv"));
    std::fs::write(bench.path().join("one.log"), candump(&frames[..2001])).unwrap();
    std::fs::write(bench.path().join("two.log"), candump(&frames[2001..4500])).unwrap();
    let name = model(&run);
    let calibrate = |arguments: &[&str]| {
        let calibrate = ["calibrate", "--model", &name, "--benign", "one.log"];
        bench.kdgat(&[&calibrate[..], arguments].concat())
    };
    let refused = |output: &Output, message: &str| {
        assert_eq!(output.status.code(), Some(2), "{}", stderr(output));
        assert!(stderr(output).contains(message), "{}", stderr(output));
    };
    let made = |arguments: &[&str]| -> Value {
        let output = calibrate(&[&["--least-seconds", "0.5"], arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let said = stdout(&output);
        let path = said.lines().find_map(|line| line.strip_prefix("written: ")).unwrap();
        serde_json::from_slice(&std::fs::read(bench.path().join(path)).unwrap()).unwrap()
    };

    refused(&calibrate(&[]), "one.log: 1.0 s of traffic, but a calibration needs at least 10 s");
    refused(&calibrate(&["--seconds", "1"]), "--seconds 1: a calibration needs at least 10 s of traffic");
    refused(&calibrate(&["--name", "../car"]), "'../car' is not a valid calibration name");
    refused(&calibrate(&["--name", "none"]), "'none' is not a valid calibration name");
    refused(&calibrate(&["--benign", "one.log"]), "--benign one.log is given twice");
    refused(&calibrate(&["--model", &name]), "expected a gat and a vgae, got a vgae and a vgae");
    assert!(!run.join("calibrations").exists(), "something was written before the refusal");

    // Several logs: no window spans two of them. Then a limited number of seconds.
    let both = made(&["--benign", "two.log", "--name", "golf"]);
    assert_eq!((both["windows"].as_u64(), both["source"].as_str()), (Some(20 + 24), Some("one.log, two.log")));
    assert!((both["seconds"].as_f64().unwrap() - 2.249).abs() < 1e-3, "{}", both["seconds"]);
    let some = made(&["--benign", "two.log", "--seconds", "1.5", "--name", "polo"]);
    assert_eq!(some["windows"], 20 + 10, "{}", some["seconds"]);
    let one = made(&["--seconds", "0.8"]);
    assert_eq!((one["windows"].as_u64(), one["source"].as_str()), (Some(16), Some("one.log")));

    // No calibration is overwritten.
    let again = |arguments: &[&str]| calibrate(&[&["--least-seconds", "0.5"], arguments].concat());
    let of_golf = std::fs::read(run.join("calibrations/golf.json")).unwrap();
    refused(&again(&["--name", "golf"]), "calibrations/golf.json exists already; use another --name, or --replace");
    assert_eq!(std::fs::read(run.join("calibrations/golf.json")).unwrap(), of_golf);
    assert!(again(&["--name", "golf", "--replace"]).status.success());
    assert_ne!(std::fs::read(run.join("calibrations/golf.json")).unwrap(), of_golf);
    assert!(again(&["--output", "car.json"]).status.success());
    refused(&again(&["--output", "car.json"]), "car.json exists already");

    // No calibration is used unless requested.
    bench.evaluate(&["--resamples", "0", run.to_str().unwrap()]);
    let detect = |arguments: &[&str]| bench.kdgat(&[&["detect", "--model", &name, "two.log"], arguments].concat());
    let plain = detect(&[]);
    assert!(stderr(&plain).contains("recorded on small"), "{}", stderr(&plain));
    let said =
        "no calibration is used; vgae_student_autoencoder/1 has golf, one, polo: choose this car's with --calibration";
    assert!(stderr(&plain).contains(said), "{}", stderr(&plain));
    assert!(detections(&plain).iter().all(|window| window["deviations"].is_null()));
    let none = detect(&["--calibration", "none"]);
    assert_eq!(none.stdout, plain.stdout);
    assert!(!stderr(&none).contains("no calibration is used"), "{}", stderr(&none));
    let polo = detect(&["--calibration", "polo"]);
    assert!(stderr(&polo).contains("calibrations/polo.json, from one.log, two.log"), "{}", stderr(&polo));
    assert!(detections(&polo).iter().all(|window| window["deviations"].is_f64()));
    refused(&detect(&["--calibration", "passat"]), "has no such calibration");
    refused(&detect(&["--calibration", "passat"]), "it has golf, one, polo; `kdgat calibrate` makes one");
    // From a file, and in the form of an earlier version.
    assert_eq!(detect(&["--calibration", "car.json"]).status.code(), Some(0));
    let mut earlier = some.clone();
    earlier.as_object_mut().unwrap().remove("seconds");
    std::fs::write(run.join("calibration.json"), earlier.to_string()).unwrap();
    for earlier in ["calibration.json", run.join("calibration.json").to_str().unwrap()] {
        assert_eq!(detect(&["--calibration", earlier]).stdout, polo.stdout, "{earlier}");
    }
    let told = detect(&[]);
    assert_eq!(told.stdout, plain.stdout, "it is not used by default any more");
    assert!(stderr(&told).contains("calibration.json"), "{}", stderr(&told));
}

/// A rule uses the threshold that an evaluation has recorded for it; without one, the error says how to record it.
#[test]
fn a_rule_is_a_threshold_where_it_is_recorded() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let log = bench.log(KNOWN, "fuzzing.csv");
    let detect = |arguments: &[&str]| {
        let detect = ["detect", "--model", &model(&run), log.to_str().unwrap()];
        bench.kdgat(&[&detect[..], arguments].concat())
    };
    let refused = |output: &Output, message: &str| {
        assert_eq!(output.status.code(), Some(2), "{}", stderr(output));
        assert!(stderr(output).contains(message), "{}", stderr(output));
    };
    let run_name = model(&run);
    refused(
        &detect(&["--threshold", "fpr:0.05"]),
        &format!(
            "--threshold fpr:0.05: no such threshold is recorded for gat_student_normal/1; `kdgat evaluate {run_name} --threshold \
             fpr:0.05` chooses it on validation windows and records it"
        ),
    );
    for threshold in ["fpr:0.05", "youden"] {
        bench.evaluate(&["--resamples", "0", "--threshold", threshold, run.to_str().unwrap()]);
    }
    let file: Value = serde_json::from_slice(&std::fs::read(run.join("thresholds.json")).unwrap()).unwrap();
    for recorded in file["thresholds"].as_array().unwrap() {
        let method = recorded["method"].as_str().unwrap();
        let output = detect(&["--threshold", method]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains(&format!("({method}, recorded on small)")), "{}", stderr(&output));
        for window in detections(&output) {
            let above = window["score"].as_f64().unwrap() > recorded["value"].as_f64().unwrap();
            assert_eq!(window["label"] == "attack", above, "{method}: {window}");
        }
    }
    refused(&detect(&["--threshold", "fpr:0.2"]), "(recorded: fpr:0.05, youden)");
    refused(&detect(&["--threshold", "many"]), "expected a finite number, fpr:RATE (above 0, below 1), or youden");
    refused(&detect(&["--model", &run_name]), "expected a gat and a vgae, got a gat and a gat");
    // A calibration has a single threshold, that of its rate.
    let benign = bench.path().join("benign.log");
    std::fs::write(&benign, candump(&frames_of(&log)[..1500])).unwrap();
    let calibrate =
        ["calibrate", "--model", &run_name, "--benign", "benign.log", "--least-seconds", "0", "--name", "car"];
    assert!(bench.kdgat(&calibrate).status.success());
    let output = detect(&["--calibration", "car", "--threshold", "fpr:0.001"]);
    assert_eq!(output.stdout, detect(&["--calibration", "car"]).stdout);
    refused(&detect(&["--calibration", "car", "--threshold", "fpr:0.05"]), "car.json was made with fpr:0.001");
}
