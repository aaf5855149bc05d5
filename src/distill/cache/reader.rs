//! Reads the records of a batch's graphs into their places, on several threads at once.

use super::file::CacheFile;
use super::records::Places;
use super::{CacheError, FILLED};

/// Records of some graphs, to be read by several threads.
pub(super) enum Reader<'a> {
    Memory(Vec<Option<&'a [u8]>>),
    File { file: &'a CacheFile, graphs: &'a [u64], states: &'a [u8] },
}

/// What became of reading a record.
#[derive(Debug)]
pub(super) enum Found {
    Here,
    Missing,
    /// The file's record cannot be read, or, without a reason, fails its checksum.
    Damaged(Option<CacheError>),
}

impl Reader<'_> {
    /// Puts graph number `position` in its place; `record` is room to work in.
    pub fn graph(&self, position: usize, places: &Places<'_>, record: &mut Vec<u8>) -> Found {
        match self {
            Self::Memory(records) => match records[position] {
                Some(record) if places.decode_unchecked(position, record) => Found::Here,
                _ => Found::Missing,
            },
            Self::File { file, graphs, states } => {
                let graph = graphs[position];
                if states[graph as usize] & FILLED == 0 && !file.is_filled(graph).unwrap_or(false) {
                    return Found::Missing;
                }
                match file.read(graph, record) {
                    Ok(()) if places.decode(position, record) => Found::Here,
                    Ok(()) => Found::Damaged(None),
                    Err(error) => Found::Damaged(Some(error)),
                }
            }
        }
    }
}
