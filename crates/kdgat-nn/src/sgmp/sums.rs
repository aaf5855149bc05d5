//! The output of an interaction, in one pass over the paths forward and one backward, without ever storing them.
//!
//! An interaction applies a network of three layers to each path's seven vectors and sums the results at the path's first node. Its first layer
//! falls apart into what depends on a node, on an edge, on two edges and on the whole path, each computed once where it belongs; the last
//! layer is linear and follows the sum. Per path there remain
//!
//! ```text
//! r = ReLU(P[ijk] + D[p] + M ReLU(L₃ g(path) + l₃))        P[ijk] = C[k] + Q[ij] + F ReLU(L₂ g(pair) + l₂)
//! S[i] += ReLU(W r + w)                                    Q[ij] = A[i] + B[j] + E ReLU(L₁ g(edge) + l₁) + b
//! y[i] = V S[i] + n[i] v
//! ```
//!
//! where g are expansions of lengths and angles, A, B, C, D rows of nodes, and n[i] the number of paths that begin at i. Paths come in pieces
//! that fit into a core's cache; the backward pass computes them again. Blocks of first nodes are worked on in parallel, each with the rows of
//! those nodes alone that its paths reach, so that the memory beyond a node's embedding does not grow with the graph. Their number and
//! all orders of additions depend on the graphs alone.

use std::ffi::CStr;
use std::ops::Range;
use std::sync::Arc;

use kdgat_graph::paths::{Cursor, Neighbours, Piece};
use kdgat_torch::autograd::{self, Forward, Function};
use kdgat_torch::parallel::{Parts, parallel_for};
use kdgat_torch::simd::dispatch;
use kdgat_torch::simd::product::{Left, Product, Start};
use kdgat_torch::simd::rows::Matrix;
use kdgat_torch::simd::transpose::transposed;
use kdgat_torch::view;
use tch::{Device, Kind, TchError, Tensor};

use super::geometry::{Bases, Vector};
use super::kernels::{AddColumnSums, AddRows, Gate, GateRows, Relu, Scatter, ScatterRelu};

/// Paths computed at a time: with 64 columns, their rows take some 300 KiB.
const PIECE: usize = 128;
/// Paths of a block, if its nodes have as many.
const BLOCK_PATHS: u64 = 4096;
/// Most nodes of a block.
const BLOCK_NODES: usize = 4096;
/// Bytes of the gradients that blocks have at a time before they are added up, and most of such blocks.
const GRADIENT_BYTES: usize = 32 << 20;
const MOST_BLOCKS: usize = 64;

/// The graphs of a batch with their paths; shared by all interactions of a pass.
#[derive(Debug)]
pub struct PathGraph {
    /// The neighbours of each node.
    pub neighbours: Neighbours,
    /// Position of each node.
    pub positions: Vec<Vector>,
    /// Number of paths that begin at each node.
    pub paths: Vec<u64>,
}

impl PathGraph {
    /// Counts the paths of graphs whose nodes have these neighbours and positions.
    pub fn new(neighbours: Neighbours, positions: Vec<Vector>) -> Self {
        let paths = neighbours.count_paths();
        Self { neighbours, positions, paths }
    }

    /// Number of nodes.
    fn num_nodes(&self) -> usize {
        self.neighbours.num_nodes()
    }

    /// Divides the nodes into ranges of about [`BLOCK_PATHS`] paths, and of at most [`BLOCK_NODES`].
    fn blocks(&self) -> Vec<Range<usize>> {
        let (mut blocks, mut first, mut sum) = (Vec::new(), 0, 0);
        for (node, &paths) in self.paths.iter().enumerate() {
            sum += paths;
            let end = node + 1;
            if sum >= BLOCK_PATHS || end - first == BLOCK_NODES || end == self.num_nodes() {
                blocks.push(first..end);
                (first, sum) = (end, 0);
            }
        }
        blocks
    }
}

