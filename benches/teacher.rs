//! Time and memory that a teacher adds to the student's step, by the residency of its weights and with cached targets.
//!
//!     cargo bench --bench teacher -- [--quick] [--json] [--device cuda] [--graphs FILE] [--results DIR]
//!
//! A VGAE student takes real steps (the stage's objective, flat parameters, Adam) with VGAE teachers of several
//! sizes. Each round measures every way once; a ratio is the median of the ratios of the rounds. The baseline is
//! the naive way: in every step, each parameter is copied to the device and back, by a separate synchronous copy.

mod common;

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use common::graphs::Graphs;
use common::in_turn::InTurn;
use common::models::{architecture, random_tensors, vgae_of_bytes};
use common::rows::Rows;
use common::training::{Training, VGAE_WEIGHTS, start_teacher, teacher_options};
use common::{Error, median};
use kdgat::distill::losses::{self, Projection, VgaeTaught};
use kdgat::distill::planner::format_bytes;
use kdgat::distill::{Residency, StoreShape, Weights};
use kdgat::graph::Batch;
use kdgat::nn::attention::Backend;
use kdgat::nn::vgae::Mode;
use kdgat::nn::{Architecture, FreshParameters, GivenTensors, Scope, Vgae};
use kdgat::torch::{allocator, device};
use kdgat::train::objective::{Losses, NoTargets, Objective, ObjectiveError, Part, TargetSource};
use tch::{Device, Tensor};

/// Time and memory that a teacher adds to a student's step
#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    output: common::Output,
    /// cpu, cuda or cuda:INDEX
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Threads of libtorch; 0: one a core
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// A safetensors file of graphs; simulated traffic without it
    #[arg(long)]
    graphs: Option<PathBuf>,
    /// Sizes of the teachers in MB, separated by commas
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u64>,
    /// Graphs per batch
    #[arg(long)]
    batch: Option<usize>,
    /// Measure only these ways (`without KD,cached`), and print the result without a report; `epochs`: epochs with cached targets,
    /// alternating with epochs without KD
    #[arg(long, value_delimiter = ',')]
    ways: Vec<String>,
    /// Rounds; each measures every way once
    #[arg(long)]
    rounds: Option<usize>,
    /// Flag that `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// Value of `--ways` that measures only alternating epochs.
const EPOCHS_IN_TURN: &str = "epochs";

/// Steps per way and round: one visit with the largest burst.
const STEPS: usize = 16;

/// Source of a step's targets.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    WithoutKd,
    Naive,
    Visits(Residency, usize),
    /// Targets are cached in memory: one epoch fills the cache, the next reads it.
    Cached,
}

impl Way {
    const ALL: [Self; 8] = [
        Self::WithoutKd,
        Self::Naive,
        Self::Visits(Residency::Resident, 16),
        Self::Visits(Residency::Forward, 1),
        Self::Visits(Residency::Forward, 4),
        Self::Visits(Residency::Forward, 16),
        Self::Visits(Residency::Layer, 16),
        Self::Cached,
    ];
    const RESIDENT: usize = 2;

    fn name(self) -> String {
        match self {
            Self::WithoutKd => "without KD".to_owned(),
            Self::Naive => "naive".to_owned(),
            Self::Visits(Residency::Resident, _) => "resident".to_owned(),
            Self::Visits(residency, burst) => format!("{residency}, burst {burst}"),
            Self::Cached => "cached".to_owned(),
        }
    }
}

/// Result of one turn of a way.
#[derive(Debug, Clone, Copy)]
struct Turn {
    step_ms: f64,
    /// Milliseconds per step of the first epoch from a cold start: with `Cached`, the epoch that fills the cache; with a resident
    /// teacher, the epoch that it is compared with.
    first_epoch_ms: Option<f64>,
    peak_bytes: f64,
}

struct Bench {
    device: Device,
    student: Architecture,
    batches: Vec<Batch>,
    shape: StoreShape,
}

