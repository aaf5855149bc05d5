//! Folder of a run: `runs/<dataset>/<model>_<size>_<stage>[_kd]/<n>/`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use kdgat_base::files;

/// Error of a run's folder.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] files::FileError),
    /// There is no unfinished run to resume.
    #[error("{path}: no unfinished run to resume; start one without --resume", path = path.display())]
    NothingToResume {
        /// Folder of the runs.
        path: PathBuf,
    },
    /// Another process is training in the run's folder.
    #[error("{path}: another process is training in this run; wait for it, or train in another folder", path = path.display())]
    InUse {
        /// The run's folder.
        path: PathBuf,
    },
    /// A new run would overwrite another.
    #[error(
        "{path}: there is a run already (it has {found}); continue it with --resume, name another folder with --run-dir, or \
         delete this one",
        path = path.display()
    )]
    Taken {
        /// The run's folder.
        path: PathBuf,
        /// Name of a file or folder of the other run.
        found: &'static str,
    },
}

/// A run's folder, locked by this process.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    /// Locked as long as the run lasts; the system releases the lock when the process ends, even if it is killed.
    _lock: File,
}

impl RunDirectory {
    /// Creates and locks the folder with the next free number below `parent`.
    pub fn create(parent: &Path) -> Result<Self, RunError> {
        let error = files::failed("create the run's folder", parent);
        fs::create_dir_all(parent).map_err(error)?;
        let mut number = numbers(parent).map_err(error)?.last().copied().unwrap_or(0);
        loop {
            number += 1;
            let path = parent.join(number.to_string());
            match fs::create_dir(&path) {
                Ok(()) => return Self::hold(path),
                // Another process has taken the number in the meantime.
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(source) => return Err(error(source).into()),
            }
        }
    }

    /// Locks a folder that the user chose and creates it if missing; `goes_on` resumes the run in it.
    ///
    /// # Errors
    /// If a new run would overwrite another.
    pub fn at(path: &Path, goes_on: bool) -> Result<Self, RunError> {
        /// Files and folders that a new run would overwrite, or without which no run exists.
        const OF_A_RUN: [&str; 5] = ["config.json", "summary.json", "metrics.csv", "best.safetensors", "last"];
        fs::create_dir_all(path).map_err(files::failed("create the run's folder", path))?;
        let held = Self::hold(path.to_owned())?;
        match OF_A_RUN.into_iter().find(|name| held.file(name).exists()) {
            Some(found) if !goes_on => Err(RunError::Taken { path: path.to_owned(), found }),
            _ => Ok(held),
        }
    }

    /// Locks the newest run below `parent` that has a configuration and no summary.
    pub fn resume(parent: &Path) -> Result<Self, RunError> {
        let unfinished = |path: &PathBuf| !path.join("summary.json").exists() && path.join("config.json").exists();
        let newest =
            numbers(parent).unwrap_or_default().into_iter().rev().map(|number| parent.join(number.to_string()));
        match newest.into_iter().find(unfinished) {
            Some(path) => Self::hold(path),
            None => Err(RunError::NothingToResume { path: parent.to_owned() }),
        }
    }

    fn hold(path: PathBuf) -> Result<Self, RunError> {
        let error = files::failed("lock the run", &path);
        let lock = File::create(path.join("lock")).map_err(error)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(fs::TryLockError::WouldBlock) => Err(RunError::InUse { path }),
            Err(fs::TryLockError::Error(source)) => Err(error(source).into()),
        }
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a JSON file atomically.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), RunError> {
        let path = self.file(name);
        let text = serde_json::to_vec_pretty(value).map_err(io::Error::other);
        Ok(text.and_then(|text| files::write_atomically(&path, &text)).map_err(files::failed("write", &path))?)
    }
}

/// Numbers of the runs below `parent`, ascending.
fn numbers(parent: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(parent)? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_numbered_and_the_newest_unfinished_is_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let parent = folder.path().join("sim").join("vgae_student");
        let finish = |run: RunDirectory, done: bool| {
            run.write_json("config.json", &1).unwrap();
            if done {
                run.write_json("summary.json", &1).unwrap();
            }
        };
        assert!(matches!(RunDirectory::resume(&parent), Err(RunError::NothingToResume { .. })));
        finish(RunDirectory::create(&parent).unwrap(), false);
        let held = RunDirectory::resume(&parent).unwrap();
        assert_eq!(held.path(), parent.join("1"));
        assert!(matches!(RunDirectory::resume(&parent), Err(RunError::InUse { .. })));
        drop(held);
        assert!(matches!(
            RunDirectory::at(&parent.join("1"), false),
            Err(RunError::Taken { found: "config.json", .. })
        ));
        assert!(RunDirectory::at(&parent.join("1"), true).is_ok());
        assert!(RunDirectory::at(&parent.join("new"), false).is_ok());
        let second = RunDirectory::create(&parent).unwrap();
        assert_eq!(second.path(), parent.join("2"));
        finish(second, true);
        assert_eq!(RunDirectory::resume(&parent).unwrap().path(), parent.join("1"));
    }
}
