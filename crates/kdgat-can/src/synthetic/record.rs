//! `synthetic.json`: the sources, options and contents of a folder of synthetic logs.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::UNIX_EPOCH;

use kdgat_base::files;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{FOLDER, SYNTHETIC_VERSION, SyntheticKind, SyntheticOptions, Wanted};
use crate::dataset::{Dataset, Role, SourceFile, file_name};
use crate::error::CanError;
use crate::formats::{Format, TimeUnit};

/// Name of the file that records how synthetic logs were made.
pub const RECORD_NAME: &str = "synthetic.json";

/// Content of `synthetic.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SyntheticRecord {
    /// [`SYNTHETIC_VERSION`] of the program that wrote it.
    pub version: u32,
    /// Options of the synthetic attacks.
    pub options: SyntheticOptions,
    /// Format that was set for the source logs; `None` if it was detected.
    pub format: Option<Format>,
    /// Interface whose frames were read, if one was set.
    pub interface: Option<String>,
    /// Unit of the times of the source logs, if one was set.
    pub time_unit: Option<TimeUnit>,
    /// The attack-free logs, in the dataset's order.
    pub sources: Vec<SourceLog>,
    /// The synthetic logs.
    pub files: Vec<SyntheticFile>,
}

/// An attack-free log when it was read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceLog {
    /// Folder within the dataset.
    pub folder: String,
    /// File name.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last change in nanoseconds since 1970.
    pub modified_nanoseconds: u64,
    /// BLAKE3 digest of its bytes.
    pub blake3: String,
    /// Number of frames.
    pub frames: u64,
    /// Its blocks for training and validation.
    pub blocks: Vec<SourceBlock>,
}

/// One synthetic log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SyntheticFile {
    /// File name.
    pub name: String,
    /// Position of its source in [`SyntheticRecord::sources`].
    pub source: usize,
    /// Kind of its attacks.
    pub kind: SyntheticKind,
    /// Number of frames.
    pub frames: u64,
    /// Number of attack frames.
    pub attack_frames: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 digest of its bytes.
    pub blake3: String,
    /// Its blocks, which cover all its frames.
    pub blocks: Vec<CopiedBlock>,
    /// The attacks, in order of time.
    pub episodes: Vec<SyntheticEpisode>,
}

/// One attack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SyntheticEpisode {
    /// Variant of the attack, such as `frozen`.
    pub manner: String,
    /// Timestamp of the first attack frame.
    pub begin_seconds: f64,
    /// Timestamp of the last attack frame.
    pub end_seconds: f64,
    /// Frames of the log from the first attack frame to the last.
    pub frames: Range<u64>,
    /// IDs under attack, in hexadecimal; empty if there are no particular ones.
    pub targets: Vec<String>,
    /// Number of attack frames.
    pub attack_frames: u64,
    /// Attack frames per 100 frames of the episode.
    pub strength: f64,
}

/// Set that a block's windows belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockSet {
    /// Training.
    Training,
    /// The first half of a validation stretch.
    FirstValidation,
    /// The second half of a validation stretch.
    SecondValidation,
}

impl BlockSet {
    /// All sets.
    pub const ALL: [Self; 3] = [Self::Training, Self::FirstValidation, Self::SecondValidation];
}

/// Consecutive frames of a source log whose windows all belong to one set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceBlock {
    /// The set.
    pub set: BlockSet,
    /// The frames, counted from 0.
    pub frames: Range<u64>,
}

/// Consecutive frames of a synthetic log, made from consecutive frames of one block of its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedBlock {
    /// The set that the block's windows belong to.
    pub set: BlockSet,
    /// Frames of the source.
    pub source: Range<u64>,
    /// Frames of the synthetic log.
    pub frames: Range<u64>,
}

/// Origin of a synthetic log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyntheticOrigin {
    /// Folder of the source log within the dataset.
    pub folder: String,
    /// File name of the source log.
    pub name: String,
    /// Number of frames of the source log.
    pub frames: u64,
    /// BLAKE3 digest of the synthetic log.
    pub blake3: String,
    /// Blocks of the synthetic log, which cover all its frames.
    pub blocks: Vec<CopiedBlock>,
}

impl SyntheticOrigin {
    /// Frames of the source from which these frames of the synthetic log may come: those of all blocks that they touch.
    pub fn source_of(&self, frames: &Range<u64>) -> Range<u64> {
        let touched =
            self.blocks.iter().filter(|block| block.frames.start < frames.end && frames.start < block.frames.end);
        let sources = touched.map(|block| block.source.clone());
        sources.reduce(|one, other| one.start.min(other.start)..one.end.max(other.end)).unwrap_or(0..self.frames)
    }
}

