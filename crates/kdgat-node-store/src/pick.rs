//! Draws positions without replacement, in ascending order: each set of positions is equally likely.
//!
//! Small rows are drawn by Floyd's algorithm on a bitmap (Bentley & Floyd 1987), which also sorts. In long rows two positions
//! rarely coincide: all are drawn independently, and again if two are equal.

use kdgat_base::random;

/// Longest row that is drawn on a bitmap, whatever the number of picks.
const SHORT_ROW: usize = 512;
/// Largest number of picks that are sorted by counting smaller ones.
const FEW: usize = 16;

/// The random numbers of one row: a SplitMix64 generator (Steele et al. 2014).
struct Stream(u64);

impl Stream {
    #[inline(always)]
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(random::GOLDEN);
        random::to_below(random::finalize(self.0), bound as u64) as usize
    }
}

/// Draws positions of rows; reuses its buffers.
#[derive(Debug, Default)]
pub(crate) struct Picker {
    bitmap: Vec<u64>,
    offsets: Vec<u32>,
}

impl Picker {
    /// Writes `picks.len()` distinct positions of `begin..begin + length`, ascending. They depend on `key`, `length` and
    /// their number alone.
    ///
    /// `length` must be larger than the number of picks and below 2^32.
    #[inline]
    pub(crate) fn pick(&mut self, key: u64, begin: usize, length: usize, picks: &mut [usize]) {
        debug_assert!(picks.len() < length && length <= u32::MAX as usize);
        let stream = Stream(key);
        if length <= 64 {
            pick_in_word(stream, begin, length, picks);
        } else if length > SHORT_ROW && picks.len() <= FEW / 2 {
            pick_few::<{ FEW / 2 }>(stream, begin, length, picks);
        } else if length > SHORT_ROW && picks.len() <= FEW {
            pick_few::<FEW>(stream, begin, length, picks);
        } else {
            self.pick_many(stream, begin, length, picks);
        }
    }

    fn pick_many(&mut self, stream: Stream, begin: usize, length: usize, picks: &mut [usize]) {
        // Where a bitmap would be much longer than the list of picks, equal picks are rare enough to start again: with
        // `length` above the square of their number, all differ in more than half of the cases.
        let count = picks.len();
        if length <= SHORT_ROW.max(count * 64).max(count.saturating_mul(count)) {
            self.pick_on_bitmap(stream, begin, length, picks);
        } else {
            self.pick_and_sort(stream, begin, length, picks);
        }
    }

    fn pick_on_bitmap(&mut self, mut stream: Stream, begin: usize, length: usize, picks: &mut [usize]) {
        self.bitmap.clear();
        self.bitmap.resize(length.div_ceil(64), 0);
        for last in length - picks.len()..length {
            let drawn = stream.below(last + 1);
            let taken = 0usize.wrapping_sub((self.bitmap[drawn / 64] >> (drawn % 64) & 1) as usize);
            let chosen = drawn ^ (drawn ^ last) & taken;
            self.bitmap[chosen / 64] |= 1 << (chosen % 64);
        }
        let (mut word, mut bits) = (0, self.bitmap[0]);
        for pick in picks {
            while bits == 0 {
                word += 1;
                bits = self.bitmap[word];
            }
            *pick = begin + word * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
        }
    }

    fn pick_and_sort(&mut self, mut stream: Stream, begin: usize, length: usize, picks: &mut [usize]) {
        loop {
            self.offsets.clear();
            // Below `length`, which fits.
            self.offsets.extend(picks.iter().map(|_| stream.below(length) as u32));
            self.offsets.sort_unstable();
            if self.offsets.is_sorted_by(|one, next| one < next) {
                break;
            }
        }
        picks.iter_mut().zip(&self.offsets).for_each(|(pick, &offset)| *pick = begin + offset as usize);
    }
}

/// Floyd's algorithm for at most 64 positions.
#[inline(always)]
fn pick_in_word(mut stream: Stream, begin: usize, length: usize, picks: &mut [usize]) {
    let mut chosen = 0u64;
    for last in length - picks.len()..length {
        let drawn = stream.below(last + 1);
        // `drawn`, or `last` if that is taken, without an unpredictable branch.
        let taken = 0usize.wrapping_sub((chosen >> drawn & 1) as usize);
        chosen |= 1 << (drawn ^ (drawn ^ last) & taken);
    }
    for pick in picks {
        *pick = begin + chosen.trailing_zeros() as usize;
        chosen &= chosen - 1;
    }
}

