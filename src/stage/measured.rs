//! A training whose memory is measured before its first epoch, in steps of its student on its batches: [`Measured`]. [`FreshTraining`] makes
//! one for a plan, with new weights, because memory does not depend on weights.

use std::sync::Arc;

use tch::{Device, Tensor};

use super::initial_weights::InitialWeights;
use super::sizes::Sizes;
use super::teacher::{FoundTeacher, FurtherNetwork};
use super::workload::NewStudent;
use super::{StageError, autoencoder, classifier, graph_autoencoder, graphs, nodes, pretraining, teacher, training};
use crate::config::Config;
use crate::distill::foreign::ForeignTargets;
use crate::distill::frozen::TeacherVocabulary;
use crate::distill::objective::{Student, TeacherLink};
use crate::distill::{FrozenModel, StoreShape, Teacher, TeacherOptions, Weights};
use crate::graph::{Loader, Task};
use crate::memory;
use crate::memory::budget::MemoryBudget;
use crate::memory::probe::{MeasuredSteps, NextBatch, Probe, Sample};
use crate::memory::rehearsal::{CaptureBytes, Rehearsal};
use crate::nn::{
    Architecture, ClassLoss, FreshParameters, Gat, Gnn, GraphVgae, NodeGnn, Pretraining, Scope, Vgae,
    attention::Backend,
};
use crate::train::fit::FitOptions;
use crate::train::trainable::Trainable;

/// Graphs of the largest measured batch, and of smaller ones if it does not fit.
const MEASURED_GRAPHS: [usize; 3] = [256, 16, 1];

/// A student in training, and the batches that its steps are measured on.
pub struct Measured<'a> {
    pub student: &'a mut dyn Student,
    pub trainable: &'a mut Trainable,
    pub training_loader: &'a Loader,
    pub validation_loader: &'a Loader,
    pub sizes: &'a Sizes,
    pub options: &'a FitOptions,
}

/// Batches in memory at a time, besides the one in work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Batches announced to the teacher at a time; 1 without a teacher.
    pub burst: usize,
    /// Batches of a full loader queue.
    pub waiting: usize,
}

impl<'a> Measured<'a> {
    /// A training with these loaders of training and of validation batches.
    pub fn of(
        student: &'a mut dyn Student,
        trainable: &'a mut Trainable,
        [training_loader, validation_loader]: [&'a Loader; 2],
        sizes: &'a Sizes,
        options: &'a FitOptions,
    ) -> Self {
        Self { student, trainable, training_loader, validation_loader, sizes, options }
    }

    /// The budget of batches of up to `cap` of these graphs, or nodes of one large graph. `most`: largest measured number, 256 if it is `None`.
    ///
    /// # Errors
    /// If not even one graph fits, or a step fails.
    pub fn budget(
        &mut self,
        graphs: &[u64],
        cap: usize,
        most: Option<usize>,
        queues: Queues,
    ) -> Result<MemoryBudget, StageError> {
        let (sizes, mut last) = (self.sizes, None);
        let size_of = |graph| sizes.of_graph(graph);
        for largest in most.into_iter().chain(MEASURED_GRAPHS.into_iter().filter(|_| most.is_none())) {
            match self.uncached(|training| {
                Ok(training.probe(&size_of, graphs, (cap, queues), false).measure_up_to(largest)?)
            }) {
                Err(error) if memory::is_out_of_memory(&error) => last = Some(error),
                other => return other,
            }
            if largest.min(cap).min(graphs.len()) <= 1 {
                break;
            }
        }
        Err(last.unwrap_or_else(|| StageError::Input("there is no graph to measure a step on".to_owned())))
    }

    /// Steps on the batches that `next` returns.
    ///
    /// # Errors
    /// If a batch does not fit, or a step fails.
    pub fn steps(&mut self, next: &mut NextBatch<'_>) -> Result<MeasuredSteps, StageError> {
        let (sizes, micro_batch) = (self.sizes, self.options.micro_batch_graphs);
        let size_of = |graph| sizes.of_graph(graph);
        self.uncached(|training| {
            Ok(training.probe(&size_of, &[], (1, Queues::NONE), false).measure_each(micro_batch, next)?)
        })
    }

    /// The validation of a batch.
    ///
    /// # Errors
    /// If the batch does not fit, or its losses cannot be computed.
    pub fn validation(&mut self, batch: &[u64]) -> Result<Sample, StageError> {
        let (sizes, micro_batch) = (self.sizes, self.options.micro_batch_graphs);
        let size_of = |graph| sizes.of_graph(graph);
        self.uncached(|training| {
            Ok(training.probe(&size_of, &[], (1, Queues::NONE), true).measure_validation(micro_batch, batch)?)
        })
    }

    /// Captures of the work on these batches, in this order.
    ///
    /// # Errors
    /// If a batch does not fit, or its work cannot be captured.
    pub fn captures(&mut self, rehearsals: &[Rehearsal]) -> Result<Vec<CaptureBytes>, StageError> {
        let sizes = self.sizes;
        let size_of = |graph| sizes.of_graph(graph);
        self.uncached(|training| Ok(training.probe(&size_of, &[], (1, Queues::NONE), false).rehearse(rehearsals)?))
    }

    /// Measures without filling the teacher's cache.
    fn uncached<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, StageError>) -> Result<T, StageError> {
        self.student.teacher_mut().measure(true);
        let outcome = work(self);
        self.student.teacher_mut().measure(false);
        outcome
    }

