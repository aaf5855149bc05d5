//! Kernels of products of representations with weights of each edge, which are never made. See [`crate::irreps`].
//!
//! The weights of an edge are `W h`, linear in its radial features h. So a node's sum over its edges is the sum of `h ⊗ (x ⊗ Y)` over them,
//! `[components, fan, radial]` numbers, then one product with W for a tile of nodes. The memory is that of a tile, whatever the number of
//! edges, but for their gradients; the order of every sum depends on the shapes alone.

use std::ops::Range;

use kdgat_torch::parallel::{Parts, parallel_for};
use kdgat_torch::simd::product::{Left, Product, Start};
use kdgat_torch::simd::rows::Matrix;
use kdgat_torch::simd::transpose::transposed;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::{Blocks, by_blocks, empty};
use crate::irreps::{Block, Coupling, Edges, Entries};

/// Nodes of a tile: rows of the gradient of the weights are written once for so many nodes.
const NODES: usize = 16;

/// Elements of sums that are multiplied at once, which stay in a core's cache with the weights.
const ELEMENTS: usize = 128 * 1024;

/// Edges of a node that are multiplied at once.
const EDGES: usize = 64;

/// Most shares of the gradient of the weights, of which each takes the memory of the weights.
const SHARES: usize = 16;

/// Most bytes of all shares, if there is more than one for each of two threads.
const SHARE_BYTES: usize = 64 << 20;

/// Number of harmonics of a line.
const HARMONICS: usize = 9;

/// The harmonics of degree 1 change their sign against a line's direction.
const ODD: Range<usize> = 1..4;

/// The arguments of a product of representations.
#[derive(Clone, Copy)]
pub struct Arguments<'a> {
    /// The products and their coefficients.
    pub coupling: &'a Coupling,
    /// The edges.
    pub edges: &'a Edges,
    /// `[lines, radial]`: radial features.
    pub radial: &'a Tensor,
    /// `[rows, inputs]`: rows of the sending nodes.
    pub rows: &'a Tensor,
    /// `[lines, 9]`: spherical harmonics.
    pub harmonics: &'a Tensor,
    /// `[weights, radial]`: the last layer of the radial network, in the order of [`Coupling::order`].
    pub weights: &'a Tensor,
}

/// The arguments as slices.
#[derive(Clone, Copy)]
struct Views<'a> {
    coupling: &'a Coupling,
    pointers: &'a [i64],
    sources: &'a [i64],
    lines: &'a [i64],
    signs: &'a [f32],
    radial: &'a [f32],
    rows: &'a [f32],
    harmonics: &'a [f32],
    weights: &'a [f32],
    /// Number of radial features.
    features: usize,
}

impl<'a> Arguments<'a> {
    fn views(&self) -> Result<Views<'a>, TchError> {
        let Self { coupling, edges, radial, rows, harmonics, weights } = *self;
        let features = radial.size().last().copied().unwrap_or(0) as usize;
        let views = Views {
            coupling,
            pointers: view::read("pointers", &edges.pointers)?,
            sources: view::read("sources", &edges.sources)?,
            lines: view::read("lines", &edges.lines)?,
            signs: view::read("signs", &edges.signs)?,
            radial: view::read("radial features", radial)?,
            rows: view::read("rows", rows)?,
            harmonics: view::read("harmonics", harmonics)?,
            weights: view::read("weights", weights)?,
            features,
        };
        let lines = edges.by_line.pointers.size()[0] - 1;
        let senders = edges.by_source.pointers.size()[0] - 1;
        for (name, tensor, expected) in [
            ("radial features", radial, [lines, features as i64]),
            ("rows", rows, [senders, coupling.inputs as i64]),
            ("harmonics", harmonics, [lines, HARMONICS as i64]),
            ("weights", weights, [coupling.order.len() as i64, features as i64]),
        ] {
            if tensor.size() != expected {
                return Err(TchError::Shape(format!("{name} of shape {:?}, expected {expected:?}", tensor.size())));
            }
        }
        Ok(views)
    }
}

