//! Inner loops compiled for several vector widths, the widest that the machine has chosen at run time.
//!
//! A [`Kernel`] is written once, in plain Rust over fixed-size arrays; it is compiled anew for each
//! instruction set, where the compiler turns the arrays into vectors. Everything it calls in its inner loops
//! has to be `#[inline(always)]`, or it is compiled without those instructions.

pub mod rows;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use rows::{Heads, Initial, Matrix};

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every machine of this architecture has.
    Baseline,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

impl Level {
    /// All levels this machine can run, narrowest first.
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::Baseline];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
            if avx2 {
                levels.push(Self::Avx2);
            }
            if avx2 && has_avx512() {
                levels.push(Self::Avx512);
            }
        }
        levels
    }

    /// The widest level this machine can run.
    pub fn best() -> Self {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::Baseline))
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq")
}

/// What a kernel may rely on while it runs.
pub trait Instructions: Copy {
    /// Whether `mul_add` is one instruction (and not a call of a library).
    const FUSED: bool;

    /// Scalar product of two slices of equal length: the compiler does not vectorise sums by itself, since that
    /// changes their order. The order here depends on the length alone.
    #[inline(always)]
    fn dot(left: &[f32], right: &[f32]) -> f32 {
        let mut lanes = [0.0_f32; 8];
        let (left, left_rest) = left.as_chunks::<8>();
        let (right, right_rest) = right.as_chunks::<8>();
        for (left, right) in left.iter().zip(right) {
            for lane in 0..8 {
                lanes[lane] += left[lane] * right[lane];
            }
        }
        let rest: f32 = left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum();
        (lanes[0] + lanes[4]) + (lanes[1] + lanes[5]) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7])) + rest
    }

    /// `output = initial + Σ factor · row` over the picked rows in their order, with a factor for each row and head.
    #[inline(always)]
    fn sum_rows(
        output: &mut [f32],
        initial: Initial<f32>,
        rows: (Matrix<f32>, &[i32]),
        factors: &[f32],
        heads: &Heads,
    ) {
        rows::portable_sum(output, initial, rows, factors, heads, |value, factor, sum| {
            if Self::FUSED { value.mul_add(factor, sum) } else { value * factor + sum }
        });
    }

    /// The scalar products `[rows, heads]` of the row `left` with each picked row, as [`Instructions::dot`] has them.
    #[inline(always)]
    fn row_products(left: &[f32], rows: (Matrix<f32>, &[i32]), heads: &Heads, products: &mut [f32]) {
        wide_row_products::<Self>(left, rows, heads, products);
    }
}

/// [`Instructions::row_products`] by one scalar product after the other.
#[inline(always)]
fn wide_row_products<I: Instructions>(left: &[f32], rows: (Matrix<f32>, &[i32]), heads: &Heads, products: &mut [f32]) {
    let channels = heads.channels.max(1);
    for (row, products) in rows.0.pick(rows.1).zip(products.chunks_exact_mut(heads.count)) {
        // Of heads without channels nothing is left to multiply.
        products.fill(0.0);
        let parts = left.chunks_exact(channels).zip(row.chunks_exact(channels));
        for (product, (left, right)) in products.iter_mut().zip(parts) {
            *product = I::dot(left, right);
        }
    }
}

/// Work to be compiled for several instruction sets.
pub trait Kernel {
    /// What it computes.
    type Output;
    /// The work. Mark it `#[inline(always)]`.
    fn run<I: Instructions>(self) -> Self::Output;
}

/// The widest level that [`dispatch`] uses; above all levels unless [`limit_level`] says otherwise.
static LIMIT: AtomicU8 = AtomicU8::new(Level::Avx512 as u8);

/// Keeps [`dispatch`] from using wider vectors than `level`, on all threads: to compare, or to reproduce numbers
/// of a machine that has no wider ones.
pub fn limit_level(level: Level) {
    LIMIT.store(level as u8, Ordering::Relaxed);
}

/// Runs `kernel` on the widest vectors of this machine.
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    let limit = match LIMIT.load(Ordering::Relaxed) {
        0 => Level::Baseline,
        1 => Level::Avx2,
        _ => Level::Avx512,
    };
    dispatch_at(limit.min(Level::best()), kernel)
}

/// Runs `kernel` at `level`.
///
/// # Panics
/// When this machine does not have it.
pub fn dispatch_at<K: Kernel>(level: Level, kernel: K) -> K::Output {
    assert!(level <= Level::best(), "this machine has {:?}, not {level:?}", Level::best());
    match level {
        // SAFETY (both): the machine has these instructions, as just checked.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::run_avx2(kernel) },
        _ => kernel.run::<Baseline>(),
    }
}

#[derive(Clone, Copy)]
struct Baseline;

impl Instructions for Baseline {
    const FUSED: bool = cfg!(target_arch = "aarch64");
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::rows::x86::{Sum, Vector, products};
    use super::{Heads, Initial, Instructions, Kernel, Matrix, wide_row_products};

    #[derive(Clone, Copy)]
    struct Avx2;
    #[derive(Clone, Copy)]
    struct Avx512;

