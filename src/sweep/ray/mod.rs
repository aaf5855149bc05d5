//! Sweeps on Ray, through its Jobs API over HTTP.
//!
//! As on Slurm, jobs do the work through `kdgat sweep work` in a folder that all nodes share; this process submits what can
//! begin, follows it, and may be killed and started again.

mod http;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::SweepError;
use super::cluster::{Cluster, LOST, attend};
use super::plan::{Plan, Task};
use super::run::{Board, Ended, Follower};
use super::state::{Status, SweepFolder};
use crate::config::DeviceChoice;
use http::Server;

/// What Ray is asked to run for a task, as `--dry-run` prints it.
pub fn requests(folder: &SweepFolder, plan: &Plan) -> Result<Vec<Value>, SweepError> {
    plan.tasks.iter().map(|task| request(folder, plan, task, 1)).collect()
}

/// Submits what is left to do to the cluster at `RAY_ADDRESS` and waits for it.
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
        submissions: BTreeMap::new(),
        begun: BTreeMap::new(),
    };
    submitter.find_jobs()?;
    submitter.begun = submitter.submissions.clone();
    attend(&mut submitter)
}

/// The body of a submission. Its number keeps the names of a task's jobs apart.
fn request(folder: &SweepFolder, plan: &Plan, task: &Task, submission: u32) -> Result<Value, SweepError> {
    let program =
        std::env::current_exe().map_err(SweepError::file(std::path::Path::new("kdgat"), "find this program"))?;
    let granted = plan.resources.memory_per_trial.0;
    let threads = plan.resources.threads.unwrap_or(1).max(1);
    let words = [program.display().to_string(), "sweep".into(), "work".into(), folder.path().display().to_string()];
    let words: Vec<String> = words.iter().map(|word| super::shell::quoted(word)).collect();
    let here = std::env::current_dir().map_err(SweepError::file(std::path::Path::new("."), "find"))?;
    let here = super::shell::quoted(&here.display().to_string());
    let trains_on_gpu = task.kind.stage().is_some() && matches!(task.config.training.device, DeviceChoice::Cuda(_));
    Ok(json!({
        "submission_id": format!("{}-{submission}", prefix(folder, task)),
        // `exec`, so that what Ray signals is the task.
        "entrypoint": format!("cd {here} && exec {} {} --threads {threads} --memory {granted}B", words.join(" "), task.id),
        "entrypoint_num_cpus": threads,
        "entrypoint_num_gpus": if trains_on_gpu { 1.0 / plan.resources.trials_per_gpu.max(1) as f64 } else { 0.0 },
        "entrypoint_memory": granted,
        "metadata": { "sweep": plan.name, "step": task.step, "settings": task.label },
    }))
}

/// What the names of a task's jobs begin with: other folders have others.
fn prefix(folder: &SweepFolder, task: &Task) -> String {
    let place = blake3::hash(folder.path().as_os_str().as_encoded_bytes()).to_hex();
    format!("kdgat-{}-{}-{}", &place[..8], task.step, task.id)
}

/// Whether a job has come to its end.
fn has_ended(status: &str) -> bool {
    ["SUCCEEDED", "FAILED", "STOPPED"].contains(&status)
}

struct Submitter<'a> {
    folder: &'a SweepFolder,
    plan: &'a Plan,
    server: Server,
    board: Board<'a>,
    follower: Follower<'a>,
    /// The job of each task that has one.
    jobs: BTreeMap<&'a str, String>,
    submissions: BTreeMap<&'a str, u32>,
    /// Submissions before this process.
    begun: BTreeMap<&'a str, u32>,
}

impl<'a> Cluster<'a> for Submitter<'a> {
    fn parts(&mut self) -> (&'a SweepFolder, &mut Board<'a>, &mut Follower<'a>) {
        (self.folder, &mut self.board, &mut self.follower)
    }

    fn look(&mut self) -> Result<(), SweepError> {
        let known = self.statuses()?;
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

    /// All jobs that the cluster knows, with their statuses.
    fn statuses(&self) -> Result<BTreeMap<String, String>, SweepError> {
        let listed = self.call("GET", "/api/jobs/", None)?;
        let pair = |job: &Value| Some((job["submission_id"].as_str()?.to_owned(), job["status"].as_str()?.to_owned()));
        Ok(listed.as_array().into_iter().flatten().filter_map(pair).collect())
    }

    /// The jobs that a process before this one has submitted.
    fn find_jobs(&mut self) -> Result<(), SweepError> {
        for (job, status) in self.statuses()? {
            let Some((name, number)) = job.rsplit_once('-') else { continue };
            let Some(task) = self.plan.tasks.iter().find(|task| prefix(self.folder, task) == name) else { continue };
            let Ok(number) = number.parse::<u32>() else { continue };
            let last = self.submissions.entry(&task.id).or_default();
            *last = number.max(*last);
            if !has_ended(&status) {
                self.jobs.insert(&task.id, job);
            }
        }
        Ok(())
    }

    /// Lets go of jobs that have ended: what came of their tasks stands in the folder. A job that somebody stopped fails.
    fn look_after(&mut self, known: &BTreeMap<String, String>) -> Result<(), SweepError> {
        for task in &self.plan.tasks {
            let Some(job) = self.jobs.get(task.id.as_str()).cloned() else { continue };
            let how = known.get(&job).map_or("gone", String::as_str);
            // As long as somebody holds the claim, the task is at work, whatever becomes of its job.
            let Some(claim) = (how == "gone" || has_ended(how)).then(|| self.folder.claim(task)).transpose()?.flatten()
            else {
                continue;
            };
            self.jobs.remove(task.id.as_str());
            let mut state = self.folder.state(task)?;
            if how == "STOPPED" && !state.status.is_settled() {
                state.status = Status::Failed;
                state.reason = Some(format!("job {job} was stopped from outside"));
                claim.write(&state)?;
                drop(claim);
                self.folder.write_table(self.plan)?;
            }
            self.board.note(task, state);
        }
        Ok(())
    }

    /// Submits every task that can begin and has no job.
    fn submit(&mut self) -> Result<(), SweepError> {
        for task in self.board.ready() {
            if self.jobs.contains_key(task.id.as_str()) || self.folder.is_claimed(task)? {
                continue;
            }
            let number = self.submissions.get(task.id.as_str()).copied().unwrap_or(0) + 1;
            let rungs = self.board.state(&task.id).map_or(0, |state| state.rung + state.failures);
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
