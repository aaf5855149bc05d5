//! Kernels of sums over pairs of nodes: one pass over memory each, without a tensor of messages. See [`crate::space::messages`].

use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::{Blocks, by_blocks, empty};
use crate::space::Pairs;

/// Components of a vector in space.
const AXES: usize = 3;

/// One side of the pairs, from which a sum over pairs is seen: each node's pairs, and the node at the other end of each.
struct Side<'a> {
    pointers: &'a [i64],
    /// Numbers of the pairs in order of the nodes; `None` if that is their own order.
    pairs: Option<&'a [i64]>,
    others: &'a [i64],
    lines: &'a [i64],
}

impl<'a> Side<'a> {
    /// The pairs of each receiving node.
    fn of_targets(pairs: &'a Pairs) -> Result<Self, TchError> {
        let [pointers, others, lines] = indices([&pairs.target_pointers, &pairs.sources, &pairs.lines])?;
        Ok(Self { pointers, pairs: None, others, lines })
    }

    /// The pairs of each sending node.
    fn of_sources(pairs: &'a Pairs) -> Result<Self, TchError> {
        let [pointers, others, lines] = indices([&pairs.source_pointers, &pairs.targets, &pairs.lines])?;
        let [order] = indices([&pairs.by_source])?;
        Ok(Self { pointers, pairs: Some(order), others, lines })
    }

    fn nodes(&self) -> usize {
        self.pointers.len().saturating_sub(1)
    }

    /// Blocks of nodes with about the same number of elements.
    fn blocks(&self, columns: usize) -> Blocks {
        let nodes = self.nodes();
        Blocks::new(nodes, columns * self.others.len().div_ceil(nodes.max(1)).max(1), 1)
    }

    /// Calls `body` with each pair of a node, its line, and the node at its other end.
    #[inline(always)]
    fn each_of(&self, node: usize, mut body: impl FnMut(usize, usize, usize)) {
        for place in self.pointers[node] as usize..self.pointers[node + 1] as usize {
            let pair = self.pairs.map_or(place, |pairs| pairs[place] as usize);
            body(pair, self.lines[pair] as usize, self.others[pair] as usize);
        }
    }
}

/// Indices of pairs, lines or nodes.
fn indices<const COUNT: usize>(tensors: [&Tensor; COUNT]) -> Result<[&[i64]; COUNT], TchError> {
    let mut found = [&[][..]; COUNT];
    for (found, tensor) in found.iter_mut().zip(tensors) {
        *found = view::read::<i64>("pairs", tensor)?;
    }
    Ok(found)
}

/// The lines with the ends of their pairs.
#[derive(Clone, Copy)]
struct Lines<'a> {
    sources: &'a [i64],
    targets: &'a [i64],
    firsts: &'a [i64],
    /// Empty if each pair is a line of its own.
    seconds: &'a [i64],
}

impl<'a> Lines<'a> {
    fn of(pairs: &'a Pairs) -> Result<Self, TchError> {
        let [sources, targets, firsts] = indices([&pairs.sources, &pairs.targets, &pairs.firsts])?;
        let seconds = pairs.seconds.as_ref().map(|seconds| indices([seconds])).transpose()?;
        Ok(Self { sources, targets, firsts, seconds: seconds.map_or(&[], |[seconds]| seconds) })
    }

    /// Blocks of lines of `columns` elements.
    fn blocks(&self, columns: usize) -> Blocks {
        Blocks::new(self.firsts.len(), 2 * columns, 1)
    }

    /// Calls `body` with each pair of a line, its source and its target.
    #[inline(always)]
    fn each_of(&self, line: usize, mut body: impl FnMut(usize, usize, usize)) {
        for pair in [self.firsts.get(line), self.seconds.get(line)].into_iter().flatten() {
            let pair = *pair as usize;
            body(pair, self.sources[pair] as usize, self.targets[pair] as usize);
        }
    }
}

/// A side of the pairs, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Sums over the pairs that a node receives from.
    Target,
    /// Sums over the pairs that a node sends to.
    Source,
}

fn side(pairs: &Pairs, end: End) -> Result<Side<'_>, TchError> {
    match end {
        End::Target => Side::of_targets(pairs),
        End::Source => Side::of_sources(pairs),
    }
}

#[inline(always)]
fn row(values: &[f32], index: usize, columns: usize) -> &[f32] {
    &values[index * columns..(index + 1) * columns]
}

