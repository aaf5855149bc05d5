//! Closed-form estimate of a run's memory, from the architecture alone.
//!
//! Counts the tensors that a forward pass stores for the backward, and the largest temporaries on top. It is meant to overestimate,
//! by less than half; measured steps on real batches are more precise (see [`crate::memory::probe`]). The fused passes of the CPU
//! store less than torch's operations do.

use tch::{Device, Kind, Tensor};

use crate::graph::{EDGE_FEATURES, Level};
use crate::memory::budget::{
    BATCH_DATA, Component, LOADER_QUEUE, Linear, MemoryBudget, Method, Moment, TARGETS, TEACHER_ACTIVATIONS,
};
use crate::nn::attention::Backend;
use crate::nn::gat::CLASSES;
use crate::nn::irreps::IrrepsConfig;
use crate::nn::parameters::{Init, Role};
use crate::nn::{
    Architecture, Gat, GatConfig, Gnn, GnnConfig, GnnKind, GraphVgae, GraphVgaeConfig, InputConfig, ModelError,
    NodeGnn, Pretext, PretrainingConfig, Scope, SpaceConfig, TensorSource, Vgae, VgaeConfig, vgae,
};

const F32: f64 = 4.0;
/// Factor for rounding, small tensors, and terms too small to count.
const SLACK: f64 = 1.05;
/// Memory of the CUDA driver and libtorch's kernels, in bytes.
const CUDA_CONTEXT_BYTES: f64 = 450e6;

/// Conditions of an estimate besides the architecture.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    pub cuda: bool,
    /// Set when fused kernels run the passes: on the CPU, in f32.
    pub fused: bool,
    pub checkpointing: bool,
    pub offload_optimizer: bool,
    /// Batches announced to a teacher at a time; 1 without a teacher.
    pub burst: usize,
    /// Batches queued for the training loop.
    pub waiting_batches: usize,
    pub nodes_per_graph: f64,
    /// Set when the teacher's weights stay on the device during the student's step.
    pub resident_teacher: bool,
    /// Set when the teacher is already loaded and its memory counted.
    pub teacher_counted: bool,
    pub compared: ComparedLayers,
}

/// The layers that distillation compares besides the outputs.
#[derive(Debug, Clone, Copy, Default)]
pub struct ComparedLayers {
    /// The latents; only a VGAE has them.
    pub latents: bool,
    /// Hidden layers.
    pub hints: bool,
}

/// Bytes of a model's parameters, and of its running statistics.
pub fn weight_bytes(architecture: &Architecture) -> Result<(f64, f64), ModelError> {
    let mut counted = CountedTensors::default();
    match architecture {
        Architecture::Vgae(config) => drop(Vgae::new(Scope::root(&mut counted), config, Backend::Auto)?),
        Architecture::Gat(config) => drop(Gat::new(Scope::root(&mut counted), config, Backend::Auto)?),
        Architecture::Graph(config) => drop(Gnn::new(Scope::root(&mut counted), config, Backend::Auto)?),
        Architecture::Nodes(config) => drop(NodeGnn::new(Scope::root(&mut counted), config, Backend::Auto)?),
        Architecture::GraphVgae(config) => drop(GraphVgae::new(Scope::root(&mut counted), config, Backend::Auto)?),
        Architecture::Pretraining(config) => drop(Gnn::new(Scope::root(&mut counted), &config.network, Backend::Auto)?),
    }
    Ok((counted.parameters, counted.buffers))
}

/// Counts the tensors a model requests, without allocating them.
#[derive(Default)]
struct CountedTensors {
    parameters: f64,
    buffers: f64,
}

impl TensorSource for CountedTensors {
    fn tensor(&mut self, _: &str, shape: &[i64], kind: Kind, _: Init, role: Role) -> Result<Tensor, ModelError> {
        let bytes = shape.iter().product::<i64>() as f64 * kind.elt_size_in_bytes() as f64;
        match role {
            Role::Parameter => self.parameters += bytes,
            Role::Buffer | Role::Frozen => self.buffers += bytes,
        }
        Ok(Tensor::f_zeros([0], (kind, Device::Cpu))?)
    }
}

