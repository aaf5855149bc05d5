//! Matrices of f32 rows: one tensor, or separate pieces that are read in place.
//!
//! A cache stores all data of a graph in one place, so the rows of a batch are scattered over the cache. A loop that
//! reads them in place avoids a copy, which would be written to memory and read back.

use std::ops::Range;
use std::sync::Arc;

use tch::{Device, Kind, TchError, Tensor};

use super::parallel::{Parts, parallel_for};
use super::view;

/// An f32 matrix, in one tensor or in pieces.
#[derive(Debug)]
pub enum Rows {
    /// A tensor `[rows, columns]` on any device.
    Whole(Tensor),
    /// Pieces in host memory.
    Apart(Pieces),
}

impl From<Tensor> for Rows {
    fn from(tensor: Tensor) -> Self {
        Self::Whole(tensor)
    }
}

impl Rows {
    /// Number of values, rows times columns.
    pub fn numel(&self) -> usize {
        match self {
            Self::Whole(tensor) => tensor.numel(),
            Self::Apart(pieces) => pieces.rows.len() * pieces.columns,
        }
    }

    /// Another handle to a range of rows.
    pub fn narrow(&self, rows: Range<usize>) -> Result<Self, TchError> {
        Ok(match self {
            Self::Whole(tensor) => Self::Whole(tensor.f_narrow(0, rows.start as i64, rows.len() as i64)?),
            Self::Apart(pieces) => Self::Apart(pieces.narrow(rows)?),
        })
    }

    /// Another handle to the rows; a tensor is made contiguous.
    pub fn contiguous(&self) -> Result<Self, TchError> {
        match self {
            Self::Whole(tensor) => Ok(Self::Whole(tensor.f_contiguous()?)),
            Self::Apart(pieces) => Ok(Self::Apart(pieces.narrow(0..pieces.rows.len())?)),
        }
    }

    /// All rows in one tensor `[rows, columns]`: another handle to a whole tensor, or a copy of the pieces.
    pub fn gathered(&self) -> Result<Tensor, TchError> {
        match self {
            Self::Whole(tensor) => Ok(tensor.shallow_clone()),
            Self::Apart(pieces) => pieces.gathered(),
        }
    }

    /// The values, for reading by several threads. A tensor must be contiguous f32 on the CPU; errors call it `name`.
    pub fn read(&self, name: &str) -> Result<Values<'_>, TchError> {
        match self {
            Self::Whole(tensor) => Ok(Values::Whole(view::read(name, tensor)?)),
            Self::Apart(pieces) => pieces.read(name),
        }
    }
}

/// Blocks of bytes in host memory. Nobody may write to bytes that rows are read from.
#[derive(Debug)]
pub struct Blocks {
    /// Address and length in bytes of each block.
    bytes: Vec<(*const u8, usize)>,
    /// Keeps the blocks alive.
    _tensors: Vec<Tensor>,
}

// SAFETY: a shared handle only gives access to bytes that do not change and that the tensors keep at the same address.
unsafe impl Sync for Blocks {}
// SAFETY: see above; the tensors themselves can move to another thread.
unsafe impl Send for Blocks {}

impl Blocks {
    /// Wraps `tensors`, each `[bytes]`, u8, contiguous in host memory.
    pub fn new(tensors: Vec<Tensor>) -> Result<Self, TchError> {
        let bytes = tensors.iter().map(|block| view::read::<u8>("a block of bytes", block));
        let bytes = bytes.map(|bytes| bytes.map(|bytes| (bytes.as_ptr(), bytes.len())));
        Ok(Self { bytes: bytes.collect::<Result<_, _>>()?, _tensors: tensors })
    }

    /// `values` f32 values of a block, starting at a byte offset. `None` if they leave the block or are misaligned.
    fn values(&self, (block, offset): Place, values: usize) -> Option<&[f32]> {
        let &(first, length) = self.bytes.get(block as usize)?;
        let (offset, bytes) = (offset as usize, values.checked_mul(size_of::<f32>())?);
        if offset.checked_add(bytes)? > length {
            return None;
        }
        if bytes == 0 {
            return Some(&[]);
        }
        // SAFETY: the values are inside the block, which is alive, and nobody writes to them; other bytes of the block
        // may be written.
        view::of_bytes(unsafe { std::slice::from_raw_parts(first.add(offset), bytes) })
    }
}

