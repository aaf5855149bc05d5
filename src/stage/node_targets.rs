//! Targets of a teacher for the nodes that a student learns from, computed before its training into the cache on disk.
//!
//! With `teacher_fanouts`, the teacher reads sampled neighbours of these nodes alone, the same ones in every run; otherwise all neighbours,
//! layer by layer for all nodes. Sampled targets are computed in blocks of nodes that depend neither on the part, nor on the batch size, nor
//! on what is cached, so that the parts together have the bytes of one computation.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tch::{Device, Tensor};

use super::cache_settings::cache_options;
use super::node_data::{self, NodeData};
use super::node_features::{self, SampledBatches};
use super::node_plan::Seeds;
use super::node_teacher::{self, activation_place};
use super::nodes::node_gnn_config;
use super::sizing::planned_bytes;
use super::target_files::{TargetFiles, of_cache};
use super::teacher::FoundTeacher;
use super::teacher_cache::{Cached, Progress, refuse_full_disk};
use super::{StageError, training};
use crate::config::{Config, TeacherCache};
use crate::distill::cache::{CacheKey, RecordLayout, TargetCache, check_repetition};
use crate::distill::frozen::{NodeTeacher, targets_of_all_nodes};
use crate::distill::{CacheOptions, TargetLayout, TargetName, Targets, TeacherError};
use crate::graph::{Loader, Share};
use crate::interrupt;
use crate::memory::limits::host_limit;
use crate::memory::{Meter, retry_on_oom};
use crate::nn::layers::Mode;
use crate::nn::{DatasetIdentity, GivenTensors, NodeGnn, NodeGnnConfig, Scope};
use crate::nodes::{BatchOptions, Fanout, NodeBatches, NodeGraph, NodeSplit, Reach};

/// Nodes that go through the teacher together.
const BLOCK_NODES: usize = 512;
/// Sampled neighbours are the same for students with other seeds, which share the cache.
const SAMPLING_SEED: u64 = 0;

/// A teacher and the nodes that its targets are wanted for.
pub struct NodeTargets {
    config: Config,
    device: Device,
    source: PathBuf,
    found: FoundTeacher,
    /// All teachers; sampled targets are those of the first one.
    teachers: Vec<NodeTeacher>,
    /// Architecture of the first teacher.
    architecture: NodeGnnConfig,
    /// Graph that the first teacher reads, with its positions.
    graph: Arc<NodeGraph>,
    fanouts: Option<Vec<Fanout>>,
    files: TargetFiles,
}

/// Opens the configured graph and its teacher for `kdgat teachers cache`.
///
/// # Errors
/// There is no teacher for this graph.
pub fn node_targets(config: &Config) -> Result<NodeTargets, StageError> {
    let data = node_data::open(config)?;
    let split = NodeSplit::of(&data.graph, &node_data::split_options(config, &data.graph))?;
    let visible = node_data::visible_part(&data.graph, &split)?;
    let student = node_gnn_config(config, &data.graph)?;
    let found = node_teacher::find_for_nodes(config, &data, &student, &split)?;
    let Some(found) = found else { return Err(StageError::Input("no teacher is configured".into())) };
    let seeds = Seeds::of(config, &split, visible.num_nodes(), true);
    NodeTargets::new(config, &data, &visible, found, seeds.with_validation(&split))
}

impl NodeTargets {
    /// The targets of `found` for some nodes of the `visible` part of a graph.
    ///
    /// # Errors
    /// Another number of fan-outs than the teacher has layers that read neighbours, or a cache that is not on disk.
    pub fn new(
        config: &Config,
        data: &NodeData,
        visible: &Arc<NodeGraph>,
        found: FoundTeacher,
        nodes: Vec<u64>,
    ) -> Result<Self, StageError> {
        let teachers = found.node_teachers(visible)?;
        // `node_teachers` has at least one.
        let NodeTeacher { config: architecture, graph } = teachers[0].clone();
        let fanouts = fanouts(config, &architecture)?;
        if matches!(config.distillation.cache(), TeacherCache::Off | TeacherCache::Ram) {
            let text = "--teacher-fanouts computes targets once into a cache on disk; use --teacher-cache disk or auto";
            return Err(StageError::Input(text.to_owned()));
        }
        let dataset = DatasetIdentity { name: graph.name.clone(), digest: graph.digest.clone() };
        let options = cache_options(config, &found, &dataset);
        let shape = node_teacher::node_shape(&graph, Some(nodes));
        let targets = TargetLayout::classifier(architecture.outputs as usize);
        let CacheOptions { precision, architecture: text, features, .. } = &options;
        let key = CacheKey::new(found.weights.digest(), text, features, &targets, *precision, &shape);
        let layout = RecordLayout::new(targets, *precision, &shape.node_counts);
        // Ascending.
        let nodes = shape.used.unwrap_or_default();
        let blocks = nodes.chunks(BLOCK_NODES).map(<[u64]>::len).collect::<Vec<_>>();
        let path = options.path.unwrap_or_default();
        let files = TargetFiles::new(path, (key, layout), nodes, blocks.into_iter());
        Ok(Self {
            config: config.clone(),
            device: data.device,
            source: data.source.clone(),
            found,
            architecture,
            graph,
            teachers,
            fanouts,
            files,
        })
    }

