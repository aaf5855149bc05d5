//! Folders that are written completely or not at all: under another name beside their place, then renamed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::error::CanError;

/// Age from which an unlocked unfinished folder is removed.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// A folder that is being written. It is removed on drop unless it is published.
pub(crate) struct Unfinished {
    beside: tempfile::TempDir,
    target: PathBuf,
    parent: PathBuf,
    prefix: &'static str,
    /// Held while this process writes the folder.
    _lock: Option<File>,
}

impl Unfinished {
    /// Creates a folder beside `target`, and removes those that killed processes left there. Its name begins with `prefix`, which
    /// must begin with a dot: folders of datasets never do.
    pub fn beside(target: &Path, prefix: &'static str) -> Result<Self, CanError> {
        let parent = parent_of(target).to_path_buf();
        fs::create_dir_all(&parent).map_err(cannot_write(&parent))?;
        remove_abandoned(&parent, prefix);
        let beside = tempfile::Builder::new().prefix(prefix).tempdir_in(&parent).map_err(cannot_write(&parent))?;
        // A folder without a lock is only at risk after `ABANDONED_AFTER` without a new entry.
        let lock = File::open(beside.path()).and_then(|folder| folder.try_lock().map(|()| folder).map_err(Into::into));
        Ok(Self { beside, target: target.to_path_buf(), parent, prefix, _lock: lock.ok() })
    }

    /// The folder in which to write.
    pub fn path(&self) -> &Path {
        self.beside.path()
    }

    /// Renames the finished folder to its target, which must be empty or not exist.
    ///
    /// # Errors
    /// [`CanError::TargetExists`] and [`CanError::Write`]; the folder is then removed.
    pub fn publish(self) -> Result<(), CanError> {
        let Self { beside, target, parent, .. } = self;
        rename(beside, &target).map_err(|source| match source.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => target_exists(&target),
            _ => CanError::Write { path: target.clone(), source },
        })?;
        File::open(&parent).and_then(|folder| folder.sync_all()).map_err(cannot_write(&parent))
    }

    /// Replaces the target by the finished folder. Files of the old folder that are open remain readable.
    ///
    /// # Errors
    /// [`CanError::Write`].
    pub fn replace(self) -> Result<(), CanError> {
        // Removed on drop, after the new folder has been published.
        let replaced = tempfile::Builder::new().prefix(self.prefix).tempdir_in(&self.parent);
        let replaced = replaced.map_err(cannot_write(&self.parent))?;
        match fs::rename(&self.target, replaced.path().join("replaced")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot_write(&self.target)(error)),
            _ => self.publish(),
        }
    }
}

/// The folder that holds `target`.
pub(crate) fn parent_of(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns a closure for `map_err` that makes an error of writing `path`.
pub(crate) fn cannot_write(path: &Path) -> impl FnOnce(io::Error) -> CanError {
    let path = path.to_path_buf();
    move |source| CanError::Write { path, source }
}

/// Writes and syncs a new file.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CanError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(cannot_write(path))
}

/// A gzip compressor that writes neither name nor time: the same text gives the same bytes.
pub(crate) fn compressor<W: Write>(output: W) -> GzEncoder<W> {
    GzEncoder::new(output, Compression::fast())
}

/// Fails unless `target` is an empty folder or does not exist.
pub(crate) fn refuse_existing(target: &Path) -> Result<(), CanError> {
    match fs::read_dir(target) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                Err(target_exists(target))
            } else {
                Ok(())
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(target_exists(target)),
        Err(source) => Err(CanError::Write { path: target.to_path_buf(), source }),
    }
}

fn target_exists(target: &Path) -> CanError {
    CanError::TargetExists { path: target.to_path_buf(), found: "exists already and is not empty".to_owned() }
}

/// Removes the unfinished folders of processes that were killed; ones that cannot be removed are left.
fn remove_abandoned(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let ours = entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes());
        if ours && let Ok(folder) = File::open(&path) {
            let age =
                folder.metadata().and_then(|found| found.modified()).map(|time| time.elapsed().unwrap_or_default());
            // A folder that was just created is not locked yet.
            if age.is_ok_and(|age| age > ABANDONED_AFTER) && folder.try_lock().is_ok() {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

/// Syncs the folder and renames it to `target`; if that fails, it is removed.
fn rename(beside: tempfile::TempDir, target: &Path) -> io::Result<()> {
    for entry in fs::read_dir(beside.path())? {
        let path = entry?.path();
        if path.is_dir() {
            File::open(path)?.sync_all()?;
        }
    }
    File::open(beside.path())?.sync_all()?;
    allow_others_to_read(beside.path())?;
    fs::rename(beside.path(), target)?;
    // The folder has been renamed: the guard must not remove it.
    let _renamed = beside.keep();
    Ok(())
}

/// Gives the temporary folder, which only its owner can read, the permissions of a new folder.
#[cfg(unix)]
fn allow_others_to_read(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let probe = folder.join(".permissions");
    fs::create_dir(&probe)?;
    let mode = fs::metadata(&probe).map(|metadata| metadata.permissions().mode());
    fs::remove_dir(&probe)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(mode?))
}

#[cfg(not(unix))]
fn allow_others_to_read(_folder: &Path) -> io::Result<()> {
    Ok(())
}
