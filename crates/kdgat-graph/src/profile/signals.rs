//! Signals of an ID: bytes and 16-bit words of its payloads, as their means over a window.
//!
//! A value of two bytes is a sum of its bytes, so the means of the eight bytes give the mean of every signal. Nobody has to know which
//! bytes belong together: the ones that no relation holds for are left out by the [learner](super::relation_learner).

use std::fmt;

use kdgat_can::frame::PAYLOAD_BYTES;
use serde::{Deserialize, Serialize};

use crate::GraphView;

/// Place of a signal in a payload: one byte, or two of any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The byte of the higher value; `None` for a signal of one byte.
    pub high: Option<u8>,
    /// The byte of the lower value.
    pub low: u8,
}

impl Place {
    /// All places: each byte, and each pair of neighbouring bytes in both orders.
    pub fn all() -> impl Iterator<Item = Self> {
        let bytes = (0..PAYLOAD_BYTES as u8).map(|low| Self { high: None, low });
        let first = 0..PAYLOAD_BYTES as u8 - 1;
        bytes.chain(first.flat_map(|at| [Self { high: Some(at), low: at + 1 }, Self { high: Some(at + 1), low: at }]))
    }

    /// True if both bytes lie in a payload.
    pub fn is_valid(self) -> bool {
        usize::from(self.low) < PAYLOAD_BYTES && self.high.is_none_or(|high| usize::from(high) < PAYLOAD_BYTES)
    }

    /// 256 times the value of the high byte, plus that of the low one.
    fn of(self, value: impl Fn(usize) -> f64) -> f64 {
        let low = value(usize::from(self.low));
        self.high.map_or(low, |high| 256.0 * value(usize::from(high)) + low)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.high {
            None => write!(formatter, "byte {}", self.low),
            Some(high) => write!(formatter, "bytes {high} and {}", self.low),
        }
    }
}

/// Sums of the bytes of an ID's frames in a window; integers, so that they are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteSums {
    frames: u32,
    /// Sum of each byte.
    sums: [u32; PAYLOAD_BYTES],
    /// Sum of each byte over the later half of the frames, less that over the earlier half.
    changes: [i32; PAYLOAD_BYTES],
}

impl ByteSums {
    /// The sums of these payloads, in order of time; `None` if there are none.
    pub fn of(payloads: &[&[u8]]) -> Option<Self> {
        let frames = payloads.len();
        let half = frames / 2;
        let (mut sums, mut changes) = ([0u32; PAYLOAD_BYTES], [0i32; PAYLOAD_BYTES]);
        for (number, payload) in payloads.iter().enumerate() {
            let sign = i32::from(number >= frames - half) - i32::from(number < half);
            for (at, &value) in payload.iter().take(PAYLOAD_BYTES).enumerate() {
                sums[at] += u32::from(value);
                changes[at] += sign * i32::from(value);
            }
        }
        (frames > 0).then_some(Self { frames: frames as u32, sums, changes })
    }

    /// The sums of all nodes of a window: of their attack-free frames alone if `without_attacks`.
    pub fn of_nodes(view: &GraphView<'_>, without_attacks: bool) -> Vec<Option<Self>> {
        let mut first_frame = 0;
        let of_node = |&frames: &u16| {
            let frames = first_frame..first_frame + usize::from(frames);
            first_frame = frames.end;
            let frames = frames.map(|index| view.frames.frame(index));
            let payloads = frames.filter(|frame| !(without_attacks && frame.attack)).map(|frame| frame.payload);
            Self::of(&payloads.collect::<Vec<_>>())
        };
        view.frames.of_node.iter().map(of_node).collect()
    }

    /// Mean of a signal over the window.
    pub fn mean(&self, place: Place) -> f64 {
        place.of(|at| f64::from(self.sums[at])) / f64::from(self.frames)
    }

    /// Mean of a signal over the later half of the frames, less that over the earlier half.
    pub fn change(&self, place: Place) -> f64 {
        place.of(|at| f64::from(self.changes[at])) / f64::from((self.frames / 2).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_the_sum_of_its_bytes() {
        let payloads: [[u8; PAYLOAD_BYTES]; 3] =
            [[1, 2, 0, 0, 0, 0, 0, 9], [3, 4, 0, 0, 0, 0, 0, 9], [5, 0, 0, 0, 0, 0, 0, 9]];
        let sums = ByteSums::of(&payloads.each_ref().map(|payload| &payload[..])).unwrap();
        let mean = |high, low| sums.mean(Place { high, low });
        assert_eq!((mean(None, 0), mean(None, 1), mean(None, 7)), (3.0, 2.0, 9.0));
        assert_eq!((mean(Some(0), 1), mean(Some(1), 0)), (770.0, 515.0));
        // The middle frame belongs to neither half.
        assert_eq!(sums.change(Place { high: Some(0), low: 1 }), 256.0 * 4.0 - 2.0);
        assert_eq!(ByteSums::of(&[]), None);
    }

    #[test]
    fn every_place_lies_in_a_payload_and_is_listed_once() {
        let places: Vec<Place> = Place::all().collect();
        assert_eq!(places.len(), 8 + 14);
        assert!(places.iter().all(|place| place.is_valid()));
        let distinct: std::collections::BTreeSet<_> = places.iter().collect();
        assert_eq!(distinct.len(), places.len());
        assert!(!Place { high: Some(8), low: 0 }.is_valid());
    }
}
