//! Scales of regression targets: a network predicts a target's residual, standardised over the training graphs.
//!
//! The residual of a graph is its value minus a part that is linear in the sums of its node features, w·Σ_i x_i. For molecules whose
//! features are their elements, w has the energies of single atoms, by which total energies differ most.

use kdgat_graph::{Batch, Store, StoreError};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, TchError, Tensor};

use super::segments;

/// Largest number of node features with a linear part: its matrix has their square.
const MOST_LINEAR_FEATURES: usize = 512;
/// Smallest number of training graphs for each feature with which a linear part is fitted.
const GRAPHS_PER_FEATURE: usize = 10;
/// Weight of the squared length of w, relative to the mean square of a feature: it decides between features that sum up to the same.
const RIDGE: f64 = 1e-9;

/// Scale of a regression target over the training graphs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetScale {
    /// Mean of the residual.
    pub mean: f64,
    /// Standard deviation of the residual; 1 for a constant one.
    pub deviation: f64,
    /// w, one number for each node feature; empty without a linear part.
    pub weights: Vec<f64>,
}

impl TargetScale {
    /// The scale of values in their own units.
    pub fn of_units() -> Self {
        Self { mean: 0.0, deviation: 1.0, weights: Vec::new() }
    }

    /// True if an architecture with this scale can be built for nodes with `features` features.
    pub(super) fn is_usable(&self, features: i64) -> bool {
        let fits = self.weights.is_empty() || self.weights.len() as i64 == features;
        let all_finite = self.weights.iter().chain([&self.mean, &self.deviation]).all(|value| value.is_finite());
        fits && all_finite && self.deviation > 0.0
    }

    /// The scale with the mean and the standard deviation of these values.
    fn of_values(self, values: &[f64]) -> Self {
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Self { mean, deviation: if variance > 0.0 { variance.sqrt() } else { 1.0 }, ..self }
    }

    /// Prediction of the linear model alone, from the sums of a graph's node features.
    pub fn linear_prediction(&self, summed: &[f64]) -> f64 {
        self.mean + self.weights.iter().zip(summed).map(|(weight, value)| weight * value).sum::<f64>()
    }
}

/// Values in the units of the targets from a network's outputs, as by [`ScaleTensors::in_units`].
///
/// # Errors
/// Those of libtorch.
pub fn in_units(outputs: &Tensor, scales: &[TargetScale], batch: &Batch) -> Result<Tensor, TchError> {
    ScaleTensors::new(scales, batch.continuous.device())?.in_units(outputs, batch)
}

/// Scales of targets as tensors on a device, f64. Making them waits for the device, so that a step that is captured as a CUDA graph needs
/// them made before.
#[derive(Debug)]
pub struct ScaleTensors {
    /// `[number of targets]`.
    means: Tensor,
    /// `[number of targets]`.
    deviations: Tensor,
    /// `[node features, number of targets]`; `None` if no target has a linear part.
    weights: Option<Tensor>,
}

impl ScaleTensors {
    /// Copies scales to a device.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn new(scales: &[TargetScale], device: Device) -> Result<Self, TchError> {
        let row = |value: fn(&TargetScale) -> f64| {
            let values: Vec<f64> = scales.iter().map(value).collect();
            Tensor::f_from_slice(&values)?.f_to_device(device)
        };
        let weights = scales.iter().map(|scale| scale.weights.len()).find(|features| *features > 0);
        let weights = weights.map(|features| {
            let of_target = |scale: &TargetScale| match scale.weights.is_empty() {
                true => vec![0.0; features],
                false => scale.weights.clone(),
            };
            let weights: Vec<f64> = scales.iter().flat_map(of_target).collect();
            let weights = Tensor::f_from_slice(&weights)?.f_view([scales.len() as i64, features as i64])?;
            weights.f_to_device(device)?.f_transpose(0, 1)
        });
        Ok(Self {
            means: row(|scale| scale.mean)?,
            deviations: row(|scale| scale.deviation)?,
            weights: weights.transpose()?,
        })
    }

    /// `[number of targets]`, f64.
    pub fn deviations(&self) -> &Tensor {
        &self.deviations
    }

    /// Values in the units of the targets from a network's outputs, `[rows, number of targets]`, f64. The rows are the graphs of the batch
    /// or, without a linear part, any.
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn in_units(&self, outputs: &Tensor, batch: &Batch) -> Result<Tensor, TchError> {
        let values = outputs.f_to_kind(Kind::Double)?.f_mul(&self.deviations)?.f_add(&self.means)?;
        match self.linear_parts(batch)? {
            Some(linear) => values.f_add(&linear),
            None => Ok(values),
        }
    }

    /// Standardised residuals of values in the units of the targets, `[rows, number of targets]`, f32; rows as for [`Self::in_units`].
    ///
    /// # Errors
    /// Those of libtorch.
    pub fn standardised(&self, values: &Tensor, batch: &Batch) -> Result<Tensor, TchError> {
        let mut values = values.f_to_kind(Kind::Double)?;
        if let Some(linear) = self.linear_parts(batch)? {
            values = values.f_sub(&linear)?;
        }
        values.f_sub(&self.means)?.f_div(&self.deviations)?.f_to_kind(Kind::Float)
    }

    /// w·Σ_i x_i of each graph and target, `[num_graphs, number of targets]`, f64; `None` if no target has a linear part.
    fn linear_parts(&self, batch: &Batch) -> Result<Option<Tensor>, TchError> {
        let Some(weights) = &self.weights else { return Ok(None) };
        let of_nodes = batch.continuous.f_to_kind(Kind::Double)?.f_matmul(weights)?;
        segments::sums(&of_nodes, &batch.node_pointers, &batch.graph_of_node).map(Some)
    }
}

