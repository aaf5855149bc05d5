//! Maps the VGAE's error to an anomaly between 0 and 1: its rank among the errors of the benign graphs that the agent, but not
//! the VGAE, is trained on.
//!
//! The share is linear between two of these errors. Above the largest error e_max it continues as 1 − e_max / (e·(n + 1)), so
//! larger errors never tie; below the smallest it falls linearly to 0.

use tch::Tensor;

use super::FusionError;
use kdgat_nn::ModelError;
use kdgat_nn::weights::StateDict;

/// Number of errors stored of a larger distribution: all of the highest, and about as many evenly spaced ones below.
const TOP_KNOTS: usize = 8192;
const OTHER_KNOTS: usize = 8192;

/// Distribution of benign errors.
#[derive(Debug, Clone, PartialEq)]
pub struct AnomalyScale {
    /// Distinct errors, ascending.
    errors: Vec<f64>,
    /// Share of each error, ascending: k / (n + 1) for the k-th of n; equal errors get the mean.
    shares: Vec<f64>,
}

impl AnomalyScale {
    /// Fits the scale to the errors of the benign graphs that the agent is trained on.
    pub fn of(mut errors: Vec<f64>) -> Result<Self, FusionError> {
        errors.retain(|error| error.is_finite());
        if errors.is_empty() {
            let text = "no validation graph to train the agent on is attack-free, but the anomaly scale needs such graphs; raise \
                        --validation-fraction, or put logs into train_01_attack_free/";
            return Err(FusionError::Input(text.into()));
        }
        errors.sort_unstable_by(f64::total_cmp);
        let count = errors.len();
        let (mut knots, mut shares) = (Vec::new(), Vec::new());
        let mut first = 0;
        for run in errors.chunk_by(|a, b| a == b) {
            let last = first + run.len();
            let mean_rank = 0.5 * (first + 1 + last) as f64;
            let stride = (count.saturating_sub(TOP_KNOTS) / OTHER_KNOTS).max(1);
            let is_kept = last + TOP_KNOTS > count || first == 0 || first / stride != last / stride;
            if is_kept {
                knots.push(run[0]);
                shares.push(mean_rank / (count + 1) as f64);
            }
            first = last;
        }
        Ok(Self { errors: knots, shares })
    }

    /// Anomaly of an error, in [0, 1).
    pub fn anomaly(&self, error: f64) -> f64 {
        let above = self.errors.partition_point(|knot| *knot < error);
        let (last, largest) = (self.errors.len() - 1, self.errors[self.errors.len() - 1]);
        if above > last {
            // Errors are not negative; a distribution of zeros has no tail.
            return if largest > 0.0 { 1.0 - (1.0 - self.shares[last]) * largest / error } else { self.shares[last] };
        }
        let (low, low_share) = if above == 0 { (0.0, 0.0) } else { (self.errors[above - 1], self.shares[above - 1]) };
        let (high, high_share) = (self.errors[above], self.shares[above]);
        if high > low {
            low_share + (high_share - low_share) * ((error - low) / (high - low)).max(0.0)
        } else {
            high_share
        }
    }

    /// Converts the scale to tensors of a checkpoint.
    pub fn tensors(&self) -> StateDict {
        StateDict::from([
            ("anomaly.errors".to_owned(), Tensor::from_slice(&self.errors)),
            ("anomaly.shares".to_owned(), Tensor::from_slice(&self.shares)),
        ])
    }

    /// True if the checkpoint tensor `name` belongs to an anomaly scale.
    pub fn owns(name: &str) -> bool {
        name.starts_with("anomaly.")
    }

    /// Reads the scale from the tensors of a checkpoint.
    pub fn from_tensors(tensors: &StateDict) -> Result<Self, ModelError> {
        let column = |name: &str| {
            let missing = || ModelError::MissingTensor { name: name.to_owned(), expected: vec![-1] };
            Ok::<_, ModelError>(Vec::<f64>::try_from(tensors.get(name).ok_or_else(missing)?)?)
        };
        let (errors, shares) = (column("anomaly.errors")?, column("anomaly.shares")?);
        if errors.is_empty() || errors.len() != shares.len() {
            let (name, found) = ("anomaly.shares".to_owned(), vec![shares.len() as i64]);
            return Err(ModelError::TensorShape { name, found, expected: vec![errors.len().max(1) as i64] });
        }
        Ok(Self { errors, shares })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_of_known_errors() {
        let scale = AnomalyScale::of(vec![4.0, 1.0, 2.0, 2.0]).unwrap();
        for (error, expected) in [(0.0, 0.0), (0.5, 0.1), (1.0, 0.2), (2.0, 0.5), (3.0, 0.65), (4.0, 0.8), (8.0, 0.9)] {
            assert!((scale.anomaly(error) - expected).abs() < 1e-12, "{error}: {}", scale.anomaly(error));
        }
        assert!(AnomalyScale::of(Vec::new()).is_err());
        assert_eq!(AnomalyScale::from_tensors(&scale.tensors()).unwrap(), scale);
    }

    #[test]
    fn a_long_distribution_is_thinned_below_its_top() {
        let errors: Vec<f64> = (1..=200_000).map(f64::from).collect();
        let scale = AnomalyScale::of(errors).unwrap();
        assert!(scale.errors.len() <= TOP_KNOTS + 2 * OTHER_KNOTS, "{}", scale.errors.len());
        for error in [1.0f64, 777.5, 123_456.0, 199_999.0, 200_000.0] {
            let expected = error / 200_001.0;
            assert!((scale.anomaly(error) - expected).abs() < 1e-9, "{error}");
        }
    }

    proptest! {
        #[test]
        fn larger_errors_are_never_less_anomalous(
            errors in prop::collection::vec(0.0f64..10.0, 1..60), a in 0.0f64..100.0, b in 0.0f64..100.0,
        ) {
            let scale = AnomalyScale::of(errors).unwrap();
            let (low, high) = (scale.anomaly(a.min(b)), scale.anomaly(a.max(b)));
            prop_assert!(low <= high, "{low} > {high}");
            prop_assert!((0.0..1.0).contains(&low) && (0.0..1.0).contains(&high));
        }
    }
}
