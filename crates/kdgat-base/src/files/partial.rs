//! Temporary files: created in the folder of their target under a random name, unique across processes, hosts and
//! containers, and renamed when complete.
//!
//! A killed process leaves its temporary file behind. The next process that writes into the folder removes it if it is
//! abandoned: a live writer holds an advisory lock (`flock`) on its file. On some shared file systems such locks hold
//! on one host only, so the file must also have been unchanged for [`ABANDONED_AFTER`].

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tempfile::NamedTempFile;

use super::{PARTIAL_EXTENSION, parent_of, sync_parent};

/// Minimum age of unlocked temporary files before they are removed.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(6 * 3600);

/// Separates the target's name from the random part of a temporary file's name.
const MARK: &str = ".kdgat-";
const RANDOM_LETTERS: usize = 10;
/// Bytes of the target's name to include: file names are limited to 255 bytes.
const NAME_KEPT: usize = 200;
/// Permissions of a new file before the umask, the same as `File::create`.
const MODE: u32 = 0o666;

/// A temporary file in the folder of its target. Dropping it removes it.
#[derive(Debug)]
pub struct Partial(NamedTempFile);

impl Partial {
    /// Creates an empty temporary file beside `path` and removes the abandoned ones in that folder.
    ///
    /// # Errors
    /// Any file-system error.
    pub fn beside(path: &Path) -> io::Result<Self> {
        let folder = parent_of(path);
        let partial = loop {
            let file = tempfile::Builder::new()
                .prefix(&prefix_of(path))
                .rand_bytes(RANDOM_LETTERS)
                .suffix(&format!(".{PARTIAL_EXTENSION}"))
                .permissions(Permissions::from_mode(MODE))
                .tempfile_in(folder)?;
            // Ignore errors: on a file system without locks, only the file's age protects it.
            let _ = file.as_file().lock();
            // Another process may have removed the file before we locked it.
            if is_at(file.as_file(), file.path()) {
                break Self(file);
            }
        };
        // Use the file system's clock, which several hosts share.
        let now = partial.0.as_file().metadata()?.modified()?;
        if is_first_look(folder) {
            remove_abandoned(folder, now);
        }
        Ok(partial)
    }

    /// The path of the temporary file.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The open file.
    pub fn file(&mut self) -> &mut File {
        self.0.as_file_mut()
    }

    /// Syncs the file and renames it to `path`, replacing any existing file.
    ///
    /// # Errors
    /// Any file-system error; the temporary file is then removed.
    pub fn persist(self, path: &Path) -> io::Result<()> {
        self.0.as_file().sync_all()?;
        self.0.persist(path).map_err(|error| error.error)?;
        sync_parent(path)
    }
}

/// A random number that two processes are unlikely to share, for names that cannot be reserved by creating a file.
pub fn random_number() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library seeds its hash maps from the system's random source.
    RandomState::new().hash_one(SystemTime::now()) as u32
}

/// True if a file or folder has been unchanged for more than [`ABANDONED_AFTER`] before `now`.
pub fn is_old(metadata: &fs::Metadata, now: SystemTime) -> bool {
    let age = metadata.modified().ok().and_then(|modified| now.duration_since(modified).ok());
    age.is_some_and(|age| age > ABANDONED_AFTER)
}

/// Removes abandoned temporary files. One that cannot be removed does no harm: nothing reads it.
fn remove_abandoned(folder: &Path, now: SystemTime) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_partial(&entry.file_name())
            && let Err(error) = remove_if_abandoned(&entry.path(), now)
        {
            tracing::debug!("cannot remove the temporary file {}: {error}", entry.path().display());
        }
    }
}