    fn probe<'b>(
        &'b mut self,
        size_of: &'b dyn Fn(u64) -> (u64, u64),
        graphs: &'b [u64],
        (cap, queues): (usize, Queues),
        of_validation: bool,
    ) -> Probe<'b> {
        Probe {
            objective: &mut *self.student,
            trainable: self.trainable,
            loader: if of_validation { self.validation_loader } else { self.training_loader },
            graphs,
            size_of,
            cap,
            burst: queues.burst,
            waiting_batches: queues.waiting,
            adam: self.options.adam,
            precision: self.options.precision,
            device: self.options.device,
        }
    }
}

impl Queues {
    const NONE: Self = Self { burst: 1, waiting: 0 };
}

/// Architectures of a training that need not run.
#[derive(Clone)]
pub struct Networks {
    pub student: Architecture,
    /// The networks of the teacher; none without a teacher that computes.
    pub teachers: Vec<Architecture>,
    /// A file with a teacher's outputs.
    pub foreign: Option<Arc<ForeignTargets>>,
    /// The task of graphs that are no CAN windows.
    pub task: Task,
}

/// A student with new weights and a teacher with random ones.
pub struct FreshTraining {
    pub student: Box<dyn Student>,
    pub trainable: Trainable,
}

impl FreshTraining {
    /// Makes the student, with the layers of `init_from` frozen if the configuration says so, and starts its teacher.
    ///
    /// # Errors
    /// Networks that do not fit each other, or too little memory.
    pub fn new(config: &Config, device: Device, networks: &Networks) -> Result<Self, StageError> {
        let NewStudent { mut parameters, mut student } = new_student(config, device, networks)?;
        if let Some(start) = InitialWeights::find(config, &mut serde_json::Map::new())? {
            start.fill(&mut parameters, &networks.student)?;
        }
        *student.teacher_mut() = match &networks.foreign {
            Some(targets) => TeacherLink::from_file(Arc::clone(targets), training::alpha(config)),
            None => random_teacher(config, device, &networks.teachers)?,
        };
        Ok(Self { student, trainable: Trainable::new(parameters.into_tensors(), device)? })
    }
}

fn new_student(
    config: &Config,
    device: Device,
    networks: &Networks,
) -> Result<NewStudent<Box<dyn Student>>, StageError> {
    fn boxed<S: Student + 'static>(new: NewStudent<S>) -> NewStudent<Box<dyn Student>> {
        NewStudent { parameters: new.parameters, student: Box::new(new.student) }
    }
    let teacher = networks.teachers.first();
    Ok(match &networks.student {
        Architecture::Vgae(own) => boxed(autoencoder::new_student(config, device, own, teacher)?),
        // The weights of classes take no memory.
        Architecture::Gat(own) => {
            boxed(classifier::new_student(config, device, (own, ClassLoss::CrossEntropy), teacher)?)
        }
        Architecture::Graph(own) => {
            let foreign = networks.foreign.as_deref();
            boxed(graphs::new_student(config, device, (own, networks.task), teacher, foreign)?)
        }
        Architecture::GraphVgae(own) => boxed(graph_autoencoder::new_student(config, device, own, teacher)?),
        Architecture::Pretraining(own) => boxed(pretraining::new_student(config, device, own)?),
        // Targets of all nodes come from a file or a cache.
        Architecture::Nodes(own) => boxed(nodes::new_student(config, device, own, config.distillation.use_kd)?),
    })
}

