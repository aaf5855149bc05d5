//! Targets from a file: the outputs of a teacher that was trained elsewhere, one row for each graph of the dataset.
//!
//! | format | content |
//! |---|---|
//! | safetensors | tensors `logits` or `values` `[num_graphs, outputs]` and `embedding` `[num_graphs, any width]`, f32, f16 or bf16, in the order of the dataset's graphs |
//! | folder | the cache of a teacher in Python ([`crate::python_cache`]) with these outputs, by the graphs' positions or names |
//! | CSV | columns `graph_id`, `logit_*` or `value_*`, and `embedding_*`, in any order of rows and columns |
//!
//! A column of a CSV file is matched with an output by its name, `logit_CLASS`, or by its number from 0, `logit_0`; never by its position.
//!
//! A safetensors file is mapped, so that it may be larger than the memory.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csv::StringRecord;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use tch::{Device, TchError, Tensor};
use thiserror::Error;

use kdgat_torch::rows::Rows;

use crate::{TargetName, TargetRows, python_cache};

/// An error of reading a file of targets.
#[derive(Debug, Error)]
pub enum ForeignError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The content is not what the format requires.
    #[error("{}: {found}; expected {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem.
        found: String,
        /// The requirement.
        expected: String,
    },
}

/// Outputs of a teacher from elsewhere for all graphs of a dataset.
#[derive(Debug)]
pub struct ForeignTargets {
    path: PathBuf,
    digest: String,
    matrices: Vec<Matrix>,
}

/// A target of all graphs, `[num_graphs, columns]`.
#[derive(Debug)]
struct Matrix {
    name: TargetName,
    columns: usize,
    values: Values,
}

#[derive(Debug)]
enum Values {
    /// From a CSV file.
    Read(Vec<f32>),
    /// In a safetensors file, from this byte on.
    Mapped { map: Arc<Mmap>, start: usize, element: Element },
}

#[derive(Debug, Clone, Copy)]
enum Element {
    F32,
    F16,
    Bf16,
}

/// The graphs that a file must have rows for.
#[derive(Clone, Copy)]
pub struct ExpectedGraphs<'a> {
    /// Names of the dataset's graphs; only a CSV file needs them.
    pub ids: &'a dyn Fn() -> Result<GraphNames, String>,
    /// Number of graphs.
    pub count: usize,
    /// Names of the outputs of the task in their order: classes, labels or values.
    pub outputs: &'a [String],
    /// True for regression: the file has `values` instead of `logits`.
    pub are_values: bool,
}

/// Names of a dataset's graphs.
#[derive(Debug, Clone, Default)]
pub struct GraphNames {
    /// The graphs in their order.
    pub graphs: Vec<String>,
    /// Graphs of the source that the dataset leaves out, whose rows are not read.
    pub left_out: Vec<String>,
}

