//! Sources of one large graph: `.npz` archives, tabular folders, raw folders of the Open Graph Benchmark, and stores.

mod csr_npz;
mod csv_gz;
mod csv_table;
mod ogb;
mod raw_graph;
mod table;
#[cfg(test)]
pub(crate) mod testing;

use std::fs::File;
use std::path::{Path, PathBuf};

use kdgat_graph::dataset::is_dataset;

use crate::NodesError;
use crate::node_graph::{NO_LABEL, NodeGraph};
use crate::prepare::prepare;
use crate::store;
use ogb::OgbStream;

pub use kdgat_node_store::provenance::{GraphOptions, SourceNotes};
pub(crate) use raw_graph::{EdgeList, MOST_CLASSES, MOST_NODES, RawFeatures, RawGraph, RowBlock};
#[cfg(test)]
pub(crate) use raw_graph::{HashedRows, SparseFeatures};

/// A format of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    CsrNpz,
    Table,
    Ogb,
    /// A store, which is opened as it is.
    Store,
}

/// True if `path` is a source of one large graph: a store, an `.npz` file, a folder whose `kdgat-graphs.toml` has
/// `task = "node-class"`, DGL's layout of one graph, or a folder of the Open Graph Benchmark for predicting properties of nodes.
pub fn is_node_dataset(path: &Path) -> bool {
    format_of(path).is_some()
}

/// Reads a graph.
///
/// # Errors
/// An unknown format, a missing file, array or column, or a value that does not fit; each names the file and the line or
/// array.
pub fn read(path: &Path, options: &GraphOptions) -> Result<(NodeGraph, SourceNotes), NodesError> {
    let raw = match known_format_of(path)? {
        Format::CsrNpz => csr_npz::read(path, options)?,
        Format::Table => table::read(path, options)?,
        Format::Ogb => ogb::read(path, options)?,
        Format::Store => return Ok(store::open_with_notes(path)?),
    };
    if options.half && matches!(raw.features.features, RawFeatures::Sparse(_)) {
        let text = "--half-features, but the features are sparse, which are stored in single precision: leave it out";
        return Err(NodesError::options(format!("{}: {text}", path.display())));
    }
    let (graph, notes) = prepare(raw, options);
    if graph.labels.iter().all(|&label| label == NO_LABEL) {
        let scope = if notes.nodes_outside_component > 0 { " of the largest component" } else { "" };
        return Err(NodesError::invalid(path, "", format!("no node{scope} has a label"), "a class for some nodes"));
    }
    Ok((graph, notes))
}

/// The names of a source's nodes, in the order of their numbers; `None` if the source only numbers them.
///
/// # Errors
/// A source that cannot be read.
pub fn node_names(path: &Path) -> Result<Option<Vec<String>>, NodesError> {
    match known_format_of(path)? {
        Format::Table => table::node_names(path).map(Some),
        Format::CsrNpz | Format::Ogb | Format::Store => Ok(None),
    }
}

