//! What lies between the matrix products and the attention of a step, each as one pass over memory forward and one
//! backward: normalisation with ReLU and dropout, pooling, the input, and the losses.
//!
//! These run on the CPU in f32, in Rust, on several threads. Everywhere else, and on request
//! ([`Backend::Composed`]), the same is composed of torch's operations; both give the same numbers to rounding.
//! Every sum is taken over blocks whose size depends on the shape alone, so no result depends on the number of threads;
//! and in evaluation no element's value depends on its place in the batch.

pub mod activation;
mod distances;
pub mod distillation;
pub mod dropout;
pub mod fan_out;
pub mod hashed_input;
pub mod input;
pub mod latent;
pub mod linear;
pub mod math;
pub mod norm;
mod norm_backward;
pub mod pool;
mod projection;
pub mod score;
pub mod sigmoid;
pub mod step_seed;
pub mod vgae_loss;

use std::ops::Range;

use kdgat_torch::parallel::{Parts, parallel_for};
use kdgat_torch::view::{self, Storable};
use tch::{Device, Kind, TchError, Tensor};

use super::attention::Backend;

/// Whether `kernel` asks for the fused passes and they can work on these tensors.
pub fn applies(kernel: Backend, tensors: &[&Tensor]) -> bool {
    let suits =
        |tensor: &&Tensor| tensor.device() == Device::Cpu && tensor.f_kind().is_ok_and(|kind| kind == Kind::Float);
    kernel != Backend::Composed && tensors.iter().all(suits)
}

/// What an activation is computed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Its values, of which the backward keeps a handle: the next layer reads them too.
    Forward,
    /// Its backward alone, when it is computed again: the result only has the values' shape, and a byte tells for each
    /// element whether a gradient passes.
    Again,
}

/// What the backward of an activation asks of each element: whether its gradient passes.
trait Gate: Storable {
    fn is_open(self) -> bool;
}

/// The output of a ReLU and dropout: where it is positive the input was, and was kept.
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

/// Writes for each output whether it is positive.
fn note_gates(outputs: &[f32], gates: &mut [u8]) {
    for (gate, &output) in gates.iter_mut().zip(outputs) {
        *gate = u8::from(output.is_open());
    }
}

/// The fewest rows that are a whole number of groups of `group` elements together.
fn rows_of_whole_groups(columns: usize, group: usize) -> usize {
    let (mut divisor, mut rest) = (group, columns.max(1));
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    group / divisor
}

/// A number for each column, over and over for so many rows that these are whole vectors together: worked on that many
/// rows at a time, a matrix of any width leaves no vector half empty but at its end.
fn over_rows(by_column: &[f32]) -> Vec<f32> {
    by_column.repeat(rows_of_whole_groups(by_column.len(), math::LANES))
}

/// A tensor of this shape without memory for its elements, which nothing reads.
fn without_values(size: &[i64]) -> Result<Tensor, TchError> {
    Tensor::f_empty_strided(size, vec![0; size.len()], (Kind::Float, Device::Cpu))
}

/// An uninitialised byte for each element of `tensor`.
fn bytes_like(tensor: &Tensor) -> Result<Tensor, TchError> {
    Tensor::f_empty(tensor.size(), (Kind::Uint8, Device::Cpu))
}

/// Elements below which a second thread costs more than it brings.
const WORTHWHILE: usize = 32_768;

/// A number of rows cut into blocks that fit a core's cache.
#[derive(Clone, Copy)]
struct Blocks {
    rows: usize,
    rows_in_block: usize,
    columns: usize,
}

impl Blocks {
    /// Cuts by the shape alone; all blocks but the last have a multiple of `multiple` rows.
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

    /// The elements of a block in an array of `width` elements a row.
    fn elements(&self, block: usize, width: usize) -> Range<usize> {
        let rows = self.rows(block);
        rows.start * width..rows.end * width
    }

    /// Where the blocks begin and end in an array of `width` elements a row.
    fn bounds(self, width: usize) -> impl Iterator<Item = usize> {
        (0..=self.count()).map(move |block| (block * self.rows_in_block).min(self.rows) * width)
    }

    /// Calls `body` with every block.
    fn for_each(&self, body: impl Fn(usize) + Sync) {
        let grain = WORTHWHILE.div_ceil((self.rows_in_block * self.columns).max(1));
        parallel_for(self.count(), grain, |blocks| blocks.for_each(&body));
    }
}

/// `output`, of `width` elements a row, after `write` has filled each block of it.
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
        ref found => Err(TchError::Shape(format!("{name} has shape {found:?}, a matrix is expected"))),
    }
}

/// An uninitialised tensor like `tensor`, contiguous.
fn like(tensor: &Tensor) -> Result<Tensor, TchError> {
    empty(&tensor.size())
}

/// An uninitialised tensor out of torch's allocator, so that it is counted and its memory reused.
fn empty(size: &[i64]) -> Result<Tensor, TchError> {
    Tensor::f_empty(size, (Kind::Float, Device::Cpu))
}

/// Fails unless every index of an ID is one of `ids`.
fn expect_ids(indices: &[i64], ids: usize) -> Result<(), TchError> {
    match indices.iter().find(|index| !(0..ids as i64).contains(*index)) {
        None => Ok(()),
        Some(index) => {
            Err(TchError::Shape(format!("index {index} of an ID is outside the {ids} that the model knows")))
        }
    }
}

/// Fails unless `tensor` has `expected` elements.
fn expect_elements(name: &str, tensor: &Tensor, expected: usize) -> Result<(), TchError> {
    if tensor.numel() == expected {
        return Ok(());
    }
    Err(TchError::Shape(format!("{name} has shape {:?}, {expected} elements are expected", tensor.size())))
}