impl ForeignTargets {
    /// Opens a file of targets and checks every value.
    ///
    /// # Errors
    /// A file that cannot be read, another number of graphs or outputs, a name that matches no graph or output, or a value that is not
    /// finite.
    pub fn open(path: &Path, graphs: ExpectedGraphs<'_>) -> Result<Self, ForeignError> {
        if path.is_dir() {
            let targets = from_cache(path, graphs)?;
            targets.check(graphs)?;
            return Ok(targets);
        }
        let io = |source| ForeignError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() == 0 {
            return Err(content(path, "it is empty", FORMATS));
        }
        let map = Arc::new(kdgat_torch::mapped::map(&file).map_err(io)?);
        let digest = blake3::hash(&map).to_hex().to_string();
        let matrices = match path.extension().and_then(|ending| ending.to_str()) {
            Some("safetensors") => from_safetensors(path, &map, graphs)?,
            Some("csv") => from_csv(path, &map, graphs)?,
            _ => return Err(content(path, "it has another ending", FORMATS)),
        };
        let targets = Self { path: path.to_owned(), digest, matrices };
        targets.check(graphs)?;
        Ok(targets)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Digest of the file's content.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Number of columns of a target; `None` if the file has none of this name.
    pub fn columns(&self, name: TargetName) -> Option<usize> {
        self.matrices.iter().find(|matrix| matrix.name == name).map(|matrix| matrix.columns)
    }

    /// The targets as text: `logits [graphs, 2] + embedding [graphs, 1536]`.
    pub fn describe(&self) -> String {
        let describe = |matrix: &Matrix| format!("{} [graphs, {}]", matrix.name, matrix.columns);
        self.matrices.iter().map(describe).collect::<Vec<_>>().join(" + ")
    }

    /// Rows of a target for these graphs, one after another; empty if the file has none of this name.
    pub fn rows(&self, name: TargetName, graphs: &[u64]) -> Vec<f32> {
        let Some(matrix) = self.matrices.iter().find(|matrix| matrix.name == name) else { return Vec::new() };
        let mut rows = Vec::with_capacity(graphs.len() * matrix.columns);
        graphs.iter().for_each(|&graph| matrix.append_row(graph as usize, &mut rows));
        rows
    }

    /// All targets of these graphs as tensors on `device`.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn targets(&self, graphs: &[u64], device: Device) -> Result<TargetRows, TchError> {
        let tensor = |matrix: &Matrix| -> Result<(TargetName, Rows), TchError> {
            let rows = Tensor::f_from_slice(&self.rows(matrix.name, graphs))?;
            let rows = rows.f_view([graphs.len() as i64, matrix.columns as i64])?.f_to_device(device)?;
            Ok((matrix.name, Rows::Whole(rows)))
        };
        Ok(TargetRows { rows: self.matrices.iter().map(tensor).collect::<Result<_, _>>()? })
    }

    /// Checks widths and every value.
    fn check(&self, graphs: ExpectedGraphs<'_>) -> Result<(), ForeignError> {
        if self.matrices.is_empty() {
            return Err(content(&self.path, "it has no target", FORMATS));
        }
        if let Some(columns) = self.columns(TargetName::Logits) {
            expect_outputs(&self.path, columns, graphs)?;
        }
        let mut row = Vec::new();
        for matrix in &self.matrices {
            for graph in 0..graphs.count {
                row.clear();
                matrix.append_row(graph, &mut row);
                if let Some(column) = row.iter().position(|value| !value.is_finite()) {
                    let found = format!("{} of graph {graph} has {} in column {column}", matrix.name, row[column]);
                    return Err(content(&self.path, &found, "finite numbers"));
                }
            }
        }
        Ok(())
    }
}

/// Refuses another number of outputs than the task has.
fn expect_outputs(path: &Path, found: usize, graphs: ExpectedGraphs<'_>) -> Result<(), ForeignError> {
    let outputs = graphs.outputs.len();
    if found == outputs {
        return Ok(());
    }
    let expected = format!("{outputs}, as the dataset has outputs ({})", listed(graphs.outputs));
    Err(content(path, &format!("{found} {} a graph", output_name(graphs)), &expected))
}

/// Up to eight names.
fn listed(names: &[String]) -> String {
    let more = if names.len() > MOST_LISTED { ", …" } else { "" };
    names[..names.len().min(MOST_LISTED)].join(", ") + more
}

/// Most names that a message lists.
const MOST_LISTED: usize = 8;

/// The formats, for errors.
const FORMATS: &str = "a .safetensors file with the tensors `logits` (or `values`) and `embedding`, or a .csv file with the columns \
                       graph_id, logit_* (or value_*) and embedding_*, or a folder that kdgat.Teacher has filled";

fn content(path: &Path, found: &str, expected: &str) -> ForeignError {
    ForeignError::Content { path: path.to_owned(), found: found.to_owned(), expected: expected.to_owned() }
}

