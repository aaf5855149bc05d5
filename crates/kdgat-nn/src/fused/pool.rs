//! Mean over each graph's nodes, by pointers: the nodes of a graph are consecutive.

use std::ffi::CStr;

use kdgat_torch::autograd::{self, Forward, Function, Gradients};
use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::{Blocks, empty, shape};

/// Means over each graph's nodes: layers of `[num_nodes, columns]` → `[num_graphs, all columns]`, concatenated. Graph
/// `g` has the nodes `node_pointers[g]..node_pointers[g + 1]`.
pub fn mean_per_graph(layers: &[&Tensor], node_pointers: &Tensor) -> Result<Tensor, TchError> {
    let layers = layers.iter().map(|layer| layer.f_contiguous()).collect::<Result<Vec<_>, _>>()?;
    let columns = layers.iter().map(|layer| Ok(shape("x", layer)?[1])).collect::<Result<Vec<_>, TchError>>()?;
    let function = Pool { node_pointers: node_pointers.f_contiguous()?, columns };
    autograd::apply_one(function, &layers.iter().collect::<Vec<_>>())
}

struct Pool {
    node_pointers: Tensor,
    /// Number of columns of each layer.
    columns: Vec<usize>,
}

impl Function for Pool {
    const NAME: &'static CStr = c"fused mean per graph";

    fn forward(&mut self, inputs: &[&Tensor], _: bool) -> Result<Forward, TchError> {
        let pointers = view::read::<i64>("node_pointers", &self.node_pointers)?;
        let layers = inputs.iter().map(|layer| view::read::<f32>("x", layer)).collect::<Result<Vec<_>, _>>()?;
        let nodes = pointers.last().map_or(0, |&end| end as usize);
        for layer in inputs {
            if shape("x", layer)?[0] < nodes {
                return Err(TchError::Shape(format!("x has shape {:?}, expected {nodes} rows", layer.size())));
            }
        }
        let (graphs, width) = (pointers.len().saturating_sub(1), self.columns.iter().sum::<usize>());
        let mut output = empty(&[graphs as i64, width as i64])?;
        let blocks = self.blocks(graphs, nodes, width);
        let parts = Parts::new(view::write::<f32>("means", &mut output)?, blocks.bounds(width));
        blocks.for_each(|block| {
            let graphs = blocks.rows(block);
            let pointers = &pointers[graphs.start..graphs.end + 1];
            dispatch(Means { pointers, layers: &layers, columns: &self.columns, output: parts.take(block) });
        });
        drop(parts);
        Ok(Forward { outputs: vec![output], saved: Vec::new() })
    }

    fn backward(&self, _: Vec<Tensor>, gradients: Gradients, needed: &[bool]) -> Result<Gradients, TchError> {
        let Some(gradient) = &gradients[0] else { return Ok(needed.iter().map(|_| None).collect()) };
        let gradient = gradient.f_contiguous()?;
        let gradient = view::read::<f32>("gradient", &gradient)?;
        let pointers = view::read::<i64>("node_pointers", &self.node_pointers)?;
        let (graphs, width) = (pointers.len().saturating_sub(1), self.columns.iter().sum::<usize>());
        let nodes = pointers.last().map_or(0, |&end| end as usize);
        let mut results = Vec::new();
        let mut first_column = 0;
        for (&columns, &needed) in self.columns.iter().zip(needed) {
            let blocks = self.blocks(graphs, nodes, columns);
            let mut result = empty(&[nodes as i64, columns as i64])?;
            let starts = blocks.bounds(1).map(|graph| pointers[graph] as usize * columns);
            let parts = Parts::new(view::write::<f32>("gradient", &mut result)?, starts);
            if needed {
                blocks.for_each(|block| {
                    let graphs = blocks.rows(block);
                    dispatch(Spread {
                        pointers: &pointers[graphs.start..graphs.end + 1],
                        gradient: &gradient[graphs.start * width..graphs.end * width],
                        from: first_column,
                        columns,
                        width,
                        result: parts.take(block),
                    });
                });
            }
            drop(parts);
            results.push(needed.then_some(result));
            first_column += columns;
        }
        Ok(results)
    }
}

impl Pool {
    /// Divides the graphs into blocks by the average number of elements per graph.
    fn blocks(&self, graphs: usize, nodes: usize, columns: usize) -> Blocks {
        Blocks::new(graphs, columns * nodes.div_ceil(graphs.max(1)), 1)
    }
}

struct Means<'a> {
    pointers: &'a [i64],
    layers: &'a [&'a [f32]],
    columns: &'a [usize],
    output: &'a mut [f32],
}

impl Kernel for Means<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let width = self.columns.iter().sum::<usize>().max(1);
        for (nodes, output) in self.pointers.windows(2).zip(self.output.chunks_exact_mut(width)) {
            let (start, end) = (nodes[0] as usize, nodes[1] as usize);
            let mut first = 0;
            for (layer, &columns) in self.layers.iter().zip(self.columns) {
                let output = &mut output[first..first + columns];
                output.fill(0.0);
                for row in layer[start * columns..end * columns].chunks_exact(columns.max(1)) {
                    for (sum, &value) in output.iter_mut().zip(row) {
                        *sum += value;
                    }
                }
                let count = (end - start) as f32;
                output.iter_mut().for_each(|sum| *sum /= count);
                first += columns;
            }
        }
    }
}

struct Spread<'a> {
    pointers: &'a [i64],
    /// `[graphs, width]`
    gradient: &'a [f32],
    /// First column of the layer in the gradient. `columns` is the layer's number of columns.
    from: usize,
    columns: usize,
    width: usize,
    result: &'a mut [f32],
}

impl Kernel for Spread<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        if self.columns == 0 {
            return;
        }
        let mut rows = self.result.chunks_exact_mut(self.columns);
        for (nodes, gradient) in self.pointers.windows(2).zip(self.gradient.chunks_exact(self.width)) {
            let gradient = &gradient[self.from..self.from + self.columns];
            let share = 1.0 / (nodes[1] - nodes[0]) as f32;
            for row in rows.by_ref().take((nodes[1] - nodes[0]) as usize) {
                for (result, &gradient) in row.iter_mut().zip(gradient) {
                    *result = gradient * share;
                }
            }
        }
    }
}
