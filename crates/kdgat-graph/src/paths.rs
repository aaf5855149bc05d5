//! Paths of three edges, i→j→k→p, that begin at a node: counted before they are made, and visited piece by piece.
//!
//! j is a neighbour of i, k one of j, p one of k; i, j, k and p are four different nodes. Paths that a network sums at i need never exist all
//! at once: a graph of 40,000 nodes with 8 neighbours each has some 15 million. Neighbours come in ascending order of nodes without
//! repetition, and a node is never its own neighbour: self-loops are skipped.

use std::ops::Range;

/// The neighbours of each node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Neighbours {
    /// Neighbours of node `i` are `pointers[i]..pointers[i + 1]` of `nodes`.
    pointers: Vec<u32>,
    /// Ascending for each node.
    nodes: Vec<u32>,
    /// The node that each neighbour belongs to.
    owners: Vec<u32>,
}

impl Neighbours {
    /// The sources of the edges to each node, which ascend, without those from the node itself. `row_pointers` and `sources` as in
    /// [`Adjacency`](super::Adjacency).
    pub fn of_incoming(row_pointers: &[i32], sources: &[i32]) -> Self {
        let mut found = Self { pointers: vec![0], ..Self::default() };
        for (node, ends) in row_pointers.windows(2).enumerate() {
            // Pointers and nodes of a batch are never negative.
            for &source in &sources[ends[0] as usize..ends[1] as usize] {
                if source as usize != node {
                    found.nodes.push(source as u32);
                    found.owners.push(node as u32);
                }
            }
            found.pointers.push(found.nodes.len() as u32);
        }
        found
    }

    /// Number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.pointers.len() - 1
    }

    /// Number of pairs of a node and its neighbour: paths of one edge.
    pub fn num_edges(&self) -> usize {
        self.nodes.len()
    }

    /// The edges that begin at a path's first node `node`.
    pub fn edges_of(&self, node: usize) -> Range<usize> {
        self.pointers[node] as usize..self.pointers[node + 1] as usize
    }

    /// The neighbours of a node, ascending.
    pub fn of(&self, node: usize) -> &[u32] {
        &self.nodes[self.edges_of(node)]
    }

    /// Number of paths of three edges that begin at each node.
    ///
    /// The nodes k beside j that lead on are counted by their neighbours less i and j, without visiting p.
    pub fn count_paths(&self) -> Vec<u64> {
        (0..self.num_nodes()).map(|node| self.edges_of(node).map(|edge| self.paths_of_edge(edge)).sum()).collect()
    }

    /// Number of paths of three edges that begin with this edge.
    pub fn paths_of_edge(&self, edge: usize) -> u64 {
        let (first, second) = (self.owners[edge], self.nodes[edge]);
        let leads_to = |from: u32, to: u32| u64::from(self.of(from as usize).binary_search(&to).is_ok());
        let of = |&third: &u32| match third == first {
            true => 0,
            false => self.of(third as usize).len() as u64 - leads_to(third, first) - leads_to(third, second),
        };
        self.of(second as usize).iter().map(of).sum()
    }
}

/// The next path to visit: an edge, and positions among the neighbours of its second node and of the third one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cursor {
    edge: usize,
    third: usize,
    fourth: usize,
}

impl Cursor {
    /// The first path that begins with this edge or a later one.
    pub fn at(edge: usize) -> Self {
        Self { edge, third: 0, fourth: 0 }
    }
}

/// Some paths in a row, as the tree of their beginnings. Paths of one beginning follow each other.
#[derive(Debug, Clone, Default)]
pub struct Piece {
    /// First and second node of each edge that paths of this piece begin with.
    pub edges: [Vec<u32>; 2],
    /// For each beginning of two edges: the position of its first edge in `edges`, and its third node.
    pub pairs: [Vec<u32>; 2],
    /// For each path: the position of its beginning in `pairs`, and its fourth node.
    pub paths: [Vec<u32>; 2],
}

impl Piece {
    /// Takes the next paths, at most `most`, that begin with an edge before `end`. Empty at the end.
    pub fn fill(&mut self, neighbours: &Neighbours, cursor: &mut Cursor, end: usize, most: usize) {
        [&mut self.edges, &mut self.pairs, &mut self.paths].into_iter().flatten().for_each(Vec::clear);
        while cursor.edge < end {
            let (first, second) = (neighbours.owners[cursor.edge], neighbours.nodes[cursor.edge]);
            if !self.fill_edge(neighbours, cursor, [first, second], most) {
                return;
            }
            *cursor = Cursor::at(cursor.edge + 1);
        }
    }

