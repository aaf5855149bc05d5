//! Reads one graph from a tabular folder: tables of nodes and edges beside `kdgat-graphs.toml`.
//!
//! | file | content |
//! |---|---|
//! | `kdgat-graphs.toml` | `task = "node-class"`, optionally `name` |
//! | `nodes.csv` | `node_id`, class `y` (empty or NaN: no label), continuous `x_*`, categorical `c_*`, optionally `split` |
//! | `edges.csv` | `source`, `target` |
//!
//! Or the layout of DGL's `CSVDataset` for one graph, whose tables are converted to these ([`CsvDataset`]).
//!
//! Nodes are numbered in the order of the rows. Features are the continuous columns, then one column for each value of
//! each categorical one.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use kdgat_graph::dataset::{Converted, CsvDataset, Table, is_missing};
use kdgat_torch::allocator;
use serde::Deserialize;

use super::csv_table::{CsvTable, Row};
use super::raw_graph::{
    DenseRows, EdgeList, HashedRows, MOST_CLASSES, MOST_NODES, Mismatch, RawGraph, RepeatedColumn, SparseFeatures,
    class_of,
};
use super::{GraphOptions, name_of};
use crate::NodesError;
use crate::node_graph::{GivenSet, NO_LABEL};
use crate::node_hash;

const SETTINGS: &str = "kdgat-graphs.toml";
const NODES: &str = "nodes.csv";
const EDGES: &str = "edges.csv";
/// The task that distinguishes this format from tables of many graphs.
const TASK: &str = "node-class";

/// The content of `kdgat-graphs.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Name of the dataset; default: the folder's.
    name: Option<String>,
    /// [`TASK`].
    #[serde(rename = "task")]
    _task: String,
}

/// File that describes a dataset in DGL's layout.
const META: &str = "meta.yaml";
/// Other sources of a graph that would be ignored beside tables.
const OTHERS: [&str; 3] = ["graphs.csv", "graphs.parquet", META];

/// True if a folder has a `kdgat-graphs.toml` with this format's task, or a `meta.yaml` of DGL that describes one graph.
pub(super) fn is_table(path: &Path) -> bool {
    has_task(path) || is_described(path)
}

/// True if `meta.yaml` describes one graph; if it is that of DGL but cannot be read, so that the error is said.
fn is_described(path: &Path) -> bool {
    let found = CsvDataset::in_folder(path);
    found.map_or(true, |dataset| dataset.is_some_and(|dataset| dataset.graphs.is_none()))
}

fn has_task(path: &Path) -> bool {
    let text = std::fs::read_to_string(path.join(SETTINGS)).unwrap_or_default();
    // The reader of many graphs reports a file that is no TOML.
    let settings = text.parse::<toml::Table>().unwrap_or_default();
    settings.get("task").and_then(toml::Value::as_str) == Some(TASK)
}

/// The files of a dataset.
///
/// # Errors
/// A `meta.yaml` that cannot be read.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, NodesError> {
    let names = match described(path)? {
        Some(CsvDataset { nodes, edges, .. }) => vec![META.to_owned(), nodes, edges],
        None => [SETTINGS, NODES, EDGES].map(str::to_owned).into(),
    };
    Ok(names.into_iter().map(|name| path.join(name)).collect())
}

/// The description in DGL's layout, which counts unless the folder has settings of this program.
fn described(path: &Path) -> Result<Option<CsvDataset>, NodesError> {
    if has_task(path) { Ok(None) } else { Ok(CsvDataset::in_folder(path)?) }
}

/// Reads a graph.
///
/// # Errors
/// A missing file or column, or a row that does not fit, with its line.
pub(super) fn read(path: &Path, options: &GraphOptions) -> Result<RawGraph, NodesError> {
    let Tables { name, nodes, edges, notes: mut remarks } = Tables::open(path)?;
    let nodes = Nodes::read(nodes, options)?;
    let mut ignored_columns = nodes.ignored_columns;
    let edges = read_edges(edges, &nodes.numbers, &mut ignored_columns)?;
    remarks.extend(nodes.remarks);
    Ok(RawGraph {
        name: name.unwrap_or_else(|| name_of(path)),
        edges,
        features: nodes.features,
        labels: nodes.labels,
        split: nodes.split,
        class_names: nodes.class_names,
        ignored_columns,
        remarks,
    })
}

