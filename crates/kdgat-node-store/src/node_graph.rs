//! The graph: edges by target, node features, labels and the split that its source gives.

use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Pod;
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use memmap2::{Advice, Mmap};
use serde::{Deserialize, Serialize};

/// Label of a node without one.
pub const NO_LABEL: i32 = -1;

/// An array of a graph, in memory or mapped from a store.
#[derive(Debug, Clone)]
pub struct Section<T> {
    source: Source<T>,
    /// The mapped file.
    file: Option<Arc<Path>>,
    /// True after [`Self::read_randomly`]; shared by all handles.
    is_random: Arc<AtomicBool>,
}

/// Place of an array in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePlace {
    /// The file.
    pub path: Arc<Path>,
    /// Bytes of the file.
    pub bytes: Range<usize>,
}

#[derive(Debug, Clone)]
enum Source<T> {
    Owned(Arc<Vec<T>>),
    /// These bytes of the map, aligned for `T`.
    Mapped(Arc<Mmap>, Range<usize>),
}

impl<T: Pod> Section<T> {
    /// The values of these bytes of a map; `None` if they leave it, are misaligned, or are no whole number of values.
    pub fn mapped(map: &Arc<Mmap>, bytes: Range<usize>) -> Option<Self> {
        let found = map.get(bytes.clone())?;
        bytemuck::try_cast_slice::<u8, T>(found).ok()?;
        Some(Self { source: Source::Mapped(Arc::clone(map), bytes), file: None, is_random: Arc::default() })
    }

    /// The same values, whose map is that of this file.
    pub fn in_file(self, path: &Arc<Path>) -> Self {
        Self { file: Some(Arc::clone(path)), ..self }
    }

    /// Tells the system that mapped values are read here and there, so that it reads no megabytes around each of them, and makes
    /// [`Self::prefetch`] work.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn read_randomly(&self) -> io::Result<()> {
        if let Source::Mapped(map, bytes) = &self.source {
            map.advise_range(Advice::Random, bytes.start, bytes.len())?;
            self.is_random.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Tells the system that mapped values are read in their order, which is how it treats them without advice.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn read_in_order(&self) -> io::Result<()> {
        if let Source::Mapped(map, bytes) = &self.source {
            map.advise_range(Advice::Normal, bytes.start, bytes.len())?;
            self.is_random.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// True if [`Self::prefetch`] has an effect.
    pub fn is_prefetched(&self) -> bool {
        self.is_random.load(Ordering::Relaxed)
    }

    /// Starts reading the values of these ranges, all at the same time. Does nothing before [`Self::read_randomly`].
    pub fn prefetch(&self, ranges: impl Iterator<Item = Range<usize>>) {
        let Source::Mapped(map, bytes) = &self.source else { return };
        if !self.is_prefetched() {
            return;
        }
        for range in ranges.filter(|range| !range.is_empty()) {
            let begin = bytes.start + range.start * size_of::<T>();
            // Only advice: a value that was not read ahead is read when it is needed.
            if let Err(error) = map.advise_range(Advice::WillNeed, begin, range.len() * size_of::<T>()) {
                tracing::debug!("reading ahead: {error}");
            }
        }
    }

    /// Drops the pages of the whole mapped file from this process's memory; the next read maps them again. Does nothing for values in memory.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn release_pages(&self) -> io::Result<()> {
        match &self.source {
            Source::Mapped(map, _) => kdgat_mapped::release_pages(map),
            Source::Owned(_) => Ok(()),
        }
    }

    /// Place of the values in their file; `None` for values in memory, or in a map whose file is unknown.
    pub fn place(&self) -> Option<FilePlace> {
        match (&self.source, &self.file) {
            (Source::Mapped(_, bytes), Some(path)) => Some(FilePlace { path: Arc::clone(path), bytes: bytes.clone() }),
            _ => None,
        }
    }
}

impl<T> From<Vec<T>> for Section<T> {
    fn from(values: Vec<T>) -> Self {
        Self { source: Source::Owned(Arc::new(values)), file: None, is_random: Arc::default() }
    }
}

impl<T: Pod> Deref for Section<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.source {
            Source::Owned(values) => values,
            // `mapped` has checked bounds and alignment.
            Source::Mapped(map, bytes) => bytemuck::cast_slice(&map[bytes.clone()]),
        }
    }
}

/// Node features, one row for each node.
#[derive(Debug, Clone)]
pub enum Features {
    /// `[num_nodes, columns]`.
    Dense {
        /// Number of features.
        columns: usize,
        /// All rows, one after another.
        values: Section<f32>,
    },
    /// `[num_nodes, columns]`, in half precision.
    Half {
        /// Number of features.
        columns: usize,
        /// All rows, one after another: the bits of IEEE half precision.
        values: Section<u16>,
    },
    /// Rows with few values that are not zero.
    Sparse {
        /// Number of features.
        columns: usize,
        /// `[num_nodes + 1]`: values of node `i` are `row_pointers[i]..row_pointers[i + 1]`.
        row_pointers: Section<u64>,
        /// Column of each value, ascending in each row.
        column_index: Section<u32>,
        /// The values.
        values: Section<f32>,
    },
}

impl Features {
    /// Number of features.
    pub fn columns(&self) -> usize {
        match self {
            Self::Dense { columns, .. } | Self::Half { columns, .. } | Self::Sparse { columns, .. } => *columns,
        }
    }

