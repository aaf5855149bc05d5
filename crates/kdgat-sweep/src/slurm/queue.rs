//! Calls of Slurm's programs: `sbatch`, `squeue`, `scancel`.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::SweepError;

/// ID of an element of a job array: `123_4`.
pub type JobId = String;

/// Submits a script that starts once all jobs of `after` have ended, successful or not. Returns the array's number.
pub fn submit(script: &str, after: &[JobId]) -> Result<String, SweepError> {
    let mut arguments = vec!["--parsable".to_owned()];
    if !after.is_empty() {
        arguments.push(format!("--dependency=afterany:{}", after.join(":")));
    }
    let said = call("sbatch", &arguments, Some(script))?;
    // With several clusters, the cluster's name follows the number.
    let number = said.trim().split(';').next().unwrap_or_default().to_owned();
    match number.parse::<u64>() {
        Ok(_) => Ok(number),
        Err(_) => Err(SweepError::Batch {
            command: "sbatch".to_owned(),
            said: format!("expected a job number, got {said:?}"),
        }),
    }
}

/// State of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobState {
    /// `PENDING`, `RUNNING`, ...
    pub name: String,
    /// Exit code of its script; 128 plus the signal number if a signal ended it.
    pub exit_code: i32,
}

impl JobState {
    /// True if the job is over.
    pub fn has_ended(&self) -> bool {
        ENDED.contains(&self.name.as_str())
    }

    /// True if it was killed because memory ran out. Slurm reports that if it limits memory itself; if the kernel does, the
    /// script ends with signal 9 and Slurm does not know the reason.
    pub fn is_out_of_memory(&self) -> bool {
        const KILLED: i32 = 128 + 9;
        self.name == "OUT_OF_MEMORY" || (self.name == "FAILED" && self.exit_code == KILLED)
    }
}

const ENDED: [&str; 9] =
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "REVOKED"];

/// Lists all jobs of this user that Slurm still knows.
pub fn jobs() -> Result<BTreeMap<JobId, JobState>, SweepError> {
    let format = "--Format=JobArrayID:64,State:32,exit_code:32";
    let arguments = ["--noheader", "--array", "--me", "--states=all", format].map(str::to_owned);
    let said = call("squeue", &arguments, None)?;
    Ok(said.lines().filter_map(parse).collect())
}

/// Parses a line of `squeue`: job, state, and exit status of its script.
fn parse(line: &str) -> Option<(JobId, JobState)> {
    let mut words = line.split_whitespace();
    let (job, name, status) = (words.next()?, words.next()?, words.next()?);
    let exit_code = match status.split_once(':') {
        // Exit code and signal number.
        Some((code, signal)) => match signal.parse().ok()? {
            0 => code.parse().ok()?,
            signal => 128 + signal,
        },
        // Status as wait(2) encodes it.
        None => match status.parse::<i32>().ok()? {
            status if status & 0x7f != 0 => 128 + (status & 0x7f),
            status => status >> 8,
        },
    };
    Some((job.to_owned(), JobState { name: name.to_owned(), exit_code }))
}

/// Cancels jobs; jobs that have already ended are not an error.
pub fn cancel(jobs: &[JobId]) -> Result<(), SweepError> {
    if jobs.is_empty() {
        return Ok(());
    }
    let arguments: Vec<String> =
        ["--full", "--quiet"].iter().map(|&flag| flag.to_owned()).chain(jobs.iter().cloned()).collect();
    call("scancel", &arguments, None).map(drop)
}

fn call(program: &str, arguments: &[String], input: Option<&str>) -> Result<String, SweepError> {
    let command = format!("{program} {}", arguments.join(" "));
    let failed = |said: String| SweepError::Batch { command: command.clone(), said };
    let io = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            failed("it is not installed here; run kdgat on a machine that can submit to Slurm".to_owned())
        }
        _ => failed(error.to_string()),
    };
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io)?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(text.as_bytes()).map_err(io)?;
    }
    let output = child.wait_with_output().map_err(io)?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_killed_for_memory_are_recognised() {
        let killed = |line: &str| parse(line).unwrap().1.is_out_of_memory();
        assert!(killed("7_3        FAILED     35072   "), "exit code 137");
        assert!(killed("7_3        FAILED     9   "), "signal 9");
        assert!(killed("7_3        FAILED     137:0   ") && killed("7_3   FAILED   0:9"));
        assert!(killed("7_3        OUT_OF_MEMORY     0   "));
        assert!(!killed("7_3        FAILED     256") && !killed("7_3  CANCELLED  9") && !killed("7_3  TIMEOUT 0:9"));
        let (job, state) = parse("12_40     RUNNING    0").unwrap();
        assert_eq!((job.as_str(), state.has_ended()), ("12_40", false));
        assert_eq!(parse(""), None);
    }
}
