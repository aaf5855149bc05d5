//! The rich features of nodes and edges. `docs/data.md` defines each feature.

use kdgat_can::Frame;
use kdgat_can::frame::PAYLOAD_BYTES;

use super::EDGE_FEATURES;
use super::feature_set::{FeatureSet, RICH_NODE_FEATURES};

/// Gaps between two frames are clamped to this many seconds: concatenated logs have gaps of days, which would hide the
/// milliseconds of all others.
pub const LONGEST_GAP_SECONDS: f64 = 1000.0;

/// Index of the first node feature that is not about a byte.
const COUNT: usize = 3 * PAYLOAD_BYTES;
const ENTROPY: usize = COUNT + 1;
const SKEWNESS: usize = COUNT + 2;
const KURTOSIS: usize = COUNT + 3;
const CLUSTERING: usize = COUNT + 4;
const FIRST_HALF: usize = COUNT + 5;
const CHANGE_RATE: usize = COUNT + 6;
const GAP_MEAN: usize = COUNT + 7;
const GAP_DEVIATION: usize = COUNT + 8;
const IN_DEGREE: usize = COUNT + 9;
const OUT_DEGREE: usize = COUNT + 10;
const _: () = assert!(OUT_DEGREE + 1 == RICH_NODE_FEATURES);

/// Node features of one node in the rich set.
pub type NodeRow = [f32; RICH_NODE_FEATURES];

/// Computes the node features of a node's own frames: those at `positions` in `frames`, ascending. Features of the graph's
/// structure are not set. A node without a frame has zeros.
pub fn node_features(frames: &[Frame], positions: &[u16]) -> NodeRow {
    let mut features = [0.0; RICH_NODE_FEATURES];
    let count = positions.len() as f64;
    if positions.is_empty() {
        return features;
    }
    let frame = |position: &u16| &frames[*position as usize];
    // The last of `frames` is the frame after the window.
    let half = (frames.len() - 1) / 2;
    let first_half = positions.partition_point(|&position| usize::from(position) < half);
    features[COUNT] = count as f32;
    features[ENTROPY] = (positions.iter().map(|at| entropy(frame(at))).sum::<f64>() / count) as f32;
    features[FIRST_HALF] = (first_half as f64 / count) as f32;
    byte_statistics(positions.iter().map(|at| &frame(at).payload), count, &mut features);
    if positions.len() > 1 {
        let pairs = || positions.windows(2).map(|pair| (frame(&pair[0]), frame(&pair[1])));
        let changes: u32 = pairs().map(|(one, next)| changed_bytes(&one.payload, &next.payload)).sum();
        features[CHANGE_RATE] = (f64::from(changes) / (PAYLOAD_BYTES as f64 * (count - 1.0))) as f32;
        let (mean, deviation) = gap_statistics(pairs().map(|(one, next)| gap_seconds(one, next)));
        (features[GAP_MEAN], features[GAP_DEVIATION]) = (mean as f32, deviation as f32);
    }
    features
}

