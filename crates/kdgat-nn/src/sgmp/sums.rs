//! The sums of an interaction over all paths, in one pass over the paths forward and one backward, without ever storing them.
//!
//! An interaction applies a network of three layers to each path's seven vectors and sums the results at the path's first node. Its first layer
//! falls apart into what depends on a node, on an edge, on two edges and on the whole path, each computed once where it belongs; the last
//! layer is linear and follows the sum ([`Interaction`](super::interaction::Interaction)). Per path there remain
//!
//! ```text
//! r = ReLU(P[ijk] + D[p] + M ReLU(L₃ g(path) + l₃))        P[ijk] = C[k] + Q[ij] + F ReLU(L₂ g(pair) + l₂)
//! S[i] += ReLU(W r + w)                                    Q[ij] = A[i] + B[j] + E ReLU(L₁ g(edge) + l₁) + b
//! ```
//!
//! where g are expansions of lengths and angles, and A, B, C, D rows of nodes. Paths come in pieces that fit into a core's cache. The
//! backward pass computes them again. Blocks of nodes are worked on in parallel; their number and all orders of additions depend on the
//! graphs alone.

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
use super::kernels::{AddColumnSums, AddRows, Columns, Gate, GateRows, Relu, Scatter, ScatterRelu};

/// Paths computed at a time: with 64 columns, their rows take some 300 KiB.
const PIECE: usize = 128;
/// Number of paths worth a thread.
const BLOCK_PATHS: u64 = 4096;
/// Most blocks of the backward pass: each has its own gradients of all weights.
const MOST_BLOCKS: u64 = 64;
/// Bytes of gradients of nodes that blocks of one graph may take together, and of gradients of weights that all blocks may.
const GRADIENT_BYTES: usize = 512 << 20;

/// The graphs of a batch with their paths; shared by all interactions of a pass.
#[derive(Debug)]
pub struct PathGraph {
    /// The neighbours of each node.
    pub neighbours: Neighbours,
    /// Position of each node.
    pub positions: Vec<Vector>,
    /// Nodes of graph `g` are `graphs[g]..graphs[g + 1]`.
    pub graphs: Vec<usize>,
    /// Number of paths that begin at each node.
    pub paths: Vec<u64>,
}

impl PathGraph {
    /// Counts the paths of graphs whose nodes are `graphs[g]..graphs[g + 1]`.
    pub fn new(neighbours: Neighbours, positions: Vec<Vector>, graphs: Vec<usize>) -> Self {
        let paths = neighbours.count_paths();
        Self { neighbours, positions, graphs, paths }
    }

    /// Number of nodes.
    fn num_nodes(&self) -> usize {
        self.neighbours.num_nodes()
    }

    /// Divides the nodes into ranges of about `paths` paths or more. Graphs are divided only if they have more than twice as many, into at
    /// most `most_parts` of their number of nodes.
    fn blocks(&self, paths: u64, most_parts: impl Fn(usize) -> u64) -> Vec<Range<usize>> {
        let (mut blocks, mut first, mut sum) = (Vec::new(), 0, 0);
        for graph in self.graphs.windows(2) {
            let of_graph: u64 = self.paths[graph[0]..graph[1]].iter().sum();
            let parts = (of_graph / paths.max(1)).min(most_parts(graph[1] - graph[0])).max(1);
            let wanted = of_graph.div_ceil(parts);
            for node in graph[0]..graph[1] {
                sum += self.paths[node];
                let is_last = node + 1 == graph[1];
                if sum >= if is_last { paths } else { wanted.max(paths) } && (is_last || parts > 1) {
                    blocks.push(first..node + 1);
                    (first, sum) = (node + 1, 0);
                }
            }
        }
        if first < self.num_nodes() {
            blocks.push(first..self.num_nodes());
        }
        blocks
    }

    /// The nodes of the graphs that `block` has nodes of.
    fn reach(&self, block: &Range<usize>) -> Range<usize> {
        let first = self.graphs.partition_point(|&first| first <= block.start).saturating_sub(1);
        let end = self.graphs.partition_point(|&end| end < block.end);
        self.graphs[first]..self.graphs[end]
    }
}

/// The sums `S`, `[num_nodes, 2 H]`, for embeddings `[num_nodes, H]`, the weights `[16 H, H]` of A, B, C and D beside each other, and further
/// weights in this order: E, F, M `[4 H, H]`; b `[4 H]`; L₁ `[H, columns of an edge]`, l₁; L₂, l₂; L₃, l₃ `[H]`; W `[2 H, 4 H]`, w `[2 H]`.
/// All f32 on the CPU. Of a node only its embedding is stored for the backward pass.
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
    let mut outputs = autograd::apply(PathSums { graph: Arc::clone(graph), bases }, &inputs)?;
    Ok(outputs.pop().unwrap_or_default())
}

