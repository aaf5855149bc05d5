//! Measures the memory of batches in a few training steps on real ones: forward, backward and optimiser.
//!
//! Afterwards everything is as before: weights, running statistics and gradients are restored, the optimiser was a separate
//! one, and every training step seeds torch's generator.

use kdgat_graph::{Batch, Loader};
use kdgat_nn::parameters::Role;
use kdgat_torch::allocator::Phase;
use tch::{Device, Kind, TchError, Tensor};

use super::budget::{
    BATCH_DATA, Component, GRADIENTS, LOADER_QUEUE, Linear, MemoryBudget, Moment, OPTIMIZER_STATES, OTHER,
    RESIDENT_GRAPHS, Shape, TARGETS, TEACHER_ACTIVATIONS, TEACHER_WEIGHTS,
};
use super::{Activity, Meter, MicroBatch, set_activity};
use crate::fit::FitError;
use crate::objective::Objective;
use crate::optimizer::{Adam, AdamOptions};
use crate::step::{StepOptions, StepRunner};
use crate::trainable::Trainable;

/// Graphs of the largest measured batch.
const LARGEST: usize = 256;

/// Arguments of a measurement.
pub struct Probe<'a> {
    /// Objective of the training.
    pub objective: &'a mut dyn Objective,
    /// Trained tensors; restored afterwards.
    pub trainable: &'a mut Trainable,
    /// Loader of training batches.
    pub loader: &'a Loader,
    /// Numbers of the training graphs.
    pub graphs: &'a [u64],
    /// Returns nodes and edges of a graph, or what else its memory is counted by.
    pub size_of: &'a dyn Fn(u64) -> (u64, u64),
    /// Maximum number of graphs of a batch.
    pub cap: usize,
    /// Batches announced to the teacher at a time; 1 without a teacher.
    pub burst: usize,
    /// Batches in the loader's queue.
    pub waiting_batches: usize,
    /// Settings of the optimiser.
    pub adam: AdamOptions,
    /// Type of mixed precision; `None`: f32.
    pub precision: Option<Kind>,
    /// Device of the model.
    pub device: Device,
}

/// Bytes measured on one batch.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Size of the batch.
    pub shape: Shape,
    /// Bytes of its tensors.
    pub data: f64,
    /// Bytes of a teacher's targets.
    pub targets: f64,
    /// Peak of a teacher's forward, beside the batch and its targets.
    pub visit: f64,
    /// Peak of forward and backward, or of a validation's forward, beside the batch and its targets.
    pub step: f64,
    /// Peak of the optimiser's update; 0 in validation.
    pub update: f64,
}

/// Steps measured one after another.
#[derive(Clone, Debug)]
pub struct MeasuredSteps {
    /// The step on each batch.
    pub samples: Vec<Sample>,
    /// Bytes in use between two steps.
    pub in_use: f64,
}

/// Chooses the next batch to measure, given the samples so far; `None` ends the measurement.
pub type NextBatch<'a> = dyn FnMut(&[Sample]) -> Option<Vec<u64>> + 'a;

