//! The program as a user runs it, on a small simulated dataset.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use kdgat::can::{SimulationOptions, simulate};
use kdgat::exit;

use crate::fixture::fixture;
use crate::starter;

/// Settings of a small teacher.
pub const SMALL_TEACHER: &[&str] =
    &["--preset", "vgae,teacher", "--hidden", "24,12,8", "--latent", "8", "--embedding", "4"];
/// Settings of its student, which learns from the reconstruction alone, as the preset does.
pub const SMALL_STUDENT: &[&str] =
    &["--preset", "vgae,student", "--hidden", "8,8,4", "--latent", "4", "--embedding", "2"];
/// Latents are compared, too.
pub const COMPARED_LATENTS: &[&str] = &["--kd-vgae-latent-weight", "0.5"];

/// Temporary folder in which the program runs.
pub struct Workplace {
    folder: tempfile::TempDir,
}

impl Workplace {
    /// An empty workplace.
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// A workplace with a small registered teacher of the small dataset.
    pub fn with_teacher() -> Self {
        static TEACHER: OnceLock<PathBuf> = OnceLock::new();
        let arguments = [&["autoencoder"], SMALL_TEACHER, &["--max-epochs", "3"]].concat();
        let trained = TEACHER.get_or_init(|| {
            fixture("teacher", &arguments, |folder| {
                let workplace = Workplace::new();
                workplace.success(&arguments);
                for part in ["teachers", "stores"] {
                    copy_folder(&workplace.path().join(part), &folder.join(part));
                }
            })
        });
        let workplace = Workplace::new();
        for part in ["teachers", "stores"] {
            copy_folder(&trained.join(part), &workplace.path().join(part));
        }
        workplace
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// `kdgat` with these arguments, the small dataset, and one thread.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(crate::program::kdgat());
        command.current_dir(self.path()).args(arguments).stdin(Stdio::null());
        command.env("KDGAT_DATA", small_dataset()).env("KDGAT_THREADS", "1");
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Output {
        starter::output(&mut self.command(arguments))
    }

    /// Runs a command and panics if it fails; returns its output.
    pub fn success<S: AsRef<OsStr>>(&self, arguments: &[S]) -> String {
        let output = self.run(arguments);
        let said = said(&output);
        assert!(output.status.success(), "kdgat {} failed:\n{said}", words(arguments));
        said
    }

    /// Runs a command and panics unless it exits with code 2; returns its output.
    pub fn refused<S: AsRef<OsStr>>(&self, arguments: &[S]) -> String {
        self.ends_with(exit::INPUT, arguments)
    }

    /// Runs a command and panics unless it exits for want of memory; returns its output.
    pub fn out_of_memory<S: AsRef<OsStr>>(&self, arguments: &[S]) -> String {
        self.ends_with(exit::OUT_OF_MEMORY, arguments)
    }

    fn ends_with<S: AsRef<OsStr>>(&self, exit_code: u8, arguments: &[S]) -> String {
        let output = self.run(arguments);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(exit_code.into()), "kdgat {}:\n{said}", words(arguments));
        said
    }

    /// Folder of run `number` of a kind such as `vgae_student_autoencoder_kd`.
    pub fn run_folder(&self, kind: &str, number: u64) -> PathBuf {
        self.path().join("runs").join("small").join(kind).join(number.to_string())
    }
}

fn words<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    arguments.iter().map(|argument| argument.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Standard error and output together.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout))
}

/// Folder with the logs of a small simulated dataset, created once for all tests.
pub fn small_dataset() -> &'static Path {
    static DATASET: OnceLock<PathBuf> = OnceLock::new();
    DATASET.get_or_init(|| {
        let options = SimulationOptions {
            attack_free_drives: 2,
            attack_free_frames: 10_000,
            with_attacks_frames: 10_000,
            test_frames: 10_000,
            ..SimulationOptions::default()
        };
        let write = |folder: &Path| {
            simulate(&options, &folder.join("small")).unwrap();
        };
        fixture("small", "", write).join("small")
    })
}

/// Bytes of every file of a folder.
pub fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
}

/// The only store in a folder of stores.
pub fn only_store(stores: &Path) -> PathBuf {
    let entries = std::fs::read_dir(stores).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> = entries.filter(|path| path.join("store.json").exists()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Loss columns of a run's `metrics.csv`, as text, row by row. The run may still be writing: its last row counts once it has ended.
pub fn loss_columns(run: &Path) -> Vec<Vec<String>> {
    let path = run.join("metrics.csv");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
    let mut reader = csv::Reader::from_reader(complete.as_bytes());
    let header = reader.headers().unwrap().clone();
    let not_a_loss = ["graphs_per_second", "peak_memory_bytes", "seconds"];
    let kept: Vec<usize> = (0..header.len()).filter(|&column| !not_a_loss.contains(&&header[column])).collect();
    let row = |record: csv::StringRecord| kept.iter().map(|&column| record[column].to_owned()).collect();
    reader.records().map(|record| row(record.unwrap())).collect()
}
