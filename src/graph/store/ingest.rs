//! From log files to shards: the part of a build that runs in parallel.
//!
//! Files are grouped into units in order, by size; a unit is read by one thread and has shards of its own. So the
//! shards are the same for any number of threads, and a dataset of many small files has few shards.

use std::collections::HashSet;
use std::fs::{self, File};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::UNIX_EPOCH;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::manifest::{ShardEntry, SourceState};
use super::options::BuildOptions;
use super::progress::{Event, Progress};
use super::shard;
use crate::can::{Dataset, Frame, ReadReport, SourceFile, open_log};
use crate::graph::StoreError;
use crate::graph::columns::Columns;
use crate::graph::features::FeatureExtractor;
use crate::graph::window::Windows;

/// Files that are smaller than this together share shards.
const UNIT_BYTES: u64 = 1 << 20;
/// Written shards that may wait for the disk.
const SHARDS_UNSYNCED: usize = 4;
/// Frames read at a time.
const BLOCK_FRAMES: usize = 16_384;
/// Places named for each reason when too many rows of a file are rejected.
const PLACES_NAMED: usize = 2;

/// What was found in a file.
pub struct FileOutcome {
    pub source: SourceState,
    pub report: ReadReport,
    pub ids: IdSet,
    pub graphs: u64,
    pub attack_graphs: u64,
}

/// Files in the dataset's order, shards in the order of their graphs; shards still have names of their units.
#[derive(Default)]
pub struct Ingested {
    pub files: Vec<FileOutcome>,
    pub shards: Vec<ShardEntry>,
}

/// Reads all files of the dataset and writes their graphs into `folder`.
pub fn ingest(
    dataset: &Dataset,
    options: &BuildOptions,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<Ingested, StoreError> {
    let sizes = dataset.files.iter().map(|file| file_state(&file.path).map(|(bytes, _)| bytes));
    let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
    progress.report(&Event::Started { files: sizes.len(), bytes: sizes.iter().sum() });
    let units = units(&sizes);
    let (unsynced, to_sync) = bounded(SHARDS_UNSYNCED);
    let parts = std::thread::scope(|scope| {
        let syncing = scope.spawn(move || sync_all(&to_sync));
        let build = |index: usize, worker: &mut Option<Worker>| {
            let worker = worker.get_or_insert_with(|| Worker::new(options));
            let output = ShardOutput { folder, unit: index, options, shards: Vec::new(), unsynced: &unsynced };
            worker.build_unit(dataset, units[index].clone(), output, progress)
        };
        let parts = in_parallel(units.len(), options.num_threads(), build);
        // Without senders the thread comes to its end.
        drop(unsynced);
        let synced = syncing.join().unwrap_or_else(|payload| Err(StoreError::panic("disk thread", payload.as_ref())));
        // A failed sync is why a sender found nobody listening.
        synced.and(parts)
    })?;
    let mut ingested = Ingested::default();
    for part in parts {
        ingested.files.extend(part.files);
        ingested.shards.extend(part.shards);
    }
    Ok(ingested)
}

/// Waits for the disk, so that the threads that read and compute need not.
fn sync_all(files: &Receiver<(PathBuf, File)>) -> Result<(), StoreError> {
    files.iter().try_for_each(|(path, file)| file.sync_all().map_err(StoreError::io("sync", &path)))
}

fn units(sizes: &[u64]) -> Vec<Range<usize>> {
    let mut units = Vec::new();
    let (mut begin, mut bytes) = (0, 0);
    for (position, size) in sizes.iter().enumerate() {
        bytes += size;
        if bytes >= UNIT_BYTES || position + 1 == sizes.len() {
            units.push(begin..position + 1);
            (begin, bytes) = (position + 1, 0);
        }
    }
    units
}

/// Calls `work` for 0 to `count - 1` on up to `threads` threads; each thread keeps a state of its own.
///
/// The results are in order. After an error no further work begins; of several errors the first in order is returned.
pub fn in_parallel<T: Send, S: Default>(
    count: usize,
    threads: usize,
    work: impl Fn(usize, &mut S) -> Result<T, StoreError> + Sync,
) -> Result<Vec<T>, StoreError> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let results: Mutex<Vec<Option<Result<T, StoreError>>>> = Mutex::new((0..count).map(|_| None).collect());
    let run = || {
        let mut state = S::default();
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let result = catch_unwind(AssertUnwindSafe(|| work(index, &mut state)))
                .unwrap_or_else(|payload| Err(StoreError::panic("a thread of the build", payload.as_ref())));
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            results.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[index] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, count.max(1)) {
            scope.spawn(run);
        }
        run();
    });
    // Work that never began lies behind the error that stopped it.
    results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).into_iter().flatten().collect()
}

/// The buffers of one thread.
struct Worker {
    frames: Vec<Frame>,
    windows: Windows,
    extractor: FeatureExtractor,
    columns: Columns,
}

impl Worker {
    fn new(options: &BuildOptions) -> Self {
        Self {
            frames: Vec::with_capacity(BLOCK_FRAMES),
            windows: Windows::new(options.window, options.stride),
            extractor: FeatureExtractor::new(options.window),
            columns: Columns::default(),
        }
    }

    fn build_unit(
        &mut self,
        dataset: &Dataset,
        files: Range<usize>,
        mut output: ShardOutput<'_>,
        progress: &dyn Progress,
    ) -> Result<Ingested, StoreError> {
        self.columns.clear();
        let mut outcomes = Vec::with_capacity(files.len());
        for position in files {
            outcomes.push(self.build_file(&dataset.files[position], position as u32, &mut output, progress)?);
        }
        output.write(&mut self.columns)?;
        Ok(Ingested { files: outcomes, shards: output.shards })
    }

