//! Standardisation of node features, of the rich set or of a dataset of graphs, and of the parameters of listed paths: they may differ by orders of
//! magnitude.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::feature_set::FeatureSet;
use super::moments::Moments;
use super::{GraphView, PathKind, Store, StoreError};

/// Standardised values are clamped to ± this value: a feature with little variance in benign traffic would dominate in an attack.
pub const MOST_DEVIATIONS: f64 = 10.0;

/// Mean and standard deviation of each node feature over the nodes of the (CAN: benign) training graphs, or of each parameter over their listed
/// paths; stored with the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeScaling {
    /// Mean of each node feature, in single precision, which JSON preserves exactly.
    pub mean: Vec<f32>,
    /// Population standard deviation of each node feature; 1 for a constant feature.
    pub deviation: Vec<f32>,
}

impl NodeScaling {
    /// A scaling that only clamps.
    pub fn identity(features: FeatureSet) -> Self {
        let width = features.node_features();
        Self { mean: vec![0.0; width], deviation: vec![1.0; width] }
    }

    /// The scaling of these moments of all node features.
    pub(super) fn from_moments(moments: &Moments) -> Self {
        let single = |values: &[f64]| values.iter().map(|&value| value as f32).collect();
        Self { mean: single(moments.mean()), deviation: single(&moments.deviation()) }
    }

    /// The scaling over all nodes of these graphs; columns that `is_scaled` leaves out stay as they are.
    ///
    /// # Errors
    /// When a graph cannot be read.
    pub fn of_graphs(store: &Store, graphs: &[u64], is_scaled: impl Fn(usize) -> bool) -> Result<Self, StoreError> {
        let width = store.features().node_features();
        let mut scaling = Self::of_rows(store, graphs, width, |view| view.node_features)?;
        for column in (0..scaling.width()).filter(|&column| !is_scaled(column)) {
            (scaling.mean[column], scaling.deviation[column]) = (0.0, 1.0);
        }
        Ok(scaling)
    }

    /// The scaling of the parameters of these graphs' listed paths.
    ///
    /// # Errors
    /// When a graph cannot be read.
    pub fn of_paths(store: &Store, graphs: &[u64], kind: PathKind) -> Result<Self, StoreError> {
        let width = store.features().space().paths.of(kind).map_or(0, |&count| usize::from(count));
        Self::of_rows(store, graphs, width, |view| view.space.paths[kind as usize].parameters)
    }

    fn of_rows<'a>(
        store: &'a Store,
        graphs: &[u64],
        width: usize,
        rows: impl Fn(&GraphView<'a>) -> &'a [f32],
    ) -> Result<Self, StoreError> {
        let mut moments = Moments::new(width);
        for &graph in graphs.iter().filter(|_| width > 0) {
            moments.add_rows(rows(&store.try_graph(graph)?));
        }
        Ok(Self::from_moments(&moments))
    }

    /// Number of node features.
    pub fn width(&self) -> usize {
        self.mean.len()
    }

    /// Describes what is wrong with a scaling of the rich set, if anything.
    pub fn problem(&self) -> Option<String> {
        self.problem_of_width(FeatureSet::Rich.node_features())
    }

    /// Describes what is wrong with a scaling of `width` features, if anything.
    pub fn problem_of_width(&self, width: usize) -> Option<String> {
        if [self.mean.len(), self.deviation.len()] != [width; 2] {
            let widths = (self.mean.len(), self.deviation.len());
            return Some(format!("{} means and {} deviations", widths.0, widths.1));
        }
        let usable = self.mean.iter().all(|mean| mean.is_finite())
            && self.deviation.iter().all(|deviation| deviation.is_finite() && *deviation > 0.0);
        (!usable).then(|| "a mean or deviation is not finite, or a deviation is not positive".to_owned())
    }

    /// Returns `(x − mean) / deviation` for `x` of shape `[num_nodes, width]`, clamped to ±[`MOST_DEVIATIONS`].
    pub fn apply(&self, continuous: &Tensor) -> Result<Tensor, tch::TchError> {
        let row = |values: &[f32]| Tensor::f_from_slice(values)?.f_to_device(continuous.device());
        let mut scaled = continuous.f_to_kind(Kind::Float)?.f_sub(&row(&self.mean)?)?;
        scaled.f_div_(&row(&self.deviation)?)?.f_clamp_(-MOST_DEVIATIONS, MOST_DEVIATIONS)
    }

    /// Factor and offset that convert values of this scale to the scale of `other`: `x * factor + offset`; `None` if both are equal.
    pub fn translation(&self, other: &Self) -> Option<[Vec<f32>; 2]> {
        if self == other {
            return None;
        }
        let factor = self.deviation.iter().zip(&other.deviation).map(|(own, other)| own / other).collect();
        let means = self.mean.iter().zip(&other.mean).zip(&other.deviation);
        Some([factor, means.map(|((own, other), deviation)| (own - other) / deviation).collect()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaled_features_have_mean_zero_and_deviation_one_and_are_cut() {
        let width = FeatureSet::Rich.node_features();
        let rows: Vec<f32> =
            (0..500 * width).map(|at| (1000 * (at % width) + at / width % (at % width + 2)) as f32).collect();
        let mut moments = Moments::new(width);
        moments.add_rows(&rows);
        let scaling = NodeScaling::from_moments(&moments);
        assert_eq!(scaling.problem(), None);
        let x = Tensor::from_slice(&rows).view([500, width as i64]);
        let scaled = scaling.apply(&x).unwrap();
        let means = Vec::<f32>::try_from(scaled.mean_dim([0i64].as_slice(), false, Kind::Float)).unwrap();
        let deviations = Vec::<f32>::try_from(scaled.std_dim([0i64].as_slice(), false, false)).unwrap();
        assert!(means.iter().all(|mean| mean.abs() < 2e-3), "means {means:?}");
        assert!(deviations.iter().all(|deviation| (deviation - 1.0).abs() < 1e-3), "{deviations:?}");
        let far = scaling.apply(&(x + 1e6)).unwrap();
        assert_eq!((far.min().double_value(&[]), far.max().double_value(&[])), (10.0, 10.0));
    }

    #[test]
    fn a_translation_leads_from_scale_to_scale() {
        let width = FeatureSet::Rich.node_features();
        let (mut one, mut other) = (NodeScaling::identity(FeatureSet::Rich), NodeScaling::identity(FeatureSet::Rich));
        assert_eq!(one.translation(&other), None);
        one.mean.fill(3.0);
        one.deviation.fill(2.0);
        other.deviation.fill(4.0);
        let [factor, offset] = one.translation(&other).unwrap();
        let x = Tensor::full([2, width as i64], 5.0, (Kind::Float, tch::Device::Cpu));
        let moved = one.apply(&x).unwrap() * Tensor::from_slice(&factor) + Tensor::from_slice(&offset);
        assert_eq!(moved, other.apply(&x).unwrap());
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        let mut scaling = NodeScaling::identity(FeatureSet::Rich);
        scaling.deviation[3] = 0.0;
        assert!(scaling.problem().unwrap().contains("deviation"));
        scaling.mean.pop();
        assert!(scaling.problem().unwrap().contains("34 means"));
    }
}