/// Name of the outputs of the task in a file.
fn output_name(graphs: ExpectedGraphs<'_>) -> &'static str {
    if graphs.are_values { "values" } else { "logits" }
}

impl Matrix {
    fn append_row(&self, graph: usize, row: &mut Vec<f32>) {
        let columns = self.columns;
        match &self.values {
            Values::Read(values) => row.extend_from_slice(&values[graph * columns..(graph + 1) * columns]),
            Values::Mapped { map, start, element } => {
                let width = columns * element.bytes();
                element.append(&map[start + graph * width..start + (graph + 1) * width], row);
            }
        }
    }
}

impl Element {
    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Appends the numbers of little-endian bytes.
    fn append(self, bytes: &[u8], values: &mut Vec<f32>) {
        let pairs = || bytes.as_chunks::<2>().0.iter();
        match self {
            Self::F32 => values.extend(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
            Self::F16 => values.extend(pairs().map(|bytes| f16::from_le_bytes(*bytes).to_f32())),
            Self::Bf16 => values.extend(pairs().map(|bytes| bf16::from_le_bytes(*bytes).to_f32())),
        }
    }
}

fn from_safetensors(path: &Path, map: &Arc<Mmap>, graphs: ExpectedGraphs<'_>) -> Result<Vec<Matrix>, ForeignError> {
    let tensors = SafeTensors::deserialize(map)
        .map_err(|error| content(path, &format!("damaged ({error})"), "a safetensors file; write it again"))?;
    let mut names = tensors.names();
    names.sort_unstable();
    let mut matrices = Vec::new();
    for name in names {
        let target = match name {
            "embedding" => TargetName::Embedding,
            name if name == output_name(graphs) => TargetName::Logits,
            other => {
                let expected = format!("only tensors `{}` and `embedding`", output_name(graphs));
                return Err(content(path, &format!("a tensor `{other}`"), &expected));
            }
        };
        let tensor = tensors.tensor(name).map_err(|error| content(path, &error.to_string(), "a safetensors file"))?;
        let element = match tensor.dtype() {
            Dtype::F32 => Element::F32,
            Dtype::F16 => Element::F16,
            Dtype::BF16 => Element::Bf16,
            other => return Err(content(path, &format!("tensor `{name}` of type {other:?}"), "F32, F16 or BF16")),
        };
        let &[rows, columns] = tensor.shape() else {
            return Err(content(path, &format!("tensor `{name}` of shape {:?}", tensor.shape()), "[graphs, columns]"));
        };
        if rows != graphs.count || columns == 0 {
            let expected = format!("{} rows, one for each graph of the dataset, and a column", graphs.count);
            return Err(content(path, &format!("tensor `{name}` of shape [{rows}, {columns}]"), &expected));
        }
        // The tensor's bytes are a part of the map.
        let start = tensor.data().as_ptr() as usize - map.as_ptr() as usize;
        let values = Values::Mapped { map: Arc::clone(map), start, element };
        matrices.push(Matrix { name: target, columns, values });
    }
    Ok(matrices)
}

/// The outputs in the cache of a teacher in Python.
fn from_cache(path: &Path, graphs: ExpectedGraphs<'_>) -> Result<ForeignTargets, ForeignError> {
    let names = || (graphs.ids)().map(|names| names.graphs);
    let outputs = python_cache::read(path, graphs.count, &names)
        .map_err(|problem| content(&problem.path, &problem.found, &problem.expected))?;
    let mut digest = blake3::Hasher::new();
    let mut matrices: Vec<Matrix> = Vec::new();
    let is_alone = outputs.len() == 1;
    for output in outputs {
        let name = match output.name.as_str() {
            "embedding" => TargetName::Embedding,
            // The only output of a module has this name.
            name if name == output_name(graphs) || (is_alone && name == "output") => TargetName::Logits,
            other => {
                let expected = format!("only outputs `{}` and `embedding`", output_name(graphs));
                return Err(content(&path.join(python_cache::MANIFEST), &format!("an output `{other}`"), &expected));
            }
        };
        digest.update(format!("{name} [{}, {}]", graphs.count, output.columns).as_bytes());
        output.values.iter().for_each(|value| {
            digest.update(&value.to_le_bytes());
        });
        matrices.push(Matrix { name, columns: output.columns, values: Values::Read(output.values) });
    }
    Ok(ForeignTargets { path: path.to_owned(), digest: digest.finalize().to_hex().to_string(), matrices })
}

/// The columns of a target in a CSV file.
struct Columns {
    name: TargetName,
    /// Position in the file of each column of the target.
    positions: Vec<usize>,
    values: Vec<f32>,
}

fn from_csv(path: &Path, bytes: &[u8], graphs: ExpectedGraphs<'_>) -> Result<Vec<Matrix>, ForeignError> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(bytes);
    let broken = |error: csv::Error| content(path, &error.to_string(), "comma-separated values in UTF-8");
    let header = reader.headers().map_err(broken)?.clone();
    let (id, mut targets) = csv_columns(path, &header, graphs)?;
    let names = (graphs.ids)().map_err(|error| content(path, &error, "the names of the dataset's graphs"))?;
    let positions: HashMap<&str, usize> = names.graphs.iter().map(String::as_str).zip(0..).collect();
    let left_out: HashSet<&str> = names.left_out.iter().map(String::as_str).collect();
    for target in &mut targets {
        let count = target.positions.len().checked_mul(graphs.count);
        // Each number is followed by a comma or the end of its line.
        let Some(count) = count.filter(|count| count / 2 <= bytes.len()) else {
            let found = format!("{} columns of {} in {} bytes", target.positions.len(), target.name, bytes.len());
            return Err(content(path, &found, &format!("a row for each of {} graphs", graphs.count)));
        };
        target.values = vec![f32::NAN; count];
    }
    let mut seen = vec![false; graphs.count];
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).map_err(broken)? {
        let line = record.position().map_or(0, csv::Position::line);
        let at_line = |found: String, expected: &str| content(path, &format!("line {line}: {found}"), expected);
        let name = record.get(id).unwrap_or("");
        if left_out.contains(name) {
            continue;
        }
        let graph = positions.get(name).copied();
        let Some(graph) = graph.filter(|&graph| graph < graphs.count) else {
            return Err(at_line(format!("'{name}'"), "a graph of the dataset"));
        };
        if std::mem::replace(&mut seen[graph], true) {
            return Err(at_line(format!("'{name}' a second time"), "each graph once"));
        }
        for target in &mut targets {
            let columns = target.positions.len();
            for (column, &position) in target.positions.iter().enumerate() {
                let text = record.get(position).unwrap_or("");
                let value = text.parse::<f32>().ok().filter(|value| value.is_finite());
                let value = value.ok_or_else(|| {
                    at_line(format!("column '{}' has '{text}'", &header[position]), "a finite number")
                })?;
                target.values[graph * columns + column] = value;
            }
        }
    }
    if let Some(missing) = seen.iter().position(|seen| !seen) {
        let found = format!("graph '{}' has no row", names.graphs.get(missing).map_or("", String::as_str));
        return Err(content(path, &found, "a row for each graph of the dataset"));
    }
    let matrix = |target: Columns| {
        let (columns, values) = (target.positions.len(), Values::Read(target.values));
        Matrix { name: target.name, columns, values }
    };
    Ok(targets.into_iter().filter(|target| !target.positions.is_empty()).map(matrix).collect())
}

/// Position of the graphs' names, and of the columns of each target.
fn csv_columns(
    path: &Path,
    header: &StringRecord,
    graphs: ExpectedGraphs<'_>,
) -> Result<(usize, [Columns; 2]), ForeignError> {
    let singular = if graphs.are_values { "value_" } else { "logit_" };
    let (mut outputs, mut embedding) = (Vec::new(), Vec::new());
    let mut id = None;
    let mut seen = HashSet::new();
    for (position, column) in header.iter().enumerate() {
        let column = column.trim_start_matches('\u{feff}');
        if !seen.insert(column) {
            return Err(content(path, &format!("line 1: a column '{column}' twice"), "each column once"));
        }
        match column {
            "graph_id" => id = Some(position),
            name if name.starts_with("embedding_") => embedding.push(position),
            name => match name.strip_prefix(singular) {
                Some(output) => outputs.push(NamedColumn { output, position }),
                None => {
                    let expected = format!("graph_id, {singular}* and embedding_*");
                    return Err(content(path, &format!("line 1: a column '{name}'"), &expected));
                }
            },
        }
    }
    let id = id.ok_or_else(|| content(path, "line 1: no column 'graph_id'", FORMATS))?;
    if !outputs.is_empty() {
        expect_outputs(path, outputs.len(), graphs)?;
    }
    let of = |name: TargetName, positions: Vec<usize>| Columns { name, positions, values: Vec::new() };
    let outputs = of(TargetName::Logits, in_order(path, &outputs, singular, graphs)?);
    Ok((id, [outputs, of(TargetName::Embedding, embedding)]))
}

/// A column of outputs: its name without the prefix, and its position in the file.
struct NamedColumn<'a> {
    output: &'a str,
    position: usize,
}

