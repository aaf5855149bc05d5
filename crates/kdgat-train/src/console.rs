//! Progress display of a run: on a terminal a bar with rate, time left and memory, or a panel; elsewhere plain lines. All lines
//! are also written to `log.txt`.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tch::Device;

use super::metrics::{EpochMetrics, losses_of};
use super::panel::text::duration;
use super::panel::{MemoryPlan, Panel, State};
use crate::memory::Reading;
use crate::notices;

/// Minimum time between the plain lines of two epochs, except the first and the last.
const LINE_INTERVAL: Duration = Duration::from_secs(2);
/// Number of recent epochs from which the time left is estimated.
const PACE_EPOCHS: usize = 8;
/// Trainings that take more seconds than this are announced after their first epoch.
const LONG_SECONDS: f64 = 600.0;

/// Display of a run's progress.
#[derive(Debug)]
pub struct Console {
    view: View,
    log: Option<File>,
    last_line: Option<Instant>,
    pace: Pace,
    unit: &'static str,
}

/// Running estimate of the time an epoch takes.
#[derive(Debug, Default)]
struct Pace {
    /// Durations of the last epochs, in seconds.
    seconds: VecDeque<f64>,
    /// Epochs done by this process.
    epochs: u64,
}

impl Pace {
    fn add(&mut self, seconds: f64) {
        self.epochs += 1;
        self.seconds.push_back(seconds);
        if self.seconds.len() > PACE_EPOCHS {
            self.seconds.pop_front();
        }
    }

    /// Estimates the seconds that this many epochs take.
    fn of(&self, epochs: u64) -> f64 {
        epochs as f64 * self.seconds.iter().sum::<f64>() / self.seconds.len().max(1) as f64
    }

    /// Announcement of a long training, made after the first epoch of this process; `left` epochs remain.
    fn announcement(&self, left: u64) -> Option<String> {
        let seconds = self.of(left);
        (self.epochs == 1 && seconds > LONG_SECONDS).then(|| {
            format!(
                "this epoch took {}; the other {left} will take about {}, or less if the validation loss stops falling (--patience). \
                 Ctrl-C stops and keeps the best model, --resume continues; --max-epochs sets the number of epochs",
                duration(self.of(1)),
                duration(seconds)
            )
        })
    }
}

#[derive(Debug)]
enum View {
    /// Only plain lines.
    Lines,
    /// Nothing: another process shows the progress.
    Silent,
    Bar(ProgressBar),
    /// A panel that opens when the loop begins, with its state so far.
    Promised(Box<State>),
    Panel(Panel),
}

/// Heading of the panel.
#[derive(Clone, Debug, Default)]
pub struct Heading {
    /// Model, size and dataset.
    pub what: String,
    /// The run's folder.
    pub run: String,
}

/// Facts about the loop, known when it begins.
#[derive(Clone, Copy, Debug)]
pub struct LoopFacts<'a> {
    /// Device of the model.
    pub device: Device,
    /// Epochs without improvement after which training stops.
    pub patience: u64,
    /// Path of `metrics.csv`, which holds the epochs of a resumed run.
    pub metrics: &'a Path,
}

/// Position of the loop within an epoch, and the times spent since the loop began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pulse {
    /// Steps of the epoch done so far.
    pub step: u64,
    /// Graphs per second in this epoch.
    pub graphs_per_second: f64,
    /// Seconds spent in steps.
    pub steps_seconds: f64,
    /// Seconds spent in the optimiser, part of the steps.
    pub optimizer_seconds: f64,
    /// Seconds spent waiting for data.
    pub data_wait_seconds: f64,
    /// Seconds spent waiting for the teacher.
    pub teacher_wait_seconds: f64,
}

impl Console {
    /// A console that also appends to `log`, if given.
    ///
    /// # Errors
    /// If the log cannot be opened.
    pub fn new(log: Option<&Path>) -> io::Result<Self> {
        let log = log.map(|path| OpenOptions::new().create(true).append(true).open(path)).transpose()?;
        let view = if io::stderr().is_terminal() { View::Bar(bar()) } else { View::Lines };
        let console = Self { view, log, last_line: None, pace: Pace::default(), unit: "graphs" };
        console.share()?;
        Ok(console)
    }

