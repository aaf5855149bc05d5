//! The loss of a batch and its gradients, whole or in parts, and again when memory runs out.
//!
//! Nothing of a failed attempt is left: running statistics and gradients are put back, and the generator is seeded anew,
//! so that an attempt that succeeds gives what the first would have given. In parts, each part's losses count by its
//! share, so that the gradients are those of the whole batch; only batch norm sees the nodes of one part at a time, and
//! dropout and the noise of the latent are drawn anew for each part. The running statistics move once a step, towards
//! the mean of the parts' statistics.

use std::sync::Arc;

use kdgat_base::random;
use kdgat_graph::Batch;
use kdgat_nn::fused::step_seed;
use kdgat_nn::parameters::Role;
use kdgat_torch::allocator::{self, Phase};
use kdgat_torch::autocast::Autocast;
use kdgat_torch::{self as torch, view};
use tch::{Device, Kind, TchError, Tensor};

use super::console::Console;
use super::fit::FitError;
use super::objective::{Losses, Objective, Part};
use super::recorded::{SharedRecordings, Step};
use super::trainable::Trainable;
use crate::memory::{Meter, MicroBatch, Remedy, is_out_of_memory};

/// What one batch is worth to a step.
#[derive(Clone, Copy, Debug)]
pub struct StepOptions {
    /// Of torch's generator, for all decisions of the step.
    pub seed: i64,
    /// Factor of the loss before its gradient is taken.
    pub scale: f64,
    /// Whether gradients of batches before are to be kept.
    pub accumulates: bool,
}

/// A batch as a step reads it.
#[derive(Clone, Copy, Debug)]
pub struct StepBatch<'a> {
    pub batch: &'a Batch,
    /// The same filled up, for a recording.
    pub filled_up: Option<&'a Batch>,
}

impl<'a> From<&'a Batch> for StepBatch<'a> {
    fn from(batch: &'a Batch) -> Self {
        Self { batch, filled_up: None }
    }
}

/// Told once, where memory has run out on this thread or the teacher's.
const RECORDINGS_FREED: &str =
    "memory: CUDA graphs are freed and no longer captured, so that whole batches and the teacher have room";

/// What ran out of memory.
#[derive(Clone, Copy, Debug)]
enum Work {
    Training,
    Validation,
}

impl Work {
    /// What the user hears when `graphs` did not fit.
    fn made_smaller(self, graphs: usize, smaller: usize, why: &str) -> String {
        match self {
            Self::Training => format!(
                "memory: a step on {graphs} graphs did not fit ({why}); from now on {smaller} graphs at a time, whose gradients \
                 are added up (batch norm sees {smaller} graphs at a time)"
            ),
            Self::Validation => format!(
                "memory: validation of {graphs} graphs did not fit ({why}); from now on {smaller} graphs at a time in validation"
            ),
        }
    }
}

/// Takes gradients of batches.
pub struct StepRunner {
    meter: Meter,
    micro: MicroBatch,
    /// The same of validation, which never has more at a time than training and leaves training its size.
    validating: MicroBatch,
    precision: Option<Kind>,
    /// Running statistics as they were before the attempt.
    buffers: Vec<Tensor>,
    gradients_before: Option<Tensor>,
    /// Of batches that come filled up.
    recorded: Arc<SharedRecordings>,
    /// Failures that were recovered from.
    pub recoveries: u64,
}

impl StepRunner {
    /// For the tensors of `trainable`; `precision` is the type of mixed precision.
    pub fn new(trainable: &Trainable, device: Device, precision: Option<Kind>) -> Result<Self, FitError> {
        let _phase = allocator::enter_phase(Phase::Parameters);
        let copies = buffers_of(trainable).map(|buffer| buffer.f_detach_copy());
        Ok(Self {
            meter: Meter::new(device),
            micro: MicroBatch::default(),
            validating: MicroBatch::default(),
            precision,
            buffers: copies.collect::<Result<_, TchError>>()?,
            gradients_before: None,
            recorded: SharedRecordings::new(),
            recoveries: 0,
        })
    }