/// Name of a dataset: that of its settings, or of its folder.
///
/// # Errors
/// A missing file, or settings that cannot be read.
pub(super) fn dataset_name(path: &Path) -> Result<String, NodesError> {
    Ok(Tables::open(path)?.name.unwrap_or_else(|| name_of(path)))
}

/// The names of all nodes, in the order of the rows.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn node_names(path: &Path) -> Result<Vec<String>, NodesError> {
    let Tables { nodes: mut table, .. } = Tables::open(path)?;
    let node_id = table.column("node_id")?;
    let mut names = Vec::new();
    table.each_row(|row| {
        names.push(row.text(node_id)?.to_owned());
        Ok(())
    })?;
    Ok(names)
}

/// The open tables of a dataset.
struct Tables {
    /// Name of the dataset, if it has one besides that of its folder.
    name: Option<String>,
    nodes: CsvTable,
    edges: CsvTable,
    /// Columns and files that are not read.
    notes: Vec<String>,
}

impl Tables {
    fn open(path: &Path) -> Result<Self, NodesError> {
        if let Some(dataset) = described(path)? {
            return Self::converted(path, &dataset);
        }
        let settings = settings(path)?;
        let beside = OTHERS.into_iter().filter(|name| path.join(name).is_file());
        let notes = beside.map(|name| format!("{name} is not read beside task = \"{TASK}\"")).collect();
        let (nodes, edges) =
            (CsvTable::open(&path.join(NODES), "the nodes")?, CsvTable::open(&path.join(EDGES), "the edges")?);
        Ok(Self { name: settings.name, nodes, edges, notes })
    }

    /// The tables of a dataset in DGL's layout.
    fn converted(path: &Path, dataset: &CsvDataset) -> Result<Self, NodesError> {
        let mut notes = Vec::new();
        let mut open = |name: &str, table: Table| {
            let file = path.join(name);
            if !file.is_file() {
                return Err(NodesError::invalid(path, "", format!("no {name}"), format!("the file that {META} names")));
            }
            let bytes = std::fs::read(&file).map_err(NodesError::io("read", &file))?;
            let Converted { csv, notes: of_table } = dataset.convert(table, &bytes)?;
            notes.extend(of_table);
            CsvTable::converted(&file, csv)
        };
        let (nodes, edges) = (open(&dataset.nodes, Table::Nodes)?, open(&dataset.edges, Table::Edges)?);
        Ok(Self { name: dataset.name.clone(), nodes, edges, notes })
    }
}

fn settings(path: &Path) -> Result<Settings, NodesError> {
    let file = path.join(SETTINGS);
    let text = std::fs::read_to_string(&file).map_err(NodesError::io("read", &file))?;
    toml::from_str(&text).map_err(|error| {
        let before = text.get(..error.span().unwrap_or(0..0).start).unwrap_or_default();
        let place = format!(", line {}", 1 + before.matches('\n').count());
        NodesError::invalid(&file, place, error.message(), format!("task = \"{TASK}\", and nothing else but `name`"))
    })
}

/// Numbers of the nodes by their IDs.
type NodeNumbers = HashMap<Box<str>, u32>;

/// The table of nodes.
struct Nodes {
    numbers: NodeNumbers,
    features: HashedRows,
    labels: Vec<i32>,
    class_names: Option<Vec<String>>,
    split: Option<Vec<u8>>,
    ignored_columns: Vec<String>,
    /// Facts about the labels that may surprise.
    remarks: Vec<String>,
}

