//! Order of an epoch's graphs: a full shuffle, or a block shuffle that reads a mapped store in large contiguous pieces.
//!
//! A store that fits into memory is read equally fast in any order. A larger one is read from disk page by page for each random
//! graph; then it is faster to shuffle blocks of adjacent graphs, and then the graphs within a buffer of
//! several blocks: the disk reads whole blocks, and a batch still has graphs from many blocks.

use kdgat_base::random::{self, Purpose};

/// Method of shuffling an epoch's graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shuffle {
    /// Size of a block of adjacent graphs; 0 for a full shuffle.
    pub block_graphs: usize,
    /// Smallest number of graphs that are shuffled together, from several blocks.
    pub buffer_graphs: usize,
}

impl Shuffle {
    /// Full shuffle of all graphs.
    pub const FULL: Self = Self { block_graphs: 0, buffer_graphs: 0 };

    /// Shuffles the graphs for an epoch and cuts them into batches of `batch_graphs` (the last one may be smaller).
    ///
    /// A pure function: the same arguments give the same batches on every machine.
    pub fn batches(self, graphs: &[u64], batch_graphs: usize, seed: u64, epoch: u64) -> Vec<Vec<u64>> {
        let order = match self.block_graphs {
            0 => {
                let mut order = graphs.to_vec();
                random::shuffle(&mut order, seed, Purpose::Shuffle, epoch);
                order
            }
            block => self.in_blocks(graphs, block, seed, epoch),
        };
        order.chunks(batch_graphs.max(1)).map(<[u64]>::to_vec).collect()
    }

    fn in_blocks(self, graphs: &[u64], block: usize, seed: u64, epoch: u64) -> Vec<u64> {
        let mut sorted = graphs.to_vec();
        sorted.sort_unstable();
        let mut blocks: Vec<&[u64]> = sorted.chunks(block).collect();
        random::shuffle(&mut blocks, seed, Purpose::Shuffle, epoch);
        let mut order = blocks.concat();
        for (number, buffer) in order.chunks_mut(self.buffer_graphs.max(block)).enumerate() {
            // A different seed for each buffer, so that buffers of the same size get different orders.
            let seed = random::bits(seed, Purpose::Shuffle, epoch, number as u64);
            random::shuffle(buffer, seed, Purpose::Shuffle, epoch);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn every_graph_comes_once_and_blocks_stay_within_a_buffer(
            count in 0usize..3000,
            block_graphs in 0usize..200,
            buffer_graphs in 0usize..1000,
            batch in 1usize..300,
            seed in any::<u64>(),
            epoch in 0u64..5,
        ) {
            let graphs: Vec<u64> = (0..count as u64).map(|graph| 3 * graph + 7).collect();
            let shuffle = Shuffle { block_graphs, buffer_graphs };
            let batches = shuffle.batches(&graphs, batch, seed, epoch);
            prop_assert_eq!(&batches, &shuffle.batches(&graphs, batch, seed, epoch), "not the same twice");
            prop_assert!(batches.iter().rev().skip(1).all(|graphs| graphs.len() == batch));
            let mut order = batches.concat();
            if let Some(spread) = block_graphs.checked_sub(1) {
                // A buffer holds whole blocks except at its ends.
                for buffer in order.chunks(buffer_graphs.max(block_graphs)) {
                    let blocks: HashSet<u64> = buffer.iter().map(|graph| (graph - 7) / 3 / block_graphs as u64).collect();
                    prop_assert!(blocks.len() <= buffer.len().div_ceil(spread + 1) + 2, "{} blocks", blocks.len());
                }
            }
            order.sort_unstable();
            prop_assert_eq!(order, graphs);
        }
    }

    /// `kdgat.Store` of the Python package makes the same batches: `python/tests/test_data.py` has the same orders.
    #[test]
    fn orders_are_those_of_the_python_package() {
        let graphs: Vec<u64> = (0..20).map(|graph| 3 * graph + 7).collect();
        let order = |block_graphs, buffer_graphs, seed, epoch| {
            Shuffle { block_graphs, buffer_graphs }.batches(&graphs, 20, seed, epoch).concat()
        };
        assert_eq!(order(0, 0, 0, 0), [10, 46, 52, 58, 34, 61, 13, 31, 22, 40, 55, 28, 43, 7, 37, 64, 19, 25, 16, 49]);
        assert_eq!(order(0, 0, 42, 3), [13, 31, 10, 22, 46, 19, 7, 55, 43, 37, 40, 28, 64, 52, 16, 49, 25, 58, 61, 34]);
        assert_eq!(
            order(0, 0, u64::MAX, 1 << 40),
            [61, 43, 7, 49, 19, 37, 10, 31, 34, 22, 13, 28, 40, 46, 25, 52, 55, 58, 16, 64]
        );
        assert_eq!(order(4, 8, 42, 3), [37, 7, 34, 16, 13, 31, 10, 40, 19, 64, 22, 61, 58, 25, 28, 55, 46, 49, 43, 52]);
        assert_eq!(order(3, 1, 7, 0), [64, 61, 25, 31, 28, 43, 49, 46, 16, 22, 19, 34, 40, 37, 7, 52, 10, 13, 55, 58]);
        let many: Vec<u64> = (0..100_000).collect();
        for (block_graphs, expected) in [(0, 250_154_215_069_666), (64, 249_028_865_733_789)] {
            let order = Shuffle { block_graphs, buffer_graphs: 16_384 }.batches(&many, 512, 5, 9).concat();
            // Positions times their graphs, summed: every place counts.
            let sum: u64 = (1u64..).zip(&order).map(|(place, graph)| place * graph).sum();
            assert_eq!(sum, expected);
        }
    }

    /// A batch of a block shuffle is nearly as mixed as one of a full shuffle: a stretch of attacks spreads over batches.
    #[test]
    fn batches_are_well_mixed() {
        let graphs: Vec<u64> = (0..100_000).collect();
        let is_attack = |graph: u64| (20_000..30_000).contains(&graph);
        let deviation = |shuffle: Shuffle| {
            let batches = shuffle.batches(&graphs, 512, 1, 0);
            let share = |batch: &Vec<u64>| batch.iter().filter(|&&graph| is_attack(graph)).count() as f64 / 512.0;
            let squares: f64 = batches.iter().map(|batch| (share(batch) - 0.1).powi(2)).sum();
            (squares / batches.len() as f64).sqrt()
        };
        let full = deviation(Shuffle::FULL);
        let blocks = deviation(Shuffle { block_graphs: 64, buffer_graphs: 16_384 });
        let unmixed = deviation(Shuffle { block_graphs: 64, buffer_graphs: 64 });
        assert!(full < 0.015 && blocks < 2.5 * full && unmixed > 5.0 * full, "{full} {blocks} {unmixed}");
    }
}
