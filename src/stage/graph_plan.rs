//! `kdgat memory plan` for datasets of many graphs: the memory of a training, from steps on its batches.

use std::path::Path;

use super::epochs::Graphs;
use super::fresh_student::AlwaysBytes;
use super::graph_peak::{
    self, CACHE_BLOCK_BYTES, CachePlace, CachedTargets, ExpectedPeak, Forecaster, Question, Settings, record_bytes,
};
use super::graphs::GraphNetwork;
use super::memory_plan::{assumed_graph_teacher, device_limit};
use super::setup::Data;
use super::sizing::planned_bytes;
use super::training;
use super::{StageError, graph_teacher};
use crate::config::{self, Config, ModelKind};
use crate::distill::RegistryError;
use crate::distill::registry::Registry;
use crate::files;
use crate::graph::Level;
use crate::graph::dataset::GraphSplit;
use crate::memory::budget::{Moment, WorstBatches};
use crate::memory::forecast::Work;
use crate::memory_plan::estimate::weight_bytes;
use crate::memory_plan::graphs::{Expected, GraphPlan, Row};
use crate::nn::{Architecture, GnnConfig};

/// Describes the memory of training on the configured dataset of graphs.
///
/// # Errors
/// Data or a teacher that cannot be read, or no memory for a small batch.
pub fn plan_graphs(config: &Config) -> Result<String, StageError> {
    if config.model.model == ModelKind::Vgae {
        return Err(StageError::Input(
            "kdgat memory plan knows the networks of `kdgat train`: add --preset gin,student or another; `kdgat autoencoder` prints what it \
             measures on a dataset of graphs before its first epoch"
                .into(),
        ));
    }
    let opened = GraphNetwork::open(config)?;
    let GraphNetwork { data, split, foreign, architecture, .. } = &opened;
    if architecture.level == Level::Node {
        return Err(StageError::Input(
            "kdgat memory plan knows targets of graphs, and those of this dataset are of nodes; a training prints what it measures".into(),
        ));
    }
    let on_gpu = data.device.is_cuda();
    let teacher = match foreign {
        Some(_) => None,
        None => planned_teacher(config, data, architecture, split)?,
    };
    let of_teacher = teacher.as_ref().map(|teacher| &teacher.architecture);
    let graphs = opened.graphs()?;
    let target_bytes =
        record_bytes(config, &data.store, of_teacher)? * (graphs.training.len() + graphs.validation.len()) as f64;
    let targets = match of_teacher {
        Some(_) => CachedTargets::planned(config, target_bytes),
        None => CachedTargets::NONE,
    };
    let options = training::fit_options(config, data.device);
    let question = Question {
        config,
        data,
        architecture,
        teacher: of_teacher,
        foreign: foreign.as_ref(),
        graphs: &graphs,
        options: &options,
        targets,
    };
    let mut budget = graph_peak::budget(&question)?;
    if targets.place == CachePlace::Memory && !on_gpu {
        // The cache grows by whole blocks.
        let blocks = (target_bytes / CACHE_BLOCK_BYTES).ceil();
        budget.add("targets yet to be cached", Moment::Always, blocks * CACHE_BLOCK_BYTES);
    }
    let limit = device_limit(config, on_gpu);
    let planned_bytes = planned_bytes(config, data.device, &limit);
    let worst = worst_batches(data, &graphs);
    let wanted = graphs.batch_graphs.min(graphs.training.len()).max(1);
    let fitting = budget.largest_batch(&worst, planned_bytes, wanted);
    let expected = match fitting {
        Some(fitting) if !on_gpu && !config::has_graph_curriculum(config) => expected(question, fitting)?,
        _ => None,
    };
    let plan = GraphPlan {
        what: what(&opened, teacher.as_ref(), &graphs),
        files: files(data, architecture, teacher.as_ref(), (targets.place, target_bytes))?,
        expected,
        budget,
        worst,
        graphs: graphs.training.len(),
        wanted,
        fitting,
        is_fixed: !config.training.optimize_batch_size,
        safety_factor: config.memory.safety_factor,
        planned_bytes,
        limit,
        limit_flag: if on_gpu { "--gpu-memory-limit" } else { "--memory-limit" },
    };
    Ok(plan.describe())
}

