//! Reads the raw folders of the Open Graph Benchmark (Hu et al. 2020) for predicting properties of nodes.
//!
//! | file | content |
//! |---|---|
//! | `raw/num-node-list.csv.gz`, `raw/num-edge-list.csv.gz` | one line: number of nodes, number of edges |
//! | `raw/edge.csv.gz` | a line for each edge: source, target |
//! | `raw/node-feat.csv.gz` | a line for each node: its features |
//! | `raw/node-label.csv.gz` | a line for each node: its class, or nothing |
//! | `raw/data.npz` | instead of the above but labels: `num_nodes_list`, `num_edges_list`, `edge_index`, `node_feat` |
//! | `raw/node-label.npz` | with `data.npz`: `node_label` `[num_nodes, 1]`, NaN for none |
//! | `split/NAME/{train,valid,test}.csv.gz` | optional: a line for each node of the set |
//!
//! Shapes: `edge_index` `[2, num_edges]`, `node_feat` `[num_nodes, columns]`.

mod stream;

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use kdgat_graph::dataset::is_missing;

use super::csr_npz::{dense_rows, labels as npz_labels};
use super::csv_gz::{each_line, first_line};
use super::raw_graph::{DenseRows, EdgeList, HashedRows, Mismatch, RawGraph, class_of, expect_nodes, node_number};
use super::{GraphOptions, name_of};
use crate::NodesError;
use crate::node_graph::GivenSet;
use crate::npz::{Faulty, MOST_INFLATION, Npz, Placed};

pub(super) use stream::OgbStream;

const NODE_COUNT: &str = "num-node-list.csv.gz";
const EDGE_COUNT: &str = "num-edge-list.csv.gz";
const EDGES: &str = "edge.csv.gz";
const FEATURES: &str = "node-feat.csv.gz";
const LABELS: &str = "node-label.csv.gz";
const BINARY: &str = "data.npz";
const BINARY_LABELS: &str = "node-label.npz";
/// Files of datasets whose graphs, not nodes, have labels.
const GRAPH_LABELS: [&str; 2] = ["graph-label.csv.gz", "graph-label.npz"];
const SETS: [(&str, GivenSet); 3] =
    [("train.csv.gz", GivenSet::Training), ("valid.csv.gz", GivenSet::Validation), ("test.csv.gz", GivenSet::Test)];

/// True if a folder is such a dataset.
pub(super) fn is_ogb(path: &Path) -> bool {
    let has = |name: &str| path.join("raw").join(name).is_file();
    (has(EDGES) || has(BINARY)) && !GRAPH_LABELS.into_iter().any(has)
}

fn is_binary(path: &Path) -> bool {
    path.join("raw").join(BINARY).is_file()
}

/// The files of a dataset.
///
/// # Errors
/// Several splits, or a folder that cannot be read.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, NodesError> {
    let raw = match is_binary(path) {
        true => &[BINARY, BINARY_LABELS][..],
        false => &[NODE_COUNT, EDGE_COUNT, EDGES, FEATURES, LABELS],
    };
    let mut files: Vec<PathBuf> = raw.iter().map(|name| path.join("raw").join(name)).collect();
    if let Some(folder) = split_folder(path)? {
        files.extend(SETS.map(|(name, _)| folder.join(name)));
    }
    Ok(files)
}

/// Reads a graph.
///
/// # Errors
/// A missing file or array, or a line or value that does not fit.
pub(super) fn read(path: &Path, options: &GraphOptions) -> Result<RawGraph, NodesError> {
    expect_files(path)?;
    let raw = path.join("raw");
    let mut graph = if is_binary(path) { read_binary(&raw, options)? } else { read_csv(&raw, options)? };
    graph.name = name_of(path);
    graph.split = match split_folder(path)? {
        Some(folder) => Some(split(&folder, graph.labels.len(), 0..graph.labels.len())?),
        None => None,
    };
    graph.ignored_columns.extend(ignored_files(path)?);
    Ok(graph)
}

