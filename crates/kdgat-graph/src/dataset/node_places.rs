//! Positions, forces and kinds of the rows of the table of nodes.

use std::collections::HashMap;

use super::error::{DatasetError, Origin, Place};
use super::schema::SpaceSchema;
use super::settings::Settings;
use super::space_set::{SpaceMaker, SpaceSet, kinds_of};
use super::table_file::{Row, TableFile};
use crate::OfPaths;

/// Columns of positions.
pub(super) const POSITION: [&str; 3] = ["pos_x", "pos_y", "pos_z"];
/// Name of the forces unless one is set.
const FORCES: &str = "f";
/// Categorical columns that are kinds, if they are named so.
const KINDS: [&str; 8] = ["c_element", "c_species", "c_symbol", "c_atomic_number", "c_z", "c_Z", "c_atom", "c_kind"];

/// Collects positions row by row.
pub(super) struct PlaceReader {
    positions: [usize; 3],
    forces: Option<[usize; 3]>,
    /// The column of kinds, if one is set.
    kinds: Option<usize>,
    read: NodePlaces,
    texts: Texts,
}

/// Positions of all rows, and what belongs to them.
pub(super) struct NodePlaces {
    file: String,
    /// Position of each row.
    pub positions: Vec<[f64; 3]>,
    /// Force of each row; empty without any.
    forces: Vec<[f32; 3]>,
    /// The place of each row in the file.
    places: Vec<Place>,
    /// Texts of kinds, if a column has them.
    kinds: Option<Texts>,
    /// Name of that column.
    pub kinds_column: Option<String>,
}

/// Distinct texts, and the number of each row's.
#[derive(Default)]
struct Texts {
    distinct: Vec<String>,
    numbers: HashMap<String, u32>,
    of_rows: Vec<u32>,
}

impl Texts {
    fn push(&mut self, text: &str) {
        let next = self.distinct.len() as u32;
        let number = match self.numbers.get(text) {
            Some(&number) => number,
            None => {
                self.numbers.insert(text.to_owned(), next);
                self.distinct.push(text.to_owned());
                next
            }
        };
        self.of_rows.push(number);
    }

    fn of(cells: &[String]) -> Self {
        let mut texts = Self::default();
        cells.iter().for_each(|text| texts.push(text));
        texts
    }

    fn are_symbols(&self) -> bool {
        self.distinct.iter().all(|text| super::elements::symbol(text) == Some(text.as_str()))
    }
}

impl PlaceReader {
    /// A reader of the columns of positions; `None` without them, or if one of them is among the targets.
    ///
    /// # Errors
    /// Some of three columns, or settings that name a column that is not there.
    pub fn new(table: &TableFile, targets: &[usize], settings: &Settings) -> Result<Option<Self>, DatasetError> {
        let found = vector(table, POSITION.map(str::to_owned))?;
        if let Some(column) = found.into_iter().flatten().find(|column| targets.contains(column)) {
            return match settings.has_cutoff() {
                true => {
                    let found = format!("a target {}, from which `cutoff` makes the edges", table.columns()[column]);
                    let expected = "edges that do not tell the target: list them in edges.csv, without `cutoff`";
                    Err(settings.cutoff_origin().error(found, expected))
                }
                false => Ok(None),
            };
        }
        let kinds = settings.kinds.as_ref().map(|kinds| {
            let missing = || {
                let found = format!("`kinds = \"{}\"`, but {} has no such column", kinds.get_ref(), table.file());
                settings.line_of(Some(kinds)).error(found, format!("one of {}", table.columns().join(", ")))
            };
            let column = table.find(kinds.get_ref()).ok_or_else(missing)?;
            match targets.contains(&column) {
                false => Ok(column),
                true => {
                    let found = format!("`kinds = \"{}\"`, which is a target", kinds.get_ref());
                    Err(settings.line_of(Some(kinds)).error(found, "a column that does not tell the target"))
                }
            }
        });
        let name = settings.forces.as_ref().map_or(FORCES, |name| name.get_ref());
        let forces = vector(table, ["x", "y", "z"].map(|axis| format!("{name}_{axis}")))?;
        if let (Some(name), None) = (&settings.forces, forces) {
            let found = format!("`forces = \"{0}\"`, but {1} has no column {0}_x", name.get_ref(), table.file());
            let expected = format!("columns {0}_x, {0}_y and {0}_z there", name.get_ref());
            return Err(settings.line_of(Some(name)).error(found, expected));
        }
        let Some(positions) = found else {
            return match (&settings.kinds, &settings.forces) {
                (None, None) => Ok(None),
                (Some(set), _) | (None, Some(set)) => {
                    let found = format!("`kinds` or `forces`, but {} has no positions", table.file());
                    Err(settings.line_of(Some(set)).error(found, format!("columns {} there", POSITION.join(", "))))
                }
            };
        };
        let read = NodePlaces {
            file: table.file().to_owned(),
            positions: Vec::new(),
            forces: Vec::new(),
            places: Vec::new(),
            kinds: None,
            kinds_column: None,
        };
        let forces = forces.filter(|columns| !columns.iter().any(|column| targets.contains(column)));
        Ok(Some(Self { positions, forces, kinds: kinds.transpose()?, read, texts: Texts::default() }))
    }