/// Location of a piece: number of its block, and offset of its first byte in that block.
pub type Place = (u32, u32);

/// Runs of rows stored in blocks of bytes.
#[derive(Debug)]
pub struct Pieces {
    blocks: Arc<Blocks>,
    places: Arc<Vec<Place>>,
    /// First row of each piece, then the number of all rows.
    starts: Arc<Vec<usize>>,
    columns: usize,
    /// The selected rows.
    rows: Range<usize>,
}

impl Pieces {
    /// All rows of the pieces at `places`. Piece `i` begins with row `starts[i]`; the last entry of `starts` is the
    /// number of all rows.
    pub fn new(
        blocks: Arc<Blocks>,
        places: Vec<Place>,
        starts: Arc<Vec<usize>>,
        columns: usize,
    ) -> Result<Self, TchError> {
        if starts.len() != places.len() + 1 {
            return Err(TchError::Shape(format!("{} pieces need one more start, got {}", places.len(), starts.len())));
        }
        let rows = 0..starts[places.len()];
        Ok(Self { blocks, places: Arc::new(places), starts, columns, rows })
    }

    fn narrow(&self, rows: Range<usize>) -> Result<Self, TchError> {
        if rows.start > rows.end || rows.end > self.rows.len() {
            return Err(TchError::Shape(format!("rows {rows:?} are outside of a matrix of {} rows", self.rows.len())));
        }
        let rows = self.rows.start + rows.start..self.rows.start + rows.end;
        let (blocks, places, starts) = (Arc::clone(&self.blocks), Arc::clone(&self.places), Arc::clone(&self.starts));
        Ok(Self { blocks, places, starts, columns: self.columns, rows })
    }

    fn read(&self, name: &str) -> Result<Values<'_>, TchError> {
        let mut pieces = Vec::with_capacity(self.places.len());
        for (&(block, offset), rows) in self.places.iter().zip(self.starts.windows(2)) {
            let values = (rows[1] - rows[0]) * self.columns;
            let outside = || TchError::Shape(format!("{name}: {values} values at byte {offset} exceed block {block}"));
            pieces.push(self.blocks.values((block, offset), values).ok_or_else(outside)?);
        }
        let first = self.rows.start * self.columns;
        Ok(Values::Apart { pieces, starts: &self.starts, columns: self.columns, first })
    }

    fn gathered(&self) -> Result<Tensor, TchError> {
        const ROWS: usize = 256;
        let (rows, columns) = (self.rows.len(), self.columns);
        let mut whole = Tensor::f_empty([rows as i64, columns as i64], (Kind::Float, Device::Cpu))?;
        let values = self.read("cached rows")?;
        let blocks = rows.div_ceil(ROWS);
        let bounds = (0..=blocks).map(|block| (block * ROWS).min(rows) * columns);
        let parts = Parts::new(view::write::<f32>("gathered rows", &mut whole)?, bounds);
        parallel_for(blocks, 4, |blocks| {
            for block in blocks {
                let part = parts.take(block);
                let start = block * ROWS * columns;
                values.copy(start, part);
            }
        });
        drop(parts);
        Ok(whole)
    }
}

/// The values of [`Rows`] in row order.
pub enum Values<'a> {
    /// All values of a contiguous matrix.
    Whole(&'a [f32]),
    /// Values in separate pieces.
    Apart {
        /// The values of each piece.
        pieces: Vec<&'a [f32]>,
        /// First row of each piece, then the number of all rows.
        starts: &'a [usize],
        /// Columns of a row.
        columns: usize,
        /// Index of the first selected value.
        first: usize,
    },
}

