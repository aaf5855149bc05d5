//! Edges between each node and its nearest ones.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::graph_set::{Edges, LeftOut};
use super::schema::Feature;

/// Largest number of nearest nodes that can be asked for.
pub(super) const MOST_NEIGHBOURS: usize = 256;
/// Name of the edges' feature.
const DISTANCE: &str = "distance";

/// Makes the edges of one graph after the other: an edge and its reverse wherever one of two nodes is among the `count` nearest of the other. Of
/// nodes at the same distance, that with the lower number is nearer.
pub(super) struct NearestEdges {
    count: usize,
    edges: Edges,
}

impl NearestEdges {
    /// A maker without graphs.
    pub fn new(count: usize) -> Self {
        let features = vec![Feature { name: DISTANCE.to_owned(), values: None }];
        let left_out = LeftOut::default();
        let made = format!("edges to the {count} nearest nodes");
        let edges = Edges { features, left_out, are_listed: true, made, ..Edges::none(0) };
        Self { count, edges }
    }

    /// Adds a graph by the positions of its nodes.
    pub fn add(&mut self, positions: &[[f64; 3]]) {
        let tree = PointTree::new(positions);
        let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(2 * self.count * positions.len());
        for node in 0..positions.len() as u32 {
            for near in tree.nearest(node, self.count) {
                pairs.extend([(node, near), (near, node)]);
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        for (target, source) in pairs {
            self.edges.targets.push(target);
            self.edges.sources.push(source);
            self.edges.values.push(squared(positions[target as usize], positions[source as usize]).sqrt() as f32);
        }
        self.edges.pointers.push(self.edges.sources.len() as u64);
    }

    /// The edges of all graphs.
    pub fn finish(self) -> Edges {
        self.edges
    }
}

fn squared(one: [f64; 3], other: [f64; 3]) -> f64 {
    (0..3).map(|axis| (one[axis] - other[axis]).powi(2)).sum()
}

/// A candidate: ordered by its distance, then by its number.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Near {
    squared: f64,
    node: u32,
}

impl Eq for Near {}

impl PartialOrd for Near {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Near {
    fn cmp(&self, other: &Self) -> Ordering {
        self.squared.total_cmp(&other.squared).then(self.node.cmp(&other.node))
    }
}

/// Points of a leaf of a tree, which are compared one by one.
const LEAF: usize = 16;

/// Points divided in halves along their widest axis, again and again (k-d tree, Bentley 1975).
struct PointTree<'a> {
    positions: &'a [[f64; 3]],
    /// The points, those of each part together: the lower half, then the upper one.
    order: Vec<u32>,
    /// For the middle of each part: the axis along which it is divided there, and the place.
    planes: Vec<(usize, f64)>,
}

impl<'a> PointTree<'a> {
    fn new(positions: &'a [[f64; 3]]) -> Self {
        let mut order: Vec<u32> = (0..positions.len() as u32).collect();
        let mut planes = vec![(0, 0.0); positions.len()];
        let mut parts: Vec<_> = std::iter::once(0..positions.len()).collect();
        while let Some(part) = parts.pop() {
            if part.len() > LEAF {
                let (axis, middle) = (widest_axis(positions, &order[part.clone()]), part.len() / 2);
                let place = |node: &u32| positions[*node as usize][axis];
                order[part.clone()].select_nth_unstable_by(middle, |one, other| {
                    place(one).total_cmp(&place(other)).then(one.cmp(other))
                });
                planes[part.start + middle] = (axis, place(&order[part.start + middle]));
                parts.extend([part.start..part.start + middle, part.start + middle..part.end]);
            }
        }
        Self { positions, order, planes }
    }

    /// The `count` nearest other points, or all if there are fewer.
    fn nearest(&self, node: u32, count: usize) -> Vec<u32> {
        let at = self.positions[node as usize];
        let mut found: BinaryHeap<Near> = BinaryHeap::with_capacity(count + 1);
        // Parts that are still to be searched, with a bound of their distance.
        let mut parts = vec![(0.0, 0..self.order.len())];
        while let Some((bound, part)) = parts.pop() {
            let is_full = found.len() == count;
            if is_full && found.peek().is_some_and(|farthest| bound > farthest.squared) {
                continue;
            }
            if part.len() <= LEAF {
                for &other in self.order[part].iter().filter(|&&other| other != node) {
                    found.push(Near { squared: squared(at, self.positions[other as usize]), node: other });
                    if found.len() > count {
                        found.pop();
                    }
                }
                continue;
            }
            let middle = part.start + part.len() / 2;
            let ((axis, place), lower, upper) = (self.planes[middle], part.start..middle, middle..part.end);
            let across = at[axis] - place;
            let far = across * across;
            // The nearer half is searched first.
            parts.extend(match across < 0.0 {
                true => [(far, upper), (bound, lower)],
                false => [(far, lower), (bound, upper)],
            });
        }
        found.into_iter().map(|near| near.node).collect()
    }
}

/// The axis along which some points extend farthest.
fn widest_axis(positions: &[[f64; 3]], points: &[u32]) -> usize {
    let extent = |axis: usize| {
        let values = points.iter().map(|&point| positions[point as usize][axis]);
        let (low, high) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        high - low
    };
    let extents = [0, 1, 2].map(extent);
    // The first of equal ones.
    (0..3).fold(0, |widest, axis| if extents[axis] > extents[widest] { axis } else { widest })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The edges are those of the definition: all other nodes sorted by distance and number.
        #[test]
        fn edges_are_those_of_the_definition(
            // Few different coordinates, so that many distances are equal.
            positions in prop::collection::vec(prop::array::uniform3(0i32..6), 1..120),
            count in 1usize..12,
        ) {
            let positions: Vec<[f64; 3]> = positions.into_iter().map(|place| place.map(f64::from)).collect();
            let mut maker = NearestEdges::new(count);
            maker.add(&positions);
            let edges = maker.finish();
            let mut expected = Vec::new();
            for node in 0..positions.len() {
                let mut others: Vec<usize> = (0..positions.len()).filter(|&other| other != node).collect();
                others.sort_by(|&one, &other| {
                    let of = |other: usize| squared(positions[node], positions[other]);
                    of(one).total_cmp(&of(other)).then(one.cmp(&other))
                });
                others.truncate(count);
                expected.extend(others.into_iter().flat_map(|other| [(node, other), (other, node)]));
            }
            expected.sort_unstable();
            expected.dedup();
            let found: Vec<(usize, usize)> =
                edges.targets.iter().zip(&edges.sources).map(|(&to, &from)| (to as usize, from as usize)).collect();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(edges.pointers, vec![0, expected.len() as u64]);
            for (&(to, from), &length) in expected.iter().zip(&edges.values) {
                prop_assert!((f64::from(length) - squared(positions[to], positions[from]).sqrt()).abs() < 1e-5);
            }
        }
    }
}
