//! Payloads and bytes that stand still for longer than is usual.
//!
//! Counters, checksums and noisy sensors change from frame to frame, and an attacker who silences an ID and sends one payload in its place
//! keeps its schedule and its values. What stands still for how long is a matter of the car's state: a byte of noise that changes in most frames may rest in a parked
//! car. So a limit needs a thousand times the traffic of the longest standstill. It then holds for the payload as a whole, and for each byte
//! that changed in every frame.

use std::ops::Range;

use kdgat_can::frame::PAYLOAD_BYTES;

use super::IdProfile;
use crate::history::still_repeated;
use crate::{GraphView, NodeFrame};

/// Most repetitions of a payload in a row that are counted.
pub const MOST_REPEATED: u8 = u8::MAX;
/// Gaps for each frame of the longest standstill, from which on a longer one is unusual.
const EVIDENCE: f32 = 1000.0;
/// A standstill is unusual beyond this multiple of the longest one in the profile, plus [`MORE_FRAMES`].
const LONGER: f32 = 2.0;
/// See [`LONGER`].
const MORE_FRAMES: f32 = 6.0;

/// Follows the repetitions of a node's frames.
pub(super) struct Repetitions {
    first: [u8; PAYLOAD_BYTES],
    /// Those of the latest frame; `None` before the first one.
    latest: Option<[u8; PAYLOAD_BYTES]>,
}

impl Repetitions {
    /// Those of a node's frames, which follow in order of time.
    pub(super) fn of(view: &GraphView<'_>, node: usize) -> Self {
        let mut first = [0; PAYLOAD_BYTES];
        first.copy_from_slice(&view.frames.repeated[node * PAYLOAD_BYTES..][..PAYLOAD_BYTES]);
        Self { first, latest: None }
    }

    /// Frames in a row, up to this one, in which each byte repeated the value before it.
    pub(super) fn at(&mut self, frame: &NodeFrame<'_>) -> [u8; PAYLOAD_BYTES] {
        let of_frame = match (self.latest, frame.previous) {
            (None, _) => self.first,
            (Some(before), Some(previous)) => still_repeated(before, previous, frame.payload),
            (Some(_), None) => [0; PAYLOAD_BYTES],
        };
        self.latest = Some(of_frame);
        of_frame
    }
}

/// Frames in a row that repeated the whole payload.
pub(super) fn of_payload(repeated: &[u8; PAYLOAD_BYTES]) -> u8 {
    repeated.iter().copied().min().unwrap_or(0)
}

/// Limits of an ID, in frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    /// Largest usual number of repetitions of a payload; infinite if too little is known.
    payload: f32,
    /// The same for a byte that changed in every frame.
    byte: f32,
}

impl Limits {
    pub(super) fn of(id: &IdProfile) -> Self {
        let limit = |longest: f32| {
            let frames = longest + 1.0;
            if id.gaps as f32 >= EVIDENCE * frames { LONGER * frames + MORE_FRAMES } else { f32::INFINITY }
        };
        let payload = limit(f32::from(id.longest_standstill));
        // Longer standstills than a limit have to be told apart from it.
        let payload = if payload < f32::from(MOST_REPEATED) { payload } else { f32::INFINITY };
        Self { payload, byte: limit(0.0) }
    }
}

/// A standstill that is longer than usual.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Standstill {
    /// The byte that stands still; `None` for the whole payload.
    pub byte: Option<usize>,
    /// Repetitions in a row.
    pub frames: u8,
    /// Repetitions, divided by the largest usual number; above 1.
    pub ratio: f32,
}

impl Standstill {
    /// The most unusual one of a frame with these repetitions, if it is longer than usual.
    pub(super) fn of(repeated: &[u8; PAYLOAD_BYTES], id: &IdProfile, limits: &Limits) -> Option<Self> {
        let found = |byte, frames: u8, limit: f32| Self { byte, frames, ratio: f32::from(frames) / limit };
        let mut most = found(None, of_payload(repeated), limits.payload);
        for (at, (&frames, byte)) in repeated.iter().zip(&id.bytes).enumerate() {
            if byte.repeats {
                continue;
            }
            let other = found(Some(at), frames, limits.byte);
            if other.ratio > most.ratio {
                most = other;
            }
        }
        (most.ratio > 1.0).then_some(most)
    }

    /// The longest one of a node's frames in the window, if one is longer than usual.
    pub(super) fn longest(
        view: &GraphView<'_>,
        node: usize,
        frames: Range<usize>,
        id: &IdProfile,
        limits: &Limits,
    ) -> Option<Self> {
        let mut repetitions = Repetitions::of(view, node);
        let of_frame = |index| Self::of(&repetitions.at(&view.frames.frame(index)), id, limits);
        frames.filter_map(of_frame).reduce(|one, other| if other.ratio > one.ratio { other } else { one })
    }
}
