//! Runs of the program that share one loading of libtorch, which takes ten times as long as most of what they test: see `starter.c`.
//!
//! [`output`] is for runs that a test waits for, [`shared`] for those that it feeds, signals or kills ([`kill`]), [`with_shared_children`] for
//! those whose children do so, and [`put_into`] for what others start, like the shell of a tutorial.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::fixture::fixture;
use crate::program::kdgat;

const STARTER: &str = include_str!("starter.c");
const CHILDREN: [&str; 2] = [include_str!("children.c"), include_str!("children.h")];
const PROXY: &str = include_str!("proxy.c");
/// Variable with the path of the starter's socket.
const SOCKET: &str = "STARTER_SOCKET";

/// Does what [`Command::output`] does, with nothing on standard input.
pub fn output(command: &mut Command) -> Output {
    match Starter::for_run(command) {
        Some(starter) => starter.proxy_of(command).output().unwrap(),
        None => command.stdin(Stdio::null()).output().unwrap(),
    }
}

/// The command as one whose process is a proxy of kdgat (`proxy.c`), with the standard streams that are given to it afterwards and nothing on
/// standard input otherwise. Memory and children of that process are not those of kdgat, and [`kill`] kills both.
pub fn shared(command: Command) -> Command {
    match Starter::for_run(&command) {
        Some(starter) => starter.proxy_of(&command),
        None => command,
    }
}

/// The command with the children of kdgat, unless they would load other libraries, as forks of a process that has loaded libtorch. Kdgat itself
/// has a process as ever.
pub fn with_shared_children(mut command: Command) -> Command {
    if let Some(starter) = Starter::for_run(&command) {
        command.env("LD_PRELOAD", starter.programs.join("starter.so"));
    }
    command
}

/// Makes `kdgat` in this folder a proxy, or the program itself if each run has to load libtorch. Returns the variable that the proxy needs.
pub fn put_into(folder: &Path) -> Option<(&'static str, PathBuf)> {
    let starter = Starter::shared();
    symlink(starter.map_or_else(kdgat, Starter::proxy), folder.join("kdgat")).unwrap();
    starter.map(|starter| (SOCKET, starter.socket()))
}

/// Kills a process with SIGKILL, and the run behind it if it is a proxy.
pub fn kill(child: &mut Child) {
    let program = fs::read_link(format!("/proc/{}/exe", child.id())).unwrap_or_default();
    match Starter::shared() {
        Some(starter) if program == starter.proxy() => {
            kill_process(Pid::from_child(child), Signal::ALARM).unwrap();
        }
        _ => child.kill().unwrap(),
    }
}

/// A process that starts others.
struct Starter {
    /// Its standard input closes when this program ends, and then it ends, too.
    _process: Child,
    folder: TempDir,
    /// Has `starter.so` and `proxy`.
    programs: PathBuf,
}

impl Starter {
    /// The starter if it can take this command: one of kdgat, without variables that libraries may read when they are loaded. Kdgat's own are
    /// none, nor those of the software card, which `main` loads.
    fn for_run(command: &Command) -> Option<&'static Self> {
        let is_ours =
            |name: &OsStr| ["KDGAT_", "SOFTWARE_CARD_"].iter().any(|ours| name.as_bytes().starts_with(ours.as_bytes()));
        let can_share =
            command.get_program() == kdgat().as_os_str() && command.get_envs().all(|(name, _)| is_ours(name));
        can_share.then(Self::shared).flatten()
    }

    fn proxy(&self) -> PathBuf {
        self.programs.join("proxy")
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// A proxy with the arguments, variables and folder of the command.
    fn proxy_of(&self, command: &Command) -> Command {
        let mut proxy = Command::new(self.proxy());
        proxy.arg0(kdgat()).args(command.get_args()).env(SOCKET, self.socket()).stdin(Stdio::null());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => proxy.env(name, value),
                None => proxy.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            proxy.current_dir(folder);
        }
        proxy
    }

    /// The only one of this program. `None`, and the reason on standard error, where it cannot be built or started.
    fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Starter>> = OnceLock::new();
        let start = || Self::start().inspect_err(|error| eprintln!("each run loads libtorch anew: {error}")).ok();
        SHARED.get_or_init(start).as_ref()
    }

    fn start() -> Result<Self, String> {
        if let Some(others) = std::env::var_os("LD_PRELOAD") {
            return Err(format!("LD_PRELOAD is {}", others.display()));
        }
        let programs = programs()?;
        let library = programs.join("starter.so");
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut command = Command::new(kdgat());
        command.env("LD_PRELOAD", library).env(SOCKET, folder.path().join("socket"));
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", kdgat().display()))?;
        let mut listens = [0];
        let stdout = process.stdout.as_mut().expect("it is piped");
        stdout.read_exact(&mut listens).map_err(|error| format!("the starter ended at once: {error}"))?;
        Ok(Self { _process: process, folder, programs })
    }
}

/// Folder with the starter's library and the proxy, compiled once for these sources.
fn programs() -> Result<PathBuf, String> {
    let folder = fixture("starter", (STARTER, CHILDREN, PROXY), |folder| {
        let [children, header] = CHILDREN;
        for (name, text) in
            [("starter.c", STARTER), ("children.c", children), ("children.h", header), ("proxy.c", PROXY)]
        {
            fs::write(folder.join(name), text).unwrap();
        }
        let library = ["-shared", "-fPIC", "-o", "starter.so", "starter.c", "children.c", "-ldl"];
        let said = compiled(folder, &library) + &compiled(folder, &["-o", "proxy", "proxy.c"]);
        fs::write(folder.join("compiler.log"), said).unwrap();
    });
    let are_there = ["starter.so", "proxy"].into_iter().all(|name| folder.join(name).is_file());
    if are_there { Ok(folder) } else { Err(fs::read_to_string(folder.join("compiler.log")).unwrap()) }
}

/// Runs the compiler in the folder and returns what it says.
fn compiled(folder: &Path, arguments: &[&str]) -> String {
    let said = Command::new("cc").current_dir(folder).arg("-O1").args(arguments).output();
    said.map_or_else(|error| format!("cc: {error}"), |output| String::from_utf8_lossy(&output.stderr).into_owned())
}
