//! `kdgat memory plan` for many graphs: the memory of a training, from steps on batches of a dataset or on made ones of given sizes.

use std::path::Path;
use std::sync::Arc;

use tch::Device;

use super::autoencoder::WindowAutoencoder;
use super::cached_targets::{CachePlace, CachedTargets};
use super::classifier::WindowClassifier;
use super::epochs::{Epochs, Graphs};
use super::expected_captures::GraphSizes;
use super::expected_peak::{Forecaster, Settings};
use super::graph_autoencoder::GraphAutoencoder;
use super::graph_batches::counted_by;
use super::graphs::{GraphNetwork, schema};
use super::levers::{Lever, Variant};
use super::measured::{FreshTraining, Measured, Networks, Queues, teacher_model, weight_bytes};
use super::plan_text::{Expected, GraphPlan, Row};
use super::planned_batches::PlannedGraphs;
use super::setup::{self, Data};
use super::sizes::{Counted, Sizes};
use super::sizing::{self, CACHED_TARGETS, limit_flag, planned_bytes};
use super::workload::{TeacherSource, Workload};
use super::{StageError, assumed, resident, training};
use crate::config::{self, AttentionChoice, Config, DataKind, DeviceChoice, ModelKind, Residency, Stage};
use crate::distill::RegistryError;
use crate::files;
use crate::graph::{AssembleOptions, Loader, Shuffle, Store, Task};
use crate::memory;
use crate::memory::budget::{
    LOADER_QUEUE, MemoryBudget, Moment, OPTIMIZER_STATES, RESIDENT_GRAPHS, TEACHER_WEIGHTS, USUAL_SIZES, WorstBatches,
};
use crate::memory::limits::{Limit, gpu_limit, host_limit};
use crate::nn::{Architecture, BatchNeeds, PretrainingConfig};
use crate::torch::{allocator, device};

/// Memory of the CUDA driver and libtorch's kernels, in bytes.
const CUDA_CONTEXT_BYTES: f64 = 450e6;
/// Nodes and edges of the largest measured batch of made graphs: larger batches follow in proportion.
const MEASURED_SIZE: usize = 4096;
/// Most nodes and edges together of a made graph.
const LARGEST_MADE: usize = 1 << 24;
/// Made graphs that can be in a batch.
const MADE_GRAPHS: usize = 256;

/// The size of a dataset that need not exist.
#[derive(Debug, Clone, Copy)]
pub struct PlannedSize {
    pub graphs: usize,
    pub nodes_per_graph: usize,
    pub edges_per_graph: usize,
}

/// Describes the memory that training with this configuration needs, and settings that need less, for the configured dataset or
/// for `size`.
///
/// # Errors
/// Data or a teacher that cannot be read, a model that has no such graphs, or no memory for a small batch.
pub fn plan_memory(config: &Config, size: Option<PlannedSize>) -> Result<String, StageError> {
    let planned = match (size, config.data_kind) {
        (Some(size), _) => Planned::of_size(config, size)?,
        (None, DataKind::OneGraph) => return super::plan_nodes(config, None),
        (None, _) => Planned::of_data(config)?,
    };
    planned.describe()
}

/// A training to plan.
pub(super) struct Planned {
    pub config: Config,
    pub device: Device,
    /// True if the device is a GPU that is not here: steps are measured on the CPU, with the operations of a GPU.
    for_absent_gpu: bool,
    pub networks: Networks,
    source: Source,
    /// The training and validation graphs; of made graphs as many as are measured.
    graphs: Graphs,
    /// Training graphs.
    count: usize,
    sizes: Sizes,
    counted: Counted,
    pub worst: WorstBatches,
    targets: CachedTargets,
    /// Lines about model, data and teacher.
    what: Vec<String>,
    /// True if the batches of all epochs are known.
    knows_batches: bool,
}

/// The graphs of batches.
enum Source {
    Store(Arc<Store>),
    /// Made graphs, with their nodes and edges.
    Made([usize; 2]),
}

/// The data of a workload on a store of graphs, and what the plan says about them.
struct FromData {
    data: Data,
    stage: Stage,
    task: Task,
}

