//! Distribution of a loop's indices among threads.
//!
//! Every thread starts at the front of its own share, so that data it wrote in one loop is in its core's cache in the
//! next. A thread that is done takes pieces from the back of the others' shares: the rest do not wait for a core that
//! is slower because of another program or other guests of the machine.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pieces per share: the slowest thread delays the loop by at most one piece.
const PIECES: usize = 8;

/// The indices of a loop, divided into one share per thread.
pub(super) struct Shares {
    shares: Vec<Share>,
    piece: usize,
}

/// The rest of a thread's share. On its own cache line, since its thread reads it for every piece.
#[repr(align(128))]
struct Share {
    start: usize,
    /// Front in the low half, back in the high half, both relative to `start`.
    rest: AtomicU64,
}

const BACK: u32 = 32;

fn ends(rest: u64) -> (u64, u64) {
    (rest & u64::from(u32::MAX), rest >> BACK)
}

impl Shares {
    /// Divides `0..count` among `threads` threads.
    ///
    /// # Panics
    /// If a share has 2³² indices or more.
    pub(super) fn new(count: usize, threads: usize) -> Self {
        let bound = |thread: usize| count / threads * thread + (count % threads).min(thread);
        let share = |thread: usize| {
            let length = u32::try_from(bound(thread + 1) - bound(thread));
            let length = length.unwrap_or_else(|_| panic!("a loop over {count} indices is too long"));
            Share { start: bound(thread), rest: AtomicU64::new(u64::from(length) << BACK) }
        };
        let piece = count.div_ceil(threads).div_ceil(PIECES).max(1);
        Self { shares: (0..threads).map(share).collect(), piece }
    }

    /// The pieces for `thread`, one after the other: first its own share, then the rest of the others'.
    pub(super) fn pieces_for(&self, thread: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let own = std::iter::from_fn(move || self.shares[thread].take(self.piece, ends_first));
        let others = (1..self.shares.len()).map(move |distance| &self.shares[(thread + distance) % self.shares.len()]);
        own.chain(others.flat_map(move |share| std::iter::from_fn(move || share.take(self.piece, ends_last))))
    }
}

/// A function that cuts off a piece: returns the new ends and the piece.
type Cut = fn((u64, u64), u64) -> ((u64, u64), Range<u64>);

fn ends_first((front, back): (u64, u64), piece: u64) -> ((u64, u64), Range<u64>) {
    let end = (front + piece).min(back);
    ((end, back), front..end)
}

fn ends_last((front, back): (u64, u64), piece: u64) -> ((u64, u64), Range<u64>) {
    let start = back.saturating_sub(piece).max(front);
    ((front, start), start..back)
}

impl Share {
    fn take(&self, piece: usize, cut: Cut) -> Option<Range<usize>> {
        // Relaxed: only the two numbers are exchanged here. The end of the loop synchronises the data it wrote.
        let mut rest = self.rest.load(Ordering::Relaxed);
        loop {
            let (front, back) = ends(rest);
            if front == back {
                return None;
            }
            let ((front, back), taken) = cut((front, back), piece as u64);
            match self.rest.compare_exchange_weak(rest, front | back << BACK, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(self.start + taken.start as usize..self.start + taken.end as usize),
                Err(changed) => rest = changed,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_index_is_taken_once_whoever_comes_first(
            count in 0usize..500,
            threads in 1usize..9,
            order in proptest::collection::vec(0usize..9, 0..200),
        ) {
            let shares = Shares::new(count, threads);
            let mut taken = vec![0; count];
            let mut workers: Vec<_> = (0..threads).map(|thread| shares.pieces_for(thread)).collect();
            let mut work = |worker: usize| {
                workers[worker].next().into_iter().flatten().for_each(|index| taken[index] += 1);
            };
            order.iter().for_each(|worker| work(worker % threads));
            (0..threads).for_each(|worker| (0..=2 * PIECES * threads).for_each(|_| work(worker)));
            prop_assert!(taken.iter().all(|&times| times == 1), "{taken:?}");
        }
    }

    #[test]
    fn threads_that_race_share_all_indices_between_them() {
        for _ in 0..200 {
            let shares = Shares::new(1000, 4);
            let of = |thread: usize| shares.pieces_for(thread).flatten().collect::<Vec<_>>();
            let mut all = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || of(thread))).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..1000), "{all:?}");
        }
    }

    #[test]
    fn a_thread_alone_does_the_work_of_all() {
        let shares = Shares::new(100, 3);
        assert_eq!(shares.pieces_for(1).map(|piece| piece.len()).sum::<usize>(), 100);
        assert_eq!(shares.pieces_for(0).next(), None);
    }
}
