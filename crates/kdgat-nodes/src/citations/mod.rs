//! A generated graph of papers that cite each other, of any size: planted communities with heavy-tailed degrees.
//!
//! Every edge, row of features and label is a function of the seed and its number, so that nothing but the store is written, and the
//! store has the same bytes for any number of threads and any memory.
//!
//! - The class of node `v` is that of slot `v mod P` of a table, so that the members of a class can be counted and numbered without a
//!   list. Large classes have about five times as many members as small ones.
//! - Edge `i` goes from a paper drawn uniformly to one of the same class with probability [`WITHIN`], otherwise of any class. The cited
//!   paper is the one of rank `⌊m·u³⌋` among the `m` members of its class, with `u` uniform in [0, 1): citations of rank `r` are
//!   proportional to `r^(−2/3)`, so that degrees have a power law with exponent 2.5 (Clauset, Shalizi & Newman 2009 find 2 to 3 in
//!   networks). Ranks are spread over the numbers.
//! - A feature is the mean of the class, drawn once from a normal distribution of deviation [`SIGNAL`], plus noise of deviation 1.
//! - Numbers ascend with the year: of the nodes with a label, the first 78 % are for training, the next 8 % for validation, the rest for
//!   testing, about as in ogbn-papers100M.

mod edges;

use std::ops::Range;
use std::path::{Path, PathBuf};

use half::f16;
use half::slice::HalfFloatSliceExt;
use kdgat_base::random::{self, GOLDEN, Purpose};

use crate::NodesError;
use crate::build::{Build, Edges, GraphStream, Rows, Sizes, build};
use crate::node_graph::{GivenSet, NO_LABEL};
use crate::node_hash::RowHash;
use crate::sources::{GraphOptions, MOST_CLASSES, MOST_NODES, RowBlock, name_of};
use crate::store;

/// Probability that a paper cites one of its own class, besides chance.
const WITHIN: f64 = 0.35;
/// Standard deviation of a feature's class means, where that of the noise is 1.
const SIGNAL: f64 = 0.33;
/// Share of the nodes with a label in a large graph.
const LABELLED_SHARE: f64 = 0.014;
/// Labels for each class, on average, that a smaller graph has at least.
const LABELS_PER_CLASS: f64 = 100.0;
/// Ends of the years of training and validation, as shares of the nodes.
const LAST_YEARS: [f64; 2] = [0.78, 0.86];
/// Slots for each class, at least, on average.
const SLOTS_PER_CLASS: usize = 16;
/// Bytes of features that a thread makes at a time.
const BLOCK_BYTES: u64 = 4 << 20;

/// Size and seed of a generated graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CitationOptions {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of drawn edges. Each has its reverse in the graph; self-loops and repetitions are removed.
    pub edges: u64,
    /// Number of classes.
    pub classes: usize,
    /// Number of features.
    pub features: usize,
    /// Seed of all draws.
    pub seed: u64,
    /// True for features in half precision.
    pub half: bool,
}

impl CitationOptions {
    fn check(&self) -> Result<(), NodesError> {
        let Self { nodes, edges, classes, features, .. } = *self;
        let refused = |text: String| Err(NodesError::options(text));
        if !(2..=MOST_CLASSES).contains(&classes) {
            return refused(format!("--classes {classes}: expected 2 to {MOST_CLASSES}"));
        }
        let least = slots_of(classes);
        if !(least..=MOST_NODES).contains(&nodes) {
            return refused(format!("--nodes {nodes}: expected {least} to {MOST_NODES} for {classes} classes"));
        }
        if edges == 0 || edges > 1 << 40 {
            return refused(format!("--edges {edges}: expected 1 to 2^40"));
        }
        if !(1..=1 << 16).contains(&features) {
            return refused(format!("--columns {features}: expected 1 to 65536"));
        }
        Ok(())
    }
}

/// Writes the store of a generated graph, or resumes an interrupted build of it. Does nothing if the file is that store already.
///
/// # Errors
/// Options that do not fit together, another file of that name, too little space, [`NodesError::Stopped`], or any error of the disk.
pub fn simulate_citations(options: &CitationOptions, path: &Path, limits: &Build<'_>) -> Result<(), NodesError> {
    options.check()?;
    let graph = Citations::new(options, path, limits.threads.max(1));
    let exists = path.try_exists().map_err(NodesError::io("open", path))?;
    if exists && store::source_digest_of(path).ok().as_ref() != Some(&graph.sizes.source_digest) {
        let text = format!("{} exists and is another graph: name another file, or delete it first", path.display());
        return Err(NodesError::options(text));
    }
    build(&graph, path, limits)
}

