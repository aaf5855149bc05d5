//! Clusters of nodes with few edges between them (ClusterGCN, Chiang et al. 2019), and batches of clusters.
//!
//! The partition comes from streaming: each node goes to the cluster with most of its neighbours, weighted by the room that is left
//! there (linear deterministic greedy, Stanton & Kliot 2012). Further passes move each node once more with all others in place
//! (restreaming, Nishimura & Ugander 2013). Nodes stream in breadth-first order, so neighbours of most nodes are placed already.

use kdgat_base::random::{self, Purpose};

use super::{NodeGraph, NodesError};

/// Largest size of a cluster, relative to the mean.
const BALANCE: f64 = 1.1;
/// No cluster yet.
const NONE: u32 = u32::MAX;

/// The cluster of each node, `[num_nodes]`: `parts` clusters, none of them more than 10 % larger than the mean (rounded up). A pure
/// function of its arguments; more passes cut fewer edges, with little gained after ten.
///
/// # Errors
/// No cluster, or more than there are nodes.
pub fn partition(graph: &NodeGraph, parts: usize, passes: usize, seed: u64) -> Result<Vec<u32>, NodesError> {
    let num_nodes = graph.num_nodes();
    if parts == 0 || parts > num_nodes {
        let text = format!("{parts} clusters of a graph with {num_nodes} nodes: expected 1 to {num_nodes}");
        return Err(NodesError::options(text));
    }
    let order = breadth_first(graph, seed);
    let mut clusters = vec![NONE; num_nodes];
    let mut sizes = Sizes::new(parts);
    let capacity = ((BALANCE * num_nodes as f64 / parts as f64) as u32).max(num_nodes.div_ceil(parts) as u32);
    // Neighbours of the current node in each cluster, and the clusters that have some.
    let (mut counts, mut found) = (vec![0u32; parts], Vec::new());
    for _ in 0..passes.max(1) {
        let mut moved = false;
        for &node in &order {
            let before = clusters[node as usize];
            if before != NONE {
                sizes.add(before, -1);
            }
            for &neighbour in graph.neighbours(node) {
                let cluster = clusters[neighbour as usize];
                if cluster != NONE {
                    if counts[cluster as usize] == 0 {
                        found.push(cluster);
                    }
                    counts[cluster as usize] += 1;
                }
            }
            let chosen = choose(&sizes, capacity, &counts, &found);
            found.drain(..).for_each(|cluster| counts[cluster as usize] = 0);
            sizes.add(chosen, 1);
            clusters[node as usize] = chosen;
            moved |= chosen != before;
        }
        if !moved {
            break;
        }
    }
    Ok(clusters)
}

/// The cluster with the highest number of neighbours times free share; the smallest one for a node without neighbours in a cluster
/// that has room.
fn choose(sizes: &Sizes, capacity: u32, counts: &[u32], found: &[u32]) -> u32 {
    let (mut best, mut best_score) = (sizes.smallest(), 0);
    for &cluster in found {
        // The formula's score times the capacity, in whole numbers.
        let free = capacity.saturating_sub(sizes.of(cluster));
        let score = u64::from(counts[cluster as usize]) * u64::from(free);
        let better = (score, std::cmp::Reverse(cluster)) > (best_score, std::cmp::Reverse(best));
        if score > 0 && better {
            (best, best_score) = (cluster, score);
        }
    }
    best
}

/// Sizes of the clusters, with the smallest one at hand: a tournament, whose node `i` has the smaller of `2 i` and `2 i + 1`.
struct Sizes {
    sizes: Vec<u32>,
    /// Winners; the clusters themselves are the leaves from `leaves` on.
    winners: Vec<u32>,
    leaves: usize,
}

impl Sizes {
    fn new(parts: usize) -> Self {
        let leaves = parts.next_power_of_two();
        let mut winners = vec![0; 2 * leaves];
        for (leaf, winner) in winners[leaves..].iter_mut().enumerate() {
            *winner = leaf as u32;
        }
        let mut sizes = Self { sizes: vec![0; leaves], winners, leaves };
        // Leaves without a cluster never win.
        sizes.sizes[parts..].fill(u32::MAX);
        (1..leaves).rev().for_each(|at| sizes.play(at));
        sizes
    }

    fn play(&mut self, at: usize) {
        let [one, other] = [self.winners[2 * at], self.winners[2 * at + 1]];
        self.winners[at] = if self.of(other) < self.of(one) { other } else { one };
    }

    fn of(&self, cluster: u32) -> u32 {
        self.sizes[cluster as usize]
    }

    fn smallest(&self) -> u32 {
        self.winners[1]
    }

