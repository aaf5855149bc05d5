//! A graph as a source gives it: a list of edges, rows of features, labels. All readers of sources end here.

use bytemuck::Pod;
use half::f16;

use super::GraphOptions;
use crate::node_graph::{Features, NO_LABEL, Section};
use crate::node_hash::RowHash;
pub use crate::npz::Mismatch;

/// Largest number of classes.
pub const MOST_CLASSES: usize = 65_535;
/// Largest number of nodes: numbers are stored in 32 bits, and the last one marks a node that was removed.
pub const MOST_NODES: usize = u32::MAX as usize;

/// A graph before edges are sorted and nodes are removed.
pub struct RawGraph {
    /// Name of the dataset.
    pub name: String,
    /// The edges in the order of the source.
    pub edges: EdgeList,
    /// Features of each node.
    pub features: HashedRows,
    /// Class of each node, or [`NO_LABEL`].
    pub labels: Vec<i32>,
    /// The [`GivenSet`](crate::node_graph::GivenSet) of each node, if the source gives a split.
    pub split: Option<Vec<u8>>,
    /// Names of the classes, if the source names them.
    pub class_names: Option<Vec<String>>,
    /// Columns and arrays of the source that nothing reads.
    pub ignored_columns: Vec<String>,
    /// Other facts about the source that may surprise.
    pub remarks: Vec<String>,
}

/// Directed edges.
#[derive(Debug, Default)]
pub struct EdgeList {
    /// The node that each edge comes from.
    pub sources: Vec<u32>,
    /// The node that each edge leads to.
    pub targets: Vec<u32>,
}

impl EdgeList {
    /// The edges as pairs of source and target.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.sources.iter().copied().zip(self.targets.iter().copied())
    }
}

/// Features of nodes with the hashes of the rows in the source.
#[derive(Debug)]
pub struct HashedRows {
    /// The features.
    pub features: RawFeatures,
    /// `[num_nodes]`: the hash of each row before it was normalised or rounded.
    pub hashes: Vec<RowHash>,
    /// `[num_nodes]`: the hash of each node's name, if the source names the nodes.
    pub names: Option<Vec<u64>>,
}

impl HashedRows {
    fn new(features: RawFeatures, hashes: Vec<RowHash>) -> Self {
        Self { features, hashes, names: None }
    }

    /// `[num_nodes]`: the hash of each node.
    pub fn node_hashes(&self) -> Vec<u64> {
        let name = |number: usize| self.names.as_ref().map_or(number as u64, |names| names[number]);
        self.hashes.iter().enumerate().map(|(number, row)| row.of_node(name(number))).collect()
    }
}

/// Features of nodes, one row for each node.
#[derive(Debug)]
pub enum RawFeatures {
    /// See [`Features::Dense`].
    Dense { columns: usize, values: Vec<f32> },
    /// See [`Features::Half`].
    Half { columns: usize, values: Vec<u16> },
    /// See [`Features::Sparse`].
    Sparse(SparseFeatures),
}

impl From<RawFeatures> for Features {
    fn from(raw: RawFeatures) -> Self {
        match raw {
            RawFeatures::Dense { columns, values } => Self::Dense { columns, values: values.into() },
            RawFeatures::Half { columns, values } => Self::Half { columns, values: values.into() },
            RawFeatures::Sparse(SparseFeatures { columns, row_pointers, column_index, values }) => Self::Sparse {
                columns,
                row_pointers: Section::from(row_pointers),
                column_index: Section::from(column_index),
                values: Section::from(values),
            },
        }
    }
}

/// Rows with few values that are not zero.
#[derive(Debug)]
pub struct SparseFeatures {
    /// Number of features.
    pub columns: usize,
    /// `[num_nodes + 1]`.
    pub row_pointers: Vec<u64>,
    /// `[num_values]`.
    pub column_index: Vec<u32>,
    /// `[num_values]`.
    pub values: Vec<f32>,
}

/// A column that a row has twice.
#[derive(Debug, PartialEq, Eq)]
pub struct RepeatedColumn {
    /// The row.
    pub row: usize,
    /// The column.
    pub column: u32,
}

