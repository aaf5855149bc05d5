//! `store.json`: what a store was built from, how, what is in it, and the checksums that prove it whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::graph::split::FileSplit;
use crate::graph::{StoreError, Vocabulary};

/// Raised whenever a store of an older program would be read wrongly.
pub const FORMAT_VERSION: u64 = 1;
/// The manifest's name in the store's folder.
pub const MANIFEST: &str = "store.json";

/// All that is known of a store besides its graphs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format_version: u64,
    /// Name of the dataset.
    pub dataset: String,
    pub parameters: Parameters,
    /// blake3 of all that follows but sizes and times of the sources: the same graphs, splits and vocabulary.
    pub digest: String,
    pub totals: Totals,
    pub files: Vec<FileEntry>,
    /// From the attack-free frames of the training stretches.
    pub vocabulary: Vocabulary,
    pub shards: Vec<ShardEntry>,
}

/// What decides how frames become graphs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// Frames in a window.
    pub window: usize,
    /// Frames between the starts of two windows.
    pub stride: usize,
    /// Share of each training file's windows that is for validation.
    pub validation_fraction: f64,
    /// Share of a file's rows that may be unreadable.
    pub max_reject_share: f64,
    /// Log format that was forced, if any.
    pub format: Option<String>,
    /// Name of the feature set.
    pub features: String,
}

/// A log file and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Folder within the dataset, such as `test_01_known_vehicle_known_attack`.
    pub folder: String,
    pub name: String,
    /// Whether the file is for training and validation, and not a test.
    pub training: bool,
    pub source: SourceState,
    /// Rows read, rejected ones included.
    pub rows: u64,
    pub frames: u64,
    pub attack_frames: u64,
    /// Rejected rows by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Frames whose timestamp lies before that of the frame above.
    pub backward_timestamps: u64,
    /// Distinct CAN IDs.
    pub ids: u64,
    /// Position in the store of the file's first graph.
    pub first_graph: u64,
    pub graphs: u64,
    pub attack_graphs: u64,
    /// Stretches of the file's graphs (counted from 0); empty for a test file.
    pub split: FileSplit,
}

impl FileEntry {
    /// Rejected rows of all reasons.
    pub fn rejected_rows(&self) -> u64 {
        self.rejected.values().sum()
    }
}

/// What a source file was when it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    pub bytes: u64,
    /// Nanoseconds since 1970 of the last change.
    pub modified_nanoseconds: u64,
    pub blake3: String,
}

/// Sums over all files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub files: u64,
    pub rows: u64,
    pub rejected_rows: u64,
    pub frames: u64,
    pub attack_frames: u64,
    pub graphs: u64,
    pub attack_graphs: u64,
    pub nodes: u64,
    pub edges: u64,
    /// Distinct CAN IDs of the dataset.
    pub ids: u64,
}

/// A shard and its checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    pub name: String,
    /// Position in the store of the shard's first graph.
    pub first_graph: u64,
    pub graphs: u64,
    pub nodes: u64,
    pub edges: u64,
    pub bytes: u64,
    pub blake3: String,
}

impl Manifest {
    /// Reads and checks the manifest of a store.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Version`] or [`StoreError::Manifest`].
    pub fn read(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(MANIFEST);
        let bytes = fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                StoreError::Missing { path: folder.to_path_buf() }
            }
            _ => StoreError::io("read", &path)(error),
        })?;
        let damaged = |detail: String| StoreError::Manifest { path: path.clone(), detail };
        let json: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        match json.get("format_version").and_then(serde_json::Value::as_u64) {
            Some(FORMAT_VERSION) => {}
            Some(found) => {
                return Err(StoreError::Version { path: folder.to_path_buf(), found, expected: FORMAT_VERSION });
            }
            None => return Err(damaged("it has no format_version".to_string())),
        }
        let manifest: Self = serde_json::from_value(json).map_err(|error| damaged(error.to_string()))?;
        let digest = manifest.computed_digest();
        if digest != manifest.digest {
            return Err(damaged(format!("its digest is {digest}, it says {}", manifest.digest)));
        }
        manifest.check_positions().map_err(damaged)?;
        Ok(manifest)
    }

    /// blake3 over everything that decides what a training run sees, in a fixed order.
    pub fn computed_digest(&self) -> String {
        let mut canonical = self.clone();
        canonical.digest = String::new();
        for file in &mut canonical.files {
            // The same bytes copied to another place are the same data.
            file.source.modified_nanoseconds = 0;
        }
        // A struct of strings and numbers: it always has a JSON form.
        let json = serde_json::to_vec(&canonical).unwrap_or_default();
        blake3::hash(&json).to_hex().to_string()
    }

    fn check_positions(&self) -> Result<(), String> {
        let mut next = 0;
        for shard in &self.shards {
            if shard.first_graph != next {
                return Err(format!("{} begins at graph {}, expected {next}", shard.name, shard.first_graph));
            }
            next += shard.graphs;
        }
        let mut end = 0;
        for file in &self.files {
            if file.first_graph != end {
                return Err(format!("{} begins at graph {}, expected {end}", file.name, file.first_graph));
            }
            end += file.graphs;
        }
        match next == self.totals.graphs && end == next {
            true => Ok(()),
            false => Err(format!("shards hold {next} graphs, files {end}, the totals say {}", self.totals.graphs)),
        }
    }
}
