//! What a window's frames need from the frames before them: for each frame the previous frame of its ID, and the IDs that are
//! overdue at the window's end.
//!
//! A window of 100 frames lasts some 50 ms, while many IDs send every 100 ms or every second. Their gaps and the changes of their
//! bytes therefore reach back beyond the window's first frame.

use std::collections::{HashMap, VecDeque};

use kdgat_can::Frame;
use kdgat_can::frame::PAYLOAD_BYTES;

use super::rich::LONGEST_GAP_SECONDS;

/// Length of a previous payload if there is no previous frame.
pub const NO_PREVIOUS: u8 = u8::MAX;

/// An ID is overdue after this many times its usual gap.
const OVERDUE_GAPS: f64 = 3.0;
/// Fewest frames from which an ID has a usual gap.
const FEWEST_FRAMES: u32 = 4;
/// Least weight of the newest gap in the running mean; a longer gap counts as at most [`OVERDUE_GAPS`] usual ones.
const NEWEST_WEIGHT: f64 = 1.0 / 16.0;
/// Most overdue IDs of a window; only the most overdue ones become nodes.
pub const MOST_OVERDUE: usize = 32;
/// Number of IDs from which on rare ones are forgotten: random extended IDs would otherwise fill the memory.
const MOST_IDS: usize = 1 << 13;

/// A frame is on schedule if it comes at least this many usual gaps after the last frame of its ID that was.
const ON_SCHEDULE: f64 = 0.7;

/// A frame's relation to the previous frame of its ID in the same file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FrameFacts {
    /// Seconds since that frame, at most [`LONGEST_GAP_SECONDS`] either way; NaN if there is none.
    pub gap_seconds: f32,
    /// Payload of that frame.
    pub previous: [u8; PAYLOAD_BYTES],
    /// Payload length of that frame; [`NO_PREVIOUS`] if there is none.
    pub previous_length: u8,
    /// True if the payload differs from that frame's, but equals the one before it: two senders may be taking turns.
    pub returns: bool,
    /// Frames in a row, up to this one, in which each byte repeated the value before it; at most 255.
    pub repeated: [u8; PAYLOAD_BYTES],
}

/// Frames in a row that repeat the value of each byte after one more frame.
pub fn still_repeated(before: [u8; PAYLOAD_BYTES], previous: &[u8], payload: &[u8]) -> [u8; PAYLOAD_BYTES] {
    std::array::from_fn(|byte| if payload[byte] == previous[byte] { before[byte].saturating_add(1) } else { 0 })
}

/// Facts about a window.
#[derive(Debug, Clone, Copy)]
pub struct WindowFacts<'a> {
    /// `[window]`: facts about each frame.
    pub frames: &'a [FrameFacts],
    /// IDs without a frame in the window that have been silent for long, ascending, with the seconds from their last frame to the
    /// window's last one.
    pub overdue: &'a [(u32, f32)],
    scheduled: &'a HashMap<u32, f64>,
}

impl WindowFacts<'_> {
    /// Seconds since the last frame of an overdue ID; `None` for others.
    pub fn silence_of(&self, can_id: u32) -> Option<f32> {
        self.overdue.binary_search_by_key(&can_id, |&(overdue, _)| overdue).ok().map(|at| self.overdue[at].1)
    }

    /// Time of the last frame of an ID before the window that was on schedule, in seconds from the window's first frame at `begin`; NaN
    /// without one.
    ///
    /// "On schedule" is judged by the ID's usual gap so far, from the beginning of the file: where an attacker's frames alternate with
    /// true ones, only the traffic before the attack tells which are which.
    pub fn scheduled(&self, can_id: u32, begin: f64) -> f32 {
        let time = self.scheduled.get(&can_id).copied().unwrap_or(f64::NAN);
        (time - begin).clamp(-LONGEST_GAP_SECONDS, LONGEST_GAP_SECONDS) as f32
    }
}

/// The latest frame of an ID.
#[derive(Debug, Clone, Copy)]
struct Latest {
    timestamp: f64,
    payload: [u8; PAYLOAD_BYTES],
    /// Payload of the frame before, if there is one.
    earlier: Option<[u8; PAYLOAD_BYTES]>,
    length: u8,
    /// Position of the frame in the file.
    index: u64,
    frames: u32,
    /// Time of the last frame on schedule.
    scheduled: f64,
    /// Running mean of the gaps between frames on schedule, in seconds.
    usual_gap: f64,
    /// See [`FrameFacts::repeated`].
    repeated: [u8; PAYLOAD_BYTES],
}

/// Follows the frames of one file.
#[derive(Debug, Default)]
pub struct History {
    latest: HashMap<u32, Latest>,
    /// Time of each ID's last frame on schedule before position `first_fact`.
    scheduled: HashMap<u32, f64>,
    /// For the frames from `first_fact` on: the ID, and the time of its last frame on schedule up to this one.
    recent: VecDeque<(u32, f64)>,
    /// Facts about the frames from `first_fact` on.
    facts: VecDeque<FrameFacts>,
    first_fact: u64,
    /// Number of frames observed so far.
    observed: u64,
    overdue: Vec<(u32, f32)>,
    ranked: Vec<(f64, u32, f32)>,
}

