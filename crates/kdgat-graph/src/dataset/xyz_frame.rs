//! Parses the frames of the extended XYZ format: a number of atoms, a comment line of `key=value` pairs, and a line for each atom.
//!
//! A value with spaces is in quotes, braces or brackets; a key without a value is true. `Properties=NAME:TYPE:COUNT:…` describes the
//! columns of the atoms; without it, they are those of plain XYZ: species and position.

use std::iter::Peekable;
use std::str::Lines;

use super::error::{DatasetError, Origin};
use super::graph_set::expect_few_nodes;
use crate::space::Cell;

/// Columns of a frame without `Properties`.
const PLAIN: &str = "species:S:1:pos:R:3";

/// A frame of a file.
pub(super) struct Frame<'file, 'text> {
    /// Line of the comment.
    pub comment: Origin<'file>,
    pub pairs: Vec<Pair>,
    /// Species of each atom.
    pub species: Vec<&'text str>,
    /// Position of each atom.
    pub positions: Vec<[f64; 3]>,
    /// Force on each atom; empty without any.
    pub forces: Vec<[f32; 3]>,
    /// Properties of atoms with three real numbers that are neither positions nor forces.
    pub unread: Vec<String>,
    /// The periodic axes; `None` without any.
    pub cell: Option<Cell>,
}

/// A key of a comment line and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub key: String,
    pub value: String,
}

impl<'file> Frame<'file, '_> {
    /// The line of an atom.
    pub fn line_of(&self, atom: usize) -> Origin<'file> {
        // The atoms follow the comment.
        self.comment.lines_below(1 + atom as u64)
    }

    /// The pair of a key.
    pub fn pair(&self, key: &str) -> Option<&Pair> {
        self.pairs.iter().find(|pair| pair.key == key)
    }

    /// The pair of a key in upper or lower case.
    pub fn pair_in_any_case(&self, key: &str) -> Option<&Pair> {
        self.pairs.iter().find(|pair| pair.key.eq_ignore_ascii_case(key))
    }
}

/// Reads the frames of a file one after the other.
pub(super) struct Frames<'file, 'text> {
    file: &'file str,
    /// Property with the forces, if one is set.
    forces: Option<&'file str>,
    lines: Peekable<Lines<'text>>,
    /// Number of the line read last.
    line: u64,
}

impl<'file, 'text> Frames<'file, 'text> {
    /// The frames of a file with this text. The property `forces` has the forces; without one, `forces` or `force` in any case.
    pub fn new(file: &'file str, text: &'text str, forces: Option<&'file str>) -> Self {
        Self { file, forces, lines: text.trim_start_matches('\u{feff}').lines().peekable(), line: 0 }
    }

    /// The next frame; `None` at the end of the file.
    pub fn next(&mut self) -> Result<Option<Frame<'file, 'text>>, DatasetError> {
        while self.lines.peek().is_some_and(|line| line.trim().is_empty()) {
            self.next_line();
        }
        let Some(text) = self.next_line() else { return Ok(None) };
        let atoms = self.number_of_atoms(text.trim())?;
        let Some(comment) = self.next_line() else {
            return Err(self.origin().error("the end of the file", "a comment line after the number of atoms"));
        };
        let comment_origin = self.origin();
        let pairs = pairs(comment).map_err(|found| comment_origin.error(found, "key=value pairs"))?;
        let mut frame = Frame {
            comment: comment_origin,
            pairs,
            species: Vec::new(),
            positions: Vec::new(),
            forces: Vec::new(),
            unread: Vec::new(),
            cell: None,
        };
        frame.cell = cell(&frame)?;
        let (layout, unread) = Layout::of(&frame, self.forces)?;
        frame.unread = unread;
        for atom in 0..atoms {
            let Some(line) = self.next_line() else {
                let found = format!("the end of the file after {atom} of {atoms} atoms");
                return Err(self.origin().error(found, "a line for each atom"));
            };
            let Atom { species, position, force } = layout.atom(line, self.origin())?;
            frame.species.push(species);
            frame.positions.push(position);
            frame.forces.extend(force);
        }
        Ok(Some(frame))
    }

