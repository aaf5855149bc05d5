//! The store of one large graph: a file whose arrays are memory-mapped and read in place.
//!
//! The file begins with a [header](header::Header) in JSON that has a checksum, and lists the arrays with theirs. Each
//! array begins on a page. A store is written under a temporary name and renamed, so that a killed build leaves none.

pub mod header;

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytemuck::Pod;
use kdgat_base::files;
use memmap2::Mmap;

use crate::NodeStoreError;
use crate::node_graph::{Features, GivenSet, NO_LABEL, NodeGraph, NodeTask, Section};
use crate::provenance::{Provenance, SourceNotes};
use crate::sections::arrays;

use header::{FORMAT_VERSION, FeatureKind, Header, padding};

/// Extension of a store's file.
pub const EXTENSION: &str = "kdgat-nodes";
/// Size from which [`open`] trusts the arrays. Below it, reading all of a store takes a fraction of a second. Above it,
/// reading would take minutes, and fill memory with pages that a run may never need; [`verify`] does it on demand.
pub const CHECKED_BYTES: usize = 256 << 20;
/// Versions of stores that earlier programs wrote. Another number is damage.
const OLDER_VERSIONS: Range<u32> = 1..FORMAT_VERSION;

/// Writes a graph to a store, atomically.
///
/// # Errors
/// [`NodeStoreError::Io`]; a file of that name is then unchanged.
pub fn write(graph: &NodeGraph, provenance: Provenance, path: &Path) -> Result<(), NodeStoreError> {
    let header = Header::of(graph, provenance).to_bytes().map_err(io::Error::from);
    let written = header.and_then(|header| {
        files::write_atomically_with(path, |file| {
            file.write_all(&header)?;
            for array in arrays(graph) {
                file.write_all(array.bytes)?;
                file.write_all(padding(array.bytes.len()))?;
            }
            Ok(())
        })
    });
    written.map_err(NodeStoreError::io("write", path))
}

/// Maps a store. Checks the header; below 256 MiB also the checksums and values of the arrays.
///
/// # Errors
/// A file that cannot be read, or [`NodeStoreError::Damaged`].
pub fn open(path: &Path) -> Result<NodeGraph, NodeStoreError> {
    open_checked(path, CHECKED_BYTES).map(|opened| opened.graph)
}

/// Maps a store like [`open`], and returns the facts about its source as well.
///
/// # Errors
/// Those of [`open`].
pub fn open_with_notes(path: &Path) -> Result<(NodeGraph, SourceNotes), NodeStoreError> {
    open_checked(path, CHECKED_BYTES).map(|Opened { graph, header }| (graph, header.provenance.notes))
}

/// Digest of the source that a store was built from, from the header alone.
///
/// # Errors
/// Those of [`open`].
pub fn source_digest_of(path: &Path) -> Result<String, NodeStoreError> {
    open_checked(path, 0).map(|opened| opened.header.provenance.source_digest)
}

/// Digest of a store's graph and of its origin, from the header alone.
///
/// # Errors
/// Those of [`open`].
pub fn digest(path: &Path) -> Result<String, NodeStoreError> {
    let Header { digest, provenance, .. } = open_checked(path, 0)?.header;
    Ok(blake3::hash(format!("{digest} {}", provenance.source_digest).as_bytes()).to_hex().to_string())
}

/// Reads all of a store, of any size, and checks it: every byte is covered by a checksum.
///
/// # Errors
/// A file that cannot be read, or [`NodeStoreError::Damaged`] with the first array that is.
pub fn verify(path: &Path) -> Result<(), NodeStoreError> {
    open_checked(path, usize::MAX).map(drop)
}

/// A mapped store.
#[derive(Debug)]
pub struct Opened {
    /// The graph.
    pub graph: NodeGraph,
    /// Description of the store.
    pub header: Header,
}

/// Maps a store, and checks its arrays if the file has fewer bytes than `checked_bytes`.
///
/// # Errors
/// Those of [`open`].
pub fn open_checked(path: &Path, checked_bytes: usize) -> Result<Opened, NodeStoreError> {
    let file = File::open(path).map_err(NodeStoreError::io("open", path))?;
    let map = Arc::new(kdgat_mapped::map(&file).map_err(NodeStoreError::io("map", path))?);
    if let Some(found) = Header::version(&map).filter(|&found| OLDER_VERSIONS.contains(&found)) {
        return Err(NodeStoreError::Version { path: path.to_owned(), found, expected: FORMAT_VERSION });
    }
    let opened = Header::parse(&map).and_then(|(header, header_bytes)| {
        if map.len() < checked_bytes {
            check_sections(&header, header_bytes, &map)?;
        }
        let graph = Mapped { header: &header, header_bytes, map: &map, path: &Arc::from(path) }.graph()?;
        check_ends(&graph)?;
        if map.len() < checked_bytes {
            check_values(&graph)?;
        }
        Ok(Opened { graph, header })
    });
    opened.map_err(|detail| NodeStoreError::Damaged { path: path.to_owned(), detail })
}

