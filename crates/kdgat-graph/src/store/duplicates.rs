//! Training graphs that are equal to validation or test graphs, feature by feature: they are dropped from training.
//!
//! Otherwise copies of a log in two folders, or replayed traffic, would let a model train on its test data. Two graphs are
//! equal if nodes, edges and all features are; labels and times do not count. Candidates are found by a 64-bit fingerprint, then
//! compared in full.

use std::ops::Range;
use std::path::Path;

use kdgat_can::Role;
use serde::{Deserialize, Serialize};

use super::id_set::IdSet;
use super::manifest::{FileEntry, MOST_SHORT, SHORT_SECONDS, ShardEntry, StoreProfile, StoreScaling};
use super::options::BuildOptions;
use super::parallel::in_parallel;
use super::shard::Shard;
use super::traceless::{contains, push};
use crate::moments::Moments;
use crate::profile::{FOLDS, Pauses, ProfileLearner, fold_of};
use crate::{CarProfile, EDGE_FEATURES, EdgeScaling, FeatureSet, GraphView, NodeScaling, Split, StoreError};

/// Graphs that are in two splits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duplicates {
    /// Training graphs that are also in validation.
    pub train_in_validation: u64,
    /// Training graphs that are also in a test.
    pub train_in_test: u64,
    /// Validation graphs that are also in a test. They are not dropped: a threshold or an epoch chosen on them is slightly optimistic.
    pub validation_in_test: u64,
    /// Positions in the store of the training graphs dropped as duplicates, ascending.
    pub dropped: Vec<Range<u64>>,
}

impl Duplicates {
    /// True if this training graph is dropped.
    pub fn drops(&self, graph: u64) -> bool {
        contains(&self.dropped, graph)
    }

    /// Number of dropped training graphs.
    pub fn num_dropped(&self) -> u64 {
        self.dropped.iter().map(|range| range.end - range.start).sum()
    }
}

/// The graphs of a store that is being built: their location and splits.
pub struct Graphs<'a> {
    /// Folder of the shards.
    pub folder: &'a Path,
    /// The logs.
    pub files: &'a [FileEntry],
    /// The shards.
    pub shards: &'a [ShardEntry],
    /// Options of the build.
    pub options: &'a BuildOptions,
}

/// Results of a pass over all graphs.
pub struct Survey {
    /// IDs that sent attack-free frames in training windows.
    pub ids: IdSet,
    /// Graphs in two splits.
    pub duplicates: Duplicates,
    /// Scaling from the features of benign training graphs, for the rich set.
    pub scaling: Option<StoreScaling>,
    /// Profiles of the car, for the profile set.
    pub profile: Option<StoreProfile>,
    /// Synthetic attack windows without a trace, for the profile set.
    pub traceless: Vec<Range<u64>>,
}

/// Values that a model takes from the training windows.
struct Trained {
    ids: IdSet,
    /// Moments of node and edge features of benign windows.
    moments: Option<[Moments; 2]>,
    /// What the windows of each fold teach about the car.
    profile: Option<[ProfileLearner; FOLDS]>,
    /// Pauses of the drive that is being read.
    pauses: Pauses,
}

impl Trained {
    fn new(features: FeatureSet) -> Self {
        let moments = || [Moments::new(features.node_features()), Moments::new(EDGE_FEATURES)];
        let profile = features.needs_history().then(|| std::array::from_fn(|_| ProfileLearner::default()));
        let moments = (features == FeatureSet::Rich).then(moments);
        Self { ids: IdSet::default(), moments, profile, pauses: Pauses::default() }
    }

    /// Takes the next window of the shard, whether it is for training or not.
    fn pass(&mut self, view: &GraphView<'_>) {
        if self.profile.is_some() {
            self.pauses.push(view);
        }
    }

    /// Adds a training window that was [passed](Self::pass); the profile learns only from windows of a `fold`.
    fn add(&mut self, view: &GraphView<'_>, fold: Option<usize>) {
        let attack_free = view.can_ids.iter().zip(view.attack_free).filter(|&(_, &flag)| flag == 1);
        self.ids.extend(attack_free.map(|(&id, _)| id));
        if let Some([nodes, edges]) = self.moments.as_mut().filter(|_| !view.attack) {
            nodes.add_rows(view.node_features);
            edges.add_rows(view.edge_features);
        }
        if let (Some(folds), Some(fold)) = (&mut self.profile, fold.filter(|_| !view.attack)) {
            folds[fold].add(view, &self.pauses);
        }
    }

