//! A file of the tabular format, CSV or Parquet: named columns, and errors with file and line or row.

use std::io::{self, Read};
use std::str::FromStr;

use csv::{ReaderBuilder, StringRecord, Trim};
#[cfg(feature = "parquet")]
use kdgat_torch::allocator;

use super::csv_dataset::{Converted, CsvDataset, META, Table};
use super::error::{DatasetError, Origin, Place};
use super::missing::is_missing;
#[cfg(feature = "parquet")]
use super::parquet_table;
#[cfg(feature = "parquet")]
use super::source_files::SHARE_OF_MEMORY;
use super::source_files::SourceFiles;
use super::table::{EDGES, GRAPHS, NODES};

/// A file with named columns.
pub(super) struct TableFile<'a> {
    files: &'a SourceFiles,
    file: String,
    columns: Vec<String>,
    /// The content of another format as CSV; a CSV file is read as a stream, each time.
    converted: Option<Vec<u8>>,
    /// True if places are rows instead of lines.
    is_parquet: bool,
    /// Facts about the columns that may surprise.
    notes: Vec<String>,
}

/// A row and its place in the file.
pub(super) struct Row<'a> {
    table: &'a TableFile<'a>,
    /// Line or row.
    pub place: Place,
    record: &'a StringRecord,
}

/// True if a file is a table of this name: `NAME.csv` or `NAME.parquet`.
pub(super) fn is_table(file: &str, name: &str) -> bool {
    file.strip_prefix(name).is_some_and(|ending| ending == ".csv" || ending == ".parquet")
}

/// The description of the dataset, if it is in DGL's layout.
pub(super) fn described(files: &SourceFiles) -> Result<Option<CsvDataset>, DatasetError> {
    files.read(META)?.map_or(Ok(None), |bytes| CsvDataset::parse(&bytes))
}

impl<'a> TableFile<'a> {
    /// Opens `NAME.csv` or `NAME.parquet`, or the table that DGL's `meta.yaml` names instead; `None` if there is none.
    pub fn read(files: &'a SourceFiles, name: &str) -> Result<Option<Self>, DatasetError> {
        // DGL's layout has no other tables.
        if let Some(dataset) = described(files)?.filter(|_| [GRAPHS, NODES, EDGES].contains(&name)) {
            return Self::described(files, &dataset, name)?.with_columns().map(Some);
        }
        let found = files.names().iter().filter(|file| is_table(file, name)).collect::<Vec<_>>();
        let file = match found[..] {
            [] => return Ok(None),
            [file] => file,
            [first, second, ..] => {
                let origin = Origin { file: second, place: Place::File };
                return Err(origin.error(format!("the same table as {first}"), "one of the two: remove the other"));
            }
        };
        let is_parquet = file.ends_with(".parquet");
        let converted = match is_parquet {
            true => Some(parquet_as_csv(file, files.read(file)?.unwrap_or_default())?),
            false => None,
        };
        let table =
            Self { files, file: file.to_owned(), columns: Vec::new(), converted, is_parquet, notes: Vec::new() };
        table.with_columns().map(Some)
    }

    /// Reads a table of a dataset in DGL's layout, without its columns.
    fn described(files: &'a SourceFiles, dataset: &CsvDataset, name: &str) -> Result<Self, DatasetError> {
        let (table, file) = match name {
            GRAPHS => (Table::Graphs, dataset.graphs.as_deref()),
            EDGES => (Table::Edges, Some(dataset.edges.as_str())),
            _ => (Table::Nodes, Some(dataset.nodes.as_str())),
        };
        let Some(file) = file else {
            let expected = "graph_data with a file_name; a dataset of one graph is named by its unpacked folder";
            return Err(Origin { file: META, place: Place::File }.error("no graph_data", expected));
        };
        let Some(bytes) = files.read(file)? else {
            let (root, file) = (files.root().to_owned(), file.to_owned());
            return Err(DatasetError::MissingFile { root, file, expected: "meta.yaml names it" });
        };
        let Converted { csv, notes } = dataset.convert(table, &bytes)?;
        Ok(Self { files, file: file.to_owned(), columns: Vec::new(), converted: Some(csv), is_parquet: false, notes })
    }

    /// The table with the names of its columns.
    fn with_columns(self) -> Result<Self, DatasetError> {
        let mut table = self;
        let header = table.read_as_csv(|reader| reader.headers().cloned().map_err(|error| table.broken(&error)))?;
        table.columns = header.iter().map(|name| name.trim_start_matches('\u{feff}').to_owned()).collect();
        let columns = &table.columns;
        if let Some(at) = (1..columns.len()).find(|&at| columns[..at].contains(&columns[at])) {
            return Err(table.header().error(format!("column '{}' twice", columns[at]), "each column once"));
        }
        Ok(table)
    }

    /// Facts about the columns that may surprise.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reads a table that the format requires.
    pub fn required(files: &'a SourceFiles, name: &str, expected: &'static str) -> Result<Self, DatasetError> {
        let (root, file) = (files.root(), format!("{name}.csv"));
        let missing = || DatasetError::MissingFile { root: root.to_owned(), file, expected };
        Self::read(files, name)?.ok_or_else(missing)
    }

