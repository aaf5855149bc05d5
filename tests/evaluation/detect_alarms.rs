//! `kdgat detect --alarms` prints the episodes of the windows that `kdgat detect` calls attacks, and reports them to others.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;
use support::evaluate::{Bench, KNOWN, candump, frames_of, stderr, stdout};
use support::starter;

/// An untrained classifier, its log, and a threshold that some windows exceed.
struct Watched {
    bench: Bench,
    run: String,
    threshold: String,
    log: String,
    windows: Vec<Value>,
}

fn lines(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

impl Watched {
    fn new() -> Self {
        let bench = Bench::new();
        let run = bench.gat("gat_student_normal", 1, 1);
        let run = run.strip_prefix(bench.path()).unwrap().display().to_string();
        let log = bench.log(KNOWN, "fuzzing.csv").display().to_string();
        let all = lines(&bench.kdgat(&["detect", "--model", &run, "--threshold", "0.5", &log]));
        // Between the scores of two windows, so that a third of the windows are attacks.
        let mut scores: Vec<f64> = all.iter().map(|window| window["score"].as_f64().unwrap()).collect();
        scores.sort_unstable_by(f64::total_cmp);
        let threshold = scores[scores.len() * 2 / 3].to_string();
        let windows = lines(&bench.kdgat(&["detect", "--model", &run, "--threshold", &threshold, &log]));
        assert!(windows.iter().any(|window| window["label"] == "attack"));
        Self { bench, run, threshold, log, windows }
    }

    fn arguments<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        [&["detect", "--model", &self.run, "--threshold", &self.threshold], arguments].concat()
    }

    fn detect(&self, arguments: &[&str]) -> Output {
        self.bench.kdgat(&self.arguments(&[&[self.log.as_str()], arguments].concat()))
    }

    /// Writes a log that repeats the window of the highest score and that of the lowest, so that every attack is as severe as the others.
    fn repeated(&self, times: usize) -> String {
        let score = |window: &&Value| window["score"].as_f64().unwrap();
        let highest = self.windows.iter().max_by(|one, other| score(one).total_cmp(&score(other))).unwrap();
        let lowest = self.windows.iter().min_by(|one, other| score(one).total_cmp(&score(other))).unwrap();
        let first = |window: &Value| window["first_frame"].as_u64().unwrap() as usize;
        let (frames, length) = (frames_of(Path::new(&self.log)), first(&self.windows[1]) - first(&self.windows[0]));
        let pair = [highest, lowest].map(|window| &frames[first(window)..][..length]).concat();
        let mut repeated = pair.repeat(times);
        // A window ends with the frame after it.
        repeated.push(pair[0]);
        for (row, frame) in repeated.iter_mut().enumerate() {
            frame.timestamp = row as f64 * 0.000_5;
        }
        std::fs::write(self.bench.path().join("repeated.log"), candump(&repeated)).unwrap();
        "repeated.log".to_owned()
    }

    /// Windows of the first and last attack window of each episode that `clear` windows without an attack end.
    fn episodes(&self, clear: usize) -> Vec<(usize, usize)> {
        let mut episodes: Vec<(usize, usize)> = Vec::new();
        for (position, _) in self.windows.iter().enumerate().filter(|(_, window)| window["label"] == "attack") {
            match episodes.last_mut() {
                Some((_, last)) if position - *last <= clear => *last = position,
                _ => episodes.push((position, position)),
            }
        }
        episodes
    }
}

/// Events without those that say that an open alarm has become more severe or names other IDs.
fn without_changes(mut events: Vec<Value>) -> Vec<Value> {
    events.retain(|event| event["event"] != "alarm-change");
    events
}

#[test]
fn alarms_are_the_episodes_of_attack_windows() {
    let watched = Watched::new();
    for clear in [1, 3, 1000] {
        let output = watched.detect(&["--alarms", "--alarm-clear", &clear.to_string()]);
        let expected = watched.episodes(clear);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let events = without_changes(lines(&output));
        assert_eq!(events.len(), 2 * expected.len(), "{events:?}");
        for (number, (pair, (first, last))) in events.chunks(2).zip(expected).enumerate() {
            let (begin, end) = (&pair[0], &pair[1]);
            assert_eq!((&begin["event"], &end["event"]), (&"alarm".into(), &"alarm-end".into()));
            assert_eq!(
                (begin["alarm"].as_u64(), end["alarm"].as_u64()),
                (Some(number as u64 + 1), Some(number as u64 + 1))
            );
            assert_eq!(
                (&begin["window"], &begin["time"]),
                (&watched.windows[first]["window"], &watched.windows[first]["time"])
            );
            assert_eq!(
                (&begin["score"], &begin["culprits"][0]["id"]),
                (&watched.windows[first]["score"], &watched.windows[first]["id"])
            );
            let ended = (last + clear).min(watched.windows.len() - 1);
            assert_eq!(
                (&end["time"], end["windows"].as_u64()),
                (&watched.windows[ended]["time"], Some((ended + 1 - first) as u64))
            );
            assert_eq!(end["ended_by"], if last + clear < watched.windows.len() { "clear" } else { "end" });
            let attacks: Vec<&Value> =
                watched.windows[first..=last].iter().filter(|window| window["label"] == "attack").collect();
            assert_eq!(end["attack_windows"], attacks.len());
            let highest = attacks.iter().map(|window| window["score"].as_f64().unwrap()).fold(0.0, f64::max);
            assert_eq!(end["highest_score"], highest);
            let seconds = end["time"].as_f64().unwrap() - begin["since"].as_f64().unwrap();
            assert!((end["duration_seconds"].as_f64().unwrap() - seconds).abs() < 1e-6);
        }
        assert!(stderr(&output).contains(&format!("alarms raised: {}\n", events.len() / 2)), "{}", stderr(&output));
    }
}

