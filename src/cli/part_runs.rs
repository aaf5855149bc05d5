//! Runs the parts of a build by an executor: those of a graph store, or of a teacher's targets.

use std::process::ExitCode;

use anyhow::Result;

use super::output;
use super::sweep::{Executor, requests};
use crate::graph::Share;
use crate::sweep::plan::Plan;
use crate::sweep::run::{self, Ended, Slots};
use crate::sweep::state::SweepFolder;
use crate::sweep::{parts, ray, slurm};

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
        Ended::Interrupted | Ended::Cancelled => eprintln!("interrupted; run the same command again to continue"),
    }
    Ok(ExitCode::FAILURE)
}
