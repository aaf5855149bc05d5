//! Buckets of listed edges: temporary files for ranges of targets.
//!
//! Ranges are equally wide at first. A bucket with more edges than the memory holds is divided into narrower ones before it is sorted;
//! the edges of a single target are collected in a bitmap of their sources.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;

use super::edges::{Bucket, Buckets, key};
use super::work::{BucketFile, Work};
use super::{Build, ListedEdges, Sizes, Step};
use crate::NodesError;

/// Most files that are open at the same time.
const MOST_FILES: u64 = 256;
/// Edges in the buffer of a bucket: enough for writes of 512 KiB, few enough for a page.
const BUFFER_EDGES: std::ops::RangeInclusive<u64> = 64..=1 << 16;
/// Edges read at a time.
const BLOCK_EDGES: usize = 1 << 17;

/// Edges that are sorted at the same time: half of the memory, 8 bytes each.
pub fn most_edges(memory: u64) -> u64 {
    (memory / 16).max(1)
}

/// Reads all edges, and puts each one into the bucket of its target; with undirected edges its reverse as well.
pub fn distribute(
    sizes: &Sizes,
    edges: &dyn ListedEdges,
    work: &mut Work,
    build: &Build<'_>,
) -> Result<(), NodesError> {
    work.remove_other_buckets()?;
    let nodes = sizes.nodes as u64;
    // A quarter of the room for buckets that are fuller than the mean.
    let expected = 3 * most_edges(build.memory) / 4 / build.threads.max(1) as u64;
    let count = (sizes.edges * sizes.directions()).div_ceil(expected.max(1)).clamp(1, MOST_FILES.min(nodes));
    let mut divided = Division::new(0..nodes, count, work, build.memory)?;
    let (mut done, mut self_loops) = (0, 0);
    let undirected = sizes.options.undirected;
    edges.each_block(&mut |block| {
        for &(source, target) in block {
            if source == target {
                self_loops += 1;
                continue;
            }
            divided.add(key(source, target))?;
            if undirected {
                divided.add(key(target, source))?;
            }
        }
        done += block.len() as u64;
        build.advance(Step::Edges, done, sizes.edges)
    })?;
    let buckets = divided.finish()?;
    work.journal.next_bucket += buckets.len() as u32;
    work.journal.buckets = Some(buckets);
    work.journal.self_loops = self_loops;
    work.save()
}

/// Puts keys into files by ranges of targets that are equally wide.
struct Division {
    first: u64,
    /// Width of a range.
    width: u64,
    most_buffered: usize,
    buckets: Vec<OpenBucket>,
}

struct OpenBucket {
    bucket: BucketFile,
    path: PathBuf,
    file: File,
    buffer: Vec<u64>,
}

impl Division {
    fn new(targets: std::ops::Range<u64>, count: u64, work: &Work, memory: u64) -> Result<Self, NodesError> {
        let width = (targets.end - targets.start).div_ceil(count).next_power_of_two();
        let mut buckets = Vec::new();
        let mut first = targets.start;
        while first < targets.end {
            let end = targets.end.min(first + width);
            let number = work.journal.next_bucket + buckets.len() as u32;
            let bucket = BucketFile { number, first, end, edges: 0, crc32c: 0 };
            let (path, file) = (work.path(&bucket.name()), work.create(&bucket.name())?);
            buckets.push(OpenBucket { bucket, path, file, buffer: Vec::new() });
            first = end;
        }
        // A quarter of the memory, 8 bytes for each.
        let most = (memory / 32 / buckets.len() as u64).clamp(*BUFFER_EDGES.start(), *BUFFER_EDGES.end());
        Ok(Self { first: targets.start, width, most_buffered: most as usize, buckets })
    }

    #[inline]
    fn add(&mut self, key: u64) -> Result<(), NodesError> {
        // The width is a power of two.
        let at = ((key >> 32) - self.first) >> self.width.trailing_zeros();
        let bucket = &mut self.buckets[at as usize];
        bucket.buffer.push(key);
        if bucket.buffer.len() < self.most_buffered { Ok(()) } else { bucket.flush() }
    }

    /// Writes what is left; returns the buckets with their checksums.
    fn finish(self) -> Result<Vec<BucketFile>, NodesError> {
        let finished = self.buckets.into_iter().map(|mut bucket| {
            bucket.flush()?;
            bucket.file.sync_data().map_err(NodesError::io("write", &bucket.path))?;
            Ok(bucket.bucket)
        });
        finished.collect()
    }
}

impl OpenBucket {
    fn flush(&mut self) -> Result<(), NodesError> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.buffer);
        self.file.write_all(bytes).map_err(NodesError::io("write", &self.path))?;
        self.bucket.crc32c = crc32c::crc32c_append(self.bucket.crc32c, bytes);
        self.bucket.edges += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// The buckets of a journal.
