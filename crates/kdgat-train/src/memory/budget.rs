//! Memory budget of a run: components that are linear in the size of a batch, and the largest batch that fits.

use std::fmt::Write;

use kdgat_graph::padding::LARGEST_FILLING;
use serde::Serialize;

use super::limits::Limit;
use crate::met_sizes::MOST_RECORDINGS;

/// Size of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shape {
    /// Number of graphs.
    pub graphs: f64,
    /// Number of nodes.
    pub nodes: f64,
    /// Number of edges, including the self-loops of attention.
    pub edges: f64,
}

impl Shape {
    /// The batch of graphs with these numbers of nodes and edges.
    pub fn sum(graphs: impl IntoIterator<Item = (u64, u64)>) -> Self {
        graphs.into_iter().fold(Self::default(), |sum, (nodes, edges)| Self {
            graphs: sum.graphs + 1.0,
            nodes: sum.nodes + nodes as f64,
            edges: sum.edges + edges as f64,
        })
    }
}

/// Bytes as a linear function of a batch's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Linear {
    /// Bytes that do not depend on the batch.
    pub fixed: f64,
    /// Bytes per node.
    pub per_node: f64,
    /// Bytes per edge.
    pub per_edge: f64,
}

impl Linear {
    /// Bytes that do not depend on the batch.
    pub fn fixed(bytes: f64) -> Self {
        Self { fixed: bytes, ..Self::default() }
    }

    /// Bytes for a batch of this size.
    pub fn at(&self, shape: Shape) -> f64 {
        self.fixed + self.per_node * shape.nodes + self.per_edge * shape.edges
    }

    /// The function multiplied by `factor`.
    pub fn times(&self, factor: f64) -> Self {
        Self { fixed: self.fixed * factor, per_node: self.per_node * factor, per_edge: self.per_edge * factor }
    }

    /// Sum of both functions.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            fixed: self.fixed + other.fixed,
            per_node: self.per_node + other.per_node,
            per_edge: self.per_edge + other.per_edge,
        }
    }

    /// Least-squares fit of bytes to nodes and edges; to nodes alone if the samples do not separate nodes from edges; the largest if bytes do not
    /// grow with nodes; in proportion to nodes if all samples have the same size.
    pub fn fit(samples: &[(Shape, f64)]) -> Self {
        let in_both = |shape: Shape| vec![1.0, shape.nodes, shape.edges];
        let in_nodes = |shape: Shape| vec![1.0, shape.nodes];
        let solved = solve(samples, &in_both).filter(|found| found[1] >= 0.0 && found[2] >= 0.0);
        if let Some(found) = solved {
            return Self { fixed: found[0], per_node: found[1], per_edge: found[2] };
        }
        let largest = |of: fn(&(Shape, f64)) -> f64| samples.iter().map(of).fold(0.0, f64::max);
        match solve(samples, &in_nodes) {
            Some(found) if found[1] >= 0.0 => Self { fixed: found[0], per_node: found[1], per_edge: 0.0 },
            Some(_) => Self::fixed(largest(|(_, bytes)| *bytes)),
            None => Self { per_node: largest(|(shape, bytes)| bytes / shape.nodes.max(1.0)), ..Self::default() },
        }
    }
}

/// Solves the normal equations by elimination; `None` if they have no unique solution.
fn solve(samples: &[(Shape, f64)], features: &dyn Fn(Shape) -> Vec<f64>) -> Option<Vec<f64>> {
    let columns = features(Shape::default()).len();
    let scale: Vec<f64> = (0..columns)
        .map(|column| samples.iter().map(|(shape, _)| features(*shape)[column].abs()).fold(1e-9, f64::max))
        .collect();
    let mut system = vec![vec![0.0; columns + 1]; columns];
    for (shape, bytes) in samples {
        let row: Vec<f64> = features(*shape).iter().zip(&scale).map(|(value, scale)| value / scale).collect();
        for (left, equation) in row.iter().zip(&mut system) {
            for (right, sum) in row.iter().chain([bytes]).zip(equation) {
                *sum += left * right;
            }
        }
    }
    for pivot in 0..columns {
        let best = (pivot..columns).max_by(|&a, &b| system[a][pivot].abs().total_cmp(&system[b][pivot].abs()))?;
        system.swap(pivot, best);
        if system[pivot][pivot].abs() < 1e-7 {
            return None;
        }
        let leading = system[pivot].clone();
        for (row, equation) in system.iter_mut().enumerate().filter(|(row, _)| *row != pivot) {
            let factor = equation[pivot] / leading[pivot];
            let _ = row;
            equation.iter_mut().zip(&leading).for_each(|(value, leading)| *value -= factor * leading);
        }
    }
    Some((0..columns).map(|column| system[column][columns] / system[column][column] / scale[column]).collect())
}