fn expect_files(path: &Path) -> Result<(), NodesError> {
    if let Some(file) = files(path)?.iter().find(|file| !file.is_file()) {
        let missing = file.strip_prefix(path).unwrap_or(file).display();
        let expected = "the folder of an OGB dataset with labels of nodes";
        return Err(NodesError::invalid(path, "", format!("no {missing}"), expected));
    }
    Ok(())
}

fn read_csv(raw: &Path, options: &GraphOptions) -> Result<RawGraph, NodesError> {
    let (count, edge_count) = csv_counts(raw)?;
    // Edges are few bytes each, so a wrong count would reserve too much: no memory is reserved.
    let mut edges = EdgeList::default();
    each_csv_edge(&raw.join(EDGES), count, edge_count, |source, target| {
        edges.sources.push(source);
        edges.targets.push(target);
        Ok(())
    })?;
    let path = raw.join(FEATURES);
    let rows = DenseRows::new(count, csv_columns(&path, count)?, options);
    let mut rows = rows.map_err(|mismatch| mismatch.at(&path, ", line 1"))?;
    csv_rows(&path, count, 0, &mut rows, |_| Ok(()))?;
    let mut labels = Vec::new();
    each_csv_label(&raw.join(LABELS), count, |label| {
        labels.push(label);
        Ok(())
    })?;
    Ok(unnamed(edges, rows.finish(), labels))
}

/// Number of nodes and number of edges.
fn csv_counts(raw: &Path) -> Result<(usize, usize), NodesError> {
    let count = count_in(&raw.join(NODE_COUNT))?;
    expect_nodes(count).map_err(|mismatch| mismatch.at(&raw.join(NODE_COUNT), ", line 1"))?;
    expect_possible(raw, NODE_COUNT, count, &[LABELS, FEATURES])?;
    let edges = count_in(&raw.join(EDGE_COUNT))?;
    expect_possible(raw, EDGE_COUNT, edges, &[EDGES])?;
    Ok((count, edges))
}

/// Checks a number of lines against the files that have so many: room is made by it before they are read.
fn expect_possible(raw: &Path, of: &str, count: usize, files: &[&str]) -> Result<(), NodesError> {
    for name in files {
        let path = raw.join(name);
        let bytes = fs::metadata(&path).map_err(NodesError::io("open", &path))?.len();
        // Every line has an end; the last one may lack it.
        if count as u64 > bytes.saturating_mul(MOST_INFLATION) + 1 {
            let (found, expected) =
                (count.to_string(), format!("at most as many as {name}, of {bytes} bytes, can have lines"));
            return Err(NodesError::invalid(&raw.join(of), ", line 1", found, expected));
        }
    }
    Ok(())
}

fn unnamed(edges: EdgeList, features: HashedRows, labels: Vec<i32>) -> RawGraph {
    RawGraph {
        name: String::new(),
        edges,
        features,
        labels,
        split: None,
        class_names: None,
        ignored_columns: Vec::new(),
        remarks: Vec::new(),
    }
}

/// The only number in a file.
fn count_in(path: &Path) -> Result<usize, NodesError> {
    let mut count = 0;
    let lines = each_line(path, |line, text| {
        if line > 0 {
            return Err(Mismatch::new("a second graph", "one number: the dataset has one graph"));
        }
        count = text.trim().parse().map_err(|_| Mismatch::new(format!("'{text}'"), "a number"))?;
        Ok(())
    })?;
    expect_lines(path, lines, 1).map(|()| count)
}

/// Calls `each` with source and target of each edge, in order.
fn each_csv_edge(
    path: &Path,
    num_nodes: usize,
    count: usize,
    mut each: impl FnMut(u32, u32) -> Result<(), Mismatch>,
) -> Result<(), NodesError> {
    let lines = each_line(path, |_, text| {
        let ends = text.split_once(',');
        let number = |text: &str| text.trim().parse::<i64>().ok();
        let ends = ends.and_then(|(source, target)| Some((number(source)?, number(target)?)));
        let (source, target) = ends.ok_or_else(|| Mismatch::new(format!("'{text}'"), "two numbers of nodes"))?;
        each(node_number(source, num_nodes)?, node_number(target, num_nodes)?)
    })?;
    expect_lines(path, lines, count)
}

