//! Attacks on the simulated bus: kinds, intensities, and the frames an attacker sends during an episode.

use serde::{Deserialize, Serialize};

use super::bus::{ControlUnit, Message};
use super::messages::MESSAGES;
use super::random::Stream;
use super::vehicle::State;
use crate::frame::{Frame, PAYLOAD_BYTES};

/// Kind of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttackKind {
    /// Frames of high priority block the others.
    Flooding,
    /// Frames with random content.
    Fuzzing,
    /// Forged values of a signal are sent in addition to the true ones.
    Spoofing,
    /// Traffic recorded earlier in the drive is sent again.
    Replay,
    /// A message, or all messages of a control unit, are suppressed.
    Suspension,
    /// Forged values are sent instead of the true ones, while the sender is silenced.
    Masquerade,
}

/// Strength of an attack: the stronger, the easier to detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intensity {
    /// Hard to detect.
    Low,
    /// Between the two.
    Medium,
    /// Easy to detect.
    High,
}

/// One attack within a drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Kind of the attack.
    pub kind: AttackKind,
    /// Strength of the attack.
    pub intensity: Intensity,
    /// Beginning, in nanoseconds since the start of the drive.
    pub start_nanoseconds: u64,
    /// End, in nanoseconds since the start of the drive.
    pub end_nanoseconds: u64,
    /// IDs under attack; empty if the attack does not target particular IDs.
    pub target_ids: Vec<u32>,
}

/// A frame that the attacker sends.
#[derive(Debug, Clone, Copy)]
pub struct Injection {
    /// Earliest time to send it, in nanoseconds since the start of the drive.
    pub due_nanoseconds: u64,
    /// Its arbitration ID.
    pub can_id: u32,
    /// Its payload.
    pub payload: [u8; PAYLOAD_BYTES],
    /// Payload length in bytes.
    pub length: u8,
}

/// Effect of the attack on a frame that a control unit sends during an episode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// The frame is sent unchanged.
    Send,
    /// The frame is suppressed.
    Suppress,
    /// The attacker sends this payload instead.
    Replace([u8; PAYLOAD_BYTES]),
}

/// Messages whose signals an attacker forges: engine speed, wheel speeds, steering, speed, gear.
const FORGEABLE_IDS: [u32; 6] = [0x0A0, 0x0B0, 0x0B4, 0x0C2, 0x0D1, 0x153];
/// Control units that an attacker silences or replays as a whole.
const MAJOR_UNITS: [ControlUnit; 3] = [ControlUnit::Engine, ControlUnit::Brakes, ControlUnit::Transmission];
const MILLISECOND: u64 = 1_000_000;

impl Episode {
    /// Creates an episode and draws its targets; `span` is its beginning and end in nanoseconds.
    pub fn new(kind: AttackKind, intensity: Intensity, span: (u64, u64), random: Stream) -> Episode {
        use AttackKind::*;
        use Intensity::*;
        let pick = |ids: Vec<u32>| vec![ids[random.below(0, ids.len())]];
        let with_period = |periods: &[u32]| {
            let fits =
                |message: &&Message| message.period_milliseconds().is_some_and(|period| periods.contains(&period));
            MESSAGES.iter().filter(fits).map(|message| message.can_id).collect::<Vec<_>>()
        };
        let target_ids = match (kind, intensity) {
            (Flooding, High | Medium) | (Fuzzing, _) => vec![],
            (Flooding, Low) => pick(with_period(&[10])),
            (Spoofing | Masquerade, _) => pick(FORGEABLE_IDS.to_vec()),
            (Replay | Suspension, High) => {
                let unit = MAJOR_UNITS[random.below(0, MAJOR_UNITS.len())];
                MESSAGES.iter().filter(|message| message.sender == unit).map(|message| message.can_id).collect()
            }
            (Replay | Suspension, Medium) => pick(with_period(&[10, 20])),
            (Replay | Suspension, Low) => pick(with_period(&[50, 100])),
        };
        Episode { kind, intensity, start_nanoseconds: span.0, end_nanoseconds: span.1, target_ids }
    }

