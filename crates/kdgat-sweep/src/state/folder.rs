//! A sweep's folder, with the locks that coordinate the processes working on it.
//!
//! ```text
//! sweeps/<name>/
//!     sweep.toml            the sweep file that it was started with
//!     plan.json             its tasks and trials
//!     sweep.csv             one row per trial
//!     workers.lock          shared lock, held by every process that works on it
//!     tasks/<step>-<digest>/
//!         claim             locked by the process that works on the task and by the command that it runs
//!         config.json, log.txt, state.json, run/
//! ```
//!
//! A claim is a lock of the operating system (`flock`): it is released when the processes that hold it end, in whatever way.
//! The command inherits it as its standard input, so a task that still runs after its sweep was killed is not started a
//! second time.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::record;
use super::table;
use super::task_state::{Status, TaskState};
use crate::SweepError;
use crate::plan::{Plan, Task, TaskKind};
use kdgat_base::files;

const PLAN: &str = "plan.json";
const PLAN_FORMAT: &str = "kdgat sweep plan";
const STATE: &str = "state.json";
const STATE_FORMAT: &str = "kdgat sweep task";
const CANCELLED: &str = "cancelled";
/// File name of the table of trials.
pub const TABLE: &str = "sweep.csv";

/// Folder of a sweep.
#[derive(Clone, Debug)]
pub struct SweepFolder {
    path: PathBuf,
}

/// Exclusive right to work on a task and to write its state.
#[derive(Debug)]
pub struct Claim {
    file: File,
    folder: PathBuf,
}

/// Shared lock of a process that works on a sweep, or the exclusive lock of the one that submits its jobs.
#[derive(Debug)]
pub struct Membership {
    _lock: File,
}

impl SweepFolder {
    /// Returns the folder at a path, which need not exist.
    ///
    /// # Errors
    /// If the path is relative and the working directory is unknown, or the path is empty.
    pub fn at(path: &Path) -> Result<Self, SweepError> {
        let path = std::path::absolute(path).map_err(SweepError::file(path, "find"))?;
        Ok(Self { path })
    }

    /// Returns the absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Joins the processes that work on the sweep. The first one writes the plan; the others must have the same plan.
    ///
    /// # Errors
    /// If other processes have another plan, or the sweep is being cancelled.
    pub fn join(&self, plan: &Plan, text: &str) -> Result<Membership, SweepError> {
        let tasks = self.path.join("tasks");
        fs::create_dir_all(&tasks).map_err(SweepError::file(&tasks, "create"))?;
        let path = self.path.join("workers.lock");
        let mut tries = 0;
        let lock = loop {
            let lock = open_lock(&path)?;
            if try_lock(&lock, &path)? {
                // No other process works on it: a changed sweep file may replace the plan. Results of common tasks are kept.
                self.write_plan(plan, text)?;
                let marker = self.path.join(CANCELLED);
                if marker.exists() {
                    fs::remove_file(&marker).map_err(SweepError::file(&marker, "remove"))?;
                }
                lock.unlock().map_err(SweepError::file(&path, "unlock"))?;
            }
            lock.lock_shared().map_err(SweepError::file(&path, "lock"))?;
            match self.plan() {
                Ok(found) if found == *plan => break lock,
                Ok(_) | Err(SweepError::NoSweep { .. }) => {}
                Err(error) => return Err(error),
            }
            // Another process may have held the lock only briefly.
            tries += 1;
            if tries == 5 {
                return Err(SweepError::OtherPlan { folder: self.path.clone() });
            }
            drop(lock);
            std::thread::sleep(Duration::from_millis(50));
        };
        if self.is_cancelled() {
            let folder = self.path.display();
            return Err(SweepError::Usage(format!(
                "{folder}: this sweep is being cancelled; wait until its processes have ended"
            )));
        }
        Ok(Membership { _lock: lock })
    }

    /// Joins the processes that work on the sweep, with the existing plan.
    ///
    /// # Errors
    /// If the folder has no sweep, or its plan is damaged.
    pub fn enter(&self) -> Result<(Plan, Membership), SweepError> {
        let path = self.path.join("workers.lock");
        let plan = self.plan()?;
        let lock = open_lock(&path)?;
        lock.lock_shared().map_err(SweepError::file(&path, "lock"))?;
        Ok((plan, Membership { _lock: lock }))
    }

    /// Acquires the right to submit the sweep's tasks to a batch system; `None` while another process has it.
    pub(crate) fn lead(&self) -> Result<Option<Membership>, SweepError> {
        let path = self.path.join("leader.lock");
        let lock = open_lock(&path)?;
        Ok(try_lock(&lock, &path)?.then_some(Membership { _lock: lock }))
    }

    fn write_plan(&self, plan: &Plan, text: &str) -> Result<(), SweepError> {
        let path = self.path.join("sweep.toml");
        files::write_atomically(&path, text.as_bytes()).map_err(SweepError::file(&path, "write"))?;
        record::write(&self.path.join(PLAN), PLAN_FORMAT, plan)
    }

