//! Graphs for the tests.

use kdgat_base::random::{self, Purpose};

use crate::node_graph::{Features, NodeGraph, NodeTask, Section};

pub(crate) fn number(seed: u64, index: usize, bound: usize) -> usize {
    random::to_below(random::bits(seed, Purpose::Bootstrap, 1, index as u64), bound as u64) as usize
}

/// A graph of these directed edges (source, target), without repetitions and self-loops. Features of node `i` are `i` and `i / 2`,
/// and it has label `i % 3`.
pub(crate) fn graph_of(num_nodes: usize, edges: impl IntoIterator<Item = (u32, u32)>) -> NodeGraph {
    let mut edges: Vec<(u32, u32)> = edges
        .into_iter()
        .filter(|(source, target)| source != target)
        .map(|(source, target)| (target, source))
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let mut row_pointers = vec![0u64; num_nodes + 1];
    edges.iter().for_each(|&(target, _)| row_pointers[target as usize + 1] += 1);
    (0..num_nodes).for_each(|node| row_pointers[node + 1] += row_pointers[node]);
    NodeGraph {
        name: "test".to_owned(),
        digest: "test".to_owned(),
        row_pointers: Section::from(row_pointers),
        sources: Section::from(edges.iter().map(|&(_, source)| source).collect::<Vec<u32>>()),
        features: Features::Dense {
            columns: 2,
            values: Section::from(
                (0..num_nodes).flat_map(|node| [node as f32, node as f32 / 2.0]).collect::<Vec<f32>>(),
            ),
        },
        labels: Section::from((0..num_nodes as i32).map(|node| node % 3).collect::<Vec<i32>>()),
        task: NodeTask { classes: 3 },
        given_split: None,
        node_hashes: (0..num_nodes as u64).collect::<Vec<_>>().into(),
        original: None,
    }
}

/// A graph of random directed edges with some hubs.
pub(crate) fn random_graph(num_nodes: usize, num_edges: usize, seed: u64) -> NodeGraph {
    let hubs = (num_nodes / 10).max(1);
    graph_of(
        num_nodes,
        (0..num_edges).map(|edge| {
            let target = number(seed, 3 * edge, if edge % 3 == 0 { hubs } else { num_nodes });
            let source = number(seed, 3 * edge + 1, if edge % 5 == 0 { hubs } else { num_nodes });
            (source as u32, target as u32)
        }),
    )
}
