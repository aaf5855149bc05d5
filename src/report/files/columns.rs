//! A CSV file by the names of its columns.

use std::path::{Path, PathBuf};

use crate::report::ReportError;

/// A table, read whole.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    /// Where it was read.
    pub path: PathBuf,
    header: Vec<String>,
    rows: Vec<csv::StringRecord>,
}

impl Columns {
    /// Reads a file; `None` where there is none. A last row without its end, as a run that is still writing leaves it, is
    /// left out.
    pub fn read(path: &Path) -> Result<Option<Self>, ReportError> {
        if !path.exists() {
            return Ok(None);
        }
        let unreadable = |error: csv::Error| ReportError::input(path, format!("is no table: {error}"));
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_path(path).map_err(unreadable)?;
        let header: Vec<String> = reader.headers().map_err(unreadable)?.iter().map(str::to_owned).collect();
        let rows = reader.records().collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        let rows = rows.into_iter().filter(|row| row.len() == header.len()).collect();
        Ok(Some(Self { path: path.to_owned(), header, rows }))
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Names of the columns.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.iter().map(String::as_str)
    }

    /// The texts of a column; empty ones where the file has no such column.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        match self.header.iter().position(|column| column == name) {
            Some(column) => self.rows.iter().map(|row| row.get(column).unwrap_or("")).collect(),
            None => vec![""; self.rows.len()],
        }
    }

    /// The numbers of a column; NaN where a field is empty or no number.
    pub fn numbers(&self, name: &str) -> Vec<f64> {
        self.texts(name).iter().map(|text| text.parse().unwrap_or(f64::NAN)).collect()
    }

    /// Points of two columns, where both are numbers.
    pub fn points(&self, x: &str, y: &str) -> Vec<(f64, f64)> {
        let points = self.numbers(x).into_iter().zip(self.numbers(y));
        points.filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_by_name_without_a_torn_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        assert!(Columns::read(&path).unwrap().is_none());
        std::fs::write(&path, "epoch,loss,kd\n0,0.5,\n1,0.25,0.1\n2,0.1").unwrap();
        let table = Columns::read(&path).unwrap().unwrap();
        assert_eq!(table.len(), 2);
        assert_eq!(table.points("epoch", "loss"), [(0.0, 0.5), (1.0, 0.25)]);
        assert_eq!(table.points("epoch", "kd"), [(1.0, 0.1)]);
        assert!(table.points("epoch", "absent").is_empty());
    }
}
