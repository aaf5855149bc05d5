//! Products of small matrices: a layer of a few dozen columns applied to a block of rows.
//!
//! Libraries partition, copy and scale their operands for matrices of thousands of rows and columns; these fit into a
//! core's cache as they are. The terms of a sum are added in the order of the inner index, whatever the vector width,
//! and a row of the result depends on that row of the left side alone.

use super::rows::Matrix;
use super::{Instructions, Kernel, dispatch};

/// The left side. Its element (row, inner) is at index `row * row_step + inner * inner_step`; one of the steps is 1.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    pub(super) values: &'a [f32],
    pub(super) rows: usize,
    pub(super) inner: usize,
    pub(super) row_step: usize,
    pub(super) inner_step: usize,
}

impl<'a> Left<'a> {
    /// The matrix `values`, `[rows, inner]`.
    pub fn rows(values: &'a [f32], [rows, inner]: [usize; 2]) -> Self {
        Self { values, rows, inner, row_step: inner, inner_step: 1 }
    }

    /// The transpose of `values`, which is stored as `[inner, rows]`.
    pub fn transposed(values: &'a [f32], [inner, rows]: [usize; 2]) -> Self {
        Self { values, rows, inner, row_step: 1, inner_step: rows }
    }

    /// Number of elements up to the last one read.
    fn extent(&self) -> usize {
        match (self.rows, self.inner) {
            (0, _) | (_, 0) => 0,
            (rows, inner) => (rows - 1) * self.row_step + (inner - 1) * self.inner_step + 1,
        }
    }
}

/// Initial value of the sums.
#[derive(Clone, Copy)]
pub enum Start<'a> {
    /// Nothing.
    Zero,
    /// The current contents of the result.
    Kept,
    /// The same row for every row of the result.
    Row(&'a [f32]),
    /// The same row for every row of the result, minus one row of its own.
    Less(&'a [f32], &'a [&'a [f32]]),
}

/// The matrix product `start + left · right`.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// The left side, `[rows, inner]`.
    pub left: Left<'a>,
    /// The right side, `[inner, columns]`.
    pub right: Matrix<'a, f32>,
    /// The initial value of the sums.
    pub start: Start<'a>,
}

impl Product<'_> {
    /// Writes the product, `[rows, columns]`.
    ///
    /// # Panics
    /// If the sizes do not match.
    pub fn write(self, result: &mut [f32]) {
        dispatch(Write { product: self, result });
    }

    /// Checks that a product of these sizes accesses its slices within bounds.
    fn check(&self, result: &[f32]) {
        let Self { left, right, start } = self;
        assert!(left.row_step == 1 || left.inner_step == 1, "the left side must be contiguous by row or by column");
        assert!(left.values.len() >= left.extent(), "the left side is too short");
        assert!(right.rows >= left.inner || right.width == 0, "the right side needs a row for each inner index");
        assert!(right.values.len() >= left.inner * right.width, "the right side is too short");
        assert!(result.len() == left.rows * right.width, "the result must have the rows and columns of the product");
        if let Start::Row(row) | Start::Less(row, _) = start {
            assert!(row.len() == right.width, "the start row must have as many columns as the product");
        }
        if let Start::Less(_, rows) = start {
            assert!(rows.len() == left.rows, "each row of the product needs a row to subtract");
            assert!(rows.iter().all(|row| row.len() == right.width), "rows to subtract must match in columns");
        }
    }
}

struct Write<'a, 'b> {
    product: Product<'a>,
    result: &'b mut [f32],
}

impl Kernel for Write<'_, '_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        self.product.check(self.result);
        if self.product.right.width > 0 {
            I::multiply(self.product, self.result);
        }
    }
}

