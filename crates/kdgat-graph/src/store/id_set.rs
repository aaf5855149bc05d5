//! The distinct CAN IDs of a log.

use std::collections::HashSet;

/// Set of CAN IDs seen in a log.
#[derive(Debug, Clone, Default)]
pub struct IdSet {
    standard: Vec<bool>,
    extended: HashSet<u32>,
}

impl IdSet {
    const STANDARD_IDS: usize = 1 << 11;

    /// Adds an ID.
    pub fn insert(&mut self, id: u32) {
        if self.standard.is_empty() {
            self.standard.resize(Self::STANDARD_IDS, false);
        }
        match self.standard.get_mut(id as usize) {
            Some(seen) => *seen = true,
            None => {
                self.extended.insert(id);
            }
        }
    }

    /// True if the set contains the ID.
    pub fn contains(&self, id: u32) -> bool {
        match id as usize {
            standard @ ..Self::STANDARD_IDS => self.standard.get(standard).is_some_and(|&seen| seen),
            _ => self.extended.contains(&id),
        }
    }

    /// The IDs, in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let standard = (0u32..).zip(&self.standard).filter_map(|(id, &seen)| seen.then_some(id));
        standard.chain(self.extended.iter().copied())
    }

    /// The IDs in ascending order.
    pub fn ascending(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.iter().collect();
        ids.sort_unstable();
        ids
    }

    /// Number of distinct IDs.
    pub fn len(&self) -> u64 {
        self.iter().count() as u64
    }

    /// True if the set has no ID.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

impl Extend<u32> for IdSet {
    fn extend<T: IntoIterator<Item = u32>>(&mut self, ids: T) {
        ids.into_iter().for_each(|id| self.insert(id));
    }
}
