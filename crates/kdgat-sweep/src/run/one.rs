//! Runs a single task to its end, for a job of a batch system.

use std::io::Write;
use std::time::Duration;

use super::attempt::{Asked, Attempt, Grant};
use super::board::Board;
use super::promise;
use super::view::end_line;
use crate::SweepError;
use crate::plan::{Plan, Task};
use crate::state::{Claim, Status, SweepFolder};
use kdgat_train::interrupt;

const PAUSE: Duration = Duration::from_millis(50);
/// Attempts to claim a task before another process is assumed to work on it.
const LOOKS: u32 = 3;

/// Outcome of an attempt at a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, or stopped early.
    Done,
    /// Saved; it must be restarted.
    PutOff,
    /// It must be restarted by a job with more memory; a requeued job would get the same.
    TooLarge,
    /// Failed, without further retries.
    Failed,
    /// Not started: a task that it needs is not done, or another process works on it.
    NotNow,
}

/// Runs a task once, unless it is done, not ready, or claimed by another process.
///
/// # Errors
/// If the command cannot be started, or a file in the sweep's folder cannot be read or written.
pub fn work_on(folder: &SweepFolder, plan: &Plan, task: &Task, grant: &Grant) -> Result<Outcome, SweepError> {
    work_by(Board::new(folder, plan)?, folder, plan, task, grant)
}

fn work_by(
    mut board: Board,
    folder: &SweepFolder,
    plan: &Plan,
    task: &Task,
    grant: &Grant,
) -> Result<Outcome, SweepError> {
    let statuses = board.statuses();
    if statuses.get(task.id.as_str()).is_some_and(|status| status.is_done()) {
        return Ok(Outcome::Done);
    }
    if !board.ready().iter().any(|ready| ready.id == task.id) {
        eprintln!("{} {}: a task that it needs is not done", task.step, task.label);
        return Ok(Outcome::NotNow);
    }
    let Some(claim) = claim(folder, task)? else {
        eprintln!("{} {}: another process works on it", task.step, task.label);
        return Ok(Outcome::NotNow);
    };
    // Another process may have finished it since the board was read.
    let growths = match folder.state(task)? {
        state if state.status.is_done() => return Ok(Outcome::Done),
        state if state.status.is_settled() => return Ok(Outcome::Failed),
        state => state.growths,
    };
    let Some(mut attempt) = Attempt::start(folder, plan, task, claim, grant)? else {
        folder.write_table(plan)?;
        return Ok(Outcome::Done);
    };
    folder.write_table(plan)?;
    let state = loop {
        pass_on(&mut attempt)?;
        if let Some(state) = attempt.poll(folder, plan)? {
            break state;
        }
        if interrupt::requested() || folder.is_cancelled() {
            attempt.stop(Asked::Interrupted);
        } else if let Some(reason) = promise::reason_to_end(folder, plan, &board, &attempt)? {
            attempt.stop(Asked::Early(reason));
        }
        board.refresh()?;
        std::thread::sleep(PAUSE);
    };
    pass_on(&mut attempt)?;
    drop(attempt);
    eprintln!("{}", end_line(&plan.metric, task, &state));
    folder.write_table(plan)?;
    Ok(match state.status {
        status if status.is_done() => Outcome::Done,
        Status::Failed => Outcome::Failed,
        _ if state.growths > growths => Outcome::TooLarge,
        _ => Outcome::PutOff,
    })
}

/// Claims a task; `None` if another process works on it. Retries a few times, since a process that only checks the claim holds
/// it briefly too.
fn claim(folder: &SweepFolder, task: &Task) -> Result<Option<Claim>, SweepError> {
    for _ in 1..LOOKS {
        if let Some(claim) = folder.claim(task)? {
            return Ok(Some(claim));
        }
        std::thread::sleep(PAUSE);
    }
    folder.claim(task)
}

/// Copies new output of the task to standard error, which is the job's log.
fn pass_on(attempt: &mut Attempt) -> Result<(), SweepError> {
    let bytes = attempt.new_output()?;
    // A closed standard error must not end the task.
    let _ = std::io::stderr().write_all(&bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts;
    use crate::plan::JobsFile;
    use crate::state::TaskState;
    use kdgat_config::Config;

    #[test]
    fn what_another_process_has_ended_meanwhile_is_not_done_again() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = SweepFolder::at(temporary.path()).unwrap();
        let plan = parts::plan("store", &Config::default(), 2, &JobsFile::default());
        let grant = Grant { threads: 1, memory_bytes: None, gpu: None, gpu_memory_bytes: None, may_grow: false };
        for (task, (status, outcome)) in
            plan.tasks.iter().zip([(Status::Done, Outcome::Done), (Status::Failed, Outcome::Failed)])
        {
            // Several boards, as a process that another test starts may hold the claim briefly.
            let boards: Vec<Board> = (0..50).map(|_| Board::new(&folder, &plan).unwrap()).collect();
            let ended = TaskState { status, attempts: 1, ..TaskState::default() };
            folder.claim(task).unwrap().unwrap().write(&ended).unwrap();
            let works = |board| {
                std::thread::sleep(PAUSE / 10);
                work_by(board, &folder, &plan, task, &grant).unwrap()
            };
            let mut outcomes = boards.into_iter().map(works);
            assert_eq!(outcomes.find(|outcome| *outcome != Outcome::NotNow), Some(outcome));
            assert_eq!(folder.state(task).unwrap(), ended, "it was started again");
        }
    }
}
