//! Builds a store as a stream: the memory of a build is limited, whatever the size of the graph.
//!
//! 1. Labels and split are checked and put into temporary files.
//! 2. A listed edge is put into the bucket of its target: a temporary file for a range of targets. Edges that can be drawn again at any
//!    time need no buckets.
//! 3. Each bucket is sorted and loses its repetitions; pointers and sources of its targets are appended to the store.
//! 4. Rows of features are appended, with the hash of each node; then labels and split.
//! 5. All arrays are read again for checksums and digest; the header is written, and the file renamed.
//!
//! The bytes are those of [`store::write`](crate::store::write) for the same graph, whatever the limits. A [`work::Work`] folder beside the
//! store holds the temporary files and a journal of what is done, so that a killed build resumes there.

mod buckets;
mod edges;
mod seal;
#[cfg(test)]
mod tests;
mod work;

use std::fs;
use std::io::{BufWriter, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::NodesError;
use crate::class_numbers::ClassNumbers;
use crate::node_graph::NO_LABEL;
use crate::sources::{GraphOptions, MOST_CLASSES, RowBlock, SourceNotes};
use crate::store::header::{FeatureKind, Header, PAGE_BYTES, Section};
use crate::store::{self, Provenance};

pub(crate) use buckets::most_edges;
pub(crate) use edges::{Bucket, Buckets, key};
use work::Journal;
pub(crate) use work::Work;

/// Memory of a build without another limit, in bytes.
pub const DEFAULT_MEMORY: u64 = 2 << 30;
/// Edges handed over together.
pub(crate) const EDGE_BLOCK: usize = 1 << 16;
/// Bytes of features between two entries of the journal.
const ROWS_BETWEEN_ENTRIES: u64 = 1 << 30;
/// Bytes of labels and sets handled together.
const BLOCK_BYTES: usize = 1 << 20;

/// Bytes of a node's hash.
const HASH_BYTES: u64 = 8;

const LABELS: &str = "labels";
const SPLIT: &str = "split";

/// Limits of a build, and the receiver of its events.
#[derive(Clone, Copy)]
pub struct Build<'a> {
    /// Limit of the build's own memory, in bytes; a build needs 8 bytes for each distinct edge of its largest row in any case.
    pub memory: u64,
    /// Threads that sort and draw.
    pub threads: usize,
    /// Receiver of the events.
    pub progress: &'a dyn Progress,
}

impl Build<'_> {
    /// Reports that a part of a step is done.
    ///
    /// # Errors
    /// [`NodesError::Stopped`] if the build shall stop.
    pub(crate) fn advance(&self, step: Step, done: u64, total: u64) -> Result<(), NodesError> {
        self.progress.report(&Event::Advanced { step, done, total });
        if self.progress.stop_requested() { Err(NodesError::Stopped) } else { Ok(()) }
    }
}

/// Receives the events of a build. `()` ignores them.
pub trait Progress: Sync {
    /// Reports an event.
    fn report(&self, event: &Event<'_>);

    /// True if the build shall stop; it can be resumed.
    fn stop_requested(&self) -> bool {
        false
    }
}

impl Progress for () {
    fn report(&self, _: &Event<'_>) {}
}

/// An event of a build.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// Another process builds the same store; this one waits.
    Waiting {
        /// The folder of that build.
        folder: &'a Path,
    },
    /// The build starts.
    Started {
        /// Nodes of the source.
        nodes: u64,
        /// Edges that the source lists.
        edges: u64,
        /// Bytes of disk for the store and the temporary files, at most unless a bucket is too full to be sorted in memory.
        needed: u64,
        /// Free bytes of that disk.
        free: u64,
    },
    /// An interrupted build is resumed with this step.
    Resuming {
        /// The step.
        step: Step,
    },
    /// A part of a step is done.
    Advanced {
        /// The step.
        step: Step,
        /// Units that are done.
        done: u64,
        /// All units.
        total: u64,
    },
}

/// A step of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Reads labels and split; counts nodes.
    Labels,
    /// Reads listed edges, or counts drawn ones; counts edges.
    Edges,
    /// Sorts edges by target; counts targets.
    Sort,
    /// Writes rows of features; counts nodes.
    Features,
    /// Computes checksums; counts bytes.
    Checksums,
}

