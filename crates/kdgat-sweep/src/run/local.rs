//! The local executor.
//!
//! ```text
//! until all tasks are settled
//!     handle tasks that have ended      (state, table)
//!     stop unpromising trials           (if the file has early stopping)
//!     start ready tasks                 (if unclaimed and a slot is free)
//! ```
//!
//! Several such processes may work on one folder: claims keep each task to one of them, and each reads the others' states.

use std::time::Duration;

use super::attempt::{Asked, Attempt, Grant};
use super::board::Board;
use super::promise;
use super::resources::Slots;
use super::view::View;
use crate::SweepError;
use crate::plan::Plan;
use crate::state::{Status, SweepFolder};
use kdgat_train::interrupt;

/// Interval at which the running tasks are polled.
const PAUSE: Duration = Duration::from_millis(20);

/// Way in which a sweep ended for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All tasks are done.
    Done,
    /// Some tasks have failed.
    Failed,
    /// Interrupted by a signal; the same command resumes.
    Interrupted,
    /// Cancelled by `kdgat sweep cancel`.
    Cancelled,
}

/// Works on a sweep until nothing is left to do.
///
/// # Errors
/// If a command cannot be started, or a file in the sweep's folder cannot be read or written. Tasks that run then are asked to save
/// and stop. A task that fails is no error: the sweep ends with [`Ended::Failed`].
pub fn run(folder: &SweepFolder, plan: &Plan, slots: &Slots) -> Result<Ended, SweepError> {
    let mut executor = Executor {
        folder,
        plan,
        board: Board::new(folder, plan)?,
        view: View::new(plan),
        running: Vec::new(),
        free: slots.grants.clone(),
        told_of_others: false,
    };
    let outcome = executor.work();
    if outcome.is_err() {
        // Asks running tasks to save, whatever the error.
        executor.stop_all();
    }
    executor.view.finish();
    outcome
}

struct Executor<'a> {
    folder: &'a SweepFolder,
    plan: &'a Plan,
    board: Board<'a>,
    view: View,
    running: Vec<(Attempt, Grant)>,
    free: Vec<Grant>,
    told_of_others: bool,
}

impl Executor<'_> {
    fn work(&mut self) -> Result<Ended, SweepError> {
        self.folder.write_table(self.plan)?;
        loop {
            self.take_ends()?;
            let cancelled = self.folder.is_cancelled();
            if interrupt::requested() || cancelled {
                self.stop_all();
                if self.running.is_empty() {
                    self.folder.write_table(self.plan)?;
                    return Ok(if cancelled { Ended::Cancelled } else { Ended::Interrupted });
                }
            } else {
                self.board.refresh()?;
                self.end_early()?;
                self.begin()?;
                if self.running.is_empty() && self.board.is_settled() {
                    self.folder.write_table(self.plan)?;
                    let failed = self.board.statuses().values().any(|status| !status.is_done());
                    return Ok(if failed { Ended::Failed } else { Ended::Done });
                }
                self.tell_of_others();
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn stop_all(&mut self) {
        self.running.iter_mut().for_each(|(attempt, _)| attempt.stop(Asked::Interrupted));
    }

    fn take_ends(&mut self) -> Result<(), SweepError> {
        let mut at = 0;
        while at < self.running.len() {
            let Some(state) = self.running[at].0.poll(self.folder, self.plan)? else {
                at += 1;
                continue;
            };
            let (attempt, grant) = self.running.remove(at);
            self.free.push(grant);
            self.view.ended(&attempt.task, &state);
            if state.status == Status::Failed {
                self.view.line(&format!("         log: {}", attempt.log().display()));
            }
            self.board.note(&attempt.task, state);
            // Releases the claim before the table is written, so that a waiting process loses no time.
            drop(attempt);
            self.folder.write_table(self.plan)?;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), SweepError> {
        for task in self.board.ready() {
            if self.free.is_empty() {
                break;
            }
            if self.running.iter().any(|(attempt, _)| attempt.task.id == task.id) {
                continue;
            }
            let Some(claim) = self.folder.claim(task)? else { continue };
            // Another process may have finished it since the board was read.
            let state = self.folder.state(task)?;
            if state.status.is_settled() {
                self.board.note(task, state);
                continue;
            }
            let Some(grant) = self.free.pop() else { break };
            match Attempt::start(self.folder, self.plan, task, claim, &grant)? {
                Some(attempt) => {
                    let state = self.folder.state(task)?;
                    self.view.started(task, state.attempts);
                    self.board.note(task, state);
                    self.running.push((attempt, grant));
                    self.folder.write_table(self.plan)?;
                }
                None => {
                    let state = self.folder.state(task)?;
                    self.view.ended(task, &state);
                    self.board.note(task, state);
                    self.free.push(grant);
                }
            }
        }
        let attempts: Vec<&Attempt> = self.running.iter().map(|(attempt, _)| attempt).collect();
        self.view.refresh(&attempts, &self.board.statuses());
        Ok(())
    }

    fn end_early(&mut self) -> Result<(), SweepError> {
        for (attempt, _) in &mut self.running {
            if let Some(reason) = promise::reason_to_end(self.folder, self.plan, &self.board, attempt)? {
                attempt.stop(Asked::Early(reason));
            }
        }
        Ok(())
    }

    /// Prints once that only tasks of other processes are left.
    fn tell_of_others(&mut self) {
        if self.running.is_empty() && !self.told_of_others {
            let waiting = self.board.ready().len();
            if waiting > 0 {
                self.view.line(&format!("waiting for {waiting} tasks that other processes work on"));
                self.told_of_others = true;
            }
        }
    }
}
