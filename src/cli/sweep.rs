//! `kdgat sweep`: many trainings from one file.

mod contents;
mod dry_run;
mod needs;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};

use super::exit::UsageError;
use super::output;
use crate::config::ByteSize;
use crate::report::ReportOptions;
use crate::sweep::plan::{self, Found, Plan, Surroundings};
use crate::sweep::run::{self, Ended, Grant, Outcome, Slots, Wish};
use crate::sweep::slurm;
use crate::sweep::state::{Status, SweepFolder, TABLE, table};
use crate::sweep::{ray, report};
use crate::{exit, interrupt};

pub(super) use contents::bind_weights;
pub(super) use dry_run::requests;

/// Arguments of `kdgat sweep`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SweepArgs {
    #[command(subcommand)]
    pub command: Option<SweepCommand>,
    /// A sweep file, or the name of a built-in sweep (`kdgat sweep list`)
    #[arg(value_name = "FILE", required = true)]
    pub file: Option<PathBuf>,
    /// Change the values of an axis, add an axis, or set one value for all trials; STEP.FIELD applies to one step only. For a field
    /// that is a list, separate elements by commas and lists by semicolons
    #[arg(long, value_name = "FIELD=A,B,..")]
    pub set: Vec<String>,
    /// Executor that runs the trials
    #[arg(long, value_enum, default_value_t = Executor::Local)]
    pub executor: Executor,
    /// Print the trials and tasks that would run, and run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Retry tasks that have failed permanently, from their last checkpoint if there is one. Use it once the cause is fixed
    #[arg(long)]
    pub retry_failed: bool,
    /// Folder of the sweep (default: sweeps/NAME)
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Trials to run at the same time (default: as many as memory, GPUs and cores allow)
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Host memory for all trials together, such as 12GiB (default: what the machine allows)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<ByteSize>,
}

/// The place where tasks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Executor {
    /// Processes on this machine
    Local,
    /// Slurm job arrays
    Slurm,
    /// Jobs on the Ray cluster at RAY_ADDRESS
    Ray,
}