impl Step {
    /// The step as the beginning of a line, and the noun of its units.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Labels => ("reading labels", "nodes"),
            Self::Edges => ("reading edges", "edges"),
            Self::Sort => ("sorting edges", "targets"),
            Self::Features => ("writing features", "nodes"),
            Self::Checksums => ("computing checksums", "bytes"),
        }
    }
}

/// What is known of a graph before its contents are read.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    /// The source, for messages.
    pub source: PathBuf,
    /// Name of the dataset.
    pub name: String,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of listed edges.
    pub edges: u64,
    /// Number of features.
    pub columns: usize,
    /// True if the source gives a split.
    pub has_split: bool,
    /// Number of classes that labels need not reach, or 0.
    pub classes: usize,
    /// Columns, arrays and files of the source that nothing reads.
    pub ignored_columns: Vec<String>,
    /// Digest of the source.
    pub source_digest: String,
    /// Options of reading; the largest component is not looked for.
    pub options: GraphOptions,
}

impl Sizes {
    /// Directed edges of each listed one.
    pub fn directions(&self) -> u64 {
        if self.options.undirected { 2 } else { 1 }
    }

    /// Bytes of a row of features.
    pub fn row_bytes(&self) -> u64 {
        self.columns as u64 * if self.options.half { 2 } else { 4 }
    }

    /// Most bytes of disk that a build needs at any time. Buckets vanish while sources are written, at half of their size.
    fn needed(&self, header: u64, has_buckets: bool) -> u64 {
        let (nodes, edges) = (self.nodes as u64, self.edges * self.directions());
        let of_nodes = 5 * nodes;
        let rows = (self.row_bytes() + HASH_BYTES) * nodes;
        let store = header + 8 * (nodes + 1) + 4 * edges + rows + of_nodes + 6 * PAGE_BYTES as u64;
        let buckets = if has_buckets { 8 * edges } else { 0 };
        of_nodes + store.max(buckets + header + 8 * (nodes + 1))
    }
}

/// A graph that is read in order, more than once if need be, and never held in memory.
pub(crate) trait GraphStream: Sync {
    /// What is known before anything is read.
    fn sizes(&self) -> &Sizes;

    /// Hands over the class of each node, in order.
    fn labels(&self, each: &mut dyn FnMut(i32) -> Result<(), NodesError>) -> Result<(), NodesError>;

    /// The sets of a range of nodes. Called only if there is a split.
    fn split(&self, nodes: Range<usize>) -> Result<Vec<u8>, NodesError>;

    /// The edges.
    fn edges(&self) -> Edges<'_>;

    /// Puts the rows of features from a node on.
    fn features(&self, from: usize, rows: &dyn Rows) -> Result<(), NodesError>;
}

