//! The first pages of a store: its contents, the place and checksum of each array, and a checksum of all that.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::node_graph::{Features, NodeGraph};
use crate::provenance::Provenance;
use crate::sections::{Array, arrays};

/// Version of the store's format and of the readers of sources: raised whenever the same source gives another store.
pub const FORMAT_VERSION: u32 = 2;
/// Alignment of arrays: the smallest page of any supported system.
pub const PAGE_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"kdgnodes";
/// Magic, version (u32), checksum (u32), and length of the description (u64).
const PREFACE_BYTES: usize = 24;
const CHECKSUM: Range<usize> = 12..16;
/// Bytes for the digits of numbers that are known only when all arrays are written: at most 580.
const LATE_DIGITS: usize = 1024;

/// Description of a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Name of the dataset.
    pub name: String,
    /// Digest of the graph's contents.
    pub digest: String,
    /// Origin of the graph.
    pub provenance: Provenance,
    /// Number of nodes.
    pub num_nodes: usize,
    /// Number of directed edges.
    pub num_edges: usize,
    /// Number of classes.
    pub classes: usize,
    /// Kind of features.
    pub features: FeatureKind,
    /// Number of features.
    pub columns: usize,
    /// The arrays in the order of the file.
    pub sections: Vec<Section>,
}

/// Kind of features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureKind {
    /// Dense in single precision.
    Dense,
    /// Dense in half precision.
    Half,
    /// Sparse in single precision.
    Sparse,
}

/// Place of an array in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// Name of the array.
    pub name: String,
    /// Type of its elements.
    pub dtype: String,
    /// First byte, counted from the end of the header.
    pub offset: usize,
    /// Number of bytes, without the zeros that fill the last page.
    pub bytes: usize,
    /// CRC-32C of the bytes and of those zeros.
    pub crc32c: u32,
}

impl Section {
    /// The array's bytes in a file whose header has `header_bytes` bytes.
    pub fn range(&self, header_bytes: usize) -> Range<usize> {
        let begin = header_bytes + self.offset;
        begin..begin + self.bytes
    }

    /// The same with the zeros that fill the last page.
    pub fn padded_range(&self, header_bytes: usize) -> Range<usize> {
        let begin = header_bytes + self.offset;
        begin..begin + self.bytes.next_multiple_of(PAGE_BYTES)
    }
}

