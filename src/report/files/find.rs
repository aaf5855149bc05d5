//! From the paths that a user names to the runs, evaluations and sweeps that lie there.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Evaluation, Run};
use crate::report::ReportError;
use crate::sweep::state::SweepFolder;

/// Folders below a named one that are searched: datasets, groups, numbers, and what a sweep or a chain puts around them.
const DEEPEST: usize = 6;
/// Where evaluations of a dataset's runs lie.
const EVALUATION: &str = "evaluation";

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
    let mut found = Found::default();
    for path in paths {
        let before = found.runs.len() + found.evaluations.len() + found.sweeps.len();
        let folder = if path.is_file() { path.parent().unwrap_or(Path::new(".")) } else { path };
        if !folder.exists() {
            return Err(ReportError::input(
                path,
                "does not exist; name the folder of a run, of a dataset's runs, or of a sweep",
            ));
        }
        search(folder, 0, &mut found)?;
        if found.runs.len() + found.evaluations.len() + found.sweeps.len() == before {
            return Err(ReportError::input(
                path,
                "holds no run (metrics.csv, config.json), no evaluation (metrics.json) and no sweep (plan.json)",
            ));
        }
    }
    add_evaluations_beside(&mut found)?;
    Ok(found)
}

fn search(folder: &Path, depth: usize, found: &mut Found) -> Result<(), ReportError> {
    if Run::is_at(folder) {
        if found.runs.iter().all(|run| run.folder != folder) {
            found.runs.push(Run::read(folder)?);
        }
        return Ok(());
    }
    if Evaluation::is_at(folder) && found.evaluations.iter().all(|evaluation| evaluation.folder != folder) {
        found.evaluations.push(Evaluation::read(folder)?);
    }
    if folder.join("plan.json").is_file() && folder.join("tasks").is_dir() {
        found.sweeps.push(SweepFolder::at(folder)?);
    }
    if depth == DEEPEST {
        return Ok(());
    }
    for folder in subfolders(folder)? {
        search(&folder, depth + 1, found)?;
    }
    Ok(())
}

/// `runs/<dataset>/evaluation` of runs that were named by themselves.
fn add_evaluations_beside(found: &mut Found) -> Result<(), ReportError> {
    let names: Vec<String> = found.runs.iter().map(|run| run.name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut beside: Vec<PathBuf> = Vec::new();
    for run in &found.runs {
        let folder = run.folder.canonicalize().unwrap_or_else(|_| run.folder.clone());
        beside.extend(folder.ancestors().nth(2).map(|dataset| dataset.join(EVALUATION)));
    }
    beside.sort();
    beside.dedup();
    for folder in beside {
        let is_known = |evaluation: &Evaluation| evaluation.folder.canonicalize().is_ok_and(|known| known == folder);
        if !Evaluation::is_at(&folder) || found.evaluations.iter().any(is_known) {
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
