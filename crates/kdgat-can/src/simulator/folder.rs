//! Writes a simulated dataset into a temporary folder and renames it once complete; verifies an existing one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::attack::Episode;
use super::drive::simulate_drive;
use super::{LogPlan, SIMULATION_VERSION, SimulationOptions};
use crate::error::CanError;
use crate::formats::can_train_and_test;

/// Name of the file that records how a dataset was simulated.
pub const RECORD_NAME: &str = "simulation.json";

/// Prefix of the names of unfinished folders.
const UNFINISHED: &str = ".simulating-";
/// Age from which an unlocked unfinished folder is removed.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

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
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| CanError::Write { path, source }
    };
    fs::create_dir_all(parent).map_err(error(parent))?;
    remove_abandoned(parent);
    // Removed on drop unless it is renamed. Datasets never have names with a leading dot.
    let beside = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(parent).map_err(error(parent))?;
    // Held while this process writes the folder.
    let _lock = File::open(beside.path()).and_then(|folder| folder.try_lock().map(|()| folder).map_err(Into::into));
    let files: Vec<SimulatedFile> =
        plans.par_iter().map(|plan| write_log(options, plan, beside.path())).collect::<Result<_, _>>()?;
    let record = SimulationRecord { version: SIMULATION_VERSION, options: options.clone(), files };
    let path = beside.path().join(RECORD_NAME);
    let text = serde_json::to_vec_pretty(&record).map_err(io::Error::from).map_err(error(&path))?;
    write_file(&path, &text)?;
    publish(beside, target).map_err(|source| match source.kind() {
        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => target_exists(target),
        _ => CanError::Write { path: target.to_path_buf(), source },
    })?;
    File::open(parent).and_then(|folder| folder.sync_all()).map_err(error(parent))
}

/// Removes the folders of simulations that were killed; ones that cannot be removed are left.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let ours = entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes());
        if ours && let Ok(folder) = File::open(&path) {
            let age =
                folder.metadata().and_then(|found| found.modified()).map(|time| time.elapsed().unwrap_or_default());
            // A folder that was just created is not locked yet.
            if age.is_ok_and(|age| age > ABANDONED_AFTER) && folder.try_lock().is_ok() {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
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
    // The header has no name and no time, so that the same text gives the same bytes.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text)?;
    encoder.finish()
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CanError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|source| CanError::Write { path: path.to_path_buf(), source })
}

/// Renames the finished folder to `target`; if that fails, the folder is removed.
fn publish(beside: tempfile::TempDir, target: &Path) -> io::Result<()> {
    for entry in fs::read_dir(beside.path())? {
        let path = entry?.path();
        if path.is_dir() {
            File::open(path)?.sync_all()?;
        }
    }
    File::open(beside.path())?.sync_all()?;
    allow_others_to_read(beside.path())?;
    fs::rename(beside.path(), target)?;
    // The folder has been renamed: the guard must not remove it.
    let _renamed = beside.keep();
    Ok(())
}

/// Gives the temporary folder, which only its owner can read, the permissions of a new folder.
#[cfg(unix)]
fn allow_others_to_read(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let usual = fs::read_dir(folder)?.flatten().find(|entry| entry.path().is_dir());
    let mode = usual.map_or(Ok(0o755), |entry| entry.metadata().map(|metadata| metadata.permissions().mode()))?;
    fs::set_permissions(folder, fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn allow_others_to_read(_folder: &Path) -> io::Result<()> {
    Ok(())
}

fn refuse_existing(target: &Path) -> Result<(), CanError> {
    match fs::read_dir(target) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                Err(target_exists(target))
            } else {
                Ok(())
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(target_exists(target)),
        Err(source) => Err(CanError::Write { path: target.to_path_buf(), source }),
    }
}

fn target_exists(target: &Path) -> CanError {
    CanError::TargetExists { path: target.to_path_buf(), found: "exists already and is not empty".to_owned() }
}
