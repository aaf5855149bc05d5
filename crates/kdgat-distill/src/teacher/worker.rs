//! The teacher's thread: receives bursts, answers batch by batch, and ends with a summary or an error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use kdgat_graph::Batch;
use kdgat_torch::allocator::{self, Phase};
use kdgat_torch::parallel::end_idle_threads;
use parking_lot::Mutex;

use crate::accelerator::{Accelerator, AcceleratorError};
use crate::cache::{Precision, TargetCache};
use crate::shuttle::{Ready, Shuttle};
use crate::targets::Targets;

use super::answers::{Answers, Listener};
use super::policy::Policy;
use super::report::Shared;
use super::resident_targets::ResidentTargets;
use super::{Summary, TeacherError};

/// A request of the training loop.
pub(super) enum Request {
    Burst(Vec<Batch>),
    /// Batches whose memory is measured: their targets are computed and not cached, and no log counts them.
    Measured(Vec<Batch>),
    /// A batch whose cached targets turned out to be damaged; its answer overtakes those of batches submitted later.
    Again(Box<Batch>),
}

/// The targets of one batch, and a function that the student's thread must call before it reads them.
pub(super) struct Reply {
    targets: Targets,
    before_use: BeforeUse,
    /// Set for the answer to [`Request::Again`].
    again: bool,
}

type BeforeUse = Box<dyn FnOnce(&Targets) -> Result<(), AcceleratorError> + Send>;

impl Reply {
    pub fn new<A: Accelerator>(Ready { targets, events }: Ready<A::Event>, again: bool) -> Self {
        Self { targets, before_use: Box::new(move |targets| A::student_takes(&events, targets)), again }
    }

    pub fn is_again(&self) -> bool {
        self.again
    }

    /// Orders the student's stream after the targets and returns them. Called on the student's thread.
    pub fn take(self) -> Result<Targets, TeacherError> {
        (self.before_use)(&self.targets)?;
        Ok(self.targets)
    }
}

/// The only channel from the thread. Its last message is the error that ended the thread, so a waiting student receives that error
/// and not just a closed channel.
pub(super) type Replies = Sender<Result<Reply, TeacherError>>;

/// The cache, which the student's thread reads directly once it has all targets.
pub(super) type SharedCache = Arc<Mutex<TargetCache>>;

/// The place of the targets once all are cached.
pub(super) enum Resident {
    /// They stay where the cache is.
    No,
    /// They will, when all are there.
    ToCome,
    /// They are there.
    Here(ResidentTargets),
}

/// The state of the teacher's thread.
pub(super) struct Worker<A: Accelerator> {
    pub shuttle: Shuttle<A>,
    pub policy: Policy,
    pub cache: Option<SharedCache>,
    /// Precision of targets, cached or not.
    pub precision: Precision,
    pub gate_passed: bool,
    /// Set when the last burst needed the teacher.
    pub needed: bool,
    /// The place of the targets once all are cached.
    pub resident: Resident,
    pub replies: Replies,
    pub shared: Arc<Shared>,
}

/// Runs the thread; reports every error and panic in it.
pub(super) fn main<A: Accelerator>(worker: Worker<A>, requests: Receiver<Request>) -> Option<Summary> {
    let replies = worker.replies.clone();
    // The worker is dropped inside, so that its memory is free before an error is reported.
    let outcome = catch_unwind(AssertUnwindSafe(move || {
        let _no_grad = tch::no_grad_guard();
        worker.run(&requests)
    }));
    let error = match outcome {
        Ok(Ok(summary)) => return Some(summary),
        Ok(Err(error)) => error,
        Err(panic) => TeacherError::Panicked { message: message_of(panic.as_ref()) },
    };
    // The channel is closed when the training loop is shutting down.
    let _ = replies.send(Err(error));
    None
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_string());
    // libtorch appends its C++ stack trace, dozens of lines.
    let end = text.find("Exception raised from").unwrap_or(text.len());
    text[..end].trim_end_matches("\\n").trim_end().to_string()
}

impl<A: Accelerator> Worker<A> {
    fn run(mut self, requests: &Receiver<Request>) -> Result<Summary, TeacherError> {
        let _current_stream = self.shuttle.accelerator().enter_thread()?;
        let _phase = allocator::enter_phase(Phase::Teacher);
        self.shuttle.start_clock()?;
        if self.shared.are_all_kept() {
            // All targets were cached by an earlier run: the weights are not needed unless a record is damaged.
            self.shuttle.park()?;
        }
        for request in requests {
            match request {
                Request::Burst(batches) => match self.has_resident_targets()? {
                    true => self.answer_from_device(&batches)?,
                    false => self.answer(batches, false)?,
                },
                Request::Measured(batches) => self.answer_measured(batches)?,
                Request::Again(batch) => self.answer(vec![*batch], true)?,
            }
        }
        self.shuttle.let_go()?;
        self.note_timings();
        if let Some(cache) = &self.cache {
            let cache = cache.lock();
            cache.sync();
            self.shared.note_cache(cache.summary());
        }
        Ok(self.shared.summary())
    }

