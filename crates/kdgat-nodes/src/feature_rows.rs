//! Rows of node features as batches read them: from the mapped store, around the page cache, or from memory; the most read ones from a
//! cache that is filled once. The bytes of a batch are the same in every way.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use kdgat_graph::{NodeFeatures, StoreError};
use kdgat_torch::allocator::{self, Phase};
use kdgat_torch::direct_read::{ALIGNMENT, DirectFile, DirectReader, Method, Span};
use kdgat_torch::view;
use parking_lot::Mutex;
use tch::{Device, Kind, TchError, Tensor};

use super::Features;
use super::gather::features_of;
use super::hot_rows::HotNodes;
use super::node_graph::FilePlace;

/// Largest span of a direct read, unless a row is longer.
const SPAN_BYTES: usize = 64 << 10;
/// Unneeded bytes between two rows that are read along rather than starting another read: a disk takes about as long for 16 KiB as for
/// another request.
const GAP_BYTES: u64 = 16 << 10;
/// Bytes of one read when a section is copied to memory.
const CHUNK_BYTES: usize = 8 << 20;

/// Place that rows are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowAccess {
    /// The mapped store: pages stay in the system's cache while it has memory.
    Mapped,
    /// The store's file, around the system's cache.
    Direct,
    /// Memory, read once.
    Resident,
}

/// Features of the nodes of a graph, for batches.
#[derive(Debug)]
pub struct FeatureRows {
    features: Features,
    layout: Option<Layout>,
    place: Place,
    hot: Option<HotRows>,
    counts: Counts,
}

/// Rows of one length, as a file has them.
#[derive(Debug, Clone, Copy)]
struct Layout {
    columns: usize,
    encoding: Encoding,
}

#[derive(Debug, Clone, Copy)]
enum Encoding {
    Single,
    Half,
}

impl Layout {
    /// `None` for sparse features, whose rows have different lengths.
    fn of(features: &Features) -> Option<Self> {
        let columns = features.columns();
        match features {
            Features::Dense { .. } => Some(Self { columns, encoding: Encoding::Single }),
            Features::Half { .. } => Some(Self { columns, encoding: Encoding::Half }),
            Features::Sparse { .. } => None,
        }
    }

    fn row_bytes(self) -> usize {
        self.columns
            * match self.encoding {
                Encoding::Single => size_of::<f32>(),
                Encoding::Half => size_of::<f16>(),
            }
    }

    fn row(self, node: u32) -> Range<usize> {
        node as usize * self.row_bytes()..(node as usize + 1) * self.row_bytes()
    }

    /// Writes a row of a file to a row of a batch.
    fn decode(self, bytes: &[u8], row: &mut [f32]) {
        // An empty row has no alignment.
        if row.is_empty() {
            return;
        }
        match self.encoding {
            Encoding::Single => row.copy_from_slice(bytemuck::cast_slice(bytes)),
            Encoding::Half => {
                let bits: &[u16] = bytemuck::cast_slice(bytes);
                let values: &[f16] = bits.reinterpret_cast();
                values.convert_to_f32_slice(row);
            }
        }
    }
}

#[derive(Debug)]
enum Place {
    Mapped,
    Direct { file: Arc<DirectFile>, place: FilePlace },
    Resident(SharedBytes),
}

/// A tensor of bytes that threads read; behind a lock because tensors are not `Sync`.
#[derive(Debug)]
struct SharedBytes(Mutex<Tensor>);

impl SharedBytes {
    fn new(tensor: Tensor) -> Self {
        Self(Mutex::new(tensor))
    }

    fn handle(&self) -> Tensor {
        self.0.lock().shallow_clone()
    }
}

/// Rows that are kept in memory.
#[derive(Debug)]
struct HotRows {
    nodes: HotNodes,
    /// `[hot nodes · row bytes]`.
    rows: SharedBytes,
}

/// Rows and bytes that all readers have read.
#[derive(Debug, Default)]
struct Counts {
    rows: AtomicU64,
    hot: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

/// Rows and bytes that were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Rows of batches.
    pub rows: u64,
    /// Rows that were hot.
    pub hot: u64,
    /// Direct reads.
    pub reads: u64,
    /// Bytes of direct reads.
    pub read_bytes: u64,
}

impl FeatureRows {
    /// Rows that are read from the mapped store, or from memory if the graph is there.
    pub fn mapped(features: &Features) -> Self {
        Self::new(features, Place::Mapped)
    }

    fn new(features: &Features, place: Place) -> Self {
        let (layout, features) = (Layout::of(features), features.clone());
        Self { features, layout, place, hot: None, counts: Counts::default() }
    }