    /// Adds a row.
    ///
    /// # Errors
    /// A coordinate that is no finite number, or a node without a force where others have one.
    pub fn add(&mut self, row: &Row<'_>) -> Result<(), DatasetError> {
        let [x, y, z] = self.positions;
        self.read.positions.push([row.coordinate(x)?, row.coordinate(y)?, row.coordinate(z)?]);
        self.read.places.push(row.place);
        if let Some(columns) = self.forces {
            if let Some(&column) = columns.iter().find(|&&column| row.is_missing(column)) {
                return Err(row.error(column, &row.shown(column), "the force of each node, or no such columns"));
            }
            let [x, y, z] = columns;
            self.read.forces.push([row.number(x)?, row.number(y)?, row.number(z)?]);
        }
        if let Some(column) = self.kinds {
            self.texts.push(row.text(column)?);
        }
        Ok(())
    }

    /// The rows, with the kinds of the chosen column, or else of the categorical column (`columns`, with the texts of all rows in `cells`)
    /// that has elements, is named like kinds, or is the only one.
    pub fn finish(self, table: &TableFile, columns: &[usize], cells: &[Vec<String>]) -> NodePlaces {
        let name = |at: usize| table.columns()[columns[at]].as_str();
        let (column, kinds) = match self.kinds {
            Some(column) => (Some(column), Some(self.texts)),
            None => {
                let all: Vec<Texts> = cells.iter().map(|cells| Texts::of(cells)).collect();
                let with_symbols: Vec<usize> = (0..all.len()).filter(|&at| all[at].are_symbols()).collect();
                let named = || KINDS.iter().find_map(|kind| (0..columns.len()).find(|&at| name(at) == *kind));
                let only = || (columns.len() == 1).then_some(0);
                let chosen = if let [only] = with_symbols[..] { Some(only) } else { named().or_else(only) };
                (chosen.map(|chosen| columns[chosen]), chosen.and_then(|chosen| all.into_iter().nth(chosen)))
            }
        };
        let kinds_column = column.map(|column| table.columns()[column].clone());
        NodePlaces { kinds, kinds_column, ..self.read }
    }
}

/// Positions of a dataset of tables.
pub(super) struct TableSpace {
    pub schema: SpaceSchema,
    pub set: SpaceSet,
    /// Hash of each graph's positions.
    pub hashes: Vec<u64>,
}

impl NodePlaces {
    /// The positions in the order of the graphs: those of graph `g` are of the rows `order[pointers[g]..pointers[g + 1]]`.
    pub fn space(&self, graph_ids: &[String], order: &[u32], pointers: &[u64], settings: &Settings) -> TableSpace {
        let mut maker = SpaceMaker::default();
        let mut unfit = None;
        for (graph, id) in graph_ids.iter().enumerate() {
            let rows = &order[pointers[graph] as usize..pointers[graph + 1] as usize];
            let positions: Vec<[f64; 3]> = rows.iter().map(|&row| self.positions[row as usize]).collect();
            if let Some(misfit) = maker.add(&positions, None, id) {
                let row = rows[misfit.node.unwrap_or(0)] as usize;
                let origin = Origin { file: &self.file, place: self.places[row] };
                unfit.get_or_insert_with(|| {
                    format!("{}: {}, expected {}", origin.text(), misfit.found, misfit.expected)
                });
            }
        }
        let (kinds, numbers) = match &self.kinds {
            Some(texts) => kinds_of(&texts.distinct, order.iter().map(|&row| texts.of_rows[row as usize])),
            None => (super::schema::Kinds::Unknown, vec![0; order.len()]),
        };
        let forces = match self.forces.is_empty() {
            true => Vec::new(),
            false => order.iter().flat_map(|&row| self.forces[row as usize]).collect(),
        };
        let schema = SpaceSchema {
            kinds,
            forces: !forces.is_empty(),
            periodic: maker.is_periodic(),
            rooted: false,
            length_unit: settings.length_unit.clone(),
            energy_unit: settings.energy_unit.clone(),
            unfit,
            paths: OfPaths::default(),
        };
        let (set, hashes) = maker.finish(numbers, forces);
        TableSpace { schema, set, hashes }
    }
}

/// Three columns: all of them, or none.
fn vector(table: &TableFile, names: [String; 3]) -> Result<Option<[usize; 3]>, DatasetError> {
    let found = names.each_ref().map(|name| table.find(name));
    match found {
        [None, None, None] => Ok(None),
        [Some(x), Some(y), Some(z)] => Ok(Some([x, y, z])),
        _ => {
            let named = |is_there: bool| {
                let named = names.iter().zip(found).filter(|(_, column)| column.is_some() == is_there);
                named.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
            };
            let problem = format!("{} without {}", named(true), named(false));
            Err(table.header().error(problem, format!("all of {}, or none", names.join(", "))))
        }
    }
}
