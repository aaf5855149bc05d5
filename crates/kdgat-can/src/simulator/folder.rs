//! Writes a simulated dataset into a temporary folder and renames it once complete; verifies an existing one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::attack::Episode;
use super::drive::simulate_drive;
use super::{LogPlan, SIMULATION_VERSION, SimulationOptions};
use crate::error::CanError;
use crate::formats::can_train_and_test;
use crate::whole_folder::{Unfinished, cannot_write, compressor, refuse_existing, write_file};

/// Name of the file that records how a dataset was simulated.
pub const RECORD_NAME: &str = "simulation.json";

/// Prefix of the names of unfinished folders.
const UNFINISHED: &str = ".simulating-";

/// Content of `simulation.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimulationRecord {
    /// [`SIMULATION_VERSION`] of the program that wrote it.
    pub version: u32,
    /// Options of the simulation.
    pub options: SimulationOptions,
    /// The logs.
    pub files: Vec<SimulatedFile>,
}

/// One log of a simulated dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimulatedFile {
    /// Path relative to the dataset's folder.
    pub path: PathBuf,
    /// Number of frames.
    pub frames: u64,
    /// Number of attack frames.
    pub attack_frames: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// BLAKE3 digest of the file, in hexadecimal.
    pub blake3: String,
    /// Attacks in the log.
    pub episodes: Vec<Episode>,
}

/// Simulates all logs into a folder beside `target` and renames it to `target`.
pub(super) fn write(options: &SimulationOptions, plans: &[LogPlan], target: &Path) -> Result<(), CanError> {
    refuse_existing(target)?;
    let folder = Unfinished::beside(target, UNFINISHED)?;
    let files: Vec<SimulatedFile> =
        plans.par_iter().map(|plan| write_log(options, plan, folder.path())).collect::<Result<_, _>>()?;
    let record = SimulationRecord { version: SIMULATION_VERSION, options: options.clone(), files };
    let path = folder.path().join(RECORD_NAME);
    let text = serde_json::to_vec_pretty(&record).map_err(io::Error::from).map_err(cannot_write(&path))?;
    write_file(&path, &text)?;
    folder.publish()
}

/// True if `target` holds the dataset of these options, false if it holds no record of a simulation.
pub(super) fn holds(options: &SimulationOptions, target: &Path) -> Result<bool, CanError> {
    let path = target.join(RECORD_NAME);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(CanError::Read { path, source }),
    };
    let found = |what: String| CanError::TargetExists { path: target.to_path_buf(), found: what };
    let record: SimulationRecord =
        serde_json::from_slice(&text).map_err(|error| found(format!("{RECORD_NAME} cannot be read ({error})")))?;
    if record.version != SIMULATION_VERSION || record.options != *options {
        return Err(found("holds a dataset simulated with other options or by another version".to_owned()));
    }
    record.files.par_iter().try_for_each(|file| {
        let path = target.join(&file.path);
        let bytes = fs::read(&path).map_err(|source| CanError::Read { path, source })?;
        if blake3::hash(&bytes).to_hex().as_str() == file.blake3 {
            return Ok(());
        }
        Err(found(format!(
            "{} has changed since it was written ({} bytes, expected {})",
            file.path.display(),
            bytes.len(),
            file.bytes
        )))
    })?;
    Ok(true)
}

fn write_log(options: &SimulationOptions, plan: &LogPlan, folder: &Path) -> Result<SimulatedFile, CanError> {
    let drive = simulate_drive(&plan.drive);
    let mut text = Vec::with_capacity(48 * drive.frames.len());
    text.extend_from_slice(can_train_and_test::HEADER.as_bytes());
    for frame in &drive.frames {
        can_train_and_test::write_row(frame, &mut text);
    }
    let extension = if options.gzip { "csv.gz" } else { "csv" };
    let relative = Path::new(plan.folder).join(format!("{}.{extension}", plan.name));
    let path = folder.join(&relative);
    let error = |source| CanError::Write { path: path.clone(), source };
    let bytes = if options.gzip { compress(&text).map_err(error)? } else { text };
    fs::create_dir_all(folder.join(plan.folder)).map_err(error)?;
    write_file(&path, &bytes)?;
    Ok(SimulatedFile {
        path: relative,
        frames: drive.frames.len() as u64,
        attack_frames: drive.frames.iter().filter(|frame| frame.attack).count() as u64,
        bytes: bytes.len() as u64,
        blake3: blake3::hash(&bytes).to_hex().to_string(),
        episodes: drive.episodes,
    })
}

fn compress(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = compressor(Vec::new());
    encoder.write_all(text)?;
    encoder.finish()
}
