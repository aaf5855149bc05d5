//! Reads files of the extended XYZ format: each frame is a graph of atoms with positions, and with edges between atoms within a cutoff.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::elements;
use super::error::{DatasetError, Origin, Place};
use super::feature_rows::{Cells, Column, Rows};
use super::graph_set::{Edges, GraphSet, MOST_MADE_EDGES, PlacedGraphs};
use super::radius::{EdgeMaker, Radius};
use super::schema::{SpaceSchema, Task, numbered};
use super::settings::{SETTINGS, Settings};
use super::source_files::SourceFiles;
use super::space_set::{Misfit, SpaceMaker, kinds_of};
use super::targets::{TargetCells, split_of};
use super::xyz_frame::{Frame, Frames};
use crate::space::NoPairs;
use crate::{OfPaths, Split};

/// Cutoff unless one is set, in Å.
const DEFAULT_CUTOFF: f64 = 5.0;
/// Key of the target unless one is set.
const DEFAULT_TARGET: &str = "energy";
/// Key of the split unless one is set.
const DEFAULT_SPLIT: &str = "split";

/// Most species that a note lists.
const MOST_RESPELLED: usize = 8;

/// True if a file is one of this format, by its ending.
pub(super) fn is_xyz(file: &str) -> bool {
    let ending = file.rsplit_once('.').map_or("", |(_, ending)| ending);
    ending.eq_ignore_ascii_case("xyz") || ending.eq_ignore_ascii_case("extxyz")
}

/// Reads a dataset of this format.
///
/// # Errors
/// A line that does not fit, with its file and number; or settings that do not.
pub(super) fn read(files: &SourceFiles) -> Result<GraphSet, DatasetError> {
    let settings = Settings::read(files)?;
    settings.expect_no_resample()?;
    settings.expect_no_points()?;
    let names: Vec<&String> = files.names().iter().filter(|name| is_xyz(name)).collect();
    let radius = settings.wants_edges()?.then(|| settings.radius_or(DEFAULT_CUTOFF)).transpose()?;
    let forces = settings.forces.as_ref().map(|forces| forces.get_ref().as_str());
    let mut reader = Reader::new(&settings, radius, files.is_single());
    let splits = settings.splits_of(&names)?;
    for (file, name) in names.iter().enumerate() {
        reader.split_of_file = splits.as_ref().map(|splits| splits[file]);
        let bytes = files.read(name)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut frames = Frames::new(name, &text, forces);
        let mut number = 0;
        while let Some(frame) = frames.next()? {
            number += 1;
            let id = if names.len() == 1 { number.to_string() } else { format!("{name}:{number}") };
            reader.add(&frame, id)?;
        }
        if number == 0 {
            let origin = Origin { file: name, place: Place::File };
            return Err(origin.error("no frame", "a number of atoms, a comment line, and a line for each atom"));
        }
    }
    let root = files.root().file_stem().map_or("graphs".into(), |name| name.to_string_lossy().into_owned());
    reader.finish(root)
}