/// Sums of the products over each node's edges: `[nodes, outputs]`.
pub fn sums(arguments: &Arguments) -> Result<Tensor, TchError> {
    let views = arguments.views()?;
    let (nodes, outputs) = (views.nodes(), views.coupling.outputs);
    let weights: Vec<Vec<f32>> = views.coupling.blocks.iter().map(|block| views.upright(block)).collect();
    let tiles = Tiles::of(&views);
    let mut result = empty(&[nodes as i64, outputs as i64])?;
    let parts = Parts::new(view::write::<f32>("sums", &mut result)?, tiles.bounds(0..tiles.count(), outputs));
    parallel_for(tiles.count(), 1, |range| {
        let mut scratch = Scratch::default();
        for tile in range {
            views.sums_of(tiles.nodes(tile), &weights, parts.take(tile), &mut scratch);
        }
    });
    drop(parts);
    Ok(result)
}

/// Gradients of the sums' product with `gradient` `[nodes, outputs]`, those that are asked for, by the radial features, the rows, the
/// harmonics and the weights.
pub fn gradients(arguments: &Arguments, gradient: &Tensor, asked: [bool; 4]) -> Result<[Option<Tensor>; 4], TchError> {
    let views = arguments.views()?;
    let of_sums = view::read::<f32>("gradient", gradient)?;
    super::expect_elements("gradient of the sums", gradient, views.nodes() * views.coupling.outputs)?;
    let (tiles, edges) = (Tiles::of(&views), views.sources.len());
    let shares = if asked[3] { tiles.shares(views.weights.len()) } else { tiles.count().max(1) };
    let of_share: Vec<Range<usize>> =
        (0..shares).map(|share| tiles.count() * share / shares..tiles.count() * (share + 1) / shares).collect();
    let widths = [views.features, views.coupling.inputs, HARMONICS];
    let room = |index: usize, rows: usize, width: usize| match asked[index] {
        true => empty(&[rows as i64, width as i64]),
        false => empty(&[0, width as i64]),
    };
    let [mut by_radial, mut by_rows, mut by_harmonics] =
        [room(0, edges, widths[0])?, room(1, edges, widths[1])?, room(2, edges, widths[2])?];
    let mut by_weights = room(3, shares, views.weights.len())?;
    {
        let edge_bounds = |index: usize| {
            let width = if asked[index] { widths[index] } else { 0 };
            let of = |tiles_of: &Range<usize>| views.pointers[tiles.nodes_of(tiles_of).start] as usize * width;
            of_share.iter().map(of).chain([edges * width]).collect::<Vec<_>>()
        };
        let radial = Parts::new(view::write::<f32>("gradient", &mut by_radial)?, edge_bounds(0));
        let rows = Parts::new(view::write::<f32>("gradient", &mut by_rows)?, edge_bounds(1));
        let harmonics = Parts::new(view::write::<f32>("gradient", &mut by_harmonics)?, edge_bounds(2));
        let width = if asked[3] { views.weights.len() } else { 0 };
        let weights =
            Parts::new(view::write::<f32>("gradient", &mut by_weights)?, (0..=shares).map(|share| share * width));
        parallel_for(shares, 1, |range| {
            let mut scratch = Scratch::default();
            for share in range {
                let mut to = Gradients {
                    asked,
                    first_edge: views.pointers[tiles.nodes_of(&of_share[share]).start] as usize,
                    radial: radial.take(share),
                    rows: rows.take(share),
                    harmonics: harmonics.take(share),
                    weights: weights.take(share),
                };
                to.clear();
                for tile in of_share[share].clone() {
                    views.gradients_of(tiles.nodes(tile), of_sums, &mut to, &mut scratch);
                }
            }
        });
    }
    let entries = arguments.edges;
    Ok([
        asked[0].then(|| sum_of_entries(&by_radial, &entries.by_line)).transpose()?,
        asked[1].then(|| sum_of_entries(&by_rows, &entries.by_source)).transpose()?,
        asked[2].then(|| sum_of_entries(&by_harmonics, &entries.by_line)).transpose()?,
        asked[3].then(|| sum_of_shares(&by_weights, arguments.weights)).transpose()?,
    ])
}

