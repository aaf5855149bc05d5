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

/// Lines that the exported detector prints for a log: score, verdict, ID and weight.
fn replayed(program: &Path, log: &str) -> Vec<(f64, bool, u32, f32)> {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let log = log.to_owned();
    let writer = std::thread::spawn(move || input.write_all(log.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let id = u32::from_str_radix(fields[2], 16).unwrap();
        (fields[0].parse().unwrap(), fields[1] == "1", id, fields[3].parse().unwrap())
    };
    succeeded(&output).lines().map(line).collect()
}

/// Every window of every test file has the score, verdict and heaviest ID that `kdgat detect` gives it, for f32 and for int8.
#[test]
fn the_c_detector_equals_the_trainer() {
    if !can_compile() {
        return;
    }
    let bench = Bench::new();
    let replay = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/car/replay.c");
    for run in [bench.gat("gat_student_normal", 1, 1), bench.vgae("vgae_student_autoencoder", 1, 1)] {
        bench.evaluate(&["--threads", "1", "--resamples", "0", run.to_str().unwrap()]);
        let run = run.to_str().unwrap();
        let said = succeeded(&bench.kdgat(&["export", run, "--c", "car"]));
        assert!(said.contains("files of C source in car") && said.contains("test it: make -C car test"), "{said}");
        let folder = bench.path().join("car");
        let vectors = compiled(&folder, &folder.join("test/kdgat_test.c"), "vectors");
        assert!(succeeded(&Command::new(vectors).output().unwrap()).contains(" 0 wrong"));
        let program = compiled(&folder, &replay, "replay");
        for (part, name) in [(KNOWN, "fuzzing.csv"), (KNOWN, "spoofing.csv"), (UNKNOWN, "other.csv")] {
            let log = bench.log(part, name);
            let expected = stdout(&bench.kdgat(&["detect", "--model", run, log.to_str().unwrap()]));
            let expected: Vec<Value> = expected.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let found = replayed(&program, &candump(&frames_of(&log)));
            assert_eq!(found.len(), expected.len(), "{name}");
            let mut largest = 0.0_f64;
            for ((score, attack, id, weight), expected) in found.into_iter().zip(&expected) {
                let wanted = expected["score"].as_f64().unwrap();
                let contribution = expected["contribution"].as_f64().unwrap();
                let difference = (score - wanted).abs() / wanted.abs();
                largest = largest.max(difference);
                assert!(difference < 1e-5, "{name}, window {}: {score} instead of {wanted}", expected["window"]);
                assert_eq!(attack, expected["label"] == "attack", "{name}, window {}", expected["window"]);
                let drop = (f64::from(weight) - contribution).abs() / (1.0 + contribution.abs());
                assert!(drop < 1e-4, "{name}: ID {id:03X} weighs {weight} instead of {contribution}");
            }
            println!("{run}, {name}: {} windows, largest relative difference {largest:.1e}", expected.len());
        }
        let said = succeeded(&bench.kdgat(&["export", run, "--c", "car8", "--int8"]));
        assert!(said.contains("car8"), "{said}");
        let folder = bench.path().join("car8");
        let vectors = compiled(&folder, &folder.join("test/kdgat_test.c"), "vectors");
        assert!(succeeded(&Command::new(vectors).output().unwrap()).contains(" 0 wrong"));
        for name in ["car", "car8"] {
            std::fs::remove_dir_all(bench.path().join(name)).unwrap();
        }
    }
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
