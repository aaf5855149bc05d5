//! Logs to graphs: frames per second compared with a Python program, memory by dataset size, opening and reading a large store.
//!
//! Each measurement runs in a separate process (this program with `--task`), so that its peak memory can be measured.

mod common;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use common::rows::Rows;
use common::{Error, median};
use kdgat::can::Dataset;
use kdgat::can::formats::can_train_and_test::{HEADER, write_row};
use kdgat::can::simulator::{DrivePlan, simulate_drive};
use kdgat::graph::assemble::Assembler;
use kdgat::graph::{
    AssembleOptions, BuildOptions, Event, FeatureSet, Loader, LoaderOptions, Progress, StageTimes, Store,
    open_or_build, shuffled_batches,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Device;

/// Frames of a simulated drive; a log has several drives.
const DRIVE_FRAMES: u64 = 1_000_000;
/// Drives per log of the large datasets.
const DRIVES_A_LOG: usize = 5;
const BATCH_GRAPHS: usize = 512;

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
    /// Folder for simulated logs and their stores: 5 GB for 50 million frames, removed at the end
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Largest dataset, in millions of frames
    #[arg(long, default_value_t = 50)]
    millions: usize,
    #[arg(long, hide = true)]
    task: Option<Task>,
    #[arg(long, hide = true, default_value = ".")]
    data: PathBuf,
    #[arg(long, hide = true, default_value = ".")]
    stores: PathBuf,
    #[arg(long, hide = true, default_value_t = 0)]
    threads: usize,
    #[arg(long, hide = true)]
    rich: bool,
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Task {
    Build,
    Open,
    Epoch,
    Copies,
}

/// Report of a measured process.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Said {
    frames: u64,
    graphs: u64,
    seconds: f64,
    /// Peak memory of the process, including mapped files.
    peak_bytes: u64,
    /// Peak increase of anonymous memory.
    anonymous_bytes: u64,
    /// Seconds of all threads by stage, and the rest of the build.
    stages: Vec<(String, f64)>,
    folder: PathBuf,
}

fn main() -> Result<(), Error> {
    let options = Options::parse();
    if let Some(task) = options.task {
        let said = match task {
            Task::Build => build(&options)?,
            Task::Open => open(&options)?,
            Task::Epoch => epoch(&options)?,
            Task::Copies => copies(&options)?,
        };
        println!("{}", serde_json::to_string(&said)?);
        return Ok(());
    }
    let scratch = match &options.scratch {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let bench = Bench { options: &options, scratch: scratch.path() };
    let mut rows = Rows::new("ingest", options.output.json);
    let peer_rate = bench.one_log(&mut rows)?;
    bench.folder(&mut rows, peer_rate)?;
    bench.by_size(&mut rows)?;
    rows.finish(Device::Cpu, options.output.results.as_deref())
}

struct Bench<'a> {
    options: &'a Options,
    scratch: &'a Path,
}