/// Time at which a component's memory is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// Throughout the run.
    Always,
    /// During a visit of the teacher, which computes the targets of a burst of batches.
    Visit,
    /// From a step's forward to the end of its backward.
    Step,
    /// While the optimiser updates.
    Update,
}

/// A component of the budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Component {
    /// Name in the table.
    pub name: &'static str,
    /// Time at which it is in use.
    pub moment: Moment,
    /// Bytes by the size of the batch.
    pub bytes: Linear,
}

/// Name of the component for the tensors of batches.
pub const BATCH_DATA: &str = "batch data";
/// Name of the component for gradients of weights.
pub const GRADIENTS: &str = "gradients";
/// Name of the component for the optimiser's states.
pub const OPTIMIZER_STATES: &str = "optimiser states";
/// Name of the component for a teacher's targets.
pub const TARGETS: &str = "targets";
/// Name of the component for a teacher's forward.
pub const TEACHER_ACTIVATIONS: &str = "teacher's activations";
/// Name of the component for a teacher's weights.
pub const TEACHER_WEIGHTS: &str = "teacher's weights";
/// Name of the component for measured memory of no other component.
pub const OTHER: &str = "other";
/// Name of the component for captured steps and their inputs.
pub const CUDA_GRAPHS: &str = "CUDA graphs";
/// Name of the component for graphs that stay on the device.
pub const RESIDENT_GRAPHS: &str = "graphs on the device";
/// Graphs per teacher forward to plan for when the teacher halves its batches; it could halve them down to a single graph.
const TEACHER_GRAPHS: f64 = 8.0;
/// Name of the component for loaded batches that wait for the training loop.
pub const LOADER_QUEUE: &str = "loader queue";

/// Number of sizes that batches are padded to in a run of shuffled batches, each with its own captured input, if it is not known.
pub const USUAL_SIZES: usize = 4;

/// Memory of a run, by component.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryBudget {
    /// Components of the budget.
    pub components: Vec<Component>,
}

/// Size of complete batches. They, their targets and the batches in the loader's queue are in memory as a whole, however
/// few graphs go through the model at a time.
#[derive(Clone, Copy, Debug)]
pub struct WholeBatches {
    /// Batches announced to the teacher at a time; 1 without a teacher.
    pub burst: usize,
    /// Mean size of a batch.
    pub mean: Shape,
    /// Size of the largest batch.
    pub largest: Shape,
}

/// Buffers for the batches of a loader: one for the batch in use, and one for each in its queue.
#[derive(Clone, Copy, Debug)]
pub struct BatchBuffers {
    /// Batches announced to the teacher at a time, until all its targets are cached; 1 without a teacher. All but one of them have memory of
    /// their own.
    pub burst: usize,
    /// Batches of a full queue of the loader, those in the making included.
    pub waiting: usize,
    /// Batches of an epoch, of training or of validation, whichever has more.
    pub steps: usize,
}

impl BatchBuffers {
    /// Number of buffers: an epoch of few steps never fills the queue.
    pub fn count(&self) -> usize {
        self.waiting.saturating_add(1).min(self.steps.max(1))
    }

    /// Number of batches that are announced at a time.
    fn announced(&self) -> usize {
        self.burst.clamp(1, self.steps.max(1))
    }

