//! Counter-based random numbers: every number is a pure function of where it is used.
//!
//! A decision hashes (seed, purpose, counters) and keeps no state, so a resumed run, another number of threads or
//! another order of work draws the same numbers. The mixing step is the finaliser of SplitMix64 (Steele et al. 2014).

/// Keeps the draws of one purpose apart from those of every other.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub enum Purpose {
    /// Order of the graphs of an epoch.
    Shuffle = 1,
    /// Which IDs are replaced by UNKNOWN.
    UnknownDrop = 2,
}

/// A hash of the seed, the purpose and the counters; feed it further counters with [`mix`].
pub fn key(seed: u64, purpose: Purpose, counters: &[u64]) -> u64 {
    counters.iter().fold(mix(mix(0x6b64_6761_7421, seed), purpose as u64), |state, &counter| mix(state, counter))
}

/// `state` with one more counter hashed in.
pub fn mix(state: u64, counter: u64) -> u64 {
    let mut bits = (state ^ counter.wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The bits as a number in [0, 1).
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The bits as a number in `0..bound` (multiply-shift; its bias is below `bound` / 2^64).
pub fn below(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly() {
        let count = 100_000u64;
        let state = key(7, Purpose::UnknownDrop, &[3]);
        let mean = (0..count).map(|index| unit(mix(state, index))).sum::<f64>() / count as f64;
        assert!((mean - 0.5).abs() < 0.005, "mean of uniform numbers is {mean}");
        let mut counts = [0u32; 10];
        (0..count).for_each(|index| counts[below(mix(state, index), 10) as usize] += 1);
        assert!(counts.iter().all(|&hits| (9_500..10_500).contains(&hits)), "uneven: {counts:?}");
    }

    #[test]
    fn every_counter_matters() {
        let base = key(1, Purpose::Shuffle, &[2, 3]);
        assert_ne!(base, key(0, Purpose::Shuffle, &[2, 3]));
        assert_ne!(base, key(1, Purpose::UnknownDrop, &[2, 3]));
        assert_ne!(base, key(1, Purpose::Shuffle, &[3, 2]));
        assert_ne!(base, key(1, Purpose::Shuffle, &[2, 4]));
    }
}
