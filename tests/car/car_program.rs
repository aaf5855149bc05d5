//! The example program of an export as C, `kdgat-car`, prints the lines of `kdgat detect` and ends like it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::compiler;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::evaluate::{Bench, KNOWN, candump, frames_of, profile_of, regular_traffic, stderr, stdout};
use support::graph::{traffic, write_log};

/// A run, and the program that was exported from it and compiled.
struct Exported {
    bench: Bench,
    run: String,
    program: PathBuf,
    threshold: String,
    log: String,
}

/// True if the program can be compiled; says so if not.
fn can_compile() -> bool {
    if !cfg!(target_os = "linux") {
        println!("skipped: compiling kdgat-car (it needs Linux)");
        return false;
    }
    compiler::can_compile()
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", stdout(output), stderr(output));
    stdout(output)
}

fn lines(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Compiles the example of an export without a warning.
fn compiled(folder: &Path) -> PathBuf {
    compiled_with(folder, "kdgat-car", "-DKDGAT_CALIBRATION_WINDOWS=12000u")
}

fn compiled_with(folder: &Path, name: &str, definition: &str) -> PathBuf {
    compiler::compiled(folder, &compiler::sources(&folder.join("example")), name, &["-O2", definition])
}

impl Exported {
    /// A classifier, whose threshold makes a third of the log's windows attacks.
    fn gat() -> Self {
        let bench = Bench::new();
        let run = bench.gat("gat_student_normal", 1, 1);
        Self::new(bench, &run)
    }

    fn vgae() -> Self {
        let bench = Bench::new();
        let run = bench.vgae("vgae_student_autoencoder", 1, 1);
        Self::new(bench, &run)
    }

    fn new(bench: Bench, run: &Path) -> Self {
        let run = run.to_str().unwrap().to_owned();
        let log = bench.path().join("drive.log");
        std::fs::write(&log, candump(&frames_of(&bench.log(KNOWN, "fuzzing.csv")))).unwrap();
        let log = log.to_str().unwrap().to_owned();
        let all = lines(&bench.kdgat(&["detect", "--model", &run, "--threshold", "0.5", &log]));
        // In the middle of a wide gap between two scores, so that no rounding changes a verdict.
        let mut scores: Vec<f64> = all.iter().map(|window| window["score"].as_f64().unwrap()).collect();
        scores.sort_unstable_by(f64::total_cmp);
        let third = &scores[scores.len() / 2..scores.len() * 5 / 6];
        let pair =
            third.windows(2).max_by(|left, right| (left[1] - left[0]).total_cmp(&(right[1] - right[0]))).unwrap();
        let threshold = ((pair[0] + pair[1]) / 2.0).to_string();
        succeeded(&bench.kdgat(&["export", &run, "--c", "car", "--threshold", &threshold]));
        let program = compiled(&bench.path().join("car"));
        Self { bench, run, program, threshold, log }
    }

    fn detect(&self, arguments: &[&str]) -> Output {
        self.bench.kdgat(&[&["detect", "--model", &self.run, "--threshold", &self.threshold], arguments].concat())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(self.bench.path()).args(arguments).stdin(Stdio::null());
        command
    }

    fn car(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs the program with a text on its standard input.
    fn piped(&self, arguments: &[&str], text: impl Into<Vec<u8>>) -> Output {
        let mut child = self.live(arguments, &[]);
        let (mut input, text) = (child.stdin.take().unwrap(), text.into());
        // A program that refuses its input does not read all of it.
        let writer = std::thread::spawn(move || drop(input.write_all(&text)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output
    }

    fn live(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Child {
        let mut command = self.command(arguments);
        command.envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// Compares lines: the same keys in the same order, numbers to rounding, all else exactly.
fn expect_same(found: &Value, expected: &Value, at: &str) {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{at}");
            expected.iter().for_each(|(key, expected)| expect_same(&found[key], expected, &format!("{at}: {key}")));
        }
        (Value::Array(found), Value::Array(expected)) => {
            assert_eq!(found.len(), expected.len(), "{at}");
            found.iter().zip(expected).for_each(|(found, expected)| expect_same(found, expected, at));
        }
        (Value::Number(number), Value::Number(wanted)) if wanted.is_f64() => {
            let (number, wanted) = (number.as_f64().unwrap(), wanted.as_f64().unwrap());
            let largest = match at.rsplit(": ").next().unwrap_or_default() {
                "score" | "highest_score" => 1e-5 * wanted.abs(),
                "time" | "since" | "seconds" | "duration_seconds" | "limit_seconds" => 0.0,
                // Differences of scores, in which rounding counts more: the scores of an untrained model differ little.
                "deviations" | "highest_deviations" => 1e-3 * (1.0 + wanted.abs()),
                _ => 1e-4 * (1.0 + wanted.abs()),
            };
            assert!((number - wanted).abs() <= largest, "{at}: {number} instead of {wanted}");
        }
        _ => assert_eq!(found, expected, "{at}"),
    }
}

fn expect_same_lines(found: &Output, expected: &Output) {
    let (printed, wanted) = (lines(found), lines(expected));
    assert_eq!(printed.len(), wanted.len(), "{}{}", stdout(found), stderr(found));
    for (number, (found, expected)) in printed.iter().zip(&wanted).enumerate() {
        expect_same(found, expected, &format!("line {number}"));
    }
    assert_eq!(found.status.code(), expected.status.code(), "{}{}", stderr(found), stderr(expected));
}

#[test]
fn windows_and_alarms_are_those_of_kdgat_detect() {
    if !can_compile() {
        return;
    }
    for exported in [Exported::gat(), Exported::vgae()] {
        let log = exported.log.as_str();
        let expected = exported.detect(&[log]);
        assert!(lines(&expected).iter().any(|window| window["label"] == "attack"));
        expect_same_lines(&exported.car(&[log]), &expected);
        let text = std::fs::read(log).unwrap();
        expect_same_lines(&exported.piped(&["-"], text.clone()), &expected);
        // Another threshold than that of the export.
        let every = exported.bench.kdgat(&["detect", "--model", &exported.run, "--threshold", "-1", log]);
        expect_same_lines(&exported.car(&["--threshold=-1", log]), &every);
        for flags in [
            &["--alarms"][..],
            &["--alarms", "--alarm-clear", "1"],
            &["--alarms", "--alarm-after", "2/4", "--alarm-clear", "2", "--cooldown", "300ms"],
            &["--alarms", "--alarm-clear", "1", "--cooldown", "24h"],
            &["--alarms", "--alarm-after", "64/64"],
            &["--alarms", "--threshold", "1e9"],
            &["--alarms", "--threshold", "0.001", "--heartbeat", "500ms", "--silence", "1s"],
        ] {
            let arguments = [flags, &[log]].concat();
            let expected = exported.detect(&arguments);
            let found = exported.car(&arguments);
            expect_same_lines(&found, &expected);
            let raised = |output: &Output| {
                stderr(output).lines().find(|line| line.starts_with("alarms raised")).map(str::to_owned).unwrap()
            };
            assert_eq!(raised(&found), raised(&expected));
            if !flags.contains(&"--heartbeat") {
                expect_same_lines(&exported.piped(&[flags, &["-"]].concat(), text.clone()), &expected);
            }
        }
    }
}

#[test]
fn gaps_and_odd_lines_are_those_of_kdgat_detect() {
    if !can_compile() {
        return;
    }
    let exported = Exported::gat();
    let mut frames = frames_of(Path::new(&exported.log));
    frames[2000..].iter_mut().for_each(|frame| frame.timestamp += 2.0);
    frames[3000..].iter_mut().for_each(|frame| frame.timestamp -= 0.5);
    let mut log: Vec<String> = candump(&frames).lines().map(str::to_owned).collect();
    log.insert(1500, String::new());
    log.insert(1400, "(1.0) can0 20000004#0000000000000000".to_owned());
    log.insert(1300, "(1000.65) can0 18FEF100##1112233445566778899AABBCC".to_owned());
    log.insert(1200, "(1000.6) can0 123#R R\r".to_owned());
    log.insert(1100, "no frame at all".to_owned());
    log.insert(1000, "(nan) can0 123#00".to_owned());
    // Without a newline at the end.
    std::fs::write(exported.bench.path().join("odd.log"), log.join("\n")).unwrap();
    let flags = ["--alarms", "--silence", "500ms", "--heartbeat", "1s", "odd.log"];
    let expected = exported.detect(&flags);
    assert!(stdout(&expected).contains("silence-end"), "{}", stdout(&expected));
    let found = exported.car(&flags);
    expect_same_lines(&found, &expected);
    let said = stderr(&found);
    assert!(said.contains("warning: odd.log:1001: not a line of candump -L: \"(nan) can0 123#00\""), "{said}");
    assert!(said.contains("2 lines skipped") && said.contains("1 CAN error frames skipped"), "{said}");
    assert!(said.contains(" 6002 frames") && said.contains("silences of the bus: 1"), "{said}");
    expect_same_lines(&exported.car(&["odd.log"]), &exported.detect(&["odd.log"]));
}

#[test]
fn wrong_input_and_wrong_flags_are_refused() {
    if !can_compile() {
        return;
    }
    let exported = Exported::gat();
    let log = exported.log.as_str();
    let refused = |output: &Output, message: &str| {
        assert_eq!(output.status.code(), Some(2), "{message}: {}", stderr(output));
        assert!(stderr(output).contains(message), "{message}: {}", stderr(output));
    };
    for (arguments, message) in [
        (&[][..], "no input: name a log"),
        (&["nowhere.log"], "cannot open nowhere.log: No such file"),
        (&["."], ". is a folder; expected a log of candump -L"),
        (&["/dev/null"], "/dev/null is empty; expected lines of candump -L"),
        (&[log, log], "only one input"),
        (&[log, log, "--calibrate", "10s", "--save", "x"], "is given twice"),
        (&[log, "--interface", "can0"], "exclude each other"),
        (&["--interface", "no-such-bus"], "error: --interface no-such-bus:"),
        (&[log, "--alarm-after", "3/5"], "--alarm-after: this option needs --alarms"),
        (&[log, "--exec", "true"], "--exec: this option needs --alarms"),
        (&[log, "--alarms", "--alarm-after", "5/3"], "expected K/N with whole numbers, 1 <= K <= N <= 64, such as 3/5"),
        (&[log, "--alarms", "--alarm-clear", "0"], "at least 1"),
        (&[log, "--alarms", "--cooldown", "10"], "expected a duration up to 24h with its unit (ms, s, min or h)"),
        (&[log, "--alarms", "--silence", "0s"], "expected a duration above 0"),
        (&[log, "--alarms", "--heartbeat", "2days"], "such as 500ms, 10s or 5min"),
        (&[log, "--alarms", "--syslog=nowhere"], "--syslog: cannot reach the system's log at nowhere"),
        (&[log, "--alarms=yes"], "--alarms: this option takes no value"),
        (&[log, "--threshold", "fpr:0.1"], "is chosen by kdgat export --threshold"),
        (&[log, "--threshold"], "--threshold: this option needs a value"),
        (&[log, "--alarm"], "--alarm: unknown option; see kdgat-car --help"),
        (&[log, "--max-reject-share", "2"], "expected a share from 0 to 1"),
        (&[log, "--load", "nowhere"], "--load nowhere: No such file"),
        (&[log, "--load", log], "it has not the length of a calibration of this model"),
        (&[log, "--calibrate", "60s"], "--calibrate and --save belong together"),
        (&[log, "--calibrate", "5s", "--save", "x"], "a calibration needs at least 10 s of traffic"),
        (&[log, "--replace"], "--replace: this option needs --save"),
    ] {
        let output = exported.car(arguments);
        refused(&output, message);
        assert!(output.stdout.is_empty(), "{message}");
    }
    let help = exported.car(&["--help"]);
    assert!(succeeded(&help).contains("--alarm-after K/N"));

    // A log of another kind; one that turns into something else; a little that is wrong.
    let csv = std::fs::read(exported.bench.log(KNOWN, "fuzzing.csv")).unwrap();
    refused(
        &exported.piped(&["-"], csv),
        "lines are not of candump -L, the first at line 1: \"timestamp,arbitration_id",
    );
    let gzip = [b"\x1f\x8b\x08".to_vec(), vec![0; 100]].concat();
    refused(&exported.piped(&["-"], gzip), "is compressed; use zcat LOG | kdgat-car -");
    let text = std::fs::read_to_string(log).unwrap();
    std::fs::write(exported.bench.path().join("turned.log"), text.clone() + &"\u{fffd}\n".repeat(3000)).unwrap();
    let output = exported.car(&["turned.log", "--alarms"]);
    refused(&output, "101 of 6101 lines are not of candump -L, the first at line 6001: \"\\xef\\xbf\\xbd\"");
    let names: Vec<Value> = lines(&output).iter().map(|event| event["event"].clone()).collect();
    assert_eq!(names.last().unwrap(), "alarm-end", "an open alarm has an end");
    assert_eq!(exported.car(&["turned.log", "--max-reject-share", "1"]).status.code(), Some(0));
    // A calibration is of a bus that is read.
    let garbage =
        exported.piped(&["-", "--calibrate", "10s", "--save", "x"], text.clone() + &"\u{fffd}\n".repeat(3000));
    refused(&garbage, "101 of 6101 lines are not of candump -L");
    let long = text.clone() + &"0".repeat(500_000) + "\n" + text.lines().next().unwrap();
    let output = exported.piped(&["-"], long);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stderr(&output).contains("1 lines skipped") && stderr(&output).contains(" 6001 frames"),
        "{}",
        stderr(&output)
    );
}

/// Lines that are no frames do not switch off a detector on a live stream: they are reported once while they last, heartbeats have their
/// share as those of `kdgat detect`, and later frames are judged.
#[test]
fn garbage_does_not_end_a_live_stream() {
    if !can_compile() {
        return;
    }
    let exported = Exported::gat();
    let text = std::fs::read_to_string(&exported.log).unwrap();
    let half = text.match_indices('\n').nth(2999).unwrap().0 + 1;
    let (before, after) = text.split_at(half);
    let mixed = [before, &"garbage\n".repeat(5000), after].concat();
    let found = exported.piped(&["-"], mixed.clone());
    let clean = exported.car(&[&exported.log]);
    assert_eq!((found.status.code(), stdout(&found)), (Some(0), stdout(&clean)), "{}", stderr(&found));
    let said = stderr(&found);
    let warning =
        "warning: standard input: 101 of the last 1000 lines are not of candump -L (the first of all at line 3001)";
    assert_eq!(said.matches("of the last 1000 lines").count(), 1, "{said}");
    assert!(said.contains(warning) && said.contains("the detection goes on"), "{said}");
    assert!(said.contains("warning: standard input: 5000 of 11000 lines are not of candump -L"), "{said}");
    let mut detect =
        exported.bench.command(&["detect", "--model", &exported.run, "--threshold", &exported.threshold, "-"]);
    let mut child = detect.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(mixed.as_bytes()).unwrap());
    expect_same_lines(&found, &child.wait_with_output().unwrap());
    writer.join().unwrap();

    // Few rows: their share is among those that have come.
    let flags = ["-", "--alarms", "--heartbeat", "20ms"];
    let arguments = [&["detect", "--model", &exported.run, "--threshold", &exported.threshold][..], &flags].concat();
    for mut command in [exported.command(&flags), exported.bench.command(&arguments)] {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut share_until = |wanted: f64| loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "no heartbeat with {wanted}");
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == "heartbeat" && event["reject_share"].as_f64().unwrap() == wanted {
                assert_eq!(event.as_object().unwrap().keys().next_back().unwrap(), "reject_share", "{line}");
                break;
            }
        };
        share_until(0.0);
        input.write_all([&text[..text.find('\n').unwrap() + 1].repeat(3), "garbage\n"].concat().as_bytes()).unwrap();
        share_until(0.25);
        drop(input);
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

/// A closed pipe ends the program without an error.
#[test]
fn a_closed_output_is_no_error_and_signals_end_a_stream() {
    if !can_compile() {
        return;
    }
    let exported = Exported::gat();
    let mut child = exported.command(&[&exported.log]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));

    let folder = exported.bench.path();
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    let variables = [("NOTIFY_SOCKET", folder.join("notify").to_str().unwrap().to_owned())];
    let variables = [(variables[0].0, variables[0].1.as_str()), ("WATCHDOG_USEC", "100000")];
    let flags = ["-", "--threshold", "0", "--alarms", "--silence", "200ms", "--heartbeat", "50ms"];
    let mut child = exported.live(&flags, &variables);
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut next = |wanted: &str| -> Value {
        loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "no {wanted}");
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == wanted {
                return event;
            }
        }
    };
    // No frame at all, then 250 of them, then none.
    assert!(next("silence")["time"].is_null());
    let frames = frames_of(Path::new(&exported.log));
    input.write_all(candump(&frames[..250]).as_bytes()).unwrap();
    assert!(next("silence-end")["seconds"].as_f64().unwrap() >= 0.2);
    assert_eq!(next("alarm")["window"], 0);
    assert!((next("silence")["time"].as_f64().unwrap() - frames[249].timestamp).abs() < 1e-5);
    assert_eq!(next("heartbeat")["silent"], true);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let end = next("alarm-end");
    assert_eq!((&end["ended_by"], end["attack_windows"].as_u64()), (&"end".into(), Some(2)));
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "a service was stopped: {}", stderr(&ended));
    assert!(
        stderr(&ended).contains("2 windows, 2 of them called attacks") && stderr(&ended).contains("; 250 frames"),
        "{}",
        stderr(&ended)
    );
    assert!(stderr(&ended).contains("silences of the bus: 2, the last to the end"), "{}", stderr(&ended));
    drop(input);
    manager.set_nonblocking(true).unwrap();
    let mut told = Vec::new();
    let mut buffer = [0; 100];
    while let Ok(length) = manager.recv(&mut buffer) {
        told.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    assert_eq!((told[0].as_str(), told[told.len() - 1].as_str()), ("READY=1", "STOPPING=1"));
    assert!(told.len() > 2 && told[1..told.len() - 1].iter().all(|state| state == "WATCHDOG=1"), "{told:?}");
}

