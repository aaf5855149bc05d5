//! Steps captured once as CUDA graphs and replayed.
//!
//! A step of a small model is hundreds of small kernels, which a GPU runs faster than the host can launch them. So each
//! batch is [padded](kdgat_graph::padding) to a size that many batches share. When a size occurs for the second time, its
//! step is computed as usual and then captured: forward, losses and backward, and for a batch of validation of that size
//! forward and losses. From then on, batches of that size are copied into the captured tensors, and the whole step is one
//! launch. Clipping and the optimiser stay outside: they are a few operations, and the learning rate changes.
//!
//! A capture is used only if its replay gives the losses and gradients of the step itself. On a CPU, where there are no
//! launches to save, the step is computed again on the same tensors.

use std::collections::BTreeMap;
use std::sync::Arc;

use kdgat_graph::Batch;
use kdgat_graph::padding::SizeClass;
use kdgat_torch::allocator::{self, Phase};
use kdgat_torch::device::{DeviceError, Recording, RecordingError, RecordingPool};
use parking_lot::{Mutex, MutexGuard};
use tch::{Kind, TchError, Tensor};

use super::error::FitError;
use super::met_sizes::{Captured, MetSizes, Way};
use super::objective::{Objective, Part};
use super::step::{StepOptions, StepRunner};
use super::trainable::Trainable;
use crate::memory::{Activity, Reclaim, current_activity, is_out_of_memory, register_reclaim};

/// Largest accepted distance between the gradients and losses of a replay and those of the step, relative to their norm. They
/// differ in the order in which the threads of a GPU add.
const TOLERANCE: f64 = 1e-3;
/// The same limit in mixed precision.
const MIXED_TOLERANCE: f64 = 3e-2;

/// CUDA graphs of a run. They are freed when a teacher's thread runs out of memory.
#[derive(Debug, Default)]
pub struct SharedRecordings(Mutex<RecordedSteps>);

impl SharedRecordings {
    pub(super) fn new() -> Arc<Self> {
        let shared = Arc::new(Self::default());
        let holder: Arc<dyn Reclaim> = Arc::<Self>::clone(&shared);
        register_reclaim(&holder);
        shared
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RecordedSteps> {
        self.0.lock()
    }
}

impl Reclaim for SharedRecordings {
    /// Frees the CUDA graphs, unless a step is using them: that step's thread then runs out of memory and frees them itself.
    fn reclaim(&self) -> bool {
        self.0.try_lock().is_some_and(|mut recorded| recorded.stop())
    }
}

/// CUDA graphs of a run, by size, for one thread at a time.
#[derive(Debug, Default)]
pub struct RecordedSteps {
    pool: Option<RecordingPool>,
    met: MetSizes,
    /// The sizes that have captures.
    sizes: BTreeMap<SizeClass, RecordedSize>,
    has_stopped: bool,
    /// True once the user has been told that the CUDA graphs were freed.
    is_told: bool,
}

/// Tensors of a size, and the CUDA graphs that use them.
#[derive(Debug)]
struct RecordedSize {
    /// Must be dropped first: that waits for the last replay, which uses the tensors below.
    recordings: BTreeMap<Captured, Recorded>,
    batch: Batch,
    /// The teacher's targets, `[max(num_nodes, num_graphs), columns]` of the padded batch.
    targets: Vec<Tensor>,
}

#[derive(Debug)]
struct Recorded {
    /// `None` on a CPU.
    recording: Option<Recording>,
    /// `[1 + parts]`, f64: output of the CUDA graph.
    losses: Tensor,
}

/// Arguments of a step.
pub(crate) struct Step<'a> {
    pub runner: &'a StepRunner,
    pub objective: &'a mut dyn Objective,
    /// The padded form of the batch that the objective received last.
    pub batch: &'a Batch,
    pub work: Work<'a>,
}