    /// Writes the features of these nodes as dense rows, `[nodes, columns]`, whatever the form.
    ///
    /// # Panics
    /// If `rows` has another size, or the graph no such node.
    pub fn write_rows(&self, nodes: &[u32], rows: &mut [f32]) {
        let columns = self.columns();
        assert_eq!(rows.len(), nodes.len() * columns, "{} rows of {columns} features", nodes.len());
        // Without columns there is nothing to write.
        let rows = nodes.iter().map(|&node| node as usize).zip(rows.chunks_exact_mut(columns.max(1)));
        match self {
            Self::Dense { values, .. } => {
                let values: &[f32] = values;
                rows.for_each(|(node, row)| row.copy_from_slice(&values[node * columns..][..columns]));
            }
            Self::Half { values, .. } => {
                let values: &[f16] = values.reinterpret_cast();
                rows.for_each(|(node, row)| values[node * columns..][..columns].convert_to_f32_slice(row));
            }
            Self::Sparse { row_pointers, column_index, values, .. } => {
                let (row_pointers, column_index, values): (&[u64], &[u32], &[f32]) =
                    (row_pointers, column_index, values);
                for (node, row) in rows {
                    row.fill(0.0);
                    let stored = row_pointers[node] as usize..row_pointers[node + 1] as usize;
                    for (&column, &value) in column_index[stored.clone()].iter().zip(&values[stored]) {
                        row[column as usize] = value;
                    }
                }
            }
        }
    }

    /// Bytes of all values, and of their places if they are sparse.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Dense { values, .. } => values.len() * size_of::<f32>(),
            Self::Half { values, .. } => values.len() * size_of::<u16>(),
            Self::Sparse { row_pointers, column_index, values, .. } => {
                row_pointers.len() * size_of::<u64>() + (column_index.len() + values.len()) * size_of::<f32>()
            }
        }
    }
}

/// Meaning of the labels of a graph's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTask {
    /// Number of classes.
    pub classes: usize,
}

/// The set that a source assigns to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum GivenSet {
    /// None.
    None = 0,
    /// Training.
    Training = 1,
    /// Validation.
    Validation = 2,
    /// Test.
    Test = 3,
}

/// One graph of many nodes.
#[derive(Debug, Clone)]
pub struct NodeGraph {
    /// Name of the dataset.
    pub name: String,
    /// Digest of the contents: equal graphs have equal digests.
    pub digest: String,
    /// `[num_nodes + 1]`: edges that lead to node `i` are `row_pointers[i]..row_pointers[i + 1]`.
    pub row_pointers: Section<u64>,
    /// `[num_edges]`: the node that each edge comes from, ascending for each target, without repetition and without self-loops.
    pub sources: Section<u32>,
    /// Node features.
    pub features: Features,
    /// `[num_nodes]`: class of each node, [`NO_LABEL`] for a node without one.
    pub labels: Section<i32>,
    /// Meaning of the labels.
    pub task: NodeTask,
    /// `[num_nodes]`: the [`GivenSet`] of each node; `None` if the source gives no split.
    pub given_split: Option<Section<u8>>,
    /// `[num_nodes]`: hash of each node's identifier and features in the source, before they were normalised or rounded.
    pub node_hashes: Section<u64>,
    /// `[num_nodes]`: number of each node in its source; `None` if all nodes of the source are here, in its order.
    pub original: Option<Section<u64>>,
}

impl NodeGraph {
    /// Prepares for sampling where the edges do not fit into memory: see [`Section::read_randomly`].
    ///
    /// # Errors
    /// Any error of the system.
    pub fn read_edges_randomly(&self) -> io::Result<()> {
        self.row_pointers.read_randomly()?;
        self.sources.read_randomly()
    }

    /// Tells the system that edges are read in their order: [`Section::read_in_order`].
    ///
    /// # Errors
    /// Any error of the system.
    pub fn read_edges_in_order(&self) -> io::Result<()> {
        self.row_pointers.read_in_order()?;
        self.sources.read_in_order()
    }

    /// Bytes of the edges: of their sources, and of the row pointers.
    pub fn edge_bytes(&self) -> usize {
        size_of_val(&self.row_pointers[..]) + size_of_val(&self.sources[..])
    }

    /// A ring of nodes with equal features, all of class 0: enough to run a network on.
    pub fn ring(nodes: usize, columns: usize, classes: usize) -> Self {
        let neighbours = |node: usize| {
            let mut both = [(node + nodes - 1) % nodes, (node + 1) % nodes].map(|node| node as u32);
            both.sort_unstable();
            both
        };
        Self {
            name: "ring".to_owned(),
            digest: format!("ring of {nodes} nodes, {columns} features, {classes} classes"),
            row_pointers: (0..=nodes as u64).map(|node| 2 * node).collect::<Vec<_>>().into(),
            sources: (0..nodes).flat_map(neighbours).collect::<Vec<_>>().into(),
            features: Features::Dense { columns, values: vec![0.5; nodes * columns].into() },
            labels: vec![0; nodes].into(),
            task: NodeTask { classes },
            given_split: None,
            node_hashes: (0..nodes as u64).collect::<Vec<_>>().into(),
            original: None,
        }
    }

    /// Number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.labels.len()
    }

    /// Number of directed edges: an undirected edge counts twice.
    pub fn num_edges(&self) -> usize {
        self.sources.len()
    }

    /// The nodes from which edges lead to `node`, ascending.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn neighbours(&self, node: u32) -> &[u32] {
        let ends = &self.row_pointers[node as usize..node as usize + 2];
        &self.sources[ends[0] as usize..ends[1] as usize]
    }

    /// Number of the node in its source.
    pub fn original_number(&self, node: u32) -> u64 {
        self.original.as_ref().map_or(u64::from(node), |numbers| numbers[node as usize])
    }
}
