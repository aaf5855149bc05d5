//! Scaling of states: standardised on the graphs that the agent is trained on, and clipped.

use serde::{Deserialize, Serialize};

use super::states::{STATE, STATE_COLUMNS};
use super::{FusionError, StateFile};

/// Clipping limit in standard deviations: errors in an attack can be a thousand times the usual ones.
const LIMIT: f64 = 10.0;
/// Number of values in a state.
pub const VALUES: usize = STATE.len();

/// Mean and standard deviation of each value over the graphs that the agent is trained on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateScaling {
    mean: Vec<f64>,
    deviation: Vec<f64>,
}

impl StateScaling {
    /// Computes mean and deviation over these graphs, in two passes.
    pub fn of(states: &StateFile, graphs: &[u64]) -> Result<Self, FusionError> {
        if graphs.is_empty() {
            return Err(FusionError::Input(
                "there is no validation graph to train the agent on; raise --validation-fraction".into(),
            ));
        }
        let sums = |value: &dyn Fn(f64, usize) -> f64| {
            let mut sums = [0.0; VALUES];
            for &graph in graphs {
                let row = states.row(graph);
                sums.iter_mut().enumerate().for_each(|(column, sum)| *sum += value(f64::from(row[column]), column));
            }
            sums.map(|sum| sum / graphs.len() as f64)
        };
        let mean = sums(&|value, _| value);
        let variance = sums(&|value, column| (value - mean[column]).powi(2));
        // A constant value carries no information and becomes 0.
        let deviation = variance.map(|variance| if variance > 0.0 { variance.sqrt() } else { 1.0 });
        Ok(Self { mean: mean.to_vec(), deviation: deviation.to_vec() })
    }

    /// True if it has all values (it comes from a file).
    pub fn is_whole(&self) -> bool {
        self.mean.len() == VALUES && self.deviation.len() == VALUES
    }

    /// Scaled state of a graph from its stored columns.
    pub fn apply(&self, row: &[f32]) -> [f32; VALUES] {
        debug_assert_eq!(row.len(), STATE_COLUMNS);
        let value = |column: usize| (f64::from(row[column]) - self.mean[column]) / self.deviation[column];
        std::array::from_fn(|column| value(column).clamp(-LIMIT, LIMIT) as f32)
    }
}
