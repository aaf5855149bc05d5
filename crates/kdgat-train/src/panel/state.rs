//! State of the panel as plain data: written by the training loop and the panel's thread, read when drawing.

use std::collections::VecDeque;

use super::memory::Memory;
use super::teacher::TeacherState;
use crate::console::{Heading, Pulse};
use crate::metrics::EpochMetrics;

/// Maximum number of lines to show in the panel and to print when it closes.
const KEPT_LINES: usize = 500;

/// All the data of the panel. Times are in seconds since the panel opened.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Heading of the panel.
    pub heading: Heading,
    /// The items that a training counts: graphs or nodes.
    pub unit: &'static str,
    /// Present time.
    pub elapsed: f64,
    /// Activity of the loop: a name of [`crate::memory::Activity`].
    pub activity: &'static str,
    /// Progress of the run.
    pub progress: Progress,
    /// Losses so far.
    pub losses: Losses,
    /// Position and times of the loop.
    pub pulse: Pulse,
    /// Memory in use.
    pub memory: Memory,
    /// `None` without a teacher.
    pub teacher: Option<TeacherState>,
    /// Lines for the user, oldest first.
    pub lines: VecDeque<String>,
    /// True once a stop was requested.
    pub stopping: bool,
}

/// Progress of the run.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Present epoch, from 0.
    pub epoch: u64,
    /// Maximum number of epochs.
    pub max_epochs: u64,
    /// Steps done in this epoch.
    pub step: u64,
    /// Steps of this epoch.
    pub steps: u64,
    /// Step at which this process began the epoch.
    first_step: u64,
    epoch_began: f64,
    /// First epoch of this process and the time it began.
    first_epoch: Option<(u64, f64)>,
    /// Time at which the last epoch ended.
    epoch_ended: f64,
}

/// Losses by epoch.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// Epoch from 0, training loss and validation loss.
    pub epochs: Vec<(u64, f64, f64)>,
    /// Mean training loss of this epoch so far.
    pub so_far: Option<f64>,
    /// Last epoch.
    pub last: Option<EpochMetrics>,
    /// Best epoch done by this process.
    pub best: Option<EpochMetrics>,
    /// Epochs without improvement after which the run ends.
    pub patience: u64,
}

impl State {
    /// Begins an epoch of which another process has done `done` steps.
    pub fn start_epoch(&mut self, epoch: u64, max_epochs: u64, steps: u64, done: u64) {
        let now = self.elapsed;
        let progress = &mut self.progress;
        progress.first_epoch.get_or_insert((epoch, now));
        (progress.epoch, progress.max_epochs) = (epoch, max_epochs);
        (progress.steps, progress.step, progress.first_step) = (steps, done, done);
        progress.epoch_began = now;
        self.losses.so_far = None;
        if let Some(teacher) = &mut self.teacher {
            teacher.epoch_began(now);
        }
    }

    /// Records a finished step.
    pub fn advance(&mut self, pulse: Pulse) {
        self.progress.step = pulse.step;
        self.pulse = pulse;
    }

    /// Records a row of `steps.csv`: its mean loss and the columns of the objective.
    pub fn row(&mut self, mean_loss: f64, columns: &[&str], values: &[String]) {
        self.losses.so_far = Some(mean_loss);
        if !columns.is_empty() {
            let (now, began) = (self.elapsed, self.progress.epoch_began);
            self.teacher.get_or_insert_with(|| TeacherState::new(began)).row(now, columns, values);
        }
    }

    /// Records a finished epoch.
    pub fn finish_epoch(&mut self, metrics: &EpochMetrics, improved: bool) {
        self.progress.step = self.progress.steps;
        self.progress.epoch_ended = self.elapsed;
        self.losses.so_far = None;
        self.losses.epochs.push((metrics.epoch, metrics.train_loss, metrics.val_loss));
        if improved {
            self.losses.best = Some(metrics.clone());
        }
        if self.progress.steps <= 1 {
            // The loop reports nothing within an epoch.
            self.pulse.graphs_per_second = metrics.graphs_per_second;
        }
        self.losses.last = Some(metrics.clone());
    }

    /// Appends a line for the user.
    pub fn say(&mut self, text: &str) {
        self.lines.extend(text.lines().map(str::to_owned));
        while self.lines.len() > KEPT_LINES {
            self.lines.pop_front();
        }
    }
}