/// Number of weights of [`path_sums`].
pub const WEIGHTS: usize = 12;

struct PathSums {
    graph: Arc<PathGraph>,
    bases: Bases,
}

impl Function for PathSums {
    const NAME: &'static CStr = c"sums over paths";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let graph = &*self.graph;
        let rows = inputs[0].f_matmul(&inputs[1].f_transpose(0, 1)?)?;
        let pass = Pass::new(graph, self.bases, &rows, &inputs[2..])?;
        let width = 2 * pass.width;
        let mut output = Tensor::f_zeros([graph.num_nodes() as i64, width as i64], (Kind::Float, Device::Cpu))?;
        let blocks = graph.blocks(BLOCK_PATHS, |_| u64::MAX);
        let bounds = std::iter::once(0).chain(blocks.iter().map(|block| block.end * width));
        let parts = Parts::new(view::write::<f32>("sums over paths", &mut output)?, bounds);
        parallel_for(blocks.len(), 1, |range| {
            let mut rows = Rows::default();
            range.for_each(|index| pass.forward_block(&blocks[index], &mut rows, parts.take(index)));
        });
        drop(parts);
        let saved = if recorded { inputs.iter().map(|input| input.shallow_clone()).collect() } else { Vec::new() };
        Ok(Forward { outputs: vec![output], saved })
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        gradients: Vec<Option<Tensor>>,
        _: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(saved.iter().map(|_| None).collect()) };
        let gradient = gradient.f_contiguous()?;
        let graph = &*self.graph;
        let inputs: Vec<&Tensor> = saved.iter().collect();
        let rows = inputs[0].f_matmul(&inputs[1].f_transpose(0, 1)?)?;
        let pass = Pass::new(graph, self.bases, &rows, &inputs[2..])?;
        let of_sums = view::read::<f32>("gradient of the sums over paths", &gradient)?;
        let row = 16 * pass.width;
        let total: u64 = graph.paths.iter().sum();
        let most_parts = |nodes: usize| (GRADIENT_BYTES / (4 * row * nodes).max(1)) as u64;
        let most_blocks = ((GRADIENT_BYTES / (4 * pass.weight_elements())) as u64).clamp(1, MOST_BLOCKS);
        let blocks = graph.blocks(BLOCK_PATHS.max(total.div_ceil(most_blocks)), most_parts);
        let reaches: Vec<Range<usize>> = blocks.iter().map(|block| graph.reach(block)).collect();
        let starts = |size: &dyn Fn(usize) -> usize| {
            let mut ends = vec![0];
            (0..blocks.len()).for_each(|index| ends.push(ends[index] + size(index)));
            ends
        };
        let (node_bounds, weight_elements) = (starts(&|index| reaches[index].len() * row), pass.weight_elements());
        let weight_bounds = starts(&|_| weight_elements);
        let zeros = |bounds: &[usize]| {
            let elements = bounds.last().copied().unwrap_or(0) as i64;
            Tensor::f_zeros([elements], (Kind::Float, Device::Cpu))
        };
        let (mut of_nodes, mut of_weights) = (zeros(&node_bounds)?, zeros(&weight_bounds)?);
        {
            let nodes = Parts::new(view::write::<f32>("gradients of nodes", &mut of_nodes)?, node_bounds.clone());
            let weights = Parts::new(view::write::<f32>("gradients of weights", &mut of_weights)?, weight_bounds);
            parallel_for(blocks.len(), 1, |range| {
                let mut rows = Rows::default();
                for index in range {
                    let into = Gradients {
                        nodes: nodes.take(index),
                        base: reaches[index].start,
                        weights: pass.split_weights(weights.take(index)),
                    };
                    pass.backward_block(&blocks[index], &mut rows, of_sums, into);
                }
            });
        }
        drop(pass);
        drop(rows);
        let of_rows = self.joined(of_nodes, &reaches, &node_bounds, row as i64)?;
        let weights = of_weights.f_view([blocks.len() as i64, weight_elements as i64])?;
        let weights = weights.f_sum_dim_intlist(0, false, Kind::Float)?;
        let of_embeddings = of_rows.f_matmul(inputs[1])?;
        let mut results = vec![Some(of_embeddings), Some(of_rows.f_transpose(0, 1)?.f_matmul(inputs[0])?)];
        let mut first = 0;
        for input in &inputs[2..] {
            let elements = input.numel() as i64;
            results.push(Some(weights.f_narrow(0, first, elements)?.f_view(&input.size()[..])?));
            first += elements;
        }
        Ok(results)
    }
}

