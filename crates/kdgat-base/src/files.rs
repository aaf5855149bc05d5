//! Atomic file writes: write to a temporary file in the same folder, sync, rename.

mod partial;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use partial::{Partial, is_old, random_number};

/// A file or folder that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: cannot {action}: {source}", path = path.display())]
pub struct FileError {
    /// The file or folder.
    pub path: PathBuf,
    /// The attempted action: completes "cannot …".
    pub action: &'static str,
    /// Error of the operating system.
    pub source: io::Error,
}

impl FileError {
    /// True if the given path caused it, see [`is_about_the_path`].
    pub fn is_input(&self) -> bool {
        is_about_the_path(&self.source)
    }
}

/// Returns a closure for `map_err` that adds the attempted action ("read", "write") and the path.
pub fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> FileError + Copy {
    move |source| FileError { path: path.to_owned(), action, source }
}

/// Extension of files that are being written. No reader ever opens a file with it.
pub const PARTIAL_EXTENSION: &str = "partial";
/// Symbolic links followed in a chain, the same limit as Linux.
const MOST_LINKS: usize = 40;

/// Replaces `path` with `contents` atomically: a reader, or a restart after a crash, sees the old file or the new one,
/// never a partial one.
///
/// # Errors
/// Any file-system error. `path` is then unchanged or, if only syncing the folder failed, complete.
pub fn write_atomically(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_atomically_with(path, |file| file.write_all(contents))
}

/// Like [`write_atomically`], for contents that `write` produces incrementally.
///
/// Follows symbolic links and replaces their target, not the link. Writes directly into a device or a pipe.
pub fn write_atomically_with(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if is_stream(path)? {
        return File::options().write(true).open(path).and_then(|mut file| write(&mut file));
    }
    let path = &behind_links(path);
    let mut partial = Partial::beside(path)?;
    write(partial.file())?;
    partial.persist(path)
}

/// Like [`write_atomically_with`], for contents that `write` puts into a file by its path: one that exists beside `path`, or the device or pipe
/// itself.
///
/// # Errors
/// Those of [`write_atomically`].
pub fn write_atomically_to(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    if is_stream(path)? {
        return write(path);
    }
    let path = &behind_links(path);
    let partial = Partial::beside(path)?;
    write(partial.path())?;
    partial.persist(path)
}

/// True if `path` is a device, a pipe or a socket, which cannot be replaced atomically. False if nothing exists there.
///
/// # Errors
/// Any file-system error except "not found".
pub fn is_stream(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) => Ok(!found.is_file() && !found.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Follows symbolic links to their final target, which may not exist yet.
pub fn behind_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // `is_stream` has already refused a cycle of links; the limit guards against one created since then.
    for _ in 0..MOST_LINKS {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

/// Creates the folder if necessary and checks that a file can be created in it. Called before long work that writes
/// results there.
///
/// # Errors
/// Any file-system error.
pub fn expect_writable(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    tempfile::tempfile_in(folder).map(drop)
}

/// Syncs the folder of `path`, so that a rename or a new file in it survives a crash.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent_of(path))?.sync_all()
}

/// The parent folder; `.` for a bare file name.
fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// True if an error is caused by the given path, which the user can change, and not by the disk or the machine.
/// Retrying such an error is pointless.
pub fn is_about_the_path(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::NotFound
            | Kind::PermissionDenied
            | Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::AlreadyExists
            | Kind::ReadOnlyFilesystem
            | Kind::InvalidFilename
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_atomically(&path, b"old").unwrap();
        let error = write_atomically_with(&path, |file| {
            file.write_all(b"half of the n")?;
            Err(io::Error::other("disk full"))
        });
        assert_eq!(error.unwrap_err().to_string(), "disk full");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left behind");
    }

    #[test]
    fn two_writers_of_one_file_have_temporary_files_of_their_own() {
        // Two containers may have the same process ID; these two writers share one as well.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_atomically_with(&path, |file| {
            file.write_all(b"first")?;
            write_atomically(&path, b"second")?;
            assert_eq!(fs::read(&path)?, b"second");
            Ok(())
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left behind");
    }

    #[test]
    fn a_new_file_respects_the_umask() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        File::create(folder.path().join("plain")).unwrap();
        write_atomically(&folder.path().join("written"), b"").unwrap();
        assert_eq!(mode("written"), mode("plain"));
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let link = folder.path().join("link");
        // First the target is missing, then it exists.
        std::os::unix::fs::symlink("inner/file", &link).unwrap();
        for content in [b"new", b"two"] {
            write_atomically(&link, content).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read(inner.join("file")).unwrap(), content);
            assert_eq!(fs::read_dir(&inner).unwrap().count(), 1, "a temporary file was left behind");
        }
        let circle = folder.path().join("circle");
        std::os::unix::fs::symlink("circle", &circle).unwrap();
        assert!(write_atomically(&circle, b"new").is_err());
        let to_folder = folder.path().join("to_folder");
        std::os::unix::fs::symlink("inner", &to_folder).unwrap();
        assert!(write_atomically(&to_folder, b"new").is_err());
        assert!(fs::symlink_metadata(&to_folder).unwrap().is_symlink());
    }

    #[test]
    fn a_pipe_is_written_into_and_stays() {
        use std::os::unix::fs::FileTypeExt;

        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        write_atomically(&pipe, b"content").unwrap();
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo(), "the pipe was replaced");
        assert_eq!(reader.join().unwrap(), b"content");
    }
}