/// The scale of each target of a store over these graphs, without a linear part.
///
/// # Errors
/// A damaged shard.
pub fn of_mean(store: &Store, graphs: &[u64]) -> Result<Vec<TargetScale>, StoreError> {
    of_residuals(store, graphs, vec![Vec::new(); store.features().targets()])
}

/// The scale of each target of nodes over the nodes of these graphs, without a linear part.
///
/// # Errors
/// A damaged shard.
pub fn of_nodes(store: &Store, graphs: &[u64]) -> Result<Vec<TargetScale>, StoreError> {
    let mut values = vec![Vec::new(); store.features().node_targets()];
    for &graph in graphs {
        for (_, of_node) in store.try_graph(graph)?.node_targets() {
            values.iter_mut().zip(of_node).for_each(|(values, &value)| values.push(f64::from(value)));
        }
    }
    Ok(values.iter().map(|values| TargetScale::of_units().of_values(values)).collect())
}

/// The scale of each target of a store over these graphs, with a linear part fitted to them; without one if the graphs are fewer than ten
/// for each node feature, or the features more than 512.
///
/// # Errors
/// A damaged shard.
pub fn with_linear_part(store: &Store, graphs: &[u64]) -> Result<Vec<TargetScale>, StoreError> {
    let features = store.features().node_features();
    if features > MOST_LINEAR_FEATURES || graphs.len() < GRAPHS_PER_FEATURE * features {
        return of_mean(store, graphs);
    }
    let mut fit = LinearFit::new(features, store.features().targets());
    for &graph in graphs {
        let (summed, values) = summed_features(store, graph)?;
        fit.add(&summed, &values);
    }
    of_residuals(store, graphs, fit.weights())
}

/// The scales of the residuals that these weights leave.
fn of_residuals(store: &Store, graphs: &[u64], weights: Vec<Vec<f64>>) -> Result<Vec<TargetScale>, StoreError> {
    let scales: Vec<TargetScale> =
        weights.into_iter().map(|weights| TargetScale { weights, ..TargetScale::of_units() }).collect();
    let mut residuals = vec![Vec::with_capacity(graphs.len()); scales.len()];
    for &graph in graphs {
        let (summed, values) = summed_features(store, graph)?;
        for ((residuals, scale), value) in residuals.iter_mut().zip(&scales).zip(values) {
            residuals.push(value - scale.linear_prediction(&summed));
        }
    }
    Ok(scales.into_iter().zip(residuals).map(|(scale, residuals)| scale.of_values(&residuals)).collect())
}