    /// Reads the plan.
    ///
    /// # Errors
    /// If there is none, it is damaged, or a newer version has written it.
    pub fn plan(&self) -> Result<Plan, SweepError> {
        let found = record::read(&self.path.join(PLAN), PLAN_FORMAT)?;
        found.ok_or_else(|| SweepError::NoSweep { folder: self.path.clone() })
    }

    /// Returns the folder of a task.
    pub fn task(&self, task: &Task) -> PathBuf {
        self.path.join("tasks").join(task.folder_name())
    }

    /// Reads the state of a task. A finished task whose results were removed counts as not started.
    ///
    /// # Errors
    /// If the file is damaged, or a newer version has written it. A task without a file is waiting.
    pub fn state(&self, task: &Task) -> Result<TaskState, SweepError> {
        let folder = self.task(task);
        let state: TaskState = record::read(&folder.join(STATE), STATE_FORMAT)?.unwrap_or_default();
        // Stores and targets are stored elsewhere; the tasks that need them check for them.
        let has_run = task.kind.stage().is_some() || task.kind == TaskKind::Evaluate;
        let is_gone = |run: &String| !folder.join(run).exists();
        if has_run && state.status.is_done() && state.run.as_ref().is_some_and(is_gone) {
            return Ok(TaskState { reason: Some("its results were removed".to_owned()), ..TaskState::default() });
        }
        Ok(state)
    }

    /// Reads the state of a task for display: a task that is recorded as running but that no process claims is interrupted.
    ///
    /// # Errors
    /// Those of [`Self::state`] and [`Self::is_claimed`].
    pub fn seen(&self, task: &Task) -> Result<TaskState, SweepError> {
        let state = self.state(task)?;
        if state.status != Status::Running || self.is_claimed(task)? {
            return Ok(state);
        }
        // It may have ended, or been restarted, between the two reads.
        let again = self.state(task)?;
        let status = if again == state { Status::Interrupted } else { again.status };
        Ok(TaskState { status, ..again })
    }

    /// Claims a task; `None` if another process works on it.
    pub(crate) fn claim(&self, task: &Task) -> Result<Option<Claim>, SweepError> {
        let folder = self.task(task);
        fs::create_dir_all(&folder).map_err(SweepError::file(&folder, "create"))?;
        let path = folder.join("claim");
        let file = open_lock(&path)?;
        Ok(try_lock(&file, &path)?.then_some(Claim { file, folder }))
    }

    /// True if a process works on the task now.
    ///
    /// # Errors
    /// If the lock file cannot be opened, or the file system does not support locks.
    pub fn is_claimed(&self, task: &Task) -> Result<bool, SweepError> {
        let path = self.task(task).join("claim");
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(SweepError::file(&path, "open")(error)),
            // Shared, so that two checks do not mistake each other for workers; NFS allows no other lock on a read-only file.
            Ok(file) => match file.try_lock_shared() {
                Ok(()) => Ok(false),
                Err(fs::TryLockError::WouldBlock) => Ok(true),
                Err(fs::TryLockError::Error(error)) => Err(SweepError::file(&path, "check the lock")(error)),
            },
        }
    }

    /// Resets failed tasks, so that they start again. Returns their number.
    ///
    /// # Errors
    /// If a state cannot be read or written.
    pub fn retry_failed(&self, plan: &Plan) -> Result<usize, SweepError> {
        let mut count = 0;
        for task in &plan.tasks {
            let state = self.state(task)?;
            let Some(claim) = (state.status == Status::Failed).then(|| self.claim(task)).transpose()?.flatten() else {
                continue;
            };
            let seconds = state.seconds;
            claim.write(&TaskState { seconds, ..TaskState::default() })?;
            count += 1;
        }
        Ok(count)
    }

    /// Asks all processes that work on the sweep to stop.
    ///
    /// # Errors
    /// If the marker file cannot be written.
    pub fn cancel(&self) -> Result<(), SweepError> {
        let path = self.path.join(CANCELLED);
        files::write_atomically(&path, b"").map_err(SweepError::file(&path, "write"))
    }

    /// True after [`Self::cancel`], until a process joins while no other works on the sweep.
    pub fn is_cancelled(&self) -> bool {
        self.path.join(CANCELLED).exists()
    }

    /// Rewrites the table from the states of all tasks. A lock serialises processes, so that none writes an older table.
    ///
    /// # Errors
    /// If a state cannot be read, or the table cannot be locked or written.
    pub fn write_table(&self, plan: &Plan) -> Result<(), SweepError> {
        let path = self.path.join("table.lock");
        let lock = open_lock(&path)?;
        lock.lock().map_err(SweepError::file(&path, "lock"))?;
        let rows = table::rows(self, plan)?;
        let path = self.path.join(TABLE);
        let failed = SweepError::file(&path, "write");
        let bytes = table::csv(plan, &rows).map_err(|error| failed(io::Error::other(error)))?;
        files::write_atomically(&path, &bytes).map_err(SweepError::file(&path, "write"))
    }
}

impl Claim {
    /// Returns the task's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes the task's state.
    pub fn write(&self, state: &TaskState) -> Result<(), SweepError> {
        record::write(&self.folder.join(STATE), STATE_FORMAT, state)
    }