impl Nodes {
    fn read(mut table: CsvTable, options: &GraphOptions) -> Result<Self, NodesError> {
        let (node_id, class, split) = (table.column("node_id")?, table.column("y")?, table.find("split"));
        let (continuous, categorical) = (table.starting_with("x"), table.starting_with("c"));
        if continuous.is_empty() && categorical.is_empty() {
            let found = format!("no feature among {}", table.columns().join(", "));
            return Err(table.header_error(found, "columns x_* (continuous) or c_* (categorical)"));
        }
        let read = [&[node_id, class][..], &continuous, &categorical, split.as_slice()].concat();
        let ignored_columns = ignored_columns(&table, &read);
        let (mut numbers, mut names) = (NodeNumbers::new(), Vec::new());
        let mut classes = Values::default();
        let mut values = Vec::new();
        let mut cells: Vec<Values> = categorical.iter().map(|_| Values::default()).collect();
        let mut splits = split.map(|_| Vec::new());
        table.each_row(|row| {
            let id = row.text(node_id)?;
            let number = numbers.len();
            if number >= MOST_NODES {
                return Err(row.place(Mismatch::new("one node more", format!("at most {MOST_NODES}"))));
            }
            if numbers.insert(id.into(), number as u32).is_some() {
                return Err(row.error(node_id, &format!("'{id}' a second time"), "each node once"));
            }
            names.push(node_hash::of_name(id));
            classes.push(row.cell(class), row.line);
            for &column in &continuous {
                values.push(row.number(column)? as f32);
            }
            for (values, &column) in cells.iter_mut().zip(&categorical) {
                values.push(row.text(column)?, row.line);
            }
            if let (Some(splits), Some(column)) = (&mut splits, split) {
                splits.push(set_of(&row, column)? as u8);
            }
            Ok(())
        })?;
        if numbers.is_empty() {
            return Err(table.header_error("no node", "a row for each node"));
        }
        let Classes { labels, names: class_names } = Classes::of_rows(&classes, &table)?;
        let remarks = remarks(&classes, class_names.is_some());
        let named = categorical.iter().map(|&column| table.columns()[column].clone()).zip(cells);
        let categories = named.map(|(name, values)| values.numbered(name)).collect();
        let features = FeatureColumns { nodes: numbers.len(), continuous: continuous.len(), values, categories };
        let features = features.into_rows(options).map_err(|mismatch| table.error(mismatch))?;
        let features = HashedRows { names: Some(names), ..features };
        Ok(Self { numbers, features, labels, class_names, split: splits, ignored_columns, remarks })
    }
}

/// Remarks on the texts of classes: which of them were taken for no label, and numbers that are only names.
fn remarks(classes: &Values, are_names: bool) -> Vec<String> {
    let mut remarks = Vec::new();
    let marks: BTreeSet<&str> = classes.texts.iter().map(|(text, _)| &**text).filter(|text| !text.is_empty()).collect();
    let marks: Vec<String> =
        marks.into_iter().filter(|text| is_missing(text)).map(|text| format!("'{text}'")).collect();
    if !marks.is_empty() {
        remarks.push(format!("{} in column y is no label", marks.join(", ")));
    }
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    let named = || {
        classes.of_rows.iter().map(|&position| &classes.texts[position as usize]).filter(|(text, _)| !is_missing(text))
    };
    let numbers = named().filter(|(text, _)| is_number(text)).count();
    if let Some((text, line)) = named().find(|(text, _)| !is_number(text))
        && are_names
        && 2 * numbers >= named().count()
    {
        remarks.push(format!("the numbers of y are read as names of classes, because line {line} has '{text}'"));
    }
    remarks
}

/// The set that a cell names; none if it is empty.
fn set_of(row: &Row<'_>, column: usize) -> Result<GivenSet, NodesError> {
    let Some(text) = row.value(column) else { return Ok(GivenSet::None) };
    match text.to_ascii_lowercase().as_str() {
        "train" | "training" => Ok(GivenSet::Training),
        "validation" | "valid" | "val" => Ok(GivenSet::Validation),
        "test" => Ok(GivenSet::Test),
        _ => Err(row.error(column, &format!("'{text}'"), "train, validation, test, or nothing")),
    }
}

/// Distinct texts of a column, and the text of each row by its position among them.
#[derive(Default)]
struct Values {
    positions: HashMap<Box<str>, u32>,
    /// Each text, in the order of first occurrence, and the line of that.
    texts: Vec<(Box<str>, u64)>,
    of_rows: Vec<u32>,
}

impl Values {
    fn push(&mut self, text: &str, line: u64) {
        let position = self.positions.get(text).copied().unwrap_or_else(|| {
            // There are no more texts than rows, and at most `MOST_NODES` rows.
            let position = self.texts.len() as u32;
            self.positions.insert(text.into(), position);
            self.texts.push((text.into(), line));
            position
        });
        self.of_rows.push(position);
    }

