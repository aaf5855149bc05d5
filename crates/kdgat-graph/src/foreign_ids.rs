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

/// Windows of one label, and those of them with an ID that is foreign to the vocabulary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    pub foreign: u64,
    pub windows: u64,
}

impl Counted {
    fn share(self) -> f64 {
        smoothed_share(self.foreign, self.windows)
    }
}

/// Validation windows with and without an attack, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForeignCounts {
    pub attacks: Counted,
    pub normals: Counted,
}

impl ForeignCounts {
    /// Counts over `graphs` of a store, which should be none that its vocabulary was made from: validation graphs.
    ///
    /// # Errors
    /// When a graph cannot be read.
    pub fn of(store: &Store, graphs: &[u64]) -> Result<Self, StoreError> {
        let mut counts = Self::default();
        for &graph in graphs {
            let view = store.try_graph(graph)?;
            let counted = if view.attack { &mut counts.attacks } else { &mut counts.normals };
            counted.foreign += u64::from(has_foreign(store.vocabulary(), &view.sending_ids()));
            counted.windows += 1;
        }
        Ok(counts)
    }

    /// Whether no window had a foreign ID, so that the counts say nothing about attacks that bring one.
    pub fn has_seen_none(&self) -> bool {
        self.attacks.foreign == 0 && self.normals.foreign == 0
    }

    /// The shares that a classifier's list is made with. `None` where all windows have an attack, or none has.
    ///
    /// Where no window has a foreign ID, the attacks that were recorded use known ones alone. They do not say how often
    /// others bring a foreign one, so that the share of the attacks is the one before anything is counted, ½. The share of
    /// the normals stays counted: that none of n windows has one says that they are rare there.
    pub fn shares(&self) -> Option<ForeignIds> {
        if self.attacks.windows == 0 || self.normals.windows == 0 {
            return None;
        }
        let attacks = if self.has_seen_none() { Counted::default() } else { self.attacks };
        Some(ForeignIds { of_attacks: attacks.share(), of_normals: self.normals.share() })
    }

    /// What the counts say, and what a foreign ID adds by them.
    pub fn text(&self) -> String {
        let Some(shares) = self.shares() else {
            return "no list of known IDs: validation has no window with an attack, or none without".to_owned();
        };
        let (Counted { foreign: in_attacks, windows: attacks }, evidence) = (self.attacks, shares.evidence());
        let Counted { foreign: in_normals, windows: normals } = self.normals;
        if self.has_seen_none() {
            let windows = attacks + normals;
            return format!(
                "none of {windows} validation windows has an unknown ID, so that nothing is known of attacks that bring one: \
                 half of them are assumed to; one adds {evidence:.1} to the log odds (--foreign-ids false: nothing)"
            );
        }
        format!(
            "unknown IDs are in {in_attacks} of {attacks} validation windows with an attack and in {in_normals} of the {normals} \
             others: one adds {evidence:.1} to the log odds"
        )
    }
}

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
    /// Counts over `graphs` of a store: see [`ForeignCounts`].
    ///
    /// # Errors
    /// When a graph cannot be read.
    pub fn count(store: &Store, graphs: &[u64]) -> Result<Option<Self>, StoreError> {
        Ok(ForeignCounts::of(store, graphs)?.shares())
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
        // No window at all.
        assert_eq!(counted((0, 0), (0, 0)).evidence(), 0.0);
        assert_eq!(counted((0, 0), (0, 0)).problem(), None);
        for (of_attacks, of_normals) in [(0.5, 0.0), (f64::NAN, 0.5), (1.5, 0.5)] {
            assert!(ForeignIds { of_attacks, of_normals }.problem().is_some(), "{of_attacks} {of_normals}");
        }
    }

    /// 270 attacks without a foreign ID beside 3389 normal windows without one: the balance of the classes is no finding.
    #[test]
    fn windows_without_a_foreign_id_say_nothing_about_attacks_that_bring_one() {
        let counts = |attacks: (u64, u64), normals: (u64, u64)| ForeignCounts {
            attacks: Counted { foreign: attacks.0, windows: attacks.1 },
            normals: Counted { foreign: normals.0, windows: normals.1 },
        };
        let none = counts((0, 270), (0, 3389));
        let shares = none.shares().unwrap();
        assert_eq!(shares.of_attacks, 0.5);
        assert!((shares.evidence() - 3390f64.ln()).abs() < 1e-12, "{shares:?}");
        assert_eq!(shares.evidence(), counts((0, 27), (0, 3389)).shares().unwrap().evidence(), "however many attacks");
        let text = none.text();
        assert!(text.starts_with("none of 3659 validation windows has an unknown ID"), "{text}");
        assert!(text.contains("half of them are assumed to; one adds 8.1 to the log odds"), "{text}");
        // One that was seen is evidence, on either side.
        assert_eq!(counts((0, 270), (1, 3389)).shares().unwrap().of_attacks, smoothed_share(0, 270));
        let text = counts((99, 270), (0, 3389)).text();
        assert!(
            text.starts_with("unknown IDs are in 99 of 270 validation windows with an attack and in 0 of the 3389"),
            "{text}"
        );
        assert!(counts((0, 0), (0, 3389)).shares().is_none() && counts((3, 3), (0, 0)).shares().is_none());
    }

    #[test]
    fn one_foreign_id_is_enough() {
        let vocabulary = Vocabulary::from_ids([0x10, 0x20, 0x1000_0000]);
        assert!(!has_foreign(&vocabulary, &[0x10, 0x1000_0000, 0x20]));
        assert!(has_foreign(&vocabulary, &[0x10, 0x20, 0x1000_0001]));
        assert!(!has_foreign(&vocabulary, &[]));
    }
}
