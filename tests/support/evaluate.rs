//! Small dataset, untrained models written as runs, and calls of the program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::graph::{traffic, write_log};
use crate::starter;
use kdgat::can::{Dataset, Frame};
use kdgat::graph::{
    BuildOptions, CarProfile, Columns, FeatureSet, ForeignIds, GraphStream, ProfileLearner, Split, Store, open_or_build,
};
use kdgat::nn::attention::Backend;
use kdgat::nn::{
    Architecture, DatasetIdentity, FreshParameters, Gat, GatConfig, InputConfig, ModelDescription, Scope, Vgae,
    VgaeConfig,
};
use kdgat::train::checkpoint;
use serde_json::Value;
use tch::Device;

pub const KNOWN: &str = "test_01_known_vehicle_known_attack";
pub const UNKNOWN: &str = "test_02_unknown_vehicle_known_attack";

/// Folder with a dataset `small`, its store, and runs.
pub struct Bench {
    pub folder: tempfile::TempDir,
    pub store: Store,
}

impl Bench {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("small");
        write_log(&data, "train_01_attack_free", "drive-1.csv", &traffic(6_000, 12, 1, 0..0));
        write_log(&data, "train_02_with_attacks", "fuzzing.csv", &traffic(6_000, 12, 2, 4_000..5_800));
        write_log(&data, KNOWN, "fuzzing.csv", &traffic(6_000, 12, 3, 2_000..3_000));
        write_log(&data, KNOWN, "spoofing.csv", &traffic(3_000, 12, 4, 1_000..2_000));
        // A window lasts 0.05 s: the first second has 20 of them.
        write_log(&data, UNKNOWN, "other.csv", &traffic(8_000, 20, 5, 5_000..7_000));
        let dataset = Dataset::open(&data).unwrap();
        let store = open_or_build(&dataset, &BuildOptions::default(), &folder.path().join("stores"), &()).unwrap();
        Self { folder, store }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn log(&self, folder: &str, name: &str) -> PathBuf {
        self.path().join("small").join(folder).join(name)
    }

    /// Writes a run of an untrained classifier with a student's widths and the list of known IDs.
    pub fn gat(&self, group: &str, number: u64, seed: u64) -> PathBuf {
        let foreign_ids = ForeignIds::count(&self.store, &self.store.select(Split::Validation, None)).unwrap();
        self.gat_with(group, number, seed, foreign_ids)
    }

    pub fn gat_with(&self, group: &str, number: u64, seed: u64, foreign_ids: Option<ForeignIds>) -> PathBuf {
        self.gat_of(group, number, seed, foreign_ids, InputConfig::default())
    }

    /// Writes a run of an untrained classifier of the profile set, with this profile of its car.
    pub fn gat_with_profile(&self, group: &str, seed: u64, profile: CarProfile) -> PathBuf {
        self.gat_of(group, 1, seed, None, InputConfig { profile: Some(profile), ..InputConfig::default() })
    }

    fn gat_of(
        &self,
        group: &str,
        number: u64,
        seed: u64,
        foreign_ids: Option<ForeignIds>,
        input: InputConfig,
    ) -> PathBuf {
        let config = GatConfig {
            hidden: 24,
            layers: 2,
            heads: 4,
            embedding: 8,
            fc_layers: 3,
            vocabulary_size: self.store.vocabulary().len() as i64,
            dropout: 0.1,
            edge_scaling: None,
            input,
        };
        let mut parameters = FreshParameters::new(seed, Device::Cpu);
        Gat::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
        self.write(group, number, seed, (Architecture::Gat(config), foreign_ids), parameters)
    }

    /// Writes a run of an untrained autoencoder with a student's widths.
    pub fn vgae(&self, group: &str, number: u64, seed: u64) -> PathBuf {
        let config = VgaeConfig {
            hidden: vec![80, 40, 16],
            latent: 16,
            heads: 1,
            embedding: 4,
            vocabulary_size: self.store.vocabulary().len() as i64,
            dropout: 0.1,
            edge_scaling: None,
            input: Default::default(),
        };
        let mut parameters = FreshParameters::new(seed, Device::Cpu);
        Vgae::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
        self.write(group, number, seed, (Architecture::Vgae(config), None), parameters)
    }

