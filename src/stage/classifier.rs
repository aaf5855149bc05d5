//! Trains a GAT classifier on normal graphs and attacks: a teacher alone, or a student that learns from a teacher.
//!
//! `kdgat classifier` trains on every graph in every epoch, `kdgat curriculum` on all attacks and a selection of normal graphs.

use serde_json::{Map, Value};
use tch::Device;

use super::difficulty::{self, load_scorer, score_windows};
use super::epochs::{Epochs, Graphs};
use super::outcome::Outcome;
use super::run::{Prepared, Run};
use super::setup::{self, Data};
use super::workload::{NewStudent, Opened, TeacherSource, Workload};
use super::{StageError, graph_batches, teacher, training, validation};
use crate::config::{Config, Stage, TaskLoss};
use crate::curriculum::Scorer;
use crate::distill::hints::Hints;
use crate::distill::objective::{GatDistillation, GatObjective, TeacherLink};
use crate::graph::{EdgeScaling, Split};
use crate::nn::parameters::NamedTensor;
use crate::nn::{Architecture, ClassLoss, FreshParameters, Gat, GatConfig, InputConfig, Scope};
use crate::train::trainable::Trainable;

/// A classifier of CAN windows, with or without a curriculum.
pub struct WindowClassifier<'a> {
    config: &'a Config,
    stage: Stage,
    pub(super) data: Data,
    graphs: Graphs,
    architecture: GatConfig,
    /// Scores the difficulty of normal windows, if the curriculum needs it.
    scorer: Option<Scorer>,
}

impl<'a> WindowClassifier<'a> {
    /// Opens the windows, normal ones and attacks.
    ///
    /// # Errors
    /// Data that cannot be read, or without one of the two.
    pub fn open(config: &'a Config, stage: Stage) -> Result<Self, StageError> {
        let data = setup::open(config)?;
        let training = data.store.select(Split::Train, None);
        let validation = data.store.select(Split::Validation, None);
        for (attack, what, folder) in
            [(false, "normal graph", "train_01_attack_free"), (true, "graph with an attack", "train_02_with_attacks")]
        {
            if data.store.select(Split::Train, Some(attack)).is_empty() {
                return Err(StageError::Input(format!(
                    "dataset {} has no {what} for training; put labelled logs with such graphs into {folder}/, or lower --window",
                    data.dataset.name
                )));
            }
        }
        training::expect_validation(&validation, &data.dataset.name)?;
        let graphs = Graphs::new(config, &data.store, training, validation)?;
        let architecture = gat_config(config, &data)?;
        Ok(Self { config, stage, data, graphs, architecture, scorer: None })
    }
}

impl<'a> Workload<'a> for WindowClassifier<'a> {
    type Student = GatObjective;
    type Plan = Epochs;

    fn architecture(&self) -> Architecture {
        Architecture::Gat(self.architecture.clone())
    }

    fn opened(&self) -> Opened<'a> {
        Opened { config: self.config, stage: self.stage, origin: self.data.origin() }
    }

    fn find_teacher(&mut self) -> Result<TeacherSource, StageError> {
        Ok(TeacherSource::network(teacher::find(self.config, self.stage, &self.data)?))
    }

    fn inputs(&mut self) -> Result<Map<String, Value>, StageError> {
        if self.stage != Stage::Curriculum {
            return Ok(Map::new());
        }
        if self.config.curriculum.curriculum.scores() {
            self.scorer = Some(load_scorer(self.config, &self.data.dataset.name, self.data.device)?);
        }
        Ok(difficulty::inputs(self.scorer.as_ref().map(Scorer::digest)))
    }

    fn plan(&mut self) -> Result<Epochs, StageError> {
        let (config, graphs) = (self.config, self.graphs.clone());
        if self.stage != Stage::Curriculum {
            return Ok(Epochs::of_all(config, graphs));
        }
        let [normals, attacks] = [false, true].map(|attack| self.data.store.select(Split::Train, Some(attack)));
        Ok(Epochs::of_normals(config, graphs, &attacks, &normals))
    }

    fn new_student(&self, teacher: Option<&Architecture>) -> Result<NewStudent<GatObjective>, StageError> {
        let task = task_loss(self.config, &self.data)?;
        new_student(self.config, self.data.device, (&self.architecture, task), teacher)
    }

    fn start_teacher(&self, teacher: TeacherSource, plan: &Epochs) -> Result<TeacherLink, StageError> {
        teacher::start(self.config, teacher.into_network(), &self.data, plan.teacher_use())
    }

    fn score(
        &mut self,
        plan: &mut Epochs,
        _: &mut GatObjective,
        _: &[NamedTensor],
        run: &mut Run,
    ) -> Result<(), StageError> {
        // The scorer's memory is freed before the training.
        match self.scorer.take() {
            Some(scorer) => score_windows(plan, self.config, &self.data, &scorer, run),
            None => Ok(()),
        }
    }

    fn prepare(
        &self,
        run: &mut Run,
        student: &mut GatObjective,
        trainable: &mut Trainable,
        plan: &mut Epochs,
    ) -> Result<Prepared, StageError> {
        graph_batches::prepare(run, &self.data, self.architecture(), student, trainable, plan)
    }

    fn finish(&self, outcome: &Outcome) -> Result<(), StageError> {
        validation::record_threshold(self.config, &self.data, outcome)
    }
}

