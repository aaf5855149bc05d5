//! Training, validation and test sets of graphs: blocks of time, never shuffled windows.
//!
//! The windows of a training file are cut into equal sections; the end of each section is for validation.
//! Windows that share a frame with a window on the other side of a border belong to neither side. The frame after a window
//! counts as shared, too, because an edge leads to it.

use std::ops::Range;

use kdgat_can::synthetic::{BlockSet, CopiedBlock, SourceBlock};
use serde::{Deserialize, Serialize};

use crate::window::count_windows;

/// Largest number of sections of a file: several, so that validation covers several moments of a drive.
const MOST_SECTIONS: u64 = 4;
/// Shortest validation stretch, in windows, for which a file is cut into more sections.
const SHORTEST_STRETCH: u64 = 8;

/// The set that a graph belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Training files without their validation stretches.
    Train,
    /// Validation stretches of training files.
    Validation,
    /// Test files.
    Test,
}

/// Number of windows before, and after, a window that share a frame with it. The frame after each window counts: `a < b` share
/// one if `b * stride <= a * stride + window`.
pub fn sharing_neighbours(window: usize, stride: usize) -> u64 {
    (window / stride) as u64
}

/// Division of one training file's graphs; positions count the file's graphs from 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSplit {
    /// Stretches for training, ascending.
    pub train: Vec<Range<u64>>,
    /// Stretches for validation, ascending.
    pub validation: Vec<Range<u64>>,
}

impl FileSplit {
    /// Divides `graphs` windows of `window` frames, `stride` frames apart.
    ///
    /// A share of `validation_fraction` of the windows is for validation; up to `window / stride` windows before and after each
    /// validation stretch are dropped from training.
    pub fn new(graphs: u64, window: usize, stride: usize, validation_fraction: f64) -> Self {
        let wanted = (graphs as f64 * validation_fraction).round() as u64;
        let dropped = sharing_neighbours(window, stride);
        let sections = (wanted / SHORTEST_STRETCH.max(8 * dropped)).clamp(1, MOST_SECTIONS);
        let mut split = Self::default();
        let mut train_begin = 0;
        for section in 0..sections {
            let end = graphs * (section + 1) / sections;
            let stretch = wanted * (section + 1) / sections - wanted * section / sections;
            let begin = end - stretch.min(end);
            let train_end = if stretch == 0 { end } else { begin.saturating_sub(dropped) };
            if train_begin < train_end {
                split.train.push(train_begin..train_end);
            }
            if stretch > 0 {
                split.validation.push(begin..end);
                train_begin = end + dropped;
            } else {
                train_begin = end;
            }
        }
        split
    }

    /// Division of a synthetic log: a window belongs to the set of the block that holds all its frames and the one after it. Windows
    /// that reach across two blocks belong to no set.
    pub fn of_blocks(blocks: &[CopiedBlock], window: usize, stride: usize) -> Self {
        let mut split = Self::default();
        for block in blocks {
            let stretches = match block.set {
                BlockSet::Training => &mut split.train,
                BlockSet::FirstValidation | BlockSet::SecondValidation => &mut split.validation,
            };
            stretches.extend(windows_within(&block.frames, window, stride));
        }
        split
    }

    /// Cuts each validation stretch into two blocks of time that share no frame; returns all first blocks and all second
    /// blocks. A stretch too short for two blocks is a second block.
    pub fn validation_halves(&self, window: usize, stride: usize) -> [Vec<Range<u64>>; 2] {
        let dropped = (window / stride) as u64;
        let [mut first, mut second] = [Vec::new(), Vec::new()];
        let mut earliest = 0;
        for stretch in &self.validation {
            // Without training between them, a stretch shares frames with the second block of the one before.
            let start = stretch.start.max(earliest);
            earliest = stretch.end + dropped;
            let length = stretch.end.saturating_sub(start).saturating_sub(dropped) / 2;
            if length == 0 {
                second.extend((start < stretch.end).then_some(start..stretch.end));
                continue;
            }
            let end = start + length;
            first.push(start..end);
            second.push(end + dropped..stretch.end);
        }
        [first, second]
    }

