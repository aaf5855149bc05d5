//! Reads one graph from an `.npz` archive, the layout of the gnn-benchmark collection (Shchur et al. 2018).
//!
//! | arrays | content |
//! |---|---|
//! | `adj_data`, `adj_indices`, `adj_indptr`, `adj_shape` | adjacency in CSR |
//! | `attr_data`, `attr_indices`, `attr_indptr`, `attr_shape` | features in CSR, which stay sparse |
//! | `attr_matrix` | instead of the above: features, `[num_nodes, columns]` |
//! | `labels` | class of each node; NaN for none |
//!
//! An entry of row `i` and column `j` of the adjacency is an edge from `i` to `j`. Weights of edges are ignored.

use std::path::Path;

use super::raw_graph::{
    DenseRows, EdgeList, HashedRows, Mismatch, RawGraph, RepeatedColumn, SparseFeatures, class_of, expect_nodes,
};
use super::{GraphOptions, name_of};
use crate::NodesError;
use crate::npz::{Faulty, Npz};

/// Reads a graph.
///
/// # Errors
/// A missing array, or a value that does not fit, with its array and position.
pub(super) fn read(path: &Path, options: &GraphOptions) -> Result<RawGraph, NodesError> {
    let mut npz = Npz::open(path)?;
    let num_nodes = num_nodes(&mut npz)?;
    // Before the edges are unpacked, which a small file can have many of.
    let [entries] = npz.dimensions("adj_indices")?;
    expect_length(&mut npz, "adj_data", entries, "adj_indices")?;
    let edges = edges(&mut npz, num_nodes)?;
    let has_weights = has_weights(&mut npz)?;
    let features = match npz.has("attr_matrix") {
        true => dense_rows(&mut npz, "attr_matrix", num_nodes, options)?,
        false => sparse_features(&mut npz, num_nodes, options)?,
    };
    let labels = labels(&mut npz, "labels", num_nodes)?;
    let mut ignored = ignored_arrays(&npz, path);
    if has_weights {
        ignored.push(format!("{} adj_data (weights of edges)", file_name(path)));
    }
    Ok(RawGraph {
        name: name_of(path),
        edges,
        features,
        labels,
        split: None,
        class_names: None,
        ignored_columns: ignored,
        remarks: Vec::new(),
    })
}

fn num_nodes(npz: &mut Npz) -> Result<usize, NodesError> {
    let [rows, columns] = matrix_shape(npz, "adj_shape")?;
    if rows != columns {
        return Err(npz.error("adj_shape", format!("{rows} rows and {columns} columns"), "as many rows as columns"));
    }
    expect_nodes(rows).map_err(|Mismatch { found, expected }| npz.error("adj_shape", found, expected))?;
    Ok(rows)
}

/// The two numbers of an array with a matrix's shape.
fn matrix_shape(npz: &mut Npz, name: &str) -> Result<[usize; 2], NodesError> {
    let mut sizes = Vec::new();
    let [found] = npz.dimensions(name)?;
    if found != 2 {
        return Err(npz.error(name, format!("{found} numbers"), "two: rows and columns"));
    }
    npz.each_integer(name, |_, size| {
        sizes.push(usize::try_from(size).map_err(|_| Mismatch::new(size.to_string(), "a size"))?);
        Ok(())
    })?;
    Ok([sizes[0], sizes[1]])
}

fn edges(npz: &mut Npz, num_nodes: usize) -> Result<EdgeList, NodesError> {
    let (pointers, targets) = pattern(npz, "adj", num_nodes, num_nodes)?;
    let mut sources = npz.reserve("adj_indices", targets.len())?;
    for (source, ends) in (0u32..).zip(pointers.windows(2)) {
        sources.resize(ends[1] as usize, source);
    }
    Ok(EdgeList { sources, targets })
}

