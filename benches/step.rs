//! One measurement of a step, printed as one line of JSON. `scripts/bench step` alternates it with the Python program.
//!
//!     cargo bench --bench step -- train|kd|cached|infer|score --model vgae --size student --batch 512 --threads 2
//!     cargo bench --bench step -- limits                (peak rates of this machine)
//!     cargo bench --bench step -- graphs --output FILE  (writes the graphs that both programs use)
//!
//! `kd` runs the teacher in every step, `cached` reads its targets from memory. Training steps are those of the training stage:
//! its objective, flat parameters, Adam, and the program's allocator.

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use common::graphs::{Graphs, write_graphs};
use common::models::{architecture, forward_work, random_weights};
use common::rows::hardware;
use common::training::{Training, start_teacher, teacher_options};
use common::{Error, median};
use kdgat::distill::Residency;
use kdgat::graph::Batch;
use kdgat::graph::padding::SizeClass;
use kdgat::nn::attention::Backend;
use kdgat::nn::vgae::{Mode, difficulty};
use kdgat::nn::{Architecture, FreshParameters, Gat, Gnn, GraphVgae, NodeGnn, Scope, Vgae};
use kdgat::torch::{allocator, device};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

/// One measurement of a step
#[derive(Debug, Parser)]
struct Options {
    what: What,
    /// vgae, gat, gin or sage
    #[arg(long, default_value = "vgae")]
    model: String,
    /// student, teacher or (vgae, gat) teacher_xl
    #[arg(long, default_value = "student")]
    size: String,
    /// Size of the teacher of kd and cached
    #[arg(long, default_value = "teacher")]
    teacher: String,
    /// Graphs of a batch
    #[arg(long, default_value_t = 512)]
    batch: usize,
    /// Threads of libtorch; 0: one a core
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Seconds to measure for
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// cpu, cuda or cuda:INDEX
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Pad the batches and replay captured steps (on a CPU: compute on the padded batches)
    #[arg(long)]
    cuda_graphs: bool,
    /// A safetensors file of graphs; simulated traffic without it
    #[arg(long)]
    graphs: Option<PathBuf>,
    /// The file that `graphs` writes
    #[arg(long)]
    output: Option<PathBuf>,
    /// Flag that `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Train,
    Kd,
    Cached,
    Infer,
    Score,
    Limits,
    Graphs,
}

/// Batches per burst, and steps between two synchronisations with a GPU.
const BURST: usize = 16;

fn main() -> Result<(), Error> {
    let options = Options::parse();
    if options.what == What::Graphs {
        let path = options.output.as_deref().ok_or("graphs needs --output FILE")?;
        return write_graphs(path);
    }
    common::start(options.threads)?;
    let device = common::device(&options.device)?;
    let result = match options.what {
        What::Limits => limits(device)?,
        _ => measure(&options, device)?,
    };
    println!("{result}");
    Ok(())
}

fn measure(options: &Options, device: Device) -> Result<Value, Error> {
    let graphs = Graphs::open(options.graphs.as_deref())?;
    let count = (graphs.count() / options.batch).clamp(2, 12);
    let batches = graphs.batches(options.batch, count)?;
    let mut batches: Vec<Batch> = batches.iter().map(|batch| batch.to_device(device)).collect::<Result<_, _>>()?;
    let vocabulary = graphs.vocabulary_size();
    // Only the VGAE scores difficulty.
    let model = if options.what == What::Score { "vgae" } else { &options.model };
    let student = architecture(model, &options.size, vocabulary)?;
    if matches!(student, Architecture::Graph(_)) {
        // Windows have labels, graphs of a schema have targets.
        for batch in &mut batches {
            batch.targets = Some(batch.labels.f_to_kind(Kind::Float)?.f_unsqueeze(1)?);
        }
    }
    let padded = match options.cuda_graphs {
        true => batches.iter().map(|batch| batch.padded(SizeClass::of(batch))).collect::<Result<Vec<_>, _>>()?,
        false => Vec::new(),
    };
    let forward = forward_work(&student, &batches[0], false);
    let (work, parameters, times) = match options.what {
        What::Infer | What::Score => {
            let (parameters, times) = answers(options, &student, &batches, device)?;
            (forward, parameters, times)
        }
        _ => {
            let teacher = architecture(model, &options.teacher, vocabulary)?;
            let shape = graphs.shape(count * options.batch);
            let taught = match options.what {
                What::Train => None,
                what => {
                    let teaching = teacher_options(device, Residency::Resident, BURST, what == What::Cached);
                    Some((start_teacher(&teacher, random_weights(&teacher, 7)?, &teaching, &shape)?, &teacher))
                }
            };
            let mut training = Training::new(&student, taught, BURST, device)?;
            let parameters = training.trainable.num_parameters();
            let mut work = forward.trained(parameters);
            if options.what == What::Kd {
                work = work.and(forward_work(&teacher, &batches[0], true));
            }
            (work, parameters, training_times(options, &mut training, &batches, &padded, device)?)
        }
    };
    let seconds = median(times.clone());
    let memory = if device == Device::Cpu {
        allocator::stats().peak
    } else {
        device::device_memory(device)?.peak_occupied_bytes()
    };
    Ok(json!({
        "what": format!("{:?}", options.what).to_lowercase(),
        "model": model,
        "size": options.size,
        "batch": options.batch,
        "threads": options.threads,
        "device": options.device,
        "cuda_graphs": options.cuda_graphs,
        "params": parameters,
        "median_seconds": seconds,
        "steps": times.len(),
        "graphs_per_second": options.batch as f64 / seconds,
        "peak_tensor_mib": memory as f64 / 1048576.0,
        "peak_rss_mib": peak_rss_mib(),
        "operations": work.operations,
        "bytes": work.bytes,
    }))
}

