//! Weighted sums over each node's incoming edges: `out_i = start_i + Σ_j w_ij x_j`, one pass over memory forward and one
//! backward. Sources that are no targets are allowed; the targets are the first of the sources.

use std::ffi::CStr;

use kdgat_graph::Adjacency;
use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::rows::{Heads, Initial, Matrix};
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{Kind, TchError, Tensor};

use super::{Blocks, applies, empty, shape};
use crate::attention::Backend;
use crate::{ModelError, segments};

/// Weights of the edges in a sum over neighbours. A node has d neighbours besides itself.
#[derive(Debug, Clone, Copy)]
pub enum Weighting<'a> {
    /// 1 for each neighbour and for the node itself.
    Sum,
    /// 1/d for each neighbour, 0 for the node itself; a node without neighbours has a mean of 0.
    Mean,
    /// 1/(d + 1) for each neighbour and for the node itself.
    MeanWithOwn,
    /// The factor divided by √(D_i D_j), with D = d + 1 (Kipf & Welling 2017).
    Symmetric {
        /// `[num_sources]`, f32: D of each source. `None`: the edges are all edges of their nodes, and are counted.
        ///
        /// If a target i has only k of its D_i − 1 other edges, for example because they were sampled, each counts
        /// (D_i − 1)/k times: the sum over all edges is then the expectation.
        degrees: Option<&'a Tensor>,
        /// The factor.
        factor: f64,
    },
}

