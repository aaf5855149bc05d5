//! Expected peak memory of a training on many graphs.
//!
//! The order of graphs depends on seed and epoch alone, so the batches of all epochs are known before the first. A few of them are measured,
//! the one at the expected peak among them; the others follow from their sizes.

use tch::Device;

use super::StageError;
use super::cached_targets::{CACHE_BLOCK_BYTES, CachePlace, CachedTargets};
use super::epochs::Graphs;
use super::expected_captures::{Captures, GraphSizes, PaddedStep, Progress};
use super::measured::{Measured, Queues, tensor_bytes};
use super::sizes::Sizes;
use super::sizing::waiting_batches;
use crate::config::{CachePrecision, Config};
use crate::graph::Gatherer;
use crate::graph::padding::SizeClass;
use crate::memory::Meter;
use crate::memory::budget::{Linear, Shape, gibibytes};
use crate::memory::forecast::{self, BatchBytes, CacheBlocks, Gate, Pass, Peak, Visits, Work};
use crate::memory::probe::Sample;
use crate::nn::parameters::Role;
use crate::torch::allocator::Phase;
use crate::train::fit::BatchPlan;
use crate::train::met_sizes::Way;

/// Graphs of all epochs that are looked at together: shuffling them takes about a second.
const GRAPHS_LOOKED_AT: usize = 10_000_000;
/// Batches measured because the expected peak is theirs, one after the other as estimates become better.
const REFINEMENTS: usize = 3;
/// The test of a teacher whose targets are cached, as [`Teacher`](crate::distill::Teacher) makes it.
const GATE: Gate = Gate { share: 0.5, graphs: 64.0 };

/// Memory in use throughout a training, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AlwaysBytes {
    /// Parameters, frozen tensors and running statistics, and the copy of the latter that a repeated step starts from.
    pub weights: f64,
    /// Gradients, and their copy when they are accumulated.
    pub gradients: f64,
    /// Optimiser states.
    pub optimizer: f64,
    /// The teacher's weights.
    pub teacher: f64,
    /// On a GPU, whatever else is there.
    pub other: f64,
}

impl AlwaysBytes {
    /// Memory of a training that has `in_use` bytes in use between two steps.
    fn of(training: &Measured, in_use: f64) -> Self {
        let (device, link) = (training.options.device, training.student.teacher());
        let bytes = |role: Role| {
            let tensors = training.trainable.tensors().iter().filter(|named| named.role == role);
            tensors.map(|named| tensor_bytes(&named.tensor)).sum::<f64>()
        };
        let parameters = bytes(Role::Parameter);
        let adam = &training.options.adam;
        let offloads = adam.offload && device.is_cuda();
        let mut always = Self {
            weights: parameters + bytes(Role::Frozen) + 2.0 * bytes(Role::Buffer),
            gradients: parameters,
            optimizer: if offloads { 0.0 } else { adam.state_bytes(training.trainable.values.numel()) as f64 },
            teacher: if device.is_cuda() { link.device_bytes() } else { teacher_bytes(device) } as f64,
            other: 0.0,
        };
        if device.is_cuda() {
            // Graphs, work space of libraries, and the rounding of the allocator.
            always.other = (in_use - always.sum()).max(0.0);
        }
        if training.options.accumulate_grad_batches > 1 {
            always.gradients *= 2.0;
        }
        always
    }

    /// All bytes together.
    pub fn sum(&self) -> f64 {
        self.weights + self.gradients + self.optimizer + self.teacher + self.other
    }
}

/// The queues of a training, and the place of its targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub queues: Queues,
    pub targets: CachedTargets,
    /// Batches announced at a time once all targets are cached. On a CPU each is read when its step needs it.
    pub cached_burst: usize,
    /// Epochs after which the targets of all views of the graphs are cached.
    pub views: u64,
}

impl Settings {
    /// The settings of a training on its device, whose targets are cached in this place. `views`: epochs after which those of all views are cached.
    pub fn of(config: &Config, training: &Measured, targets: CachedTargets, views: u64) -> Self {
        let burst = if training.student.teacher().digest().is_some() { config.distillation.teacher_burst } else { 1 };
        if !training.options.device.is_cuda() {
            let queues = Queues { burst, waiting: waiting_batches(config, false) };
            return Self { queues, targets, cached_burst: 1, views };
        }
        // Batches wait in host memory, and targets are cached there but for those of graphs that are on the device.
        let place = if targets.place == CachePlace::Memory { CachePlace::Disk } else { targets.place };
        let stays = config.memory.graphs_on_device && Gatherer::of(training.options.device).is_ok();
        let on_device = stays && place != CachePlace::Nowhere;
        let complete = place != CachePlace::Nowhere && targets.graphs > 0 && targets.filled == targets.graphs;
        let targets = CachedTargets { place, on_device, complete, ..targets };
        Self { queues: Queues { burst, waiting: 0 }, targets, cached_burst: burst, views }
    }
}