    /// The teacher, for the training.
    pub fn into_found(self) -> FoundTeacher {
        self.found
    }

    /// The files of the targets.
    pub(super) fn files(&self) -> &TargetFiles {
        &self.files
    }

    /// Computes the targets of a part, or of all nodes, that are not in its file. A signal stops it.
    ///
    /// # Errors
    /// A part of targets that are not sampled, a full disk, or a teacher that fails.
    pub fn fill(&self, share: Option<Share>) -> Result<Cached, StageError> {
        let start = Instant::now();
        if share.is_some() && self.fanouts.is_none() {
            let text = "exact targets are computed layer by layer for all nodes at once; give --teacher-fanouts to compute them in parts";
            return Err(StageError::Input(text.to_owned()));
        }
        let (path, nodes) = (self.files.path(share), self.files.records(share));
        self.announce(share)?;
        let mut cache = self.files.open(share)?;
        let mut missing = Vec::new();
        for block in nodes.chunks(BLOCK_NODES) {
            // Also finds damaged records.
            let lookup =
                retry_on_oom(Meter::new(Device::Cpu), || Ok::<_, StageError>(cache.lookup(block).map_err(of_cache)?));
            if !lookup?.1.is_empty() {
                missing.push(block.to_vec());
            }
        }
        let wanted = missing.iter().map(Vec::len).sum::<usize>() as u64;
        let computed = if missing.is_empty() { 0 } else { self.compute(missing, &mut cache)? };
        let (summary, interrupted) = (cache.summary(), computed < wanted && cache.is_writable());
        if !interrupted && !cache.is_complete() {
            return Err(refuse_full_disk(&path, summary.filled_graphs, summary.used_graphs));
        }
        cache.sync();
        Ok(Cached::of(path, &summary, (computed, interrupted), start))
    }

    /// Prints the size and place of the targets of a part, or of all, before anything is written.
    pub(super) fn announce(&self, share: Option<Share>) -> Result<(), StageError> {
        let from = match &self.config.nodes.teacher_fanouts {
            Some(fanouts) => format!(", from {} sampled neighbours", joined(fanouts)),
            None => ", from all neighbours".to_owned(),
        };
        let advice = match self.config.nodes.kd_nodes_per_label {
            Some(_) => "free some space",
            None => "learn from fewer nodes with --kd-nodes-per-label",
        };
        let of = format!("{} nodes", self.files.records(share).len());
        self.files.announce(share, &self.found, [&of, &from, advice])
    }

    /// Computes blocks of nodes until a signal stops it. Returns the number of nodes.
    fn compute(&self, blocks: Vec<Vec<u64>>, cache: &mut TargetCache) -> Result<u64, StageError> {
        let mut progress = Progress::new(blocks.iter().map(Vec::len).sum::<usize>() as u64, "nodes");
        let outcome = tch::no_grad(|| match &self.fanouts {
            Some(fanouts) => self.compute_sampled(fanouts, blocks, cache, &mut progress),
            None => self.compute_exact(blocks, cache, &mut progress),
        });
        progress.finish();
        outcome?;
        Ok(progress.done())
    }

