//! The IDs of a window that differ from a car's profile most, each with what is unusual about it.
//!
//! Each unusual frame counts by its surprise, −ln of its share in attack-free traffic, and the surprises of an ID are added up: a flood of
//! a hundred frames counts more than one value that a byte never had. Unusual bytes count once for an ID, however many there are: in a
//! driving situation that the profile does not know, they come together and stay.

use super::deviations::{Schedule, Usual};
use super::relations::Disagreement;
use super::standstill::Standstill;
use super::{CarProfile, IdProfile};
use crate::{GraphView, NodeFrame};

/// −ln of the share of gaps below the 0.1 % quantile, or above the 99.9 % quantile.
const UNUSUAL_GAP: f32 = 6.907_755;
/// −ln of the share of changes above the 99.99 % quantile.
const UNUSUAL_CHANGE: f32 = 9.210_34;
/// Disagreement of signals, in units of what is usual, from which more does not count.
const MOST_DISAGREEMENT: f32 = 10.0;

/// An ID of a window and what is unusual about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Culprit {
    /// The ID.
    pub can_id: u32,
    /// Sum of the surprises of its unusual events, in nats.
    pub surprise: f32,
    /// Unusual events, the most surprising first.
    pub reasons: Vec<String>,
    /// Number of its frames that are labelled as attack frames.
    pub attack_frames: usize,
}

impl CarProfile {
    /// The IDs of a window of the profile set that differ most from the profile, at most `most`, the most surprising first. IDs without
    /// anything unusual are left out.
    pub fn culprits(&self, view: &GraphView<'_>, most: usize) -> Vec<Culprit> {
        let mut culprits = self.unusual_nodes(view);
        culprits.retain(|culprit| culprit.surprise > 0.0);
        // The sort is stable: equal surprises stay in the order of the IDs.
        culprits.sort_by(|one, other| other.surprise.total_cmp(&one.surprise));
        culprits.truncate(most);
        culprits
    }

    /// Every node of a window with what is unusual about it, in the order of the nodes; the surprise of a usual one is 0.
    pub fn unusual_nodes(&self, view: &GraphView<'_>) -> Vec<Culprit> {
        let disagreements = self.disagreements(view);
        let mut first_frame = 0;
        let of_node = |node: usize| {
            let frames = first_frame..first_frame + usize::from(view.frames.of_node[node]);
            first_frame = frames.end;
            let attack_frames = frames.clone().filter(|&index| view.frames.frame(index).attack).count();
            let mut events = match self.usual_of(view.can_ids[node]) {
                Some((id, usual)) => self.unusual_events(view, node, frames, id, usual),
                None if frames.is_empty() => Vec::new(),
                None => vec![self.unknown_id(frames.len())],
            };
            events.extend(disagreements.largest(node).and_then(disagreeing));
            events.sort_by(|one, other| other.0.total_cmp(&one.0));
            let surprise: f32 = events.iter().map(|event| event.0).sum();
            let reasons: Vec<String> = events.into_iter().map(|event| event.1).collect();
            Culprit { can_id: view.can_ids[node], surprise, reasons, attack_frames }
        };
        (0..view.num_nodes()).map(of_node).collect()
    }

    fn unknown_id(&self, frames: usize) -> Event {
        let text = format!("an ID that attack-free traffic does not have, {}", counted(frames, "frame"));
        (self.new_id_surprise() * frames as f32, text)
    }
}

/// Surprise and description.
type Event = (f32, String);

/// A signal that does not fit those of other IDs, if it differs by more than is usual.
fn disagreeing(found: &Disagreement<'_>) -> Option<Event> {
    let &Disagreement { size, relation, partner, found, expected } = found;
    let text = format!(
        "{} {found:.0} instead of {expected:.0}, which would fit {} of {:03X}",
        relation.place, partner.place, partner.can_id
    );
    (size > 1.0).then(|| (UNUSUAL_GAP * size.min(MOST_DISAGREEMENT), text))
}

