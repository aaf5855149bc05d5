//! Runs the parts of a build by an executor: those of a graph store, or of a teacher's targets.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::output;
use super::sweep::{Executor, requests};
use crate::exit;
use crate::graph::Share;
use crate::sweep::plan::Plan;
use crate::sweep::run::{self, Ended, Slots};
use crate::sweep::state::SweepFolder;
use crate::sweep::{parts, ray, slurm};

/// Flags of a build in parts.
#[derive(Args, Debug)]
pub struct PartsArgs {
    /// Build in this many parts in parallel, wait for them, and join them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub parts: Option<u16>,
    /// Executor that builds the parts
    #[arg(long, value_enum, default_value_t = Executor::Local, requires = "parts")]
    pub executor: Executor,
    /// TOML file with `retries`, [resources] and [slurm] for the jobs, as in a sweep file
    #[arg(long, value_name = "FILE", requires = "parts")]
    pub jobs_file: Option<PathBuf>,
    /// Parts to build at the same time on this machine (default: as many as memory and cores allow)
    #[arg(long, value_name = "N", requires = "parts")]
    pub jobs: Option<usize>,
    /// Print the scripts or commands that would build the parts, and build nothing
    #[arg(long, requires = "parts")]
    pub dry_run: bool,
}

/// Prints the scripts or commands that would make the parts.
pub fn print(executor: Executor, folder: &SweepFolder, plan: &Plan, slots: &Slots) -> Result<ExitCode> {
    let texts = match (executor, slots.grants.first()) {
        (Executor::Local, Some(grant)) => {
            output::write(&format!("{}\n", slots.reason))?;
            let line = |task| Ok(run::command_line(folder, plan, task, grant)? + "\n");
            plan.tasks.iter().map(line).collect::<Result<Vec<String>>>()?
        }
        _ => requests(executor, folder, plan)?,
    };
    texts.iter().try_for_each(|text| output::write(text))?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the parts of `what` that are not there yet according to `has`.
pub fn run(
    executor: Executor,
    folder: &SweepFolder,
    plan: &Plan,
    slots: &Slots,
    what: &str,
    has: impl Fn(Share) -> bool,
) -> Result<Ended> {
    requests(executor, folder, plan)?;
    let membership = folder.join(plan, "# The parts of one build: one task per part, no trials.\n")?;
    let there = parts::agree(folder, plan, has)?;
    let place = folder.path().display();
    eprint!("{what} in {} parts, {there} of them done; states and logs: {place}; ", plan.tasks.len());
    let ended = match executor {
        Executor::Local => {
            eprintln!("{}", slots.reason);
            run::run_here(folder, plan, slots)?
        }
        Executor::Slurm => {
            eprintln!("on Slurm");
            slurm::run(folder, plan)?
        }
        Executor::Ray => {
            eprintln!("on Ray");
            ray::run(folder, plan)?
        }
    };
    if matches!(ended, Ended::Done) {
        // The folder is removed with the parts.
        drop(membership);
    }
    Ok(ended)
}

/// Prints why the parts are not complete.
pub fn report(ended: Ended, folder: &SweepFolder, plan: &Plan) -> Result<ExitCode> {
    match ended {
        Ended::Done => return Ok(ExitCode::SUCCESS),
        Ended::Failed => {
            let failures = parts::failures(folder, plan)?;
            failures.iter().for_each(|line| eprintln!("{line}"));
            eprintln!(
                "error: {} of {} parts failed; run the same command again to retry them",
                failures.len(),
                plan.tasks.len()
            );
        }
        Ended::Interrupted | Ended::Cancelled => {
            eprintln!("interrupted; run the same command again to continue");
            return Ok(ExitCode::from(exit::INTERRUPTED));
        }
    }
    Ok(ExitCode::FAILURE)
}
