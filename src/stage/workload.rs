//! The one training of all kinds of data: of a network alone, which may become a teacher, or of a student that learns from a teacher.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::StageError;
use super::autoencoder::WindowAutoencoder;
use super::classifier::WindowClassifier;
use super::graph_autoencoder::GraphAutoencoder;
use super::graphs::GraphNetwork;
use super::initial_weights::InitialWeights;
use super::nodes::NodeClassifier;
use super::outcome::Outcome;
use super::pretraining::PretrainedNetwork;
use super::run::{Prepared, Run};
use super::setup::Origin;
use super::teacher::{FoundTeacher, TeacherIdentity};
use super::together;
use crate::config::{Config, DataKind, Stage};
use crate::distill::foreign::ForeignTargets;
use crate::distill::objective::{Student, TeacherLink};
use crate::memory::{Meter, retry_on_oom};
use crate::nn::parameters::NamedTensor;
use crate::nn::{Architecture, FreshParameters};
use crate::train::fit::BatchPlan;
use crate::train::objective::Objective;
use crate::train::processes::Processes;
use crate::train::trainable::Trainable;

/// A kind of data, and the network that a stage trains on it. The methods are called in this order.
pub trait Workload<'a> {
    /// The network with its loss.
    type Student: Student;
    /// The batches of all epochs.
    type Plan: BatchPlan;

    /// The data that was opened, and for what.
    fn opened(&self) -> Opened<'a>;

    /// Finds what the student learns from, if that is configured, and checks that it fits the data and their division.
    ///
    /// # Errors
    /// A teacher that is missing, does not fit, or may have been trained on what this run tests on.
    fn find_teacher(&mut self) -> Result<TeacherSource, StageError>;

    /// Identities of further inputs, for the run's `config.json`.
    ///
    /// # Errors
    /// An input that cannot be read.
    fn inputs(&mut self) -> Result<Map<String, Value>, StageError> {
        Ok(Map::new())
    }

    /// Plans the batches.
    ///
    /// # Errors
    /// Data that the configured batches do not fit.
    fn plan(&mut self) -> Result<Self::Plan, StageError>;

    /// Makes a network with initial weights and its loss, not connected to a teacher yet. Repeated if memory runs out.
    ///
    /// # Errors
    /// A teacher of another kind, or too little memory.
    fn new_student(&self, teacher: Option<&Architecture>) -> Result<NewStudent<Self::Student>, StageError>;

    /// The architecture of the network.
    fn architecture(&self) -> Architecture;

    /// Starts the teacher's thread, if there is a teacher.
    ///
    /// # Errors
    /// A teacher that does not load, or a cache that cannot be opened.
    fn start_teacher(&self, teacher: TeacherSource, plan: &Self::Plan) -> Result<TeacherLink, StageError>;

    /// Scores the difficulty of the items that a curriculum chooses from.
    ///
    /// # Errors
    /// A model that cannot score, or scores that cannot be written.
    fn score(
        &mut self,
        _plan: &mut Self::Plan,
        _student: &mut Self::Student,
        _tensors: &[NamedTensor],
        _run: &mut Run,
    ) -> Result<(), StageError> {
        Ok(())
    }

    /// Decides on the sizes of batches within the memory limit, and makes the loaders.
    ///
    /// # Errors
    /// If not even the smallest batch fits.
    fn prepare(
        &self,
        run: &mut Run,
        student: &mut Self::Student,
        trainable: &mut Trainable,
        plan: &mut Self::Plan,
    ) -> Result<Prepared, StageError>;

    /// Records what belongs to the trained model.
    ///
    /// # Errors
    /// A model that cannot be read again.
    fn finish(&self, _outcome: &Outcome) -> Result<(), StageError> {
        Ok(())
    }
}

/// Opened data.
pub struct Opened<'a> {
    /// The configuration of the run.
    pub config: &'a Config,
    /// The stage, which names the run's folder.
    pub stage: Stage,
    /// The device, and the identity of the data.
    pub origin: Origin,
}

/// A network with initial weights.
pub struct NewStudent<S> {
    /// All tensors to train, those of projections and hints included.
    pub parameters: FreshParameters,
    pub student: S,
}

/// The source of a student's targets besides the data.
pub enum TeacherSource {
    None,
    Network(Box<FoundTeacher>),
    /// A file with a teacher's outputs.
    File(Arc<ForeignTargets>),
}

impl TeacherSource {
    /// A found network, if there is one.
    pub fn network(found: Option<FoundTeacher>) -> Self {
        found.map_or(Self::None, |found| Self::Network(Box::new(found)))
    }