    /// Adds the gradients of the batch that `objective` has received. Returns `[1 + parts]`, f64: the loss and its parts.
    pub fn gradients<'a>(
        &mut self,
        objective: &mut dyn Objective,
        trainable: &mut Trainable,
        batch: impl Into<StepBatch<'a>>,
        options: StepOptions,
        console: &mut Console,
    ) -> Result<Tensor, FitError> {
        let StepBatch { batch, filled_up } = batch.into();
        let graphs = batch.num_graphs();
        self.note_state(trainable, options)?;
        if self.recorded.lock().is_to_be_told() {
            console.line(RECORDINGS_FREED);
        }
        loop {
            let attempt = match filled_up {
                Some(filled_up) if self.micro.of(graphs) >= graphs && !self.recorded.lock().has_stopped() => {
                    self.attempt_recorded(objective, trainable, filled_up, options)
                }
                _ => torch::recover(|| self.attempt(objective, trainable, batch, options)),
            };
            match attempt {
                // Whatever it ran into, the generator of a GPU is of no use after that.
                Err(error @ FitError::Recording { .. }) => return Err(error),
                Ok(losses) => {
                    if let Some(graphs) = self.micro.succeeded(graphs) {
                        console.line(&format!("memory: {graphs} graphs at a time are tried again"));
                    }
                    return Ok(losses);
                }
                Err(error) if is_out_of_memory(&error) => {
                    self.put_back(trainable, options)?;
                    self.recover(Work::Training, graphs, error, console)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn attempt_recorded(
        &mut self,
        objective: &mut dyn Objective,
        trainable: &mut Trainable,
        batch: &Batch,
        options: StepOptions,
    ) -> Result<Tensor, FitError> {
        let shared = Arc::clone(&self.recorded);
        let mut recorded = shared.lock();
        let step = Step { runner: self, objective, trainable, batch, options };
        torch::recover(|| recorded.gradients(step))
    }

    /// Sizes whose steps are replayed by now.
    pub fn recorded_sizes(&self) -> usize {
        self.recorded.lock().sizes()
    }

    /// As [`Self::gradients`], once: running out of memory is an error.
    pub fn once(
        &self,
        objective: &mut dyn Objective,
        trainable: &mut Trainable,
        batch: &Batch,
        options: StepOptions,
    ) -> Result<Tensor, FitError> {
        torch::recover(|| self.attempt(objective, trainable, batch, options))
    }

    /// Lets so many graphs go through the model at a time.
    pub fn begin_with(&mut self, micro_batch: MicroBatch) {
        self.micro = micro_batch;
    }

    /// Whether steps can be recorded: memory has not run out, and no batch is cut in parts.
    pub fn can_record(&self) -> bool {
        !self.recorded.lock().has_stopped() && self.micro.of(usize::MAX) == usize::MAX
    }

    /// How many graphs go through the model at a time now.
    pub fn micro_batch(&self) -> &MicroBatch {
        &self.micro
    }

    /// The loss of the batch that `objective` has received, in evaluation mode. As [`Self::gradients`].
    pub fn validation(
        &mut self,
        objective: &mut dyn Objective,
        batch: &Batch,
        console: &mut Console,
    ) -> Result<Tensor, FitError> {
        let at_most = self.micro.of(batch.num_graphs());
        loop {
            let attempt = torch::recover(|| tch::no_grad(|| self.attempt_validation(objective, batch)));
            match attempt {
                Ok(losses) => {
                    self.validating.succeeded(at_most);
                    return Ok(losses);
                }
                Err(error) if is_out_of_memory(&error) => self.recover(Work::Validation, at_most, error, console)?,
                Err(error) => return Err(error),
            }
        }
    }

    fn recover(&mut self, work: Work, graphs: usize, error: FitError, console: &mut Console) -> Result<(), FitError> {
        let mut recorded = self.recorded.lock();
        recorded.stop();
        if recorded.is_to_be_told() {
            console.line(RECORDINGS_FREED);
        }
        drop(recorded);
        self.meter.release_kept();
        self.recoveries += 1;
        let micro = match work {
            Work::Training => &mut self.micro,
            Work::Validation => &mut self.validating,
        };
        match micro.failed(graphs, &error) {
            Remedy::Repeat => {
                tracing::info!("memory ran out ({error}); the step is repeated after freeing what was kept");
                Ok(())
            }
            Remedy::Smaller(smaller) => {
                let why = error.to_string();
                console.line(&work.made_smaller(graphs, smaller, first_line(&why)));
                Ok(())
            }
            Remedy::GiveUp => Err(FitError::OutOfMemory { source: Box::new(error) }),
        }
    }

    fn attempt(
        &self,
        objective: &mut dyn Objective,
        trainable: &mut Trainable,
        batch: &Batch,
        options: StepOptions,
    ) -> Result<Tensor, FitError> {
        let _phase = allocator::enter_phase(Phase::Activations);
        Self::seed(options);
        let whole = Part::whole(batch);
        let parts = parts(batch, self.micro.of(batch.num_graphs()))?;
        if let [part] = &parts[..] {
            return self.backward(objective, batch, part, options.scale);
        }
        let (mut sums, mut statistics): (Option<Tensor>, Option<Vec<Tensor>>) = (None, None);
        for part in &parts {
            // Masks and noise follow from the seed and an element's place, which begins at zero in each part: with one
            // seed all parts would draw the same.
            step_seed::set(random::mix(options.seed as u64 ^ random::mix(part.graphs.start as u64)));
            self.restore_buffers(trainable)?;
            let share = objective.share(part, &whole);
            let graphs = batch.select_graphs(&part.graphs.clone().collect::<Vec<_>>())?;
            let losses = self.backward(objective, &graphs, part, options.scale * share)?;
            sums = Some(weighted(sums, &losses, share)?);
            let moved = buffers_of(trainable).enumerate().map(|(index, buffer)| {
                let before = statistics.as_mut().map(|statistics: &mut Vec<Tensor>| statistics[index].shallow_clone());
                // Counters count the step once.
                if buffer.kind() == Kind::Int64 { buffer.f_detach_copy() } else { weighted(before, buffer, share) }
            });
            statistics = Some(tch::no_grad(|| moved.collect::<Result<_, TchError>>())?);
        }
        for (buffer, moved) in buffers_of(trainable).zip(statistics.iter().flatten()) {
            tch::no_grad(|| buffer.shallow_clone().f_copy_(moved))?;
        }
        sums.ok_or_else(|| TchError::Shape("a batch without graphs has no loss".into()).into())
    }

    /// Seeds all that a step draws.
    pub(super) fn seed(options: StepOptions) {
        tch::manual_seed(options.seed);
        step_seed::set(options.seed as u64);
    }

    pub(super) fn device(&self) -> Device {
        self.meter.device()
    }

    pub(super) fn is_mixed(&self) -> bool {
        self.precision.is_some()
    }

    /// Gives back what an allocator keeps.
    pub(super) fn release_kept(&self) {
        self.meter.release_kept();
    }

    pub(super) fn backward(
        &self,
        objective: &mut dyn Objective,
        batch: &Batch,
        part: &Part,
        scale: f64,
    ) -> Result<Tensor, FitError> {
        let mut precision = self.precision.map(|kind| Autocast::enter(self.meter.device(), kind)).transpose()?;
        let mut backward = |total: &Tensor| {
            // Each operation's backward has the precision that the operation had.
            drop(precision.take());
            let scaled = if scale == 1.0 { total.shallow_clone() } else { total.f_mul_scalar(scale)? };
            scaled.f_backward()
        };
        let losses = objective.training_loss(batch, part, &mut backward).map_err(FitError::Objective)?;
        values(&losses)
    }

    fn attempt_validation(&self, objective: &mut dyn Objective, batch: &Batch) -> Result<Tensor, FitError> {
        let _phase = allocator::enter_phase(Phase::Activations);
        let whole = Part::whole(batch);
        let parts = parts(batch, self.validating.of(self.micro.of(batch.num_graphs())))?;
        if let [part] = &parts[..] {
            return values(&objective.validation_loss(batch, part).map_err(FitError::Objective)?);
        }
        let mut sums = None;
        for part in &parts {
            let graphs = batch.select_graphs(&part.graphs.clone().collect::<Vec<_>>())?;
            let losses = values(&objective.validation_loss(&graphs, part).map_err(FitError::Objective)?)?;
            sums = Some(weighted(sums, &losses, objective.share(part, &whole))?);
        }
        sums.ok_or_else(|| TchError::Shape("a batch without graphs has no loss".into()).into())
    }

    fn note_state(&mut self, trainable: &Trainable, options: StepOptions) -> Result<(), FitError> {
        let meter = self.meter;
        crate::memory::retry_on_oom(meter, || {
            for (copy, buffer) in self.buffers.iter_mut().zip(buffers_of(trainable)) {
                view::copy_values(copy, buffer)?;
            }
            Ok::<_, FitError>(())
        })?;
        if options.accumulates {
            let _phase = allocator::enter_phase(Phase::Gradients);
            let copy = crate::memory::retry_on_oom(meter, || Ok::<_, FitError>(trainable.gradients.f_detach_copy()?))?;
            self.gradients_before = Some(copy);
        } else {
            self.gradients_before = None;
        }
        Ok(())
    }

    pub(super) fn put_back(&self, trainable: &mut Trainable, options: StepOptions) -> Result<(), FitError> {
        crate::memory::retry_on_oom(self.meter, || {
            self.restore_buffers(trainable)?;
            match &self.gradients_before {
                Some(gradients) if options.accumulates => {
                    tch::no_grad(|| trainable.gradients.f_copy_(gradients))?;
                }
                _ => trainable.zero_gradients()?,
            }
            Ok(())
        })
    }

    fn restore_buffers(&self, trainable: &Trainable) -> Result<(), TchError> {
        for (copy, buffer) in self.buffers.iter().zip(buffers_of(trainable)) {
            view::copy_values(&mut buffer.shallow_clone(), copy)?;
        }
        Ok(())
    }
}

fn buffers_of(trainable: &Trainable) -> impl Iterator<Item = &Tensor> {
    trainable.tensors().iter().filter(|named| named.role == Role::Buffer).map(|named| &named.tensor)
}

/// The graphs of a batch in stretches of at most `graphs`.
fn parts(batch: &Batch, graphs: usize) -> Result<Vec<Part>, TchError> {
    let total = batch.num_graphs();
    if graphs >= total {
        return Ok(vec![Part::whole(batch)]);
    }
    let pointers: Vec<i64> = Vec::try_from(&batch.node_pointers)?;
    let part = |start: usize| {
        let end = (start + graphs).min(total);
        Part { graphs: start..end, nodes: pointers[start]..pointers[end] }
    };
    Ok((0..total).step_by(graphs).map(part).collect())
}

fn values(losses: &Losses) -> Result<Tensor, FitError> {
    let scalars: Vec<&Tensor> = std::iter::once(&losses.total).chain(&losses.parts).collect();
    if scalars.iter().all(|scalar| scalar.device() == Device::Cpu) {
        // Nobody has to wait for them: reading is faster than four of torch's operations each.
        let values = scalars.iter().map(|scalar| scalar.f_double_value(&[])).collect::<Result<Vec<_>, _>>()?;
        return Ok(Tensor::f_from_slice(&values)?);
    }
    tch::no_grad(|| {
        let scalars = scalars.iter().map(|scalar| scalar.f_to_kind(Kind::Double)).collect::<Result<Vec<_>, _>>()?;
        Ok(Tensor::f_stack(&scalars, 0)?)
    })
}

fn weighted(sum: Option<Tensor>, values: &Tensor, weight: f64) -> Result<Tensor, TchError> {
    let values = values.f_mul_scalar(weight)?;
    match sum {
        Some(sum) => sum.f_add(&values),
        None => Ok(values),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