impl Planned {
    /// A training on the configured dataset.
    fn of_data(config: &Config) -> Result<Self, StageError> {
        let is_vgae = config.model.model == ModelKind::Vgae;
        // Data are opened for a device that is here.
        let mut opened = config.clone();
        if matches!(config.training.device, DeviceChoice::Cuda(_)) && setup::device(config.training.device).is_err() {
            opened.training.device = DeviceChoice::Cpu;
        }
        match config.data_kind {
            DataKind::Graphs if is_vgae => {
                let workload = GraphAutoencoder::open(&opened)?;
                let from = FromData { data: workload.data.clone(), stage: Stage::Autoencoder, task: Task::Regression };
                Self::of_workload(config, workload, from)
            }
            DataKind::Windows if is_vgae => {
                let workload = WindowAutoencoder::open(&opened)?;
                let from = FromData { data: workload.data.clone(), stage: Stage::Autoencoder, task: Task::Regression };
                Self::of_workload(config, workload, from)
            }
            DataKind::Windows if config.model.model == ModelKind::Gat => {
                let workload = WindowClassifier::open(&opened, Stage::Classifier)?;
                let from =
                    FromData { data: workload.data.clone(), stage: Stage::Classifier, task: Task::Classification };
                Self::of_workload(config, workload, from)
            }
            DataKind::Windows if config.model.model == ModelKind::Dqn => Err(assumed::no_plan_of_agents()),
            _ => {
                let workload = GraphNetwork::open(&opened)?;
                let task = schema(&workload.data.store)?.task;
                let from = FromData { data: workload.data.clone(), stage: Stage::Train, task };
                Self::of_workload(config, workload, from)
            }
        }
    }

    fn of_workload<'a, W: Workload<'a, Plan = Epochs>>(
        config: &Config,
        mut workload: W,
        FromData { data, stage, task }: FromData,
    ) -> Result<Self, StageError> {
        let (device, student) = (data.device, workload.architecture());
        let mut origin = "";
        let mut networks = Networks { student, teachers: Vec::new(), foreign: None, task };
        match workload.find_teacher() {
            Ok(TeacherSource::None) => {}
            Ok(TeacherSource::Network(found)) => networks.teachers = found.architectures(),
            Ok(TeacherSource::File(targets)) => networks.foreign = Some(targets),
            Err(StageError::Registry(RegistryError::NoTeacher { .. })) => {
                origin = " (that of the presets: none is registered for this dataset)";
                let edge_features = data.store.features().edge_features() as i64;
                networks.teachers = vec![assumed::teacher_of(config, &networks.student, edge_features)?];
            }
            Err(error) => return Err(error),
        }
        let graphs = workload.plan()?.graphs;
        let mut planned = Self::new(config, device, networks, Source::Store(Arc::clone(&data.store)), graphs)?;
        planned.count = planned.graphs.training.len();
        planned.sizes = Sizes::of(&data.store, planned.counted)?;
        planned.worst = planned.sizes.worst(&planned.graphs.training);
        let all = planned.sizes.shape(&planned.graphs.training);
        let views = config::views(config, stage);
        planned.knows_batches = views == 0 && stage != Stage::Classifier && !config::has_graph_curriculum(config);
        planned.set_targets(views, planned.graphs.validation.len(), all.nodes / all.graphs.max(1.0))?;
        let per_graph = |amount: f64| amount / all.graphs.max(1.0);
        planned.what.push(format!(
            "{} on {}: {} training and {} validation graphs of {:.1} nodes and {:.1} {} on average",
            described(&planned.networks.student),
            data.dataset.name,
            planned.count,
            planned.graphs.validation.len(),
            per_graph(all.nodes),
            per_graph(all.edges - if planned.counted == Counted::Edges { all.nodes } else { 0.0 }),
            planned.counted.name(),
        ));
        for teacher in &planned.networks.teachers {
            planned.what.push(format!("teacher: {}{origin}", described(teacher)));
        }
        if let Some(targets) = &planned.networks.foreign {
            planned.what.push(format!("the teacher's outputs come from {}", targets.path().display()));
        }
        planned.say_where_measured();
        Ok(planned)
    }

