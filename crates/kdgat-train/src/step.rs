//! Loss and gradients of a batch, whole or in parts, with recovery when memory runs out.
//!
//! A failed attempt leaves nothing behind: running statistics and gradients are restored and the generator is seeded again, so
//! that a later attempt gives what the first would have given. In parts, each part's losses are weighted by its share, so the
//! gradients are those of the whole batch; only batch norm sees the nodes of one part at a time, and dropout and the noise of
//! the latent are drawn for each part. The running statistics move once per step, towards the mean of the parts' statistics.

use std::sync::Arc;

use kdgat_base::random;
use kdgat_graph::Batch;
use kdgat_nn::fused::step_seed::{self, RowsBefore};
use kdgat_nn::shared_statistics;
use kdgat_torch as torch;
use kdgat_torch::allocator::{self, Phase};
use kdgat_torch::autocast::Autocast;
use tch::{Device, Kind, TchError, Tensor};

use super::console::Console;
use super::fit::FitError;
use super::objective::{Losses, Objective, Part};
use super::recorded::{self, SharedRecordings, Step};
use super::state_before::{StateBefore, buffers_of};
use super::together::{SharedStep, Together};
use super::trainable::Trainable;
use crate::memory::{Meter, MicroBatch, Remedy, is_out_of_memory};

/// Per-batch step options.
#[derive(Clone, Copy, Debug)]
pub struct StepOptions {
    /// Seed of all random numbers of the step.
    pub seed: i64,
    /// Factor of the loss before the gradient is computed.
    pub scale: f64,
    /// True to add to the gradients of earlier batches (gradient accumulation).
    pub accumulates: bool,
}

/// A batch in the forms that a step needs.
#[derive(Clone, Copy, Debug)]
pub struct StepBatch<'a> {
    /// The batch without padding.
    pub batch: &'a Batch,
    /// The padded batch, for CUDA graphs.
    pub filled_up: Option<&'a Batch>,
}

impl<'a> From<&'a Batch> for StepBatch<'a> {
    fn from(batch: &'a Batch) -> Self {
        Self { batch, filled_up: None }
    }
}

/// Printed once, after this thread or the teacher's ran out of memory.
const RECORDINGS_FREED: &str =
    "memory: CUDA graphs are freed and no longer captured, so that whole batches and the teacher have room";

/// Work that ran out of memory.
#[derive(Clone, Copy, Debug)]
enum Work {
    Training,
    Validation,
}

impl Work {
    /// Message for the user after `graphs` graphs did not fit.
    fn made_smaller(self, graphs: usize, smaller: usize, why: &str) -> String {
        match self {
            Self::Training => format!(
                "memory: a step on {graphs} graphs did not fit ({why}); from now on {smaller} graphs at a time, with gradient \
                 accumulation (batch norm sees {smaller} graphs at a time)"
            ),
            Self::Validation => format!(
                "memory: validation of {graphs} graphs did not fit ({why}); from now on {smaller} graphs at a time in validation"
            ),
        }
    }
}

/// Computes the gradients of batches, and recovers when memory runs out.
pub struct StepRunner {
    meter: Meter,
    micro: MicroBatch,
    /// Micro-batch of validation: never larger than that of training, which it does not change.
    validating: MicroBatch,
    precision: Option<Kind>,
    before: StateBefore,
    /// CUDA graphs of padded batches.
    recorded: Arc<SharedRecordings>,
    /// Number of failures recovered from.
    pub recoveries: u64,
}

impl StepRunner {
    /// A runner for the tensors of `trainable`; `precision` is the type of mixed precision.
    pub fn new(trainable: &Trainable, device: Device, precision: Option<Kind>) -> Result<Self, FitError> {
        let meter = Meter::new(device);
        Ok(Self {
            meter,
            micro: MicroBatch::default(),
            validating: MicroBatch::default(),
            precision,
            before: StateBefore::new(trainable, meter)?,
            recorded: SharedRecordings::new(),
            recoveries: 0,
        })
    }