    /// Rows that are read from this place.
    ///
    /// # Errors
    /// Sparse features or a graph without a file, unless they are mapped; a file that cannot be read; no memory for resident rows.
    pub fn open(features: &Features, access: RowAccess) -> Result<Self, StoreError> {
        let place = match access {
            RowAccess::Mapped => Place::Mapped,
            RowAccess::Direct => {
                let place = file_place(features, access)?;
                let file = DirectFile::open(&place.path).map_err(failed("open", &place.path))?;
                Place::Direct { file: Arc::new(file), place }
            }
            RowAccess::Resident => Place::Resident(SharedBytes::new(read_section(&file_place(features, access)?)?)),
        };
        Ok(Self::new(features, place))
    }

    /// The same rows, with those of some nodes kept in memory.
    ///
    /// # Errors
    /// Sparse features, rows that cannot be read, or no memory for them.
    pub fn with_hot(mut self, nodes: HotNodes) -> Result<Self, StoreError> {
        let layout = self.layout.ok_or_else(|| sparse("hot_rows"))?;
        let row_bytes = layout.row_bytes();
        let mut rows = bytes(nodes.len() * row_bytes)?;
        let order: Vec<u64> = (0..).zip(nodes.iter()).map(|(slot, node)| key(node, slot)).collect();
        {
            let to = view::write::<u8>("hot rows", &mut rows).map_err(of_tensor)?;
            let mut reader = self.reader()?;
            reader.order = order;
            reader.visit(layout, |slot, row| to[slot * row_bytes..][..row_bytes].copy_from_slice(row))?;
        }
        self.hot = Some(HotRows { nodes, rows: SharedBytes::new(rows) });
        self.counts = Counts::default();
        Ok(self)
    }

    /// Place that rows are read from.
    pub fn access(&self) -> RowAccess {
        match &self.place {
            Place::Mapped => RowAccess::Mapped,
            Place::Direct { .. } => RowAccess::Direct,
            Place::Resident(_) => RowAccess::Resident,
        }
    }

    /// False if direct reads go through the system's cache, because the file system has no others.
    pub fn is_direct(&self) -> bool {
        matches!(&self.place, Place::Direct { file, .. } if file.is_direct())
    }

    /// Number of rows that are kept in memory.
    pub fn num_hot(&self) -> usize {
        self.hot.as_ref().map_or(0, |hot| hot.nodes.len())
    }

    /// Bytes of a row; `None` for sparse features.
    pub fn row_bytes(&self) -> Option<usize> {
        self.layout.map(Layout::row_bytes)
    }

    /// Rows and bytes that all readers have read so far.
    pub fn counts(&self) -> RowCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { rows, hot, reads, read_bytes } = &self.counts;
        RowCounts { rows: of(rows), hot: of(hot), reads: of(reads), read_bytes: of(read_bytes) }
    }

    /// A reader for one thread.
    ///
    /// # Errors
    /// No memory for the buffers of direct reads.
    pub fn reader(&self) -> Result<RowReader<'_>, StoreError> {
        let direct = match (&self.place, self.layout) {
            (Place::Direct { file, place }, Some(layout)) => {
                // A row may begin and end within a block.
                let span_bytes = SPAN_BYTES.max(layout.row_bytes() + 2 * ALIGNMENT);
                let reader = DirectReader::new(file, span_bytes).map_err(failed("read", &place.path))?;
                Some(Direct { reader, place, spans: Vec::new(), first: Vec::new() })
            }
            _ => None,
        };
        let resident = match &self.place {
            Place::Resident(rows) => Some(rows.handle()),
            _ => None,
        };
        let hot = self.hot.as_ref().map(|hot| (&hot.nodes, hot.rows.handle()));
        Ok(RowReader { rows: self, direct, resident, hot, order: Vec::new() })
    }
}

/// The file of dense features.
fn file_place(features: &Features, access: RowAccess) -> Result<FilePlace, StoreError> {
    let place = match features {
        Features::Dense { values, .. } => values.place(),
        Features::Half { values, .. } => values.place(),
        Features::Sparse { .. } => return Err(sparse("features_from")),
    };
    place.ok_or_else(|| StoreError::Parameter {
        name: "features_from",
        value: format!("{access:?}").to_lowercase(),
        expected: "mapped for a graph that has no store",
    })
}

fn sparse(name: &'static str) -> StoreError {
    StoreError::Parameter { name, value: "given".to_owned(), expected: "left out for sparse features, which are small" }
}

