//! Logistic regression on the scaled state, a baseline of the fusion.
//!
//! Minimises Σ ln(1 + exp(−y·z)) + ½λ‖w‖², z = w·x + b, y = ±1, by Newton's method (iteratively reweighted least squares), halving
//! steps that do not lower the loss. λ = 1; b is not penalised. Without the penalty, separable classes have no solution.

use super::scaling::VALUES;

const RIDGE: f64 = 1.0;
/// Number of weights: one per value, and the constant's.
const COLUMNS: usize = VALUES + 1;
const MAX_STEPS: usize = 50;
/// Relative Newton decrement at which the fit has converged.
const ENOUGH: f64 = 1e-9;

/// A fitted model.
#[derive(Debug, Clone, PartialEq)]
pub struct Logistic {
    /// Weights of the values, then that of the constant.
    pub weights: [f64; COLUMNS],
}

/// A scaled state, and true if its graph has an attack.
pub type Labelled = ([f32; VALUES], bool);

impl Logistic {
    /// Number of trained parameters.
    pub const PARAMETERS: usize = COLUMNS;

    /// Fits the model to states, which it iterates over several times.
    pub fn fit<I: Iterator<Item = Labelled>>(states: impl Fn() -> I) -> Self {
        let mut model = Self { weights: [0.0; COLUMNS] };
        let mut loss = model.loss(states());
        for _ in 0..MAX_STEPS {
            let (gradient, hessian) = model.derivatives(states());
            let Some(step) = solve(hessian, gradient) else { break };
            let decrement: f64 = step.iter().zip(gradient).map(|(step, slope)| step * slope).sum();
            if decrement < ENOUGH * (1.0 + loss) {
                break;
            }
            let moved = |share: f64| Self {
                weights: std::array::from_fn(|column| model.weights[column] - share * step[column]),
            };
            let tried = (0..30).map(|halvings| moved(0.5f64.powi(halvings))).map(|next| (next.loss(states()), next));
            match tried.into_iter().find(|(next, _)| *next < loss) {
                Some((next, better)) => (loss, model) = (next, better),
                None => break,
            }
        }
        model
    }

    /// Log odds of an attack.
    pub fn log_odds(&self, state: &[f32; VALUES]) -> f64 {
        columns(state).iter().zip(self.weights).map(|(value, weight)| value * weight).sum()
    }

    /// P(attack).
    pub fn probability(&self, state: &[f32; VALUES]) -> f64 {
        1.0 / (1.0 + (-self.log_odds(state)).exp())
    }

    fn loss(&self, states: impl Iterator<Item = Labelled>) -> f64 {
        let of_state = |(state, attack): Labelled| {
            let margin = if attack { self.log_odds(&state) } else { -self.log_odds(&state) };
            // ln(1 + exp(−margin)) without overflow.
            (-margin).max(0.0) + (-margin.abs()).exp().ln_1p()
        };
        states.map(of_state).sum::<f64>()
            + 0.5 * RIDGE * self.weights[..VALUES].iter().map(|weight| weight * weight).sum::<f64>()
    }

    fn derivatives(&self, states: impl Iterator<Item = Labelled>) -> ([f64; COLUMNS], [[f64; COLUMNS]; COLUMNS]) {
        let mut gradient = [0.0; COLUMNS];
        let mut hessian = [[0.0; COLUMNS]; COLUMNS];
        for (state, attack) in states {
            let probability = self.probability(&state);
            let (error, curvature) = (probability - f64::from(u8::from(attack)), probability * (1.0 - probability));
            let columns = columns(&state);
            for row in 0..COLUMNS {
                gradient[row] += error * columns[row];
                (0..=row).for_each(|column| hessian[row][column] += curvature * columns[row] * columns[column]);
            }
        }
        for column in 0..VALUES {
            gradient[column] += RIDGE * self.weights[column];
            hessian[column][column] += RIDGE;
        }
        // With a single class, the constant has no curvature left.
        hessian[VALUES][VALUES] += 1e-9;
        (gradient, hessian)
    }
}

fn columns(state: &[f32; VALUES]) -> [f64; COLUMNS] {
    std::array::from_fn(|column| state.get(column).map_or(1.0, |&value| f64::from(value)))
}

/// Solves a symmetric positive definite system from its lower triangle (Cholesky); `None` if it is not positive definite.
fn solve(mut matrix: [[f64; COLUMNS]; COLUMNS], mut vector: [f64; COLUMNS]) -> Option<[f64; COLUMNS]> {
    for row in 0..COLUMNS {
        for column in 0..=row {
            let known: f64 = (0..column).map(|k| matrix[row][k] * matrix[column][k]).sum();
            let left = matrix[row][column] - known;
            matrix[row][column] = if row == column {
                if left.is_nan() || left <= 0.0 {
                    return None;
                }
                left.sqrt()
            } else {
                left / matrix[column][column]
            };
        }
    }
    for row in 0..COLUMNS {
        let known: f64 = (0..row).map(|k| matrix[row][k] * vector[k]).sum();
        vector[row] = (vector[row] - known) / matrix[row][row];
    }
    for row in (0..COLUMNS).rev() {
        let known: f64 = (row + 1..COLUMNS).map(|k| matrix[k][row] * vector[k]).sum();
        vector[row] = (vector[row] - known) / matrix[row][row];
    }
    Some(vector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_base::random::{self, Purpose};

    fn states(count: u64) -> Vec<Labelled> {
        let unit = |graph: u64, column: usize| random::unit(5, Purpose::Step, column as u64, graph);
        let one = |graph: u64| {
            let state: [f32; VALUES] = std::array::from_fn(|column| (2.0 * unit(graph, column) - 1.0) as f32);
            let odds = 3.0 * f64::from(state[0]) - 2.0 * f64::from(state[7]) + 0.5;
            (state, unit(graph, 99) < 1.0 / (1.0 + (-odds).exp()))
        };
        (0..count).map(one).collect()
    }

    /// At the minimum of a convex function the gradient is zero.
    #[test]
    fn the_gradient_vanishes_and_the_weights_are_found() {
        let states = states(20_000);
        let model = Logistic::fit(|| states.iter().copied());
        let (gradient, _) = model.derivatives(states.iter().copied());
        assert!(gradient.iter().all(|slope| slope.abs() < 1e-2), "{gradient:?}");
        let close = |column: usize, expected: f64| {
            assert!((model.weights[column] - expected).abs() < 0.15, "{column}: {}", model.weights[column]);
        };
        close(0, 3.0);
        close(7, -2.0);
        close(3, 0.0);
        close(VALUES, 0.5);
    }

    #[test]
    fn separable_and_single_classes_have_finite_weights() {
        let separable: Vec<Labelled> = states(200).into_iter().map(|(state, _)| (state, state[2] > 0.0)).collect();
        let model = Logistic::fit(|| separable.iter().copied());
        assert!(model.weights.iter().all(|weight| weight.is_finite() && weight.abs() < 100.0), "{model:?}");
        let right = separable.iter().filter(|(state, attack)| (model.probability(state) > 0.5) == *attack).count();
        assert!(right >= 195, "{right} of 200");
        let single: Vec<Labelled> = states(50).into_iter().map(|(state, _)| (state, false)).collect();
        let model = Logistic::fit(|| single.iter().copied());
        assert!(model.weights.iter().all(|weight| weight.is_finite()) && model.probability(&single[0].0) < 0.1);
    }
}
