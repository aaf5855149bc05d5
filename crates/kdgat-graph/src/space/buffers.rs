//! The tensors of a batch of graphs in space, made graph by graph.

use kdgat_torch::allocator;
use tch::{Kind, Tensor};

use super::cell::Cell;
use super::search::{NoPairs, Pair, PairSearch};
use super::{ListedPaths, Space, SpaceOptions};
use crate::{GraphView, PathKind, PathView, SpaceColumns, StoreError};

/// Bytes of a pair: two nodes and a shift.
const PAIR_BYTES: u64 = 8 + 8 + 12;

/// Buffers of the tensors of a [`Space`].
#[derive(Debug, Default)]
pub(crate) struct SpaceBuffers {
    search: PairSearch,
    /// Positions of the current graph.
    own: Vec<[f64; 3]>,
    positions: Vec<f32>,
    kinds: Vec<i64>,
    targets: Vec<i64>,
    sources: Vec<i64>,
    row_pointers: Vec<i32>,
    shifts: Vec<f32>,
    forces: Vec<f32>,
    /// 1 for the nodes of displaced graphs, 0 for others; empty without displacements.
    displaced: Vec<u8>,
    paths: [PathBuffers; 2],
}

/// Buffers of the listed paths of one kind.
#[derive(Debug, Default)]
struct PathBuffers {
    /// For each path of the current graph from either end: its second node and the others, and its number in the graph.
    own: Vec<([u16; 4], u32)>,
    nodes: Vec<i64>,
    parameters: Vec<f32>,
    row_pointers: Vec<i32>,
}

impl PathBuffers {
    fn clear(&mut self) {
        self.nodes.clear();
        self.parameters.clear();
        self.row_pointers.clear();
        self.row_pointers.push(0);
    }

    /// True if the paths of another graph, from either end, fit into the memory limit beside those that are there.
    fn has_room_for(&self, view: PathView<'_>) -> bool {
        let values = |of_batch: usize, of_graph: usize| (of_batch + 2 * of_graph) as u64;
        let nodes = values(self.nodes.len(), view.nodes.len());
        let bytes = 8 * nodes + 4 * values(self.parameters.len(), view.parameters.len());
        bytes <= allocator::stats().limit && nodes <= i32::MAX as u64
    }

    /// Appends the paths of a graph of `num_nodes` nodes, which begin at `first` in the batch.
    fn append(&mut self, (kind, view): (PathKind, PathView<'_>), [first, num_nodes]: [usize; 2]) {
        let count = kind.nodes();
        self.own.clear();
        for (path, number) in view.nodes.chunks_exact(count).zip(0..) {
            let mut ends: [u16; 4] = [0; 4];
            for reversed in [false, true] {
                let at = |node: usize| path[if reversed { count - 1 - node } else { node }];
                (ends[0], ends[1]) = (at(1), at(0));
                (2..count).for_each(|node| ends[node] = at(node));
                self.own.push((ends, number));
            }
        }
        self.own.sort_unstable();
        let before = self.nodes.len() / count;
        let width = view.parameters.len() / (view.nodes.len() / count).max(1);
        for (ends, number) in &self.own {
            let node = |at: usize| (first + usize::from(ends[at])) as i64;
            self.nodes.extend([1, 0].into_iter().chain(2..count).map(node));
            self.parameters.extend_from_slice(&view.parameters[*number as usize * width..][..width]);
        }
        let below = |node: usize| before + self.own.partition_point(|(ends, _)| usize::from(ends[0]) <= node);
        self.row_pointers.extend((0..num_nodes).map(|node| below(node) as i32));
    }

    fn tensors(&self, kind: PathKind, parameters: u16) -> Result<ListedPaths, StoreError> {
        let (count, of_path) = ((self.nodes.len() / kind.nodes()) as i64, kind.nodes() as i64);
        let (rows, width) = (self.row_pointers.len() as i64, i64::from(parameters));
        Ok(ListedPaths {
            nodes: crate::assemble::tensor("nodes of paths", &self.nodes, &[count, of_path], Kind::Int64)?,
            parameters: crate::assemble::tensor("parameters of paths", &self.parameters, &[count, width], Kind::Float)?,
            row_pointers: crate::assemble::tensor("row_pointers of paths", &self.row_pointers, &[rows], Kind::Int)?,
        })
    }
}

impl SpaceBuffers {
    /// Starts another batch.
    pub fn clear(&mut self) {
        let Self { search: _, own, positions, kinds, targets, sources, row_pointers, shifts, forces, displaced, paths } =
            self;
        paths.iter_mut().for_each(PathBuffers::clear);
        own.clear();
        displaced.clear();
        [positions, shifts, forces].into_iter().for_each(Vec::clear);
        [kinds, targets, sources].into_iter().for_each(Vec::clear);
        row_pointers.clear();
        row_pointers.push(0);
    }

