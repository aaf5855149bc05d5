//! Sum of messages with edge features: `out_i = x_i + Σ_j ReLU(x_j + e_ji)` (GIN-E, Hu et al. 2020), one pass over memory forward and
//! two backward.

use std::ffi::CStr;

use kdgat_graph::Adjacency;
use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{Kind, TchError, Tensor};

use super::{Blocks, applies, empty, shape};
use crate::attention::Backend;
use crate::{ModelError, segments};

/// Adds to each node's row the messages of its incoming edges: `x` `[num_nodes, columns]` and `edges` `[num_edges, columns]`, in the order
/// of `adjacency.sources`, → `[num_nodes, columns]`. The rows of self-loops in `edges` are not used.
pub fn edge_message_sum(
    x: &Tensor,
    edges: &Tensor,
    adjacency: &Adjacency,
    kernel: Backend,
) -> Result<Tensor, ModelError> {
    if applies(kernel, &[x, edges]) {
        let function = EdgeMessageSum { adjacency: adjacency.shallow_clone() };
        return Ok(autograd::apply_one(function, &[&x.f_contiguous()?, &edges.f_contiguous()?])?);
    }
    let values = x.f_index_select(0, &adjacency.sources)?;
    let is_loop = adjacency.sources.f_eq_tensor(&adjacency.targets)?.f_unsqueeze(1)?;
    let messages = values.f_where_self(&is_loop, &values.f_add(edges)?.f_relu()?)?;
    let of_edge = adjacency.targets.f_to_kind(Kind::Int64)?;
    Ok(segments::sums(&messages, &adjacency.row_pointers, &of_edge)?)
}

struct EdgeMessageSum {
    adjacency: Adjacency,
}

impl Function for EdgeMessageSum {
    const NAME: &'static CStr = c"fused sum of edge messages";

    fn forward(&mut self, inputs: &[&Tensor], recorded: bool) -> Result<Forward, TchError> {
        let [nodes, columns] = shape("x", inputs[0])?;
        let graph = Graph::of(&self.adjacency, nodes)?;
        let values = view::read::<f32>("x", inputs[0])?;
        let edges = view::read::<f32>("edges", inputs[1])?;
        graph.expect_edges(inputs[1], columns)?;
        let mut output = empty(&[nodes as i64, columns as i64])?;
        let blocks = graph.blocks(columns);
        let parts = Parts::new(view::write::<f32>("sums", &mut output)?, blocks.bounds(columns));
        blocks.for_each(|block| {
            let first = blocks.rows(block).start;
            dispatch(Sums { graph, first, values, edges, columns, output: parts.take(block) });
        });
        drop(parts);
        let saved = if recorded { vec![inputs[0].shallow_clone(), inputs[1].shallow_clone()] } else { Vec::new() };
        Ok(Forward { outputs: vec![output], saved })
    }

    fn backward(&self, saved: Vec<Tensor>, gradients: Gradients, _: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(vec![None, None]) };
        let gradient = gradient.f_contiguous()?;
        let [nodes, columns] = shape("x", &saved[0])?;
        let graph = Graph::of(&self.adjacency, nodes)?;
        let of_edges = graph.gradient_of_edges(&saved, &gradient, columns)?;
        let of_nodes = graph.gradient_of_nodes(&self.adjacency, &of_edges, &gradient, columns)?;
        Ok(vec![Some(of_nodes), Some(of_edges)])
    }
}

/// The edges by target.
#[derive(Clone, Copy)]
struct Graph<'a> {
    pointers: &'a [i32],
    sources: &'a [i32],
    targets: &'a [i32],
}

impl<'a> Graph<'a> {
    fn of(adjacency: &'a Adjacency, nodes: usize) -> Result<Self, TchError> {
        let pointers = view::read::<i32>("row_pointers", &adjacency.row_pointers)?;
        if pointers.len() != nodes + 1 {
            let known = pointers.len().saturating_sub(1);
            return Err(TchError::Shape(format!("x has {nodes} rows, the graph {known} nodes")));
        }
        let sources = view::read::<i32>("sources", &adjacency.sources)?;
        Ok(Self { pointers, sources, targets: view::read::<i32>("targets", &adjacency.targets)? })
    }

    fn expect_edges(&self, edges: &Tensor, columns: usize) -> Result<(), TchError> {
        let expected = [self.sources.len() as i64, columns as i64];
        match edges.size() == expected {
            true => Ok(()),
            false => Err(TchError::Shape(format!("edges has shape {:?}, expected {expected:?}", edges.size()))),
        }
    }

    /// Blocks of nodes with about the same number of elements.
    fn blocks(&self, columns: usize) -> Blocks {
        let nodes = self.pointers.len() - 1;
        Blocks::new(nodes, columns * self.sources.len().div_ceil(nodes.max(1)).max(1), 1)
    }

    /// The edges of node `node`.
    fn edges_of(&self, node: usize) -> std::ops::Range<usize> {
        self.pointers[node] as usize..self.pointers[node + 1] as usize
    }