/// The edges of a stream.
pub(crate) enum Edges<'a> {
    /// A list that is read from its beginning.
    Listed(&'a dyn ListedEdges),
    /// Edges that can be drawn again at any time.
    Drawn(&'a dyn DrawnEdges),
}

/// Takes a block of edges: source and target of each.
pub(crate) type TakeEdges<'a> = dyn FnMut(&[(u32, u32)]) -> Result<(), NodesError> + 'a;

/// A list of edges.
pub(crate) trait ListedEdges {
    /// Hands over blocks of edges: source and target of each.
    fn each_block(&self, each: &mut TakeEdges<'_>) -> Result<(), NodesError>;
}

/// Edges that can be drawn again at any time.
pub(crate) trait DrawnEdges {
    /// The edges that lead to targets from `from` on, which is the end of an earlier bucket or 0.
    fn buckets<'a>(&'a self, from: u64, build: &Build<'_>) -> Result<Drawn<'a>, NodesError>;
}

/// Buckets of drawn edges.
pub(crate) struct Drawn<'a> {
    /// The buckets.
    pub buckets: Box<dyn Buckets + 'a>,
    /// Drawn edges from a node to itself, which no bucket has.
    pub self_loops: u64,
}

/// Receives rows of features.
pub(crate) trait Rows: Sync {
    /// Writes whole rows and the hashes of their nodes. Different threads may write different rows.
    fn put(&self, block: &RowBlock) -> Result<(), NodesError>;

    /// Notes that all rows below `rows` are put.
    fn done(&self, rows: usize) -> Result<(), NodesError>;
}

/// Builds the store of a stream at `path`, or resumes its build. Does nothing if another process has built it meanwhile.
///
/// # Errors
/// Those of the stream, too little space, [`NodesError::Stopped`], or any error of the disk.
pub(crate) fn build(stream: &dyn GraphStream, path: &Path, build: &Build<'_>) -> Result<(), NodesError> {
    let sizes = stream.sizes();
    let Some(mut work) = Work::open(path, &key_of(sizes), build.progress)? else { return Ok(()) };
    match fill(stream, &mut work, build) {
        Ok(header) => seal::seal(sizes, work, header, build),
        // The same files would give the same error: nothing could resume this build.
        Err(error @ NodesError::Invalid { .. }) => work.discard().and(Err(error)),
        Err(error) => Err(error),
    }
}

/// Removes the folder that a build leaves if it is killed after its last step, between giving the store its name and its end.
///
/// # Errors
/// Any error of the disk.
pub(crate) fn remove_rest(path: &Path) -> Result<(), NodesError> {
    if work::folder_of(path).is_dir() {
        // There is nothing to build, so that no key is needed.
        Work::open(path, "", &())?;
    }
    Ok(())
}

/// Writes all arrays; returns the bytes of the header that goes before them.
fn fill(stream: &dyn GraphStream, work: &mut Work, build: &Build<'_>) -> Result<u64, NodesError> {
    let sizes = stream.sizes();
    let needed = sizes.needed(room(sizes, work)?, matches!(stream.edges(), Edges::Listed(_)));
    let free = work.free_bytes()?;
    if needed > free {
        return Err(NodesError::Space { path: work.folder().to_owned(), needed, free });
    }
    let started = Event::Started { nodes: sizes.nodes as u64, edges: sizes.edges, needed, free };
    build.progress.report(&started);
    if work.journal.classes.is_none() {
        labels(stream, work, build)?;
    }
    let header = room(sizes, work)?;
    work.expect_length(written(sizes, header, work))?;
    edges::build(stream, work, header, build)?;
    let begin = header + edges::bytes(sizes.nodes, work.journal.edges_written);
    features(stream, work, begin, build)?;
    let begin = begin + padded(sizes.row_bytes() * sizes.nodes as u64);
    append(work, LABELS, begin)?;
    if sizes.has_split {
        append(work, SPLIT, begin + padded(4 * sizes.nodes as u64))?;
    }
    Ok(header)
}

/// Bytes that the store in progress has at least, by the journal.
fn written(sizes: &Sizes, header: u64, work: &Work) -> u64 {
    let journal = &work.journal;
    match (journal.rows_written, journal.edges_written) {
        (0, 0) => 0,
        (0, edges) => header + padded(8 * (sizes.nodes as u64 + 1)) + 4 * edges,
        (rows, edges) => header + edges::bytes(sizes.nodes, edges) + rows * sizes.row_bytes(),
    }
}

/// Reads labels and split into temporary files; classes without a node are left out unless the source has a number of them.
fn labels(stream: &dyn GraphStream, work: &mut Work, build: &Build<'_>) -> Result<(), NodesError> {
    let sizes = stream.sizes();
    let total = sizes.nodes as u64;
    let path = work.path(LABELS);
    let mut file = BufWriter::new(work.create(LABELS)?);
    let (mut seen, mut without, mut done) = (vec![false; MOST_CLASSES], 0, 0);
    stream.labels(&mut |label| {
        file.write_all(&label.to_le_bytes()).map_err(NodesError::io("write", &path))?;
        match label {
            NO_LABEL => without += 1,
            label => seen[label as usize] = true,
        }
        done += 1;
        match done % EDGE_BLOCK as u64 {
            0 => build.advance(Step::Labels, done, total),
            _ => Ok(()),
        }
    })?;
    file.flush().map_err(NodesError::io("write", &path))?;
    if without == total {
        return Err(NodesError::invalid(&sizes.source, "", "no node has a label", "a class for some nodes"));
    }
    let classes = ClassNumbers::seen(&seen);
    let has_gaps = sizes.classes == 0 && classes.has_gaps();
    if has_gaps {
        renumber(&path, &classes)?;
    }
    if sizes.has_split {
        let path = work.path(SPLIT);
        let mut file = work.create(SPLIT)?;
        // Sets are listed in any order, so that a block is a pass over the lists.
        let block = (build.memory / 2).clamp(1, total) as usize;
        for begin in (0..sizes.nodes).step_by(block) {
            let sets = stream.split(begin..sizes.nodes.min(begin + block))?;
            file.write_all(&sets).map_err(NodesError::io("write", &path))?;
        }
    }
    work.sync(LABELS)?;
    work.journal.classes = Some(sizes.classes.max(classes.count()));
    work.journal.class_numbers = if has_gaps { classes.numbers().to_vec() } else { Vec::new() };
    work.journal.nodes_without_label = without;
    work.save()
}

/// Replaces the labels in a file by numbers without gaps.
fn renumber(path: &Path, classes: &ClassNumbers) -> Result<(), NodesError> {
    use std::os::unix::fs::FileExt;
    let opened = fs::File::options().read(true).write(true).open(path);
    let mut file = opened.map_err(NodesError::io("open", path))?;
    let (mut at, mut block) = (0, Vec::new());
    loop {
        block.clear();
        let read = (&mut file).take(BLOCK_BYTES as u64).read_to_end(&mut block);
        if read.map_err(NodesError::io("read", path))? == 0 {
            return Ok(());
        }
        for label in block.as_chunks_mut::<4>().0 {
            *label = classes.renumbered(i32::from_le_bytes(*label)).to_le_bytes();
        }
        file.write_all_at(&block, at).map_err(NodesError::io("write", path))?;
        at += block.len() as u64;
    }
}

/// The rows of a store in its file.
struct StoreRows<'a> {
    work: Mutex<&'a mut Work>,
    store: fs::File,
    path: &'a Path,
    begin: u64,
    /// First byte of the hashes.
    hashes_begin: u64,
    row_bytes: u64,
    total: u64,
    build: &'a Build<'a>,
}

