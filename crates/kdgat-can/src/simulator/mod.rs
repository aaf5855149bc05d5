//! A simulated car: traffic with the ground truth of every frame, for when there is no data at hand.
//!
//! [`simulate`] writes a dataset folder in the layout of can-train-and-test. `docs/data.md` describes the bus and
//! the attacks. The same options give the same bytes, on every machine and any number of threads.

mod attack;
mod bus;
mod drive;
mod folder;
mod messages;
mod random;
mod vehicle;
mod wire;

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::CanError;
pub use attack::{AttackKind, Episode, Intensity};
pub use drive::{Drive, DrivePlan, simulate_drive};
pub use folder::{RECORD_NAME, SimulatedFile, SimulationRecord};

/// Version of the simulated traffic: another number, other frames for the same options.
pub const SIMULATION_VERSION: u32 = 1;

/// Seconds of the clock at the beginning of the first drive; each drive begins an hour after the one before.
const FIRST_DRIVE_SECONDS: u64 = 1_700_000_000;
/// The least a drive may hold: an attack begins after six seconds at the latest.
const LEAST_FRAMES: u64 = 10_000;

/// What to simulate. The defaults make the dataset `sim`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulationOptions {
    /// Everything random follows from it.
    pub seed: u64,
    /// Drives without attack, for training.
    pub attack_free_drives: u32,
    /// Frames of each of them.
    pub attack_free_frames: u64,
    /// Frames of each of the four drives with attacks, for training.
    pub with_attacks_frames: u64,
    /// Frames of each of the ten drives for tests.
    pub test_frames: u64,
    /// Whether the logs are compressed.
    pub gzip: bool,
}

impl Default for SimulationOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            attack_free_drives: 6,
            attack_free_frames: 50_000,
            with_attacks_frames: 45_000,
            test_frames: 30_000,
            gzip: true,
        }
    }
}

/// Simulates a dataset into folder `target`, which must not exist or be empty.
///
/// The folder is written beside `target` and renamed when it is whole. It holds the logs and
/// `simulation.json` ([`SimulationRecord`]).
///
/// # Errors
/// When an option makes no dataset, `target` is there already, or the disk is full or read-only.
pub fn simulate(options: &SimulationOptions, target: &Path) -> Result<(), CanError> {
    options.validate()?;
    folder::write(options, &plans(options), target)
}

/// Makes sure that `target` holds the dataset of these options, whole; simulates it if there is nothing yet.
/// Returns whether it had to.
///
/// # Errors
/// Those of [`simulate`]; and when `target` holds something else, or its files are not as they were written.
pub fn ensure_simulated(options: &SimulationOptions, target: &Path) -> Result<bool, CanError> {
    options.validate()?;
    if folder::holds(options, target)? {
        return Ok(false);
    }
    match simulate(options, target) {
        // Another process was faster: what it made must be the same.
        Err(CanError::TargetExists { .. }) if folder::holds(options, target)? => Ok(false),
        result => result.map(|()| true),
    }
}

impl SimulationOptions {
    fn validate(&self) -> Result<(), CanError> {
        if !(1..=1000).contains(&self.attack_free_drives) {
            let value = self.attack_free_drives.to_string();
            return Err(CanError::InvalidOption { option: "attack_free_drives", value, expected: "1 to 1000" });
        }
        for (option, frames) in [
            ("attack_free_frames", self.attack_free_frames),
            ("with_attacks_frames", self.with_attacks_frames),
            ("test_frames", self.test_frames),
        ] {
            if !(LEAST_FRAMES..=100_000_000).contains(&frames) {
                let expected = "10000 to 100000000 (frames of one drive)";
                return Err(CanError::InvalidOption { option, value: frames.to_string(), expected });
            }
        }
        Ok(())
    }
}

/// One log to be made: its place in the dataset, and its drive.
struct LogPlan {
    folder: &'static str,
    name: String,
    drive: DrivePlan,
}

/// The dataset: attack-free drives, then drives with each known kind of attack for training and for the first
/// test, then what training has not seen.
fn plans(options: &SimulationOptions) -> Vec<LogPlan> {
    use AttackKind::*;
    use Intensity::*;
    let mut plans: Vec<LogPlan> = Vec::new();
    let mut add = |folder, name: String, frames, attacks: &[(AttackKind, Intensity)]| {
        let number = plans.len() as u64;
        let drive = DrivePlan {
            seed: options.seed,
            number,
            begins_at_seconds: FIRST_DRIVE_SECONDS + 3600 * number,
            frames,
            attacks: attacks.to_vec(),
        };
        plans.push(LogPlan { folder, name, drive });
    };
    for drive in 1..=options.attack_free_drives {
        add("train_01_attack_free", format!("drive-{drive}"), options.attack_free_frames, &[]);
    }
    let known = [("flooding", Flooding), ("fuzzing", Fuzzing), ("spoofing", Spoofing), ("suspension", Suspension)];
    for (part, frames, folder) in
        [(1, options.with_attacks_frames, "train_02_with_attacks"), (2, options.test_frames, "test_01_known_attack")]
    {
        for (name, kind) in known {
            add(folder, format!("{name}-{part}"), frames, &[(kind, High), (kind, Medium)]);
        }
    }
    let unknown = "test_02_unknown_attack";
    for (name, kind) in [("masquerade", Masquerade), ("replay", Replay)] {
        add(unknown, format!("{name}-1"), options.test_frames, &[(kind, High), (kind, Medium), (kind, Low)]);
    }
    for (name, kind) in known {
        add(unknown, format!("{name}-weak-1"), options.test_frames, &[(kind, Low)]);
    }
    plans
}