/// A tensor of so many bytes, counted as data.
fn bytes(count: usize) -> Result<Tensor, StoreError> {
    let _phase = allocator::enter_phase(Phase::Data);
    Tensor::f_empty([count as i64], (Kind::Uint8, Device::Cpu)).map_err(of_tensor)
}

fn of_tensor(source: TchError) -> StoreError {
    StoreError::Tensor { tensor: "features", source }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path: PathBuf = path.to_path_buf();
    move |source| StoreError::Io { action, path, source }
}

/// Reads a section to memory, around the map: an error has its place, and no page stays mapped.
fn read_section(place: &FilePlace) -> Result<Tensor, StoreError> {
    let FilePlace { path, bytes: range } = place;
    let file = File::open(path).map_err(failed("open", path))?;
    let mut tensor = bytes(range.len())?;
    let to = view::write::<u8>("features", &mut tensor).map_err(of_tensor)?;
    let mut offset = range.start as u64;
    for chunk in to.chunks_mut(CHUNK_BYTES) {
        let read = file.read_exact_at(chunk, offset);
        read.map_err(|source| of_span(place, Span { offset, bytes: chunk.len() }, source))?;
        offset += chunk.len() as u64;
    }
    Ok(tensor)
}

/// The error of a read with its place in the section.
fn of_span(place: &FilePlace, span: Span, source: io::Error) -> StoreError {
    let Span { offset, bytes } = span;
    let text = format!("{bytes} bytes at byte {offset} of the file, in section features ({:?}): {source}", place.bytes);
    let advice = match source.kind() {
        io::ErrorKind::UnexpectedEof => "; the file was cut off: delete it, and it is built again from its source",
        _ => "",
    };
    failed("read", &place.path)(io::Error::new(source.kind(), text + advice))
}

/// A node and its row in a batch as one number, so that nodes sort first.
fn key(node: u32, row: u32) -> u64 {
    u64::from(node) << 32 | u64::from(row)
}

fn node_and_row(key: u64) -> (u32, usize) {
    ((key >> 32) as u32, key as u32 as usize)
}

/// Reads rows on one thread; reuses its memory.
#[derive(Debug)]
pub struct RowReader<'a> {
    rows: &'a FeatureRows,
    direct: Option<Direct<'a>>,
    resident: Option<Tensor>,
    hot: Option<(&'a HotNodes, Tensor)>,
    /// Nodes to read and their rows, ascending.
    order: Vec<u64>,
}

#[derive(Debug)]
struct Direct<'a> {
    reader: DirectReader,
    place: &'a FilePlace,
    spans: Vec<Span>,
    /// Position in the order of each span's first row, and the number of rows at the end.
    first: Vec<usize>,
}

