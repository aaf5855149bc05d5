//! Learns the profile of a car from windows of attack-free traffic.
//!
//! Everything is counted, or sampled by hash, so parts of the traffic can be learned apart and merged in any order with the same result.

use std::collections::BTreeMap;
use std::ops::Range;

use kdgat_can::frame::PAYLOAD_BYTES;

use super::pauses::Pauses;
use super::relation_learner::WindowSample;
use super::standstill::{self, MOST_REPEATED, Repetitions};
use super::{ByteProfile, CarProfile, IdProfile, gone};
use crate::{Columns, GraphView, NodeFrame};

/// Shortest gap that is told apart, in seconds.
const SHORTEST_SECONDS: f64 = 1e-6;
/// Bins of a histogram of durations for each doubling: 2.2 % apart.
const BINS_PER_OCTAVE: f64 = 32.0;
/// Number of bins: up to 1000 s.
const BINS: usize = 960;

/// Counts of what each ID does.
#[derive(Debug, Clone, Default)]
pub struct ProfileLearner {
    ids: BTreeMap<u32, IdCounts>,
    /// Longest silence of each ID up to the end of a window, in seconds without pauses: a drive may end before the ID is back.
    silences: BTreeMap<u32, f32>,
    sample: WindowSample,
}

/// Counts for one ID.
#[derive(Debug, Clone)]
struct IdCounts {
    frames: u64,
    gaps: Durations,
    gap_sum_seconds: f64,
    /// Sum and longest of the gaps without pauses, in windows without an attack frame.
    watched_seconds: f64,
    longest_gap_seconds: f32,
    /// Number of frames with a previous frame.
    pairs: u64,
    /// Number of those with the same payload as the previous frame.
    repeats: u64,
    /// Number of frames whose payload returns to the one before the previous.
    returns: u64,
    /// Number of bytes that changed from one frame to the next.
    changed_bytes: u64,
    /// Number of frames with a previous frame in windows without an attack frame.
    watched: u64,
    /// Most frames in a row that repeated the payload, in these windows.
    longest_standstill: u8,
    /// Bit `n` is set if a payload had `n` bytes.
    lengths: u16,
    bytes: Box<[ByteCounts; PAYLOAD_BYTES]>,
}

/// Counts for one byte of an ID.
#[derive(Debug, Clone)]
struct ByteCounts {
    values: [u32; 256],
    changes: [u32; 256],
    /// True if the byte repeated its value in a window without an attack frame.
    repeats: bool,
}

impl Default for IdCounts {
    fn default() -> Self {
        Self {
            frames: 0,
            gaps: Durations::default(),
            gap_sum_seconds: 0.0,
            watched_seconds: 0.0,
            longest_gap_seconds: 0.0,
            pairs: 0,
            repeats: 0,
            returns: 0,
            changed_bytes: 0,
            watched: 0,
            longest_standstill: 0,
            lengths: 0,
            bytes: Box::new(std::array::from_fn(|_| ByteCounts {
                values: [0; 256],
                changes: [0; 256],
                repeats: false,
            })),
        }
    }
}

