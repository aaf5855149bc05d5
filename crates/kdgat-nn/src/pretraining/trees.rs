//! The trees of a batch: parents, order of nodes, and pairs of nodes that are not related.

use kdgat_base::random::{self, Purpose};
use kdgat_graph::Batch;
use kdgat_graph::paths::Neighbours;

use crate::sgmp::geometry::Vector;
use crate::sgmp::{PathGraph, neighbours_of};
use crate::{Draw, ModelError};

/// Trees whose roots are the first nodes of their graphs. Nodes are numbered as in the batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Trees {
    /// Nodes of tree `t` are `pointers[t]..pointers[t + 1]`.
    pub pointers: Vec<usize>,
    /// Parent of each node; `None` for a root.
    pub parents: Vec<Option<u32>>,
    /// Number of edges from the root to each node.
    pub depths: Vec<u32>,
    /// The nodes of each tree, each before its descendants, which follow it without a gap.
    preorder: Vec<u32>,
    /// Number of nodes of the subtree below and including each node.
    subtree: Vec<u32>,
}

impl Trees {
    /// The trees of a batch whose edges lead from parents to children and back.
    ///
    /// # Errors
    /// A graph that is no tree.
    pub fn of(batch: &Batch) -> Result<Self, ModelError> {
        let (neighbours, graphs) = neighbours_of(batch)?;
        Self::new(&neighbours, graphs)
    }

    fn new(neighbours: &Neighbours, pointers: Vec<usize>) -> Result<Self, ModelError> {
        let nodes = neighbours.num_nodes();
        let mut found = Self {
            parents: vec![None; nodes],
            depths: vec![0; nodes],
            preorder: Vec::with_capacity(nodes),
            subtree: vec![1; nodes],
            pointers,
        };
        for tree in 0..found.pointers.len() - 1 {
            found.walk(neighbours, found.pointers[tree]..found.pointers[tree + 1])?;
        }
        Ok(found)
    }

    /// Walks from the root of a tree to all of its nodes.
    fn walk(&mut self, neighbours: &Neighbours, nodes: std::ops::Range<usize>) -> Result<(), ModelError> {
        let first = self.preorder.len();
        let edges: usize = nodes.clone().map(|node| neighbours.of(node).len()).sum();
        let mut waiting = vec![nodes.start as u32];
        // A graph with a circle has more edges than a tree of its nodes, and the walk would not end.
        let is_sparse = edges == 2 * (nodes.len() - 1);
        while let Some(node) = waiting.pop().filter(|_| is_sparse) {
            self.preorder.push(node);
            if self.preorder.len() - first > nodes.len() {
                break;
            }
            let parent = self.parents[node as usize];
            for &child in neighbours.of(node as usize).iter().rev().filter(|&&child| Some(child) != parent) {
                self.parents[child as usize] = Some(node);
                self.depths[child as usize] = self.depths[node as usize] + 1;
                waiting.push(child);
            }
        }
        if !is_sparse || self.preorder.len() - first != nodes.len() {
            return Err(ModelError::NoTree { nodes: nodes.len(), edges });
        }
        for at in (first + 1..self.preorder.len()).rev() {
            let node = self.preorder[at] as usize;
            if let Some(parent) = self.parents[node] {
                self.subtree[parent as usize] += self.subtree[node];
            }
        }
        Ok(())
    }

    /// Number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.parents.len()
    }

    /// For each node, in the order of trees, a node of the same tree that is neither its ancestor nor below it, uniformly drawn; none if there is
    /// no such node. A pair is a function of the draw, the tree's position in its store (`graphs`) and the node's in the tree.
    pub fn unrelated(&self, graphs: &[u64], draw: Draw) -> Vec<[u32; 2]> {
        let mut pairs = Vec::new();
        for (tree, &graph) in self.pointers.windows(2).zip(graphs) {
            let key = random::bits(draw.seed, Purpose::UnrelatedPairs, draw.epoch, graph);
            let order = &self.preorder[tree[0]..tree[1]];
            // Positions in `order` of the ancestors of the node at hand, and the ends of their subtrees.
            let (mut ancestors, mut ends): (Vec<usize>, Vec<usize>) = Default::default();
            for (at, &node) in order.iter().enumerate() {
                while ends.last().is_some_and(|&end| end <= at) {
                    ancestors.pop();
                    ends.pop();
                }
                let end = at + self.subtree[node as usize] as usize;
                let before = at - ancestors.len();
                let count = before + order.len() - end;
                if count > 0 {
                    let bits = random::mix(key ^ u64::from(node - tree[0] as u32));
                    let chosen = random::to_below(bits, count as u64) as usize;
                    let place = match chosen < before {
                        true => chosen + skipped(&ancestors, chosen),
                        false => end + chosen - before,
                    };
                    pairs.push([node, order[place]]);
                }
                ancestors.push(at);
                ends.push(end);
            }
        }
        pairs
    }

    /// The paths from each node to its parent, grandparent and great-grandparent alone.
    pub fn ancestors(&self, positions: Vec<Vector>) -> PathGraph {
        let (mut pointers, mut sources) = (vec![0], Vec::with_capacity(self.num_nodes()));
        for parent in &self.parents {
            sources.extend(parent.map(|parent| parent as i32));
            pointers.push(sources.len() as i32);
        }
        PathGraph::new(Neighbours::of_incoming(&pointers, &sources), positions)
    }
}

