//! Difficulty scores in chunks compared with one graph at a time, their memory by number of graphs, and the latency of a window.
//!
//!     cargo bench --bench scoring -- [--quick] [--json] [--results DIR] [--peer FILE --peer-python PYTHON]
//!
//! The scoring methods alternate; a ratio is the median of the ratios of the rounds. Memory is measured in a separate process
//! (this program with `--task`) that scores different graphs of one store with overlapping windows.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use common::graphs::Graphs;
use common::models::{architecture, random_tensors};
use common::rows::Rows;
use common::{Error, median};
use kdgat::can::{Dataset, SimulationOptions, open_log, simulate};
use kdgat::curriculum::Scorer;
use kdgat::detect::{AttackAbove, DetectOptions, Detector};
use kdgat::distill::frozen::LoadedModel;
use kdgat::evaluate::{Ensemble, EvaluateError, Scale, TrainedModel};
use kdgat::graph::{BuildOptions, Store, open_or_build};
use kdgat::memory::ProcessMemory;
use kdgat::nn::attention::Backend;
use kdgat::nn::{DatasetIdentity, ModelDescription};
use kdgat::train::checkpoint;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Device;

/// Graphs per chunk: the default of `difficulty_chunk`.
const CHUNK: usize = 500;
/// Frames of a simulated log for the detector.
const DETECTED_FRAMES: usize = 100_000;
const MIB: f64 = 1_048_576.0;

/// Speed and memory of scoring
#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    output: common::Output,
    /// Python program to compare with
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Python interpreter that runs it
    #[arg(long, default_value = "python3")]
    peer_python: PathBuf,
    /// File of graphs for the Python program
    #[arg(long)]
    graphs: Option<PathBuf>,
    #[arg(long, hide = true)]
    task: Option<Task>,
    #[arg(long, hide = true, default_value = ".")]
    store: PathBuf,
    #[arg(long, hide = true, default_value = ".")]
    model: PathBuf,
    #[arg(long, hide = true, default_value_t = 0)]
    count: usize,
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Task {
    Memory,
}

/// Report of the process whose memory is measured.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    resident_bytes: u64,
    anonymous_bytes: u64,
    graphs: usize,
}

fn main() -> Result<(), Error> {
    let options = Options::parse();
    // In the car a window has one core.
    common::start(1)?;
    if options.task.is_some() {
        println!("{}", serde_json::to_string(&memory_of(&options)?)?);
        return Ok(());
    }
    let mut rows = Rows::new("scoring", options.output.json);
    throughput(&options, 1, &mut rows)?;
    let cores = std::thread::available_parallelism()?.get();
    if cores > 1 {
        throughput(&options, cores, &mut rows)?;
    }
    memory(&options, &mut rows)?;
    windows(&options, &mut rows)?;
    rows.finish(Device::Cpu, options.output.results.as_deref())
}