/// The expected peak and where it is.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedPeak {
    pub peak: Peak,
    pub always: AlwaysBytes,
    /// The epoch of the peak, from 0.
    pub epoch: u64,
    pub in_validation: bool,
    /// Size of the batch in work.
    pub shape: Shape,
    /// Epochs that were looked at.
    pub epochs: u64,
}

impl ExpectedPeak {
    /// The peak in bytes.
    pub fn bytes(&self) -> u64 {
        self.peak.bytes().round() as u64
    }

    /// The work at the peak, with its article.
    pub fn work(&self) -> &'static str {
        match (self.peak.work, self.in_validation) {
            (Work::Visit, _) => "the teacher's forward",
            (Work::Step, true) => "a validation",
            (Work::Step, false) => "a training step",
        }
    }

    /// One line for the user; `counted` names what the network computes besides nodes.
    pub fn line(&self, max_epochs: u64, counted: &str) -> String {
        let Peak { announced, waiting, .. } = self.peak;
        let first =
            if self.epochs < max_epochs { format!(" of the first {} epochs", self.epochs) } else { String::new() };
        format!(
            "memory: expected peak{first} {}: {} on {:.0} nodes and {:.0} {counted} takes {}, {} batches take {}, the rest {}",
            gibibytes(self.peak.bytes()),
            self.work(),
            self.shape.nodes,
            self.shape.edges,
            gibibytes(self.peak.activations),
            announced.0 + waiting.0,
            gibibytes(announced.1 + waiting.1),
            gibibytes(self.peak.always + self.peak.cached + self.peak.captured + self.peak.targets),
        )
    }
}

/// A training measured on a few batches.
pub struct Forecaster<'a> {
    graphs: &'a Graphs,
    sizes: &'a Sizes,
    settings: Settings,
    /// True if a teacher computes targets.
    has_teacher: bool,
    /// True if cached targets are in half precision.
    half: bool,
    /// Epochs to look at.
    epochs: u64,
    always: AlwaysBytes,
    measured: Vec<MeasuredBatch>,
    /// The largest validation batch.
    validation: Option<Sample>,
    /// `None` if no steps are captured.
    captures: Option<Captures<'a>>,
}

/// The peak of a training with captures, and the step there.
#[derive(Clone, Copy)]
struct CapturedPeak {
    found: ExpectedPeak,
    step: PaddedStep,
}

/// A measured training batch.
#[derive(Clone, Copy)]
struct MeasuredBatch {
    epoch: u64,
    batch: usize,
    sample: Sample,
}

impl<'a> Forecaster<'a> {
    /// Measures a few steps.
    ///
    /// # Errors
    /// If a step runs out of memory, or the store is damaged.
    pub fn measure(
        config: &Config,
        mut training: Measured<'a>,
        graphs: &'a Graphs,
        settings: Settings,
        captured: Option<&'a GraphSizes>,
    ) -> Result<Self, StageError> {
        let looked_at = (GRAPHS_LOOKED_AT / graphs.training.len().max(1)).max(1) as u64;
        let link = training.student.teacher();
        let mut forecaster = Self {
            graphs,
            sizes: training.sizes,
            settings,
            has_teacher: link.digest().is_some() && link.file().is_none(),
            half: config.distillation.teacher_cache_precision == CachePrecision::F16,
            epochs: training.options.max_epochs.clamp(1, looked_at),
            always: AlwaysBytes::default(),
            measured: Vec::new(),
            validation: None,
            captures: None,
        };
        // Where steps are captured, those at the peak are measured in padded form.
        let refinements = if captured.is_some() { 0 } else { REFINEMENTS };
        let in_use = forecaster.measure_training(&mut training, refinements)?;
        forecaster.always = AlwaysBytes::of(&training, in_use);
        let batches = graphs.validation_batches();
        let size = |batch: &&Vec<u64>| {
            let shape = forecaster.sizes.shape(batch);
            (shape.nodes + shape.edges) as u64
        };
        forecaster.validation = match batches.iter().max_by_key(size) {
            Some(largest) => Some(training.validation(largest)?),
            None => None,
        };
        if let Some(sizes) = captured {
            let captures = Captures::measure(&mut training, graphs, sizes, forecaster.epochs)?;
            forecaster.captures = Some(forecaster.with_peak(&mut training, captures)?);
        }
        Ok(forecaster)
    }

