//! One task, worked on to its end: what a job of a batch system runs.

use std::time::Duration;

use super::attempt::{Asked, Attempt, Grant};
use super::board::Board;
use super::promise;
use super::view::end_line;
use crate::interrupt;
use crate::sweep::SweepError;
use crate::sweep::plan::{Plan, Task};
use crate::sweep::state::{Status, SweepFolder};

const PAUSE: Duration = Duration::from_millis(50);

/// How the task stands after the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, or stopped early.
    Done,
    /// Saved; it has to be started again.
    PutOff,
    /// It failed for good.
    Failed,
    /// It needs something that is not done, or another process is at it.
    NotNow,
}

/// Works on a task.
pub fn work_on(folder: &SweepFolder, plan: &Plan, task: &Task, grant: &Grant) -> Result<Outcome, SweepError> {
    let mut board = Board::new(folder, plan)?;
    let statuses = board.statuses();
    if statuses.get(task.id.as_str()).is_some_and(|status| status.is_done()) {
        return Ok(Outcome::Done);
    }
    if !board.ready().iter().any(|ready| ready.id == task.id) {
        eprintln!("{} {}: something that it needs is not done", task.step, task.label);
        return Ok(Outcome::NotNow);
    }
    let Some(claim) = folder.claim(task)? else {
        eprintln!("{} {}: another process is at it", task.step, task.label);
        return Ok(Outcome::NotNow);
    };
    let Some(mut attempt) = Attempt::start(folder, plan, task, claim, grant)? else {
        folder.write_table(plan)?;
        return Ok(Outcome::Done);
    };
    folder.write_table(plan)?;
    let state = loop {
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
    drop(attempt);
    eprintln!("{}", end_line(&plan.metric, task, &state));
    folder.write_table(plan)?;
    Ok(match state.status {
        status if status.is_done() => Outcome::Done,
        Status::Failed => Outcome::Failed,
        _ => Outcome::PutOff,
    })
}
