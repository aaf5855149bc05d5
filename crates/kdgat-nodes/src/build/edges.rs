//! Sorts buckets of edges and appends them to a store: pointers of the targets, and the sources of their edges.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::buckets::{FileBuckets, distribute};
use super::work::Work;
use super::{Build, Drawn, Edges, Event, GraphStream, Step, padded};
use crate::NodesError;

/// Bytes written at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// Edges that are sorted in less time than a thread needs to start.
const FEW: usize = 1 << 13;

/// The edges of a range of targets. A key is an edge: the target in its upper half, the source in its lower one.
pub(crate) struct Bucket {
    /// The targets.
    pub targets: Range<u64>,
    /// The edges, in any order, with repetitions, without self-loops.
    pub keys: Vec<u64>,
}

/// All edges as buckets.
pub(crate) trait Buckets {
    /// The next buckets, in order, which together fit the memory; `None` at the end.
    fn next(&mut self, work: &mut Work, build: &Build<'_>) -> Result<Option<Vec<Bucket>>, NodesError>;
}

/// The edge as a key.
pub(crate) fn key(source: u32, target: u32) -> u64 {
    u64::from(target) << 32 | u64::from(source)
}

/// Bytes of both arrays of edges in the store.
pub fn bytes(nodes: usize, edges: u64) -> u64 {
    padded(8 * (nodes as u64 + 1)) + padded(4 * edges)
}

/// Writes the edges that are not in the store yet.
pub fn build(stream: &dyn GraphStream, work: &mut Work, header: u64, build: &Build<'_>) -> Result<(), NodesError> {
    let nodes = stream.sizes().nodes as u64;
    let from = work.journal.targets_written;
    if from == nodes {
        return Ok(());
    }
    if from > 0 {
        build.progress.report(&Event::Resuming { step: Step::Sort });
    }
    let mut buckets = match stream.edges() {
        Edges::Listed(edges) => {
            if work.journal.buckets.is_none() {
                distribute(stream.sizes(), edges, work, build)?;
            }
            work.remove_other_buckets()?;
            Box::new(FileBuckets)
        }
        Edges::Drawn(edges) => {
            let Drawn { buckets, self_loops } = edges.buckets(from, build)?;
            work.journal.self_loops = self_loops;
            buckets
        }
    };
    let store = work.store()?;
    while let Some(mut group) = buckets.next(work, build)? {
        sort(&mut group, build.threads);
        for bucket in &group {
            let written = append(bucket, &store, header, nodes, work.journal.edges_written);
            work.journal.edges_written += written.map_err(NodesError::io("write", work.target()))?;
            work.journal.targets_written = bucket.targets.end;
        }
        store.sync_data().map_err(NodesError::io("write", work.target()))?;
        let done = work.journal.targets_written;
        if let Some(buckets) = &mut work.journal.buckets {
            buckets.retain(|bucket| bucket.first >= done);
        }
        work.save()?;
        work.remove_other_buckets()?;
        build.advance(Step::Sort, done, nodes)?;
    }
    Ok(())
}

/// Sorts the edges of each bucket and removes repetitions.
fn sort(group: &mut [Bucket], threads: usize) {
    let sorted = |bucket: &mut Bucket| {
        bucket.keys.sort_unstable();
        bucket.keys.dedup();
    };
    if threads < 2 || group.iter().map(|bucket| bucket.keys.len()).sum::<usize>() < FEW {
        return group.iter_mut().for_each(sorted);
    }
    for together in group.chunks_mut(threads) {
        std::thread::scope(|scope| {
            together.iter_mut().for_each(|bucket| drop(scope.spawn(|| sorted(bucket))));
        });
    }
}

/// Writes a sorted bucket behind `before` edges; returns the number of its edges.
fn append(bucket: &Bucket, store: &File, header: u64, nodes: u64, before: u64) -> io::Result<u64> {
    let at = |at| BufWriter::with_capacity(BUFFER_BYTES, At { file: store, at });
    let mut pointers = at(header + 8 * bucket.targets.start);
    let mut sources = at(header + padded(8 * (nodes + 1)) + 4 * before);
    let mut next = bucket.targets.start;
    for (number, &key) in (before..).zip(&bucket.keys) {
        while next <= key >> 32 {
            pointers.write_all(&number.to_le_bytes())?;
            next += 1;
        }
        // The lower half is the source.
        sources.write_all(&(key as u32).to_le_bytes())?;
    }
    let end = before + bucket.keys.len() as u64;
    // The end of the last row is the beginning of the next bucket's first one.
    for _ in next..=bucket.targets.end {
        pointers.write_all(&end.to_le_bytes())?;
    }
    pointers.flush()?;
    sources.flush()?;
    Ok(bucket.keys.len() as u64)
}

/// Writes into a file from a position on.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Write for At<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(bytes, self.at)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
