//! Edges between near nodes, and the expansion of their lengths in a radial basis.
//!
//! A length `d` becomes `exp(-(d - μ_k)² / (2 Δ²))` for `K` centres `μ_k`, evenly spaced by `Δ` from 0 to the cutoff, as in SchNet
//! (Schütt et al. 2018).

use std::ops::RangeInclusive;

use super::error::{DatasetError, Origin};
use super::graph_hash::first_bytes;
use super::graph_set::{Edges, LeftOut, MOST_EDGES};
use super::periodic::{Cell, NoEdges};
use super::schema::Feature;

/// Options of edges made from positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Radius {
    /// Largest length of an edge, positive.
    pub cutoff: f64,
    /// Number of Gaussians.
    pub basis: usize,
}

impl Radius {
    /// Number of Gaussians unless one is set.
    pub const DEFAULT_BASIS: usize = 16;
    /// Numbers of Gaussians that can be used: the spacing needs two.
    pub const BASES: RangeInclusive<usize> = 2..=256;

    /// The feature of each Gaussian.
    fn features(self) -> Vec<Feature> {
        (0..self.basis).map(|index| Feature { name: format!("distance_{index}"), values: None }).collect()
    }

    /// The expansion of a length.
    fn expand(self, length: f64) -> impl Iterator<Item = f32> {
        let spacing = self.cutoff / (self.basis - 1) as f64;
        (0..self.basis).map(move |index| {
            let offset = length / spacing - index as f64;
            (-0.5 * offset * offset).exp() as f32
        })
    }
}

/// Makes the edges of one graph after the other.
pub(super) struct EdgeMaker {
    radius: Radius,
    edges: Edges,
    position_hashes: Vec<u64>,
}

impl EdgeMaker {
    /// A maker without graphs.
    pub fn new(radius: Radius) -> Self {
        let edges = Edges {
            features: radius.features(),
            values: Vec::new(),
            pointers: vec![0],
            sources: Vec::new(),
            targets: Vec::new(),
            left_out: LeftOut::default(),
            position_hashes: None,
            notes: Vec::new(),
        };
        Self { radius, edges, position_hashes: Vec::new() }
    }

    /// Adds a graph by the positions of its nodes. In a cell, the nearest image of a node makes its edge; further ones and those of the
    /// node itself are counted as left out.
    ///
    /// # Errors
    /// More edges than a store can number, or a cell far smaller than the cutoff.
    pub fn add(
        &mut self,
        positions: &[[f64; 3]],
        cell: Option<&Cell>,
        graph: &str,
        origin: Origin<'_>,
    ) -> Result<(), DatasetError> {
        let cutoff = self.radius.cutoff;
        let found = match cell {
            None => neighbours(positions, cutoff, MOST_EDGES).ok_or(NoEdges::TooManyEdges),
            Some(cell) => cell.neighbours(positions, cutoff, MOST_EDGES).map(|found| {
                self.edges.left_out.repeated += found.further_images;
                self.edges.left_out.self_loops += found.own_images;
                found.near
            }),
        };
        let near = found.map_err(|reason| match reason {
            NoEdges::TooManyEdges => {
                let found = format!("graph {graph} has more than {MOST_EDGES} edges with cutoff {cutoff}");
                let expected = format!("at most {MOST_EDGES}: set a smaller `cutoff`, or remove the graph");
                origin.error(found, expected)
            }
            NoEdges::TooManyImages => origin.error(
                format!("graph {graph} has millions of periodic images within cutoff {cutoff}"),
                "a smaller `cutoff`, or a larger Lattice: are both in Å?",
            ),
            NoEdges::FarAtom => origin.error(
                format!("graph {graph} has an atom more than a hundred million cells from the origin"),
                "positions near the cell of Lattice",
            ),
        })?;
        for Neighbour { target, source, length } in near {
            self.edges.targets.push(target);
            self.edges.sources.push(source);
            self.edges.values.extend(self.radius.expand(length));
        }
        self.edges.pointers.push(self.edges.sources.len() as u64);
        self.position_hashes.push(hash_of(positions, cell));
        Ok(())
    }

    /// The edges of all graphs.
    pub fn finish(self) -> Edges {
        Edges { position_hashes: Some(self.position_hashes), ..self.edges }
    }
}

/// Hash of the positions of a graph's nodes and of its cell.
fn hash_of(positions: &[[f64; 3]], cell: Option<&Cell>) -> u64 {
    let mut hash = blake3::Hasher::new();
    hash.update(bytemuck::cast_slice(positions));
    cell.into_iter().flat_map(Cell::vectors).for_each(|vector| {
        hash.update(bytemuck::bytes_of(&vector));
    });
    first_bytes(&hash)
}

/// A node near another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Neighbour {
    pub target: u32,
    pub source: u32,
    pub length: f64,
}

