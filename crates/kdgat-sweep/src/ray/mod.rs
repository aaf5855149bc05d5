//! The Ray executor: runs sweeps through Ray's Jobs API over HTTP.
//!
//! Each job runs `kdgat sweep work`, as with Slurm, in a folder that all nodes share. This process submits tasks that are
//! ready and polls their jobs; it may be killed and restarted.

mod http;
mod logs;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::SweepError;
use super::cluster::{Cluster, LOST, attend, program, text_of_path};
use super::plan::{Plan, Task};
use super::run::{Board, Ended, Follower, out_of_memory};
use super::state::{Status, SweepFolder};
use http::Server;
use kdgat_base::shell;
use kdgat_config::DeviceChoice;
use logs::Logs;

/// Time to wait for the ends of the jobs' logs once all tasks are done.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Returns the submission for each task that is not done, for `--dry-run`.
///
/// # Errors
/// If a state cannot be read, or a path cannot be used in a command line.
pub fn requests(folder: &SweepFolder, plan: &Plan) -> Result<Vec<Value>, SweepError> {
    let mut requests = Vec::new();
    for task in &plan.tasks {
        if !folder.state(task)?.status.is_done() {
            requests.push(request(folder, plan, task, 1)?);
        }
    }
    Ok(requests)
}

/// Describes the resources that these jobs request: one line per step and amount.
///
/// # Errors
/// Those of [`requests`].
pub fn asked(folder: &SweepFolder, plan: &Plan) -> Result<Vec<String>, SweepError> {
    let mut kinds: Vec<([Value; 4], u64)> = Vec::new();
    for request in requests(folder, plan)? {
        let asks =
            ["entrypoint_num_cpus", "entrypoint_num_gpus", "entrypoint_memory"].map(|name| request[name].clone());
        let [cpus, gpus, memory] = asks;
        let kind = [request["metadata"]["step"].clone(), cpus, gpus, memory];
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let line = |([step, cpus, gpus, memory], count): &([Value; 4], u64)| {
        let mebibytes = memory.as_u64().unwrap_or(0) >> 20;
        format!("{count} {}: {cpus} CPUs, {gpus} GPUs, {mebibytes} MiB each", step.as_str().unwrap_or_default())
    };
    Ok(kinds.iter().map(line).collect())
}

/// Submits the open tasks to the cluster at `RAY_ADDRESS` and waits for them.
///
/// # Errors
/// If the address is invalid, another process submits this sweep's tasks, the cluster does not answer the first
/// request or any request for ten minutes, the jobs of a task keep ending without a result, or a file in the sweep's folder cannot be
/// read or written.
pub fn run(folder: &SweepFolder, plan: &Plan) -> Result<Ended, SweepError> {
    let address = std::env::var("RAY_ADDRESS").unwrap_or_else(|_| "http://127.0.0.1:8265".to_owned());
    let server = Server::new(&address).map_err(|wrong| SweepError::Usage(format!("RAY_ADDRESS: {wrong}")))?;
    let Some(_lead) = folder.lead()? else {
        let path = folder.path().display();
        return Err(SweepError::Usage(format!("{path}: another process submits this sweep's tasks; wait for it")));
    };
    folder.write_table(plan)?;
    let mut submitter = Submitter {
        folder,
        plan,
        server,
        board: Board::new(folder, plan)?,
        follower: Follower::new(plan),
        jobs: BTreeMap::new(),
        shown: BTreeMap::new(),
        logs: Logs::default(),
        submissions: BTreeMap::new(),
        begun: BTreeMap::new(),
    };
    submitter.find_jobs()?;
    submitter.begun = submitter.submissions.clone();
    let ended = attend(&mut submitter)?;
    if matches!(ended, Ended::Done | Ended::Failed) {
        submitter.finish_logs();
    }
    Ok(ended)
}

/// Builds the body of a submission. The number `submission` makes the names of a task's jobs unique.
fn request(folder: &SweepFolder, plan: &Plan, task: &Task, submission: u32) -> Result<Value, SweepError> {
    let program = program()?;
    let granted = plan.resources.granted_bytes(folder.state(task)?.growths);
    let threads = plan.resources.threads.unwrap_or(1).max(task.processes as usize);
    let words = [text_of_path(&program)?, "sweep", "work", text_of_path(folder.path())?].map(shell::quoted);
    let here = std::env::current_dir().map_err(SweepError::file(std::path::Path::new("."), "find"))?;
    let here = shell::quoted(text_of_path(&here)?);
    let trains_on_gpu = task.kind.stage().is_some() && matches!(task.config.training.device, DeviceChoice::Cuda(_));
    Ok(json!({
        "submission_id": format!("{}-{submission}", prefix(folder, task)),
        // `exec`, so that Ray's signals reach the task.
        "entrypoint": format!("cd {here} && exec {} {} --threads {threads} --memory {granted}B", words.join(" "), task.id),
        "entrypoint_num_cpus": threads,
        "entrypoint_num_gpus": if trains_on_gpu { 1.0 / plan.resources.trials_per_gpu.max(1) as f64 } else { 0.0 },
        "entrypoint_memory": granted,
        "metadata": { "sweep": plan.name, "step": task.step, "settings": task.label },
    }))
}

/// Returns the prefix of the names of a task's jobs, unique to the sweep's folder.
fn prefix(folder: &SweepFolder, task: &Task) -> String {
    let place = blake3::hash(folder.path().as_os_str().as_encoded_bytes()).to_hex();
    format!("kdgat-{}-{}-{}", &place[..8], task.step, task.id)
}

/// A job as the cluster reports it.
#[derive(Clone, Debug, PartialEq)]
struct Job {
    status: String,
    /// Reason for its failure, or for its waiting.
    message: String,
    /// Exit code of its entrypoint, once that has ended; the negative signal number if a signal ended it.
    exit_code: Option<i64>,
}

impl Job {
    fn has_ended(&self) -> bool {
        ["SUCCEEDED", "FAILED", "STOPPED"].contains(&self.status.as_str())
    }

    /// True if SIGKILL ended it, as the system does when memory runs out.
    fn was_killed(&self) -> bool {
        const KILLED: i64 = 9;
        self.exit_code.is_some_and(|code| [-KILLED, 128 + KILLED].contains(&code))
    }

    fn described(&self) -> String {
        let message = self.message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let message: String = message.chars().take(300).collect();
        if message.is_empty() { self.status.clone() } else { format!("{}: {message}", self.status) }
    }
}

struct Submitter<'a> {
    folder: &'a SweepFolder,
    plan: &'a Plan,
    server: Server,
    board: Board<'a>,
    follower: Follower<'a>,
    /// Current job of each task that has one.
    jobs: BTreeMap<&'a str, String>,
    /// Status of each job that was last shown.
    shown: BTreeMap<String, String>,
    logs: Logs,
    /// Number of submissions of each task.
    submissions: BTreeMap<&'a str, u32>,
    /// Number of submissions of each task before this process.
    begun: BTreeMap<&'a str, u32>,
}