/// Initial values of a sum over neighbours.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a> {
    /// Zero.
    Zero,
    /// The same row for each target, `[columns]`.
    Row(&'a Tensor),
    /// A row for each target, `[num_targets, columns]`.
    Rows(&'a Tensor),
}

/// Sums the rows of each node's sources, itself included: `[num_sources, columns]` → `[num_targets, columns]`.
pub fn neighbour_sum(x: &Tensor, adjacency: &Adjacency, kernel: Backend) -> Result<Tensor, ModelError> {
    weighted_neighbour_sum(x, adjacency, Weighting::Sum, Start::Zero, kernel)
}

/// Adds to `start` the weighted sum of the rows of each node's sources: `[num_sources, columns]` → `[num_targets, columns]`.
///
/// # Errors
/// Shapes that do not match, or a symmetric weighting without degrees where some sources are no targets.
pub fn weighted_neighbour_sum(
    x: &Tensor,
    adjacency: &Adjacency,
    weighting: Weighting,
    start: Start,
    kernel: Backend,
) -> Result<Tensor, ModelError> {
    expect_countable(adjacency, weighting)?;
    let (targets, columns) = (adjacency.num_targets(), x.size().get(1).copied().unwrap_or(0));
    let (initial, expected) = match start {
        Start::Zero => (None, Vec::new()),
        Start::Row(row) => (Some(row), vec![columns]),
        Start::Rows(rows) => (Some(rows), vec![targets, columns]),
    };
    if let Some(initial) = initial.filter(|initial| initial.size() != expected) {
        let text = format!("the start of sums over neighbours has shape {:?}, expected {expected:?}", initial.size());
        return Err(TchError::Shape(text).into());
    }
    if applies(kernel, &[x]) && initial.is_none_or(|initial| applies(kernel, &[initial])) {
        let factors = Factors::new(adjacency, weighting)?;
        let mut inputs = vec![x.f_contiguous()?];
        inputs.extend(initial.map(Tensor::f_contiguous).transpose()?);
        let adds_one_row = matches!(start, Start::Row(_));
        let function = NeighbourSum { adjacency: adjacency.shallow_clone(), factors, adds_one_row };
        return Ok(autograd::apply_one(function, &inputs.iter().collect::<Vec<_>>())?);
    }
    let values = x.f_index_select(0, &adjacency.sources)?;
    let weights = composed_weights(adjacency, weighting)?;
    let values = match weights {
        None => values,
        Some(weights) => values.f_mul(&weights.f_to_kind(values.f_kind()?)?)?,
    };
    let of_edge = adjacency.targets.f_to_kind(Kind::Int64)?;
    let sums = segments::sums(&values, &adjacency.row_pointers, &of_edge)?;
    Ok(match initial {
        None => sums,
        Some(initial) => sums.f_add(initial)?,
    })
}

/// Fails for weights that need degrees which are not known.
fn expect_countable(adjacency: &Adjacency, weighting: Weighting) -> Result<(), ModelError> {
    let (sources, targets) = (adjacency.num_sources(), adjacency.num_targets());
    let Weighting::Symmetric { degrees, .. } = weighting else { return Ok(()) };
    match degrees {
        None if sources != targets => Err(ModelError::Architecture {
            field: "source_degrees",
            found: format!("none for {sources} sources of {targets} targets"),
            expected: "GCN and APPNP divide by the degrees of the sources: make the batch with them",
        }),
        Some(degrees) if degrees.size() != [sources] => {
            let text = format!("the degrees of the sources have shape {:?}, expected [{sources}]", degrees.size());
            Err(TchError::Shape(text).into())
        }
        _ => Ok(()),
    }
}

/// Weight of each edge, `[num_edges, 1]`; `None` if all are 1.
fn composed_weights(adjacency: &Adjacency, weighting: Weighting) -> Result<Option<Tensor>, TchError> {
    let counts = adjacency.row_pointers.f_diff(1, -1, None::<Tensor>, None::<Tensor>)?.f_to_kind(Kind::Float)?;
    let is_own = || adjacency.sources.f_eq_tensor(&adjacency.targets);
    let of_target = |values: &Tensor| values.f_index_select(0, &adjacency.targets);
    let weights = match weighting {
        Weighting::Sum => return Ok(None),
        Weighting::Mean => {
            let others = counts.f_sub_scalar(1.0)?.f_clamp_min(1.0)?;
            of_target(&others.f_reciprocal()?)?.f_masked_fill(&is_own()?, 0.0)?
        }
        Weighting::MeanWithOwn => of_target(&counts.f_reciprocal()?)?,
        Weighting::Symmetric { degrees, factor } => {
            let degrees = degrees.unwrap_or(&counts);
            let of_targets = degrees.f_narrow(0, 0, adjacency.num_targets())?;
            let others = of_targets.f_sub_scalar(1.0)?.f_div(&counts.f_sub_scalar(1.0)?.f_clamp_min(1.0)?)?;
            let root = degrees.f_rsqrt()?;
            let to = of_target(&of_targets.f_rsqrt()?.f_mul(&others)?)?;
            let weights = root.f_index_select(0, &adjacency.sources)?.f_mul(&to)?;
            let own = of_target(&of_targets.f_reciprocal()?)?;
            own.f_where_self(&is_own()?, &weights)?.f_mul_scalar(factor)?
        }
    };
    Ok(Some(weights.f_unsqueeze(1)?))
}

/// Weights as products: that of the edge from j to i is `targets[i] * sources[j]`, that of a self-loop `own[i]`.
struct Factors {
    /// `[num_targets]`; `None`: 1.
    targets: Option<Vec<f32>>,
    /// `[num_sources]`; `None`: 1.
    sources: Option<Vec<f32>>,
    own: Own,
}

enum Own {
    /// Self-loops have the weight of other edges.
    AsOthers,
    /// Self-loops do not count.
    Excluded,
    /// `[num_targets]`
    Weights(Vec<f32>),
}

impl Factors {
    fn new(adjacency: &Adjacency, weighting: Weighting) -> Result<Self, TchError> {
        let pointers = view::read::<i32>("row_pointers", &adjacency.row_pointers)?;
        let counts = pointers.windows(2).map(|ends| (ends[1] - ends[0]) as f32);
        Ok(match weighting {
            Weighting::Sum => Self { targets: None, sources: None, own: Own::AsOthers },
            Weighting::Mean => {
                let targets = counts.map(|count| 1.0 / (count - 1.0).max(1.0)).collect();
                Self { targets: Some(targets), sources: None, own: Own::Excluded }
            }
            Weighting::MeanWithOwn => {
                let targets = counts.map(|count| 1.0 / count).collect();
                Self { targets: Some(targets), sources: None, own: Own::AsOthers }
            }
            Weighting::Symmetric { degrees: None, factor } => {
                let (factor, degrees) = (factor as f32, counts);
                let sources: Vec<f32> = degrees.clone().map(|degree| 1.0 / degree.sqrt()).collect();
                let targets = sources.iter().map(|root| root * factor).collect();
                let own = degrees.map(|degree| factor / degree).collect();
                Self { targets: Some(targets), sources: Some(sources), own: Own::Weights(own) }
            }
            Weighting::Symmetric { degrees: Some(degrees), factor } => {
                let (factor, degrees) = (factor as f32, view::read::<f32>("degrees", degrees)?);
                let sources: Vec<f32> = degrees.iter().map(|degree| 1.0 / degree.sqrt()).collect();
                let of_targets = counts.zip(degrees).zip(&sources);
                let targets = of_targets
                    .map(|((count, degree), root)| root * ((degree - 1.0) / (count - 1.0).max(1.0)) * factor)
                    .collect();
                let own = degrees.iter().take(pointers.len() - 1).map(|degree| factor / degree).collect();
                Self { targets: Some(targets), sources: Some(sources), own: Own::Weights(own) }
            }
        })
    }
}

struct NeighbourSum {
    adjacency: Adjacency,
    factors: Factors,
    /// True if the start is the same row for each target.
    adds_one_row: bool,
}

impl Function for NeighbourSum {
    const NAME: &'static CStr = c"fused sum over neighbours";

    fn forward(&mut self, inputs: &[&Tensor], _: bool) -> Result<Forward, TchError> {
        let initial = inputs.get(1).map(|initial| view::read::<f32>("start", initial)).transpose()?;
        let edges = Edges {
            pointers: view::read("row_pointers", &self.adjacency.row_pointers)?,
            order: None,
            others: view::read("sources", &self.adjacency.sources)?,
            factor: self.factors.targets.as_deref(),
            other_factor: self.factors.sources.as_deref(),
            own: &self.factors.own,
        };
        let output = edges.sums(inputs[0], self.adjacency.num_sources(), initial)?;
        Ok(Forward { outputs: vec![output], saved: Vec::new() })
    }

    fn backward(&self, _: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(needed.iter().map(|_| None).collect()) };
        let gradient = gradient.f_contiguous()?;
        let edges = Edges {
            pointers: view::read("column_pointers", &self.adjacency.column_pointers)?,
            order: Some(view::read("transposed", &self.adjacency.transposed)?),
            others: view::read("targets", &self.adjacency.targets)?,
            factor: self.factors.sources.as_deref(),
            other_factor: self.factors.targets.as_deref(),
            own: &self.factors.own,
        };
        let of_x = needed[0].then(|| edges.sums(&gradient, self.adjacency.num_targets(), None)).transpose()?;
        let mut results = vec![of_x];
        if let Some(&needed) = needed.get(1) {
            results.push(needed.then(|| self.gradient_of_start(&gradient)).transpose()?);
        }
        Ok(results)
    }
}