    /// A console that counts nodes instead of graphs: training on one large graph. Call it before [`Self::with_panel`].
    pub fn counting_nodes(mut self) -> Self {
        self.unit = "nodes";
        self
    }

    /// The items that a training counts: graphs or nodes.
    pub fn unit(&self) -> &'static str {
        self.unit
    }

    /// Shows nothing, and only logs: another process shows the progress.
    pub fn silent(mut self) -> Self {
        self.view = View::Silent;
        self
    }

    /// Shows a panel while the loop runs, if standard error is a terminal.
    pub fn with_panel(mut self, heading: Heading) -> Self {
        if can_place_cursor() {
            self.view = View::Promised(Box::new(State { heading, unit: self.unit, ..State::default() }));
        } else {
            self.line("--live needs a terminal on standard error; progress is shown in plain lines");
        }
        self
    }

    /// Sends the notices of the whole program to the same places as this console's lines.
    fn share(&self) -> io::Result<()> {
        let bar = if let View::Bar(bar) = &self.view { Some(bar.clone()) } else { None };
        let log = self.log.as_ref().map(File::try_clone).transpose()?;
        notices::go_to(bar, log);
        Ok(())
    }

    /// Prints a permanent line and logs it.
    pub fn line(&mut self, text: &str) {
        match &mut self.view {
            View::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
            View::Silent => {}
            View::Lines | View::Promised(_) => eprintln!("{text}"),
            View::Panel(panel) => panel.line(text),
        }
        self.log_line(text);
    }

    /// Writes a line to the log only.
    pub fn note(&mut self, text: &str) {
        self.log_line(text);
    }

    /// Shows the memory plan of the batches in the panel.
    pub fn plan_memory(&mut self, plan: MemoryPlan) {
        if let View::Promised(state) = &mut self.view {
            state.memory.plan = Some(plan);
        }
    }

    /// Opens the requested panel; called when the loop begins.
    pub fn begin(&mut self, facts: &LoopFacts) {
        let View::Promised(state) = &mut self.view else { return };
        let mut state = std::mem::take(state);
        state.losses.patience = facts.patience;
        state.losses.epochs = losses_of(facts.metrics);
        self.view = View::Lines;
        match Panel::open(*state, facts.device) {
            Ok(panel) => self.view = View::Panel(panel),
            Err(error) => self.line(&format!("--live: {error}; progress is shown in plain lines")),
        }
    }

    /// Starts counting the steps of `epoch`, of which `done` are already done.
    pub fn start_epoch(&mut self, epoch: u64, max_epochs: u64, steps: u64, done: u64) {
        match &self.view {
            View::Bar(bar) => {
                bar.set_length(steps);
                bar.reset();
                bar.set_position(done);
                bar.set_prefix(format!("epoch {}/{max_epochs}", epoch + 1));
            }
            View::Panel(panel) => panel.update(|state| state.start_epoch(epoch, max_epochs, steps, done)),
            View::Lines | View::Silent | View::Promised(_) => {}
        }
    }

    /// Shows a finished step. Costs next to nothing and does not synchronise with the device.
    pub fn advance(&mut self, pulse: impl FnOnce() -> Pulse) {
        if let View::Panel(panel) = &self.view {
            panel.update(|state| state.advance(pulse()));
        }
    }

    /// Shows that `step` steps of the epoch are done, and the last row of `steps.csv`, which ends with the objective's
    /// `columns`.
    pub fn step(
        &mut self,
        step: u64,
        mean_loss: f64,
        memory: Reading,
        status: &str,
        (columns, row): (&[&str], &[String]),
    ) {
        match &self.view {
            View::Bar(bar) => {
                bar.set_position(step);
                let (now, peak) = (mebibytes(memory.current_bytes), mebibytes(memory.peak_bytes));
                bar.set_message(format!("loss {mean_loss:.4}  memory {now}, peak {peak}  {status}"));
            }
            View::Panel(panel) => {
                let values = &row[row.len().saturating_sub(columns.len())..];
                panel.update(|state| state.row(mean_loss, columns, values));
            }
            View::Lines | View::Silent | View::Promised(_) => {}
        }
    }

    /// Prints the line of a finished epoch, at most every two seconds; the log gets all of them.
    pub fn finish_epoch(&mut self, metrics: &EpochMetrics, max_epochs: u64, improved: bool, status: &str) {
        if let View::Panel(panel) = &self.view {
            panel.update(|state| {
                state.finish_epoch(metrics, improved);
                // The next epoch counts its own peak.
                state.memory.read_host();
            });
        }
        self.pace.add(metrics.seconds);
        let left = max_epochs.saturating_sub(metrics.epoch + 1);
        let time_left = if left > 0 { format!("  {} left", duration(self.pace.of(left))) } else { String::new() };
        let text = format!(
            "epoch {:>3}/{max_epochs}  train {:.5}  val {:.5}{}  lr {:.2e}  {:.0} {}/s{time_left}  peak {}  {status}",
            metrics.epoch + 1,
            metrics.train_loss,
            metrics.val_loss,
            if improved { " *" } else { "  " },
            metrics.lr,
            metrics.graphs_per_second,
            self.unit,
            mebibytes(metrics.peak_memory_bytes),
        );
        let due = self.last_line.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) || metrics.epoch + 1 == max_epochs;
        if due {
            self.last_line = Some(Instant::now());
            self.line(text.trim_end());
        } else {
            self.log_line(text.trim_end());
        }
        if let Some(text) = self.pace.announcement(left) {
            self.line(&text);
        }
    }

    /// Removes the bar or panel; plain lines follow.
    pub fn finish(&mut self) {
        match std::mem::replace(&mut self.view, View::Lines) {
            View::Bar(bar) => {
                bar.finish_and_clear();
                self.view = View::Bar(bar);
            }
            View::Silent => self.view = View::Silent,
            // Dropping a panel closes it.
            View::Panel(_) | View::Lines | View::Promised(_) => {}
        }
    }

    fn log_line(&mut self, text: &str) {
        if let Some(log) = &mut self.log
            && let Err(error) = writeln!(log, "{text}")
        {
            // Reported once: a full disk fails the run at its next checkpoint, with the path.
            eprintln!("warning: cannot write log.txt any more: {error}");
            self.log = None;
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "{prefix} [{bar:24}] {pos}/{len} {per_sec} {eta} left  {msg}";
    // The template is constant and a test renders it; the default style would also do.
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Formats bytes as MiB.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / (1024.0 * 1024.0))
}

