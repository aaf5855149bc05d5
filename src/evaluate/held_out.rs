//! Validation windows that a model has not been trained on, in a store that is cut otherwise than the model's own.
//!
//! A store splits each training log into blocks of windows. Another stride, window or validation fraction moves the borders of
//! these blocks, so that validation windows of one store lie in training blocks of the other. A threshold that is chosen on
//! such windows is too low: the model knows them.

use std::ops::Range;

use super::{EvaluateError, TrainedModel};
use crate::graph::Store;
use crate::graph::split::FileSplit;
use crate::graph::window::count_windows;

/// How the store was cut and split that a model was trained on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainedSplit {
    pub window: usize,
    pub stride: usize,
    pub validation_fraction: f64,
}

impl TrainedSplit {
    /// Frames of a log that the training windows read, by position: those of a window, and the one after it.
    pub fn training_frames(&self, frames: u64) -> Vec<Range<u64>> {
        let (window, stride) = (self.window as u64, self.stride as u64);
        let graphs = count_windows(frames, window, stride);
        let split = FileSplit::new(graphs, self.window, self.stride, self.validation_fraction);
        split.train.iter().map(|part| part.start * stride..(part.end - 1) * stride + window + 1).collect()
    }
}

/// Says of each of these graphs of training logs, ascending, whether it shares no frame with a training window of the model.
///
/// A model of another dataset has seen none of them. Of one that was trained on this store, they are held out by the store's own
/// split. `None`: the logs are those of the model's training, but it does not say how its store was split.
///
/// # Errors
/// When a graph cannot be read.
pub fn held_out(model: &TrainedModel, store: &Store, graphs: &[u64]) -> Result<Option<Vec<bool>>, EvaluateError> {
    let (own, manifest) = (&model.description.dataset, store.manifest());
    if own.digest == store.digest() || own.name != manifest.dataset {
        return Ok(Some(vec![true; graphs.len()]));
    }
    let Some(split) = model.split else { return Ok(None) };
    let window = manifest.options.window as u64;
    let (mut log, mut trained) = (None, Vec::new());
    let mut held_out = Vec::with_capacity(graphs.len());
    for &graph in graphs {
        let entry = store.log_of(graph);
        if log != Some(entry.first_graph) {
            log = Some(entry.first_graph);
            trained = split.training_frames(entry.report.frames);
        }
        let first = store.try_graph(graph)?.first_frame;
        let end = first + window + 1;
        held_out.push(trained.iter().all(|part| end <= part.start || part.end <= first));
    }
    Ok(Some(held_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_windows_reach_as_far_as_their_last_edge() {
        let ends = |stride: usize, validation_fraction: f64, frames: u64| {
            let split = TrainedSplit { window: 100, stride, validation_fraction };
            split.training_frames(frames).into_iter().map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        // 10 windows, of which the last two are for validation and the one before them for nothing.
        assert_eq!(ends(100, 0.2, 1001), [(0, 701)]);
        assert_eq!(ends(25, 0.2, 1001), [(0, 726)]);
        assert_eq!(ends(100, 0.0, 1001), [(0, 1001)]);
        assert_eq!(ends(100, 0.2, 100), []);
    }
}