#[test]
fn a_stream_has_the_alarms_of_its_log() {
    let watched = Watched::new();
    let flags = ["--alarms", "--alarm-after", "2/4", "--alarm-clear", "2", "--cooldown", "300ms"];
    let file = watched.detect(&flags);
    let text = candump(&frames_of(Path::new(&watched.log)));
    let mut child = starter::shared(watched.bench.command(&watched.arguments(&[&["-"], &flags[..]].concat())));
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let live = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!((live.status.code(), &live.stdout), (file.status.code(), &file.stdout), "{}", stderr(&live));
    let none = watched.detect(&["--alarms", "--threshold", "2"]);
    // The later threshold wins; no probability exceeds it.
    assert_eq!((none.status.code(), none.stdout.len()), (Some(0), 0), "{}", stderr(&none));
}

/// All attacks are as severe as the first and name the same ID, so that nothing breaks the cooldown.
#[test]
fn like_alarms_are_suppressed_during_the_cooldown() {
    const ATTACKS: usize = 12;
    let watched = Watched::new();
    let log = watched.repeated(ATTACKS);
    let detect = |arguments: &[&str]| watched.bench.kdgat(&watched.arguments(&[&[log.as_str()], arguments].concat()));
    let windows = lines(&detect(&[]));
    let attacks: Vec<&Value> = windows.iter().filter(|window| window["label"] == "attack").collect();
    assert_eq!((windows.len(), attacks.len()), (2 * ATTACKS, ATTACKS));
    assert!(attacks.iter().all(|window| window["id"] == attacks[0]["id"]), "{attacks:?}");
    let each = detect(&["--alarms", "--alarm-clear", "1"]);
    assert_eq!(without_changes(lines(&each)).len(), 2 * ATTACKS, "{}", stderr(&each));
    let cooled = detect(&["--alarms", "--alarm-clear", "1", "--cooldown", "24h"]);
    assert_eq!(without_changes(lines(&cooled)).len(), 2, "{}", stderr(&cooled));
    let said = format!("alarms raised: 1; suppressed within 86400 s of the end of another: {}", ATTACKS - 1);
    assert!(stderr(&cooled).contains(&said), "{}", stderr(&cooled));
}

#[test]
fn gaps_and_heartbeats_of_a_log_follow_its_times() {
    let watched = Watched::new();
    let mut frames = frames_of(Path::new(&watched.log));
    frames[2000..].iter_mut().for_each(|frame| frame.timestamp += 2.0);
    std::fs::write(watched.bench.path().join("gap.log"), candump(&frames)).unwrap();
    let arguments = ["--threshold", "2", "gap.log", "--alarms", "--silence", "500ms", "--heartbeat", "1s"];
    let output = watched.bench.kdgat(&watched.arguments(&arguments));
    assert_eq!(output.status.code(), Some(0), "silence is no alarm: {}", stderr(&output));
    let events = lines(&output);
    let named = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    let (silences, ends) = (named("silence"), named("silence-end"));
    assert_eq!((silences.len(), ends.len()), (1, 1), "{events:?}");
    assert!((silences[0]["time"].as_f64().unwrap() - frames[1999].timestamp).abs() < 1e-5);
    assert!((ends[0]["time"].as_f64().unwrap() - frames[2000].timestamp).abs() < 1e-5);
    assert!(ends[0]["seconds"].as_f64().unwrap() > 2.0);
    assert!(stderr(&output).contains("silences of the bus: 1"), "{}", stderr(&output));
    let beats = named("heartbeat");
    assert!(beats.len() >= 2, "{events:?}");
    let counted: u64 = beats.iter().map(|beat| beat["frames"].as_u64().unwrap()).sum();
    let last = beats[beats.len() - 1]["time"].as_f64().unwrap();
    let before = frames.iter().filter(|frame| frame.timestamp < last - 1e-6).count() as u64;
    assert_eq!(counted, before, "the frames before the last heartbeat");
}

