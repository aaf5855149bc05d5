//! Growth: the distribution of a node's children around it.
//!
//! Distances of the children from their node, and angles between the edge to the node and the edges to them, are each spread over Gaussians with
//! equally spaced centres, which are divided by their sum and averaged over the children. Predicted and real distributions are compared by
//! the earth mover's distance: on a line, the sum of the absolute differences of cumulative sums times the distance of two centres.

use std::f64::consts::PI;

use kdgat_graph::{Batch, Gaussians};
use tch::{Kind, TchError, Tensor};

use super::NodeValues;
use super::trees::Trees;
use crate::ModelError;
use crate::sgmp::geometry::{Vector, angle, length, minus};

/// Centres of distances and of angles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bins {
    /// Distances up to the cutoff; farther children count as at the cutoff.
    pub distances: Gaussians,
    /// Angles up to π.
    pub angles: Gaussians,
}

impl Bins {
    /// So many centres of distances and of angles.
    pub fn new(cutoff: f64, [distances, angles]: [usize; 2]) -> Self {
        Self { distances: Gaussians::up_to(cutoff, distances), angles: Gaussians::up_to(PI, angles) }
    }

    /// The largest distance that has a centre.
    pub fn distance_range(&self) -> f64 {
        self.distances.end()
    }

    /// Number of centres.
    pub fn count(&self) -> usize {
        self.distances.count + self.angles.count
    }
}

/// The real growth of the nodes that have a parent and children.
#[derive(Debug, Clone, PartialEq)]
pub struct Growth {
    bins: Bins,
    /// The nodes, ascending.
    pub nodes: Vec<i64>,
    /// `[nodes, distances]` and `[nodes, angles]`: cumulative distributions.
    pub cumulative: [Vec<f32>; 2],
    /// Mean distance of each node's children, and mean angle.
    pub means: Vec<[f64; 2]>,
}

