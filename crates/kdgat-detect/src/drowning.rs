//! Notices that far more windows are called attacks than were asked for: the traffic is of another kind than the model or the calibration
//! knows, or a long attack.

/// Seconds of traffic that are judged together.
const STRETCH_SECONDS: f64 = 60.0;
/// Multiple of the false-positive rate that is too much.
const TOO_MUCH: f64 = 10.0;
/// Fewest windows called attacks that mean anything.
const FEWEST: u64 = 5;

/// Counts the windows of a minute of traffic after the other.
#[derive(Debug, Clone, Default)]
pub struct Drowning {
    begin: Option<f64>,
    windows: u64,
    attacks: u64,
    /// Largest share of a whole minute's windows that were called attacks; with fewer than [`FEWEST`] none.
    largest_share: f64,
}

impl Drowning {
    /// Adds a window that begins at `time`, in seconds. A step back in time begins another minute.
    pub fn push(&mut self, time: f64, attack: bool) {
        let begin = *self.begin.get_or_insert(time);
        if !(0.0..STRETCH_SECONDS).contains(&(time - begin)) {
            if time >= begin && self.attacks >= FEWEST {
                self.largest_share = self.largest_share.max(self.attacks as f64 / self.windows as f64);
            }
            (self.begin, self.windows, self.attacks) = (Some(time), 0, 0);
        }
        self.windows += 1;
        self.attacks += u64::from(attack);
    }

    /// The share of a minute's windows that were called attacks, if one has exceeded ten times this rate.
    pub fn share_above(&self, rate: f64) -> Option<f64> {
        (self.largest_share > TOO_MUCH * rate).then_some(self.largest_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share after `minutes` with 20 windows a second, of which every `each`-th is called an attack.
    fn share(minutes: f64, each: u64) -> Option<f64> {
        let mut drowning = Drowning::default();
        (0..(minutes * 1200.0) as u64)
            .for_each(|window| drowning.push(0.05 * window as f64, window.is_multiple_of(each)));
        drowning.share_above(0.001)
    }

    #[test]
    fn a_minute_with_ten_times_the_rate_is_noticed() {
        assert_eq!(share(1.1, 50), Some(0.02));
        assert_eq!(share(0.9, 50), None, "less than a minute");
        assert_eq!(share(3.0, 200), None, "five times the rate");
        let mut drowning = Drowning::default();
        (0..5000).for_each(|window| drowning.push(f64::from(window % 20), true));
        assert_eq!(drowning.share_above(0.001), None, "time steps back again and again");
    }
}
