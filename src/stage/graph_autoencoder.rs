//! Trains a VGAE on a dataset of graphs: a teacher alone, or a student that learns from a teacher.

use serde_json::{Map, Value};
use tch::Device;

use super::autoencoder::distillation_of;
use super::epochs::Epochs;
use super::graph_teacher::fold_flag;
use super::graphs::{fold_options, inputs_of_split, packed, schema};
use super::recorded_division::{RecordedSplit, expect_same_division};
use super::run::{Prepared, Run};
use super::setup::{self, Data};
use super::teacher::{self, FoundTeacher, ModelRole, Search};
use super::workload::{NewStudent, Opened, TeacherSource, Workload};
use super::{StageError, graph_batches, training};
use crate::config::{Config, EncoderChoice, Stage, nearest};
use crate::distill::frozen::LoadedModel;
use crate::distill::objective::{GraphVgaeObjective, TeacherLink};
use crate::graph::dataset::GraphSplit;
use crate::graph::{NodeScaling, Store};
use crate::nn::{Architecture, FreshParameters, GnnKind, GraphVgae, GraphVgaeConfig, Scope};
use crate::train::trainable::Trainable;

/// A VGAE of a dataset of graphs that are no CAN windows.
pub struct GraphAutoencoder<'a> {
    config: &'a Config,
    pub(super) data: Data,
    /// The division of all graphs.
    split: GraphSplit,
    /// The division, with those training and validation graphs alone that are trained and validated on.
    pub(super) chosen: GraphSplit,
    architecture: GraphVgaeConfig,
}

impl<'a> GraphAutoencoder<'a> {
    /// Opens the configured dataset of graphs, divides it, and selects the graphs of the configured classes.
    ///
    /// # Errors
    /// Data that cannot be read, classes that they lack, or a model that does not fit them.
    pub fn open(config: &'a Config) -> Result<Self, StageError> {
        let data = setup::open_graphs(config)?;
        let split = GraphSplit::of(&data.store, &fold_options(config))?;
        let classes = config.graphs.train_classes.as_ref().map_or(&[][..], |names| &names.0);
        let chosen = of_classes(&data.store, &split, classes)?;
        let architecture = architecture(config, &data.store, &chosen, classes)?;
        Ok(Self { config, data, split, chosen, architecture })
    }
}

impl<'a> Workload<'a> for GraphAutoencoder<'a> {
    type Student = GraphVgaeObjective;
    type Plan = Epochs;

    fn opened(&self) -> Opened<'a> {
        Opened { config: self.config, stage: Stage::Autoencoder, origin: self.data.origin() }
    }

    fn architecture(&self) -> Architecture {
        Architecture::GraphVgae(self.architecture.clone())
    }

    fn find_teacher(&mut self) -> Result<TeacherSource, StageError> {
        let found = find_teacher(self.config, &self.data, &self.architecture, &self.split)?;
        Ok(TeacherSource::network(found))
    }

    fn inputs(&mut self) -> Result<Map<String, Value>, StageError> {
        inputs_of_split(&self.data, &self.split)
    }

    fn plan(&mut self) -> Result<Epochs, StageError> {
        Ok(Epochs::of_all(self.config, packed(self.config, &self.data, &self.chosen)?))
    }

    fn new_student(&self, teacher: Option<&Architecture>) -> Result<NewStudent<GraphVgaeObjective>, StageError> {
        new_student(self.config, self.data.device, &self.architecture, teacher)
    }

    fn start_teacher(&self, teacher: TeacherSource, plan: &Epochs) -> Result<TeacherLink, StageError> {
        teacher::start(self.config, teacher.into_network(), &self.data, plan.teacher_use())
    }

    fn prepare(
        &self,
        run: &mut Run,
        student: &mut GraphVgaeObjective,
        trainable: &mut Trainable,
        plan: &mut Epochs,
    ) -> Result<Prepared, StageError> {
        graph_batches::prepare(run, &self.data, self.architecture(), student, trainable, plan)
    }
}