impl NeighbourSum {
    fn gradient_of_start(&self, gradient: &Tensor) -> Result<Tensor, TchError> {
        match self.adds_one_row {
            true => column_sums(gradient),
            false => Ok(gradient.shallow_clone()),
        }
    }
}

/// Edges by the node at one end, the row that a sum is written to; the other end picks the rows to add.
#[derive(Clone, Copy)]
struct Edges<'a> {
    /// Edges of row `i` are `pointers[i]..pointers[i + 1]`.
    pointers: &'a [i32],
    /// Position of each edge in `others`; `None`: the same.
    order: Option<&'a [i32]>,
    /// The node at the other end.
    others: &'a [i32],
    /// Factor by row.
    factor: Option<&'a [f32]>,
    /// Factor by the node at the other end.
    other_factor: Option<&'a [f32]>,
    own: &'a Own,
}

impl Edges<'_> {
    /// Adds the weighted sums of the rows of `x`, which has `expected` rows, to `initial`: `[rows, columns]`.
    fn sums(self, x: &Tensor, expected: i64, initial: Option<&[f32]>) -> Result<Tensor, TchError> {
        let ([nodes, columns], rows) = (shape("x", x)?, self.pointers.len().saturating_sub(1));
        if nodes as i64 != expected {
            return Err(TchError::Shape(format!("x has {nodes} rows, the graph {expected} nodes")));
        }
        let (matrix, heads) = (Matrix::new(view::read::<f32>("x", x)?, columns), Heads::new(1, columns));
        let mut output = empty(&[rows as i64, columns as i64])?;
        let blocks = Blocks::new(rows, columns * self.others.len().div_ceil(rows.max(1)).max(1), 1);
        let parts = Parts::new(view::write::<f32>("sums", &mut output)?, blocks.bounds(columns));
        blocks.for_each(|block| {
            let first = blocks.rows(block).start;
            let output = parts.take(block);
            dispatch(Sums { edges: self, first, matrix, columns, heads: &heads, initial, output });
        });
        drop(parts);
        Ok(output)
    }

    /// Writes the rows to add to `row` and their weights, and returns their number.
    #[inline(always)]
    fn pick(&self, row: usize, picked: &mut [i32], weights: &mut [f32]) -> usize {
        let of_row = self.factor.map_or(1.0, |factor| factor[row]);
        let mut count = 0;
        for place in self.pointers[row] as usize..self.pointers[row + 1] as usize {
            let edge = self.order.map_or(place, |order| order[place] as usize);
            let other = self.others[edge] as usize;
            let is_own = other == row;
            weights[count] = match self.own {
                Own::Weights(own) if is_own => own[row],
                _ => of_row * self.other_factor.map_or(1.0, |factor| factor[other]),
            };
            picked[count] = other as i32;
            count += usize::from(!(is_own && matches!(self.own, Own::Excluded)));
        }
        count
    }
}