pub struct FileBuckets;

impl Buckets for FileBuckets {
    fn next(&mut self, work: &mut Work, build: &Build<'_>) -> Result<Option<Vec<Bucket>>, NodesError> {
        let most = most_edges(build.memory);
        let first = loop {
            let Some(first) = work.journal.buckets.iter().flatten().next().cloned() else { return Ok(None) };
            if first.edges <= most {
                break first;
            }
            if first.end - first.first == 1 {
                return Ok(Some(vec![of_one_target(&first, work)?]));
            }
            divide(&first, most, work, build)?;
        };
        let (mut taken, mut edges) = (Vec::new(), 0);
        for bucket in work.journal.buckets.iter().flatten() {
            edges += bucket.edges;
            if bucket.first > first.first && (taken.len() == build.threads.max(1) || edges > most) {
                break;
            }
            taken.push(load(bucket, work)?);
        }
        Ok(Some(taken))
    }
}

/// Replaces the first bucket by narrower ones.
///
/// Until then, its edges are on the disk twice; no build knows before which bucket is too full.
fn divide(bucket: &BucketFile, most: u64, work: &mut Work, build: &Build<'_>) -> Result<(), NodesError> {
    let (needed, free) = (8 * bucket.edges, work.unused_bytes()?);
    if needed > free {
        return Err(NodesError::Space { path: work.folder().to_owned(), needed, free });
    }
    let count = (2 * bucket.edges).div_ceil(most).clamp(2, MOST_FILES.min(bucket.end - bucket.first));
    let mut divided = Division::new(bucket.first..bucket.end, count, work, build.memory)?;
    each_block(bucket, work, |keys| keys.iter().try_for_each(|&key| divided.add(key)))?;
    let narrower = divided.finish()?;
    work.journal.next_bucket += narrower.len() as u32;
    if let Some(buckets) = &mut work.journal.buckets {
        buckets.splice(..1, narrower);
    }
    work.save()?;
    work.remove_other_buckets()
}

fn load(bucket: &BucketFile, work: &Work) -> Result<Bucket, NodesError> {
    let mut keys = Vec::with_capacity(bucket.edges as usize);
    each_block(bucket, work, |block| {
        keys.extend_from_slice(block);
        Ok(())
    })?;
    Ok(Bucket { targets: bucket.first..bucket.end, keys })
}

/// The distinct edges of a bucket with one target.
fn of_one_target(bucket: &BucketFile, work: &Work) -> Result<Bucket, NodesError> {
    let mut bitmap: Vec<u64> = Vec::new();
    each_block(bucket, work, |keys| {
        for &key in keys {
            // The lower half is the source.
            let source = key as u32 as usize;
            if bitmap.len() <= source / 64 {
                bitmap.resize(source / 64 + 1, 0);
            }
            bitmap[source / 64] |= 1 << (source % 64);
        }
        Ok(())
    })?;
    let mut keys = Vec::with_capacity(bitmap.iter().map(|word| word.count_ones() as usize).sum());
    for (at, &word) in (0u64..).zip(&bitmap) {
        let set = (0..64).filter(|bit| word >> bit & 1 == 1);
        keys.extend(set.map(|bit| bucket.first << 32 | (64 * at + bit)));
    }
    Ok(Bucket { targets: bucket.first..bucket.end, keys })
}

/// Hands over the keys of a bucket, and compares its size and checksum.
fn each_block(
    bucket: &BucketFile,
    work: &Work,
    mut each: impl FnMut(&[u64]) -> Result<(), NodesError>,
) -> Result<(), NodesError> {
    let path = work.path(&bucket.name());
    let damaged = |detail: &str| work.damaged(&bucket.name(), detail);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(damaged("it is missing")),
        Err(error) => return Err(NodesError::io("open", &path)(error)),
    };
    let length = file.metadata().map_err(NodesError::io("open", &path))?.len();
    if length != 8 * bucket.edges {
        return Err(damaged(&format!("{length} bytes, expected {}", 8 * bucket.edges)));
    }
    let mut block = vec![0u64; BLOCK_EDGES.min(bucket.edges as usize)];
    let (mut left, mut checksum) = (bucket.edges as usize, 0);
    while left > 0 {
        let keys = &mut block[..BLOCK_EDGES.min(left)];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(keys);
        file.read_exact(bytes).map_err(NodesError::io("read", &path))?;
        checksum = crc32c::crc32c_append(checksum, bytes);
        // Keys outside the range would be written to wrong places.
        if keys.iter().any(|key| !(bucket.first..bucket.end).contains(&(key >> 32))) {
            return Err(damaged("an edge to another target"));
        }
        each(keys)?;
        left -= keys.len();
    }
    if checksum == bucket.crc32c { Ok(()) } else { Err(damaged("its checksum is wrong")) }
}
