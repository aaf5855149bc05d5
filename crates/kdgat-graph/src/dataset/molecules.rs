//! Reads conformations of molecules from `.npz` archives of NumPy arrays, in the layouts of rMD17 (Christensen & von Lilienfeld 2020) and
//! MD17 (Chmiela et al. 2017).
//!
//! | array | shape | |
//! |---|---|---|
//! | `nuclear_charges`, or `z` | `[atoms]`, or `[conformations, atoms]` with zeros after the last atom | atomic numbers |
//! | `coords`, or `R` | `[conformations, atoms, 3]` | positions in Å |
//! | `energies`, or `E` | `[conformations]` | kcal/mol, unless the settings name other arrays |
//! | `forces`, or `F` | as the positions; may be left out | kcal/mol/Å |

use std::path::Path;

use kdgat_base::npz::{Mismatch, Npz, NpzError};
use kdgat_torch::allocator;

use super::elements;
use super::error::{DatasetError, Origin, Place};
use super::feature_rows::{Cells, Column, Rows};
use super::graph_set::{Edges, GraphSet, PlacedGraphs, expect_few_nodes};
use super::radius::EdgeMaker;
use super::schema::{Kinds, SpaceSchema, Task, numbered};
use super::settings::{SETTINGS, Settings};
use super::source_files::{SHARE_OF_MEMORY, SourceFiles};
use super::space_set::{Misfit, SpaceMaker};
use super::targets::TargetCells;
use crate::{OfPaths, Split};

/// Names of each array, the preferred one first.
const CHARGES: [&str; 2] = ["nuclear_charges", "z"];
const POSITIONS: [&str; 2] = ["coords", "R"];
const ENERGIES: [&str; 2] = ["energies", "E"];
const FORCES: [&str; 2] = ["forces", "F"];
/// Unit of lengths in these layouts.
const LENGTH_UNIT: &str = "Å";
/// Unit of energies in these layouts.
const ENERGY_UNIT: &str = "kcal/mol";

/// True for an archive with atomic numbers and positions.
pub(super) fn is_molecules(path: &Path) -> bool {
    let is_npz = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz"));
    let has = |npz: &Npz, names: [&str; 2]| names.iter().any(|name| npz.has(name));
    is_npz && path.is_file() && Npz::open(path).is_ok_and(|npz| has(&npz, CHARGES) && has(&npz, POSITIONS))
}

/// Reads all archives of a folder, or the one file.
///
/// # Errors
/// A missing array, arrays of unequal lengths, a value that does not fit, or settings that do not; each names the file, the array and the
/// place in it.
pub(super) fn read(files: &SourceFiles) -> Result<GraphSet, DatasetError> {
    let settings = Settings::read(files)?;
    settings.expect_no_resample()?;
    settings.expect_no_points()?;
    // Edges only if they are asked for: networks in space make pairs of their own.
    let radius = if settings.wants_edges()? { settings.radius()? } else { None };
    let names: Vec<&String> =
        files.names().iter().filter(|name| files.path_of(name).is_some_and(|path| is_molecules(&path))).collect();
    let mut reader = Reader {
        settings: &settings,
        edges: radius.map(EdgeMaker::new),
        ids: Vec::new(),
        cells: Vec::new(),
        targets: Vec::new(),
        origins: Vec::new(),
        kinds: Vec::new(),
        forces: Vec::new(),
        pointers: vec![0],
        space: SpaceMaker::default(),
        splits: Vec::new(),
        notes: Vec::new(),
    };
    let splits = settings.splits_of(&names)?;
    for (at, name) in names.iter().enumerate() {
        let path = files.path_of(name).unwrap_or_default();
        let file = File { name, npz: Npz::open(&path).map_err(of_npz)? };
        reader.add(file, names.len() > 1)?;
        if let Some(splits) = &splits {
            reader.splits.resize(reader.ids.len(), splits[at]);
        }
    }
    let root = files.root().file_stem().map_or("graphs".into(), |name| name.to_string_lossy().into_owned());
    reader.finish(root)
}

fn of_npz(error: NpzError) -> DatasetError {
    match error {
        NpzError::Io { path, source, .. } => DatasetError::Io { path, source },
        NpzError::Invalid { path, place, found, expected } => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            DatasetError::File { file: format!("{name}{place}"), found, expected }
        }
    }
}

