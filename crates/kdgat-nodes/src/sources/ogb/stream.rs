//! The same folders, read as a stream: nothing is held in memory but a block.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::*;
use crate::build::{EDGE_BLOCK, Edges, GraphStream, ListedEdges, Rows, Sizes, TakeEdges};
use crate::sources::csr_npz::{dense_columns, each_label};

/// Bytes of features handed over together.
const ROW_BYTES: u64 = 1 << 20;

/// A folder of the Open Graph Benchmark.
pub struct OgbStream {
    raw: PathBuf,
    split: Option<PathBuf>,
    sizes: Sizes,
}

impl OgbStream {
    /// Opens a folder with this digest; reads the sizes.
    ///
    /// # Errors
    /// A missing file, or sizes that do not fit.
    pub fn open(path: &Path, options: &GraphOptions, source_digest: String) -> Result<Self, NodesError> {
        expect_files(path)?;
        let raw = path.join("raw");
        let (nodes, edges, columns, mut ignored_columns) = if is_binary(path) {
            let mut npz = Npz::open(&raw.join(BINARY))?;
            let (nodes, edges) = binary_counts(&mut npz)?;
            let columns = dense_columns(&mut npz, "node_feat", nodes)?;
            (nodes, edges, columns, ignored_arrays(&npz))
        } else {
            let (nodes, edges) = csv_counts(&raw)?;
            (nodes, edges, csv_columns(&raw.join(FEATURES), nodes)?, Vec::new())
        };
        ignored_columns.extend(ignored_files(path)?);
        let split = split_folder(path)?;
        let sizes = Sizes {
            source: path.to_owned(),
            name: name_of(path),
            nodes,
            edges: edges as u64,
            columns,
            has_split: split.is_some(),
            classes: 0,
            ignored_columns,
            source_digest,
            options: options.clone(),
        };
        Ok(Self { raw, split, sizes })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.raw.join(name)
    }

    fn is_binary(&self) -> bool {
        self.file(BINARY).is_file()
    }
}

impl GraphStream for OgbStream {
    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn labels(&self, each: &mut dyn FnMut(i32) -> Result<(), NodesError>) -> Result<(), NodesError> {
        let nodes = self.sizes.nodes;
        Carried::through(|carried| {
            let each = |label| carried.or_mismatch(each(label));
            match self.is_binary() {
                true => each_label(&mut Npz::open(&self.file(BINARY_LABELS))?, "node_label", nodes, each),
                false => each_csv_label(&self.file(LABELS), nodes, each),
            }
        })
    }

    fn split(&self, nodes: Range<usize>) -> Result<Vec<u8>, NodesError> {
        match &self.split {
            Some(folder) => split(folder, self.sizes.nodes, nodes),
            None => Ok(vec![GivenSet::None as u8; nodes.len()]),
        }
    }

    fn edges(&self) -> Edges<'_> {
        Edges::Listed(self)
    }

    fn features(&self, from: usize, rows: &dyn Rows) -> Result<(), NodesError> {
        let Sizes { nodes, columns, options, .. } = &self.sizes;
        let block = (ROW_BYTES / self.sizes.row_bytes().max(1)).max(1) as usize;
        // Takes out the rows after each block, and after the last row.
        let hand_over = |read: &mut DenseRows, last: bool| {
            if read.waiting() < block && !last {
                return Ok(());
            }
            let block = read.take();
            rows.put(&block)?;
            rows.done(block.first + block.hashes.len())
        };
        let new = DenseRows::streamed(from, *columns, options);
        if self.is_binary() {
            let mut npz = Npz::open(&self.file(BINARY))?;
            let mut read = new.map_err(|Mismatch { found, expected }| npz.error("node_feat", found, expected))?;
            let begin = from * columns;
            Carried::through(|carried| {
                let done = npz.each_float("node_feat", |at, value| {
                    if at < begin {
                        return Ok(());
                    }
                    read.push(value)?;
                    match (at + 1) % columns {
                        0 => carried.or_mismatch(hand_over(&mut read, false)),
                        _ => Ok(()),
                    }
                });
                Ok(done?)
            })?;
            return hand_over(&mut read, true);
        }
        let path = self.file(FEATURES);
        let mut read = new.map_err(|mismatch| mismatch.at(&path, ", line 1"))?;
        Carried::through(|carried| {
            csv_rows(&path, *nodes, from, &mut read, |read| carried.or_mismatch(hand_over(read, false)))
        })?;
        hand_over(&mut read, true)
    }
}

impl ListedEdges for OgbStream {
    fn each_block(&self, each: &mut TakeEdges<'_>) -> Result<(), NodesError> {
        let (nodes, count) = (self.sizes.nodes, self.sizes.edges as usize);
        if self.is_binary() {
            return each_binary_block(&self.file(BINARY), nodes, count, each);
        }
        let mut block = Vec::with_capacity(EDGE_BLOCK);
        Carried::through(|carried| {
            each_csv_edge(&self.file(EDGES), nodes, count, |source, target| {
                block.push((source, target));
                if block.len() < EDGE_BLOCK {
                    return Ok(());
                }
                carried.or_mismatch(each(&block))?;
                block.clear();
                Ok(())
            })
        })?;
        each(&block)
    }
}

/// Reads the sources and the targets, which follow all sources, side by side: from two places of the archive.
fn each_binary_block(path: &Path, nodes: usize, count: usize, each: &mut TakeEdges<'_>) -> Result<(), NodesError> {
    let (mut of_sources, mut of_targets) = (Npz::open(path)?, Npz::open(path)?);
    let mut sources = of_sources.integers("edge_index", 0)?;
    let mut targets = of_targets.integers("edge_index", count)?;
    let (mut ends, mut block) = ((Vec::new(), Vec::new()), Vec::with_capacity(EDGE_BLOCK));
    for begin in (0..count).step_by(EDGE_BLOCK) {
        let most = EDGE_BLOCK.min(count - begin);
        sources.next(most, &mut ends.0, |node| node_number(node, nodes))?;
        targets.next(most, &mut ends.1, |node| node_number(node, nodes))?;
        block.extend(ends.0.drain(..).zip(ends.1.drain(..)));
        each(&block)?;
        block.clear();
    }
    Ok(())
}

/// An error that is carried through a reader whose errors are mismatches.
struct Carried(Option<NodesError>);

impl Carried {
    /// The error that was carried, or the result of the reader.
    fn through<T>(read: impl FnOnce(&mut Self) -> Result<T, NodesError>) -> Result<T, NodesError> {
        let mut carried = Self(None);
        let result = read(&mut carried);
        match carried.0 {
            Some(error) => Err(error),
            None => result,
        }
    }

    fn or_mismatch(&mut self, result: Result<(), NodesError>) -> Result<(), Mismatch> {
        result.map_err(|error| {
            let mismatch = Mismatch::new(error.to_string(), "no error");
            self.0 = Some(error);
            mismatch
        })
    }
}