/// Work of a step.
pub(crate) enum Work<'a> {
    Gradients(&'a mut Trainable, StepOptions),
    Validation,
}

impl Work<'_> {
    /// The kind of CUDA graph that it is captured as.
    pub fn kind(&self) -> Captured {
        match self {
            Self::Gradients(_, options) => Some(options.scale.to_bits()),
            Self::Validation => None,
        }
    }
}

impl RecordedSteps {
    /// Adds the gradients of a batch, or computes its losses in validation. Returns `[1 + parts]`, f64: the loss and its parts.
    ///
    /// # Errors
    /// [`FitError::Recording`] if a step cannot be captured, or its replay gives other results.
    pub(super) fn losses(&mut self, mut step: Step) -> Result<Tensor, FitError> {
        let targets = step.objective.source_mut().targets().map_err(FitError::Objective)?;
        let (class, kind) = (step.batch.size_class(), step.work.kind());
        let way = match self.sizes.get(&class) {
            Some(size) if !size.has_places_for(&targets) => Way::Computed,
            _ => self.met.way(class, kind),
        };
        if way == Way::Computed {
            self.met.note(class, kind, way);
            return RecordedSize::new(step.batch.shallow_clone(), &targets)?.compute(&mut step);
        }
        let losses = match self.sizes.get_mut(&class) {
            Some(size) => {
                size.fill(step.batch, &targets)?;
                match size.recordings.get_mut(&kind) {
                    Some(recorded) if recorded.recording.is_some() => recorded.replay(&step.work)?,
                    Some(_) => size.compute(&mut step)?,
                    None => size.record(&mut self.pool, &mut step)?,
                }
            }
            None => {
                let mut size = RecordedSize::new(step.batch.copied()?, &targets)?;
                if self.sizes.is_empty() {
                    // libtorch refuses a pool whose CUDA graphs have all been freed, or whose only capture failed.
                    self.pool = None;
                }
                let losses = size.record(&mut self.pool, &mut step)?;
                self.sizes.insert(class, size);
                losses
            }
        };
        self.met.note(class, kind, way);
        Ok(losses)
    }

    /// Frees all CUDA graphs for good after memory has run out: whole batches are worth more. Returns true if there were any.
    pub(super) fn stop(&mut self) -> bool {
        let recorded = !self.met.is_empty();
        self.met.clear();
        self.sizes.clear();
        self.has_stopped |= recorded;
        recorded
    }

    /// True if [`Self::stop`] has freed CUDA graphs.
    pub(super) fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    /// True once, after CUDA graphs were freed and before the user was told.
    pub(super) fn is_to_be_told(&mut self) -> bool {
        let news = self.has_stopped && !self.is_told;
        self.is_told |= news;
        news
    }

    /// Number of captured sizes.
    pub fn sizes(&self) -> usize {
        self.met.captured_sizes()
    }
}

impl Recorded {
    fn replay(&mut self, work: &Work) -> Result<Tensor, FitError> {
        if let Work::Gradients(_, options) = work {
            StepRunner::seed(*options);
        }
        if let Some(recording) = &mut self.recording {
            recording.replay()?;
        }
        // Copied, because the next replay overwrites it.
        Ok(self.losses.f_detach_copy()?)
    }
}

impl RecordedSize {
    fn new(batch: Batch, targets: &[Tensor]) -> Result<Self, TchError> {
        let _phase = allocator::enter_phase(Phase::Activations);
        let rows = batch.num_nodes().max(batch.num_graphs() as i64);
        let with_room = |target: &Tensor| {
            let mut shape = target.size();
            shape[0] = rows;
            Tensor::f_zeros(&shape, (target.f_kind()?, batch.continuous.device()))
        };
        let room = targets.iter().map(with_room).collect::<Result<_, _>>()?;
        let mut size = Self { recordings: BTreeMap::new(), batch, targets: room };
        size.fill_targets(targets)?;
        Ok(size)
    }

