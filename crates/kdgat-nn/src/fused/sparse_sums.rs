//! Weighted sums of rows by the values of a sparse matrix, for a layer on [sparse rows](super::sparse_linear): one sum for each
//! line, a row or a column of the sparse matrix.
//!
//! A line is written by one thread, and its values are added in their order: neither threads nor the division into blocks, tiles
//! and steps change a bit. The rows to add are picked in no order, so they must be in a core's cache. Sums are therefore of
//! a few columns, a tile, at a time; and where many values of a line pick among a few rows, all lines of a block pick from those
//! few before the next.

use std::ops::Range;

use kdgat_torch::parallel::{Parts, parallel_for};
use kdgat_torch::simd::rows::{Heads, Initial, Matrix};
use kdgat_torch::simd::transpose::SIDE;
use kdgat_torch::simd::{Instructions, Kernel, dispatch};
use kdgat_torch::view;
use tch::{TchError, Tensor};

use super::empty;
use super::sparse_linear::ValueDropout;

/// Approximate number of values in a block of lines.
const VALUES_OF_BLOCK: usize = 32_768;
/// Number of rows transposed or copied at a time.
const ROWS_OF_COPY: usize = 512;
/// Number of rows in a step: of [`STEP_TILE`] columns they nearly fill a core's fastest cache.
const STEP: usize = 192;
const STEP_TILE: usize = 64;
/// Expected number of a line's values in a step from which steps are faster.
const VALUES_OF_STEP: usize = 16;
/// Number of lines in a block from which fetching a step's rows costs little.
const LINES_OF_STEP: usize = 48;

/// Division of the work; tiles are a multiple of [`SIDE`].
///
/// The constants are the fastest of those tried for 18,333 × 6,805 numbers of which 0.9 % are not zero (without steps) and for
/// 13,752 × 767 of which 35 % are not zero (with steps), on an Intel Xeon with 2 MiB of cache for each core.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Columns added at a time.
    pub(super) tile: usize,
    /// Number of rows that all lines of a block pick from before the next.
    step: usize,
    least_lines: usize,
}

impl Plan {
    /// For sums by row of a sparse matrix `[rows, columns]`.
    pub(super) fn of_forward(values: usize, [rows, columns]: [usize; 2]) -> Self {
        Self::new(values, rows * columns, 64)
    }

    /// For sums by column of a sparse matrix `[rows, columns]`, which pick from many rows.
    pub(super) fn of_backward(values: usize, [rows, columns]: [usize; 2]) -> Self {
        Self::new(values, rows * columns, 32)
    }

    fn new(values: usize, elements: usize, tile: usize) -> Self {
        match values * STEP >= elements * VALUES_OF_STEP {
            true => Self { tile: STEP_TILE, step: STEP, least_lines: LINES_OF_STEP },
            false => Self { tile, step: usize::MAX, least_lines: 1 },
        }
    }
}

/// A few columns of a matrix, stored one row after another.
pub(super) struct Tile<'a> {
    /// The first column.
    pub(super) first: usize,
    rows: Matrix<'a, f32>,
    num_rows: usize,
    /// One head of the tile's columns.
    heads: Heads,
}

impl Tile<'_> {
    /// Number of columns.
    pub(super) fn width(&self) -> usize {
        self.heads.channels
    }
}

/// The tiles of `width` columns of a matrix `[rows, columns]` whose tiles are stored one after another.
pub(super) fn tiles(values: &[f32], [rows, columns]: [usize; 2], width: usize) -> Vec<Tile<'_>> {
    let tile = |first: usize| {
        let width = width.min(columns - first);
        let values = &values[first * rows..(first + width) * rows];
        Tile { first, rows: Matrix::new(values, width), num_rows: rows, heads: Heads::new(1, width) }
    };
    (0..columns).step_by(width).map(tile).collect()
}

/// The rows or the columns of a sparse matrix.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    /// Values of line `i` are `pointers[i]..pointers[i + 1]`.
    pub(super) pointers: &'a [i32],
    /// Column of each value of a row, or row of each value of a column, ascending in each line.
    pub(super) others: &'a [i32],
    pub(super) values: &'a [f32],
    /// Values whose `others` are below this count; `None`: all.
    pub(super) limit: Option<usize>,
    pub(super) dropout: Option<ValueDropout>,
    /// True for rows, false for columns.
    pub(super) are_rows: bool,
}

