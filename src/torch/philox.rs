//! Philox 4×32-10 (Salmon et al. 2011): random numbers as a pure function of key and counter, so that any part
//! of a mask can be drawn by any thread, at any time, again.

/// Four random words of `counter` under `key`.
#[inline(always)]
pub fn philox(key: u64, counter: u64) -> [u32; 4] {
    const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let mut state = [counter as u32, (counter >> 32) as u32, 0, 0];
    let mut key = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let products =
            [u64::from(MULTIPLIERS[0]) * u64::from(state[0]), u64::from(MULTIPLIERS[1]) * u64::from(state[2])];
        state = [
            (products[1] >> 32) as u32 ^ state[1] ^ key[0],
            products[1] as u32,
            (products[0] >> 32) as u32 ^ state[3] ^ key[1],
            products[0] as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    state
}

/// Counters that [`philox_lanes`] works on side by side.
pub const LANES: usize = 16;

/// The four words of each of [`LANES`] counters from `first` on, in the low halves of 64 bits: what vector
/// instructions multiply.
#[inline(always)]
pub fn philox_lanes(key: u64, first: u64) -> [[u64; LANES]; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    const LOW: u64 = 0xFFFF_FFFF;
    let mut words = [[0; LANES]; 4];
    words[0] = std::array::from_fn(|lane| first + lane as u64);
    words[1] = words[0].map(|counter| counter >> 32);
    let mut key = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let [first, second, third, fourth] = &mut words;
        for (((first, second), third), fourth) in first.iter_mut().zip(second).zip(third).zip(fourth) {
            // What is above 32 bits is left to be cut off by the next multiplication.
            let left = (*first & LOW) * MULTIPLIERS[0];
            let right = (*third & LOW) * MULTIPLIERS[1];
            *first = (right >> 32) ^ *second ^ u64::from(key[0]);
            *third = (left >> 32) ^ *fourth ^ u64::from(key[1]);
            (*second, *fourth) = (right, left);
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    words.map(|word| word.map(|word| word & LOW))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_the_words_of_their_counters() {
        for (key, first) in [(0, 0), (0x1234_5678_9ABC_DEF0, 77), (u64::MAX, (1 << 32) - 5)] {
            let words = philox_lanes(key, first);
            for lane in 0..LANES {
                let found = words.map(|word| word[lane] as u32);
                assert_eq!(found, philox(key, first + lane as u64), "key {key}, counter {first} + {lane}");
            }
        }
    }

    /// First known answer of the authors' Random123 distribution (`kat_vectors`, philox4x32 10).
    #[test]
    fn known_answer() {
        assert_eq!(philox(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    }
}
