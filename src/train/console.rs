//! What a run shows: on a terminal a bar with rate, time left and memory, or a panel; plain lines elsewhere. All lines go into
//! `log.txt`, too.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tch::Device;

use super::metrics::{EpochMetrics, losses_of};
use super::panel::{MemoryPlan, Panel, State};
use crate::memory::Reading;
use crate::{notices, terminal};

/// Plain lines of epochs are at least this far apart, but for the first and the last.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Shows a run's progress.
#[derive(Debug)]
pub struct Console {
    view: View,
    log: Option<File>,
    last_line: Option<Instant>,
}

#[derive(Debug)]
enum View {
    /// Lines alone.
    Lines,
    Bar(ProgressBar),
    /// A panel that opens with the loop, with what is known for it so far.
    Promised(Box<State>),
    Panel(Panel),
}

/// What a panel is headed with.
#[derive(Clone, Debug, Default)]
pub struct Heading {
    /// Model, size and dataset.
    pub what: String,
    /// The run's folder.
    pub run: String,
}

/// What a loop says of itself when it begins.
#[derive(Clone, Copy, Debug)]
pub struct LoopFacts<'a> {
    /// Where it computes.
    pub device: Device,
    /// Epochs without a better one after which it ends.
    pub patience: u64,
    /// `metrics.csv`, which has the epochs of a run that is gone on with.
    pub metrics: &'a Path,
}

/// Where the loop is within an epoch, and what its time went into since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pulse {
    /// Steps of the epoch that are done.
    pub step: u64,
    /// Of the epoch.
    pub graphs_per_second: f64,
    pub steps_seconds: f64,
    /// Part of the steps.
    pub optimizer_seconds: f64,
    pub data_wait_seconds: f64,
    pub teacher_wait_seconds: f64,
}

impl Console {
    /// A console that also writes to `log` (appending), if given.
    ///
    /// # Errors
    /// If the log cannot be opened.
    pub fn new(log: Option<&Path>) -> io::Result<Self> {
        let log = log.map(|path| OpenOptions::new().create(true).append(true).open(path)).transpose()?;
        let view = if io::stderr().is_terminal() { View::Bar(bar()) } else { View::Lines };
        let console = Self { view, log, last_line: None };
        console.share()?;
        Ok(console)
    }

    /// Shows a panel from where the loop begins to where it ends, if standard error is a terminal.
    pub fn with_panel(mut self, heading: Heading) -> Self {
        if terminal::is_capable() {
            self.view = View::Promised(Box::new(State { heading, ..State::default() }));
        } else {
            self.line("--live needs a terminal on standard error; progress is shown in plain lines");
        }
        self
    }

    /// Lets warnings from anywhere go where this console's lines go.
    fn share(&self) -> io::Result<()> {
        let bar = if let View::Bar(bar) = &self.view { Some(bar.clone()) } else { None };
        let log = self.log.as_ref().map(File::try_clone).transpose()?;
        notices::go_to(bar, log);
        Ok(())
    }

    /// A line that stays.
    pub fn line(&mut self, text: &str) {
        match &mut self.view {
            View::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
            View::Lines | View::Promised(_) => eprintln!("{text}"),
            View::Panel(panel) => panel.line(text),
        }
        self.log_line(text);
    }

    /// A line for the log alone.
    pub fn note(&mut self, text: &str) {
        self.log_line(text);
    }

    /// What batches were sized by.
    pub fn plan_memory(&mut self, plan: MemoryPlan) {
        if let View::Promised(state) = &mut self.view {
            state.memory.plan = Some(plan);
        }
    }

    /// The loop begins: a promised panel opens.
    pub fn begin(&mut self, facts: &LoopFacts) {
        let View::Promised(state) = &mut self.view else { return };
        let mut state = std::mem::take(state);
        state.losses.patience = facts.patience;
        state.losses.epochs = losses_of(facts.metrics);
        self.view = View::Lines;
        match Panel::open(*state, facts.device) {
            Ok(panel) => self.view = View::Panel(panel),
            Err(error) => self.line(&format!("--live: the terminal cannot be used ({error}); plain lines follow")),
        }
    }

    /// The steps of `epoch` are counted from now on.
    pub fn start_epoch(&mut self, epoch: u64, max_epochs: u64, steps: u64, done: u64) {
        match &self.view {
            View::Bar(bar) => {
                bar.set_length(steps);
                bar.reset();
                bar.set_position(done);
                bar.set_prefix(format!("epoch {}/{max_epochs}", epoch + 1));
            }
            View::Panel(panel) => panel.update(|state| state.start_epoch(epoch, max_epochs, steps, done)),
            View::Lines | View::Promised(_) => {}
        }
    }

    /// A step is done. Costs next to nothing, and asks the device nothing.
    pub fn advance(&mut self, pulse: impl FnOnce() -> Pulse) {
        if let View::Panel(panel) = &self.view {
            panel.update(|state| state.advance(pulse()));
        }
    }

    /// `step` steps of the epoch are done, and a row of `steps.csv` was written, which `columns` of the objective end.
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
            View::Lines | View::Promised(_) => {}
        }
    }

    /// An epoch is done: a line for it, but not more often than can be read.
    pub fn finish_epoch(&mut self, metrics: &EpochMetrics, max_epochs: u64, improved: bool, status: &str) {
        if let View::Panel(panel) = &self.view {
            panel.update(|state| {
                state.finish_epoch(metrics, improved);
                // The next epoch counts its own peak.
                state.memory.read_host();
            });
        }
        let text = format!(
            "epoch {:>3}/{max_epochs}  train {:.5}  val {:.5}{}  lr {:.2e}  {:.0} graphs/s  peak {}  {status}",
            metrics.epoch + 1,
            metrics.train_loss,
            metrics.val_loss,
            if improved { " *" } else { "  " },
            metrics.lr,
            metrics.graphs_per_second,
            mebibytes(metrics.peak_memory_bytes),
        );
        let due = self.last_line.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) || metrics.epoch + 1 == max_epochs;
        if due {
            self.last_line = Some(Instant::now());
            self.line(text.trim_end());
        } else {
            self.log_line(text.trim_end());
        }
    }

    /// Takes bar or panel away; what follows are lines.
    pub fn finish(&mut self) {
        match std::mem::replace(&mut self.view, View::Lines) {
            View::Bar(bar) => {
                bar.finish_and_clear();
                self.view = View::Bar(bar);
            }
            // Dropping a panel closes it.
            View::Panel(_) | View::Lines | View::Promised(_) => {}
        }
    }

    fn log_line(&mut self, text: &str) {
        if let Some(log) = &mut self.log
            && let Err(error) = writeln!(log, "{text}")
        {
            // Said once: a full disk fails the run at its next checkpoint, with the path.
            eprintln!("warning: log.txt cannot be written any more: {error}");
            self.log = None;
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "{prefix} [{bar:24}] {pos}/{len} {per_sec} {eta} left  {msg}";
    // The template is a constant that a test renders; the default style would do as well.
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Bytes in MiB, as people read them.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / (1024.0 * 1024.0))
}