impl History {
    /// Starts another file.
    pub fn restart(&mut self) {
        self.latest.clear();
        self.scheduled.clear();
        self.recent.clear();
        self.facts.clear();
        (self.first_fact, self.observed) = (0, 0);
    }

    /// Number of frames observed so far, which is the position in the file of the next one.
    pub fn observed(&self) -> u64 {
        self.observed
    }

    /// Observes the file's next frames.
    pub fn observe(&mut self, frames: &[Frame]) {
        for frame in frames {
            let (fact, scheduled) = self.fact_of(frame);
            self.facts.push_back(fact);
            self.recent.push_back((frame.can_id, scheduled));
            self.observed += 1;
        }
        if self.latest.len() > MOST_IDS {
            self.latest.retain(|_, latest| latest.frames >= FEWEST_FRAMES);
            let latest = &self.latest;
            self.scheduled.retain(|can_id, _| latest.contains_key(can_id));
        }
    }

    /// The facts about the next frame, and the time of the last frame of its ID on schedule.
    fn fact_of(&mut self, frame: &Frame) -> (FrameFacts, f64) {
        let new = Latest {
            timestamp: frame.timestamp,
            payload: frame.payload,
            earlier: None,
            length: frame.payload_length,
            index: self.observed,
            frames: 1,
            scheduled: frame.timestamp,
            usual_gap: 0.0,
            repeated: [0; PAYLOAD_BYTES],
        };
        let Some(latest) = self.latest.get_mut(&frame.can_id) else {
            self.latest.insert(frame.can_id, new);
            let fact = FrameFacts {
                gap_seconds: f32::NAN,
                previous: [0; PAYLOAD_BYTES],
                previous_length: NO_PREVIOUS,
                returns: false,
                repeated: [0; PAYLOAD_BYTES],
            };
            return (fact, frame.timestamp);
        };
        let gap = (frame.timestamp - latest.timestamp).clamp(-LONGEST_GAP_SECONDS, LONGEST_GAP_SECONDS);
        let fact = FrameFacts {
            gap_seconds: gap as f32,
            previous: latest.payload,
            previous_length: latest.length.min(64),
            returns: frame.payload != latest.payload && latest.earlier == Some(frame.payload),
            repeated: still_repeated(latest.repeated, &latest.payload, &frame.payload),
        };
        let (mut scheduled, mut usual_gap) = (latest.scheduled, latest.usual_gap);
        let since = frame.timestamp - scheduled;
        if latest.frames < FEWEST_FRAMES || since >= ON_SCHEDULE * usual_gap || since < 0.0 {
            let newest = match latest.frames {
                1 => since.max(0.0),
                _ => since.clamp(0.0, OVERDUE_GAPS * usual_gap.max(1e-6)),
            };
            let weight = NEWEST_WEIGHT.max(1.0 / f64::from(latest.frames));
            usual_gap += weight * (newest - usual_gap);
            scheduled = frame.timestamp;
        }
        let frames = latest.frames.saturating_add(1);
        *latest =
            Latest { frames, scheduled, usual_gap, earlier: Some(latest.payload), repeated: fact.repeated, ..new };
        (fact, scheduled)
    }