/// The classes of the nodes.
struct Classes {
    /// Class of each slot; their number is a power of two.
    of_slot: Vec<u16>,
    /// Slots of each class, ascending, one class after another.
    slots: Vec<u32>,
    /// `[classes + 1]`: those of class `c` are `slots[begins[c]..begins[c + 1]]`.
    begins: Vec<u32>,
    /// Number of nodes of each class.
    members: Vec<u64>,
}

impl Classes {
    fn new(classes: usize, nodes: usize) -> Self {
        let of_slot = spread(&slot_counts(classes));
        let mut of_class = vec![Vec::new(); classes];
        for (slot, &class) in (0u32..).zip(&of_slot) {
            of_class[usize::from(class)].push(slot);
        }
        let (periods, rest) = (nodes / of_slot.len(), nodes % of_slot.len());
        let in_rest = |slots: &[u32]| slots.partition_point(|&slot| (slot as usize) < rest);
        let members = of_class.iter().map(|slots| (periods * slots.len() + in_rest(slots)) as u64).collect();
        let mut begins = vec![0];
        for slots in &of_class {
            begins.push(begins[begins.len() - 1] + slots.len() as u32);
        }
        Self { of_slot, slots: of_class.concat(), begins, members }
    }

    fn of(&self, node: u64) -> u16 {
        self.of_slot[node as usize & (self.of_slot.len() - 1)]
    }

    /// The member of a class with this number, in ascending order of the nodes.
    fn member(&self, class: u16, number: u64) -> u32 {
        let slots = &self.slots[self.begins[usize::from(class)] as usize..self.begins[usize::from(class) + 1] as usize];
        // Both fit into 32 bits, whose division is faster.
        let (number, count) = (number as u32, slots.len() as u32);
        let period = number / count;
        period * self.of_slot.len() as u32 + slots[(number % count) as usize]
    }
}

/// Number of slots: a power of two.
fn slots_of(classes: usize) -> usize {
    (SLOTS_PER_CLASS * classes).next_power_of_two()
}

/// Slots of each class: five times as many for the first class as for the last one, by the method of largest remainders.
fn slot_counts(classes: usize) -> Vec<usize> {
    let weight = |class: usize| {
        let place = (classes - 1 - class) as f64 / (classes - 1) as f64;
        1.0 + 4.0 * place * place
    };
    let (sum, slots): (f64, usize) = ((0..classes).map(weight).sum(), slots_of(classes));
    let exact: Vec<f64> = (0..classes).map(|class| weight(class) / sum * slots as f64).collect();
    let mut counts: Vec<usize> = exact.iter().map(|&share| share as usize).collect();
    let mut by_remainder: Vec<usize> = (0..classes).collect();
    by_remainder.sort_by(|&one, &other| exact[other].fract().total_cmp(&exact[one].fract()).then(one.cmp(&other)));
    let left = slots - counts.iter().sum::<usize>();
    by_remainder.iter().cycle().take(left).for_each(|&class| counts[class] += 1);
    counts
}

/// The class of each slot: the slots of each class are spread evenly.
fn spread(counts: &[usize]) -> Vec<u16> {
    let mut places: Vec<(f64, u16)> = Vec::new();
    for (class, &count) in (0u16..).zip(counts) {
        places.extend((0..count).map(|slot| ((slot as f64 + 0.5) / count as f64, class)));
    }
    places.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    places.into_iter().map(|(_, class)| class).collect()
}

/// The graph as a stream.
struct Citations {
    sizes: Sizes,
    classes: Classes,
    /// `[classes, features]`.
    means: Vec<f32>,
    /// Factor of a class's ranks that spreads them over its members: prime to their number.
    factors: Vec<u64>,
    /// Keys of the draws of edges, rows and labels.
    keys: Keys,
    labelled_share: f64,
    threads: usize,
}

/// Keys of independent draws.
struct Keys {
    edges: u64,
    rows: u64,
    labels: u64,
    means: u64,
}

