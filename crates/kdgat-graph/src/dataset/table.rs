//! Reads the tabular format: tables of graphs, nodes and edges in a folder or zip archive, and optionally `kdgat-graphs.toml`.
//!
//! | file | columns |
//! |---|---|
//! | `graphs.csv` | `graph_id`, targets of graphs `y` or `y_*`, optionally `split` |
//! | `nodes.csv` | `graph_id`, `node_id`, continuous `x_*`, categorical `c_*`, optionally `pos_x`, `pos_y`, `pos_z`, targets of nodes `y` or `y_*` |
//! | `edges.csv` | `graph_id`, `source`, `target`, continuous `e_*`; left out if edges are made from positions |
//!
//! Each may be Parquet instead (`graphs.parquet`, …).

use std::collections::HashMap;

use super::error::{DatasetError, Origin, Place};
use super::graph_set::{Edges, GraphSet, RawEdge, SortedEdges, expect_few_nodes};
use super::node_target_table::{NodeTargetReader, NodeTargets};
use super::radius::{EdgeMaker, Radius};
use super::schema::{Feature, Level, Schema, numbered};
use super::settings::Settings;
use super::source_files::SourceFiles;
use super::table_file::{Row, TableFile, is_table};
use super::targets::{TargetCells, Targets, split_of};
use super::tu::Rows;
use crate::Split;

/// The table that lists the graphs; it marks this format.
pub(super) const GRAPHS: &str = "graphs";
const NODES: &str = "nodes";
const EDGES: &str = "edges";
const NEEDED_TARGET: &str = "a column y, columns y_*, or `targets` in kdgat-graphs.toml, in the table of graphs or, for targets of nodes, in that of nodes";
/// Columns of positions.
const POSITION: [&str; 3] = ["pos_x", "pos_y", "pos_z"];

/// Reads a dataset of this format.
///
/// # Errors
/// A missing file or column, or a row that does not fit, with its line.
pub(super) fn read(files: &SourceFiles) -> Result<GraphSet, DatasetError> {
    let settings = Settings::read(files)?;
    let radius = settings.radius()?;
    let table = TableFile::required(files, GRAPHS, "it lists the graphs and their targets")?;
    let level = level_of(files, &settings, &table)?;
    let mut graphs = Graphs::read(&table, &settings, level)?;
    let mut nodes = Nodes::read(files, &graphs, &settings, level)?;
    let edges = match radius {
        Some(radius) => made_edges(files, &settings, radius, &graphs, &nodes)?,
        None => listed_edges(files, &graphs, &nodes, settings.directed())?,
    };
    let (targets, graph_targets, node_targets) = match (graphs.targets.take(), nodes.targets.take()) {
        (_, Some(targets)) => {
            let rows = targets.of_all(&nodes.order);
            (targets.known, Vec::new(), rows)
        }
        (Some(mut targets), None) => {
            let values = std::mem::take(&mut targets.values);
            (targets, values, Vec::new())
        }
        (None, None) => return Err(table.header().error("no target", NEEDED_TARGET)),
    };
    let root = files.root().file_stem().map_or("graphs".into(), |name| name.to_string_lossy().into_owned());
    Ok(GraphSet {
        name: settings.name.unwrap_or(root),
        schema: Schema {
            task: targets.task,
            level,
            targets: targets.targets,
            node_features: nodes.rows.features.clone(),
            edge_features: edges.features,
        },
        graph_ids: graphs.ids,
        node_ids: if level.is_graph() { Vec::new() } else { nodes.numbers.iter().map(names_of).collect() },
        node_features: nodes.rows.ordered(nodes.order.iter().copied()),
        node_pointers: nodes.pointers,
        edge_features: edges.values,
        edge_pointers: edges.pointers,
        sources: edges.sources,
        targets: edges.targets,
        graph_targets,
        node_targets,
        splits: graphs.splits,
        left_out: edges.left_out,
        position_hashes: edges.position_hashes,
    })
}

