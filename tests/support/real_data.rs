//! Real CAN traffic, which the repository may not contain.

use std::path::PathBuf;

use crate::program::repository;

/// Folder of a real dataset (see `tests/data/README.md` for its source): in `KDGAT_CANDATA`, otherwise in `candata` of `KDGAT_SHARED`
/// or of `../shared`. If it is missing, prints a line and returns `None`.
pub fn candata(name: &str) -> Option<PathBuf> {
    let folder = root().join(name);
    if !folder.is_dir() {
        println!(
            "skipped: tests on real traffic need the dataset {name} (tests/data/README.md says where to get it; \
             KDGAT_CANDATA names the folder that holds it)"
        );
        return None;
    }
    Some(folder)
}

fn root() -> PathBuf {
    if let Some(root) = std::env::var_os("KDGAT_CANDATA") {
        return root.into();
    }
    let shared = std::env::var_os("KDGAT_SHARED").map(PathBuf::from);
    shared.unwrap_or_else(|| repository().join("../shared")).join("candata")
}
