//! Carries frozen weights between one block of host memory and the device.
//!
//! The weights lie once in host memory, layer by layer, each tensor at a multiple of 256 bytes, in a page-locked
//! block where the device is not the host. A load is one asynchronous copy into one allocation, and tensors are views
//! into it; letting go is dropping that allocation. Nothing is ever copied back. The order of copies, forwards and the
//! student's work is kept by [`super::order`]; the flows are those of [`super::visit`].

mod block;
mod carrier;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kdgat_graph::Batch;
use kdgat_torch::allocator::{self, Phase};
use kdgat_train::memory::{Meter, retry_on_oom};
use kdgat_train::timeline::Span as TimelineSpan;

use super::accelerator::{Accelerator, HostBlock};
use super::model::FrozenModel;
use super::order::{AllRules, Order, Rules, Stream};
use super::targets::Targets;
use super::teacher::{Residency, TeacherError};
use super::visit::{self, Held, Output};
use super::weights::{WeightFile, Weights};

use carrier::{Carrier, Job, Slot, Span};

/// Where the weights are for a visit and after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VisitKind {
    /// All of them, and they stay.
    Resident,
    /// All of them, and they go.
    Forward,
    /// `slots` layers at a time.
    Layer {
        /// Layers that are on the device at once.
        slots: usize,
    },
}

impl VisitKind {
    /// The policy in the user's words.
    pub fn residency(self) -> Residency {
        match self {
            Self::Resident => Residency::Resident,
            Self::Forward => Residency::Forward,
            Self::Layer { .. } => Residency::Layer,
        }
    }
}

/// Targets that the device may still be computing: the student's stream has to wait for `events`.
pub struct Ready<E> {
    /// What was asked for.
    pub targets: Targets,
    /// What the student's stream waits for.
    pub events: Vec<E>,
}

/// What [`Shuttle::visit`] calls with the number of a batch and its targets.
pub type OnReady<'a, A> = dyn FnMut(&mut A, usize, Ready<<A as Accelerator>::Event>) -> Result<(), TeacherError> + 'a;

/// What visits took and moved.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// Copies of weights to the device.
    pub copy_ms: f64,
    /// The part of it in which the teacher had to wait for them.
    pub copy_exposed_ms: f64,
    /// Forwards.
    pub forward_ms: f64,
    /// Bytes that were copied.
    pub copied_bytes: u64,
    /// Copies that were made.
    pub copies: u64,
    /// Batches that went through the model.
    pub forwards: u64,
}

/// A frozen model, its weights in host memory, and what of them is on the device.
pub struct Shuttle<A: Accelerator, R: Rules = AllRules> {
    carrier: Carrier<A>,
    order: Order<A::Event, R>,
    held: Option<Held<Slot>>,
    /// Where the weights can be read again, and what they have to be then.
    source: Option<PathBuf>,
    digest: String,
    /// A moment on the host's clock and on the device's.
    zero: Option<(Instant, A::Event)>,
}

impl<A: Accelerator> Shuttle<A> {
    /// Packs `weights` into one block of host memory and lets go of the tensors that they came in.
    pub fn new(accelerator: A, model: Box<dyn FrozenModel>, weights: Weights) -> Result<Self, TeacherError> {
        Self::with_rules(accelerator, model, weights, AllRules)
    }
}

impl<A: Accelerator, R: Rules> Shuttle<A, R> {
    /// As [`Shuttle::new`], keeping only some rules of order: for tests that each of them is needed.
    pub fn with_rules(
        mut accelerator: A,
        model: Box<dyn FrozenModel>,
        weights: Weights,
        rules: R,
    ) -> Result<Self, TeacherError> {
        let _phase = allocator::enter_phase(Phase::Teacher);
        let layers = block::lay_out(model.as_ref(), &weights)?;
        let (source, digest) = (weights.source().map(Path::to_path_buf), weights.digest().to_string());
        // The block takes as much: where a file has the tensors, they make room for it.
        let host = match weights.into_file() {
            Ok(file) => {
                let (host, found) = pack_file(&mut accelerator, &layers, &file)?;
                if found != digest {
                    let path = file.path().to_path_buf();
                    return Err(TeacherError::Changed { path, found, expected: digest });
                }
                host
            }
            Err(weights) => pack(&mut accelerator, &layers, weights)?,
        };
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
        Ok(Self { carrier, order: Order::new(rules), held: None, source, digest, zero: None })
    }

    /// What makes copies slower than they could be, for the user.
    pub fn hindrance(&self) -> Option<String> {
        let reason = self.carrier.host.as_ref()?.not_page_locked.as_ref()?;
        Some(format!("the teacher's weights lie in ordinary memory ({reason}): copying them will not overlap"))
    }