struct Sums<'a> {
    edges: Edges<'a>,
    /// The first row of the block.
    first: usize,
    matrix: Matrix<'a, f32>,
    columns: usize,
    heads: &'a Heads,
    /// One row, or a row for each node.
    initial: Option<&'a [f32]>,
    output: &'a mut [f32],
}

impl Kernel for Sums<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.columns.max(1);
        let rows = self.first..self.first + self.output.len() / columns;
        let pointers = &self.edges.pointers[rows.start..=rows.end];
        // Pointers ascend.
        let longest = pointers.windows(2).map(|ends| (ends[1] - ends[0]) as usize).max().unwrap_or(0);
        let (mut picked, mut weights) = (vec![0; longest], vec![0.0; longest]);
        for (row, output) in rows.zip(self.output.chunks_exact_mut(columns)) {
            let count = self.edges.pick(row, &mut picked, &mut weights);
            let initial = match self.initial {
                None => Initial::Zero,
                Some(same) if same.len() == columns => Initial::Row(same),
                Some(rows) => Initial::Row(&rows[row * columns..(row + 1) * columns]),
            };
            I::sum_rows(output, initial, (self.matrix, &picked[..count]), &weights[..count], self.heads);
        }
    }
}

/// The sum of each column: `[rows, columns]` → `[columns]`.
pub(super) fn column_sums(x: &Tensor) -> Result<Tensor, TchError> {
    let [rows, columns] = shape("x", x)?;
    let values = view::read::<f32>("x", x)?;
    let blocks = Blocks::new(rows, columns, 1);
    let mut by_block = empty(&[blocks.count() as i64, columns as i64])?;
    let bounds = (0..=blocks.count()).map(|block| block * columns);
    let parts = Parts::new(view::write::<f32>("sums by block", &mut by_block)?, bounds);
    blocks.for_each(|block| {
        dispatch(ColumnSums { rows: &values[blocks.elements(block, columns)], sums: parts.take(block) });
    });
    drop(parts);
    let mut sums = vec![0.0_f64; columns];
    for of_block in view::read::<f32>("sums by block", &by_block)?.chunks_exact(columns.max(1)) {
        sums.iter_mut().zip(of_block).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    Tensor::f_from_slice(&sums.into_iter().map(|sum| sum as f32).collect::<Vec<_>>())
}

struct ColumnSums<'a> {
    rows: &'a [f32],
    sums: &'a mut [f32],
}