    /// True if the episode is active at time `nanoseconds`.
    pub fn covers(&self, nanoseconds: u64) -> bool {
        (self.start_nanoseconds..self.end_nanoseconds).contains(&nanoseconds)
    }

    /// Elapsed share of the episode, 0 to 1.
    fn progress(&self, nanoseconds: u64) -> f64 {
        let passed = nanoseconds.saturating_sub(self.start_nanoseconds) as f64;
        passed / (self.end_nanoseconds - self.start_nanoseconds) as f64
    }

    /// The frames that the attacker has planned when the episode begins, in order of time.
    ///
    /// `history` holds the drive's frames so far, `began_nanoseconds` their start times on the bus.
    pub fn prepared(&self, random: Stream, history: &[Frame], began_nanoseconds: &[u64]) -> Vec<Injection> {
        use Intensity::*;
        match self.kind {
            AttackKind::Flooding => self.flood(random, history),
            AttackKind::Fuzzing => match self.intensity {
                High => self.every(1_500_000, random, |_, r| (r.below(0, 0x800) as u32, r.bits(1).to_le_bytes(), 8)),
                Medium => self.every(5 * MILLISECOND, random, |_, r| {
                    let message = &MESSAGES[r.below(0, MESSAGES.len())];
                    (message.can_id, r.bits(1).to_le_bytes(), message.length)
                }),
                Low => self.every(35 * MILLISECOND, random, |_, r| {
                    let message = &MESSAGES[r.below(0, MESSAGES.len())];
                    let mut payload = last_payload(history, message.can_id);
                    for change in 0..2 {
                        payload[r.below(2 + change, usize::from(message.length))] = r.bits(4 + change) as u8;
                    }
                    (message.can_id, payload, message.length)
                }),
            },
            AttackKind::Replay => self.replay(random, history, began_nanoseconds),
            AttackKind::Spoofing | AttackKind::Suspension | AttackKind::Masquerade => vec![],
        }
    }

    fn flood(&self, random: Stream, history: &[Frame]) -> Vec<Injection> {
        let episode = random.child(u64::MAX);
        match self.intensity {
            Intensity::High => self.every(300_000, random, |_, _| (0x000, [0; PAYLOAD_BYTES], 8)),
            Intensity::Medium => {
                let can_id = 1 + episode.below(0, 0x7F) as u32;
                let payload = episode.bits(1).to_le_bytes();
                self.every(MILLISECOND, random, |_, _| (can_id, payload, 8))
            }
            Intensity::Low => {
                let message = message_of(self.target_ids[0]);
                let payload = last_payload(history, message.can_id);
                self.every(4 * MILLISECOND, random, |_, _| (message.can_id, payload, message.length))
            }
        }
    }

    /// One injection every `period` nanoseconds, delayed by up to a fifth of the period.
    fn every(
        &self,
        period: u64,
        random: Stream,
        frame: impl Fn(u64, Stream) -> (u32, [u8; PAYLOAD_BYTES], u8),
    ) -> Vec<Injection> {
        let count = (self.end_nanoseconds - self.start_nanoseconds) / period;
        let injection = |index| {
            let jitter = random.below(index, (period / 5) as usize + 1) as u64;
            let (can_id, payload, length) = frame(index, random.child(index));
            Injection { due_nanoseconds: self.start_nanoseconds + index * period + jitter, can_id, payload, length }
        };
        (0..count).map(injection).collect()
    }

    /// The targets' frames from an earlier stretch of the same length, which ended at least 2 s before the episode.
    fn replay(&self, random: Stream, history: &[Frame], began_nanoseconds: &[u64]) -> Vec<Injection> {
        let length = self.end_nanoseconds - self.start_nanoseconds;
        let latest = self.start_nanoseconds.saturating_sub(length + 2_000 * MILLISECOND);
        // A drive on a route does not remember its beginning.
        let earliest =
            began_nanoseconds.first().map_or(0, |first| if *first > 1_000 * MILLISECOND { *first } else { 0 });
        let from = earliest + random.below(u64::MAX, latest.saturating_sub(earliest) as usize + 1) as u64;
        let recorded = history.iter().zip(began_nanoseconds);
        let wanted = recorded.filter(|(frame, began)| {
            (from..from + length).contains(*began) && !frame.attack && self.target_ids.contains(&frame.can_id)
        });
        let injection = |(frame, began): (&Frame, &u64)| Injection {
            due_nanoseconds: self.start_nanoseconds + (began - from),
            can_id: frame.can_id,
            payload: frame.payload,
            length: frame.payload_length,
        };
        wanted.map(injection).collect()
    }