impl<'a> Cluster<'a> for Submitter<'a> {
    fn parts(&mut self) -> (&'a SweepFolder, &mut Board<'a>, &mut Follower<'a>) {
        (self.folder, &mut self.board, &mut self.follower)
    }

    fn look(&mut self) -> Result<(), SweepError> {
        let known = self.known()?;
        self.look_after(&known)?;
        self.submit()
    }

    fn cancel(&mut self) -> Result<(), SweepError> {
        for job in self.jobs.values() {
            self.call("POST", &format!("/api/jobs/{job}/stop"), None)?;
        }
        Ok(())
    }
}

impl<'a> Submitter<'a> {
    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, SweepError> {
        let failed = |said| SweepError::Batch { command: format!("{method} {path}"), said };
        self.server.call(method, path, body).map_err(failed)
    }

    /// Lists all jobs that the cluster knows.
    fn known(&self) -> Result<BTreeMap<String, Job>, SweepError> {
        let listed = self.call("GET", "/api/jobs/", None)?;
        let pair = |job: &Value| {
            let status = job["status"].as_str()?.to_owned();
            let message = job["message"].as_str().unwrap_or_default().to_owned();
            let exit_code = job["driver_exit_code"].as_i64();
            Some((job["submission_id"].as_str()?.to_owned(), Job { status, message, exit_code }))
        };
        Ok(listed.as_array().into_iter().flatten().filter_map(pair).collect())
    }

