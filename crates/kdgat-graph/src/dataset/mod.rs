//! Datasets of graphs other than CAN windows: their schema, and readers of the formats that they come in.

mod csv_dataset;
mod elements;
mod error;
mod explain;
mod feature_rows;
mod folds;
mod format;
mod graph_hash;
mod graph_set;
mod joined;
mod missing;
mod molecules;
mod nearest_points;
mod node_places;
mod node_target_table;
#[cfg(feature = "parquet")]
mod parquet_table;
mod path_table;
mod radius;
mod rooted;
pub mod schema;
mod settings;
mod source_files;
mod space_set;
mod summary;
mod swc;
mod swc_tree;
mod table;
mod table_file;
mod targets;
mod tu;
mod xyz;
mod xyz_frame;

use std::path::Path;

pub use csv_dataset::{Converted, CsvDataset, Table};
pub use error::DatasetError;
pub use explain::explain;
pub use folds::{FoldOptions, GraphSplit};
pub use graph_set::{GraphSet, LeftOut, MOST_NODES};
pub use joined::Source;
pub use missing::is_missing;
pub use schema::{Feature, Kinds, Level, Schema, SpaceSchema, Target, Task};
pub use space_set::SpaceSet;
pub use summary::{Neighbours, SpaceSummary, Summary, TargetValues};

pub(crate) use graph_hash::graph_hashes;
pub(crate) use graph_set::MOST_NARROW_EDGES;

use error::Origin;
use format::{Format, Found};
use source_files::SourceFiles;

use crate::PathKind;

/// File with the outputs of a teacher from elsewhere, in a dataset's folder. The dataset does not depend on it.
pub const TARGETS: &str = "targets.safetensors";

/// True if `path` is a dataset of graphs in a known format: a zip archive, an XYZ file, an npz file of molecules, or a folder with the files of
/// one, also if some are missing.
pub fn is_dataset(path: &Path) -> bool {
    let is_archive = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("zip"));
    let is_file = (is_archive || xyz::is_xyz(&path.to_string_lossy())) && path.is_file();
    is_file
        || molecules::is_molecules(path)
        || (path.is_dir()
            && SourceFiles::open(path).is_ok_and(|files| format::found(&files).map_or(true, |found| !found.is_empty())))
}

/// Reads a dataset of graphs. Graphs without a target are left out.
///
/// # Errors
/// An unknown format, several datasets, a missing file, a line that does not fit, or a graph too large for a store; each names the file
/// and the line, or the graph.
pub fn read(path: &Path) -> Result<GraphSet, DatasetError> {
    let files = SourceFiles::open(path)?;
    let set = match &format::found(&files)?[..] {
        [] => return Err(unknown(path, &files)),
        [Found { format, .. }] => {
            files.expect_distinct()?;
            if !matches!(format, Format::Table) {
                expect_no_paths(&files)?;
            }
            match format {
                Format::Tu(name) => {
                    expect_no_settings(&files)?;
                    tu::read(&files, name)?
                }
                Format::Table => table::read(&files)?,
                Format::Xyz => xyz::read(&files)?,
                Format::Molecules => molecules::read(&files)?,
                Format::Swc => swc::read(&files)?,
            }
        }
        several => {
            let texts = several.iter().map(|found| found.text.as_str()).collect::<Vec<_>>().join(", ");
            let detail = format!(
                "it holds {} datasets: {texts}; move all but one elsewhere, or put each into a folder of its own",
                several.len()
            );
            return Err(DatasetError::Unusable { root: path.to_owned(), detail });
        }
    };
    graph_set::expect_few_edges(path, &set)?;
    Ok(graph_set::without_unlabelled(set))
}

fn unknown(path: &Path, files: &SourceFiles) -> DatasetError {
    let detail = format!(
        "no dataset of graphs: it has neither graphs.csv (tables), nor NAME_graph_indicator.txt (TUDataset), nor *.xyz (extended XYZ), nor *.npz of \
         molecules (rMD17), nor folders of *.swc (trees), nor DGL's meta.yaml; its files: {}",
        files.names().join(", ")
    );
    let detail = explain(path).unwrap_or(detail);
    DatasetError::Unusable { root: path.to_owned(), detail }
}

/// Refuses tables of paths that would be ignored.
fn expect_no_paths(files: &SourceFiles) -> Result<(), DatasetError> {
    let is_of_paths = |name: &&String| PathKind::ALL.into_iter().any(|kind| table_file::is_table(name, kind.name()));
    match files.names().iter().find(is_of_paths) {
        None => Ok(()),
        Some(file) => {
            let expected = "nodes.csv and graphs.csv beside it: only tables have listed paths; remove it, or write the graphs as tables";
            Err(Origin { file, place: error::Place::File }.error("paths beside files that are no tables", expected))
        }
    }
}

/// Refuses settings that would be ignored.
fn expect_no_settings(files: &SourceFiles) -> Result<(), DatasetError> {
    match files.names().iter().any(|name| name == settings::SETTINGS) {
        false => Ok(()),
        true => {
            let origin = Origin { file: settings::SETTINGS, place: error::Place::File };
            Err(origin
                .error("settings beside a TUDataset, which has none", "settings of tables or XYZ files: remove them"))
        }
    }
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
