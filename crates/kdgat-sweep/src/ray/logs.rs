//! Copies the logs of jobs while they run: `tail -f` of a task's `ray-1.log` follows its first job on whatever node it runs.
//!
//! A file has the same bytes as Ray's log of one job, so its length shows how much is missing, whichever process wrote it.
//! While the job runs, only whole lines are copied: Ray's log may end within a character.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::http::Server;
use crate::SweepError;

/// Interval at which the log of a running job is read: Ray returns the whole log each time.
const PAUSE: Duration = Duration::from_secs(2);

/// Copies the logs of jobs.
#[derive(Debug, Default)]
pub struct Logs {
    read: BTreeMap<String, Instant>,
    /// Jobs for which the warning about an unavailable log was shown.
    missing: BTreeSet<String>,
}

impl Logs {
    /// Appends new output of a job's log to its file in the task's folder. An unavailable log causes one warning and is
    /// requested again next time; it does not affect the job.
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
            None => Err(format!("the response has no `logs`: {answer}")),
        });
        match text {
            Ok(text) => append(&folder.join(file_name(job)), if ended { &text } else { whole_lines(&text) }),
            Err(said) => {
                if self.missing.insert(job.to_owned()) {
                    tracing::warn!("the log of job {job} is not available: {said}");
                }
                Ok(())
            }
        }
    }
}

/// Returns the file name of a job's log: `ray-3.log` for a task's third job.
fn file_name(job: &str) -> String {
    format!("ray-{}.log", job.rsplit('-').next().unwrap_or(job))
}

fn whole_lines(text: &str) -> &str {
    &text[..text.rfind('\n').map_or(0, |end| end + 1)]
}

/// Extends a file to hold `text`; it may already have the beginning.
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
                // The log of another job with the same name: the cluster was restarted.
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
