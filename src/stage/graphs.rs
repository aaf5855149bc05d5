//! Trains a network on graphs of any kind: a teacher alone, or a student that learns from a teacher or from a file with its outputs.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tch::Device;

use super::difficulty::{self, DifficultyModel, score_graphs};
use super::epochs::{Epochs, Graphs};
use super::run::{Prepared, Run};
use super::setup::{self, Data};
use super::workload::{NewStudent, Opened, TeacherSource, Workload};
use super::{StageError, foreign, graph_batches, graph_teacher, teacher, training};
use crate::config::{self, Config, ModelKind, PoolingChoice, RadialBasisChoice, Stage, TargetReference};
use crate::distill::TargetName;
use crate::distill::foreign::ForeignTargets;
use crate::distill::hints::{Hints, VectorHints};
use crate::distill::objective::{ForceWeights, GraphDistillation, GraphObjective, TeacherLink};
use crate::graph::dataset::{FoldOptions, GraphSplit, Kinds};
use crate::graph::{GraphSize, Level, NodeScaling, OfPaths, PairCounter, PathKind, Schema, Store, Task};
use crate::nn::irreps::{BondConfig, IrrepsConfig, PathParameters};
use crate::nn::parameters::NamedTensor;
use crate::nn::sgmp::PathConfig;
use crate::nn::{
    Architecture, FreshParameters, Gnn, GnnConfig, GnnKind, InputConfig, Pooling, RadialBasis, Scope, SpaceConfig,
    TargetScale, target_scale,
};
use crate::train::trainable::Trainable;

/// A network for a dataset of graphs that are no CAN windows.
pub struct GraphNetwork<'a> {
    config: &'a Config,
    pub data: Data,
    pub split: GraphSplit,
    /// A file with a teacher's outputs.
    pub foreign: Option<Arc<ForeignTargets>>,
    pub architecture: GnnConfig,
    /// The model whose task loss is the difficulty of a graph.
    difficulty: Option<DifficultyModel>,
}

impl<'a> GraphNetwork<'a> {
    /// Opens the configured dataset of graphs and divides it.
    ///
    /// # Errors
    /// Data that cannot be read, or a model that does not fit them.
    pub fn open(config: &'a Config) -> Result<Self, StageError> {
        let (data, split) = divided(config)?;
        let foreign = foreign::find(config, &data)?;
        let architecture = gnn_config(config, &data, &split, Head::Targets(foreign.as_deref()))?;
        Ok(Self { config, data, split, foreign, architecture, difficulty: None })
    }

    /// The training and validation graphs in batches.
    ///
    /// # Errors
    /// If a graph alone exceeds the limit of nodes and edges per batch.
    pub fn graphs(&self) -> Result<Graphs, StageError> {
        packed(self.config, &self.data, &self.split)
    }
}

/// The configured dataset of graphs and its division.
///
/// # Errors
/// Data that cannot be read, or a division that does not fit them.
pub(super) fn divided(config: &Config) -> Result<(Data, GraphSplit), StageError> {
    let data = setup::open_graphs(config)?;
    let split = GraphSplit::of(&data.store, &fold_options(config))?;
    Ok((data, split))
}

/// The training and validation graphs of a division in batches.
///
/// # Errors
/// If a graph alone exceeds the limit of nodes and edges per batch.
pub(super) fn packed(config: &Config, data: &Data, split: &GraphSplit) -> Result<Graphs, StageError> {
    let (training, validation) = (split.training.clone(), split.validation.clone());
    let graphs = Graphs { packed: true, ..Graphs::new(config, &data.store, training, validation)? };
    expect_room_for_each(&graphs)?;
    Ok(graphs)
}