impl Bench<'_> {
    /// Measures one log: kdgat on one core and on all, and the Python program on the same file.
    fn one_log(&self, rows: &mut Rows) -> Result<Option<f64>, Error> {
        let data = self.scratch.join("one");
        write_dataset(&data, 1, 1)?;
        let peer = self.peer(&data.join("train_01_attack_free/drive-000.csv"))?;
        for (rich, threads) in [(false, 1), (false, 0), (true, 1), (true, 0)] {
            let (rate, said) = self.rate(&data, threads, rich)?;
            let cores = if threads == 1 { "1 thread" } else { "all cores" };
            let name = format!("one CSV, {cores}{}", features(rich));
            rows.add(&name, ("frames a second", "1/s"), rate, compared(rate, peer));
            if threads == 1 {
                let all: f64 = said.stages.iter().map(|(_, seconds)| seconds).sum();
                for (stage, seconds) in &said.stages {
                    let name = format!("stage: {stage}{}", features(rich));
                    rows.add(&name, ("share of time, 1 thread", "%"), 100.0 * seconds / all, None);
                }
            }
        }
        Ok(peer)
    }

    fn folder(&self, rows: &mut Rows, peer: Option<f64>) -> Result<(), Error> {
        let data = self.scratch.join("folder");
        write_dataset(&data, 4, 1)?;
        for rich in [false, true] {
            let (rate, _) = self.rate(&data, 0, rich)?;
            let name = format!("folder of 4 CSVs, all cores{}", features(rich));
            rows.add(&name, ("frames a second", "1/s"), rate, compared(rate, peer));
        }
        fs::remove_dir_all(data)?;
        Ok(())
    }

    fn by_size(&self, rows: &mut Rows) -> Result<(), Error> {
        let sizes = if self.options.output.quick { vec![1] } else { vec![1, 10, self.options.millions] };
        for millions in sizes {
            let data = self.scratch.join(format!("{millions}-million"));
            let (logs, drives) = (millions.div_ceil(DRIVES_A_LOG), millions.min(DRIVES_A_LOG));
            write_dataset(&data, logs, drives)?;
            let stores = self.scratch.join("stores");
            let said = self.run(Task::Build, &data, &stores, 0)?;
            let name = format!("{:.0} million frames", said.frames as f64 / 1e6);
            rows.add(&name, ("frames a second", "1/s"), said.frames as f64 / said.seconds, None);
            rows.add(&name, ("peak memory of the build", "MB"), said.peak_bytes as f64 / 1e6, None);
            if millions <= 10 {
                self.rich_features(rows, &data, &stores)?;
            }
            fs::remove_dir_all(&data)?;
            let opened: Result<Vec<f64>, Error> =
                (0..5).map(|_| Ok(self.run(Task::Open, &said.folder, &stores, 0)?.seconds * 1e3)).collect();
            rows.add(&name, ("opening the store", "ms"), median(opened?), None);
            let epoch = self.run(Task::Epoch, &said.folder, &stores, 0)?;
            rows.add(
                &name,
                ("graphs a second, an epoch through the loader", "1/s"),
                epoch.graphs as f64 / epoch.seconds,
                None,
            );
            rows.add(&name, ("anonymous memory of an epoch", "MB"), epoch.anonymous_bytes as f64 / 1e6, None);
            fs::remove_dir_all(&stores)?;
        }
        Ok(())
    }

    /// Measures the memory of a build with the rich features, and how much of batch assembly is copying node features.
    fn rich_features(&self, rows: &mut Rows, data: &Path, stores: &Path) -> Result<(), Error> {
        let others = stores.with_extension("rich");
        let said = self.run_with(Task::Build, data, &others, 0, true)?;
        let name = format!("{:.0} million frames, rich features", said.frames as f64 / 1e6);
        rows.add(&name, ("peak memory of the build", "MB"), said.peak_bytes as f64 / 1e6, None);
        let copies = self.run(Task::Copies, &said.folder, &others, 0)?;
        for (what, seconds) in &copies.stages {
            let name = format!("{name}: {what}");
            rows.add(&name, ("time a graph", "µs"), 1e6 * seconds / copies.graphs as f64, None);
        }
        fs::remove_dir_all(&others)?;
        Ok(())
    }

    /// Runs three builds and returns the rate and the report of the median one.
    fn rate(&self, data: &Path, threads: usize, rich: bool) -> Result<(f64, Said), Error> {
        let mut runs = Vec::new();
        for _ in 0..3 {
            let stores = self.scratch.join("stores");
            runs.push(self.run_with(Task::Build, data, &stores, threads, rich)?);
            fs::remove_dir_all(&stores)?;
        }
        let rate = |said: &Said| said.frames as f64 / said.seconds;
        runs.sort_by(|one, other| rate(one).total_cmp(&rate(other)));
        let said = runs.swap_remove(1);
        Ok((rate(&said), said))
    }

    fn run(&self, task: Task, data: &Path, stores: &Path, threads: usize) -> Result<Said, Error> {
        self.run_with(task, data, stores, threads, false)
    }

    fn run_with(&self, task: Task, data: &Path, stores: &Path, threads: usize, rich: bool) -> Result<Said, Error> {
        let task = task.to_possible_value().map_or(String::new(), |value| value.get_name().to_string());
        let output = Command::new(std::env::current_exe()?)
            .args(["--task", &task, "--threads", &threads.to_string()])
            .args(["--data".as_ref(), data.as_os_str(), "--stores".as_ref(), stores.as_os_str()])
            .args(rich.then_some("--rich"))
            .output()?;
        if !output.status.success() {
            return Err(format!("{task} failed: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Frames per second of the Python program, if one is given.
    fn peer(&self, log: &Path) -> Result<Option<f64>, Error> {
        let Some(peer) = &self.options.peer else { return Ok(None) };
        let output = Command::new(&self.options.peer_python).arg(peer).args(["build", "--csv"]).arg(log).output()?;
        if !output.status.success() {
            return Err(format!("{} failed: {}", peer.display(), String::from_utf8_lossy(&output.stderr)).into());
        }
        let line = String::from_utf8(output.stdout)?;
        let said: Value = serde_json::from_str(line.lines().last().unwrap_or_default())?;
        let rate = said.get("frames_per_second").or(said.get("frames_per_s")).and_then(Value::as_f64);
        Ok(Some(rate.ok_or_else(|| format!("{} says no frames a second: {line}", peer.display()))?))
    }
}

fn features(rich: bool) -> &'static str {
    if rich { ", rich features" } else { "" }
}

fn compared(rate: f64, peer: Option<f64>) -> Option<(&'static str, f64, f64)> {
    peer.map(|peer| ("peer.py build", peer, rate / peer))
}

/// Writes simulated drives, several per log. Every tenth log is a test log.
fn write_dataset(root: &Path, logs: usize, drives: usize) -> Result<(), Error> {
    for log in 0..logs {
        let folder = root.join(if log % 10 == 9 { "test_01" } else { "train_01_attack_free" });
        fs::create_dir_all(&folder)?;
        let mut file = BufWriter::new(File::create(folder.join(format!("drive-{log:03}.csv")))?);
        file.write_all(HEADER.as_bytes())?;
        for drive in 0..drives {
            let number = (log * drives + drive) as u64;
            let begins_at_seconds = 1_700_000_000 + 2000 * number;
            let plan = DrivePlan { seed: 1, number, begins_at_seconds, frames: DRIVE_FRAMES, attacks: vec![] };
            let mut text = Vec::with_capacity(48 * DRIVE_FRAMES as usize);
            simulate_drive(&plan).frames.iter().for_each(|frame| write_row(frame, &mut text));
            file.write_all(&text)?;
        }
        file.flush()?;
    }
    Ok(())
}

#[derive(Default)]
struct Times(Mutex<StageTimes>);

impl Progress for Times {
    fn report(&self, event: &Event<'_>) {
        if let (Event::Stages(times), Ok(mut kept)) = (event, self.0.lock()) {
            *kept = *times;
        }
    }
}

fn build(options: &Options) -> Result<Said, Error> {
    let dataset = Dataset::open(&options.data)?;
    let times = Times::default();
    let features = if options.rich { FeatureSet::Rich } else { FeatureSet::Window };
    let build = BuildOptions { threads: options.threads, features, ..BuildOptions::default() };
    let begin = Instant::now();
    let store = open_or_build(&dataset, &build, &options.stores, &times)?;
    let seconds = begin.elapsed().as_secs_f64();
    let times = times.0.into_inner().unwrap_or_default();
    let mut stages: Vec<(String, f64)> = [
        ("read", times.read),
        ("parse", times.parse),
        ("window", times.window),
        ("features", times.features),
        ("write", times.write),
        ("checksums of the logs", times.checksum),
    ]
    .map(|(name, time)| (name.to_string(), time.as_secs_f64()))
    .to_vec();
    let known: f64 = stages.iter().map(|(_, seconds)| seconds).sum();
    stages.push(("verify, duplicates, rename".to_string(), (seconds - known).max(0.0)));
    Ok(Said {
        frames: store.manifest().totals.frames,
        graphs: store.num_graphs(),
        seconds,
        peak_bytes: memory("VmHWM:"),
        stages,
        folder: store.path().to_path_buf(),
        ..Said::default()
    })
}

fn open(options: &Options) -> Result<Said, Error> {
    let begin = Instant::now();
    let store = Store::open(&options.data)?;
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Said { graphs: store.num_graphs(), seconds, ..Said::default() })
}

/// Assembles batches of consecutive graphs on one thread: with node features in place, and copied.
fn copies(options: &Options) -> Result<Said, Error> {
    common::start(0)?;
    let store = Store::open(&options.data)?;
    let mut assemble = AssembleOptions::new(Arc::new(store.vocabulary().clone()));
    assemble.edge_attributes = false;
    let all: Vec<u64> = (0..store.num_graphs()).collect();
    let batches: Vec<&[u64]> = all.chunks(BATCH_GRAPHS).collect();
    let mut assembler = Assembler::default();
    let backwards: Vec<Vec<u64>> = batches.iter().map(|graphs| graphs.iter().rev().copied().collect()).collect();
    let mut seconds_of = |batches: &mut dyn Iterator<Item = &[u64]>| -> Result<f64, Error> {
        let begin = Instant::now();
        for graphs in batches {
            assembler.assemble(&store, graphs, &assemble)?;
        }
        Ok(begin.elapsed().as_secs_f64())
    };
    let (mut in_place, mut copied) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        in_place.push(seconds_of(&mut batches.iter().copied())?);
        copied.push(seconds_of(&mut backwards.iter().map(Vec::as_slice))?);
    }
    let stages = vec![
        ("assembling a graph, in order (features in place), 1 thread".to_string(), median(in_place)),
        ("assembling a graph, backwards (features copied), 1 thread".to_string(), median(copied)),
    ];
    Ok(Said { graphs: store.num_graphs(), stages, ..Said::default() })
}

