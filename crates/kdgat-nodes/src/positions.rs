//! Position features: a node's place in the graph as numbers that a network without neighbours can read.
//!
//! They are fast random projections (FastRP; Chen, Sultan, Tian, Chen & Skiena 2019, "Fast and Accurate Network Embeddings via Very Sparse
//! Random Projection"). Each node draws a random row, and rows are averaged over the neighbours k times, so that nodes with many short
//! paths between them have similar rows:
//!
//! ```text
//! R[v, j] = √3 · (1, 0 or −1, with probability 1/6, 2/3, 1/6) · (degree of v / all degrees)^β
//! E₀ = R,   Eₖ = D⁻¹·A·Eₖ₋₁,   positions = Σ Eₖ / ‖Eₖ‖ (each row) for k = 3 to 6
//! ```
//!
//! Tian et al. (2023, "Learning MLPs on Graphs: A Unified View of Effectiveness, Robustness, and Efficiency", NOSMOG) gave an MLP the
//! positions of DeepWalk, which need a training of their own; these take six passes over the edges.

use kdgat_base::random::{self, Purpose};
use kdgat_torch::parallel::{Parts, parallel_for};

use super::node_graph::Section;
use super::{Features, NodeGraph, NodesError};

/// Passes over the edges whose rows are added up.
const PASSES: std::ops::RangeInclusive<usize> = 3..=6;
/// Exponent of the degrees, β: rows of nodes with many edges are smaller, so that these nodes do not make all others similar.
const DEGREE_EXPONENT: f64 = -0.9;
/// Positions are a function of the graph alone, so that teacher, student and evaluation see the same ones.
const SEED: u64 = 0;
/// Nodes worth a thread.
const GRAIN: usize = 256;

/// The graph with `columns` position features behind its own features; those of a node without neighbours are zero.
///
/// The new features lie in memory; all other arrays are shared with `graph`. Its digest says that positions were added.
///
/// # Errors
/// More columns than a graph can have.
pub fn with_positions(graph: &NodeGraph, columns: usize) -> Result<NodeGraph, NodesError> {
    if columns == 0 {
        return Ok(graph.clone());
    }
    let all = graph.features.columns() + columns;
    if u32::try_from(all).is_err() {
        let text = format!("{}: {all} features with positions, at most {} are possible", graph.name, u32::MAX);
        return Err(NodesError::options(text));
    }
    let positions = positions(graph, columns);
    Ok(NodeGraph {
        features: extended(&graph.features, &positions, columns),
        digest: digest_with_positions(&graph.digest, columns),
        ..graph.clone()
    })
}

/// Digest of a graph with position features.
fn digest_with_positions(digest: &str, columns: usize) -> String {
    blake3::hash(format!("{digest}, {columns} positions").as_bytes()).to_hex().to_string()
}

/// Position features, `[num_nodes, columns]`. The same for any number of threads.
pub fn positions(graph: &NodeGraph, columns: usize) -> Vec<f32> {
    let mut rows = projection(graph, columns);
    let mut next = vec![0.0; rows.len()];
    let mut sum = vec![0.0; rows.len()];
    for pass in 1..=*PASSES.end() {
        each_row(&mut next, columns, |node, row| mean_of_neighbours(graph, &rows, columns, node, row));
        std::mem::swap(&mut rows, &mut next);
        if PASSES.contains(&pass) {
            each_row(&mut sum, columns, |node, sum| {
                let row = &rows[node * columns..][..columns];
                let length = row.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
                if length > 0.0 {
                    sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += (f64::from(*value) / length) as f32);
                }
            });
        }
    }
    sum
}

/// The random rows R, `[num_nodes, columns]`.
fn projection(graph: &NodeGraph, columns: usize) -> Vec<f32> {
    let mut rows = vec![0.0; graph.num_nodes() * columns];
    let all = graph.num_edges().max(1) as f64;
    each_row(&mut rows, columns, |node, row| {
        let degree = graph.neighbours(node as u32).len().max(1) as f64;
        let size = (3f64.sqrt() * (degree / all).powf(DEGREE_EXPONENT)) as f32;
        for (column, value) in (0u64..).zip(row) {
            *value = match random::to_below(random::bits(SEED, Purpose::Positions, node as u64, column), 6) {
                0 => size,
                1 => -size,
                _ => 0.0,
            };
        }
    });
    rows
}

