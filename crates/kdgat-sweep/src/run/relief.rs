//! Handles a task that ran out of memory: gives it more on a cluster, if configured; else steps down the memory ladder; else
//! the task has failed.

use std::path::Path;

use serde_json::Value;

use super::command::run_name;
use super::ladder::{self, Rung};
use crate::plan::{Plan, Task};
use crate::state::{Status, TaskState};

/// Updates the state of a task that ran out of memory. `folder` is the task's; `may_grow` is true if its next attempt can
/// get more memory; `why` is the observed reason.
pub fn out_of_memory(plan: &Plan, task: &Task, state: &mut TaskState, folder: &Path, may_grow: bool, why: &str) {
    let granted = |growths| plan.resources.granted_bytes(growths);
    let (had, next) = (granted(state.growths), granted(state.growths + 1));
    if may_grow && next > had {
        state.growths += 1;
        state.status = Status::Waiting;
        state.reason = Some(format!("out of memory with {} MiB; next attempt with {} MiB", had >> 20, next >> 20));
        return;
    }
    let rungs = ladder::ladder(&task.config, state.batch_graphs);
    match rungs.get(state.rung as usize).filter(|_| task.kind.trains_on_graphs()) {
        Some(rung) => {
            if rung.restarts && state.batch_graphs.is_none() {
                let run = state.run.clone().unwrap_or_else(|| run_name(&rungs, state.rung));
                state.batch_graphs = batch_graphs(&folder.join(run));
            }
            state.rung += 1;
            state.status = Status::Waiting;
            state.reason = Some(format!("out of memory; next attempt with {}", described(rung)));
        }
        None => {
            state.status = Status::Failed;
            state.reason = Some(format!("out of memory, with no memory setting left to change; {why}"));
        }
    }
}

fn described(rung: &Rung) -> String {
    rung.settings.iter().map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>().join(" ")
}

/// Reads the number of graphs per batch from a run's configuration; `None` if the run has none.
fn batch_graphs(run: &Path) -> Option<u64> {
    let config: Value = serde_json::from_slice(&std::fs::read(run.join("config.json")).ok()?).ok()?;
    config["inputs"]["batch_graphs"].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Surroundings, SweepFile, expand};

    fn plan(resources: &str) -> Result<Plan, String> {
        let text = format!(
            "metric = \"val_loss\"\n[resources]\nmemory_per_trial = \"1GiB\"\n{resources}\n[[step]]\nname = \"student\"\n\
             command = \"autoencoder\"\npreset = \"vgae,student\"\nset = {{ use_kd = false }}\n"
        );
        let file = SweepFile::parse("test", &text).unwrap();
        let surroundings = Surroundings { working_folder: std::env::temp_dir(), variables: Vec::new() };
        expand(&file, "test", "test", &surroundings).map_err(|error| error.to_string())
    }

    /// Rung and granted MiB after each out-of-memory event, until the task fails.
    fn course(plan: &Plan, step: &str, may_grow: bool) -> Vec<(u32, u64)> {
        let task = plan.tasks.iter().find(|task| task.step == step).unwrap();
        let mut state = TaskState::default();
        let mut course = Vec::new();
        loop {
            out_of_memory(plan, task, &mut state, Path::new("/nowhere"), may_grow, "killed");
            if state.status == Status::Failed {
                assert!(state.reason.unwrap().ends_with("killed"));
                return course;
            }
            assert_eq!(state.status, Status::Waiting);
            course.push((state.rung, plan.resources.granted_bytes(state.growths) >> 20));
        }
    }

    #[test]
    fn a_rung_down_or_more_memory_as_configured() {
        let rungs = course(&plan("").unwrap(), "student", true);
        assert!(rungs.len() >= 3, "{rungs:?}");
        assert!(rungs.iter().enumerate().all(|(at, found)| *found == (at as u32 + 1, 1024)), "{rungs:?}");

        let grows = plan("more_memory = { factor = 2.0, at_most = \"3GiB\" }").unwrap();
        let course_of = course(&grows, "student", true);
        assert_eq!(course_of[..3], [(0, 2048), (0, 3072), (1, 3072)], "the ladder comes after the maximum");
        assert_eq!(course(&grows, "student", false), rungs, "this machine has no more memory");
        assert_eq!(course(&grows, "store", true), [(0, 2048), (0, 3072)], "a store has no ladder");
        assert_eq!(course(&plan("").unwrap(), "store", true), []);
    }

    #[test]
    fn memory_that_cannot_grow_is_refused() {
        let said = plan("more_memory = { factor = 1.0, at_most = \"1GiB\" }").unwrap_err();
        assert!(said.contains("factor 1 does not increase memory") && said.contains("at_most (1024 MiB)"), "{said}");
    }
}
