//! Reads the layout of DGL's `CSVDataset`: `meta.yaml` names CSV files, which become the tables of this program.
//!
//! | file | columns | become |
//! |---|---|---|
//! | `node_data` | `node_id`, `graph_id`; `label`; `train_mask`, `val_mask`, `test_mask`; any other: features | `y`, `split`, `x_*` |
//! | `edge_data` | `src_id`, `dst_id`, `graph_id`; any other: features | `source`, `target`, `e_*` |
//! | `graph_data` | `graph_id`, `label`, masks | `y`, `split` |
//!
//! A feature is a number, or several separated by commas, which become a column each.

use std::path::Path;

use csv::{ReaderBuilder, StringRecord, Trim};

use super::error::{DatasetError, Origin, Place};

/// File that describes the dataset.
pub(super) const META: &str = "meta.yaml";
/// Masks, and the set that each stands for.
const MASKS: [(&str, &str); 3] = [("train_mask", "train"), ("val_mask", "validation"), ("test_mask", "test")];

/// Description of a dataset of this layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvDataset {
    /// Name of the dataset.
    pub name: Option<String>,
    /// File with the nodes.
    pub nodes: String,
    /// File with the edges.
    pub edges: String,
    /// File with the graphs; `None` for one graph.
    pub graphs: Option<String>,
    separator: u8,
}

/// A kind of table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// Graphs.
    Graphs,
    /// Nodes.
    Nodes,
    /// Edges.
    Edges,
}

/// A table as this program writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// Comma-separated values, with a line for each line of the original.
    pub csv: Vec<u8>,
    /// Columns that are not read, with the reason.
    pub notes: Vec<String>,
}

impl CsvDataset {
    /// The description in a folder; `None` if it has none.
    ///
    /// # Errors
    /// A `meta.yaml` that cannot be read, or describes another kind of dataset.
    pub fn in_folder(folder: &Path) -> Result<Option<Self>, DatasetError> {
        let path = folder.join(META);
        match path.is_file() {
            true => Self::parse(&std::fs::read(&path).map_err(DatasetError::io(&path))?),
            false => Ok(None),
        }
    }

    /// Parses `meta.yaml`; `None` if it is that of something else.
    ///
    /// # Errors
    /// Several files of nodes or edges, none of them, or a separator that is no character.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, DatasetError> {
        let text = String::from_utf8_lossy(bytes);
        if text.trim_start().starts_with('{') && ["node_data", "edge_data"].iter().any(|key| text.contains(key)) {
            let expected = "each key at the beginning of a line (dataset_name: NAME), without braces around all";
            return Err(DatasetError::line(META, 1, "braces around all keys", expected));
        }
        let entries = entries(&text);
        let entry = |key: &str| entries.iter().find(|entry| entry.key == key);
        if entry("node_data").is_none() && entry("edge_data").is_none() {
            return Ok(None);
        }
        let file = |key: &str| {
            let Some(entry) = entry(key) else { return Ok(None) };
            match &entry.file_names()[..] {
                [only] => Ok(Some(only.clone())),
                names => {
                    let found = format!("{} files in {key}", names.len());
                    let expected = "one file_name: graphs with several kinds of nodes or edges are not read";
                    Err(DatasetError::line(META, entry.line, found, expected))
                }
            }
        };
        let required = |key: &str| {
            file(key)?
                .ok_or_else(|| DatasetError::line(META, 1, format!("no {key}"), format!("{key} with a file_name")))
        };
        let separator = match entry("separator") {
            None => b',',
            Some(entry) => match entry.value().as_bytes() {
                [only] => *only,
                b"\\t" => b'\t',
                other => {
                    let found = format!("separator '{}'", String::from_utf8_lossy(other));
                    return Err(DatasetError::line(META, entry.line, found, "one character"));
                }
            },
        };
        let name = entry("dataset_name").map(Entry::value).filter(|name| !name.is_empty());
        let (nodes, edges, graphs) = (required("node_data")?, required("edge_data")?, file("graph_data")?);
        Ok(Some(Self { name, nodes, edges, graphs, separator }))
    }

    /// Converts a table.
    ///
    /// # Errors
    /// A line that is no comma-separated text, a list of another length than that of the first line, or a row in two sets.
    pub fn convert(&self, table: Table, bytes: &[u8]) -> Result<Converted, DatasetError> {
        let file = match table {
            Table::Nodes => &self.nodes,
            Table::Edges => &self.edges,
            Table::Graphs => self.graphs.as_ref().unwrap_or(&self.nodes),
        };
        let broken = |error: csv::Error| {
            let place = error.position().map_or(Place::File, |position| Place::Line(position.line()));
            Origin { file, place }.error(error.to_string(), "separated values in UTF-8")
        };
        let mut reader = ReaderBuilder::new().trim(Trim::All).delimiter(self.separator).from_reader(bytes);
        let header = reader.headers().map_err(broken)?.clone();
        let mut records = reader.into_records();
        let first = records.next().transpose().map_err(broken)?;
        let layout = Layout::new(table, file, &header, first.as_ref());
        let mut csv = csv::Writer::from_writer(Vec::new());
        let written =
            |error: csv::Error| Origin { file, place: Place::File }.error(error.to_string(), "room in memory");
        csv.write_record(layout.header()).map_err(written)?;
        for record in first.map(Ok).into_iter().chain(records) {
            csv.write_record(layout.row(file, &record.map_err(broken)?)?).map_err(written)?;
        }
        let csv = csv.into_inner().map_err(|error| written(error.into_error().into()))?;
        Ok(Converted { csv, notes: layout.notes })
    }
}