impl Values<'_> {
    /// The rows `rows` of `columns` values each, as slices of the original memory.
    pub fn rows(&self, rows: Range<usize>, columns: usize) -> Vec<&[f32]> {
        let mut found = Vec::with_capacity(rows.len());
        let values = rows.start * columns..rows.end * columns;
        self.for_each_run(values, |piece| found.extend(piece.chunks_exact(columns.max(1))));
        found
    }

    fn copy(&self, start: usize, to: &mut [f32]) {
        let mut rest = to;
        self.for_each_run(start..start + rest.len(), |piece| {
            let (place, after) = std::mem::take(&mut rest).split_at_mut(piece.len());
            place.copy_from_slice(piece);
            rest = after;
        });
    }

    /// Calls `visit` with the values of `range`, one contiguous run at a time.
    pub fn for_each_run<'b>(&'b self, range: Range<usize>, mut visit: impl FnMut(&'b [f32])) {
        match self {
            Self::Whole(values) => visit(&values[range]),
            Self::Apart { pieces, starts, columns, first } => {
                let (mut next, end) = (range.start + first, range.end + first);
                // The last piece that begins at or before `next`; empty pieces before it have nothing to read.
                let mut piece = starts.partition_point(|start| start * columns <= next).saturating_sub(1);
                while next < end {
                    let piece_start = starts[piece] * columns;
                    let until = end - piece_start;
                    let values = &pieces[piece][next - piece_start..until.min(pieces[piece].len())];
                    visit(values);
                    next += values.len();
                    piece += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pieces of these lengths (rows) in two blocks, between other bytes; each value is its index in the matrix.
    fn pieces(lengths: &[usize], columns: usize) -> Pieces {
        let (mut blocks, mut places, mut starts) = ([vec![0u8; 4], vec![0u8; 8]], Vec::new(), vec![0]);
        for (number, rows) in lengths.iter().enumerate() {
            let block = number % 2;
            let first = starts[number] * columns;
            places.push((block as u32, blocks[block].len() as u32));
            for value in first..first + rows * columns {
                blocks[block].extend((value as f32).to_le_bytes());
            }
            blocks[block].extend([255; 4]);
            starts.push(starts[number] + rows);
        }
        let blocks = Blocks::new(blocks.iter().map(|block| Tensor::from_slice(block)).collect());
        let blocks = Arc::new(blocks.unwrap());
        Pieces::new(blocks, places, Arc::new(starts), columns).unwrap()
    }

    proptest! {
        #[test]
        fn pieces_read_like_one_matrix(
            lengths in proptest::collection::vec(0usize..400, 1..8),
            columns in 1usize..4,
            cuts in proptest::collection::vec(0usize..3000, 4),
        ) {
            let rows: usize = lengths.iter().sum();
            let whole: Vec<f32> = (0..rows * columns).map(|value| value as f32).collect();
            let apart = Rows::Apart(pieces(&lengths, columns));
            prop_assert_eq!(apart.numel(), whole.len());
            let (low, high) = (cuts[0].min(cuts[1]).min(rows), cuts[0].max(cuts[1]).min(rows));
            let some = apart.narrow(low..high).unwrap();
            let expected = &whole[low * columns..high * columns];
            let gathered = some.gathered().unwrap();
            prop_assert_eq!(gathered.size(), vec![(high - low) as i64, columns as i64]);
            prop_assert_eq!(view::read::<f32>("gathered", &gathered).unwrap(), expected);
            let (from, to) = (cuts[2].min(cuts[3]).min(expected.len()), cuts[2].max(cuts[3]).min(expected.len()));
            let values = some.read("pieces").unwrap();
            let mut found = Vec::new();
            values.for_each_run(from..to, |run| found.extend_from_slice(run));
            prop_assert_eq!(found.as_slice(), &expected[from..to]);
            let row_by_row: Vec<f32> = values.rows(0..high - low, columns).concat();
            prop_assert_eq!(row_by_row.as_slice(), expected);
            // Rows out of range are an error.
            prop_assert!(apart.narrow(0..rows + 1).is_err());
        }
    }

    #[test]
    fn a_piece_outside_its_block_is_an_error() {
        let blocks = Arc::new(Blocks::new(vec![Tensor::from_slice(&[0u8; 16])]).unwrap());
        let found = |place| Pieces::new(Arc::clone(&blocks), vec![place], Arc::new(vec![0, 2]), 2).unwrap().gathered();
        assert!(found((0, 0)).is_ok());
        for (what, place) in [("beyond the end", (0, 4)), ("in no block", (1, 0)), ("not aligned", (0, 2))] {
            assert!(found(place).is_err(), "{what}");
        }
    }
}