/// Scoring method: name, kernel, graphs per chunk, and graphs per turn.
type Way = (&'static str, Backend, usize, usize);

/// Measures graphs per second of the VGAE student in chunks and one at a time, on `threads` threads.
fn throughput(options: &Options, threads: usize, rows: &mut Rows) -> Result<(), Error> {
    let before = tch::get_num_threads();
    tch::set_num_threads(threads as i32);
    let Graphs::Simulated(store, folder) = Graphs::open(None)? else { return Ok(()) };
    let store = Arc::new(*store);
    let path = folder.path().join("best.safetensors");
    write_model(&path, "vgae", &store)?;
    let (rounds, graphs) = if options.output.quick { (5, 2_000) } else { (15, 5_000) };
    let ways: [Way; 4] = [
        ("chunks of 500", Backend::Auto, CHUNK, graphs),
        ("one at a time", Backend::Auto, 1, graphs / 4),
        ("chunks of 500, composed operations", Backend::Composed, CHUNK, graphs),
        ("one at a time, composed operations", Backend::Composed, 1, graphs / 10),
    ];
    let scorer = |kernel| Ok::<_, Error>(Scorer::new(LoadedModel::open(&path)?, Device::Cpu, kernel)?);
    let scorers = ways.iter().map(|(_, kernel, ..)| scorer(*kernel)).collect::<Result<Vec<_>, _>>()?;
    let mut rates = ways.map(|_| Vec::new());
    for round in 0..=rounds {
        for (index, (scorer, (_, _, chunk, graphs))) in scorers.iter().zip(&ways).enumerate() {
            let graphs: Vec<u64> = (0..*graphs as u64).map(|graph| graph % store.num_graphs()).collect();
            let start = Instant::now();
            scorer.score(&store, &graphs, *chunk, |_| Ok(()))?;
            // The first round has cold caches.
            if round > 0 {
                rates[index].push(graphs.len() as f64 / start.elapsed().as_secs_f64());
            }
        }
    }
    tch::set_num_threads(before);
    let with = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    let name = |index: usize| format!("vgae student, {with}, {}", ways[index].0);
    let metric = ("graphs a second", "1/s");
    for (index, of_way) in rates.iter().enumerate().skip(1) {
        rows.add(&name(index), metric, median(of_way.clone()), None);
    }
    let chunked = median(rates[0].clone());
    for index in [1, 3] {
        let ratio = median(rates[0].iter().zip(&rates[index]).map(|(chunked, single)| chunked / single).collect());
        let row = format!("{} beside {}", name(0), ways[index].0);
        let single = median(rates[index].clone());
        rows.add(&row, metric, chunked, Some((ways[index].0, single, ratio)));
    }
    for (batch, peer) in [("1", "PyTorch Geometric, one at a time"), ("500", "PyTorch Geometric, batches of 500")] {
        if let Some(rate) = peer_rate(options, threads, batch)? {
            rows.add(&format!("{} beside {peer}", name(0)), metric, chunked, Some((peer, rate, chunked / rate)));
        }
    }
    Ok(())
}

/// Graphs per second of the Python program, on its own graphs of simulated traffic.
fn peer_rate(options: &Options, threads: usize, batch: &str) -> Result<Option<f64>, Error> {
    let Some(peer) = &options.peer else { return Ok(None) };
    let mut command = Command::new(&options.peer_python);
    let seconds = if options.output.quick { "3" } else { "10" };
    command.arg(peer).args(["score", "--size", "student", "--seconds", seconds, "--batch", batch]);
    command.arg("--threads").arg(threads.to_string());
    if let Some(graphs) = &options.graphs {
        command.arg("--graphs").arg(graphs);
    }
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{} failed:\n{}", peer.display(), String::from_utf8_lossy(&output.stderr)).into());
    }
    let said: Value = serde_json::from_slice(&output.stdout)?;
    Ok(Some(said["graphs_per_second"].as_f64().ok_or("the Python program gave no graphs_per_second")?))
}

/// Measures the memory of a process that scores few graphs, and of one that scores many.
fn memory(options: &Options, rows: &mut Rows) -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let (few, many) = if options.output.quick { (1_000, 20_000) } else { (10_000, 200_000) };
    // Overlapping windows give enough graphs from little traffic.
    let stride = if options.output.quick { 30 } else { 3 };
    let data = folder.path().join("sim");
    simulate(&SimulationOptions::default(), &data)?;
    let build = BuildOptions { stride, ..BuildOptions::default() };
    let store = open_or_build(&Dataset::open(&data)?, &build, &folder.path().join("stores"), &())?;
    let model = folder.path().join("best.safetensors");
    write_model(&model, "vgae", &store)?;
    let measure = |count: usize| -> Result<Said, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--task", "memory", "--count", &count.to_string()]);
        let output = command.arg("--store").arg(store.path()).arg("--model").arg(&model).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let said: Said = serde_json::from_slice(&output.stdout)?;
        if said.graphs != count {
            return Err(format!("{} graphs were scored instead of {count}", said.graphs).into());
        }
        Ok(said)
    };
    let (small, large) = (measure(few)?, measure(many)?);
    let peer = format!("{few} graphs");
    for (metric, of) in [
        ("resident memory", (|said: &Said| said.resident_bytes) as fn(&Said) -> u64),
        ("anonymous memory", |said| said.anonymous_bytes),
    ] {
        let [small, large] = [&small, &large].map(|said| of(said) as f64 / MIB);
        let row = format!("vgae student, {many} graphs");
        rows.add(&row, (metric, "MiB"), large, Some((peer.as_str(), small, large / small)));
    }
    Ok(())
}

