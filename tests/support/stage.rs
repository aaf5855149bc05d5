//! Small simulated dataset, and calls of the program on it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use kdgat::can::{SimulationOptions, simulate};
use kdgat::nn::ModelDescription;
use kdgat::nn::weights::StateDict;
use kdgat::train::checkpoint;

use crate::fixture::fixture;
use crate::starter;

/// Temporary folder of a test for data, stores, runs and teachers.
pub struct Workplace(tempfile::TempDir);

impl Workplace {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Command of the program on the small dataset, with small epochs, and one thread for a fixed order of summation.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.plain_command(arguments);
        command.env("KDGAT_MIN_STEPS_PER_EPOCH", "4");
        command
    }

    /// Command of the program without flags for graphs.
    pub fn plain_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(crate::program::kdgat());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KDGAT_")) {
            command.env_remove(name);
        }
        command.current_dir(self.0.path()).args(arguments);
        // Set as variables, because commands refuse flags that they do not read.
        command.env("KDGAT_DATA", dataset()).env("KDGAT_THREADS", "1");
        command
    }

    /// Runs a command and expects success; returns its standard output.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = starter::output(&mut self.command(arguments));
        assert!(output.status.success(), "kdgat {arguments:?} failed:\n{}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command and expects that it refuses its input; returns its message.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output: Output = starter::output(&mut self.command(arguments));
        assert_eq!(output.status.code(), Some(2), "kdgat {arguments:?}:\n{}", text(&output.stderr));
        text(&output.stderr)
    }

    /// Column of a run's `metrics.csv`, with empty fields as NaN.
    pub fn metric(&self, run: &str, column: &str) -> Vec<f64> {
        let mut reader = csv::Reader::from_path(self.path(run).join("metrics.csv")).unwrap();
        let headers = reader.headers().unwrap().clone();
        let position = headers.iter().position(|name| name == column);
        let position = position.unwrap_or_else(|| panic!("no column {column} in {headers:?}"));
        let number = |field: &str| if field.is_empty() { f64::NAN } else { field.parse().unwrap() };
        reader.records().map(|row| number(&row.unwrap()[position])).collect()
    }

    /// Description saved with the weights of a run's best epoch.
    pub fn description(&self, run: &str) -> ModelDescription {
        let (_, description): (StateDict, _) = checkpoint::read(&self.path(run).join("best.safetensors")).unwrap();
        description
    }

    /// Content of a JSON file.
    pub fn json(&self, path: &str) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(self.path(path)).unwrap()).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Dataset of about 1,500 graphs, 500 of them for training; simulated once for all tests.
pub fn dataset() -> &'static Path {
    static DATASET: OnceLock<PathBuf> = OnceLock::new();
    DATASET.get_or_init(|| {
        let options = SimulationOptions {
            attack_free_drives: 2,
            attack_free_frames: 10_000,
            with_attacks_frames: 10_000,
            test_frames: 10_000,
            gzip: false,
            ..SimulationOptions::default()
        };
        let write = |folder: &Path| {
            simulate(&options, &folder.join("tiny")).unwrap();
        };
        fixture("tiny", "", write).join("tiny")
    })
}
