//! One attempt at a task: the command, and what its end means.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Map;

use super::command::{arguments, run_name, run_of};
use super::ladder;
use super::relief::out_of_memory;
use crate::config;
use crate::files;
use crate::sweep::SweepError;
use crate::sweep::plan::{Plan, Task, TaskKind, metric};
use crate::sweep::state::{Claim, Status, SweepFolder, TaskState, Worker, results};
use crate::torch::allocator;

/// What is looked at of a log for the reason of a failure.
const LOG_TAIL_BYTES: u64 = 16 << 10;
/// What is read of a log at once while the task runs.
const LOG_PIECE_BYTES: u64 = 1 << 20;
/// Exit code of wrong usage or input: the same again would fail in the same way.
const INPUT: i32 = 2;
/// Exit code of a run that was asked to stop, and of failures.
const FAILURE: i32 = 1;

/// What a task may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    pub threads: usize,
    /// Host memory of the whole process.
    pub memory_bytes: Option<u64>,
    /// The GPU that it sees, as CUDA_VISIBLE_DEVICES has it.
    pub gpu: Option<String>,
    pub gpu_memory_bytes: Option<u64>,
    /// Whether a cluster may give more host memory to the task's next attempt.
    pub may_grow: bool,
}

/// A task at work.
#[derive(Debug)]
pub struct Attempt {
    pub task: Task,
    claim: Claim,
    child: Child,
    state: TaskState,
    started: Instant,
    /// Where the log was when it began.
    log_start: u64,
    /// How far [`Attempt::new_output`] has come in the log.
    log_read: u64,
    asked_to_stop: Option<Asked>,
    /// Whether it may have more memory the next time.
    may_grow: bool,
}

/// Why a task was asked to stop.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// The sweep stops; the task goes on another time.
    Interrupted,
    /// It promises little.
    Early(String),
}

impl Attempt {
    /// Starts the task's command. `None` when it turns out to be done already: its sweep was killed, it was not.
    pub fn start(
        folder: &SweepFolder,
        plan: &Plan,
        task: &Task,
        claim: Claim,
        grant: &Grant,
    ) -> Result<Option<Self>, SweepError> {
        let mut state = folder.state(task)?;
        let rungs = ladder::ladder(&task.config, state.batch_graphs);
        let run = run_name(&rungs, state.rung);
        if finished(&claim.folder().join(&run)) && state.status == Status::Running {
            conclude_done(folder, plan, task, &mut state)?;
            claim.write(&state)?;
            return Ok(None);
        }
        let config = claim.folder().join("config.json");
        let frozen = config::freeze(&task.config, &task.kind.words().join(" "), &Map::new());
        let text =
            serde_json::to_vec_pretty(&frozen).map_err(|error| SweepError::file(&config, "write")(error.into()))?;
        files::write_atomically(&config, &text).map_err(SweepError::file(&config, "write"))?;

        let log_path = claim.folder().join("log.txt");
        let log = OpenOptions::new().create(true).append(true).open(&log_path);
        let log = log.map_err(SweepError::file(&log_path, "open"))?;
        let log_start = log.metadata().map_err(SweepError::file(&log_path, "read"))?.len();
        let errors = log.try_clone().map_err(SweepError::file(&log_path, "open"))?;
        state.status = Status::Running;
        state.attempts += 1;
        state.run = Some(run);
        state.reason = None;
        state.worker = Some(Worker::this());
        claim.write(&state)?;

        let program = std::env::current_exe().map_err(SweepError::file(Path::new("kdgat"), "find this program"))?;
        let mut command = Command::new(&program);
        command.args(arguments(folder, plan, task, &state, grant)?);
        command.stdin(claim.to_stdin()?).stdout(log).stderr(errors);
        // Ctrl-C on a terminal is for the sweep, which passes it on once: a second signal would not let the task save.
        command.process_group(0);
        if let Some(gpu) = &grant.gpu {
            command.env("CUDA_VISIBLE_DEVICES", gpu);
        }
        let child = command.spawn().map_err(SweepError::file(&program, "start"))?;
        let (task, started) = (task.clone(), Instant::now());
        Ok(Some(Self {
            task,
            claim,
            child,
            state,
            started,
            log_start,
            log_read: log_start,
            asked_to_stop: None,
            may_grow: grant.may_grow,
        }))
    }

    /// The number of the process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// The folder of the run.
    pub fn run(&self) -> PathBuf {
        self.claim.folder().join(self.state.run.as_deref().unwrap_or("run"))
    }

    pub fn log(&self) -> PathBuf {
        self.claim.folder().join("log.txt")
    }

