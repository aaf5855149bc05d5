//! Neighbour sampling (GraphSAGE, Hamilton et al. 2017): for each seed node, some of its neighbours, some of theirs, and so on.
//!
//! A node's neighbours at a hop are a pure function of the seed, the epoch, the hop and the node. They depend neither on the
//! other nodes of the batch nor on the thread that draws them.
//!
//! Targets are taken in groups, and each group goes through short loops of one kind of memory access, so that the processor has
//! many of them under way at once: ends of rows, positions, neighbours, numbers, sources.

use std::ops::Deref;

use kdgat_base::random::{self, Purpose};

use super::NodeGraph;
use super::block::{Block, TooManyEdges};
use super::pick::Picker;
use super::relabel::Relabel;

/// Targets of a group.
const GROUP: usize = 256;

/// Number of neighbours that a node receives messages from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fanout {
    /// All of them.
    All,
    /// At most this many, drawn without replacement.
    AtMost(u32),
}

/// The layers of a sampled neighbourhood; reuses its memory.
#[derive(Debug, Default)]
pub struct SampledLayers {
    /// Number in the graph of each row that the first layer reads: the seeds, then other nodes in order of first appearance.
    nodes: Vec<u32>,
    /// Row of each seed.
    seed_rows: Vec<u32>,
    /// From the seeds outwards.
    hops: Vec<Block>,
}

impl SampledLayers {
    /// Number in the graph of each row that the first layer reads: the seeds, then other nodes in order of first appearance.
    /// Those of later layers are the first of these.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The blocks in the order of the layers: the first one is the widest, the last one computes the seeds.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &Block> {
        self.hops.iter().rev()
    }

    /// Row of each seed in the last layer's output. `None`: the seeds are its rows, in order. Otherwise a seed was given twice.
    pub fn seed_rows(&self) -> Option<&[u32]> {
        let distinct = self.hops.first().map_or(self.nodes.len(), Block::num_targets);
        (distinct != self.seed_rows.len()).then_some(&self.seed_rows)
    }
}

/// Samples neighbourhoods on one thread; reuses its memory. `G` refers to the graph: `&NodeGraph`, or `Arc<NodeGraph>`.
#[derive(Debug)]
pub struct Sampler<G> {
    graph: G,
    fanouts: Vec<Fanout>,
    seed: u64,
    relabel: Relabel,
    picker: Picker,
    group: Group,
}

/// Buffers of a group of targets.
#[derive(Debug, Default)]
struct Group {
    /// First edge and number of edges of each target.
    rows: Vec<(usize, usize)>,
    /// Number of chosen edges of each target.
    lengths: Vec<u32>,
    /// The chosen edges of all targets.
    edges: Vec<usize>,
    /// Their sources.
    neighbours: Vec<u32>,
    /// Rows of these sources.
    numbers: Vec<u32>,
}

impl<G: Deref<Target = NodeGraph>> Sampler<G> {
    /// A sampler with these fan-outs, from the seeds outwards: the first one is that of the last layer. `seed` is the seed of the
    /// run.
    pub fn new(graph: G, fanouts: &[Fanout], seed: u64) -> Self {
        let relabel = Relabel::new(graph.num_nodes());
        Self { graph, fanouts: fanouts.to_vec(), seed, relabel, picker: Picker::default(), group: Group::default() }
    }

    /// Draws with other fan-outs and another seed from now on.
    pub fn set(&mut self, fanouts: &[Fanout], seed: u64) {
        self.fanouts.clear();
        self.fanouts.extend_from_slice(fanouts);
        self.seed = seed;
    }

    /// Samples the neighbourhood of `seeds` in this epoch into `layers`.
    ///
    /// # Errors
    /// More than 2^31 edges in a layer.
    ///
    /// # Panics
    /// If the graph has no such node.
    pub fn sample(&mut self, seeds: &[u32], epoch: u64, layers: &mut SampledLayers) -> Result<(), TooManyEdges> {
        let SampledLayers { nodes, seed_rows, hops } = layers;
        nodes.clear();
        seed_rows.clear();
        self.relabel.start();
        self.relabel.number(seeds, nodes, seed_rows);
        hops.resize_with(self.fanouts.len(), Block::default);
        for (hop, block) in hops.iter_mut().enumerate() {
            let (fanout, key) = (self.fanouts[hop], random::bits(self.seed, Purpose::Neighbours, epoch, hop as u64));
            block.clear();
            let num_targets = nodes.len();
            for begin in (0..num_targets).step_by(GROUP) {
                let end = (begin + GROUP).min(num_targets);
                self.group.choose(&self.graph, &nodes[begin..end], fanout, key, &mut self.picker);
                self.group.numbers.clear();
                self.relabel.number(&self.group.neighbours, nodes, &mut self.group.numbers);
                let Group { lengths, neighbours, numbers, .. } = &self.group;
                block.push_rows(&nodes[begin..end], lengths, neighbours, numbers)?;
            }
            block.set_num_sources(nodes.len());
        }
        Ok(())
    }
}