impl<'a> Workload<'a> for GraphNetwork<'a> {
    type Student = GraphObjective;
    type Plan = Epochs;

    fn architecture(&self) -> Architecture {
        Architecture::Graph(self.architecture.clone())
    }

    fn opened(&self) -> Opened<'a> {
        Opened { config: self.config, stage: Stage::Train, origin: self.data.origin() }
    }

    fn find_teacher(&mut self) -> Result<TeacherSource, StageError> {
        if let Some(targets) = &self.foreign {
            foreign::worth(targets, &self.data.store, &self.split.training)?
                .iter()
                .for_each(|line| eprintln!("{line}"));
            return Ok(TeacherSource::File(Arc::clone(targets)));
        }
        let found = graph_teacher::find_for_graphs(self.config, &self.data, &self.architecture, &self.split)?;
        Ok(TeacherSource::network(found))
    }

    fn inputs(&mut self) -> Result<Map<String, Value>, StageError> {
        let mut inputs = inputs_of_split(&self.data, &self.split)?;
        if config::has_graph_curriculum(self.config) {
            let (data, foreign) = (&self.data, self.foreign.as_deref());
            self.difficulty = DifficultyModel::find(self.config, data, &self.architecture, &self.split, foreign)?;
            inputs.extend(difficulty::inputs(self.difficulty.as_ref().map(DifficultyModel::digest)));
        }
        Ok(inputs)
    }

    fn plan(&mut self) -> Result<Epochs, StageError> {
        let graphs = self.graphs()?;
        if !config::has_graph_curriculum(self.config) {
            return Ok(Epochs::of_all(self.config, graphs));
        }
        let classes = classes(&self.data.store, &graphs.training)?;
        Ok(Epochs::of_share(self.config, graphs, &classes))
    }

    fn new_student(&self, teacher: Option<&Architecture>) -> Result<NewStudent<GraphObjective>, StageError> {
        let task = schema(&self.data.store)?.task;
        new_student(self.config, self.data.device, (&self.architecture, task), teacher, self.foreign.as_deref())
    }

    fn start_teacher(&self, teacher: TeacherSource, plan: &Epochs) -> Result<TeacherLink, StageError> {
        match teacher {
            TeacherSource::File(targets) => Ok(TeacherLink::from_file(targets, training::alpha(self.config))),
            teacher => teacher::start(self.config, teacher.into_network(), &self.data, plan.teacher_use()),
        }
    }

    fn score(
        &mut self,
        plan: &mut Epochs,
        student: &mut GraphObjective,
        tensors: &[NamedTensor],
        run: &mut Run,
    ) -> Result<(), StageError> {
        match config::has_graph_curriculum(self.config) {
            true => score_graphs(plan, self.config, &self.data, self.difficulty.take(), student, tensors, run),
            false => Ok(()),
        }
    }

    fn prepare(
        &self,
        run: &mut Run,
        student: &mut GraphObjective,
        trainable: &mut Trainable,
        plan: &mut Epochs,
    ) -> Result<Prepared, StageError> {
        graph_batches::prepare(run, &self.data, self.architecture(), student, trainable, plan)
    }
}

/// Makes a student for a task, of a teacher with this architecture, of a file with a teacher's outputs, or of neither.
///
/// # Errors
/// A teacher of another kind, or too little memory.
pub(super) fn new_student(
    config: &Config,
    device: Device,
    (architecture, task): (&GnnConfig, Task),
    teacher: Option<&Architecture>,
    foreign: Option<&ForeignTargets>,
) -> Result<NewStudent<GraphObjective>, StageError> {
    let mut parameters = FreshParameters::new(config.training.seed, device);
    let model = Gnn::new(Scope::root(&mut parameters), architecture, training::attention_kernel(config))?;
    let distillation = match (teacher, foreign) {
        (Some(teacher), _) => Some(distillation(config, teacher, &mut parameters, architecture)?),
        (None, Some(targets)) => Some(foreign_distillation(config, targets, architecture)),
        (None, None) => None,
    };
    let weights = ForceWeights { energies: config.graphs.energy_weight, forces: config.graphs.force_weight };
    let student = GraphObjective::new(model, task, TeacherLink::none(), distillation).with_force_weights(weights);
    Ok(NewStudent { parameters, student })
}