/// Makes a student with this loss, of a teacher with this architecture if there is one.
///
/// # Errors
/// A teacher of another kind, or too little memory.
pub(super) fn new_student(
    config: &Config,
    device: Device,
    (architecture, task): (&GatConfig, ClassLoss),
    teacher: Option<&Architecture>,
) -> Result<NewStudent<GatObjective>, StageError> {
    let mut parameters = FreshParameters::new(config.training.seed, device);
    let model = Gat::new(Scope::root(&mut parameters), architecture, training::attention_kernel(config))?;
    let distillation = teacher.map(|teacher| distillation(config, teacher, &mut parameters, architecture));
    let (distillation, teacher) = (distillation.transpose()?, TeacherLink::none());
    let student = GatObjective { model, task, teacher, distillation, labels: None, mean_label_weight: None };
    Ok(NewStudent { parameters, student })
}

/// The configured GAT for this dataset.
pub(super) fn gat_config(config: &Config, data: &Data) -> Result<GatConfig, StageError> {
    let vocabulary_size = data.store.vocabulary().len() as i64;
    Ok(gat_of(config, vocabulary_size, training::edge_scaling(config, data)?, training::input(config, data)))
}

/// The configured GAT for data of this vocabulary.
pub(super) fn gat_of(
    config: &Config,
    vocabulary_size: i64,
    edge_scaling: Option<EdgeScaling>,
    input: InputConfig,
) -> GatConfig {
    let model = &config.model;
    GatConfig {
        // The configuration check allows exactly one width.
        hidden: model.hidden.first().copied().unwrap_or(0) as i64,
        layers: model.layers as i64,
        heads: model.heads as i64,
        embedding: model.embedding as i64,
        fc_layers: model.fc_layers as i64,
        vocabulary_size,
        dropout: model.dropout,
        edge_scaling,
        input,
    }
}

fn task_loss(config: &Config, data: &Data) -> Result<ClassLoss, StageError> {
    let by_class = |split| [false, true].map(|attack| data.store.select(split, Some(attack)).len());
    Ok(match config.training.task_loss {
        TaskLoss::CrossEntropy => ClassLoss::CrossEntropy,
        TaskLoss::Weighted => ClassLoss::balanced(&by_class(Split::Train), &by_class(Split::Validation), data.device)?,
        TaskLoss::Focal => ClassLoss::Focal { gamma: config.training.focal_gamma },
    })
}

fn distillation(
    config: &Config,
    teacher: &Architecture,
    parameters: &mut FreshParameters,
    student: &GatConfig,
) -> Result<GatDistillation, StageError> {
    let Architecture::Gat(architecture) = teacher else {
        return Err(teacher::of_another_kind(teacher, "the teacher of a gat is a gat"));
    };
    let options = &config.distillation;
    let loss = training::logit_loss(config);
    let columns = [student.embedding_columns(), architecture.embedding_columns()];
    let hints = Hints::new(Scope::root(parameters), columns, options.kd_hint_weight)?;
    Ok(GatDistillation { loss, hints })
}
