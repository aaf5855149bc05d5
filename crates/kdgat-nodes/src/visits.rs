//! Probability that a batch of sampled neighbourhoods reads the features of a node.
//!
//! One pass over the edges for each hop, from the seeds outwards. With `c(v)` the probability that `v` is among the nodes before a hop,
//! and `p(v) = min(1, f / deg(v))` that it draws a given neighbour at this hop, the probability that it has drawn this neighbour by now is
//! `r'(v) = r(v) + (c(v) − r(v)) · p(v)`: a node draws at each hop after it has appeared, and drawing the same neighbour again adds none.
//! Draws by different nodes are nearly independent, so that `c'(u) = 1 − (1 − c₀(u)) · Π_v (1 − r'(v))` over the nodes `v` that `u` leads
//! to, with `c₀` for the seeds. (Data Tiering, Min et al. 2022, ranks rows by such weights; as probabilities, their sum is also the
//! expected number of rows of a batch.)
//!
//! If edges have their reverse, a node that `u` has drawn may draw `u`, which is there already and gains nothing. A seed of a graph
//! with small degrees would count twice. The draws of `v` therefore count as far as `v` would be there without `u`, as messages do in
//! belief propagation (Pearl 1982): with `(c(v) − r(u)) / (1 − r(u))` instead of `c(v)`.

use super::NodeGraph;
use super::sampler::Fanout;

/// Edges that are looked up to see if the reverse of each is there.
const CHECKED_EDGES: usize = 1024;

/// `[num_nodes]`: probability that a batch of `batch` of these seeds, with these fan-outs from the seeds outwards, reads each node.
///
/// # Panics
/// If the graph has no such node.
pub fn visit_probabilities(
    graph: &NodeGraph,
    seeds: impl IntoIterator<Item = u32>,
    batch: usize,
    fanouts: &[Fanout],
) -> Vec<f32> {
    let num_nodes = graph.num_nodes();
    let (mut is_seed, mut count) = (vec![false; num_nodes], 0usize);
    for seed in seeds {
        is_seed[seed as usize] = true;
        count += 1;
    }
    let share = (batch as f64 / count.max(1) as f64).min(1.0) as f32;
    let mut among: Vec<f32> = is_seed.iter().map(|&is_seed| if is_seed { share } else { 0.0 }).collect();
    let (row_pointers, sources): (&[u64], &[u32]) = (&graph.row_pointers, &graph.sources);
    let hops = if fanouts.is_empty() { 0 } else { num_nodes };
    let returns = has_reverse_edges(graph);
    // For each node, the probability that it has drawn a given neighbour, and the logarithm of the product's inverse.
    let (mut drawn, mut logs) = (vec![0f32; hops], vec![0f32; hops]);
    for &fanout in fanouts {
        logs.fill(0.0);
        let of_row = |ends: &[u64]| share_of_row((ends[1] - ends[0]) as f64, fanout) as f32;
        for (node, ends) in row_pointers.windows(2).enumerate() {
            let among = among[node];
            if among == 0.0 || ends[0] == ends[1] {
                continue;
            }
            let share = of_row(ends);
            let draws = drawn[node] + (among - drawn[node]) * share;
            let log = -(-draws).ln_1p();
            for &source in &sources[ends[0] as usize..ends[1] as usize] {
                // The source may have drawn this node.
                let by_source = if returns { drawn[source as usize] } else { 0.0 };
                logs[source as usize] += match by_source > 0.0 {
                    true => -(-without(by_source, among, drawn[node], share)).ln_1p(),
                    false => log,
                };
            }
        }
        for ((drawn, &among), ends) in drawn.iter_mut().zip(&among).zip(row_pointers.windows(2)) {
            if ends[1] > ends[0] {
                *drawn += (among - *drawn) * of_row(ends);
            }
        }
        for ((among, &log), &is_seed) in among.iter_mut().zip(&logs).zip(&is_seed) {
            *among = 1.0 - (1.0 - if is_seed { share } else { 0.0 }) * (-log).exp();
        }
    }
    among
}

/// Probability that a node draws a neighbour by the end of a hop without having been drawn by it, which has the probability `by_neighbour`.
/// The node is `among` those before the hop and has `drawn` each neighbour before.
fn without(by_neighbour: f32, among: f32, drawn: f32, share: f32) -> f32 {
    if by_neighbour >= 1.0 {
        return 0.0;
    }
    let others = ((among - by_neighbour) / (1.0 - by_neighbour)).max(0.0);
    let before = drawn.min(others);
    before + (others - before) * share
}