/// Row pointers and columns of a CSR matrix.
fn pattern(npz: &mut Npz, matrix: &str, rows: usize, columns: usize) -> Result<(Vec<u64>, Vec<u32>), NodesError> {
    let (indptr, indices) = (format!("{matrix}_indptr"), format!("{matrix}_indices"));
    let [length] = npz.dimensions(&indptr)?;
    if length != rows + 1 {
        return Err(npz.error(&indptr, format!("{length} numbers"), format!("{}: one more than rows", rows + 1)));
    }
    let [entries] = npz.dimensions(&indices)?;
    let mut pointers: Vec<u64> = npz.reserve(&indptr, length)?;
    npz.each_integer(&indptr, |_, pointer| {
        let least = pointers.last().copied().unwrap_or(0);
        let fits = u64::try_from(pointer).ok().filter(|&found| found >= least && found <= entries as u64);
        let is_start = pointers.is_empty();
        pointers.push(fits.filter(|&found| !is_start || found == 0).ok_or_else(|| {
            Mismatch::new(
                pointer.to_string(),
                format!("numbers that ascend from 0 to {entries}, the length of {indices}"),
            )
        })?);
        Ok(())
    })?;
    let end = pointers.last().copied().unwrap_or(0);
    if end != entries as u64 {
        return Err(npz.error(&indptr, format!("{end} at its end"), format!("{entries}, the length of {indices}")));
    }
    let mut found = npz.reserve(&indices, entries)?;
    npz.each_integer(&indices, |_, column| {
        let fits = usize::try_from(column).ok().filter(|&column| column < columns);
        // Both matrices have fewer than 2^32 columns.
        found.push(fits.ok_or_else(|| Mismatch::new(column.to_string(), format!("a number below {columns}")))? as u32);
        Ok(())
    })?;
    Ok((pointers, found))
}

/// Checks the values of the adjacency. True if they are not all 1.
fn has_weights(npz: &mut Npz) -> Result<bool, NodesError> {
    let mut found = false;
    npz.each_float("adj_data", |_, weight| {
        if weight == 0.0 || !weight.is_finite() {
            return Err(Mismatch::new(
                weight.to_string(),
                "a finite weight that is not 0: call eliminate_zeros() first",
            ));
        }
        found |= weight != 1.0;
        Ok(())
    })?;
    Ok(found)
}

fn expect_length(npz: &mut Npz, name: &str, expected: usize, like: &str) -> Result<(), NodesError> {
    let [found] = npz.dimensions(name)?;
    match found == expected {
        true => Ok(()),
        false => Err(npz.error(name, format!("{found} values"), format!("{expected} as in {like}"))),
    }
}

fn sparse_features(npz: &mut Npz, num_nodes: usize, options: &GraphOptions) -> Result<HashedRows, NodesError> {
    let [rows, columns] = matrix_shape(npz, "attr_shape")?;
    if rows != num_nodes || columns == 0 || u32::try_from(columns).is_err() {
        let expected = format!("{num_nodes} rows as in adj_shape, and at least one column");
        return Err(npz.error("attr_shape", format!("{rows} rows of {columns} columns"), expected));
    }
    let (row_pointers, column_index) = pattern(npz, "attr", rows, columns)?;
    expect_length(npz, "attr_data", column_index.len(), "attr_indices")?;
    let mut values = npz.reserve("attr_data", column_index.len())?;
    npz.each_float("attr_data", |at, value| {
        let single = value as f32;
        if !single.is_finite() {
            let node = row_pointers.partition_point(|&begin| begin <= at as u64) - 1;
            let found = format!("{value} for node {node}, column {}", column_index[at]);
            return Err(Mismatch::new(found, "a finite number in single precision"));
        }
        values.push(single);
        Ok(())
    })?;
    let features = SparseFeatures { columns, row_pointers, column_index, values };
    features.into_rows(options).map_err(|RepeatedColumn { row, column }| {
        let expected = "each column once in a row: call sum_duplicates() first";
        npz.error("attr_indices", format!("column {column} twice for node {row}"), expected)
    })
}