    /// Facts about the window of `frames` that begins at position `first_frame` of the file, and forgets the frames before it. All frames of the window, and none after it,
    /// must have been observed.
    ///
    /// # Panics
    /// When the window's frames were not observed, or have been forgotten.
    pub fn window(&mut self, first_frame: u64, frames: &[Frame]) -> WindowFacts<'_> {
        self.find_overdue(first_frame, frames);
        self.forget_before(first_frame);
        let begin = (first_frame - self.first_fact) as usize;
        let facts = &self.facts.make_contiguous()[begin..begin + frames.len()];
        WindowFacts { frames: facts, overdue: &self.overdue, scheduled: &self.scheduled }
    }

    fn find_overdue(&mut self, first_frame: u64, frames: &[Frame]) {
        self.overdue.clear();
        self.ranked.clear();
        let Some(end) = frames.last().map(|frame| frame.timestamp) else { return };
        for (&can_id, latest) in &self.latest {
            let silence = end - latest.timestamp;
            let is_overdue = latest.index < first_frame
                && latest.frames >= FEWEST_FRAMES
                && silence > OVERDUE_GAPS * latest.usual_gap
                && latest.usual_gap > 0.0;
            if is_overdue {
                let seconds = silence.min(LONGEST_GAP_SECONDS) as f32;
                self.ranked.push((silence / latest.usual_gap, can_id, seconds));
            }
        }
        // The map's order is random: ties are broken by ID.
        self.ranked.sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        self.overdue.extend(self.ranked.iter().take(MOST_OVERDUE).map(|&(_, can_id, seconds)| (can_id, seconds)));
        self.overdue.sort_unstable_by_key(|&(can_id, _)| can_id);
    }

    /// Forgets the facts about frames before position `first_frame`.
    pub fn forget_before(&mut self, first_frame: u64) {
        let forgotten = first_frame.saturating_sub(self.first_fact).min(self.facts.len() as u64);
        self.facts.drain(..forgotten as usize);
        self.scheduled.extend(self.recent.drain(..forgotten as usize));
        self.first_fact += forgotten;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(timestamp: f64, can_id: u32, value: u8) -> Frame {
        Frame { timestamp, can_id, payload: [value; 8], payload_length: 8, attack: false }
    }

    #[test]
    fn gaps_reach_back_beyond_the_window() {
        let frames = [frame(0.0, 1, 10), frame(0.5, 2, 20), frame(1.0, 1, 11), frame(1.25, 2, 21), frame(1.5, 3, 0)];
        let mut history = History::default();
        history.observe(&frames[..2]);
        history.forget_before(2);
        history.observe(&frames[2..]);
        let facts = history.window(2, &frames[2..]).frames.to_vec();
        assert_eq!((facts[0].gap_seconds, facts[0].previous[0]), (1.0, 10));
        assert_eq!((facts[1].gap_seconds, facts[1].previous[0]), (0.75, 20));
        assert!(facts[2].gap_seconds.is_nan() && facts[2].previous_length == NO_PREVIOUS);
        let scheduled = history.window(2, &frames[2..]).scheduled(2, 1.0);
        assert_eq!(scheduled, -0.5, "the frame in the window does not count");
        assert!(history.window(2, &frames[2..]).scheduled(3, 1.0).is_nan());
    }

    /// True frames every 100 ms, and from the 20th on an injected one 30 ms after each: the true ones stay on schedule.
    #[test]
    fn injected_frames_do_not_take_over_the_schedule() {
        let mut frames = Vec::new();
        for at in 0..60 {
            frames.push(frame(0.1 * f64::from(at), 7, 0));
            if at >= 20 {
                frames.push(frame(0.1 * f64::from(at) + 0.03, 7, 0));
            }
        }
        let mut history = History::default();
        history.observe(&frames[..90]);
        let begin = frames[90].timestamp;
        let scheduled = f64::from(history.window(90, &frames[90..90]).scheduled(7, begin)) + begin;
        let steps = scheduled / 0.1;
        assert!((steps - steps.round()).abs() < 1e-4, "{scheduled} is the time of an injected frame");
    }

    #[test]
    fn a_silent_id_is_overdue_after_three_usual_gaps() {
        let mut frames: Vec<Frame> = (0..40).map(|at| frame(f64::from(at) * 0.01, 1 + at as u32 % 2, 0)).collect();
        // ID 2 stops; ID 1 goes on every 20 ms.
        frames.extend((0..6).map(|at| frame(0.40 + 0.02 * f64::from(at), 1, 0)));
        let overdue_after = |count: usize| {
            let mut history = History::default();
            history.observe(&frames[..count]);
            history.window(count as u64 - 1, &frames[count - 1..count]).overdue.to_vec()
        };
        assert_eq!(overdue_after(41), [], "10 ms after the last frame of ID 2, and 20 ms are usual");
        let overdue = overdue_after(46);
        assert_eq!(overdue.len(), 1);
        assert_eq!(overdue[0].0, 2);
        assert!((overdue[0].1 - 0.11).abs() < 1e-6, "{overdue:?}");
    }

    #[test]
    fn repeated_bytes_are_counted_beyond_the_window() {
        let mut history = History::default();
        let with = |at: u32| Frame {
            payload: [7, (at / 3) as u8, at as u8, 0, 0, 0, 0, 0],
            ..frame(0.1 * f64::from(at), 1, 0)
        };
        history.observe(&(0..300).map(with).collect::<Vec<_>>());
        let repeated = history.window(295, &(295..300).map(with).collect::<Vec<_>>()).frames[0].repeated;
        assert_eq!(repeated[..4], [255, 1, 0, 255], "295 is the second frame with the value 98");
    }

    #[test]
    fn random_ids_do_not_fill_the_memory() {
        let mut history = History::default();
        for block in 0..10u32 {
            let frames: Vec<Frame> = (0..5000).map(|at| frame(0.0, 0x800 + block * 5000 + at, 0)).collect();
            history.observe(&frames);
            history.forget_before(history.observed());
        }
        assert!(history.latest.len() <= MOST_IDS && history.facts.is_empty());
        // The last block is forgotten after it was observed.
        assert!(history.scheduled.len() <= MOST_IDS + 5000, "{}", history.scheduled.len());
    }
}
