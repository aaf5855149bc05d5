//! Statistics of a teacher, for the log of steps and the summary of a run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kdgat_train::timeline::Span;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::cache::CacheSummary;
use crate::shuttle::Timings;

/// Statistics since the previous report: the teacher's columns of `steps.csv`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// `resident`, `forward` or `layer`: residency of the last visit; `cached` if there was none and all targets were cached.
    pub teacher_mode: String,
    /// Bytes of the teacher's weights.
    pub teacher_bytes: u64,
    /// Milliseconds of copying weights to the device.
    pub copy_ms: f64,
    /// The part of `copy_ms` in which the teacher waited for its weights.
    pub copy_exposed_ms: f64,
    /// Milliseconds of the teacher's forwards.
    pub teacher_forward_ms: f64,
    /// Milliseconds that the training loop waited for targets.
    pub student_wait_ms: f64,
    /// Graphs whose targets came from the cache.
    pub cache_hit_rows: u64,
    /// Graphs whose targets the teacher computed.
    pub cache_miss_rows: u64,
    /// Bytes of the teacher's weights on the device at the time of the report.
    pub device_bytes_teacher: u64,
}

/// Statistics of a teacher over a whole run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Digest of the teacher's weights.
    pub teacher_digest: String,
    /// The columns of `steps.csv`, summed over the run; the mode is that of the last visit.
    pub total: StepReport,
    /// Batches that received targets.
    pub batches: u64,
    /// Visits of the weights to the device.
    pub visits: u64,
    /// Batches that went through the teacher.
    pub forwards: u64,
    /// Copies of weights to the device.
    pub copies: u64,
    /// Bytes of weights copied to the device.
    pub copied_bytes: u64,
    /// Peak bytes of weights on the device.
    pub peak_device_bytes_teacher: u64,
    /// The cache of targets, if there is one.
    pub cache: Option<CacheSummary>,
    /// The planner's arithmetic and the decisions on the cache, in order.
    pub decisions: Vec<String>,
}

/// Counters that both the thread and the training loop update.
#[derive(Debug)]
pub(super) struct Shared {
    stop: AtomicBool,
    /// Set when the targets of all graphs that the run needs are cached.
    all_kept: AtomicBool,
    device_bytes: AtomicU64,
    records_spans: AtomicBool,
    spans: Mutex<Vec<Span>>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    since_report: StepReport,
    summary: Summary,
    steps: Vec<Duration>,
}

