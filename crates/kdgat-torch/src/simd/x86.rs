//! Vectors of x86, 256 and 512 bits, behind one trait, and the operations of kernels on them.

mod philox;
mod product;
mod rows;
mod transpose;

use std::arch::x86_64::*;
use std::marker::PhantomData;

use self::rows::{Sum, products};
use super::product::Product;
use super::rows::{Heads, Initial, Matrix};
use super::transpose::SIDE;
use super::{Instructions, Kernel, wide_row_products};
use crate::philox::{LANES, Words};

/// A register of f32 numbers.
///
/// # Safety
/// The machine must have the instructions of the type; a pointer must be valid for `LANES` elements, or for `count`.
trait Vector: Copy {
    const LANES: usize;
    /// Number of such registers in the machine.
    const REGISTERS: usize;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    /// Loads the first `count < LANES` lanes; the others are zero.
    unsafe fn load_part(from: *const f32, count: usize) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn store_part(self, to: *mut f32, count: usize);
    /// For each of the first `count <= LANES` lanes, the element of `self` with the index in `lanes`; the others are
    /// unspecified.
    unsafe fn permuted(self, lanes: *const i32, count: usize) -> Self;
    /// `self * factor + addend`
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn sum(self) -> f32;
    /// The words of [`philox`] for [`LANES`](crate::philox::LANES) counters from `first` on.
    unsafe fn philox(key: u64, first: u64) -> Words;
    /// [`Instructions::choose`] for the first [`Vector::LANES`] of `words`.
    unsafe fn choose(words: *const u32, upper: bool, threshold: u32, chosen: f32) -> Self;
}

/// The instructions of one vector type.
#[derive(Clone, Copy)]
struct Vectors<V>(PhantomData<V>);

// SAFETY (of all unsafe code here): the type is private, and only kernels called from functions with its vector's
// instructions enabled use it; loads stay inside the shorter slice.
impl<V: Vector> Instructions for Vectors<V> {
    const FUSED: bool = true;

    #[inline(always)]
    fn dot(left: &[f32], right: &[f32]) -> f32 {
        let length = left.len().min(right.len());
        let (left, right) = (left.as_ptr(), right.as_ptr());
        unsafe {
            // Two chains, so that an addition does not wait for the previous one.
            let (mut even, mut odd) = (V::splat(0.0), V::splat(0.0));
            let mut at = 0;
            while at + 2 * V::LANES <= length {
                even = V::load(left.add(at)).mul_add(V::load(right.add(at)), even);
                odd = V::load(left.add(at + V::LANES)).mul_add(V::load(right.add(at + V::LANES)), odd);
                at += 2 * V::LANES;
            }
            if at + V::LANES <= length {
                even = V::load(left.add(at)).mul_add(V::load(right.add(at)), even);
                at += V::LANES;
            }
            if at < length {
                let part = length - at;
                odd = V::load_part(left.add(at), part).mul_add(V::load_part(right.add(at), part), odd);
            }
            even.add(odd).sum()
        }
    }

    #[inline(always)]
    fn sum_rows(
        output: &mut [f32],
        initial: Initial<f32>,
        (matrix, indices): (Matrix<f32>, &[i32]),
        factors: &[f32],
        heads: &Heads,
    ) {
        unsafe { Sum { initial, matrix, indices, factors, heads }.write::<V>(output) }
    }

    #[inline(always)]
    fn row_products(left: &[f32], rows: (Matrix<f32>, &[i32]), heads: &Heads, to: &mut [f32]) {
        if !unsafe { products::<V>(left, rows.0, rows.1, heads, to) } {
            wide_row_products::<Self>(left, rows, heads, to);
        }
    }

    #[inline(always)]
    fn multiply(product: Product, result: &mut [f32]) {
        unsafe { product::write::<V>(product, result) }
    }

    #[inline(always)]
    fn philox(key: u64, first: u64) -> Words {
        unsafe { V::philox(key, first) }
    }

    #[inline(always)]
    fn choose(words: &[u32; LANES], upper: bool, threshold: u32, chosen: f32, to: &mut [f32; LANES]) {
        for at in (0..LANES).step_by(V::LANES) {
            unsafe { V::choose(words.as_ptr().add(at), upper, threshold, chosen).store(to.as_mut_ptr().add(at)) }
        }
    }

