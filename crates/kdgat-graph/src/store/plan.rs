//! Plan of a store: its inputs, and the units of work into which its build is cut.
//!
//! A unit is a few small logs, one large log, or a piece of a very large one. Units depend only on the logs, not on
//! threads or machines, and each has its own shards. The shards are therefore the same for any number of threads and
//! machines, and finished units of a killed build remain valid.

use std::ops::Range;
use std::path::Path;

use kdgat_can::formats::metadata_digest;
use kdgat_can::{Dataset, Format, Role, SyntheticOrigin, format_of_pieces};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::manifest::{FORMAT_VERSION, SourceState};
use super::options::BuildOptions;
use super::sources::file_state;
use crate::profile::{KNOWLEDGE_VERSION, PROFILE_VERSION};
use crate::{FeatureSet, StoreError};

/// Logs share a unit, and thus shards, until they reach this size in bytes.
const UNIT_BYTES: u64 = 1 << 20;

/// Inputs of a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of the store format.
    pub format_version: u64,
    /// Features of nodes and edges.
    pub features: FeatureSet,
    /// Name of the dataset.
    pub dataset: String,
    /// Options of the build.
    pub options: BuildOptions,
    /// Logs in the dataset's order.
    pub logs: Vec<PlannedLog>,
}

/// A log as it was when the build started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedLog {
    /// Folder of the log within the dataset.
    pub folder: String,
    /// File name of the log.
    pub name: String,
    /// Role of its folder.
    pub role: Role,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last change in nanoseconds since 1970.
    pub modified_nanoseconds: u64,
    /// BLAKE3 digest of the label file beside it, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels_blake3: Option<String>,
    /// Origin of a synthetic log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<Box<SyntheticOrigin>>,
}

impl PlannedLog {
    /// State of the log, with the checksum of its bytes.
    pub fn source(&self, blake3: String) -> SourceState {
        let Self { bytes, modified_nanoseconds, .. } = *self;
        SourceState { bytes, modified_nanoseconds, blake3, labels_blake3: self.labels_blake3.clone() }
    }
}

/// One unit of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Whole logs, by position in the plan.
    Logs(Range<usize>),
    /// Computes the checksum of a log that is read in pieces.
    Checksum {
        /// Position of the log in the plan.
        log: usize,
    },
    /// Reads the lines of a log that begin within a range of bytes.
    Piece {
        /// Position of the log in the plan.
        log: usize,
        /// Number of the piece in the log, from 0.
        number: usize,
        /// Format of the log.
        format: Format,
        /// The range of bytes.
        bytes: Range<u64>,
    },
}

impl Unit {
    /// Positions of the logs that this unit reads.
    pub fn logs(&self) -> Range<usize> {
        match self {
            Self::Logs(logs) => logs.clone(),
            Self::Checksum { log } | Self::Piece { log, .. } => *log..*log + 1,
        }
    }
}

impl Plan {
    /// Makes the plan from sizes and times of the logs, and from label files beside them.
    pub fn new(dataset: &Dataset, options: &BuildOptions) -> Result<Self, StoreError> {
        let mut logs = Vec::with_capacity(dataset.files.len());
        for file in &dataset.files {
            let (bytes, modified_nanoseconds) = file_state(&file.path)?;
            let (folder, name) = (file.folder.clone(), name_of(&file.path));
            let labels_blake3 = metadata_digest(&file.path)?;
            let (role, synthetic) = (file.role, file.synthetic.clone());
            logs.push(PlannedLog { folder, name, role, bytes, modified_nanoseconds, labels_blake3, synthetic });
        }
        let (format_version, features) = (FORMAT_VERSION, options.features);
        Ok(Self { format_version, features, dataset: dataset.name.clone(), options: options.clone(), logs })
    }

    /// Name of the store's folder, with a key of the options and of names, roles and sizes of the logs.
    pub fn store_name(&self) -> String {
        let logs = self.logs.iter().map(|log| json!([log.folder, log.name, log.role, log.bytes]));
        let mut parts = vec![json!(self.features), self.options.canonical(), json!(logs.collect::<Vec<_>>())];
        // A store has the profiles that were learned when it was built.
        parts.extend(self.features.needs_history().then(|| json!([PROFILE_VERSION, KNOWLEDGE_VERSION])));
        let parts = json!(parts);
        let key = blake3::hash(parts.to_string().as_bytes()).to_hex();
        format!("{}-{}", self.dataset, &key[..12])
    }

    /// Digest that is equal for plans that give the same store, byte for byte.
    pub fn identity(&self) -> String {
        let (version, features, options) = (self.format_version, self.features, self.options.canonical());
        let parts = json!([version, features, self.dataset, options, self.logs]);
        blake3::hash(parts.to_string().as_bytes()).to_hex().to_string()
    }

    /// The units, in order of the logs. Opens large logs to check if they can be read in pieces.
    pub fn units(&self, dataset: &Dataset) -> Result<Vec<Unit>, StoreError> {
        let mut units = Vec::new();
        let (mut begin, mut bytes) = (0, 0);
        for (log, planned) in self.logs.iter().enumerate() {
            let pieces = planned.bytes / self.options.piece_bytes;
            let format = match pieces {
                0 | 1 => None,
                // A piece does not know the frames before it.
                _ if self.features.needs_history() => None,
                _ => format_of_pieces(&dataset.files[log].path, dataset.files[log].format(self.options.format))?,
            };
            if let Some(format) = format {
                if begin < log {
                    units.push(Unit::Logs(begin..log));
                }
                units.push(Unit::Checksum { log });
                let cut = |piece: u64| (u128::from(planned.bytes) * u128::from(piece) / u128::from(pieces)) as u64;
                units.extend((0..pieces).map(|piece| Unit::Piece {
                    log,
                    number: piece as usize,
                    format,
                    bytes: cut(piece)..cut(piece + 1),
                }));
                (begin, bytes) = (log + 1, 0);
                continue;
            }
            bytes += planned.bytes;
            if bytes >= UNIT_BYTES || log + 1 == self.logs.len() {
                units.push(Unit::Logs(begin..log + 1));
                (begin, bytes) = (log + 1, 0);
            }
        }
        Ok(units)
    }

    /// The part, from 0 to `parts - 1`, that builds a unit: determined by the middle of the unit's logs within all bytes. All units
    /// of a log are in one part.
    pub fn part_of(&self, unit: &Unit, parts: usize) -> usize {
        let bytes = |logs: &[PlannedLog]| logs.iter().map(|log| u128::from(log.bytes)).sum::<u128>();
        let logs = unit.logs();
        let twice_the_middle = 2 * bytes(&self.logs[..logs.start]) + bytes(&self.logs[logs]);
        let twice_all = 2 * bytes(&self.logs).max(1);
        ((twice_the_middle * parts as u128 / twice_all) as usize).min(parts - 1)
    }
}

/// Last component of a path.
pub fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
