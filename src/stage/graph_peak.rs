//! Expected peak memory of a training on many graphs.
//!
//! The order of graphs depends on seed and epoch alone, so the batches of all epochs are known before the first. A few of them are
//! measured with a [`FreshStudent`], the one at the expected peak among them; the others follow from their nodes and edges.

use std::sync::Arc;

use super::StageError;
use super::cache_settings::cache_memory_bytes;
use super::epochs::Graphs;
use super::fresh_student::{AlwaysBytes, FreshStudent};
use super::setup::Data;
use super::sizing::waiting_batches;
use super::teacher;
use super::training::attention_kernel;
use crate::config::{CachePrecision, Config, TeacherCache};
use crate::distill::cache::RecordLayout;
use crate::distill::foreign::ForeignTargets;
use crate::distill::frozen::{self, TeacherVocabulary};
use crate::distill::objective::TeacherLink;
use crate::distill::{Precision, TeacherError};
use crate::graph::Store;
use crate::memory::Meter;
use crate::memory::budget::{
    BATCH_DATA, Component, Linear, MemoryBudget, Moment, OTHER, Shape, TEACHER_WEIGHTS, gibibytes,
};
use crate::memory::forecast::{self, BatchBytes, CacheBlocks, Gate, Pass, Peak, Visits, Work};
use crate::memory::probe::Sample;
use crate::nn::{Architecture, GnnConfig};
use crate::torch::allocator::Phase;
use crate::train::fit::{BatchPlan, FitOptions};

/// Graphs of all epochs that are looked at together: shuffling them takes about a second.
const GRAPHS_LOOKED_AT: usize = 10_000_000;
/// Batches measured because the expected peak is theirs, one after the other as estimates become better.
const REFINEMENTS: usize = 3;
/// Bytes of a block of targets cached in memory.
pub const CACHE_BLOCK_BYTES: f64 = (1 << 20) as f64;
/// The test of a teacher whose targets are cached, as [`Teacher`](crate::distill::Teacher) makes it.
const GATE: Gate = Gate { share: 0.5, graphs: 64.0 };

/// A training to predict.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub config: &'a Config,
    pub data: &'a Data,
    pub architecture: &'a GnnConfig,
    /// The teacher's architecture; `None` without a teacher that computes.
    pub teacher: Option<&'a GnnConfig>,
    /// A file with a teacher's outputs.
    pub foreign: Option<&'a Arc<ForeignTargets>>,
    pub graphs: &'a Graphs,
    pub options: &'a FitOptions,
    pub targets: CachedTargets,
}

/// The place of a teacher's targets after its first visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedTargets {
    pub place: CachePlace,
    /// Graphs whose targets are cached before the first epoch.
    pub filled: u64,
    /// True if these are all.
    pub complete: bool,
}

impl CachedTargets {
    /// No cache.
    pub const NONE: Self = Self { place: CachePlace::Nowhere, filled: 0, complete: false };
}

/// Storage of cached targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePlace {
    Nowhere,
    Memory,
    Disk,
}

impl CachedTargets {
    /// The place that a teacher's link reports.
    pub fn of(link: &TeacherLink) -> Self {
        let Some(cache) = link.cache() else { return Self::NONE };
        let place = if cache.kind == "ram" { CachePlace::Memory } else { CachePlace::Disk };
        Self { place, filled: cache.filled_graphs, complete: link.keeps_all() }
    }

    /// The place that a training would choose for targets of this many bytes, none of which are cached yet.
    pub fn planned(config: &Config, bytes: f64) -> Self {
        let place = match config.distillation.cache() {
            TeacherCache::Off => CachePlace::Nowhere,
            TeacherCache::Ram => CachePlace::Memory,
            TeacherCache::Disk => CachePlace::Disk,
            TeacherCache::Auto if bytes <= cache_memory_bytes(config) as f64 => CachePlace::Memory,
            TeacherCache::Auto => CachePlace::Disk,
        };
        Self { place, ..Self::NONE }
    }
}

/// Settings that a prediction can be repeated for without measuring again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Batches announced to the teacher at a time.
    pub burst: usize,
    /// Batches of a full loader queue.
    pub waiting: usize,
    pub targets: CachedTargets,
}

impl<'a> Question<'a> {
    /// A training that is about to start, with this teacher's architecture and the link to it.
    pub fn of_training(
        config: &'a Config,
        data: &'a Data,
        architecture: &'a GnnConfig,
        teacher: Option<&'a Architecture>,
        link: &'a TeacherLink,
        graphs: &'a Graphs,
        options: &'a FitOptions,
    ) -> Self {
        let teacher = match teacher {
            Some(Architecture::Graph(teacher)) => Some(teacher),
            _ => None,
        };
        let (foreign, targets) = (link.file(), CachedTargets::of(link));
        Self { config, data, architecture, teacher, foreign, graphs, options, targets }
    }

