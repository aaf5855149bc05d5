//! The classes that nodes have, numbered without gaps: a class without a node could not be learned, but would have an output.

use crate::node_graph::NO_LABEL;
use crate::sources::MOST_CLASSES;

/// Most numbers that a remark lists.
const MOST_LISTED: usize = 8;

/// Numbers of the classes of a source, ascending. A class without a node is not among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassNumbers {
    present: Vec<u32>,
    /// For each number of the source up to the last one present, the number without gaps.
    renumbered: Vec<i32>,
}

impl ClassNumbers {
    /// The classes of these labels.
    pub fn of(labels: &[i32]) -> Self {
        let mut seen = vec![false; MOST_CLASSES];
        labels.iter().filter(|&&label| label != NO_LABEL).for_each(|&label| seen[label as usize] = true);
        Self::seen(&seen)
    }

    /// The classes whose entries are true.
    pub fn seen(seen: &[bool]) -> Self {
        // There are at most `MOST_CLASSES` classes.
        Self::from((0..).zip(seen).filter(|(_, seen)| **seen).map(|(number, _)| number).collect::<Vec<u32>>())
    }

    /// Number of classes.
    pub fn count(&self) -> usize {
        self.present.len()
    }

    /// True if a class below another one has no node.
    pub fn has_gaps(&self) -> bool {
        self.renumbered.len() > self.present.len()
    }

    /// The numbers of the source, ascending.
    pub fn numbers(&self) -> &[u32] {
        &self.present
    }

    /// The number without gaps of a label that was among those counted; [`NO_LABEL`] stays.
    pub fn renumbered(&self, label: i32) -> i32 {
        if label == NO_LABEL { label } else { self.renumbered[label as usize] }
    }

    /// Names of the classes that are present, from names of all; without names, the numbers of the source if they have gaps.
    pub fn names(&self, all: Option<Vec<String>>) -> Option<Vec<String>> {
        match all {
            Some(all) => Some(self.present.iter().map(|&number| all[number as usize].clone()).collect()),
            None => self.has_gaps().then(|| self.present.iter().map(u32::to_string).collect()),
        }
    }

    /// A remark on gaps; `None` without any.
    pub fn remark(&self, names: Option<&[String]>) -> Option<String> {
        if !self.has_gaps() {
            return None;
        }
        let names = names.unwrap_or_default();
        let more = if names.len() > MOST_LISTED { ", …" } else { "" };
        let listed = names[..names.len().min(MOST_LISTED)].join(", ") + more;
        Some(match self.count() {
            1 => format!("class numbers have gaps: {listed} is class 0"),
            count => format!("class numbers have gaps: {listed} are the classes 0 to {}", count.saturating_sub(1)),
        })
    }
}

impl From<Vec<u32>> for ClassNumbers {
    fn from(present: Vec<u32>) -> Self {
        let mut renumbered = vec![NO_LABEL; present.last().map_or(0, |&last| last as usize + 1)];
        (0..).zip(&present).for_each(|(number, &class)| renumbered[class as usize] = number);
        Self { present, renumbered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_closed_and_remarked() {
        let classes = ClassNumbers::of(&[5, NO_LABEL, 1000, 0, 5]);
        assert_eq!((classes.numbers(), classes.count(), classes.has_gaps()), (&[0, 5, 1000][..], 3, true));
        assert_eq!([5, NO_LABEL, 1000, 0].map(|label| classes.renumbered(label)), [1, NO_LABEL, 2, 0]);
        let names = classes.names(None);
        assert_eq!(names.as_deref().unwrap(), ["0", "5", "1000"]);
        let remark = classes.remark(names.as_deref()).unwrap();
        assert_eq!(remark, "class numbers have gaps: 0, 5, 1000 are the classes 0 to 2");
        assert!(ClassNumbers::of(&[1, 2, 3]).has_gaps());
        let only = ClassNumbers::of(&[7, 7]);
        assert_eq!(only.remark(only.names(None).as_deref()).unwrap(), "class numbers have gaps: 7 is class 0");
    }

    #[test]
    fn numbers_without_gaps_stay() {
        let classes = ClassNumbers::of(&[1, 0, 2, NO_LABEL]);
        assert_eq!(
            (classes.count(), classes.has_gaps(), classes.names(None), classes.remark(None)),
            (3, false, None, None)
        );
        assert_eq!(ClassNumbers::of(&[NO_LABEL]).count(), 0);
        let named = ClassNumbers::of(&[0, 2]).names(Some(["a", "b", "c"].map(str::to_owned).to_vec()));
        assert_eq!(named.unwrap(), ["a", "c"]);
    }
}