    fn number_of_atoms(&self, text: &str) -> Result<usize, DatasetError> {
        match text.parse::<usize>() {
            Ok(0) => Err(self.origin().error("a frame of 0 atoms", "at least one atom")),
            Ok(atoms) => expect_few_nodes(self.origin(), atoms, "of this frame").map(|()| atoms),
            Err(_) => {
                let expected =
                    "the number of atoms of a frame; if this is an atom, the number of its frame is too small";
                Err(self.origin().error(format!("'{text}'"), expected))
            }
        }
    }

    fn next_line(&mut self) -> Option<&'text str> {
        let line = self.lines.next();
        self.line += u64::from(line.is_some());
        line
    }

    /// The line read last.
    fn origin(&self) -> Origin<'file> {
        Origin::line(self.file, self.line)
    }
}

/// The columns of the atoms that are read.
struct Layout {
    /// Number of columns.
    columns: usize,
    /// Column of the species.
    species: usize,
    /// First of three columns of the position.
    position: usize,
    /// First of three columns of the force, if there is one.
    force: Option<usize>,
}

/// An atom of a frame.
struct Atom<'text> {
    species: &'text str,
    position: [f64; 3],
    force: Option<[f32; 3]>,
}

impl Layout {
    /// The columns of a frame, with the names of vectors that are not read.
    fn of(frame: &Frame<'_, '_>, forces: Option<&str>) -> Result<(Self, Vec<String>), DatasetError> {
        let properties = frame.pair_in_any_case("Properties").map_or(PLAIN, |pair| pair.value.as_str());
        let error = |found: String, expected: &str| frame.comment.error(found, expected);
        let fields: Vec<&str> = properties.split(':').collect();
        let (mut columns, mut species, mut position, mut force) = (0, None, None, None);
        let mut unread = Vec::new();
        let is_force = |name: &str| match forces {
            Some(forces) => name == forces,
            None => name.eq_ignore_ascii_case("forces") || name.eq_ignore_ascii_case("force"),
        };
        for property in fields.chunks(3) {
            let [name, kind, count] = property else {
                return Err(error(format!("Properties={properties}"), "NAME:TYPE:COUNT for each property"));
            };
            if !matches!(*kind, "S" | "R" | "I" | "L") {
                let expected = "S (text), R (real number), I (integer) or L (logical)";
                return Err(error(format!("type '{kind}' of property '{name}'"), expected));
            }
            // Far more columns than any file has: their sum cannot overflow.
            let Some(width) = count.parse::<u16>().ok().filter(|width| *width > 0) else {
                let found = format!("'{count}' columns of property '{name}'");
                return Err(error(found, "a number of columns from 1 to 65535"));
            };
            let wanted = match *name {
                "species" => Some((&mut species, "S", 1)),
                "pos" => Some((&mut position, "R", 3)),
                name if is_force(name) => Some((&mut force, "R", 3)),
                _ => {
                    if (*kind, width) == ("R", 3) {
                        unread.push((*name).to_owned());
                    }
                    None
                }
            };
            if let Some((column, expected_kind, expected_width)) = wanted {
                if (*kind, width) != (expected_kind, expected_width) || column.is_some() {
                    let expected = format!("{name}:{expected_kind}:{expected_width}, once");
                    return Err(error(format!("{name}:{kind}:{width} in Properties={properties}"), &expected));
                }
                *column = Some(columns);
            }
            columns += usize::from(width);
        }
        if let (Some(name), None) = (forces, force) {
            let found = format!("no property {name} in Properties={properties}");
            return Err(error(found, "the property that `forces` in kdgat-graphs.toml names, in every frame"));
        }
        match (species, position) {
            (Some(species), Some(position)) => Ok((Self { columns, species, position, force }, unread)),
            _ => Err(error(format!("Properties={properties}"), "species:S:1 and pos:R:3 among the properties")),
        }
    }

    /// Species, position and force of an atom.
    fn atom<'a>(&self, line: &'a str, origin: Origin<'_>) -> Result<Atom<'a>, DatasetError> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.len() != self.columns {
            let expected = format!(
                "{} as in Properties (without it: species, x, y, z); if this is no atom, the number of atoms is too large",
                self.columns
            );
            return Err(origin.error(format!("{} columns", fields.len()), expected));
        }
        let vector = |first: usize, expected: &str| {
            let mut vector = [0.0; 3];
            for (value, field) in vector.iter_mut().zip(&fields[first..]) {
                let parsed = field.parse::<f64>().ok().filter(|value| (*value as f32).is_finite());
                *value = parsed.ok_or_else(|| origin.error(format!("'{field}'"), expected))?;
            }
            Ok(vector)
        };
        let position = vector(self.position, "a finite coordinate")?;
        let force = self.force.map(|first| vector(first, "a finite component of the force")).transpose()?;
        let force = force.map(|force| force.map(|value| value as f32));
        Ok(Atom { species: fields[self.species], position, force })
    }
}

