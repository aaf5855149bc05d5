//! One attempt at a task: starts its command and interprets how it ends.

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
use crate::SweepError;
use crate::plan::{Plan, Task, TaskKind, metric};
use crate::state::{Claim, Status, SweepFolder, TaskState, Worker, results};
use kdgat_base::{exit, files};
use kdgat_train::processes::TOGETHER;

/// Bytes at the end of a log that are searched for the reason of a failure.
const LOG_TAIL_BYTES: u64 = 16 << 10;
/// Maximum bytes of a log that are read at once while the task runs.
const LOG_PIECE_BYTES: u64 = 1 << 20;

/// Resources that a task may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// CPU threads, unless the task's configuration has a number of its own.
    pub threads: usize,
    /// Host memory limit of the whole process; `None` for no limit.
    pub memory_bytes: Option<u64>,
    /// Visible GPU, as a value of CUDA_VISIBLE_DEVICES; `None` to leave the variable unchanged.
    pub gpu: Option<String>,
    /// GPU memory limit in bytes, if tasks share a GPU; `None` for the configured limit.
    pub gpu_memory_bytes: Option<u64>,
    /// Set when a cluster may give the task's next attempt more host memory.
    pub may_grow: bool,
}

/// A running task.
#[derive(Debug)]
pub struct Attempt {
    pub task: Task,
    claim: Claim,
    child: Child,
    state: TaskState,
    started: Instant,
    /// Length of the log in bytes when the attempt started.
    log_start: u64,
    /// Position in the log up to which [`Attempt::new_output`] has read.
    log_read: u64,
    asked_to_stop: Option<Asked>,
    /// Set when the next attempt may have more memory.
    may_grow: bool,
}

/// Reason for asking a task to stop.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// The sweep stops; the task will resume later.
    Interrupted,
    /// Early stopping, with the reason.
    Early(String),
}

impl Attempt {
    /// Starts the task's command. Returns `None` if the task is already done, because it kept running after its sweep was killed.
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
        let frozen = kdgat_config::freeze(&task.config, &task.kind.words().join(" "), &Map::new());
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
        // Ctrl-C on a terminal must reach only the sweep, which forwards it once: a second signal would keep the task from saving.
        command.process_group(0);
        // A task does not join the processes of which the sweep itself may be one.
        TOGETHER.iter().for_each(|name| {
            command.env_remove(name);
        });
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

    /// Returns the folder of the run.
    pub fn run(&self) -> PathBuf {
        self.claim.folder().join(self.state.run.as_deref().unwrap_or("run"))
    }

    pub fn log(&self) -> PathBuf {
        self.claim.folder().join("log.txt")
    }

    /// Returns output that the task has written to its log since the last call, at most [`LOG_PIECE_BYTES`].
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

    /// Asks the task to save and end with SIGTERM. Only the first call has an effect.
    pub fn stop(&mut self, why: Asked) {
        if self.asked_to_stop.is_none() {
            self.asked_to_stop = Some(why);
            // The process has not been waited for, so its ID cannot have been reused. If it has just ended, the error does not matter.
            if let Some(process) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process(process, Signal::TERM);
            }
        }
    }

    /// Returns the task's state once it has ended, and writes it to the folder.
    pub fn poll(&mut self, folder: &SweepFolder, plan: &Plan) -> Result<Option<TaskState>, SweepError> {
        let waited = self
            .child
            .try_wait()
            .map_err(SweepError::file(&self.claim.folder().join("log.txt"), "wait for the task"))?;
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
            Some(Asked::Early(reason)) if was_interrupted(status) => {
                let has_weights = self.run().join("best.safetensors").exists();
                let without = if has_weights { "" } else { ", but it has saved no weights that other tasks could use" };
                self.state.status = if has_weights { Status::Stopped } else { Status::Failed };
                self.state.reason = Some(format!("stopped early: {reason}{without}"));
            }
            Some(Asked::Interrupted) => self.state.status = Status::Waiting,
            // A task that ends in another way than requested has failed by itself.
            _ if ran_out_of_memory(status) => {
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
        // Wrong usage or input would fail in the same way again.
        let again = !ended_with(status, exit::INPUT) && state.failures <= plan.retries;
        state.status = if again { Status::Waiting } else { Status::Failed };
        state.reason = Some(format!("{status}: {}", error_line(said)));
    }
}

/// True if a training has finished, for one that ran on without its sweep.
fn finished(run: &Path) -> bool {
    run.join("summary.json").exists()
}

