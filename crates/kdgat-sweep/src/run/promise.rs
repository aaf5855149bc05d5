//! Early stopping: compares a running trial with the others of its sweep.

use std::path::Path;

use super::attempt::Attempt;
use super::board::Board;
use crate::SweepError;
use crate::early::EarlyStopping;
use crate::plan::{Plan, TaskKind};
use crate::state::{SweepFolder, results};

/// Returns the reason to stop this attempt by the file's early-stopping rule; `None` if it should continue.
pub fn reason_to_end(
    folder: &SweepFolder,
    plan: &Plan,
    board: &Board,
    attempt: &Attempt,
) -> Result<Option<String>, SweepError> {
    let Some(rule) = &plan.early_stopping else { return Ok(None) };
    let task = &attempt.task;
    if task.kind == TaskKind::Evaluate || !plan.trials.iter().any(|trial| trial.measured == task.id) {
        return Ok(None);
    }
    let own = values(rule, plan, &attempt.run())?;
    if (own.len() as u64) < rule.min_epochs {
        return Ok(None);
    }
    let mut others = Vec::new();
    for trial in plan.trials.iter().filter(|trial| trial.measured != task.id) {
        let run = board.state(&trial.measured).and_then(|state| state.run.clone());
        if let (Some(other), Some(run)) = (plan.task(&trial.measured), run) {
            others.push(values(rule, plan, &folder.task(other).join(run))?);
        }
    }
    Ok(rule.reason(plan.direction, &own, &others))
}

/// Returns the values of the rule's metric, one per epoch.
fn values(rule: &EarlyStopping, plan: &Plan, run: &Path) -> Result<Vec<f64>, SweepError> {
    let metric = rule.metric.as_ref().unwrap_or(&plan.metric);
    Ok(results::epochs(run)?.iter().filter_map(|epoch| epoch.get(metric).copied()).collect())
}
