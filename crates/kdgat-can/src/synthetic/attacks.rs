//! The kinds of synthetic attacks: what an attacker does during one episode.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::WINDOW_FRAMES;
use super::bus::LARGEST_STANDARD_ID;
use super::payloads::{Forgery, Payload};
use super::traffic::{IdTraffic, Traffic};
use crate::simulator::random::Stream;

/// Kind of a synthetic attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyntheticKind {
    /// The latest payload of an ID is sent again between its regular frames.
    Injection,
    /// Forged payloads that the ID could have are sent in addition to the true ones.
    SpoofingPlausible,
    /// Forged payloads that the ID never has are sent in addition to the true ones.
    SpoofingImplausible,
    /// Frames of an ID are replaced by forged ones at the same times.
    Masquerade,
    /// One ID of high priority is sent at a high rate.
    Flooding,
    /// Frames of an ID are left out.
    Suppression,
    /// Frames from earlier are sent again.
    Replay,
    /// Frames with random IDs or bytes are sent.
    Fuzzing,
    /// An ID is silent from some moment to the end.
    Removal,
}

impl SyntheticKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Injection,
        Self::SpoofingPlausible,
        Self::SpoofingImplausible,
        Self::Masquerade,
        Self::Flooding,
        Self::Suppression,
        Self::Replay,
        Self::Fuzzing,
        Self::Removal,
    ];

    /// The kinds that come in episodes with pauses between them.
    pub const EPISODIC: [Self; 8] = [
        Self::Injection,
        Self::SpoofingPlausible,
        Self::SpoofingImplausible,
        Self::Masquerade,
        Self::Flooding,
        Self::Suppression,
        Self::Replay,
        Self::Fuzzing,
    ];

    /// The kinds that add frames, which are the default. A masquerade with plausible payloads and most suppressions look like usual
    /// traffic: training windows labelled as such attacks mainly teach false alarms.
    pub const ADDED: [Self; 6] = [
        Self::Injection,
        Self::SpoofingPlausible,
        Self::SpoofingImplausible,
        Self::Flooding,
        Self::Replay,
        Self::Fuzzing,
    ];

    /// The kinds for models that know the car's profile, whose relations between signals also show masquerades.
    pub const FOR_PROFILES: [Self; 7] = [
        Self::Injection,
        Self::SpoofingPlausible,
        Self::SpoofingImplausible,
        Self::Masquerade,
        Self::Flooding,
        Self::Replay,
        Self::Fuzzing,
    ];

    /// Its name in file names and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Injection => "injection",
            Self::SpoofingPlausible => "spoofing-plausible",
            Self::SpoofingImplausible => "spoofing-implausible",
            Self::Masquerade => "masquerade",
            Self::Flooding => "flooding",
            Self::Suppression => "suppression",
            Self::Replay => "replay",
            Self::Fuzzing => "fuzzing",
            Self::Removal => "removal",
        }
    }
}

impl fmt::Display for SyntheticKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A frame that the attacker sends.
pub(super) struct Injection {
    /// Time at which the attacker wants to send it, in seconds.
    pub due: f64,
    pub can_id: u32,
    pub payload: Payload,
    /// Position in the stretch of the frame before which it is sent.
    pub position: usize,
}

/// Change of a frame of the stretch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    Replace(Payload),
    Remove,
}

/// Actions of an attacker during one episode.
pub(super) struct Strike {
    /// Variant of the attack.
    pub manner: String,
    /// IDs under attack.
    pub targets: Vec<u32>,
    /// Frames to send, in order of time.
    pub injections: Vec<Injection>,
    /// Changes by position in the stretch, ascending.
    pub changes: Vec<(usize, Change)>,
    /// True if its frames are labelled attack-free.
    pub is_harmless: bool,
}

