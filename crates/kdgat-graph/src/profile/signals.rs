//! Signals of an ID: bytes and 16-bit words of its payloads, as their means over a window and their spreads within it.
//!
//! A value of two bytes is a sum of its bytes, so the means of the eight bytes give the mean of every signal. Nobody has to know which
//! bytes belong together: the ones that no relation holds for are left out by the [learner](super::relation_learner).

use std::fmt;

use kdgat_can::frame::PAYLOAD_BYTES;
use serde::{Deserialize, Serialize};

use crate::GraphView;
use crate::columns::NodeFrame;

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

    /// Position in [`Place::all`].
    fn index(self) -> usize {
        let low = usize::from(self.low);
        match self.high.map(usize::from) {
            None => low,
            Some(high) if high < low => PAYLOAD_BYTES + 2 * high,
            Some(_) => PAYLOAD_BYTES + 2 * low + 1,
        }
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

/// Number of places.
const PLACES: usize = PAYLOAD_BYTES + 2 * (PAYLOAD_BYTES - 1);

/// The values at all places of a payload, by [`Place::index`].
fn values_of(payload: &[u8]) -> [u16; PLACES] {
    let byte = |at: usize| u16::from(payload[at]);
    let mut values = [0; PLACES];
    (0..PAYLOAD_BYTES).for_each(|at| values[at] = byte(at));
    for at in 0..PAYLOAD_BYTES - 1 {
        values[PAYLOAD_BYTES + 2 * at] = byte(at) << 8 | byte(at + 1);
        values[PAYLOAD_BYTES + 2 * at + 1] = byte(at + 1) << 8 | byte(at);
    }
    values
}

/// Signals of an ID's frames in a window, as integers, so that they are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowSignals {
    frames: u32,
    /// Sum of each byte over the frames.
    sums: [u32; PAYLOAD_BYTES],
    /// `[PLACES]`, by [`Place::index`]: the largest value less the smallest, of the frames and the one before them.
    spreads: [u16; PLACES],
}

impl WindowSignals {
    /// Those of these frames, in order of time; `None` if there are none.
    pub fn of<'a>(frames: impl Iterator<Item = NodeFrame<'a>>) -> Option<Self> {
        let (mut count, mut sums) = (0, [0u32; PAYLOAD_BYTES]);
        let (mut least, mut most) = ([u16::MAX; PLACES], [0u16; PLACES]);
        let mut widen = |payload: &[u8]| {
            let values = values_of(payload);
            least.iter_mut().zip(&values).for_each(|(least, &value)| *least = (*least).min(value));
            most.iter_mut().zip(&values).for_each(|(most, &value)| *most = (*most).max(value));
        };
        for frame in frames {
            if count == 0
                && let Some(before) = frame.previous
            {
                widen(before);
            }
            count += 1;
            widen(frame.payload);
            sums.iter_mut().zip(frame.payload).for_each(|(sum, &value)| *sum += u32::from(value));
        }
        (count > 0).then(|| Self { frames: count, sums, spreads: std::array::from_fn(|at| most[at] - least[at]) })
    }

    /// Those of all nodes of a window: of their attack-free frames alone if `without_attacks`.
    pub fn of_nodes(view: &GraphView<'_>, without_attacks: bool) -> Vec<Option<Self>> {
        let mut first_frame = 0;
        let of_node = |&frames: &u16| {
            let frames = first_frame..first_frame + usize::from(frames);
            first_frame = frames.end;
            let frames = frames.map(|index| view.frames.frame(index));
            Self::of(frames.filter(|frame| !(without_attacks && frame.attack)))
        };
        view.frames.of_node.iter().map(of_node).collect()
    }

    /// Mean of a signal over the window.
    pub fn mean(&self, place: Place) -> f64 {
        place.of(|at| f64::from(self.sums[at])) / f64::from(self.frames)
    }

    /// The largest value of a signal less the smallest, in the window and in the frame before it.
    pub fn spread(&self, place: Place) -> f64 {
        f64::from(self.spreads[place.index()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_the_sum_of_its_bytes() {
        let payloads: [[u8; PAYLOAD_BYTES]; 3] =
            [[1, 2, 0, 0, 0, 0, 0, 9], [3, 4, 0, 0, 0, 0, 0, 9], [5, 0, 0, 0, 0, 0, 0, 9]];
        let before = [0, 0, 0, 0, 0, 0, 0, 8];
        let frame = |payload| NodeFrame {
            gap_seconds: 0.1,
            payload,
            length: PAYLOAD_BYTES,
            previous: Some(&before[..]),
            returns: false,
            attack: false,
        };
        let signals = WindowSignals::of(payloads.iter().map(|payload| frame(&payload[..]))).unwrap();
        let mean = |high, low| signals.mean(Place { high, low });
        assert_eq!((mean(None, 0), mean(None, 1), mean(None, 7)), (3.0, 2.0, 9.0));
        assert_eq!((mean(Some(0), 1), mean(Some(1), 0)), (770.0, 515.0));
        // From 0 in the frame before the window to 256 · 5.
        assert_eq!(signals.spread(Place { high: Some(0), low: 1 }), 1280.0);
        assert_eq!(signals.spread(Place { high: Some(1), low: 0 }), 1027.0);
        assert_eq!(signals.spread(Place { high: None, low: 7 }), 1.0);
        assert_eq!(WindowSignals::of([].into_iter()), None);
    }

    #[test]
    fn every_place_lies_in_a_payload_and_is_listed_once() {
        let places: Vec<Place> = Place::all().collect();
        assert_eq!(places.len(), 8 + 14);
        assert!(places.iter().all(|place| place.is_valid()));
        assert!(places.iter().enumerate().all(|(index, place)| place.index() == index));
        let payload = [1, 20, 3, 40, 5, 60, 7, 80];
        for (place, value) in places.iter().zip(values_of(&payload)) {
            assert_eq!(place.of(|at| f64::from(payload[at])), f64::from(value), "{place}");
        }
        let distinct: std::collections::BTreeSet<_> = places.iter().collect();
        assert_eq!(distinct.len(), places.len());
        assert!(!Place { high: Some(8), low: 0 }.is_valid());
    }
}