/// The owner of the targets: by the task, else nodes if the table of graphs has no target and that of nodes has one.
fn level_of(files: &SourceFiles, settings: &Settings, graphs: &TableFile) -> Result<Level, DatasetError> {
    if let Some((_, level)) = settings.task() {
        return Ok(level);
    }
    let has_targets = |table: &TableFile| match &settings.targets {
        Some(names) => names.iter().all(|name| table.find(name).is_some()),
        None => !table.starting_with("y_", Some("y")).is_empty(),
    };
    let of_nodes = !has_targets(graphs) && TableFile::read(files, NODES)?.is_some_and(|nodes| has_targets(&nodes));
    Ok(if of_nodes { Level::Node } else { Level::Graph })
}

/// The rows of the table of graphs.
pub(super) struct Graphs {
    pub file: String,
    pub ids: Vec<String>,
    /// Position of each graph.
    positions: HashMap<String, u32>,
    /// Line or row of each graph.
    places: Vec<Place>,
    pub splits: Option<Vec<Split>>,
    /// `None` if nodes have the targets.
    targets: Option<Targets>,
}

impl Graphs {
    fn read(table: &TableFile, settings: &Settings, level: Level) -> Result<Self, DatasetError> {
        let id = table.column("graph_id")?;
        let columns = if level.is_graph() { target_columns(table, settings)? } else { Vec::new() };
        let split = match &settings.split {
            Some(name) => Some(table.column(name)?),
            None => table.find("split"),
        };
        let (mut ids, mut positions, mut places) = (Vec::new(), HashMap::new(), Vec::new());
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
            places.push(row.place);
            Ok(())
        })?;
        if ids.is_empty() {
            return Err(table.header().error("no graph", "a row for each graph"));
        }
        let targets = match level {
            Level::Node => None,
            Level::Graph => {
                let names = columns.iter().map(|&column| table.columns()[column].clone()).collect();
                let origins = places.iter().map(|&place| Origin { file: table.file(), place }).collect();
                let cells = TargetCells { names, cells, splits: splits.clone(), origins, header: table.header() };
                Some(cells.parse(settings.task().map(|(task, _)| task))?)
            }
        };
        Ok(Self { file: table.file().to_owned(), ids, positions, places, splits, targets })
    }

    /// The graph that a row of another table names.
    fn of_row(&self, row: &Row<'_>, column: usize) -> Result<u32, DatasetError> {
        let name = row.text(column)?;
        let unknown = || row.error(column, &format!("'{name}'"), &format!("a graph of {}", self.file));
        self.positions.get(name).copied().ok_or_else(unknown)
    }
}

fn target_columns(table: &TableFile, settings: &Settings) -> Result<Vec<usize>, DatasetError> {
    let columns = match &settings.targets {
        Some(names) => names.iter().map(|name| table.column(name)).collect::<Result<Vec<_>, _>>()?,
        None => table.starting_with("y_", Some("y")),
    };
    if columns.is_empty() {
        let found = format!("no target among {}", table.columns().join(", "));
        return Err(table.header().error(found, NEEDED_TARGET));
    }
    Ok(columns)
}

/// The rows of the table of nodes.
struct Nodes {
    file: String,
    /// For each graph, the number of each of its nodes.
    numbers: Vec<HashMap<String, u32>>,
    rows: Rows,
    /// Position of each row, if the table has positions.
    positions: Option<Vec<[f64; 3]>>,
    /// Rows in the order of the graphs.
    order: Vec<u32>,
    pointers: Vec<u64>,
    /// `None` if graphs have the targets.
    targets: Option<NodeTargets>,
}

