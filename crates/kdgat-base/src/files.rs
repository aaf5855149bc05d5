//! Files that are whole or absent: written to a temporary name beside, synced, renamed.

mod partial;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use partial::{Partial, is_old, random_number};

/// Ending of files that are being written; whatever bears it is never read.
pub const PARTIAL_EXTENSION: &str = "partial";
/// Symbolic links that are followed one after another, as Linux does.
const MOST_LINKS: usize = 40;

/// Replaces `path` by `contents`, so that a reader or a crash sees the old file or the new one, never a part.
///
/// # Errors
/// Any error of the file system; `path` is then as it was, or, where only the folder could not be synced, whole.
pub fn write_atomically(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_atomically_with(path, |file| file.write_all(contents))
}

/// As [`write_atomically`], for contents that `write` produces piece by piece.
///
/// What symbolic links lead to is replaced, not the links. A device or a pipe is not replaced but written into.
pub fn write_atomically_with(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if is_stream(path)? {
        return File::options().write(true).open(path).and_then(|mut file| write(&mut file));
    }
    let path = &behind_links(path);
    let mut partial = Partial::beside(path)?;
    write(partial.file())?;
    partial.persist(path)
}

/// Whether a path is that of a device, a pipe or a socket: nothing that has contents to replace.
///
/// # Errors
/// Any error of the file system but that there is nothing yet.
pub fn is_stream(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) => Ok(!found.is_file() && !found.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Where symbolic links lead to, which need not be there yet.
pub fn behind_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // A circle of links has been refused as such; the limit is for one that is made meanwhile.
    for _ in 0..MOST_LINKS {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

/// Makes a folder if it is not there, and finds out whether a file can be made in it: before long work whose results are to
/// go there.
///
/// # Errors
/// Any error of the file system.
pub fn expect_writable(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    tempfile::tempfile_in(folder).map(drop)
}

/// Makes a rename or a new file in the folder of `path` durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent_of(path))?.sync_all()
}

/// The folder that a path is in.
fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether an error of the file system is about the path that was given, which the user can choose otherwise, and not about
/// the disk or the machine: so that whoever tries again later tries in vain.
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
        // Two containers may have the same process ID, as these two writers do.
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
    fn a_new_file_can_be_read_by_whom_the_mask_allows_it() {
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
        // Once to a file that is not there yet, once to one that is.
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
