//! The innermost loops over rows of channels (or of heads), in tiles of constant width.

use kdgat_torch::simd::Instructions;

use super::element::{Element, Real};

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

/// The `WIDTH` elements of `values` from `offset`.
#[inline(always)]
pub(super) fn tile<T, const WIDTH: usize>(values: &[T], offset: usize) -> &[T; WIDTH] {
    match values[offset..offset + WIDTH].first_chunk() {
        Some(tile) => tile,
        // The slice has exactly WIDTH elements.
        None => unreachable!(),
    }
}

/// The `WIDTH` elements of `values` from `offset`, for writing.
#[inline(always)]
pub(super) fn tile_mut<T, const WIDTH: usize>(values: &mut [T], offset: usize) -> &mut [T; WIDTH] {
    match values[offset..offset + WIDTH].first_chunk_mut() {
        Some(tile) => tile,
        // The slice has exactly WIDTH elements.
        None => unreachable!(),
    }
}

/// Computes `sums += factor * row`.
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

/// Stores `sums`, rounded to the stored type.
#[inline(always)]
pub(super) fn store<T: Element, const WIDTH: usize>(target: &mut [T; WIDTH], sums: &[T::Real; WIDTH]) {
    for lane in 0..WIDTH {
        target[lane] = T::narrow(sums[lane]);
    }
}
