//! Networks that a plan assumes: those of a training without data, and teachers of the presets where none is trained yet.

use super::StageError;
use super::{graphs, setup, teacher, training};
use crate::config::{self, Config, Convolution, ModelKind, RadialBasisChoice, Sources};
use crate::graph::{CarProfile, EdgeScaling, FeatureSet, Level, NodeScaling};
use crate::nn::sgmp::PathConfig;
use crate::nn::{
    Architecture, GatConfig, GnnConfig, GnnKind, InputConfig, NodeGnnConfig, NodeGnnKind, RadialBasis, SpaceConfig,
    TargetScale, VgaeConfig,
};

/// Number of CAN IDs assumed without a dataset.
const ASSUMED_IDS: i64 = 256;
/// Node features and outputs of graph networks assumed without a dataset.
const ASSUMED_FEATURES: i64 = 16;
const ASSUMED_OUTPUTS: i64 = 2;
/// Kinds of nodes of networks in space: the elements.
const ASSUMED_KINDS: i64 = 101;
/// Neighbours of a node, by which sums of representations are scaled: no memory depends on it.
const ASSUMED_NEIGHBOURS: f64 = 12.0;

/// The configured model of the presets `names`.
fn preset(names: [&str; 2], one_graph: bool) -> Result<config::ModelConfig, StageError> {
    let presets = names.map(str::to_owned).to_vec();
    let preset = config::load(&Sources { presets, one_graph, ..Sources::default() });
    Ok(preset.map_err(|error| StageError::Input(error.to_string()))?.config.model)
}

/// The teacher's networks: the one given by path, else that of the presets, and the further ones; none without distillation.
///
/// # Errors
/// A model that cannot be read.
pub fn teachers(config: &Config) -> Result<Vec<Architecture>, StageError> {
    if !config.distillation.use_kd {
        return Ok(Vec::new());
    }
    let first = match &config.distillation.teacher_path {
        Some(path) => teacher::open(path)?.architecture,
        None => {
            let mut teacher = config.clone();
            teacher.model = preset([config.model.model.as_str(), "teacher"], false)?;
            network(&teacher)?
        }
    };
    let further = config.distillation.more_teachers.iter().flat_map(|paths| &paths.0);
    let further = further.map(|path| Ok(teacher::open(path)?.architecture));
    std::iter::once(Ok(first)).chain(further).collect()
}

/// The teacher that the presets have for a student with data, of the same kind of network.
///
/// # Errors
/// A student whose presets have no teacher.
pub fn teacher_of(config: &Config, student: &Architecture, edge_features: i64) -> Result<Architecture, StageError> {
    let model = match student {
        // What `kdgat train` names as the command for a missing teacher.
        Architecture::Graph(config) if config.kind.is_in_space() => preset(["painn", "teacher"], false)?,
        Architecture::Graph(config) if config.kind == GnnKind::Sgmp => preset(["sgmp", "teacher"], false)?,
        Architecture::Graph(_) => preset(["gin", "teacher"], false)?,
        _ => preset([config.model.model.as_str(), "teacher"], false)?,
    };
    let hidden = model.hidden.first().copied().unwrap_or(0) as i64;
    let layers = model.layers as i64;
    Ok(match student {
        Architecture::Graph(student) => Architecture::Graph(GnnConfig {
            kind: match student.kind {
                GnnKind::SchNet | GnnKind::PaiNN | GnnKind::Irreps => GnnKind::PaiNN,
                GnnKind::Sgmp => GnnKind::Sgmp,
                _ => GnnKind::Gin,
            },
            edge_features: if student.kind.is_in_space() || student.kind == GnnKind::Sgmp { 0 } else { edge_features },
            hidden,
            layers,
            heads: 1,
            dropout: model.dropout,
            embedding_columns: 0,
            ..student.clone()
        }),
        Architecture::GraphVgae(student) => {
            let mut teacher = student.clone();
            (teacher.encoder.hidden, teacher.encoder.layers) = (hidden, layers);
            Architecture::GraphVgae(teacher)
        }
        _ => {
            let mut teacher = config.clone();
            teacher.model = model;
            network(&teacher)?
        }
    })
}

