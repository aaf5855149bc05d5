//! `kdgat pipeline`: runs the shipped sweep `pipeline` on one dataset, in a folder named after the digest of its data.
//!
//! Steps are tasks of a sweep, identified by digests of their settings and of their input tasks. Since the folder's name
//! has the digest of the data, a step runs again if anything that it depends on has changed, and is skipped otherwise.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::SweepError;
use super::plan::{self, Found, Plan, Task, TaskKind, override_field};
use super::state::{Status, SweepFolder};

/// Name of the shipped sweep.
const SHIPPED: &str = "pipeline";
/// Default parent folder of pipelines.
pub const FOLDER: &str = "pipelines";

/// Options of `kdgat pipeline`.
#[derive(Clone, Debug, Default)]
pub struct PipelineOptions {
    /// Dataset; `None` for the configured one, or the simulated one if none is configured.
    pub data: Option<PathBuf>,
    /// Presets that are added to those of each step.
    pub overlays: Vec<String>,
    /// Arguments of `--set`: `FIELD=VALUE` or `STEP.FIELD=VALUE`.
    pub changes: Vec<String>,
}

/// Returns the sweep file with the user's changes.
///
/// # Errors
/// If a change is invalid, or gives a field several values.
pub fn file(options: &PipelineOptions) -> Result<Found, SweepError> {
    let mut found = plan::find(Path::new(SHIPPED))?;
    for step in &mut found.file.step {
        // The evaluation has no preset of its own, but reads the features that an overlay chooses.
        let presets = std::iter::once(&step.preset).filter(|preset| !preset.is_empty()).chain(&options.overlays);
        step.preset = presets.cloned().collect::<Vec<_>>().join(",");
    }
    if !options.overlays.is_empty() {
        found.text += &format!("\n# --preset {}\n", options.overlays.join(","));
    }
    if let Some(data) = &options.data {
        // Not parsed as a list of values: a path may contain commas.
        let data = data.display().to_string();
        for step in &mut found.file.step {
            step.set.insert("data".to_owned(), toml::Value::String(data.clone()));
        }
        found.text += &format!("\n# --data {data:?}\n");
    }
    for change in &options.changes {
        override_field(&mut found.file, change)?;
        if !found.file.axis.is_empty() || found.file.seeds.len() > 1 {
            return Err(SweepError::Usage(format!(
                "--set {change}: a pipeline takes one value per field (the elements of a list are separated by commas); \
                 use `kdgat sweep pipeline --set` to try several"
            )));
        }
        // Records the change in the pipeline's copy of the sweep file.
        found.text += &format!("\n# --set {change}\n");
    }
    Ok(found)
}

/// Returns the task that builds the graph store.
///
/// # Errors
/// If there are several: a pipeline has one dataset.
pub fn store(plan: &Plan) -> Result<&Task, SweepError> {
    let mut stores = plan.tasks.iter().filter(|task| task.kind == TaskKind::Store);
    match (stores.next(), stores.next()) {
        (Some(store), None) => Ok(store),
        _ => {
            let text = "a pipeline has one dataset with one window setting; use `kdgat sweep pipeline` for several";
            Err(SweepError::Usage(text.to_owned()))
        }
    }
}

/// Returns the folder of the pipeline for a dataset with this digest.
pub fn folder(parent: &Path, dataset: &str, data_digest: &str) -> PathBuf {
    parent.join(format!("{dataset}-{}", data_digest.get(..12).unwrap_or(data_digest)))
}

/// Lists the steps in execution order with their states, as text. Without a folder, all steps are to do.
///
/// # Errors
/// If the state of a task cannot be read.
pub fn describe(plan: &Plan, folder: Option<&SweepFolder>) -> Result<String, SweepError> {
    let mut lines = String::new();
    let mut left = 0;
    for (at, task) in plan.tasks.iter().enumerate() {
        let state = folder.map(|folder| folder.state(task)).transpose()?.unwrap_or_default();
        let what = match state.status {
            Status::Done | Status::Stopped => "done",
            Status::Failed | Status::Blocked => "failed, retry",
            _ if state.attempts > 0 => "resume",
            _ => "to do",
        };
        left += usize::from(!state.status.is_done());
        let needs: Vec<&str> =
            task.needs.iter().filter_map(|id| plan.task(id)).map(|task| task.step.as_str()).collect();
        let after = if needs.is_empty() { String::new() } else { format!("  after {}", needs.join(", ")) };
        let (number, name, command) = (at + 1, task.folder_name(), task.kind.words().join(" "));
        // Writing into a String cannot fail.
        let _ = writeln!(lines, "  {number:>2}  {what:<13}  {name:<36}  kdgat {command:<14}{after}");
    }
    Ok(format!("{} steps, {left} to do\n{lines}", plan.tasks.len()))
}

/// True if all steps are done.
///
/// # Errors
/// If the state of a task cannot be read.
pub fn is_done(plan: &Plan, folder: &SweepFolder) -> Result<bool, SweepError> {
    for task in &plan.tasks {
        if !folder.state(task)?.status.is_done() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Summarises the results as text: the verdict of each fusion and the paths of the result files.
///
/// # Errors
/// If the state of a task or `fusion.json` of a finished fusion cannot be read.
pub fn results(plan: &Plan, folder: &SweepFolder) -> Result<String, SweepError> {
    let mut text = String::new();
    for task in &plan.tasks {
        let state = folder.state(task)?;
        let run = folder.task(task).join(state.run.as_deref().unwrap_or("run"));
        // Writing into a String cannot fail.
        let _ = match task.kind {
            TaskKind::Fusion if state.status.is_done() => {
                writeln!(text, "{}: {}  {}\n", task.step, verdict(&run)?, run.join("fusion.{json,csv}").display())
            }
            TaskKind::Evaluate if state.status.is_done() => {
                writeln!(text, "{}: {}", task.step, run.join("metrics.{json,csv}").display())
            }
            _ => Ok(()),
        };
    }
    Ok(text)
}

fn verdict(run: &Path) -> Result<String, SweepError> {
    let path = run.join("fusion.json");
    let bytes = std::fs::read(&path).map_err(SweepError::file(&path, "read"))?;
    let damaged = |found: String| SweepError::Damaged { path: path.clone(), found };
    let report: Value = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    let text = report["verdict"]["text"].as_str();
    text.map(str::to_owned).ok_or_else(|| damaged("it has no verdict".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Surroundings, expand};

    #[test]
    fn a_setting_has_one_value() {
        let with =
            |change: &str| file(&PipelineOptions { changes: vec![change.to_owned()], ..PipelineOptions::default() });
        for change in ["lr=0.1", "vgae-student.hidden=40,20", "seed=3"] {
            assert!(with(change).is_ok(), "{change}");
        }
        for change in ["lr=0.1,0.2", "vgae-student.hidden=40;20", "seed=1,2"] {
            let said = with(change).unwrap_err().to_string();
            assert!(said.contains("takes one value") && said.contains("kdgat sweep pipeline"), "{said}");
        }
    }

    #[test]
    fn a_dataset_is_the_path_that_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let surroundings = Surroundings { working_folder: folder.path().to_owned(), variables: Vec::new() };
        for data in ["a,b/set_04", " a/set_04 ", "a\nb"] {
            let found = file(&PipelineOptions { data: Some(data.into()), ..PipelineOptions::default() }).unwrap();
            let plan = expand(&found.file, &found.name, &found.shown, &surroundings).unwrap();
            assert_eq!(store(&plan).unwrap().config.data.data.as_deref(), Some(Path::new(data)));
            plan::SweepFile::parse("sweep.toml", &found.text).unwrap();
        }
    }
}