#[derive(Debug, Subcommand)]
pub enum SweepCommand {
    /// List the built-in sweeps
    List,
    /// Show the state of each task of a sweep
    Status {
        /// The sweep's folder
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Write tables of the results: mean and deviation over seeds, the best settings, the effect of each axis, the Pareto front
    Report {
        /// The sweep's folder
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        /// Compare two values of an axis, over pairs of trials that differ in nothing else: --compare kd_alpha=0.5 kd_alpha=0.9
        #[arg(long, num_args = 2, value_names = ["AXIS=VALUE", "AXIS=VALUE"])]
        compare: Vec<String>,
    },
    /// Run one task; jobs of a batch system call this. Exit code 75: saved, start it again; 76: start it again with more
    /// memory
    #[command(hide = true)]
    Work {
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        #[arg(value_name = "TASK")]
        task: String,
        #[arg(long, value_name = "N", default_value_t = 1)]
        threads: usize,
        /// Host memory for the task
        #[arg(long, value_name = "SIZE", value_parser = size)]
        memory: Option<ByteSize>,
    },
    /// Ask all processes that work on a sweep to save and stop
    Cancel {
        /// The sweep's folder
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

pub(super) fn size(text: &str) -> Result<ByteSize, String> {
    serde_json::from_value(serde_json::Value::from(text)).map_err(|error| error.to_string())
}

/// Runs the command.
pub fn run(args: SweepArgs) -> Result<ExitCode> {
    match &args.command {
        Some(SweepCommand::List) => list(),
        Some(SweepCommand::Status { folder }) => status(folder),
        Some(SweepCommand::Cancel { folder }) => cancel(folder),
        Some(SweepCommand::Report { folder, compare }) => report(folder, compare),
        Some(SweepCommand::Work { folder, task, threads, memory }) => work(folder, task, *threads, *memory),
        None => start(&args),
    }
}

fn start(args: &SweepArgs) -> Result<ExitCode> {
    let Some(path) = &args.file else { return Err(UsageError("name a sweep file".to_owned()).into()) };
    let (found, mut plan) = expand(path, &args.set)?;
    contents::bind(&mut plan)?;
    let folder = args.output.clone().unwrap_or_else(|| Path::new("sweeps").join(&plan.name));
    let folder = SweepFolder::at(&folder)?;
    refuse_ignored(args)?;
    if args.dry_run {
        output::write(&dry_run::described(args, &found, &plan, &folder)?)?;
        for request in requests(args.executor, &folder, &plan)? {
            output::write(&format!("\n{request}"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let slots = match args.executor {
        Executor::Local => Some(local_slots(args, &plan)?),
        Executor::Slurm | Executor::Ray => None,
    };
    if slots.is_some() {
        needs::expect(&folder, &plan, args.retry_failed)?;
    }
    // Refuses paths that no job could use, before anything is written.
    requests(args.executor, &folder, &plan)?;
    interrupt::listen()?;
    let _membership = folder.join(&plan, &found.text)?;
    if args.retry_failed {
        eprintln!("retrying {} failed tasks", folder.retry_failed(&plan)?);
    }
    eprint!("sweep {}: {} trials, {}; ", plan.name, plan.trials.len(), counts(&plan));
    let ended = match (args.executor, slots) {
        (_, Some(slots)) => {
            eprintln!("{}", slots.reason);
            run::run_here(&folder, &plan, &slots)?
        }
        (Executor::Ray, None) => {
            eprintln!("on Ray");
            ray::run(&folder, &plan)?
        }
        (_, None) => {
            eprintln!("on Slurm");
            slurm::run(&folder, &plan)?
        }
    };
    summary(&folder, &plan, ended)
}

/// Refuses flags that the chosen executor would ignore.
fn refuse_ignored(args: &SweepArgs) -> Result<()> {
    let given = [("--jobs", args.jobs.is_some()), ("--memory", args.memory.is_some())];
    let remedy = match args.executor {
        Executor::Local => return Ok(()),
        Executor::Slurm => "[slurm] at_once and [resources] memory_per_trial in the sweep file",
        Executor::Ray => "[resources] memory_per_trial in the sweep file",
    };
    match given.into_iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(UsageError(format!("{flag} divides this machine, not a cluster; use {remedy}")).into()),
        None => Ok(()),
    }
}

/// Divides this machine among the trials.
fn local_slots(args: &SweepArgs, plan: &Plan) -> Result<Slots> {
    Ok(run::slots(plan, &Wish { jobs: args.jobs, memory_bytes: args.memory.map(|size| size.0) })?)
}

/// Reads the sweep file, applies the changes, and expands it into a plan.
fn expand(path: &Path, changes: &[String]) -> Result<(Found, Plan)> {
    let mut found = plan::find(path)?;
    for change in changes {
        plan::override_field(&mut found.file, change)?;
        // The copy in the sweep's folder records the change.
        found.text += &format!("\n# --set {change}\n");
    }
    let plan = plan::expand(&found.file, &found.name, &found.shown, &Surroundings::of_process())?;
    Ok((found, plan))
}

/// Counts the tasks of each step, such as `12 tasks (1 store, 1 targets, 10 student)`.
fn counts(plan: &Plan) -> String {
    let mut steps: Vec<(&str, usize)> = Vec::new();
    for task in &plan.tasks {
        match steps.iter_mut().find(|(step, _)| *step == task.step) {
            Some((_, count)) => *count += 1,
            None => steps.push((&task.step, 1)),
        }
    }
    let texts: Vec<String> = steps.iter().map(|(step, count)| format!("{count} {step}")).collect();
    format!("{} tasks ({})", plan.tasks.len(), texts.join(", "))
}

/// Number of failures that are printed with their reasons.
const TOLD_FAILURES: usize = 3;

/// Prints the tasks that have failed permanently, now or earlier, with reasons, and the flag that retries them.
fn tell_failures(folder: &SweepFolder, plan: &Plan) -> Result<()> {
    let mut count = 0;
    for task in &plan.tasks {
        let state = folder.state(task)?;
        if state.status != Status::Failed {
            continue;
        }
        count += 1;
        if count <= TOLD_FAILURES {
            let reason = state.reason.unwrap_or_default();
            let log = folder.task(task).join("log.txt");
            eprintln!("failed: {} {}: {reason}\n        log: {}", task.step, task.label, log.display());
        }
    }
    if count > TOLD_FAILURES {
        let path = folder.path().display();
        eprintln!("and {} more: see `kdgat sweep status {path}`", count - TOLD_FAILURES);
    }
    if count > 0 {
        let tasks = if count == 1 { "the failed task".to_owned() } else { format!("the {count} failed tasks") };
        eprintln!("once the cause is fixed, retry {tasks} with the same command and --retry-failed");
    }
    Ok(())
}

fn summary(folder: &SweepFolder, plan: &Plan, ended: Ended) -> Result<ExitCode> {
    let rows = table::rows(folder, plan)?;
    let count = |wanted: Status| rows.iter().filter(|row| row.status == wanted).count();
    let known = rows.iter().filter_map(|row| Some((row.metric.filter(|_| row.status.is_done())?, row)));
    let best = known.reduce(|best, other| if plan.direction.prefers(other.0, best.0) { other } else { best });
    if let Some((metric, row)) = best {
        let caveat = plan.caveat().map_or(String::new(), |caveat| format!(" ({caveat})"));
        match &row.run {
            // The best of one trial is that trial: its run says more than its settings.
            Some(run) if rows.len() == 1 => eprintln!("{} {metric:.6}{caveat}: {}", plan.metric, run.display()),
            _ => eprintln!("best: {} {metric:.6}{caveat} with {}", plan.metric, plan.describe(&row.trial)),
        }
    }
    let failed = count(Status::Failed) + count(Status::Blocked);
    eprintln!(
        "{} of {} trials done, {} stopped early, {failed} failed: {}",
        count(Status::Done),
        rows.len(),
        count(Status::Stopped),
        folder.path().join(TABLE).display()
    );
    tell_failures(folder, plan)?;
    Ok(match ended {
        Ended::Done => ExitCode::SUCCESS,
        Ended::Failed => ExitCode::FAILURE,
        Ended::Interrupted => {
            eprintln!("interrupted; run the same command again to continue");
            ExitCode::from(exit::INTERRUPTED)
        }
        Ended::Cancelled => {
            eprintln!("cancelled; run the same command again to continue");
            ExitCode::from(exit::INTERRUPTED)
        }
    })
}

fn list() -> Result<ExitCode> {
    for (name, text) in plan::SHIPPED {
        let file = plan::SweepFile::parse(name, text)?;
        output::write(&format!("{name:<24}{}\n", file.description))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn status(folder: &Path) -> Result<ExitCode> {
    let folder = SweepFolder::at(folder)?;
    let plan = folder.plan()?;
    let mut text = format!("sweep {}: {} trials, {}\n", plan.name, plan.trials.len(), counts(&plan));
    for task in &plan.tasks {
        let state = folder.seen(task)?;
        let shown = state.status.as_str();
        let metric =
            state.metrics.get(&plan.metric).map_or(String::new(), |value| format!("  {} {value:.6}", plan.metric));
        let worker = state.worker.as_ref().filter(|_| state.status == Status::Running);
        let worker = worker.map_or(String::new(), |worker| format!("  process {} on {}", worker.process, worker.host));
        let reason = state.reason.map_or(String::new(), |reason| format!("  {reason}"));
        let _ =
            writeln!(text, "  {shown:<12}{} {}{metric}  {:.1} s{worker}{reason}", task.step, task.label, state.seconds);
    }
    output::write(&text)?;
    // A sweep that was killed could not update its table. Users with read access only still see the status.
    if let Err(error) = folder.write_table(&plan) {
        tracing::warn!("{TABLE} was not updated: {error}");
    }
    Ok(ExitCode::SUCCESS)
}

fn report(folder: &Path, compare: &[String]) -> Result<ExitCode> {
    let folder = SweepFolder::at(folder)?;
    let pairs: Vec<(String, String)> = compare.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    let plan = folder.plan()?;
    let report = report::write(&folder, &plan, &pairs)?;
    folder.write_table(&plan)?;
    output::write(&report.markdown)?;
    let options = ReportOptions { paths: vec![folder.path().to_owned()], pairs, ..ReportOptions::default() };
    let page = crate::report::write(&options)?.page;
    for file in report.files.into_iter().chain([page]) {
        eprintln!("written: {}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn work(folder: &Path, id: &str, threads: usize, memory: Option<ByteSize>) -> Result<ExitCode> {
    interrupt::listen()?;
    let folder = SweepFolder::at(folder)?;
    let (plan, _membership) = folder.enter()?;
    let Some(task) = plan.task(id) else {
        return Err(UsageError(format!("{}: the sweep has no task `{id}`", folder.path().display())).into());
    };
    let grant =
        Grant { threads, memory_bytes: memory.map(|size| size.0), gpu: None, gpu_memory_bytes: None, may_grow: true };
    Ok(match run::work_on(&folder, &plan, task, &grant)? {
        Outcome::Done | Outcome::NotNow => ExitCode::SUCCESS,
        Outcome::PutOff => ExitCode::from(exit::INTERRUPTED),
        Outcome::TooLarge => ExitCode::from(exit::OUT_OF_MEMORY),
        Outcome::Failed => ExitCode::FAILURE,
    })
}

fn cancel(folder: &Path) -> Result<ExitCode> {
    let folder = SweepFolder::at(folder)?;
    let plan = folder.plan()?;
    folder.cancel()?;
    let mut claimed = 0;
    for task in &plan.tasks {
        claimed += usize::from(folder.is_claimed(task)?);
    }
    output::write(&format!(
        "asked {claimed} running tasks to save and stop; `kdgat sweep` with the same file continues\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}
