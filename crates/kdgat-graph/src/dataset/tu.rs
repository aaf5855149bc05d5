//! Reads the text format of the TUDataset collection (Morris et al. 2020): one line for each node, edge or graph.
//!
//! `NAME_A.txt` has an edge a line, `NAME_graph_indicator.txt` the graph of each node, `NAME_graph_labels.txt` the class of each graph (or
//! `NAME_graph_attributes.txt` its values, for regression); labels and attributes of nodes and edges are optional. Numbers count from 1.

use std::io::{BufRead, BufReader};

use super::error::{DatasetError, Origin};
use super::graph_set::{GraphSet, RawEdge, SortedEdges, expect_few_nodes};
use super::schema::{Feature, Level, Schema, Target, Task, numbered};
use super::source_files::SourceFiles;

/// Ending of the file that every dataset of this format has.
pub(super) const INDICATOR: &str = "_graph_indicator.txt";

/// Reads a dataset of this format.
///
/// # Errors
/// A missing file, or a line that does not fit, with its number.
pub(super) fn read(files: &SourceFiles) -> Result<GraphSet, DatasetError> {
    let Some(name) = files.names().iter().find_map(|name| name.strip_suffix(INDICATOR)) else {
        return Err(DatasetError::MissingFile {
            root: files.root().to_owned(),
            file: format!("NAME{INDICATOR}"),
            expected: "a dataset of the TUDataset collection has one",
        });
    };
    let reader = TuReader { files, name };
    let graphs_of_nodes = reader.graphs_of_nodes()?;
    let (task, targets, graph_targets) = reader.targets()?;
    let num_graphs = graph_targets.len() / targets.len().max(1);
    let nodes = Nodes::new(&reader, &graphs_of_nodes, num_graphs)?;
    let edges = reader.edges(&nodes)?;
    let node_rows = reader.features("node", graphs_of_nodes.len(), "nodes")?;
    let edge_rows = reader.features("edge", edges.len(), "edges")?;
    let sorted = SortedEdges::new(edges, num_graphs);
    Ok(GraphSet {
        name: name.to_owned(),
        schema: Schema {
            task,
            level: Level::Graph,
            targets,
            node_features: node_rows.features.clone(),
            edge_features: edge_rows.features.clone(),
        },
        graph_ids: (1..=num_graphs).map(|graph| graph.to_string()).collect(),
        node_ids: Vec::new(),
        node_features: node_rows.ordered(nodes.order.iter().copied()),
        node_pointers: nodes.pointers,
        edge_features: edge_rows.ordered(sorted.rows.iter().copied()),
        edge_pointers: sorted.pointers,
        sources: sorted.sources,
        targets: sorted.targets,
        graph_targets,
        node_targets: Vec::new(),
        splits: None,
        left_out: sorted.left_out,
        position_hashes: None,
    })
}

struct TuReader<'a> {
    files: &'a SourceFiles,
    name: &'a str,
}

