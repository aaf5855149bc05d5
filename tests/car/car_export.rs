//! A detector exported as C gives the scores and verdicts of `kdgat evaluate` and `kdgat detect`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::compiler::{can_compile, compiled};
use serde_json::Value;
use support::evaluate::{Bench, KNOWN, UNKNOWN, candump, frames_of, stderr, stdout};

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", stdout(output), stderr(output));
    stdout(output)
}

/// A window's result as the exported detector prints it.
struct Window {
    score: f64,
    attack: bool,
    weight: f64,
    deviations: f64,
}

/// Runs the exported detector on a log.
fn run_on(program: &Path, arguments: &[&str], log: &str) -> Output {
    let mut command = Command::new(program);
    command.current_dir(program.parent().unwrap()).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let log = log.to_owned();
    // A program that refuses its calibration does not read the log.
    let writer = std::thread::spawn(move || drop(input.write_all(log.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn windows<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Window> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |field: usize| fields[field].parse().unwrap();
        Window { score: number(0), attack: fields[1] == "1", weight: number(3), deviations: number(4) }
    };
    lines.map(line).collect()
}

/// Verdicts of `kdgat detect` on a log.
fn detected(bench: &Bench, run: &str, log: &Path, more: &[&str]) -> Vec<Value> {
    let log = log.to_str().unwrap();
    let lines = succeeded(&bench.kdgat(&[&["detect", "--model", run], more, &[log]].concat()));
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Compares scores to 1e-5, verdicts exactly, and what rounding in a difference of scores enlarges to 1e-4.
fn expect_equal(name: &str, found: &[Window], expected: &[Value]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let (mut largest, mut of_deviations) = (0.0_f64, 0.0_f64);
    for (found, expected) in found.iter().zip(expected) {
        let number = |key: &str| expected[key].as_f64();
        let wanted = number("score").unwrap();
        let difference = (found.score - wanted).abs() / wanted.abs();
        largest = largest.max(difference);
        let at = format!("{name}, window {}", expected["window"]);
        assert!(difference < 1e-5, "{at}: {} instead of {wanted}", found.score);
        assert_eq!(found.attack, expected["label"] == "attack", "{at}");
        let contribution = number("contribution").unwrap();
        let drop = (found.weight - contribution).abs() / (1.0 + contribution.abs());
        assert!(drop < 1e-4, "{at}: weight {} instead of {contribution}", found.weight);
        let deviations = number("deviations").unwrap_or(0.0);
        let difference = (found.deviations - deviations).abs() / (1.0 + deviations.abs());
        of_deviations = of_deviations.max(difference);
        assert!(difference < 1e-4, "{at}: {} deviations instead of {deviations}", found.deviations);
    }
    println!("{name}: {} windows, scores differ by {largest:.1e}, deviations by {of_deviations:.1e}", found.len());
}

const REPLAY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/car/replay.c");

/// Exports a run as C and compiles it; returns the program of tests/data/car/replay.c.
fn exported(bench: &Bench, run: &str, folder: &str, more: &[&str]) -> PathBuf {
    let said = succeeded(&bench.kdgat(&[&["export", run, "--c", folder], more].concat()));
    assert!(said.contains(&format!("files of C source in {folder}")), "{said}");
    assert!(said.contains(&format!("test it: make -C {folder} test")), "{said}");
    let folder = bench.path().join(folder);
    let vectors = compiled(&folder, &[folder.join("test/kdgat_test.c")], "vectors", &["-O2"]);
    assert!(succeeded(&Command::new(vectors).output().unwrap()).contains(" 0 wrong"));
    compiled(&folder, &[REPLAY.into()], "replay", &["-O2"])
}

/// Every window of every test file has the score, verdict and heaviest ID that `kdgat detect` gives it, for f32 and for int8.
#[test]
fn the_c_detector_equals_the_trainer() {
    if !can_compile() {
        return;
    }
    let bench = Bench::new();
    for (number, run) in
        [bench.gat("gat_student_normal", 1, 1), bench.vgae("vgae_student_autoencoder", 1, 1)].into_iter().enumerate()
    {
        let run = run.to_str().unwrap();
        bench.evaluate(&["--threads", "1", "--resamples", "0", run]);
        let program = exported(&bench, run, &format!("car{number}"), &[]);
        for (part, name) in [(KNOWN, "fuzzing.csv"), (KNOWN, "spoofing.csv"), (UNKNOWN, "other.csv")] {
            let log = bench.log(part, name);
            let found = succeeded(&run_on(&program, &[], &candump(&frames_of(&log))));
            expect_equal(name, &windows(found.lines()), &detected(&bench, run, &log, &[]));
        }
        exported(&bench, run, &format!("car8-{number}"), &["--int8"]);
        let said = succeeded(&bench.kdgat(&["export", run, "--c", &format!("car{number}"), "--measure"]));
        let flash = said.lines().find_map(|line| line.strip_prefix("flash: ")?.split(' ').next()?.parse::<u64>().ok());
        let network = said.lines().find_map(|line| line.strip_prefix("network: ")?.split(' ').next()?.parse().ok());
        assert!(flash > network && said.contains("memory: ") && said.contains(" µs of one core a window, "), "{said}");
    }
}

/// A calibration in C has the threshold of `kdgat calibrate` from the same frames, and gives the deviations and verdicts of `kdgat
/// detect --calibration`; so does that of `kdgat calibrate` itself, converted by `kdgat export`. It belongs to its model, and a damaged one is refused.
#[test]
fn a_calibration_in_c_equals_the_trainers() {
    if !can_compile() {
        return;
    }
    let bench = Bench::new();
    let log = bench.log(UNKNOWN, "other.csv");
    let frames = frames_of(&log);
    let benign = bench.path().join("benign.log");
    std::fs::write(&benign, candump(&frames[..4_501])).unwrap();
    let benign = benign.to_str().unwrap();
    let mut programs = Vec::new();
    for (name, run) in [
        ("gat", bench.gat("gat_student_normal", 1, 1)),
        ("gat without a list of IDs", bench.gat_with("gat_student_normal", 2, 1, None)),
        ("another gat", bench.gat("gat_student_normal", 3, 2)),
        ("vgae", bench.vgae("vgae_student_autoencoder", 1, 1)),
    ] {
        let run = run.to_str().unwrap();
        bench.evaluate(&["--threads", "1", "--resamples", "0", run]);
        let made = format!("{name}.json");
        let calibrate = ["calibrate", "--model", run, "--benign", benign, "--least-seconds", "1", "--output", &made];
        succeeded(&bench.kdgat(&calibrate));
        let made: Value = serde_json::from_slice(&std::fs::read(bench.path().join(&made)).unwrap()).unwrap();
        let program = exported(&bench, run, &format!("car{}", programs.len()), &[]);
        let lines = succeeded(&run_on(&program, &["--calibrate", benign, "--save", "car.cal"], &candump(&frames)));
        let (first, rest) = lines.split_once('\n').unwrap();
        let (threshold, count) = first.split_once(' ').unwrap();
        assert_eq!((count, made["windows"].as_u64()), ("45", Some(45)), "{name}");
        let (threshold, wanted): (f64, f64) = (threshold.parse().unwrap(), made["threshold"].as_f64().unwrap());
        assert!((threshold - wanted).abs() < 1e-4 * (1.0 + wanted.abs()), "{name}: {threshold} instead of {wanted}");
        let expected = detected(&bench, run, &log, &["--calibration", &format!("{name}.json")]);
        expect_equal(name, &windows(rest.lines()), &expected);
        let loaded = succeeded(&run_on(&program, &["--load", "car.cal"], &candump(&frames)));
        assert_eq!(loaded, rest, "{name}: a saved calibration is the same");
        let (folder, file) = (format!("car{}", programs.len()), format!("{name}.json"));
        let said = succeeded(&bench.kdgat(&["export", run, "--c", &folder, "--calibration", &file]));
        let converted = bench.path().join(&folder).join(format!("{name}.calibration"));
        assert!(said.contains("for kdgat-car --load"), "{said}");
        let loaded = succeeded(&run_on(&program, &["--load", converted.to_str().unwrap()], &candump(&frames)));
        expect_equal(name, &windows(loaded.lines()), &expected);
        programs.push(program);
    }
    let file = programs[0].with_file_name("car.cal");
    let status = |program: &Path| run_on(program, &["--load", file.to_str().unwrap()], "").status.code();
    // 10 and the status: the length of an ID list is missing in the second, the third is of other weights.
    assert_eq!((status(&programs[1]), status(&programs[2]), status(&programs[0])), (Some(14), Some(16), Some(0)));
    std::fs::write(&file, &std::fs::read(&file).unwrap()[1..]).unwrap();
    assert_eq!(status(&programs[0]), Some(14));
}

/// An export never overwrites the files of another model or of somebody else.
#[test]
fn a_folder_of_others_is_refused() {
    let bench = Bench::new();
    let runs = [bench.gat("gat_student_normal", 1, 1), bench.gat("gat_student_normal", 2, 2)];
    let export = |run: &Path, folder: &str| bench.kdgat(&["export", run.to_str().unwrap(), "--c", folder]);
    succeeded(&export(&runs[0], "car"));
    let before = std::fs::read(bench.path().join("car/kdgat_tables.c")).unwrap();
    succeeded(&export(&runs[0], "car"));
    let refused = export(&runs[1], "car");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("car/config.json: belongs to other weights"), "{}", stderr(&refused));
    assert_eq!(std::fs::read(bench.path().join("car/kdgat_tables.c")).unwrap(), before);
    std::fs::create_dir(bench.path().join("own")).unwrap();
    std::fs::write(bench.path().join("own/Makefile"), "all:\n").unwrap();
    let refused = export(&runs[0], "own");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("own/Makefile exists"), "{}", stderr(&refused));
    let refused = bench.kdgat(&["export", runs[0].to_str().unwrap(), "--int8"]);
    assert_eq!(refused.status.code(), Some(2), "--int8 without --c");
}

/// The programs of an export of two models together: tests/data/car/replay.c and `kdgat-car`.
struct Pair {
    replay: PathBuf,
    car: PathBuf,
    /// Half of 1 / spread, summed over the models: the mean of standardised scores magnifies the rounding of both by it.
    magnifies: f64,
}

/// Exports a classifier and an autoencoder together and compiles them.
fn exported_pair(bench: &Bench, runs: [&str; 2], folder: &str, more: &[&str]) -> Pair {
    let said = succeeded(&bench.kdgat(&[&["export", runs[0], runs[1], "--c", folder], more].concat()));
    assert!(said.contains("attacks: means of both models' standardised scores above "), "{said}");
    let folder = bench.path().join(folder);
    let vectors = compiled(&folder, &[folder.join("test/kdgat_test.c")], "vectors", &["-O2"]);
    assert!(succeeded(&Command::new(vectors).output().unwrap()).contains(" 0 wrong"));
    let replay = compiled(&folder, &[REPLAY.into()], "replay", &["-O2"]);
    let made = Command::new("make").arg("-C").arg(folder.join("example")).output().unwrap();
    assert!(made.status.success() && !stderr(&made).contains("warning"), "{}", stderr(&made));
    let config = std::fs::read_to_string(folder.join("kdgat_config.h")).unwrap();
    let spread = |name: &str| -> f64 {
        let prefix = format!("#define KDGAT_{name}_SPREAD ");
        config.lines().find_map(|line| line.strip_prefix(prefix.as_str())).unwrap().parse().unwrap()
    };
    let magnifies = 0.5 / spread("CLASSIFIER") + 0.5 / spread("AUTOENCODER");
    Pair { replay, car: folder.join("example/kdgat-car"), magnifies }
}

/// Compares lines of `kdgat-car` with those of `kdgat detect` with the same two models.
fn expect_same_lines(name: &str, pair: &Pair, found: &str, expected: &[Value]) {
    let found: Vec<Value> = found.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(found.len(), expected.len(), "{name}");
    let mut largest = 0.0_f64;
    for (found, expected) in found.iter().zip(expected) {
        let at = format!("{name}, window {}: {found} instead of {expected}", expected["window"]);
        for key in ["window", "first_frame", "time", "label", "id"] {
            assert_eq!(found[key], expected[key], "{at}");
        }
        // The mean of standardised scores may be 0; a probability and a difficulty are not. Single precision holds log odds and log
        // difficulties to about a millionth.
        for (pointer, least, limit) in [
            ("/score", 1.0 + 0.1 * pair.magnifies, 1e-5),
            ("/scores/gat", 0.0, 1e-5),
            ("/scores/vgae", 0.0, 1e-5),
            ("/contribution", 1.0, 1e-4),
        ] {
            let of = |value: &Value| value.pointer(pointer).and_then(Value::as_f64).unwrap();
            let difference = (of(found) - of(expected)).abs() / (least + of(expected).abs());
            assert!(difference < limit, "{at}: {pointer}");
            largest = if pointer == "/score" { largest.max(difference) } else { largest };
        }
    }
    println!("{name}: {} windows, scores differ by {largest:.1e}", found.len());
}

/// A classifier and an autoencoder in one folder give the scores, verdicts and IDs of `kdgat detect` with the same two runs.
#[test]
fn two_models_together_equal_the_trainer() {
    if !can_compile() {
        return;
    }
    let bench = Bench::new();
    let (gat, vgae) = (bench.gat("gat_student_normal", 1, 1), bench.vgae("vgae_student_autoencoder", 1, 1));
    let (gat, vgae) = (gat.to_str().unwrap(), vgae.to_str().unwrap());
    let refused = bench.kdgat(&["export", gat, vgae, "--c", "early"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("no threshold is recorded for "), "{}", stderr(&refused));
    bench.evaluate(&["--threads", "1", "--resamples", "0", gat, vgae]);
    // In any order, as for `kdgat detect`.
    let pair = exported_pair(&bench, [vgae, gat], "pair", &[]);
    let mut labels = Vec::new();
    for (part, name) in [(KNOWN, "fuzzing.csv"), (KNOWN, "spoofing.csv"), (UNKNOWN, "other.csv")] {
        let log = bench.log(part, name);
        let text = candump(&frames_of(&log));
        let expected = detected(&bench, gat, &log, &["--model", vgae]);
        expect_same_lines(name, &pair, &succeeded(&run_on(&pair.car, &["-"], &text)), &expected);
        let scores = succeeded(&run_on(&pair.replay, &["--scores"], &text));
        let verdicts: Vec<bool> = scores.lines().map(|line| line.ends_with(" 1")).collect();
        let wanted: Vec<bool> = expected.iter().map(|line| line["label"] == "attack").collect();
        assert_eq!(verdicts, wanted, "{name}");
        labels.extend(wanted);
    }
    assert!(labels.contains(&true) && labels.contains(&false), "both verdicts occur");
    exported_pair(&bench, [gat, vgae], "pair8", &["--int8"]);

    let said = succeeded(&bench.kdgat(&["export", gat, vgae, "--c", "pair", "--measure"]));
    assert!(said.contains("memory: ") && !said.contains("calibration"), "{said}");
    let refused = run_on(&pair.car, &["--calibrate", "10s", "--save", "car.cal", "-"], "");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("two models together have no calibration in C"), "{}", stderr(&refused));
}

/// Two models are refused without --c, if they are no pair, and if one folder has the export of one of them.
#[test]
fn two_models_that_cannot_be_exported_together_are_refused() {
    let bench = Bench::new();
    let gats = [bench.gat("gat_student_normal", 1, 1), bench.gat("gat_student_normal", 2, 2)];
    let vgae = bench.vgae("vgae_student_autoencoder", 1, 1);
    let [one, other, vgae] = [&gats[0], &gats[1], &vgae].map(|run| run.to_str().unwrap());
    let refused = |arguments: &[&str], reason: &str| {
        let output = bench.kdgat(&[&["export"], arguments].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    };
    refused(&[one, vgae], "only --c exports two models together");
    refused(&[one, other, "--c", "gats", "--threshold", "1"], "expected a gat and a vgae, got a gat and a gat");
    bench.evaluate(&["--threads", "1", "--resamples", "0", one, vgae]);
    succeeded(&bench.kdgat(&["export", one, "--c", "car"]));
    refused(&[one, vgae, "--c", "car"], "car/config.json: belongs to other weights");
}