impl Nodes {
    fn read(files: &SourceFiles, graphs: &Graphs, settings: &Settings, level: Level) -> Result<Self, DatasetError> {
        let table = TableFile::required(files, NODES, "it lists the nodes of the graphs and their features")?;
        let mut targets = match level {
            Level::Node => Some(NodeTargetReader::new(target_columns(&table, settings)?)),
            Level::Graph => None,
        };
        let (graph_id, node_id) = (table.column("graph_id")?, table.column("node_id")?);
        let (continuous, categorical) = (table.starting_with("x_", Some("x")), table.starting_with("c_", Some("c")));
        let coordinates = position_columns(&table)?;
        let mut positions = coordinates.map(|_| Vec::new());
        let mut values: Vec<Vec<f32>> = vec![Vec::new(); continuous.len()];
        let mut cells: Vec<Vec<String>> = vec![Vec::new(); categorical.len()];
        let mut numbers = vec![HashMap::new(); graphs.ids.len()];
        let mut of_graph: Vec<Vec<u32>> = vec![Vec::new(); graphs.ids.len()];
        let mut count = 0;
        table.each_row(|row| {
            let graph = graphs.of_row(&row, graph_id)? as usize;
            let (name, node) = (&graphs.ids[graph], row.text(node_id)?.to_owned());
            let number = of_graph[graph].len();
            expect_few_nodes(row.origin(), number + 1, name)?;
            if numbers[graph].contains_key(&node) {
                let found = format!("'{node}' a second time in graph {name}");
                return Err(row.error(node_id, &found, "each node of a graph once"));
            }
            numbers[graph].insert(node, number as u32);
            of_graph[graph].push(count);
            count += 1;
            for (values, &column) in values.iter_mut().zip(&continuous) {
                values.push(row.number(column)?);
            }
            for (cells, &column) in cells.iter_mut().zip(&categorical) {
                cells.push(row.text(column)?.to_owned());
            }
            if let Some(targets) = &mut targets {
                targets.add(&row, graph as u32)?;
            }
            if let (Some(positions), Some([x, y, z])) = (&mut positions, coordinates) {
                positions.push([row.coordinate(x)?, row.coordinate(y)?, row.coordinate(z)?]);
            }
            Ok(())
        })?;
        if let Some(empty) = of_graph.iter().position(Vec::is_empty) {
            let (graph, file, from) = (&graphs.ids[empty], table.file(), &graphs.file);
            let detail = format!("graph '{graph}' has no row in {file}; add its nodes, or remove it from {from}");
            return Err(DatasetError::Unusable { root: files.root().to_owned(), detail });
        }
        let targets = targets.map(|targets| targets.finish(&table, graphs, settings)).transpose()?;
        let name = |&column: &usize| table.columns()[column].clone();
        let continuous = continuous.iter().map(name).zip(values).collect();
        let categorical = categorical.iter().map(name).zip(cells).collect();
        let rows = feature_rows(continuous, categorical, count as usize);
        let mut pointers = vec![0u64];
        of_graph.iter().for_each(|nodes| pointers.push(pointers[pointers.len() - 1] + nodes.len() as u64));
        let order = of_graph.concat();
        Ok(Self { file: table.file().to_owned(), numbers, rows, positions, order, pointers, targets })
    }
}

/// The names of a graph's nodes, by their numbers.
fn names_of(numbers: &HashMap<String, u32>) -> Vec<String> {
    let mut names = vec![String::new(); numbers.len()];
    numbers.iter().for_each(|(name, &number)| names[number as usize].clone_from(name));
    names
}

/// Columns of positions: all three, or none.
fn position_columns(table: &TableFile) -> Result<Option<[usize; 3]>, DatasetError> {
    let found = POSITION.map(|name| table.find(name));
    match found {
        [None, None, None] => Ok(None),
        [Some(x), Some(y), Some(z)] => Ok(Some([x, y, z])),
        _ => {
            let names = |is_there: bool| {
                let named = POSITION.into_iter().zip(found).filter(|(_, column)| column.is_some() == is_there);
                named.map(|(name, _)| name).collect::<Vec<_>>().join(", ")
            };
            let problem = format!("{} without {}", names(true), names(false));
            Err(table.header().error(problem, "all of pos_x, pos_y, pos_z, or none"))
        }
    }
}

