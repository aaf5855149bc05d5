//! Opens the store of a dataset, building it first if there is no matching one.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use kdgat_can::dataset::too_short;
use kdgat_can::{Dataset, ReadReport};
use serde_json::{Value, json};

use super::Store;
use super::duplicates::{Graphs, Survey};
use super::id_set::IdSet;
use super::ingest::ingest;
use super::journal::{JOURNAL, UnitRecord};
use super::manifest::{FileEntry, Manifest, ShardEntry, SourceState, Totals};
use super::options::BuildOptions;
use super::parallel::in_parallel;
use super::place::{Place, State, UnfinishedFolder, sync_folder};
use super::plan::{Plan, PlannedLog};
use super::progress::{Event, Progress};
use super::sources::digest_of;
use crate::division::{LogFacts, LogUse, uses_of};
use crate::split::FileSplit;
use crate::{StoreError, Vocabulary};

/// Opens the store of `dataset` under `stores_dir`. Builds it if it is missing, if a log or an option has changed, or
/// if it has another format version. Resumes a build that was killed.
///
/// # Errors
/// When a log cannot be read or has too many unreadable rows, the disk is full or read-only, or the store is damaged.
pub fn open_or_build(
    dataset: &Dataset,
    options: &BuildOptions,
    stores_dir: &Path,
    progress: &dyn Progress,
) -> Result<Store, StoreError> {
    dataset.warn_of_passed_over();
    let store = opened_or_built(dataset, options, stores_dir, progress)?;
    warn_of_short_logs(&store);
    Ok(store)
}

/// Warns about logs too short for a window: they are not in the store, which explains missing results for their folder.
pub(super) fn warn_of_short_logs(store: &Store) {
    let manifest = store.manifest();
    let logs = manifest.files.iter().map(|file| (file.folder.as_str(), file.name.as_str(), file.graphs == 0));
    too_short(logs, manifest.options.window).iter().for_each(|text| tracing::warn!("{text}"));
}

fn opened_or_built(
    dataset: &Dataset,
    options: &BuildOptions,
    stores_dir: &Path,
    progress: &dyn Progress,
) -> Result<Store, StoreError> {
    let plan = checked_plan(dataset, options)?;
    let place = Place::new(stores_dir, plan.store_name());
    // Any other state may be another process replacing the store: check again while holding the lock.
    if let Ok(State::Fits(store)) = place.state(dataset, &plan) {
        return Ok(*store);
    }
    let _lock = place.lock(progress)?;
    match place.state(dataset, &plan)? {
        // Another process built it while this one waited.
        State::Fits(store) => return Ok(*store),
        State::Missing => {}
        State::Unfit(reason) => progress.report(&Event::Rebuilding { reason: &reason }),
    }
    place.remove_leftovers()?;
    let building = UnfinishedFolder::new(place.building());
    let units = plan.units(dataset)?;
    let everything: Vec<usize> = (0..units.len()).collect();
    let records = ingest(dataset, &plan, &units, &everything, &building.path, progress)?;
    finish(&plan, records, &place, building, progress)
}

/// Opens the store of `dataset` under `stores_dir`, if it exists and matches the current logs and options.
///
/// # Errors
/// When a log does not exist any more, or the store is damaged.
pub fn find(dataset: &Dataset, options: &BuildOptions, stores_dir: &Path) -> Result<Option<Store>, StoreError> {
    let plan = checked_plan(dataset, options)?;
    Ok(match Place::new(stores_dir, plan.store_name()).state(dataset, &plan)? {
        State::Fits(store) => Some(*store),
        State::Missing | State::Unfit(_) => None,
    })
}