/// Attack frames in a window of 100 frames: at least one, at most half of them.
const LEAST_PER_WINDOW: f64 = 1.0;
const MOST_PER_WINDOW: f64 = WINDOW_FRAMES as f64 / 2.0;
/// Shortest and longest period of a flood, in seconds.
const FLOOD_PERIODS: [f64; 2] = [0.000_2, 0.005];
/// Length of frames with IDs that the car does not have, in bytes.
const USUAL_LENGTH: u8 = 8;
/// Shortest usual period of an ID with events, in seconds.
const EVENT_LEAST_PERIOD: f64 = 0.08;
/// Most additional frames of an event.
const EVENT_MOST_FRAMES: usize = 9;
/// The frames of an event follow each other after 2 to 10 times this many seconds.
const EVENT_STEP: f64 = 0.01;
/// Fewest frames of an ID that is removed, before and after.
const LEAST_REMOVED: usize = 10;
/// Delays after a true frame at which a forged one follows it, in seconds.
const FOLLOWING_DELAYS: [f64; 2] = [0.000_05, 0.000_5];

/// The attack of this kind on the frames in `span`; `None` if the traffic gives no target.
pub(super) fn strike(
    kind: SyntheticKind,
    traffic: &Traffic<'_>,
    span: &Range<usize>,
    random: Stream,
) -> Option<Strike> {
    let episode = Episode { traffic, span, random };
    let strike = match kind {
        SyntheticKind::Injection => episode.injection(),
        SyntheticKind::SpoofingPlausible => episode.spoofing(|id| {
            let random = random.child(2);
            Some(Forgery::plausible(traffic, id, random))
        }),
        SyntheticKind::SpoofingImplausible => episode.spoofing(|id| Forgery::implausible(id, random.child(2))),
        SyntheticKind::Masquerade => episode.masquerade(),
        SyntheticKind::Flooding => episode.flooding(),
        SyntheticKind::Suppression => episode.suppression(),
        SyntheticKind::Replay => episode.replay(),
        SyntheticKind::Fuzzing => episode.fuzzing(),
        SyntheticKind::Removal => return episode.removal(),
    };
    strike.map(Strike::without_long_pauses).filter(|strike| !strike.injections.is_empty() || !strike.changes.is_empty())
}

/// No attack: a slow ID sends some frames more, with a new value, as many control units do when a value changes. A model that never sees
/// this takes every early frame for an attack. `None` if the traffic has no slow ID.
pub(super) fn event(traffic: &Traffic<'_>, span: &Range<usize>, random: Stream) -> Option<Strike> {
    Episode { traffic, span, random }.event().filter(|event| !event.injections.is_empty())
}

struct Episode<'a> {
    traffic: &'a Traffic<'a>,
    span: &'a Range<usize>,
    random: Stream,
}

impl<'a> Episode<'a> {
    fn injection(&self) -> Option<Strike> {
        let id = self.pick(|_| true)?;
        // A tenth to ten times the usual period, as far as that gives an attack frame in each window.
        let least = (id.per_window / 10.0).max(LEAST_PER_WINDOW);
        let most = (id.per_window * 10.0).clamp(least, MOST_PER_WINDOW.max(least));
        let times = self.periodic(self.count(self.random.log_between(0, least, most)));
        let frame = |(due, position): (f64, usize)| {
            let payload = Payload::of(self.traffic.latest(id, position));
            Injection { due, can_id: id.can_id, payload, position }
        };
        Some(Strike::sent("latest payload", vec![id.can_id], times.into_iter().map(frame).collect()))
    }