    /// What the task has written since the last call, as far as it is there.
    pub fn new_output(&mut self) -> Result<Vec<u8>, SweepError> {
        let path = self.log();
        let read = || {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(self.log_read))?;
            let mut bytes = Vec::new();
            file.take(LOG_PIECE_BYTES).read_to_end(&mut bytes)?;
            std::io::Result::Ok(bytes)
        };
        let bytes = read().map_err(SweepError::file(&path, "read"))?;
        self.log_read += bytes.len() as u64;
        Ok(bytes)
    }

    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Asks the task to save and end; the first reason counts.
    pub fn stop(&mut self, why: Asked) {
        if self.asked_to_stop.is_none() {
            self.asked_to_stop = Some(why);
            // It has not been waited for, so that the number is still its own. That it has just ended is no failure.
            if let Some(process) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process(process, Signal::TERM);
            }
        }
    }

    /// Its state, once it has ended; the claim is given back then.
    pub fn poll(&mut self, folder: &SweepFolder, plan: &Plan) -> Result<Option<TaskState>, SweepError> {
        let waited = self
            .child
            .try_wait()
            .map_err(SweepError::file(&self.claim.folder().join("log.txt"), "wait for the task of"))?;
        let Some(status) = waited else { return Ok(None) };
        self.state.seconds += self.started.elapsed().as_secs_f64();
        self.conclude(folder, plan, status)?;
        self.claim.write(&self.state)?;
        Ok(Some(self.state.clone()))
    }

    fn conclude(&mut self, folder: &SweepFolder, plan: &Plan, status: ExitStatus) -> Result<(), SweepError> {
        let task = &self.task;
        if status.success() {
            return conclude_done(folder, plan, task, &mut self.state);
        }
        if task.kind.stage().is_some() {
            self.state.take(results::of_training(&self.run())?);
        }
        let said = last_words(&self.log(), self.log_start);
        match &self.asked_to_stop {
            Some(Asked::Early(reason)) if was_interrupted(status, &said) => {
                let has_weights = self.run().join("best.safetensors").exists();
                let without = if has_weights { "" } else { ", but it has no weights that others could use" };
                self.state.status = if has_weights { Status::Stopped } else { Status::Failed };
                self.state.reason = Some(format!("stopped early: {reason}{without}"));
            }
            Some(Asked::Interrupted) => self.state.status = Status::Waiting,
            // What ends in another way than it was asked to has failed on its own.
            _ if ran_out_of_memory(status, &said) => {
                let (folder, why) = (self.claim.folder(), error_line(&said));
                out_of_memory(plan, task, &mut self.state, folder, self.may_grow, &why);
            }
            _ => self.fail(plan, status, &said),
        }
        Ok(())
    }

    fn fail(&mut self, plan: &Plan, status: ExitStatus, said: &str) {
        let state = &mut self.state;
        state.failures += 1;
        let again = status.code() != Some(INPUT) && state.failures <= plan.retries;
        state.status = if again { Status::Waiting } else { Status::Failed };
        state.reason = Some(format!("{status}: {}", error_line(said)));
    }
}

/// Whether a training that nobody waited for has come to its end.
fn finished(run: &Path) -> bool {
    run.join("summary.json").exists()
}

fn conclude_done(folder: &SweepFolder, plan: &Plan, task: &Task, state: &mut TaskState) -> Result<(), SweepError> {
    let run = folder.task(task).join(state.run.as_deref().unwrap_or("run"));
    state.status = Status::Done;
    state.reason = None;
    let found = match task.kind {
        TaskKind::Store | TaskKind::Part(_) | TaskKind::Targets => return Ok(()),
        TaskKind::Evaluate => {
            let judged = task.inputs.first().and_then(|input| plan.task(&input.task));
            let judged =
                judged.map(|judged| Ok::<_, SweepError>(run_of(folder, judged, &folder.state(judged)?))).transpose()?;
            results::of_evaluation(&run, judged.as_deref().unwrap_or(&run))?
        }
        _ => results::of_training(&run)?,
    };
    let measured = found.metrics.get(&plan.metric).copied();
    state.take(found);
    if plan.trials.iter().any(|trial| trial.measured == task.id) {
        let known = || state.metrics.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let wrong = match measured {
            Some(value) if value.is_finite() => return Ok(()),
            Some(value) => format!("`{}` is {value}, so that the trial cannot be compared", plan.metric),
            None if plan.metric == metric::OF_VALIDATION => format!(
                "it has no `{}`: its validation data have only windows with an attack, or only ones without; compare trials \
                 by another `metric`",
                plan.metric
            ),
            None => format!("it has no metric `{}` (there are: {})", plan.metric, known()),
        };
        (state.status, state.reason) = (Status::Failed, Some(wrong));
    }
    Ok(())
}

/// What every training that was asked to stop says at its end.
const INTERRUPTED: &str = "interrupted";