    /// Share of a buffer for batches that are larger than expected. The neighbourhoods of n samples are drawn independently, so that the
    /// standard deviation of their sum is less than 1 / √n of it where that of one neighbourhood is less than its mean.
    fn spare(samples: usize) -> f64 {
        1.0 / (samples.max(1) as f64).sqrt()
    }
}

impl MemoryBudget {
    /// The budget for batches of a given size: its components then depend only on the number of graphs that go through the
    /// model at a time. Set `in_parts` if these are fewer than a batch has.
    pub fn with_whole_batches(&self, whole: &WholeBatches, in_parts: bool) -> Self {
        let mut budget = self.clone();
        let mut of_parts = 0.0;
        for Component { name, bytes, .. } in &mut budget.components {
            let largest = bytes.at(whole.largest) / whole.burst as f64;
            match *name {
                BATCH_DATA => {
                    // The teacher copies half of a batch when it halves the batch.
                    of_parts += largest / 2.0;
                    *bytes = Linear::fixed(bytes.at(whole.mean));
                }
                TARGETS => {
                    // Targets of the halves are concatenated to those of the batch.
                    of_parts += largest;
                    *bytes = Linear::fixed(bytes.at(whole.mean));
                }
                LOADER_QUEUE => *bytes = Linear::fixed(bytes.at(whole.largest)),
                TEACHER_ACTIVATIONS if in_parts => {
                    // The teacher halves its batches by itself until they fit, independent of the student's parts.
                    let share = (TEACHER_GRAPHS / whole.largest.graphs.max(1.0)).min(1.0);
                    *bytes = Linear::fixed(bytes.fixed + share * (bytes.at(whole.largest) - bytes.fixed));
                }
                _ => {}
            }
        }
        if in_parts && budget.components.iter().any(|component| component.name == TARGETS) {
            budget.add("a batch in parts", Moment::Visit, of_parts);
        }
        budget
    }

    /// The budget of bursts of `to` batches, if this one is of bursts of `from`.
    pub fn with_burst(&self, from: usize, to: usize) -> Self {
        let mut budget = self.clone();
        let of_bursts =
            budget.components.iter_mut().filter(|component| [BATCH_DATA, TARGETS].contains(&component.name));
        of_bursts.for_each(|component| component.bytes = component.bytes.times(to as f64 / from.max(1) as f64));
        budget
    }

    /// The budget of batches of this many samples whose tensors are in buffers of equal size. Batches of sampled neighbours differ: a buffer
    /// has room for one that is larger than expected by the share of [`BatchBuffers::spare`].
    pub fn with_buffers(&self, buffers: BatchBuffers, samples: usize) -> Self {
        let mut budget = self.clone();
        if budget.components.iter().all(|component| component.name != LOADER_QUEUE) {
            // Batches are copied to a GPU, and the queue is no part of its memory.
            return budget;
        }
        let room = 1.0 + BatchBuffers::spare(samples);
        let (announced, queued) = (buffers.announced() as f64, (buffers.count() - 1) as f64);
        for Component { name, bytes, .. } in &mut budget.components {
            match *name {
                BATCH_DATA => *bytes = bytes.times(room * announced / buffers.burst.max(1) as f64),
                LOADER_QUEUE => *bytes = bytes.times(room * queued / buffers.waiting.max(1) as f64),
                _ => {}
            }
        }
        budget
    }

    /// Bytes of each of these buffers, according to the budget [with them](Self::with_buffers), for batches of this shape.
    pub fn buffer_bytes(&self, buffers: BatchBuffers, shape: Shape) -> f64 {
        let data = self.components.iter().filter(|component| component.name == BATCH_DATA);
        data.map(|component| component.bytes.at(shape)).sum::<f64>() / buffers.announced() as f64
    }

    /// Adds a component that does not depend on the batch.
    pub fn add(&mut self, name: &'static str, moment: Moment, bytes: f64) {
        self.components.push(Component { name, moment, bytes: Linear::fixed(bytes) });
    }