impl Kernel for ColumnSums<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        self.sums.fill(0.0);
        for row in self.rows.chunks_exact(self.sums.len().max(1)) {
            self.sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tch::Device;

    use super::*;
    use crate::test_graphs::{adjacency, first_targets, numbers, random_edges, relative_difference};

    /// Results of a sum and its gradients with respect to x and to the start.
    fn results(graph: &Adjacency, weighting: Weighting, rows: bool, columns: i64, kernel: Backend) -> [Tensor; 3] {
        let (sources, targets) = (graph.num_sources(), graph.num_targets());
        let x = numbers(&[sources, columns], 1).set_requires_grad(true);
        let start = if rows { numbers(&[targets, columns], 2) } else { numbers(&[columns], 2) };
        let start = start.set_requires_grad(true);
        let of = if rows { Start::Rows(&start) } else { Start::Row(&start) };
        let sums = weighted_neighbour_sum(&x, graph, weighting, of, kernel).unwrap();
        assert_eq!(sums.size(), [targets, columns]);
        (&sums * numbers(&[targets, columns], 3)).sum(Kind::Float).backward();
        [sums.detach(), x.grad(), start.grad()]
    }

    fn degrees(graph: &Adjacency) -> Tensor {
        (numbers(&[graph.num_sources()], 9).abs() * 20.0).ceil() + 1.0
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Fused sums and their gradients are the composed ones, for graphs with and without sources that are no targets.
        #[test]
        fn fused_sums_are_the_composed_ones(
            targets in 0usize..60, others in 0usize..40, edges in 0usize..300, columns in 1i64..40, seed in 0u64..1000,
        ) {
            let nodes = [targets + others, targets];
            let edges = if targets == 0 { Vec::new() } else { random_edges(nodes, edges, seed) };
            let graph = adjacency(nodes, edges);
            let degrees = degrees(&graph);
            let mut weightings = vec![
                Weighting::Sum, Weighting::Mean, Weighting::MeanWithOwn,
                Weighting::Symmetric { degrees: Some(&degrees), factor: 0.7 },
            ];
            if others == 0 {
                weightings.push(Weighting::Symmetric { degrees: None, factor: 1.0 });
            }
            for weighting in weightings {
                for rows in [true, false] {
                    let [fused, composed] =
                        [Backend::Fused, Backend::Composed].map(|kernel| results(&graph, weighting, rows, columns, kernel));
                    for (fused, composed) in fused.iter().zip(&composed) {
                        let difference = relative_difference(fused, composed);
                        prop_assert!(difference < 1e-5, "{weighting:?}, rows {rows}: {difference:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn targets_have_the_sums_of_the_whole_graph() {
        let whole = adjacency([50, 50], random_edges([50, 50], 300, 4));
        let part = first_targets(&whole, 20);
        let degrees = whole.row_pointers.diff(1, -1, None::<Tensor>, None::<Tensor>).to_kind(Kind::Float);
        let x = numbers(&[50, 24], 1);
        for kernel in [Backend::Fused, Backend::Composed] {
            let of = |graph, weighting| weighted_neighbour_sum(&x, graph, weighting, Start::Zero, kernel).unwrap();
            for weighting in [Weighting::Sum, Weighting::Mean, Weighting::MeanWithOwn] {
                assert!(of(&part, weighting).equal(&of(&whole, weighting).narrow(0, 0, 20)), "{weighting:?}");
            }
            let symmetric = |degrees| Weighting::Symmetric { degrees, factor: 1.0 };
            let (part, whole) = (of(&part, symmetric(Some(&degrees))), of(&whole, symmetric(None)).narrow(0, 0, 20));
            assert!(relative_difference(&part, &whole) < 1e-6);
        }
    }

    #[test]
    fn numbers_of_threads_change_no_bit() {
        let graph = adjacency([3000, 2000], random_edges([3000, 2000], 20_000, 6));
        let degrees = degrees(&graph);
        let weighting = Weighting::Symmetric { degrees: Some(&degrees), factor: 0.9 };
        let threads = tch::get_num_threads();
        let found = [1, 2, 4].map(|count| {
            tch::set_num_threads(count);
            results(&graph, weighting, false, 31, Backend::Fused)
        });
        tch::set_num_threads(threads);
        for other in &found[1..] {
            assert!(found[0].iter().zip(other).all(|(one, other)| one.equal(other)));
        }
    }

    #[test]
    fn unknown_degrees_and_other_shapes_are_refused() {
        let graph = adjacency([5, 3], [(4, 1)]);
        let x = Tensor::ones([5, 2], (Kind::Float, Device::Cpu));
        let symmetric = Weighting::Symmetric { degrees: None, factor: 1.0 };
        let refused = |x: &Tensor, weighting, start| {
            weighted_neighbour_sum(x, &graph, weighting, start, Backend::Auto).unwrap_err().to_string()
        };
        assert!(refused(&x, symmetric, Start::Zero).contains("none for 5 sources of 3 targets"));
        let short = Tensor::ones([4], (Kind::Float, Device::Cpu));
        let of_short = Weighting::Symmetric { degrees: Some(&short), factor: 1.0 };
        assert!(refused(&x, of_short, Start::Zero).contains("shape [4], expected [5]"));
        assert!(refused(&x, Weighting::Mean, Start::Row(&short)).contains("shape [4], expected [2]"));
        assert!(refused(&x.narrow(0, 0, 4), Weighting::Mean, Start::Zero).contains("x has 4 rows, the graph 5 nodes"));
    }
}
