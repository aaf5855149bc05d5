//! Rows of a matrix `[rows, heads * channels]`, picked by index: their weighted sum, with a factor for each row and head,
//! and their scalar products with one row, head by head.
//!
//! Rows here are few and short, so what counts is to walk the indices once: sums stay in registers for up to eight vectors
//! of columns, across heads where these are narrow, and the last vector may be a part of one. The order of additions is
//! that of the indices, whatever the vectors.

/// A matrix whose rows are picked.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    values: &'a [T],
    /// Elements of a row.
    width: usize,
    rows: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// `values` as rows of `width`; what is left over is never read.
    pub fn new(values: &'a [T], width: usize) -> Self {
        Self { values, width, rows: values.len() / width.max(1) }
    }

    /// The rows `indices`.
    ///
    /// # Panics
    /// While it is read, at a row that is not there.
    #[inline(always)]
    pub fn pick(self, indices: &'a [i32]) -> impl Iterator<Item = &'a [T]> {
        let Self { values, width, .. } = self;
        indices.iter().map(move |&index| &values[index as u32 as usize * width..][..width])
    }
}

/// How a row is divided.
pub struct Heads {
    /// At least one.
    pub count: usize,
    /// Columns of each.
    pub channels: usize,
    /// For each column, its head.
    pub(super) of_column: Vec<i32>,
}

impl Heads {
    /// `count` heads (at least one) of `channels` columns each.
    pub fn new(count: usize, channels: usize) -> Self {
        let count = count.max(1);
        let of_column = (0..count * channels).map(|column| (column / channels) as i32).collect();
        Self { count, channels, of_column }
    }
}

/// What a weighted sum begins with.
#[derive(Clone, Copy)]
pub enum Initial<'a, T> {
    /// Nothing.
    Zero,
    /// What is there, which must be numbers of the computing type.
    Kept,
    /// A row.
    Row(&'a [T]),
    /// Two rows, each with a factor for each head.
    Pair([&'a [T]; 2], [&'a [T]; 2]),
}

