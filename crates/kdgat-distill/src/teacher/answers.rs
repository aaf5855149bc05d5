//! The answers to one burst: cached rows, live targets, or both within one batch, returned in the batches' order.

use std::collections::VecDeque;
use std::sync::Arc;

use kdgat_graph::Batch;
use kdgat_train::memory::{Meter, retry_on_oom};
use tch::Device;

use crate::accelerator::Accelerator;
use crate::cache::{HostRows, Precision, TargetCache, check_repetition, rounded};
use crate::order::Stream;
use crate::shuttle::Ready;
use crate::targets::Targets;

use super::TeacherError;
use super::report::Shared;
use super::worker::{Replies, Reply};

/// Limit for the graphs that the gate computes twice.
const GATE_GRAPHS: usize = 64;

/// A batch that waits for its answer.
pub(super) struct Pending {
    graphs: Arc<Vec<u64>>,
    /// Its cached rows, if there is a cache, and the positions of the missing graphs.
    cached: Option<(HostRows, Vec<usize>)>,
    /// Set when some of its graphs go through the teacher.
    live: bool,
}

/// Live targets that are cached at the end of the burst.
enum Keep {
    Targets(Arc<Vec<u64>>, Targets),
    Rows(HostRows),
}

/// The destination of a request's answers.
#[derive(Clone, Copy)]
pub(super) struct Listener<'a> {
    pub replies: &'a Replies,
    /// Set when the answers are for [`Request::Again`](super::worker::Request::Again).
    pub again: bool,
}

/// The waiting batches of one burst and the results of its visit so far.
pub(super) struct Answers<'a> {
    pending: VecDeque<Pending>,
    cache: Option<&'a mut TargetCache>,
    keep: Vec<Keep>,
    /// Targets of the gate's graphs, computed twice before anything else; empty if the gate was passed earlier.
    gate: Vec<Targets>,
    gate_batches: usize,
    /// Precision of live targets, with or without a cache: losses do not depend on what is cached.
    precision: Precision,
    /// Replies held back until the end of the visit; `None` if all targets were cached.
    held: Option<Vec<Reply>>,
    to: Listener<'a>,
    shared: &'a Shared,
}