/// Estimates the memory of training `student`, alone or with a teacher of one or several networks.
pub fn estimate(
    student: &Architecture,
    teachers: &[Architecture],
    circumstances: &Circumstances,
) -> Result<MemoryBudget, ModelError> {
    let (parameters, buffers) = weight_bytes(student)?;
    let teacher = teachers.first();
    let hints =
        teacher.filter(|_| circumstances.compared.hints).map(|teacher| Hints::new(student, teacher, circumstances));
    let parameters = parameters + hints.as_ref().map_or(0.0, |hints| hints.regressor);
    let burst = circumstances.burst.max(1) as f64;
    let edge_features = student.reads_edge_features() || teachers.iter().any(Architecture::reads_edge_features);
    let node_features = match student {
        Architecture::Graph(config) => config.node_features,
        Architecture::Nodes(config) => config.node_features,
        Architecture::GraphVgae(config) => config.encoder.node_features,
        Architecture::Pretraining(config) => config.network.node_features,
        other => other.input().node_features(),
    };
    let data = batch_data(edge_features, node_features);
    let mut components = Vec::new();
    let mut add = |name, moment, bytes: Linear| components.push(Component { name, moment, bytes });
    add("parameters", Moment::Always, Linear::fixed(parameters + 2.0 * buffers));
    add("gradients", Moment::Always, Linear::fixed(parameters));
    let optimizer = if circumstances.offload_optimizer && circumstances.cuda { 0.0 } else { 2.0 * parameters };
    add("optimiser states", Moment::Always, Linear::fixed(optimizer));
    if circumstances.cuda {
        add("CUDA context", Moment::Always, Linear::fixed(CUDA_CONTEXT_BYTES));
    }
    add(BATCH_DATA, Moment::Always, data.times(burst));
    if !circumstances.cuda {
        add(LOADER_QUEUE, Moment::Always, data.times(circumstances.waiting_batches as f64));
    }
    if let Some(teacher) = teacher {
        let weights: f64 = teachers
            .iter()
            .map(|network| weight_bytes(network).map(|(weights, buffers)| weights + buffers))
            .sum::<Result<_, _>>()?;
        if !circumstances.teacher_counted {
            let resident = if circumstances.resident_teacher || !circumstances.cuda { weights } else { 0.0 };
            add("teacher's weights", Moment::Always, Linear::fixed(resident));
        }
        let targets = targets_per_node(teacher, circumstances.nodes_per_graph, circumstances.compared);
        add(TARGETS, Moment::Always, per_node(targets).times(burst));
        let copies = !circumstances.resident_teacher && !circumstances.teacher_counted;
        let fixed = if copies { weights } else { 0.0 };
        // One network computes at a time.
        let largest = |of: &dyn Fn(&Architecture) -> f64| teachers.iter().map(of).fold(0.0, f64::max);
        let per_edge = F32 * largest(&|network| edge_terms(network).map_or(0.0, |terms| terms.in_forward()));
        let visit =
            Linear { fixed, per_node: largest(&|network| forward_per_node(network, circumstances.fused)), per_edge };
        add(TEACHER_ACTIVATIONS, Moment::Visit, visit.times(SLACK));
    }
    add("activations", Moment::Step, activations(student, circumstances).times(SLACK));
    if let Some(hints) = hints {
        add("hints", Moment::Step, per_node(hints.per_node));
    }
    // Temporaries of the update: five tensors of the parameters' size at once, unless fused.
    let update = match (circumstances.fused, circumstances.offload_optimizer && circumstances.cuda) {
        (true, _) => 0.0,
        (false, true) => 1.0,
        (false, false) => 5.0,
    };
    add("optimiser's update", Moment::Update, Linear::fixed(update * parameters));
    Ok(MemoryBudget { method: Method::Static, components })
}

fn per_node(bytes: f64) -> Linear {
    Linear { per_node: bytes, ..Linear::default() }
}