    /// True if all targets are on the device, where they are brought when all are cached and this was asked for.
    fn has_resident_targets(&mut self) -> Result<bool, TeacherError> {
        if let (Resident::ToCome, Some(cache), true) = (&self.resident, &self.cache, self.shared.are_all_kept()) {
            let (targets, line) = ResidentTargets::of(&mut cache.lock(), self.shuttle.accelerator().device())?;
            self.shared.note_lines(vec![line]);
            self.resident = targets.map_or(Resident::No, Resident::Here);
            if let Resident::Here(_) = self.resident {
                // Batches that were measured may have brought the weights back.
                self.shuttle.park()?;
            }
        }
        Ok(matches!(self.resident, Resident::Here(_)))
    }

    fn answer_from_device(&mut self, batches: &[Batch]) -> Result<(), TeacherError> {
        let Resident::Here(targets) = &mut self.resident else { return Ok(()) };
        for batch in batches {
            let graphs = batch.graph_index.as_slice();
            let ready = targets.ready(graphs, self.shuttle.accelerator())?;
            self.shared.note_batch(graphs.len() as u64, 0);
            if self.shared.is_stopped() || self.replies.send(Ok(Reply::new::<A>(ready, false))).is_err() {
                return Err(TeacherError::Interrupted);
            }
        }
        self.needed = false;
        self.note_timings();
        Ok(())
    }

    fn answer(&mut self, batches: Vec<Batch>, again: bool) -> Result<(), TeacherError> {
        let Self { shuttle, policy, cache, precision, gate_passed, shared, replies, .. } = self;
        let mut cache = cache.as_ref().map(|cache| cache.lock());
        let kind = policy.kind();
        let to = Listener { replies, again };
        let (mut answers, live) =
            Answers::look_up(batches, (cache.as_deref_mut(), *precision), *gate_passed, to, shared)?;
        self.needed = !live.is_empty();
        if self.needed {
            shared.note_visit(kind.residency().as_str());
            policy.before_visit(shuttle.accelerator().memory());
            let visit =
                shuttle.visit(kind, live, &mut |accelerator, number, ready| answers.ready(accelerator, number, ready));
            if let Err(error) = visit {
                // The answers so far are valid.
                answers.release()?;
                return Err(error);
            }
            *gate_passed = true;
        }
        answers.send_cached(shuttle.accelerator())?;
        answers.release()?;
        answers.keep()?;
        drop(cache);
        if self.needed && self.shuttle.accelerator().is_host() {
            // Leave all cores to the student's loops.
            end_idle_threads();
        }
        self.after_burst()
    }

    /// Computes the targets of batches whose memory is measured.
    fn answer_measured(&mut self, batches: Vec<Batch>) -> Result<(), TeacherError> {
        let Self { shuttle, policy, precision, replies, shared, .. } = self;
        let uncounted = Shared::new(0, "");
        let to = Listener { replies, again: false };
        let (mut answers, live) = Answers::look_up(batches, (None, *precision), true, to, &uncounted)?;
        let visit = shuttle
            .visit(policy.kind(), live, &mut |accelerator, number, ready| answers.ready(accelerator, number, ready));
        shared.note_device_bytes(shuttle.device_bytes());
        answers.release()?;
        visit?;
        self.shuttle.take_timings(None);
        if self.shuttle.accelerator().is_host() {
            end_idle_threads();
        }
        Ok(())
    }

    /// Drops weights that are not needed any more, and updates the statistics.
    fn after_burst(&mut self) -> Result<(), TeacherError> {
        let cache = self.cache.as_ref().map(|cache| cache.lock().summary());
        if cache.as_ref().is_some_and(|cache| cache.filled_graphs == cache.used_graphs) {
            self.shuttle.park()?;
        }
        if let Some(cache) = cache {
            self.shared.note_cache(cache);
        }
        self.note_timings();
        Ok(())
    }

    fn note_timings(&mut self) {
        let mut spans = self.shared.are_spans_recorded().then(Vec::new);
        let timings = self.shuttle.take_timings(spans.as_mut());
        self.shared.note_spans(spans.unwrap_or_default());
        self.shared.note_timings(timings, self.shuttle.device_bytes(), self.shuttle.peak_device_bytes());
        if self.needed {
            let memory = self.shuttle.accelerator().memory();
            let lines = self.policy.after_visit(timings, &self.shared.take_steps(), memory);
            self.shared.note_lines(lines);
        }
    }
}