/// Nodes in tiles.
struct Tiles {
    nodes: usize,
}

impl Tiles {
    fn of(views: &Views) -> Self {
        Self { nodes: views.nodes() }
    }

    fn count(&self) -> usize {
        self.nodes.div_ceil(NODES)
    }

    fn nodes(&self, tile: usize) -> Range<usize> {
        let first = (tile * NODES).min(self.nodes);
        first..(first + NODES).min(self.nodes)
    }

    fn nodes_of(&self, tiles: &Range<usize>) -> Range<usize> {
        self.nodes(tiles.start).start..self.nodes(tiles.end).start
    }

    /// Bounds of the tiles in an array of `width` elements a node.
    fn bounds(&self, tiles: Range<usize>, width: usize) -> impl Iterator<Item = usize> {
        (tiles.start..=tiles.end).map(move |tile| self.nodes(tile).start * width)
    }

    /// Number of shares of a gradient of `elements` elements.
    fn shares(&self, elements: usize) -> usize {
        let most = (SHARE_BYTES / (4 * elements.max(1))).clamp(2, SHARES);
        self.count().clamp(1, most)
    }
}

/// Memory of a thread, used again for each tile.
#[derive(Default)]
struct Scratch {
    /// `[nodes, components, fan, radial]`: the tile's sums over edges.
    sums: Vec<f32>,
    /// The same of the gradients.
    of_sums: Vec<f32>,
    /// `[nodes, components, outputs]`
    outputs: Vec<f32>,
    /// `[edges, radial]`
    radial: Vec<f32>,
    /// `[edges, components, fan]`
    products: Vec<f32>,
    /// `[components, fan, edges]`
    of_products: Vec<f32>,
}

/// The gradients of some tiles, of their edges in order; empty if they are not asked for.
struct Gradients<'a> {
    asked: [bool; 4],
    first_edge: usize,
    radial: &'a mut [f32],
    rows: &'a mut [f32],
    harmonics: &'a mut [f32],
    weights: &'a mut [f32],
}

impl Gradients<'_> {
    fn clear(&mut self) {
        [&mut *self.radial, self.rows, self.harmonics, self.weights].into_iter().for_each(|values| values.fill(0.0));
    }
}

/// The first `count` elements, more of them if there were fewer.
fn first(values: &mut Vec<f32>, count: usize) -> &mut [f32] {
    if values.len() < count {
        values.resize(count, 0.0);
    }
    &mut values[..count]
}