/// A key at the margin of `meta.yaml`, and the text up to the next one.
struct Entry {
    key: String,
    line: u64,
    text: String,
}

impl Entry {
    /// The text without quotes.
    fn value(&self) -> String {
        unquoted(&self.text).to_owned()
    }

    /// The values of `file_name` in the text, in blocks (`- file_name: a.csv`) or in line (`[{file_name: a.csv}]`).
    fn file_names(&self) -> Vec<String> {
        let parts = self.text.split("file_name:").skip(1);
        parts.map(|part| unquoted(part.split(['\n', ',', '}']).next().unwrap_or_default()).to_owned()).collect()
    }
}

fn unquoted(text: &str) -> &str {
    let text = text.trim();
    let inner = |quote: char| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

fn entries(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = if text.trim_start().starts_with('#') { "" } else { text.split(" #").next().unwrap_or_default() };
        match text.split_once(':') {
            Some((key, rest)) if !text.starts_with([' ', '\t', '-', '#']) => {
                entries.push(Entry { key: unquoted(key).to_owned(), line, text: rest.to_owned() });
            }
            _ => {
                if let Some(last) = entries.last_mut() {
                    last.text += &format!("\n{text}");
                }
            }
        }
    }
    entries
}

/// The columns of a converted table.
struct Layout {
    columns: Vec<Source>,
    notes: Vec<String>,
}

