//! Reads the text format of the TUDataset collection (Morris et al. 2020): one line for each node, edge or graph.
//!
//! `NAME_A.txt` has an edge a line, `NAME_graph_indicator.txt` the graph of each node, `NAME_graph_labels.txt` the class of each graph (or
//! `NAME_graph_attributes.txt` its values, for regression); labels and attributes of nodes and edges are optional. Numbers count from 1.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};

use super::error::{DatasetError, Origin, Place as FilePlace};
use super::feature_rows::{Cells, Column, Rows};
use super::graph_set::{GraphSet, LISTED, RawEdge, SortedEdges, expect_few_nodes};
use super::schema::{Level, Schema, Task};
use super::source_files::SourceFiles;
use super::targets::{TargetCells, Targets};

/// Ending of the file that every dataset of this format has.
const INDICATOR: &str = "_graph_indicator.txt";
/// Endings of the other files.
const ENDINGS: [&str; 7] = [
    "_A.txt",
    "_graph_labels.txt",
    "_graph_attributes.txt",
    "_node_labels.txt",
    "_node_attributes.txt",
    "_edge_labels.txt",
    "_edge_attributes.txt",
];

/// Names of the datasets whose files are among these: those with an indicator file, or at least two others.
pub(super) fn names(files: &[String]) -> BTreeSet<&str> {
    let others =
        || ENDINGS.into_iter().flat_map(|ending| files.iter().filter_map(move |file| file.strip_suffix(ending)));
    let is_twice = |name: &&str| others().filter(|other| other == name).count() >= 2;
    files.iter().filter_map(|file| file.strip_suffix(INDICATOR)).chain(others().filter(is_twice)).collect()
}

/// True if a file's name has an ending of this format.
pub(super) fn is_file(name: &str) -> bool {
    name.ends_with(INDICATOR) || ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Reads the dataset of this name.
///
/// # Errors
/// A missing file, or a line that does not fit, with its number.
pub(super) fn read(files: &SourceFiles, name: &str) -> Result<GraphSet, DatasetError> {
    let reader = TuReader { files, name };
    let graphs_of_nodes = reader.graphs_of_nodes()?;
    let Targets { task, targets, values: graph_targets, rests: target_rests, notes, .. } = reader.targets()?;
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
            space: None,
        },
        without_targets: Vec::new(),
        notes,
        graph_ids: (1..=num_graphs).map(|graph| graph.to_string()).collect(),
        node_ids: Vec::new(),
        node_features: node_rows.ordered(nodes.order.iter().copied()),
        node_pointers: nodes.pointers,
        edge_features: edge_rows.ordered(sorted.rows.iter().copied()),
        edge_pointers: sorted.pointers,
        sources: sorted.sources,
        targets: sorted.targets,
        graph_targets,
        target_rests,
        node_targets: Vec::new(),
        splits: None,
        left_out: sorted.left_out,
        space: None,
        position_hashes: None,
        lists_edges: true,
        made: LISTED.to_owned(),
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

    /// The targets of the graphs.
    fn targets(&self) -> Result<Targets, DatasetError> {
        let parse = |file: &str, task: Task, names: Vec<String>, cells: Vec<Vec<String>>| {
            let lines = 1..=cells.first().map_or(0, Vec::len) as u64;
            let origins = lines.map(|line| Origin::line(file, line)).collect();
            TargetCells { names, cells, splits: None, origins, header: Origin::line(file, 1) }.parse(Some(task))
        };
        if let Some((file, lines)) = self.lines("graph_labels")? {
            if let Some(at) = lines.iter().position(String::is_empty) {
                return Err(DatasetError::line(&file, at as u64 + 1, "an empty line", "the class of a graph"));
            }
            return parse(&file, Task::Classification, vec!["class".to_owned()], vec![lines]);
        }
        let Some((file, lines)) = self.lines("graph_attributes")? else {
            let expected =
                "a dataset has the classes of its graphs there, or their values in NAME_graph_attributes.txt";
            let file = format!("{}_graph_labels.txt", self.name);
            return Err(DatasetError::MissingFile { root: self.files.root().to_owned(), file, expected });
        };
        let cells = cells(&file, &lines)?;
        let names = (0..cells.len()).map(|column| format!("y_{column}")).collect();
        parse(&file, Task::Regression, names, cells)
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
        let expect_rows = |file: &str, found: usize| match found == rows {
            true => Ok(()),
            false => Err(DatasetError::line(
                file,
                found as u64,
                format!("{found} lines"),
                format!("{rows}, one for each of the {what}"),
            )),
        };
        let (labels, attributes) = (self.lines(&format!("{of}_labels"))?, self.lines(&format!("{of}_attributes"))?);
        let mut columns = Vec::new();
        if let Some((file, lines)) = &labels {
            expect_rows(file, lines.len())?;
            let cells = cells(file, lines)?;
            let count = cells.len();
            for (column, texts) in cells.into_iter().enumerate() {
                if let Some(at) = texts.iter().position(String::is_empty) {
                    return Err(DatasetError::line(file, at as u64 + 1, "an empty label", format!("{count} labels")));
                }
                let origin = Origin { file, place: FilePlace::File };
                let name = named("label", column, count);
                columns.push(Column { name, cells: Cells::Texts(texts), origin, remedy: TOO_MANY_LABELS });
            }
        }
        if let Some((file, lines)) = &attributes {
            expect_rows(file, lines.len())?;
            let cells = cells(file, lines)?;
            let count = cells.len();
            for (column, texts) in cells.into_iter().enumerate() {
                let origin = Origin { file, place: FilePlace::File };
                let name = named("attribute", column, count);
                let cells = Cells::Numbers(numbers(file, &texts)?);
                columns.push(Column { name, cells, origin, remedy: TOO_MANY_LABELS });
            }
        }
        Rows::new(columns, rows)
    }
}

