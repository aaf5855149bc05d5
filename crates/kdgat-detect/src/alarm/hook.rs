//! `--exec`: runs a command at each event, on a thread of its own, so that a slow command never holds up the stream.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

use super::event::Event;

/// Calls that wait for the one that runs; more are dropped.
const WAITING_CALLS: usize = 64;

/// Variables that a command gets, if the event has such a value.
pub const EVENT_VARIABLES: [&str; 6] =
    ["KDGAT_EVENT", "KDGAT_TIME", "KDGAT_ALARM", "KDGAT_SCORE", "KDGAT_SEVERITY", "KDGAT_IDS"];

/// Runs a command with `sh -c`, once for each event, one after the other.
#[derive(Debug)]
pub struct Hook {
    calls: SyncSender<Call>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    counts: Arc<Counts>,
    queued: u64,
    dropped: u64,
}

/// A call of the command.
#[derive(Debug)]
struct Call {
    json: String,
    variables: Vec<(&'static str, String)>,
}

#[derive(Debug, Default)]
struct Counts {
    ended: AtomicU64,
    failed: AtomicU64,
    /// Set when nobody waits for further calls.
    stopped: AtomicBool,
}

/// Numbers of calls of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HookReport {
    /// Calls that ended.
    pub ended: u64,
    /// Those among them with another exit code than 0.
    pub failed: u64,
    /// Calls that were not made because too many were waiting.
    pub dropped: u64,
    /// Calls that had not ended, or not even begun, when the program had to stop.
    pub unfinished: u64,
}

impl Hook {
    /// Starts the thread that runs `command`.
    ///
    /// # Errors
    /// Fails if the system refuses a thread.
    pub fn start(command: &str) -> io::Result<Self> {
        let (calls, waiting) = sync_channel::<Call>(WAITING_CALLS);
        let (end, ended) = channel();
        let counts = Arc::new(Counts::default());
        let (command, of_thread) = (command.to_owned(), Arc::clone(&counts));
        std::thread::Builder::new().name("exec".to_owned()).spawn(move || {
            for call in waiting {
                if of_thread.stopped.load(Ordering::SeqCst) {
                    break;
                }
                if let Err(problem) = run(&command, &call)
                    && of_thread.failed.fetch_add(1, Ordering::SeqCst) == 0
                {
                    eprintln!("warning: --exec '{command}': {problem}; later failures are counted");
                }
                of_thread.ended.fetch_add(1, Ordering::SeqCst);
            }
            drop(end);
        })?;
        Ok(Self { calls, ended, counts, queued: 0, dropped: 0 })
    }

    /// Queues a call for an event, which `json` holds as a line. Never waits: the call is dropped if too many are waiting.
    pub fn call(&mut self, event: &Event, json: &str) {
        match self.calls.try_send(Call { json: json.to_owned(), variables: variables(event) }) {
            Ok(()) => self.queued += 1,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.dropped += 1,
        }
    }

    /// Waits until all queued calls have ended, at most for `patience`; later no further call is made.
    pub fn finish(self, patience: Duration) -> HookReport {
        let Self { calls, ended, counts, queued, dropped } = self;
        drop(calls);
        // An error either way: nothing is ever sent. Both mean that the waiting is over.
        let _ = ended.recv_timeout(patience);
        counts.stopped.store(true, Ordering::SeqCst);
        let ended = counts.ended.load(Ordering::SeqCst);
        HookReport { ended, failed: counts.failed.load(Ordering::SeqCst), dropped, unfinished: queued - ended }
    }
}

/// Runs the command once and waits for it; the error says why it failed.
fn run(command: &str, call: &Call) -> Result<(), String> {
    let mut process = Command::new("sh");
    process.args(["-c", command]).stdin(Stdio::piped());
    // Standard output is for events alone.
    process.stdout(io::stderr());
    // Ctrl-C in a terminal stops the detector, not the command that reports the end.
    process.process_group(0);
    for name in EVENT_VARIABLES {
        process.env_remove(name);
    }
    process.envs(call.variables.iter().map(|(name, value)| (name, value)));
    let mut child = process.spawn().map_err(|error| format!("cannot run sh ({error})"))?;
    if let Some(mut input) = child.stdin.take() {
        // Shorter than a pipe's buffer, so this never waits. A command may end without reading it.
        let _ = writeln!(input, "{}", call.json);
    }
    let status = child.wait().map_err(|error| format!("cannot wait for it ({error})"))?;
    if status.success() { Ok(()) } else { Err(format!("it failed with {status}")) }
}

