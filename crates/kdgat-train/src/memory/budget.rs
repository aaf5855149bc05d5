//! What a run will take: components that are linear in the size of a batch, and the largest batch that fits.

use std::fmt::Write;

use kdgat_graph::padding::LARGEST_FILLING;
use kdgat_torch::allocator::Phase;
use serde::Serialize;

use super::limits::Limit;

/// The size of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shape {
    pub graphs: f64,
    pub nodes: f64,
    /// Self-loops of attention included.
    pub edges: f64,
}

/// Bytes as a linear function of a batch's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Linear {
    pub fixed: f64,
    pub per_node: f64,
    pub per_edge: f64,
}

impl Linear {
    /// The same bytes whatever the batch.
    pub fn fixed(bytes: f64) -> Self {
        Self { fixed: bytes, ..Self::default() }
    }

    /// At a size.
    pub fn at(&self, shape: Shape) -> f64 {
        self.fixed + self.per_node * shape.nodes + self.per_edge * shape.edges
    }

    /// As often.
    pub fn times(&self, factor: f64) -> Self {
        Self { fixed: self.fixed * factor, per_node: self.per_node * factor, per_edge: self.per_edge * factor }
    }

    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            fixed: self.fixed + other.fixed,
            per_node: self.per_node + other.per_node,
            per_edge: self.per_edge + other.per_edge,
        }
    }

    /// Least squares of bytes in nodes and edges; where the sizes do not tell these apart, in nodes alone.
    pub fn fit(samples: &[(Shape, f64)]) -> Self {
        let in_both = |shape: Shape| vec![1.0, shape.nodes, shape.edges];
        let in_nodes = |shape: Shape| vec![1.0, shape.nodes];
        let solved = solve(samples, &in_both).filter(|found| found[1] >= 0.0 && found[2] >= 0.0);
        if let Some(found) = solved {
            return Self { fixed: found[0], per_node: found[1], per_edge: found[2] };
        }
        if let Some(found) = solve(samples, &in_nodes).filter(|found| found[1] >= 0.0) {
            return Self { fixed: found[0], per_node: found[1], per_edge: 0.0 };
        }
        Self::fixed(samples.iter().map(|(_, bytes)| *bytes).fold(0.0, f64::max))
    }
}

/// Normal equations by elimination; `None` where they have no single solution.
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

/// When a component's memory is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// All the time.
    Always,
    /// While the teacher answers.
    Visit,
    /// From a step's forward to the end of its backward.
    Step,
    /// While the optimiser updates.
    Update,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Component {
    pub name: &'static str,
    pub moment: Moment,
    pub bytes: Linear,
}

/// Name of the component that the tensors of batches are.
pub const BATCH_DATA: &str = "batch data";
/// Name of the component that a teacher's targets are.
pub const TARGETS: &str = "targets";
/// Name of the component that a teacher computes with.
pub const TEACHER_ACTIVATIONS: &str = "teacher's activations";
/// Graphs that a teacher has room for where it takes batches in halves: it could go on to a single one.
const TEACHER_GRAPHS: f64 = 8.0;
/// Name of the component that the batches are which wait for the training loop.
pub const LOADER_QUEUE: &str = "loader queue";

/// Sizes of batches that a run of shuffled batches has often.
const RECORDED_SIZES: f64 = 4.0;

/// How a budget came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Steps on real batches.
    Measured,
    /// In closed form, from the architecture.
    Static,
}

/// What a run takes, by component.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryBudget {
    pub method: Method,
    pub components: Vec<Component>,
}

/// Batches of a given size: they, their targets and those that wait behind them are there as a whole, however few graphs go
/// through the model at a time.
#[derive(Clone, Copy, Debug)]
pub struct WholeBatches {
    /// Batches that are announced to the teacher at a time; 1 without one.
    pub burst: usize,
    /// Their mean.
    pub mean: Shape,
    /// The largest batch.
    pub largest: Shape,
}