    /// The set of graph `position` of the file; `None` for dropped graphs.
    pub fn of(&self, position: u64) -> Option<Split> {
        let within = |stretches: &[Range<u64>]| {
            let next = stretches.partition_point(|stretch| stretch.end <= position);
            stretches.get(next).is_some_and(|stretch| stretch.contains(&position))
        };
        match (within(&self.train), within(&self.validation)) {
            (true, _) => Some(Split::Train),
            (_, true) => Some(Split::Validation),
            _ => None,
        }
    }

    /// The stretches of one set; none for `Test`.
    pub fn stretches(&self, split: Split) -> &[Range<u64>] {
        match split {
            Split::Train => &self.train,
            Split::Validation => &self.validation,
            Split::Test => &[],
        }
    }
}

/// The blocks of a log with this number of frames, divided by [`FileSplit::new`].
pub fn source_blocks(frames: u64, window: usize, stride: usize, validation_fraction: f64) -> Vec<SourceBlock> {
    let graphs = count_windows(frames, window as u64, stride as u64);
    blocks_of(FileSplit::new(graphs, window, stride, validation_fraction), window, stride)
}

/// The blocks of a log: one for each training stretch and for each half of a validation stretch, from the first frame of its first window
/// to the frame after its last one. No two blocks share a frame.
pub fn blocks_of(split: FileSplit, window: usize, stride: usize) -> Vec<SourceBlock> {
    let [first, second] = split.validation_halves(window, stride);
    let sets = [BlockSet::Training, BlockSet::FirstValidation, BlockSet::SecondValidation];
    let mut blocks = Vec::new();
    for (set, stretches) in sets.into_iter().zip([split.train, first, second]) {
        let filled = stretches.into_iter().filter(|stretch| !stretch.is_empty());
        blocks.extend(filled.map(|stretch| SourceBlock { set, frames: frames_of(&stretch, window, stride) }));
    }
    blocks.sort_by_key(|block| block.frames.start);
    blocks
}

/// The validation windows of a synthetic log, in two sets that share no frame with each other, or with the other half of the
/// source's validation windows.
pub fn halves_of_blocks(blocks: &[CopiedBlock], window: usize, stride: usize) -> [Vec<Range<u64>>; 2] {
    [BlockSet::FirstValidation, BlockSet::SecondValidation].map(|half| {
        let of_half = blocks.iter().filter(|block| block.set == half);
        of_half.filter_map(|block| windows_within(&block.frames, window, stride)).collect()
    })
}

/// Frames that a stretch of windows reads, with the one after the last window.
pub fn frames_of(stretch: &Range<u64>, window: usize, stride: usize) -> Range<u64> {
    stretch.start * stride as u64..(stretch.end - 1) * stride as u64 + window as u64 + 1
}