/// The division of graphs, for a run's `config.json`.
pub(super) fn inputs_of_split(data: &Data, split: &GraphSplit) -> Result<Map<String, Value>, StageError> {
    let sizes = json!([split.training.len(), split.validation.len(), split.test.len()]);
    Ok(split_inputs(&split.origin, &split.test_digest(&data.store)?, ("graphs", sizes)))
}

/// The division of the data, for a run's `config.json`; `sizes` are those of its sets of graphs or nodes.
pub(super) fn split_inputs(origin: &str, test_digest: &str, (unit, sizes): (&str, Value)) -> Map<String, Value> {
    Map::from_iter([("split".to_owned(), json!({ "origin": origin, "test_digest": test_digest, unit: sizes }))])
}

/// Class of each graph; empty for a task without classes.
fn classes(store: &Store, graphs: &[u64]) -> Result<Vec<u32>, StageError> {
    if schema(store)?.task != Task::Classification {
        return Ok(Vec::new());
    }
    graphs.iter().map(|&graph| Ok(store.try_graph(graph)?.class())).collect()
}

/// Refuses a limit of nodes and edges per batch that a graph alone exceeds.
fn expect_room_for_each(graphs: &Graphs) -> Result<(), StageError> {
    let all = [graphs.training.as_slice(), &graphs.validation].concat();
    let Some((budget, (graph, GraphSize { nodes, edges }))) =
        graphs.budget.as_ref().and_then(|budget| Some((budget, budget.too_large(&all)?)))
    else {
        return Ok(());
    };
    Err(StageError::Input(format!(
        "graph {graph} (counted from 0) has {nodes} nodes and {edges} {}, more than the {} allowed for a batch; raise --batch-nodes to at \
         least {nodes} and --batch-edges to at least {edges}, or remove the graph",
        budget.edges_name(),
        budget.describe()
    )))
}

/// The configured division of the graphs.
pub(super) fn fold_options(config: &Config) -> FoldOptions {
    FoldOptions {
        file: config.graphs.folds_file.clone(),
        folds: config.graphs.folds,
        fold: config.graphs.fold,
        validation_fraction: config.data.validation_fraction,
    }
}

/// The schema of a store of graphs.
pub fn schema(store: &Store) -> Result<&Schema, StageError> {
    let missing =
        || StageError::Input(format!("{} is a store of CAN windows, not of other graphs", store.path().display()));
    store.schema().ok_or_else(missing)
}

/// The angles and dihedrals that a network takes from tables, and those of the data, if they differ; `None` for a network that fits.
pub(super) fn other_paths(network: &GnnConfig, schema: &Schema) -> Option<String> {
    let read = network.path_parameters()?;
    let of_data = schema.space.as_ref().map_or_else(OfPaths::default, |space| space.paths.clone());
    let differs = |kind: &PathKind| read.of(*kind).is_some_and(|names| of_data.of(*kind) != Some(names));
    let differs = PathKind::ALL.iter().any(differs);
    differs.then(|| format!("reads {}, and the data have {}", read.describe(), of_data.describe()))
}

/// The kind of graph network of a model; `None` for models of other data.
pub(super) fn kind_of(model: ModelKind) -> Option<GnnKind> {
    Some(match model {
        ModelKind::Gin => GnnKind::Gin,
        ModelKind::Gcn => GnnKind::Gcn,
        ModelKind::Sage => GnnKind::Sage,
        ModelKind::Gat => GnnKind::Gat,
        ModelKind::Mlp => GnnKind::Mlp,
        ModelKind::SchNet => GnnKind::SchNet,
        ModelKind::PaiNN => GnnKind::PaiNN,
        ModelKind::Irreps => GnnKind::Irreps,
        ModelKind::Sgmp => GnnKind::Sgmp,
        ModelKind::Appnp | ModelKind::Vgae | ModelKind::Dqn => return None,
    })
}

