//! Number types of the fused kernels: a stored type and a computing type.

use std::ops::{Add, AddAssign, Div, Mul, Sub};

use half::bf16;
use kdgat_torch::simd::rows::{Heads, Initial, Matrix};
use kdgat_torch::simd::{self, Instructions, Kernel};
use kdgat_torch::view::Storable;

use super::tiles::{add_scaled, for_each_tile, store, tile, tile_mut};

/// A stored type of values.
pub(super) trait Element: Storable + Send + Sync + 'static {
    /// The computing type of the values.
    type Real: Real;
    /// Converts to the computing type, exactly.
    fn widen(self) -> Self::Real;
    /// Converts from the computing type, rounded to nearest.
    fn narrow(value: Self::Real) -> Self;
    /// Runs a kernel over values of this type with the widest vectors of this machine.
    fn dispatch<R>(kernel: impl Kernel<R>) -> R {
        simd::dispatch(kernel)
    }
    /// Scalar product with a slice of the same type and length.
    #[inline(always)]
    fn dot<I: Instructions>(left: &[Self], right: &[Self]) -> Self::Real {
        dot_by_lanes::<I, Self, Self>(left, right)
    }
    /// Scalar product with a slice of the computing type and the same length.
    #[inline(always)]
    fn dot_real<I: Instructions>(left: &[Self], right: &[Self::Real]) -> Self::Real {
        dot_by_lanes::<I, Self, Self::Real>(left, right)
    }
    /// Computes `output = initial + Σ factor · row` over the picked rows, with factors `[rows, heads]`.
    #[inline(always)]
    fn sum_rows<I: Instructions>(
        output: &mut [Self],
        initial: Initial<Self::Real>,
        rows: (Matrix<Self>, &[i32]),
        factors: &[Self::Real],
        heads: &Heads,
    ) {
        for head in 0..heads.count {
            let columns = head * heads.channels..(head + 1) * heads.channels;
            for_each_tile!(columns.start, columns.end, |column| sum_tile::<I, Self>(
                column, head, initial, rows, factors, heads, output
            ));
        }
    }
    /// Computes `sums += Σ factor · row` over the picked rows, with factors `[rows, heads]`.
    #[inline(always)]
    fn add_rows<I: Instructions>(
        sums: &mut [Self::Real],
        rows: (Matrix<Self>, &[i32]),
        factors: &[Self::Real],
        heads: &Heads,
    ) {
        for (row, factors) in rows.0.pick(rows.1).zip(factors.chunks_exact(heads.count)) {
            for (head, &factor) in factors.iter().enumerate() {
                let columns = head * heads.channels..(head + 1) * heads.channels;
                for (sum, value) in sums[columns.clone()].iter_mut().zip(&row[columns]) {
                    *sum = value.widen().mul_add::<I>(factor, *sum);
                }
            }
        }
    }
    /// Computes the scalar products `[rows, heads]` of the row `left` with each picked row.
    #[inline(always)]
    fn row_products<I: Instructions>(
        left: &[Self],
        rows: (Matrix<Self>, &[i32]),
        heads: &Heads,
        products: &mut [Self::Real],
    ) {
        for (row, products) in rows.0.pick(rows.1).zip(products.chunks_exact_mut(heads.count)) {
            for (head, product) in products.iter_mut().enumerate() {
                let columns = head * heads.channels..(head + 1) * heads.channels;
                *product = Self::dot::<I>(&left[columns.clone()], &row[columns]);
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn sum_tile<I: Instructions, T: Element, const WIDTH: usize>(
    column: usize,
    head: usize,
    initial: Initial<T::Real>,
    rows: (Matrix<T>, &[i32]),
    factors: &[T::Real],
    heads: &Heads,
    output: &mut [T],
) {
    let mut sums = [T::Real::ZERO; WIDTH];
    match initial {
        Initial::Zero => {}
        Initial::Kept => {
            for (sum, kept) in sums.iter_mut().zip(tile::<T, WIDTH>(output, column)) {
                *sum = kept.widen();
            }
        }
        Initial::Row(row) => sums = *tile(row, column),
        Initial::Pair(rows, factors) => {
            add_scaled::<I, T::Real, WIDTH>(&mut sums, factors[0][head], tile(rows[0], column));
            add_scaled::<I, T::Real, WIDTH>(&mut sums, factors[1][head], tile(rows[1], column));
        }
    }
    for (row, factors) in rows.0.pick(rows.1).zip(factors.chunks_exact(heads.count)) {
        add_scaled::<I, T, WIDTH>(&mut sums, factors[head], tile(row, column));
    }
    store::<T, WIDTH>(tile_mut(output, column), &sums);
}

#[inline(always)]
fn dot_by_lanes<I: Instructions, A: Element, B: Element<Real = A::Real>>(left: &[A], right: &[B]) -> A::Real {
    let mut lanes = [A::Real::ZERO; 8];
    let (left, left_rest) = left.as_chunks::<8>();
    let (right, right_rest) = right.as_chunks::<8>();
    for (left, right) in left.iter().zip(right) {
        for lane in 0..8 {
            lanes[lane] = left[lane].widen().mul_add::<I>(right[lane].widen(), lanes[lane]);
        }
    }
    let mut sum = A::Real::ZERO;
    for (left, right) in left_rest.iter().zip(right_rest) {
        sum = left.widen().mul_add::<I>(right.widen(), sum);
    }
    for lane in lanes {
        sum += lane;
    }
    sum
}

/// A computing type.
pub(super) trait Real:
    Element<Real = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + PartialOrd
{
    const ZERO: Self;
    const ONE: Self;
    const NEGATIVE_INFINITY: Self;
    fn from_f64(value: f64) -> Self;
    fn absolute(self) -> Self;
    fn is_sign_negative(self) -> bool;
    /// Computes `self * factor + addend`, in one instruction if the machine has one.
    fn mul_add<I: Instructions>(self, factor: Self, addend: Self) -> Self;
    /// Replaces each value by its exponential. Values must not be positive.
    fn exp_in_place<I: Instructions>(values: &mut [Self]);
}

macro_rules! element {
    ($stored:ty, $real:ty, |$wide:ident| $widen:expr, |$narrow:ident| $round:expr $(, $method:item)*) => {
        impl Element for $stored {
            type Real = $real;
            #[inline(always)]
            fn widen(self) -> $real {
                let $wide = self;
                $widen
            }
            #[inline(always)]
            fn narrow($narrow: $real) -> Self {
                $round
            }
            $($method)*
        }
    };
}

element!(
    f32,
    f32,
    |value| value,
    |value| value,
    #[inline(always)]
    fn dot<I: Instructions>(left: &[f32], right: &[f32]) -> f32 {
        I::dot(left, right)
    },
    #[inline(always)]
    fn dot_real<I: Instructions>(left: &[f32], right: &[f32]) -> f32 {
        I::dot(left, right)
    },
    #[inline(always)]
    fn sum_rows<I: Instructions>(
        output: &mut [f32],
        initial: Initial<f32>,
        rows: (Matrix<f32>, &[i32]),
        factors: &[f32],
        heads: &Heads,
    ) {
        I::sum_rows(output, initial, rows, factors, heads);
    },
    #[inline(always)]
    fn add_rows<I: Instructions>(sums: &mut [f32], rows: (Matrix<f32>, &[i32]), factors: &[f32], heads: &Heads) {
        I::sum_rows(sums, Initial::Kept, rows, factors, heads);
    },
    #[inline(always)]
    fn row_products<I: Instructions>(left: &[f32], rows: (Matrix<f32>, &[i32]), heads: &Heads, products: &mut [f32]) {
        I::row_products(left, rows, heads, products);
    }
);
element!(
    f64,
    f64,
    |value| value,
    |value| value,
    // Gradients are checked in this type, and no training computes in it: three versions of each kernel would only take time to compile.
    fn dispatch<R>(kernel: impl Kernel<R>) -> R {
        simd::run_baseline(kernel)
    }
);
element!(bf16, f32, |value| f32::from_bits(u32::from(value.to_bits()) << 16), |value| round_to_bf16(value));

/// Rounds to nearest even without a branch on the value, so that loops over it are vectorised.
#[inline(always)]
fn round_to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1));
    // Rounding could carry a NaN over into infinity.
    let bits = if value.is_nan() { 0x7FC0_0000 } else { rounded };
    bf16::from_bits((bits >> 16) as u16)
}