fn main() -> Result<(), Error> {
    let options = Options::parse();
    common::start(options.threads)?;
    let device = common::device(&options.device)?;
    let on_gpu = device != Device::Cpu;
    let graphs = Graphs::open(options.graphs.as_deref())?;
    let only_epochs = options.ways == [EPOCHS_IN_TURN];
    let sizes = match (&options.sizes[..], on_gpu, options.output.quick) {
        _ if only_epochs => Vec::new(),
        ([], true, true) => vec![7, 200],
        ([], true, false) => vec![1, 7, 50, 200, 2000],
        ([], false, true) => vec![1, 7],
        ([], false, false) => vec![1, 7, 50, 200],
        (given, ..) => given.to_vec(),
    };
    let mut rows = Rows::new("teacher", options.output.json);
    for megabytes in sizes {
        let batch_graphs = options.batch.unwrap_or(batch_graphs(megabytes, on_gpu));
        let rounds = options.rounds.unwrap_or(match (options.output.quick, megabytes) {
            (true, _) => 2,
            (false, ..=50) => 5,
            (false, _) => 3,
        });
        let count = STEPS.min(graphs.count() / batch_graphs).max(1);
        let batches = graphs.batches(batch_graphs, count)?;
        let bench = Bench {
            device,
            student: architecture("vgae", "student", graphs.vocabulary_size())?,
            batches: batches.iter().map(|batch| batch.to_device(device)).collect::<Result<_, _>>()?,
            shape: graphs.shape(count * batch_graphs),
        };
        let teacher = Architecture::Vgae(vgae_of_bytes(megabytes * 1_000_000, graphs.vocabulary_size())?);
        let name = format!("{megabytes} MB, batch {batch_graphs}");
        let turns = bench.measure(&teacher, &name, rounds, &options.ways)?;
        if options.ways.is_empty() {
            report(&name, teacher_bytes(&teacher)?, &turns, &mut rows);
        } else {
            print_steps(&name, &turns);
        }
    }
    if !options.ways.is_empty() && !only_epochs {
        return Ok(());
    }
    let rounds = if options.output.quick { 6 } else { 40 };
    epochs_in_turn(&graphs, device, rounds, &mut rows)?;
    rows.finish(device, options.output.results.as_deref())
}

/// Time that cached targets add to an epoch of the presets' students.
fn epochs_in_turn(graphs: &Graphs, device: Device, rounds: usize, rows: &mut Rows) -> Result<(), Error> {
    let count = STEPS.min(graphs.count() / 512).max(1);
    let batches: Vec<Batch> =
        graphs.batches(512, count)?.iter().map(|batch| batch.to_device(device)).collect::<Result<_, _>>()?;
    for model in ["vgae", "gat"] {
        let [student, teacher] = ["student", "teacher"].map(|size| architecture(model, size, graphs.vocabulary_size()));
        let in_turn = InTurn::start(&student?, &teacher?, &batches, &graphs.shape(count * 512), device)?;
        in_turn.report(&format!("{model} student, batch 512"), &batches, rounds, rows)?;
    }
    Ok(())
}

/// Graphs per batch. On a CPU a large teacher's forward pass takes seconds per batch; fewer graphs need the same copies in less
/// time.
fn batch_graphs(megabytes: u64, on_gpu: bool) -> usize {
    match (on_gpu, megabytes) {
        (true, _) | (false, ..=1) => 512,
        (false, ..=10) => 128,
        (false, _) => 32,
    }
}

impl Bench {
    /// Measures the turns of each way; empty for ways that were not requested.
    fn measure(
        &self,
        teacher: &Architecture,
        name: &str,
        rounds: usize,
        asked: &[String],
    ) -> Result<Vec<Vec<Turn>>, Error> {
        let tensors = random_tensors(teacher, 7)?;
        eprintln!("teacher of {}, {name}", format_bytes(teacher_bytes(teacher)? as u64));
        let mut turns: Vec<Vec<Turn>> = vec![Vec::new(); Way::ALL.len()];
        for round in 0..rounds {
            for (way, turns) in Way::ALL.iter().zip(&mut turns) {
                if !asked.is_empty() && !asked.contains(&way.name()) {
                    continue;
                }
                let turn = self.turn(*way, teacher, &tensors)?;
                eprintln!(
                    "  round {}/{rounds} {:<18} {:9.2} ms a step, peak {}",
                    round + 1,
                    way.name(),
                    turn.step_ms,
                    format_bytes(turn.peak_bytes as u64)
                );
                turns.push(turn);
            }
        }
        Ok(turns)
    }