/// The periodic axes of a frame: those of `pbc` with a T, or all of a `Lattice` without `pbc`. `None` without any.
fn cell(frame: &Frame<'_, '_>) -> Result<Option<Cell>, DatasetError> {
    let (pbc, lattice) = (frame.pair_in_any_case("pbc"), frame.pair_in_any_case("Lattice"));
    let is_periodic = match (pbc, lattice) {
        (None, None) => return Ok(None),
        (None, Some(_)) => [true; 3],
        (Some(pair), _) => periodic_axes(pair)
            .ok_or_else(|| frame.comment.error(format!("pbc '{}'", pair.value), "T or F for each of three axes"))?,
    };
    if is_periodic == [false; 3] {
        return Ok(None);
    }
    let Some(lattice) = lattice else {
        let expected = "a Lattice with the three vectors of the cell beside pbc with a T";
        return Err(frame.comment.error("no Lattice", expected));
    };
    let error = |expected| frame.comment.error(format!("Lattice '{}'", lattice.value), expected);
    let numbers: Vec<f64> = words(&lattice.value).filter_map(|word| word.parse().ok()).collect();
    let is_sound = numbers.len() == words(&lattice.value).count() && numbers.iter().all(|number| number.is_finite());
    let ([a, b, c], []) = numbers.as_chunks::<3>() else {
        return Err(error("nine finite numbers: the three vectors of the cell, one after the other"));
    };
    if !is_sound {
        return Err(error("nine finite numbers: the three vectors of the cell, one after the other"));
    }
    let vectors: Vec<[f64; 3]> =
        [*a, *b, *c].into_iter().zip(is_periodic).filter_map(|(vector, periodic)| periodic.then_some(vector)).collect();
    match Cell::new(&vectors) {
        Some(cell) => Ok(Some(cell)),
        None => Err(error("vectors of the periodic axes that do not lie in a plane or on a line")),
    }
}

/// True for each periodic axis, from a flag for each or one for all; `None` for anything else.
fn periodic_axes(Pair { value, .. }: &Pair) -> Option<[bool; 3]> {
    let flag = |word: &str| match word.to_ascii_lowercase().as_str() {
        "t" | "true" | "1" => Some(true),
        "f" | "false" | "0" => Some(false),
        _ => None,
    };
    match words(value).map(flag).collect::<Option<Vec<bool>>>()?[..] {
        [all] => Some([all; 3]),
        [x, y, z] => Some([x, y, z]),
        _ => None,
    }
}

/// The words of a list, whatever separates them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| letter.is_whitespace() || matches!(letter, ',' | '[' | ']'))
        .filter(|word| !word.is_empty())
}

/// The pairs of a comment line.
///
/// # Errors
/// The problem.
fn pairs(comment: &str) -> Result<Vec<Pair>, String> {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut rest = comment.trim_start();
    while !rest.is_empty() {
        let (key, after) = token(rest, |letter| letter.is_whitespace() || letter == '=')?;
        if key.is_empty() {
            return Err(format!("a '=' without a key before '{}'", after.trim()));
        }
        let Some(value) = after.trim_start().strip_prefix('=') else {
            pairs.push(Pair { key, value: "T".to_owned() });
            rest = after.trim_start();
            continue;
        };
        let (value, after) = token(value.trim_start(), char::is_whitespace)?;
        if pairs.iter().any(|pair| pair.key == key) {
            return Err(format!("key '{key}' a second time"));
        }
        pairs.push(Pair { key, value });
        rest = after.trim_start();
    }
    Ok(pairs)
}

