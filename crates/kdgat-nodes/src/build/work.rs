//! The folder of a build: the store in progress, temporary files, a lock, and a journal of what is done.
//!
//! The journal is replaced atomically after the data that it speaks of is on the disk. A journal of another source, or one that is
//! damaged, is discarded with the temporary files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use kdgat_base::files;
use serde::{Deserialize, Serialize};

use super::{Event, Progress};
use crate::NodesError;

/// Version of the temporary files.
const VERSION: u32 = 2;
const JOURNAL: &str = "journal.json";
const STORE: &str = "store";
const LOCK: &str = "lock";
/// Ending of the folder's name.
const ENDING: &str = "building";

/// What is done of a build.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    version: u32,
    /// Tells builds apart.
    key: String,
    /// Number of classes, once labels and split are in their files.
    pub classes: Option<usize>,
    /// Numbers of the classes in the source, ascending, if they have gaps, which those in the files have not.
    pub class_numbers: Vec<u32>,
    /// Nodes without a label.
    pub nodes_without_label: u64,
    /// Edges from a node to itself.
    pub self_loops: u64,
    /// The buckets that are not yet sorted, by target, once all listed edges are in one.
    pub buckets: Option<Vec<BucketFile>>,
    /// Number of the next bucket's file.
    pub next_bucket: u32,
    /// Targets whose edges are in the store.
    pub targets_written: u64,
    /// Edges in the store.
    pub edges_written: u64,
    /// Rows of features in the store.
    pub rows_written: u64,
}

/// A temporary file with the edges of a range of targets, unsorted, 8 bytes each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketFile {
    /// Number in the file's name.
    pub number: u32,
    /// First target.
    pub first: u64,
    /// Target behind the last one.
    pub end: u64,
    /// Number of edges.
    pub edges: u64,
    /// CRC-32C of the file.
    pub crc32c: u32,
}

impl BucketFile {
    /// Name of the file.
    pub fn name(&self) -> String {
        format!("bucket-{}", self.number)
    }
}

/// An open folder.
pub struct Work {
    /// What is done.
    pub journal: Journal,
    folder: PathBuf,
    target: PathBuf,
    /// Locked while the folder is in use.
    _lock: File,
}

