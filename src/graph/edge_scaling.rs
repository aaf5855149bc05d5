//! How edge features are brought to one scale: counts, positions and products of degrees lie orders of magnitude apart.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::{EDGE_FEATURES, Store, StoreError};

/// Mean and deviation of each edge feature over the graphs that a model was trained on. They travel with the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgeScaling {
    pub mean: [f64; EDGE_FEATURES],
    /// 1 for a feature that never changes.
    pub deviation: [f64; EDGE_FEATURES],
}

impl EdgeScaling {
    /// Over all edges of the given graphs.
    ///
    /// # Errors
    /// A graph that cannot be read.
    pub fn of(store: &Store, graphs: &[u64]) -> Result<Self, StoreError> {
        let mut sums = Sums::default();
        for &graph in graphs {
            let features = store.try_graph(graph)?.edge_features;
            features.chunks_exact(EDGE_FEATURES).for_each(|edge| sums.add(edge));
        }
        Ok(sums.scaling())
    }

    /// `(x − mean) / deviation` of `[num_edges, EDGE_FEATURES]`.
    pub fn apply(&self, edge_attributes: &Tensor) -> Result<Tensor, tch::TchError> {
        let row = |values: &[f64; EDGE_FEATURES]| {
            Tensor::f_from_slice(values)?.f_to_kind(edge_attributes.f_kind()?)?.f_to_device(edge_attributes.device())
        };
        edge_attributes.f_sub(&row(&self.mean)?)?.f_div(&row(&self.deviation)?)
    }
}

/// Running mean and squared deviations (Welford 1962): no cancellation, however many edges.
#[derive(Default)]
struct Sums {
    count: f64,
    mean: [f64; EDGE_FEATURES],
    squares: [f64; EDGE_FEATURES],
}

impl Sums {
    fn add(&mut self, edge: &[f32]) {
        self.count += 1.0;
        for (feature, &value) in edge.iter().enumerate() {
            let difference = f64::from(value) - self.mean[feature];
            self.mean[feature] += difference / self.count;
            self.squares[feature] += difference * (f64::from(value) - self.mean[feature]);
        }
    }

    fn scaling(&self) -> EdgeScaling {
        let deviation = self.squares.map(|squares| {
            let deviation = (squares / self.count.max(1.0)).sqrt();
            if deviation > 1e-12 { deviation } else { 1.0 }
        });
        EdgeScaling { mean: self.mean, deviation }
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
        let mut sums = Sums::default();
        rows.iter().for_each(|row| sums.add(row));
        let scaled = sums.scaling().apply(&Tensor::from_slice2(&rows).to_kind(tch::Kind::Double)).unwrap();
        let means = Vec::<f64>::try_from(scaled.mean_dim([0i64].as_slice(), false, tch::Kind::Double)).unwrap();
        let deviations = Vec::<f64>::try_from(scaled.std_dim([0i64].as_slice(), false, false)).unwrap();
        assert!(means.iter().all(|mean| mean.abs() < 1e-9), "means {means:?}");
        assert_eq!(deviations[0], 0.0, "a constant feature");
        assert!(deviations[1..].iter().all(|deviation| (deviation - 1.0).abs() < 1e-9), "{deviations:?}");
    }
}