    /// Takes paths of the cursor's edge; false if there was no room for all.
    fn fill_edge(&mut self, neighbours: &Neighbours, cursor: &mut Cursor, edge: [u32; 2], most: usize) -> bool {
        let [first, second] = edge;
        let thirds = neighbours.of(second as usize);
        let mut position_of_edge = None;
        while let Some(&third) = thirds.get(cursor.third) {
            let fourths = if third == first { &[] } else { neighbours.of(third as usize) };
            let mut position_of_pair = None;
            while let Some(&fourth) = fourths.get(cursor.fourth) {
                if fourth != first && fourth != second {
                    if self.paths[0].len() == most {
                        return false;
                    }
                    let of_edge = *position_of_edge.get_or_insert_with(|| push(&mut self.edges, edge));
                    let of_pair = *position_of_pair.get_or_insert_with(|| push(&mut self.pairs, [of_edge, third]));
                    push(&mut self.paths, [of_pair, fourth]);
                }
                cursor.fourth += 1;
            }
            (cursor.third, cursor.fourth) = (cursor.third + 1, 0);
        }
        true
    }
}

/// Appends an entry and returns its position.
fn push(lists: &mut [Vec<u32>; 2], entry: [u32; 2]) -> u32 {
    let position = lists[0].len() as u32;
    lists.iter_mut().zip(entry).for_each(|(list, value)| list.push(value));
    position
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: four nested loops over all nodes.
    fn enumerated(nodes: u32, edges: &[(u32, u32)]) -> Vec<[u32; 4]> {
        let leads = |from: u32, to: u32| edges.contains(&(from, to));
        let mut found = Vec::new();
        for i in 0..nodes {
            for j in (0..nodes).filter(|&j| j != i && leads(i, j)) {
                for k in (0..nodes).filter(|&k| ![i, j].contains(&k) && leads(j, k)) {
                    found.extend((0..nodes).filter(|p| ![i, j, k].contains(p) && leads(k, *p)).map(|p| [i, j, k, p]));
                }
            }
        }
        found
    }

    fn neighbours(nodes: u32, edges: &[(u32, u32)]) -> Neighbours {
        let (mut pointers, mut sources) = (vec![0], Vec::new());
        for node in 0..nodes {
            let mut of: Vec<i32> = edges.iter().filter(|edge| edge.0 == node).map(|edge| edge.1 as i32).collect();
            of.sort_unstable();
            of.dedup();
            sources.extend(of);
            pointers.push(sources.len() as i32);
        }
        Neighbours::of_incoming(&pointers, &sources)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        /// Counted and visited, whole or in pieces, paths are those of the definition, self-loops among the edges or not.
        #[test]
        fn paths_are_those_of_the_definition(
            nodes in 1u32..9,
            edges in prop::collection::vec((0u32..9, 0u32..9), 0..40),
            most in 1usize..12,
        ) {
            let edges: Vec<_> = edges.into_iter().filter(|edge| edge.0 < nodes && edge.1 < nodes).collect();
            let neighbours = neighbours(nodes, &edges);
            let expected = enumerated(nodes, &edges);
            let counts: Vec<u64> = (0..nodes)
                .map(|node| expected.iter().filter(|path| path[0] == node).count() as u64)
                .collect();
            prop_assert_eq!(neighbours.count_paths(), counts);
            let (mut piece, mut cursor, mut found) = (Piece::default(), Cursor::at(0), Vec::new());
            loop {
                piece.fill(&neighbours, &mut cursor, neighbours.num_edges(), most);
                if piece.paths[0].is_empty() {
                    break;
                }
                prop_assert!(piece.paths[0].len() <= most);
                for (&pair, &fourth) in piece.paths[0].iter().zip(&piece.paths[1]) {
                    let (edge, third) = (piece.pairs[0][pair as usize] as usize, piece.pairs[1][pair as usize]);
                    found.push([piece.edges[0][edge], piece.edges[1][edge], third, fourth]);
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}
