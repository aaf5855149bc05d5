//! A dataset's graphs on disk: a folder of memory-mapped shards and a manifest. `docs/store.md` describes the files.
//!
//! Opening maps the shards and reads only the pointers to each graph; graphs are read in place, regardless of the size of
//! the store.

pub mod build;
mod chain;
pub mod duplicates;
pub mod gather;
mod graphs;
pub mod id_set;
mod ingest;
mod journal;
pub mod manifest;
pub mod options;
mod parallel;
pub mod part;
mod place;
mod plan;
pub mod progress;
pub mod shard;
mod shard_columns;
mod sources;
mod traceless;

pub use build::open_or_build;
pub use gather::{Gathered, Gathering, gather};
pub use graphs::open_or_build_graphs;
pub use options::BuildOptions;
pub use part::{Share, build_part, merge};
pub use progress::{Event, Progress, StageTimes};

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use tch::Tensor;

use kdgat_base::random;
use kdgat_can::Role;
use manifest::{FileEntry, Manifest};
use shard::Shard;

use super::dataset::Schema;
use super::profile::fold_of;
use super::split::halves_of_blocks;
use super::{CarProfile, FeatureSet, GraphView, Split, StoreError, Vocabulary};

/// One of so many training graphs is seen with the profile of its log's first seconds.
const SHORT_EVERY: u64 = 4;

/// A memory-mapped store.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    manifest: Manifest,
    shards: Vec<Shard>,
}

