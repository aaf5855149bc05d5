//! Trainings with sampled neighbours, killed at random moments and resumed, beside one that was never interrupted: epochs, steps and weights
//! have to be equal bit by bit.
//!
//! The features come from the mapped store, from the file or from memory, in turn. A moment is a uniform share of the time that the same
//! training takes without a kill: reading, sizing, the choice of hot rows, steps, validation and checkpoints are hit as often as they take
//! time.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use common::Error;
use common::rows::Rows;
use kdgat::random;
use tch::Device;

/// Places of features, each with its flags.
const PLACES: [(&str, &[&str]); 4] = [
    ("mapped", &["--features-from", "mapped"]),
    ("direct", &["--features-from", "direct", "--hot-rows", "0"]),
    ("direct, hot rows", &["--features-from", "direct", "--hot-rows", "20000"]),
    ("resident", &["--features-from", "resident"]),
];
/// Columns that are times or memory.
const NOT_COMPARED: [&str; 4] = ["graphs_per_second", "peak_memory_bytes", "seconds", "step_ms"];
/// Draws of a moment before giving up: a training may end before its kill.
const DRAWS: u64 = 20;

#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    output: common::Output,
    /// Nodes of the generated graph; it has ten times as many edges
    #[arg(long, default_value_t = 1_000_000)]
    nodes: u64,
    /// Trainings to kill
    #[arg(long, default_value_t = 20)]
    kills: u64,
    /// Epochs of a training
    #[arg(long, default_value_t = 8)]
    epochs: u64,
    /// Seed of the moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the graph and the runs
    #[arg(long)]
    folder: Option<PathBuf>,
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Error> {
    let mut options = Options::parse();
    if options.output.quick {
        (options.nodes, options.kills) = (options.nodes.min(200_000), options.kills.min(4));
    }
    let scratch = match &options.folder {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let bench = Bench { options: &options, folder: scratch.path() };
    bench.generate()?;
    let mut references = Vec::new();
    for (place, flags) in PLACES {
        let start = Instant::now();
        bench.finish(bench.train("whole", flags, false)?)?;
        let seconds = start.elapsed().as_secs_f64();
        references.push((Results::read(&scratch.path().join("whole"))?, seconds));
        std::fs::remove_dir_all(scratch.path().join("whole"))?;
        eprintln!("  {place}: {seconds:.1} s without a kill");
    }
    if references.iter().any(|(results, _)| *results != references[0].0) {
        return Err("trainings that were not killed differ by the place of features".into());
    }
    let mut equal = [(0, 0); PLACES.len()];
    for kill in 0..options.kills {
        let of = kill as usize % PLACES.len();
        let (reference, seconds) = &references[of];
        let killed = bench.kill_and_resume(kill, PLACES[of].1, *seconds)?;
        let same = killed.results == *reference;
        let Killed { moment, steps, .. } = killed;
        let verdict = if same { "equal" } else { "DIFFERENT" };
        eprintln!("  kill {}, {}: after {moment:.2} s and {steps} steps: {verdict}", kill + 1, PLACES[of].0);
        equal[of] = (equal[of].0 + 1, equal[of].1 + u32::from(same));
    }
    let mut rows = Rows::new("node_kills", options.output.json);
    for ((place, _), (kills, same)) in PLACES.iter().zip(equal) {
        let row = format!("{} nodes, {} epochs, features {place}", options.nodes, options.epochs);
        rows.add(&row, ("killed and resumed", "runs"), f64::from(kills), None);
        rows.add(&row, ("equal to the run without a kill", "runs"), f64::from(same), None);
    }
    rows.finish(Device::Cpu, options.output.results.as_deref())?;
    match equal.iter().all(|(kills, same)| kills == same) {
        true => Ok(()),
        false => Err("a resumed training differs from the one without a kill".into()),
    }
}

struct Bench<'a> {
    options: &'a Options,
    folder: &'a Path,
}

/// A training that was killed and resumed.
struct Killed {
    /// Seconds from its start to the kill.
    moment: f64,
    /// Steps on record at the kill.
    steps: usize,
    results: Results,
}

