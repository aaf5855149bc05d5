//! Features of nodes or edges as rows: one column for a continuous feature, one for each value of a categorical one.

use kdgat_torch::allocator;

use super::error::{DatasetError, Origin};
use super::schema::{Feature, numbered};

/// Most distinct values of a categorical feature: each of them is a column of every row.
const MOST_VALUES: usize = 4096;
/// Share of the memory limit that the rows of one table may take.
const SHARE_OF_MEMORY: u64 = 8;

/// Features of nodes or edges in the order of the source.
pub(super) struct Rows {
    pub features: Vec<Feature>,
    /// `[rows, width]`.
    pub values: Vec<f32>,
    pub width: usize,
}

/// A feature as a source has it.
pub(super) struct Column<'a> {
    pub name: String,
    pub cells: Cells,
    /// The file or the place of its name, for errors.
    pub origin: Origin<'a>,
    /// Remedy for a categorical column of too many values.
    pub remedy: &'static str,
}

/// The values of a feature, one for each row.
pub(super) enum Cells {
    /// Values of a continuous feature.
    Numbers(Vec<f32>),
    /// Values of a categorical feature.
    Texts(Vec<String>),
    /// Distinct values of a categorical feature, and the position of each row's value among them.
    Numbered { values: Vec<String>, of_rows: Vec<u32> },
}

impl Rows {
    /// Joins columns of `rows` values each.
    ///
    /// # Errors
    /// A categorical column with too many values, or rows that take too much of the memory limit; it names the column with the most
    /// values. Nothing is allocated for the rows then.
    pub fn new(columns: Vec<Column<'_>>, rows: usize) -> Result<Self, DatasetError> {
        Self::within(columns, rows, allocator::stats().limit)
    }

    /// Joins columns under a memory limit in bytes.
    fn within(columns: Vec<Column<'_>>, rows: usize, memory_limit: u64) -> Result<Self, DatasetError> {
        let (mut features, mut parts) = (Vec::new(), Vec::new());
        let (mut largest, mut most) = (None, 1);
        for Column { name, cells, origin, remedy } in columns {
            let part = match cells {
                Cells::Numbers(values) => Part::Numbers(values),
                Cells::Texts(texts) => {
                    let (values, of_rows) = numbered(&texts);
                    Part::OneHot { values, of_rows }
                }
                Cells::Numbered { values, of_rows } => Part::OneHot { values, of_rows },
            };
            let count = part.columns();
            if count > MOST_VALUES {
                let found = format!("column '{name}' with {count} different values");
                let expected = format!("at most {MOST_VALUES}, each of which becomes a column of every row: {remedy}");
                return Err(origin.error(found, expected));
            }
            if count > most {
                (largest, most) = (Some((name.clone(), origin, remedy)), count);
            }
            features.push(Feature { name, values: part.values() });
            parts.push(part);
        }
        let width: usize = features.iter().map(Feature::columns).sum();
        let bytes = (rows as u64).saturating_mul(width as u64).saturating_mul(size_of::<f32>() as u64);
        // Continuous columns take no more than the text that they were read from.
        if let Some((name, origin, remedy)) = largest.filter(|_| bytes > memory_limit / SHARE_OF_MEMORY) {
            let found = format!(
                "{rows} rows of {width} columns ({} MB), most of them the {most} values of column '{name}'",
                bytes / 1_000_000
            );
            let limit = memory_limit / SHARE_OF_MEMORY / 1_000_000;
            let expected = format!("at most {limit} MB, an eighth of the memory limit (--memory-limit): {remedy}");
            return Err(origin.error(found, expected));
        }
        let mut values = vec![0.0; rows * width];
        if width > 0 {
            for (row, cells) in values.chunks_exact_mut(width).enumerate() {
                let mut first = 0;
                for part in &parts {
                    match part {
                        Part::Numbers(numbers) => cells[first] = numbers[row],
                        Part::OneHot { of_rows, .. } => cells[first + of_rows[row] as usize] = 1.0,
                    }
                    first += part.columns();
                }
            }
        }
        Ok(Self { features, values, width })
    }

    /// The rows in another order.
    pub fn ordered(&self, order: impl Iterator<Item = u32>) -> Vec<f32> {
        order
            .flat_map(|row| &self.values[row as usize * self.width..(row as usize + 1) * self.width])
            .copied()
            .collect()
    }
}

/// A column whose distinct values are known.
enum Part {
    Numbers(Vec<f32>),
    OneHot { values: Vec<String>, of_rows: Vec<u32> },
}

impl Part {
    /// Number of columns of a row.
    fn columns(&self) -> usize {
        match self {
            Self::Numbers(_) => 1,
            Self::OneHot { values, .. } => values.len(),
        }
    }

    /// The values of a categorical column.
    fn values(&self) -> Option<Vec<String>> {
        match self {
            Self::Numbers(_) => None,
            Self::OneHot { values, .. } => Some(values.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(name: &str, count: usize) -> Column<'static> {
        let cells = Cells::Texts((0..count).map(|number| number.to_string()).collect());
        Column { name: name.to_owned(), cells, origin: Origin::line("nodes.csv", 1), remedy: "leave it out" }
    }

    fn numbers(name: &str, values: &[f32]) -> Column<'static> {
        let cells = Cells::Numbers(values.to_vec());
        Column { name: name.to_owned(), cells, origin: Origin::line("nodes.csv", 1), remedy: "" }
    }

    #[test]
    fn columns_are_joined_row_by_row() {
        let rows = Rows::new(vec![numbers("x_a", &[0.5, 1.5]), texts("c_b", 2), numbers("x_c", &[3.0, 4.0])], 2);
        let rows = rows.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(rows.values, [0.5, 1.0, 0.0, 3.0, 1.5, 0.0, 1.0, 4.0]);
        assert_eq!(rows.ordered([1, 0].into_iter())[..4], [1.5, 0.0, 1.0, 4.0]);
        assert_eq!((rows.width, rows.features[1].columns()), (4, 2));
        assert!(Rows::new(Vec::new(), 5).is_ok_and(|rows| rows.values.is_empty()));
    }

    #[test]
    fn columns_of_many_values_are_refused_before_anything_is_allocated() {
        let error = |columns, rows, limit| Rows::within(columns, rows, limit).err().map(|error| error.to_string());
        let found = error(vec![texts("c_id", MOST_VALUES + 1)], MOST_VALUES + 1, u64::MAX).unwrap_or_default();
        assert!(
            found.starts_with("nodes.csv, line 1: column 'c_id' with 4097 different values, expected at most 4096")
        );
        assert!(found.ends_with("leave it out"), "{found}");
        assert_eq!(error(vec![texts("c_id", MOST_VALUES)], MOST_VALUES, u64::MAX), None);
        // 1000 rows of 1004 columns take 4 MB.
        let columns = || vec![texts("c_a", 1000), numbers("x", &[0.0; 1000]), texts("c_b", 3)];
        let of_three = |column: Column<'static>| match column.name.as_str() {
            "c_b" => Column { cells: Cells::Texts((0..1000).map(|row| (row % 3).to_string()).collect()), ..column },
            _ => column,
        };
        let columns = || columns().into_iter().map(of_three).collect::<Vec<_>>();
        assert_eq!(error(columns(), 1000, 8 * 4_016_000), None);
        let found = error(columns(), 1000, 8 * 4_015_999).unwrap_or_default();
        assert!(found.contains("1000 rows of 1004 columns (4 MB), most of them the 1000 values of column 'c_a'"));
        assert!(found.contains("an eighth of the memory limit (--memory-limit): leave it out"), "{found}");
    }
}
