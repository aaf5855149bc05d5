//! `kdgat memory plan`: predicts the memory that a configuration's training needs.

use tch::Device;

use super::autoencoder::vgae_config;
use super::classifier::gat_config;
use super::setup::{self, Data};
use super::sizing::waiting_batches;
use super::{StageError, teacher, training};
use crate::config::{self, Config, Convolution, DataKind, DeviceChoice, ModelKind, Sources, Stage};
use crate::graph::{CarProfile, EdgeScaling, FeatureSet, Level, NodeScaling, Split};
use crate::memory::budget::WorstBatches;
use crate::memory::limits::{Limit, gpu_limit, host_limit};
use crate::memory_plan::plan::{Question, recommend};
use crate::nn::{Architecture, GatConfig, GnnConfig, GnnKind, InputConfig, NodeGnnConfig, NodeGnnKind, VgaeConfig};
use crate::torch::device;

/// Number of CAN IDs assumed without a dataset.
const ASSUMED_IDS: i64 = 256;
/// Node features and outputs of graph networks assumed without a dataset.
const ASSUMED_FEATURES: i64 = 16;
const ASSUMED_OUTPUTS: i64 = 2;

/// The size of a dataset that need not exist.
#[derive(Debug, Clone, Copy)]
pub struct PlannedSize {
    pub graphs: usize,
    pub nodes_per_graph: usize,
    pub edges_per_graph: usize,
}

/// Describes the memory that training with this configuration needs, and recommended settings, for the configured dataset or
/// for `size`.
pub fn plan_memory(config: &Config, size: Option<PlannedSize>) -> Result<String, StageError> {
    let stage = match config.model.model {
        _ if size.is_none() && config.data_kind == DataKind::OneGraph => return super::plan_nodes(config, None),
        _ if size.is_none() && config.data_kind == DataKind::Graphs => return super::plan_graphs(config),
        ModelKind::Vgae => Stage::Autoencoder,
        ModelKind::Gat => Stage::Classifier,
        ModelKind::Dqn => return Err(no_plan()),
        // The error names what --data must be.
        ModelKind::Gin
        | ModelKind::Gcn
        | ModelKind::Sage
        | ModelKind::Mlp
        | ModelKind::SchNet
        | ModelKind::PaiNN
        | ModelKind::Irreps
        | ModelKind::Sgmp
            if size.is_none() =>
        {
            return super::plan_graphs(config);
        }
        ModelKind::SchNet | ModelKind::PaiNN | ModelKind::Irreps | ModelKind::Sgmp => return Err(no_plan_of_graphs()),
        ModelKind::Gin | ModelKind::Gcn | ModelKind::Sage | ModelKind::Mlp => Stage::Train,
        ModelKind::Appnp => return Err(no_plan_of_graphs()),
    };
    let Planned { student, teachers, graphs, validation_nodes, on_gpu } = match size {
        Some(size) => Planned {
            student: assumed(config)?,
            teachers: assumed_teachers(config)?,
            graphs: TrainingGraphs::alike(size),
            validation_nodes: 0.0,
            on_gpu: matches!(config.training.device, DeviceChoice::Cuda(_)) || config.memory.gpu_memory_limit.is_some(),
        },
        None => of_dataset(config, stage)?,
    };
    let wanted = super::training::batch_graphs(config, graphs.count).min(graphs.count).max(1);
    let limit = device_limit(config, on_gpu);
    let precision = config.training.precision.to_string();
    let question = Question {
        student: &student,
        teachers: &teachers,
        worst: &graphs.worst,
        compared: teacher::compared_layers(config),
        // By default steps are not captured where that would make batches smaller.
        records_steps: config.training.cuda_graphs == Some(true),
        total_nodes: graphs.nodes * config::views(config, stage).max(1) as f64 + validation_nodes,
        wanted,
        target_bytes: config.memory.safety_factor * limit.bytes as f64,
        cuda: on_gpu,
        fused: super::training::computes_fused(config, on_gpu),
        precision: &precision,
        burst: config.distillation.teacher_burst,
        waiting_batches: waiting_batches(config, on_gpu),
        nodes_per_graph: graphs.nodes / graphs.count.max(1) as f64,
    };
    Ok(recommend(&question)?.describe(&question))
}