    /// Returns the claim as the standard input of a command, which then holds the claim too.
    pub fn to_stdin(&self) -> Result<Stdio, SweepError> {
        let file = self.file.try_clone().map_err(SweepError::file(&self.folder, "share the claim"))?;
        Ok(file.into())
    }
}

/// Returns the status of a task, or [`Status::Blocked`] if a task that it needs has failed or is blocked.
pub fn settled(task: &Task, states: &impl Fn(&str) -> Status) -> Status {
    let own = states(&task.id);
    if own.is_settled() {
        return own;
    }
    let blocked = task.needs.iter().any(|need| matches!(states(need), Status::Failed | Status::Blocked));
    if blocked { Status::Blocked } else { own }
}

fn open_lock(path: &Path) -> Result<File, SweepError> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    opened.map_err(SweepError::file(path, "open"))
}

fn try_lock(file: &File, path: &Path) -> Result<bool, SweepError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(SweepError::file(path, "lock")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_config::Config;

    #[test]
    fn a_claim_lives_as_long_as_anyone_who_holds_it() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = SweepFolder::at(temporary.path()).unwrap();
        let task = Task::new(TaskKind::Store, "store", String::new(), Config::default(), Vec::new(), Vec::new());
        let claim = folder.claim(&task).unwrap().unwrap();
        assert!(folder.claim(&task).unwrap().is_none(), "claimed twice");
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("30").stdin(claim.to_stdin().unwrap()).spawn().unwrap();
        drop(command);
        drop(claim);
        assert!(folder.is_claimed(&task).unwrap(), "the command no longer holds the claim");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!folder.is_claimed(&task).unwrap(), "the claim of a dead process still holds");
        assert!(folder.claim(&task).unwrap().is_some());
    }

    #[test]
    fn what_nobody_works_on_is_not_running() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = SweepFolder::at(temporary.path()).unwrap();
        let plan = crate::parts::plan("store", &Config::default(), 2, &Default::default());
        let [held, left] = &plan.tasks[..] else { panic!("two parts") };
        let running = TaskState { status: Status::Running, attempts: 1, ..TaskState::default() };
        let claim = folder.claim(held).unwrap().unwrap();
        claim.write(&running).unwrap();
        folder.claim(left).unwrap().unwrap().write(&running).unwrap();
        assert_eq!(folder.seen(held).unwrap(), running);
        // A process that another test starts may hold the claim briefly.
        let seen = |task| (0..50).map(|_| folder.seen(task).unwrap().status).find(|found| *found != Status::Running);
        assert_eq!(seen(left), Some(Status::Interrupted));
        assert_eq!(folder.state(left).unwrap(), running, "reading changed the state");
        claim.write(&TaskState { status: Status::Done, ..running }).unwrap();
        drop(claim);
        assert_eq!(folder.seen(held).unwrap().status, Status::Done);
    }

    #[test]
    fn what_has_no_results_any_more_is_done_again() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = SweepFolder::at(temporary.path()).unwrap();
        let task = Task::new(TaskKind::Evaluate, "evaluate", String::new(), Config::default(), Vec::new(), Vec::new());
        let claim = folder.claim(&task).unwrap().unwrap();
        let run = claim.folder().join("run");
        fs::create_dir_all(&run).unwrap();
        let done = TaskState { status: Status::Done, run: Some("run".to_owned()), attempts: 1, ..TaskState::default() };
        claim.write(&done).unwrap();
        assert_eq!(folder.state(&task).unwrap(), done);
        fs::remove_dir(run).unwrap();
        let state = folder.state(&task).unwrap();
        assert_eq!((state.status, state.attempts), (Status::Waiting, 0));
        assert!(state.reason.unwrap().contains("removed"));
    }

    #[test]
    fn a_damaged_plan_is_not_another_plan() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = SweepFolder::at(temporary.path()).unwrap();
        let plan = crate::parts::plan("store", &Config::default(), 2, &Default::default());
        let _member = folder.join(&plan, "").unwrap();
        let path = folder.path().join(PLAN);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("part", "trap")).unwrap();
        let said = folder.join(&plan, "").unwrap_err().to_string();
        assert!(said.contains("plan.json: damaged") && said.contains("start the sweep again with its file"), "{said}");
    }

    #[test]
    fn a_damaged_state_is_named() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = SweepFolder::at(temporary.path()).unwrap();
        let task = Task::new(TaskKind::Store, "store", String::new(), Config::default(), Vec::new(), Vec::new());
        let claim = folder.claim(&task).unwrap().unwrap();
        let state = TaskState { status: Status::Done, seconds: 1.5, ..TaskState::default() };
        claim.write(&state).unwrap();
        assert_eq!(folder.state(&task).unwrap(), state);
        let path = folder.task(&task).join(STATE);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("1.5", "2.5")).unwrap();
        let said = folder.state(&task).unwrap_err().to_string();
        assert!(said.contains("damaged") && said.ends_with("remove the file; its task is then run again"), "{said}");
    }
}