/// Sums of a graph's node features, and its targets.
///
/// # Errors
/// A damaged shard.
pub fn summed_features(store: &Store, graph: u64) -> Result<(Vec<f64>, Vec<f64>), StoreError> {
    let view = store.try_graph(graph)?;
    let features = store.features().node_features();
    let mut summed = vec![0.0; features];
    for node in view.node_features.chunks_exact(features.max(1)) {
        summed.iter_mut().zip(node).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    Ok((summed, view.exact_targets().collect()))
}

/// Least squares of targets on the sums of node features, with an intercept.
#[derive(Debug, Clone)]
struct LinearFit {
    features: usize,
    count: f64,
    /// Σ x and Σ y over the graphs.
    sums: [Vec<f64>; 2],
    /// Σ x xᵀ, `[features, features]`.
    squares: Vec<f64>,
    /// Σ x yᵀ, `[features, number of targets]`.
    products: Vec<f64>,
}

impl LinearFit {
    /// A fit of `targets` targets on `features` features.
    fn new(features: usize, targets: usize) -> Self {
        Self {
            features,
            count: 0.0,
            sums: [vec![0.0; features], vec![0.0; targets]],
            squares: vec![0.0; features * features],
            products: vec![0.0; features * targets],
        }
    }

    /// Adds a graph: the sums of its node features, and its targets.
    fn add(&mut self, summed: &[f64], values: &[f64]) {
        self.count += 1.0;
        let [sum_x, sum_y] = &mut self.sums;
        sum_x.iter_mut().zip(summed).for_each(|(sum, value)| *sum += value);
        sum_y.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        for (feature, &value) in summed.iter().enumerate().filter(|(_, value)| **value != 0.0) {
            let row = &mut self.squares[feature * self.features..(feature + 1) * self.features];
            row.iter_mut().zip(summed).for_each(|(sum, other)| *sum += value * other);
            let row = &mut self.products[feature * values.len()..(feature + 1) * values.len()];
            row.iter_mut().zip(values).for_each(|(sum, target)| *sum += value * target);
        }
    }

    /// w of each target.
    fn weights(&self) -> Vec<Vec<f64>> {
        let (features, targets) = (self.features, self.sums[1].len());
        let [mean_x, mean_y] =
            self.sums.each_ref().map(|sums| sums.iter().map(|sum| sum / self.count.max(1.0)).collect::<Vec<f64>>());
        let mut matrix = self.squares.clone();
        for (place, value) in matrix.iter_mut().enumerate() {
            let (row, column) = (place / features, place % features);
            *value -= self.count * mean_x[row] * mean_x[column];
        }
        let trace: f64 = (0..features).map(|feature| self.squares[feature * features + feature]).sum();
        let ridge = RIDGE * trace / features.max(1) as f64 + f64::MIN_POSITIVE;
        (0..features).for_each(|feature| matrix[feature * features + feature] += ridge);
        let factor = cholesky(matrix, features);
        let of_target = |target: usize| {
            let centred = |feature: usize| {
                self.products[feature * targets + target] - self.count * mean_x[feature] * mean_y[target]
            };
            solve(&factor, (0..features).map(centred).collect())
        };
        (0..targets).map(of_target).collect()
    }
}

/// The lower factor L of a positive definite matrix L Lᵀ, `[size, size]`.
fn cholesky(mut matrix: Vec<f64>, size: usize) -> Vec<f64> {
    for column in 0..size {
        for row in column..size {
            let (upper, lower) = (column * size, row * size);
            let known: f64 = (0..column).map(|k| matrix[lower + k] * matrix[upper + k]).sum();
            let rest = matrix[lower + column] - known;
            // Rounding may leave a pivot of a column that others determine at or below 0.
            matrix[lower + column] =
                if row == column { rest.max(f64::MIN_POSITIVE).sqrt() } else { rest / matrix[upper + column] };
        }
    }
    matrix
}

/// x of L Lᵀ x = `right`.
fn solve(factor: &[f64], mut right: Vec<f64>) -> Vec<f64> {
    let size = right.len();
    for row in 0..size {
        let known: f64 = (0..row).map(|k| factor[row * size + k] * right[k]).sum();
        right[row] = (right[row] - known) / factor[row * size + row];
    }
    for row in (0..size).rev() {
        let known: f64 = (row + 1..size).map(|k| factor[k * size + row] * right[k]).sum();
        right[row] = (right[row] - known) / factor[row * size + row];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_linear_target_is_found(
            weights in prop::collection::vec(-5.0f64..5.0, 3),
            offset in -1000.0f64..1000.0,
            rows in prop::collection::vec(prop::collection::vec(0u8..9, 3), 12..40),
        ) {
            let mut fit = LinearFit::new(3, 2);
            let value = |row: &[f64]| offset + row.iter().zip(&weights).map(|(x, w)| x * w).sum::<f64>();
            let rows: Vec<Vec<f64>> = rows.iter().map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect();
            rows.iter().for_each(|row| fit.add(row, &[value(row), 7.0]));
            let [found, constant] = &fit.weights()[..] else { panic!("two targets") };
            prop_assert!(constant.iter().all(|weight| weight.abs() < 1e-6), "{constant:?}");
            // Differences between graphs are explained, whether or not the features determine each weight.
            for row in &rows {
                let change = |weights: &[f64]| {
                    row.iter().zip(&rows[0]).zip(weights).map(|((x, first), w)| (x - first) * w).sum::<f64>()
                };
                prop_assert!((change(found) - change(&weights)).abs() < 1e-4, "{found:?} {weights:?}");
            }
        }
    }

    #[test]
    fn a_feature_that_others_determine_does_no_harm() {
        let mut fit = LinearFit::new(3, 1);
        for graph in 0..20 {
            let (one, other) = (f64::from(graph % 4), f64::from(graph % 7));
            // The last feature is the sum of the others.
            fit.add(&[one, other, one + other], &[2.0 * one - other]);
        }
        let weights = &fit.weights()[0];
        let prediction = |one: f64, other: f64| weights[0] * one + weights[1] * other + weights[2] * (one + other);
        assert!((prediction(3.0, 1.0) - prediction(0.0, 0.0) - 5.0).abs() < 1e-4, "{weights:?}");
    }
}
