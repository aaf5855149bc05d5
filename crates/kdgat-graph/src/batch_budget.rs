//! Batches with a limited number of nodes and edges, regardless of the sizes of their graphs.

use std::sync::Arc;

use super::{PairCounter, Store, StoreError};

/// Largest number of batches that [`BatchBudget::pack`] has open at a time: more fill the batches hardly better, and take longer.
const OPEN_BATCHES: usize = 64;

/// Nodes and edges of a graph or a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GraphSize {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of edges, as stored: without the self-loops that layers add. For networks in space, the pairs of near nodes.
    pub edges: u64,
}

/// Sizes of all graphs of a store, without making tensors. With a `cutoff`, pairs of nodes within it are counted instead of edges.
///
/// # Errors
/// A damaged shard, or a graph whose pairs cannot be made.
pub fn graph_sizes(store: &Store, cutoff: Option<f64>) -> Result<Vec<GraphSize>, StoreError> {
    let mut counter = PairCounter::default();
    let mut size = |graph| {
        let view = store.try_graph(graph)?;
        let edges = match cutoff {
            Some(cutoff) => counter.count(graph, &view, cutoff)?.pairs,
            None => view.num_edges() as u64,
        };
        Ok(GraphSize { nodes: view.num_nodes() as u64, edges })
    };
    (0..store.num_graphs()).map(&mut size).collect()
}

impl GraphSize {
    fn plus(self, other: Self) -> Self {
        Self { nodes: self.nodes + other.nodes, edges: self.edges + other.edges }
    }
}

/// Largest number of nodes and edges of a batch, and the size of each graph of a store.
#[derive(Debug, Clone)]
pub struct BatchBudget {
    nodes: Option<u64>,
    edges: Option<u64>,
    /// Nodes and edges of each graph, by position in the store.
    sizes: Arc<[GraphSize]>,
    /// True if pairs of near nodes are counted instead of edges.
    counts_pairs: bool,
}

impl BatchBudget {
    /// A budget of `nodes` nodes and `edges` edges per batch for graphs of `store`; either may be unlimited. With a `cutoff`, pairs of
    /// nodes within it are limited instead of edges.
    ///
    /// # Errors
    /// Those of [`graph_sizes`].
    pub fn new(nodes: Option<u64>, edges: Option<u64>, store: &Store, cutoff: Option<f64>) -> Result<Self, StoreError> {
        Ok(Self { nodes, edges, sizes: graph_sizes(store, cutoff)?.into(), counts_pairs: cutoff.is_some() })
    }

