//! `timeline.csv`: when the student stepped and waited, and when the teacher's thread copied weights and computed, in the first
//! steps of the first epochs: enough to see which side waits for the other, in a small file.

use std::path::Path;
use std::time::{Duration, Instant};

use super::logs::{CsvLog, LogError};
use super::objective::Objective;

/// Name of the timeline file in a run's folder.
pub const TIMELINE: &str = "timeline.csv";
/// Number of recorded epochs, from the first one this process trains.
const RECORDED_EPOCHS: u64 = 3;
/// Number of recorded steps per epoch.
const RECORDED_STEPS: u64 = 64;

const HEADER: [&str; 6] = ["epoch", "step", "who", "work", "start_ms", "duration_ms"];

/// Kind of work of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The student's loss and gradients.
    Step,
    /// The student's update.
    Optimizer,
    /// The student waits for targets.
    TargetWait,
    /// The teacher computes the targets of a batch (or one layer of them).
    Forward,
    /// The teacher's weights are copied to the device.
    Copy,
    /// The teacher waits for its weights.
    WeightWait,
}

impl Work {
    /// Columns `who` and `work` of `timeline.csv`.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Step => ["student", "step"],
            Self::Optimizer => ["student", "optimizer"],
            Self::TargetWait => ["student", "wait"],
            Self::Forward => ["teacher", "forward"],
            Self::Copy => ["teacher", "copy"],
            Self::WeightWait => ["teacher", "wait"],
        }
    }
}

/// An interval of time and its work.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Kind of work.
    pub work: Work,
    /// Beginning of the interval.
    pub start: Instant,
    /// Length of the interval.
    pub duration: Duration,
}

/// Writer of the timeline of a run with a teacher.
#[derive(Debug)]
pub struct Timeline {
    log: CsvLog,
    zero: Instant,
    first_epoch: u64,
}

impl Timeline {
    /// Opens the file; a run resumed at `epoch` keeps its rows of earlier epochs.
    pub fn start(path: &Path, epoch: u64) -> Result<Self, LogError> {
        let before = |row: &csv::StringRecord| row[0].parse::<u64>().is_ok_and(|found| found < epoch);
        Ok(Self { log: CsvLog::resume(path, &HEADER, before)?, zero: Instant::now(), first_epoch: epoch })
    }

    /// Switches the teacher's recording on if the epoch is one of the recorded ones.
    pub fn start_epoch(&self, objective: &mut dyn Objective, epoch: u64) {
        objective.source_mut().record_spans(self.records(epoch, 0));
        // Spans left over from the validation belong to no step.
        objective.source_mut().take_spans();
    }

    /// Writes the work of student and teacher during a step. The instants are: targets requested, targets received, gradients
    /// computed. On a GPU the student's times are those of queueing its work.
    pub fn note_step(
        &mut self,
        objective: &mut dyn Objective,
        (epoch, step): (u64, u64),
        [asked, start, computed]: [Instant; 3],
    ) -> Result<(), LogError> {
        if self.records(epoch, step) {
            let span = |work, start: Instant, end: Instant| Span { work, start, duration: end - start };
            let mut spans = vec![
                span(Work::TargetWait, asked, start),
                span(Work::Step, start, computed),
                span(Work::Optimizer, computed, Instant::now()),
            ];
            spans.extend(objective.source_mut().take_spans());
            self.write(epoch, step, &spans)?;
            if !self.records(epoch, step + 1) {
                objective.source_mut().record_spans(false);
            }
        }
        Ok(())
    }

    /// True if this step is recorded.
    fn records(&self, epoch: u64, step: u64) -> bool {
        epoch < self.first_epoch + RECORDED_EPOCHS && step < RECORDED_STEPS
    }

    /// Writes spans that ended in or before this step, in milliseconds since the loop began.
    fn write(&mut self, epoch: u64, step: u64, spans: &[Span]) -> Result<(), LogError> {
        for span in spans {
            let [who, work] = span.work.names();
            let start = 1e3 * span.start.saturating_duration_since(self.zero).as_secs_f64();
            let duration = 1e3 * span.duration.as_secs_f64();
            // The step number belongs to the student's work; a visit of the teacher serves several steps.
            let step = if who == "student" { step.to_string() } else { String::new() };
            let times = [format!("{start:.3}"), format!("{duration:.3}")];
            let [start, duration] = times;
            self.log.write(&[epoch.to_string(), step, who.to_owned(), work.to_owned(), start, duration])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_steps_of_first_epochs_are_recorded_and_a_resumed_run_appends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(TIMELINE);
        let span = |work| Span { work, start: Instant::now(), duration: Duration::from_millis(2) };
        let mut line = Timeline::start(&path, 0).unwrap();
        assert!(line.records(2, 63) && !line.records(2, 64) && !line.records(3, 0));
        line.write(0, 7, &[span(Work::Step), span(Work::Forward)]).unwrap();
        line.write(1, 0, &[span(Work::TargetWait)]).unwrap();
        let mut line = Timeline::start(&path, 1).unwrap();
        assert!(line.records(3, 0), "a resumed run records its own first epochs");
        line.write(1, 0, &[span(Work::Copy)]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let begins: Vec<&str> = text.lines().map(|row| row.rsplitn(3, ',').last().unwrap()).collect();
        assert_eq!(begins, ["epoch,step,who,work", "0,7,student,step", "0,,teacher,forward", "1,,teacher,copy"]);
    }
}