/// Seconds per step; the mean of a burst if targets come in bursts or the device is not synchronised in every step.
fn training_times(
    options: &Options,
    training: &mut Training,
    batches: &[Batch],
    padded: &[Batch],
    device: Device,
) -> Result<Vec<f64>, Error> {
    let single = options.what == What::Train && device == Device::Cpu;
    let block = if single { 1 } else { BURST };
    // With cached targets, first an epoch that fills the cache; a CUDA graph is captured when its size occurs again.
    training.run_padded(batches, padded)?;
    if !padded.is_empty() {
        training.run_padded(batches, padded)?;
    }
    let mut next = 0;
    repeat(options.seconds, |times| {
        let block_of = |of: &[Batch]| -> Vec<Batch> {
            (0..block).filter_map(|step| Some(of.get((next + step) % batches.len())?.shallow_clone())).collect()
        };
        let (steps, padded_steps) = (block_of(batches), block_of(padded));
        next += block;
        let start = Instant::now();
        training.run_padded(&steps, &padded_steps)?;
        device::synchronize(device)?;
        times.push(start.elapsed().as_secs_f64() / block as f64);
        Ok(())
    })
}

/// Runs a model on a batch.
type Answer = Box<dyn Fn(&Batch) -> Result<(), Error>>;

/// Seconds per batch of inference, or of computing and reading the scores.
fn answers(
    options: &Options,
    architecture: &Architecture,
    batches: &[Batch],
    device: Device,
) -> Result<(i64, Vec<f64>), Error> {
    let _no_grad = tch::no_grad_guard();
    let mut parameters = FreshParameters::new(1, device);
    let scope = Scope::root(&mut parameters);
    let answer: Answer = match architecture {
        Architecture::Nodes(config) => {
            let model = NodeGnn::new(scope, config, Backend::Auto)?;
            Box::new(move |batch| {
                let _ = std::hint::black_box(model.forward(batch, Mode::Evaluation)?);
                Ok(())
            })
        }
        Architecture::Graph(config) => {
            let model = Gnn::new(scope, config, Backend::Auto)?;
            Box::new(move |batch| {
                let _ = std::hint::black_box(model.forward(batch, Mode::Evaluation)?);
                Ok(())
            })
        }
        Architecture::Pretraining(config) => {
            let model = Gnn::new(scope, &config.network, Backend::Auto)?;
            Box::new(move |batch| {
                let _ = std::hint::black_box(model.forward(batch, Mode::Evaluation)?);
                Ok(())
            })
        }
        Architecture::GraphVgae(config) => {
            let model = GraphVgae::new(scope, config, Backend::Auto)?;
            Box::new(move |batch| {
                let _ = std::hint::black_box(model.forward(batch, Mode::Evaluation)?);
                Ok(())
            })
        }
        Architecture::Gat(config) => {
            let model = Gat::new(scope, config, Backend::Auto)?;
            Box::new(move |batch| {
                let _ = std::hint::black_box(model.forward(batch, Mode::Evaluation)?);
                Ok(())
            })
        }
        Architecture::Vgae(config) => {
            let (model, scores) = (Vgae::new(scope, config, Backend::Auto)?, options.what == What::Score);
            Box::new(move |batch| {
                let output = model.forward(batch, Mode::Evaluation)?;
                if scores {
                    let total = difficulty(&output, batch)?.total;
                    std::hint::black_box(Vec::<f32>::try_from(&total)?);
                }
                Ok(())
            })
        }
    };
    let count = parameters.into_tensors().iter().map(|named| named.tensor.numel() as i64).sum();
    for batch in batches.iter().take(2) {
        answer(batch)?;
    }
    let mut next = 0;
    let times = repeat(options.seconds, |times| {
        let batch = &batches[next % batches.len()];
        next += 1;
        let start = Instant::now();
        answer(batch)?;
        device::synchronize(device)?;
        times.push(start.elapsed().as_secs_f64());
        Ok(())
    })?;
    Ok((count, times))
}

fn repeat(seconds: f64, mut measure: impl FnMut(&mut Vec<f64>) -> Result<(), Error>) -> Result<Vec<f64>, Error> {
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed().as_secs_f64() < seconds || times.len() < 5 {
        measure(&mut times)?;
    }
    Ok(times)
}

/// Rates of large matrix products (f32) and of copies (bytes read and written), with the hardware.
fn limits(device: Device) -> Result<Value, Error> {
    let matrix = Tensor::f_rand([2048, 2048], (Kind::Float, device))?;
    let source = Tensor::f_rand([16 << 20], (Kind::Float, device))?;
    let mut target = source.f_zeros_like()?;
    let fastest = |work: &mut dyn FnMut() -> Result<(), Error>| -> Result<Duration, Error> {
        let mut best = Duration::MAX;
        for _ in 0..15 {
            device::synchronize(device)?;
            let start = Instant::now();
            work()?;
            device::synchronize(device)?;
            best = best.min(start.elapsed());
        }
        Ok(best)
    };
    let product = fastest(&mut || {
        let _ = std::hint::black_box(matrix.f_matmul(&matrix)?);
        Ok(())
    })?;
    let copy = fastest(&mut || Ok(device::copy(&mut target, &source, true)?))?;
    Ok(json!({
        "operations_per_second": 2.0 * 2048f64.powi(3) / product.as_secs_f64(),
        "bytes_per_second": 2.0 * 4.0 * source.numel() as f64 / copy.as_secs_f64(),
        "hardware": hardware(device),
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

fn peak_rss_mib() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<f64>().ok()? / 1024.0)
}
