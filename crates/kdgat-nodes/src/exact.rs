//! Blocks of all neighbours, for inference layer by layer: the outputs of one layer for all nodes, before the next layer.
//!
//! Each layer of each node is computed once, from all its neighbours, in bounded memory. The caller gathers the previous
//! activations of a block's sources, runs the layer, and stores the rows of its targets
//! ([`Activations`](super::activations::Activations)).

use std::ops::Range;

use kdgat_graph::Adjacency;

use super::adjacency::adjacency_of;
use super::block::Block;
use super::relabel::Relabel;
use super::{NodeGraph, NodesError};

/// Consecutive nodes with all their neighbours.
#[derive(Debug)]
pub struct ExactBlock {
    /// The nodes whose outputs the block computes.
    pub targets: Range<u32>,
    /// Nodes whose previous activations it reads, by row: the targets, then their other neighbours, ascending, so that
    /// activations in a file are read from its beginning to its end.
    pub sources: Vec<u32>,
    /// All edges that lead to the targets, and a self-loop for each. Shapes: [`Adjacency`].
    pub adjacency: Adjacency,
}

/// The blocks of all nodes in order.
#[derive(Debug)]
pub struct ExactBlocks<'a> {
    graph: &'a NodeGraph,
    size: usize,
    next: u32,
    relabel: Relabel,
    block: Block,
    numbers: Vec<u32>,
    lengths: Vec<u32>,
}

impl<'a> ExactBlocks<'a> {
    /// Blocks with at most `size` edges and targets together (self-loops count as edges). A node with more edges has a block of its
    /// own.
    pub fn new(graph: &'a NodeGraph, size: usize) -> Self {
        Self {
            graph,
            size,
            next: 0,
            relabel: Relabel::new(graph.num_nodes()),
            block: Block::default(),
            numbers: Vec::new(),
            lengths: Vec::new(),
        }
    }

    /// The next nodes that fit, at least one. The first one exists.
    fn next_targets(&self) -> Range<u32> {
        let first = self.next as usize;
        let pointers = &self.graph.row_pointers[first..];
        // For each further end, the size of the block up to there; ascending.
        let fits = |nodes: usize| (pointers[nodes] - pointers[0]) as usize + 2 * nodes <= self.size;
        let (mut fitting, mut too_many) = (1, pointers.len());
        while fitting + 1 < too_many {
            let middle = fitting + (too_many - fitting) / 2;
            if fits(middle) { fitting = middle } else { too_many = middle }
        }
        self.next..self.next + fitting as u32
    }

    fn make(&mut self, targets: Range<u32>) -> Result<ExactBlock, NodesError> {
        let row_pointers = &self.graph.row_pointers[targets.start as usize..=targets.end as usize];
        let edges = row_pointers[0] as usize..row_pointers[targets.len()] as usize;
        let neighbours = &self.graph.sources[edges];
        let nodes: Vec<u32> = targets.clone().collect();

        let mut sources = Vec::new();
        self.number(&nodes, neighbours, &mut sources);
        let mut ordered = sources.split_off(nodes.len());
        ordered.sort_unstable();
        sources.clear();
        // Again, with the other neighbours in ascending order.
        self.relabel.start();
        self.relabel.number(&nodes, &mut sources, &mut self.numbers);
        self.relabel.number(&ordered, &mut sources, &mut self.numbers);
        self.numbers.clear();
        self.relabel.number(neighbours, &mut sources, &mut self.numbers);

        self.lengths.clear();
        // At most as many as nodes.
        self.lengths.extend(row_pointers.windows(2).map(|ends| (ends[1] - ends[0]) as u32));
        self.block.clear();
        self.block.push_rows(&nodes, &self.lengths, neighbours, &self.numbers)?;
        self.block.set_num_sources(sources.len());
        Ok(ExactBlock { targets, sources, adjacency: adjacency_of(&self.block)? })
    }

    /// Numbers targets and neighbours in order of first appearance.
    fn number(&mut self, targets: &[u32], neighbours: &[u32], sources: &mut Vec<u32>) {
        self.relabel.start();
        self.numbers.clear();
        self.relabel.number(targets, sources, &mut self.numbers);
        self.relabel.number(neighbours, sources, &mut self.numbers);
    }
}

impl Iterator for ExactBlocks<'_> {
    type Item = Result<ExactBlock, NodesError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next as usize >= self.graph.num_nodes() {
            return None;
        }
        let targets = self.next_targets();
        self.next = targets.end;
        Some(self.make(targets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adjacency::tests::check;
    use crate::test_graphs::random_graph;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_cover_all_nodes_with_all_their_edges(
            seed in any::<u64>(), nodes in 1usize..60, edges in 0usize..400, size in 0usize..200,
        ) {
            let graph = random_graph(nodes, edges, seed);
            let mut next = 0;
            for block in ExactBlocks::new(&graph, size) {
                let block = block.unwrap();
                prop_assert_eq!(block.targets.start, next);
                next = block.targets.end;
                check(&block.adjacency);
                let (targets, edges) = (block.targets.len(), block.adjacency.num_edges() as usize);
                prop_assert!(targets == 1 || targets + edges <= size);
                // One more node would not have fitted.
                if (next as usize) < nodes {
                    prop_assert!(targets + edges + 2 + graph.neighbours(next).len() > size);
                }
                let own: Vec<u32> = block.targets.clone().collect();
                prop_assert_eq!(&block.sources[..targets], &own[..]);
                prop_assert!(block.sources[targets..].is_sorted_by(|one, other| one < other));
                prop_assert_eq!(block.adjacency.num_sources() as usize, block.sources.len());
                let rows = Vec::<i32>::try_from(&block.adjacency.row_pointers).unwrap();
                let sources = Vec::<i32>::try_from(&block.adjacency.sources).unwrap();
                for (row, target) in block.targets.clone().enumerate() {
                    let found: Vec<u32> = sources[rows[row] as usize..rows[row + 1] as usize].iter()
                        .map(|&source| block.sources[source as usize]).collect();
                    let mut expected = graph.neighbours(target).to_vec();
                    expected.push(target);
                    expected.sort_unstable();
                    prop_assert_eq!(found, expected);
                }
            }
            prop_assert_eq!(next as usize, nodes);
        }
    }
}