    /// A training on graphs of these sizes, which are made where steps are measured.
    pub fn of_size(config: &Config, size: PlannedSize) -> Result<Self, StageError> {
        let PlannedSize { graphs: count, nodes_per_graph: nodes, edges_per_graph: edges } = size;
        setup::use_threads(config.training.threads);
        let device = match (setup::device(config.training.device), config.training.device) {
            // A GPU that is not here.
            (Err(_), DeviceChoice::Cuda(_)) => Device::Cpu,
            (device, _) => device?,
        };
        let stage = match config.model.model {
            ModelKind::Vgae => Stage::Autoencoder,
            ModelKind::Gat => Stage::Classifier,
            _ => Stage::Train,
        };
        let student = assumed::network(config)?;
        let is_regression = matches!(&student, Architecture::Graph(config) if !config.target_scales.is_empty());
        let task = if is_regression { Task::Regression } else { Task::Classification };
        let networks = Networks { student, teachers: assumed::teachers(config)?, foreign: None, task };
        let wanted = training::batch_graphs(config, count).min(count).max(1);
        let of_graph = nodes.saturating_add(edges).max(1);
        if of_graph > LARGEST_MADE {
            return Err(StageError::Input(format!(
                "--nodes {nodes} --edges {edges}: expected graphs of at most {LARGEST_MADE} nodes and edges together; for one large graph add --columns"
            )));
        }
        let fewest = (LARGEST_MADE / of_graph).min(4);
        let measured = (MEASURED_SIZE / of_graph).clamp(fewest, MADE_GRAPHS).min(wanted);
        let graphs = Graphs {
            training: (0..measured as u64).collect(),
            validation: Vec::new(),
            batch_graphs: wanted,
            budget: None,
            packed: false,
            seed: config.training.seed,
            shuffle: Shuffle::FULL,
        };
        let mut planned = Self::new(config, device, networks, Source::Made([nodes, edges]), graphs)?;
        planned.count = count;
        // All made graphs have the same number of paths.
        planned.counted = if planned.counted == Counted::Paths { Counted::Edges } else { planned.counted };
        planned.sizes = Sizes::Alike([nodes as u64, edges as u64 + planned.loops(nodes)]);
        let (nodes, edges) = (nodes as f64, (edges as u64 + planned.loops(nodes)) as f64);
        planned.worst = WorstBatches::uniform(nodes, edges, count);
        planned.set_targets(config::views(config, stage), 0, nodes)?;
        planned.what.push(format!(
            "{} on {count} made graphs of {nodes:.0} nodes and {} {}",
            described(&planned.networks.student),
            size.edges_per_graph,
            planned.counted.name()
        ));
        for teacher in &planned.networks.teachers {
            planned.what.push(format!("teacher: {}", described(teacher)));
        }
        planned.say_where_measured();
        Ok(planned)
    }

    /// Self-loops of a graph, which layers add where edges are counted.
    fn loops(&self, nodes: usize) -> u64 {
        if self.counted == Counted::Edges { nodes as u64 } else { 0 }
    }

    fn new(
        config: &Config,
        device: Device,
        networks: Networks,
        source: Source,
        graphs: Graphs,
    ) -> Result<Self, StageError> {
        let asks_for_gpu =
            matches!(config.training.device, DeviceChoice::Cuda(_)) || config.memory.gpu_memory_limit.is_some();
        let for_absent_gpu = asks_for_gpu && !device.is_cuda();
        let mut config = config.clone();
        if for_absent_gpu {
            config.model.attention = AttentionChoice::Composed;
        }
        // The limit is one to plan for, and does not stop the measurement.
        allocator::set_limit(Some(host_limit(None).bytes));
        let counted = counted_by(&config, networks.teachers.iter().chain([&networks.student]), device.is_cuda());
        Ok(Self {
            config,
            device,
            for_absent_gpu,
            networks,
            source,
            graphs,
            count: 0,
            sizes: Sizes::Alike([0, 0]),
            counted,
            worst: WorstBatches::uniform(0.0, 0.0, 0),
            targets: CachedTargets::NONE,
            what: Vec::new(),
            knows_batches: false,
        })
    }

    fn say_where_measured(&mut self) {
        if self.for_absent_gpu {
            self.what.push(
                "measured on the CPU with the operations of a GPU, because that GPU is not here; its own kernels differ by some percent".into(),
            );
        }
    }