impl Rows for StoreRows<'_> {
    fn put(&self, block: &RowBlock) -> Result<(), NodesError> {
        use std::os::unix::fs::FileExt;
        let first = block.first as u64;
        let hashes: Vec<u64> = (first..).zip(&block.hashes).map(|(node, row)| row.of_node(node)).collect();
        let rows = (&block.bytes[..], self.begin + first * self.row_bytes);
        let hashes = (bytemuck::cast_slice(&hashes), self.hashes_begin + first * HASH_BYTES);
        [rows, hashes]
            .into_iter()
            .try_for_each(|(bytes, at)| self.store.write_all_at(bytes, at))
            .map_err(NodesError::io("write", self.path))
    }

    fn done(&self, rows: usize) -> Result<(), NodesError> {
        let (rows, mut work) = (rows as u64, self.work.lock());
        if (rows - work.journal.rows_written) * self.row_bytes >= ROWS_BETWEEN_ENTRIES || rows == self.total {
            self.store.sync_data().map_err(NodesError::io("write", self.path))?;
            work.journal.rows_written = rows;
            work.save()?;
        }
        drop(work);
        self.build.advance(Step::Features, rows, self.total)
    }
}

fn features(stream: &dyn GraphStream, work: &mut Work, begin: u64, build: &Build<'_>) -> Result<(), NodesError> {
    let sizes = stream.sizes();
    let from = work.journal.rows_written;
    if from == sizes.nodes as u64 {
        return Ok(());
    }
    if from > 0 {
        build.progress.report(&Event::Resuming { step: Step::Features });
    }
    let (store, path) = (work.store()?, work.target().to_owned());
    let (row_bytes, total) = (sizes.row_bytes(), sizes.nodes as u64);
    let of_split = if sizes.has_split { padded(total) } else { 0 };
    let hashes_begin = begin + padded(row_bytes * total) + padded(4 * total) + of_split;
    let rows = StoreRows { work: Mutex::new(work), store, path: &path, begin, hashes_begin, row_bytes, total, build };
    stream.features(from as usize, &rows)
}

