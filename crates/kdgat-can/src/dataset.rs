//! A dataset: a folder of `train_01_attack_free/`, `train_02_with_attacks/` and `test_*/` folders of logs.
//!
//! This is the layout of the can-train-and-test collection (Lampe & Meng 2024). Folders with other names and hidden files
//! are ignored. Other entries beside the logs are listed in [`PassedOver`]: one may have been meant as a log.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::CanError;
use super::formats::{Format, METADATA_NAME, ReadOptions};
use super::synthetic::SyntheticOrigin;

/// Extensions of uncompressed logs.
pub const LOG_EXTENSIONS: [&str; 5] = ["csv", "log", "txt", "asc", "parquet"];
/// Extensions that follow in the name of a compressed log.
const COMPRESSION_EXTENSIONS: [&str; 5] = ["gz", "zst", "zstd", "xz", "gzip"];

/// Endings of logs in formats that python-can converts.
const CONVERTIBLE: [&str; 4] = [".blf", ".trc", ".mf4", ".db"];

/// Role of a dataset's folder in training and evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Training traffic without any attack.
    TrainAttackFree,
    /// Training traffic, attacks labelled.
    TrainWithAttacks,
    /// Test traffic, never used for training.
    Test,
}

impl Role {
    /// The role of a folder called `name`; `None` if such a folder does not belong to a dataset.
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
    /// Path of the log.
    pub path: PathBuf,
    /// Name of the folder it is in, such as `test_01_known_vehicle_known_attack`.
    pub folder: String,
    /// Role of that folder.
    pub role: Role,
    /// Origin of a log of [synthetic attacks](super::synthetic); `None` for a recorded log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<Box<SyntheticOrigin>>,
}

impl SourceFile {
    /// The format to read this log in, if one is set for the dataset's logs: it does not concern synthetic logs.
    pub fn format(&self, set: Option<Format>) -> Option<Format> {
        if self.synthetic.is_some() { Some(Format::CanTrainAndTest) } else { set }
    }

    /// The settings to read this log with, if these are set for the dataset's logs: they do not concern synthetic logs, and only logs of
    /// an attack-free folder may lack labels.
    pub fn read_options(&self, set: &ReadOptions) -> ReadOptions {
        match self.synthetic {
            Some(_) => ReadOptions::default(),
            None => ReadOptions { needs_labels: self.role != Role::TrainAttackFree, ..set.clone() },
        }
    }
}

/// A dataset's logs; their contents have not been read yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// Name of the dataset's folder.
    pub name: String,
    /// The dataset's folder.
    pub root: PathBuf,
    /// The logs, sorted by folder, then by name.
    pub files: Vec<SourceFile>,
    /// Folders without logs, or with entries that are not logs.
    pub passed_over: Vec<PassedOver>,
    /// Format in which a known dataset is published. The logs are read in the format detected from their lines.
    #[serde(skip)]
    pub published_format: Option<Format>,
}

/// A dataset's folder with entries that were not taken for logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// Name of the folder.
    pub folder: String,
    /// Role of the folder.
    pub role: Role,
    /// Number of logs in the folder.
    pub logs: usize,
    /// Names of its other entries; folders end in a slash.
    pub others: Vec<String>,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (folder, found) = (&self.folder, summarise(&self.others));
        match self.logs {
            0 => write!(formatter, "{folder} holds no log (found {found})")?,
            _ => write!(formatter, "{folder} holds files that are not taken for logs: {found}")?,
        }
        let endings = endings();
        write!(formatter, "; logs must be in the folder itself and end in {endings}, or these with .gz, .zst or .xz")?;
        let is_convertible = |name: &String| CONVERTIBLE.iter().any(|ending| name.to_lowercase().ends_with(ending));
        match self.others.iter().find(|name| is_convertible(name)) {
            Some(name) => write!(formatter, "; `can_logconvert` of python-can converts {name}"),
            None => Ok(()),
        }
    }
}

impl Dataset {
    /// Lists the logs of the dataset in folder `root`.
    ///
    /// # Errors
    /// When `root` is missing, is a file, cannot be listed, holds no `train*` or `test*` folder, or no log in these folders; when
    /// an entry named like a log is not a regular file.
    pub fn open(root: &Path) -> Result<Dataset, CanError> {
        let mut files = Vec::new();
        let mut passed_over = Vec::new();
        let mut parts = Vec::new();
        let mut others = Vec::new();
        for entry in list(root)? {
            let folder = file_name(&entry);
            match Role::of_folder(&folder).filter(|_| entry.is_dir()) {
                Some(role) => {
                    let (logs, others) = logs_and_others(&entry)?;
                    if logs.is_empty() || !others.is_empty() {
                        passed_over.push(PassedOver { folder: folder.clone(), role, logs: logs.len(), others });
                    }
                    let log = |path| SourceFile { path, folder: folder.clone(), role, synthetic: None };
                    files.extend(logs.into_iter().map(log));
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
                extensions: endings(),
            });
        }
        Ok(Dataset { name: dataset_name(root), root: root.to_path_buf(), files, passed_over, published_format: None })
    }

