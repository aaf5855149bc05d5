//! `kdgat calibrate` and `kdgat detect --calibration`: another car is judged by what is usual for it.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::evaluate::{Bench, UNKNOWN, candump, detections, frames_of, model, stderr, stdout};
use support::starter;
use support::stops::{ended_by, wait_for};

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
    let said = "gat_student_normal/1 + vgae_student_autoencoder/1: attacks are scores above";
    assert!(stdout(&made).contains(said), "{}", stdout(&made));
    let detect = |models: &[&str], calibration: &str| {
        bench.kdgat(&[&["detect", log.to_str().unwrap(), "--calibration", calibration], models].concat())
    };
    let output = detect(&both, "car");
    assert!(output.status.success(), "{}", stderr(&output));
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

#[test]
fn a_calibration_on_a_bus_ends_with_what_has_come() {
    let bench = Bench::new();
    let run = bench.vgae("vgae_student_autoencoder", 1, 1);
    let pipe = bench.path().join("can0");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let arguments =
        ["calibrate", "--model", &model(&run), "--benign", "can0", "--threshold", "fpr:0.1", "--least-seconds", "0.5"];
    let child =
        starter::shared(bench.command(&arguments)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut bus = std::fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    bus.write_all(candump(&frames_of(&bench.log(UNKNOWN, "other.csv"))[..2001]).as_bytes()).unwrap();
    wait_for("a reader of the frames", || rustix::io::ioctl_fionread(&bus).unwrap() == 0);
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
    // From a file.
    std::fs::copy(run.join("calibrations/polo.json"), bench.path().join("copy.json")).unwrap();
    assert_eq!(detect(&["--calibration", "copy.json"]).stdout, polo.stdout);
}
