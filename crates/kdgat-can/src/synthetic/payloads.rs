//! Forged payloads of one ID: plausible ones from its own traffic, and implausible ones that it never has.

use super::traffic::{IdTraffic, Traffic};
use crate::frame::{Frame, PAYLOAD_BYTES};
use crate::simulator::random::Stream;

/// Payload and length of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Payload {
    pub bytes: [u8; PAYLOAD_BYTES],
    pub length: u8,
}

impl Payload {
    pub fn of(frame: &Frame) -> Self {
        Self { bytes: frame.payload, length: frame.payload_length }
    }

    /// Random bytes.
    pub fn random(length: u8, bits: u64) -> Self {
        let mut bytes = bits.to_le_bytes();
        bytes[usize::from(length).min(PAYLOAD_BYTES)..].fill(0);
        Self { bytes, length }
    }
}

/// A rule that makes the forged payloads of one ID during an episode.
pub(super) enum Forgery<'a> {
    /// The same payload in each frame.
    Repeated(Payload),
    /// The ID's payloads from its frame number `first` on, from the beginning after the last one.
    OtherTime { traffic: &'a Traffic<'a>, id: &'a IdTraffic, first: usize },
    /// The true payload with other values in these bytes, within the range that each of them has.
    InRange { id: &'a IdTraffic, bytes: Vec<usize>, fresh: bool, random: Stream },
    /// The true payload with values in these bytes that they never have.
    Outside { id: &'a IdTraffic, bytes: Vec<usize>, fresh: bool, random: Stream },
    /// The true payload with one byte that drifts to the end of its range, by `step` in each frame.
    Drifting { id: &'a IdTraffic, byte: usize, step: i32 },
    /// The same value in all bytes.
    Constant(u8),
}

/// Values that attackers like to send, in the order of preference before it is rotated.
const CONSTANTS: [u8; 4] = [0xFF, 0x00, 0x55, 0xAA];
/// Smallest number of frames in which a drift crosses a byte's range.
const FASTEST_DRIFT: u64 = 4;
/// Largest number of frames in which a drift crosses a byte's range.
const SLOWEST_DRIFT: u64 = 64;

impl<'a> Forgery<'a> {
    /// A rule for plausible payloads beside the true ones.
    pub fn plausible(traffic: &'a Traffic<'a>, id: &'a IdTraffic, random: Stream) -> Self {
        match random.below(0, 3) {
            0 => Self::InRange { id, bytes: some_of(&id.varying(), random), fresh: random.bits(1) & 1 == 0, random },
            1 => Self::OtherTime { traffic, id, first: random.below(2, id.positions.len()) },
            _ => {
                let position = id.positions[random.below(3, id.positions.len())];
                Self::Repeated(Payload::of(&traffic.frames[position]))
            }
        }
    }

    /// A rule for payloads that the ID never has; `None` if it never has a payload.
    pub fn implausible(id: &'a IdTraffic, random: Stream) -> Option<Self> {
        let open: Vec<usize> = (0..id.length).filter(|&byte| id.bytes[byte].unseen() > 0).collect();
        if id.length == 0 {
            return None;
        }
        if open.is_empty() || random.uniform(0) < 0.3 {
            let first = random.below(1, CONSTANTS.len());
            let constants = (0..CONSTANTS.len()).map(|number| CONSTANTS[(first + number) % CONSTANTS.len()]);
            let is_new = |value: &u8| open.iter().any(|&byte| !id.bytes[byte].has(*value));
            return Some(Self::Constant(constants.clone().find(is_new).unwrap_or(CONSTANTS[first])));
        }
        Some(Self::Outside { id, bytes: some_of(&open, random), fresh: random.bits(2) & 1 == 0, random })
    }

    /// A rule for plausible payloads in place of the true ones from `position` on.
    pub fn masquerade(traffic: &'a Traffic<'a>, id: &'a IdTraffic, position: usize, random: Stream) -> Self {
        let varying = id.varying();
        match random.below(0, 4) {
            0 => Self::OtherTime { traffic, id, first: random.below(1, id.positions.len()) },
            1 if !varying.is_empty() => {
                let byte = varying[random.below(2, varying.len())];
                let range = i32::from(id.bytes[byte].high) - i32::from(id.bytes[byte].low);
                let frames = FASTEST_DRIFT + random.below(3, (SLOWEST_DRIFT - FASTEST_DRIFT) as usize) as u64;
                let step = (range / frames as i32).max(1);
                Self::Drifting { id, byte, step: if random.bits(4) & 1 == 0 { step } else { -step } }
            }
            2 if !varying.is_empty() => {
                Self::InRange { id, bytes: some_of(&varying, random), fresh: random.bits(5) & 1 == 0, random }
            }
            _ => Self::Repeated(Payload::of(traffic.latest(id, position))),
        }
    }

    /// Name of the rule in records.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Repeated(_) => "repeated",
            Self::OtherTime { .. } => "other time",
            Self::InRange { .. } => "in range",
            Self::Outside { .. } => "outside range",
            Self::Drifting { .. } => "drifting",
            Self::Constant(_) => "constant",
        }
    }

    /// The forged payload number `number` of the episode; `truth` is the ID's true frame at that time.
    pub fn payload(&self, truth: &Frame, number: usize) -> Payload {
        let mut forged = Payload::of(truth);
        match self {
            Self::Repeated(payload) => return *payload,
            Self::OtherTime { traffic, id, first } => {
                let position = id.positions[(first + number) % id.positions.len()];
                return Payload::of(&traffic.frames[position]);
            }
            Self::InRange { id, bytes, fresh, random } => {
                let random = random.child(if *fresh { number as u64 } else { u64::MAX });
                for &byte in bytes {
                    let (low, high) = (id.bytes[byte].low, id.bytes[byte].high);
                    forged.bytes[byte] = low + random.below(byte as u64, usize::from(high - low) + 1) as u8;
                }
            }
            Self::Outside { id, bytes, fresh, random } => {
                let random = random.child(if *fresh { number as u64 } else { u64::MAX });
                for &byte in bytes {
                    let unseen = (0..=u8::MAX).filter(|&value| !id.bytes[byte].has(value));
                    let chosen = random.below(byte as u64, id.bytes[byte].unseen());
                    // Only bytes with an unseen value are in the list.
                    forged.bytes[byte] = unseen.clone().nth(chosen).unwrap_or(u8::MAX);
                }
            }
            Self::Drifting { id, byte, step } => {
                let drift = i64::from(*step) * (number as i64 + 1);
                let (low, high) = (i64::from(id.bytes[*byte].low), i64::from(id.bytes[*byte].high));
                forged.bytes[*byte] = (i64::from(forged.bytes[*byte]) + drift).clamp(low, high) as u8;
            }
            Self::Constant(value) => forged.bytes[..usize::from(forged.length)].fill(*value),
        }
        forged
    }
}

/// Some of these bytes, at least one if there are any; all of them in a third of the cases.
fn some_of(bytes: &[usize], random: Stream) -> Vec<usize> {
    let random = random.child(0x5350);
    if bytes.is_empty() || random.uniform(0) < 1.0 / 3.0 {
        return bytes.to_vec();
    }
    let first = random.below(1, bytes.len());
    let is_chosen = |place: &usize| *place == first || random.uniform(2 + *place as u64) < 0.25;
    (0..bytes.len()).filter(is_chosen).map(|place| bytes[place]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let frame = |number: usize| {
            let payload = [0x10, number as u8, (number % 2) as u8 * 40, 0, 0, 0, 0, 0];
            Frame { timestamp: number as f64, can_id: 7, payload, payload_length: 3, attack: false }
        };
        (0..100).map(frame).collect()
    }

    #[test]
    fn plausible_payloads_have_values_that_the_bytes_can_have() {
        let frames = frames();
        let traffic = Traffic::new(&frames);
        let id = traffic.find(7).unwrap();
        let mut names = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let random = Stream::new(seed);
            for forgery in [Forgery::plausible(&traffic, id, random), Forgery::masquerade(&traffic, id, 50, random)] {
                names.insert(forgery.name());
                for number in 0..20 {
                    let Payload { bytes, length } = forgery.payload(&frames[30], number);
                    assert_eq!((bytes[0], length, &bytes[3..]), (0x10, 3, &[0; 5][..]), "{}", forgery.name());
                    assert!(bytes[1] <= 99 && bytes[2] <= 40);
                }
            }
        }
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["drifting", "in range", "other time", "repeated"]);
    }

    #[test]
    fn implausible_payloads_have_a_value_that_was_never_there() {
        let frames = frames();
        let traffic = Traffic::new(&frames);
        let id = traffic.find(7).unwrap();
        for seed in 0..200 {
            let forgery = Forgery::implausible(id, Stream::new(seed)).unwrap();
            let Payload { bytes, length } = forgery.payload(&frames[30], 3);
            assert!((0..3).any(|byte| !id.bytes[byte].has(bytes[byte])), "{} {bytes:?}", forgery.name());
            assert_eq!((length, &bytes[3..]), (3, &[0; 5][..]));
        }
        let empty = Frame { payload: [0; 8], payload_length: 0, ..frames[0] };
        let traffic_without = [empty];
        let without = Traffic::new(&traffic_without);
        assert!(Forgery::implausible(without.find(7).unwrap(), Stream::new(1)).is_none());
    }

    #[test]
    fn a_drift_ends_at_the_end_of_the_range() {
        let frames = frames();
        let traffic = Traffic::new(&frames);
        let id = traffic.find(7).unwrap();
        let drift = Forgery::Drifting { id, byte: 1, step: -3 };
        let values: Vec<u8> = (0..12).map(|number| drift.payload(&frames[30], number).bytes[1]).collect();
        assert_eq!(values, [27, 24, 21, 18, 15, 12, 9, 6, 3, 0, 0, 0]);
    }
}