/// Refuses a network that reads edges for graphs in space of which none has any.
fn expect_edges(config: &Config, store: &Store, kind: GnnKind) -> Result<(), StageError> {
    let of_kind = matches!(kind, GnnKind::Gin | GnnKind::Gcn | GnnKind::Sage | GnnKind::Gat | GnnKind::Sgmp);
    let reads_edges = of_kind || config::has_bonds(config);
    let is_in_space = schema(store)?.space.is_some();
    match reads_edges && is_in_space && store.manifest().totals.edges == 0 {
        false => Ok(()),
        true => Err(StageError::Input(format!(
            "--data {}: the graphs have positions and no edges, which {} reads: set `cutoff` in kdgat-graphs.toml to make edges from the \
             positions, or list them in edges.csv",
            config.data.data.as_deref().unwrap_or(std::path::Path::new("")).display(),
            config.model.model.with_article()
        ))),
    }
}

/// The answers of a network's head.
#[derive(Clone, Copy)]
pub(super) enum Head<'a> {
    /// The targets of the data, and the embeddings in a file with a teacher's outputs.
    Targets(Option<&'a ForeignTargets>),
    /// So many outputs of each node, by which no target is learned.
    OfNodes(i64),
}

/// The configured network with this head.
///
/// # Errors
/// A model that does not fit the data or the head.
pub(super) fn gnn_config(
    config: &Config,
    data: &Data,
    split: &GraphSplit,
    head: Head,
) -> Result<GnnConfig, StageError> {
    let (model, schema) = (&config.model, schema(&data.store)?);
    let learns_nodes = matches!(head, Head::Targets(_)) && schema.level == Level::Node;
    if learns_nodes && config.graphs.pooling != PoolingChoice::Sum {
        return Err(StageError::Input(
            "pooling would be ignored: the targets are of nodes, whose own rows the head reads; use --pooling sum"
                .into(),
        ));
    }
    if learns_nodes && config::has_graph_curriculum(config) {
        return Err(StageError::Input(
            "a curriculum chooses graphs by a loss of theirs, and the targets are of nodes; drop --curriculum-start-share".into(),
        ));
    }
    let Some(kind) = kind_of(model.model) else {
        return Err(StageError::Input(format!(
            "{} is not for the targets of many graphs; use --preset gin,teacher or another model",
            model.model
        )));
    };
    expect_edges(config, &data.store, kind)?;
    let (outputs, level, pooling, embedding_columns) = match head {
        Head::Targets(foreign) => (
            foreign::output_names(schema).len() as i64,
            schema.level,
            training::pooling(config),
            foreign.and_then(|targets| targets.columns(TargetName::Embedding)).unwrap_or(0) as i64,
        ),
        Head::OfNodes(outputs) => (outputs, Level::Node, Pooling::Sum, 0),
    };
    let space = kind.is_in_space().then(|| space_config(config, (data, split), head)).transpose()?;
    let irreps = space.as_ref().and_then(|space| space.irreps.as_ref());
    let hidden = irreps.map_or(model.hidden.first().copied().unwrap_or(0), |irreps| irreps.irreps.count());
    Ok(GnnConfig {
        kind,
        node_features: schema.node_columns() as i64,
        edge_features: match kind {
            GnnKind::Gin if config.graphs.edge_features => schema.edge_columns() as i64,
            GnnKind::Irreps if config::has_bonds(config) && config.graphs.edge_features => schema.edge_columns() as i64,
            _ => 0,
        },
        hidden: hidden as i64,
        layers: model.layers as i64,
        heads: if kind == GnnKind::Gat { model.heads as i64 } else { 1 },
        outputs,
        embedding_columns,
        level,
        pooling,
        virtual_node: config.graphs.virtual_node,
        dropout: model.dropout,
        space,
        paths: (kind == GnnKind::Sgmp).then(|| path_config(config, schema)).transpose()?,
        target_scales: match head {
            Head::Targets(_) => target_scales(config, &data.store, split)?,
            Head::OfNodes(_) => Vec::new(),
        },
        input: InputConfig::default(),
    })
}