/// Σ_p w[line(p), f]·x[other(p), c, f] over the pairs of each node: filters `[lines, columns]` and rows `[nodes, components, columns]` of the
/// other ends → rows of the nodes.
pub fn filtered(pairs: &Pairs, end: End, filters: &Tensor, rows: &Tensor) -> Result<Tensor, TchError> {
    let side = side(pairs, end)?;
    let [components, columns] = components(rows);
    let [filters, values] = [view::read::<f32>("filters", filters)?, view::read::<f32>("rows", rows)?];
    let blocks = side.blocks(components * columns);
    let output = empty(&[side.nodes() as i64, components as i64, columns as i64])?;
    by_blocks("sums", output, blocks, components * columns, |block, output: &mut [f32]| {
        let first = blocks.rows(block).start;
        dispatch(Filtered { side: &side, first, filters, values, components, columns, output });
    })
}

struct Filtered<'a> {
    side: &'a Side<'a>,
    first: usize,
    filters: &'a [f32],
    values: &'a [f32],
    components: usize,
    columns: usize,
    output: &'a mut [f32],
}

impl Kernel for Filtered<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let (columns, width) = (self.columns.max(1), (self.columns * self.components).max(1));
        for (node, output) in (self.first..).zip(self.output.chunks_exact_mut(width)) {
            output.fill(0.0);
            self.side.each_of(node, |_, line, other| {
                let filter = row(self.filters, line, columns);
                let values = row(self.values, other, width).chunks_exact(columns);
                for (sums, values) in output.chunks_exact_mut(columns).zip(values) {
                    for ((sum, &value), &filter) in sums.iter_mut().zip(values).zip(filter) {
                        *sum += filter * value;
                    }
                }
            });
        }
    }
}

/// Σ_p Σ_c x[source(p), c, f]·g[target(p), c, f] over the pairs of each line: rows `[nodes, components, columns]` each → `[lines, columns]`.
pub fn products(pairs: &Pairs, of_sources: &Tensor, of_targets: &Tensor) -> Result<Tensor, TchError> {
    let [components, columns] = components(of_sources);
    let [x, g] = [view::read::<f32>("rows", of_sources)?, view::read::<f32>("rows", of_targets)?];
    let lines = Lines::of(pairs)?;
    let blocks = lines.blocks(components * columns);
    let output = empty(&[pairs.num_lines(), columns as i64])?;
    by_blocks("products", output, blocks, columns, |block, output: &mut [f32]| {
        let first = blocks.rows(block).start;
        dispatch(Products { lines, first, x, g, components, columns, output });
    })
}

struct Products<'a> {
    lines: Lines<'a>,
    first: usize,
    x: &'a [f32],
    g: &'a [f32],
    components: usize,
    columns: usize,
    output: &'a mut [f32],
}

impl Kernel for Products<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let (columns, width) = (self.columns.max(1), (self.columns * self.components).max(1));
        for (line, output) in (self.first..).zip(self.output.chunks_exact_mut(columns)) {
            output.fill(0.0);
            self.lines.each_of(line, |_, source, target| {
                let x = row(self.x, source, width).chunks_exact(columns);
                for (x, g) in x.zip(row(self.g, target, width).chunks_exact(columns)) {
                    for ((output, &x), &g) in output.iter_mut().zip(x).zip(g) {
                        *output += x * g;
                    }
                }
            });
        }
    }
}

/// Σ_p w[line(p), f]·x[source(p), f]·(± d[line(p), c]) over the pairs of each target: filters `[lines, columns]`, rows `[nodes, columns]` and
/// directions `[lines, 3]` → `[nodes, 3, columns]`.
pub fn directed(pairs: &Pairs, filters: &Tensor, rows: &Tensor, directions: &Tensor) -> Result<Tensor, TchError> {
    let side = Side::of_targets(pairs)?;
    let columns = last(rows);
    let of = Directed::read(pairs, Some(filters), Some(directions), columns)?;
    let values = view::read::<f32>("rows", rows)?;
    let blocks = side.blocks(AXES * columns);
    let output = empty(&[side.nodes() as i64, AXES as i64, columns as i64])?;
    by_blocks("sums", output, blocks, AXES * columns, |block, output: &mut [f32]| {
        let first = blocks.rows(block).start;
        dispatch(ToTargets { side: &side, of, first, values, output });
    })
}