/// A teacher of these networks with random weights.
fn found(config: &Config, architectures: &[Architecture]) -> Result<FoundTeacher, StageError> {
    let kernel = training::attention_kernel(config);
    let network = |architecture: &Architecture| {
        let tensors = fresh_parameters(architecture, config.training.seed, kernel)?.into_tensors();
        let weights = Weights::from_tensors(tensors.into_iter().map(|named| (named.name, named.tensor.detach())))?;
        let vocabulary = TeacherVocabulary::Shared;
        Ok((FurtherNetwork { architecture: architecture.clone(), vocabulary }, weights))
    };
    let networks = architectures.iter().map(network).collect::<Result<Vec<_>, StageError>>()?;
    let (networks, weights) = networks.into_iter().unzip();
    FoundTeacher::of(networks, weights, teacher::asked(config))
}

/// The model of a teacher of these networks, which tells the layout of its targets.
///
/// # Errors
/// Networks without a common layout of targets, or too little memory.
pub fn teacher_model(config: &Config, architectures: &[Architecture]) -> Result<Box<dyn FrozenModel>, StageError> {
    Ok(found(config, architectures)?.model(training::attention_kernel(config))?)
}

/// Starts a teacher with random weights that caches no targets; an empty link without networks.
fn random_teacher(config: &Config, device: Device, teachers: &[Architecture]) -> Result<TeacherLink, StageError> {
    // Targets of nodes are computed by layers, and never by a thread.
    if teachers.is_empty() || matches!(teachers[0], Architecture::Nodes(_)) {
        return Ok(TeacherLink::new(None, 1, training::alpha(config)));
    }
    let found = found(config, teachers)?;
    let options = TeacherOptions {
        residency: teacher::residency(config),
        layer_slots: config.distillation.teacher_layer_slots,
        ..TeacherOptions::new(device)
    };
    let model = found.model(training::attention_kernel(config))?;
    let teacher = Teacher::start(model, found.weights, &options, &StoreShape::default())?;
    Ok(TeacherLink::new(Some(teacher), config.distillation.teacher_burst, training::alpha(config)))
}

/// New parameters of a network.
fn fresh_parameters(architecture: &Architecture, seed: u64, kernel: Backend) -> Result<FreshParameters, StageError> {
    let mut parameters = FreshParameters::new(seed, Device::Cpu);
    let scope = Scope::root(&mut parameters);
    match architecture {
        Architecture::Vgae(config) => drop(Vgae::new(scope, config, kernel)?),
        Architecture::Gat(config) => drop(Gat::new(scope, config, kernel)?),
        Architecture::Graph(config) => drop(Gnn::new(scope, config, kernel)?),
        Architecture::Nodes(config) => drop(NodeGnn::new(scope, config, kernel)?),
        Architecture::GraphVgae(config) => drop(GraphVgae::new(scope, config, kernel)?),
        Architecture::Pretraining(config) => drop(Pretraining::new(scope, config, kernel)?),
    }
    Ok(parameters)
}

/// Bytes of a network's tensors.
///
/// # Errors
/// An architecture that cannot be built, or too little memory.
pub fn weight_bytes(architecture: &Architecture) -> Result<f64, StageError> {
    let parameters = fresh_parameters(architecture, 0, Backend::Auto)?;
    Ok(parameters.tensors().iter().map(|named| tensor_bytes(&named.tensor)).sum())
}

/// Bytes of a tensor.
pub fn tensor_bytes(tensor: &Tensor) -> f64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as f64
}
