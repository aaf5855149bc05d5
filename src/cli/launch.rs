//! `kdgat launch`: starts a training in several processes on this machine, and ends all when one fails.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use super::UsageError;
use crate::train::processes::{LAUNCH, STOP_FILE, TOKEN, random_token};
use crate::{exit, interrupt};

/// The commands that several processes can run together.
const TOGETHER: [&str; 6] = ["autoencoder", "classifier", "normal", "curriculum", "train", DOCTOR];
/// Measures the exchange of the processes.
const DOCTOR: &str = "doctor";
/// Pause between two looks at the processes.
const PAUSE: Duration = Duration::from_millis(20);
/// Time for the other processes to end by themselves after one has failed.
const GRACE: Duration = Duration::from_secs(3);

#[derive(Args, Debug)]
pub struct LaunchArgs {
    /// Number of processes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub processes: u16,
    /// Port at which they meet (default: a free one)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The training: a command with its flags, after `--`
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub command: Vec<OsString>,
}

/// Starts the processes and waits for them.
pub fn run(args: &LaunchArgs) -> Result<ExitCode> {
    expect_together(&args.command)?;
    let folder = Folder::new()?;
    let signals = listen(&folder.0)?;
    let port = match args.port {
        Some(port) => port,
        None => {
            TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr()).context("no free port")?.port()
        }
    };
    let token = match std::env::var(TOKEN).ok().filter(|token| !token.is_empty()) {
        Some(token) => token,
        None => random_token().context("/dev/urandom")?,
    };
    let mut processes = Vec::new();
    for rank in 0..usize::from(args.processes) {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&args.command).stdin(Stdio::null());
        let size = args.processes.to_string();
        let variables = [
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("WORLD_SIZE", size.clone()),
            ("LOCAL_WORLD_SIZE", size),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
            (TOKEN, token.clone()),
        ];
        command.envs(variables).env(LAUNCH, &folder.0).env_remove("TORCHELASTIC_USE_AGENT_STORE");
        if rank > 0 {
            command.stdout(Stdio::null()).stderr(File::create(folder.errors(rank))?);
        }
        match command.spawn() {
            Ok(child) => processes.push(Process { child, ended: None, is_killed: false }),
            Err(error) => {
                processes.iter_mut().for_each(Process::kill);
                return Err(error).context(format!("process {rank} cannot be started"));
            }
        }
    }
    wait(&mut processes, &signals)?;
    Ok(verdict(&processes, &folder))
}

/// Refuses commands that would run several times instead of together.
fn expect_together(command: &[OsString]) -> Result<(), UsageError> {
    let name = command.first().and_then(|name| name.to_str()).unwrap_or_default();
    if !TOGETHER.contains(&name) {
        return Err(UsageError(format!(
            "kdgat launch -- {name}: several processes train together with {}, and `{DOCTOR}` measures their exchange; give one of these commands \
             after `--`",
            TOGETHER.iter().filter(|name| !["normal", DOCTOR].contains(name)).copied().collect::<Vec<_>>().join(", ")
        )));
    }
    if command.iter().any(|argument| argument == "--score-only") {
        return Err(UsageError("kdgat launch: --score-only runs in one process; drop `launch`".to_owned()));
    }
    Ok(())
}

/// A folder for what the processes leave to this one. Removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("kdgat-launch-{}-{}", std::process::id(), &random_token()?[..8]));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// Standard error of a process other than 0.
    fn errors(&self, rank: usize) -> PathBuf {
        self.0.join(format!("stderr-{rank}"))
    }

    /// The reason of a process that ended because it lost another.
    fn lost(&self, rank: usize) -> Option<String> {
        fs::read_to_string(self.0.join(format!("lost-{rank}"))).ok()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays costs a few kilobytes.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Counts signals; the first one tells the processes to stop.
fn listen(folder: &Path) -> Result<Arc<AtomicUsize>> {
    let signals = Arc::new(AtomicUsize::new(0));
    let (count, stop) = (Arc::clone(&signals), folder.join(STOP_FILE));
    interrupt::listen_with(move || {
        if count.fetch_add(1, Ordering::SeqCst) == 0 {
            // Processes that share the terminal have the signal, too.
            let _ = File::create(&stop);
        }
    })?;
    Ok(signals)
}

/// A process and how it ended.
struct Process {
    child: Child,
    ended: Option<ExitStatus>,
    /// True if this program ended it, because others had failed.
    is_killed: bool,
}

impl Process {
    fn look(&mut self) -> io::Result<()> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(())
    }

    fn has_failed(&self) -> bool {
        self.ended
            .is_some_and(|status| !matches!(status.code(), Some(0)) && status.code() != Some(exit::INTERRUPTED.into()))
    }

    fn kill(&mut self) {
        if self.ended.is_none() {
            // It may have ended just now.
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
            self.is_killed = self.ended.is_some_and(|status| status.signal() == Some(KILLED));
        }
    }
}

