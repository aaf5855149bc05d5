//! What the executors of clusters have in common: they look at their jobs again and again until all tasks have ended.
//!
//! Jobs do the work and write their states into the sweep's folder; whoever attends to them may be killed and started again.

use std::time::{Duration, Instant};

use super::SweepError;
use super::run::{Board, Ended, Follower};
use super::state::SweepFolder;
use crate::interrupt;

/// Between two looks at the jobs.
const PAUSE: Duration = Duration::from_secs(1);
/// A cluster that does not answer is waited for so long.
const PATIENCE: Duration = Duration::from_secs(600);
/// Times that a task is submitted again after its job went without a trace.
pub(super) const LOST: u32 = 5;

/// Jobs on a cluster.
pub(super) trait Cluster<'a> {
    /// The folder, the states of its tasks, and who tells the user of them.
    fn parts(&mut self) -> (&'a SweepFolder, &mut Board<'a>, &mut Follower<'a>);

    /// One look at the jobs, and what follows from it: those that have ended are noticed, open tasks submitted.
    fn look(&mut self) -> Result<(), SweepError>;

    /// Ends all jobs.
    fn cancel(&mut self) -> Result<(), SweepError>;
}

/// Attends to the jobs until nothing is left to do.
///
/// # Errors
/// What the cluster says the first time that it refuses something, and what it keeps saying later.
pub(super) fn attend<'a>(cluster: &mut impl Cluster<'a>) -> Result<Ended, SweepError> {
    let mut answered: Option<Instant> = None;
    loop {
        let (folder, board, follower) = cluster.parts();
        board.refresh()?;
        if let Some(ended) = follower.follow(folder, board)? {
            return Ok(ended);
        }
        if folder.is_cancelled() {
            cluster.cancel()?;
            return Ok(Ended::Cancelled);
        }
        if interrupt::requested() {
            return Ok(follower.leave());
        }
        match cluster.look() {
            Ok(()) => answered = Some(Instant::now()),
            // It may be restarted; jobs run on meanwhile. What is wrong from the start is not mended by waiting.
            Err(error @ SweepError::Batch { .. }) => match answered {
                Some(answered) if answered.elapsed() <= PATIENCE => tracing::warn!("{error}"),
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        }
        std::thread::sleep(PAUSE);
    }
}
