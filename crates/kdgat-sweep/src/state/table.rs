//! `sweep.csv`: one row per trial, from the states of its tasks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::folder::{SweepFolder, settled};
use super::task_state::{Status, TaskState};
use crate::SweepError;
use crate::plan::{Plan, Task, TaskKind, Trial};

/// A trial with its current status and results.
#[derive(Clone, Debug)]
pub struct Row {
    /// The trial, with the labels of its settings.
    pub trial: Trial,
    /// Status of all its tasks together: failed or blocked if one is, done once all are.
    pub status: Status,
    /// Metric of the measured task.
    pub metric: Option<f64>,
    /// Metrics of all the trial's tasks by name; those of the measured task take precedence, then later tasks.
    pub metrics: BTreeMap<String, f64>,
    /// Largest number of starts among the trial's own tasks, which no other trial shares, and the measured task.
    pub attempts: u32,
    /// Highest rung of the memory ladder among its tasks; 0 if no task ran out of memory.
    pub rung: u32,
    /// Run time of the trial's own tasks, which no other trial shares, and of the measured task, in seconds.
    pub seconds: f64,
    /// Highest counted memory of its tasks, in bytes; 0 before the first epoch is done.
    pub peak_memory_bytes: u64,
    /// Finished epochs of the measured training, or of the first training that the measured evaluation scores.
    pub epochs: u64,
    /// Run folder of that training; `None` before its first start.
    pub run: Option<PathBuf>,
    /// Reason for a failure, early stop or next attempt, after the name of the step.
    pub reason: Option<String>,
}

/// Columns before those for the axes.
pub(crate) const COLUMNS: [&str; 10] =
    ["trial", "state", "metric", "seconds", "peak_memory_bytes", "epochs", "attempts", "memory_rung", "run", "reason"];

/// Builds the rows of all trials, in the order of the plan.
///
/// # Errors
/// If the state of a task cannot be read.
pub fn rows(folder: &SweepFolder, plan: &Plan) -> Result<Vec<Row>, SweepError> {
    let mut states: BTreeMap<&str, TaskState> = BTreeMap::new();
    let mut statuses: BTreeMap<&str, Status> = BTreeMap::new();
    for task in &plan.tasks {
        let state = folder.seen(task)?;
        statuses.insert(&task.id, state.status);
        states.insert(&task.id, state);
        // The tasks that it needs come before it.
        let status = settled(task, &|id| statuses.get(id).copied().unwrap_or_default());
        statuses.insert(&task.id, status);
    }
    let mut uses: BTreeMap<&str, u32> = BTreeMap::new();
    plan.trials.iter().flat_map(|trial| &trial.tasks).for_each(|id| *uses.entry(id).or_default() += 1);
    let row = |trial: &Trial| {
        let tasks: Vec<&Task> = trial.tasks.iter().filter_map(|id| plan.task(id)).collect();
        let state = |task: &&Task| states.get(task.id.as_str()).cloned().unwrap_or_default();
        let measured = plan.task(&trial.measured).map(|task| state(&task)).unwrap_or_default();
        let own = tasks.iter().filter(|task| uses.get(task.id.as_str()) == Some(&1) || task.id == trial.measured);
        let mut metrics = measured.metrics.clone();
        for task in tasks.iter().rev() {
            state(task).metrics.into_iter().for_each(|(name, value)| {
                metrics.entry(name).or_insert(value);
            });
        }
        let trained = plan.task(&trial.measured).and_then(|task| trained_by(plan, task));
        let run = trained.and_then(|task| Some(folder.task(task).join(state(&task).run?)));
        Row {
            trial: trial.clone(),
            status: together(tasks.iter().map(|task| statuses.get(task.id.as_str()).copied().unwrap_or_default())),
            metric: measured.metrics.get(&plan.metric).copied(),
            metrics,
            // The measured task has no attempts if a task before it has failed.
            attempts: own.clone().map(|task| state(task).attempts).max().unwrap_or(0),
            rung: tasks.iter().map(|task| state(task).rung).max().unwrap_or(0),
            seconds: own.map(|task| state(task).seconds).sum(),
            peak_memory_bytes: tasks.iter().map(|task| state(task).peak_memory_bytes).max().unwrap_or(0),
            epochs: trained.map_or(0, |task| state(&task).epochs),
            run,
            reason: reason(plan, trial, &states, &statuses),
        }
    };
    Ok(plan.trials.iter().map(row).collect())
}

/// Returns the training of a task: the task itself, or the first training that it evaluates.
fn trained_by<'a>(plan: &'a Plan, task: &'a Task) -> Option<&'a Task> {
    match task.kind {
        TaskKind::Evaluate => task.inputs.first().and_then(|input| plan.task(&input.task)),
        _ => Some(task),
    }
}

/// Combines the statuses of a trial's tasks.
fn together(statuses: impl Iterator<Item = Status>) -> Status {
    let statuses: Vec<Status> = statuses.collect();
    let any = |wanted: Status| statuses.contains(&wanted);
    if let Some(worst) = [Status::Failed, Status::Blocked].into_iter().find(|&status| any(status)) {
        return worst;
    }
    match statuses.iter().all(|status| status.is_done()) {
        true if any(Status::Stopped) => Status::Stopped,
        true => Status::Done,
        false if any(Status::Running) => Status::Running,
        false if any(Status::Interrupted) => Status::Interrupted,
        false => Status::Waiting,
    }
}

/// Returns the reason for a trial's failure: the first one found among its tasks and those that blocked them.
fn reason(
    plan: &Plan,
    trial: &Trial,
    states: &BTreeMap<&str, TaskState>,
    statuses: &BTreeMap<&str, Status>,
) -> Option<String> {
    let mut waiting: Vec<&String> = trial.tasks.iter().collect();
    let mut seen: Vec<&String> = Vec::new();
    while let Some(id) = waiting.pop() {
        let task = plan.task(id)?;
        let state = states.get(id.as_str())?;
        if let Some(reason) = &state.reason {
            return Some(format!("{}: {reason}", task.step));
        }
        if statuses.get(id.as_str()) == Some(&Status::Blocked) {
            waiting.extend(task.needs.iter().filter(|need| !seen.contains(need)));
        }
        seen.push(id);
    }
    None
}

/// Formats the table as CSV, with numbers in full precision.
pub(super) fn csv(plan: &Plan, rows: &[Row]) -> Result<Vec<u8>, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS.iter().copied().chain(plan.axes.iter().map(String::as_str)))?;
    for row in rows {
        let mut record = vec![
            row.trial.id.clone(),
            row.status.as_str().to_owned(),
            row.metric.map_or(String::new(), |metric| metric.to_string()),
            format!("{:.3}", row.seconds),
            row.peak_memory_bytes.to_string(),
            row.epochs.to_string(),
            row.attempts.to_string(),
            row.rung.to_string(),
            row.run.as_ref().map_or(String::new(), |run| run.display().to_string()),
            row.reason.clone().unwrap_or_default(),
        ];
        record.extend(row.trial.labels.iter().cloned());
        writer.write_record(&record)?;
    }
    writer.into_inner().map_err(|error| error.into_error().into())
}