    /// Adds the memory of CUDA graphs to the budget of bursts of `burst` batches that are padded to so many `sizes`: a captured step holds the memory
    /// of a padded step permanently, while validation and the first step of a new size need theirs in addition.
    pub fn record_steps(&mut self, burst: usize, sizes: usize) {
        let inputs = sizes.min(MOST_RECORDINGS) as f64 / burst.max(1) as f64;
        // A burst is on the device without padding, too; batches of graphs that are there are parts of the padded ones.
        let is_resident = self.components.iter().any(|component| component.name == RESIDENT_GRAPHS);
        let without_padding = if is_resident { 1.0 } else { 0.0 };
        let padded = 1.0 + LARGEST_FILLING;
        let of_recordings = self.components.iter().map(|component| match component {
            // Captured steps share the memory of one step, and each size has its own input.
            Component { moment: Moment::Step, bytes, .. } => bytes.times(padded),
            Component { name: BATCH_DATA, bytes, .. } => bytes.times(padded * (inputs + 1.0) - without_padding),
            Component { name: TARGETS, bytes, .. } => bytes.times(padded * inputs),
            _ => Linear::default(),
        });
        let bytes = of_recordings.fold(Linear::default(), |sum, bytes| sum.plus(&bytes));
        self.components.push(Component { name: CUDA_GRAPHS, moment: Moment::Always, bytes });
    }

    /// Peak in bytes of a run with batches of this size.
    pub fn peak_bytes(&self, shape: Shape) -> f64 {
        let sum = |moment| {
            let of_moment = self.components.iter().filter(|component| component.moment == moment);
            of_moment.map(|component| component.bytes.at(shape)).sum::<f64>()
        };
        let step = sum(Moment::Step).max(sum(Moment::Update));
        let visit = sum(Moment::Visit);
        // A visit is between two steps, when the student's activations are freed.
        sum(Moment::Always) + step.max(visit)
    }

    /// Largest number of graphs, up to `cap`, whose worst batch peaks at no more than `target_bytes`; `None` if not even
    /// one fits.
    pub fn largest_batch(&self, worst: &WorstBatches, target_bytes: f64, cap: usize) -> Option<usize> {
        largest_fitting(cap, |graphs| self.peak_bytes(worst.shape(graphs)) <= target_bytes)
    }

    /// Formats the budget in one line. `unit`: the plural of what batches consist of.
    ///
    /// `batch` is their number in a batch, of which `at_once` go through the model at a time.
    pub fn line(
        &self,
        unit: &str,
        (batch, at_once): (usize, usize),
        worst: &WorstBatches,
        limit: &Limit,
        target_bytes: f64,
    ) -> String {
        let parts = if at_once < batch { format!(", {at_once} of them at a time,") } else { String::new() };
        format!(
            "memory: batches of {batch} {unit}{parts} take at most {}, measured; planned: {} of {} ({})",
            gibibytes(self.peak_bytes(worst.shape(at_once))),
            gibibytes(target_bytes),
            gibibytes(limit.bytes as f64),
            limit.source
        )
    }

    /// Formats the budget as a table by component, for the worst batch of `count` units.
    pub fn table(&self, unit: &str, count: usize, worst: &WorstBatches) -> String {
        let shape = worst.shape(count);
        let mut text =
            format!("{:<28} {:>12} {:>10} {:>10} {:>12}\n", "component", "fixed", "per node", "per edge", "bytes");
        for Component { name, bytes, .. } in &self.components {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{name:<28} {:>12} {:>10.1} {:>10.1} {:>12}",
                mebibytes(bytes.fixed),
                bytes.per_node,
                bytes.per_edge,
                mebibytes(bytes.at(shape))
            );
        }
        let _ = writeln!(
            text,
            "{:<28} {:>12} {:>10} {:>10} {:>12}",
            format!("peak at {count} {unit}"),
            "",
            format!("{:.0} nodes", shape.nodes),
            format!("{:.0} edges", shape.edges),
            mebibytes(self.peak_bytes(shape))
        );
        text
    }

    /// The component that takes most memory at a size.
    pub fn largest_component(&self, shape: Shape) -> Option<&Component> {
        self.components.iter().max_by(|a, b| a.bytes.at(shape).total_cmp(&b.bytes.at(shape)))
    }
}

