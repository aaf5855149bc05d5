//! Small frozen models and batches for the tests of the teacher.

use std::sync::Arc;

use kdgat::distill::{
    FrozenModel, LayerSpec, LayerState, ModelError, TargetLayout, TargetName, Targets, WeightViews, Weights,
};
use kdgat::graph::{Adjacency, Batch, NODE_FEATURES};
use kdgat::nn::fused::linear::linear;
use tch::{Device, Kind, Tensor};

/// Numbers in [-1, 1) that depend only on seed and position.
pub fn values(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count + 8).map(|_| next()).skip(8).collect()
}

/// Number of nodes of graph `graph` of the fake store.
pub fn nodes_of(graph: u64) -> usize {
    1 + (graph.wrapping_mul(2_654_435_761) >> 7) as usize % 9
}

/// Node counts of a fake store with `graphs` graphs.
pub fn node_counts(graphs: u64) -> Vec<u32> {
    (0..graphs).map(|graph| nodes_of(graph) as u32).collect()
}

/// Batch of graphs of the fake store: rings with self-loops, features by graph number.
pub fn batch(graphs: &[u64]) -> Batch {
    let vocabulary_size = 16;
    let (mut node_pointers, mut row_pointers) = (vec![0i64], vec![0i32]);
    let (mut sources, mut edge_targets, mut transposed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut can_ids, mut id_index, mut continuous) = (Vec::new(), Vec::new(), Vec::new());
    let (mut graph_of_node, mut successors, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for (position, &graph) in graphs.iter().enumerate() {
        let (start, nodes) = (*node_pointers.last().unwrap(), nodes_of(graph));
        continuous.extend(values(graph + 1, nodes * NODE_FEATURES));
        for node in 0..nodes {
            let id = (graph as usize * 3 + node) % vocabulary_size;
            can_ids.push(id as u32 + 100);
            id_index.push(id as i64);
            graph_of_node.push(position as i64);
            let previous = (node + nodes - 1) % nodes;
            let mut incoming = vec![node, previous];
            incoming.sort_unstable();
            incoming.dedup();
            for source in incoming {
                sources.push((start as usize + source) as i32);
                edge_targets.push((start as usize + node) as i32);
            }
            row_pointers.push(sources.len() as i32);
            let successor = (graph as usize * 3 + (node + 1) % nodes) % vocabulary_size;
            successors.push((start + node as i64) * vocabulary_size as i64 + successor as i64);
        }
        node_pointers.push(start + nodes as i64);
        labels.push((graph % 2) as i64);
    }
    let num_nodes = id_index.len();
    let mut column_pointers = vec![0i32];
    for source in 0..num_nodes {
        let edges = sources.iter().enumerate().filter(|(_, found)| **found == source as i32);
        transposed.extend(edges.map(|(edge, _)| edge as i32));
        column_pointers.push(transposed.len() as i32);
    }
    let edges = sources.len();
    Batch {
        graph_index: Arc::new(graphs.to_vec()),
        can_ids: Arc::new(can_ids),
        id_index: Tensor::from_slice(&id_index),
        id_input: Tensor::from_slice(&id_index),
        continuous: Tensor::from_slice(&continuous).view([num_nodes as i64, NODE_FEATURES as i64]),
        adjacency: Adjacency {
            row_pointers: Tensor::from_slice(&row_pointers),
            sources: Tensor::from_slice(&sources),
            targets: Tensor::from_slice(&edge_targets),
            column_pointers: Tensor::from_slice(&column_pointers),
            transposed: Tensor::from_slice(&transposed),
            components: Default::default(),
        },
        edge_attributes: Some(Tensor::from_slice(&values(77, edges * 11)).view([edges as i64, 11])),
        successors: Tensor::from_slice(&successors),
        vocabulary_size: vocabulary_size as i64,
        node_pointers: Tensor::from_slice(&node_pointers),
        graph_of_node: Tensor::from_slice(&graph_of_node),
        labels: Tensor::from_slice(&labels),
        targets: None,
        node_targets: None,
        neighbourhood: None,
        space: None,
        real: None,
        padded_form: None,
        memory: None,
    }
}

/// Behaviour of a fake teacher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Deterministic, as a teacher must be.
    Proper,
    /// Dropout is still active.
    Dropout,
    /// Batch norm uses the statistics of the batch.
    BatchStatistics,
    /// The forward pass panics on its n-th batch.
    PanicOn(u64),
    /// The forward pass fails on its n-th batch.
    FailOn(u64),
}

