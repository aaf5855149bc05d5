//! Hashes of nodes as their source has them. The digest of any set of nodes follows from these and the labels, without reading features again.
//!
//! The hash of a node is that of its identifier and of its features before they are normalised or rounded. So it is the same for all options of
//! reading, and changes if the source has another row for that node.

use std::io;

use kdgat_base::random::mix;
use kdgat_base::set_digest::SetDigest;

use crate::node_graph::NodeGraph;

/// Hash of a row of features: a sum over those that are not zero, so that dense and sparse rows have the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowHash(u64);

impl RowHash {
    /// Adds a feature of the row.
    pub fn add(&mut self, column: usize, value: f32) {
        if value != 0.0 {
            // Columns are numbered in 32 bits.
            self.0 = self.0.wrapping_add(mix((column as u64) << 32 | u64::from(value.to_bits())));
        }
    }

    /// The hash of a dense row.
    pub fn of(row: &[f32]) -> Self {
        let mut hash = Self::default();
        row.iter().enumerate().for_each(|(column, &value)| hash.add(column, value));
        hash
    }

    /// The hash of the node with this row: `identifier` is its number in the source, or the hash of its name there.
    pub fn of_node(self, identifier: u64) -> u64 {
        mix(mix(identifier).wrapping_add(self.0))
    }
}

/// Hash of a node's name in its source.
pub fn of_name(name: &str) -> u64 {
    let digest = blake3::hash(name.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest.as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// The hash of a node with its label.
fn with_label(graph: &NodeGraph, node: u32) -> u64 {
    mix(graph.node_hashes[node as usize] ^ mix(u64::from(graph.labels[node as usize] as u32)))
}

/// Digest of several sets of nodes with their labels.
///
/// # Errors
/// Any error of the system: pages of the graph's file that were read are released.
pub fn digest_of_sets(graph: &NodeGraph, sets: &[&[u32]]) -> io::Result<String> {
    let mut digest = SetDigest::default();
    sets.iter().for_each(|set| digest.add(set.iter().map(|&node| with_label(graph, node))));
    graph.node_hashes.release_pages()?;
    Ok(digest.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_graphs::random_graph;

    #[test]
    fn rows_are_told_apart_and_zeros_are_not_counted() {
        let of = RowHash::of;
        let mut sparse = RowHash::default();
        sparse.add(2, 3.0);
        sparse.add(0, 1.0);
        assert_eq!(of(&[1.0, 0.0, 3.0, -0.0]), sparse);
        for other in [[3.0, 0.0, 1.0], [1.0, 3.0, 0.0], [1.0, 0.0, 3.000_000_2], [1.0, 1.0, 3.0]] {
            assert_ne!(of(&other), sparse, "{other:?}");
        }
        assert_ne!(sparse.of_node(0), sparse.of_node(1));
        assert_ne!(of_name("1"), of_name("01"));
    }

    #[test]
    fn a_digest_is_that_of_the_sets_with_their_labels() {
        let graph = random_graph(20, 40, 1);
        let of = |graph: &NodeGraph, sets: &[&[u32]]| digest_of_sets(graph, sets).unwrap();
        let digest = of(&graph, &[&[3, 5, 7], &[8]]);
        assert_eq!(digest, of(&graph, &[&[7, 3, 5], &[8]]));
        assert_ne!(digest, of(&graph, &[&[3, 5], &[7, 8]]));
        assert_ne!(digest, of(&graph, &[&[3, 5, 6], &[8]]));
        let mut labels = graph.labels.to_vec();
        labels.swap(3, 5);
        assert_ne!(digest, of(&NodeGraph { labels: labels.into(), ..graph.clone() }, &[&[3, 5, 7], &[8]]));
        let mut labels = graph.labels.to_vec();
        labels[9] = 0;
        assert_eq!(
            digest,
            of(&NodeGraph { labels: labels.into(), ..graph.clone() }, &[&[3, 5, 7], &[8]]),
            "another node"
        );
        let mut hashes = graph.node_hashes.to_vec();
        hashes[8] += 1;
        assert_ne!(digest, of(&NodeGraph { node_hashes: hashes.into(), ..graph.clone() }, &[&[3, 5, 7], &[8]]));
    }
}