/// Scores `count` graphs of a store and returns the largest memory seen after a chunk, mapped pages included.
fn memory_of(options: &Options) -> Result<Said, Error> {
    let store = Arc::new(Store::open(&options.store)?);
    let scorer = Scorer::new(LoadedModel::open(&options.model)?, Device::Cpu, Backend::Auto)?;
    let available = store.num_graphs();
    if available < options.count as u64 {
        return Err(format!("the store has {available} graphs, {} are wanted", options.count).into());
    }
    // Spread over the whole store, so that few graphs have the same kinds of traffic as many.
    let graphs: Vec<u64> = (0..options.count as u64).map(|index| index * available / options.count as u64).collect();
    let mut said = Said { resident_bytes: 0, anonymous_bytes: 0, graphs: 0 };
    scorer.score(&store, &graphs, CHUNK, |scores| {
        let now = ProcessMemory::now();
        said.resident_bytes = said.resident_bytes.max(now.resident_bytes);
        said.anonymous_bytes = said.anonymous_bytes.max(now.anonymous_bytes);
        said.graphs += scores.len();
        Ok(())
    })?;
    Ok(said)
}

/// Measures the time of a window from its frames to the score of each student, and of both together, on one core.
fn windows(options: &Options, rows: &mut Rows) -> Result<(), Error> {
    let Graphs::Simulated(store, folder) = Graphs::open(None)? else { return Ok(()) };
    let log = folder.path().join("sim").join(&store.manifest().files[0].folder).join(&store.manifest().files[0].name);
    let count = if options.output.quick { DETECTED_FRAMES / 5 } else { DETECTED_FRAMES };
    let mut frames = Vec::new();
    open_log(&log, None)?.read_block(count, &mut frames)?;
    let (mut detectors, mut paths) = (Vec::new(), Vec::new());
    for model in ["vgae", "gat"] {
        let path = folder.path().join(model).join("best.safetensors");
        std::fs::create_dir_all(folder.path().join(model))?;
        write_model(&path, model, &store)?;
        let stride = store.manifest().options.stride;
        let threshold = AttackAbove::Score(0.5);
        let options = DetectOptions { stride, threshold, cars: Vec::new(), scales: Vec::new() };
        detectors.push(Detector::new(&[&TrainedModel::read(&path)?], options, Device::Cpu)?);
        paths.push(path);
    }
    let both = Ensemble::read(&paths)?;
    let scales = vec![Scale { median: 0.0, spread: 1.0 }; 2];
    let (stride, threshold) = (both.stride()?, AttackAbove::Score(0.5));
    let options = DetectOptions { stride, threshold, cars: Vec::new(), scales };
    detectors.push(Detector::new(&both.models(), options, Device::Cpu)?);
    let mut milliseconds = [Vec::new(), Vec::new(), Vec::new()];
    for window in frames.chunks(store.manifest().options.stride) {
        for (detector, times) in detectors.iter_mut().zip(&mut milliseconds) {
            let start = Instant::now();
            detector.push(window, |_| Ok::<_, EvaluateError>(()))?;
            let elapsed = 1e3 * start.elapsed().as_secs_f64();
            times.push(elapsed);
        }
    }
    for (name, mut times) in ["vgae student", "gat student", "both students"].into_iter().zip(milliseconds) {
        let row = format!("{name}, a window from its frames to its line");
        // The first windows allocate memory that later ones reuse.
        times.drain(..times.len().min(10));
        times.sort_by(f64::total_cmp);
        for (metric, share) in [("median, 1 thread", 0.5), ("99th percentile, 1 thread", 0.99)] {
            let value = times[(share * (times.len() - 1) as f64) as usize];
            rows.add(&row, (metric, "ms"), value, Some(("budget", 1.0, 1.0 / value)));
        }
    }
    Ok(())
}

/// Writes a student with random weights in the form of a run's best model.
fn write_model(path: &Path, model: &str, store: &Store) -> Result<(), Error> {
    let architecture = architecture(model, "student", store.vocabulary().len() as i64)?;
    let tensors = random_tensors(&architecture, 7)?;
    let description = ModelDescription {
        architecture,
        vocabulary: store.vocabulary().clone(),
        foreign_ids: None,
        dataset: DatasetIdentity { name: store.manifest().dataset.clone(), digest: store.digest().to_owned() },
        window: store.manifest().options.window,
        size: "student".to_owned(),
        epoch: 0,
        val_loss: None,
        teacher_digest: None,
        created_by_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    Ok(checkpoint::write(path, &tensors.into_iter().collect(), &description)?)
}
