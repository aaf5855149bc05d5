//! Slurm's programs: submit, look, cancel.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::sweep::SweepError;

/// An element of a job array: `123_4`.
pub type JobId = String;

/// Submits a script after all of `after` have ended, however they did. Returns the array's number.
pub fn submit(script: &str, after: &[JobId]) -> Result<String, SweepError> {
    let mut arguments = vec!["--parsable".to_owned()];
    if !after.is_empty() {
        arguments.push(format!("--dependency=afterany:{}", after.join(":")));
    }
    let said = call("sbatch", &arguments, Some(script))?;
    // With several clusters the cluster's name follows.
    let number = said.trim().split(';').next().unwrap_or_default().to_owned();
    match number.parse::<u64>() {
        Ok(_) => Ok(number),
        Err(_) => Err(SweepError::Batch {
            command: "sbatch".to_owned(),
            said: format!("expected a job's number, got {said:?}"),
        }),
    }
}

/// All jobs of this user that are waiting or running, with their states (`PENDING`, `RUNNING`, ...).
pub fn jobs() -> Result<BTreeMap<JobId, String>, SweepError> {
    let arguments = ["--noheader", "--array", "--me", "--states=all", "--format=%i %T"].map(str::to_owned);
    let said = call("squeue", &arguments, None)?;
    let pair = |line: &str| line.split_once(' ').map(|(job, state)| (job.to_owned(), state.trim().to_owned()));
    Ok(said.lines().filter_map(pair).collect())
}

/// Ends jobs; those that have ended are no error.
pub fn cancel(jobs: &[JobId]) -> Result<(), SweepError> {
    if jobs.is_empty() {
        return Ok(());
    }
    let arguments: Vec<String> =
        ["--full", "--quiet"].iter().map(|&flag| flag.to_owned()).chain(jobs.iter().cloned()).collect();
    call("scancel", &arguments, None).map(drop)
}

/// Whether a state of `squeue --states=all` means that a job will not run on by itself.
pub fn has_ended(state: &str) -> bool {
    const ENDED: [&str; 9] = [
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "OUT_OF_MEMORY",
        "NODE_FAIL",
        "BOOT_FAIL",
        "DEADLINE",
        "REVOKED",
    ];
    ENDED.contains(&state)
}

fn call(program: &str, arguments: &[String], input: Option<&str>) -> Result<String, SweepError> {
    let command = format!("{program} {}", arguments.join(" "));
    let failed = |said: String| SweepError::Batch { command: command.clone(), said };
    let io = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            failed("it is not installed here; run this on a machine that submits to Slurm".to_owned())
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