/// Whether a run that was asked to stop has done so. A disk that is full while it saves, or a panic, is another end.
fn was_interrupted(status: ExitStatus, said: &str) -> bool {
    match status.code() {
        Some(FAILURE) => last_error(said).unwrap_or(said).contains(INTERRUPTED),
        // It was asked before it listened; what earlier attempts have saved is whole.
        None => status.signal() == Some(Signal::TERM.as_raw()),
        Some(_) => false,
    }
}

/// What a training says that was refused before it took the memory.
const REFUSALS: [&str; 3] =
    ["not even one graph at a time fits", "but memory allows", "however few graphs go through the model at a time"];

/// Whether the system killed the task, as it does for want of memory, or the error that the task ended with says so. What
/// it said earlier tells of shortages that it has survived.
fn ran_out_of_memory(status: ExitStatus, said: &str) -> bool {
    const KILLED: i32 = 9;
    match status.code() {
        Some(FAILURE | INPUT) => final_error(said).is_some_and(|error| {
            allocator::says_out_of_memory(error) || REFUSALS.iter().any(|words| error.contains(words))
        }),
        Some(code) => code == 128 + KILLED,
        None => status.signal() == Some(KILLED),
    }
}

/// The error that the task ended with: from the last line that begins one to the end, for causes and tables follow it.
/// `None` where the task went on after that line.
fn final_error(said: &str) -> Option<&str> {
    let begins_line = |at: usize| at == 0 || said.as_bytes()[at - 1] == b'\n';
    let (start, _) = said.rmatch_indices("error: ").find(|&(at, _)| begins_line(at))?;
    let error = &said[start..];
    let went_on = error.lines().skip(1).any(|line| line.starts_with(INTERRUPTED));
    (!went_on).then_some(error)
}