    /// The settings of the training.
    pub fn settings(&self) -> Settings {
        Settings {
            burst: self.config.distillation.teacher_burst,
            waiting: waiting_batches(self.config, false),
            targets: self.targets,
        }
    }
}

/// Bytes of the cached targets of one graph of mean size; 0 without a teacher that computes.
pub fn record_bytes(config: &Config, store: &Store, teacher: Option<&GnnConfig>) -> Result<f64, StageError> {
    let Some(teacher) = teacher else { return Ok(0.0) };
    let architecture = Architecture::Graph(teacher.clone());
    let model =
        frozen::model(architecture, TeacherVocabulary::Shared, attention_kernel(config), teacher::asked(config));
    let precision = match config.distillation.teacher_cache_precision {
        CachePrecision::F32 => Precision::F32,
        CachePrecision::F16 => Precision::F16,
    };
    let layout = model.map_err(TeacherError::from)?.target_layout();
    // Forces and rows of nodes have a row for each node.
    let mut nodes = 0.0;
    if layout.values_per_node() > 0 {
        for graph in 0..store.num_graphs() {
            nodes += store.try_graph(graph)?.num_nodes() as f64 / store.num_graphs() as f64;
        }
    }
    let layout = RecordLayout::new(layout, precision, &[nodes.ceil() as u32]);
    Ok(layout.record_bytes(0).map_err(TeacherError::from)? as f64)
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

    /// One line for the user.
    pub fn line(&self, max_epochs: u64) -> String {
        let Peak { announced, waiting, .. } = self.peak;
        let first =
            if self.epochs < max_epochs { format!(" of the first {} epochs", self.epochs) } else { String::new() };
        format!(
            "memory: expected peak{first} {}: {} on {:.0} nodes and {:.0} edges takes {}, {} batches take {}, the rest {}",
            gibibytes(self.peak.bytes()),
            self.work(),
            self.shape.nodes,
            self.shape.edges,
            gibibytes(self.peak.activations),
            announced.0 + waiting.0,
            gibibytes(announced.1 + waiting.1),
            gibibytes(self.peak.always + self.peak.cached + self.peak.targets),
        )
    }
}

/// A training measured on a few batches.
pub struct Forecaster<'a> {
    question: Question<'a>,
    sizes: Sizes,
    /// Epochs to look at.
    epochs: u64,
    always: AlwaysBytes,
    measured: Vec<Measured>,
    /// The largest validation batch.
    validation: Option<Sample>,
    record_bytes: f64,
}

/// A measured training batch.
#[derive(Clone, Copy)]
struct Measured {
    epoch: u64,
    batch: usize,
    sample: Sample,
}

/// Nodes, and edges with self-loops, of each graph of a store.
struct Sizes(Vec<[u32; 2]>);

impl Sizes {
    fn of(data: &Data) -> Result<Self, StageError> {
        let size = |graph| {
            let view = data.store.try_graph(graph)?;
            Ok([view.num_nodes() as u32, (view.num_edges() + view.num_nodes()) as u32])
        };
        Ok(Self((0..data.store.num_graphs()).map(size).collect::<Result<_, StageError>>()?))
    }

    fn of_graph(&self, graph: u64) -> (u64, u64) {
        let [nodes, edges] = self.0[graph as usize];
        (nodes.into(), edges.into())
    }

    fn shape(&self, batch: &[u64]) -> Shape {
        batch.iter().fold(Shape::default(), |sum, &graph| {
            let (nodes, edges) = self.of_graph(graph);
            Shape { graphs: sum.graphs + 1.0, nodes: sum.nodes + nodes as f64, edges: sum.edges + edges as f64 }
        })
    }

    /// Positions of the batches with most nodes and most edges, of a middle one and of the smallest.
    fn different(&self, batches: &[Vec<u64>]) -> Vec<usize> {
        let shapes: Vec<Shape> = batches.iter().map(|batch| self.shape(batch)).collect();
        let mut by_nodes: Vec<usize> = (0..shapes.len()).collect();
        by_nodes.sort_by(|&a, &b| shapes[b].nodes.total_cmp(&shapes[a].nodes));
        let by_edges = (0..shapes.len()).max_by(|&a, &b| shapes[a].edges.total_cmp(&shapes[b].edges));
        let middle = by_nodes.get(by_nodes.len() / 2);
        let mut chosen: Vec<usize> = Vec::new();
        for batch in [by_nodes.first(), by_edges.as_ref(), middle, by_nodes.last()].into_iter().flatten() {
            if !chosen.contains(batch) {
                chosen.push(*batch);
            }
        }
        chosen
    }
}