impl PathSums {
    /// Gradients of all nodes' rows, `[num_nodes, columns]`, from those of each block: the sum where blocks share a graph.
    fn joined(
        &self,
        of_blocks: Tensor,
        reaches: &[Range<usize>],
        bounds: &[usize],
        columns: i64,
    ) -> Result<Tensor, TchError> {
        let nodes = self.graph.num_nodes() as i64;
        if of_blocks.numel() as i64 == nodes * columns {
            return of_blocks.f_view([nodes, columns]);
        }
        let summed = Tensor::f_zeros([nodes, columns], (Kind::Float, Device::Cpu))?;
        for (index, reach) in reaches.iter().enumerate() {
            let size = [reach.len() as i64, columns];
            let of_block = of_blocks.f_narrow(0, bounds[index] as i64, size[0] * size[1])?.f_view(size)?;
            let _ = summed.f_narrow(0, reach.start as i64, size[0])?.f_add_(&of_block)?;
        }
        Ok(summed)
    }
}

/// The gradients that a block adds to.
struct Gradients<'a> {
    /// Gradients of the rows of nodes from `base` on.
    nodes: &'a mut [f32],
    base: usize,
    weights: [&'a mut [f32]; WEIGHTS],
}

/// Inputs of a pass, with the weights as the forward multiplies by them.
struct Pass<'a> {
    graph: &'a PathGraph,
    bases: Bases,
    /// Columns of a node's embedding, H.
    width: usize,
    /// `[num_nodes, 16 H]`
    nodes: &'a [f32],
    weights: [&'a [f32]; WEIGHTS],
    /// E, F, M, L₁, L₂, L₃ and W, transposed.
    transposed: [Vec<f32>; 7],
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

impl<'a> Pass<'a> {
    fn new(graph: &'a PathGraph, bases: Bases, rows: &'a Tensor, inputs: &[&'a Tensor]) -> Result<Self, TchError> {
        let width = rows.size().get(1).map_or(0, |&columns| columns as usize / 16);
        let columns = bases.columns().map(|columns| columns * width);
        let (square, double) = (4 * width * width, 8 * width * width);
        let one = [square, square, square, 4 * width, columns[0], width, columns[1], width, columns[2], width];
        let expected: Vec<usize> = one.into_iter().chain([double, 2 * width]).collect();
        let wrong = (0..WEIGHTS).find(|&index| inputs[index].numel() != expected[index]);
        if let Some(index) = wrong.or((width == 0 || rows.numel() != graph.num_nodes() * 16 * width).then_some(0)) {
            return Err(TchError::Shape(format!(
                "rows of nodes have shape {:?} and weight {index} of the sums over paths {:?}: they do not fit each other",
                rows.size(),
                inputs[index].size()
            )));
        }
        let nodes = view::read::<f32>("rows of nodes", rows)?;
        let mut weights = [nodes; WEIGHTS];
        for (weight, input) in weights.iter_mut().zip(inputs) {
            *weight = view::read::<f32>("weights of the sums over paths", input)?;
        }
        let columns = bases.columns();
        let of = [
            (0, width),
            (1, width),
            (2, width),
            (FIRST[0], columns[0]),
            (FIRST[1], columns[1]),
            (FIRST[2], columns[2]),
        ];
        let [e, f, m, one, two, three] = of.map(|(index, columns)| transposed(weights[index], columns));
        let transposed = [e, f, m, one, two, three, transposed(weights[SECOND], 4 * width)];
        Ok(Self { graph, bases, width, nodes, weights, transposed })
    }

    fn weight_elements(&self) -> usize {
        self.weights.iter().map(|weight| weight.len()).sum()
    }

    /// The parts of an array with the elements of all weights.
    fn split_weights<'b>(&self, mut all: &'b mut [f32]) -> [&'b mut [f32]; WEIGHTS] {
        self.weights.map(|weight| {
            let (one, rest) = std::mem::take(&mut all).split_at_mut(weight.len());
            all = rest;
            one
        })
    }

    /// A quarter of the nodes' rows: A, B, C or D.
    fn quarter(&self, index: usize) -> Columns<'a> {
        Columns { values: self.nodes, stride: 16 * self.width, first: 4 * self.width * index }
    }

    /// Calls `body` with the rows of each piece of the paths that begin in `block`.
    fn for_each_piece(&self, block: &Range<usize>, rows: &mut Rows, mut body: impl FnMut(&mut Rows)) {
        let neighbours = &self.graph.neighbours;
        let mut cursor = Cursor::at(neighbours.edges_of(block.start).start);
        let end = neighbours.edges_of(block.end - 1).end;
        loop {
            rows.piece.fill(neighbours, &mut cursor, end, PIECE);
            if rows.piece.paths[0].is_empty() {
                return;
            }
            self.compute(rows);
            body(rows);
        }
    }

    fn forward_block(&self, block: &Range<usize>, rows: &mut Rows, sums: &mut [f32]) {
        let (width, base) = (2 * self.width, block.start);
        self.for_each_piece(block, rows, |rows| {
            dispatch(ScatterRelu { from: &rows.last, width, to: sums, indices: &rows.firsts, base });
        });
    }

    /// Computes the rows of a piece up to the inputs of the last ReLU.
    fn compute(&self, rows: &mut Rows) {
        self.expand(rows);
        let width = 4 * self.width;
        let [e, f, m, first @ .., second] = &self.transposed;
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
        let inner = [self.width, width];
        product(&hidden[0], e, inner, Start::Row(self.weights[BIAS]), of_edges);
        let from = [(self.quarter(0), &edges[0][..]), (self.quarter(1), &edges[1])];
        dispatch(AddRows { to: of_edges, width, from, relu: false });
        product(&hidden[1], f, inner, Start::Zero, of_pairs);
        let from = [(self.quarter(2), &pairs[1][..]), (Columns::whole(of_edges, width), &pairs[0])];
        dispatch(AddRows { to: of_pairs, width, from, relu: false });
        product(&hidden[2], m, inner, Start::Zero, of_paths);
        let from = [(self.quarter(3), &paths[1][..]), (Columns::whole(of_pairs, width), &paths[0])];
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

    /// Adds the gradients of a block of nodes' paths; `of_sums` are those of all nodes' sums.
    fn backward_block(&self, block: &Range<usize>, rows: &mut Rows, of_sums: &[f32], mut into: Gradients) {
        self.for_each_piece(block, rows, |rows| self.backward_piece(rows, of_sums, &mut into));
    }

    fn backward_piece(&self, rows: &mut Rows, gradients: &[f32], into: &mut Gradients) {
        let (width, wide) = (2 * self.width, 4 * self.width);
        let Rows { piece: Piece { edges, pairs, paths }, firsts, expansions, hidden, sums, last, of_sums, of_hidden } =
            rows;
        dispatch(GateRows { values: last, width, gradients, indices: firsts, base: 0 });
        dispatch(AddColumnSums { from: last, to: into.weights[SECOND + 1] });
        add_gradient(last, width, &sums[2], wide, into.weights[SECOND]);
        product(last, self.weights[SECOND], [width, wide], Start::Zero, &mut of_sums[2]);
        dispatch(Gate { gradients: &mut of_sums[2], outputs: &sums[2] });
        // From paths to pairs to edges: of each level's sums to the level above, to the nodes' rows, and through the level's two layers.
        let [of_edges, of_pairs, of_paths] = of_sums;
        for (to, rows) in [(&mut *of_pairs, pairs[0].len()), (&mut *of_edges, edges[0].len())] {
            to.clear();
            to.resize(rows * wide, 0.0);
        }
        dispatch(Scatter {
            from: of_paths,
            width: wide,
            to: of_pairs,
            stride: wide,
            first: 0,
            indices: &paths[0],
            base: 0,
        });
        dispatch(Scatter {
            from: of_pairs,
            width: wide,
            to: of_edges,
            stride: wide,
            first: 0,
            indices: &pairs[0],
            base: 0,
        });
        dispatch(AddColumnSums { from: of_edges, to: into.weights[BIAS] });
        let of_nodes = [(&*of_edges, &edges[0]), (of_edges, &edges[1]), (of_pairs, &pairs[1]), (of_paths, &paths[1])];
        for (quarter, (from, indices)) in of_nodes.into_iter().enumerate() {
            let (to, first) = (&mut *into.nodes, quarter * wide);
            dispatch(Scatter { from, width: wide, to, stride: 4 * wide, first, indices, base: into.base });
        }
        for (level, of_level) in [of_edges, of_pairs, of_paths].into_iter().enumerate() {
            let (hidden, expansion) = (&hidden[level], &expansions[level]);
            add_gradient(of_level, wide, hidden, self.width, into.weights[level]);
            product(of_level, self.weights[level], [wide, self.width], Start::Zero, of_hidden);
            dispatch(Gate { gradients: of_hidden, outputs: hidden });
            dispatch(AddColumnSums { from: of_hidden, to: into.weights[FIRST[level] + 1] });
            add_gradient(of_hidden, self.width, expansion, self.bases.columns()[level], into.weights[FIRST[level]]);
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
