//! Datasets of graphs other than CAN windows: their schema, and readers of the formats that they come in.

mod error;
mod folds;
mod graph_hash;
mod graph_set;
mod node_target_table;
#[cfg(feature = "parquet")]
mod parquet_table;
mod periodic;
mod radius;
pub mod schema;
mod settings;
mod source_files;
mod summary;
mod table;
mod table_file;
mod targets;
mod tu;
mod xyz;
mod xyz_frame;

use std::path::Path;

pub use error::DatasetError;
pub use folds::{FoldOptions, GraphSplit};
pub use graph_set::{GraphSet, LeftOut, MOST_NODES};
pub use schema::{Feature, Level, Schema, Target, Task};
pub use summary::{Summary, TargetValues};

pub(crate) use graph_hash::graph_hashes;
use source_files::SourceFiles;

/// File with the outputs of a teacher from elsewhere, in a dataset's folder. The dataset does not depend on it.
pub const TARGETS: &str = "targets.safetensors";

/// True if `path` is a dataset of graphs in a known format: a zip archive, an XYZ file, or a folder with the files of one.
pub fn is_dataset(path: &Path) -> bool {
    let is_archive = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("zip"));
    let is_file = (is_archive || xyz::is_xyz(&path.to_string_lossy())) && path.is_file();
    is_file || (path.is_dir() && SourceFiles::open(path).is_ok_and(|files| format_of(&files).is_some()))
}

/// Reads a dataset of graphs.
///
/// # Errors
/// An unknown format, a missing file, a line that does not fit, or a graph too large for a store; each names the file and the line,
/// or the graph.
pub fn read(path: &Path) -> Result<GraphSet, DatasetError> {
    let files = SourceFiles::open(path)?;
    let set = match format_of(&files) {
        Some(Format::Tu) => tu::read(&files)?,
        Some(Format::Table) => table::read(&files)?,
        Some(Format::Xyz) => xyz::read(&files)?,
        None => {
            let detail = format!(
                "no dataset of graphs: it has neither {}.csv (tabular), nor NAME{} (TUDataset), nor *.xyz (extended XYZ); its files: {}",
                table::GRAPHS,
                tu::INDICATOR,
                files.names().join(", ")
            );
            return Err(DatasetError::Unusable { root: path.to_owned(), detail });
        }
    };
    graph_set::expect_few_edges(path, &set)?;
    Ok(set)
}

/// Digest of the names and contents of a dataset's files.
///
/// # Errors
/// A file that cannot be read.
pub fn source_digest(path: &Path) -> Result<String, DatasetError> {
    let files = SourceFiles::open(path)?;
    let mut hash = blake3::Hasher::new();
    for name in files.names().iter().filter(|name| *name != TARGETS) {
        let content = files.read_with(name, |reader| {
            let mut hash = blake3::Hasher::new();
            std::io::copy(reader, &mut hash).map_err(DatasetError::io(path)).map(|_| hash.finalize())
        })?;
        hash.update(&(name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update(content.unwrap_or_else(|| blake3::hash(&[])).as_bytes());
    }
    Ok(hash.finalize().to_hex().to_string())
}

/// A format of datasets.
enum Format {
    /// The text format of the TUDataset collection.
    Tu,
    /// Tables as CSV or Parquet.
    Table,
    /// Frames of atoms.
    Xyz,
}

fn format_of(files: &SourceFiles) -> Option<Format> {
    let names = files.names();
    if names.iter().any(|name| table_file::is_table(name, table::GRAPHS)) {
        return Some(Format::Table);
    }
    if names.iter().any(|name| xyz::is_xyz(name)) {
        return Some(Format::Xyz);
    }
    if names.iter().any(|name| name == settings::SETTINGS) {
        return Some(Format::Table);
    }
    names.iter().any(|name| name.ends_with(tu::INDICATOR)).then_some(Format::Tu)
}
