//! Finds validation windows that a model was not trained on, in a store cut differently from the model's own.
//!
//! A store splits each training log into blocks of windows. Another stride, window or validation fraction moves the block
//! boundaries, so validation windows of one store overlap training blocks of the other. A threshold chosen on such windows is
//! too low, because the model has trained on them.

use std::ops::Range;

use super::{EvaluateError, TrainedModel};
use kdgat_graph::division::{LogFacts, LogUse, uses_of};
use kdgat_graph::split::frames_of;
use kdgat_graph::store::manifest::Manifest;
use kdgat_graph::window::count_windows;
use kdgat_graph::{Store, Validation};

/// Windowing and split of the store that a model was trained on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainedSplit {
    /// Frames per window.
    pub window: usize,
    /// Frames from the start of one window to the start of the next.
    pub stride: usize,
    /// Share of each training log held out for validation, between 0 and 1.
    pub validation_fraction: f64,
    /// Rule that chose the validation data.
    pub validation: Validation,
}

impl TrainedSplit {
    /// Use of each log of a store in the training. Logs whose use cannot be told are taken to have trained.
    fn uses(&self, manifest: &Manifest) -> Vec<LogUse> {
        let facts = manifest.files.iter().map(|entry| LogFacts {
            folder: &entry.folder,
            name: &entry.name,
            role: entry.role,
            bytes: entry.source.bytes,
            has_attacks: entry.report.attack_frames > 0,
            is_synthetic: entry.synthetic.is_some(),
        });
        uses_of(&facts.collect::<Vec<_>>(), self.validation, self.validation_fraction)
            .unwrap_or_else(|_| vec![LogUse::Training; manifest.files.len()])
    }

    /// Frame ranges that the training windows of a log with this use read: their own frames and the one after each window.
    pub fn training_frames(&self, log_use: LogUse, frames: u64) -> Vec<Range<u64>> {
        let (window, stride) = (self.window as u64, self.stride as u64);
        let graphs = count_windows(frames, window, stride);
        let split = log_use.split(graphs, self.window, self.stride, self.validation_fraction);
        split.train.iter().map(|stretch| frames_of(stretch, self.window, self.stride)).collect()
    }
}

/// Returns for each graph of training logs (`graphs`, ascending) whether it shares no frame with a training window of the model.
///
/// All graphs are held out for a model of another dataset, and for a model trained on this very store, whose own split holds
/// them out. Returns `None` if the logs are those of the model's training but its split is unknown.
///
/// # Errors
/// Fails if a graph cannot be read.
pub fn held_out(model: &TrainedModel, store: &Store, graphs: &[u64]) -> Result<Option<Vec<bool>>, EvaluateError> {
    let (own, manifest) = (&model.description.dataset, store.manifest());
    if own.digest == store.digest() || own.name != manifest.dataset {
        return Ok(Some(vec![true; graphs.len()]));
    }
    let Some(split) = model.split else { return Ok(None) };
    let window = manifest.options.window as u64;
    let uses = split.uses(manifest);
    let (mut log, mut trained) = (None, Vec::new());
    let mut held_out = Vec::with_capacity(graphs.len());
    for &graph in graphs {
        let entry = store.log_of(graph);
        if log != Some(entry.first_graph) {
            log = Some(entry.first_graph);
            // Synthetic logs have the frames of their source, and training windows only where the source has some.
            let (folder, name, frames) = match &entry.synthetic {
                Some(origin) => (&origin.folder, &origin.name, origin.frames),
                None => (&entry.folder, &entry.name, entry.report.frames),
            };
            let position = manifest.files.iter().position(|file| (&file.folder, &file.name) == (folder, name));
            let log_use = position.and_then(|position| uses.get(position)).copied().unwrap_or(LogUse::Training);
            trained = split.training_frames(log_use, frames);
        }
        let first = store.try_graph(graph)?.first_frame;
        let own = first..first + window + 1;
        let frames = entry.synthetic.as_ref().map_or(own.clone(), |origin| origin.source_of(&own));
        held_out.push(trained.iter().all(|part| frames.end <= part.start || part.end <= frames.start));
    }
    Ok(Some(held_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_windows_reach_as_far_as_their_last_edge() {
        let ends = |stride: usize, validation_fraction: f64, frames: u64| {
            let validation = Validation::Blocks;
            let split = TrainedSplit { window: 100, stride, validation_fraction, validation };
            split
                .training_frames(LogUse::Blocks, frames)
                .into_iter()
                .map(|part| (part.start, part.end))
                .collect::<Vec<_>>()
        };
        // 10 windows: the last two are for validation, the one before them is a gap.
        assert_eq!(ends(100, 0.2, 1001), [(0, 701)]);
        assert_eq!(ends(25, 0.2, 1001), [(0, 726)]);
        assert_eq!(ends(100, 0.0, 1001), [(0, 1001)]);
        assert_eq!(ends(100, 0.2, 100), []);
    }
}
