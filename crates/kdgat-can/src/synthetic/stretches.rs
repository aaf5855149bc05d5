//! Choice of the frames that attacks are put into: contiguous stretches of the blocks of each source log.

use std::ops::Range;

use super::{BlockSet, SourceBlock};
use crate::simulator::random::Stream;

/// Shortest stretch of a block that is not used as a whole, in frames.
const LEAST_STRETCH: u64 = 1_000;
/// Longest stretch that is attacked at once, in frames: it is held in memory, and forged payloads come from it.
const LONGEST_PIECE: u64 = 1 << 18;

/// Consecutive frames of one block of a source log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stretch {
    pub set: BlockSet,
    pub frames: Range<u64>,
}

impl Stretch {
    /// Equal pieces of at most [`LONGEST_PIECE`] frames.
    pub fn pieces(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let Range { start, end } = self.frames;
        let pieces = (end - start).div_ceil(LONGEST_PIECE);
        let cut = move |piece: u64| start + (u128::from(end - start) * u128::from(piece) / u128::from(pieces)) as u64;
        (0..pieces).map(move |piece| cut(piece)..cut(piece + 1))
    }
}

/// The stretches for each kind of attack and each log, with at most `most_frames` frames in total, the same share of each set.
///
/// `blocks` are the blocks of all logs, and `randoms` place the stretches in them, one for each kind. Where the share of a block would
/// be shorter than [`LEAST_STRETCH`], it gives a stretch of that length for some kinds and none for others.
pub(super) fn choose(blocks: &[Vec<SourceBlock>], most_frames: u64, randoms: &[Stream]) -> Vec<Vec<Vec<Stretch>>> {
    let length = |block: &SourceBlock| block.frames.end - block.frames.start;
    let all = blocks.iter().flatten().map(|block| u128::from(length(block))).sum::<u128>() * randoms.len() as u128;
    let wanted = u128::from(most_frames).min(all);
    // Frames of each set that may still be taken from the blocks so far, times `all`.
    let mut credit = BlockSet::ALL.map(|_| 0u128);
    let mut chosen = vec![vec![Vec::new(); blocks.len()]; randoms.len()];
    for (log, blocks) in blocks.iter().enumerate() {
        for (number, block) in blocks.iter().enumerate() {
            for (random, chosen) in randoms.iter().zip(&mut chosen) {
                let credit = &mut credit[block.set as usize];
                *credit += u128::from(length(block)) * wanted;
                let available = length(block).min((*credit / all.max(1)) as u64);
                if available == 0 || available < LEAST_STRETCH.min(length(block)) {
                    continue;
                }
                *credit -= u128::from(available) * all;
                let free = (length(block) - available + 1) as usize;
                let start = block.frames.start + random.child(log as u64).below(number as u64, free) as u64;
                chosen[log].push(Stretch { set: block.set, frames: start..start + available });
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks_of(lengths: &[u64]) -> Vec<SourceBlock> {
        let mut start = 0;
        let block = |(number, &length): (usize, &u64)| {
            let frames = start..start + length;
            start += length + 101;
            SourceBlock { set: BlockSet::ALL[number % 3], frames }
        };
        lengths.iter().enumerate().map(block).collect()
    }

    #[test]
    fn without_a_limit_everything_is_used() {
        let blocks = [blocks_of(&[5000, 700, 3]), blocks_of(&[20_000, 1])];
        let chosen = choose(&blocks, u64::MAX, &[Stream::new(1), Stream::new(2)]);
        for (blocks, stretches) in blocks.iter().zip(&chosen[0]).chain(blocks.iter().zip(&chosen[1])) {
            let frames = |blocks: &[SourceBlock]| blocks.iter().map(|block| block.frames.clone()).collect::<Vec<_>>();
            assert_eq!(stretches.iter().map(|stretch| stretch.frames.clone()).collect::<Vec<_>>(), frames(blocks));
        }
    }

    #[test]
    fn long_stretches_are_attacked_in_pieces() {
        let stretch = Stretch { set: BlockSet::Training, frames: 7..7 + 2 * LONGEST_PIECE + 1 };
        let pieces: Vec<Range<u64>> = stretch.pieces().collect();
        assert_eq!((pieces.len(), pieces[0].start, pieces[2].end), (3, 7, stretch.frames.end));
        assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(pieces.iter().all(|piece| piece.end - piece.start <= LONGEST_PIECE));
    }

    proptest! {
        #[test]
        fn stretches_lie_in_their_blocks_and_keep_the_limit(
            logs in prop::collection::vec(prop::collection::vec(0u64..30_000, 1..9), 1..12),
            most in 1_000u64..60_000,
            kinds in 1u64..9,
        ) {
            let blocks: Vec<Vec<SourceBlock>> = logs.iter().map(|lengths| blocks_of(lengths)).collect();
            let randoms: Vec<Stream> = (0..kinds).map(Stream::new).collect();
            let chosen = choose(&blocks, most, &randoms);
            let mut taken = 0;
            for (blocks, stretches) in chosen.iter().flat_map(|chosen| blocks.iter().zip(chosen)) {
                for stretch in stretches {
                    let is_home = |block: &&SourceBlock| {
                        block.set == stretch.set
                            && block.frames.start <= stretch.frames.start
                            && stretch.frames.end <= block.frames.end
                    };
                    prop_assert_eq!(blocks.iter().filter(is_home).count(), 1, "{:?}", stretch);
                    taken += stretch.frames.end - stretch.frames.start;
                }
            }
            let once: u64 = blocks.iter().flatten().map(|block| block.frames.end - block.frames.start).sum();
            let all = kinds * once;
            prop_assert!(taken <= most.min(all));
            // At most one unused stretch is left over for each set.
            prop_assert!(taken + 3 * (LEAST_STRETCH + 1) >= most.min(all), "{} of {}", taken, most.min(all));
        }
    }
}