    /// Lets the weights go for good: from the device, and from host memory if a file has them.
    ///
    /// Should they be needed once more after all (a damaged record of the cache), they are read again.
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
        let (host, found) = match retry_on_oom(meter, || pack_file(accelerator, layers, &open()?)) {
            Err(TeacherError::Unreadable { source, .. }) => {
                return Err(failed("it cannot be read".to_owned(), Some(Box::new(source))));
            }
            packed => packed?,
        };
        if found != self.digest {
            return Err(failed(format!("it holds weights with digest {found}, expected {}", self.digest), None));
        }
        self.carrier.host = Some(host);
        Ok(())
    }

    /// Targets of `batches`, each given to `ready` as soon as its forward is queued.
    ///
    /// Afterwards the weights stay (`Resident`) or go (`Forward`, `Layer`); they go when anything fails, too.
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

    /// A copy that the host makes itself is waited for by nature.
    fn expose_host_copies(&mut self, since: usize) {
        if self.carrier.accelerator.is_host() {
            let copies = self.carrier.spans[since..].iter().filter(|(span, ..)| matches!(span, Span::Copy));
            let exposed: Vec<_> = copies.map(|(_, from, to)| (Span::Exposed, from.clone(), to.clone())).collect();
            self.carrier.spans.extend(exposed);
        }
    }

    /// Drops the weights on the device, after whoever reads them last.
    pub fn let_go(&mut self) -> Result<(), TeacherError> {
        match self.held.take() {
            Some(held) => visit::let_go(&mut self.carrier, &mut self.order, held),
            None => Ok(()),
        }
    }

    /// Lets the times of [`Shuttle::take_timings`] be told by the host's clock: called when the device has nothing to do, so
    /// that the point that it marks is now.
    pub fn start_clock(&mut self) -> Result<(), TeacherError> {
        let zero = self.carrier.accelerator.record(Stream::Teacher)?;
        self.zero = Some((Instant::now(), zero));
        Ok(())
    }

    /// Times of what the device has finished since the last call; each stretch is added to `recorded`, if asked for.
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
                // A GPU tells milliseconds in f32, which hold 16 seconds to the microsecond: so the next ones count from here.
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

    /// Bytes of the slots of a ring of `wanted` layers, or of fewer where more would spare nothing.
    pub fn ring_slots(&self, wanted: usize) -> Vec<usize> {
        let layers: Vec<usize> = self.carrier.layers.iter().map(|layer| layer.bytes).collect();
        visit::ring_slots(&layers, wanted)
    }

    /// Layers of the model.
    pub fn layers(&self) -> usize {
        self.carrier.layers.len()
    }

    /// Bytes of weights that are on the device now.
    pub fn device_bytes(&self) -> usize {
        self.carrier.held_bytes
    }

    /// The most that ever were.
    pub fn peak_device_bytes(&self) -> usize {
        self.carrier.peak_bytes
    }

    /// The device that is being driven.
    pub fn accelerator(&mut self) -> &mut A {
        &mut self.carrier.accelerator
    }
}

impl<A: Accelerator, R: Rules> Drop for Shuttle<A, R> {
    /// A copy out of the host block may still be under way, after a panic too.
    fn drop(&mut self) {
        if let Err(error) = self.carrier.accelerator.finish_copies() {
            tracing::error!("waiting for the last copy of the teacher's weights: {error}");
        }
    }
}

/// A block of host memory for all layers.
fn host_block<A: Accelerator>(accelerator: &mut A, layers: &[block::Layer]) -> Result<HostBlock, TeacherError> {
    let bytes = layers.last().map_or(0, |layer| layer.offset + layer.bytes);
    let meter = Meter::new(accelerator.device());
    retry_on_oom(meter, || Ok::<_, TeacherError>(accelerator.host_block(bytes)?))
}

/// Weights that no file has: they and the block are there together.
fn pack<A: Accelerator>(
    accelerator: &mut A,
    layers: &[block::Layer],
    weights: Weights,
) -> Result<HostBlock, TeacherError> {
    let host = host_block(accelerator, layers)?;
    block::pack(layers, weights, &host.tensor)?;
    Ok(host)
}

/// The weights of a file, with their digest.
fn pack_file<A: Accelerator>(
    accelerator: &mut A,
    layers: &[block::Layer],
    file: &WeightFile,
) -> Result<(HostBlock, String), TeacherError> {
    let host = host_block(accelerator, layers)?;
    let digest = block::pack_file(layers, file, &host.tensor)?;
    Ok((host, digest))
}

fn finish<A: Accelerator, R: Rules>(
    carrier: &mut Carrier<A>,
    order: &mut Order<A::Event, R>,
    batch: usize,
    output: Output,
) -> Result<Ready<A::Event>, TeacherError> {
    let events = order.before(Stream::Student, &[output.0], &[]);
    // From here on the allocator keeps the order: the student's stream is noted on the memory when it takes them.
    order.forget(output.0);
    Ok(Ready { targets: carrier.take_targets(batch)?, events })
}
