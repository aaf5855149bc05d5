//! An objective's line to its teacher: batches go out, targets come back, and the logs hear of it. Empty without one.

use tch::{TchError, Tensor};

use crate::distill::targets::Per;
use crate::distill::{StepReport, TargetName, TargetRows, Teacher, TeacherError};
use crate::graph::Batch;
use crate::torch::rows::Rows;
use crate::train::objective::Part;
use crate::train::timeline::Span;

/// Columns that a teacher adds to `steps.csv`.
const COLUMNS: &[&str] = &[
    "teacher_mode",
    "teacher_bytes",
    "copy_ms",
    "copy_exposed_ms",
    "teacher_forward_ms",
    "student_wait_ms",
    "cache_hit_rows",
    "cache_miss_rows",
    "device_bytes_teacher",
];

/// A teacher at work, or none.
pub struct TeacherLink {
    teacher: Option<Teacher>,
    /// Batches that one visit of the teacher serves.
    burst: usize,
    /// Targets of the batch at hand.
    received: Received,
    /// What the teacher did in this epoch, up to the last row of the log.
    of_epoch: StepReport,
    /// What the next row of the log will have of the epoch before: its validation.
    before_epoch: StepReport,
}

enum Received {
    Nothing,
    /// They are kept, and read when the student has its latents: then they are in the processor's cache for the comparison.
    Kept,
    Here(TargetRows),
}

impl TeacherLink {
    /// To a teacher that is asked for `burst` batches at a time.
    pub fn new(teacher: Option<Teacher>, burst: usize) -> Self {
        let (of_epoch, before_epoch) = Default::default();
        Self { teacher, burst, received: Received::Nothing, of_epoch, before_epoch }
    }

    /// Batches to announce at a time. One, where no visit of the teacher serves several: they would be waited for together,
    /// instead of being read while the student steps.
    pub fn burst(&self) -> usize {
        match &self.teacher {
            Some(teacher) if !teacher.keeps_all() => self.burst,
            _ => 1,
        }
    }

    /// An epoch begins.
    pub fn start_epoch(&mut self) {
        self.of_epoch = StepReport::default();
        self.before_epoch = self.teacher.as_ref().map(Teacher::unreported).unwrap_or_default();
    }

    /// Hands batches over whose targets will be asked for, in this order.
    pub fn announce(&mut self, batches: &[Batch]) {
        if let Some(teacher) = &mut self.teacher {
            teacher.submit(batches.iter().map(Batch::shallow_clone).collect());
        }
    }

    /// Goes on to the next announced batch: waits for its targets, unless they are kept and need only be read.
    pub fn receive(&mut self) -> Result<(), TeacherError> {
        let Some(teacher) = &mut self.teacher else { return Ok(()) };
        // Nobody asked for those of the batch before; they come in order.
        if matches!(self.received, Received::Kept) {
            teacher.target_rows()?;
        }
        // Those of the batch before make room first.
        self.received = Received::Nothing;
        self.received = if teacher.next_is_kept() { Received::Kept } else { Received::Here(teacher.target_rows()?) };
        Ok(())
    }

    /// Reads the targets of the batch at hand, if they are not here yet.
    pub fn read(&mut self) -> Result<(), TeacherError> {
        if let (Received::Kept, Some(teacher)) = (&self.received, &mut self.teacher) {
            self.received = Received::Here(teacher.target_rows()?);
        }
        Ok(())
    }

    /// Lets go of the received targets.
    pub fn forget(&mut self) {
        if matches!(self.received, Received::Here(_)) {
            self.received = Received::Nothing;
        }
    }

    /// The rows of the targets read that belong to `part`; `None` without a teacher.
    pub fn targets(&self, part: &Part) -> Result<Option<TargetRows>, TchError> {
        let rows_of = |per| match per {
            Per::Graph => part.graphs.clone(),
            // Rows of a part are never negative.
            Per::Node => part.nodes.start as usize..part.nodes.end as usize,
        };
        let select = |(name, rows): &(TargetName, Rows)| Ok((*name, rows.narrow(rows_of(name.per()))?));
        let targets = |targets: &TargetRows| {
            Ok(TargetRows { rows: targets.rows.iter().map(select).collect::<Result<_, TchError>>()? })
        };
        match &self.received {
            Received::Here(received) => targets(received).map(Some),
            Received::Nothing | Received::Kept => Ok(None),
        }
    }

