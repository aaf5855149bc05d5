//! Graphs in space: the positions of a batch's nodes, and the pairs of nodes that are near each other.
//!
//! A network in space reads these pairs instead of stored edges. The loader makes them graph by graph from the positions in the store, so
//! that one store serves every cutoff. In a periodic cell every image within the cutoff makes a pair: there may be several pairs of the
//! same two nodes, and pairs of a node with its own images.

use tch::{TchError, Tensor};

use super::sub_batch::{Runs, counts_to_pointers};

/// Options of the pairs of nodes that a loader makes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpaceOptions {
    /// Largest distance of a pair, in the data's unit of length; positive.
    pub cutoff: f64,
}

/// Positions of a batch's nodes, and the ordered pairs of nodes within the cutoff.
///
/// The vector of a pair is `positions[source] + shift - positions[target]`; its length is at most the cutoff, and above 0.
#[derive(Debug)]
pub struct Space {
    /// `[num_nodes, 3]`, f32: positions, in the data's unit of length.
    pub positions: Tensor,
    /// `[num_nodes]`, i64: number of each node's kind (atomic number for elements; 0 where unknown).
    pub kinds: Tensor,
    /// `[num_pairs]`, i64: receiving node of each pair, ascending.
    pub targets: Tensor,
    /// `[num_pairs]`, i64: sending node of each pair, ascending within a target.
    pub sources: Tensor,
    /// `[num_nodes + 1]`, i32: pairs of target `i` are `row_pointers[i]..row_pointers[i + 1]`.
    pub row_pointers: Tensor,
    /// `[num_pairs, 3]`, f32: added to the source's position for the image that is meant; `None` without periodic cells.
    pub shifts: Option<Tensor>,
    /// `[num_nodes, 3]`, f32: targets of the negative gradient of the energy by positions; `None` without such targets.
    pub forces: Option<Tensor>,
}

impl Space {
    /// Number of pairs.
    pub fn num_pairs(&self) -> i64 {
        self.sources.size()[0]
    }

    pub(super) fn try_map<E>(&self, tensor: &mut impl FnMut(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self {
            positions: tensor(&self.positions)?,
            kinds: tensor(&self.kinds)?,
            targets: tensor(&self.targets)?,
            sources: tensor(&self.sources)?,
            row_pointers: tensor(&self.row_pointers)?,
            shifts: self.shifts.as_ref().map(&mut *tensor).transpose()?,
            forces: self.forces.as_ref().map(&mut *tensor).transpose()?,
        })
    }

    /// The nodes of some graphs, and their pairs, which never leave a graph.
    pub(super) fn select(&self, nodes: &Runs) -> Result<Self, TchError> {
        let pairs = nodes.rows(&self.row_pointers)?;
        let take = |tensor: &Tensor, runs: &Runs| tensor.f_index_select(0, &runs.index(tensor)?);
        let moved = |tensor: &Tensor| take(tensor, &pairs)?.f_sub(&nodes.shift_by_run(&pairs, tensor)?);
        Ok(Self {
            positions: take(&self.positions, nodes)?,
            kinds: take(&self.kinds, nodes)?,
            targets: moved(&self.targets)?,
            sources: moved(&self.sources)?,
            row_pointers: counts_to_pointers(&self.row_pointers, nodes)?,
            shifts: self.shifts.as_ref().map(|shifts| take(shifts, &pairs)).transpose()?,
            forces: self.forces.as_ref().map(|forces| take(forces, nodes)).transpose()?,
        })
    }
}