/// At most `LANES` positions: a position's place is the number of smaller ones, which is counted without a branch.
#[inline(always)]
fn pick_few<const LANES: usize>(mut stream: Stream, begin: usize, length: usize, picks: &mut [usize]) {
    let count = picks.len().min(LANES);
    let (mut drawn, mut places) = ([u32::MAX; LANES], [0u32; LANES]);
    loop {
        for value in &mut drawn[..count] {
            *value = stream.below(length) as u32;
        }
        places.fill(0);
        for other in drawn {
            for (place, value) in places.iter_mut().zip(&drawn) {
                *place += u32::from(other < *value);
            }
        }
        // Places of distinct positions are 0, 1, 2…; equal positions share the lowest of their places.
        let sum: u32 = places[..count].iter().sum();
        if sum as usize == count * count.saturating_sub(1) / 2 {
            break;
        }
    }
    for (value, place) in drawn.iter().zip(places).take(count) {
        picks[place as usize] = begin + *value as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pick(key: u64, length: usize, count: usize) -> Vec<usize> {
        let mut picks = vec![usize::MAX; count];
        Picker::default().pick(key, 0, length, &mut picks);
        picks
    }

    proptest! {
        #[test]
        fn picks_are_distinct_ascending_and_within_the_row(
            key in any::<u64>(),
            length in prop_oneof![1usize..70, 60usize..3000, 500usize..5_000_000],
            count in prop_oneof![1usize..20, 1usize..3000],
            begin in 0usize..1_000_000,
        ) {
            let count = count.min(length - 1);
            let mut picks = vec![usize::MAX; count];
            let mut picker = Picker::default();
            picker.pick(key, begin, length, &mut picks);
            prop_assert!(picks.is_sorted_by(|one, next| one < next), "{picks:?}");
            prop_assert!(picks.iter().all(|pick| (begin..begin + length).contains(pick)));
            let mut again = vec![0; count];
            picker.pick(key, begin, length, &mut again);
            prop_assert_eq!(picks, again);
        }
    }

    /// Chi-square statistic of how often each position is picked, in units of its standard deviations from its mean.
    fn deviation(length: usize, count: usize, rows: u64) -> f64 {
        let mut hits = vec![0u32; length];
        for key in 0..rows {
            pick(random::mix(key), length, count).into_iter().for_each(|pick| hits[pick] += 1);
        }
        let share = count as f64 / length as f64;
        let (mean, variance) = (rows as f64 * share, rows as f64 * share * (1.0 - share));
        let statistic: f64 = hits.iter().map(|&hits| (f64::from(hits) - mean).powi(2) / variance).sum();
        // Exactly `count` picks a row make the sum of hits fixed: (length - 1) degrees of freedom.
        let freedom = (length - 1) as f64;
        (statistic * freedom / length as f64 - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn every_position_is_equally_likely() {
        // One row for each method, and its borders.
        let rows = [
            (2, 1),
            (7, 5),
            (64, 15),
            (65, 15),
            (512, 5),
            (513, 5),
            (513, 8),
            (600, 15),
            (600, 16),
            (700, 17),
            (3000, 40),
        ];
        for (length, count) in rows {
            let found = deviation(length, count, 20_000);
            assert!(found.abs() < 6.0, "{count} of {length}: {found:.1} standard deviations");
        }
    }

    #[test]
    fn every_pair_is_equally_likely() {
        let rows = 60_000u64;
        let mut hits = [[0u32; 6]; 6];
        for key in 0..rows {
            let pair = pick(random::mix(key), 6, 2);
            hits[pair[0]][pair[1]] += 1;
        }
        // 15 pairs: 4000 each, standard deviation 61.
        for (first, hits) in hits.iter().enumerate() {
            for (second, &hits) in hits.iter().enumerate().skip(first + 1) {
                assert!((3600..4400).contains(&hits), "({first}, {second}): {hits}");
            }
        }
    }
}
