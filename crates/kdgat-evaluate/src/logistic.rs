//! Logistic regression, a baseline of models that classify.
//!
//! Minimises Σ ln(1 + exp(−y·z)) + ½λ‖w‖², z = w·x + b, y = ±1, by Newton's method (iteratively reweighted least squares), halving
//! steps that do not lower the loss. λ = 1; b is not penalised. Without the penalty, separable classes have no solution.

const RIDGE: f64 = 1.0;
const MAX_STEPS: usize = 50;
/// Relative Newton decrement at which the fit has converged.
const ENOUGH: f64 = 1e-9;

/// A fitted model.
#[derive(Debug, Clone, PartialEq)]
pub struct Logistic {
    /// Weights of the values, then that of the constant.
    pub weights: Vec<f64>,
}

/// Gradient of a loss, and the lower triangle of its second derivatives.
type Derivatives = (Vec<f64>, Vec<Vec<f64>>);

impl Logistic {
    /// Fits the model to rows of `values` scaled numbers, each with true for one of the two classes, which it iterates over several times.
    pub fn fit<R: AsRef<[f32]>, I: Iterator<Item = (R, bool)>>(values: usize, rows: impl Fn() -> I) -> Self {
        let mut model = Self { weights: vec![0.0; values + 1] };
        let mut loss = model.loss(rows());
        for _ in 0..MAX_STEPS {
            let (gradient, hessian) = model.derivatives(rows());
            let Some(step) = solve(hessian, gradient.clone()) else { break };
            let decrement: f64 = step.iter().zip(&gradient).map(|(step, slope)| step * slope).sum();
            if decrement < ENOUGH * (1.0 + loss) {
                break;
            }
            let moved = |share: f64| Self {
                weights: model.weights.iter().zip(&step).map(|(weight, step)| weight - share * step).collect(),
            };
            let tried = (0..30).map(|halvings| moved(0.5f64.powi(halvings))).map(|next| (next.loss(rows()), next));
            match tried.into_iter().find(|(next, _)| *next < loss) {
                Some((next, better)) => (loss, model) = (next, better),
                None => break,
            }
        }
        model
    }

    /// Log odds of the class.
    pub fn log_odds(&self, row: &[f32]) -> f64 {
        columns(row).zip(&self.weights).map(|(value, weight)| value * weight).sum()
    }

    /// P(class).
    pub fn probability(&self, row: &[f32]) -> f64 {
        1.0 / (1.0 + (-self.log_odds(row)).exp())
    }

    fn loss<R: AsRef<[f32]>>(&self, rows: impl Iterator<Item = (R, bool)>) -> f64 {
        let of_row = |(row, is_of_class): (R, bool)| {
            let margin = if is_of_class { self.log_odds(row.as_ref()) } else { -self.log_odds(row.as_ref()) };
            // ln(1 + exp(−margin)) without overflow.
            (-margin).max(0.0) + (-margin.abs()).exp().ln_1p()
        };
        let weights = &self.weights[..self.weights.len() - 1];
        rows.map(of_row).sum::<f64>() + 0.5 * RIDGE * weights.iter().map(|weight| weight * weight).sum::<f64>()
    }

    fn derivatives<R: AsRef<[f32]>>(&self, rows: impl Iterator<Item = (R, bool)>) -> Derivatives {
        let count = self.weights.len();
        let mut gradient = vec![0.0; count];
        let mut hessian = vec![vec![0.0; count]; count];
        for (row, is_of_class) in rows {
            let row = row.as_ref();
            let probability = self.probability(row);
            let (error, curvature) =
                (probability - f64::from(u8::from(is_of_class)), probability * (1.0 - probability));
            let columns: Vec<f64> = columns(row).collect();
            for row in 0..count {
                gradient[row] += error * columns[row];
                (0..=row).for_each(|column| hessian[row][column] += curvature * columns[row] * columns[column]);
            }
        }
        let constant = count - 1;
        for column in 0..constant {
            gradient[column] += RIDGE * self.weights[column];
            hessian[column][column] += RIDGE;
        }
        // With a single class, the constant has no curvature left.
        hessian[constant][constant] += 1e-9;
        (gradient, hessian)
    }
}

/// The values of a row, and 1 for the constant.
fn columns(row: &[f32]) -> impl Iterator<Item = f64> {
    row.iter().map(|&value| f64::from(value)).chain(std::iter::once(1.0))
}

/// Solves a symmetric positive definite system from its lower triangle (Cholesky); `None` if it is not positive definite.
fn solve(mut matrix: Vec<Vec<f64>>, mut vector: Vec<f64>) -> Option<Vec<f64>> {
    let count = vector.len();
    for row in 0..count {
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
    for row in 0..count {
        let known: f64 = (0..row).map(|k| matrix[row][k] * vector[k]).sum();
        vector[row] = (vector[row] - known) / matrix[row][row];
    }
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|k| matrix[k][row] * vector[k]).sum();
        vector[row] = (vector[row] - known) / matrix[row][row];
    }
    Some(vector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_base::random::{self, Purpose};

    const VALUES: usize = 9;
    type Labelled = ([f32; VALUES], bool);

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
        let model = Logistic::fit(VALUES, || states.iter().copied());
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
        let model = Logistic::fit(VALUES, || separable.iter().copied());
        assert!(model.weights.iter().all(|weight| weight.is_finite() && weight.abs() < 100.0), "{model:?}");
        let right = separable.iter().filter(|(state, attack)| (model.probability(state) > 0.5) == *attack).count();
        assert!(right >= 195, "{right} of 200");
        let single: Vec<Labelled> = states(50).into_iter().map(|(state, _)| (state, false)).collect();
        let model = Logistic::fit(VALUES, || single.iter().copied());
        assert!(model.weights.iter().all(|weight| weight.is_finite()) && model.probability(&single[0].0) < 0.1);
    }
}