    /// Appends the nodes of a graph and the pairs of near ones.
    ///
    /// # Errors
    /// A graph without positions, one with a damaged cell, or more pairs than fit into memory.
    pub fn append(&mut self, graph: u64, view: &GraphView<'_>, options: &SpaceOptions) -> Result<(), StoreError> {
        expect_positions(graph, view)?;
        let cell = stored_cell(graph, view.space.cell)?;
        own_positions(view.space.positions, &mut self.own);
        let first = self.kinds.len() as i64;
        match &options.displacement {
            Some(displacement) => {
                let is_moved = displacement.apply(graph, &mut self.own);
                self.displaced.resize(self.displaced.len() + self.own.len(), u8::from(is_moved));
                self.positions.extend(self.own.iter().flatten().map(|&value| value as f32));
            }
            None => self.positions.extend_from_slice(view.space.positions),
        }
        self.forces.extend_from_slice(view.space.forces);
        self.kinds.extend(view.space.kinds.iter().map(|&kind| i64::from(kind)));
        let most = most_pairs().min(i32::MAX as u64) as usize;
        let has_shifts = !view.space.cell.is_empty();
        let Self { search, own, targets, sources, row_pointers, shifts, .. } = self;
        let mut row = 0;
        let mut add = |pair: Pair| {
            if targets.len() >= most {
                return Err(NoPairs::TooMany);
            }
            while row < pair.target {
                row_pointers.push(targets.len() as i32);
                row += 1;
            }
            targets.push(first + i64::from(pair.target));
            sources.push(first + i64::from(pair.source));
            if has_shifts {
                shifts.extend(pair.shift.map(|value| value as f32));
            }
            Ok(())
        };
        if let Some(cutoff) = options.cutoff {
            let done = search.each_pair(own, cell.as_ref(), cutoff, &mut add);
            done.map_err(|reason| no_pairs(graph, reason, cutoff))?;
        }
        let nodes = self.kinds.len() + 1;
        self.row_pointers.resize(nodes, self.targets.len() as i32);
        if options.paths {
            self.append_paths(graph, view, first as usize)?;
        }
        Ok(())
    }

    /// Appends the listed paths of a graph whose nodes begin at `first`.
    fn append_paths(&mut self, graph: u64, view: &GraphView<'_>, first: usize) -> Result<(), StoreError> {
        for ((buffers, kind), paths) in self.paths.iter_mut().zip(PathKind::ALL).zip(view.space.paths) {
            if !buffers.has_room_for(paths) {
                let found = format!("more {} than fit into the memory limit with the others of its batch", kind.name());
                return Err(StoreError::Pairs {
                    graph,
                    found,
                    expected: "smaller batches (--batch-size, --batch-nodes)",
                });
            }
            buffers.append((kind, paths), [first, view.num_nodes()]);
        }
        Ok(())
    }