/// Bytes of a batch. Per node: two indices, features, two pointers and the graph; per edge: three indices and a successor.
fn batch_data(edge_features: bool, node_features: i64) -> Linear {
    let attributes = if edge_features { F32 * EDGE_FEATURES as f64 } else { 0.0 };
    Linear { fixed: 0.0, per_node: 32.0 + F32 * node_features as f64 + 1.0, per_edge: 20.0 + attributes }
}

/// Bytes per node of a teacher's targets, including the `compared` layers.
pub(super) fn targets_per_node(teacher: &Architecture, nodes_per_graph: f64, compared: ComparedLayers) -> f64 {
    let outputs = match teacher {
        Architecture::Vgae(config) => {
            let latent = if compared.latents { config.latent } else { 0 };
            (latent + config.input.node_features()) as f64
        }
        Architecture::Gat(_) => CLASSES as f64 / nodes_per_graph.max(1.0),
        Architecture::Graph(config) => {
            let forces = if config.gives_forces() { 3.0 } else { 0.0 };
            config.outputs as f64 / nodes_per_row(config.level, nodes_per_graph) + forces
        }
        Architecture::Nodes(config) => config.outputs as f64,
        Architecture::GraphVgae(config) => {
            let latent = if compared.latents { config.latent() } else { 0 };
            (latent + config.encoder.node_features) as f64
        }
        // No teacher of any network.
        Architecture::Pretraining(config) => config.network.outputs as f64,
    };
    let hidden = if compared.hints { hidden_per_node(teacher, nodes_per_graph) } else { 0.0 };
    F32 * (outputs + hidden)
}

/// Number of columns of the hidden layer that hints compare.
fn hidden_columns(architecture: &Architecture) -> f64 {
    match architecture {
        Architecture::Vgae(config) => vgae::last_width(config) as f64,
        Architecture::Gat(config) => config.embedding_columns() as f64,
        Architecture::Graph(config) => config.pooled_columns() as f64,
        Architecture::Nodes(config) => config.width() as f64,
        Architecture::GraphVgae(config) => config.encoder.width() as f64,
        Architecture::Pretraining(config) => config.network.pooled_columns() as f64,
    }
}

/// Values of that layer per node; a GAT's has one row per graph.
fn hidden_per_node(architecture: &Architecture, nodes_per_graph: f64) -> f64 {
    match architecture {
        Architecture::Vgae(_) | Architecture::Nodes(_) | Architecture::GraphVgae(_) | Architecture::Pretraining(_) => {
            hidden_columns(architecture)
        }
        Architecture::Gat(_) => hidden_columns(architecture) / nodes_per_graph.max(1.0),
        Architecture::Graph(config) => {
            // The vectors of a PaiNN have three times the columns.
            let vectors = if config.kind == GnnKind::PaiNN { 3.0 } else { 0.0 };
            hidden_columns(architecture) * (1.0 + vectors) / nodes_per_row(config.hidden_level(), nodes_per_graph)
        }
    }
}

/// Nodes for each row that a graph network's head reads.
fn nodes_per_row(level: Level, nodes_per_graph: f64) -> f64 {
    match level {
        Level::Graph => nodes_per_graph.max(1.0),
        Level::Node => 1.0,
    }
}

/// Memory that hints add to a step.
struct Hints {
    /// Bytes of the linear map from the student's columns to the teacher's.
    regressor: f64,
    per_node: f64,
}

impl Hints {
    fn new(student: &Architecture, teacher: &Architecture, circumstances: &Circumstances) -> Self {
        let of = |model| hidden_per_node(model, circumstances.nodes_per_graph);
        // The mapped rows, then the distances or, later, their gradient, and finally the gradient of the student's layer. On the
        // host, the rows of the target are gathered first.
        let rows = if circumstances.cuda { 2.0 } else { 3.0 };
        let columns = [student, teacher].map(hidden_columns);
        let regressor = if columns[0] == columns[1] { 0.0 } else { (columns[0] + 1.0) * columns[1] };
        Self { regressor: F32 * regressor, per_node: F32 * (rows * of(teacher) + of(student)) }
    }
}

