//! Arithmetic shared by all passes, in forms that the compiler vectorises.

use kdgat_torch::simd::Instructions;

/// Number of partial sums computed side by side: the order of a sum depends on its length alone.
pub(super) const LANES: usize = 16;

/// Computes `left * right + addend`, in one instruction if the machine has one.
#[inline(always)]
pub fn fused<I: Instructions>(left: f32, right: f32, addend: f32) -> f32 {
    if I::FUSED { left.mul_add(right, addend) } else { left * right + addend }
}

/// Exponential, accurate to 2 units in the last place; infinite above 88, and 1.6e-38 below -87.
///
/// Cephes' polynomial (Moshier); the power of two comes from the bits left by adding 1.5·2²³.
#[inline(always)]
pub fn exp<I: Instructions>(value: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    // Written so that NaN is preserved.
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

/// Natural logarithm of a positive normal number, accurate to 2 units in the last place.
///
/// Cephes' polynomial (Moshier), around the nearest power of two by ratio.
#[inline(always)]
pub fn ln<I: Instructions>(value: f32) -> f32 {
    let bits = value.to_bits();
    let exponent = (bits.wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits()) as i32) >> 23;
    let rest = f32::from_bits(bits.wrapping_sub((exponent as u32) << 23)) - 1.0;
    let exponent = exponent as f32;
    let mut sum = 7.037_683_6e-2_f32;
    for coefficient in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        sum = fused::<I>(sum, rest, coefficient);
    }
    let squared = rest * rest;
    let sum = fused::<I>(exponent, -2.121_944_4e-4, sum * rest * squared);
    fused::<I>(exponent, 0.693_359_4, rest + fused::<I>(squared, -0.5, sum))
}

/// Cosine and sine of an angle in turns, from 0 to 1, accurate to 1e-7.
///
/// Cephes' polynomials (Moshier) of the distance from the nearest quarter turn.
#[inline(always)]
pub fn cos_sin_of_turns<I: Instructions>(turns: f32) -> [f32; 2] {
    const ROUND: f32 = 12_582_912.0;
    let shifted = fused::<I>(turns, 4.0, ROUND);
    let quarter = shifted.to_bits();
    let angle = fused::<I>(turns, 4.0, -(shifted - ROUND)) * std::f32::consts::FRAC_PI_2;
    let squared = angle * angle;
    let sine = fused::<I>(fused::<I>(-1.951_529_6e-4, squared, 8.332_161e-3), squared, -1.666_665_5e-1);
    let sine = fused::<I>(sine * squared, angle, angle);
    let cosine = fused::<I>(fused::<I>(2.443_315_7e-5, squared, -1.388_731_6e-3), squared, 4.166_664_6e-2);
    let cosine = fused::<I>(cosine * squared, squared, fused::<I>(squared, -0.5, 1.0));
    let odd = quarter & 1 != 0;
    let (for_cosine, for_sine) = if odd { (sine, cosine) } else { (cosine, sine) };
    // The cosine is negative in the second and third quarter, the sine in the third and fourth.
    let sign = |value: f32, negative: u32| f32::from_bits(value.to_bits() ^ ((negative & 2) << 30));
    [sign(for_cosine, quarter.wrapping_add(1)), sign(for_sine, quarter)]
}

/// Sum of `term` over all positions below `length`, in [`LANES`] partial sums.
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

/// The largest value, in [`LANES`] partial maxima.
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
    // Reduce by halves: a chain of sixteen comparisons would wait for each result.
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] = if lanes[lane + width] > lanes[lane] { lanes[lane + width] } else { lanes[lane] };
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use kdgat_torch::simd::{Kernel, Level, dispatch_at};

    struct Apply<'a>(&'a mut [f32], bool);

    impl Kernel for Apply<'_> {
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

    struct Trigonometric<'a>(&'a mut [[f32; 3]]);

    impl Kernel for Trigonometric<'_> {
        #[inline(always)]
        fn run<I: Instructions>(self) {
            for [value, cosine, sine] in self.0 {
                let logarithm = ln::<I>(*value);
                [*cosine, *sine] = cos_sin_of_turns::<I>(*value);
                *value = logarithm;
            }
        }
    }

    #[test]
    fn logarithm_cosine_and_sine_are_accurate_at_every_level() {
        let inputs: Vec<f32> =
            (1..=(1 << 18)).map(|step| step as f32 / (1 << 18) as f32).chain([1e-7, 3e-38]).collect();
        for level in Level::available() {
            let mut values: Vec<[f32; 3]> = inputs.iter().map(|&input| [input, 0.0, 0.0]).collect();
            dispatch_at(level, Trigonometric(&mut values));
            for (&input, found) in inputs.iter().zip(&values) {
                let exact = f64::from(input);
                let (sine, cosine) = (2.0 * std::f64::consts::PI * exact).sin_cos();
                let error = (f64::from(found[0]) - exact.ln()).abs() / exact.ln().abs().max(1e-6);
                assert!(error < 3.5e-7, "{level:?}: ln({input}) = {}, relative error {error}", found[0]);
                for (found, exact) in [(found[1], cosine), (found[2], sine)] {
                    assert!((f64::from(found) - exact).abs() < 2e-7, "{level:?}: {input} turns: {found}, not {exact}");
                }
            }
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