/// A dense matrix of features, `[num_nodes, columns]`.
pub(super) fn dense_rows(
    npz: &mut Npz,
    name: &str,
    num_nodes: usize,
    options: &GraphOptions,
) -> Result<HashedRows, NodesError> {
    let columns = dense_columns(npz, name, num_nodes)?;
    let features = DenseRows::new(num_nodes, columns, options);
    let mut features = features.map_err(|Mismatch { found, expected }| npz.error(name, found, expected))?;
    npz.each_float(name, |_, value| features.push(value))?;
    Ok(features.finish())
}

/// Number of columns of such a matrix.
pub(super) fn dense_columns(npz: &mut Npz, name: &str, num_nodes: usize) -> Result<usize, NodesError> {
    let [rows, columns] = npz.dimensions(name)?;
    match rows == num_nodes {
        true => Ok(columns),
        false => Err(npz.error(name, format!("{rows} rows"), format!("one for each of {num_nodes} nodes"))),
    }
}

/// The class of each node, from an array of shape `[num_nodes]` or `[num_nodes, 1]`.
pub(super) fn labels(npz: &mut Npz, name: &str, num_nodes: usize) -> Result<Vec<i32>, NodesError> {
    let mut labels = npz.reserve(name, num_nodes)?;
    each_label(npz, name, num_nodes, |label| {
        labels.push(label);
        Ok(())
    })?;
    Ok(labels)
}

/// Calls `each` with the class of each node, in order.
pub(super) fn each_label(
    npz: &mut Npz,
    name: &str,
    num_nodes: usize,
    mut each: impl FnMut(i32) -> Result<(), Mismatch>,
) -> Result<(), NodesError> {
    let shape = npz.shape(name)?;
    if shape != [num_nodes] && shape != [num_nodes, 1] {
        return Err(npz.error(name, format!("shape {shape:?}"), format!("one class for each of {num_nodes} nodes")));
    }
    Ok(npz.each_float(name, |_, class| each(class_of(class)?))?)
}

