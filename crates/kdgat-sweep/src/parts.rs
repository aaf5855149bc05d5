//! Distributed build of a graph store or of a teacher's targets: a plan with one task per part and no trials, run by the executors of
//! sweeps.

use super::SweepError;
use super::plan::{Direction, JobsFile, Plan, Task, TaskKind};
use super::state::{Status, SweepFolder, TaskState};
use kdgat_config::Config;
use kdgat_graph::Share;

/// Returns the plan for the store `name`, with one task per part.
pub fn plan(name: &str, config: &Config, parts: usize, jobs: &JobsFile) -> Plan {
    let mut reduced = Config { data: config.data.clone(), ..Config::default() };
    reduced.training.threads = config.training.threads;
    in_parts(name, TaskKind::Part, &reduced, parts, jobs)
}

/// Returns the plan for the targets `name` of a teacher for the nodes of one large graph, with one task per part.
pub fn plan_of_targets(name: &str, config: &Config, parts: usize, jobs: &JobsFile) -> Plan {
    in_parts(name, TaskKind::TargetsPart, config, parts, jobs)
}

fn in_parts(name: &str, kind: fn(Share) -> TaskKind, config: &Config, parts: usize, jobs: &JobsFile) -> Plan {
    let task = |part| {
        let share = Share { part, parts };
        Task::new(kind(share), "part", share.to_string(), config.clone(), Vec::new(), Vec::new())
    };
    Plan {
        name: name.to_owned(),
        metric: String::new(),
        direction: Direction::default(),
        retries: jobs.retries,
        early_stopping: None,
        resources: jobs.resources.clone(),
        slurm: jobs.slurm.clone(),
        axes: Vec::new(),
        fields: Vec::new(),
        tasks: (1..=parts).map(task).collect(),
        trials: Vec::new(),
        places: Default::default(),
    }
}

/// Updates the task states to match the parts that exist according to `has`; failed tasks may start again. Tasks that another
/// process has claimed are skipped. Returns the number of existing parts among the others.
///
/// # Errors
/// If a state cannot be read or written.
pub fn agree(folder: &SweepFolder, plan: &Plan, has: impl Fn(Share) -> bool) -> Result<usize, SweepError> {
    let mut there = 0;
    for task in &plan.tasks {
        let Some(share) = task.kind.share() else { continue };
        let Some(claim) = folder.claim(task)? else { continue };
        let state = folder.state(task)?;
        let is_there = has(share);
        there += usize::from(is_there);
        let status = if is_there { Status::Done } else { Status::Waiting };
        let is_right = match state.status {
            Status::Running | Status::Waiting => !is_there,
            found => found == status,
        };
        if !is_right {
            claim.write(&TaskState { status, seconds: state.seconds, ..TaskState::default() })?;
        }
    }
    Ok(there)
}

/// Returns one line per failed part, with its reason and log.
///
/// # Errors
/// If the state of a task cannot be read.
pub fn failures(folder: &SweepFolder, plan: &Plan) -> Result<Vec<String>, SweepError> {
    let mut lines = Vec::new();
    for task in &plan.tasks {
        let state = folder.state(task)?;
        if state.status == Status::Failed {
            let (reason, log) = (state.reason.unwrap_or_default(), folder.task(task).join("log.txt"));
            lines.push(format!("part {}: {reason} (log: {})", task.label, log.display()));
        }
    }
    Ok(lines)
}