impl Views<'_> {
    fn nodes(&self) -> usize {
        self.pointers.len().saturating_sub(1)
    }

    fn edges_of(&self, node: usize) -> Range<usize> {
        self.pointers[node] as usize..self.pointers[node + 1] as usize
    }

    /// The edges of a node, at most [`EDGES`] at a time.
    fn chunks_of(&self, node: usize) -> impl Iterator<Item = Range<usize>> {
        let Range { start, end } = self.edges_of(node);
        (start..end).step_by(EDGES).map(move |first| first..(first + EDGES).min(end))
    }

    /// `[outputs, fan * radial]`: the weights of a block.
    fn weights_of(&self, block: &Block) -> &[f32] {
        &self.weights[block.row * self.features..(block.row + block.rows()) * self.features]
    }

    /// `[fan * radial, outputs]`: the same, the other way round.
    fn upright(&self, block: &Block) -> Vec<f32> {
        transposed(self.weights_of(block), block.fan * self.features)
    }

    /// The nodes of a tile that have edges.
    fn nodes_with_edges(&self, tile: Range<usize>) -> Vec<usize> {
        tile.filter(|&node| !self.edges_of(node).is_empty()).collect()
    }

    /// Nodes whose sums are multiplied at once.
    fn nodes_at_once(&self, block: &Block) -> usize {
        (ELEMENTS / (block.products() * self.features).max(1)).max(1)
    }

    fn sums_of(&self, tile: Range<usize>, weights: &[Vec<f32>], result: &mut [f32], scratch: &mut Scratch) {
        let outputs = self.coupling.outputs;
        result.fill(0.0);
        let nodes = self.nodes_with_edges(tile.clone());
        for (block, weights) in self.coupling.blocks.iter().zip(weights) {
            for nodes in nodes.chunks(self.nodes_at_once(block)) {
                self.add_up(block, nodes, scratch);
                let rows = nodes.len() * block.components;
                let found = first(&mut scratch.outputs, rows * block.outputs);
                let left = Left::rows(&scratch.sums, [rows, block.fan * self.features]);
                Product { left, right: Matrix::new(weights, block.outputs), start: Start::Zero }.write(found);
                let width = block.components * block.outputs;
                for (&node, found) in nodes.iter().zip(found.chunks_exact(width.max(1))) {
                    let to = (node - tile.start) * outputs + block.column;
                    result[to..to + width].copy_from_slice(found);
                }
            }
        }
    }

    /// Sums radial features times products over the edges of some nodes.
    fn add_up(&self, block: &Block, nodes: &[usize], scratch: &mut Scratch) {
        let (products, features) = (block.products(), self.features);
        let Scratch { sums, radial, products: of_edges, .. } = scratch;
        let sums = first(sums, nodes.len() * products * features);
        for (&node, sums) in nodes.iter().zip(sums.chunks_exact_mut((products * features).max(1))) {
            let mut start = Start::Zero;
            for edges in self.chunks_of(node) {
                let count = edges.len();
                let radial = self.radial_of(edges.clone(), radial);
                let of_edges = self.products_of(block, edges, of_edges);
                let left = Left::transposed(of_edges, [count, products]);
                Product { left, right: Matrix::new(radial, features), start }.write(sums);
                start = Start::Kept;
            }
        }
    }

    /// `[edges, radial]`
    fn radial_of<'s>(&self, edges: Range<usize>, to: &'s mut Vec<f32>) -> &'s [f32] {
        let features = self.features;
        let to = first(to, edges.len() * features);
        for (edge, to) in edges.zip(to.chunks_exact_mut(features.max(1))) {
            let line = self.lines[edge] as usize;
            to.copy_from_slice(&self.radial[line * features..(line + 1) * features]);
        }
        to
    }

    /// `[edges, components, fan]`
    fn products_of<'s>(&self, block: &Block, edges: Range<usize>, to: &'s mut Vec<f32>) -> &'s [f32] {
        let to = first(to, edges.len() * block.products());
        dispatch(Multiply { views: self, block, edges, to });
        to
    }

    fn row_of(&self, edge: usize) -> &[f32] {
        let (source, width) = (self.sources[edge] as usize, self.coupling.inputs);
        &self.rows[source * width..(source + 1) * width]
    }

    /// The harmonics of an edge.
    #[inline(always)]
    fn harmonics_of(&self, edge: usize) -> [f32; HARMONICS] {
        let line = self.lines[edge] as usize;
        let mut harmonics = [0.0; HARMONICS];
        harmonics.copy_from_slice(&self.harmonics[line * HARMONICS..(line + 1) * HARMONICS]);
        harmonics[ODD].iter_mut().for_each(|value| *value *= self.signs[edge]);
        harmonics
    }

    fn gradients_of(&self, tile: Range<usize>, gradient: &[f32], to: &mut Gradients, scratch: &mut Scratch) {
        let nodes = self.nodes_with_edges(tile);
        for block in &self.coupling.blocks {
            for nodes in nodes.chunks(self.nodes_at_once(block)) {
                self.gradients_of_block((block, nodes), gradient, to, scratch);
            }
        }
    }

    fn gradients_of_block(
        &self,
        (block, nodes): (&Block, &[usize]),
        gradient: &[f32],
        to: &mut Gradients,
        scratch: &mut Scratch,
    ) {
        let (width, inner) = (block.components * block.outputs, block.fan * self.features);
        let rows = nodes.len() * block.components;
        let of_outputs = first(&mut scratch.outputs, rows * block.outputs);
        for (&node, to) in nodes.iter().zip(of_outputs.chunks_exact_mut(width.max(1))) {
            let from = node * self.coupling.outputs + block.column;
            to.copy_from_slice(&gradient[from..from + width]);
        }
        if to.asked[3] {
            self.add_up(block, nodes, scratch);
            let left = Left::transposed(&scratch.outputs, [rows, block.outputs]);
            let share = &mut to.weights[block.row * self.features..(block.row + block.rows()) * self.features];
            let right = Matrix::new(&scratch.sums[..rows * inner], inner);
            Product { left, right, start: Start::Kept }.write(share);
        }
        if to.asked[..3].contains(&true) {
            let of_sums = first(&mut scratch.of_sums, rows * inner);
            let left = Left::rows(&scratch.outputs, [rows, block.outputs]);
            let right = Matrix::new(self.weights_of(block), inner);
            Product { left, right, start: Start::Zero }.write(of_sums);
            self.gradients_of_edges((block, nodes), to, scratch);
        }
    }

    /// Adds the gradients of a block by radial features, rows and harmonics of the nodes' edges.
    fn gradients_of_edges(&self, (block, nodes): (&Block, &[usize]), to: &mut Gradients, scratch: &mut Scratch) {
        let (products, features) = (block.products(), self.features);
        let Scratch { of_sums, radial, products: of_edges, of_products, .. } = scratch;
        let all = of_sums.chunks_exact((products * features).max(1));
        for (&node, of_sums) in nodes.iter().zip(all) {
            for edges in self.chunks_of(node) {
                let (count, place) = (edges.len(), edges.start - to.first_edge);
                if to.asked[0] {
                    let left = Left::rows(self.products_of(block, edges.clone(), of_edges), [count, products]);
                    let result = &mut to.radial[place * features..(place + count) * features];
                    Product { left, right: Matrix::new(of_sums, features), start: Start::Kept }.write(result);
                }
                if to.asked[1] || to.asked[2] {
                    let radial = transposed(self.radial_of(edges.clone(), radial), features);
                    let of_products = first(of_products, products * count);
                    let left = Left::rows(of_sums, [products, features]);
                    Product { left, right: Matrix::new(&radial, count), start: Start::Zero }.write(of_products);
                    let of_products = &transposed(of_products, count);
                    let by_rows = match to.asked[1] {
                        true => &mut to.rows[place * self.coupling.inputs..],
                        false => &mut [],
                    };
                    let by_harmonics = match to.asked[2] {
                        true => &mut to.harmonics[place * HARMONICS..],
                        false => &mut [],
                    };
                    dispatch(Spread { views: self, block, edges, of_products, by_rows, by_harmonics });
                }
            }
        }
    }
}