    /// Makes the tensors, of these columns of the store, with listed paths if they were `asked_paths`.
    ///
    /// # Errors
    /// No memory for them.
    pub fn tensors(&self, columns: SpaceColumns, asked_paths: bool) -> Result<Space, StoreError> {
        let (nodes, pairs) = (self.kinds.len() as i64, self.targets.len() as i64);
        let floats = |name, values: &[f32], rows| crate::assemble::tensor(name, values, &[rows, 3], Kind::Float);
        let indices = |name, values: &[i64]| crate::assemble::tensor(name, values, &[values.len() as i64], Kind::Int64);
        let shifts = columns.cells.then(|| floats("shifts of pairs", &self.shifts, pairs)).transpose()?;
        let forces = columns.forces.then(|| floats("forces", &self.forces, nodes)).transpose()?;
        let row_pointers: Tensor =
            crate::assemble::tensor("row_pointers of pairs", &self.row_pointers, &[nodes + 1], Kind::Int)?;
        let displaced = match self.displaced.is_empty() {
            true => None,
            false => Some(crate::assemble::tensor("displaced nodes", &self.displaced, &[nodes], Kind::Bool)?),
        };
        let paths = |kind: PathKind| {
            let listed = columns.paths.of(kind).filter(|_| asked_paths);
            listed.map(|&parameters| self.paths[kind as usize].tensors(kind, parameters)).transpose()
        };
        Ok(Space {
            positions: floats("positions", &self.positions, nodes)?,
            kinds: indices("kinds", &self.kinds)?,
            targets: indices("targets of pairs", &self.targets)?,
            sources: indices("sources of pairs", &self.sources)?,
            row_pointers,
            shifts,
            forces,
            displaced,
            paths: [paths(PathKind::Angles)?, paths(PathKind::Dihedrals)?],
        })
    }
}

/// Most pairs of a batch whose indices and shifts fit into the memory limit.
fn most_pairs() -> u64 {
    allocator::stats().limit / PAIR_BYTES
}

fn own_positions(positions: &[f32], own: &mut Vec<[f64; 3]>) {
    own.clear();
    let (positions, _) = positions.as_chunks::<3>();
    own.extend(positions.iter().map(|position| position.map(f64::from)));
}

fn expect_positions(graph: u64, view: &GraphView<'_>) -> Result<(), StoreError> {
    match view.space.positions.len() == 3 * view.num_nodes() {
        true => Ok(()),
        false => Err(StoreError::NoPositions { graph }),
    }
}

fn stored_cell(graph: u64, numbers: &[f64]) -> Result<Option<Cell>, StoreError> {
    Cell::stored(numbers).map_err(|detail| StoreError::Graph { graph, detail })
}

fn no_pairs(graph: u64, reason: NoPairs, cutoff: f64) -> StoreError {
    let (found, expected) = reason.text(cutoff);
    StoreError::Pairs { graph, found, expected }
}

/// Counts pairs of graphs without making tensors.
#[derive(Debug, Default)]
pub struct PairCounter {
    search: PairSearch,
    own: Vec<[f64; 3]>,
}

/// Neighbours of the nodes of a graph within a cutoff.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PairCount {
    /// Number of ordered pairs.
    pub pairs: u64,
    /// Largest number of neighbours of a node.
    pub most: u64,
    /// Number of nodes without a neighbour.
    pub alone: u64,
}

impl PairCounter {
    /// Counts the pairs of a graph; `graph` is its number in the store, for errors.
    ///
    /// # Errors
    /// A graph without positions, one with a damaged cell, or one with millions of images within the cutoff.
    pub fn count(&mut self, graph: u64, view: &GraphView<'_>, cutoff: f64) -> Result<PairCount, StoreError> {
        expect_positions(graph, view)?;
        self.count_in(graph, view.space.positions, view.space.cell, cutoff)
    }

    /// Counts the pairs of a graph with these positions, `[num_nodes, 3]`, and this cell, `[9]` or empty.
    pub(crate) fn count_in(
        &mut self,
        graph: u64,
        positions: &[f32],
        cell: &[f64],
        cutoff: f64,
    ) -> Result<PairCount, StoreError> {
        let cell = stored_cell(graph, cell)?;
        let Self { search, own } = self;
        own_positions(positions, own);
        let (mut count, mut of_node) = (PairCount { alone: own.len() as u64, ..PairCount::default() }, 0);
        let mut last = None;
        let done = search.each_pair(own, cell.as_ref(), cutoff, |pair| {
            if last != Some(pair.target) {
                (last, of_node) = (Some(pair.target), 0);
                count.alone -= 1;
            }
            of_node += 1;
            count.pairs += 1;
            count.most = count.most.max(of_node);
            Ok(())
        });
        done.map_err(|reason| no_pairs(graph, reason, cutoff))?;
        Ok(count)
    }
}