/// The outputs `y`, `[num_nodes, H]`, for embeddings `[num_nodes, H]`, the weights `[16 H, H]` of A, B, C and D beside each other, and further
/// weights in this order: E, F, M `[4 H, H]`; b `[4 H]`; L₁ `[H, columns of an edge]`, l₁; L₂, l₂; L₃, l₃ `[H]`; W `[2 H, 4 H]`, w `[2 H]`; V `[H,
/// 2 H]`, v `[H]`. All f32 on the CPU. Of a node only its embedding is stored for the backward pass.
///
/// # Errors
/// Tensors of other shapes, or too little memory.
pub fn path_sums(
    graph: &Arc<PathGraph>,
    bases: Bases,
    [embeddings, of_nodes]: [&Tensor; 2],
    weights: &[Tensor; WEIGHTS],
) -> Result<Tensor, TchError> {
    let all = [embeddings, of_nodes].into_iter().chain(weights);
    let contiguous: Vec<Tensor> = all.map(Tensor::f_contiguous).collect::<Result<_, _>>()?;
    let inputs: Vec<&Tensor> = contiguous.iter().collect();
    autograd::apply_one(PathSums { graph: Arc::clone(graph), bases }, &inputs)
}

/// Number of weights of [`path_sums`].
pub const WEIGHTS: usize = 14;

struct PathSums {
    graph: Arc<PathGraph>,
    bases: Bases,
}

impl Function for PathSums {
    const NAME: &'static CStr = c"sums over paths";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let pass = Pass::new(&self.graph, self.bases, inputs)?;
        let size = [self.graph.num_nodes() as i64, pass.width as i64];
        let mut output = Tensor::f_zeros(size, (Kind::Float, Device::Cpu))?;
        let blocks = self.graph.blocks();
        let bounds = std::iter::once(0).chain(blocks.iter().map(|block| block.end * pass.width));
        let parts = Parts::new(view::write::<f32>("outputs of paths", &mut output)?, bounds);
        parallel_for(blocks.len(), 1, |range| {
            let mut work = Work::default();
            range.for_each(|index| pass.forward_block(&blocks[index], &mut work, parts.take(index)));
        });
        drop(parts);
        Ok(Forward::saving_inputs(vec![output], inputs, recorded))
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        gradients: Vec<Option<Tensor>>,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(saved.iter().map(|_| None).collect()) };
        let gradient = gradient.f_contiguous()?;
        let inputs: Vec<&Tensor> = saved.iter().collect();
        let pass = Pass::new(&self.graph, self.bases, &inputs)?;
        let of_outputs = view::read::<f32>("gradient of the outputs of paths", &gradient)?;
        let mut of_embeddings = Tensor::f_zeros(&inputs[0].size()[..], (Kind::Float, Device::Cpu))?;
        let mut of_weights = vec![0.0f32; pass.weight_elements()];
        {
            let embeddings = view::write::<f32>("gradient of the embeddings", &mut of_embeddings)?;
            let at_once = (GRADIENT_BYTES / (4 * of_weights.len())).clamp(1, MOST_BLOCKS);
            for blocks in self.graph.blocks().chunks(at_once) {
                let mut found: Vec<BlockGradients> = blocks.iter().map(|_| BlockGradients::default()).collect();
                let slots = Parts::new(&mut found[..], 0..=blocks.len());
                parallel_for(blocks.len(), 1, |range| {
                    let mut work = Work::default();
                    for index in range {
                        slots.take(index)[0] = pass.backward_block(&blocks[index], &mut work, of_outputs);
                    }
                });
                drop(slots);
                for found in found {
                    of_weights.iter_mut().zip(&found.weights).for_each(|(sum, gradient)| *sum += gradient);
                    for (nodes, rows) in found.embeddings {
                        let (width, to) = (pass.width, &mut *embeddings);
                        dispatch(Scatter { from: &rows, width, to, indices: &nodes });
                    }
                }
            }
        }
        let mut results = vec![Some(of_embeddings)];
        let mut rest = &of_weights[..];
        for input in &inputs[1..] {
            let (own, others) = rest.split_at(input.numel());
            results.push(Some(Tensor::f_from_slice(own)?.f_view(&input.size()[..])?));
            rest = others;
        }
        Ok(results)
    }
}

/// The gradients of a block of paths.
#[derive(Default)]
struct BlockGradients {
    /// Gradients of all weights, those of the nodes' rows first.
    weights: Vec<f32>,
    /// Nodes, and gradients of their embeddings, of each of the four nodes of paths.
    embeddings: Vec<(Vec<u32>, Vec<f32>)>,
}

/// Inputs of a pass, with the weights as the forward multiplies by them.
struct Pass<'a> {
    graph: &'a PathGraph,
    bases: Bases,
    /// Columns of a node's embedding, H.
    width: usize,
    /// `[num_nodes, H]`
    embeddings: &'a [f32],
    /// A, B, C and D beside each other.
    of_nodes: &'a [f32],
    weights: [&'a [f32]; WEIGHTS],
    /// The weights of A, B, C and D, transposed.
    nodes_transposed: [Vec<f32>; 4],
    /// E, F, M, L₁, L₂, L₃, W and V, transposed.
    transposed: [Vec<f32>; 8],
}

