//! Random decisions as pure functions of their purpose.
//!
//! Every shuffle, mask and draw is a function of the run's seed, its purpose, epoch and step. A resumed run therefore
//! makes the same decisions as an uninterrupted one, and there is no generator state to save.

/// Purpose of a random decision; decisions with different purposes are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Order of the graphs in an epoch.
    Shuffle = 1,
    /// Dropout masks and latent noise of a training step.
    Step = 2,
    /// Initial weights.
    Initialization = 3,
    /// CAN IDs replaced by UNKNOWN.
    UnknownDrop = 4,
    /// Graphs drawn by a curriculum.
    Curriculum = 5,
    /// Resampling for a confidence interval.
    Bootstrap = 6,
    /// Combinations drawn by a sweep.
    Sweep = 7,
    /// Exploratory actions of the fusion agent.
    Exploration = 8,
    /// Transitions that the agent replays.
    Replay = 9,
    /// Neighbours sampled around a node.
    Neighbours = 10,
    /// Division of a graph's nodes into sets.
    Split = 11,
    /// Nodes and edges of a generated graph.
    Citations = 12,
    /// Random projection of nodes onto position features.
    Positions = 13,
    /// Nodes without a label that a student learns from.
    Taught = 14,
    /// Pairs of nodes without an edge.
    NonEdges = 15,
    /// Nodes whose features are hidden in pre-training.
    Masking = 16,
    /// Pairs of nodes of a tree of which neither is an ancestor of the other.
    UnrelatedPairs = 17,
    /// Displacements of nodes in space.
    Displacement = 18,
}

/// 2^64 divided by the golden ratio, odd: its bits look random.
pub const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes 64 bits so that neighbouring inputs give unrelated outputs (SplitMix64, Steele et al. 2014).
pub fn mix(value: u64) -> u64 {
    finalize(value.wrapping_add(GOLDEN))
}

/// Factors of the finalizer.
pub const MULTIPLIERS: [u64; 2] = [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB];

/// The finalizer of SplitMix64; maps 0 to 0.
pub fn finalize(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(MULTIPLIERS[0]);
    bits = (bits ^ (bits >> 27)).wrapping_mul(MULTIPLIERS[1]);
    bits ^ (bits >> 31)
}

/// Returns the 64 random bits of one decision.
pub fn bits(seed: u64, purpose: Purpose, epoch: u64, index: u64) -> u64 {
    mix(mix(mix(mix(seed) ^ purpose as u64) ^ epoch) ^ index)
}

/// Returns the number in [0, 1) of one decision.
pub fn unit(seed: u64, purpose: Purpose, epoch: u64, index: u64) -> f64 {
    to_unit(bits(seed, purpose, epoch, index))
}

/// Converts random bits to a number in [0, 1).
pub fn to_unit(bits: u64) -> f64 {
    // 53 bits: every multiple of 2^-53 in [0, 1), never 1.
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Converts random bits to a number in `0..bound` (multiply-shift; its bias is below `bound` / 2^64).
pub fn to_below(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

/// Derives the seed of a named object, such as a parameter.
pub fn seed_of_name(seed: u64, name: &str) -> u64 {
    let digest = blake3::hash(name.as_bytes());
    let mut first = [0u8; 8];
    first.copy_from_slice(&digest.as_bytes()[..8]);
    bits(seed, Purpose::Initialization, 0, u64::from_le_bytes(first))
}

/// Shuffles `items` (Fisher–Yates); the order is a function of seed, purpose and epoch.
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
    fn every_argument_matters() {
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
        // The standard error is 0.0009.
        assert!((mean - 0.5).abs() < 0.005, "mean of 100,000 uniform numbers is {mean}");
    }
}