/// Compares the checksums of all arrays.
fn check_sections(header: &Header, header_bytes: usize, map: &Mmap) -> Result<(), String> {
    for section in &header.sections {
        // `Header::parse` has checked that sections lie within the file.
        if crc32c::crc32c(&map[section.padded_range(header_bytes)]) != section.crc32c {
            return Err(format!("the checksum of array {} is wrong", section.name));
        }
    }
    Ok(())
}

/// A mapped file with its header.
struct Mapped<'a> {
    header: &'a Header,
    header_bytes: usize,
    map: &'a Arc<Mmap>,
    path: &'a Arc<Path>,
}

impl Mapped<'_> {
    fn graph(&self) -> Result<NodeGraph, String> {
        let columns = self.header.columns;
        let features = match self.header.features {
            FeatureKind::Dense => Features::Dense { columns, values: self.array("features")? },
            FeatureKind::Half => Features::Half { columns, values: self.array("features")? },
            FeatureKind::Sparse => Features::Sparse {
                columns,
                row_pointers: self.array("feature_indptr")?,
                column_index: self.array("feature_indices")?,
                values: self.array("feature_values")?,
            },
        };
        Ok(NodeGraph {
            name: self.header.name.clone(),
            digest: self.header.digest.clone(),
            row_pointers: self.array("indptr")?,
            sources: self.array("indices")?,
            features,
            labels: self.array("labels")?,
            task: NodeTask { classes: self.header.classes },
            given_split: self.optional("split")?,
            node_hashes: self.array("node_hashes")?,
            original: self.optional("original")?,
        })
    }

    fn array<T: Pod>(&self, name: &str) -> Result<Section<T>, String> {
        self.optional(name)?.ok_or_else(|| format!("it has no array {name}"))
    }

    fn optional<T: Pod>(&self, name: &str) -> Result<Option<Section<T>>, String> {
        let Some(section) = self.header.sections.iter().find(|section| section.name == name) else { return Ok(None) };
        let mapped = Section::mapped(self.map, section.range(self.header_bytes));
        let mapped = mapped.ok_or_else(|| format!("array {name} is not aligned"))?;
        Ok(Some(mapped.in_file(self.path)))
    }
}

/// Checks that the row pointers end with the arrays they point into: costs two reads.
fn check_ends(graph: &NodeGraph) -> Result<(), String> {
    let spans = |name: &str, pointers: &[u64], end: usize| match (pointers.first(), pointers.last()) {
        (Some(0), Some(&last)) if last == end as u64 => Ok(()),
        (first, last) => Err(format!("{name} goes from {first:?} to {last:?}, expected 0 to {end}")),
    };
    spans("indptr", &graph.row_pointers, graph.num_edges())?;
    match &graph.features {
        Features::Sparse { row_pointers, values, .. } => spans("feature_indptr", row_pointers, values.len()),
        Features::Dense { .. } | Features::Half { .. } => Ok(()),
    }
}

/// Checks every value that another one is found by.
fn check_values(graph: &NodeGraph) -> Result<(), String> {
    check_rows("indices", &graph.row_pointers, &graph.sources, graph.num_nodes())?;
    if let Features::Sparse { columns, row_pointers, column_index, .. } = &graph.features {
        check_rows("feature_indices", row_pointers, column_index, *columns)?;
    }
    let classes = graph.task.classes;
    if let Some(label) = graph.labels.iter().find(|&&label| label < NO_LABEL || label >= classes as i32) {
        return Err(format!("labels has {label}, expected {NO_LABEL} to {}", classes as i32 - 1));
    }
    let last = GivenSet::Test as u8;
    match graph.given_split.iter().flat_map(|split| split.iter()).find(|&&set| set > last) {
        None => Ok(()),
        Some(set) => Err(format!("split has {set}, expected 0 to {last}")),
    }
}

/// Checks that pointers ascend, and the numbers of each row, below `limit`. The ends of the pointers are checked.
fn check_rows(name: &str, pointers: &[u64], numbers: &[u32], limit: usize) -> Result<(), String> {
    for (row, ends) in pointers.windows(2).enumerate() {
        let numbers = numbers.get(ends[0] as usize..ends[1] as usize);
        let numbers = numbers.ok_or_else(|| format!("the pointers of {name} do not ascend after row {row}"))?;
        let ascend = numbers.is_sorted_by(|first, second| first < second);
        if !ascend || numbers.last().is_some_and(|&last| last as usize >= limit) {
            return Err(format!("row {row} of {name} does not ascend below {limit}"));
        }
    }
    Ok(())
}
