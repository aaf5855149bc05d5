//! The nodes whose features are kept in memory: those that batches read most often.

/// Words of 64 nodes with the number of hot nodes before each: a node's slot in two reads of memory.
#[derive(Debug)]
pub struct HotNodes {
    words: Vec<u64>,
    ranks: Vec<u32>,
    count: usize,
}

impl HotNodes {
    /// The `limit` nodes with the largest values above 0; among equal ones the first.
    pub fn most_likely(probabilities: &[f32], limit: usize) -> Self {
        let threshold = Threshold::of(probabilities, limit);
        let mut of_threshold = threshold.equal;
        let mut words = vec![0u64; probabilities.len().div_ceil(64)];
        for (node, &probability) in probabilities.iter().enumerate() {
            let bin = bin_of(probability);
            let is_hot = bin > threshold.bin || (bin == threshold.bin && of_threshold > 0);
            if is_hot {
                of_threshold -= usize::from(bin == threshold.bin);
                words[node / 64] |= 1 << (node % 64);
            }
        }
        let mut count = 0u32;
        let ranks = words.iter().map(|word| {
            let before = count;
            count += word.count_ones();
            before
        });
        let ranks = ranks.collect();
        Self { words, ranks, count: count as usize }
    }

    /// Number of hot nodes.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Position of a node among the hot ones, ascending; `None` if it is not hot.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn slot(&self, node: u32) -> Option<usize> {
        let (word, bit) = (self.words[node as usize / 64], node % 64);
        let is_hot = word >> bit & 1 == 1;
        is_hot.then(|| self.ranks[node as usize / 64] as usize + (word & ((1 << bit) - 1)).count_ones() as usize)
    }

    /// The hot nodes, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.words).flat_map(|(at, &word)| {
            let bits = std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)));
            bits.take_while(|rest| *rest != 0).map(move |rest| at * 64 + rest.trailing_zeros())
        })
    }
}

/// Bytes of the index of a graph's hot nodes.
pub fn index_bytes(num_nodes: usize) -> usize {
    num_nodes.div_ceil(64) * (size_of::<u64>() + size_of::<u32>())
}

/// Bin of a probability: the upper bits of a positive f32 order it, 0 is for 0.
fn bin_of(probability: f32) -> usize {
    if probability > 0.0 { 1 + (probability.to_bits() >> 15) as usize } else { 0 }
}

/// Where the largest values end.
struct Threshold {
    bin: usize,
    /// Values of this bin that are among the largest.
    equal: usize,
}

impl Threshold {
    /// By counting: a sorted copy would take as much memory as the values.
    fn of(values: &[f32], limit: usize) -> Self {
        let mut counts = vec![0usize; 1 + (1 << 16)];
        values.iter().for_each(|&value| counts[bin_of(value)] += 1);
        let mut left = limit;
        for bin in (1..counts.len()).rev() {
            if counts[bin] >= left {
                return Self { bin, equal: left };
            }
            left -= counts[bin];
        }
        // All positive values are among the largest.
        Self { bin: 0, equal: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_number_the_largest_values(
            values in prop::collection::vec(prop_oneof![Just(0.0f32), 0.0f32..=1.0, Just(0.25)], 0..400),
            limit in 0usize..450,
        ) {
            let hot = HotNodes::most_likely(&values, limit);
            let positive = values.iter().filter(|&&value| value > 0.0).count();
            prop_assert_eq!(hot.len(), limit.min(positive));
            let nodes: Vec<u32> = hot.iter().collect();
            prop_assert_eq!(nodes.len(), hot.len());
            prop_assert!(nodes.is_sorted_by(|one, next| one < next));
            for (slot, &node) in nodes.iter().enumerate() {
                prop_assert_eq!(hot.slot(node), Some(slot));
            }
            let is_hot = |node: usize| hot.slot(node as u32).is_some();
            prop_assert_eq!((0..values.len()).filter(|&node| is_hot(node)).count(), hot.len());
            // Values of one bin differ by less than 1 %.
            let smallest = nodes.iter().map(|&node| values[node as usize]).fold(f32::INFINITY, f32::min);
            for node in (0..values.len()).filter(|&node| !is_hot(node)) {
                prop_assert!(hot.is_empty() || values[node] <= smallest * 1.01, "{} and {}", values[node], smallest);
            }
        }
    }

    #[test]
    fn the_index_takes_a_fifth_of_a_byte_for_each_node() {
        let hot = HotNodes::most_likely(&vec![0.5; 1000], 1000);
        assert_eq!(index_bytes(1000), hot.words.len() * 8 + hot.ranks.len() * 4);
        assert_eq!((hot.len(), hot.slot(999)), (1000, Some(999)));
    }
}
