//! Submits arrays of tasks, chained by dependencies, and polls them until all tasks have ended.
//!
//! Each job runs `kdgat sweep work`, which claims its task in the sweep's folder and writes the task's state there. This
//! process only submits jobs and handles those that disappear, so it may be killed and restarted at any time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::queue::{self, JobId, JobState};
use super::script::script;
use super::settings::SlurmSettings;
use crate::SweepError;
use crate::cluster::{Cluster, LOST, attend, program};
use crate::plan::{Plan, Task};
use crate::run::{Board, Ended, Follower, out_of_memory};
use crate::state::{Status, SweepFolder};
use kdgat_base::files;

/// Time after a job has left the queue until its task's state must be visible, for slow network file systems.
const GRACE: Duration = Duration::from_secs(5);

/// Returns the scripts for all tasks that are not done, in submission order, for `--dry-run`.
///
/// # Errors
/// If a state cannot be read, or a path cannot be used in a script.
pub fn scripts(folder: &SweepFolder, plan: &Plan) -> Result<Vec<String>, SweepError> {
    let program = program()?;
    let text = |array: &Array| script(&program, folder, plan, &array.tasks, array.granted);
    arrays(&left(folder, plan)?).iter().map(text).collect()
}

/// Describes the resources that each of these arrays requests.
///
/// # Errors
/// If a state cannot be read.
pub fn asked(folder: &SweepFolder, plan: &Plan) -> Result<Vec<String>, SweepError> {
    Ok(arrays(&left(folder, plan)?).iter().map(|array| array.asked(&plan.slurm)).collect())
}

/// Returns the tasks that are not done, each with its memory limit in bytes.
fn left<'a>(folder: &SweepFolder, plan: &'a Plan) -> Result<Vec<(&'a Task, u64)>, SweepError> {
    let mut tasks = Vec::new();
    for task in &plan.tasks {
        let state = folder.state(task)?;
        if !state.status.is_done() {
            tasks.push((task, plan.resources.granted_bytes(state.growths)));
        }
    }
    Ok(tasks)
}

/// Submits the open tasks and waits for them.
///
/// # Errors
/// If another process submits this sweep's tasks, Slurm's programs fail at the first call or for ten minutes, or a file in the
/// sweep's folder cannot be read or written.
pub fn run(folder: &SweepFolder, plan: &Plan) -> Result<Ended, SweepError> {
    let Some(_lead) = folder.lead()? else {
        let path = folder.path().display();
        return Err(SweepError::Usage(format!("{path}: another process submits this sweep's tasks; wait for it")));
    };
    let logs = folder.path().join("slurm");
    std::fs::create_dir_all(&logs).map_err(SweepError::file(&logs, "create"))?;
    let mut submitter = Submitter {
        folder,
        plan,
        board: Board::new(folder, plan)?,
        follower: Follower::new(plan),
        jobs: BTreeMap::new(),
        gone: BTreeMap::new(),
        lost: BTreeMap::new(),
    };
    folder.write_table(plan)?;
    submitter.find_jobs()?;
    attend(&mut submitter)
}

struct Submitter<'a> {
    folder: &'a SweepFolder,
    plan: &'a Plan,
    board: Board<'a>,
    follower: Follower<'a>,
    /// Current job of each task that has one.
    jobs: BTreeMap<&'a str, JobId>,
    /// Time at which a task's job was found to have ended.
    gone: BTreeMap<&'a str, Instant>,
    /// Number of jobs of each task that ended without a result.
    lost: BTreeMap<&'a str, u32>,
}

impl<'a> Cluster<'a> for Submitter<'a> {
    fn parts(&mut self) -> (&'a SweepFolder, &mut Board<'a>, &mut Follower<'a>) {
        (self.folder, &mut self.board, &mut self.follower)
    }

    fn look(&mut self) -> Result<(), SweepError> {
        let queued = queue::jobs()?;
        self.look_after(&queued)?;
        self.submit(&queued)
    }

    fn cancel(&mut self) -> Result<(), SweepError> {
        // Running jobs see the cancellation marker themselves and save; the others never start.
        let jobs: Vec<JobId> = self.jobs.values().cloned().collect();
        queue::cancel(&jobs)?;
        for task in &self.plan.tasks {
            self.forget(task)?;
        }
        Ok(())
    }
}

