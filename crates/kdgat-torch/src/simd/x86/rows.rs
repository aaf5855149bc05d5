//! Vectorised operations on rows.

use super::Vector;
use crate::simd::rows::{Heads, Initial, Matrix};

/// Maximum number of column vectors held in registers at once.
const WIDEST: usize = 8;
/// Minimum number of channels for which each head gets its own pass over the indices.
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
    /// Factors, `[indices, heads]`.
    pub factors: &'a [f32],
    pub heads: &'a Heads,
}

impl Sum<'_> {
    /// Writes the sum into `output`, `[width]`.
    ///
    /// # Safety
    /// The machine must have the instructions of `V`.
    #[inline(always)]
    pub unsafe fn write<V: Vector>(&self, output: &mut [f32]) {
        let (heads, width) = (self.heads, self.matrix.width);
        assert!(output.len() == width && heads.of_column.len() == width && heads.count * heads.channels == width);
        assert!(self.factors.len() >= self.indices.len() * heads.count, "each row and head needs a factor");
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
        // SAFETY: all rows have `width` columns, the sum of the heads' columns, as checked above.
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

    /// Sums `columns` columns from `first`: of one `head`, or of all heads if `ACROSS`.
    #[inline(always)]
    unsafe fn columns<V: Vector, const ACROSS: bool>(
        &self,
        output: &mut [f32],
        head: usize,
        first: usize,
        columns: usize,
    ) {
        let (mut at, end) = (first, first + columns);
        // SAFETY: by the contract of `write`; vectors from `at` stay before `end`.
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

/// The factors of `count` columns from `column`, taken from the factors of the heads.
#[inline(always)]
unsafe fn factor_of<V: Vector, const ACROSS: bool>(of_heads: V, heads: &Heads, column: usize, count: usize) -> V {
    match ACROSS {
        // SAFETY: the caller ensures that there are `count` columns.
        true => unsafe { of_heads.permuted(heads.of_column.as_ptr().add(column), count) },
        false => of_heads,
    }
}

/// The factors of all heads, or the factor of `head` in every lane.
#[inline(always)]
unsafe fn factors_at<V: Vector, const ACROSS: bool>(from: *const f32, heads: &Heads, head: usize) -> V {
    // SAFETY: the caller ensures one factor per head.
    unsafe {
        match ACROSS {
            true if heads.count == V::LANES => V::load(from),
            true => V::load_part(from, heads.count),
            false => V::splat(*from.add(head)),
        }
    }
}

/// Sums `WHOLE` vectors of columns from `at`, and `part` columns of another vector.
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
    // SAFETY: by the contract of `Sum::write`; each index is checked against the number of rows before its row is read.
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
            assert!(index < rows, "index {index} of a matrix of {rows} rows");
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

/// Writes the scalar products `[indices, heads]` of `left` with each picked row. Returns `false` without writing if the
/// heads are too wide for the registers, or have no columns.
///
/// # Safety
/// The machine must have the instructions of `V`.
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
    assert!(products.len() >= indices.len() * heads.count, "the result needs an element for each row and head");
    // SAFETY: `left` and each row have the heads' columns, as checked above.
    unsafe {
        let (whole, part) = (heads.channels / V::LANES, heads.channels % V::LANES);
        with_whole_vectors!(whole, products_of::<V>(left, matrix, indices, heads, products, part));
    }
    true
}

/// [`products`] for heads of `WHOLE` vectors, and `part` columns of another vector.
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
        assert!(index < rows, "index {index} of a matrix of {rows} rows");
        // SAFETY: by the contract of `products`; the index was just checked against the number of rows.
        unsafe {
            let (mut left, mut right) = (left.as_ptr(), values.as_ptr().add(index * width));
            for _ in 0..heads.count {
                // Two chains, so that an addition does not wait for the previous one.
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