/// Digest of the names and contents of the files that [`read`] reads: 64 hexadecimal digits of BLAKE3.
///
/// # Errors
/// An unknown format, or a file that is missing or cannot be read.
pub fn source_digest(path: &Path) -> Result<String, NodesError> {
    let files: Vec<PathBuf> = match known_format_of(path)? {
        Format::CsrNpz => vec![path.to_owned()],
        Format::Table => table::files(path)?,
        Format::Ogb => ogb::files(path)?,
        Format::Store => return Ok(store::digest(path)?),
    };
    let mut hash = blake3::Hasher::new();
    for file in files {
        // The name of a single file, or its path in the folder.
        let name = file.strip_prefix(path).ok().filter(|name| !name.as_os_str().is_empty());
        let name = name.unwrap_or(Path::new("")).to_string_lossy().into_owned();
        let mut content = blake3::Hasher::new();
        let opened = File::open(&file).map_err(NodesError::io("open", &file))?;
        content.update_reader(opened).map_err(NodesError::io("read", &file))?;
        hash.update(&(name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update(content.finalize().as_bytes());
    }
    Ok(hash.finalize().to_hex().to_string())
}

/// True if `path` is a store, whose edges and features no option of reading changes.
pub fn is_store(path: &Path) -> bool {
    format_of(path) == Some(Format::Store)
}

/// The stream of a source whose store can be built without holding it in memory; `None` if the source, or the largest component, has
/// to be held.
pub(crate) fn stream(path: &Path, options: &GraphOptions, digest: &str) -> Result<Option<OgbStream>, NodesError> {
    match known_format_of(path)? {
        Format::Ogb if !options.largest_component => OgbStream::open(path, options, digest.to_owned()).map(Some),
        _ => Ok(None),
    }
}

fn format_of(path: &Path) -> Option<Format> {
    if path.is_file() {
        let ends_with = |ending: &str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending));
        return match ends_with("npz") {
            // Many graphs.
            true if is_dataset(path) => None,
            true => Some(Format::CsrNpz),
            false => ends_with(store::EXTENSION).then_some(Format::Store),
        };
    }
    if table::is_table(path) {
        return Some(Format::Table);
    }
    ogb::is_ogb(path).then_some(Format::Ogb)
}

fn known_format_of(path: &Path) -> Result<Format, NodesError> {
    std::fs::metadata(path).map_err(NodesError::io("open", path))?;
    let expected = "an .npz file, a .kdgat-nodes file, a folder whose kdgat-graphs.toml has task = \"node-class\", a folder with DGL's \
                    meta.yaml, or one with raw/edge.csv.gz or raw/data.npz";
    format_of(path).ok_or_else(|| NodesError::invalid(path, "", "no graph of classified nodes", expected))
}

/// Name that the graph of a source has once it is read.
///
/// # Errors
/// A source that cannot be opened.
pub fn dataset_name(path: &Path) -> Result<String, NodesError> {
    match known_format_of(path)? {
        Format::Table => table::dataset_name(path),
        Format::CsrNpz | Format::Ogb => Ok(name_of(path)),
        Format::Store => Ok(store::open(path)?.name),
    }
}