/// Number of features in the first line.
fn csv_columns(path: &Path, num_nodes: usize) -> Result<usize, NodesError> {
    match first_line(path)? {
        Some(text) => Ok(text.split(',').count()),
        // There is at least one node.
        None => Err(NodesError::invalid(path, "", "0 lines", num_nodes.to_string())),
    }
}

/// Adds the features of the nodes from `from` on to `rows`; calls `each_row` after each.
fn csv_rows(
    path: &Path,
    num_nodes: usize,
    from: usize,
    rows: &mut DenseRows,
    mut each_row: impl FnMut(&mut DenseRows) -> Result<(), Mismatch>,
) -> Result<(), NodesError> {
    let lines = each_line(path, |line, text| {
        if line as usize == num_nodes {
            return Err(Mismatch::new("one line more", format!("one line for each of {num_nodes} nodes")));
        }
        if (line as usize) < from {
            return Ok(());
        }
        let mut fields = 0;
        for field in text.split(',') {
            fields += 1;
            if fields > rows.columns() {
                break;
            }
            let number = field.trim().parse::<f32>();
            rows.push(number.map_err(|_| Mismatch::new(format!("'{field}'"), "a number"))?.into())?;
        }
        match fields == rows.columns() {
            true => each_row(rows),
            false => {
                let found = text.split(',').count();
                Err(Mismatch::new(format!("{found} features"), format!("{} as in line 1", rows.columns())))
            }
        }
    })?;
    expect_lines(path, lines, num_nodes)
}

/// Calls `each` with the class of each node, in order.
fn each_csv_label(
    path: &Path,
    num_nodes: usize,
    mut each: impl FnMut(i32) -> Result<(), Mismatch>,
) -> Result<(), NodesError> {
    let lines = each_line(path, |line, text| {
        if line as usize == num_nodes {
            return Err(Mismatch::new("one line more", format!("one line for each of {num_nodes} nodes")));
        }
        if text.contains(',') {
            let found = format!("{} labels", text.split(',').count());
            return Err(Mismatch::new(found, "one class: several labels of a node are not supported"));
        }
        // pandas writes a missing value that is alone in its line as "".
        let class = match text.trim().trim_matches('"') {
            text if is_missing(text) => f64::NAN,
            text => text.parse().map_err(|_| Mismatch::new(format!("'{text}'"), "the number of a class"))?,
        };
        each(class_of(class)?)
    })?;
    expect_lines(path, lines, num_nodes)
}

fn expect_lines(path: &Path, found: u64, expected: usize) -> Result<(), NodesError> {
    match found == expected as u64 {
        true => Ok(()),
        false => Err(NodesError::invalid(path, "", format!("{found} lines"), expected.to_string())),
    }
}

fn read_binary(raw: &Path, options: &GraphOptions) -> Result<RawGraph, NodesError> {
    let mut npz = Npz::open(&raw.join(BINARY))?;
    let (num_nodes, count) = binary_counts(&mut npz)?;
    let mut edges = EdgeList { sources: npz.reserve("edge_index", count)?, targets: npz.reserve("edge_index", count)? };
    npz.each_integer("edge_index", |at, node| {
        let ends = if at < count { &mut edges.sources } else { &mut edges.targets };
        ends.push(node_number(node, num_nodes)?);
        Ok(())
    })?;
    let features = dense_rows(&mut npz, "node_feat", num_nodes, options)?;
    let labels = npz_labels(&mut Npz::open(&raw.join(BINARY_LABELS))?, "node_label", num_nodes)?;
    Ok(RawGraph { ignored_columns: ignored_arrays(&npz), ..unnamed(edges, features, labels) })
}

fn ignored_arrays(npz: &Npz) -> Vec<String> {
    let read = ["num_nodes_list", "num_edges_list", "edge_index", "node_feat"];
    let ignored = npz.names().iter().filter(|name| !read.contains(&name.as_str()));
    ignored.map(|name| format!("{BINARY} {name}")).collect()
}