/// Peak bytes per node of a forward without a backward: a layer's input, values, output and normalised output.
fn forward_per_node(architecture: &Architecture, fused: bool) -> f64 {
    match architecture {
        Architecture::Vgae(config) if fused => {
            let widths = vgae_widths(config);
            let inputs =
                std::iter::once(input_width(config.embedding, &config.input, true)).chain(widths.iter().copied());
            inputs.zip(&widths).map(|(input, width)| F32 * (input + 2.0 * width)).fold(0.0, f64::max)
        }
        // Pooled layer by layer.
        Architecture::Gat(config) if fused => F32 * 3.25 * (config.hidden * config.heads) as f64,
        Architecture::Vgae(config) => {
            let widths = vgae_widths(config);
            let inputs =
                std::iter::once(input_width(config.embedding, &config.input, false)).chain(widths.iter().copied());
            inputs.zip(&widths).map(|(input, width)| F32 * (2.0 * input + 4.0 * width)).fold(0.0, f64::max)
        }
        Architecture::Gat(config) => {
            let width = (config.hidden * config.heads) as f64;
            F32 * width * (config.layers as f64 + 4.0)
        }
        // Features, and the values of one layer: sums, hidden values of its MLP, normalised and active ones; with virtual nodes, their rows
        // for each node and the sum with them.
        Architecture::Graph(config) | Architecture::Pretraining(PretrainingConfig { network: config, .. }) => {
            let of_virtual_nodes = if config.virtual_node { 2.0 } else { 0.0 };
            F32 * (2.0 * config.node_features as f64 + (6.0 + of_virtual_nodes) * config.width() as f64)
        }
        // The same, with standardised features.
        Architecture::GraphVgae(GraphVgaeConfig { encoder, .. }) => {
            F32 * (3.0 * encoder.node_features as f64 + 6.0 * encoder.width() as f64)
        }
        // The same, without an inner MLP.
        Architecture::Nodes(config) => F32 * (config.node_features as f64 + 3.0 * config.width() as f64),
    }
}

fn activations(architecture: &Architecture, circumstances: &Circumstances) -> Linear {
    let kept = match architecture {
        Architecture::Vgae(config) if circumstances.fused => fused_vgae_activations(config, circumstances),
        Architecture::Vgae(config) => vgae_activations(config, circumstances),
        Architecture::Gat(config) if circumstances.fused => fused_gat_activations(config, circumstances),
        Architecture::Gat(config) => gat_activations(config, circumstances),
        Architecture::Graph(config) => graph_activations(config, circumstances),
        Architecture::Pretraining(config) => {
            // Growth of trees is predicted by a second pass, whose activations are stored beside those of the first.
            let passes = if matches!(config.pretext, Pretext::GtSsl { .. }) { 2.0 } else { 1.0 };
            graph_activations(&config.network, circumstances).times(passes)
        }
        Architecture::GraphVgae(config) => graph_vgae_activations(config, circumstances),
        Architecture::Nodes(config) => {
            // Of each layer: values, sums and normalised output.
            let columns = config.layers as f64 * 3.0 * config.width() as f64;
            Linear { fixed: 0.0, per_node: F32 * columns, per_edge: 0.0 }
        }
    };
    let of_edge_features = edge_terms(architecture).map_or(0.0, |terms| terms.in_step(circumstances.checkpointing));
    Linear { per_edge: kept.per_edge + F32 * of_edge_features, ..kept }
}

fn vgae_widths(config: &VgaeConfig) -> Vec<f64> {
    config.encoder_widths().iter().copied().chain(config.decoder_widths()).map(|width| width as f64).collect()
}

/// Tensors of a hidden layer's width that it stores for the backward: values, attention output, ReLU, and dropout's mask and
/// product; with checkpointing, only those after the ReLU.
fn kept_per_width(norm: bool, dropout: f64, checkpointing: bool) -> f64 {
    let dropped: f64 = if dropout > 0.0 { 2.0 } else { 0.0 };
    match (checkpointing, norm) {
        (true, _) => dropped.max(1.0),
        (false, true) => 3.0 + dropped,
        (false, false) => 2.0 + dropped,
    }
}

