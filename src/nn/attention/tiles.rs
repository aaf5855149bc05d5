//! The innermost loops: rows of channels, taken in tiles whose width the compiler knows.

use super::element::{Element, Real};
use crate::torch::simd::Instructions;

/// Calls `$function::<I, T, WIDTH>($column, ..)` for tiles that cover the columns `$begin..$end`.
macro_rules! for_each_tile {
    ($begin:expr, $end:expr, |$column:ident| $function:ident :: <$i:ty, $t:ty>($($argument:expr),* $(,)?)) => {{
        let (mut $column, end) = ($begin, $end);
        while $column + 64 <= end {
            $function::<$i, $t, 64>($($argument),*);
            $column += 64;
        }
        if $column + 32 <= end {
            $function::<$i, $t, 32>($($argument),*);
            $column += 32;
        }
        if $column + 16 <= end {
            $function::<$i, $t, 16>($($argument),*);
            $column += 16;
        }
        if $column + 8 <= end {
            $function::<$i, $t, 8>($($argument),*);
            $column += 8;
        }
        if $column + 4 <= end {
            $function::<$i, $t, 4>($($argument),*);
            $column += 4;
        }
        while $column < end {
            $function::<$i, $t, 1>($($argument),*);
            $column += 1;
        }
    }};
}
pub(super) use for_each_tile;

/// `WIDTH` elements of `values` from `offset`.
#[inline(always)]
pub(super) fn tile<T, const WIDTH: usize>(values: &[T], offset: usize) -> &[T; WIDTH] {
    match values[offset..offset + WIDTH].first_chunk() {
        Some(tile) => tile,
        // The slice has exactly WIDTH elements.
        None => unreachable!(),
    }
}

/// As [`tile`], to be written.
#[inline(always)]
pub(super) fn tile_mut<T, const WIDTH: usize>(values: &mut [T], offset: usize) -> &mut [T; WIDTH] {
    match values[offset..offset + WIDTH].first_chunk_mut() {
        Some(tile) => tile,
        // The slice has exactly WIDTH elements.
        None => unreachable!(),
    }
}

/// `sums += factor * row`.
#[inline(always)]
pub(super) fn add_scaled<I: Instructions, T: Element, const WIDTH: usize>(
    sums: &mut [T::Real; WIDTH],
    factor: T::Real,
    row: &[T; WIDTH],
) {
    for lane in 0..WIDTH {
        sums[lane] = row[lane].widen().mul_add::<I>(factor, sums[lane]);
    }
}

/// Stores `sums`, rounded.
#[inline(always)]
pub(super) fn store<T: Element, const WIDTH: usize>(target: &mut [T; WIDTH], sums: &[T::Real; WIDTH]) {
    for lane in 0..WIDTH {
        target[lane] = T::narrow(sums[lane]);
    }
}

/// Scalar product of two rows of equal length. The order of additions depends on the length alone.
#[inline(always)]
pub(super) fn dot<I: Instructions, A: Element, B: Element<Real = A::Real>>(left: &[A], right: &[B]) -> A::Real {
    let length = left.len().min(right.len());
    let mut column = 0;
    let mut lanes = [A::Real::ZERO; 32];
    while column + 32 <= length {
        multiply_in::<I, A, B, 32>(&mut lanes, left, right, column);
        column += 32;
    }
    let mut lanes = fold::<A::Real, 32, 16>(&lanes);
    if column + 16 <= length {
        multiply_in::<I, A, B, 16>(&mut lanes, left, right, column);
        column += 16;
    }
    let mut lanes = fold::<A::Real, 16, 8>(&lanes);
    if column + 8 <= length {
        multiply_in::<I, A, B, 8>(&mut lanes, left, right, column);
        column += 8;
    }
    let mut lanes = fold::<A::Real, 8, 4>(&lanes);
    if column + 4 <= length {
        multiply_in::<I, A, B, 4>(&mut lanes, left, right, column);
        column += 4;
    }
    let lanes = fold::<A::Real, 4, 2>(&lanes);
    let mut sum = lanes[0] + lanes[1];
    while column < length {
        sum = left[column].widen().mul_add::<I>(right[column].widen(), sum);
        column += 1;
    }
    sum
}

#[inline(always)]
fn multiply_in<I: Instructions, A: Element, B: Element<Real = A::Real>, const WIDTH: usize>(
    lanes: &mut [A::Real; WIDTH],
    left: &[A],
    right: &[B],
    column: usize,
) {
    let (left, right) = (tile::<A, WIDTH>(left, column), tile::<B, WIDTH>(right, column));
    for lane in 0..WIDTH {
        lanes[lane] = left[lane].widen().mul_add::<I>(right[lane].widen(), lanes[lane]);
    }
}

/// Adds the upper half of the lanes to the lower.
#[inline(always)]
fn fold<R: Real, const WIDTH: usize, const HALF: usize>(lanes: &[R; WIDTH]) -> [R; HALF] {
    let mut folded = [R::ZERO; HALF];
    for lane in 0..HALF {
        folded[lane] = lanes[lane] + lanes[lane + HALF];
    }
    folded
}