    /// True if these targets are of the kinds that the size was made for.
    fn has_places_for(&self, targets: &[Tensor]) -> bool {
        let same =
            |room: &Tensor, target: &Tensor| room.kind() == target.kind() && room.size()[1..] == target.size()[1..];
        self.targets.len() == targets.len() && self.targets.iter().zip(targets).all(|(room, target)| same(room, target))
    }

    fn fill(&mut self, batch: &Batch, targets: &[Tensor]) -> Result<(), TchError> {
        self.batch.copy_from(batch)?;
        self.fill_targets(targets)
    }

    /// Rows after those of the batch keep their values: no loss reads them.
    fn fill_targets(&mut self, targets: &[Tensor]) -> Result<(), TchError> {
        for (room, target) in self.targets.iter().zip(targets) {
            tch::no_grad(|| room.f_narrow(0, 0, target.size()[0])?.f_copy_(target))?;
        }
        Ok(())
    }

    fn compute(&self, step: &mut Step) -> Result<Tensor, FitError> {
        if let Work::Gradients(_, options) = &step.work {
            StepRunner::seed(*options);
        }
        self.unseeded(step)
    }

    fn unseeded(&self, step: &mut Step) -> Result<Tensor, FitError> {
        let _phase = allocator::enter_phase(Phase::Activations);
        step.objective.source_mut().replace_targets(&self.targets);
        let whole = Part::whole(&self.batch);
        match &step.work {
            Work::Gradients(_, options) => step.runner.backward(step.objective, &self.batch, &whole, options.scale),
            Work::Validation => step.runner.validation_losses(step.objective, &self.batch, &whole),
        }
    }

    /// Computes a step and, on a GPU, captures it, restores the state before it, and replays it. An out-of-memory error is returned as it is.
    fn record(&mut self, pool: &mut Option<RecordingPool>, step: &mut Step) -> Result<Tensor, FitError> {
        let losses = self.compute(step)?;
        let device = step.runner.device();
        if !device.is_cuda() {
            self.recordings.insert(step.work.kind(), Recorded { recording: None, losses: Tensor::new() });
            return Ok(losses);
        }
        let failed = |error: DeviceError| FitError::Recording { reason: error.to_string() };
        let gradients = match &step.work {
            Work::Gradients(trainable, _) => Some(trainable.gradients.f_detach_copy()?),
            Work::Validation => None,
        };
        // The capture allocates from a pool of its own and cannot use memory cached for the step.
        step.runner.release_kept();
        let pool = match *pool {
            Some(pool) => pool,
            None => *pool.insert(RecordingPool::new(device).map_err(failed)?),
        };
        let (recording, kept_losses) = match Recording::of(pool, || self.unseeded(step)) {
            Ok(recorded) => recorded,
            Err(RecordingError::Work(error)) if is_out_of_memory(&error) => return Err(error),
            Err(RecordingError::Work(error)) => return Err(FitError::Recording { reason: error.to_string() }),
            Err(RecordingError::Recording(error)) => return Err(failed(error)),
        };
        let mut recorded = Recorded { recording: Some(recording), losses: kept_losses };
        if let Work::Gradients(trainable, options) = &mut step.work {
            step.runner.put_back(trainable, *options)?;
        }
        let replayed = recorded.replay(&step.work)?;
        assert_same(step.runner, "losses", &losses, &replayed)?;
        if let (Some(expected), Work::Gradients(trainable, _)) = (&gradients, &step.work) {
            assert_same(step.runner, "gradients", expected, &trainable.gradients)?;
        }
        let what = if gradients.is_some() { "step" } else { "validation" };
        // A rehearsal captures what the run will capture again.
        match current_activity() {
            Activity::Probe => {}
            _ => tracing::info!("captured a {what} of {} nodes as a CUDA graph on {device:?}", self.batch.num_nodes()),
        }
        self.recordings.insert(step.work.kind(), recorded);
        Ok(replayed)
    }
}