impl Shared {
    pub fn new(teacher_bytes: u64, teacher_digest: &str) -> Self {
        let mut counts = Counts::default();
        counts.since_report.teacher_bytes = teacher_bytes;
        counts.summary.total.teacher_bytes = teacher_bytes;
        counts.summary.teacher_digest = teacher_digest.to_string();
        Self {
            stop: AtomicBool::new(false),
            all_kept: AtomicBool::new(false),
            device_bytes: AtomicU64::new(0),
            records_spans: AtomicBool::new(false),
            spans: Mutex::new(Vec::new()),
            counts: Mutex::new(counts),
        }
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn are_all_kept(&self) -> bool {
        self.all_kept.load(Ordering::Relaxed)
    }

    pub fn record_spans(&self, on: bool) {
        self.records_spans.store(on, Ordering::Relaxed);
    }

    pub fn are_spans_recorded(&self) -> bool {
        self.records_spans.load(Ordering::Relaxed)
    }

    pub fn note_spans(&self, spans: Vec<Span>) {
        self.spans.lock().extend(spans);
    }

    pub fn take_spans(&self) -> Vec<Span> {
        std::mem::take(&mut self.spans.lock())
    }

    /// Adds the time of a student's step: from receiving targets to requesting the next.
    pub fn note_step(&self, step: Duration) {
        let mut counts = self.counts.lock();
        if counts.steps.len() < 1024 {
            counts.steps.push(step);
        }
    }

    pub fn take_steps(&self) -> Vec<Duration> {
        std::mem::take(&mut self.counts.lock().steps)
    }

    pub fn note_wait(&self, wait: Duration) {
        self.counts.lock().since_report.student_wait_ms += wait.as_secs_f64() * 1e3;
    }

    pub fn note_batch(&self, hits: u64, misses: u64) {
        let mut counts = self.counts.lock();
        counts.since_report.cache_hit_rows += hits;
        counts.since_report.cache_miss_rows += misses;
        counts.summary.batches += 1;
    }

    pub fn note_visit(&self, mode: &str) {
        let mut counts = self.counts.lock();
        counts.since_report.teacher_mode = mode.to_string();
        counts.summary.total.teacher_mode = mode.to_string();
        counts.summary.visits += 1;
    }

    pub fn note_device_bytes(&self, device_bytes: usize) {
        self.device_bytes.store(device_bytes as u64, Ordering::Relaxed);
    }

    pub fn note_timings(&self, timings: Timings, device_bytes: usize, peak_device_bytes: usize) {
        self.note_device_bytes(device_bytes);
        let mut counts = self.counts.lock();
        counts.since_report.copy_ms += timings.copy_ms;
        counts.since_report.copy_exposed_ms += timings.copy_exposed_ms;
        counts.since_report.teacher_forward_ms += timings.forward_ms;
        counts.summary.forwards += timings.forwards;
        counts.summary.copies += timings.copies;
        counts.summary.copied_bytes += timings.copied_bytes;
        counts.summary.peak_device_bytes_teacher = peak_device_bytes as u64;
    }

    pub fn note_cache(&self, cache: CacheSummary) {
        self.all_kept.store(cache.filled_graphs == cache.used_graphs, Ordering::Relaxed);
        self.counts.lock().summary.cache = Some(cache);
    }

    /// Logs lines for the user and adds them to the summary.
    pub fn note_lines(&self, lines: Vec<String>) {
        for line in &lines {
            tracing::info!("{line}");
        }
        self.counts.lock().summary.decisions.extend(lines);
    }

    pub fn decisions(&self) -> Vec<String> {
        self.counts.lock().summary.decisions.clone()
    }

    pub fn cache(&self) -> Option<CacheSummary> {
        self.counts.lock().summary.cache.clone()
    }

    /// Returns the next report without taking it.
    pub fn unreported(&self) -> StepReport {
        self.report_of(&self.counts.lock())
    }

    fn report_of(&self, counts: &Counts) -> StepReport {
        let mut report = counts.since_report.clone();
        report.device_bytes_teacher = self.device_bytes.load(Ordering::Relaxed);
        // No visit since the last report: the targets are cached, or were computed at the previous visit.
        if report.teacher_mode.is_empty() {
            let all_kept = report.cache_hit_rows > 0 && report.cache_miss_rows == 0;
            report.teacher_mode = if all_kept { "cached".into() } else { counts.summary.total.teacher_mode.clone() };
        }
        report
    }

    pub fn take_report(&self) -> StepReport {
        let mut counts = self.counts.lock();
        let report = self.report_of(&counts);
        counts.since_report = StepReport { teacher_bytes: report.teacher_bytes, ..StepReport::default() };
        // The mode of the total is that of the last visit.
        let mode = std::mem::take(&mut counts.summary.total.teacher_mode);
        counts.summary.total.add(&report);
        counts.summary.total.teacher_mode = mode;
        report
    }

    pub fn summary(&self) -> Summary {
        self.take_report();
        self.counts.lock().summary.clone()
    }
}

impl StepReport {
    /// Adds a later report; the mode and the bytes on the device are those of the later one.
    pub fn add(&mut self, other: &StepReport) {
        self.teacher_mode.clone_from(&other.teacher_mode);
        self.copy_ms += other.copy_ms;
        self.copy_exposed_ms += other.copy_exposed_ms;
        self.teacher_forward_ms += other.teacher_forward_ms;
        self.student_wait_ms += other.student_wait_ms;
        self.cache_hit_rows += other.cache_hit_rows;
        self.cache_miss_rows += other.cache_miss_rows;
        self.device_bytes_teacher = other.device_bytes_teacher;
    }

    /// Subtracts `part`, which is included in this report.
    pub fn without(&self, part: &StepReport) -> Self {
        Self {
            copy_ms: self.copy_ms - part.copy_ms,
            copy_exposed_ms: self.copy_exposed_ms - part.copy_exposed_ms,
            teacher_forward_ms: self.teacher_forward_ms - part.teacher_forward_ms,
            student_wait_ms: self.student_wait_ms - part.student_wait_ms,
            cache_hit_rows: self.cache_hit_rows - part.cache_hit_rows,
            cache_miss_rows: self.cache_miss_rows - part.cache_miss_rows,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_that_of_the_visit_the_targets_come_from() {
        let shared = Shared::new(0, "digest");
        let mode = || shared.take_report().teacher_mode;
        shared.note_visit("forward");
        shared.note_batch(0, 16);
        assert_eq!(mode(), "forward");
        // The next step of the same burst.
        assert_eq!(mode(), "forward");
        shared.note_batch(16, 0);
        assert_eq!(mode(), "cached");
    }
}