impl Work {
    /// Opens or creates the folder for the store `target`, and waits for another process that uses it. `None` if the store is there
    /// then.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn open(target: &Path, key: &str, progress: &dyn Progress) -> Result<Option<Self>, NodesError> {
        let folder = folder_of(target);
        let Some(lock) = lock(&folder, target, progress)? else { return Ok(None) };
        let mut work = Self { journal: Journal::default(), folder, target: target.to_owned(), _lock: lock };
        match work.read_journal().filter(|journal| journal.version == VERSION && journal.key == key) {
            Some(journal) => work.journal = journal,
            None => {
                work.remove_files(|name| name != LOCK)?;
                work.journal = Journal { version: VERSION, key: key.to_owned(), ..Journal::default() };
                work.save()?;
            }
        }
        Ok(Some(work))
    }

    /// Path of a temporary file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The store that is built.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The folder of the temporary files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Creates or empties a temporary file.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn create(&self, name: &str) -> Result<File, NodesError> {
        let path = self.path(name);
        File::create(&path).map_err(NodesError::io("create", &path))
    }

    /// The store in progress.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn store(&self) -> Result<File, NodesError> {
        let path = self.path(STORE);
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        opened.map_err(NodesError::io("create", &path))
    }

    /// Checks that the store in progress has at least that many bytes.
    ///
    /// # Errors
    /// A shorter one, or any error of the file system.
    pub fn expect_length(&self, bytes: u64) -> Result<(), NodesError> {
        let path = self.path(STORE);
        let found = self.store()?.metadata().map_err(NodesError::io("open", &path))?.len();
        match found >= bytes {
            true => Ok(()),
            false => Err(self.damaged(STORE, &format!("{found} bytes, expected at least {bytes}"))),
        }
    }

    /// The error of a temporary file that is not as this build left it.
    pub fn damaged(&self, name: &str, detail: &str) -> NodesError {
        let expected = "the data put there by this build: it is removed, the same command starts again";
        NodesError::invalid(&self.path(name), "", format!("damaged ({detail})"), expected)
    }

    /// Waits until a temporary file is on the disk.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn sync(&self, name: &str) -> Result<(), NodesError> {
        let path = self.path(name);
        let synced = File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(NodesError::io("write", &path))
    }

    /// Replaces the journal.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn save(&self) -> Result<(), NodesError> {
        let path = self.path(JOURNAL);
        let saved = serde_json::to_string(&self.journal).map_err(std::io::Error::from).and_then(|text| {
            let checked = format!("{:08x}\n{text}\n", crc32c::crc32c(text.as_bytes()));
            files::write_atomically(&path, checked.as_bytes())
        });
        saved.map_err(NodesError::io("write", &path))
    }

    /// The journal in the folder; `None` if there is none or it is damaged.
    fn read_journal(&self) -> Option<Journal> {
        let text = fs::read_to_string(self.path(JOURNAL)).ok()?;
        let (checksum, text) = text.split_once('\n')?;
        let text = text.strip_suffix('\n')?;
        if checksum != format!("{:08x}", crc32c::crc32c(text.as_bytes())) {
            return None;
        }
        serde_json::from_str(text).ok()
    }

    /// Removes the files of buckets that are sorted, and those of an interrupted step.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn remove_other_buckets(&self) -> Result<(), NodesError> {
        let kept: Vec<String> = self.journal.buckets.iter().flatten().map(BucketFile::name).collect();
        self.remove_files(|name| name.starts_with("bucket-") && !kept.iter().any(|kept| kept == name))
    }

    fn remove_files(&self, is_removed: impl Fn(&str) -> bool) -> Result<(), NodesError> {
        let entries = fs::read_dir(&self.folder).map_err(NodesError::io("read", &self.folder))?;
        for entry in entries {
            let path = entry.map_err(NodesError::io("read", &self.folder))?.path();
            if path.file_name().and_then(|name| name.to_str()).is_some_and(&is_removed) {
                fs::remove_file(&path).map_err(NodesError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Free bytes of the disk.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn unused_bytes(&self) -> Result<u64, NodesError> {
        let found = rustix::fs::statvfs(&self.folder).map_err(std::io::Error::from);
        let found = found.map_err(NodesError::io("examine the disk of", &self.folder))?;
        Ok(found.f_bavail * found.f_frsize)
    }

    /// Free bytes of the disk, and those that the folder has already.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn free_bytes(&self) -> Result<u64, NodesError> {
        use std::os::unix::fs::MetadataExt;
        let mut bytes = self.unused_bytes()?;
        for entry in fs::read_dir(&self.folder).map_err(NodesError::io("read", &self.folder))? {
            let metadata = entry.and_then(|entry| entry.metadata()).map_err(NodesError::io("read", &self.folder))?;
            bytes += metadata.blocks() * 512;
        }
        Ok(bytes)
    }

    /// Removes the folder.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn discard(self) -> Result<(), NodesError> {
        remove(&self.folder)
    }

    /// Renames the finished store to its target, and removes the folder.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn finish(self) -> Result<(), NodesError> {
        let path = self.path(STORE);
        let synced = File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(NodesError::io("write", &path))?;
        fs::rename(&path, &self.target).map_err(NodesError::io("create", &self.target))?;
        files::sync_parent(&self.target).map_err(NodesError::io("write", &self.target))?;
        self.discard()
    }
}

/// The folder of a store's build, beside the store.
pub fn folder_of(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{ENDING}"))
}

/// Removes a folder. It loses its name first, so that a process that comes now makes a folder of its own.
fn remove(folder: &Path) -> Result<(), NodesError> {
    let mut name = folder.as_os_str().to_owned();
    name.push(format!("-{:08x}", files::random_number()));
    let unnamed = PathBuf::from(name);
    let removed = fs::rename(folder, &unnamed).and_then(|()| fs::remove_dir_all(&unnamed));
    removed.map_err(NodesError::io("remove", folder))
}

/// Creates the folder and locks it; `None` if the store is there once the lock is free.
fn lock(folder: &Path, target: &Path, progress: &dyn Progress) -> Result<Option<File>, NodesError> {
    let path = folder.join(LOCK);
    let mut waits = false;
    loop {
        fs::create_dir_all(folder).map_err(NodesError::io("create", folder))?;
        let opened = File::options().write(true).create(true).truncate(false).open(&path);
        let file = match opened {
            Ok(file) => file,
            // Another process has finished and removed the folder just now.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(NodesError::io("create", &path)(error)),
        };
        if file.try_lock().is_err() {
            if !waits {
                progress.report(&Event::Waiting { folder });
            }
            waits = true;
            file.lock().map_err(NodesError::io("lock", &path))?;
        }
        if target.try_exists().map_err(NodesError::io("open", target))? {
            // A process that was killed after the rename has left the folder.
            if path.exists() {
                remove(folder)?;
            }
            return Ok(None);
        }
        // The process that had the lock may have removed the file.
        if is_at(&file, &path) {
            return Ok(Some(file));
        }
    }
}

/// True if `path` still refers to the open file.
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(open), Ok(named)) if identity(&open) == identity(&named))
}
