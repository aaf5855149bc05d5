//! Usual reconstruction errors of a car's attack-free windows, and the distance of a window from them.
//!
//! On a car outside the training data, an autoencoder reconstructs most windows badly, and an attack may even lower its error: a
//! flood of one frame leaves fewer of the foreign frames. So deviations from the car's usual errors count in both directions. A
//! window's [profile] holds the mean error and the mean squared error of each feature and the cross entropy of the IDs (the
//! latter two as logarithms); its distance from the car's attack-free windows is that of Mahalanobis (1936).
//!
//! [profile]: Profile

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Number of parts that attack-free windows are split into; each part is measured against the others.
const PARTS: usize = 5;
/// Share by which each variance is enlarged, so that the covariance stays invertible when values are linearly dependent.
const RIDGE: f64 = 1e-6;
/// Added to each variance, so that constant values have one, too.
const LEAST_VARIANCE: f64 = 1e-12;

/// Errors of a window's reconstruction, `[2 * features + 1]`.
pub type Profile = Vec<f64>;

/// Mean and covariance of the profiles of a car's attack-free windows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsualProfile {
    mean: Vec<f64>,
    /// Rows of the lower triangular factor L of the covariance L·Lᵀ.
    factor: Vec<Vec<f64>>,
}

impl UsualProfile {
    /// Fits mean and covariance to the profiles of attack-free windows; `None` if there are none or they are not finite.
    ///
    /// Few windows say little about covariances, so these are shrunk: each off-diagonal value is multiplied by 1 − λ with
    /// λ = √(values / (windows + values)).
    pub fn of(profiles: &[&Profile]) -> Option<Self> {
        let (windows, values) = (profiles.len() as f64, profiles.first()?.len());
        let mean: Vec<f64> =
            (0..values).map(|value| profiles.iter().map(|profile| profile[value]).sum::<f64>() / windows).collect();
        let towards_diagonal = (values as f64 / (windows + values as f64)).sqrt();
        let covariance = |row: usize, column: usize| {
            let product = |profile: &&Profile| (profile[row] - mean[row]) * (profile[column] - mean[column]);
            let covariance = profiles.iter().map(product).sum::<f64>() / (windows - 1.0).max(1.0);
            match row == column {
                true => covariance * (1.0 + RIDGE) + LEAST_VARIANCE,
                false => covariance * (1.0 - towards_diagonal),
            }
        };
        let factor = lower_triangle(values, covariance)?;
        Some(Self { mean, factor })
    }

    /// Mahalanobis distance of a profile: √((p − m)ᵀ C⁻¹ (p − m)).
    pub fn distance(&self, profile: &Profile) -> f64 {
        let mut solved: Vec<f64> = Vec::with_capacity(profile.len());
        for (row, (value, mean)) in self.factor.iter().zip(profile.iter().zip(&self.mean)) {
            let known: f64 = row.iter().zip(&solved).map(|(factor, solved)| factor * solved).sum();
            solved.push((value - mean - known) / row[row.len() - 1]);
        }
        solved.iter().map(|value| value * value).sum::<f64>().sqrt()
    }

    /// Mean, and the rows of the lower triangular factor of the covariance.
    pub fn mean_and_factor(&self) -> (&[f64], &[Vec<f64>]) {
        (&self.mean, &self.factor)
    }

    /// True if the factor is a triangle of the mean's size (the file may have been edited by hand).
    pub fn is_whole(&self) -> bool {
        self.factor.len() == self.mean.len()
            && self.factor.iter().enumerate().all(|(row, values)| values.len() == row + 1)
    }
}

/// Distance of each attack-free window from the other parts of the same traffic: the usual distances of windows that mean and
/// covariance were not fitted to. Parts are consecutive stretches of time. `gap` as in [`parts`].
pub fn distances_among(profiles: &[Profile], gap: usize) -> Option<Vec<f64>> {
    let mut distances = Vec::with_capacity(profiles.len());
    for part in parts(profiles.len(), gap) {
        let others: Vec<&Profile> = part.others(profiles).collect();
        let usual = UsualProfile::of(&others)?;
        distances.extend(profiles[part.own].iter().map(|profile| usual.distance(profile)));
    }
    Some(distances)
}

/// One part of the attack-free windows, and the bounds of the windows of other parts that share no frame with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Positions of the windows in this part.
    pub own: Range<usize>,
    before: usize,
    after: usize,
}

impl Part {
    /// Values of the windows before and after this part, without those that share a frame with it.
    pub fn others<'a, T>(&self, values: &'a [T]) -> impl Iterator<Item = &'a T> {
        values[..self.before].iter().chain(&values[self.after..])
    }
}

/// Splits `windows` windows into consecutive parts; `gap` windows on either side of a part share a frame with it and are left
/// out of its complement. If windows are few and overlap much, at most a tenth of them is left out per side, so that some remain.
pub fn parts(windows: usize, gap: usize) -> impl Iterator<Item = Part> {
    let gap = gap.min(windows / (2 * PARTS));
    let end = move |part: usize| part * windows / PARTS;
    (0..PARTS).map(move |part| {
        let own = end(part)..end(part + 1);
        Part { before: own.start.saturating_sub(gap), after: (own.end + gap).min(windows), own }
    })
}