    fn build_file(
        &mut self,
        file: &SourceFile,
        position: u32,
        output: &mut ShardOutput<'_>,
        progress: &dyn Progress,
    ) -> Result<FileOutcome, StoreError> {
        let Self { frames, windows, extractor, columns } = self;
        let options = output.options;
        let before = file_state(&file.path)?;
        let mut reader = open_log(&file.path, options.format)?;
        let mut ids = IdSet::default();
        let (mut graphs, mut attack_graphs) = (0, 0);
        windows.restart();
        while reader.read_block(BLOCK_FRAMES, frames)? > 0 {
            frames.iter().for_each(|frame| ids.insert(frame.can_id));
            windows.push(frames, |first_frame, window| {
                extractor.append_graph(window, position, first_frame, columns);
                graphs += 1;
                attack_graphs += u64::from(columns.labels.last() == Some(&1));
                output.write_if_full(columns)
            })?;
            progress.report(&Event::Frames { count: frames.len() as u64 });
        }
        check_rejects(&file.path, reader.report(), options.max_reject_share)?;
        let blake3 = digest_of(&file.path)?;
        let (bytes, modified_nanoseconds) = file_state(&file.path)?;
        if before != (bytes, modified_nanoseconds) {
            return Err(StoreError::SourceChanged { path: file.path.clone() });
        }
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        let report = with_short_names(reader.report().clone(), Path::new(name.as_ref()));
        progress.report(&Event::FileDone { folder: &file.folder, name: &name, bytes, report: &report });
        let source = SourceState { bytes, modified_nanoseconds, blake3 };
        Ok(FileOutcome { source, report, ids, graphs, attack_graphs })
    }
}

/// Writes a unit's graphs whenever there are enough for a shard.
struct ShardOutput<'a> {
    folder: &'a Path,
    unit: usize,
    options: &'a BuildOptions,
    shards: Vec<ShardEntry>,
    unsynced: &'a Sender<(PathBuf, File)>,
}

impl ShardOutput<'_> {
    fn write_if_full(&mut self, columns: &mut Columns) -> Result<(), StoreError> {
        if columns.bytes() >= self.options.shard_bytes { self.write(columns) } else { Ok(()) }
    }

    fn write(&mut self, columns: &mut Columns) -> Result<(), StoreError> {
        if columns.num_graphs() == 0 {
            return Ok(());
        }
        let name = format!("unit-{:06}-{:06}.safetensors", self.unit, self.shards.len());
        let path = self.folder.join(name);
        let (entry, file) = shard::write(&path, columns)?;
        self.shards.push(entry);
        columns.clear();
        let nobody = |_| std::io::Error::other("the disk failed before");
        self.unsynced.send((path.clone(), file)).map_err(nobody).map_err(StoreError::io("sync", &path))
    }
}

/// CAN IDs seen in a file.
#[derive(Default)]
pub struct IdSet {
    standard: Vec<bool>,
    extended: HashSet<u32>,
}

impl IdSet {
    const STANDARD_IDS: usize = 1 << 11;

    /// Adds an ID, known or not.
    pub fn insert(&mut self, id: u32) {
        if self.standard.is_empty() {
            self.standard.resize(Self::STANDARD_IDS, false);
        }
        match self.standard.get_mut(id as usize) {
            Some(seen) => *seen = true,
            None => {
                self.extended.insert(id);
            }
        }
    }

    /// The IDs, in no order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let standard = (0u32..).zip(&self.standard).filter_map(|(id, &seen)| seen.then_some(id));
        standard.chain(self.extended.iter().copied())
    }

    /// Distinct IDs.
    pub fn len(&self) -> u64 {
        self.iter().count() as u64
    }
}

/// Size in bytes and time of the last change, in nanoseconds since 1970.
pub fn file_state(path: &Path) -> Result<(u64, u64), StoreError> {
    let metadata = fs::metadata(path).map_err(StoreError::io("read the size of", path))?;
    let modified = metadata.modified().map_err(StoreError::io("read the time of", path))?;
    // A file from before 1970 has time 0; its content decides then.
    let since_epoch = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((metadata.len(), since_epoch.as_nanos() as u64))
}

/// blake3 of a file's bytes.
pub fn digest_of(path: &Path) -> Result<String, StoreError> {
    let mut hash = blake3::Hasher::new();
    let file = File::open(path).map_err(StoreError::io("open", path))?;
    hash.update_reader(file).map_err(StoreError::io("read", path))?;
    Ok(hash.finalize().to_hex().to_string())
}

fn check_rejects(path: &Path, report: &ReadReport, allowed: f64) -> Result<(), StoreError> {
    if report.reject_share() <= allowed {
        return Ok(());
    }
    let reasons = report.rejected.iter().map(|(reason, rejections)| {
        let places: Vec<String> = rejections
            .first
            .iter()
            .take(PLACES_NAMED)
            .map(|place| format!("line {}: {:?}", place.line, place.text))
            .collect();
        format!("{} × {reason} ({})", rejections.count, places.join(", "))
    });
    Err(StoreError::Rejected {
        path: path.to_path_buf(),
        rejected: report.rejected_rows(),
        rows: report.rows,
        allowed,
        places: reasons.collect::<Vec<_>>().join("; "),
    })
}

/// Where a dataset lies is no part of its store: places name the file only.
fn with_short_names(mut report: ReadReport, name: &Path) -> ReadReport {
    let rejected = report.rejected.values_mut().flat_map(|rejections| &mut rejections.first);
    rejected.chain(&mut report.first_backward).for_each(|place| place.file = PathBuf::from(name));
    report
}
