//! Arithmetic that all passes share, in forms that the compiler turns into vectors.

use crate::torch::simd::Instructions;

/// Numbers that are summed side by side: the order of a sum depends on its length alone.
pub(super) const LANES: usize = 16;

/// `left * right + addend`, in one instruction where there is one.
#[inline(always)]
pub fn fused<I: Instructions>(left: f32, right: f32, addend: f32) -> f32 {
    if I::FUSED { left.mul_add(right, addend) } else { left * right + addend }
}

/// Exponential within 2 units in the last place; infinite above 88, and 1.6e-38 below -87.
///
/// Cephes' polynomial (Moshier), with the power of two taken from the bits that adding 1.5·2²³ leaves.
#[inline(always)]
pub fn exp<I: Instructions>(value: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    // Written so that a NaN stays one.
    let bounded = if value < -87.0 { -87.0 } else { value };
    let bounded = if bounded > 88.0 { 88.0 } else { bounded };
    let shifted = fused::<I>(bounded, std::f32::consts::LOG2_E, ROUND);
    let exponent = shifted - ROUND;
    let rest = fused::<I>(exponent, -0.693_359_4, bounded);
    let rest = fused::<I>(exponent, 2.121_944_4e-4, rest);
    let mut sum = 1.987_569_2e-4_f32;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        sum = fused::<I>(sum, rest, coefficient);
    }
    let result = fused::<I>(sum, rest * rest, rest) + 1.0;
    let result = result * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    if value > 88.0 { f32::INFINITY } else { result }
}

/// The logistic function.
#[inline(always)]
pub fn sigmoid<I: Instructions>(value: f32) -> f32 {
    let small = exp::<I>(-value.abs());
    let numerator = if value < 0.0 { small } else { 1.0 };
    numerator / (1.0 + small)
}

/// Sum of `term` over all positions below `length`, side by side in [`LANES`] numbers.
#[inline(always)]
pub(super) fn sum(length: usize, term: impl Fn(usize) -> f32) -> f64 {
    let mut lanes = [0.0_f32; LANES];
    let whole = length - length % LANES;
    let mut first = 0;
    while first < whole {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(first + lane);
        }
        first += LANES;
    }
    for (lane, position) in (whole..length).enumerate() {
        lanes[lane] += term(position);
    }
    lanes.iter().map(|&lane| f64::from(lane)).sum()
}

/// The largest value, side by side as [`sum`].
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (largest, &value) in lanes.iter_mut().zip(chunk) {
            *largest = if value > *largest { value } else { *largest };
        }
    }
    for (largest, &value) in lanes.iter_mut().zip(rest) {
        *largest = if value > *largest { value } else { *largest };
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::simd::{Kernel, Level, dispatch_at};

    struct Apply<'a>(&'a mut [f32], bool);

    impl Kernel for Apply<'_> {
        type Output = ();
        #[inline(always)]
        fn run<I: Instructions>(self) {
            for value in self.0 {
                *value = if self.1 { exp::<I>(*value) } else { sigmoid::<I>(*value) };
            }
        }
    }

    #[test]
    fn functions_are_accurate_at_every_level() {
        let inputs: Vec<f32> = (-86_000..88_000).map(|step| step as f32 * 1e-3).collect();
        for level in Level::available() {
            for exponential in [true, false] {
                let mut values = inputs.clone();
                dispatch_at(level, Apply(&mut values, exponential));
                for (&input, &value) in inputs.iter().zip(&values) {
                    let input = f64::from(input);
                    let exact = if exponential { input.exp() } else { 1.0 / (1.0 + (-input).exp()) };
                    let error = (f64::from(value) / exact - 1.0).abs();
                    assert!(error < 3.5e-7, "{level:?}: f({input}) = {value}, relative error {error}");
                }
            }
            let mut special = [f32::NAN, f32::INFINITY, 89.0, 0.0];
            dispatch_at(level, Apply(&mut special, true));
            assert!(special[0].is_nan() && special[1..] == [f32::INFINITY, f32::INFINITY, 1.0], "{special:?}");
        }
    }

    #[test]
    fn sums_and_maxima_take_every_element() {
        for length in 0..70 {
            let values: Vec<f32> = (0..length).map(|index| ((index * 29) % 31) as f32 - 15.0).collect();
            let expected: f64 = values.iter().map(|&value| f64::from(value)).sum();
            assert_eq!(sum(length, |index| values[index]), expected);
            assert_eq!(largest(&values), values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
