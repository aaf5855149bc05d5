//! Explanations of paths that are no dataset of graphs.

use std::path::{Path, PathBuf};

use super::csv_dataset::META;
use super::settings::SETTINGS;
use super::source_files::SourceFiles;
use super::{format, table, table_file, tu};

/// Levels of folders below a path that are searched for datasets.
const DEPTH: usize = 3;
/// Most files and folders that are looked at.
const MOST_ENTRIES: usize = 1000;
/// Endings of files in which other libraries store graphs.
const LIBRARY_ENDINGS: [&str; 5] = ["pt", "pth", "pkl", "pickle", "dgl"];
/// Endings of archives that are not read.
const ARCHIVE_ENDINGS: [&str; 5] = ["tar", "tgz", "7z", "rar", "tar.gz"];
/// Advice for graphs in a format that is not read.
const WRITE_TABLES: &str = "write tables (graphs.csv, nodes.csv, edges.csv)";

/// Explains why a path is no dataset of graphs, and what to do; `None` if nothing is known about it.
pub fn explain(path: &Path) -> Option<String> {
    if path.is_file() {
        return of_file(path);
    }
    let raw_has = |name: &str| path.join("raw").join(name).is_file();
    if raw_has("graph-label.csv.gz") || raw_has("graph-label.npz") {
        return Some(format!(
            "folders of the Open Graph Benchmark whose graphs have labels are not read; {WRITE_TABLES}"
        ));
    }
    let mut below = Below { found: Vec::new(), entries: 0 };
    below.search(path, DEPTH);
    match &below.found[..] {
        [] => of_library(path).or_else(|| folders(path).iter().find_map(|folder| in_folder(folder))),
        [file, ..] if has_ending(file, &["npz"]) => {
            Some(format!("one large graph is named by its file: --data {}", file.display()))
        }
        [only] => Some(format!("it holds a dataset of graphs; name it: --data {}", only.display())),
        [first, ..] => {
            Some(format!("it holds {} datasets of graphs; name one: --data {}", below.found.len(), first.display()))
        }
    }
}

/// A file that is given in place of its dataset.
fn of_file(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    let is_table = |table: &str| table_file::is_table(&name, table);
    let is_part = tu::is_file(&name)
        || [table::GRAPHS, table::NODES, table::EDGES].into_iter().any(is_table)
        || [SETTINGS, META].contains(&&*name);
    if is_part {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return Some(format!("it is one file of a dataset of graphs; name its folder: --data {}", folder.display()));
    }
    if has_ending(path, &LIBRARY_ENDINGS) {
        return Some(format!("files of PyTorch and other libraries are not read; {WRITE_TABLES}"));
    }
    let is_archive = ARCHIVE_ENDINGS.iter().any(|ending| name.to_ascii_lowercase().ends_with(&format!(".{ending}")));
    is_archive.then(|| "archives other than zip are not read; unpack it and name the folder".to_owned())
}

/// A folder of a folder, as [`of_library`].
fn in_folder(folder: &Path) -> Option<String> {
    of_library(folder).map(|text| format!("{}: {text}", folder.display()))
}

/// The folder of a dataset of PyTorch Geometric without files that are read.
fn of_library(folder: &Path) -> Option<String> {
    let processed = folder.join("processed");
    let is_processed = entries(&processed).iter().any(|file| has_ending(file, &LIBRARY_ENDINGS));
    let raw = entries(&folder.join("raw"));
    let in_raw = match raw.iter().find_map(|file| file.file_name()) {
        Some(file) => format!("raw/ has no file of a known format (found {})", file.display()),
        None => "no known files are in raw/".to_owned(),
    };
    match is_processed {
        true => Some(format!("processed files of PyTorch Geometric (*.pt) are not read, and {in_raw}; {WRITE_TABLES}")),
        false if !raw.is_empty() => Some(format!("{in_raw}; {WRITE_TABLES}")),
        false => None,
    }
}

/// Datasets below a folder.
struct Below {
    found: Vec<PathBuf>,
    /// Files and folders that were looked at.
    entries: usize,
}

impl Below {
    fn search(&mut self, folder: &Path, depth: usize) {
        for entry in entries(folder) {
            self.entries += 1;
            if self.entries > MOST_ENTRIES {
                return;
            }
            let is_found = match has_ending(&entry, &["npz", "zip"]) && entry.is_file() {
                true => has_ending(&entry, &["npz"]) || is_archive(&entry),
                false => super::is_dataset(&entry) || is_one_graph(&entry),
            };
            if is_found {
                self.found.push(entry);
            } else if depth > 1 && entry.is_dir() {
                self.search(&entry, depth - 1);
            }
        }
    }
}

/// True for an archive of a dataset; others may hold logs.
fn is_archive(path: &Path) -> bool {
    let found = |files: SourceFiles| format::found(&files).is_ok_and(|found| !found.is_empty());
    SourceFiles::open(path).is_ok_and(found)
}

/// True for a folder of the Open Graph Benchmark with one graph.
fn is_one_graph(folder: &Path) -> bool {
    ["edge.csv.gz", "data.npz"].iter().any(|name| folder.join("raw").join(name).is_file())
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    ending.is_some_and(|ending| endings.contains(&ending.as_str()))
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|entry| entry.is_dir()).collect()
}

/// Files and folders of a folder, without hidden ones; none if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(listed) = std::fs::read_dir(folder) else { return Vec::new() };
    let is_hidden = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.') || name == "__MACOSX")
    };
    let mut entries: Vec<PathBuf> =
        listed.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| !is_hidden(path)).collect();
    entries.sort_unstable();
    entries
}