impl MemoryBudget {
    /// The same budget where batches have a given size: what then remains to be chosen, and what the components depend on, is
    /// how many graphs go through the model at a time. `in_parts`: fewer than a batch has.
    pub fn with_whole_batches(&self, whole: &WholeBatches, in_parts: bool) -> Self {
        let mut budget = self.clone();
        let mut of_parts = 0.0;
        for Component { name, bytes, .. } in &mut budget.components {
            let largest = bytes.at(whole.largest) / whole.burst as f64;
            match *name {
                BATCH_DATA => {
                    // Half of a batch is copied where the teacher takes it in halves.
                    of_parts += largest / 2.0;
                    *bytes = Linear::fixed(bytes.at(whole.mean));
                }
                TARGETS => {
                    // Targets of parts are joined to those of the batch.
                    of_parts += largest;
                    *bytes = Linear::fixed(bytes.at(whole.mean));
                }
                LOADER_QUEUE => *bytes = Linear::fixed(bytes.at(whole.largest)),
                TEACHER_ACTIVATIONS if in_parts => {
                    // The teacher finds out by itself how many graphs it has room for, whatever the student's parts are.
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

    /// Adds a component that does not depend on the batch.
    pub fn add(&mut self, name: &'static str, moment: Moment, bytes: f64) {
        self.components.push(Component { name, moment, bytes: Linear::fixed(bytes) });
    }

    /// Adds what steps take that are recorded and replayed: a recording keeps a filled-up step's memory for good, while
    /// validation, and the first step of a new size, take theirs beside it.
    pub fn record_steps(&mut self) {
        let of_recordings = self.components.iter().map(|component| match component {
            // Recordings share a step's memory, and each has its own input.
            Component { moment: Moment::Step, bytes, .. } => *bytes,
            Component { name: BATCH_DATA | TARGETS, bytes, .. } => bytes.times(RECORDED_SIZES),
            _ => Linear::default(),
        });
        let bytes = of_recordings.fold(Linear::default(), |sum, bytes| sum.plus(&bytes)).times(1.0 + LARGEST_FILLING);
        self.components.push(Component { name: "recorded steps", moment: Moment::Always, bytes });
    }

    /// Adds what a teacher that is at work already has in host memory.
    pub fn note_teacher(&mut self, reading: super::Reading) {
        let bytes = reading.phase_bytes(Phase::Teacher) as f64;
        if bytes > 0.0 {
            self.add("teacher", Moment::Always, bytes);
        }
    }

    /// Peak of a run whose batches have this size.
    pub fn peak_bytes(&self, shape: Shape) -> f64 {
        let sum = |moment| {
            let of_moment = self.components.iter().filter(|component| component.moment == moment);
            of_moment.map(|component| component.bytes.at(shape)).sum::<f64>()
        };
        let step = sum(Moment::Step).max(sum(Moment::Update));
        let visit = sum(Moment::Visit);
        // A visit falls between two steps, when the student's activations are gone.
        sum(Moment::Always) + step.max(visit)
    }

    /// The most graphs, up to `cap`, whose worst batch peaks below `target_bytes`; `None` if not even one does.
    pub fn largest_batch(&self, worst: &WorstBatches, target_bytes: f64, cap: usize) -> Option<usize> {
        let fits = |graphs: usize| self.peak_bytes(worst.shape(graphs)) <= target_bytes;
        if !fits(1) {
            return None;
        }
        // A larger batch never takes less.
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

    /// The budget in one line.
    ///
    /// `batch`: graphs of a batch, of which `graphs` go through the model at a time.
    pub fn line(
        &self,
        (batch, graphs): (usize, usize),
        worst: &WorstBatches,
        limit: &Limit,
        target_bytes: f64,
    ) -> String {
        let method = match self.method {
            Method::Measured => "measured",
            Method::Static => "from the architecture",
        };
        let parts = if graphs < batch { format!(", {graphs} of them at a time,") } else { String::new() };
        format!(
            "memory: batches of {batch} graphs{parts} take at most {}, {method}; planned for are {} of {} ({})",
            gibibytes(self.peak_bytes(worst.shape(graphs))),
            gibibytes(target_bytes),
            gibibytes(limit.bytes as f64),
            limit.source
        )
    }

    /// The budget by component, at the worst batch of `graphs` graphs.
    pub fn table(&self, graphs: usize, worst: &WorstBatches) -> String {
        let shape = worst.shape(graphs);
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
            format!("peak at {graphs} graphs"),
            "",
            format!("{:.0} nodes", shape.nodes),
            format!("{:.0} edges", shape.edges),
            mebibytes(self.peak_bytes(shape))
        );
        text
    }

    /// The component that takes most at a size.
    pub fn largest_component(&self, shape: Shape) -> Option<&Component> {
        self.components.iter().max_by(|a, b| a.bytes.at(shape).total_cmp(&b.bytes.at(shape)))
    }
}

/// The largest sums of nodes and of edges that batches of a dataset can have.
#[derive(Clone, Debug)]
pub struct WorstBatches {
    nodes: LargestSums,
    edges: LargestSums,
}

/// Sums of the largest `1`, `2`, … graphs.
#[derive(Clone, Debug)]
enum LargestSums {
    /// As they are.
    Each(Vec<f64>),
    /// Of graphs that all have one size.
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
    /// Of graphs with these numbers of nodes and edges (self-loops of attention included).
    pub fn new(sizes: impl Iterator<Item = (u64, u64)>) -> Self {
        let (nodes, edges): (Vec<u64>, Vec<u64>) = sizes.unzip();
        Self { nodes: LargestSums::Each(largest_sums(nodes)), edges: LargestSums::Each(largest_sums(edges)) }
    }

    /// Of graphs that all have this size. It takes the same memory however many they are.
    pub fn uniform(nodes: f64, edges: f64, graphs: usize) -> Self {
        let alike = |size| LargestSums::Alike { size, graphs };
        Self { nodes: alike(nodes), edges: alike(edges) }
    }

    /// The worst batch of that many graphs.
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

/// Bytes in GiB, as people read them.
pub fn gibibytes(bytes: f64) -> String {
    if bytes < 1e9 { mebibytes(bytes) } else { format!("{:.2} GiB", bytes / f64::from(1 << 30)) }
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_function_is_found_again() {
        let truth = Linear { fixed: 5e5, per_node: 321.0, per_edge: 17.0 };
        let shapes = [(100.0, 300.0), (400.0, 1300.0), (900.0, 2000.0), (1000.0, 5000.0)];
        let shapes = shapes.map(|(nodes, edges)| Shape { graphs: 1.0, nodes, edges });
        let found = Linear::fit(&shapes.map(|shape| (shape, truth.at(shape))));
        assert!((found.per_node - 321.0).abs() < 1e-3 && (found.per_edge - 17.0).abs() < 1e-3, "{found:?}");
        assert!((found.fixed - 5e5).abs() < 1.0, "{found:?}");
    }

    #[test]
    fn sizes_that_cannot_be_told_apart_give_a_function_of_nodes() {
        let shapes = [1.0, 2.0, 5.0].map(|size| Shape { graphs: 1.0, nodes: 100.0 * size, edges: 300.0 * size });
        let found = Linear::fit(&shapes.map(|shape| (shape, 7.0 + shape.nodes + shape.edges)));
        assert!((found.at(shapes[2]) - 2007.0).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn recorded_steps_keep_what_a_step_takes() {
        let bytes = Linear { fixed: 100.0, per_node: 10.0, per_edge: 1.0 };
        let component = |name, moment| Component { name, moment, bytes };
        let components = vec![
            component("parameters", Moment::Always),
            component(BATCH_DATA, Moment::Always),
            component(TARGETS, Moment::Always),
            component("activations", Moment::Step),
            component("optimiser's update", Moment::Update),
        ];
        let mut budget = MemoryBudget { method: Method::Measured, components };
        let shape = Shape { graphs: 1.0, nodes: 20.0, edges: 60.0 };
        let before = budget.peak_bytes(shape);
        budget.record_steps();
        let step = bytes.at(shape);
        assert!((budget.peak_bytes(shape) - before - (1.0 + 2.0 * RECORDED_SIZES) * step * 17.0 / 16.0).abs() < 1e-9);
    }

    #[test]
    fn whole_batches_are_there_however_few_graphs_go_through_the_model() {
        let bytes = Linear { fixed: 0.0, per_node: 10.0, per_edge: 0.0 };
        let component = |name, moment| Component { name, moment, bytes };
        let components = vec![
            component(BATCH_DATA, Moment::Always),
            component(LOADER_QUEUE, Moment::Always),
            component(TARGETS, Moment::Always),
            component(TEACHER_ACTIVATIONS, Moment::Visit),
            component("activations", Moment::Step),
        ];
        let budget = MemoryBudget { method: Method::Static, components };
        let shape = |nodes| Shape { graphs: 16.0, nodes, edges: 0.0 };
        let whole = WholeBatches { burst: 4, mean: shape(100.0), largest: shape(120.0) };
        let (together, budget) = (budget.with_whole_batches(&whole, false), budget.with_whole_batches(&whole, true));
        assert_eq!(together.peak_bytes(shape(120.0)), 1000.0 + 1000.0 + 1200.0 + 1200.0);
        // Data and targets of the burst, what waits; of a visit joined targets, half a batch of data, eight graphs' activations.
        let (always, visit) = (1000.0 + 1000.0 + 1200.0, 300.0 + 150.0 + 600.0);
        assert_eq!(budget.peak_bytes(shape(0.0)), always + visit);
        assert_eq!(budget.peak_bytes(shape(100.0)), always + visit);
        assert_eq!(budget.peak_bytes(shape(200.0)), always + 2000.0);
    }

    #[test]
    fn the_largest_batch_is_the_last_that_fits() {
        let bytes = Linear { fixed: 1000.0, per_node: 10.0, per_edge: 0.0 };
        let components = vec![Component { name: "activations", moment: Moment::Step, bytes }];
        let budget = MemoryBudget { method: Method::Static, components };
        let worst = WorstBatches::new((1..=100).map(|nodes| (nodes, 0)));
        for target in [1000.0, 2000.0, 5000.0, 30_000.0, 60_000.0] {
            let by_search = budget.largest_batch(&worst, target, 80);
            let by_trial = (1..=80).rev().find(|&graphs| budget.peak_bytes(worst.shape(graphs)) <= target);
            assert_eq!(by_search, by_trial, "target {target}");
        }
    }
}