    /// Gradients with respect to the edges: that of the target where ReLU let the message pass; 0 for self-loops.
    fn gradient_of_edges(&self, saved: &[Tensor], gradient: &Tensor, columns: usize) -> Result<Tensor, TchError> {
        let values = view::read::<f32>("x", &saved[0])?;
        let edges = view::read::<f32>("edges", &saved[1])?;
        let gradients = view::read::<f32>("gradient", gradient)?;
        let mut output = empty(&[self.sources.len() as i64, columns as i64])?;
        let blocks = self.blocks(columns);
        let bounds = blocks.bounds(1).map(|node| self.pointers[node] as usize * columns);
        let parts = Parts::new(view::write::<f32>("gradient of edges", &mut output)?, bounds);
        blocks.for_each(|block| {
            let nodes = blocks.rows(block);
            dispatch(EdgeGradients {
                graph: *self,
                nodes,
                values,
                edges,
                gradients,
                columns,
                output: parts.take(block),
            });
        });
        drop(parts);
        Ok(output)
    }

    /// Gradients with respect to the nodes: their own, plus those of the edges that leave them.
    fn gradient_of_nodes(
        &self,
        adjacency: &Adjacency,
        of_edges: &Tensor,
        gradient: &Tensor,
        columns: usize,
    ) -> Result<Tensor, TchError> {
        let pointers = view::read::<i32>("column_pointers", &adjacency.column_pointers)?;
        let leaving = view::read::<i32>("transposed", &adjacency.transposed)?;
        let of_edges = view::read::<f32>("gradient of edges", of_edges)?;
        let gradients = view::read::<f32>("gradient", gradient)?;
        let mut output = empty(&gradient.size())?;
        let blocks = self.blocks(columns);
        let parts = Parts::new(view::write::<f32>("gradient of nodes", &mut output)?, blocks.bounds(columns));
        blocks.for_each(|block| {
            let first = blocks.rows(block).start;
            let output = parts.take(block);
            dispatch(NodeGradients { graph: *self, pointers, leaving, first, of_edges, gradients, columns, output });
        });
        drop(parts);
        Ok(output)
    }
}

/// Row `index` of a matrix.
#[inline(always)]
fn row(values: &[f32], index: usize, columns: usize) -> &[f32] {
    &values[index * columns..(index + 1) * columns]
}

#[inline(always)]
fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, &value)| *sum += value);
}

struct Sums<'a> {
    graph: Graph<'a>,
    first: usize,
    values: &'a [f32],
    edges: &'a [f32],
    columns: usize,
    output: &'a mut [f32],
}

impl Kernel for Sums<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.columns.max(1);
        for (node, output) in (self.first..).zip(self.output.chunks_exact_mut(columns)) {
            output.copy_from_slice(row(self.values, node, columns));
            for edge in self.graph.edges_of(node) {
                let source = self.graph.sources[edge] as usize;
                if source == node {
                    continue;
                }
                let message = row(self.values, source, columns).iter().zip(row(self.edges, edge, columns));
                for (sum, (&value, &of_edge)) in output.iter_mut().zip(message) {
                    *sum += (value + of_edge).max(0.0);
                }
            }
        }
    }
}

struct EdgeGradients<'a> {
    graph: Graph<'a>,
    nodes: std::ops::Range<usize>,
    values: &'a [f32],
    edges: &'a [f32],
    gradients: &'a [f32],
    columns: usize,
    output: &'a mut [f32],
}

impl Kernel for EdgeGradients<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.columns.max(1);
        let mut outputs = self.output.chunks_exact_mut(columns);
        for node in self.nodes {
            let gradient = row(self.gradients, node, columns);
            for (edge, output) in self.graph.edges_of(node).zip(&mut outputs) {
                let source = self.graph.sources[edge] as usize;
                if source == node {
                    output.fill(0.0);
                    continue;
                }
                let message = row(self.values, source, columns).iter().zip(row(self.edges, edge, columns));
                for ((output, &gradient), (&value, &of_edge)) in output.iter_mut().zip(gradient).zip(message) {
                    *output = if value + of_edge > 0.0 { gradient } else { 0.0 };
                }
            }
        }
    }
}

struct NodeGradients<'a> {
    graph: Graph<'a>,
    pointers: &'a [i32],
    leaving: &'a [i32],
    first: usize,
    of_edges: &'a [f32],
    gradients: &'a [f32],
    columns: usize,
    output: &'a mut [f32],
}

impl Kernel for NodeGradients<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.columns.max(1);
        for (node, output) in (self.first..).zip(self.output.chunks_exact_mut(columns)) {
            output.copy_from_slice(row(self.gradients, node, columns));
            for &edge in &self.leaving[self.pointers[node] as usize..self.pointers[node + 1] as usize] {
                let edge = edge as usize;
                if self.graph.targets[edge] as usize != node {
                    add(output, row(self.of_edges, edge, columns));
                }
            }
        }
    }
}
