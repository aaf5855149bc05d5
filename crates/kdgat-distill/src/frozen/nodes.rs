//! Exact inference over all nodes of one large graph, one layer at a time in blocks of nodes, and networks for nodes as teachers.
//!
//! Each layer of each node is computed once, from all its neighbours: no sampling, and memory for one block besides the activations of two
//! layers, which lie in a temporary file where they do not fit.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use kdgat_graph::{Adjacency, Batch, NodeFeatures};
use kdgat_nn::attention::Backend;
use kdgat_nn::blocks::names_of;
use kdgat_nn::layers::Mode;
use kdgat_nn::node_layer::{LayerEdges, LayerInput, NodeLayer};
use kdgat_nn::parameters::{Init, Role, TensorSource};
use kdgat_nn::{NodeGnnConfig, Scope};
use kdgat_nodes::gather::{degrees_of, features_of};
use kdgat_nodes::{ActivationRows, Activations, ExactBlocks, NodeGraph};
use parking_lot::Mutex;
use tch::{Device, Kind, Tensor};

use super::node_targets::{TargetChanges, expect_room, targets_of};
use super::{Views, tensor_prefix};
use crate::model::{FrozenModel, LayerSpec, LayerState, ModelError, WeightViews};
use crate::targets::TargetLayout;

/// Usual number of nodes and edges of a block.
const BLOCK_SIZE: usize = 1 << 17;

/// The place of the activations of all nodes.
#[derive(Debug, Clone)]
pub struct ActivationPlace {
    /// Activations of a layer that need more bytes lie in a file.
    pub memory_bytes: u64,
    /// Folder of these files, which have no name and vanish with the program.
    pub folder: PathBuf,
}

/// Inference over all nodes, as far as it has come.
#[derive(Debug)]
struct Inference {
    graph: Arc<NodeGraph>,
    config: NodeGnnConfig,
    kernel: Backend,
    place: ActivationPlace,
    /// Nodes and edges of a block.
    block_size: usize,
    /// Number of the layers that are done.
    done: i64,
    /// `[num_nodes, columns]`: output of the last layer that is done; `None` before the first.
    rows: Option<ActivationRows>,
    /// APPNP: output of the perceptron.
    initial: Option<ActivationRows>,
}

impl Inference {
    fn new(graph: Arc<NodeGraph>, config: NodeGnnConfig, kernel: Backend, place: ActivationPlace) -> Self {
        Self { graph, config, kernel, place, block_size: BLOCK_SIZE, done: 0, rows: None, initial: None }
    }

    /// Computes all layers, and returns the outputs.
    fn finish(mut self, source: &mut dyn TensorSource, device: Device) -> Result<ActivationRows, ModelError> {
        while self.done < self.config.num_layers() {
            tch::no_grad(|| self.advance(source, device))?;
        }
        self.rows.ok_or_else(|| ModelError::Other("a network without layers".into()))
    }

    /// Computes the next layer for all nodes, on `device`.
    fn advance(&mut self, source: &mut dyn TensorSource, device: Device) -> Result<(), ModelError> {
        let index = self.done;
        let layer = NodeLayer::new(&mut Scope::root(source), &self.config, index)?;
        let columns = self.config.output_columns(index) as usize;
        let ActivationPlace { memory_bytes, folder } = &self.place;
        let mut output = Activations::new(self.graph.num_nodes(), columns, *memory_bytes, folder).map_err(of_nodes)?;
        if self.config.edges_of_layer(index).is_some() {
            for block in ExactBlocks::new(&self.graph, self.block_size) {
                let block = block.map_err(of_nodes)?;
                let edges = block.adjacency.to_device(device)?;
                let rows = self.block(&layer, &block.sources, Some(&edges), block.targets.clone(), device)?;
                output.write(block.targets.start as usize, &rows).map_err(of_nodes)?;
            }
        } else {
            let nodes = self.graph.num_nodes() as u32;
            for start in (0..nodes).step_by(self.block_size) {
                let targets = start..nodes.min(start + self.block_size as u32);
                let sources: Vec<u32> = targets.clone().collect();
                let rows = self.block(&layer, &sources, None, targets, device)?;
                output.write(start as usize, &rows).map_err(of_nodes)?;
            }
        }
        let before = self.rows.replace(output.finish().map_err(of_nodes)?);
        if index == self.config.layers {
            // The first step of propagation has read the perceptron's output, and all further ones return to it.
            self.initial = before;
        }
        self.done += 1;
        Ok(())
    }