    /// Plans the place of the targets of training graphs, in each of their views, and of validation graphs.
    fn set_targets(&mut self, views: u64, validation: usize, mean_nodes: f64) -> Result<(), StageError> {
        if self.networks.teachers.is_empty() {
            return Ok(());
        }
        let model = teacher_model(&self.config, &self.networks.teachers)?;
        let graphs = (self.count as u64).saturating_mul(views.max(1)).saturating_add(validation as u64);
        self.targets = CachedTargets::planned(&self.config, &*model, graphs, mean_nodes)?;
        Ok(())
    }

    pub fn is_on_gpu(&self) -> bool {
        self.device.is_cuda() || self.for_absent_gpu
    }

    /// True if targets will be cached in memory.
    pub fn caches_in_memory(&self) -> bool {
        !self.is_on_gpu() && self.targets.memory_bytes() > 0.0
    }

    /// Batches in memory at a time.
    pub fn queues(&self, config: &Config) -> Queues {
        let burst = if self.networks.teachers.is_empty() { 1 } else { config.distillation.teacher_burst };
        sizing::queues(config, burst, &self.graphs, [self.count, self.graphs.validation.len()], self.is_on_gpu())
    }

    fn loaders(&self, config: &Config) -> [Loader; 2] {
        match &self.source {
            Source::Store(store) => training::loaders(config, store, self.batch_options(config, store), self.device),
            Source::Made([nodes, edges]) => {
                let student = self.networks.student.clone();
                let made = Arc::new(PlannedGraphs { nodes: *nodes, edges: *edges, student, needs: self.needs() });
                let loader = Loader::over(made, 1, 1);
                [loader.clone(), loader]
            }
        }
    }

    /// Adds the graphs and targets that the training will keep on a GPU.
    fn add_resident_graphs(&self, budget: &mut MemoryBudget, config: &Config) -> Result<(), StageError> {
        let Source::Store(store) = &self.source else { return Ok(()) };
        if !config.memory.graphs_on_device || !self.is_on_gpu() {
            return Ok(());
        }
        if self.targets.place != CachePlace::Nowhere {
            budget.add(CACHED_TARGETS, Moment::Always, self.targets.bytes());
        }
        let [options, _] = self.batch_options(config, store);
        let all = [&self.graphs.training[..], &self.graphs.validation].concat();
        // Of a card that is not here and has no limit, nothing is known.
        let limit = Some(self.limit().bytes).filter(|&bytes| bytes > 0).map_or(f64::INFINITY, |bytes| bytes as f64);
        if let Ok(bytes) = resident::room(store, &all, &options, config.memory.safety_factor * limit)? {
            budget.add(RESIDENT_GRAPHS, Moment::Always, bytes);
        }
        Ok(())
    }

    fn batch_options(&self, config: &Config, store: &Store) -> [AssembleOptions; 2] {
        training::batch_options(config, store, &Arc::new(store.vocabulary().clone()), self.needs(), 0)
    }

    /// Parts of a batch that the networks read.
    fn needs(&self) -> BatchNeeds {
        BatchNeeds::of_all(self.networks.teachers.iter().chain([&self.networks.student]).map(Architecture::needs))
    }

    /// Measures the budget of a variant of the training.
    pub fn budget(&self, variant: &Variant) -> Result<MemoryBudget, StageError> {
        let (config, networks) = variant.of(&self.config, &self.networks);
        let FreshTraining { mut student, mut trainable } = FreshTraining::new(&config, self.device, &networks)?;
        student.set_checkpointing(variant.recomputes);
        let options = training::fit_options(&config, self.device);
        let [training, validation] = self.loaders(&config);
        let queues = self.queues(&config);
        let loaders = [&training, &validation];
        let mut measured = Measured::of(&mut *student, &mut trainable, loaders, &self.sizes, &options);
        let mut budget = measured.budget(&self.graphs.training, self.graphs.batch_graphs, None, queues)?;
        if self.for_absent_gpu {
            as_on_gpu(&mut budget, &config);
        }
        self.add_resident_graphs(&mut budget, &config)?;
        // By default steps are not captured where that would make batches smaller.
        if self.is_on_gpu() && config.training.cuda_graphs == Some(true) {
            budget.record_steps(queues.burst, USUAL_SIZES);
        }
        if self.caches_in_memory() {
            budget.add(CACHED_TARGETS, Moment::Always, self.targets.memory_bytes());
        }
        Ok(budget)
    }