    /// Numbers the texts: integers in numerical order, others in alphabetical order.
    fn numbered(self, name: String) -> Category {
        let mut order: Vec<u32> = (0..self.texts.len() as u32).collect();
        let text = |position: &u32| &*self.texts[*position as usize].0;
        order.sort_unstable_by(|first, second| text(first).cmp(text(second)));
        if order.iter().all(|position| text(position).parse::<i64>().is_ok()) {
            order.sort_by_key(|position| text(position).parse::<i64>().unwrap_or_default());
        }
        let mut numbers = vec![0; order.len()];
        (0..).zip(&order).for_each(|(number, &position)| numbers[position as usize] = number);
        let mut of_rows = self.of_rows;
        of_rows.iter_mut().for_each(|value| *value = numbers[*value as usize]);
        Category { name, values: numbers.len(), of_rows }
    }
}

/// The classes of a table.
struct Classes {
    /// Class of each row, or of each distinct text.
    labels: Vec<i32>,
    /// Names of the classes, unless they are numbers.
    names: Option<Vec<String>>,
}

impl Classes {
    /// The class of each row. If all are integers, also written as 3.0, they are the numbers of classes; otherwise they are
    /// numbered in alphabetical order.
    fn of_rows(values: &Values, table: &CsvTable) -> Result<Self, NodesError> {
        // A missing value is no label, as is NaN.
        let number = |text: &str| if is_missing(text) { Some(f64::NAN) } else { integer(text) };
        let numbers: Option<Vec<f64>> = values.texts.iter().map(|(text, _)| number(text)).collect();
        let Self { labels, names } = match numbers {
            Some(numbers) => Self::numbered(&numbers, &values.texts, table)?,
            None => Self::named(&values.texts, table)?,
        };
        Ok(Self { labels: values.of_rows.iter().map(|&text| labels[text as usize]).collect(), names })
    }

    /// The class of each text by its number.
    fn numbered(numbers: &[f64], texts: &[(Box<str>, u64)], table: &CsvTable) -> Result<Self, NodesError> {
        let class = |(&number, (_, line)): (&f64, &(Box<str>, u64))| {
            class_of(number).map_err(|mismatch| table.line_error(*line, mismatch))
        };
        let labels = numbers.iter().zip(texts).map(class).collect::<Result<_, _>>()?;
        Ok(Self { labels, names: None })
    }

    /// The class of each text by its alphabetical position.
    fn named(texts: &[(Box<str>, u64)], table: &CsvTable) -> Result<Self, NodesError> {
        let mut order: Vec<usize> = (0..texts.len()).filter(|&position| !is_missing(&texts[position].0)).collect();
        if let Some(&position) = order.get(MOST_CLASSES) {
            let (text, line) = &texts[position];
            let found = format!("class number {} ('{text}')", MOST_CLASSES + 1);
            return Err(table.line_error(*line, Mismatch::new(found, format!("at most {MOST_CLASSES} classes"))));
        }
        order.sort_unstable_by(|&first, &second| texts[first].0.cmp(&texts[second].0));
        let mut labels = vec![NO_LABEL; texts.len()];
        (0..).zip(&order).for_each(|(class, &position)| labels[position] = class);
        Ok(Self { labels, names: Some(order.into_iter().map(|position| texts[position].0.to_string()).collect()) })
    }
}

fn integer(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|number| number.fract() == 0.0)
}

/// A categorical column.
struct Category {
    /// Name of the column.
    name: String,
    /// Number of distinct values.
    values: usize,
    /// `[num_nodes]`: the number of each node's value.
    of_rows: Vec<u32>,
}

/// The features of the nodes by kind.
struct FeatureColumns {
    nodes: usize,
    /// Number of continuous columns.
    continuous: usize,
    /// `[nodes, continuous]`.
    values: Vec<f32>,
    categories: Vec<Category>,
}