/// Reads an epoch in random order through the loader, as in training, but without training steps.
fn epoch(options: &Options) -> Result<Said, Error> {
    common::start(0)?;
    let before = memory("RssAnon:");
    let store = Arc::new(Store::open(&options.data)?);
    let peak = Arc::new(AtomicU64::new(before));
    let done = Arc::new(AtomicBool::new(false));
    let watch = std::thread::spawn({
        let (peak, done) = (Arc::clone(&peak), Arc::clone(&done));
        move || {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(memory("RssAnon:"), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
    let vocabulary = Arc::new(store.vocabulary().clone());
    let assemble = AssembleOptions::new(vocabulary);
    let loader = Loader::start(Arc::clone(&store), LoaderOptions { assemble, workers: 2, prefetch_batches: 4 });
    let begin = Instant::now();
    let all: Vec<u64> = (0..store.num_graphs()).collect();
    let mut graphs = 0;
    for batch in loader.epoch(shuffled_batches(&all, BATCH_GRAPHS, 1, 0), 0) {
        graphs += batch?.num_graphs() as u64;
    }
    let seconds = begin.elapsed().as_secs_f64();
    done.store(true, Ordering::Relaxed);
    if watch.join().is_err() {
        return Err("the thread that watches memory failed".into());
    }
    Ok(Said { graphs, seconds, anonymous_bytes: peak.load(Ordering::Relaxed) - before, ..Said::default() })
}

/// Value from /proc/self/status in bytes; 0 if missing.
fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}
