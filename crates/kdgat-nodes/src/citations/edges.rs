//! The edges of a generated graph: drawn by number, counted by target, and drawn again for the targets that fit the memory.

use std::ops::Range;

use kdgat_base::random::{self, GOLDEN};

use super::{Citations, WITHIN};
use crate::NodesError;
use crate::build::{Bucket, Buckets, Build, Drawn, DrawnEdges, Step, Work, key, most_edges};

/// Most ranges of targets whose edges are counted.
const MOST_BINS: usize = 1 << 16;
/// Edges that a thread draws between two reports.
const ROUND: u64 = 1 << 22;

impl Citations {
    /// Source and target of edge `number`.
    #[inline]
    fn edge(&self, number: u64) -> (u32, u32) {
        let draw =
            |index: u64| random::finalize(self.keys.edges.wrapping_add((3 * number + index + 1).wrapping_mul(GOLDEN)));
        let citing = random::to_below(draw(0), self.sizes.nodes as u64);
        let kind = draw(1);
        let class = match random::to_unit(kind) < WITHIN {
            true => self.classes.of(citing),
            // The lowest bits are independent of the highest, which made the choice.
            false => self.classes.of(kind),
        };
        let members = self.classes.members[usize::from(class)];
        let unit = random::to_unit(draw(2));
        let rank = ((members as f64 * (unit * unit * unit)) as u64).min(members - 1);
        // Both are below 2^32.
        let cited = self.classes.member(class, rank * self.factors[usize::from(class)] % members);
        (citing as u32, cited)
    }

    /// Numbers of the edges that each thread draws in a round.
    fn rounds(&self) -> impl Iterator<Item = Vec<Range<u64>>> {
        let (edges, threads) = (self.sizes.edges, self.threads as u64);
        (0..edges).step_by((ROUND * threads) as usize).map(move |begin| {
            let of_thread = |thread: u64| {
                let first = begin + thread * ROUND;
                first.min(edges)..(first + ROUND).min(edges)
            };
            (0..threads).map(of_thread).collect()
        })
    }
}

impl DrawnEdges for Citations {
    fn buckets<'a>(&'a self, from: u64, build: &Build<'_>) -> Result<Drawn<'a>, NodesError> {
        let width = self.sizes.nodes.div_ceil(MOST_BINS).next_power_of_two();
        let bins = self.sizes.nodes.div_ceil(width);
        let mut counts: Vec<Count> = (0..self.threads).map(|_| Count { of_bin: vec![0; bins], loops: 0 }).collect();
        let (mut done, shift) = (0, width.trailing_zeros());
        for round in self.rounds() {
            done += round.iter().map(|numbers| numbers.end - numbers.start).sum::<u64>();
            std::thread::scope(|scope| {
                for (numbers, count) in round.into_iter().zip(&mut counts) {
                    scope.spawn(move || count.add(self, numbers, shift));
                }
            });
            build.advance(Step::Edges, done, self.sizes.edges)?;
        }
        let self_loops = counts.iter().map(|count| count.loops).sum();
        let next_bin = from.div_ceil(width as u64) as usize;
        let counts = counts.into_iter().map(|count| count.of_bin).collect();
        Ok(Drawn { buckets: Box::new(DrawnBuckets { graph: self, counts, shift, next_bin }), self_loops })
    }
}

/// Directed edges by range of targets.
struct Count {
    of_bin: Vec<u64>,
    loops: u64,
}

impl Count {
    fn add(&mut self, graph: &Citations, numbers: Range<u64>, shift: u32) {
        for number in numbers {
            let (source, target) = graph.edge(number);
            if source == target {
                self.loops += 1;
                continue;
            }
            self.of_bin[(target >> shift) as usize] += 1;
            self.of_bin[(source >> shift) as usize] += 1;
        }
    }
}

/// Draws all edges for each group of buckets, and keeps those that lead there.
struct DrawnBuckets<'a> {
    graph: &'a Citations,
    /// Directed edges that each thread draws, by range of targets.
    counts: Vec<Vec<u64>>,
    /// Logarithm of the width of a range.
    shift: u32,
    next_bin: usize,
}