impl ProfileLearner {
    /// Learns from these windows, which are all windows of their drives.
    pub fn of<'a>(windows: impl IntoIterator<Item = GraphView<'a>>) -> Self {
        let (mut learner, mut pauses) = (Self::default(), Pauses::default());
        for view in windows {
            pauses.push(&view);
            learner.add(&view, &pauses);
        }
        learner
    }

    /// Learns from a window; its attack frames do not count. `pauses` has taken this window, and all windows of the drive before it, whether they were
    /// learned from or not.
    pub fn add(&mut self, view: &GraphView<'_>, pauses: &Pauses) {
        self.sample.add(view);
        let end = view.start_time + f64::from(view.frames.duration_seconds());
        let mut index = 0;
        for (node, (&can_id, &frames)) in view.can_ids.iter().zip(view.frames.of_node).enumerate() {
            let of_node = index..index + usize::from(frames);
            index = of_node.end;
            // An attacker may have silenced the ID.
            if !view.attack && view.frames.silence[node] > 0.0 {
                let longest = self.silences.entry(can_id).or_default();
                *longest = longest.max(pauses.without_pauses(view.frames.silence[node], end));
            }
            let mut repetitions = Repetitions::of(view, node);
            for (frame, time) in of_node.map(|index| (view.frames.frame(index), view.frames.times[index])) {
                let repeated = repetitions.at(&frame);
                if frame.attack {
                    continue;
                }
                let counts = self.ids.entry(can_id).or_default();
                counts.add(&frame);
                // An injected frame that repeats the true one, or differs from it, says nothing about the ID.
                if !view.attack {
                    counts.add_repetitions(&frame, &repeated);
                    counts.add_silence(pauses.without_pauses(frame.gap_seconds, view.start_time + f64::from(time)));
                }
            }
        }
    }

    /// Adds what another part has learned.
    pub fn merge(&mut self, other: &Self) {
        self.sample.merge(&other.sample);
        for (&can_id, &silence) in &other.silences {
            let longest = self.silences.entry(can_id).or_default();
            *longest = longest.max(silence);
        }
        for (&can_id, counts) in &other.ids {
            self.ids.entry(can_id).or_default().merge(counts);
        }
    }

    /// What all parts but one have learned, or all of them.
    pub fn merged(parts: &[Self], without: Option<usize>) -> Self {
        let mut all = Self::default();
        parts.iter().enumerate().filter(|(part, _)| Some(*part) != without).for_each(|(_, part)| all.merge(part));
        all
    }

    /// The knowledge that judges the windows of one part of a calibration: that of the other parts, and for IDs that none of them has
    /// that of this part. The car's profile will know those IDs, so that they say nothing about how usual its traffic looks with it.
    pub fn judging(parts: &[Self], part: usize) -> Self {
        let mut others = Self::merged(parts, Some(part));
        for (&can_id, counts) in &parts[part].ids {
            others.ids.entry(can_id).or_insert_with(|| counts.clone());
        }
        others
    }

    /// The car's profile from the `parts` of a calibration's windows, and the profiles that [judge](Self::judging) each part. `window` returns
    /// a window by its number.
    ///
    /// # Errors
    /// Those of `window`.
    pub fn of_parts<'a, E>(
        parts: &[Range<usize>],
        mut window: impl FnMut(usize) -> Result<GraphView<'a>, E>,
    ) -> Result<(CarProfile, Vec<CarProfile>), E> {
        let mut pauses = Pauses::default();
        let mut learned = Vec::with_capacity(parts.len());
        for part in parts {
            let mut learner = Self::default();
            for number in part.clone() {
                let view = window(number)?;
                pauses.push(&view);
                learner.add(&view, &pauses);
            }
            learned.push(learner);
        }
        let judging = (0..parts.len()).map(|part| Self::judging(&learned, part).profile()).collect();
        Ok((Self::merged(&learned, None).profile(), judging))
    }

    /// The same of windows in memory.
    pub fn of_columns(windows: &Columns, parts: &[Range<usize>]) -> (CarProfile, Vec<CarProfile>) {
        let window = |number| Ok::<_, std::convert::Infallible>(windows.graph(number));
        let Ok(profiles) = Self::of_parts(parts, window);
        profiles
    }

    /// The profile learned so far.
    pub fn profile(&self) -> CarProfile {
        let of_id = |(&can_id, counts): (&u32, &IdCounts)| {
            counts.profile(can_id, self.silences.get(&can_id).copied().unwrap_or(0.0))
        };
        let ids = self.ids.iter().map(of_id).collect();
        CarProfile::new(ids, self.sample.relations())
    }
}

impl IdCounts {
    fn add(&mut self, frame: &NodeFrame<'_>) {
        self.frames += 1;
        self.lengths |= 1 << frame.length;
        for (counts, &value) in self.bytes.iter_mut().zip(&frame.payload[..frame.length]) {
            counts.values[usize::from(value)] += 1;
        }
        let Some(previous) = frame.previous else { return };
        self.pairs += 1;
        self.gaps.add(frame.gap_seconds.into());
        self.gap_sum_seconds += f64::from(frame.gap_seconds).max(0.0);
        self.returns += u64::from(frame.returns);
        self.repeats += u64::from(frame.payload == previous);
        for (counts, (&value, &before)) in self.bytes.iter_mut().zip(frame.payload.iter().zip(previous)) {
            counts.changes[usize::from(value.abs_diff(before))] += 1;
            self.changed_bytes += u64::from(value != before);
        }
    }

    fn add_repetitions(&mut self, frame: &NodeFrame<'_>, repeated: &[u8; PAYLOAD_BYTES]) {
        self.longest_standstill = self.longest_standstill.max(standstill::of_payload(repeated));
        if frame.previous.is_some() {
            self.watched += 1;
            self.bytes.iter_mut().zip(repeated).for_each(|(counts, &frames)| counts.repeats |= frames > 0);
        }
    }

    /// Adds a gap without pauses; NaN for a frame without a previous one.
    fn add_silence(&mut self, seconds: f32) {
        self.watched_seconds += f64::from(seconds.max(0.0));
        self.longest_gap_seconds = self.longest_gap_seconds.max(seconds);
    }

