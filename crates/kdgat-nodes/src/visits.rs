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

use kdgat_torch::parallel::{Parts, parallel_for};

use super::NodeGraph;
use super::sampler::Fanout;

/// If more than one node in this many draws, all rows are read by several threads.
const FEW_DRAWING: usize = 10;
/// Nodes that a thread takes at a time.
const BLOCK_NODES: usize = 4096;
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
    let of_seed = |is_seed: bool| if is_seed { share } else { 0.0 };
    let mut nodes: Vec<NodeDraws> =
        is_seed.iter().map(|&is_seed| NodeDraws { among: of_seed(is_seed), drawn: 0.0, share: 0.0 }).collect();
    let returns = has_reverse_edges(graph);
    // Probability that no node draws a node at this hop.
    let mut undrawn = vec![0f32; if fanouts.is_empty() { 0 } else { num_nodes }];
    for &fanout in fanouts {
        for (node, ends) in nodes.iter_mut().zip(graph.row_pointers.windows(2)) {
            node.share = if ends[1] > ends[0] { share_of_row((ends[1] - ends[0]) as f64, fanout) as f32 } else { 0.0 };
        }
        let drawing = nodes.iter().filter(|node| node.among > 0.0).count();
        match returns && drawing > num_nodes / FEW_DRAWING {
            true => gather_draws(graph, &nodes, &mut undrawn),
            false => scatter_draws(graph, &nodes, returns, &mut undrawn),
        }
        for ((node, &undrawn), &is_seed) in nodes.iter_mut().zip(&undrawn).zip(&is_seed) {
            node.drawn = node.draws();
            node.among = 1.0 - (1.0 - of_seed(is_seed)) * undrawn;
        }
    }
    drop(undrawn);
    nodes.into_iter().map(|node| node.among).collect()
}

/// Probabilities of a node before a hop; together, because a pass over the edges reads nodes in any order.
#[derive(Clone, Copy)]
struct NodeDraws {
    /// Probability that it is among the nodes.
    among: f32,
    /// Probability that it has drawn a given neighbour.
    drawn: f32,
    /// Probability that it draws a given neighbour at this hop.
    share: f32,
}

impl NodeDraws {
    /// Probability that it has drawn a given neighbour after this hop.
    fn draws(&self) -> f32 {
        self.drawn + (self.among - self.drawn) * self.share
    }

    /// The same for a neighbour that has drawn this node with the probability `by_neighbour`, which gains nothing then.
    fn draws_without(&self, by_neighbour: f32) -> f32 {
        match by_neighbour > 0.0 {
            true => without(by_neighbour, self.among, self.drawn, self.share),
            false => self.draws(),
        }
    }
}

/// Sets the probability that no node draws a node, from the rows of the nodes that draw: one after the other, as they share neighbours.
fn scatter_draws(graph: &NodeGraph, nodes: &[NodeDraws], returns: bool, undrawn: &mut [f32]) {
    let (row_pointers, sources): (&[u64], &[u32]) = (&graph.row_pointers, &graph.sources);
    let logs = undrawn;
    logs.fill(0.0);
    for (node, ends) in nodes.iter().zip(row_pointers.windows(2)) {
        if node.among == 0.0 {
            continue;
        }
        let log = -(-node.draws()).ln_1p();
        for &source in &sources[ends[0] as usize..ends[1] as usize] {
            // The source may have drawn this node.
            let by_source = if returns { nodes[source as usize].drawn } else { 0.0 };
            logs[source as usize] += match by_source > 0.0 {
                true => -(-node.draws_without(by_source)).ln_1p(),
                false => log,
            };
        }
    }
    logs.iter_mut().for_each(|log| *log = (-*log).exp());
}

/// The same from each node's own row, if every edge has its reverse: on several threads, and without logarithms.
fn gather_draws(graph: &NodeGraph, nodes: &[NodeDraws], undrawn: &mut [f32]) {
    let (row_pointers, sources): (&[u64], &[u32]) = (&graph.row_pointers, &graph.sources);
    let blocks = nodes.len().div_ceil(BLOCK_NODES);
    let parts = Parts::new(undrawn, (0..=blocks).map(|block| (block * BLOCK_NODES).min(nodes.len())));
    let of_node = |node: usize| -> f32 {
        let by_node = nodes[node].drawn;
        let row = &sources[row_pointers[node] as usize..row_pointers[node + 1] as usize];
        let misses = row.iter().map(|&other| 1.0 - f64::from(nodes[other as usize].draws_without(by_node)));
        misses.product::<f64>() as f32
    };
    parallel_for(blocks, 1, |range| {
        for block in range {
            let values = parts.take(block).iter_mut();
            values.enumerate().for_each(|(place, value)| *value = of_node(block * BLOCK_NODES + place));
        }
    });
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

    /// Both ways of a hop compute the same, also where nodes have drawn before.
    #[test]
    fn gathering_equals_scattering() {
        let graph = planted_graph(3000, 3, 2, 2, 7);
        let noise = |node: u64, place: u64| random::unit(3, Purpose::Shuffle, node, place) as f32;
        let nodes: Vec<NodeDraws> = (0..graph.num_nodes() as u64)
            .map(|node| {
                let among = if node % 3 == 0 { 0.0 } else { noise(node, 0) };
                NodeDraws { among, drawn: 0.5 * among * noise(node, 1), share: noise(node, 2) }
            })
            .collect();
        let (mut scattered, mut gathered) = (vec![0.0; nodes.len()], vec![0.0; nodes.len()]);
        scatter_draws(&graph, &nodes, true, &mut scattered);
        gather_draws(&graph, &nodes, &mut gathered);
        for (node, (one, other)) in scattered.iter().zip(&gathered).enumerate() {
            assert!((one - other).abs() < 1e-5, "node {node}: {one} and {other}");
        }
        assert!(scattered.iter().any(|&undrawn| undrawn < 0.5) && scattered.iter().any(|&undrawn| undrawn > 0.5));
    }

    #[test]
    fn all_neighbours_of_a_seed_are_certain() {
        let graph = graph_of(5, [(1, 0), (2, 0), (3, 2)]);
        let found = visit_probabilities(&graph, [0], 1, &[Fanout::All]);
        assert_eq!(found, [1.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!(visit_probabilities(&graph, [4, 1], 1, &[]), [0.0, 0.5, 0.0, 0.0, 0.5]);
    }
}