/// Number of nodes and number of edges.
fn binary_counts(npz: &mut Npz) -> Result<(usize, usize), NodesError> {
    let num_nodes = only_number(npz, "num_nodes_list")?;
    expect_nodes(num_nodes).map_err(|Mismatch { found, expected }| npz.error("num_nodes_list", found, expected))?;
    let count = only_number(npz, "num_edges_list")?;
    let [ends, found] = npz.dimensions("edge_index")?;
    if ends != 2 || found != count {
        let expected = format!("[2, {count}], by num_edges_list");
        return Err(npz.error("edge_index", format!("shape [{ends}, {found}]"), expected));
    }
    Ok((num_nodes, count))
}

/// The number in an array that has one entry for each graph.
fn only_number(npz: &mut Npz, name: &str) -> Result<usize, NodesError> {
    let [graphs] = npz.dimensions(name)?;
    if graphs != 1 {
        return Err(npz.error(name, format!("{graphs} graphs"), "one graph"));
    }
    let mut only = 0;
    npz.each_integer(name, |_, number| {
        only = usize::try_from(number).map_err(|_| Mismatch::new(number.to_string(), "a number of nodes or edges"))?;
        Ok(())
    })?;
    Ok(only)
}

/// The folder of the split; `None` if the dataset has none.
fn split_folder(path: &Path) -> Result<Option<PathBuf>, NodesError> {
    let folder = path.join("split");
    if !folder.is_dir() {
        return Ok(None);
    }
    let mut splits = BTreeSet::new();
    for entry in fs::read_dir(&folder).map_err(NodesError::io("read", &folder))? {
        let entry = entry.map_err(NodesError::io("read", &folder))?;
        if entry.path().is_dir() {
            splits.insert(entry.path());
        }
    }
    if splits.len() > 1 {
        let names = splits.iter().filter_map(|split| split.file_name()).map(|name| name.to_string_lossy());
        let found = format!("splits {}", names.collect::<Vec<_>>().join(", "));
        return Err(NodesError::invalid(&folder, "", found, "one split: move the others elsewhere"));
    }
    Ok(splits.pop_first())
}

/// The sets of a range of nodes, as the files of a split list them.
fn split(folder: &Path, num_nodes: usize, nodes: Range<usize>) -> Result<Vec<u8>, NodesError> {
    let mut sets = vec![GivenSet::None as u8; nodes.len()];
    for (name, set) in SETS {
        each_line(&folder.join(name), |_, text| {
            let number = text.trim().parse::<i64>();
            let number = number.map_err(|_| Mismatch::new(format!("'{text}'"), "the number of a node"))?;
            let node = node_number(number, num_nodes)? as usize;
            if !nodes.contains(&node) {
                return Ok(());
            }
            let found = &mut sets[node - nodes.start];
            if *found != GivenSet::None as u8 {
                return Err(Mismatch::new(format!("node {number} a second time"), "each node in one set"));
            }
            *found = set as u8;
            Ok(())
        })?;
    }
    Ok(sets)
}