    /// Measures the steps at the expected peak, too, if they are not those of captures.
    fn with_peak(&self, training: &mut Measured, mut captures: Captures<'a>) -> Result<Captures<'a>, StageError> {
        for _ in 0..REFINEMENTS {
            let Some(CapturedPeak { found, step }) = self.captured_peak(&captures) else { break };
            if step.peak.is_some() || found.peak.work != Work::Step {
                break;
            }
            let batches = match found.in_validation {
                true => self.graphs.validation_batches(),
                false => self.graphs.training(found.epoch),
            };
            let (graphs, is_training) = (&batches[found.peak.batch], !found.in_validation);
            captures.measure_computed(training, step.class, graphs, is_training)?;
        }
        Ok(captures)
    }

    /// Measures some batches of the first epoch, then those at the expected peak. Returns the bytes in use between steps.
    fn measure_training(&mut self, training: &mut Measured, refinements: usize) -> Result<f64, StageError> {
        let graphs = self.graphs;
        let first = self.sizes.different(&graphs.training(0));
        let mut places: Vec<(u64, usize)> = first.into_iter().map(|batch| (0, batch)).collect();
        let most = places.len() + refinements;
        let measured = training.steps(&mut |samples: &[Sample]| {
            let of_places = places.iter().zip(samples);
            let measured = of_places.map(|(&(epoch, batch), &sample)| MeasuredBatch { epoch, batch, sample });
            self.measured = measured.collect();
            if samples.len() == places.len() {
                if places.len() == most {
                    return None;
                }
                let found = self.training_peak()?;
                let place = (found.epoch, found.peak.batch);
                if places.contains(&place) {
                    return None;
                }
                places.push(place);
            }
            let (epoch, batch) = places[samples.len()];
            graphs.training(epoch).into_iter().nth(batch)
        })?;
        Ok(measured.in_use)
    }

    /// The expected peak; `None` if there is no batch.
    pub fn expected(&self) -> Option<ExpectedPeak> {
        let peaks = match &self.captures {
            Some(captures) => self.captured_peak(captures).map(|peak| peak.found).into_iter().chain(None),
            None => self.training_peak().into_iter().chain(self.validation_peak()),
        };
        peaks.max_by(|a, b| a.peak.bytes().total_cmp(&b.peak.bytes()))
    }

    /// The peak of training and validation if steps are captured. Captures stay in memory, so all epochs count, in their order.
    fn captured_peak(&self, captures: &Captures) -> Option<CapturedPeak> {
        let mut costs = Costs::of(&self.measured);
        costs.padded_share = self.share_of_padded_steps(captures, &costs);
        let of_validation = self.validation.as_ref().map(Costs::proportional);
        let validation = self.graphs.validation_batches();
        let sizes_of_validation = captures.sizes(&validation);
        let mut progress = Progress::default();
        let mut highest: Option<CapturedPeak> = None;
        let mut add = |peak: Option<CapturedPeak>| {
            let bytes = |peak: &CapturedPeak| peak.found.peak.bytes();
            highest = highest.into_iter().chain(peak).max_by(|a, b| bytes(a).total_cmp(&bytes(b)));
        };
        let trained = self.graphs.training.len() as u64;
        for epoch in 0..self.epochs {
            let batches = self.graphs.training(epoch);
            let steps = captures.follow(&mut progress, &captures.sizes(&batches), true);
            let peak = forecast::peak(&self.padded(&batches, &steps, &costs, captures), &self.pass(epoch, 0));
            add(peak
                .map(|peak| CapturedPeak { step: steps[peak.batch], found: self.found(peak, epoch, false, &batches) }));
            let Some(costs) = &of_validation else { continue };
            let steps = captures.follow(&mut progress, &sizes_of_validation, false);
            let pass = Pass { burst: 1, ..self.pass(epoch, trained) };
            let peak = forecast::peak(&self.padded(&validation, &steps, costs, captures), &pass);
            add(peak.map(|peak| CapturedPeak {
                step: steps[peak.batch],
                found: self.found(peak, epoch, true, &validation),
            }));
        }
        highest
    }

    fn padded(
        &self,
        batches: &[Vec<u64>],
        steps: &[PaddedStep],
        costs: &Costs,
        captures: &Captures,
    ) -> Vec<BatchBytes> {
        let padded =
            |(batch, step): (&Vec<u64>, &PaddedStep)| costs.padded(self.sizes.shape(batch), step, captures.is_resident);
        batches.iter().zip(steps).map(padded).collect()
    }

    /// Memory of steps on padded batches relative to that of others of their size, in the steps of the first epoch that were measured: losses are masked
    /// there.
    fn share_of_padded_steps(&self, captures: &Captures, costs: &Costs) -> f64 {
        let batches = self.graphs.training(0);
        let steps = captures.follow(&mut Progress::default(), &captures.sizes(&batches), true);
        let measured = batches.iter().zip(steps).filter(|(_, step)| step.way == Way::Computed);
        let pairs = measured.filter_map(|(batch, step)| {
            let not_measured = PaddedStep { peak: None, ..step };
            Some((step.peak?, costs.padded(self.sizes.shape(batch), &not_measured, captures.is_resident).step))
        });
        let (measured, fitted) = pairs.fold((0.0, 0.0), |(all, of_all), (peak, fit)| (all + peak, of_all + fit));
        if fitted > 0.0 { measured / fitted } else { 1.0 }
    }

    fn training_peak(&self) -> Option<ExpectedPeak> {
        let costs = Costs::of(&self.measured);
        let peaks = (0..self.epochs).filter_map(|epoch| {
            let batches = self.graphs.training(epoch);
            let bytes_of = |(index, batch): (usize, &Vec<u64>)| {
                let measured = self.measured.iter().find(|found| (found.epoch, found.batch) == (epoch, index));
                match measured {
                    Some(measured) => bytes_of_sample(&measured.sample),
                    None => costs.at(self.sizes.shape(batch)),
                }
            };
            let bytes: Vec<BatchBytes> = batches.iter().enumerate().map(bytes_of).collect();
            let peak = forecast::peak(&bytes, &self.pass(epoch, 0))?;
            Some(self.found(peak, epoch, false, &batches))
        });
        peaks.reduce(|best, found| if found.peak.bytes() > best.peak.bytes() { found } else { best })
    }

    /// The peak of the validation after the first epoch: later ones have no visits.
    fn validation_peak(&self) -> Option<ExpectedPeak> {
        let sample = self.validation.as_ref()?;
        let batches = self.graphs.validation_batches();
        let costs = Costs::proportional(sample);
        let bytes: Vec<BatchBytes> = batches.iter().map(|batch| costs.at(self.sizes.shape(batch))).collect();
        let trained = self.graphs.training.len() as u64;
        let pass = Pass { burst: 1, ..self.pass(0, trained) };
        Some(self.found(forecast::peak(&bytes, &pass)?, 0, true, &batches))
    }

    fn found(&self, peak: Peak, epoch: u64, in_validation: bool, batches: &[Vec<u64>]) -> ExpectedPeak {
        let shape = self.sizes.shape(&batches[peak.batch]);
        ExpectedPeak { peak, always: self.always, epoch, in_validation, shape, epochs: self.epochs }
    }

    /// The circumstances of a training epoch, with targets of so many graphs already cached by the run.
    fn pass(&self, epoch: u64, cached: u64) -> Pass {
        let CachedTargets { place, record_bytes, filled, complete, on_device, .. } = self.settings.targets;
        let has_teacher = self.has_teacher;
        let is_cached = complete || (epoch >= self.settings.views && place != CachePlace::Nowhere);
        let graphs = self.graphs;
        // Of views, each graph has several.
        let all = self.settings.targets.graphs.max((graphs.training.len() + graphs.validation.len()) as u64);
        let cache = CacheBlocks {
            record_bytes,
            block_bytes: CACHE_BLOCK_BYTES,
            before: if is_cached { all } else { filled + cached },
            most: all,
        };
        // Once all targets are cached, the weights are dropped: they can be read from their file again.
        let always = self.always.sum() - if is_cached { self.always.teacher } else { 0.0 }
            + if is_cached && on_device { self.settings.targets.bytes() } else { 0.0 };
        let gate = (place != CachePlace::Nowhere && cached == 0).then_some(GATE);
        Pass {
            always,
            waiting: self.settings.queues.waiting,
            burst: match (has_teacher, is_cached) {
                (false, _) => 1,
                (true, false) => self.settings.queues.burst,
                (true, true) => self.settings.cached_burst,
            },
            visits: (has_teacher && !is_cached).then_some(Visits {
                copies: if self.half { 2.0 } else { 1.0 },
                // Of batches that are cached in part, the others go through the teacher.
                selected: if filled > 0 { (1.0 - filled as f64 / all.max(1) as f64).max(0.0) } else { 0.0 },
                gate,
            }),
            cache: (has_teacher && place == CachePlace::Memory).then_some(cache),
        }
    }
}

/// Bytes of batches by their size.
struct Costs {
    data: Linear,
    visit: Linear,
    step: Linear,
    /// Largest peak of an update.
    update: f64,
    targets_per_graph: f64,
    /// Memory of a step on a padded batch relative to that of another one of its size.
    padded_share: f64,
}

impl Costs {
    /// Fits what was measured.
    fn of(measured: &[MeasuredBatch]) -> Self {
        let fit = |of: fn(&Sample) -> f64| {
            let samples = measured.iter().map(|measured| (measured.sample.shape, of(&measured.sample)));
            Linear::fit(&samples.collect::<Vec<_>>())
        };
        let per_graph =
            measured.iter().map(|MeasuredBatch { sample, .. }| sample.targets / sample.shape.graphs.max(1.0));
        Self {
            data: fit(|sample| sample.data),
            visit: fit(|sample| sample.visit),
            step: fit(work_bytes),
            update: measured.iter().map(|measured| measured.sample.update).fold(0.0, f64::max),
            targets_per_graph: per_graph.fold(0.0, f64::max),
            padded_share: 1.0,
        }
    }