impl Store {
    /// Maps the store in `folder` and checks its manifest, and the size, header and pointers of each shard, so that no graph of an
    /// open store reaches beyond its shard.
    ///
    /// Does not compare the shards' contents with their checksums; [`Store::verify`] does.
    ///
    /// # Errors
    /// When there is no store, it has another version or is damaged; each error says what to do.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let manifest = Manifest::read(folder)?;
        let shards = manifest
            .shards
            .iter()
            .map(|entry| Shard::open(folder, entry, manifest.features, manifest.options.window))
            .collect::<Result<_, _>>()?;
        Ok(Self { path: folder.to_path_buf(), manifest, shards })
    }

    /// Reads every byte of the shards and compares their checksums.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] names the first shard that differs.
    pub fn verify(&self) -> Result<(), StoreError> {
        self.shards.iter().zip(&self.manifest.shards).try_for_each(|(shard, entry)| shard.verify(entry))
    }

    /// The store's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Releases the pages of the store that have been read from this process's memory, where mapped files count like any other
    /// memory; they are mapped again when they are read. For a single pass over a store of any size.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn release_pages(&self) -> Result<(), StoreError> {
        self.shards.iter().try_for_each(Shard::release_pages)
    }

    /// Number of graphs of all files.
    pub fn num_graphs(&self) -> u64 {
        self.manifest.totals.graphs
    }

    /// Digest of the store: equal for stores with the same graphs, splits and vocabulary, and only for them.
    pub fn digest(&self) -> &str {
        &self.manifest.digest
    }

    /// The manifest: sources, parameters, counts and checksums.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Schema of graphs that are no CAN windows.
    pub fn schema(&self) -> Option<&Schema> {
        self.manifest.schema.as_ref()
    }

    /// The set that the source assigns graph `graph` to, if it assigns graphs.
    pub fn given_split(&self, graph: u64) -> Option<Split> {
        match self.manifest.given_splits.as_ref()?.as_bytes().get(graph as usize)? {
            b't' => Some(Split::Train),
            b'v' => Some(Split::Validation),
            _ => Some(Split::Test),
        }
    }

    /// The set of node and edge features.
    pub fn features(&self) -> FeatureSet {
        self.manifest.features
    }

    /// The vocabulary: IDs of the attack-free frames in the training set.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.manifest.vocabulary
    }

    /// Graph `graph` of the store, read in place.
    ///
    /// # Errors
    /// When there is no such graph, or its shard is damaged.
    pub fn try_graph(&self, graph: u64) -> Result<GraphView<'_>, StoreError> {
        let (shard, index) = self.place_of(graph)?;
        self.shards[shard].graph(index)
    }

    /// Hash of a graph as its source has it; 0 for a CAN window.
    ///
    /// # Errors
    /// [`StoreError::NoSuchGraph`].
    pub fn graph_hash(&self, graph: u64) -> Result<u64, StoreError> {
        let (shard, index) = self.place_of(graph)?;
        Ok(self.shards[shard].graph_hashes().get(index).copied().unwrap_or(0))
    }

    /// Shard of a graph, and its position there.
    fn place_of(&self, graph: u64) -> Result<(usize, usize), StoreError> {
        if graph >= self.num_graphs() {
            let (store, num_graphs) = (self.path.clone(), self.num_graphs());
            return Err(StoreError::NoSuchGraph { store, graph, num_graphs });
        }
        let entries = &self.manifest.shards;
        let shard = entries.partition_point(|entry| entry.first_graph <= graph) - 1;
        Ok((shard, (graph - entries[shard].first_graph) as usize))
    }

    /// The manifest's entry of the log that a graph comes from.
    ///
    /// # Panics
    /// When there is no such graph.
    pub fn log_of(&self, graph: u64) -> &FileEntry {
        // Opening has checked the manifest: the first log begins at graph 0, and a log without graphs where the next one does.
        &self.manifest.files[self.manifest.files.partition_point(|file| file.first_graph <= graph) - 1]
    }

    /// The error that a graph's shard is damaged, with this detail.
    pub(crate) fn damaged(&self, graph: u64, detail: &str) -> StoreError {
        let shard = self.manifest.shards.partition_point(|entry| entry.first_graph <= graph).saturating_sub(1);
        let path = self.shards.get(shard).map_or(self.path.as_path(), Shard::path).to_path_buf();
        StoreError::Damaged { shard: path, detail: format!("graph {graph}: {detail}") }
    }

    /// Node features of `graphs`, `[num_nodes, node_features]`, as a read-only tensor over the mapped file; `None` unless the
    /// graphs are adjacent in one shard.
    ///
    /// # Errors
    /// Those of [`Store::try_graph`].
    pub fn node_features_in_place(&self, graphs: &[u64]) -> Result<Option<Tensor>, StoreError> {
        let (Some(&first), Some(&last)) = (graphs.first(), graphs.last()) else { return Ok(None) };
        if self.features().stored_node_features() == 0 {
            return Ok(None);
        }
        let entries = &self.manifest.shards;
        let shard = entries.partition_point(|entry| entry.first_graph <= first).saturating_sub(1);
        let Some(entry) = entries.get(shard) else { return Ok(None) };
        let ascending = graphs.iter().zip(first..).all(|(&graph, expected)| graph == expected);
        if !ascending || last >= entry.first_graph + entry.graphs {
            return Ok(None);
        }
        let places = (first - entry.first_graph) as usize..(last - entry.first_graph) as usize + 1;
        self.shards[shard].node_features(places).map(Some)
    }

    /// Node features of a graph, `[num_nodes, node_features]`; those of the profile set are deviations from the store's own profile.
    ///
    /// # Errors
    /// [`StoreError::NoProfile`] for a store of the profile set without a profile.
    pub fn node_features_of<'a>(&self, view: &GraphView<'a>) -> Result<Cow<'a, [f32]>, StoreError> {
        if !self.features().needs_history() {
            return Ok(Cow::Borrowed(view.node_features));
        }
        let own = self.manifest.profile.as_ref().ok_or(StoreError::NoProfile)?;
        let mut rows = Vec::new();
        own.whole.append_deviations(view, &mut rows);
        Ok(Cow::Owned(rows))
    }

    /// Profile of the car that the training windows show, for a store of the profile set.
    pub fn profile(&self) -> Option<&CarProfile> {
        self.manifest.profile.as_ref().map(|own| &own.whole)
    }

    /// The profile to use for a graph by a model with this profile. For a training graph of the store that the profile was learned from it
    /// is the one without the graph's fold, or for every fourth graph the one of its log's first seconds, so that a model is trained for
    /// cars with little traffic, too. With `short`, it is the latter for all graphs of logs that have one.
    pub(crate) fn profile_for<'a>(&'a self, graph: u64, of_model: &'a CarProfile, short: bool) -> &'a CarProfile {
        let Some(own) = self.manifest.profile.as_ref().filter(|own| own.whole.is_same_as(of_model)) else {
            return of_model;
        };
        let file = self.log_of(graph);
        let position = graph - file.first_graph;
        let trains = file.role != Role::Test && file.split.of(position) == Some(Split::Train);
        let of_log = || own.short_of(self.manifest.files.iter().position(|other| std::ptr::eq(other, file))?);
        let short = short || (trains && random::mix(graph).is_multiple_of(SHORT_EVERY));
        match short.then(of_log).flatten() {
            Some(of_log) => of_log,
            None if trains => own.without.get(fold_of(position)).unwrap_or(of_model),
            None => of_model,
        }
    }

    /// Graph `graph` of the store, like [`Store::try_graph`].
    ///
    /// # Panics
    /// When there is no such graph; [`Store::open`] has ruled out damaged pointers.
    pub fn graph(&self, graph: u64) -> GraphView<'_> {
        self.try_graph(graph).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Positions of the graphs of a split, ascending, without those dropped from training as duplicates and synthetic attacks without a
    /// trace; only those with this label if `attack` is given.
    pub fn select(&self, split: Split, attack: Option<bool>) -> Vec<u64> {
        self.select_where(attack, |_| true, split)
    }

    /// The same as [`Store::select`] for one folder of the dataset (such as `test_01_known_vehicle_known_attack`).
    pub fn select_folder(&self, folder: &str, split: Split, attack: Option<bool>) -> Vec<u64> {
        self.select_where(attack, |file| file.folder == folder, split)
    }

    /// Positions of the validation graphs, ascending, in two sets that share no frame: the first and the second half of each
    /// validation stretch.
    pub fn validation_halves(&self) -> [Vec<u64>; 2] {
        let BuildOptions { window, stride, .. } = self.manifest.options;
        let mut halves = [Vec::new(), Vec::new()];
        for file in self.manifest.files.iter().filter(|file| file.role != Role::Test) {
            let of_file = match &file.synthetic {
                // A kind of attack that trains as a whole has no validation windows.
                Some(_) if file.split.validation.is_empty() => continue,
                Some(origin) => halves_of_blocks(&origin.blocks, window, stride),
                None => file.split.validation_halves(window, stride),
            };
            for (half, stretches) in halves.iter_mut().zip(of_file) {
                let graphs =
                    stretches.iter().flat_map(|part| file.first_graph + part.start..file.first_graph + part.end);
                half.extend(graphs.filter(|graph| !traceless::contains(&self.manifest.traceless, *graph)));
            }
        }
        halves
    }

    fn select_where(&self, attack: Option<bool>, keep: impl Fn(&FileEntry) -> bool, split: Split) -> Vec<u64> {
        let mut selected = Vec::new();
        let mut labels = LabelCursor { store: self, shard: 0 };
        for file in self.manifest.files.iter().filter(|&file| keep(file)) {
            let whole_file = 0..file.graphs;
            let stretches = match (file.role, split) {
                (Role::Test, Split::Test) => std::slice::from_ref(&whole_file),
                (Role::Test, _) | (_, Split::Test) => &[],
                (_, split) => file.split.stretches(split),
            };
            for graph in stretches.iter().flat_map(|part| file.first_graph + part.start..file.first_graph + part.end) {
                let is_duplicate = split == Split::Train && self.manifest.duplicates.drops(graph);
                if is_duplicate || traceless::contains(&self.manifest.traceless, graph) {
                    continue;
                }
                if attack.is_none_or(|attack| labels.attack(graph) == attack) {
                    selected.push(graph);
                }
            }
        }
        selected
    }
}

/// Reads labels of graphs in ascending order.
struct LabelCursor<'a> {
    store: &'a Store,
    shard: usize,
}

impl LabelCursor<'_> {
    fn attack(&mut self, graph: u64) -> bool {
        let entries = &self.store.manifest.shards;
        while graph >= entries[self.shard].first_graph + entries[self.shard].graphs {
            self.shard += 1;
        }
        self.store.shards[self.shard].labels()[(graph - entries[self.shard].first_graph) as usize] != 0
    }
}
