//! The teacher's thread: takes bursts, answers batch by batch, and ends with a summary or with the error that it met.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use crate::distill::accelerator::{Accelerator, AcceleratorError};
use crate::distill::shuttle::{Ready, Shuttle, VisitKind};
use crate::distill::targets::Targets;
use crate::graph::Batch;

use super::report::Shared;
use super::{Residency, Summary, TeacherError, TeacherOptions};

/// What the training loop asks for.
pub(super) enum Request {
    Burst(Vec<Batch>),
    Prepare,
}

/// The targets of one batch, and what the student's thread has to do before it reads them.
pub(super) struct Reply {
    targets: Targets,
    before_use: Box<dyn FnOnce(&Targets) -> Result<(), AcceleratorError> + Send>,
}

impl Reply {
    fn new<A: Accelerator>(Ready { targets, events }: Ready<A::Event>) -> Self {
        Self { targets, before_use: Box::new(move |targets| A::student_takes(&events, targets)) }
    }

    /// Called on the student's thread.
    pub fn take(self) -> Result<Targets, TeacherError> {
        (self.before_use)(&self.targets)?;
        Ok(self.targets)
    }
}

pub(super) type Replies = Sender<Result<Reply, TeacherError>>;

/// What the thread owns.
pub(super) struct Worker<A: Accelerator> {
    pub shuttle: Shuttle<A>,
    pub options: TeacherOptions,
    pub replies: Replies,
    pub shared: Arc<Shared>,
}

/// The thread: nothing that happens in it may go unreported.
pub(super) fn main<A: Accelerator>(worker: Worker<A>, requests: Receiver<Request>) -> Option<Summary> {
    let replies = worker.replies.clone();
    // The worker is dropped inside, so that memory is free again before anyone hears of an error.
    let outcome = catch_unwind(AssertUnwindSafe(move || {
        let _no_grad = tch::no_grad_guard();
        worker.run(&requests)
    }));
    let error = match outcome {
        Ok(Ok(summary)) => return Some(summary),
        Ok(Err(error)) => error,
        Err(panic) => TeacherError::Panicked { message: message_of(panic.as_ref()) },
    };
    // Nobody listens any more when the training loop is shutting down.
    let _ = replies.send(Err(error));
    None
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_string())
}

impl<A: Accelerator> Worker<A> {
    fn run(mut self, requests: &Receiver<Request>) -> Result<Summary, TeacherError> {
        for request in requests {
            match request {
                Request::Burst(batches) => self.answer(batches)?,
                Request::Prepare => self.shuttle.prepare(self.visit_kind())?,
            }
            self.note_timings();
        }
        self.shuttle.let_go()?;
        self.note_timings();
        Ok(self.shared.summary())
    }

    fn visit_kind(&self) -> VisitKind {
        match self.options.residency {
            Residency::Resident | Residency::Auto => VisitKind::Resident,
            Residency::Forward => VisitKind::Forward,
            Residency::Layer => VisitKind::Layer { slots: self.options.layer_slots },
        }
    }

    fn answer(&mut self, batches: Vec<Batch>) -> Result<(), TeacherError> {
        let graphs: Vec<u64> = batches.iter().map(|batch| batch.num_graphs() as u64).collect();
        let kind = self.visit_kind();
        self.shared.note_visit(kind.residency().as_str());
        let Self { shuttle, replies, shared, .. } = self;
        shuttle.visit(kind, batches, &mut |batch, ready| {
            shared.note_batch(0, graphs[batch]);
            send(replies, shared, Reply::new::<A>(ready))
        })
    }

    fn note_timings(&mut self) {
        let timings = self.shuttle.take_timings();
        self.shared.note_timings(timings, self.shuttle.device_bytes(), self.shuttle.peak_device_bytes());
    }
}

/// Hands targets over, unless the training loop is gone.
fn send(replies: &Replies, shared: &Shared, reply: Reply) -> Result<(), TeacherError> {
    if shared.is_stopped() {
        return Err(TeacherError::Interrupted);
    }
    replies.send(Ok(reply)).map_err(|_| TeacherError::Interrupted)
}
