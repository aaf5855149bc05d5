//! The formats of datasets, and what the files of a folder or archive belong to.

use super::csv_dataset::{CsvDataset, META};
use super::error::DatasetError;
use super::settings::SETTINGS;
use super::source_files::SourceFiles;
use super::{molecules, swc, table, table_file, tu, xyz};
use crate::PathKind;

/// A dataset that was found.
pub(super) struct Found {
    pub format: Format,
    /// Its format and files, for the user.
    pub text: String,
}

/// A format of datasets.
pub(super) enum Format {
    /// The text format of the TUDataset collection, with the name in its files.
    Tu(String),
    /// Tables as CSV or Parquet, also those that DGL's `meta.yaml` describes.
    Table,
    /// Frames of atoms.
    Xyz,
    /// Arrays of conformations of molecules.
    Molecules,
    /// Trees of points in space.
    Swc,
}

/// True if files of these names belong to a dataset.
pub(super) fn is_any(names: &[String]) -> bool {
    let has = |file: &str| names.iter().any(|name| name == file);
    has_tables(names)
        || has(SETTINGS)
        || has(META)
        || names.iter().any(|name| xyz::is_xyz(name) || swc::is_swc(name))
        || !tu::names(names).is_empty()
}

/// True if a file of this name belongs to a dataset, so that an archive has it once.
pub(super) fn is_read(name: &str) -> bool {
    let is_table = |table: &str| table_file::is_table(name, table);
    let of_paths = PathKind::ALL.map(PathKind::name);
    [table::GRAPHS, table::NODES, table::EDGES, table::ROOTS].into_iter().chain(of_paths).any(is_table)
        || name == SETTINGS
        || name == META
        || xyz::is_xyz(name)
        || swc::is_swc(name)
        || tu::is_file(name)
}

/// True if the table of graphs is there, or those of nodes and edges, which need it.
fn has_tables(names: &[String]) -> bool {
    let has = |table: &str| names.iter().any(|name| table_file::is_table(name, table));
    has(table::GRAPHS) || (has(table::NODES) && has(table::EDGES))
}

/// The datasets among files.
///
/// # Errors
/// A `meta.yaml` that cannot be read.
pub(super) fn found(files: &SourceFiles) -> Result<Vec<Found>, DatasetError> {
    let names = files.names();
    let mut found = Vec::new();
    let mut add = |format: Format, text: String| found.push(Found { format, text });
    match files.read(META)?.map(|bytes| CsvDataset::parse(&bytes)).transpose()?.flatten() {
        Some(dataset) if dataset.graphs.is_some() || files.is_archive() => {
            add(Format::Table, format!("a CSVDataset of DGL ({META})"));
        }
        // One graph: its nodes, not the graph, are classified.
        Some(_) => {}
        None if has_tables(names) => add(Format::Table, "tables (graphs, nodes and edges)".to_owned()),
        None => {}
    }
    if let Some(file) = names.iter().find(|name| xyz::is_xyz(name)) {
        add(Format::Xyz, format!("extended XYZ ({file})"));
    }
    let is_molecules = |name: &&String| files.path_of(name).is_some_and(|path| molecules::is_molecules(&path));
    if let Some(file) = names.iter().find(is_molecules) {
        add(Format::Molecules, format!("npz of molecules ({file})"));
    }
    if let Some(file) = names.iter().find(|name| swc::is_swc(name)) {
        add(Format::Swc, format!("trees in SWC files ({file})"));
    }
    tu::names(names)
        .into_iter()
        .for_each(|name| add(Format::Tu(name.to_owned()), format!("a TUDataset ({name}_*.txt)")));
    if found.is_empty() && names.iter().any(|name| name == SETTINGS) {
        found.push(Found { format: Format::Table, text: format!("tables ({SETTINGS})") });
    }
    Ok(found)
}