    /// The layer's output for the targets of a block.
    fn block(
        &self,
        layer: &NodeLayer,
        sources: &[u32],
        adjacency: Option<&Adjacency>,
        targets: Range<u32>,
        device: Device,
    ) -> Result<Tensor, ModelError> {
        let degrees = match adjacency {
            Some(_) if self.config.needs_source_degrees() => {
                Some(degrees_of(&self.graph, sources)?.f_to_device(device)?)
            }
            _ => None,
        };
        let edges = adjacency.map(|adjacency| LayerEdges { adjacency, source_degrees: degrees.as_ref(), own: None });
        let apply = |input| layer.forward(input, edges, &self.config, self.kernel, Mode::Evaluation);
        let Some(rows) = &self.rows else {
            let features = on_device(features_of(&self.graph.features, sources)?, device)?;
            return Ok(apply(LayerInput::Features(&features))?);
        };
        let input = rows.gather(sources)?.f_to_device(device)?;
        if self.done < self.config.layers {
            return Ok(apply(LayerInput::Rows(&input))?);
        }
        let initial = self.initial.as_ref().unwrap_or(rows);
        let initial = initial.rows(targets.start as usize..targets.end as usize)?.f_to_device(device)?;
        Ok(apply(LayerInput::Propagated { rows: &input, initial: &initial })?)
    }
}

fn on_device(features: NodeFeatures, device: Device) -> Result<NodeFeatures, ModelError> {
    Ok(match device {
        Device::Cpu => features,
        device => features.to_device(device)?,
    })
}

fn of_nodes(error: kdgat_nodes::NodesError) -> ModelError {
    match error {
        kdgat_nodes::NodesError::Torch(source) => source.into(),
        other => ModelError::Other(other.to_string()),
    }
}

/// Outputs of a network for all nodes of a graph, `[num_nodes, outputs]`, computed on `device` from the tensors of `source`.
///
/// # Errors
/// Tensors that do not fit the architecture, a graph with other features, or no memory or disk for the activations.
pub fn outputs_of_all_nodes(
    graph: Arc<NodeGraph>,
    config: &NodeGnnConfig,
    source: &mut dyn TensorSource,
    kernel: Backend,
    device: Device,
    place: ActivationPlace,
) -> Result<ActivationRows, ModelError> {
    config.check()?;
    Inference::new(graph, config.clone(), kernel, place).finish(source, device)
}

/// A teacher for nodes: its architecture, and the graph that it reads, with its positions.
#[derive(Debug, Clone)]
pub struct NodeTeacher {
    /// The architecture.
    pub config: NodeGnnConfig,
    /// The visible part of the graph.
    pub graph: Arc<NodeGraph>,
}

/// Tensors whose names begin with a prefix, under their names without it.
struct Prefixed<'a> {
    source: &'a mut dyn TensorSource,
    prefix: &'a str,
}

impl TensorSource for Prefixed<'_> {
    fn tensor(
        &mut self,
        name: &str,
        shape: &[i64],
        kind: Kind,
        init: Init,
        role: Role,
    ) -> Result<Tensor, kdgat_nn::ModelError> {
        self.source.tensor(&format!("{}{name}", self.prefix), shape, kind, init, role)
    }
}

/// Targets of one or several teachers for all nodes, `[num_nodes, classes]`: logits of a single teacher without changes, logarithms of
/// probabilities otherwise. The tensors of several teachers have the prefixes of [`tensor_prefix`].
///
/// # Errors
/// The errors of [`outputs_of_all_nodes`], and probabilities that do not fit into the memory.
pub fn targets_of_all_nodes(
    teachers: &[NodeTeacher],
    changes: &TargetChanges,
    source: &mut dyn TensorSource,
    kernel: Backend,
    device: Device,
    place: &ActivationPlace,
) -> Result<ActivationRows, ModelError> {
    expect_room(teachers, changes, place)?;
    let mut outputs = Vec::with_capacity(teachers.len());
    for (index, NodeTeacher { config, graph }) in teachers.iter().enumerate() {
        let prefix = tensor_prefix(index, teachers.len());
        let mut source = Prefixed { source: &mut *source, prefix: &prefix };
        outputs.push(outputs_of_all_nodes(Arc::clone(graph), config, &mut source, kernel, device, place.clone())?);
    }
    // `expect_room` refuses an empty list.
    Ok(targets_of(outputs, &teachers[0].graph, changes))
}

/// One or several networks for nodes whose weights never change.
///
/// Their targets are exact, whatever part of the graph a student's batch has: the first visit computes the targets of all nodes, later ones
/// look them up. APPNP's propagation belongs to the last layer with weights.
#[derive(Debug)]
pub struct FrozenNodes {
    teachers: Vec<NodeTeacher>,
    changes: TargetChanges,
    layers: Vec<LayerSpec>,
    progress: Mutex<Progress>,
}