/// True if edges that are spread over the graph have their reverse.
fn has_reverse_edges(graph: &NodeGraph) -> bool {
    let edges = graph.num_edges();
    (0..CHECKED_EDGES.min(edges)).all(|number| {
        let edge = (number as u128 * edges as u128 / CHECKED_EDGES.min(edges) as u128) as usize;
        // The last row that begins at or before the edge has it, as empty rows end where they begin.
        let target = graph.row_pointers.partition_point(|&begin| begin <= edge as u64) - 1;
        graph.neighbours(graph.sources[edge]).binary_search(&(target as u32)).is_ok()
    })
}

/// Probability that one of `degree` neighbours is drawn.
pub fn share_of_row(degree: f64, fanout: Fanout) -> f64 {
    match fanout {
        Fanout::All => 1.0,
        Fanout::AtMost(limit) => (f64::from(limit) / degree).min(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{SampledLayers, Sampler};
    use crate::test_graphs::{graph_of, planted_graph, random_graph};
    use kdgat_base::random::{self, Purpose};

    /// Share of the batches of 40 epochs that read each node.
    fn counted(graph: &NodeGraph, seeds: &[u32], batch: usize, fanouts: &[Fanout]) -> Vec<f32> {
        let (mut counts, mut batches) = (vec![0f32; graph.num_nodes()], 0f32);
        let (mut sampler, mut layers) = (Sampler::new(graph, fanouts, 5), SampledLayers::default());
        for epoch in 0..40 {
            let mut order: Vec<u32> = seeds.to_vec();
            random::shuffle(&mut order, 5, Purpose::Shuffle, epoch);
            for seeds in order.chunks_exact(batch) {
                sampler.sample(seeds, epoch, &mut layers).unwrap();
                layers.nodes().iter().for_each(|&node| counts[node as usize] += 1.0);
                batches += 1.0;
            }
        }
        counts.iter().map(|count| count / batches).collect()
    }

    /// Heavy-tailed in-degrees and out-degrees, several fan-outs: the sum of the probabilities is the number of rows of a batch, and
    /// they rank nodes as the counts do.
    #[test]
    fn probabilities_are_the_shares_of_sampled_batches() {
        let graph = random_graph(2000, 20_000, 3);
        let seeds: Vec<u32> = (0..500).map(|seed| seed * 3).collect();
        for (fanouts, batch) in [([4, 3].map(Fanout::AtMost), 20), ([2, 10].map(Fanout::AtMost), 50)] {
            let expected = visit_probabilities(&graph, seeds.iter().copied(), batch, &fanouts);
            let found = counted(&graph, &seeds, batch, &fanouts);
            let sum = |values: &[f32]| values.iter().sum::<f32>();
            let ratio = sum(&expected) / sum(&found);
            assert!((0.97..1.03).contains(&ratio), "{fanouts:?}: {} and {}", sum(&expected), sum(&found));
            // Rows read from the 200 best nodes by each ranking.
            let best = |by: &[f32]| {
                let mut nodes: Vec<usize> = (0..by.len()).collect();
                nodes.sort_by(|&one, &other| by[other].total_cmp(&by[one]));
                nodes[..200].iter().map(|&node| found[node]).sum::<f32>()
            };
            assert!(best(&expected) > 0.95 * best(&found), "{} and {}", best(&expected), best(&found));
        }
    }

    /// A node that a seed has drawn may draw the seed: in an undirected graph with small degrees, few seeds and small batches, this would
    /// raise the seeds' own probabilities, which are known.
    #[test]
    fn edges_back_to_a_seed_add_nothing() {
        let graph = planted_graph(3000, 3, 2, 2, 7);
        assert!(has_reverse_edges(&graph) && !has_reverse_edges(&random_graph(2000, 20_000, 3)));
        let seeds: Vec<u32> = (0..150).map(|seed| seed * 17).collect();
        let fanouts = [5, 3].map(Fanout::AtMost);
        let expected = visit_probabilities(&graph, seeds.iter().copied(), 10, &fanouts);
        let found = counted(&graph, &seeds, 10, &fanouts);
        let of_seeds = |values: &[f32]| seeds.iter().map(|&seed| values[seed as usize]).sum::<f32>();
        let of_all = |values: &[f32]| values.iter().sum::<f32>();
        for (name, sum) in [("seeds", &of_seeds as &dyn Fn(&[f32]) -> f32), ("all", &of_all)] {
            let ratio = sum(&expected) / sum(&found);
            assert!((0.97..1.03).contains(&ratio), "{name}: {} and {}", sum(&expected), sum(&found));
        }
    }

    #[test]
    fn all_neighbours_of_a_seed_are_certain() {
        let graph = graph_of(5, [(1, 0), (2, 0), (3, 2)]);
        let found = visit_probabilities(&graph, [0], 1, &[Fanout::All]);
        assert_eq!(found, [1.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!(visit_probabilities(&graph, [4, 1], 1, &[]), [0.0, 0.5, 0.0, 0.0, 0.5]);
    }
}