/// Copies a temporary file into the store.
fn append(work: &Work, name: &str, begin: u64) -> Result<(), NodesError> {
    use std::os::unix::fs::FileExt;
    let path = work.path(name);
    let mut file = fs::File::open(&path).map_err(NodesError::io("open", &path))?;
    let (store, mut at) = (work.store()?, begin);
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let count = file.read(&mut block).map_err(NodesError::io("read", &path))?;
        if count == 0 {
            return Ok(());
        }
        store.write_all_at(&block[..count], at).map_err(NodesError::io("write", work.target()))?;
        at += count as u64;
    }
}

/// Bytes of an array with the zeros that fill its last page.
fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES as u64)
}

/// Name, type and size of each array in bytes, in the order of the store.
fn layout(sizes: &Sizes, edges: u64) -> Vec<(&'static str, &'static str, u64)> {
    let nodes = sizes.nodes as u64;
    let mut arrays = vec![
        ("indptr", "u64", 8 * (nodes + 1)),
        ("indices", "u32", 4 * edges),
        ("features", if sizes.options.half { "f16" } else { "f32" }, sizes.row_bytes() * nodes),
        (LABELS, "i32", 4 * nodes),
    ];
    if sizes.has_split {
        arrays.push((SPLIT, "u8", nodes));
    }
    arrays.push(("node_hashes", "u64", HASH_BYTES * nodes));
    arrays
}

/// The header without checksums and digest.
fn header(sizes: &Sizes, classes: usize, edges: u64, notes: SourceNotes) -> Header {
    let mut offset = 0;
    let sections = layout(sizes, edges).into_iter().map(|(name, dtype, bytes)| {
        let begin = offset;
        offset += padded(bytes) as usize;
        let (name, dtype) = (name.to_owned(), dtype.to_owned());
        Section { name, dtype, offset: begin, bytes: bytes as usize, crc32c: 0 }
    });
    let sections = sections.collect();
    let source_digest = sizes.source_digest.clone();
    Header {
        name: sizes.name.clone(),
        digest: "0".repeat(64),
        provenance: Provenance { source_digest, options: sizes.options.clone(), notes },
        num_nodes: sizes.nodes,
        num_edges: edges as usize,
        classes,
        features: if sizes.options.half { FeatureKind::Half } else { FeatureKind::Dense },
        columns: sizes.columns,
        sections,
    }
}

fn notes(sizes: &Sizes, journal: &Journal) -> SourceNotes {
    let classes = ClassNumbers::from(journal.class_numbers.clone());
    let class_names = classes.names(None);
    SourceNotes {
        remarks: classes.remark(class_names.as_deref()).into_iter().collect(),
        class_names,
        source_nodes: sizes.nodes as u64,
        listed_edges: sizes.edges,
        ignored_columns: sizes.ignored_columns.clone(),
        ..SourceNotes::default()
    }
}

/// Bytes of the header, known once labels are read.
fn room(sizes: &Sizes, work: &Work) -> Result<u64, NodesError> {
    let room = header(sizes, 0, 0, notes(sizes, &work.journal)).room();
    room.map(|bytes| bytes as u64).map_err(|error| NodesError::io("write", work.target())(error.into()))
}

/// A text that tells builds apart whose temporary files do not fit each other.
fn key_of(sizes: &Sizes) -> String {
    let key = serde_json::json!([
        store::header::FORMAT_VERSION,
        sizes.source_digest,
        sizes.options,
        sizes.name,
        sizes.nodes,
        sizes.edges,
        sizes.columns
    ]);
    blake3::hash(key.to_string().as_bytes()).to_hex().to_string()
}
