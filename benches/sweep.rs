//! A sweep with parallel trials compared with the same sweep one trial after another: total seconds, and the peak memory of all
//! processes together.
//!
//! Trials are students of the simulated dataset, distilled from the teacher in the repository. The store and the
//! teacher's targets are the same for all trials and are built before the measurement.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use common::rows::Rows;
use common::{Error, median};
use tch::Device;

#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    output: common::Output,
    /// Trials of the sweep
    #[arg(long, default_value_t = 8)]
    trials: usize,
    /// Epochs of a trial
    #[arg(long, default_value_t = 20)]
    epochs: usize,
    /// Measurements of each way to run the sweep, alternating
    #[arg(long, default_value_t = 3)]
    pairs: usize,
    #[arg(long, hide = true)]
    bench: bool,
}

/// A way to run the sweep.
struct Way {
    name: &'static str,
    /// Number of parallel trials; `None`: as many as the machine allows.
    jobs: Option<&'static str>,
    threads: Option<&'static str>,
}

const WAYS: [Way; 3] = [
    Way { name: "as many at once as there are cores", jobs: None, threads: None },
    Way { name: "one after the other, all cores each", jobs: Some("1"), threads: None },
    Way { name: "one after the other, one thread each", jobs: Some("1"), threads: Some("1") },
];

#[derive(Clone, Copy, Debug)]
struct Measured {
    seconds: f64,
    peak_bytes: u64,
}

fn main() -> Result<(), Error> {
    let options = Options::parse();
    let (trials, epochs, pairs) = match options.output.quick {
        true => (options.trials.min(4), options.epochs.min(10), 1),
        false => (options.trials, options.epochs, options.pairs),
    };
    let scratch = tempfile::tempdir()?;
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("teachers"), &scratch.path().join("teachers"))?;
    write_file(scratch.path(), trials, epochs, None)?;
    eprintln!("making the store and the teacher's targets");
    measure(scratch.path(), "first", &WAYS[0], 1)?;

    let mut found: Vec<Vec<Measured>> = vec![Vec::new(); WAYS.len()];
    for pair in 0..pairs {
        for (way, found) in WAYS.iter().zip(&mut found) {
            write_file(scratch.path(), trials, epochs, way.threads)?;
            let measured = measure(scratch.path(), &format!("{pair}-{}", way.name.replace(' ', "-")), way, trials)?;
            eprintln!("  {}: {:.1} s", way.name, measured.seconds);
            found.push(measured);
        }
    }
    let middle = |found: &[Measured]| median(found.iter().map(|one| one.seconds).collect());
    let at_once = found[0].clone();
    let mut rows = Rows::new("sweep", options.output.json);
    let name = |way: &Way| format!("{trials} trials of {epochs} epochs, {}", way.name);
    for (way, found) in WAYS.iter().zip(&found) {
        // Ratios within each round, because the machine's speed varies between rounds.
        let ratio = median(at_once.iter().zip(found).map(|(at_once, one)| at_once.seconds / one.seconds).collect());
        let peer = way.jobs.is_some().then_some(("as many at once", middle(&at_once), ratio));
        rows.add(&name(way), ("time", "s"), middle(found), peer);
        let peak = found.iter().map(|one| one.peak_bytes).max().unwrap_or(0);
        rows.add(&name(way), ("highest memory of all processes", "MiB"), peak as f64 / f64::from(1 << 20), None);
    }
    rows.finish(Device::Cpu, options.output.results.as_deref())
}

fn write_file(folder: &Path, trials: usize, epochs: usize, threads: Option<&str>) -> Result<(), Error> {
    let seeds: Vec<String> = (1..=trials).map(|seed| seed.to_string()).collect();
    let resources = threads.map_or(String::new(), |threads| format!("[resources]\nthreads = {threads}\n"));
    let text = format!(
        "metric = \"val_task_loss\"\nseeds = [{}]\n{resources}[[step]]\nname = \"student\"\ncommand = \"autoencoder\"\n\
         preset = \"vgae,student\"\nset = {{ max_epochs = {epochs} }}\n",
        seeds.join(", ")
    );
    Ok(std::fs::write(folder.join("bench.toml"), text)?)
}

/// Runs the sweep in a new folder.
fn measure(folder: &Path, output: &str, way: &Way, trials: usize) -> Result<Measured, Error> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kdgat"));
    command.current_dir(folder).args(["sweep", "bench.toml", "--output", output]).stdin(Stdio::null());
    command.args(way.jobs.iter().flat_map(|jobs| ["--jobs", *jobs]));
    if trials == 1 {
        command.args(["--set", "seed=1", "--set", "max_epochs=1"]);
    }
    let start = Instant::now();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let (mut peak_bytes, mut looked) = (0, start);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        // Rarely, because reading all processes takes a core from the measured trials.
        if looked.elapsed() > Duration::from_millis(500) {
            peak_bytes = peak_bytes.max(resident_bytes(child.id()));
            looked = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let seconds = start.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("the sweep in {} failed: {status}", folder.join(output).display()).into());
    }
    Ok(Measured { seconds, peak_bytes })
}

/// Resident memory of a process and its children, in bytes.
fn resident_bytes(parent: u32) -> u64 {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let processes = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let of = |process: u32| {
        let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse::<u64>().ok()
        };
        let counts = process == parent || field("PPid:") == Some(u64::from(parent));
        counts.then(|| field("VmRSS:").unwrap_or(0) << 10)
    };
    processes.filter_map(of).sum()
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