/// The rows of one of the four nodes of a block's paths: of those nodes alone that occur there.
#[derive(Default)]
struct Ends {
    /// For each node of the graph, its position in `nodes`, or [`ABSENT`].
    places: Vec<u32>,
    nodes: Vec<u32>,
    /// `[nodes, H]`
    embeddings: Vec<f32>,
    /// `[nodes, 4 H]`: rows of A, B, C or D.
    rows: Vec<f32>,
    /// `[nodes, 4 H]`: gradients of `rows`.
    gradients: Vec<f32>,
    /// Positions in `nodes` of the nodes of a piece's edges, pairs or paths.
    indices: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

impl Ends {
    /// Forgets the nodes of another block.
    fn clear(&mut self, num_nodes: usize) {
        if self.places.len() != num_nodes {
            self.places = vec![ABSENT; num_nodes];
        }
        self.nodes.drain(..).for_each(|node| self.places[node as usize] = ABSENT);
    }

    /// Adds a node; false if it is there already.
    fn insert(&mut self, node: u32) -> bool {
        let place = &mut self.places[node as usize];
        if *place != ABSENT {
            return false;
        }
        *place = self.nodes.len() as u32;
        self.nodes.push(node);
        true
    }

    /// Sets the positions of these nodes.
    fn look_up(&mut self, nodes: &[u32]) {
        self.indices.clear();
        self.indices.extend(nodes.iter().map(|&node| self.places[node as usize]));
    }
}

/// The memory of a thread: the rows of a block and of a piece of its paths.
#[derive(Default)]
struct Work {
    ends: [Ends; 4],
    /// `[nodes of the block, 2 H]`: S, and the gradients of S.
    sums: Vec<f32>,
    of_sums: Vec<f32>,
    rows: Rows,
}

/// The rows of a piece of paths.
#[derive(Default)]
struct Rows {
    piece: Piece,
    /// First node of each path.
    firsts: Vec<u32>,
    /// Expansions of lengths and angles of edges, pairs and paths.
    expansions: [Vec<f32>; 3],
    /// Outputs of their first layers.
    hidden: [Vec<f32>; 3],
    /// Q, P and r.
    sums: [Vec<f32>; 3],
    /// Inputs of the last ReLU; in the backward pass their gradients.
    last: Vec<f32>,
    /// Gradients of Q, P and r, and of the hidden rows.
    of_sums: [Vec<f32>; 3],
    of_hidden: Vec<f32>,
}

/// Positions in the list of weights.
const BIAS: usize = 3;
/// First layers of edges, pairs and paths, each followed by its bias.
const FIRST: [usize; 3] = [4, 6, 8];
const SECOND: usize = 10;
const LAST: usize = 12;

impl<'a> Pass<'a> {
    fn new(graph: &'a PathGraph, bases: Bases, inputs: &[&'a Tensor]) -> Result<Self, TchError> {
        let width = inputs[0].size().get(1).map_or(0, |&columns| columns as usize);
        let columns = bases.columns();
        let (square, double) = (4 * width * width, 8 * width * width);
        let [of_edge, of_pair, of_path] = columns.map(|columns| columns * width);
        let expected = [
            graph.num_nodes() * width,
            4 * square,
            square,
            square,
            square,
            4 * width,
            of_edge,
            width,
            of_pair,
            width,
            of_path,
            width,
            double,
            2 * width,
            2 * width * width,
            width,
        ];
        let wrong = (0..expected.len()).find(|&index| inputs[index].numel() != expected[index]);
        if let Some(index) = wrong.or((width == 0).then_some(0)) {
            return Err(TchError::Shape(format!(
                "embeddings of {} nodes have shape {:?} and input {index} of the sums over paths {:?}: they do not fit each other",
                graph.num_nodes(),
                inputs[0].size(),
                inputs[index].size()
            )));
        }
        let read = |index: usize| view::read::<f32>("inputs of the sums over paths", inputs[index]);
        let (embeddings, of_nodes) = (read(0)?, read(1)?);
        let mut weights = [embeddings; WEIGHTS];
        for (index, weight) in weights.iter_mut().enumerate() {
            *weight = read(2 + index)?;
        }
        let of = |index: usize, columns: usize| transposed(weights[index], columns);
        let transposed_weights = [
            of(0, width),
            of(1, width),
            of(2, width),
            of(FIRST[0], columns[0]),
            of(FIRST[1], columns[1]),
            of(FIRST[2], columns[2]),
            of(SECOND, 4 * width),
            of(LAST, 2 * width),
        ];
        let nodes_transposed = [0, 1, 2, 3].map(|end| transposed(&of_nodes[end * square..(end + 1) * square], width));
        let transposed = transposed_weights;
        Ok(Self { graph, bases, width, embeddings, of_nodes, weights, nodes_transposed, transposed })
    }