    fn spoofing(&self, forgery: impl Fn(&'a IdTraffic) -> Option<Forgery<'a>>) -> Option<Strike> {
        let id = self.pick(|id| id.length > 0)?;
        let forgery = forgery(id)?;
        let follows = id.per_window >= LEAST_PER_WINDOW && self.random.bits(1) & 1 == 0;
        let times = if follows { self.following(id) } else { self.periodic(self.amount()) };
        let frame = |(number, (due, position)): (usize, (f64, usize))| {
            let payload = forgery.payload(self.traffic.latest(id, position), number);
            Injection { due, can_id: id.can_id, payload, position }
        };
        let manner = format!("{}, {}", forgery.name(), if follows { "after true frames" } else { "periodic" });
        Some(Strike::sent(manner, vec![id.can_id], times.into_iter().enumerate().map(frame).collect()))
    }

    fn masquerade(&self) -> Option<Strike> {
        let ids = self.pick_several(|id| id.per_window <= MOST_PER_WINDOW && !id.varying().is_empty());
        let mut names = Vec::new();
        let mut changes = Vec::new();
        for id in &ids {
            let random = self.random.child(u64::from(id.can_id));
            let forgery = Forgery::masquerade(self.traffic, id, self.span.start, random);
            names.push(forgery.name());
            for (number, &position) in id.within(self.span).iter().enumerate() {
                let truth = &self.traffic.frames[position];
                let forged = forgery.payload(truth, number);
                // A forged frame that equals the true one is no attack that could be seen.
                if forged != Payload::of(truth) {
                    changes.push((position, Change::Replace(forged)));
                }
            }
        }
        changes.sort_by_key(|(position, _)| *position);
        let targets = numbers(&ids);
        Some(Strike { changes, ..Strike::sent(names.join(", "), targets, Vec::new()) })
    }

    fn flooding(&self) -> Option<Strike> {
        let [shortest, longest] = FLOOD_PERIODS;
        let period = self.random.log_between(0, shortest, longest);
        let hosts = self.span.len();
        let count = ((self.seconds() / period) as usize).clamp(1, hosts);
        let (can_id, is_known) = self.flood_id();
        let length = self.traffic.find(can_id).map_or(USUAL_LENGTH, |id| id.length as u8);
        let (manner, payload): (_, Box<dyn Fn(usize) -> Payload>) = match self.random.below(1, 3) {
            0 => ("zeros", Box::new(|_| Payload::random(length, 0))),
            1 => ("one payload", Box::new(|_| Payload::random(length, self.random.bits(2)))),
            _ => (
                "random payloads",
                Box::new(|number| Payload::random(length, self.random.child(3).bits(number as u64))),
            ),
        };
        let frame = |(number, (due, position)): (usize, (f64, usize))| Injection {
            due,
            can_id,
            payload: payload(number),
            position,
        };
        let frames = self.periodic(count).into_iter().enumerate().map(frame).collect();
        let manner = format!("{}, {manner}", if is_known { "known ID" } else { "unknown ID" });
        Some(Strike::sent(manner, vec![can_id], frames))
    }

    /// An ID of high priority, and true if it is one of the traffic.
    fn flood_id(&self) -> (u32, bool) {
        let ids = &self.traffic.ids;
        let first = ids.first().map_or(0, |id| id.can_id);
        let is_known = self.random.bits(4) & 1 == 0;
        if is_known || first == 0 {
            return (ids[self.random.below(5, ids.len().div_ceil(4))].can_id, true);
        }
        (self.random.below(6, first as usize) as u32, false)
    }

    fn suppression(&self) -> Option<Strike> {
        // A missing frame of an ID that most windows lack shows nowhere.
        let in_each_window = |id: &IdTraffic| id.per_window >= LEAST_PER_WINDOW && id.per_window <= MOST_PER_WINDOW;
        let ids = self.pick_several(in_each_window);
        let share = if self.random.uniform(0) < 1.0 / 3.0 { self.random.between(1, 0.2, 0.8) } else { 1.0 };
        let mut positions: Vec<usize> = ids.iter().flat_map(|id| id.within(self.span).iter().copied()).collect();
        positions.sort_unstable();
        positions.retain(|&position| self.random.child(7).uniform(position as u64) < share);
        let manner = if share < 1.0 { "some frames" } else { "all frames" };
        let changes = positions.into_iter().map(|position| (position, Change::Remove)).collect();
        Some(Strike { changes, ..Strike::sent(manner, numbers(&ids), Vec::new()) })
    }

    /// Removes all frames of an ID in the span.
    fn removal(&self) -> Option<Strike> {
        let has_both = |id: &IdTraffic| {
            let after = id.within(self.span).len();
            after >= LEAST_REMOVED && id.positions.len() >= LEAST_REMOVED + after
        };
        let id = self.pick(has_both)?;
        let changes = id.within(self.span).iter().map(|&position| (position, Change::Remove)).collect();
        Some(Strike { changes, ..Strike::sent("all frames to the end", vec![id.can_id], Vec::new()) })
    }

    fn replay(&self) -> Option<Strike> {
        let frames = self.traffic.frames;
        let length = self.span.len().min(self.span.start);
        let from = self.random.below(0, self.span.start - length + 1);
        let earlier = from..from + length;
        let (manner, ids) = match self.random.below(1, 6) {
            0 => ("all IDs", self.traffic.ids.iter().collect()),
            _ => ("some IDs", self.traffic.pick_several(&earlier, self.random.child(2), |_| true)),
        };
        let is_target = |position: &usize| ids.iter().any(|id| id.can_id == frames[*position].can_id);
        let delay = frames.get(self.span.start)?.timestamp - frames.get(from)?.timestamp;
        let ends = frames[self.span.end - 1].timestamp;
        let mut sent: Vec<(f64, usize)> =
            earlier.filter(is_target).map(|position| (frames[position].timestamp + delay, position)).collect();
        sent.retain(|(due, _)| *due <= ends);
        sent.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut next = self.span.start;
        let frame = |(due, from): (f64, usize)| {
            next = self.next_after(due, next);
            let (can_id, payload) = (frames[from].can_id, Payload::of(&frames[from]));
            Injection { due, can_id, payload, position: next }
        };
        let injections: Vec<Injection> = sent.into_iter().map(frame).collect();
        let targets = if manner == "all IDs" { Vec::new() } else { numbers(&ids) };
        Some(Strike::sent(manner, targets, injections))
    }

    fn fuzzing(&self) -> Option<Strike> {
        let ids = &self.traffic.ids;
        let manner = ["random IDs", "known IDs", "changed bytes"][self.random.below(1, 3)];
        let is_extended = 2 * ids.iter().filter(|id| id.can_id > LARGEST_STANDARD_ID).count() > ids.len();
        let largest = if is_extended { (1 << 29) - 1 } else { LARGEST_STANDARD_ID };
        let frame = |(number, (due, position)): (usize, (f64, usize))| {
            let random = self.random.child(2).child(number as u64);
            let id = &ids[random.below(0, ids.len())];
            let (can_id, payload) = match manner {
                "random IDs" => {
                    let can_id = random.below(1, largest as usize + 1) as u32;
                    (can_id, Payload::random(USUAL_LENGTH, random.bits(2)))
                }
                "known IDs" => (id.can_id, Payload::random(id.length as u8, random.bits(2))),
                _ => (id.can_id, changed(Payload::of(self.traffic.latest(id, position)), random)),
            };
            Injection { due, can_id, payload, position }
        };
        let frames = self.periodic(self.amount()).into_iter().enumerate().map(frame).collect();
        Some(Strike::sent(manner, Vec::new(), frames))
    }

    /// A slow ID sends up to nine frames more in quick succession, with one or two changed bytes; its own next frames have them, too.
    fn event(&self) -> Option<Strike> {
        let slowest_per_window = WINDOW_FRAMES as f64 / (self.traffic.frames_per_second * EVENT_LEAST_PERIOD);
        let id = self.pick(|id| id.length > 0 && id.per_window <= slowest_per_window && id.positions.len() > 3)?;
        let start = self.span.start;
        let payload = changed(Payload::of(self.traffic.latest(id, start)), self.random.child(2));
        let (mut due, mut next) = (self.traffic.frames[start].timestamp, start);
        let mut injections = Vec::new();
        for number in 0..1 + self.random.below(3, EVENT_MOST_FRAMES) as u64 {
            next = self.next_after(due, next);
            if next >= self.span.end {
                break;
            }
            injections.push(Injection { due, can_id: id.can_id, payload, position: next });
            due += EVENT_STEP * (2 + self.random.child(4).below(number, 9)) as f64;
        }
        let own = id.within(self.span).iter().take(self.random.below(5, 30));
        let changes = own.map(|&position| (position, Change::Replace(payload))).collect();
        Some(Strike { changes, is_harmless: true, ..Strike::sent("sent on change", vec![id.can_id], injections) })
    }

    fn pick(&self, eligible: impl Fn(&IdTraffic) -> bool) -> Option<&'a IdTraffic> {
        self.traffic.pick(&(0..self.traffic.frames.len()), self.random.child(1), eligible)
    }

