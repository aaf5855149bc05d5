//! What a run shows: a bar with rate, time left and memory on a terminal, plain lines elsewhere, all of it in `log.txt`.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::metrics::EpochMetrics;
use crate::memory::Reading;

/// Plain lines of epochs are at least this far apart, but for the first and the last.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Shows a run's progress.
#[derive(Debug)]
pub struct Console {
    bar: Option<ProgressBar>,
    log: Option<File>,
    last_line: Option<Instant>,
}

impl Console {
    /// A console that also writes to `log` (appending), if given.
    ///
    /// # Errors
    /// If the log cannot be opened.
    pub fn new(log: Option<&Path>) -> io::Result<Self> {
        let log = log.map(|path| OpenOptions::new().create(true).append(true).open(path)).transpose()?;
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let template = "{prefix} [{bar:24}] {pos}/{len} {per_sec} {eta} left  {msg}";
            // The template is a constant that a test renders; the default style would do as well.
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Ok(Self { bar, log, last_line: None })
    }

    /// A line that stays.
    pub fn line(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
        self.log_line(text);
    }

    /// A line for the log alone.
    pub fn note(&mut self, text: &str) {
        self.log_line(text);
    }

    /// The bar now counts the steps of `epoch`.
    pub fn start_epoch(&mut self, epoch: u64, max_epochs: u64, steps: u64, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(steps);
            bar.reset();
            bar.set_position(done);
            bar.set_prefix(format!("epoch {}/{max_epochs}", epoch + 1));
        }
    }

    /// `step` steps of the epoch are done.
    pub fn step(&mut self, step: u64, mean_loss: f64, memory: Reading, status: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(step);
            let (now, peak) = (mebibytes(memory.current_bytes), mebibytes(memory.peak_bytes));
            bar.set_message(format!("loss {mean_loss:.4}  memory {now}, peak {peak}  {status}"));
        }
    }

    /// An epoch is done: a line for it, but not more often than can be read.
    pub fn finish_epoch(&mut self, metrics: &EpochMetrics, max_epochs: u64, improved: bool, status: &str) {
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

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
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

/// Bytes in MiB, as people read them.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / (1024.0 * 1024.0))
}