/// Inference of all teachers, as far as it has come.
#[derive(Debug)]
struct Progress {
    inferences: Vec<Inference>,
    /// `None` before the last layer of the last teacher.
    targets: Option<ActivationRows>,
}

impl FrozenNodes {
    /// Creates the teachers of the nodes of a graph.
    ///
    /// # Errors
    /// No teacher, or targets that do not fit into the memory.
    pub fn new(
        teachers: Vec<NodeTeacher>,
        changes: TargetChanges,
        kernel: Backend,
        place: ActivationPlace,
    ) -> Result<Self, ModelError> {
        expect_room(&teachers, &changes, &place)?;
        let start = |NodeTeacher { config, graph }: &NodeTeacher| {
            Inference::new(Arc::clone(graph), config.clone(), kernel, place.clone())
        };
        let progress = Mutex::new(Progress { inferences: teachers.iter().map(start).collect(), targets: None });
        let layers = layers_of(&teachers.iter().map(|teacher| &teacher.config).collect::<Vec<_>>())?;
        Ok(Self { teachers, changes, layers, progress })
    }

    /// The teacher of layer `layer` of [`FrozenModel::layers`], and the number of its layers that are done after it.
    fn end_of(&self, mut layer: i64) -> Option<(usize, i64)> {
        for (index, NodeTeacher { config, .. }) in self.teachers.iter().enumerate() {
            if layer < config.layers {
                let is_last = layer + 1 == config.layers;
                return Some((index, if is_last { config.num_layers() } else { layer + 1 }));
            }
            layer -= config.layers;
        }
        None
    }
}

impl FrozenModel for FrozenNodes {
    fn target_layout(&self) -> TargetLayout {
        TargetLayout::classifier(self.teachers.first().map_or(0, |teacher| teacher.config.outputs as usize))
    }

    fn layers(&self) -> Vec<LayerSpec> {
        self.layers.clone()
    }

    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        _: LayerState,
    ) -> Result<LayerState, ModelError> {
        let Some((index, end)) = self.end_of(layer as i64) else { return Ok(LayerState::new()) };
        let mut progress = self.progress.lock();
        let (device, prefix) = (batch.labels.device(), tensor_prefix(index, self.teachers.len()));
        let NodeTeacher { config, graph } = &self.teachers[index];
        while progress.targets.is_none() && progress.inferences[index].done < end {
            progress.inferences[index]
                .advance(&mut Prefixed { source: &mut Views(weights), prefix: &prefix }, device)?;
        }
        if index + 1 < self.teachers.len() || end < config.num_layers() {
            return Ok(LayerState::new());
        }
        if progress.targets.is_none() {
            let outputs = std::mem::take(&mut progress.inferences).into_iter().filter_map(|inference| inference.rows);
            progress.targets = Some(targets_of(outputs.collect(), graph, &self.changes));
        }
        match &progress.targets {
            Some(targets) => {
                let nodes = batch.graph_index.iter().map(|&node| node as u32);
                Ok(vec![targets.gather(&nodes.collect::<Vec<_>>())?.f_to_device(device)?])
            }
            None => Ok(LayerState::new()),
        }
    }
}

/// A network for nodes whose targets were cached before: a student's batch does not have the neighbours that they were computed from.
#[derive(Debug)]
pub struct CachedNodes {
    outputs: usize,
    layers: Vec<LayerSpec>,
}

impl CachedNodes {
    /// A teacher of this architecture.
    ///
    /// # Errors
    /// An architecture without these layers.
    pub fn new(config: &NodeGnnConfig) -> Result<Self, ModelError> {
        Ok(Self { outputs: config.outputs as usize, layers: layers_of(&[config])? })
    }
}

impl FrozenModel for CachedNodes {
    fn target_layout(&self) -> TargetLayout {
        TargetLayout::classifier(self.outputs)
    }

    fn layers(&self) -> Vec<LayerSpec> {
        self.layers.clone()
    }

    fn forward_layer(&self, _: usize, _: &WeightViews, batch: &Batch, _: LayerState) -> Result<LayerState, ModelError> {
        Err(ModelError::Other(format!(
            "the cache has no valid targets of {} nodes, node {} among them, though it was complete when the training began; run the \
             same command again with --resume to compute them",
            batch.graph_index.len(),
            batch.graph_index.first().copied().unwrap_or_default()
        )))
    }
}