    fn pick_several(&self, eligible: impl Fn(&IdTraffic) -> bool) -> Vec<&'a IdTraffic> {
        self.traffic.pick_several(self.span, self.random.child(1), eligible)
    }

    /// Number of frames to send: from one per window to half of the frames, log-uniformly.
    fn amount(&self) -> usize {
        self.count(self.random.log_between(u64::MAX, LEAST_PER_WINDOW, MOST_PER_WINDOW))
    }

    /// Number of frames to send if a window is to have `per_window` of them.
    fn count(&self, per_window: f64) -> usize {
        let hosts = self.span.len();
        let wanted = hosts as f64 * per_window / (WINDOW_FRAMES as f64 - per_window);
        (wanted.round() as usize).clamp(1, hosts)
    }

    /// Seconds from the first frame of the span to the last; 0 if its times do not tell.
    fn seconds(&self) -> f64 {
        let frames = &self.traffic.frames[self.span.clone()];
        let found = match frames {
            [first, .., last] => last.timestamp - first.timestamp,
            _ => 0.0,
        };
        if found.is_finite() { found.max(0.0) } else { 0.0 }
    }

    /// `count` times within the span, each with the position of the next frame: periodic, and up to a tenth of the period late.
    fn periodic(&self, count: usize) -> Vec<(f64, usize)> {
        let begins = self.traffic.frames[self.span.start].timestamp;
        let period = self.seconds() / count as f64;
        let random = self.random.child(u64::MAX);
        let phase = random.between(u64::MAX, 0.0, 0.9);
        let mut next = self.span.start;
        let time = |number: usize| {
            let due = begins + period * (number as f64 + phase + random.between(number as u64, 0.0, 0.1));
            next = self.next_after(due, next);
            (due, next)
        };
        (0..count).map(time).collect()
    }

    /// Times shortly after the frames of an ID, with the positions of the next frames.
    fn following(&self, id: &IdTraffic) -> Vec<(f64, usize)> {
        let random = self.random.child(u64::MAX);
        let [shortest, longest] = FOLLOWING_DELAYS;
        let mut next = self.span.start;
        let mut latest = f64::NEG_INFINITY;
        let time = |&position: &usize| {
            let delay = random.between(position as u64, shortest, longest);
            latest = (self.traffic.frames[position].timestamp + delay).max(latest);
            next = self.next_after(latest, next.max(position + 1));
            (latest, next)
        };
        id.within(self.span).iter().map(time).collect()
    }

    /// Position of the span's first frame from `from` on that is after `due`, or the end of the span.
    fn next_after(&self, due: f64, from: usize) -> usize {
        let later = self.traffic.frames[from..self.span.end].iter().position(|frame| frame.timestamp > due);
        later.map_or(self.span.end, |later| from + later)
    }
}

