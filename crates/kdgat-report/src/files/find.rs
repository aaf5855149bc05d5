//! Finds runs, evaluations and sweeps below the paths that a user gives.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::trials::name_trials;
use super::{Evaluation, GraphEvaluation, Run};
use crate::ReportError;
use kdgat_base::files;
use kdgat_sweep::state::SweepFolder;

/// Maximum depth of the search below a given folder: datasets, groups, run numbers, and the folders of sweeps around them.
const DEEPEST: usize = 6;
/// Folder of the evaluation of a dataset's runs.
const EVALUATION: &str = "evaluation";
/// Folder of a sweep's tasks.
pub const TASKS: &str = "tasks";

/// Runs, evaluations and sweeps that were found.
#[derive(Debug, Default)]
pub struct Found {
    pub runs: Vec<Run>,
    pub evaluations: Vec<Evaluation>,
    pub graph_evaluations: Vec<GraphEvaluation>,
    pub sweeps: Vec<SweepFolder>,
}

/// Searches the paths. Also adds the evaluation of a dataset for its runs that were found, restricted to their models.
///
/// # Errors
/// If a path has nothing to report on, or a file is damaged.
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
                "holds no run (metrics.csv, config.json), no evaluation (metrics.json, graph_metrics.json) and no sweep (plan.json)",
            ));
        }
    }
    name_trials(&mut found)?;
    add_evaluations_beside(&mut found, &seen)?;
    Ok(found)
}

/// Adds what it finds in a folder, unless already found. Returns the number of items, including those found before.
fn search(folder: &Path, depth: usize, found: &mut Found, seen: &mut HashSet<PathBuf>) -> Result<usize, ReportError> {
    // A folder is added once, however its path is written.
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
    if GraphEvaluation::is_at(folder) {
        count += 1;
        if is_new {
            found.graph_evaluations.push(GraphEvaluation::read(folder)?);
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

/// Returns the folders of the current plan's tasks if `folder` is the folder `tasks` of a sweep or pipeline, else `None`. Tasks
/// of earlier settings remain on disk but are not reported.
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

/// Adds `runs/<dataset>/evaluation` for runs that were given without it.
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
        if seen.contains(&folder) {
            continue;
        }
        if Evaluation::is_at(&folder)? {
            let mut evaluation = Evaluation::read(&folder)?;
            evaluation.keep(&names);
            found.evaluations.extend(Some(evaluation).filter(|evaluation| !evaluation.models.is_empty()));
        }
        if GraphEvaluation::is_at(&folder) {
            let mut evaluation = GraphEvaluation::read(&folder)?;
            evaluation.keep(&names);
            found.graph_evaluations.extend(Some(evaluation).filter(|evaluation| !evaluation.runs.is_empty()));
        }
    }
    Ok(())
}

/// Lists subfolders sorted by name, numbers by value.
fn subfolders(parent: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let error = files::failed("list", parent);
    let mut folders = Vec::new();
    for entry in fs::read_dir(parent).map_err(error)? {
        let entry = entry.map_err(error)?;
        // Links are not followed: they may form a cycle.
        if entry.file_type().map_err(error)?.is_dir() {
            let name = entry.file_name().to_string_lossy().into_owned();
            folders.push((name.parse::<u64>().unwrap_or(u64::MAX), name, entry.path()));
        }
    }
    folders.sort();
    Ok(folders.into_iter().map(|(_, _, path)| path).collect())
}
