//! A simulated car: traffic with the ground truth of every frame, for use without a real dataset.
//!
//! [`simulate`] writes a dataset folder in the layout of can-train-and-test. `docs/data.md` describes the bus and
//! the attacks. The same options give the same bytes on every machine, with any number of threads.

mod attack;
mod bus;
mod drive;
mod folder;
mod messages;
pub(crate) mod random;
mod route;
mod route_log;
mod vehicle;
pub(crate) mod wire;

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::CanError;
pub use attack::{AttackKind, Episode, Intensity};
pub use drive::{Drive, DrivePlan, simulate_drive};
pub use folder::{RECORD_NAME, SimulatedFile, SimulationRecord};
pub use route::{DrivingState, RoutePlan, RouteRecord, Stay, simulate_route};
pub use route_log::write_route;

/// Version of the simulated traffic: raised whenever the same options give other frames.
pub const SIMULATION_VERSION: u32 = 1;

/// Start of the first drive in Unix seconds; each drive begins an hour after the previous one.
pub const FIRST_DRIVE_SECONDS: u64 = 1_700_000_000;
/// Smallest number of frames of a drive: the first attack begins after at most six seconds.
const LEAST_FRAMES: u64 = 10_000;

/// Options of a simulation. The defaults give the dataset `sim`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulationOptions {
    /// Seed of everything random.
    pub seed: u64,
    /// Number of drives without attack, for training.
    pub attack_free_drives: u32,
    /// Frames of each attack-free drive.
    pub attack_free_frames: u64,
    /// Frames of each of the four drives with attacks, for training.
    pub with_attacks_frames: u64,
    /// Frames of each of the ten test drives.
    pub test_frames: u64,
    /// True to compress the logs with gzip.
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

/// Simulates a dataset into folder `target`, which must be empty or not exist.
///
/// The folder is written beside `target` and renamed once it is complete. It holds the logs and
/// `simulation.json` ([`SimulationRecord`]).
///
/// # Errors
/// When an option is invalid, `target` exists and is not empty, or the disk is full or read-only.
pub fn simulate(options: &SimulationOptions, target: &Path) -> Result<(), CanError> {
    options.validate()?;
    folder::write(options, &plans(options), target)
}

/// Makes sure that `target` holds the complete dataset of these options; simulates it if `target` holds no dataset yet.
/// Returns true if it was simulated.
///
/// # Errors
/// Those of [`simulate`]; also when `target` holds another dataset, or its files have changed.
pub fn ensure_simulated(options: &SimulationOptions, target: &Path) -> Result<bool, CanError> {
    options.validate()?;
    if folder::holds(options, target)? {
        return Ok(false);
    }
    match simulate(options, target) {
        // Another process was faster; its dataset must be the same.
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

/// One log of the dataset: its folder and name, and its drive.
struct LogPlan {
    folder: &'static str,
    name: String,
    drive: DrivePlan,
}

/// The dataset's logs: attack-free drives, then drives with each known kind of attack for training and for the first test,
/// then attacks that training has not seen.
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
