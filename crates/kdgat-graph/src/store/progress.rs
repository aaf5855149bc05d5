//! What a build tells while it runs.

use std::path::Path;
use std::time::Duration;

use kdgat_can::ReadReport;

use super::duplicates::Duplicates;

/// Something happened in a build.
#[derive(Debug)]
pub enum Event<'a> {
    /// There is no store that tells the checksums of the logs: all are read for them.
    Hashing { files: usize, bytes: u64 },
    /// Another process builds the same store; this one waits for it.
    Waiting { lock: &'a Path },
    /// There is a store, but it cannot be used.
    Rebuilding { reason: &'a str },
    /// Reading begins.
    Started { files: usize, bytes: u64 },
    /// A build that was killed goes on: so many graphs are there already.
    Resuming { units: usize, graphs: u64 },
    /// So many more frames were read; comes often, from several threads.
    Frames { count: u64 },
    /// A file was read to its end.
    FileDone { folder: &'a str, name: &'a str, bytes: u64, report: &'a ReadReport },
    /// All logs are read.
    Stages(StageTimes),
    /// All graphs are written; their checksums are compared and the vocabulary is collected.
    Checking { graphs: u64 },
    /// The checksums are right, and this is in two splits.
    Checked { duplicates: &'a Duplicates },
    /// The store has its name.
    Finished { folder: &'a Path, graphs: u64, bytes: u64 },
}

/// Time that the threads of a build spent on each of its stages, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Reading logs from the disk, and decompressing.
    pub read: Duration,
    /// Rows to frames.
    pub parse: Duration,
    /// Frames to windows.
    pub window: Duration,
    /// Windows to nodes, edges and their features.
    pub features: Duration,
    /// Graphs to shards, with their checksums.
    pub write: Duration,
    /// Checksums of the logs.
    pub checksum: Duration,
}

impl std::ops::AddAssign for StageTimes {
    fn add_assign(&mut self, other: Self) {
        self.read += other.read;
        self.parse += other.parse;
        self.window += other.window;
        self.features += other.features;
        self.write += other.write;
        self.checksum += other.checksum;
    }
}

/// Listens to a build. `&()` does not listen.
pub trait Progress: Sync {
    /// Called from the threads of the build: should return soon.
    fn report(&self, event: &Event<'_>);
}

impl Progress for () {
    fn report(&self, _event: &Event<'_>) {}
}