/// The origin of one or several columns.
enum Source {
    /// A column that is copied under another name.
    Copied { column: usize, name: &'static str },
    /// A column of numbers, or of lists of numbers of one length.
    Values { column: usize, name: String, width: usize },
    /// The masks of training, validation and test.
    Masks([usize; 3]),
}

impl Layout {
    fn new(table: Table, file: &str, header: &StringRecord, first: Option<&StringRecord>) -> Self {
        let mut layout = Self { columns: Vec::new(), notes: Vec::new() };
        let find = |name: &str| header.iter().position(|found| found == name);
        let masks = MASKS.map(|(name, _)| find(name));
        if let ([Some(train), Some(validation), Some(test)], Table::Graphs | Table::Nodes) = (masks, table) {
            layout.columns.push(Source::Masks([train, validation, test]));
        }
        for (column, name) in header.iter().enumerate() {
            let name = name.trim_start_matches('\u{feff}');
            let is_mask = MASKS.iter().any(|(mask, _)| *mask == name);
            let width = first.and_then(|record| width(record.get(column).unwrap_or_default()));
            let copied = match (table, name) {
                (_, "graph_id") => Some("graph_id"),
                (Table::Nodes, "node_id") => Some("node_id"),
                (Table::Edges, "src_id") => Some("source"),
                (Table::Edges, "dst_id") => Some("target"),
                (Table::Graphs | Table::Nodes, "label") if width.is_none_or(|width| width == 1) => Some("y"),
                _ => None,
            };
            let prefix = match (table, name) {
                (Table::Graphs | Table::Nodes, "label") => Some("y".to_owned()),
                (Table::Nodes, name) => Some(format!("x_{name}")),
                (Table::Edges, name) => Some(format!("e_{name}")),
                (Table::Graphs, _) => None,
            };
            match (copied, prefix, width) {
                (Some(name), ..) => layout.columns.push(Source::Copied { column, name }),
                _ if is_mask => {
                    if masks.contains(&None) || table == Table::Edges {
                        let names = MASKS.map(|(name, _)| name).join(", ");
                        layout.notes.push(format!("{file}: {name} is not read; a split needs all of {names}"));
                    }
                }
                (None, Some(name), Some(width)) => layout.columns.push(Source::Values { column, name, width }),
                (None, None, _) => {
                    layout.notes.push(format!("{file}: {name} is not read; features of graphs have no place"))
                }
                (None, Some(_), None) if first.is_some() => {
                    layout.notes.push(format!("{file}: {name} is not read; its first value is no number"));
                }
                (None, Some(_), None) => {}
            }
        }
        layout
    }

    fn header(&self) -> Vec<String> {
        let names = self.columns.iter().flat_map(|source| match source {
            Source::Copied { name, .. } => vec![(*name).to_owned()],
            Source::Values { name, width: 1, .. } => vec![name.clone()],
            Source::Values { name, width, .. } => (0..*width).map(|at| format!("{name}_{at}")).collect(),
            Source::Masks(_) => vec!["split".to_owned()],
        });
        names.collect()
    }

    fn row<'a>(&self, file: &str, record: &'a StringRecord) -> Result<Vec<&'a str>, DatasetError> {
        let line = record.position().map_or(0, csv::Position::line);
        let cell = |column: usize| record.get(column).unwrap_or_default();
        let mut row = Vec::new();
        for source in &self.columns {
            match source {
                Source::Copied { column, .. } => row.push(flag(cell(*column))),
                Source::Values { column, name, width } => {
                    let before = row.len();
                    row.extend(list(cell(*column)).map(flag));
                    let found = row.len() - before;
                    if found != *width {
                        let found = format!("{found} values of {name}");
                        return Err(DatasetError::line(file, line, found, format!("{width} as in the first row")));
                    }
                }
                Source::Masks(columns) => {
                    let mut sets = columns
                        .iter()
                        .zip(MASKS)
                        .filter(|(column, _)| flag(cell(**column)) == "1")
                        .map(|(_, mask)| mask);
                    row.push(sets.next().map_or("", |(_, set)| set));
                    if let Some((second, _)) = sets.next() {
                        let found = format!("{second} beside another mask");
                        return Err(DatasetError::line(file, line, found, "each row in one set, or in none"));
                    }
                }
            }
        }
        Ok(row)
    }
}

/// Number of values in a cell; `None` if one of them is no number.
fn width(cell: &str) -> Option<usize> {
    let is_number = |text: &str| flag(text).parse::<f64>().is_ok();
    list(cell).all(is_number).then(|| list(cell).count())
}

/// The values of a cell, with or without brackets.
fn list(cell: &str) -> impl Iterator<Item = &str> {
    let cell = cell.trim();
    let inner = cell.strip_prefix(['[', '(']).and_then(|rest| rest.strip_suffix([']', ')'])).unwrap_or(cell);
    inner.trim_end_matches(',').split(',').map(str::trim)
}