/// An error if a replay gives other results.
fn assert_same(runner: &StepRunner, what: &str, expected: &Tensor, found: &Tensor) -> Result<(), FitError> {
    let distance = relative_distance(expected, found)?;
    let most = if runner.is_mixed() { MIXED_TOLERANCE } else { TOLERANCE };
    if distance.is_nan() || distance > most {
        let reason = format!("the replayed {what} differ from the step's by {distance:.2e} of their norm");
        return Err(FitError::Recording { reason });
    }
    Ok(())
}

/// Norm of the difference relative to the norm of `expected`. Elements that are NaN in both do not count: parts of the loss
/// that a run does not have.
fn relative_distance(expected: &Tensor, found: &Tensor) -> Result<f64, TchError> {
    let [expected, found] = [expected, found].map(|tensor| tensor.f_to_kind(Kind::Double));
    let (expected, found) = (expected?, found?);
    let both_absent = expected.f_isnan()?.f_logical_and(&found.f_isnan()?)?;
    let same = both_absent.f_logical_or(&expected.f_eq_tensor(&found)?)?;
    let norm = |tensor: &Tensor| tensor.f_norm()?.f_double_value(&[]);
    let difference = norm(&found.f_sub(&expected)?.f_masked_fill(&same, 0.0)?)?;
    let size = norm(&expected.f_nan_to_num(0.0, 0.0, 0.0)?)?;
    Ok(if difference == 0.0 { 0.0 } else { difference / size })
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::memory::{Meter, retry_on_oom};

    #[test]
    fn cuda_graphs_are_freed_unless_a_step_uses_them() {
        let shared = SharedRecordings::new();
        let key = SizeClass { nodes: 1, edges: 1, successors: 1, graphs: 1 };
        assert!(!shared.reclaim(), "there are none");
        shared.lock().met.note(key, Some(1), Way::Computed);
        let used = shared.lock();
        std::thread::scope(|scope| assert!(!scope.spawn(|| shared.reclaim()).join().unwrap(), "a step uses them"));
        drop(used);
        assert!(shared.reclaim());
        let mut recorded = shared.lock();
        assert!(recorded.met.is_empty() && recorded.has_stopped());
        assert!(recorded.is_to_be_told() && !recorded.is_to_be_told(), "the user is told once");
    }

    #[test]
    fn cuda_graphs_are_freed_before_other_work_runs_out_of_memory() {
        let shared = SharedRecordings::new();
        let key = SizeClass { nodes: 1, edges: 1, successors: 1, graphs: 1 };
        shared.lock().met.note(key, Some(1), Way::Computed);
        let outcome = retry_on_oom(Meter::new(Device::Cpu), || match shared.lock().met.is_empty() {
            true => Ok(()),
            false => Err(TchError::Torch("CUDA out of memory".into())),
        });
        assert!(outcome.is_ok(), "{outcome:?}");
    }

    #[test]
    fn a_distance_leaves_out_what_is_nan_in_both() {
        let of = |values: &[f64]| Tensor::from_slice(values);
        let distance = |left: &[f64], right: &[f64]| relative_distance(&of(left), &of(right)).unwrap();
        assert_eq!(distance(&[3.0, f64::NAN, 4.0], &[3.0, f64::NAN, 4.0]), 0.0);
        assert!((distance(&[3.0, f64::NAN, 4.0], &[3.0, f64::NAN, 4.5]) - 0.1).abs() < 1e-12);
        assert!(distance(&[3.0, 1.0], &[3.0, f64::NAN]).is_nan());
        assert!(distance(&[3.0, f64::NAN], &[3.0, 1.0]).is_nan());
        assert_eq!(distance(&[0.0, f64::INFINITY], &[0.0, f64::INFINITY]), 0.0, "infinite in both");
        assert_eq!(distance(&[0.0], &[1.0]), f64::INFINITY);
    }
}