/// The end of what the attempt wrote; nothing when it cannot be read.
fn last_words(log: &Path, from: u64) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(end.saturating_sub(LOG_TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        std::io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}

fn last_error(said: &str) -> Option<&str> {
    said.lines().map(str::trim).rfind(|line| line.starts_with("error"))
}

/// The line of a log that tells most.
fn error_line(said: &str) -> String {
    let last_line = || said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let line = last_error(said).or_else(last_line).unwrap_or("it said nothing");
    line.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::plan::{Surroundings, SweepFile, expand};

    const EPOCHS: &str = "epoch,val_loss,seconds,val_id\n0,0.5,1.5,inf\n1,0.25,2.5,inf\n";

    /// A sweep of one training that is compared by `metric`, and that task.
    fn sweep(folder: &Path, metric: &str) -> (SweepFolder, Plan, Task) {
        let text = format!(
            "metric = \"{metric}\"\n[[step]]\nname = \"student\"\ncommand = \"autoencoder\"\npreset = \"vgae,student\"\n\
             set = {{ use_kd = false }}\n"
        );
        let surroundings = Surroundings { working_folder: folder.to_owned(), variables: Vec::new() };
        let plan = expand(&SweepFile::parse("test", &text).unwrap(), "test", "test", &surroundings).unwrap();
        let task = plan.tasks.iter().find(|task| task.step == "student").unwrap().clone();
        (SweepFolder::at(folder).unwrap(), plan, task)
    }

    #[test]
    fn what_is_not_finite_fails_its_trial_only() {
        let temporary = tempfile::tempdir().unwrap();
        for (metric, status) in [("val_id", Status::Failed), ("val_loss", Status::Done)] {
            let (folder, plan, task) = sweep(&temporary.path().join(metric), metric);
            let claim = folder.claim(&task).unwrap().unwrap();
            std::fs::create_dir_all(claim.folder().join("run")).unwrap();
            std::fs::write(claim.folder().join("run/metrics.csv"), EPOCHS).unwrap();
            let mut state = TaskState::default();
            conclude_done(&folder, &plan, &task, &mut state).unwrap();
            claim.write(&state).unwrap();
            let state = folder.state(&task).unwrap();
            assert_eq!((state.status, state.metrics["val_loss"]), (status, 0.25));
            assert!(!state.metrics.contains_key("val_id"));
            assert_eq!(state.reason.is_some_and(|reason| reason.contains("`val_id` is inf")), status == Status::Failed);
        }
    }

    #[test]
    fn a_run_that_went_on_alone_has_its_own_time() {
        let temporary = tempfile::tempdir().unwrap();
        let (folder, plan, task) = sweep(temporary.path(), "val_loss");
        let claim = folder.claim(&task).unwrap().unwrap();
        std::fs::create_dir_all(claim.folder().join("run")).unwrap();
        std::fs::write(claim.folder().join("run/metrics.csv"), EPOCHS).unwrap();
        std::fs::write(claim.folder().join("run/summary.json"), "{}").unwrap();
        claim.write(&TaskState { status: Status::Running, ..TaskState::default() }).unwrap();
        let grant = Grant { threads: 1, memory_bytes: None, gpu: None, gpu_memory_bytes: None, may_grow: false };
        assert!(Attempt::start(&folder, &plan, &task, claim, &grant).unwrap().is_none());
        let state = folder.state(&task).unwrap();
        assert_eq!((state.status, state.seconds), (Status::Done, 4.0));
    }

    #[test]
    fn what_fails_while_it_is_stopped_early_has_failed() {
        let temporary = tempfile::tempdir().unwrap();
        let (folder, plan, task) = sweep(temporary.path(), "val_loss");
        let claim = folder.claim(&task).unwrap().unwrap();
        let weights = claim.folder().join("run/best.safetensors");
        std::fs::create_dir_all(claim.folder().join("run")).unwrap();
        std::fs::write(&weights, "").unwrap();
        let mut attempt = Attempt {
            task,
            claim,
            child: Command::new("true").spawn().unwrap(),
            state: TaskState::default(),
            started: Instant::now(),
            log_start: 0,
            log_read: 0,
            asked_to_stop: Some(Asked::Early("worse".to_owned())),
            may_grow: false,
        };
        attempt.child.wait().unwrap();
        // How it stands after an end with this status, as `wait` gives it, and these last words.
        let mut ended = |status: i32, said: &str| {
            attempt.state = TaskState { status: Status::Running, ..TaskState::default() };
            std::fs::write(attempt.log(), said).unwrap();
            attempt.conclude(&folder, &plan, ExitStatus::from_raw(status)).unwrap();
            (attempt.state.status, attempt.state.reason.clone().unwrap())
        };
        let exit = |code: i32| code << 8;
        let interrupted = "interrupted; go on with --resume after 3 epochs\n  run: student\n";
        assert_eq!(ended(exit(1), interrupted), (Status::Stopped, "stopped early: worse".to_owned()));
        assert_eq!(ended(Signal::TERM.as_raw(), "").0, Status::Stopped, "before it listened");
        let full = ended(exit(1), &format!("{interrupted}error: last/state: cannot write: no space\n"));
        assert!(full.0 == Status::Waiting && full.1.contains("no space"), "{full:?}");
        assert_eq!(ended(exit(101), interrupted).0, Status::Waiting, "a panic");
        let killed = ended(Signal::KILL.as_raw(), interrupted);
        assert!(killed.0 == Status::Waiting && killed.1.contains("out of memory"), "{killed:?}");
        std::fs::remove_file(&weights).unwrap();
        let without = ended(exit(1), interrupted);
        assert!(without.0 == Status::Failed && without.1.contains("no weights"), "{without:?}");
    }

    #[test]
    fn a_shortage_that_was_survived_is_no_end() {
        let exit = |code: i32| ExitStatus::from_raw(code << 8);
        let signal = |signal: Signal| ExitStatus::from_raw(signal.as_raw());
        let survived = "memory: a step on 8 graphs did not fit (host memory limit of 9 bytes: kdgat: host memory limit); \
                        from now on 4 graphs at a time\nwarning: CUDA out of memory\nepoch 3\n";
        let no = |status: ExitStatus, last: &str| {
            assert!(!ran_out_of_memory(status, &format!("{survived}{last}")), "{status}: {last}");
        };
        no(exit(INPUT), "error: run/last/state.safetensors: damaged\n  because: the file ends early\n");
        no(exit(FAILURE), "error: run/metrics.csv: cannot write: no space left on device\n");
        no(exit(FAILURE), "");
        no(exit(101), "thread 'main' panicked at src/train/fit.rs:1:1:\nindex out of bounds\n");
        no(exit(134), "");
        no(signal(Signal::ABORT), "terminate called after throwing an instance of 'c10::Error'\n");
        no(signal(Signal::SEGV), "");
        no(signal(Signal::TERM), "");
        // An error that the training has told of and survived.
        no(
            exit(FAILURE),
            "error: dropping a state: CUDA out of memory\ninterrupted; go on with --resume after 3 epochs\n",
        );

        let yes = |status: ExitStatus, last: &str| {
            assert!(ran_out_of_memory(status, &format!("{survived}{last}")), "{status}: {last}");
        };
        yes(exit(INPUT), "error: out of memory: the limit of 1MiB for tensors was reached\n  while: the first step\n");
        yes(
            exit(FAILURE),
            "error: the teacher cannot be read\n  because: CUDA out of memory. Tried to allocate 1 GiB\n",
        );
        yes(exit(INPUT), "error: not even one graph at a time fits into the memory of 0.1 GiB\ncomponent  fixed\n");
        yes(signal(Signal::KILL), "");
        yes(exit(137), "");
    }
}