/// The products of rows and harmonics of some edges.
struct Multiply<'a> {
    views: &'a Views<'a>,
    block: &'a Block,
    edges: Range<usize>,
    to: &'a mut [f32],
}

impl Kernel for Multiply<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        self.to.fill(0.0);
        for (edge, to) in self.edges.zip(self.to.chunks_exact_mut(self.block.products().max(1))) {
            let (row, harmonics) = (self.views.row_of(edge), self.views.harmonics_of(edge));
            for path in &self.block.paths {
                for term in &path.terms {
                    let factor = term.factors.iter().map(|&(harmonic, factor)| harmonics[harmonic] * factor).sum();
                    let from = &row[path.column + term.from * path.count..][..path.count];
                    let to = &mut to[term.to * self.block.fan + path.first..][..path.count];
                    add_times(to, from, factor);
                }
            }
        }
    }
}

#[inline(always)]
fn add_times(to: &mut [f32], from: &[f32], factor: f32) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to += factor * from);
}

/// The gradients by rows and harmonics of some edges, from those by their products `[edges, components, fan]`.
struct Spread<'a> {
    views: &'a Views<'a>,
    block: &'a Block,
    edges: Range<usize>,
    of_products: &'a [f32],
    /// Empty if they are not asked for.
    by_rows: &'a mut [f32],
    by_harmonics: &'a mut [f32],
}