    /// Elements of all weights, those of the nodes' rows included.
    fn weight_elements(&self) -> usize {
        self.of_nodes.len() + self.weights.iter().map(|weight| weight.len()).sum::<usize>()
    }

    /// The parts of an array with the elements of all weights: of the nodes' rows, and of each weight.
    fn split_weights<'b>(&self, all: &'b mut [f32]) -> (&'b mut [f32], [&'b mut [f32]; WEIGHTS]) {
        let (of_nodes, mut rest) = all.split_at_mut(self.of_nodes.len());
        let weights = self.weights.map(|weight| {
            let (one, others) = std::mem::take(&mut rest).split_at_mut(weight.len());
            rest = others;
            one
        });
        (of_nodes, weights)
    }

    /// Finds the nodes of the paths that begin in `block`, and computes their rows.
    fn gather(&self, block: &Range<usize>, ends: &mut [Ends; 4]) {
        let neighbours = &self.graph.neighbours;
        ends.iter_mut().for_each(|ends| ends.clear(self.graph.num_nodes()));
        let [first, second, third, fourth] = ends;
        for node in block.clone().filter(|&node| self.graph.paths[node] > 0) {
            first.insert(node as u32);
            for &j in neighbours.of(node) {
                // The nodes behind a node are the same on every way to it, but for those that the way has already.
                let is_new = second.insert(j);
                for &k in neighbours.of(j as usize).iter().filter(|_| is_new) {
                    if third.insert(k) {
                        neighbours.of(k as usize).iter().for_each(|&p| {
                            fourth.insert(p);
                        });
                    }
                }
            }
        }
        let width = self.width;
        for (ends, weights) in ends.iter_mut().zip(&self.nodes_transposed) {
            ends.embeddings.clear();
            for &node in &ends.nodes {
                ends.embeddings.extend_from_slice(&self.embeddings[node as usize * width..][..width]);
            }
            product(&ends.embeddings, weights, [width, 4 * width], Start::Zero, &mut ends.rows);
        }
    }

    /// Calls `body` with the rows of each piece of the paths that begin in `block`.
    fn for_each_piece(
        &self,
        block: &Range<usize>,
        (ends, rows): (&mut [Ends; 4], &mut Rows),
        mut body: impl FnMut(&mut [Ends; 4], &mut Rows),
    ) {
        let neighbours = &self.graph.neighbours;
        let mut cursor = Cursor::at(neighbours.edges_of(block.start).start);
        let end = neighbours.edges_of(block.end - 1).end;
        loop {
            rows.piece.fill(neighbours, &mut cursor, end, PIECE);
            if rows.piece.paths[0].is_empty() {
                return;
            }
            self.compute(ends, rows);
            body(ends, rows);
        }
    }

    /// Writes the outputs of a block's nodes.
    fn forward_block(&self, block: &Range<usize>, work: &mut Work, to: &mut [f32]) {
        let width = 2 * self.width;
        let Work { ends, sums, of_sums: outputs, rows } = work;
        self.gather(block, ends);
        sums.clear();
        sums.resize(block.len() * width, 0.0);
        self.for_each_piece(block, (ends, rows), |_, rows| {
            dispatch(ScatterRelu { from: &rows.last, width, to: sums, indices: &rows.firsts, base: block.start });
        });
        let [.., last] = &self.transposed;
        product(sums, last, [width, self.width], Start::Zero, outputs);
        let counts = &self.graph.paths[block.clone()];
        for ((to, output), &count) in to.chunks_exact_mut(self.width).zip(outputs.chunks_exact(self.width)).zip(counts)
        {
            let bias = self.weights[LAST + 1];
            to.iter_mut().zip(output).zip(bias).for_each(|((to, &value), &bias)| *to = value + count as f32 * bias);
        }
    }

    /// Computes the rows of a piece up to the inputs of the last ReLU.
    fn compute(&self, ends: &mut [Ends; 4], rows: &mut Rows) {
        self.expand(rows);
        let width = 4 * self.width;
        let [e, f, m, first @ .., second, _] = &self.transposed;
        for level in 0..3 {
            let bias = Start::Row(self.weights[FIRST[level] + 1]);
            product(
                &rows.expansions[level],
                &first[level],
                [self.bases.columns()[level], self.width],
                bias,
                &mut rows.hidden[level],
            );
            dispatch(Relu(&mut rows.hidden[level]));
        }
        let Rows { piece: Piece { edges, pairs, paths }, hidden, sums: [of_edges, of_pairs, of_paths], last, .. } =
            rows;
        let of_ends = [&edges[0], &edges[1], &pairs[1], &paths[1]];
        ends.iter_mut().zip(of_ends).for_each(|(ends, nodes)| ends.look_up(nodes));
        let [of_first, of_second, of_third, of_fourth] =
            ends.each_ref().map(|ends| (&ends.rows[..], &ends.indices[..]));
        let inner = [self.width, width];
        product(&hidden[0], e, inner, Start::Row(self.weights[BIAS]), of_edges);
        dispatch(AddRows { to: of_edges, width, from: [of_first, of_second], relu: false });
        product(&hidden[1], f, inner, Start::Zero, of_pairs);
        let from = [of_third, (&of_edges[..], &pairs[0][..])];
        dispatch(AddRows { to: of_pairs, width, from, relu: false });
        product(&hidden[2], m, inner, Start::Zero, of_paths);
        let from = [of_fourth, (&of_pairs[..], &paths[0][..])];
        dispatch(AddRows { to: of_paths, width, from, relu: true });
        product(of_paths, second, [width, 2 * self.width], Start::Row(self.weights[SECOND + 1]), last);
    }

    /// Writes the expansions of a piece's edges, pairs and paths, and the first node of each path.
    fn expand(&self, rows: &mut Rows) {
        let Rows { piece: Piece { edges, pairs, paths }, firsts, expansions, .. } = rows;
        let at = |node: u32| self.graph.positions[node as usize];
        let columns = self.bases.columns();
        let counts = [edges[0].len(), pairs[0].len(), paths[0].len()];
        for level in 0..3 {
            expansions[level].resize(counts[level] * columns[level], 0.0);
        }
        let [of_edges, of_pairs, of_paths] = expansions;
        for (edge, to) in of_edges.chunks_exact_mut(columns[0]).enumerate() {
            self.bases.edge([at(edges[0][edge]), at(edges[1][edge])], to);
        }
        for (pair, to) in of_pairs.chunks_exact_mut(columns[1]).enumerate() {
            let edge = pairs[0][pair] as usize;
            self.bases.pair([at(edges[0][edge]), at(edges[1][edge]), at(pairs[1][pair])], to);
        }
        firsts.clear();
        for (path, to) in of_paths.chunks_exact_mut(columns[2]).enumerate() {
            let pair = paths[0][path] as usize;
            let edge = pairs[0][pair] as usize;
            let [i, j, k, p] = [edges[0][edge], edges[1][edge], pairs[1][pair], paths[1][path]];
            self.bases.path([at(i), at(j), at(k), at(p)], to);
            firsts.push(i);
        }
    }

    /// The gradients of a block of nodes' paths; `of_outputs` are those of all nodes' outputs.
    fn backward_block(&self, block: &Range<usize>, work: &mut Work, of_outputs: &[f32]) -> BlockGradients {
        let (width, wide, double) = (self.width, 4 * self.width, 2 * self.width);
        let mut found = BlockGradients { weights: vec![0.0; self.weight_elements()], embeddings: Vec::new() };
        let (of_nodes, mut weights) = self.split_weights(&mut found.weights);
        let Work { ends, sums, of_sums, rows } = work;
        self.gather(block, ends);
        for ends in ends.iter_mut() {
            ends.gradients.clear();
            ends.gradients.resize(ends.nodes.len() * wide, 0.0);
        }
        let of_outputs = &of_outputs[block.start * width..block.end * width];
        product(of_outputs, self.weights[LAST], [width, double], Start::Zero, of_sums);
        sums.clear();
        sums.resize(block.len() * double, 0.0);
        self.for_each_piece(block, (&mut *ends, rows), |ends, rows| {
            let (indices, base) = (&rows.firsts, block.start);
            dispatch(ScatterRelu { from: &rows.last, width: double, to: sums, indices, base });
            self.backward_piece(ends, rows, (&of_sums[..], base), &mut weights);
        });
        add_gradient(of_outputs, width, sums, double, weights[LAST]);
        for (row, &count) in of_outputs.chunks_exact(width).zip(&self.graph.paths[block.clone()]) {
            weights[LAST + 1].iter_mut().zip(row).for_each(|(sum, &gradient)| *sum += count as f32 * gradient);
        }
        for ((end, ends), of_end) in ends.iter_mut().enumerate().zip(of_nodes.chunks_exact_mut(wide * width)) {
            add_gradient(&ends.gradients, wide, &ends.embeddings, width, of_end);
            let mut of_embeddings = Vec::new();
            let weight = &self.of_nodes[end * wide * width..(end + 1) * wide * width];
            product(&ends.gradients, weight, [wide, width], Start::Zero, &mut of_embeddings);
            found.embeddings.push((ends.nodes.clone(), of_embeddings));
        }
        found
    }

    fn backward_piece(
        &self,
        ends: &mut [Ends; 4],
        rows: &mut Rows,
        (gradients, base): (&[f32], usize),
        into: &mut [&mut [f32]; WEIGHTS],
    ) {
        let (width, wide) = (2 * self.width, 4 * self.width);
        let Rows { piece: Piece { edges, pairs, paths }, firsts, expansions, hidden, sums, last, of_sums, of_hidden } =
            rows;
        dispatch(GateRows { values: last, width, gradients, indices: firsts, base });
        dispatch(AddColumnSums { from: last, to: into[SECOND + 1] });
        add_gradient(last, width, &sums[2], wide, into[SECOND]);
        product(last, self.weights[SECOND], [width, wide], Start::Zero, &mut of_sums[2]);
        dispatch(Gate { gradients: &mut of_sums[2], outputs: &sums[2] });
        // From paths to pairs to edges: of each level's sums to the level above, to the nodes' rows, and through the level's two layers.
        let [of_edges, of_pairs, of_paths] = of_sums;
        for (to, rows) in [(&mut *of_pairs, pairs[0].len()), (&mut *of_edges, edges[0].len())] {
            to.clear();
            to.resize(rows * wide, 0.0);
        }
        let scatter = |from: &[f32], to: &mut [f32], indices: &[u32]| {
            dispatch(Scatter { from, width: wide, to, indices });
        };
        scatter(of_paths, of_pairs, &paths[0]);
        scatter(of_pairs, of_edges, &pairs[0]);
        dispatch(AddColumnSums { from: of_edges, to: into[BIAS] });
        for (from, ends) in [&*of_edges, &*of_edges, &*of_pairs, &*of_paths].into_iter().zip(ends) {
            scatter(from, &mut ends.gradients, &ends.indices);
        }
        for (level, of_level) in [of_edges, of_pairs, of_paths].into_iter().enumerate() {
            let (hidden, expansion) = (&hidden[level], &expansions[level]);
            add_gradient(of_level, wide, hidden, self.width, into[level]);
            product(of_level, self.weights[level], [wide, self.width], Start::Zero, of_hidden);
            dispatch(Gate { gradients: of_hidden, outputs: hidden });
            dispatch(AddColumnSums { from: of_hidden, to: into[FIRST[level] + 1] });
            add_gradient(of_hidden, self.width, expansion, self.bases.columns()[level], into[FIRST[level]]);
        }
    }
}

/// Writes `left · right`, `[rows, inner] · [inner, columns]`, for as many rows as `left` has.
fn product(left: &[f32], right: &[f32], [inner, columns]: [usize; 2], start: Start, to: &mut Vec<f32>) {
    let rows = left.len() / inner;
    to.resize(rows * columns, 0.0);
    Product { left: Left::rows(left, [rows, inner]), right: Matrix::new(right, columns), start }.write(to);
}

/// Adds the gradient of a weight, `leftᵀ · right`, of gradients `[rows, outputs]` and inputs `[rows, columns]`.
fn add_gradient(left: &[f32], outputs: usize, right: &[f32], columns: usize, to: &mut [f32]) {
    let rows = left.len() / outputs;
    let left = Left::transposed(left, [rows, outputs]);
    Product { left, right: Matrix::new(right, columns), start: Start::Kept }.write(to);
}
