//! Distils a student with a loss that kdgat does not have: the cosine distance between the latents of student and teacher.
//!
//!     cargo run --release --example own_loss -- runs/own_loss
//!
//! A loss is an [`Objective`]. The epoch loop ([`fit`]) adds the rest: prefetched batches, the teacher's thread and its cache,
//! recovery when memory runs out, logs, checkpoints, and resuming.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use kdgat::can::{Dataset, SimulationOptions, ensure_simulated};
use kdgat::distill::alpha::Alpha;
use kdgat::distill::frozen::{self, Asked, TeacherVocabulary};
use kdgat::distill::objective::TeacherLink;
use kdgat::distill::registry::Registry;
use kdgat::distill::vgae_terms::Projection;
use kdgat::distill::{CacheMode, CacheOptions, Residency, StoreShape, TargetName, Teacher, TeacherOptions};
use kdgat::graph::{AssembleOptions, Batch, BuildOptions, Loader, LoaderOptions, Split, Store, Vocabulary};
use kdgat::graph::{open_or_build, shuffled_batches};
use kdgat::nn::attention::Backend;
use kdgat::nn::vgae::{Mode, task_loss};
use kdgat::nn::{Architecture, FreshParameters, Scope, Vgae, VgaeConfig};
use kdgat::torch::allocator;
use kdgat::train::checkpoint;
use kdgat::train::console::Console;
use kdgat::train::fit::BatchPlan;
use kdgat::train::fit::{BEST, Fit, FitOptions, FitSummary, fit};
use kdgat::train::objective::{Losses, Objective, ObjectiveError, Part, TargetSource};
use kdgat::train::run_directory::RunDirectory;
use kdgat::train::trainable::Trainable;
use tch::{Device, Tensor};

const SEED: u64 = 1;
/// Share of the distillation in the loss.
const ALPHA: f64 = 0.5;
const BATCH_GRAPHS: usize = 256;

/// A VGAE student whose projected z should point in the direction of the teacher's μ.
struct CosineObjective {
    student: Vgae,
    projection: Projection,
    teacher: TeacherLink,
}

impl Objective for CosineObjective {
    fn parts(&self) -> &'static [&'static str] {
        &["task_loss", "cosine_kd"]
    }

    fn source(&self) -> &dyn TargetSource {
        &self.teacher
    }

    fn source_mut(&mut self) -> &mut dyn TargetSource {
        &mut self.teacher
    }

    /// α · mean over nodes of (1 − cos(projected z, μ of the teacher)) + (1 − α) · task
    fn loss(&mut self, batch: &Batch, part: &Part, mode: Mode) -> Result<Losses, ObjectiveError> {
        let output = self.student.forward(batch, mode)?;
        let task = task_loss(&output, batch)?.total;
        let targets = self.teacher.targets_of(part)?.ok_or("this loss needs a teacher")?;
        let taught = targets.get(TargetName::Latent).ok_or("the teacher returns no latent")?.gathered()?;
        let projected = self.projection.forward(&output.latent, Backend::Auto)?;
        let cosine = Tensor::f_cosine_similarity(&projected, &taught, 1, 1e-8)?.f_mean(None)?;
        let distance = cosine.f_neg()?.f_add_scalar(1.0)?;
        let total = self.teacher.total(&distance, &task, mode)?;
        Ok(Losses { total, parts: vec![task, distance] })
    }

    fn rows(&self, part: &Part) -> f64 {
        // Both terms are means over nodes.
        (part.nodes.end - part.nodes.start) as f64
    }
}

/// Shuffled batches of the attack-free graphs.
struct AttackFree {
    training: Vec<u64>,
    validation: Vec<u64>,
}

impl BatchPlan for AttackFree {
    fn training(&self, epoch: u64) -> Vec<Vec<u64>> {
        shuffled_batches(&self.training, BATCH_GRAPHS, SEED, epoch)
    }

    fn validation(&self) -> Vec<Vec<u64>> {
        self.validation.chunks(BATCH_GRAPHS).map(<[u64]>::to_vec).collect()
    }
}