/// Advice against labels with too many values.
const TOO_MANY_LABELS: &str =
    "if they are numbers with a meaning, put them into the file of attributes; otherwise leave the column out";

fn named(name: &str, column: usize, columns: usize) -> String {
    if columns == 1 { name.to_owned() } else { format!("{name}_{column}") }
}

/// The columns of comma-separated lines, which have as many cells each as the first.
fn cells(file: &str, lines: &[String]) -> Result<Vec<Vec<String>>, DatasetError> {
    let count = lines.first().map_or(0, |line| line.split(',').count());
    let mut columns = vec![Vec::with_capacity(lines.len()); count];
    for (line, text) in (1..).zip(lines) {
        let found = text.split(',').count();
        if found != count {
            let found = format!("{found} values in '{text}'");
            return Err(DatasetError::line(file, line, found, format!("{count} as in line 1")));
        }
        columns.iter_mut().zip(text.split(',')).for_each(|(column, cell)| column.push(cell.trim().to_owned()));
    }
    Ok(columns)
}

/// A column of finite numbers.
fn numbers(file: &str, cells: &[String]) -> Result<Vec<f32>, DatasetError> {
    let number = |(line, cell): (u64, &String)| match cell.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(DatasetError::line(file, line, format!("'{cell}'"), "a finite number")),
    };
    (1..).zip(cells).map(number).collect()
}

/// A node's graph and its number in it, both from 0.
#[derive(Debug, Clone, Copy)]
struct Place {
    graph: u32,
    node: u32,
}

/// Advice against graphs whose numbers exceed those of the targets; `distinct` graphs have nodes, `num_graphs` have targets.
fn numbering(has_gaps: bool, distinct: usize, num_graphs: usize) -> String {
    match distinct.cmp(&num_graphs) {
        _ if !has_gaps => "add the targets of the others".to_owned(),
        Ordering::Equal => "number the graphs anew, without gaps".to_owned(),
        Ordering::Greater => {
            format!(
                "correct a wrong number, or add the missing targets and number the graphs from 1 to {distinct} without gaps"
            )
        }
        Ordering::Less => {
            "number the graphs as the lines of their targets, and remove the targets of graphs without a node"
                .to_owned()
        }
    }
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
        let distinct = graphs_of_nodes.iter().collect::<BTreeSet<_>>().len();
        let mut counts = vec![0usize; num_graphs];
        let mut positions = Vec::with_capacity(graphs_of_nodes.len());
        for (line, &graph) in (1..).zip(graphs_of_nodes) {
            let Some(count) = counts.get_mut(graph as usize - 1) else {
                let has_gaps = distinct < graphs_of_nodes.iter().copied().max().unwrap_or(0) as usize;
                let found = match has_gaps {
                    true => format!("graph {graph}, although there are {distinct} graphs and {num_graphs} targets"),
                    false => format!("graph {graph}"),
                };
                let remedy = numbering(has_gaps, distinct, num_graphs);
                let expected = format!("a graph from 1 to {num_graphs}, one for each line of targets: {remedy}");
                return Err(DatasetError::line(&file, line, found, expected));
            };
            positions.push(Place { graph: graph - 1, node: *count as u32 });
            *count += 1;
            expect_few_nodes(Origin::line(&file, line), *count, &graph.to_string())?;
        }
        let empty: Vec<usize> = (1..=num_graphs).filter(|graph| counts[graph - 1] == 0).collect();
        if let Some(&first) = empty.first() {
            let detail = match empty.len() {
                1 if first == num_graphs => format!("remove line {first} of its targets"),
                1 => format!("remove line {first} of its targets, and lower by 1 every number above {first} in {file}"),
                count => format!(
                    "neither have {} others; remove their lines of targets, and number the graphs in {file} from 1 without gaps",
                    count - 1
                ),
            };
            let detail = format!("graph {first} has no node: no line of {file} names it; {detail}");
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