impl DrawnBuckets<'_> {
    fn bins(&self) -> usize {
        self.counts[0].len()
    }

    /// Ranges of bins for the next buckets: at most one for each thread.
    fn next_group(&self, most: u64) -> Vec<Range<usize>> {
        let edges = |bin: usize| self.counts.iter().map(|counts| counts[bin]).sum::<u64>();
        let (mut group, mut begin) = (Vec::new(), self.next_bin);
        while group.len() < self.counts.len() && begin < self.bins() {
            let (mut end, mut sum) = (begin + 1, edges(begin));
            while end < self.bins() && sum + edges(end) <= most {
                sum += edges(end);
                end += 1;
            }
            group.push(begin..end);
            begin = end;
        }
        group
    }
}

impl Buckets for DrawnBuckets<'_> {
    fn next(&mut self, _: &mut Work, build: &Build<'_>) -> Result<Option<Vec<Bucket>>, NodesError> {
        let threads = self.counts.len();
        let group = self.next_group(most_edges(build.memory) / threads as u64);
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(None) };
        let (begin, end) = (first.start, last.end);
        let mut bucket_of = vec![0; end - begin];
        for (bucket, bins) in group.iter().enumerate() {
            bucket_of[bins.start - begin..bins.end - begin].fill(bucket);
        }
        let edges = |thread: usize, bins: &Range<usize>| self.counts[thread][bins.clone()].iter().sum::<u64>() as usize;
        let total = |bins| (0..threads).map(|thread| edges(thread, bins)).sum();
        let mut keys: Vec<Vec<u64>> = group.iter().map(|bins| vec![0; total(bins)]).collect();
        // Each thread has a part of each bucket's memory.
        let mut takers: Vec<Taker<'_>> =
            (0..threads).map(|_| Taker { first_bin: begin, bucket_of: &bucket_of, parts: Vec::new() }).collect();
        for (keys, bins) in keys.iter_mut().zip(&group) {
            let mut rest = keys.as_mut_slice();
            for (thread, taker) in takers.iter_mut().enumerate() {
                let (part, behind) = rest.split_at_mut(edges(thread, bins));
                taker.parts.push(part.iter_mut());
                rest = behind;
            }
        }
        for round in self.graph.rounds() {
            std::thread::scope(|scope| {
                for (numbers, taker) in round.into_iter().zip(&mut takers) {
                    let (graph, shift) = (self.graph, self.shift);
                    scope.spawn(move || taker.take(graph, numbers, shift));
                }
            });
            if build.progress.stop_requested() {
                return Err(NodesError::Stopped);
            }
        }
        drop(takers);
        self.next_bin = end;
        let nodes = self.graph.sizes.nodes as u64;
        let targets =
            |bins: &Range<usize>| (bins.start as u64) << self.shift..nodes.min((bins.end as u64) << self.shift);
        Ok(Some(group.iter().zip(keys).map(|(bins, keys)| Bucket { targets: targets(bins), keys }).collect()))
    }
}

/// Keeps the edges of one thread that lead to the targets of a group.
struct Taker<'a> {
    first_bin: usize,
    /// Bucket of each bin of the group.
    bucket_of: &'a [usize],
    /// Room in each bucket.
    parts: Vec<std::slice::IterMut<'a, u64>>,
}

impl Taker<'_> {
    fn take(&mut self, graph: &Citations, numbers: Range<u64>, shift: u32) {
        for number in numbers {
            let (source, target) = graph.edge(number);
            if source == target {
                continue;
            }
            for (source, target) in [(source, target), (target, source)] {
                let bin = ((target >> shift) as usize).wrapping_sub(self.first_bin);
                let Some(&bucket) = self.bucket_of.get(bin) else { continue };
                // The same edges were counted.
                if let Some(place) = self.parts[bucket].next() {
                    *place = key(source, target);
                }
            }
        }
    }
}