/// Width of a node's input plus half the width of what building it stores, because callers count the input twice: standardised
/// features and, with torch's operations, the rows and weights of hashed IDs.
fn input_width(embedding: i64, input: &InputConfig, fused: bool) -> f64 {
    let standardised = if input.node_scaling.is_some() { input.node_features() as f64 } else { 0.0 };
    let hashed = match &input.id_hash {
        // Two tensors of rows, two of 64-bit indices, the weights.
        Some(hash) if !fused => (hash.probes * (2 * embedding + 5)) as f64,
        _ => 0.0,
    };
    input.columns(embedding) as f64 + (standardised + hashed) / 2.0
}

/// Memory of a fused layer in multiples of its width: stored for the backward, and alive while its backward runs. A layer stores
/// attention's values, the norm's input if it has a norm, and the output; the backward adds two gradients. With checkpointing it
/// stores only the output, and recomputed values, the norm's input and one byte per element are alive beside the gradients.
fn fused_layer(norm: bool, checkpointing: bool) -> (f64, f64) {
    match (checkpointing, norm) {
        (true, _) => (1.0, 4.25),
        (false, true) => (3.0, 5.0),
        (false, false) => (2.0, 4.0),
    }
}

/// Larger of two peaks: when the loss is computed, and when some layer's backward runs.
fn fused_vgae_activations(config: &VgaeConfig, circumstances: &Circumstances) -> Linear {
    let widths = vgae_widths(config);
    let (latent, ids) = (config.latent as f64, config.vocabulary_size as f64);
    let (kept, alive) = fused_layer(true, circumstances.checkpointing);
    let latents = 10.0 * latent;
    let decoders = 2.0 * (1.0 + 2.0) * latent + 4.0 * config.input.node_features() as f64;
    let at_loss = kept * widths.iter().sum::<f64>() + latents + decoders + 5.0 * ids;
    let encoder = config.encoder_widths().len();
    let at_layer = (0..widths.len()).map(|layer| {
        let before = kept * widths[..layer].iter().sum::<f64>();
        before + alive * widths[layer] + if layer < encoder { 0.0 } else { latents }
    });
    let values = 2.0 * input_width(config.embedding, &config.input, true) + at_layer.fold(at_loss, f64::max);
    let heads = config.heads as f64 + (widths.len() as f64 - 1.0) * 4.0 + 1.0;
    with_edges(values, heads, 0.0, 0.0, circumstances)
}

/// Peak while the last layer's backward runs. Pooling produces the gradients of all layers at once or, with checkpointing, one
/// at a time.
fn fused_gat_activations(config: &GatConfig, circumstances: &Circumstances) -> Linear {
    let width = (config.hidden * config.heads) as f64;
    let layers = config.layers as f64;
    let (kept, alive) = fused_layer(false, circumstances.checkpointing);
    let pooled = if circumstances.checkpointing { 0.0 } else { layers - 1.0 };
    let head = 4.0 * width * layers * config.fc_layers as f64 / circumstances.nodes_per_graph.max(1.0);
    let values = 2.0 * input_width(config.embedding, &config.input, true)
        + (kept * (layers - 1.0) + pooled + alive) * width
        + head;
    with_edges(values, config.heads as f64 * layers, 0.0, 0.0, circumstances)
}

fn vgae_activations(config: &VgaeConfig, circumstances: &Circumstances) -> Linear {
    let widths = vgae_widths(config);
    let (latent, ids) = (config.latent as f64, config.vocabulary_size as f64);
    let kept = kept_per_width(true, config.dropout, circumstances.checkpointing);
    let hidden: f64 = widths.iter().map(|width| kept * width).sum();
    let widest = widths.iter().copied().fold(0.0, f64::max);
    let input = 2.0 * input_width(config.embedding, &config.input, false);
    let latents = 10.0 * latent;
    let decoders = 2.0 * (1.0 + 2.0) * latent + 4.0 * config.input.node_features() as f64;
    // Two logit tensors and a log-softmax; at the start of the backward, two gradients of that size on top.
    let (logits, transient_logits) = (3.0 * ids, 2.0 * ids);
    // A recomputed layer is briefly in memory as a whole, with the gradients that flow through it.
    let recomputed = if circumstances.checkpointing { 6.0 } else { 2.0 };
    let transient = transient_logits.max(recomputed * widest);
    let heads = config.heads as f64 + (widths.len() as f64 - 1.0) * 4.0 + 1.0;
    let values = input + hidden + latents + decoders + logits + transient;
    with_edges(values, heads, widths.iter().sum(), widest, circumstances)
}

