//! A student of graphs with new weights, and a teacher with random ones, to measure the memory of steps: it does not depend on weights,
//! and what is measured stays away from the training.

use std::sync::Arc;

use serde::Serialize;
use tch::Device;

use super::graph_peak::Question;
use super::graphs::new_student;
use super::workload::NewStudent;
use super::{StageError, teacher, training};
use crate::config::Config;
use crate::distill::frozen::{self, TeacherVocabulary};
use crate::distill::objective::{GraphObjective, TeacherLink};
use crate::distill::{StoreShape, Teacher, TeacherError, TeacherOptions, Weights};
use crate::graph::Loader;
use crate::memory::probe::Probe;
use crate::nn::parameters::Role;
use crate::nn::{Architecture, BatchNeeds, FreshParameters, Gnn, GnnConfig, Scope};
use crate::train::fit::FitOptions;
use crate::train::trainable::Trainable;

/// Alignment of each tensor in the block of a teacher's weights, in bytes.
const TEACHER_ALIGNMENT: usize = 256;

/// Memory in use throughout a training, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct AlwaysBytes {
    /// Parameters and running statistics, and the copy of the latter that a repeated step starts from.
    pub weights: f64,
    /// Gradients, and their copy when they are accumulated.
    pub gradients: f64,
    /// Optimiser states.
    pub optimizer: f64,
    /// The teacher's weights.
    pub teacher: f64,
}

impl AlwaysBytes {
    /// All bytes together.
    pub fn sum(&self) -> f64 {
        self.weights + self.gradients + self.optimizer + self.teacher
    }
}

/// The student, its teacher and the loaders of their batches.
pub struct FreshStudent {
    objective: GraphObjective,
    trainable: Trainable,
    teacher_bytes: f64,
    pub training_loader: Loader,
    pub validation_loader: Loader,
}

impl FreshStudent {
    /// Makes a student and, if there is one, its teacher, whose thread starts.
    pub fn new(question: &Question) -> Result<Self, StageError> {
        let Question { config, data, architecture, teacher, foreign, .. } = *question;
        let architecture_of_teacher = teacher.cloned().map(Architecture::Graph);
        let foreign_targets = foreign.map(Arc::as_ref);
        let NewStudent { parameters, student: mut objective } =
            new_student(config, data, architecture, architecture_of_teacher.as_ref(), foreign_targets)?;
        let (link, teacher_bytes) = match (foreign, teacher) {
            (Some(targets), _) => (TeacherLink::from_file(Arc::clone(targets), training::alpha(config)), 0.0),
            (None, Some(teacher)) => random_teacher(config, data.device, teacher)?,
            (None, None) => (TeacherLink::none(), 0.0),
        };
        objective.teacher = link;
        let vocabulary = Arc::new(data.store.vocabulary().clone());
        let networks = teacher.into_iter().chain([architecture]).cloned().map(Architecture::Graph);
        let needs = BatchNeeds::of_all(networks.map(|network| network.needs()));
        let (training_loader, validation_loader) =
            training::loaders(config, &data.store, &vocabulary, needs, data.device, 0);
        Ok(Self {
            objective,
            trainable: Trainable::new(parameters.into_tensors(), data.device)?,
            teacher_bytes,
            training_loader,
            validation_loader,
        })
    }

    /// A measurement of batches of these graphs, whose nodes and edges `size_of` returns.
    pub fn probe<'a>(
        &'a mut self,
        question: &'a Question,
        size_of: &'a dyn Fn(u64) -> (u64, u64),
        of_validation: bool,
    ) -> Probe<'a> {
        Probe {
            objective: &mut self.objective,
            trainable: &mut self.trainable,
            loader: if of_validation { &self.validation_loader } else { &self.training_loader },
            graphs: &question.graphs.training,
            size_of,
            cap: question.graphs.batch_graphs,
            waiting_batches: question.settings().waiting,
            adam: question.options.adam,
            precision: question.options.precision,
            device: question.data.device,
        }
    }

    /// Memory in use throughout a training with these options.
    pub fn always_bytes(&self, options: &FitOptions) -> AlwaysBytes {
        let bytes = |role: Role| {
            let tensors = self.trainable.tensors().iter().filter(|named| named.role == role);
            tensors.map(|named| (named.tensor.numel() * named.tensor.kind().elt_size_in_bytes()) as f64).sum::<f64>()
        };
        let (parameters, buffers) = (bytes(Role::Parameter), bytes(Role::Buffer));
        let copies = if options.accumulate_grad_batches > 1 { 2.0 } else { 1.0 };
        AlwaysBytes {
            weights: parameters + 2.0 * buffers,
            gradients: copies * parameters,
            optimizer: 2.0 * parameters,
            teacher: self.teacher_bytes,
        }
    }
}

/// Starts a teacher with random weights that caches no targets. Returns the link to it and the bytes of its weights.
fn random_teacher(config: &Config, device: Device, architecture: &GnnConfig) -> Result<(TeacherLink, f64), StageError> {
    let kernel = training::attention_kernel(config);
    let mut parameters = FreshParameters::new(config.training.seed, Device::Cpu);
    drop(Gnn::new(Scope::root(&mut parameters), architecture, kernel)?);
    let tensors = parameters.into_tensors().into_iter().map(|named| (named.name, named.tensor.detach()));
    let weights = Weights::from_tensors(tensors)?;
    let sizes = weights.iter().map(|(_, tensor)| tensor.numel() * tensor.kind().elt_size_in_bytes());
    let bytes = sizes.map(|bytes| bytes.next_multiple_of(TEACHER_ALIGNMENT)).sum::<usize>();
    let architecture = Architecture::Graph(architecture.clone());
    let model = frozen::model(architecture, TeacherVocabulary::Shared, kernel, teacher::asked(config));
    let options = TeacherOptions {
        residency: teacher::residency(config),
        layer_slots: config.distillation.teacher_layer_slots,
        ..TeacherOptions::new(device)
    };
    let teacher = Teacher::start(model.map_err(TeacherError::from)?, weights, &options, &StoreShape::default())?;
    Ok((TeacherLink::new(Some(teacher), config.distillation.teacher_burst, training::alpha(config)), bytes as f64))
}
