//! Student with its optimiser, stepped as in the training loop.

use std::path::PathBuf;

use kdgat::distill::alpha::Alpha;
use kdgat::distill::frozen::{self, Asked, TeacherVocabulary};
use kdgat::distill::losses::{LogitLoss, Projection, VgaeWeights};
use kdgat::distill::objective::{
    GatDistillation, GatObjective, GraphDistillation, GraphObjective, GraphVgaeObjective, NodeObjective,
    PretrainingObjective, TeacherLink, VgaeDistillation, VgaeObjective,
};
use kdgat::distill::{CacheMode, CacheOptions, Residency, StoreShape, Teacher, TeacherOptions, Weights};
use kdgat::graph::{Batch, Task};
use kdgat::nn::attention::Backend;
use kdgat::nn::{Architecture, ClassLoss, FreshParameters, Gat, Gnn, GraphVgae, NodeGnn, Pretraining, Scope, Vgae};
use kdgat::random::{self, Purpose};
use kdgat::train::console::Console;
use kdgat::train::objective::Objective;
use kdgat::train::optimizer::{Adam, AdamOptions};
use kdgat::train::step::{StepBatch, StepOptions, StepRunner};
use kdgat::train::threads::own_threads;
use kdgat::train::trainable::Trainable;
use tch::{Device, Kind, Tensor};

use super::Error;

const SEED: u64 = 1;
const LEARNING_RATE: f64 = 2e-3;
/// Optimiser settings of the presets.
pub const ADAM: AdamOptions =
    AdamOptions { weight_decay: 1e-4, gradient_clip: 1.0, offload: false, kernel: Backend::Auto, ..AdamOptions::PLAIN };

/// Weights of the distillation losses: the values of the presets.
pub const VGAE_WEIGHTS: VgaeWeights = VgaeWeights { alpha: 0.7, latent: 0.5, reconstruction: 0.5 };
const TEMPERATURE: f64 = 4.0;

/// Starts a teacher.
pub fn start_teacher(
    architecture: &Architecture,
    weights: Weights,
    options: &TeacherOptions,
    shape: &StoreShape,
) -> Result<Teacher, Error> {
    let model = frozen::model(architecture.clone(), TeacherVocabulary::Shared, Backend::Auto, Asked::OUTPUTS)?;
    Ok(Teacher::start(model, weights, options, shape)?)
}

/// Options of a teacher: residency of its weights, and caching of its targets in memory.
pub fn teacher_options(device: Device, residency: Residency, burst: usize, cached: bool) -> TeacherOptions {
    let cache = CacheOptions {
        mode: if cached { CacheMode::Ram } else { CacheMode::Off },
        ram_budget_bytes: 8 << 30,
        path: None::<PathBuf>,
        ..CacheOptions::off()
    };
    TeacherOptions { residency, burst, cache, ..TeacherOptions::new(device) }
}

/// State of a training.
pub struct Training {
    pub objective: Box<dyn Objective>,
    pub trainable: Trainable,
    runner: StepRunner,
    device: Device,
    /// Its states are allocated at the first step, as in a run that is measured before it begins.
    optimizer: Option<Adam>,
    console: Console,
    sums: Tensor,
    steps: u64,
}

impl Training {
    /// Creates a student that trains alone or, with a link, is distilled from a teacher of that architecture.
    pub fn new(
        student: &Architecture,
        teacher: Option<(Teacher, &Architecture)>,
        burst: usize,
        device: Device,
    ) -> Result<Self, Error> {
        Self::with_checkpointing(student, teacher, burst, device, false)
    }

