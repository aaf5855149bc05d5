//! What the executors of clusters have in common: they look at their jobs again and again until all tasks have ended.
//!
//! Jobs do the work and write their states into the sweep's folder; whoever attends to them may be killed and started again.

use std::path::{Path, PathBuf};
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

/// This program, which jobs run.
pub(super) fn program() -> Result<PathBuf, SweepError> {
    std::env::current_exe().map_err(SweepError::file(Path::new("kdgat"), "find this program"))
}

/// A path that is to stand in a script or a command line of a job.
///
/// # Errors
/// If a line break or another control character in it could begin a command of its own, or if it is no text.
pub(super) fn text_of_path(path: &Path) -> Result<&str, SweepError> {
    let refused = |what: &str| {
        Err(SweepError::Usage(format!(
            "{path:?}: {what} cannot stand in the script of a job; rename it, or name another folder with --output"
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

/// A text of the user as it may stand in a comment: on one line.
pub(super) fn on_one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

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
