//! Targets for the nodes of one large graph from the outputs of its teachers: the mean of their class probabilities, corrected for the
//! shares of the classes, and smoothed over the edges.

use std::sync::Arc;

use kdgat_nodes::{ActivationRows, NodeGraph, ShareCorrection, Smoothing, smoothed};

use super::nodes::{ActivationPlace, NodeTeacher};
use crate::model::ModelError;
use crate::planner::format_bytes;

/// Smallest probability of a target: its logarithm is finite.
const LEAST_PROBABILITY: f32 = 1e-12;

/// Smoothing of targets over the edges, with the labels that are known.
#[derive(Debug, Clone)]
pub struct TargetSmoothing {
    /// Steps and teleport.
    pub smoothing: Smoothing,
    /// `[num_nodes]`: the class of each labelled training node, which replaces the teacher's probabilities before smoothing; negative for
    /// all other nodes.
    pub labels: Arc<Vec<i64>>,
}

impl TargetSmoothing {
    /// A description that differs for other targets of the same teacher.
    pub fn describe(&self) -> String {
        let Smoothing { steps, teleport } = self.smoothing;
        let mut labels = blake3::Hasher::new();
        self.labels.iter().for_each(|label| {
            labels.update(&label.to_le_bytes());
        });
        format!("smoothed in {steps} steps, teleport {teleport:?}, labels {}", &labels.finalize().to_hex()[..12])
    }
}

/// Changes of the teachers' class probabilities before a student learns from them.
#[derive(Debug, Clone, Default)]
pub struct TargetChanges {
    /// Correction for the shares of the classes.
    pub shares: Option<ShareCorrection>,
    /// Smoothing over the edges, after it.
    pub smoothing: Option<TargetSmoothing>,
}

impl TargetChanges {
    /// True if the probabilities stay as they are.
    pub fn is_empty(&self) -> bool {
        self.shares.is_none() && self.smoothing.is_none()
    }

