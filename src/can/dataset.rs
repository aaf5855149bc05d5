//! A dataset: a folder of `train_01_attack_free/`, `train_02_with_attacks/` and `test_*/` folders of logs.
//!
//! This is the layout of the can-train-and-test collection (Lampe & Meng 2024). Folders with other names,
//! hidden files, and files that do not end like a log are left alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::CanError;

/// How a log ends, when it is not compressed.
pub const LOG_EXTENSIONS: [&str; 5] = ["csv", "log", "txt", "asc", "parquet"];
/// How a compressed log ends.
const COMPRESSION_EXTENSIONS: [&str; 5] = ["gz", "zst", "zstd", "xz", "gzip"];

/// What a folder of a dataset is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Training traffic without any attack.
    TrainAttackFree,
    /// Training traffic, attacks labelled.
    TrainWithAttacks,
    /// Traffic that no training sees.
    Test,
}

impl Role {
    /// The role of a folder of that name, `None` for a folder that is no part of a dataset.
    pub fn of_folder(name: &str) -> Option<Role> {
        let name = name.to_ascii_lowercase();
        if name.starts_with("train") {
            let attack_free = name.contains("attack_free") || name.contains("attack-free");
            Some(if attack_free { Role::TrainAttackFree } else { Role::TrainWithAttacks })
        } else if name.starts_with("test") {
            Some(Role::Test)
        } else {
            None
        }
    }
}

/// One log of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Where it lies.
    pub path: PathBuf,
    /// Name of the folder it is in, such as `test_01_known_vehicle_known_attack`.
    pub folder: String,
    /// What that folder is for.
    pub role: Role,
}

/// A dataset's logs. Nothing of them has been read yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// Name of the dataset's folder.
    pub name: String,
    /// The dataset's folder.
    pub root: PathBuf,
    /// Its logs, sorted by folder, then by name.
    pub files: Vec<SourceFile>,
}

impl Dataset {
    /// Lists the logs of the dataset in folder `root`.
    ///
    /// # Errors
    /// When `root` is missing, is a file, cannot be listed, holds no `train*` or `test*` folder, or no log in them.
    pub fn open(root: &Path) -> Result<Dataset, CanError> {
        let mut files = Vec::new();
        let mut parts = Vec::new();
        let mut others = Vec::new();
        for entry in list(root)? {
            let folder = file_name(&entry);
            match Role::of_folder(&folder).filter(|_| entry.is_dir()) {
                Some(role) => {
                    let logs = list(&entry)?.into_iter().filter(|path| is_log(path));
                    files.extend(logs.map(|path| SourceFile { path, folder: folder.clone(), role }));
                    parts.push(folder);
                }
                None => others.push(folder),
            }
        }
        if parts.is_empty() {
            return Err(CanError::NoDatasetFolders { root: root.to_path_buf(), found: summarise(&others) });
        }
        if files.is_empty() {
            return Err(CanError::NoLogFiles {
                root: root.to_path_buf(),
                folders: summarise(&parts),
                extensions: LOG_EXTENSIONS.map(|extension| format!(".{extension}")).join(", "),
            });
        }
        Ok(Dataset { name: dataset_name(root), root: root.to_path_buf(), files })
    }

    /// The logs with that role, in order.
    pub fn files_of(&self, role: Role) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(move |file| file.role == role)
    }
}

/// Entries of a folder, sorted by name, without hidden ones.
pub(super) fn list(folder: &Path) -> Result<Vec<PathBuf>, CanError> {
    let path = folder.to_path_buf();
    let entries = fs::read_dir(folder).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => CanError::MissingFolder { path: path.clone() },
        io::ErrorKind::NotADirectory => CanError::NotAFolder { path: path.clone() },
        _ => CanError::UnreadableFolder { path: path.clone(), source },
    })?;
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| CanError::UnreadableFolder { path: path.clone(), source })?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

pub(super) fn is_log(path: &Path) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    let mut parts = name.rsplit('.');
    let mut last = parts.next().unwrap_or_default();
    if COMPRESSION_EXTENSIONS.contains(&last) {
        last = parts.next().unwrap_or_default();
    }
    // A name without a dot has one part, which is no extension.
    parts.next().is_some() && LOG_EXTENSIONS.contains(&last) && !path.is_dir()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The folder's own name, also for `.` or `data/..`.
fn dataset_name(root: &Path) -> String {
    let resolved = root.canonicalize().unwrap_or_else(|_| root.to_path_buf());
    match file_name(&resolved) {
        name if name.is_empty() => "dataset".to_owned(),
        name => name,
    }
}

fn summarise(names: &[String]) -> String {
    match names.len() {
        0 => "nothing".to_owned(),
        1..=5 => names.join(", "),
        more => format!("{} and {} more", names[..5].join(", "), more - 5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_roles() {
        assert_eq!(Role::of_folder("train_01_attack_free"), Some(Role::TrainAttackFree));
        assert_eq!(Role::of_folder("train_02_with_attacks"), Some(Role::TrainWithAttacks));
        assert_eq!(Role::of_folder("Test_03_known_vehicle_unknown_attack"), Some(Role::Test));
        assert_eq!(Role::of_folder("notes"), None);
    }

    #[test]
    fn logs_are_known_by_their_ending() {
        for name in ["a.csv", "a.CSV.GZ", "a.b.log.zst", "a.asc", "a.txt.xz"] {
            assert!(is_log(Path::new(name)), "{name} should be taken for a log");
        }
        for name in ["csv", "a.json", "README.md", "a.gz", "a.tar.gz", "gz"] {
            assert!(!is_log(Path::new(name)), "{name} should not be taken for a log");
        }
    }
}
