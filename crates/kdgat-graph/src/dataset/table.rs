//! Reads the tabular format: `graphs.csv`, `nodes.csv` and `edges.csv` in a folder or zip archive, and optionally `kdgat-graphs.toml`.
//!
//! | file | columns |
//! |---|---|
//! | `graphs.csv` | `graph_id`, targets `y` or `y_*`, optionally `split` |
//! | `nodes.csv` | `graph_id`, `node_id`, continuous `x_*`, categorical `c_*` |
//! | `edges.csv` | `graph_id`, `source`, `target`, continuous `e_*` |

use std::collections::HashMap;

use serde::Deserialize;

use super::csv_table::CsvTable;
use super::error::DatasetError;
use super::graph_set::{GraphSet, RawEdge, SortedEdges, expect_few_nodes};
use super::schema::{Feature, Schema, Target, Task, numbered};
use super::source_files::SourceFiles;
use super::tu::Rows;
use crate::Split;

/// The file that lists the graphs; it marks this format.
pub(super) const GRAPHS: &str = "graphs.csv";
/// The file of settings.
pub(super) const SETTINGS: &str = "kdgat-graphs.toml";
/// Most distinct integers of a target that is taken for a class.
const MOST_INFERRED_CLASSES: usize = 100;

/// The content of `kdgat-graphs.toml`; every field may be left out.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// Name of the dataset; default: the folder's.
    name: Option<String>,
    /// `classification`, `multi-label` or `regression`; default: by the values of the targets.
    task: Option<Task>,
    /// Columns of `graphs.csv` to predict; default: `y` and all that begin with `y_`.
    targets: Option<Vec<String>>,
    /// Column of `graphs.csv` with `train`, `validation` or `test`; default: `split`, if there is one.
    split: Option<String>,
    /// True if edges have a direction; false adds the reverse of each edge.
    directed: Option<bool>,
}

/// Reads a dataset of this format.
///
/// # Errors
/// A missing file or column, or a row that does not fit, with its line.
pub(super) fn read(files: &SourceFiles) -> Result<GraphSet, DatasetError> {
    let settings = settings(files)?;
    let graphs = Graphs::read(files, &settings)?;
    let nodes = Nodes::read(files, &graphs)?;
    let (edges, edge_rows) = edges(files, &graphs, &nodes, settings.directed.unwrap_or(true))?;
    let sorted = SortedEdges::new(edges, graphs.ids.len());
    let root = files.root().file_stem().map_or("graphs".into(), |name| name.to_string_lossy().into_owned());
    Ok(GraphSet {
        name: settings.name.unwrap_or(root),
        schema: Schema {
            task: graphs.task,
            targets: graphs.targets,
            node_features: nodes.rows.features.clone(),
            edge_features: edge_rows.features.clone(),
        },
        graph_ids: graphs.ids,
        node_features: nodes.rows.ordered(nodes.order.iter().copied()),
        node_pointers: nodes.pointers,
        edge_features: edge_rows.ordered(sorted.rows.iter().copied()),
        edge_pointers: sorted.pointers,
        sources: sorted.sources,
        targets: sorted.targets,
        graph_targets: graphs.values,
        splits: graphs.splits,
        left_out: sorted.left_out,
    })
}

fn settings(files: &SourceFiles) -> Result<Settings, DatasetError> {
    let Some(bytes) = files.read(SETTINGS)? else { return Ok(Settings::default()) };
    let text = String::from_utf8_lossy(&bytes);
    toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count() as u64);
        let expected = "name, task (classification, multi-label, regression), targets, split, directed";
        DatasetError::line(SETTINGS, line, error.message().to_owned(), expected)
    })
}

/// The rows of `graphs.csv`.
struct Graphs {
    ids: Vec<String>,
    /// Position of each graph.
    positions: HashMap<String, u32>,
    task: Task,
    targets: Vec<Target>,
    /// `[num_graphs, number of targets]`.
    values: Vec<f32>,
    splits: Option<Vec<Split>>,
}