    /// The memory limit of the training device.
    fn limit(&self) -> Limit {
        let memory = &self.config.memory;
        if !self.is_on_gpu() {
            return host_limit(memory.memory_limit.map(|size| size.0));
        }
        let gpu = match self.device {
            Device::Cpu => Device::Cuda(0),
            device => device,
        };
        let free = device::device_memory(gpu).ok().map(|memory| memory.free_bytes);
        gpu_limit(memory.gpu_memory_limit.map(|size| size.0), free)
    }

    fn describe(self) -> Result<String, StageError> {
        let (config, limit) = (&self.config, self.limit());
        let planned_bytes = match self.for_absent_gpu {
            true => config.memory.safety_factor * limit.bytes as f64,
            false => planned_bytes(config, self.device, &limit),
        };
        let wanted = self.graphs.batch_graphs.min(self.count).max(1);
        let can_recompute = self.networks.student.can_checkpoint();
        let recomputing = can_recompute.then(|| self.budget(&Variant::RECOMPUTING)).transpose()?;
        let mut budget = self.budget(&Variant::default())?;
        let mut fitting = budget.largest_batch(&self.worst, planned_bytes, wanted);
        let at = Row::new(format!("batches of {wanted} graphs"), budget.peak_bytes(self.worst.shape(wanted)));
        let levers = Lever::all(&self, &budget, recomputing.as_ref(), wanted)?;
        let mut recomputes = false;
        let is_short = config.memory.gradient_checkpointing && fitting.is_none_or(|graphs| graphs < wanted);
        if let Some(recomputing) = recomputing.filter(|_| is_short) {
            // As in a training: activations are recomputed if that allows more graphs.
            let graphs = recomputing.largest_batch(&self.worst, planned_bytes, wanted);
            if graphs > fitting {
                (budget, fitting, recomputes) = (recomputing, graphs, true);
            }
        }
        // What keeps graphs on a GPU is not planned here batch by batch.
        let is_known =
            self.knows_batches && !self.for_absent_gpu && !(self.is_on_gpu() && config.memory.graphs_on_device);
        let expected = match fitting.filter(|_| is_known) {
            Some(fitting) => {
                let captures = config.training.cuda_graphs == Some(true)
                    || (!recomputes && self.captures_fit(&budget, planned_bytes, wanted));
                self.expected(fitting, recomputes, captures)?
            }
            None => None,
        };
        let limit_flag = limit_flag(self.is_on_gpu());
        let plan = GraphPlan {
            files: self.files()?,
            disk_cache: (self.targets.place == CachePlace::Memory).then(|| self.targets.bytes()),
            what: self.what,
            expected,
            budget,
            worst: self.worst,
            graphs: self.count,
            wanted,
            fitting,
            recomputes,
            is_fixed: !config.training.optimize_batch_size,
            safety_factor: config.memory.safety_factor,
            planned_bytes,
            limit_flag,
            limit,
            at,
            levers,
        };
        Ok(plan.describe())
    }

    /// True if captured steps would not make batches smaller, of which a training counts the sizes.
    fn captures_fit(&self, budget: &MemoryBudget, planned_bytes: f64, wanted: usize) -> bool {
        let mut with_captures = budget.clone();
        with_captures.record_steps(self.queues(&self.config).burst, USUAL_SIZES);
        with_captures.largest_batch(&self.worst, planned_bytes, wanted) == Some(wanted)
    }

