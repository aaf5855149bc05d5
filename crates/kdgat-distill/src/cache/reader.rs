//! Reads the records of a batch's graphs into their places, on several threads at once.

use super::file::CacheFile;
use super::places::BlockPlaces;
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
    /// Puts graph number `position`, the next of its block, in its place; `record` is room to work in.
    pub fn graph(&self, position: usize, block: &mut BlockPlaces<'_>, record: &mut Vec<u8>) -> Found {
        let missing = |block: &mut BlockPlaces<'_>| {
            block.skip();
            Found::Missing
        };
        match self {
            Self::Memory(records) => match records[position] {
                Some(record) if block.decode_unchecked(record) => Found::Here,
                Some(_) => Found::Missing,
                None => missing(block),
            },
            Self::File { file, graphs, states } => {
                let graph = graphs[position];
                if states[graph as usize] & FILLED == 0 && !file.is_filled(graph).unwrap_or(false) {
                    return missing(block);
                }
                match file.read(graph, record) {
                    Ok(()) if block.decode(record) => Found::Here,
                    Ok(()) => Found::Damaged(None),
                    Err(error) => {
                        block.skip();
                        Found::Damaged(Some(error))
                    }
                }
            }
        }
    }
}