impl SparseFeatures {
    /// Sorts the columns of each row, removes stored zeros, and divides each row by the sum of its absolute values if
    /// `options` ask for it. Works in place; compares values only within a row whose columns do not ascend.
    ///
    /// # Errors
    /// A column that a row has twice.
    pub fn into_rows(mut self, options: &GraphOptions) -> Result<HashedRows, RepeatedColumn> {
        let mut hashes = Vec::with_capacity(self.row_pointers.len() - 1);
        let mut row_values: Vec<(u32, f32)> = Vec::new();
        let (mut kept, mut begin) = (0, 0);
        for row in 0..self.row_pointers.len() - 1 {
            let end = self.row_pointers[row + 1] as usize;
            row_values.clear();
            row_values.extend((begin..end).map(|at| (self.column_index[at], self.values[at])));
            if !row_values.is_sorted_by_key(|&(column, _)| column) {
                row_values.sort_unstable_by_key(|&(column, _)| column);
            }
            if let Some(pair) = row_values.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(RepeatedColumn { row, column: pair[0].0 });
            }
            row_values.retain(|&(_, value)| value != 0.0);
            let mut hash = RowHash::default();
            row_values.iter().for_each(|&(column, value)| hash.add(column as usize, value));
            hashes.push(hash);
            if options.row_normalized {
                normalize(&mut row_values, |(_, value)| value);
            }
            for &(column, value) in &row_values {
                (self.column_index[kept], self.values[kept]) = (column, value);
                kept += 1;
            }
            begin = end;
            self.row_pointers[row + 1] = kept as u64;
        }
        self.column_index.truncate(kept);
        self.values.truncate(kept);
        Ok(HashedRows::new(RawFeatures::Sparse(self), hashes))
    }
}

/// Divides values by the sum of their absolute values, computed in f64. Leaves a row of zeros as it is.
fn normalize<T>(row: &mut [T], value_of: impl Fn(&mut T) -> &mut f32) {
    let sum: f64 = row.iter_mut().map(|entry| f64::from(value_of(entry).abs())).sum();
    if sum > 0.0 {
        for value in row.iter_mut().map(value_of) {
            *value = (f64::from(*value) / sum) as f32;
        }
    }
}

/// Collects the values of dense rows, in order.
pub struct DenseRows {
    /// The row that is being filled.
    row: Vec<f32>,
    rows: usize,
    columns: usize,
    normalized: bool,
    values: DenseValues,
    hashes: Vec<RowHash>,
}

/// Neighbouring rows as the bytes of a store, with the hash of each row before it was normalised or rounded.
pub struct RowBlock {
    /// Number of the first row.
    pub first: usize,
    /// The features.
    pub bytes: Vec<u8>,
    /// One for each row.
    pub hashes: Vec<RowHash>,
}

enum DenseValues {
    Single(Vec<f32>),
    Half(Vec<u16>),
}

impl DenseRows {
    /// Reserves memory for `rows` rows.
    ///
    /// # Errors
    /// No column, or rows that do not fit the machine's memory.
    pub fn new(rows: usize, columns: usize, options: &GraphOptions) -> Result<Self, Mismatch> {
        if columns == 0 {
            return Err(Mismatch::new("no feature", "at least one feature for each node"));
        }
        let too_many = || Mismatch::new(format!("{rows} rows of {columns} features"), "rows that fit into memory");
        let size = rows.checked_mul(columns).ok_or_else(too_many)?;
        let mut values = match options.half {
            true => DenseValues::Half(Vec::new()),
            false => DenseValues::Single(Vec::new()),
        };
        let reserved = match &mut values {
            DenseValues::Single(values) => values.try_reserve_exact(size),
            DenseValues::Half(values) => values.try_reserve_exact(size),
        };
        reserved.map_err(|_| too_many())?;
        let mut hashes = Vec::new();
        hashes.try_reserve_exact(rows).map_err(|_| too_many())?;
        let normalized = options.row_normalized;
        Ok(Self { row: Vec::with_capacity(columns), rows: 0, columns, normalized, values, hashes })
    }

