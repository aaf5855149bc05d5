//! What an ID that attack-free traffic never had says about a window.
//!
//! UNKNOWN is hidden from classifiers (`unknown_drop`): one that may learn that it is an attack learns little else. It then
//! cannot see what a single frame of an unknown ID tells. So the list of known IDs speaks beside it, as an independent
//! witness (naive Bayes): to the log odds of a window with a foreign ID
//!
//! ```text
//! ln P(foreign ID | attack) − ln P(foreign ID | normal)
//! ```
//!
//! is added, if it is above 0. Windows without a foreign ID keep theirs: there are attacks that use known IDs alone. The frame
//! after a window, which its last edge leads to, is no frame of it: its ID counts in the next window.

use serde::{Deserialize, Serialize};

use super::{Store, StoreError, Vocabulary};

/// How often windows have an ID that is foreign to the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForeignIds {
    /// Share of the windows with an attack, as [`smoothed_share`] gives it.
    pub of_attacks: f64,
    /// Share of those without.
    pub of_normals: f64,
}

impl ForeignIds {
    /// Counted over `graphs` of a store, which should be none that its vocabulary was made from: validation graphs. `None` where
    /// all of them have an attack, or none has: nothing is known then of the others.
    ///
    /// # Errors
    /// When a graph cannot be read.
    pub fn count(store: &Store, graphs: &[u64]) -> Result<Option<Self>, StoreError> {
        let [mut of_normals, mut of_attacks] = [(0u64, 0u64); 2];
        for &graph in graphs {
            let view = store.try_graph(graph)?;
            let (foreign, windows) = if view.attack { &mut of_attacks } else { &mut of_normals };
            *foreign += u64::from(has_foreign(store.vocabulary(), &view.sending_ids()));
            *windows += 1;
        }
        let share = |(foreign, windows)| (windows > 0).then(|| smoothed_share(foreign, windows));
        let shares = share(of_attacks).zip(share(of_normals));
        Ok(shares.map(|(of_attacks, of_normals)| Self { of_attacks, of_normals }))
    }

    /// What is added to the log odds of an attack where a window has a foreign ID, in nats; at least 0.
    pub fn evidence(&self) -> f64 {
        (self.of_attacks / self.of_normals).ln().max(0.0)
    }

    /// What is wrong, where they are not both shares above 0 (a file may have been changed by hand).
    pub fn problem(&self) -> Option<String> {
        let Self { of_attacks, of_normals } = self;
        let is_sound = [of_attacks, of_normals].iter().all(|share| **share > 0.0 && **share <= 1.0);
        (!is_sound).then(|| {
            format!(
                "foreign_ids says that {of_attacks} of the windows with an attack and {of_normals} of the others have an unknown \
                 ID; these are shares above 0 and at most 1: train the model again, or take foreign_ids out"
            )
        })
    }
}

/// Whether one of the IDs is in no vocabulary row of its own.
pub fn has_foreign(vocabulary: &Vocabulary, can_ids: &[u32]) -> bool {
    can_ids.iter().any(|&id| vocabulary.index_of(id) == Vocabulary::UNKNOWN)
}

/// (count + ½) / (windows + 1): what has not been seen in n windows may still be in the next (Krichevsky and Trofimov 1981).
pub fn smoothed_share(count: u64, windows: u64) -> f64 {
    (count as f64 + 0.5) / (windows as f64 + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_what_the_counts_say_and_never_exonerates() {
        let counted = |attacks: (u64, u64), normals: (u64, u64)| ForeignIds {
            of_attacks: smoothed_share(attacks.0, attacks.1),
            of_normals: smoothed_share(normals.0, normals.1),
        };
        // Every attack has one and no normal window of 1999: 99.5 % against one in 4000.
        let telling = counted((99, 99), (0, 1999)).evidence();
        assert!((telling - (0.995f64 * 4000.0).ln()).abs() < 1e-12, "{telling}");
        // As many normal windows as attacks have one.
        assert!(counted((50, 100), (50, 100)).evidence().abs() < 1e-12);
        // They are rarer in attacks than elsewhere: no reason to trust such a window.
        assert_eq!(counted((1, 100), (50, 100)).evidence(), 0.0);
        // Nothing was counted.
        assert_eq!(counted((0, 0), (0, 0)).evidence(), 0.0);
        assert_eq!(counted((0, 0), (0, 0)).problem(), None);
        for (of_attacks, of_normals) in [(0.5, 0.0), (f64::NAN, 0.5), (1.5, 0.5)] {
            assert!(ForeignIds { of_attacks, of_normals }.problem().is_some(), "{of_attacks} {of_normals}");
        }
    }

    #[test]
    fn one_foreign_id_is_enough() {
        let vocabulary = Vocabulary::from_ids([0x10, 0x20, 0x1000_0000]);
        assert!(!has_foreign(&vocabulary, &[0x10, 0x1000_0000, 0x20]));
        assert!(has_foreign(&vocabulary, &[0x10, 0x20, 0x1000_0001]));
        assert!(!has_foreign(&vocabulary, &[]));
    }
}
