//! Folders that a test program fills and all of them use: small datasets and trained models.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::program::{kdgat, shared_folder};

/// Folders of earlier builds are removed after this time.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Folder with the results of `make`, which fills an empty folder. It is called once for this build of kdgat and these settings, even if
/// several test programs ask at the same time; the others wait. Nobody may change the folder.
pub fn fixture(name: &str, settings: impl Hash, make: impl FnOnce(&Path)) -> PathBuf {
    let place = shared_folder().join("fixtures");
    fs::create_dir_all(&place).unwrap();
    let folder = place.join(format!("{name}-{:016x}", key(settings)));
    // Held until the function returns; a process that ends lets go of it.
    let lock = File::create(place.join(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    if !folder.exists() {
        remove_old(&place, name);
        // A failure leaves no folder that looks complete.
        let unfinished = tempfile::tempdir_in(&place).unwrap();
        make(unfinished.path());
        fs::rename(unfinished.keep(), &folder).unwrap();
    }
    folder
}

/// Hash of the settings and of the program, which is newer if anything that it does has changed.
fn key(settings: impl Hash) -> u64 {
    let program = fs::metadata(kdgat()).unwrap();
    let mut hasher = DefaultHasher::new();
    (program.modified().unwrap(), program.len()).hash(&mut hasher);
    settings.hash(&mut hasher);
    hasher.finish()
}

fn remove_old(place: &Path, name: &str) {
    for entry in fs::read_dir(place).unwrap().map(Result::unwrap) {
        let is_like = entry.file_name().to_string_lossy().starts_with(&format!("{name}-"));
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old = written.is_ok_and(|written| SystemTime::now().duration_since(written).is_ok_and(|age| age > KEPT));
        if is_like && is_old {
            fs::remove_dir_all(entry.path()).unwrap();
        }
    }
}
