//! Logs of jobs, copied while they grow: `tail -f` of a task's `ray-1.log` follows its first job wherever it runs.
//!
//! A file holds what Ray has of one job, byte for byte, so its length tells what is missing, whoever wrote it. As long as
//! the job runs only whole lines are copied: Ray may have half a letter at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::http::Server;
use crate::sweep::SweepError;

/// Between two looks at the log of a running job: Ray gives all of it each time.
const PAUSE: Duration = Duration::from_secs(2);

/// Copies logs.
#[derive(Debug, Default)]
pub struct Logs {
    read: BTreeMap<String, Instant>,
    /// Jobs of whose log it was told that it cannot be had.
    missing: BTreeSet<String>,
}

impl Logs {
    /// Appends what is new of a job's log to its file in the task's folder. A log that cannot be had is told once, and asked
    /// for again the next time: it is no reason to leave the job alone.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn copy(&mut self, server: &Server, job: &str, folder: &Path, ended: bool) -> Result<(), SweepError> {
        if !ended && self.read.get(job).is_some_and(|read| read.elapsed() < PAUSE) {
            return Ok(());
        }
        self.read.insert(job.to_owned(), Instant::now());
        let answer = server.call("GET", &format!("/api/jobs/{job}/logs"), None);
        let text = answer.and_then(|answer| match answer["logs"].as_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(format!("the answer has no `logs`: {answer}")),
        });
        match text {
            Ok(text) => append(&folder.join(file_name(job)), if ended { &text } else { whole_lines(&text) }),
            Err(said) => {
                if self.missing.insert(job.to_owned()) {
                    tracing::warn!("the log of job {job} cannot be had: {said}");
                }
                Ok(())
            }
        }
    }
}

/// `ray-3.log` of a task's third job.
fn file_name(job: &str) -> String {
    format!("ray-{}.log", job.rsplit('-').next().unwrap_or(job))
}

fn whole_lines(text: &str) -> &str {
    &text[..text.rfind('\n').map_or(0, |end| end + 1)]
}

/// Makes the file hold `text`, of which it may hold the beginning already.
fn append(path: &Path, text: &str) -> Result<(), SweepError> {
    let write = || {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
        let there = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        match text.as_bytes().get(there..) {
            Some(new) => file.write_all(new),
            None => {
                // Of another job that had the same name: the cluster was begun anew.
                file.set_len(0)?;
                file.rewind()?;
                file.write_all(text.as_bytes())
            }
        }
    };
    write().map_err(SweepError::file(path, "write the log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_what_there_is_of_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("task").join(file_name("kdgat-1-student-ab-12"));
        assert!(path.ends_with("ray-12.log"));
        let mut all = String::new();
        for piece in ["one\ntw", "o\n", "", "d\u{e9}but\nlast"] {
            all += piece;
            append(&path, whole_lines(&all)).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), whole_lines(&all));
        }
        append(&path, &all).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), all);
        append(&path, "new\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new\n");
    }
}
