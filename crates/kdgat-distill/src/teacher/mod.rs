//! The teacher as seen by the training loop.
//!
//! ```text
//! for burst in batches.chunks(teacher_burst):
//!     teacher.submit(burst)                 # the thread answers from the cache or with a visit of the weights;
//!                                           # on a CPU, once all targets are cached, they are read here
//!     for batch in burst:
//!         targets = teacher.targets()?      # waits; returns errors and panics of the thread
//!         student step
//! summary = teacher.finish()?
//! ```
//!
//! A visit takes place between two student steps, when the student's activations are freed: both share the device's memory, and on a
//! GPU one stream, so that computing in parallel would gain nothing.

mod answers;
mod error;
mod options;
mod policy;
mod report;
mod resident_targets;
mod step_clock;
mod store_targets;
mod worker;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;
use tch::Device;

use kdgat_graph::Batch;
use kdgat_torch::allocator::{self, Phase};
use kdgat_torch::resolve_vector_math;
use kdgat_train::memory::{Meter, is_out_of_memory, retry_on_oom};
use kdgat_train::timeline::Span;

use super::accelerator::{Accelerator, AcceleratorError, Cpu, Cuda};
use super::cache::{CacheSummary, Precision, StoreShape};
use super::model::FrozenModel;
use super::planner::Measured;
use super::shuttle::Shuttle;
use super::targets::{TargetRows, Targets};
use super::weights::Weights;

pub use error::TeacherError;
pub use options::{CacheMode, CacheOptions, Residency, TeacherOptions};
pub use report::{StepReport, Summary};

use policy::Policy;
use report::Shared;
use step_clock::StepClock;
use worker::{Reply, Request, Resident, SharedCache, Worker};

/// Requests that may wait for the thread before `submit` blocks.
const WAITING_REQUESTS: usize = 4;

/// A frozen teacher on its own thread.
pub struct Teacher {
    requests: Option<Sender<Request>>,
    replies: Receiver<Result<Reply, TeacherError>>,
    /// Answers to bursts that arrived while a batch was being computed again.
    early: VecDeque<Reply>,
    thread: Option<JoinHandle<Option<Summary>>>,
    shared: Arc<Shared>,
    /// Submitted batches that are not answered yet.
    awaited: VecDeque<Awaited>,
    /// The target cache, if the student's thread may read it directly.
    kept: Option<SharedCache>,
    failure: Option<String>,
    steps: StepClock,
    digest: String,
    /// Set while the memory of batches is measured.
    measures: bool,
}

/// Source of a submitted batch's targets.
enum Awaited {
    /// The thread's next answer.
    Thread,
    /// The cache, which is complete. On a CPU the student's thread reads it when it needs the targets: no answer waits in
    /// memory, no thread must be woken, and the threads of the student's loops do the copying.
    Cache(Box<Batch>),
}

impl Teacher {
    /// Packs the weights into host memory, opens the cache and starts the thread.
    ///
    /// `shape` has the node counts of the store's graphs, which determine the layout of a cache.
    pub fn start(
        model: Box<dyn FrozenModel>,
        weights: Weights,
        options: &TeacherOptions,
        shape: &StoreShape,
    ) -> Result<Self, TeacherError> {
        match options.device {
            Device::Cpu => Self::start_on(Cpu, model, weights, options, shape),
            device @ Device::Cuda(_) => Self::start_on(Cuda::new(device)?, model, weights, options, shape),
            device => Err(TeacherError::Device {
                source: AcceleratorError::Unsupported {
                    device,
                    reason: "only the CPU and CUDA devices are supported".to_string(),
                },
            }),
        }
    }