    fn add(&mut self, cluster: u32, change: i32) {
        let size = &mut self.sizes[cluster as usize];
        *size = size.saturating_add_signed(change);
        let mut at = (self.leaves + cluster as usize) / 2;
        while at > 0 {
            self.play(at);
            at /= 2;
        }
    }
}

/// All nodes, each component from a random node outwards.
fn breadth_first(graph: &NodeGraph, seed: u64) -> Vec<u32> {
    let mut starts: Vec<u32> = (0..graph.num_nodes() as u32).collect();
    random::shuffle(&mut starts, seed, Purpose::Shuffle, 0);
    let mut seen = vec![false; starts.len()];
    let mut order = Vec::with_capacity(starts.len());
    for start in starts {
        let mut next = order.len();
        if !std::mem::replace(&mut seen[start as usize], true) {
            order.push(start);
        }
        while next < order.len() {
            for &neighbour in graph.neighbours(order[next]) {
                if !std::mem::replace(&mut seen[neighbour as usize], true) {
                    order.push(neighbour);
                }
            }
            next += 1;
        }
    }
    order
}

/// Share of the edges between different clusters, 0 to 1.
///
/// # Panics
/// If there are fewer clusters (`[num_nodes]`) than nodes.
pub fn edge_cut(graph: &NodeGraph, clusters: &[u32]) -> f64 {
    let cut = |node: u32| {
        let own = clusters[node as usize];
        graph.neighbours(node).iter().filter(|&&neighbour| clusters[neighbour as usize] != own).count()
    };
    let all: usize = (0..graph.num_nodes() as u32).map(cut).sum();
    all as f64 / graph.num_edges().max(1) as f64
}

/// The clusters of a graph with their nodes.
#[derive(Debug)]
pub struct Clusters {
    /// `[num_nodes]`.
    of_node: Vec<u32>,
    /// Nodes of cluster `c` are `members[pointers[c]..pointers[c + 1]]`, ascending.
    pointers: Vec<usize>,
    members: Vec<u32>,
}

impl Clusters {
    /// Clusters from the cluster of each node, `[num_nodes]`.
    pub fn new(of_node: Vec<u32>) -> Self {
        let count = of_node.iter().max().map_or(0, |&last| last as usize + 1);
        let mut pointers = vec![0; count + 1];
        of_node.iter().for_each(|&cluster| pointers[cluster as usize + 1] += 1);
        (0..count).for_each(|cluster| pointers[cluster + 1] += pointers[cluster]);
        let (mut next, mut members) = (pointers.clone(), vec![0; of_node.len()]);
        for (node, &cluster) in of_node.iter().enumerate() {
            members[next[cluster as usize]] = node as u32;
            next[cluster as usize] += 1;
        }
        Self { of_node, pointers, members }
    }

    /// Number of clusters.
    pub fn count(&self) -> usize {
        self.pointers.len() - 1
    }

    /// Number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.of_node.len()
    }

    /// The cluster of each node, `[num_nodes]`.
    pub fn of_nodes(&self) -> &[u32] {
        &self.of_node
    }

    /// Nodes of a cluster, ascending.
    ///
    /// # Panics
    /// If there is no such cluster.
    pub fn members(&self, cluster: u32) -> &[u32] {
        &self.members[self.pointers[cluster as usize]..self.pointers[cluster as usize + 1]]
    }

    /// Writes all nodes of the clusters that have any of `seeds` to `nodes`, ascending.
    pub(crate) fn union(&self, seeds: &[u32], nodes: &mut Vec<u32>) {
        let mut clusters: Vec<u32> = seeds.iter().map(|&seed| self.of_node[seed as usize]).collect();
        clusters.sort_unstable();
        clusters.dedup();
        nodes.clear();
        clusters.into_iter().for_each(|cluster| nodes.extend_from_slice(self.members(cluster)));
        nodes.sort_unstable();
    }
}

