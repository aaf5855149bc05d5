//! Node features of the profile set: how a node's frames deviate from what is usual for their ID.
//!
//! Features are 0, or near it, for usual traffic of any car, and grow with the logarithm of a deviation. Limits are widened for IDs with few
//! frames in the profile: the smallest of 20 gaps is no quantile. An unknown ID has no usual gaps or bytes; its node has [`UNKNOWN`] and
//! [`SHARE`] only. Features of the whole window are left out on purpose: copied to all nodes, they outweigh what single IDs do.
//!
//! The strongest feature is [`OFF_SCHEDULE`]: a frame is off schedule if it comes too soon after the last frame that was on schedule. An
//! injected frame is off schedule; the true frame after it is not, although its gap is short, too.

use kdgat_can::frame::PAYLOAD_BYTES;

use super::standstill::{Limits, Standstill};
use super::{CarProfile, IdProfile};
use crate::{GraphView, NodeFrame};

/// −ln P(new ID) / 10, for an ID that the profile does not have.
pub const UNKNOWN: usize = 0;
/// ln(1 + frames that come after less than half the shortest usual gap).
pub const EARLY: usize = 1;
/// ln(1 + frames off schedule).
pub const OFF_SCHEDULE: usize = 2;
/// Largest ln(shortest usual gap / time since the last frame on schedule) of the frames off schedule.
pub const OFF_SCHEDULE_DEPTH: usize = 3;
/// ln(1 + frames off schedule with a value that the byte never had, or a jump).
pub const OFF_SCHEDULE_BYTES: usize = 4;
/// ln(shortest usual gap / smallest gap), at least 0.
pub const SHORTEST_GAP: usize = 5;
/// Mean of ln(gap / median gap).
pub const MEAN_GAP: usize = 6;
/// ln((frames + ½) / (expected frames + ½)), with the window's duration.
pub const COUNT: usize = 7;
/// 4 · number of frames / frames of the window.
pub const SHARE: usize = 8;
/// ln(1 + bytes that change by more than the 99.99 % quantile of their changes, plus 1).
pub const JUMPS: usize = 9;
/// ln(1 + bytes that change by more than twice their largest change, plus 2).
pub const LARGE_JUMPS: usize = 10;
/// Largest ln((change + 1) / (largest usual change + 2)) of a byte, at least 0.
pub const LARGEST_JUMP: usize = 11;
/// Mean share of changed bytes, less the usual one.
pub const CHANGED_BYTES: usize = 12;
/// Share of frames that repeat the previous payload, less the usual one.
pub const REPEATS: usize = 13;
/// ln(1 + frames that return to the payload before the previous one, beyond the usual share).
pub const RETURNS: usize = 14;
/// ln(silence at the window's end / longest usual gap), at least 0; for IDs that send regularly.
pub const SILENCE: usize = 15;
/// ln(median gap / 0.1 % quantile of the gaps): how irregularly the ID sends.
pub const IRREGULARITY: usize = 16;
/// ½ log₁₀(1 + gaps in the profile).
pub const CONFIDENCE: usize = 17;
/// log₁₀(median gap / 0.1 s), ±2.
pub const PERIOD: usize = 18;
/// ln(1 + d²), with d the largest disagreement of a signal with those of other IDs, in units of what is usual.
pub const DISAGREEMENT: usize = 19;
/// 1 if a signal of the node could be compared, so that agreement differs from not knowing.
pub const COMPARED: usize = 20;
/// ln(repetitions of the payload in a row / largest usual number), at least 0; of the whole payload, or of a byte that changes in every
/// frame of attack-free traffic.
pub const STANDSTILL: usize = 21;
/// The deviations of values and changes of bytes, which a profile [without bytes](CarProfile::without_bytes) does not have.
pub const OF_BYTES: [usize; 8] =
    [OFF_SCHEDULE_BYTES, JUMPS, LARGE_JUMPS, LARGEST_JUMP, CHANGED_BYTES, REPEATS, RETURNS, STANDSTILL];
/// Number of deviations: continuous node features of the profile set.
pub const DEVIATIONS: usize = 22;

/// Upper limit of logarithms of ratios.
const MOST: f32 = 4.0;
/// Smallest duration in a ratio, in seconds.
const SHORTEST_SECONDS: f32 = 1e-6;
/// Share of the shortest usual gap below which a frame is off schedule.
const ON_SCHEDULE: f32 = 0.9;
/// Seconds by which another drive may bring a frame sooner than usual: a dozen frames of higher priority, of 0.25 ms each at 500 kbit/s.
/// A profile of one drive does not show that, however long the drive is.
const JITTER_SECONDS: f32 = 0.0035;
/// Share of the median gap up to which [`JITTER_SECONDS`] does not count. An injected frame divides a gap in two, one of which is at most half
/// of it, so that a limit slightly above one half finds every one.
const INJECTED: f32 = 0.6;
/// Margin of the shortest usual gap for an ID with few gaps: 1 − 5 / √(gaps + 25) of the quantile count.
const MARGIN: f32 = 5.0;
/// An ID sends regularly with at least this many gaps, this irregularity at most, and longest gaps below this many medians.
const REGULAR: (u64, f32, f32) = (50, 0.4, 3.0);

