//! Moves frozen weights between a block of host memory and the device.
//!
//! Host memory has one copy of the weights, layer by layer, each tensor at a multiple of 256 bytes, in a page-locked block if the
//! device is not the host; processes that train together have one on each machine. A load is one asynchronous copy into one allocation, and tensors are views into it; a release drops that
//! allocation. Nothing is copied back. [`super::order`] orders copies, forwards and the student's work; [`super::visit`] has the
//! flows.

mod block;
mod carrier;
mod host;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kdgat_graph::Batch;
use kdgat_torch::allocator::{self, Phase};
use kdgat_train::memory::{Meter, retry_on_oom};
use kdgat_train::processes::Processes;
use kdgat_train::timeline::Span as TimelineSpan;

use super::accelerator::Accelerator;
use super::model::FrozenModel;
use super::order::{AllRules, Order, Rules, Stream};
use super::targets::Targets;
use super::teacher::{Residency, TeacherError};
use super::visit::{self, Held, Output};
use super::weights::{WeightFile, Weights};

use carrier::{Carrier, Job, Slot, Span};

/// Residency of the weights during and after a visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VisitKind {
    /// All weights, which stay on the device.
    Resident,
    /// All weights, dropped after the visit.
    Forward,
    /// `slots` layers at a time.
    Layer {
        /// Number of layers on the device at once.
        slots: usize,
    },
}

impl VisitKind {
    /// The residency, as named on the command line.
    pub fn residency(self) -> Residency {
        match self {
            Self::Resident => Residency::Resident,
            Self::Forward => Residency::Forward,
            Self::Layer { .. } => Residency::Layer,
        }
    }
}

/// Targets that the device may still be computing: the student's stream must wait for `events`.
pub struct Ready<E> {
    /// The targets.
    pub targets: Targets,
    /// The events that the student's stream waits for.
    pub events: Vec<E>,
}

/// Callback of [`Shuttle::visit`], called with a batch's number and its targets.
pub type OnReady<'a, A> = dyn FnMut(&mut A, usize, Ready<<A as Accelerator>::Event>) -> Result<(), TeacherError> + 'a;

/// Times and amounts of one or more visits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// Milliseconds of copying weights to the device.
    pub copy_ms: f64,
    /// The part of `copy_ms` during which the teacher waited for its weights.
    pub copy_exposed_ms: f64,
    /// Milliseconds of forwards.
    pub forward_ms: f64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Number of copies.
    pub copies: u64,
    /// Number of batches that went through the model.
    pub forwards: u64,
}

/// A frozen model with its weights in host memory and those that are on the device.
pub struct Shuttle<A: Accelerator, R: Rules = AllRules> {
    carrier: Carrier<A>,
    order: Order<A::Event, R>,
    held: Option<Held<Slot>>,
    /// The file to read the weights from again; `digest` is their expected digest.
    source: Option<PathBuf>,
    digest: String,
    /// See [`Shuttle::sharing`].
    sharing: usize,
    /// One moment on the host's clock and on the device's.
    zero: Option<(Instant, A::Event)>,
}

impl<A: Accelerator> Shuttle<A> {
    /// Packs `weights` into one block of host memory and drops the tensors that they came in. `processes`, which do the same with equal
    /// weights, have one block on each machine.
    pub fn new(
        accelerator: A,
        model: Box<dyn FrozenModel>,
        weights: Weights,
        processes: Option<&Processes>,
    ) -> Result<Self, TeacherError> {
        Self::with_rules(accelerator, model, weights, (AllRules, processes))
    }
}

impl<A: Accelerator, R: Rules> Shuttle<A, R> {
    /// Creates a shuttle like [`Shuttle::new`] that applies only some ordering rules: for tests that each of them is needed.
    pub fn with_rules(
        mut accelerator: A,
        model: Box<dyn FrozenModel>,
        weights: Weights,
        (rules, processes): (R, Option<&Processes>),
    ) -> Result<Self, TeacherError> {
        let _phase = allocator::enter_phase(Phase::Teacher);
        let layers = block::lay_out(model.as_ref(), &weights)?;
        let (source, digest) = (weights.source().map(Path::to_path_buf), weights.digest().to_string());
        let (host, sharing) = host::packed(&mut accelerator, &layers, weights, processes)?;
        let carrier = Carrier {
            accelerator,
            model,
            host: Some(host),
            layers,
            jobs: Vec::new(),
            spans: Vec::new(),
            counted: Timings::default(),
            in_place: false,
            held_bytes: 0,
            state_growth: 1.0,
            peak_bytes: 0,
        };
        Ok(Self { carrier, order: Order::new(rules), held: None, source, digest, sharing, zero: None })
    }