/// Batches of an epoch: the seeds of `per_batch` clusters each (`clusters`, `[num_nodes]`; the last batch may have fewer). Clusters
/// without seeds are left out, and the others are shuffled anew in each epoch.
///
/// # Panics
/// If there is no such node.
pub fn cluster_batches(clusters: &[u32], per_batch: usize, seed: u64, epoch: u64, seeds: &[u64]) -> Vec<Vec<u64>> {
    let mut order: Vec<u32> = seeds.iter().map(|&node| clusters[node as usize]).collect();
    order.sort_unstable();
    order.dedup();
    random::shuffle(&mut order, seed, Purpose::Shuffle, epoch);
    let mut batch_of = vec![0; order.iter().max().map_or(0, |&last| last as usize + 1)];
    let mut batches = vec![Vec::new(); order.len().div_ceil(per_batch.max(1))];
    for (batch, clusters) in order.chunks(per_batch.max(1)).enumerate() {
        clusters.iter().for_each(|&cluster| batch_of[cluster as usize] = batch);
    }
    seeds.iter().for_each(|&node| batches[batch_of[clusters[node as usize] as usize]].push(node));
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_graphs::{planted_graph, random_graph};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn clusters_have_every_node_once_and_are_balanced(
            seed in any::<u64>(), nodes in 1usize..300, edges in 0usize..2000, parts in 1usize..40, passes in 0usize..5,
        ) {
            let parts = parts.min(nodes);
            let graph = random_graph(nodes, edges, seed);
            let found = partition(&graph, parts, passes, seed).unwrap();
            prop_assert_eq!(&found, &partition(&graph, parts, passes, seed).unwrap(), "not the same twice");
            let clusters = Clusters::new(found.clone());
            prop_assert!(clusters.count() <= parts);
            let sizes = (0..clusters.count() as u32).map(|cluster| clusters.members(cluster).len());
            let limit = (1.1 * nodes as f64 / parts as f64).max(nodes.div_ceil(parts) as f64);
            prop_assert!(sizes.clone().all(|size| size as f64 <= limit), "{:?}, at most {limit}", sizes.collect::<Vec<_>>());
            let mut members: Vec<u32> = (0..clusters.count() as u32).flat_map(|cluster| clusters.members(cluster).to_vec()).collect();
            members.sort_unstable();
            prop_assert_eq!(members, (0..nodes as u32).collect::<Vec<_>>());
            prop_assert!((0..nodes as u32).all(|node| clusters.members(found[node as usize]).contains(&node)));
        }

        #[test]
        fn batches_have_every_seed_once_and_whole_clusters(
            clusters in prop::collection::vec(0u32..20, 1..200), per_batch in 1usize..8, seed in any::<u64>(), epoch in 0u64..9,
        ) {
            let seeds: Vec<u64> = (0..clusters.len() as u64).filter(|node| node % 3 != 1).collect();
            let batches = cluster_batches(&clusters, per_batch, seed, epoch, &seeds);
            let of = |batch: &[u64]| {
                let mut found: Vec<u32> = batch.iter().map(|&node| clusters[node as usize]).collect();
                found.sort_unstable();
                found.dedup();
                found
            };
            prop_assert!(batches.iter().rev().skip(1).all(|batch| of(batch).len() == per_batch));
            let mut seen: Vec<u32> = batches.iter().flat_map(|batch| of(batch)).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, of(&seeds), "no cluster is in two batches");
            let mut all = batches.concat();
            all.sort_unstable();
            prop_assert_eq!(all, seeds);
        }
    }

    #[test]
    fn a_partition_finds_planted_groups() {
        let graph = planted_graph(4000, 20, 12, 4, 7);
        let cut = |passes| edge_cut(&graph, &partition(&graph, 20, passes, 1).unwrap());
        let random: Vec<u32> = (0..4000).map(|node| (random::mix(node) % 20) as u32).collect();
        // A quarter of the edges lead anywhere, and 19 of 20 of them to another group.
        let (best, random) = (0.25 * 0.95, edge_cut(&graph, &random));
        assert!((0.94..0.96).contains(&random), "{random}");
        assert!(
            cut(10) < 1.5 * best && cut(10) < cut(1),
            "{} after one pass, {} after ten, at best {best}",
            cut(1),
            cut(10)
        );
    }

    #[test]
    fn clusters_are_shuffled_by_epoch() {
        let clusters: Vec<u32> = (0..400).map(|node| node / 10).collect();
        let seeds: Vec<u64> = (0..400).collect();
        let batches = |seed, epoch| cluster_batches(&clusters, 4, seed, epoch, &seeds);
        assert_eq!(batches(1, 2), batches(1, 2));
        assert_ne!(batches(1, 2), batches(1, 3));
        assert_ne!(batches(1, 2), batches(2, 2));
    }

    #[test]
    fn an_impossible_number_of_clusters_is_refused() {
        let graph = random_graph(5, 10, 1);
        for parts in [0, 6] {
            let error = partition(&graph, parts, 1, 1).unwrap_err().to_string();
            assert_eq!(error, format!("{parts} clusters of a graph with 5 nodes: expected 1 to 5"));
        }
    }

    #[test]
    fn the_smallest_cluster_is_at_hand() {
        for parts in [1, 2, 3, 5, 8] {
            let mut sizes = Sizes::new(parts);
            let mut expected = vec![0i64; parts];
            for step in 0..200 {
                let cluster = random::mix(step) as usize % parts;
                let change = if expected[cluster] > 0 && step % 3 == 0 { -1 } else { 1 };
                sizes.add(cluster as u32, change);
                expected[cluster] += i64::from(change);
                let least = expected.iter().min().unwrap();
                assert_eq!(i64::from(sizes.of(sizes.smallest())), *least);
            }
        }
    }
}
