//! What several test files need.

use std::path::{Path, PathBuf};

use kdgat::can::{Frame, LogReader, ReadReport, open_log};

/// A folder of the optional shared test data, or `None` (and a line that says so) where it is not there.
#[allow(dead_code)]
pub fn shared(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("KDGAT_SHARED").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"));
    let path = root.join(name);
    if !path.exists() {
        eprintln!("skipped: no {} (set KDGAT_SHARED to the folder that holds {name})", path.display());
        return None;
    }
    Some(path)
}

/// All frames of a log, read in blocks of `limit`, and what was counted.
#[allow(dead_code)] // not every test file reads logs
pub fn read_all(mut log: LogReader, limit: usize) -> (Vec<Frame>, ReadReport) {
    let (mut frames, mut block) = (Vec::new(), Vec::new());
    while log.read_block(limit, &mut block).unwrap() > 0 {
        assert!(block.len() <= limit, "a block of {} frames, wanted at most {limit}", block.len());
        frames.extend_from_slice(&block);
    }
    (frames, log.report().clone())
}

/// All frames of the log at `path`, in whatever format it is.
#[allow(dead_code)]
pub fn read_log(path: &Path) -> (Vec<Frame>, ReadReport) {
    read_all(open_log(path, None).unwrap(), 4096)
}