impl Citations {
    fn new(options: &CitationOptions, path: &Path, threads: usize) -> Self {
        let key = |index| random::bits(options.seed, Purpose::Citations, 0, index);
        let keys = Keys { edges: key(0), rows: key(1), labels: key(2), means: key(3) };
        let classes = Classes::new(options.classes, options.nodes);
        let means = (0..options.classes * options.features).map(|at| {
            let [first, second] = [0, 1].map(|half| random::to_unit(random::mix(keys.means ^ (2 * at as u64 + half))));
            // Box & Muller 1958. Never the logarithm of 0.
            let normal = (-2.0 * (1.0 - first).ln()).sqrt() * (std::f64::consts::TAU * second).cos();
            (SIGNAL * normal) as f32
        });
        let means = means.collect();
        let share = (LABELS_PER_CLASS * options.classes as f64 / options.nodes as f64).clamp(LABELLED_SHARE, 1.0);
        let text = format!("citations 1, {options:?}");
        let graph_options =
            GraphOptions { undirected: true, largest_component: false, row_normalized: false, half: options.half };
        let sizes = Sizes {
            source: path.to_owned(),
            name: name_of(&PathBuf::from(path.file_name().unwrap_or_default())),
            nodes: options.nodes,
            edges: options.edges,
            columns: options.features,
            has_split: true,
            classes: options.classes,
            ignored_columns: Vec::new(),
            source_digest: blake3::hash(text.as_bytes()).to_hex().to_string(),
            options: graph_options,
        };
        let factors = classes.members.iter().map(|&members| factor(members)).collect();
        Self { sizes, classes, means, factors, keys, labelled_share: share, threads }
    }

    fn is_labelled(&self, node: u64) -> bool {
        random::to_unit(random::mix(self.keys.labels ^ node)) < self.labelled_share
    }

    /// The rows of some nodes.
    fn rows(&self, nodes: Range<usize>) -> RowBlock {
        let (first, columns) = (nodes.start, self.sizes.columns);
        let mut values = vec![0f32; nodes.len() * columns];
        for (node, row) in nodes.zip(values.chunks_exact_mut(columns)) {
            let class = usize::from(self.classes.of(node as u64));
            let means = &self.means[class * columns..(class + 1) * columns];
            let mut state = random::mix(self.keys.rows ^ node as u64);
            for (values, means) in row.chunks_mut(2).zip(means.chunks(2)) {
                state = state.wrapping_add(GOLDEN);
                let noise = two_normal(random::finalize(state));
                for ((value, mean), noise) in values.iter_mut().zip(means).zip(noise) {
                    *value = mean + noise;
                }
            }
        }
        let hashes = values.chunks_exact(columns).map(RowHash::of).collect();
        let bytes = match self.sizes.options.half {
            false => bytemuck::cast_slice(&values).to_vec(),
            true => {
                let mut halves = vec![f16::ZERO; values.len()];
                halves.convert_from_f32_slice(&values);
                bytemuck::cast_slice(&halves).to_vec()
            }
        };
        RowBlock { first, bytes, hashes }
    }
}

/// Two nearly normal numbers of mean 0 and deviation 1 from random bits: sums of four uniform bytes each (Irwin–Hall), exact integers
/// until the last step.
fn two_normal(bits: u64) -> [f32; 2] {
    const EVERY_SECOND: u64 = 0x00FF_00FF_00FF_00FF;
    /// Mean and standard deviation of the sum of four bytes: 4 · 255 / 2 and √(4 · (256² − 1) / 12).
    const MEAN: f32 = 510.0;
    const DEVIATION: f32 = 147.801_21;
    let pairs = (bits & EVERY_SECOND) + (bits >> 8 & EVERY_SECOND);
    let sums = pairs + (pairs >> 16);
    [sums & 0xFFFF, sums >> 32 & 0xFFFF].map(|sum| (sum as f32 - MEAN) * (1.0 / DEVIATION))
}

/// A factor prime to `count`, near its golden section, so that neighbouring ranks are far from each other.
fn factor(count: u64) -> u64 {
    let gcd = |mut one: u64, mut other: u64| {
        while other != 0 {
            (one, other) = (other, one % other);
        }
        one
    };
    let near = (count as f64 * 0.618_033_988_749_895) as u64;
    // 1 is prime to every number.
    (1..=near.max(1)).rev().find(|&found| gcd(found, count) == 1).unwrap_or(1)
}

impl GraphStream for Citations {
    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn labels(&self, each: &mut dyn FnMut(i32) -> Result<(), NodesError>) -> Result<(), NodesError> {
        let label = |node| if self.is_labelled(node) { i32::from(self.classes.of(node)) } else { NO_LABEL };
        (0..self.sizes.nodes as u64).try_for_each(|node| each(label(node)))
    }

    fn split(&self, nodes: Range<usize>) -> Result<Vec<u8>, NodesError> {
        let ends = LAST_YEARS.map(|share| (share * self.sizes.nodes as f64) as usize);
        let set = |node: usize| match node {
            _ if !self.is_labelled(node as u64) => GivenSet::None,
            node if node < ends[0] => GivenSet::Training,
            node if node < ends[1] => GivenSet::Validation,
            _ => GivenSet::Test,
        };
        Ok(nodes.map(|node| set(node) as u8).collect())
    }

