//! Fused operations of a step besides matrix products and attention, each one pass over memory forward and one
//! backward: normalisation with ReLU and dropout, pooling, the input, and the losses.
//!
//! They run on the CPU in f32, in Rust, on several threads. Otherwise, and on request ([`Backend::Composed`]), the same
//! operations are composed of torch's; both give the same numbers up to rounding. Every sum is over blocks whose size
//! depends on the shape alone, so no result depends on the number of threads; in evaluation, no element's value depends
//! on its position in the batch.

pub mod activation;
mod distances;
pub mod distillation;
pub mod double_linear;
pub mod dropout;
pub mod edge_messages;
pub mod elementwise;
pub mod fan_out;
pub mod hashed_input;
pub mod input;
pub mod irreps;
pub mod latent;
pub mod layer_norm;
pub mod linear;
pub mod math;
pub mod neighbours;
pub mod norm;
mod norm_backward;
pub mod pair_filters;
pub mod pair_sums;
pub mod pool;
mod projection;
pub mod score;
pub mod smooth_activation;
pub mod sparse_linear;
mod sparse_sums;
pub mod step_seed;
pub mod twice_linear;
pub mod vgae_loss;

use std::ops::Range;

use kdgat_torch::parallel::{Parts, parallel_for};
use kdgat_torch::view::{self, Storable};
use tch::{Device, Kind, TchError, Tensor};

use super::attention::Backend;

/// True if `kernel` allows the fused passes and they support these tensors (f32 on the CPU).
pub fn applies(kernel: Backend, tensors: &[&Tensor]) -> bool {
    let suits =
        |tensor: &&Tensor| tensor.device() == Device::Cpu && tensor.f_kind().is_ok_and(|kind| kind == Kind::Float);
    kernel != Backend::Composed && tensors.iter().all(suits)
}

/// Purpose of computing an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// In the forward: computes the values. The backward saves a handle to them, since the next layer reads them too.
    Forward,
    /// In a recomputation, for the backward alone: the result has the values' shape but no values. One byte per element
    /// records whether a gradient passes.
    Again,
}

/// Saved element of an activation, from which the backward tells whether a gradient passes.
trait Gate: Storable {
    fn is_open(self) -> bool;
}

/// The output of ReLU and dropout: if it is positive, the input was positive and not dropped.
impl Gate for f32 {
    #[inline(always)]
    fn is_open(self) -> bool {
        self > 0.0
    }
}

/// One where that output would be positive.
impl Gate for u8 {
    #[inline(always)]
    fn is_open(self) -> bool {
        self != 0
    }
}

/// Writes for each output whether it is positive (1) or not (0).
fn note_gates(outputs: &[f32], gates: &mut [u8]) {
    for (gate, &output) in gates.iter_mut().zip(outputs) {
        *gate = u8::from(output.is_open());
    }
}

/// The smallest number of rows that together are a whole number of groups of `group` elements.
fn rows_of_whole_groups(columns: usize, group: usize) -> usize {
    let (mut divisor, mut rest) = (group, columns.max(1));
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    group / divisor
}

/// Repeats one number per column for as many rows as fill whole vectors. Processing that many rows at a time, a matrix
/// of any width has a partially filled vector only at its end.
fn over_rows(by_column: &[f32]) -> Vec<f32> {
    by_column.repeat(rows_of_whole_groups(by_column.len(), math::LANES))
}

/// A tensor of this shape without memory for its elements, which must not be read.
fn without_values(size: &[i64]) -> Result<Tensor, TchError> {
    Tensor::f_empty_strided(size, vec![0; size.len()], (Kind::Float, Device::Cpu))
}

/// A tensor of one uninitialised byte per element of `tensor`.
fn bytes_like(tensor: &Tensor) -> Result<Tensor, TchError> {
    Tensor::f_empty(tensor.size(), (Kind::Uint8, Device::Cpu))
}

/// Number of elements below which a second thread costs more than it gains.
const WORTHWHILE: usize = 32_768;

/// Rows divided into blocks that fit into a core's cache.
#[derive(Clone, Copy)]
struct Blocks {
    rows: usize,
    rows_in_block: usize,
    columns: usize,
}

impl Blocks {
    /// Divides by the shape alone; all blocks but the last have a multiple of `multiple` rows.
    fn new(rows: usize, columns: usize, multiple: usize) -> Self {
        const ELEMENTS: usize = 16_384;
        let wanted = (ELEMENTS / columns.max(1)).max(1);
        Self { rows, rows_in_block: wanted.next_multiple_of(multiple), columns }
    }

    fn count(&self) -> usize {
        self.rows.div_ceil(self.rows_in_block)
    }

    fn rows(&self, block: usize) -> Range<usize> {
        let start = block * self.rows_in_block;
        start..(start + self.rows_in_block).min(self.rows)
    }

    /// The elements of a block in an array of `width` elements per row.
    fn elements(&self, block: usize, width: usize) -> Range<usize> {
        let rows = self.rows(block);
        rows.start * width..rows.end * width
    }

    /// Bounds of the blocks in an array of `width` elements per row.
    fn bounds(self, width: usize) -> impl Iterator<Item = usize> {
        (0..=self.count()).map(move |block| (block * self.rows_in_block).min(self.rows) * width)
    }

    /// Calls `body` with every block, on several threads.
    fn for_each(&self, body: impl Fn(usize) + Sync) {
        let grain = WORTHWHILE.div_ceil((self.rows_in_block * self.columns).max(1));
        parallel_for(self.count(), grain, |blocks| blocks.for_each(&body));
    }
}

/// Fills `output`, of `width` elements per row, by calling `write` with each block, and returns it.
fn by_blocks<T: Storable + Send>(
    name: &str,
    mut output: Tensor,
    blocks: Blocks,
    width: usize,
    write: impl Fn(usize, &mut [T]) + Sync,
) -> Result<Tensor, TchError> {
    let parts = Parts::new(view::write::<T>(name, &mut output)?, blocks.bounds(width));
    blocks.for_each(|block| write(block, parts.take(block)));
    drop(parts);
    Ok(output)
}

/// Rows and columns of a matrix.
fn shape(name: &str, tensor: &Tensor) -> Result<[usize; 2], TchError> {
    match tensor.size()[..] {
        // Sizes of tensors are never negative.
        [rows, columns] => Ok([rows as usize, columns as usize]),
        ref found => Err(TchError::Shape(format!("{name} has shape {found:?}, expected a matrix"))),
    }
}

/// An uninitialised contiguous f32 tensor of the shape of `tensor`.
fn like(tensor: &Tensor) -> Result<Tensor, TchError> {
    empty(&tensor.size())
}

/// An uninitialised f32 tensor from torch's allocator, so that it is counted and its memory reused.
fn empty(size: &[i64]) -> Result<Tensor, TchError> {
    Tensor::f_empty(size, (Kind::Float, Device::Cpu))
}

/// Fails unless every ID index is below `ids`.
fn expect_ids(indices: &[i64], ids: usize) -> Result<(), TchError> {
    match indices.iter().find(|index| !(0..ids as i64).contains(*index)) {
        None => Ok(()),
        Some(index) => Err(TchError::Shape(format!("ID index {index} is outside of the model's vocabulary of {ids}"))),
    }
}

/// Fails unless `tensor` has `expected` elements.
fn expect_elements(name: &str, tensor: &Tensor, expected: usize) -> Result<(), TchError> {
    if tensor.numel() == expected {
        return Ok(());
    }
    Err(TchError::Shape(format!("{name} has shape {:?}, expected {expected} elements", tensor.size())))
}