/// An open archive with its name.
struct File<'a> {
    name: &'a str,
    npz: Npz,
}

impl File<'_> {
    /// The array of the first of these names that is there.
    fn find(&self, names: [&'static str; 2]) -> Option<&'static str> {
        names.into_iter().find(|name| self.npz.has(name))
    }

    /// The array of one of these names.
    fn required(&self, names: [&'static str; 2]) -> Result<&'static str, DatasetError> {
        let missing = || {
            let found = format!("no array {} among {}", names[0], self.npz.names().join(", "));
            Origin { file: self.name, place: Place::File }
                .error(found, format!("an array {} or {}", names[0], names[1]))
        };
        self.find(names).ok_or_else(missing)
    }

    fn shape(&mut self, array: &str) -> Result<Vec<usize>, DatasetError> {
        self.npz.shape(array).map_err(of_npz)
    }

    fn fault(&self, array: &str, found: impl Into<String>, expected: impl Into<String>) -> DatasetError {
        of_npz(self.npz.fault(array, found, expected))
    }

    /// The values of an array of a known number of values.
    fn values(&mut self, array: &str, count: usize) -> Result<Vec<f64>, DatasetError> {
        let limit = allocator::stats().limit / SHARE_OF_MEMORY;
        if (count as u64).saturating_mul(8) > limit {
            let found = format!("{count} values");
            let expected = format!("at most {} MB, a quarter of the memory limit (--memory-limit)", limit / 1_000_000);
            return Err(self.fault(array, found, expected));
        }
        let mut values = self.npz.reserve(array, count).map_err(of_npz)?;
        let read = self.npz.each_float(array, |_, value| {
            values.push(value);
            Ok(())
        });
        read.map_err(of_npz).map(|()| values)
    }

    /// The atomic numbers, `[conformations, atoms]` with zeros after the last atom, or of all conformations, `[atoms]`.
    fn charges(&mut self, array: &str, count: usize) -> Result<Vec<u16>, DatasetError> {
        let mut charges = self.npz.reserve(array, count).map_err(of_npz)?;
        let read = self.npz.each_integer(array, |_, value| {
            let known =
                u16::try_from(value).ok().filter(|&number| number == 0 || elements::symbol_of(number).is_some());
            charges.push(known.ok_or_else(|| Mismatch::new(value.to_string(), "an atomic number from 1 to 118"))?);
            Ok(())
        });
        read.map_err(of_npz).map(|()| charges)
    }
}

/// The arrays of a file.
struct Arrays {
    conformations: usize,
    atoms: usize,
    charges_name: &'static str,
    charges: Vec<u16>,
    positions_name: &'static str,
    positions: Vec<f64>,
    forces_name: String,
    /// Empty without any.
    forces: Vec<f64>,
}

impl Arrays {
    fn read(file: &mut File<'_>, settings: &Settings) -> Result<Self, DatasetError> {
        let (charges_name, positions_name) = (file.required(CHARGES)?, file.required(POSITIONS)?);
        let shape = file.shape(positions_name)?;
        let &[conformations, atoms, 3] = &shape[..] else {
            return Err(file.fault(positions_name, format!("shape {shape:?}"), "[conformations, atoms, 3]"));
        };
        if conformations == 0 || atoms == 0 {
            return Err(file.fault(
                positions_name,
                format!("shape {shape:?}"),
                "at least one conformation of one atom",
            ));
        }
        expect_few_nodes(Origin { file: file.name, place: Place::File }, atoms, "of each conformation")?;
        let of_charges = file.shape(charges_name)?;
        if of_charges != [atoms] && of_charges != [conformations, atoms] {
            let expected = format!("[{atoms}] or [{conformations}, {atoms}], as {positions_name} has shape {shape:?}");
            return Err(file.fault(charges_name, format!("shape {of_charges:?}"), expected));
        }
        let forces_name = match &settings.forces {
            Some(name) if file.npz.has(name.get_ref()) => Some(name.get_ref().clone()),
            Some(name) => {
                let found = format!("`forces = \"{}\"`, but {} has no such array", name.get_ref(), file.name);
                let expected = format!("one of {}", file.npz.names().join(", "));
                return Err(settings.line_of(Some(name)).error(found, expected));
            }
            None => file.find(FORCES).map(str::to_owned),
        };
        if let Some(name) = &forces_name {
            let of_forces = file.shape(name)?;
            if of_forces != shape {
                return Err(file.fault(name, format!("shape {of_forces:?}"), format!("{shape:?} as {positions_name}")));
            }
        }
        let values = conformations * atoms * 3;
        let charges = file.charges(charges_name, of_charges.iter().product())?;
        let positions = file.values(positions_name, values)?;
        let forces = match &forces_name {
            Some(name) => file.values(name, values)?,
            None => Vec::new(),
        };
        let forces_name = forces_name.unwrap_or_default();
        Ok(Self { conformations, atoms, charges_name, charges, positions_name, positions, forces_name, forces })
    }

    /// The atomic numbers of a conformation, without the zeros after the last atom.
    fn charges_of(&self, file: &File<'_>, conformation: usize) -> Result<&[u16], DatasetError> {
        let row = if self.charges.len() == self.atoms { 0 } else { conformation };
        let all = &self.charges[row * self.atoms..(row + 1) * self.atoms];
        let atoms = all.iter().take_while(|&&number| number > 0).count();
        if atoms == 0 || all[atoms..].iter().any(|&number| number > 0) {
            let place = match self.charges.len() == self.atoms {
                true => format!("{}[{atoms}]", self.charges_name),
                false => format!("{}[{row}, {atoms}]", self.charges_name),
            };
            return Err(file.fault(&place, "atomic number 0 before an atom", "zeros after the last atom only"));
        }
        Ok(&all[..atoms])
    }

    /// The vectors of the first `atoms` atoms of a conformation.
    fn vectors(
        &self,
        file: &File<'_>,
        (array, values): (&str, &[f64]),
        conformation: usize,
        atoms: usize,
    ) -> Result<Vec<[f64; 3]>, DatasetError> {
        let first = conformation * self.atoms * 3;
        let (vectors, _) = values[first..first + atoms * 3].as_chunks::<3>();
        for (atom, vector) in vectors.iter().enumerate() {
            if let Some(axis) = vector.iter().position(|&value| !(value as f32).is_finite()) {
                let place = format!("{array}[{conformation}, {atom}, {axis}]");
                return Err(file.fault(&place, vector[axis].to_string(), "a finite number"));
            }
        }
        Ok(vectors.to_vec())
    }
}

/// Collects the conformations.
struct Reader<'a> {
    settings: &'a Settings,
    edges: Option<EdgeMaker>,
    ids: Vec<String>,
    /// Names of the targets, from the first file.
    targets: Vec<String>,
    /// For each target, the text of each conformation.
    cells: Vec<Vec<String>>,
    origins: Vec<Origin<'a>>,
    /// Atomic number of each atom.
    kinds: Vec<u16>,
    forces: Vec<f32>,
    pointers: Vec<u64>,
    space: SpaceMaker,
    /// The set of each conformation, if the settings assign files.
    splits: Vec<Split>,
    notes: Vec<String>,
}

impl<'a> Reader<'a> {
    fn add(&mut self, mut file: File<'a>, is_one_of_several: bool) -> Result<(), DatasetError> {
        let arrays = Arrays::read(&mut file, self.settings)?;
        self.add_targets(&mut file, &arrays)?;
        let has_forces = !arrays.forces.is_empty();
        if !self.ids.is_empty() && has_forces == self.forces.is_empty() {
            let which = if has_forces {
                "forces, which the first file does not have"
            } else {
                "no forces, which the first file has"
            };
            let origin = Origin { file: file.name, place: Place::File };
            return Err(origin.error(which, "forces in all files, or in none"));
        }
        for conformation in 0..arrays.conformations {
            let charges = arrays.charges_of(&file, conformation)?;
            let id = match is_one_of_several {
                true => format!("{}:{}", file.name, conformation + 1),
                false => (conformation + 1).to_string(),
            };
            let named = (arrays.positions_name, &arrays.positions[..]);
            let positions = arrays.vectors(&file, named, conformation, charges.len())?;
            let place = |atom: usize| format!("{}[{conformation}, {atom}]", arrays.positions_name);
            if let Some(Misfit { node, found, expected }) = self.space.add(&positions, None, &id) {
                return Err(file.fault(&place(node.unwrap_or(0)), found, expected));
            }
            if let Some(edges) = &mut self.edges {
                let origin = Origin { file: file.name, place: Place::File };
                edges.add(&positions, None).map_err(|reason| edges.error(reason, &id, origin))?;
            }
            if has_forces {
                let named = (arrays.forces_name.as_str(), &arrays.forces[..]);
                let forces = arrays.vectors(&file, named, conformation, charges.len())?;
                self.forces.extend(forces.iter().flatten().map(|&value| value as f32));
            }
            self.kinds.extend_from_slice(charges);
            self.pointers.push(self.kinds.len() as u64);
            self.origins.push(Origin { file: file.name, place: Place::File });
            self.ids.push(id);
        }
        let is_read = |name: &&String| {
            [arrays.charges_name, arrays.positions_name, &arrays.forces_name].contains(&name.as_str())
                || self.targets.contains(name)
        };
        let unread: Vec<&str> = file.npz.names().iter().filter(|name| !is_read(name)).map(String::as_str).collect();
        if !unread.is_empty() {
            self.notes.push(format!("{}: not read: {}", file.name, unread.join(", ")));
        }
        Ok(())
    }

    /// Adds the targets: the arrays of the settings, or the energies.
    fn add_targets(&mut self, file: &mut File<'_>, arrays: &Arrays) -> Result<(), DatasetError> {
        if self.targets.is_empty() {
            self.targets = match &self.settings.targets {
                Some(names) => names.clone(),
                None => vec![file.required(ENERGIES)?.to_owned()],
            };
            self.cells = vec![Vec::new(); self.targets.len()];
        }
        for (name, cells) in self.targets.iter().zip(&mut self.cells) {
            let shape = file.shape(name)?;
            if shape != [arrays.conformations] && shape != [arrays.conformations, 1] {
                let expected =
                    format!("[{}], one for each conformation in {}", arrays.conformations, arrays.positions_name);
                return Err(file.fault(name, format!("shape {shape:?}"), expected));
            }
            cells.extend(file.values(name, arrays.conformations)?.iter().map(f64::to_string));
        }
        Ok(())
    }

    fn finish(self, root: String) -> Result<GraphSet, DatasetError> {
        let settings = self.settings;
        let header = self.origins.first().copied().unwrap_or(Origin { file: SETTINGS, place: Place::File });
        let symbol = |&number: &u16| elements::symbol_of(number).unwrap_or_default().to_owned();
        let symbols: Vec<String> = self.kinds.iter().map(symbol).collect();
        let (values, of_rows) = numbered(&symbols);
        let elements = Column {
            name: "element".to_owned(),
            cells: Cells::Numbered { values, of_rows },
            origin: header,
            remedy: "",
        };
        let nodes = Rows::new(vec![elements], self.kinds.len())?;
        // Energies that happen to be integers are no classes.
        let default_task = settings.targets.is_none().then_some(Task::Regression);
        let task = settings.graph_task()?.or(default_task);
        let splits = (!self.splits.is_empty()).then_some(self.splits);
        let cells = TargetCells { names: self.targets, cells: self.cells, splits, origins: self.origins, header };
        let targets = cells.parse(task)?;
        let edges = self.edges.map_or_else(|| Edges::none(self.ids.len()), EdgeMaker::finish);
        let schema = SpaceSchema {
            kinds: Kinds::Elements,
            forces: !self.forces.is_empty(),
            periodic: false,
            rooted: false,
            length_unit: settings.length_unit.clone().or_else(|| Some(LENGTH_UNIT.to_owned())),
            energy_unit: settings.energy_unit.clone().or_else(|| Some(ENERGY_UNIT.to_owned())),
            unfit: None,
            paths: OfPaths::default(),
        };
        let (places, position_hashes) = self.space.finish(self.kinds, self.forces);
        let name = settings.name.clone().unwrap_or(root);
        let (ids, pointers, notes) = (self.ids, self.pointers, self.notes);
        Ok(PlacedGraphs { ids, pointers, nodes, edges, targets, schema, places, position_hashes, notes }.into_set(name))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::super::{Summary, is_dataset, read};
    use super::*;
    use crate::Split;

    /// Type, shape and bytes of an array.
    type Array = (&'static str, &'static str, Vec<usize>, Vec<u8>);

    fn floats(name: &'static str, shape: &[usize], values: &[f64]) -> Array {
        (name, "<f8", shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn bytes(name: &'static str, shape: &[usize], values: &[u8]) -> Array {
        (name, "|u1", shape.to_vec(), values.to_vec())
    }

    fn write(path: &Path, arrays: &[Array]) {
        let mut writer = ZipWriter::new(std::fs::File::create(path).unwrap());
        for (name, kind, shape, content) in arrays {
            writer.start_file(format!("{name}.npy"), SimpleFileOptions::default()).unwrap();
            let sizes: String = shape.iter().map(|size| format!("{size},")).collect();
            let text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({sizes}), }}\n");
            writer.write_all(b"\x93NUMPY\x01\x00").unwrap();
            writer.write_all(&(text.len() as u16).to_le_bytes()).unwrap();
            writer.write_all(text.as_bytes()).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap();
    }

    /// Two conformations of OH in the layout of rMD17.
    fn arrays() -> Vec<Array> {
        vec![
            bytes("nuclear_charges", &[2], &[8, 1]),
            floats("coords", &[2, 2, 3], &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.25, 0.0, 0.0]),
            floats("energies", &[2], &[-47.5, -46.25]),
            floats("forces", &[2, 2, 3], &[3.0, 0.0, 0.0, -3.0, 0.0, 0.0, 1.0, 0.5, 0.0, -1.0, -0.5, 0.0]),
            floats("old_energies", &[2], &[1.0, 2.0]),
        ]
    }

    fn read_arrays(arrays: &[Array]) -> Result<GraphSet, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oh.npz");
        write(&path, arrays);
        read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn both_layouts_are_read() {
        let renamed = arrays().into_iter().map(|(name, kind, shape, content)| {
            let name = match name {
                "nuclear_charges" => "z",
                "coords" => "R",
                "energies" => "E",
                "forces" => "F",
                other => other,
            };
            // MD17 has its energies in a column.
            let shape = if name == "E" { vec![2, 1] } else { shape };
            (name, kind, shape, content)
        });
        for arrays in [arrays(), renamed.collect()] {
            let set = read_arrays(&arrays).unwrap();
            assert_eq!((set.num_graphs(), set.graph_targets.as_slice()), (2, &[-47.5, -46.25][..]));
            let space = set.space.as_ref().unwrap();
            assert_eq!((space.kinds.as_slice(), space.forces[6..].len()), (&[8, 1, 8, 1][..], 6));
            assert_eq!(space.positions[9..], [1.25, 0.0, 0.0]);
            assert_eq!(set.schema.node_features[0].values.as_deref(), Some(&["H".to_owned(), "O".to_owned()][..]));
            assert_eq!(set.node_features[..4], [0.0, 1.0, 1.0, 0.0]);
            assert_eq!(set.notes, ["oh.npz: not read: old_energies"]);
            let schema = set.schema.space.as_ref().unwrap();
            assert_eq!((schema.length_unit.as_deref(), schema.energy_unit.as_deref()), (Some("Å"), Some("kcal/mol")));
            let summary = Summary::of(&set, 1.1).space.unwrap();
            assert_eq!(summary.kinds, [("H".to_owned(), 2), ("O".to_owned(), 2)]);
            assert_eq!(summary.neighbours.unwrap().pairs, [0.0, 1.0, 2.0]);
            assert_eq!(summary.forces.map(|[least, _, most]| (least, most)), Some((1.25_f64.sqrt(), 3.0)));
        }
    }

    #[test]
    fn settings_choose_targets_edges_and_test_files() {
        let folder = tempfile::tempdir().unwrap();
        let with_settings = |settings: &str| {
            std::fs::write(folder.path().join(SETTINGS), settings).unwrap();
            read(folder.path())
        };
        write(&folder.path().join("a.npz"), &arrays());
        write(&folder.path().join("b.npz"), &arrays());
        assert!(is_dataset(folder.path()));
        let set = with_settings(
            "targets = [\"old_energies\"]\ntask = \"regression\"\ncutoff = 1.1\ntest_files = [\"b.npz\"]\n",
        )
        .unwrap();
        assert_eq!(set.splits, Some(vec![Split::Train, Split::Train, Split::Test, Split::Test]));
        assert_eq!(
            (set.graph_targets.as_slice(), set.edge_pointers.as_slice()),
            (&[1.0, 2.0, 1.0, 2.0][..], &[0, 2, 2, 4, 4][..])
        );
        assert_eq!(set.graph_ids[2], "b.npz:1");
        for (settings, expected) in [
            (
                "\ntest_files = [\"c.npz\"]",
                "kdgat-graphs.toml, line 2: `test_files` with 'c.npz', expected names among a.npz, b.npz",
            ),
            ("test_files = [\"a.npz\", \"b.npz\"]", "line 1: `test_files` that leave no file"),
            ("split = \"s\"\ntest_files = [\"a.npz\"]", "line 2: `test_files` beside `split`"),
            (
                "forces = \"dft\"",
                "line 1: `forces = \"dft\"`, but a.npz has no such array, expected one of coords, energies",
            ),
            ("targets = [\"gap\"]", "no array gap among coords, energies"),
            ("targets = [\"coords\"]", "a.npz, array coords: shape [2, 2, 3], expected [2], one for each conformation"),
        ] {
            let error = with_settings(settings).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected), "{settings}: {error}");
        }
    }

    #[test]
    fn bad_arrays_are_named_with_the_place() {
        let nan = f64::NAN;
        for (replaced, expected) in [
            (
                floats("coords", &[2, 3, 2], &[0.0; 12]),
                "oh.npz, array coords: shape [2, 3, 2], expected [conformations, atoms, 3]",
            ),
            (
                bytes("nuclear_charges", &[3], &[8, 1, 1]),
                "array nuclear_charges: shape [3], expected [2] or [2, 2], as coords has shape [2, 2, 3]",
            ),
            (
                bytes("nuclear_charges", &[2], &[8, 119]),
                "array nuclear_charges[1]: 119, expected an atomic number from 1 to 118",
            ),
            (bytes("nuclear_charges", &[2], &[0, 1]), "array nuclear_charges[0]: atomic number 0 before an atom"),
            (
                floats("energies", &[3], &[0.0; 3]),
                "array energies: shape [3], expected [2], one for each conformation in coords",
            ),
            (floats("forces", &[1, 2, 3], &[0.0; 6]), "array forces: shape [1, 2, 3], expected [2, 2, 3] as coords"),
            (
                floats("forces", &[2, 2, 3], &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, nan, 0.0]),
                "array forces[1, 1, 1]: NaN, expected a finite number",
            ),
            (
                floats("coords", &[2, 2, 3], &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, f64::INFINITY, 0.0, 1.0, 0.0, 0.0]),
                "array coords[1, 0, 1]: inf, expected a finite number",
            ),
            (
                floats("coords", &[2, 2, 3], &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.5, 0.0, 0.0]),
                "array coords[1, 1]: nodes 1 and 2 of graph 2 in one place (distance 0.0e0)",
            ),
            (floats("coords", &[0, 2, 3], &[]), "array coords: shape [0, 2, 3], expected at least one conformation"),
        ] {
            let all: Vec<Array> = arrays()
                .into_iter()
                .map(|array| if array.0 == replaced.0 { replaced.clone() } else { array })
                .collect();
            let error = read_arrays(&all).err().unwrap_or_default();
            assert!(error.contains(expected), "{error} lacks {expected}");
        }
        let without =
            |name: &str| read_arrays(&arrays().into_iter().filter(|array| array.0 != name).collect::<Vec<_>>());
        assert!(
            without("energies").is_err_and(|error| error.contains("oh.npz: no array energies among coords, forces"))
        );
        assert!(without("forces").is_ok_and(|set| set.space.is_some_and(|space| space.forces.is_empty())));
        // Conformations of different molecules are padded with zeros.
        let padded = [bytes("nuclear_charges", &[2, 2], &[8, 1, 2, 0])].into_iter().chain(arrays().into_iter().skip(1));
        let set = read_arrays(&padded.collect::<Vec<_>>()).unwrap();
        assert_eq!((set.node_pointers.as_slice(), set.space.unwrap().kinds), (&[0, 2, 3][..], vec![8, 1, 2]));
    }
}
