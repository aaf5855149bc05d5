//! Files for the tests of sources, written as NumPy and pandas write them.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::GraphOptions;
use super::raw_graph::{DenseRows, EdgeList, HashedRows, RawGraph, SparseFeatures};
use crate::node_graph::NodeGraph;
use crate::node_hash;
use crate::sections::arrays;

/// An array for an archive.
#[derive(Clone)]
pub struct Npy {
    pub descr: &'static str,
    pub fortran: bool,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
    pub version: u8,
}

impl Npy {
    pub fn new(descr: &'static str, length: usize, bytes: Vec<u8>) -> Self {
        Self { descr, fortran: false, shape: vec![length], bytes, version: 1 }
    }

    pub fn i4(values: &[i32]) -> Self {
        Self::new("'<i4'", values.len(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    pub fn i8(values: &[i64]) -> Self {
        Self::new("'<i8'", values.len(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    pub fn f2(values: &[f64]) -> Self {
        let bytes = values.iter().flat_map(|&value| half::f16::from_f64(value).to_le_bytes()).collect();
        Self::new("'<f2'", values.len(), bytes)
    }

    pub fn f4(values: &[f64]) -> Self {
        Self::new("'<f4'", values.len(), values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect())
    }

    pub fn f8(values: &[f64]) -> Self {
        Self::new("'<f8'", values.len(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// Texts of two letters.
    pub fn text(length: usize) -> Self {
        Self::new("'<U2'", length, vec![0; length * 8])
    }

    pub fn shaped(self, shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), ..self }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let sizes: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let comma = if sizes.len() == 1 { "," } else { "" };
        let (descr, fortran) = (self.descr, if self.fortran { "True" } else { "False" });
        let (sizes, version) = (sizes.join(", "), self.version);
        let mut text = format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': ({sizes}{comma}), }}");
        let start = if version == 1 { 10 } else { 12 };
        let length = (start + text.len() + 1).next_multiple_of(64) - start;
        text = format!("{text:<width$}\n", width = length - 1);
        let mut bytes = b"\x93NUMPY".to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((length as u16).to_le_bytes()),
            _ => bytes.extend((length as u32).to_le_bytes()),
        }
        bytes.extend(text.as_bytes());
        bytes.extend(&self.bytes);
        bytes
    }
}

/// Writes an archive; every second array is deflated.
pub fn write_npz(path: &Path, arrays: &[(&str, Npy)]) {
    let members: Vec<(String, Vec<u8>)> =
        arrays.iter().map(|(name, array)| (format!("{name}.npy"), array.to_bytes())).collect();
    write_zip(path, &members);
}

/// Writes a zip archive; every second file is deflated.
pub fn write_zip(path: &Path, members: &[(String, Vec<u8>)]) {
    let mut archive = ZipWriter::new(File::create(path).unwrap());
    for (position, (name, bytes)) in members.iter().enumerate() {
        let method = if position % 2 == 0 { CompressionMethod::Stored } else { CompressionMethod::Deflated };
        archive.start_file(name.as_str(), SimpleFileOptions::default().compression_method(method)).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap();
}

/// Writes a compressed text, and the folders that lead to it.
pub fn write_gz(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut encoder = GzEncoder::new(File::create(path).unwrap(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap();
}

/// Kind of a graph's features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Dense,
    Half,
    Sparse,
}

/// A graph that every format can hold.
#[derive(Debug, Clone)]
pub struct SmallGraph {
    pub kind: Kind,
    pub edges: Vec<(u32, u32)>,
    pub columns: usize,
    /// `[num_nodes, columns]`, representable in half precision.
    pub features: Vec<f64>,
    /// Class of each node, -1 for none.
    pub labels: Vec<i64>,
    /// The set of each node, 0 to 3.
    pub split: Option<Vec<u8>>,
}

impl SmallGraph {
    /// Six nodes in three components.
    pub fn example() -> Self {
        Self {
            kind: Kind::Sparse,
            edges: vec![(0, 1), (1, 2), (2, 0), (2, 4), (4, 2), (4, 4)],
            columns: 3,
            features: vec![0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 7.0, 0.0, 0.0, -4.0, 0.0, 0.0, 0.0, 1.0],
            labels: vec![0, 2, 1, -1, 2, 0],
            split: Some(vec![1, 2, 3, 0, 1, 1]),
        }
    }

    pub fn num_nodes(&self) -> usize {
        self.labels.len()
    }

    /// The graph as the reader of tables returns it, which knows the nodes by the names of [`SmallGraph::write_table`].
    pub fn raw_of_table(&self, options: &GraphOptions) -> RawGraph {
        let raw = self.raw(options);
        let names = (0..self.num_nodes()).map(|node| node_hash::of_name(&format!("n{node}"))).collect();
        RawGraph { features: HashedRows { names: Some(names), ..raw.features }, ..raw }
    }

    /// The graph as a reader returns it.
    pub fn raw(&self, options: &GraphOptions) -> RawGraph {
        let features = match self.kind {
            Kind::Sparse => {
                let (row_pointers, column_index, values) = self.sparse();
                let values = values.into_iter().map(|value| value as f32).collect();
                let sparse = SparseFeatures { columns: self.columns, row_pointers, column_index, values };
                sparse.into_rows(options).unwrap()
            }
            Kind::Dense | Kind::Half => self.dense(options),
        };
        let (sources, targets) = self.edges.iter().copied().unzip();
        RawGraph {
            name: "small".to_owned(),
            edges: EdgeList { sources, targets },
            features,
            labels: self.labels.iter().map(|&label| label as i32).collect(),
            split: self.split.clone(),
            class_names: None,
            ignored_columns: Vec::new(),
            remarks: Vec::new(),
        }
    }

    fn dense(&self, options: &GraphOptions) -> HashedRows {
        let options = GraphOptions { half: self.kind == Kind::Half, ..options.clone() };
        let mut rows = DenseRows::new(self.num_nodes(), self.columns, &options).unwrap();
        self.features.iter().for_each(|&value| rows.push(value).unwrap());
        rows.finish()
    }

    fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.features.chunks(self.columns)
    }

    fn sparse(&self) -> (Vec<u64>, Vec<u32>, Vec<f64>) {
        let (mut pointers, mut columns, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in self.rows() {
            for (column, &value) in (0..).zip(row).filter(|(_, value)| **value != 0.0) {
                columns.push(column);
                values.push(value);
            }
            pointers.push(values.len() as u64);
        }
        (pointers, columns, values)
    }

    fn float_labels(&self) -> Vec<f64> {
        self.labels.iter().map(|&label| if label < 0 { f64::NAN } else { label as f64 }).collect()
    }

    /// Writes the graph, without its split, in the layout of `csr_npz`.
    pub fn write_npz(&self, path: &Path) {
        let nodes = self.num_nodes();
        let mut targets = Vec::new();
        let mut pointers = vec![0];
        for node in 0..nodes as u32 {
            targets.extend(self.edges.iter().filter(|(source, _)| *source == node).map(|(_, target)| *target as i32));
            pointers.push(targets.len() as i64);
        }
        let mut arrays = vec![
            ("adj_data", Npy::f4(&vec![1.0; targets.len()])),
            ("adj_indices", Npy::i4(&targets)),
            ("adj_indptr", Npy::i8(&pointers)),
            ("adj_shape", Npy::i8(&[nodes as i64; 2])),
            ("labels", Npy::f8(&self.float_labels())),
        ];
        match self.kind {
            Kind::Sparse => {
                let (pointers, columns, values) = self.sparse();
                arrays.push(("attr_data", Npy::f8(&values)));
                let columns: Vec<i32> = columns.into_iter().map(|column| column as i32).collect();
                arrays.push(("attr_indices", Npy::i4(&columns)));
                let pointers: Vec<i64> = pointers.into_iter().map(|pointer| pointer as i64).collect();
                arrays.push(("attr_indptr", Npy::i8(&pointers)));
                arrays.push(("attr_shape", Npy::i8(&[nodes as i64, self.columns as i64])));
            }
            Kind::Dense => arrays.push(("attr_matrix", Npy::f4(&self.features).shaped(&[nodes, self.columns]))),
            Kind::Half => arrays.push(("attr_matrix", Npy::f2(&self.features).shaped(&[nodes, self.columns]))),
        }
        write_npz(path, &arrays);
    }

    /// Writes the graph into a folder of tables. Nodes are called n0, n1, …
    pub fn write_table(&self, folder: &Path) {
        let set = |node: usize| self.split.as_ref().map_or("", |split| SETS[split[node] as usize]);
        let features = (0..self.columns).map(|column| format!("x_{column},")).collect::<String>();
        let split = if self.split.is_some() { ",split" } else { "" };
        let mut nodes = format!("node_id,{features}y{split}\n");
        for (node, row) in self.rows().enumerate() {
            let features = row.iter().map(|value| format!("{value},")).collect::<String>();
            let label = if self.labels[node] < 0 { String::new() } else { self.labels[node].to_string() };
            let set = if self.split.is_some() { format!(",{}", set(node)) } else { String::new() };
            nodes += &format!("n{node},{features}{label}{set}\n");
        }
        let edge = |(source, target): &(u32, u32)| format!("n{source},n{target}\n");
        let edges = "source,target\n".to_owned() + &self.edges.iter().map(edge).collect::<String>();
        for (name, text) in
            [("kdgat-graphs.toml", "task = \"node-class\"\n"), ("nodes.csv", &nodes), ("edges.csv", &edges)]
        {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }

    /// Writes the graph into a raw folder of the Open Graph Benchmark, as text or as arrays.
    pub fn write_ogb(&self, folder: &Path, binary: bool) {
        let (nodes, edges) = (self.num_nodes(), self.edges.len());
        let line = |values: &[f64]| values.iter().map(f64::to_string).collect::<Vec<_>>().join(",") + "\n";
        if binary {
            std::fs::create_dir_all(folder.join("raw")).unwrap();
            let ends = self.edges.iter().map(|(source, _)| source).chain(self.edges.iter().map(|(_, target)| target));
            let ends: Vec<i64> = ends.map(|&node| node.into()).collect();
            let arrays = [
                ("edge_index", Npy::i8(&ends).shaped(&[2, edges])),
                ("node_feat", Npy::f2(&self.features).shaped(&[nodes, self.columns])),
                ("num_nodes_list", Npy::i8(&[nodes as i64])),
                ("num_edges_list", Npy::i8(&[edges as i64])),
            ];
            write_npz(&folder.join("raw/data.npz"), &arrays);
            let labels = Npy::f4(&self.float_labels()).shaped(&[nodes, 1]);
            write_npz(&folder.join("raw/node-label.npz"), &[("node_label", labels)]);
        } else {
            let write = |name: &str, text: String| write_gz(&folder.join("raw").join(name), &text);
            write("num-node-list.csv.gz", format!("{nodes}\n"));
            write("num-edge-list.csv.gz", format!("{edges}\n"));
            write("edge.csv.gz", self.edges.iter().map(|(source, target)| format!("{source},{target}\n")).collect());
            write("node-feat.csv.gz", self.rows().map(line).collect());
            write("node-label.csv.gz", self.float_labels().iter().map(|&label| line(&[label])).collect());
        }
        if let Some(split) = &self.split {
            for (set, name) in (1..).zip(["train", "valid", "test"]) {
                let of_set = (0..nodes).filter(|&node| split[node] == set).map(|node| format!("{node}\n"));
                write_gz(&folder.join("split/any").join(format!("{name}.csv.gz")), &of_set.collect::<String>());
            }
        }
    }
}

/// Names of the sets in a table.
const SETS: [&str; 4] = ["", "train", "validation", "test"];

/// Graphs of up to twelve nodes with all kinds of features.
pub fn small_graphs() -> impl Strategy<Value = SmallGraph> {
    let kinds = prop_oneof![Just(Kind::Dense), Just(Kind::Half), Just(Kind::Sparse)];
    (1usize..12, 1usize..6, kinds).prop_flat_map(|(nodes, columns, kind)| {
        let node = 0..nodes as u32;
        let edges = prop::collection::vec((node.clone(), node), 0..30);
        let quarters = prop_oneof![Just(0), -32i32..32];
        let features = prop::collection::vec(quarters.prop_map(|quarter| f64::from(quarter) / 4.0), nodes * columns);
        let labels = prop::collection::vec(-1i64..5, nodes);
        let split = prop::option::of(prop::collection::vec(0u8..4, nodes));
        (edges, features, labels, split).prop_map(move |(edges, features, labels, split)| SmallGraph {
            kind,
            edges,
            columns,
            features,
            labels,
            split,
        })
    })
}

/// Fails unless two graphs are equal in everything but their names, bit by bit.
pub fn assert_same(first: &NodeGraph, second: &NodeGraph) {
    let (first_arrays, second_arrays) = (arrays(first), arrays(second));
    assert_eq!(first_arrays.len(), second_arrays.len());
    for (first, second) in first_arrays.iter().zip(&second_arrays) {
        assert_eq!((first.name, first.dtype), (second.name, second.dtype));
        assert!(first.bytes == second.bytes, "{} differs", first.name);
    }
    assert_eq!(first.features.columns(), second.features.columns());
    assert_eq!((first.task, &first.digest), (second.task, &second.digest));
}
