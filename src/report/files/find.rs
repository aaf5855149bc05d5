//! From the paths that a user names to the runs, evaluations and sweeps that lie there.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::trials::name_trials;
use super::{Evaluation, Run};
use crate::report::ReportError;
use crate::sweep::state::SweepFolder;

/// Folders below a named one that are searched: datasets, groups, numbers, and what a sweep or a chain puts around them.
const DEEPEST: usize = 6;
/// Where evaluations of a dataset's runs lie.
const EVALUATION: &str = "evaluation";
/// Where the tasks of a sweep lie.
pub const TASKS: &str = "tasks";

/// What lies at the paths.
#[derive(Debug, Default)]
pub struct Found {
    pub runs: Vec<Run>,
    pub evaluations: Vec<Evaluation>,
    pub sweeps: Vec<SweepFolder>,
}

/// Searches folders. The evaluation of a dataset's runs is taken with any of them, for the models that are named.
///
/// # Errors
/// A path at which there is nothing to report on, or a file that is damaged.
pub fn find(paths: &[PathBuf]) -> Result<Found, ReportError> {
    let (mut found, mut seen) = (Found::default(), HashSet::new());
    for path in paths {
        let folder = match path.parent() {
            Some(parent) if path.is_file() && parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) if path.is_file() => parent,
            _ => path,
        };
        if !folder.exists() {
            return Err(ReportError::input(
                path,
                "does not exist; name the folder of a run, of a dataset's runs, or of a sweep",
            ));
        }
        if search(folder, 0, &mut found, &mut seen)? == 0 {
            return Err(ReportError::input(
                path,
                "holds no run (metrics.csv, config.json), no evaluation (metrics.json) and no sweep (plan.json)",
            ));
        }
    }
    name_trials(&mut found)?;
    add_evaluations_beside(&mut found, &seen)?;
    Ok(found)
}

/// Adds what is not there yet; how much there is to report on, known before or not.
fn search(folder: &Path, depth: usize, found: &mut Found, seen: &mut HashSet<PathBuf>) -> Result<usize, ReportError> {
    // However a path is written, a folder is taken once.
    let is_new = seen.insert(canonical(folder));
    if Run::is_at(folder) {
        if is_new {
            found.runs.push(Run::read(folder)?);
        }
        return Ok(1);
    }
    let mut count = 0;
    if Evaluation::is_at(folder)? {
        count += 1;
        if is_new {
            found.evaluations.push(Evaluation::read(folder)?);
        }
    }
    if is_sweep(folder) {
        count += 1;
        if is_new {
            found.sweeps.push(SweepFolder::at(folder)?);
        }
    }
    if depth < DEEPEST {
        let current = tasks_of_sweep(folder)?;
        let is_current = |folder: &Path| current.as_ref().is_none_or(|tasks| tasks.contains(folder));
        for folder in subfolders(folder)?.into_iter().filter(|folder| is_current(folder)) {
            count += search(&folder, depth + 1, found, seen)?;
        }
    }
    Ok(count)
}

/// Of the folder `tasks` of a sweep or a pipeline: the folders of the tasks that its plan has now. Those of settings that it had
/// before are kept, and are no part of what it is asked for.
fn tasks_of_sweep(folder: &Path) -> Result<Option<HashSet<PathBuf>>, ReportError> {
    let Some(sweep) = folder.parent().filter(|parent| folder.ends_with(TASKS) && is_sweep(parent)) else {
        return Ok(None);
    };
    let sweep = SweepFolder::at(sweep)?;
    let names = sweep.plan()?.tasks.into_iter().map(|task| folder.join(task.folder_name()));
    Ok(Some(names.collect()))
}

fn is_sweep(folder: &Path) -> bool {
    folder.join("plan.json").is_file() && folder.join(TASKS).is_dir()
}

fn canonical(folder: &Path) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned())
}

/// `runs/<dataset>/evaluation` of runs that were named by themselves.
fn add_evaluations_beside(found: &mut Found, seen: &HashSet<PathBuf>) -> Result<(), ReportError> {
    let names: Vec<String> = found.runs.iter().map(|run| run.name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut beside: Vec<PathBuf> = Vec::new();
    for run in &found.runs {
        let folder = canonical(&run.folder);
        beside.extend(folder.ancestors().nth(2).map(|dataset| dataset.join(EVALUATION)));
    }
    beside.sort();
    beside.dedup();
    for folder in beside {
        if seen.contains(&folder) || !Evaluation::is_at(&folder)? {
            continue;
        }
        let mut evaluation = Evaluation::read(&folder)?;
        evaluation.keep(&names);
        if !evaluation.models.is_empty() {
            found.evaluations.push(evaluation);
        }
    }
    Ok(())
}

/// In the order of their names, numbers by their value.
fn subfolders(parent: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let error = |source| ReportError::File { path: parent.to_owned(), action: "list", source };
    let mut folders = Vec::new();
    for entry in fs::read_dir(parent).map_err(error)? {
        let entry = entry.map_err(error)?;
        // A link could lead round in a circle.
        if entry.file_type().map_err(error)?.is_dir() {
            let name = entry.file_name().to_string_lossy().into_owned();
            folders.push((name.parse::<u64>().unwrap_or(u64::MAX), name, entry.path()));
        }
    }
    folders.sort();
    Ok(folders.into_iter().map(|(_, _, path)| path).collect())
}
