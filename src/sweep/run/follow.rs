//! Following work that other processes do: one line for each task that begins or ends.

use std::collections::BTreeMap;

use super::board::Board;
use super::local::Ended;
use super::view::View;
use crate::sweep::SweepError;
use crate::sweep::plan::Plan;
use crate::sweep::state::{Status, SweepFolder};

/// What has been shown of a sweep whose tasks are with a batch system.
pub struct Follower<'a> {
    plan: &'a Plan,
    view: View,
    shown: BTreeMap<&'a str, Status>,
}

impl<'a> Follower<'a> {
    pub fn new(plan: &'a Plan) -> Self {
        Self { plan, view: View::new(plan), shown: BTreeMap::new() }
    }

    /// A line that stays.
    pub fn line(&self, text: &str) {
        self.view.line(text);
    }

    /// Shows what has changed; says how the sweep ended once everything is settled.
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

    /// The jobs go on without this process.
    pub fn leave(&self) -> Ended {
        self.line("the jobs go on; the same command looks after them again, `kdgat sweep cancel` ends them");
        Ended::Interrupted
    }
}