impl Kernel for Spread<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let Self { views, block, edges, of_products, by_rows, by_harmonics } = self;
        let inputs = views.coupling.inputs;
        for (index, (edge, gradient)) in edges.zip(of_products.chunks_exact(block.products().max(1))).enumerate() {
            let (row, harmonics) = (views.row_of(edge), views.harmonics_of(edge));
            let mut of_harmonics = [0.0; HARMONICS];
            for path in &block.paths {
                for term in &path.terms {
                    let place = path.column + term.from * path.count;
                    let gradient = &gradient[term.to * block.fan + path.first..][..path.count];
                    if !by_rows.is_empty() {
                        let factor = term.factors.iter().map(|&(harmonic, factor)| harmonics[harmonic] * factor).sum();
                        add_times(&mut by_rows[index * inputs + place..][..path.count], gradient, factor);
                    }
                    if !by_harmonics.is_empty() {
                        let product = I::dot(&row[place..place + path.count], gradient);
                        term.factors.iter().for_each(|&(harmonic, factor)| of_harmonics[harmonic] += factor * product);
                    }
                }
            }
            if !by_harmonics.is_empty() {
                of_harmonics[ODD].iter_mut().for_each(|value| *value *= views.signs[edge]);
                let to = &mut by_harmonics[index * HARMONICS..][..HARMONICS];
                to.iter_mut().zip(of_harmonics).for_each(|(to, value)| *to += value);
            }
        }
    }
}

/// Sums of the values of each row's edges: `[edges, columns]` → `[rows, columns]`.
fn sum_of_entries(values: &Tensor, entries: &Entries) -> Result<Tensor, TchError> {
    let columns = values.size().last().copied().unwrap_or(0) as usize;
    let values = view::read::<f32>("values", values)?;
    let pointers = view::read::<i64>("pointers", &entries.pointers)?;
    let order = view::read::<i64>("order", &entries.order)?;
    let rows = pointers.len().saturating_sub(1);
    let blocks = Blocks::new(rows, columns * order.len().div_ceil(rows.max(1)).max(1), 1);
    let result = empty(&[rows as i64, columns as i64])?;
    by_blocks("sums", result, blocks, columns, |block, to: &mut [f32]| {
        for (row, to) in blocks.rows(block).zip(to.chunks_exact_mut(columns.max(1))) {
            to.fill(0.0);
            for &edge in &order[pointers[row] as usize..pointers[row + 1] as usize] {
                let from = &values[edge as usize * columns..(edge as usize + 1) * columns];
                to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            }
        }
    })
}

/// The sum of shares `[shares, elements]`, in the shape of `weights`.
fn sum_of_shares(shares: &Tensor, weights: &Tensor) -> Result<Tensor, TchError> {
    let (values, elements) = (view::read::<f32>("shares", shares)?, weights.numel());
    let blocks = Blocks::new(elements, shares.size()[0] as usize, 16);
    by_blocks("gradient", super::like(weights)?, blocks, 1, |block, to: &mut [f32]| {
        for (element, to) in blocks.rows(block).zip(to) {
            let of_shares = values.chunks_exact(elements.max(1)).map(|share| f64::from(share[element]));
            *to = of_shares.sum::<f64>() as f32;
        }
    })
}