fn gat_activations(config: &GatConfig, circumstances: &Circumstances) -> Linear {
    let width = (config.hidden * config.heads) as f64;
    let layers = config.layers as f64;
    let kept = kept_per_width(false, config.dropout, circumstances.checkpointing);
    let head = 4.0 * width * layers * config.fc_layers as f64 / circumstances.nodes_per_graph.max(1.0);
    let recomputed = if circumstances.checkpointing { 4.0 } else { 3.0 };
    let input = 2.0 * input_width(config.embedding, &config.input, false);
    let values = input + (kept * layers + recomputed) * width + head;
    with_edges(values, config.heads as f64 * layers, width * layers, width, circumstances)
}

/// A layer stores its sums, the values before and after each of up to two normalisations, and the input of each linear layer; the
/// backward adds the gradients of one layer. Where sums over neighbours are composed of torch's operations, each edge has a row.
fn graph_activations(config: &GnnConfig, circumstances: &Circumstances) -> Linear {
    if let Some(space) = &config.space {
        return space_activations(config, space);
    }
    let (width, layers) = (config.width() as f64, config.layers as f64);
    let mut stored = if config.kind == GnnKind::Gin { 6.0 } else { 5.0 };
    let nodes_per_graph = circumstances.nodes_per_graph.max(1.0);
    let head = 4.0 * width * layers / nodes_per_row(config.level, nodes_per_graph);
    let mut of_virtual_nodes = 0.0;
    if config.virtual_node {
        // The input with the rows of the virtual nodes.
        stored += 1.0;
        // Of each graph and layer: the sum, and the values before and after the normalisations, the first of which is twice as wide.
        of_virtual_nodes = 7.0 * width * layers / nodes_per_graph;
    }
    let values = 3.0 * config.node_features as f64 + (stored * layers + 4.0) * width + head + of_virtual_nodes;
    let widest = width.max(config.node_features as f64);
    let per_edge = match (circumstances.fused, config.kind) {
        (_, GnnKind::Gat) => {
            return with_edges(values, config.heads as f64 * layers, width * layers, width, circumstances);
        }
        (_, GnnKind::Mlp) => 0.0,
        (true, _) => 1.0,
        (false, _) => 2.0 * widest,
    };
    Linear { fixed: 0.0, per_node: F32 * values, per_edge: F32 * per_edge }
}

/// Each interaction stores for a pair the filters of a PaiNN, or the layers of a SchNet's filter network; for a node scalars, vectors and their
/// products. With forces, the first backward keeps as much again for the second. Pairs are counted as edges.
fn space_activations(config: &GnnConfig, space: &SpaceConfig) -> Linear {
    if let Some(irreps) = &space.irreps {
        return irreps_activations(config, space, irreps);
    }
    let [of_pair, of_node] = if config.kind == GnnKind::PaiNN { [3.0, 24.0] } else { [5.0, 8.0] };
    let passes = if space.forces { 3.0 } else { 1.0 };
    let width = passes * F32 * (config.width() * config.layers) as f64;
    let basis = passes * F32 * 6.0 * space.radial_functions as f64;
    Linear { fixed: 0.0, per_node: of_node * width, per_edge: of_pair * width + basis }
}

