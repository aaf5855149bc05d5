//! Another program, in a process of its own, that makes a step for each line that it reads; and steps of both in turn.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::rows::Rows;
use super::{Error, median};

/// Starts programs with one interpreter and number of threads.
pub struct Peers<'a> {
    pub python: &'a Path,
    pub threads: i32,
}

impl Peers<'_> {
    /// Starts a program, whose last argument is a file; `None` without a program.
    pub fn start(&self, program: Option<&PathBuf>, arguments: &[&str], file: &Path) -> Result<Option<Peer>, Error> {
        let Some(program) = program else { return Ok(None) };
        fs::metadata(program)?;
        let mut process = Command::new(self.python)
            .arg(program)
            .args(["--threads", &self.threads.to_string()])
            .args(arguments)
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (requests, answers) = (process.stdin.take(), process.stdout.take());
        let (requests, answers) = (requests.ok_or("no input")?, BufReader::new(answers.ok_or("no output")?));
        Ok(Some(Peer { process, requests, answers }))
    }
}

/// A started program.
pub struct Peer {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Milliseconds of a step, MiB of the peak, and what else the program prints.
    fn step(&mut self) -> Result<Vec<f64>, Error> {
        writeln!(self.requests, "step")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let numbers = line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
        let numbers = numbers.ok().filter(|said| said.len() >= 2);
        numbers.ok_or_else(|| format!("the peer answered '{}'", line.trim()).into())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends with its input; an error of a process that has ended already does not matter.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Steps of both programs in turn.
pub struct Turns {
    own: Vec<f64>,
    theirs: Vec<f64>,
    /// The last line of the other program; empty without one.
    pub last: Vec<f64>,
}

impl Turns {
    /// Makes `rounds` steps of both after `warm` that do not count: they include memory allocation and cold caches.
    pub fn new(
        warm: usize,
        rounds: usize,
        peer: &mut Option<Peer>,
        mut step: impl FnMut() -> Result<f64, Error>,
    ) -> Result<Self, Error> {
        let mut turns = Self { own: Vec::new(), theirs: Vec::new(), last: Vec::new() };
        for round in 0..warm + rounds {
            let mine = step()?;
            if let Some(peer) = peer {
                turns.last = peer.step()?;
            }
            if round >= warm {
                turns.own.push(mine);
                turns.theirs.extend(turns.last.first());
            }
        }
        Ok(turns)
    }

    /// Adds a row of the medians of both times and of their ratios.
    pub fn add_time(&self, row: &str, metric: &'static str, peer: &'static str, rows: &mut Rows) {
        let ratios = self.own.iter().zip(&self.theirs).map(|(mine, theirs)| theirs / mine).collect();
        let compared = (!self.theirs.is_empty()).then(|| (peer, median(self.theirs.clone()), median(ratios)));
        rows.add(row, (metric, "ms"), median(self.own.clone()), compared);
    }

    /// Adds a row of the peaks of memory; `peak` is that of this program, in MiB.
    pub fn add_peak(&self, row: &str, peak: f64, peer: &'static str, rows: &mut Rows) {
        let compared = self.last.get(1).map(|&of_peer| (peer, of_peer, of_peer / peak));
        rows.add(row, ("peak of a step", "MiB"), peak, compared);
    }
}

/// The peak of this process's memory, in MiB.
pub fn peak() -> Result<f64, Error> {
    status("VmHWM:")
}

/// Resets the peak of this process's memory to what it has now, and returns that.
pub fn reset_peak() -> Result<f64, Error> {
    fs::write("/proc/self/clear_refs", "5")?;
    status("VmRSS:")
}

/// A line of the process's status, in MiB.
fn status(name: &str) -> Result<f64, Error> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line in /proc/self/status")?;
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes / 1024.0)
}
