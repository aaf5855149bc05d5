//! Known datasets: where their logs are, the role of each log, and the terms of use.
//!
//! An entry is a file in `presets/data/`. For a dataset without `train_*` and `test_*` folders the entry lists parts: glob patterns
//! over the paths of its logs. `--data NAME` looks for the dataset in the folder set by the environment variable `KDGAT_DATA`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::dataset::{Dataset, Role, SourceFile, endings, is_log, list};
use super::error::CanError;
use super::formats::Format;

/// Entries built into the binary: name and TOML text. A test compares the list with `presets/data/`.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("car-hacking", include_str!("../../../presets/data/car-hacking.toml")),
    ("challenge-2020", include_str!("../../../presets/data/challenge-2020.toml")),
    ("hcrl_ch", include_str!("../../../presets/data/hcrl_ch.toml")),
    ("hcrl_sa", include_str!("../../../presets/data/hcrl_sa.toml")),
    ("road", include_str!("../../../presets/data/road.toml")),
    ("set_01", include_str!("../../../presets/data/set_01.toml")),
    ("set_02", include_str!("../../../presets/data/set_02.toml")),
    ("set_03", include_str!("../../../presets/data/set_03.toml")),
    ("set_04", include_str!("../../../presets/data/set_04.toml")),
    ("survival-analysis", include_str!("../../../presets/data/survival-analysis.toml")),
];

/// Environment variable that names the folder with the datasets.
pub const DATA_FOLDER_VARIABLE: &str = "KDGAT_DATA";
/// Name of the simulated dataset, which is used when `--data` is not given.
pub const SIMULATED: &str = "sim";
/// Levels of folders in a dataset that are searched for logs.
const DEPTH: usize = 4;

/// A known dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Name for `--data`.
    #[serde(skip_deserializing)]
    pub name: String,
    /// Title in one line.
    pub title: String,
    /// Other names that its folder under `KDGAT_DATA` may have.
    pub folders: Vec<String>,
    /// Format in which its logs are published. Copies in other formats are read, too: the format is detected from the lines.
    pub format: Format,
    /// Licence of the data.
    pub licence: String,
    /// Publication to cite.
    pub citation: String,
    /// Address from which it can be downloaded.
    pub url: String,
    /// Its split, if it is not published in folders `train_*` and `test_*`.
    #[serde(default)]
    pub parts: Vec<Part>,
    /// Patterns, as in [`Part::files`], of logs that belong to no part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// Logs of one part of the split, such as a test set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Name in the form of a dataset's folder: `train_01_attack_free`, `test_01_known_attack`.
    pub name: String,
    /// Patterns of paths relative to the dataset's folder: `*` matches anything including `/`; case is ignored.
    pub files: Vec<String>,
}

/// All known datasets, by name.
pub fn entries() -> &'static [Entry] {
    static ENTRIES: OnceLock<Vec<Entry>> = OnceLock::new();
    ENTRIES.get_or_init(|| {
        let parse = |(name, text): &(&str, &str)| {
            // A test parses every built-in entry, so that none is dropped here.
            toml::from_str(text).ok().map(|entry: Entry| Entry { name: name.to_string(), ..entry })
        };
        BUILT_IN.iter().filter_map(parse).collect()
    })
}

/// True if `folder` exists and is no dataset itself: it may contain datasets, which `--data` finds by name.
pub fn holds_no_dataset(folder: &Path) -> bool {
    folder.is_dir() && matches!(open(folder, None), Err(CanError::NoDatasetFolders { .. }))
}

