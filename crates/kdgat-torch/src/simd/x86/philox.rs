//! Vectorised Philox: each word is in the low half of a 64-bit lane, which is what the multiplication reads.

use std::arch::x86_64::*;

use crate::philox::{LANES, MULTIPLIERS, ROUNDS, Words, next_key};

/// Defines `words` for registers of `$lanes` counters, with the given intrinsics.
macro_rules! words {
    ($register:ty, $lanes:literal, $set:ident, $load:ident, $multiply:ident, $shift:ident, $xor:ident, $store:expr) => {
        #[inline(always)]
        pub unsafe fn words(key: u64, first: u64) -> Words {
            // SAFETY: the caller ensures that the machine has these instructions; loads and stores are of whole arrays.
            unsafe {
                let multipliers = MULTIPLIERS.map(|multiplier| $set(i64::from(multiplier as i32)));
                let mut result: Words = [[0; LANES]; 4];
                for part in 0..LANES / $lanes {
                    let counters: [u64; $lanes] = std::array::from_fn(|lane| first + (part * $lanes + lane) as u64);
                    let counters: $register = $load(counters.as_ptr().cast());
                    let mut state = [counters, $shift::<32>(counters), $set(0), $set(0)];
                    let mut key = [key as u32, (key >> 32) as u32];
                    for _ in 0..ROUNDS {
                        // The next multiplication ignores bits above the low 32; the final store drops them.
                        let [left, right] = [$multiply(state[0], multipliers[0]), $multiply(state[2], multipliers[1])];
                        let keys = key.map(|key| $set(i64::from(key)));
                        state = [
                            $xor($xor($shift::<32>(right), state[1]), keys[0]),
                            right,
                            $xor($xor($shift::<32>(left), state[3]), keys[1]),
                            left,
                        ];
                        key = next_key(key);
                    }
                    for (word, result) in state.into_iter().zip(&mut result) {
                        $store(word, result.as_mut_ptr().add(part * $lanes));
                    }
                }
                result
            }
        }
    };
}

pub mod of_512 {
    use super::*;

    words!(
        __m512i,
        8,
        _mm512_set1_epi64,
        _mm512_loadu_si512,
        _mm512_mul_epu32,
        _mm512_srli_epi64,
        _mm512_xor_si512,
        |word, to: *mut u32| _mm256_storeu_si256(to.cast(), _mm512_cvtepi64_epi32(word))
    );
}

pub mod of_256 {
    use super::*;

    words!(
        __m256i,
        4,
        _mm256_set1_epi64x,
        _mm256_loadu_si256,
        _mm256_mul_epu32,
        _mm256_srli_epi64,
        _mm256_xor_si256,
        |word, to: *mut u32| {
            let low_halves = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
            let packed = _mm256_permutevar8x32_epi32(word, low_halves);
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed))
        }
    );
}