/// The product for machines without wider vectors.
#[inline(always)]
pub(super) fn portable<I: Instructions>(Product { left, right, start }: Product, result: &mut [f32]) {
    for (row, sums) in result.chunks_exact_mut(right.width).enumerate() {
        match start {
            Start::Zero => sums.fill(0.0),
            Start::Kept => {}
            Start::Row(start) => sums.copy_from_slice(start),
            Start::Less(start, less) => {
                for (sum, (start, less)) in sums.iter_mut().zip(start.iter().zip(less[row])) {
                    *sum = start - less;
                }
            }
        }
        for (inner, values) in right.values.chunks_exact(right.width).take(left.inner).enumerate() {
            let factor = left.values[row * left.row_step + inner * left.inner_step];
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum = if I::FUSED { value.mul_add(factor, *sum) } else { value * factor + *sum };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Level, dispatch_at};

    /// Small integers, so that every order of additions gives the same sum.
    fn number(position: usize) -> f32 {
        (position * 7 % 13) as f32 - 6.0
    }

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(number).collect()
    }

    #[test]
    fn products_are_right_at_every_level_and_size() {
        for rows in (0..20).chain([33]) {
            for inner in [0, 1, 2, 7, 20] {
                for width in (0..70).chain([80, 95, 96, 97, 100]) {
                    let (of_left, of_right) = (numbers(rows * inner), numbers(inner * width));
                    let right = Matrix::new(&of_right, width);
                    let (first, kept) = (numbers(width), numbers(rows * width));
                    let lesser: Vec<Vec<f32>> = (0..rows).map(|row| numbers(row + width).split_off(row)).collect();
                    let lesser: Vec<&[f32]> = lesser.iter().map(Vec::as_slice).collect();
                    let (upright, lying) =
                        (Left::rows(&of_left, [rows, inner]), Left::transposed(&of_left, [inner, rows]));
                    for (left, start) in [
                        (upright, Start::Zero),
                        (upright, Start::Row(&first)),
                        (lying, Start::Kept),
                        (lying, Start::Row(&first)),
                        (upright, Start::Less(&first, &lesser)),
                    ] {
                        let expected = |row: usize, column: usize| {
                            let terms = (0..inner).map(|k| {
                                of_left[row * left.row_step + k * left.inner_step] * of_right[k * width + column]
                            });
                            let start = match start {
                                Start::Zero => 0.0,
                                Start::Kept => kept[row * width + column],
                                Start::Row(first) => first[column],
                                Start::Less(first, lesser) => first[column] - lesser[row][column],
                            };
                            start + terms.sum::<f32>()
                        };
                        for level in Level::available() {
                            let mut result = kept.clone();
                            dispatch_at(level, Write { product: Product { left, right, start }, result: &mut result });
                            for (position, &found) in result.iter().enumerate() {
                                let (row, column) = (position / width, position % width);
                                let what = format!("{level:?}: {rows} x {inner} x {width}, row {row}, column {column}");
                                assert_eq!(found, expected(row, column), "{what}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_is_read_or_written_outside() {
        let refused_from = |left: Left, right: Matrix<f32>, start: Start, elements: usize| {
            let product = Product { left, right, start };
            std::panic::catch_unwind(move || product.write(&mut vec![0.0; elements])).is_err()
        };
        let refused =
            |left: Left, right: Matrix<f32>, elements: usize| refused_from(left, right, Start::Zero, elements);
        let values = numbers(64);
        let (left, right) = (Left::rows(&values[..8], [2, 4]), Matrix::new(&values[..40], 10));
        assert!(!refused(left, right, 20));
        assert!(refused(left, right, 19), "a result that is too short");
        assert!(refused(left, right, 21), "a result that is too long");
        assert!(refused(left, Matrix::new(&values[..39], 10), 20), "a row of the right side is missing");
        assert!(refused(Left { rows: 3, ..left }, right, 30), "a row of the left side is missing");
        let (whole, short) = (&values[..10], &values[..9]);
        assert!(!refused_from(left, right, Start::Less(whole, &[whole, whole]), 20));
        assert!(refused_from(left, right, Start::Row(short), 20), "a start that is too short");
        assert!(refused_from(left, right, Start::Less(whole, &[whole]), 20), "a row to subtract is missing");
        assert!(refused_from(left, right, Start::Less(whole, &[whole, short]), 20), "a row to subtract is too short");
    }
}