/// The budget of the worst batches, measured as for other trainings, but without filling the teacher's cache: of batches whose targets are
/// cached in part, the other graphs are copied, a whole burst at a time.
///
/// # Errors
/// If not even one graph fits, or the store is damaged.
pub fn budget(question: &Question) -> Result<MemoryBudget, StageError> {
    let before = Meter::new(question.data.device).read();
    let sizes = Sizes::of(question.data)?;
    let mut fresh = FreshStudent::new(question)?;
    let mut budget = fresh.probe(question, &|graph| sizes.of_graph(graph), false).measure()?;
    // A training's own student and teacher may be in memory already.
    let of_teacher = before.phase_bytes(Phase::Teacher);
    let of_others = before.current_bytes.saturating_sub(of_teacher);
    for (name, bytes) in [(TEACHER_WEIGHTS, of_teacher), (OTHER, of_others)] {
        let found = budget.components.iter_mut().filter(|component| component.name == name);
        found.for_each(|component| component.bytes.fixed = (component.bytes.fixed - bytes as f64).max(0.0));
    }
    let data = budget.components.iter().find(|component| component.name == BATCH_DATA).map(|component| component.bytes);
    if let Some(bytes) = data.filter(|_| question.teacher.is_some() && question.targets.filled > 0) {
        budget.components.push(Component { name: "batches cached in part", moment: Moment::Visit, bytes });
    }
    Ok(budget)
}

impl<'a> Forecaster<'a> {
    /// Measures a few steps.
    ///
    /// # Errors
    /// If a step runs out of memory, or the store is damaged.
    pub fn measure(question: Question<'a>) -> Result<Self, StageError> {
        let mut fresh = FreshStudent::new(&question)?;
        let looked_at = (GRAPHS_LOOKED_AT / question.graphs.training.len().max(1)).max(1) as u64;
        let mut forecaster = Self {
            question,
            sizes: Sizes::of(question.data)?,
            epochs: question.options.max_epochs.clamp(1, looked_at),
            always: fresh.always_bytes(question.options),
            measured: Vec::new(),
            validation: None,
            record_bytes: record_bytes(question.config, &question.data.store, question.teacher)?,
        };
        forecaster.measure_training(&mut fresh)?;
        forecaster.measure_validation(&mut fresh)?;
        Ok(forecaster)
    }

    /// Measures some batches of the first epoch, then those at the expected peak.
    fn measure_training(&mut self, fresh: &mut FreshStudent) -> Result<(), StageError> {
        let question = self.question;
        let settings = question.settings();
        let first = self.sizes.different(&question.graphs.training(0));
        let mut places: Vec<(u64, usize)> = first.into_iter().map(|batch| (0, batch)).collect();
        let most = places.len() + REFINEMENTS;
        let mut next = |samples: &[Sample]| {
            let of_places = places.iter().zip(samples);
            self.measured = of_places.map(|(&(epoch, batch), &sample)| Measured { epoch, batch, sample }).collect();
            if samples.len() == places.len() {
                let found = self.training_peak(&settings)?;
                let place = (found.epoch, found.peak.batch);
                if places.len() == most || places.contains(&place) {
                    return None;
                }
                places.push(place);
            }
            let (epoch, batch) = places[samples.len()];
            question.graphs.training(epoch).into_iter().nth(batch)
        };
        let micro_batch = question.options.micro_batch_graphs;
        fresh.probe(&question, &|_| (1, 0), false).measure_each(micro_batch, &mut next)?;
        Ok(())
    }

    fn measure_validation(&mut self, fresh: &mut FreshStudent) -> Result<(), StageError> {
        let question = self.question;
        let batches = question.graphs.validation();
        let size = |batch: &&Vec<u64>| {
            let shape = self.sizes.shape(batch);
            (shape.nodes + shape.edges) as u64
        };
        if let Some(largest) = batches.iter().max_by_key(size) {
            self.validation = Some(fresh.probe(&question, &|_| (1, 0), true).measure_validation(largest)?);
        }
        Ok(())
    }

    /// The settings of the training.
    pub fn settings(&self) -> Settings {
        self.question.settings()
    }

    /// The expected peak with these settings; `None` if there is no batch.
    pub fn expected(&self, settings: &Settings) -> Option<ExpectedPeak> {
        let both = self.training_peak(settings).into_iter().chain(self.validation_peak(settings));
        both.max_by(|a, b| a.peak.bytes().total_cmp(&b.peak.bytes()))
    }

