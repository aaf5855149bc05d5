//! Lengths and angles of a path, expanded in Gaussians.

use std::f64::consts::PI;

use kdgat_graph::Gaussians;

/// The bases of a network: distances up to its cutoff, angles up to π, torsions up to 2π.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bases {
    /// Gaussians of distances.
    pub distance: Gaussians,
    /// Gaussians of angles between edges.
    pub angle: Gaussians,
    /// Gaussians of torsion angles.
    pub torsion: Gaussians,
}

impl Bases {
    /// Bases of so many Gaussians.
    pub fn new(cutoff: f64, [distances, angles, torsions]: [usize; 3]) -> Self {
        Self {
            distance: Gaussians::up_to(cutoff, distances),
            angle: Gaussians::up_to(PI, angles),
            torsion: Gaussians::up_to(2.0 * PI, torsions),
        }
    }

    /// Columns of the expansions of a path's beginnings of one, two and three edges: of a distance; of a distance and an angle; of a
    /// distance, an angle and a torsion.
    pub fn columns(&self) -> [usize; 3] {
        let (distance, angle, torsion) = (self.distance.count, self.angle.count, self.torsion.count);
        [distance, distance + angle, distance + angle + torsion]
    }

    /// Writes the expansion of |ij|.
    pub fn edge(&self, [i, j]: [Vector; 2], to: &mut [f32]) {
        self.distance.expand(length(minus(j, i)), to);
    }

    /// Writes the expansions of |jk| and of the angle between ij and jk.
    pub fn pair(&self, [i, j, k]: [Vector; 3], to: &mut [f32]) {
        let (ij, jk) = (minus(j, i), minus(k, j));
        let (distance, angle_values) = to.split_at_mut(self.distance.count);
        self.distance.expand(length(jk), distance);
        self.angle.expand(angle(ij, jk), angle_values);
    }

    /// Writes the expansions of |jp|, of the angle between ij and jp, and of the torsion between the planes (ij, jk) and (ij, jp), which is
    /// negative if they turn against ij.
    pub fn path(&self, [i, j, k, p]: [Vector; 4], to: &mut [f32]) {
        let (ij, jk, jp) = (minus(j, i), minus(k, j), minus(p, j));
        let (planes, across) = ((cross(ij, jk), cross(ij, jp)), |normal| dot(normal, ij));
        let turn = across(cross(planes.0, planes.1));
        // As torch's sign: 0 for 0.
        let sign = if turn == 0.0 { 0.0 } else { turn.signum() };
        let (distance, rest) = to.split_at_mut(self.distance.count);
        let (angle_values, torsion) = rest.split_at_mut(self.angle.count);
        self.distance.expand(length(jp), distance);
        self.angle.expand(angle(ij, jp), angle_values);
        self.torsion.expand(sign * angle(planes.0, planes.1), torsion);
    }
}

/// A vector in space.
pub type Vector = [f64; 3];

/// The vector from `other` to `one`.
pub(crate) fn minus(one: Vector, other: Vector) -> Vector {
    [one[0] - other[0], one[1] - other[1], one[2] - other[2]]
}

fn cross(one: Vector, other: Vector) -> Vector {
    [
        one[1] * other[2] - one[2] * other[1],
        one[2] * other[0] - one[0] * other[2],
        one[0] * other[1] - one[1] * other[0],
    ]
}

fn dot(one: Vector, other: Vector) -> f64 {
    one[0] * other[0] + one[1] * other[1] + one[2] * other[2]
}

/// The length of a vector.
pub(crate) fn length(vector: Vector) -> f64 {
    dot(vector, vector).sqrt()
}

/// The angle between two vectors, from 0 to π.
pub(crate) fn angle(one: Vector, other: Vector) -> f64 {
    length(cross(one, other)).atan2(dot(one, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torsions_have_the_sign_of_their_turn() {
        let bases = Bases::new(10.0, [2, 2, 5]);
        let torsion = |p: Vector| {
            let mut values = [0.0; 9];
            bases.path([[0.0; 3], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0], p], &mut values);
            // Centres at 0, π/2, π, 3π/2, 2π: the first two values tell the angle and its sign.
            [values[4], values[5]]
        };
        let [at_zero, at_right] = torsion([1.0, 0.0, 1.0]);
        assert!((at_right - 1.0).abs() < 1e-6 && at_zero < 0.7, "a quarter turn along the first edge");
        let [at_zero, at_right] = torsion([1.0, 0.0, -1.0]);
        assert!((at_zero - (-0.5f32).exp()).abs() < 1e-6 && at_right < 0.2, "and against it");
        let [at_zero, _] = torsion([1.0, 2.0, 0.0]);
        assert_eq!(at_zero, 1.0, "in the plane of the first two edges");
    }
}