    /// Number of processes of this machine that have the weights in host memory in common, this one included.
    pub fn sharing(&self) -> usize {
        self.sharing
    }

    /// Describes why copies are slower than they could be, for the user; `None` if they are not.
    pub fn hindrance(&self) -> Option<String> {
        let reason = self.carrier.host.as_ref()?.not_page_locked.as_ref()?;
        Some(format!(
            "the teacher's weights are in ordinary memory ({reason}): their copies will not overlap with computation"
        ))
    }

    /// Releases the weights from the device, and from host memory if they can be read from a file.
    ///
    /// If they are needed again (a damaged record in the cache), they are read from that file.
    pub fn park(&mut self) -> Result<(), TeacherError> {
        self.let_go()?;
        if self.source.is_some() {
            self.carrier.accelerator.finish_copies()?;
            self.carrier.host = None;
        }
        Ok(())
    }

    fn unpark(&mut self) -> Result<(), TeacherError> {
        let (None, Some(path)) = (&self.carrier.host, &self.source) else { return Ok(()) };
        let failed = |reason: String, source| TeacherError::Reload { path: path.clone(), reason, source };
        let Carrier { accelerator, layers, .. } = &mut self.carrier;
        let meter = Meter::new(accelerator.device());
        let open = || WeightFile::open(path).map_err(|source| TeacherError::Unreadable { path: path.clone(), source });
        let (host, found) = match retry_on_oom(meter, || host::packed_again(accelerator, layers, &open()?)) {
            Err(TeacherError::Unreadable { source, .. }) => {
                return Err(failed("it cannot be read".to_owned(), Some(Box::new(source))));
            }
            packed => packed?,
        };
        if found != self.digest {
            return Err(failed(format!("it holds weights with digest {found}, expected {}", self.digest), None));
        }
        (self.carrier.host, self.sharing) = (Some(host), 1);
        Ok(())
    }

    /// Computes the targets of `batches` and passes each to `ready` as soon as its forward is queued.
    ///
    /// Afterwards the weights stay on the device (`Resident`) or are dropped (`Forward`, `Layer`). After an error they are dropped.
    pub fn visit(
        &mut self,
        kind: VisitKind,
        batches: Vec<Batch>,
        ready: &mut OnReady<'_, A>,
    ) -> Result<(), TeacherError> {
        self.unpark()?;
        self.carrier.jobs = batches.into_iter().map(Job::new).collect();
        let outcome = match kind {
            VisitKind::Resident | VisitKind::Forward => self.visit_whole(kind, ready),
            VisitKind::Layer { slots } => self.visit_layers(slots, ready),
        };
        self.carrier.jobs.clear();
        if outcome.is_err() || kind != VisitKind::Resident {
            self.let_go()?;
        }
        outcome
    }

    fn visit_whole(&mut self, kind: VisitKind, ready: &mut OnReady<'_, A>) -> Result<(), TeacherError> {
        self.load(kind)?;
        let Some(held) = &self.held else { return Ok(()) };
        for batch in 0..self.carrier.jobs.len() {
            let output = visit::forward(&mut self.carrier, &mut self.order, held, batch)?;
            let finished = finish(&mut self.carrier, &mut self.order, batch, output)?;
            ready(&mut self.carrier.accelerator, batch, finished)?;
        }
        Ok(())
    }

    fn visit_layers(&mut self, slots: usize, ready: &mut OnReady<'_, A>) -> Result<(), TeacherError> {
        self.let_go()?;
        self.carrier.in_place = false;
        let before = self.carrier.spans.len();
        let (layers, slots, batches) = (self.layers(), self.ring_slots(slots), self.carrier.jobs.len());
        let mut first = 0;
        while first < batches {
            let (carrier, order) = (&mut self.carrier, &mut self.order);
            let outputs = visit::through_layers(carrier, order, layers, &slots, first..batches)?;
            for (batch, output) in (first..).zip(&outputs) {
                let finished = finish(carrier, order, batch, *output)?;
                ready(&mut carrier.accelerator, batch, finished)?;
            }
            first += outputs.len().max(1);
        }
        self.expose_host_copies(before);
        Ok(())
    }

    fn load(&mut self, kind: VisitKind) -> Result<(), TeacherError> {
        if self.held.is_none() {
            self.carrier.in_place = kind == VisitKind::Resident && self.carrier.accelerator.is_host();
            let (before, bytes) = (self.carrier.spans.len(), self.bytes());
            self.held = Some(visit::load(&mut self.carrier, &mut self.order, bytes)?);
            self.expose_host_copies(before);
        }
        Ok(())
    }