/// The layers with weights, of one teacher after the other.
fn layers_of(configs: &[&NodeGnnConfig]) -> Result<Vec<LayerSpec>, ModelError> {
    let mut layers = Vec::new();
    for (teacher, config) in configs.iter().enumerate() {
        let prefix = tensor_prefix(teacher, configs.len());
        for index in 0..config.layers {
            let tensors = names_of(|scope| NodeLayer::new(scope, config, index))?;
            layers.push(LayerSpec {
                name: format!("{prefix}layer {index}"),
                tensors: tensors.iter().map(|name| format!("{prefix}{name}")).collect(),
            });
        }
    }
    Ok(layers)
}

#[cfg(test)]
mod tests {
    use kdgat_graph::BatchSource;
    use kdgat_nn::node_gnn_config::{Aggregator, Norm};
    use kdgat_nn::parameters::FreshParameters;
    use kdgat_nn::{GivenTensors, NodeGnn, NodeGnnKind};
    use kdgat_nodes::{BatchOptions, Features, NodeBatches, Reach};

    use super::*;

    const NODES: u32 = 60;

    /// A graph whose nodes have 1 to 59 neighbours: node 0 is linked to all, others to a few.
    fn graph() -> Arc<NodeGraph> {
        let linked = |one: u32, other: u32| {
            one != other && (one.min(other) == 0 || (one * other + one + other).is_multiple_of(11))
        };
        let neighbours = |node: u32| (0..NODES).filter(move |&other| linked(node, other));
        let mut pointers = vec![0u64];
        (0..NODES).for_each(|node| pointers.push(pointers[node as usize] + neighbours(node).count() as u64));
        let values: Vec<f32> = (0..NODES * 5).map(|at| (at as f32 * 0.7).sin()).collect();
        Arc::new(NodeGraph {
            row_pointers: pointers.into(),
            sources: (0..NODES).flat_map(neighbours).collect::<Vec<_>>().into(),
            features: Features::Dense { columns: 5, values: values.into() },
            ..NodeGraph::ring(NODES as usize, 5, 3)
        })
    }

    /// Inference layer by layer in small blocks, in memory and through files, equals a forward of the whole graph.
    #[test]
    fn layer_by_layer_is_the_whole_forward() {
        let (graph, folder) = (graph(), tempfile::tempdir().unwrap());
        let kinds = [
            NodeGnnKind::Sage,
            NodeGnnKind::Gcn,
            NodeGnnKind::Gat,
            NodeGnnKind::GatV2,
            NodeGnnKind::Appnp,
            NodeGnnKind::Mlp,
        ];
        let plain = |kind| NodeGnnConfig::new(kind, [5, 8, 3, 3]);
        let normed = |kind, norm| NodeGnnConfig { norm, residual: true, ..plain(kind) };
        let gcn = NodeGnnConfig { aggregator: Aggregator::Gcn, ..normed(NodeGnnKind::Sage, Norm::Layer) };
        let heads = NodeGnnConfig { heads: 3, output_heads: 2, ..normed(NodeGnnKind::GatV2, Norm::Batch) };
        for config in kinds.map(plain).into_iter().chain([gcn, heads]) {
            let mut parameters = FreshParameters::new(7, Device::Cpu);
            let model = NodeGnn::new(Scope::root(&mut parameters), &config, Backend::Auto).unwrap();
            let reach = match config.message_layers() {
                0 => Reach::None,
                layers => Reach::Whole { layers: layers as usize, own: None },
            };
            let options = BatchOptions { reach, seed: 1, degrees: config.needs_source_degrees() };
            let labels = Arc::new(vec![0; NODES as usize]);
            let batches = NodeBatches::new(Arc::clone(&graph), labels, options, folder.path()).unwrap();
            let all: Vec<u64> = (0..u64::from(NODES)).collect();
            let batch = batches.maker(0).make(&all).unwrap();
            let whole = tch::no_grad(|| model.forward(&batch, Mode::Evaluation)).unwrap();
            let tensors: Vec<_> =
                parameters.into_tensors().into_iter().map(|named| (named.name, named.tensor.detach())).collect();
            for memory_bytes in [u64::MAX, 0] {
                let place = ActivationPlace { memory_bytes, folder: folder.path().to_owned() };
                let copies = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
                let mut given = GivenTensors::new(copies);
                let mut inference = Inference::new(Arc::clone(&graph), config.clone(), Backend::Auto, place);
                inference.block_size = 16;
                let found = inference.finish(&mut given, Device::Cpu).unwrap();
                let difference = (found.rows(0..NODES as usize).unwrap() - &whole).abs().max().double_value(&[]);
                assert!(difference < 1e-5, "{config:?}, {memory_bytes} bytes in memory: {difference:e}");
            }
        }
    }
}