/// Digest of the contents and roles of the logs of `dataset`: of the store's sources, independent of how they are cut.
/// Taken from the manifest of a matching store if there is one; otherwise all logs are read.
///
/// # Errors
/// When a log cannot be read.
pub fn sources_digest(
    dataset: &Dataset,
    options: &BuildOptions,
    stores_dir: &Path,
    progress: &dyn Progress,
) -> Result<String, StoreError> {
    let plan = checked_plan(dataset, options)?;
    let known = match Place::new(stores_dir, plan.store_name()).state(dataset, &plan) {
        Ok(State::Fits(store)) => store.manifest().files.iter().map(|entry| entry.source.blake3.clone()).collect(),
        // Opening the store reports its errors; here the logs are read instead.
        Ok(State::Missing | State::Unfit(_)) | Err(_) => Vec::new(),
    };
    let digests = match known.len() == plan.logs.len() && known.iter().all(|digest| !digest.is_empty()) {
        true => known,
        false => digests_of(dataset, &plan, options.threads, progress)?,
    };
    let logs = plan.logs.iter().zip(digests);
    let logs = logs.map(|(log, digest)| json!([log.folder, log.name, log.role, digest, log.labels_blake3]));
    let logs: Vec<Value> = logs.collect();
    Ok(blake3::hash(json!([dataset.name, logs]).to_string().as_bytes()).to_hex().to_string())
}

fn digests_of(
    dataset: &Dataset,
    plan: &Plan,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<String>, StoreError> {
    let bytes = plan.logs.iter().map(|log| log.bytes).sum();
    progress.report(&Event::Hashing { files: plan.logs.len(), bytes });
    let cores = || std::thread::available_parallelism().map_or(1, |count| count.get());
    let threads = if threads == 0 { cores() } else { threads };
    in_parallel(plan.logs.len(), threads, |log, (): &mut ()| digest_of(&dataset.files[log].path))
}

/// The plan of a build, after checking that the build is possible.
pub(super) fn checked_plan(dataset: &Dataset, options: &BuildOptions) -> Result<Plan, StoreError> {
    options.check()?;
    if dataset.files.is_empty() {
        return Err(StoreError::NoFiles { name: dataset.name.clone() });
    }
    Plan::new(dataset, options)
}

/// Folder of the store of `dataset`, whether built or not.
///
/// # Errors
/// When a log does not exist any more.
pub fn store_folder(dataset: &Dataset, options: &BuildOptions, stores_dir: &Path) -> Result<PathBuf, StoreError> {
    Ok(stores_dir.join(Plan::new(dataset, options)?.store_name()))
}

/// Completes the store from the shards of all units in `building`, and moves it to its place.
pub(super) fn finish(
    plan: &Plan,
    records: Vec<UnitRecord>,
    place: &Place,
    building: UnfinishedFolder,
    progress: &dyn Progress,
) -> Result<Store, StoreError> {
    let shards = positioned(records.iter().flat_map(|record| record.shards.clone()).collect());
    let outcomes = outcomes_of(plan, records);
    let totals = totals_of(&outcomes, &shards);
    if totals.graphs == 0 {
        let longest = outcomes.iter().map(|outcome| outcome.report.frames).max().unwrap_or(0);
        let (name, window) = (plan.dataset.clone(), plan.options.window);
        return Err(StoreError::NoGraphs { name, longest, window });
    }
    progress.report(&Event::Checking { graphs: totals.graphs });
    let files = file_entries(plan, outcomes)?;
    let graphs = Graphs { folder: &building.path, files: &files, shards: &shards, options: &plan.options };
    let Survey { ids, duplicates, scaling, profile, traceless } = graphs.survey()?;
    progress.report(&Event::Checked { duplicates: &duplicates });
    let mut manifest = Manifest {
        format_version: plan.format_version,
        dataset: plan.dataset.clone(),
        features: plan.features,
        options: plan.options.clone(),
        digest: String::new(),
        totals,
        vocabulary: Vocabulary::from_ids(ids.iter()),
        duplicates,
        scaling,
        profile,
        traceless,
        schema: None,
        given_splits: None,
        files,
        shards: renamed(shards, &building.path)?,
    };
    manifest.digest = manifest.computed_digest();
    manifest.write(&building.path)?;
    let journal = building.path.join(JOURNAL);
    if journal.exists() {
        fs::remove_file(&journal).map_err(StoreError::io("remove", &journal))?;
    }
    sync_folder(&building.path)?;
    place.replace_with(building)?;
    let store = Store::open(&place.folder)?;
    let bytes = manifest.shards.iter().map(|shard| shard.bytes).sum();
    progress.report(&Event::Finished { folder: &place.folder, graphs: store.num_graphs(), bytes });
    Ok(store)
}

/// Sets the first graph of each shard.
fn positioned(mut shards: Vec<ShardEntry>) -> Vec<ShardEntry> {
    let mut first_graph = 0;
    for shard in &mut shards {
        shard.first_graph = first_graph;
        first_graph += shard.graphs;
    }
    shards
}

/// Renames the shards to their final names.
fn renamed(mut shards: Vec<ShardEntry>, folder: &Path) -> Result<Vec<ShardEntry>, StoreError> {
    for (number, shard) in shards.iter_mut().enumerate() {
        let name = format!("shard-{number:05}.safetensors");
        let path = folder.join(&shard.name);
        fs::rename(&path, folder.join(&name)).map_err(StoreError::io("rename", &path))?;
        shard.name = name;
    }
    Ok(shards)
}

/// Results of one log.
#[derive(Default)]
struct Outcome {
    source: Option<SourceState>,
    report: ReadReport,
    ids: IdSet,
    graphs: u64,
    attack_graphs: u64,
}

/// Merges the units' results by log.
fn outcomes_of(plan: &Plan, records: Vec<UnitRecord>) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = plan.logs.iter().map(|_| Outcome::default()).collect();
    for found in records.into_iter().flat_map(|record| record.logs) {
        let outcome = &mut outcomes[found.log];
        outcome.report.merge(&found.report());
        outcome.graphs += found.graphs;
        outcome.attack_graphs += found.attack_graphs;
        outcome.ids.extend(found.ids);
        outcome.source = outcome.source.take().or(found.source);
    }
    outcomes
}

