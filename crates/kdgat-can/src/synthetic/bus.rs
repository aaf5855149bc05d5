//! Puts attack frames among the frames of a log: they occupy the bus, so that later frames may have to wait.

use super::payloads::Payload;
use crate::frame::{Frame, PAYLOAD_BYTES};
use crate::simulator::wire::frame_bits;

/// Longest time that frames wait for the bus because of an attack, in seconds. Attack frames that would make them wait longer are
/// not sent: an attacker cannot send more than the bus carries.
const LONGEST_DELAY_SECONDS: f64 = 0.002;
/// A log whose time steps back this far has started another recording: its frames do not wait for those before, in seconds.
const OTHER_CLOCK_SECONDS: f64 = 1.0;
/// Share of the gaps between frames that are too short to be the time of a frame, because of the recording device.
const SHORT_GAPS: f64 = 0.1;
/// Bits that a frame with an identifier of 29 bits has in addition, without stuff bits.
const EXTENDED_BITS: u32 = 20;
/// Largest identifier of 11 bits.
pub(super) const LARGEST_STANDARD_ID: u32 = 0x7FF;

/// State of the bus behind the last frame of a synthetic log.
#[derive(Debug, Clone, Default)]
pub(super) struct Bus {
    /// Time of a bit, estimated from the log; 0 if unknown.
    seconds_per_bit: f64,
    /// Time of the last frame.
    last: Option<f64>,
    /// Time of the log's last frame, before any delay.
    last_of_log: f64,
    /// True if the next frame must wait until the last one has been sent.
    is_busy: bool,
}

impl Bus {
    /// Estimates the time of a bit from the gaps between frames, of which many are back to back.
    pub fn measure(&mut self, frames: &[Frame]) {
        let gap =
            |pair: &[Frame]| (pair[1].timestamp - pair[0].timestamp) / bits(pair[1].can_id, &Payload::of(&pair[1]));
        let mut gaps: Vec<f64> = frames.windows(2).map(gap).filter(|gap| *gap > 0.0 && gap.is_finite()).collect();
        let short = (SHORT_GAPS * gaps.len() as f64) as usize;
        self.seconds_per_bit = match gaps.is_empty() {
            true => 0.0,
            false => *gaps.select_nth_unstable_by(short, f64::total_cmp).1,
        };
    }

    /// The time at which a frame of the log is sent instead of at `timestamp`.
    pub fn send_own(&mut self, frame: &Frame) -> f64 {
        let restarts = frame.timestamp < self.last_of_log - OTHER_CLOCK_SECONDS;
        self.last_of_log = frame.timestamp;
        let earliest = self.earliest(frame.can_id, &Payload::of(frame)).filter(|_| self.is_busy && !restarts);
        let sent = match earliest.filter(|earliest| frame.timestamp < *earliest) {
            Some(earliest) => earliest,
            None => {
                self.is_busy = false;
                frame.timestamp
            }
        };
        self.last = Some(sent);
        sent
    }

    /// The time at which an attack frame that is due at `due` is sent; `None` if the bus cannot carry it.
    pub fn send_injected(&mut self, due: f64, can_id: u32, payload: &Payload) -> Option<f64> {
        let sent = self.earliest(can_id, payload).map_or(due, |earliest| earliest.max(due));
        if sent - due > LONGEST_DELAY_SECONDS {
            return None;
        }
        let sent = to_microsecond(sent).max(self.last.unwrap_or(sent));
        (self.last, self.is_busy) = (Some(sent), true);
        Some(sent)
    }

    /// The earliest time at which a frame can have been sent after the last one.
    fn earliest(&self, can_id: u32, payload: &Payload) -> Option<f64> {
        let last = self.last?;
        Some(to_microsecond(last + bits(can_id, payload) * self.seconds_per_bit).max(last))
    }
}

/// Bits that a frame occupies the bus for.
fn bits(can_id: u32, payload: &Payload) -> f64 {
    let more = if can_id > LARGEST_STANDARD_ID { EXTENDED_BITS } else { 0 };
    f64::from(frame_bits(can_id, &payload.bytes, payload.length.min(PAYLOAD_BYTES as u8)) + more)
}

/// The nearest whole microsecond, like the times in most logs.
fn to_microsecond(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its bits alternate: it has hardly a stuff bit.
    const PAYLOAD: Payload = Payload { bytes: [0x55; 8], length: 8 };

    fn frame(timestamp: f64) -> Frame {
        Frame { timestamp, can_id: 0x2AA, payload: PAYLOAD.bytes, payload_length: PAYLOAD.length, attack: false }
    }

    /// Seconds of a frame at 500 kbit/s.
    fn frame_seconds() -> f64 {
        2e-6 * bits(0x2AA, &PAYLOAD)
    }

    fn bus() -> Bus {
        let mut bus = Bus::default();
        let frames: Vec<Frame> = (0..100).map(|number| frame(frame_seconds() * f64::from(number))).collect();
        bus.measure(&frames);
        assert!((bus.seconds_per_bit - 2e-6).abs() < 1e-8, "{}", bus.seconds_per_bit);
        bus
    }

    #[test]
    fn frames_wait_for_an_attack_frame_and_catch_up() {
        let mut bus = bus();
        assert_eq!(bus.send_own(&frame(1.0)), 1.0);
        let injected = bus.send_injected(1.000_3, 0x2AA, &PAYLOAD).unwrap();
        assert_eq!(injected, 1.000_3);
        let next: Vec<f64> =
            [1.000_35, 1.000_6, 1.002, 1.002_1].iter().map(|&time| bus.send_own(&frame(time))).collect();
        let expected = [1.000_3 + frame_seconds(), 1.000_3 + 2.0 * frame_seconds()];
        assert!((next[0] - expected[0]).abs() < 2e-6 && (next[1] - expected[1]).abs() < 3e-6, "{next:?}");
        // Nothing waits any more: times are those of the log, even if it has two frames closer than the bus allows.
        assert_eq!(next[2..], [1.002, 1.002_1]);
    }

    #[test]
    fn an_attack_frame_that_would_wait_too_long_is_not_sent() {
        let mut bus = bus();
        bus.send_own(&frame(1.0));
        let sent = (0..100).filter(|_| bus.send_injected(1.0, 0x2AA, &PAYLOAD).is_some()).count();
        assert_eq!(sent, (0.002 / frame_seconds()) as usize, "frames that 2 ms hold");
        assert!(bus.send_own(&frame(1.000_1)) > 1.001_8);
    }

    #[test]
    fn after_a_large_step_back_the_log_goes_on_at_its_own_time() {
        let mut bus = bus();
        bus.send_own(&frame(100.0));
        bus.send_injected(100.001, 0, &PAYLOAD).unwrap();
        assert_eq!(bus.send_own(&frame(50.0)), 50.0);
        bus.send_injected(50.0, 0, &PAYLOAD).unwrap();
        assert!(bus.send_own(&frame(49.9999)) > 50.0, "a small step back is not followed while the bus is busy");
    }

    #[test]
    fn equal_times_leave_the_speed_unknown() {
        let mut bus = Bus::default();
        bus.measure(&[frame(1.0); 5]);
        assert_eq!(bus.send_injected(1.0, 0x2AA, &PAYLOAD), Some(1.0));
        assert_eq!(bus.send_own(&frame(1.0)), 1.0);
    }
}