/// Σ_p w[line(p), f]·Σ_c (± d[line(p), c])·g[target(p), c, f] over the pairs of each source: filters `[lines, columns]`, directions `[lines, 3]` and rows
/// `[nodes, 3, columns]` → `[nodes, columns]`.
pub fn against_directions(
    pairs: &Pairs,
    filters: &Tensor,
    directions: &Tensor,
    vectors: &Tensor,
) -> Result<Tensor, TchError> {
    let side = Side::of_sources(pairs)?;
    let columns = last(vectors);
    let of = Directed::read(pairs, Some(filters), Some(directions), columns)?;
    let values = view::read::<f32>("rows", vectors)?;
    let blocks = side.blocks(AXES * columns);
    let output = empty(&[side.nodes() as i64, columns as i64])?;
    by_blocks("sums", output, blocks, columns, |block, output: &mut [f32]| {
        let first = blocks.rows(block).start;
        dispatch(ToSources { side: &side, of, first, values, output });
    })
}

/// Σ_p x[source(p), f]·Σ_c (± d[c])·g[target(p), c, f] over the pairs of each line: rows `[nodes, columns]`, directions `[lines, 3]` and rows
/// `[nodes, 3, columns]` → `[lines, columns]`.
pub fn directed_products(
    pairs: &Pairs,
    rows: &Tensor,
    directions: &Tensor,
    vectors: &Tensor,
) -> Result<Tensor, TchError> {
    let columns = last(rows);
    let (lines, of) = (Lines::of(pairs)?, Directed::read(pairs, None, Some(directions), columns)?);
    let [x, g] = [view::read::<f32>("rows", rows)?, view::read::<f32>("rows", vectors)?];
    let blocks = lines.blocks(AXES * columns);
    let output = empty(&[pairs.num_lines(), columns as i64])?;
    by_blocks("products", output, blocks, columns, |block, output: &mut [f32]| {
        let first = blocks.rows(block).start;
        dispatch(DirectedProducts { lines, of, first, x, g, output });
    })
}

/// Σ_p ± Σ_f w[f]·x[source(p), f]·g[target(p), c, f] over the pairs of each line: filters `[lines, columns]`, rows `[nodes, columns]` and rows
/// `[nodes, 3, columns]` → `[lines, 3]`.
pub fn along_axes(pairs: &Pairs, filters: &Tensor, rows: &Tensor, vectors: &Tensor) -> Result<Tensor, TchError> {
    let columns = last(rows);
    let (lines, of) = (Lines::of(pairs)?, Directed::read(pairs, Some(filters), None, columns)?);
    let [x, g] = [view::read::<f32>("rows", rows)?, view::read::<f32>("rows", vectors)?];
    let blocks = lines.blocks(AXES * columns);
    let output = empty(&[pairs.num_lines(), AXES as i64])?;
    by_blocks("products", output, blocks, AXES, |block, output: &mut [f32]| {
        let first = blocks.rows(block).start;
        dispatch(AlongAxes { lines, of, first, x, g, output });
    })
}

/// Filters and directions of the lines.
#[derive(Clone, Copy)]
struct Directed<'a> {
    filters: &'a [f32],
    directions: &'a [f32],
    /// Sign of each pair: 1 along its line's direction, -1 against it.
    signs: &'a [f32],
    columns: usize,
}

impl<'a> Directed<'a> {
    fn read(
        pairs: &'a Pairs,
        filters: Option<&'a Tensor>,
        directions: Option<&'a Tensor>,
        columns: usize,
    ) -> Result<Self, TchError> {
        let read = |name: &str, tensor: Option<&'a Tensor>| {
            tensor.map_or(Ok(&[][..]), |tensor| view::read::<f32>(name, tensor))
        };
        let (filters, directions) = (read("filters", filters)?, read("directions", directions)?);
        Ok(Self { filters, directions, signs: view::read("signs", &pairs.signs)?, columns })
    }

    #[inline(always)]
    fn filter(&self, line: usize) -> &'a [f32] {
        row(self.filters, line, self.columns)
    }

    #[inline(always)]
    fn direction(&self, pair: usize, line: usize) -> [f32; AXES] {
        [0, 1, 2].map(|axis| self.signs[pair] * self.directions[AXES * line + axis])
    }
}

/// The three components of a row `[3, columns]`.
#[inline(always)]
fn axes(row: &[f32], columns: usize) -> [&[f32]; AXES] {
    let (x, rest) = row.split_at(columns);
    let (y, z) = rest.split_at(columns);
    [x, y, z]
}

