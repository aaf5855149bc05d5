//! Processes that end before they are done: waiting for the moment, stopping them, and running them again until they are done.

use std::io::{Read, Seek};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::is_soak;
use crate::starter;

/// Time after which something that a test waits for will not happen any more, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(1);

/// Waits for a condition; panics if it does not hold after three minutes. `what` says what has not happened then.
#[track_caller]
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        let asked = Instant::now();
        if is_so() {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        // A condition that takes long to check does not keep a core busy.
        std::thread::sleep(PAUSE.max(2 * asked.elapsed()));
    }
}

/// Waits for a condition while `child` runs. Returns false if the process ends before it holds.
#[track_caller]
pub fn wait_for_in(child: &mut Child, what: &str, mut is_so: impl FnMut() -> bool) -> bool {
    let mut ended = false;
    wait_for(what, || {
        ended = child.try_wait().unwrap().is_some();
        ended || is_so()
    });
    !ended || is_so()
}

/// Waits until a process has ended; kills it and panics if it does not.
#[track_caller]
pub fn end_of(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the process does not end: {:?}", child.wait_with_output().unwrap());
        }
        std::thread::sleep(PAUSE);
    }
    child.wait_with_output().unwrap()
}

pub fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Sends a signal and waits for the process to exit without a second one.
#[track_caller]
pub fn ended_by(child: Child, signal: Signal) -> Output {
    send(&child, signal);
    end_of(child)
}

/// Starts a command and kills it when a condition holds. Returns false if it ended before.
#[track_caller]
pub fn kill_when(command: Command, what: &str, is_so: impl FnMut() -> bool) -> bool {
    let mut command = starter::shared(command);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_in(&mut child, what, is_so);
    starter::kill(&mut child);
    child.wait().unwrap().code().is_none()
}

/// Process IDs of the child processes of `parent`, but for the one that starts the others (`children.c`).
pub fn children(parent: u32) -> Vec<u32> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let parent_of = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        if stat.contains(" (starter) ") {
            return None;
        }
        stat.rsplit(") ").next()?.split(' ').nth(1)?.parse::<u32>().ok()
    };
    processes.filter(|process| parent_of(process) == Some(parent)).collect()
}

/// Kills a process that may have ended.
pub fn kill_process_if_there(process: u32) {
    if let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        let _ = kill_process(process, Signal::KILL);
    }
}

/// Kills of a command that is started again until it ends by itself.
pub struct KillLoop {
    /// Time that the command takes if it is left alone. Delays are shares of it, so that they suit a busy machine.
    pub whole: Duration,
    /// Share of that time after which the first attempt is killed.
    pub first_share: f64,
    /// Later kills come this much later each, so that the command ends at last. It is doubled unless the tests run with `--soak`.
    pub growth: f64,
    /// For a command that starts others: the attempts in which these are killed, too. Those of other attempts continue alone.
    pub takes_children: Option<fn(u32) -> bool>,
}

impl KillLoop {
    /// Runs the command to its end, and returns the number of kills.
    #[track_caller]
    pub fn run(&self, mut command: impl FnMut() -> Command) -> u32 {
        let growth = self.growth * if is_soak() { 1.0 } else { 2.0 };
        for attempt in 0..100 {
            // A file, because children that continue alone would hold a pipe open.
            let mut said = tempfile::tempfile().unwrap();
            let errors = said.try_clone().unwrap();
            // A proxy has no children.
            let mut command = match self.takes_children {
                Some(_) => starter::with_shared_children(command()),
                None => starter::shared(command()),
            };
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn().unwrap();
            // No fixed distance, so that kills fall into all parts of an epoch.
            let jitter = 0.01 * f64::from(attempt * 37 % 50) / 50.0;
            let delay = self.whole.mul_f64(self.first_share + growth * f64::from(attempt) + jitter);
            let start = Instant::now();
            while start.elapsed() < delay && child.try_wait().unwrap().is_none() {
                std::thread::sleep(PAUSE);
            }
            let takes_children = self.takes_children.is_some_and(|takes| takes(attempt));
            let tasks = if takes_children { children(child.id()) } else { Vec::new() };
            starter::kill(&mut child);
            let status = child.wait().unwrap();
            tasks.into_iter().for_each(kill_process_if_there);
            if let Some(code) = status.code() {
                let mut text = Vec::new();
                said.rewind().unwrap();
                said.read_to_end(&mut text).unwrap();
                assert_eq!(code, 0, "attempt {attempt} failed:\n{}", String::from_utf8_lossy(&text));
                return attempt;
            }
        }
        panic!("the command does not end in 100 attempts");
    }
}