/// The sum, for machines without wider vectors.
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

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::{Heads, Initial, Matrix};

    /// A register of numbers.
    ///
    /// # Safety
    /// The machine has the instructions of the type; a pointer is good for `LANES` elements, or for `count` of them.
    pub trait Vector: Copy {
        const LANES: usize;
        unsafe fn splat(value: f32) -> Self;
        unsafe fn load(from: *const f32) -> Self;
        /// The first `count < LANES`, and zeros.
        unsafe fn load_part(from: *const f32, count: usize) -> Self;
        unsafe fn store(self, to: *mut f32);
        unsafe fn store_part(self, to: *mut f32, count: usize);
        /// For each of the first `count <= LANES` lanes the element of `self` that `lanes` names; for the others any.
        unsafe fn permuted(self, lanes: *const i32, count: usize) -> Self;
        /// `self * factor + addend`
        unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
        unsafe fn add(self, other: Self) -> Self;
        unsafe fn sum(self) -> f32;
    }

    /// Vectors of columns that are kept in registers at once.
    const WIDEST: usize = 8;
    /// Channels from which each head is worth a walk of its own.
    const WIDE_HEAD: usize = 48;

    /// Calls `$function` with the number of whole vectors (less than [`WIDEST`]) as a constant.
    macro_rules! with_whole_vectors {
        ($whole:expr, $function:ident::<$v:ty $(, $flag:ident)?>($($argument:expr),*)) => {
            match $whole {
                0 => $function::<$v, 0 $(, $flag)?>($($argument),*),
                1 => $function::<$v, 1 $(, $flag)?>($($argument),*),
                2 => $function::<$v, 2 $(, $flag)?>($($argument),*),
                3 => $function::<$v, 3 $(, $flag)?>($($argument),*),
                4 => $function::<$v, 4 $(, $flag)?>($($argument),*),
                5 => $function::<$v, 5 $(, $flag)?>($($argument),*),
                6 => $function::<$v, 6 $(, $flag)?>($($argument),*),
                _ => $function::<$v, 7 $(, $flag)?>($($argument),*),
            }
        };
    }

    /// A weighted sum of rows.
    pub struct Sum<'a> {
        pub initial: Initial<'a, f32>,
        pub matrix: Matrix<'a, f32>,
        pub indices: &'a [i32],
        /// `[indices, heads]`
        pub factors: &'a [f32],
        pub heads: &'a Heads,
    }

    impl Sum<'_> {
        /// # Safety
        /// The machine has the instructions of `V`.
        #[inline(always)]
        pub unsafe fn write<V: Vector>(&self, output: &mut [f32]) {
            let (heads, width) = (self.heads, self.matrix.width);
            assert!(output.len() == width && heads.of_column.len() == width && heads.count * heads.channels == width);
            assert!(self.factors.len() >= self.indices.len() * heads.count, "a factor for each row and head");
            if width == 0 {
                return;
            }
            match self.initial {
                Initial::Zero | Initial::Kept => {}
                Initial::Row(row) => assert!(row.len() == width),
                Initial::Pair(rows, factors) => {
                    assert!(rows.iter().all(|row| row.len() == width));
                    assert!(factors.iter().all(|factors| factors.len() >= heads.count));
                }
            }
            // SAFETY: all rows have `width` columns, which the heads' together are, as just checked.
            unsafe {
                if heads.count == 1 || heads.channels >= WIDE_HEAD || heads.count > V::LANES {
                    for head in 0..heads.count {
                        self.columns::<V, false>(output, head, head * heads.channels, heads.channels);
                    }
                } else {
                    self.columns::<V, true>(output, 0, 0, width);
                }
            }
        }

        /// `columns` of them from `first`: of `head`, or `ACROSS` all heads.
        #[inline(always)]
        unsafe fn columns<V: Vector, const ACROSS: bool>(
            &self,
            output: &mut [f32],
            head: usize,
            first: usize,
            columns: usize,
        ) {
            let (mut at, end) = (first, first + columns);
            // SAFETY: as the caller says; `at` and the vectors from there end at `end`.
            unsafe {
                while end - at >= WIDEST * V::LANES {
                    sum_columns::<V, WIDEST, ACROSS>(self, output, head, at, 0);
                    at += WIDEST * V::LANES;
                }
                let (whole, part) = ((end - at) / V::LANES, (end - at) % V::LANES);
                with_whole_vectors!(whole, sum_columns::<V, ACROSS>(self, output, head, at, part));
            }
        }
    }

    /// The factors of `count` columns from `column`, out of those of the heads.
    #[inline(always)]
    unsafe fn factor_of<V: Vector, const ACROSS: bool>(of_heads: V, heads: &Heads, column: usize, count: usize) -> V {
        match ACROSS {
            // SAFETY: as the caller says, there are as many columns.
            true => unsafe { of_heads.permuted(heads.of_column.as_ptr().add(column), count) },
            false => of_heads,
        }
    }

    /// The factors of all heads, or that of `head` in every lane.
    #[inline(always)]
    unsafe fn factors_at<V: Vector, const ACROSS: bool>(from: *const f32, heads: &Heads, head: usize) -> V {
        // SAFETY: as the caller says, there is a factor for each head.
        unsafe {
            match ACROSS {
                true if heads.count == V::LANES => V::load(from),
                true => V::load_part(from, heads.count),
                false => V::splat(*from.add(head)),
            }
        }
    }

    /// `WHOLE` vectors of columns from `at`, and `part` of another one.
    #[inline(always)]
    unsafe fn sum_columns<V: Vector, const WHOLE: usize, const ACROSS: bool>(
        sum: &Sum,
        output: &mut [f32],
        head: usize,
        at: usize,
        part: usize,
    ) {
        let Matrix { values, width, rows } = sum.matrix;
        let heads = sum.heads;
        let rest = WHOLE * V::LANES;
        // SAFETY: as the caller says; an index is checked against the number of rows before its row is read.
        unsafe {
            let to = output.as_mut_ptr().add(at);
            let mut sums = [V::splat(0.0); WHOLE];
            let mut last = V::splat(0.0);
            match sum.initial {
                Initial::Zero => {}
                Initial::Kept | Initial::Row(_) => {
                    let from = match sum.initial {
                        Initial::Row(row) => row.as_ptr().add(at),
                        _ => to.cast_const(),
                    };
                    for (vector, sum) in sums.iter_mut().enumerate() {
                        *sum = V::load(from.add(vector * V::LANES));
                    }
                    last = V::load_part(from.add(rest), part);
                }
                Initial::Pair(rows, factors) => {
                    for index in 0..2 {
                        let from = rows[index].as_ptr().add(at);
                        let by = factors_at::<V, ACROSS>(factors[index].as_ptr(), heads, head);
                        for (vector, sum) in sums.iter_mut().enumerate() {
                            let by = factor_of::<V, ACROSS>(by, heads, at + vector * V::LANES, V::LANES);
                            *sum = V::load(from.add(vector * V::LANES)).mul_add(by, *sum);
                        }
                        let by = factor_of::<V, ACROSS>(by, heads, at + rest, part);
                        last = V::load_part(from.add(rest), part).mul_add(by, last);
                    }
                }
            }
            let mut factors = sum.factors.as_ptr();
            for &index in sum.indices {
                let index = index as u32 as usize;
                assert!(index < rows, "row {index} of {rows}");
                let from = values.as_ptr().add(index * width + at);
                let by = factors_at::<V, ACROSS>(factors, heads, head);
                for (vector, sum) in sums.iter_mut().enumerate() {
                    let by = factor_of::<V, ACROSS>(by, heads, at + vector * V::LANES, V::LANES);
                    *sum = V::load(from.add(vector * V::LANES)).mul_add(by, *sum);
                }
                if part > 0 {
                    let by = factor_of::<V, ACROSS>(by, heads, at + rest, part);
                    last = V::load_part(from.add(rest), part).mul_add(by, last);
                }
                factors = factors.wrapping_add(heads.count);
            }
            for (vector, sum) in sums.iter().enumerate() {
                sum.store(to.add(vector * V::LANES));
            }
            last.store_part(to.add(rest), part);
        }
    }

    /// Writes the scalar products `[indices, heads]` of `left` with each picked row; `false` where heads are too wide for it,
    /// or have no columns.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn products<V: Vector>(
        left: &[f32],
        matrix: Matrix<f32>,
        indices: &[i32],
        heads: &Heads,
        products: &mut [f32],
    ) -> bool {
        if heads.channels == 0 || heads.channels >= WIDEST * V::LANES {
            return false;
        }
        assert!(left.len() == matrix.width && heads.count * heads.channels == matrix.width);
        assert!(products.len() >= indices.len() * heads.count, "a place for each row and head");
        // SAFETY: left and each row have the heads' columns, as just checked.
        unsafe {
            let (whole, part) = (heads.channels / V::LANES, heads.channels % V::LANES);
            with_whole_vectors!(whole, products_of::<V>(left, matrix, indices, heads, products, part));
        }
        true
    }

    /// A head has `WHOLE` vectors, and `part` of another one.
    #[inline(always)]
    unsafe fn products_of<V: Vector, const WHOLE: usize>(
        left: &[f32],
        matrix: Matrix<f32>,
        indices: &[i32],
        heads: &Heads,
        products: &mut [f32],
        part: usize,
    ) {
        let Matrix { values, width, rows } = matrix;
        let mut to = products.as_mut_ptr();
        for &index in indices {
            let index = index as u32 as usize;
            assert!(index < rows, "row {index} of {rows}");
            // SAFETY: as the caller says; the index was just checked against the number of rows.
            unsafe {
                let (mut left, mut right) = (left.as_ptr(), values.as_ptr().add(index * width));
                for _ in 0..heads.count {
                    // Two chains, so that a sum does not wait for the one before.
                    let (mut even, mut odd) = (V::splat(0.0), V::splat(0.0));
                    for vector in 0..WHOLE {
                        let at = vector * V::LANES;
                        match vector % 2 {
                            0 => even = V::load(left.add(at)).mul_add(V::load(right.add(at)), even),
                            _ => odd = V::load(left.add(at)).mul_add(V::load(right.add(at)), odd),
                        }
                    }
                    if part > 0 {
                        let at = WHOLE * V::LANES;
                        odd = V::load_part(left.add(at), part).mul_add(V::load_part(right.add(at), part), odd);
                    }
                    *to = even.add(odd).sum();
                    to = to.wrapping_add(1);
                    (left, right) = (left.wrapping_add(heads.channels), right.wrapping_add(heads.channels));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::simd::{Instructions, Kernel, Level, dispatch_at};

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
        type Output = ();
        #[inline(always)]
        fn run<I: Instructions>(self) {
            I::sum_rows(self.output, self.initial, self.rows, self.factors, self.heads);
            I::row_products(self.left, self.rows, self.heads, self.products);
        }
    }

    /// Whole numbers, so that every order of additions gives the same.
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
