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