    fn merge(&mut self, other: &Self) {
        self.frames += other.frames;
        self.watched_seconds += other.watched_seconds;
        self.watched += other.watched;
        self.longest_standstill = self.longest_standstill.max(other.longest_standstill);
        self.gaps.merge(&other.gaps);
        self.gap_sum_seconds += other.gap_sum_seconds;
        self.longest_gap_seconds = self.longest_gap_seconds.max(other.longest_gap_seconds);
        self.pairs += other.pairs;
        self.repeats += other.repeats;
        self.returns += other.returns;
        self.changed_bytes += other.changed_bytes;
        self.lengths |= other.lengths;
        for (own, other) in self.bytes.iter_mut().zip(other.bytes.iter()) {
            own.values.iter_mut().zip(&other.values).for_each(|(own, other)| *own += other);
            own.changes.iter_mut().zip(&other.changes).for_each(|(own, other)| *own += other);
            own.repeats |= other.repeats;
        }
    }

    /// The profile of an ID that was silent for so many seconds until the end of a window.
    fn profile(&self, can_id: u32, silence_seconds: f32) -> IdProfile {
        let of_pairs = |count: u64| if self.pairs == 0 { 0.0 } else { (count as f64 / self.pairs as f64) as f32 };
        // Traffic under attack does not show for how long a payload stands still.
        let is_known = 2 * self.watched >= self.pairs;
        let gap = |share: f64| self.gaps.quantile(share).unwrap_or(0.0) as f32;
        let gap_mean_seconds = if self.pairs == 0 { 0.0 } else { (self.gap_sum_seconds / self.pairs as f64) as f32 };
        // A silence that would be called the ID's end, and was not.
        let watched_seconds = self.watched_seconds as f32;
        let is_sleep = silence_seconds > gone::limit_seconds(self.pairs, watched_seconds, self.longest_gap_seconds);
        IdProfile {
            can_id,
            frames: self.frames,
            gaps: self.pairs,
            gap_low_seconds: gap(0.001),
            gap_median_seconds: gap(0.5),
            gap_mean_seconds,
            gap_high_seconds: gap(0.999),
            watched_seconds,
            longest_silence_seconds: if is_sleep { silence_seconds } else { self.longest_gap_seconds },
            repeats: of_pairs(self.repeats),
            returns: of_pairs(self.returns),
            changed_bytes: of_pairs(self.changed_bytes),
            longest_standstill: if is_known { self.longest_standstill } else { MOST_REPEATED },
            lengths: self.lengths,
            bytes: self.bytes.iter().map(|counts| counts.profile(is_known)).collect(),
        }
    }
}

impl ByteCounts {
    fn profile(&self, is_known: bool) -> ByteProfile {
        let mut seen = [0u64; 4];
        for value in (0..256).filter(|&value| self.values[value] > 0) {
            seen[value / 64] |= 1 << (value % 64);
        }
        let changes = self.changes.iter().rposition(|&count| count > 0).unwrap_or(0) as u8;
        let change_high = quantile_of(&self.changes, 0.9999).unwrap_or(0) as u8;
        ByteProfile { seen, change_high, change_most: changes, repeats: self.repeats || !is_known }
    }
}

/// Histogram of durations with bins of equal ratio.
#[derive(Debug, Clone, Default)]
struct Durations {
    /// Empty until the first duration.
    bins: Vec<u32>,
}

impl Durations {
    fn add(&mut self, seconds: f64) {
        if self.bins.is_empty() {
            self.bins.resize(BINS, 0);
        }
        let bin = (BINS_PER_OCTAVE * (seconds.max(SHORTEST_SECONDS) / SHORTEST_SECONDS).log2()).round() as usize;
        self.bins[bin.min(BINS - 1)] += 1;
    }

    fn merge(&mut self, other: &Self) {
        if self.bins.is_empty() {
            self.bins.clone_from(&other.bins);
        } else {
            self.bins.iter_mut().zip(&other.bins).for_each(|(own, other)| *own += other);
        }
    }

    /// The smallest duration that at least this share of all does not exceed; `None` without durations.
    fn quantile(&self, share: f64) -> Option<f64> {
        let bin = quantile_of(&self.bins, share)?;
        Some(SHORTEST_SECONDS * (bin as f64 / BINS_PER_OCTAVE).exp2())
    }
}

/// Index of the first bin up to which at least `share` of the counts lie, and at least one; `None` without counts.
fn quantile_of(counts: &[u32], share: f64) -> Option<usize> {
    let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let wanted = (share * total as f64).ceil().max(1.0) as u64;
    let mut sum = 0;
    counts.iter().position(|&count| {
        sum += u64::from(count);
        total > 0 && sum >= wanted
    })
}
