//! Deviations of a store's graphs from the profile of the car, cached for the epochs of a training.
//!
//! A graph of the profile set stores its frames, and its node features follow from them and from the profile: a tenth of a millisecond of
//! logarithms for each graph, in each epoch the same. The first epoch writes them to an unnamed file in the store's folder, which ends with
//! the process; later epochs read them from there, and the system's cache holds as much of the file as memory allows.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Store;

/// The place of a graph that is not in the file.
const NOWHERE: u64 = u64::MAX;

/// Rows of node features by graph, in a file without a name. Any thread may add and read.
#[derive(Debug)]
pub(super) struct DeviationCache {
    file: File,
    folder: PathBuf,
    /// Offset of each graph's rows in bytes, or [`NOWHERE`].
    offsets: Box<[AtomicU64]>,
    /// Offset at which the next graph is written.
    end: AtomicU64,
    /// True after the file could not be written or read: it is not used any more.
    has_failed: AtomicBool,
}

impl DeviationCache {
    /// An empty cache for the graphs of a store; `None` if its graphs have no deviations, or its folder takes no file.
    pub(super) fn new(store: &Store) -> Option<Self> {
        let folder = store.path();
        if !store.features().needs_history() {
            return None;
        }
        match tempfile::tempfile_in(folder) {
            Ok(file) => Some(Self::over(file, folder, store.num_graphs())),
            Err(error) => {
                tracing::debug!("deviations are computed in each epoch: no file in {}: {error}", folder.display());
                None
            }
        }
    }

    fn over(file: File, folder: &Path, graphs: u64) -> Self {
        Self {
            file,
            folder: folder.to_path_buf(),
            offsets: (0..graphs).map(|_| AtomicU64::new(NOWHERE)).collect(),
            end: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Appends the `values` numbers of a graph to `rows`: from the file, or by `compute`, which appends them, too.
    pub(super) fn append(&self, graph: u64, values: usize, rows: &mut Vec<f32>, compute: impl FnOnce(&mut Vec<f32>)) {
        let Some(place) = self.offsets.get(graph as usize).filter(|_| !self.has_failed.load(Ordering::Relaxed)) else {
            return compute(rows);
        };
        let first = rows.len();
        let offset = place.load(Ordering::Acquire);
        if offset == NOWHERE {
            compute(rows);
            self.add(place, bytemuck::cast_slice(&rows[first..]));
            return;
        }
        rows.resize(first + values, 0.0);
        if let Err(error) = self.file.read_exact_at(bytemuck::cast_slice_mut(&mut rows[first..]), offset) {
            self.give_up("read", &error);
            rows.truncate(first);
            compute(rows);
        }
    }

    /// Writes a graph's rows. Two threads may write the same graph; then its place is that of one of them.
    fn add(&self, place: &AtomicU64, bytes: &[u8]) {
        let offset = self.end.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        match self.file.write_all_at(bytes, offset) {
            // The rows are in the file before another thread sees their place.
            Ok(()) => place.store(offset, Ordering::Release),
            Err(error) => self.give_up("write", &error),
        }
    }

    /// Stops using the file, and says so once: a training without it is slower, and the same. The file is emptied, so that a disk that it
    /// has filled has room for checkpoints; threads that are reading it compute their graph.
    fn give_up(&self, action: &str, error: &std::io::Error) {
        if self.has_failed.swap(true, Ordering::Relaxed) {
            return;
        }
        let folder = self.folder.display();
        tracing::warn!("deviations are computed in each epoch: cannot {action} their file in {folder}: {error}");
        if let Err(error) = self.file.set_len(0) {
            tracing::warn!("the file of deviations in {folder} takes disk space until the training ends: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: [f32; 3] = [1.0, 2.0, 3.0];

    /// The rows after `append` has added to a first one, and true if it computed them.
    fn appended(cache: &DeviationCache, graph: u64) -> (Vec<f32>, bool) {
        let (mut rows, mut computed) = (vec![9.0], false);
        cache.append(graph, GRAPH.len(), &mut rows, |rows| {
            computed = true;
            rows.extend(GRAPH.map(|value| value + graph as f32));
        });
        (rows, computed)
    }

    fn expected(graph: u64) -> Vec<f32> {
        [vec![9.0], GRAPH.map(|value| value + graph as f32).to_vec()].concat()
    }

    #[test]
    fn a_graph_is_computed_once() {
        let cache = DeviationCache::over(tempfile::tempfile().unwrap(), Path::new("store"), 3);
        for graph in [2, 0, 1] {
            assert_eq!(appended(&cache, graph), (expected(graph), true));
        }
        for graph in 0..3 {
            assert_eq!(appended(&cache, graph), (expected(graph), false));
        }
        assert_eq!(appended(&cache, 3), (expected(3), true), "a graph that the store did not have");
    }

    #[test]
    fn a_file_that_fails_changes_no_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "").unwrap();
        let unwritable = DeviationCache::over(File::open(&path).unwrap(), folder.path(), 1);
        assert_eq!(appended(&unwritable, 0), (expected(0), true));
        assert!(unwritable.has_failed.load(Ordering::Relaxed));
        let cut = DeviationCache::over(tempfile::tempfile().unwrap(), folder.path(), 1);
        assert_eq!(appended(&cut, 0), (expected(0), true));
        cut.file.set_len(4).unwrap();
        assert_eq!(appended(&cut, 0), (expected(0), true), "computed again");
        assert_eq!(cut.file.metadata().unwrap().len(), 0, "the disk space is free");
    }
}