/// Makes a student, of a teacher with this architecture if there is one.
///
/// # Errors
/// A teacher of another kind, or too little memory.
pub(super) fn new_student(
    config: &Config,
    device: Device,
    own: &GraphVgaeConfig,
    teacher: Option<&Architecture>,
) -> Result<NewStudent<GraphVgaeObjective>, StageError> {
    let mut parameters = FreshParameters::new(config.training.seed, device);
    let model = GraphVgae::new(Scope::root(&mut parameters), own, training::attention_kernel(config))?;
    let distillation = match teacher {
        None => None,
        Some(Architecture::GraphVgae(teacher)) => {
            let (latents, hidden) = ([own.latent(), teacher.latent()], [own.encoder.width(), teacher.encoder.width()]);
            let translation = teacher.scaling.translation(&own.scaling);
            Some(distillation_of(config, &mut parameters, latents, hidden, translation)?)
        }
        Some(other) => {
            return Err(teacher::of_another_kind(other, "the teacher of an autoencoder of graphs is one, too"));
        }
    };
    let student = GraphVgaeObjective::new(model, TeacherLink::none(), distillation, config.training.seed);
    Ok(NewStudent { parameters, student })
}

/// The division, with the training and validation graphs of these classes alone; with all, if none are named.
pub(super) fn of_classes(store: &Store, split: &GraphSplit, classes: &[String]) -> Result<GraphSplit, StageError> {
    if classes.is_empty() {
        return Ok(split.clone());
    }
    let schema = schema(store)?;
    if !schema.has_classes() {
        return Err(StageError::Input(format!(
            "--train-classes: the graphs of {} have no classes, but targets of {}; drop it",
            store.manifest().dataset,
            schema.task_name()
        )));
    }
    let known = &schema.targets[0].classes;
    if let Some(unknown) = classes.iter().find(|name| !known.contains(name)) {
        return Err(StageError::Input(format!(
            "--train-classes {unknown}: {} has no such class; did you mean {}? Its classes are {}",
            store.manifest().dataset,
            nearest(unknown, known.iter().map(String::as_str)),
            known.join(", ")
        )));
    }
    let chosen = |graphs: &[u64]| -> Result<Vec<u64>, StageError> {
        let mut chosen = Vec::new();
        for &graph in graphs {
            if is_of_classes(store, graph, classes)? {
                chosen.push(graph);
            }
        }
        Ok(chosen)
    };
    let of_classes =
        GraphSplit { training: chosen(&split.training)?, validation: chosen(&split.validation)?, ..split.clone() };
    for (name, graphs) in [("training", &of_classes.training), ("validation", &of_classes.validation)] {
        if graphs.is_empty() {
            return Err(StageError::Input(format!(
                "--train-classes {}: no {name} graph is of these classes ({}); name further classes, or choose another --fold",
                classes.join(","),
                split.origin
            )));
        }
    }
    Ok(of_classes)
}

/// True if the class of a graph is one of these; only for a dataset with classes.
pub(super) fn is_of_classes(store: &Store, graph: u64, classes: &[String]) -> Result<bool, StageError> {
    let class = store.try_graph(graph)?.class() as usize;
    Ok(schema(store)?.targets[0].classes.get(class).is_some_and(|name| classes.contains(name)))
}

/// The configured VGAE for these graphs.
fn architecture(
    config: &Config,
    store: &Store,
    split: &GraphSplit,
    classes: &[String],
) -> Result<GraphVgaeConfig, StageError> {
    let (model, schema) = (&config.model, schema(store)?);
    let &[hidden] = model.hidden.as_slice() else {
        return Err(StageError::Input(format!(
            "a vgae of graphs has one hidden width for all of --layers, and hidden has {} widths; use --preset vgae,student, or --hidden with \
             one number",
            model.hidden.len()
        )));
    };
    let kind = match config.graphs.encoder {
        EncoderChoice::Gin => GnnKind::Gin,
        EncoderChoice::Gcn => GnnKind::Gcn,
        EncoderChoice::Gat => GnnKind::Gat,
    };
    let categories = schema.node_categories();
    let is_scaled = |column: usize| !categories.iter().any(|columns| columns.contains(&(column as i64)));
    let scaling = NodeScaling::of_graphs(store, &split.training, is_scaled)?;
    let sizes = [hidden, model.layers, model.latent].map(|size| size as i64);
    let mut architecture = GraphVgaeConfig::new(kind, scaling, sizes);
    architecture.encoder.dropout = model.dropout;
    match kind {
        GnnKind::Gin if config.graphs.edge_features => {
            architecture.encoder.edge_features = schema.edge_columns() as i64
        }
        GnnKind::Gat => architecture.encoder.heads = model.heads as i64,
        _ => {}
    }
    let decodes_edges = config.graphs.decode_edges;
    Ok(GraphVgaeConfig { categories, decodes_edges, classes: classes.to_vec(), ..architecture })
}

