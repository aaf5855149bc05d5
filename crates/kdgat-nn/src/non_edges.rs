//! Pairs of nodes without an edge, drawn for each edge of a batch.

use kdgat_base::random::{self, Purpose};
use kdgat_graph::Batch;
use tch::{Kind, TchError, Tensor};

/// The numbers that decide what is drawn from a batch: pairs of nodes, or nodes to mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// The run's seed.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
}

impl Draw {
    /// The draw of every validation and evaluation.
    pub const FIXED: Self = Self { seed: 0, epoch: u64::MAX };
}

/// The entries of a batch's adjacency by graph, and a pair of nodes without an edge for each entry.
#[derive(Debug)]
pub(super) struct NonEdges {
    /// `[num_edges]`, i64: source and target of each drawn pair. Arbitrary for entries of graphs that lack no edge.
    pub pairs: [Tensor; 2],
    /// `[num_edges]`, f32: 1 for an edge of the data, 0 for the self-loops that batches add.
    pub is_edge: Tensor,
    /// `[num_edges]`, f32: 1 if the entry's graph has pairs without an edge.
    pub is_drawn: Tensor,
    /// `[num_edges]`, i64: the graph of each entry.
    pub graphs: Tensor,
    /// `[num_graphs + 1]`, i64: entries of graph `g` are `pointers[g]..pointers[g + 1]`.
    pub pointers: Tensor,
}

/// Multiplier of the Weyl sequence of a graph: 2^32 divided by the golden ratio, odd.
const STEP: i64 = 0x9E37_79B9;
const MASK: i64 = 0xFFFF_FFFF;

impl NonEdges {
    /// Draws a pair of nodes of the same graph for each entry, uniformly among those without an edge (self-loops count as edges). The pairs are
    /// a function of the draw, the graph's position in its store and the entry's position in the graph; other graphs do not matter. Neither
    /// device waits for the other.
    pub fn draw(batch: &Batch, draw: Draw) -> Result<Self, TchError> {
        let adjacency = &batch.adjacency;
        let [sources, targets] = [&adjacency.sources, &adjacency.targets].map(|ends| ends.f_to_kind(Kind::Int64));
        let (sources, targets) = (sources?, targets?);
        let options = (Kind::Int64, targets.device());
        let graphs = batch.graph_of_node.f_index_select(0, &targets)?;
        let at = |of_graphs: &Tensor| of_graphs.f_index_select(0, &graphs);
        let pointers = adjacency.row_pointers.f_to_kind(Kind::Int64)?.f_index_select(0, &batch.node_pointers)?;
        let differences = |pointers: &Tensor| pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>);
        let before = |counts: &Tensor| counts.f_cumsum(0, Kind::Int64)?.f_sub(counts);
        let nodes = differences(&batch.node_pointers)?;
        let pairs = nodes.f_square()?;
        let free = pairs.f_sub(&differences(&pointers)?)?;

        // All pairs of nodes, graph by graph, ordered like the entries: an entry's key minus its position is the number of free pairs before it.
        let (count, first, size) = (targets.size()[0], at(&batch.node_pointers)?, at(&nodes)?);
        let entries = Tensor::f_arange(count, options)?;
        let in_graph = targets.f_sub(&first)?.f_mul(&size)?.f_add(&sources.f_sub(&first)?)?;
        let pairs_before = at(&before(&pairs)?)?;
        let free_before_entry = in_graph.f_add(&pairs_before)?.f_sub(&entries)?;
        let number = entries.f_sub(&at(&pointers)?)?;
        let chosen = share(&batch.graph_index, &number, &at, draw)?.f_mul(&at(&free)?)?.f_floor()?;
        let chosen = chosen.f_to_kind(Kind::Int64)?.f_add(&at(&before(&free)?)?)?;
        let entries_before = chosen.f_searchsorted(&free_before_entry, false, true, "right", None::<Tensor>)?;
        let pair = chosen.f_add(&entries_before)?.f_sub(&pairs_before)?;
        // Of a graph without free pairs, the pair would be one of the next graph's.
        let last = batch.num_nodes() - 1;
        let node = |in_graph: Tensor| in_graph.f_add(&first)?.f_clamp(0, last);
        let target = node(pair.f_div_tensor_mode(&size, "floor")?)?;
        let source = node(pair.f_remainder_tensor(&size)?)?;
        Ok(Self {
            pairs: [source, target],
            is_edge: sources.f_ne_tensor(&targets)?.f_to_kind(Kind::Float)?,
            is_drawn: at(&free.f_gt(0)?)?.f_to_kind(Kind::Float)?,
            graphs,
            pointers,
        })
    }
}