/// Collects the frames.
struct Reader<'a> {
    settings: &'a Settings,
    /// True for a file without a folder of its own, and so without settings.
    is_single: bool,
    /// Keys of the targets.
    targets: Vec<String>,
    /// Key of the split, if there is one.
    split: Option<String>,
    /// The set of the current file's frames, if the settings assign files.
    split_of_file: Option<Split>,
    ids: Vec<String>,
    /// For each target, the text of each frame.
    cells: Vec<Vec<String>>,
    splits: Vec<Split>,
    origins: Vec<Origin<'a>>,
    species: Species,
    /// Number of each atom's species.
    atoms: Vec<u32>,
    pointers: Vec<u64>,
    /// `None` if no edges are made.
    edges: Option<EdgeMaker>,
    space: SpaceMaker,
    /// Force on each atom; empty without any.
    forces: Vec<f32>,
    /// Names of what frames have and nothing reads.
    unread: BTreeSet<String>,
    notes: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(settings: &'a Settings, radius: Option<Radius>, is_single: bool) -> Self {
        Self {
            settings,
            is_single,
            targets: Vec::new(),
            split: None,
            split_of_file: None,
            ids: Vec::new(),
            cells: Vec::new(),
            splits: Vec::new(),
            origins: Vec::new(),
            species: Species::default(),
            atoms: Vec::new(),
            pointers: vec![0],
            edges: radius.map(EdgeMaker::new),
            space: SpaceMaker::default(),
            forces: Vec::new(),
            unread: BTreeSet::new(),
            notes: Vec::new(),
        }
    }

    fn add(&mut self, frame: &Frame<'a, '_>, id: String) -> Result<(), DatasetError> {
        if self.ids.is_empty() {
            self.choose_keys(frame)?;
        }
        for (cells, key) in self.cells.iter_mut().zip(&self.targets) {
            cells.push(required(frame, key)?.to_owned());
        }
        match &self.split {
            _ if self.split_of_file.is_some() => self.splits.extend(self.split_of_file),
            Some(key) => {
                let text = required(frame, key)?;
                let unknown = || frame.comment.error(format!("{key} '{text}'"), "train, validation or test");
                self.splits.push(split_of(text).ok_or_else(unknown)?);
            }
            None if frame.pair(DEFAULT_SPLIT).is_some() && self.settings.split.is_none() => {
                let found = format!("a key '{DEFAULT_SPLIT}', which the first frame does not have");
                return Err(frame.comment.error(found, "it in all frames, or in none"));
            }
            None => {}
        }
        let species = &mut self.species;
        self.atoms.extend(frame.species.iter().map(|name| species.number(name)));
        self.pointers.push(self.atoms.len() as u64);
        self.add_positions(frame, &id)?;
        self.origins.push(frame.comment);
        self.ids.push(id);
        Ok(())
    }

    /// Adds the positions, the forces, and the edges.
    fn add_positions(&mut self, frame: &Frame<'a, '_>, id: &str) -> Result<(), DatasetError> {
        let cell = frame.cell.as_ref();
        if let Some(Misfit { node, found, expected }) = self.space.add(&frame.positions, cell, id) {
            let origin = node.map_or(frame.comment, |atom| frame.line_of(atom));
            return Err(origin.error(found, expected));
        }
        let has_forces = !frame.forces.is_empty();
        if !self.ids.is_empty() && has_forces == self.forces.is_empty() {
            let found = if has_forces {
                "forces, which the first frame does not have"
            } else {
                "no forces, which the first frame has"
            };
            return Err(frame.comment.error(found, "forces in all frames, or in none"));
        }
        self.forces.extend(frame.forces.iter().flatten());
        let is_stress = |key: &str| ["stress", "virial"].iter().any(|name| key.to_ascii_lowercase().contains(name));
        self.unread.extend(frame.pairs.iter().map(|pair| pair.key.clone()).filter(|key| is_stress(key)));
        self.unread.extend(frame.unread.iter().filter(|name| name.to_ascii_lowercase().contains("force")).cloned());
        let Some(edges) = &mut self.edges else { return Ok(()) };
        match edges.add(&frame.positions, cell) {
            Ok(()) => Ok(()),
            // Nobody has asked for this cutoff.
            Err(NoPairs::TooMany) if !self.settings.has_cutoff() => {
                self.notes.push(format!(
                    "no edges are made: graph {id} has more than {MOST_MADE_EDGES} within the default cutoff of {DEFAULT_CUTOFF}; networks in \
                     space make pairs of their own, for others set `cutoff` in {SETTINGS}"
                ));
                self.edges = None;
                Ok(())
            }
            Err(reason) => Err(edges.error(reason, id, frame.comment)),
        }
    }

    /// Notes on what is not read.
    fn unread(&self) -> Option<String> {
        let names: Vec<&str> = self.unread.iter().map(String::as_str).collect();
        let force = names.iter().find(|name| name.to_ascii_lowercase().contains("force"));
        let advice = force
            .map_or(String::new(), |name| format!("; to read forces there, set `forces = \"{name}\"` in {SETTINGS}"));
        (!names.is_empty()).then(|| format!("not read: {}{advice}", names.join(", ")))
    }

    /// Chooses the keys of targets and split, by the settings or else by the first frame.
    fn choose_keys(&mut self, frame: &Frame<'_, '_>) -> Result<(), DatasetError> {
        let default_target = frame.pair_in_any_case(DEFAULT_TARGET).map(|pair| pair.key.clone());
        self.targets = self.settings.targets.clone().unwrap_or_else(|| default_target.into_iter().collect());
        if self.targets.is_empty() {
            let targets = format!("`targets = [\"KEY\"]` in {SETTINGS}");
            let expected = match self.is_single {
                true => format!(
                    "`{DEFAULT_TARGET}`; for another key, put the file into a folder with {targets} and name the folder"
                ),
                false => format!("`{DEFAULT_TARGET}`, or {targets} beside the file"),
            };
            return Err(frame
                .comment
                .error(format!("no target among the numeric keys ({})", numeric(frame)), expected));
        }
        self.cells = vec![Vec::new(); self.targets.len()];
        let default_split = frame.pair(DEFAULT_SPLIT).map(|pair| pair.key.clone());
        self.split = self.settings.split.clone().or(default_split);
        Ok(())
    }

    fn finish(self, root: String) -> Result<GraphSet, DatasetError> {
        let header = self.origins.first().copied().unwrap_or(Origin { file: SETTINGS, place: Place::File });
        let notes = [self.species.notes(), self.notes.clone(), self.unread().into_iter().collect()].concat();
        let (kinds, of_atoms) = kinds_of(&self.species.names, self.atoms.iter().copied());
        let (species, numbers) = numbered(&self.species.names);
        let of_rows = self.atoms.iter().map(|&atom| numbers[atom as usize]).collect();
        let species = Column {
            name: "species".to_owned(),
            cells: Cells::Numbered { values: species, of_rows },
            origin: header,
            remedy: "write the elements as species, without numbers of atoms",
        };
        let nodes = Rows::new(vec![species], self.atoms.len())?;
        // Energies that happen to be integers are no classes.
        let default_task = self.settings.targets.is_none().then_some(Task::Regression);
        let Self { targets: names, cells, origins, settings, .. } = self;
        let has_splits = self.split.is_some() || self.split_of_file.is_some();
        let splits = has_splits.then_some(self.splits);
        let task = settings.graph_task()?.or(default_task);
        let targets = TargetCells { names, cells, splits, origins, header }.parse(task)?;
        let edges = self.edges.map_or_else(|| Edges::none(self.ids.len()), EdgeMaker::finish);
        let schema = SpaceSchema {
            kinds,
            forces: !self.forces.is_empty(),
            periodic: self.space.is_periodic(),
            rooted: false,
            length_unit: settings.length_unit.clone(),
            energy_unit: settings.energy_unit.clone(),
            unfit: None,
            paths: OfPaths::default(),
        };
        let (places, position_hashes) = self.space.finish(of_atoms, self.forces);
        let name = settings.name.clone().unwrap_or(root);
        let (ids, pointers) = (self.ids, self.pointers);
        Ok(PlacedGraphs { ids, pointers, nodes, edges, targets, schema, places, position_hashes, notes }.into_set(name))
    }
}

