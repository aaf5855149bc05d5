//! What several test files need.

use std::path::{Path, PathBuf};

/// A folder of the optional shared test data, or `None` (and a line that says so) where it is not there.
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