/// The scale of each target, from the training graphs; none unless targets are values.
fn target_scales(config: &Config, store: &Store, split: &GraphSplit) -> Result<Vec<TargetScale>, StageError> {
    let schema = schema(store)?;
    Ok(match (schema.task, config.graphs.target_reference) {
        (Task::Regression, _) if schema.level == Level::Node => target_scale::of_nodes(store, &split.training)?,
        (Task::Regression, TargetReference::Linear) => target_scale::with_linear_part(store, &split.training)?,
        (Task::Regression, TargetReference::Mean) => target_scale::of_mean(store, &split.training)?,
        (Task::Classification | Task::MultiLabel, _) => Vec::new(),
    })
}

/// The expansion of lengths and angles of an SGMP.
fn path_config(config: &Config, schema: &Schema) -> Result<PathConfig, StageError> {
    if schema.space.is_none() {
        return Err(no_positions(config));
    }
    match config.graphs.path_gaussians[..] {
        [distances, angles, torsions] => {
            Ok(PathConfig { cutoff: config.graphs.cutoff, gaussians: [distances, angles, torsions] })
        }
        ref found => Err(StageError::Input(format!(
            "path_gaussians has {} numbers, expected three: Gaussians of distances, angles and torsions",
            found.len()
        ))),
    }
}

fn no_positions(config: &Config) -> StageError {
    StageError::Input(format!(
        "{} reads positions of nodes, and the data have none: name the columns of positions of tables (docs/graphs.md), or use another \
         model, such as --preset gin,teacher",
        config.model.model.with_article()
    ))
}

/// The cutoff and radial basis of a network in space, and the forces if it learns the targets and the data have any.
fn space_config(config: &Config, (data, split): (&Data, &GraphSplit), head: Head) -> Result<SpaceConfig, StageError> {
    let (options, model, schema) = (&config.graphs, config.model.model, schema(&data.store)?);
    let Some(space) = &schema.space else {
        return Err(no_positions(config));
    };
    if let Some(reason) = &space.unfit {
        return Err(StageError::Input(format!(
            "{} cannot be trained on these positions: {reason}",
            model.with_article()
        )));
    }
    let outputs = foreign::output_names(schema).len();
    let forces = space.forces && options.force_weight > 0.0 && matches!(head, Head::Targets(_));
    if forces && (outputs != 1 || schema.task != Task::Regression || schema.level == Level::Node) {
        return Err(StageError::Input(format!(
            "forces are the gradient of one value of a graph, and the data have {outputs} outputs of {}; use --force-weight 0",
            schema.level.units()
        )));
    }
    if space.periodic && config::has_bonds(config) {
        return Err(StageError::Input(
            "--bonds: the graphs have periodic cells, and a bond does not say which image of a node it leads to; use --bonds false".into(),
        ));
    }
    let basis = match options.radial_basis {
        RadialBasisChoice::Gaussian => RadialBasis::Gaussian,
        RadialBasisChoice::Bessel => RadialBasis::Bessel,
    };
    let (kinds, radial_functions) = (space.kinds.count() as i64, options.radial_functions as i64);
    let features = space.kinds != Kinds::Elements && schema.node_columns() > 0;
    let irreps = (model == ModelKind::Irreps).then(|| irreps_config(config, data, split)).transpose()?;
    Ok(SpaceConfig { cutoff: options.cutoff, kinds, features, basis, radial_functions, forces, irreps })
}