impl Strike {
    /// An attack that sends frames.
    fn sent(manner: impl Into<String>, targets: Vec<u32>, injections: Vec<Injection>) -> Self {
        Self { manner: manner.into(), targets, injections, changes: Vec::new(), is_harmless: false }
    }

    /// Ends the episode where a window would have no attack frame.
    fn without_long_pauses(mut self) -> Self {
        let sent = self.injections.iter().map(|injection| injection.position);
        let mut positions: Vec<usize> = sent.chain(self.changes.iter().map(|(position, _)| *position)).collect();
        positions.sort_unstable();
        let pause = positions.windows(2).find(|pair| pair[1] - pair[0] > WINDOW_FRAMES);
        if let Some(last) = pause.map(|pair| pair[0]) {
            self.injections.retain(|injection| injection.position <= last);
            self.changes.retain(|(position, _)| *position <= last);
        }
        self
    }

    /// Positions in the stretch from the first attack frame to the last.
    pub fn reach(&self) -> Range<usize> {
        let sent = self.injections.iter().map(|injection| injection.position);
        let positions = || sent.clone().chain(self.changes.iter().map(|(position, _)| *position));
        positions().min().unwrap_or(0)..positions().max().map_or(0, |last| last + 1)
    }
}

fn numbers(ids: &[&IdTraffic]) -> Vec<u32> {
    ids.iter().map(|id| id.can_id).collect()
}

/// The payload with one or two random bytes.
fn changed(mut payload: Payload, random: Stream) -> Payload {
    let length = usize::from(payload.length).min(payload.bytes.len());
    if length > 0 {
        for change in 0..1 + random.below(3, 2) as u64 {
            payload.bytes[random.below(4 + change, length)] = random.bits(6 + change) as u8;
        }
    }
    payload
}
