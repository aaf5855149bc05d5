//! Parts of a graph: without the edges of some nodes, or the edges between a few nodes.

use super::block::{Block, TooManyEdges};
use super::node_graph::Section;
use super::relabel::Relabel;
use super::{NodeGraph, NodesError};

/// The graph without the edges of nodes that are not kept (`keep`, `[num_nodes]`), as in the inductive setting. All nodes stay,
/// with their numbers, features and labels; arrays other than those of the edges are shared with `graph`.
///
/// # Errors
/// Another number of values than of nodes.
pub fn induced(graph: &NodeGraph, keep: &[bool]) -> Result<NodeGraph, NodesError> {
    if keep.len() != graph.num_nodes() {
        let text = format!("{} nodes are marked as kept or hidden, the graph has {}", keep.len(), graph.num_nodes());
        return Err(NodesError::options(text));
    }
    let mut row_pointers = Vec::with_capacity(keep.len() + 1);
    let mut sources = Vec::with_capacity(graph.num_edges());
    row_pointers.push(0);
    for (node, &kept) in keep.iter().enumerate() {
        if kept {
            let kept = graph.neighbours(node as u32).iter().filter(|&&source| keep[source as usize]);
            sources.extend(kept.copied());
        }
        row_pointers.push(sources.len() as u64);
    }
    sources.shrink_to_fit();
    let mut digest = blake3::Hasher::new();
    digest.update(graph.digest.as_bytes());
    keep.chunks(1 << 16).for_each(|chunk| {
        digest.update(&chunk.iter().map(|&kept| u8::from(kept)).collect::<Vec<u8>>());
    });
    Ok(NodeGraph {
        digest: digest.finalize().to_hex().to_string(),
        row_pointers: Section::from(row_pointers),
        sources: Section::from(sources),
        ..graph.clone()
    })
}

/// Makes the block of the edges between a few nodes; reuses its memory.
#[derive(Debug)]
pub(crate) struct Subgraph<'a> {
    graph: &'a NodeGraph,
    relabel: Relabel,
    block: Block,
    /// Buffers: the nodes and neighbours that were numbered, and their numbers.
    numbered: Vec<u32>,
    neighbours: Vec<u32>,
    numbers: Vec<u32>,
    lengths: Vec<u32>,
}

impl<'a> Subgraph<'a> {
    pub(crate) fn new(graph: &'a NodeGraph) -> Self {
        Self {
            graph,
            relabel: Relabel::new(graph.num_nodes()),
            block: Block::default(),
            numbered: Vec::new(),
            neighbours: Vec::new(),
            numbers: Vec::new(),
            lengths: Vec::new(),
        }
    }

    /// Edges between `nodes`, which are distinct; their rows are in this order.
    ///
    /// # Errors
    /// More than 2^31 edges.
    pub(crate) fn block(&mut self, nodes: &[u32]) -> Result<&Block, TooManyEdges> {
        self.relabel.start();
        self.numbered.clear();
        self.numbers.clear();
        self.relabel.number(nodes, &mut self.numbered, &mut self.numbers);
        self.numbers.clear();
        self.neighbours.clear();
        self.lengths.clear();
        for &node in nodes {
            let before = self.neighbours.len();
            for &neighbour in self.graph.neighbours(node) {
                if let Some(number) = self.relabel.get(neighbour) {
                    self.neighbours.push(neighbour);
                    self.numbers.push(number);
                }
            }
            // At most as many as nodes.
            self.lengths.push((self.neighbours.len() - before) as u32);
        }
        self.block.clear();
        self.block.push_rows(nodes, &self.lengths, &self.neighbours, &self.numbers)?;
        self.block.set_num_sources(nodes.len());
        Ok(&self.block)
    }

    /// Row of a node in the last block; `None` if it is not there.
    pub(crate) fn row(&self, node: u32) -> Option<u32> {
        self.relabel.get(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_graphs::random_graph;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hidden_nodes_have_no_edges_and_others_keep_theirs(seed in any::<u64>(), keep in prop::collection::vec(any::<bool>(), 40)) {
            let graph = random_graph(40, 300, seed);
            let part = induced(&graph, &keep).unwrap();
            for node in 0..40 {
                let expected: Vec<u32> = graph.neighbours(node).iter().copied()
                    .filter(|&source| keep[node as usize] && keep[source as usize]).collect();
                prop_assert_eq!(part.neighbours(node), expected);
            }
            prop_assert_eq!(part.labels.as_ptr(), graph.labels.as_ptr());
            let all = induced(&graph, &[true; 40]).unwrap();
            prop_assert_eq!(&all.sources[..], &graph.sources[..]);
            prop_assert!(keep.iter().all(|&kept| kept) || part.digest != all.digest);
        }

        #[test]
        fn a_subgraph_has_the_edges_between_its_nodes(seed in any::<u64>(), keep in prop::collection::vec(any::<bool>(), 40)) {
            let graph = random_graph(40, 300, seed);
            let nodes: Vec<u32> = (0..40).rev().filter(|&node| keep[node as usize]).collect();
            let mut subgraph = Subgraph::new(&graph);
            subgraph.block(&[3, 1, 2]).unwrap();
            let block = subgraph.block(&nodes).unwrap();
            prop_assert_eq!((block.num_targets(), block.num_sources()), (nodes.len(), nodes.len()));
            for (row, &node) in nodes.iter().enumerate() {
                let found: Vec<u32> = block.sources(row).iter().map(|&source| nodes[source as usize]).collect();
                let mut expected: Vec<u32> =
                    graph.neighbours(node).iter().copied().filter(|&source| keep[source as usize]).chain([node]).collect();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
            }
            for node in 0..40 {
                let row = nodes.iter().position(|&found| found == node).map(|row| row as u32);
                prop_assert_eq!(subgraph.row(node), row);
            }
        }
    }

    #[test]
    fn another_number_of_nodes_is_refused() {
        let error = induced(&random_graph(40, 300, 1), &[true; 39]).unwrap_err().to_string();
        assert_eq!(error, "39 nodes are marked as kept or hidden, the graph has 40");
    }
}