/// The value of a key that every frame must have.
fn required<'a>(frame: &'a Frame<'_, '_>, key: &str) -> Result<&'a str, DatasetError> {
    let missing = || {
        let expected = "the key in every frame, or other `targets` or `split` in kdgat-graphs.toml";
        frame.comment.error(format!("no key '{key}' (numeric keys: {})", numeric(frame)), expected)
    };
    frame.pair(key).map(|pair| pair.value.as_str()).ok_or_else(missing)
}

/// The keys with numbers, for messages.
fn numeric(frame: &Frame<'_, '_>) -> String {
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    let keys = frame.pairs.iter().filter(|pair| is_number(&pair.value)).map(|pair| pair.key.as_str());
    let keys = keys.collect::<Vec<_>>().join(", ");
    if keys.is_empty() { "none".to_owned() } else { keys }
}

/// The species met so far.
#[derive(Default)]
struct Species {
    names: Vec<String>,
    /// The number of each text.
    numbers: HashMap<String, u32>,
    /// Texts in another case than that of their element, with the element.
    respelled: BTreeMap<String, &'static str>,
}

impl Species {
    /// The number of a species; a new one follows the others. Upper and lower case of an element are the same.
    fn number(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let element = elements::symbol(text);
        if let Some(element) = element.filter(|element| *element != text) {
            self.respelled.insert(text.to_owned(), element);
        }
        let name = element.unwrap_or(text);
        let known = self.names.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        // There are no more species than atoms, which are numbered in 32 bits.
        self.numbers.insert(text.to_owned(), number as u32);
        number as u32
    }

    /// A note on the species that were written in another case.
    fn notes(&self) -> Vec<String> {
        let respelled =
            self.respelled.iter().take(MOST_RESPELLED).map(|(text, element)| format!("{text} as {element}"));
        match self.respelled.is_empty() {
            true => Vec::new(),
            false => vec![format!("species are read as elements: {}", respelled.collect::<Vec<_>>().join(", "))],
        }
    }
}