/// Each layer stores for a line, which two pairs share, the last radial features; the backward of a layer has gradients of those and of the sending
/// nodes' rows for each pair. A node's rows are stored before and after the maps, the sums and the gate. With forces, the radial networks'
/// activations are stored, too, and the second derivative has copies of each pair.
fn irreps_activations(config: &GnnConfig, space: &SpaceConfig, irreps: &IrrepsConfig) -> Linear {
    const HARMONICS: f64 = 9.0;
    let (layers, columns) = (config.layers as f64, irreps.irreps.columns() as f64);
    let (radial, inputs) = (irreps.radial_hidden as f64 + 1.0, space.radial_functions as f64);
    let (stored, copies, passes) = if space.forces { (10.0, 3.0, 3.0) } else { (1.0, 1.0, 1.0) };
    let of_line = stored * layers * radial + passes * (2.0 * inputs + 2.0 * HARMONICS);
    let of_pair = copies * (2.0 * radial + columns + 2.0 * HARMONICS) + 12.0;
    let of_node = passes * 10.0 * layers * columns;
    Linear { fixed: 0.0, per_node: F32 * of_node, per_edge: F32 * (of_line / 2.0 + of_pair) }
}

/// The encoder's, and of each node the latent and the decoded features; of each edge, if edges are decoded, the drawn pair, its indices, and the
/// rows and products of both.
fn graph_vgae_activations(config: &GraphVgaeConfig, circumstances: &Circumstances) -> Linear {
    let encoder = graph_activations(&config.encoder, circumstances);
    let (latent, columns) = (config.latent() as f64, config.encoder.node_features as f64);
    let decoder = 5.0 * latent + 2.0 * config.encoder.width() as f64 + 5.0 * columns;
    let of_edges = if config.decodes_edges { 6.0 * latent + 40.0 } else { 0.0 };
    let (per_node, per_edge) = (encoder.per_node + F32 * decoder, encoder.per_edge + F32 * of_edges);
    Linear { fixed: 0.0, per_node, per_edge }
}

/// Values that GATv2 adds per edge: the scaled features, and each layer's projection of them, as wide as its output.
struct EdgeTerms {
    features: f64,
    widths: Vec<f64>,
}

impl EdgeTerms {
    /// Values per edge at the peak of a step. The gradient of a layer's term coexists with the terms of the layers before it; with
    /// checkpointing, each recomputed term coexists only with its own gradient.
    fn in_step(&self, checkpointing: bool) -> f64 {
        let sums = self.widths.iter().scan(0.0, |sum, width| {
            *sum += width;
            Some(*sum + width)
        });
        self.features + if checkpointing { 2.0 * self.widest() } else { sums.fold(0.0, f64::max) }
    }

    /// Values per edge at the peak of a forward without a backward.
    fn in_forward(&self) -> f64 {
        self.features + self.widest()
    }

    fn widest(&self) -> f64 {
        self.widths.iter().copied().fold(0.0, f64::max)
    }
}

/// Edge terms of GATv2; `None` for other models. A VGAE's encoder and decoder each scale the features, and its last layer outputs
/// the node features.
fn edge_terms(architecture: &Architecture) -> Option<EdgeTerms> {
    let (scalings, widths) = match architecture {
        Architecture::Vgae(config) => {
            (2, vgae_widths(config).into_iter().chain([config.input.node_features() as f64]).collect())
        }
        Architecture::Gat(config) => (1, vec![(config.hidden * config.heads) as f64; config.layers as usize]),
        Architecture::Graph(_) | Architecture::Nodes(_) | Architecture::GraphVgae(_) | Architecture::Pretraining(_) => {
            (0, Vec::new())
        }
    };
    let features = (scalings * EDGE_FEATURES) as f64;
    architecture.reads_edge_features().then_some(EdgeTerms { features, widths })
}

/// Adds what attention stores per edge: on the CPU, where it is fused, one weight per head; on CUDA, composed of torch's
/// operations, also the source's values, and temporaries of both.
fn with_edges(values: f64, heads: f64, widths: f64, widest: f64, circumstances: &Circumstances) -> Linear {
    let per_edge = match (circumstances.cuda, circumstances.checkpointing) {
        (false, false) => heads + 1.0,
        (false, true) => heads / 2.0 + 1.0,
        (true, false) => widths + 8.0 * heads + 2.0 * widest,
        (true, true) => 3.0 * widest + 8.0 * heads,
    };
    Linear { fixed: 0.0, per_node: F32 * values, per_edge: F32 * per_edge }
}