    /// Adds the host's own copies to the exposed time: the teacher waits for all of them.
    fn expose_host_copies(&mut self, since: usize) {
        if self.carrier.accelerator.is_host() {
            let copies = self.carrier.spans[since..].iter().filter(|(span, ..)| matches!(span, Span::Copy));
            let exposed: Vec<_> = copies.map(|(_, from, to)| (Span::Exposed, from.clone(), to.clone())).collect();
            self.carrier.spans.extend(exposed);
        }
    }

    /// Drops the weights on the device, after their last readers.
    pub fn let_go(&mut self) -> Result<(), TeacherError> {
        match self.held.take() {
            Some(held) => visit::let_go(&mut self.carrier, &mut self.order, held),
            None => Ok(()),
        }
    }

    /// Starts the clock that converts the device's times to host times in [`Shuttle::take_timings`]. Called while the device is idle,
    /// so that the event that it records is reached now.
    pub fn start_clock(&mut self) -> Result<(), TeacherError> {
        let zero = self.carrier.accelerator.record(Stream::Teacher)?;
        self.zero = Some((Instant::now(), zero));
        Ok(())
    }

    /// Returns the times of work that the device finished since the last call; appends each span to `recorded`, if given.
    pub fn take_timings(&mut self, mut recorded: Option<&mut Vec<TimelineSpan>>) -> Timings {
        let Carrier { accelerator, spans, counted, .. } = &mut self.carrier;
        let zero = &mut self.zero;
        let mut timings = std::mem::take(counted);
        spans.retain(|(span, from, to)| {
            let Some(milliseconds) = accelerator.elapsed_ms(from, to) else { return true };
            if let Some((instant, event)) = &mut *zero
                && let Some(since) = accelerator.elapsed_ms(event, from)
            {
                let start = *instant + Duration::from_secs_f64(since.max(0.0) / 1e3);
                let duration = Duration::from_secs_f64(milliseconds.max(0.0) / 1e3);
                if let Some(recorded) = &mut recorded {
                    recorded.push(TimelineSpan { work: span.work(), start, duration });
                }
                // A GPU measures milliseconds in f32, which hold 16 seconds to the microsecond: measure the next spans from here.
                if since > 0.0 {
                    (*instant, *event) = (start, from.clone());
                }
            }
            match span {
                Span::Copy => timings.copy_ms += milliseconds,
                Span::Exposed => timings.copy_exposed_ms += milliseconds,
                Span::Forward => timings.forward_ms += milliseconds,
            }
            false
        });
        timings
    }

    /// Bytes of the weights, alignment included.
    pub fn bytes(&self) -> usize {
        self.carrier.bytes()
    }

    /// Bytes of each slot of a ring for `wanted` layers; fewer slots if more would save no memory.
    pub fn ring_slots(&self, wanted: usize) -> Vec<usize> {
        let layers: Vec<usize> = self.carrier.layers.iter().map(|layer| layer.bytes).collect();
        visit::ring_slots(&layers, wanted)
    }

    /// Number of layers of the model.
    pub fn layers(&self) -> usize {
        self.carrier.layers.len()
    }

    /// Bytes of weights on the device now.
    pub fn device_bytes(&self) -> usize {
        self.carrier.held_bytes
    }

    /// Peak bytes of weights on the device.
    pub fn peak_device_bytes(&self) -> usize {
        self.carrier.peak_bytes
    }

    /// The device.
    pub fn accelerator(&mut self) -> &mut A {
        &mut self.carrier.accelerator
    }
}

impl<A: Accelerator, R: Rules> Drop for Shuttle<A, R> {
    /// Waits for copies from the host block, which may still be running, even after a panic.
    fn drop(&mut self) {
        if let Err(error) = self.carrier.accelerator.finish_copies() {
            tracing::error!("cannot wait for the last copy of the teacher's weights: {error}");
        }
    }
}

fn finish<A: Accelerator, R: Rules>(
    carrier: &mut Carrier<A>,
    order: &mut Order<A::Event, R>,
    batch: usize,
    output: Output,
) -> Result<Ready<A::Event>, TeacherError> {
    let events = order.before(Stream::Student, &[output.0], &[]);
    // From here on the allocator orders the memory's reuse: it is marked as used by the student's stream when the student takes it.
    order.forget(output.0);
    Ok(Ready { targets: carrier.take_targets(batch)?, events })
}