    fn training_peak(&self, settings: &Settings) -> Option<ExpectedPeak> {
        let costs = Costs::of(&self.measured);
        let peaks = (0..self.epochs).filter_map(|epoch| {
            let batches = self.question.graphs.training(epoch);
            let bytes_of = |(index, batch): (usize, &Vec<u64>)| {
                let measured = self.measured.iter().find(|found| (found.epoch, found.batch) == (epoch, index));
                match measured {
                    Some(measured) => bytes_of_sample(&measured.sample),
                    None => costs.at(self.sizes.shape(batch)),
                }
            };
            let bytes: Vec<BatchBytes> = batches.iter().enumerate().map(bytes_of).collect();
            let peak = forecast::peak(&bytes, &self.pass(settings, epoch, 0))?;
            Some(self.found(peak, epoch, false, &batches))
        });
        peaks.reduce(|best, found| if found.peak.bytes() > best.peak.bytes() { found } else { best })
    }

    /// The peak of the validation after the first epoch: later ones have no visits.
    fn validation_peak(&self, settings: &Settings) -> Option<ExpectedPeak> {
        let sample = self.validation.as_ref()?;
        let batches = self.question.graphs.validation();
        let costs = Costs::proportional(sample);
        let bytes: Vec<BatchBytes> = batches.iter().map(|batch| costs.at(self.sizes.shape(batch))).collect();
        let trained = self.question.graphs.training.len() as u64;
        let pass = Pass { burst: 1, ..self.pass(settings, 0, trained) };
        Some(self.found(forecast::peak(&bytes, &pass)?, 0, true, &batches))
    }

    fn found(&self, peak: Peak, epoch: u64, in_validation: bool, batches: &[Vec<u64>]) -> ExpectedPeak {
        let shape = self.sizes.shape(&batches[peak.batch]);
        ExpectedPeak { peak, always: self.always, epoch, in_validation, shape, epochs: self.epochs }
    }

    /// The circumstances of a training epoch, with targets of so many graphs already cached by the run.
    fn pass(&self, settings: &Settings, epoch: u64, cached: u64) -> Pass {
        let CachedTargets { place, filled, complete } = settings.targets;
        let has_teacher = self.question.teacher.is_some();
        let is_cached = complete || (epoch > 0 && place != CachePlace::Nowhere);
        let graphs = self.question.graphs;
        let all = (graphs.training.len() + graphs.validation.len()) as u64;
        let cache = CacheBlocks {
            record_bytes: self.record_bytes,
            block_bytes: CACHE_BLOCK_BYTES,
            before: if is_cached { all } else { filled + cached },
            most: all,
        };
        // Once all targets are cached, the weights are dropped: they can be read from their file again.
        let always = self.always.sum() - if is_cached { self.always.teacher } else { 0.0 };
        let gate = (place != CachePlace::Nowhere && cached == 0).then_some(GATE);
        let half = self.question.config.distillation.teacher_cache_precision == CachePrecision::F16;
        Pass {
            always,
            waiting: settings.waiting,
            burst: if has_teacher && !is_cached { settings.burst } else { 1 },
            visits: (has_teacher && !is_cached).then_some(Visits {
                copies: if half { 2.0 } else { 1.0 },
                // Of batches that are cached in part, the others go through the teacher.
                selected: if filled > 0 { 1.0 - filled as f64 / all.max(1) as f64 } else { 0.0 },
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
    targets_per_graph: f64,
}

impl Costs {
    /// Fits what was measured.
    fn of(measured: &[Measured]) -> Self {
        let fit = |of: fn(&Sample) -> f64| {
            let samples = measured.iter().map(|measured| (measured.sample.shape, of(&measured.sample)));
            Linear::fit(&samples.collect::<Vec<_>>())
        };
        let per_graph = measured.iter().map(|Measured { sample, .. }| sample.targets / sample.shape.graphs.max(1.0));
        Self {
            data: fit(|sample| sample.data),
            visit: fit(|sample| sample.visit),
            step: fit(work_bytes),
            targets_per_graph: per_graph.fold(0.0, f64::max),
        }
    }

    /// In proportion to nodes and edges of one sample.
    fn proportional(sample: &Sample) -> Self {
        let size = (sample.shape.nodes + sample.shape.edges).max(1.0);
        let of = |bytes: f64| Linear { fixed: 0.0, per_node: bytes / size, per_edge: bytes / size };
        Self {
            data: of(sample.data),
            visit: of(sample.visit),
            step: of(work_bytes(sample)),
            targets_per_graph: sample.targets / sample.shape.graphs.max(1.0),
        }
    }

    fn at(&self, shape: Shape) -> BatchBytes {
        BatchBytes {
            graphs: shape.graphs as u64,
            data: self.data.at(shape),
            targets: self.targets_per_graph * shape.graphs,
            visit: self.visit.at(shape),
            step: self.step.at(shape),
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
        targets: sample.targets,
        visit: sample.visit,
        step: work_bytes(sample),
    }
}
