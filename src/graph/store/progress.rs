//! What a build tells while it runs.

use std::path::Path;

use crate::can::ReadReport;

/// Something happened in a build.
#[derive(Debug)]
pub enum Event<'a> {
    /// Another process builds the same store; this one waits for it.
    Waiting { lock: &'a Path },
    /// There is a store, but it cannot be used.
    Rebuilding { reason: &'a str },
    /// Reading begins.
    Started { files: usize, bytes: u64 },
    /// So many more frames were read; comes often, from several threads.
    Frames { count: u64 },
    /// A file was read to its end.
    FileDone { folder: &'a str, name: &'a str, bytes: u64, report: &'a ReadReport },
    /// All graphs are written; their checksums are compared and the vocabulary is collected.
    Checking { graphs: u64 },
    /// The store has its name.
    Finished { folder: &'a Path, graphs: u64, bytes: u64 },
}

/// Listens to a build. `&()` does not listen.
pub trait Progress: Sync {
    /// Called from the threads of the build: should return soon.
    fn report(&self, event: &Event<'_>);
}

impl Progress for () {
    fn report(&self, _event: &Event<'_>) {}
}
