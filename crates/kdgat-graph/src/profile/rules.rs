//! Rules of a line each that count what attack-free traffic does not have: the baselines that every model has to beat.

use super::CarProfile;
use super::deviations::Schedule;
use super::standstill::Standstill;
use crate::GraphView;

/// A rule; it counts frames or bytes of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Frames with an ID that the profile does not have.
    UnknownId,
    /// Frames that come after less than half the shortest usual gap of their ID.
    Early,
    /// Frames that come too soon after the last frame of their ID that was on schedule.
    OffSchedule,
    /// Bytes with a value that they never had.
    UnseenByte,
    /// Bytes that change by more than the 99.99 % quantile of their changes, plus 1.
    ByteJump,
    /// IDs that send regularly and have been silent for three times their longest usual gap.
    Missing,
    /// Signals that disagree with those of other IDs by more than is usual.
    Disagreement,
    /// IDs whose payload, or a byte that changes in every frame, stands still for longer than is usual.
    Standstill,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 8] = [
        Self::UnknownId,
        Self::Early,
        Self::OffSchedule,
        Self::UnseenByte,
        Self::ByteJump,
        Self::Missing,
        Self::Disagreement,
        Self::Standstill,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownId => "unknown-id",
            Self::Early => "early",
            Self::OffSchedule => "off-schedule",
            Self::UnseenByte => "unseen-byte",
            Self::ByteJump => "byte-jump",
            Self::Missing => "missing",
            Self::Disagreement => "disagreement",
            Self::Standstill => "standstill",
        }
    }
}

/// Silence, in longest usual gaps, from which an ID is missing.
const MISSING_GAPS: f32 = 3.0;

impl CarProfile {
    /// True if a byte of the window has a value that it never had, or changes by more than is usual.
    pub fn has_unusual_bytes(&self, view: &GraphView<'_>) -> bool {
        let counts = self.rule_counts(view);
        counts[Rule::UnseenByte as usize] > 0 || counts[Rule::ByteJump as usize] > 0
    }

    /// What each rule counts in a window of the profile set, in the order of [`Rule::ALL`].
    pub fn rule_counts(&self, view: &GraphView<'_>) -> [u32; Rule::ALL.len()] {
        let mut counts = [0; Rule::ALL.len()];
        let disagreements = self.disagreements(view);
        let mut first_frame = 0;
        for node in 0..view.num_nodes() {
            let frames = first_frame..first_frame + usize::from(view.frames.of_node[node]);
            first_frame = frames.end;
            let Some((id, usual)) = self.usual_of(view.can_ids[node]) else {
                counts[Rule::UnknownId as usize] += frames.len() as u32;
                continue;
            };
            let disagreeing = disagreements.of(node).iter().filter(|found| found.size > 1.0).count();
            counts[Rule::Disagreement as usize] += disagreeing as u32;
            let silence = view.frames.silence[node];
            counts[Rule::Missing as usize] += u32::from(silence > MISSING_GAPS * usual.high_seconds());
            let standstill = Standstill::longest(view, node, frames.clone(), id, usual.standstill());
            counts[Rule::Standstill as usize] += u32::from(standstill.is_some());
            let mut schedule = Schedule::before(view, node);
            for index in frames {
                let frame = view.frames.frame(index);
                let early = frame.gap_seconds < 0.5 * id.gap_low_seconds;
                counts[Rule::Early as usize] += u32::from(early);
                let off_schedule = schedule.delay_if_off(view.frames.times[index], usual).is_some();
                counts[Rule::OffSchedule as usize] += u32::from(off_schedule);
                for (at, (&value, byte)) in frame.payload[..frame.length].iter().zip(&id.bytes).enumerate() {
                    counts[Rule::UnseenByte as usize] += u32::from(!byte.has_seen(value));
                    let change = frame.previous.map_or(0, |previous| value.abs_diff(previous[at]));
                    let jumps = u16::from(change) > u16::from(byte.change_high) + 1;
                    counts[Rule::ByteJump as usize] += u32::from(jumps);
                }
            }
        }
        counts
    }
}
