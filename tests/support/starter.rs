//! Runs of the program that share one loading of libtorch, which takes ten times as long as most of what they test: see `starter.c`.

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

use tempfile::TempDir;

use crate::fixture::fixture;
use crate::program::kdgat;

const SOURCE: &str = include_str!("starter.c");

/// Does what [`Command::output`] does, with nothing on standard input. kdgat runs in a fork of a process that has loaded its libraries,
/// unless the command sets variables that libraries may read when they are loaded: all but kdgat's own and those of the software card, which
/// `main` loads.
pub fn output(command: &mut Command) -> Output {
    let is_ours =
        |name: &OsStr| ["KDGAT_", "SOFTWARE_CARD_"].iter().any(|ours| name.as_bytes().starts_with(ours.as_bytes()));
    let can_share = command.get_program() == kdgat().as_os_str() && command.get_envs().all(|(name, _)| is_ours(name));
    match can_share.then(Starter::shared).flatten() {
        Some(starter) => starter.output(command),
        None => command.stdin(Stdio::null()).output().unwrap(),
    }
}

/// A process that starts others.
struct Starter {
    /// Its standard input closes when this program ends, and then it ends, too.
    _process: Child,
    folder: TempDir,
}

impl Starter {
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
        let library = library()?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut command = Command::new(kdgat());
        command.env("LD_PRELOAD", library).env("STARTER_SOCKET", folder.path().join("socket"));
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", kdgat().display()))?;
        let mut listens = [0];
        let stdout = process.stdout.as_mut().expect("it is piped");
        stdout.read_exact(&mut listens).map_err(|error| format!("the starter ended at once: {error}"))?;
        Ok(Self { _process: process, folder })
    }

    fn output(&self, command: &Command) -> Output {
        let place = tempfile::tempdir_in(self.folder.path()).unwrap();
        let (stdout, stderr) = (place.path().join("stdout"), place.path().join("stderr"));
        let mut connection = UnixStream::connect(self.folder.path().join("socket")).unwrap();
        connection.write_all(&request(command, &stdout, &stderr)).unwrap();
        connection.shutdown(std::net::Shutdown::Write).unwrap();
        let mut status = [0; size_of::<i32>()];
        connection.read_exact(&mut status).expect("the starter ends after this program");
        let read = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Output {
            status: ExitStatus::from_raw(i32::from_ne_bytes(status)),
            stdout: read(&stdout),
            stderr: read(&stderr),
        }
    }
}

/// The library, compiled once for this source.
fn library() -> Result<PathBuf, String> {
    let folder = fixture("starter", SOURCE, |folder| {
        let source = folder.join("starter.c");
        fs::write(&source, SOURCE).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(folder.join("starter.so")).arg(&source).arg("-ldl");
        let said = compiler.output().map_or_else(|error| format!("cc: {error}").into_bytes(), |output| output.stderr);
        fs::write(folder.join("compiler.log"), said).unwrap();
    });
    let library = folder.join("starter.so");
    if library.is_file() { Ok(library) } else { Err(fs::read_to_string(folder.join("compiler.log")).unwrap()) }
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