impl TuReader<'_> {
    /// Lines of `NAME_{kind}.txt`, without blank lines at the end; `None` if there is no such file.
    fn lines(&self, kind: &str) -> Result<Option<(String, Vec<String>)>, DatasetError> {
        let mut lines = Vec::new();
        let file = self.each_line(kind, |_, _, text| {
            lines.push(text.to_owned());
            Ok(())
        })?;
        Ok(file.map(|file| (file, lines)))
    }

    /// Calls `each` with the file, the number, from 1, and the text of each line of `NAME_{kind}.txt`, without blank lines at the end.
    /// Returns the file; `None` if there is no such file.
    fn each_line(
        &self,
        kind: &str,
        mut each: impl FnMut(&str, u64, &str) -> Result<(), DatasetError>,
    ) -> Result<Option<String>, DatasetError> {
        let file = format!("{}_{kind}.txt", self.name);
        let found = self.files.read_with(&file, |reader| {
            let (mut reader, mut bytes) = (BufReader::new(reader), Vec::new());
            let (mut line, mut blank) = (0, 0);
            while reader.read_until(b'\n', &mut bytes).map_err(DatasetError::io(self.files.root()))? > 0 {
                let text = String::from_utf8_lossy(&bytes);
                match text.trim() {
                    "" => blank += 1,
                    text => {
                        for _ in 0..blank {
                            line += 1;
                            each(&file, line, "")?;
                        }
                        (line, blank) = (line + 1, 0);
                        each(&file, line, text)?;
                    }
                }
                bytes.clear();
            }
            Ok(())
        })?;
        Ok(found.map(|()| file))
    }

    /// Like [`each_line`](Self::each_line), for a file that the format requires.
    fn each_required(
        &self,
        kind: &str,
        expected: &'static str,
        each: impl FnMut(&str, u64, &str) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
        let missing = || DatasetError::MissingFile {
            root: self.files.root().to_owned(),
            file: format!("{}_{kind}.txt", self.name),
            expected,
        };
        self.each_line(kind, each)?.map(drop).ok_or_else(missing)
    }

    /// The graph of each node, from 1.
    fn graphs_of_nodes(&self) -> Result<Vec<u32>, DatasetError> {
        let mut graphs = Vec::new();
        self.each_required("graph_indicator", "it has the graph of each node", |file, line, text| {
            match text.parse::<u32>() {
                Ok(graph) if graph > 0 => graphs.push(graph),
                _ => {
                    return Err(DatasetError::line(file, line, format!("'{text}'"), "the number of a graph, from 1"));
                }
            }
            Ok(())
        })?;
        Ok(graphs)
    }

    /// Task, targets, and `[num_graphs, number of targets]` values.
    fn targets(&self) -> Result<(Task, Vec<Target>, Vec<f32>), DatasetError> {
        if let Some((file, lines)) = self.lines("graph_labels")? {
            if let Some(at) = lines.iter().position(String::is_empty) {
                return Err(DatasetError::line(&file, at as u64 + 1, "an empty line", "the class of a graph"));
            }
            let (classes, numbers) = numbered(&lines);
            let target = Target { name: "class".to_owned(), classes };
            return Ok((Task::Classification, vec![target], numbers.into_iter().map(|class| class as f32).collect()));
        }
        let expected = "a dataset has the classes of its graphs there, or their values in NAME_graph_attributes.txt";
        let Some((file, lines)) = self.lines("graph_attributes")? else {
            return Err(DatasetError::MissingFile {
                root: self.files.root().to_owned(),
                file: format!("{}_graph_labels.txt", self.name),
                expected,
            });
        };
        let values = numbers(&file, &lines)?;
        let columns = values.first().map_or(0, Vec::len);
        let name = |column: usize| Target { name: format!("y_{column}"), classes: Vec::new() };
        Ok((Task::Regression, (0..columns).map(name).collect(), values.concat()))
    }

    fn edges(&self, nodes: &Nodes) -> Result<Vec<RawEdge>, DatasetError> {
        let mut edges = Vec::new();
        self.each_required("A", "it has the edges", |file, line, text| {
            let end = |text: Option<&str>| -> Result<usize, DatasetError> {
                let text = text.unwrap_or_default().trim();
                let known = nodes.positions.len();
                match text.parse::<u64>() {
                    Ok(node) if node >= 1 && node <= known as u64 => Ok(node as usize - 1),
                    _ => Err(DatasetError::line(
                        file,
                        line,
                        format!("node '{text}'"),
                        format!("a node from 1 to {known}"),
                    )),
                }
            };
            let mut ends = text.split(',');
            let (source, target) = (end(ends.next())?, end(ends.next())?);
            if let Some(more) = ends.next() {
                return Err(DatasetError::line(file, line, format!("a third number '{more}'"), "source, target"));
            }
            let (of_source, of_target) = (nodes.positions[source], nodes.positions[target]);
            if of_source.graph != of_target.graph {
                let found = format!("an edge from graph {} to graph {}", of_source.graph + 1, of_target.graph + 1);
                return Err(DatasetError::line(file, line, found, "both nodes in one graph"));
            }
            let row = edges.len() as u32;
            edges.push(RawEdge { graph: of_source.graph, source: of_source.node, target: of_target.node, row });
            Ok(())
        })?;
        Ok(edges)
    }

    /// Labels and attributes of nodes or edges.
    fn features(&self, of: &str, rows: usize, what: &'static str) -> Result<Rows, DatasetError> {
        let mut features = Vec::new();
        let mut parts: Vec<Vec<f32>> = Vec::new();
        let expect_rows = |file: &str, found: usize| match found == rows {
            true => Ok(()),
            false => Err(DatasetError::line(
                file,
                found as u64,
                format!("{found} lines"),
                format!("{rows}, one for each of the {what}"),
            )),
        };
        if let Some((file, lines)) = self.lines(&format!("{of}_labels"))? {
            expect_rows(&file, lines.len())?;
            let split = |line: &String| line.split(',').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
            let cells: Vec<Vec<String>> = lines.iter().map(split).collect();
            let columns = cells.first().map_or(0, Vec::len);
            if let Some(at) = cells.iter().position(|row| row.len() != columns || row.iter().any(String::is_empty)) {
                return Err(DatasetError::line(
                    &file,
                    at as u64 + 1,
                    format!("'{}'", lines[at]),
                    format!("{columns} labels"),
                ));
            }
            for column in 0..columns {
                let (values, numbers) = numbered(&cells.iter().map(|row| row[column].clone()).collect::<Vec<_>>());
                let width = values.len();
                let mut one_hot = vec![0.0; rows * width];
                numbers.iter().enumerate().for_each(|(row, &value)| one_hot[row * width + value as usize] = 1.0);
                features.push(Feature { name: named("label", column, columns), values: Some(values) });
                parts.push(one_hot);
            }
        }
        if let Some((file, lines)) = self.lines(&format!("{of}_attributes"))? {
            expect_rows(&file, lines.len())?;
            let values = numbers(&file, &lines)?;
            let columns = values.first().map_or(0, Vec::len);
            for column in 0..columns {
                features.push(Feature { name: named("attribute", column, columns), values: None });
                parts.push(values.iter().map(|row| row[column]).collect());
            }
        }
        Ok(Rows::joined(features, &parts, rows))
    }
}