/// Arrays of the archive that the layout does not have.
fn ignored_arrays(npz: &Npz, path: &Path) -> Vec<String> {
    let dense = npz.has("attr_matrix");
    let is_read = |name: &str| match name {
        "adj_data" | "adj_indices" | "adj_indptr" | "adj_shape" | "labels" | "attr_matrix" => true,
        "attr_data" | "attr_indices" | "attr_indptr" | "attr_shape" => !dense,
        _ => false,
    };
    let ignored = npz.names().iter().filter(|name| !is_read(name));
    ignored.map(|name| format!("{} {name}", file_name(path))).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Features;
    use crate::sources::read as read_source;
    use crate::sources::testing::{Npy, write_npz};

    /// A path 0 → 1 → 2 with a repeated edge and a self-loop, and an isolated node 3.
    fn arrays() -> Vec<(&'static str, Npy)> {
        vec![
            ("adj_data", Npy::f4(&[1.0, 1.0, 1.0, 1.0])),
            ("adj_indices", Npy::i4(&[1, 1, 2, 2])),
            ("adj_indptr", Npy::i4(&[0, 2, 3, 4, 4])),
            ("adj_shape", Npy::i8(&[4, 4])),
            ("attr_data", Npy::f4(&[1.0, 2.0, 0.0, 3.0])),
            ("attr_indices", Npy::i4(&[4, 0, 1, 3])),
            ("attr_indptr", Npy::i4(&[0, 2, 3, 3, 4])),
            ("attr_shape", Npy::i8(&[4, 5])),
            ("labels", Npy::i8(&[0, 3, 0, 1])),
            ("node_names", Npy::text(4)),
        ]
    }

    fn replaced(name: &'static str, array: Npy) -> Vec<(&'static str, Npy)> {
        let mut arrays = arrays();
        arrays.retain(|(found, _)| *found != name);
        arrays.push((name, array));
        arrays
    }

    fn error_of(arrays: &[(&'static str, Npy)]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("small.npz");
        write_npz(&path, arrays);
        let error = read_source(&path, &GraphOptions::default()).unwrap_err();
        assert!(error.is_input());
        let text = error.to_string();
        assert!(text.contains("small.npz"), "{text}");
        text
    }

    #[test]
    fn a_graph_is_read_with_its_notes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("small.npz");
        write_npz(&path, &arrays());
        let (graph, notes) = read_source(&path, &GraphOptions::default()).unwrap();
        assert_eq!(graph.name, "small");
        assert_eq!(&graph.row_pointers[..], [0, 1, 3, 4]);
        assert_eq!(&graph.sources[..], [1, 0, 2, 1]);
        // No node is of class 2; that of class 1 is outside the component.
        assert_eq!(&graph.labels[..], [0, 2, 0]);
        assert_eq!((graph.task.classes, notes.class_names.as_deref().unwrap().join(" ")), (3, "0 1 3".to_owned()));
        let Features::Sparse { columns: 5, row_pointers, column_index, values } = &graph.features else {
            panic!("not sparse")
        };
        assert_eq!(
            (&row_pointers[..], &column_index[..], &values[..]),
            (&[0, 2, 2, 2][..], &[0, 4][..], &[2.0, 1.0][..])
        );
        assert_eq!(
            notes.lines(),
            [
                "removed 1 self-loop",
                "removed 1 repeated edge of 4",
                "kept the largest component: 3 of 4 nodes",
                "ignored small.npz node_names",
                "class numbers have gaps: 0, 1, 3 are the classes 0 to 2"
            ]
        );
        let half = GraphOptions { half: true, ..GraphOptions::default() };
        let error = read_source(&path, &half).unwrap_err().to_string();
        assert!(error.contains("--half-features, but the features are sparse"), "{error}");
    }

    #[test]
    fn edges_of_rows_lead_to_columns() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("small.npz");
        let dense: Vec<f64> = (0..8).map(f64::from).collect();
        let mut with_matrix = replaced("attr_matrix", Npy::f8(&dense).shaped(&[4, 2]));
        with_matrix.retain(|(name, _)| *name != "adj_data");
        with_matrix.push(("adj_data", Npy::f4(&[1.0, 1.0, 0.5, 1.0])));
        write_npz(&path, &with_matrix);
        let options = GraphOptions { undirected: false, largest_component: false, ..GraphOptions::default() };
        let (graph, notes) = read_source(&path, &options).unwrap();
        assert_eq!(&graph.row_pointers[..], [0, 0, 1, 2, 2]);
        assert_eq!(&graph.sources[..], [0, 1]);
        let Features::Dense { columns: 2, values } = &graph.features else { panic!("not dense") };
        assert_eq!(&values[..], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        let ignored = notes.lines().into_iter().find(|line| line.starts_with("ignored")).unwrap();
        assert!(ignored.contains("small.npz attr_data"), "{ignored}");
        assert!(ignored.ends_with("small.npz adj_data (weights of edges)"), "{ignored}");
    }

    #[test]
    fn an_edgeless_graph_is_read() {
        let mut arrays = replaced("adj_indices", Npy::f8(&[]));
        arrays.retain(|(name, _)| !["adj_data", "adj_indptr"].contains(name));
        arrays.extend([("adj_data", Npy::f8(&[])), ("adj_indptr", Npy::i4(&[0; 5]))]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("small.npz");
        write_npz(&path, &arrays);
        let options = GraphOptions { largest_component: false, ..GraphOptions::default() };
        let (graph, _) = read_source(&path, &options).unwrap();
        assert_eq!((graph.num_nodes(), graph.num_edges()), (4, 0));
    }

    #[test]
    fn missing_arrays_are_named() {
        for (name, _) in arrays().iter().filter(|(name, _)| *name != "node_names") {
            let rest: Vec<_> = arrays().into_iter().filter(|(found, _)| found != name).collect();
            let error = error_of(&rest);
            assert!(error.contains(&format!("no array {name} among ")), "{name}: {error}");
        }
    }

    #[test]
    fn values_that_do_not_fit_are_named() {
        for (name, array, expected) in [
            ("adj_indices", Npy::i4(&[1, 1, 4, 2]), "array adj_indices[2]: 4, expected a number below 4"),
            ("adj_indices", Npy::i8(&[1, 1, 1_000_000_000, 2]), "array adj_indices[2]: 1000000000,"),
            ("adj_indices", Npy::i4(&[1, -1, 2, 2]), "array adj_indices[1]: -1,"),
            (
                "adj_indices",
                Npy::f4(&[1.0, 1.0, 2.0, 2.0]),
                "array adj_indices[0]: a floating-point number, expected integers",
            ),
            (
                "adj_indptr",
                Npy::i4(&[0, 2, 1, 4, 4]),
                "array adj_indptr[2]: 1, expected numbers that ascend from 0 to 4",
            ),
            ("adj_indptr", Npy::i4(&[1, 2, 3, 4, 4]), "array adj_indptr[0]: 1,"),
            ("adj_indptr", Npy::i4(&[0, 2, 3, 3, 3]), "array adj_indptr: 3 at its end, expected 4"),
            ("adj_indptr", Npy::i4(&[0, 2, 3, 4, 5]), "array adj_indptr[4]: 5,"),
            ("adj_indptr", Npy::i4(&[0, 2, 4]), "array adj_indptr: 3 numbers, expected 5"),
            ("adj_shape", Npy::i8(&[4, 5]), "array adj_shape: 4 rows and 5 columns"),
            ("adj_shape", Npy::i8(&[0, 0]), "array adj_shape: no nodes"),
            (
                "adj_shape",
                Npy::i8(&[1 << 32, 1 << 32]),
                "array adj_shape: 4294967296 nodes, expected at most 4294967295",
            ),
            ("adj_shape", Npy::i8(&[4]), "array adj_shape: 1 numbers"),
            ("adj_shape", Npy::i8(&[-4, 4]), "array adj_shape[0]: -4"),
            ("adj_data", Npy::f4(&[1.0, 1.0, 0.0, 1.0]), "array adj_data[2]: 0, expected a finite weight"),
            ("adj_data", Npy::f4(&[1.0]), "array adj_data: 1 values, expected 4"),
            ("attr_data", Npy::f4(&[1.0, 2.0, 1.0, f64::NAN]), "array attr_data[3]: NaN for node 3, column 3"),
            ("attr_data", Npy::f4(&[1.0, f64::INFINITY, 1.0, 1.0]), "array attr_data[1]: inf for node 0, column 0"),
            ("attr_data", Npy::f8(&[1.0, 1.0, 1e300, 1.0]), "for node 1, column 1, expected a finite number in single"),
            ("attr_indices", Npy::i4(&[0, 0, 1, 3]), "array attr_indices: column 0 twice for node 0"),
            ("attr_indices", Npy::i4(&[0, 1, 1, 5]), "array attr_indices[3]: 5, expected a number below 5"),
            ("attr_shape", Npy::i8(&[3, 5]), "array attr_shape: 3 rows of 5 columns"),
            ("attr_shape", Npy::i8(&[4, 0]), "array attr_shape: 4 rows of 0 columns"),
            ("attr_matrix", Npy::f4(&[0.0; 6]).shaped(&[3, 2]), "array attr_matrix: 3 rows"),
            ("attr_matrix", Npy::f4(&[0.0; 4]), "array attr_matrix: shape [4], expected 2 dimension(s)"),
            ("labels", Npy::i8(&[0, -1, 0, 0]), "array labels[1]: class -1, expected an integer from 0 to 65534"),
            ("labels", Npy::i8(&[0, 65_535, 0, 0]), "array labels[1]: class 65535"),
            ("labels", Npy::f8(&[0.0, 0.5, 0.0, 0.0]), "array labels[1]: class 0.5"),
            ("labels", Npy::i8(&[0, 0, 0]), "array labels: shape [3], expected one class for each of 4 nodes"),
            ("labels", Npy::f8(&[f64::NAN; 4]), "no node of the largest component has a label"),
        ] {
            let error = error_of(&replaced(name, array));
            assert!(error.contains(expected), "{name}: {error}");
        }
    }
}
