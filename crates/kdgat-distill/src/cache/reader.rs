//! Reads the records of a batch's graphs into their slices, on several threads at once.

use super::file::CacheFile;
use super::places::BlockPlaces;
use super::{CacheError, FILLED};

/// The records of some graphs, read by several threads.
pub(super) enum Reader<'a> {
    Memory(Vec<Option<&'a [u8]>>),
    File { file: &'a CacheFile, graphs: &'a [u64], states: &'a [u8] },
}

/// The result of reading a record.
#[derive(Debug)]
pub(super) enum Found {
    Here,
    Missing,
    /// The record cannot be read; without an error, its checksum is wrong.
    Damaged(Option<CacheError>),
}

impl Reader<'_> {
    /// Copies graph number `position`, the next of its block, into its slices. `record` is a scratch buffer.
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
