//! Names of runs in tables and figures.

use std::fs;
use std::path::Path;

/// Name of a run, and of the group of runs that differ from it only in their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunName {
    /// Name of the group, for example `vgae_student_autoencoder`.
    pub group: String,
    /// Name of the run, for example `vgae_student_autoencoder/1`.
    pub name: String,
}

impl RunName {
    /// Name of the run in `folder`, which is a number in its group's folder, `tasks/STEP-DIGEST/run` of a pipeline or
    /// sweep, or a folder that the user named.
    pub fn of(folder: &Path) -> Self {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let (own, parent) = (last(&folder), folder.parent().map(last).unwrap_or_default());
        if own.parse::<u64>().is_ok() {
            return Self { name: format!("{parent}/{own}"), group: parent };
        }
        let name = match (own.as_str(), step_of(&parent)) {
            ("run", Some(step)) if !is_one_of_several(&folder, step) => step.to_owned(),
            ("run", Some(_)) => parent,
            _ => own,
        };
        Self { group: name.clone(), name }
    }
}

fn last(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Step of a task's folder `STEP-DIGEST`.
fn step_of(task: &str) -> Option<&str> {
    let (step, digest) = task.rsplit_once('-')?;
    (digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(step)
}

/// True if the pipeline or sweep has other tasks of the same step, with other settings.
fn is_one_of_several(run: &Path, step: &str) -> bool {
    let tasks = run.parent().and_then(Path::parent).and_then(|tasks| fs::read_dir(tasks).ok());
    let folders = tasks.into_iter().flatten().flatten();
    folders.filter(|entry| step_of(&entry.file_name().to_string_lossy()) == Some(step)).nth(1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_numbered_runs_tasks_and_users_folders() {
        let folder = tempfile::tempdir().unwrap();
        let named = |path: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(&path).unwrap();
            let RunName { group, name } = RunName::of(&path);
            (group, name)
        };
        let both = |name: &str| (name.to_owned(), name.to_owned());
        assert_eq!(named("sim/gat_student/3"), ("gat_student".to_owned(), "gat_student/3".to_owned()));
        assert_eq!(named("mine"), both("mine"));
        assert_eq!(named("tests/run"), both("run"));
        assert_eq!(named("tasks/gat-student-0123456789abcdef/run"), both("gat-student"));
        assert_eq!(named("tasks/gat-teacher-0123456789abcdef/run"), both("gat-teacher"));
        assert_eq!(named("tasks/gat-student-fedcba9876543210/run"), both("gat-student-fedcba9876543210"));
        assert_eq!(named("tasks/gat-student-0123456789abcdef/run"), both("gat-student-0123456789abcdef"));
    }
}