/// Computes mean, deviation and range of each byte, and skewness and kurtosis averaged over the bytes.
fn byte_statistics<'a>(
    payloads: impl Iterator<Item = &'a [u8; PAYLOAD_BYTES]> + Clone,
    count: f64,
    features: &mut NodeRow,
) {
    let mut sums = [0u32; PAYLOAD_BYTES];
    let (mut lowest, mut highest) = ([u8::MAX; PAYLOAD_BYTES], [0u8; PAYLOAD_BYTES]);
    for payload in payloads.clone() {
        for byte in 0..PAYLOAD_BYTES {
            sums[byte] += u32::from(payload[byte]);
            lowest[byte] = lowest[byte].min(payload[byte]);
            highest[byte] = highest[byte].max(payload[byte]);
        }
    }
    // The mean of equal bytes is exact, so differences from it make their deviation exactly 0.
    let means = sums.map(|sum| f64::from(sum) / count);
    for byte in 0..PAYLOAD_BYTES {
        features[byte] = (means[byte] / 255.0) as f32;
        features[2 * PAYLOAD_BYTES + byte] = (f64::from(highest[byte] - lowest[byte]) / 255.0) as f32;
    }
    if lowest == highest {
        return;
    }
    let (mut squares, mut cubes, mut fourths) = ([0.0; PAYLOAD_BYTES], [0.0; PAYLOAD_BYTES], [0.0; PAYLOAD_BYTES]);
    for payload in payloads {
        for byte in 0..PAYLOAD_BYTES {
            let difference = f64::from(payload[byte]) - means[byte];
            let square = difference * difference;
            squares[byte] += square;
            cubes[byte] += square * difference;
            fourths[byte] += square * square;
        }
    }
    let (mut skewness, mut kurtosis) = (0.0, 0.0);
    for byte in (0..PAYLOAD_BYTES).filter(|&byte| squares[byte] > 0.0) {
        let variance = squares[byte] / count;
        features[PAYLOAD_BYTES + byte] = (variance.sqrt() / 255.0) as f32;
        skewness += cubes[byte] / count / (variance * variance.sqrt());
        kurtosis += fourths[byte] / count / (variance * variance) - 3.0;
    }
    features[SKEWNESS] = (skewness / PAYLOAD_BYTES as f64) as f32;
    features[KURTOSIS] = (kurtosis / PAYLOAD_BYTES as f64) as f32;
}

/// Shannon entropy of the payload's bytes in bits: log₂ n − mean of log₂ (number of occurrences of each byte).
fn entropy(frame: &Frame) -> f64 {
    /// log₂ of 0 (unused) to 8.
    const LOG2: [f64; PAYLOAD_BYTES + 1] = [
        0.0,
        0.0,
        1.0,
        1.584_962_500_721_156,
        2.0,
        2.321_928_094_887_362,
        2.584_962_500_721_156,
        2.807_354_922_057_604,
        3.0,
    ];
    let length = usize::from(frame.payload_length).min(PAYLOAD_BYTES);
    let bytes = &frame.payload[..length];
    let occurrences = |byte: &u8| bytes.iter().filter(|other| *other == byte).count();
    let logarithms: f64 = bytes.iter().map(|byte| LOG2[occurrences(byte)]).sum();
    if length == 0 { 0.0 } else { LOG2[length] - logarithms / length as f64 }
}

fn changed_bytes(one: &[u8; PAYLOAD_BYTES], next: &[u8; PAYLOAD_BYTES]) -> u32 {
    one.iter().zip(next).map(|(one, next)| u32::from(one != next)).sum()
}

/// Time from one frame to the next in seconds; negative if time steps back.
fn gap_seconds(one: &Frame, next: &Frame) -> f64 {
    (next.timestamp - one.timestamp).clamp(-LONGEST_GAP_SECONDS, LONGEST_GAP_SECONDS)
}

/// Mean and population standard deviation of the gaps (Welford 1962).
fn gap_statistics(gaps: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for gap in gaps {
        count += 1.0;
        let difference = gap - mean;
        mean += difference / count;
        squares += difference * (gap - mean);
    }
    (mean, (squares / f64::max(count, 1.0)).sqrt())
}

/// Computes the features of an edge whose occurrences start at these positions; the flag of the reverse edge is set later.
pub fn edge_features(frames: &[Frame], occurrences: &[u16]) -> [f32; EDGE_FEATURES] {
    let mut features = [0.0; EDGE_FEATURES];
    let count = occurrences.len() as f64;
    let (mut seconds, mut differences) = (0.0, [0u32; PAYLOAD_BYTES]);
    for &position in occurrences {
        let (one, next) = (&frames[position as usize], &frames[position as usize + 1]);
        seconds += gap_seconds(one, next);
        for (sum, (one, next)) in differences.iter_mut().zip(one.payload.iter().zip(&next.payload)) {
            *sum += u32::from(one.abs_diff(*next));
        }
    }
    features[0] = (seconds / count) as f32;
    for (feature, sum) in features[1..=PAYLOAD_BYTES].iter_mut().zip(differences) {
        *feature = (f64::from(sum) / (255.0 * count)) as f32;
    }
    features[FeatureSet::Rich.reverse_exists() + 1] = (count / (frames.len() - 1) as f64) as f32;
    features
}