impl Lines<'_> {
    /// Divides the first `count` lines into blocks of about the same number of values.
    pub(super) fn blocks(&self, count: usize, plan: Plan) -> Vec<Range<usize>> {
        let wanted = (self.values.len() / 32).clamp(2048, VALUES_OF_BLOCK);
        let (mut blocks, mut first) = (Vec::new(), 0);
        for end in 1..=count {
            let is_full =
                (self.pointers[end] - self.pointers[first]) as usize >= wanted && end - first >= plan.least_lines;
            if end == count || is_full {
                blocks.push(first..end);
                first = end;
            }
        }
        blocks
    }

    /// The values of each line of a block, before dropout.
    #[inline(always)]
    fn of_block(&self, block: &Range<usize>) -> Vec<Range<usize>> {
        let of_line = |line| {
            let range = self.pointers[line] as usize..self.pointers[line + 1] as usize;
            let count = match self.limit {
                None => range.len(),
                Some(limit) => self.others[range.clone()].partition_point(|&other| (other as usize) < limit),
            };
            range.start..range.start + count
        };
        block.clone().map(of_line).collect()
    }

    /// The values of a block that dropout keeps.
    #[inline(always)]
    fn kept(&self, block: &Range<usize>, ranges: &mut [Range<usize>], dropout: ValueDropout) -> (Vec<i32>, Vec<f32>) {
        let most = (self.pointers[block.end] - self.pointers[block.start]) as usize;
        let (mut others, mut values, mut count) = (vec![0; most], vec![0.0; most], 0);
        for (line, range) in block.clone().zip(ranges) {
            let first = count;
            for at in range.clone() {
                let other = self.others[at] as usize;
                let (row, column) = if self.are_rows { (line, other) } else { (other, line) };
                others[count] = self.others[at];
                values[count] = self.values[at] * dropout.scale;
                count += usize::from(dropout.keeps(row, column));
            }
            *range = first..count;
        }
        (others, values)
    }
}

/// Weighted sums of rows, one for each line of a block.
pub(super) struct Sums<'a, 'b> {
    pub(super) lines: Lines<'a>,
    pub(super) plan: Plan,
    pub(super) block: Range<usize>,
    /// Adjacent tiles, whose columns the output has.
    pub(super) tiles: &'b [Tile<'b>],
    /// Initial values of all columns.
    pub(super) bias: Option<&'b [f32]>,
    /// Columns of the output.
    pub(super) stride: usize,
    pub(super) output: &'b mut [f32],
}

impl Kernel for Sums<'_, '_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let mut ranges = self.lines.of_block(&self.block);
        let dropout = self.lines.dropout;
        let kept = dropout.map(|dropout| self.lines.kept(&self.block, &mut ranges, dropout));
        let (others, values) =
            kept.as_ref().map_or((self.lines.others, self.lines.values), |(others, values)| (others, values));
        let first = self.tiles.first().map_or(0, |tile| tile.first);
        let rows = self.tiles.first().map_or(0, |tile| tile.num_rows);
        let (mut ends, mut step_end) = (vec![0; ranges.len()], 0_usize);
        while step_end < rows || step_end == 0 {
            let is_first = step_end == 0;
            step_end = step_end.saturating_add(self.plan.step);
            for (end, range) in ends.iter_mut().zip(&ranges) {
                let nearest = range.start..range.end.min(range.start.saturating_add(self.plan.step));
                let count = match step_end >= rows {
                    true => range.len(),
                    // Without branches, unlike a binary search; a step has few rows, so their numbers fit.
                    false => {
                        others[nearest].iter().map(|&other| i32::from(other < step_end as i32)).sum::<i32>() as usize
                    }
                };
                *end = range.start + count;
            }
            for tile in self.tiles {
                let columns = tile.first - first..tile.first - first + tile.width();
                let initial = match (is_first, self.bias) {
                    (false, _) => Initial::Kept,
                    (true, None) => Initial::Zero,
                    (true, Some(bias)) => Initial::Row(&bias[columns.clone()]),
                };
                for (line, (range, &end)) in ranges.iter().zip(&ends).enumerate() {
                    let (others, values) = (&others[range.start..end], &values[range.start..end]);
                    let output = &mut self.output[line * self.stride..][columns.clone()];
                    I::sum_rows(output, initial, (tile.rows, others), values, &tile.heads);
                }
            }
            ranges.iter_mut().zip(&ends).for_each(|(range, &end)| range.start = end);
        }
    }
}

