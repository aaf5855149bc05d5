//! Measures the duration of traffic, and stops at a limit.

use kdgat_can::Frame;

/// Maximum seconds counted between two frames: concatenated logs have gaps of days.
const LONGEST_STEP: f64 = 1.0;

/// Counts the seconds of traffic over one log after another.
#[derive(Debug, Clone, Default)]
pub struct Duration {
    seconds: f64,
    last: Option<f64>,
    limit: Option<f64>,
}

impl Duration {
    /// Creates a count that is full at `limit` seconds.
    pub fn up_to(limit: Option<f64>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Seconds counted so far.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// True if the limit is reached.
    pub fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.seconds >= limit)
    }

    /// Starts another log.
    pub fn next_log(&mut self) {
        self.last = None;
    }

    /// Counts frames up to the limit and returns their number. A step back in time adds no time.
    pub fn count(&mut self, frames: &[Frame]) -> usize {
        for (position, frame) in frames.iter().enumerate() {
            if self.is_full() {
                return position;
            }
            let step = self.last.map_or(0.0, |last| frame.timestamp - last);
            self.seconds += if step > 0.0 { step.min(LONGEST_STEP) } else { 0.0 };
            self.last = Some(frame.timestamp);
        }
        frames.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(timestamp: f64) -> Frame {
        Frame { timestamp, can_id: 1, payload: [0; 8], payload_length: 0, attack: false }
    }

    #[test]
    fn gaps_and_steps_back_do_not_count_as_traffic() {
        let mut duration = Duration::default();
        assert_eq!(duration.count(&[1.0, 1.5, 1.25, 1.5, 90_000.0, 90_000.5].map(frame)), 6);
        assert_eq!(duration.seconds(), 0.5 + 0.25 + LONGEST_STEP + 0.5);
        duration.next_log();
        duration.count(&[5.0, 5.25].map(frame));
        assert_eq!(duration.seconds(), 2.5);
    }

    #[test]
    fn the_count_ends_with_the_frame_that_fills_it() {
        let mut duration = Duration::up_to(Some(1.0));
        assert_eq!(duration.count(&[0.0, 0.5].map(frame)), 2);
        assert_eq!(duration.count(&[1.0, 1.5, 2.0].map(frame)), 1);
        assert!(duration.is_full());
        duration.next_log();
        assert_eq!(duration.count(&[0.0].map(frame)), 0);
    }
}