impl Header {
    /// The header of a graph's store. Computes the checksums of all arrays.
    pub fn of(graph: &NodeGraph, provenance: Provenance) -> Self {
        let mut offset = 0;
        let section = |Array { name, dtype, bytes }: Array<'_>| {
            let begin = offset;
            offset += bytes.len().next_multiple_of(PAGE_BYTES);
            let crc32c = crc32c::crc32c_append(crc32c::crc32c(bytes), padding(bytes.len()));
            Section { name: name.to_owned(), dtype: dtype.to_owned(), offset: begin, bytes: bytes.len(), crc32c }
        };
        let sections = arrays(graph).into_iter().map(section).collect();
        Self {
            name: graph.name.clone(),
            digest: graph.digest.clone(),
            provenance,
            num_nodes: graph.num_nodes(),
            num_edges: graph.num_edges(),
            classes: graph.task.classes,
            features: match graph.features {
                Features::Dense { .. } => FeatureKind::Dense,
                Features::Half { .. } => FeatureKind::Half,
                Features::Sparse { .. } => FeatureKind::Sparse,
            },
            columns: graph.features.columns(),
            sections,
        }
    }

    /// Size of the header in the file, in bytes: whole pages. It does not depend on numbers that are known only when all arrays are
    /// written, so that a stream can leave room for the header.
    ///
    /// # Errors
    /// A description that is not representable.
    pub fn room(&self) -> serde_json::Result<usize> {
        let mut early = self.clone();
        (early.num_edges, early.classes) = (0, 0);
        let notes = &mut early.provenance.notes;
        (notes.removed_self_loops, notes.removed_duplicates, notes.nodes_without_label) = (0, 0, 0);
        for section in &mut early.sections {
            (section.offset, section.bytes, section.crc32c) = (0, 0, 0);
        }
        let description = serde_json::to_vec(&early)?.len();
        Ok((PREFACE_BYTES + description + LATE_DIGITS).next_multiple_of(PAGE_BYTES))
    }

    /// The header as the file has it: whole pages.
    ///
    /// # Errors
    /// A description that is not representable.
    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut description = serde_json::to_vec(self)?;
        // Blanks after the description belong to it.
        description.resize(self.room()? - PREFACE_BYTES, b' ');
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend([0; CHECKSUM.end - CHECKSUM.start]);
        bytes.extend((description.len() as u64).to_le_bytes());
        bytes.extend(description);
        bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES), 0);
        let checksum = checksum(&bytes);
        bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        Ok(bytes)
    }

    /// The format version of a file, if it begins as a store.
    pub fn version(file: &[u8]) -> Option<u32> {
        let version = file.strip_prefix(MAGIC)?.get(..4)?;
        version.try_into().ok().map(u32::from_le_bytes)
    }

    /// Reads the header of a file, and checks its checksum and that all arrays are where its sizes require them. Returns
    /// the number of its bytes as well.
    ///
    /// # Errors
    /// Text that says what is wrong.
    pub fn parse(file: &[u8]) -> Result<(Self, usize), String> {
        let number = |range: Range<usize>| file.get(range).and_then(|bytes| bytes.try_into().ok());
        if file.get(..MAGIC.len()) != Some(MAGIC) {
            return Err("it does not begin as a store of a graph's nodes".to_owned());
        }
        let short = || "its header is cut off".to_owned();
        let version = Self::version(file).ok_or_else(short)?;
        if version != FORMAT_VERSION {
            return Err(format!("format version {version}, expected {FORMAT_VERSION}"));
        }
        let found = u32::from_le_bytes(number(CHECKSUM).ok_or_else(short)?);
        let length: [u8; 8] = file.get(16..PREFACE_BYTES).and_then(|bytes| bytes.try_into().ok()).ok_or_else(short)?;
        let end = usize::try_from(u64::from_le_bytes(length)).ok().and_then(|length| length.checked_add(PREFACE_BYTES));
        let bytes = end.and_then(|end| end.checked_next_multiple_of(PAGE_BYTES)).ok_or_else(short)?;
        let header = file.get(..bytes).ok_or_else(short)?;
        if checksum(header) != found {
            return Err("the checksum of its header is wrong".to_owned());
        }
        let description = end.and_then(|end| header.get(PREFACE_BYTES..end)).ok_or_else(short)?;
        let header: Self = serde_json::from_slice(description).map_err(|error| format!("its header: {error}"))?;
        header.check_sections(file.len() - bytes)?;
        Ok((header, bytes))
    }

    /// Checks that the arrays follow each other without gaps, to the end of the file, with the sizes of the graph.
    fn check_sections(&self, file_bytes: usize) -> Result<(), String> {
        let mut offset = 0usize;
        for section in &self.sections {
            let expected = self.layout(section).and_then(|(dtype, bytes)| Some((dtype, bytes?)));
            let Some((dtype, bytes)) = expected else { return Err(format!("array {} is unknown", section.name)) };
            if (section.dtype.as_str(), section.bytes, section.offset) != (dtype, bytes, offset) {
                return Err(format!(
                    "array {} has {} bytes of {} at {}, expected {bytes} bytes of {dtype} at {offset}",
                    section.name, section.bytes, section.dtype, section.offset
                ));
            }
            let end = bytes.checked_next_multiple_of(PAGE_BYTES).and_then(|bytes| offset.checked_add(bytes));
            offset = end.ok_or_else(|| format!("array {} is too large", section.name))?;
        }
        match offset == file_bytes {
            true => Ok(()),
            false => Err(format!("{file_bytes} bytes of arrays, expected {offset}")),
        }
    }

    /// Type and number of bytes of a known array; the number is `None` if it overflows.
    fn layout(&self, section: &Section) -> Option<(&'static str, Option<usize>)> {
        let Self { num_nodes, num_edges, columns, .. } = *self;
        let stored = |name: &str| self.sections.iter().find(|found| found.name == name).map(|found| found.bytes / 4);
        let (dtype, bytes, elements) = match (section.name.as_str(), self.features) {
            ("indptr", _) | ("feature_indptr", FeatureKind::Sparse) => ("u64", 8, num_nodes.checked_add(1)),
            ("indices", _) => ("u32", 4, Some(num_edges)),
            ("features", FeatureKind::Dense) => ("f32", 4, num_nodes.checked_mul(columns)),
            ("features", FeatureKind::Half) => ("f16", 2, num_nodes.checked_mul(columns)),
            // As many values as columns, in any number.
            ("feature_indices", FeatureKind::Sparse) => ("u32", 4, stored("feature_values")),
            ("feature_values", FeatureKind::Sparse) => ("f32", 4, stored("feature_indices")),
            ("labels", _) => ("i32", 4, Some(num_nodes)),
            ("split", _) => ("u8", 1, Some(num_nodes)),
            ("node_hashes" | "original", _) => ("u64", 8, Some(num_nodes)),
            _ => return None,
        };
        Some((dtype, elements.and_then(|elements| elements.checked_mul(bytes))))
    }
}

/// Zeros that fill the last page of that many bytes.
pub fn padding(bytes: usize) -> &'static [u8] {
    const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
    &ZEROS[..bytes.next_multiple_of(PAGE_BYTES) - bytes]
}

/// CRC-32C of a header without the checksum itself.
fn checksum(header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..CHECKSUM.start]), &header[CHECKSUM.end..])
}