    /// Adds the gradients of the batch that `objective` received last. Returns `[1 + parts]`, f64: the loss and its parts.
    ///
    /// # Errors
    /// If not even one graph at a time fits into memory, or anything else fails.
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
        self.before.note(trainable, options)?;
        if self.recorded.lock().is_to_be_told() {
            console.line(RECORDINGS_FREED);
        }
        loop {
            let attempt = match filled_up {
                Some(filled_up) if self.micro.of(graphs) >= graphs && !self.recorded.lock().has_stopped() => {
                    self.attempt_recorded(objective, filled_up, recorded::Work::Gradients(trainable, options))
                }
                _ => torch::recover(|| self.attempt(objective, trainable, batch, options)),
            };
            match attempt {
                // After a failed capture the generator of a GPU is unusable.
                Err(error @ FitError::Recording { .. }) => return Err(error),
                Ok(losses) => {
                    if let Some(graphs) = self.micro.succeeded(graphs) {
                        console.line(&format!("memory: trying {graphs} graphs at a time again"));
                    }
                    return Ok(losses);
                }
                Err(error) if is_out_of_memory(&error) => {
                    self.before.put_back(trainable, options)?;
                    self.recover(Work::Training, graphs, error, console)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn attempt_recorded(
        &mut self,
        objective: &mut dyn Objective,
        batch: &Batch,
        work: recorded::Work,
    ) -> Result<Tensor, FitError> {
        let shared = Arc::clone(&self.recorded);
        let mut recorded = shared.lock();
        let step = Step { runner: self, objective, batch, work };
        torch::recover(|| recorded.losses(step))
    }

    /// The losses of a padded batch, like [`Self::gradients`] and [`Self::validation`], but makes one attempt: running out of memory is an error.
    pub(crate) fn recorded_once(
        &mut self,
        objective: &mut dyn Objective,
        batch: &Batch,
        work: recorded::Work,
    ) -> Result<Tensor, FitError> {
        if let recorded::Work::Gradients(trainable, options) = &work {
            self.before.note(trainable, *options)?;
        }
        self.attempt_recorded(objective, batch, work)
    }

    /// Number of sizes whose steps are captured.
    pub fn recorded_sizes(&self) -> usize {
        self.recorded.lock().sizes()
    }

    /// Like [`Self::gradients`], but makes one attempt: running out of memory is an error.
    pub fn once(
        &self,
        objective: &mut dyn Objective,
        trainable: &mut Trainable,
        batch: &Batch,
        options: StepOptions,
    ) -> Result<Tensor, FitError> {
        torch::recover(|| self.attempt(objective, trainable, batch, options))
    }

    /// Like [`Self::validation`], but makes one attempt: running out of memory is an error.
    pub fn validated_once(&self, objective: &mut dyn Objective, batch: &Batch) -> Result<Tensor, FitError> {
        torch::recover(|| tch::no_grad(|| self.attempt_validation(objective, batch)))
    }

    /// Sets the micro-batch, for example that of a resumed run.
    pub fn begin_with(&mut self, micro_batch: MicroBatch) {
        self.micro = micro_batch;
    }

    /// True if steps can be captured as CUDA graphs: memory has not run out, and no batch is divided into parts.
    pub fn can_record(&self) -> bool {
        !self.recorded.lock().has_stopped() && self.micro.of(usize::MAX) == usize::MAX
    }

    /// Present number of graphs that go through the model at a time.
    pub fn micro_batch(&self) -> &MicroBatch {
        &self.micro
    }

    /// Computes the loss of the batch that `objective` received last, in evaluation mode: `[1 + parts]`, f64. Recovers when
    /// memory runs out, like [`Self::gradients`].
    pub fn validation<'a>(
        &mut self,
        objective: &mut dyn Objective,
        batch: impl Into<StepBatch<'a>>,
        console: &mut Console,
    ) -> Result<Tensor, FitError> {
        let StepBatch { batch, filled_up } = batch.into();
        let graphs = batch.num_graphs();
        let at_most = self.micro.of(graphs);
        loop {
            let attempt = match filled_up {
                Some(filled_up) if self.validating.of(at_most) >= graphs && !self.recorded.lock().has_stopped() => {
                    self.attempt_recorded(objective, filled_up, recorded::Work::Validation)
                }
                _ => self.validated_once(objective, batch),
            };
            match attempt {
                // After a failed capture the generator of a GPU is unusable.
                Err(error @ FitError::Recording { .. }) => return Err(error),
                Ok(losses) => {
                    self.validating.succeeded(at_most);
                    return Ok(losses);
                }
                Err(error) if is_out_of_memory(&error) => self.recover(Work::Validation, at_most, error, console)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Like [`Self::validation`], of a batch of which other processes compute their shares and exchange rows meanwhile: in one part, and once. A
    /// part would compute the whole graph again, and another attempt wait for rows that nobody gives.
    pub(super) fn validation_together(
        &mut self,
        objective: &mut dyn Objective,
        batch: &Batch,
        together: &Together,
    ) -> Result<Tensor, FitError> {
        let attempt = torch::recover(|| {
            let _phase = allocator::enter_phase(Phase::Activations);
            self.validation_losses(objective, batch, &Part::whole(batch))
        });
        let Err(error) = attempt else { return attempt };
        // The text of another process's error may speak of memory.
        together.take_failure()?;
        Err(match is_out_of_memory(&error) {
            true => FitError::OutOfMemory { source: Box::new(error) },
            false => error,
        })
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
                tracing::info!("out of memory ({error}); repeating the step after freeing cached memory");
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

    /// Adds the gradients of this process's share of a batch, which `objective` received last; `None` if it has none. Returns its
    /// contribution to the losses of the whole batch, `[1 + parts]`, f64.
    ///
    /// # Errors
    /// Those of [`Self::gradients`], and those of other processes.
    pub(super) fn gradients_together(
        &mut self,
        objective: &mut dyn Objective,
        trainable: &mut Trainable,
        batch: Option<&Batch>,
        (together, step): (&Together, &mut SharedStep),
        options: StepOptions,
        console: &mut Console,
    ) -> Result<Tensor, FitError> {
        self.before.note(trainable, options)?;
        let mut was_repeated = false;
        loop {
            let attempt =
                torch::recover(|| self.attempt_share(objective, trainable, batch, (together, &*step), options));
            let error = match attempt {
                Ok(losses) => {
                    if let Some(graphs) = batch.and_then(|batch| self.micro.succeeded(batch.num_graphs())) {
                        console.line(&format!("memory: trying {graphs} graphs at a time again"));
                    }
                    together.share_buffers(trainable, step)?;
                    return Ok(losses);
                }
                Err(error) => error,
            };
            let is_repeated = together.take_failure()?;
            if !is_repeated && !is_out_of_memory(&error) {
                return Err(error);
            }
            self.before.put_back(trainable, options)?;
            if !is_repeated && together.exchanges_rows() {
                // Parts of the batch would each compute the whole graph.
                if was_repeated {
                    return Err(FitError::OutOfMemory { source: Box::new(error) });
                }
                self.meter.release_kept();
                (was_repeated, self.recoveries) = (true, self.recoveries + 1);
                together.fail()?;
            } else if !is_repeated {
                self.recover(Work::Training, batch.map_or(0, Batch::num_graphs), error, console)?;
                together.fail()?;
            }
            together.agree(step, self.wanted_parts(batch))?;
        }
    }

    /// Number of parts in which this process computes its share of a batch.
    pub(super) fn wanted_parts(&self, batch: Option<&Batch>) -> usize {
        let graphs = batch.map_or(0, Batch::num_graphs);
        graphs.div_ceil(self.micro.of(graphs)).max(1)
    }

    fn attempt_share(
        &self,
        objective: &mut dyn Objective,
        trainable: &Trainable,
        batch: Option<&Batch>,
        (together, step): (&Together, &SharedStep),
        options: StepOptions,
    ) -> Result<Tensor, FitError> {
        let _phase = allocator::enter_phase(Phase::Activations);
        // torch's generator would draw the same numbers in every process.
        let rank = together.processes().rank() as u64;
        tch::manual_seed(random::mix(options.seed as u64 ^ random::mix(rank)) as i64);
        let columns = 1 + objective.parts().len() as i64;
        let mut sums = Tensor::f_zeros([columns], (Kind::Double, self.meter.device()))?;
        let pointers: Vec<i64> = match batch {
            Some(batch) => Vec::try_from(&batch.node_pointers)?,
            None => Vec::new(),
        };
        let (mut statistics, mut weights): (Option<Vec<Tensor>>, f64) = (None, 0.0);
        for index in 0..step.parts {
            let own = batch.and_then(|batch| Some((batch, part_of(batch, &pointers, index, step.parts)?)));
            let mut weight = 0.0;
            if let Some((batch, part)) = own {
                step_seed::set(options.seed as u64);
                let earlier = objective.rows(&Part { graphs: 0..part.graphs.start, nodes: 0..part.nodes.start });
                step_seed::set_rows_before(RowsBefore {
                    nodes: step.before.nodes + part.nodes.start as u64,
                    graphs: step.before.graphs + part.graphs.start as u64,
                    targets: step.before.targets + earlier as u64,
                });
                if step.parts > 1 {
                    self.before.restore_buffers(trainable)?;
                }
                weight = objective.rows(&part) / step.rows.max(1.0);
                let selected;
                let graphs = match step.parts {
                    1 => batch,
                    _ => {
                        selected = batch.select_graphs(&part.graphs.clone().collect::<Vec<_>>())?;
                        &selected
                    }
                };
                let scale = options.scale * weight;
                let losses =
                    shared_statistics::with(together.sums(), || self.backward(objective, graphs, &part, scale))?;
                // The mean over no rows is NaN.
                if weight > 0.0 {
                    sums = weighted(Some(sums), &losses.f_to_device(self.meter.device())?, weight)?;
                }
            }
            let of_all = together.end_part(weight)?;
            if step.parts > 1 {
                self.gather_statistics(trainable, &mut statistics, of_all)?;
                weights += of_all;
            }
        }
        if weights > 0.0 {
            for (buffer, moved) in buffers_of(trainable).zip(statistics.iter().flatten()) {
                tch::no_grad(|| buffer.shallow_clone().f_copy_(moved))?;
            }
        }
        Ok(sums)
    }

    /// Adds the buffers after a part, with its weight, to those after the parts before.
    fn gather_statistics(
        &self,
        trainable: &Trainable,
        statistics: &mut Option<Vec<Tensor>>,
        weight: f64,
    ) -> Result<(), TchError> {
        let moved = buffers_of(trainable).enumerate().map(|(index, buffer)| {
            let before = statistics.as_ref().map(|statistics| statistics[index].shallow_clone());
            // Integer buffers count the step once.
            if buffer.kind() == Kind::Int64 { buffer.f_detach_copy() } else { weighted(before, buffer, weight) }
        });
        let moved = tch::no_grad(|| moved.collect::<Result<_, TchError>>())?;
        *statistics = Some(moved);
        Ok(())
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
            // Masks and noise depend on the seed and on an element's index, which starts at zero in each part: with the same
            // seed all parts would draw the same numbers.
            step_seed::set(random::mix(options.seed as u64 ^ random::mix(part.graphs.start as u64)));
            self.before.restore_buffers(trainable)?;
            let share = objective.share(part, &whole);
            let graphs = batch.select_graphs(&part.graphs.clone().collect::<Vec<_>>())?;
            let losses = self.backward(objective, &graphs, part, options.scale * share)?;
            sums = Some(weighted(sums, &losses, share)?);
            self.gather_statistics(trainable, &mut statistics, share)?;
        }
        for (buffer, moved) in buffers_of(trainable).zip(statistics.iter().flatten()) {
            tch::no_grad(|| buffer.shallow_clone().f_copy_(moved))?;
        }
        sums.ok_or_else(|| TchError::Shape("a batch without graphs has no loss".into()).into())
    }

    /// Seeds all random numbers of a step.
    pub(super) fn seed(options: StepOptions) {
        tch::manual_seed(options.seed);
        step_seed::set(options.seed as u64);
    }

    /// Puts running statistics and gradients back to what they were before the step.
    pub(super) fn put_back(&self, trainable: &mut Trainable, options: StepOptions) -> Result<(), FitError> {
        self.before.put_back(trainable, options)
    }

    pub(super) fn device(&self) -> Device {
        self.meter.device()
    }

    pub(super) fn is_mixed(&self) -> bool {
        self.precision.is_some()
    }

    /// Frees memory that the allocators cache.
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
            // The backward of each operation uses the precision of its forward.
            drop(precision.take());
            let scaled = if scale == 1.0 { total.shallow_clone() } else { total.f_mul_scalar(scale)? };
            scaled.f_backward()
        };
        let losses = objective.training_loss(batch, part, &mut backward).map_err(FitError::Objective)?;
        values(&losses)
    }

    /// The losses of a batch in evaluation mode.
    pub(super) fn validation_losses(
        &self,
        objective: &mut dyn Objective,
        batch: &Batch,
        part: &Part,
    ) -> Result<Tensor, FitError> {
        tch::no_grad(|| values(&objective.validation_loss(batch, part).map_err(FitError::Objective)?))
    }

    fn attempt_validation(&self, objective: &mut dyn Objective, batch: &Batch) -> Result<Tensor, FitError> {
        let _phase = allocator::enter_phase(Phase::Activations);
        let whole = Part::whole(batch);
        let parts = parts(batch, self.validating.of(self.micro.of(batch.num_graphs())))?;
        if let [part] = &parts[..] {
            return self.validation_losses(objective, batch, part);
        }
        let mut sums = None;
        for part in &parts {
            let graphs = batch.select_graphs(&part.graphs.clone().collect::<Vec<_>>())?;
            let losses = self.validation_losses(objective, &graphs, part)?;
            sums = Some(weighted(sums, &losses, objective.share(part, &whole))?);
        }
        sums.ok_or_else(|| TchError::Shape("a batch without graphs has no loss".into()).into())
    }
}

/// Divides a batch into parts of at most `graphs` graphs.
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

/// Part `index` of the `count` parts of a batch, of equal size but for one graph; `None` if it has no graph.
fn part_of(batch: &Batch, pointers: &[i64], index: usize, count: usize) -> Option<Part> {
    let start = |index: usize| (batch.num_graphs() * index).div_ceil(count);
    let graphs = start(index)..start(index + 1);
    let nodes = *pointers.get(graphs.start)?..*pointers.get(graphs.end)?;
    (!graphs.is_empty()).then_some(Part { graphs, nodes })
}

fn values(losses: &Losses) -> Result<Tensor, FitError> {
    let scalars: Vec<&Tensor> = std::iter::once(&losses.total).chain(&losses.parts).collect();
    if scalars.iter().all(|scalar| scalar.device() == Device::Cpu) {
        // Nothing to wait for on the CPU: reading is faster than four of torch's operations for each scalar.
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