/// The text up to a letter that ends it, or to the closing delimiter if it opens with one; and the rest.
fn token(text: &str, ends: impl Fn(char) -> bool) -> Result<(String, &str), String> {
    let close = match text.chars().next() {
        Some(quote @ ('"' | '\'')) => quote,
        Some('{') => '}',
        Some('[') => ']',
        _ => {
            let end = text.find(ends).unwrap_or(text.len());
            return Ok((text[..end].to_owned(), &text[end..]));
        }
    };
    let mut value = String::new();
    let mut depth = 1;
    // Both delimiters are one byte long.
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => value.extend(letters.next().map(|(_, escaped)| escaped)),
            _ if letter == close && depth == 1 => return Ok((value, &text[at + 1..])),
            _ => {
                depth = depth + usize::from(text.starts_with(letter)) - usize::from(letter == close);
                value.push(letter);
            }
        }
    }
    Err(format!("no closing {close} after {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Vec<Frame<'static, '_>>, String> {
        let mut frames = Frames::new("a.xyz", text, None);
        std::iter::from_fn(|| frames.next().map_err(|error| error.to_string()).transpose()).collect()
    }

    #[test]
    fn comments_are_split_into_pairs() {
        let text =
            r#" energy=-1.5 Name="a \"b\" = c" flag list={1 2 3} rows=[[1, 2], [3, 4]] spaced = 'x y' "a key"=7"#;
        let found = pairs(text).unwrap();
        let found: Vec<(&str, &str)> = found.iter().map(|pair| (pair.key.as_str(), pair.value.as_str())).collect();
        let expected = [
            ("energy", "-1.5"),
            ("Name", "a \"b\" = c"),
            ("flag", "T"),
            ("list", "1 2 3"),
            ("rows", "[1, 2], [3, 4]"),
            ("spaced", "x y"),
            ("a key", "7"),
        ];
        assert_eq!(found, expected);
        assert_eq!(pairs("  "), Ok(Vec::new()));
        assert!(pairs("energy=1 energy=2").unwrap_err().contains("key 'energy' a second time"));
        assert!(pairs("name=\"a").unwrap_err().contains("no closing \""));
        assert!(pairs("= 5").unwrap_err().contains("without a key"));
    }

    #[test]
    fn columns_are_found_by_the_properties() {
        let text = "\u{feff}2\nProperties=forces:R:3:pos:R:3:tag:L:1:species:S:1 pbc=\"F F F\" Lattice=\"1 0 0\"\r\n\
                    9 9 9 1 2 3 T C\n9 9 9 -1 2e-1 3 F H  \n\n1\nplain\nO 0 0 0\n\n";
        let frames = read(text).unwrap();
        assert_eq!(frames.len(), 2);
        assert_eq!((&frames[0].species[..], &frames[1].species[..]), (&["C", "H"][..], &["O"][..]));
        assert_eq!(frames[0].positions, [[1.0, 2.0, 3.0], [-1.0, 0.2, 3.0]]);
        assert_eq!((frames[0].forces.as_slice(), frames[1].forces.len()), (&[[9.0; 3]; 2][..], 0));
        assert_eq!(frames[0].line_of(1).error("a", "b").to_string(), "a.xyz, line 4: a, expected b");
        assert_eq!(frames[1].comment.error("a", "b").to_string(), "a.xyz, line 7: a, expected b");
    }

    #[test]
    fn forces_are_the_property_that_is_named() {
        let text = "1\nProperties=species:S:1:pos:R:3:REF_forces:R:3:velo:R:3\nH 0 0 0 1 2 3 4 5 6\n";
        let frame = |forces| Frames::new("a.xyz", text, forces).next().map(Option::unwrap);
        let unnamed = frame(None).unwrap();
        assert_eq!((unnamed.forces.len(), unnamed.unread), (0, vec!["REF_forces".to_owned(), "velo".to_owned()]));
        assert_eq!(frame(Some("REF_forces")).unwrap().forces, [[1.0, 2.0, 3.0]]);
        let error = frame(Some("dft")).err().unwrap().to_string();
        assert!(error.starts_with("a.xyz, line 2: no property dft in Properties="), "{error}");
    }

    #[test]
    fn periodic_axes_have_their_vectors() {
        let cell = |comment: &str| read(&format!("1\n{comment}\nH 0 0 0\n")).unwrap().remove(0).cell;
        let lattice = "Lattice=\"2 0 0 0 3 0 0 0 4\"";
        let (x, y, z) = ([2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 4.0]);
        assert_eq!(cell(lattice), Cell::new(&[x, y, z]));
        assert_eq!(cell(&format!("pbc=T {lattice}")), Cell::new(&[x, y, z]));
        assert_eq!(cell(&format!("{lattice} pbc=\"T F true\"")), Cell::new(&[x, z]));
        assert_eq!(cell("lattice=[[2, 0, 0], [0, 3, 0], [0, 0, 4]] pbc=[false, true, false]"), Cell::new(&[y]));
        // The vector of an axis that is not periodic is not used.
        assert_eq!(cell("Lattice=\"2 0 0 0 0 0 0 0 0\" pbc=\"1 0 0\""), Cell::new(&[x]));
        assert_eq!(cell(&format!("{lattice} pbc=\"F F F\"")), None);
        assert_eq!(cell("name=a"), None);
    }

    #[test]
    fn bad_frames_are_named_with_their_line() {
        for (text, expected) in [
            ("H 0 0 0\n", "a.xyz, line 1: 'H 0 0 0', expected the number of atoms"),
            ("0\n\n", "line 1: a frame of 0 atoms"),
            ("-1\n\n", "line 1: '-1'"),
            ("70000\n\n", "line 1: graph of this frame has more than 65535 nodes"),
            ("1\n", "line 1: the end of the file, expected a comment line"),
            ("2\n\nH 0 0 0\n", "line 3: the end of the file after 1 of 2 atoms"),
            (
                "1\n\nH 0 0 0\nH 0 0 1\n",
                "line 4: 'H 0 0 1', expected the number of atoms of a frame; if this is an atom",
            ),
            ("2\n\nH 0 0 0\n1\n\nH 0 0 0\n", "line 4: 1 columns, expected 4 as in Properties"),
            ("1\n\nH 0 0 NaN\n", "line 3: 'NaN', expected a finite coordinate"),
            ("1\n\nH inf 0 0\n", "line 3: 'inf'"),
            (
                "1\nProperties=species:S:1:pos:R:3:forces:R:3\nH 0 0 0 1 nan 0\n",
                "line 3: 'nan', expected a finite component of the force",
            ),
            ("1\nProperties=species:S:1:pos:R:3:Force:R:1\nH 0 0 0 1\n", "line 2: Force:R:1 in Properties"),
            ("1\nProperties=species:S:1:pos:Q:3\nH 0 0 0\n", "line 2: type 'Q' of property 'pos'"),
            (
                "1\nProperties=species:S:1:pos:R\nH 0 0 0\n",
                "line 2: Properties=species:S:1:pos:R, expected NAME:TYPE:COUNT",
            ),
            ("1\nProperties=species:S:1:pos:R:0\nH\n", "line 2: '0' columns of property 'pos'"),
            ("1\nProperties=species:S:1:pos:R:2\nH 0 0\n", "line 2: pos:R:2 in Properties"),
            ("1\nProperties=pos:R:3\n0 0 0\n", "expected species:S:1 and pos:R:3"),
            ("1\nname=\"a\nH 0 0 0\n", "line 2: no closing \""),
            ("1\nLattice=\"1 0 0 0 1 0 0 0\"\nH 0 0 0\n", "line 2: Lattice '1 0 0 0 1 0 0 0', expected nine"),
            ("1\nLattice=\"1 0 0 0 1 0 0 0 1 1\"\nH 0 0 0\n", "expected nine finite numbers"),
            ("1\nLattice=\"1 0 0 0 1 0 0 0 inf\"\nH 0 0 0\n", "expected nine finite numbers"),
            ("1\nLattice=\"1 0 0 0 x 1 0 0 0 1\"\nH 0 0 0\n", "expected nine finite numbers"),
            ("1\nLattice=\"1 0 0 0 1 0 1 1 0\"\nH 0 0 0\n", "do not lie in a plane"),
            ("1\npbc=\"F F T\"\nH 0 0 0\n", "line 2: no Lattice, expected a Lattice with the three vectors"),
            ("1\npbc=\"T F\"\nH 0 0 0\n", "line 2: pbc 'T F', expected T or F for each of three axes"),
            ("1\npbc=maybe\nH 0 0 0\n", "line 2: pbc 'maybe', expected T or F"),
        ] {
            let error = read(text).err().unwrap_or_default();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    proptest! {
        /// Text of any kind is read or refused, but never a panic.
        #[test]
        fn any_text_is_read_or_refused(text in "[0-3HC \n=\"'\\[\\]{}\\\\é:.-]{0,80}", comment in "\\PC{0,60}") {
            let _ = read(&text);
            let _ = pairs(&comment);
            let _ = read(&format!("1\n{comment}\nH 0 0 0\n"));
        }
    }
}