    /// The expected peak of the run with so many graphs at a time; `captures`: its steps are captured if they can be.
    fn expected(&self, fitting: usize, recomputes: bool, captures: bool) -> Result<Option<Expected>, StageError> {
        let (config, mut graphs) = (&self.config, self.graphs.clone());
        let mut options = training::fit_options(config, self.device);
        // As in a training: the batch is smaller, or it goes through the model in parts.
        if config.training.optimize_batch_size {
            graphs.batch_graphs = fitting;
        } else if fitting < graphs.batch_graphs.min(graphs.training.len()) {
            options.micro_batch_graphs = Some(fitting);
        }
        let FreshTraining { mut student, mut trainable } = FreshTraining::new(config, self.device, &self.networks)?;
        student.set_checkpointing(recomputes);
        let captures = captures
            && training::captures_steps(config, self.device.is_cuda())
            && student.capture_obstacle().is_none()
            && options.micro_batch_graphs.is_none();
        let graph_sizes = match &self.source {
            Source::Store(store) if captures => Some(GraphSizes::of(store, &graphs)?),
            Source::Store(_) | Source::Made(_) => None,
        };
        let [training, validation] = self.loaders(config);
        let measured = Measured::of(&mut *student, &mut trainable, [&training, &validation], &self.sizes, &options);
        let settings = Settings::of(config, &measured, self.targets, 1);
        let found = match Forecaster::measure(config, measured, &graphs, settings, graph_sizes.as_ref()) {
            // Captures may need more memory than there is; a training says so and goes on.
            Err(error) if captures && memory::is_out_of_memory(&error) => {
                tracing::warn!("the peak cannot be predicted: {error}");
                None
            }
            outcome => outcome?.expected(),
        };
        Ok(found.map(|found| Expected::of(&found, options.max_epochs, self.counted.name())))
    }

    /// Files of the training, with their bytes.
    fn files(&self) -> Result<Vec<Row>, StageError> {
        let mut files = Vec::new();
        if let Source::Store(store) = &self.source {
            files.push(Row::new("store of the graphs, mapped", folder_bytes(store.path())?));
        }
        let mut of_teachers = 0.0;
        for teacher in &self.networks.teachers {
            of_teachers += weight_bytes(teacher)?;
        }
        if of_teachers > 0.0 {
            files.push(Row::new("teacher", of_teachers));
            if self.targets.place == CachePlace::Disk {
                files.push(Row::new("cached targets", self.targets.bytes()));
            }
        }
        // The state has the weights and the optimiser's values for each parameter: two, and an average.
        let values = if self.config.training.ema_decay > 0.0 { 5.0 } else { 4.0 };
        files.push(Row::new("best model and last state of a run", values * weight_bytes(&self.networks.student)?));
        Ok(files)
    }
}

/// Turns a budget that was measured on the CPU into one of a GPU.
fn as_on_gpu(budget: &mut MemoryBudget, config: &Config) {
    let resident = config.distillation.residency() == Residency::Resident;
    budget.components.retain(|component| match component.name {
        // Batches wait in host memory, and so do weights between visits.
        LOADER_QUEUE => false,
        TEACHER_WEIGHTS => resident,
        OPTIMIZER_STATES => !config.memory.offload_optimizer,
        _ => true,
    });
    budget.add("CUDA context", Moment::Always, CUDA_CONTEXT_BYTES);
}

/// A network in a few words.
pub(super) fn described(architecture: &Architecture) -> String {
    let layers = |kind: &str, layers: i64, columns: i64| format!("{kind} of {layers} layers, {columns} columns each");
    match architecture {
        Architecture::Vgae(config) => {
            let widths: Vec<String> = config.hidden.iter().map(i64::to_string).collect();
            format!("vgae of {} columns, {} in the latent", widths.join(", "), config.latent)
        }
        Architecture::Gat(config) => layers("gat", config.layers, config.hidden * config.heads),
        Architecture::Graph(config) | Architecture::Pretraining(PretrainingConfig { network: config, .. }) => {
            layers(config.kind.as_str(), config.layers, config.width())
        }
        Architecture::Nodes(config) => layers(config.kind.as_str(), config.layers, config.width()),
        Architecture::GraphVgae(config) => {
            let encoder = &config.encoder;
            format!("vgae with an encoder {}", layers(encoder.kind.as_str(), encoder.layers, encoder.width()))
        }
    }
}

/// Bytes of the files in a folder.
fn folder_bytes(folder: &Path) -> Result<f64, StageError> {
    let failed = files::failed("read", folder);
    let mut bytes = 0.0;
    for entry in std::fs::read_dir(folder).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        let metadata = entry.metadata().map_err(&failed)?;
        bytes += if metadata.is_dir() { folder_bytes(&entry.path())? } else { metadata.len() as f64 };
    }
    Ok(bytes)
}