impl<'a> Submitter<'a> {
    /// Reads the jobs that an earlier process submitted.
    fn find_jobs(&mut self) -> Result<(), SweepError> {
        for task in &self.plan.tasks {
            let path = self.job_file(task);
            match std::fs::read_to_string(&path) {
                Ok(job) => drop(self.jobs.insert(&task.id, job.trim().to_owned())),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(SweepError::file(&path, "read")(error)),
            }
        }
        Ok(())
    }

    fn job_file(&self, task: &Task) -> PathBuf {
        self.folder.task(task).join("job")
    }

    /// Forgets the job of a task.
    fn forget(&mut self, task: &Task) -> Result<(), SweepError> {
        self.jobs.remove(task.id.as_str());
        let path = self.job_file(task);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(SweepError::file(&path, "remove")(error)),
            _ => Ok(()),
        }
    }

    /// Handles jobs that have ended although their task is not settled.
    fn look_after(&mut self, queued: &BTreeMap<JobId, JobState>) -> Result<(), SweepError> {
        let statuses = self.board.statuses();
        let mut ended: Vec<(&'a Task, Option<JobState>)> = Vec::new();
        for task in &self.plan.tasks {
            let Some(job) = self.jobs.get(task.id.as_str()) else { continue };
            let settled = statuses.get(task.id.as_str()).is_some_and(|status| status.is_settled());
            match queued.get(job) {
                Some(state) if !state.has_ended() => {
                    self.gone.remove(task.id.as_str());
                }
                _ if settled => {}
                found => {
                    let since = *self.gone.entry(&task.id).or_insert_with(Instant::now);
                    if since.elapsed() >= GRACE {
                        ended.push((task, found.cloned()));
                    }
                }
            }
        }
        for (task, how) in ended {
            self.after_end(task, how.as_ref())?;
        }
        Ok(())
    }

    /// Handles the end of a task's job. `job` is the state that Slurm still reports, if any.
    fn after_end(&mut self, task: &'a Task, job: Option<&JobState>) -> Result<(), SweepError> {
        self.gone.remove(task.id.as_str());
        let Some(claim) = self.folder.claim(task)? else {
            // Another process still works on it: checked again once that has ended.
            return Ok(());
        };
        let (how, killed) = job.map_or(("gone", false), |job| (job.name.as_str(), job.is_out_of_memory()));
        let job = self.jobs.get(task.id.as_str()).cloned().unwrap_or_default();
        self.forget(task)?;
        let mut state = self.folder.state(task)?;
        if state.status.is_settled() {
            return Ok(());
        }
        let needs_done = task.needs.iter().all(|id| self.board.state(id).is_some_and(|state| state.status.is_done()));
        let lost = self.lost.entry(&task.id).or_default();
        // A job whose task was not ready had nothing to do and does not count.
        *lost += u32::from(needs_done);
        match how {
            "CANCELLED" => {
                state.status = Status::Failed;
                state.reason = Some(format!("job {job} was cancelled by another user or program"));
            }
            // Jobs that ran out of memory do not count as lost.
            _ if *lost > LOST + state.growths + state.rung => {
                state.status = Status::Failed;
                state.reason = Some(format!("job {job} and {LOST} before it ended ({how}) without a result"));
            }
            _ if killed => {
                let why = format!("job {job} was killed");
                out_of_memory(self.plan, task, &mut state, claim.folder(), true, &why);
            }
            _ => state.status = Status::Waiting,
        }
        claim.write(&state)?;
        self.follower.line(&format!("job {job} of {} {} has ended ({how})", task.step, task.label));
        self.board.note(task, state);
        drop(claim);
        self.folder.write_table(self.plan)
    }

    /// Submits every open task that has no job, one array per step, depending on the jobs of the tasks that it needs.
    fn submit(&mut self, queued: &BTreeMap<JobId, JobState>) -> Result<(), SweepError> {
        let statuses = self.board.statuses();
        let open = |task: &&Task| {
            let status = statuses.get(task.id.as_str()).copied().unwrap_or_default();
            !status.is_settled() && status != Status::Blocked && !self.jobs.contains_key(task.id.as_str())
        };
        let tasks: Vec<&'a Task> = self.plan.tasks.iter().filter(open).collect();
        let program = program()?;
        let granted = |task: &'a Task| {
            let growths = self.board.state(&task.id).map_or(0, |state| state.growths);
            (task, self.plan.resources.granted_bytes(growths))
        };
        let tasks: Vec<(&'a Task, u64)> = tasks.into_iter().map(granted).collect();
        for Array { tasks: array, granted } in arrays(&tasks) {
            let mut after: Vec<JobId> = Vec::new();
            for need in array.iter().flat_map(|task| &task.needs) {
                let done = self.board.state(need).is_some_and(|state| state.status.is_done());
                let job = self.jobs.get(need.as_str()).filter(|_| !done);
                // Depends on the whole array: fewer dependencies, and its elements end at about the same time.
                let number = job.map(|job| job.split('_').next().unwrap_or(job).to_owned());
                after.extend(number.filter(|number| !after.contains(number)));
            }
            after.retain(|number| {
                queued.keys().any(|job| job.starts_with(&format!("{number}_"))) || self.is_new(number, queued)
            });
            let number = queue::submit(&script(&program, self.folder, self.plan, &array, granted)?, &after)?;
            for (element, task) in array.iter().enumerate() {
                let job = format!("{number}_{element}");
                let path = self.job_file(task);
                let folder = self.folder.task(task);
                std::fs::create_dir_all(&folder).map_err(SweepError::file(&folder, "create"))?;
                files::write_atomically(&path, job.as_bytes()).map_err(SweepError::file(&path, "write"))?;
                self.jobs.insert(&task.id, job);
            }
            let step = array.first().map_or("", |task| task.step.as_str());
            self.follower.line(&format!("job {number}: {} tasks of {step}", array.len()));
        }
        Ok(())
    }

    /// True if an array was submitted after the queue was read.
    fn is_new(&self, number: &str, queued: &BTreeMap<JobId, JobState>) -> bool {
        let elements = self.jobs.values().filter(|job| job.split('_').next() == Some(number));
        elements.clone().count() > 0 && !elements.into_iter().any(|job| queued.contains_key(job))
    }
}