    /// Adds another shard. Merging in the order of the shards gives the same sums for any number of builders.
    fn merge(&mut self, other: &Self) {
        self.ids.extend(other.ids.iter());
        if let (Some(own), Some(others)) = (&mut self.moments, &other.moments) {
            own.iter_mut().zip(others).for_each(|(own, other)| own.merge(other));
        }
        if let (Some(own), Some(others)) = (&mut self.profile, &other.profile) {
            own.iter_mut().zip(others).for_each(|(own, other)| own.merge(other));
        }
    }

    fn scaling(&self) -> Option<StoreScaling> {
        let [nodes, edges] = self.moments.as_ref()?;
        Some(StoreScaling { nodes: NodeScaling::from_moments(nodes), edges: EdgeScaling::from_moments(edges) })
    }
}

impl Graphs<'_> {
    /// Verifies every shard's checksum, finds the duplicates, and collects IDs and scaling from the training graphs.
    pub fn survey(&self) -> Result<Survey, StoreError> {
        let mut fingerprints = Vec::new();
        let parts = in_parallel(self.shards.len(), self.options.num_threads(), |index, _: &mut ()| {
            let shard = self.open(index)?;
            shard.verify(&self.shards[index])?;
            let mut fingerprints = Vec::with_capacity(self.shards[index].graphs as usize);
            let trained = self.trained(index, &shard, |_, view| {
                fingerprints.push(fingerprint(view));
                true
            })?;
            Ok((trained, fingerprints))
        })?;
        let mut trained = Trained::new(self.options.features);
        for (part, more) in parts {
            trained.merge(&part);
            fingerprints.extend(more);
        }
        let mut duplicates = self.duplicates(&fingerprints)?;
        if self.options.keep_duplicates {
            duplicates.dropped.clear();
        }
        if !duplicates.dropped.is_empty() {
            // Dropped graphs must not affect the vocabulary or the scaling either.
            let parts = in_parallel(self.shards.len(), self.options.num_threads(), |index, _: &mut ()| {
                let shard = self.open(index)?;
                self.trained(index, &shard, |graph, _| !duplicates.drops(graph))
            })?;
            trained = Trained::new(self.options.features);
            parts.iter().for_each(|part| trained.merge(part));
        }
        let scaling = trained.scaling();
        let profile = match &trained.profile {
            Some(folds) => Some(StoreProfile::of(folds, self.short_profiles()?)),
            None => None,
        };
        let traceless = profile.as_ref().map_or(Ok(Vec::new()), |profile| self.traceless(profile))?;
        Ok(Survey { ids: trained.ids, duplicates, scaling, profile, traceless })
    }

    /// Profiles of the first seconds of training logs; of some of them, if there are many.
    fn short_profiles(&self) -> Result<Vec<(usize, CarProfile)>, StoreError> {
        let trains = |file: &&FileEntry| file.role != Role::Test && file.graphs > 0;
        let logs = self.files.iter().filter(trains).count();
        let every = logs.div_ceil(MOST_SHORT).max(1);
        let mut shards = OpenShards { graphs: self, open: Vec::new() };
        let mut profiles = Vec::new();
        for (log, file) in self.files.iter().enumerate().filter(|(_, file)| trains(file)).step_by(every) {
            let (mut learner, mut pauses) = (ProfileLearner::default(), Pauses::default());
            let (mut begin, mut seconds) = (None, 0.0);
            for graph in file.first_graph..file.first_graph + file.graphs {
                shards.with(graph, |view| {
                    let teaches = !view.attack && file.split.of(graph - file.first_graph) == Some(Split::Train);
                    pauses.push(view);
                    if teaches {
                        learner.add(view, &pauses);
                        seconds = view.start_time - *begin.get_or_insert(view.start_time);
                    }
                })?;
                if seconds >= SHORT_SECONDS {
                    profiles.push((log, learner.profile()));
                    break;
                }
            }
        }
        Ok(profiles)
    }

    pub(super) fn open(&self, index: usize) -> Result<Shard, StoreError> {
        Shard::open(self.folder, &self.shards[index], self.options.features, self.options.window)
    }

    /// Collects the values of a shard's training windows for which `keep` returns true; `keep` is called for every graph.
    fn trained(
        &self,
        index: usize,
        shard: &Shard,
        mut keep: impl FnMut(u64, &GraphView<'_>) -> bool,
    ) -> Result<Trained, StoreError> {
        let mut trained = Trained::new(self.options.features);
        // Traffic recorded beside attacks, or made from attack-free logs, is a second choice.
        let has_attack_free = self.files.iter().any(|file| file.role == Role::TrainAttackFree && file.graphs > 0);
        for position in 0..self.shards[index].graphs {
            let view = shard.graph(position as usize)?;
            let graph = self.shards[index].first_graph + position;
            trained.pass(&view);
            if keep(graph, &view) && self.split_of(&view, graph) == Some(Split::Train) {
                let file = &self.files[view.file as usize];
                let teaches = file.role == Role::TrainAttackFree || !has_attack_free;
                trained.add(&view, teaches.then(|| fold_of(graph - file.first_graph)));
            }
        }
        Ok(trained)
    }

    fn split_of(&self, view: &GraphView<'_>, graph: u64) -> Option<Split> {
        split_in(&self.files[view.file as usize], graph)
    }

    fn duplicates(&self, fingerprints: &[u64]) -> Result<Duplicates, StoreError> {
        let mut shards = OpenShards { graphs: self, open: Vec::new() };
        let held_out = self.held_out(fingerprints, &mut shards)?;
        let mut duplicates = Duplicates::default();
        for (graph, split) in self.splits().filter(|(_, split)| *split != Split::Test) {
            let fingerprint = fingerprints[graph as usize];
            let first = held_out.partition_point(|known| known.fingerprint < fingerprint);
            let alike = held_out[first..].iter().take_while(|known| known.fingerprint == fingerprint);
            let Some(&HeldOut { in_validation, in_test, .. }) = shards.equal_to(graph, alike)? else { continue };
            match split {
                Split::Train => {
                    duplicates.train_in_validation += u64::from(in_validation);
                    duplicates.train_in_test += u64::from(in_test);
                    if in_validation || in_test {
                        push(&mut duplicates.dropped, graph);
                    }
                }
                _ => duplicates.validation_in_test += u64::from(in_test),
            }
        }
        Ok(duplicates)
    }

    /// Graphs of validation and tests, sorted by fingerprint; of equal ones only the first, so that monotonous traffic needs few
    /// comparisons.
    fn held_out(&self, fingerprints: &[u64], shards: &mut OpenShards) -> Result<Vec<HeldOut>, StoreError> {
        let held_out = |(graph, split)| HeldOut {
            fingerprint: fingerprints[graph as usize],
            graph,
            in_validation: split == Split::Validation,
            in_test: split == Split::Test,
        };
        let mut all: Vec<HeldOut> = self.splits().filter(|(_, split)| *split != Split::Train).map(held_out).collect();
        all.sort_unstable_by_key(|known| (known.fingerprint, known.graph));
        // `..kept` are the distinct graphs so far, `first..kept` those with the current fingerprint.
        let (mut first, mut kept) = (0, 0);
        for position in 0..all.len() {
            let next = all[position];
            if all[first].fingerprint != next.fingerprint {
                first = kept;
            }
            let mut equal = None;
            for (position, known) in (first..).zip(&all[first..kept]) {
                if shards.are_equal(next.graph, known.graph)? {
                    equal = Some(position);
                    break;
                }
            }
            match equal {
                Some(equal) => {
                    all[equal].in_validation |= next.in_validation;
                    all[equal].in_test |= next.in_test;
                }
                None => {
                    all[kept] = next;
                    kept += 1;
                }
            }
        }
        all.truncate(kept);
        Ok(all)
    }

    /// All graphs that belong to a split.
    fn splits(&self) -> impl Iterator<Item = (u64, Split)> {
        let graphs = |file: &'_ FileEntry| file.first_graph..file.first_graph + file.graphs;
        self.files.iter().flat_map(move |file| graphs(file).filter_map(|graph| Some((graph, split_in(file, graph)?))))
    }
}