impl Dataset {
    /// Adds the synthetic logs in `folder`, which [`super::ensure_synthetic`] has written for this dataset, as logs of the folder
    /// [`FOLDER`]. The dataset's name does not change.
    ///
    /// # Errors
    /// When the record in `folder` is missing or damaged, or the dataset has a folder of that name already.
    pub fn with_synthetic(mut self, folder: &Path) -> Result<Dataset, CanError> {
        if self.files.iter().any(|file| file.folder == FOLDER) {
            return Err(CanError::SyntheticFolderTaken { path: self.root.join(FOLDER) });
        }
        let record = read(folder)?.ok_or_else(|| CanError::MissingFile { path: folder.join(RECORD_NAME) })?;
        let at = self.files.partition_point(|file| file.folder.as_str() < FOLDER);
        let mut files = Vec::with_capacity(record.files.len());
        for file in record.files {
            let Some(source) = record.sources.get(file.source) else {
                let source = io::Error::other(format!("{} has no source", file.name));
                return Err(CanError::Read { path: folder.join(RECORD_NAME), source });
            };
            let origin = SyntheticOrigin {
                folder: source.folder.clone(),
                name: source.name.clone(),
                frames: source.frames,
                blake3: file.blake3,
                blocks: file.blocks,
            };
            files.push(SourceFile {
                path: folder.join(file.name),
                folder: FOLDER.to_owned(),
                role: Role::TrainWithAttacks,
                synthetic: Some(Box::new(origin)),
            });
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        self.files.splice(at..at, files);
        Ok(self)
    }
}

/// Reads the record in `folder`; `None` if there is none.
fn read(folder: &Path) -> Result<Option<SyntheticRecord>, CanError> {
    let path = folder.join(RECORD_NAME);
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| CanError::Read { path, source: io::Error::new(io::ErrorKind::InvalidData, error) }),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(CanError::Read { path, source }),
    }
}

/// True if `target` holds what is wanted, complete and unchanged.
pub(super) fn holds(wanted: &Wanted<'_>, target: &Path) -> Result<bool, CanError> {
    let record = match read(target) {
        Ok(Some(record)) => record,
        // A damaged record, or one of another version, is written again.
        Ok(None) => return Ok(false),
        Err(CanError::Read { source, .. }) if source.kind() == io::ErrorKind::InvalidData => return Ok(false),
        Err(error) => return Err(error),
    };
    let is_asked_for = record.version == SYNTHETIC_VERSION
        && record.options == *wanted.options
        && record.format == wanted.format
        && record.interface == wanted.read.interface
        && record.time_unit == wanted.read.time_unit;
    Ok(is_asked_for && has_files(&record, target) && has_sources(record, wanted, target)?)
}

/// True if all synthetic logs are as they were written.
fn has_files(record: &SyntheticRecord, target: &Path) -> bool {
    record.files.par_iter().all(|file| digest_of(&target.join(&file.name)).is_ok_and(|digest| digest == file.blake3))
}

/// True if the record was made from the wanted logs as they are now. Logs with another time are compared by content, and their
/// new times are recorded.
fn has_sources(mut record: SyntheticRecord, wanted: &Wanted<'_>, target: &Path) -> Result<bool, CanError> {
    if record.sources.len() != wanted.logs.len() {
        return Ok(false);
    }
    let mut touched = false;
    for (source, log) in record.sources.iter_mut().zip(&wanted.logs) {
        let (bytes, modified_nanoseconds) = state_of(&log.path)?;
        let is_same = (&source.folder, &source.name, source.bytes) == (&log.folder, &file_name(&log.path), bytes);
        if !is_same || (wanted.divide)(log, source.frames) != source.blocks {
            return Ok(false);
        }
        if source.modified_nanoseconds != modified_nanoseconds {
            if digest_of(&log.path)? != source.blake3 {
                return Ok(false);
            }
            source.modified_nanoseconds = modified_nanoseconds;
            touched = true;
        }
    }
    if touched && let Err(error) = write_again(&record, &target.join(RECORD_NAME)) {
        // On a read-only disk, the logs are compared by content again next time.
        tracing::debug!("cannot update the modification times of unchanged logs: {error}");
    }
    Ok(true)
}

fn write_again(record: &SyntheticRecord, path: &Path) -> io::Result<()> {
    files::write_atomically(path, &serde_json::to_vec_pretty(record)?)
}

/// Size of a log in bytes, and time of its last change in nanoseconds since 1970.
pub(super) fn state_of(path: &Path) -> Result<(u64, u64), CanError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => CanError::MissingFile { path: path.to_path_buf() },
        _ => CanError::Open { path: path.to_path_buf(), source },
    };
    let found = fs::metadata(path).map_err(failed)?;
    let modified = found.modified().map_err(failed)?;
    // A file from before 1970 gets time 0; then its content decides.
    Ok((found.len(), modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64))
}

/// BLAKE3 digest of a file's bytes, in hexadecimal.
pub(super) fn digest_of(path: &Path) -> Result<String, CanError> {
    let file = File::open(path).map_err(|source| CanError::Open { path: path.to_path_buf(), source })?;
    let mut hash = blake3::Hasher::new();
    hash.update_reader(file).map_err(|source| CanError::Read { path: path.to_path_buf(), source })?;
    Ok(hash.finalize().to_hex().to_string())
}