    /// Sets up a new training, warms up, and measures the steps.
    fn turn(&self, way: Way, teacher: &Architecture, tensors: &[(String, Tensor)]) -> Result<Turn, Error> {
        let weights = || tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
        let start = |residency, burst, cached| {
            let options = teacher_options(self.device, residency, burst, cached);
            let running = start_teacher(teacher, Weights::from_tensors(weights())?, &options, &self.shape)?;
            Training::new(&self.student, Some((running, teacher)), burst, self.device)
        };
        let mut training = match way {
            Way::WithoutKd => Training::new(&self.student, None, 1, self.device)?,
            Way::Naive => self.naive(teacher, weights())?,
            Way::Visits(residency, burst) => start(residency, burst, false)?,
            Way::Cached => start(Residency::Forward, 16, true)?,
        };
        // Warm-up: the first steps of any training allocate memory and select kernels.
        let steps: Vec<Batch> =
            (0..STEPS).map(|step| self.batches[step % self.batches.len()].shallow_clone()).collect();
        let first_epoch_ms = match way {
            Way::Cached => {
                let first_epoch_ms = self.timed(&mut training, &self.batches)?;
                // While this epoch begins, the teacher's thread is still caching the targets of the last burst.
                training.run(&steps)?;
                Some(first_epoch_ms)
            }
            Way::Visits(Residency::Resident, _) => Some(self.timed(&mut training, &self.batches)?),
            Way::WithoutKd | Way::Naive => {
                training.run(&steps[..2])?;
                None
            }
            Way::Visits(..) => {
                let burst = training.objective.source().burst().min(steps.len());
                training.run(&steps[..burst])?;
                None
            }
        };
        self.reset_peak()?;
        let step_ms = self.timed(&mut training, &steps)?;
        let peak_bytes = self.peak_bytes()?;
        if !training.loss_sum()?.is_finite() {
            return Err("a loss is not a number".into());
        }
        Ok(Turn { step_ms, first_epoch_ms, peak_bytes })
    }

    /// Milliseconds per step, including the final device synchronisation.
    fn timed(&self, training: &mut Training, steps: &[Batch]) -> Result<f64, Error> {
        device::synchronize(self.device)?;
        let start = Instant::now();
        training.run(steps)?;
        device::synchronize(self.device)?;
        Ok(start.elapsed().as_secs_f64() * 1e3 / steps.len() as f64)
    }

    fn reset_peak(&self) -> Result<(), Error> {
        match self.device {
            Device::Cpu => allocator::reset_peak(),
            device => device::reset_device_peak(device)?,
        }
        Ok(())
    }

    /// Peak bytes of tensors on the device; on a CPU, in host memory.
    fn peak_bytes(&self) -> Result<f64, Error> {
        Ok(match self.device {
            Device::Cpu => allocator::stats().peak as f64,
            device => device::device_memory(device)?.peak_allocated as f64,
        })
    }

    fn naive(
        &self,
        teacher: &Architecture,
        weights: impl Iterator<Item = (String, Tensor)>,
    ) -> Result<Training, Error> {
        let (Architecture::Vgae(student), Architecture::Vgae(teacher)) = (&self.student, teacher) else {
            return Err("student and teacher of this bench are VGAEs".into());
        };
        let mut parameters = FreshParameters::new(1, self.device);
        let objective = Naive {
            device: self.device,
            student: Vgae::new(Scope::root(&mut parameters), student, Backend::Auto)?,
            projection: Projection::new(Scope::root(&mut parameters), student.latent, teacher.latent)?,
            config: teacher.clone(),
            // The host memory of the model, which is overwritten when the parameters are copied back.
            weights: weights.map(|(name, tensor)| (name, tensor.copy())).collect(),
            source: NoTargets,
        };
        Training::of(Box::new(objective), parameters, self.device)
    }
}

fn teacher_bytes(teacher: &Architecture) -> Result<f64, Error> {
    Ok(random_tensors(teacher, 7)?.iter().map(|(_, tensor)| 4.0 * tensor.numel() as f64).sum())
}

/// Prints the medians of the requested ways, and their ratios to the first one.
fn print_steps(name: &str, turns: &[Vec<Turn>]) {
    let measured: Vec<_> = Way::ALL.iter().zip(turns).filter(|(_, turns)| !turns.is_empty()).collect();
    for (way, turns) in &measured {
        let step_ms = median(turns.iter().map(|turn| turn.step_ms).collect());
        let pairs = turns.iter().zip(measured[0].1).map(|(turn, first)| turn.step_ms / first.step_ms);
        println!("{name}: {:<18} {step_ms:9.3} ms a step, {:.3} of the first", way.name(), median(pairs.collect()));
    }
}