    /// Rows that are taken out while they are added, from the number `first` on.
    ///
    /// # Errors
    /// No column.
    pub fn streamed(first: usize, columns: usize, options: &GraphOptions) -> Result<Self, Mismatch> {
        Ok(Self { rows: first, ..Self::new(0, columns, options)? })
    }

    /// Takes out the complete rows.
    pub fn take(&mut self) -> RowBlock {
        let bytes = match &mut self.values {
            DenseValues::Single(values) => take_bytes(values),
            DenseValues::Half(values) => take_bytes(values),
        };
        let hashes = std::mem::take(&mut self.hashes);
        RowBlock { first: self.rows - hashes.len(), bytes, hashes }
    }

    /// Number of complete rows that are not taken out.
    pub fn waiting(&self) -> usize {
        self.hashes.len()
    }

    /// Number of features.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Adds the next value.
    ///
    /// # Errors
    /// A value that is not finite in the precision of the rows; it names node and column.
    pub fn push(&mut self, value: f64) -> Result<(), Mismatch> {
        let single = value as f32;
        if !single.is_finite() {
            return Err(self.mismatch(self.row.len(), value, "a finite number in single precision"));
        }
        self.row.push(single);
        if self.row.len() == self.columns { self.end_row() } else { Ok(()) }
    }

    fn end_row(&mut self) -> Result<(), Mismatch> {
        self.hashes.push(RowHash::of(&self.row));
        if self.normalized {
            normalize(&mut self.row, |value| value);
        }
        match &mut self.values {
            DenseValues::Single(values) => values.extend_from_slice(&self.row),
            DenseValues::Half(values) => {
                values.extend(self.row.iter().map(|&value| f16::from_f32(value).to_bits()));
                let added = &values[values.len() - self.columns..];
                if let Some(column) = added.iter().position(|&bits| !f16::from_bits(bits).is_finite()) {
                    let expected = "a number within ±65504, the range of half precision; or leave --half-features out";
                    return Err(self.mismatch(column, self.row[column].into(), expected));
                }
            }
        }
        self.row.clear();
        self.rows += 1;
        Ok(())
    }

    fn mismatch(&self, column: usize, value: f64, expected: &str) -> Mismatch {
        Mismatch::new(format!("{value} for node {}, column {column}", self.rows), expected)
    }

    /// The complete rows.
    pub fn finish(self) -> HashedRows {
        let columns = self.columns;
        let features = match self.values {
            DenseValues::Single(values) => RawFeatures::Dense { columns, values },
            DenseValues::Half(values) => RawFeatures::Half { columns, values },
        };
        HashedRows::new(features, self.hashes)
    }
}

fn take_bytes<T: Pod>(values: &mut Vec<T>) -> Vec<u8> {
    let bytes = bytemuck::cast_slice(values).to_vec();
    values.clear();
    bytes
}

/// The number of a node below `num_nodes`.
///
/// # Errors
/// A number without a node.
pub fn node_number(number: i64, num_nodes: usize) -> Result<u32, Mismatch> {
    let found = usize::try_from(number).ok().filter(|&node| node < num_nodes);
    // There are at most `MOST_NODES` nodes.
    found.map(|node| node as u32).ok_or_else(|| {
        Mismatch::new(format!("node {number}"), format!("a node from 0 to {}", num_nodes.saturating_sub(1)))
    })
}

/// The class that a number names; NaN is no label.
///
/// # Errors
/// A fraction, a negative number, or a class beyond [`MOST_CLASSES`].
pub fn class_of(number: f64) -> Result<i32, Mismatch> {
    if number.is_nan() {
        return Ok(NO_LABEL);
    }
    let last = MOST_CLASSES - 1;
    match number.fract() == 0.0 && (0.0..=last as f64).contains(&number) {
        true => Ok(number as i32),
        false => Err(Mismatch::new(
            format!("class {number}"),
            format!("an integer from 0 to {last}, or NaN for a node without a label"),
        )),
    }
}

