//! The folder of a teacher, which several processes may want to replace while others read it.
//!
//! ```text
//! .lock                      held (`flock`) by the process that changes a teacher of the dataset
//! vgae/                      the teacher
//! .vgae.RANDOM.partial       a teacher that is being written
//! .vgae.NUMBER.previous      the previous teacher, between the two renames of a replacement
//! ```

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kdgat_base::files;
use tempfile::TempDir;

use super::{RegistryError, file_error, sync};

const LOCK: &str = ".lock";
const PARTIAL: &str = ".partial";
const PREVIOUS: &str = ".previous";
/// Permissions of a new folder, before the process's umask.
const MODE: u32 = 0o777;

/// Waits until no other process changes a teacher in `parent`, the folder of a dataset, and locks it. Creates the folder if
/// necessary. The lock ends when the returned file is dropped or the process ends.
pub(super) fn lock(parent: &Path) -> Result<File, RegistryError> {
    fs::create_dir_all(parent).map_err(file_error(parent, "create"))?;
    let path = parent.join(LOCK);
    let file = File::options().create(true).append(true).open(&path).map_err(file_error(&path, "create"))?;
    file.lock().map_err(file_error(&path, "lock"))?;
    Ok(file)
}

/// Finds the current path of the teacher in `folder`, if there is one.
pub(super) fn find(folder: &Path) -> Result<Option<PathBuf>, RegistryError> {
    let here = || folder.exists().then(|| folder.to_owned());
    let Some(parent) = folder.parent().filter(|parent| parent.is_dir()) else { return Ok(None) };
    if let Some(found) = here() {
        return Ok(Some(found));
    }
    if set_aside(folder)?.is_empty() {
        // A replacement may have ended between the two checks.
        return Ok(here());
    }
    // It is being replaced right now, or the process that was replacing it was killed.
    match lock(parent) {
        Ok(_lock) => {
            bring_back(folder)?;
            Ok(here())
        }
        Err(RegistryError::File { source, .. }) if files::is_about_the_path(&source) => {
            // A process that may only read also waits, and then reads the previous teacher from the path it was moved to.
            let _lock = wait(parent)?;
            Ok(here().or(set_aside(folder)?.pop()))
        }
        Err(error) => Err(error),
    }
}

/// Waits like [`lock`], but with a shared lock, which needs no write permission.
pub(super) fn wait(parent: &Path) -> Result<Option<File>, RegistryError> {
    let path = parent.join(LOCK);
    // A copied registry may come without the file, as in a repository.
    let Ok(file) = File::open(&path) else { return Ok(None) };
    file.lock_shared().map_err(file_error(&path, "lock"))?;
    Ok(Some(file))
}

/// Restores the previous teacher if a replacement was interrupted between its two renames. The caller holds the lock.
pub(super) fn bring_back(folder: &Path) -> Result<(), RegistryError> {
    match set_aside(folder)?.pop() {
        Some(previous) if !folder.exists() => fs::rename(previous, folder).map_err(file_error(folder, "restore")),
        _ => Ok(()),
    }
}

/// Moves a complete folder to its final path. The previous teacher is removed only afterwards. The caller holds the lock.
pub(super) fn put(partial: &Path, folder: &Path) -> Result<(), RegistryError> {
    let parent = folder.parent().unwrap_or(Path::new("."));
    if folder.exists() {
        // Left by processes that were killed after both renames.
        remove(set_aside(folder)?)?;
        let previous = parent.join(format!("{}{}{PREVIOUS}", prefix(folder), files::random_number()));
        fs::rename(folder, previous).map_err(file_error(folder, "replace"))?;
    }
    fs::rename(partial, folder).map_err(file_error(folder, "write"))?;
    sync(parent)?;
    remove(set_aside(folder)?)
}

/// Creates the temporary folder of a new teacher and removes those that killed processes left behind. The caller holds the lock;
/// since some file systems apply locks to one host only, a folder must also be old to be removed.
pub(super) fn partial(folder: &Path) -> Result<TempDir, RegistryError> {
    let parent = folder.parent().unwrap_or(Path::new("."));
    let made = tempfile::Builder::new()
        .prefix(&prefix(folder))
        .suffix(PARTIAL)
        .permissions(Permissions::from_mode(MODE))
        .tempdir_in(parent)
        .map_err(file_error(parent, "create a folder in"))?;
    let now = fs::metadata(made.path()).and_then(|made| made.modified()).map_err(file_error(made.path(), "read"))?;
    for entry in fs::read_dir(parent).map_err(file_error(parent, "list"))? {
        let path = entry.map_err(file_error(parent, "list"))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(&prefix(folder)) && name.ends_with(PARTIAL) && is_abandoned(&path, now) {
            fs::remove_dir_all(&path).map_err(file_error(&path, "remove"))?;
        }
    }
    Ok(made)
}

/// True if a folder and all files in it are old; false if any of them cannot be examined.
fn is_abandoned(folder: &Path, now: SystemTime) -> bool {
    let is_old = |path: &Path| fs::symlink_metadata(path).is_ok_and(|metadata| files::is_old(&metadata, now));
    let Ok(mut entries) = fs::read_dir(folder) else { return false };
    is_old(folder) && entries.all(|entry| entry.is_ok_and(|entry| is_old(&entry.path())))
}

/// Lists the previous teachers that interrupted or running replacements moved away from `folder`.
fn set_aside(folder: &Path) -> Result<Vec<PathBuf>, RegistryError> {
    let parent = folder.parent().unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in fs::read_dir(parent).map_err(file_error(parent, "list"))? {
        let entry = entry.map_err(file_error(parent, "list"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix(&prefix(folder)).and_then(|rest| rest.strip_suffix(PREVIOUS));
        if number.is_some_and(|number| number.parse::<u32>().is_ok()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Prefix of the temporary names that belong to a folder.
fn prefix(folder: &Path) -> String {
    format!(".{}.", folder.file_name().unwrap_or_default().to_string_lossy())
}

fn remove(folders: Vec<PathBuf>) -> Result<(), RegistryError> {
    folders.into_iter().try_for_each(|folder| fs::remove_dir_all(&folder).map_err(file_error(&folder, "remove")))
}