fn named(name: &str, column: usize, columns: usize) -> String {
    if columns == 1 { name.to_owned() } else { format!("{name}_{column}") }
}

/// Rows of comma-separated finite numbers, all of the same length.
fn numbers(file: &str, lines: &[String]) -> Result<Vec<Vec<f32>>, DatasetError> {
    let mut rows: Vec<Vec<f32>> = Vec::with_capacity(lines.len());
    for (line, text) in (1..).zip(lines) {
        let number = |cell: &str| match cell.trim().parse::<f32>() {
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err(DatasetError::line(file, line, format!("'{}'", cell.trim()), "a finite number")),
        };
        let row = text.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
        if rows.first().is_some_and(|first| first.len() != row.len()) {
            let found = format!("{} numbers", row.len());
            return Err(DatasetError::line(file, line, found, format!("{} as in line 1", rows[0].len())));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Features of nodes or edges in the order of the source.
pub(super) struct Rows {
    pub features: Vec<Feature>,
    /// `[rows, width]`.
    pub values: Vec<f32>,
    pub width: usize,
}

impl Rows {
    /// Joins the columns of each feature, `[rows, columns of the feature]`, to rows.
    pub fn joined(features: Vec<Feature>, parts: &[Vec<f32>], rows: usize) -> Self {
        let width: usize = features.iter().map(Feature::columns).sum();
        let mut values = Vec::with_capacity(rows * width);
        for row in 0..rows {
            for (feature, part) in features.iter().zip(parts) {
                let columns = feature.columns();
                values.extend_from_slice(&part[row * columns..(row + 1) * columns]);
            }
        }
        Self { features, values, width }
    }

    /// The rows in another order.
    pub fn ordered(&self, order: impl Iterator<Item = u32>) -> Vec<f32> {
        order
            .flat_map(|row| &self.values[row as usize * self.width..(row as usize + 1) * self.width])
            .copied()
            .collect()
    }
}

/// A node's graph and its number in it, both from 0.
#[derive(Debug, Clone, Copy)]
struct Place {
    graph: u32,
    node: u32,
}

/// The nodes in the order of the graphs.
struct Nodes {
    /// Place of each node of the source.
    positions: Vec<Place>,
    /// Number of each node in the source, in the order of the graphs.
    order: Vec<u32>,
    pointers: Vec<u64>,
}

impl Nodes {
    fn new(reader: &TuReader<'_>, graphs_of_nodes: &[u32], num_graphs: usize) -> Result<Self, DatasetError> {
        let file = format!("{}{INDICATOR}", reader.name);
        let mut counts = vec![0usize; num_graphs];
        let mut positions = Vec::with_capacity(graphs_of_nodes.len());
        for (line, &graph) in (1..).zip(graphs_of_nodes) {
            let Some(count) = counts.get_mut(graph as usize - 1) else {
                let found = format!("graph {graph}");
                return Err(DatasetError::line(
                    &file,
                    line,
                    found,
                    format!("a graph from 1 to {num_graphs}, which have targets"),
                ));
            };
            positions.push(Place { graph: graph - 1, node: *count as u32 });
            *count += 1;
            expect_few_nodes(Origin::line(&file, line), *count, &graph.to_string())?;
        }
        if let Some(empty) = counts.iter().position(|&count| count == 0) {
            let detail = format!("graph {} has no node: no line of {file} names it; remove its target", empty + 1);
            return Err(DatasetError::Unusable { root: reader.files.root().to_owned(), detail });
        }
        let mut pointers = vec![0u64];
        counts.iter().for_each(|&count| pointers.push(pointers[pointers.len() - 1] + count as u64));
        let mut order = vec![0u32; positions.len()];
        for (number, place) in (0..).zip(&positions) {
            order[pointers[place.graph as usize] as usize + place.node as usize] = number;
        }
        Ok(Self { positions, order, pointers })
    }
}
