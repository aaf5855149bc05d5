//! Batches with a limited number of nodes, regardless of the sizes of their graphs.

use std::sync::Arc;

use super::{Store, StoreError};

/// Largest number of nodes of a batch, and the number of nodes of each graph of a store.
#[derive(Debug, Clone)]
pub struct NodeBudget {
    nodes: u64,
    /// Nodes of each graph, by position in the store.
    node_counts: Arc<[u32]>,
}

impl NodeBudget {
    /// A budget of `nodes` nodes per batch for graphs of `store`.
    ///
    /// # Errors
    /// When a shard is damaged.
    pub fn new(nodes: u64, store: &Store) -> Result<Self, StoreError> {
        let count = |graph| Ok(store.try_graph(graph)?.num_nodes() as u32);
        Ok(Self { nodes, node_counts: (0..store.num_graphs()).map(count).collect::<Result<_, StoreError>>()? })
    }

    /// Cuts the graphs, in order, into batches of at most the budgeted nodes and `most_graphs` graphs. A graph with more nodes
    /// than the budget is a batch of its own.
    pub fn cut(&self, graphs: &[u64], most_graphs: usize) -> Vec<Vec<u64>> {
        let mut batches: Vec<Vec<u64>> = Vec::new();
        let mut nodes = 0;
        for &graph in graphs {
            let own = self.nodes_of(graph);
            match batches.last_mut() {
                Some(batch) if nodes + own <= self.nodes && batch.len() < most_graphs => {
                    batch.push(graph);
                    nodes += own;
                }
                _ => {
                    batches.push(vec![graph]);
                    nodes = own;
                }
            }
        }
        batches
    }

    /// Estimated number of graphs in a batch of these graphs.
    pub fn graphs(&self, graphs: &[u64]) -> f64 {
        let nodes: u64 = graphs.iter().map(|&graph| self.nodes_of(graph)).sum();
        (self.nodes as f64 * graphs.len() as f64 / nodes.max(1) as f64).max(1.0)
    }

    fn nodes_of(&self, graph: u64) -> u64 {
        u64::from(self.node_counts[graph as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn batches_are_full_but_not_too_full(
            node_counts in prop::collection::vec(1u32..50, 0..200),
            nodes in 1u64..400,
            most_graphs in 1usize..40,
        ) {
            let budget = NodeBudget { nodes, node_counts: node_counts.clone().into() };
            let graphs: Vec<u64> = (0..node_counts.len() as u64).rev().collect();
            let batches = budget.cut(&graphs, most_graphs);
            prop_assert_eq!(batches.concat(), graphs);
            let of = |batch: &[u64]| batch.iter().map(|&graph| budget.nodes_of(graph)).sum::<u64>();
            for batch in &batches {
                prop_assert!(batch.len() <= most_graphs && (of(batch) <= nodes || batch.len() == 1));
            }
            for pair in batches.windows(2) {
                prop_assert!(pair[0].len() == most_graphs || of(&pair[0]) + budget.nodes_of(pair[1][0]) > nodes);
            }
        }
    }
}