/// Values of [`EVENT_VARIABLES`] for an event.
fn variables(event: &Event) -> Vec<(&'static str, String)> {
    let mut variables = vec![("KDGAT_EVENT", event.name().to_owned())];
    variables.extend(event.time().map(|time| ("KDGAT_TIME", time.to_string())));
    let (alarm, score, severity, culprits) = match event {
        Event::Alarm(begin) => (begin.alarm, begin.score, begin.severity, &begin.culprits),
        Event::AlarmChange(change) => (change.alarm, change.score, change.severity, &change.culprits),
        Event::AlarmEnd(end) => (end.alarm, end.highest_score, end.severity, &end.culprits),
        Event::Silence(_) | Event::SilenceEnd(_) | Event::Heartbeat(_) => return variables,
    };
    let ids: Vec<&str> = culprits.iter().map(|cause| cause.id.as_str()).collect();
    variables.extend([
        ("KDGAT_ALARM", alarm.to_string()),
        ("KDGAT_SCORE", score.to_string()),
        ("KDGAT_SEVERITY", severity.name().to_owned()),
        ("KDGAT_IDS", ids.join(" ")),
    ]);
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarm::{Alarm, Cause, Severity, Silence};

    /// Longer than any test runs.
    const PATIENCE: Duration = Duration::from_secs(600);

    fn alarm() -> Event {
        let culprit = |id: &str| Cause { id: id.to_owned(), windows: 1, unusual: Vec::new() };
        Event::Alarm(Alarm {
            gone: Vec::new(),
            alarm: 3,
            time: 12.5,
            since: 12.0,
            window: 40,
            score: 0.75,
            deviations: None,
            severity: Severity::Medium,
            attack_windows: 2,
            suppressed: 0,
            culprits: vec![culprit("7DF"), culprit("002")],
        })
    }

    #[test]
    fn a_command_gets_the_event_in_variables_and_on_its_input() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("calls");
        let mut hook = Hook::start(&format!(
            "echo \"$KDGAT_EVENT $KDGAT_TIME $KDGAT_ALARM $KDGAT_SCORE $KDGAT_SEVERITY $KDGAT_IDS\" >> {0}; cat >> {0}",
            file.display()
        ))
        .unwrap();
        hook.call(&alarm(), "{first}");
        hook.call(&Event::Silence(Silence { time: None, limit_seconds: 1.0 }), "{second}");
        assert_eq!(hook.finish(PATIENCE), HookReport { ended: 2, ..HookReport::default() });
        let text = std::fs::read_to_string(file).unwrap();
        assert_eq!(text, "alarm 12.5 3 0.75 medium 7DF 002\n{first}\nsilence     \n{second}\n");
    }

    #[test]
    fn a_failing_command_is_counted_and_one_that_reads_nothing_is_fine() {
        let mut hook = Hook::start("exit 7").unwrap();
        (0..3).for_each(|_| hook.call(&alarm(), &"x".repeat(5000)));
        assert_eq!(hook.finish(PATIENCE), HookReport { ended: 3, failed: 3, ..HookReport::default() });
        assert!(run("exit 7", &Call { json: String::new(), variables: Vec::new() }).unwrap_err().contains("7"));
        assert!(run("true", &Call { json: "x".repeat(5000), variables: Vec::new() }).is_ok());
    }

    #[test]
    fn a_hanging_command_holds_up_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let [begun, end] = ["begun", "end"].map(|name| folder.path().join(name));
        assert!(Command::new("mkfifo").args([&begun, &end]).status().unwrap().success());
        // Both lines wait until somebody reads.
        let mut hook = Hook::start(&format!("echo > {}; echo > {}", begun.display(), end.display())).unwrap();
        hook.call(&alarm(), "{}");
        std::fs::read(&begun).unwrap();
        (0..200).for_each(|_| hook.call(&alarm(), "{}"));
        let report = hook.finish(Duration::from_millis(1));
        assert_eq!(report, HookReport { ended: 0, failed: 0, dropped: 200 - 64, unfinished: 1 + 64 });
        // Lets the call that runs end; no other is made.
        std::fs::read(&end).unwrap();
    }
}
