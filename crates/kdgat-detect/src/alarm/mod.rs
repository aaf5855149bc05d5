//! The alarm layer: turns the verdicts of windows into the few events that an operator should see.
//!
//! Everything here but [`hook`] and [`syslog`] is a pure state machine: verdicts, frame times and a clock in, [`Event`]s out. The same
//! frames give the same events, however the stream is divided into blocks.
//!
//! # Time
//! Durations are measured on a [`Clock`] that sums the steps from one time to the next. A step back counts 0 seconds, and later steps
//! count from the earlier time. A step of more than [`LONGEST_STEP_SECONDS`] (a day) counts as a day, so one wrong time cannot stop the
//! clock. A time that is NaN or infinite counts 0 seconds and is otherwise ignored. Windows have the time of their first frame.
//!
//! # Episodes
//! A rule `K/N`, `clear` and `cooldown` decide. The layer is in one of three states: *quiet* at the start, *alarm*, *suppressed*.
//!
//! - The *recent attacks* are the attack windows among the last N windows. They are empty at the start and after each episode.
//! - An ID that is [gone](kdgat_graph::profile::gone) since an attack window is certain after one window: an alarm is raised at once, whatever the rule
//!   and the cooldown, and in an open alarm it is an `alarm-change`.
//! - *News*: a severity above those that the events of the last alarm have said, if at least K of the recent attacks have it, or an ID that
//!   they have not named, if at least 3 attacks among the last 5 windows name it (K among the last N, if these are more).
//!   The events of an alarm have said its severities and the IDs of the windows that raised it, of its changes, and of its end.
//! - Quiet, or suppressed, and an attack window arrives that makes the recent attacks K or more: if an earlier alarm has ended less than
//!   `cooldown` seconds before (the clock at this window minus the clock at the end) and there is no news, the state becomes *suppressed*.
//!   Otherwise an `alarm` is raised: it has the next number from 1, its episode begins with the oldest of the recent attacks and covers
//!   all of them.
//! - Alarm: each attack window joins the episode, and one that brings news is an `alarm-change`. The `clear`-th window without an attack in
//!   a row ends it with `alarm-end`; the cooldown begins at that window, and the state becomes quiet.
//! - Suppressed: the `clear`-th window without an attack in a row ends it without an event; one more alarm counts as suppressed, and
//!   the state becomes quiet. If the attack outlasts the cooldown or brings news, the alarm is raised by the third rule, and does not
//!   count as suppressed. A suppressed episode begins no cooldown. The next `alarm` and heartbeats have the number of suppressed ones.
//! - At the end of the stream (or after a signal), an open episode ends with `alarm-end`, and a suppressed one is counted.
//!
//! So `alarm` and `alarm-end` alternate, and an alarm that begins within the cooldown of the one before it is more severe or names other
//! IDs. An alarm keeps at most [`MOST_TRACKED`] IDs that it has named; further IDs are no news.
//!
//! # Severity
//! [`severity`] grades each attack window by its distance to the threshold; an episode has the highest grade of its windows so far.
//!
//! # Culprits
//! Each attack window names the IDs that differ most from the car's profile, or, if the model has no profile, the one ID that
//! contributes most to the score. An episode counts for each ID the windows that name it; the events list the [`MOST_LISTED`] IDs
//! named by most windows, ties in the order in which they were first named. The reasons listed with an ID are those of its window with
//! the highest score. An episode keeps [`MOST_TRACKED`] different IDs; later ones are left out.
//!
//! # Silence
//! With a limit, see [`Bus`]: two successive frames more than the limit apart are a `silence` at the first and a `silence-end` at the
//! second. A live stream without a frame for the limit by the machine's clock, from the start or from the last frame, is a `silence` at
//! once; the next frame ends it. Silence does not end an episode, because no window says that the attack is over.
//!
//! # Heartbeat
//! With a period: on a live stream, a `heartbeat` when the period has passed on the machine's clock since the last one or the start;
//! otherwise at the first frame that is at least the period after the last one (or the first frame) on the [`Clock`] of frames. Only one
//! heartbeat follows a gap of many periods. It counts the frames, windows and alarms since the last one, without the frame that caused
//! it.

mod bus;
mod clock;
mod episode;
mod event;
pub mod hook;
mod monitor;
pub mod severity;
pub mod syslog;

pub use bus::{Bus, BusLimits};
pub use clock::{Clock, LONGEST_STEP_SECONDS};
pub use episode::{AlarmRule, Alarms, MOST_LISTED, MOST_TRACKED, Verdict};
pub use event::{Alarm, AlarmChange, AlarmEnd, Cause, Changed, Ending, Event, Heartbeat, Silence, SilenceEnd};
pub use hook::Hook;
pub use monitor::{Monitor, Pace};
pub use severity::{Severity, SeverityScale};
pub use syslog::Syslog;