    fn edges(&self) -> Edges<'_> {
        Edges::Drawn(self)
    }

    fn features(&self, from: usize, rows: &dyn Rows) -> Result<(), NodesError> {
        let (nodes, block) = (self.sizes.nodes, (BLOCK_BYTES / self.sizes.row_bytes()).max(1) as usize);
        for begin in (from..nodes).step_by(block * self.threads) {
            let starts = (begin..nodes).step_by(block).take(self.threads);
            std::thread::scope(|scope| {
                let put = |first: usize| rows.put(&self.rows(first..nodes.min(first + block)));
                let threads: Vec<_> = starts.map(|first| scope.spawn(move || put(first))).collect();
                // A panic of a thread is one of this function.
                threads
                    .into_iter()
                    .try_for_each(|thread| thread.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause)))
            })?;
            rows.done(nodes.min(begin + block * self.threads))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_graph::Features;

    #[test]
    fn members_of_a_class_are_its_nodes_in_order() {
        for (classes, nodes) in [(2, 32), (7, 131), (172, 5000)] {
            let found = Classes::new(classes, nodes);
            for class in 0..classes as u16 {
                let members: Vec<u32> =
                    (0..found.members[usize::from(class)]).map(|number| found.member(class, number)).collect();
                let expected: Vec<u32> = (0..nodes as u32).filter(|&node| found.of(node.into()) == class).collect();
                assert_eq!(members, expected, "class {class} of {classes}");
                assert!(!members.is_empty());
            }
        }
    }

    #[test]
    fn factors_spread_ranks_over_all_members() {
        for count in 1..300 {
            let factor = factor(count);
            let mut found: Vec<u64> = (0..count).map(|rank| rank * factor % count).collect();
            found.sort_unstable();
            assert_eq!(found, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn noise_has_mean_0_and_deviation_1() {
        let values: Vec<f64> = (0..100_000).flat_map(|number| two_normal(random::mix(number))).map(f64::from).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64;
        // Standard errors: 0.0022 and 0.003.
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.015, "{mean} {variance}");
    }

    #[test]
    fn edges_labels_and_years_follow_their_laws() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph.kdgat-nodes");
        let options = CitationOptions { nodes: 40_000, edges: 200_000, classes: 20, features: 8, seed: 3, half: false };
        simulate_citations(&options, &path, &Build { memory: 1 << 24, threads: 2, progress: &() }).unwrap();
        let graph = store::open(&path).unwrap();
        let classes = Classes::new(20, 40_000);
        let same = |node: u32| {
            let class = classes.of(node.into());
            graph.neighbours(node).iter().filter(|&&other| classes.of(other.into()) == class).count()
        };
        let within = (0..40_000).map(same).sum::<usize>() as f64 / graph.num_edges() as f64;
        let chance = classes.members.iter().map(|&members| (members as f64 / 4e4).powi(2)).sum::<f64>();
        // Repetitions, which are rarer across classes, are removed.
        let expected = WITHIN + (1.0 - WITHIN) * chance;
        assert!((within - expected).abs() < 0.02, "{within}, expected {expected}");
        let mut degrees: Vec<usize> = (0..40_000).map(|node| graph.neighbours(node).len()).collect();
        degrees.sort_unstable();
        let (median, most) = (degrees[20_000], degrees[39_999]);
        assert!(most > 20 * median && degrees[0] < median / 2, "{median} {most}");
        let labelled = graph.labels.iter().filter(|&&label| label != NO_LABEL).count();
        assert!((1800..2200).contains(&labelled), "{labelled} labels, expected about 100 for each of 20 classes");
        for (node, &label) in graph.labels.iter().enumerate() {
            assert!(label == NO_LABEL || label == i32::from(classes.of(node as u64)));
            let set = graph.given_split.as_ref().unwrap()[node];
            let by_year = 1 + u8::from(node >= 31_200) + u8::from(node >= 34_400);
            assert_eq!(set, if label == NO_LABEL { 0 } else { by_year }, "node {node}");
        }
        let Features::Dense { columns: 8, values } = &graph.features else { panic!("not dense") };
        let of_class = (0..40_000).filter(|&node| classes.of(node as u64) == 0);
        let (sum, count) = of_class.fold((0.0, 0), |(sum, count), node| (sum + values[8 * node], count + 1));
        let mean = Citations::new(&options, &path, 1).means[0];
        assert!((sum / count as f32 - mean).abs() < 0.1, "{} {mean}", sum / count as f32);
    }
}
