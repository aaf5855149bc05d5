//! Matrix transposition.

use super::{Instructions, Kernel, dispatch};

/// Side length of the squares that are transposed at once.
pub const SIDE: usize = 8;

/// Transposes a matrix `[rows, columns]` to `[columns, rows]`.
pub fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let mut result = vec![0.0; values.len()];
    if let Some(rows) = values.len().checked_div(columns) {
        dispatch(Transpose { values, rows, columns, result: &mut result });
    }
    result
}

struct Transpose<'a, 'b> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    result: &'b mut [f32],
}

impl Kernel for Transpose<'_, '_> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        let Self { values, rows, columns, result } = self;
        for row in (0..rows).step_by(SIDE) {
            for column in (0..columns).step_by(SIDE) {
                let (from, to) = (&values[row * columns + column..], &mut result[column * rows + row..]);
                if row + SIDE <= rows && column + SIDE <= columns {
                    I::transpose_square((from, columns), (to, rows));
                    continue;
                }
                for row in 0..SIDE.min(rows - row) {
                    for column in 0..SIDE.min(columns - column) {
                        to[column * rows + row] = from[row * columns + column];
                    }
                }
            }
        }
    }
}

/// Transposes a square on machines without wider vectors.
#[inline(always)]
pub(super) fn portable_square((from, from_step): (&[f32], usize), (to, to_step): (&mut [f32], usize)) {
    for row in 0..SIDE {
        for column in 0..SIDE {
            to[column * to_step + row] = from[row * from_step + column];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Level, dispatch_at};

    #[test]
    fn every_element_comes_to_its_place_at_every_level_and_size() {
        for rows in (0..20).chain([64]) {
            for columns in (1..20).chain([33]) {
                let values: Vec<f32> = (0..rows * columns).map(|position| position as f32).collect();
                for level in Level::available() {
                    let mut result = vec![-1.0; values.len()];
                    dispatch_at(level, Transpose { values: &values, rows, columns, result: &mut result });
                    for (position, &found) in result.iter().enumerate() {
                        let (column, row) = (position / rows, position % rows);
                        assert_eq!(found, values[row * columns + column], "{level:?}: {rows} x {columns}");
                    }
                }
            }
        }
    }
}
