//! Standardisation of edge features: counts, positions and products of degrees differ by orders of magnitude.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::moments::Moments;
use super::{EDGE_FEATURES, Store, StoreError};

/// Mean and standard deviation of each edge feature over a model's training graphs; stored with the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgeScaling {
    /// Mean of each feature.
    pub mean: [f64; EDGE_FEATURES],
    /// Population standard deviation of each feature; 1 for a constant feature.
    pub deviation: [f64; EDGE_FEATURES],
}

impl EdgeScaling {
    /// Computes the scaling over all edges of the given graphs.
    ///
    /// # Errors
    /// When a graph cannot be read.
    pub fn of(store: &Store, graphs: &[u64]) -> Result<Self, StoreError> {
        let mut moments = Moments::new(EDGE_FEATURES);
        for &graph in graphs {
            moments.add_rows(store.try_graph(graph)?.edge_features);
        }
        Ok(Self::from_moments(&moments))
    }

    /// A scaling that changes nothing.
    pub fn identity() -> Self {
        Self { mean: [0.0; EDGE_FEATURES], deviation: [1.0; EDGE_FEATURES] }
    }

    /// The scaling of these moments, which must have [`EDGE_FEATURES`] features.
    pub(super) fn from_moments(moments: &Moments) -> Self {
        let deviation = moments.deviation();
        Self {
            mean: std::array::from_fn(|feature| moments.mean()[feature]),
            deviation: std::array::from_fn(|feature| deviation[feature]),
        }
    }

    /// Describes what is wrong with the values, if anything: a file may have been edited by hand.
    pub fn problem(&self) -> Option<String> {
        let usable = self.mean.iter().all(|mean| mean.is_finite())
            && self.deviation.iter().all(|deviation| deviation.is_finite() && *deviation > 0.0);
        (!usable).then(|| format!("means {:?} and deviations {:?}", self.mean, self.deviation))
    }

    /// Returns `(x − mean) / deviation` for `x` of shape `[num_edges, EDGE_FEATURES]`.
    pub fn apply(&self, edge_attributes: &Tensor) -> Result<Tensor, tch::TchError> {
        let row = |values: &[f64; EDGE_FEATURES]| {
            Tensor::f_from_slice(values)?.f_to_kind(edge_attributes.f_kind()?)?.f_to_device(edge_attributes.device())
        };
        edge_attributes.f_sub(&row(&self.mean)?)?.f_div(&row(&self.deviation)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaled_features_have_mean_zero_and_deviation_one() {
        let value = |edge: usize, feature: usize| match feature {
            0 => 7.0,
            feature => (1000 * feature + edge % (feature + 2)) as f32,
        };
        let rows: Vec<[f32; EDGE_FEATURES]> =
            (0..500).map(|edge| std::array::from_fn(|feature| value(edge, feature))).collect();
        let mut moments = Moments::new(EDGE_FEATURES);
        rows.iter().for_each(|row| moments.add_rows(row));
        let scaled =
            EdgeScaling::from_moments(&moments).apply(&Tensor::from_slice2(&rows).to_kind(tch::Kind::Double)).unwrap();
        let means = Vec::<f64>::try_from(scaled.mean_dim([0i64].as_slice(), false, tch::Kind::Double)).unwrap();
        let deviations = Vec::<f64>::try_from(scaled.std_dim([0i64].as_slice(), false, false)).unwrap();
        assert!(means.iter().all(|mean| mean.abs() < 1e-9), "means {means:?}");
        assert_eq!(deviations[0], 0.0, "a constant feature");
        assert!(deviations[1..].iter().all(|deviation| (deviation - 1.0).abs() < 1e-9), "{deviations:?}");
    }
}