/// Refuses a graph without nodes, or with more than 32 bits can number.
///
/// # Errors
/// Such a number.
pub fn expect_nodes(count: usize) -> Result<(), Mismatch> {
    match count {
        0 => Err(Mismatch::new("no nodes", "at least one node")),
        1..=MOST_NODES => Ok(()),
        _ => Err(Mismatch::new(format!("{count} nodes"), format!("at most {MOST_NODES}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[f64], columns: usize, options: &GraphOptions) -> Result<RawFeatures, Mismatch> {
        let mut rows = DenseRows::new(values.len() / columns, columns, options)?;
        values.iter().try_for_each(|&value| rows.push(value))?;
        Ok(rows.finish().features)
    }

    #[test]
    fn rows_are_normalised_before_they_are_rounded_to_half_precision() {
        let options = GraphOptions { row_normalized: true, half: true, ..GraphOptions::default() };
        let RawFeatures::Half { columns: 2, values } = rows(&[1e6, -3e6, 0.0, 0.0], 2, &options).unwrap() else {
            panic!("not in half precision")
        };
        let values: Vec<f32> = values.into_iter().map(|bits| f16::from_bits(bits).to_f32()).collect();
        assert_eq!(values, [0.25, -0.75, 0.0, 0.0]);
    }

    #[test]
    fn values_beyond_the_precision_are_refused_with_node_and_column() {
        let half = GraphOptions { half: true, ..GraphOptions::default() };
        let found = |values: &[f64], options: &GraphOptions| rows(values, 2, options).unwrap_err().found;
        assert_eq!(found(&[1.0, 2.0, 3.0, 70_000.0], &half), "70000 for node 1, column 1");
        assert_eq!(found(&[1.0, 2.0, -65_520.0, 0.0], &half), "-65520 for node 1, column 0");
        assert!(rows(&[65_519.0, 1e-30], 2, &half).is_ok(), "these round to 65504 and 0");
        let single = GraphOptions::default();
        assert_eq!(found(&[1.0, f64::NAN], &single), "NaN for node 0, column 1");
        assert_eq!(found(&[1e39, 0.0], &single), "1000000000000000000000000000000000000000 for node 0, column 0");
        assert!(DenseRows::new(usize::MAX, 2, &single).is_err());
        assert!(DenseRows::new(usize::MAX / 8, 1, &single).is_err(), "more than the address space");
        assert!(DenseRows::new(1, 0, &single).is_err());
    }

    #[test]
    fn sparse_rows_are_sorted_without_zeros() {
        let sparse = || SparseFeatures {
            columns: 5,
            row_pointers: vec![0, 3, 3, 5],
            column_index: vec![4, 0, 2, 1, 3],
            values: vec![-3.0, 1.0, 0.0, 2.0, 2.0],
        };
        let plain = GraphOptions::default();
        let RawFeatures::Sparse(found) = sparse().into_rows(&plain).unwrap().features else { panic!("not sparse") };
        assert_eq!(found.row_pointers, [0, 2, 2, 4]);
        assert_eq!(found.column_index, [0, 4, 1, 3]);
        assert_eq!(found.values, [1.0, -3.0, 2.0, 2.0]);
        let normalized = GraphOptions { row_normalized: true, ..plain.clone() };
        let RawFeatures::Sparse(found) = sparse().into_rows(&normalized).unwrap().features else {
            panic!("not sparse")
        };
        assert_eq!(found.values, [0.25, -0.75, 0.5, 0.5]);
        let twice = SparseFeatures { column_index: vec![4, 0, 4, 1, 3], ..sparse() };
        assert_eq!(twice.into_rows(&plain).unwrap_err(), RepeatedColumn { row: 0, column: 4 });
    }

    #[test]
    fn numbers_of_nodes_and_classes_are_checked() {
        assert_eq!(node_number(4, 5).unwrap(), 4);
        for number in [-1, 5, 1_000_000_000, i64::MAX] {
            assert_eq!(node_number(number, 5).unwrap_err().found, format!("node {number}"));
        }
        assert_eq!(class_of(65_534.0).unwrap(), 65_534);
        assert_eq!(class_of(f64::NAN).unwrap(), NO_LABEL);
        for number in [-1.0, 65_535.0, 0.5, f64::INFINITY] {
            assert!(class_of(number).is_err(), "{number}");
        }
        assert!(expect_nodes(0).is_err());
        assert!(expect_nodes(MOST_NODES).is_ok());
        assert!(expect_nodes(MOST_NODES + 1).is_err());
    }
}