fn report(name: &str, bytes: f64, turns: &[Vec<Turn>], rows: &mut Rows) {
    let value = |way: usize, of: fn(&Turn) -> f64| median(turns[way].iter().map(of).collect());
    let ratio = |way: usize, peer: usize, of: fn(&Turn) -> f64| {
        median(turns[way].iter().zip(&turns[peer]).map(|(turn, peer)| of(peer) / of(turn)).collect())
    };
    let step: fn(&Turn) -> f64 = |turn| turn.step_ms;
    let first_epoch: fn(&Turn) -> f64 = |turn| turn.first_epoch_ms.unwrap_or(f64::NAN);
    let peak: fn(&Turn) -> f64 = |turn| turn.peak_bytes;
    let (without, naive, resident, cached) = (0, 1, Way::RESIDENT, Way::ALL.len() - 1);
    for (way, kind) in Way::ALL.iter().enumerate() {
        let row = format!("{name}: {}", kind.name());
        let against = |peer: usize| (Way::ALL[peer].name(), value(peer, step), ratio(way, peer, step));
        let mut peers = vec![against(without)];
        if !matches!(kind, Way::WithoutKd | Way::Naive) {
            peers.push(against(naive));
        }
        if matches!(kind, Way::Visits(residency, _) if *residency != Residency::Resident) {
            peers.push(against(resident));
        }
        for (peer, peer_value, ratio) in peers.iter().filter(|_| way != without) {
            rows.add(&row, ("step", "ms"), value(way, step), Some((peer, *peer_value, *ratio)));
        }
        if way == without {
            rows.add(&row, ("step", "ms"), value(way, step), None);
        }
        let peer = (way != resident).then(|| value(resident, peak));
        let peer = peer.map(|peer| ("resident", peer / 1e6, ratio(way, resident, peak)));
        rows.add(&row, ("peak memory", "MB"), value(way, peak) / 1e6, peer);
    }
    let row = format!("{name}: first epoch, filling the cache");
    let own_cost = value(resident, first_epoch);
    let ratio = ratio(cached, resident, first_epoch);
    rows.add(&row, ("step", "ms"), value(cached, first_epoch), Some(("resident, first epoch", own_cost, ratio)));
    rows.add(&format!("{name}: weights"), ("size", "MB"), bytes / 1e6, None);
}

/// Student's loss with a teacher moved as by `model.to(device)`: in every step, each parameter is copied to the device before the
/// forward pass and back after it, by separate synchronous copies.
struct Naive {
    device: Device,
    student: Vgae,
    projection: Projection,
    config: kdgat::nn::VgaeConfig,
    weights: Vec<(String, Tensor)>,
    source: NoTargets,
}

impl Naive {
    /// Moves a tensor. On a CPU, where `to(device)` would do nothing, it makes a real copy, so that copying can be compared.
    fn moved(tensor: &Tensor, to: Device) -> Result<Tensor, ObjectiveError> {
        let moved = if tensor.device() == to { tensor.f_detach_copy()? } else { tensor.f_to_device(to)? };
        device::synchronize(if to == Device::Cpu { tensor.device() } else { to })?;
        Ok(moved)
    }

    fn targets(&mut self, batch: &Batch) -> Result<(Tensor, Tensor), ObjectiveError> {
        tch::no_grad(|| {
            for (_, tensor) in &mut self.weights {
                *tensor = Self::moved(tensor, self.device)?;
            }
            let views = self.weights.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
            let mut given = GivenTensors::new(views);
            let targets = Vgae::new(Scope::root(&mut given), &self.config, Backend::Auto)?.targets(batch)?;
            drop(given);
            for (_, tensor) in &mut self.weights {
                *tensor = Self::moved(tensor, Device::Cpu)?;
            }
            Ok(targets)
        })
    }
}

impl Objective for Naive {
    fn parts(&self) -> &'static [&'static str] {
        &["task_loss", "kd_loss"]
    }

    fn source(&self) -> &dyn TargetSource {
        &NoTargets
    }

    fn source_mut(&mut self) -> &mut dyn TargetSource {
        &mut self.source
    }

    fn loss(&mut self, batch: &Batch, _: &Part, _: Mode) -> Result<Losses, ObjectiveError> {
        let (latent, reconstruction) = self.targets(batch)?;
        let output = self.student.forward(batch, Mode::Training)?;
        let (latent, reconstruction) = (&latent.into(), &reconstruction.into());
        let taught = VgaeTaught { latent: Some((&self.projection, latent)), reconstruction };
        let (task, kd) = losses::vgae(&output, batch, taught, VGAE_WEIGHTS)?;
        Ok(Losses { total: kd.total, parts: vec![task.total, kd.kd] })
    }

    fn rows(&self, part: &Part) -> f64 {
        (part.nodes.end - part.nodes.start) as f64
    }
}