/// Tasks of one job array.
struct Array<'a> {
    tasks: Vec<&'a Task>,
    /// Host memory limit of each task, in bytes.
    granted: u64,
}

impl Array<'_> {
    fn step(&self) -> &str {
        self.tasks.first().map_or("", |task| &task.step)
    }

    /// Describes the requested resources: `array of 12 student: 1 cores, 805 MiB, 00:10:00 each; 4 at once`.
    fn asked(&self, settings: &SlurmSettings) -> String {
        let mut each = vec![
            format!("{} cores", settings.cpus),
            format!("{} MiB", settings.asked_mebibytes(self.granted)),
            settings.time.clone(),
        ];
        each.extend(settings.gres.clone());
        each.extend(settings.partition.iter().map(|name| format!("partition {name}")));
        let at_once = if settings.at_once > 0 { format!("; {} at once", settings.at_once) } else { String::new() };
        format!("array of {} {}: {} each{at_once}", self.tasks.len(), self.step(), each.join(", "))
    }
}

/// Groups tasks by step and memory into arrays, in an order in which arrays come after those that they need.
fn arrays<'a>(tasks: &[(&'a Task, u64)]) -> Vec<Array<'a>> {
    let mut arrays: Vec<Array> = Vec::new();
    for &(task, granted) in tasks {
        match arrays.iter_mut().find(|array| array.step() == task.step && array.granted == granted) {
            Some(array) => array.tasks.push(task),
            None => arrays.push(Array { tasks: vec![task], granted }),
        }
    }
    // Dependencies come first: an array that needs another one is moved behind it.
    order(arrays)
}

/// Sorts arrays so that each comes after those that it needs.
fn order(mut arrays: Vec<Array>) -> Vec<Array> {
    let mut ordered: Vec<Array> = Vec::new();
    while !arrays.is_empty() {
        let waits = |array: &Array| {
            let others = arrays.iter().filter(|other| other.step() != array.step());
            let later: Vec<&str> = others.flat_map(|other| &other.tasks).map(|task| task.id.as_str()).collect();
            array.tasks.iter().flat_map(|task| &task.needs).any(|need| later.contains(&need.as_str()))
        };
        // Steps only need earlier steps, but arrays of targets lie between them, and two teachers can cause a cycle. Then the
        // first array is submitted; its jobs that start too early are resubmitted.
        let next = arrays.iter().position(|array| !waits(array)).unwrap_or(0);
        ordered.push(arrays.remove(next));
    }
    ordered
}
