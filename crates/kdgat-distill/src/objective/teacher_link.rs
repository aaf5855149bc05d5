//! Connects a loss to its teacher: batches go out, targets come back, and the logs get the teacher's counters.

use std::collections::VecDeque;
use std::sync::Arc;

use kdgat_graph::Batch;
use kdgat_nn::layers::Mode;
use kdgat_torch::rows::Rows;
use kdgat_train::objective::{ObjectiveError, Part, TargetSource};
use kdgat_train::timeline::Span;
use tch::{Device, TchError, Tensor};

use crate::alpha::Alpha;
use crate::cache::CacheSummary;
use crate::foreign::ForeignTargets;
use crate::losses;
use crate::targets::Per;
use crate::{StepReport, TargetName, TargetRows, Teacher, TeacherError};

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

/// The connection to a teacher, or to a file with a teacher's outputs; without either, there are no targets.
pub struct TeacherLink {
    teacher: Option<Teacher>,
    file: Option<FromFile>,
    /// Batches per visit of the teacher.
    burst: usize,
    /// α: share of the teacher in the loss.
    alpha: Alpha,
    /// Targets of the current batch.
    received: Received,
    /// Work of this epoch up to the last row of the log.
    of_epoch: StepReport,
    /// Work of the last epoch's validation, which the next row of the log includes.
    before_epoch: StepReport,
}

/// Targets from a file, and the batches whose targets will be asked for.
struct FromFile {
    targets: Arc<ForeignTargets>,
    announced: VecDeque<(Arc<Vec<u64>>, Device)>,
}

enum Received {
    Nothing,
    /// In the cache, and read once the student has its latents: then they are in the processor's cache for the comparison.
    Cached,
    Here(TargetRows),
}

impl TeacherLink {
    /// A connection to nothing.
    pub fn none() -> Self {
        Self::new(None, 1, Alpha::constant(0.0))
    }

    /// Connects to `teacher`, requests the targets of `burst` batches at a time, and gives it the share `alpha` in the loss.
    pub fn new(teacher: Option<Teacher>, burst: usize, alpha: Alpha) -> Self {
        let (of_epoch, before_epoch) = Default::default();
        Self { teacher, file: None, burst, alpha, received: Received::Nothing, of_epoch, before_epoch }
    }

    /// Connects to a file with a teacher's outputs, which have the share `alpha` in the loss.
    pub fn from_file(targets: Arc<ForeignTargets>, alpha: Alpha) -> Self {
        Self { file: Some(FromFile { targets, announced: VecDeque::new() }), ..Self::new(None, 1, alpha) }
    }

    /// The share of the teacher in the loss, in the current epoch.
    pub fn alpha(&self, mode: Mode) -> f64 {
        self.alpha.of(mode)
    }

    /// The loss of a student: α·KD + (1−α)·task.
    pub fn total(&self, kd: &Tensor, task: &Tensor, mode: Mode) -> Result<Tensor, TchError> {
        losses::total(kd, task, self.alpha(mode))
    }

    /// Reads the targets of the current batch from the cache, if that has not happened yet.
    pub fn read(&mut self) -> Result<(), TeacherError> {
        if let (Received::Cached, Some(teacher)) = (&self.received, &mut self.teacher) {
            self.received = Received::Here(teacher.target_rows()?);
        }
        Ok(())
    }

    /// Returns the rows of the targets that belong to `part` of the current batch; `None` without a teacher. Cached targets are read at the
    /// first call for a batch: a loss calls this when it needs them.
    pub fn targets_of(&mut self, part: &Part) -> Result<Option<TargetRows>, ObjectiveError> {
        self.read()?;
        let rows_of = |per| match per {
            Per::Graph => part.graphs.clone(),
            // Rows of a part are never negative.
            Per::Node => part.nodes.start as usize..part.nodes.end as usize,
        };
        let select = |(name, rows): &(TargetName, Rows)| Ok((*name, rows.narrow(rows_of(name.per()))?));
        match &self.received {
            Received::Here(received) => {
                Ok(Some(TargetRows { rows: received.rows.iter().map(select).collect::<Result<_, TchError>>()? }))
            }
            Received::Nothing | Received::Cached => Ok(None),
        }
    }

    /// The decisions about the teacher and its cache with their numbers, as lines for the user.
    pub fn decisions(&self) -> Vec<String> {
        if let Some(FromFile { targets, .. }) = &self.file {
            return vec![format!(
                "the teacher's outputs come from {}: {}",
                targets.path().display(),
                targets.describe()
            )];
        }
        self.teacher.as_ref().map(Teacher::decisions).unwrap_or_default()
    }

    /// Bytes of the in-memory cache once it is complete.
    pub fn memory_cache_bytes(&self) -> u64 {
        let cache = self.teacher.as_ref().and_then(Teacher::cache).filter(|cache| cache.kind == "ram");
        cache.map_or(0, |cache| cache.bytes)
    }

    /// Bytes of the teacher's weights that are on the device now.
    pub fn device_bytes(&self) -> u64 {
        self.teacher.as_ref().map_or(0, |teacher| teacher.unreported().device_bytes_teacher)
    }

