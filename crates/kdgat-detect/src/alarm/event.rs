//! The events of the alarm layer, as they are printed.

use serde::Serialize;

use super::Severity;

/// A line of output with `--alarms`. Times are those of the stream, in seconds; `null` if no frame has come yet.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// An episode of attack windows has begun.
    Alarm(Alarm),
    /// The attack has become more severe or names other IDs.
    AlarmChange(AlarmChange),
    /// The episode has ended.
    AlarmEnd(AlarmEnd),
    /// The bus has no frames any more.
    Silence(Silence),
    /// The bus has frames again.
    SilenceEnd(SilenceEnd),
    /// The detector is alive.
    Heartbeat(Heartbeat),
}

/// Begin of an episode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alarm {
    /// Number of the alarm, from 1.
    pub alarm: u64,
    /// Time of the window that raised the alarm.
    pub time: f64,
    /// Time of the episode's first attack window.
    pub since: f64,
    /// Number of the window that raised the alarm.
    pub window: u64,
    /// Score of that window.
    pub score: f64,
    /// Its robust deviations above what is usual for the car, if the model was calibrated for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviations: Option<f64>,
    /// Highest severity of the attack windows so far.
    pub severity: Severity,
    /// Attack windows so far.
    pub attack_windows: u64,
    /// Alarms that the cooldown has suppressed since the last alarm began.
    pub suppressed: u64,
    /// IDs named by most of them.
    pub culprits: Vec<Cause>,
    /// IDs that are gone since the window that raised the alarm.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
}

/// News within an episode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AlarmChange {
    /// Number of the alarm.
    pub alarm: u64,
    /// Time of the window that brought the news.
    pub time: f64,
    /// Number of that window.
    pub window: u64,
    /// Its score.
    pub score: f64,
    /// Its robust deviations, with a calibration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviations: Option<f64>,
    /// Highest severity of the episode's attack windows so far.
    pub severity: Severity,
    /// Attack windows of the episode so far.
    pub attack_windows: u64,
    /// IDs named by most of the recent attack windows.
    pub culprits: Vec<Cause>,
    /// The news.
    pub changed: Changed,
    /// IDs that are gone since the window that brought the news.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
}

/// News about an attack. A higher severity is reported even if the IDs are others, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Changed {
    /// An ID is gone.
    Gone,
    /// It is more severe.
    Severity,
    /// It names other IDs.
    Culprits,
}

/// End of an episode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AlarmEnd {
    /// Number of the alarm.
    pub alarm: u64,
    /// Time of the window that ended the episode, or of the stream's last window.
    pub time: f64,
    /// Seconds on the [`Clock`](super::Clock) from `since` of the alarm to `time`.
    pub duration_seconds: f64,
    /// Windows from the first attack window to the last window.
    pub windows: u64,
    /// Attack windows among them.
    pub attack_windows: u64,
    /// Highest score of an attack window.
    pub highest_score: f64,
    /// Highest deviations of an attack window, with a calibration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub highest_deviations: Option<f64>,
    /// Highest severity of an attack window.
    pub severity: Severity,
    /// IDs named by most attack windows.
    pub culprits: Vec<Cause>,
    /// Reason of the end.
    pub ended_by: Ending,
}

/// An ID that attack windows of an episode name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cause {
    /// The ID in hexadecimal.
    pub id: String,
    /// Attack windows that name it.
    pub windows: u64,
    /// What is unusual about it, by the window with the highest score; only for models of the profile set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unusual: Vec<String>,
}

/// Reason of the end of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Enough windows without an attack.
    Clear,
    /// The stream ended, or the program was stopped.
    End,
}

/// A bus without frames.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Silence {
    /// Time of the last frame.
    pub time: Option<f64>,
    /// Seconds without a frame after which a bus is silent.
    pub limit_seconds: f64,
}

/// The first frame after a silence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SilenceEnd {
    /// Time of the frame.
    pub time: f64,
    /// Seconds without a frame: between the times of the two frames if these are more than the limit apart, otherwise by the
    /// machine's clock.
    pub seconds: f64,
}

/// Counts since the last heartbeat.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Heartbeat {
    /// Time of the last frame.
    pub time: Option<f64>,
    /// Frames read in that time.
    pub frames: u64,
    /// Windows scored in that time.
    pub windows: u64,
    /// Alarms that have begun.
    pub alarms: u64,
    /// Alarms that the cooldown has suppressed.
    pub suppressed: u64,
    /// True during a silence.
    pub silent: bool,
    /// Share of the last 1,000 rows of a live stream that could not be read, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reject_share: Option<f64>,
}

impl Event {
    /// Name in the field `event`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Alarm(_) => "alarm",
            Self::AlarmChange(_) => "alarm-change",
            Self::AlarmEnd(_) => "alarm-end",
            Self::Silence(_) => "silence",
            Self::SilenceEnd(_) => "silence-end",
            Self::Heartbeat(_) => "heartbeat",
        }
    }

    /// Time of the event, if it has one.
    pub fn time(&self) -> Option<f64> {
        match self {
            Self::Alarm(event) => Some(event.time),
            Self::AlarmChange(event) => Some(event.time),
            Self::AlarmEnd(event) => Some(event.time),
            Self::Silence(event) => event.time,
            Self::SilenceEnd(event) => Some(event.time),
            Self::Heartbeat(event) => event.time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_field() {
        let events = [
            Event::Silence(Silence { time: None, limit_seconds: 0.5 }),
            Event::SilenceEnd(SilenceEnd { time: 1.0, seconds: f64::INFINITY }),
            Event::Heartbeat(Heartbeat {
                time: Some(1.0),
                frames: 1,
                windows: 2,
                alarms: 3,
                suppressed: 4,
                silent: false,
                reject_share: None,
            }),
            Event::Heartbeat(Heartbeat {
                time: None,
                frames: 0,
                windows: 0,
                alarms: 0,
                suppressed: 0,
                silent: true,
                reject_share: Some(0.25),
            }),
        ];
        let lines = events.each_ref().map(|event| serde_json::to_string(event).unwrap());
        assert_eq!(
            lines,
            [
                r#"{"event":"silence","time":null,"limit_seconds":0.5}"#,
                r#"{"event":"silence-end","time":1.0,"seconds":null}"#,
                r#"{"event":"heartbeat","time":1.0,"frames":1,"windows":2,"alarms":3,"suppressed":4,"silent":false}"#,
                r#"{"event":"heartbeat","time":null,"frames":0,"windows":0,"alarms":0,"suppressed":0,"silent":true,"reject_share":0.25}"#,
            ]
        );
        for (event, line) in events.iter().zip(&lines) {
            assert!(line.contains(&format!("\"event\":\"{}\"", event.name())), "{line}");
        }
    }
}
