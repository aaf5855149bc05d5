//! The target cache: each target is computed once and cached in memory or in a file, in any order, while training runs.

mod error;
mod file;
mod gate;
mod key;
mod memory;
mod places;
mod reader;
mod records;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tch::Device;

use crate::targets::{TargetRows, Targets};

use error::reason;
use file::CacheFile;
use kdgat_torch::parallel::{Parts, parallel_for};
use kdgat_train::memory::{Meter, is_out_of_memory, retry_on_oom};
use memory::Memory;
use places::BLOCK_GRAPHS;
use reader::{Found, Reader};

pub use error::CacheError;
pub use gate::{GateError, check_repetition};
pub use key::{CacheKey, Precision, StoreShape};
pub use records::{HostRows, RecordLayout, rounded};

/// Cached targets of one teacher for one store of graphs.
#[derive(Debug)]
pub struct TargetCache {
    layout: RecordLayout,
    storage: Storage,
    /// Flags of each graph, `[num_graphs]`: [`FILLED`], [`USED`] and [`DAMAGED`].
    graphs: Vec<u8>,
    /// Used graphs without a record.
    remaining: usize,
    used_graphs: usize,
    used_bytes: u64,
    writable: bool,
    damaged_records: u64,
    half_deviation: f64,
    record: Vec<u8>,
}

/// The graph has a record.
const FILLED: u8 = 1;
/// The run needs the graph.
const USED: u8 = 2;
/// The graph's record failed its checksum and must be written again.
const DAMAGED: u8 = 4;

/// Smallest number of blocks worth a thread: up to this many are read on the calling thread.
const BLOCKS_WORTH_A_THREAD: usize = 2;

#[derive(Debug)]
enum Storage {
    Memory(Memory),
    File(CacheFile),
}

/// Size and state of a cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheSummary {
    /// `ram` or `disk`.
    pub kind: String,
    /// The file, for `disk`.
    pub path: Option<PathBuf>,
    /// `f32` or `f16`.
    pub precision: String,
    /// Graphs that the run needs and that are cached.
    pub filled_graphs: u64,
    /// Graphs that the run needs.
    pub used_graphs: u64,
    /// Bytes of the records of the graphs that the run needs.
    pub bytes: u64,
    /// Records that failed their checksum and were computed again.
    pub damaged_records: u64,
    /// Largest difference caused by rounding to half precision, relative to the largest value of its batch.
    pub half_deviation: f64,
}

impl TargetCache {
    /// Creates a cache in memory, which ends with the process. `used`: the graphs that the run needs, if not all.
    pub fn in_memory(layout: RecordLayout, used: Option<&[u64]>) -> Result<Self, CacheError> {
        let memory = Memory::new(layout.graphs() as usize);
        let filled = vec![0; layout.graphs() as usize];
        Self::new(layout, Storage::Memory(memory), filled, used)
    }

    /// Opens the cache file at `path`, or creates it if there is none. Fails if its key differs from `key`.
    pub fn open(path: &Path, key: &CacheKey, layout: RecordLayout, used: Option<&[u64]>) -> Result<Self, CacheError> {
        let file = CacheFile::open(path, key, &layout)?;
        let filled = file.read_filled()?;
        Self::new(layout, Storage::File(file), filled, used)
    }

    fn new(layout: RecordLayout, storage: Storage, filled: Vec<u8>, used: Option<&[u64]>) -> Result<Self, CacheError> {
        let used_bytes = layout.total_bytes(used)?;
        // A byte other than 0 or 1 in the file is damage: such a graph counts as missing.
        let mut graphs: Vec<u8> = filled.into_iter().map(|byte| if byte == FILLED { FILLED } else { 0 }).collect();
        match used {
            None => graphs.iter_mut().for_each(|graph| *graph |= USED),
            Some(used) => used.iter().for_each(|graph| graphs[*graph as usize] |= USED),
        }
        let remaining = graphs.iter().filter(|graph| **graph == USED).count();
        Ok(Self {
            layout,
            storage,
            remaining,
            used_graphs: graphs.iter().filter(|graph| **graph & USED != 0).count(),
            used_bytes,
            graphs,
            writable: true,
            damaged_records: 0,
            half_deviation: 0.0,
            record: Vec::new(),
        })
    }

    fn note(&mut self, graph: u64, filled: bool) {
        let state = &mut self.graphs[graph as usize];
        let before = *state;
        *state = if filled { (before | FILLED) & !DAMAGED } else { (before & !FILLED) | DAMAGED };
        let was_filled = before & FILLED != 0;
        match (was_filled, filled) {
            _ if before & USED == 0 => {}
            (false, true) => self.remaining -= 1,
            (true, false) => self.remaining += 1,
            _ => {}
        }
    }

