//! Inner loops compiled for several vector widths; the widest one that the machine supports is chosen at run time.
//!
//! A [`Kernel`] is written once, in plain Rust over fixed-size arrays, and compiled separately for each instruction
//! set, where the compiler turns the arrays into vectors. Everything it calls in its inner loops must be
//! `#[inline(always)]`; otherwise it is compiled without those instructions.

pub mod product;
pub mod rows;
pub mod transpose;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use super::philox::{self, LANES, Words};
use product::Product;
use rows::{Heads, Initial, Matrix};

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Supported by every machine of this architecture.
    Baseline,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

impl Level {
    /// All levels that this machine supports, narrowest first.
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

    /// The widest level that this machine supports.
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

/// Operations available to a kernel, implemented once per instruction set.
pub trait Instructions: Copy {
    /// True if `mul_add` is one instruction instead of a library call.
    const FUSED: bool;

    /// Scalar product of two slices of equal length. The compiler does not vectorise sums by itself, because that
    /// changes the order of additions. The order here depends on the length alone.
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

    /// Computes `output = initial + Σ factor · row` over the picked rows in order, with one factor per row and head.
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

    /// Computes the scalar products `[rows, heads]` of the row `left` with each picked row, in the order of
    /// [`Instructions::dot`].
    #[inline(always)]
    fn row_products(left: &[f32], rows: (Matrix<f32>, &[i32]), heads: &Heads, products: &mut [f32]) {
        wide_row_products::<Self>(left, rows, heads, products);
    }

    /// Computes a matrix product. It must have columns, and its sizes must match.
    #[inline(always)]
    fn multiply(product: Product, result: &mut [f32]) {
        product::portable::<Self>(product, result);
    }

    /// The words of [`philox::philox`] for [`LANES`] counters from `first` on.
    #[inline(always)]
    fn philox(key: u64, first: u64) -> Words {
        philox::portable_words(key, first)
    }

    /// Writes `chosen` where the lower 16 bits of a word (the upper ones if `upper`) are at least `threshold`, else
    /// zero.
    #[inline(always)]
    fn choose(words: &[u32; LANES], upper: bool, threshold: u32, chosen: f32, to: &mut [f32; LANES]) {
        let shift = if upper { 16 } else { 0 };
        for lane in 0..LANES {
            to[lane] = if (words[lane] >> shift) & 0xFFFF >= threshold { chosen } else { 0.0 };
        }
    }

    /// Transposes a square of side [`transpose::SIDE`]. Each argument is a slice that begins with the square, and its
    /// row stride.
    #[inline(always)]
    fn transpose_square(from: (&[f32], usize), to: (&mut [f32], usize)) {
        transpose::portable_square(from, to);
    }
}

/// [`Instructions::row_products`] as a sequence of scalar products.
#[inline(always)]
fn wide_row_products<I: Instructions>(left: &[f32], rows: (Matrix<f32>, &[i32]), heads: &Heads, products: &mut [f32]) {
    let channels = heads.channels.max(1);
    for (row, products) in rows.0.pick(rows.1).zip(products.chunks_exact_mut(heads.count)) {
        // Heads without channels have a product of zero.
        products.fill(0.0);
        let parts = left.chunks_exact(channels).zip(row.chunks_exact(channels));
        for (product, (left, right)) in products.iter_mut().zip(parts) {
            *product = I::dot(left, right);
        }
    }
}

/// Code to be compiled for several instruction sets, with a result of type `R`.
pub trait Kernel<R = ()> {
    /// Runs the kernel. Mark the implementation `#[inline(always)]`.
    fn run<I: Instructions>(self) -> R;
}

/// The widest level that [`dispatch`] uses; no limit until [`limit_level`] is called.
static LIMIT: AtomicU8 = AtomicU8::new(Level::Avx512 as u8);

/// Limits [`dispatch`] to vectors no wider than `level`, on all threads: for comparisons, or to reproduce the numbers
/// of a machine without wider ones.
pub fn limit_level(level: Level) {
    LIMIT.store(level as u8, Ordering::Relaxed);
}

/// Runs `kernel` with the widest vectors of this machine.
pub fn dispatch<R>(kernel: impl Kernel<R>) -> R {
    let limit = match LIMIT.load(Ordering::Relaxed) {
        0 => Level::Baseline,
        1 => Level::Avx2,
        _ => Level::Avx512,
    };
    dispatch_at(limit.min(Level::best()), kernel)
}

/// Runs `kernel` at the given level.
///
/// # Panics
/// If this machine does not support `level`.
pub fn dispatch_at<R>(level: Level, kernel: impl Kernel<R>) -> R {
    assert!(level <= Level::best(), "this machine supports {:?}, not {level:?}", Level::best());
    match level {
        // SAFETY (both): the machine has these instructions, as checked above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::run_avx2(kernel) },
        _ => run_baseline(kernel),
    }
}

/// Runs `kernel` with the instructions of every machine of this architecture, and is compiled for these alone.
pub fn run_baseline<R>(kernel: impl Kernel<R>) -> R {
    kernel.run::<Baseline>()
}

#[derive(Clone, Copy)]
struct Baseline;

impl Instructions for Baseline {
    const FUSED: bool = cfg!(target_arch = "aarch64");
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dot<'a>(&'a [f32], &'a [f32]);

    impl Kernel<f32> for Dot<'_> {
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