    /// A description that differs for other targets of the same teacher; `None` if nothing is changed.
    pub fn describe(&self) -> Option<String> {
        let shares = self.shares.as_ref().map(ShareCorrection::describe);
        let parts: Vec<String> =
            shares.into_iter().chain(self.smoothing.as_ref().map(TargetSmoothing::describe)).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Refuses targets whose computation does not fit into the memory.
///
/// # Errors
/// More nodes and classes than `place` has memory for, if targets are averaged or changed.
pub(super) fn expect_room(
    teachers: &[NodeTeacher],
    changes: &TargetChanges,
    place: &ActivationPlace,
) -> Result<(), ModelError> {
    let Some(NodeTeacher { config, graph }) = teachers.first() else {
        return Err(ModelError::Other("there is no teacher".into()));
    };
    let (nodes, classes) = (graph.num_nodes(), config.outputs as usize);
    let bytes = (nodes * classes * size_of::<f32>()) as u64;
    if (teachers.len() == 1 && changes.is_empty()) || bytes <= place.memory_bytes {
        return Ok(());
    }
    Err(ModelError::Memory(format!(
        "the probabilities of {nodes} nodes and {classes} classes take {}, and at most {} are used for them; drop --kd-smoothing-steps, \
         --kd-class-shares and --more-teachers, or raise --memory-limit",
        format_bytes(bytes),
        format_bytes(place.memory_bytes)
    )))
}

/// Targets `[num_nodes, classes]` from the logits of one or several teachers. The logits of a single teacher stay as they are without
/// changes; otherwise the targets are logarithms of probabilities.
pub(super) fn targets_of(
    mut outputs: Vec<ActivationRows>,
    graph: &NodeGraph,
    changes: &TargetChanges,
) -> ActivationRows {
    if outputs.len() == 1 && changes.is_empty() {
        return outputs.remove(0);
    }
    let classes = outputs.first().map_or(0, ActivationRows::columns);
    let mut targets = mean_probabilities(&outputs, classes);
    drop(outputs);
    if let Some(shares) = &changes.shares {
        shares.estimate(&targets, classes).correct(&mut targets);
    }
    if let Some(TargetSmoothing { smoothing, labels }) = &changes.smoothing {
        let rows = targets.chunks_exact_mut(classes.max(1)).zip(labels.iter());
        for (row, &label) in rows.filter(|(_, label)| **label >= 0) {
            row.fill(0.0);
            row[label as usize] = 1.0;
        }
        targets = smoothed(graph, &targets, classes, *smoothing);
    }
    targets.iter_mut().for_each(|value| *value = value.max(LEAST_PROBABILITY).ln());
    ActivationRows::in_memory(targets, classes)
}

/// Mean of the class probabilities of several networks, from their logits.
fn mean_probabilities(outputs: &[ActivationRows], classes: usize) -> Vec<f32> {
    let share = 1.0 / outputs.len().max(1) as f32;
    let mut mean = vec![0.0f32; outputs.first().map_or(0, |rows| rows.values().len())];
    let mut row = vec![0.0f32; classes];
    for network in outputs {
        for (logits, sum) in network.values().chunks_exact(classes.max(1)).zip(mean.chunks_exact_mut(classes.max(1))) {
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter_mut().zip(logits).for_each(|(value, logit)| *value = (logit - largest).exp());
            let scale = share / row.iter().sum::<f32>();
            sum.iter_mut().zip(&row).for_each(|(sum, value)| *sum += scale * value);
        }
    }
    mean
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits of a ring of four nodes with two classes.
    fn logits(salt: f32) -> ActivationRows {
        ActivationRows::in_memory((0..8).map(|at| (at as f32 * 1.3 + salt).sin() * 3.0).collect(), 2)
    }

    fn softmax(row: &[f32]) -> Vec<f64> {
        let exponentials: Vec<f64> = row.iter().map(|&value| f64::from(value).exp()).collect();
        exponentials.iter().map(|value| value / exponentials.iter().sum::<f64>()).collect()
    }

    fn assert_probabilities(found: &ActivationRows, expected: &[f64]) {
        assert_eq!(found.values().len(), expected.len());
        for (found, expected) in found.values().iter().zip(expected) {
            assert!((f64::from(found.exp()) - expected).abs() < 1e-6, "{} instead of {expected}", found.exp());
        }
    }

    /// Means of the two teachers' probabilities.
    fn means() -> Vec<f64> {
        let of = |rows: ActivationRows| rows.values().chunks_exact(2).flat_map(softmax).collect::<Vec<f64>>();
        of(logits(0.0)).iter().zip(of(logits(2.0))).map(|(one, other)| (one + other) / 2.0).collect()
    }

    #[test]
    fn logits_of_one_teacher_stay_as_they_are() {
        let graph = NodeGraph::ring(4, 1, 2);
        assert_eq!(targets_of(vec![logits(0.0)], &graph, &TargetChanges::default()).values(), logits(0.0).values());
    }

    #[test]
    fn several_teachers_have_the_mean_of_their_probabilities() {
        let graph = NodeGraph::ring(4, 1, 2);
        assert_probabilities(&targets_of(vec![logits(0.0), logits(2.0)], &graph, &TargetChanges::default()), &means());
    }

    /// Labels replace probabilities before one step around the ring, F = (1 − α)·mean of both neighbours + α·own.
    #[test]
    fn smoothing_spreads_labels_and_probabilities() {
        let graph = NodeGraph::ring(4, 1, 2);
        let smoothing = TargetSmoothing {
            smoothing: Smoothing { steps: 1, teleport: 0.25 },
            labels: Arc::new(vec![-100, 1, -100, -100]),
        };
        let mut before = means();
        before[2..4].copy_from_slice(&[0.0, 1.0]);
        let neighbours: Vec<Vec<u32>> = (0..4).map(|node| graph.neighbours(node).to_vec()).collect();
        let expected: Vec<f64> = (0..8)
            .map(|at| {
                let (node, class) = (at / 2, at % 2);
                let sum: f64 = neighbours[node].iter().map(|&other| before[other as usize * 2 + class]).sum();
                0.75 * sum / neighbours[node].len() as f64 + 0.25 * before[at]
            })
            .collect();
        assert_probabilities(
            &targets_of(
                vec![logits(0.0), logits(2.0)],
                &graph,
                &TargetChanges { smoothing: Some(smoothing.clone()), shares: None },
            ),
            &expected,
        );
        let others = TargetSmoothing { labels: Arc::new(vec![-100; 4]), ..smoothing.clone() };
        assert_ne!(smoothing.describe(), others.describe());
    }

    /// Nodes 0 and 1 train, 2 validates: the class of 3 is not known.
    #[test]
    fn shares_are_corrected_before_smoothing() {
        let graph = NodeGraph::ring(4, 1, 2);
        let shares = ShareCorrection {
            training: Arc::new(vec![0, 1, -100, -100]),
            validation: Arc::new(vec![-100, -100, 0, -100]),
            visible: None,
        };
        let mut expected = mean_probabilities(&[logits(0.0)], 2);
        shares.estimate(&expected, 2).correct(&mut expected);
        let as_f64 = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
        let corrected = TargetChanges { shares: Some(shares.clone()), smoothing: None };
        assert_probabilities(&targets_of(vec![logits(0.0)], &graph, &corrected), &as_f64(&expected));
        let smoothing = Smoothing { steps: 1, teleport: 0.25 };
        let labels = Arc::new(vec![-100; 4]);
        let both = TargetChanges { smoothing: Some(TargetSmoothing { smoothing, labels }), ..corrected.clone() };
        let expected = smoothed(&graph, &expected, 2, smoothing);
        assert_probabilities(&targets_of(vec![logits(0.0)], &graph, &both), &as_f64(&expected));
        let descriptions = [TargetChanges::default(), corrected, both].map(|changes| changes.describe());
        assert!(descriptions[0].is_none() && descriptions[1] != descriptions[2], "{descriptions:?}");
    }

    /// A class without any probability has a finite target.
    #[test]
    fn certain_targets_are_finite() {
        let graph = NodeGraph::ring(4, 1, 2);
        let certain = || ActivationRows::in_memory(vec![200.0, -200.0, -200.0, 200.0, 200.0, -200.0, -200.0, 200.0], 2);
        let found = targets_of(vec![certain(), certain()], &graph, &TargetChanges::default());
        assert!(found.values().iter().all(|value| value.is_finite()), "{:?}", found.values());
    }

    #[test]
    fn targets_that_do_not_fit_into_the_memory_are_refused() {
        use kdgat_nn::{NodeGnnConfig, NodeGnnKind};
        let graph = Arc::new(NodeGraph::ring(4, 1, 2));
        let config = NodeGnnConfig::new(NodeGnnKind::Mlp, [1, 4, 2, 2]);
        let teachers = vec![NodeTeacher { config, graph }; 2];
        let place = |memory_bytes| ActivationPlace { memory_bytes, folder: std::env::temp_dir() };
        let none = TargetChanges::default();
        assert!(expect_room(&teachers, &none, &place(32)).is_ok());
        assert!(expect_room(&teachers[..1], &none, &place(0)).is_ok(), "a single teacher's outputs lie in a file");
        let error = expect_room(&teachers, &none, &place(31)).unwrap_err().to_string();
        assert!(error.contains("4 nodes and 2 classes take 32 B") && error.contains("--memory-limit"), "{error}");
        assert!(expect_room(&[], &none, &place(32)).is_err());
        let smoothing = Smoothing { steps: 1, teleport: 0.5 };
        let smoothing = Some(TargetSmoothing { smoothing, labels: Arc::new(vec![-100; 4]) });
        assert!(expect_room(&teachers[..1], &TargetChanges { smoothing, shares: None }, &place(31)).is_err());
    }
}