impl FeatureColumns {
    /// One row for each node. Sparse if that takes less memory, which only categorical columns with many values do, and if
    /// `options` do not ask for half precision.
    fn into_rows(self, options: &GraphOptions) -> Result<HashedRows, Mismatch> {
        let columns = self.continuous + self.categories.iter().map(|category| category.values).sum::<usize>();
        // A value takes four bytes, and in a sparse row as many for its column.
        if !options.half && 2 * (self.continuous + self.categories.len()) < columns {
            return self.sparse_rows(columns, options);
        }
        self.expect_room(columns, options, allocator::stats().limit)?;
        let mut rows = DenseRows::new(self.nodes, columns, options)?;
        let mut row = vec![0.0; columns];
        for node in 0..self.nodes {
            row.fill(0.0);
            self.each_value(node, |column, value| row[column] = value);
            row.iter().try_for_each(|&value| rows.push(value.into()))?;
        }
        Ok(rows.finish())
    }

    /// Refuses dense rows in half precision that take more than an eighth of the memory limit because of a categorical column.
    fn expect_room(&self, columns: usize, options: &GraphOptions, memory_limit: u64) -> Result<(), Mismatch> {
        let largest = self.categories.iter().max_by_key(|category| category.values);
        let bytes = 2 * (columns as u64).saturating_mul(self.nodes as u64);
        let Some(largest) = largest.filter(|_| options.half && bytes > memory_limit / 8) else { return Ok(()) };
        let (megabytes, limit) = (bytes / 1_000_000, memory_limit / 8_000_000);
        let found = format!("{} values of column '{}', dense rows of {megabytes} MB", largest.values, largest.name);
        let expected = format!(
            "at most {limit} MB, an eighth of the memory limit; leave --half-features out, so that the rows are sparse"
        );
        Err(Mismatch::new(found, expected))
    }

    fn sparse_rows(self, columns: usize, options: &GraphOptions) -> Result<HashedRows, Mismatch> {
        if u32::try_from(columns).is_err() {
            return Err(Mismatch::new(
                format!("{columns} features"),
                "fewer than 2^32, one for each categorical value",
            ));
        }
        let mut sparse =
            SparseFeatures { columns, row_pointers: vec![0], column_index: Vec::new(), values: Vec::new() };
        for node in 0..self.nodes {
            self.each_value(node, |column, value| {
                sparse.column_index.push(column as u32);
                sparse.values.push(value);
            });
            sparse.row_pointers.push(sparse.values.len() as u64);
        }
        let twice =
            |RepeatedColumn { row, column }| Mismatch::new(format!("column {column} twice in row {row}"), "once");
        sparse.into_rows(options).map_err(twice)
    }

    /// Calls `each` with the columns, ascending, and values of all features of a node that may not be zero.
    fn each_value(&self, node: usize, mut each: impl FnMut(usize, f32)) {
        let values = &self.values[node * self.continuous..(node + 1) * self.continuous];
        values.iter().enumerate().for_each(|(column, &value)| each(column, value));
        let mut first = self.continuous;
        for category in &self.categories {
            each(first + category.of_rows[node] as usize, 1.0);
            first += category.values;
        }
    }
}

/// Reads the table of edges.
fn read_edges(mut table: CsvTable, numbers: &NodeNumbers, ignored: &mut Vec<String>) -> Result<EdgeList, NodesError> {
    let (source, target) = (table.column("source")?, table.column("target")?);
    ignored.extend(ignored_columns(&table, &[source, target]));
    let mut edges = EdgeList::default();
    table.each_row(|row| {
        let node = |column| {
            let id = row.text(column)?;
            let unknown = || row.error(column, &format!("node '{id}'"), &format!("a node of {NODES}"));
            numbers.get(id).copied().ok_or_else(unknown)
        };
        edges.sources.push(node(source)?);
        edges.targets.push(node(target)?);
        Ok(())
    })?;
    Ok(edges)
}

