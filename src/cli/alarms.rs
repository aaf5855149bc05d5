//! `kdgat detect --alarms`: its arguments, and where its events go.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use super::exit::UsageError;
use super::output::OutputError;
use super::time_span;
use crate::can::Frame;
use crate::can::formats::RecentRows;
use crate::detect::Detector;
use crate::detect::alarm::hook::{Hook, HookReport};
use crate::detect::alarm::syslog::{DEV_LOG, Syslog};
use crate::detect::alarm::{AlarmRule, BusLimits, Event, Monitor, Pace, SeverityScale, Verdict};
use crate::{exit, interrupt};

/// Most windows among which attack windows are counted.
const MOST_AMONG: usize = 64;
/// Time that commands of `--exec` get after the end of the stream.
const PATIENCE: Duration = Duration::from_secs(10);

/// Arguments of the alarm layer.
#[derive(Args, Debug)]
pub struct AlarmArgs {
    /// Print alarms instead of windows: a JSON line at the begin and end of each episode of attack windows, and when it becomes more severe or
    /// names other IDs. The exit code is 3 if a log had alarms
    #[arg(long)]
    pub alarms: bool,
    /// Raise an alarm at K attack windows among the last N (N at most 64)
    #[arg(long, value_name = "K/N", default_value = "1/1", value_parser = needed, requires = "alarms")]
    pub alarm_after: Needed,
    /// Windows without an attack in a row that end an alarm; 20 windows of 100 frames are about one second of a usual bus
    #[arg(long, value_name = "WINDOWS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..), requires = "alarms")]
    pub alarm_clear: u32,
    /// Time after the end of an alarm in which no other is raised unless it is more severe or names other IDs, such as 10s; alarms that end
    /// within it are only counted
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = time_span::parse, requires = "alarms")]
    pub cooldown: Duration,
    /// Run this command with sh at each event but heartbeats, with the event as JSON on its standard input and in variables
    /// (KDGAT_EVENT, KDGAT_TIME, KDGAT_ALARM, KDGAT_SCORE, KDGAT_SEVERITY, KDGAT_IDS)
    #[arg(long, value_name = "COMMAND", requires = "alarms")]
    pub exec: Option<String>,
    /// Send the events to the system's log, too, through this socket (--syslog alone: /dev/log)
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, require_equals = true, default_missing_value = DEV_LOG, requires = "alarms")]
    pub syslog: Option<PathBuf>,
    /// Print a heartbeat with counts of frames, windows and alarms this often, such as 60s: by the clock on a live stream, where it has the
    /// share of the last 1,000 rows that could not be read, too; by the times of the frames in a log
    #[arg(long, value_name = "DURATION", value_parser = time_span::parse_positive, requires = "alarms")]
    pub heartbeat: Option<Duration>,
    /// Report a bus without frames for this long, such as 500ms
    #[arg(long, value_name = "DURATION", value_parser = time_span::parse_positive, requires = "alarms")]
    pub silence: Option<Duration>,
}

/// Attack windows that raise an alarm, and the windows among which they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needed {
    pub needed: usize,
    pub among: usize,
}

/// Parses `K/N`.
fn needed(text: &str) -> Result<Needed, String> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    text.split_once('/')
        .and_then(|(needed, among)| Some(Needed { needed: number(needed)?, among: number(among)? }))
        .filter(|Needed { needed, among }| (1..=*among).contains(needed) && *among <= MOST_AMONG)
        .ok_or_else(|| format!("expected K/N with whole numbers, 1 <= K <= N <= {MOST_AMONG}, such as 3/5"))
}

impl AlarmArgs {
    /// Starts the alarm layer, if it is asked for. Severities are on `scale`; the machine's clock starts now.
    ///
    /// # Errors
    /// Fails if the system's log cannot be reached, or the system refuses a thread.
    pub fn start(&self, scale: SeverityScale) -> Result<Option<AlarmLayer>> {
        if !self.alarms {
            return Ok(None);
        }
        let Needed { needed, among } = self.alarm_after;
        let (clear, cooldown_seconds) = (self.alarm_clear.into(), self.cooldown.as_secs_f64());
        let rule = AlarmRule { needed, among, clear, cooldown_seconds };
        let seconds = |duration: Option<Duration>| duration.map(|duration| duration.as_secs_f64());
        let limits = BusLimits { silence_seconds: seconds(self.silence), heartbeat_seconds: seconds(self.heartbeat) };
        let syslog = self.syslog.as_ref().map(|path| connected(path)).transpose()?;
        let receivers = Receivers { hook: self.exec.as_deref().map(Hook::start).transpose()?, syslog };
        let (monitor, cooldown) = (Monitor::new(rule, limits), self.cooldown);
        Ok(Some(AlarmLayer { monitor, receivers, scale, cooldown, start: Instant::now() }))
    }
}

/// Connects to the system's log.
fn connected(path: &Path) -> Result<Syslog, UsageError> {
    Syslog::connect(path).map_err(|error| {
        let path = path.display();
        UsageError(format!(
            "--syslog: cannot reach the system's log at {path} ({error}); start its daemon, or name its socket with --syslog=SOCKET"
        ))
    })
}