/// The deviations of a node.
type Row = [f32; DEVIATIONS];

/// Limits of an ID, derived from its profile.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Usual {
    /// Shortest usual gap: the 0.1 % quantile, less for an ID with few or irregular gaps.
    low_seconds: f32,
    /// A frame that comes sooner than this after the last one on schedule is off schedule.
    on_schedule_seconds: f32,
    /// Silence from which a regular ID is overdue; infinite for others.
    high_seconds: f32,
    standstill: Limits,
    irregularity: f32,
    confidence: f32,
    period: f32,
}

impl Usual {
    pub(super) fn of(id: &IdProfile) -> Self {
        let gaps = id.gaps as f32;
        let trust = 1.0 - MARGIN / (gaps + MARGIN * MARGIN).sqrt();
        let (low, median) = (id.gap_low_seconds.max(SHORTEST_SECONDS), id.gap_median_seconds.max(SHORTEST_SECONDS));
        let irregularity = (median / low).ln().clamp(0.0, MOST);
        let (fewest, most_irregular, most_medians) = REGULAR;
        let regular = id.gaps >= fewest && irregularity < most_irregular && id.gap_high_seconds < most_medians * median;
        let low_seconds = id.gap_low_seconds * trust * (low / median).min(1.0).sqrt();
        Self {
            low_seconds,
            on_schedule_seconds: (ON_SCHEDULE * low_seconds).min((INJECTED * median).max(median - JITTER_SECONDS)),
            high_seconds: if regular { id.gap_high_seconds / trust.max(0.09) } else { f32::INFINITY },
            standstill: Limits::of(id),
            irregularity,
            confidence: (1.0 + gaps).log10() / 2.0,
            period: (median / 0.1).log10().clamp(-2.0, 2.0),
        }
    }

    /// Shortest usual gap.
    pub(super) fn low_seconds(&self) -> f32 {
        self.low_seconds
    }

    /// Silence from which a regular ID is overdue; infinite for others.
    pub(super) fn high_seconds(&self) -> f32 {
        self.high_seconds
    }

    /// Largest usual numbers of repetitions.
    pub(super) fn standstill(&self) -> &Limits {
        &self.standstill
    }

    /// ln(silence / longest usual gap), 0 to [`MOST`].
    fn excess(&self, seconds: f32) -> f32 {
        let ratio = seconds / self.high_seconds;
        if ratio > 1.0 { ratio.ln().min(MOST) } else { 0.0 }
    }
}

impl CarProfile {
    /// Appends the deviations of each node of a graph of the profile set to `rows`, `[num_nodes, DEVIATIONS]`.
    pub fn append_deviations(&self, view: &GraphView<'_>, rows: &mut Vec<f32>) {
        let duration = view.frames.duration_seconds().max(SHORTEST_SECONDS);
        let disagreements = self.disagreements(view);
        let mut first_frame = 0;
        for node in 0..view.num_nodes() {
            let frames = usize::from(view.frames.of_node[node]);
            let mut row = self.node(view, node, first_frame..first_frame + frames, duration);
            if let Some(found) = disagreements.largest(node) {
                row[DISAGREEMENT] = (found.size * found.size).ln_1p().min(MOST);
                row[COMPARED] = 1.0;
            }
            if !self.counts_bytes() {
                OF_BYTES.iter().for_each(|&column| row[column] = 0.0);
            }
            rows.extend_from_slice(&row);
            first_frame += frames;
        }
    }

    fn node(&self, view: &GraphView<'_>, node: usize, frames: std::ops::Range<usize>, duration: f32) -> Row {
        let mut row = [0.0; DEVIATIONS];
        let count = frames.len() as f32;
        row[SHARE] = 4.0 * count / view.frames.times.len().max(1) as f32;
        let Some((id, usual)) = self.usual_of(view.can_ids[node]) else {
            row[UNKNOWN] = if frames.is_empty() { 0.0 } else { self.new_id_surprise() / 10.0 };
            return row;
        };
        let silence = view.frames.silence[node];
        row[SILENCE] = if silence.is_nan() { 0.0 } else { usual.excess(silence) };
        if frames.is_empty() {
            return row;
        }
        (row[IRREGULARITY], row[CONFIDENCE], row[PERIOD]) = (usual.irregularity, usual.confidence, usual.period);
        let longest = Standstill::longest(view, node, frames.clone(), id, &usual.standstill);
        row[STANDSTILL] = longest.map_or(0.0, |found| found.ratio.ln().min(MOST));
        let (mut sums, mut schedule) = (Sums::default(), Schedule::before(view, node));
        for index in frames {
            let delay = schedule.delay_if_off(view.frames.times[index], usual);
            sums.add(id, usual, &view.frames.frame(index), delay);
        }
        sums.fill(&mut row, id, count, duration);
        row
    }
}

/// Follows the schedule of one ID.
pub(super) struct Schedule {
    /// Time of the last frame on schedule, in seconds since the window's first frame; NaN before the first.
    latest: f32,
}