    /// Starts a teacher like [`Self::start`] on a given accelerator: for tests with one that is simulated or fails on purpose.
    pub fn start_on<A: Accelerator>(
        accelerator: A,
        model: Box<dyn FrozenModel>,
        weights: Weights,
        options: &TeacherOptions,
        shape: &StoreShape,
    ) -> Result<Self, TeacherError> {
        resolve_vector_math();
        let (device, digest) = (accelerator.device(), weights.digest().to_string());
        let (cache, cache_lines) = store_targets::open(&options.cache, model.target_layout(), &digest, shape)?;
        let mut shuttle = Shuttle::new(accelerator, model, weights, options.processes.as_deref())?;
        let ring = shuttle.ring_slots(options.layer_slots);
        let known = Measured {
            device_is_host: shuttle.accelerator().is_host(),
            teacher_bytes: shuttle.bytes() as u64,
            ring_bytes: ring.iter().sum::<usize>() as u64,
            layers: shuttle.layers(),
            layer_slots: ring.len(),
            cached: cache.is_some(),
            ..Measured::default()
        };
        let (policy, policy_lines) = Policy::new(options, known);
        let shared = Arc::new(Shared::new(shuttle.bytes() as u64, &digest));
        shared.note_lines(cache_lines);
        shared.note_lines(shuttle.hindrance().into_iter().collect());
        if shuttle.sharing() > 1 {
            let bytes = crate::planner::format_bytes(shuttle.bytes() as u64);
            let line =
                format!("the teacher's weights are in host memory once for {} processes, {bytes}", shuttle.sharing());
            shared.note_lines(vec![line]);
        }
        if let Some(cache) = &cache {
            shared.note_cache(cache.summary());
        }
        let cache = cache.map(|cache| Arc::new(Mutex::new(cache)));
        let kept = cache.as_ref().filter(|_| shuttle.accelerator().is_host()).map(Arc::clone);
        shared.note_lines(policy_lines);
        let (request_sender, request_receiver) = bounded(WAITING_REQUESTS);
        let (reply_sender, reply_receiver) = unbounded();
        let worker = Worker {
            shuttle,
            policy,
            cache,
            precision: if options.cache.mode == CacheMode::Off { Precision::F32 } else { options.cache.precision },
            gate_passed: false,
            needed: true,
            resident: if options.keeps_targets_on_device { Resident::ToCome } else { Resident::No },
            replies: reply_sender,
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new()
            .name("teacher".to_string())
            .spawn(move || worker::main(worker, request_receiver))
            .map_err(TeacherError::Spawn)?;
        Ok(Self {
            requests: Some(request_sender),
            replies: reply_receiver,
            early: VecDeque::new(),
            thread: Some(thread),
            shared,
            awaited: VecDeque::new(),
            kept,
            failure: None,
            steps: StepClock::new(device),
            digest,
            measures: false,
        })
    }

    /// Digest of the teacher's weights, which a student's checkpoint and summary name.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Sets whether the batches submitted from now on are measured: then their targets are neither cached nor counted, unless all targets are
    /// in the cache already.
    pub fn measure(&mut self, on: bool) {
        self.measures = on;
        // Those of a measurement, which may still run, are none of the training's.
        self.steps.forget();
    }

    /// Submits the next batches, which one visit of the weights serves.
    ///
    /// Blocks while the thread has several bursts to do. If the thread has ended, [`Teacher::targets`] returns its error.
    pub fn submit(&mut self, batches: Vec<Batch>) {
        if self.keeps_all() {
            self.awaited.extend(batches.into_iter().map(|batch| Awaited::Cache(Box::new(batch))));
            return;
        }
        self.awaited.extend(batches.iter().map(|_| Awaited::Thread));
        self.send(if self.measures { Request::Measured(batches) } else { Request::Burst(batches) });
    }

    fn send(&self, request: Request) {
        if let Some(requests) = &self.requests {
            // A closed channel means that the thread has ended; its last reply is the reason.
            let _ = requests.send(request);
        }
    }

    /// True if all targets are cached and [`Self::targets`] reads them directly: then batches share no visit, and submitting
    /// more than the next batch gains nothing.
    pub fn keeps_all(&self) -> bool {
        self.kept.is_some() && self.shared.are_all_kept()
    }

    /// True if the next targets were cached when submitted, so that [`Self::targets`] reads them on the caller's threads.
    pub fn next_is_kept(&self) -> bool {
        matches!(self.awaited.front(), Some(Awaited::Cache(_)))
    }

    /// Waits for the targets of the next submitted batch, in order of submission.
    ///
    /// After an error the thread has ended, and each later call fails with the same cause.
    pub fn targets(&mut self) -> Result<Targets, TeacherError> {
        let rows = self.target_rows()?;
        retry_on_oom(Meter::new(Device::Cpu), || Ok(rows.gathered()?))
    }

    /// Returns the same as [`Self::targets`] without copying targets that are cached in memory. Running out of memory while
    /// reading cached targets does not end the thread: the call can be repeated.
    pub fn target_rows(&mut self) -> Result<TargetRows, TeacherError> {
        if let Some(cause) = &self.failure {
            return Err(TeacherError::Stopped { cause: cause.clone() });
        }
        let Some(awaited) = self.awaited.front() else { return Err(TeacherError::NothingSubmitted) };
        let asked = Instant::now();
        let steps = self.steps.end_step().map_err(AcceleratorError::from)?;
        steps.into_iter().filter(|_| !self.measures).for_each(|step| self.shared.note_step(step));
        let outcome = match awaited {
            Awaited::Thread => self.next_answer(),
            Awaited::Cache(batch) => match self.kept_targets(batch) {
                Ok(Some(rows)) => Ok(rows),
                Ok(None) => {
                    let batch = batch.shallow_clone();
                    self.compute_again(batch)
                }
                // Nothing is lost: the targets stay next in line, and the caller can request them again when there is memory.
                Err(error) if is_out_of_memory(&error) => return Err(error),
                Err(error) => Err(error),
            },
        };
        self.awaited.pop_front();
        if !self.measures {
            self.shared.note_wait(asked.elapsed());
        }
        self.steps.start_step().map_err(AcceleratorError::from)?;
        if let Err(error) = &outcome {
            self.failure = Some(with_sources(error));
            self.stop();
        }
        outcome
    }

    /// Reads targets from the cache. `None` if one is missing after all.
    fn kept_targets(&self, batch: &Batch) -> Result<Option<TargetRows>, TeacherError> {
        let Some(cache) = &self.kept else { return Err(TeacherError::Interrupted) };
        let _phase = allocator::enter_phase(Phase::Teacher);
        let meter = Meter::new(Device::Cpu);
        if let Some(rows) = cache.lock().in_place(batch.graph_index.as_slice())? {
            self.shared.note_batch(batch.num_graphs() as u64, 0);
            return Ok(Some(rows));
        }
        let (rows, missing) =
            retry_on_oom(meter, || Ok::<_, TeacherError>(cache.lock().lookup(batch.graph_index.as_slice())?))?;
        if !missing.is_empty() {
            return Ok(None);
        }
        let targets = retry_on_oom(meter, || Ok::<_, TeacherError>(rows.to_targets(Device::Cpu)?.into_rows()))?;
        self.shared.note_batch(batch.num_graphs() as u64, 0);
        Ok(Some(targets))
    }

    /// Waits for the thread's next answer to a burst.
    fn next_answer(&mut self) -> Result<TargetRows, TeacherError> {
        let reply = match self.early.pop_front() {
            Some(reply) => reply,
            None => self.hear()?,
        };
        reply.take().map(Targets::into_rows)
    }

    /// Computes a batch with a damaged record in the cache on the thread. Bursts that were submitted later may be answered before
    /// it.
    fn compute_again(&mut self, batch: Batch) -> Result<TargetRows, TeacherError> {
        self.send(Request::Again(Box::new(batch)));
        loop {
            let reply = self.hear()?;
            if reply.is_again() {
                return reply.take().map(Targets::into_rows);
            }
            self.early.push_back(reply);
        }
    }

    /// Waits for the thread's next message: an answer, or the error that ended it. A thread that is stopped while it works sends
    /// nothing.
    fn hear(&self) -> Result<Reply, TeacherError> {
        self.replies.recv().unwrap_or(Err(TeacherError::Interrupted))
    }

    /// The decisions so far with their numbers: lines for the user, also in the summary.
    pub fn decisions(&self) -> Vec<String> {
        self.shared.decisions()
    }

    /// State of the cache so far, if there is one.
    pub fn cache(&self) -> Option<CacheSummary> {
        self.shared.cache()
    }

    /// Takes the report on the time since the last report.
    pub fn report(&self) -> StepReport {
        self.shared.take_report()
    }

    /// Returns the report on the time since the last report without taking it.
    pub fn unreported(&self) -> StepReport {
        self.shared.unreported()
    }

    /// Turns the recording of the thread's copies and forwards on or off, for [`Teacher::take_spans`].
    pub fn record_spans(&self, on: bool) {
        self.shared.record_spans(on);
    }

    /// Takes the spans recorded since the last call.
    pub fn take_spans(&self) -> Vec<Span> {
        self.shared.take_spans()
    }

    /// Waits until the thread has answered all submitted batches, ends it and returns its summary.
    pub fn finish(mut self) -> Result<Summary, TeacherError> {
        self.requests = None;
        let summary = self.join();
        if let Some(cause) = self.failure.take() {
            return Err(TeacherError::Stopped { cause });
        }
        match summary {
            Some(summary) => Ok(summary),
            // The thread's last reply is the error that ended it.
            None => Err(self.replies.try_iter().find_map(Result::err).unwrap_or(TeacherError::Interrupted)),
        }
    }

    fn stop(&mut self) {
        self.shared.stop();
        self.requests = None;
        self.join();
    }

    fn join(&mut self) -> Option<Summary> {
        self.thread.take().and_then(|thread| thread.join().ok()).flatten()
    }
}

impl Drop for Teacher {
    /// Stops the thread after the current batch and waits for its end.
    fn drop(&mut self) {
        self.stop();
    }
}

/// An error with its causes, in one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
