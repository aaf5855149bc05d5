//! Trains a VGAE on attack-free CAN windows: a teacher alone, or a student that learns from a teacher.

use tch::Device;

use super::epochs::{Epochs, Graphs};
use super::outcome::Outcome;
use super::run::{Prepared, Run};
use super::setup::{self, Data};
use super::workload::{NewStudent, Opened, TeacherSource, Workload};
use super::{StageError, graph_batches, teacher, training, validation};
use crate::config::{Config, Stage};
use crate::distill::hints::Hints;
use crate::distill::losses::Projection;
use crate::distill::objective::{TeacherLink, Translation, VgaeDistillation, VgaeObjective};
use crate::graph::{EdgeScaling, Split};
use crate::nn::{Architecture, FreshParameters, InputConfig, Scope, Vgae, VgaeConfig, vgae};
use crate::train::trainable::Trainable;

/// A VGAE of CAN windows.
pub struct WindowAutoencoder<'a> {
    config: &'a Config,
    pub(super) data: Data,
    graphs: Graphs,
    architecture: VgaeConfig,
}

impl<'a> WindowAutoencoder<'a> {
    /// Opens the windows and selects the attack-free ones: a model trained on them alone reconstructs unusual windows badly.
    ///
    /// # Errors
    /// Data that cannot be read, or without an attack-free window.
    pub fn open(config: &'a Config) -> Result<Self, StageError> {
        let data = setup::open(config)?;
        let training = data.store.select(Split::Train, Some(false));
        let validation = data.store.select(Split::Validation, Some(false));
        if training.is_empty() {
            return Err(no_training_graph(&data));
        }
        training::expect_validation(&validation, &data.dataset.name)?;
        let graphs = Graphs::new(config, &data.store, training, validation)?;
        let architecture = vgae_config(config, &data)?;
        Ok(Self { config, data, graphs, architecture })
    }
}

impl<'a> Workload<'a> for WindowAutoencoder<'a> {
    type Student = VgaeObjective;
    type Plan = Epochs;

    fn opened(&self) -> Opened<'a> {
        Opened { config: self.config, stage: Stage::Autoencoder, origin: self.data.origin() }
    }

    fn architecture(&self) -> Architecture {
        Architecture::Vgae(self.architecture.clone())
    }

    fn find_teacher(&mut self) -> Result<TeacherSource, StageError> {
        Ok(TeacherSource::network(teacher::find(self.config, Stage::Autoencoder, &self.data)?))
    }

    fn plan(&mut self) -> Result<Epochs, StageError> {
        Ok(Epochs::of_all(self.config, self.graphs.clone()))
    }

    fn new_student(&self, teacher: Option<&Architecture>) -> Result<NewStudent<VgaeObjective>, StageError> {
        new_student(self.config, self.data.device, &self.architecture, teacher)
    }

    fn start_teacher(&self, teacher: TeacherSource, plan: &Epochs) -> Result<TeacherLink, StageError> {
        teacher::start(self.config, teacher.into_network(), &self.data, plan.teacher_use())
    }

    fn prepare(
        &self,
        run: &mut Run,
        student: &mut VgaeObjective,
        trainable: &mut Trainable,
        plan: &mut Epochs,
    ) -> Result<Prepared, StageError> {
        graph_batches::prepare(run, &self.data, self.architecture(), student, trainable, plan)
    }

    fn finish(&self, outcome: &Outcome) -> Result<(), StageError> {
        validation::record_threshold(self.config, &self.data, outcome)
    }
}

/// Makes a student, of a teacher with this architecture if there is one.
///
/// # Errors
/// A teacher of another kind, or too little memory.
pub(super) fn new_student(
    config: &Config,
    device: Device,
    architecture: &VgaeConfig,
    teacher: Option<&Architecture>,
) -> Result<NewStudent<VgaeObjective>, StageError> {
    let mut parameters = FreshParameters::new(config.training.seed, device);
    let mut model = Vgae::new(Scope::root(&mut parameters), architecture, training::attention_kernel(config))?;
    let distillation = teacher.map(|teacher| distillation(config, teacher, &mut parameters, architecture));
    let distillation = distillation.transpose()?;
    if distillation.as_ref().is_some_and(|distillation| distillation.hints.is_some()) {
        model.keep_hidden();
    }
    Ok(NewStudent { parameters, student: VgaeObjective { model, teacher: TeacherLink::none(), distillation } })
}

fn no_training_graph(data: &Data) -> StageError {
    let name = &data.dataset.name;
    let left_out = data.store.manifest().duplicates.num_dropped();
    if left_out > 0 {
        return StageError::Input(format!(
            "dataset {name} has no attack-free graph for training: {left_out} training graphs are left out, because they are \
             also in validation or a test; add training logs of other drives, or keep these graphs with --keep-duplicates"
        ));
    }
    StageError::Input(format!(
        "dataset {name} has no attack-free graph for training; put attack-free logs into train_01_attack_free/, or lower --window"
    ))
}

/// The configured VGAE for this dataset.
pub(super) fn vgae_config(config: &Config, data: &Data) -> Result<VgaeConfig, StageError> {
    let vocabulary_size = data.store.vocabulary().len() as i64;
    Ok(vgae_of(config, vocabulary_size, training::edge_scaling(config, data)?, training::input(config, data)))
}

/// The configured VGAE for data of this vocabulary.
pub(super) fn vgae_of(
    config: &Config,
    vocabulary_size: i64,
    edge_scaling: Option<EdgeScaling>,
    input: InputConfig,
) -> VgaeConfig {
    let model = &config.model;
    VgaeConfig {
        hidden: model.hidden.iter().map(|&width| width as i64).collect(),
        latent: model.latent as i64,
        heads: model.heads as i64,
        embedding: model.embedding as i64,
        vocabulary_size,
        dropout: model.dropout,
        edge_scaling,
        input,
    }
}

/// Builds the distillation loss: its weights, and the projection to the teacher's latent space if latents are compared.
fn distillation(
    config: &Config,
    teacher: &Architecture,
    parameters: &mut FreshParameters,
    student: &VgaeConfig,
) -> Result<VgaeDistillation, StageError> {
    let Architecture::Vgae(architecture) = teacher else {
        return Err(teacher::of_another_kind(teacher, "the teacher of a vgae is a vgae"));
    };
    let scales = student.input.node_scaling.as_ref().zip(architecture.input.node_scaling.as_ref());
    let translation = scales.and_then(|(student, teacher)| teacher.translation(student));
    let hidden = [vgae::last_width(student), vgae::last_width(architecture)];
    distillation_of(config, parameters, [student.latent, architecture.latent], hidden, translation)
}

/// The distillation loss of a student with a teacher's `[student, teacher]` columns of latents and of the hidden layers of hints, whose
/// reconstructions are translated to the student's scale if they differ.
pub(super) fn distillation_of(
    config: &Config,
    parameters: &mut FreshParameters,
    [from, to]: [i64; 2],
    hidden: [i64; 2],
    translation: Option<[Vec<f32>; 2]>,
) -> Result<VgaeDistillation, StageError> {
    let options = &config.distillation;
    let projection =
        teacher::asked(config).latent.then(|| Projection::new(Scope::root(parameters), from, to)).transpose()?;
    let hints = Hints::new(Scope::root(parameters), hidden, options.kd_hint_weight)?;
    Ok(VgaeDistillation {
        projection,
        latent_weight: options.kd_vgae_latent_weight,
        reconstruction_weight: options.kd_vgae_recon_weight,
        translation: translation.map(Translation::new),
        hints,
    })
}