#[test]
fn commands_and_the_system_log_get_the_events() {
    if !can_compile() {
        return;
    }
    let exported = Exported::gat();
    let socket = exported.bench.path().join("log");
    let daemon = UnixDatagram::bind(&socket).unwrap();
    let command =
        "cat >> calls; echo \"$KDGAT_EVENT $KDGAT_ALARM $KDGAT_SEVERITY $KDGAT_IDS\" >> names; echo printed; exit 5";
    let syslog = format!("--syslog={}", socket.display());
    // One alarm: the socket queues few messages, and nobody reads them before the end.
    let flags = [exported.log.as_str(), "--alarms", "--alarm-clear", "1000", "--exec", command, &syslog];
    // An inherited variable of an event is not passed on.
    let output = exported.command(&flags).env("KDGAT_IDS", "inherited").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let read = |name: &str| std::fs::read_to_string(exported.bench.path().join(name)).unwrap();
    assert_eq!(read("calls"), stdout(&output), "the events, and nothing that the command prints");
    let events = lines(&output);
    let named: Vec<String> = events
        .iter()
        .map(|event| {
            let ids: Vec<&str> =
                event["culprits"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
            let [name, severity] = ["event", "severity"].map(|key| event[key].as_str().unwrap());
            format!("{name} {} {severity} {}", event["alarm"], ids.join(" "))
        })
        .collect();
    assert_eq!(read("names").lines().collect::<Vec<_>>(), named);
    let said = stderr(&output);
    assert_eq!(said.matches("it failed with exit status 5").count(), 1, "{said}");
    assert!(said.contains(&format!("--exec: {0} calls, {0} of them failed", events.len())), "{said}");
    for line in stdout(&output).lines() {
        let mut buffer = [0; 4096];
        let length = daemon.recv(&mut buffer).unwrap();
        let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
        assert!(
            message.starts_with('<') && message.contains(">kdgat-car[") && message.ends_with(&format!("]: {line}")),
            "{message}"
        );
    }

    // A command that hangs holds up nothing; calls that find no place are dropped.
    let fifo = exported.bench.path().join("end");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let flags = ["-", "--alarms", "--alarm-clear", "1", "--threshold", "2", "--exec", "echo > end"];
    let days = (0..100).map(|day| 86_400 * day);
    let silences: String = days.map(|time| format!("({time}.0) can0 123#00\n({time}.1) can0 123#00\n")).collect();
    let mut child = exported.live(&[&flags[..], &["--silence", "12h"]].concat(), &[]);
    let mut input = child.stdin.take().unwrap();
    input.write_all(silences.as_bytes()).unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(printed.by_ref().take(198).count(), 198, "99 silences with their ends, while the first call hangs");
    // From now on there is a reader for the line of each call.
    let mut reader = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    reader.read_exact(&mut [0; 65]).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let said = stderr(&output);
    assert!(said.contains("--exec: 65 calls\n") && said.contains("--exec: 133 more calls dropped"), "{said}");
}

/// A library that writes the calls of `fsync` and `rename` to the file `calls`, and makes them.
const WATCHED_CALLS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/stat.h>
static void note(const char *call) {
    FILE *calls = fopen("calls", "a");
    if (calls != NULL) { fprintf(calls, "%s\n", call); fclose(calls); }
}
int fsync(int file) {
    struct stat found;
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    note(fstat(file, &found) == 0 && S_ISDIR(found.st_mode) ? "fsync of a folder" : "fsync of a file");
    return next(file);
}
int rename(const char *from, const char *to) {
    int (*next)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    note("rename");
    return next(from, to);
}
"#;

/// After a power cut there is the old calibration or the new one: the file is on the disk before its name, and then the name.
fn expect_synced(exported: &Exported) {
    let folder = exported.bench.path();
    std::fs::write(folder.join("calls.c"), WATCHED_CALLS).unwrap();
    let mut compile = Command::new("cc");
    compile.current_dir(folder).args(["-shared", "-fPIC", "-o", "calls.so", "calls.c", "-ldl"]);
    succeeded(&compile.output().unwrap());
    std::fs::create_dir(folder.join("saved")).unwrap();
    for path in ["plain", "saved/below"] {
        let mut command = exported.command(&["--calibrate", "11s", "--save", path, "calm.log"]);
        succeeded(&command.env("LD_PRELOAD", folder.join("calls.so")).output().unwrap());
        let calls = std::fs::read_to_string(folder.join("calls")).unwrap();
        assert_eq!(calls, "fsync of a file\nrename\nfsync of a folder\n", "{path}");
        std::fs::remove_file(folder.join("calls")).unwrap();
    }
}

#[test]
fn a_calibration_is_saved_and_loaded() {
    if !can_compile() {
        return;
    }
    for exported in [Exported::gat(), Exported::vgae()] {
        let folder = exported.bench.path().to_path_buf();
        // 12 s without an attack.
        let frames = traffic(24_000, 12, 7, 0..0);
        std::fs::write(folder.join("calm.log"), candump(&frames)).unwrap();
        write_log(&folder, "calm", "calm.csv", &frames);
        let said = succeeded(&exported.car(&["--calibrate", "11s", "--save", "car.calibration", "calm.log"]));
        assert!(
            said.contains("(from 2") && said.contains("windows (11.0 s))") && said.contains("written: car.calibration"),
            "{said}"
        );
        assert!(said.contains("needs at least 1000 windows"), "{said}");
        let calibrate = [
            "calibrate",
            "--model",
            &exported.run,
            "--benign",
            "calm/calm.csv",
            "--seconds",
            "11",
            "--output",
            "car.json",
        ];
        succeeded(&exported.bench.kdgat(&calibrate));
        let detect = ["detect", "--model", &exported.run, "--calibration", "car.json", &exported.log];
        let calibrated = ["--load", "car.calibration", &exported.log];
        expect_same_lines(&exported.car(&calibrated), &exported.bench.kdgat(&detect));
        let alarms: &[&str] = &["--alarms", "--alarm-after", "2/3"];
        let found = exported.car(&[&calibrated, alarms].concat());
        expect_same_lines(&found, &exported.bench.kdgat(&[&detect, alarms].concat()));

        let again = exported.car(&["--calibrate", "11s", "--save", "car.calibration", "calm.log"]);
        assert_eq!(again.status.code(), Some(2));
        assert!(stderr(&again).contains("the file exists; use --replace"), "{}", stderr(&again));
        succeeded(&exported.car(&["--calibrate", "11s", "--save", "car.calibration", "--replace", "calm.log"]));
        expect_synced(&exported);
        let short = exported.car(&["--calibrate", "11s", "--save", "short", &exported.log]);
        assert_eq!(short.status.code(), Some(2));
        assert!(
            stderr(&short).contains("has 3.0 s of traffic; a calibration needs at least 10 s"),
            "{}",
            stderr(&short)
        );
        let shorter = exported.car(&["--calibrate", "20s", "--save", "short", "calm.log"]);
        assert_eq!(shorter.status.code(), Some(2));
        assert!(stderr(&shorter).contains(" s of traffic, less than --calibrate 20 s"), "{}", stderr(&shorter));
        assert!(!folder.join("short").exists());

        let whole = std::fs::read(folder.join("car.calibration")).unwrap();
        let mut damaged = whole.clone();
        damaged[40] ^= 1;
        std::fs::write(folder.join("damaged"), damaged).unwrap();
        std::fs::write(folder.join("cut"), &whole[..whole.len() - 1]).unwrap();
        for (name, message) in [("damaged", "its checksum is wrong"), ("cut", "it has not the length")] {
            let output = exported.car(&["--load", name, &exported.log]);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{}", stderr(&output));
            assert!(stderr(&output).contains(message), "{}", stderr(&output));
        }
        let left: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(!left.iter().any(|name| name.ends_with(".new")), "{left:?}");
    }
}

/// An ID that is gone raises one alarm, as in `kdgat detect`.
#[test]
fn an_id_that_is_gone_raises_an_alarm() {
    if !can_compile() {
        return;
    }
    let bench = Bench::new();
    let run = bench.gat_with_profile("gat_profile", 1, profile_of(&regular_traffic(60.0, |_, _| true)));
    let run = run.to_str().unwrap();
    let drive = regular_traffic(40.0, |time, id| id != 0x104 || time < 8.0 || (20.0..25.0).contains(&time));
    std::fs::write(bench.path().join("drive.log"), candump(&drive)).unwrap();
    succeeded(&bench.kdgat(&["export", run, "--c", "car", "--threshold", "1"]));
    let program = compiled(&bench.path().join("car"));
    let car = |flags: &[&str]| Command::new(&program).current_dir(bench.path()).args(flags).output().unwrap();
    let detect = |flags: &[&str]| bench.kdgat(&[&["detect", "--model", run, "--threshold", "1"], flags].concat());
    let field = |output: &Output, name: &str| lines(output).iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    let windows = (car(&["drive.log"]), detect(&["drive.log"]));
    for name in ["window", "time", "label", "gone"] {
        assert_eq!(field(&windows.0, name), field(&windows.1, name), "{name}");
    }
    assert_eq!(field(&windows.0, "gone").iter().filter(|gone| !gone.is_null()).count(), 2);
    let flags = ["--alarms", "--alarm-after", "3/5", "--cooldown", "1h", "drive.log"];
    let alarms = (car(&flags), detect(&flags));
    for name in ["event", "alarm", "time", "window", "severity", "attack_windows", "gone", "changed"] {
        assert_eq!(field(&alarms.0, name), field(&alarms.1, name), "{name}");
    }
    assert_eq!(field(&alarms.0, "event"), ["alarm", "alarm-end", "alarm", "alarm-end"]);
}

/// Several logs calibrate as they do with the trainer: no window spans two of them. Less traffic than asked for is refused, also where there is no room for more.
#[test]
fn several_logs_make_a_calibration() {
    if !can_compile() {
        return;
    }
    let exported = Exported::gat();
    let folder = exported.bench.path().to_path_buf();
    let frames = traffic(24_000, 12, 7, 0..0);
    for (name, part) in [("first", &frames[..9_050]), ("second", &frames[11_000..])] {
        std::fs::write(folder.join(format!("{name}.log")), candump(part)).unwrap();
        write_log(&folder, "calm", &format!("{name}.csv"), part);
    }
    let logs = ["first.log", "second.log"];
    let said = succeeded(&exported.car(&[&["--calibrate", "all", "--save", "car.calibration"][..], &logs].concat()));
    assert!(said.contains("(from 219 attack-free windows (11.0 s, several logs))"), "{said}");
    let calibrate =
        ["calibrate", "--model", &exported.run, "--benign", "calm/first.csv", "--benign", "calm/second.csv"];
    let told = succeeded(&exported.bench.kdgat(&[&calibrate[..], &["--output", "car.json"]].concat()));
    assert!(told.contains("from 219 attack-free windows"), "{told}");
    let expected =
        exported.bench.kdgat(&["detect", "--model", &exported.run, "--calibration", "car.json", &exported.log]);
    expect_same_lines(&exported.car(&["--load", "car.calibration", &exported.log]), &expected);
    // Both logs are needed for ten seconds, and the third one is not read.
    let enough = exported.car(&["--calibrate", "10s", "--save", "one", "second.log", "first.log", "third.log"]);
    assert_eq!(enough.status.code(), Some(0), "{}", stderr(&enough));
    assert!(
        stderr(&enough).contains("third.log: not read; 10.0 s of traffic were read before it"),
        "{}",
        stderr(&enough)
    );
    let refused = |arguments: &[&str], message: &str| {
        let output = exported.car(&[arguments, &logs].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(message), "{message}: {}", stderr(&output));
    };
    refused(
        &["--calibrate", "20s", "--save", "x"],
        "first.log and the other logs have 11.0 s of traffic, less than --calibrate 20 s",
    );
    refused(&["--calibrate", "10s", "--save", "x", "--alarms"], "it excludes --alarms");
    refused(&["--threshold", "1"], "only one input is read at a time, but for --calibrate");
    assert!(!folder.join("x").exists());
    // Another program has room for 100 windows.
    let small = compiled_with(&folder.join("car"), "kdgat-car-small", "-DKDGAT_CALIBRATION_WINDOWS=100u");
    let output = Command::new(small)
        .current_dir(&folder)
        .args(["--calibrate", "10s", "--save", "x"])
        .args(logs)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("has room for 100 windows, which are the first 5.0 s of this traffic"),
        "{}",
        stderr(&output)
    );
}