    /// Name of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The place of the names of the columns, for errors.
    pub fn header(&self) -> Origin<'_> {
        let place = if self.is_parquet { Place::File } else { Place::Line(1) };
        Origin { file: &self.file, place }
    }

    /// Position of a column, if there is one of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// Position of a column that must exist.
    pub fn column(&self, name: &str) -> Result<usize, DatasetError> {
        let found = || format!("no column '{name}' among {}", self.columns.join(", "));
        self.find(name).ok_or_else(|| self.header().error(found(), format!("a column '{name}'")))
    }

    /// Columns whose names begin with `prefix`, or are `alone`: positions, in the order of the file.
    pub fn starting_with(&self, prefix: &str, alone: Option<&str>) -> Vec<usize> {
        let fits = |name: &String| name.starts_with(prefix) || alone == Some(name.as_str());
        self.columns.iter().enumerate().filter(|(_, name)| fits(name)).map(|(at, _)| at).collect()
    }

    /// Calls `each` for every row.
    pub fn each_row(&self, mut each: impl FnMut(Row<'_>) -> Result<(), DatasetError>) -> Result<(), DatasetError> {
        self.read_as_csv(|reader| {
            let mut record = StringRecord::new();
            while reader.read_record(&mut record).map_err(|error| self.broken(&error))? {
                let place = self.place(record.position());
                each(Row { table: self, place, record: &record })?;
            }
            Ok(())
        })
    }

    /// Calls `read` with a reader of the rows.
    fn read_as_csv<T>(
        &self,
        read: impl FnOnce(&mut csv::Reader<&mut dyn Read>) -> Result<T, DatasetError>,
    ) -> Result<T, DatasetError> {
        let read = |bytes: &mut dyn Read| read(&mut ReaderBuilder::new().trim(Trim::All).from_reader(bytes));
        if let Some(converted) = &self.converted {
            return read(&mut converted.as_slice());
        }
        let gone = || DatasetError::MissingFile {
            root: self.files.root().to_owned(),
            file: self.file.clone(),
            expected: "it was there before; restore it",
        };
        self.files.read_with(&self.file, read)?.ok_or_else(gone)
    }

    fn place(&self, position: Option<&csv::Position>) -> Place {
        match position {
            // Record 0 is the header.
            Some(position) if self.is_parquet => Place::Row(position.record()),
            Some(position) => Place::Line(position.line()),
            None => self.header().place,
        }
    }

    fn broken(&self, error: &csv::Error) -> DatasetError {
        let origin = Origin { file: &self.file, place: self.place(error.position()) };
        match error.kind() {
            csv::ErrorKind::Io(source) => {
                DatasetError::io(&self.files.root().join(&self.file))(io::Error::new(source.kind(), source.to_string()))
            }
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                origin.error(format!("{len} fields"), format!("{expected_len} as in the header"))
            }
            _ => origin.error(error.to_string(), "comma-separated values in UTF-8"),
        }
    }
}

impl Row<'_> {
    /// The cell of a column; an error if it is empty.
    pub fn text(&self, column: usize) -> Result<&str, DatasetError> {
        match self.record.get(column) {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(self.error(column, "an empty field", "a value")),
        }
    }

    /// The cell of a column, which may be empty.
    pub fn cell(&self, column: usize) -> &str {
        self.record.get(column).unwrap_or_default()
    }

    /// True if the cell of a column has no value: it is empty, NaN, or another mark for that.
    pub fn is_missing(&self, column: usize) -> bool {
        is_missing(self.cell(column))
    }

    /// The cell of a column for an error.
    pub fn shown(&self, column: usize) -> String {
        match self.cell(column) {
            "" => "an empty field".to_owned(),
            text => format!("'{text}'"),
        }
    }

    /// The cell of a column as a finite number.
    pub fn number(&self, column: usize) -> Result<f32, DatasetError> {
        self.finite(column, "a finite number")
    }

    /// The cell of a column as a finite coordinate.
    pub fn coordinate(&self, column: usize) -> Result<f64, DatasetError> {
        self.finite(column, "a finite coordinate")
    }

    fn finite<T: FromStr + Into<f64> + Copy>(&self, column: usize, expected: &str) -> Result<T, DatasetError> {
        let text = self.text(column)?;
        let parsed = text.parse::<T>().ok().filter(|value| ((*value).into() as f32).is_finite());
        parsed.ok_or_else(|| self.error(column, &format!("'{text}'"), expected))
    }

    /// The place of the row, for errors.
    pub fn origin(&self) -> Origin<'_> {
        Origin { file: &self.table.file, place: self.place }
    }

    /// An error about the cell of a column.
    pub fn error(&self, column: usize, found: &str, expected: &str) -> DatasetError {
        self.origin().error(format!("column '{}' has {found}", self.table.columns[column]), expected)
    }
}

#[cfg(feature = "parquet")]
fn parquet_as_csv(file: &str, bytes: Vec<u8>) -> Result<Vec<u8>, DatasetError> {
    let unreadable = |problem| Origin { file, place: Place::File }.error(problem, "a readable Parquet file");
    parquet_table::as_csv(bytes, allocator::stats().limit / SHARE_OF_MEMORY).map_err(unreadable)
}

#[cfg(not(feature = "parquet"))]
fn parquet_as_csv(file: &str, _: Vec<u8>) -> Result<Vec<u8>, DatasetError> {
    let expected = "CSV: this program was built without Parquet support; rebuild it with `--features parquet`";
    Err(Origin { file, place: Place::File }.error("a Parquet file", expected))
}