/// Columns of a table that nothing reads.
fn ignored_columns(table: &CsvTable, read: &[usize]) -> Vec<String> {
    let file = table.file_name();
    let ignored = table.columns().iter().enumerate().filter(|(column, _)| !read.contains(column));
    ignored.map(|(_, name)| format!("{file} {name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Features;
    use crate::node_graph::NodeGraph;
    use crate::sources::{SourceNotes, is_node_dataset, read as read_source};

    const PLAIN: &str = "task = \"node-class\"\n";

    fn folder(settings: &str, nodes: &str, edges: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [(SETTINGS, settings), (NODES, nodes), (EDGES, edges)] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn graph(nodes: &str, edges: &str, options: &GraphOptions) -> Result<(NodeGraph, SourceNotes), NodesError> {
        read_source(folder(PLAIN, nodes, edges).path(), options)
    }

    fn whole() -> GraphOptions {
        GraphOptions { undirected: false, largest_component: false, ..GraphOptions::default() }
    }

    #[test]
    fn a_folder_is_recognised_by_its_task() {
        for (settings, expected) in [
            (PLAIN, true),
            ("name = 'a'\ntask = 'node-class'\nunknown = 1", true),
            ("task = 'classification'", false),
            ("name = 'node-class'", false),
            ("task = ", false),
            ("", false),
        ] {
            let folder = folder(settings, "", "");
            assert_eq!(is_node_dataset(folder.path()), expected, "{settings:?}");
        }
        let folder = folder("name = 'a'\ntask = 'node-class'\ncutoff = 1.0", "", "");
        let error = read_source(folder.path(), &whole()).unwrap_err().to_string();
        assert!(error.contains("kdgat-graphs.toml, line 3: unknown field `cutoff`"), "{error}");
    }

    #[test]
    fn all_columns_are_read() {
        let nodes = "node_id,y,x_b,c_kind,x_a,split,pos_x,xylem\n\
                     n1,cat,0.5,10,-1,train,0,0\n\
                     7,,1.5,9,2,,0,0\n\
                     \"a, b\",ant,2.5,10,3,Test,0,0\n";
        let edges = "target, source, e_weight\nn1,7,0.5\n 7 ,n1,1\n\"a, b\",n1,2\n";
        let folder = folder("task = 'node-class'\nname = 'animals'", nodes, edges);
        let (graph, notes) = read_source(folder.path(), &whole()).unwrap();
        assert_eq!(graph.name, "animals");
        assert_eq!((&graph.row_pointers[..], &graph.sources[..]), (&[0, 1, 2, 3][..], &[1, 0, 0][..]));
        assert_eq!(&graph.labels[..], [1, NO_LABEL, 0]);
        assert_eq!(notes.class_names.as_deref().unwrap(), ["ant", "cat"]);
        assert_eq!(&graph.given_split.unwrap()[..], [1, 0, 3]);
        let Features::Dense { columns: 4, values } = graph.features else { panic!("not dense") };
        // Two continuous columns in the order of the file, then the values 9 and 10.
        assert_eq!(&values[..], [0.5, -1.0, 0.0, 1.0, 1.5, 2.0, 1.0, 0.0, 2.5, 3.0, 0.0, 1.0]);
        assert_eq!(
            notes.lines(),
            ["1 node without a label", "ignored nodes.csv pos_x, nodes.csv xylem, edges.csv e_weight"]
        );
    }

    #[test]
    fn classes_are_numbered_without_gaps() {
        let nodes = |classes: &[&str]| {
            let row = |(node, class): (usize, &&str)| format!("{node},{class},1\n");
            "node_id,y,x\n".to_owned() + &classes.iter().enumerate().map(row).collect::<String>()
        };
        let labels = |classes: &[&str]| {
            let (graph, notes) = graph(&nodes(classes), "source,target\n", &whole())?;
            Ok::<_, NodesError>((graph.labels.to_vec(), graph.task.classes, notes.class_names.is_some()))
        };
        assert_eq!(labels(&["7", "", "0"]).unwrap(), (vec![1, -1, 0], 2, true));
        assert_eq!(labels(&["2.0", "", "0.0", "1"]).unwrap(), (vec![2, -1, 0, 1], 3, false));
        assert_eq!(labels(&["10", "b", "9"]).unwrap(), (vec![0, 2, 1], 3, true));
        for (class, expected) in [("-1", "nodes.csv, line 3: class -1"), ("65535", "nodes.csv, line 3: class 65535")] {
            let error = labels(&["0", class]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let many: Vec<String> = (0..=MOST_CLASSES).map(|class| format!("c{class}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let error = labels(&many).unwrap_err().to_string();
        assert!(error.contains("nodes.csv, line 65537: class number 65536 ('c65535')"), "{error}");
        assert_eq!(labels(&many[1..]).unwrap().1, MOST_CLASSES);
    }

    #[test]
    fn marks_of_missing_values_are_no_class() {
        let nodes = "node_id,y,x\n1,NaN,1\n2,1,1\n3,0,1\n4,nan,1\n5,NA,1\n6,,1\n7,2,1\n";
        let (graph, notes) = graph(nodes, "source,target\n", &whole()).unwrap();
        assert_eq!((&graph.labels[..], graph.task.classes), (&[-1, 1, 0, -1, -1, -1, 2][..], 3));
        let expected = ["4 nodes without a label", "'NA', 'NaN', 'nan' in column y is no label"];
        assert_eq!(notes.lines(), expected);
        // Names stay names, without the marks; numbers beside a word are noted.
        let named = nodes.replace("1,1\n3,0", "cat,1\n3,dog").replace("7,2", "7,Na");
        let (named, _) = self::graph(&named, "source,target\n", &whole()).unwrap();
        assert_eq!((&named.labels[..], named.task.classes), (&[-1, 1, 2, -1, -1, -1, 0][..], 3));
        let (_, notes) = self::graph(&nodes.replace("7,2", "7,two"), "source,target\n", &whole()).unwrap();
        let note = notes.lines().pop().unwrap();
        assert_eq!(note, "the numbers of y are read as names of classes, because line 8 has 'two'");
    }

    #[test]
    fn a_folder_in_the_layout_of_dgl_is_a_graph() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write(META, "dataset_name: mini\nedge_data:\n- file_name: links.csv\nnode_data:\n- file_name: people.csv\n");
        write(
            "people.csv",
            "node_id,label,train_mask,val_mask,test_mask,feat\na,1,True,False,False,\"0.5,1\"\nb,0,False,False,True,\"2,3\"\n",
        );
        write("links.csv", "src_id,dst_id\na,b\n");
        assert!(is_node_dataset(folder.path()));
        let (graph, notes) = read_source(folder.path(), &whole()).unwrap();
        assert_eq!(
            (graph.name.as_str(), &graph.labels[..], &graph.given_split.unwrap()[..]),
            ("mini", &[1, 0][..], &[1, 3][..])
        );
        let Features::Dense { columns: 2, values } = graph.features else { panic!("not dense") };
        assert_eq!((&values[..], notes.lines().len()), (&[0.5, 1.0, 2.0, 3.0][..], 0));
        let digest = crate::sources::source_digest(folder.path()).unwrap();
        write("links.csv", "src_id,dst_id\na,c\n");
        assert_ne!(crate::sources::source_digest(folder.path()).unwrap(), digest);
        let error = read_source(folder.path(), &whole()).unwrap_err().to_string();
        assert!(error.contains("links.csv, line 2: column 'target' has node 'c'"), "{error}");
        std::fs::remove_file(folder.path().join("links.csv")).unwrap();
        let error = read_source(folder.path(), &whole()).unwrap_err().to_string();
        assert!(error.contains("no links.csv, expected the file that meta.yaml names"), "{error}");
        write(META, "edge_data:\n- file_name: a\n- file_name: b\nnode_data:\n- file_name: c\n");
        let error = read_source(folder.path(), &whole()).unwrap_err();
        assert!(error.is_input() && error.to_string().contains("meta.yaml, line 1: 2 files in edge_data"), "{error}");
    }

    #[test]
    fn many_categorical_values_become_sparse_rows() {
        let nodes = "node_id,y,c_word,x,c_kind\n1,0,a,0.5,k\n2,1,b,0,l\n3,0,c,2,m\n4,0,a,1,n\n";
        let (sparse, _) = graph(nodes, "source,target\n", &whole()).unwrap();
        let Features::Sparse { columns: 8, row_pointers, column_index, values } = sparse.features else {
            panic!("not sparse")
        };
        assert_eq!(&row_pointers[..], [0, 3, 5, 8, 11]);
        assert_eq!(&column_index[..], [0, 1, 4, 2, 5, 0, 3, 6, 0, 1, 7]);
        assert_eq!(&values[..], [0.5, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let halves = GraphOptions { half: true, ..whole() };
        let category = |values| Category { name: "c_id".to_owned(), values, of_rows: vec![0; 1000] };
        let columns =
            FeatureColumns { nodes: 1000, continuous: 0, values: Vec::new(), categories: vec![category(1000)] };
        assert!(
            columns.expect_room(1000, &halves, 8 * 2_000_000).is_ok() && columns.expect_room(1000, &whole(), 1).is_ok()
        );
        let refused = columns.expect_room(1000, &halves, 8 * 1_999_999).unwrap_err();
        assert_eq!(refused.found, "1000 values of column 'c_id', dense rows of 2 MB");
        let (half, _) = graph(nodes, "source,target\n", &halves).unwrap();
        let Features::Half { columns: 8, values } = half.features else { panic!("not in half precision") };
        assert_eq!(values[..3], [0.5, 1.0, 0.0].map(|value| half::f16::from_f32(value).to_bits()));
    }

    #[test]
    fn rows_that_do_not_fit_are_named_with_their_line() {
        let (nodes, edges) = ("node_id,y,x_1\n1,0,0.5\n2,1,1.5\n", "source,target\n1,2\n");
        assert!(graph(nodes, edges, &whole()).is_ok());
        for (nodes, edges, expected) in [
            (
                nodes,
                "source,target\n1,2\n2,3\n",
                "edges.csv, line 3: column 'target' has node '3', expected a node of nodes.csv",
            ),
            (nodes, "source,target\n1000000000,2\n", "edges.csv, line 2: column 'source' has node '1000000000'"),
            (nodes, "source,target\n1,\n", "edges.csv, line 2: column 'target' has an empty field"),
            (nodes, "source,target\n1,2,3\n", "edges.csv, line 2: 3 fields, expected 2 as in the first line"),
            (nodes, "source,to\n1,2\n", "edges.csv, line 1: no column 'target' among source, to"),
            (nodes, "source,source\n1,2\n", "edges.csv, line 1: column 'source' twice"),
            ("y,x\n0,1\n", edges, "nodes.csv, line 1: no column 'node_id' among y, x"),
            ("node_id,x\n0,1\n", edges, "nodes.csv, line 1: no column 'y' among node_id, x"),
            ("node_id,y\n1,1\n", edges, "nodes.csv, line 1: no feature among node_id, y"),
            ("node_id,y,x\n", edges, "nodes.csv, line 1: no node"),
            ("node_id,y,x\n1,0,1\n1,0,1\n", edges, "nodes.csv, line 3: column 'node_id' has '1' a second time"),
            ("node_id,y,x\n1,0,nan\n", edges, "nodes.csv, line 2: column 'x' has 'nan', expected a finite number"),
            ("node_id,y,x\n1,0,1e39\n", edges, "nodes.csv, line 2: column 'x' has '1e39'"),
            ("node_id,y,x\n1,0,\n", edges, "nodes.csv, line 2: column 'x' has an empty field"),
            ("node_id,y,c\n1,0,\n", edges, "nodes.csv, line 2: column 'c' has an empty field"),
            ("node_id,y,x,split\n1,0,1,dev\n", edges, "nodes.csv, line 2: column 'split' has 'dev'"),
            ("node_id,y,x\n1,,1\n2,,1\n", edges, "no node has a label"),
        ] {
            let error = graph(nodes, edges, &whole()).unwrap_err();
            assert!(error.is_input());
            assert!(error.to_string().contains(expected), "{expected}: {error}");
        }
        let beyond = graph("node_id,y,x\n1,0,1\n2,0,70000\n", edges, &GraphOptions { half: true, ..whole() });
        let error = beyond.unwrap_err().to_string();
        assert!(error.contains("nodes.csv: 70000 for node 1, column 0, expected a number within ±65504"), "{error}");
        let folder = folder(PLAIN, nodes, edges);
        std::fs::write(folder.path().join(EDGES), b"source,target\n1,\xff\n").unwrap();
        let error = read_source(folder.path(), &whole()).unwrap_err().to_string();
        assert!(error.contains("edges.csv, line 2: no text"), "{error}");
        std::fs::remove_file(folder.path().join(EDGES)).unwrap();
        let error = read_source(folder.path(), &whole()).unwrap_err().to_string();
        assert!(error.ends_with("no edges.csv, expected a table of the edges"), "{error}");
    }
}