fn totals_of(outcomes: &[Outcome], shards: &[ShardEntry]) -> Totals {
    let mut ids = HashSet::new();
    outcomes.iter().for_each(|outcome| ids.extend(outcome.ids.iter()));
    let mut totals = Totals { files: outcomes.len() as u64, ids: ids.len() as u64, ..Totals::default() };
    for outcome in outcomes {
        totals.rows += outcome.report.rows;
        totals.rejected_rows += outcome.report.rejected_rows();
        totals.frames += outcome.report.frames;
        totals.attack_frames += outcome.report.attack_frames;
        totals.graphs += outcome.graphs;
        totals.attack_graphs += outcome.attack_graphs;
    }
    totals.nodes = shards.iter().map(|shard| shard.nodes).sum();
    totals.edges = shards.iter().map(|shard| shard.edges).sum();
    totals
}

fn file_entries(plan: &Plan, outcomes: Vec<Outcome>) -> Result<Vec<FileEntry>, StoreError> {
    let options = &plan.options;
    let facts = plan.logs.iter().zip(&outcomes).map(|(log, outcome)| LogFacts {
        folder: &log.folder,
        name: &log.name,
        role: log.role,
        bytes: log.bytes,
        has_attacks: outcome.report.attack_frames > 0,
        is_synthetic: log.synthetic.is_some(),
    });
    let uses =
        uses_of(&facts.collect::<Vec<_>>(), options.validation, options.validation_fraction).map_err(|reason| {
            StoreError::Division { name: plan.dataset.clone(), rule: options.validation.name(), reason }
        })?;
    let mut first_graph = 0;
    let entry = |((log, outcome), log_use): ((&PlannedLog, Outcome), LogUse)| {
        let split = match &log.synthetic {
            Some(origin) => log_use.of_synthetic(FileSplit::of_blocks(&origin.blocks, options.window, options.stride)),
            None => log_use.split(outcome.graphs, options.window, options.stride, options.validation_fraction),
        };
        let unread = || log.source(String::new());
        let entry = FileEntry {
            folder: log.folder.clone(),
            name: log.name.clone(),
            role: log.role,
            source: outcome.source.unwrap_or_else(unread),
            report: outcome.report,
            ids: outcome.ids.len(),
            first_graph,
            graphs: outcome.graphs,
            attack_graphs: outcome.attack_graphs,
            split,
            synthetic: log.synthetic.clone(),
        };
        first_graph += outcome.graphs;
        entry
    };
    Ok(plan.logs.iter().zip(outcomes).zip(uses).map(entry).collect())
}
