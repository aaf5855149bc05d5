//! Features and degrees of some nodes as tensors.

use kdgat_graph::{NodeFeatures, SparseRows};
use kdgat_torch::view;
use tch::{Device, Kind, TchError, Tensor};

use super::{Features, NodeGraph};

/// Features of these nodes, one row each: `[nodes, columns]`.
///
/// # Errors
/// Those of libtorch, out of memory included, or more than 2^31 values of a sparse matrix.
///
/// # Panics
/// If the graph has no such node.
pub fn features_of(features: &Features, nodes: &[u32]) -> Result<NodeFeatures, TchError> {
    match features {
        Features::Dense { columns, .. } | Features::Half { columns, .. } => {
            let mut rows = Tensor::f_empty([nodes.len() as i64, *columns as i64], (Kind::Float, Device::Cpu))?;
            features.write_rows(nodes, view::write::<f32>("features", &mut rows)?);
            Ok(NodeFeatures::Dense(rows))
        }
        Features::Sparse { columns, row_pointers, column_index, values } => {
            let row = |node: u32| {
                let ends = &row_pointers[node as usize..][..2];
                ends[0] as usize..ends[1] as usize
            };
            let count: usize = nodes.iter().map(|&node| row(node).len()).sum();
            if count > i32::MAX as usize {
                return Err(TchError::Shape(format!("{count} features of a batch, at most {} are possible", i32::MAX)));
            }
            let (mut rows, mut of_column, mut of_value) =
                (Vec::with_capacity(nodes.len() + 1), Vec::with_capacity(count), Vec::with_capacity(count));
            rows.push(0);
            for &node in nodes {
                of_column.extend(column_index[row(node)].iter().map(|&column| column as i32));
                of_value.extend_from_slice(&values[row(node)]);
                rows.push(of_column.len() as i32);
            }
            Ok(NodeFeatures::Sparse(SparseRows::new(*columns, &rows, &of_column, &of_value)?))
        }
    }
}

/// `[nodes]`, f32: number of edges that lead to each node, plus 1 for the node itself.
///
/// # Errors
/// Those of libtorch, out of memory included.
///
/// # Panics
/// If the graph has no such node.
pub fn degrees_of(graph: &NodeGraph, nodes: &[u32]) -> Result<Tensor, TchError> {
    let mut degrees = Tensor::f_empty([nodes.len() as i64], (Kind::Float, Device::Cpu))?;
    let row_pointers: &[u64] = &graph.row_pointers;
    for (degree, &node) in view::write::<f32>("degrees", &mut degrees)?.iter_mut().zip(nodes) {
        let ends = &row_pointers[node as usize..][..2];
        *degree = (ends[1] - ends[0] + 1) as f32;
    }
    Ok(degrees)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::node_graph::Section;

    fn values(features: &NodeFeatures) -> Vec<f32> {
        let dense = match features {
            NodeFeatures::Dense(rows) => rows.shallow_clone(),
            NodeFeatures::Sparse(rows) => rows.to_dense().unwrap(),
        };
        Vec::<f32>::try_from(&dense.reshape([-1])).unwrap()
    }

    #[test]
    fn rows_are_equal_in_every_form() {
        let table: Vec<f32> = (0..40).map(|value| if value % 3 == 0 { value as f32 / 4.0 } else { 0.0 }).collect();
        let (mut pointers, mut columns, mut of_value) = (vec![0u64], Vec::new(), Vec::new());
        for row in table.chunks(4) {
            for (column, &value) in row.iter().enumerate().filter(|(_, value)| **value != 0.0) {
                columns.push(column as u32);
                of_value.push(value);
            }
            pointers.push(columns.len() as u64);
        }
        let bits = table.iter().map(|&value| f16::from_f32(value).to_bits()).collect::<Vec<u16>>();
        let forms = [
            Features::Dense { columns: 4, values: Section::from(table.clone()) },
            Features::Half { columns: 4, values: Section::from(bits) },
            Features::Sparse {
                columns: 4,
                row_pointers: Section::from(pointers),
                column_index: Section::from(columns),
                values: Section::from(of_value),
            },
        ];
        let nodes = [7, 0, 9, 7];
        let expected: Vec<f32> = nodes.iter().flat_map(|&node| table[4 * node as usize..][..4].to_vec()).collect();
        for form in forms {
            let found = features_of(&form, &nodes).unwrap();
            assert_eq!((found.num_rows(), found.columns()), (4, 4));
            assert_eq!(values(&found), expected, "{form:?}");
            let mut dense = vec![f32::NAN; 16];
            form.write_rows(&nodes, &mut dense);
            assert_eq!(dense, expected, "{form:?}");
            let none = features_of(&form, &[]).unwrap();
            assert_eq!((none.num_rows(), none.columns()), (0, 4));
        }
    }

    #[test]
    fn degrees_count_the_node_itself() {
        let graph = crate::test_graphs::graph_of(4, [(1, 0), (2, 0), (0, 2)]);
        assert_eq!(Vec::<f32>::try_from(&degrees_of(&graph, &[0, 3, 2]).unwrap()).unwrap(), [3.0, 1.0, 2.0]);
    }

    #[test]
    fn features_may_have_no_columns() {
        let features = Features::Dense { columns: 0, values: Section::from(Vec::new()) };
        assert_eq!(features_of(&features, &[1, 2]).unwrap().num_rows(), 2);
    }
}