/// The folder's own Makefile builds the program and passes its tests.
#[test]
fn make_builds_the_example() {
    if !can_compile() {
        return;
    }
    if !Command::new("make").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: make is not installed");
        return;
    }
    let bench = Bench::new();
    let run = bench.vgae("vgae_student_autoencoder", 1, 1);
    succeeded(&bench.kdgat(&["export", run.to_str().unwrap(), "--c", "car", "--threshold", "1"]));
    let make = |target: &str| {
        let mut command = Command::new("make");
        command.current_dir(bench.path().join("car/example")).args([target, "CC=cc", "CFLAGS=-O1"]);
        command.output().unwrap()
    };
    succeeded(&make("kdgat-car"));
    succeeded(&make("repeat"));
    succeeded(&make("test"));
    let frames = frames_of(&bench.log(KNOWN, "spoofing.csv"));
    std::fs::write(bench.path().join("drive.log"), candump(&frames[..250])).unwrap();
    let both = Command::new("sh")
        .args(["-c", "car/example/repeat drive.log 1000 | car/example/kdgat-car -"])
        .current_dir(bench.path())
        .output()
        .unwrap();
    assert_eq!(succeeded(&both).lines().count(), 9);
    assert!(stderr(&both).contains("; 1000 frames"), "{}", stderr(&both));
}

/// Frames of a virtual bus, where the machine has one (`ip link add vcan0 type vcan && ip link set vcan0 up`) and can-utils.
#[test]
fn frames_of_a_can_interface_are_judged() {
    let has_tool = Command::new("cansend").output().is_ok();
    if !Path::new("/sys/class/net/vcan0").exists() || !has_tool || !can_compile() {
        println!("skipped: there is no interface vcan0, or no cansend (can-utils)");
        return;
    }
    let exported = Exported::gat();
    let mut child =
        exported.live(&["--interface", "vcan0", "--alarms", "--threshold", "-1", "--heartbeat", "50ms"], &[]);
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    // After the first heartbeat the socket is open.
    output.next().unwrap().unwrap();
    for count in 0..101 {
        let frame = format!("{:03X}#{count:02X}", 0x100 + 3 * (count % 12));
        assert!(Command::new("cansend").args(["vcan0", &frame]).status().unwrap().success());
    }
    let alarm = output.map(Result::unwrap).find(|line| line.contains("\"alarm\"")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&alarm).unwrap()["window"], 0);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success() && stderr(&ended).contains("; 101 frames"), "{}", stderr(&ended));
}