impl Bench<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kdgat"));
        command.current_dir(self.folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn generate(&self) -> Result<(), Error> {
        let (nodes, edges) = (self.options.nodes.to_string(), (10 * self.options.nodes).to_string());
        let mut command = self.command();
        command.args(["data", "simulate", "--kind", "citations", "--nodes", &nodes, "--edges", &edges]);
        command.args(["graph.kdgat-nodes", "--half-features"]);
        self.finish(command.spawn()?)
    }

    /// Starts a training, or resumes it if it was killed.
    fn train(&self, run: &str, place: &[&str], resumes: bool) -> Result<Child, Error> {
        let epochs = self.options.epochs.to_string();
        let mut command = self.command();
        command.args(["train", "--data", "graph.kdgat-nodes", "--preset", "sage,teacher", "--fanouts", "10,5"]);
        command.args([
            "--batch-size",
            "512",
            "--hidden",
            "64",
            "--node-validation",
            "sampled",
            "--max-epochs",
            &epochs,
        ]);
        command
            .args(["--num-workers", "2", "--threads", "2", "--log-every-n-steps", "1", "--run-dir", run])
            .args(place);
        command.args(resumes.then_some("--resume"));
        Ok(command.spawn()?)
    }

    fn finish(&self, child: Child) -> Result<(), Error> {
        let output = child.wait_with_output()?;
        match output.status.success() {
            true => Ok(()),
            false => {
                Err(format!("kdgat failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr)).into())
            }
        }
    }

    /// Kills a training at a random moment, and resumes it.
    fn kill_and_resume(&self, kill: u64, place: &[&str], seconds: f64) -> Result<Killed, Error> {
        let name = format!("killed{kill}");
        let run = self.folder.join(&name);
        for draw in 0..DRAWS {
            let bits = random::mix(random::mix(self.options.seed) ^ random::mix(kill << 8 | draw));
            let start = Instant::now();
            let mut child = self.train(&name, place, false)?;
            thread::sleep(Duration::from_secs_f64(random::to_unit(bits) * seconds));
            let has_ended = child.try_wait()?.is_some();
            let moment = start.elapsed().as_secs_f64();
            child.kill()?;
            let _ = child.wait_with_output()?;
            if has_ended {
                std::fs::remove_dir_all(&run)?;
                continue;
            }
            let steps = read_rows(&run.join("steps.csv")).map_or(0, |rows| rows.len().saturating_sub(1));
            self.finish(self.train(&name, place, true)?)?;
            let results = Results::read(&run)?;
            std::fs::remove_dir_all(&run)?;
            return Ok(Killed { moment, steps, results });
        }
        Err(format!("{DRAWS} trainings ended before their kill after less than {seconds:.1} s").into())
    }
}

/// Everything of a run that must not depend on a kill.
#[derive(PartialEq)]
struct Results {
    epochs: Vec<Vec<String>>,
    steps: Vec<Vec<String>>,
    /// Tensors of the best epoch, and those of the last state with the optimiser's.
    best: Vec<u8>,
    last: Vec<u8>,
}

impl Results {
    fn read(run: &Path) -> Result<Self, Error> {
        Ok(Self {
            epochs: read_rows(&run.join("metrics.csv"))?,
            steps: read_rows(&run.join("steps.csv"))?,
            best: tensors(&run.join("best.safetensors"))?,
            last: tensors(&run.join("last/state.safetensors"))?,
        })
    }
}

/// Header and rows of a file, without times and memory.
fn read_rows(path: &Path) -> Result<Vec<Vec<String>>, Error> {
    let text = std::fs::read_to_string(path)?;
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().ok_or_else(|| format!("{} is empty", path.display()))?;
    let compared = |row: Vec<&str>| {
        let values = header.iter().zip(&row).filter(|(name, _)| !NOT_COMPARED.contains(name));
        values.map(|(_, value)| (*value).to_owned()).collect()
    };
    Ok(std::iter::once(header.clone()).chain(lines).map(compared).collect())
}

/// The bytes of all tensors of a file in the format of safetensors; its header has times.
fn tensors(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = std::fs::read(path)?;
    let length = bytes.first_chunk().map(|length| u64::from_le_bytes(*length) as usize);
    match length.and_then(|length| length.checked_add(8)).filter(|&begin| begin < bytes.len()) {
        Some(begin) => Ok(bytes.split_off(begin)),
        None => Err(format!("{} has no tensors", path.display()).into()),
    }
}