/// Structure of one graph at a time; reuses its buffers.
#[derive(Debug, Default)]
pub struct Structure {
    /// Number of neighbours of each node, ignoring direction and self-loops.
    neighbours: Vec<u32>,
    triangles: Vec<u32>,
    in_degree: Vec<u32>,
    out_degree: Vec<u32>,
    /// Undirected edges.
    pairs: Vec<(u16, u16)>,
    /// Ends of the rows of `rows`: for each node, the pairs that lead from it.
    row_ends: Vec<u32>,
    /// Second nodes of the pairs, by first node.
    rows: Vec<u16>,
    /// For each node, the last node (plus 1) whose row contains it.
    marked: Vec<u32>,
}

impl Structure {
    /// Analyses the edges of a graph; `features` is `[num_edges, EDGE_FEATURES]`.
    pub fn look(&mut self, nodes: usize, sources: &[u16], targets: &[u16], features: &[f32]) {
        for counts in [&mut self.neighbours, &mut self.triangles, &mut self.in_degree, &mut self.out_degree] {
            counts.clear();
            counts.resize(nodes, 0);
        }
        self.pairs.clear();
        let edges = sources.iter().zip(targets).zip(features.chunks_exact(EDGE_FEATURES));
        for ((&source, &target), features) in edges {
            self.out_degree[source as usize] += 1;
            self.in_degree[target as usize] += 1;
            // Of two edges in opposite directions, only the one to the larger node counts.
            let has_reverse = features[FeatureSet::Rich.reverse_exists()] != 0.0;
            if source < target || (source != target && !has_reverse) {
                self.neighbours[source as usize] += 1;
                self.neighbours[target as usize] += 1;
                self.pairs.push((source, target));
            }
        }
        self.count_triangles(nodes);
    }

    /// Counts each triangle once: pairs lead to the node with more neighbours, so no node has more than √(2·pairs) of them
    /// (Chiba & Nishizeki 1985).
    fn count_triangles(&mut self, nodes: usize) {
        let Self { neighbours, triangles, pairs, row_ends, rows, marked, .. } = self;
        for pair in pairs.iter_mut() {
            let rank = |node: u16| (neighbours[node as usize], node);
            if rank(pair.0) > rank(pair.1) {
                *pair = (pair.1, pair.0);
            }
        }
        row_ends.clear();
        row_ends.resize(nodes + 1, 0);
        pairs.iter().for_each(|pair| row_ends[pair.0 as usize + 1] += 1);
        for node in 0..nodes {
            row_ends[node + 1] += row_ends[node];
        }
        rows.clear();
        rows.resize(pairs.len(), 0);
        for &(from, to) in pairs.iter() {
            rows[row_ends[from as usize] as usize] = to;
            row_ends[from as usize] += 1;
        }
        // After filling, each entry is the end of its own row and the start of the next.
        let row = |node: usize| if node == 0 { 0..row_ends[0] } else { row_ends[node - 1]..row_ends[node] };
        let row = |node: usize| row(node).start as usize..row(node).end as usize;
        marked.clear();
        marked.resize(nodes, 0);
        for node in 0..nodes {
            rows[row(node)].iter().for_each(|&next| marked[next as usize] = node as u32 + 1);
            for &next in &rows[row(node)] {
                for &third in &rows[row(next as usize)] {
                    if marked[third as usize] == node as u32 + 1 {
                        for corner in [node, next as usize, third as usize] {
                            triangles[corner] += 1;
                        }
                    }
                }
            }
        }
    }

    /// Sets a node's clustering coefficient (Watts & Strogatz 1998) and degrees.
    pub fn describe(&self, node: usize, features: &mut NodeRow) {
        let neighbours = f64::from(self.neighbours[node]);
        if neighbours > 1.0 {
            let pairs = neighbours * (neighbours - 1.0) / 2.0;
            features[CLUSTERING] = (f64::from(self.triangles[node]) / pairs) as f32;
        }
        features[IN_DEGREE] = self.in_degree[node] as f32;
        features[OUT_DEGREE] = self.out_degree[node] as f32;
    }
}
