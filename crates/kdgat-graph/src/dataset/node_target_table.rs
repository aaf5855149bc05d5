//! Targets of nodes in the table of nodes: each node has all of them or, with empty fields or marks such as NaN, none.

use super::error::{DatasetError, Origin, Place};
use super::settings::Settings;
use super::table::Graphs;
use super::table_file::{Row, TableFile};
use super::targets::{TargetCells, Targets};

/// Collects the targets row by row.
pub(super) struct NodeTargetReader {
    columns: Vec<usize>,
    /// For each target, the text of each row that has targets.
    cells: Vec<Vec<String>>,
    /// Graph and place of each row that has targets.
    graphs: Vec<u32>,
    places: Vec<Place>,
    /// For each row of the table, true if it has targets.
    is_known: Vec<bool>,
}

/// The targets of the nodes that have any.
pub(super) struct NodeTargets {
    pub known: Targets,
    /// For each row of the table, true if it has targets.
    is_known: Vec<bool>,
}

impl NodeTargetReader {
    /// A reader of these columns.
    pub fn new(columns: Vec<usize>) -> Self {
        let cells = vec![Vec::new(); columns.len()];
        Self { columns, cells, graphs: Vec::new(), places: Vec::new(), is_known: Vec::new() }
    }

    /// The columns with the targets.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Adds a row, a node of `graph`.
    ///
    /// # Errors
    /// A row with some of the targets.
    pub fn add(&mut self, row: &Row<'_>, graph: u32) -> Result<(), DatasetError> {
        let is_known = !self.columns.iter().all(|&column| row.is_missing(column));
        self.is_known.push(is_known);
        if !is_known {
            return Ok(());
        }
        for (cells, &column) in self.cells.iter_mut().zip(&self.columns) {
            if row.is_missing(column) {
                return Err(row.error(column, &row.shown(column), "a value, or no target of the node at all"));
            }
            cells.push(row.text(column)?.to_owned());
        }
        self.graphs.push(graph);
        self.places.push(row.place);
        Ok(())
    }

    /// Converts the texts.
    ///
    /// # Errors
    /// A graph without any node with targets, or a text that does not fit the task.
    pub fn finish(self, table: &TableFile, graphs: &Graphs, settings: &Settings) -> Result<NodeTargets, DatasetError> {
        let mut has_targets = vec![false; graphs.ids.len()];
        self.graphs.iter().for_each(|&graph| has_targets[graph as usize] = true);
        let names: Vec<String> = self.columns.iter().map(|&column| table.columns()[column].clone()).collect();
        if let Some(graph) = has_targets.iter().position(|has| !has) {
            let found = format!("graph '{}' has no node with a value in {}", graphs.ids[graph], names.join(", "));
            let expected = format!("at least one, or no such graph in {}", graphs.file);
            return Err(Origin { file: table.file(), place: Place::File }.error(found, expected));
        }
        let of_row = |splits: &Vec<_>| self.graphs.iter().map(|&graph| splits[graph as usize]).collect();
        let cells = TargetCells {
            names,
            cells: self.cells,
            splits: graphs.splits.as_ref().map(of_row),
            origins: self.places.iter().map(|&place| Origin { file: table.file(), place }).collect(),
            header: table.header(),
        };
        let known = cells.parse(settings.task().map(|(task, _)| task))?;
        Ok(NodeTargets { known, is_known: self.is_known })
    }
}

impl NodeTargets {
    /// The targets of all nodes, `[num_nodes, number of targets]`, in the order of these rows; NaN for a node without any.
    pub fn of_all(&self, order: &[u32]) -> Vec<f32> {
        let width = self.known.targets.len();
        let mut of_rows = vec![f32::NAN; self.is_known.len() * width];
        let rows = of_rows.chunks_exact_mut(width).zip(&self.is_known).filter(|(_, is_known)| **is_known);
        rows.zip(self.known.values.chunks_exact(width)).for_each(|((row, _), values)| row.copy_from_slice(values));
        order.iter().flat_map(|&row| &of_rows[row as usize * width..(row as usize + 1) * width]).copied().collect()
    }
}