/// Largest number from 1 to `cap` that fits, by binary search; `None` if not even 1 does. If a number fits, so must each smaller one.
pub fn largest_fitting(cap: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    if !fits(1) {
        return None;
    }
    let (mut fitting, mut too_large) = (1, cap.max(1) + 1);
    while too_large - fitting > 1 {
        let middle = fitting.midpoint(too_large);
        if fits(middle) {
            fitting = middle;
        } else {
            too_large = middle;
        }
    }
    Some(fitting)
}

/// Largest sums of nodes and of edges in batches of a dataset.
#[derive(Clone, Debug)]
pub struct WorstBatches {
    nodes: LargestSums,
    edges: LargestSums,
}

/// Sum of the sizes of the `n` largest graphs, for each `n`.
#[derive(Clone, Debug)]
enum LargestSums {
    /// Precomputed sums for graphs of different sizes.
    Each(Vec<f64>),
    /// Graphs of equal size.
    Alike { size: f64, graphs: usize },
}

impl LargestSums {
    fn of(&self, graphs: usize) -> f64 {
        match self {
            Self::Each(sums) => match sums.len().min(graphs) {
                0 => 0.0,
                count => sums[count - 1],
            },
            Self::Alike { size, graphs: all } => (*all).min(graphs) as f64 * size,
        }
    }
}

impl WorstBatches {
    /// The worst batches of graphs with these numbers of nodes and edges (including the self-loops of attention).
    pub fn new(sizes: impl Iterator<Item = (u64, u64)>) -> Self {
        let (nodes, edges): (Vec<u64>, Vec<u64>) = sizes.unzip();
        Self { nodes: LargestSums::Each(largest_sums(nodes)), edges: LargestSums::Each(largest_sums(edges)) }
    }

    /// The worst batches of `graphs` graphs of equal size. Takes the same memory for any number of graphs.
    pub fn uniform(nodes: f64, edges: f64, graphs: usize) -> Self {
        let alike = |size| LargestSums::Alike { size, graphs };
        Self { nodes: alike(nodes), edges: alike(edges) }
    }

    /// Size of the worst batch of this many graphs.
    pub fn shape(&self, graphs: usize) -> Shape {
        Shape { graphs: graphs as f64, nodes: self.nodes.of(graphs), edges: self.edges.of(graphs) }
    }
}

fn largest_sums(mut sizes: Vec<u64>) -> Vec<f64> {
    sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
    let sums = sizes.iter().scan(0.0, |sum, &size| {
        *sum += size as f64;
        Some(*sum)
    });
    sums.collect()
}

/// Formats bytes as GiB, or as MiB below 1e9 bytes.
pub fn gibibytes(bytes: f64) -> String {
    if bytes < 1e9 { mebibytes(bytes) } else { format!("{:.2} GiB", bytes / f64::from(1 << 30)) }
}

