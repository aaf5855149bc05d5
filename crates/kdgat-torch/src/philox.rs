//! Philox 4×32-10 (Salmon et al. 2011): random numbers as a pure function of key and counter, so that any thread can
//! draw any part of a mask, at any time and repeatedly.

/// Number of rounds.
pub(super) const ROUNDS: usize = 10;
pub(super) const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];

/// The key of the next round.
#[inline(always)]
pub(super) fn next_key(key: [u32; 2]) -> [u32; 2] {
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])]
}

/// The four random words of `counter` under `key`.
#[inline(always)]
pub fn philox(key: u64, counter: u64) -> [u32; 4] {
    let mut state = [counter as u32, (counter >> 32) as u32, 0, 0];
    let mut key = [key as u32, (key >> 32) as u32];
    for _ in 0..ROUNDS {
        let products =
            [u64::from(MULTIPLIERS[0]) * u64::from(state[0]), u64::from(MULTIPLIERS[1]) * u64::from(state[2])];
        state = [
            (products[1] >> 32) as u32 ^ state[1] ^ key[0],
            products[1] as u32,
            (products[0] >> 32) as u32 ^ state[3] ^ key[1],
            products[0] as u32,
        ];
        key = next_key(key);
    }
    state
}

/// Number of counters computed side by side.
pub const LANES: usize = 16;

/// The four words of each of [`LANES`] counters; `words[word][lane]`.
pub type Words = [[u32; LANES]; 4];

/// The words of [`philox`] for [`LANES`] counters from `first` on, for machines without wider vectors.
#[inline(always)]
pub(super) fn portable_words(key: u64, first: u64) -> Words {
    let mut words = [[0; LANES]; 4];
    for lane in 0..LANES {
        let of_lane = philox(key, first + lane as u64);
        for (words, word) in words.iter_mut().zip(of_lane) {
            words[lane] = word;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Instructions, Kernel, Level, dispatch_at};

    #[test]
    fn lanes_are_the_words_of_their_counters() {
        for (key, first) in [(0, 0), (0x1234_5678_9ABC_DEF0, 77), (u64::MAX, (1 << 32) - 5)] {
            for level in Level::available() {
                let words = dispatch_at(level, Lanes { key, first });
                for lane in 0..LANES {
                    let found = words.map(|word| word[lane]);
                    let expected = philox(key, first + lane as u64);
                    assert_eq!(found, expected, "{level:?}: key {key}, counter {first} + {lane}");
                }
            }
        }
    }

    struct Lanes {
        key: u64,
        first: u64,
    }

    impl Kernel<Words> for Lanes {
        #[inline(always)]
        fn run<I: Instructions>(self) -> Words {
            I::philox(self.key, self.first)
        }
    }

    /// First known-answer vector of the authors' Random123 distribution (`kat_vectors`, philox4x32 10).
    #[test]
    fn known_answer() {
        assert_eq!(philox(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    }
}