/// A payload or a byte that stands still for longer than is usual.
fn standing_still(found: &Standstill, id: &IdProfile) -> Event {
    let frames = counted(found.frames.into(), "frame");
    let text = match found.byte {
        Some(at) => format!("byte {at} unchanged for {frames}, which changed in every frame of attack-free traffic"),
        None => format!("payload unchanged for {frames}, at most {} usual", id.longest_standstill),
    };
    (UNUSUAL_CHANGE + found.ratio.ln(), text)
}

impl CarProfile {
    fn unusual_events(
        &self,
        view: &GraphView<'_>,
        node: usize,
        frames: std::ops::Range<usize>,
        id: &IdProfile,
        usual: &Usual,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let silence = view.frames.silence[node];
        if silence > usual.high_seconds() {
            let text = format!("silent for {}, at most {} usual", time(silence), time(usual.high_seconds()));
            events.push((UNUSUAL_GAP + (silence / usual.high_seconds()).ln(), text));
        }
        if self.counts_bytes()
            && let Some(found) = Standstill::longest(view, node, frames.clone(), id, usual.standstill())
        {
            events.push(standing_still(&found, id));
        }
        let (mut schedule, mut off_schedule, mut soonest) = (Schedule::before(view, node), 0, f32::INFINITY);
        let mut bytes = UnusualBytes::default();
        for index in frames {
            if let Some(since) = schedule.delay_if_off(view.frames.times[index], usual) {
                off_schedule += 1;
                soonest = soonest.min(since);
            }
            if self.counts_bytes() {
                bytes.add(id, &view.frames.frame(index));
            }
        }
        if off_schedule > 0 {
            let text = format!(
                "{} off schedule, {} after the last one instead of at least {}",
                counted(off_schedule, "frame"),
                time(soonest),
                time(usual.low_seconds())
            );
            events.push((UNUSUAL_GAP * off_schedule as f32, text));
        }
        events.extend(bytes.event(id));
        events
    }
}

/// The first value that a byte never had, and the largest jump.
#[derive(Default)]
struct UnusualBytes {
    unseen: Option<(usize, u8)>,
    /// Position, change, largest usual change.
    jump: Option<(usize, u8, u8)>,
}

impl UnusualBytes {
    fn add(&mut self, id: &IdProfile, frame: &NodeFrame<'_>) {
        for (at, (&value, byte)) in frame.payload[..frame.length].iter().zip(&id.bytes).enumerate() {
            if !byte.has_seen(value) {
                self.unseen = self.unseen.or(Some((at, value)));
            }
            let change = frame.previous.map_or(0, |previous| value.abs_diff(previous[at]));
            let is_larger = self.jump.is_none_or(|(_, largest, _)| change > largest);
            if u16::from(change) > u16::from(byte.change_high) + 1 && is_larger {
                self.jump = Some((at, change, byte.change_high));
            }
        }
    }

    fn event(self, id: &IdProfile) -> Option<Event> {
        let unseen = self.unseen.map(|(at, value)| {
            let text = format!("byte {at} has {value:#04X}, which it never had in attack-free traffic");
            (((id.gaps + 2) as f32).ln(), text)
        });
        let jump = self.jump.map(|(at, change, usual)| {
            (UNUSUAL_CHANGE, format!("byte {at} changes by {change}, at most {usual} is usual"))
        });
        let both = unseen.into_iter().chain(jump);
        both.reduce(|one, other| (one.0.max(other.0), format!("{}; {}", one.1, other.1)))
    }
}

