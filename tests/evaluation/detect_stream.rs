//! `kdgat detect` gives the scores of an evaluation from a stream.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::evaluate::{Bench, KNOWN, candump, detections, frames_of, model, stderr, stdout};
use support::starter;
use support::stops::ended_by;

fn fed(command: Command, text: &[u8]) -> Output {
    let mut command = starter::shared(command);
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
            bench.rows_of_models("predictions.csv").into_iter().filter(|row| row["file"] == "fuzzing.csv").collect();
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
    refused(&detect(&[&gat, &vgae, &other], &[]), "3 models are named");
    refused(
        &detect(&[&other, &vgae], &["--threshold", "fpr:0.001"]),
        "no such threshold is recorded for gat_student_normal/2 + vgae_student_autoencoder/1; `kdgat evaluate",
    );
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
    let mut command = starter::shared(bench.command(&["detect", "--model", &model(&run), "--threshold", "1", "-"]));
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

/// `systemctl stop` of a service whose bus is silent.
#[test]
fn one_signal_ends_a_silent_stream_in_order() {
    let bench = Bench::new();
    let run = bench.gat("gat_student_normal", 1, 1);
    let text = candump(&frames_of(&bench.log(KNOWN, "spoofing.csv"))[..250]);
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let arguments = ["detect", "--model", &model(&run), "--threshold", "0.5", "-"];
        let mut command = starter::shared(bench.command(&arguments));
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
    let child =
        starter::shared(bench.command(&arguments)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Opening the pipe waits for the reader, which handles signals by then.
    let writer = std::fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    let ended = ended_by(child, rustix::process::Signal::TERM);
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    drop(writer);

    // Frames written to the pipe give the same output as a file.
    let text = candump(&frames_of(&bench.log(KNOWN, "spoofing.csv"))[..301]);
    let child =
        starter::shared(bench.command(&arguments)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::fs::write(&pipe, &text).unwrap();
    let live = child.wait_with_output().unwrap();
    assert!(live.status.success(), "{}", stderr(&live));
    assert_eq!(detections(&live).len(), 3);
}

#[cfg(feature = "compressed")]
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

/// Garbage must not switch a detector off: a stream goes on, says so once, and heartbeats have the share of the last 1,000 rows.
#[test]
fn a_live_stream_of_garbage_is_told_and_goes_on() {
    let bench = Bench::new();
    let run = model(&bench.gat("gat_student_normal", 1, 1));
    let text = candump(&frames_of(&bench.log(KNOWN, "fuzzing.csv"))[..1500]);
    let lines: Vec<&str> = text.lines().collect();
    let arguments = ["detect", "--model", &run, "--threshold", "2", "-", "--alarms", "--heartbeat", "20ms"];
    let mut command = starter::shared(bench.command(&arguments));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut wait_for_share = |share: f64| loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "no heartbeat with the share {share}");
        let event: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["event"], "heartbeat", "{event}");
        if event["reject_share"] == share {
            return;
        }
    };
    write!(input, "{}\n{}", lines[..500].join("\n"), "garbage\n".repeat(400)).unwrap();
    wait_for_share(400.0 / 900.0);
    write!(input, "{}", "garbage\n".repeat(350)).unwrap();
    wait_for_share(0.75);
    writeln!(input, "{}", lines[500..].join("\n")).unwrap();
    wait_for_share(0.0);
    drop(input);
    let ended = child.wait_with_output().unwrap();
    let said = stderr(&ended);
    assert_eq!(ended.status.code(), Some(0), "{said}");
    assert_eq!(said.matches("of the last 1000 rows could not be read").count(), 1, "{said}");
    assert!(said.contains("750 lines skipped") && said.contains("14 windows"), "{said}");
    assert!(said.contains("warning: standard input: 750 of 2250 rows rejected (33.3 %"), "{said}");
    // With another limit, the same rows are nothing to tell.
    let all = [&lines[..1000], &["garbage"; 100], &lines[1000..]].concat().join("\n");
    let few = feed(
        bench.command(&["detect", "--model", &run, "--threshold", "2", "-", "--max-reject-share", "0.2"]),
        all.as_bytes(),
    );
    assert!(!stderr(&few).contains("warning") && stderr(&few).contains("100 lines skipped"), "{}", stderr(&few));
}

