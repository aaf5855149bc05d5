//! Vocabulary: maps CAN IDs to rows of an embedding table.

use serde::{Deserialize, Serialize};

/// Number of standard IDs, which have 11 bits: a table maps them without a search.
const STANDARD_IDS: usize = 1 << 11;

/// The CAN IDs that a model knows: index 0 is UNKNOWN, the others follow in ascending order of ID.
///
/// Serialised as the list of its IDs, without UNKNOWN.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u32>", into = "Vec<u32>")]
pub struct Vocabulary {
    ids: Vec<u32>,
    /// Index of each standard ID.
    standard: Vec<u32>,
    /// Number of standard IDs at the start of `ids`; extended IDs follow.
    num_standard: usize,
}

impl Vocabulary {
    /// Index of all IDs that are not in the vocabulary.
    pub const UNKNOWN: u32 = 0;

    /// A vocabulary of the given IDs, in any order; duplicates are ignored.
    pub fn from_ids(ids: impl IntoIterator<Item = u32>) -> Self {
        let mut ids: Vec<u32> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        let num_standard = ids.partition_point(|&id| (id as usize) < STANDARD_IDS);
        let mut standard = vec![Self::UNKNOWN; STANDARD_IDS];
        for (position, &id) in ids[..num_standard].iter().enumerate() {
            standard[id as usize] = position as u32 + 1;
        }
        Self { ids, standard, num_standard }
    }

    /// Index of `can_id`: 1 or more for known IDs, [`Self::UNKNOWN`] for all others.
    pub fn index_of(&self, can_id: u32) -> u32 {
        match self.standard.get(can_id as usize) {
            Some(&index) => index,
            None => self.ids[self.num_standard..]
                .binary_search(&can_id)
                .map_or(Self::UNKNOWN, |position| (self.num_standard + position) as u32 + 1),
        }
    }

    /// Number of rows of the embedding table: the known IDs and UNKNOWN.
    #[allow(clippy::len_without_is_empty)] // never empty: UNKNOWN always counts
    pub fn len(&self) -> usize {
        self.ids.len() + 1
    }

    /// The known IDs, ascending; the ID with index `i` is `ids()[i - 1]`.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }
}

impl From<Vec<u32>> for Vocabulary {
    fn from(ids: Vec<u32>) -> Self {
        Self::from_ids(ids)
    }
}

impl From<Vocabulary> for Vec<u32> {
    fn from(vocabulary: Vocabulary) -> Self {
        vocabulary.ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ids_have_rows_and_others_are_unknown() {
        let vocabulary = Vocabulary::from_ids([0x7ff, 0x10, 0x1fff_ffff, 0x10, 0x800]);
        assert_eq!(vocabulary.len(), 5);
        assert_eq!(vocabulary.ids(), [0x10, 0x7ff, 0x800, 0x1fff_ffff]);
        for (position, &id) in vocabulary.ids().iter().enumerate() {
            assert_eq!(vocabulary.index_of(id), position as u32 + 1, "index of {id:#x}");
        }
        for id in [0, 0x11, 0x801, 0x1fff_fffe, u32::MAX] {
            assert_eq!(vocabulary.index_of(id), Vocabulary::UNKNOWN, "index of {id:#x}");
        }
    }

    #[test]
    fn serialised_as_its_ids() {
        let vocabulary = Vocabulary::from_ids([3, 1, 5000]);
        let json = serde_json::to_string(&vocabulary).unwrap();
        assert_eq!(json, "[1,3,5000]");
        assert_eq!(serde_json::from_str::<Vocabulary>(&json).unwrap(), vocabulary);
    }
}
