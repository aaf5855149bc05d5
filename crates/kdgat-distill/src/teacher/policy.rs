//! Chooses the kind of the next visit: the user's choice, or the planner's from the visits so far.

use std::time::Duration;

use crate::accelerator::MemoryState;
use crate::planner::{self, Measured};
use crate::shuttle::{Timings, VisitKind};

use super::{Residency, TeacherOptions};

/// The policy and its measurements.
pub(super) struct Policy {
    kind: VisitKind,
    automatic: bool,
    planned: Option<Measured>,
    now: Measured,
    before: MemoryState,
}

impl Policy {
    /// Creates the policy and lines for the user. `known` has the numbers known before the first visit.
    pub fn new(options: &TeacherOptions, known: Measured) -> (Self, Vec<String>) {
        let kind = match options.residency {
            Residency::Resident => VisitKind::Resident,
            // Under `auto`, the first visit is `forward`: it disturbs least, and measures.
            Residency::Forward | Residency::Auto => VisitKind::Forward,
            Residency::Layer => VisitKind::Layer { slots: known.layer_slots },
        };
        let now = Measured {
            burst: options.burst,
            batches_per_epoch: options.batches_per_epoch,
            epochs_left: options.epochs,
            ..known
        };
        let mut policy = Self {
            kind,
            automatic: options.residency == Residency::Auto,
            planned: None,
            now,
            before: MemoryState::default(),
        };
        // On the host a visit measures nothing new, so plan at once.
        let mut lines = if policy.automatic && known.device_is_host { policy.plan() } else { Vec::new() };
        if options.residency == Residency::Layer {
            lines.extend(fewer_slots(options.layer_slots, &known));
        }
        (policy, lines)
    }

    /// The kind of the next visit.
    pub fn kind(&self) -> VisitKind {
        self.kind
    }

    /// Records the memory before a visit: the student's steps are done and its activations freed.
    pub fn before_visit(&mut self, memory: MemoryState) {
        self.now.free_between_steps_bytes = memory.free_bytes;
        self.now.free_at_peak_bytes = memory.free_at_peak_bytes;
        self.before = memory;
    }

    /// Records the timings of a visit and of the student's steps before it. Returns lines for the user when the choice is made or
    /// changes.
    pub fn after_visit(&mut self, timings: Timings, steps: &[Duration], memory: MemoryState) -> Vec<String> {
        self.measure(timings, steps, memory);
        let surprised = self.planned.is_none_or(|planned| planner::is_surprised(&planned, &self.now));
        // The student's peak is unknown before its first step.
        if !self.automatic || !surprised || self.now.step_ms.is_none() {
            return Vec::new();
        }
        let (before, first) = (self.kind, self.planned.is_none());
        let lines = self.plan();
        if first || before != self.kind { lines } else { Vec::new() }
    }

    fn measure(&mut self, timings: Timings, steps: &[Duration], memory: MemoryState) {
        if timings.copy_ms > 0.0 {
            self.now.copy_bytes_per_ms = Some(timings.copied_bytes as f64 / timings.copy_ms);
        }
        if timings.forwards > 0 && timings.forward_ms > 0.0 {
            self.now.forward_ms = Some(timings.forward_ms / timings.forwards as f64);
        }
        self.now.step_ms = median_ms(steps).or(self.now.step_ms);
        // A peak shows the visit's own need only if the visit raised it.
        if let (Some(allocated), Some(peak_before), Some(peak)) =
            (self.before.allocated_bytes, self.before.peak_bytes, memory.peak_bytes)
            && peak > peak_before
        {
            let weights = if self.kind == VisitKind::Resident { 0 } else { self.now.teacher_bytes };
            self.now.activation_bytes = Some(peak.saturating_sub(allocated).saturating_sub(weights));
        }
    }

    fn plan(&mut self) -> Vec<String> {
        let plan = planner::plan(&self.now);
        self.kind = plan.kind;
        self.planned = Some(self.now);
        plan.lines
    }
}

/// Explains why there are fewer layer slots than requested; `None` if there are not.
fn fewer_slots(wanted: usize, known: &Measured) -> Option<String> {
    let (wanted, slots) = (wanted.clamp(1, known.layers.max(1)), known.layer_slots);
    let [ring, whole] = [known.ring_bytes, known.teacher_bytes].map(planner::format_bytes);
    (slots < wanted).then(|| {
        format!(
            "teacher: {slots} of {wanted} layer slots ({ring}): more would take as much as the whole teacher ({whole})"
        )
    })
}

fn median_ms(steps: &[Duration]) -> Option<f64> {
    let mut sorted = steps.to_vec();
    sorted.sort_unstable();
    Some(sorted.get(sorted.len() / 2)?.as_secs_f64() * 1e3)
}