    /// Costs in proportion to the nodes and edges of one sample.
    fn proportional(sample: &Sample) -> Self {
        let size = (sample.shape.nodes + sample.shape.edges).max(1.0);
        let of = |bytes: f64| Linear { fixed: 0.0, per_node: bytes / size, per_edge: bytes / size };
        Self {
            data: of(sample.data),
            visit: of(sample.visit),
            step: of(work_bytes(sample)),
            update: sample.update,
            targets_per_graph: sample.targets / sample.shape.graphs.max(1.0),
            padded_share: 1.0,
        }
    }

    fn at(&self, shape: Shape) -> BatchBytes {
        let data = self.data.at(shape);
        BatchBytes {
            graphs: shape.graphs as u64,
            data,
            unpadded: data,
            targets: self.targets_per_graph * shape.graphs,
            visit: self.visit.at(shape),
            step: self.step.at(shape),
            captured: 0.0,
        }
    }

    /// Costs of a batch of this shape and of its step in padded form. A resident batch is a part of that form.
    fn padded(&self, shape: Shape, step: &PaddedStep, is_resident: bool) -> BatchBytes {
        let (own, factor) = (self.at(shape), step.class.nodes as f64 / shape.nodes.max(1.0));
        let SizeClass { nodes, graphs, .. } = step.class;
        let edges =
            if shape.edges > 0.0 { shape.edges * step.class.edges as f64 / step.edges.max(1) as f64 } else { 0.0 };
        let padded = self.at(Shape { graphs: graphs as f64, nodes: nodes as f64, edges });
        BatchBytes {
            data: padded.data + if is_resident { 0.0 } else { own.data },
            step: match step.peak {
                Some(peak) => peak.max(self.update),
                None => self.padded_share * (padded.step + factor * own.targets),
            },
            captured: step.held,
            ..own
        }
    }
}

/// Peak of a step and of the update after it.
fn work_bytes(sample: &Sample) -> f64 {
    sample.step.max(sample.update)
}

fn bytes_of_sample(sample: &Sample) -> BatchBytes {
    BatchBytes {
        graphs: sample.shape.graphs as u64,
        data: sample.data,
        unpadded: sample.data,
        targets: sample.targets,
        visit: sample.visit,
        step: work_bytes(sample),
        captured: 0.0,
    }
}

/// Bytes of teachers' weights in host memory.
fn teacher_bytes(device: Device) -> u64 {
    Meter::new(device).read().phase_bytes(Phase::Teacher)
}