/// Finds the configured teacher, if any: by path, or the one registered for the dataset. It may have another encoder and other sizes than the
/// student, but must have been trained on graphs of the same classes.
fn find_teacher(
    config: &Config,
    data: &Data,
    student: &GraphVgaeConfig,
    split: &GraphSplit,
) -> Result<Option<FoundTeacher>, StageError> {
    let command = training_command(config, &student.classes);
    let search = Search { dataset: &data.dataset.name, kind: "graph-vgae", command: &command };
    let found = search.run(config, |network, role| {
        let architecture = expect_fitting(&data.store, split, network, role, &command)?;
        if architecture.classes == student.classes {
            return Ok(());
        }
        let names = |classes: &[String]| match classes {
            [] => "all classes".to_owned(),
            classes => format!("the classes {}", classes.join(",")),
        };
        Err(StageError::Input(format!(
            "the teacher {} was trained on graphs of {}, this run is on {}; train one with {command}, or name one with --teacher-path",
            network.path.display(),
            names(&architecture.classes),
            names(&student.classes)
        )))
    })?;
    found.map(|found| FoundTeacher::of_shared(found, teacher::asked(config))).transpose()
}

/// The command that trains a teacher on these classes of the configured dataset of graphs and fold.
fn training_command(config: &Config, classes: &[String]) -> String {
    let classes = if classes.is_empty() { String::new() } else { format!(" --train-classes {}", classes.join(",")) };
    format!("kdgat autoencoder --preset vgae,teacher{}{}{classes}", teacher::data_flag(config), fold_flag(config))
}

/// Refuses a VGAE whose error would be the difficulty of a run's graphs, if it reads other columns than the data have, or was trained on another
/// division of the graphs.
pub(super) fn expect_difficulty_model(
    config: &Config,
    data: &Data,
    split: &GraphSplit,
    found: &LoadedModel,
    role: &ModelRole,
) -> Result<(), StageError> {
    expect_fitting(&data.store, split, found, role, &training_command(config, &[])).map(|_| ())
}

/// Refuses a model that is no VGAE of graphs, reads other columns than the data have, or was trained on another division of the graphs.
fn expect_fitting<'a>(
    store: &Store,
    split: &GraphSplit,
    found: &'a LoadedModel,
    role: &ModelRole,
    command: &str,
) -> Result<&'a GraphVgaeConfig, StageError> {
    let (path, name) = (found.path.display(), role.name);
    let Architecture::GraphVgae(architecture) = &found.architecture else {
        let kind = found.architecture.model_name();
        return Err(StageError::Input(format!(
            "the {name} {path} is a {kind}, and no autoencoder of graphs; train one with {command}"
        )));
    };
    let schema = schema(store)?;
    let (nodes, edges) = (schema.node_columns() as i64, schema.edge_columns() as i64);
    let reads_others = architecture.encoder.edge_features != 0 && architecture.encoder.edge_features != edges;
    let has_others = architecture.encoder.node_features != nodes || architecture.categories != schema.node_categories();
    if reads_others || has_others {
        return Err(StageError::Input(format!(
            "the {name} {path} reads {} node features in {} categories and {} edge features, the data have {nodes} in {} and {edges}; train one \
             on this data with {command}",
            architecture.encoder.node_features,
            architecture.categories.len(),
            architecture.encoder.edge_features,
            schema.node_categories().len()
        )));
    }
    let own = RecordedSplit::new(split.test_digest(store)?, split.origin.clone());
    expect_same_division(&found.path, role, "graphs", &own, command)?;
    Ok(architecture)
}