    /// Logs a warning for each folder in `passed_over`.
    pub fn warn_of_passed_over(&self) {
        self.passed_over.iter().for_each(|passed| tracing::warn!("{}: {passed}", self.root.display()));
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

/// The logs of a folder, and the names of its other entries.
fn logs_and_others(folder: &Path) -> Result<(Vec<PathBuf>, Vec<String>), CanError> {
    let (mut logs, mut others) = (Vec::new(), Vec::new());
    for path in list(folder)? {
        if is_log(&path)? {
            logs.push(path);
        } else if path.is_dir() {
            others.push(file_name(&path) + "/");
        } else if path.file_name() != Some(OsStr::new(METADATA_NAME)) {
            others.push(file_name(&path));
        }
    }
    Ok((logs, others))
}

/// True if `path` is named like a log and is not a folder.
///
/// # Errors
/// When it is a pipe, a device or a socket: reading a pipe could block forever, and it cannot be read twice.
pub(super) fn is_log(path: &Path) -> Result<bool, CanError> {
    if !is_named_like_log(path) {
        return Ok(false);
    }
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(false),
        Ok(found) if !found.is_file() => Err(CanError::NotAFile { path: path.to_path_buf() }),
        // An entry that cannot be examined is reported when it is read.
        _ => Ok(true),
    }
}

fn is_named_like_log(path: &Path) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    let mut parts = name.rsplit('.');
    let mut last = parts.next().unwrap_or_default();
    if COMPRESSION_EXTENSIONS.contains(&last) {
        last = parts.next().unwrap_or_default();
    }
    // A name without a dot has no extension.
    parts.next().is_some() && LOG_EXTENSIONS.contains(&last)
}

/// A log's name without the endings of its format and compression.
pub(super) fn log_stem(path: &Path) -> String {
    let name = file_name(path);
    let without = |name: &str, endings: &[&str]| {
        let ending = name.rsplit_once('.').filter(|(_, last)| endings.contains(&last.to_ascii_lowercase().as_str()));
        ending.map(|(stem, _)| stem.to_owned())
    };
    let log = without(&name, &COMPRESSION_EXTENSIONS).unwrap_or_else(|| name.clone());
    without(&log, &LOG_EXTENSIONS).filter(|stem| !stem.is_empty()).unwrap_or(name)
}

/// Last component of a path.
pub(super) fn file_name(path: &Path) -> String {
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

/// The extensions of logs, as a list for messages.
pub(super) fn endings() -> String {
    LOG_EXTENSIONS.map(|extension| format!(".{extension}")).join(", ")
}

/// One sentence for each folder with logs that are too short for a window. Each item of `logs` is a log's folder, its name and
/// true if the log is too short; `window` is in frames.
pub fn too_short<'a>(logs: impl Iterator<Item = (&'a str, &'a str, bool)>, window: usize) -> Vec<String> {
    let mut folders: BTreeMap<&str, (usize, Vec<String>)> = BTreeMap::new();
    for (folder, name, is_short) in logs {
        let (count, short) = folders.entry(folder).or_default();
        *count += 1;
        short.extend(is_short.then(|| name.to_owned()));
    }
    let sentence = |(folder, (count, short)): (&str, (usize, Vec<String>))| {
        let text = format!(
            "{folder}: {} of {count} logs are too short for a window, which needs {} frames ({}); lower --window or \
             use longer logs",
            short.len(),
            window + 1,
            summarise(&short)
        );
        (!short.is_empty()).then_some(text)
    };
    folders.into_iter().filter_map(sentence).collect()
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
    fn logs_of_other_programs_are_told_their_converter() {
        let passed = |name: &str| PassedOver {
            folder: "train_01".into(),
            role: Role::TrainWithAttacks,
            logs: 0,
            others: vec![name.into()],
        };
        assert!(passed("drive.BLF").to_string().ends_with("`can_logconvert` of python-can converts drive.BLF"));
        assert!(!passed("notes.md").to_string().contains("can_logconvert"));
    }

    #[test]
    fn the_stem_of_a_log_lacks_its_endings() {
        for (name, stem) in
            [("a.csv", "a"), ("a-4.CSV.GZ", "a-4"), ("a.b.log.zst", "a.b"), ("notes", "notes"), ("a.csv.csv", "a.csv")]
        {
            assert_eq!(log_stem(Path::new(name)), stem);
        }
    }

    #[test]
    fn logs_are_known_by_their_ending() {
        for name in ["a.csv", "a.CSV.GZ", "a.b.log.zst", "a.asc", "a.txt.xz"] {
            assert!(is_named_like_log(Path::new(name)), "{name} should be taken for a log");
        }
        for name in ["csv", "a.json", "README.md", "a.gz", "a.tar.gz", "gz"] {
            assert!(!is_named_like_log(Path::new(name)), "{name} should not be taken for a log");
        }
    }
}
