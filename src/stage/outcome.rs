//! The outcome of a run: `summary.json`, and the last lines printed to the user.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::distill::Summary as TeacherSummary;
use crate::train::console::{Console, mebibytes};
use crate::train::fit::{Ending, FitSummary};
use crate::train::metrics::EpochMetrics;

/// The outcome of a training stage; the content of `summary.json`.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub run: PathBuf,
    pub ending: Ending,
    pub epochs: u64,
    pub best_epoch: u64,
    pub best_val_loss: Option<f64>,
    pub best: Option<Value>,
    pub last: Option<Value>,
    pub peak_memory_bytes: u64,
    /// The peak that was predicted before the first epoch, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_peak_memory_bytes: Option<u64>,
    pub data_wait_share: f64,
    pub teacher_wait_share: f64,
    pub optimizer_share: f64,
    /// Bytes of Adam's states in this process; of several processes, each has those of its share.
    pub optimizer_bytes: u64,
    pub num_parameters: i64,
    pub weights_digest: String,
    pub teacher: Option<TeacherSummary>,
    /// Data, teacher and batch size, as in `config.json`.
    pub inputs: Map<String, Value>,
}

impl Outcome {
    /// Creates the outcome from the summaries of the loop and the teacher.
    pub fn new(
        run: PathBuf,
        summary: &FitSummary,
        num_parameters: i64,
        weights_digest: String,
        teacher: Option<TeacherSummary>,
        inputs: Map<String, Value>,
    ) -> Self {
        Self {
            run,
            ending: summary.ending,
            epochs: summary.position.epoch,
            best_epoch: summary.position.progress.best_epoch + 1,
            best_val_loss: summary.position.progress.best_loss,
            best: summary.best.as_ref().map(EpochMetrics::json),
            last: summary.last.as_ref().map(EpochMetrics::json),
            peak_memory_bytes: summary.peak_memory_bytes,
            expected_peak_memory_bytes: None,
            data_wait_share: summary.data_wait_share,
            teacher_wait_share: summary.teacher_wait_share,
            optimizer_share: summary.optimizer_share,
            optimizer_bytes: summary.optimizer_bytes,
            num_parameters,
            weights_digest,
            teacher,
            inputs,
        }
    }

    /// Prints the last lines of a run.
    pub fn print(&self, console: &mut Console, summary: &FitSummary) {
        let ending = match self.ending {
            Ending::MaxEpochs => "all epochs done",
            Ending::EarlyStopping if summary.position.progress.best_score.is_some() => {
                "early stopping: the validation metric no longer improves"
            }
            Ending::EarlyStopping => "early stopping: the validation loss no longer falls",
            Ending::Interrupted => "interrupted (continue with --resume)",
        };
        let best = self.best_val_loss.map_or("no validation loss yet".to_owned(), |loss| {
            match summary.position.progress.best_score {
                Some(_) => format!("best epoch {}, validation loss {loss:.6}", self.best_epoch),
                None => format!("best validation loss {loss:.6} in epoch {}", self.best_epoch),
            }
        });
        console.line(&format!("{ending} after {} epochs; {best}", self.epochs));
        if let Some(metrics) = &summary.best {
            console.line(&format!("  losses (training, validation): {}", describe_parts(metrics)));
            console.line(&format!("  {:.0} {}/s in that epoch", metrics.graphs_per_second, console.unit()));
        }
        if let Some(teacher) = &self.teacher {
            let total = &teacher.total;
            console.line(&format!(
                "  teacher: {} visits, {} forwards of {} batches, {:.1} MB copied, {} of {} targets from the cache, \
                 student waited {:.1} s; at most {} of its weights on the device",
                teacher.visits,
                teacher.forwards,
                teacher.batches,
                teacher.copied_bytes as f64 / 1e6,
                total.cache_hit_rows,
                total.cache_hit_rows + total.cache_miss_rows,
                total.student_wait_ms / 1e3,
                mebibytes(teacher.peak_device_bytes_teacher),
            ));
        }
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let for_teacher = match self.teacher {
            Some(_) => format!(", for the teacher {}", percent(self.teacher_wait_share)),
            None => String::new(),
        };
        let expected = self.expected_peak_memory_bytes.map_or(String::new(), |expected| {
            let error = 1000.0 * (expected as f64 / self.peak_memory_bytes.max(1) as f64 - 1.0);
            // Rounded, and no negative zero.
            let error = error.round() / 10.0 + 0.0;
            format!(" (expected {}, {error:+.1} %)", mebibytes(expected))
        });
        console.line(&format!(
            "  peak memory of tensors {}{expected}; waiting for data {}{for_teacher}, optimiser {} of the time",
            mebibytes(self.peak_memory_bytes),
            percent(self.data_wait_share),
            percent(self.optimizer_share),
        ));
        console.line(&format!("  run: {}", self.run.display()));
    }
}

fn describe_parts(metrics: &EpochMetrics) -> String {
    let parts = metrics.parts.iter().filter(|(_, training, _)| training.is_finite());
    // A part that validation does not have, such as the consistency under dropout, has one number.
    let texts = parts.map(|(name, training, validation)| match validation.is_finite() {
        true => format!("{name} {training:.5} {validation:.5}"),
        false => format!("{name} {training:.5} (training alone)"),
    });
    texts.collect::<Vec<_>>().join(", ")
}