    /// Returns the cached rows of a batch's graphs and the positions of the missing ones, whose rows are uninitialised.
    ///
    /// Runs on the threads of the caller's loops: the student waits only for a copy in memory.
    pub fn lookup(&mut self, graphs: &[u64]) -> Result<(HostRows, Vec<usize>), CacheError> {
        let mut rows = HostRows::empty(&self.layout, graphs)?;
        let mut found: Vec<Found> = graphs.iter().map(|_| Found::Missing).collect();
        let blocks = graphs.len().div_ceil(BLOCK_GRAPHS);
        let bounds = (0..=blocks).map(|block| (block * BLOCK_GRAPHS).min(graphs.len()));
        let (places, of_blocks) = (rows.places()?, Parts::new(&mut found, bounds));
        let read = self.reader(graphs)?;
        parallel_for(blocks, BLOCKS_WORTH_A_THREAD, |blocks| {
            let mut record = Vec::new();
            for block in blocks {
                let mut places = places.block(block);
                for (number, found) in of_blocks.take(block).iter_mut().enumerate() {
                    *found = read.graph(block * BLOCK_GRAPHS + number, &mut places, &mut record);
                }
            }
        });
        drop((read, places, of_blocks));
        let mut missing = Vec::new();
        for (position, found) in found.into_iter().enumerate() {
            match found {
                Found::Here => self.note(graphs[position], true),
                Found::Missing => missing.push(position),
                Found::Damaged(reason) => {
                    self.note_damage(graphs[position], reason);
                    missing.push(position);
                }
            }
        }
        Ok((rows, missing))
    }

    /// Returns the rows of a batch's graphs without a copy. `None` unless all of them are cached in memory as f32.
    pub fn in_place(&self, graphs: &[u64]) -> Result<Option<TargetRows>, CacheError> {
        let Storage::Memory(memory) = &self.storage else { return Ok(None) };
        if self.layout.precision != Precision::F32 {
            return Ok(None);
        }
        match memory.places(graphs) {
            Some(places) => self.layout.rows_in_records(graphs, memory.shared()?, places).map(Some),
            None => Ok(None),
        }
    }

    fn reader<'a>(&'a self, graphs: &'a [u64]) -> Result<Reader<'a>, CacheError> {
        Ok(match &self.storage {
            Storage::Memory(memory) => Reader::Memory(memory.records(graphs)?),
            Storage::File(file) => Reader::File { file, graphs, states: &self.graphs },
        })
    }

    fn note_damage(&mut self, graph: u64, reason: Option<CacheError>) {
        // A damaged record may be read again before it is rewritten; it counts once.
        if self.graphs[graph as usize] & DAMAGED != 0 {
            return;
        }
        self.damaged_records += 1;
        if let (1, Storage::File(file)) = (self.damaged_records, &self.storage) {
            let reason = reason.map_or("its checksum is wrong".to_string(), |error| error.to_string());
            tracing::warn!(
                "the record of graph {graph} in {} cannot be used ({reason}); damaged targets are computed again",
                file.path().display()
            );
        }
        self.note(graph, false);
    }

    /// Caches the targets of some graphs. A cache that cannot be written any more (full disk) stays readable.
    pub fn insert(&mut self, graphs: &[u64], targets: &Targets) -> Result<(), CacheError> {
        if !self.writable {
            return Ok(());
        }
        let rows = HostRows::from_targets(&self.layout, graphs, targets)?;
        self.note_deviation(&rows, targets)?;
        self.insert_rows(&rows);
        Ok(())
    }

    fn note_deviation(&mut self, rows: &HostRows, targets: &Targets) -> Result<(), CacheError> {
        if self.layout.precision == Precision::F16 {
            let kept = rows.to_targets(tch::Device::Cpu)?;
            self.half_deviation = self.half_deviation.max(gate::deviation(&kept, targets)?);
        }
        Ok(())
    }

    /// Copies the records of needed graphs from another cache of the same targets. Returns the number of graphs added.
    pub fn read_from(&mut self, other: &mut TargetCache) -> Result<usize, CacheError> {
        /// Graphs read at a time.
        const GRAPHS: usize = 512;
        let used = (0..self.graphs.len()).filter(|&graph| self.graphs[graph] & USED != 0);
        let used: Vec<u64> =
            used.filter(|&graph| other.graphs[graph] & FILLED != 0).map(|graph| graph as u64).collect();
        let before = self.remaining;
        for graphs in used.chunks(GRAPHS) {
            let (mut rows, missing) = retry_on_oom(Meter::new(Device::Cpu), || other.lookup(graphs))?;
            if !missing.is_empty() {
                // Some are damaged: read the others only.
                let whole = (0..graphs.len()).filter(|position| !missing.contains(position));
                let whole: Vec<u64> = whole.map(|position| graphs[position]).collect();
                rows = retry_on_oom(Meter::new(Device::Cpu), || other.lookup(&whole))?.0;
            }
            self.insert_rows(&rows);
        }
        Ok(before - self.remaining)
    }