impl Graphs {
    fn read(files: &SourceFiles, settings: &Settings) -> Result<Self, DatasetError> {
        let table = CsvTable::required(files, GRAPHS, "it lists the graphs and their targets")?;
        let id = table.column("graph_id")?;
        let columns = match &settings.targets {
            Some(names) => names.iter().map(|name| table.column(name)).collect::<Result<Vec<_>, _>>()?,
            None => table.starting_with("y_", Some("y")),
        };
        if columns.is_empty() {
            let found = format!("no target among {}", table.columns().join(", "));
            return Err(DatasetError::line(
                GRAPHS,
                1,
                found,
                "a column y, columns y_*, or `targets` in kdgat-graphs.toml",
            ));
        }
        let split = match &settings.split {
            Some(name) => Some(table.column(name)?),
            None => table.find("split"),
        };
        let (mut ids, mut positions, mut lines) = (Vec::new(), HashMap::new(), Vec::new());
        let mut cells: Vec<Vec<String>> = vec![Vec::new(); columns.len()];
        let mut splits = split.map(|_| Vec::new());
        table.each_row(|row| {
            let name = row.text(id)?.to_owned();
            if positions.insert(name.clone(), ids.len() as u32).is_some() {
                return Err(row.error(id, &format!("'{name}' a second time"), "each graph once"));
            }
            for (cells, &column) in cells.iter_mut().zip(&columns) {
                cells.push(row.text(column)?.to_owned());
            }
            if let (Some(splits), Some(column)) = (&mut splits, split) {
                let text = row.text(column)?;
                let known = split_of(text);
                splits.push(known.ok_or_else(|| row.error(column, &format!("'{text}'"), "train, validation or test"))?);
            }
            ids.push(name);
            lines.push(row.line);
            Ok(())
        })?;
        if ids.is_empty() {
            return Err(DatasetError::line(GRAPHS, 1, "no graph", "a row for each graph"));
        }
        let names: Vec<&str> = columns.iter().map(|&column| table.columns()[column].as_str()).collect();
        let task = settings.task.unwrap_or_else(|| inferred(&cells));
        let (targets, values) = targets(task, &names, &cells, &lines)?;
        let graphs = Self { ids, positions, task, targets, values, splits };
        graphs.expect_trained_classes(&lines)?;
        Ok(graphs)
    }

    /// Refuses a class that no training graph has.
    fn expect_trained_classes(&self, lines: &[u64]) -> Result<(), DatasetError> {
        let (Task::Classification, Some(splits)) = (self.task, &self.splits) else { return Ok(()) };
        let classes = &self.targets[0].classes;
        let mut trained = vec![false; classes.len()];
        let of = |graph: usize| self.values[graph] as usize;
        (0..splits.len()).filter(|&graph| splits[graph] == Split::Train).for_each(|graph| trained[of(graph)] = true);
        match (0..splits.len()).find(|&graph| !trained[of(graph)]) {
            None => Ok(()),
            Some(graph) => {
                let found = format!("class '{}', which no training graph has", classes[of(graph)]);
                Err(DatasetError::line(GRAPHS, lines[graph], found, "a class that is in the training split, too"))
            }
        }
    }
}

fn split_of(text: &str) -> Option<Split> {
    match text.to_ascii_lowercase().as_str() {
        "train" | "training" => Some(Split::Train),
        "validation" | "valid" | "val" => Some(Split::Validation),
        "test" => Some(Split::Test),
        _ => None,
    }
}

/// The task that the values of the targets suggest.
fn inferred(cells: &[Vec<String>]) -> Task {
    let are = |fits: fn(&str) -> bool| cells.iter().flatten().all(|cell| fits(cell));
    if cells.len() > 1 {
        return if are(|cell| cell == "0" || cell == "1") { Task::MultiLabel } else { Task::Regression };
    }
    let is_text = cells.iter().flatten().any(|cell| cell.parse::<f64>().is_err());
    let are_integers = are(|cell| cell.parse::<i64>().is_ok());
    let few = numbered(&cells[0]).0.len() <= MOST_INFERRED_CLASSES.min(2.max(cells[0].len() / 4));
    if is_text || (are_integers && few) { Task::Classification } else { Task::Regression }
}

/// Targets, and `[num_graphs, number of targets]` values.
fn targets(
    task: Task,
    names: &[&str],
    cells: &[Vec<String>],
    lines: &[u64],
) -> Result<(Vec<Target>, Vec<f32>), DatasetError> {
    if task == Task::Classification {
        if let [_, second, ..] = names {
            let found = format!("a second target '{second}'");
            return Err(DatasetError::line(
                GRAPHS,
                1,
                found,
                "one target for classification; name it in kdgat-graphs.toml",
            ));
        }
        let (classes, numbers) = numbered(&cells[0]);
        let target = Target { name: names[0].to_owned(), classes };
        return Ok((vec![target], numbers.into_iter().map(|class| class as f32).collect()));
    }
    let value = |column: usize, graph: usize| {
        let text = cells[column][graph].as_str();
        let (fits, expected) = match task {
            Task::MultiLabel => (matches!(text, "0" | "1"), "0 or 1"),
            _ => (text.parse::<f32>().is_ok_and(f32::is_finite), "a finite number"),
        };
        let parsed = text.parse::<f32>().ok().filter(|_| fits);
        parsed.ok_or_else(|| {
            DatasetError::line(GRAPHS, lines[graph], format!("column '{}' has '{text}'", names[column]), expected)
        })
    };
    let mut values = Vec::with_capacity(lines.len() * names.len());
    for graph in 0..lines.len() {
        for column in 0..names.len() {
            values.push(value(column, graph)?);
        }
    }
    let target = |name: &&str| Target { name: (*name).to_owned(), classes: Vec::new() };
    Ok((names.iter().map(target).collect(), values))
}

