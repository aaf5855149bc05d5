//! Edges between near nodes, and the expansion of their lengths in a radial basis.
//!
//! A length `d` becomes [`Gaussians`] with centres from 0 to the cutoff.

use std::ops::RangeInclusive;

use super::error::{DatasetError, Origin};
use super::graph_set::{Edges, LeftOut, MOST_MADE_EDGES};
use super::schema::Feature;
use crate::Gaussians;
use crate::space::{Cell, NoPairs, PairSearch};

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

    /// Appends the expansion of a length.
    fn expand(self, length: f64, to: &mut Vec<f32>) {
        let first = to.len();
        to.resize(first + self.basis, 0.0);
        Gaussians::up_to(self.cutoff, self.basis).expand(length, &mut to[first..]);
    }
}

/// Makes the edges of one graph after the other.
pub(super) struct EdgeMaker {
    radius: Radius,
    search: PairSearch,
    edges: Edges,
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
            are_listed: false,
            made: format!("edges within {}, as {} Gaussians", radius.cutoff, radius.basis),
            notes: Vec::new(),
        };
        Self { radius, search: PairSearch::default(), edges }
    }

    /// Adds a graph by the positions of its nodes. In a cell, the nearest image of a node makes its edge; further ones and those of the
    /// node itself are counted as left out.
    ///
    /// # Errors
    /// More edges than a store can number, or a cell far smaller than the cutoff.
    pub fn add(&mut self, positions: &[[f64; 3]], cell: Option<&Cell>) -> Result<(), NoPairs> {
        let found = nearest(&mut self.search, positions, cell, self.radius.cutoff, MOST_MADE_EDGES)?;
        self.edges.left_out.repeated += found.further_images;
        self.edges.left_out.self_loops += found.own_images;
        for Neighbour { target, source, length } in found.near {
            self.edges.targets.push(target);
            self.edges.sources.push(source);
            self.radius.expand(length, &mut self.edges.values);
        }
        self.edges.pointers.push(self.edges.sources.len() as u64);
        Ok(())
    }

    /// The error that a graph has no edges for a reason.
    pub fn error(&self, reason: NoPairs, graph: &str, origin: Origin<'_>) -> DatasetError {
        let cutoff = self.radius.cutoff;
        match reason {
            NoPairs::TooMany => {
                let found = format!("graph {graph} has more than {MOST_MADE_EDGES} edges with cutoff {cutoff}");
                let expected = format!(
                    "at most {MOST_MADE_EDGES}: set a smaller `cutoff`, remove the graph, or set `edges = false` for networks in space, which \
                     make pairs of their own"
                );
                origin.error(found, expected)
            }
            reason => {
                let (found, expected) = reason.text(cutoff);
                origin.error(format!("graph {graph} has {found}"), expected)
            }
        }
    }

    /// The edges of all graphs.
    pub fn finish(self) -> Edges {
        self.edges
    }
}

/// A node near another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Neighbour {
    pub target: u32,
    pub source: u32,
    pub length: f64,
}

/// Edges between nodes and the nearest images of others: a store has at most one edge from a node to another.
#[derive(Debug, Clone, PartialEq, Default)]
struct NearestImages {
    /// By target, then by source.
    near: Vec<Neighbour>,
    /// Further images within the cutoff, in both directions.
    further_images: u64,
    /// Images of the node itself within the cutoff.
    own_images: u64,
}

/// All ordered pairs of different nodes at most `cutoff` apart, at most `most` of them; of several images the nearest.
fn nearest(
    search: &mut PairSearch,
    positions: &[[f64; 3]],
    cell: Option<&Cell>,
    cutoff: f64,
    most: usize,
) -> Result<NearestImages, NoPairs> {
    let mut found = NearestImages::default();
    search.each_pair(positions, cell, cutoff, |pair| {
        let (target, source, length) = (pair.target, pair.source, pair.squared.sqrt());
        let count = found.near.len();
        match found.near.last_mut() {
            _ if source == target => found.own_images += 1,
            Some(last) if (last.target, last.source) == (target, source) => {
                last.length = last.length.min(length);
                found.further_images += 1;
            }
            _ if count == most => return Err(NoPairs::TooMany),
            _ => found.near.push(Neighbour { target, source, length }),
        }
        Ok(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_nearest_image_makes_the_edge() {
        // Two atoms of caesium chloride: each corner has eight centres at a·√3/2, and six own images at a.
        let cell = Cell::new(&[[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]).unwrap();
        let positions = [[0.0; 3], [1.0; 3]];
        let near = |positions: &[[f64; 3]], cutoff, most| {
            nearest(&mut PairSearch::default(), positions, Some(&cell), cutoff, most)
        };
        let found = near(&positions, 1.8, 10).unwrap();
        assert_eq!((found.near.len(), found.further_images, found.own_images), (2, 14, 0));
        assert!(found.near.iter().all(|pair| (pair.length - 3f64.sqrt()).abs() < 1e-12));
        let found = near(&positions, 2.0, 10).unwrap();
        assert_eq!((found.near.len(), found.further_images, found.own_images), (2, 14, 12));
        assert_eq!(near(&positions, 2.0, 2).map(|found| found.near.len()), Ok(2));
        assert_eq!(near(&positions, 2.0, 1), Err(NoPairs::TooMany));
        // An atom off the centre: of its eight images the nearest one counts.
        let found = near(&[[0.0; 3], [0.75, 1.0, 1.0]], 2.0, 10).unwrap();
        assert!(found.near.iter().all(|pair| (pair.length - (0.75f64.powi(2) + 2.0).sqrt()).abs() < 1e-12));
    }

    proptest! {
        #[test]
        fn every_gaussian_is_that_of_the_formula(length in 0.0f64..6.0, cutoff in 0.1f64..6.0, basis in 2usize..40) {
            let spacing = cutoff / (basis - 1) as f64;
            let mut found = Vec::new();
            Radius { cutoff, basis }.expand(length, &mut found);
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
        maker.add(&[[0.0; 3], [0.0; 3]], None).unwrap();
        maker.add(&[[9.0; 3]], None).unwrap();
        maker.add(&[[0.0; 3], [0.0, 2.0, 0.0], [0.0, 4.1, 0.0]], None).unwrap();
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
        let reason = maker.add(&positions, None).unwrap_err();
        let error = maker.error(reason, "large", Origin::line("a.xyz", 7)).to_string();
        let expected = "a.xyz, line 7: graph large has more than 65535 edges with cutoff 1000, expected at most 65535: set a smaller";
        assert!(error.contains(expected), "{error}");
        assert!(maker.finish().sources.is_empty());
    }
}