/// Perceptron with `hidden` widths over the continuous features and the mean of the neighbours; outputs latent and
/// reconstruction per node, or logits per graph.
pub struct Perceptron {
    pub hidden: Vec<i64>,
    pub logits: bool,
    pub behaviour: Behaviour,
    pub calls: std::cell::Cell<u64>,
}

pub const LATENT: usize = 4;

impl Perceptron {
    pub fn vgae(behaviour: Behaviour) -> Box<Self> {
        Box::new(Self { hidden: vec![32, 24, 16], logits: false, behaviour, calls: Default::default() })
    }

    pub fn classifier() -> Box<Self> {
        Box::new(Self {
            hidden: vec![32, 24, 16],
            logits: true,
            behaviour: Behaviour::Proper,
            calls: Default::default(),
        })
    }

    pub fn wide(width: i64, layers: usize) -> Box<Self> {
        let hidden = vec![width; layers];
        Box::new(Self { hidden, logits: false, behaviour: Behaviour::Proper, calls: Default::default() })
    }

    fn widths(&self) -> Vec<(i64, i64)> {
        let outputs =
            self.hidden.iter().copied().chain([if self.logits { 2 } else { (LATENT + NODE_FEATURES) as i64 }]);
        let inputs = [NODE_FEATURES as i64].into_iter().chain(self.hidden.iter().copied());
        inputs.zip(outputs).collect()
    }

    pub fn weights(&self, seed: u64) -> Weights {
        let mut tensors = vec![("unused.weight".to_string(), Tensor::ones([1000], (Kind::Float, Device::Cpu)))];
        for (layer, (inputs, outputs)) in self.widths().into_iter().enumerate() {
            let weight = Tensor::from_slice(&values(seed + layer as u64, (inputs * outputs) as usize));
            tensors.push((
                format!("layers.{layer}.weight"),
                weight.view([outputs, inputs]) * (3.0 / inputs as f64).sqrt(),
            ));
            tensors.push((format!("layers.{layer}.bias"), Tensor::from_slice(&values(seed + 50, outputs as usize))));
        }
        tensors.push(("count".to_string(), Tensor::from(7i64)));
        Weights::from_tensors(tensors).unwrap()
    }
}

impl FrozenModel for Perceptron {
    fn target_layout(&self) -> TargetLayout {
        if self.logits { TargetLayout::classifier(2) } else { TargetLayout::vgae(Some(LATENT), NODE_FEATURES) }
    }

    fn layers(&self) -> Vec<LayerSpec> {
        let layer = |layer| {
            let mut tensors = vec![format!("layers.{layer}.weight"), format!("layers.{layer}.bias")];
            tensors.extend((layer == 0).then(|| "count".to_string()));
            LayerSpec { name: format!("layer {layer}"), tensors }
        };
        (0..self.widths().len()).map(layer).collect()
    }

