//! Opens the store of a dataset, and builds it first when there is none that fits.
//!
//! A store is built in a folder beside its place and renamed when it is whole and on the disk: a build that is
//! killed leaves a folder that nobody takes for a store, and that the next build removes. A lock keeps two
//! processes from building the same store; the second finds the work done.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::Store;
use super::ingest::{self, FileOutcome, IdSet, Ingested};
use super::manifest::{FEATURES, FORMAT_VERSION, FileEntry, Manifest, ShardEntry, Totals};
use super::options::BuildOptions;
use super::progress::{Event, Progress};
use super::shard::Shard;
use crate::can::{Dataset, Role};
use crate::graph::split::FileSplit;
use crate::graph::{Split, StoreError, Vocabulary};

/// Opens the store of `dataset` under `stores_dir`, building it when it is missing, when a log or an option changed, or
/// when it has another format version.
///
/// # Errors
/// A log that cannot be read or has too many unreadable rows, a disk that is full or read-only, a damaged store.
pub fn open_or_build(
    dataset: &Dataset,
    options: &BuildOptions,
    stores_dir: &Path,
    progress: &dyn Progress,
) -> Result<Store, StoreError> {
    options.check()?;
    if dataset.files.is_empty() {
        return Err(StoreError::NoFiles { name: dataset.name.clone() });
    }
    let place = Place::new(dataset, options, stores_dir)?;
    // Whatever else is found may be another process that is just putting a store in its place: look again with the lock.
    if let Ok(State::Fits(store)) = place.state(dataset, options) {
        return Ok(*store);
    }
    fs::create_dir_all(stores_dir).map_err(StoreError::io("create", stores_dir))?;
    let _lock = place.lock(progress)?;
    match place.state(dataset, options)? {
        // Another process built it while this one waited.
        State::Fits(store) => return Ok(*store),
        State::Missing => {}
        State::Unfit(reason) => progress.report(&Event::Rebuilding { reason: &reason }),
    }
    place.remove_leftovers()?;
    let building = UnfinishedFolder::create(place.building())?;
    let manifest = build(dataset, options, &building.path, progress)?;
    place.replace_with(building)?;
    let store = Store::open(&place.folder)?;
    let bytes = manifest.shards.iter().map(|shard| shard.bytes).sum();
    progress.report(&Event::Finished { folder: &place.folder, graphs: store.num_graphs(), bytes });
    Ok(store)
}

/// The folder in which the store of `dataset` lies, built or not.
///
/// # Errors
/// When a log has vanished.
pub fn store_folder(dataset: &Dataset, options: &BuildOptions, stores_dir: &Path) -> Result<PathBuf, StoreError> {
    Ok(Place::new(dataset, options, stores_dir)?.folder)
}

