//! `store.json`: the sources, options and contents of a store, with checksums.

use std::fs;
use std::ops::Range;
use std::path::Path;

use kdgat_base::files;
use kdgat_can::{ReadReport, Role, SyntheticOrigin};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::duplicates::Duplicates;
use super::options::BuildOptions;
use crate::dataset::{Level, Schema};
use crate::profile::{FOLDS, ProfileLearner};
use crate::split::FileSplit;
use crate::{CarProfile, EdgeScaling, FeatureSet, NodeScaling, OfPaths, StoreError, Vocabulary};

/// Version of the store format, raised whenever this program would misread the stores of the one before.
pub const FORMAT_VERSION: u64 = 1;
/// Name of the manifest in the store's folder.
pub const MANIFEST: &str = "store.json";

/// Description of a store: everything except its graphs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the store format.
    pub format_version: u64,
    /// Name of the dataset.
    pub dataset: String,
    /// The set of node and edge features.
    pub features: FeatureSet,
    /// Options of the build.
    pub options: BuildOptions,
    /// Digest of the graphs, splits and vocabulary ([`Manifest::computed_digest`]).
    pub digest: String,
    /// Sums over all logs.
    pub totals: Totals,
    /// The logs.
    pub files: Vec<FileEntry>,
    /// Vocabulary from the attack-free frames of the training stretches.
    pub vocabulary: Vocabulary,
    /// Graphs that are in two splits, and those dropped from training.
    pub duplicates: Duplicates,
    /// Standardisation of the rich features; `None` for the window set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<StoreScaling>,
    /// Profiles of the car from the attack-free training windows, for the profile set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<StoreProfile>,
    /// Positions of the synthetic attack windows without a [trace](super::traceless), which are in no split, ascending.
    pub traceless: Vec<Range<u64>>,
    /// Schema of graphs that are no CAN windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Schema>,
    /// For such graphs, the set that the source assigns each of them to, as a letter: t(raining), v(alidation), x (test).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_splits: Option<String>,
    /// The shards, in order of their graphs.
    pub shards: Vec<ShardEntry>,
}

/// Profiles of the car that a store's training windows show.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreProfile {
    /// Learned from all training windows: for validation, tests, and other traffic.
    pub whole: CarProfile,
    /// Learned from the windows outside each [fold](crate::profile::fold_of): for the training windows of that fold, so that a model does
    /// not learn that usual traffic has no value that the profile has not seen.
    pub without: Vec<CarProfile>,
    /// Learned from the first [`SHORT_SECONDS`] of attack-free training windows of single logs, by position of the log.
    pub short: Vec<(usize, CarProfile)>,
}

/// Seconds of traffic of a short profile.
pub const SHORT_SECONDS: f64 = 10.0;
/// Most logs with a short profile.
pub(super) const MOST_SHORT: usize = 16;

impl StoreProfile {
    /// The short profile of a log.
    pub fn short_of(&self, log: usize) -> Option<&CarProfile> {
        let at = self.short.binary_search_by_key(&log, |&(log, _)| log).ok()?;
        Some(&self.short[at].1)
    }

    pub(super) fn of(folds: &[ProfileLearner; FOLDS], short: Vec<(usize, CarProfile)>) -> Self {
        let merged = |left_out| ProfileLearner::merged(folds, left_out).profile();
        Self { whole: merged(None), without: (0..FOLDS).map(|fold| merged(Some(fold))).collect(), short }
    }

    fn problem(&self) -> Option<String> {
        if self.without.len() != FOLDS {
            return Some(format!("it has {} profiles without a fold, expected {FOLDS}", self.without.len()));
        }
        let short = self.short.iter().map(|(_, profile)| profile);
        if !self.short.is_sorted_by(|one, next| one.0 < next.0) {
            return Some("its short profiles are not in the order of the logs".to_owned());
        }
        std::iter::once(&self.whole).chain(&self.without).chain(short).find_map(CarProfile::problem)
    }
}

/// Statistics of the features of the benign training graphs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreScaling {
    /// Scaling of the node features.
    pub nodes: NodeScaling,
    /// Scaling of the edge features.
    pub edges: EdgeScaling,
}

impl StoreScaling {
    /// Bits that identify the scaling, in single precision: JSON does not preserve the last digits of doubles.
    fn bits(&self) -> Vec<u32> {
        let nodes = self.nodes.mean.iter().chain(&self.nodes.deviation).map(|value| value.to_bits());
        let edges = self.edges.mean.iter().chain(&self.edges.deviation).map(|&value| (value as f32).to_bits());
        nodes.chain(edges).collect()
    }
}

/// One log and the results of reading it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Folder within the dataset, such as `test_01_known_vehicle_known_attack`.
    pub folder: String,
    /// File name.
    pub name: String,
    /// Role of the folder.
    pub role: Role,
    /// State of the log when it was read.
    pub source: SourceState,
    /// Counts of rows, frames, attack frames, rejected rows and backward timestamps.
    pub report: ReadReport,
    /// Number of distinct CAN IDs.
    pub ids: u64,
    /// Position of the log's first graph in the store.
    pub first_graph: u64,
    /// Number of graphs.
    pub graphs: u64,
    /// Number of graphs with an attack.
    pub attack_graphs: u64,
    /// Training and validation stretches of the log's graphs (counted from 0); empty for a test log.
    pub split: FileSplit,
    /// Origin of a log of synthetic attacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<Box<SyntheticOrigin>>,
}