fn split_in(file: &FileEntry, graph: u64) -> Option<Split> {
    match file.role {
        Role::Test => Some(Split::Test),
        _ => file.split.of(graph - file.first_graph),
    }
}

/// A graph of validation or a test, and the splits that it and its equals are in.
#[derive(Clone, Copy)]
struct HeldOut {
    fingerprint: u64,
    graph: u64,
    in_validation: bool,
    in_test: bool,
}

/// Shards opened so far.
struct OpenShards<'a> {
    graphs: &'a Graphs<'a>,
    open: Vec<(usize, Shard)>,
}

/// Number of shards that stay open; a comparison needs two.
const SHARDS_OPEN: usize = 16;

impl OpenShards<'_> {
    /// The first of `known` that is equal to `graph`.
    fn equal_to<'a>(
        &mut self,
        graph: u64,
        known: impl Iterator<Item = &'a HeldOut>,
    ) -> Result<Option<&'a HeldOut>, StoreError> {
        for other in known {
            if self.are_equal(graph, other.graph)? {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    fn are_equal(&mut self, one: u64, other: u64) -> Result<bool, StoreError> {
        let (one, other) = (self.find(one)?, self.find(other)?);
        let view = |(shard, index): (usize, usize)| {
            let found = self.open.iter().find(|(number, _)| *number == shard);
            found.map(|(_, shard)| shard.graph(index)).transpose()
        };
        Ok(matches!((view(one)?, view(other)?), (Some(one), Some(other)) if same_graph(&one, &other)))
    }

    /// Applies `each` to a graph.
    fn with(&mut self, graph: u64, each: impl FnOnce(&GraphView<'_>)) -> Result<(), StoreError> {
        let (number, index) = self.find(graph)?;
        if let Some((_, shard)) = self.open.iter().find(|(open, _)| *open == number) {
            each(&shard.graph(index)?);
        }
        Ok(())
    }

    /// Shard of a graph and its position there; opens the shard if necessary.
    fn find(&mut self, graph: u64) -> Result<(usize, usize), StoreError> {
        let entries = self.graphs.shards;
        let number = entries.partition_point(|entry| entry.first_graph <= graph) - 1;
        if !self.open.iter().any(|(open, _)| *open == number) {
            if self.open.len() >= SHARDS_OPEN {
                self.open.remove(0);
            }
            self.open.push((number, self.graphs.open(number)?));
        }
        Ok((number, (graph - entries[number].first_graph) as usize))
    }
}

fn same_graph(one: &GraphView<'_>, other: &GraphView<'_>) -> bool {
    one.can_ids == other.can_ids
        && one.sources == other.sources
        && one.targets == other.targets
        && one.node_features == other.node_features
        && one.frames.payloads == other.frames.payloads
        && bytemuck::cast_slice::<f32, u32>(one.frames.gaps) == bytemuck::cast_slice::<f32, u32>(other.frames.gaps)
        && one.edge_features == other.edge_features
}

/// Fingerprint that is equal for equal graphs, and almost never for others.
fn fingerprint(view: &GraphView<'_>) -> u64 {
    let parts: [&[u8]; 7] = [
        bytemuck::cast_slice(view.can_ids),
        bytemuck::cast_slice(view.sources),
        bytemuck::cast_slice(view.targets),
        bytemuck::cast_slice(view.node_features),
        bytemuck::cast_slice(view.edge_features),
        view.frames.payloads,
        bytemuck::cast_slice(view.frames.gaps),
    ];
    // Empty columns are skipped, so that sets without frames keep their fingerprints.
    parts.iter().filter(|bytes| !bytes.is_empty()).fold(0, |state, bytes| hash(bytes, state))
}

/// Hash by folded multiplication of 16 bytes at a time (as in wyhash, Wang Yi 2019).
fn hash(bytes: &[u8], state: u64) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a ^ 0xa076_1d64_78bd_642f) * u128::from(b ^ 0xe703_7ed1_a0b4_28db);
        (product as u64) ^ ((product >> 64) as u64)
    };
    let mut state = fold(state ^ bytes.len() as u64, 0x8ebc_6af0_9c88_c6e3);
    let (blocks, rest) = bytes.as_chunks::<16>();
    let half = |block: &[u8; 16], at: usize| u64::from_le_bytes(std::array::from_fn(|byte| block[at + byte]));
    for block in blocks {
        state = fold(half(block, 0) ^ state, half(block, 8));
    }
    let mut last = [0; 16];
    last[..rest.len()].copy_from_slice(rest);
    fold(half(&last, 0) ^ state, half(&last, 8))
}