/// The representations of a network of those, and the mean numbers of neighbours of a training node.
fn irreps_config(config: &Config, data: &Data, split: &GraphSplit) -> Result<IrrepsConfig, StageError> {
    /// Enough for a mean.
    const GRAPHS: usize = 1000;
    let options = &config.graphs;
    let mut counter = PairCounter::default();
    let [mut nodes, mut pairs, mut bonds] = [0, 0, 0];
    for &graph in split.training.iter().take(GRAPHS) {
        let view = data.store.try_graph(graph)?;
        nodes += view.num_nodes() as u64;
        pairs += counter.count(graph, &view, options.cutoff)?.pairs;
        bonds += view.num_edges() as u64;
    }
    let of_node = |count: u64| (count as f64 / nodes.max(1) as f64).max(1.0);
    let space = schema(&data.store)?.space.as_ref().filter(|_| config::has_bonds(config) && options.multi_hop);
    let listed = OfPaths::try_of(|kind| {
        let Some(names) = space.and_then(|space| space.paths.of(kind)) else { return Ok(None) };
        let scaling = NodeScaling::of_paths(&data.store, &split.training, kind)?;
        Ok::<_, StageError>(Some(PathParameters { names: names.clone(), scaling }))
    })?;
    configured_irreps(config, of_node(pairs), of_node(bonds), listed)
}

/// The configured representations, for nodes with these mean numbers of near nodes and of bonds, and data that list these paths.
///
/// # Errors
/// Representations that cannot be read.
pub(super) fn configured_irreps(
    config: &Config,
    neighbours: f64,
    bonds: f64,
    listed: OfPaths<PathParameters>,
) -> Result<IrrepsConfig, StageError> {
    let options = &config.graphs;
    let irreps = options.irreps.0.parse().map_err(|reason| StageError::Input(format!("--irreps {reason}")))?;
    Ok(IrrepsConfig {
        irreps,
        radial_hidden: options.radial_hidden as i64,
        neighbours,
        gate: options.gate,
        layer_norm: options.layer_norm,
        bonds: options.bonds.then_some(BondConfig {
            neighbours: bonds,
            near_nodes: options.nonbonded,
            paths: options.multi_hop,
            listed,
        }),
    })
}

fn distillation(
    config: &Config,
    teacher: &Architecture,
    parameters: &mut FreshParameters,
    student: &GnnConfig,
) -> Result<GraphDistillation, StageError> {
    let Architecture::Graph(architecture) = teacher else {
        return Err(teacher::of_another_kind(teacher, "the teacher of a graph network is a graph network"));
    };
    let options = &config.distillation;
    let loss = training::logit_loss(config);
    let columns = [student.pooled_columns(), architecture.pooled_columns()];
    if options.kd_hint_weight > 0.0 && student.hidden_level() != architecture.hidden_level() {
        return Err(StageError::Input(format!(
            "kd_hint_weight: the {} compares rows of {}, its teacher, a {}, has rows of {}; drop --kd-hint-weight",
            student.kind.as_str(),
            student.hidden_level().units(),
            architecture.kind.as_str(),
            architecture.hidden_level().units()
        )));
    }
    let hints = Hints::new(Scope::root(parameters), columns, options.kd_hint_weight)?;
    let vectors = match [student.kind, architecture.kind] {
        [GnnKind::PaiNN, GnnKind::PaiNN] => VectorHints::new(Scope::root(parameters), columns, options.kd_hint_weight)?,
        _ => None,
    };
    let teacher_scales = architecture.target_scales.clone();
    Ok(GraphDistillation { loss, teacher_scales, hints, vectors, embedding: None })
}

/// Distillation of the outputs in a file. Its values are in the units of the targets.
fn foreign_distillation(config: &Config, targets: &ForeignTargets, student: &GnnConfig) -> GraphDistillation {
    GraphDistillation {
        loss: training::logit_loss(config),
        teacher_scales: vec![TargetScale::of_units(); student.target_scales.len()],
        hints: None,
        vectors: None,
        embedding: targets.columns(TargetName::Embedding).map(|_| foreign::embedding_loss(config)),
    }
}