/// Cholesky factor of a symmetric matrix; `None` if the matrix is not positive definite.
fn lower_triangle(size: usize, matrix: impl Fn(usize, usize) -> f64) -> Option<Vec<Vec<f64>>> {
    let mut factor: Vec<Vec<f64>> = Vec::with_capacity(size);
    for row in 0..size {
        let mut of_row: Vec<f64> = Vec::with_capacity(row + 1);
        for (column, above) in factor.iter().enumerate() {
            let known: f64 = of_row.iter().zip(above).map(|(a, b)| a * b).sum();
            of_row.push((matrix(row, column) - known) / above[column]);
        }
        let rest = matrix(row, row) - of_row.iter().map(|value| value * value).sum::<f64>();
        if !(rest.is_finite() && rest > 0.0) {
            return None;
        }
        of_row.push(rest.sqrt());
        factor.push(of_row);
    }
    Some(factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_base::random::{Purpose, unit};

    /// Correlated pairs: the second value is twice the first, plus noise as large as the first.
    fn profiles(count: u64) -> Vec<Profile> {
        let centred = |index: u64| unit(3, Purpose::Step, 0, index) - 0.5;
        (0..count).map(|index| vec![centred(2 * index), 2.0 * centred(2 * index) + centred(2 * index + 1)]).collect()
    }

    #[test]
    fn the_distance_knows_what_varies_together() {
        let profiles = profiles(2000);
        let usual = UsualProfile::of(&profiles.iter().collect::<Vec<_>>()).unwrap();
        let mean_square =
            profiles.iter().map(|profile| usual.distance(profile).powi(2)).sum::<f64>() / profiles.len() as f64;
        assert!(
            (1.6..2.05).contains(&mean_square),
            "{mean_square}: one for each value, less what is drawn to the diagonal"
        );
        // Both are equally far from the mean, but only one follows the correlation.
        let (along, across) = (usual.distance(&vec![0.2, 0.4]), usual.distance(&vec![0.2, -0.4]));
        assert!(along < 1.0 && across > 2.0, "{along} {across}");
        assert_eq!(usual.distance(&usual.mean.clone()), 0.0);
    }

    #[test]
    fn a_solve_is_that_of_the_inverse() {
        let matrix = [[4.0, 2.0, 0.6], [2.0, 3.0, 0.4], [0.6, 0.4, 2.0]];
        let factor = lower_triangle(3, |row, column| matrix[row][column]).unwrap();
        for (row, values) in matrix.iter().enumerate() {
            for (column, value) in values.iter().enumerate() {
                let entry = |row: usize, index: usize| factor[row].get(index).copied().unwrap_or(0.0);
                let product: f64 = (0..3).map(|index| entry(row, index) * entry(column, index)).sum();
                assert!((product - value).abs() < 1e-12, "{row} {column}");
            }
        }
        assert_eq!(lower_triangle(2, |_, _| 1.0), None, "singular");
    }

    #[test]
    fn windows_are_measured_by_those_of_other_parts() {
        let mut profiles = profiles(200);
        profiles[100] = vec![30.0, -30.0];
        let among = distances_among(&profiles, 1).unwrap();
        assert_eq!(among.len(), profiles.len());
        let inside = UsualProfile::of(&profiles.iter().collect::<Vec<_>>()).unwrap().distance(&profiles[100]);
        assert!(among[100] > 5.0 * inside, "an outlier hides behind its own variance: {inside}, {}", among[100]);
        assert!(distances_among(&[], 1).is_none());
    }

    #[test]
    fn parts_share_no_frame_with_what_judges_them() {
        let windows: Vec<usize> = (0..100).collect();
        let others = |part: usize, gap: usize| -> Vec<usize> {
            parts(100, gap).nth(part).unwrap().others(&windows).copied().collect()
        };
        assert_eq!(others(0, 4), (24..100).collect::<Vec<_>>());
        assert_eq!(others(2, 4), (0..36).chain(64..100).collect::<Vec<_>>());
        assert_eq!(others(4, 100), (0..70).collect::<Vec<_>>(), "a tenth at most");
        assert_eq!(parts(100, 4).map(|part| part.own.len()).sum::<usize>(), 100);
    }

    #[test]
    fn equal_and_broken_profiles() {
        let equal = vec![vec![1.0, 2.0]; 20];
        let usual = UsualProfile::of(&equal.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(usual.distance(&equal[0]), 0.0);
        assert!(usual.distance(&vec![1.1, 2.0]) > 1e3);
        assert_eq!(UsualProfile::of(&[&vec![f64::NAN, 1.0]]), None);
        let mut broken = usual.clone();
        broken.factor.pop();
        assert!(usual.is_whole() && !broken.is_whole());
    }
}