impl Probe<'_> {
    /// Measures batches and fits the budget of the training.
    ///
    /// # Errors
    /// If not even one graph fits, or anything else fails.
    pub fn measure(self) -> Result<MemoryBudget, FitError> {
        self.measure_up_to(LARGEST)
    }

    /// The same with batches of up to `largest` graphs.
    ///
    /// # Errors
    /// Those of [`measure`](Self::measure).
    pub fn measure_up_to(mut self, largest: usize) -> Result<MemoryBudget, FitError> {
        let (samples, always) = self.restoring(|probe| probe.samples(largest))?;
        Ok(self.budget(&samples, always))
    }

    /// Measures a training step on each batch that `next` returns, with at most `micro_batch` graphs at a time. The first batch is
    /// measured twice, because the first step also allocates what later steps reuse.
    ///
    /// # Errors
    /// If a batch does not fit, or anything else fails.
    pub fn measure_each(
        mut self,
        micro_batch: Option<usize>,
        next: &mut NextBatch<'_>,
    ) -> Result<MeasuredSteps, FitError> {
        let meter = Meter::new(self.device);
        let before = meter.read().current_bytes;
        self.restoring(|probe| {
            // The copies that are restored belong to the measurement.
            let own = difference(meter.read().current_bytes, before);
            let mut adam = super::retry_on_oom(meter, || Adam::new(probe.trainable, probe.adam))?;
            let runner = super::retry_on_oom(meter, || StepRunner::new(probe.trainable, probe.device, probe.precision));
            let mut runner = runner?;
            runner.begin_with(micro_batch.map_or_else(MicroBatch::default, MicroBatch::at_most));
            let mut samples = Vec::new();
            while let Some(graphs) = next(&samples) {
                let rounds = if samples.is_empty() { 2 } else { 1 };
                let mut measured = None;
                for _ in 0..rounds {
                    probe.objective.source_mut().forget();
                    let start = meter.read().current_bytes;
                    let batch = probe.load(&graphs)?;
                    measured = Some(probe.sample(meter, &runner, &mut adam, (&graphs, &batch), start)?);
                }
                samples.extend(measured);
            }
            probe.objective.source_mut().forget();
            Ok(MeasuredSteps { samples, in_use: meter.read().current_bytes as f64 - own })
        })
    }

    /// Measures the validation of a batch, with at most `micro_batch` graphs at a time.
    ///
    /// # Errors
    /// If the batch does not fit, or anything else fails.
    pub fn measure_validation(mut self, micro_batch: Option<usize>, graphs: &[u64]) -> Result<Sample, FitError> {
        self.restoring(|probe| {
            let meter = Meter::new(probe.device);
            let runner = super::retry_on_oom(meter, || StepRunner::new(probe.trainable, probe.device, probe.precision));
            let mut runner = runner?;
            runner.begin_with(micro_batch.map_or_else(MicroBatch::default, MicroBatch::at_most));
            let start = meter.read().current_bytes;
            let batch = probe.load(graphs)?;
            let received = probe.receive(meter, (graphs, &batch), start)?;
            meter.reset_peak();
            let before = meter.read().current_bytes;
            let losses = runner.validated_once(probe.objective, &batch)?;
            let step = difference(meter.read().peak_bytes, before);
            drop(losses);
            probe.objective.source_mut().forget();
            Ok(Sample { step, ..received })
        })
    }

    /// Does `work`, then restores weights, running statistics and gradients.
    pub(super) fn restoring<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, FitError>) -> Result<T, FitError> {
        set_activity(Activity::Probe);
        let meter = Meter::new(self.device);
        let kept: Vec<(Tensor, Tensor)> = super::retry_on_oom(meter, || {
            let buffers = self.trainable.tensors().iter().filter(|named| named.role == Role::Buffer);
            let tensors = buffers.map(|named| &named.tensor).chain([&self.trainable.values]);
            let copies = tensors.map(|tensor| Ok((tensor.shallow_clone(), tensor.f_detach_copy()?)));
            tch::no_grad(|| copies.collect::<Result<_, FitError>>())
        })?;
        let outcome = work(self);
        for (mut tensor, before) in kept {
            super::retry_on_oom(meter, || Ok::<_, FitError>(tch::no_grad(|| tensor.f_copy_(&before))?))?;
        }
        super::retry_on_oom(meter, || Ok::<_, FitError>(self.trainable.zero_gradients()?))?;
        meter.release_kept();
        set_activity(Activity::Setup);
        outcome
    }

    fn samples(&mut self, largest: usize) -> Result<(Vec<Sample>, Vec<Component>), FitError> {
        let meter = Meter::new(self.device);
        let mut adam = super::retry_on_oom(meter, || Adam::new(self.trainable, self.adam))?;
        let runner = super::retry_on_oom(meter, || StepRunner::new(self.trainable, self.device, self.precision))?;
        let parameters: f64 = self.trainable.tensors().iter().map(|named| bytes_of(&named.tensor)).sum();
        let gradients = bytes_of(&self.trainable.gradients);
        let optimizer = if self.adam.offload && self.device.is_cuda() { 0.0 } else { adam.bytes() as f64 };
        let mut samples = Vec::new();
        let mut base = 0.0;
        for (number, graphs) in self.batches(largest).into_iter().enumerate() {
            let before = meter.read().current_bytes;
            self.objective.source_mut().forget();
            let start = meter.read().current_bytes;
            // Not retried: the loader itself waits for memory, so an error means that there is no room for any batch.
            let batch = self.load(&graphs);
            let sample = batch.and_then(|batch| {
                super::retry_on_oom(meter, || self.sample(meter, &runner, &mut adam, (&graphs, &batch), start))
            });
            match sample {
                // The first step also allocates everything that later steps reuse.
                Ok(_) if number == 0 => base = meter.read().current_bytes as f64,
                Ok(sample) => samples.push(sample),
                Err(error) if super::is_out_of_memory(&error) && !samples.is_empty() => break,
                Err(error) => return Err(error),
            }
            debug_assert!(number == 0 || meter.read().current_bytes <= before + (1 << 20), "the probe leaks memory");
        }
        self.objective.source_mut().forget();
        let teacher = meter.read().phase_bytes(Phase::Teacher) as f64;
        let teacher = if self.device.is_cuda() { 0.0 } else { teacher };
        // The copy of the parameters, which is restored afterwards, belongs to the probe.
        let own = bytes_of(&self.trainable.values);
        let graphs = self.loader.resident_bytes().unwrap_or(0) as f64;
        let other = (base - parameters - gradients - optimizer - teacher - own - graphs).max(0.0);
        let always = [
            ("parameters", parameters),
            (GRADIENTS, gradients),
            (OPTIMIZER_STATES, optimizer),
            (TEACHER_WEIGHTS, teacher),
            (OTHER, other),
        ];
        let resident = (graphs > 0.0).then_some((RESIDENT_GRAPHS, graphs));
        let component = |(name, bytes)| Component { name, moment: Moment::Always, bytes: Linear::fixed(bytes) };
        Ok((samples, always.into_iter().chain(resident).map(component).collect()))
    }

    /// Batches from small to large, then two of the largest size: with few and with many edges per node. Of graphs that are all alike, one of each
    /// size is enough.
    fn batches(&self, largest: usize) -> Vec<Vec<u64>> {
        let available = self.graphs.len();
        // As large as the requested size if possible: the peak of a small batch may be in another place than that of a
        // large one.
        let largest = self.cap.min(largest).min(available).max(1);
        // Spread over the dataset, because its first minutes are not representative.
        let spread =
            |count: usize| -> Vec<u64> { (0..count).map(|index| self.graphs[index * available / count]).collect() };
        let mut by_density: Vec<(u64, f64)> = spread(available.min(16 * largest))
            .into_iter()
            .map(|graph| {
                let (nodes, edges) = (self.size_of)(graph);
                (graph, edges as f64 / nodes.max(1) as f64)
            })
            .collect();
        by_density.sort_by(|a, b| a.1.total_cmp(&b.1));
        let sparse = by_density.iter().take(largest).map(|(graph, _)| *graph).collect();
        let dense = by_density.iter().rev().take(largest).map(|(graph, _)| *graph).collect();
        let smallest = spread((largest / 4).max(1));
        let mut batches = vec![smallest.clone(), smallest];
        for batch in [spread((largest / 2).max(1)), spread(largest), sparse, dense] {
            if batches.iter().all(|other| self.shape(other) != self.shape(&batch)) {
                batches.push(batch);
            }
        }
        batches
    }

    pub(super) fn sample(
        &mut self,
        meter: Meter,
        runner: &StepRunner,
        adam: &mut Adam,
        (graphs, batch): (&[u64], &Batch),
        start: u64,
    ) -> Result<Sample, FitError> {
        let received = self.receive(meter, (graphs, batch), start)?;
        let before_step = meter.read().current_bytes;
        meter.reset_peak();
        let options = StepOptions { seed: 0, scale: 1.0, accumulates: false };
        let losses = runner.once(self.objective, self.trainable, batch, options)?;
        let step_peak = meter.read().peak_bytes;
        drop(losses);
        meter.reset_peak();
        let before_update = meter.read().current_bytes;
        let _norm = adam.step(self.trainable, 0.0)?;
        let update_peak = meter.read().peak_bytes;
        Ok(Sample {
            step: difference(step_peak, before_step),
            update: difference(update_peak, before_update),
            ..received
        })
    }

    /// Announces a batch and receives its targets; `start` is the memory in use before the batch was loaded.
    pub(super) fn receive(
        &mut self,
        meter: Meter,
        (graphs, batch): (&[u64], &Batch),
        start: u64,
    ) -> Result<Sample, FitError> {
        // Drops the targets of the last batch or of an attempt that ran out of memory.
        self.objective.source_mut().forget();
        self.trainable.zero_gradients()?;
        let with_batch = meter.read().current_bytes;
        // Before the announcement: the teacher's thread begins at once.
        meter.reset_peak();
        self.objective.source_mut().announce(std::slice::from_ref(batch)).map_err(FitError::Objective)?;
        self.objective.receive(batch).map_err(FitError::Objective)?;
        let received = meter.read();
        Ok(Sample {
            shape: self.shape(graphs),
            data: difference(with_batch, start),
            targets: difference(received.current_bytes, with_batch),
            visit: difference(received.peak_bytes, received.current_bytes.max(with_batch)),
            step: 0.0,
            update: 0.0,
        })
    }

    fn shape(&self, graphs: &[u64]) -> Shape {
        Shape::sum(graphs.iter().map(|&graph| (self.size_of)(graph)))
    }

    pub(super) fn load(&self, graphs: &[u64]) -> Result<Batch, FitError> {
        let mut loaded = self.loader.epoch(vec![graphs.to_vec()], 0);
        let missing = || FitError::Torch(TchError::Shape("the loader returned no batch".into()));
        let batch = loaded.next().ok_or_else(missing)??;
        super::retry_on_oom(Meter::new(self.device), || Ok(batch.to_device(self.device)?))
    }

    fn budget(&self, samples: &[Sample], mut components: Vec<Component>) -> MemoryBudget {
        let fit = |of: &dyn Fn(&Sample) -> f64| {
            Linear::fit(&samples.iter().map(|sample| (sample.shape, of(sample))).collect::<Vec<_>>())
        };
        let burst = self.burst.max(1) as f64;
        let data = fit(&|sample| sample.data);
        let targets = fit(&|sample| sample.targets);
        let update = samples.iter().map(|sample| sample.update).fold(0.0, f64::max);
        let mut add = |name, moment, bytes| components.push(Component { name, moment, bytes });
        add(BATCH_DATA, Moment::Always, data.times(burst));
        if !self.device.is_cuda() {
            add(LOADER_QUEUE, Moment::Always, data.times(self.waiting_batches as f64));
        }
        add(TARGETS, Moment::Always, targets.times(burst));
        add(TEACHER_ACTIVATIONS, Moment::Visit, fit(&|sample| sample.visit));
        add("activations", Moment::Step, fit(&|sample| sample.step));
        add("optimiser's update", Moment::Update, Linear::fixed(update));
        MemoryBudget { components }
    }
}

pub(super) fn difference(larger: u64, smaller: u64) -> f64 {
    larger.saturating_sub(smaller) as f64
}

fn bytes_of(tensor: &Tensor) -> f64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as f64
}
