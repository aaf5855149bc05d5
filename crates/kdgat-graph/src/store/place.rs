//! Location of a store, and the folder beside it in which it is built.
//!
//! A store is renamed into its place once it is complete and synced, so the remains of a killed build are never taken for a
//! store. A lock prevents two processes from building the same store; the second finds the finished one.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kdgat_base::files::random_number;
use kdgat_can::Dataset;
use kdgat_can::formats::METADATA_NAME;

use super::Store;
use super::plan::{Plan, name_of};
use super::progress::{Event, Progress};
use super::sources::digest_of;
use crate::StoreError;

/// A store's or part's folder, and the files and folders that belong to it.
pub struct Place {
    stores_dir: PathBuf,
    name: String,
    /// The folder itself.
    pub folder: PathBuf,
}

/// State of the store in a place.
pub enum State {
    /// The store matches the logs and options.
    Fits(Box<Store>),
    /// There is no store.
    Missing,
    /// The store cannot be used, for this reason.
    Unfit(String),
}

impl Place {
    /// The place called `name` under `stores_dir`.
    pub fn new(stores_dir: &Path, name: String) -> Self {
        Self { stores_dir: stores_dir.to_path_buf(), folder: stores_dir.join(&name), name }
    }

    /// The folder in which a build works. If the build is killed, the next one resumes there.
    pub fn building(&self) -> PathBuf {
        self.stores_dir.join(format!(".{}.building", self.name))
    }

    fn replaced(&self) -> PathBuf {
        self.stores_dir.join(format!(".{}.replaced-{}", self.name, random_number()))
    }

    /// Opens the store if there is one, and compares it with the current logs.
    pub fn state(&self, dataset: &Dataset, plan: &Plan) -> Result<State, StoreError> {
        let mut store = match Store::open(&self.folder) {
            Ok(store) => store,
            Err(StoreError::Missing { .. }) if !self.folder.exists() => return Ok(State::Missing),
            Err(error @ (StoreError::Missing { .. } | StoreError::Version { .. })) => {
                return Ok(State::Unfit(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let manifest = &mut store.manifest;
        if manifest.features != plan.features
            || manifest.options.canonical() != plan.options.canonical()
            || manifest.files.len() != dataset.files.len()
        {
            return Ok(State::Unfit("it was built with other options".to_string()));
        }
        let mut touched = false;
        for (entry, (file, log)) in manifest.files.iter_mut().zip(dataset.files.iter().zip(&plan.logs)) {
            let changed = || Ok(State::Unfit(format!("{} has changed", file.path.display())));
            if entry.source.bytes != log.bytes || entry.name != name_of(&file.path) || entry.role != file.role {
                return changed();
            }
            if entry.synthetic != log.synthetic {
                return changed();
            }
            if entry.source.labels_blake3 != log.labels_blake3 {
                let labels = file.path.with_file_name(METADATA_NAME);
                return Ok(State::Unfit(format!("{} has changed, been added or been removed", labels.display())));
            }
            if entry.source.modified_nanoseconds != log.modified_nanoseconds {
                if digest_of(&file.path)? != entry.source.blake3 {
                    return changed();
                }
                entry.source.modified_nanoseconds = log.modified_nanoseconds;
                touched = true;
            }
        }
        if touched && let Err(error) = manifest.write(&self.folder) {
            // The store itself is fine on a read-only disk; its logs are compared by content again next time.
            tracing::debug!("cannot update the modification times of unchanged logs: {error}");
        }
        Ok(State::Fits(Box::new(store)))
    }

    /// Waits until no other process builds here; dropping the returned file or ending the process releases the lock.
    pub fn lock(&self, progress: &dyn Progress) -> Result<File, StoreError> {
        loop {
            let (file, path) = self.lock_file()?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    progress.report(&Event::Waiting { lock: &path });
                    file.lock().map_err(StoreError::io("lock", &path))?;
                }
                Err(TryLockError::Error(error)) => return Err(StoreError::io("lock", &path)(error)),
            }
            // The previous holder may have removed the file; then another process may lock a new file of that name.
            if is_at(&file, &path) {
                return Ok(file);
            }
        }
    }

    fn lock_file(&self) -> Result<(File, PathBuf), StoreError> {
        fs::create_dir_all(&self.stores_dir).map_err(StoreError::io("create", &self.stores_dir))?;
        let path = self.stores_dir.join(format!(".{}.lock", self.name));
        let file = File::options().create(true).append(true).open(&path);
        Ok((file.map_err(StoreError::io("create", &path))?, path))
    }

    /// A folder beside the store for notes on the parts being built.
    pub fn notes(&self, name: &str) -> PathBuf {
        self.stores_dir.join(format!(".{}.{name}", self.name))
    }

    /// Removes the folder and everything that belongs to it, unless another process is building here.
    pub fn remove(&self) -> Result<(), StoreError> {
        let (file, path) = self.lock_file()?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(StoreError::io("lock", &path)(error)),
        }
        self.remove_leftovers()?;
        for folder in [&self.folder, &self.building()] {
            if folder.exists() {
                fs::remove_dir_all(folder).map_err(StoreError::io("remove", folder))?;
            }
        }
        fs::remove_file(&path).map_err(StoreError::io("remove", &path))
    }

    /// Removes leftovers that cannot be resumed; the caller must hold the lock.
    pub fn remove_leftovers(&self) -> Result<(), StoreError> {
        let prefixes = [format!(".{}.building-", self.name), format!(".{}.replaced-", self.name)];
        let failed = || StoreError::io("list", &self.stores_dir);
        for entry in fs::read_dir(&self.stores_dir).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let name = entry.file_name();
            if prefixes.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes())) {
                let path = entry.path();
                fs::remove_dir_all(&path).map_err(StoreError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Moves the finished folder to its place. Processes that have the old store mapped keep it until they end.
    pub fn replace_with(&self, mut building: UnfinishedFolder) -> Result<(), StoreError> {
        let replaced = self.replaced();
        let had_one = self.folder.exists();
        if had_one {
            fs::rename(&self.folder, &replaced).map_err(StoreError::io("rename", &self.folder))?;
        }
        fs::rename(&building.path, &self.folder).map_err(StoreError::io("rename", &building.path))?;
        building.finished = true;
        sync_folder(&self.stores_dir)?;
        if had_one {
            fs::remove_dir_all(&replaced).map_err(StoreError::io("remove", &replaced))?;
        }
        Ok(())
    }
}

/// True if the path still refers to the open file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(open), Ok(named)) if identity(&open) == identity(&named))
}

/// A folder that is removed when the build ends with an error; a build that is killed leaves it.
pub struct UnfinishedFolder {
    /// The folder.
    pub path: PathBuf,
    finished: bool,
}

impl UnfinishedFolder {
    /// Guards `path`, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, finished: false }
    }
}

impl Drop for UnfinishedFolder {
    fn drop(&mut self) {
        if !self.finished {
            // The error that ended the build is reported; the next build handles what is left.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Syncs a folder, so that the names of its files are on the disk.
pub fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(StoreError::io("sync", folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_lock_that_was_removed_while_it_was_waited_for_is_taken_anew() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), "store".to_string());
        let path = folder.path().join(".store.lock");
        let first = place.lock(&()).unwrap();
        let second = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| place.lock(&()).unwrap());
            std::thread::sleep(Duration::from_millis(200));
            fs::remove_file(&path).unwrap();
            drop(first);
            waiting.join().unwrap()
        });
        assert!(is_at(&second, &path), "it holds the lock of a file that is gone");
        assert!(File::open(&path).unwrap().try_lock().is_err());
    }
}