    #[inline(always)]
    fn transpose_square(from: (&[f32], usize), to: (&mut [f32], usize)) {
        let end = |step: usize| (SIDE - 1) * step + SIDE;
        assert!(from.0.len() >= end(from.1) && to.0.len() >= end(to.1), "a slice is too short for the square");
        unsafe { transpose::square(from.0.as_ptr(), from.1, to.0.as_mut_ptr(), to.1) }
    }
}

// SAFETY (of both): callers of `Vector` ensure what these instructions require.

impl Vector for __m256 {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        unsafe { _mm256_maskload_ps(from, first_lanes(count)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        unsafe { _mm256_maskstore_ps(to, first_lanes(count), self) }
    }
    #[inline(always)]
    unsafe fn permuted(self, lanes: *const i32, count: usize) -> Self {
        unsafe {
            let lanes = match count {
                8 => _mm256_loadu_si256(lanes.cast()),
                _ => _mm256_maskload_epi32(lanes, first_lanes(count)),
            };
            _mm256_permutevar8x32_ps(self, lanes)
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        unsafe { _mm256_fmadd_ps(self, factor, addend) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { _mm256_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let sum = _mm_add_ps(_mm256_castps256_ps128(self), _mm256_extractf128_ps::<1>(self));
            let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
            _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
        }
    }
    #[inline(always)]
    unsafe fn philox(key: u64, first: u64) -> Words {
        unsafe { philox::of_256::words(key, first) }
    }
    #[inline(always)]
    unsafe fn choose(words: *const u32, upper: bool, threshold: u32, chosen: f32) -> Self {
        unsafe {
            let words = _mm256_loadu_si256(words.cast());
            let bits = match upper {
                true => _mm256_srli_epi32::<16>(words),
                false => _mm256_and_si256(words, _mm256_set1_epi32(0xFFFF)),
            };
            let below = _mm256_cmpgt_epi32(_mm256_set1_epi32(threshold as i32), bits);
            _mm256_andnot_ps(_mm256_castsi256_ps(below), _mm256_set1_ps(chosen))
        }
    }
}

/// A mask with all bits of the first `count` lanes set.
#[inline(always)]
unsafe fn first_lanes(count: usize) -> __m256i {
    unsafe {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes)
    }
}

impl Vector for __m512 {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        unsafe { _mm512_maskz_loadu_ps((1_u16 << count) - 1, from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        unsafe { _mm512_mask_storeu_ps(to, (1_u16 << count) - 1, self) }
    }
    #[inline(always)]
    unsafe fn permuted(self, lanes: *const i32, count: usize) -> Self {
        unsafe {
            let lanes = match count {
                16 => _mm512_loadu_si512(lanes.cast()),
                _ => _mm512_maskz_loadu_epi32((1_u16 << count) - 1, lanes),
            };
            _mm512_permutexvar_ps(lanes, self)
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        unsafe { _mm512_fmadd_ps(self, factor, addend) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { _mm512_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self) }
    }
    #[inline(always)]
    unsafe fn philox(key: u64, first: u64) -> Words {
        unsafe { philox::of_512::words(key, first) }
    }
    #[inline(always)]
    unsafe fn choose(words: *const u32, upper: bool, threshold: u32, chosen: f32) -> Self {
        unsafe {
            let words = _mm512_loadu_si512(words.cast());
            let bits = match upper {
                true => _mm512_srli_epi32::<16>(words),
                false => _mm512_and_si512(words, _mm512_set1_epi32(0xFFFF)),
            };
            let reached = _mm512_cmpge_epu32_mask(bits, _mm512_set1_epi32(threshold as i32));
            _mm512_maskz_mov_ps(reached, _mm512_set1_ps(chosen))
        }
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn run_avx2<R>(kernel: impl Kernel<R>) -> R {
    kernel.run::<Vectors<__m256>>()
}

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn run_avx512<R>(kernel: impl Kernel<R>) -> R {
    kernel.run::<Vectors<__m512>>()
}