/// Name of a dataset: that of its folder, or of its file without the ending.
pub(crate) fn name_of(path: &Path) -> String {
    let named = |path: &Path| {
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        name.map(|name| name.to_string_lossy().into_owned())
    };
    // A path such as ".." has no name of its own.
    named(path).or_else(|| named(&path.canonicalize().ok()?)).unwrap_or_else(|| "graph".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::testing::{Kind, assert_same, small_graphs};
    use super::*;

    #[test]
    fn notes_count_in_singular_and_plural() {
        let notes = SourceNotes {
            source_nodes: 9,
            listed_edges: 20,
            removed_self_loops: 1,
            removed_duplicates: 2,
            nodes_outside_component: 3,
            nodes_without_label: 1,
            ignored_columns: vec!["edges.csv e_weight".to_owned(), "nodes.csv pos_x".to_owned()],
            class_names: None,
            remarks: vec!["seen".to_owned()],
        };
        assert_eq!(
            notes.lines(),
            [
                "removed 1 self-loop",
                "removed 2 repeated edges of 20",
                "kept the largest component: 6 of 9 nodes",
                "1 node without a label",
                "ignored edges.csv e_weight, nodes.csv pos_x",
                "seen"
            ]
        );
        assert!(SourceNotes::default().lines().is_empty());
    }

    #[test]
    fn datasets_are_named_after_their_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph.v1");
        std::fs::create_dir(&path).unwrap();
        assert_eq!(name_of(&path), "graph.v1");
        assert_eq!(name_of(&path.join("..").join("graph.v1").join(".")), "graph.v1");
        std::fs::create_dir(path.join("inner")).unwrap();
        assert_eq!(name_of(&path.join("inner/..")), "graph.v1");
        assert_eq!(name_of(Path::new("folder/cora.npz")), "cora");
    }

    #[test]
    fn other_files_are_no_source() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_node_dataset(folder.path()));
        for (name, expected) in [("a.NPZ", true), ("a.zip", false), ("npz", false)] {
            let path = folder.path().join(name);
            std::fs::write(&path, "").unwrap();
            assert_eq!(is_node_dataset(&path), expected, "{name}");
            assert!(read(&path, &GraphOptions::default()).is_err(), "{name}");
        }
        assert!(source_digest(folder.path()).is_err());
    }

    #[test]
    fn options_have_defaults_and_refuse_unknown_names() {
        let options: GraphOptions = serde_json::from_str("{\"half\": true}").unwrap();
        assert_eq!(options, GraphOptions { half: true, ..GraphOptions::default() });
        assert!(options.undirected && options.largest_component && !options.row_normalized);
        assert!(serde_json::from_str::<GraphOptions>("{\"directed\": true}").is_err());
    }

    /// A teacher of a run with other options must be recognised as one of the same division.
    #[test]
    fn nodes_have_the_same_hashes_with_all_options() {
        let folder = tempfile::tempdir().unwrap();
        let small = testing::SmallGraph { kind: Kind::Dense, ..testing::SmallGraph::example() };
        let (table, npz) = (folder.path().join("table"), folder.path().join("small.npz"));
        std::fs::create_dir(&table).unwrap();
        small.write_table(&table);
        testing::SmallGraph { kind: Kind::Sparse, ..small.clone() }.write_npz(&npz);
        let hashes = |path: &Path, options: &GraphOptions| read(path, options).unwrap().0.node_hashes.to_vec();
        let whole = GraphOptions { largest_component: false, ..GraphOptions::default() };
        let of_table = hashes(&table, &whole);
        for options in [
            GraphOptions { half: true, ..whole.clone() },
            GraphOptions { row_normalized: true, ..whole.clone() },
            GraphOptions { undirected: false, ..whole.clone() },
        ] {
            assert_eq!(hashes(&table, &options), of_table);
        }
        let component = read(&table, &GraphOptions::default()).unwrap().0;
        let kept = component.original.unwrap();
        let expected: Vec<u64> = kept.iter().map(|&node| of_table[node as usize]).collect();
        assert!(kept.len() < of_table.len() && component.node_hashes[..] == expected);
        let normalized = GraphOptions { row_normalized: true, ..whole.clone() };
        assert_eq!(hashes(&npz, &whole), hashes(&npz, &normalized), "sparse rows");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn all_formats_give_the_same_graph(
            small in small_graphs(),
            undirected: bool,
            largest_component: bool,
            row_normalized: bool,
        ) {
            let half = small.kind == Kind::Half;
            let options = GraphOptions { undirected, largest_component, row_normalized, half };
            let (expected, expected_notes) = prepare(small.raw(&options), &options);
            prop_assume!(expected.labels.iter().any(|&label| label != NO_LABEL));
            let folder = tempfile::tempdir().unwrap();
            let npz = folder.path().join("small.npz");
            small.write_npz(&npz);
            let (graph, notes) = read(&npz, &options).unwrap();
            let without_split = testing::SmallGraph { split: None, ..small.clone() };
            assert_same(&graph, &prepare(without_split.raw(&options), &options).0);
            prop_assert_eq!(&notes, &expected_notes);
            if small.kind == Kind::Sparse {
                return Ok(());
            }
            for (name, write) in [
                ("table", &(|path: &Path| small.write_table(path)) as &dyn Fn(&Path)),
                ("text", &|path| small.write_ogb(path, false)),
                ("arrays", &|path| small.write_ogb(path, true)),
            ] {
                let path = folder.path().join(name);
                std::fs::create_dir(&path).unwrap();
                write(&path);
                let (graph, notes) = read(&path, &options).unwrap();
                match name {
                    "table" => assert_same(&graph, &prepare(small.raw_of_table(&options), &options).0),
                    _ => assert_same(&graph, &expected),
                }
                prop_assert_eq!(&notes, &expected_notes, "{}", name);
            }
        }
    }
}
