//! The answers to one burst: cached rows, live targets, and both in one batch, handed over in the batches' order.

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

/// The most graphs that the gate computes twice.
const GATE_GRAPHS: usize = 64;

/// A batch that waits for its answer.
pub(super) struct Pending {
    graphs: Arc<Vec<u64>>,
    /// Its cached rows, if there is a cache, and the positions of the graphs that are missing.
    cached: Option<(HostRows, Vec<usize>)>,
    /// Whether part of it goes through the teacher.
    live: bool,
}

/// Live targets that are to be kept.
enum Keep {
    Targets(Arc<Vec<u64>>, Targets),
    Rows(HostRows),
}

/// Where the answers to a request go.
#[derive(Clone, Copy)]
pub(super) struct Listener<'a> {
    pub replies: &'a Replies,
    /// They answer a batch that is computed again.
    pub again: bool,
}

/// The batches of one burst that still wait, and what the visit gave so far.
pub(super) struct Answers<'a> {
    pending: VecDeque<Pending>,
    cache: Option<&'a mut TargetCache>,
    keep: Vec<Keep>,
    /// The gate's first graphs, computed twice before anything else; empty when it was passed earlier.
    gate: Vec<Targets>,
    gate_batches: usize,
    /// Live targets are rounded to this, whether or not there is a cache: losses do not depend on what is kept.
    precision: Precision,
    /// Replies that wait for the end of the visit; `None` where all targets were cached.
    held: Option<Vec<Reply>>,
    to: Listener<'a>,
    shared: &'a Shared,
}

impl<'a> Answers<'a> {
    /// Looks the burst up in the cache. Beside the answers, the batches that have to go through the teacher come out:
    /// whole ones, what is missing of others, and before them, twice, what the gate wants to see.
    ///
    /// The student hears of nothing before [`Answers::release`], so that its activations never lie beside the teacher's: on a GPU
    /// both share a stream, and an earlier answer would gain no time.
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

    /// Takes the targets of batch number `number` of those that went through the teacher.
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
                // Rounding is more work on the teacher's stream: what the student waits for is its end.
                let events = vec![accelerator.record(Stream::Teacher)?];
                Ready { targets, events }
            }
        };
        self.send(pending.graphs.len(), misses, Reply::new::<A>(ready, self.to.again))
    }

    /// Answers batches at the front that need nothing of the teacher.
    pub fn send_cached<A: Accelerator>(&mut self, accelerator: &mut A) -> Result<(), TeacherError> {
        while self.pending.front().is_some_and(|pending| !pending.live) {
            let Some(Pending { graphs, cached: Some((rows, _)), .. }) = self.pending.pop_front() else { break };
            let ready = on_device::<A>(accelerator, &rows)?;
            self.send(graphs.len(), 0, Reply::new::<A>(ready, self.to.again))?;
        }
        Ok(())
    }

    /// Keeps what was computed. On a GPU this waits for the forwards: the student has its targets already.
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

    /// The visit is over, and its memory is free: what was answered is handed over.
    pub fn release(&mut self) -> Result<(), TeacherError> {
        for reply in self.held.take().unwrap_or_default() {
            self.hand_over(reply)?;
        }
        Ok(())
    }

    fn hand_over(&self, reply: Reply) -> Result<(), TeacherError> {
        // Nobody listens any more when the training loop is shutting down.
        if self.to.replies.send(Ok(reply)).is_err() {
            return Err(TeacherError::Interrupted);
        }
        Ok(())
    }
}

fn select(batch: &Batch, positions: &[usize]) -> Result<Batch, TeacherError> {
    retry_on_oom(Meter::new(batch.continuous.device()), || Ok(batch.select_graphs(positions)?))
}

/// Cached rows with the live ones in their places.
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
