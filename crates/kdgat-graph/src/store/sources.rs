//! Logs as sources of a store: their state and their checksum.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use kdgat_can::ReadReport;

use crate::StoreError;

/// Size in bytes, and time of the last change in nanoseconds since 1970.
pub fn file_state(path: &Path) -> Result<(u64, u64), StoreError> {
    let metadata = fs::metadata(path).map_err(StoreError::io("read the size of", path))?;
    let modified = metadata.modified().map_err(StoreError::io("read the time of", path))?;
    // A file from before 1970 gets time 0; then its content decides.
    let since_epoch = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((metadata.len(), since_epoch.as_nanos() as u64))
}

/// BLAKE3 digest of a file's bytes, in hexadecimal.
pub fn digest_of(path: &Path) -> Result<String, StoreError> {
    let mut hash = blake3::Hasher::new();
    let file = File::open(path).map_err(StoreError::io("open", path))?;
    hash.update_reader(file).map_err(StoreError::io("read", path))?;
    Ok(hash.finalize().to_hex().to_string())
}

/// Shortens the paths in a report to file names: a store does not depend on the dataset's location.
pub fn with_short_names(mut report: ReadReport, name: &str) -> ReadReport {
    let rejected = report.rejected.values_mut().flat_map(|rejections| &mut rejections.first);
    rejected.chain(&mut report.first_backward).for_each(|place| place.file = PathBuf::from(name));
    report
}
