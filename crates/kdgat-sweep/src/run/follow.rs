//! Follows tasks that other processes run: prints one line for each task that starts or ends.

use std::collections::BTreeMap;

use super::board::Board;
use super::local::Ended;
use super::view::View;
use crate::SweepError;
use crate::plan::Plan;
use crate::state::{Status, SweepFolder};

/// Shows the progress of a sweep whose tasks run in a batch system.
pub struct Follower<'a> {
    plan: &'a Plan,
    view: View,
    shown: BTreeMap<&'a str, Status>,
}

impl<'a> Follower<'a> {
    pub fn new(plan: &'a Plan) -> Self {
        Self { plan, view: View::new(plan), shown: BTreeMap::new() }
    }

    /// Prints a permanent line.
    pub fn line(&self, text: &str) {
        self.view.line(text);
    }

    /// Shows changes; returns how the sweep ended once all tasks are settled.
    pub fn follow(&mut self, folder: &SweepFolder, board: &Board<'a>) -> Result<Option<Ended>, SweepError> {
        for (id, status) in board.statuses() {
            let (Some(task), Some(state)) = (self.plan.task(id), board.state(id)) else { continue };
            if self.shown.insert(id, status) != Some(status) {
                match status {
                    Status::Running => self.view.started(task, state.attempts),
                    status if status.is_settled() => self.view.ended(task, state),
                    _ => {}
                }
            }
        }
        if !board.is_settled() {
            return Ok(None);
        }
        self.view.finish();
        folder.write_table(self.plan)?;
        let failed = board.statuses().values().any(|status| !status.is_done());
        Ok(Some(if failed { Ended::Failed } else { Ended::Done }))
    }

    /// Tells the user that the jobs continue without this process.
    pub fn leave(&self) -> Ended {
        self.line("the jobs continue; run the same command again to follow them, or `kdgat sweep cancel` to end them");
        Ended::Interrupted
    }
}
