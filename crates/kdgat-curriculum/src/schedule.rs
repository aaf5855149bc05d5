//! Schedule of the number and the difficulty of the graphs that an epoch draws.

/// Percentile at the end of every schedule.
const LAST_PERCENTILE: f64 = 95.0;

/// Linear schedule of ratio and percentile over the epochs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Normal graphs per attack, or share of the graphs, in epoch 0.
    pub start_ratio: f64,
    /// Normal graphs per attack, or share of the graphs, from epoch `max_epochs` on.
    pub end_ratio: f64,
    /// Percentile of difficulty in epoch 0; it rises to 95.
    pub start_percentile: f64,
    /// Number of epochs until the end of the schedule.
    pub max_epochs: u64,
}

/// Values of the schedule in an epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Normal graphs per attack, or share of the graphs.
    pub ratio: f64,
    /// Percentile of difficulty above which graphs are drawn.
    pub percentile: f64,
}

impl Schedule {
    /// Ratio and percentile at progress p = min(1, epoch / max_epochs): start + p·(end − start).
    pub fn at(&self, epoch: u64) -> Pace {
        let progress = (epoch as f64 / self.max_epochs.max(1) as f64).min(1.0);
        let between = |start: f64, end: f64| start + progress * (end - start);
        Pace {
            ratio: between(self.start_ratio, self.end_ratio),
            percentile: between(self.start_percentile, LAST_PERCENTILE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_and_percentile_rise_with_the_epochs() {
        let schedule = Schedule { start_ratio: 1.0, end_ratio: 10.0, start_percentile: 50.0, max_epochs: 300 };
        assert_eq!(schedule.at(0), Pace { ratio: 1.0, percentile: 50.0 });
        assert_eq!(schedule.at(100), Pace { ratio: 4.0, percentile: 65.0 });
        assert_eq!(schedule.at(300), Pace { ratio: 10.0, percentile: 95.0 });
        assert_eq!(schedule.at(301), schedule.at(300));
    }
}