/// A truth value as a number; any other text as it is.
fn flag(text: &str) -> &str {
    match text {
        "True" | "true" | "TRUE" => "1",
        "False" | "false" | "FALSE" => "0",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(text: &str) -> Result<Option<CsvDataset>, String> {
        CsvDataset::parse(text.as_bytes()).map_err(|error| error.to_string())
    }

    fn convert(table: Table, text: &str) -> Result<(String, Vec<String>), String> {
        let dataset = CsvDataset {
            name: None,
            nodes: "nodes.csv".to_owned(),
            edges: "edges.csv".to_owned(),
            graphs: Some("graphs.csv".to_owned()),
            separator: b',',
        };
        let converted = dataset.convert(table, text.as_bytes()).map_err(|error| error.to_string())?;
        Ok((String::from_utf8(converted.csv).map_err(|error| error.to_string())?, converted.notes))
    }

    #[test]
    fn descriptions_are_read_in_both_styles() {
        let blocks = "# made by hand\ndataset_name: 'mini'\nedge_data:\n- file_name: e.csv\n  etype: [a, b, c]\n\
                      node_data:\n  - file_name: \"n.csv\" # nodes\nseparator: ';'\n";
        let expected = CsvDataset {
            name: Some("mini".to_owned()),
            nodes: "n.csv".to_owned(),
            edges: "e.csv".to_owned(),
            graphs: None,
            separator: b';',
        };
        assert_eq!(meta(blocks), Ok(Some(expected.clone())));
        let line = "node_data: [{file_name: n.csv, ntype: a}]\nedge_data: [{file_name: e.csv}]\ngraph_data: {file_name: g.csv}\n";
        let graphs = Some("g.csv".to_owned());
        assert_eq!(meta(line), Ok(Some(CsvDataset { name: None, graphs, separator: b',', ..expected })));
        assert_eq!(meta("title: anything\nurl: https://x\n"), Ok(None));
        for (text, expected) in [
            (
                "node_data:\n- file_name: a.csv\n- file_name: b.csv\nedge_data:\n- file_name: e.csv\n",
                "meta.yaml, line 1: 2 files",
            ),
            ("a: b\nnode_data:\n- file_name: a.csv\n", "no edge_data"),
            ("{node_data: [{file_name: a}], edge_data: [{file_name: b}]}", "line 1: braces around all keys"),
            ("node_data: [{file_name: a}]\nedge_data: [{file_name: b}]\nseparator: abc\n", "line 3: separator 'abc'"),
        ] {
            assert!(meta(text).is_err_and(|error| error.contains(expected)), "{text}: {:?}", meta(text));
        }
    }

    #[test]
    fn lists_become_columns_and_masks_a_split() {
        let nodes = "node_id,graph_id,label,train_mask,val_mask,test_mask,feat,flag,name\n\
                     a,0,2,True,False,False,\"0.5, -1\",True,x\nb,0,nan,0,0,0,\"[1,2]\",False,y\n";
        let (csv, notes) = convert(Table::Nodes, nodes).unwrap();
        let expected = "split,node_id,graph_id,y,x_feat_0,x_feat_1,x_flag\ntrain,a,0,2,0.5,-1,1\n,b,0,nan,1,2,0\n";
        assert_eq!(csv, expected);
        assert_eq!(notes, ["nodes.csv: name is not read; its first value is no number"]);
        let (csv, notes) = convert(Table::Edges, "src_id,dst_id,graph_id,w\na,b,0,0.5\n").unwrap();
        assert_eq!((csv.as_str(), notes.len()), ("source,target,graph_id,e_w\na,b,0,0.5\n", 0));
        let (csv, notes) = convert(Table::Graphs, "graph_id,label,train_mask,feat\n0,\"1,0\",True,1\n").unwrap();
        assert_eq!((csv.as_str(), notes.len()), ("graph_id,y_0,y_1\n0,1,0\n", 2));
    }

    #[test]
    fn rows_that_do_not_fit_are_named_with_their_line() {
        let long = convert(Table::Nodes, "node_id,feat\na,\"1,2\"\nb,\"1,2,3\"\n").unwrap_err();
        assert!(long.contains("nodes.csv, line 3: 3 values of x_feat, expected 2 as in the first row"), "{long}");
        let both = "node_id,train_mask,val_mask,test_mask\na,1,0,1\n";
        let both = convert(Table::Nodes, both).unwrap_err();
        assert!(both.contains("nodes.csv, line 2: test_mask beside another mask"), "{both}");
        assert!(convert(Table::Edges, "src_id,dst_id\na\n").unwrap_err().contains("edges.csv, line 2"));
    }
}
