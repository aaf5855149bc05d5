//! `store.json`: what a store was built from, how, what is in it, and the checksums that prove it whole.

use std::fs;
use std::path::Path;

use kdgat_base::files;
use kdgat_can::{ReadReport, Role};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::duplicates::Duplicates;
use super::options::BuildOptions;
use crate::split::FileSplit;
use crate::{EdgeScaling, FeatureSet, NodeScaling, StoreError, Vocabulary};

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
    /// The set of node and edge features.
    pub features: FeatureSet,
    pub options: BuildOptions,
    /// Equal for the same graphs, splits and vocabulary ([`Manifest::computed_digest`]).
    pub digest: String,
    pub totals: Totals,
    pub files: Vec<FileEntry>,
    /// From the attack-free frames of the training stretches.
    pub vocabulary: Vocabulary,
    /// Graphs that are in two splits, and which of them are left out of training.
    #[serde(default)]
    pub duplicates: Duplicates,
    /// How the rich features are standardised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<StoreScaling>,
    pub shards: Vec<ShardEntry>,
}

/// Statistics of the features of the benign training graphs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreScaling {
    pub nodes: NodeScaling,
    pub edges: EdgeScaling,
}

impl StoreScaling {
    /// What tells it from others: single precision, since the last digits of doubles do not survive JSON.
    fn bits(&self) -> Vec<u32> {
        let nodes = self.nodes.mean.iter().chain(&self.nodes.deviation).map(|value| value.to_bits());
        let edges = self.edges.mean.iter().chain(&self.edges.deviation).map(|&value| (value as f32).to_bits());
        nodes.chain(edges).collect()
    }
}

/// A log file and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Folder within the dataset, such as `test_01_known_vehicle_known_attack`.
    pub folder: String,
    pub name: String,
    pub role: Role,
    pub source: SourceState,
    /// Rows, frames, attack frames, rejected rows, steps back in time.
    pub report: ReadReport,
    /// Distinct CAN IDs.
    pub ids: u64,
    /// Position in the store of the file's first graph.
    pub first_graph: u64,
    pub graphs: u64,
    pub attack_graphs: u64,
    /// Stretches of the file's graphs (counted from 0); empty for a test file.
    pub split: FileSplit,
}

/// What a source file was when it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    pub bytes: u64,
    /// Nanoseconds since 1970 of the last change.
    pub modified_nanoseconds: u64,
    pub blake3: String,
    /// Of the file beside it with its labels (ROAD's metadata), if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels_blake3: Option<String>,
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
        manifest.check_scaling().map_err(damaged)?;
        Ok(manifest)
    }

    /// blake3 over what decides what a training run sees: options, files, splits, vocabulary, and the shards' checksums.
    ///
    /// Where the files lie, what the dataset is called and when it was written do not count: a copy is the same data.
    pub fn computed_digest(&self) -> String {
        let files = self.files.iter().map(|file| {
            json!([file.folder, file.name, file.role, file.source.blake3, file.graphs, file.attack_graphs, file.split])
        });
        let shards = self.shards.iter().map(|shard| json!([shard.graphs, shard.nodes, shard.edges, shard.blake3]));
        let mut canonical = json!({
            "format_version": self.format_version,
            "features": self.features,
            "options": self.options.canonical(),
            "totals": self.totals,
            "files": files.collect::<Vec<_>>(),
            "vocabulary": self.vocabulary,
            "shards": shards.collect::<Vec<_>>(),
        });
        if !self.duplicates.dropped.is_empty() {
            canonical["dropped"] = json!(self.duplicates.dropped);
        }
        if let Some(scaling) = &self.scaling {
            canonical["scaling"] = json!(scaling.bits());
        }
        blake3::hash(canonical.to_string().as_bytes()).to_hex().to_string()
    }

    /// Writes the manifest under a temporary name beside, syncs it, and renames it.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn write(&self, folder: &Path) -> Result<(), StoreError> {
        let path = folder.join(MANIFEST);
        let json = serde_json::to_vec_pretty(self).map_err(|error| StoreError::io("write", &path)(error.into()))?;
        files::write_atomically(&path, &json).map_err(StoreError::io("write", &path))
    }

    fn check_scaling(&self) -> Result<(), String> {
        match (&self.scaling, self.features) {
            (None, FeatureSet::Window) => Ok(()),
            (Some(scaling), FeatureSet::Rich) => scaling.nodes.problem().map_or(Ok(()), Err),
            (scaling, features) => {
                let has = if scaling.is_some() { "has" } else { "lacks" };
                Err(format!("a store of {features} features {has} a scaling"))
            }
        }
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
