//! Random decisions as pure functions of what they are for.
//!
//! Every shuffle, mask and draw is a function of the run's seed and its own place (purpose, epoch, step), so a resumed
//! run makes the same decisions as an uninterrupted one and there is no generator state to save.

/// What a random decision is for; decisions of different purposes are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Order of the graphs in an epoch.
    Shuffle = 1,
    /// Dropout masks and the noise of a latent in a training step.
    Step = 2,
    /// Initial weights.
    Initialization = 3,
    /// IDs replaced by UNKNOWN.
    UnknownDrop = 4,
    /// Which graphs a curriculum draws.
    Curriculum = 5,
    /// Resampling of a confidence interval.
    Bootstrap = 6,
    /// Combinations of a sweep that are drawn.
    Sweep = 7,
    /// Actions that an agent of the fusion tries.
    Exploration = 8,
    /// Transitions that it learns from again.
    Replay = 9,
}

/// Odd, with bits that look random: the golden ratio's.
pub const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes 64 bits so that neighbouring inputs give unrelated outputs (SplitMix64, Steele et al. 2014).
pub fn mix(value: u64) -> u64 {
    finalize(value.wrapping_add(GOLDEN))
}

/// The last step of SplitMix64; 0 stays 0.
pub fn finalize(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// The random bits of one decision.
pub fn bits(seed: u64, purpose: Purpose, epoch: u64, index: u64) -> u64 {
    mix(mix(mix(mix(seed) ^ purpose as u64) ^ epoch) ^ index)
}

/// A number in [0, 1) for one decision.
pub fn unit(seed: u64, purpose: Purpose, epoch: u64, index: u64) -> f64 {
    to_unit(bits(seed, purpose, epoch, index))
}

/// Random bits as a number in [0, 1).
pub fn to_unit(bits: u64) -> f64 {
    // 53 bits: every double in [0, 1) of that spacing, none of them 1.
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Random bits as a number in `0..bound` (multiply-shift; its bias is below `bound` / 2^64).
pub fn to_below(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

/// A seed for everything that belongs to a name, such as a parameter.
pub fn seed_of_name(seed: u64, name: &str) -> u64 {
    let digest = blake3::hash(name.as_bytes());
    let mut first = [0u8; 8];
    first.copy_from_slice(&digest.as_bytes()[..8]);
    bits(seed, Purpose::Initialization, 0, u64::from_le_bytes(first))
}

/// Shuffles `items` (Fisher–Yates), the same way for the same seed, purpose and epoch.
pub fn shuffle<T>(items: &mut [T], seed: u64, purpose: Purpose, epoch: u64) {
    for last in (1..items.len()).rev() {
        let chosen = to_below(bits(seed, purpose, epoch, last as u64), last as u64 + 1);
        items.swap(last, chosen as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_a_permutation_and_depends_on_the_epoch() {
        let shuffled = |epoch| {
            let mut items: Vec<u32> = (0..1000).collect();
            shuffle(&mut items, 7, Purpose::Shuffle, epoch);
            items
        };
        assert_eq!(shuffled(3), shuffled(3));
        assert_ne!(shuffled(3), shuffled(4));
        let mut sorted = shuffled(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn every_part_of_a_place_matters() {
        let base = bits(1, Purpose::Shuffle, 2, 3);
        assert_ne!(base, bits(0, Purpose::Shuffle, 2, 3));
        assert_ne!(base, bits(1, Purpose::UnknownDrop, 2, 3));
        assert_ne!(base, bits(1, Purpose::Shuffle, 3, 2));
        assert_ne!(base, bits(1, Purpose::Shuffle, 2, 4));
    }

    #[test]
    fn bounded_numbers_are_spread_evenly() {
        let mut counts = [0u32; 10];
        (0..100_000).for_each(|index| counts[to_below(bits(7, Purpose::Step, 3, index), 10) as usize] += 1);
        assert!(counts.iter().all(|&hits| (9_500..10_500).contains(&hits)), "uneven: {counts:?}");
    }

    #[test]
    fn units_are_uniform() {
        let mean = (0..100_000).map(|index| unit(1, Purpose::Step, 0, index)).sum::<f64>() / 1e5;
        // Standard error is 0.0009.
        assert!((mean - 0.5).abs() < 0.005, "mean of 100,000 uniform numbers is {mean}");
    }
}
