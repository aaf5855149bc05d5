//! Transposing in squares of 8 × 8.

use std::arch::x86_64::*;

use crate::simd::transpose::SIDE;

/// Writes the square whose rows begin `from_step` apart as one whose rows begin `to_step` apart.
///
/// # Safety
/// The machine has AVX2, and all eight rows of both squares are good.
#[inline(always)]
pub unsafe fn square(from: *const f32, from_step: usize, to: *mut f32, to_step: usize) {
    // SAFETY: as the caller says.
    unsafe {
        let rows: [__m256; SIDE] = std::array::from_fn(|row| _mm256_loadu_ps(from.add(row * from_step)));
        // Neighbouring rows interleaved, then pairs of those, then the halves exchanged.
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