    // SAFETY (of what is unsafe in both): these types are private, and reach only kernels that run below
    // functions with their instructions enabled; loads stay inside the shorter slice.

    impl Instructions for Avx2 {
        const FUSED: bool = true;

        #[inline(always)]
        fn dot(left: &[f32], right: &[f32]) -> f32 {
            let length = left.len().min(right.len());
            let (left, right) = (left.as_ptr(), right.as_ptr());
            unsafe {
                let (mut even, mut odd) = (_mm256_setzero_ps(), _mm256_setzero_ps());
                let mut at = 0;
                while at + 16 <= length {
                    even = _mm256_fmadd_ps(_mm256_loadu_ps(left.add(at)), _mm256_loadu_ps(right.add(at)), even);
                    odd = _mm256_fmadd_ps(_mm256_loadu_ps(left.add(at + 8)), _mm256_loadu_ps(right.add(at + 8)), odd);
                    at += 16;
                }
                if at + 8 <= length {
                    even = _mm256_fmadd_ps(_mm256_loadu_ps(left.add(at)), _mm256_loadu_ps(right.add(at)), even);
                    at += 8;
                }
                if at < length {
                    let mask = first_lanes(length - at);
                    let (left, right) =
                        (_mm256_maskload_ps(left.add(at), mask), _mm256_maskload_ps(right.add(at), mask));
                    odd = _mm256_fmadd_ps(left, right, odd);
                }
                _mm256_add_ps(even, odd).sum()
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
            unsafe { Sum { initial, matrix, indices, factors, heads }.write::<__m256>(output) }
        }

        #[inline(always)]
        fn row_products(left: &[f32], rows: (Matrix<f32>, &[i32]), heads: &Heads, to: &mut [f32]) {
            if !unsafe { products::<__m256>(left, rows.0, rows.1, heads, to) } {
                wide_row_products::<Self>(left, rows, heads, to);
            }
        }
    }

    impl Instructions for Avx512 {
        const FUSED: bool = true;

        #[inline(always)]
        fn dot(left: &[f32], right: &[f32]) -> f32 {
            let length = left.len().min(right.len());
            let (left, right) = (left.as_ptr(), right.as_ptr());
            unsafe {
                let (mut even, mut odd) = (_mm512_setzero_ps(), _mm512_setzero_ps());
                let mut at = 0;
                while at + 32 <= length {
                    even = _mm512_fmadd_ps(_mm512_loadu_ps(left.add(at)), _mm512_loadu_ps(right.add(at)), even);
                    odd = _mm512_fmadd_ps(_mm512_loadu_ps(left.add(at + 16)), _mm512_loadu_ps(right.add(at + 16)), odd);
                    at += 32;
                }
                if at + 16 <= length {
                    even = _mm512_fmadd_ps(_mm512_loadu_ps(left.add(at)), _mm512_loadu_ps(right.add(at)), even);
                    at += 16;
                }
                if at < length {
                    let mask = (1_u16 << (length - at)) - 1;
                    let left = _mm512_maskz_loadu_ps(mask, left.add(at));
                    odd = _mm512_fmadd_ps(left, _mm512_maskz_loadu_ps(mask, right.add(at)), odd);
                }
                _mm512_reduce_add_ps(_mm512_add_ps(even, odd))
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
            unsafe { Sum { initial, matrix, indices, factors, heads }.write::<__m512>(output) }
        }

        #[inline(always)]
        fn row_products(left: &[f32], rows: (Matrix<f32>, &[i32]), heads: &Heads, to: &mut [f32]) {
            if !unsafe { products::<__m512>(left, rows.0, rows.1, heads, to) } {
                wide_row_products::<Self>(left, rows, heads, to);
            }
        }
    }

    // SAFETY (of both): what `Vector` asks of its callers is what these instructions ask.

    impl Vector for __m256 {
        const LANES: usize = 8;

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
        unsafe fn sum(self) -> f32 {
            unsafe {
                let sum = _mm_add_ps(_mm256_castps256_ps128(self), _mm256_extractf128_ps::<1>(self));
                let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
                _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
            }
        }
    }

    /// All bits of the first `count` lanes.
    #[inline(always)]
    unsafe fn first_lanes(count: usize) -> __m256i {
        unsafe {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes)
        }
    }

    impl Vector for __m512 {
        const LANES: usize = 16;

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
        unsafe fn sum(self) -> f32 {
            unsafe { _mm512_reduce_add_ps(self) }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx2>()
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx512>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dot<'a>(&'a [f32], &'a [f32]);

    impl Kernel for Dot<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<I: Instructions>(self) -> f32 {
            I::dot(self.0, self.1)
        }
    }

    #[test]
    fn scalar_products_are_right_at_every_level_and_length() {
        let (left, right): (Vec<f32>, Vec<f32>) = (0..200).map(|i| ((i % 17) as f32, (i % 13) as f32 - 6.0)).unzip();
        for level in Level::available() {
            for length in 0..left.len() {
                let expected: f32 = (0..length).map(|i| left[i] * right[i]).sum();
                let found = dispatch_at(level, Dot(&left[..length], &right[..length]));
                assert_eq!(found, expected, "{level:?}, length {length}");
            }
        }
    }
}