impl RowReader<'_> {
    /// Features of these nodes, one row each: `[nodes, columns]`.
    ///
    /// # Errors
    /// A read that fails or ends early, with the file, the place and the section; those of libtorch, out of memory included.
    ///
    /// # Panics
    /// If the graph has no such node.
    pub fn read(&mut self, nodes: &[u32]) -> Result<NodeFeatures, StoreError> {
        let counts = &self.rows.counts;
        counts.rows.fetch_add(nodes.len() as u64, Ordering::Relaxed);
        let Some(layout) = self.rows.layout else {
            return features_of(&self.rows.features, nodes).map_err(of_tensor);
        };
        let (columns, row_bytes) = (layout.columns, layout.row_bytes());
        let mut tensor =
            Tensor::f_empty([nodes.len() as i64, columns as i64], (Kind::Float, Device::Cpu)).map_err(of_tensor)?;
        let to = view::write::<f32>("features", &mut tensor).map_err(of_tensor)?;
        if let Some(resident) = &self.resident {
            let from = view::read::<u8>("features", resident).map_err(of_tensor)?;
            for (&node, row) in nodes.iter().zip(to.chunks_exact_mut(columns.max(1))) {
                layout.decode(&from[layout.row(node)], row);
            }
            return Ok(NodeFeatures::Dense(tensor));
        }
        self.order.clear();
        match &self.hot {
            None => self.order.extend((0..).zip(nodes).map(|(row, &node)| key(node, row))),
            Some((hot, rows)) => {
                let from = view::read::<u8>("hot rows", rows).map_err(of_tensor)?;
                for (row, &node) in (0..).zip(nodes) {
                    match hot.slot(node) {
                        Some(slot) => {
                            let to = &mut to[row as usize * columns..][..columns];
                            layout.decode(&from[slot * row_bytes..][..row_bytes], to);
                        }
                        None => self.order.push(key(node, row)),
                    }
                }
                counts.hot.fetch_add((nodes.len() - self.order.len()) as u64, Ordering::Relaxed);
            }
        }
        self.order.sort_unstable();
        self.visit(layout, |row, bytes| layout.decode(bytes, &mut to[row * columns..][..columns]))?;
        Ok(NodeFeatures::Dense(tensor))
    }

    /// Calls `found` with the row and the bytes of each node of `order`.
    fn visit(&mut self, layout: Layout, mut found: impl FnMut(usize, &[u8])) -> Result<(), StoreError> {
        if layout.columns == 0 {
            return Ok(());
        }
        let Some(direct) = &mut self.direct else {
            let values: &[u8] = match (&self.rows.features, &self.resident) {
                (_, Some(resident)) => view::read::<u8>("features", resident).map_err(of_tensor)?,
                (Features::Dense { values, .. }, _) => bytemuck::cast_slice(values),
                (Features::Half { values, .. }, _) => bytemuck::cast_slice(values),
                (Features::Sparse { .. }, _) => return Err(sparse("hot_rows")),
            };
            for &key in &self.order {
                let (node, row) = node_and_row(key);
                found(row, &values[layout.row(node)]);
            }
            return Ok(());
        };
        direct.plan(layout, &self.order);
        let Direct { reader, place, spans, first } = direct;
        let counts = &self.rows.counts;
        counts.reads.fetch_add(spans.len() as u64, Ordering::Relaxed);
        counts.read_bytes.fetch_add(spans.iter().map(|span| span.bytes as u64).sum(), Ordering::Relaxed);
        let (order, begin) = (&self.order, place.bytes.start);
        let done = |number: usize, bytes: &[u8]| {
            let offset = spans[number].offset as usize;
            for &key in &order[first[number]..first[number + 1]] {
                let (node, row) = node_and_row(key);
                let of_row = layout.row(node);
                found(row, &bytes[begin + of_row.start - offset..begin + of_row.end - offset]);
            }
        };
        reader.read(spans, done).map_err(|error| of_span(place, error.span, error.source))
    }

    /// Method of direct reads.
    pub fn method(&self) -> Option<Method> {
        self.direct.as_ref().map(|direct| direct.reader.method())
    }
}