/// Compressed tables and arrays in `raw` that nothing reads, such as the years of papers.
fn ignored_files(path: &Path) -> Result<Vec<String>, NodesError> {
    let read = files(path)?;
    let raw = path.join("raw");
    let mut ignored = Vec::new();
    for entry in fs::read_dir(&raw).map_err(NodesError::io("read", &raw))? {
        let name = entry.map_err(NodesError::io("read", &raw))?.file_name().to_string_lossy().into_owned();
        if (name.ends_with(".csv.gz") || name.ends_with(".npz")) && !read.contains(&raw.join(&name)) {
            ignored.push(name);
        }
    }
    ignored.sort_unstable();
    Ok(ignored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_graph::{NO_LABEL, NodeGraph};
    use crate::sources::testing::{Npy, write_gz, write_npz};
    use crate::sources::{SourceNotes, is_node_dataset, read as read_source, source_digest};
    use crate::{Features, NodeStoreError};

    const TEXTS: [(&str, &str); 9] = [
        ("raw/num-node-list.csv.gz", "4\n"),
        ("raw/num-edge-list.csv.gz", "3\n"),
        ("raw/edge.csv.gz", "0,1\n1,2\n3,0\n"),
        ("raw/node-feat.csv.gz", "0.5,-1\n1e-3,0\n2,3\n4,5\n"),
        ("raw/node-label.csv.gz", "2\n\"\"\n0.0\n\n"),
        ("raw/node_year.csv.gz", "1\n1\n1\n1\n"),
        ("split/time/train.csv.gz", "2\n"),
        ("split/time/valid.csv.gz", "0\n3\n"),
        ("split/time/test.csv.gz", ""),
    ];

    fn folder(texts: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        texts.iter().for_each(|(name, text)| write_gz(&folder.path().join(name), text));
        folder
    }

    fn binary(arrays: &[(&str, Npy)], labels: Npy) -> tempfile::TempDir {
        let folder = folder(&TEXTS[6..]);
        fs::create_dir_all(folder.path().join("raw")).unwrap();
        write_npz(&folder.path().join("raw/data.npz"), arrays);
        write_npz(&folder.path().join("raw/node-label.npz"), &[("node_label", labels)]);
        folder
    }

    fn arrays() -> Vec<(&'static str, Npy)> {
        vec![
            ("edge_index", Npy::i8(&[0, 1, 3, 1, 2, 0]).shaped(&[2, 3])),
            ("node_feat", Npy::f2(&[0.5, -1.0, 0.25, 0.0, 2.0, 3.0, 4.0, 5.0]).shaped(&[4, 2])),
            ("num_nodes_list", Npy::i8(&[4])),
            ("num_edges_list", Npy::i8(&[3])),
            ("node_year", Npy::i8(&[1; 4])),
        ]
    }

    fn binary_labels() -> Npy {
        Npy::f4(&[2.0, f64::NAN, 0.0, f64::NAN]).shaped(&[4, 1])
    }

    fn directed() -> GraphOptions {
        GraphOptions { undirected: false, ..GraphOptions::default() }
    }

    fn check(graph: &NodeGraph, notes: &SourceNotes, second_feature: f32) {
        assert_eq!((&graph.row_pointers[..], &graph.sources[..]), (&[0, 1, 2, 3, 3][..], &[3, 0, 1][..]));
        assert_eq!(&graph.labels[..], [1, NO_LABEL, 0, NO_LABEL]);
        assert_eq!(notes.class_names.as_deref().unwrap(), ["0", "2"]);
        assert_eq!(graph.given_split.as_deref().unwrap(), [2, 0, 1, 2]);
        let Features::Dense { columns: 2, values } = &graph.features else { panic!("not dense") };
        assert_eq!(&values[..], [0.5, -1.0, second_feature, 0.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(notes.nodes_without_label, 2);
    }

    #[test]
    fn both_layouts_are_read() {
        let text = folder(&TEXTS);
        assert!(is_node_dataset(text.path()));
        let (graph, notes) = read_source(text.path(), &directed()).unwrap();
        check(&graph, &notes, 1e-3);
        assert_eq!(notes.ignored_columns, ["node_year.csv.gz"]);
        assert_eq!(graph.name, text.path().file_name().unwrap().to_string_lossy());
        let arrays = binary(&arrays(), binary_labels());
        assert!(is_node_dataset(arrays.path()));
        let (graph, notes) = read_source(arrays.path(), &directed()).unwrap();
        check(&graph, &notes, 0.25);
        assert_eq!(notes.ignored_columns, ["data.npz node_year"]);
        let (half, _) = read_source(arrays.path(), &GraphOptions { half: true, ..directed() }).unwrap();
        let Features::Half { columns: 2, values } = half.features else { panic!("not in half precision") };
        assert_eq!(half::f16::from_bits(values[2]).to_f32(), 0.25);
    }

    #[test]
    fn datasets_of_labelled_graphs_are_not_recognised() {
        let folder = folder(&TEXTS);
        write_gz(&folder.path().join("raw/graph-label.csv.gz"), "1\n");
        assert!(!is_node_dataset(folder.path()));
        let error = read_source(folder.path(), &directed()).unwrap_err().to_string();
        assert!(error.contains("no graph of classified nodes, expected an .npz file"), "{error}");
        let absent = folder.path().join("absent");
        assert!(!is_node_dataset(&absent));
        assert!(matches!(read_source(&absent, &directed()), Err(NodesError::Store(NodeStoreError::Io { .. }))));
    }

    #[test]
    fn the_digest_covers_every_file_that_is_read() {
        let folder = folder(&TEXTS);
        let before = source_digest(folder.path()).unwrap();
        for (name, text) in TEXTS {
            write_gz(&folder.path().join(name), &format!("{text}1\n"));
            let changed = source_digest(folder.path()).unwrap() != before;
            assert_eq!(changed, name != "raw/node_year.csv.gz", "{name}");
            write_gz(&folder.path().join(name), text);
        }
        assert_eq!(source_digest(folder.path()).unwrap(), before);
    }

    #[test]
    fn lines_that_do_not_fit_are_named() {
        for (name, text, expected) in [
            ("raw/num-node-list.csv.gz", "0\n", "num-node-list.csv.gz, line 1: no nodes"),
            ("raw/num-node-list.csv.gz", "4294967296\n", "line 1: 4294967296 nodes, expected at most 4294967295"),
            ("raw/num-node-list.csv.gz", "4\n4\n", "num-node-list.csv.gz, line 2: a second graph"),
            (
                "raw/num-node-list.csv.gz",
                "4294967295\n",
                "line 1: 4294967295, expected at most as many as node-label.csv.gz",
            ),
            ("raw/num-edge-list.csv.gz", "9223372036854775807\n", "at most as many as edge.csv.gz, of"),
            ("raw/num-node-list.csv.gz", "", "num-node-list.csv.gz: 0 lines, expected 1"),
            ("raw/num-node-list.csv.gz", "-4\n", "num-node-list.csv.gz, line 1: '-4', expected a number"),
            ("raw/num-edge-list.csv.gz", "4\n", "edge.csv.gz: 3 lines, expected 4"),
            ("raw/edge.csv.gz", "0,1\n1,4\n3,0\n", "edge.csv.gz, line 2: node 4, expected a node from 0 to 3"),
            ("raw/edge.csv.gz", "0,1\n1,2\n1000000000,0\n", "edge.csv.gz, line 3: node 1000000000"),
            ("raw/edge.csv.gz", "0,1\n1\n", "edge.csv.gz, line 2: '1', expected two numbers of nodes"),
            ("raw/edge.csv.gz", "0,1,2\n", "edge.csv.gz, line 1: '0,1,2', expected two"),
            ("raw/edge.csv.gz", "0,-1\n", "edge.csv.gz, line 1: node -1"),
            ("raw/node-feat.csv.gz", "1,2\n1\n", "node-feat.csv.gz, line 2: 1 features, expected 2 as in line 1"),
            ("raw/node-feat.csv.gz", "1,2\n1,2,3\n", "node-feat.csv.gz, line 2: 3 features, expected 2"),
            ("raw/node-feat.csv.gz", "1,2\n1,x\n", "node-feat.csv.gz, line 2: 'x', expected a number"),
            ("raw/node-feat.csv.gz", "1,2\n1,nan\n", "node-feat.csv.gz, line 2: NaN for node 1, column 1"),
            ("raw/node-feat.csv.gz", "1,2\n1,2\n1,2\n", "node-feat.csv.gz: 3 lines, expected 4"),
            ("raw/node-feat.csv.gz", "1\n1\n1\n1\n1\n", "node-feat.csv.gz, line 5: one line more"),
            ("raw/node-feat.csv.gz", "", "node-feat.csv.gz: 0 lines, expected 4"),
            ("raw/node-label.csv.gz", "0\n-1\n", "node-label.csv.gz, line 2: class -1"),
            ("raw/node-label.csv.gz", "0\n65535\n", "node-label.csv.gz, line 2: class 65535"),
            ("raw/node-label.csv.gz", "0,1\n", "node-label.csv.gz, line 1: 2 labels, expected one class"),
            ("raw/node-label.csv.gz", "a\n", "node-label.csv.gz, line 1: 'a', expected the number of a class"),
            ("raw/node-label.csv.gz", "0\n0\n", "node-label.csv.gz: 2 lines, expected 4"),
            ("split/time/test.csv.gz", "1\n2\n", "test.csv.gz, line 2: node 2 a second time"),
            ("split/time/test.csv.gz", "9\n", "test.csv.gz, line 1: node 9"),
            ("split/time/test.csv.gz", "x\n", "test.csv.gz, line 1: 'x', expected the number of a node"),
        ] {
            let folder = folder(&TEXTS);
            write_gz(&folder.path().join(name), text);
            let error = read_source(folder.path(), &directed()).unwrap_err();
            assert!(error.is_input());
            assert!(error.to_string().contains(expected), "{name}: {error}");
        }
    }

    #[test]
    fn missing_and_ambiguous_files_are_named() {
        let required = TEXTS.iter().filter(|(name, _)| !["raw/edge.csv.gz", "raw/node_year.csv.gz"].contains(name));
        for (name, _) in required {
            let folder = folder(&TEXTS);
            fs::remove_file(folder.path().join(name)).unwrap();
            let error = read_source(folder.path(), &directed()).unwrap_err().to_string();
            assert!(error.contains(&format!("no {name}, expected the folder")), "{error}");
        }
        let folder = folder(&TEXTS);
        fs::create_dir(folder.path().join("split/other")).unwrap();
        let error = read_source(folder.path(), &directed()).unwrap_err().to_string();
        assert!(error.contains("split: splits other, time, expected one split"), "{error}");
        fs::remove_dir_all(folder.path().join("split")).unwrap();
        assert!(read_source(folder.path(), &directed()).unwrap().0.given_split.is_none());
    }

    #[test]
    fn arrays_that_do_not_fit_are_named() {
        for (name, array, expected) in [
            ("edge_index", Npy::i8(&[0, 1, 3, 1, 9, 0]).shaped(&[2, 3]), "array edge_index[4]: node 9"),
            (
                "edge_index",
                Npy::i8(&[0, 1, 3, 1, 2, 0]).shaped(&[3, 2]),
                "array edge_index: shape [3, 2], expected [2, 3]",
            ),
            ("num_nodes_list", Npy::i8(&[4, 4]), "array num_nodes_list: 2 graphs"),
            ("num_nodes_list", Npy::i8(&[-4]), "array num_nodes_list[0]: -4"),
            ("num_nodes_list", Npy::i8(&[0]), "array num_nodes_list: no nodes"),
            ("num_edges_list", Npy::i8(&[2]), "array edge_index: shape [2, 3], expected [2, 2]"),
            ("node_feat", Npy::f4(&[0.0; 6]).shaped(&[3, 2]), "array node_feat: 3 rows"),
            ("node_feat", Npy::f4(&[f64::NAN; 4]).shaped(&[4, 1]), "array node_feat[0]: NaN for node 0, column 0"),
            ("node_feat", Npy::f4(&[]).shaped(&[4, 0]), "array node_feat: no feature"),
        ] {
            let mut arrays = arrays();
            arrays.retain(|(found, _)| *found != name);
            arrays.push((name, array));
            let folder = binary(&arrays, binary_labels());
            let error = read_source(folder.path(), &directed()).unwrap_err().to_string();
            assert!(error.contains("data.npz") && error.contains(expected), "{name}: {error}");
        }
        let folder = binary(&arrays(), Npy::i8(&[0; 8]).shaped(&[4, 2]));
        let error = read_source(folder.path(), &directed()).unwrap_err().to_string();
        assert!(error.contains("node-label.npz, array node_label: shape [4, 2]"), "{error}");
    }
}
