//! Irreducible representations of rotations and reflections in space: what a column of a node's features does when the graph is turned.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Highest degree of a representation.
pub const MAX_DEGREE: usize = 2;

/// Most features of one representation, all its parts together.
const MAX_COUNT: usize = 4096;

/// An irreducible representation, such as `1o`: its degree l, with 2 l + 1 components, and its parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Irrep {
    /// 0 for scalars, 1 for vectors, 2 for symmetric matrices without a trace.
    pub degree: usize,
    /// True if its sign changes when the graph is mirrored through a point.
    pub odd: bool,
}

impl Irrep {
    /// Number of components.
    pub fn components(self) -> usize {
        2 * self.degree + 1
    }

    /// Its place among others, as e3nn sorts them.
    fn rank(self) -> (usize, bool) {
        (self.degree, !self.odd)
    }

    /// True for a scalar that does not change when the graph is mirrored.
    pub fn is_invariant(self) -> bool {
        self.degree == 0 && !self.odd
    }
}

impl fmt::Display for Irrep {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}{}", self.degree, if self.odd { 'o' } else { 'e' })
    }
}

/// Columns of one representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Number of features, each of [`Irrep::components`] numbers.
    pub count: usize,
    /// Their representation.
    pub irrep: Irrep,
}

impl Part {
    /// Number of columns.
    pub fn columns(self) -> usize {
        self.count * self.irrep.components()
    }
}

/// The representations of a node's columns, such as `32x0e + 16x1o + 8x2e`.
///
/// Each representation occurs once; they ascend by degree. A row has the parts one after the other, and a part has its components one after
/// the other, each of `count` columns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Irreps(Vec<Part>);

impl Irreps {
    /// Sorts the parts, and joins those of one representation; parts without columns are left out.
    pub fn new(parts: impl IntoIterator<Item = Part>) -> Self {
        let mut sorted: Vec<Part> = parts.into_iter().filter(|part| part.count > 0).collect();
        sorted.sort_by_key(|part| part.irrep.rank());
        let mut joined: Vec<Part> = Vec::new();
        for part in sorted {
            match joined.last_mut() {
                Some(last) if last.irrep == part.irrep => last.count += part.count,
                _ => joined.push(part),
            }
        }
        Self(joined)
    }

    /// `count` scalars that do not change when the graph is mirrored.
    pub fn scalars(count: usize) -> Self {
        Self::new([Part { count, irrep: Irrep { degree: 0, odd: false } }])
    }

    /// The spherical harmonics of degrees 0 to [`MAX_DEGREE`].
    pub fn harmonics() -> Self {
        let part = |degree: usize| Part { count: 1, irrep: Irrep { degree, odd: !degree.is_multiple_of(2) } };
        Self::new((0..=MAX_DEGREE).map(part))
    }

    /// The parts, and the first column of each.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Part)> + '_ {
        self.0.iter().scan(0, |next, &part| {
            let first = *next;
            *next += part.columns();
            Some((first, part))
        })
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.0.iter().map(|part| part.columns()).sum()
    }

    /// Number of features: the sum of the counts.
    pub fn count(&self) -> usize {
        self.0.iter().map(|part| part.count).sum()
    }

    /// Number of features of one representation.
    pub fn count_of(&self, irrep: Irrep) -> usize {
        self.0.iter().find(|part| part.irrep == irrep).map_or(0, |part| part.count)
    }

    /// First column and number of the scalars that do not change when the graph is mirrored.
    pub fn invariant_columns(&self) -> (i64, i64) {
        let found = self.parts().find(|(_, part)| part.irrep.is_invariant());
        found.map_or((0, 0), |(first, part)| (first as i64, part.count as i64))
    }

    /// Number of scalars that do not change when the graph is mirrored.
    pub fn num_scalars(&self) -> usize {
        self.count_of(Irrep { degree: 0, odd: false })
    }
}

impl fmt::Display for Irreps {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (index, Part { count, irrep }) in self.0.iter().enumerate() {
            write!(f, "{}{count}x{irrep}", if index > 0 { " + " } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Irreps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split('+').map(|part| {
            part_of(part.trim()).ok_or_else(|| {
                format!(
                    "'{}' in '{text}': expected a count, x, a degree from 0 to {MAX_DEGREE} and a parity, e (even) or o (odd), as in \
                     '32x0e + 16x1o + 8x2e'; a count is from 1 to {MAX_COUNT}",
                    part.trim()
                )
            })
        });
        let irreps = Self::new(parts.collect::<Result<Vec<_>, _>>()?);
        if let Some((_, part)) = irreps.parts().find(|(_, part)| part.count > MAX_COUNT) {
            return Err(format!("'{text}': {} features of one kind; at most {MAX_COUNT} are possible", part.count));
        }
        match irreps.num_scalars() {
            0 => {
                Err(format!("'{text}': expected scalars (0e) among the representations, which the outputs are made of"))
            }
            _ => Ok(irreps),
        }
    }
}

fn part_of(text: &str) -> Option<Part> {
    let (count, irrep) = text.split_once('x')?;
    let count: usize = count.trim().parse().ok().filter(|count| (1..=MAX_COUNT).contains(count))?;
    let (degree, odd) = match irrep.trim().strip_suffix('e') {
        Some(degree) => (degree, false),
        None => (irrep.trim().strip_suffix('o')?, true),
    };
    let degree = degree.parse().ok().filter(|&degree| degree <= MAX_DEGREE)?;
    Some(Part { count, irrep: Irrep { degree, odd } })
}

impl TryFrom<String> for Irreps {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Irreps> for String {
    fn from(irreps: Irreps) -> Self {
        irreps.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn representations_are_read_sorted_and_joined() {
        let irreps: Irreps = "8x2e+16x1o + 20x0e + 2x1e + 12 x 0e + 3x0o".parse().unwrap();
        assert_eq!(irreps.to_string(), "3x0o + 32x0e + 16x1o + 2x1e + 8x2e");
        assert_eq!([irreps.columns(), irreps.count(), irreps.num_scalars()], [32 + 3 + 48 + 6 + 40, 61, 32]);
        let firsts: Vec<usize> = irreps.parts().map(|(first, _)| first).collect();
        assert_eq!(firsts, [0, 3, 35, 83, 89]);
        let json = serde_json::to_string(&irreps).unwrap();
        assert_eq!(serde_json::from_str::<Irreps>(&json).unwrap(), irreps);
    }

    #[test]
    fn other_texts_are_refused_with_the_part() {
        for (text, part) in [("32x0e + 4x3o", "4x3o"), ("0x0e", "0x0e"), ("8x0e+", ""), ("8x0", "8x0"), ("x0e", "x0e")]
        {
            let error = text.parse::<Irreps>().unwrap_err();
            assert!(error.starts_with(&format!("'{part}' in '{text}': expected a count")), "{error}");
        }
        assert!("4x1o".parse::<Irreps>().unwrap_err().contains("expected scalars (0e)"));
    }
}
