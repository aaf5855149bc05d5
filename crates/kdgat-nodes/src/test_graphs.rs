//! Graphs for the tests.

#[path = "../../kdgat-node-store/src/test_graphs.rs"]
mod shared;

use crate::node_graph::NodeGraph;

use shared::number;
pub(crate) use shared::{graph_of, random_graph};

/// An undirected graph of `groups` planted groups (node `i` belongs to group `i % groups`): each node has about `inside` edges
/// within its group and `outside` to any node.
pub(crate) fn planted_graph(num_nodes: usize, groups: usize, inside: usize, outside: usize, seed: u64) -> NodeGraph {
    let edges = (0..num_nodes).flat_map(|node| {
        let draw = move |at: usize, bound: usize| number(seed, node * (inside + outside) + at, bound);
        let members = num_nodes / groups;
        let within = (0..inside / 2).map(move |at| draw(at, members) * groups + node % groups);
        let any = (0..outside / 2).map(move |at| draw(inside + at, num_nodes));
        within.chain(any).flat_map(move |other| [(node as u32, other as u32), (other as u32, node as u32)])
    });
    graph_of(num_nodes, edges)
}