    /// Caches rows that are on the host.
    pub fn insert_rows(&mut self, rows: &HostRows) {
        for (position, &graph) in rows.graphs().iter().enumerate() {
            if !self.writable {
                break;
            }
            if let Err(error) = rows.encode(position, &mut self.record) {
                return self.stop_writing(&error);
            }
            let written = match &mut self.storage {
                Storage::Memory(memory) => retry_on_oom(Meter::new(Device::Cpu), || {
                    Ok::<_, CacheError>(memory.put(graph as usize, &self.record)?)
                }),
                // Another process wrote it first: its record stays, so that a graph's targets never change.
                Storage::File(file)
                    if self.graphs[graph as usize] & DAMAGED == 0 && file.is_filled(graph).unwrap_or(false) =>
                {
                    continue;
                }
                Storage::File(file) => file.write(graph, &self.record),
            };
            match written {
                Ok(()) => self.note(graph, true),
                // There may be memory when these targets are computed again.
                Err(error) if is_out_of_memory(&error) => return,
                Err(error) => self.stop_writing(&error),
            }
        }
    }

    fn stop_writing(&mut self, error: &CacheError) {
        self.writable = false;
        tracing::warn!(
            "{error}{}; the cached targets stay in use, other targets are computed whenever they are needed",
            reason(error)
        );
    }

    /// True if every graph that the run needs is cached, as far as this process knows.
    pub fn is_complete(&self) -> bool {
        self.remaining == 0
    }

    /// True until writing a record has failed.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The graphs that the run needs.
    pub fn used(&self) -> Vec<u64> {
        (0..self.graphs.len()).filter(|&graph| self.graphs[graph] & USED != 0).map(|graph| graph as u64).collect()
    }

    /// The layout of the records.
    pub fn layout(&self) -> &RecordLayout {
        &self.layout
    }

    /// Syncs a file cache to disk. A failure is only logged: lost records are computed again, which is no reason to fail a finished
    /// training.
    pub fn sync(&self) {
        if let Storage::File(file) = &self.storage
            && let Err(error) = file.sync()
        {
            tracing::warn!("{error}{}; targets that were not written to the disk are computed again", reason(&error));
        }
    }

    /// The cache's size and state.
    pub fn summary(&self) -> CacheSummary {
        let (kind, path) = match &self.storage {
            Storage::Memory(_) => ("ram", None),
            Storage::File(file) => ("disk", Some(file.path().to_path_buf())),
        };
        CacheSummary {
            kind: kind.to_string(),
            path,
            precision: self.layout.precision.as_str().to_string(),
            filled_graphs: (self.used_graphs - self.remaining) as u64,
            used_graphs: self.used_graphs as u64,
            bytes: self.used_bytes,
            damaged_records: self.damaged_records,
            half_deviation: self.half_deviation,
        }
    }
}

/// Reads the key of a cache file, whatever it was made for.
pub fn read_key(path: &Path) -> Result<CacheKey, CacheError> {
    let file = std::fs::File::open(path).map_err(file::io_error(path, "open"))?;
    Ok(file::read_header(&file, path)?.0)
}

/// Free bytes on the disk of `folder`, or of its nearest existing ancestor.
pub fn free_disk_bytes(folder: &Path) -> Option<u64> {
    let existing = folder.ancestors().find(|path| path.exists()).filter(|path| !path.as_os_str().is_empty());
    let numbers = rustix::fs::statvfs(existing.unwrap_or(Path::new("."))).ok()?;
    Some(numbers.f_bavail * numbers.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::TargetLayout;

    #[test]
    fn a_file_that_cannot_be_synced_stays_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("targets.cache");
        let (layout, shape) =
            (TargetLayout::classifier(2), StoreShape { node_counts: vec![1], ..StoreShape::default() });
        let key = CacheKey::new("w", "{}", "", &layout, Precision::F32, &shape);
        let mut cache = TargetCache::open(&path, &key, RecordLayout::new(layout, Precision::F32, &[1]), None).unwrap();
        let Storage::File(file) = &mut cache.storage else { panic!("not on disk") };
        // A device file cannot be synced.
        let whole = file.exchange(std::fs::File::open("/dev/null").unwrap());
        assert!(file.sync().is_err());
        cache.sync();
        let Storage::File(file) = &mut cache.storage else { panic!("not on disk") };
        file.exchange(whole);
        assert!(cache.is_writable() && cache.lookup(&[0]).unwrap().1 == [0]);
    }
}