impl Schedule {
    /// The schedule of a node's ID before the window.
    pub(super) fn before(view: &GraphView<'_>, node: usize) -> Self {
        Self { latest: view.frames.scheduled[node] }
    }

    /// Adds a frame at `time`. Returns the seconds since the last frame on schedule if this one is off schedule.
    pub(super) fn delay_if_off(&mut self, time: f32, usual: &Usual) -> Option<f32> {
        let since = time - self.latest;
        // Without a frame before, the comparison with NaN is false.
        if since < usual.on_schedule_seconds {
            return Some(since);
        }
        self.latest = time;
        None
    }
}

/// Sums over the frames of a node.
#[derive(Default)]
struct Sums {
    gaps: f32,
    log_gaps: f32,
    early: f32,
    off_schedule: f32,
    depth: f32,
    off_schedule_bytes: f32,
    shortest: f32,
    jumps: f32,
    large_jumps: f32,
    largest_jump: f32,
    changed: f32,
    pairs: f32,
    repeats: f32,
    returns: f32,
}

impl Sums {
    /// Adds a frame; `delay` is set if it is off schedule.
    fn add(&mut self, id: &IdProfile, usual: &Usual, frame: &NodeFrame<'_>, delay: Option<f32>) {
        self.add_gap(id, usual, frame.gap_seconds);
        let unusual_bytes = self.add_bytes(id, frame);
        if let Some(since) = delay {
            self.off_schedule += 1.0;
            self.depth = self.depth.max((usual.low_seconds / since.max(SHORTEST_SECONDS)).ln().clamp(0.0, MOST));
            self.off_schedule_bytes += one_if(unusual_bytes);
        }
        self.returns += one_if(frame.returns);
    }

    fn add_gap(&mut self, id: &IdProfile, usual: &Usual, gap: f32) {
        if gap.is_nan() || id.gap_median_seconds <= 0.0 {
            return;
        }
        let gap = gap.max(SHORTEST_SECONDS);
        self.gaps += 1.0;
        self.log_gaps += (gap / id.gap_median_seconds).ln().clamp(-MOST, MOST);
        self.early += one_if(gap < 0.5 * usual.low_seconds);
        self.shortest = self.shortest.max((usual.low_seconds.max(SHORTEST_SECONDS) / gap).ln().min(MOST));
    }

    /// Adds a frame's payload; returns true if a byte has a value that it never had, or jumps.
    fn add_bytes(&mut self, id: &IdProfile, frame: &NodeFrame<'_>) -> bool {
        let (mut jumps, mut unseen) = (0.0, false);
        for (at, (&value, byte)) in frame.payload[..frame.length].iter().zip(&id.bytes).enumerate() {
            unseen |= !byte.has_seen(value);
            let Some(previous) = frame.previous else { continue };
            let change = f32::from(value.abs_diff(previous[at]));
            let (high, most) = (f32::from(byte.change_high), f32::from(byte.change_most));
            jumps += one_if(change > high + 1.0);
            self.large_jumps += one_if(change > 2.0 * most + 2.0);
            self.changed += one_if(change > 0.0);
            if change > most {
                self.largest_jump = self.largest_jump.max(((change + 1.0) / (most + 2.0)).ln());
            }
        }
        if let Some(previous) = frame.previous {
            self.pairs += 1.0;
            self.repeats += one_if(previous == frame.payload);
        }
        self.jumps += jumps;
        unseen || jumps > 0.0
    }

    /// Sets the features of a node with `count` frames.
    fn fill(&self, row: &mut Row, id: &IdProfile, count: f32, duration: f32) {
        let expected = if id.gap_mean_seconds > 0.0 { duration / id.gap_mean_seconds } else { 0.0 };
        row[EARLY] = log_count(self.early);
        row[OFF_SCHEDULE] = log_count(self.off_schedule);
        row[OFF_SCHEDULE_DEPTH] = self.depth;
        row[OFF_SCHEDULE_BYTES] = log_count(self.off_schedule_bytes);
        row[SHORTEST_GAP] = self.shortest;
        row[MEAN_GAP] = self.log_gaps / self.gaps.max(1.0);
        row[COUNT] = ((count + 0.5) / (expected + 0.5)).ln().clamp(-3.0, 3.0);
        row[JUMPS] = log_count(self.jumps);
        row[LARGE_JUMPS] = log_count(self.large_jumps);
        row[LARGEST_JUMP] = self.largest_jump.clamp(0.0, MOST);
        if self.pairs > 0.0 {
            row[CHANGED_BYTES] = (self.changed / self.pairs - id.changed_bytes) / PAYLOAD_BYTES as f32;
            row[REPEATS] = self.repeats / self.pairs - id.repeats;
        }
        row[RETURNS] = log_count((self.returns - count * id.returns).max(0.0));
    }
}

fn one_if(condition: bool) -> f32 {
    f32::from(u8::from(condition))
}

/// ln(1 + count), at most 3.
fn log_count(count: f32) -> f32 {
    count.ln_1p().min(3.0)
}
