//! Events of a build, for progress reports.

use std::path::Path;
use std::time::Duration;

use kdgat_can::ReadReport;

use super::duplicates::Duplicates;

/// An event of a build.
#[derive(Debug)]
pub enum Event<'a> {
    /// No store has the checksums of the logs, so all logs are read for them.
    Hashing {
        /// Number of logs.
        files: usize,
        /// Size of all logs in bytes.
        bytes: u64,
    },
    /// Another process is building the same store; this one waits for it.
    Waiting {
        /// The lock file.
        lock: &'a Path,
    },
    /// The existing store cannot be used.
    Rebuilding {
        /// The reason.
        reason: &'a str,
    },
    /// Reading starts.
    Started {
        /// Number of logs.
        files: usize,
        /// Size of these logs in bytes.
        bytes: u64,
    },
    /// A build that was killed is resumed.
    Resuming {
        /// Number of finished units.
        units: usize,
        /// Number of graphs already written.
        graphs: u64,
    },
    /// More frames were read; reported often, from several threads.
    Frames {
        /// Number of these frames.
        count: u64,
    },
    /// A log was read to its end.
    FileDone {
        /// The log's folder in the dataset.
        folder: &'a str,
        /// The log's file name.
        name: &'a str,
        /// Size of the log in bytes.
        bytes: u64,
        /// Counts of the log.
        report: &'a ReadReport,
    },
    /// All logs have been read.
    Stages(StageTimes),
    /// All graphs have been written; now checksums are compared and the vocabulary is collected.
    Checking {
        /// Number of graphs.
        graphs: u64,
    },
    /// The checksums are correct.
    Checked {
        /// Graphs that are in two splits.
        duplicates: &'a Duplicates,
    },
    /// A fact about the source that may surprise.
    Note {
        /// The fact, as a line without an end.
        text: &'a str,
    },
    /// The store is complete and in its place.
    Finished {
        /// The store's folder.
        folder: &'a Path,
        /// Number of graphs.
        graphs: u64,
        /// Size of all shards in bytes.
        bytes: u64,
    },
}

/// Time spent on each stage of a build, summed over its threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Reading logs from the disk and decompressing them.
    pub read: Duration,
    /// Parsing rows into frames.
    pub parse: Duration,
    /// Cutting frames into windows.
    pub window: Duration,
    /// Computing nodes, edges and features of windows.
    pub features: Duration,
    /// Writing shards with their checksums.
    pub write: Duration,
    /// Computing checksums of the logs.
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

/// Receiver of a build's events. `&()` ignores them.
pub trait Progress: Sync {
    /// Handles an event; called from the threads of the build, so it should return quickly.
    fn report(&self, event: &Event<'_>);
}

impl Progress for () {
    fn report(&self, _event: &Event<'_>) {}
}
