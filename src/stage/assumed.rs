//! Networks that a plan assumes: those of a training without data, and teachers of the presets where none is trained yet.

use super::StageError;
use super::autoencoder::vgae_of;
use super::classifier::gat_of;
use super::{graphs, setup, teacher, training};
use crate::config::{self, Config, Convolution, ModelKind, RadialBasisChoice, Sources};
use crate::graph::{CarProfile, EdgeScaling, FeatureSet, Level, NodeScaling, OfPaths};
use crate::nn::sgmp::PathConfig;
use crate::nn::{
    Architecture, GnnConfig, GnnKind, InputConfig, NodeGnnConfig, NodeGnnKind, RadialBasis, SpaceConfig, TargetScale,
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

/// The configuration with the model of the presets `names`.
fn with_preset(config: &Config, names: [&str; 2], one_graph: bool) -> Result<Config, StageError> {
    let presets = names.map(str::to_owned).to_vec();
    let preset = config::load(&Sources { presets, one_graph, ..Sources::default() });
    let preset = preset.map_err(|error| StageError::Input(error.to_string()))?.config;
    let mut found = Config { model: preset.model, ..config.clone() };
    // The widths of representations.
    found.graphs.irreps = preset.graphs.irreps;
    Ok(found)
}

/// The model whose preset has the teacher of a graph network: that of the command which `kdgat train` names for a missing one.
pub fn graph_teacher(model: ModelKind) -> ModelKind {
    match model {
        ModelKind::Irreps | ModelKind::Sgmp => model,
        model if model.is_in_space() => ModelKind::PaiNN,
        _ => ModelKind::Gin,
    }
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
            let model = match config.model.model {
                // Without data, these are networks for CAN windows.
                ModelKind::Vgae | ModelKind::Gat => config.model.model,
                model => graph_teacher(model),
            };
            network(&with_preset(config, [model.as_str(), "teacher"], false)?)?
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
        Architecture::Graph(_) => graph_teacher(config.model.model),
        _ => config.model.model,
    };
    let teacher = with_preset(config, [model.as_str(), "teacher"], false)?;
    let hidden = teacher.model.hidden.first().copied().unwrap_or(0) as i64;
    let layers = teacher.model.layers as i64;
    Ok(match (student, graphs::kind_of(model)) {
        (Architecture::Graph(student), Some(kind)) => {
            let irreps = student.space.as_ref().and_then(|space| space.irreps.as_ref());
            let irreps = irreps
                .map(|irreps| {
                    graphs::configured_irreps(&teacher, irreps.neighbours, irreps.neighbours, OfPaths::default())
                })
                .transpose()?;
            Architecture::Graph(GnnConfig {
                kind,
                edge_features: if kind == GnnKind::Gin { edge_features } else { 0 },
                hidden: irreps.as_ref().map_or(hidden, |irreps| irreps.irreps.count() as i64),
                layers,
                heads: 1,
                dropout: teacher.model.dropout,
                embedding_columns: 0,
                space: student.space.clone().map(|space| SpaceConfig { irreps, ..space }),
                ..student.clone()
            })
        }
        (Architecture::GraphVgae(student), _) => {
            let mut teacher = student.clone();
            (teacher.encoder.hidden, teacher.encoder.layers) = (hidden, layers);
            Architecture::GraphVgae(teacher)
        }
        _ => network(&teacher)?,
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
    let model = with_preset(config, ["sage", "teacher"], true)?.model;
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
    let edge_scaling = (config.model.conv == Convolution::GatV2).then(EdgeScaling::identity);
    Ok(match (config.model.model, graphs::kind_of(config.model.model)) {
        (ModelKind::Vgae, _) => Architecture::Vgae(vgae_of(config, ASSUMED_IDS, edge_scaling, assumed_input(config))),
        (ModelKind::Gat, _) => Architecture::Gat(gat_of(config, ASSUMED_IDS, edge_scaling, assumed_input(config))),
        (ModelKind::Dqn, _) => return Err(no_plan_of_agents()),
        (_, Some(kind)) => assumed_graph_network(config, kind)?,
        (_, None) => {
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
    let irreps = (kind == GnnKind::Irreps)
        .then(|| graphs::configured_irreps(config, ASSUMED_NEIGHBOURS, ASSUMED_NEIGHBOURS, OfPaths::default()))
        .transpose()?;
    let width = config.model.hidden.first().copied().unwrap_or(0);
    let hidden = irreps.as_ref().map_or(width, |irreps| irreps.irreps.count()) as i64;
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
        hidden,
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