impl Direct<'_> {
    /// Joins the blocks of the rows of `order` to spans.
    fn plan(&mut self, layout: Layout, order: &[u64]) {
        let (spans, first) = (&mut self.spans, &mut self.first);
        spans.clear();
        first.clear();
        let (begin, largest) = (self.place.bytes.start as u64, self.reader.span_bytes() as u64);
        let alignment = ALIGNMENT as u64;
        for (position, &key) in order.iter().enumerate() {
            let row = layout.row(node_and_row(key).0);
            let from = (begin + row.start as u64) / alignment * alignment;
            let to = (begin + row.end as u64).next_multiple_of(alignment);
            if let Some(span) = spans.last_mut()
                && from <= span.offset + span.bytes as u64 + GAP_BYTES
                && to - span.offset <= largest
            {
                span.bytes = (to - span.offset).max(span.bytes as u64) as usize;
            } else {
                spans.push(Span { offset: from, bytes: (to - from) as usize });
                first.push(position);
            }
        }
        first.push(order.len());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use proptest::prelude::*;

    use super::*;
    use crate::store::{Provenance, open, write};
    use crate::test_graphs::random_graph;
    use crate::{GraphOptions, NodeGraph, Section, SourceNotes};

    /// A graph in a store: features of node `i` begin with `i`.
    fn stored(nodes: usize, columns: usize, half: bool, folder: &Path) -> (NodeGraph, PathBuf) {
        let value = |node: usize, column: usize| if column == 0 { node as f32 } else { (node % 97 + column) as f32 };
        let table = (0..nodes).flat_map(|node| (0..columns).map(move |column| value(node, column)));
        let features = match half {
            false => Features::Dense { columns, values: table.collect::<Vec<f32>>().into() },
            true => {
                let bits = table.map(|value| f16::from_f32(value).to_bits()).collect::<Vec<u16>>();
                Features::Half { columns, values: bits.into() }
            }
        };
        let graph = NodeGraph { features, ..random_graph(nodes, 50, 3) };
        let path = folder.join("graph.kdgat-nodes");
        let provenance = Provenance {
            source_digest: "0".repeat(64),
            options: GraphOptions::default(),
            notes: SourceNotes::default(),
        };
        write(&graph, provenance, &path).unwrap();
        (open(&path).unwrap(), path)
    }

    fn values(features: NodeFeatures) -> Vec<f32> {
        let NodeFeatures::Dense(rows) = features else { panic!("dense features expected") };
        Vec::<f32>::try_from(&rows.reshape([-1])).unwrap()
    }

    const ALL: [RowAccess; 3] = [RowAccess::Mapped, RowAccess::Direct, RowAccess::Resident];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn every_way_reads_the_same_bytes(
            columns in prop_oneof![Just(0usize), Just(128), Just(3), 1usize..40, Just(9000)],
            half: bool,
            nodes in prop::collection::vec(0u32..300, 0..400),
            hot in 0usize..400,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let (graph, _) = stored(300, columns, half, folder.path());
            let expected = values(features_of(&graph.features, &nodes).unwrap());
            let likely: Vec<f32> = (0..300).map(|node| (node % 7) as f32 / 7.0).collect();
            for access in ALL {
                let rows = FeatureRows::open(&graph.features, access).unwrap();
                prop_assert_eq!(rows.access(), access);
                let hot = HotNodes::most_likely(&likely, hot);
                let hits = nodes.iter().filter(|&&node| hot.slot(node).is_some()).count() as u64;
                let count = hot.len();
                let found = values(rows.reader().unwrap().read(&nodes).unwrap());
                prop_assert!(found == expected, "{:?}", access);
                if access != RowAccess::Resident {
                    let rows = rows.with_hot(hot).unwrap();
                    prop_assert_eq!(rows.num_hot(), count);
                    let mut reader = rows.reader().unwrap();
                    for _ in 0..2 {
                        prop_assert!(values(reader.read(&nodes).unwrap()) == expected, "{:?}, hot", access);
                    }
                    let counts = rows.counts();
                    prop_assert_eq!((counts.rows, counts.hot), (2 * nodes.len() as u64, 2 * hits));
                }
            }
        }
    }

    #[test]
    fn neighbouring_blocks_are_one_read() {
        let folder = tempfile::tempdir().unwrap();
        let (graph, _) = stored(4000, 128, false, folder.path());
        let rows = FeatureRows::open(&graph.features, RowAccess::Direct).unwrap();
        let mut reader = rows.reader().unwrap();
        let reads = |reader: &mut RowReader, nodes: &[u32]| {
            let before = rows.counts();
            reader.read(nodes).unwrap();
            let after = rows.counts();
            (after.reads - before.reads, after.read_bytes - before.read_bytes)
        };
        // Eight rows of 512 bytes in a block.
        assert_eq!(reads(&mut reader, &[7, 0, 3]), (1, 4096));
        assert_eq!(reads(&mut reader, &[16, 0]), (1, 3 * 4096), "a gap of one block");
        assert_eq!(reads(&mut reader, &[0, 800]), (2, 2 * 4096));
        let all: Vec<u32> = (0..4000).rev().collect();
        assert_eq!(reads(&mut reader, &all), (32, 4000 * 512), "64 KiB at a time");
    }

    #[test]
    fn a_file_that_was_cut_off_is_named_with_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let (graph, path) = stored(4000, 128, true, folder.path());
        let Features::Half { values, .. } = &graph.features else { panic!("half precision expected") };
        let place = values.place().unwrap();
        let rows = FeatureRows::open(&graph.features, RowAccess::Direct).unwrap();
        let cut = (place.bytes.start + 40 * 4096) as u64;
        OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
        let mut reader = rows.reader().unwrap();
        reader.read(&[3, 100]).unwrap();
        let error = reader.read(&[3, 3999]).unwrap_err();
        assert!(matches!(error, StoreError::Io { .. }));
        for text in ["graph.kdgat-nodes", "in section features", "of the file", "delete it"] {
            assert!(error.to_string().contains(text), "{error}");
        }
        let error = FeatureRows::open(&graph.features, RowAccess::Resident).unwrap_err().to_string();
        assert!(error.contains("in section features"), "{error}");
    }

    #[test]
    fn a_graph_without_a_file_and_sparse_features_are_only_mapped() {
        let graph = random_graph(20, 30, 1);
        let error = |features: &Features| FeatureRows::open(features, RowAccess::Direct).unwrap_err().to_string();
        assert_eq!(error(&graph.features), "features_from is direct, but must be mapped for a graph that has no store");
        let sparse = Features::Sparse {
            columns: 3,
            row_pointers: Section::from(vec![0u64; 21]),
            column_index: Section::from(Vec::new()),
            values: Section::from(Vec::new()),
        };
        assert!(error(&sparse).contains("left out for sparse features"));
        let rows = FeatureRows::open(&sparse, RowAccess::Mapped).unwrap();
        assert_eq!(rows.reader().unwrap().read(&[1, 2]).unwrap().num_rows(), 2);
        assert!(rows.with_hot(HotNodes::most_likely(&[1.0; 20], 3)).is_err());
    }
}
