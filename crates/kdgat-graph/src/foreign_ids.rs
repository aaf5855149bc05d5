//! Evidence from IDs that do not occur in attack-free traffic (foreign IDs).
//!
//! Classifiers are trained with random UNKNOWN IDs (`unknown_drop`): one that may learn that UNKNOWN means an attack learns
//! little else. It then cannot use a single frame of an unknown ID as evidence. The list of known IDs adds this evidence,
//! as if independent (naive Bayes): if a window has a foreign ID, the log odds of an attack rise by
//!
//! ```text
//! ln P(foreign ID | attack) − ln P(foreign ID | normal)
//! ```
//!
//! if this is above 0. Windows without a foreign ID are not changed: some attacks use only known IDs. The frame after a
//! window, which its last edge leads to, does not belong to it: its ID counts in the next window.

use serde::{Deserialize, Serialize};

use super::{Store, StoreError, Vocabulary};

/// Windows of one label, in total and with a foreign ID.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Windows with an ID that is not in the vocabulary.
    pub foreign: u64,
    /// All windows.
    pub windows: u64,
}

impl Counted {
    fn share(self) -> f64 {
        smoothed_share(self.foreign, self.windows)
    }
}

/// Counts of validation windows with and without an attack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForeignCounts {
    /// Windows with an attack.
    pub attacks: Counted,
    /// Windows without an attack.
    pub normals: Counted,
}

impl ForeignCounts {
    /// Counts `graphs` of a store; its vocabulary must not have been made from them: use validation graphs.
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

    /// True if no window has a foreign ID: the counts then say nothing about attacks with one.
    pub fn has_seen_none(&self) -> bool {
        self.attacks.foreign == 0 && self.normals.foreign == 0
    }

    /// Smoothed shares of windows with a foreign ID. `None` if all windows have an attack, or none has.
    ///
    /// If no window has a foreign ID, all recorded attacks use known IDs only. This does not show how often other attacks use a
    /// foreign one, so the share for attacks is the prior ½. The share for normal windows is still estimated from its count: 0 of
    /// n windows shows that foreign IDs are rare there.
    pub fn shares(&self) -> Option<ForeignIds> {
        if self.attacks.windows == 0 || self.normals.windows == 0 {
            return None;
        }
        let attacks = if self.has_seen_none() { Counted::default() } else { self.attacks };
        Some(ForeignIds { of_attacks: attacks.share(), of_normals: self.normals.share() })
    }

    /// The counts and the resulting evidence as a sentence for the user.
    pub fn text(&self) -> String {
        let Some(shares) = self.shares() else {
            return "no list of known IDs: the validation set has no window with an attack, or none without".to_owned();
        };
        let (Counted { foreign: in_attacks, windows: attacks }, evidence) = (self.attacks, shares.evidence());
        let Counted { foreign: in_normals, windows: normals } = self.normals;
        if self.has_seen_none() {
            let windows = attacks + normals;
            return format!(
                "none of {windows} validation windows has an unknown ID, so their share in attacks is not known and is assumed to be one \
                 half: an unknown ID adds {evidence:.1} to the log odds (turn this off with --foreign-ids false)"
            );
        }
        format!(
            "unknown IDs are in {in_attacks} of {attacks} validation windows with an attack and in {in_normals} of the {normals} \
             others: an unknown ID adds {evidence:.1} to the log odds"
        )
    }
}

/// Shares of windows with an ID that is not in the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForeignIds {
    /// Share of the windows with an attack, smoothed by [`smoothed_share`].
    pub of_attacks: f64,
    /// Share of the windows without an attack, smoothed likewise.
    pub of_normals: f64,
}

impl ForeignIds {
    /// Counts `graphs` of a store: see [`ForeignCounts`].
    ///
    /// # Errors
    /// When a graph cannot be read.
    pub fn count(store: &Store, graphs: &[u64]) -> Result<Option<Self>, StoreError> {
        Ok(ForeignCounts::of(store, graphs)?.shares())
    }

    /// Evidence of a foreign ID: added to the log odds of an attack, in nats; at least 0.
    pub fn evidence(&self) -> f64 {
        (self.of_attacks / self.of_normals).ln().max(0.0)
    }

    /// Describes what is wrong if the shares are not above 0 and at most 1: a file may have been edited by hand.
    pub fn problem(&self) -> Option<String> {
        let Self { of_attacks, of_normals } = self;
        let is_sound = [of_attacks, of_normals].iter().all(|share| **share > 0.0 && **share <= 1.0);
        (!is_sound).then(|| {
            format!(
                "foreign_ids has {of_attacks} as the share of windows with an unknown ID among those with an attack and {of_normals} among \
                 the others; both must be above 0 and at most 1: train the model again, or remove foreign_ids"
            )
        })
    }
}

/// True if one of the IDs is not in the vocabulary.
pub fn has_foreign(vocabulary: &Vocabulary, can_ids: &[u32]) -> bool {
    can_ids.iter().any(|&id| vocabulary.index_of(id) == Vocabulary::UNKNOWN)
}

/// (count + ½) / (windows + 1): an event not seen in n windows may still occur in the next (Krichevsky and Trofimov 1981).
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
        // Every attack has one and none of 1999 normal windows: 99.5 % against one in 4000.
        let telling = counted((99, 99), (0, 1999)).evidence();
        assert!((telling - (0.995f64 * 4000.0).ln()).abs() < 1e-12, "{telling}");
        // The same share of attacks and normal windows has one.
        assert!(counted((50, 100), (50, 100)).evidence().abs() < 1e-12);
        // Foreign IDs are rarer in attacks than elsewhere: that must not lower the odds.
        assert_eq!(counted((1, 100), (50, 100)).evidence(), 0.0);
        // No windows.
        assert_eq!(counted((0, 0), (0, 0)).evidence(), 0.0);
        assert_eq!(counted((0, 0), (0, 0)).problem(), None);
        for (of_attacks, of_normals) in [(0.5, 0.0), (f64::NAN, 0.5), (1.5, 0.5)] {
            assert!(ForeignIds { of_attacks, of_normals }.problem().is_some(), "{of_attacks} {of_normals}");
        }
    }

    /// 270 attacks and 3389 normal windows, all without a foreign ID: the balance of the classes must not become evidence.
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
        assert!(text.contains("assumed to be one half: an unknown ID adds 8.1 to the log odds"), "{text}");
        // A single window with a foreign ID is evidence, on either side.
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