/// The memory limit of the training device.
pub(super) fn device_limit(config: &Config, on_gpu: bool) -> Limit {
    if !on_gpu {
        return host_limit(config.memory.memory_limit.map(|size| size.0));
    }
    let gpu = match config.training.device {
        DeviceChoice::Cuda(index) => Device::Cuda(index),
        DeviceChoice::Auto | DeviceChoice::Cpu => Device::Cuda(0),
    };
    let free = device::device_memory(gpu).ok().map(|memory| memory.free_bytes);
    gpu_limit(config.memory.gpu_memory_limit.map(|size| size.0), free)
}

/// The inputs of a plan.
struct Planned {
    student: Architecture,
    /// The networks of the teacher.
    teachers: Vec<Architecture>,
    graphs: TrainingGraphs,
    /// Nodes of all validation graphs.
    validation_nodes: f64,
    on_gpu: bool,
}

/// The sizes of the training graphs.
struct TrainingGraphs {
    count: usize,
    /// Nodes of all training graphs.
    nodes: f64,
    worst: WorstBatches,
}

impl TrainingGraphs {
    fn new(sizes: &[(u64, u64)]) -> Self {
        let nodes = sizes.iter().map(|(nodes, _)| *nodes as f64).sum();
        Self { count: sizes.len(), nodes, worst: WorstBatches::new(sizes.iter().copied()) }
    }

    /// Graphs of one size. Their number may exceed memory, because no list of them is made.
    fn alike(size: PlannedSize) -> Self {
        let PlannedSize { graphs, nodes_per_graph, edges_per_graph } = size;
        let (nodes, edges) = (nodes_per_graph as f64, edges_per_graph as f64);
        // Attention adds a self-loop to each node.
        let worst = WorstBatches::uniform(nodes, edges + nodes, graphs);
        Self { count: graphs, nodes: graphs as f64 * nodes, worst }
    }
}

fn of_dataset(config: &Config, stage: Stage) -> Result<Planned, StageError> {
    let data: Data = setup::open(config)?;
    let student = match stage {
        Stage::Autoencoder => Architecture::Vgae(vgae_config(config, &data)?),
        Stage::Classifier | Stage::Curriculum => Architecture::Gat(gat_config(config, &data)?),
        Stage::Fusion => return Err(no_plan()),
        // Its datasets have a plan of their own.
        Stage::Train | Stage::Pretrain => return Err(no_plan_of_graphs()),
    };
    // The error for a missing teacher names the command that trains it.
    let teachers = teacher::find(config, stage, &data)?.map(|found| found.architectures()).unwrap_or_default();
    let attack = (stage == Stage::Autoencoder).then_some(false);
    let size_of = |graph: &u64| {
        let view = data.store.graph(*graph);
        (view.num_nodes() as u64, (view.num_edges() + view.num_nodes()) as u64)
    };
    let sizes = |split| data.store.select(split, attack).iter().map(size_of).collect::<Vec<_>>();
    let validation_nodes = sizes(Split::Validation).iter().map(|(nodes, _)| *nodes as f64).sum();
    let graphs = TrainingGraphs::new(&sizes(Split::Train));
    Ok(Planned { student, teachers, graphs, validation_nodes, on_gpu: data.device.is_cuda() })
}

/// The teacher given by path, else the one of the presets, and the further ones.
fn assumed_teachers(config: &Config) -> Result<Vec<Architecture>, StageError> {
    if !config.distillation.use_kd {
        return Ok(Vec::new());
    }
    let first = match &config.distillation.teacher_path {
        Some(path) => teacher::open(path)?.architecture,
        None => preset_teacher(config)?,
    };
    let further = config.distillation.more_teachers.iter().flat_map(|paths| &paths.0);
    let further = further.map(|path| Ok(teacher::open(path)?.architecture));
    std::iter::once(Ok(first)).chain(further).collect()
}

/// The teacher of the presets.
fn preset_teacher(config: &Config) -> Result<Architecture, StageError> {
    let presets = vec![config.model.model.as_str().to_owned(), "teacher".to_owned()];
    let preset = config::load(&Sources { presets, ..Sources::default() });
    let preset = preset.map_err(|error| StageError::Input(error.to_string()))?.config;
    let mut teacher = config.clone();
    teacher.model = preset.model;
    assumed(&teacher)
}

/// The teacher of a network for nodes: the one given by path, else that of the presets for one large graph.
pub(super) fn assumed_node_teacher(config: &Config, student: &NodeGnnConfig) -> Result<NodeGnnConfig, StageError> {
    if let Some(path) = &config.distillation.teacher_path
        && let Architecture::Nodes(found) = teacher::open(path)?.architecture
    {
        return Ok(found);
    }
    let presets = vec!["sage".to_owned(), "teacher".to_owned()];
    let preset = config::load(&Sources { presets, one_graph: true, ..Sources::default() });
    let model = preset.map_err(|error| StageError::Input(error.to_string()))?.config.model;
    let hidden = model.hidden.first().copied().unwrap_or(0) as i64;
    Ok(NodeGnnConfig::new(NodeGnnKind::Sage, [student.node_features, hidden, model.layers as i64, student.outputs]))
}

