//! Runs of the program that share one loading of libtorch, which takes ten times as long as most of what they test: see `starter.c`.
//!
//! [`output`] is for runs that a test waits for, [`shared`] for those that it feeds, signals or kills ([`kill`]), and [`proxy`] for what others
//! start, like the shell of a tutorial.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
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
        Some(starter) => starter.output(command),
        None => command.stdin(Stdio::null()).output().unwrap(),
    }
}

/// The command as one whose process has the starter run kdgat, with the standard streams that are given to it afterwards and nothing on standard
/// input otherwise. It is its [`proxy`], so that memory and children of that process are not those of kdgat, and [`kill`] kills both.
pub fn shared(command: Command) -> Command {
    let Some(starter) = Starter::for_run(&command) else { return command };
    let (program, socket) = starter.proxy();
    let mut shared = Command::new(program);
    shared.args(command.get_args()).env(SOCKET, socket).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shared.env(name, value),
            None => shared.env_remove(name),
        };
    }
    command.get_current_dir().map(|folder| shared.current_dir(folder));
    shared
}

/// The command with the children of kdgat, unless they would load other libraries, as forks of a process that has loaded libtorch. Kdgat itself
/// has a process as ever.
pub fn with_shared_children(mut command: Command) -> Command {
    if let Some(starter) = Starter::for_run(&command) {
        command.env("LD_PRELOAD", starter.folder_of_programs.join("starter.so"));
    }
    command
}

/// A program that stands for kdgat, and the variable that it needs. `None` if each run has to load libtorch.
pub fn proxy() -> Option<(PathBuf, (&'static str, PathBuf))> {
    let (program, socket) = Starter::shared()?.proxy();
    Some((program, (SOCKET, socket)))
}

/// Kills a process with SIGKILL, and the run behind it if it is a proxy.
pub fn kill(child: &mut Child) {
    let program = fs::read_link(format!("/proc/{}/exe", child.id())).unwrap_or_default();
    match Starter::shared() {
        Some(starter) if program == starter.folder_of_programs.join("proxy") => {
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
    folder_of_programs: PathBuf,
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

    /// The proxy's program, and the socket.
    fn proxy(&self) -> (PathBuf, PathBuf) {
        (self.folder_of_programs.join("proxy"), self.folder.path().join("socket"))
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
        let folder_of_programs = programs()?;
        let library = folder_of_programs.join("starter.so");
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
        Ok(Self { _process: process, folder, folder_of_programs })
    }

    fn output(&self, command: &Command) -> Output {
        let place = tempfile::tempdir_in(self.folder.path()).unwrap();
        let (stdout, stderr) = (place.path().join("stdout"), place.path().join("stderr"));
        let mut connection = UnixStream::connect(self.folder.path().join("socket")).unwrap();
        connection.write_all(&request(command, &stdout, &stderr)).unwrap();
        connection.shutdown(std::net::Shutdown::Write).unwrap();
        // Its process ID comes before.
        let mut answer = [[0; size_of::<i32>()]; 2];
        connection.read_exact(answer.as_flattened_mut()).expect("the starter ends after this program");
        let read = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Output {
            status: ExitStatus::from_raw(i32::from_ne_bytes(answer[1])),
            stdout: read(&stdout),
            stderr: read(&stderr),
        }
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

/// A request to the starter: strings that end with 0.
fn request(command: &Command, stdout: &Path, stderr: &Path) -> Vec<u8> {
    let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => environment.insert(name.to_owned(), value.to_owned()),
            None => environment.remove(name),
        };
    }
    let here = std::env::current_dir().unwrap();
    let folder = command.get_current_dir().map_or(here.clone(), |folder| here.join(folder));
    let number = (command.get_args().count() + 1).to_string();
    let mut request = Vec::new();
    let mut add = |parts: &[&OsStr]| {
        for part in parts {
            assert!(!part.as_bytes().contains(&0), "{part:?} has a zero");
            request.extend_from_slice(part.as_bytes());
        }
        request.push(0);
    };
    for text in [folder.as_os_str(), stdout.as_os_str(), stderr.as_os_str(), number.as_ref(), command.get_program()] {
        add(&[text]);
    }
    command.get_args().for_each(|argument| add(&[argument]));
    environment.iter().for_each(|(name, value)| add(&[name, "=".as_ref(), value]));
    request
}
