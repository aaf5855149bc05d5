//! Displaced graphs: views of a graph in space whose nodes have moved a little, each in another way.
//!
//! A student that learns from a teacher needs no targets of its own there: the teacher has outputs and forces for any positions (Gardner et
//! al. 2025, "Distillation of atomistic foundation models across architectures and chemical domains", who displace atoms at random, too).

use std::f64::consts::TAU;

use kdgat_base::random::{self, Purpose};

/// Random displacements of nodes: each view of a graph has its own but the first, which is the graph as it is. A pure function of seed, view,
/// the graph's position in the store, and the node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Displacement {
    /// Standard deviation along each axis, in the data's unit of length.
    pub deviation: f64,
    /// Seed of the views.
    pub seed: u64,
    /// Current epoch.
    pub epoch: u64,
    /// Number of views of a graph, at least 1, which the epochs take in turn.
    pub views: u64,
}

impl Displacement {
    /// The view of a graph in the current epoch. Graphs begin with different views, so that a batch has some graphs as they are.
    pub fn view(&self, graph: u64) -> u64 {
        (self.epoch % self.views + graph % self.views) % self.views
    }

    /// Moves the nodes of a graph, and returns true if its view has moved nodes.
    pub(crate) fn apply(&self, graph: u64, positions: &mut [[f64; 3]]) -> bool {
        let view = self.view(graph);
        if view == 0 {
            return false;
        }
        let key = random::bits(self.seed, Purpose::Displacement, view, graph);
        for (node, position) in (0..).zip(positions) {
            let [first, second] = [0, 1].map(|pair| normals(random::mix(key ^ (2 * node + pair))));
            for (value, normal) in position.iter_mut().zip(first.into_iter().chain(second)) {
                // As a store would keep it.
                *value = f64::from((*value + self.deviation * normal) as f32);
            }
        }
        true
    }
}

/// Two independent standard normal numbers (Box & Muller 1958).
fn normals(bits: u64) -> [f64; 2] {
    // Never the logarithm of 0.
    let (share, turn) = (1.0 - random::to_unit(bits), random::to_unit(random::mix(bits)));
    let length = (-2.0 * share.ln()).sqrt();
    let (sine, cosine) = (TAU * turn).sin_cos();
    [length * cosine, length * sine]
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISPLACEMENT: Displacement = Displacement { deviation: 0.1, seed: 3, epoch: 0, views: 4 };

    #[test]
    fn views_are_taken_in_turn_and_the_first_is_the_graph_itself() {
        for graph in [0, 5, u64::MAX] {
            let mut views: Vec<u64> = (7..11).map(|epoch| Displacement { epoch, ..DISPLACEMENT }.view(graph)).collect();
            views.sort_unstable();
            assert_eq!(views, [0, 1, 2, 3]);
        }
        let moved = |epoch: u64, graph: u64| {
            let mut positions = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
            let is_moved = Displacement { epoch, ..DISPLACEMENT }.apply(graph, &mut positions);
            assert_eq!(is_moved, positions != [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
            is_moved.then_some(positions)
        };
        assert!(moved(0, 4).is_none() && moved(3, 1).is_none());
        assert_eq!(moved(1, 4), moved(5, 4));
        let all = [moved(1, 4), moved(2, 4), moved(3, 4), moved(0, 1)];
        assert!((0..4).all(|one| (0..one).all(|other| all[one] != all[other])), "{all:?}");
    }

    #[test]
    fn displacements_are_normal() {
        let mut positions = vec![[0.0; 3]; 20_000];
        assert!(Displacement { epoch: 1, ..DISPLACEMENT }.apply(0, &mut positions));
        for axis in 0..3 {
            let moment = |power: i32| positions.iter().map(|at| (at[axis] / 0.1).powi(power)).sum::<f64>() / 2e4;
            let [mean, variance, kurtosis] = [1, 2, 4].map(moment);
            assert!(
                mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04 && (kurtosis - 3.0).abs() < 0.25,
                "axis {axis}: {mean} {variance} {kurtosis}"
            );
        }
        let products = positions.iter().map(|[x, y, z]| [x * y, y * z, z * x]);
        let sums = products.fold([0.0; 3], |sums, next| [0, 1, 2].map(|at| sums[at] + next[at]));
        assert!(sums.iter().all(|sum| (sum / 200.0).abs() < 0.03), "{sums:?}");
    }
}