/// All ordered pairs of different nodes at most `cutoff` apart, by target, then by source; `None` if there are more than `most`.
///
/// Sorts the nodes along the axis of their largest extent and compares each with those that follow within the cutoff.
fn neighbours(positions: &[[f64; 3]], cutoff: f64, most: usize) -> Option<Vec<Neighbour>> {
    let extent = |axis: usize| {
        let values = || positions.iter().map(move |position| position[axis]);
        values().fold(f64::NEG_INFINITY, f64::max) - values().fold(f64::INFINITY, f64::min)
    };
    let axis = (0..3).max_by(|&one, &other| extent(one).total_cmp(&extent(other))).unwrap_or(0);
    let mut order: Vec<u32> = (0..).take(positions.len()).collect();
    let along = |node: u32| positions[node as usize][axis];
    order.sort_unstable_by(|&one, &other| along(one).total_cmp(&along(other)));
    let mut near = Vec::new();
    for (at, &one) in order.iter().enumerate() {
        for &other in &order[at + 1..] {
            let offset = along(other) - along(one);
            if offset * offset > cutoff * cutoff {
                break;
            }
            let squared = squared_distance(&positions[one as usize], &positions[other as usize]);
            if squared <= cutoff * cutoff {
                let length = squared.sqrt();
                near.push(Neighbour { target: one, source: other, length });
                near.push(Neighbour { target: other, source: one, length });
            }
        }
        if near.len() > most {
            return None;
        }
    }
    near.sort_unstable_by_key(|pair| (pair.target, pair.source));
    Some(near)
}

fn squared_distance(one: &[f64; 3], other: &[f64; 3]) -> f64 {
    one.iter().zip(other).map(|(one, other)| (one - other) * (one - other)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: every pair is compared.
    fn all_pairs(positions: &[[f64; 3]], cutoff: f64) -> Vec<Neighbour> {
        let mut pairs = Vec::new();
        for (target, one) in (0..).zip(positions) {
            for (source, other) in (0..).zip(positions) {
                let squared = squared_distance(one, other);
                if source != target && squared <= cutoff * cutoff {
                    pairs.push(Neighbour { target, source, length: squared.sqrt() });
                }
            }
        }
        pairs
    }

    proptest! {
        #[test]
        fn neighbours_are_those_of_all_pairs(
            // A coarse grid: many nodes at the same place, and many distances that equal the cutoff.
            grid in prop::collection::vec((-4i8..5, -4i8..5, -1i8..2), 0..60),
            scattered in prop::collection::vec(prop::array::uniform3(-3.0f64..3.0), 0..60),
            cutoff in prop_oneof![Just(1.0), Just(2.0), Just(5.0), 0.01f64..8.0],
        ) {
            let mut positions: Vec<[f64; 3]> =
                grid.into_iter().map(|(x, y, z)| [x, y, z].map(f64::from)).collect();
            positions.extend(scattered);
            let expected = all_pairs(&positions, cutoff);
            prop_assert_eq!(neighbours(&positions, cutoff, expected.len()), Some(expected.clone()));
            if !expected.is_empty() {
                prop_assert_eq!(neighbours(&positions, cutoff, expected.len() - 1), None);
            }
        }

        #[test]
        fn every_gaussian_is_that_of_the_formula(length in 0.0f64..6.0, cutoff in 0.1f64..6.0, basis in 2usize..40) {
            let spacing = cutoff / (basis - 1) as f64;
            let found: Vec<f32> = Radius { cutoff, basis }.expand(length).collect();
            prop_assert_eq!(found.len(), basis);
            for (index, found) in found.into_iter().enumerate() {
                let centre = cutoff * index as f64 / (basis - 1) as f64;
                let expected = (-(length - centre).powi(2) / (2.0 * spacing * spacing)).exp();
                prop_assert!((f64::from(found) - expected).abs() < 1e-6, "{} {}", found, expected);
            }
        }
    }

    #[test]
    fn edges_of_several_graphs_follow_each_other() {
        let mut maker = EdgeMaker::new(Radius { cutoff: 2.0, basis: 3 });
        let origin = Origin::line("a.xyz", 7);
        maker.add(&[[0.0; 3], [0.0; 3]], None, "1", origin).unwrap();
        maker.add(&[[9.0; 3]], None, "2", origin).unwrap();
        maker.add(&[[0.0; 3], [0.0, 2.0, 0.0], [0.0, 4.1, 0.0]], None, "3", origin).unwrap();
        let edges = maker.finish();
        assert_eq!(edges.pointers, [0, 2, 2, 4]);
        assert_eq!((edges.sources, edges.targets), (vec![1, 0, 1, 0], vec![0, 1, 0, 1]));
        let names: Vec<&str> = edges.features.iter().map(|feature| feature.name.as_str()).collect();
        assert_eq!(names, ["distance_0", "distance_1", "distance_2"]);
        // Nodes at the same place have the first Gaussian in full, nodes at the cutoff the last one.
        assert_eq!((edges.values[0], edges.values[8]), (1.0, 1.0));
        assert!((edges.values[1] - (-0.5f32).exp()).abs() < 1e-7);
    }

    #[test]
    fn a_graph_with_too_many_edges_is_refused() {
        let mut maker = EdgeMaker::new(Radius { cutoff: 1e3, basis: 2 });
        let positions: Vec<[f64; 3]> = (0..30_000).map(|node| [f64::from(node) * 1e-3, 0.0, 0.0]).collect();
        let error = maker.add(&positions, None, "large", Origin::line("a.xyz", 7)).unwrap_err().to_string();
        let expected = "a.xyz, line 7: graph large has more than 65535 edges with cutoff 1000, expected at most 65535: set a smaller";
        assert!(error.contains(expected), "{error}");
        assert!(maker.finish().sources.is_empty());
    }
}