    /// Same as [`Training::new`], with gradient checkpointing.
    pub fn with_checkpointing(
        student: &Architecture,
        teacher: Option<(Teacher, &Architecture)>,
        burst: usize,
        device: Device,
        recomputes: bool,
    ) -> Result<Self, Error> {
        let mut parameters = FreshParameters::new(SEED, device);
        let (teacher, taught_by) = teacher.unzip();
        let link = TeacherLink::new(teacher, burst, Alpha::constant(VGAE_WEIGHTS.alpha));
        let objective: Box<dyn Objective> = match student {
            Architecture::Vgae(config) => {
                let mut model = Vgae::new(Scope::root(&mut parameters), config, Backend::Auto)?;
                model.set_checkpointing(recomputes);
                let distillation = match taught_by {
                    Some(Architecture::Vgae(taught_by)) => Some(VgaeDistillation {
                        hints: None,
                        translation: None,
                        projection: Some(Projection::new(
                            Scope::root(&mut parameters),
                            config.latent,
                            taught_by.latent,
                        )?),
                        latent_weight: VGAE_WEIGHTS.latent,
                        reconstruction_weight: VGAE_WEIGHTS.reconstruction,
                    }),
                    _ => None,
                };
                Box::new(VgaeObjective { model, teacher: link, distillation })
            }
            Architecture::GraphVgae(config) => {
                let model = GraphVgae::new(Scope::root(&mut parameters), config, Backend::Auto)?;
                Box::new(GraphVgaeObjective::new(model, link, None, SEED))
            }
            Architecture::Pretraining(config) => {
                let model = Pretraining::new(Scope::root(&mut parameters), config, Backend::Auto)?;
                Box::new(PretrainingObjective::new(model, SEED))
            }
            Architecture::Nodes(config) => {
                let model = NodeGnn::new(Scope::root(&mut parameters), config, Backend::Auto)?;
                let distillation = taught_by.map(|_| LogitLoss::SoftLabels { temperature: TEMPERATURE });
                Box::new(NodeObjective {
                    model,
                    teacher: link,
                    distillation,
                    consistency: None,
                    labelled_share: 1.0,
                    reads_whole: false,
                })
            }
            Architecture::Graph(config) => {
                let model = Gnn::new(Scope::root(&mut parameters), config, Backend::Auto)?;
                let loss = LogitLoss::SoftLabels { temperature: TEMPERATURE };
                let distillation = taught_by.map(|_| GraphDistillation {
                    loss,
                    teacher_scales: Vec::new(),
                    hints: None,
                    vectors: None,
                    embedding: None,
                });
                Box::new(GraphObjective::new(model, Task::Classification, link, distillation))
            }
            Architecture::Gat(config) => {
                let mut model = Gat::new(Scope::root(&mut parameters), config, Backend::Auto)?;
                model.set_checkpointing(recomputes);
                let loss = LogitLoss::SoftLabels { temperature: TEMPERATURE };
                let distillation = taught_by.map(|_| GatDistillation { loss, hints: None });
                Box::new(GatObjective {
                    model,
                    task: ClassLoss::CrossEntropy,
                    teacher: link,
                    distillation,
                    labels: None,
                    mean_label_weight: None,
                })
            }
        };
        Self::of(objective, parameters, device)
    }

    /// Creates a training of any objective with its parameters.
    pub fn of(objective: Box<dyn Objective>, parameters: FreshParameters, device: Device) -> Result<Self, Error> {
        let trainable = Trainable::new(parameters.into_tensors(), device)?;
        let runner = StepRunner::new(&trainable, device, None)?;
        let console = Console::new(None)?;
        let parts = objective.parts().len() as i64;
        let sums = Tensor::f_zeros([1 + parts], (Kind::Double, device))?;
        Ok(Self { objective, trainable, runner, device, optimizer: None, console, sums, steps: 0 })
    }

    /// Trains on `batches`, announced in bursts of the objective's size.
    pub fn run(&mut self, batches: &[Batch]) -> Result<(), Error> {
        self.run_padded(batches, &[])
    }

    /// Same as [`Training::run`], with CUDA graphs of the padded batches, one for each batch; with an empty slice, without.
    pub fn run_padded(&mut self, batches: &[Batch], padded: &[Batch]) -> Result<(), Error> {
        let size = self.objective.source().burst().max(1);
        for (index, burst) in batches.chunks(size).enumerate() {
            self.objective.source_mut().announce(burst)?;
            for (place, batch) in burst.iter().enumerate() {
                let _ = self.step(StepBatch { batch, filled_up: padded.get(index * size + place) })?;
            }
        }
        Ok(())
    }

    /// Same as [`Training::run`]; returns the total loss of each step.
    pub fn losses(&mut self, batches: &[Batch]) -> Result<Vec<f64>, Error> {
        let mut losses = Vec::with_capacity(batches.len());
        for burst in batches.chunks(self.objective.source().burst().max(1)) {
            self.objective.source_mut().announce(burst)?;
            for batch in burst {
                losses.push(self.step(batch.into())?.f_double_value(&[])?);
            }
        }
        Ok(losses)
    }

    /// Makes one step as `train::fit` does: targets, seed, loss, backward, running sums, clipping and Adam on the flat
    /// parameters. Returns the total loss without synchronising.
    fn step(&mut self, step: StepBatch) -> Result<Tensor, Error> {
        let batch = step.batch;
        let _threads = own_threads(&self.trainable, ADAM.kernel, self.device, None);
        self.objective.receive(batch)?;
        let seed = random::bits(SEED, Purpose::Step, 0, self.steps) as i64;
        let options = StepOptions { seed, scale: 1.0, accumulates: false };
        self.steps += 1;
        let Self { objective, trainable, console, .. } = self;
        let losses = self.runner.gradients(objective.as_mut(), trainable, step, options, console)?;
        self.sums = tch::no_grad(|| self.sums.f_add(&losses.f_mul_scalar(batch.num_graphs() as f64)?))?;
        if self.optimizer.is_none() {
            self.optimizer = Some(Adam::new(trainable, ADAM)?);
        }
        if let Some(optimizer) = &mut self.optimizer {
            let _ = optimizer.step(trainable, LEARNING_RATE)?;
        }
        trainable.zero_gradients()?;
        Ok(losses.f_get(0)?)
    }

    /// Sum of all total losses so far; reading it synchronises with the device.
    pub fn loss_sum(&self) -> Result<f64, Error> {
        Ok(self.sums.f_double_value(&[0])?)
    }
}