    /// The found network, if it is one.
    pub fn into_network(self) -> Option<FoundTeacher> {
        match self {
            Self::Network(found) => Some(*found),
            Self::None | Self::File(_) => None,
        }
    }

    /// The same, for a training of these processes together.
    fn used_by(mut self, processes: Option<&Arc<Processes>>) -> Self {
        if let Self::Network(found) = &mut self {
            found.processes = processes.cloned();
        }
        self
    }

    /// The architecture of the first network, if there is one.
    pub fn architecture(&self) -> Option<&Architecture> {
        match self {
            Self::Network(found) => Some(&found.architecture),
            Self::None | Self::File(_) => None,
        }
    }

    fn identity(&self) -> Option<TeacherIdentity> {
        match self {
            Self::None => None,
            Self::Network(found) => Some(found.identity()),
            Self::File(targets) => {
                Some(TeacherIdentity { digest: targets.digest().to_owned(), architectures: Vec::new() })
            }
        }
    }
}

/// Runs a training stage on the configured data.
///
/// # Errors
/// Any error of the data, the teacher or the training; a stage that does not exist for this kind of data.
///
/// Several processes train together if the environment says so.
pub fn run_stage(stage: Stage, config: &Config) -> Result<Outcome, StageError> {
    // Presets of students ask for a teacher, which pre-training does not have.
    let mut alone = config.clone();
    alone.distillation.use_kd &= stage != Stage::Pretrain;
    let config = &alone;
    let together = together::join(stage, config)?;
    match (stage, config.data_kind) {
        (Stage::Autoencoder, DataKind::Graphs) => train(|| GraphAutoencoder::open(config), together),
        (Stage::Autoencoder, _) => train(|| WindowAutoencoder::open(config), together),
        (Stage::Classifier | Stage::Curriculum, _) => train(|| WindowClassifier::open(config, stage), together),
        (Stage::Train, DataKind::OneGraph) => train(|| NodeClassifier::open(config), together),
        (Stage::Train, DataKind::Graphs | DataKind::Windows) => train(|| GraphNetwork::open(config), together),
        (Stage::Pretrain, DataKind::OneGraph) => Err(StageError::Input(
            "kdgat pretrain learns from many graphs, and the data are one large graph; train on it with `kdgat train`"
                .into(),
        )),
        (Stage::Pretrain, _) => train(|| PretrainedNetwork::open(config), together),
        (Stage::Fusion, _) => Err(StageError::Input("an agent of `kdgat fusion` is trained by that command".into())),
    }
}

/// Trains: a teacher is found, a run opened, a student made and connected to the teacher, the batches sized; then the epochs run.
fn train<'a, W: Workload<'a>>(
    open: impl FnOnce() -> Result<W, StageError>,
    together: Option<Arc<Processes>>,
) -> Result<Outcome, StageError> {
    // Process 0 builds the store that the others open.
    let mut workload = match &together {
        Some(processes) => processes.first_before_others(open)?,
        None => open()?,
    };
    let Opened { config, stage, origin } = workload.opened();
    let device = origin.device;
    let teacher = workload.find_teacher()?;
    let mut inputs = workload.inputs()?;
    let start = InitialWeights::find(config, &mut inputs)?;
    inputs.extend(start.iter().flat_map(InitialWeights::inputs));
    let mut run = Run::open((config, stage), origin, teacher.identity(), inputs, together)?;
    let writes = run.writes();

    let mut plan = workload.plan()?;
    let NewStudent { mut parameters, mut student } =
        retry_on_oom(Meter::new(device), || workload.new_student(teacher.architecture()))?;
    // Its memory is freed before the training.
    if let Some(start) = start {
        let line = start.fill(&mut parameters, &workload.architecture())?;
        run.console.line(&line);
    }
    if let Some(obstacle) = student.division_obstacle().filter(|_| run.processes.is_some()) {
        return Err(StageError::Input(format!(
            "batches cannot be divided among processes: {obstacle}; train in one process"
        )));
    }
    *student.teacher_mut() = workload.start_teacher(teacher.used_by(run.processes.as_ref()), &plan)?;
    workload.score(&mut plan, &mut student, parameters.tensors(), &mut run)?;

    let mut trainable = Trainable::new(parameters.into_tensors(), device)?;
    let prepared = workload.prepare(&mut run, &mut student, &mut trainable, &mut plan)?;
    let outcome = run.fit(student, trainable, &mut plan, prepared)?;
    if writes {
        workload.finish(&outcome)?;
    }
    Ok(outcome)
}
