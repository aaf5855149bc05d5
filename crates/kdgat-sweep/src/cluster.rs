//! Code that the cluster executors (Slurm and Ray) share: polls the jobs until all tasks have ended.
//!
//! Jobs do the work and write their task's state into the sweep's folder. The polling process may be killed and restarted.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::SweepError;
use super::run::{Board, Ended, Follower};
use super::state::SweepFolder;
use kdgat_train::interrupt;

/// Interval at which jobs are polled.
const PAUSE: Duration = Duration::from_secs(1);
/// Time that an unresponsive cluster is given before the sweep fails.
const PATIENCE: Duration = Duration::from_secs(600);
/// Maximum number of resubmissions of a task whose job disappeared without a result.
pub(super) const LOST: u32 = 5;

/// Path of this executable, which jobs run.
pub(super) fn program() -> Result<PathBuf, SweepError> {
    std::env::current_exe().map_err(SweepError::file(Path::new("kdgat"), "find this program"))
}

/// Returns a path as text that is safe in a job's script or command line.
///
/// # Errors
/// If the path is not UTF-8, or contains a line break or another control character, which could start a command of its own.
pub(super) fn text_of_path(path: &Path) -> Result<&str, SweepError> {
    let refused = |what: &str| {
        Err(SweepError::Usage(format!(
            "{path:?}: {what} cannot be used in a job script; rename it, or choose another folder with --output"
        )))
    };
    match path.to_str() {
        None => refused("a path that is not UTF-8"),
        Some(text) if text.contains(char::is_control) => {
            refused("a path with a control character, such as a line break,")
        }
        Some(text) => Ok(text),
    }
}

/// Puts a user's text on one line, so that it is safe in a comment.
pub(super) fn on_one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Jobs on a cluster.
pub(super) trait Cluster<'a> {
    /// Returns the sweep's folder, the states of its tasks, and the follower that reports them to the user.
    fn parts(&mut self) -> (&'a SweepFolder, &mut Board<'a>, &mut Follower<'a>);

    /// Polls the jobs once: handles those that have ended and submits open tasks.
    fn look(&mut self) -> Result<(), SweepError>;

    /// Cancels all jobs.
    fn cancel(&mut self) -> Result<(), SweepError>;
}

/// Polls the jobs until nothing is left to do.
///
/// # Errors
/// The cluster's error, if the first poll fails or if polls have failed for [`PATIENCE`].
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
            // The cluster may be restarting while its jobs run on. Waiting does not help if it never answered.
            Err(error @ SweepError::Batch { .. }) => match answered {
                Some(answered) if answered.elapsed() <= PATIENCE => tracing::warn!("{error}"),
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn no_path_breaks_a_line() {
        assert_eq!(text_of_path(Path::new("/my data/50%/d\u{e9}but")).unwrap(), "/my data/50%/d\u{e9}but");
        for path in ["/a\nb", "/a\rb", "/a\tb", "/a\u{1b}[0m", "/a\u{85}b"] {
            let said = text_of_path(Path::new(path)).unwrap_err().to_string();
            assert!(said.contains("control character") && !said.contains(path), "{said}");
        }
        let said = text_of_path(Path::new(OsStr::from_bytes(b"/a\xff"))).unwrap_err().to_string();
        assert!(said.contains("not UTF-8"), "{said}");
    }
}