/// The folder that `KDGAT_DATA` names, if it is set.
pub fn data_folder() -> Option<PathBuf> {
    std::env::var_os(DATA_FOLDER_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

impl Entry {
    /// The dataset's folder under `data_folder`, if it exists.
    pub fn find(&self, data_folder: &Path) -> Option<PathBuf> {
        let names = std::iter::once(&self.name).chain(&self.folders);
        names.map(|name| data_folder.join(name)).find(|folder| folder.is_dir())
    }

    /// Lists the dataset's logs, by part.
    fn open(&self, root: &Path) -> Result<Dataset, CanError> {
        let mut files = Vec::new();
        self.collect(root, root, DEPTH, &mut files)?;
        if files.is_empty() {
            let folders = self.parts.iter().flat_map(|part| part.files.clone()).collect::<Vec<_>>().join(", ");
            return Err(CanError::NoLogFiles { root: root.to_path_buf(), folders, extensions: endings() });
        }
        files.sort_by(|one: &SourceFile, other| (&one.folder, &one.path).cmp(&(&other.folder, &other.path)));
        // `passed_over` stays empty: the patterns decide which files belong to the dataset.
        Ok(Dataset {
            name: self.name.clone(),
            root: root.to_path_buf(),
            files,
            passed_over: Vec::new(),
            published_format: None,
        })
    }

    fn collect(&self, root: &Path, folder: &Path, depth: usize, files: &mut Vec<SourceFile>) -> Result<(), CanError> {
        for path in list(folder)? {
            if path.is_dir() && depth > 1 {
                self.collect(root, &path, depth - 1, files)?;
            } else if is_log(&path)?
                && let Some((folder, role)) = self.part_of(path.strip_prefix(root).unwrap_or(&path))
            {
                files.push(SourceFile { path, folder, role, synthetic: None });
            }
        }
        Ok(())
    }

    fn part_of(&self, path: &Path) -> Option<(String, Role)> {
        let path = path.to_string_lossy().replace('\\', "/").to_lowercase();
        let fits = |patterns: &[String]| {
            patterns.iter().any(|pattern| matches(pattern.to_lowercase().as_bytes(), path.as_bytes()))
        };
        let part = self.parts.iter().find(|part| !fits(&self.left_out) && fits(&part.files))?;
        Some((part.name.clone(), Role::of_folder(&part.name)?))
    }
}

/// True if `text` matches `pattern`, in which `*` stands for any bytes.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|skip| matches(rest, &text[skip..])),
        [first, rest @ ..] => text.first() == Some(first) && matches(rest, &text[1..]),
    }
}

/// Opens the dataset that `--data` names: a folder, or a dataset's name in `data_folder` (the folder set by `KDGAT_DATA`).
///
/// # Errors
/// The same as [`Dataset::open`]; an unknown name is reported with the places that were searched.
pub fn open(data: &Path, data_folder: Option<&Path>) -> Result<Dataset, CanError> {
    let is_name = data.components().count() == 1 && !data.exists();
    let entry_called = |name: &OsStr| {
        entries().iter().find(|entry| {
            OsStr::new(&entry.name) == name || entry.folders.iter().any(|folder| OsStr::new(folder) == name)
        })
    };
    let opened = |folder: &Path, entry: Option<&Entry>| {
        let dataset = match (Dataset::open(folder), entry.filter(|entry| !entry.parts.is_empty())) {
            (Err(CanError::NoDatasetFolders { .. }), Some(entry)) => entry.open(folder),
            (opened, _) => opened,
        };
        Ok(Dataset { published_format: entry.map(|entry| entry.format), ..dataset? })
    };
    if !is_name {
        return opened(data, data.file_name().and_then(entry_called));
    }
    let name = data.as_os_str();
    let entry = entry_called(name);
    let in_folder = data_folder.and_then(|folder| match entry {
        Some(entry) => entry.find(folder),
        None => Some(folder.join(name)).filter(|folder| folder.is_dir()),
    });
    match in_folder {
        Some(folder) => opened(&folder, entry),
        None => Err(unknown(data, data_folder, entry)),
    }
}

