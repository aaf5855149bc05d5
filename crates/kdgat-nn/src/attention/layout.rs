//! Edges as slices, and the partition of nodes among threads.

use std::ops::Range;
use std::sync::OnceLock;

use tch::TchError;

use kdgat_graph::Adjacency;
use kdgat_torch::view;

/// The index arrays of an [`Adjacency`] on the CPU.
#[derive(Clone, Copy)]
pub(super) struct Edges<'a> {
    row_pointers: &'a [i32],
    sources: &'a [i32],
    targets: &'a [i32],
    column_pointers: &'a [i32],
    transposed: &'a [i32],
    components: &'a OnceLock<Vec<u32>>,
}

impl<'a> Edges<'a> {
    pub(super) fn new(adjacency: &'a Adjacency) -> Result<Self, TchError> {
        Ok(Self {
            row_pointers: view::read("row_pointers", &adjacency.row_pointers)?,
            sources: view::read("sources", &adjacency.sources)?,
            targets: view::read("targets", &adjacency.targets)?,
            column_pointers: view::read("column_pointers", &adjacency.column_pointers)?,
            transposed: view::read("transposed", &adjacency.transposed)?,
            components: &adjacency.components,
        })
    }

    /// Number of nodes that edges lead to.
    pub(super) fn num_targets(&self) -> usize {
        self.row_pointers.len().saturating_sub(1)
    }

    /// Number of nodes that edges may come from; the targets are the first of them.
    pub(super) fn num_sources(&self) -> usize {
        self.column_pointers.len().saturating_sub(1)
    }

    pub(super) fn num_edges(&self) -> usize {
        self.sources.len()
    }

    /// Edges into `node`.
    #[inline(always)]
    pub(super) fn incoming(&self, node: usize) -> Range<usize> {
        self.row_pointers[node] as usize..self.row_pointers[node + 1] as usize
    }

    /// Edges into any of `nodes`.
    #[inline(always)]
    pub(super) fn incoming_of(&self, nodes: &Range<usize>) -> Range<usize> {
        self.row_pointers[nodes.start] as usize..self.row_pointers[nodes.end] as usize
    }

    /// Sources of the given edges.
    #[inline(always)]
    pub(super) fn sources(&self, edges: Range<usize>) -> &'a [i32] {
        &self.sources[edges]
    }

    /// Edges out of `node`.
    #[inline(always)]
    pub(super) fn outgoing(&self, node: usize) -> &'a [i32] {
        &self.transposed[self.column_pointers[node] as usize..self.column_pointers[node + 1] as usize]
    }

    /// Edges out of any of `nodes`, by source.
    #[inline(always)]
    pub(super) fn outgoing_of(&self, nodes: &Range<usize>) -> &'a [i32] {
        &self.transposed[self.column_pointers[nodes.start] as usize..self.column_pointers[nodes.end] as usize]
    }

    /// The target of each edge.
    #[inline(always)]
    pub(super) fn targets(&self) -> &'a [i32] {
        self.targets
    }
}

/// A partition of the targets, and one of the sources, into blocks of consecutive nodes. Both are the same unless there
/// are sources that are no targets.
pub(super) struct Partition {
    /// Block `i` has the targets `bounds[i]..bounds[i + 1]`.
    pub(super) bounds: Vec<usize>,
    /// Block `i` has the sources `source_bounds[i]..source_bounds[i + 1]`.
    pub(super) source_bounds: Vec<usize>,
    /// True if no edge leaves its block: a block then goes through all passes while it is in a core's cache. Otherwise
    /// each pass must finish on all blocks before the next begins.
    pub(super) closed: bool,
    /// Number of blocks worth a thread of their own.
    pub(super) grain: usize,
}

/// Bytes of one array's rows in a block: three or four such arrays and the edges fit into a core's cache.
const BLOCK_BYTES: usize = 192 * 1024;
const BLOCK_NODES: usize = 512;
/// Number of multiplications below which a second thread costs more than it gains.
const WORTHWHILE: usize = 65_536;

