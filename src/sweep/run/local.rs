//! The local executor.
//!
//! ```text
//! until everything is settled
//!     take the ends of tasks            (state, table)
//!     end trials that promise little    (when the file says so)
//!     begin what is ready               (claimed by nobody, room for it)
//! ```
//!
//! Several such processes may work on one folder: claims keep them apart, and each sees what the others have done.

use std::time::Duration;

use super::attempt::{Asked, Attempt, Grant};
use super::board::Board;
use super::promise;
use super::resources::Slots;
use super::view::View;
use crate::interrupt;
use crate::sweep::SweepError;
use crate::sweep::plan::Plan;
use crate::sweep::state::{Status, SweepFolder};

/// Between two looks at the running tasks.
const PAUSE: Duration = Duration::from_millis(20);

/// How a sweep ended for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every trial is done.
    Done,
    /// Some trials have failed.
    Failed,
    /// A signal; the same command goes on.
    Interrupted,
    /// `kdgat sweep cancel`.
    Cancelled,
}

/// Works on a sweep until nothing is left to do.
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
        // Whatever went wrong, tasks that run are asked to save.
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
                self.view.line(&format!("         its log: {}", attempt.log().display()));
            }
            self.board.note(&attempt.task, state);
            // The claim is given back before the table is read, so that a waiting process loses no time.
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
            // Another process may have ended it since the board was read.
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

    /// Says once what is waited for when all that is left is with other processes.
    fn tell_of_others(&mut self) {
        if self.running.is_empty() && !self.told_of_others {
            let waiting = self.board.ready().len();
            if waiting > 0 {
                self.view.line(&format!("waiting for {waiting} tasks that other processes are at"));
                self.told_of_others = true;
            }
        }
    }
}
