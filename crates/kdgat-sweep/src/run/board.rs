//! Known states of all tasks, and which of them are ready.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::SweepError;
use crate::plan::{Plan, Task};
use crate::state::{Status, SweepFolder, TaskState, settled};

/// Interval at which the states that other processes write are read.
const REFRESH: Duration = Duration::from_millis(300);

/// States of all tasks.
pub struct Board<'a> {
    folder: &'a SweepFolder,
    plan: &'a Plan,
    states: BTreeMap<&'a str, TaskState>,
    read: Instant,
}

impl<'a> Board<'a> {
    pub fn new(folder: &'a SweepFolder, plan: &'a Plan) -> Result<Self, SweepError> {
        let mut board = Self { folder, plan, states: BTreeMap::new(), read: Instant::now() };
        board.read_all()?;
        Ok(board)
    }

    /// Reads the states that other processes have written, at most once per [`REFRESH`].
    pub fn refresh(&mut self) -> Result<(), SweepError> {
        if self.read.elapsed() >= REFRESH { self.read_all() } else { Ok(()) }
    }

    fn read_all(&mut self) -> Result<(), SweepError> {
        for task in &self.plan.tasks {
            if !self.states.get(task.id.as_str()).is_some_and(|state| state.status.is_settled()) {
                self.states.insert(&task.id, self.folder.state(task)?);
            }
        }
        self.read = Instant::now();
        Ok(())
    }

    /// Records a state that this process has written.
    pub fn note(&mut self, task: &Task, state: TaskState) {
        if let Some(known) = self.plan.task(&task.id) {
            self.states.insert(&known.id, state);
        }
    }

    pub fn state(&self, id: &str) -> Option<&TaskState> {
        self.states.get(id)
    }

    /// Returns the status of each task by ID, with blocked tasks as such.
    pub fn statuses(&self) -> BTreeMap<&'a str, Status> {
        let mut statuses: BTreeMap<&str, Status> = BTreeMap::new();
        for task in &self.plan.tasks {
            let own = |id: &str| {
                statuses
                    .get(id)
                    .copied()
                    .unwrap_or_else(|| self.states.get(id).map_or(Status::Waiting, |state| state.status))
            };
            let status = settled(task, &own);
            statuses.insert(&task.id, status);
        }
        statuses
    }

    /// Returns tasks that are not settled and whose needed tasks are all done, in the order of the plan.
    pub fn ready(&self) -> Vec<&'a Task> {
        let statuses = self.statuses();
        let status = |id: &str| statuses.get(id).copied().unwrap_or_default();
        let open = |task: &&Task| !status(&task.id).is_settled() && status(&task.id) != Status::Blocked;
        let begins = |task: &&Task| task.needs.iter().all(|need| status(need).is_done());
        self.plan.tasks.iter().filter(open).filter(begins).collect()
    }

    /// True if no task is left that can still run.
    pub fn is_settled(&self) -> bool {
        self.statuses().values().all(|status| status.is_settled() || *status == Status::Blocked)
    }
}
