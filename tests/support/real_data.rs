//! Real CAN traffic, which the repository may not hold.

use std::path::{Path, PathBuf};

/// The folder of a dataset that `tests/data/README.md` tells where to get: in `KDGAT_CANDATA`, else in `candata` of `KDGAT_SHARED`
/// or of `../shared`. `None`, and a line that says so, where it is not there.
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
    shared.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared")).join("candata")
}