/// True if standard error is a terminal that can place the cursor.
fn can_place_cursor() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_last_epochs() {
        let mut pace = Pace::default();
        assert_eq!(pace.of(3), 0.0);
        pace.add(100.0);
        (0..PACE_EPOCHS).for_each(|_| pace.add(2.0));
        assert_eq!(pace.of(30), 60.0, "the slow first epoch, with the teacher's forward passes, no longer counts");
    }

    #[test]
    fn a_long_training_is_announced_once() {
        let mut pace = Pace::default();
        pace.add(7.0);
        let text = pace.announcement(299).unwrap();
        assert!(text.starts_with("this epoch took 7.0 s; the other 299 will take about 34 min 53 s"), "{text}");
        assert_eq!(pace.announcement(50), None, "too short to announce");
        pace.add(7.0);
        assert_eq!(pace.announcement(299), None, "already announced");
    }

    #[test]
    fn lines_of_epochs_show_the_time_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.txt");
        let mut console = Console::new(Some(&path)).unwrap();
        for epoch in 0..3 {
            let metrics = EpochMetrics {
                epoch,
                train_loss: 0.5,
                val_loss: 0.25,
                parts: Vec::new(),
                lr: 0.001,
                graphs_per_second: 100.0,
                peak_memory_bytes: 1 << 20,
                seconds: 400.0,
                steps: 10,
            };
            console.finish_epoch(&metrics, 3, false, "");
        }
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("epoch")).collect();
        assert!(lines[0].contains("100 graphs/s  13 min 20 s left  peak 1 MiB"), "{text}");
        assert!(lines[1].contains("6 min 40 s left") && !lines[2].contains("left"), "{text}");
        assert_eq!(text.matches("the other 2 will take about 13 min 20 s").count(), 1, "{text}");
    }
}