macro_rules! real {
    ($real:ident, |$slice:ident| $exp:expr) => {
        impl Real for $real {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEGATIVE_INFINITY: Self = $real::NEG_INFINITY;
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $real
            }
            #[inline(always)]
            fn absolute(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn is_sign_negative(self) -> bool {
                $real::is_sign_negative(self)
            }
            #[inline(always)]
            fn mul_add<I: Instructions>(self, factor: Self, addend: Self) -> Self {
                if I::FUSED { $real::mul_add(self, factor, addend) } else { self * factor + addend }
            }
            #[inline(always)]
            fn exp_in_place<I: Instructions>($slice: &mut [Self]) {
                $exp
            }
        }
    };
}

real!(f32, |values| {
    for value in values {
        *value = exp_f32::<I>(*value);
    }
});
real!(f64, |values| {
    for value in values {
        *value = value.exp();
    }
});

/// Exponential of a non-positive value, accurate to 2 units in the last place; 1.6e-38 below -87.
///
/// Cephes' polynomial (Moshier); the power of two comes from the bits left by adding 1.5·2²³.
#[inline(always)]
fn exp_f32<I: Instructions>(value: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    // Written so that NaN is preserved.
    let value = if value < -87.0 { -87.0 } else { value };
    let shifted = Real::mul_add::<I>(value, std::f32::consts::LOG2_E, ROUND);
    let exponent = shifted - ROUND;
    let rest = Real::mul_add::<I>(exponent, -0.693_359_4, value);
    let rest = Real::mul_add::<I>(exponent, 2.121_944_4e-4, rest);
    let mut sum = 1.987_569_2e-4_f32;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        sum = Real::mul_add::<I>(sum, rest, coefficient);
    }
    let result = Real::mul_add::<I>(sum, rest * rest, rest) + 1.0;
    result * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_torch::simd::{Level, dispatch_at};

    struct Exp<'a>(&'a mut [f32]);

    impl Kernel for Exp<'_> {
        #[inline(always)]
        fn run<I: Instructions>(self) {
            f32::exp_in_place::<I>(self.0);
        }
    }

    #[test]
    fn exponential_is_accurate_at_every_level() {
        let inputs: Vec<f32> = (0..=870_000).map(|step| -(step as f32) * 1e-4).collect();
        for level in Level::available() {
            let mut values = inputs.clone();
            dispatch_at(level, Exp(&mut values));
            for (input, value) in inputs.iter().zip(&values) {
                let exact = f64::from(*input).exp();
                let error = (f64::from(*value) / exact - 1.0).abs();
                assert!(error < 2.5e-7, "{level:?}: exp({input}) = {value}, relative error {error}");
            }
            let mut special = [f32::NAN, f32::NEG_INFINITY, 0.0, -0.0];
            dispatch_at(level, Exp(&mut special));
            assert!(special[0].is_nan() && special[1] < 2e-38 && special[2..] == [1.0, 1.0], "{special:?}");
        }
    }

    #[test]
    fn bf16_rounds_as_the_reference() {
        for bits in (0..u32::MAX).step_by(65_521) {
            let value = f32::from_bits(bits);
            let (ours, reference) = (round_to_bf16(value), bf16::from_f32(value));
            assert!(ours == reference || ours.is_nan() && reference.is_nan(), "{value}: {ours} instead of {reference}");
        }
    }
}