/// The teacher of a graph network that the presets have, for the student's data with so many features of an edge.
pub(super) fn assumed_graph_teacher(student: &GnnConfig, edge_features: i64) -> Result<GnnConfig, StageError> {
    let presets = vec!["gin".to_owned(), "teacher".to_owned()];
    let preset = config::load(&Sources { presets, ..Sources::default() });
    let model = preset.map_err(|error| StageError::Input(error.to_string()))?.config.model;
    Ok(GnnConfig {
        kind: GnnKind::Gin,
        edge_features,
        hidden: model.hidden.first().copied().unwrap_or(0) as i64,
        layers: model.layers as i64,
        heads: 1,
        dropout: model.dropout,
        embedding_columns: 0,
        ..student.clone()
    })
}

/// The node input of the configured model, with an identity scaling: the scaling does not affect memory.
fn assumed_input(config: &Config) -> InputConfig {
    let features = setup::feature_set(config);
    let node_scaling = (features == FeatureSet::Rich).then(|| NodeScaling::identity(features));
    let profile = features.needs_history().then(CarProfile::default);
    InputConfig { node_scaling, profile, id_hash: training::id_hash(config) }
}

fn no_plan() -> StageError {
    let text = "cannot plan for the agent of `kdgat fusion`, which trains on states, not graphs; use --preset vgae,student or gat,student";
    StageError::Input(text.into())
}

fn no_plan_of_graphs() -> StageError {
    let text = "appnp is for the nodes of one large graph (--data, or --nodes with --columns), and schnet, painn, irreps and sgmp are for graphs with \
                positions, whose pairs are counted in the data (--data); for many graphs use --preset gin,student or another model";
    StageError::Input(text.into())
}

/// The configured model with an assumed number of CAN IDs.
fn assumed(config: &Config) -> Result<Architecture, StageError> {
    let model = &config.model;
    let edge_scaling = (model.conv == Convolution::GatV2).then(EdgeScaling::identity);
    Ok(match model.model {
        ModelKind::Vgae => Architecture::Vgae(VgaeConfig {
            hidden: model.hidden.iter().map(|&width| width as i64).collect(),
            latent: model.latent as i64,
            heads: model.heads as i64,
            embedding: model.embedding as i64,
            vocabulary_size: ASSUMED_IDS,
            dropout: model.dropout,
            edge_scaling,
            input: assumed_input(config),
        }),
        ModelKind::Gat => Architecture::Gat(GatConfig {
            hidden: model.hidden.first().copied().unwrap_or(0) as i64,
            layers: model.layers as i64,
            heads: model.heads as i64,
            embedding: model.embedding as i64,
            fc_layers: model.fc_layers as i64,
            vocabulary_size: ASSUMED_IDS,
            dropout: model.dropout,
            edge_scaling,
            input: assumed_input(config),
        }),
        ModelKind::Gin => assumed_graph_network(config, GnnKind::Gin),
        ModelKind::Gcn => assumed_graph_network(config, GnnKind::Gcn),
        ModelKind::Sage => assumed_graph_network(config, GnnKind::Sage),
        ModelKind::Mlp => assumed_graph_network(config, GnnKind::Mlp),
        ModelKind::Dqn => return Err(no_plan()),
        ModelKind::Appnp | ModelKind::SchNet | ModelKind::PaiNN | ModelKind::Irreps | ModelKind::Sgmp => {
            return Err(no_plan_of_graphs());
        }
    })
}

/// The configured graph network, with assumed numbers of features and outputs.
fn assumed_graph_network(config: &Config, kind: GnnKind) -> Architecture {
    Architecture::Graph(GnnConfig {
        kind,
        node_features: ASSUMED_FEATURES,
        edge_features: 0,
        hidden: config.model.hidden.first().copied().unwrap_or(0) as i64,
        layers: config.model.layers as i64,
        heads: 1,
        outputs: ASSUMED_OUTPUTS,
        embedding_columns: 0,
        level: Level::Graph,
        pooling: training::pooling(config),
        virtual_node: config.graphs.virtual_node,
        dropout: config.model.dropout,
        target_scales: Vec::new(),
        space: None,
        paths: None,
        input: InputConfig::default(),
    })
}
