//! Vectorised products of small matrices, in tiles of rows and columns whose sums stay in registers from the first term
//! to the last.

use std::arch::asm;

use super::Vector;
use crate::simd::product::{Left, Product, Start};

/// Maximum width of a tile in vectors.
const WIDEST: usize = 3;

/// Inputs and output of a tile, starting at its first row and column. One of the steps is 1.
#[derive(Clone, Copy)]
struct Tile<'a> {
    left: *const f32,
    row_step: usize,
    inner_step: usize,
    inner: usize,
    right: *const f32,
    start: First<'a>,
    result: *mut f32,
    /// Columns of the right side and of the result.
    width: usize,
    /// Columns in the last vector of the tile.
    part: usize,
}

/// [`Start`], beginning at a tile's first column.
#[derive(Clone, Copy)]
enum First<'a> {
    Zero,
    Kept,
    Row(*const f32),
    /// The row, the rows to subtract from the tile's first row on, and the tile's first column.
    Less(*const f32, *const &'a [f32], usize),
}

/// Writes `product`, which must have columns.
///
/// # Safety
/// The machine must have the instructions of `V`, and the sizes must match ([`Product::write`] checks them).
#[inline(always)]
pub unsafe fn write<V: Vector>(Product { left, right, start }: Product, result: &mut [f32]) {
    let Left { values, rows, inner, row_step, inner_step } = left;
    let width = right.width;
    // SAFETY: tiles stay within rows and columns. The pointers use wrapping arithmetic because they are invalid if
    // `inner` is 0.
    unsafe {
        let mut column = 0;
        while column < width {
            let columns = (width - column).min(WIDEST * V::LANES);
            let whole = columns.is_multiple_of(V::LANES);
            let vectors = columns.div_ceil(V::LANES);
            let tile = Tile {
                left: values.as_ptr(),
                row_step,
                inner_step,
                inner,
                right: right.values.as_ptr().wrapping_add(column),
                start: match start {
                    Start::Zero => First::Zero,
                    Start::Kept => First::Kept,
                    Start::Row(row) => First::Row(row.as_ptr().add(column)),
                    Start::Less(row, rows) => First::Less(row.as_ptr().add(column), rows.as_ptr(), column),
                },
                result: result.as_mut_ptr().wrapping_add(column),
                width,
                part: if whole { V::LANES } else { columns % V::LANES },
            };
            match (vectors, whole) {
                (1, true) => tile.rows::<V, 1, true>(rows),
                (1, false) => tile.rows::<V, 1, false>(rows),
                (2, true) => tile.rows::<V, 2, true>(rows),
                (2, false) => tile.rows::<V, 2, false>(rows),
                (_, true) => tile.rows::<V, WIDEST, true>(rows),
                (_, false) => tile.rows::<V, WIDEST, false>(rows),
            }
            column += columns;
        }
    }
}

impl Tile<'_> {
    /// Computes the tile's columns for all rows, as many rows at once as the registers hold: enough that no addition
    /// waits for the previous one.
    #[inline(always)]
    unsafe fn rows<V: Vector, const VECTORS: usize, const WHOLE: bool>(mut self, rows: usize) {
        // SAFETY: by the contract of [`write`].
        unsafe {
            let mut left = rows;
            while V::REGISTERS >= 32 && left >= 8 {
                self.at::<V, 8, VECTORS, WHOLE>();
                left -= 8;
                self.down(8);
            }
            while left >= 4 {
                self.at::<V, 4, VECTORS, WHOLE>();
                left -= 4;
                self.down(4);
            }
            if left >= 2 {
                self.at::<V, 2, VECTORS, WHOLE>();
                left -= 2;
                self.down(2);
            }
            if left == 1 {
                self.at::<V, 1, VECTORS, WHOLE>();
            }
        }
    }

    #[inline(always)]
    fn down(&mut self, rows: usize) {
        self.left = self.left.wrapping_add(rows * self.row_step);
        self.result = self.result.wrapping_add(rows * self.width);
        if let First::Less(_, less, _) = &mut self.start {
            *less = less.wrapping_add(rows);
        }
    }

    /// Computes `ROWS` rows of the tile.
    #[inline(always)]
    unsafe fn at<V: Vector, const ROWS: usize, const VECTORS: usize, const WHOLE: bool>(self) {
        let Self { left, row_step, inner_step, inner, start, result, width, .. } = self;
        // SAFETY: by the contract of [`write`].
        unsafe {
            let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
            for (row, sums) in sums.iter_mut().enumerate() {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    match start {
                        First::Zero => {}
                        First::Kept => *sum = self.load::<V, VECTORS, WHOLE>(result.add(row * width), vector),
                        First::Row(from) => *sum = self.load::<V, VECTORS, WHOLE>(from, vector),
                        First::Less(from, less, column) => {
                            let less = (*less.add(row)).as_ptr().add(column);
                            let from = self.load::<V, VECTORS, WHOLE>(from, vector);
                            *sum = from.sub(self.load::<V, VECTORS, WHOLE>(less, vector));
                        }
                    }
                }
            }
            if row_step == 1 {
                for index in 0..inner {
                    let factors = left.add(index * inner_step);
                    let factors = std::array::from_fn(|row| factors.add(row));
                    self.add_products::<V, ROWS, VECTORS, WHOLE>(index, factors, &mut sums);
                }
            } else {
                let rows: [_; ROWS] = std::array::from_fn(|row| apart(left.add(row * row_step)));
                for index in 0..inner {
                    let factors = rows.map(|row| row.add(index));
                    self.add_products::<V, ROWS, VECTORS, WHOLE>(index, factors, &mut sums);
                }
            }
            for (row, sums) in sums.into_iter().enumerate() {
                for (vector, sum) in sums.into_iter().enumerate() {
                    let to = result.add(row * width + vector * V::LANES);
                    match WHOLE || vector + 1 < VECTORS {
                        true => sum.store(to),
                        false => sum.store_part(to, self.part),
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn load<V: Vector, const VECTORS: usize, const WHOLE: bool>(self, from: *const f32, vector: usize) -> V {
        // SAFETY: by the contract of [`write`].
        unsafe {
            match WHOLE || vector + 1 < VECTORS {
                true => V::load(from.add(vector * V::LANES)),
                false => V::load_part(from.add(vector * V::LANES), self.part),
            }
        }
    }

    /// Adds one row of the right side, times each factor.
    #[inline(always)]
    unsafe fn add_products<V: Vector, const ROWS: usize, const VECTORS: usize, const WHOLE: bool>(
        self,
        index: usize,
        factors: [*const f32; ROWS],
        sums: &mut [[V; VECTORS]; ROWS],
    ) {
        // SAFETY: by the contract of [`write`].
        unsafe {
            let row = self.right.add(index * self.width);
            let values: [V; VECTORS] = std::array::from_fn(|vector| self.load::<V, VECTORS, WHOLE>(row, vector));
            for (factor, sums) in factors.into_iter().zip(sums) {
                let factor = V::splat(*factor);
                for vector in 0..VECTORS {
                    sums[vector] = values[vector].mul_add(factor, sums[vector]);
                }
            }
        }
    }
}

/// Returns the same pointer and hides its origin from the compiler. Otherwise the compiler would compute each row's
/// address from the previous row's in every iteration, with more instructions than there are products.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block)]
fn apart(mut pointer: *const f32) -> *const f32 {
    // SAFETY: executes no instruction.
    unsafe { asm!("/* {0} */", inout(reg) pointer, options(pure, nomem, nostack, preserves_flags)) };
    pointer
}