    fn write(
        &self,
        group: &str,
        number: u64,
        seed: u64,
        (architecture, foreign_ids): (Architecture, Option<ForeignIds>),
        parameters: FreshParameters,
    ) -> PathBuf {
        let description = ModelDescription {
            architecture,
            vocabulary: self.store.vocabulary().clone(),
            foreign_ids,
            dataset: DatasetIdentity { name: "small".to_owned(), digest: self.store.digest().to_owned() },
            window: 100,
            size: "student".to_owned(),
            epoch: 1,
            val_loss: None,
            teacher_digest: None,
            created_by_version: "0.0.0".to_owned(),
        };
        let run = self.path().join("runs/small").join(group).join(number.to_string());
        std::fs::create_dir_all(&run).unwrap();
        let state = parameters.into_tensors().into_iter().map(|named| (named.name, named.tensor.detach())).collect();
        checkpoint::write(&run.join("best.safetensors"), &state, &description).unwrap();
        let data = serde_json::json!({
            "data": "small", "window": 100, "stride": 100, "validation_fraction": 0.2, "validation": "blocks",
        });
        let command = if group.starts_with("vgae") { "autoencoder" } else { "classifier" };
        let config =
            serde_json::json!({ "command": command, "config": { "training": { "seed": seed }, "data": data } });
        std::fs::write(run.join("config.json"), config.to_string()).unwrap();
        std::fs::write(run.join("summary.json"), "{}").unwrap();
        run
    }

    pub fn kdgat(&self, arguments: &[&str]) -> Output {
        starter::output(&mut self.command(arguments))
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(crate::program::kdgat());
        command.current_dir(self.path()).args(arguments).stdin(Stdio::null());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KDGAT_")) {
            command.env_remove(name);
        }
        command
    }

    /// Runs `kdgat evaluate` on the dataset; returns its standard output.
    pub fn evaluate(&self, arguments: &[&str]) -> String {
        let output = self.kdgat(&[&["evaluate", "--data", "small", "--device", "cpu"], arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Rows of a CSV file below the folder, as maps of column to value.
    pub fn rows(&self, path: &str) -> Vec<std::collections::HashMap<String, String>> {
        let mut reader = csv::Reader::from_path(self.path().join(path)).unwrap();
        reader.deserialize().map(Result::unwrap).collect()
    }

    /// Like [`Bench::rows`], without those of the rules that are judged beside the models.
    pub fn rows_of_models(&self, path: &str) -> Vec<std::collections::HashMap<String, String>> {
        self.rows(path).into_iter().filter(|row| !row["model"].starts_with("rule: ")).collect()
    }
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// IDs 0x101 to 0x109 every 20 ms for so many seconds, without the frames that `has` excludes.
pub fn regular_traffic(seconds: f64, has: impl Fn(f64, u32) -> bool) -> Vec<Frame> {
    let step = |at: u32| {
        (1..10).map(move |number| {
            let timestamp = 0.02 * f64::from(at) + 0.001 * f64::from(number);
            let payload = [number as u8, at as u8, (at / 7) as u8, 0, 0, 0, 0, 0];
            Frame { timestamp, can_id: 0x100 + number, payload, payload_length: 8, attack: false }
        })
    };
    (0..(50.0 * seconds) as u32).flat_map(step).filter(|frame| has(frame.timestamp, frame.can_id)).collect()
}

/// The profile of a car with this attack-free traffic.
pub fn profile_of(frames: &[Frame]) -> CarProfile {
    let mut columns = Columns::new(FeatureSet::Profile);
    let pushed: Result<(), ()> = GraphStream::new(FeatureSet::Profile, 100, 100).push(frames, |mut window| {
        window.append_to(0, &mut columns);
        Ok(())
    });
    pushed.unwrap();
    ProfileLearner::of((0..columns.num_graphs()).map(|window| columns.graph(window))).profile()
}

/// Frames in the format of `candump -L`.
pub fn candump(frames: &[Frame]) -> String {
    let line = |frame: &Frame| {
        let bytes = &frame.payload[..usize::from(frame.payload_length)];
        let data: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
        format!("({:.6}) can0 {:03X}#{data}\n", frame.timestamp, frame.can_id)
    };
    frames.iter().map(line).collect()
}

/// All frames of a log.
pub fn frames_of(path: &Path) -> Vec<Frame> {
    let mut reader = kdgat::can::open_log(path, None).unwrap();
    let (mut frames, mut block) = (Vec::new(), Vec::new());
    while reader.read_block(1000, &mut block).unwrap() > 0 {
        frames.extend_from_slice(&block);
    }
    frames
}

/// Lines that `kdgat detect` printed.
pub fn detections(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A run's path below the bench's folder, as a command line names it.
pub fn model(run: &Path) -> String {
    run.strip_prefix(run.ancestors().nth(4).unwrap()).unwrap().display().to_string()
}