/// Interfaces are buses of their own: a log or a stream of several needs a choice, and gives what the log of that interface gives.
#[test]
fn one_interface_is_read_where_there_are_several() {
    let bench = Bench::new();
    let run = model(&bench.gat("gat_student_normal", 1, 1));
    let alone = candump(&frames_of(&bench.log(KNOWN, "fuzzing.csv"))[..1500]);
    let other = alone.replace("can0 ", "vcan1 ");
    let merged: String = alone.lines().zip(other.lines()).map(|(one, other)| format!("{other}\n{one}\n")).collect();
    let detect =
        |arguments: &[&str]| bench.command(&[&["detect", "--model", &run, "--threshold", "0.5"], arguments].concat());
    let expected = feed(detect(&["-"]), alone.as_bytes());
    std::fs::write(bench.path().join("both.log"), &merged).unwrap();
    for (file, listed) in [("both.log", "can0 (1500 frames), vcan1 (1500 frames)"), ("-", "")] {
        let refused = fed(detect(&[file]), merged.as_bytes());
        let said = stderr(&refused);
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{said}");
        assert!(said.contains(&format!("has frames of several interfaces: {listed}")), "{said}");
        assert!(said.contains(" can0 (") && said.contains(" vcan1 ("), "{said}");
        assert!(said.contains("choose one with --interface NAME"), "{said}");
        let piped = if file == "-" { merged.as_bytes() } else { b"" };
        let chosen = feed(detect(&[file, "--interface", "can0"]), piped);
        assert_eq!(stdout(&chosen), stdout(&expected), "{file}");
        let wrong = fed(detect(&[file, "--interface", "can7"]), merged.as_bytes());
        assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
        assert!(
            stderr(&wrong).contains("no frame is of this interface; the log has can0 (1500 frames)"),
            "{}",
            stderr(&wrong)
        );
    }
    // Another interface that comes up later does not end a detector, and is not merged.
    let later: String = alone
        .lines()
        .zip(other.lines())
        .enumerate()
        .map(|(row, (one, other))| if row < 1200 { format!("{one}\n") } else { format!("{one}\n{other}\n") })
        .collect();
    let mut child = starter::shared(detect(&["-"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let begin = later.match_indices('\n').nth(1199).unwrap().0 + 1;
    input.write_all(&later.as_bytes()[..begin]).unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut printed = String::new();
    // The eleventh window ends within the rows that were sent, so that they have been read.
    while printed.lines().count() < 11 {
        output.read_line(&mut printed).unwrap();
    }
    input.write_all(&later.as_bytes()[begin..]).unwrap();
    drop(input);
    std::io::Read::read_to_string(&mut output, &mut printed).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), printed), (Some(0), stdout(&expected)), "{}", stderr(&ended));
    let said = stderr(&ended);
    assert!(said.contains("frames of another interface have come") && said.contains("are left out"), "{said}");
}

/// Times in other units are refused in a file, told of in a stream, and read with `--time-unit`.
#[test]
fn times_that_cannot_be_are_refused_or_read_in_their_unit() {
    let bench = Bench::new();
    let run = model(&bench.gat("gat_student_normal", 1, 1));
    let frames = &frames_of(&bench.log(KNOWN, "fuzzing.csv"))[..1500];
    // 2,000 frames a second, at regular times.
    let scaled = |factor: f64| {
        let frame = |frame: &kdgat::can::Frame| kdgat::can::Frame { timestamp: frame.timestamp * factor, ..*frame };
        candump(&frames.iter().map(frame).collect::<Vec<_>>())
    };
    let detect =
        |arguments: &[&str]| bench.command(&[&["detect", "--model", &run, "--threshold", "0.5"], arguments].concat());
    let expected = feed(detect(&["-"]), scaled(1.0).as_bytes());
    let labels =
        |output: &Output| -> Vec<Value> { detections(output).iter().map(|one| one["label"].clone()).collect() };
    for (unit, factor) in [("ms", 1e3), ("us", 1e6)] {
        std::fs::write(bench.path().join("drive.log"), scaled(factor)).unwrap();
        let refused = bench.kdgat(&["detect", "--model", &run, "--threshold", "0.5", "drive.log"]);
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(&format!("give --time-unit {unit}")), "{}", stderr(&refused));
        let calibrate = ["calibrate", "--model", &run, "--benign", "drive.log", "--output", "car.json"];
        let refused = bench.kdgat(&calibrate);
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(&format!("give --time-unit {unit}")), "{}", stderr(&refused));
        let read = bench.kdgat(&["detect", "--model", &run, "--threshold", "0.5", "drive.log", "--time-unit", unit]);
        assert!(read.status.success(), "{}", stderr(&read));
        assert_eq!(labels(&read), labels(&expected));
        let (time, right) =
            (detections(&read)[3]["time"].as_f64().unwrap(), detections(&expected)[3]["time"].as_f64().unwrap());
        assert!((time - right).abs() < 2e-6, "{time} {right}");
        // What the user says wins.
        let slow = bench.kdgat(&["detect", "--model", &run, "--threshold", "0.5", "drive.log", "--time-unit", "s"]);
        assert!(slow.status.success(), "{}", stderr(&slow));
        let live = feed(detect(&["-"]), scaled(factor).as_bytes());
        assert!(
            stderr(&live).contains("warning: standard input: ")
                && stderr(&live).contains(&format!("--time-unit {unit}"))
        );
    }
}