    /// The plural of what `edges` counts: edges, or pairs of near nodes.
    pub fn edges_name(&self) -> &'static str {
        if self.counts_pairs { "pairs of near nodes" } else { "edges" }
    }

    /// Cuts the graphs, in order, into batches within the budget and of at most `most_graphs` graphs. A graph larger than the
    /// budget is a batch of its own.
    pub fn cut(&self, graphs: &[u64], most_graphs: usize) -> Vec<Vec<u64>> {
        self.fill(graphs, most_graphs, 1)
    }

    /// Packs the graphs into batches within the budget and of at most `most_graphs` graphs: each graph, in order, into the first open
    /// batch that has room (first fit). A graph larger than the budget is a batch of its own. Batches are in the order of their first
    /// graphs, so that they depend on the order of the graphs alone.
    pub fn pack(&self, graphs: &[u64], most_graphs: usize) -> Vec<Vec<u64>> {
        self.fill(graphs, most_graphs, OPEN_BATCHES)
    }

    fn fill(&self, graphs: &[u64], most_graphs: usize, most_open: usize) -> Vec<Vec<u64>> {
        let mut batches: Vec<Vec<u64>> = Vec::new();
        // Positions and sizes of the batches that may get further graphs, in order.
        let mut open: Vec<(usize, GraphSize)> = Vec::new();
        for &graph in graphs {
            let own = self.size_of(graph);
            let has_room =
                |(batch, size): &(usize, GraphSize)| batches[*batch].len() < most_graphs && self.holds(size.plus(own));
            match open.iter().position(has_room) {
                Some(found) => {
                    let (batch, size) = &mut open[found];
                    batches[*batch].push(graph);
                    *size = size.plus(own);
                }
                None => {
                    if open.len() == most_open {
                        open.remove(0);
                    }
                    open.push((batches.len(), own));
                    batches.push(vec![graph]);
                }
            }
        }
        batches
    }

    /// Estimated number of graphs in a batch of these graphs.
    pub fn graphs(&self, graphs: &[u64]) -> f64 {
        let all = graphs.iter().fold(GraphSize::default(), |all, &graph| all.plus(self.size_of(graph)));
        let fit = |limit: Option<u64>, all: u64| match limit {
            Some(limit) => limit as f64 * graphs.len() as f64 / all.max(1) as f64,
            None => f64::INFINITY,
        };
        fit(self.nodes, all.nodes).min(fit(self.edges, all.edges)).max(1.0)
    }

    /// The largest of these graphs that is larger than the budget, with its size; `None` if all fit.
    pub fn too_large(&self, graphs: &[u64]) -> Option<(u64, GraphSize)> {
        let sizes = graphs.iter().map(|&graph| (graph, self.size_of(graph)));
        sizes.filter(|(_, size)| !self.holds(*size)).max_by_key(|(_, size)| (size.nodes, size.edges))
    }

    /// The budget as text: `4096 nodes and 20000 edges`.
    pub fn describe(&self) -> String {
        let of_edges = |edges: u64| format!("{edges} {}", self.edges_name());
        let parts = [self.nodes.map(|nodes| format!("{nodes} nodes")), self.edges.map(of_edges)];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }

    fn holds(&self, size: GraphSize) -> bool {
        self.nodes.is_none_or(|most| size.nodes <= most) && self.edges.is_none_or(|most| size.edges <= most)
    }

    fn size_of(&self, graph: u64) -> GraphSize {
        self.sizes[graph as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A budget for graphs of these sizes, and the graphs in descending order.
    fn setting(sizes: &[(u32, u32)], nodes: Option<u64>, edges: Option<u64>) -> (BatchBudget, Vec<u64>) {
        let size = |&(nodes, edges): &(u32, u32)| GraphSize { nodes: nodes.into(), edges: edges.into() };
        let sizes: Vec<GraphSize> = sizes.iter().map(size).collect();
        let graphs = (0..sizes.len() as u64).rev().collect();
        (BatchBudget { nodes, edges, sizes: sizes.into(), counts_pairs: false }, graphs)
    }

    fn total(budget: &BatchBudget, batch: &[u64]) -> GraphSize {
        batch.iter().fold(GraphSize::default(), |all, &graph| all.plus(budget.size_of(graph)))
    }

    proptest! {
        #[test]
        fn batches_are_full_but_not_too_full(
            sizes in prop::collection::vec((1u32..50, 0u32..200), 0..200),
            nodes in prop::option::of(1u64..400),
            edges in prop::option::of(1u64..1000),
            most_graphs in 1usize..40,
        ) {
            let (budget, graphs) = setting(&sizes, nodes, edges);
            let batches = budget.cut(&graphs, most_graphs);
            prop_assert_eq!(batches.concat(), graphs.clone());
            for pair in batches.windows(2) {
                let next = total(&budget, &pair[0]).plus(budget.size_of(pair[1][0]));
                prop_assert!(pair[0].len() == most_graphs || !budget.holds(next));
            }
            let packed = budget.pack(&graphs, most_graphs);
            let mut all = packed.concat();
            all.sort_unstable_by_key(|&graph| std::cmp::Reverse(graph));
            prop_assert_eq!(all, graphs);
            prop_assert!(packed.is_sorted_by_key(|batch| std::cmp::Reverse(batch[0])), "in the order of their first graphs");
            for batch in batches.iter().chain(&packed) {
                let fits = budget.holds(total(&budget, batch)) || batch.len() == 1;
                prop_assert!(batch.len() <= most_graphs && fits);
            }
        }
    }

    /// `kdgat.Store` of the Python package makes the same batches: `python/tests/test_data.py` has the same ones.
    #[test]
    fn batches_are_those_of_the_python_package() {
        let sizes: Vec<(u32, u32)> = (0..18).map(|graph| (2 + graph * 7 % 5, graph * 11 % 9)).collect();
        let (budget, graphs) = setting(&sizes, Some(12), Some(16));
        let expected: [&[u64]; 7] = [&[17, 16, 15], &[14, 13], &[12, 11, 10], &[9, 8], &[7, 6, 5], &[4, 3], &[2, 1, 0]];
        assert_eq!(budget.cut(&graphs, 4), expected);
        let expected: [&[u64]; 7] = [&[17, 16, 15], &[14, 13, 11], &[12, 10, 8], &[9, 7], &[6, 5, 4], &[3, 2, 0], &[1]];
        assert_eq!(budget.pack(&graphs, 4), expected);
        // More batches than are open at a time: the sums of their graphs, times their places.
        let sizes: Vec<(u32, u32)> = (0..200).map(|graph| (40 * (1 + graph / 100) + graph % 7, 0)).collect();
        let (budget, graphs) = setting(&sizes, Some(150), None);
        let packed = budget.pack(&graphs, 200);
        let places: u64 = (1..).zip(&packed).map(|(place, batch)| place * batch.iter().sum::<u64>()).sum();
        assert_eq!((packed.len(), places), (112, 1_011_538));
    }

    #[test]
    fn packed_batches_are_at_least_95_percent_full() {
        // Sizes spread as those of proteins: most small, a few large.
        let sizes: Vec<(u32, u32)> = (0..1000u32).map(|graph| (4 + (graph * 7919 % 997).pow(2) / 8000, 0)).collect();
        let (budget, graphs) = setting(&sizes, Some(500), None);
        let packed = budget.pack(&graphs, usize::MAX);
        let nodes: u64 = packed.iter().map(|batch| total(&budget, batch).nodes).sum();
        let share = nodes as f64 / (500 * packed.len()) as f64;
        assert!(share >= 0.95, "{share}");
        assert_eq!(budget.too_large(&graphs), None);
    }

    #[test]
    fn a_graph_larger_than_the_budget_is_found() {
        let (budget, graphs) = setting(&[(3, 4), (9, 2), (5, 30)], Some(8), Some(20));
        assert_eq!(budget.too_large(&graphs), Some((1, GraphSize { nodes: 9, edges: 2 })));
        assert_eq!(budget.too_large(&[2]), Some((2, GraphSize { nodes: 5, edges: 30 })));
        assert_eq!(budget.describe(), "8 nodes and 20 edges");
        assert_eq!(budget.pack(&graphs, 10), [vec![2], vec![1], vec![0]]);
    }
}