/// The rows of `nodes.csv`.
struct Nodes {
    /// For each graph, the number of each of its nodes.
    numbers: Vec<HashMap<String, u32>>,
    rows: Rows,
    /// Rows in the order of the graphs.
    order: Vec<u32>,
    pointers: Vec<u64>,
}

impl Nodes {
    fn read(files: &SourceFiles, graphs: &Graphs) -> Result<Self, DatasetError> {
        let file = "nodes.csv";
        let table = CsvTable::required(files, file, "it lists the nodes of the graphs and their features")?;
        let (graph_id, node_id) = (table.column("graph_id")?, table.column("node_id")?);
        let (continuous, categorical) = (table.starting_with("x_", Some("x")), table.starting_with("c_", Some("c")));
        let mut values: Vec<Vec<f32>> = vec![Vec::new(); continuous.len()];
        let mut cells: Vec<Vec<String>> = vec![Vec::new(); categorical.len()];
        let mut numbers = vec![HashMap::new(); graphs.ids.len()];
        let mut of_graph: Vec<Vec<u32>> = vec![Vec::new(); graphs.ids.len()];
        let mut count = 0;
        table.each_row(|row| {
            let name = row.text(graph_id)?;
            let unknown = || row.error(graph_id, &format!("'{name}'"), "a graph of graphs.csv");
            let graph = *graphs.positions.get(name).ok_or_else(unknown)? as usize;
            let node = row.text(node_id)?.to_owned();
            let number = of_graph[graph].len();
            expect_few_nodes(file, row.line, number + 1, name)?;
            if numbers[graph].insert(node.clone(), number as u32).is_some() {
                let found = format!("'{node}' a second time in graph {name}");
                return Err(row.error(node_id, &found, "each node of a graph once"));
            }
            of_graph[graph].push(count);
            count += 1;
            for (values, &column) in values.iter_mut().zip(&continuous) {
                values.push(row.number(column)?);
            }
            for (cells, &column) in cells.iter_mut().zip(&categorical) {
                cells.push(row.text(column)?.to_owned());
            }
            Ok(())
        })?;
        if let Some(empty) = of_graph.iter().position(Vec::is_empty) {
            let detail = format!(
                "graph '{}' has no row in {file}; add its nodes, or remove it from {GRAPHS}",
                graphs.ids[empty]
            );
            return Err(DatasetError::Unusable { root: files.root().to_owned(), detail });
        }
        let (mut features, mut parts) = (Vec::new(), Vec::new());
        for (part, &column) in values.into_iter().zip(&continuous) {
            features.push(Feature { name: table.columns()[column].clone(), values: None });
            parts.push(part);
        }
        for (cells, &column) in cells.iter().zip(&categorical) {
            let (known, of_row) = numbered(cells);
            let mut one_hot = vec![0.0; cells.len() * known.len()];
            of_row.iter().enumerate().for_each(|(row, &value)| one_hot[row * known.len() + value as usize] = 1.0);
            features.push(Feature { name: table.columns()[column].clone(), values: Some(known) });
            parts.push(one_hot);
        }
        let mut pointers = vec![0u64];
        of_graph.iter().for_each(|nodes| pointers.push(pointers[pointers.len() - 1] + nodes.len() as u64));
        let rows = Rows::joined(features, &parts, count as usize);
        Ok(Self { numbers, rows, order: of_graph.concat(), pointers })
    }
}

fn edges(
    files: &SourceFiles,
    graphs: &Graphs,
    nodes: &Nodes,
    directed: bool,
) -> Result<(Vec<RawEdge>, Rows), DatasetError> {
    let table = CsvTable::required(files, "edges.csv", "it lists the edges of the graphs")?;
    let (graph_id, ends) = (table.column("graph_id")?, [table.column("source")?, table.column("target")?]);
    let columns = table.starting_with("e_", Some("e"));
    let mut values: Vec<Vec<f32>> = vec![Vec::new(); columns.len()];
    let mut edges = Vec::new();
    let mut count = 0;
    table.each_row(|row| {
        let name = row.text(graph_id)?;
        let unknown = || row.error(graph_id, &format!("'{name}'"), "a graph of graphs.csv");
        let graph = *graphs.positions.get(name).ok_or_else(unknown)?;
        let of_graph = &nodes.numbers[graph as usize];
        let end = |column: usize| {
            let node = row.text(column)?;
            let unknown =
                || row.error(column, &format!("node '{node}'"), &format!("a node of graph {name} in nodes.csv"));
            of_graph.get(node).copied().ok_or_else(unknown)
        };
        let (source, target) = (end(ends[0])?, end(ends[1])?);
        edges.push(RawEdge { graph, source, target, row: count });
        if !directed {
            edges.push(RawEdge { graph, source: target, target: source, row: count });
        }
        count += 1;
        for (values, &column) in values.iter_mut().zip(&columns) {
            values.push(row.number(column)?);
        }
        Ok(())
    })?;
    let feature = |&column: &usize| Feature { name: table.columns()[column].clone(), values: None };
    Ok((edges, Rows::joined(columns.iter().map(feature).collect(), &values, count as usize)))
}