fn unknown(data: &Path, data_folder: Option<&Path>, entry: Option<&Entry>) -> CanError {
    let name = data.display().to_string();
    let looked = match data_folder {
        Some(folder) => format!("no such folder here or in {DATA_FOLDER_VARIABLE} ({})", folder.display()),
        None => format!("no such folder here, and {DATA_FOLDER_VARIABLE} is not set"),
    };
    let advice = match entry {
        Some(entry) => format!("download it from {}", entry.url),
        None => {
            let likeness = |entry: &&Entry| (1000.0 * strsim::jaro_winkler(&name, &entry.name)) as u32;
            let nearest = entries().iter().filter(|entry| likeness(entry) > 800).max_by_key(likeness);
            nearest.map_or("`kdgat data list` shows the known ones".to_string(), |entry| {
                format!("did you mean {}? `kdgat data list` shows the known ones", entry.name)
            })
        }
    };
    CanError::UnknownDataset { name, looked, advice }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn all_entries_are_read_and_complete() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../presets/data");
        let mut files: Vec<String> =
            fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        let mut names: Vec<String> = BUILT_IN.iter().map(|(name, _)| format!("{name}.toml")).collect();
        names.sort();
        assert_eq!(names, files);
        for (name, text) in BUILT_IN {
            let entry: Entry = toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!entry.folders.is_empty() && !entry.licence.is_empty() && !entry.citation.is_empty(), "{name}");
            for part in &entry.parts {
                assert!(Role::of_folder(&part.name).is_some(), "{name}: {}", part.name);
            }
        }
        assert_eq!(entries().len(), BUILT_IN.len());
    }

    #[test]
    fn patterns_fit() {
        assert!(matches(b"*b*d", b"abcd") && matches(b"*", b"") && matches(b"a*", b"a"));
        assert!(!matches(b"*b", b"abc") && !matches(b"", b"a") && !matches(b"b*", b"ab"));
    }

    fn put(root: &Path, path: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    #[test]
    fn a_published_layout_gets_its_split() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("survival-analysis");
        for path in [
            "Sonata/Flooding_dataset_Sonata.txt",
            "Sonata/FreeDrivingData_Sonata.txt",
            "Soul/Fuzzy_dataset_KIA.txt",
            "Soul/Malfunction_dataset_KIA.txt",
            "Spark/Flooding_dataset_Spark.txt",
            "Spark/FreeDrivingData_SPARK.txt",
            "readme.txt",
        ] {
            put(&root, path);
        }
        let parts = |dataset: &Dataset| {
            let part = |file: &SourceFile| format!("{}: {}", file.folder, file.path.file_name().unwrap().display());
            dataset.files.iter().map(part).collect::<Vec<_>>()
        };
        let expected = [
            "test_01_known_vehicle_known_attack: Flooding_dataset_Sonata.txt",
            "test_01_known_vehicle_known_attack: Fuzzy_dataset_KIA.txt",
            "test_02_unknown_vehicle_known_attack: Flooding_dataset_Spark.txt",
            "test_03_known_vehicle_unknown_attack: Malfunction_dataset_KIA.txt",
            "train_01_attack_free: FreeDrivingData_Sonata.txt",
        ];
        let mut by_name = parts(&open(Path::new("survival-analysis"), Some(folder.path())).unwrap());
        by_name.sort();
        assert_eq!(by_name, expected);
        let mut by_path = parts(&open(&root, None).unwrap());
        by_path.sort();
        assert_eq!(by_path, expected);
    }

    /// A masquerade capture of ROAD is its injected capture with frames removed: one in training and the other in a test would
    /// be a leak. Accelerator captures have no interval of attack.
    #[test]
    fn roads_tests_hold_no_training_capture_and_none_without_labels() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("road");
        for path in [
            "ambient/ambient_dyno_drive_basic_long.log",
            "attacks/accelerator_attack_drive_1.log",
            "attacks/correlated_signal_attack_1.log",
            "attacks/correlated_signal_attack_1_masquerade.log",
            "attacks/correlated_signal_attack_2.log",
            "attacks/correlated_signal_attack_2_masquerade.log",
            "attacks/max_engine_coolant_temp_attack_masquerade.log",
        ] {
            put(&root, path);
        }
        let dataset = open(Path::new("road"), Some(folder.path())).unwrap();
        let part =
            |file: &SourceFile| format!("{}: {}", &file.folder[..8], file.path.file_stem().unwrap().to_string_lossy());
        let mut parts: Vec<String> = dataset.files.iter().map(part).collect();
        parts.sort();
        let expected = [
            "test_01_: correlated_signal_attack_2_masquerade",
            "test_01_: max_engine_coolant_temp_attack_masquerade",
            "test_02_: correlated_signal_attack_2",
            "train_01: ambient_dyno_drive_basic_long",
            "train_02: correlated_signal_attack_1",
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn names_are_looked_for_and_unknown_ones_get_advice() {
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), "set_04/train_01_attack_free/a.csv");
        put(folder.path(), "mine/test_01/a.csv");
        for name in ["set_04", "mine"] {
            assert_eq!(open(Path::new(name), Some(folder.path())).unwrap().name, name);
        }
        let error = |name: &str, folder: Option<&Path>| open(Path::new(name), folder).unwrap_err().to_string();
        assert!(error("set_01", Some(folder.path())).contains("10.11583/DTU.24805533"));
        assert!(error("hcrl_as", None).contains("did you mean hcrl_sa"), "{}", error("hcrl_as", None));
        assert!(error("nothing", None).contains("kdgat data list"));
        assert!(matches!(open(Path::new("no/such/folder"), None), Err(CanError::MissingFolder { .. })));
    }
}