/// Positions of the columns in the order of the task's outputs: all columns have names of outputs, or all have numbers from 0.
fn in_order(
    path: &Path,
    columns: &[NamedColumn<'_>],
    singular: &str,
    graphs: ExpectedGraphs<'_>,
) -> Result<Vec<usize>, ForeignError> {
    let by_name = |output: usize| {
        let (name, exact) =
            (&graphs.outputs[output], |column: &&NamedColumn<'_>| column.output == graphs.outputs[output]);
        columns.iter().find(exact).or_else(|| columns.iter().find(|column| names_output(column.output, name)))
    };
    let by_number = |output: usize| columns.iter().find(|column| column.output.parse() == Ok(output));
    let all = |find: &dyn Fn(usize) -> Option<usize>| {
        let positions = (0..columns.len()).map(find).collect::<Option<Vec<usize>>>()?;
        let distinct: HashSet<usize> = positions.iter().copied().collect();
        (distinct.len() == positions.len()).then_some(positions)
    };
    let position = |column: &NamedColumn<'_>| column.position;
    let found = all(&|output| by_name(output).map(position)).or_else(|| all(&|output| by_number(output).map(position)));
    found.ok_or_else(|| {
        let is_name = |column: &str| graphs.outputs.iter().any(|name| names_output(column, name));
        let is_number = |column: &str| column.parse::<usize>().is_ok_and(|number| number < columns.len());
        let odd = columns.iter().find(|column| !is_name(column.output) && !is_number(column.output));
        let odd = odd.or_else(|| columns.iter().find(|column| !is_name(column.output))).or(columns.first());
        let odd = odd.map_or(String::new(), |column| format!("line 1: column '{singular}{}'", column.output));
        let (last, names) = (columns.len().saturating_sub(1), listed(graphs.outputs));
        let expected =
            format!("{singular}NAME for each of {names}, or {singular}0 to {singular}{last} in this order of names");
        content(path, &odd, &expected)
    })
}

/// True if a column has the name of an output, with or without the `y_` of a column of targets.
fn names_output(column: &str, output: &str) -> bool {
    column == output || output.strip_prefix("y_") == Some(column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;

    fn names(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn ids() -> Result<GraphNames, String> {
        Ok(GraphNames { graphs: names(&["a", "b", "c"]), left_out: names(&["without"]) })
    }

    fn open_with(path: &Path, outputs: &[&str], are_values: bool) -> Result<ForeignTargets, String> {
        let graphs = ExpectedGraphs { ids: &ids, count: 3, outputs: &names(outputs), are_values };
        ForeignTargets::open(path, graphs).map_err(|error| error.to_string())
    }

    fn open(path: &Path) -> Result<ForeignTargets, String> {
        open_with(path, &["0", "1"], false)
    }

    #[test]
    fn rows_are_those_of_the_file_in_every_precision() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("targets.safetensors");
        let values: [f32; 6] = [1.0, -2.0, 0.5, 4.0, -0.25, 8.0];
        let bytes = |element: Dtype| -> Vec<u8> {
            match element {
                Dtype::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
                Dtype::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
            }
        };
        for element in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let data = bytes(element);
            let view = TensorView::new(element, vec![3, 2], &data).unwrap();
            safetensors::serialize_to_file([("embedding", view)], None, &path).unwrap();
            let targets = open(&path).unwrap();
            assert_eq!(targets.rows(TargetName::Embedding, &[2, 0]), [-0.25, 8.0, 1.0, -2.0], "{element:?}");
            assert_eq!((targets.columns(TargetName::Embedding), targets.columns(TargetName::Logits)), (Some(2), None));
            assert_eq!(targets.describe(), "embedding [graphs, 2]");
        }
        let data = bytes(Dtype::F32);
        let view = |shape: Vec<usize>| TensorView::new(Dtype::F32, shape, &data).unwrap();
        for (name, shape, error) in [
            ("embedding", vec![2, 3], "[2, 3]; expected 3 rows"),
            ("embedding", vec![6], "of shape [6]"),
            ("values", vec![3, 2], "a tensor `values`; expected only tensors `logits`"),
        ] {
            safetensors::serialize_to_file([(name, view(shape))], None, &path).unwrap();
            let found = open(&path).unwrap_err();
            assert!(found.contains(error), "{found}");
        }
    }

    #[test]
    fn columns_of_tables_are_matched_by_name_or_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("targets.csv");
        let row = |header: &str, outputs: &[&str], are_values: bool| {
            let rows = ["a", "b", "c"].map(|id| format!("{id},0,1,2\n")).concat();
            std::fs::write(&path, format!("graph_id,{header}\n{rows}without,7,7,7\n")).unwrap();
            Ok::<_, String>(open_with(&path, outputs, are_values)?.rows(TargetName::Logits, &[1]))
        };
        let classes = ["ant", "bee", "cat"];
        assert_eq!(row("logit_0,logit_1,logit_2", &classes, false).unwrap(), [0.0, 1.0, 2.0]);
        assert_eq!(row("logit_2,logit_0,logit_1", &classes, false).unwrap(), [1.0, 2.0, 0.0]);
        assert_eq!(row("logit_cat,logit_bee,logit_ant", &classes, false).unwrap(), [2.0, 1.0, 0.0]);
        // Classes that are numbers: by name where the names are all there, otherwise by number.
        assert_eq!(row("logit_5,logit_1,logit_3", &["1", "3", "5"], false).unwrap(), [1.0, 2.0, 0.0]);
        assert_eq!(row("logit_1,logit_2,logit_0", &["1", "3", "5"], false).unwrap(), [2.0, 0.0, 1.0]);
        let targets = ["y_gap", "y_mu", "y_u"];
        assert_eq!(row("value_u,value_y_gap,value_mu", &targets, true).unwrap(), [1.0, 2.0, 0.0]);
        assert_eq!(row("value_a,value_y_a,value_b", &["y_a", "a", "b"], true).unwrap(), [1.0, 0.0, 2.0]);
        for (header, found) in [
            (
                "logit_ant,logit_bee,logit_dog",
                "line 1: column 'logit_dog'; expected logit_NAME for each of ant, bee, cat",
            ),
            ("logit_1,logit_2,logit_3", "line 1: column 'logit_3'; expected logit_NAME"),
            ("logit_0,logit_00,logit_2", "or logit_0 to logit_2 in this order of names"),
            ("logit_0,logit_bee,logit_2", "or logit_0 to logit_2"),
            ("logit_0,logit_1,logit_0", "line 1: a column 'logit_0' twice"),
            ("logit_0,embedding_0,graph_id", "line 1: a column 'graph_id' twice"),
        ] {
            let error = row(header, &classes, false).unwrap_err();
            assert!(error.contains(found), "{header}: {error}");
        }
    }

    #[test]
    fn rows_of_tables_are_found_by_the_name_of_the_graph() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("targets.csv");
        std::fs::write(&path, "embedding_0,graph_id,logit_0,logit_1\n9,c,1,2\n7,a,3,4\n8,b,5,6\n").unwrap();
        let targets = open(&path).unwrap();
        assert_eq!(targets.rows(TargetName::Logits, &[0, 1, 2]), [3.0, 4.0, 5.0, 6.0, 1.0, 2.0]);
        assert_eq!(targets.rows(TargetName::Embedding, &[1]), [8.0]);
        for (text, error) in [
            ("graph_id,logit_0,logit_1\na,1,2\nb,1,2\n", "graph 'c' has no row"),
            ("graph_id,logit_0,logit_1\na,1,2\na,1,2\n", "line 3: 'a' a second time"),
            ("graph_id,logit_0,logit_1\nd,1,2\n", "line 2: 'd'; expected a graph of the dataset"),
            ("graph_id,logit_0,logit_1\na,1,inf\n", "line 2: column 'logit_1' has 'inf'"),
            ("graph_id,logit_0\na,1\nb,1\nc,1\n", "1 logits a graph; expected 2"),
            ("graph_id,x\na,1\n", "line 1: a column 'x'"),
            ("graph_id\na\nb\nc\n", "it has no target"),
            ("logit_0,logit_1\n1,2\n", "no column 'graph_id'"),
            ("", "it is empty"),
        ] {
            std::fs::write(&path, text).unwrap();
            let found = open(&path).unwrap_err();
            assert!(found.contains(error), "{found} lacks {error}");
        }
    }
}