/// The worst batches of the training graphs; layers add a self-loop to each node.
fn worst_batches(data: &Data, graphs: &Graphs) -> WorstBatches {
    WorstBatches::new(graphs.training.iter().map(|&graph| {
        let view = data.store.graph(graph);
        (view.num_nodes() as u64, (view.num_edges() + view.num_nodes()) as u64)
    }))
}

/// A teacher to plan with.
struct PlannedTeacher {
    architecture: GnnConfig,
    /// False if it is that of the presets, because none is registered.
    is_registered: bool,
}

/// The teacher that a training would use, or that of the presets if none is registered yet.
fn planned_teacher(
    config: &Config,
    data: &Data,
    student: &GnnConfig,
    split: &GraphSplit,
) -> Result<Option<PlannedTeacher>, StageError> {
    if !config.distillation.use_kd {
        return Ok(None);
    }
    let registry = Registry::new(&config.distillation.teachers_dir);
    if config.distillation.teacher_path.is_none()
        && let Err(RegistryError::NoTeacher { .. }) = registry.find(&data.dataset.name, "graph")
    {
        let architecture = assumed_graph_teacher(student, data.store.features().edge_features() as i64)?;
        return Ok(Some(PlannedTeacher { architecture, is_registered: false }));
    }
    let found = graph_teacher::find_for_graphs(config, data, student, split)?;
    Ok(found.and_then(|found| match found.architecture {
        Architecture::Graph(architecture) => Some(PlannedTeacher { architecture, is_registered: true }),
        _ => None,
    }))
}

/// Lines about model, data and teacher.
fn what(opened: &GraphNetwork, teacher: Option<&PlannedTeacher>, graphs: &Graphs) -> Vec<String> {
    let model = |config: &GnnConfig| {
        format!("{} of {} layers, {} columns each", config.kind.as_str(), config.layers, config.width())
    };
    let store = &opened.data.store;
    let sums = graphs.training.iter().fold([0, 0], |[nodes, edges], &graph| {
        let view = store.graph(graph);
        [nodes + view.num_nodes(), edges + view.num_edges()]
    });
    let [nodes, edges] = sums.map(|sum| sum as f64 / graphs.training.len().max(1) as f64);
    let mut lines = vec![format!(
        "{} on {}: {} training and {} validation graphs of {nodes:.1} nodes and {edges:.1} edges on average",
        model(&opened.architecture),
        opened.data.dataset.name,
        graphs.training.len(),
        graphs.validation.len(),
    )];
    if let Some(PlannedTeacher { architecture, is_registered }) = teacher {
        let origin = if *is_registered { "" } else { " (that of the presets: none is registered for this dataset)" };
        lines.push(format!("teacher: {}{origin}", model(architecture)));
    }
    if let Some(targets) = &opened.foreign {
        lines.push(format!("the teacher's outputs come from {}", targets.path().display()));
    }
    lines
}

/// The expected peak of the run with so many graphs at a time, and of the same run with other settings.
fn expected(question: Question, fitting: usize) -> Result<Option<Expected>, StageError> {
    let (mut graphs, mut options) = (question.graphs.clone(), question.options.clone());
    // As in a training: the batch is smaller, or it goes through the model in parts.
    if question.config.training.optimize_batch_size {
        graphs.batch_graphs = fitting;
    } else if fitting < graphs.batch_graphs.min(graphs.training.len()) {
        options.micro_batch_graphs = Some(fitting);
    }
    let forecaster = Forecaster::measure(Question { graphs: &graphs, options: &options, ..question })?;
    let settings = forecaster.settings();
    let Some(found) = forecaster.expected(&settings) else { return Ok(None) };
    let others = other_settings(&question, &settings).into_iter().filter_map(|(name, settings)| {
        let other = forecaster.expected(&settings)?;
        Some(Row::new(name, other.peak.bytes()))
    });
    Ok(Some(Expected { at: place(&found, options.max_epochs), rows: rows(&found), others: others.collect() }))
}

