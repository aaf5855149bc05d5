//! Sum over each node's incoming edges: `out_i = Σ_j x_j`, one pass over memory forward and one backward.

use std::ffi::CStr;

use kdgat_graph::Adjacency;
use kdgat_torch::autograd::{self, Forward, Function};
use kdgat_torch::parallel::Parts;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::{Blocks, applies, empty, shape};
use crate::attention::Backend;
use crate::{ModelError, segments};

/// Sums the rows of each node's sources, itself included: `[num_nodes, columns]` → the same shape.
pub fn neighbour_sum(x: &Tensor, adjacency: &Adjacency, kernel: Backend) -> Result<Tensor, ModelError> {
    if applies(kernel, &[x]) {
        let function = NeighbourSum { adjacency: adjacency.shallow_clone() };
        let mut outputs = autograd::apply(function, &[&x.f_contiguous()?])?;
        return Ok(outputs.pop().unwrap_or_default());
    }
    let values = x.f_index_select(0, &adjacency.sources)?;
    let of_edge = adjacency.targets.f_to_kind(tch::Kind::Int64)?;
    Ok(segments::sums(&values, &adjacency.row_pointers, &of_edge)?)
}

struct NeighbourSum {
    adjacency: Adjacency,
}

impl Function for NeighbourSum {
    const NAME: &'static CStr = c"fused neighbour sum";

    fn forward(&mut self, inputs: &[&Tensor], _: bool) -> Result<Forward, TchError> {
        let sources = view::read::<i32>("sources", &self.adjacency.sources)?;
        let output = sums(inputs[0], &self.adjacency.row_pointers, sources)?;
        Ok(Forward { outputs: vec![output], saved: Vec::new() })
    }

    fn backward(
        &self,
        _: Vec<Tensor>,
        gradients: Vec<Option<Tensor>>,
        needed: &[bool],
    ) -> Result<Vec<Option<Tensor>>, TchError> {
        let (Some(gradient), true) = (&gradients[0], needed[0]) else { return Ok(vec![None]) };
        let targets = view::read::<i32>("targets", &self.adjacency.targets)?;
        let edges = view::read::<i32>("transposed", &self.adjacency.transposed)?;
        // The targets of each node's outgoing edges.
        let targets: Vec<i32> = edges.iter().map(|&edge| targets[edge as usize]).collect();
        Ok(vec![Some(sums(&gradient.f_contiguous()?, &self.adjacency.column_pointers, &targets)?)])
    }
}

/// For each row of `pointers`, the sum of the rows of `x` that `picked` lists: `[num_nodes, columns]`.
fn sums(x: &Tensor, pointers: &Tensor, picked: &[i32]) -> Result<Tensor, TchError> {
    let [nodes, columns] = shape("x", x)?;
    let values = view::read::<f32>("x", x)?;
    let pointers = view::read::<i32>("pointers", pointers)?;
    if pointers.len() != nodes + 1 {
        return Err(TchError::Shape(format!(
            "x has {nodes} rows, the graph {} nodes",
            pointers.len().saturating_sub(1)
        )));
    }
    let mut output = empty(&[nodes as i64, columns as i64])?;
    let blocks = Blocks::new(nodes, columns * picked.len().div_ceil(nodes.max(1)).max(1), 1);
    let parts = Parts::new(view::write::<f32>("sums", &mut output)?, blocks.bounds(columns));
    blocks.for_each(|block| {
        let rows = blocks.rows(block);
        let pointers = &pointers[rows.start..rows.end + 1];
        dispatch(Sums { pointers, picked, values, columns, output: parts.take(block) });
    });
    drop(parts);
    Ok(output)
}

struct Sums<'a> {
    pointers: &'a [i32],
    picked: &'a [i32],
    values: &'a [f32],
    columns: usize,
    output: &'a mut [f32],
}

impl Kernel for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Instructions>(self) {
        let columns = self.columns.max(1);
        for (ends, output) in self.pointers.windows(2).zip(self.output.chunks_exact_mut(columns)) {
            output.fill(0.0);
            for &row in &self.picked[ends[0] as usize..ends[1] as usize] {
                let row = &self.values[row as usize * columns..(row as usize + 1) * columns];
                for (sum, &value) in output.iter_mut().zip(row) {
                    *sum += value;
                }
            }
        }
    }
}