fn conclude_done(folder: &SweepFolder, plan: &Plan, task: &Task, state: &mut TaskState) -> Result<(), SweepError> {
    let run = folder.task(task).join(state.run.as_deref().unwrap_or("run"));
    state.status = Status::Done;
    state.reason = None;
    let found = match task.kind {
        TaskKind::Store | TaskKind::Part(_) | TaskKind::Targets | TaskKind::TargetsPart(_) => return Ok(()),
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
            Some(value) => format!("`{}` is {value}, so the trial cannot be compared", plan.metric),
            None if plan.metric == metric::OF_VALIDATION => format!(
                "it has no `{}`: its validation data need windows with and without attacks; compare trials \
                 by another `metric`",
                plan.metric
            ),
            None => format!("it has no metric `{}` (available: {})", plan.metric, known()),
        };
        (state.status, state.reason) = (Status::Failed, Some(wrong));
    }
    Ok(())
}

fn ended_with(status: ExitStatus, code: u8) -> bool {
    status.code() == Some(code.into())
}

/// True if a run that was asked to stop was interrupted as requested, rather than failing otherwise, such as by a full disk
/// while saving, or a panic.
fn was_interrupted(status: ExitStatus) -> bool {
    // SIGTERM ends a run that does not handle signals yet; checkpoints of earlier attempts are intact.
    ended_with(status, exit::INTERRUPTED) || status.signal() == Some(Signal::TERM.as_raw())
}

/// True if the task ended for lack of memory: by its own account, or because the system killed it with SIGKILL.
fn ran_out_of_memory(status: ExitStatus) -> bool {
    const KILLED: u8 = 9;
    // A container's first process ends with 128 and the number of the signal.
    ended_with(status, exit::OUT_OF_MEMORY)
        || ended_with(status, 128 + KILLED)
        || status.signal() == Some(KILLED.into())
}

/// Reads the end of the attempt's output, at most [`LOG_TAIL_BYTES`]; empty if it cannot be read.
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

/// Returns the most informative line of a log, to be shown: its last error, else its last line.
fn error_line(said: &str) -> String {
    let lines = || said.lines().map(str::trim);
    let line = lines().rfind(|line| line.starts_with("error")).or_else(|| lines().rfind(|line| !line.is_empty()));
    let line = line.unwrap_or("no output");
    line.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Surroundings, SweepFile, expand};

    const EPOCHS: &str = "epoch,val_loss,seconds,val_id\n0,0.5,1.5,inf\n1,0.25,2.5,inf\n";

    /// Creates a sweep of one training that is compared by `metric`. Also returns that task.
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
        // State after an end with this status, as `wait` returns it, and this output.
        let mut ended = |status: i32, said: &str| {
            attempt.state = TaskState { status: Status::Running, ..TaskState::default() };
            std::fs::write(attempt.log(), said).unwrap();
            attempt.conclude(&folder, &plan, ExitStatus::from_raw(status)).unwrap();
            (attempt.state.status, attempt.state.reason.clone().unwrap())
        };
        let exit = |code: u8| i32::from(code) << 8;
        let interrupted = "interrupted (continue with --resume) after 3 epochs\n  run: student\n";
        assert_eq!(ended(exit(exit::INTERRUPTED), ""), (Status::Stopped, "stopped early: worse".to_owned()));
        assert_eq!(ended(exit(exit::FAILURE), interrupted).0, Status::Waiting, "the log does not decide");
        assert_eq!(ended(Signal::TERM.as_raw(), "").0, Status::Stopped, "before it handled signals");
        let full = ended(exit(exit::FAILURE), &format!("{interrupted}error: last/state: cannot write: no space\n"));
        assert!(full.0 == Status::Waiting && full.1.contains("no space"), "{full:?}");
        assert_eq!(ended(exit(101), interrupted).0, Status::Waiting, "a panic");
        let killed = ended(Signal::KILL.as_raw(), interrupted);
        assert!(killed.0 == Status::Waiting && killed.1.contains("out of memory"), "{killed:?}");
        std::fs::remove_file(&weights).unwrap();
        let without = ended(exit(exit::INTERRUPTED), interrupted);
        assert!(without.0 == Status::Failed && without.1.contains("no weights"), "{without:?}");
    }

    #[test]
    fn the_exit_code_says_that_memory_ran_out() {
        let exit = |code: u8| ExitStatus::from_raw(i32::from(code) << 8);
        let signal = |signal: Signal| ExitStatus::from_raw(signal.as_raw());
        for status in [exit(exit::OUT_OF_MEMORY), exit(137), signal(Signal::KILL)] {
            assert!(ran_out_of_memory(status), "{status}");
        }
        for code in [0, exit::FAILURE, exit::INPUT, exit::INTERRUPTED, exit::STOPPED_AT_ONCE, 101, 134] {
            assert!(!ran_out_of_memory(exit(code)), "{code}");
        }
        for ended in [Signal::ABORT, Signal::SEGV, Signal::TERM] {
            assert!(!ran_out_of_memory(signal(ended)), "{ended:?}");
        }
    }
}