fn build(
    dataset: &Dataset,
    options: &BuildOptions,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<Manifest, StoreError> {
    let Ingested { files: outcomes, shards } = ingest::ingest(dataset, options, folder, progress)?;
    let shards = numbered(shards, folder)?;
    let totals = totals_of(&outcomes, &shards);
    if totals.graphs == 0 {
        let longest = outcomes.iter().map(|outcome| outcome.report.frames).max().unwrap_or(0);
        return Err(StoreError::NoGraphs { name: dataset.name.clone(), longest, window: options.window });
    }
    progress.report(&Event::Checking { graphs: totals.graphs });
    let files = file_entries(dataset, outcomes, options);
    let mut manifest = Manifest {
        format_version: FORMAT_VERSION,
        dataset: dataset.name.clone(),
        features: FEATURES.to_string(),
        options: options.clone(),
        digest: String::new(),
        totals,
        vocabulary: checked_vocabulary(folder, &files, &shards, options)?,
        files,
        shards,
    };
    manifest.digest = manifest.computed_digest();
    manifest.write(folder)?;
    sync_folder(folder)?;
    Ok(manifest)
}

/// Gives the shards their final names and positions.
fn numbered(mut shards: Vec<ShardEntry>, folder: &Path) -> Result<Vec<ShardEntry>, StoreError> {
    let mut first_graph = 0;
    for (number, shard) in shards.iter_mut().enumerate() {
        let name = format!("shard-{number:05}.safetensors");
        let path = folder.join(&shard.name);
        fs::rename(&path, folder.join(&name)).map_err(StoreError::io("rename", &path))?;
        shard.name = name;
        shard.first_graph = first_graph;
        first_graph += shard.graphs;
    }
    Ok(shards)
}

fn totals_of(outcomes: &[FileOutcome], shards: &[ShardEntry]) -> Totals {
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

fn file_entries(dataset: &Dataset, outcomes: Vec<FileOutcome>, options: &BuildOptions) -> Vec<FileEntry> {
    let mut first_graph = 0;
    let entry = |(file, outcome): (&crate::can::SourceFile, FileOutcome)| {
        let split = match file.role {
            Role::Test => FileSplit::default(),
            Role::TrainAttackFree | Role::TrainWithAttacks => {
                FileSplit::new(outcome.graphs, options.window, options.stride, options.validation_fraction)
            }
        };
        let entry = FileEntry {
            folder: file.folder.clone(),
            name: name_of(&file.path),
            role: file.role,
            source: outcome.source,
            report: outcome.report,
            ids: outcome.ids.len(),
            first_graph,
            graphs: outcome.graphs,
            attack_graphs: outcome.attack_graphs,
            split,
        };
        first_graph += outcome.graphs;
        entry
    };
    dataset.files.iter().zip(outcomes).map(entry).collect()
}

/// Compares every shard with its checksum, and collects the IDs that sent attack-free frames in training windows.
fn checked_vocabulary(
    folder: &Path,
    files: &[FileEntry],
    shards: &[ShardEntry],
    options: &BuildOptions,
) -> Result<Vocabulary, StoreError> {
    let ids_of = |index: usize, _: &mut ()| {
        let shard = Shard::open(folder, &shards[index])?;
        shard.verify(&shards[index])?;
        let mut ids = IdSet::default();
        for graph in 0..shards[index].graphs {
            let view = shard.graph(graph as usize)?;
            let file = &files[view.file as usize];
            let position = shards[index].first_graph + graph - file.first_graph;
            if file.role != Role::Test && file.split.of(position) == Some(Split::Train) {
                let attack_free = view.can_ids.iter().zip(view.attack_free).filter(|&(_, &flag)| flag == 1);
                attack_free.for_each(|(&id, _)| ids.insert(id));
            }
        }
        Ok(ids)
    };
    let sets = ingest::in_parallel(shards.len(), options.num_threads(), ids_of)?;
    Ok(Vocabulary::from_ids(sets.iter().flat_map(IdSet::iter).collect::<BTreeSet<_>>()))
}

/// Where a store lies, and where it is built.
struct Place {
    stores_dir: PathBuf,
    name: String,
    folder: PathBuf,
}

enum State {
    Fits(Box<Store>),
    Missing,
    Unfit(String),
}

impl Place {
    /// The name holds a key of what the store is made of: options, and names, roles and sizes of the logs.
    fn new(dataset: &Dataset, options: &BuildOptions, stores_dir: &Path) -> Result<Self, StoreError> {
        let mut files = Vec::new();
        for file in &dataset.files {
            let (bytes, _) = ingest::file_state(&file.path)?;
            files.push(json!([file.folder, name_of(&file.path), file.role, bytes]));
        }
        let key = blake3::hash(json!([FEATURES, options.canonical(), files]).to_string().as_bytes()).to_hex();
        let name = format!("{}-{}", dataset.name, &key[..12]);
        Ok(Self { stores_dir: stores_dir.to_path_buf(), folder: stores_dir.join(&name), name })
    }

    fn building(&self) -> PathBuf {
        self.stores_dir.join(format!(".{}.building-{}", self.name, std::process::id()))
    }

    fn replaced(&self) -> PathBuf {
        self.stores_dir.join(format!(".{}.replaced-{}", self.name, std::process::id()))
    }

    /// Whether there is a store, and whether it was made from these logs as they are now.
    fn state(&self, dataset: &Dataset, options: &BuildOptions) -> Result<State, StoreError> {
        let mut store = match Store::open(&self.folder) {
            Ok(store) => store,
            Err(StoreError::Missing { .. }) if !self.folder.exists() => return Ok(State::Missing),
            Err(error @ (StoreError::Missing { .. } | StoreError::Version { .. })) => {
                return Ok(State::Unfit(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let manifest = &mut store.manifest;
        if manifest.options.canonical() != options.canonical() || manifest.files.len() != dataset.files.len() {
            return Ok(State::Unfit("it was built with other options".to_string()));
        }
        let mut touched = false;
        for (entry, file) in manifest.files.iter_mut().zip(&dataset.files) {
            let changed = || Ok(State::Unfit(format!("{} has changed", file.path.display())));
            let (bytes, modified_nanoseconds) = ingest::file_state(&file.path)?;
            if entry.source.bytes != bytes || entry.name != name_of(&file.path) || entry.role != file.role {
                return changed();
            }
            if entry.source.modified_nanoseconds != modified_nanoseconds {
                if ingest::digest_of(&file.path)? != entry.source.blake3 {
                    return changed();
                }
                entry.source.modified_nanoseconds = modified_nanoseconds;
                touched = true;
            }
        }
        if touched && let Err(error) = manifest.write(&self.folder) {
            // A store on a read-only disk is as good; its logs are compared by content again next time.
            tracing::debug!("cannot note the new times of unchanged logs: {error}");
        }
        Ok(State::Fits(Box::new(store)))
    }

    /// Waits until no other process builds this store; the lock ends with the returned file, or with the process.
    fn lock(&self, progress: &dyn Progress) -> Result<File, StoreError> {
        let path = self.stores_dir.join(format!(".{}.lock", self.name));
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(StoreError::io("create", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.report(&Event::Waiting { lock: &path });
                file.lock().map_err(StoreError::io("lock", &path))?;
            }
            Err(TryLockError::Error(error)) => return Err(StoreError::io("lock", &path)(error)),
        }
        Ok(file)
    }

    /// Removes what killed builds of this store left: whoever holds the lock is the only one to build it.
    fn remove_leftovers(&self) -> Result<(), StoreError> {
        let prefixes = [format!(".{}.building-", self.name), format!(".{}.replaced-", self.name)];
        let failed = || StoreError::io("list", &self.stores_dir);
        for entry in fs::read_dir(&self.stores_dir).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let name = entry.file_name();
            if prefixes.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes())) {
                let path = entry.path();
                fs::remove_dir_all(&path).map_err(StoreError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Puts the finished folder in its place. Processes that have the old store mapped keep it until they end.
    fn replace_with(&self, mut building: UnfinishedFolder) -> Result<(), StoreError> {
        let replaced = self.replaced();
        let had_one = self.folder.exists();
        if had_one {
            fs::rename(&self.folder, &replaced).map_err(StoreError::io("rename", &self.folder))?;
        }
        fs::rename(&building.path, &self.folder).map_err(StoreError::io("rename", &building.path))?;
        building.finished = true;
        sync_folder(&self.stores_dir)?;
        if had_one {
            fs::remove_dir_all(&replaced).map_err(StoreError::io("remove", &replaced))?;
        }
        Ok(())
    }
}

/// A folder that is removed unless its content becomes a store.
struct UnfinishedFolder {
    path: PathBuf,
    finished: bool,
}

impl UnfinishedFolder {
    fn create(path: PathBuf) -> Result<Self, StoreError> {
        fs::create_dir(&path).map_err(StoreError::io("create", &path))?;
        Ok(Self { path, finished: false })
    }
}

impl Drop for UnfinishedFolder {
    fn drop(&mut self) {
        if !self.finished {
            // The error that ended the build is reported; what stays is removed by the next build.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(StoreError::io("sync", folder))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
