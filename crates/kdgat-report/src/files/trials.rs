//! Names the runs of a sweep by the values of its axes, as their folders are named by digests.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::Found;
use super::find::TASKS;
use crate::ReportError;
use kdgat_sweep::plan::{Plan, Trial};
use kdgat_sweep::state::SweepFolder;

/// Sets the axis values of runs that belong to a sweep (`lr 0.002, seed 1`).
///
/// # Errors
/// If a plan cannot be read.
pub fn name_trials(found: &mut Found) -> Result<(), ReportError> {
    let mut values_in: HashMap<PathBuf, HashMap<String, String>> = HashMap::new();
    for run in &mut found.runs {
        let Some((sweep, task)) = sweep_and_task(&run.folder) else { continue };
        let values = match values_in.entry(sweep) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let plan = SweepFolder::at(place.key())?.plan()?;
                place.insert(values_of_tasks(&plan))
            }
        };
        run.trial = values.get(&task).cloned().unwrap_or_default();
    }
    Ok(())
}

/// Returns the sweep's folder and the task's folder name for a run in `SWEEP/tasks/TASK/run`.
fn sweep_and_task(run: &Path) -> Option<(PathBuf, String)> {
    let run = run.canonicalize().ok()?;
    let task = run.parent()?;
    let sweep = task.parent().filter(|tasks| tasks.ends_with(TASKS))?.parent()?;
    sweep
        .join("plan.json")
        .is_file()
        .then(|| (sweep.to_owned(), task.file_name().unwrap_or_default().to_string_lossy().into()))
}

/// Maps each task's folder name to the values of the axes that vary in the sweep but not among the trials that share the task.
fn values_of_tasks(plan: &Plan) -> HashMap<String, String> {
    let mut trials_of: HashMap<&str, Vec<&Trial>> = HashMap::new();
    for trial in &plan.trials {
        trial.tasks.iter().for_each(|task| trials_of.entry(task).or_default().push(trial));
    }
    let distinct = |trials: &mut dyn Iterator<Item = &&Trial>, axis: usize| -> BTreeSet<String> {
        trials.filter_map(|trial| trial.labels.get(axis).cloned()).collect()
    };
    let all: Vec<&Trial> = plan.trials.iter().collect();
    let varies: Vec<bool> = (0..plan.axes.len()).map(|axis| distinct(&mut all.iter(), axis).len() > 1).collect();
    let of_task = |trials: &[&Trial]| -> String {
        let own = |(axis, name): (usize, &String)| {
            let values = distinct(&mut trials.iter(), axis);
            let one = values.first().filter(|_| varies[axis] && values.len() == 1)?;
            Some(format!("{name} {one}"))
        };
        plan.axes.iter().enumerate().filter_map(own).collect::<Vec<_>>().join(", ")
    };
    let named =
        plan.tasks.iter().filter_map(|task| Some((task.folder_name(), of_task(trials_of.get(task.id.as_str())?))));
    named.collect()
}
