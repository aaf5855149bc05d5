//! Places for the records of a batch's graphs, which several threads fill at once.

use kdgat_torch::parallel::Parts;
use kdgat_torch::view;
use tch::{TchError, Tensor};

use crate::targets::Per;

use super::records::{CHECKSUM_BYTES, RecordLayout, checksum};

/// Graphs whose places one thread takes together: a place for each would cost more than the copy into it.
pub const BLOCK_GRAPHS: usize = 32;

/// Where the rows of graphs go.
pub struct Places<'a> {
    graphs: &'a [u64],
    node_starts: &'a [usize],
    targets: Vec<TargetPlaces<'a>>,
}

/// A target's buffer, in parts of a block of graphs.
struct TargetPlaces<'a> {
    parts: Parts<'a, u8>,
    per: Per,
    row_bytes: usize,
}

impl<'a> Places<'a> {
    /// In `buffers`, one a target, for graphs of which the first nodes are `node_starts`.
    pub(super) fn new(
        layout: &RecordLayout,
        graphs: &'a [u64],
        node_starts: &'a [usize],
        buffers: &'a mut [Tensor],
    ) -> Result<Self, TchError> {
        let mut targets = Vec::with_capacity(buffers.len());
        for (buffer, spec) in buffers.iter_mut().zip(&layout.targets.0) {
            let row_bytes = spec.columns * layout.precision.bytes();
            let rows = |position: usize| rows_before(spec.per, node_starts, position);
            let blocks = (0..graphs.len()).step_by(BLOCK_GRAPHS).chain([graphs.len()]);
            let bounds: Vec<usize> = blocks.map(|position| rows(position) * row_bytes).collect();
            let parts = Parts::new(view::write::<u8>("targets", buffer)?, bounds);
            targets.push(TargetPlaces { parts, per: spec.per, row_bytes });
        }
        Ok(Self { graphs, node_starts, targets })
    }

    /// The places of block number `block`, each block once.
    pub fn block(&self, block: usize) -> BlockPlaces<'_> {
        let rest = self.targets.iter().map(|target| target.parts.take(block)).collect();
        BlockPlaces { places: self, position: block * BLOCK_GRAPHS, rest }
    }
}

/// The places of a block's graphs, filled in their order.
pub struct BlockPlaces<'a> {
    places: &'a Places<'a>,
    position: usize,
    /// Of each target what is not filled yet.
    rest: Vec<&'a mut [u8]>,
}

impl BlockPlaces<'_> {
    /// Takes a record as the next graph's, unless its checksum says that it is not that.
    pub fn decode(&mut self, record: &[u8]) -> bool {
        let is_its_own = record.split_last_chunk::<CHECKSUM_BYTES>().is_some_and(|(payload, found)| {
            let graph = self.places.graphs.get(self.position);
            graph.is_some_and(|&graph| *found == checksum(graph, payload))
        });
        if is_its_own {
            return self.decode_unchecked(record);
        }
        self.skip();
        false
    }

    /// As [`Self::decode`], for a record that only this process can have written: only its length is looked at.
    pub fn decode_unchecked(&mut self, record: &[u8]) -> bool {
        let mut payload = record;
        let mut fits = true;
        self.next(|place| match payload.split_at_checked(place.len()) {
            Some((rows, rest)) => {
                place.copy_from_slice(rows);
                payload = rest;
            }
            None => fits = false,
        });
        fits && payload.len() == CHECKSUM_BYTES
    }

    /// Leaves the next graph's places open.
    pub fn skip(&mut self) {
        self.next(|_| ());
    }

    fn next(&mut self, mut fill: impl FnMut(&mut [u8])) {
        let Places { node_starts, targets, .. } = self.places;
        for (rest, target) in self.rest.iter_mut().zip(targets) {
            let rows = |position: usize| rows_before(target.per, node_starts, position);
            let bytes = (rows(self.position + 1) - rows(self.position)) * target.row_bytes;
            let (place, after) = std::mem::take(rest).split_at_mut(bytes);
            fill(place);
            *rest = after;
        }
        self.position += 1;
    }
}

/// Rows of the graphs before number `position`.
pub(super) fn rows_before(per: Per, node_starts: &[usize], position: usize) -> usize {
    match per {
        Per::Node => node_starts[position],
        Per::Graph => position,
    }
}
