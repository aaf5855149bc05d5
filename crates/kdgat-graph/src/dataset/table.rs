//! Reads the tabular format: tables of graphs, nodes and edges in a folder or zip archive, and optionally `kdgat-graphs.toml`.
//!
//! | file | columns |
//! |---|---|
//! | `graphs.csv` | `graph_id`, targets of graphs `y` or `y_*`, optionally `split` |
//! | `nodes.csv` | `graph_id`, `node_id`, continuous `x_*`, categorical `c_*`, optionally `pos_x`, `pos_y`, `pos_z`, forces `f_x`, `f_y`, `f_z`, targets of nodes `y` or `y_*` |
//! | `edges.csv` | `graph_id`, `source`, `target`, continuous `e_*`, categorical `kind`; may be left out if nodes have positions |
//! | `angles.csv` | optional, of nodes with positions: `graph_id`, `i`, `j`, `k`, parameters `a_*` |
//! | `dihedrals.csv` | the same: `graph_id`, `i`, `j`, `k`, `l`, parameters `d_*` |
//!
//! Each may be Parquet instead (`graphs.parquet`, …). A target that is named like a feature is no feature.

use std::collections::HashMap;

use super::error::{DatasetError, Origin, Place};
use super::feature_rows::{Cells, Column, Rows};
use super::graph_set::{BOTH_WAYS, Edges, GraphSet, LISTED, RawEdge, SortedEdges, expect_few_nodes};
use super::nearest_points::NearestEdges;
use super::node_places::{NodePlaces, POSITION, PlaceReader};
use super::node_target_table::{NodeTargetReader, NodeTargets};
use super::path_table::PathSource;
use super::radius::{EdgeMaker, Radius};
use super::rooted::{OutsideRoot, rooted};
use super::schema::{Level, Schema};
use super::settings::Settings;
use super::source_files::SourceFiles;
use super::table_file::{Row, TableFile, described, is_table};
use super::targets::{TargetCells, Targets, split_of};
use crate::{OfPaths, PathList, Split};

/// The table of graphs.
pub(super) const GRAPHS: &str = "graphs";
/// The table of nodes.
pub(super) const NODES: &str = "nodes";
/// The table of edges.
pub(super) const EDGES: &str = "edges";
/// The table of the roots of trees.
pub(super) const ROOTS: &str = "roots";
/// Column of edges with their kinds: a categorical feature.
const KIND: &str = "kind";
const NEEDED_TARGET: &str = "a column y, columns y_*, or `targets` in kdgat-graphs.toml, in the table of graphs or, for targets of nodes, in that of nodes";
const MISSING_GRAPHS: &str = "it lists the graphs and their targets; for one large graph, write `task = \"node-class\"` into kdgat-graphs.toml (docs/nodes.md)";
/// Advice against categorical columns of nodes with too many values.
const TOO_MANY_VALUES: &str =
    "leave the column out, give rare values one name, or name it x_* if its values are numbers with a meaning";