impl<'a> Answers<'a> {
    /// Looks the burst up in the cache. Also returns the batches that must go through the teacher: complete ones, the missing graphs of
    /// others, and before them, twice, the gate's graphs.
    ///
    /// The student gets no answer before [`Answers::release`], so that its activations are never in memory together with the teacher's:
    /// on a GPU both share a stream, and an earlier answer would save no time.
    pub fn look_up(
        batches: Vec<Batch>,
        (mut cache, precision): (Option<&'a mut TargetCache>, Precision),
        gate_passed: bool,
        to: Listener<'a>,
        shared: &'a Shared,
    ) -> Result<(Self, Vec<Batch>), TeacherError> {
        let (mut pending, mut live) = (VecDeque::new(), Vec::new());
        for batch in batches {
            let graphs = Arc::clone(&batch.graph_index);
            let cached = cache.as_mut().map(|cache| cache.lookup(&graphs)).transpose()?;
            let missing = cached.as_ref().map_or(batch.num_graphs(), |(_, missing)| missing.len());
            match &cached {
                Some((_, positions)) if missing > 0 && missing < batch.num_graphs() => {
                    live.push(select(&batch, positions)?);
                }
                _ if missing > 0 => live.push(batch),
                _ => {}
            }
            pending.push_back(Pending { graphs, cached, live: missing > 0 });
        }
        let mut gate_batches = 0;
        if let (false, Some(first), true) = (gate_passed, live.first(), cache.is_some()) {
            let graphs = first.num_graphs().div_ceil(2).min(GATE_GRAPHS);
            let some = select(first, &(0..graphs).collect::<Vec<_>>())?;
            gate_batches = 2;
            live.splice(0..0, [some.shallow_clone(), some]);
        }
        let (keep, gate) = (Vec::new(), Vec::new());
        let held = (!live.is_empty()).then(Vec::new);
        Ok((Self { pending, cache, keep, gate, gate_batches, precision, held, to, shared }, live))
    }

    /// Takes the targets of batch number `number` among those that went through the teacher.
    pub fn ready<A: Accelerator>(
        &mut self,
        accelerator: &mut A,
        number: usize,
        ready: Ready<A::Event>,
    ) -> Result<(), TeacherError> {
        if number < self.gate_batches {
            self.gate.push(ready.targets);
            return Ok(());
        }
        if number == self.gate_batches && number > 0 {
            self.pass_gate(&ready.targets)?;
        }
        self.send_cached(accelerator)?;
        let Some(pending) = self.pending.pop_front() else { return Ok(()) };
        let misses = pending.cached.as_ref().map_or(pending.graphs.len(), |(_, missing)| missing.len());
        let ready = match (&mut self.cache, pending.cached) {
            (Some(cache), Some((rows, missing))) if missing.len() < pending.graphs.len() => {
                let merged = merge(cache, rows, &missing, &pending.graphs, ready.targets, &mut self.keep)?;
                on_device::<A>(accelerator, &merged)?
            }
            (None, _) if self.precision == Precision::F32 => ready,
            (cache, _) => {
                let precision = self.precision;
                let targets = retry_on_oom(Meter::new(accelerator.device()), || {
                    Ok::<_, TeacherError>(rounded(ready.targets.shallow_clone(), precision)?)
                })?;
                if cache.is_some() {
                    self.keep.push(Keep::Targets(Arc::clone(&pending.graphs), ready.targets));
                }
                // Rounding is more work on the teacher's stream: the student waits for its end.
                let events = vec![accelerator.record(Stream::Teacher)?];
                Ready { targets, events }
            }
        };
        self.send(pending.graphs.len(), misses, Reply::new::<A>(ready, self.to.again))
    }

    /// Answers the batches at the front that are cached completely.
    pub fn send_cached<A: Accelerator>(&mut self, accelerator: &mut A) -> Result<(), TeacherError> {
        while self.pending.front().is_some_and(|pending| !pending.live) {
            let Some(Pending { graphs, cached: Some((rows, _)), .. }) = self.pending.pop_front() else { break };
            let ready = on_device::<A>(accelerator, &rows)?;
            self.send(graphs.len(), 0, Reply::new::<A>(ready, self.to.again))?;
        }
        Ok(())
    }

    /// Caches the computed targets. On a GPU this waits for the forwards; the student already has its targets.
    pub fn keep(self) -> Result<(), TeacherError> {
        let Some(cache) = self.cache else { return Ok(()) };
        for keep in self.keep {
            match keep {
                Keep::Targets(graphs, targets) => {
                    retry_on_oom(Meter::new(Device::Cpu), || Ok::<_, TeacherError>(cache.insert(&graphs, &targets)?))?
                }
                Keep::Rows(rows) => cache.insert_rows(&rows),
            }
        }
        Ok(())
    }

    fn pass_gate(&mut self, in_batch: &Targets) -> Result<(), TeacherError> {
        if let [alone, again] = self.gate.as_slice() {
            let first = |(name, whole): &(_, tch::Tensor), alone: &tch::Tensor| {
                Ok((*name, whole.f_narrow(0, 0, alone.size()[0])?))
            };
            let pairs = in_batch.tensors.iter().zip(&alone.tensors);
            let tensors = pairs.map(|(whole, (_, alone))| first(whole, alone)).collect::<Result<_, TeacherError>>()?;
            let in_batch = Targets { tensors };
            retry_on_oom(Meter::new(Device::Cpu), || {
                Ok::<_, TeacherError>(check_repetition(&in_batch, alone, again)?)
            })??;
        }
        self.gate.clear();
        Ok(())
    }

    fn send(&mut self, graphs: usize, misses: usize, reply: Reply) -> Result<(), TeacherError> {
        self.shared.note_batch((graphs - misses) as u64, misses as u64);
        if self.shared.is_stopped() {
            return Err(TeacherError::Interrupted);
        }
        match &mut self.held {
            Some(held) => held.push(reply),
            None => self.hand_over(reply)?,
        }
        Ok(())
    }

    /// Sends the replies held back, once the visit is over and its memory is free.
    pub fn release(&mut self) -> Result<(), TeacherError> {
        for reply in self.held.take().unwrap_or_default() {
            self.hand_over(reply)?;
        }
        Ok(())
    }

    fn hand_over(&self, reply: Reply) -> Result<(), TeacherError> {
        // The channel is closed when the training loop is shutting down.
        if self.to.replies.send(Ok(reply)).is_err() {
            return Err(TeacherError::Interrupted);
        }
        Ok(())
    }
}

fn select(batch: &Batch, positions: &[usize]) -> Result<Batch, TeacherError> {
    retry_on_oom(Meter::new(batch.continuous.device()), || Ok(batch.select_graphs(positions)?))
}

/// Copies the live rows into the missing graphs' rows of the cached ones.
fn merge(
    cache: &TargetCache,
    mut rows: HostRows,
    missing: &[usize],
    graphs: &[u64],
    live: Targets,
    keep: &mut Vec<Keep>,
) -> Result<HostRows, TeacherError> {
    let computed: Vec<u64> = missing.iter().map(|&position| graphs[position]).collect();
    let live = retry_on_oom(Meter::new(Device::Cpu), || {
        Ok::<_, TeacherError>(HostRows::from_targets(cache.layout(), &computed, &live)?)
    })?;
    for (number, &position) in missing.iter().enumerate() {
        rows.copy_graph(position, &live, number)?;
    }
    keep.push(Keep::Rows(live));
    Ok(rows)
}

fn on_device<A: Accelerator>(accelerator: &mut A, rows: &HostRows) -> Result<Ready<A::Event>, TeacherError> {
    let device: Device = accelerator.device();
    let targets = retry_on_oom(Meter::new(device), || Ok::<_, TeacherError>(rows.to_targets(device)?))?;
    Ok(Ready { targets, events: vec![accelerator.record(Stream::Teacher)?] })
}
