//! Transposition of 8 × 8 squares.

use std::arch::x86_64::*;

use crate::simd::transpose::SIDE;

/// Transposes a square with row stride `from_step` into one with row stride `to_step`.
///
/// # Safety
/// The machine must have AVX2, and all eight rows of both squares must be valid.
#[inline(always)]
pub unsafe fn square(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
    // SAFETY: by this function's contract.
    unsafe {
        let rows: [__m256; SIDE] = std::array::from_fn(|row| _mm256_loadu_ps(from.add(row * from_step)));
        // Interleave neighbouring rows, then pairs of those, then exchange halves.
        let twos: [__m256; SIDE] = std::array::from_fn(|index| {
            let pair = index / 2 * 2;
            match index % 2 {
                0 => _mm256_unpacklo_ps(rows[pair], rows[pair + 1]),
                _ => _mm256_unpackhi_ps(rows[pair], rows[pair + 1]),
            }
        });
        let fours: [__m256; SIDE] = std::array::from_fn(|index| {
            let (half, column) = (index / 4 * 4, index % 4);
            let (left, right) = (twos[half + column / 2], twos[half + column / 2 + 2]);
            match column % 2 {
                0 => _mm256_shuffle_ps::<0b01_00_01_00>(left, right),
                _ => _mm256_shuffle_ps::<0b11_10_11_10>(left, right),
            }
        });
        for column in 0..4 {
            let (left, right) = (fours[column], fours[column + 4]);
            _mm256_storeu_ps(to.add(column * to_step), _mm256_permute2f128_ps::<0x20>(left, right));
            _mm256_storeu_ps(to.add((column + 4) * to_step), _mm256_permute2f128_ps::<0x31>(left, right));
        }
    }
}