    /// Finds the jobs that an earlier process submitted.
    fn find_jobs(&mut self) -> Result<(), SweepError> {
        for (job, found) in self.known()? {
            let Some((name, number)) = job.rsplit_once('-') else { continue };
            let Some(task) = self.plan.tasks.iter().find(|task| prefix(self.folder, task) == name) else { continue };
            let Ok(number) = number.parse::<u32>() else { continue };
            let last = self.submissions.entry(&task.id).or_default();
            *last = number.max(*last);
            if found.has_ended() {
                // It ended while no process was polling.
                self.logs.copy(&self.server, &job, &self.folder.task(task), true)?;
            } else {
                self.jobs.insert(&task.id, job);
            }
        }
        Ok(())
    }

    /// Shows the status of jobs, copies their logs, and forgets jobs that have ended: the outcome of their tasks is in the
    /// folder. A task whose job was stopped has failed; one whose job was killed with SIGKILL has run out of memory.
    fn look_after(&mut self, known: &BTreeMap<String, Job>) -> Result<(), SweepError> {
        for task in &self.plan.tasks {
            let Some(name) = self.jobs.get(task.id.as_str()).cloned() else { continue };
            let job = known.get(&name);
            let ended = job.is_none_or(Job::has_ended);
            if let Some(job) = job {
                self.tell(&name, job);
                self.logs.copy(&self.server, &name, &self.folder.task(task), ended)?;
            }
            // While a process holds the claim, the task is running, whatever the status of its job.
            let Some(claim) = ended.then(|| self.folder.claim(task)).transpose()?.flatten() else { continue };
            self.jobs.remove(task.id.as_str());
            let mut state = self.folder.state(task)?;
            let stopped = job.is_some_and(|job| job.status == "STOPPED");
            if stopped && !state.status.is_settled() {
                state.status = Status::Failed;
                state.reason = Some(format!("job {name} was stopped by another user or program"));
            } else if job.is_some_and(Job::was_killed) && !state.status.is_settled() {
                let why = format!("job {name} was killed");
                out_of_memory(self.plan, task, &mut state, claim.folder(), true, &why);
            } else {
                self.board.note(task, state);
                continue;
            }
            claim.write(&state)?;
            drop(claim);
            self.folder.write_table(self.plan)?;
            self.board.note(task, state);
        }
        Ok(())
    }

    /// Copies the ends of the logs of jobs that outlast their tasks, for at most [`LAST_WORDS`].
    fn finish_logs(&mut self) {
        let start = Instant::now();
        while !self.jobs.is_empty() && start.elapsed() < LAST_WORDS {
            if let Err(error) = self.known().and_then(|known| self.look_after(&known)) {
                return tracing::warn!("cannot copy the ends of the jobs' logs: {error}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Shows a job's status if it has changed, unless the job succeeded: the task's end is shown from its state.
    fn tell(&mut self, name: &str, job: &Job) {
        let described = job.described();
        if self.shown.get(name) != Some(&described) {
            if job.status != "SUCCEEDED" {
                self.follower.line(&format!("job {name} is {described}"));
            }
            self.shown.insert(name.to_owned(), described);
        }
    }

    /// Submits every task that is ready and has no job.
    fn submit(&mut self) -> Result<(), SweepError> {
        for task in self.board.ready() {
            if self.jobs.contains_key(task.id.as_str()) || self.folder.is_claimed(task)? {
                continue;
            }
            let number = self.submissions.get(task.id.as_str()).copied().unwrap_or(0) + 1;
            let rungs = self.board.state(&task.id).map_or(0, |state| state.rung + state.failures + state.growths);
            if number - self.begun.get(task.id.as_str()).copied().unwrap_or(0) > LOST + rungs {
                let last = format!("{}-{}", prefix(self.folder, task), number - 1);
                return Err(SweepError::Lost { task: format!("{} {}", task.step, task.label), jobs: LOST, last });
            }
            let body = request(self.folder, self.plan, task, number)?;
            self.call("POST", "/api/jobs/", Some(&body))?;
            self.submissions.insert(&task.id, number);
            self.jobs.insert(&task.id, format!("{}-{number}", prefix(self.folder, task)));
        }
        Ok(())
    }
}