/// Number of `taken` positions, ascending, up to the position that is number `chosen` among those not taken.
fn skipped(taken: &[usize], chosen: usize) -> usize {
    let (mut low, mut high) = (0, taken.len());
    while low < high {
        let middle = (low + high) / 2;
        match taken[middle] - middle <= chosen {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Neighbours of trees given by the parent of each node (within its tree), whose first node is the root.
    pub(crate) fn forest(trees: &[Vec<usize>]) -> (Neighbours, Vec<usize>) {
        let mut pointers = vec![0];
        let mut edges: Vec<Vec<i32>> = Vec::new();
        for parents in trees {
            let first = edges.len();
            edges.resize(first + parents.len() + 1, Vec::new());
            for (child, &parent) in (first + 1..).zip(parents) {
                edges[child].push((first + parent) as i32);
                edges[first + parent].push(child as i32);
            }
            pointers.push(edges.len());
        }
        let mut rows = vec![0];
        let sources: Vec<i32> = edges
            .iter_mut()
            .flat_map(|sources| {
                sources.sort_unstable();
                rows.push(rows[rows.len() - 1] + sources.len() as i32);
                sources.clone()
            })
            .collect();
        (Neighbours::of_incoming(&rows, &sources), pointers)
    }

    fn trees(parents: &[Vec<usize>]) -> Trees {
        let (neighbours, pointers) = forest(parents);
        Trees::new(&neighbours, pointers).unwrap()
    }

    fn ancestors(trees: &Trees, node: u32) -> Vec<u32> {
        std::iter::successors(trees.parents[node as usize], |&node| trees.parents[node as usize]).collect()
    }

    /// Parents of nodes 1, 2, …: each an earlier node.
    fn any_tree() -> impl Strategy<Value = Vec<usize>> {
        prop::collection::vec(any::<usize>(), 0..14)
            .prop_map(|numbers| numbers.iter().enumerate().map(|(at, number)| number % (at + 1)).collect())
    }

    proptest! {
        #[test]
        fn trees_are_read_from_their_edges_and_no_drawn_pair_is_related(
            parents in prop::collection::vec(any_tree(), 1..4),
            seed in any::<u64>(),
        ) {
            let trees = trees(&parents);
            let given = |tree: usize| {
                let first = trees.pointers[tree] as u32;
                std::iter::once(None).chain(parents[tree].iter().map(move |&parent| Some(first + parent as u32)))
            };
            let expected: Vec<Option<u32>> = (0..parents.len()).flat_map(given).collect();
            prop_assert_eq!(&trees.parents, &expected);
            let graphs: Vec<u64> = (0..parents.len() as u64).collect();
            let pairs = trees.unrelated(&graphs, Draw { seed, epoch: 1 });
            let mut drawn = vec![false; trees.num_nodes()];
            for &[node, other] in &pairs {
                let tree = trees.pointers.partition_point(|&first| first <= node as usize);
                prop_assert!((trees.pointers[tree - 1]..trees.pointers[tree]).contains(&(other as usize)));
                prop_assert!(node != other && !ancestors(&trees, node).contains(&other));
                prop_assert!(!ancestors(&trees, other).contains(&node));
                drawn[node as usize] = true;
            }
            // Every node that has unrelated ones has a pair.
            for node in 0..trees.num_nodes() as u32 {
                prop_assert_eq!(trees.depths[node as usize] as usize, ancestors(&trees, node).len());
                let tree = trees.pointers.partition_point(|&first| first <= node as usize);
                let related = |other: &u32| {
                    *other == node || ancestors(&trees, node).contains(other) || ancestors(&trees, *other).contains(&node)
                };
                let all = trees.pointers[tree - 1] as u32..trees.pointers[tree] as u32;
                prop_assert_eq!(drawn[node as usize], !all.clone().all(|other| related(&other)));
            }
        }
    }

    #[test]
    fn unrelated_nodes_are_drawn_uniformly() {
        // Two branches of three nodes each below a stem of two.
        let trees = trees(&[vec![0, 1, 2, 3, 1, 5, 6]]);
        let mut counts = std::collections::BTreeMap::new();
        for epoch in 0..3000 {
            for pair in trees.unrelated(&[5], Draw { seed: 2, epoch }) {
                *counts.entry(pair).or_insert(0) += 1;
            }
        }
        // Each of the six nodes of the branches has three unrelated ones; a deviation of 26.
        assert_eq!(counts.len(), 18);
        assert!(counts.values().all(|count| (870..1130).contains(count)), "{counts:?}");
    }

    #[test]
    fn graphs_that_are_no_trees_are_refused() {
        let refused = |pointers: &[i32], sources: &[i32], nodes: Vec<usize>| {
            let neighbours = Neighbours::of_incoming(pointers, sources);
            Trees::new(&neighbours, nodes).unwrap_err().to_string()
        };
        let triangle = refused(&[0, 2, 4, 6], &[1, 2, 0, 2, 0, 1], vec![0, 3]);
        assert!(triangle.contains("a graph of 3 nodes and 6 edges is no tree"), "{triangle}");
        let in_two = refused(&[0, 0, 1, 2], &[2, 1], vec![0, 3]);
        assert!(in_two.contains("a graph of 3 nodes and 2 edges"), "{in_two}");
        // As many edges as a tree, one part a triangle.
        let circle = refused(&[0, 0, 2, 4, 6], &[2, 3, 1, 3, 1, 2], vec![0, 4]);
        assert!(circle.contains("no tree"), "{circle}");
        let one_way = refused(&[0, 0, 1, 3], &[0, 0, 1], vec![0, 3]);
        assert!(one_way.contains("no tree"), "{one_way}");
    }
}