/// The teacher of a network for nodes: the one given by path, else that of the presets for one large graph.
///
/// # Errors
/// A model that cannot be read.
pub fn node_teacher(config: &Config, student: &NodeGnnConfig) -> Result<NodeGnnConfig, StageError> {
    if let Some(path) = &config.distillation.teacher_path
        && let Architecture::Nodes(found) = teacher::open(path)?.architecture
    {
        return Ok(found);
    }
    let model = preset(["sage", "teacher"], true)?;
    let hidden = model.hidden.first().copied().unwrap_or(0) as i64;
    Ok(NodeGnnConfig::new(NodeGnnKind::Sage, [student.node_features, hidden, model.layers as i64, student.outputs]))
}

/// The node input of the configured model, with an identity scaling: the scaling does not affect memory.
fn assumed_input(config: &Config) -> InputConfig {
    let features = setup::feature_set(config);
    let node_scaling = (features == FeatureSet::Rich).then(|| NodeScaling::identity(features));
    let profile = features.needs_history().then(CarProfile::default);
    InputConfig { node_scaling, profile, id_hash: training::id_hash(config) }
}

/// The error for the agent of `kdgat fusion`.
pub fn no_plan_of_agents() -> StageError {
    let text = "cannot plan for the agent of `kdgat fusion`, which trains on states, not graphs; use --preset vgae,student or gat,student";
    StageError::Input(text.into())
}

/// The configured model with assumed sizes of the data.
///
/// # Errors
/// A model that has no graphs to plan for.
pub fn network(config: &Config) -> Result<Architecture, StageError> {
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
        ModelKind::Gin => assumed_graph_network(config, GnnKind::Gin)?,
        ModelKind::Gcn => assumed_graph_network(config, GnnKind::Gcn)?,
        ModelKind::Sage => assumed_graph_network(config, GnnKind::Sage)?,
        ModelKind::Mlp => assumed_graph_network(config, GnnKind::Mlp)?,
        ModelKind::SchNet => assumed_graph_network(config, GnnKind::SchNet)?,
        ModelKind::PaiNN => assumed_graph_network(config, GnnKind::PaiNN)?,
        ModelKind::Irreps => assumed_graph_network(config, GnnKind::Irreps)?,
        ModelKind::Sgmp => assumed_graph_network(config, GnnKind::Sgmp)?,
        ModelKind::Dqn => return Err(no_plan_of_agents()),
        ModelKind::Appnp => {
            let text = "appnp is for the nodes of one large graph (--data, or --nodes with --columns); for many graphs use --preset gin,student \
                        or another model";
            return Err(StageError::Input(text.into()));
        }
    })
}

/// The configured graph network, with assumed numbers of features and outputs; networks in space have one output of a graph and, if forces have
/// a weight, forces.
fn assumed_graph_network(config: &Config, kind: GnnKind) -> Result<Architecture, StageError> {
    let options = &config.graphs;
    let irreps =
        (kind == GnnKind::Irreps).then(|| graphs::configured_irreps(config, ASSUMED_NEIGHBOURS)).transpose()?;
    let space = kind.is_in_space().then_some(SpaceConfig {
        cutoff: options.cutoff,
        kinds: ASSUMED_KINDS,
        features: false,
        basis: match options.radial_basis {
            RadialBasisChoice::Gaussian => RadialBasis::Gaussian,
            RadialBasisChoice::Bessel => RadialBasis::Bessel,
        },
        radial_functions: options.radial_functions as i64,
        forces: options.force_weight > 0.0,
        irreps,
    });
    let gaussians = options.path_gaussians[..].try_into().unwrap_or(PathConfig::GAUSSIANS);
    Ok(Architecture::Graph(GnnConfig {
        kind,
        node_features: if space.is_some() { 0 } else { ASSUMED_FEATURES },
        edge_features: 0,
        hidden: config.model.hidden.first().copied().unwrap_or(0) as i64,
        layers: config.model.layers as i64,
        heads: 1,
        outputs: if space.is_some() { 1 } else { ASSUMED_OUTPUTS },
        embedding_columns: 0,
        level: Level::Graph,
        pooling: training::pooling(config),
        virtual_node: options.virtual_node,
        dropout: config.model.dropout,
        target_scales: if space.is_some() { vec![TargetScale::of_units()] } else { Vec::new() },
        space,
        paths: (kind == GnnKind::Sgmp).then_some(PathConfig { cutoff: options.cutoff, gaussians }),
        input: InputConfig::default(),
    }))
}