/// Writes the mean row of a node's neighbours; zeros if it has none.
pub(crate) fn mean_of_neighbours(graph: &NodeGraph, rows: &[f32], columns: usize, node: usize, mean: &mut [f32]) {
    mean.fill(0.0);
    let neighbours = graph.neighbours(node as u32);
    for &source in neighbours {
        let row = &rows[source as usize * columns..][..columns];
        mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    let share = 1.0 / neighbours.len().max(1) as f32;
    mean.iter_mut().for_each(|sum| *sum *= share);
}

/// Calls `body` with each node and its row of `values`, on several threads.
pub(crate) fn each_row(values: &mut [f32], columns: usize, body: impl Fn(usize, &mut [f32]) + Sync) {
    let nodes = values.len() / columns.max(1);
    let rows = Parts::new(values, (0..=nodes).map(|node| node * columns));
    parallel_for(nodes, GRAIN, |range| range.for_each(|node| body(node, rows.take(node))));
}

/// The features with those of `added`, `[num_nodes, columns]`, behind them. Sparse ones stay sparse.
fn extended(features: &Features, added: &[f32], columns: usize) -> Features {
    let all = features.columns() + columns;
    let nodes = added.len() / columns.max(1);
    let joined = |each: &dyn Fn(usize, &mut Vec<f32>)| {
        let mut values = Vec::with_capacity(nodes * all);
        for (node, added) in added.chunks_exact(columns).enumerate() {
            each(node, &mut values);
            values.extend_from_slice(added);
        }
        Features::Dense { columns: all, values: Section::from(values) }
    };
    match features {
        Features::Dense { columns: own, values } => {
            joined(&|node, row| row.extend_from_slice(&values[node * own..][..*own]))
        }
        Features::Half { columns: own, values } => joined(&|node, row| {
            let values = values[node * own..][..*own].iter();
            row.extend(values.map(|&bits| half::f16::from_bits(bits).to_f32()));
        }),
        Features::Sparse { columns: own, row_pointers, column_index, values } => {
            let (mut pointers, mut index, mut all_values) = (vec![0u64], Vec::new(), Vec::new());
            for (node, added) in added.chunks_exact(columns).enumerate() {
                let row = row_pointers[node] as usize..row_pointers[node + 1] as usize;
                index.extend_from_slice(&column_index[row.clone()]);
                all_values.extend_from_slice(&values[row]);
                for (column, &value) in added.iter().enumerate().filter(|(_, value)| **value != 0.0) {
                    // `with_positions` has checked that columns fit into 32 bits.
                    index.push((own + column) as u32);
                    all_values.push(value);
                }
                pointers.push(index.len() as u64);
            }
            Features::Sparse {
                columns: all,
                row_pointers: Section::from(pointers),
                column_index: Section::from(index),
                values: Section::from(all_values),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::features_of;
    use crate::test_graphs::graph_of;

    /// Two rings of nodes, joined by one edge.
    fn two_rings(size: u32) -> NodeGraph {
        let ring = move |from: u32| (0..size).map(move |node| (from + node, from + (node + 1) % size));
        let edges: Vec<(u32, u32)> = ring(0).chain(ring(size)).chain([(0, size)]).collect();
        graph_of(2 * size as usize + 1, edges.iter().copied().chain(edges.iter().map(|&(one, other)| (other, one))))
    }

    fn cosine(one: &[f32], other: &[f32]) -> f64 {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
    }

    #[test]
    fn near_nodes_have_similar_positions_and_far_ones_do_not() {
        let graph = two_rings(40);
        let found = positions(&graph, 128);
        let row = |node: usize| &found[node * 128..][..128];
        assert!(cosine(row(20), row(22)) > 0.7, "{}", cosine(row(20), row(22)));
        assert!(cosine(row(20), row(60)).abs() < 0.4, "{}", cosine(row(20), row(60)));
        assert!(row(80).iter().all(|&value| value == 0.0), "a node without neighbours has no position");
        assert!(found.iter().all(|value| value.is_finite()));
    }

    /// The formula, with matrices.
    #[test]
    fn positions_are_the_sum_of_normalised_averages() {
        let graph = two_rings(5);
        let (nodes, columns) = (graph.num_nodes(), 7);
        let mut rows: Vec<f64> = projection(&graph, columns).iter().map(|&value| f64::from(value)).collect();
        let mut sum = vec![0.0f64; rows.len()];
        for pass in 1..=6 {
            let mut next = vec![0.0f64; rows.len()];
            for node in 0..nodes {
                let neighbours = graph.neighbours(node as u32);
                for column in 0..columns {
                    let of = |source: &u32| rows[*source as usize * columns + column];
                    next[node * columns + column] =
                        neighbours.iter().map(of).sum::<f64>() / neighbours.len().max(1) as f64;
                }
            }
            rows = next;
            for node in (0..nodes).filter(|_| pass >= 3) {
                let length = (0..columns).map(|column| rows[node * columns + column].powi(2)).sum::<f64>().sqrt();
                for at in (node * columns..(node + 1) * columns).filter(|_| length > 0.0) {
                    sum[at] += rows[at] / length;
                }
            }
        }
        for (found, expected) in positions(&graph, columns).iter().zip(sum) {
            assert!((f64::from(*found) - expected).abs() < 1e-4, "{found} instead of {expected}");
        }
    }

    #[test]
    fn random_rows_have_a_third_of_their_values() {
        let graph = two_rings(100);
        let rows = projection(&graph, 64);
        let share = rows.iter().filter(|value| **value != 0.0).count() as f64 / rows.len() as f64;
        assert!((share - 1.0 / 3.0).abs() < 0.02, "{share}");
        let sum: f64 = rows.iter().map(|value| f64::from(value.signum()) * f64::from(u8::from(*value != 0.0))).sum();
        assert!(sum.abs() / (rows.len() as f64) < 0.02, "{sum}");
    }

    #[test]
    fn all_kinds_of_features_keep_their_values() {
        let dense = two_rings(4);
        let own = features_of(&dense.features, &[3]).unwrap();
        let Features::Dense { columns, values } = &dense.features else { panic!("not dense") };
        let half = values.iter().map(|&value| half::f16::from_f32(value).to_bits()).collect::<Vec<u16>>();
        let half = NodeGraph { features: Features::Half { columns: *columns, values: half.into() }, ..dense.clone() };
        let (mut pointers, mut index, mut of_value) = (vec![0u64], Vec::new(), Vec::new());
        for row in values.chunks(*columns) {
            for (column, &value) in row.iter().enumerate().filter(|(_, value)| **value != 0.0) {
                index.push(column as u32);
                of_value.push(value);
            }
            pointers.push(index.len() as u64);
        }
        let sparse = Features::Sparse {
            columns: *columns,
            row_pointers: pointers.into(),
            column_index: index.into(),
            values: of_value.into(),
        };
        let sparse = NodeGraph { features: sparse, ..dense.clone() };
        let rows = |graph: &NodeGraph| {
            let found = with_positions(graph, 5).unwrap();
            assert_eq!(found.features.columns(), 7);
            assert_ne!(found.digest, graph.digest);
            let rows = match features_of(&found.features, &[3]).unwrap() {
                kdgat_graph::NodeFeatures::Dense(rows) => rows,
                kdgat_graph::NodeFeatures::Sparse(rows) => rows.to_dense().unwrap(),
            };
            Vec::<f32>::try_from(&rows.reshape([-1])).unwrap()
        };
        let expected = rows(&dense);
        let kdgat_graph::NodeFeatures::Dense(own) = own else { panic!("not dense") };
        assert_eq!(expected[..2], Vec::<f32>::try_from(&own.reshape([-1])).unwrap());
        assert_eq!(expected[2..], positions(&dense, 5)[3 * 5..][..5]);
        assert_eq!(rows(&half), expected);
        assert_eq!(rows(&sparse), expected);
        assert_eq!(with_positions(&dense, 0).unwrap().digest, dense.digest);
    }
}