/// A number in [0, 1) for each entry, f64, of 32 bits: a hash of its graph's random bits and its `number` in the graph.
fn share(
    graphs: &[u64],
    number: &Tensor,
    at: &impl Fn(&Tensor) -> Result<Tensor, TchError>,
    Draw { seed, epoch }: Draw,
) -> Result<Tensor, TchError> {
    let bits = graphs.iter().map(|&graph| random::bits(seed, Purpose::NonEdges, epoch, graph));
    let (low, high): (Vec<i64>, Vec<i64>) = bits.map(|bits| (bits as i64 & MASK, (bits >> 32) as i64)).unzip();
    let of_entries = |halves: &[i64]| at(&Tensor::f_from_slice(halves)?.f_to_device(number.device())?);
    let weyl = number.f_mul_scalar(STEP)?.f_add(&of_entries(&low)?)?;
    let mixed = mixed(&weyl.f_bitwise_and(MASK)?)?.f_bitwise_xor_tensor(&of_entries(&high)?)?;
    self::mixed(&mixed)?.f_to_kind(Kind::Double)?.f_div_scalar((1_i64 << 32) as f64)
}

/// Mixes 32 bits (lowbias32, Wellons 2018). The multipliers are those of the hash, less 2^32 where they exceed 2^31: products of 64 bits do not
/// overflow, and their low 32 bits are the same.
fn mixed(bits: &Tensor) -> Result<Tensor, TchError> {
    let folded = |bits: &Tensor, by: i64| bits.f_bitwise_xor_tensor(&bits.f_bitwise_right_shift_tensor_scalar(by)?);
    let times = |bits: Tensor, multiplier: i64| bits.f_mul_scalar(multiplier)?.f_bitwise_and(MASK);
    let bits = times(folded(bits, 16)?, 0x7FEB_352D)?;
    let bits = times(folded(&bits, 15)?, 0x846C_A68B - (1 << 32))?;
    folded(&bits, 16)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::test_graphs::graphs;
    use super::*;

    /// Directed edges within graphs of 5, 3 and 4 nodes; the second is complete.
    const EDGES: [(i64, i64); 12] =
        [(0, 1), (2, 1), (1, 4), (3, 4), (5, 6), (5, 7), (6, 5), (6, 7), (7, 5), (7, 6), (8, 11), (11, 8)];

    fn batch() -> Batch {
        graphs(&EDGES, &[0, 5, 8, 12])
    }

    /// Drawn pairs with the graph of their entry, of entries of graphs that lack an edge.
    fn drawn(batch: &Batch, draw: Draw) -> Vec<(i64, (i64, i64))> {
        let NonEdges { pairs, is_drawn, graphs, .. } = NonEdges::draw(batch, draw).unwrap();
        let [sources, targets, graphs] = [&pairs[0], &pairs[1], &graphs].map(|one| Vec::<i64>::try_from(one).unwrap());
        let is_drawn = Vec::<f32>::try_from(is_drawn).unwrap();
        assert!(sources.iter().chain(&targets).all(|node| (0..batch.num_nodes()).contains(node)));
        let pairs = sources.into_iter().zip(targets);
        graphs.into_iter().zip(pairs).zip(is_drawn).filter(|(_, drawn)| *drawn > 0.0).map(|(pair, _)| pair).collect()
    }

    #[test]
    fn pairs_without_an_edge_are_drawn_uniformly_within_their_graph() {
        let batch = batch();
        let mut counts = BTreeMap::new();
        let epochs = 3000;
        for epoch in 0..epochs {
            for (graph, (source, target)) in drawn(&batch, Draw { seed: 1, epoch }) {
                assert_ne!(graph, 1, "a complete graph lacks no edge");
                let nodes = [0..5, 5..8, 8..12][graph as usize].clone();
                assert!(nodes.contains(&source) && nodes.contains(&target), "{source} {target}");
                assert!(source != target && !EDGES.contains(&(source, target)), "{source} {target}");
                *counts.entry((source, target)).or_insert(0) += 1;
            }
        }
        // Entries, self-loops among them, for 20 − 4 and 12 − 2 pairs: each count has a deviation of at most 43.
        for (&(source, target), &count) in &counts {
            let expected = f64::from(epochs as u32) * if target < 5 { 9.0 / 16.0 } else { 6.0 / 10.0 };
            assert!((f64::from(count) - expected).abs() < 220.0, "{source} {target}: {count} {expected}");
        }
        assert_eq!(counts.len(), 26);
    }

    #[test]
    fn pairs_depend_on_seed_epoch_and_graph_alone() {
        let (batch, draw) = (batch(), Draw { seed: 4, epoch: 7 });
        assert_eq!(drawn(&batch, draw), drawn(&batch, draw));
        assert_ne!(drawn(&batch, draw), drawn(&batch, Draw { epoch: 8, ..draw }));
        assert_ne!(drawn(&batch, draw), drawn(&batch, Draw { seed: 5, ..draw }));
        let alone: Vec<_> =
            drawn(&batch.select_graphs(&[2]).unwrap(), draw).into_iter().map(|(_, pair)| pair).collect();
        let together = drawn(&batch, draw).into_iter().filter(|(graph, _)| *graph == 2);
        assert_eq!(alone, together.map(|(_, (source, target))| (source - 8, target - 8)).collect::<Vec<_>>());
    }
}
