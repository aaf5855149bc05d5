//! Smoothing of rows over the edges: each node's row becomes a mean of the rows around it.
//!
//! It is personalised PageRank (Gasteiger, Bojchevski & Günnemann 2019, "Predict then Propagate") without a network:
//!
//! ```text
//! F₀ = P,   Fₖ = (1 − α)·D⁻¹·A·Fₖ₋₁ + α·P
//! ```
//!
//! Every row of `F` is a convex combination of rows of `P`, so class probabilities stay class probabilities.

use super::NodeGraph;
use super::positions::{each_row, mean_of_neighbours};

/// Options of smoothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Smoothing {
    /// Steps of propagation.
    pub steps: usize,
    /// α: weight of a node's own row in each step, 0 to 1.
    pub teleport: f64,
}

/// Smooths `rows`, `[num_nodes, columns]`. Nodes without neighbours keep their row. The same for any number of threads.
pub fn smoothed(graph: &NodeGraph, rows: &[f32], columns: usize, smoothing: Smoothing) -> Vec<f32> {
    let own = smoothing.teleport as f32;
    let mut current = rows.to_vec();
    let mut next = vec![0.0; rows.len()];
    for _ in 0..smoothing.steps {
        each_row(&mut next, columns, |node, row| {
            let initial = &rows[node * columns..][..columns];
            if graph.neighbours(node as u32).is_empty() {
                row.copy_from_slice(initial);
                return;
            }
            mean_of_neighbours(graph, &current, columns, node, row);
            row.iter_mut().zip(initial).for_each(|(value, initial)| *value = (1.0 - own) * *value + own * initial);
        });
        std::mem::swap(&mut current, &mut next);
    }
    current
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_graphs::graph_of;

    /// A path of four nodes, and a node without neighbours.
    fn path() -> NodeGraph {
        graph_of(5, [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)])
    }

    #[test]
    fn steps_follow_the_formula() {
        let rows = [1.0f32, 0.0, 0.0, 0.5, 0.25];
        let one = smoothed(&path(), &rows, 1, Smoothing { steps: 1, teleport: 0.2 });
        let by_hand = [0.2, 0.8 * 0.5, 0.8 * 0.25, 0.2 * 0.5, 0.25];
        for (found, expected) in one.iter().zip(by_hand) {
            assert!((found - expected).abs() < 1e-6, "{one:?}");
        }
        let two = smoothed(&path(), &rows, 1, Smoothing { steps: 2, teleport: 0.2 });
        let expected = 0.8 * by_hand[1] + 0.2;
        assert!((two[0] - expected).abs() < 1e-6, "{two:?}");
    }

    #[test]
    fn no_step_and_a_teleport_of_one_change_nothing() {
        let rows = [1.0f32, 0.0, 0.3, 0.5, 0.25];
        for smoothing in [Smoothing { steps: 0, teleport: 0.2 }, Smoothing { steps: 7, teleport: 1.0 }] {
            assert_eq!(smoothed(&path(), &rows, 1, smoothing), rows);
        }
    }

    proptest! {
        /// Probabilities stay probabilities, within the range that they had.
        #[test]
        fn rows_stay_within_their_hull(
            edges in prop::collection::vec((0u32..20, 0u32..20), 0..80),
            values in prop::collection::vec(0.0f32..1.0, 20),
            steps in 0usize..30,
            teleport in 0.0f64..1.0,
        ) {
            let mut edges: Vec<(u32, u32)> = edges.into_iter().filter(|(from, to)| from != to).collect();
            edges.sort_unstable();
            edges.dedup();
            let rows: Vec<f32> = values.iter().flat_map(|&value| [value, 1.0 - value]).collect();
            let (least, most) = values.iter().fold((1.0f32, 0.0f32), |(least, most), &value| (least.min(value), most.max(value)));
            let found = smoothed(&graph_of(20, edges), &rows, 2, Smoothing { steps, teleport });
            for row in found.chunks_exact(2) {
                prop_assert!((row[0] + row[1] - 1.0).abs() < 1e-4);
                prop_assert!(row[0] > least - 1e-4 && row[0] < most + 1e-4);
            }
        }
    }
}