impl Growth {
    /// The growth of all nodes with a parent and children.
    pub fn of(trees: &Trees, positions: &[Vector], bins: Bins) -> Self {
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); trees.num_nodes()];
        for (node, parent) in (0u32..).zip(&trees.parents) {
            parent.iter().for_each(|&parent| children[parent as usize].push(node));
        }
        let mut found = Self { bins, nodes: Vec::new(), cumulative: Default::default(), means: Vec::new() };
        for (node, of_node) in children.iter().enumerate() {
            if let (Some(parent), false) = (trees.parents[node], of_node.is_empty()) {
                let places = of_node.iter().map(|&child| positions[child as usize]);
                found.add(node, positions[node], positions[parent as usize], places);
            }
        }
        found
    }

    /// The growth of the nodes of a batch of trees.
    ///
    /// # Errors
    /// A batch whose graphs are no trees, or without positions.
    pub fn of_batch(batch: &Batch, bins: Bins) -> Result<Self, ModelError> {
        Ok(Self::of(&Trees::of(batch)?, &crate::sgmp::positions(batch)?, bins))
    }

    fn add(&mut self, node: usize, at: Vector, from: Vector, children: impl ExactSizeIterator<Item = Vector>) {
        let count = children.len() as f64;
        let bases = [self.bins.distances, self.bins.angles];
        let mut sums = bases.map(|basis| vec![0.0f64; basis.count]);
        let mut means = [0.0; 2];
        for child in children {
            let grown = minus(child, at);
            let values = [length(grown), angle(minus(at, from), grown)];
            means.iter_mut().zip(values).for_each(|(mean, value)| *mean += value / count);
            for ((sum, basis), value) in sums.iter_mut().zip(bases).zip(values) {
                let mut spread = vec![0.0; basis.count];
                basis.expand(value.min(basis.end()), &mut spread);
                let total: f64 = spread.iter().map(|&value| f64::from(value)).sum();
                sum.iter_mut().zip(spread).for_each(|(sum, value)| *sum += f64::from(value) / total / count);
            }
        }
        self.nodes.push(node as i64);
        self.means.push(means);
        for (to, sum) in self.cumulative.iter_mut().zip(sums) {
            let mut before = 0.0;
            to.extend(sum.into_iter().map(|share| {
                before += share;
                before as f32
            }));
        }
    }

    /// Earth mover's distances of predicted distances and angles from the real ones, as shares of the cutoff and of π. `logits`: `[num_nodes,
    /// distances + angles]`.
    pub fn compare(&self, logits: &Tensor) -> Result<[NodeValues; 2], TchError> {
        let nodes = Tensor::f_from_slice(&self.nodes)?.f_to_device(logits.device())?;
        let predicted = logits.f_index_select(0, &nodes)?;
        let of = |first: i64, bins: usize, cumulative: &[f32]| -> Result<NodeValues, TchError> {
            let shares = predicted.f_narrow(1, first, bins as i64)?.f_softmax(-1, Kind::Float)?;
            let truth = Tensor::f_from_slice(cumulative)?.f_view([-1, bins as i64])?.f_to_device(logits.device())?;
            let values = earth_movers(&shares.f_cumsum(1, Kind::Float)?, &truth)?;
            Ok(NodeValues { nodes: nodes.shallow_clone(), values })
        };
        let Bins { distances, angles } = self.bins;
        Ok([
            of(0, distances.count, &self.cumulative[0])?,
            of(distances.count as i64, angles.count, &self.cumulative[1])?,
        ])
    }

    /// Means of the predicted distances and angles of each node. `logits`: `[num_nodes, distances + angles]`.
    pub fn predicted_means(&self, logits: &Tensor) -> Result<Vec<[f64; 2]>, TchError> {
        let nodes = Tensor::f_from_slice(&self.nodes)?.f_to_device(logits.device())?;
        let predicted = logits.f_index_select(0, &nodes)?.f_to_kind(Kind::Double)?;
        let mean = |first: usize, basis: &Gaussians| -> Result<Vec<f64>, TchError> {
            let shares = predicted.f_narrow(1, first as i64, basis.count as i64)?.f_softmax(-1, Kind::Double)?;
            let centres: Vec<f64> = (0..basis.count).map(|centre| centre as f64 * basis.spacing).collect();
            let means = shares.f_mv(&Tensor::f_from_slice(&centres)?.f_to_device(logits.device())?)?;
            Vec::try_from(&means.f_to_device(tch::Device::Cpu)?)
        };
        let Bins { distances, angles } = &self.bins;
        let means = mean(0, distances)?.into_iter().zip(mean(distances.count, angles)?);
        Ok(means.map(|(distance, angle)| [distance, angle]).collect())
    }

    /// Earth mover's distances of one cumulative distribution of distances and one of angles from the real ones of all nodes, as shares of the
    /// cutoff and of π, `[nodes]` each.
    pub fn compare_constant(&self, constant: &[Vec<f32>; 2]) -> Result<[Tensor; 2], TchError> {
        let of = |constant: &[f32], cumulative: &[f32]| {
            let truth = Tensor::f_from_slice(cumulative)?.f_view([-1, constant.len() as i64])?;
            earth_movers(&Tensor::f_from_slice(constant)?.f_unsqueeze(0)?, &truth)
        };
        Ok([of(&constant[0], &self.cumulative[0])?, of(&constant[1], &self.cumulative[1])?])
    }
}

/// Sums of the absolute differences of cumulative distributions, `[rows, bins]` or `[1, bins]`, as shares of the distance from the first centre to
/// the last, `[rows]`.
fn earth_movers(one: &Tensor, other: &Tensor) -> Result<Tensor, TchError> {
    let steps = other.size()[1] - 1;
    // Both are 1 at the last centre.
    let differences = one.f_sub(other)?.f_abs()?.f_narrow(1, 0, steps)?;
    differences.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?.f_div_scalar(steps as f64)
}

/// Cells that a value from 0 to 1 is rounded to.
const CELLS: usize = 1024;

/// The constant that is nearest to all distributions added: the median of each cumulative share, which minimises the mean earth mover's distance.
#[derive(Debug)]
pub struct MedianGrowth {
    /// For each centre of distances and of angles, how many shares fall into each of [`CELLS`].
    counts: [Vec<Vec<u32>>; 2],
}

impl MedianGrowth {
    /// Without distributions.
    pub fn new(bins: Bins) -> Self {
        Self { counts: [bins.distances, bins.angles].map(|basis| vec![vec![0; CELLS + 1]; basis.count]) }
    }

    /// Adds the growth of some nodes.
    pub fn add(&mut self, growth: &Growth) {
        for (counts, cumulative) in self.counts.iter_mut().zip(&growth.cumulative) {
            for row in cumulative.chunks_exact(counts.len()) {
                for (counts, &share) in counts.iter_mut().zip(row) {
                    counts[(share.clamp(0.0, 1.0) * CELLS as f32).round() as usize] += 1;
                }
            }
        }
    }

