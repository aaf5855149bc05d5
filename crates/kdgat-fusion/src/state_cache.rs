//! Cache of the states of all graphs of a store: computed once and stored on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::state_file::{CHUNK_GRAPHS, StateWriter};
use super::states::StateModels;
use super::{FusionError, StateFile, StateKey};
use kdgat_graph::Store;
use kdgat_train::interrupt;

/// Subfolder of the stores' folder that holds the states.
pub const FOLDER: &str = "fusion";

/// Path of the states of a dataset.
pub fn path(stores_dir: &Path, dataset: &str, key: &StateKey) -> PathBuf {
    stores_dir.join(FOLDER).join(key.file_name(dataset))
}

/// Opens the states if they have been computed. Warns of a damaged file and ignores it.
pub fn find(path: &Path, key: &StateKey) -> Option<StateFile> {
    if !path.exists() {
        return None;
    }
    match StateFile::open(path, key) {
        Ok(found) => Some(found),
        Err(error) => {
            eprintln!("warning: {error}");
            None
        }
    }
}

/// Opens the states, or computes them with `models`. An interrupted computation resumes after its last chunk.
///
/// # Errors
/// Returns [`FusionError::Interrupted`] on Ctrl-C.
pub fn find_or_compute(
    path: &Path,
    key: &StateKey,
    store: &Arc<Store>,
    models: impl FnOnce() -> Result<StateModels, FusionError>,
) -> Result<StateFile, FusionError> {
    if let Some(found) = find(path, key) {
        eprintln!("states of {} graphs: found in {}", key.graphs, path.display());
        return Ok(found);
    }
    let mut writer = StateWriter::open(path, key)?;
    // Another process may have finished while this one waited.
    if let Some(found) = find(path, key) {
        return Ok(found);
    }
    let (start, before) = (Instant::now(), writer.graphs_done());
    if before > 0 {
        eprintln!("states: continuing after {before} of {} graphs", key.graphs);
    }
    let models = models()?;
    while writer.graphs_done() < key.graphs {
        if interrupt::requested() {
            return Err(FusionError::Interrupted { done: writer.graphs_done(), total: key.graphs });
        }
        let next = writer.graphs_done();
        let graphs: Vec<u64> = (next..(next + CHUNK_GRAPHS).min(key.graphs)).collect();
        writer.push(&models.compute(store, &graphs)?)?;
    }
    writer.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("states of {} graphs: computed in {seconds:.1} s, saved to {}", key.graphs - before, path.display());
    StateFile::open(path, key)
}