/// A bus that dies closes no window, so the machine's clock reports it.
#[test]
fn a_dead_bus_is_noticed_and_a_signal_ends_an_open_alarm() {
    let watched = Watched::new();
    let arguments = ["--threshold", "0", "-", "--alarms", "--silence", "200ms", "--heartbeat", "50ms"];
    let mut command = starter::shared(watched.bench.command(&watched.arguments(&arguments)));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut heartbeats = 0;
    let mut next = |wanted: &str| -> Value {
        loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "no {wanted}");
            let event: Value = serde_json::from_str(&line).unwrap();
            heartbeats += u64::from(event["event"] == "heartbeat");
            if event["event"] == wanted {
                return event;
            }
        }
    };
    // No frame at all, then 250 of them, then none.
    assert!(next("silence")["time"].is_null());
    let frames = frames_of(Path::new(&watched.log));
    input.write_all(candump(&frames[..250]).as_bytes()).unwrap();
    assert!(next("silence-end")["seconds"].as_f64().unwrap() >= 0.2);
    assert_eq!(next("alarm")["window"], 0);
    let silence = next("silence");
    assert!((silence["time"].as_f64().unwrap() - frames[249].timestamp).abs() < 1e-5);
    let beat = next("heartbeat");
    assert_eq!(beat["silent"], true);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    let end = next("alarm-end");
    assert_eq!((&end["ended_by"], end["attack_windows"].as_u64()), (&"end".into(), Some(2)));
    assert!(heartbeats > 0);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "a service was stopped: {}", stderr(&ended));
    assert!(stderr(&ended).contains("silences of the bus: 2, the last to the end"), "{}", stderr(&ended));
    drop(input);
}

#[test]
fn commands_and_the_system_log_get_the_events() {
    let watched = Watched::new();
    let socket = watched.bench.path().join("log");
    let daemon = UnixDatagram::bind(&socket).unwrap();
    // The command may be kdgat itself: its variables are no fields of the configuration.
    let command = format!(
        "cat >> calls; echo \"$KDGAT_EVENT $KDGAT_ALARM\" >> names; echo printed; '{}' config > /dev/null || echo refused >> names; exit 5",
        env!("CARGO_BIN_EXE_kdgat")
    );
    let syslog = format!("--syslog={}", socket.display());
    // One alarm: the socket queues few messages, and nobody reads them before the end.
    let output = watched.detect(&["--alarms", "--alarm-clear", "1000", "--exec", &command, &syslog]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let read = |name: &str| std::fs::read_to_string(watched.bench.path().join(name)).unwrap();
    assert_eq!(read("calls"), stdout(&output), "the events, and nothing that the command prints");
    let count = lines(&output).len();
    let names = read("names");
    let names: Vec<&str> = names.lines().filter(|name| !name.starts_with("alarm-change")).take(2).collect();
    assert_eq!(names, ["alarm 1", "alarm-end 1"]);
    assert!(!read("names").contains("refused"), "{}", stderr(&output));
    let said = stderr(&output);
    assert_eq!(said.matches("it failed with exit status: 5").count(), 1, "{said}");
    assert!(said.contains(&format!("--exec: {count} calls, {count} of them failed")), "{said}");
    for line in stdout(&output).lines() {
        let mut buffer = [0; 4096];
        let length = daemon.recv(&mut buffer).unwrap();
        let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
        assert!(message.starts_with('<') && message.ends_with(&format!("]: {line}")), "{message}");
    }
}

/// The end of an alarm is reported even if the log is damaged after its begin.
#[test]
fn an_error_ends_an_open_alarm() {
    let watched = Watched::new();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(candump(&frames_of(Path::new(&watched.log))).as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    std::fs::write(watched.bench.path().join("cut.log.gz"), &gzip[..gzip.len() / 2]).unwrap();
    let output = watched.bench.kdgat(&watched.arguments(&["--threshold", "0", "cut.log.gz", "--alarms"]));
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let names: Vec<Value> = without_changes(lines(&output)).iter().map(|event| event["event"].clone()).collect();
    assert_eq!(names, ["alarm", "alarm-end"]);
}

#[test]
fn wrong_flags_are_refused() {
    let watched = Watched::new();
    for (flags, message) in [
        (&["--alarm-after", "3/5"][..], "--alarms"),
        (&["--silence", "1s"], "--alarms"),
        (&["--exec", "true"], "--alarms"),
        (&["--alarms", "--alarm-after", "5/3"], "expected K/N with whole numbers, 1 <= K <= N <= 64, such as 3/5"),
        (&["--alarms", "--alarm-clear", "0"], "0 is not in 1.."),
        (&["--alarms", "--cooldown", "10"], "expected a duration up to 24h with its unit (ms, s, min or h)"),
        (&["--alarms", "--silence", "0s"], "expected a duration above 0"),
        (&["--alarms", "--heartbeat", "2days"], "such as 500ms, 10s or 5min"),
        (&["--alarms", "--syslog=nowhere"], "--syslog: cannot reach the system's log at nowhere"),
    ] {
        let output = watched.detect(flags);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{flags:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{flags:?}: {}", stderr(&output));
    }
}