    fn forward_layer(
        &self,
        layer: usize,
        weights: &WeightViews,
        batch: &Batch,
        state: LayerState,
    ) -> Result<LayerState, ModelError> {
        assert!(
            !Tensor::from(1f32).set_requires_grad(true).g_mul_scalar(2.0).requires_grad(),
            "gradients are recorded"
        );
        let input = if layer == 0 {
            self.calls.set(self.calls.get() + 1);
            // On a GPU, reading it would wait for the copy, which the ordering tests must not do.
            if batch.continuous.device() == Device::Cpu {
                assert_eq!(weights.get("count")?.int64_value(&[]), 7);
            }
            match self.behaviour {
                Behaviour::PanicOn(call) if call == self.calls.get() => panic!("the fake teacher's forward broke"),
                Behaviour::FailOn(call) if call == self.calls.get() => {
                    return Err(ModelError::Other("the fake teacher gave up".to_string()));
                }
                _ => batch.continuous.shallow_clone(),
            }
        } else {
            state.into_iter().next().expect("state of the layer before")
        };
        let weight = weights.get(&format!("layers.{layer}.weight"))?;
        let bias = weights.get(&format!("layers.{layer}.bias"))?;
        let output = match input.device() {
            // Each row of its result is independent of the other rows; in torch's product it may not be.
            Device::Cpu => linear(&input, &weight, Some(&bias))?,
            _ => input.f_linear(&weight, Some(&bias))?,
        };
        if layer + 1 < self.widths().len() {
            let output = match self.behaviour {
                Behaviour::Dropout => output.dropout(0.1, true),
                Behaviour::BatchStatistics => &output - output.mean_dim(0i64, true, Kind::Float),
                _ => output,
            };
            let sources = batch.adjacency.sources.to_kind(Kind::Int64);
            let targets = batch.adjacency.targets.to_kind(Kind::Int64);
            let gathered = output.index_select(0, &sources);
            return Ok(vec![output.zeros_like().index_add(0, &targets, &gathered).relu()]);
        }
        if self.logits {
            let pooled = Tensor::zeros([batch.num_graphs() as i64, 2], (Kind::Float, output.device()));
            return Ok(vec![pooled.index_add(0, &batch.graph_of_node, &output)]);
        }
        let latent = output.narrow(1, 0, LATENT as i64).contiguous();
        let reconstruction = output.narrow(1, LATENT as i64, NODE_FEATURES as i64).sigmoid();
        Ok(vec![latent, reconstruction])
    }
}

/// Targets as bits, for bitwise comparison.
pub fn bits(targets: &Targets) -> Vec<(TargetName, Vec<i64>, Vec<u32>)> {
    let bits = |(name, tensor): &(TargetName, Tensor)| {
        let values: Vec<f32> = Vec::try_from(tensor.flatten(0, -1).contiguous()).unwrap();
        (*name, tensor.size(), values.into_iter().map(f32::to_bits).collect())
    };
    targets.tensors.iter().map(bits).collect()
}

/// Largest difference of two targets' values, relative to the largest value.
pub fn deviation(left: &Targets, right: &Targets) -> f64 {
    let mut worst = 0f64;
    for ((_, left), (_, right)) in left.tensors.iter().zip(&right.tensors) {
        let scale = left.abs().max().double_value(&[]).max(1.0);
        worst = worst.max((left - right).abs().max().double_value(&[]) / scale);
    }
    worst
}

/// Shape of a fake store with `graphs` graphs, as passed to the teacher.
pub fn shape(graphs: u64) -> kdgat::distill::StoreShape {
    kdgat::distill::StoreShape { dataset_digest: "imagined".to_string(), node_counts: node_counts(graphs), used: None }
}

/// Options for a cache of this mode in `path`.
pub fn cache_options(
    mode: kdgat::distill::CacheMode,
    path: Option<&std::path::Path>,
) -> kdgat::distill::TeacherOptions {
    let cache = kdgat::distill::CacheOptions {
        mode,
        path: path.map(|path| path.to_path_buf()),
        ram_budget_bytes: 1 << 30,
        architecture: "{\"hidden\":[32,24,16]}".to_string(),
        features: "10 continuous".to_string(),
        ..kdgat::distill::CacheOptions::off()
    };
    kdgat::distill::TeacherOptions { cache, ..kdgat::distill::TeacherOptions::new(Device::Cpu) }
}

/// Submits `batches` as one burst and receives their targets.
pub fn burst(
    teacher: &mut kdgat::distill::Teacher,
    batches: &[Vec<u64>],
) -> Result<Vec<Targets>, kdgat::distill::TeacherError> {
    teacher.submit(batches.iter().map(|graphs| batch(graphs)).collect());
    batches.iter().map(|_| teacher.targets()).collect()
}