impl Partition {
    /// Divides the nodes by edges and row length alone, so that sums by block do not depend on the number of threads.
    pub(super) fn new(edges: &Edges<'_>, row_elements: usize) -> Self {
        let nodes = edges.num_targets();
        let target = (BLOCK_BYTES / (4 * row_elements.max(1))).clamp(16, BLOCK_NODES);
        let even = |nodes: usize| (0..nodes).step_by(target).chain([nodes]).collect::<Vec<_>>();
        let work = (edges.num_edges() + nodes) * row_elements;
        let grain = |bounds: &[usize]| {
            let per_block = work / (bounds.len().saturating_sub(1)).max(1);
            WORTHWHILE.div_ceil(per_block.max(1))
        };
        if edges.num_sources() != nodes {
            let (bounds, source_bounds) = (even(nodes), even(edges.num_sources()));
            return Self { closed: false, grain: grain(&bounds), bounds, source_bounds };
        }
        let blocks = closed_blocks(edges, target);
        // A component that is most of the graph would leave the other threads idle.
        let largest = blocks.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let closed = largest <= (nodes / 16).max(2 * target);
        let bounds = if closed { blocks } else { even(nodes) };
        Self { closed, grain: grain(&bounds), source_bounds: bounds.clone(), bounds }
    }

    /// Number of blocks of targets.
    pub(super) fn num_blocks(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    /// Number of blocks of sources.
    pub(super) fn num_source_blocks(&self) -> usize {
        self.source_bounds.len().saturating_sub(1)
    }

    /// The targets of a block.
    pub(super) fn nodes(&self, block: usize) -> Range<usize> {
        self.bounds[block]..self.bounds[block + 1]
    }

    /// The sources of a block.
    pub(super) fn sources(&self, block: usize) -> Range<usize> {
        self.source_bounds[block]..self.source_bounds[block + 1]
    }
}

/// Bounds of blocks of at least `target` nodes (except the last) that no edge crosses.
fn closed_blocks(edges: &Edges<'_>, target: usize) -> Vec<usize> {
    let mut bounds = vec![0];
    // Computed once per batch: all layers of a step need the same components.
    for &start in edges.components.get_or_init(|| components(edges)) {
        if start as usize >= bounds[bounds.len() - 1] + target {
            bounds.push(start as usize);
        }
    }
    if edges.num_targets() > 0 {
        bounds.push(edges.num_targets());
    }
    bounds
}

/// First nodes of the runs of consecutive nodes that no edge leaves.
fn components(edges: &Edges<'_>) -> Vec<u32> {
    // Starts found so far; an edge from an earlier node merges all runs in between.
    let mut starts: Vec<u32> = Vec::new();
    let mut reach = 0;
    for node in 0..edges.num_targets() {
        let sources = edges.sources(edges.incoming(node));
        // Sources are in ascending order.
        let first = sources.first().map_or(node, |&source| node.min(source as usize));
        let last = sources.last().map_or(node, |&source| node.max(source as usize));
        if node >= reach {
            // Node indices are 32 bits wide.
            starts.push(node as u32);
        }
        while starts.last().is_some_and(|&start| start as usize > first) {
            starts.pop();
        }
        reach = reach.max(last + 1);
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(rows: &[&[i32]], target: usize) -> Vec<usize> {
        let mut row_pointers = vec![0];
        let mut sources = Vec::new();
        for row in rows {
            sources.extend_from_slice(row);
            row_pointers.push(sources.len() as i32);
        }
        let edges = Edges {
            row_pointers: &row_pointers,
            sources: &sources,
            targets: &[],
            column_pointers: &[],
            transposed: &[],
            components: &OnceLock::new(),
        };
        closed_blocks(&edges, target)
    }

    #[test]
    fn blocks_end_where_no_edge_crosses() {
        assert_eq!(bounds(&[], 1), [0]);
        assert_eq!(bounds(&[&[0], &[1], &[2]], 1), [0, 1, 2, 3]);
        assert_eq!(bounds(&[&[0], &[1], &[2]], 2), [0, 2, 3]);
        // The edge 0 <- 2 connects the first three, 4 <- 3 the last two.
        assert_eq!(bounds(&[&[0, 2], &[1], &[2], &[3], &[3, 4]], 1), [0, 3, 5]);
        // The edge 3 <- 0 merges runs that were separate before.
        assert_eq!(bounds(&[&[0], &[1], &[2], &[0, 3], &[4]], 1), [0, 4, 5]);
    }
}
