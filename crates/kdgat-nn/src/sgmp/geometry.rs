//! Lengths and angles of a path, and their expansion in Gaussians.

use std::f64::consts::PI;

/// A radial basis: `exp(-(x - μ_c)² / (2 Δ²))` for `count` centres `μ_c` spaced by `Δ` from 0 on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Basis {
    /// Distance of two centres.
    pub spacing: f64,
    /// Number of centres, at least 2.
    pub count: usize,
}

impl Basis {
    /// Centres from 0 to `end`.
    pub fn up_to(end: f64, count: usize) -> Self {
        Self { spacing: end / (count.max(2) - 1) as f64, count }
    }

    /// Writes the expansion of `x`.
    ///
    /// Beginning at the centre next to `x`, each value is its neighbour's times a factor that shrinks by e for each centre, so that two
    /// exponentials are enough for all.
    pub fn expand(&self, x: f64, to: &mut [f32]) {
        let position = x / self.spacing;
        let next = position.round().clamp(0.0, self.count as f64 - 1.0);
        let offset = position - next;
        let value = (-0.5 * offset * offset).exp();
        let (down, up) = to.split_at_mut(next as usize);
        if let Some(first) = up.first_mut() {
            *first = value as f32;
        }
        let outwards = |values: &mut dyn Iterator<Item = &mut f32>, ratio: f64| {
            let (mut value, mut ratio) = (value, ratio);
            for to in values {
                value *= ratio;
                ratio *= DECAY;
                *to = value as f32;
            }
        };
        outwards(&mut up.iter_mut().skip(1), (offset - 0.5).exp());
        outwards(&mut down.iter_mut().rev(), (-offset - 0.5).exp());
    }
}

/// 1 / e.
const DECAY: f64 = 0.367_879_441_171_442_33;

/// The bases of a network: distances up to its cutoff, angles up to π, torsions up to 2π.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bases {
    /// Basis of distances.
    pub distance: Basis,
    /// Basis of angles between edges.
    pub angle: Basis,
    /// Basis of torsion angles.
    pub torsion: Basis,
}

impl Bases {
    /// Bases of so many Gaussians.
    pub fn new(cutoff: f64, [distances, angles, torsions]: [usize; 3]) -> Self {
        Self {
            distance: Basis::up_to(cutoff, distances),
            angle: Basis::up_to(PI, angles),
            torsion: Basis::up_to(2.0 * PI, torsions),
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

fn minus(one: Vector, other: Vector) -> Vector {
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

fn length(vector: Vector) -> f64 {
    dot(vector, vector).sqrt()
}

/// The angle between two vectors, from 0 to π.
fn angle(one: Vector, other: Vector) -> f64 {
    length(cross(one, other)).atan2(dot(one, other))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_value_is_that_of_the_formula(x in -7.0f64..15.0, end in 0.5f64..12.0, count in 2usize..60) {
            let basis = Basis::up_to(end, count);
            let mut found = vec![f32::NAN; count];
            basis.expand(x, &mut found);
            for (index, found) in found.into_iter().enumerate() {
                let offset = (x - end * index as f64 / (count - 1) as f64) / basis.spacing;
                let expected = (-0.5 * offset * offset).exp();
                prop_assert!((f64::from(found) - expected).abs() < 1e-6, "{} {}", found, expected);
            }
        }
    }

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
