//! A detector exported as C gives the scores and verdicts of `kdgat evaluate` and `kdgat detect`.

mod evaluate_support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use evaluate_support::{Bench, KNOWN, UNKNOWN, candump, frames_of, stderr, stdout};
use serde_json::Value;

/// True if there is a C compiler; says so if there is none.
fn can_compile() -> bool {
    let found = Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: compiling the export (there is no C compiler `cc`)");
    }
    found
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", stdout(output), stderr(output));
    stdout(output)
}

/// Compiles the sources of an export together with the program `main`.
fn compiled(folder: &Path, main: &Path, name: &str) -> PathBuf {
    let program = folder.join(name);
    let mut sources: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    let strict = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"];
    let mut command = Command::new("cc");
    command.args(strict).arg("-I").arg(folder).arg(main).args(sources).arg("-o").arg(&program).arg("-lm");
    succeeded(&command.output().unwrap());
    program
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
    let vectors = compiled(&folder, &folder.join("test/kdgat_test.c"), "vectors");
    assert!(succeeded(&Command::new(vectors).output().unwrap()).contains(" 0 wrong"));
    compiled(&folder, Path::new(REPLAY), "replay")
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
/// detect --calibration`. It belongs to its model, and a damaged one is refused.
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