/// Continuous columns, then categorical ones, one-hot.
fn feature_rows(continuous: Vec<(String, Vec<f32>)>, categorical: Vec<(String, Vec<String>)>, rows: usize) -> Rows {
    let (mut features, mut parts) = (Vec::new(), Vec::new());
    for (name, values) in continuous {
        features.push(Feature { name, values: None });
        parts.push(values);
    }
    for (name, cells) in categorical {
        let (known, of_row) = numbered(&cells);
        let mut one_hot = vec![0.0; cells.len() * known.len()];
        of_row.iter().enumerate().for_each(|(row, &value)| one_hot[row * known.len() + value as usize] = 1.0);
        features.push(Feature { name, values: Some(known) });
        parts.push(one_hot);
    }
    Rows::joined(features, &parts, rows)
}

/// Edges between nodes within the cutoff.
fn made_edges(
    files: &SourceFiles,
    settings: &Settings,
    radius: Radius,
    graphs: &Graphs,
    nodes: &Nodes,
) -> Result<Edges, DatasetError> {
    if let Some(file) = files.names().iter().find(|file| is_table(file, EDGES)) {
        let expected = format!(
            "one of the two: remove {file} to make edges from the positions, or remove `cutoff` to use the edges of {file}"
        );
        return Err(settings.cutoff_origin().error(format!("`cutoff` beside {file}"), expected));
    }
    let Some(positions) = &nodes.positions else {
        let found = format!("`cutoff`, but {} has no positions", nodes.file);
        return Err(settings.cutoff_origin().error(found, format!("columns {} there", POSITION.join(", "))));
    };
    let mut maker = EdgeMaker::new(radius);
    for (graph, id) in graphs.ids.iter().enumerate() {
        let rows = &nodes.order[nodes.pointers[graph] as usize..nodes.pointers[graph + 1] as usize];
        let of_graph: Vec<[f64; 3]> = rows.iter().map(|&row| positions[row as usize]).collect();
        maker.add(&of_graph, None, id, Origin { file: &graphs.file, place: graphs.places[graph] })?;
    }
    Ok(maker.finish())
}

/// The rows of the table of edges.
fn listed_edges(files: &SourceFiles, graphs: &Graphs, nodes: &Nodes, directed: bool) -> Result<Edges, DatasetError> {
    let expected = match nodes.positions {
        Some(_) => {
            "it lists the edges of the graphs; to make edges from the positions, set `cutoff` in kdgat-graphs.toml"
        }
        None => "it lists the edges of the graphs",
    };
    let table = TableFile::required(files, EDGES, expected)?;
    let (graph_id, ends) = (table.column("graph_id")?, [table.column("source")?, table.column("target")?]);
    let columns = table.starting_with("e_", Some("e"));
    let mut values: Vec<Vec<f32>> = vec![Vec::new(); columns.len()];
    let mut edges = Vec::new();
    let mut count = 0;
    table.each_row(|row| {
        let graph = graphs.of_row(&row, graph_id)?;
        let (name, of_graph) = (&graphs.ids[graph as usize], &nodes.numbers[graph as usize]);
        let end = |column: usize| {
            let node = row.text(column)?;
            let expected = || format!("a node of graph {name} in {}", nodes.file);
            let unknown = || row.error(column, &format!("node '{node}'"), &expected());
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
    let rows = Rows::joined(columns.iter().map(feature).collect(), &values, count as usize);
    let sorted = SortedEdges::new(edges, graphs.ids.len());
    Ok(Edges {
        values: rows.ordered(sorted.rows.iter().copied()),
        features: rows.features,
        pointers: sorted.pointers,
        sources: sorted.sources,
        targets: sorted.targets,
        left_out: sorted.left_out,
        position_hashes: None,
    })
}