    /// The file with a teacher's outputs, if targets come from one.
    pub fn file(&self) -> Option<&Arc<ForeignTargets>> {
        self.file.as_ref().map(|file| &file.targets)
    }

    /// State of the teacher's cache, if it has one.
    pub fn cache(&self) -> Option<CacheSummary> {
        self.teacher.as_ref().and_then(Teacher::cache)
    }

    /// Sets whether the batches announced from now on are [measured](Teacher::measure).
    pub fn measure(&mut self, on: bool) {
        if let Some(teacher) = &mut self.teacher {
            teacher.measure(on);
        }
    }

    /// True if all targets are cached and the teacher no longer computes.
    pub fn keeps_all(&self) -> bool {
        self.teacher.as_ref().is_some_and(Teacher::keeps_all)
    }

    /// Digest of the teacher's weights, or of the file with its outputs.
    pub fn digest(&self) -> Option<&str> {
        let file = self.file.as_ref().map(|file| file.targets.digest());
        self.teacher.as_ref().map(Teacher::digest).or(file)
    }

    /// Returns the teacher, to be stopped.
    pub fn into_teacher(self) -> Option<Teacher> {
        self.teacher
    }
}

impl TargetSource for TeacherLink {
    /// One if all targets are cached: they are read while the student steps, so bursts would save nothing.
    fn burst(&self) -> usize {
        match &self.teacher {
            Some(teacher) if !teacher.keeps_all() => self.burst,
            _ => 1,
        }
    }

    fn start_epoch(&mut self, epoch: u64, max_epochs: u64) {
        self.alpha.start_epoch(epoch, max_epochs);
        self.of_epoch = StepReport::default();
        self.before_epoch = self.teacher.as_ref().map(Teacher::unreported).unwrap_or_default();
    }

    fn announce(&mut self, batches: &[Batch]) -> Result<(), ObjectiveError> {
        if let Some(file) = &mut self.file {
            let request = |batch: &Batch| (Arc::clone(&batch.graph_index), batch.labels.device());
            file.announced.extend(batches.iter().map(request));
        }
        if let Some(teacher) = &mut self.teacher {
            teacher.submit(batches.iter().map(Batch::shallow_clone).collect());
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), ObjectiveError> {
        if let Some(file) = &mut self.file {
            self.received = Received::Nothing;
            let (graphs, device) = file.announced.pop_front().ok_or("no batch was announced")?;
            self.received = Received::Here(file.targets.targets(&graphs, device)?);
            return Ok(());
        }
        let Some(teacher) = &mut self.teacher else { return Ok(()) };
        // Targets come in order: those of the last batch are read even if no loss used them.
        if matches!(self.received, Received::Cached) {
            teacher.target_rows()?;
        }
        // Frees the last batch's targets first.
        self.received = Received::Nothing;
        self.received = if teacher.next_is_kept() { Received::Cached } else { Received::Here(teacher.target_rows()?) };
        Ok(())
    }

    fn forget(&mut self) {
        if matches!(self.received, Received::Here(_)) {
            self.received = Received::Nothing;
        }
    }

    fn targets(&mut self) -> Result<Vec<Tensor>, ObjectiveError> {
        self.read()?;
        let Received::Here(targets) = &self.received else { return Ok(Vec::new()) };
        Ok(targets.rows.iter().map(|(_, rows)| rows.gathered()).collect::<Result<_, TchError>>()?)
    }

    fn replace_targets(&mut self, targets: &[Tensor]) {
        if let Received::Here(received) = &mut self.received {
            for ((_, rows), target) in received.rows.iter_mut().zip(targets) {
                *rows = Rows::Whole(target.shallow_clone());
            }
        }
    }

    fn step_columns(&self) -> &'static [&'static str] {
        if self.teacher.is_some() { COLUMNS } else { &[] }
    }

    fn step_values(&mut self) -> Vec<String> {
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

    fn record_spans(&mut self, on: bool) {
        if let Some(teacher) = &self.teacher {
            teacher.record_spans(on);
        }
    }

    fn take_spans(&mut self) -> Vec<Span> {
        self.teacher.as_ref().map(Teacher::take_spans).unwrap_or_default()
    }

    fn status(&self) -> String {
        let Some(teacher) = &self.teacher else { return String::new() };
        let (mut report, since) = (self.of_epoch.clone(), teacher.unreported().without(&self.before_epoch));
        if report.teacher_mode.is_empty() || since.cache_hit_rows + since.cache_miss_rows > 0 {
            report.add(&since);
        }
        let rows = report.cache_hit_rows + report.cache_miss_rows;
        // An epoch's first row of the log may come before any targets.
        let hits = match rows {
            0 => String::new(),
            rows => format!(", {:.0} % of targets cached", 100.0 * report.cache_hit_rows as f64 / rows as f64),
        };
        format!("teacher {}{hits}, waited {:.0} ms", report.teacher_mode, report.student_wait_ms)
    }
}
