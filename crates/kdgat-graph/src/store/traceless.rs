//! Synthetic attacks that leave no trace in a window: a forged payload is the true one's neighbour, or nothing is known about its ID.
//!
//! No detector can tell such a window from usual traffic. Labelled as an attack, it would only teach that usual traffic may be one, and
//! scores of all weak attacks would sink. So it belongs to neither training nor validation.

use std::ops::Range;

use super::duplicates::Graphs;
use super::manifest::StoreProfile;
use super::parallel::in_parallel;
use crate::profile::fold_of;
use crate::{Split, StoreError};

impl Graphs<'_> {
    /// Positions of the synthetic attack windows of training and validation in which no ID under attack is a
    /// [culprit](crate::CarProfile::culprits), ascending. Training windows are judged with the profile that was learned without their fold.
    pub(super) fn traceless(&self, profile: &StoreProfile) -> Result<Vec<Range<u64>>, StoreError> {
        let of_shards = in_parallel(self.shards.len(), self.options.num_threads(), |index, _: &mut ()| {
            let shard = self.open(index)?;
            let mut found = Vec::new();
            for position in 0..self.shards[index].graphs {
                let view = shard.graph(position as usize)?;
                let file = &self.files[view.file as usize];
                if !view.attack || file.synthetic.is_none() {
                    continue;
                }
                let graph = self.shards[index].first_graph + position;
                let profile = match file.split.of(graph - file.first_graph) {
                    Some(Split::Train) => &profile.without[fold_of(graph - file.first_graph)],
                    Some(_) => &profile.whole,
                    None => continue,
                };
                if profile.culprits(&view, usize::MAX).iter().all(|culprit| culprit.attack_frames == 0) {
                    found.push(graph);
                }
            }
            Ok(found)
        })?;
        let mut ranges = Vec::new();
        of_shards.into_iter().flatten().for_each(|graph| push(&mut ranges, graph));
        Ok(ranges)
    }
}

/// Adds a graph after those of the ranges.
pub(super) fn push(ranges: &mut Vec<Range<u64>>, graph: u64) {
    match ranges.last_mut() {
        Some(last) if last.end == graph => last.end += 1,
        _ => ranges.push(graph..graph + 1),
    }
}

/// True if a graph is in one of the ranges, which are ascending.
pub(super) fn contains(ranges: &[Range<u64>], graph: u64) -> bool {
    let next = ranges.partition_point(|range| range.end <= graph);
    ranges.get(next).is_some_and(|range| range.contains(&graph))
}