    /// The targets of the batch at hand, each in one tensor; none without a teacher.
    pub fn gathered(&mut self) -> Result<Vec<Tensor>, TeacherError> {
        self.read()?;
        let Received::Here(targets) = &self.received else { return Ok(Vec::new()) };
        Ok(targets.rows.iter().map(|(_, rows)| rows.gathered()).collect::<Result<_, TchError>>()?)
    }

    /// Puts other targets in their place, in the same order.
    pub fn replace(&mut self, targets: &[Tensor]) {
        if let Received::Here(received) = &mut self.received {
            for ((_, rows), target) in received.rows.iter_mut().zip(targets) {
                *rows = Rows::Whole(target.shallow_clone());
            }
        }
    }

    /// Columns of `steps.csv`.
    pub fn step_columns(&self) -> &'static [&'static str] {
        if self.teacher.is_some() { COLUMNS } else { &[] }
    }

    /// Their values since the last call.
    pub fn step_values(&mut self) -> Vec<String> {
        let Some(teacher) = &mut self.teacher else { return Vec::new() };
        let report = teacher.report();
        self.of_epoch.add(&report.without(&std::mem::take(&mut self.before_epoch)));
        vec![
            report.teacher_mode,
            report.teacher_bytes.to_string(),
            format!("{:.3}", report.copy_ms),
            format!("{:.3}", report.copy_exposed_ms),
            format!("{:.3}", report.teacher_forward_ms),
            format!("{:.3}", report.student_wait_ms),
            report.cache_hit_rows.to_string(),
            report.cache_miss_rows.to_string(),
            report.device_bytes_teacher.to_string(),
        ]
    }

    /// Whether the teacher's work is to be recorded.
    pub fn record_spans(&self, on: bool) {
        if let Some(teacher) = &self.teacher {
            teacher.record_spans(on);
        }
    }

    /// What was recorded since the last call.
    pub fn take_spans(&self) -> Vec<Span> {
        self.teacher.as_ref().map(Teacher::take_spans).unwrap_or_default()
    }

    /// What the progress bar says of it.
    pub fn status(&self) -> String {
        let Some(teacher) = &self.teacher else { return String::new() };
        let (mut report, since) = (self.of_epoch.clone(), teacher.unreported().without(&self.before_epoch));
        if report.teacher_mode.is_empty() || since.cache_hit_rows + since.cache_miss_rows > 0 {
            report.add(&since);
        }
        let rows = report.cache_hit_rows + report.cache_miss_rows;
        // An epoch's first row of the log may come before any targets.
        let hits = match rows {
            0 => String::new(),
            rows => format!(", {:.0} % of targets kept", 100.0 * report.cache_hit_rows as f64 / rows as f64),
        };
        format!("teacher {}{hits}, waited {:.0} ms", report.teacher_mode, report.student_wait_ms)
    }

    /// What was decided about the teacher and its cache, with the numbers: lines for the user.
    pub fn decisions(&self) -> Vec<String> {
        self.teacher.as_ref().map(Teacher::decisions).unwrap_or_default()
    }

    /// Bytes that the targets kept in memory will have when all are there.
    pub fn memory_cache_bytes(&self) -> u64 {
        let cache = self.teacher.as_ref().and_then(Teacher::cache).filter(|cache| cache.kind == "ram");
        cache.map_or(0, |cache| cache.bytes)
    }

    /// Digest of the teacher's weights.
    pub fn digest(&self) -> Option<&str> {
        self.teacher.as_ref().map(Teacher::digest)
    }

    /// The teacher, to be sent home.
    pub fn into_teacher(self) -> Option<Teacher> {
        self.teacher
    }
}