impl Progress {
    /// Fraction of the epoch that is done.
    pub fn epoch_share(&self) -> f64 {
        self.step as f64 / self.steps.max(1) as f64
    }

    /// Fraction of all epochs that is done.
    pub fn run_share(&self) -> f64 {
        (self.epoch as f64 + self.epoch_share()) / self.max_epochs.max(1) as f64
    }

    /// Steps per second in this epoch.
    pub fn steps_per_second(&self, now: f64) -> Option<f64> {
        let steps = self.step.checked_sub(self.first_step).filter(|steps| *steps > 0)?;
        Some(steps as f64 / (now - self.epoch_began).max(1e-9))
    }

    /// Seconds until the last step of this epoch.
    pub fn epoch_left(&self, now: f64) -> Option<f64> {
        Some((self.steps - self.step.min(self.steps)) as f64 / self.steps_per_second(now)?)
    }

    /// Mean duration of an epoch in seconds, validation included.
    pub fn epoch_seconds(&self, now: f64) -> Option<f64> {
        let (first, began) = self.first_epoch?;
        match self.epoch.checked_sub(first).filter(|epochs| *epochs > 0) {
            Some(epochs) => Some((self.epoch_began - began) / epochs as f64),
            None if self.epoch_ended > began => Some(self.epoch_ended - began),
            None => Some(self.steps as f64 / self.steps_per_second(now)?),
        }
    }

    /// Seconds until the end of the last epoch, without early stopping.
    pub fn run_left(&self, now: f64) -> Option<f64> {
        let epochs = self.max_epochs.saturating_sub(self.epoch) as f64;
        let spent = (now - self.epoch_began).max(0.0);
        Some((epochs * self.epoch_seconds(now)? - spent).max(0.0))
    }
}

impl Losses {
    /// Epochs since the best one.
    pub fn epochs_since_best(&self) -> Option<u64> {
        let (last, _, _) = self.epochs.last()?;
        let (best, _) = self.best_validation()?;
        Some(last - best)
    }

    /// Epoch and validation loss of the best epoch.
    pub fn best_validation(&self) -> Option<(u64, f64)> {
        let finite = self.epochs.iter().filter(|(_, _, validation)| validation.is_finite());
        finite.map(|(epoch, _, validation)| (*epoch, *validation)).min_by(|(_, a), (_, b)| a.total_cmp(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_from_the_work_done() {
        let mut state = State::default();
        state.start_epoch(2, 10, 100, 40);
        state.elapsed = 3.0;
        state.advance(Pulse { step: 70, ..Pulse::default() });
        let progress = &state.progress;
        assert_eq!(progress.steps_per_second(3.0), Some(10.0), "steps of another process do not count");
        assert_eq!(progress.epoch_left(3.0), Some(3.0));
        assert_eq!(progress.run_share(), 0.27);
        // 10 s per epoch, 8 epochs, of which 3 s are over.
        assert_eq!(progress.run_left(3.0), Some(77.0));

        state.elapsed = 8.0;
        state.start_epoch(3, 10, 100, 0);
        assert_eq!(state.progress.epoch_seconds(8.0), Some(8.0));
        assert_eq!(state.progress.run_left(9.0), Some(55.0));
        assert_eq!(state.progress.steps_per_second(9.0), None);
    }

    #[test]
    fn an_empty_run_has_no_estimates() {
        let state = State::default();
        assert_eq!(state.progress.run_share(), 0.0);
        assert_eq!(state.progress.run_left(1.0), None);
        assert_eq!(state.losses.epochs_since_best(), None);
    }

    #[test]
    fn the_best_epoch_is_that_of_the_lowest_validation_loss() {
        let epochs = vec![(0, 1.0, 0.9), (1, 0.8, 0.5), (2, 0.7, f64::NAN), (3, 0.6, 0.6)];
        let losses = Losses { epochs, ..Losses::default() };
        assert_eq!(losses.best_validation(), Some((1, 0.5)));
        assert_eq!(losses.epochs_since_best(), Some(2));
    }

    #[test]
    fn old_lines_are_dropped() {
        let mut state = State::default();
        (0..2000).for_each(|line| state.say(&format!("{line}\n")));
        assert_eq!(state.lines.len(), KEPT_LINES);
        assert_eq!(state.lines.back().map(String::as_str), Some("1999"));
    }
}
