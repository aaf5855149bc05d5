//! Buffer slices for the records of a batch's graphs, which several threads fill at once.

use kdgat_torch::parallel::Parts;
use kdgat_torch::view;
use tch::{TchError, Tensor};

use crate::targets::Per;

use super::records::{CHECKSUM_BYTES, RecordLayout, checksum};

/// Graphs whose slices one thread takes together: taking a slice per graph would cost more than copying into it.
pub const BLOCK_GRAPHS: usize = 32;

/// Buffer slices for the rows of a batch's graphs.
pub struct Places<'a> {
    graphs: &'a [u64],
    node_starts: &'a [usize],
    targets: Vec<TargetPlaces<'a>>,
}

/// A target's buffer, split into one part per block of graphs.
struct TargetPlaces<'a> {
    parts: Parts<'a, u8>,
    per: Per,
    row_bytes: usize,
}

impl<'a> Places<'a> {
    /// Splits `buffers`, one per target. `node_starts` has the first node of each graph and the number of nodes, `[num_graphs + 1]`.
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

    /// Takes the slices of block number `block`. Each block can be taken once.
    pub fn block(&self, block: usize) -> BlockPlaces<'_> {
        let rest = self.targets.iter().map(|target| target.parts.take(block)).collect();
        BlockPlaces { places: self, position: block * BLOCK_GRAPHS, rest }
    }
}

/// The slices of a block's graphs, filled in order.
pub struct BlockPlaces<'a> {
    places: &'a Places<'a>,
    position: usize,
    /// The part of each target that is not filled yet.
    rest: Vec<&'a mut [u8]>,
}

impl BlockPlaces<'_> {
    /// Copies a record to the next graph's slices if its checksum matches; otherwise skips the graph and returns false.
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

    /// Copies a record like [`Self::decode`], but checks only its length: for records that only this process can have written.
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

    /// Leaves the next graph's slices unfilled.
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

/// Rows of all graphs before number `position`.
pub(super) fn rows_before(per: Per, node_starts: &[usize], position: usize) -> usize {
    match per {
        Per::Node => node_starts[position],
        Per::Graph => position,
    }
}
