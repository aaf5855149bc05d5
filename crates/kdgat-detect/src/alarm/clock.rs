//! A clock that only advances, driven by times that may step back or be no numbers.

/// Seconds counted at most for one step: longer than any limit that uses the clock.
pub const LONGEST_STEP_SECONDS: f64 = 86_400.0;

/// Sums the steps between successive times; see the [module](super) for steps back and times that are not finite.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Clock {
    last: Option<f64>,
    seconds: f64,
}

impl Clock {
    /// Advances to the next time and returns [`Clock::seconds`].
    pub fn advance(&mut self, time: f64) -> f64 {
        if time.is_finite() {
            let step = self.last.map_or(0.0, |last| time - last);
            self.seconds += step.clamp(0.0, LONGEST_STEP_SECONDS);
            self.last = Some(time);
        }
        self.seconds
    }

    /// Seconds since the first time.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The last finite time.
    pub fn last(&self) -> Option<f64> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_back_and_times_that_are_no_numbers_count_nothing() {
        let mut clock = Clock::default();
        let times = [10.0, 10.5, f64::NAN, 11.0, f64::INFINITY, 4.0, f64::NEG_INFINITY, 4.25];
        let seconds = times.map(|time| clock.advance(time));
        assert_eq!(seconds, [0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.25]);
        assert_eq!(clock.last(), Some(4.25));
    }

    #[test]
    fn one_wrong_time_does_not_stop_the_clock() {
        let mut clock = Clock::default();
        let seconds = [-f64::MAX, f64::MAX, 1e9, 1e9 + 1.0].map(|time| clock.advance(time));
        assert_eq!(seconds, [0.0, LONGEST_STEP_SECONDS, LONGEST_STEP_SECONDS, LONGEST_STEP_SECONDS + 1.0]);
    }
}