/// State of a log when it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last change in nanoseconds since 1970.
    pub modified_nanoseconds: u64,
    /// BLAKE3 digest of its bytes.
    pub blake3: String,
    /// BLAKE3 digest of the label file beside it (ROAD's metadata), if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels_blake3: Option<String>,
}

/// Sums over all logs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Number of logs.
    pub files: u64,
    /// Number of rows.
    pub rows: u64,
    /// Number of rejected rows.
    pub rejected_rows: u64,
    /// Number of frames.
    pub frames: u64,
    /// Number of attack frames.
    pub attack_frames: u64,
    /// Number of graphs.
    pub graphs: u64,
    /// Number of graphs with an attack.
    pub attack_graphs: u64,
    /// Number of nodes of all graphs.
    pub nodes: u64,
    /// Number of edges of all graphs.
    pub edges: u64,
    /// Number of distinct CAN IDs.
    pub ids: u64,
}

/// A shard and its checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    /// File name.
    pub name: String,
    /// Position of the shard's first graph in the store.
    pub first_graph: u64,
    /// Number of graphs.
    pub graphs: u64,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of edges.
    pub edges: u64,
    /// Number of listed paths of each kind.
    #[serde(default, skip_serializing_if = "OfPaths::is_none")]
    pub paths: OfPaths<u64>,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 digest of the file.
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
            return Err(damaged(format!("its digest is {digest}, but it records {}", manifest.digest)));
        }
        manifest.check_positions().map_err(&damaged)?;
        manifest.check_scaling().map_err(&damaged)?;
        manifest.check_profile().map_err(&damaged)?;
        manifest.check_schema().map_err(damaged)?;
        Ok(manifest)
    }

    /// BLAKE3 digest of everything that a training run depends on: options, files, splits, vocabulary, and the shards' checksums.
    ///
    /// Location, dataset name and time of writing do not count: a copy is the same data. Of graphs that are no CAN windows, only the graphs
    /// count, with their schema and sets.
    pub fn computed_digest(&self) -> String {
        // The only entry of graphs that are no CAN windows is the dataset's folder, whose other files do not count.
        let files = self.files.iter().filter(|_| self.schema.is_none()).map(|file| {
            json!([file.folder, file.name, file.role, file.source.blake3, file.graphs, file.attack_graphs, file.split])
        });
        let shards = self.shards.iter().map(|shard| json!([shard.graphs, shard.nodes, shard.edges, shard.blake3]));
        let canonical = json!({
            "format_version": self.format_version,
            "features": self.features,
            "options": self.options.canonical(),
            "totals": self.totals,
            "files": files.collect::<Vec<_>>(),
            "vocabulary": self.vocabulary,
            "dropped": self.duplicates.dropped,
            "traceless": self.traceless,
            "scaling": self.scaling.as_ref().map(StoreScaling::bits),
            "profile": self.profile,
            "schema": self.schema,
            "given_splits": self.given_splits,
            "shards": shards.collect::<Vec<_>>(),
        });
        blake3::hash(canonical.to_string().as_bytes()).to_hex().to_string()
    }

    /// Writes the manifest to a temporary file beside it, syncs it, and renames it.
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
            (None, FeatureSet::Window | FeatureSet::Profile | FeatureSet::Columns { .. }) => Ok(()),
            (Some(scaling), FeatureSet::Rich) => scaling.nodes.problem().map_or(Ok(()), Err),
            (scaling, features) => {
                let has = if scaling.is_some() { "has" } else { "lacks" };
                Err(format!("a store of {features} features {has} a scaling"))
            }
        }
    }

    fn check_profile(&self) -> Result<(), String> {
        match (&self.profile, self.features.needs_history()) {
            (Some(profile), true) => profile.problem().map_or(Ok(()), Err),
            (None, false) => Ok(()),
            (profile, _) => {
                let has = if profile.is_some() { "has" } else { "lacks" };
                Err(format!("a store of {} features {has} a profile", self.features))
            }
        }
    }

    fn check_schema(&self) -> Result<(), String> {
        let (columns, graphs) = (self.features, self.totals.graphs);
        let fits = match (&self.schema, columns) {
            (Some(schema), FeatureSet::Columns { nodes, edges, targets, node_targets, space, .. }) => {
                let expected = match schema.level {
                    Level::Graph => (schema.targets.len(), 0),
                    Level::Node => (0, schema.targets.len()),
                };
                schema.node_columns() == usize::from(nodes)
                    && (edges == 0 || schema.edge_columns() == usize::from(edges))
                    && expected == (usize::from(targets), usize::from(node_targets))
                    && schema.space_columns() == space
            }
            (None, columns) => !columns.is_columns(),
            (Some(_), _) => false,
        };
        let splits_fit = self.given_splits.as_ref().is_none_or(|splits| splits.len() as u64 == graphs);
        match fits && splits_fit {
            true => Ok(()),
            false => Err(format!("its schema does not fit its {columns} features, or its splits its {graphs} graphs")),
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
            false => Err(format!("shards hold {next} graphs, files {end}, but the totals have {}", self.totals.graphs)),
        }
    }
}