impl Group {
    /// Chooses neighbours of each target.
    fn choose(&mut self, graph: &NodeGraph, targets: &[u32], fanout: Fanout, key: u64, picker: &mut Picker) {
        graph.row_pointers.prefetch(targets.iter().map(|&node| node as usize..node as usize + 2));
        let row_pointers: &[u64] = &graph.row_pointers;
        self.rows.clear();
        self.rows.extend(targets.iter().map(|&node| {
            let ends = &row_pointers[node as usize..][..2];
            (ends[0] as usize, (ends[1] - ends[0]) as usize)
        }));
        graph.sources.prefetch(self.rows.iter().map(|&(begin, length)| begin..begin + length));
        self.lengths.clear();
        self.neighbours.clear();
        let sources: &[u32] = &graph.sources;
        let Fanout::AtMost(limit) = fanout else {
            for &(begin, length) in &self.rows {
                // At most as many as nodes.
                self.lengths.push(length as u32);
                self.neighbours.extend_from_slice(&sources[begin..begin + length]);
            }
            return;
        };
        let limit = limit as usize;
        self.lengths.extend(self.rows.iter().map(|&(_, length)| length.min(limit) as u32));
        self.edges.clear();
        self.edges.resize(self.lengths.iter().map(|&length| length as usize).sum(), 0);
        let mut rest = &mut self.edges[..];
        for (&(begin, length), &node) in self.rows.iter().zip(targets) {
            let (edges, after) = rest.split_at_mut(length.min(limit));
            rest = after;
            if length > limit {
                picker.pick(random::mix(key ^ u64::from(node)), begin, length, edges);
            } else {
                edges.iter_mut().zip(begin..).for_each(|(edge, at)| *edge = at);
            }
        }
        self.neighbours.extend(self.edges.iter().map(|&edge| sources[edge]));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;
    use crate::block::tests::check;
    use crate::test_graphs::{graph_of, random_graph};
    use proptest::prelude::*;

    fn sample(graph: &NodeGraph, fanouts: &[Fanout], seeds: &[u32], epoch: u64) -> SampledLayers {
        let mut layers = SampledLayers::default();
        Sampler::new(graph, fanouts, 3).sample(seeds, epoch, &mut layers).unwrap();
        layers
    }

    /// Sources of each target of a layer by their numbers in the graph, without self-loops.
    fn rows(layers: &SampledLayers, layer: usize) -> HashMap<u32, Vec<u32>> {
        let (nodes, block) = (layers.nodes(), layers.layers().nth(layer).unwrap());
        let row = |target: usize| {
            let sources = block.sources(target).iter().map(|&source| nodes[source as usize]);
            (nodes[target], sources.filter(|&source| source != nodes[target]).collect())
        };
        (0..block.num_targets()).map(row).collect()
    }

    fn fanout() -> impl Strategy<Value = Fanout> {
        prop_oneof![Just(Fanout::All), (0u32..20).prop_map(Fanout::AtMost)]
    }

    fn seeds(num_nodes: u32) -> impl Strategy<Value = Vec<u32>> {
        prop::collection::btree_set(0..num_nodes, 0..30)
            .prop_map(|set| set.into_iter().collect::<Vec<_>>())
            .prop_shuffle()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn layers_are_parts_of_the_graph(
            graph_seed in any::<u64>(), seeds in seeds(300), fanouts in prop::collection::vec(fanout(), 0..4), epoch in 0u64..5,
        ) {
            let graph = random_graph(300, 6000, graph_seed);
            let layers = sample(&graph, &fanouts, &seeds, epoch);
            let nodes = layers.nodes();
            prop_assert_eq!(&nodes[..seeds.len()], &seeds[..]);
            prop_assert!(layers.seed_rows().is_none());
            prop_assert_eq!(nodes.iter().collect::<BTreeSet<_>>().len(), nodes.len(), "numbers are distinct");
            let mut num_targets = seeds.len();
            // From the seeds outwards.
            for (hop, fanout) in fanouts.iter().enumerate() {
                let layer = fanouts.len() - 1 - hop;
                let block = layers.layers().nth(layer).unwrap();
                prop_assert_eq!(block.num_targets(), num_targets);
                for (target, sources) in rows(&layers, layer) {
                    let all = graph.neighbours(target);
                    let expected = match fanout {
                        Fanout::All => all.len(),
                        Fanout::AtMost(limit) => all.len().min(*limit as usize),
                    };
                    prop_assert_eq!(sources.len(), expected);
                    prop_assert!(sources.is_sorted_by(|one, next| one < next));
                    prop_assert!(sources.iter().all(|source| all.binary_search(source).is_ok()));
                }
                // Sources beyond the targets are in some row, in order of first appearance.
                let mut next = num_targets;
                for target in 0..num_targets {
                    let mut found: Vec<usize> = block.sources(target).iter().map(|&source| source as usize).collect();
                    found.sort_unstable();
                    for source in found {
                        prop_assert!(source <= next);
                        next = next.max(source + 1);
                    }
                }
                prop_assert_eq!(next, block.num_sources());
                check(block);
                num_targets = block.num_sources();
            }
            prop_assert_eq!(num_targets, nodes.len());
        }

        /// Whatever batches the seeds are divided into, and whatever was sampled before, a node has the same neighbours at a hop.
        #[test]
        fn samples_do_not_depend_on_the_batch(graph_seed in any::<u64>(), seeds in seeds(300), cut in 0usize..30, epoch in 0u64..5) {
            let graph = random_graph(300, 6000, graph_seed);
            let fanouts = [Fanout::AtMost(4), Fanout::AtMost(7), Fanout::AtMost(2)];
            let whole = sample(&graph, &fanouts, &seeds, epoch);
            let mut sampler = Sampler::new(&graph, &fanouts, 3);
            let mut reused = SampledLayers::default();
            let (first, second) = seeds.split_at(cut.min(seeds.len()));
            for part in [second, first] {
                sampler.sample(part, epoch, &mut reused).unwrap();
                for layer in 0..fanouts.len() {
                    let expected = rows(&whole, layer);
                    for (target, sources) in rows(&reused, layer) {
                        prop_assert_eq!(&expected[&target], &sources);
                    }
                }
            }
        }
    }

    /// `kdgat.NodeStore` of the Python package draws the same samples: `python/tests/test_data.py` has the same ones. Rows of 1200, 100
    /// and 20 nodes are drawn by all methods of the picker.
    #[test]
    fn samples_are_those_of_the_python_package() {
        let to = |target: u32, sources: std::ops::Range<u32>| sources.map(move |source| (source, target));
        let long = to(0, 3..1203).chain((3..103).map(|source| (2 * source, 1)));
        let graph = graph_of(1300, long.chain(to(2, 3..23)).chain(to(5, 0..3)));
        let first = sample(&graph, &[Fanout::AtMost(4), Fanout::AtMost(2)], &[0, 1, 2, 5], 2);
        assert_eq!(
            first.nodes(),
            [0, 1, 2, 5, 308, 494, 974, 1032, 6, 88, 94, 100, 3, 11, 13, 22, 39, 695, 182, 204, 8, 18]
        );
        let second = sample(&graph, &[Fanout::AtMost(17)], &[0], 2);
        assert_eq!(
            second.nodes(),
            [0, 90, 174, 256, 308, 334, 494, 508, 796, 799, 825, 841, 932, 974, 1032, 1052, 1076, 1153]
        );
        let third = sample(&graph, &[Fanout::AtMost(12)], &[0], 2);
        assert_eq!(third.nodes(), [0, 174, 256, 308, 334, 494, 508, 825, 841, 932, 974, 1032, 1076]);
        let twice = sample(&graph, &[Fanout::All, Fanout::AtMost(1)], &[5, 7, 5], 2);
        assert_eq!(twice.nodes(), [5, 7, 0, 1, 2, 39, 184, 9]);
        assert_eq!(twice.seed_rows(), Some(&[0, 1, 0][..]));
        let last = twice.layers().nth(1).unwrap();
        assert_eq!([last.sources(0), last.sources(1)], [&[2, 3, 4, 0][..], &[1]]);
    }

    #[test]
    fn samples_depend_on_the_seed_the_epoch_and_the_hop() {
        let graph = random_graph(50, 3000, 1);
        let seeds: Vec<u32> = (0..50).collect();
        let two_hops = [Fanout::AtMost(5), Fanout::AtMost(5)];
        let first = sample(&graph, &two_hops, &seeds, 0);
        assert_ne!(rows(&first, 1), rows(&sample(&graph, &two_hops, &seeds, 1), 1));
        assert_ne!(rows(&first, 1), rows(&first, 0), "hops");
        let mut other = SampledLayers::default();
        Sampler::new(&graph, &two_hops, 4).sample(&seeds, 0, &mut other).unwrap();
        assert_ne!(rows(&first, 1), rows(&other, 1));
    }

    /// The neighbours of a hub over many epochs: each equally often.
    #[test]
    fn every_neighbour_is_equally_likely() {
        let graph = graph_of(101, (1..101).map(|source| (source, 0)));
        let mut sampler = Sampler::new(&graph, &[Fanout::AtMost(10)], 3);
        let (mut layers, mut hits) = (SampledLayers::default(), [0u32; 101]);
        for epoch in 0..10_000 {
            sampler.sample(&[0], epoch, &mut layers).unwrap();
            layers.nodes()[1..].iter().for_each(|&node| hits[node as usize] += 1);
        }
        // Chi-square with 99 degrees of freedom, mean 99 and standard deviation 14, scaled for draws without replacement.
        let statistic: f64 =
            hits[1..].iter().map(|&hits| (f64::from(hits) - 1000.0).powi(2) / 900.0).sum::<f64>() * 0.99;
        assert!((30.0..190.0).contains(&statistic), "{statistic}");
    }

    #[test]
    fn a_seed_given_twice_has_one_row() {
        let graph = random_graph(50, 300, 1);
        for fanouts in [&[Fanout::AtMost(2)][..], &[]] {
            let layers = sample(&graph, fanouts, &[7, 3, 7, 4], 0);
            assert_eq!(layers.seed_rows(), Some(&[0, 1, 0, 2][..]));
            assert_eq!(layers.nodes()[..3], [7, 3, 4]);
        }
    }
}