    /// Decides about the frame number `index` of `message`, which its sender computed from `state` at time `at` (nanoseconds).
    /// `frozen` is the car's state at the beginning of the episode.
    pub fn judge(
        &self,
        message: &Message,
        index: u64,
        at: u64,
        state: &State,
        frozen: &State,
        noise: Stream,
    ) -> Verdict {
        if !self.covers(at) || !self.target_ids.contains(&message.can_id) {
            return Verdict::Send;
        }
        match (self.kind, self.intensity) {
            (AttackKind::Suspension, _) => Verdict::Suppress,
            (AttackKind::Masquerade, intensity) => {
                let forged = match intensity {
                    Intensity::High => forge(state, Intensity::High, 1.0),
                    Intensity::Medium => *frozen,
                    Intensity::Low => forge(state, Intensity::Medium, 0.6 * self.progress(at)),
                };
                Verdict::Replace(message.encode(&forged, index, noise))
            }
            _ => Verdict::Send,
        }
    }

    /// Forged frames that follow a true one, whose transmission ended at `sent_nanoseconds`.
    pub fn follow_up(
        &self,
        message: &Message,
        index: u64,
        sent_nanoseconds: u64,
        state: &State,
        noise: Stream,
    ) -> Vec<Injection> {
        let targeted = self.kind == AttackKind::Spoofing && self.target_ids.contains(&message.can_id);
        if !targeted || !self.covers(sent_nanoseconds) {
            return vec![];
        }
        let period = u64::from(message.period_milliseconds().unwrap_or(10)) * MILLISECOND;
        let copies = match self.intensity {
            Intensity::High => 3,
            Intensity::Medium => 1,
            Intensity::Low => u64::from(index.is_multiple_of(4)),
        };
        let forged = message.encode(&forge(state, self.intensity, 1.0), index + 1, noise);
        let injection = |copy| Injection {
            due_nanoseconds: sent_nanoseconds + 150_000 + copy * period / 4,
            can_id: message.can_id,
            payload: forged,
            length: message.length,
        };
        (0..copies).map(injection).collect()
    }
}

/// The car's state as the attacker forges it; `share` interpolates from the true values (0) to the forged ones (1).
fn forge(state: &State, intensity: Intensity, share: f64) -> State {
    let (speed, engine_speed, steering_angle, gear) = match intensity {
        Intensity::High => (220.0, 7_000.0, 380.0, 7 - state.gear),
        Intensity::Medium => (
            state.speed * 1.4 + 15.0,
            state.engine_speed * 1.4 + 600.0,
            state.steering_angle + 70.0,
            state.gear.max(2) - 1,
        ),
        Intensity::Low => (
            state.speed * 1.1 + 4.0,
            state.engine_speed * 1.1 + 150.0,
            state.steering_angle + 15.0,
            state.gear.max(2) - 1,
        ),
    };
    let toward = |truth: f64, lie: f64| truth + share * (lie - truth);
    let mut forged = *state;
    forged.speed = toward(state.speed, speed);
    forged.engine_speed = toward(state.engine_speed, engine_speed);
    forged.steering_angle = toward(state.steering_angle, steering_angle);
    forged.gear = if share > 0.3 { gear } else { state.gear };
    forged
}

/// The last payload sent with this ID, zeros if there is none.
fn last_payload(history: &[Frame], can_id: u32) -> [u8; PAYLOAD_BYTES] {
    history.iter().rev().find(|frame| frame.can_id == can_id).map_or([0; PAYLOAD_BYTES], |frame| frame.payload)
}

/// The message with this ID; targets are always chosen among [`MESSAGES`].
fn message_of(can_id: u32) -> &'static Message {
    MESSAGES.iter().find(|message| message.can_id == can_id).unwrap_or(&MESSAGES[0])
}