/// Starts the registered VGAE teacher of the dataset `sim`; returns it with the width of its latent.
fn start_teacher(teachers: &Path, store: &Store) -> Result<(Teacher, i64), Box<dyn Error>> {
    let registered = Registry::new(teachers).find("sim", "vgae")?;
    let architecture = frozen::registered_architecture(&registered)?;
    let Architecture::Vgae(config) = &architecture else { return Err("the teacher is no VGAE".into()) };
    let latent = config.latent;
    let ids = Vocabulary::from_ids(registered.config.vocabulary.iter().copied());
    let vocabulary = TeacherVocabulary::new(&architecture, ids, store.vocabulary());
    let model = frozen::model(architecture, vocabulary, Backend::Auto, Asked::OUTPUTS)?;
    let cache = CacheOptions { mode: CacheMode::Ram, ram_budget_bytes: 1 << 30, ..CacheOptions::off() };
    let options = TeacherOptions { residency: Residency::Forward, burst: 4, cache, ..TeacherOptions::new(Device::Cpu) };
    Ok((Teacher::start(model, registered.load()?, &options, &StoreShape::new(store, None))?, latent))
}

/// Simulates traffic below `workplace`, distils a student for `epochs` epochs and writes the run there.
pub fn distil(workplace: &Path, teachers: &Path, epochs: u64) -> Result<FitSummary, Box<dyn Error>> {
    // Counts the tensors' memory, for the logs and for recovery.
    allocator::install()?;
    let data = workplace.join("sim");
    ensure_simulated(&SimulationOptions::default(), &data)?;
    let dataset = Dataset::open(&data)?;
    let store = Arc::new(open_or_build(&dataset, &BuildOptions::default(), &workplace.join("stores"), &())?);
    let vocabulary = Arc::new(store.vocabulary().clone());

    let (teacher, teacher_latent) = start_teacher(teachers, &store)?;
    let config = VgaeConfig {
        hidden: vec![80, 40, 16],
        latent: 16,
        heads: 1,
        embedding: 4,
        vocabulary_size: vocabulary.len() as i64,
        dropout: 0.1,
        edge_scaling: None,
        input: Default::default(),
    };
    let mut parameters = FreshParameters::new(SEED, Device::Cpu);
    let mut objective = CosineObjective {
        student: Vgae::new(Scope::root(&mut parameters), &config, Backend::Auto)?,
        projection: Projection::new(Scope::root(&mut parameters), config.latent, teacher_latent)?,
        teacher: TeacherLink::new(Some(teacher), 4, Alpha::constant(ALPHA)),
    };
    let mut trainable = Trainable::new(parameters.into_tensors(), Device::Cpu)?;

    let assemble = AssembleOptions::new(vocabulary);
    let loader = Loader::start(Arc::clone(&store), LoaderOptions { assemble, workers: 1, prefetch_batches: 4 });
    let mut plan = AttackFree {
        training: store.select(Split::Train, Some(false)),
        validation: store.select(Split::Validation, Some(false)),
    };
    let run = RunDirectory::create(&workplace.join("runs"))?;
    let best = run.file(BEST);
    let summary = fit(
        Fit {
            objective: &mut objective,
            trainable: &mut trainable,
            training_loader: &loader,
            validation_loader: &loader,
            plan: &mut plan,
            run: &run,
            console: &mut Console::new(None)?,
            save_best: &mut |trainable, position| checkpoint::write(&best, &trainable.state_dict()?, position),
        },
        &FitOptions::new(epochs, 2e-3, Device::Cpu),
        false,
    )?;
    if let Some(teacher) = objective.teacher.into_teacher() {
        teacher.finish()?;
    }
    Ok(summary)
}

#[allow(dead_code)] // The tests call `distil`.
fn main() -> Result<(), Box<dyn Error>> {
    let Some(workplace) = std::env::args_os().nth(1) else {
        return Err("give a folder for the simulated traffic and the run".into());
    };
    let summary = distil(Path::new(&workplace), Path::new("teachers"), 20)?;
    if let Some(best) = summary.best {
        println!("best epoch: {best:#?}");
    }
    Ok(())
}