/// Reads a dataset of this format.
///
/// # Errors
/// A missing file or column, or a row that does not fit, with its line.
pub(super) fn read(files: &SourceFiles) -> Result<GraphSet, DatasetError> {
    let settings = Settings::read(files)?;
    settings.expect_no_test_files()?;
    settings.expect_no_resample()?;
    let radius = settings.radius()?;
    let table = TableFile::required(files, GRAPHS, MISSING_GRAPHS)?;
    let level = level_of(files, &settings, &table)?;
    let mut graphs = Graphs::read(&table, &settings, level)?;
    let mut nodes = Nodes::read(files, &graphs, &settings, level)?;
    let edges = match (settings.knn()?, radius) {
        (Some(count), _) => nearest_edges(files, &settings, count, &graphs, &nodes)?,
        _ if !settings.wants_edges()? => no_edges(files, &settings, &graphs, &nodes)?,
        (None, Some(radius)) => made_edges(files, &settings, radius, &graphs, &nodes)?,
        (None, None) if nodes.places.is_some() && !files.names().iter().any(|file| is_table(file, EDGES)) => {
            no_edges(files, &settings, &graphs, &nodes)?
        }
        (None, None) => listed_edges(files, &graphs, &nodes, settings.directed())?,
    };
    let paths = PathSource { files, settings: &settings, graphs: &graphs, nodes: &nodes, edges: &edges };
    let paths = OfPaths::try_of(|kind| paths.read(kind))?;
    let space = nodes.places.as_ref();
    let mut space = space.map(|places| places.space(&graphs.ids, &nodes.order, &nodes.pointers, &settings));
    if let Some(space) = &mut space {
        space.schema.paths = paths.map(|table| table.parameters.clone());
        let lists = [paths.angles, paths.dihedrals];
        space.set.paths = lists.map(|table| table.map_or_else(PathList::default, |table| table.list));
    }
    let (mut targets, graph_targets, node_targets) = match (graphs.targets.take(), nodes.targets.take()) {
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
    let roots = tree_roots(files, &settings, &graphs, &nodes)?;
    let places = graphs.places.clone();
    let root = files.root().file_stem().map_or("graphs".into(), |name| name.to_string_lossy().into_owned());
    let described = described(files)?.and_then(|dataset| dataset.name);
    let kinds = nodes.places.as_ref().and_then(|places| places.kinds_column.as_deref());
    let made = made_text(&edges.made, kinds, settings.tree());
    let set = GraphSet {
        name: settings.name.clone().or(described).unwrap_or(root),
        schema: Schema {
            task: targets.task,
            level,
            targets: targets.targets,
            node_features: nodes.rows.features.clone(),
            edge_features: edges.features,
            space: space.as_ref().map(|space| space.schema.clone()),
        },
        graph_ids: graphs.ids,
        node_ids: if level.is_graph() { Vec::new() } else { nodes.numbers.iter().map(names_of).collect() },
        without_targets: Vec::new(),
        notes: [table.notes(), &nodes.notes, &edges.notes, &targets.notes].concat(),
        node_features: nodes.rows.ordered(nodes.order.iter().copied()),
        node_pointers: nodes.pointers,
        edge_features: edges.values,
        edge_pointers: edges.pointers,
        sources: edges.sources,
        targets: edges.targets,
        graph_targets,
        // Those of nodes are not kept.
        target_rests: if level.is_graph() { std::mem::take(&mut targets.rests) } else { Vec::new() },
        node_targets,
        splits: graphs.splits,
        left_out: edges.left_out,
        position_hashes: space.as_ref().map(|space| space.hashes.clone()),
        lists_edges: edges.are_listed,
        made,
        space: space.map(|space| space.set),
    };
    let Some(roots) = roots else { return Ok(set) };
    rooted(set, &roots).map_err(|(graph, OutsideRoot { nodes: [own, largest] })| {
        let origin = Origin { file: &graphs.file, place: places[graph] };
        let found = format!("the root of its tree is in a component of {own} nodes");
        origin.error(found, format!("a root in the largest component, which has {largest}"))
    })
}

/// Description of the edges, of the column with the kinds of nodes, and of the trees that are made if the settings say so.
fn made_text(edges: &str, kinds: Option<&str>, tree: Option<&str>) -> String {
    let kinds = kinds.map_or(String::new(), |kinds| format!(", kinds by {kinds}"));
    let trees = match tree {
        None => "",
        Some("degree") => ", trees from the node with the most edges",
        // By its name, or in a table.
        Some(_) => ", trees from a given root",
    };
    format!("{edges}{kinds}{trees}")
}

/// The given root of each graph's tree, or `None` for the node with the most edges; `None` for all if no trees are made.
fn tree_roots(
    files: &SourceFiles,
    settings: &Settings,
    graphs: &Graphs,
    nodes: &Nodes,
) -> Result<Option<Vec<Option<u32>>>, DatasetError> {
    let Some(tree) = settings.tree() else { return Ok(None) };
    if nodes.places.is_none() {
        let found = format!("`tree`, but {} has no positions", nodes.file);
        return Err(settings.tree_origin().error(found, format!("columns {} there", POSITION.join(", "))));
    }
    let mut roots = vec![None; graphs.ids.len()];
    match tree {
        "degree" => {}
        "file" => {
            let table =
                TableFile::required(files, ROOTS, "it names the root of each graph's tree (`tree = \"file\"`)")?;
            let (graph_id, node_id) = (table.column("graph_id")?, table.column("node_id")?);
            table.each_row(|row| {
                let graph = graphs.of_row(&row, graph_id)?;
                let known = nodes.number_of(graphs, graph, (&row, node_id))?;
                match roots[graph as usize].replace(known) {
                    None => Ok(()),
                    Some(_) => Err(row.error(graph_id, "a second root", "one root for each graph")),
                }
            })?;
            if let Some(without) = roots.iter().position(Option::is_none) {
                let found = format!("no root of graph {}", graphs.ids[without]);
                return Err(table.header().error(found, "a row for each graph"));
            }
        }
        name => {
            for (graph, root) in roots.iter_mut().enumerate() {
                *root = nodes.numbers[graph].get(name).copied();
                if root.is_none() {
                    let found = format!("tree = \"{name}\", and graph {} has no node of that name", graphs.ids[graph]);
                    let expected = format!("degree, file (a table {ROOTS}), or the node_id of the root in every graph");
                    return Err(settings.tree_origin().error(found, expected));
                }
            }
        }
    }
    Ok(Some(roots))
}

/// Edges between the nodes and their nearest ones.
fn nearest_edges(
    files: &SourceFiles,
    settings: &Settings,
    count: usize,
    graphs: &Graphs,
    nodes: &Nodes,
) -> Result<Edges, DatasetError> {
    if let Some(file) = files.names().iter().find(|file| is_table(file, EDGES)) {
        let expected = format!("one of the two: remove {file}, or `knn` to use the edges of {file}");
        return Err(settings.knn_origin().error(format!("`knn` beside {file}"), expected));
    }
    let Some(places) = &nodes.places else {
        let found = format!("`knn`, but {} has no positions", nodes.file);
        return Err(settings.knn_origin().error(found, format!("columns {} there", POSITION.join(", "))));
    };
    let mut maker = NearestEdges::new(count);
    for graph in 0..graphs.ids.len() {
        let rows = &nodes.order[nodes.pointers[graph] as usize..nodes.pointers[graph + 1] as usize];
        let of_graph: Vec<[f64; 3]> = rows.iter().map(|&row| places.positions[row as usize]).collect();
        maker.add(&of_graph);
    }
    Ok(maker.finish())
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
                cells.push(row.cell(column).to_owned());
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
    pub fn of_row(&self, row: &Row<'_>, column: usize) -> Result<u32, DatasetError> {
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
pub(super) struct Nodes {
    pub file: String,
    /// For each graph, the number of each of its nodes.
    numbers: Vec<HashMap<String, u32>>,
    rows: Rows,
    /// Positions, forces and kinds of the rows, if the table has positions that are no targets.
    pub places: Option<NodePlaces>,
    /// Rows in the order of the graphs.
    order: Vec<u32>,
    pointers: Vec<u64>,
    /// `None` if graphs have the targets.
    targets: Option<NodeTargets>,
    /// Facts about the columns that may surprise.
    notes: Vec<String>,
}

impl Nodes {
    fn read(files: &SourceFiles, graphs: &Graphs, settings: &Settings, level: Level) -> Result<Self, DatasetError> {
        let table = TableFile::required(files, NODES, "it lists the nodes of the graphs and their features")?;
        let mut targets = match level {
            Level::Node => Some(NodeTargetReader::new(target_columns(&table, settings)?)),
            Level::Graph => None,
        };
        let (graph_id, node_id) = (table.column("graph_id")?, table.column("node_id")?);
        let target_columns: &[usize] = targets.as_ref().map_or(&[], NodeTargetReader::columns);
        let (features, of_targets) = feature_columns(&table, target_columns);
        let notes = [table.notes(), &of_targets].concat();
        let FeatureColumns { continuous, categorical } = features;
        let mut places = PlaceReader::new(&table, target_columns, settings)?;
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
            if let Some(places) = &mut places {
                places.add(&row)?;
            }
            Ok(())
        })?;
        if let Some(empty) = of_graph.iter().position(Vec::is_empty) {
            let (graph, file, from) = (&graphs.ids[empty], table.file(), &graphs.file);
            let detail = format!(
                "graph '{graph}' has no row in {file}; add its nodes, or remove all of its rows, those of {from} and of its edges"
            );
            return Err(DatasetError::Unusable { root: files.root().to_owned(), detail });
        }
        let targets = targets.map(|targets| targets.finish(&table, graphs, settings)).transpose()?;
        let places = places.map(|places| places.finish(&table, &categorical, &cells));
        let column = |column: usize, cells: Cells| {
            let (name, origin) = (table.columns()[column].clone(), table.header());
            Column { name, cells, origin, remedy: TOO_MANY_VALUES }
        };
        let of_numbers = continuous.into_iter().zip(values.into_iter().map(Cells::Numbers));
        let of_texts = categorical.into_iter().zip(cells.into_iter().map(Cells::Texts));
        let columns = of_numbers.chain(of_texts);
        let rows = Rows::new(columns.map(|(at, cells)| column(at, cells)).collect(), count as usize)?;
        let mut pointers = vec![0u64];
        of_graph.iter().for_each(|nodes| pointers.push(pointers[pointers.len() - 1] + nodes.len() as u64));
        let order = of_graph.concat();
        Ok(Self { file: table.file().to_owned(), numbers, rows, places, order, pointers, targets, notes })
    }
}

impl Nodes {
    /// The number of the node of a graph that a row of another table names in a column.
    pub fn number_of(
        &self,
        graphs: &Graphs,
        graph: u32,
        (row, column): (&Row<'_>, usize),
    ) -> Result<u32, DatasetError> {
        let (node, graph) = (row.text(column)?, graph as usize);
        let expected = || format!("a node of graph {} in {}", graphs.ids[graph], self.file);
        let unknown = || row.error(column, &format!("node '{node}'"), &expected());
        self.numbers[graph].get(node).copied().ok_or_else(unknown)
    }
}

/// The names of a graph's nodes, by their numbers.
fn names_of(numbers: &HashMap<String, u32>) -> Vec<String> {
    let mut names = vec![String::new(); numbers.len()];
    numbers.iter().for_each(|(name, &number)| names[number as usize].clone_from(name));
    names
}

/// The columns of features in the table of nodes.
struct FeatureColumns {
    continuous: Vec<usize>,
    categorical: Vec<usize>,
}

/// The columns of features without the targets, and a note for each target that is named like a feature.
fn feature_columns(table: &TableFile, targets: &[usize]) -> (FeatureColumns, Vec<String>) {
    let (mut continuous, mut categorical) =
        (table.starting_with("x_", Some("x")), table.starting_with("c_", Some("c")));
    let mut notes = Vec::new();
    for features in [&mut continuous, &mut categorical] {
        features.retain(|column| {
            let is_target = targets.contains(column);
            if is_target {
                notes.push(format!("{} is a target and so no feature of nodes", table.columns()[*column]));
            }
            !is_target
        });
    }
    (FeatureColumns { continuous, categorical }, notes)
}

/// The dataset without edges, because it has no table of them or `edges = false`.
fn no_edges(files: &SourceFiles, settings: &Settings, graphs: &Graphs, nodes: &Nodes) -> Result<Edges, DatasetError> {
    if let Some(file) = files.names().iter().find(|file| is_table(file, EDGES)) {
        let expected = format!("one of the two: remove {file}, or `edges = false` to use the edges of {file}");
        return Err(settings.edges_origin().error(format!("`edges = false` beside {file}"), expected));
    }
    match nodes.places {
        Some(_) => Ok(Edges::none(graphs.ids.len())),
        None => {
            let found = format!("`edges = false`, but {} has no positions", nodes.file);
            Err(settings.edges_origin().error(found, format!("columns {} there", POSITION.join(", "))))
        }
    }
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
    let Some(places) = &nodes.places else {
        let found = format!("`cutoff`, but {} has no positions", nodes.file);
        return Err(settings.cutoff_origin().error(found, format!("columns {} there", POSITION.join(", "))));
    };
    let mut maker = EdgeMaker::new(radius);
    for (graph, id) in graphs.ids.iter().enumerate() {
        let rows = &nodes.order[nodes.pointers[graph] as usize..nodes.pointers[graph + 1] as usize];
        let of_graph: Vec<[f64; 3]> = rows.iter().map(|&row| places.positions[row as usize]).collect();
        let origin = Origin { file: &graphs.file, place: graphs.places[graph] };
        maker.add(&of_graph, None).map_err(|reason| maker.error(reason, id, origin))?;
    }
    Ok(maker.finish())
}

/// The rows of the table of edges.
fn listed_edges(files: &SourceFiles, graphs: &Graphs, nodes: &Nodes, directed: bool) -> Result<Edges, DatasetError> {
    let table = TableFile::required(files, EDGES, "it lists the edges of the graphs")?;
    let (graph_id, ends) = (table.column("graph_id")?, [table.column("source")?, table.column("target")?]);
    let columns = table.starting_with("e_", Some("e"));
    let kind = table.find(KIND);
    let mut kinds = Vec::new();
    let mut values: Vec<Vec<f32>> = vec![Vec::new(); columns.len()];
    let mut edges = Vec::new();
    let mut count = 0;
    table.each_row(|row| {
        let graph = graphs.of_row(&row, graph_id)?;
        let end = |column: usize| nodes.number_of(graphs, graph, (&row, column));
        let (source, target) = (end(ends[0])?, end(ends[1])?);
        edges.push(RawEdge { graph, source, target, row: count });
        if !directed {
            edges.push(RawEdge { graph, source: target, target: source, row: count });
        }
        count += 1;
        for (values, &column) in values.iter_mut().zip(&columns) {
            values.push(row.number(column)?);
        }
        if let Some(column) = kind {
            kinds.push(row.text(column)?.to_owned());
        }
        Ok(())
    })?;
    let of_kind = kind.map(|_| Column {
        name: KIND.to_owned(),
        cells: Cells::Texts(kinds),
        origin: table.header(),
        remedy: "give rare kinds of edges one name",
    });
    let column = |(&column, values): (&usize, Vec<f32>)| {
        let name = table.columns()[column].clone();
        Column { name, cells: Cells::Numbers(values), origin: table.header(), remedy: TOO_MANY_VALUES }
    };
    let rows = Rows::new(columns.iter().zip(values).map(column).chain(of_kind).collect(), count as usize)?;
    let sorted = SortedEdges::new(edges, graphs.ids.len());
    Ok(Edges {
        values: rows.ordered(sorted.rows.iter().copied()),
        features: rows.features,
        pointers: sorted.pointers,
        sources: sorted.sources,
        targets: sorted.targets,
        left_out: sorted.left_out,
        are_listed: true,
        made: if directed { LISTED.to_owned() } else { format!("{LISTED}{BOTH_WAYS}") },
        notes: table.notes().to_vec(),
    })
}