/// An error of the launcher leaves no process behind.
impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until all have ended. Ends the others some time after one has failed, and all at a second signal.
fn wait(processes: &mut [Process], signals: &AtomicUsize) -> Result<()> {
    let mut failed: Option<Instant> = None;
    while processes.iter().any(|process| process.ended.is_none()) {
        for process in processes.iter_mut() {
            process.look()?;
        }
        if failed.is_none() && processes.iter().any(Process::has_failed) {
            failed = Some(Instant::now());
        }
        if signals.load(Ordering::SeqCst) > 1 || failed.is_some_and(|failed| failed.elapsed() > GRACE) {
            processes.iter_mut().for_each(Process::kill);
            if signals.load(Ordering::SeqCst) > 1 {
                return Ok(());
            }
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// The exit code of all. Reports the failure that ended them, unless process 0 has.
fn verdict(processes: &[Process], folder: &Folder) -> ExitCode {
    let code = |process: &Process| process.ended.and_then(|status| status.code());
    if processes.iter().all(|process| code(process) == Some(0)) {
        return ExitCode::SUCCESS;
    }
    if !processes.iter().any(Process::has_failed) {
        return ExitCode::from(exit::INTERRUPTED);
    }
    let failed = processes.iter().enumerate().filter(|(_, process)| process.has_failed() && !process.is_killed);
    // A process that lost another has left the reason.
    let (own, lost): (Vec<_>, Vec<_>) = failed.partition(|(rank, _)| folder.lost(*rank).is_none());
    let of_signal = own.iter().find_map(|(rank, process)| {
        let signal = process.ended?.signal()?;
        Some((*rank, signal))
    });
    let reasons: Vec<String> = lost.iter().filter_map(|(rank, _)| folder.lost(*rank)).collect();
    let of_error = own.iter().find_map(|(rank, process)| Some((*rank, code(process)?)));
    match (of_error, of_signal, reasons.first()) {
        (Some((0, code)), ..) => ExitCode::from(to_u8(code)),
        (Some((rank, code)), ..) => {
            let text = fs::read_to_string(folder.errors(rank)).unwrap_or_default();
            let error = text.lines().skip_while(|line| !line.starts_with("error:")).collect::<Vec<_>>().join("\n");
            match error.is_empty() {
                true => eprintln!(
                    "error: process {rank} of {} ended with exit code {code}:\n{}",
                    processes.len(),
                    tail(&text)
                ),
                false => {
                    eprintln!("error: process {rank} of {}: {}", processes.len(), error.trim_start_matches("error: "))
                }
            }
            ExitCode::from(to_u8(code))
        }
        (None, Some((rank, signal)), _) => {
            eprintln!(
                "error: process {rank} of {} was ended by signal {signal}{}; all processes have ended; resume from the last checkpoint with \
                 --resume, with any number of processes",
                processes.len(),
                name_of(signal)
            );
            // A sweep takes it for a want of memory, as that of a process of its own.
            ExitCode::from(if signal == KILLED { 128 + KILLED as u8 } else { exit::FAILURE })
        }
        (None, None, Some(reason)) => {
            eprintln!("error: {reason}");
            ExitCode::from(exit::FAILURE)
        }
        _ => ExitCode::from(exit::FAILURE),
    }
}

const KILLED: i32 = 9;

/// The name of a signal that often ends a process.
fn name_of(signal: i32) -> &'static str {
    match signal {
        KILLED => " (SIGKILL: by a user, or by the system for its memory)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        _ => "",
    }
}

fn to_u8(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(exit::FAILURE)
}

/// The last lines of a text.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
