//! Reads the tables of angles and dihedrals, `angles.csv` and `dihedrals.csv`: a row for each path, with its graph, its nodes `i`, `j`, `k` (and
//! `l`), and its parameters.

use super::error::{DatasetError, Origin, Place};
use super::graph_set::Edges;
use super::node_places::POSITION;
use super::settings::Settings;
use super::source_files::SourceFiles;
use super::table::{Graphs, Nodes};
use super::table_file::TableFile;
use crate::{PathKind, PathList, PathView};

/// Columns of the nodes of a path.
const NODES: [&str; 4] = ["i", "j", "k", "l"];

/// The rows of a table of paths.
pub(super) struct PathTable {
    /// Names of the parameters.
    pub parameters: Vec<String>,
    pub list: PathList,
}

/// A path of the source, from the end with the smaller number.
struct RawPath {
    graph: u32,
    /// Numbers within the graph; those beyond the path are 0.
    nodes: [u16; 4],
    row: usize,
    place: Place,
}

/// The dataset of a table of paths, as far as its rows name parts of it.
pub(super) struct PathSource<'a> {
    pub files: &'a SourceFiles,
    pub settings: &'a Settings,
    pub graphs: &'a Graphs,
    pub nodes: &'a Nodes,
    pub edges: &'a Edges,
}

impl PathSource<'_> {
    /// The table of a kind of paths; `None` without one.
    ///
    /// # Errors
    /// A missing column, a row that does not fit, with its line, or data without positions.
    pub fn read(&self, kind: PathKind) -> Result<Option<PathTable>, DatasetError> {
        let Some(table) = TableFile::read(self.files, kind.name())? else { return Ok(None) };
        self.expect_positions(&table)?;
        let (graph_id, count) = (table.column("graph_id")?, kind.nodes());
        let columns = NODES[..count].iter().map(|name| table.column(name)).collect::<Result<Vec<_>, _>>()?;
        let parameters = table.starting_with(&format!("{}_", kind.parameter()), Some(kind.parameter()));
        if parameters.len() > usize::from(u16::MAX) {
            let found = format!("{} columns of parameters", parameters.len());
            return Err(table.header().error(found, format!("at most {}", u16::MAX)));
        }
        let (mut paths, mut values) = (Vec::new(), Vec::new());
        table.each_row(|row| {
            let graph = self.graphs.of_row(&row, graph_id)?;
            let mut nodes = [0; 4];
            for (at, &column) in columns.iter().enumerate() {
                let number = self.nodes.number_of(self.graphs, graph, (&row, column))?;
                let found = || format!("node '{}'", row.cell(column));
                // A graph has at most 65,535 nodes.
                let node = number as u16;
                if nodes[..at].contains(&node) {
                    return Err(row.error(column, &format!("{} a second time", found()), "different nodes in a path"));
                }
                if at > 0 && !self.edges.join(graph, nodes[at - 1], node) {
                    let (name, before) = (&self.graphs.ids[graph as usize], row.cell(columns[at - 1]));
                    let found = format!("{}, and no edge between it and node '{before}'", found());
                    return Err(row.error(column, &found, &format!("a path over edges of graph {name}")));
                }
                nodes[at] = node;
            }
            let path = &mut nodes[..count];
            if path[0] > path[count - 1] {
                path.reverse();
            }
            for &column in &parameters {
                values.push(row.number(column)?);
            }
            paths.push(RawPath { graph, nodes, row: paths.len(), place: row.place });
            Ok(())
        })?;
        paths.sort_unstable_by_key(|path| (path.graph, path.nodes, path.row));
        expect_distinct(&table, kind, &paths)?;
        let list = self.listed(kind, &paths, &values);
        Ok(Some(PathTable { parameters: parameters.iter().map(|&at| table.columns()[at].clone()).collect(), list }))
    }

    /// Refuses a table that no network could read.
    fn expect_positions(&self, table: &TableFile<'_>) -> Result<(), DatasetError> {
        let origin = Origin { file: table.file(), place: Place::File };
        match (&self.nodes.places, self.settings.tree()) {
            (None, _) => {
                let found = format!("paths of nodes in space, but {} has no positions", self.nodes.file);
                Err(origin.error(found, format!("columns {} there, or no such table", POSITION.join(", "))))
            }
            (Some(_), Some(_)) => {
                let found = format!("`tree` beside {}", table.file());
                Err(self.settings.tree_origin().error(found, "one of the two: a tree leaves edges of the graph out"))
            }
            (Some(_), None) => Ok(()),
        }
    }

    /// Sorted paths with the parameters of their rows, graph by graph.
    fn listed(&self, kind: PathKind, paths: &[RawPath], values: &[f32]) -> PathList {
        let (mut list, mut next) = (PathList::default(), 0);
        let width = values.len() / paths.len().max(1);
        for graph in 0..self.graphs.ids.len() as u32 {
            let end = next + paths[next..].partition_point(|path| path.graph == graph);
            let own = &paths[next..end];
            let nodes: Vec<u16> = own.iter().flat_map(|path| &path.nodes[..kind.nodes()]).copied().collect();
            let rows = own.iter().flat_map(|path| &values[path.row * width..(path.row + 1) * width]);
            list.push(kind, PathView { nodes: &nodes, parameters: &rows.copied().collect::<Vec<_>>() });
            next = end;
        }
        list
    }
}

/// Refuses a path that is listed twice; names the first such row.
fn expect_distinct(table: &TableFile<'_>, kind: PathKind, paths: &[RawPath]) -> Result<(), DatasetError> {
    let same = paths.windows(2).filter(|pair| (pair[0].graph, pair[0].nodes) == (pair[1].graph, pair[1].nodes));
    let Some(pair) = same.min_by_key(|pair| pair[1].row) else { return Ok(()) };
    let origin = |path: &RawPath| Origin { file: table.file(), place: path.place };
    let found = format!("a path that {} has already", origin(&pair[0]).text());
    let expected = format!("each of the {} once: a path and its reverse are one", kind.name());
    Err(origin(&pair[1]).error(found, expected))
}