/// The alarm layer of a stream, with the receivers of its events.
pub struct AlarmLayer {
    monitor: Monitor,
    receivers: Receivers,
    scale: SeverityScale,
    cooldown: Duration,
    start: Instant,
}

/// End of the alarm layer.
pub struct Closing {
    /// Lines for standard error.
    pub lines: Vec<String>,
    /// 3 if a log or a stream ended and had alarms. A signal is the usual end of a service, with exit code 0.
    pub exit_code: ExitCode,
}

impl AlarmLayer {
    /// Scores the frames that a read has returned, perhaps none, and prints the events that they cause. `recent`: the last rows of a live
    /// stream.
    ///
    /// # Errors
    /// Fails if standard output cannot be written, or on errors of libtorch.
    pub fn push(
        &mut self,
        detector: &mut Detector,
        frames: &[Frame],
        recent: Option<&RecentRows>,
        output: &mut impl Write,
    ) -> Result<()> {
        let Self { monitor, receivers, scale, start, .. } = self;
        let live = |recent: &RecentRows| Pace::Live {
            now: start.elapsed().as_secs_f64(),
            reject_share: recent.reject_share(),
        };
        let pace = recent.map_or(Pace::Log, live);
        let judge = |frames: &[Frame], each: &mut dyn FnMut(Verdict) -> Result<()>| {
            detector.push(frames, |detection| each(Verdict::new(detection, scale)))
        };
        monitor.push(frames, pace, judge, |event| receivers.take(event, output))
    }

    /// Ends an open episode and waits for the commands that still run.
    ///
    /// # Errors
    /// Fails if standard output cannot be written.
    pub fn close(mut self, output: &mut impl Write) -> Result<Closing> {
        let last = self.monitor.finish().map_or(Ok(()), |event| self.receivers.take(&event, output));
        let printed = last.and_then(|()| Ok(output.flush().map_err(OutputError)?));
        let mut lines = vec![summary(&self.monitor, self.cooldown)];
        lines.extend(self.receivers.finish());
        printed?;
        let has_alarms = self.monitor.raised() > 0 && !interrupt::requested();
        Ok(Closing { lines, exit_code: if has_alarms { ExitCode::from(exit::ALARMS) } else { ExitCode::SUCCESS } })
    }
}

/// Receivers of events beside standard output.
struct Receivers {
    hook: Option<Hook>,
    syslog: Option<Syslog>,
}

impl Receivers {
    /// Hands an event to all receivers, and prints it.
    ///
    /// # Errors
    /// Fails if standard output cannot be written; the other receivers have the event then.
    fn take(&mut self, event: &Event, output: &mut impl Write) -> Result<()> {
        let json = serde_json::to_string(event)?;
        if let Some(syslog) = &mut self.syslog {
            syslog.send(event, &json);
        }
        if let Some(hook) = self.hook.as_mut().filter(|_| !matches!(event, Event::Heartbeat(_))) {
            hook.call(event, &json);
        }
        Ok(writeln!(output, "{json}").map_err(OutputError)?)
    }

    /// Waits for the commands that still run; returns lines on what was lost.
    fn finish(self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(lost) = self.syslog.map(|syslog| syslog.lost()).filter(|lost| *lost > 0) {
            notes.push(format!("--syslog: {lost} messages lost, because the system's log could not take them"));
        }
        let Some(HookReport { ended, failed, dropped, unfinished }) = self.hook.map(|hook| hook.finish(PATIENCE))
        else {
            return notes;
        };
        let failed = if failed > 0 { format!(", {failed} of them failed") } else { String::new() };
        notes.push(format!("--exec: {ended} calls{failed}"));
        if dropped > 0 {
            notes.push(format!(
                "--exec: {dropped} more calls dropped, because earlier ones were still running; use a faster command"
            ));
        }
        if unfinished > 0 {
            let seconds = PATIENCE.as_secs();
            notes.push(format!("--exec: {unfinished} calls did not end within {seconds} s of the end of the stream"));
        }
        notes
    }
}

/// Line on the alarms that were raised and suppressed, and on silences.
fn summary(monitor: &Monitor, cooldown: Duration) -> String {
    let mut text = format!("alarms raised: {}", monitor.raised());
    if monitor.suppressed() > 0 {
        text += &format!(
            "; suppressed within {} s of the end of another: {}",
            cooldown.as_secs_f64(),
            monitor.suppressed()
        );
    }
    if monitor.silences() > 0 {
        let open = if monitor.is_silent() { ", the last to the end" } else { "" };
        text += &format!("; silences of the bus: {}{open}", monitor.silences());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_a_fraction() {
        assert_eq!(needed("3/5"), Ok(Needed { needed: 3, among: 5 }));
        assert_eq!(needed(" 64 / 64 "), Ok(Needed { needed: 64, among: 64 }));
        for text in ["", "3", "0/1", "2/1", "1/65", "-1/2", "1/2/3", "a/b", "1.5/2"] {
            assert!(needed(text).unwrap_err().contains("such as 3/5"), "{text}");
        }
    }
}