    fn compute_sampled(
        &self,
        fanouts: &[Fanout],
        blocks: Vec<Vec<u64>>,
        cache: &mut TargetCache,
        progress: &mut Progress,
    ) -> Result<(), StageError> {
        let (config, path) = (&self.config, &self.source);
        let reach = Reach::Sampled(fanouts.to_vec());
        let degrees = self.architecture.needs_source_degrees();
        let options = BatchOptions { reach, seed: SAMPLING_SEED, degrees };
        let labels = Arc::new(vec![0; self.graph.num_nodes()]);
        let free = planned_bytes(config, Device::Cpu, &host_limit(config.memory.memory_limit.map(|size| size.0)));
        let sampled =
            SampledBatches { seeds: self.files.records(None), validation: &[], batch_nodes: BLOCK_NODES, fanouts };
        let chosen = node_features::choose(config, &self.graph, free, Some(sampled))?;
        chosen.notes.iter().for_each(|note| eprintln!("{note}"));
        node_features::prepare_sampling(&self.graph, free)?;
        let batches = NodeBatches::new(Arc::clone(&self.graph), labels, options, path)?;
        let batches = batches.with_fixed_samples().reading(Arc::clone(&chosen.rows));
        let (mut given, kernel) = (self.weights()?, training::attention_kernel(config));
        let model = NodeGnn::new(Scope::root(&mut given), &self.architecture, kernel)?;
        let (workers, prefetch) = (training::loader_workers(config, false), config.training.prefetch_batches);
        let mut checked = false;
        for batch in Loader::over(Arc::new(batches), workers, prefetch).epoch(blocks, 0) {
            if interrupt::requested() || !cache.is_writable() {
                break;
            }
            let batch = batch?;
            let meter = Meter::new(self.device);
            let batch = retry_on_oom(meter, || Ok::<_, StageError>(batch.to_device(self.device)?))?;
            let forward = || Ok::<_, StageError>(logits(model.forward(&batch, Mode::Evaluation)?));
            let targets = retry_on_oom(meter, forward)?;
            if !std::mem::replace(&mut checked, true) {
                let again = retry_on_oom(meter, forward)?;
                check_repetition(&targets, &targets, &again)
                    .map_err(TeacherError::from)?
                    .map_err(TeacherError::from)?;
            }
            retry_on_oom(meter, || Ok::<_, StageError>(cache.insert(&batch.graph_index, &targets).map_err(of_cache)?))?;
            progress.add(batch.graph_index.len() as u64);
        }
        node_features::summary(&chosen.rows).iter().for_each(|line| eprintln!("{line}"));
        Ok(())
    }

    fn compute_exact(
        &self,
        blocks: Vec<Vec<u64>>,
        cache: &mut TargetCache,
        progress: &mut Progress,
    ) -> Result<(), StageError> {
        let place = activation_place(&self.config, &self.config.distillation.teacher_cache_dir)?;
        let (mut given, kernel) = (self.weights()?, training::attention_kernel(&self.config));
        let rows = targets_of_all_nodes(&self.teachers, &self.found.changes, &mut given, kernel, self.device, &place)
            .map_err(TeacherError::from)?;
        for block in blocks {
            if interrupt::requested() || !cache.is_writable() {
                break;
            }
            let nodes: Vec<u32> = block.iter().map(|&node| node as u32).collect();
            let targets = retry_on_oom(Meter::new(Device::Cpu), || Ok::<_, StageError>(logits(rows.gather(&nodes)?)))?;
            cache.insert(&block, &targets).map_err(of_cache)?;
            progress.add(block.len() as u64);
        }
        Ok(())
    }

    /// The teacher's tensors on the device.
    fn weights(&self) -> Result<GivenTensors, StageError> {
        retry_on_oom(Meter::new(self.device), || {
            let on_device = |(name, tensor): (&str, &Tensor)| Ok((name.to_owned(), tensor.f_to_device(self.device)?));
            let tensors = self.found.weights.iter().map(on_device).collect::<Result<Vec<_>, StageError>>()?;
            Ok(GivenTensors::new(tensors))
        })
    }
}

/// The teacher's fan-outs, one for each of its layers that read neighbours.
fn fanouts(config: &Config, architecture: &NodeGnnConfig) -> Result<Option<Vec<Fanout>>, StageError> {
    let Some(fanouts) = &config.nodes.teacher_fanouts else { return Ok(None) };
    let layers = architecture.message_layers() as usize;
    if fanouts.len() != layers {
        return Err(StageError::Input(format!(
            "--teacher-fanouts has {} numbers, but the teacher has {layers} layers that read neighbours; give one for each",
            fanouts.len()
        )));
    }
    Ok(Some(fanouts.iter().map(|&count| Fanout::AtMost(u32::try_from(count).unwrap_or(u32::MAX))).collect()))
}

/// Numbers with commas.
pub(super) fn joined(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

fn logits(rows: Tensor) -> Targets {
    Targets { tensors: vec![(TargetName::Logits, rows)] }
}