fn place(found: &ExpectedPeak, max_epochs: u64) -> String {
    let looked_at = match found.epochs < max_epochs {
        true => format!(" (the first {} are looked at)", found.epochs),
        false => String::new(),
    };
    format!(
        "{} on {:.0} graphs, {:.0} nodes and {:.0} edges in epoch {} of {max_epochs}{looked_at}",
        found.work(),
        found.shape.graphs,
        found.shape.nodes,
        found.shape.edges,
        found.epoch + 1
    )
}

/// The components of the peak that are not empty.
fn rows(found: &ExpectedPeak) -> Vec<Row> {
    let AlwaysBytes { weights, gradients, optimizer, .. } = found.always;
    let peak = found.peak;
    let batches = |count: usize| if count == 1 { "batch" } else { "batches" };
    let work = match peak.work {
        Work::Visit => "teacher's activations",
        Work::Step => "activations",
    };
    let rows = [
        Row::new("weights and running statistics", weights),
        Row::new("gradients", gradients),
        Row::new("optimiser states", optimizer),
        // A teacher whose targets are all cached is no longer in memory.
        Row::new("teacher's weights", (peak.always - weights - gradients - optimizer).max(0.0)),
        Row::new("cached targets", peak.cached),
        Row::new("targets", peak.targets),
        Row::new(format!("{} {} in use", peak.announced.0, batches(peak.announced.0)), peak.announced.1),
        Row::new(format!("{} {} in the loader's queue", peak.waiting.0, batches(peak.waiting.0)), peak.waiting.1),
        Row::new(work, peak.activations),
    ];
    rows.into_iter().filter(|row| row.bytes > 0.0).collect()
}

/// Settings that need less memory, by their flags.
fn other_settings(question: &Question, settings: &Settings) -> Vec<(String, Settings)> {
    let mut others = Vec::new();
    if question.teacher.is_some() {
        for burst in [4, 1].into_iter().filter(|&burst| burst < settings.burst) {
            others.push((format!("--teacher-burst {burst}"), Settings { burst, ..*settings }));
        }
        if settings.targets.place == CachePlace::Memory {
            let targets = CachedTargets { place: CachePlace::Disk, ..settings.targets };
            others.push(("--teacher-cache disk".to_owned(), Settings { targets, ..*settings }));
        }
    }
    let workers = training::loader_workers(question.config, false);
    if workers < settings.waiting {
        others.push(("--prefetch-batches 1".to_owned(), Settings { waiting: workers, ..*settings }));
    }
    others
}

/// Files of the training, with their bytes.
fn files(
    data: &Data,
    architecture: &GnnConfig,
    teacher: Option<&PlannedTeacher>,
    (place, target_bytes): (CachePlace, f64),
) -> Result<Vec<Row>, StageError> {
    let (parameters, buffers) = weight_bytes(&Architecture::Graph(architecture.clone()))?;
    let mut files = vec![Row::new("store of the graphs, mapped", folder_bytes(data.store.path())?)];
    if let Some(teacher) = teacher {
        let (weights, statistics) = weight_bytes(&Architecture::Graph(teacher.architecture.clone()))?;
        files.push(Row::new("teacher", weights + statistics));
        let name = match place {
            CachePlace::Disk => "cached targets",
            CachePlace::Memory | CachePlace::Nowhere => "cached targets, with --teacher-cache disk",
        };
        files.push(Row::new(name, target_bytes));
    }
    // The state has the weights and the optimiser's two values for each parameter.
    files.push(Row::new("best model and last state of a run", 4.0 * parameters + 2.0 * buffers));
    Ok(files)
}

/// Bytes of the files in a folder.
fn folder_bytes(folder: &Path) -> Result<f64, StageError> {
    let failed = files::failed("read", folder);
    let mut bytes = 0.0;
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let metadata = entry.metadata().map_err(failed)?;
        bytes += if metadata.is_dir() { folder_bytes(&entry.path())? } else { metadata.len() as f64 };
    }
    Ok(bytes)
}
