//! Sizes of padded batches that a run has met. Unless memory runs out, they decide whether a step is computed, captured or replayed, so that it is known
//! before the run.

use std::collections::{BTreeMap, BTreeSet};

use kdgat_graph::padding::SizeClass;

/// Maximum number of captures. A run of shuffled batches has a handful of sizes.
pub const MOST_RECORDINGS: usize = 32;

/// Kind of a size's CUDA graph: a step, by the bits of its loss factor, which is part of a capture, or (`None`) a validation.
pub type Captured = Option<u64>;

/// Way to the losses of a padded batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The step is computed, and nothing is kept.
    Computed,
    /// It is computed and captured.
    Captured,
    /// Its capture is replayed.
    Replayed,
}

/// The captures of each size; none of a size that one step was computed for.
#[derive(Clone, Debug, Default)]
pub struct MetSizes(BTreeMap<SizeClass, BTreeSet<Captured>>);

impl MetSizes {
    /// The way of the next batch of this size.
    pub fn way(&self, class: SizeClass, kind: Captured) -> Way {
        match self.0.get(&class) {
            Some(kinds) if kinds.contains(&kind) => Way::Replayed,
            // A size that only validation has would hold tensors for a replay in each epoch.
            Some(kinds) if self.captures() < MOST_RECORDINGS && (kind.is_some() || !kinds.is_empty()) => Way::Captured,
            _ => Way::Computed,
        }
    }

    /// Notes that a batch went this way.
    pub fn note(&mut self, class: SizeClass, kind: Captured, way: Way) {
        match way {
            Way::Computed if kind.is_some() => drop(self.0.entry(class).or_default()),
            Way::Captured => drop(self.0.entry(class).or_default().insert(kind)),
            Way::Computed | Way::Replayed => {}
        }
    }

    /// True if no step was computed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets all sizes.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Number of sizes with captures.
    pub fn captured_sizes(&self) -> usize {
        self.0.values().filter(|kinds| !kinds.is_empty()).count()
    }

    fn captures(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(nodes: i64) -> SizeClass {
        SizeClass { nodes, edges: 1, successors: 1, graphs: 1 }
    }

    fn meet(met: &mut MetSizes, nodes: i64, kind: Captured) -> Way {
        let way = met.way(class(nodes), kind);
        met.note(class(nodes), kind, way);
        way
    }

    #[test]
    fn the_second_step_of_a_size_is_captured_and_its_validation_after_that() {
        let mut met = MetSizes::default();
        let ways = [None, Some(1), None, Some(1), Some(1), None, None, Some(2), Some(2)];
        let found = ways.map(|kind| meet(&mut met, 7, kind));
        use Way::{Captured, Computed, Replayed};
        let expected = [Computed, Computed, Computed, Captured, Replayed, Captured, Replayed, Captured, Replayed];
        assert_eq!(found, expected);
        assert_eq!((met.captured_sizes(), met.captures()), (1, 3));
        assert_eq!(meet(&mut met, 8, Some(1)), Computed);
        assert_eq!(met.captured_sizes(), 1);
    }

    #[test]
    fn the_number_of_captures_is_limited() {
        let mut met = MetSizes::default();
        for nodes in 0..40 {
            assert_eq!(meet(&mut met, nodes, Some(1)), Way::Computed);
        }
        let second: Vec<Way> = (0..40).map(|nodes| meet(&mut met, nodes, Some(1))).collect();
        assert!(second[..MOST_RECORDINGS].iter().all(|&way| way == Way::Captured), "{second:?}");
        assert!(second[MOST_RECORDINGS..].iter().all(|&way| way == Way::Computed), "{second:?}");
        assert_eq!(meet(&mut met, 0, None), Way::Computed);
        assert_eq!(meet(&mut met, 0, Some(1)), Way::Replayed);
    }
}
