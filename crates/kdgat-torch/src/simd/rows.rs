//! Operations on rows of a matrix `[rows, heads * channels]`, picked by index: their weighted sum, with one factor per
//! row and head, and their scalar products with another row, head by head.
//!
//! The rows are few and short, so the aim is to walk the indices once. Sums stay in registers for up to eight vectors
//! of columns, across heads where these are narrow, and the last vector may be partial. The order of additions follows
//! the indices, whatever the vector width.

/// A matrix whose rows are picked by index.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    pub(super) values: &'a [T],
    /// Elements per row.
    pub(super) width: usize,
    pub(super) rows: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Views `values` as rows of `width` elements; leftover elements are never read.
    pub fn new(values: &'a [T], width: usize) -> Self {
        Self { values, width, rows: values.len() / width.max(1) }
    }

    /// Elements per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Iterates over the rows with these indices.
    ///
    /// # Panics
    /// The iterator panics at an index out of range.
    #[inline(always)]
    pub fn pick(self, indices: &'a [i32]) -> impl Iterator<Item = &'a [T]> {
        let Self { values, width, .. } = self;
        indices.iter().map(move |&index| &values[index as u32 as usize * width..][..width])
    }
}

/// Division of a row into heads.
pub struct Heads {
    /// Number of heads, at least one.
    pub count: usize,
    /// Columns per head.
    pub channels: usize,
    /// The head of each column.
    pub(super) of_column: Vec<i32>,
}

impl Heads {
    /// A division into `count` heads (at least one) of `channels` columns each.
    pub fn new(count: usize, channels: usize) -> Self {
        let count = count.max(1);
        let of_column = (0..count * channels).map(|column| (column / channels) as i32).collect();
        Self { count, channels, of_column }
    }
}

/// Initial value of a weighted sum.
#[derive(Clone, Copy)]
pub enum Initial<'a, T> {
    /// Nothing.
    Zero,
    /// The current contents of the output, which must be of the computing type.
    Kept,
    /// One row.
    Row(&'a [T]),
    /// Two rows, each with one factor per head.
    Pair([&'a [T]; 2], [&'a [T]; 2]),
}

/// The weighted sum for machines without wider vectors.
#[inline(always)]
pub(super) fn portable_sum(
    output: &mut [f32],
    initial: Initial<f32>,
    rows: (Matrix<f32>, &[i32]),
    factors: &[f32],
    heads: &Heads,
    multiply_add: impl Fn(f32, f32, f32) -> f32 + Copy,
) {
    for (column, output) in output.iter_mut().enumerate() {
        *output = match initial {
            Initial::Zero => 0.0,
            Initial::Kept => *output,
            Initial::Row(row) => row[column],
            Initial::Pair(rows, factors) => {
                let head = heads.of_column[column] as usize;
                multiply_add(rows[1][column], factors[1][head], multiply_add(rows[0][column], factors[0][head], 0.0))
            }
        };
    }
    for (row, factors) in rows.0.pick(rows.1).zip(factors.chunks_exact(heads.count)) {
        let parts = output.chunks_exact_mut(heads.channels.max(1)).zip(row.chunks_exact(heads.channels.max(1)));
        for ((output, row), &factor) in parts.zip(factors) {
            for (output, &value) in output.iter_mut().zip(row) {
                *output = multiply_add(value, factor, *output);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Instructions, Kernel, Level, dispatch_at};

    /// Both operations on the same rows.
    struct Both<'a> {
        rows: (Matrix<'a, f32>, &'a [i32]),
        initial: Initial<'a, f32>,
        factors: &'a [f32],
        heads: &'a Heads,
        left: &'a [f32],
        output: &'a mut [f32],
        products: &'a mut [f32],
    }

    impl Kernel for Both<'_> {
        #[inline(always)]
        fn run<I: Instructions>(self) {
            I::sum_rows(self.output, self.initial, self.rows, self.factors, self.heads);
            I::row_products(self.left, self.rows, self.heads, self.products);
        }
    }

    /// Small integers, so that every order of additions gives the same sum.
    fn number(position: usize) -> f32 {
        (position * 7 % 13) as f32 - 6.0
    }

    #[test]
    fn sums_and_products_are_right_at_every_level_and_width() {
        let indices = [4, 0, 2, 2, 5];
        let shapes = (0..70).chain([80, 120, 127, 128, 129, 200]).map(|channels| (1, channels));
        let narrow = [2, 3, 4, 8, 16, 17].into_iter().flat_map(|heads| [1, 6, 10, 24, 47, 50].map(|it| (heads, it)));
        for (count, channels) in shapes.chain(narrow) {
            let heads = Heads::new(count, channels);
            let width = count * channels;
            let values: Vec<f32> = (0..6 * width).map(number).collect();
            let factors: Vec<f32> = (0..indices.len() * count).map(|position| number(position + 3)).collect();
            let row = |index: i32| &values[index as usize * width..][..width];
            let (left, other) = (row(1), row(3));
            let kept: Vec<f32> = (0..width).map(|column| number(column + 5)).collect();
            let pair = Initial::Pair([left, other], [&factors[..count], &factors[count..2 * count]]);
            for level in Level::available() {
                for initial in [Initial::Zero, Initial::Kept, Initial::Row(left), pair] {
                    let (mut output, mut products) = (kept.clone(), vec![9.0; indices.len() * count]);
                    dispatch_at(
                        level,
                        Both {
                            rows: (Matrix::new(&values, width), &indices),
                            initial,
                            factors: &factors,
                            heads: &heads,
                            left,
                            output: &mut output,
                            products: &mut products,
                        },
                    );
                    for column in 0..width {
                        let head = column / channels;
                        let picked = indices.iter().enumerate();
                        let sum: f32 = picked.map(|(k, &index)| factors[k * count + head] * row(index)[column]).sum();
                        let expected = sum
                            + match initial {
                                Initial::Zero => 0.0,
                                Initial::Kept => kept[column],
                                Initial::Row(row) => row[column],
                                Initial::Pair(rows, by) => {
                                    rows[0][column] * by[0][head] + rows[1][column] * by[1][head]
                                }
                            };
                        assert_eq!(output[column], expected, "{level:?}: column {column}, {count} heads of {channels}");
                    }
                    for (position, &found) in products.iter().enumerate() {
                        let (k, head) = (position / count, position % count);
                        let columns = head * channels..(head + 1) * channels;
                        let pairs = left[columns.clone()].iter().zip(&row(indices[k])[columns]);
                        let expected: f32 = pairs.map(|(left, right)| left * right).sum();
                        assert_eq!(found, expected, "{level:?}: row {k}, head {head}, {count} heads of {channels}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_that_is_not_there_is_refused() {
        for level in Level::available() {
            for index in [3, -1] {
                let refused = std::panic::catch_unwind(|| {
                    dispatch_at(
                        level,
                        Both {
                            rows: (Matrix::new(&[1.0; 48], 16), &[index]),
                            initial: Initial::Zero,
                            factors: &[1.0],
                            heads: &Heads::new(1, 16),
                            left: &[1.0; 16],
                            output: &mut [0.0; 16],
                            products: &mut [0.0],
                        },
                    );
                });
                assert!(refused.is_err(), "{level:?}: row {index} of 3");
            }
        }
    }
}
