//! Command line of a task.

use std::path::PathBuf;

use super::attempt::Grant;
use super::ladder::{self, Rung};
use crate::SweepError;
use crate::plan::{Plan, Task, TaskKind};
use crate::state::{SweepFolder, TaskState};
use kdgat_base::shell::quoted;
use kdgat_train::memory::limits::PROCESS_BYTES;

/// Field that takes the weights of several steps.
const MORE_TEACHERS: &str = "more_teachers";

/// Returns the folder of a task's run.
pub fn run_of(folder: &SweepFolder, task: &Task, state: &TaskState) -> PathBuf {
    folder.task(task).join(state.run.as_deref().unwrap_or("run"))
}

/// Builds the arguments of the command for an attempt at a task in this state.
pub fn arguments(
    folder: &SweepFolder,
    plan: &Plan,
    task: &Task,
    state: &TaskState,
    grant: &Grant,
) -> Result<Vec<String>, SweepError> {
    let own = folder.task(task);
    let processes = task.processes as usize;
    let mut arguments = match processes {
        1 => Vec::new(),
        _ => vec!["launch".to_owned(), "--processes".to_owned(), processes.to_string(), "--".to_owned()],
    };
    arguments.extend(task.kind.words().iter().map(|word| (*word).to_owned()));
    let mut flag = |name: &str, text: String| {
        arguments.push(format!("--{}", name.replace('_', "-")));
        arguments.push(text);
    };
    flag("config", own.join("config.json").display().to_string());
    let configured = task.config.training.threads;
    flag("threads", if configured > 0 { configured } else { (grant.threads / processes).max(1) }.to_string());
    if let Some(bytes) = grant.memory_bytes.map(|bytes| bytes / processes as u64) {
        let tensors = bytes.saturating_sub(PROCESS_BYTES).max(PROCESS_BYTES / 4);
        let configured = task.config.memory.memory_limit.map_or(u64::MAX, |size| size.0);
        flag("memory_limit", format!("{}B", tensors.min(configured)));
    }
    let reads_limit = task.kind.trains_on_graphs() || matches!(task.kind, TaskKind::Targets | TaskKind::TargetsPart(_));
    if let Some(bytes) = grant.gpu_memory_bytes.filter(|_| reads_limit).map(|bytes| bytes / processes as u64) {
        let configured = task.config.memory.gpu_memory_limit.map_or(u64::MAX, |size| size.0);
        flag("gpu_memory_limit", format!("{}B", bytes.min(configured)));
    }
    let run = own.join(state.run.as_deref().unwrap_or("run"));
    if task.kind.stage().is_some() {
        flag("run_dir", run.display().to_string());
        flag("resume", "true".to_owned());
        if task.registers() {
            flag("teachers_dir", own.join("teachers").display().to_string());
        }
        for (name, text) in ladder::settings(&ladder::ladder(&task.config, state.batch_graphs), state.rung) {
            flag(name, text);
        }
    }
    if task.kind == TaskKind::Evaluate {
        flag("output", run.display().to_string());
    }
    if let Some(share) = task.kind.share() {
        flag("part", share.to_string());
    }
    let (mut runs, mut further) = (Vec::new(), Vec::new());
    for input in &task.inputs {
        let Some(other) = plan.task(&input.task) else { continue };
        let made = run_of(folder, other, &folder.state(other)?);
        let weights = made.join("best.safetensors").display().to_string();
        match input.field.as_str() {
            _ if task.kind == TaskKind::Evaluate => runs.push(made.display().to_string()),
            MORE_TEACHERS => further.push(weights),
            field => flag(field, weights),
        }
    }
    if !further.is_empty() {
        flag(MORE_TEACHERS, further.join(","));
    }
    arguments.extend(runs);
    Ok(arguments)
}

/// Returns the name of the run's folder on a rung of the memory ladder; each rung that restarts the run has its own.
pub fn run_name(rungs: &[Rung], rung: u32) -> String {
    let restarts = rungs.iter().take(rung as usize).filter(|rung| rung.restarts).count();
    if restarts == 0 { "run".to_owned() } else { format!("run-{restarts}") }
}

/// Formats the command of a task's first attempt for a shell.
///
/// # Errors
/// If the state of a task that it takes weights or runs from cannot be read.
pub fn command_line(folder: &SweepFolder, plan: &Plan, task: &Task, grant: &Grant) -> Result<String, SweepError> {
    let words = arguments(folder, plan, task, &TaskState::default(), grant)?;
    Ok(["kdgat".to_owned()].iter().chain(&words).map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
}