/// The tiles of the transpose of a matrix `[rows, columns]`, one after another.
pub(super) fn transposed_tiles(values: &[f32], [rows, columns]: [usize; 2], width: usize) -> Result<Tensor, TchError> {
    in_tiles([columns, rows], width, |lines, tile, output| {
        let from = &values[tile.start * columns..];
        dispatch(Transpose { from, from_step: columns, columns: lines, rows: tile.len(), output });
    })
}

/// The tiles of a matrix `[rows, columns]`, one after another.
pub(super) fn copied_tiles(values: &[f32], [rows, columns]: [usize; 2], width: usize) -> Result<Tensor, TchError> {
    in_tiles([rows, columns], width, |lines, tile, output| {
        for (line, output) in lines.zip(output.chunks_exact_mut(tile.len())) {
            output.copy_from_slice(&values[line * columns..][tile.clone()]);
        }
    })
}

/// A matrix `[rows, columns]` whose tiles of `width` columns are written by `write`, a few rows at a time.
fn in_tiles(
    [rows, columns]: [usize; 2],
    width: usize,
    write: impl Fn(Range<usize>, Range<usize>, &mut [f32]) + Sync,
) -> Result<Tensor, TchError> {
    let mut result = empty(&[rows as i64, columns as i64])?;
    let (tiles, blocks) = (columns.div_ceil(width), rows.div_ceil(ROWS_OF_COPY));
    let tile_of = |tile: usize| tile * width..((tile + 1) * width).min(columns);
    let lines_of = |block: usize| block * ROWS_OF_COPY..((block + 1) * ROWS_OF_COPY).min(rows);
    let begin = |tile: usize, block: usize| {
        let columns = tile_of(tile);
        columns.start * rows + lines_of(block).start * columns.len()
    };
    let bounds = (0..tiles * blocks).map(|part| begin(part / blocks, part % blocks)).chain([rows * columns]);
    let parts = Parts::new(view::write::<f32>("tiles", &mut result)?, bounds);
    parallel_for(tiles * blocks, 4, |range| {
        for part in range {
            write(lines_of(part % blocks), tile_of(part / blocks), parts.take(part));
        }
    });
    drop(parts);
    Ok(result)
}

/// The transpose, `[columns, rows]`, of a matrix `[rows, columns]` whose tiles are stored one after another.
pub(super) fn transposed_from_tiles(
    values: &[f32],
    [rows, columns]: [usize; 2],
    tile: usize,
) -> Result<Tensor, TchError> {
    let mut result = empty(&[columns as i64, rows as i64])?;
    let blocks = columns.div_ceil(SIDE);
    let bounds = (0..=blocks).map(|block| (block * SIDE).min(columns) * rows);
    let parts = Parts::new(view::write::<f32>("transpose", &mut result)?, bounds);
    parallel_for(blocks, 1, |range| {
        for block in range {
            // A tile is a whole number of blocks.
            let (first, begin) = (block * SIDE, block * SIDE / tile * tile);
            let width = tile.min(columns - begin);
            let from = &values[begin * rows + first - begin..];
            let columns = 0..SIDE.min(columns - first);
            dispatch(Transpose { from, from_step: width, columns, rows, output: parts.take(block) });
        }
    });
    drop(parts);
    Ok(result)
}

/// Writes the transpose of some columns of a matrix, `[columns, rows]`.
struct Transpose<'a, 'b> {
    from: &'a [f32],
    /// Elements from one row of the matrix to the next.
    from_step: usize,
    columns: Range<usize>,
    rows: usize,
    output: &'b mut [f32],
}

impl Kernel for Transpose<'_, '_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let Self { from, from_step, columns, rows, output } = self;
        for row in (0..rows).step_by(SIDE) {
            for column in (0..columns.len()).step_by(SIDE) {
                let from = &from[row * from_step + columns.start + column..];
                let to = &mut output[column * rows + row..];
                if row + SIDE <= rows && column + SIDE <= columns.len() {
                    I::transpose_square((from, from_step), (to, rows));
                    continue;
                }
                for row in 0..SIDE.min(rows - row) {
                    for column in 0..SIDE.min(columns.len() - column) {
                        to[column * rows + row] = from[row * from_step + column];
                    }
                }
            }
        }
    }
}