/// The windows whose frames, with the one after each window, are all in `frames`; `None` if there is none.
fn windows_within(frames: &Range<u64>, window: usize, stride: usize) -> Option<Range<u64>> {
    let first = frames.start.div_ceil(stride as u64);
    let end = count_windows(frames.end, window as u64, stride as u64);
    (first < end).then_some(first..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Stretches<'a> = &'a [(u64, u64)];

    fn assert_split(split: &FileSplit, train: Stretches<'_>, validation: Stretches<'_>) {
        let ends = |parts: &[Range<u64>]| parts.iter().map(|part| (part.start, part.end)).collect::<Vec<_>>();
        assert_eq!((ends(&split.train), ends(&split.validation)), (train.to_vec(), validation.to_vec()));
    }

    #[test]
    fn a_long_file_has_several_validation_stretches() {
        let validation = [(200, 250), (450, 500), (700, 750), (950, 1000)];
        let train = [(0, 199), (251, 449), (501, 699), (751, 949)];
        assert_split(&FileSplit::new(1000, 100, 100, 0.2), &train, &validation);
    }

    #[test]
    fn a_short_file_keeps_its_end() {
        assert_split(&FileSplit::new(10, 100, 100, 0.2), &[(0, 7)], &[(8, 10)]);
    }

    #[test]
    fn without_validation_everything_trains() {
        assert_split(&FileSplit::new(10, 100, 50, 0.0), &[(0, 10)], &[]);
        assert_split(&FileSplit::new(0, 100, 100, 0.2), &[], &[]);
    }

    #[test]
    fn halves_of_the_validation_stretches_share_no_frame() {
        let ends = |parts: &[Range<u64>]| parts.iter().map(|part| (part.start, part.end)).collect::<Vec<_>>();
        let halves = |graphs, window, stride| {
            FileSplit::new(graphs, window, stride, 0.2).validation_halves(window, stride).map(|half| ends(&half))
        };
        assert_eq!(
            halves(1000, 100, 100),
            [
                vec![(200, 224), (450, 474), (700, 724), (950, 974)],
                vec![(225, 250), (475, 500), (725, 750), (975, 1000)]
            ]
        );
        // Stride of half a window: two windows are dropped between the halves.
        assert_eq!(halves(50, 100, 50), [vec![(40, 44)], vec![(46, 50)]]);
        assert_eq!(halves(50, 100, 101), [vec![(40, 45)], vec![(45, 50)]]);
        // Too short for two blocks.
        assert_eq!(halves(10, 100, 100), [vec![], vec![(8, 10)]]);
        assert_eq!(halves(0, 100, 100), [vec![], vec![]]);
    }

    #[test]
    fn windows_of_a_synthetic_log_lie_within_a_block() {
        let block = |set, frames| CopiedBlock { set, source: 0..1, frames };
        let blocks = [
            block(BlockSet::Training, 0..350),
            block(BlockSet::FirstValidation, 350..601),
            block(BlockSet::SecondValidation, 601..700),
            block(BlockSet::SecondValidation, 700..801),
        ];
        // The windows from frames 300 and 600 reach across blocks.
        assert_split(&FileSplit::of_blocks(&blocks, 100, 100), &[(0, 3)], &[(4, 6), (7, 8)]);
        let windows = halves_of_blocks(&blocks, 100, 100).map(|half| half.into_iter().flatten().collect::<Vec<u64>>());
        assert_eq!(windows, [vec![4, 5], vec![7]]);
        assert_split(&FileSplit::of_blocks(&blocks, 100, 50), &[(0, 5)], &[(7, 11), (14, 15)]);
        assert_split(&FileSplit::of_blocks(&blocks, 400, 100), &[], &[]);
    }

    proptest! {
        #[test]
        fn a_log_copied_whole_is_divided_like_its_source(
            frames in 0u64..30_000,
            window in 2usize..300,
            stride in 1usize..400,
            fraction in 0.0f64..0.95,
        ) {
            let blocks = source_blocks(frames, window, stride, fraction);
            prop_assert!(blocks.windows(2).all(|pair| pair[0].frames.end <= pair[1].frames.start), "{:?}", blocks);
            prop_assert!(blocks.last().is_none_or(|last| last.frames.end <= frames));
            let copy = |block: &SourceBlock| {
                CopiedBlock { set: block.set, source: block.frames.clone(), frames: block.frames.clone() }
            };
            let copied: Vec<CopiedBlock> = blocks.iter().map(copy).collect();
            let split = FileSplit::new(count_windows(frames, window as u64, stride as u64), window, stride, fraction);
            let halves = split.validation_halves(window, stride);
            let filled = |stretches: &[Range<u64>]| {
                stretches.iter().filter(|stretch| !stretch.is_empty()).cloned().collect::<Vec<_>>()
            };
            prop_assert_eq!(FileSplit::of_blocks(&copied, window, stride).train, split.train);
            prop_assert_eq!(halves_of_blocks(&copied, window, stride), halves.map(|half| filled(&half)));
        }
    }

    #[test]
    fn windows_far_apart_need_no_gap() {
        assert_split(&FileSplit::new(10, 100, 101, 0.2), &[(0, 8)], &[(8, 10)]);
    }
}