/// Adds to each column its factor times the part of its vector along a direction; vectors `[3, columns]`.
#[inline(always)]
fn add_along([x, y, z]: [f32; AXES], vectors: &[f32], factors: &[f32], sums: &mut [f32]) {
    let [of_x, of_y, of_z] = axes(vectors, sums.len());
    let vectors = of_x.iter().zip(of_y).zip(of_z);
    for ((sum, &factor), ((&of_x, &of_y), &of_z)) in sums.iter_mut().zip(factors).zip(vectors) {
        *sum += factor * (x * of_x + y * of_y + z * of_z);
    }
}

struct ToTargets<'a> {
    side: &'a Side<'a>,
    of: Directed<'a>,
    first: usize,
    values: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for ToTargets<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.of.columns.max(1);
        for (node, output) in (self.first..).zip(self.output.chunks_exact_mut(AXES * columns)) {
            output.fill(0.0);
            let (to_x, rest) = output.split_at_mut(columns);
            let (to_y, to_z) = rest.split_at_mut(columns);
            self.side.each_of(node, |pair, line, source| {
                let [x, y, z] = self.of.direction(pair, line);
                let messages = self.of.filter(line).iter().zip(row(self.values, source, columns));
                let sums = to_x.iter_mut().zip(&mut *to_y).zip(&mut *to_z);
                for (((to_x, to_y), to_z), (&filter, &value)) in sums.zip(messages) {
                    let message = filter * value;
                    *to_x += message * x;
                    *to_y += message * y;
                    *to_z += message * z;
                }
            });
        }
    }
}

struct ToSources<'a> {
    side: &'a Side<'a>,
    of: Directed<'a>,
    first: usize,
    values: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for ToSources<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.of.columns.max(1);
        for (node, output) in (self.first..).zip(self.output.chunks_exact_mut(columns)) {
            output.fill(0.0);
            self.side.each_of(node, |pair, line, target| {
                let vectors = row(self.values, target, AXES * columns);
                add_along(self.of.direction(pair, line), vectors, self.of.filter(line), output);
            });
        }
    }
}

struct DirectedProducts<'a> {
    lines: Lines<'a>,
    of: Directed<'a>,
    first: usize,
    x: &'a [f32],
    g: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for DirectedProducts<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.of.columns.max(1);
        for (line, output) in (self.first..).zip(self.output.chunks_exact_mut(columns)) {
            output.fill(0.0);
            self.lines.each_of(line, |pair, source, target| {
                let vectors = row(self.g, target, AXES * columns);
                add_along(self.of.direction(pair, line), vectors, row(self.x, source, columns), output);
            });
        }
    }
}

struct AlongAxes<'a> {
    lines: Lines<'a>,
    of: Directed<'a>,
    first: usize,
    x: &'a [f32],
    g: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for AlongAxes<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.of.columns.max(1);
        for (line, output) in (self.first..).zip(self.output.chunks_exact_mut(AXES)) {
            output.fill(0.0);
            self.lines.each_of(line, |pair, source, target| {
                let (filter, values) = (self.of.filter(line), row(self.x, source, columns));
                let vectors = axes(row(self.g, target, AXES * columns), columns);
                for (output, vector) in output.iter_mut().zip(vectors) {
                    *output += self.of.signs[pair] * triple_product(filter, values, vector);
                }
            });
        }
    }
}

/// Σ_f a[f]·b[f]·c[f], in an order that depends on the length alone.
#[inline(always)]
fn triple_product(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut lanes = [0.0_f32; LANES];
    let [(a, rest_a), (b, rest_b), (c, rest_c)] = [a, b, c].map(|values| values.as_chunks::<LANES>());
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane] * c[lane];
        }
    }
    let rest = rest_a.iter().zip(rest_b).zip(rest_c).map(|((a, b), c)| a * b * c).sum::<f32>();
    lanes.iter().sum::<f32>() + rest
}

/// Components and columns of rows `[nodes, components, columns]`.
fn components(rows: &Tensor) -> [usize; 2] {
    let size = rows.size();
    // Sizes of tensors are never negative.
    [size.get(1).copied().unwrap_or(1) as usize, last(rows)]
}

/// Number of columns: the last axis.
fn last(rows: &Tensor) -> usize {
    rows.size().last().copied().unwrap_or(0) as usize
}