    /// The median cumulative distributions; zeros without any added.
    pub fn medians(&self) -> [Vec<f32>; 2] {
        let median = |counts: &Vec<u32>| {
            let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
            let mut below = 0;
            let cell = counts.iter().position(|&count| {
                below += u64::from(count);
                2 * below >= total
            });
            cell.unwrap_or(0) as f32 / CELLS as f32
        };
        self.counts.each_ref().map(|of_kind| of_kind.iter().map(median).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::trees::tests::forest;
    use super::*;
    use crate::test_graphs::graphs;

    /// A root, a node one to the right of it, and that node's children: one straight on at 2, one at a right angle at 1.
    fn fork() -> (Trees, Vec<Vector>) {
        let (neighbours, _) = forest(&[vec![0, 1, 1]]);
        let edges: Vec<(i64, i64)> =
            (0..4).flat_map(|to| neighbours.of(to).iter().map(move |&from| (i64::from(from), to as i64))).collect();
        let trees = Trees::of(&graphs(&edges, &[0, 4])).unwrap();
        (trees, vec![[0.0; 3], [1.0, 0.0, 0.0], [3.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    }

    #[test]
    fn growth_is_spread_over_the_centres_next_to_the_children() {
        let (trees, positions) = fork();
        let bins = Bins::new(4.0, [5, 3]);
        let growth = Growth::of(&trees, &positions, bins);
        assert_eq!(growth.nodes, [1], "a root has no direction, a tip no children");
        let spread = |position: f64, count: usize| {
            let values: Vec<f64> = (0..count).map(|at| (-0.5 * (position - at as f64).powi(2)).exp()).collect();
            let total: f64 = values.iter().sum();
            values.into_iter().map(|value| value / total).collect::<Vec<_>>()
        };
        for (kind, count, places) in [(0, 5, [2.0, 1.0]), (1, 3, [0.0, 1.0])] {
            let both = places.map(|place| spread(place, count));
            let mut before = 0.0;
            for (at, &found) in growth.cumulative[kind].iter().enumerate() {
                before += (both[0][at] + both[1][at]) / 2.0;
                assert!((f64::from(found) - before).abs() < 1e-6, "{kind} {at}: {found} {before}");
            }
        }
        // Children beyond the cutoff are all at it.
        let far = |x: f64| {
            let mut positions = positions.clone();
            positions[2][0] = x;
            Growth::of(&trees, &positions, bins)
        };
        assert_eq!(far(50.0).cumulative, far(500.0).cumulative);
        // Turning and moving the tree changes nothing.
        let turned: Vec<Vector> = positions.iter().map(|[x, y, z]| [*z + 7.0, *x, *y]).collect();
        let found = Growth::of(&trees, &turned, bins);
        for (one, other) in growth.cumulative.iter().flatten().zip(found.cumulative.iter().flatten()) {
            assert!((one - other).abs() < 1e-6);
        }
    }

    /// A mass moved by k of four steps has the distance k/4, and a median no greater one than a mean.
    #[test]
    fn distances_are_earth_movers() {
        let (trees, positions) = fork();
        let growth = Growth::of(&trees, &positions, Bins::new(4.0, [5, 3]));
        let cumulative = |at: usize| -> Vec<f32> { (0..5).map(|bin| f32::from(bin >= at)).collect() };
        let rows = |at: usize| Tensor::from_slice(&cumulative(at)).unsqueeze(0);
        for (one, other) in [(0usize, 4usize), (1, 3), (2, 2), (4, 1)] {
            let found = earth_movers(&rows(one), &rows(other)).unwrap().double_value(&[0]);
            assert_eq!(found, one.abs_diff(other) as f64 / 4.0);
        }
        // Logits of the real distribution itself have the distance 0.
        let shares: Vec<f32> = growth
            .cumulative
            .iter()
            .flat_map(|of| of.iter().scan(0.0, |last, &sum| Some((sum - std::mem::replace(last, sum)).ln())))
            .collect();
        let logits = Tensor::from_slice(&shares).view([1, -1]).repeat([4, 1]);
        for found in growth.compare(&logits).unwrap() {
            assert!(found.values.double_value(&[0]) < 1e-6);
        }
        let mut median = MedianGrowth::new(growth.bins);
        (0..3).for_each(|_| median.add(&growth));
        let [distances, angles] = growth.compare_constant(&median.medians()).unwrap();
        assert!(distances.double_value(&[0]) < 1e-3 && angles.double_value(&[0]) < 1e-3);
    }
}
