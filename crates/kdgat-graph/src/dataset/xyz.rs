//! Reads files of the extended XYZ format: each frame is a graph of atoms, with edges between atoms within a cutoff.

use std::collections::{BTreeMap, HashMap};

use super::elements;
use super::error::{DatasetError, Origin, Place};
use super::feature_rows::{Cells, Column, Rows};
use super::graph_set::GraphSet;
use super::radius::{EdgeMaker, Radius};
use super::schema::{Level, Schema, Task, numbered};
use super::settings::{SETTINGS, Settings};
use super::source_files::SourceFiles;
use super::targets::{TargetCells, split_of};
use super::xyz_frame::{Frame, Frames};
use crate::Split;

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
    let names: Vec<&String> = files.names().iter().filter(|name| is_xyz(name)).collect();
    let mut reader = Reader::new(&settings, settings.radius_or(DEFAULT_CUTOFF)?, files.is_single());
    for name in &names {
        let bytes = files.read(name)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut frames = Frames::new(name, &text);
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
    ids: Vec<String>,
    /// For each target, the text of each frame.
    cells: Vec<Vec<String>>,
    splits: Vec<Split>,
    origins: Vec<Origin<'a>>,
    species: Species,
    /// Number of each atom's species.
    atoms: Vec<u32>,
    pointers: Vec<u64>,
    edges: EdgeMaker,
}

impl<'a> Reader<'a> {
    fn new(settings: &'a Settings, radius: Radius, is_single: bool) -> Self {
        Self {
            settings,
            is_single,
            targets: Vec::new(),
            split: None,
            ids: Vec::new(),
            cells: Vec::new(),
            splits: Vec::new(),
            origins: Vec::new(),
            species: Species::default(),
            atoms: Vec::new(),
            pointers: vec![0],
            edges: EdgeMaker::new(radius),
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
        self.edges.add(&frame.positions, frame.cell.as_ref(), &id, frame.comment)?;
        self.origins.push(frame.comment);
        self.ids.push(id);
        Ok(())
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
        let notes = self.species.notes();
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
        let Self { targets: names, cells, origins, .. } = self;
        let splits = self.split.map(|_| self.splits);
        let task = self.settings.graph_task()?.or(default_task);
        let targets = TargetCells { names, cells, splits, origins, header }.parse(task)?;
        let edges = self.edges.finish();
        Ok(GraphSet {
            name: self.settings.name.clone().unwrap_or(root),
            schema: Schema {
                task: targets.task,
                level: Level::Graph,
                targets: targets.targets,
                node_features: nodes.features,
                edge_features: edges.features,
            },
            graph_ids: self.ids,
            node_ids: Vec::new(),
            without_targets: Vec::new(),
            notes: [notes, targets.notes].concat(),
            node_features: nodes.values,
            node_pointers: self.pointers,
            edge_features: edges.values,
            edge_pointers: edges.pointers,
            sources: edges.sources,
            targets: edges.targets,
            graph_targets: targets.values,
            node_targets: Vec::new(),
            splits: targets.splits,
            left_out: edges.left_out,
            position_hashes: edges.position_hashes,
        })
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
