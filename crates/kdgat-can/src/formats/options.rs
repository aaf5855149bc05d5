//! Settings for reading the rows of a log: interface, unit of times, labels.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Settings for reading the rows of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Interface or channel whose frames are delivered; `None` for those of all.
    pub interface: Option<String>,
    /// Unit of the numbers in the column of times; `None` for seconds, if these are plausible
    /// ([`check_times`](crate::plausible::check_times)).
    pub time_unit: Option<TimeUnit>,
    /// True to reject rows without a label, in formats that label every row. False: they are attack-free.
    pub needs_labels: bool,
}

impl ReadOptions {
    /// Numbers in the column of times for one second.
    pub(super) fn units_a_second(&self) -> f64 {
        self.time_unit.unwrap_or(TimeUnit::Seconds).per_second()
    }
}

/// Unit of timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TimeUnit {
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanoseconds,
}

impl TimeUnit {
    /// All units, the longest first.
    pub const ALL: [TimeUnit; 4] =
        [TimeUnit::Seconds, TimeUnit::Milliseconds, TimeUnit::Microseconds, TimeUnit::Nanoseconds];

    /// Its name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            TimeUnit::Seconds => "s",
            TimeUnit::Milliseconds => "ms",
            TimeUnit::Microseconds => "us",
            TimeUnit::Nanoseconds => "ns",
        }
    }

    /// Units in a second.
    pub fn per_second(self) -> f64 {
        match self {
            TimeUnit::Seconds => 1.0,
            TimeUnit::Milliseconds => 1e3,
            TimeUnit::Microseconds => 1e6,
            TimeUnit::Nanoseconds => 1e9,
        }
    }

    /// Its name in sentences: `milliseconds`.
    pub fn plural(self) -> &'static str {
        match self {
            TimeUnit::Seconds => "seconds",
            TimeUnit::Milliseconds => "milliseconds",
            TimeUnit::Microseconds => "microseconds",
            TimeUnit::Nanoseconds => "nanoseconds",
        }
    }
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for TimeUnit {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = TimeUnit::ALL.into_iter().find(|unit| unit.name() == name);
        found.ok_or_else(|| format!("unknown unit of time {name:?}; expected s, ms, us or ns"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_have_the_names_they_are_parsed_from() {
        for unit in TimeUnit::ALL {
            assert_eq!(unit.name().parse(), Ok(unit));
            assert_eq!(serde_json::to_value(unit).unwrap(), unit.name());
        }
        assert!("min".parse::<TimeUnit>().unwrap_err().contains("expected s, ms, us or ns"));
    }
}