/// A duration in ms below one second, else in s.
fn time(seconds: f32) -> String {
    if seconds < 1.0 { format!("{:.1} ms", 1e3 * seconds) } else { format!("{seconds:.1} s") }
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use kdgat_can::Frame;

    use super::super::test_windows;
    use crate::{Columns, ProfileLearner};

    use super::*;

    const WINDOW: usize = 20;

    fn frame(timestamp: f64, can_id: u32, byte: u8, attack: bool) -> Frame {
        Frame { timestamp, can_id, payload: [byte, 0, 0, 0, 0, 0, 0, 0], payload_length: 8, attack }
    }

    /// 0x100 every 10 ms and 0x200 every 20 ms.
    fn traffic(from: usize, steps: usize) -> Vec<Frame> {
        let step = |at: usize| {
            let time = 0.01 * at as f64;
            let counter = frame(time, 0x100, (at % 4) as u8, false);
            std::iter::once(counter).chain((at.is_multiple_of(2)).then(|| frame(time + 0.001, 0x200, 7, false)))
        };
        (from..from + steps).flat_map(step).collect()
    }

    fn columns(frames: &[Frame]) -> Columns {
        test_windows::of(frames, WINDOW)
    }

    fn profile() -> CarProfile {
        let attack_free = columns(&traffic(0, 2000));
        let learner = ProfileLearner::of((0..attack_free.num_graphs()).map(|graph| attack_free.graph(graph)));
        learner.profile()
    }

    /// The culprits of the last window of `frames`.
    fn culprits(frames: &[Frame]) -> Vec<Culprit> {
        let columns = columns(frames);
        profile().culprits(&columns.graph(columns.num_graphs() - 1), 3)
    }

    #[test]
    fn usual_traffic_has_no_culprit() {
        assert_eq!(culprits(&traffic(0, 400)), []);
    }

    #[test]
    fn a_flood_is_named_before_what_it_displaces() {
        let mut frames = traffic(0, 400);
        let end = frames.last().unwrap().timestamp;
        frames.extend((0..40).map(|at| frame(end + 0.0003 * f64::from(at + 1), 0x200, 7, true)));
        let found = culprits(&frames);
        assert_eq!(found[0].can_id, 0x200);
        assert!(found[0].reasons[0].contains("off schedule"), "{found:?}");
        assert!(found[0].attack_frames > 10, "{found:?}");
    }

    #[test]
    fn a_profile_without_bytes_leaves_them_out() {
        let mut frames = traffic(0, 400);
        frames
            .iter_mut()
            .rev()
            .filter(|frame| frame.can_id == 0x100)
            .take(20)
            .for_each(|frame| frame.payload[0] = 0xEE);
        let columns = columns(&frames);
        let view = columns.graph(columns.num_graphs() - 1);
        let rows = |profile: &CarProfile| {
            let mut rows = Vec::new();
            profile.append_deviations(&view, &mut rows);
            rows
        };
        let (with, without) = (profile(), profile().without_bytes());
        assert!(with.culprits(&view, 3)[0].reasons.iter().any(|reason| reason.contains("0xEE")));
        assert_eq!(without.culprits(&view, 3), []);
        let of_bytes =
            |column: usize| super::super::deviations::OF_BYTES.contains(&(column % crate::profile::DEVIATIONS));
        let mut differ = 0;
        for (column, (with, without)) in rows(&with).into_iter().zip(rows(&without)).enumerate() {
            differ += usize::from(with != without);
            assert!(with == without || (of_bytes(column) && without == 0.0), "{column}: {with} {without}");
        }
        assert!(differ > 0);
        // The file says which of both it is.
        let read: CarProfile = serde_json::from_str(&serde_json::to_string(&without).unwrap()).unwrap();
        assert!(!read.counts_bytes() && read == without && read != with && !read.is_same_as(&with));
        assert!(!serde_json::to_string(&with).unwrap().contains("counts_bytes"));
    }

    #[test]
    fn an_unknown_id_and_an_unseen_byte_are_explained() {
        let mut frames = traffic(0, 400);
        let end = 4.0;
        frames.extend((0..24).map(|at| {
            let time = end + 0.01 * f64::from(at);
            if at == 9 {
                frame(time - 0.002, 0x7FF, 1, true)
            } else {
                frame(time, 0x100, if at == 12 { 0xEE } else { 1 }, at == 12)
            }
        }));
        let found = culprits(&frames);
        let of = |can_id: u32| found.iter().find(|culprit| culprit.can_id == can_id).unwrap().reasons.join("; ");
        assert!(of(0x7FF).contains("does not have, 1 frame"), "{found:?}");
        assert!(of(0x100).contains("byte 0 has 0xEE, which it never had"), "{found:?}");
    }
}