/// A number of bytes in MiB, as text.
pub fn mebibytes(bytes: f64) -> String {
    let mebibytes = bytes / f64::from(1 << 20);
    // A fitted line may begin just below zero.
    format!("{:.1} MiB", if mebibytes.abs() < 0.05 { 0.0 } else { mebibytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_recovers_a_linear_function() {
        let truth = Linear { fixed: 5e5, per_node: 321.0, per_edge: 17.0 };
        let shapes = [(100.0, 300.0), (400.0, 1300.0), (900.0, 2000.0), (1000.0, 5000.0)];
        let shapes = shapes.map(|(nodes, edges)| Shape { graphs: 1.0, nodes, edges });
        let found = Linear::fit(&shapes.map(|shape| (shape, truth.at(shape))));
        assert!((found.per_node - 321.0).abs() < 1e-3 && (found.per_edge - 17.0).abs() < 1e-3, "{found:?}");
        assert!((found.fixed - 5e5).abs() < 1.0, "{found:?}");
    }

    #[test]
    fn proportional_nodes_and_edges_give_a_function_of_nodes() {
        let shapes = [1.0, 2.0, 5.0].map(|size| Shape { graphs: 1.0, nodes: 100.0 * size, edges: 300.0 * size });
        let found = Linear::fit(&shapes.map(|shape| (shape, 7.0 + shape.nodes + shape.edges)));
        assert!((found.at(shapes[2]) - 2007.0).abs() < 1e-3, "{found:?}");
    }

    /// Bytes that do not depend on the batch stay what they are, whichever way rounding bends the line.
    #[test]
    fn constant_bytes_are_extrapolated_as_such() {
        let shape = |nodes: f64| Shape { graphs: 1.0, nodes, edges: 1.3 * nodes };
        for bend in [-1.0, 0.0, 1.0] {
            let samples =
                [1000.0, 1700.0, 2200.0, 3100.0, 4000.0].map(|nodes| (shape(nodes), 123_000.0 + bend * 1e-3 * nodes));
            let found = Linear::fit(&samples).at(shape(250_000.0));
            assert!((found - 123_000.0).abs() < 500.0, "{bend}: {found}");
        }
    }

    /// Batches of one size say nothing of what does not depend on it: twice the size is planned with twice the memory.
    #[test]
    fn batches_of_one_size_are_extrapolated_in_proportion() {
        let shape = Shape { graphs: 1.0, nodes: 50.0, edges: 70.0 };
        let found = Linear::fit(&[(shape, 900.0), (shape, 1000.0)]);
        assert_eq!(found.at(shape), 1000.0);
        assert_eq!(found.at(Shape { graphs: 2.0, nodes: 100.0, edges: 140.0 }), 2000.0);
    }

    #[test]
    fn a_shorter_burst_has_fewer_batches_and_targets() {
        let bytes = Linear { fixed: 0.0, per_node: 8.0, per_edge: 0.0 };
        let component = |name, moment| Component { name, moment, bytes };
        let components = vec![
            component(BATCH_DATA, Moment::Always),
            component(TARGETS, Moment::Always),
            component(LOADER_QUEUE, Moment::Always),
            component(TEACHER_ACTIVATIONS, Moment::Visit),
        ];
        let budget = MemoryBudget { components };
        let shape = Shape { graphs: 1.0, nodes: 1.0, edges: 0.0 };
        assert_eq!((budget.peak_bytes(shape), budget.with_burst(4, 1).peak_bytes(shape)), (32.0, 20.0));
    }

    #[test]
    fn captured_steps_add_the_memory_of_a_step() {
        let bytes = Linear { fixed: 100.0, per_node: 10.0, per_edge: 1.0 };
        let component = |name, moment| Component { name, moment, bytes };
        let components = vec![
            component("parameters", Moment::Always),
            component(BATCH_DATA, Moment::Always),
            component(TARGETS, Moment::Always),
            component("activations", Moment::Step),
            component("optimiser's update", Moment::Update),
        ];
        let shape = Shape { graphs: 1.0, nodes: 20.0, edges: 60.0 };
        let added = |burst, components: Vec<Component>| {
            let mut budget = MemoryBudget { components };
            let before = budget.peak_bytes(shape);
            budget.record_steps(burst, 4);
            (budget.peak_bytes(shape) - before) / bytes.at(shape)
        };
        // A step, and for each size and for the burst itself a padded batch; targets for each size.
        assert!((added(1, components.clone()) - (1.0 + 2.0 * 4.0 + 1.0) * 17.0 / 16.0).abs() < 1e-9);
        // Data and targets are those of a whole burst.
        assert!((added(8, components.clone()) - (1.0 + 2.0 * 4.0 / 8.0 + 1.0) * 17.0 / 16.0).abs() < 1e-9);
        let resident = [components, vec![component(RESIDENT_GRAPHS, Moment::Always)]].concat();
        assert!((added(1, resident) - (1.0 + 2.0 * 4.0 + 1.0) * 17.0 / 16.0 + 1.0).abs() < 1e-9);
    }

    #[test]
    fn whole_batches_are_in_memory_even_if_few_graphs_go_through_the_model() {
        let bytes = Linear { fixed: 0.0, per_node: 10.0, per_edge: 0.0 };
        let component = |name, moment| Component { name, moment, bytes };
        let components = vec![
            component(BATCH_DATA, Moment::Always),
            component(LOADER_QUEUE, Moment::Always),
            component(TARGETS, Moment::Always),
            component(TEACHER_ACTIVATIONS, Moment::Visit),
            component("activations", Moment::Step),
        ];
        let budget = MemoryBudget { components };
        let shape = |nodes| Shape { graphs: 16.0, nodes, edges: 0.0 };
        let whole = WholeBatches { burst: 4, mean: shape(100.0), largest: shape(120.0) };
        let (together, budget) = (budget.with_whole_batches(&whole, false), budget.with_whole_batches(&whole, true));
        assert_eq!(together.peak_bytes(shape(120.0)), 1000.0 + 1000.0 + 1200.0 + 1200.0);
        // Always: data and targets of the burst, and the queue. Visit: joined targets, half a batch of data, activations of
        // eight graphs.
        let (always, visit) = (1000.0 + 1000.0 + 1200.0, 300.0 + 150.0 + 600.0);
        assert_eq!(budget.peak_bytes(shape(0.0)), always + visit);
        assert_eq!(budget.peak_bytes(shape(100.0)), always + visit);
        assert_eq!(budget.peak_bytes(shape(200.0)), always + 2000.0);
    }

    #[test]
    fn buffers_are_for_the_batches_of_a_full_queue_or_of_a_short_epoch() {
        let component = |name, per_node| Component {
            name,
            moment: Moment::Always,
            bytes: Linear { fixed: 40.0, per_node, per_edge: 0.0 },
        };
        let (shape, each) = (Shape { graphs: 1.0, nodes: 2.0, edges: 0.0 }, 60.0);
        let cases = [(1, 4, 0, 1), (1, 4, 1, 1), (1, 4, 2, 2), (1, 4, 5, 5), (1, 4, 100, 5), (1, 0, 9, 1)];
        let bursts = [(3, 2, 100, 5), (3, 2, 2, 3), (3, 2, 1, 1)];
        for (burst, waiting, steps, batches) in cases.into_iter().chain(bursts) {
            let times = |count: usize| component("", 10.0).bytes.times(count as f64);
            let data = Component { bytes: times(burst), ..component(BATCH_DATA, 0.0) };
            let queue = Component { bytes: times(waiting), ..component(LOADER_QUEUE, 0.0) };
            let weights = component("parameters", 0.0);
            let budget = MemoryBudget { components: vec![data, queue, weights] };
            let buffers = BatchBuffers { burst, waiting, steps };
            assert_eq!(buffers.count(), (1 + waiting).min(steps.max(1)));
            let budget = budget.with_buffers(buffers, 100);
            // A tenth of the room is for larger batches: one over the root of a hundred samples.
            let expected = batches as f64 * 1.1 * each;
            assert!((budget.peak_bytes(shape) - 40.0 - expected).abs() < 1e-9, "{buffers:?}: {budget:?}");
            assert!((budget.buffer_bytes(buffers, shape) - 1.1 * each).abs() < 1e-9);
        }
    }

    #[test]
    fn without_a_queue_on_the_device_there_are_no_buffers() {
        let bytes = Linear::fixed(40.0);
        let components = vec![Component { name: BATCH_DATA, moment: Moment::Always, bytes }];
        let budget = MemoryBudget { components };
        assert_eq!(budget.with_buffers(BatchBuffers { burst: 1, waiting: 4, steps: 9 }, 4), budget);
    }

    #[test]
    fn the_largest_batch_is_the_last_that_fits() {
        let bytes = Linear { fixed: 1000.0, per_node: 10.0, per_edge: 0.0 };
        let components = vec![Component { name: "activations", moment: Moment::Step, bytes }];
        let budget = MemoryBudget { components };
        let worst = WorstBatches::new((1..=100).map(|nodes| (nodes, 0)));
        for target in [1000.0, 2000.0, 5000.0, 30_000.0, 60_000.0] {
            let by_search = budget.largest_batch(&worst, target, 80);
            let by_trial = (1..=80).rev().find(|&graphs| budget.peak_bytes(worst.shape(graphs)) <= target);
            assert_eq!(by_search, by_trial, "target {target}");
        }
    }
}