fn remove_if_abandoned(path: &Path, now: SystemTime) -> io::Result<()> {
    let is_candidate = |metadata: &fs::Metadata| metadata.is_file() && is_old(metadata, now);
    // Opening a pipe would wait for its other end.
    if !is_candidate(&fs::symlink_metadata(path)?) {
        return Ok(());
    }
    // Open for writing: NFS grants an exclusive lock only on a writable file.
    let file = File::options().write(true).open(path)?;
    file.try_lock()?;
    match is_candidate(&file.metadata()?) && is_at(&file, path) {
        true => fs::remove_file(path),
        false => Ok(()),
    }
}

/// True on the first call for a folder: scanning a large folder takes longer than writing a small file, so we do it
/// once.
fn is_first_look(folder: &Path) -> bool {
    static LOOKED_AT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    LOOKED_AT.lock().insert(folder.to_owned())
}

/// True if `path` still refers to the open file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(open), Ok(named)) if identity(&open) == identity(&named))
}

/// The prefix `.NAME.kdgat-` of a temporary file's name.
fn prefix_of(path: &Path) -> OsString {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let mut prefix = OsString::from(".");
    prefix.push(OsStr::from_bytes(&name[..name.len().min(NAME_KEPT)]));
    prefix.push(MARK);
    prefix
}

/// True if a file name has the form that [`Partial::beside`] creates.
fn is_partial(name: &OsStr) -> bool {
    let ending = format!(".{PARTIAL_EXTENSION}");
    let Some(rest) = name.as_bytes().strip_suffix(ending.as_bytes()).filter(|rest| rest.starts_with(b".")) else {
        return false;
    };
    let Some((head, random)) = rest.split_at_checked(rest.len().saturating_sub(RANDOM_LETTERS)) else { return false };
    head.ends_with(MARK.as_bytes()) && random.iter().all(u8::is_ascii_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_of_killed_processes_are_removed_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let long_ago = SystemTime::now() - ABANDONED_AFTER - Duration::from_secs(60);
        let recently = SystemTime::now() - ABANDONED_AFTER / 2;
        let put = |name: &str, time: SystemTime| {
            let file = File::create(at(name)).unwrap();
            file.set_modified(time).unwrap();
            file
        };
        put(".a.csv.kdgat-0123456789.partial", long_ago);
        put(".a.csv.kdgat-abcdefghij.partial", recently);
        let live = put(".b.csv.kdgat-0123456789.partial", long_ago);
        live.lock().unwrap();
        for name in ["a.csv", "download.partial", ".a.csv.kdgat-0123.partial", ".kdgat-0123456789.html"] {
            put(name, long_ago);
        }
        let before = names(folder.path());
        drop(Partial::beside(&at("c.csv")).unwrap());
        let gone: Vec<String> = before.into_iter().filter(|name| !at(name).exists()).collect();
        assert_eq!(gone, [".a.csv.kdgat-0123456789.partial"], "left: {:?}", names(folder.path()));
    }

    #[test]
    fn a_writer_that_lives_keeps_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.csv");
        let mut partial = Partial::beside(&path).unwrap();
        let now = SystemTime::now();
        partial.file().set_modified(now - 2 * ABANDONED_AFTER).unwrap();
        remove_abandoned(folder.path(), now);
        assert!(partial.path().exists(), "the file of a live writer was removed");
        let left = partial.path().to_owned();
        // As after a kill: the lock is gone, the file remains.
        let (file, kept) = partial.0.keep().unwrap();
        assert_eq!(kept, left);
        drop(file);
        remove_abandoned(folder.path(), now);
        assert!(!left.exists(), "the file of a writer that is gone was left");
    }

    #[test]
    fn temporary_names_of_long_file_names_are_recognised() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "metrics.csv", &"x".repeat(250), "ä b.json"] {
            let partial = Partial::beside(&folder.path().join(name)).unwrap();
            assert!(is_partial(partial.path().file_name().unwrap()), "{}", partial.path().display());
        }
        for name in ["", ".partial", "short.partial", ".kdgat-.partial", "a.csv.17.partial"] {
            assert!(!is_partial(OsStr::new(name)), "{name:?}");
        }
    }
}
